#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Independent writer and strict reader of .tok streams, and the rules of rows
and samples once more, for a tokenizer whose tokens are bytes.  Written from
doc/FORMAT.md and the rules of TSV data alone; the oracle of tok.bats and
tokenize.bats.

usage: tok.py read FILE            header, end and samples as JSON, a line each
       tok.py make KIND OUT        a valid stream: small packed ids none, and wide:
                                   with as long a header as there may be
       tok.py bad DIR              streams that must be refused, and MANIFEST:
                                   file TAB words of the message
       tok.py tokenizer OUT        a tokenizer.json of 256 bytes and no merges
       tok.py expect [--KEY=VALUE]... FILE...
                                   what tokenize --emit jsonl must say of TSV
                                   (template, no_end, seq_len, fit)
       tok.py cut FILE COMMAND...  each cut of the file must end COMMAND with
                                   2 and one line, as {} and on standard input
       tok.py packed FILE PLAIN    FILE holds the samples of PLAIN, packed
       tok.py --self-test
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unicodedata

sys.dont_write_bytecode = True      # no __pycache__ in the tree

from containers import Bad, need, pack, unpack
from xxh3 import xxh3_128

MAGIC = b"\x89NIBTK\r\n"
HEADER = {"packed": False, "seq_len": None,
          "settings": {"end": True, "input": "tsv", "invalid": "error",
                       "joint": False, "parse_special": False,
                       "shuffle": None},
          "template": "qwen3", "tokenizer": bytes(range(32)),
          "version": "0.1.0", "vocab": 300}
END_KEYS = {"inputs", "longest", "samples", "skipped", "targets", "tokens",
            "truncated"}


# ---- reading ----------------------------------------------------------------

class Source:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n, what):
        need(len(self.data) - self.at >= n, "byte %d: %s is cut", self.at, what)
        self.at += n
        return self.data[self.at - n:self.at]

    def u32(self, what):
        return struct.unpack("<I", self.take(4, what))[0]

    def words(self, n, what):
        return list(struct.unpack("<%dI" % n, self.take(4 * n, what)))


def is_int(v, low, high):
    return isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def check_header(h):
    need(isinstance(h, dict) and set(h) == set(HEADER), "header keys")
    need(isinstance(h["packed"], bool), "packed")
    need(h["seq_len"] is None or is_int(h["seq_len"], 2, 2**32 - 2), "seq_len")
    need(isinstance(h["settings"], dict), "settings")
    need(all(v is None or isinstance(v, (bool, int, str))
             for v in h["settings"].values()), "settings")
    need(h["template"] in ("qwen3", "seed", "none"), "template")
    need(h["tokenizer"] is None or (isinstance(h["tokenizer"], bytes) and
                                    len(h["tokenizer"]) == 32), "tokenizer")
    need(isinstance(h["version"], str), "version")
    need(h["vocab"] is None or is_int(h["vocab"], 1, 2**32), "vocab")


def read_sample(s, h):
    n = s.u32("number of ids")
    need(n >= 2 and (h["seq_len"] is None or n <= h["seq_len"] + 1),
         "%d ids", n)
    ids = s.words(n, "ids")
    need(h["vocab"] is None or max(ids) < h["vocab"], "id %d", max(ids))
    bits = int.from_bytes(s.take(-(-n // 8), "mask"), "little")
    need(bits >> n == 0, "unused bits of a mask")
    mask = [bits >> i & 1 for i in range(n)]
    starts = [0]
    if h["packed"]:
        starts = s.words(s.u32("number of documents"), "documents")
        need(starts and starts[0] == 0 and starts[-1] < n, "documents")
        need(all(a < b for a, b in zip(starts, starts[1:])), "documents")
    targets = sum(mask) - sum(mask[i] for i in starts)
    need(targets >= 1, "no target")
    return {"ids": ids, "mask": mask, "starts": starts}, targets


def read_tok(data):
    """(header, samples, end); Bad when a rule is broken."""
    s = Source(data)
    need(s.take(8, "magic") == MAGIC, "magic")
    need(s.u32("version") == 1, "version")
    n = s.u32("header size")
    need(1 <= n <= 1 << 20, "header size")
    h = unpack(s.take(n, "header"))
    check_header(h)
    samples, targets = [], 0
    while True:
        kind = s.take(1, "record")[0]
        if kind == 2:
            break
        need(kind == 1, "kind %d", kind)
        sample, k = read_sample(s, h)
        samples.append(sample)
        targets += k
    e = unpack(s.take(s.u32("end size"), "end"))
    need(isinstance(e, dict) and set(e) == END_KEYS, "end keys")
    need(all(isinstance(x, bytes) and len(x) == 16 for x in e["inputs"]),
         "inputs")
    need(all(is_int(e[k], 0, 2**64 - 1) for k in END_KEYS - {"inputs"}), "end")
    want = xxh3_128(data[:s.at])
    need(s.take(16, "hash") == want, "hash")
    need(s.at == len(data), "bytes behind the end")
    lengths = [len(x["ids"]) for x in samples]
    need(e["samples"] == len(samples) and e["tokens"] == sum(lengths) and
         e["longest"] == max(lengths, default=0) and e["targets"] == targets,
         "counts")
    return h, samples, e


def slurp(path):
    with open(path, "rb") as f:
        return f.read()


def hexed(v):
    if isinstance(v, bytes):
        return v.hex()
    if isinstance(v, list):
        return [hexed(x) for x in v]
    if isinstance(v, dict):
        return {k: hexed(x) for k, x in v.items()}
    return v


def show(path):
    h, samples, e = read_tok(slurp(path))
    for v in [h, e] + samples:
        print(json.dumps(hexed(v), sort_keys=True, separators=(",", ":")))


# ---- writing ----------------------------------------------------------------

def record(ids, mask, starts=None):
    n = len(ids)
    bits = sum(b << i for i, b in enumerate(mask))
    out = struct.pack("<BI%dI" % n, 1, n, *ids)
    out += bits.to_bytes(-(-n // 8), "little")
    if starts is not None:
        out += struct.pack("<I%dI" % len(starts), len(starts), *starts)
    return out


def head(header=None, raw=None, version=1, magic=MAGIC):
    raw = pack(dict(HEADER, **(header or {}))) if raw is None else raw
    return magic + struct.pack("<II", version, len(raw)) + raw


def end(body, samples, over=None, raw=None):
    """The whole stream: body and the end record for these samples."""
    e = {"inputs": [bytes(16)], "samples": len(samples), "skipped": 3,
         "longest": max((len(s[0]) for s in samples), default=0),
         "targets": sum(sum(s[1]) - sum(s[1][i] for i in (s + ([0],))[2])
                        for s in samples),
         "tokens": sum(len(s[0]) for s in samples), "truncated": 1}
    raw = pack(dict(e, **(over or {}))) if raw is None else raw
    body += struct.pack("<BI", 2, len(raw)) + raw
    return body + xxh3_128(body)


def stream(samples, header=None, **more):
    return end(head(header) + b"".join(record(*s) for s in samples), samples,
               **more)


def wide(n):
    """A setting that makes a header of so many bytes."""
    more = {"settings": {"a": "x" * 99999}}
    more["settings"]["a"] += "x" * (n - len(head(more)) + 16)
    return more


PLAIN = [([7, 8, 9], [0, 1, 1]),
         (list(range(20)), [0] * 11 + [1] * 9),
         ([299, 0], [1, 1])]
BINS = [([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 1, 0, 1, 1, 0, 0, 0, 1], [0, 3, 7]),
        ([5, 6], [0, 1], [0])]
KINDS = {
    "small": lambda: stream(PLAIN),
    "packed": lambda: stream(BINS, {"packed": True, "seq_len": 8}),
    "ids": lambda: stream([([2**32 - 1, 0, 5], [0, 0, 1])],
                          {"vocab": None, "tokenizer": None,
                           "template": "none"}),
    "none": lambda: stream([]),
    "wide": lambda: stream(PLAIN, wide(1 << 20)),
}


def bad_streams():
    """name: (bytes, words of the message)"""
    h, ok = head(), KINDS["small"]()
    packed = {"packed": True, "seq_len": 8}
    broken = dict(HEADER)
    del broken["vocab"]
    out = {
        "empty": (b"", "is empty"),
        "magic": (b"\x89NIBCK\r\n" + ok[8:], "magic"),
        "crlf": (ok[:6] + b"\n" + ok[8:], "magic"),
        "version": (end(head(version=2), []), "version 1, found 2"),
        "header-0": (end(head(raw=b""), []), "1..1048576"),
        "header-over": (end(head(raw=bytes((1 << 20) + 1)), []),
                        "1..1048576 bytes, found 1048577"),
        "header-big": (h[:12] + b"\xff\xff\xff\xff" + h[16:], "1..1048576"),
        "header-key": (end(head(raw=pack(broken)), []), "7 keys, found 6"),
        "header-order": (end(head(raw=pack(HEADER)[:1] +
                                  pack({"seq_len": None})[1:] +
                                  pack(HEADER)[1:]), []), '"packed"'),
        "header-more": (end(head(raw=pack(HEADER) + b"\xc0"), []), "behind"),
        "header-float": (end(head({"seq_len": 5.0}), []), "seq_len"),
        "seq-len-1": (end(head({"seq_len": 1}), []), "seq_len"),
        "template": (end(head({"template": "qwen9"}), []), "template"),
        "tokenizer": (end(head({"tokenizer": bytes(31)}), []), "tokenizer"),
        "vocab-0": (end(head({"vocab": 0}), []), "vocab"),
        "settings": (end(head({"settings": {"a": [1]}}), []), "settings"),
        "kind-0": (h + b"\x00" + ok[len(h):], "kind 1 or 2, found 0"),
        "n-1": (end(h + record([1], [1]), []), "at least: expected 2"),
        "n-huge": (h + struct.pack("<BI", 1, 2**32 - 1) + bytes(64), "cut"),
        "n-over": (stream(PLAIN, {"seq_len": 10}), "at most: expected 11"),
        "id": (stream([([1, 300], [0, 1])]), "id 300 at position 1"),
        "mask-bits": (end(h + record([1, 2], [0, 1])[:-1] + b"\x06", []),
                      "unused bits"),
        "no-target": (stream([([1, 2, 3], [1, 0, 0])]), "targets"),
        "no-target-packed": (stream([([1, 2, 3], [1, 0, 1], [0, 2])], packed),
                             "targets"),
        "docs-0": (end(head(packed) + record([1, 2], [0, 1], []), []),
                   "documents"),
        "docs-first": (stream([([1, 2, 3], [0, 1, 1], [1])], packed),
                       "first document"),
        "docs-order": (stream([([1, 2, 3, 4, 5], [0, 1, 1, 0, 1],
                                [0, 2, 2])], packed),
                       "document 2 starts at 2, expected 3..4"),
        "docs-over": (end(head(packed) + record([1, 2, 3], [0, 1, 1], [0, 3]),
                          []), "document 1 starts at 3, expected 1..2"),
        "docs-many": (end(head(packed) + record([1, 2], [0, 1], [0, 1, 2]),
                          []), "documents"),
        "no-end": (h + record(*PLAIN[0]), "end record"),
        "end-size": (h + struct.pack("<BI", 2, 2**31), "1..67108864"),
        "end-key": (end(h, [], raw=pack({"inputs": []})), "7 keys, found 1"),
        "end-more": (end(h, [], raw=pack(dict.fromkeys(END_KEYS, 0) |
                                         {"inputs": []}) + b"\x00"), "behind"),
        "end-input": (end(h, [], {"inputs": [bytes(15)]}), "16 bytes"),
        "end-negative": (end(h, [], {"skipped": -1}), "skipped"),
        "hash": (ok[:-1] + bytes([ok[-1] ^ 1]), "XXH3"),
        "behind": (ok + b"\x00", "behind the end"),
        "twice": (ok + ok, "behind the end"),
    }
    for key in ("longest", "samples", "targets", "tokens"):
        out["count-" + key] = (stream(PLAIN, over={key: 1000}), key + " 1000")
    return out


def make_bad(folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "MANIFEST"), "w") as m:
        for name, (data, words) in sorted(bad_streams().items()):
            with open(os.path.join(folder, name + ".tok"), "wb") as f:
                f.write(data)
            m.write("%s.tok\t%s\n" % (name, words))


# ---- a tokenizer of bytes -----------------------------------------------------

REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ORDER = (list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)) +
         list(range(33)) + list(range(127, 161)) + [173])
ID_OF = {b: i for i, b in enumerate(ORDER)}
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT, IM_START, IM_END = 256, 257, 258


def make_tokenizer(path):
    vocab = {chr(b) if i < 188 else chr(256 + i - 188): i
             for i, b in enumerate(ORDER)}
    level = {"type": "ByteLevel", "add_prefix_space": False,
             "trim_offsets": False, "use_regex": False}
    t = {"version": "1.0", "truncation": None, "padding": None,
         "added_tokens": [{"id": 256 + i, "content": text,
                           "single_word": False, "lstrip": False,
                           "rstrip": False, "normalized": False,
                           "special": True} for i, text in enumerate(ADDED)],
         "normalizer": {"type": "NFC"},
         "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
             {"type": "Split", "pattern": {"Regex": REGEX},
              "behavior": "Isolated", "invert": False}, level]},
         "post_processor": level, "decoder": level,
         "model": {"type": "BPE", "dropout": None, "unk_token": None,
                   "continuing_subword_prefix": "", "end_of_word_suffix": "",
                   "fuse_unk": False, "byte_fallback": False,
                   "ignore_merges": False, "vocab": vocab, "merges": []}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(t, f, ensure_ascii=False, indent=1)


def encode(text):
    return [ID_OF[b] for b in unicodedata.normalize("NFC", text).encode()]


# ---- rows and samples -----------------------------------------------------------

SPACE = ("\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
         "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000")


def tsv_rows(text):
    for line in text.removeprefix("\ufeff").split("\n"):
        line = line.strip(SPACE)
        if not line or line.startswith("#"):
            continue
        prompt, tab, target = line.partition("\t")
        prompt, target = prompt.strip(SPACE), target.strip(SPACE)
        if tab and prompt and target:
            yield prompt, target


def render(prompt, target, template, no_end):
    p = {"qwen3": [IM_START] + encode("user\n" + prompt) + [IM_END] +
         encode("\n") + [IM_START] + encode("assistant\n"),
         "torchsharp": [IM_START] + encode("user\n" + prompt + "\n") + [IM_END] +
         encode("\n") + [IM_START] + encode("assistant\n"),
         "none": encode(prompt)}[template]
    t = encode(target) + ([] if no_end else [IM_END])
    e = encode("\n") if template == "qwen3" and not no_end else []
    return p + t + e, [0] * len(p) + [1] * len(t) + [0] * len(e)


def expect(args):
    how = {"template": "qwen3", "no_end": "", "seq_len": "", "fit": ""}
    files = []
    for a in args:
        if a.startswith("--"):
            key, _, value = a[2:].partition("=")
            how[key] = value or "1"
        else:
            files.append(a)
    for path in files:
        for row in tsv_rows(slurp(path).decode("utf-8")):
            ids, mask = render(*row, how["template"], how["no_end"])
            if how["seq_len"]:
                keep = int(how["seq_len"]) + 1
                ids, mask = ids[-keep:], mask[-keep:]
            if not how["fit"] or (len(ids) >= 2 and any(mask[1:])):
                print(json.dumps({"ids": ids, "mask": mask},
                                 separators=(",", ":")))


# ---- questions to programs --------------------------------------------------------

def one_cut(command, path, data, piped):
    argv = [path if a == "{}" else a for a in command]
    if piped:
        argv = ["-" if a == "{}" else a for a in command]
    r = subprocess.run(argv, input=data if piped else b"", capture_output=True)
    lines = r.stderr.decode("utf-8").splitlines()
    if r.returncode != 2 or len(lines) != 1:
        raise Bad("%d bytes, %s: exit %d, %r" % (
            len(data), "piped" if piped else "file", r.returncode, lines))


def cut(path, command):
    data = slurp(path)
    with tempfile.TemporaryDirectory() as folder:
        part = os.path.join(folder, "cut.tok")
        for n in range(len(data)):
            with open(part, "wb") as f:
                f.write(data[:n])
            one_cut(command, part, data[:n], False)
            if "--decode" in command and n >= 8:
                one_cut(command, part, data[:n], True)
    print(len(data))


def documents(sample):
    ends = sample["starts"][1:] + [len(sample["ids"])]
    for a, b in zip(sample["starts"], ends):
        yield tuple(sample["ids"][a:b]), tuple(sample["mask"][a:b])


def check_packed(path, plain):
    """Every document once and whole, no bin too long, and nearly full."""
    h, bins, e = read_tok(slurp(path))
    h2, samples, e2 = read_tok(slurp(plain))
    need(h["packed"] and not h2["packed"], "packed")
    need(e["tokens"] == e2["tokens"] and e["targets"] == e2["targets"],
         "counts")
    room = h["seq_len"] + 1
    first = {}
    for i, s in enumerate(samples):
        first.setdefault((tuple(s["ids"]), tuple(s["mask"])), []).append(i)
    seen, last = 0, -1
    for b in bins:
        places = [first[d].pop(0) for d in documents(b)]
        if len(samples) == len(first):      # no two documents are equal
            need(places == sorted(places), "order inside a bin")
            need(h["settings"]["shuffle"] is not None or places[0] > last,
                 "order of bins")
        last = places[0]
        seen += len(places)
    need(seen == len(samples), "%d documents of %d", seen, len(samples))
    # Best fit: two bins that would fit into one are never left.
    used = sorted(len(b["ids"]) for b in bins)
    need(len(used) < 2 or used[0] + used[1] > room, "two bins fit into one")
    print(len(bins), round(100 * (1 - e["tokens"] / (len(bins) * room)), 2))


def self_test():
    for name, make in KINDS.items():
        whole = make()
        read_tok(whole)
        for n in range(0, len(whole), 1 + len(whole) // 5000):
            refused(name, whole[:n])
    for name, (data, _) in bad_streams().items():
        refused(name, data)


def refused(name, data):
    try:
        read_tok(data)
    except Bad:
        return
    raise SystemExit("%s: %d bytes were taken" % (name, len(data)))


def main(argv):
    commands = {"read": lambda a: show(a[0]), "tokenizer":
                lambda a: make_tokenizer(a[0]), "bad": lambda a: make_bad(a[0]),
                "expect": expect, "cut": lambda a: cut(a[0], a[1:]),
                "packed": lambda a: check_packed(*a),
                "--self-test": lambda a: self_test()}
    if argv[1:2] == ["make"]:
        with open(argv[3], "wb") as f:
            f.write(KINDS[argv[2]]())
    elif argv[1:2] and argv[1] in commands:
        commands[argv[1]](argv[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv)
    except Bad as e:
        sys.exit("tok.py: %s" % e)
