# SPDX-License-Identifier: MIT
"""terminal.py COLUMNS COMMAND...: run it with a terminal of so many columns as its standard
error, and print what the terminal got."""

import fcntl
import os
import pty
import struct
import sys
import termios

pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
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
