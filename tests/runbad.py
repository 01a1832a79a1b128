#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs datcat and datpack over files that must be refused (or found damaged,
or accepted) and reports each case that went otherwise: exit status, one clean
line that names the file, nothing written, time and memory.

usage: runbad.py list DIR         MANIFEST, DAMAGED and ODD of mkbad.py
       runbad.py good FILE...     valid files: exit 0 from all three
       runbad.py cut FILE         the file cut at every byte
       runbad.py flips FILE N     N single bits flipped, one at a time

Environment: NIBBLE_BIN (default ../bin beside this script); NIBBLE_SLOW=1 for
programs under sanitizers: three times the time, no memory limit, every 23rd
cut only.  Exit 0 when all is well, 1 with a line for each failure.
"""
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("NIBBLE_BIN") or os.path.join(HERE, "..", "bin")
DATCAT, DATPACK = os.path.join(BIN, "datcat"), os.path.join(BIN, "datpack")
SLOW = os.environ.get("NIBBLE_SLOW") == "1"
MAX_S = 3.0 if SLOW else 1.0
MAX_KIB = 64 * 1024
WORKERS = 2
ENV = dict(os.environ, LC_ALL="C.UTF-8", NO_COLOR="1")

OFFSET = re.compile(r"\b(?:bytes?|offset|position|at)\s+[0-9]", re.I)
# What may not reach a terminal: C0, DEL, C1, line separators, bidi controls.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029"
                     "\u202a-\u202e\u2066-\u2069]")


class Worker:
    """A scratch directory, and runs of a command in it."""

    def __init__(self, part):
        self.part = part
        self.failures, self.slowest, self.most, self.runs = [], 0.0, 0, 0
        self.dir = tempfile.mkdtemp(prefix="runbad.")
        self.out = os.path.join(self.dir, "stdout")
        self.err = os.path.join(self.dir, "stderr")
        self.work = os.path.join(self.dir, "work")
        os.mkdir(self.work)

    def spawn(self, argv, stdin=None):
        """Exit status (-N: signal N), seconds, peak RSS in KiB."""
        wr = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        actions = [(os.POSIX_SPAWN_OPEN, 1, self.out, wr, 0o600),
                   (os.POSIX_SPAWN_OPEN, 2, self.err, wr, 0o600)]
        if stdin is None:
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY,
                            0))
        else:
            actions.append((os.POSIX_SPAWN_DUP2, stdin, 0))
        start = time.monotonic()
        pid = os.posix_spawn(argv[0], argv, ENV, file_actions=actions,
                             setsigdef=[signal.SIGPIPE])
        if stdin is not None:
            os.close(stdin)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, 20 * MAX_S)
        _, status, usage = os.wait4(pid, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.runs += 1
        return (os.waitstatus_to_exitcode(status), time.monotonic() - start,
                usage.ru_maxrss)

    def text(self, path):
        with open(path, "rb") as f:
            return f.read(1 << 20)

    def fail(self, case, argv, why):
        self.failures.append("%s: %s: %s\n    stderr: %s" % (
            case, os.path.basename(argv[0]) + " " + " ".join(argv[1:]), why,
            ascii(self.text(self.err)[:400].decode("utf-8", "replace"))))

    def run(self, case, argv, want, stdin=None, limits=True):
        """want: set of statuses.  True when status and limits are right."""
        rc, seconds, kib = self.spawn(argv, stdin)
        if rc not in want:
            how = "killed by signal %d" % -rc if rc < 0 else "exit %d" % rc
            self.fail(case, argv, "%s, want %s" % (
                how, " or ".join(map(str, sorted(want)))))
            return False
        if limits and stdin is None:
            for _ in range(2):      # a busy machine is no defect
                if seconds > MAX_S:
                    seconds = min(seconds, self.spawn(argv)[1])
            self.slowest = max(self.slowest, seconds)
            self.most = max(self.most, kib)
            if seconds > MAX_S:
                self.fail(case, argv, "%.2f s, limit %.2f" % (seconds, MAX_S))
            if kib > MAX_KIB and not SLOW:
                self.fail(case, argv, "%d KiB, limit %d" % (kib, MAX_KIB))
        return True

    def refusal(self, case, argv, name, flags=()):
        """The stderr of a refusal: one clean line that names the file."""
        raw = self.text(self.err)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return self.fail(case, argv, "stderr is not UTF-8")
        if text.count("\n") != 1 or not text.endswith("\n"):
            return self.fail(case, argv, "%d lines on stderr, want 1" %
                             text.count("\n"))
        if CONTROL.search(text[:-1]):
            return self.fail(case, argv, "a raw control character")
        if not text.startswith(os.path.basename(argv[0]) + ": "):
            self.fail(case, argv, "the line does not begin with the program")
        if name and name not in text:
            self.fail(case, argv, "the line does not name %s" % name)
        if len(text) > 4096:
            self.fail(case, argv, "a line of %d characters" % len(text))
        rest = text.split(name, 1)[-1] if name else text
        if "off" in flags and not OFFSET.search(rest):
            self.fail(case, argv, "no byte offset")
        if "num" in flags and not re.search("[0-9]", rest):
            self.fail(case, argv, "no number")
        return None

    def clean(self, case, argv):
        """No control characters on stdout or stderr (the tabs of a list and
        the ends of lines aside)."""
        for path in (self.out, self.err):
            text = self.text(path).decode("utf-8", "replace")
            if CONTROL.search(text.replace("\n", "").replace("\t", "")):
                self.fail(case, argv, "a raw control character in %s" %
                          os.path.basename(path))

    def datpack(self, path, *options):
        return [DATPACK, *options, "-o", os.path.join(self.work, "out.dat"),
                path]

    def emptied(self, case, argv):
        left = sorted(os.listdir(self.work))
        if left:
            self.fail(case, argv, "left behind: %s" % " ".join(left))
            shutil.rmtree(self.work)
            os.mkdir(self.work)

    # ---- the questions ----

    def bad(self, path, flags):
        name = os.path.basename(path)
        argv = [DATCAT, path]
        if self.run(name, argv, {2}):
            self.refusal(name, argv, name, flags)
            if self.text(self.out):
                self.fail(name, argv, "a refused file is listed on stdout")
        argv = [DATCAT, "--verify", path]
        if self.run(name, argv, {1, 2} if "v12" in flags else {1}):
            self.clean(name, argv)
            if not self.text(self.out) + self.text(self.err):
                self.fail(name, argv, "no word about what is wrong")
        argv = self.datpack(path)
        if self.run(name, argv, {2}):
            self.refusal(name, argv, name)
        self.emptied(name, argv)

    def damaged(self, path):
        name = os.path.basename(path)
        argv = [DATCAT, "--verify", path]
        if self.run(name, argv, {1}):
            self.clean(name, argv)
        argv = [DATCAT, path]
        if self.run(name, argv, {0, 2}):
            self.clean(name, argv)

    def odd(self, path, flags):
        name = os.path.basename(path)
        for argv in ([DATCAT, path], [DATCAT, "--verify", path]):
            if self.run(name, argv, {0}):
                self.clean(name, argv)
        if "strict" in flags:
            argv = [DATCAT, "--strict", path]
            if self.run(name, argv, {2}):
                self.refusal(name, argv, name, ("off",))
            argv = self.datpack(path, "--strict")
            if self.run(name, argv, {2}):
                self.refusal(name, argv, name, ("off",))
            self.emptied(name, argv)

    def good(self, path):
        name = os.path.basename(path)
        for argv in ([DATCAT, path], [DATCAT, "--verify", path]):
            if self.run(name, argv, {0}):
                self.clean(name, argv)
        argv = self.datpack(path, "-q")
        # A .dat has no place for some dtypes; then nothing may be left.
        if self.run(name, argv, {0, 2}):
            if os.path.exists(os.path.join(self.work, "out.dat")):
                shutil.rmtree(self.work)
                os.mkdir(self.work)
            else:
                self.emptied(name, argv)

    def cut(self, path, sizes):
        """path is this worker's own copy; sizes descend."""
        name = os.path.basename(path)
        for n in sizes:
            os.truncate(path, n)
            case = "%s cut to %d bytes" % (name, n)
            argv = [DATCAT, path]
            if self.run(case, argv, {2}, limits=False):
                self.refusal(case, argv, name)
            argv = [DATCAT, "--verify", path]
            self.run(case, argv, {1}, limits=False)
            if path.endswith(".dat"):
                with open(path, "rb") as f:
                    data = f.read()
                r, w = os.pipe()
                os.write(w, data)       # small: fits the pipe
                os.close(w)
                argv = [DATCAT, "-"]
                if self.run(case + ", in a pipe", argv, {2}, r):
                    self.refusal(case, argv, "")
            if len(self.failures) > 20:
                break

    def flips(self, path, bits):
        name = os.path.basename(path)
        argv = [DATCAT, "--verify", path]
        fd = os.open(path, os.O_RDWR)
        for bit in bits:
            old = os.pread(fd, 1, bit >> 3)
            os.pwrite(fd, bytes([old[0] ^ 1 << (bit & 7)]), bit >> 3)
            self.run("%s byte %d bit %d" % (name, bit >> 3, bit & 7), argv,
                     {1}, limits=False)
            os.pwrite(fd, old, bit >> 3)
            if len(self.failures) > 20:
                break
        os.close(fd)


def rows(path):
    with open(path, encoding="utf-8") as f:
        for line in f:
            yield (line.rstrip("\n").split("\t") + ["-"])[:3]


def list_tasks(directory):
    out = []
    for name, method in (("MANIFEST", Worker.bad), ("ODD", Worker.odd)):
        out += [(method, os.path.join(directory, p), set(flags.split(",")))
                for p, _, flags in rows(os.path.join(directory, name))]
    out += [(Worker.damaged, os.path.join(directory, p))
            for p, _, _ in rows(os.path.join(directory, "DAMAGED"))]
    return out


def copy_for(w, path):
    mine = os.path.join(w.dir, os.path.basename(path))
    shutil.copyfile(path, mine)
    return mine


def work(w, argv):
    """This worker's share of the job."""
    if argv[0] == "list":
        for method, *args in list_tasks(argv[1])[w.part::WORKERS]:
            method(w, *args)
    elif argv[0] == "good":
        for path in argv[1:][w.part::WORKERS]:
            w.good(path)
    elif argv[0] == "cut":
        step = 23 if SLOW else 1
        sizes = range(os.path.getsize(argv[1]) - 1, -1, -step)
        w.cut(copy_for(w, argv[1]), sizes[w.part::WORKERS])
    elif argv[0] == "flips":
        bits = random.Random(20).sample(range(8 * os.path.getsize(argv[1])),
                                        int(argv[2]))
        w.flips(copy_for(w, argv[1]), bits[w.part::WORKERS])


def main(argv):
    if len(argv) < 2 or argv[0] not in ("list", "good", "cut", "flips"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for program in (DATCAT, DATPACK):
        if not os.access(program, os.X_OK):
            print("runbad.py: no %s; set NIBBLE_BIN" % program,
                  file=sys.stderr)
            return 2
    pids = []
    for part in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            w = Worker(part)
            try:
                work(w, argv)
                for line in w.failures:
                    print("FAIL " + line)
                print("%s, part %d: %d runs, %d failures, slowest %.3f s, "
                      "most %.1f MiB" % (argv[0], part, w.runs,
                                         len(w.failures), w.slowest,
                                         w.most / 1024))
                sys.stdout.flush()
            finally:
                shutil.rmtree(w.dir, ignore_errors=True)
            os._exit(1 if w.failures else 0)
        pids.append(pid)
    return 1 if any([os.waitpid(p, 0)[1] for p in pids]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
