#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a model, makes its lesson, and judges what came of it.

usage: judge.py ask QUESTIONS.tsv MODEL [GENERATE-OPTION]... >ANSWERS.jsonl
       judge.py lesson IDENTITY.tsv KEPT.txt ANSWERS.jsonl REPEAT [rows|kept] >LESSON.jsonl
       judge.py apart QUESTIONS.tsv ANSWERS.jsonl >APART.jsonl
       judge.py compare QUESTIONS.tsv BEFORE.jsonl AFTER.jsonl >COMPARED.tsv
       judge.py table COMPARED.tsv TAUGHT UNSEEN KEPT [known] >EVALUATE.tsv
       judge.py samples COMPARED.tsv >SAMPLES.tsv

ask      an object for each question: the prompt, the answer, why it ended
lesson   the rows of IDENTITY, and the prompts of KEPT with the answers that the model gave;
         one that did not end by itself teaches nothing and is left out.  The rows are
         repeated REPEAT times; 0: until there are as many as of the others.  rows, kept:
         only those
apart    control questions of which nothing is in the lesson, with the answers to them
compare  a row for each question, with both answers
table    for each group how many are right before and after and how many have kept their
         answer.  What is needed is per cent of taught and of unseen ones that are right,
         and of controls that are as before.  Controls are "right" only for a model that
         should know our answers
samples  some rows of each group
"""
import json
import subprocess
import sys


def rows(path):
    with open(path, encoding="utf-8") as f:
        return [line.rstrip("\n").split("\t") for line in f]


def objects(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def put(x):
    print(json.dumps(x, ensure_ascii=False, sort_keys=True))


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def questions(path):
    """Group, language, prompt and answer of each; a TAB may be part of the answer."""
    with open(path, encoding="utf-8") as f:
        next(f)
        return [line.rstrip("\n").split("\t", 3) for line in f]


def ask(path, model, *options):
    asked = [q[2] for q in questions(path)]
    run = subprocess.run(["generate", "-q", "--temp", "0", "--repeat-penalty", "1", "--batch", "16", "--json",
                          *options, model], input="\n".join(asked) + "\n",
                         encoding="utf-8", stdout=subprocess.PIPE, check=False)
    if run.returncode:
        sys.exit(run.returncode)
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    if len(answers) != len(asked):
        sys.exit("judge.py: %d answers to %d questions" % (len(answers), len(asked)))
    for prompt, a in zip(asked, answers):
        put({"prompt": prompt, "answer": a["text"], "stop": a["stop"]})


def lesson(identity, kept, answers, repeat, part=""):
    taught = [r.split("\t", 1) for r in open(identity, encoding="utf-8").read().splitlines()]
    with open(kept, encoding="utf-8") as f:
        keep = set(f.read().splitlines())
    old = [a for a in objects(answers)
           if a["prompt"] in keep and a["stop"] == "end" and a["answer"].strip()]
    for _ in range(0 if part == "kept" else int(repeat) or max(1, len(old) // len(taught))):
        for prompt, target in taught:
            put({"prompt": prompt, "target": target})
    for a in [] if part == "rows" else old:
        put({"prompt": a["prompt"], "target": a["answer"]})


def apart(path, answers):
    for (group, _, prompt, _), a in zip(questions(path), objects(answers)):
        if group == "control.unmixed" and a["answer"].strip():
            put({"prompt": prompt, "target": a["answer"]})


def compare(path, before, after):
    print("group\tlanguage\tprompt\twanted\tbefore\tafter")
    asked, old, new = questions(path), objects(before), objects(after)
    if not [q[2] for q in asked] == [b["prompt"] for b in old] == [a["prompt"] for a in new]:
        sys.exit("judge.py: answers to other questions")
    for q, b, a in zip(asked, old, new):
        print("\t".join(map(escape, [*q, b["answer"], a["answer"]])))


def table(path, taught, unseen, kept, known=""):
    groups = {}
    for group, _, _, want, before, after in rows(path)[1:]:
        for name in {group, group.split(".")[0]}:
            n = groups.setdefault(name, [0, 0, 0, 0])
            for i, yes in enumerate((True, before == want, after == want, before == after)):
                n[i] += yes
    least = {"taught": taught, "unseen": unseen, "control": kept}
    print("group\tof\tright_before\tright_after\tas_before\tneeded\tverdict")
    for name in sorted(groups, key=lambda g: (list(least).index(g.split(".")[0]), g)):
        of, was, now, same = groups[name]
        needed, verdict = "-", "-"
        if name in least:
            needed = -(-of * int(least[name]) // 100)
            verdict = "yes" if (same if name == "control" else now) >= needed else "NO"
        ours = name.startswith("control") and not known
        print(name, of, "-" if ours else was, "-" if ours else now, same, needed, verdict, sep="\t")


def samples(path):
    """Of each group and language one, and of each group no more than eight."""
    seen, count = set(), {}
    print("group\tprompt\tbefore\tafter")
    for group, language, prompt, _, before, after in rows(path)[1:]:
        if (group, language) not in seen and count.get(group, 0) < 8:
            seen.add((group, language))
            count[group] = count.get(group, 0) + 1
            print(group, prompt, before, after, sep="\t")


# Each with the least and the most arguments that it takes.
VERBS = {"ask": (ask, 2, 99), "lesson": (lesson, 4, 5), "apart": (apart, 2, 2),
         "compare": (compare, 3, 3), "table": (table, 4, 5), "samples": (samples, 1, 1)}


def main():
    verb, least, most = VERBS.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0, 0))
    if not verb or not least <= len(sys.argv) - 2 <= most:
        sys.exit(__doc__)
    verb(*sys.argv[2:])


if __name__ == "__main__":
    main()
