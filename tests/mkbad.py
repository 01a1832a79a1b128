#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes one bad file (or directory) for each class of defect that a reader
must find.  Each holds exactly one defect: sizes and hashes around it are
right again.  Deterministic, standard library only, from the format rules.

usage: mkbad.py [--big] OUTDIR

--big makes those whose headers are as large as they may be (10 to 100 MB a
file, 1.4 GB in all), and no others.

OUTDIR/MANIFEST  path TAB what must be found TAB flags
                 exit 2 from datcat and datpack, 1 from datcat --verify
    flags, comma separated, - for none:
      off    the message must hold a byte offset
      num    it must hold a number
      v12    --verify may call it unreadable (2) too
      slow   a bigger file: no more than the ordinary limits, but the point
OUTDIR/DAMAGED   path TAB what: intact structure around damaged bytes; a
                 listing may succeed, datcat --verify must exit 1
OUTDIR/ODD       path TAB what TAB flags: legal but odd; exit 0
    strict  warned about; with --strict refused
    warn    warned about
    stale   --verify and datpack say that the sidecar is stale
"""
import json
import os
import struct
import sys

sys.dont_write_bytecode = True      # no __pycache__ in the tree

import containers as c
import gguf_file as g
from containers import Pairs, Raw, Tensor, dat_header, pack, uleb
from xxh3 import xxh3_128

MANIFEST, DAMAGED, ODD = [], [], []
OUT = "."
M63, M64 = 1 << 63, 1 << 64


def at(name):
    return os.path.join(OUT, name)


def put(name, data):
    with open(at(name), "wb") as f:
        f.write(data)


def bad(name, data, what, flags="-"):
    """data None: the caller has written it."""
    if data is not None:
        put(name, data)
    MANIFEST.append((name, what, flags))


def damaged(name, data, what):
    put(name, data)
    DAMAGED.append((name, what))


def odd(name, data, what, flags="-"):
    if data is not None:
        put(name, data)
    ODD.append((name, what, flags))


def sparse(name, parts, size):
    """parts: (offset, bytes); the rest are holes."""
    with open(at(name), "wb") as f:
        for offset, data in parts:
            f.seek(offset)
            f.write(data)
        f.truncate(size)


# ---- .dat -------------------------------------------------------------------

GOOD = dat_header("first", "f16", (2, 3)) + bytes(range(12))
LAST = dat_header("last", "u8", (5,)) + b"abcde"


def dat(*entries, n=None):
    return uleb(len(entries) if n is None else n) + b"".join(entries)


def entry(name=b"x", dtype=0, rank=None, dims=(1,), payload=b"\0"):
    """Every field as a number (minimal LEB128) or as bytes."""
    def num(v):
        return v if isinstance(v, bytes) else uleb(v)
    if isinstance(name, str):
        name = name.encode()
    if not isinstance(name, tuple):
        name = (len(name), name)
    return (num(name[0]) + name[1] + num(dtype) +
            num(len(dims) if rank is None else rank) +
            b"".join(map(num, dims)) + payload)


def overlong(n, v=1):
    """v in n bytes."""
    return bytes([v & 0x7F | 0x80]) + b"\x80" * (n - 2) + b"\0"


def one(tag, what, flags="off", **fields):
    """A bad entry between two good ones."""
    bad("dat-%s.dat" % tag, dat(GOOD, entry(**fields), LAST), what, flags)


def make_dat():
    two = dat(GOOD, LAST)
    bad("dat-empty.dat", b"", "a file of 0 bytes", "-")
    bad("dat-count-alone.dat", b"\x01", "one entry announced, none there",
        "off")
    bad("dat-count-more.dat", dat(GOOD, LAST, n=3),
        "one entry more announced than there is", "off")
    bad("dat-count-less.dat", dat(GOOD, LAST, n=1),
        "bytes after the last entry", "off")
    bad("dat-count-zero-trailing.dat", b"\0\0",
        "no entries, then a byte", "off")
    bad("dat-count-fifth.dat", dat(GOOD, LAST, n=len(GOOD + LAST) // 5 + 1),
        "more entries announced than bytes / 5", "num")
    bad("dat-count-2-60.dat", dat(GOOD, LAST, n=1 << 60),
        "2^60 entries announced", "num")
    bad("dat-count-max.dat", dat(GOOD, LAST, n=M63 - 1),
        "2^63-1 entries announced", "num")
    bad("dat-count-2-63.dat", dat(GOOD, LAST, n=M63),
        "entry count above 2^63-1", "off")
    bad("dat-count-2-64.dat", b"\x82" + b"\x80" * 8 + b"\x02" + GOOD + LAST,
        "entry count of 65 bits, low 64 bits are 2", "off")
    bad("dat-count-11-bytes.dat", overlong(11, 2) + GOOD + LAST,
        "entry count of 11 bytes", "off")
    bad("dat-count-unterminated.dat", b"\x80\x80\x80",
        "file ends inside the entry count", "off")
    bad("dat-count-endless.dat", b"\x80" * 100000,
        "an integer that never ends", "off")
    bad("dat-leb-ff.dat", b"\xff" * 4096, "0xff bytes only", "off")

    one("name-empty", "a name of 0 bytes", name=b"")
    one("name-64k-plus-1", "a name of 65537 bytes", name=b"n" * 65537)
    one("name-2-31", "a name of 2^31 bytes", name=(1 << 31, b"x"))
    one("name-2-62", "a name of 2^62 bytes", name=(1 << 62, b"x"))
    one("name-2-64", "name length of 65 bits",
        name=(b"\x81" + b"\x80" * 8 + b"\x02", b"x"))
    one("name-len-11-bytes", "name length of 11 bytes",
        name=(overlong(11), b"x"))
    one("name-nul", "a NUL in a name", name=b"a\0b")
    one("name-nul-end", "a NUL at the end of a name", name=b"ab\0")
    for tag, raw in (("ff", b"a\xffb"), ("overlong", b"a\xc0\x80b"),
                     ("overlong3", b"\xe0\x80\xaf"),
                     ("surrogate", b"\xed\xa0\x80"),
                     ("surrogates", b"\xed\xa0\xbd\xed\xb8\x80"),
                     ("beyond", b"\xf4\x90\x80\x80"), ("f8", b"\xf8\x88\x80"),
                     ("cut", b"ab\xe2\x82"), ("alone", b"\x80"),
                     ("cut4", b"\xf0\x9f\x91")):
        one("utf8-" + tag, "a name that is not UTF-8", name=raw)
    one("name-dup", "a name that occurs twice", name="first", dtype=5,
        dims=(2, 3), payload=b"z" * 12)
    bad("dat-name-dup-last.dat", dat(GOOD, entry("x"), LAST, entry("last")),
        "a name that occurs twice, last", "off")

    for code, why in ((8, "half-precision complex"), (12, "not in the table"),
                      (14, "not in the table"), (16, "not in the table"),
                      (24, "another enumeration's e4m3fn"),
                      (45, "another enumeration's e2m1x2"),
                      (99, "not in the table"), (102, "not in the table"),
                      (256, "low byte is u8"), (4711, "a writer's marker"),
                      (1 << 32 | 5, "low 32 bits are f16"),
                      (1 << 62, "huge")):
        one("dtype-%d" % code, "dtype code %d (%s)" % (code, why), dtype=code)
    one("dtype-2-64", "dtype of 65 bits, low 64 bits are 5",
        dtype=b"\x85" + b"\x80" * 8 + b"\x02")
    one("dtype-11-bytes", "dtype of 11 bytes", dtype=overlong(11))

    one("rank-65", "rank 65", dims=(1,) * 65)
    one("rank-256", "rank 256, low byte 0", rank=256, dims=())
    one("rank-2-31", "rank 2^31", rank=1 << 31)
    one("rank-2-62", "rank 2^62", rank=1 << 62)
    one("rank-11-bytes", "rank of 11 bytes", rank=overlong(11))
    one("dim-2-62", "a payload of 2^62 bytes", dims=(1 << 62,))
    one("dim-2-63", "a dimension above 2^63-1", dims=(M63,))
    one("dim-2-64", "a dimension of 65 bits, low 64 bits are 1",
        dims=(b"\x81" + b"\x80" * 8 + b"\x02",))
    one("dim-11-bytes", "a dimension of 11 bytes", dims=(overlong(11),))
    one("product-2-64", "product of dims is 2^64, wraps to 0",
        dims=(1 << 32, 1 << 32), payload=b"")
    one("product-wrap-1", "product of dims wraps to 1",
        dims=(7, 0x6DB6DB6DB6DB6DB7), payload=b"\0")
    one("product-negative", "product of dims is 2^63",
        dims=(1 << 31, 1 << 32), payload=b"")
    one("product-zero-last", "non-zero dims overflow before a zero",
        dims=(1 << 62, 1 << 62, 0), payload=b"")
    one("product-zero-first", "non-zero dims overflow behind a zero",
        dims=(0, 1 << 62, 1 << 62), payload=b"")
    one("product-rank-64", "64 dims of 2", dims=(2,) * 64, payload=b"")
    one("bytes-2-64", "payload size wraps to 0: 2^61 f64", dtype=7,
        dims=(1 << 61,), payload=b"")
    one("bytes-c128", "payload size wraps to 16: 2^60+1 c128", dtype=10,
        dims=((1 << 60) + 1,), payload=bytes(16))
    one("bytes-2-63", "payload of 2^63 bytes", dtype=5, dims=(1 << 62,),
        payload=b"")
    bad("dat-payload-1-short.dat", two[:-1], "payload one byte short", "off")
    bad("dat-payload-absent.dat", two[:-5], "no payload at all", "off")
    bad("dat-payload-4g.dat", dat(GOOD, entry(dims=(1 << 32,))),
        "a payload of 4 GiB, one byte there", "off")
    bad("dat-header-cut.dat", two[:-7], "file ends inside a header", "off")
    bad("dat-name-cut.dat", two[:len(uleb(2) + GOOD) + 3],
        "file ends inside a name", "off")
    bad("dat-trailing-1.dat", two + b"\0", "1 byte after the last entry",
        "off")
    bad("dat-trailing-cat.dat", two + two, "two files, one after the other",
        "off")
    bad("dat-trailing-page.dat", two + bytes(4096),
        "4096 zeros after the last entry", "off")
    bad("dat-newline.dat", two.replace(b"\n", b"\r\n"),
        "a file that went through text mode", "-")
    bad("dat-is-text.dat", b"# a readme\n\nNot tensors at all.\n" * 40,
        "text", "-")
    bad("dat-is-json.dat", b'{"a": 1}\n', "JSON", "-")
    bad("dat-is-elf.dat", b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0" +
        bytes(60), "an ELF header", "-")
    bad("dat-is-gzip.dat", b"\x1f\x8b\x08\0" + c.noise("gz", 500),
        "compressed", "-")
    bad("dat-zeros.dat", bytes(4096), "zeros only", "off")
    for k in range(4):
        b = bytearray(c.noise(("junk", k), 3000))
        b[0] = 3 + k
        bad("dat-junk-%d.dat" % k, bytes(b), "noise", "-")

    # A refusal must not print what the file says as it is.
    hurt = b"\x1b[2J\x1b[31mred\r\n\tbell\x07\xc2\x9b31m\xe2\x80\xaeoh\x7f"
    one("esc-dtype", "bad dtype of a name full of controls", name=hurt,
        dtype=13)
    one("esc-payload", "payload too long under a name full of controls",
        name=hurt + b"2", dims=(1 << 50,))
    bad("dat-esc-dup.dat", dat(entry(hurt), entry(hurt)),
        "a name full of controls, twice", "off")
    one("long-name-dtype", "bad dtype of a name of 65536 bytes",
        name=("é" * 32768).encode(), dtype=13)
    one("long-name-cut", "a name of 3-byte characters, bad dtype",
        name="x" + "層" * 21000, dtype=13)
    one("percent", "bad dtype of a name of conversions",
        name=b"%s%n%n%n%s%d%1000000d", dtype=13)

    # Hostile cost.
    big = 6 << 30
    head = dat(GOOD, n=2) + dat_header("big", "u8", (big,))
    sparse("dat-sparse-trailing.dat", [(0, head)], len(head) + big + 3)
    bad("dat-sparse-trailing.dat", None, "3 bytes after a 6 GiB payload",
        "off,slow")
    sparse("dat-sparse-short.dat", [(0, head)], len(head) + big - 1)
    bad("dat-sparse-short.dat", None, "a 6 GiB payload one byte short",
        "off,slow")
    head = dat(GOOD, n=1 << 33)
    sparse("dat-sparse-count.dat", [(0, head)], 6 * (1 << 33))
    bad("dat-sparse-count.dat", None,
        "2^33 entries in 48 GiB of zeros: empty names", "off,slow")
    many = [entry(b"%06x" % k, 0, None, (0,), b"") for k in range(150000)]
    bad("dat-many-dup.dat", dat(*(many + [many[0]])),
        "150001 entries, the last name is the first one's", "off,slow")
    # The longest that a name may be, 40 times: memory is the file's, no more.
    long = [entry(b"%04d" % k + b"n" * 65532, 0, None, (0,), b"")
            for k in range(40)]
    bad("dat-many-long.dat", dat(*(long + [long[3]])),
        "names of 64 KiB, one twice", "off,slow")
    deep = [entry(b"%05d" % k, 0, None, (1,) * 64, b"\0")
            for k in range(20000)]
    bad("dat-many-rank.dat", dat(*(deep + [b"\x01x"])),
        "20000 tensors of rank 64, then a cut", "off,slow")


def make_dat_odd():
    body = GOOD + LAST
    odd("odd-count.dat", b"\x82\x80\0" + body, "count in 3 bytes", "strict")
    odd("odd-count-10.dat", overlong(10, 2) + body, "count in 10 bytes",
        "strict")
    odd("odd-name-length.dat", dat(GOOD, entry((overlong(2), b"x"))),
        "name length in 2 bytes", "strict")
    odd("odd-dtype.dat", dat(GOOD, entry(dtype=overlong(5))),
        "dtype in 5 bytes", "strict")
    odd("odd-rank.dat", dat(GOOD, entry(rank=overlong(4))), "rank in 4 bytes",
        "strict")
    odd("odd-dim.dat", dat(GOOD, entry(dims=(overlong(8),))),
        "dimension in 8 bytes", "strict")
    odd("odd-none.dat", b"\0", "no entries: legal")
    odd("odd-name-64k.dat", dat(entry("n" * 65536)), "the longest name: legal")
    odd("odd-rank-64.dat", dat(entry(dims=(1,) * 64)), "rank 64: legal")
    odd("odd-zero-dims.dat", dat(entry(dims=(0, 1 << 31, 1 << 31),
                                       payload=b"")),
        "2^62 in the non-zero dims: legal")
    odd("odd-f4.dat", dat(entry("a", 100, None, (), b"x"),
                          entry("b", 100, None, (2, 3), b"abcdef"),
                          entry("c", 100, None, (0, 9), b"")),
        "code 100: a scalar, odd columns, empty: legal")


# ---- safetensors ------------------------------------------------------------

DATA = bytes(range(24))
HEAD = {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "U8", "shape": [8], "data_offsets": [16, 24]}}


def st(header=None, data=DATA, n=None):
    """A file; header as text, bytes or object; n overrides the length."""
    if header is None:
        header = HEAD
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode("utf-8")
    return struct.pack("<Q", len(header) if n is None else n) + header + data


def text(**tensors):
    """The header's text with parts replaced: key -> raw JSON of its value."""
    full = {k: json.dumps(v) for k, v in HEAD.items()}
    full.update(tensors)
    return "{" + ",".join('"%s":%s' % kv for kv in full.items()) + "}"


def with_b(what_in_b):
    return text(b="{" + what_in_b + "}")


B_DTYPE, B_SHAPE, B_OFF = ('"dtype":"U8"', '"shape":[8]',
                           '"data_offsets":[16,24]')
B_ALL = "%s,%s,%s" % (B_DTYPE, B_SHAPE, B_OFF)


def sbad(name, header, what, flags="-", **kw):
    bad("st-%s.safetensors" % name, st(header, **kw), what, flags)


def make_st_frame():
    good = st()
    n = len(good) - 24 - 8
    for size in (0, 1, 7):
        bad("st-%d-bytes.safetensors" % size, good[:size],
            "a file of %d bytes" % size, "-")
    bad("st-8-bytes.safetensors", good[:8], "only the header's length", "num")
    bad("st-n-zero.safetensors", bytes(8), "header of 0 bytes", "num")
    sbad("n-plus-1", HEAD, "header takes a byte of data", n=n + 1)
    sbad("n-minus-1", HEAD, "header without its }", n=n - 1)
    sbad("n-file-plus-1", HEAD, "header one byte beyond the file", "num",
         n=n + 25)
    for tag, v in (("1e8", 100000000), ("1e8-plus-1", 100000001),
                   ("2-31", 1 << 31), ("2-32", 1 << 32 | n), ("2-62", 1 << 62),
                   ("2-63", M63), ("2-64-1", M64 - 1), ("2-64-8", M64 - 8)):
        sbad("n-" + tag, HEAD, "header length %d" % v, "num", n=v)
    sparse("st-sparse-n-1e8-plus-1.safetensors",
           [(0, struct.pack("<Q", 100000001) + b'{"')], 100000100)
    bad("st-sparse-n-1e8-plus-1.safetensors", None,
        "header longer than 100,000,000 bytes, all there", "num,slow")
    sparse("st-sparse-n-1e8.safetensors",
           [(0, struct.pack("<Q", 99999992) + b"{}")], 100000000)
    bad("st-sparse-n-1e8.safetensors", None, "header of 100 MB: {} and NULs",
        "slow")
    sparse("st-sparse-data.safetensors", [(0, st())], 5 << 30)
    bad("st-sparse-data.safetensors", None, "5 GiB behind the last tensor",
        "num,slow")
    bad("st-trailing-1.safetensors", good + b"\0", "1 byte after the data",
        "num")
    bad("st-data-short.safetensors", good[:-1], "data one byte short", "num")
    bad("st-data-none.safetensors", good[:-24], "no data at all", "num")
    bad("st-no-tensors-data.safetensors", st("{}", b"x"),
        "no tensors, but data", "num")
    bad("st-meta-only-data.safetensors", st('{"__metadata__":{}}', b"12345678"),
        "no tensors, but data", "num")
    bad("st-is-dat.safetensors", dat(GOOD, LAST), "a .dat", "-")
    bad("st-is-text.safetensors", b"version https://git-lfs.github.com/spec"
        b"/v1\noid sha256:00\nsize 5\n", "a pointer, not the file", "-")


def make_st_json():
    sbad("space-first", " " + text(), "a space before the {")
    sbad("newline-first", "\n" + text(), "a newline before the {")
    sbad("bom", "\ufeff" + text(), "a byte order mark")
    sbad("array", "[1]", "header is an array", data=b"")
    sbad("string", '"{}"', "header is a string", data=b"")
    sbad("null", "null", "header is null", data=b"")
    sbad("trailing-x", text() + "x", "a letter after the object")
    sbad("trailing-object", text() + "{}", "two objects")
    sbad("trailing-brace", text() + "}", "a } too many")
    sbad("trailing-nul", text() + "\0\0\0", "padding with NUL")
    sbad("unclosed", text()[:-1], "no } at the end")
    sbad("unclosed-string", '{"a', "ends inside a string", data=b"")
    sbad("unclosed-escape", '{"a\\', "ends inside an escape", data=b"")
    sbad("only-brace", "{", "ends after {", data=b"")
    sbad("comma-last", text()[:-1] + ",}", "a comma before }")
    sbad("comma-first", "{," + text()[1:], "a comma after {")
    sbad("comma-missing", text().replace('},"b"', '}"b"'), "no comma")
    sbad("colon-missing", text().replace('"b":', '"b"'), "no colon")
    sbad("comma-array", with_b(B_ALL.replace("[8]", "[8,]")),
         "a comma before ]")
    sbad("single-quotes", text().replace('"', "'"), "single quotes")
    sbad("bare-key", text().replace('"b"', "b"), "a key without quotes")
    sbad("comment", text().replace("{", "{/* no */", 1), "a comment")
    sbad("number-key", text()[:-1] + ',1:{}}', "a number as key")
    for tag, v in (("1e2", "1e2"), ("fraction", "8.0"), ("negative", "-8"),
                   ("minus-zero", "-0"), ("plus", "+8"), ("leading-zero", "08"),
                   ("hex", "0x8"), ("nan", "NaN"), ("infinity", "Infinity"),
                   ("2-63", str(M63)), ("2-64", str(M64 + 8)),
                   ("2-128", str((1 << 128) + 8)),
                   ("digits", "1" + "0" * 5000), ("string", '"8"'),
                   ("null", "null"), ("true", "true"), ("array", "[8]"),
                   ("empty", ""), ("dot", "8."), ("exponent", "8e0"),
                   ("1e400", "1e400"), ("bare-minus", "-")):
        sbad("shape-" + tag, with_b(B_ALL.replace("[8]", "[%s,1]" % v)),
             "dimension %s" % (v if len(v) < 50 else "of 5001 digits"))
    for tag, v in (("1e1", "2.4e1"), ("fraction", "24.0"), ("string", '"24"'),
                   ("negative", "-24"), ("2-63", str(M63)),
                   ("2-64", str(M64 + 24)), ("null", "null")):
        sbad("offset-" + tag, with_b(B_ALL.replace("24", v)),
             "end offset %s" % v)
    sbad("dup-tensor", text()[:-1] + ',"b":{%s}}' % B_ALL, "a tensor twice")
    sbad("dup-tensor-escaped", text()[:-1] + ',"\\u0062":{%s}}' % B_ALL,
         "a tensor twice, once with its name escaped")
    sbad("dup-dtype", with_b('"dtype":"I8",' + B_ALL), "dtype twice")
    sbad("dup-shape", with_b(B_ALL + ',"shape":[8]'), "shape twice")
    sbad("dup-offsets", with_b(B_ALL + ',"data_offsets":[16,24]'),
         "data_offsets twice")
    sbad("dup-meta", '{"__metadata__":{},"__metadata__":{},' + text()[1:],
         "__metadata__ twice")
    sbad("dup-meta-key", '{"__metadata__":{"k":"1","k":"2"},' + text()[1:],
         "a key twice in __metadata__")
    deep = 100000
    sbad("deep-array", with_b(B_ALL + ',"x":' + "[" * deep + "]" * deep),
         "arrays nested 100000 deep")
    sbad("deep-object", with_b(B_ALL + ',"x":' + '{"y":' * deep + "1" +
                               "}" * deep), "objects nested 100000 deep")
    sbad("deep-open", '{"a":' + "[" * deep, "100000 open brackets", data=b"")
    sbad("deep-shape", with_b(B_ALL.replace("[8]", "[" * deep + "]" * deep)),
         "a shape nested 100000 deep")
    sbad("deep-meta", '{"__metadata__":{"k":' + "[" * deep + "]" * deep +
         "}," + text()[1:], "__metadata__ nested 100000 deep")
    sbad("deep-million", '{"a":' + "[" * 4000000, "4,000,000 open brackets",
         "slow", data=b"")
    name = '"b%s"'
    for tag, v, why in (
            ("high", "\\ud800", "an unpaired high surrogate"),
            ("low", "\\udc00", "an unpaired low surrogate"),
            ("high-high", "\\ud83d\\ud83d", "two high surrogates"),
            ("high-text", "\\ud83dx", "a high surrogate, then a letter"),
            ("short-u", "\\u12", "a short \\u escape"),
            ("bad-u", "\\u12G4", "a \\u escape with a letter beyond F"),
            ("bad-escape", "\\x41", "an escape that JSON does not have"),
            ("octal", "\\0", "an octal escape"),
            ("control", "\x01", "a control character in a string"),
            ("newline", "\n", "a newline in a string"),
            ("tab", "\t", "a tab in a string"),
            ("nul", "\0", "a NUL in a string")):
        sbad("string-" + tag, text().replace('"b"', name % v), why)
    for tag, raw in (("ff", b"\xff"), ("cut", b"\xe2\x82"),
                     ("overlong", b"\xc1\xa2"), ("surrogate", b"\xed\xa0\x80"),
                     ("beyond", b"\xf4\x90\x80\x80")):
        sbad("utf8-" + tag, text().encode().replace(b'"b"', b'"b' + raw + b'"'),
             "a name that is not UTF-8")
    sbad("utf8-meta", b'{"__metadata__":{"k":"\xff"},' + text()[1:].encode(),
         "metadata that is not UTF-8")
    sbad("utf16", text().encode("utf-16-le"), "a header in UTF-16")
    sbad("literal", text(b="tru"), "a literal that is none")
    sbad("literal-case", '{"__metadata__":Null,' + text()[1:], "Null")


def make_st_fields():
    for tag, v in (("number", "5"), ("null", "null"), ("array", "[]"),
                   ("string", '"x"'), ("true", "true"), ("empty", "{}")):
        sbad("tensor-" + tag, text(b=v), "a tensor that is %s" % v)
    sbad("no-dtype", with_b(B_SHAPE + "," + B_OFF), "no dtype")
    sbad("no-shape", with_b(B_DTYPE + "," + B_OFF), "no shape")
    sbad("no-offsets", with_b(B_DTYPE + "," + B_SHAPE), "no data_offsets")
    sbad("extra-key", with_b(B_ALL + ',"extra":1'), "a key too many")
    sbad("key-case", with_b(B_ALL.replace("dtype", "Dtype")), "Dtype")
    for tag, v in (("unknown", '"F128"'), ("case", '"u8"'), ("empty", '""'),
                   ("number", "0"), ("null", "null"), ("array", '["U8"]'),
                   ("nul", '"U8\\u0000"'), ("c128", '"C128"'),
                   ("space", '"U8 "')):
        sbad("dtype-" + tag, with_b(B_ALL.replace('"U8"', v)), "dtype " + v)
    for tag, v in (("number", "8"), ("object", "{}"), ("null", "null"),
                   ("string", '"[8]"')):
        sbad("shape-is-" + tag, with_b(B_ALL.replace("[8]", v)), "shape " + v)
    for tag, v in (("one", "[16]"), ("three", "[16,24,24]"), ("none", "[]"),
                   ("nested", "[[16,24]]"), ("object", '{"0":16,"1":24}'),
                   ("number", "16")):
        sbad("offsets-" + tag, with_b(B_ALL.replace("[16,24]", v)),
             "data_offsets " + v)
    for tag, v in (("number", "1"), ("array", "[]"), ("null", "null"),
                   ("string", '"pt"'), ("value-number", '{"k":1}'),
                   ("value-null", '{"k":null}'), ("value-true", '{"k":true}'),
                   ("value-object", '{"k":{}}'), ("value-array", '{"k":[]}')):
        sbad("meta-" + tag, '{"__metadata__":%s,' % v + text()[1:],
             "__metadata__ " + v)


def make_st_layout():
    def layout(tag, what, data=DATA, **t):
        head = {}
        for name, v in t.items():
            dtype, shape, begin, end = v
            head[name] = {"dtype": dtype, "shape": shape,
                          "data_offsets": [begin, end]}
        sbad(tag, head, what, "num", data=data)

    a = ("F32", [2, 2], 0, 16)
    layout("hole", "4 bytes between two tensors", DATA + bytes(4), a=a,
           b=("U8", [8], 20, 28))
    layout("hole-first", "the first tensor begins at 8", DATA + bytes(8),
           a=("F32", [2, 2], 8, 24), b=("U8", [8], 24, 32))
    layout("overlap", "tensors overlap by 1 byte", DATA[:-1], a=a,
           b=("U8", [8], 15, 23))
    layout("same-range", "two tensors on the same bytes", DATA[:16], a=a,
           b=("U8", [16], 0, 16))
    layout("inside", "a tensor inside another", DATA[:16], a=a,
           b=("U8", [8], 4, 12))
    layout("empty-inside", "an empty tensor inside another", DATA[:16], a=a,
           b=("U8", [0], 8, 8))
    layout("empty-beyond", "an empty tensor beyond the data", DATA[:16], a=a,
           b=("U8", [0], 99, 99))
    layout("backwards", "begin after end", DATA, a=a, b=("U8", [8], 24, 16))
    layout("length-plus", "a range longer than the shape", DATA + b"x", a=a,
           b=("U8", [8], 16, 25))
    layout("length-minus", "a range shorter than the shape", DATA[:-1], a=a,
           b=("U8", [8], 16, 23))
    layout("length-dtype", "a range for another dtype", DATA, a=a,
           b=("F16", [8], 16, 24))
    layout("length-scalar", "an empty range for a scalar", DATA[:16], a=a,
           b=("U8", [], 16, 16))
    layout("f4-odd", "3 elements of 4 bits", DATA[:18], a=a,
           b=("F4", [3], 16, 18))
    layout("f4-one", "a scalar of 4 bits", DATA[:17], a=a,
           b=("F4", [], 16, 17))
    layout("f6-odd", "3 elements of 6 bits", DATA[:19], a=a,
           b=("F6_E2M3", [3], 16, 19))
    layout("f6-two", "2 elements of 6 bits", DATA[:18], a=a,
           b=("F6_E3M2", [2], 16, 18))
    layout("range-2-62", "a range beyond the file", DATA, a=a,
           b=("U8", [1 << 62], 16, 16 + (1 << 62)))
    layout("range-end", "a range one byte beyond the file", DATA[:-1],
           a=a, b=("U8", [8], 16, 24))
    layout("begin-2-62", "a begin beyond the file", DATA, a=a,
           b=("U8", [8], 1 << 62, (1 << 62) + 8))
    layout("shape-wrap-0", "product of dims is 2^64", DATA[:16], a=a,
           b=("U8", [1 << 32, 1 << 32], 16, 16))
    layout("shape-wrap-8", "product of dims wraps to 8", DATA, a=a,
           b=("U8", [(1 << 61) + 1, 8], 16, 24))
    layout("bits-wrap", "bits wrap: 2^61+1 u8 and 1 byte", DATA[:17],
           a=a, b=("U8", [(1 << 61) + 1], 16, 17))
    layout("bytes-wrap", "bytes wrap: 2^61+1 i64 and 8 bytes", DATA, a=a,
           b=("I64", [(1 << 61) + 1], 16, 24))
    hurt = "\x1b[2J\r\n\x07\x9b31m\u202e"
    layout("esc", "a hole before a name full of controls", DATA + bytes(4),
           **{"a": a, hurt: ("U8", [8], 20, 28)})
    sbad("esc-dtype", {hurt: {"dtype": hurt, "shape": [1],
                              "data_offsets": [0, 1]}},
         "a dtype full of controls", data=b"x")
    sbad("esc-dup", '{%s:{},%s:{}}' % (json.dumps(hurt), json.dumps(hurt)),
         "a name full of controls, twice", data=b"")
    layout("long-name", "a hole before a name of 70000 bytes",
           DATA + bytes(4), **{"a": a, "層" * 23333: ("U8", [8], 20, 28)})
    many = {"t%06d" % k: {"dtype": "U8", "shape": [], "data_offsets":
                          [k, k + 1]} for k in range(40000)}
    many["t039999"]["data_offsets"] = [39998, 39999]
    sbad("many-overlap", many, "40000 tensors, the last two overlap",
         "num,slow", data=bytes(39999))


# ---- GGUF -------------------------------------------------------------------

def gguf_head(tensors, pairs, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, pairs)


def gguf_file(pairs=(), infos=(), data=b"", alignment=32, **head):
    """A file of parts; counts are right unless they are given."""
    h = gguf_head(head.pop("tensors", len(infos)),
                  head.pop("pairs", len(pairs)), **head)
    h += b"".join(pairs) + b"".join(infos)
    return h + bytes(g.pad(len(h), alignment)) + data


GNAME = g.pair("general.name", g.STRING, "x")
GA = g.info("a", (2, 2), 0, 0)              # f32: 16 bytes
GB = g.info("b", (8,), 24, 32)              # i8: 8 bytes
GDATA = bytes(range(16)) + bytes(16) + bytes(range(8)) + bytes(24)


def gbad(tag, what, flags="off", pairs=(GNAME,), infos=(GA, GB), data=GDATA,
         **kw):
    bad("gguf-%s.gguf" % tag, gguf_file(pairs, infos, data, **kw), what,
        flags)


def gpair(tag, what, raw, flags="off"):
    """A bad pair between two good ones."""
    gbad("kv-" + tag, what, flags,
         pairs=(GNAME, raw, g.pair("last", g.U8, 1)))


def ginfo(tag, what, raw, flags="off", data=GDATA):
    """A bad info behind a good one."""
    gbad("info-" + tag, what, flags, infos=(GA, raw), data=data)


def make_gguf_head():
    good = gguf_file((GNAME,), (GA, GB), GDATA)
    bad("gguf-empty.gguf", b"", "a file of 0 bytes")
    for n in (1, 4, 7, 8, 15, 16, 23):
        bad("gguf-%d-bytes.gguf" % n, good[:n], "a file of %d bytes" % n,
            "off")
    gbad("magic", "another magic number", magic=b"GGML")
    gbad("magic-case", "gguf", magic=b"gguf")
    for v in (0, 1, 2, 4, 3 << 24, 0xffffffff):
        gbad("version-%d" % v, "version %d" % v, version=v)
    for tag, n in (("one-less", 1), ("none", 0)):
        gbad("tensors-" + tag, "bytes of an info are data", tensors=n)
    gbad("tensors-more", "one info more announced than there is", tensors=3)
    for tag, n in (("24th", len(good)), ("2-31", 1 << 31), ("2-32", 1 << 32),
                   ("2-60", 1 << 60), ("2-63", M63), ("max", M64 - 1)):
        gbad("tensors-" + tag, "%d tensors announced" % n, tensors=n)
        gbad("pairs-" + tag, "%d pairs announced" % n, pairs=(),
             infos=(GA, GB), data=GDATA)
        put("gguf-pairs-%s.gguf" % tag, gguf_head(2, n) + good[24:])
    put("gguf-pairs-more.gguf", gguf_head(2, 2) + good[24:])
    bad("gguf-pairs-more.gguf", None, "an info is read as a pair", "off")
    put("gguf-pairs-none.gguf", gguf_head(2, 0) + good[24:])
    bad("gguf-pairs-none.gguf", None, "a pair is read as an info", "off")
    bad("gguf-is-text.gguf", b"# a readme\n" * 99, "text", "off")
    bad("gguf-zeros.gguf", bytes(4096), "zeros only", "off")
    bad("gguf-junk.gguf", b"GGUF\3\0\0\0" + c.noise("gguf", 5000), "noise",
        "off")
    bad("gguf-sniffed", gguf_file(infos=(GA,), data=GDATA + b"!" * 99),
        "no suffix; bytes after the last tensor", "off")


def make_gguf_pairs():
    for tag, n in (("2-31", 1 << 31), ("2-62", 1 << 62), ("2-63", M63),
                   ("max", M64 - 1), ("file", 4000)):
        gpair("key-" + tag, "a key of %d bytes" % n,
              struct.pack("<Q", n) + b"key" + struct.pack("<IB", 0, 1))
        gpair("string-" + tag, "a string of %d bytes" % n, g.string("k") +
              struct.pack("<IQ", 8, n) + b"text")
        gpair("array-" + tag, "%d items announced" % n, g.string("k") +
              struct.pack("<IIQ", 9, 0, n))
        gpair("strings-" + tag, "%d strings announced" % n, g.string("k") +
              struct.pack("<IIQ", 9, 8, n) + g.string("x") * 3)
        gpair("wide-" + tag, "%d u64 announced" % n, g.string("k") +
              struct.pack("<IIQ", 9, 10, n) + bytes(64))
        gpair("nested-" + tag, "%d arrays announced" % n, g.string("k") +
              struct.pack("<IIQ", 9, 9, n) + struct.pack("<IQ", 0, 0))
    gpair("wrap", "items of 8 bytes whose sum wraps to 8", g.string("k") +
          struct.pack("<IIQ", 9, 10, (1 << 61) + 1) + bytes(8))
    gpair("key-empty", "a key of 0 bytes", g.pair(b"", g.U8, 1))
    gpair("key-64k", "a key of 65536 bytes", g.pair(b"k" * 65536, g.U8, 1))
    gpair("key-nul", "a NUL in a key", g.pair(b"a\0b", g.U8, 1))
    for tag, raw in (("ff", b"a\xffb"), ("overlong", b"\xc0\x80"),
                     ("surrogate", b"\xed\xa0\x80"), ("cut", b"\xe2\x82")):
        gpair("key-utf8-" + tag, "a key that is not UTF-8",
              g.pair(raw, g.U8, 1))
        ginfo("name-utf8-" + tag, "a name that is not UTF-8",
              g.info(raw, (8,), 24, 32))
    gpair("key-dup", "a key twice", GNAME)
    gpair("key-dup-type", "a key twice, of another type",
          g.pair("general.name", g.U32, 7))
    gpair("key-esc", "a key full of controls, twice, and a bad type",
          g.string(b"\x1b[2J\r\n\xe2\x80\xae") + struct.pack("<I", 13))
    for n in (13, 14, 255, 256, 1 << 31, 0xffffffff):
        gpair("type-%d" % n, "value type %d" % n,
              g.string("k") + struct.pack("<IQ", n, 0))
        gpair("item-%d" % n, "an array of type %d" % n,
              g.string("k") + struct.pack("<IIQ", 9, n, 1) + bytes(8))
    for v in (2, 0x7f, 0xff):
        gpair("bool-%d" % v, "a boolean of %d" % v,
              g.string("k") + struct.pack("<IB", 7, v))
    gpair("deep", "arrays nested 1000 deep", g.string("k") +
          struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000 +
          struct.pack("<IQ", 0, 0))
    for tag, kind, v in (("0", g.U32, 0), ("1", g.U32, 1), ("4", g.U32, 4),
                         ("3", g.U32, 3), ("33", g.U32, 33),
                         ("max", g.U32, 0xffffffff), ("u64", g.U64, 32),
                         ("i32", g.I32, 32), ("float", g.F32, 32.0),
                         ("text", g.STRING, "32")):
        gpair("alignment-" + tag, "general.alignment %s %s" % (
            g.TYPE_NAMES[kind], v), g.pair("general.alignment", kind, v))
    gpair("alignment-2-31", "data far behind the end of the file",
          g.pair("general.alignment", g.U32, 1 << 31))
    gpair("alignment-64", "offsets that are no multiples of 64",
          g.pair("general.alignment", g.U32, 64))
    many = tuple(g.pair("%06d" % k, g.U8, 1) for k in range(100000))
    gbad("kv-many-dup", "100001 keys, the last is the first one's",
         "off,slow", pairs=many + many[:1])
    gbad("kv-many-empty", "a million empty strings, then a cut", "off,slow",
         pairs=(g.pair("k", g.ARRAY, (g.STRING, [""] * 1000000)),),
         infos=(GA, GB), data=GDATA[:39])


def make_gguf_infos():
    for tag, n in (("2-31", 1 << 31), ("2-62", 1 << 62), ("2-63", M63),
                   ("max", M64 - 1)):
        ginfo("name-" + tag, "a name of %d bytes" % n,
              struct.pack("<Q", n) + b"x" + bytes(24))
        ginfo("dim-" + tag, "a dimension of %d" % n,
              g.info("b", (n,), 24, 32))
        ginfo("offset-" + tag, "an offset of %d" % (n & ~31),
              g.info("b", (8,), 24, n & ~31))
    ginfo("name-empty", "a name of 0 bytes", g.info("", (8,), 24, 32))
    ginfo("name-64k", "a name of 65537 bytes", g.info("n" * 65537, (8,), 24,
                                                      32))
    ginfo("name-nul", "a NUL in a name", g.info("b\0c", (8,), 24, 32))
    ginfo("name-dup", "a name twice", g.info("a", (8,), 24, 32))
    for n in (65, 256, 1 << 31, 0xffffffff):
        ginfo("rank-%d" % n, "rank %d" % n,
              g.info("b", (8,), 24, 32, rank=n) + bytes(8 * 64))
    for n in (4, 5, 31, 32, 33, 36, 38, 42, 255, 256, 1 << 31, 0xffffffff):
        ginfo("type-%d" % n, "tensor type %d" % n, g.info("b", (8,), n, 32))
    ginfo("product-2-64", "product of dims is 2^64", g.info(
        "b", (1 << 32, 1 << 32), 24, 32), data=GDATA[:16])
    ginfo("product-wrap", "product of dims wraps to 8", g.info(
        "b", ((1 << 61) + 1, 8), 24, 32))
    ginfo("product-zero", "non-zero dims overflow beside a zero", g.info(
        "b", (0, 1 << 62, 1 << 62), 24, 32), data=GDATA[:16])
    ginfo("bytes-wrap", "payload size wraps to 8", g.info(
        "b", ((1 << 61) + 1,), 27, 32))
    for tag, shape in (("odd", (1, 65)), ("32", (2, 32)), ("scalar", ()),
                       ("first", (64, 1))):
        ginfo("nvfp4-" + tag, "NVFP4 of %s: no whole blocks" % (shape,),
              g.info("b", shape, 40, 32), data=GDATA + bytes(4096))
    ginfo("q6k-odd", "Q6_K of 128 columns", g.info("b", (2, 128), 14, 32),
          data=GDATA + bytes(4096))
    ginfo("nvfp4-2-63", "NVFP4 of 2^63 elements", g.info(
        "b", (1 << 57, 64), 40, 32))

    ginfo("overlap", "two tensors on the same bytes", g.info("b", (8,), 24, 0),
          data=GDATA[:32])
    ginfo("inside", "a tensor that begins inside another",
          g.info("b", (8,), 24, 32), data=GDATA)
    put("gguf-info-inside.gguf", gguf_file(
        (GNAME,), (g.info("a", (16, 4), 0, 0), GB), bytes(256)))
    ginfo("hole", "32 bytes between two tensors", g.info("b", (8,), 24, 64),
          data=GDATA[:32] + bytes(32) + GDATA[32:])
    gbad("info-hole-first", "the first tensor begins at 32",
         infos=(g.info("a", (2, 2), 0, 32), g.info("b", (8,), 24, 64)),
         data=bytes(32) + GDATA)
    ginfo("empty-beyond", "an empty tensor beyond the data",
          g.info("b", (0,), 24, 4096), data=GDATA[:32])
    ginfo("empty-hole", "an empty tensor in a hole",
          g.info("b", (0,), 24, 64), data=GDATA[:32])
    for n in (1, 8, 16, 31):
        ginfo("offset-odd-%d" % n, "an offset of %d" % (32 + n),
              g.info("b", (8,), 24, 32 + n), data=GDATA + bytes(n))
    for n in (1, 7, 8, 24, 31):
        gbad("data-short-%d" % n, "%d bytes of the data" % (40 - n),
             data=GDATA[:40 - n])
    gbad("data-none", "no data at all", data=b"")
    for n in (1, 23, 25, 32, 4096):
        gbad("trailing-%d" % n, "%d bytes after the last tensor" % n,
             data=GDATA[:40] + bytes(n))
    bad("gguf-trailing-cat.gguf", gguf_file((), (GA,), GDATA[:32]) * 2,
        "two files, one after the other", "off")
    big = 6 << 30
    head = gguf_file((), (GA, g.info("b", (big,), 24, 32)))
    sparse("gguf-sparse-short.gguf", [(0, head)], len(head) + 32 + big - 1)
    bad("gguf-sparse-short.gguf", None, "a 6 GiB payload one byte short",
        "off,slow")
    sparse("gguf-sparse-trailing.gguf", [(0, head)], len(head) + 32 + big + 1)
    bad("gguf-sparse-trailing.gguf", None, "1 byte after a 6 GiB payload",
        "off,slow")
    sparse("gguf-sparse-count.gguf", [(0, gguf_head(1 << 33, 0))],
           24 * ((1 << 33) + 2))
    bad("gguf-sparse-count.gguf", None, "2^33 infos in zeros: empty names",
        "off,slow")
    many = [g.info("%06d" % k, (0,), 24, 0) for k in range(60000)]
    gbad("info-many-dup", "60001 tensors, the last name is the first one's",
         "off,slow", infos=many + [many[0]], data=b"")


def make_gguf_odd():
    odd("odd-gguf-padding.gguf", gguf_file((), (GA, GB), GDATA[:20] + b"x" +
                                           GDATA[21:]),
        "padding that is not zero: legal")
    odd("odd-gguf-unpadded.gguf", gguf_file((), (GA, GB), GDATA[:40]),
        "no padding at the end: legal")
    odd("odd-gguf-none.gguf", gguf_head(0, 0), "nothing: legal")
    odd("odd-gguf-none-padded.gguf", gguf_file(), "nothing, padded: legal")
    odd("odd-gguf-order.gguf", gguf_file((), (GB, GA), GDATA),
        "infos in another order than the data: legal")
    odd("odd-gguf-empty.gguf", gguf_file(
        (), (g.info("e", (0, 5), 0, 0), GA, g.info("f", (0,), 24, 32), GB),
        GDATA), "empty tensors: legal")
    odd("odd-gguf-rank-64.gguf", gguf_file(
        (), (g.info("a", (1,) * 64, 24, 0),), b"x"), "rank 64: legal")
    odd("odd-gguf-key-64k.gguf", gguf_file(
        (g.pair("k" * 65535, g.U8, 1),)), "the longest key: legal")
    odd("odd-gguf-string.gguf", gguf_file(
        (g.pair("k", g.STRING, b"\xff\x1b\0"),)), "any bytes in a string")


# ---- model directories ------------------------------------------------------

SHARD1, SHARD2 = ("model-00001-of-00002.safetensors",
                  "model-00002-of-00002.safetensors")


def shard(*names):
    return c.st_bytes([Tensor(n, "u8", (8,), c.noise(n, 8)) for n in names],
                      {"format": "pt"})


def model_dir(name, weight_map=None, raw=None, files=None, total=24, **more):
    """A directory with two shards; weight_map, or the index's raw text."""
    os.mkdir(at(name))
    if weight_map is None:
        weight_map = {"a": SHARD1, "b": SHARD1, "c": SHARD2}
    if raw is None:
        raw = json.dumps({"metadata": {"total_size": total},
                          "weight_map": weight_map})
    if files is None:
        files = {SHARD1: shard("a", "b"), SHARD2: shard("c")}
    put(os.path.join(name, "config.json"), c.tiny_config().encode())
    put(os.path.join(name, "model.safetensors.index.json"),
        raw if isinstance(raw, bytes) else raw.encode())
    for f, data in files.items():
        put(os.path.join(name, f), data)


def idx(tag, what, flags="-", **kw):
    model_dir("idx-" + tag, **kw)
    bad("idx-" + tag, None, what, flags)


def listed_as(shard2):
    """Index that names the second shard so; the file itself is there."""
    return {"weight_map": {"a": SHARD1, "b": SHARD1, "c": shard2}}


def make_idx():
    put("evil.safetensors", shard("c"))
    idx("dotdot", "a shard in ..", **listed_as("../evil.safetensors"))
    idx("dotdot-only", "a shard called ..", **listed_as(".."))
    idx("dotdot-inside", "a shard name with .. in it",
        weight_map={"a": SHARD1, "b": SHARD1, "c": "a..b.safetensors"},
        files={SHARD1: shard("a", "b"), "a..b.safetensors": shard("c")})
    idx("dotdot-end", "a shard name with .. at its end",
        weight_map={"a": SHARD1, "b": SHARD1, "c": "c.."},
        files={SHARD1: shard("a", "b"), "c..": shard("c")})
    idx("dot", "a shard called .", **listed_as("."))
    idx("absolute", "an absolute shard name",
        **listed_as("/etc/hostname"))
    model_dir("idx-absolute-real", weight_map={
        "a": SHARD1, "b": SHARD1,
        "c": os.path.abspath(at("evil.safetensors"))})
    bad("idx-absolute-real", None, "an absolute name of a good shard", "-")
    idx("slash-dot", "a shard name with ./", **listed_as("./" + SHARD2))
    model_dir("idx-subdir", weight_map={"a": SHARD1, "b": SHARD1,
                                        "c": "sub/x.safetensors"})
    os.mkdir(at("idx-subdir/sub"))
    put("idx-subdir/sub/x.safetensors", shard("c"))
    bad("idx-subdir", None, "a shard in a folder", "-")
    idx("empty-name", "a shard with an empty name", **listed_as(""))
    idx("nul-name", "a shard name with a NUL", **listed_as(SHARD2 + "\0.txt"))
    idx("esc-name", "a shard name full of controls, absent", "v12",
        **listed_as("\x1b[31mmodel\n\u202e.safetensors"))
    idx("long-name", "a shard name of 70000 bytes", "v12",
        **listed_as("m" * 70000))
    idx("absent-tensor", "a tensor listed, but not in its shard",
        weight_map={"a": SHARD1, "b": SHARD1, "c": SHARD2, "d": SHARD2})
    idx("wrong-shard", "a tensor listed in the other shard",
        weight_map={"a": SHARD1, "b": SHARD2, "c": SHARD2})
    idx("unlisted", "a tensor in a shard, but not listed",
        weight_map={"a": SHARD1, "c": SHARD2})
    idx("two-shards", "a tensor in two shards",
        files={SHARD1: shard("a", "b"), SHARD2: shard("b", "c")})
    idx("missing-shard", "a shard is not there", "v12",
        files={SHARD1: shard("a", "b")})
    idx("shard-empty", "a shard of 0 bytes",
        files={SHARD1: shard("a", "b"), SHARD2: b""})
    idx("shard-cut", "a shard one byte short", "num",
        files={SHARD1: shard("a", "b"), SHARD2: shard("c")[:-1]})
    idx("shard-hole", "a hole in a shard", "num",
        files={SHARD1: shard("a", "b"), SHARD2: st(
            {"c": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}},
            bytes(12))})
    idx("shard-text", "a shard that is text",
        files={SHARD1: shard("a", "b"), SHARD2: b"not a tensor\n" * 9})
    model_dir("idx-shard-directory", files={SHARD1: shard("a", "b")})
    os.mkdir(at(os.path.join("idx-shard-directory", SHARD2)))
    bad("idx-shard-directory", None, "a shard that is a directory", "v12")
    model_dir("idx-shard-fifo", files={SHARD1: shard("a", "b")})
    os.mkfifo(at(os.path.join("idx-shard-fifo", SHARD2)))
    bad("idx-shard-fifo", None, "a shard that is a FIFO: no waiting", "v12")

    good = json.dumps({"metadata": {"total_size": 24}, "weight_map": {
        "a": SHARD1, "b": SHARD1, "c": SHARD2}})
    idx("empty", "an index of 0 bytes", raw="")
    idx("array", "an index that is an array", raw="[]")
    idx("string", "an index that is a string", raw='"x"')
    idx("no-map", "no weight_map", raw='{"metadata":{"total_size":24}}')
    idx("map-array", "weight_map is an array",
        raw='{"metadata":{},"weight_map":["a"]}')
    idx("map-null", "weight_map is null",
        raw='{"metadata":{},"weight_map":null}')
    idx("map-number", "a shard name that is a number",
        raw=good.replace('"%s"}' % SHARD2, "2}"))
    idx("map-null-name", "a shard name that is null",
        raw=good.replace('"%s"}' % SHARD2, "null}"))
    idx("map-object", "a shard name that is an object",
        raw=good.replace('"%s"}' % SHARD2, "{}}"))
    idx("dup-tensor", "a tensor listed twice, in two shards",
        raw=good.replace('"a": ', '"a": "%s", "a": ' % SHARD2))
    idx("dup-tensor-2", "a tensor listed twice, the wrong one last",
        raw=good.replace('"c": ', '"a": "%s", "c": ' % SHARD2))
    idx("dup-map", "weight_map twice",
        raw=good[:-1] + ',"weight_map":{"a":"%s"}}' % SHARD1)
    idx("trailing", "text behind the index", raw=good + "x")
    idx("trailing-object", "two objects", raw=good + good)
    idx("cut", "an index cut in the middle", raw=good[:60])
    idx("comma", "a comma before }", raw=good[:-2] + ",}}")
    idx("quotes", "single quotes", raw=good.replace('"', "'"))
    idx("utf8", "an index that is not UTF-8",
        raw=good.encode().replace(b'"a"', b'"\xff"'))
    idx("surrogate", "an unpaired surrogate in a tensor name",
        raw=good.replace('"a"', '"\\ud800"'))
    idx("deep", "an index nested 100000 deep",
        raw='{"metadata":' + "[" * 100000 + "]" * 100000 + "," + good[1:])
    os.mkdir(at("idx-nothing"))
    bad("idx-nothing", None, "an empty directory", "v12")
    os.mkdir(at("idx-config-only"))
    put("idx-config-only/config.json", c.tiny_config().encode())
    bad("idx-config-only", None, "a directory without tensors", "v12")
    model_dir("odd-total-size", total=25)
    # Of no model: a and b are no tensors of one, which --verify would say.
    put("odd-total-size/config.json", b"{}")
    odd("odd-total-size", None, "total_size is not the sum", "warn")


# ---- .ckpt ------------------------------------------------------------------

ARRAYS = [Tensor("a", "f32", (4, 9), c.noise("a", 144)),
          Tensor("b", "bf16", (50, 3), c.exact_floats("bf16", "b", 150)),
          Tensor("c", "u8", (10,), c.noise("c", 10))]


def base():
    h = c.ckpt_header(ARRAYS, "{}")
    size = c.ckpt_place(h)
    return h, size


def body(h):
    return [(a["offset"], t.data) for a, t in zip(h["arrays"], ARRAYS)]


def seal(h, raw=None, size=None, **over):
    """Good arrays where h's untouched twin has them; h (or raw) as header."""
    good, good_size = base()
    if raw is None:
        raw = pack(h)
    assert 64 + len(raw) <= good["arrays"][0]["offset"]
    return c.ckpt_seal(raw, body(good), size or good_size, **over)


def kbad(tag, change, what, flags="off"):
    """change(header) alters it in place, or returns a new one or bytes."""
    h, _ = base()
    new = change(h)
    if isinstance(new, bytes):
        bad("ckpt-%s.ckpt" % tag, seal(h, new), what, flags)
    else:
        bad("ckpt-%s.ckpt" % tag, seal(h if new is None else new), what, flags)


def setter(*path_and_value):
    """A change that sets h[k1][k2]... = value."""
    *path, last, value = path_and_value

    def change(h):
        for k in path:
            h = h[k]
        h[last] = value
    return change


def remover(*path):
    def change(h):
        for k in path[:-1]:
            h = h[k]
        del h[path[-1]]
    return change


def make_ckpt_prologue():
    h, size = base()
    n = len(pack(h))
    good = seal(h)

    def pro(tag, what, flags="off", **over):
        bad("ckpt-%s.ckpt" % tag, seal(h, **over), what, flags)

    for k in (0, 8, 63, 64, 65, 4095):
        bad("ckpt-%d-bytes.ckpt" % k, good[:k], "a file of %d bytes" % k, "-")
    pro("magic", "another magic", magic=b"\x89NIBCL\r\n")
    pro("magic-text-mode", "a magic that went through text mode",
        magic=b"\x89NIBCK\n\0")
    pro("magic-7-bit", "a magic without its eighth bit",
        magic=b"\x09NIBCK\r\n")
    pro("version-0", "version 0", version=0)
    pro("version-2", "version 2", version=2)
    pro("version-endian", "version 1, high byte first", version=1 << 24)
    pro("reserved", "reserved field not zero", zero=1)
    pro("reserved-high", "reserved field not zero", zero=1 << 31)
    for tag, v in (("0", 0), ("minus-page", size - 4096),
                   ("plus-page", size + 4096), ("plus-1", size + 1),
                   ("2-32", (1 << 32) + size), ("2-63", M63),
                   ("2-64", M64 - 4096)):
        pro("size-" + tag, "file_bytes %d, not %d" % (v, size), file_bytes=v)
    for tag, v in (("0", 0), ("max-plus-1", c.MAX_HEADER + 1), ("2-32", 1 << 32),
                   ("2-63", M63), ("2-64", M64 - 1), ("file", size),
                   ("2-32-n", (1 << 32) + n)):
        pro("header-" + tag, "header_bytes %d, not %d" % (v, n),
            header_bytes=v)
    raw = pack(h)
    pro("header-minus-1", "header one byte short, hash to fit",
        header_bytes=n - 1, hash=xxh3_128(raw[:-1]))
    pro("header-plus-1", "header one byte longer, hash to fit",
        header_bytes=n + 1, hash=xxh3_128(raw + b"\0"))
    pro("header-hash", "header hash wrong, prologue hash right",
        hash=bytes(16))
    flipped = bytearray(xxh3_128(raw))
    flipped[15] ^= 1
    pro("header-hash-bit", "one bit of the header hash", hash=bytes(flipped))
    pro("header-hash-le", "header hash with its low byte first",
        hash=xxh3_128(raw)[::-1])
    pro("prologue-hash", "prologue hash wrong", pro_hash=bytes(16))
    b = bytearray(good)
    b[64 + n // 2] ^= 0x20
    bad("ckpt-flip-header.ckpt", bytes(b), "one bit of the header", "off")
    b = bytearray(good)
    b[9] ^= 1
    bad("ckpt-flip-prologue.ckpt", bytes(b), "one bit of the prologue", "off")
    bad("ckpt-cut-page.ckpt", good[:-4096], "the last page is missing", "off")
    bad("ckpt-cut-1.ckpt", good[:-1], "the last byte is missing", "off")
    bad("ckpt-trailing-1.ckpt", good + b"\0", "a byte behind the file", "off")
    bad("ckpt-trailing-page.ckpt", good + bytes(4096),
        "a page behind the file", "off")
    pro("page-more", "a page more than the arrays need, size to fit",
        size=size + 4096)
    bad("ckpt-zeros.ckpt", bytes(8192), "zeros only", "-")
    bad("ckpt-is-dat.ckpt", dat(GOOD, LAST), "a .dat", "-")
    big = c.MAX_HEADER + 1
    sparse("ckpt-sparse-header.ckpt", [(0, c.ckpt_seal(
        b"", [], 64, file_bytes=1 << 33, header_bytes=big))], 1 << 33)
    bad("ckpt-sparse-header.ckpt", None,
        "a header of 16 MiB and a byte in 8 GiB", "off,slow")
    zeros = bytes(c.MAX_HEADER)
    sparse("ckpt-sparse-zeros.ckpt", [(0, c.ckpt_seal(
        b"", [], 64, file_bytes=1 << 33, header_bytes=c.MAX_HEADER,
        hash=xxh3_128(zeros)))], 1 << 33)
    bad("ckpt-sparse-zeros.ckpt", None, "a header of 16 MiB of zeros",
        "off,slow")


def make_ckpt_msgpack():
    def swap(old, new):
        """Replace the encoding of one value in the packed header."""
        def change(h):
            raw = pack(h)
            assert raw.count(old) == 1, (old, raw.count(old))
            return raw.replace(old, new)
        return change

    def step(raw):
        return setter("state", "step", Raw(raw))

    kbad("msgpack-array", lambda h: pack([h]), "header is an array")
    kbad("msgpack-int", lambda h: b"\x05", "header is a number")
    kbad("msgpack-nil", lambda h: b"\xc0", "header is nil")
    kbad("msgpack-empty-map", lambda h: b"\x80", "an empty map", "-")
    kbad("msgpack-trailing", lambda h: pack(h) + b"\xc0",
         "a value after the map")
    kbad("msgpack-trailing-zeros", lambda h: pack(h) + bytes(7),
         "zeros after the map, in the header")
    kbad("msgpack-cut", lambda h: pack(h)[:-1], "the map is cut")
    kbad("msgpack-cut-half", lambda h: pack(h)[:len(pack(h)) // 2],
         "half of the map")
    kbad("msgpack-map-1-more", lambda h: b"\x88" + pack(h)[1:],
         "a map of one pair more")
    kbad("msgpack-map-1-less", lambda h: b"\x86" + pack(h)[1:],
         "a map of one pair less")
    for tag, raw in (("u8", b"\xcc\x05"), ("u16", b"\xcd\0\xc8"),
                     ("u32", b"\xce\0\0\xff\xff"),
                     ("u64", b"\xcf" + struct.pack(">Q", M63 >> 32)),
                     ("u64-small", b"\xcf" + bytes(8)),
                     ("i8-positive", b"\xd0\x05"), ("i16", b"\xd1\x01\0"),
                     ("i32", b"\xd2\0\x01\0\0"),
                     ("i64", b"\xd3" + struct.pack(">q", 1 << 40))):
        kbad("int-" + tag, step(raw), "an integer that is not shortest")
    for tag, raw in (("i8", b"\xd0\xff"), ("i16", b"\xd1\xff\x80"),
                     ("i64", b"\xd3" + struct.pack(">q", -129))):
        kbad("int-negative-" + tag,
             setter("state", "settings", {"x": Raw(raw)}),
             "a negative integer that is not shortest")
    kbad("float32", setter("state", "settings", {"x": Raw(b"\xca?\x80\0\0")}),
         "a float of 32 bits")
    for tag, raw in (("fixext1", b"\xd4\x01x"), ("fixext16", b"\xd8\x01" +
                                                 bytes(16)),
                     ("ext8", b"\xc7\x01\x05x"), ("timestamp", b"\xd6\xff" +
                                                  bytes(4)),
                     ("never-used", b"\xc1")):
        kbad("type-" + tag, setter("state", "settings", {"x": Raw(raw)}),
             "msgpack type " + tag)
    master = pack("bf16")
    kbad("str8", swap(b"\xa6master" + master, b"\xa6master\xd9\x04bf16"),
         "a str that is not shortest")
    kbad("str16", swap(b"\xa6master" + master, b"\xa6master\xda\0\x04bf16"),
         "a str that is not shortest")
    kbad("str32", swap(b"\xa6master" + master,
                       b"\xa6master\xdb\0\0\0\x04bf16"),
         "a str that is not shortest")
    kbad("key-str8", swap(b"\xa6master", b"\xd9\x06master"),
         "a key that is not shortest")
    long = "x" * 300
    kbad("str32-long", setter("quant", "variant", Raw(
        b"\xdb" + struct.pack(">I", 300) + long.encode())),
         "a str of 300 bytes with a length of 4")
    digest = xxh3_128(ARRAYS[0].data)
    for tag, code in (("bin16", b"\xc5\0\x10"), ("bin32", b"\xc6\0\0\0\x10")):
        kbad(tag, setter("arrays", 0, "xxh3", Raw(code + digest)),
             "a bin that is not shortest")
    for tag, code in (("array16", b"\xdc\0\x02"), ("array32",
                                                   b"\xdd\0\0\0\x02")):
        kbad(tag, setter("arrays", 0, "shape", Raw(code + b"\x04\x09")),
             "an array that is not shortest")
    for tag, code in (("map16", b"\xde\0\0"), ("map32", b"\xdf\0\0\0\0")):
        kbad(tag, setter("state", "settings", Raw(code)),
             "a map that is not shortest")
    kbad("map16-root", lambda h: b"\xde\0\x07" + pack(h)[1:],
         "the header map is not shortest")

    def reorder(h):
        keys = sorted(h)
        keys[1], keys[2] = keys[2], keys[1]
        return Pairs((k, h[k]) for k in keys)
    kbad("keys-unsorted", reorder, "map keys not sorted")

    def reorder_inner(h):
        a = h["arrays"][1]
        h["arrays"][1] = Pairs((k, a[k]) for k in sorted(a, reverse=True))
    kbad("keys-unsorted-array", reorder_inner, "map keys not sorted")
    kbad("keys-unsorted-deep",
         setter("state", "settings", {"z": Pairs([("b", 1), ("a", 2)])}),
         "map keys not sorted, inside settings")
    kbad("keys-length-sorted",
         setter("state", "settings", Pairs([("b", 1), ("aa", 2)])),
         "map keys sorted by length, not by bytes")
    kbad("keys-dup", lambda h: Pairs(sorted(
        list(h.items()) + [("master", "f32")], key=lambda kv: kv[0])),
         "a key twice")
    kbad("keys-dup-deep",
         setter("state", "settings", Pairs([("a", 1), ("a", 2)])),
         "a key twice, inside settings")
    kbad("key-int", setter("state", "settings", Pairs([(1, 2)])),
         "a key that is a number")
    kbad("key-bin", setter("state", "settings", Pairs([(b"a", 2)])),
         "a key that is bin")
    kbad("key-nil", setter("state", "settings", Pairs([(None, 2)])),
         "a key that is nil")
    for tag, raw in (("ff", b"\xff"), ("overlong", b"\xc0\x80"),
                     ("surrogate", b"\xed\xa0\x80"), ("cut", b"\xe2\x82")):
        kbad("str-utf8-" + tag, setter("state", "settings", {"x": Raw(
            pack_raw(raw))}), "a str that is not UTF-8")
    kbad("key-utf8", setter("state", "settings", Pairs([(Raw(
        b"\xa1\xff"), 1)])), "a key that is not UTF-8")
    kbad("config-utf8", setter("config", Raw(pack_raw(b"{\"\xff\":1}"))),
         "config is not UTF-8")
    kbad("deep-40", setter("state", "settings", {"x": Raw(
        b"\x91" * 40 + b"\x90")}), "nested 40 deep")
    kbad("deep-17", setter("state", "settings", {"x": Raw(
        b"\x91" * 16 + b"\x90")}), "nested 20 deep")
    kbad("deep-maps", setter("state", "settings", {"x": Raw(
        b"\x81\xa1x" * 60 + b"\x80")}), "maps nested 60 deep")

    h, _ = base()
    h["state"]["settings"] = {"x": Raw(b"\x91" * 100000 + b"\x90")}
    place_and_write("deep-100000", h, "nested 100000 deep")
    raw = b"\x91" * 1000000
    bad("ckpt-deep-open.ckpt", c.ckpt_seal(raw, [], c.align(64 + len(raw))),
        "1,000,000 open arrays", "off,slow")
    full = struct.pack(">I", 0xFFFFFFFF)
    for tag, raw in (("array", b"\xdd" + full), ("map", b"\xdf" + full),
                     ("str", b"\xdb" + full), ("bin", b"\xc6" + full),
                     ("array-2-31", b"\xdd\x80\0\0\0"),
                     ("map-2-31", b"\xdf\x80\0\0\0")):
        kbad("announced-" + tag, setter("state", "settings", {"x": Raw(raw)}),
             "a %s that announces 2^32-1 (2^31)" % tag)
        kbad("announced-root-" + tag, lambda h, r=raw: r,
             "a header that announces 2^32-1 (2^31)")
    kbad("announced-arrays", setter("arrays", Raw(b"\xdd" + full)),
         "2^32-1 arrays announced")
    kbad("announced-shape", setter("arrays", 0, "shape", Raw(b"\xdd" + full)),
         "2^32-1 dims announced")
    kbad("announced-name", setter("arrays", 0, "name", Raw(b"\xdb" + full)),
         "a name of 2^32-1 bytes announced")


def pack_raw(b):
    """A str of bytes that are no UTF-8."""
    return bytes([0xA0 | len(b)]) + b


def place_and_write(tag, h, what, flags="off", arrays=None):
    """A header too big for one page: offsets made right for it."""
    size = c.ckpt_place(h)
    ts = ARRAYS if arrays is None else arrays
    data = c.ckpt_seal(pack(h), [(a["offset"], t.data) for a, t in
                                 zip(h["arrays"], ts)], size)
    bad("ckpt-%s.ckpt" % tag, data, what, flags)


def make_ckpt_keys():
    for k in sorted(c.HEADER_TYPES):
        kbad("no-" + k, remover(k), "no key %s" % k, "-")
    kbad("unknown-key", setter("extra", 1), "an unknown key", "-")
    kbad("unknown-key-last", setter("zzz", None), "an unknown key", "-")
    for k, v in (("arrays", {}), ("arrays", None), ("arrays", 3),
                 ("config", {}), ("config", None), ("config", b"{}"),
                 ("master", 16), ("master", None), ("moments", []),
                 ("provenance", {}), ("provenance", None), ("quant", "none"),
                 ("quant", None), ("quant", []), ("state", []),
                 ("state", None), ("state", "new")):
        kbad("type-%s-%s" % (k, type(v).__name__.lower()), setter(k, v),
             "%s is a %s" % (k, type(v).__name__), "-")
    for k, v in (("master", "f16"), ("master", ""), ("master", "BF16"),
                 ("moments", "fp8"), ("moments", "")):
        kbad("value-%s-%s" % (k, v or "empty"), setter(k, v),
             "%s %r" % (k, v), "-")
    for k in ("criterion", "name", "share", "variant"):
        kbad("quant-no-" + k, remover("quant", k), "quant without " + k, "-")
        kbad("quant-int-" + k, setter("quant", k, 1),
             "quant: %s is a number" % k, "-")
    kbad("quant-unknown-key", setter("quant", "extra", "x"),
         "an unknown key in quant", "-")
    kbad("state-step-str", setter("state", "step", "0"), "step is a str", "-")
    kbad("state-step-nil", setter("state", "step", None), "step is nil", "-")
    kbad("state-step-negative", setter("state", "step", -1), "step -1", "-")
    kbad("state-step-float", setter("state", "step", 1.0), "step 1.0", "-")
    nan, inf = float("nan"), float("inf")
    sampler = {"data": bytes(16), "epoch": 0, "index": 0}
    for key, tag, value in (
            ("step", "2-32", 1 << 32), ("step", "2-64", M64 - 1), ("t", "1", 1),
            ("t", "2-64", M64 - 1), ("skips", "1", 1), ("skips", "2-64", M64 - 1),
            ("grad_norm", "nan", nan), ("grad_norm", "inf", inf),
            ("grad_norm", "negative", -1.0), ("grad_norm", "int", 1),
            ("routes", "empty", {}), ("routes", "no-word", {"gemm": ""}),
            ("routes", "long", {"gemm": "x" * 96}), ("routes", "nul", {"gemm": "a\0b"}),
            ("routes", "other", {"gemm": 1}), ("routes", "key", {"gem": "x"}),
            ("sampler", "empty", {}), ("sampler", "str", "x"),
            ("sampler", "data", dict(sampler, data=bytes(15))),
            ("sampler", "epoch", dict(sampler, epoch=M64 - 1)),
            ("sampler", "epoch-2-63", dict(sampler, epoch=M63)),
            ("sampler", "epoch-minus", dict(sampler, epoch=-1)),
            ("sampler", "index", dict(sampler, index=M64 - 1)),
            ("sampler", "index-2-63", dict(sampler, index=M63)),
            ("sampler", "more", dict(sampler, x=0)),
            ("spike", "empty", {}),
            ("spike", "uneven", {"loss": [1.0], "norm": []}),
            ("spike", "129", {"loss": 129 * [1.0], "norm": 129 * [1.0]}),
            ("spike", "nan", {"loss": [nan], "norm": [1.0]}),
            ("spike", "inf", {"loss": [1.0], "norm": [inf]}),
            ("spike", "above-f32", {"loss": [1e39], "norm": [1.0]}),
            ("spike", "negative", {"loss": [1.0], "norm": [-1.0]}),
            ("spike", "int", {"loss": [1], "norm": [1.0]}),
            ("tokenizer", "31", bytes(31)), ("tokenizer", "str", "x"),
            ("settings", "nan", {"lr": nan}), ("settings", "negative", {"batch": -1}),
            ("settings", "nil", {"lr": None}), ("settings", "array", {"lr": []})):
        kbad("state-%s-%s" % (key.replace("_", "-"), tag), setter("state", key, value),
             "state: %s %r" % (key, value), "-")
    kbad("state-no-step", remover("state", "step"), "state without step", "-")
    kbad("state-no-t", remover("state", "t"), "state without t", "-")


def make_ckpt_arrays():
    for k in ("dtype", "name", "nbytes", "offset", "shape", "xxh3"):
        kbad("array-no-" + k, remover("arrays", 1, k),
             "an array without " + k, "-")
    kbad("array-unknown-key", setter("arrays", 1, "extra", 1),
         "an unknown key in an array", "-")
    for k, v in (("dtype", 5), ("dtype", None), ("name", 5), ("name", b"b"),
                 ("name", None), ("nbytes", "300"), ("nbytes", None),
                 ("nbytes", 300.0), ("offset", "8192"), ("offset", 8192.0),
                 ("offset", None), ("shape", 150), ("shape", "50,3"),
                 ("shape", {}), ("shape", [50, "3"]), ("shape", [50, 3.0]),
                 ("shape", [50, None]), ("shape", [[50, 3]]),
                 ("xxh3", "0" * 16), ("xxh3", "0" * 32), ("xxh3", None),
                 ("xxh3", 0)):
        tag = type(v).__name__.lower() + (str(len(v)) if isinstance(
            v, (str, list)) else "")
        if isinstance(v, list):
            tag += "-" + type(v[-1]).__name__.lower()
        kbad("array-%s-%s" % (k, tag), setter("arrays", 1, k, v),
             "array: %s is %r" % (k, v), "-")
    kbad("array-nil", setter("arrays", 1, None), "an array entry that is nil",
         "-")
    kbad("array-list", setter("arrays", 1, []), "an array entry that is []",
         "-")
    digest = xxh3_128(ARRAYS[1].data)
    for n in (0, 15, 17):
        kbad("array-hash-%d" % n, setter("arrays", 1, "xxh3",
                                         (digest + b"\0")[:n]),
             "a hash of %d bytes" % n, "-")
    for v in ("f128", "", "BF16", "nvfp4", "bf16 ", "F32", "bf16\0"):
        kbad("array-dtype-%s" % (v.strip().replace("\0", "-nul") or "empty") +
             ("-space" if v.endswith(" ") else ""),
             setter("arrays", 1, "dtype", v), "dtype %r" % v, "-")
    kbad("array-name-empty", setter("arrays", 1, "name", ""),
         "an empty name", "-")
    kbad("array-name-nul", setter("arrays", 1, "name", "a\0b"),
         "a NUL in a name", "-")
    kbad("array-name-utf8", setter("arrays", 1, "name", Raw(b"\xa2a\xff")),
         "a name that is not UTF-8", "-")
    kbad("array-name-dup", setter("arrays", 1, "name", "a"), "a name twice",
         "-")
    h, _ = base()
    h["arrays"][1]["name"] = "n" * 65537
    place_and_write("array-name-64k", h, "a name of 65537 bytes", "-")
    h, _ = base()
    h["arrays"][1]["name"] = "\x1b[2J\r\n\x07\x9b31m\u202e"
    h["arrays"][1]["dtype"] = "\x1b[31m\n"
    place_and_write("array-esc", h, "a name and a dtype full of controls",
                    "-")
    h, _ = base()
    h["arrays"][1]["name"] = "層" * 21000
    h["arrays"][1]["nbytes"] = 299
    place_and_write("array-long-name", h,
                    "a wrong size under a name of 63000 bytes", "num")

    def resize(shape, nbytes, tag, what, dtype="bf16", flags="-"):
        def change(h):
            h["arrays"][1].update(shape=shape, nbytes=nbytes, dtype=dtype)
        kbad("array-" + tag, change, what, flags)
    resize([1] * 65 + [150], 300, "rank-66", "rank 66")
    resize([-50, -3], 300, "shape-negative", "negative dims")
    resize([M63], 300, "dim-2-63", "a dimension of 2^63")
    resize([M64 - 1], 300, "dim-2-64", "a dimension of 2^64-1")
    resize([1 << 32, 1 << 32], 0, "shape-wrap-0", "product of dims is 2^64")
    resize([M63 + 75, 2], 300, "shape-wrap-150", "a dimension above 2^63")
    resize([(1 << 62) + 75, 2], 300, "shape-over", "product of dims 2^63+150")
    resize([1 << 62], 0, "bytes-over", "payload of 2^63 bytes")
    resize([(1 << 61) + 1], 8, "bytes-wrap", "payload wraps to 8 bytes",
           "f64")
    resize([0, 1 << 62, 1 << 62], 0, "zero-over",
           "non-zero dims overflow behind a zero")
    resize([1 << 40], 1 << 41, "huge", "a payload of 2 TiB", flags="num")
    for tag, v in (("plus-1", 301), ("minus-1", 299), ("zero", 0),
                   ("negative", -300), ("elements", 150), ("2-62", 1 << 62),
                   ("2-63", M63)):
        kbad("array-nbytes-" + tag, setter("arrays", 1, "nbytes", v),
             "nbytes %d, not 300" % v, "num")
    for tag, v in (("page-more", 12288), ("page-less", 4096), ("zero", 0),
                   ("plus-1", 8193), ("header", 64), ("negative", -8192),
                   ("2-62", 1 << 62), ("2-63", M63), ("wrap", M64 - 4096)):
        kbad("array-offset-" + tag, setter("arrays", 1, "offset", v),
             "offset %d, not 8192" % v, "num")
    kbad("array-offset-first", setter("arrays", 0, "offset", 8192),
         "the first array is not at the first page", "num")

    def overlap(h):
        h["arrays"][1]["offset"] = h["arrays"][0]["offset"]
    kbad("array-overlap", overlap, "two arrays on the same bytes", "num")

    def swap(h):
        a = h["arrays"]
        a[0], a[1] = a[1], a[0]
    kbad("array-order", swap, "arrays not in the order of their offsets",
         "num")
    kbad("array-fewer", remover("arrays", 2),
         "an array less: its page is nobody's", "-")
    kbad("array-none", setter("arrays", []), "no arrays, but pages", "-")

    # An array moved a page further, data and sizes with it.
    h, size = base()
    for a in h["arrays"][1:]:
        a["offset"] += 4096
    bad("ckpt-array-gap-page.ckpt", c.ckpt_seal(pack(h), body(h),
                                                size + 4096),
        "an empty page between two arrays", "num")
    # Arrays behind the header without the step to the next page.
    h, size = base()
    for a, t in zip(h["arrays"], ARRAYS):
        a["offset"] -= 4096 - 2048
    bad("ckpt-array-unaligned.ckpt", c.ckpt_seal(pack(h), body(h), size),
        "arrays at half pages", "num")
    # An empty array may not point elsewhere.
    ts = [ARRAYS[0], Tensor("e", "u8", (0,), b""), ARRAYS[1]]
    h = c.ckpt_header(ts, "{}")
    size = c.ckpt_place(h)
    where = [(a["offset"], t.data) for a, t in zip(h["arrays"], ts)]
    h["arrays"][1]["offset"] = 1 << 40
    bad("ckpt-array-empty-offset.ckpt", c.ckpt_seal(pack(h), where, size),
        "an array without bytes beyond the file", "num")
    many = [Tensor("t%05d" % k, "u8", (0,), b"") for k in range(20000)]
    h = c.ckpt_header(many, "{}")
    h["arrays"][-1]["name"] = "t00000"
    place_and_write("many-dup", h, "20000 arrays, the last name is the first",
                    "slow", many)
    # 8 GiB of arrays, the last one's offset wrong: no payload is needed.
    big = 1 << 32
    h = c.ckpt_header(ARRAYS, "{}")
    h["arrays"][0].update(shape=[big], dtype="u8", nbytes=big)
    h["arrays"][1].update(shape=[big], dtype="u8", nbytes=big)
    size = c.ckpt_place(h)
    h["arrays"][2]["offset"] += 4096
    sparse("ckpt-sparse-offset.ckpt", [(0, c.ckpt_seal(
        pack(h), [], 4096, file_bytes=size))], size)
    bad("ckpt-sparse-offset.ckpt", None, "8 GiB, the last offset wrong",
        "num,slow")


def make_damaged():
    h, size = base()
    good = seal(h)
    first = h["arrays"][0]["offset"]
    n = len(pack(h))

    def flip(tag, pos, bit, what):
        b = bytearray(good)
        b[pos] ^= 1 << bit
        damaged("damaged-%s.ckpt" % tag, bytes(b), what)
    flip("array-first", first, 0, "first bit of an array")
    flip("array-last", h["arrays"][2]["offset"] + 9, 7,
         "last bit of the last array")
    flip("gap-header", 64 + n, 0, "a bit right behind the header")
    flip("gap-header-end", first - 1, 7, "the last bit before the arrays")
    flip("gap-array", first + 144, 3, "a bit right behind an array")
    flip("gap-array-end", h["arrays"][1]["offset"] - 1, 0,
         "the last byte before an array")
    flip("gap-end", size - 1, 7, "the last bit of the file")
    b = bytearray(good)
    b[first:first + 4096], b[first + 4096:first + 8192] = \
        b[first + 4096:first + 8192], b[first:first + 4096]
    damaged("damaged-swapped.ckpt", bytes(b), "two pages swapped")
    b = bytearray(good)
    b[first:first + 4096] = bytes(4096)
    damaged("damaged-zeroed.ckpt", bytes(b), "a page of zeros")
    h2, _ = base()
    h2["arrays"][1]["xxh3"] = bytes(16)
    damaged("damaged-hash.ckpt", seal(h2), "an array's hash is wrong")
    # .dat: only its sidecar can tell.
    ts = [Tensor("a", "f16", (4,), b"abcdefgh"), Tensor("b", "u8", (3,), b"xyz")]
    data = c.dat_bytes(ts)
    side = c.sidecar_bytes(data, c.dat_index(ts), None, {
        "inputs": [], "options": {}, "tool": "mkbad.py", "version": "0"})
    b = bytearray(data)
    b[-1] ^= 1
    damaged("damaged-sidecar.dat", bytes(b),
            "a payload bit; the sidecar's xxh3 does not fit")
    put("damaged-sidecar.dat.json", side)
    damaged("damaged-sidecar-hash.dat", data, "the sidecar's xxh3 is wrong")
    o = json.loads(side)
    o["xxh3"] = "0" * 32
    put("damaged-sidecar-hash.dat.json",
        json.dumps(o, separators=(",", ":")).encode())
    # Stale sidecars count as absent.
    for tag, k, v in (("bytes", "bytes", len(data) + 1),
                      ("index", "index_xxh3", "0" * 32)):
        o = json.loads(side)
        o[k] = v
        odd("odd-stale-%s.dat" % tag, data,
            "a sidecar whose %s does not fit" % k, "stale")
        put("odd-stale-%s.dat.json" % tag,
            json.dumps(o, separators=(",", ":")).encode())


# ---- headers as large as they may be ------------------------------------------

# Bytes of a safetensors header, and of the entry headers of a .dat.
MAX_HEADER = 100000000
MAX_ENTRIES = 1 << 20


LETTERS = [chr(i) for i in range(35, 92)]
SHORT = [a + b + c + d for a in LETTERS[:13] for b in LETTERS
         for c in LETTERS for d in LETTERS]     # 2.4 million names


def make_big_dat():
    def entries(n, form):
        return b"".join([form % k for k in range(n)])
    many = entries(MAX_ENTRIES, b"\x06%06x\0\1\0")
    bad("big-many.dat", uleb(MAX_ENTRIES) + many + b"\0",
        "as many entries as there may be, then a byte", "off,slow")
    bad("big-many-dup.dat", uleb(MAX_ENTRIES) + many[:-10] + many[:10],
        "as many entries as there may be, the last name is the first one's",
        "off,slow")
    bad("big-too-many.dat", uleb(2 * MAX_ENTRIES) + many + many,
        "two million entries", "num,slow")
    long = b"\x80\x80\4%06d" + b"n" * 65530 + b"\0\1\0"
    bad("big-names.dat", uleb(1520) + entries(1520, long) + b"\0",
        "names of 64 KiB in 100 MB, then a byte", "off,slow")
    bad("big-headers.dat", uleb(1530) + entries(1530, long),
        "headers of more than 100,000,000 bytes", "off,slow")
    deep = entries(700000, b"\x06%06x\0\x40" + b"\1" * 64 + b"\0")
    bad("big-rank.dat", uleb(700000) + deep + b"\0",
        "700,000 tensors of rank 64, then a byte", "off,slow")


def make_big_st():
    import random
    rng = random.Random(21)
    few = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    form = '"%s":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}'
    many = [form % (k, 0, 0, 0) for k in SHORT[:MAX_HEADER // 55]]
    sbad("big-many", "{%s}" % ",".join(many),
         "1.8 million empty tensors, then a byte", "off,slow", data=b"x")
    many[-1] = many[1234]
    sbad("big-many-dup", "{%s}" % ",".join(many),
         "1.8 million empty tensors, the last name is another's", "off,slow",
         data=b"")
    many = [form % (k, 1, i, i + 1)
            for i, k in enumerate(SHORT[:MAX_HEADER // 67])]
    rng.shuffle(many)
    sbad("big-shuffled", "{%s}" % ",".join(many),
         "1.5 million tensors in any order, then a byte", "off,slow",
         data=bytes(len(many) + 1))
    del many
    value = "v" * (MAX_HEADER - 1000)
    meta = '{"__metadata__":{%s},' + few + "}"
    sbad("big-escapes", meta % ('"k":"%s"' % ("\\n" * (len(value) // 2))),
         "100 MB of escapes, then a byte", "off,slow", data=b"xy")
    sbad("big-key", meta % ('"%s":""' % value), "a key of 100 MB", "off,slow",
         data=b"x")
    sbad("big-keys", meta % ",".join(['"%s":""' % k for k in SHORT]),
         "2.4 million keys of metadata", "off,slow", data=b"x")
    sbad("big-name", '{"%s":{}}' % value, "a name of 100 MB", "off,slow",
         data=b"")
    sbad("big-digits", '{"a":{"dtype":"U8","shape":[%s]}}' %
         ("1" * len(value)), "a number of 100 MB", "off,slow", data=b"")
    sbad("big-first", '{"a":{"dtype":"U9"},%s}' % (" " * len(value)),
         "a bad record before 100 MB", "off,slow", data=b"x")
    odd("big-odd-value.safetensors",
        st(meta % ('"k":"%s"' % value), data=b"x"),
        "metadata of 100 MB: legal")
    odd("big-odd-padding.safetensors",
        st("{%s}%s" % (few, " " * len(value)), data=b"x"),
        "padding of 100 MB: legal")


def make_big_idx():
    """400,000 tensors in one shard, one more or other in the index."""
    names = SHORT[:400000]
    shard_file = st("{%s}" % ",".join(
        ['"%s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % k
         for k in names]), data=b"")

    def big(tag, what, listed):
        raw = '{"weight_map":{%s}}' % ",".join(
            ['"%s":"x.safetensors"' % k for k in listed])
        idx(tag, what, "slow", raw=raw, files={"x.safetensors": shard_file})
    big("big-missing", "one of 400,000 is not in its shard", names + ["zz"])
    big("big-unlisted", "one of 400,000 is not listed", names[:-1])
    big("big-other", "one of 400,000 has another name", names[:-1] + ["zz"])
    big("big-twice", "one of 400,000 is listed twice", names + names[:1])
    big("big-too-many", "more than a million are listed", SHORT[:1200000])
    idx("big-shards", "a shard for each of 400,000", "slow",
        raw='{"weight_map":{%s}}' % ",".join(
            ['"%s":"%x"' % (k, i) for i, k in enumerate(names)]))


def make_big_ckpt():
    """Headers as large as they may be, whose hashes are right."""
    def big(tag, what, arrays, provenance):
        def build(start):
            many = b"".join([
                b"\x86\xa5dtype\xa2u8\xa4name\xa6%06x\xa6nbytes\0\xa6offset%s"
                b"\xa5shape\x91\0\xa4xxh3\xc4\x10%s" % (
                    k, c.pack(start), bytes(16)) for k in range(arrays)])
            head = (b"\x87\xa6arrays" + (
                b"\xdd" + struct.pack(">I", arrays) if arrays else b"\x90"))
            rest = [c.pack(v) for v in (
                "config", "", "master", "f32", "moments", "f32", "provenance",
                provenance, "quant", {k: v[0] for k, v in c.QUANT_WORDS.items()},
                "state", c.STATE_NEW)]
            return head + many + b"".join(rest)[:-1] + b"\xc1"
        raw = build(c.MAX_HEADER)       # as long as with the right number
        start = c.align(64 + len(raw))
        raw = build(start)
        assert c.MAX_HEADER - 100000 < len(raw) <= c.MAX_HEADER, len(raw)
        assert start == c.align(64 + len(raw)) and start > 65535
        bad("big-%s.ckpt" % tag, c.ckpt_seal(raw, [], start), what, "off,slow")
    n = c.MAX_HEADER // 73 - 900
    big("arrays", "%d empty arrays in 16 MiB, then a wrong byte" % n, n, "")
    big("json", "a JSON text of 16 MiB, then a wrong byte", 0,
        '{"a":[%s]}' % ",".join("0" * ((c.MAX_HEADER - 90000) // 2)))
    big("keys", "a million keys in 16 MiB, then a wrong byte", 0,
        '{%s}' % ",".join(['"\\u0061%05x":0' % k for k in range(1043000)]))


def make_big_gguf():
    extra = bytes(33)       # behind the data, more than padding

    def big(tag, what, pairs=(), infos=(), **kw):
        gbad("big-" + tag, what, "off,slow", pairs=pairs, infos=infos,
             data=extra, **kw)
    token = g.string("v" * 92)
    array = (g.string("t") + struct.pack("<IIQ", g.ARRAY, g.STRING, 1000000) +
             token * 1000000)
    big("tokens", "an array of a million strings, then bytes", [array])
    big("value", "a string of 100 MB, then bytes",
        [g.pair("t", g.STRING, "v" * MAX_HEADER)])
    n = 1 << 16
    big("pairs", "as many pairs as there may be, then bytes",
        [g.pair("%06d" % k, g.U32, k) for k in range(n)])
    bad("gguf-big-pairs-more.gguf", gguf_file(
        [g.pair("%06d" % k, g.U32, k) for k in range(n + 1)]),
        "one pair more than there may be", "num,slow")
    big("keys", "keys of 64 KiB in 100 MB",
        [g.pair("%06d" % k + "k" * 65000, g.U32, k) for k in range(1500)])
    big("texts", "texts of 64 KiB in 100 MB",
        [g.pair("%06d" % k, g.STRING, "k" * 65000) for k in range(1500)])
    infos = [g.info("%060d" % k, (0,), 24, 0) for k in range(n)]
    big("infos", "as many tensors as there may be, then bytes", (), infos)
    bad("gguf-big-infos-more.gguf", gguf_file((), infos + [g.info("x", (0,), 24, 0)]),
        "one tensor more than there may be", "num,slow")
    big("names", "names of 60 KB in 100 MB", (),
        [g.info("%060000d" % k, (0,), 24, 0) for k in range(1600)])
    big("ranks", "tensors of rank 64", (),
        [g.info("%d" % k, (0,) * 64, 24, 0) for k in range(50000)])


def write_list(name, rows):
    paths = [r[0] for r in rows]
    assert len(set(paths)) == len(paths), "a class twice: %s" % [
        p for p in paths if paths.count(p) > 1]
    with open(at(name), "w", encoding="utf-8") as f:
        for row in rows:
            f.write("\t".join(x.replace("\t", " ").replace("\n", " ")
                              for x in row) + "\n")


def main(argv):
    global OUT
    big = argv[:1] == ["--big"]
    if len(argv) != 1 + big:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    OUT = argv[-1]
    os.makedirs(OUT, exist_ok=True)
    for make in (make_big_dat, make_big_st, make_big_idx, make_big_ckpt,
                 make_big_gguf) if big else (
            make_dat, make_dat_odd, make_st_frame, make_st_json,
            make_st_fields, make_st_layout, make_gguf_head, make_gguf_pairs,
            make_gguf_infos, make_gguf_odd, make_idx, make_ckpt_prologue,
            make_ckpt_msgpack, make_ckpt_keys, make_ckpt_arrays,
            make_damaged):
        make()
    write_list("MANIFEST", MANIFEST)
    write_list("DAMAGED", DAMAGED)
    write_list("ODD", ODD)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
