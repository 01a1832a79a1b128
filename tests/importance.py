#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What generate --dump-importance and --importance mean, once more.

    importance.py measured MODEL CONFIG IDS FILE    FILE has the mean squares and the largest
                                                    magnitudes of what MODEL's products take
    importance.py quantized FROM FILE QUANT OUT     OUT.dat has the codes of FROM by QUANT with
                                                    the columns' weights of FILE
    importance.py put FILE NAME VALUE... OUT        FILE with other values of a vector
"""
import math
import struct
import sys

import containers
import nvfp4
import qwen3


def vectors(path):
    return {k: list(struct.unpack("<%df" % (len(t[-1]) // 4), t[-1]))
            for k, t in raw(path).items()}


def raw(path):
    return {t.name: (t.dtype, t.shape, bytes(t.data)) for t in nvfp4.read_tensors(path)}


def measured(model, config, ids, path):
    m, taken = qwen3.Model(model, config), []
    qwen3.taken = lambda x, name: taken.append(list(x)) or x
    squares, most, tokens = {}, {}, 0

    def add(names, x):
        for n in names:
            s = squares.setdefault(n, [0.0] * len(x))
            for i, v in enumerate(x):
                s[i] += v * v
            most[n] = max(most.get(n, 0), *map(abs, x))

    for line in open(ids):
        m.cache, m.position = [([], []) for _ in m.cache], 0
        for t in list(map(int, line.split()))[:-1]:
            taken.clear()
            hidden = m.step(t)[1]
            tokens += 1
            for i in range(len(m.cache)):
                p = "model.layers.%d." % i
                x = taken[4 * i:4 * i + 4]
                add([p + "self_attn.%s_proj" % k for k in "qkv"], x[0])
                add([p + "self_attn.o_proj"], x[1])
                add([p + "mlp.%s_proj" % k for k in ("gate", "up")], x[2])
                add([p + "mlp.down_proj"], x[3])
            add(["lm_head"], m.norm(hidden[-1], m.w["model.norm.weight"]))
    got = vectors(path)
    want = {n + ".weight": [v / tokens for v in s] for n, s in squares.items()}
    want.update({n + ".input_amax": [v] for n, v in most.items()})
    assert sorted(got) == sorted(want), (sorted(got), sorted(want))
    for n, v in want.items():
        scale = max(v)
        for i, (a, b) in enumerate(zip(got[n], v)):
            assert abs(a - b) <= 2e-5 * scale, (n, i, a, b)
    print(len(want), "vectors")


def weights_of(v):
    unit = 2.0 ** -math.floor(math.log2(max(v)))
    return [max(nvfp4.f32(x * unit), 2.0 ** -24) for x in v]


def quantized(source, path, quant, out):
    name, _, criterion = quant.partition(":")
    spec = nvfp4.Spec(name, criterion=criterion or "mse")
    weight, done, differ = vectors(path), 0, 0
    made = raw(out)
    tensors = {t.name: t for t in nvfp4.read_tensors(source)}
    for n, t in tensors.items():
        if n + ".qdata" not in made:
            continue
        x, cols = nvfp4.load(t.dtype, t.data), t.shape[1]
        w = weights_of(weight[n])
        group = nvfp4.group_of(n)
        peers = [k for k in tensors if nvfp4.group_of(k) == group]
        top = max(abs(v) for k in peers for v in nvfp4.load(tensors[k].dtype, tensors[k].data))
        plain, scales, codes = nvfp4.Spec(name, criterion=criterion or "mse"), bytearray(), bytearray()
        for i in range(0, len(x), 16):
            spec.weight = w[i % cols:i % cols + 16]
            c, q = nvfp4.One.block(spec, list(x[i:i + 16]), top)
            differ += (c, q) != nvfp4.One.block(plain, list(x[i:i + 16]), top)
            scales.append(c)
            codes += bytes(q[j] | q[j + 1] << 4 for j in range(0, 16, 2))
        assert made[n + ".scale"][2] == bytes(scales), n
        assert made[n + ".qdata"][2] == bytes(codes), n
        done += 1
    assert done and differ, (done, differ)
    print(done, "tensors,", differ, "blocks that weights changed")


def put(path, name, *rest):
    values, out = list(map(float, rest[:-1])), rest[-1]
    ts = nvfp4.read_tensors(path)
    for t in ts:
        if t.name == name:
            t.shape = [len(values)]
            t.data = struct.pack("<%df" % len(values), *values)
    with open(out, "wb") as f:
        f.write(containers.st_bytes(ts, {}))


if __name__ == "__main__":
    {"measured": measured, "quantized": quantized, "put": put}[sys.argv[1]](*sys.argv[2:])
