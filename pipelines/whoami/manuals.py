#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes rows of real questions and answers of the manual pages that are installed.

usage: manuals.py [--seed N] [--rows N] [--chinese N] [--longest N] [DIR] >ROWS.tsv

A manual page describes its subject in one line, "ls - list directory contents"; that is a
row, "What is ls?", TAB, "list directory contents".  DIR (/usr/share/man) has the pages,
man*/NAME.SECTION[.gz], and those in Chinese in zh_CN and zh_TW.

--seed      which ones, and in which order (1)
--rows      how many (40)
--chinese   per cent of them that are of Chinese pages (20); as many as there are at most
--longest   bytes of a description at most, in UTF-8 (60)

Each name is asked about once in a language, and no description is the answer to two of them.
Fewer rows than were asked for are an error.  Equal pages and options give equal rows.
"""
import argparse
import gzip
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../demo"))
sys.dont_write_bytecode = True
import maketext  # noqa: E402

# Language: its folders below DIR, and how it asks.
LANGUAGES = {"en": ([""], "What is %s?"), "zh": (["zh_TW", "zh_CN"], "%s 是什麼？")}

HEADING = re.compile(r'^\.S[Hh]\s+"?(NAME|名稱|名称|名字)"?\s*$', re.MULTILINE)
# Fonts and sizes, signs that have a name, what is not printed.
ESCAPES = ((r"\\f(\[[^]]*\]|\(..|.)", ""), (r"\\s[-+]?\d", ""), (r"\\\(em|\\\(en|\\\[em\]|—|–", "-"),
           (r"\\-", "-"), (r"\\\((aq|cq|oq)|\\\[aq\]", "'"), (r"\\[&|^%/,:]", ""), (r"\\ ", " "),
           (r"\\e", r"\\"))
PLAIN = re.compile(r"^[\w.+-]+$", re.ASCII)


def described(source):
    """Name and description of a page's NAME section, or None if that is not one plain line."""
    heading = HEADING.search(source)
    if not heading:
        return None
    lines = []
    for line in source[heading.end():].split("\n"):
        if re.match(r'^\.(S[Hh]|SS)\b', line):
            break
        if line.startswith('.\\"') or line.startswith("'\\\""):
            continue
        # A macro for fonts has text behind it; any other is layout.
        font = re.match(r"^\.(B|I|BR|BI|IR|RB|RI|IB|R)\s+(.*)", line)
        lines.append(font.group(2).replace('"', "") if font else "" if line.startswith(".") else line)
    text = " ".join(" ".join(lines).split())
    for pattern, plain in ESCAPES:
        text = re.sub(pattern, plain, text)
    name, dash, description = text.partition(" - ")
    name, description = name.split(",")[0].strip(), description.strip()
    if not dash or not PLAIN.match(name) or not description or "\\" in description or "\t" in description:
        return None
    return name, description


def read(path):
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            return f.read(1 << 16).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""


def pages(folder):
    """Paths of the pages of commands, files and system calls, each once, in a fixed order."""
    for section in ("man1", "man5", "man8", "man2", "man7"):
        at = os.path.join(folder, section)
        for name in sorted(os.listdir(at)) if os.path.isdir(at) else ():
            path = os.path.join(at, name)
            if not os.path.islink(path):
                yield path


def rows_of(language, root, longest):
    """{question: answer} of all that is there in a language."""
    folders, question = LANGUAGES[language]
    found, answers = {}, set()
    for folder in folders:
        for path in pages(os.path.join(root, folder)):
            name, answer = described(read(path)) or ("", "")
            asked = question % name
            chinese = any(ord(c) > 0x2e80 for c in answer)
            if (name and len(answer.encode()) <= longest and chinese == (language == "zh")
                    and asked not in found and answer not in answers):
                found[asked] = answer
                answers.add(answer)
    return found


def main():
    p = argparse.ArgumentParser(usage="manuals.py [OPTION]... [DIR] >ROWS.tsv")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rows", type=int, default=40)
    p.add_argument("--chinese", type=int, default=20)
    p.add_argument("--longest", type=int, default=60)
    p.add_argument("dir", nargs="?", default="/usr/share/man")
    o = p.parse_args()
    draw = maketext.Draw(o.seed * 1000003 + 2027)
    rows = []
    for language, wanted in (("zh", o.rows * o.chinese // 100), ("en", o.rows)):
        there = sorted(rows_of(language, o.dir, o.longest).items())
        rows += draw.shuffled(there)[:min(wanted, o.rows - len(rows))]
    if len(rows) < o.rows:
        sys.exit("manuals.py: the pages of %s have %d such rows: want %d" % (o.dir, len(rows), o.rows))
    for question, answer in draw.shuffled(rows):
        print("%s\t%s" % (question, answer))


if __name__ == "__main__":
    main()
