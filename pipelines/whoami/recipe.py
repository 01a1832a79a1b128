#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How rows are taught: the one place for the settings that follow from their number.

usage: recipe.py [--model] [--teacher 0|1] [--controls N] [ROWS]...

Prints NAME=VALUE, a word for each setting of the Makefile that the user may leave unset.  There
is a file of ROWS for each stage, which may come again; without any, the settings are those of the
story in eight languages.  --model: of a model of the user's.  --teacher: the user has set
TEACHER, to 0 or to another number.  --controls: the user's CONTROLS.

The rule: a row that is new is learnt at a constant rate until it was seen as often as LEARN says,
and one that is known is seen again, as SETTLE says, at a lower rate.  Fewer rows than old questions are
repeated until there are as many (judge.py), so an epoch has several views of a row.  Are there more
own rows than old questions, it is the other way round: the questions are repeated (TEACHER), and
as many variations of them are mixed in (VARIED).
"""
import argparse
import rowfile

# Views of a row and the least number of epochs.
LEARN, SETTLE = (30, 4), (15, 2)
MOST = 9   # of TEACHER
FEW = 16   # questions that are mixed in: fewer have not enough variations
# Of own rows, of the story and of a model of the user's: epochs to learn and to settle if they
# are not of the rule, the two rates, and steps and rate of the first training.
FIXED = {"own": (None, None, "5e-4", "2e-4", 900, "2e-3"),
         "story": (5, 2, "5e-4", "6e-5", 1800, "4e-3"),
         "taught story": (5, 2, "1e-3", "6e-5", 1800, "4e-3"),
         "model": (2, 1, "5e-5", "1e-5", None, None)}


def count(path):
    """Rows of a file, up to one that is bad: that is data.py's to say."""
    rows = 0
    try:
        for _ in rowfile.read(path):
            rows += 1
    except (OSError, rowfile.Bad):
        pass
    return rows


def epochs(phase, rows, mixed):
    views, least = phase
    repeats = max(1, mixed // max(1, rows))
    return max(least, -(-views // repeats))


def recipe(paths, model, teacher, controls):
    mixed = controls // 2
    repeats = max(1, -(-sum(map(count, set(paths))) // max(1, mixed)))
    own = paths and not model
    yield "VARIED", controls if own and repeats > 1 and mixed >= FEW else 0
    if teacher is None:
        teacher = min(repeats, MOST) if own else 0
        yield "TEACHER", teacher
    kind = "model" if model else "own" if paths else "taught story" if teacher else "story"
    learn, settle, high, low, base_steps, base_rate = FIXED[kind]
    if base_steps:
        yield "BASE_STEPS", base_steps
        yield "BASE_LR", base_rate
    known = set()
    for n, path in enumerate(paths or ["", ""], 1):
        new = path not in known
        known.add(path)
        rows = count(path)
        yield "EPOCHS%d" % n, (learn or epochs(LEARN, rows, mixed)) if new else \
            (settle or epochs(SETTLE, rows, mixed))
        yield "LR%d" % n, high if new else low


def main():
    p = argparse.ArgumentParser(usage="recipe.py [OPTION]... [ROWS]...")
    p.add_argument("--model", action="store_true")
    p.add_argument("--teacher", type=int, choices=(0, 1))
    p.add_argument("--controls", type=int, default=670)
    p.add_argument("rows", nargs="*")
    o = p.parse_args()
    for setting in recipe(o.rows, o.model, o.teacher, o.controls):
        print("%s=%s" % setting)


if __name__ == "__main__":
    main()
