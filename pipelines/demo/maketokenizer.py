#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the tokenizer of a small model from its texts: as Qwen3's, with fewer tokens.

usage: maketokenizer.py OUT.json FILE.tsv...     rows of prompt, TAB, answer

The demo's is made of pretrain.tsv, heldout.tsv and whoami.tsv, in this order.

The trainer is that of the tests, tests/make_tokenizer.py; it needs Python alone.  The
frame of a chat is part of the text, since its words are to be tokens.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests"))
sys.dont_write_bytecode = True
import make_tokenizer  # noqa: E402

TOKENS = 998  # and 26 added ones: 1024


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.splitlines()[2])
    text = []
    for name in sys.argv[2:]:
        with open(name, encoding="utf-8") as f:
            for line in f:
                prompt, target = line.rstrip("\n").split("\t")
                text.append("user\n%s\nassistant\n%s\n" % (prompt, target))
    make_tokenizer.TOKENS = TOKENS
    # Samples apart, so that a line's end is a piece of its own.
    make_tokenizer.write(sys.argv[1], *make_tokenizer.train("\n".join(text)))


if __name__ == "__main__":
    main()
