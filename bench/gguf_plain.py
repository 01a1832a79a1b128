#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A GGUF with plain weights, which datpack does not write: what llama.cpp makes its
own quantizations from.

    bench/gguf_plain.py MODEL.safetensors LIKE.gguf OUT.gguf

Types are those of MODEL, bf16 or f32, but norms are f32, as llama.cpp wants them.
What a file tells of a model besides its tensors is taken from LIKE, an NVFP4 file of
the same model.
"""
import json
import os
import struct
import sys

sys.dont_write_bytecode = True      # no __pycache__ in the tree
sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "tests"))

import containers as c
import gguf_file as g

FILE_TYPES = {"BF16": 32, "F32": 0}     # llama.cpp: LLAMA_FTYPE_MOSTLY_BF16, ALL_F32
FILE_TYPE = b"general.file_type"


def pairs_of(path, file_type):
    """How many pairs, and their bytes, with another file type."""
    m = c.map_file(path)
    r = g.Reader(m)
    r.take(4 + 4 + 8, "the head")
    n = r.number("<Q", "pairs")
    start = r.pos
    for _ in range(n):
        r.string("a key")
        r.value(r.number("<I", "a type"))
    pairs = bytearray(m[start:r.pos])
    at = pairs.index(FILE_TYPE) + len(FILE_TYPE) + 4
    pairs[at:at + 4] = struct.pack("<I", file_type)
    return n, bytes(pairs)


def f32_of(bf16):
    """Each is the upper half of an f32."""
    out = bytearray(2 * len(bf16))
    out[2::4], out[3::4] = bf16[0::2], bf16[1::2]
    return bytes(out)


def main(model, like, out):
    with open(model, "rb") as f:
        start = struct.unpack("<Q", f.read(8))[0]
        entries = json.loads(f.read(start))
        entries.pop("__metadata__", None)
        start += 8
        types = {e["dtype"] for e in entries.values()}
        c.need(len(types) == 1 and types <= set(FILE_TYPES), "%s: in %s", model,
               sorted(types))
        dtype = types.pop()
        n_pairs, pairs = pairs_of(like, FILE_TYPES[dtype])
        infos, end, plan = b"", 0, []
        for name, e in entries.items():
            begin, size = e["data_offsets"][0], -e["data_offsets"][0]
            size += e["data_offsets"][1]
            widen = dtype == "BF16" and len(e["shape"]) == 1
            infos += g.info(g.their_name(name), e["shape"],
                            g.NUMBER["f32" if widen else dtype.lower()], end)
            plan.append((start + begin, size, widen))
            size *= 2 if widen else 1
            end += size + g.pad(size)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(plan), n_pairs) + pairs + infos
        with open(out, "wb") as o:
            o.write(head + bytes(g.pad(len(head))))
            for offset, size, widen in plan:
                f.seek(offset)
                payload = f.read(size)
                if widen:
                    payload = f32_of(payload)
                o.write(payload + bytes(g.pad(len(payload))))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__.strip())
    main(*sys.argv[1:])
