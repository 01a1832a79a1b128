#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""XXH3-128, seed 0, every length: an oracle for the hashes that nibble writes.

Written from the public description of the algorithm (xxHash,
doc/xxhash_spec.md, BSD licence), standard library only, so that the tests
need no library that the programs use.  Slow (a few MB/s) and meant to be.

usage: xxh3.py FILE...      `HEX  FILE` a line, as xxhsum -H2 says it
       xxh3.py --self-test  known values of every length class
"""
import struct
import sys

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF

P32_1, P32_2, P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
P64_1 = 0x9E3779B185EBCA87
P64_2 = 0xC2B2AE3D27D4EB4F
P64_3 = 0x165667B19E3779F9
P64_4 = 0x85EBCA77C2B2AE63
P64_5 = 0x27D4EB2F165667C5
MX1 = 0x165667919E3779F9
MX2 = 0x9FB21C651E98DF25

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")

STRIPE, BLOCK = 64, 1024    # 16 stripes a block: (192 - 64) / 8


def r32(b, i):
    return int.from_bytes(b[i:i + 4], "little")


def r64(b, i):
    return int.from_bytes(b[i:i + 8], "little")


def swap32(x):
    return int.from_bytes(x.to_bytes(4, "little"), "big")


def swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def fold(a, b):
    p = a * b
    return (p ^ (p >> 64)) & M64


def avalanche(h):
    h ^= h >> 37
    h = h * MX1 & M64
    return h ^ (h >> 32)


def avalanche64(h):             # the final mix of XXH64
    h ^= h >> 33
    h = h * P64_2 & M64
    h ^= h >> 29
    h = h * P64_3 & M64
    return h ^ (h >> 32)


def len_0(_):
    return (avalanche64(r64(SECRET, 64) ^ r64(SECRET, 72)),
            avalanche64(r64(SECRET, 80) ^ r64(SECRET, 88)))


def len_1_3(b):
    n = len(b)
    lo = b[0] << 16 | b[n >> 1] << 24 | b[n - 1] | n << 8
    hi = swap32(lo)
    hi = (hi << 13 | hi >> 19) & M32
    return (avalanche64(lo ^ r32(SECRET, 0) ^ r32(SECRET, 4)),
            avalanche64(hi ^ r32(SECRET, 8) ^ r32(SECRET, 12)))


def len_4_8(b):
    n = len(b)
    key = (r32(b, 0) | r32(b, n - 4) << 32) ^ r64(SECRET, 16) ^ r64(SECRET, 24)
    p = key * (P64_1 + (n << 2) & M64)
    lo, hi = p & M64, p >> 64
    hi = hi + (lo << 1) & M64
    lo ^= hi >> 3
    lo ^= lo >> 35
    lo = lo * MX2 & M64
    lo ^= lo >> 28
    return lo, avalanche(hi)


def len_9_16(b):
    n = len(b)
    flip_lo = r64(SECRET, 32) ^ r64(SECRET, 40)
    flip_hi = r64(SECRET, 48) ^ r64(SECRET, 56)
    a, c = r64(b, 0), r64(b, n - 8)
    p = (a ^ c ^ flip_lo) * P64_1
    lo, hi = p & M64, p >> 64
    lo = lo + (n - 1 << 54) & M64
    c ^= flip_hi
    hi = hi + c + (c & M32) * (P32_2 - 1) & M64
    lo ^= swap64(hi)
    p = lo * P64_2
    return avalanche(p & M64), avalanche((p >> 64) + hi * P64_2 & M64)


def mix16(b, i, s):
    return fold(r64(b, i) ^ r64(SECRET, s), r64(b, i + 8) ^ r64(SECRET, s + 8))


def mix32(lo, hi, b, i, j, s):
    lo = lo + mix16(b, i, s) & M64
    lo ^= r64(b, j) + r64(b, j + 8) & M64
    hi = hi + mix16(b, j, s + 16) & M64
    hi ^= r64(b, i) + r64(b, i + 8) & M64
    return lo, hi


def finish_mid(lo, hi, n):
    return (avalanche(lo + hi & M64),
            -avalanche(lo * P64_1 + hi * P64_4 + n * P64_2 & M64) & M64)


def len_17_128(b):
    n = len(b)
    lo, hi = n * P64_1 & M64, 0
    for k in range((n - 1) // 32, -1, -1):
        lo, hi = mix32(lo, hi, b, 16 * k, n - 16 * (k + 1), 32 * k)
    return finish_mid(lo, hi, n)


def len_129_240(b):
    n = len(b)
    lo, hi = n * P64_1 & M64, 0
    for k in range(4):
        lo, hi = mix32(lo, hi, b, 32 * k, 32 * k + 16, 32 * k)
    lo, hi = avalanche(lo), avalanche(hi)
    for k in range(4, n // 32):
        lo, hi = mix32(lo, hi, b, 32 * k, 32 * k + 16, 3 + 32 * (k - 4))
    lo, hi = mix32(lo, hi, b, n - 16, n - 32, 103)
    return finish_mid(lo, hi, n)


STRIPE_KEYS = [struct.unpack_from("<8Q", SECRET, 8 * k) for k in range(16)]
LAST_KEY = struct.unpack_from("<8Q", SECRET, 121)
SCRAMBLE_KEY = struct.unpack_from("<8Q", SECRET, 128)


def accumulate(acc, data, key):
    for i in range(8):
        d = data[i]
        k = d ^ key[i]
        acc[i ^ 1] += d
        acc[i] = acc[i] + (k & M32) * (k >> 32) & M64
    for i in range(8):
        acc[i] &= M64


def merge(acc, s, start):
    h = start
    for i in range(4):
        h += fold(acc[2 * i] ^ r64(SECRET, s + 16 * i),
                  acc[2 * i + 1] ^ r64(SECRET, s + 16 * i + 8))
    return avalanche(h & M64)


def len_long(b):
    n = len(b)
    acc = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1]
    lanes = struct.Struct("<8Q").unpack_from
    blocks = (n - 1) // BLOCK
    for k in range(blocks):
        for j in range(16):
            accumulate(acc, lanes(b, BLOCK * k + STRIPE * j), STRIPE_KEYS[j])
        for i in range(8):
            a = acc[i]
            acc[i] = (a ^ a >> 47 ^ SCRAMBLE_KEY[i]) * P32_1 & M64
    for j in range((n - 1 - BLOCK * blocks) // STRIPE):
        accumulate(acc, lanes(b, BLOCK * blocks + STRIPE * j), STRIPE_KEYS[j])
    accumulate(acc, lanes(b, n - STRIPE), LAST_KEY)
    return (merge(acc, 11, n * P64_1 & M64),
            merge(acc, 117, ~(n * P64_2) & M64))


def xxh3_128(b):
    """XXH3-128 of a bytes-like object: 16 bytes, canonical (high byte first)."""
    b = bytes(b) if len(b) <= 240 else b
    n = len(b)
    if n == 0:
        lo, hi = len_0(b)
    elif n <= 3:
        lo, hi = len_1_3(b)
    elif n <= 8:
        lo, hi = len_4_8(b)
    elif n <= 16:
        lo, hi = len_9_16(b)
    elif n <= 128:
        lo, hi = len_17_128(b)
    elif n <= 240:
        lo, hi = len_129_240(b)
    else:
        lo, hi = len_long(b)
    return struct.pack(">QQ", hi, lo)


# n, hash of the first n bytes of pattern(); values from xxhsum 0.8.1.
VECTORS = [
    (0, "99aa06d3014798d86001c324468d497f"),
    (1, "a6cd5e9392000f6ac44bdff4074eecdb"),
    (2, "b519c2793d8967669093381c8763d62e"),
    (3, "656e81c56e41fe02c3489259e968ad9e"),
    (4, "ab5c3e7474d809db81a65295de8e7dde"),
    (7, "db0172c49725ff06572ab15ffe6cbd8a"),
    (8, "e4b9dd0b66ff3c50ebabbd0695002ff6"),
    (9, "82ddc95bc76007671c69c3f04aaed08c"),
    (15, "70b7db4639552dd1b36ce5c48d7bf7e7"),
    (16, "ddf6c1254d70f76794eaa17b20756f46"),
    (17, "263f67af63088041735fe434ded90c3c"),
    (31, "f1df8057a85df9ac55042d263d832451"),
    (32, "a86b514658f976a5407920045a9a834c"),
    (33, "a943d80ce26ed2928b59b4dfba3c9de4"),
    (63, "0e9191b30b715761130d8be417c7bc94"),
    (64, "d547448717805e49ab83f2ba7371c91f"),
    (65, "4545962d25065c6689fdc8cc6c5a9fbc"),
    (96, "1e7c5919a326305dea3425146d151833"),
    (97, "2c6cb8a421ba64c7e991df1fb06bddce"),
    (128, "381610c474b8adfb2dfb73305de1f91a"),
    (129, "4e05eed4427255d51f8b5092c9ba3be8"),
    (160, "c87cb8fb5248daf88230a5712a9e151d"),
    (239, "4a09358310a49581aba8c41bb452dcc4"),
    (240, "17ffe035d71c1ec8e6bf81617aad6c4a"),
    (241, "29bc1e9cffb6d79bc614c8c3575348c1"),
    (255, "60890358229d34b8af25cce47724fcfc"),
    (256, "a811eb0f2c5fed9d031c99a649cf3c5e"),
    (512, "95299d59b8a7aaadeafe02afa18954b0"),
    (1023, "689662038e54de2bad4de5a1e560d795"),
    (1024, "2a26921cd62d1bad1e28332b5ac3dfa0"),
    (1025, "c30c4fb57ab2dcf9634288c9f20aca18"),
    (1088, "0b7775847c4b9d08d5fd843114003bec"),
    (1089, "e10234905e6e1f11dd3b65fd578e9ee0"),
    (4096, "b02e211615c74664ce4c5a3bc979de5f"),
    (10007, "d602bccb918c97f7895148aa086d78c1"),
]


def pattern(n):
    """Period 251, the largest prime below 256: swapped blocks show."""
    return bytes((i * 7 + i // 251) % 251 for i in range(n))


def self_test():
    bad = 0
    for n, want in VECTORS:
        got = xxh3_128(pattern(n)).hex()
        if got != want:
            print("xxh3.py: %d bytes: got %s, want %s" % (n, got, want),
                  file=sys.stderr)
            bad += 1
    return 1 if bad else 0


def main(argv):
    if argv == ["--self-test"]:
        return self_test()
    for name in argv:
        with open(name, "rb") as f:
            print("%s  %s" % (xxh3_128(f.read()).hex(), name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
