# SPDX-License-Identifier: MIT
"""messages.py list|check ROOT: the messages in the sources, and the classes of them in
man/nibble.7.

A message is the format of die(), misuse(), warn(), err_set() and the like.  A class is a pattern
in a comment of the page, `.\\" message: REGEX`, before the paragraph that explains it.  `check`
prints messages that belong to no class, and classes without a message; then the status is 1."""

import pathlib
import re
import sys

CALL = re.compile(r"\b(die|misuse|warn|host_warn|host_note|err_set|mp_fail|json_fail|json_expected)\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def arguments(text, at):
    """The text of a call's arguments, from behind its parenthesis."""
    depth, i = 1, at
    while depth:
        c = text[i]
        if c == '"':
            i = LITERAL.match(text, i).end()
            continue
        if c == "'":
            i += 3 + (text[i + 1] == "\\")
            continue
        depth += (c == "(") - (c == ")")
        i += 1
    return text[at:i - 1]


def formats(root):
    """(file, line, words) of each message."""
    for path in sorted(p for d in ("cmd", "lib", "kernels") for p in (root / d).rglob("*.c*")):
        text = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]),
                      path.read_text(encoding="utf-8"), flags=re.S)
        text = re.sub(r"(?<![:\"])//[^\n]*", "", text)
        for m in CALL.finditer(text):
            words = arguments(text, m.end())
            first = LITERAL.search(words)
            if not first:
                continue
            # Literals in a row, and macros of <inttypes.h> between them, are one.
            run = re.match(r'(?:"(?:[^"\\]|\\.)*"\s*|[A-Z][A-Z0-9_]*\s*(?="|,|$))+', words[first.start():])
            parts = LITERAL.findall(run[0])
            line = text.count("\n", 0, m.start()) + 1
            # What json_expected and the like put before the words.
            lead = "expected " if m[1] == "json_expected" else ""
            yield path.relative_to(root), line, lead + "".join(parts)


def classes(root):
    page = (root / "man/nibble.7").read_text(encoding="utf-8")
    return re.findall(r'^\.\\" message: (.*)$', page, flags=re.M)


def main():
    root = pathlib.Path(sys.argv[2])
    found = list(formats(root))
    if sys.argv[1] == "list":
        for path, line, words in found:
            print(f"{path}:{line}\t{words}")
        return 0
    used, bad, names = set(), 0, classes(root)
    for path, line, words in found:
        if not re.search(r"[A-Za-z]{2}", re.sub(r"%[-+ #0-9.*]*(?:ll|z|h)*[a-zA-Z]", "", words)):
            continue  # words of another message
        match = [c for c in names if re.search(c, words)]
        used.update(match)
        if not match:
            bad = 1
            print(f"{path}:{line}: in no class of man/nibble.7: {words}")
    for name in names:
        if name not in used:
            bad = 1
            print(f"man/nibble.7: a class without a message: {name}")
    return bad


if __name__ == "__main__":
    sys.exit(main())
