#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the small tokenizer of the tests, and the vectors for it.

usage: make_tokenizer.py TEXT OUT.json            train on TEXT, write a tokenizer.json
       make_tokenizer.py --vectors OUT.json FILE.jsonl
       make_tokenizer.py --seeds tests/fuzz/corpus

    tests/make_tokenizer.py tests/vectors/tokenizer-text.txt \\
        tests/vectors/tokenizer-small.json
    tests/make_tokenizer.py --vectors tests/vectors/tokenizer-small.json \\
        tests/vectors/tokenizer-small.jsonl

The first form needs Python alone.  It is built as the tokenizer of Qwen3 is: bytes in
the alphabet of GPT-2, then a token for each merge, then the same 26 added tokens.
Merges are found by counting pairs in the pieces of the text, the most frequent first,
of equal ones the one with the smaller ids: the same text gives the same file.

The second form needs the package "tokenizers" (0.23.2): lines {"text", "ids"} with
added tokens recognised, {"text", "ids_raw"} without.  It is the oracle, not we.

The third form writes the seeds of the fuzz harnesses tokenizer_json, small files of
both forms of merges, and encode_decode, some texts.
"""
import json
import os
import random
import sys
import unicodedata

TOKENS = 3072        # with the 256 bytes, without the added tokens
ADDED = ("<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> "
         "<|box_start|> <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> "
         "<|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> "
         "</tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> "
         "<|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> "
         "</think>").split()
N_SPECIAL = 14
REGEX = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
              "use_regex": False}


def byte_order():
    """Bytes in the order of their ids, and the character that stands for each."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in itself]
    table = {b: chr(b) for b in itself}
    table.update((b, chr(256 + i)) for i, b in enumerate(others))
    return itself + others, table


def kind(c):
    if c.isspace():
        return "S"
    k = unicodedata.category(c)[0]
    return k if k in "LN" else "O"


def split(text):
    """Pieces as the regular expression cuts them, for text of which only plain things
    are expected; contractions in lower case."""
    i, n, pieces = 0, len(text), []

    def run(k, at):
        while at < n and kind(text[at]) == k:
            at += 1
        return at

    while i < n:
        c, k = text[i], kind(text[i])
        after = kind(text[i + 1]) if i + 1 < n else ""
        short = [s for s in ("s", "t", "re", "ve", "m", "ll", "d")
                 if c == "'" and text.startswith(s, i + 1)]
        if short:
            end = i + 1 + len(short[0])
        elif k == "L" or (after == "L" and k != "N" and c not in "\r\n"):
            end = run("L", i + 1)
        elif k == "N":
            end = i + 1
        elif k == "O" or (c == " " and after == "O"):
            end = run("O", i + 1)
            while end < n and text[end] in "\r\n":
                end += 1
        else:
            end = run("S", i)
            lines = max(text.rfind("\n", i, end), text.rfind("\r", i, end))
            if lines >= 0:
                end = lines + 1
            elif end < n and end - i > 1:
                end -= 1
        pieces.append(text[i:end])
        i = end
    return pieces


def count_pairs(words):
    pairs, where = {}, {}
    for w, (symbols, count) in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] = pairs.get(pair, 0) + count
            where.setdefault(pair, set()).add(w)
    return pairs, where


def merge_in(symbols, pair, token):
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(token)
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def train(text):
    """Tokens as byte strings by id, and the merges as pairs of ids."""
    order, _ = byte_order()
    id_of_byte = {b: i for i, b in enumerate(order)}
    counts = {}
    for piece in split(unicodedata.normalize("NFC", text)):
        counts[piece] = counts.get(piece, 0) + 1
    words = [[[id_of_byte[b] for b in piece.encode()], n]
             for piece, n in sorted(counts.items())]
    tokens, merges = [bytes([b]) for b in order], []
    pairs, where = count_pairs(words)
    while len(tokens) < TOKENS:
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[pair] < 2:
            sys.exit("the text is too short: %d tokens" % len(tokens))
        token = len(tokens)
        tokens.append(tokens[pair[0]] + tokens[pair[1]])
        merges.append(pair)
        for w in sorted(where[pair]):
            old, count = words[w]
            new = merge_in(old, pair, token)
            for p in zip(old, old[1:]):
                pairs[p] -= count
                if not pairs[p]:
                    del pairs[p]
            for p in zip(new, new[1:]):
                pairs[p] = pairs.get(p, 0) + count
                where.setdefault(p, set()).add(w)
            words[w][0] = new
    return tokens, merges


def pipeline(first_added):
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": first_added + i, "content": a, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False,
                          "special": i < N_SPECIAL} for i, a in enumerate(ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": REGEX}, "behavior": "Isolated",
             "invert": False}, BYTE_LEVEL]},
        "post_processor": BYTE_LEVEL, "decoder": BYTE_LEVEL,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": 0, "merges": 0}}


def write(path, tokens, merges):
    _, table = byte_order()
    names = ["".join(table[b] for b in t) for t in tokens]
    if len(set(names)) != len(names):
        sys.exit("two merges make the same token")
    head = json.dumps(pipeline(len(tokens)), indent=1)
    cut = head.index('"vocab": 0')

    def dump(x):
        return json.dumps(x, ensure_ascii=False, separators=(",", ":"))

    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(head[:cut] + '"vocab": {\n')
        f.write(",\n".join("%s:%d" % (dump(s), i) for i, s in enumerate(names)))
        f.write('},\n  "merges": [\n')
        f.write(",\n".join(dump([names[a], names[b]]) for a, b in merges))
        f.write("]\n }\n}\n")


def texts():
    """What the vectors are about: lines of the training text, what is hard, and random
    strings of both."""
    rng = random.Random(2026)
    with open(sys.argv[2].replace("small.json", "text.txt"), encoding="utf-8") as f:
        lines = f.read().splitlines()
    yield from lines[:45]
    yield from ("\n".join(lines[i:i + 4]) for i in range(50, 300, 10))
    hard = ["", " ", "  ", "\n", "\r\n", " \n ", "\t\tx", "a  b", "a \n\n b  ", "x\u00a0y",
            "\u3000\u3000\u4f60", "I'm you'RE it'\u017f DON'T 'LL 'x ''s", "12345 \u0661\u0662 \u00bd",
            "cafe\u0301 caf\u00e9", "K\u212a", "\u1100\u1161\u11a8 \uac00\u11a8 \uac00\u11a7",
            "e\u0323\u0302 e\u0302\u0323", "\u0301a", "\u0340\u0f73\u0958", "\x00\x01\x7f",
            "\ufeffx", "\ud7fb\ue000\uffff\U0010ffff", "\u200b\u200d\u180e", "a" * 300, " " * 300,
            "'" * 300, "\u4f60" * 100, "ab" * 5000, "e\u0301" * 200, "\u0345\u0301" * 40, "=" * 77 + "\n",
            "<|im_end|>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_end", "<<|im_end|>>",
            "<think>\n\n</think>\n\n", "<tool_call></tool_call>", "e<|im_end|>\u0301",
            " <|endoftext|> ", "a  <think>"]
    yield from hard
    letters = "".join(lines[:45])
    for _ in range(250):
        parts = []
        for _ in range(rng.randint(1, 12)):
            x = rng.random()
            if x < 0.5:
                at = rng.randrange(len(letters))
                parts.append(letters[at:at + rng.randint(1, 12)])
            elif x < 0.8:
                parts.append(rng.choice(hard)[:20])
            else:
                parts.append(rng.choice(" \t\n'\r.\u0301\u093f\u3099\u00a0\u2028") * rng.randint(1, 3))
        yield "".join(parts)


def vectors(path, out):
    import tokenizers
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    special = tokenizers.Tokenizer.from_str(json.dumps(config))
    config["added_tokens"] = []
    plain = tokenizers.Tokenizer.from_str(json.dumps(config))
    with open(out, "w", encoding="ascii") as f:
        for text in texts():
            raw = plain.encode(text, add_special_tokens=False).ids
            ids = special.encode(text, add_special_tokens=False).ids
            f.write(json.dumps({"text": text, "ids_raw": raw},
                               separators=(",", ":")) + "\n")
            if ids != raw:
                f.write(json.dumps({"text": text, "ids": ids},
                                   separators=(",", ":")) + "\n")


def seeds(folder):
    order, table = byte_order()
    names = [table[b] for b in order] + ["ab", "abc", "bc", "\u0120a"]
    pairs = [["ab", "c"], ["a", "b"], ["b", "c"], ["\u0120", "a"]]
    os.makedirs(os.path.join(folder, "tokenizer_json"), exist_ok=True)
    os.makedirs(os.path.join(folder, "encode_decode"), exist_ok=True)
    for name, merges in ("pairs", pairs), ("words", [" ".join(p) for p in pairs]):
        top = pipeline(len(names))
        del top["added_tokens"][3:]
        top["model"]["vocab"] = {s: i for i, s in enumerate(names)}
        top["model"]["merges"] = merges
        with open(os.path.join(folder, "tokenizer_json", name), "w",
                  encoding="utf-8") as f:
            json.dump(top, f, ensure_ascii=name == "words", separators=(",", ":"))
    hard = ["I'm you'RE it'\u017f  12 \u0661\n\n x\t\ty \r\n", "e\u0323\u0302\u0345",
            "\u1100\u1161\u11a8\u11a7\uac00", "<|im_start|>user\n\u4f60\u597d<|im_end|>\n",
            "a<|im_en", "\u0958\u0340\u212a\U0001d15e", "the tokenizer of the tests" * 9]
    for i, text in enumerate(hard):
        with open(os.path.join(folder, "encode_decode", "text%d" % i), "wb") as f:
            f.write(text.encode())


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--seeds":
        seeds(sys.argv[2])
        return
    if len(sys.argv) == 4 and sys.argv[1] == "--vectors":
        vectors(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 3:
        with open(sys.argv[1], encoding="utf-8", newline="") as f:
            write(sys.argv[2], *train(f.read()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
