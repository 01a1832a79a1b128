#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes lib/text/unicode_data.c: classes and normal forms of characters.

usage: unicode_tables.py [--check] lib/text/unicode_data.c

The tables are not taken from a Unicode version but from the reference itself,
the Python package "tokenizers" (pip install tokenizers==0.23.2): its regular
expressions and its NFC are of different versions, and equal ids are the aim.
Each property is found by asking it about every code point:

  classes      which characters \\p{L}, \\p{N} and \\s take
  decomposition    NFD of each character
  combining class  which of two marks NFD puts first
  composition      which decompositions NFC takes back

--check writes nothing and exits 1 when the file is not what would be written.
"""
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

BLOCK = 128
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
SYLLABLES = range(0xAC00, 0xAC00 + 11172)     # Hangul: done by arithmetic

LETTER, NUMBER, SPACE, SPECIAL = 1, 2, 3, 4   # as in lib/text/unicode.h


def taken_by(regex):
    """The code points that a regular expression of one character takes."""
    split = pre_tokenizers.Split(Regex(regex), "removed")
    taken = set()
    for i in range(0, len(CODE_POINTS), 65536):
        chunk = CODE_POINTS[i:i + 65536]
        taken.update(chunk)
        for _, (start, end) in split.pre_tokenize_str("".join(map(chr, chunk))):
            taken.difference_update(chunk[start:end])
    return taken


def decompositions():
    """NFD of each character that it changes, Hangul syllables aside."""
    found = {}
    for c in CODE_POINTS:
        text = NFD(chr(c))
        if text != chr(c) and c not in SYLLABLES:
            found[c] = [ord(x) for x in text]
    return found


def swaps(pairs):
    """For each pair of marks, whether NFD puts the second one first."""
    texts = NFD("".join("x" + a + b for a, b in pairs)).split("x")[1:]
    return [a != b and text == b + a for text, (a, b) in zip(texts, pairs)]


def combining_classes(decomposed):
    """The class of each mark.  Python's own tables only lend one mark for each class;
    which class another mark is in follows from the order that NFD gives the two."""
    known = {}
    for c in CODE_POINTS:
        k = unicodedata.combining(chr(c))
        if k and c not in decomposed and unicodedata.category(chr(c)) != "Cn":
            known.setdefault(k, []).append(chr(c))
    marks = {}
    low, high = "\u0334", "\u0345"      # classes 1 and 240, the first and the last
    for k, chars in known.items():
        for c in chars:                 # the first one that the reference knows, too
            if k in (1, 240) or all(swaps([(c, low), (high, c)])):
                marks[k] = c
                break
    rest = [c for c in CODE_POINTS if c not in decomposed and c not in SYLLABLES
            and chr(c) not in "x"]
    after_low = swaps([(chr(c), marks[1]) for c in rest])      # class > 1
    before_high = swaps([(marks[240], chr(c)) for c in rest])  # 0 < class < 240
    found = {}
    for c, low, high in zip(rest, after_low, before_high):
        if not low and not high:
            continue
        lower = swaps([(chr(c), marks[k]) for k in sorted(marks)])
        higher = swaps([(marks[k], chr(c)) for k in sorted(marks)])
        same = [k for k, a, b in zip(sorted(marks), lower, higher) if not a and not b]
        if len(same) != 1:
            sys.exit("U+%04X: no combining class fits" % c)
        found[c] = same[0]
    return found


def compositions(decomposed):
    """(first, second) -> composed, for the characters that NFC puts together."""
    found = {}
    for c, parts in decomposed.items():
        if len(parts) < 2 or NFC(chr(c)) != chr(c):
            continue
        first = NFC("".join(map(chr, parts[:-1])))
        if len(first) != 1 or NFC(first + chr(parts[-1])) != chr(c):
            sys.exit("U+%04X: no pair composes to it" % c)
        found[ord(first), parts[-1]] = c
    return found


def check_hangul():
    """The arithmetic of lib/text/nfc.c, against the reference."""
    for i, c in enumerate(SYLLABLES):
        parts = [0x1100 + i // 588, 0x1161 + i // 28 % 21] + \
            ([0x11A7 + i % 28] if i % 28 else [])
        text = "".join(map(chr, parts))
        if NFD(chr(c)) != text or NFC(text) != chr(c):
            sys.exit("U+%04X: Hangul arithmetic does not hold" % c)
    if NFC("\uac00\u11a7") != "\uac00\u11a7" or NFC("\uac01\u11a8") != "\uac01\u11a8":
        sys.exit("Hangul: trailing consonants are other than U+11A8..U+11C2")


def properties(decomposed, classes, composed):
    """One byte a code point: the class, and SPECIAL for what normalisation must look
    at: marks, what decomposes in NFC, and what may join the character before it."""
    table = bytearray(0x110000)
    for value, regex in (LETTER, r"\p{L}"), (NUMBER, r"\p{N}"), (SPACE, r"\s"):
        for c in taken_by(regex):
            table[c] |= value
    special = set(classes) | {second for _, second in composed}
    special |= {c for c in decomposed if NFC(chr(c)) != chr(c)}
    special |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for c in special:
        table[c] |= SPECIAL
    return table


def two_level(table):
    """Blocks without repetition, and which one stands where; zeros behind are cut."""
    end = max(i for i, v in enumerate(table) if v) // BLOCK + 1
    blocks, index, seen = [], [], {}
    for i in range(end):
        block = bytes(table[i * BLOCK:(i + 1) * BLOCK])
        if block not in seen:
            seen[block] = len(blocks)
            blocks.append(block)
        index.append(seen[block])
    return index, blocks


def rows(numbers, form="%d", width=88):
    """Numbers as lines of an initialiser."""
    out, line = [], ""
    for n in numbers:
        item = form % n + ","
        if len(line) + len(item) > width:
            out.append(line)
            line = ""
        line += item
    return "\n".join(out + [line])


def array(kind, name, numbers, form="%d"):
    numbers = list(numbers)
    return "const %s %s[%d] = {\n%s\n};\n" % (kind, name, len(numbers),
                                             rows(numbers, form))


def generate():
    decomposed = decompositions()
    classes = combining_classes(decomposed)
    composed = compositions(decomposed)
    check_hangul()
    index, blocks = two_level(properties(decomposed, classes, composed))
    if len(blocks) > 256:
        sys.exit("more than 256 blocks: unicode_index must become wider")
    ccc = bytearray(0x110000)
    for c, k in classes.items():
        ccc[c] = k
    ccc_index, ccc_blocks = two_level(ccc)
    pool, starts = [], []
    for c in sorted(decomposed):
        starts.append((c, len(pool), len(decomposed[c])))
        pool += decomposed[c]
    pairs = sorted((a << 21 | b, c) for (a, b), c in composed.items())
    parts = [
        "/* SPDX-License-Identifier: MIT */\n"
        "/* unicode_data: GENERATED by tools/unicode_tables.py from the answers of the\n"
        " * Python package tokenizers.  Do not edit; the script's --check compares. */\n"
        '#include "lib/text/unicode.h"\n\n'
        "/* clang-format off */\n",
        "const uint32_t unicode_end = 0x%x;\n" % (len(index) * BLOCK),
        array("uint8_t", "unicode_index", index),
        array("uint8_t", "unicode_blocks", b"".join(blocks)),
        "const uint32_t unicode_ccc_end = 0x%x;\n" % (len(ccc_index) * BLOCK),
        array("uint8_t", "unicode_ccc_index", ccc_index),
        array("uint8_t", "unicode_ccc_blocks", b"".join(ccc_blocks)),
        "/* code point << 16 | place in the pool << 3 | length */\n",
        "const size_t unicode_decomposed_n = %d;\n" % len(starts),
        array("uint64_t", "unicode_decomposed",
              (c << 16 | at << 3 | n for c, at, n in starts), "0x%x"),
        array("uint32_t", "unicode_pool", pool, "0x%x"),
        "/* (first << 21 | second), composed */\n",
        "const size_t unicode_composed_n = %d;\n" % len(pairs),
        array("uint64_t", "unicode_pairs", (p for p, _ in pairs), "0x%x"),
        array("uint32_t", "unicode_composed", (c for _, c in pairs), "0x%x"),
    ]
    if len(pool) >= 1 << 13 or max(n for _, _, n in starts) > 7:
        sys.exit("a decomposition does not fit its fields")
    return "".join(parts)


def main():
    args = sys.argv[1:]
    check = args[:1] == ["--check"]
    if len(args) != 1 + check:
        sys.exit(__doc__)
    text = generate()
    if check:
        with open(args[-1], encoding="ascii") as f:
            sys.exit(None if f.read() == text else "%s: is out of date" % args[-1])
    with open(args[-1], "w", encoding="ascii") as f:
        f.write(text)


if __name__ == "__main__":
    main()
