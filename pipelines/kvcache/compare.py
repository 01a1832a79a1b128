#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares answers that were computed in different ways, and prints a table of them.

usage: compare.py [--tolerance X] --lengths 'N...' DIR REFERENCE... -- RUN...

DIR/NAME.json has what "generate --json --top-logprobs K" said in a run, a line for each of
the prompts, whose lengths are given.  A run is compared with the one REFERENCE whose name
has the same first three words.  The table has a row for each run and a column for each
prompt:

    =          the same tokens, log-probabilities and reason to end, to the last digit
    0.01       the same but for log-probabilities, that far apart, at most X
    0.01/7     the same until token 7, where another was chosen from log-probabilities that
               are as close: from there on the two have nothing to compare
    DIFFERS/7  at token 7 (from 0) of the answer they differ by more, or in the reason

With X = 0, which is what holds on a CPU, only the first and the last can be.
"""
import json
import os
import sys


def usage():
    sys.exit(__doc__.splitlines()[3])


def read(directory, name, lengths):
    path = os.path.join(directory, name + ".json")
    with open(path, encoding="utf-8") as f:
        answers = [json.loads(line) for line in f]
    if [a["prompt_tokens"] for a in answers] != lengths:
        sys.exit("compare: %s: not the answers to prompts of these lengths" % path)
    return answers


def apart(one, other):
    """How far the log-probabilities are apart of tokens that are in both lists."""
    other = {t["id"]: t["logprob"] for t in other}
    return max((abs(t["logprob"] - other[t["id"]]) for t in one if t["id"] in other),
               default=float("inf"))


def cell(want, have, tolerance):
    if all(want[k] == have[k] for k in ("ids", "logprobs", "top_logprobs", "stop", "stop_id")):
        return "="
    worst = 0.0
    for i, (a, b) in enumerate(zip(want["ids"], have["ids"])):
        worst = max(worst, apart(want["top_logprobs"][i], have["top_logprobs"][i]))
        if a == b:
            worst = max(worst, abs(want["logprobs"][i] - have["logprobs"][i]))
        if worst > tolerance or (tolerance == 0 and a != b):
            return "DIFFERS/%d" % i
        if a != b:
            return "%.2g/%d" % (worst, i)
        if tolerance == 0 and want["top_logprobs"][i] != have["top_logprobs"][i]:
            return "DIFFERS/%d" % i
    if len(want["ids"]) != len(have["ids"]) or want["stop"] != have["stop"]:
        return "DIFFERS/%d" % min(len(want["ids"]), len(have["ids"]))
    return "%.2g" % worst


def main():
    args, tolerance = sys.argv[1:], 0.0
    if args[:1] == ["--tolerance"] and len(args) > 1:
        tolerance, args = float(args[1]), args[2:]
    if len(args) < 4 or args[0] != "--lengths" or "--" not in args:
        usage()
    lengths, directory = [int(n) for n in args[1].split()], args[2]
    border = args.index("--")
    references = {r.rsplit("-", 4)[0]: r for r in args[3:border]}
    print("weights", "choice", "answer", "cache", "chunk", "j", "batch",
          *("p%d" % n for n in lengths), sep="\t")
    loaded = {}
    for run in args[border + 1:]:
        group = run.rsplit("-", 4)[0]
        if group not in loaded:
            loaded = {group: read(directory, references[group], lengths)}
        have = read(directory, run, lengths)
        print(*run.split("-"), *map(lambda w, h: cell(w, h, tolerance), loaded[group], have),
              sep="\t")


if __name__ == "__main__":
    main()
