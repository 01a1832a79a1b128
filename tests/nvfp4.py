#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Independent reference of the NVFP4 quantizers, of nvquant and its report.

Written from the numerical definitions alone, never from lib/nvfp4: the judge of
nvquant, of datpack where it quantizes, and the maker of tests/vectors/nvfp4.txt.
Every step is one binary32 operation, in the order written, none fused.

There are two implementations, and --self-test compares them: one block at a time
with the standard library only (the class One), and whole tensors with numpy (the
class Many; 2^20 elements take seconds).  numpy is used where it is installed and
NVFP4_PURE is not set.  16x16 blocks, stochastic rounding and the Hadamard transform
are there with numpy only.

usage: nvfp4.py quantize IN OUT.dat [OPTION]...   what nvquant gives, byte for byte
       nvfp4.py report IN [OPTION]...             --report of that, with all digits
       nvfp4.py dequant IN OUT.dat [--dtype f16|bf16|f32] [--tied]
       nvfp4.py inexact FILE                      how many of its values, without the tensor
                                                  scale, E4M3 has not when divided by 4; all
       nvfp4.py --self-test
       nvfp4.py --golden FILE.safetensors         against other programs' results
       nvfp4.py --sqnr                            the table of known SQNR (numpy)

  --quant NAME  --variant modelopt  --criterion mae  --exhaustive
  --share-scale none|qkv,gate_up  -s GLOB  -x GLOB  --compat torchsharp
  --tied: the head's pair was made of the embedding, and becomes a copy of it again
"""
import ctypes
import fnmatch
import getopt
import math
import os
import struct
import sys

sys.dont_write_bytecode = True      # no __pycache__ in the tree

import containers

try:
    if os.environ.get("NVFP4_PURE"):
        raise ImportError
    import numpy as np
except ImportError:
    np = None

QUANTS = ["torchao", "native", "sweep1", "max", "4over6", "sweep", "sweepfp8"]
LEVELS = {"torchao": 1, "native": 1, "sweep1": 1, "max": 2, "4over6": 2, "sweep": 2,
          "sweepfp8": 2}
SHARED = ("4over6", "sweep", "sweepfp8")    # one tensor scale for fused projections
FLT_MAX = float.fromhex("0x1.fffffep127")
MAGNITUDE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
BOUND = 256.0


class Spec:
    """A quantizer with its settings; source is the dtype of the input."""

    def __init__(self, quant="sweep", variant=None, criterion="mse",
                 exhaustive=False, source="f32"):
        self.quant, self.modelopt = quant, variant == "modelopt"
        self.mae, self.exhaustive = criterion == "mae", exhaustive
        self.source = source
        self.weight = None      # One: of the errors of the block at work


# ---- numbers, standard library only -----------------------------------------

def f32(x):
    """The nearest binary32 of a double; one operation of two binary32 numbers,
    done in doubles and rounded so, is correctly rounded (2*24+2 <= 53)."""
    return ctypes.c_float(x).value


def div(a, b):
    if b == 0:
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return f32(a / b)


def bits32(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits32(u):
    return struct.unpack("<f", struct.pack("<I", u))[0]


def negative(x):
    return math.copysign(1.0, x) < 0


def bf16(x):
    """Nearest even on the upper half of the bits; x is a binary32 number."""
    if math.isnan(x):
        return x
    u = bits32(x)
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000
    return from_bits32(u)


def f16(x):
    try:
        return struct.unpack("<e", struct.pack("<e", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


ROUND = {"f16": f16, "bf16": bf16, "f32": f32}


def e4m3_value(byte):
    e, m = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return math.nan
    v = m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
    return -v if byte & 128 else v


E4M3 = [e4m3_value(b) for b in range(256)]


def fits_e4m3(v):
    """Whether v >= 0 has four significant bits and none below 2^-9."""
    return v == 0 or (v * 2.0 ** (3 - max(math.floor(math.log2(v)), -6))).is_integer()


# Scales whose products with E2M1 are exact in E4M3 when divided by 4.
FP8 = [c for c in range(1, 0x7F)
       if all(fits_e4m3(m * E4M3[c] / 4) for m in MAGNITUDE)]


def e4m3(x):
    """The byte of x >= 0: nearest even, saturating at 448."""
    if math.isnan(x):
        return 0x7F
    if x >= 448:
        return 0x7E
    if x < 2.0 ** -6:
        return round(x * 512)           # round() of Python is to even
    m, e = math.frexp(x)                # x = m * 2^e, 1/2 <= m < 1
    return (e + 6 << 3) + round(m * 16) - 8


def code_even(a):
    return ((a > .25) + (a >= .75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) +
            (a >= 3.5) + (a > 5))


def code_away(a):
    return sum(a >= t for t in TIES)


# ---- one block at a time ----------------------------------------------------

class One:
    """scale(spec, T) is (S, scale2); block(spec, x, T) is (scale byte, 16 codes)."""

    @staticmethod
    def scale(spec, t):
        if LEVELS[spec.quant] == 1:
            return 1.0, 1.0
        if spec.quant == "max":
            s = min(div(2688.0, t), FLT_MAX) if t else 1.0
            if s == 0:
                s = 1.0
            if spec.modelopt and t:
                return s, f32(t / 2688) or 1.0
            return s, div(1.0, s)
        s = min(div(6 * BOUND, t), FLT_MAX) if t else 1.0
        return s, div(1.0, s)

    @staticmethod
    def block(spec, x, t):
        return getattr(One, "q_" + spec.quant.replace("4", "four"))(spec, x, t)

    @staticmethod
    def q_torchao(spec, x, _):
        x = [bf16(v) for v in x]
        a = max(map(abs, x))
        c = e4m3(min(max(f32(a / 6), 2.0 ** -6), 448.0))
        y = [f32(v / E4M3[c]) for v in x]
        return c, [code_even(min(abs(v), 6.0)) | negative(v) << 3 for v in y]

    @staticmethod
    def q_native(spec, x, _):
        a = max(map(abs, x))
        t = ROUND[spec.source](f32(a / 6))
        c = e4m3(min(max(t, 2.0 ** -16), 448.0))
        s = f32(E4M3[c] + f32(1e-12))
        y = [f32(v / s) for v in x]
        return c, [code_away(min(abs(v), 6.0)) | (v < 0) << 3 for v in y]

    @staticmethod
    def q_max(spec, x, t):
        a = max(map(abs, x))
        s_enc, scale2 = One.scale(spec, t)
        if spec.modelopt:
            if a == 0:
                return 0x38, [0] * 16
            c = max(e4m3(div(a, f32(6 * scale2))), 1)
            d = f32(E4M3[c] * scale2)
            return c, [code_even(abs(div(v, d))) | (v < 0) << 3 for v in x]
        c = e4m3(f32(a * f32(s_enc * f32(1 / 6))))
        enc = min(div(1.0, f32(E4M3[c] * scale2)), FLT_MAX)
        return c, One.by_reciprocal(x, enc)

    @staticmethod
    def by_reciprocal(x, enc):
        return [code_even(abs(f32(v * enc))) | negative(v) << 3 for v in x]

    @staticmethod
    def q_fourover6(spec, x, t):
        a = max(map(abs, x))
        s, scale2 = One.scale(spec, t)
        base = f32(f32(a / 6) * s)
        best = None
        for k in base, f32(base * 1.5):
            c = e4m3(min(k, 448.0))
            enc = min(div(1.0, f32(E4M3[c] * scale2)), FLT_MAX)
            q = One.by_reciprocal(x, enc)
            err = 0.0
            for v, code, w in zip(x, q, spec.weight or [1.0] * 16):
                e2m1 = MAGNITUDE[code & 7] * (-1 if code & 8 else 1)
                val = f32(f32(f32(e2m1 * E4M3[c]) * t) / 1536)
                d = f32(val - v)
                err = f32(err + f32((abs(d) if spec.mae else f32(d * d)) * w))
            if best is None or err < best[0]:
                best = err, c, q
        return best[1:]

    @staticmethod
    def q_sweep(spec, x, t):
        a = max(map(abs, x))
        s, _ = One.scale(spec, t)
        if a == 0:
            return 0, [negative(v) << 3 for v in x]
        y = [f32(v * s) for v in x]
        c0 = e4m3(min(f32(f32(a / 6) * s), 448.0))
        if spec.exhaustive:
            candidates = range(1, 0x7F)
        else:
            candidates = range(max(c0 - 2, 1), min(c0 + 6, 0x7E) + 1)
        if spec.quant == "sweepfp8":
            candidates = One.fp8_candidates(c0, spec.exhaustive)
        best = None
        for c in candidates:
            d = E4M3[c]
            q = [One.nearest(abs(v), d) for v in y]
            r = [f32(abs(v) - MAGNITUDE[k] * d) for v, k in zip(y, q)]
            r = [f32(f32(v * v) * w) for v, w in zip(r, spec.weight or [1.0] * 16)]
            for w in 8, 4, 2, 1:
                r = [f32(r[i] + r[i + w]) for i in range(w)]
            if best is None or r[0] < best[0]:
                best = r[0], c, q
        return best[1], [k | negative(v) << 3 for k, v in zip(best[2], y)]

    q_sweep1 = q_sweepfp8 = q_sweep

    @staticmethod
    def fp8_candidates(c0, exhaustive):
        if c0 < 8 and not exhaustive:
            return [8]
        return [c for c in FP8 if exhaustive or c0 - 3 <= c <= c0 + 6]

    @staticmethod
    def nearest(a, s):
        """Products with s are exact, so this is exact."""
        return ((a > .25 * s) + (a >= .75 * s) + (a > 1.25 * s) + (a >= 1.75 * s) +
                (a > 2.5 * s) + (a >= 3.5 * s) + (a > 5 * s))

    @staticmethod
    def tensor(spec, x, t=None):
        """(scale2 or None, scale bytes, codes as in a file) of a list of blocks'
        values; t: the largest magnitude when it is not that of x."""
        if t is None:
            t = max(map(abs, x), default=0.0)
        scales, codes = bytearray(), bytearray()
        for i in range(0, len(x), 16):
            c, q = One.block(spec, x[i:i + 16], t)
            scales.append(c)
            codes += bytes(q[j] | q[j + 1] << 4 for j in range(0, 16, 2))
        scale2 = One.scale(spec, t)[1] if LEVELS[spec.quant] == 2 else None
        return scale2, bytes(scales), bytes(codes)


# ---- whole tensors ----------------------------------------------------------

class Many:
    """The same with numpy.  Blocks are [n, rows, 16]: rows is 1, or 16 for 16x16."""

    @staticmethod
    def init():
        if np is None:
            return
        f = np.float32
        Many.value = np.array(E4M3[:127], f)
        Many.magnitude = np.array(MAGNITUDE, f)
        Many.sixth = f(1) / f(6)
        Many.flt_max = f(FLT_MAX)

    @staticmethod
    def e4m3(x):
        """Bytes of x >= 0, by the bits of the number."""
        u = x.view(np.uint32)
        normal = (u + np.uint32(0x7FFFF) + (u >> 20 & 1) >> 20).astype(np.int64) - 960
        small = np.rint(x * np.float32(512))
        c = np.where(x < np.float32(2.0 ** -6), small, np.minimum(normal, 0x7E))
        assert not np.isnan(x).any()
        return c.astype(np.uint8)

    @staticmethod
    def bf16(x):
        u = x.view(np.uint32)
        return ((u + np.uint32(0x7FFF) + (u >> 16 & 1)) &
                np.uint32(0xFFFF0000)).view(np.float32)

    @staticmethod
    def code_even(a):
        t = [np.float32(v) for v in TIES]
        return ((a > t[0]).astype(np.uint8) + (a >= t[1]) + (a > t[2]) + (a >= t[3]) +
                (a > t[4]) + (a >= t[5]) + (a > t[6]))

    @staticmethod
    def code_away(a):
        q = np.zeros(a.shape, np.uint8)
        for t in TIES:
            q += a >= np.float32(t)
        return q

    @staticmethod
    def sign(x):
        return np.signbit(x).astype(np.uint8) << np.uint8(3)

    @staticmethod
    def scale(spec, t):
        f = np.float32
        t, one = f(t), f(1)
        if LEVELS[spec.quant] == 1:
            return one, one
        top = f(2688) if spec.quant == "max" else f(1536)
        with np.errstate(over="ignore"):
            s = min(top / t, Many.flt_max) if t else one
        if s == 0:
            s = one
        if spec.quant == "max" and spec.modelopt and t:
            return s, t / f(2688) or one
        return s, one / s

    @staticmethod
    def blocks(spec, x, t):
        """x: float32 [n, rows, 16]; scale bytes [n] and codes like x."""
        with np.errstate(all="ignore"):
            return getattr(Many, "q_" + spec.quant.replace("4", "four"))(spec, x, t)

    @staticmethod
    def amax(x):
        return np.abs(x).max(axis=(1, 2))

    @staticmethod
    def wide(s):
        return s[:, None, None]

    @staticmethod
    def q_torchao(spec, x, _):
        f = np.float32
        x = Many.bf16(x)
        t = np.minimum(np.maximum(Many.amax(x) / f(6), f(2.0 ** -6)), f(448))
        c = Many.e4m3(t)
        y = x / Many.wide(Many.value[c])
        return c, Many.code_even(np.minimum(np.abs(y), f(6))) | Many.sign(y)

    @staticmethod
    def q_native(spec, x, _):
        f = np.float32
        t = Many.amax(x) / f(6)
        if spec.source == "bf16":
            t = Many.bf16(t)
        elif spec.source == "f16":
            t = t.astype(np.float16).astype(f)
        c = Many.e4m3(np.minimum(np.maximum(t, f(2.0 ** -16)), f(448)))
        y = x / Many.wide(Many.value[c] + f(1e-12))
        q = Many.code_away(np.minimum(np.abs(y), f(6)))
        return c, q | (y < 0).astype(np.uint8) << np.uint8(3)

    @staticmethod
    def q_max(spec, x, t):
        f = np.float32
        a = Many.amax(x)
        s_enc, scale2 = Many.scale(spec, t)
        if spec.modelopt:
            zero = a == 0
            c = np.maximum(Many.e4m3(np.where(zero, f(1), a / (f(6) * scale2))), 1)
            q = Many.code_even(np.abs(x / Many.wide(Many.value[c] * scale2)))
            q |= (x < 0).astype(np.uint8) << np.uint8(3)
            q[zero] = 0
            return np.where(zero, np.uint8(0x38), c.astype(np.uint8)), q
        c = Many.e4m3(a * (s_enc * Many.sixth))
        enc = np.minimum(f(1) / (Many.value[c] * scale2), Many.flt_max)
        return c, Many.code_even(np.abs(x * Many.wide(enc))) | Many.sign(x)

    @staticmethod
    def q_fourover6(spec, x, t):
        f = np.float32
        s, scale2 = Many.scale(spec, t)
        base = Many.amax(x) / f(6) * s
        done = []
        for k in base, base * f(1.5):
            c = Many.e4m3(np.minimum(k, f(448)))
            enc = np.minimum(f(1) / (Many.value[c] * scale2), Many.flt_max)
            q = Many.code_even(np.abs(x * Many.wide(enc))) | Many.sign(x)
            e2m1 = Many.magnitude[q & 7] * np.where(q & 8, f(-1), f(1))
            d = e2m1 * Many.wide(Many.value[c]) * f(t) / f(1536) - x
            e = np.abs(d) if spec.mae else d * d
            err = np.zeros(x.shape[:2], f)
            for i in range(16):
                err = err + e[:, :, i]
            done.append((Many.rows(err), c, q))
        four = done[1][0] < done[0][0]
        return (np.where(four, done[1][1], done[0][1]),
                np.where(Many.wide(four), done[1][2], done[0][2]))

    @staticmethod
    def q_sweep(spec, x, t):
        f = np.float32
        s, _ = Many.scale(spec, t)
        a = Many.amax(x)
        y = x * s
        m = np.abs(y)
        c0 = Many.e4m3(np.minimum(a / f(6) * s, f(448))).astype(np.int64)
        tries = ([np.full(len(x), c) for c in range(1, 0x7F)] if spec.exhaustive else
                 [c0 + k for k in range(-2, 7)])
        if spec.quant == "sweepfp8":
            tries = [np.full(len(x), c) for c in FP8]
        best = np.full(len(x), np.nan, f)
        scale = np.zeros(len(x), np.uint8)
        codes = np.zeros(x.shape, np.uint8)
        for c in tries:
            legal = (c >= 1) & (c <= 0x7E) & (a > 0)
            if spec.quant == "sweepfp8" and not spec.exhaustive:
                legal &= np.where(c0 < 8, c == 8, (c >= c0 - 3) & (c <= c0 + 6))
            c = np.where(legal, c, 1)
            d = Many.wide(Many.value[c])
            q = Many.nearest(m, d)
            r = m - Many.magnitude[q] * d
            err = Many.tree(r * r)
            won = legal & (np.isnan(best) | (err < best))
            best = np.where(won, err, best)
            scale = np.where(won, c, scale).astype(np.uint8)
            codes = np.where(Many.wide(won), q, codes)
        return scale, codes | Many.sign(x)

    q_sweep1 = q_sweepfp8 = q_sweep

    @staticmethod
    def nearest(m, d):
        f = np.float32
        return ((m > f(.25) * d).astype(np.uint8) + (m >= f(.75) * d) +
                (m > f(1.25) * d) + (m >= f(1.75) * d) + (m > f(2.5) * d) +
                (m >= f(3.5) * d) + (m > f(5) * d))

    @staticmethod
    def tree(r):
        """Pairwise in each row of 16."""
        for w in 8, 4, 2, 1:
            r = r[:, :, :w] + r[:, :, w:2 * w]
        return Many.rows(r[:, :, 0])

    @staticmethod
    def rows(err):
        """The sum over the rows of a 16x16 block, pairwise, too, as TransformerEngine
        does for 4over6."""
        for w in (8, 4, 2, 1) if err.shape[1] == 16 else ():
            err = err[:, :w] + err[:, w:2 * w]
        return err[:, 0]

    @staticmethod
    def pack(codes):
        q = codes.reshape(-1, 2)
        return (q[:, 0] | q[:, 1] << np.uint8(4)).tobytes()

    @staticmethod
    def tensor(spec, x, t=None):
        x = np.asarray(x, np.float32).reshape(-1, 1, 16)
        if t is None:
            t = np.abs(x).max(initial=0)
        scales, codes = Many.blocks(spec, x, np.float32(t))
        scale2 = float(Many.scale(spec, t)[1]) if LEVELS[spec.quant] == 2 else None
        return scale2, scales.tobytes(), Many.pack(codes)

    @staticmethod
    def values(scale2, scales, codes):
        """The first product is exact."""
        b = np.frombuffer(codes, np.uint8)
        q = np.stack([b & 15, b >> 4], axis=1).reshape(-1, 16)
        v = Many.magnitude[q & 7] * np.where(q & 8, np.float32(-1), np.float32(1))
        v = v * Many.value[np.frombuffer(scales, np.uint8)][:, None]
        return (v * np.float32(1 if scale2 is None else scale2)).reshape(-1)

    # 16x16 blocks: x [rows, columns], both multiples of 16.

    @staticmethod
    def tiles(x):
        r, k = x.shape
        return x.reshape(r // 16, 16, k // 16, 16).swapaxes(1, 2).reshape(-1, 16, 16)

    @staticmethod
    def untiles(b, r, k):
        return b.reshape(r // 16, k // 16, 16, -1).swapaxes(1, 2).reshape(r, -1)

    @staticmethod
    def squares(spec, x, t=None):
        """As tensor, in 16x16 blocks; the last may have fewer rows."""
        r, k = x.shape
        if t is None:
            t = np.abs(x).max()
        full = np.zeros((-(-r // 16) * 16, k), np.float32)
        full[:r] = x
        c, q = Many.blocks(spec, Many.tiles(full), np.float32(t))
        c = np.repeat(c[:, None, None], 16, axis=1)
        scale2 = float(Many.scale(spec, t)[1]) if LEVELS[spec.quant] == 2 else None
        return (scale2, Many.untiles(c, len(full), k)[:r].tobytes(),
                Many.pack(Many.untiles(q, len(full), k)[:r]))

    @staticmethod
    def philox(c, key):
        """Four uint32 arrays; c: four of them or numbers."""
        c = [np.asarray(v, np.uint64) for v in np.broadcast_arrays(*c)]
        k0, k1 = key
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        for _ in range(10):
            a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            c = [b >> shift ^ c[1] ^ np.uint64(k0), b & low,
                 a >> shift ^ c[3] ^ np.uint64(k1), a & low]
            k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
        return [v.astype(np.uint32) for v in c]

    @staticmethod
    def stochastic(x, t, seed, step, row, first=0):
        """As tensor: max with stochastic rounding of the elements; first is the index
        of the first, a multiple of 4."""
        spec = Spec("max")
        f = np.float32
        x = x.reshape(-1, 1, 16)
        c, _ = Many.blocks(spec, x, t)
        with np.errstate(all="ignore"):
            enc = np.minimum(f(1) / (Many.value[c] * Many.scale(spec, t)[1]),
                             Many.flt_max)
            y = np.minimum(np.abs(x * Many.wide(enc)), f(6)).reshape(-1)
        index = np.arange(y.size // 4, dtype=np.uint64) + np.uint64(first // 4)
        words = Many.philox((index & np.uint64(0xFFFFFFFF), index >> np.uint64(32),
                             np.uint64(row), np.uint64(4)), (seed, step))
        u = (np.stack(words, axis=1).reshape(-1)[:y.size] >> 8).astype(f) * f(2.0 ** -24)
        lo = np.searchsorted(Many.magnitude, y, side="right") - 1
        hi = np.minimum(lo + 1, 7)
        width = np.where(lo == 7, f(1), Many.magnitude[hi] - Many.magnitude[lo])
        q = np.where(u < (y - Many.magnitude[lo]) / width, hi, lo).astype(np.uint8)
        return (float(Many.scale(spec, t)[1]), c.tobytes(),
                Many.pack(q | Many.sign(x).reshape(-1)))

    @staticmethod
    def hadamard(x):
        """RHT16 of each 16 consecutive values, sums from the first on."""
        f = np.float32
        g = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1], f)
        x = x.reshape(-1, 16)
        out = np.empty_like(x)
        for j in range(16):
            acc = np.zeros(len(x), f)
            for i in range(16):
                acc = acc + x[:, i] * g[i] * f((-1) ** bin(i & j).count("1"))
            out[:, j] = acc * f(.25)
        return out.reshape(-1)


Many.init()
BEST = One if np is None else Many


def decode_pure(scale2, scales, codes):
    out = []
    for i, b in enumerate(codes):
        for q in b & 15, b >> 4:
            v = (-1 if q & 8 else 1) * MAGNITUDE[q & 7] * E4M3[scales[i // 8]]
            out.append(f32(v * (1.0 if scale2 is None else scale2)))
    return out


def decode(scale2, scales, codes):
    """float32 values of a tensor, as a list or an array."""
    return (decode_pure if np is None else Many.values)(scale2, scales, codes)


# ---- tensors of files -------------------------------------------------------

class Refused(Exception):
    pass


LETTER = {"f16": "e", "f32": "f"}
SIZE = {"f16": 2, "bf16": 2, "f32": 4}


def load(dtype, data):
    """The binary32 numbers of a payload; a list, or an array with numpy."""
    if np is not None:
        if dtype == "bf16":
            u = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
            return u.view(np.float32)
        return np.frombuffer(data, "<f2" if dtype == "f16" else "<f4").astype(np.float32)
    n = len(data) // SIZE[dtype]
    if dtype == "bf16":
        return [from_bits32(u << 16) for u in struct.unpack("<%dH" % n, data)]
    return list(struct.unpack("<%d%s" % (n, LETTER[dtype]), data))


def store(dtype, values):
    """Rounded to nearest even; Refused with an index where f16 overflows."""
    if np is not None:
        v = np.asarray(values, np.float32)
        if dtype == "bf16":
            return (Many.bf16(v).view(np.uint32) >> 16).astype("<u2").tobytes()
        if dtype == "f32":
            return v.astype("<f4").tobytes()
        with np.errstate(over="ignore"):
            h = v.astype("<f2")
        over = np.nonzero(np.isinf(h) & ~np.isinf(v))[0]
        if over.size:
            raise Refused("index %d" % over[0])
        return h.tobytes()
    out = bytearray()
    for i, v in enumerate(values):
        if dtype == "bf16":
            out += struct.pack("<H", bits32(bf16(v)) >> 16)
        elif dtype == "f16" and math.isinf(f16(v)):
            raise Refused("index %d" % i)
        else:
            out += struct.pack("<" + LETTER[dtype], v)
    return bytes(out)


def not_finite(dtype, data):
    """(index, bits) of the first NaN or infinity of a payload, else None."""
    size = SIZE[dtype]
    exponent = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000}[dtype]
    if np is not None:
        u = np.frombuffer(data, "<u%d" % size)
        bad = np.nonzero(u & exponent == exponent)[0]
        return (int(bad[0]), int(u[bad[0]])) if bad.size else None
    for i, u in enumerate(struct.unpack("<%d%s" % (len(data) // size, " HI"[size // 2]),
                                        data)):
        if u & exponent == exponent:
            return i, u
    return None


def default_selection(t):
    return (len(t.shape) == 2 and any(q in t.name for q in containers.QUANTIZED) and
            "embed_tokens" not in t.name and "norm" not in t.name)


def selected(t, select, exclude):
    if any(fnmatch.fnmatchcase(t.name, g) for g in exclude):
        return False
    if select:
        return any(fnmatch.fnmatchcase(t.name, g) for g in select)
    return default_selection(t)


def group_of(name):
    """What shares a tensor scale with name: the name of the group."""
    for fused, members in (("qkv", ("q_proj", "k_proj", "v_proj")),
                           ("gate_up", ("gate_proj", "up_proj"))):
        for m in members:
            if name.endswith("." + m + ".weight"):
                return name[:-len(m) - 7] + fused
    return name


def read_tensors(path):
    """Tensors with their payloads."""
    out = containers.read_any(path)
    for t in out:
        t.data = bytes(t.file[t.offset:t.offset + t.nbytes(path.endswith(".dat"))])
    return out


def plan(tensors, o):
    """(chosen tensors, name -> values, name -> T)."""
    chosen = [t for t in tensors if selected(t, o["select"], o["exclude"])]
    values, amax = {}, {}
    for t in chosen:
        if len(t.shape) != 2 or t.dtype not in SIZE or t.shape[1] % 16:
            raise Refused("%s: %s %s" % (t.name, t.dtype, t.shape))
        bad = not_finite(t.dtype, t.data)
        if bad:
            raise Refused("%s: index %d: %0*x" % (t.name, bad[0],
                                                  2 * SIZE[t.dtype], bad[1]))
        values[t.name] = load(t.dtype, t.data)
        amax[t.name] = float(max(map(abs, values[t.name]), default=0)
                             if np is None else
                             np.abs(values[t.name]).max(initial=0))
    if o["share"]:
        of_group = {}
        for n in amax:
            g = group_of(n)
            of_group[g] = max(of_group.get(g, 0.0), amax[n])
        amax = {n: of_group[group_of(n)] for n in amax}
    return chosen, values, amax


def spec_of(t, o):
    return Spec(o["quant"], o["variant"], o["criterion"], o["exhaustive"], t.dtype)


def quantize(tensors, o):
    """The tensors of the output, in order."""
    chosen, values, amax = plan(tensors, o)
    names = {t.name for t in chosen}
    out = []
    for t in tensors:
        if t.name not in names:
            if o["seed"] and t.dtype in ("bf16", "f32"):
                t = containers.Tensor(t.name, "f16", t.shape,
                                      store("f16", load(t.dtype, t.data)))
            out.append(t)
            continue
        r, k = t.shape
        scale2, scales, codes = BEST.tensor(spec_of(t, o), values[t.name], amax[t.name])
        out.append(containers.Tensor(t.name + ".qdata", "u8", (r, k // 2), codes))
        out.append(containers.Tensor(t.name + ".scale", "f8_e4m3", (r, k // 16), scales))
        if scale2 is not None:
            out.append(containers.Tensor(t.name + ".scale2", "f32", (1,),
                                         struct.pack("<f", scale2)))
    return out


def report(tensors, o):
    """Lines of (name, shape, sqnr_db, mse, max_err, zero_scales), in doubles."""
    chosen, values, amax = plan(tensors, o)
    out = []
    for t in chosen:
        x = values[t.name]
        scale2, scales, codes = BEST.tensor(spec_of(t, o), x, amax[t.name])
        y = decode(scale2, scales, codes)
        d = [float(a) - float(b) for a, b in zip(x, y)]
        signal = math.fsum(float(v) ** 2 for v in x)
        noise = math.fsum(v * v for v in d)
        sqnr = (10 * math.log10(signal / noise) if noise and signal else
                math.inf if not noise else -math.inf)
        out.append((t.name, t.shape, sqnr, noise / len(d) if d else 0.0,
                    max(map(abs, d), default=0.0), scales.count(0)))
    return out


def pairs(tensors):
    """Group a .dat's entries: tensors, with .parts (codes, scales, scale2 or None)
    where they are NVFP4."""
    by_name = {t.name: t for t in tensors}
    out = []
    for t in tensors:
        if t.name.endswith(".qdata"):
            base = t.name[:-6]
            s2 = by_name.get(base + ".scale2")
            v = containers.Tensor(base, "nvfp4", (t.shape[0], 2 * t.shape[1]))
            v.parts = (struct.unpack("<f", s2.data)[0] if s2 else None,
                       by_name[base + ".scale"].data, t.data)
            out.append(v)
        elif not t.name.endswith((".scale", ".scale2")):
            t.parts = None
            out.append(t)
    return out


def dequantize(tensors, dtype, tied):
    out = []
    for t in pairs(tensors):
        if tied and t.name == "lm_head.weight":
            e = [e for e in tensors if e.name == "model.embed_tokens.weight"][0]
            t = containers.Tensor(t.name, e.dtype, e.shape, e.data)
        elif t.parts:
            t = containers.Tensor(t.name, dtype, t.shape, store(dtype, decode(*t.parts)))
        out.append(t)
    return out


# ---- checks of itself -------------------------------------------------------

GOLDEN_ROW = (
    "0000 3a83 bb03 3b65 3ba4 bbf6 3c24 3c4d 3c76 bca4 3ccd 3cf6 3d0f 3d24 bd4d 3d76 "
    "38d2 b952 3a03 3a83 ba90 3aaa 3ac5 badf 3b03 3b10 bb24 3b38 3b45 3b58 bb6c 3b83 "
    + "0000 8000 " * 8)
GOLDEN = [
    (Spec("torchao", source="bf16"), None, "080808",
     "00089121b243546d 8000088000080018 8080808080808080"),
    (Spec("native", source="bf16"), None, "050000",
     "0018a132c355667f f7777ff7777f777f 0000000000000000"),
    (Spec("max", source="bf16"), 0x37bb6db7, "7e5f00",
     "0018a122c354657e 90314bd4556e667f 8080808080808080"),
    (Spec("max", "modelopt", source="bf16"), 0x37bb6db7, "7e5f38",
     "0018a122c354657e 90314bd4556e667f 0000000000000000"),
    (Spec("4over6", source="bf16"), 0x38240000, "7c5d00",
     "00089121b243546d 80213ab3445c556e 8080808080808080"),
    (Spec("sweep", source="bf16"), 0x38240000, "775c00",
     "0018a132c355667f 80213ac3445d656e 8080808080808080"),
]
ALL_SPECS = [("torchao",), ("native",), ("sweep1",), ("sweep1", None, "mse", True),
             ("max",), ("max", "modelopt"), ("4over6",), ("4over6", None, "mae"),
             ("sweep",), ("sweep", None, "mse", True),
             ("sweepfp8",), ("sweepfp8", None, "mse", True)]


def need(cond, *what):
    if not cond:
        print("nvfp4.py: %s" % " ".join(map(str, what)), file=sys.stderr)
        sys.exit(1)


def self_test():
    row = bytes.fromhex(GOLDEN_ROW)
    row = b"".join(row[i:i + 2][::-1] for i in range(0, len(row), 2))
    for how in (One,) if np is None else (One, Many):
        for spec, scale2, scales, codes in GOLDEN:
            got = how.tensor(spec, list(load("bf16", row)))
            need((got[0] and bits32(got[0])) == scale2 and
                 got[1] == bytes.fromhex(scales) and got[2] == bytes.fromhex(codes),
                 "golden row:", how.__name__, spec.quant, got)
    # E4M3 against a search over all bytes.
    for c in range(0x7E):
        a, b = E4M3[c], E4M3[c + 1]
        mid = (a + b) / 2
        for x, want in ((a, c), (mid, c + c % 2), (b, c + 1),
                        (f32(mid + (b - a) / 1024), c + 1),
                        (f32(mid - (b - a) / 1024), c)):
            need(e4m3(x) == want, "e4m3", x, e4m3(x), want)
    need(e4m3(464.0) == e4m3(math.inf) == 0x7E and e4m3(1e-40) == 0, "e4m3: ends")
    need(FP8 == sorted([8 * e for e in range(1, 16)] + [8 * e + 4 for e in range(2, 16)] +
                       [8 * e + 2 for e in range(3, 16)]) and len(FP8) == 42, "42 scales")
    if np is None:
        print("nvfp4.py: numpy is not here: one of two implementations is tested")
        return 0
    x = np.array([v for c in range(0x7E) for m in ((E4M3[c] + E4M3[c + 1]) / 2,)
                  for v in (E4M3[c], m, m * (1 - 2**-20), m * (1 + 2**-20))] +
                 [447.9, 448, 464, np.inf, 1e-40], np.float32)
    need([e4m3(float(v)) for v in x] == list(Many.e4m3(x)), "e4m3: numpy")
    need([int(v) for v in Many.philox((0, 0, 0, 0), (0, 0))] ==
         [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8], "philox")
    rng = np.random.default_rng(1)
    for args in ALL_SPECS:
        for source in SIZE:
            spec = Spec(*args, source=source)
            for scale in 1e-44, 1e-39, 1e-5, .02, 1, 300, 3e4:
                n = 16 * (4 if spec.exhaustive else 40)
                x = rng.standard_normal(n) * 2.0 ** rng.integers(-12, 1, n) * scale
                x[rng.random(n) < .1] = -0.0
                x[16:32] = 0
                x = load(source, store(source, np.clip(x, -6e4, 6e4)))
                need(One.tensor(spec, [float(v) for v in x]) == Many.tensor(spec, x),
                     "One and Many differ:", args, source, scale)
    return 0


def check_golden(path):
    """Equal codes and scales for torchao and max; the sweep's error against the
    recorded least one."""
    ts = {t.name: t for t in read_tensors(path)}
    kinds = sorted(n[:-3] for n in ts if n.endswith(".in"))
    failed = 0
    for k in kinds:
        dtype = ts[k + ".in"].dtype
        x = load(dtype, ts[k + ".in"].data)
        words = []
        for q in "torchao", "max":
            scale2, scales, codes = BEST.tensor(Spec(q, source=dtype), x)
            ours = decode(scale2, scales, codes)
            theirs = load("f32", ts["%s.%s.dequant" % (k, q)].data)
            off = max((abs(a - b) / abs(b) if b else abs(a)
                       for a, b in zip(map(float, ours), map(float, theirs))))
            same = (scales == ts["%s.%s.scale" % (k, q)].data,
                    codes == ts["%s.%s.qdata" % (k, q)].data,
                    q != "max" or struct.pack("<f", scale2) == ts[k + ".max.scale2"].data,
                    off <= 2.0 ** -22)
            words.append("%s %s" % (q, "equal" if all(same) else
                                    "DIFFERS (scales, codes, scale2, values: %s)" % (same,)))
            failed += not all(same)
        best = struct.unpack("<%dd" % (len(x) // 16), ts[k + ".best_sse"].data)
        scale2, scales, codes = BEST.tensor(Spec("sweep", source=dtype), x)
        y = decode(scale2, scales, codes)
        err = [(float(a) - float(b)) ** 2 for a, b in zip(x, y)]
        block = [math.fsum(err[i:i + 16]) for i in range(0, len(err), 16)]
        loss = 10 * math.log10(math.fsum(block) / math.fsum(best))
        worst = max((b / a for a, b in zip(best, block) if a > 0), default=1)
        more = sum(b > a * (1 + 1e-5) for a, b in zip(best, block))
        words.append("sweep %+.5f dB against the best, %d of %d blocks above it, "
                     "worst %.4f" % (loss, more, len(best), worst))
        print("%-13s %s" % (k, "; ".join(words)))
    return failed != 0


def inexact(tensors):
    """Values, without tensor scale and divided by 4, that are no E4M3 numbers; values."""
    numbers, ts = set(E4M3[:0x7F]), {t.name: t.data for t in tensors}
    wrong = total = 0
    for name, scales in ts.items():
        if not name.endswith(".scale"):
            continue
        codes = ts[name[:-5] + "qdata"]
        for i, byte in enumerate(codes):
            for code in byte & 7, byte >> 4 & 7:
                wrong += MAGNITUDE[code] * E4M3[scales[i // 8]] / 4 not in numbers
        total += 2 * len(codes)
    return wrong, total


def sqnr_table():
    """10 log10 of signal to noise of 2^20 bf16 samples; one seed."""
    n, rng = 1 << 20, np.random.default_rng(0)
    data = {"Gaussian": rng.standard_normal(n) * .02,
            "Laplace": rng.laplace(size=n) * .02,
            "Student t4": rng.standard_t(4, n) * .02}
    x = rng.standard_normal((512, 2048)) * .02
    x[:, ::64] *= 20
    data["outliers"] = x.reshape(-1)

    def db(x, y):
        x = x.astype(np.float64)
        return 10 * np.log10((x * x).sum() / ((x - y) ** 2).sum())

    print("%-11s" % "data" + "".join("%9s" % h for h in (
        "max", "4over6", "sweep", "sweepfp8", "2D max", "2D 4/6", "2D sweep", "SR", "RHT16")))
    for name, x in data.items():
        x = load("bf16", store("bf16", x.astype(np.float32)))
        row = [db(x, Many.values(*Many.tensor(Spec(q, source="bf16"), x)))
               for q in ("max", "4over6", "sweep", "sweepfp8")]
        m = x.reshape(512, 2048)
        row += [db(x, Many.values(*Many.squares(Spec(q), m)))
                for q in ("max", "4over6", "sweep")]
        row.append(db(x, Many.values(*Many.stochastic(x, np.abs(x).max(), 1, 1, 0))))
        h = Many.hadamard(x)
        back = Many.values(*Many.tensor(Spec("max"), h))
        # The transform is orthogonal: the error is the same on both sides.
        row.append(db(h, back))
        print("%-11s" % name + "".join("%9.2f" % v for v in row))
    return 0


def main(argv):
    try:
        opts, args = getopt.gnu_getopt(argv, "s:x:", [
            "quant=", "variant=", "criterion=", "exhaustive", "share-scale=", "compat=",
            "dtype=", "tied", "self-test", "golden=", "sqnr"])
    except getopt.GetoptError as e:
        print("nvfp4.py: %s" % e, file=sys.stderr)
        return 2
    o = dict(opts)
    if "--self-test" in o:
        return self_test()
    if "--golden" in o:
        return check_golden(o["--golden"])
    if "--sqnr" in o:
        return sqnr_table()
    seed = "--compat" in o
    quant = o.get("--quant", "torchao" if seed else "sweep")
    share = o.get("--share-scale")
    settings = {
        "quant": quant, "variant": o.get("--variant"),
        "criterion": o.get("--criterion", "mse"), "exhaustive": "--exhaustive" in o,
        "share": share == "qkv,gate_up" if share else quant in SHARED,
        "select": [v for k, v in opts if k == "-s"],
        "exclude": [v for k, v in opts if k == "-x"], "seed": seed,
    }
    try:
        if len(args) == 3 and args[0] == "quantize" and quant in QUANTS:
            out = quantize(read_tensors(args[1]), settings)
            containers.put(args[2], containers.dat_bytes(out))
        elif len(args) == 3 and args[0] == "dequant":
            out = dequantize(read_tensors(args[1]), o.get("--dtype", "f16"),
                             "--tied" in o)
            containers.put(args[2], containers.dat_bytes(out))
        elif len(args) == 2 and args[0] == "inexact":
            print(*inexact(read_tensors(args[1])))
        elif len(args) == 2 and args[0] == "report" and quant in QUANTS:
            for name, shape, *rest in report(read_tensors(args[1]), settings):
                print("\t".join([name, "x".join(map(str, shape))] +
                                [repr(v) for v in rest]))
        else:
            print(__doc__.strip(), file=sys.stderr)
            return 2
    except (Refused, containers.Bad, OSError) as e:
        print("nvfp4.py: %s" % e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
