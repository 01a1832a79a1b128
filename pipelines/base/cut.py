#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Cuts lines of ids into lines of T + 1 ids at most, so that no id is lost as a target.

usage: cut.py T <IDS >IDS

The last id of a line is the first of the next: it is a target in the one and an input in
the other.  Standard input is what "tokenize --emit ids" prints.
"""
import sys


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdigit() or int(sys.argv[1]) < 2:
        sys.exit("usage: cut.py T <IDS >IDS")
    t = int(sys.argv[1])
    for line in sys.stdin:
        ids = line.split()
        for i in range(0, len(ids) - 1, t):
            sys.stdout.write(" ".join(ids[i:i + t + 1]) + "\n")


if __name__ == "__main__":
    main()
