#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Would the tests notice?  Seeded small changes of lib/, cmd/ and kernels/cpu, one at a time.

    tools/mutants.py cover [TEST]...            which test executes which line (minutes); only
                                                of tests/TEST.bats or "unit TEST", anew
    tools/mutants.py run [-n 300] [-s SEED] [-j JOBS] [-t SECONDS] [-b SECONDS] [-o FILE.tsv]
                     [-c] [SOURCE.c]...         300 changes (of these sources), none begun after
                                                -t seconds; what is not caught in -b seconds
                                                (240) has survived; -c: go on with
                                                FILE.tsv where an earlier run was stopped
    tools/mutants.py again FILE.tsv [-j JOBS] [-b SECONDS] [-o FILE.tsv]
                                                those that survived, once more: all rows with
                                                their new verdicts; "gone": the line was changed
    tools/mutants.py one FILE LINE KIND N       the N-th such change of that line, shown

A change (a mutant): a comparison flipped or made inclusive, && for ||, a constant plus or
minus 1, + for -, a statement dropped, "return 0".  Each is built in a copy of the tree and
judged by the tests that execute its line, until one fails: first twelve that execute most of
the file for their time, then the others, quickest first.  "caught": a test failed twice or did
not end, and passes without the change; "survived": all of them passed.  Of a line that none
executes, or only in a program that is killed, it is the tests that execute the file.  What the
compiler refuses, and what gives the same machine code, is not counted, and another is drawn
instead.

Survivors that change nothing one could see are listed in tests/mutants-equal.tsv: file (as
file:function where the line's text occurs more than once), the line's text, the change, the
reason; these are not tried.  The last line printed is "N passed, N failed": caught, listed or
gone, and survivors.

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
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATE = os.path.join(ROOT, "build-mutants")
COVER = os.path.join(STATE, "cover.json")
EQUAL = os.path.join(ROOT, "tests/mutants-equal.tsv")
GENERATED = {"lib/text/unicode_data.c"}
NOT_OF_PROGRAMS = {"emulate", "layers", "pages"}
QUICK = ["--filter-tags", "!slow,!nosan"]
LIMIT = 1800 # seconds of the tests of a file; with a change it is ten times as long as without


def sources():
    out = subprocess.run(["git", "ls-files", "lib/*.c", "cmd/*.c", "kernels/*.c",
                          "kernels/cpu/*.h"], cwd=ROOT, capture_output=True, text=True,
                         check=True).stdout.split()
    return [f for f in out if f not in GENERATED and "cuda" not in f
            and os.path.exists(os.path.join(ROOT, f))]


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

# What no test can see: -1 for an error, how large a local buffer is, what is freed or
# prefetched (leaks are valgrind's), memory that runs out.
UNSEEN = re.compile(r"\breturn -1;$|^[ ]+(?:\w+ )+\w+\[\d+\][;,]?$|free\(|prefetch|ERR_MEMORY|"
                    r"\bclose\(|_close\(|FLUSH_AT")


def changes(text):
    """(line, kind, number on that line, start, end, new text), in the order of the text."""
    code, found = code_of(text), []
    for kind, rule in RULES:
        for m in rule.finditer(code):
            start, end = m.span(1)
            old = text[start:end]
            line_end = code.find("\n", end)
            if UNSEEN.search(code[code.rfind("\n", 0, start) + 1:line_end]):
                continue
            # if (!p || !q) return err_set(..., ERR_MEMORY ...
            if "ERR_MEMORY" in code[line_end:line_end + 90].split(";")[0]:
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


def kind_of(change):
    """"sign", or "sign 2" for the second such change of its line."""
    return change[1] if change[2] == 1 else "%s %d" % change[1:3]


# ---- coverage ---------------------------------------------------------------------------

def limits():
    """A change may make a program that writes or allocates without end."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40)) # tests have sparse files
    resource.setrlimit(resource.RLIMIT_DATA, (24 << 30, 24 << 30)) # not what is mapped


def bats_files():
    return [f[:-5] for f in sorted(os.listdir(os.path.join(ROOT, "tests")))
            if f.endswith(".bats") and f[:-5] not in NOT_OF_PROGRAMS]


def units():
    return [u[:-2] for u in sorted(os.listdir(os.path.join(ROOT, "tests/unit")))
            if u.endswith(".c") and u != "qwen3.c"]


def environment(tree, build):
    env = dict(os.environ, NIBBLE_BIN=os.path.join(tree, build, "bin"),
               NIBBLE_BUILD=os.path.join(tree, build), NIBBLE_COVER="",
               NIBBLE_FAILIO=os.path.join(tree, build, "failio.so"), PYTHONDONTWRITEBYTECODE="1")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    return env


def make(tree, build, *goals, **settings):
    return subprocess.run(["make", "NVCC=", "BUILD=" + build, "BIN=%s/bin" % build]
                          + ["%s=%s" % s for s in settings.items()] + list(goals), cwd=tree,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(tree, build), check=False)


def gcov_lines(prefix):
    """The lines, as file:number, that the .gcda files below prefix count."""
    found, data = set(), []
    for top, _, names in os.walk(prefix):
        for n in names:
            notes = os.path.join("/", os.path.relpath(os.path.join(top, n), prefix))[:-5] + ".gcno"
            if n.endswith(".gcda") and os.path.exists(notes):
                os.symlink(notes, os.path.join(top, n[:-5] + ".gcno"))
                data.append(os.path.join(top, n))
    if data:
        out = subprocess.run(["gcov", "--json-format", "--stdout"] + data, capture_output=True,
                             text=True, cwd=ROOT, check=False).stdout
        for doc in out.splitlines():
            for f in json.loads(doc)["files"]:
                found.update("%s:%d" % (f["file"], x["line_number"])
                             for x in f["lines"] if x["count"])
    shutil.rmtree(prefix, ignore_errors=True)
    return found


def tap(command, tree, build, seconds, **more):
    """(number, name, passed, seconds) of each test, while they run.  Ends the tests when it is
    left early, or when no test ends for so long: then its last result has no number."""
    p = subprocess.Popen(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                         preexec_fn=limits, env=dict(environment(tree, build), **more))
    timer = threading.Timer(seconds, lambda: os.killpg(p.pid, signal.SIGKILL))
    timer.start()
    try:
        for line in p.stdout:
            m = re.match(r"(ok|not ok) (\d+) (.*?)( in (\d+)ms)?( # skip.*)?$", line.rstrip("\n"))
            if m and not m[6]:
                yield int(m[2]), m[3], m[1] == "ok", int(m[5] or 0) / 1000
        if p.wait() < 0:
            yield 0, "no end", False, seconds
    finally:
        timer.cancel()
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()


def unit_ends_well(path, tree, build, seconds, **more):
    try:
        return subprocess.run([path], cwd=tree, stdin=subprocess.DEVNULL, timeout=seconds,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              preexec_fn=limits, env=dict(environment(tree, build), **more),
                              check=False).returncode in (0, 77)
    except subprocess.TimeoutExpired:
        return False


def file_of(test):
    return test if test.startswith("unit ") else test.split(":")[0]


def cover(jobs, only):
    """Tests by name: "unit NAME" or "FILE: TEST"; FILE: alone stands for its setup_file.
    Of some files only: the others stay as they were found before, without the lines of
    sources that have changed since."""
    build, where = "build-mutants/cover", os.path.join(STATE, "gcda")
    done = make(ROOT, build, "-j%d" % jobs, "all", "test-programs", CFLAGS="-O1 -g --coverage")
    if done.returncode:
        sys.exit(done.stdout[-2000:])
    shutil.rmtree(where, ignore_errors=True)

    def unit(name):
        prefix = os.path.join(where, "unit-" + name)
        begin = time.monotonic()
        good = unit_ends_well(os.path.join(ROOT, build, "unit", name), ROOT, build, LIMIT,
                              GCOV_PREFIX=prefix)
        return [("unit " + name, prefix, time.monotonic() - begin, good)]

    def bats(name):
        prefix = os.path.join(where, name)
        found = [("%s: %s" % (name, test), os.path.join(prefix, str(n)), took, good)
                 for n, test, good, took in tap(
                     ["bats", "--tap", "--timing"] + QUICK + ["tests/%s.bats" % name], ROOT,
                     build, LIMIT, NIBBLE_COVER=prefix)]
        return found + [(name + ":", os.path.join(prefix, "file"), 0, True)]

    table, times = collections.defaultdict(list), {}
    if only:
        with open(COVER) as f:
            was = json.load(f)
        changed = {s for s in sources() if was["sums"].get(s) != digest(os.path.join(ROOT, s))}
        times = {n: t for n, t in was["times"].items() if file_of(n) not in only}
        for line, names in was["lines"].items():
            if line.split(":")[0] not in changed: # lines have moved
                table[line] = [n for n in names if n in times]
    with futures.ThreadPoolExecutor(jobs) as pool:
        jobs_ = [pool.submit(bats, b) for b in bats_files() if not only or b in only] + \
                [pool.submit(unit, u) for u in units() if not only or "unit " + u in only]
        tests = [t for j in jobs_ for t in j.result()]
        for (name, _, took, good), lines in zip(tests, pool.map(gcov_lines,
                                                                [t[1] for t in tests])):
            if not good:
                print("%s: fails without any change, not used" % name, flush=True)
                continue
            times[name] = took
            for line in lines:
                table[line].append(name)
    with open(COVER, "w") as f:
        json.dump({"times": times, "lines": table,
                   "sums": {s: digest(os.path.join(ROOT, s)) for s in sources()}}, f)
    print("%d lines are executed by %d tests, which take %.0f s one by one"
          % (len(table), len(times), sum(times.values())))


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


# ---- a run ------------------------------------------------------------------------------

class Tree:
    """A copy of the tree in which changes are built."""

    def __init__(self, number, first, jobs):
        self.path = os.path.join(STATE, "w%d" % number)
        if first and not os.path.exists(self.path):
            subprocess.run(["cp", "-a", first.path, self.path], check=True)
        self.fill(jobs)
        self.code = first.code if first else {
            o: self.machine_code(o) for o in self.objects()}

    def fill(self, jobs):
        """What differs from the tree is copied, with a new time, so that it is built anew."""
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                               check=True).stdout.split("\n")[:-1]
        for f in files:
            to = os.path.join(self.path, f)
            os.makedirs(os.path.dirname(to), exist_ok=True)
            if not os.path.lexists(to) or os.path.islink(to) or \
                    digest(to) != digest(os.path.join(ROOT, f)):
                shutil.copy(os.path.join(ROOT, f), to, follow_symlinks=False)
        for build in ("build", "whole"):
            done = make(self.path, build, "-j%d" % jobs, "all", "test-programs")
            if done.returncode:
                sys.exit(done.stdout[-2000:])

    def objects(self):
        """When each was made, by its path below the tree."""
        paths = [os.path.join(top, n)
                 for top, _, names in os.walk(os.path.join(self.path, "build"))
                 for n in names if n.endswith(".o")]
        return {os.path.relpath(p, self.path): os.stat(p).st_mtime_ns for p in paths}

    def machine_code(self, path):
        stripped = os.path.join(self.path, "stripped.o")
        subprocess.run(["objcopy", "-g", os.path.join(self.path, path), stripped], check=True)
        return digest(stripped)

    def fails(self, test, names, seconds):
        """The first of these tests of one file that fails, and passes without the change."""
        if test.startswith("unit "):
            if make(self.path, "build", "-j1", "build/unit/" + test[5:]).returncode:
                sys.exit("mutants: %s is not built" % test)

            def ends_well(build):
                path = "%s/unit/%s" % (build, test[5:])
                return unit_ends_well(path, self.path, build, seconds)
            bad = not ends_well("build") and ends_well("whole") and not ends_well("build")
            return test if bad else None

        def some(build, these):
            only = []
            if test + ":" not in these:
                only = ["-f", "^(%s)$" % "|".join(re.sub(r"([][\\.*^$+?{}()|])", r"\\\1",
                                                          n[len(test) + 2:]) for n in these)]
            return tap(["bats", "--tap"] + QUICK + only + ["tests/%s.bats" % test], self.path,
                       build, seconds)

        for number, name, good, _ in some("build", names):
            if not good:
                whole = "%s: %s" % (test, name)
                # Also a busy machine lets tests fail, or not end.
                if number and all(x[2] for x in some("whole", [whole])) and \
                        not all(x[2] for x in some("build", [whole])):
                    return whole
                if not number and all(x[2] for x in some("whole", names)):
                    return whole
        return None

    def judge(self, source, text, change, cover_, budget):
        line, _, _, start, end, new = change
        path = os.path.join(self.path, source)
        names = cover_["lines"].get("%s:%d" % (source, line)) or \
            sorted({n for at, some in cover_["lines"].items()
                    if at.startswith(source + ":") for n in some})
        with open(path, "w") as f:
            f.write(text[:start] + new + text[end:])
        before = self.objects()
        try:
            if make(self.path, "build", "-j1", "all").returncode:
                return "builds not", ""
            after = self.objects()
            if all(self.code.get(o) == self.machine_code(o)
                   for o in after if after[o] != before.get(o)):
                return "same code", ""
            share = collections.Counter(n for at, some in cover_["lines"].items()
                                        if at.startswith(source + ":") for n in some)
            # Those first that execute much of the file in little time: they are about it.
            worth = {n: share[n] / (2 + cover_["times"][n]) for n in names}
            first = set(sorted((n for n in names if n[-1] != ":"), key=lambda n: -worth[n])[:12])
            begin = time.monotonic()
            for those in (first, set(names) - first):
                groups = collections.defaultdict(list)
                for n in sorted(those):
                    groups[file_of(n)].append(n)
                cost = {g: sum(cover_["times"][n] for n in groups[g]) for g in groups}
                for g in sorted(groups, key=lambda g: (
                        those is not first or -max(worth[n] for n in groups[g]),
                        not g.startswith("unit "), cost[g])):
                    by = self.fails(g, groups[g], 20 + 10 * cost[g])
                    if by:
                        return "caught", by
                    if time.monotonic() - begin > budget:
                        return "survived", "%d s of tests" % budget
            return "survived", "%d tests" % len(names)
        finally:
            with open(path, "w") as f:
                f.write(text)


def listed():
    with open(EQUAL, encoding="utf-8") as f:
        return {tuple(x.rstrip("\n").split("\t")[:3]) for x in f if x.strip()}


def is_listed(equal, source, text, change):
    """By its line's text, or if there are several of them, by the function's name as well."""
    whole, what = show(text, change)
    if sum(x.strip() == whole for x in text.split("\n")) == 1:
        return (source, whole, what) in equal
    names = re.findall(r"^(\w+)\(", text[:change[3]], re.M)
    return (source + ":" + names[-1] if names else source, whole, what) in equal


def is_unique(text, change):
    """No other change of the line is described by the same words."""
    return sum(c[0] == change[0] and show(text, c) == show(text, change)
               for c in changes(text)) == 1


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


def read_rows(path):
    with open(path, encoding="utf-8") as f:
        return [tuple(x.rstrip("\n").split("\t")) for x in f][1:]


def of_row(row, texts):
    """The change of a row of an earlier run, wherever its line is now, or None."""
    source, line, kind, what, _, _, whole = row
    same = [c for c in changes(texts.get(source, ""))
            if kind_of(c) == kind and show(texts[source], c) == (whole, what)]
    return (source, min(same, key=lambda c: abs(c[0] - int(line)))) if same else None


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write("file\tline\tkind\tchange\tverdict\tby\ttext\n")
        f.writelines("\t".join(r) + "\n" for r in rows)


def without(every, rows, texts):
    """The changes that these rows do not have yet."""
    had = collections.Counter(r[:4] for r in rows)
    for source, c in every:
        key = source, str(c[0]), kind_of(c), show(texts[source], c)[1]
        had[key] -= 1
        if had[key] < 0:
            yield source, c


def run(args):
    with open(COVER) as f:
        cover_ = json.load(f)
    texts = {s: open(os.path.join(ROOT, s)).read() for s in sources()}
    again = args.what == "again"
    stale = [s for s in texts if cover_["sums"].get(s) != digest(os.path.join(ROOT, s))]
    if stale:
        sys.exit("mutants: changed since \"cover\", which must run again: " + " ".join(stale[:5]))
    drawn = {s: t for s, t in texts.items() if s in (args.sources or texts)}
    if again: # the others stay as they are
        before = read_rows(args.file)
        found = [of_row(r, texts) for r in before if r[4] == "survived"]
        every = iter([x for x in found if x])
    else:
        every = draws(drawn, random.Random(args.seed))
    trees = [Tree(0, None, args.jobs)]
    trees += [Tree(i, trees[0], 1) for i in range(1, args.jobs)]
    equal, rows, good = listed(), [], collections.Counter()
    free = list(trees)

    def one(item):
        source, change = item
        tree = free.pop()
        try:
            if is_listed(equal, source, texts[source], change) and \
                    (again or is_unique(texts[source], change)):
                return item, ("equal", "listed")
            return item, tree.judge(source, texts[source], change, cover_, args.budget)
        finally:
            free.append(tree)

    if again:
        rows = [r for r in before if r[4] != "survived"] + \
               [r[:4] + ("gone", "", r[6]) for r in before
                if r[4] == "survived" and not of_row(r, texts)]
        write_rows(args.o, rows)
        good.update(r[4] for r in rows)
    elif args.go_on: # what is known when it is stopped is there
        rows = read_rows(args.o)
        good.update(r[4] for r in rows)
        every = without(every, rows, texts)
    else:
        write_rows(args.o, [])
    with futures.ThreadPoolExecutor(args.jobs) as pool:
        pending = {pool.submit(one, x) for _, x in zip(range(args.jobs), every)}
        begin = time.monotonic()
        while pending:
            done, pending = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
            for p in done:
                (source, change), (verdict, by) = p.result()
                uncounted = verdict in ("builds not", "same code")
                if len(rows) + len(pending) < args.n - (not uncounted) and \
                        time.monotonic() - begin < args.seconds:
                    nxt = next(every, None)
                    if nxt:
                        pending.add(pool.submit(one, nxt))
                if uncounted:
                    good[verdict] += 1
                    continue
                whole, what = show(texts[source], change)
                if verdict != "caught" and is_listed(equal, source, texts[source], change):
                    verdict = "equal"
                good[verdict] += 1
                rows.append((source, str(change[0]), kind_of(change), what, verdict, by, whole))
                with open(args.o, "a", encoding="utf-8") as f:
                    f.write("\t".join(rows[-1]) + "\n")
                if verdict == "survived":
                    print("%s:%d: %s: %s: %s" % (source, change[0], verdict, what, whole),
                          flush=True)
    print(", ".join("%s %d" % x for x in sorted(good.items())))
    bad = good["survived"]
    print("%d passed, %d failed" % (len(rows) - bad, bad))
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    sub = parser.add_subparsers(dest="what", required=True)
    c = sub.add_parser("cover")
    c.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    c.add_argument("tests", nargs="*")
    r = sub.add_parser("run")
    r.add_argument("-n", type=int, default=300)
    r.add_argument("-s", type=int, default=1, dest="seed")
    r.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    r.add_argument("-t", type=float, default=1e9, dest="seconds")
    r.add_argument("-b", type=float, default=240, dest="budget")
    r.add_argument("-o", default=os.path.join(STATE, "mutants.tsv"))
    r.add_argument("-c", action="store_true", dest="go_on")
    r.add_argument("sources", nargs="*")
    a = sub.add_parser("again")
    a.add_argument("file")
    a.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    a.add_argument("-b", type=float, default=240, dest="budget")
    a.add_argument("-o", default=os.path.join(STATE, "again.tsv"))
    a.set_defaults(n=1 << 30, seconds=1e9, sources=[], go_on=False)
    o = sub.add_parser("one")
    o.add_argument("file")
    o.add_argument("line", type=int)
    o.add_argument("kind")
    o.add_argument("number", type=int)
    args = parser.parse_args()
    os.makedirs(STATE, exist_ok=True)
    if args.what == "cover":
        cover(args.jobs, args.tests)
    elif args.what in ("run", "again"):
        sys.exit(run(args))
    else:
        text = open(os.path.join(ROOT, args.file)).read()
        for c in changes(text):
            if c[:3] == (args.line, args.kind, args.number):
                print("\n".join(show(text, c)))


if __name__ == "__main__":
    main()
