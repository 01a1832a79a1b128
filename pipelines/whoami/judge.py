#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a model, makes its lesson, and judges what came of it.

usage: judge.py ask QUESTIONS.tsv MODEL [GENERATE-OPTION]... >ANSWERS.jsonl
       judge.py lesson KEPT.txt ANSWERS.jsonl REPEAT rows|kept|all ROWS.tsv [EARLIER.tsv]... >LESSON.jsonl
       judge.py apart QUESTIONS.tsv ANSWERS.jsonl >APART.jsonl
       judge.py compare QUESTIONS.tsv BEFORE.jsonl AFTER.jsonl >COMPARED.tsv
       judge.py table COMPARED.tsv TAUGHT UNSEEN KEPT [known] >EVALUATE.tsv
       judge.py samples COMPARED.tsv >SAMPLES.tsv
       judge.py why COMPARED.tsv EVALUATE.tsv OUT [NAME=VALUE]...

ask      an object for each question: the prompt, the answer, why it ended
lesson   ROWS, and the others: the rows of EARLIER stages, and the prompts of KEPT with the
         answers that the model gave; one that did not end by itself teaches nothing and is left
         out.  ROWS are repeated REPEAT times; 0: until there are as many as of the others; a
         number below 1: until they are that share of the lesson, or the others repeated
         until they are the rest.  rows: without the prompts of KEPT; kept: only those
apart    control questions of which nothing is in the lesson, with the answers to them
compare  a row for each question, with both answers
table    for each group how many are right before and after and how many have kept their
         answer.  What is needed is per cent of taught and of unseen ones that are right,
         and of controls that are as before.  Controls are "right" only for a model that
         should know our answers
samples  the user's own rows, up to 300, then some of each group
why      words about each criterion that is not met: the rows that failed, and which variable
         of the Makefile to turn, from the VALUE that it had
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


def lesson(kept, answers, repeat, part, taught, *earlier):
    with open(kept, encoding="utf-8") as f:
        keep = set(f.read().splitlines())
    old = [(a["prompt"], a["answer"]) for a in objects(answers)
           if a["prompt"] in keep and a["stop"] == "end" and a["answer"].strip()]
    if part == "kept" and not old:
        sys.exit("judge.py: the teacher has nothing to teach: no old question got an answer that ended; "
                 "use a larger ANSWER, or TEACHER=0")
    ours = pairs(taught)
    replayed = dict(row for path in earlier for row in pairs(path))
    for prompt, _ in ours:
        replayed.pop(prompt, None)
    times, others = repeats(float(repeat), len(ours), len(replayed) + len(old))
    told = {"kept": old, "rows": ours * times + list(replayed.items()) * others,
            "all": ours * times + (list(replayed.items()) + old) * others}
    for prompt, target in told[part]:
        put({"prompt": prompt, "target": target})


def pairs(path):
    """Prompt and target of each row; a TAB may be part of the target."""
    with open(path, encoding="utf-8") as f:
        return [line.rstrip("\n").split("\t", 1) for line in f]


def repeats(repeat, rows_n, others_n):
    """How often rows and the others stand in the lesson."""
    if repeat >= 1:
        return int(repeat), 1
    if repeat == 0 or others_n == 0:
        return max(1, others_n // rows_n), 1
    wanted = others_n * repeat / (1 - repeat)
    if wanted >= rows_n:
        return round(wanted / rows_n), 1
    return 1, max(1, round(rows_n * (1 - repeat) / repeat / others_n))


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
    order = [*least, "varied"]
    print("group\tof\tright_before\tright_after\tas_before\tneeded\tverdict")
    for name in sorted(groups, key=lambda g: (order.index(g.split(".")[0]), g)):
        of, was, now, same = groups[name]
        needed, verdict = "-", "-"
        if name in least:
            needed = -(-of * int(least[name]) // 100)
            verdict = "yes" if (same if name == "control" else now) >= needed else "NO"
        ours = name == "varied" or name.startswith("control") and not known
        print(name, of, "-" if ours else was, "-" if ours else now, same, needed, verdict, sep="\t")


def is_own(row):
    """Whether a question is a row of the user's: it has no language."""
    return row[1] == "-" and row[0].split(".")[0] in ("taught", "unseen")


def samples(path):
    """The user's own rows, then of each other group and language one, and of each group no more
    than eight.  What is wanted stands where it is known to be right: of rows."""
    asked = rows(path)[1:]
    shown, seen, count = list(filter(is_own, asked))[:300], set(), {}
    for row in asked:
        group, language = row[:2]
        if not is_own(row) and (group, language) not in seen and count.get(group, 0) < 8:
            seen.add((group, language))
            count[group] = count.get(group, 0) + 1
            shown.append(row)
    print("group\tprompt\twanted\tbefore\tafter")
    for group, _, prompt, wanted, before, after in shown:
        known = group.split(".")[0] in ("taught", "unseen")
        print(group, prompt, wanted if known else "-", before, after, sep="\t")


# Group: what it asks, and the Makefile's variable.
CRITERIA = {
    "taught": ("rows that it was taught are answered right", "TAUGHT_LEAST"),
    "unseen": ("rows that it was not taught are answered right", "UNSEEN_LEAST"),
    "control": ("old questions are answered as before", "KEPT_LEAST")}


def helps(group, values):
    """What to turn, from the values that the run had."""
    if group == "unseen":
        return "more rows, in more phrasings, help; EPOCHS1 and LR1 larger or smaller do, too"
    teacher = int(values.get("TEACHER", 0))
    epochs = values.get("EPOCHS1", "5")
    if group == "taught":
        return ("EPOCHS1=%d%s (it was %s) teaches the rows more often, and so does a larger MIX or REPEAT"
                % (2 * int(epochs.rstrip("s")), "s" * epochs.endswith("s"), epochs))
    return ("TEACHER=%d (it was %d), a smaller MIX, or an LR1 below %s keeps more of what it knew"
            % (min(9, teacher + 2), teacher, values.get("LR1", "1e-3")))


def why(compared, evaluated, out, *settings):
    asked = rows(compared)[1:]
    values = dict(s.split("=", 1) for s in settings)
    for group, of, _, right, same, needed, verdict in rows(evaluated)[1:]:
        if verdict != "NO":
            continue
        what, variable = CRITERIA[group]
        have = same if group == "control" else right
        print("whoami: %s of %s %s, %s are needed (%s):" % (have, of, what, needed, variable))
        missed = [r for r in asked if r[0].split(".")[0] == group
                  and r[5] != (r[4] if group == "control" else r[3])]
        for _, _, prompt, want, before, after in missed[:10]:
            print("    %s -> %s, expected %s"
                  % (prompt, after, before if group == "control" else want))
        if len(missed) > 10:
            print("    and %d more, in %s" % (len(missed) - 10, compared))
        print("  " + helps(group, values))
    print("  The model is complete and usable all the same: %s/trained.dat; to talk to it: make -C "
          "pipelines/whoami chat OUT=%s" % (out, out))
    print("  Give the same command with another value: only what depends on it is made again.")


# Each with the least and the most arguments that it takes.
VERBS = {"ask": (ask, 2, 99), "lesson": (lesson, 5, 9999), "apart": (apart, 2, 2),
         "compare": (compare, 3, 3), "table": (table, 4, 5), "samples": (samples, 1, 1),
         "why": (why, 3, 99)}


def main():
    verb, least, most = VERBS.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0, 0))
    if not verb or not least <= len(sys.argv) - 2 <= most:
        sys.exit(__doc__)
    verb(*sys.argv[2:])


if __name__ == "__main__":
    main()
