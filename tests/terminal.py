# SPDX-License-Identifier: MIT
"""terminal.py COLUMNS COMMAND...: run it with a terminal of so many columns as its standard
error, and print what the terminal got.

Terminal: a command at such a terminal, for tests that type."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

PATIENCE = 60  # seconds until what is awaited is missing


def fork(columns, rows=24):
    """pid and descriptor, as of pty.fork, with a size."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return pid, fd


class Terminal:
    """All three standard streams of the command are the terminal.  What it gets is kept in `got`,
    as text without control sequences; `raw` has the bytes.  Before a line is typed, its prompt is
    waited for."""

    PASTE = "\033[200~", "\033[201~"

    def __init__(self, *command, prompt="^[>|] ", columns=100, rows=40, **environment):
        self.raw, self.at, self.prompt, self.asked = b"", 0, prompt, False
        self.pid, self.fd = fork(columns, rows)
        if self.pid == 0:
            os.environ.update(environment)
            os.execvp(command[0], command)

    @property
    def got(self):
        text = re.sub(rb"\033(\[[?]?[0-9;]*[A-Za-z]|[()][A-Z0-9]|[=>])", b"", self.raw)
        return text.decode(errors="replace").replace("\r\n", "\n").replace("\r", "")

    def read(self, until):
        """More of what it got; false: it has ended."""
        ready, _, _ = select.select([self.fd], [], [], max(0, until - time.monotonic()))
        assert ready, "waited too long after: " + self.got[-2000:]
        try:
            chunk = os.read(self.fd, 65536)
        except OSError:  # Linux's end of file
            chunk = b""
        self.raw += chunk
        return bool(chunk)

    def ready(self):
        if self.prompt and not self.asked:
            self.sees(self.prompt)
        self.asked = True

    def type(self, text):
        self.ready()
        data = text.encode(errors="surrogateescape")
        until = time.monotonic() + PATIENCE
        while data:  # a terminal has little space for what nobody has read
            readable, writable, _ = select.select([self.fd], [self.fd], [], PATIENCE)
            assert time.monotonic() < until and (readable or writable), "cannot type"
            if readable:
                assert self.read(until), "it has ended: " + self.got[-2000:]
            if writable:
                data = data[os.write(self.fd, data[:1024]):]

    def line(self, text):
        self.type(text + "\r")
        self.asked = False

    def paste(self, text):
        begin, end = self.PASTE
        self.type(begin + text.replace("\n", "\r") + end)

    def sees(self, pattern):
        """Wait until the pattern matches behind what was seen last; the match."""
        until = time.monotonic() + PATIENCE
        while not (m := re.compile(pattern, re.M).search(self.got, self.at)):
            assert self.read(until), "want %r, it has ended: %s" % (pattern, self.got[-2000:])
        self.at = m.end()
        return m

    def ends(self):
        """Wait for the end; the exit status."""
        until = time.monotonic() + PATIENCE
        while self.read(until):
            pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def main():
    pid, fd = fork(int(sys.argv[1]))
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execvp(sys.argv[2], sys.argv[2:])
    while True:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # Linux's end of file
            break
        if not chunk:
            break
        sys.stdout.buffer.write(chunk)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
