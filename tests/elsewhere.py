# SPDX-License-Identifier: MIT
"""elsewhere.py SOURCE: ask the programs for each row of the table in cmd/cli/elsewhere.c.

Each word of another program must be refused with the row's answer, and each option that an answer
names must be in --help of the program that it is said of.  Prints what is wrong; then the status
is 1.  The last line is how many answers were asked for."""

import pathlib
import re
import subprocess
import sys

STRING = r'"(?:[^"\\]|\\.)*"'
ROW = re.compile(r'\{ ([A-Z |&~]+),\s*(%s),\s*(NULL|%s),\s*((?:%s|[A-Z_0-9]|\s)+?)\s*\}' %
                 (STRING, STRING, STRING))
PROGRAMS = ["datcat", "datpack", "generate", "memguard", "nvquant", "tokenize", "trainstep"]
# What the masks of a row are, from which a program can be left out.
MASKS = {p.upper(): {p} for p in PROGRAMS} | {"CONVERTERS": {"datpack", "nvquant"},
                                              "ALL": set(PROGRAMS)}


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def text_of(expression, macros):
    """The text of literals in a row, or of a macro; None of NULL."""
    expression = macros.get(expression, expression)
    if expression == "NULL":
        return None
    return "".join(s[1:-1] for s in re.findall(STRING, expression))


def rows(source):
    """(table, set of programs, word, ours, text) of each row."""
    source = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.S).replace("\\\n", " ")
    macros = {name: words.strip() for name, words in re.findall(r"#define (\w+) +([^\n]*)", source)}
    for table in ("options", "values"):
        body = re.search(r"row %s\[\] = \{(.*?)\n\};" % table, source, re.S)[1]
        found = ROW.findall(body)
        assert len(found) == body.count("{"), (table, len(found), body.count("{"))
        for masks, word, ours, words in found:
            wanted = set()
            for mask in masks.split("&")[0].split("|"):
                wanted |= MASKS[mask.strip()]
            for mask in re.findall(r"~([A-Z]+)", masks):
                wanted -= MASKS[mask]
            yield table, wanted, text_of(word, {}), text_of(ours, {}), text_of(words, macros)


def named(program, answer):
    """(program, option) of each option in the answer.  Behind the name of a program it is that
    program's, up to a mark."""
    for part in re.split(r"[;:,]", answer):
        whose = program
        for word in re.findall(r"[\w-]+", part):
            if word in PROGRAMS or word in ("hf", "python3"):
                whose = word
            elif re.fullmatch(r"--[a-z][a-z0-9-]*|-[a-zA-Z]", word):
                yield whose, word


def check(program, table, word, ours, text, helps):
    """What is wrong with a row."""
    if table == "options":
        got = run(program, word)
        want = f"{program}: {word}: "
        want += f"unknown option: here it is --{ours}" if ours else f"no such option here: {text}"
        answer = f"--{ours} {text or ''}" if ours else text
    else:
        option, value = word.split("=", 1)
        got = run(program, "--" + option, value)
        want = f"{program}: --{option}: {value}: "
        want += f"here it is {ours}; want " if ours else f"unknown here: {text}; want "
        answer = f"{ours or ''} {text or ''}"
        first = re.split(r"[ ,]", ours)[0] if ours else None
        if first and not re.search(r"want .*\b%s\b" % re.escape(first.split(":")[0]), got.stderr):
            yield f"{program}: --{option}: {ours} is not among what is wanted: {got.stderr}"
        if option not in helps[program]:
            yield f"{program}: has no --{option}"
    if got.returncode != 2 or not got.stderr.startswith(want) or got.stderr.count("\n") != 1:
        yield f"want {want}, found {got.returncode} {got.stderr}"
    for whose, name in named(program, answer):
        if whose in helps and name.lstrip("-") not in helps[whose]:
            yield f"{program} {word}: names {whose} {name}, which --help does not list"


def main():
    helps = {p: set(re.findall(r"(?m)^  (?:-\w, |    )--([a-z0-9-]+)", run(p, "--help").stdout)) |
                set(re.findall(r"(?m)^  -(\w), ", run(p, "--help").stdout)) for p in PROGRAMS}
    bad, asked, seen = 0, 0, set()
    for table, programs, word, ours, text in rows(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")):
        for program in sorted(programs):
            if (program, table, word) in seen:
                bad += print(f"{program}: {word} is there twice") or 1
            seen.add((program, table, word))
            if ours and table == "options" and word.lstrip("-") == ours:
                bad += print(f"{program}: {word} is what it is here") or 1
            for words in check(program, table, word, ours, text, helps):
                bad += print(words) or 1
            asked += 1
    print(asked)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
