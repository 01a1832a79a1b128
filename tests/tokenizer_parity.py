#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares lib/text with the Python package "tokenizers", which it must equal.

usage: tokenizer_parity.py [-n COUNT] [-s SEED] TOKENIZER.json [PART]...

  points    every code point in ten contexts, added tokens off
  random    COUNT random strings (100000) of what is hard: marks, Hangul, spaces,
            apostrophes, line ends, letters of all scripts, added tokens
  long      runs of one unit, longer than a window of the merging
  merges    COUNT/100 random small tokenizers with merges in any order, each with
            its own strings, long ones among them
  vectors   FILE.jsonl[.gz] of {"text", "ids" or "ids_raw"}: what stands there
            (only when named: vectors=FILE)

Not part of "make test": it needs the package (pip install tokenizers==0.23.2) and
takes minutes.  The library is compiled here, into a temporary directory.  Exit 0:
all equal, 1: some differ (the first few are shown), 77: no package.
"""
import ctypes
import getopt
import glob
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import tokenizers
except ImportError:
    print("the Python package tokenizers is not installed")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


class Err(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("msg", ctypes.c_char * 1024)]


class Ids(ctypes.Structure):
    _fields_ = [("v", ctypes.POINTER(ctypes.c_uint32)), ("n", ctypes.c_size_t),
                ("cap", ctypes.c_size_t), ("failed", ctypes.c_bool)]


class Slice(ctypes.Structure):
    _fields_ = [("p", ctypes.c_char_p), ("n", ctypes.c_size_t)]


def build(folder):
    path = os.path.join(folder, "libtext.so")
    sources = [s for d in ("core", "text") for s in glob.glob("%s/lib/%s/*.c" % (ROOT, d))]
    subprocess.run(["cc", "-O2", "-std=c11", "-D_GNU_SOURCE", "-I", ROOT, "-shared",
                    "-fPIC", "-o", path, *sources, "-lxxhash", "-lpthread", "-lm"],
                   check=True)
    lib = ctypes.CDLL(path)
    lib.tokenizer_open.restype = lib.encoder_open.restype = ctypes.c_void_p
    lib.tokenizer_open.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.encoder_open.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.encoder_close.argtypes = lib.tokenizer_close.argtypes = [ctypes.c_void_p]
    lib.encode.argtypes = [ctypes.c_void_p, ctypes.POINTER(Ids), Slice, ctypes.c_bool,
                           ctypes.POINTER(Err)]
    return lib


class Ours:
    """A tokenizer of lib/text."""
    guard = ctypes.create_string_buffer(1 << 17)    # more than a struct guard

    def __init__(self, lib, path):
        self.lib, self.err, self.ids = lib, Err(), Ids()
        self.t = lib.tokenizer_open(path.encode(), self.guard, ctypes.byref(self.err))
        if not self.t:
            sys.exit(self.err.msg.decode())
        self.e = lib.encoder_open(self.t, ctypes.byref(self.err))

    def encode(self, text, special=False):
        raw = text.encode()
        self.ids.n = 0
        if self.lib.encode(self.e, ctypes.byref(self.ids), Slice(raw, len(raw)), special,
                           ctypes.byref(self.err)):
            sys.exit(self.err.msg.decode())
        return self.ids.v[:self.ids.n]

    def close(self):
        self.lib.encoder_close(self.e)
        self.lib.tokenizer_close(self.t)


class Parity:
    def __init__(self, lib, path):
        self.lib = lib
        self.count = self.bad = 0
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        self.added = [a["content"] for a in config["added_tokens"]]
        self.special = tokenizers.Tokenizer.from_str(json.dumps(config))
        config["added_tokens"] = []
        self.plain = tokenizers.Tokenizer.from_str(json.dumps(config))
        self.ours = Ours(lib, path)

    def differ(self, text, what, want, got):
        self.bad += 1
        if self.bad <= 20:
            print("%s: %s: want %s, got %s" % (what, ascii(text[:80]), want[:20],
                                               got[:20]))

    def check(self, text, what, special=False):
        self.count += 1
        reference = self.special if special else self.plain
        want = reference.encode(text, add_special_tokens=False).ids
        got = self.ours.encode(text, special)
        if got != want:
            self.differ(text, what, want, got)

    def points(self, _count):
        """Many code points in one text; one by one only where such a text differs."""
        contexts = ["%s", "a%s", "%sa", "a%sb", " %s", "%s ", "1%s2", "'%ss", "\n%s\n",
                    "e%s\u0301", " \t%s,"]
        points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
        for form in contexts:
            for i in range(0, len(points), 2048):
                texts = [form % chr(c) for c in points[i:i + 2048]]
                whole, before = "|\r|".join(texts), self.bad
                want = self.plain.encode(whole, add_special_tokens=False).ids
                self.count += len(texts)
                if self.ours.encode(whole) != want:
                    for t in texts:
                        self.check(t, "points")
                    if self.bad == before:
                        self.check(whole, "points, in one text")

    def random(self, count):
        letters = "aZéßſKΩωйעمअকกあ가中𠮷ﬁſ"
        marks = "\u0300\u0301\u0323\u0327\u0345\u093c\u094d\u05b0\u3099\u0f71\u1d165\u0bbe"
        hangul = "\u1100\u1112\u1161\u1175\u11a7\u11a8\u11c2\uac00\uac01\ud7a3"
        spaces = " \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u180e\u2003\u2028\u202f\u3000\u200b"
        other = "'’.,!-_<>|/\\\x00\x7f…€😀👋🏽\u200d\ufeff\uffff\U000e0001½²٣१四"
        hard = [letters, marks, hangul, spaces, other, "'", "stremvldSTREMVLD", " ", "\r\n"]
        for i in range(count):
            kind = random.random()
            special = kind < 0.2
            parts = []
            for _ in range(random.randint(1, 24)):
                x = random.random()
                if special and x < 0.2:
                    token = random.choice(self.added)
                    parts.append(token if x < 0.15 else token[:random.randint(1, len(token))])
                elif x < 0.85:
                    parts.append(random.choice(random.choice(hard)))
                else:
                    c = random.choice([random.randrange(0x3000), random.randrange(0x20000),
                                       random.randrange(0x110000)])
                    parts.append(chr(c) if not 0xD800 <= c <= 0xDFFF else "?")
            self.check("".join(parts), "random %d" % i, special)

    def long(self, _count):
        for unit in "a", " ", "'", "\n", "中", "1", "ab", " \n", "\u0301", "😀", "=", "aA":
            for n in 100, 20000, 300000:
                self.check(unit * (n // len(unit)), "long")
        rng = random.Random(1)
        for letters in "ab", "etaoin", "的一是不了人我在有他这", "аеио":
            for n in 200, 1000, 20000, 100000:
                self.check("".join(rng.choice(letters) for _ in range(n)), "long")

    def merges(self, count):
        """Rank order is not the order of ids here, and not that of making: that merging
        in windows and from whole characters is exact must not hang on such order."""
        with tempfile.TemporaryDirectory() as folder:
            for i in range(count // 100):
                rng = random.Random(i)
                alphabet = rng.choice(["ab", "abc", "é中ß丁七", "中丁七"])
                path = os.path.join(folder, "t.json")
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(random_tokenizer(rng, alphabet), f)
                inner = Parity(self.lib, path)
                for n in [5, 20, 60, 150, 1000] * 8 + [40000, 70000]:
                    text = "".join(rng.choice(alphabet) for _ in range(rng.randint(1, n)))
                    inner.check(text, "merges %d" % i)
                self.count += inner.count
                self.bad += inner.bad
                inner.ours.close()

    def vectors(self, path):
        opened = gzip.open if path.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", newline="\n") as f:
            for i, line in enumerate(f):
                v = json.loads(line)
                self.count += 1
                want = v.get("ids", v.get("ids_raw"))
                got = self.ours.encode(v["text"], "ids" in v)
                if got != want:
                    self.differ(v["text"], "line %d" % (i + 1), want, got)


def byte_alphabet():
    """GPT-2's: printable bytes of Latin-1 are themselves, the others U+0100 and on."""
    table, n = {}, 0
    for b in range(256):
        itself = 33 <= b <= 126 or 161 <= b and b != 173
        table[b] = chr(b if itself else 256 + n)
        n += not itself
    return table


def random_tokenizer(rng, letters):
    table = byte_alphabet()
    vocab = {table[b]: b for b in range(256)}
    tokens = [table[b] for b in sorted(set(letters.encode()))]
    merges, used = [], set()
    for _ in range(rng.randint(1, 60)):
        pair = rng.choice(tokens), rng.choice(tokens)
        if pair in used or len(pair[0]) + len(pair[1]) > 24 or pair[0] + pair[1] in vocab:
            continue        # (a token made by two merges: the reference is unclear)
        used.add(pair)
        merges.append(list(pair))
        vocab[pair[0] + pair[1]] = len(vocab)
        tokens.append(pair[0] + pair[1])
    rng.shuffle(merges)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}
    regex = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
             " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated",
                 "invert": False}, level]},
            "post_processor": level, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": "", "end_of_word_suffix": "",
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": merges}}


def main():
    try:
        options, args = getopt.getopt(sys.argv[1:], "n:s:")
    except getopt.GetoptError:
        args = []
    if not args:
        sys.exit(__doc__)
    options = dict(options)
    random.seed(int(options.get("-s", 0)))
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        parity = Parity(build(folder), args[0])
        for part in args[1:] or ["points", "random", "long", "merges"]:
            name, _, path = part.partition("=")
            parity.count = parity.bad = 0
            getattr(parity, name)(path or int(options.get("-n", 100000)))
            print("%s: %d compared, %d differ (tokenizers %s)" %
                  (part, parity.count, parity.bad, tokenizers.__version__), flush=True)
            bad += parity.bad
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
