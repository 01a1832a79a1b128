#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Independent writer and strict reader of the containers that nibble uses:
.dat with its sidecar, safetensors (one file, shards, a directory) and .ckpt.

Written from doc/FORMAT.md and the format rules alone, standard library only,
never from the programs: the oracle of tests/*.bats.  Stricter than a reader
for users has to be, since it judges what our writers wrote (a non-minimal
LEB128, say, is an error here).

usage: containers.py read FILE...          name TAB dtype TAB shape TAB nbytes
                                           TAB sha256 of the payload, a tensor
                                           a line, in file order
       containers.py list FILE...          the same with the payload's offset
                                           in place of the hash; reads none
       containers.py header FILE.ckpt      its header without arrays, as JSON
       containers.py forge FILE.ckpt OUT.ckpt NAME COPY
                                           the same file with one array more,
                                           NAME, of the bytes of array COPY,
                                           and with right sizes and hashes
       containers.py make KIND OUT [SEED]  a small valid sample (see KINDS)
       containers.py kinds
       containers.py --self-test
"""
import hashlib
import json
import math
import mmap
import os
import struct
import sys

sys.dont_write_bytecode = True      # no __pycache__ in the tree

from xxh3 import xxh3_128, self_test as xxh3_self_test

# datcat's name, code in a .dat, name in safetensors, bits an element.
DTYPES = [
    ("u8", 0, "U8", 8), ("i8", 1, "I8", 8), ("i16", 2, "I16", 16),
    ("i32", 3, "I32", 32), ("i64", 4, "I64", 64), ("f16", 5, "F16", 16),
    ("f32", 6, "F32", 32), ("f64", 7, "F64", 64), ("c64", 9, "C64", 64),
    ("c128", 10, None, 128), ("bool", 11, "BOOL", 8),
    ("bf16", 15, "BF16", 16), ("f4_e2m1", 100, "F4", 4),
    ("f8_e4m3", 101, "F8_E4M3", 8), ("f8_e5m2", None, "F8_E5M2", 8),
    ("u16", None, "U16", 16), ("u32", None, "U32", 32),
    ("u64", None, "U64", 64),
    # Legal in safetensors, but cli.md has no name for them.
    ("f6_e2m3", None, "F6_E2M3", 6), ("f6_e3m2", None, "F6_E3M2", 6),
    ("f8_e8m0", None, "F8_E8M0", 8),
    ("f8_e4m3fnuz", None, "F8_E4M3FNUZ", 8),
    ("f8_e5m2fnuz", None, "F8_E5M2FNUZ", 8),
]
BITS = {n: b for n, _, _, b in DTYPES}
DAT_CODE = {n: c for n, c, _, _ in DTYPES if c is not None}
DAT_NAME = {c: n for n, c in DAT_CODE.items()}
ST_DTYPE = {n: s for n, _, s, _ in DTYPES if s}
ST_NAME = {s: n for n, s in ST_DTYPE.items()}
CKPT_DTYPES = [n for n, _, _, _ in DTYPES[:18] if n != "f4_e2m1"]
MAX63 = (1 << 63) - 1
MAX_NAME = 65536


class Bad(Exception):
    """The file breaks a rule; the text says which, and where."""


class Soft(Bad):
    """What our writers promise, but no reader has to refuse."""


def need(cond, *what):
    if not cond:
        raise Bad(what[0] % what[1:] if len(what) > 1 else what[0])


class Tensor:
    """One entry.  data is bytes, or None where only its place is known."""

    def __init__(self, name, dtype, shape, data=None, offset=None, file=None):
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.data, self.offset, self.file = data, offset, file

    def nbytes(self, packed=False):
        return payload_bytes(self.dtype, self.shape, packed)


def numel(shape):
    """Product of dims.  Bad when it does not fit 63 bits, zeros left out."""
    n, nonzero = 1, 1
    for d in shape:
        need(0 <= d <= MAX63, "dimension %d", d)
        n *= d
        nonzero *= d or 1
        need(nonzero <= MAX63, "shape %s overflows", list(shape))
    return n


def payload_bytes(dtype, shape, packed=False):
    """packed: f4_e2m1 as in a .dat, whose dims count bytes."""
    n = numel(shape)
    bits = 8 if packed and dtype == "f4_e2m1" else BITS[dtype]
    need(n * bits % 8 == 0, "%d elements of %d bits are no whole bytes", n,
         bits)
    need(n * bits // 8 <= MAX63, "shape %s overflows", list(shape))
    return n * bits // 8


def check_name(raw):
    need(1 <= len(raw) <= MAX_NAME, "name of %d bytes", len(raw))
    need(b"\0" not in raw, "name %r holds a NUL", raw)
    try:
        return bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise Bad("name %r is not UTF-8" % bytes(raw))


def map_file(path):
    size = os.stat(path).st_size
    if size == 0:
        return b""
    with open(path, "rb") as f:
        return mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)


def sha256_at(m, offset, n):
    h = hashlib.sha256()
    for i in range(offset, offset + n, 1 << 20):
        h.update(m[i:min(i + (1 << 20), offset + n)])
    return h.hexdigest()


# ---- JSON -------------------------------------------------------------------

def no_duplicates(pairs):
    out = {}
    for k, v in pairs:
        need(k not in out, "JSON: key %r twice", k)
        out[k] = v
    return out


def refuse(text):
    raise Bad("JSON: %s is not allowed here" % text)


def natural(text):
    if text[0] == "-":
        refuse(text)
    return int(text)


def json_strict(text, floats=False):
    """UTF-8 bytes to a value: no duplicate keys, no NaN, no lone surrogate;
    floats only where they are asked for."""
    try:
        v = json.loads(bytes(text).decode("utf-8"), parse_constant=refuse,
                       object_pairs_hook=no_duplicates,
                       parse_float=float if floats else refuse,
                       parse_int=int if floats else natural)
        json.dumps(v, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as e:
        raise Bad("JSON: %s" % e)
    return v


# ---- .dat -------------------------------------------------------------------

def uleb(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def dat_header(name, dtype, shape):
    raw = name if isinstance(name, bytes) else name.encode("utf-8")
    code = dtype if isinstance(dtype, int) else DAT_CODE[dtype]
    return (uleb(len(raw)) + raw + uleb(code) + uleb(len(shape)) +
            b"".join(uleb(d) for d in shape))


def dat_bytes(tensors):
    out = bytearray(uleb(len(tensors)))
    for t in tensors:
        need(len(t.data) == t.nbytes(True), "%s: payload size", t.name)
        out += dat_header(t.name, t.dtype, t.shape) + t.data
    return bytes(out)


class Cursor:
    def __init__(self, m):
        self.m, self.pos, self.size = m, 0, len(m)

    def take(self, n, what):
        need(n <= self.size - self.pos, "byte %d: %s needs %d bytes, %d left",
             self.pos, what, n, self.size - self.pos)
        b = self.m[self.pos:self.pos + n]
        self.pos += n
        return b

    def uleb(self, what):
        start, v, shift = self.pos, 0, 0
        while True:
            b = self.take(1, what)[0]
            v |= (b & 0x7F) << shift
            shift += 7
            if b < 0x80:
                break
            need(shift < 70, "byte %d: %s longer than 10 bytes", start, what)
        need(v <= MAX63, "byte %d: %s is %d", start, what, v)
        need(self.pos - start == 1 or b, "byte %d: %s is not minimal", start,
             what)
        return v


def read_dat(path, hashes=True):
    m = map_file(path)
    c = Cursor(m)
    need(c.size, "empty file")
    n = c.uleb("entry count")
    need(n <= (c.size - c.pos) // 5, "%d entries in %d bytes", n, c.size)
    index = bytearray(m[:c.pos])
    out, seen = [], set()
    for _ in range(n):
        start = c.pos
        name = check_name(c.take(c.uleb("name length"), "name"))
        need(name not in seen, "byte %d: %r occurs twice", start, name)
        seen.add(name)
        code = c.uleb("dtype")
        need(code in DAT_NAME, "byte %d: dtype %d", start, code)
        rank = c.uleb("rank")
        need(rank <= 64, "byte %d: rank %d", start, rank)
        shape = [c.uleb("dimension") for _ in range(rank)]
        t = Tensor(name, DAT_NAME[code], shape, None, c.pos)
        index += m[start:c.pos]
        need(t.nbytes(True) <= c.size - c.pos,
             "byte %d: payload of %r needs %d bytes, %d left", c.pos, name,
             t.nbytes(True), c.size - c.pos)
        c.pos += t.nbytes(True)
        out.append(t)
    need(c.pos == c.size, "byte %d: %d bytes after the last entry", c.pos,
         c.size - c.pos)
    if hashes and os.path.exists(path + ".json"):
        check_sidecar(path + ".json", m, bytes(index))
    return m, out


# ---- sidecar ----------------------------------------------------------------

def sidecar_bytes(data, index, config=None, provenance=None):
    return (json.dumps({
        "format": "nibble-1", "bytes": len(data),
        "index_xxh3": xxh3_128(index).hex(), "xxh3": xxh3_128(data).hex(),
        "config": config, "provenance": provenance or {},
    }, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def dat_index(tensors):
    return uleb(len(tensors)) + b"".join(
        dat_header(t.name, t.dtype, t.shape) for t in tensors)


def check_provenance(p):
    need(isinstance(p, dict), "provenance: want an object")
    need(list(p) == ["inputs", "options", "tool", "version"],
         "provenance: keys %s", list(p))
    need(isinstance(p["options"], dict), "provenance: options")
    for k in ("tool", "version"):
        need(isinstance(p[k], str) and p[k], "provenance: %s", k)
    need(isinstance(p["inputs"], list), "provenance: inputs")
    for i in p["inputs"]:
        need(list(i) == ["kind", "provenance", "xxh3"],
             "provenance: input keys %s", list(i))
        need(isinstance(i["kind"], str), "provenance: kind")
        need(is_hex128(i["xxh3"]), "provenance: xxh3 %r", i["xxh3"])
        if i["provenance"] is not None:
            check_provenance(i["provenance"])


def is_hex128(s):
    return (isinstance(s, str) and len(s) == 32 and
            not set(s) - set("0123456789abcdef"))


def check_sidecar(path, m, index):
    """Our own sidecar, byte rules included."""
    raw = map_file(path)
    need(raw[-1:] == b"\n", "sidecar: no last newline")
    o = json_strict(raw, floats=True)
    need(isinstance(o, dict) and list(o) == [
        "format", "bytes", "index_xxh3", "xxh3", "config", "provenance"],
        "sidecar: keys %s", list(o))
    need(o["format"] == "nibble-1", "sidecar: format %r", o["format"])
    need(o["bytes"] == len(m), "sidecar: bytes %r, the file has %d",
         o["bytes"], len(m))
    need(o["index_xxh3"] == xxh3_128(index).hex(), "sidecar: index_xxh3")
    need(o["xxh3"] == xxh3_128(m).hex(), "sidecar: xxh3")
    check_config(o["config"])
    check_provenance(o["provenance"])


def check_config(c):
    """An object, or its text, or null."""
    if isinstance(c, str):
        c = json_strict(c.encode(), floats=True)
    need(c is None or isinstance(c, dict), "config: want an object or null")


# ---- safetensors ------------------------------------------------------------

def st_header(tensors, metadata=None):
    """Header object for tensors in this order, and the data's size."""
    head, pos = {}, 0
    if metadata is not None:
        head["__metadata__"] = metadata
    for t in tensors:
        end = pos + t.nbytes()
        head[t.name] = {"dtype": ST_DTYPE[t.dtype], "shape": list(t.shape),
                        "data_offsets": [pos, end]}
        pos = end
    return head, pos


def st_pack(header, data):
    """header: bytes as they are, or an object (then padded to 8)."""
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":"),
                            ensure_ascii=False).encode("utf-8")
        header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def st_bytes(tensors, metadata=None):
    for t in tensors:
        need(len(t.data) == t.nbytes(), "%s: payload size", t.name)
    head, _ = st_header(tensors, metadata)
    return st_pack(head, b"".join(t.data for t in tensors))


def is_int(v):
    return isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= MAX63


def read_safetensors(path, ours=False):
    """ours: check also what only our writer promises."""
    m = map_file(path)
    need(len(m) >= 8, "%d bytes", len(m))
    n = struct.unpack("<Q", m[:8])[0]
    need(n <= 100000000 and 8 + n <= len(m), "header of %d bytes", n)
    text = m[8:8 + n]
    need(text[:1] == b"{", "header does not begin with {")
    head = json_strict(text)
    need(isinstance(head, dict), "header is no object")
    meta = head.pop("__metadata__", {})
    need(isinstance(meta, dict) and
         all(isinstance(v, str) for v in meta.values()), "__metadata__")
    out = []
    for name, t in head.items():
        need(isinstance(t, dict) and
             sorted(t) == ["data_offsets", "dtype", "shape"],
             "%r: keys %s", name, t)
        need(isinstance(t["dtype"], str) and t["dtype"] in ST_NAME,
             "%r: dtype %r", name, t["dtype"])
        need(isinstance(t["shape"], list) and all(map(is_int, t["shape"])),
             "%r: shape %r", name, t["shape"])
        o = t["data_offsets"]
        need(isinstance(o, list) and len(o) == 2 and all(map(is_int, o)) and
             o[0] <= o[1], "%r: data_offsets %r", name, o)
        x = Tensor(name, ST_NAME[t["dtype"]], t["shape"], None, 8 + n + o[0])
        need(x.nbytes() == o[1] - o[0], "%r: %d bytes, its shape needs %d",
             name, o[1] - o[0], x.nbytes())
        out.append(x)
    in_header_order = list(out)
    out.sort(key=lambda x: (x.offset, x.offset + x.nbytes()))
    pos = 8 + n
    for x in out:
        need(x.offset == pos, "byte %d: %r begins at %d", pos, x.name,
             x.offset)
        pos += x.nbytes()
    need(pos == len(m), "data ends at byte %d, the file has %d", pos, len(m))
    if ours:
        keys = [(-max(1, BITS[x.dtype] // 8), x.name.encode()) for x in in_header_order]
        need(keys == sorted(keys), "header is not sorted by width and name")
        for x in out:
            need(x.offset % max(1, BITS[x.dtype] // 8) == 0, "%r begins at %d", x.name,
                 x.offset)
        need([x.name for x in out] == [x.name for x in in_header_order] or
             any(x.nbytes() == 0 for x in out), "data is not in header order")
        need(n % 8 == 0, "header of %d bytes, not a multiple of 8", n)
        need(meta.get("format") == "pt", "__metadata__ without format")
        # In a directory nibble.json may stand for the key of every shard.
        if "nibble" in meta or not os.path.exists(os.path.join(
                os.path.dirname(path), "nibble.json")):
            need("nibble" in meta, "__metadata__ without nibble")
            check_nibble(meta["nibble"].encode())
        out = in_header_order
    return m, out


def check_nibble(text, directory=None):
    o = json_strict(text, floats=True)
    keys = ["format", "config", "provenance"]
    if directory is not None:
        keys.insert(1, "files")
        need(o.get("files") == sorted(os.listdir(directory)), "nibble: files %s",
             o.get("files"))
    need(list(o) == keys, "nibble: keys %s", list(o))
    need(o["format"] == "nibble-1", "nibble: format %r", o["format"])
    check_config(o["config"])
    check_provenance(o["provenance"])


def read_dir(path):
    """A model directory: shards by name, the index checked both ways."""
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        m, out = read_safetensors(os.path.join(path, "model.safetensors"))
        for t in out:
            t.file = m
        return out
    with open(index, "rb") as f:
        o = json_strict(f.read(), floats=True)
    where = o.get("weight_map") if isinstance(o, dict) else None
    need(isinstance(where, dict) and
         all(isinstance(v, str) for v in where.values()), "weight_map")
    out, total = [], 0
    for shard in sorted(set(where.values())):
        need("/" not in shard and ".." not in shard and "\0" not in shard and
             os.path.isfile(os.path.join(path, shard)), "shard %r", shard)
        m, ts = read_safetensors(os.path.join(path, shard))
        for t in ts:
            need(where.get(t.name) == shard, "%r in %s, listed in %s", t.name,
                 shard, where.get(t.name))
            t.file = m
            total += t.nbytes()
        out += ts
    need(len(out) == len(where), "%d tensors, %d listed", len(out), len(where))
    need(o["metadata"]["total_size"] == total, "total_size %r, not %d",
         o["metadata"]["total_size"], total)
    return out


# ---- msgpack, canonical -----------------------------------------------------

class Raw(bytes):
    """Bytes that pack() copies as they are: for files that must be bad."""


class Pairs(list):
    """A map in the order given, duplicates and all: the same use."""


def pack_len(n, fix, fixmax, *codes):
    """codes: (code, struct letter), shortest first."""
    if n <= fixmax:
        return bytes([fix | n])
    for code, letter in codes:
        if n < 1 << 8 * struct.calcsize(letter):
            return bytes([code]) + struct.pack(">" + letter, n)
    raise ValueError(n)


def pack_int(v):
    if v >= 0:
        return pack_len(v, 0, 0x7F, (0xCC, "B"), (0xCD, "H"), (0xCE, "I"),
                        (0xCF, "Q"))
    if v >= -32:
        return struct.pack("b", v)
    for code, letter, low in ((0xD0, "b", -1 << 7), (0xD1, "h", -1 << 15),
                              (0xD2, "i", -1 << 31), (0xD3, "q", -1 << 63)):
        if v >= low:
            return bytes([code]) + struct.pack(">" + letter, v)
    raise ValueError(v)


def pack_str(s):
    b = s.encode("utf-8")
    return pack_len(len(b), 0xA0, 31, (0xD9, "B"), (0xDA, "H"),
                    (0xDB, "I")) + b


def pack_bin(b):
    return pack_len(len(b), 0, -1, (0xC4, "B"), (0xC5, "H"), (0xC6, "I")) + b


def pack_map(pairs):
    return pack_len(len(pairs), 0x80, 15, (0xDE, "H"), (0xDF, "I")) + b"".join(
        pack(k) + pack(v) for k, v in pairs)


def pack(v):
    if isinstance(v, Raw):
        return bytes(v)
    if v is None:
        return b"\xc0"
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if isinstance(v, int):
        return pack_int(v)
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, str):
        return pack_str(v)
    if isinstance(v, bytes):
        return pack_bin(v)
    if isinstance(v, Pairs):
        return pack_map(v)
    if isinstance(v, dict):
        return pack_map(sorted(v.items(), key=lambda kv: kv[0].encode()))
    if isinstance(v, (list, tuple)):
        return pack_len(len(v), 0x90, 15, (0xDC, "H"), (0xDD, "I")) + b"".join(
            map(pack, v))
    raise TypeError(type(v))


MSGPACK_INTS = {0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q",
                0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q", 0xCB: "d"}
MSGPACK_LENS = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xD9: "B", 0xDA: "H",
                0xDB: "I", 0xDC: "H", 0xDD: "I", 0xDE: "H", 0xDF: "I"}


def unpack_value(c, depth):
    start = c.pos
    b = c.take(1, "msgpack value")[0]
    if b < 0x80:
        return b
    if b >= 0xE0:
        return b - 256
    if b in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[b]
    if b in MSGPACK_INTS:
        letter = ">" + MSGPACK_INTS[b]
        return struct.unpack(letter, c.take(struct.calcsize(letter), "number"))[0]
    if b in MSGPACK_LENS:
        letter = ">" + MSGPACK_LENS[b]
        n = struct.unpack(letter, c.take(struct.calcsize(letter), "length"))[0]
    else:
        n = b & (0x1F if 0xA0 <= b < 0xC0 else 0x0F)
    if 0xC4 <= b <= 0xC6:
        return bytes(c.take(n, "bin"))
    if 0xA0 <= b < 0xC0 or 0xD9 <= b <= 0xDB:
        try:
            return bytes(c.take(n, "str")).decode("utf-8")
        except UnicodeDecodeError:
            raise Bad("byte %d: str is not UTF-8" % start)
    need(depth < 16, "byte %d: nested deeper than 16", start)
    if 0x90 <= b < 0xA0 or b in (0xDC, 0xDD):
        return [unpack_value(c, depth + 1) for _ in range(n)]
    need(0x80 <= b < 0x90 or b in (0xDE, 0xDF), "byte %d: msgpack type %02x",
         start, b)
    out = {}
    for _ in range(n):
        k = unpack_value(c, depth + 1)
        need(isinstance(k, str), "byte %d: key %r", c.pos, k)
        need(k not in out, "byte %d: key %r twice", c.pos, k)
        out[k] = unpack_value(c, depth + 1)
    return out


def unpack(b):
    """Canonical msgpack only: what pack() of the value says again."""
    c = Cursor(b)
    v = unpack_value(c, 0)
    need(c.pos == len(b), "byte %d: bytes after the msgpack value", c.pos)
    need(pack(v) == b, "msgpack is not canonical")
    return v


# ---- .ckpt ------------------------------------------------------------------

MAGIC = b"\x89NIBCK\r\n"
PAGE = 4096
MAX_HEADER = 16777216
FLT_MAX = (2 - 2.0 ** -23) * 2.0 ** 127
STATE_NEW = {"grad_norm": None, "routes": None, "sampler": None,
             "settings": {}, "skips": 0, "spike": None, "step": 0, "t": 0,
             "tokenizer": None}


def align(n):
    return -(-n // PAGE) * PAGE


def ckpt_header(tensors, config, **more):
    """Header without offsets; ckpt_bytes fills them in."""
    h = {
        "arrays": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape),
                    "nbytes": t.nbytes(), "offset": 0,
                    "xxh3": xxh3_128(t.data)} for t in tensors],
        "config": config, "master": "bf16", "moments": "int8",
        "provenance": '{"inputs":[],"options":{},"tool":"containers.py",'
                      '"version":"0"}',
        "quant": {"criterion": "mse", "name": "none", "share": "none",
                  "variant": ""},
        "state": dict(STATE_NEW),
    }
    h.update(more)
    return h


def ckpt_place(header):
    """Set every offset; returns the file's size."""
    start, want = 0, PAGE
    while start != want:
        start = pos = want
        for a in header["arrays"]:
            a["offset"] = pos
            pos = align(pos + a["nbytes"])
        want = max(start, align(64 + len(pack(header))))
    return pos


def ckpt_seal(raw, body, size, **over):
    """Prologue, header bytes, and body, a list of (offset, bytes).  over:
    fields of the prologue that shall be wrong (its hash is right again)."""
    f = {"magic": MAGIC, "version": 1, "zero": 0, "file_bytes": size,
         "header_bytes": len(raw), "hash": xxh3_128(raw)}
    f.update(over)
    pro = struct.pack("<8sIIQQ16s", f["magic"], f["version"], f["zero"],
                      f["file_bytes"], f["header_bytes"], f["hash"])
    out = bytearray(size)
    out[:64] = pro + f.get("pro_hash", xxh3_128(pro))
    out[64:64 + len(raw)] = raw
    for offset, data in body:
        out[offset:offset + len(data)] = data
    assert len(out) == size
    return bytes(out)


def ckpt_bytes(tensors, config, **more):
    h = ckpt_header(tensors, config, **more)
    size = ckpt_place(h)
    return ckpt_seal(pack(h), [(a["offset"], t.data) for a, t in
                               zip(h["arrays"], tensors)], size)


def zeros_only(m, a, b, what):
    for i in range(a, b, 1 << 20):
        part = m[i:min(b, i + (1 << 20))]
        need(part.count(0) == len(part), "byte %d..%d: %s is not zero", a, b,
             what)


HEADER_TYPES = {"arrays": list, "config": str, "master": str, "moments": str,
                "provenance": str, "quant": dict, "state": dict}


QUANT_WORDS = {
    "criterion": ("mse", "mae"),
    "name": ("none", "torchao", "native", "sweep1", "max", "4over6", "sweep",
             "sweepfp8"),
    "share": ("none", "qkv,gate_up"),
    "variant": ("", "modelopt"),
}

STATE_TYPES = {"grad_norm": (float,), "routes": (dict,), "sampler": (dict,),
               "spike": (dict,), "tokenizer": (bytes,)}


def check_state(state):
    """Just the keys of FORMAT.md, each of its type."""
    need(set(state) == set(STATE_NEW), "state: keys %s", sorted(state))
    for k, v in state.items():
        if k == "settings":
            need(isinstance(v, dict), "state: settings %r", v)
        elif k in STATE_TYPES:
            need(v is None or isinstance(v, STATE_TYPES[k]), "state: %s %r", k, v)
            need(not isinstance(v, bytes) or len(v) == 32, "state: %s %r", k, v)
        else:
            need(is_int(v) and v >= 0, "state: %s %r", k, v)
    check_ranges(state)


def check_ranges(state):
    need(state["step"] < 1 << 32, "step %d", state["step"])
    need(state["t"] <= state["step"] and state["skips"] <= state["step"], "t, skips")
    g, r, s, w = (state[k] for k in ("grad_norm", "routes", "sampler", "spike"))
    need(g is None or g >= 0 and math.isfinite(g), "grad_norm %r", g)
    need(r is None or set(r) == {"gemm"} and isinstance(r["gemm"], str) and
         0 < len(r["gemm"].encode()) < 96 and "\0" not in r["gemm"], "routes %r", r)
    need(s is None or set(s) == {"data", "epoch", "index"} and
         isinstance(s["data"], bytes) and len(s["data"]) == 16 and
         all(is_int(s[k]) and 0 <= s[k] < 1 << 63 for k in ("epoch", "index")),
         "sampler %r", s)
    if w is not None:
        need(set(w) == {"loss", "norm"} and all(isinstance(w[k], list) for k in w) and
             len(w["loss"]) == len(w["norm"]) <= 128, "spike %r", w)
        need(all(isinstance(v, float) and abs(v) <= FLT_MAX for v in w["loss"] + w["norm"])
             and all(v >= 0 for v in w["norm"]), "spike %r", w)
    need(all(isinstance(v, str) or is_int(v) and v >= 0 or
             isinstance(v, float) and math.isfinite(v)
             for v in state["settings"].values()), "settings %r", state["settings"])



def read_ckpt_header(m):
    need(len(m) >= 64, "%d bytes", len(m))
    magic, version, zero, size, n, digest = struct.unpack("<8sIIQQ16s",
                                                          m[:48])
    need(magic == MAGIC, "magic %r", magic)
    need(xxh3_128(m[:48]) == m[48:64], "prologue hash")
    need(version == 1, "version %d", version)
    need(zero == 0, "reserved field %d", zero)
    need(size == len(m) and size % PAGE == 0, "size %d, the file has %d",
         size, len(m))
    need(1 <= n <= MAX_HEADER and 64 + n <= len(m), "header of %d bytes", n)
    raw = m[64:64 + n]
    need(xxh3_128(raw) == digest, "header hash")
    h = unpack(raw)
    need(isinstance(h, dict) and sorted(h) == sorted(HEADER_TYPES),
         "header keys")
    for k, kind in HEADER_TYPES.items():
        need(isinstance(h[k], kind), "header: %s is a %s", k, type(h[k]))
    need(h["master"] in ("f32", "bf16", "nvfp4"), "master %r", h["master"])
    need(h["moments"] in ("f32", "bf16", "int8", "nvfp4"), "moments %r",
         h["moments"])
    need(set(h["quant"]) == set(QUANT_WORDS) and
         all(h["quant"][k] in w for k, w in QUANT_WORDS.items()), "quant")
    for k in ("config", "provenance"):
        need(h[k] == "" or isinstance(json_strict(h[k].encode(), floats=True), dict),
             "%s is no JSON object", k)
    check_state(h["state"])
    return h, n


def check_ckpt_words(h):
    """The parts of a header that only later programs look into."""
    try:
        check_config(h["config"])
        need(set(STATE_NEW) <= set(h["state"]), "state keys")
        p = json_strict(h["provenance"].encode(), floats=True)
        check_provenance(p)
        need(h["provenance"] == json.dumps(p, separators=(",", ":"),
                                           ensure_ascii=False),
             "provenance is not compact")
    except Bad as e:
        raise Soft(str(e))


def read_ckpt(path, words=True):
    m = map_file(path)
    h, n = read_ckpt_header(m)
    out, seen, used, pos = [], set(), 64 + n, align(64 + n)
    for a in h["arrays"]:
        need(isinstance(a, dict) and sorted(a) == [
            "dtype", "name", "nbytes", "offset", "shape", "xxh3"],
            "array keys %s", a)
        need(isinstance(a["name"], str), "name %r", a["name"])
        name = check_name(a["name"].encode())
        need(name not in seen, "%r occurs twice", name)
        seen.add(name)
        need(a["dtype"] in CKPT_DTYPES, "%r: dtype %r", name, a["dtype"])
        need(isinstance(a["shape"], list) and len(a["shape"]) <= 64 and all(map(is_int, a["shape"])),
             "%r: shape", name)
        t = Tensor(name, a["dtype"], a["shape"], None, a["offset"])
        need(is_int(a["nbytes"]) and a["nbytes"] == t.nbytes(), "%r: nbytes %r", name, a["nbytes"])
        need(is_int(a["offset"]) and a["offset"] == pos, "%r: offset %r, want %d", name, a["offset"],
             pos)
        if t.nbytes():
            need(pos + t.nbytes() <= len(m), "%r ends beyond the file", name)
            zeros_only(m, used, pos, "gap")
            used = pos + t.nbytes()
            pos = align(used)
        need(xxh3_128(m[t.offset:t.offset + t.nbytes()]) == a["xxh3"],
             "%r: payload hash", name)
        out.append(t)
    need(pos == len(m), "arrays end at %d, the file has %d", pos, len(m))
    zeros_only(m, used, len(m), "gap")
    if words:
        check_ckpt_words(h)
    return m, out


def forge_ckpt(path, out, name, copy):
    m, ts = read_ckpt(path, words=False)
    h, _ = read_ckpt_header(m)
    data = {t.name: m[t.offset:t.offset + t.nbytes()] for t in ts}
    like = next(t for t in ts if t.name == copy)
    # Weights stand before the arrays of the optimizer.
    ts.insert(len(ts) if name.startswith("adam.") else 0,
              Tensor(name, like.dtype, like.shape))
    data[name] = data[copy]
    for t in ts:
        t.data = data[t.name]
    h.pop("arrays")
    put(out, ckpt_bytes(ts, h.pop("config"), **h))


# ---- any of them ------------------------------------------------------------

def read_any(path, hashes=True):
    """Tensors of path, each with .file (mapped bytes) and .offset set."""
    if os.path.isdir(path):
        return read_dir(path)
    with open(path, "rb") as f:
        first = f.read(9)
    if first[:8] == MAGIC or path.endswith(".ckpt"):
        m, out = read_ckpt(path)
    elif path.endswith(".dat"):
        m, out = read_dat(path, hashes)
    elif path.endswith(".gguf"):
        from gguf_file import read_gguf     # which imports this file
        m, out, _ = read_gguf(path)
    else:
        m, out = read_safetensors(path)
    for t in out:
        t.file = m
    return out


def escape(name):
    return "".join(
        {"\n": "\\n", "\t": "\\t", "\\": "\\\\"}.get(c) or
        ("".join("\\x%02x" % b for b in c.encode())
         if ord(c) < 32 or 127 <= ord(c) < 160 else c) for c in name)


def show(path, hashes):
    packed = path.endswith(".dat")
    for t in read_any(path, hashes):
        n = t.nbytes(packed)
        last = sha256_at(t.file, t.offset, n) if hashes else t.offset
        print("%s\t%s\t%s\t%d\t%s" % (
            escape(t.name), t.dtype,
            "[%s]" % ",".join(map(str, t.shape)), n, last))


# ---- samples ----------------------------------------------------------------

def noise(seed, n):
    """n bytes that depend on seed only."""
    return hashlib.shake_128(repr(seed).encode()).digest(n) if n else b""


def filler(seed, dtype, n):
    b = noise(seed, n)
    if dtype == "bool":
        return bytes(x & 1 for x in b)
    return b


UNICODE = ["ä.größe", "層.重み", "имя", "a b", "it's \"quoted\"", "tab\there",
           "line\nbreak", "back\\slash", "../up/and/away", "/etc/passwd",
           "esc\x1b[31mred", "bidi\u202eabc", "c1\u0085\u009bx", "emoji👋🏽",
           "e\u0301", "-", "--help", "*", "[a-z]?", "x" * 300]


def sample(dtypes, seed, packed):
    """Each dtype in odd shapes; rank 0, empty, high rank; names that hurt."""
    out = []

    def add(name, dtype, shape):
        n = payload_bytes(dtype, shape, packed)
        out.append(Tensor(name, dtype, shape, filler((seed, name), dtype, n)))

    for i, d in enumerate(dtypes):
        sub = BITS[d] < 8
        last = 8 if sub and not packed else 1
        if not sub:
            add("z%02d.%s.scalar" % (i, d), d, ())
        add("m%02d.%s.odd" % (i, d), d, (3, 5 * last))
        add("a%02d.%s.empty" % (i, d), d, (0, 7 * last))
        add("k%02d.%s.line" % (i, d), d, ((17 + i) * last,))
    add("rank64", "u8", (1,) * 63 + (3,))
    add("empty.huge", "u8", (0, 1 << 31, 1 << 31))
    for i, name in enumerate(UNICODE):
        add(name, "u8", (i + 1,))
    return out


# What all of .dat and safetensors hold alike, sorted by name: survives
# .dat -> safetensors -> .dat byte for byte.  bf16 is not here: datpack turns
# it into f16 in a .dat.  f4_e2m1 neither: its last dimension changes.
PORTABLE = ["u8", "i8", "i16", "i32", "i64", "f16", "f32", "f64", "c64",
            "bool", "f8_e4m3"]


def portable(seed):
    out = sample(PORTABLE, seed, True)
    scale = bytes(b % 0x7F for b in noise((seed, "s"), 4))
    out += [
        Tensor("pair.weight.qdata", "u8", (2, 16), noise((seed, "q"), 32)),
        Tensor("pair.weight.scale", "f8_e4m3", (2, 2), scale),
        Tensor("three.weight.qdata", "u8", (1, 32), noise((seed, "t"), 32)),
        Tensor("three.weight.scale", "f8_e4m3", (1, 4), scale),
        Tensor("three.weight.scale2", "f32", (1,), struct.pack("<f", 0.25)),
    ]
    return sorted(out, key=lambda t: t.name.encode())


TINY = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
    "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rope_scaling": None,
    "sliding_window": None, "use_sliding_window": False,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16",
    "tie_word_embeddings": True, "vocab_size": 48, "bos_token_id": 1,
    "eos_token_id": [2, 1], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "x_unknown_field": "é",
}


def tiny_config():
    return json.dumps(TINY, indent=2, ensure_ascii=False) + "\n"


def model_table(c, head=False):
    """(name, shape) of a dense Qwen3 in the order of a real file."""
    h, d = c["hidden_size"], c["head_dim"]
    q, k = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    f, v = c["intermediate_size"], c["vocab_size"]
    layer = [("self_attn.q_proj", (q, h)), ("self_attn.k_proj", (k, h)),
             ("self_attn.v_proj", (k, h)), ("self_attn.o_proj", (h, q)),
             ("self_attn.q_norm", (d,)), ("self_attn.k_norm", (d,)),
             ("mlp.gate_proj", (f, h)), ("mlp.up_proj", (f, h)),
             ("mlp.down_proj", (h, f)), ("input_layernorm", (h,)),
             ("post_attention_layernorm", (h,))]
    out = [("model.embed_tokens.weight", (v, h))]
    for i in range(c["num_hidden_layers"]):
        out += [("model.layers.%d.%s.weight" % (i, n), s) for n, s in layer]
    out.append(("model.norm.weight", (h,)))
    if head:
        out.append(("lm_head.weight", (v, h)))
    return out


def exact_floats(dtype, seed, n):
    """n values that f16, bf16 and f32 hold exactly: 8 significant bits,
    exponents -8..-1; the same values for every dtype."""
    b = noise((seed, "floats"), 2 * n)
    out = bytearray()
    for i in range(n):
        sign, e, m = b[2 * i] >> 7, -1 - (b[2 * i] & 7), b[2 * i + 1] & 127
        if dtype == "f16":
            out += struct.pack("<H", sign << 15 | e + 15 << 10 | m << 3)
        else:
            v = sign << 15 | e + 127 << 7 | m
            out += struct.pack("<H", v) if dtype == "bf16" else \
                struct.pack("<I", v << 16)
    return bytes(out)


def tiny_model(dtype, seed, head=False):
    out = []
    for name, shape in model_table(TINY, head):
        src = "model.embed_tokens.weight" if name == "lm_head.weight" else name
        out.append(Tensor(name, dtype, shape, exact_floats(
            dtype, (seed, src), numel(shape))))
    return out


def tiny_states(weights, moments="int8"):
    """New (zero) optimizer states beside bf16 or f32 weights."""
    out = []
    for t in weights:
        n = numel(t.shape)
        for kind, dtype in (("adam.m/", "i8"), ("adam.v/", "u8")):
            if moments != "int8":
                out.append(Tensor(kind + t.name, moments, t.shape, bytes(
                    n * BITS[moments] // 8)))
                continue
            out.append(Tensor(kind + t.name, dtype, t.shape, bytes(n)))
            blocks = -(-n // 32)
            out.append(Tensor(kind + t.name + ".scale", "bf16", (blocks,),
                              bytes(2 * blocks)))
    return out


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def make_dat(path, seed):
    put(path, dat_bytes(sample(list(DAT_CODE), seed, True)))


def make_safetensors(path, seed):
    put(path, st_bytes(sample(list(ST_DTYPE), seed, False),
                       {"format": "pt", "": "empty key", "é": "\n\u2028"}))


def make_ckpt(path, seed):
    put(path, ckpt_bytes(sample(CKPT_DTYPES, seed, False), "{}"))  # of no model


def make_portable_dat(path, seed):
    put(path, dat_bytes(portable(seed)))


def make_portable_safetensors(path, seed):
    put(path, st_bytes(portable(seed), {"format": "pt"}))


def make_pair(path, _):
    put(path, bytes.fromhex(
        "020e612e7765696768742e7164617461000201080008" "9121b243546d"
        "0e612e7765696768742e7363616c656502010108"))


def make_sidecar(path, seed):
    """A .dat and its sidecar beside it."""
    ts = portable(seed)
    data = dat_bytes(ts)
    put(path, data)
    put(path + ".json", sidecar_bytes(
        data, dat_index(ts), None, {"inputs": [], "options": {},
                                    "tool": "containers.py", "version": "0"}))


def make_shards(path, seed, files=3):
    """A directory of shards; the sample of .dat and safetensors alike."""
    os.mkdir(path)
    write_shards(path, portable(seed), files)


def write_shards(path, ts, files):
    where, total = {}, 0
    for k in range(files):
        shard = "model-%05d-of-%05d.safetensors" % (k + 1, files)
        part = ts[k::files]
        put(os.path.join(path, shard), st_bytes(part, {"format": "pt"}))
        for t in part:
            where[t.name] = shard
            total += t.nbytes()
    put(os.path.join(path, "model.safetensors.index.json"), json.dumps(
        {"metadata": {"total_size": total}, "weight_map": where},
        indent=2).encode())


def make_config(path, _):
    put(path, tiny_config().encode())


def make_tiny_dat(path, seed):
    put(path, dat_bytes(tiny_model("f16", seed, True)))


def make_tiny_safetensors(path, seed):
    put(path, st_bytes(tiny_model("bf16", seed), {"format": "pt"}))


def make_tiny_ckpt(path, seed):
    w = tiny_model("bf16", seed)
    put(path, ckpt_bytes(w + tiny_states(w), tiny_config()))


def make_small_ckpt(path, seed):
    """Two arrays, three pages: for tests at every byte or bit."""
    ts = [Tensor("a", "f32", (4, 9), noise((seed, "a"), 144)),
          Tensor("empty", "u8", (0,), b""),
          Tensor("b", "bf16", (100, 3), noise((seed, "b"), 600))]
    put(path, ckpt_bytes(ts, "{}"))


def make_small_dat(path, seed):
    ts = [Tensor("a.weight", "f16", (3, 5), noise((seed, "a"), 30)),
          Tensor("層", "i64", (), noise((seed, "b"), 8)),
          Tensor("none", "u8", (0, 9), b""),
          Tensor("c", "f8_e4m3", (200,), noise((seed, "c"), 200))]
    put(path, dat_bytes(ts))


def make_small_safetensors(path, seed):
    ts = [Tensor("a.weight", "f16", (3, 5), noise((seed, "a"), 30)),
          Tensor("層", "i64", (), noise((seed, "b"), 8)),
          Tensor("none", "u8", (0, 9), b""),
          Tensor("c", "f8_e4m3", (202,), noise((seed, "c"), 202))]
    put(path, st_bytes(ts, {"format": "pt"}))


def make_tiny_dir(path, seed):
    os.mkdir(path)
    make_tiny_safetensors(os.path.join(path, "model.safetensors"), seed)
    make_config(os.path.join(path, "config.json"), 0)


def make_tiny_shards(path, seed):
    os.mkdir(path)
    write_shards(path, tiny_model("bf16", seed), 3)
    make_config(os.path.join(path, "config.json"), 0)


QWEN3_4B = {"hidden_size": 2560, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936}
QUANTIZED = ("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj "
             "lm_head").split()


def make_4b(path, _):
    """The entry headers of the real 4B NVFP4 file; payloads are holes."""
    entries = []
    for name, shape in model_table(QWEN3_4B, True):
        if any(q in name for q in QUANTIZED):
            entries.append((name + ".qdata", "u8", (shape[0], shape[1] // 2)))
            entries.append((name + ".scale", "f8_e4m3",
                            (shape[0], shape[1] // 16)))
        else:
            entries.append((name, "f16", shape))
    with open(path, "wb") as f:
        f.write(uleb(len(entries)))
        for name, dtype, shape in entries:
            f.write(dat_header(name, dtype, shape))
            f.seek(payload_bytes(dtype, shape, True), os.SEEK_CUR)
        f.truncate(f.tell())


KINDS = {
    "dat": make_dat, "safetensors": make_safetensors, "ckpt": make_ckpt,
    "sidecar": make_sidecar, "shards": make_shards, "pair": make_pair,
    "portable-dat": make_portable_dat,
    "portable-safetensors": make_portable_safetensors,
    "small-dat": make_small_dat, "small-safetensors": make_small_safetensors,
    "small-ckpt": make_small_ckpt, "config": make_config,
    "tiny-dat": make_tiny_dat, "tiny-safetensors": make_tiny_safetensors,
    "tiny-ckpt": make_tiny_ckpt, "tiny-dir": make_tiny_dir,
    "tiny-shards": make_tiny_shards, "4b": make_4b,
}


def self_test():
    """Reader against writer, and single damages that the reader must see."""
    import tempfile
    if xxh3_self_test():
        return 1
    for v in (None, True, 0, 127, 128, 255, 256, 65535, 65536, 1 << 32,
              (1 << 64) - 1, -1, -32, -33, -128, -129, -32769, -1 << 63, 1.5,
              "", "x" * 31, "x" * 32, "é" * 200, "x" * 70000, b"", b"y" * 256,
              list(range(16)), [[]] * 70000, {"b": 1, "a": [{}]}):
        need(unpack(pack(v)) == v, "msgpack %r", v)
    with tempfile.TemporaryDirectory() as d:
        for kind, make in KINDS.items():
            if kind in ("config", "4b"):
                continue
            base = kind.split("-")[-1]
            path = os.path.join(d, kind + ".dat" if base in (
                "dat", "pair", "sidecar") else kind + "." + base)
            make(path, 1)
            need(read_any(path), "%s reads nothing", kind)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as f:
                good = f.read()
            for cut in range(0, len(good), max(1, len(good) // 50)):
                put(path, good[:cut])
                try:
                    read_any(path)
                except Bad:
                    continue
                raise Bad("%s cut at %d is read" % (kind, cut))
    return 0


def main(argv):
    if argv == ["--self-test"]:
        return self_test()
    if argv == ["kinds"]:
        print("\n".join(KINDS))
        return 0
    if len(argv) in (3, 4) and argv[0] == "make" and argv[1] in KINDS:
        KINDS[argv[1]](argv[2], int(argv[3]) if len(argv) == 4 else 1)
        return 0
    if len(argv) == 2 and argv[0] == "header":
        h, _ = read_ckpt_header(map_file(argv[1]))
        del h["arrays"]
        print(json.dumps(h, ensure_ascii=False))
        return 0
    if len(argv) == 5 and argv[0] == "forge":
        forge_ckpt(*argv[1:])
        return 0
    if len(argv) < 2 or argv[0] not in ("read", "list", "ours"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for path in argv[1:]:
        try:
            if argv[0] == "ours":       # what only our safetensors promise
                read_safetensors(path, True)
            else:
                show(path, argv[0] == "read")
        except (Bad, OSError) as e:
            print("containers.py: %s: %s" % (path, e), file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(main(sys.argv[1:]))
