#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the tokenizer of the base model: as Qwen3's, with fewer tokens.

usage: tokenizer.py OUT.json SIZE FILE.jsonl...       lines {"text": ...}
       tokenizer.py --check TOKENIZER.json FILE.jsonl TOKENIZE
       tokenizer.py --help

SIZE is the number of all tokens: 256 bytes, the merges, and the 26 added tokens of Qwen3.
Every fourth line of the files is counted.  The same text gives the same file.

The second form compares the ids of 1000 lines with those of the program TOKENIZE.

It needs the package "tokenizers" (pip install --no-deps tokenizers==0.23.2); the byte
order, the added tokens and the frame of the file are those of tests/make_tokenizer.py.
"""
import json
import os
import subprocess
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests"))
sys.dont_write_bytecode = True
import make_tokenizer  # noqa: E402

VERSION = "0.23.2"
EVERY = 4
CHECKED = 1000


def package():
    try:
        import tokenizers
    except ImportError:
        sys.exit("tokenizer.py: it needs the package tokenizers: pip install --no-deps tokenizers==" + VERSION)
    if tokenizers.__version__ != VERSION:
        print("tokenizer.py: tokenizers is %s, not %s: its file may be another" %
              (tokenizers.__version__, VERSION), file=sys.stderr)
    return tokenizers


def texts(names, every):
    i = 0
    for name in names:
        with open(name, encoding="utf-8") as f:
            for line in f:
                if i % every == 0:
                    yield json.loads(line)["text"]
                i += 1


def train(out, size, names):
    from_package = package()
    tok = from_package.Tokenizer(from_package.models.BPE())
    tok.normalizer = from_package.normalizers.NFC()
    tok.pre_tokenizer = from_package.pre_tokenizers.Sequence([
        from_package.pre_tokenizers.Split(from_package.Regex(make_tokenizer.REGEX), "isolated"),
        from_package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = from_package.trainers.BpeTrainer(
        vocab_size=size - len(make_tokenizer.ADDED), min_frequency=2, show_progress=False,
        initial_alphabet=from_package.pre_tokenizers.ByteLevel.alphabet(), special_tokens=[])
    tok.train_from_iterator(texts(names, EVERY), trainer)
    model = json.loads(tok.to_str())["model"]
    order, table = make_tokenizer.byte_order()
    byte_of = {c: b for b, c in table.items()}
    tokens = [None] * len(model["vocab"])
    for name, i in model["vocab"].items():
        tokens[i] = bytes(byte_of[c] for c in name)
    if len(tokens) != size - len(make_tokenizer.ADDED) or tokens[:256] != [bytes([b]) for b in order]:
        sys.exit("tokenizer.py: the text is too short, or the package orders bytes otherwise: %d tokens" %
                 len(tokens))
    at = {t: i for i, t in enumerate(tokens)}
    merges = []
    for m in model["merges"]:
        a, b = m if isinstance(m, list) else m.split(" ")
        merges.append(tuple(at[bytes(byte_of[c] for c in s)] for s in (a, b)))
    make_tokenizer.write(out, tokens, merges)


def check(name, text, program):
    tok = package().Tokenizer.from_file(name)
    lines = list(texts([text], 1))[:CHECKED]
    ours = subprocess.run([program, "-q", "-t", name, "--input", "jsonl", "--no-end", "--emit", "ids"],
                          input="".join(json.dumps({"text": t}) + "\n" for t in lines).encode(),
                          stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    differ = [i for i, t in enumerate(lines)
              if ours[i].split() != [str(n) for n in tok.encode(t, add_special_tokens=False).ids]]
    print("%d of %d texts have the same ids" % (len(lines) - len(differ), len(lines)))
    if differ:
        sys.exit("tokenizer.py: line %d of %s has other ids" % (differ[0] + 1, text))


def main():
    args = sys.argv[1:]
    if args == ["--help"]:
        print(__doc__)
    elif len(args) == 4 and args[0] == "--check":
        check(*args[1:])
    elif len(args) >= 3 and args[1].isdigit():
        train(args[0], int(args[1]), args[2:])
    else:
        sys.exit(__doc__.split("\n\n")[1])


if __name__ == "__main__":
    main()
