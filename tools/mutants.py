#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Would the tests notice?  Seeded small changes of lib/, cmd/ and kernels/cpu, one at a time.

    tools/mutants.py cover                      which test executes which line (minutes)
    tools/mutants.py run [-n 300] [-s SEED] [-j JOBS] [-o FILE.tsv]
    tools/mutants.py one FILE LINE KIND N       the N-th such change of that line, shown

A change (a mutant): a comparison flipped or made inclusive, && for ||, a constant plus or
minus 1, + for -, a statement dropped, "return 0".  Each is built in a copy of the tree and
judged by the tests that execute its line, quickest first, until one fails.  "caught": a test
failed or did not end; "builds not": the compiler refused it, and another is drawn instead;
"survived": all of them passed; "not run": no test executes the line.

Survivors that change nothing one could see are listed in tests/mutants-equal.tsv: file, the
line's text, the change, the reason.  The last line printed is "N passed, N failed": caught or
listed, and survivors.

The state is in build-mutants: cover.json, copies w0, w1 ... of the tree.
"""
import argparse
import collections
import concurrent.futures as futures
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATE = os.path.join(ROOT, "build-mutants")
COVER = os.path.join(STATE, "cover.json")
EQUAL = os.path.join(ROOT, "tests/mutants-equal.tsv")
GENERATED = {"lib/text/unicode_data.c"}
QUICK = ["--filter-tags", "!slow,!nosan"]
LIMIT = 300  # seconds of a test


def sources():
    out = subprocess.run(["git", "ls-files", "lib/*.c", "cmd/*.c", "kernels/*.c", "kernels/cpu/*"],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [f for f in out if f.endswith(".c") and f not in GENERATED and "cuda" not in f]


# ---- changes ---------------------------------------------------------------------------

def code_of(text):
    """The text with comments, strings, characters and preprocessor lines as blanks."""
    blank = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|'
                       r'^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
    return blank.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||",
         "||": "&&", "+": "-", "-": "+"}
RULES = [
    ("compare", re.compile(r"(?<=\s)(<=|>=|==|!=|<|>)(?=\s)")),
    ("logic", re.compile(r"(?<=\s)(&&|\|\|)(?=\s)")),
    ("sign", re.compile(r"(?<=[\w)\]] )([+-])(?= [\w(])")),
    ("constant", re.compile(r"(?<![\w.'])(\d+)(?![\w.'])")),
    ("drop", re.compile(r"^[ ]{4,}((?!return|else|case|break|goto|const|static|struct|enum|"
                        r"size_t|u?int\d*_t|int|bool|char|double|float|unsigned|void|uint\d+_t)"
                        r"[\w>.\[\]*-]+(?: [-+*/|&]?= |\()[^\n;]*;)$", re.M)),
    ("return", re.compile(r"\breturn ((?!0;|-1;|NULL;|false;)[^\n;]+);")),
]

# Constants that nothing depends on: -1 for an error, how large a local buffer is.
SIZES = re.compile(r"\breturn -1;$|^[ ]+(?:\w+ )+\w+\[\d+\][;,]?$")


def changes(text):
    """(line, kind, number on that line, start, end, new text), in the order of the text."""
    code, found = code_of(text), []
    for kind, rule in RULES:
        for m in rule.finditer(code):
            start, end = m.span(1)
            old = text[start:end]
            if kind == "constant" and SIZES.search(code[code.rfind("\n", 0, start) + 1:end + 2]):
                continue
            if kind == "constant":
                new = [str(int(old) + 1)] + ([str(int(old) - 1)] if int(old) else [])
            elif kind == "drop":
                new = [";"]
            elif kind == "return":
                new = ["0"]
            else:
                new = [SWAPS[old]]
            for n in new:
                found.append((text.count("\n", 0, start) + 1, kind, start, end, n))
    found.sort()
    count = collections.Counter()
    out = []
    for line, kind, start, end, new in found:
        count[line, kind] += 1
        out.append((line, kind, count[line, kind], start, end, new))
    return out


def show(text, change):
    line, _, _, start, end, new = change
    old = text[start:end]
    begin = text.rfind("\n", 0, start) + 1
    whole = text[begin:text.find("\n", end)].strip()
    return whole, "%s -> %s" % (old, new)


# ---- coverage ---------------------------------------------------------------------------

def tests_of(build):
    """name -> command, in a tree."""
    units = sorted(os.listdir(os.path.join(ROOT, "tests/unit")))
    found = {"unit " + u[:-2]: [os.path.join(build, "unit", u[:-2])]
             for u in units if u.endswith(".c") and u != "qwen3.c"}
    for f in sorted(os.listdir(os.path.join(ROOT, "tests"))):
        if f.endswith(".bats") and f not in ("emulate.bats", "layers.bats", "report.bats",
                                             "pages.bats", "docs.bats", "pipelines.bats"):
            found["bats " + f[:-5]] = ["bats", "--tap"] + QUICK + ["tests/" + f]
    return found


def environment(tree, build):
    env = dict(os.environ, NIBBLE_BIN=os.path.join(tree, build, "bin"),
               NIBBLE_BUILD=os.path.join(tree, build),
               NIBBLE_FAILIO=os.path.join(tree, build, "failio.so"), PYTHONDONTWRITEBYTECODE="1")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    return env


def make(tree, build, *goals, **settings):
    return subprocess.run(["make", "-j1", "NVCC=", "BUILD=" + build, "BIN=%s/bin" % build]
                          + ["%s=%s" % s for s in settings.items()] + list(goals), cwd=tree,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(tree, build), check=False)


def gcov_lines(build, prefix):
    """{source: lines that were executed} of the .gcda files below prefix."""
    lines = collections.defaultdict(set)
    for top, _, names in os.walk(prefix):
        data = [n for n in names if n.endswith(".gcda")]
        for n in data:
            notes = os.path.join("/", os.path.relpath(os.path.join(top, n), prefix))[:-5] + ".gcno"
            if not os.path.exists(notes):
                continue
            link = os.path.join(top, n[:-5] + ".gcno")
            os.path.exists(link) or os.symlink(notes, link)
            out = subprocess.run(["gcov", "--json-format", "--stdout", os.path.join(top, n)],
                                 capture_output=True, text=True, cwd=ROOT, check=False).stdout
            for doc in out.splitlines():
                for f in json.loads(doc)["files"]:
                    lines[f["file"]].update(x["line_number"] for x in f["lines"] if x["count"])
    return lines


def cover(jobs):
    build = "build-mutants/cover"
    done = make(ROOT, build, "all", "test-programs", CFLAGS="-O1 -g --coverage")
    if done.returncode:
        sys.exit(done.stdout[-2000:])
    table, times = collections.defaultdict(list), {}

    def one(item):
        name, command = item
        with tempfile.TemporaryDirectory(dir=STATE) as prefix:
            begin = time.monotonic()
            rc = subprocess.run(command, cwd=ROOT, env=dict(environment(ROOT, build),
                                GCOV_PREFIX=prefix), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                check=False).returncode
            took = time.monotonic() - begin
            print("%-20s %6.1f s%s" % (name, took, "" if rc == 0 else ", status %d" % rc),
                  flush=True)
            return name, took, gcov_lines(build, prefix)

    with futures.ThreadPoolExecutor(jobs) as pool:
        for name, took, lines in pool.map(one, tests_of(os.path.join(ROOT, build)).items()):
            times[name] = took
            for f, numbers in lines.items():
                for n in numbers:
                    table["%s:%d" % (f, n)].append(name)
    with open(COVER, "w") as f:
        json.dump({"times": times, "lines": table,
                   "sums": {s: digest(os.path.join(ROOT, s)) for s in sources()}}, f)
    print("%d lines are executed by %d tests" % (len(table), len(times)))


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


# ---- a run ------------------------------------------------------------------------------

class Tree:
    """A copy of the tree in which changes are built."""

    def __init__(self, number):
        self.path = os.path.join(STATE, "w%d" % number)
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                               check=True).stdout.split("\n")[:-1]
        shutil.rmtree(self.path, ignore_errors=True)
        for f in files:
            to = os.path.join(self.path, f)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, f), to, follow_symlinks=False)
        done = make(self.path, "build", "all", "test-programs")
        if done.returncode:
            sys.exit(done.stdout[-2000:])

    def judge(self, source, text, change, cover_):
        line, _, _, start, end, new = change
        path = os.path.join(self.path, source)
        names = cover_["lines"].get("%s:%d" % (source, line), [])
        names = sorted((n for n in names), key=lambda n: cover_["times"][n])
        if not names:
            return "not run", ""
        with open(path, "w") as f:
            f.write(text[:start] + new + text[end:])
        try:
            units = ["build/unit/" + n[5:] for n in names if n.startswith("unit ")]
            if make(self.path, "build", "all", *units).returncode:
                return "builds not", ""
            for n in names:
                command = tests_of(os.path.join(self.path, "build"))[n]
                try:
                    rc = subprocess.run(command, cwd=self.path, stdin=subprocess.DEVNULL,
                                        env=environment(self.path, "build"), timeout=LIMIT,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True, check=False).returncode
                except subprocess.TimeoutExpired:
                    return "caught", n + " (no end)"
                if rc not in (0, 77):
                    return "caught", n
            return "survived", "%d tests" % len(names)
        finally:
            with open(path, "w") as f:
                f.write(text)


def listed():
    try:
        with open(EQUAL) as f:
            return {tuple(x.rstrip("\n").split("\t")[:3]) for x in f if x.strip()}
    except FileNotFoundError:
        return set()


def draws(texts, chance):
    """All changes in a random order, kinds in turn: else four in ten were of constants."""
    kinds = collections.defaultdict(list)
    for source in sorted(texts):
        for c in changes(texts[source]):
            kinds[c[1]].append((source, c))
    for kind in sorted(kinds):
        chance.shuffle(kinds[kind])
    while kinds:
        for kind in sorted(kinds):
            yield kinds[kind].pop()
            if not kinds[kind]:
                del kinds[kind]


def run(args):
    with open(COVER) as f:
        cover_ = json.load(f)
    texts = {s: open(os.path.join(ROOT, s)).read() for s in sources()}
    stale = [s for s in texts if cover_["sums"].get(s) != digest(os.path.join(ROOT, s))]
    if stale:
        sys.exit("mutants: changed since \"cover\", which must run again: " + " ".join(stale[:5]))
    every = draws(texts, random.Random(args.seed))
    trees = [Tree(i) for i in range(args.jobs)]
    equal, rows, good = listed(), [], collections.Counter()
    free = list(trees)

    def one(item):
        source, change = item
        tree = free.pop()
        try:
            return item, tree.judge(source, texts[source], change, cover_)
        finally:
            free.append(tree)

    with futures.ThreadPoolExecutor(args.jobs) as pool:
        pending = {pool.submit(one, next(every)) for _ in range(args.jobs)}
        while pending and len(rows) < args.n:
            done, pending = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
            for p in done:
                (source, change), (verdict, by) = p.result()
                if len(rows) + len(pending) < args.n or verdict == "builds not":
                    nxt = next(every, None)
                    if nxt:
                        pending.add(pool.submit(one, nxt))
                if verdict == "builds not":
                    continue
                whole, what = show(texts[source], change)
                if verdict != "caught" and (source, whole, what) in equal:
                    verdict = "equal"
                good[verdict] += 1
                rows.append((source, str(change[0]), change[1], what, verdict, by, whole))
                if verdict in ("survived", "not run"):
                    print("%s:%d: %s: %s: %s" % (source, change[0], verdict, what, whole),
                          flush=True)
    rows.sort(key=lambda r: (r[0], int(r[1])))
    with open(args.o, "w") as f:
        f.write("file\tline\tkind\tchange\tverdict\tby\ttext\n")
        f.writelines("\t".join(r) + "\n" for r in rows)
    print(", ".join("%s %d" % x for x in sorted(good.items())))
    bad = good["survived"] + good["not run"]
    print("%d passed, %d failed" % (len(rows) - bad, bad))
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    sub = parser.add_subparsers(dest="what", required=True)
    sub.add_parser("cover").add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    r = sub.add_parser("run")
    r.add_argument("-n", type=int, default=300)
    r.add_argument("-s", type=int, default=1, dest="seed")
    r.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    r.add_argument("-o", default=os.path.join(STATE, "mutants.tsv"))
    o = sub.add_parser("one")
    o.add_argument("file")
    o.add_argument("line", type=int)
    o.add_argument("kind")
    o.add_argument("number", type=int)
    args = parser.parse_args()
    os.makedirs(STATE, exist_ok=True)
    if args.what == "cover":
        cover(args.jobs)
    elif args.what == "run":
        sys.exit(run(args))
    else:
        text = open(os.path.join(ROOT, args.file)).read()
        for c in changes(text):
            if c[:3] == (args.line, args.kind, args.number):
                print("\n".join(show(text, c)))


if __name__ == "__main__":
    main()
