#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How rows are taught: the one place for the settings that follow from their number.

usage: recipe.py [--model] [--teacher 0|1] [ROWS.tsv]...

Prints NAME=VALUE, a word for each setting of the Makefile that the user may leave unset.  There
is a ROWS.tsv for each stage, which may come again; without any, the settings are those of the
story in eight languages.  --model: of a model of the user's.  --teacher: the user has set
TEACHER, to 0 or to another number.
"""
import argparse

# Up to so many rows: the epochs in which rows that are new are learnt, and those in which rows
# that are known are taught at a lower rate.
RULE = ((20, 3, 2), (100, 7, 3), (400, 10, 5), (None, 25, 12))
VARIED = 1000


def number(path):
    """Rows of a file, as data.py counts them; whether they are good is data.py's to say."""
    try:
        with open(path, "rb") as f:
            return sum(1 for line in f if line.strip() and not line.startswith(b"#"))
    except OSError:
        return 0


def recipe(paths, model, teacher):
    counts = {p: number(p) for p in paths}
    if teacher is None:
        teacher = int(bool(paths) and not model)
        yield "TEACHER", teacher
    own = bool(paths and teacher and not model)
    total = sum(counts.values())
    learn, settle = next(r[1:] for r in RULE if r[0] is None or total <= r[0])
    if not own:
        learn, settle = (2, 1) if model else (5, 2)
    yield "VARIED", VARIED * own
    high, low = ("5e-5", "1e-5") if model else ("1e-3" if teacher else "5e-4", "3e-4" if own else "6e-5")
    known = set()
    for n, path in enumerate(paths or ["", ""], 1):
        new = path not in known
        known.add(path)
        yield "EPOCHS%d" % n, learn if new else settle
        yield "LR%d" % n, high if new else low


def main():
    p = argparse.ArgumentParser(usage="recipe.py [OPTION]... [ROWS.tsv]...")
    p.add_argument("--model", action="store_true")
    p.add_argument("--teacher", type=int, choices=(0, 1))
    p.add_argument("rows", nargs="*")
    o = p.parse_args()
    for setting in recipe(o.rows, o.model, o.teacher):
        print("%s=%s" % setting)


if __name__ == "__main__":
    main()
