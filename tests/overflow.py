# SPDX-License-Identifier: MIT
"""Changes a random model of tests/vectors/qwen3-tiny-config.json, f32 and untied, in place: a sample
with token 5 then has an activation of 1e25 in layer 0, whose gradient is too large, and no other
sample has.

usage: python3 overflow.py MODEL.safetensors
"""
import json
import struct
import sys

path = sys.argv[1]
with open(path, "rb") as f:
    raw = bytearray(f.read())
n = struct.unpack_from("<Q", raw)[0]
head = json.loads(raw[8:8 + n])


def put(name, cells):       # all else 0
    t = head[name]
    a, b = t["data_offsets"]
    raw[8 + n + a:8 + n + b] = bytes(b - a)
    for (r, c), v in cells.items():
        struct.pack_into("<f", raw, 8 + n + a + 4 * (r * t["shape"][1] + c), v)


layer = "model.layers.0."
put(layer + "mlp.gate_proj.weight", {(0, 0): 4.0})
put(layer + "mlp.up_proj.weight", {(0, 0): 1e25})
put(layer + "mlp.down_proj.weight", {(1, 0): 1e-25})
put(layer + "self_attn.o_proj.weight", {})
e = head["model.embed_tokens.weight"]
for row in range(97):       # only token 5 has a first number
    struct.pack_into("<f", raw, 8 + n + e["data_offsets"][0] + 4 * 32 * row, float(row == 5))
with open(path, "wb") as f:
    f.write(raw)
