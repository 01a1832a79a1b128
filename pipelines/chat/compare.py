#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares transcripts of the same conversation, and prints a table of them.

usage: compare.py [--numbers] DIR RUN...

A run is SYSTEM-CHOICE-TURNS-CACHE-CHUNK.  DIR/RUN.txt is its transcript, DIR/RUN.json what
"generate --chat --json" said.  The first run with a system message, choice and number of
turns is what the others with the same are compared with, and it must begin as the one
before it, if that has the same but for fewer turns.  Columns beside those of the name:

    prefilled   tokens of turns that were computed before an answer.  A kept cache saves
                what the turns before have computed, a dropped one nothing.
    transcript  "="       the same bytes, tokens and log-probabilities
                "text"    the same bytes of text (counts as a difference with --numbers)
                "DIFFERS" other bytes, a conversation that begins in another way than a
                          shorter one, or a cache that was kept or dropped when it should
                          not have been
"""
import json
import os
import sys


def read(directory, run):
    """Transcript, answers without what depends on the clock, and for each turn how many
    tokens stand before the answer and how many of those were computed."""
    with open(os.path.join(directory, run + ".txt"), "rb") as f:
        text = f.read()
    with open(os.path.join(directory, run + ".json"), encoding="utf-8") as f:
        answers = [json.loads(line) for line in f]
    work = [(a["prompt_tokens"], a.pop("timing")["prefill_tokens"]) for a in answers]
    for message in (m for a in answers for m in a["messages"]):
        message.pop("time", None)
    return text, answers, work


def honest(cache, work):
    """Whether the cache was kept, or dropped, as the run's name says."""
    if cache == "dropped":
        return all(computed == tokens for tokens, computed in work)
    return all(computed == tokens if turn == 0 else computed < tokens
               for turn, (tokens, computed) in enumerate(work))


def verdict(want, have, numbers):
    if have[0] != want[0]:
        return "DIFFERS"
    if have[1] != want[1]:
        return "DIFFERS" if numbers else "text"
    return "="


def main():
    args = sys.argv[1:]
    numbers = args[:1] == ["--numbers"]
    args = args[numbers:]
    if len(args) < 2:
        sys.exit(__doc__.splitlines()[3])
    print("system", "choice", "turns", "cache", "chunk", "prefilled", "transcript", sep="\t")
    group, before, want = None, None, None
    for run in args[1:]:
        system, choice, turns, cache, chunk = run.split("-")
        have = read(args[0], run)
        if len(have[1]) != int(turns):
            sys.exit("compare: %s: has %d turns" % (run, len(have[1])))
        if group != (system, choice, turns):
            before = want if group and group[:2] == (system, choice) else None
            group, want = (system, choice, turns), have
        said = verdict(want, have, numbers)
        shorter = before and len(before[1]) < len(have[1])
        if (shorter and not have[0].startswith(before[0])) or not honest(cache, have[2]):
            said = "DIFFERS"
        print(*group, cache, chunk, sum(w[1] for w in have[2]), said, sep="\t")


if __name__ == "__main__":
    main()
