#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands for tests/memguard.bats: processes that hold memory, fork and hear signals.

Each ends by itself after 30 seconds, whatever happens, and takes 200 MB at most.

  memguard.py hog MB SECONDS        touch so much, hold it so long
  memguard.py secret MB SECONDS     the same, but only root may see what its pages are
  memguard.py memfd MB SECONDS      a file in memory of so much, which nobody maps
  memguard.py map MB SECONDS        the same, mapped: what is read of it is resident
  memguard.py heirs N MB            a file in memory that N children have open, too
  memguard.py file PATH HOW MB SECONDS
                                    a file on a tmpfs; HOW: open, deleted, mapped (and closed), read
                                    (it was there, and is only read), there (it was, and is open)
  memguard.py after PATH HOW MB REPORT
                                    a file, which is closed or removed when the report counts it, then
                                    another one
  memguard.py spike MB SECONDS      the same, let go, go on for a second
  memguard.py deaf MB               ignore SIGTERM
  memguard.py workers N MB          N children, each with so much of its own
  memguard.py shared N MB           N children that share so much with their parent
  memguard.py unshare N MB          the same, but each child writes to all of it
  memguard.py daemon MB FILE        a grandchild in a session of its own; its pid to FILE
  memguard.py storm FILE            children that have children, all pids to FILE
  memguard.py count FILE [MB]       count signals; a second after the first one write
                                    "NAME COUNT" lines to FILE and exit with 75
  memguard.py group COMMAND...      SIGTERM to a process group that begins with COMMAND
  memguard.py tty KEY COMMAND...    run on a terminal, press the key after a second
"""
import collections
import ctypes
import json
import mmap
import os
import pty
import signal
import subprocess
import sys
import time

PAGE = 4096


def touch(mb):
    held = bytearray(mb << 20)
    for i in range(0, len(held), PAGE):
        held[i] = 1
    return held


def note(path, text):
    """Append in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(fd, text.encode())
    os.close(fd)


def sleep_long():
    time.sleep(30)


def child(f):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        f()
        os._exit(0)
    return pid


def wait_all():
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass


def do_hog(mb, seconds):
    held = touch(int(mb))
    time.sleep(float(seconds))
    del held


def do_secret(mb, seconds):
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    do_hog(mb, seconds)


def fill(fd, mb):
    for _ in range(int(mb)):
        os.write(fd, bytes(1 << 20))


def read_mapped(fd, mb):
    held = mmap.mmap(fd, int(mb) << 20)
    for i in range(0, len(held), PAGE):
        held[i]
    return held


def do_memfd(mb, seconds):
    fill(os.memfd_create("held"), mb)
    time.sleep(float(seconds))


def do_map(mb, seconds):
    fd = os.memfd_create("held")
    fill(fd, mb)
    held = read_mapped(fd, mb)
    time.sleep(float(seconds))
    del held


def do_heirs(n, mb):
    fill(os.memfd_create("held"), mb)
    for _ in range(int(n)):
        child(lambda: time.sleep(2))
    wait_all()


def do_file(path, how, mb, seconds):
    fd = os.open(path, os.O_RDONLY if how == "read" else os.O_RDWR | os.O_CREAT)
    if how not in ("read", "there"):
        fill(fd, mb)
    if how == "deleted":
        os.unlink(path)
    if how == "mapped":
        held = read_mapped(fd, mb)
        os.close(fd)
    time.sleep(float(seconds))


def report_of(path):
    with open(path) as f:
        return json.load(f)


def do_after(path, how, mb, report):
    """Waits for looks of memguard, not for a time."""
    fd = os.open(path + ".1", os.O_WRONLY | os.O_CREAT)
    fill(fd, mb)
    while report_of(report)["Peaks"]["HostRssMiB"] < int(mb):
        time.sleep(0.05)
    os.close(fd)
    if how == "removed":
        os.unlink(path + ".1")
    fill(os.open(path + ".2", os.O_WRONLY | os.O_CREAT), mb)
    looks = len(report_of(report)["Samples"])
    while len(report_of(report)["Samples"]) < looks + 5:
        time.sleep(0.05)


def do_spike(mb, seconds):
    do_hog(mb, seconds)
    time.sleep(1)


def do_deaf(mb):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    do_hog(mb, 30)


def do_workers(n, mb):
    for _ in range(int(n)):
        child(lambda: do_hog(mb, 30))
    wait_all()


def do_shared(n, mb, write=False):
    held = touch(int(mb))

    def work():
        if write:
            for i in range(0, len(held), PAGE):
                held[i] = 2
        time.sleep(2)
    for _ in range(int(n)):
        child(work)
    wait_all()


def do_unshare(n, mb):
    do_shared(n, mb, True)


def do_daemon(mb, path):
    def middle():
        os.setsid()

        def last():
            note(path, "%d\n" % os.getpid())
            do_hog(mb, 30)
        child(last)
    os.waitpid(child(middle), 0)
    sleep_long()


def do_storm(path):
    def work(depth):
        note(path, "%d\n" % os.getpid())
        if depth:
            for _ in range(3):
                child(lambda: work(depth - 1))
        sleep_long()
    work(3)


def do_count(path, mb=0):
    seen = collections.Counter()
    for sig in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1"):
        signal.signal(getattr(signal, sig),
                      lambda n, _: seen.update([signal.Signals(n).name]))
    held = touch(int(mb))
    note(path + ".ready", "ready\n")
    end = time.monotonic() + 20
    while not seen and time.monotonic() < end:
        time.sleep(0.02)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        time.sleep(0.02)
    note(path, "".join("%s %d\n" % s for s in sorted(seen.items())))
    del held
    os._exit(75 if seen else 9)


def when_ready(command):
    """Until "count FILE" at the end of the command hears signals; a second for others."""
    end = time.monotonic() + (15 if "count" in command else 1)
    while time.monotonic() < end and not os.path.exists(command[-1] + ".ready"):
        time.sleep(0.05)


def do_group(*command):
    p = subprocess.Popen(command, start_new_session=True)
    when_ready(command)
    assert p.pid > 1 and os.getpgid(p.pid) == p.pid
    os.killpg(p.pid, signal.SIGTERM)
    sys.exit(p.wait(25))


def do_tty(key, *command):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    when_ready(command)
    os.write(fd, bytes([ord(key) & 31]))
    try:
        while True:
            sys.stdout.buffer.write(os.read(fd, 4096))
    except OSError:
        pass
    status = os.waitpid(pid, 0)[1]
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    signal.alarm(30)
    globals()["do_" + sys.argv[1]](*sys.argv[2:])
