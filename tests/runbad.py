#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs datcat and datpack over files that must be refused (or found damaged,
or accepted) and reports each case that went otherwise: exit status, one clean
line that names the file, nothing written, time and memory.

usage: runbad.py list DIR         MANIFEST, DAMAGED and ODD of mkbad.py
       runbad.py messages DIR     what datcat says of each file of MANIFEST
       runbad.py good FILE...     valid files: exit 0 from all three
       runbad.py cut FILE         the file cut at every byte
       runbad.py flips FILE N     N single bits flipped, one at a time
       runbad.py differ KIND N    N mutations of a small .dat, safetensors, gguf
                                  or ckpt (its header, hashes made right again):
                                  datcat must say what containers.py says

Environment: NIBBLE_BIN (default ../bin beside this script); NIBBLE_SLOW=1 for
programs under sanitizers: three times the time, no memory limit, every 23rd
cut only.  Exit 0 when all is well, 1 with a line for each failure.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True      # no __pycache__ in the tree

import containers
import gguf_file

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.abspath(os.environ.get("NIBBLE_BIN") or os.path.join(HERE, "..", "bin"))
DATCAT, DATPACK = os.path.join(BIN, "datcat"), os.path.join(BIN, "datpack")
SLOW = os.environ.get("NIBBLE_SLOW") == "1"
# The aim is a second on a usual machine, which bench/ measures: this is for what is lost in
# loops, on slow and busy ones, too.
MAX_S = 9.0 if SLOW else 3.0
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
        self.note = ""
        self.dir = tempfile.mkdtemp(prefix="runbad.")
        self.out = os.path.join(self.dir, "stdout")
        self.err = os.path.join(self.dir, "stderr")
        self.work = os.path.join(self.dir, "work")
        os.mkdir(self.work)

    def spawn(self, argv, stdin=None):
        """Exit status (-N: signal N), seconds, those of the processor, peak
        RSS in KiB."""
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
                usage.ru_utime + usage.ru_stime, usage.ru_maxrss)

    def text(self, path):
        with open(path, "rb") as f:
            return f.read(1 << 20)

    def fail(self, case, argv, why):
        self.failures.append("%s: %s: %s\n    stderr: %s" % (
            case, os.path.basename(argv[0]) + " " + " ".join(argv[1:]), why,
            ascii(self.text(self.err)[:400].decode("utf-8", "replace"))))

    def run(self, case, argv, want, stdin=None, limits=True):
        """want: set of statuses.  True when status and limits are right."""
        rc, seconds, used, kib = self.spawn(argv, stdin)
        if rc not in want:
            how = "killed by signal %d" % -rc if rc < 0 else "exit %d" % rc
            self.fail(case, argv, "%s, want %s" % (
                how, " or ".join(map(str, sorted(want)))))
            return False
        if limits:
            for _ in range(2):      # a busy machine is no defect
                if seconds > MAX_S and stdin is None:
                    seconds = min(seconds, self.spawn(argv)[1])
            if seconds > MAX_S:     # what others had of the processor
                seconds = min(seconds, used)
            self.slowest = max(self.slowest, seconds)
            self.most = max(self.most, kib)
            if seconds > MAX_S:
                self.fail(case, argv, "%.2f s, limit %.2f" % (seconds, MAX_S))
            if kib > MAX_KIB and not SLOW:
                self.fail(case, argv, "%d KiB, limit %d" % (kib, MAX_KIB))
        return True

    def refusal(self, case, argv, name, flags=()):
        """The stderr of a refusal or a warning: one clean line that names the
        file."""
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
        if path.endswith(".dat") and os.path.getsize(path) <= 65536:
            argv = [DATCAT, "-"]
            if self.run(name + " in a pipe", argv, {2}, self.pipe(path)):
                self.refusal(name, argv, "", flags)

    def pipe(self, path):
        """The read end of a pipe that holds a small file."""
        with open(path, "rb") as f:
            data = f.read()
        r, w = os.pipe()
        os.write(w, data)
        os.close(w)
        return r

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
                if flags & {"strict", "warn"}:
                    self.refusal(name, argv, name)
        if "stale" in flags:
            for argv in ([DATCAT, "--verify", path], self.datpack(path)):
                if self.run(name, argv, {0}):
                    self.refusal(name, argv, name)
                    if b"stale" not in self.text(self.err):
                        self.fail(name, argv, "no word of a stale sidecar")
            shutil.rmtree(self.work)
            os.mkdir(self.work)
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
                argv = [DATCAT, "-"]
                if self.run(case + ", in a pipe", argv, {2}, self.pipe(path)):
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

    def differ(self, kind, numbers):
        """Mutation number i, for each i: accepted by datcat (--strict, or
        --verify where there are hashes) and by our reader, or by neither."""
        path = os.path.join(self.dir, "mutant." + kind)
        SMALL[kind](path, 1)
        with open(path, "rb") as f:
            good = f.read()
        option = "--verify" if kind == "ckpt" else "--strict"
        argv = [DATCAT, option, path]
        accepted, no = 0, 1 if kind == "ckpt" else 2
        for i in numbers:
            rng = random.Random("%s %d" % (kind, i))
            with open(path, "wb") as f:
                f.write(MUTATE[kind](rng, good))
            why, want = "", {0}
            try:
                names = [t.name for t in containers.read_any(path)]
                accepted += 1
                if kind == "safetensors" and any(
                        not n or "\0" in n for n in names):
                    raise containers.Soft("a name that a .dat may not have")
            except containers.Soft as e:
                why, want = "odd: %s" % e, {0, no}
            except containers.Bad as e:
                why, want = str(e), {no}
            if not self.run("mutation %d of a small %s (%s)" % (
                    i, kind, why or "valid"), argv, want):
                keep = os.path.join(os.environ.get("RUNBAD_KEEP") or self.dir,
                                    "differ-%d.%s" % (i, kind))
                shutil.copyfile(path, keep)
            if len(self.failures) > 20:
                break
        self.note = ", %d valid" % accepted


TOKENS = [t.encode() for t in
          '{ } [ ] , : " \\ \\u00e9 \\ud83d\\ude00 \\ud83d \\u0000 0 1 -1 -0 1.0 1e2 '
          '9223372036854775807 9223372036854775808 18446744073709551616 null '
          'true [] {} "a" "dtype" "shape" "data_offsets" "__metadata__" "F4" '
          '"U8" [0,0] é'.split()] + [b" ", b"\n", b"\0", b"\xff", b"\xc3"]
NUMBERS = [0, 1, 2, 0x10, 0x40, 0x7f, 0x80, 0x81, 0x90, 0xa0, 0xc0, 0xc1, 0xc4,
           0xca, 0xcc, 0xcd, 0xcf, 0xd3, 0xd9, 0xdc, 0xdd, 0xde, 0xdf, 0xff]


def scramble(rng, data, tokens=None):
    """A few small changes: bytes set, cut out, put in, moved."""
    b = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(b) + 1)
        n = rng.choice((1, 1, 1, 2, 4, 9))
        what = rng.randrange(5)
        if what == 0 and at < len(b):
            b[at] = rng.choice(NUMBERS)
        elif what == 1 and at < len(b):
            b[at] ^= 1 << rng.randrange(8)
        elif what == 2:
            del b[at:at + n]
        elif what == 3:
            b[at:at] = rng.choice(tokens) if tokens else bytes(
                rng.choice(NUMBERS) for _ in range(n))
        else:
            to = rng.randrange(len(b) + 1)
            b[to:to] = b[at:at + 5 * n]
    return bytes(b)


def mutate_dat(rng, good):
    return scramble(rng, good[:60]) + good[60:]


def mutate_safetensors(rng, good):
    n = int.from_bytes(good[:8], "little")
    head, data = good[8:8 + n], good[8 + n:]
    head = scramble(rng, head, TOKENS)
    if rng.randrange(4) == 0:
        data = data[:rng.randrange(len(data) + 1)]
    n = len(head) + rng.choice((0,) * 20 + (1, -1, 8))
    return max(0, n).to_bytes(8, "little") + head + data


def mutate_ckpt(rng, good):
    n = int.from_bytes(good[24:32], "little")
    raw = scramble(rng, good[64:64 + n])
    if len(raw) > containers.PAGE - 64:
        raw = raw[:containers.PAGE - 64]
    return containers.ckpt_seal(raw, [(4096, good[4096:])], len(good))


def mutate_gguf(rng, good):
    return scramble(rng, good[:352]) + good[352:]


MUTATE = {"dat": mutate_dat, "safetensors": mutate_safetensors,
          "ckpt": mutate_ckpt, "gguf": mutate_gguf}
SMALL = {"dat": containers.make_small_dat,
         "safetensors": containers.make_small_safetensors,
         "ckpt": containers.make_small_ckpt, "gguf": gguf_file.make_small}


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
        step = 23 if SLOW else int((argv[2:] or ["1"])[0])
        sizes = range(os.path.getsize(argv[1]) - 1, -1, -step)
        w.cut(copy_for(w, argv[1]), sizes[w.part::WORKERS])
    elif argv[0] == "flips":
        bits = random.Random(20).sample(range(8 * os.path.getsize(argv[1])),
                                        int(argv[2]))
        w.flips(copy_for(w, argv[1]), bits[w.part::WORKERS])
    elif argv[0] == "differ":
        w.differ(argv[1], range(int(argv[2]))[w.part::WORKERS])


def messages(path):
    """What datcat says of each file, a line each, in the order of names."""
    os.chdir(path)
    with open("MANIFEST", encoding="utf-8") as f:
        names = sorted(line.split("\t")[0] for line in f)
    for name in names:
        said = subprocess.run([DATCAT, name], stdin=subprocess.DEVNULL,
                              capture_output=True, env=ENV, check=False).stderr.decode()
        print(said.removeprefix("datcat: ").rstrip("\n").replace(os.getcwd(), "DIR"))


def main(argv):
    if len(argv) == 2 and argv[0] == "messages":
        return messages(argv[1])
    if len(argv) < 2 or argv[0] not in ("list", "good", "cut", "flips",
                                        "differ"):
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
                for line in w.failures[:30]:
                    print("FAIL " + line)
                print("%s, part %d: %d runs, %d failures, slowest %.3f s, "
                      "most %.1f MiB%s" % (argv[0], part, w.runs,
                                           len(w.failures), w.slowest,
                                           w.most / 1024, w.note))
                sys.stdout.flush()
            finally:
                shutil.rmtree(w.dir, ignore_errors=True)
            os._exit(1 if w.failures else 0)
        pids.append(pid)
    return 1 if any([os.waitpid(p, 0)[1] for p in pids]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
