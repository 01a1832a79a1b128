#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154,SC2030,SC2031  # output, lines, stderr_lines: set by run
# Every option of datpack: what it writes is judged by containers.py, what it
# converts by Python's struct, what it draws by a Philox of the test's own.
# Mere round trips are in roundtrip.bats, failing disks in atomic.bats.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    PYTHONPATH=$HERE:$BATS_FILE_TMPDIR
    export IN PYTHONPATH
    mkdir "$IN" "$IN/conf"
    cat >"$BATS_FILE_TMPDIR/make.py" <<'PY'
"""Inputs and helpers.  nvfp4_model(kind): the tiny model, its projections in NVFP4."""
import json, math, os, random, struct, sys
from fractions import Fraction
import containers as c, nvfp4 as reference
T = c.Tensor
E2M1 = [0.0, .5, 1, 1.5, 2, 3, 4, 6]


def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    return m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)


def nvfp4(codes, scales):
    nib = [v for b in codes for v in (b & 15, b >> 4)]
    return [(-1 if v & 8 else 1) * E2M1[v & 7] * e4m3(scales[i // 16])
            for i, v in enumerate(nib)]


def planes(name, rows, cols):
    """Codes and scales; products fit f16 exactly."""
    return (c.noise((name, "q"), rows * cols // 2),
            bytes(0x10 + b % 0x50 for b in c.noise((name, "s"), rows * cols // 16)))


def embedding_pair(t, quant):
    """What a quantizer makes of a head, which is a copy of the embedding."""
    return reference.quantize([t], {
        "quant": quant, "variant": "", "criterion": "mse", "exhaustive": False,
        "share": False, "seed": False, "select": ["*"], "exclude": []})


def nvfp4_model(kind, head=True, scale=0.3, own_head=False):
    """own_head: one that is not made of the embedding."""
    out = []
    for t in c.tiny_model("f16" if kind[0] == "d" else "bf16", 1, head):
        if not any(q in t.name for q in c.QUANTIZED):
            out.append(t)
            continue
        if t.name == "lm_head.weight" and not own_head:
            out += embedding_pair(t, {"dat1": "torchao", "dat2": "max"}[kind])
            continue
        r, k = t.shape
        codes, sc = planes(t.name, r, k)
        x = t.name[:-7]
        names = {"dat1": (".weight.qdata", ".weight.scale", None),
                 "dat2": (".weight.qdata", ".weight.scale", ".weight.scale2"),
                 "ct": (".weight_packed", ".weight_scale", ".weight_global_scale"),
                 "mo": (".weight", ".weight_scale", ".weight_scale_2")}[kind]
        out.append(T(x + names[0], "u8", (r, k // 2), codes))
        out.append(T(x + names[1], "f8_e4m3", (r, k // 16), sc))
        if names[2]:
            out.append(T(x + names[2], "f32", () if kind == "mo" else (1,),
                         struct.pack("<f", scale)))
    return out


def payloads(path):
    """name -> (dtype, shape, bytes)"""
    return {t.name: (t.dtype, list(t.shape), t.file[t.offset:t.offset + t.nbytes(
        path.endswith(".dat"))]) for t in c.read_any(path)}


# ---- rounding to nearest even, by exact fractions ----

def rne(x, bits, emin, emax):
    """x to a float of so many significant bits; None when it is too large."""
    if x == 0 or math.isnan(x):
        return x
    f = Fraction(x)
    e = math.frexp(x)[1] - 1
    e = max(e, emin)
    step = Fraction(2) ** (e - bits + 1)
    q = f / step
    n = q.numerator // q.denominator
    rest = q - n
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2):
        n += 1
    v = n * step
    if abs(v) >= Fraction(2) ** (emax + 1):
        return None
    return math.copysign(float(v), x)


def to_f16(x):
    return rne(x, 11, -14, 15)


def to_bf16(x):
    return rne(x, 8, -126, 127)


# ---- Philox4x32-10, from the paper ----

def philox(ctr, key):
    c0, c1, c2, c3 = ctr
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32 ^ c1 ^ k0, b & 0xFFFFFFFF,
                          a >> 32 ^ c3 ^ k1, a & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


assert philox((0, 0, 0, 0), (0, 0)) == (0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8)


def config(**more):
    o = dict(c.TINY)
    o.update(more)
    return json.dumps({k: v for k, v in o.items() if v is not ...}, indent=2) + "\n"


def main(d):
    os.chdir(d)
    c.make_config("conf/config.json", 0)
    c.put("conf/untied.json", config(tie_word_embeddings=False).encode())
    c.put("conf/no-flag.json", config(tie_word_embeddings=...).encode())
    c.put("tied.dat", c.dat_bytes(c.tiny_model("f16", 1, True)))
    c.put("nohead.dat", c.dat_bytes(c.tiny_model("f16", 1)))
    ts = c.tiny_model("f16", 1, True)
    ts[-1].data = bytes([ts[-1].data[0] ^ 1]) + ts[-1].data[1:]
    c.put("differs.dat", c.dat_bytes(ts))
    c.make_tiny_safetensors("tiny.safetensors", 1)
    c.make_tiny_ckpt("tiny.ckpt", 1)
    c.make_tiny_dir("dir", 1)
    c.put("nv1.dat", c.dat_bytes(nvfp4_model("dat1")))
    c.put("nv2.dat", c.dat_bytes(nvfp4_model("dat2")))
    for level in "1", "2":
        c.put("own%s.dat" % level, c.dat_bytes(nvfp4_model("dat" + level, own_head=True)))
    for kind in "ct", "mo":
        os.mkdir(kind)
        c.put(kind + "/model.safetensors", c.st_bytes(
            nvfp4_model(kind, False, 3.0 if kind == "ct" else 0.3)))
        c.make_config(kind + "/config.json", 0)
    c.make_portable_dat("plain.dat", 1)


if __name__ == "__main__":
    main(sys.argv[1])
PY
    python3 "$BATS_FILE_TMPDIR/make.py" "$IN"
}

setup() {
    mkdir "$BATS_TEST_TMPDIR/w" # bats keeps files of its own beside it
    cd "$BATS_TEST_TMPDIR/w" || return
    C=$IN/conf/config.json
}

pack() { quiet datpack -q "$@"; }
refuse_pack() { refuse "$1" datpack "${@:2}"; }

# put FILE TENSORS: a Python expression, a list of T(...).
put() {
    python3 -c '
import sys
from make import *
ts = eval(sys.argv[2])
c.put(sys.argv[1], c.dat_bytes(ts) if sys.argv[1].endswith(".dat") else c.st_bytes(ts))' "$@"
}

# has_head FILE: its name is there.
has_head() {
    containers list "$1" | cut -f 1 | has -x lm_head.weight
}

# tied_flag FILE: what the configuration inside says.
tied_flag() {
    datcat -q --meta "$1" | python3 -c '
import json, sys
print(json.load(sys.stdin)["config"]["tie_word_embeddings"])'
}

# ---- containers -------------------------------------------------------------

@test "--rename: an NVFP4 pair does not come to stand beside a plain tensor of its name" {
    nvquant -q -o four.dat "$IN/tied.dat"
    pair=$(datcat --names four.dat | sed -n 's/\.q_proj\.weight$/.q_proj.weight/p' | head -n 1)
    for out in r.dat r.safetensors; do
        refuse_pack 'the name "x.weight.qdata" would stand beside a plain tensor' -s "$pair" -s model.norm.weight \
            --rename "$pair=x" --rename model.norm.weight=x.weight -o $out four.dat
        pack -s "$pair" -s model.norm.weight --rename "$pair=x" --rename model.norm.weight=y.weight -o $out four.dat
    done
}

@test "the container is told by the suffix or by --to" {
    pack -o a.dat "$IN/plain.dat"
    cmp a.dat "$IN/plain.dat"
    pack -o a.safetensors "$IN/plain.dat"
    containers ours a.safetensors
    pack --config "$C" -o a.ckpt "$IN/tied.dat"
    containers read a.ckpt >/dev/null
    pack -o a/ "$IN/plain.dat"
    containers read a >/dev/null
    pack --to dat -o other "$IN/plain.dat"
    cmp other a.dat
    # --to decides where the suffix does not, and does not overrule it: no reader would
    # open such a file.
    refuse_pack 'a safetensors is written: expected .safetensors or no suffix' --to safetensors \
        -o b.dat "$IN/plain.dat"
    refuse_pack 'found .tok' --to dat -o b.tok "$IN/plain.dat"
    pack --to safetensors -o b.other "$IN/plain.dat"
    cmp b.other a.safetensors
    pack --to ckpt --config "$C" -o b "$IN/tied.dat"
    cmp b a.ckpt
    refuse_pack 'container' -o noidea "$IN/plain.dat"
    refuse_pack 'tar' --to tar -o x "$IN/plain.dat"
    refuse_pack 'directory' --to dat -o x/ "$IN/plain.dat"
    refuse_pack 'directory' --to ckpt --config "$C" -o x/ "$IN/tied.dat"
}

@test "a directory has no suffix of a file, and an output has a name" {
    local s o
    for s in dat ckpt gguf safetensors tok; do
        refuse_pack "-o p.$s: a modelopt model is a directory: expected no suffix of a container" \
            -q --config "$C" --to modelopt -o p.$s "$IN/tied.dat"
        refuse_pack "-o p.$s: a compressed-tensors model is a directory" \
            -q --config "$C" --to compressed-tensors -o p.$s "$IN/tied.dat"
    done
    pack --config "$C" --to modelopt -o p "$IN/tied.dat"
    [ -e p/config.json ]
    mkdir q
    for o in ./ . .. / q/. q/.. ''; do
        refuse_pack "-o \"$o\": expected a path that ends in the name" -q -f --to safetensors -o "$o" "$IN/tied.dat"
    done
    cd q
    ln -s . loop
    refuse_pack 'ends in no name' -q -f -o loop/ "$IN/tied.dat"
}

@test "a nibble.json that is damaged or cannot be read is told as the reason" {
    local n f
    pack -o d/ "$IN/tied.dat"
    n=$(stat -c %s d/nibble.json)
    cp d/nibble.json whole
    for f in 0 1 $((n / 2)) $((n - 2)); do
        head -c "$f" whole >d/nibble.json
        refuse_pack "d/nibble.json: byte " -q -f -o d/ "$IN/plain.dat"
        [[ ${stderr_lines[0]} == *"it is damaged, so that it is unknown what an earlier run wrote"* ]]
    done
    # Another program's is none of ours.
    echo '{"format":"other"}' >d/nibble.json
    refuse_pack 'which no earlier run wrote there' -q -f -o d/ "$IN/plain.dat"
    cp whole d/nibble.json
    refuse_pack 'd/: exists; -f replaces it' -q -o d/ "$IN/plain.dat"
    pack -f -o d/ "$IN/plain.dat"
}

@test "what is contradictory or cannot be written is refused in words" {
    refuse_pack 'compat torchsharp' --moments nvfp4 --config "$C" -o x.ckpt "$IN/tied.dat"
    for moments in f32 bf16; do
        refuse_pack 'nvfp4 or int8' --compat torchsharp --moments $moments --config "$C" -o x.ckpt "$IN/tied.dat"
    done
    refuse_pack master --compat torchsharp --master f32 --config "$C" -o x.ckpt "$IN/tied.dat"
    for quant in none sweep torchao; do
        refuse_pack 'quant native' --compat torchsharp --quant $quant --config "$C" -o x.ckpt "$IN/tied.dat"
    done
    refuse_pack 'quant none' --quant none -o x.dat "$IN/tied.dat"
    refuse_pack 'go with a quantizer, and --quant is none' --quant none --variant modelopt --config "$C" -o x.ckpt "$IN/tied.dat"
    refuse_pack 'quant none' --quant none --to modelopt --config "$C" -o x "$IN/tied.dat"
    refuse_pack variant --quant sweep --variant modelopt -o x.dat "$IN/tied.dat"
    refuse_pack criterion --quant max --criterion mae -o x.dat "$IN/tied.dat"
    put ../odd.dat '[T("model.layers.0.mlp.up_proj.weight", "f16", (2, 24), bytes(96))]'
    refuse_pack 'multiple of 16' --dtype nvfp4 -o x.dat ../odd.dat
    # A model for other programs.
    for kind in modelopt compressed-tensors gguf; do
        refuse_pack configuration --to $kind -o x "$IN/plain.dat"
        refuse_pack share-scale --to $kind --share-scale none --config "$C" -o x "$IN/tied.dat"
        refuse_pack dtype --to $kind --dtype f16 --config "$C" -o x "$IN/tied.dat"
        refuse_pack like --to $kind --like "$IN/nv2.dat" --config "$C" -o x "$IN/tied.dat"
        refuse_pack 'compat torchsharp' --to $kind --compat torchsharp --config "$C" -o x "$IN/tied.dat"
    done
    refuse_pack directory --to modelopt --config "$C" -o - "$IN/tied.dat"
    refuse_pack directory --to gguf --config "$C" -o x/ "$IN/tied.dat"
    refuse_pack 'multiple of 64' --to gguf --config "$C" -o x "$IN/tied.dat"
    refuse_pack '--tokenizer: goes with a GGUF or a model directory' -t "$C" -o x.dat "$IN/tied.dat"
}

@test "NVFP4 that a target cannot hold is refused until requantization is asked for" {
    # Two levels where readers know one.
    refuse_pack 'two levels' --compat torchsharp -o x.dat "$IN/nv2.dat"
    refuse_pack 'two levels' --compat torchsharp --dtype nvfp4 --quant sweep -o x.dat "$IN/tied.dat"
    refuse_pack 'one level' --like "$IN/nv1.dat" -o x.dat "$IN/nv2.dat"
    refuse_pack 'one level' --like "$IN/nv1.dat" -o x.dat "$IN/tied.dat"
    refuse_pack 'one level' --like "$IN/nv1.dat" --quant max -o x.dat "$IN/nv2.dat"
    run -0 --separate-stderr datpack --compat torchsharp --quant sweep1 -o a.dat "$IN/nv2.dat"
    [[ $stderr == *'quantized again'* ]]
    run -0 --separate-stderr datpack --like "$IN/nv1.dat" --quant native -o b.dat "$IN/nv2.dat"
    [[ $stderr == *'quantized again'* ]]
    # Tensor scales of their own where one is wanted: in files, and in a checkpoint.
    python3 - <<'PY'
from make import *
ts = nvfp4_model("dat2")
[t] = [t for t in ts if t.name == "model.layers.0.mlp.up_proj.weight.scale2"]
t.data = struct.pack("<f", 0.5)
c.put("own.dat", c.dat_bytes(ts))
PY
    pack --quant max --config "$C" -o max.ckpt "$IN/tied.dat"
    for kind in modelopt compressed-tensors; do
        refuse_pack share-scale --to $kind --config "$C" -o x own.dat
        run -0 --separate-stderr datpack --to $kind --share-scale qkv,gate_up \
            --config "$C" -o $kind own.dat
        # Just the two that are fused.
        [[ $stderr == *' 2 tensors by sweep'*'quantized again'* ]]
        refuse_pack share-scale --to $kind -o x max.ckpt
        run -0 --separate-stderr datpack --to $kind --share-scale qkv,gate_up \
            -o $kind.max max.ckpt
        [[ $stderr == *' by max'* && $stderr != *again* ]]
    done
}

@test "what is missing is said" {
    refuse_pack OUT "$IN/plain.dat"
    refuse_pack INPUT -o x.dat
    refuse_pack nosuch -o x.dat nosuch
    refuse_pack 'No such file' -o x.dat ''
    refuse_pack nodir -o nodir/x.dat "$IN/plain.dat"
    refuse_pack 'nosuch: no such file' --config nosuch -o x.dat "$IN/plain.dat"
    refuse_pack nosuch --like nosuch -o x.dat "$IN/plain.dat"
    cp "$IN/tied.dat" .
    refuse_pack configuration -o x.ckpt tied.dat
    refuse_pack config --init 1 -o x.dat
    refuse_pack INPUT --init 1 --config "$C" -o x.dat "$IN/plain.dat"
}

# ---- --dtype ----------------------------------------------------------------

@test "f32 to f16: nearest even, subnormals and ties" {
    put in.safetensors '[T("x", "f32", (len(V),), struct.pack("<%df" % len(V), *V))
        for V in [[s * v * 2.0 ** e for s in (1, -1) for e in (-30, -25, -24, -23, -15, -14, -1, 0, 14)
        for v in (0, 1, 1 + 2**-11, 1 + 2**-10, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20,
        1 + 2**-11 - 2**-20, 2 - 2**-11, 1.5, 1.75)]
        + [65504, -65504, 65503.99, math.inf * 0, 2**-24 * 1.5, 2**-25, 2**-25 + 2**-48]]]'
    pack --dtype f16 -o a.dat in.safetensors
    pack --dtype f16 -o a.safetensors in.safetensors
    python3 - <<'PY'
from make import *
src = payloads("in.safetensors")["x"][2]
v = struct.unpack("<%df" % (len(src) // 4), src)
for f in "a.dat", "a.safetensors":
    d, s, got = payloads(f)["x"]
    got = struct.unpack("<%de" % len(v), got)
    assert d == "f16"
    for x, g in zip(v, got):
        w = to_f16(x)
        assert (math.isnan(x) and math.isnan(g)) or (
            g == w and math.copysign(1, g) == math.copysign(1, w)), (x, g, w)
PY
}

@test "every f16 and bf16 survives the way through f32" {
    put in.safetensors '[T("h", "f16", (65536,), struct.pack("<65536H", *range(65536))),
        T("b", "bf16", (65536,), struct.pack("<65536H", *range(65536)))]'
    pack --dtype f32 -o wide.safetensors in.safetensors
    python3 - <<'PY'
from make import *
w = payloads("wide.safetensors")
bits = range(65536)
want = struct.unpack("<65536e", struct.pack("<65536H", *bits))
got = struct.unpack("<65536f", w["h"][2])
assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(want, got))
got = struct.unpack("<65536I", w["b"][2])
assert all(g == b << 16 for b, g in zip(bits, got) if (b & 0x7f80) != 0x7f80 or not b & 127)
PY
    pack -s h --dtype f32 -o h32.safetensors in.safetensors
    pack -s b --dtype f32 -o b32.safetensors in.safetensors
    pack --dtype bf16 -o b16.safetensors b32.safetensors
    # f16 cannot take its own infinities back: the NaN and finite ones only.
    python3 - <<'PY'
from make import *
got = payloads("b16.safetensors")["b"][2]
for i in range(65536):
    g = struct.unpack_from("<H", got, 2 * i)[0]
    nan = i & 0x7f80 == 0x7f80 and i & 127
    assert g == i or (nan and g & 0x7f80 == 0x7f80 and g & 127), (i, g)
w = payloads("h32.safetensors")["h"][2]
keep = [i for i in range(65536) if i & 0x7c00 != 0x7c00]
c.put("finite.safetensors", c.st_bytes([T("h", "f32", (len(keep),), b"".join(
    w[4 * i:4 * i + 4] for i in keep))]))
c.put("want", struct.pack("<%dH" % len(keep), *keep))
PY
    pack --dtype f16 -o h16.safetensors finite.safetensors
    datcat --payload h h16.safetensors | cmp - want
}

@test "random f32 and f64 to f16, bf16 and f32, without double rounding" {
    put in.safetensors '(lambda r: [
        T("f32", "f32", (4097,), struct.pack("<4097f", *[r.uniform(-1, 1) * 2.0 ** r.randint(-30, 15) for i in range(4097)])),
        T("f64", "f64", (4096,), struct.pack("<4096d", *[r.uniform(-1, 1) * 2.0 ** r.randint(-30, 15) for i in range(4096)])),
        # Just above a tie of the narrow type, where f32 would see a tie.
        T("trap", "f64", (8,), struct.pack("<8d", *[s * (1 + k * 2**-11 + d * 2**-40)
            for s in (1, -1) for k in (1, 3) for d in (1, -1)])),
        T("trapb", "f64", (8,), struct.pack("<8d", *[s * (1 + k * 2**-8 + d * 2**-40)
            for s in (1, -1) for k in (1, 3) for d in (1, -1)])),
        T("tiny", "f64", (6,), struct.pack("<6d", 2**-25, 2**-25 * (1 + 2**-50), 1e-300, -1e-300,
            3 * 2**-26, -0.0))])(random.Random(7))'
    local d
    for d in f16 bf16 f32; do
        pack --dtype $d -o $d.safetensors in.safetensors
    done
    python3 - <<'PY'
from make import *
src = payloads("in.safetensors")
read = {"f16": lambda b: struct.unpack("<%de" % (len(b) // 2), b),
        "f32": lambda b: struct.unpack("<%df" % (len(b) // 4), b),
        "f64": lambda b: struct.unpack("<%dd" % (len(b) // 8), b),
        "bf16": lambda b: [struct.unpack("<f", b"\0\0" + b[i:i + 2])[0]
                           for i in range(0, len(b), 2)]}
to = {"f16": to_f16, "bf16": to_bf16, "f32": lambda x: rne(x, 24, -126, 127)}
for d in to:
    got = payloads(d + ".safetensors")
    for name, (sd, shape, data) in src.items():
        assert got[name][0] == d
        for i, (x, g) in enumerate(zip(read[sd](data), read[d](got[name][2]))):
            w = to[d](x)
            assert g == w and math.copysign(1, g) == math.copysign(1, w), (
                d, name, i, x, g, w)
PY
}

@test "chunk boundaries and odd sizes are converted whole" {
    put in.safetensors '[T("n%d" % n, "f32", (n,), struct.pack("<%df" % n, *[i % 2048 for i in range(n)]))
        for n in (0, 1, 15, 16, 17, 4095, 4096, 4097, 262143, 262144, 262145)] + [T("scalar", "f32", (), struct.pack("<f", 3))]'
    pack --dtype f16 -j 3 -o a.safetensors in.safetensors
    pack --dtype f16 -j 1 -o b.safetensors in.safetensors
    cmp a.safetensors b.safetensors
    python3 - <<'PY'
from make import *
got = payloads("a.safetensors")
assert got.pop("scalar") == ("f16", [], struct.pack("<e", 3))
for name, (d, s, data) in got.items():
    n = int(name[1:])
    assert data == struct.pack("<%de" % n, *[i % 2048 for i in range(n)]), name
PY
}

# said WORDS OPTION...: success, and one line with just these words behind the name of OUT.
said() {
    local words=$1
    shift
    run -0 --separate-stderr datpack -f "$@"
    [ "${stderr#*: *: }" = "$words" ] || { echo "$stderr" && false; }
}

@test "values that are too small for the type are counted and said" {
    # 2.98e-8 and less are 0 in f16, 1.5 * 2^-24 is rounded, 2^-24 and 2^-14 are not.
    put in.safetensors '(lambda bf: [T("a", "bf16", (3,), bf(1, 2**-25, 0)),
        T("b", "bf16", (9,), bf(-2**-25, 2**-30, 1.5 * 2**-24, 2**-24, 2**-14, -0.0, 65280, 0, -1)),
        T("c", "bf16", (2,), bf(2**-14, 2**-24))])(
        lambda *v: b"".join(struct.pack("<f", x)[2:] for x in v))'
    said '4 values underflowed in f16, 3 of them to 0, most in "b" (3); --dtype bf16 or f32 keeps them' \
        -o x.dat in.safetensors
    pack -f -o q.dat in.safetensors
    cmp x.dat q.dat
    said '1 value underflowed in f16, 1 of them to 0, most in "a" (1); --dtype bf16 or f32 keeps them' \
        -s a --dtype f16 -o x.safetensors in.safetensors
    said '1 value underflowed in f16, 1 of them to 0, most in "a" (1); --dtype f32 keeps them' \
        --compat torchsharp -s a -o x.dat in.safetensors
    local d
    for d in bf16 f32 keep; do
        run -0 --separate-stderr datpack -f --dtype $d -s a -s c -o x.safetensors in.safetensors
        [ -z "$stderr" ]
    done
    run -0 --separate-stderr datpack -f --dtype bf16 -o x.dat in.safetensors
    [ -z "$stderr" ]
    run -0 --separate-stderr datpack -f -s c -o x.dat in.safetensors
    [ -z "$stderr" ]
    # Wider ones: just what the target has no normal number for.
    put wide.safetensors '[T("s", "f32", (4,), struct.pack("<4f", 1e-40, 2**-133, 1 + 2**-20, 2**-140)),
        T("d", "f64", (5,), struct.pack("<5d", 1e-300, -1e-40, 0.1, 2**-149, 1e-200))]'
    said '6 values underflowed in bf16, 4 of them to 0, most in "d" (4); --dtype f32 keeps them' \
        --dtype bf16 -o x.safetensors wide.safetensors
    said '3 values underflowed in f32, 2 of them to 0, most in "d" (3)' \
        --dtype f32 -o x.safetensors wide.safetensors
    # Any number of chunks and threads.
    put long.safetensors '[T("x", "f32", (200000,), struct.pack("<f", 1e-9) * 200000)]'
    for d in 1 3; do
        said '200000 values underflowed in f16, 200000 of them to 0, most in "x" (200000); --dtype bf16 or f32 keeps them' \
            -j $d --dtype f16 -o x.safetensors long.safetensors
    done
}

@test "values that are too large are counted, and what would hold them is said" {
    put in.safetensors '(lambda bf: [T("ok", "bf16", (1,), bf(1)),
        T("x", "bf16", (5,), bf(1, -1e5, 65280, 3e38, math.inf))])(
        lambda *v: b"".join(struct.pack("<f", x)[2:] for x in v))'
    refuse_pack 'element 1 is -99840, which f16 cannot hold; 3 of 5 values are too large; --dtype bf16 or f32' \
        -o x.dat in.safetensors
    refuse_pack '3 of 5 values are too large; --dtype f32' --compat torchsharp -o x.dat in.safetensors
    refuse_pack '3 of 5 values are too large; --dtype bf16 or f32' --dtype f16 -o x.safetensors in.safetensors
    pack --dtype bf16 -o x.dat in.safetensors
    cmp <(datcat --payload x x.dat) <(datcat --payload x in.safetensors)
    # No reader of a pipe takes it for whole.
    run -2 --separate-stderr bash -c 'datpack -q -o - in.safetensors >got.dat'
    run -1 datcat --verify got.dat
    put long.safetensors '[T("x", "f32", (200000,), struct.pack("<2f", 3.4e38, 3e38) * 100000)]'
    local j
    for j in 1 3; do
        refuse_pack 'element 0 is 3.3999999' -j $j --dtype bf16 -o x.safetensors long.safetensors
        [[ $stderr == *'100000 of 200000 values are too large; --dtype f32'* ]]
    done
    put double.safetensors '[T("x", "f64", (3,), struct.pack("<3d", 1, 1e39, -1e300))]'
    refuse_pack 'element 1 is 1e+39, which f32 cannot hold; 2 of 3 values are too large' \
        --dtype f32 -o x.safetensors double.safetensors
    # Only what keeps them is named.
    put wide.safetensors '[T("x", "f64", (3,), struct.pack("<3d", 1e5, 3.4e38, 1))]'
    refuse_pack '2 of 3 values are too large; --dtype f32 keeps them' \
        --dtype f16 -o x.safetensors wide.safetensors
    local d
    for d in f16 bf16; do
        refuse_pack '2 of 3 values are too large' --dtype $d -o x.safetensors double.safetensors
        [[ $stderr != *keeps* ]]
    done
    python3 - <<'PY'
from make import *
ts = c.tiny_model("f32", 1)
ts[-1].data = ts[-1].data[:-4] + struct.pack("<f", 3.4e38)
c.put("model.safetensors", c.st_bytes(ts))
PY
    refuse_pack '1 of 32 values are too large; --master f32' --config "$C" -o x.ckpt model.safetensors
    pack --master f32 --config "$C" -o x.ckpt model.safetensors
}

@test "what f16 cannot hold is refused by tensor and index; nothing is left" {
    local n
    for n in 0 5 262144; do
        put in.safetensors "[T('ok', 'f32', (1,), bytes(4)), T('big.x', 'f32', (262146,),
            bytes(4 * $n) + struct.pack('<f', -65505) + bytes(4 * (262145 - $n)))]"
        refuse_pack big.x --dtype f16 -o x.dat in.safetensors
        [[ ${stderr_lines[0]} =~ element\ ${n}[^0-9] ]]
        [[ ${stderr_lines[0]} == *65505* ]]
    done
    put in.safetensors '[T("x", "f64", (2,), struct.pack("<2d", 0, 65504.00001))]'
    refuse_pack x --dtype f16 -o x.safetensors in.safetensors
    put in.safetensors '[T("x", "f32", (2,), struct.pack("<2f", 0, math.inf))]'
    refuse_pack x -q --dtype f16 -o x/ in.safetensors
    # By default, too, where bf16 goes into a .dat.
    put in.safetensors '[T("x", "bf16", (2,), b"\0\0\x80\x47")]' # 65536
    refuse_pack x -o x.dat in.safetensors
    pack --dtype bf16 -o x.dat in.safetensors
    put in.safetensors '[T("x", "f64", (1,), struct.pack("<d", 1e39))]'
    refuse_pack x --dtype f32 -o y.safetensors in.safetensors
    refuse_pack x --dtype bf16 -o y.safetensors in.safetensors
}

@test "--dtype leaves integers alone; keep keeps" {
    put in.safetensors '[T("i", "i32", (2,), bytes(8)), T("e", "f8_e4m3", (2,), b"80"), T("h", "bf16", (1,), b"\x80\x3f"), T("d", "f64", (1,), bytes(8))]'
    pack --dtype f32 -o a.safetensors in.safetensors
    run -0 bash -c "python3 '$HERE/containers.py' list a.safetensors | cut -f 1,2 | tr '\t\n' ': '"
    [ "$output" = 'd:f32 h:f32 i:i32 e:f8_e4m3 ' ]
    pack --dtype keep -o k.safetensors in.safetensors
    run -0 bash -c "python3 '$HERE/containers.py' list k.safetensors | cut -f 1,2 | tr '\t\n' ': '"
    [ "$output" = 'd:f64 i:i32 h:bf16 e:f8_e4m3 ' ]
    pack -o k.dat in.safetensors
    run -0 bash -c "python3 '$HERE/containers.py' list k.dat | cut -f 1,2 | LC_ALL=C sort | tr '\t\n' ': '"
    [ "$output" = 'd:f64 e:f8_e4m3 h:f16 i:i32 ' ]
    put norm.safetensors '[T("model.norm.weight", "i32", (32,), bytes(128))]'
    pack --config "$C" --to modelopt -o m "$IN/tied.dat" norm.safetensors
    datcat -q m | has -F $'model.norm.weight\ti32\t[32]'
    refuse_pack f8 --dtype f8 -o x.dat in.safetensors
    refuse_pack dtype --dtype f32 --config "$C" -o x.ckpt "$IN/tied.dat"
}

# ---- which tensors, under which names ---------------------------------------

@test "later inputs replace tensors of earlier ones, in their place" {
    put a.dat '[T(n, "u8", (1,), b"a") for n in ("x", "y", "z")]'
    put b.dat '[T("y", "i8", (2,), b"bb"), T("w", "u8", (1,), b"b")]'
    pack -o o.dat a.dat b.dat
    python3 - <<'PY'
from make import *
assert list(payloads("o.dat").items()) == [
    ("x", ("u8", [1], b"a")), ("y", ("i8", [2], b"bb")), ("z", ("u8", [1], b"a")),
    ("w", ("u8", [1], b"b"))], payloads("o.dat")
PY
    pack -o p.dat b.dat a.dat
    [ "$(datcat -l p.dat | tr '\n' ' ')" = 'y w x z ' ]
    cmp <(datcat --payload y p.dat) <(printf a)
    # In the safetensors writer as well, which sorts.
    pack -o o.safetensors a.dat b.dat
    run -0 datcat --diff o.dat o.safetensors
}

@test "several inputs: a line says what each of them gave" {
    merged() {
        run -0 --separate-stderr datpack -f -o m.dat "$@"
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" -eq 1 ]
    }
    put a.dat '[T(n, "u8", (1,), b"a") for n in ("x", "y", "z")]'
    put b.dat '[T("y", "u8", (2,), b"bb"), T("z", "u8", (1,), b"b"), T("w", "u8", (1,), b"b")]'
    put c.dat '[T("v", "u8", (1,), b"c")]'
    merged a.dat b.dat
    [ "$stderr" = "datpack: m.dat: 3 tensors of a.dat, 2 replaced by b.dat's (1 of another shape), 1 added by b.dat" ]
    merged c.dat a.dat
    [ "$stderr" = 'datpack: m.dat: 1 tensor of c.dat, 3 added by a.dat' ]
    merged -x w a.dat c.dat b.dat
    [ "$stderr" = "datpack: m.dat: 3 tensors of a.dat, 1 added by c.dat, 2 replaced by b.dat's (1 of another shape)" ]
    merged -s 'v' a.dat c.dat
    [ "$stderr" = 'datpack: m.dat: 0 tensors of a.dat, 1 added by c.dat' ]
    # Nothing of one is left, or nothing was taken of it.
    cp a.dat d.dat
    merged a.dat d.dat
    [ "$stderr" = "datpack: m.dat: 3 tensors of a.dat, all 3 replaced by d.dat's" ]
    merged -s '[xyz]' a.dat c.dat
    [ "$stderr" = 'datpack: m.dat: 3 tensors of a.dat, none of c.dat' ]
    # Shards are one line, however many they are.
    datpack -q --init 1 --config "$C" --shard-size 4K -o shards/
    local shards=(shards/*.safetensors)
    [ ${#shards[@]} -gt 4 ]
    merged --dtype bf16 "${shards[@]}"
    [ "$stderr" = "datpack: m.dat: $(datcat -l m.dat | grep -vc '^lm_head') tensors of ${#shards[@]} files, no name in two of them" ]
    quiet datpack -q -f -o m.dat a.dat b.dat
    # One input is nothing to tell of.
    quiet datpack -f -o m.dat a.dat
}

@test "two whole models of different configurations are not merged" {
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "$C" >less.json
    sed 's/"rope_theta": [0-9.e]*/"rope_theta": 7/' "$C" >other.json
    run ! cmp -s "$C" less.json
    run ! cmp -s "$C" other.json
    pack --init 1 --config "$C" -o a.dat
    pack --init 2 --config "$C" -o b.dat
    pack --init 3 --config less.json -o less.dat
    pack --init 3 --config other.json -o other.dat
    refuse_pack 'a.dat and less.dat: are two whole models: num_hidden_layers is 2 and 1: expected * -s * --config' \
        -o m.dat a.dat less.dat
    refuse_pack 'are two whole models: rope_theta is ' -q -o m.safetensors a.dat b.dat other.dat
    refuse_pack 'are two whole models: num_hidden_layers is 1 and 2' -q -o m/ less.dat a.dat
    # Parts of another one, and what the user has decided, are taken.
    pack -s '*mlp*' -o part.dat less.dat
    pack -o m.dat a.dat part.dat
    cmp <(datcat --payload model.layers.0.mlp.up_proj.weight m.dat) \
        <(datcat --payload model.layers.0.mlp.up_proj.weight less.dat)
    pack -f -s '*mlp*' -o m.dat a.dat less.dat
    pack -f --config "$C" -o m.dat a.dat other.dat
    pack -f --rename 'model.layers.1.*=other.layers.1.*' -o m.dat a.dat less.dat
    # Of one configuration the later model is the result.
    pack -f -o m.dat a.dat b.dat
    run -0 datcat --diff m.dat b.dat
}

@test "-s and -x choose from all inputs" {
    pack -s '*norm*' -x '*layers*' -o o.dat "$IN/tied.dat"
    [ "$(datcat -l o.dat)" = model.norm.weight ]
    refuse_pack nosuch -s nosuch -o x.dat "$IN/tied.dat"
    refuse_pack nosuch -s '*' -s nosuch -o x.dat "$IN/tied.dat"
    pack -s 'm05*' -s 'lm_head*' -o p.dat "$IN/tied.dat" "$IN/plain.dat"
    [ "$(datcat -l p.dat | tr '\n' ' ')" = 'lm_head.weight m05.f16.odd ' ]
    # States of a checkpoint are no weights.
    refuse_pack adam -s 'adam.*' -o x.dat "$IN/tiny.ckpt"
    refuse_pack missing -s '*norm*' --config "$C" -o x.ckpt "$IN/tied.dat"
}

@test "--rename: one * on each side, the first that fits" {
    pack --rename 'model.norm.weight=zz' --rename 'model.*=m.*' -o o.dat "$IN/tied.dat"
    run -0 datcat -l o.dat
    [ "${lines[0]}" = m.embed_tokens.weight ]
    [ "${lines[23]}" = zz ]
    [ "${lines[24]}" = lm_head.weight ]
    pack --rename 'model.*.weight=*' -o p.dat "$IN/tied.dat"
    [ "$(datcat -l p.dat | head -n 1)" = embed_tokens ]
    pack --rename 'model.norm.weight=é' -o q.dat "$IN/tied.dat"
    [ "$(datcat -l q.dat | sed -n 24p)" = é ]
    local bad
    for bad in a =b a= = 'a*=b' 'a=b*' 'a*b*=c*' ''; do
        refuse_pack rename --rename "$bad" -o x.dat "$IN/tied.dat"
    done
    refuse_pack nosuch --rename nosuch=b -o x.dat "$IN/tied.dat"
}

@test "--rename: two tensors of one name are refused" {
    refuse_pack lm_head.weight --rename model.norm.weight=lm_head.weight -o x.dat "$IN/tied.dat"
    refuse_pack q_proj --rename model.norm.weight=model.layers.0.self_attn.q_proj.weight -o x.dat "$IN/nv1.dat"
    # Also where the name is that of an entry that will be written.
    refuse_pack q_proj --rename model.norm.weight=model.layers.0.self_attn.q_proj.weight.qdata -o x.dat "$IN/nv1.dat"
    refuse_pack q_proj --rename model.norm.weight=model.layers.0.self_attn.q_proj.weight.scale -o x.safetensors "$IN/nv1.dat"
}

@test "--rename: no name that the container cannot hold" {
    local long
    refuse_pack UTF-8 --rename $'model.norm.weight=x\xff' -o x.dat "$IN/tied.dat"
    refuse_pack UTF-8 --rename $'model.norm.weight=x\xff' -o x.safetensors "$IN/tied.dat"
    refuse_pack '' --rename model.norm.weight=__metadata__ -o x.safetensors "$IN/tied.dat"
    long=$(printf 'n%.0s' {1..65537})
    refuse_pack '' --rename "model.norm.weight=$long" -o x.dat "$IN/tied.dat"
    # 65535 + 6 of ".qdata"
    refuse_pack '' --rename "model.layers.0.self_attn.q_proj.weight=${long:2}" -o x.dat "$IN/nv1.dat"
    # One spelling for a prefix.
    refuse_pack '' --rename model.norm.weight=model.layers.0.self_attn.q_proj.qdata -o x.dat "$IN/nv1.dat"
    put meta.dat '[T("__metadata__", "u8", (1,), b"x")]'
    refuse_pack __metadata__ -o x.safetensors meta.dat
}

@test "--rename of an NVFP4 tensor renames its parts" {
    pack --rename 'model.layers.*.weight=l.*.weight' -o o.dat "$IN/nv2.dat"
    run -0 datcat -l --raw-entries -s 'l.0.self_attn.q_proj*' o.dat
    [ "$output" = $'l.0.self_attn.q_proj.weight.qdata\nl.0.self_attn.q_proj.weight.scale\nl.0.self_attn.q_proj.weight.scale2' ]
    cmp <(datcat --payload l.0.self_attn.q_proj.weight.qdata o.dat) \
        <(datcat --payload model.layers.0.self_attn.q_proj.weight.qdata "$IN/nv2.dat")
}

@test "-v: the container and the number of tensors; without it nothing" {
    run -0 --separate-stderr datpack -v -o o.dat "$IN/tied.dat"
    [ -z "$output" ]
    [ "${stderr_lines[-1]}" = "datpack: o.dat: dat, $(datcat --raw-entries --names o.dat | wc -l) tensors" ]
    quiet datpack -f -o o.dat "$IN/tied.dat"
}

# ---- --like -----------------------------------------------------------------

@test "--like: order, names and dtypes of REF, payloads of the input" {
    put ref.dat '[T("b", "f16", (2,), bytes(4)), T("a", "f32", (1,), bytes(4)), T("c", "u8", (1,), b"r")]'
    put in.safetensors '[T("a", "bf16", (1,), b"\x80\x3f"), T("b", "f32", (2,), struct.pack("<2f", 1, -2)), T("c", "u8", (1,), b"i")]'
    pack --like ref.dat -o o.dat in.safetensors
    python3 - <<'PY'
from make import *
assert list(payloads("o.dat").items()) == [
    ("b", ("f16", [2], struct.pack("<2e", 1, -2))), ("a", ("f32", [1], struct.pack("<f", 1))),
    ("c", ("u8", [1], b"i"))]
PY
    put short.dat '[T("b", "f16", (2,), bytes(4)), T("a", "f32", (1,), bytes(4))]'
    refuse_pack '"c"' --like short.dat -o x.dat in.safetensors
    put long.dat '[T("b", "f16", (2,), bytes(4)), T("a", "f32", (1,), bytes(4)), T("c", "u8", (1,), b"r"), T("d", "u8", (1,), b"r")]'
    refuse_pack '"d"' --like long.dat -o x.dat in.safetensors
    put shape.dat '[T("b", "f16", (2, 1), bytes(4)), T("a", "f32", (1,), bytes(4)), T("c", "u8", (1,), b"r")]'
    refuse_pack shape --like shape.dat -o x.dat in.safetensors
    put shape.dat '[T("b", "f16", (3,), bytes(6)), T("a", "f32", (1,), bytes(4)), T("c", "u8", (1,), b"r")]'
    refuse_pack '"b" has another shape in the reference than in the input' --like shape.dat -o x.dat in.safetensors
    put type.dat '[T("b", "f16", (2,), bytes(4)), T("a", "f32", (1,), bytes(4)), T("c", "i8", (1,), b"r")]'
    refuse_pack u8 --like type.dat -o x.dat in.safetensors
    refuse_pack like --like ref.dat --dtype f16 -o x.dat in.safetensors
    refuse_pack like --like ref.dat --init 1 --config "$C" -o x.dat
}

@test "--like: the head of a tied model stands aside" {
    pack --like "$IN/tied.dat" -o a.dat "$IN/nohead.dat"
    cmp a.dat "$IN/tied.dat"
    pack --like "$IN/nohead.dat" -o b.dat "$IN/tied.dat"
    cmp b.dat "$IN/nohead.dat"
    pack --like "$IN/tied.dat" -o c.dat "$IN/tiny.safetensors"
    cmp c.dat "$IN/tied.dat"
    pack --like "$IN/tied.dat" -o d.dat "$IN/tiny.ckpt"
    cmp d.dat "$IN/tied.dat"
    refuse_pack lm_head --like "$IN/nohead.dat" -o x.dat "$IN/differs.dat"
    refuse_pack lm_head --config "$C" --like "$IN/tied.dat" -o x.dat "$IN/differs.dat"
    # One NVFP4 file like another of as many levels.
    pack --like "$IN/nv1.dat" -o e.dat "$IN/nv1.dat"
    cmp e.dat "$IN/nv1.dat"
}

# ---- the head of a tied model -----------------------------------------------

@test "head: a .dat carries it, no other container does; --untie/--tie overrule" {
    local in o
    for in in nohead.dat tied.dat tiny.safetensors tiny.ckpt dir; do
        [ "$in" != in ] || continue
        for o in safetensors ckpt; do
            pack -f --config "$C" -o o.$o "$IN/$in"
            run ! has_head o.$o
            [ "$(tied_flag o.$o)" = True ]
            pack -f --untie --config "$C" -o o.$o "$IN/$in"
            has_head o.$o
            [ "$(tied_flag o.$o)" = False ]
            python3 -c '
from make import *
p = payloads("o.'$o'")
assert p["lm_head.weight"] == p["model.embed_tokens.weight"]'
        done
        pack -f --tie --config "$C" -o o.dat "$IN/$in"
        run ! has_head o.dat
        pack -f --config "$C" -o o.dat "$IN/$in"
        [ "$(tied_flag o.dat)" = True ]
        if [ "$in" != nohead.dat ]; then
            cmp o.dat "$IN/tied.dat"
        else # .dat to .dat keeps its entries, but a new NVFP4 file has a head
            cmp o.dat "$IN/$in"
            pack -f --config "$C" --dtype nvfp4 -o o.dat "$IN/$in"
            containers list o.dat | has '^lm_head[.]'
        fi
    done
}

@test "head: without a configuration, one that equals the embedding is tied" {
    pack -o o.safetensors "$IN/tied.dat"
    run ! has_head o.safetensors
    pack -o p.safetensors "$IN/differs.dat"
    has_head p.safetensors
    pack -o q.dat "$IN/differs.dat"
    cmp q.dat "$IN/differs.dat"
}

@test "head: one that differs is refused for a tied model, --untie makes it untied" {
    local o
    for o in o.dat o.safetensors o.ckpt o/; do
        refuse_pack lm_head --config "$C" -o $o "$IN/differs.dat"
        refuse_pack lm_head --tie --config "$C" -o $o "$IN/differs.dat"
        pack --untie --config "$C" -o $o "$IN/differs.dat"
        has_head "${o%/}"
        [ "$(tied_flag "${o%/}")" = False ]
        rm -r "${o%/}"*
    done
}

@test "head: an untied model's is always kept; --tie and --untie do nothing" {
    local o opt
    for o in o.dat o.safetensors o.ckpt; do
        for opt in '' --tie --untie; do
            # shellcheck disable=SC2086
            pack -f $opt --config "$IN/conf/untied.json" -o $o "$IN/tied.dat"
            has_head $o
            [ "$(tied_flag $o)" = False ]
            # shellcheck disable=SC2086
            pack -f $opt --config "$IN/conf/untied.json" -o $o "$IN/differs.dat"
            has_head $o
        done
    done
    # A missing flag is false, and then the head must be there.
    refuse_pack lm_head --config "$IN/conf/no-flag.json" -o x.ckpt "$IN/nohead.dat"
    # The rest of the configuration is kept, unknown fields too.
    pack --untie --config "$C" -o u.ckpt "$IN/tied.dat"
    python3 -c '
import json, subprocess, containers as c
got = json.loads(subprocess.run(["datcat", "--meta", "u.ckpt"], check=True,
    stdout=subprocess.PIPE).stdout)["config"]
assert got == dict(c.TINY, tie_word_embeddings=False), got'
}

@test "head: of an NVFP4 file, dropped or dequantized" {
    pack --config "$C" -o o.dat "$IN/nv1.dat"
    cmp o.dat "$IN/nv1.dat"
    pack --config "$C" -o o.ckpt "$IN/nv1.dat"
    run ! has_head o.ckpt
    pack --config "$C" --dtype f16 -o o.safetensors "$IN/nv1.dat"
    run ! has_head o.safetensors
    # --untie keeps it, dequantized.
    pack -f --untie --config "$C" --dtype f32 -o o.safetensors "$IN/own1.dat"
    python3 - <<'PY'
from make import *
d, s, got = payloads("o.safetensors")["lm_head.weight"]
want = nvfp4(*planes("lm_head.weight", 48, 32))
assert (d, s) == ("f32", [48, 32]) and got == struct.pack("<1536f", *want)
PY
    # A .dat in f16 carries a head, and that is a copy of the embedding.
    pack --config "$C" --dtype f16 -o f.dat "$IN/nv1.dat"
    has_head f.dat
    python3 -c '
from make import *
p = payloads("f.dat")
assert p["lm_head.weight"] == p["model.embed_tokens.weight"]'
    pack --dtype f16 -o g.dat "$IN/ct"
    has_head g.dat
}

@test "head: an NVFP4 pair of its own is not dropped without a word" {
    local in o own='weights of its own'
    for in in own1 own2; do
        pack -f --config "$C" -o o.dat "$IN/$in.dat" # as it is, it stays
        cmp o.dat "$IN/$in.dat"
        for o in x.ckpt x.safetensors x/; do
            refuse_pack "$own" -q --config "$C" -o $o "$IN/$in.dat"
            pack --tie --config "$C" -o $o "$IN/$in.dat"
            run ! has_head "${o%/}"
            [ "$(tied_flag "${o%/}")" = True ]
            rm -r "${o%/}"*
            pack --untie --config "$C" -o $o "$IN/$in.dat"
            [ "$(tied_flag "${o%/}")" = False ]
            rm -r "${o%/}"*
        done
        for o in modelopt compressed-tensors; do
            refuse_pack "$own" -q --to $o --share-scale qkv,gate_up --config "$C" -o x "$IN/$in.dat"
        done
        refuse_pack "$own" -q --dtype f16 --config "$C" -o x.dat "$IN/$in.dat"
        refuse_pack "$own" -q --like "$IN/nohead.dat" --config "$C" -o x.safetensors "$IN/$in.dat"
        # What --untie keeps: its values.
        pack -f --untie --master f32 --config "$C" -o u.ckpt "$IN/$in.dat"
        datcat -q --diff --atol 0 --rtol 0 -s lm_head.weight "$IN/$in.dat" u.ckpt
    done
    refuse_pack "$own" -q --compat torchsharp --quant native --config "$C" -o x.dat "$IN/own2.dat"
    # One code of one block, or one scale, that no quantizer would have chosen.
    python3 - <<'PY'
from make import *
for part in "qdata", "scale":
    ts = nvfp4_model("dat1")
    [t] = [t for t in ts if t.name == "lm_head.weight." + part]
    n = len(t.data) // 2
    t.data = t.data[:n] + bytes([t.data[n] ^ (4 if part == "qdata" else 8)]) + t.data[n + 1:]
    c.put(part + ".dat", c.dat_bytes(ts))
PY
    refuse_pack "$own" -q --config "$C" -o x.ckpt qdata.dat
    refuse_pack "$own" -q --config "$C" -o x.ckpt scale.dat
}

@test "head: the pair that any quantizer makes of the embedding is a copy" {
    local q options
    # In the precision that the embedding is in, and from a wider one.
    put wide.safetensors 'c.tiny_model("f32", 1)[1:] + [T("model.embed_tokens.weight", "f32", (48, 32),
        (lambda r: struct.pack("<1536f", *[r.gauss(0, .02) * 2.0 ** -r.choice((0, 0, 0, 9)) for i in range(1536)]))(
        random.Random(3)))]'
    for q in torchao native sweep1 max 'max --variant modelopt' 4over6 '4over6 --criterion mae' \
        sweep 'sweep --exhaustive' 'sweep1 --exhaustive' sweepfp8 'sweepfp8 --exhaustive'; do
        # shellcheck disable=SC2086
        nvquant -q --quant $q --config "$C" -f -o a.dat wide.safetensors
        python3 - <<'PY'
from make import *
ts = reference.read_tensors("a.dat")
for wide, narrow in ("f32", "f16"), ("f32", "bf16"):
    out = [T(t.name, narrow, t.shape, reference.store(narrow, reference.load(wide, t.data)))
           if t.dtype == wide and t.name.endswith(".weight") else t for t in ts]
    c.put(narrow + ".dat", c.dat_bytes(out))
PY
        for options in a f16 bf16; do
            pack -f --config "$C" -o o.ckpt $options.dat
            run ! has_head o.ckpt
        done
    done
    # A head of other weights, of the size of the embedding's, is none.
    put other.safetensors '[T("lm_head.weight", "f32", (48, 32),
        (lambda r: struct.pack("<1536f", *[r.gauss(0, .02) for i in range(1536)]))(random.Random(4)))]'
    datpack -q -o both.safetensors wide.safetensors other.safetensors
    for q in torchao sweep; do
        nvquant -q --quant $q -f -o both.dat both.safetensors
        refuse_pack 'weights of its own' -q --config "$C" -o x.ckpt both.dat
    done
}

# ---- NVFP4 ------------------------------------------------------------------

@test "NVFP4 .dat to .dat: the same bytes, one level or two" {
    pack -o a.dat "$IN/nv1.dat"
    cmp a.dat "$IN/nv1.dat"
    pack -o b.dat "$IN/nv2.dat"
    cmp b.dat "$IN/nv2.dat"
    pack -o a.safetensors "$IN/nv2.dat"
    pack -o c.dat a.safetensors
    run -0 datcat --diff c.dat "$IN/nv2.dat"
    # Entries that are spelt otherwise stay so where nothing asks for ours.
    put old.dat '[T("x.qdata", "f4_e2m1", (2, 16), bytes(range(32))), T("x.scale", "u8", (2, 2), b"8080")]'
    pack -o same.dat old.dat
    cmp same.dat old.dat
    local k
    for k in ct mo; do
        pack -o $k.safetensors "$IN/$k"
        run -0 datcat -q --raw-entries --diff "$IN/$k" $k.safetensors
    done
}

@test "compressed-tensors to .dat: codes and scales as they are, scale2 = 1/divisor" {
    # Its head would have to be quantized; what happens to that is said above.
    run -0 datpack -x 'model.embed*' -q -o ct.dat "$IN/ct"
    run -0 datpack -x 'model.embed*' -q -o mo.dat "$IN/mo"
    python3 - <<'PY'
from make import *
for kind, scale2 in ("ct", 1 / 3.0), ("mo", 0.3):
    got = payloads(kind + ".dat")
    n = 0
    for t in nvfp4_model(kind, False):
        if any(q in t.name for q in c.QUANTIZED) and "_scale" not in t.name:
            x = t.name.rsplit(".", 1)[0]
            codes, sc = planes(x + ".weight", *[t.shape[0], 2 * t.shape[1]])
            assert got[x + ".weight.qdata"] == ("u8", list(t.shape), codes)
            assert got[x + ".weight.scale"][2] == sc
            assert got[x + ".weight.scale2"] == ("f32", [1], struct.pack("<f", scale2)), x
            n += 1
    assert n == 14
    names = list(got)
    for i, x in enumerate(names):   # right behind each other
        if x.endswith(".qdata"):
            assert names[i + 1:i + 3] == [x[:-5] + "scale", x[:-5] + "scale2"]
PY
}

@test "NVFP4 import: bad scales are refused, an implausible tensor scale is said" {
    put bad.dat '[T("a.weight.qdata", "u8", (1, 8), bytes(8)), T("a.weight.scale", "f8_e4m3", (1, 1), b"\x80")]'
    refuse_pack 'row 0' --dtype f16 -o x.safetensors bad.dat
    mkdir sign mult div
    # formats.md X7 and X5
    put sign/model.safetensors '[T("a.weight", "u8", (1, 8), bytes(8)), T("a.weight_scale", "f8_e4m3", (1, 1), b"\xff"), T("a.weight_scale_2", "f32", (), struct.pack("<f", .3))]'
    refuse_pack 'row 0' -o x.dat sign
    put mult/model.safetensors '[T("a.weight", "u8", (1, 8), bytes(8)), T("a.weight_scale", "f8_e4m3", (1, 1), b"8"), T("a.weight_scale_2", "f32", (), struct.pack("<f", 2700))]'
    run -0 --separate-stderr datpack -o mult.dat mult
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} == *'"a.weight"'* ]]
    put div/model.safetensors '[T("a.weight_packed", "u8", (1, 8), bytes(8)), T("a.weight_scale", "f8_e4m3", (1, 1), b"8"), T("a.weight_global_scale", "f32", (1,), struct.pack("<f", .0003))]'
    run -0 --separate-stderr datpack -o div.dat div
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} == *'"a.weight"'* ]]
    # A divisor without a reciprocal.
    put div/model.safetensors '[T("a.weight_packed", "u8", (1, 8), bytes(8)), T("a.weight_scale", "f8_e4m3", (1, 1), b"8"), T("a.weight_global_scale", "f32", (1,), bytes(4))]'
    refuse_pack a.weight -q -o x.dat div
}

# foreign DIR EXPRESSION CONFIG: a ModelOpt directory of the tensors, where ts are those
# of the tiny model, and plain(NAME) one that is not quantized; more of config.json.
foreign() {
    mkdir -p "$1"
    python3 -c '
import sys
from make import *
ts = nvfp4_model("mo", False)
def plain(name):
    return [t for t in c.tiny_model("bf16", 1) if t.name == name + ".weight"]
def one(name):
    return T(name, "f32", (), struct.pack("<f", 0.5))
c.put(sys.argv[1] + "/model.safetensors", c.st_bytes(eval(sys.argv[2])))
c.put(sys.argv[1] + "/config.json", config(**eval(sys.argv[3])).encode())' "$@"
}

@test "NVFP4 of other programs: what is fused shares a scale, or it is asked for" {
    k=model.layers.0.self_attn.k_proj
    foreign mixed "[t for t in ts if '$k' not in t.name] + plain('$k')" '{}'
    refuse_pack "have tensor scales of their own" --to modelopt -o out/ mixed
    pack --quant max --to modelopt -o out/ mixed
    for m in q k v; do
        datcat -q --raw-entries --values model.layers.0.self_attn.${m}_proj.weight_scale_2 out
    done | uniq | wc -l | has -x 1
    pack --to modelopt -o same/ "$IN/mo" # of itself: the same
    datcat -q --raw-entries --diff "$IN/mo" same
    pack --to compressed-tensors -o same/ -f "$IN/ct"
    datcat -q --raw-entries --diff "$IN/ct" same
}

@test "NVFP4 of other programs: scales of activations and caches stay behind" {
    more='ts + [one("model.layers.0.mlp.up_proj.input_scale")]'
    foreign act "$more" '{}' # no word of it in the configuration
    pack --to modelopt -o out/ act
    datcat -q --diff "$IN/mo" out
    pack -o x.dat act
    [ "$(datcat -q --raw-entries x.dat | grep -c input_scale)" = 0 ]
    foreign cache "$more + [one('model.layers.0.self_attn.k_proj.k_scale')]" \
        '{"quantization_config": {"quant_method": "modelopt", "ignore": ["lm_head"]}}'
    run -0 --separate-stderr datpack -o y.dat cache
    [[ $stderr == *"cache: k_scale and v_scale of a quantized cache are left out, 1 tensors"* ]]
    datcat -q --diff x.dat y.dat
}

@test "NVFP4 of other programs: no claim outlives what it was about" {
    # Not even that of a model that we do not know.
    foreign other ts '{"model_type": "llama", "quantization_config":
        {"quant_method": "modelopt", "ignore": ["lm_head"]}}'
    pack --dtype bf16 -o x.safetensors other
    [[ $(datcat -q --meta x.safetensors) != *quantization_config* ]]
    pack -o y.safetensors x.safetensors
    # What is copied keeps it, what becomes something else does not.
    foreign mo ts '{"quantization_config": {"quant_method": "modelopt", "ignore": ["lm_head"]}}'
    for option in "-x *norm*" "--untie --dtype nvfp4" "--like $IN/tied.dat" \
        "--rename model.norm.weight=norm.weight"; do
        # shellcheck disable=SC2086  # several words
        run -0 datpack -f -q $option -o x.safetensors mo
        pack -f -o y.safetensors x.safetensors
        case $option,$(datcat -q --meta x.safetensors) in
        -x*,*quantization_config*) ;;
        -x* | *quantization_config*) false ;;
        esac
    done
    nvquant -q -f -s model.embed_tokens.weight -o x.safetensors mo
    pack -f -o y.safetensors x.safetensors
}

@test "NVFP4 of other programs: modules by simple regular expressions, no others" {
    claim() {
        foreign "$1" ts "{'quantization_config':
            {'quant_method': 'modelopt', 'ignore': ['lm_head', $2]}}"
    }
    claim ok "r're:model\.layers\.0\.foo\$', r're:.*mlp.gate\$', r're:layers',
        r're:.*q_proj.x', r're:.*q_pro\$', r're:q_proj', 're:'[:2]"
    pack -o x.dat ok
    for re in '.*q_proj$' 'model\.layers\..*_proj' 'model.layers.*proj$' '' \
        'model\.layers\.0\.self.attn'; do
        claim hit "r're:$re'"
        refuse_pack 'self_attn.q_proj" is quantized, but its configuration lists it as excluded' -o y.dat hit
    done
    # shellcheck disable=SC2016  # "a$b" is meant
    for re in 'a{3}' 'a+' '(a*)*' 'a**' '*a' 'a?' 'a|b' '(?!x)' '\\1' '\\d' '[a' '[a]' \
        '\\b' '(a' 'a)' '^a' 'a$b' "\\\\"; do
        claim bad "'re:$re'"
        refuse_pack "is not understood: expected a name" -o y.dat bad
    done
    claim bad "'re:' + '(' * 60000"
    refuse_pack "is not understood" -o y.dat bad
    claim bad "*['%d*' % i for i in range(65000)]"
    pack -o y.dat bad
    claim bad "'re:' + 'm.*' * 20000"
    pack -o z.dat bad
}

@test "NVFP4 to f16, f32 and bf16: dequantized exactly" {
    pack --config "$C" --dtype f16 -o h.safetensors "$IN/nv1.dat"
    pack --config "$C" --dtype f32 -o f.safetensors "$IN/nv1.dat"
    pack --config "$C" --dtype bf16 -o b.safetensors "$IN/nv1.dat"
    pack --config "$C" --dtype f32 -o two.safetensors "$IN/nv2.dat"
    python3 - <<'PY'
from make import *
h, f, b = (payloads(x + ".safetensors") for x in "hfb")
two = payloads("two.safetensors")
s2 = struct.unpack("<f", struct.pack("<f", 0.3))[0]
n = 0
for name, shape in c.model_table(c.TINY):
    if any(q in name for q in c.QUANTIZED):
        v = nvfp4(*planes(name, *shape))
        assert h[name] == ("f16", list(shape), struct.pack("<%de" % len(v), *v))
        assert f[name] == ("f32", list(shape), struct.pack("<%df" % len(v), *v))
        assert b[name][2] == b"".join(struct.pack("<f", x)[2:] for x in v)
        assert two[name][2] == struct.pack("<%df" % len(v), *[x * s2 for x in v])
        n += 1
assert n == 14
PY
}

@test "NVFP4 to a checkpoint: the master holds the decoded values" {
    pack --config "$C" --master f32 -o o.ckpt "$IN/nv1.dat"
    python3 - <<'PY'
from make import *
got = payloads("o.ckpt")
name = "model.layers.1.mlp.down_proj.weight"
v = nvfp4(*planes(name, 32, 48))
assert got[name] == ("f32", [32, 48], struct.pack("<%df" % len(v), *v))
PY
    # Half of a pair is no model.
    python3 -c '
from make import *
c.put("half.dat", c.dat_bytes([t for t in nvfp4_model("dat1")
    if t.name != "model.layers.0.self_attn.q_proj.weight.scale"]))'
    run -2 datpack -q --config "$C" -o x.ckpt half.dat
    [ ! -e x.ckpt ]
}

# ---- --init -----------------------------------------------------------------

@test "--init: the numbers of Philox, computed anew" {
    pack --init 7 --config "$C" --dtype f32 -o a.safetensors
    pack --init 7 --config "$C" -o a.ckpt
    pack --init 7 --config "$C" --master f32 -o b.ckpt
    python3 - <<'PY'
from make import *
sigma = math.sqrt(8 * (2 ** 32 - 1) / 12)
got, ck, ck32 = payloads("a.safetensors"), payloads("a.ckpt"), payloads("b.ckpt")
for row, (name, shape) in enumerate(c.model_table(c.TINY)):
    n = c.numel(shape)
    v = struct.unpack("<%df" % n, got[name][2])
    if len(shape) == 1:
        assert set(v) == {1.0}, name
        continue
    for i in {0, 1, 2, n // 2, n - 1}:
        w = philox((i & 0xFFFFFFFF, i >> 32, row, 0), (7, 0))
        z = (sum((x & 0xFFFF) + (x >> 16) for x in w) - 8 * 32767.5) / sigma
        want = 0.02 * z             # no initializer_range in this configuration
        # Rounded once to bf16, its torch_dtype: half an ulp of 8 bits.
        assert abs(v[i] - want) <= abs(want) * 2 ** -8, (name, i, v[i], want)
        assert struct.pack("<f", v[i])[:2] == b"\0\0", (name, i)
    assert ck[name][2] == b"".join(struct.pack("<f", x)[2:] for x in v)
    assert ck32[name][2] == got[name][2]
PY
}

@test "standard input that is another container is said to be that" {
    local f
    pack --init 3 --config "$C" -o m.safetensors
    pack --init 3 --config "$C" -o m.ckpt
    for f in safetensors ckpt; do
        run -2 --separate-stderr datpack -q -o x.dat - <m.$f
        [[ $stderr == "datpack: <stdin>: begins like a $f, and standard input is read as a dat; name the file instead" ]]
    done
    # What is no container keeps its own words.
    printf '\2\3a\0b%020d' 0 >bad
    run -2 --separate-stderr datpack -q -o x.dat - <bad
    [[ $stderr == *"a name with a NUL byte"* ]]
}

@test "an NVFP4 tensor without one of its parts: no model; plain data are warned of" {
    local up=model.layers.1.mlp.up_proj part
    nvquant -q -o n.dat "$IN/dir"
    datpack -q --to modelopt -o mo/ "$IN/dir"
    python3 - <<'PY'
import os, shutil, containers as c, nvfp4
up = "model.layers.1.mlp.up_proj."
def lacks(ts, *parts):
    return [t for t in ts if t.name not in [up + p for p in parts]]
ts = nvfp4.read_tensors("n.dat")
c.put("codes.dat", c.dat_bytes(lacks(ts, "weight.qdata")))
c.put("scale2.dat", c.dat_bytes(lacks(ts, "weight.qdata", "weight.scale")))
c.put("mo/model.safetensors", c.st_bytes(lacks(nvfp4.read_tensors("mo"), "weight"), {"format": "pt"}))
PY
    for part in codes scale2; do
        run -0 --separate-stderr datpack -o $part.safetensors $part.dat
        [[ $stderr == *"NVFP4 pair of \"$up\" is shown as plain entries: it has no codes"* ]]
        [ "$(grep -c 'NVFP4 pair' <<<"$stderr")" -eq 1 ]
        refuse_pack "$up" -q --config "$C" -o x.safetensors $part.dat
    done
    refuse_pack "$up" -o x.dat mo
    cp "$C" config.json # beside it
    refuse_pack 'is one part of an NVFP4 tensor, and another part is missing; -x leaves it out' \
        -q -o x.safetensors codes.dat
    pack -x "$up*" -o x.safetensors codes.dat
}

@test "--init: a range whose draws overflow is refused" {
    local d
    python3 - <<'PY'
from make import *
for name, d, range in [("f32", "float32", 1e38), ("f32more", "float32", 1e39),
                       ("bf16", "bfloat16", 6.95e37), ("f16", "float16", 13400),
                       ("good32", "float32", 6.9e37), ("good", "bfloat16", 6.9e37),
                       ("good16", "float16", 13300)]:
    c.put(name + ".json", config(torch_dtype=d, initializer_range=range).encode())
PY
    for d in f32 f32more bf16 f16; do
        refuse_pack "$d.json: initializer_range: " --init 1 --config $d.json -o x.safetensors
        refuse_pack "$d.json: initializer_range: " --init 1 --config $d.json --master f32 -o x.ckpt
    done
    for d in good32 good good16; do
        pack --init 1 --config $d.json -o $d.safetensors
        [ "$(datcat --stats $d.safetensors --ndjson | grep -c '"inf":0')" -gt 3 ]
    done
}

@test "torch_dtype: null, prefixed and unknown are no obstacle where it is not needed" {
    local d
    pack --init 3 --config "$C" -o plain.safetensors
    for d in null '"float64"' '"auto"' '"torch.bfloat16"'; do
        mkdir m
        cp plain.safetensors m/model.safetensors
        sed "s/\"torch_dtype\": \"bfloat16\"/\"torch_dtype\": $d/" "$C" >m/config.json
        run -1 cmp -s m/config.json "$C"
        pack -f -o x.ckpt m
        run -0 --separate-stderr datcat --verify m
        [[ $output == *"names and shapes are those of the configuration"* ]]
        case $d in
        *float64* | *auto*) refuse_pack 'm/config.json: torch_dtype: --init expects bfloat16' \
            --init 3 --config m/config.json -o y.safetensors ;;
        *)
            pack -f --init 3 --config m/config.json -o y.safetensors
            cmp <(datcat --hash plain.safetensors | grep -v '  \*$') \
                <(datcat --hash y.safetensors | grep -v '  \*$')
            ;;
        esac
        rm -r m
    done
}

@test "--init: statistics, seeds, and every shape of configuration" {
    python3 - <<'PY'
from make import *
for name, more in {
    "wide": dict(initializer_range=0.5, vocab_size=1024, hidden_size=128),
    "untied": dict(tie_word_embeddings=False),
    "nodim": dict(head_dim=..., num_attention_heads=2, num_key_value_heads=1),
    "f16": dict(torch_dtype="float16"), "f32": dict(torch_dtype="float32"),
    "v5": dict(rope_theta=..., torch_dtype=..., dtype="bfloat16",
               rope_parameters={"rope_type": "default", "rope_theta": 1000000}),
    "one": dict(num_hidden_layers=1, num_key_value_heads=4, vocab_size=5),
}.items():
    c.put(name + ".json", config(**more).encode())
for name, more in {
    "theta": dict(rope_theta=...), "rope": dict(rope_scaling={"type": "yarn"}),
    "act": dict(hidden_act="gelu"), "type": dict(model_type="llama"),
    "heads": dict(num_key_value_heads=3), "float": dict(hidden_size=32.0),
    "neg": dict(num_hidden_layers=-1), "bias": dict(attention_bias=True),
    "odd": dict(head_dim=15), "window": dict(use_sliding_window=True),
    "layers": dict(layer_types=["sliding_attention"] * 2),
    "rope5": dict(rope_parameters={"rope_type": "yarn", "rope_theta": 5000000}),
    "both": dict(rope_parameters={"rope_type": "default", "rope_theta": 1}),
    "huge": dict(vocab_size=2 ** 40, hidden_size=2 ** 40),
}.items():
    c.put("bad-" + name + ".json", config(**more).encode())
PY
    local f
    for f in wide untied nodim f16 f32 v5 one; do
        pack --init 3 --config $f.json -o $f.safetensors
        pack --init 3 --config $f.json -o $f.dat
        pack --init 3 --config $f.json -o $f.ckpt
    done
    python3 - <<'PY'
from make import *
import json
for f in "wide untied nodim f16 f32 v5 one".split():
    cfg = json.load(open(f + ".json"))
    cfg.setdefault("head_dim", cfg["hidden_size"] // cfg["num_attention_heads"])
    want = c.model_table(cfg, f == "untied")
    got = payloads(f + ".safetensors")
    assert sorted((n, list(s)) for n, s in want) == sorted((n, s) for n, (_, s, _) in got.items()), f
    dt = {"f16": "f16", "f32": "f32"}.get(f, "bf16")
    assert {d for d, _, _ in got.values()} == {dt}, f
    dat = payloads(f + ".dat")
    assert list(dat) == [n for n, _ in c.model_table(cfg, True)], f
    assert {d for d, _, _ in dat.values()} == {"f32" if f == "f32" else "f16"}, f
    assert (dat["lm_head.weight"] == dat["model.embed_tokens.weight"]) == (f != "untied"), f
got = payloads("wide.safetensors")["model.embed_tokens.weight"][2]
v = [struct.unpack("<f", b"\0\0" + got[i:i + 2])[0] for i in range(0, len(got), 2)]
n = len(v)
mean = math.fsum(v) / n
std = math.sqrt(math.fsum((x - mean) ** 2 for x in v) / n)
# Of n = 131072 draws: 4 standard errors of the mean and of the deviation.
assert abs(mean) < 4 * 0.5 / math.sqrt(n), mean
assert abs(std - 0.5) < 4 * 0.5 / math.sqrt(2 * n), std
assert max(map(abs, v)) < 0.5 * math.sqrt(24) * 1.01
PY
    pack --init 4 --config wide.json -o other.safetensors
    run -1 datcat --diff -s 'model.embed*' wide.safetensors other.safetensors
    pack -f --init 3 -j 1 --config wide.json -o other.safetensors
    cmp wide.safetensors other.safetensors
    NIBBLE_ISA=scalar pack -f --init 3 --config wide.json -o other.safetensors
    cmp wide.safetensors other.safetensors
    for f in bad-*.json; do
        run -2 --separate-stderr datpack --init 1 --config "$f" -o x.dat
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ ! -e x.dat ]
    done
    for f in -1 1x '' 4294967296 nan 1.5; do
        refuse_pack init --init "$f" --config "$C" -o x.dat
    done
    pack --init 0 --config "$C" -o zero.dat
    pack --init 4294967295 --config "$C" -o max.dat
    run -1 datcat --diff zero.dat max.dat
}

# ---- checkpoints ------------------------------------------------------------

@test "a new checkpoint: arrays, zeros, header, whatever --master and --moments" {
    local master moments
    for master in f32 bf16; do
        for moments in f32 bf16 int8; do
            pack --config "$C" --master $master --moments $moments --quant none -o o-$master-$moments.ckpt "$IN/tied.dat"
        done
    done
    pack --config "$C" -o default.ckpt "$IN/tied.dat"
    pack --config "$C" --quant max -o max.ckpt "$IN/tied.dat"
    pack --config "$C" --quant 4over6 --criterion mae --share-scale none -o mae.ckpt "$IN/tied.dat"
    pack --config "$C" --quant max --variant modelopt -o mo.ckpt "$IN/tied.dat"
    # A checkpoint hands its quantizer on, and starts again at step 0.
    pack -o again.ckpt mae.ckpt
    python3 - <<'PY'
from make import *
for master in "f32", "bf16":
    for moments in "f32", "bf16", "int8":
        m, got = c.read_ckpt("o-%s-%s.ckpt" % (master, moments))
        want = c.tiny_model(master, 1)
        want += c.tiny_states(want, moments)
        assert [(t.name, t.dtype, t.shape) for t in got] == [
            (t.name, t.dtype, t.shape) for t in want]
        for a, b in zip(got, want):
            assert m[a.offset:a.offset + a.nbytes()] == b.data, a.name
def head(f):
    return c.read_ckpt_header(c.map_file(f))[0]
h = head("default.ckpt")
assert (h["master"], h["moments"]) == ("bf16", "int8")
assert h["quant"] == {"name": "sweep", "share": "qkv,gate_up", "criterion": "mse", "variant": ""}, h["quant"]
assert h["state"] == c.STATE_NEW, h["state"]
assert head("max.ckpt")["quant"]["share"] == "none"
assert head("mae.ckpt")["quant"] == {"name": "4over6", "share": "none", "criterion": "mae", "variant": ""}
assert head("mo.ckpt")["quant"]["variant"] == "modelopt"
assert head("again.ckpt")["quant"] == head("mae.ckpt")["quant"]
assert head("again.ckpt")["state"] == c.STATE_NEW
PY
    refuse_pack master --master f16 --config "$C" -o x.ckpt "$IN/tied.dat"
    refuse_pack ckpt --master f32 -o x.dat "$IN/tied.dat"
    refuse_pack ckpt --moments f32 -o x.dat "$IN/tied.dat"
    refuse_pack quant --quant nosuch --config "$C" -o x.ckpt "$IN/tied.dat"
    refuse_pack share --share-scale qk --config "$C" -o x.ckpt "$IN/tied.dat"
}

@test "a checkpoint of TorchSharp's packed optimizer" {
    local moments
    cp "$HERE/vectors/qwen3-tiny-config.json" wide.json
    pack --init 5 --config wide.json -o source.dat
    for moments in nvfp4 int8; do
        pack --compat torchsharp --moments $moments --config wide.json -o $moments.ckpt source.dat
        datcat --verify $moments.ckpt
    done
    pack --compat torchsharp --to ckpt --config wide.json -o default.ckpt source.dat
    cmp int8.ckpt default.ckpt
    # Every tensor as nvquant would make it, were it a matrix; and kept when packed again.
    nvquant -q --quant native -s '*.weight' -x '*norm*' -o native.dat source.dat
    datcat -q --diff -x '*norm*' -x lm_head.weight native.dat int8.ckpt
    pack --compat torchsharp --config wide.json -o again.ckpt int8.ckpt
    datcat -q --diff int8.ckpt again.ckpt
    python3 - <<'PY'
from make import *
def arrays(f):
    return {t.name: (t.dtype, t.shape) for t in c.read_ckpt(f)[1]}
a, b = arrays("nvfp4.ckpt"), arrays("int8.ckpt")
h = c.read_ckpt_header(c.map_file("nvfp4.ckpt"))[0]
assert (h["master"], h["moments"], h["quant"]["name"]) == ("nvfp4", "nvfp4", "native")
up, norm = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
for x in a, b:
    assert x[up + ".qdata"] == ("u8", (48, 16)) and x[up + ".scale"] == ("f8_e4m3", (48, 2))
    assert x[norm + ".qdata"] == ("u8", (16,)) and x[norm + ".scale"] == ("f8_e4m3", (2,))
for m in "adam.m/", "adam.v/":
    for part in ".qdata", ".scale":
        assert a[m + up + part] == a[up + part] and a[m + norm + part] == a[norm + part]
    assert b[m + up] == ("i8", (48, 32)) and b[m + up + ".scale"] == ("f32", (48,))
    assert b[m + norm] == ("i8", (32,)) and b[m + norm + ".scale"] == ("f32", (1,))
assert len(a) == len(b) == 6 * sum(n.startswith("model.") and n.endswith(".scale") for n in a)
PY
    # Rows that are no multiple of 16 have no NVFP4.
    sed 's/"head_dim": 16/"head_dim": 8/' wide.json >odd.json
    pack --init 5 --config odd.json -o odd.dat
    refuse_pack 'rows of 8 columns' --compat torchsharp --config odd.json -o x.ckpt odd.dat
}

@test "a checkpoint takes the model's tensors, no fewer, no more, no other shape" {
    refuse_pack model.norm.weight -x model.norm.weight --config "$C" -o x.ckpt "$IN/tied.dat"
    put extra.dat '[T("extra", "f16", (1,), bytes(2))]'
    refuse_pack extra --config "$C" -o x.ckpt "$IN/tied.dat" extra.dat
    put shape.dat '[T("model.norm.weight", "f16", (31,), bytes(62))]'
    refuse_pack model.norm.weight --config "$C" -o x.ckpt "$IN/tied.dat" shape.dat
    put int.dat '[T("model.norm.weight", "i16", (32,), bytes(64))]'
    refuse_pack model.norm.weight --config "$C" -o x.ckpt "$IN/tied.dat" int.dat
}

# ---- directories ------------------------------------------------------------

@test "--shard-size: shards by size, an index that fits, one file where it does" {
    local size
    for size in 1 4K 8192 1M; do
        pack --shard-size $size --config "$C" -o d$size/ "$IN/tied.dat"
        run -0 datcat --diff d$size "$IN/tied.dat"
        sed 's/"bfloat16"/"float16"/' "$C" | cmp - d$size/config.json # as the weights are
    done
    [ -e d1M/model.safetensors ]
    [ ! -e d1M/model.safetensors.index.json ]
    [ "$(find d1 -name 'model-*.safetensors' | wc -l)" -eq 24 ]
    python3 - <<'PY'
from make import *
import json
for d, limit in ("d1", 1), ("d4K", 4096), ("d8192", 8192):
    index = json.load(open(d + "/model.safetensors.index.json"))
    assert set(index) == {"metadata", "weight_map"}
    total = 0
    for f in set(index["weight_map"].values()):
        ts = c.read_safetensors(d + "/" + f, True)[1]
        n = sum(t.nbytes() for t in ts)
        assert n <= limit or len(ts) == 1, (d, f, n)
        assert sorted(t.name for t in ts) == sorted(
            k for k, v in index["weight_map"].items() if v == f)
        total += n
    assert index["metadata"]["total_size"] == total
PY
    local bad
    for bad in 0 -1 1x '' nan 1T 99999999999G; do
        refuse_pack shard-size --shard-size "$bad" -o x/ "$IN/tied.dat"
    done
}

@test "config.json names the dtype that is written, and keeps the rest verbatim" {
    local d name key
    # written NAME DIR: its configuration is that of $C with this dtype.
    written() {
        sed "s/\"bfloat16\"/\"$1\"/" "$C" | cmp - "$2/config.json"
        python3 -c '
import json, sys
assert json.load(open(sys.argv[1] + "/nibble.json"))["config"] == json.load(
    open(sys.argv[1] + "/config.json"))' "$2"
    }
    for d in f16 bf16 f32; do
        case $d in
        f16) name=float16 ;;
        bf16) name=bfloat16 ;;
        f32) name=float32 ;;
        esac
        pack --dtype $d --config "$C" -f -o d/ "$IN/tied.dat"
        written "$name" d
        # From there on, too; elsewhere the configuration is what it was.
        pack -f -o e/ d
        written "$name" e
        pack --dtype $d --config "$C" -f -o d.safetensors "$IN/tied.dat"
        datcat -q --meta d.safetensors | has '"torch_dtype": *"bfloat16"'
    done
    pack --master f32 --config "$C" -o m.ckpt "$IN/tied.dat"
    datcat -q --meta m.ckpt | has '"torch_dtype": *"bfloat16"'
    pack -f -o d/ m.ckpt
    written float32 d
    # NVFP4 does not count, the embedding does.
    pack --config "$C" -f -o d/ "$IN/nv2.dat"
    written float16 d
    put norms.safetensors '[T(t.name, "f32", t.shape, bytes(4 * c.numel(t.shape)))
        for t in c.tiny_model("f16", 1) if "embed" not in t.name]'
    pack --config "$C" -f -o d/ "$IN/nohead.dat" norms.safetensors
    written float16 d
    # Without it the most of the rest; without any float what was there.
    pack --config "$C" -f -o d/ -x '*embed*' "$IN/nohead.dat" norms.safetensors
    written float32 d
    put int.dat '[T("x", "i32", (1,), bytes(4))]'
    pack --config "$C" -f -o d/ int.dat
    cmp d/config.json "$C"
    # For other programs.
    pack --config "$C" --dtype keep --to modelopt -f -o d/ "$IN/tied.dat"
    python3 -c 'import json; assert json.load(open("d/config.json"))["torch_dtype"] == "float16"'
    # The other key, both, and none; also of a model that is not ours.
    for key in dtype torch_dtype both; do
        case $key in
        both) sed 's/"torch_dtype": "bfloat16"/"dtype": "bfloat16", "torch_dtype" :"bfloat16"/' "$C" >c.json ;;
        *) sed "s/\"torch_dtype\"/\"$key\"/" "$C" >c.json ;;
        esac
        pack --config c.json -f -o d/ "$IN/tied.dat"
        sed 's/"bfloat16"/"float16"/g' c.json | cmp - d/config.json
    done
    # None: it gets one, at the end; a checkpoint keeps the text.
    python3 - "$C" <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
del c["torch_dtype"]
open("lines.json", "w").write(json.dumps(c, indent=4) + "\n")
open("line.json", "w").write(json.dumps(c) + "\n")
PY
    for key in lines line; do
        pack --config $key.json -f -o d/ "$IN/tied.dat"
        python3 - $key.json <<'PY'
import sys
old, new = open(sys.argv[1]).read(), open("d/config.json").read()
end = old.rindex("\n}") if "\n}" in old else old.rindex("}")
space = "\n  " if "\n}" in old else " "
assert new == old[:end] + "," + space + '"torch_dtype": "float16"' + old[end:], new
PY
        pack -f -o again/ d
        cmp again/config.json d/config.json
    done
    pack --config line.json -f -o x.ckpt "$IN/tied.dat"
    datcat --meta x.ckpt >meta
    run ! grep -q torch_dtype meta
    pack --config line.json --to modelopt -f -o d/ "$IN/tied.dat"
    python3 -c 'import json; assert json.load(open("d/config.json"))["torch_dtype"] == "bfloat16"'
    cp -r "$IN/dir" src
    echo '{"model_type": "other", "text_config": {"dtype": "x"}, "dtype": "bfloat16"}' >src/config.json
    pack --dtype f32 -f -o d/ src
    sed 's/"bfloat16"/"float32"/' src/config.json | cmp - d/config.json
    echo '{}' >src/config.json
    pack --dtype f32 -f -o d/ src
    [ "$(cat d/config.json)" = '{"torch_dtype": "float32"}' ]
}

@test "-t: the tokenizer and what is beside it go into a directory" {
    local f
    mkdir -p tok beside
    for f in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json; do
        echo "{\"$f\": 1}" >tok/$f
        echo "{\"$f\": 2}" >beside/$f
    done
    cp "$HERE/vectors/tokenizer-small.json" tok/tokenizer.json
    { cat tok/tokenizer.json && echo; } >beside/tokenizer.json
    # Of a checkpoint that lies elsewhere nothing is known about a tokenizer.
    sed 's/"vocab_size": *[0-9]*/"vocab_size": 3200/' "$C" >wide.json
    pack --init 1 --to ckpt --config wide.json -o run.ckpt
    pack -o none/ run.ckpt
    [ ! -e none/tokenizer.json ]
    # One of another model is refused.
    refuse_pack 'tok/tokenizer.json: has 3098 tokens, the model'\''s vocab_size is 48: expected the tokenizer.json that came' \
        --to modelopt -t tok/tokenizer.json --config "$C" -o served "$IN/tied.dat"
    [ ! -e served ]
    pack --to modelopt --share-scale qkv,gate_up -t tok/tokenizer.json -o served run.ckpt
    for f in tokenizer.json tokenizer_config.json chat_template.jinja generation_config.json; do
        cmp tok/$f served/$f
        grep -q "\"$f\"" served/nibble.json
    done
    # It is named, so a tokenizer beside the input is another one's; its own name does not matter. Settings of
    # answers are the model's.
    mv run.ckpt beside
    mv tok/tokenizer.json tok/mine.json
    rm tok/generation_config.json
    pack -t tok/mine.json -o plain/ beside/run.ckpt
    cmp tok/mine.json plain/tokenizer.json
    cmp tok/chat_template.jinja plain/chat_template.jinja
    cmp beside/generation_config.json plain/generation_config.json
    # What an earlier run has copied is replaced with the directory; an input is not.
    pack -f -t beside/tokenizer.json -o plain/ beside/run.ckpt
    cmp beside/tokenizer.json plain/tokenizer.json
    refuse_pack 'is an input, too' -q -f -t plain/tokenizer.json -o plain/ beside/run.ckpt
    cmp beside/tokenizer.json plain/tokenizer.json
    refuse_pack '--tokenizer: nowhere.json: does not exist' -q -t nowhere.json -o more/ beside/run.ckpt
    [ ! -e more ]
    # A directory has it, with what is beside it.
    pack -t beside/ -o dir/ "$IN/tied.dat"
    pack -t beside -o file/ "$IN/tied.dat"
    cmp beside/tokenizer.json dir/tokenizer.json
    cmp beside/chat_template.jinja dir/chat_template.jinja
    diff -r dir file
}

@test "a model directory without a tokenizer is written with a warning that names -t" {
    local kind warning='has no tokenizer, which servers need: none lies beside in/run.ckpt; -t FILE'
    mkdir in
    sed 's/"vocab_size": *[0-9]*/"vocab_size": 3200/' "$C" >wide.json
    pack --init 1 --to ckpt --config wide.json -o in/run.ckpt
    written() {
        run -0 --separate-stderr datpack "$@"
        [ -z "$output" ]
    }
    for kind in safetensors modelopt compressed-tensors; do
        written --to $kind -o $kind/ in/run.ckpt
        [ "$(grep -c 'tokenizer' <<<"$stderr")" -eq 1 ]
        [[ ${stderr_lines[-1]} == "datpack: $kind/: $warning"* ]]
        written --to $kind -t "$HERE/vectors/tokenizer-small.json" -f -o $kind/ in/run.ckpt
        [[ $stderr != *tokenizer* ]]
        quiet datpack -q --to $kind -f -o $kind/ in/run.ckpt
        [ ! -e $kind/tokenizer.json ]
    done
    written --init 1 --config wide.json -o init/
    [[ $stderr == *'init/: has no tokenizer, which servers need: '*'; -t FILE'* ]]
    # The older pair of files is a tokenizer, half of it is none.
    echo '{}' >in/vocab.json
    written -o half/ in/run.ckpt
    [[ $stderr == *"half/: $warning"* ]]
    : >in/merges.txt
    written -o pair/ in/run.ckpt
    [ -z "$stderr" ]
    # Nor does a file need one.
    rm in/vocab.json
    written -o m.safetensors in/run.ckpt
    [ -z "$stderr" ]
}

@test "-t: what is no tokenizer is refused, before anything is written" {
    local f what='--tokenizer: expected the tokenizer.json of a Qwen model, or a directory with one: '
    mkdir -p with without
    printf 'who are you\tI am a model\n' >train.tsv
    : >empty
    cp "$C" with/tokenizer.json
    head -c 5000 "$HERE/vectors/tokenizer-small.json" >cut.json
    sed 's/"type": *"BPE"/"type": "Unigram"/' "$HERE/vectors/tokenizer-small.json" >other.json
    run ! cmp -s other.json "$HERE/vectors/tokenizer-small.json"
    for f in train.tsv empty cut.json other.json "$C" with; do
        refuse_pack "$what" -q -t "$f" -o out/ "$IN/tied.dat"
        [[ $stderr == *"${f/with/with/tokenizer.json}: "* ]]
    done
    refuse_pack "--tokenizer: without/tokenizer.json: does not exist" -q -t without -o out/ "$IN/tied.dat"
    mkfifo pipe
    refuse_pack "$what" -q -t pipe -o out/ "$IN/tied.dat"
    [ ! -e out ]
}

@test "tokenizer's and generation's files go along" {
    cp -r "$IN/dir" src
    local f
    for f in tokenizer.json tokenizer_config.json generation_config.json vocab.json merges.txt; do
        echo "{\"$f\": 1}" >src/$f
    done
    echo secret >src/notes.txt
    pack -o a/ src
    for f in tokenizer.json tokenizer_config.json generation_config.json vocab.json merges.txt config.json; do
        cmp src/$f a/$f
    done
    [ ! -e a/notes.txt ]
    # From beside a file as well.
    pack -o src/m.dat src
    pack -o b/ src/m.dat
    cmp src/tokenizer.json b/tokenizer.json
    cmp src/generation_config.json b/generation_config.json
    # The card and the licenses of a directory, too; beside a file they may be those of
    # something else.
    echo '# a model' >src/README.md
    echo terms >src/LICENSE
    echo more >src/LICENSE.txt
    mkdir src/LICENSES
    pack -f -o a/ src
    for f in README.md LICENSE LICENSE.txt; do
        cmp src/$f a/$f
        grep -q "\"$f\"" a/nibble.json
    done
    [ ! -e a/LICENSES ]
    pack -f -o a/ src
    cmp src/README.md a/README.md
    pack -f -o b/ src/m.dat
    [ ! -e b/README.md ]
    # Not into a single file's directory.
    mkdir c
    pack -o c/m.safetensors src
    [ "$(ls c)" = m.safetensors ]
}

# ---- what is recorded -------------------------------------------------------

@test "provenance: options, hashes, the chain; no name and no time" {
    cp "$IN/tied.dat" secretname.dat
    pack --dtype f32 --config "$C" -o first.safetensors secretname.dat
    pack --quant none -o second.ckpt first.safetensors
    pack -o third.dat second.ckpt
    pack -o fourth/ third.dat
    run ! grep -rq secretname first.safetensors second.ckpt third.dat third.dat.json fourth
    python3 - <<'PY'
from make import *
import json, subprocess
from xxh3 import xxh3_128
def prov(f):
    return json.loads(subprocess.run(["datcat", "--meta", f], check=True,
        stdout=subprocess.PIPE).stdout)["meta"]["provenance"]
p = prov("fourth")
c.check_provenance(p)
chain = []
while p:
    chain.append((p["tool"], p["inputs"][0]["kind"], p["inputs"][0]["xxh3"]))
    assert len(p["inputs"]) == 1
    last, p = p, p["inputs"][0]["provenance"]
read = lambda f: open(f, "rb").read()
want = [xxh3_128(read("third.dat")).hex(), read("second.ckpt")[32:48].hex(),
        xxh3_128(read("first.safetensors")).hex(), xxh3_128(read("secretname.dat")).hex()]
assert [x[2] for x in chain] == want, (chain, want)
assert [x[1] for x in chain] == ["dat", "ckpt", "safetensors", "dat"], chain
assert {x[0] for x in chain} == {"datpack"}
assert last["options"]["dtype"] == "f32", last
PY
    # Of a directory: its tensor files in name order.
    pack --shard-size 4K --config "$C" -o shards/ "$IN/tied.dat"
    pack -o s.dat shards
    python3 - <<'PY'
import glob, json
from xxh3 import xxh3_128
got = json.load(open("s.dat.json"))["provenance"]["inputs"][0]["xxh3"]
data = b"".join(open(f, "rb").read() for f in sorted(glob.glob("shards/*.safetensors")))
assert got == xxh3_128(data).hex()
PY
    # The same run elsewhere, under other names, is the same bytes.
    mkdir elsewhere
    cp secretname.dat elsewhere/other.dat
    (cd elsewhere && sleep 1 && pack -j 1 --dtype f32 --config "$C" -o o.safetensors other.dat)
    cmp first.safetensors elsewhere/o.safetensors
}

@test "the sidecar: its keys, its hashes; stale when the .dat is another" {
    pack --config "$C" -o a.dat "$IN/tied.dat"
    containers read a.dat >/dev/null # checks bytes, index_xxh3, xxh3, provenance
    python3 -c '
import json, containers as c
text = open("a.dat.json").read()
assert json.loads(text)["config"] == c.TINY'
    # An equal file under another name keeps what its sidecar says.
    cp a.dat b.dat
    cp a.dat.json b.dat.json
    pack -o b.ckpt b.dat
    cp "$IN/plain.dat" a.dat
    run -0 --separate-stderr datpack -o c.dat a.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} == *stale* ]]
    cmp c.dat "$IN/plain.dat"
    python3 -c '
import json
o = json.load(open("c.dat.json"))
assert o["config"] is None and o["provenance"]["inputs"][0]["provenance"] is None, o'
    cp "$IN/tied.dat" d.dat
    echo '{}' >d.dat.json
    run -0 --separate-stderr datpack -o e.dat d.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    # A file of somebody else's is not overwritten, not even with -f.
    refuse_pack d.dat.json -f -o d.dat "$IN/plain.dat"
}

@test "--compat torchsharp: f16, no sidecar, ASCII names, one level" {
    refuse_pack "has two levels of scales in the reference" --compat torchsharp \
        --like "$IN/nv2.dat" -o x.dat "$IN/nv2.dat"
    put in.safetensors 'c.tiny_model("f32", 1)'
    pack --compat torchsharp --config "$C" -o a.dat in.safetensors
    cmp a.dat "$IN/tied.dat"
    [ ! -e a.dat.json ]
    pack --compat torchsharp -o b.dat "$IN/nv1.dat"
    pack --compat seed -f -o b.dat "$IN/nv1.dat" # as it was called before
    cmp b.dat "$IN/nv1.dat"
    refuse_pack levels --compat torchsharp -o x.dat "$IN/nv2.dat"
    refuse_pack '' --compat torchsharp --dtype bf16 -o x.dat "$IN/tied.dat"
    refuse_pack '' --compat torchsharp -o x.safetensors "$IN/tied.dat"
    refuse_pack other --compat other -o x.dat "$IN/tied.dat"
    put name.dat '[T("é", "f16", (1,), bytes(2))]'
    refuse_pack ASCII --compat torchsharp -o x.dat name.dat
    put int.dat '[T("x", "i64", (1,), bytes(8))]'
    refuse_pack '"x"' --compat torchsharp -o x.dat int.dat
    # bf16 that f16 cannot hold.
    put big.safetensors '[T("x", "bf16", (1,), b"\x80\x47")]'
    refuse_pack '"x"' --compat torchsharp -o x.dat big.safetensors
}

# ---- where it goes ----------------------------------------------------------

@test "without -f nothing is replaced" {
    local o
    for o in o.dat o.safetensors o.ckpt; do
        echo mine >$o
        refuse_pack $o --config "$C" -o $o "$IN/tied.dat"
        [ "$(cat $o)" = mine ]
        pack -f --config "$C" -o $o "$IN/tied.dat"
        containers read $o >/dev/null
    done
    pack -o d/ "$IN/tied.dat"
    refuse_pack d -q -o d/ "$IN/plain.dat"
    pack -f -o d/ "$IN/plain.dat"
    run -0 datcat --diff d "$IN/plain.dat"
    mkdir e.dat
    refuse_pack e.dat -f -o e.dat "$IN/tied.dat"
    echo mine >f
    refuse_pack f -q -f -o f/ "$IN/tied.dat"
    # What stands there after a failed run is what stood there before.
    put big.safetensors '[T("x", "f32", (1,), struct.pack("<f", 1e9))]'
    cp o.dat before
    refuse_pack '"x"' -f --dtype f16 -o o.dat big.safetensors
    cmp o.dat before
}

# stays NAME: a file of that name in d/ is not ours, and d/ is not replaced.
stays() {
    echo "mine $1" >"d/$1"
    refuse_pack "holds \"$1\"" -q -f -o d/ "$IN/plain.dat"
    [ "$(cat "d/$1")" = "mine $1" ]
    rm "d/$1"
}

@test "-f replaces what an earlier run wrote into a directory, and nothing else" {
    local f
    cp -r "$IN/dir" src
    echo '{}' >src/tokenizer.json
    pack --shard-size 4K -o d/ src
    python3 - <<'PY'
import json, os
files = json.load(open("d/nibble.json"))["files"]
assert files == sorted(os.listdir("d")) and "tokenizer.json" in files, files
PY
    cp -r d before
    for f in README.md notes.txt mine.json LICENSE .gitattributes vocab.json x.jinja \
        model.safetensors mine.safetensors spm.model; do
        stays "$f"
        diff -r d before
    done
    : >d/$'odd\xff\n'
    refuse_pack '"odd\xff\n"' -q -f -o d/ "$IN/plain.dat"
    rm d/$'odd\xff\n'
    mkdir d/sub
    refuse_pack '"sub"' -q -f -o d/ "$IN/plain.dat"
    rmdir d/sub
    # Of the old one nothing stays.
    pack -f -o d/ "$IN/plain.dat"
    [ "$(ls -A d)" = $'model.safetensors\nnibble.json' ]
    pack -f --to modelopt --config "$C" -o d/ "$IN/tied.dat"
    pack -f -o d/ "$IN/plain.dat"
    # A directory of somebody else's, by whatever it tells of itself.
    mkdir e
    cp "$IN/tiny.safetensors" e/model.safetensors
    refuse_pack model.safetensors -q -f -o e/ "$IN/plain.dat"
    for f in '{}' '{"format":"nibble-1","files":1}' '{"format":"nibble-1","files":["a\u0000"]}' \
        '{"format":"nibble-1","files":["nibble.json"]}'; do
        echo "$f" >e/nibble.json
        refuse_pack '"' -q -f -o e/ "$IN/plain.dat"
    done
    cmp e/model.safetensors "$IN/tiny.safetensors"
}

@test "a directory of a version without a list: only names that it wrote are replaced" {
    local f
    # unlisted: as d/nibble.json was then.
    unlisted() {
        sed -i 's/"files":\[[^]]*\],//' d/nibble.json
        run ! grep -q '"files"' d/nibble.json
    }
    cp -r "$IN/dir" src
    echo '{}' >src/tokenizer.json
    pack --shard-size 4K -o d/ src
    unlisted
    # Whose the tokenizer.json is, nobody knows.
    refuse_pack 'holds "tokenizer.json"' -q -f -o d/ "$IN/plain.dat"
    rm d/tokenizer.json
    for f in README.md LICENSE notes.txt mine.json model-1-of-2.safetensors tokenizer.json \
        vocab.json generation_config.json chat_template.jinja; do
        stays "$f"
    done
    pack -f --to modelopt --config "$C" -o d/ "$IN/tied.dat"
    unlisted
    pack -f -o d/ "$IN/plain.dat"
    [ "$(ls -A d)" = $'model.safetensors\nnibble.json' ]
}

@test "an output directory that holds an input is not replaced" {
    mkdir d e
    cp "$IN/tied.dat" d/in.dat
    refuse_pack d -q -f -o d/ d/in.dat
    cmp d/in.dat "$IN/tied.dat"
    cp "$C" e/config.json
    refuse_pack e -q -f --config e/config.json -o e/ "$IN/tied.dat"
    [ -e e/config.json ]
    mkdir -p f/sub
    cp "$IN/tied.dat" f/sub/ref.dat
    refuse_pack f -q -f --like f/sub/ref.dat -o f/ "$IN/tied.dat"
    [ -e f/sub/ref.dat ]
}

@test "an output directory that holds an input by another name is not replaced" {
    local sum
    pack -o md/ --config "$C" "$IN/tied.dat"
    sum=$(find md -type f -exec sha256sum {} + | sort)
    mkdir x
    ln -s ../md/model.safetensors x/
    cp md/config.json x
    refuse_pack 'md/: is an input, too' -q -f --dtype f16 -o md/ x
    ln -s md/model.safetensors lnk.safetensors
    refuse_pack 'md/: is an input, too' -q -f -o md/ lnk.safetensors
    ln md/model.safetensors hard.safetensors
    refuse_pack 'md/: is an input, too' -q -f -o md/ hard.safetensors
    rm -r x
    mkdir x
    cp md/model.safetensors x
    ln -s ../md/config.json x/
    refuse_pack 'md/: is an input, too' -q -f -o md/ x
    [ "$(find md -type f -exec sha256sum {} + | sort)" = "$sum" ]
    # Copies are nobody's input.
    cp md/model.safetensors copy.safetensors
    pack -f -o md/ copy.safetensors
}

@test "what belongs to an input is never the output" {
    local f
    pack -o m.dat "$IN/tied.dat"
    pack -o md/ --config "$C" "$IN/tied.dat"
    for f in tokenizer.json README.md hf_quant_config.json; do
        echo '{}' >md/$f
    done
    cp -r md before
    cp m.dat.json sidecar
    refuse_pack 'm.dat.json: is an input, too' -q -f --to safetensors -o m.dat.json m.dat
    cmp m.dat.json sidecar
    for f in config.json tokenizer.json README.md hf_quant_config.json nibble.json; do
        refuse_pack "md/$f: is an input, too" -q -f --to safetensors -o md/$f md
        refuse_pack "md/$f: is an input, too" -q -f --to safetensors --like md -o md/$f m.dat
    done
    # A sidecar is written, too.
    refuse_pack 'md/nibble.json: is an input, too' -q -f --to dat -o md/nibble md
    diff -r md before
    # Beside a file: what goes along with it.
    mkdir beside
    cp m.dat beside
    echo '{}' >beside/tokenizer.json
    refuse_pack tokenizer.json -q -f --to safetensors -o beside/tokenizer.json beside/m.dat
    # Other names there are free.
    pack -o md/x.dat md
    pack -f -o md/x.dat md
    pack -o beside/config.json --to safetensors beside/m.dat
    cmp md/model.safetensors before/model.safetensors
}

@test "an input is never the output" {
    cp "$IN/tied.dat" a.dat
    ln a.dat hard.dat
    ln -s a.dat soft.dat
    local o
    for o in a.dat hard.dat soft.dat ./a.dat; do
        refuse_pack '' -f -o $o a.dat
        refuse_pack '' -f --like a.dat -o $o "$IN/tied.dat"
    done
    cp "$C" c.json
    refuse_pack c.json -f --config c.json --to dat -o c.json "$IN/tied.dat"
    cmp a.dat "$IN/tied.dat"
}

@test "to standard output, a FIFO, /dev/null" {
    datpack -q -o - "$IN/plain.dat" | cmp - "$IN/plain.dat"
    datpack -q --to dat -o /dev/stdout "$IN/plain.dat" | cmp - "$IN/plain.dat"
    pack -o a.safetensors "$IN/plain.dat"
    datpack -q --to safetensors -o - "$IN/plain.dat" | cmp - a.safetensors
    mkfifo pipe.dat
    cat pipe.dat >got &
    timeout 60 datpack -q -f -o pipe.dat "$IN/plain.dat"
    wait
    cmp got "$IN/plain.dat"
    [ -p pipe.dat ]
    [ ! -e pipe.dat.json ]
    pack --to dat -o /dev/null "$IN/plain.dat"
    [ -c /dev/null ]
    refuse_pack /dev/full --to dat -o /dev/full "$IN/plain.dat"
    # Standard input and output in one.
    # shellcheck disable=SC2094  # cmp only reads
    datpack -q -o - - <"$IN/plain.dat" | cmp - "$IN/plain.dat"
    # shellcheck disable=SC2002
    cat "$IN/plain.dat" | datpack -q -o - - | cmp - "$IN/plain.dat"
    # A reader that leaves early.
    run -0 bash -c "datpack -q --init 1 --config '$C' --to dat -o - 2>err | head -c 1 >/dev/null"
    [ ! -s err ]
}

@test "standard output is not needed where it is not used" {
    pack -o a.dat "$IN/plain.dat"
    # Either it works or it fails: but a failed run leaves nothing.
    datpack -q -o b.dat "$IN/plain.dat" >&- 2>err && rc=0 || rc=$?
    [ "$rc" -eq 0 ] || [ "$rc" -eq 2 ]
    if [ "$rc" -eq 0 ]; then
        cmp b.dat "$IN/plain.dat"
    else
        [ ! -e b.dat ]
    fi
    echo '{}' >a.dat.json # a warning that must not get into the data
    datpack -o c.dat a.dat 2>&-
    cmp c.dat "$IN/plain.dat"
    datpack -o d.dat a.dat <&- 2>&- >&- && rc=0 || rc=$?
    [ "$rc" -eq 0 ] || [ "$rc" -eq 2 ]
    [ ! -e d.dat ] || cmp d.dat "$IN/plain.dat"
}

@test "odd content of a model directory" {
    mkdir none bad both
    refuse_pack none -o x.dat none
    echo '{' >bad/config.json
    cp "$IN/tiny.safetensors" bad/model.safetensors
    refuse_pack config.json -o x.dat bad
    cp -r "$IN/dir/." both
    echo '{"metadata":{},"weight_map":{}}' >both/model.safetensors.index.json
    refuse_pack index --strict -o x.dat both
    run -0 --separate-stderr datpack -o x.dat both
    [ "${#stderr_lines[@]}" -eq 1 ]
    mkdir dirs
    mkdir dirs/model.safetensors
    refuse_pack model.safetensors -o y.dat dirs
    mkdir comp
    cp "$IN/tiny.safetensors" comp/model.safetensors
    mkdir comp/tokenizer.json
    refuse_pack tokenizer.json -q -o y/ comp
}

@test "a scale that a dialect cannot hold is said to be of its file, not of --init" {
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    datpack -q --init 1 --config config.json -o m.safetensors
    python3 - <<'PY'
import json, struct
d = open("m.safetensors", "rb").read()
n = struct.unpack("<Q", d[:8])[0]
h, body = json.loads(d[8:8 + n]), bytearray(d[8 + n:])
del h["__metadata__"]
t = h["model.layers.0.mlp.down_proj.weight"]
assert t["dtype"] == "F32"
a, b = t["data_offsets"]
body[a:b] = struct.pack("<f", 1e-41) * ((b - a) // 4)
head = json.dumps(h).encode()
open("small.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + body)
PY
    run -2 --separate-stderr datpack -q --to compressed-tensors -o out --config config.json \
        --dtype nvfp4 small.safetensors
    [[ $stderr == 'datpack: small.safetensors: "model.layers.0.mlp.down_proj.weight_global_scale": '* ]]
    [ ! -e out ]
}

@test "a configuration whose weights do not add up to a number is refused" {
    # 2^56 bytes a layer: the sum over 256 of them is 2^64, which is 0.
    cat >huge.json <<'JSON'
{"model_type": "qwen3", "hidden_size": 1048576, "num_hidden_layers": 256, "num_attention_heads": 65536,
 "num_key_value_heads": 65536, "head_dim": 65536, "intermediate_size": 16, "vocab_size": 16,
 "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000, "hidden_act": "silu",
 "tie_word_embeddings": true, "attention_bias": false, "torch_dtype": "float32"}
JSON
    local o before
    before=$(ls -A)
    for o in x.dat x.safetensors x.ckpt x/; do
        # shellcheck disable=SC2016  # for the inner shell
        run -2 --separate-stderr bash -c 'ulimit -f 100000
            timeout 60 datpack -q --init 1 --config huge.json -o "$1"' bash "$o"
        [ -z "$output" ]
        [[ $stderr == "datpack: "*"asks for more than 2^56 weights"* ]] || { echo "$stderr" && false; }
        [ "$(ls -A)" = "$before" ]
    done
}

@test "empty files and files of nothing" {
    printf '\0' >zero.dat
    pack -o a.dat zero.dat
    cmp a.dat zero.dat
    pack -o a.safetensors zero.dat
    pack -o b.dat a.safetensors
    cmp b.dat zero.dat
    pack -x '*' -o c.dat "$IN/plain.dat"
    cmp c.dat zero.dat
    : >empty.dat
    refuse_pack empty -o x.dat empty.dat
}

# bats test_tags=nosan
@test "memory stays below 256 MiB, whatever the number of threads" {
    python3 -c '
import containers as c
with open("big.safetensors", "wb") as f:
    n = 68 << 20 # 272 chunks
    head = c.st_header([c.Tensor("x", "f64", (n,))])[0]
    f.write(c.st_pack(head, b""))
    f.truncate(f.tell() + 8 * n)'
    local j
    for j in 2 256; do
        python3 -c '
import resource, subprocess, sys
subprocess.run(["datpack", "-q", "-f", "-j", sys.argv[1], "--dtype", "f16", "--to", "dat",
                "-o", "out.dat", "big.safetensors"], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak)
assert peak < 256 << 10, peak' $j
        [ "$(stat -c %s out.dat)" -gt $((2 * (68 << 20))) ]
    done
}
