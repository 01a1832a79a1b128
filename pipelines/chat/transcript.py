#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints a conversation as a person reads it.

usage: transcript.py [--system TEXT] TURNS ANSWERS.json

TURNS has what the user said, a turn a line; ANSWERS.json what "generate --chat --json"
said to the first of them.  Control characters are shown as \\n, \\t, \\xNN, so that a turn
is a line; an answer that was cut off ends in [cut].
"""
import json
import sys
import unicodedata

SHORT = {"\n": "\\n", "\t": "\\t", "\\": "\\\\"}


def shown(text):
    return "".join(SHORT.get(c) or ("".join("\\x%02x" % b for b in c.encode())
                                    if unicodedata.category(c)[0] == "C" else c)
                   for c in text)


def main():
    args = sys.argv[1:]
    if args[:1] == ["--system"] and len(args) > 1:
        print("system  " + shown(args[1]))
        args = args[2:]
    if len(args) != 2:
        sys.exit(__doc__.splitlines()[3])
    with open(args[0], encoding="utf-8") as f:
        turns = f.read().splitlines()
    with open(args[1], encoding="utf-8") as f:
        for line in f:
            answer = json.loads(line)
            print("user    " + shown(turns[answer["turn"]]))
            print("model   " + shown(answer["messages"][-1]["content"]) + ("" if answer["stop"] == "end" else " [cut]"))


if __name__ == "__main__":
    main()
