#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The needle in a haystack: texts in which one thing is asked for, and how it was found.

usage: task.py tokenizer OUT.json
       task.py train SEED SAMPLES MOST              lines to learn from
       task.py ask SEED EACH 'LENGTH...' 'DEPTH...'         questions of the small task
       task.py sentences SEED N                     lines of filler, for the large one
       task.py hide SEED EACH 'LENGTH...' 'DEPTH...' SENTENCES TOKENS   its questions
       task.py score HOW QUESTIONS ANSWERS.json     the table; HOW: exact or within

The small task is a list of things and the places where they are, and questions about them.
A record is a thing and its place, each one token; a question is "?" and a place, the answer is
the thing:

     gax vis sox dod rix kin? dod sox

All places of a text are different, and each text has other things there, so that nothing but
the text can tell.  Every record is a needle in the haystack of the others.  "train" asks for
up to 16 records of each text; LENGTH is the number of records.

The large task is a text of sentences, a needle among them, and a question in words, for
models that read; LENGTH is the number of tokens of the text.  TOKENS has the ids of SENTENCES,
a line each.

Questions are lines of LENGTH, DEPTH (percent; 0: the first record or sentence), answer and
prompt, tabs between.
"""
import json
import os
import random
import sys

CONSONANTS, VOWELS, ENDS = "bdfghjklmnprstvz", "aeiou", "dkns"
PLACES = [c + v + e for c in CONSONANTS for v in VOWELS for e in ENDS]  # 320
THINGS = [c + v + "x" for c in CONSONANTS for v in VOWELS]              # 80
QUESTIONS = 16  # of a text to learn from, at most


def tokenizer(out):
    """Bytes, and merges that make " place" and " thing" one token each."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests"))
    import make_tokenizer
    tokens = [bytes([b]) for b in make_tokenizer.byte_order()[0]]
    ids, merges = {t: i for i, t in enumerate(tokens)}, []

    def merge(a, b):
        merges.append((ids[a.encode()], ids[b.encode()]))
        ids[(a + b).encode()] = len(tokens)
        tokens.append((a + b).encode())

    for c in CONSONANTS:
        for v in VOWELS:
            merge(c, v)
    for word in PLACES + THINGS:
        merge(word[:2], word[2])
    for place in PLACES:
        merge(" ", place)
    for thing in THINGS:
        merge(" ", thing)
    make_tokenizer.write(out, tokens, merges)


def records(rng, n):
    if n > len(PLACES):
        sys.exit("task: %d records: there are %d places" % (n, len(PLACES)))
    return [(" " + place, " " + rng.choice(THINGS)) for place in rng.sample(PLACES, n)]


def text_of(some):
    return "".join(thing + place for place, thing in some)


def train(seed, samples, most):
    rng = random.Random(seed)
    for _ in range(samples):
        some = records(rng, rng.randint(2, most))
        asked = rng.sample(some, min(len(some), QUESTIONS))
        print(text_of(some) + "".join("?" + place + thing for place, thing in asked))


def place(depth, n):
    return round(depth * (n - 1) / 100)


def ask(seed, each, lengths, depths):
    rng = random.Random(seed)
    for n in lengths:
        for depth in depths:
            for _ in range(each):
                some = records(rng, n)
                where, thing = some[place(depth, n)]
                print(n, depth, thing.strip(), text_of(some) + "?" + where, sep="\t")


# ---- a text of sentences ------------------------------------------------------------

WHO = ("baker", "carpenter", "ferryman", "gardener", "librarian", "mason", "miller",
       "nurse", "painter", "pilot", "potter", "shepherd", "tailor", "teacher", "weaver")
DID = ("closed", "cleaned", "described", "drew", "found", "left", "measured", "opened",
       "photographed", "repaired", "showed us", "sold", "visited", "walked to", "watched")
WHAT = ("bridge", "chapel", "garden", "harbour", "kitchen", "ladder", "library", "market",
        "mill", "old well", "orchard", "station", "tower", "wall", "workshop")
WHERE = ("behind the hill", "beside the river", "in the next village", "near the coast",
         "north of the town", "at the edge of the forest", "across the square")
WHEN = ("after the rain", "before breakfast", "early in spring", "in the afternoon",
        "last autumn", "on a quiet Sunday", "towards evening", "while it snowed")


def sentences(seed, n):
    rng = random.Random(seed)
    for _ in range(n):
        print("%s the %s %s the %s %s." % (rng.choice(WHEN).capitalize(), rng.choice(WHO),
                                           rng.choice(DID), rng.choice(WHAT),
                                           rng.choice(WHERE)))


def hide(seed, each, lengths, depths, filler, tokens):
    """The filler begins anywhere in its file, and at its beginning again when it ends."""
    with open(filler, encoding="utf-8") as f, open(tokens, encoding="ascii") as g:
        pool = [(s.rstrip("\n"), len(ids.split()) + 1) for s, ids in zip(f, g)]
    rng = random.Random(seed)
    for length in lengths:
        for depth in depths:
            for _ in range(each):
                at, used, text = rng.randrange(len(pool)), 0, []
                while used < length:
                    s, n = pool[at % len(pool)]
                    text.append(s)
                    at, used = at + 1, used + n
                who, number = rng.choice(WHO), "%05d" % rng.randrange(10000, 100000)
                text.insert(place(depth, len(text) + 1),
                            "The secret number of the %s is %s." % (who, number))
                print(length, depth, number,
                      "%s What is the secret number of the %s? Answer with the number only."
                      % (" ".join(text), who), sep="\t")


# ---- what was found -----------------------------------------------------------------

def score(how, questions, answers):
    with open(questions, encoding="utf-8") as f, open(answers, encoding="utf-8") as g:
        asked = [line.rstrip("\n").split("\t") for line in f]
        said = [json.loads(line) for line in g]
    if len(asked) != len(said):
        sys.exit("task: %d questions, %d answers" % (len(asked), len(said)))
    right, total, tokens = {}, {}, {}
    for (length, depth, want, _), answer in zip(asked, said):
        length, depth, text = int(length), int(depth), answer["text"]
        found = text.strip() == want if how == "exact" else want in text
        for cell in ((length, depth), (length, "all")):
            right[cell] = right.get(cell, 0) + found
            total[cell] = total.get(cell, 0) + 1
        tokens[length] = max(tokens.get(length, 0), answer["prompt_tokens"])
    depths = sorted({d for _, d in total if d != "all"}) + ["all"]
    print("length", "tokens", *("%d%%" % d if d != "all" else d for d in depths), sep="\t")
    for length in sorted(tokens):
        print(length, tokens[length],
              *("%d/%d" % (right[length, d], total[length, d]) if (length, d) in total else "-"
                for d in depths), sep="\t")


def numbers(text):
    return [int(n) for n in text.split()]


def main():
    args = sys.argv[1:]
    try:
        if args[0] == "tokenizer" and len(args) == 2:
            tokenizer(args[1])
        elif args[0] == "train" and len(args) == 4:
            train(*map(int, args[1:]))
        elif args[0] == "ask" and len(args) == 5:
            ask(int(args[1]), int(args[2]), numbers(args[3]), numbers(args[4]))
        elif args[0] == "sentences" and len(args) == 3:
            sentences(*map(int, args[1:]))
        elif args[0] == "hide" and len(args) == 7:
            hide(int(args[1]), int(args[2]), numbers(args[3]), numbers(args[4]), *args[5:])
        elif args[0] == "score" and len(args) == 4 and args[1] in ("exact", "within"):
            score(*args[1:])
        else:
            raise IndexError
    except (IndexError, ValueError):
        sys.exit("\n".join(__doc__.splitlines()[2:9]))


if __name__ == "__main__":
    main()
