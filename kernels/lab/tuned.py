#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""tuned: which algorithms of cuBLASLt make a step shorter.

usage: tuned.py CANDIDATES LOG [PERIOD]

    NIBBLE_CUDA_PRODUCTS=CANDIDATES trainstep --device cuda --log LOG -n 200 ...

CANDIDATES has a line for each product: its way (TN, NN or NT), m, n and k, how many
algorithms are tried, and their places in the library's list.  Each pass draws one for each
product, and all steps' times together tell what each of them adds to a step, which its
own time does not: at its power limit a chip slows down for all.  LOG is a new file, of steps of
one pass, from the first of a process on, without evaluations; CANDIDATES has 64 lines at most.
PERIOD: steps after which the data repeats (1).

Prints milliseconds, with their standard errors, against the first of each line.  What
NIBBLE_CUDA_TIMES=1 prints has the products that there are.  Needs numpy."""
import json
import sys

import numpy

FIRST = 14  # steps that load kernels


def candidates(path):
    out = []
    with open(path) as f:
        for line in f:
            word = line.split()
            if word:
                out.append((" ".join(word[:4]), [int(w) for w in word[5 : 5 + int(word[4])]]))
    return out


def drawn(step, line, n):
    """As draw in kernels/cuda/gemm.cu."""
    h = (step * 64 + line) * 2654435761 & 0xFFFFFFFF
    h = (h ^ h >> 15) * 2246822519 & 0xFFFFFFFF
    return (h ^ h >> 13) % n


def times(path):
    with open(path) as f:
        lines = [json.loads(x) for x in f if x.endswith("}\n")]
    return [x["ms"] for x in lines if "ms" in x and "loss" in x]


def main(args):
    tried = candidates(args[0])
    ms = times(args[1])
    period = int(args[2]) if len(args) > 2 else 1
    usual = numpy.median(ms[FIRST:])
    rows, want = [], []
    for step in range(FIRST, len(ms)):
        if abs(ms[step] - usual) > 0.04 * usual:
            continue
        at = step / len(ms)
        row = [1, at, at * at] + [step % period == p for p in range(1, period)]
        for line, (_, algorithms) in enumerate(tried):
            which = drawn(step + 1, line, len(algorithms))
            row += [which == k for k in range(1, len(algorithms))]
        rows.append(row)
        want.append(ms[step])
    rows, want = numpy.array(rows, float), numpy.array(want)
    common = period + 2
    ridge = numpy.diag([0] * common + [0.5] * (rows.shape[1] - common))
    inverse = numpy.linalg.inv(rows.T @ rows + ridge)
    found = inverse @ rows.T @ want
    off = want - rows @ found
    error = numpy.sqrt(numpy.diag(inverse) * (off @ off) / max(1, len(want) - len(found)))
    print(f"{len(want)} steps of about {usual:.1f} ms")
    at = common
    for name, algorithms in tried:
        words = [f"{algorithms[0]}: 0"]
        for a in algorithms[1:]:
            words.append(f"{a}: {found[at]:+.1f} +- {error[at]:.1f}")
            at += 1
        print(name + "; " + ", ".join(words))


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1:])
