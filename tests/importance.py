#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What generate --dump-importance and --importance mean, once more.

    importance.py measured MODEL CONFIG IDS FILE    FILE has the mean squares and the largest
                                                    magnitudes of what MODEL's products take,
                                                    and their mean products, if FILE has those
    importance.py quantized FROM FILE QUANT OUT     OUT.dat has the codes of FROM by QUANT with
                                                    the columns' weights of FILE
    importance.py feedback FROM FILE QUANT OUT      the same with errors that other columns make
                                                    up for, by FILE's mean products
    importance.py put FILE NAME VALUE... OUT        FILE with other values of a vector
    importance.py together WEIGHTS FILE             a tensor of large values, and mean products
                                                    of columns that go together
"""
import math
import random
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
    squares, most, tokens, products = {}, {}, 0, {}
    got = vectors(path)
    whole = any(n.endswith(".hessian") for n in got)

    def add(names, x):
        w = width(len(x))
        for n in names if whole else []:
            h = products.setdefault(n, [0.0] * (len(x) * w))
            for i, a in enumerate(x):
                for k in range(w):
                    h[i * w + k] += a * x[i // w * w + k]
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
    want = {n + ".weight": [v / tokens for v in s] for n, s in squares.items()}
    want.update({n + ".input_amax": [v] for n, v in most.items()})
    want.update({n + ".hessian": [v / tokens for v in h] for n, h in products.items()})
    assert sorted(got) == sorted(want), (sorted(got), sorted(want))
    for n, v in want.items():
        assert len(got[n]) == len(v), n
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


def width(cols):
    w = 128
    while cols % w:
        w //= 2
    return w


def factor(h):
    """What the square of a column's error costs, and what columns behind it take of it; that it
    belongs to the inverse of h is checked by multiplying."""
    w = len(h)
    more = 0.01 * sum(h[i][i] for i in range(w)) / w or 1.0
    h = [[v + more if i == j else v for j, v in enumerate(row)] for i, row in enumerate(h)]
    r = [[0.0] * w for _ in range(w)]
    for j in reversed(range(w)):
        d = h[j][j]
        for k in range(j + 1, w):
            d -= r[j][k] * r[j][k]
        r[j][j] = math.sqrt(d)
        for i in range(j):
            s = h[i][j]
            for k in range(j + 1, w):
                s -= r[i][k] * r[j][k]
            r[i][j] = s / r[j][j]
    u = [[0.0] * w for _ in range(w)]
    for j in range(w):
        u[j][j] = 1 / r[j][j]
        for k in range(j + 1, w):
            s = 0.0
            for i in range(j, k):
                s += u[j][i] * r[i][k]
            u[j][k] = -s / r[k][k]
    for i in (0, w // 3, w - 1): # U' U h = 1
        y = [sum(u[j][k] * u[j][i] for j in range(w)) for k in range(w)]
        for k in range(w):
            v = sum(y[j] * h[j][k] for j in range(w))
            assert abs(v - (i == k)) < 1e-6, (i, k, v)
    return [[nvfp4.f32(r[j][j] * r[j][j] if j == k else u[j][k] * r[j][j])
             for k in range(w)] for j in range(w)]


def candidates(quant, c0):
    """Scale bytes to try; of sweepfp8 those up to 256, whatever errors push c0 to."""
    if quant != "sweepfp8":
        return range(max(c0 - 2, 1), min(c0 + 6, 0x7E) + 1)
    low = [c for c in nvfp4.FP8 if c <= 0x78]
    return [c for c in low if c0 - 3 <= c <= c0 + 6] or [low[0] if c0 < 8 else low[-1]]


def block_by_feedback(y, f, quant):
    """Scales and codes of a block of columns."""
    f32, scales, codes, w = nvfp4.f32, [], [], len(f)
    for g in range(0, w, 16):
        top, best = max(map(abs, y[g:g + 16])), None
        c0 = nvfp4.e4m3(min(f32(top / 6), 448.0))
        for c in candidates(quant, c0) if top else [0]:
            s, z, cost, q, errors = nvfp4.E4M3[c], list(y[g:g + 16]), 0.0, [], []
            for j in range(16):
                k = nvfp4.One.nearest(abs(z[j]), s) if top else 0
                e = f32(abs(z[j]) - nvfp4.MAGNITUDE[k] * s)
                cost = f32(cost + f32(f32(e * e) * f[g + j][g + j]))
                minus = nvfp4.negative(z[j])
                errors.append(-e if minus else e)
                q.append(k | minus << 3)
                for i in range(j + 1, 16):
                    z[i] = f32(z[i] - f32(errors[j] * f[g + j][g + i]))
            if best is None or cost < best[0]:
                best = cost, c, q, errors
        scales.append(best[1])
        codes += best[2]
        for j in range(16):
            for i in range(g + 16, w):
                y[i] = f32(y[i] - f32(best[3][j] * f[g + j][i]))
    return scales, codes


def feedback(source, path, quant, out):
    spec, given, made, done, differ = nvfp4.Spec(quant), vectors(path), raw(out), 0, 0
    tensors = {t.name: t for t in nvfp4.read_tensors(source)}
    for n, t in tensors.items():
        if n + ".qdata" not in made:
            continue
        x, cols = nvfp4.load(t.dtype, t.data), t.shape[1]
        w = width(cols)
        h = given[n.removesuffix("weight") + "hessian"]
        factors = [factor([h[(b + i) * w:(b + i + 1) * w] for i in range(w)])
                   for b in range(0, cols, w)]
        peers = [k for k in tensors if nvfp4.group_of(k) == nvfp4.group_of(n)]
        top = max(abs(v) for k in peers for v in nvfp4.load(tensors[k].dtype, tensors[k].data))
        enc = nvfp4.One.scale(spec, top)[0]
        scales, codes = [], []
        for i in range(0, len(x), w):
            y = [nvfp4.f32(v * enc) for v in x[i:i + w]]
            c, q = block_by_feedback(y, factors[i % cols // w], quant)
            differ += q != [k for b in range(i, i + w, 16)
                            for k in nvfp4.One.block(spec, list(x[b:b + 16]), top)[1]]
            scales += c
            codes += q
        assert made[n + ".scale"][2] == bytes(scales), n
        packed = bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2]))
        assert made[n + ".qdata"][2] == packed, n
        done += 1
    assert done and differ, (done, differ)
    print(done, "tensors,", differ, "blocks that are not those of sweep")


def together(weights, path):
    rng, w = random.Random(8), 64
    t = containers.Tensor
    x = [rng.choice((-1, 1)) * rng.uniform(.8, 1) for _ in range(32 * w)]
    h = [1.0 + .02 * (i == j) for i in range(w) for j in range(w)]
    for name, made in ((weights, t("q_proj.weight", "f32", (32, w), struct.pack("<%df" % len(x), *x))),
                       (path, t("q_proj.hessian", "f32", (1, w, w), struct.pack("<%df" % len(h), *h)))):
        with open(name, "wb") as f:
            f.write(containers.st_bytes([made], {}))


def put(path, name, *rest):
    values, out = list(map(float, rest[:-1])), rest[-1]
    ts = nvfp4.read_tensors(path)
    for t in ts:
        if t.name == name:
            t.shape = t.shape if math.prod(t.shape) == len(values) else [len(values)]
            t.data = struct.pack("<%df" % len(values), *values)
    with open(out, "wb") as f:
        f.write(containers.st_bytes(ts, {}))


if __name__ == "__main__":
    {"measured": measured, "quantized": quantized, "feedback": feedback, "put": put,
     "together": together}[sys.argv[1]](*sys.argv[2:])
