#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the results of the experiment: every byte, and every link from texts and weights
to the file that is served.

usage: verify.py OUT --stages ROWS:REPEAT[,ROWS:REPEAT]... --replay 0|1 --teacher N
                 [--text FILE --chunk N] [--model DIR] [--tokenizer FILE] -- DATA-OPTION...

ROWS is the number of the file that a stage teaches, data/rows1.tsv is 1.
A line for each thing that holds, or does not.  Nothing is made again in OUT.
  - every file has the hash that OUT/hashes.tsv tells, and none is there besides in served
  - datcat --verify accepts each file of tensors and of tokens
  - data.py with the DATA-OPTIONs, judge.py and tokenize make the same texts and tokens
  - each file names its inputs by the hashes that they have, with their history, and
    checkpoints name the samples of each span of their steps
Exit: 0 all of it holds, 1 something does not, 2 there is nothing to verify.
"""
import filecmp
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


class Check:
    def __init__(self, out):
        self.out, self.good, self.bad, self.kept, self.listed = out, 0, 0, {}, {}
        try:
            with open(self.path("hashes.tsv"), encoding="utf-8") as f:
                self.listed = dict(line.rstrip("\n").split("\t") for line in list(f)[1:])
        except OSError:
            pass

    def path(self, name):
        return os.path.join(self.out, name)

    def has(self, name):
        """Whether it is of this run: a file that other settings have left is not judged."""
        return name in self.listed or any(n.startswith(name + "/") for n in self.listed)

    def results(self):
        """Its files and directories, in the order of the list."""
        return list(dict.fromkeys(n.split("/")[0] for n in self.listed))

    def say(self, ok, what):
        self.good += ok
        self.bad += not ok
        print("%s\t%s" % ("ok" if ok else "BAD", what))

    def run(self, *command):
        """Its standard output, or None if it failed."""
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        return None if p.returncode else p.stdout

    def meta(self, name):
        if name not in self.kept:
            text = self.run("datcat", "--meta", self.path(name))
            self.kept[name] = (json.loads(text)["meta"] or {}) if text else {}
        return self.kept[name]

    def history(self, name):
        return self.meta(name).get("provenance") or {}

    def identity(self, name):
        """The hash by which files made of this one name it."""
        path = self.path(name)
        try:
            if name.endswith(".ckpt"):
                with open(path, "rb") as f:
                    return f.read(48)[32:].hex()
            if name.endswith(".tok"):
                return self.meta(name)["xxh3"]
        except (OSError, KeyError):
            return None
        lines = self.run("datcat", "--hash", path)
        return lines.decode().split("\n")[-2].split(" ")[0] if lines else None


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 22), b""):
            h.update(block)
    return h.hexdigest()


def check_hashes(c):
    for name, want in sorted(c.listed.items()):
        try:
            c.say(sha256(c.path(name)) == want, "sha256 of %s" % name)
        except OSError as e:
            c.say(False, "%s: %s" % (name, e.strerror))
    served = c.path("served")
    there = {"served/" + n for n in os.listdir(served)} if os.path.isdir(served) else set()
    for name in sorted(there - set(c.listed)):
        c.say(False, "%s is in no list of hashes" % name)


def check_files(c):
    for name in c.results():
        if name.endswith((".tok", ".ckpt", ".dat")) or name in ("base", "served"):
            c.say(c.run("datcat", "-q", "--verify", c.path(name)) is not None,
                  "datcat --verify %s" % name)


def check_made(c, name, *judge):
    """judge.py prints this file when it is given these files."""
    text = c.run(os.path.join(HERE, "judge.py"), *judge)
    with open(c.path(name), "rb") as f:
        c.say(text == f.read(), "judge.py %s makes %s" % (judge[0], name))


def check_judged(c, stages, replay, taught):
    texts = [c.path("data/kept.txt"), c.path("before.jsonl")]
    rows = [c.path("data/rows%s.tsv" % s[0]) for s in stages]
    for n, (_, repeat) in enumerate(stages):
        check_made(c, "lesson%d.jsonl" % (n + 1), "lesson", *texts, repeat,
                   "rows" if taught else "all", rows[n], *(sorted(set(rows[:n])) if replay else []))
    if taught:
        check_made(c, "kept.jsonl", "lesson", *texts, "1", "kept", rows[0])
    check_made(c, "apart.jsonl", "apart", c.path("data/questions.tsv"), c.path("before.jsonl"))
    check_made(c, "compared.tsv", "compare", c.path("data/questions.tsv"), c.path("before.jsonl"),
               c.path("after.jsonl"))
    check_made(c, "samples.tsv", "samples", c.path("compared.tsv"))


def check_texts(c, options, tokenizer, teacher, documents, lessons):
    if tokenizer:
        c.say(filecmp.cmp(tokenizer, c.path("tokenizer.json"), shallow=False),
              "tokenizer.json is %s" % os.path.basename(tokenizer))
    with tempfile.TemporaryDirectory() as tmp:
        made = os.path.join(tmp, "data")
        if c.run(os.path.join(HERE, "data.py"), *options, made) is None:
            c.say(False, "data.py makes no texts of its inputs")
            return
        for name in sorted(os.listdir(made)):
            c.say(filecmp.cmp(os.path.join(made, name), c.path("data/" + name), shallow=False),
                  "data.py makes data/%s" % name)
        for tok, text, kind, times in (("pretrain.tok", "pretrain.tsv", "tsv", 1),
                                       ("unseen.tok", "data/unseen.tsv", "tsv", 1),
                                       *((n + ".tok", n + ".jsonl", "jsonl", 1) for n in lessons),
                                       ("kept.tok", "kept.jsonl", "jsonl", teacher),
                                       ("apart.tok", "apart.jsonl", "jsonl", 1)):
            if c.has(tok) and times:
                again = os.path.join(tmp, "again.tok")
                taught, documents_too = tok == "kept.tok", tok == "kept.tok" and documents
                done = c.run("tokenize", "-q", "-f", "--input", kind, "-t",
                             c.path("tokenizer.json"), "-o", again,
                             *(["--targets", "all"] if taught else []),
                             *(["--chunk", documents[1]] if documents_too else []),
                             *[c.path(text)] * times,
                             *([documents[0]] if documents_too else []))
                c.say(done is not None and filecmp.cmp(again, c.path(tok), shallow=False),
                      "tokenize makes %s of %s" % (tok, text))
                c.say(c.meta(tok).get("tokenizer") == sha256(c.path("tokenizer.json")),
                      "%s names tokenizer.json" % tok)


def check_link(c, name, *inputs):
    """The inputs that name tells of are these, with the history that they have themselves."""
    told = c.history(name).get("inputs") or []
    same = len(told) == len(inputs)
    for have, want in zip(told, inputs):
        is_ours = not os.path.isabs(want)
        same = same and have["xxh3"] is not None and have["xxh3"] == c.identity(want) and (
            not is_ours or have["provenance"] == c.history(want))
    c.say(same, "%s is made of %s" % (name, " and ".join(os.path.basename(i) for i in inputs)))


def check_spans(c, name, before, tok, taught=None):
    """The steps of a checkpoint beyond those of the one before are taken with tok, and with
    what the teacher teaches."""
    had = (c.history(before).get("options") or {}).get("spans") or []
    spans = (c.history(name).get("options") or {}).get("spans") or []
    new = spans[len(had):]
    state = c.meta(name).get("state") or {}
    same = spans[:len(had)] == had and len(new) == 1
    same = same and new[0]["data"] == c.history(tok) and new[0]["last"] == state.get("step")
    if taught:
        used = new[0]["settings"] if same else {}
        same = same and used.get("teacher_data") == c.identity(taught)
        same = same and used.get("teacher") == c.identity("f16.dat")
    else:
        same = same and (state.get("sampler") or {}).get("data") == c.identity(tok)
    steps = "%d to %d" % (new[0]["first"], new[0]["last"]) if new else "none"
    c.say(same, "%s took its steps %s with %s" % (name, steps, tok))


def check_links(c, model, taught, lessons):
    if not model:
        check_link(c, "base.ckpt", "base.start.ckpt")
        check_spans(c, "base.ckpt", "base.start.ckpt", "pretrain.tok")
        check_link(c, "base", "base.ckpt")
    check_link(c, "f16.dat", model or "base")
    check_link(c, "nvfp4.dat", "f16.dat")
    check_link(c, "start.ckpt", "f16.dat")
    before = "start.ckpt"
    for n, lesson in enumerate(lessons, 1):
        after = "stage%d.ckpt" % n
        check_link(c, after, "start.ckpt")
        check_spans(c, after, before, lesson + ".tok", taught)
        before = after
    check_link(c, "trained.dat", before, "nvfp4.dat")
    check_link(c, "served", "trained.dat")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as of "| head"
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1:]
    given = dict(zip(arguments[1::2], arguments[2::2]))
    needed = {"--stages", "--replay", "--teacher"}
    others = {"--model", "--tokenizer", "--text", "--chunk"}
    if len(arguments) % 2 == 0 or not needed <= set(given) <= needed | others:
        sys.exit(__doc__)
    teacher = int(given["--teacher"])
    taught = "kept.tok" if teacher else None
    stages = [s.split(":") for s in given["--stages"].split(",")]
    lessons = ["lesson%d" % n for n in range(1, len(stages) + 1)]
    c = Check(os.path.abspath(arguments[0]))
    if not c.listed:
        print("verify.py: there is no hashes.tsv in %s: make it first" % c.out, file=sys.stderr)
        sys.exit(2)
    check_hashes(c)
    check_files(c)
    try:
        documents = (given["--text"], given["--chunk"]) if "--text" in given else None
        check_texts(c, options, given.get("--tokenizer"), teacher, documents, lessons)
        check_judged(c, stages, int(given["--replay"]), taught)
    except OSError as e:
        c.say(False, "%s: %s" % (e.filename, e.strerror))
    check_links(c, given.get("--model"), taught, lessons)
    print("verify: %d hold, %d do not" % (c.good, c.bad))
    sys.exit(1 if c.bad else 0)


if __name__ == "__main__":
    main()
