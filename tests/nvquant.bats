#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr_lines: set by run
# Every option of nvquant, and datpack where it quantizes.  What they write is
# compared with nvfp4.py byte for byte; inputs are made by nvmodel.py.  Other
# programs' containers are in dialects.bats.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    nvmodel make "$IN"
}

quant() {
    quiet nvquant -q "$@"
}

@test "a report is no file that an input needs" {
    local f
    datpack -q --init 3 --config "$HERE/vectors/qwen3-tiny-config.json" --to ckpt -o a.ckpt
    datpack -q -o m.dat a.ckpt
    datpack -q -o md/ a.ckpt
    echo '{}' >md/tokenizer.json
    cp m.dat.json before
    cp -r md mdbefore
    refuse 'm.dat.json: * input' nvquant -q -f --report m.dat.json -o r.dat m.dat
    cmp m.dat.json before
    for f in config.json nibble.json tokenizer.json model.safetensors; do
        refuse "md/$f: * input" nvquant -q -f --report md/$f -o r.dat md
    done
    diff -r md mdbefore
    nvquant -q --report md/report.tsv -o r.dat md
    [ -s md/report.tsv ]
}

# put FILE TENSORS: a Python expression, a list of T(...).
put() {
    python3 -c '
import sys, struct, math
import containers as c
T = c.Tensor
ts = eval(sys.argv[2])
c.put(sys.argv[1], c.dat_bytes(ts) if sys.argv[1].endswith(".dat") else c.st_bytes(ts))' "$@"
}

# names FILE: of its entries.
names() {
    containers list "$1" | cut -f 1
}

# settings WORD: the options for a quantizer as tests/vectors/nvfp4.txt writes it.
settings() {
    case $1 in
    *,modelopt) echo --variant modelopt ;;
    *,mae) echo --criterion mae ;;
    *,exhaustive) echo --exhaustive ;;
    esac
    echo "--quant ${1%,*}"
}

SETTINGS='torchao native sweep1 max max,modelopt 4over6 4over6,mae sweep sweepfp8'
SLOW='sweep,exhaustive sweep1,exhaustive sweepfp8,exhaustive'

# ---- the quantizers ---------------------------------------------------------

@test "the Python side agrees with itself" {
    run -0 reference --self-test
    NVFP4_PURE=1 run -0 reference --self-test
}

@test "each quantizer, from f16: byte for byte what the reference says" {
    local s
    for s in $SETTINGS; do
        # shellcheck disable=SC2046
        quant $(settings "$s") -f -o out.dat "$IN/f16/m.dat"
        # shellcheck disable=SC2046
        reference quantize $(settings "$s") "$IN/f16/m.dat" want.dat
        cmp out.dat want.dat
    done
}

@test "each quantizer, from bf16 and f32" {
    local s d
    for d in bf16 f32; do
        for s in $SETTINGS; do
            # shellcheck disable=SC2046
            quant $(settings "$s") -f -o out.dat "$IN/parts/$d.dat"
            # shellcheck disable=SC2046
            reference quantize $(settings "$s") "$IN/parts/$d.dat" want.dat
            cmp out.dat want.dat
        done
        for s in $SLOW; do
            # shellcheck disable=SC2046
            quant $(settings "$s") -f -o out.dat "$IN/parts/$d-k.dat"
            # shellcheck disable=SC2046
            reference quantize $(settings "$s") "$IN/parts/$d-k.dat" want.dat
            cmp out.dat want.dat
        done
    done
}

# vectors: all settings against tests/vectors/nvfp4.txt.
vectors() {
    local s
    nvmodel vectors in.dat
    for s in $SETTINGS $SLOW; do
        # shellcheck disable=SC2046
        quant $(settings "$s") --share-scale qkv,gate_up -f -o out.dat in.dat
        nvmodel check-vectors "$s" out.dat
    done
}

@test "hard blocks, ties and what tells slips apart, on each path of this machine" {
    local isa missing=
    put one.dat '[T("q_proj.weight", "f32", (1, 16), bytes(64))]'
    for isa in scalar avx2 avx512 neon; do
        if NIBBLE_ISA=$isa nvquant -q -f -o one.out.dat one.dat 2>err; then
            NIBBLE_ISA=$isa vectors
        else
            NIBBLE_ISA=$isa run -2 --separate-stderr nvquant -o x.dat one.dat
            [ "${#stderr_lines[@]}" -eq 1 ]
            [[ ${stderr_lines[0]} == *$isa* ]]
            [ ! -e x.dat ]
            missing+=" $isa"
        fi
    done
    [[ $missing != *scalar* ]]
    # Another architecture's paths are not missed.
    case $(uname -m) in
    x86_64) missing=${missing/ neon/} ;;
    aarch64) missing=${missing/ avx2 avx512/} ;;
    esac
    [ -z "$missing" ] || skip "this machine has not:$missing (the others passed)"
}

@test "NIBBLE_ISA that is none is refused" {
    NIBBLE_ISA=other run -2 --separate-stderr nvquant -o x.dat "$IN/f16/m.dat"
    [[ ${stderr_lines[0]} == *other* ]]
    [ ! -e x.dat ]
}

# blocks FILE: blocks of large, small and no values, next to the largest and far below it.
blocks() {
    put "$1" "[T('q_proj.weight', 'f32', (1024, 16), struct.pack('<16384f', *(
        [x * s * 2.0 ** -(i // 64) for i in range(1024) for r in [__import__('random').Random(i)]
         for s in [r.uniform(.5, 1)] for x in [1] + [r.uniform(-1, 1) for _ in range(15)]])))]"
}

@test "sweepfp8: each value is a number of E4M3 when divided by 4, of other quantizers it is not" {
    local q how wrong total
    blocks x.safetensors
    for q in 'sweepfp8' 'sweepfp8 --exhaustive' 'sweepfp8 --share-scale none'; do
        for how in x.safetensors "$IN/f16/m.dat" "$IN/bf16/m.dat"; do
            # shellcheck disable=SC2086
            quant --quant $q -f -o out.dat "$how"
            read -r wrong total <<<"$(reference inexact out.dat)"
            [ "$wrong" -eq 0 ]
            [ "$total" -ge 4096 ]
        done
    done
    # Blocks whose nearest scale is below 2^-6 have that; those of zeros have 0.
    quant --quant sweepfp8 -f -o out.dat x.safetensors
    python3 - <<'PY'
import nvfp4
s = next(t.data for t in nvfp4.read_tensors("out.dat") if t.name.endswith(".scale"))
assert set(s) <= set(nvfp4.FP8) and set(s[-64:]) == {8} and len(set(s)) > 25, set(s)
PY
    put zero.safetensors '[T("q_proj.weight", "f32", (2, 16), struct.pack("<32f", *[1] * 16, *[0, -0.0] * 8))]'
    quant --quant sweepfp8 -f -o out.dat zero.safetensors
    [ "$(reference inexact out.dat)" = '0 32' ]
    python3 - <<'PY'
import nvfp4
t = {t.name[14:]: bytes(t.data) for t in nvfp4.read_tensors("out.dat")}
assert t["scale"][1] == 0 and t["qdata"][8:] == bytes([0x80] * 8), t
PY
    for q in sweep max 4over6; do
        quant --quant $q -f -o out.dat x.safetensors
        read -r wrong total <<<"$(reference inexact out.dat)"
        [ "$wrong" -gt $((total / 20)) ]
    done
    put nan.safetensors '[T("q_proj.weight", "f32", (1, 16), struct.pack("<16f", *[1] * 15, math.nan))]'
    refuse 'q_proj.weight * element * 15 * not * finite' nvquant -q --quant sweepfp8 -o x.dat nan.safetensors
    put inf.safetensors '[T("q_proj.weight", "f32", (1, 16), struct.pack("<16f", *[1] * 14, -math.inf, 1))]'
    refuse 'q_proj.weight * element * 14 * not * finite' nvquant -q --quant sweepfp8 -o x.dat inf.safetensors
}

@test "any -j and any path: the same file, the same report" {
    local j isa s
    for s in sweep sweepfp8 max native; do
        quant --quant $s -j 1 --report want.tsv -o want.dat "$IN/bf16/m.dat"
        for j in 2 3 4 5 6 7 8; do
            quant --quant $s -j $j --report got.tsv -f -o got.dat "$IN/bf16/m.dat"
            cmp got.dat want.dat
            cmp got.dat.json want.dat.json
            cmp got.tsv want.tsv
            rm got.tsv
        done
        for isa in scalar avx2 avx512; do
            NIBBLE_ISA=$isa nvquant -q --quant $s --report got.tsv -f -o got.dat \
                "$IN/bf16/m.dat" 2>/dev/null || continue
            cmp got.dat want.dat
            cmp got.dat.json want.dat.json
            cmp got.tsv want.tsv
            rm got.tsv
        done
        rm want.*
    done
}

# ---- what is quantized ------------------------------------------------------

@test "default: the projections and the head; the rest keeps its dtype" {
    quant -o out.dat "$IN/bf16/m.dat"
    containers read "$IN/bf16/m.dat" | grep -v '_proj\|lm_head' >want
    containers read out.dat | grep -v '_proj\|lm_head' >got
    cmp got want
    [ "$(names out.dat | grep -c 'qdata$')" -eq 15 ]
    # By its name and shape only: 1-D and 3-D ones are left alone, so are norms.
    put odd.dat '[T(n + ".weight", "f32", s, bytes(4 * c.numel(s))) for n, s in (
        ("a.q_proj", (16,)), ("b.q_proj", (2, 2, 16)), ("c.q_proj", (1, 16)),
        ("d.q_proj_norm", (1, 16)), ("embed_tokens.q_proj", (1, 16)), ("e.other", (1, 16)),
        ("lm_head", (2, 16)))]'
    quant -o odd.out.dat odd.dat
    [ "$(names odd.out.dat | grep qdata | tr '\n' ' ')" = \
        'c.q_proj.weight.qdata lm_head.weight.qdata ' ]
    reference quantize odd.dat want.dat
    cmp odd.out.dat want.dat
}

@test "-s replaces the default selection, -x wins over -s" {
    local m=$IN/f16/m.dat
    quant -s '*embed_tokens*' -s '*1.mlp.up*' -o a.dat "$m"
    reference quantize -s '*embed_tokens*' -s '*1.mlp.up*' "$m" want.dat
    cmp a.dat want.dat
    [ "$(names a.dat | grep -c qdata)" -eq 2 ]
    quant -s '*_proj.weight' -x '*.[01].mlp*' -x lm_head.weight -o b.dat "$m"
    reference quantize -s '*_proj.weight' -x '*.[01].mlp*' -x lm_head.weight "$m" want.dat
    cmp b.dat want.dat
    [ "$(names b.dat | grep -c qdata)" -eq 8 ]
    quant -x lm_head.weight -f -o b.dat "$m"
    reference quantize -x lm_head.weight "$m" want.dat
    cmp b.dat want.dat
    # An -s that matches nothing is an error; an -x is none.
    refuse nosuch nvquant -s '*embed*' -s 'nosuch*' -o x.dat "$m"
    quant -x 'nosuch*' -f -o b.dat "$m"
}

@test "a selected tensor must be 2-D floats with a multiple of 16 columns" {
    local m=$IN/f16/m.dat
    refuse 'model.norm' nvquant -s model.norm.weight -o x.dat "$m"
    refuse 'norm' nvquant -s '*' -o x.dat "$m"
    local n
    for n in 1 8 15 17 24 40; do
        put c.dat "[T('a.q_proj.weight', 'f32', (2, $n), bytes(8 * $n))]"
        refuse a.q_proj.weight nvquant -o x.dat c.dat
        refuse a.q_proj.weight nvquant -s 'a*' -o x.dat c.dat
    done
    for n in i8:1 u8:1 i16:2 i32:4 i64:8 bool:1 c64:8; do
        put i.dat "[T('a.q_proj.weight', '${n%:*}', (2, 16), bytes(32 * ${n#*:}))]"
        refuse a.q_proj.weight nvquant -o x.dat i.dat
    done
    put three.dat '[T("a.weight", "f32", (2, 2, 16), bytes(256))]'
    refuse a.weight nvquant -s 'a*' -o x.dat three.dat
    put zero.dat '[T("a.weight", "f32", (), bytes(4))]'
    refuse a.weight nvquant -s 'a*' -o x.dat zero.dat
}

@test "tensors without rows, with one row, with many columns" {
    put in.dat '[T("a.q_proj.weight", "f32", (0, 32), b""), T("b.q_proj.weight", "f16", (1, 16), bytes(range(32))),
        T("c.up_proj.weight", "bf16", (3, 4096), bytes(i % 119 for i in range(3 * 8192))),
        T("d.weight", "i64", (2, 3), bytes(48))]'
    quant -o out.dat in.dat
    reference quantize in.dat want.dat
    cmp out.dat want.dat
}

@test "NaN and infinity: the tensor, the flat index, the bits; nothing is written" {
    # Index 77 of 5 x 32: row 2, column 13.
    local d bits
    for d in f16:7c00 f16:fc00 f16:7e01 bf16:7f80 bf16:ff80 bf16:7fc1 bf16:ff81 \
        f32:7f800000 f32:ff800000 f32:7fc00003 f32:ff800001; do
        bits=${d#*:}
        put bad.dat "[T('good.q_proj.weight', 'f32', (2, 16), bytes(128)), T('bad.up_proj.weight', '${d%:*}', (5, 32), bytes(77 * ${#bits} // 2) + bytes.fromhex('$bits')[::-1] + bytes(82 * ${#bits} // 2))]"
        refuse "bad.up_proj.weight * 77 * $bits" nvquant -o x.dat bad.dat
        refuse "bad.up_proj.weight * 77 * $bits" nvquant --quant torchao -o x.dat bad.dat
    done
    # The first of several, the first and the last element.
    put bad.dat "[T('a.up_proj.weight', 'f32', (2, 32), bytes(8) + bytes.fromhex('0000807f0000c07f') + bytes(240))]"
    refuse 'a.up_proj.weight * 2 * 7f800000' nvquant -o x.dat bad.dat
    put bad.dat "[T('a.up_proj.weight', 'f16', (1, 16), b'\\1\\x7c' + bytes(30))]"
    refuse 'a.up_proj.weight * 0 * 7c01' nvquant -o x.dat bad.dat
    put bad.dat "[T('a.up_proj.weight', 'f16', (1, 16), bytes(30) + b'\\0\\xfe')]"
    refuse 'a.up_proj.weight * 15 * fe00' nvquant -o x.dat bad.dat
}

@test "zeros: all codes 0 or 8 by their sign, scale2 1" {
    put z.dat "[T('q_proj.weight', 'bf16', (2, 32), b'\\0\\0\\0\\x80' * 32)]"
    quant --quant max -o out.dat z.dat
    python3 - <<'PY'
import nvfp4
q, s, s2 = nvfp4.read_tensors("out.dat")
assert q.data == b"\x80" * 32 and s.data == bytes(4), (q.data, s.data)
assert s2.data == bytes.fromhex("0000803f")
PY
    local s
    for s in $SETTINGS; do
        # shellcheck disable=SC2046
        quant $(settings "$s") -f -o out.dat z.dat
        # shellcheck disable=SC2046
        reference quantize $(settings "$s") z.dat want.dat
        cmp out.dat want.dat
    done
}

# ---- shared scales ----------------------------------------------------------

@test "shared scales: on for sweep, sweepfp8 and 4over6, off for max, as --share-scale says" {
    python3 - >expect.py <<'PY'
print("""
import sys, nvfp4
t = {x.name: x.data for x in nvfp4.read_tensors(sys.argv[1])}
p = "model.layers.0."
def s(m):
    return t[p + m + "_proj.weight.scale2"]
qkv = s("self_attn.q") == s("self_attn.k") == s("self_attn.v")
gate = s("mlp.gate") == s("mlp.up")
assert s("self_attn.o") not in (s("self_attn.q"), s("mlp.gate"))
assert t["model.layers.1.self_attn.q_proj.weight.scale2"] != s("self_attn.q")
assert (qkv, gate) == (eval(sys.argv[2]),) * 2, (qkv, gate)
""")
PY
    local m=$IN/f16/m.dat q
    for q in sweep sweepfp8 4over6; do
        quant --quant $q -f -o out.dat "$m"
        python3 expect.py out.dat True
        quant --quant $q --share-scale none -f -o out.dat "$m"
        python3 expect.py out.dat False
        reference quantize --quant $q --share-scale none "$m" want.dat
        cmp out.dat want.dat
    done
    quant --quant max -f -o out.dat "$m"
    python3 expect.py out.dat False
    quant --quant max --share-scale qkv,gate_up -f -o out.dat "$m"
    python3 expect.py out.dat True
    reference quantize --quant max --share-scale qkv,gate_up "$m" want.dat
    cmp out.dat want.dat
    # No effect on one level.
    quant --quant sweep1 -f -o out.dat "$m"
    quant --quant sweep1 --share-scale qkv,gate_up -f -o other.dat "$m"
    cmp out.dat other.dat
}

@test "shared scales: only among what is quantized" {
    # k_proj has the largest values, and is not chosen.
    quant -s '*.[qv]_proj.weight' -o out.dat "$IN/f16/m.dat"
    reference quantize -s '*.[qv]_proj.weight' "$IN/f16/m.dat" want.dat
    cmp out.dat want.dat
}

# ---- report and words -------------------------------------------------------

@test "--report: a line a tensor, numbers as computed anew" {
    local s
    for s in sweep max native; do
        quant --quant $s --report got.tsv -f -o out.dat "$IN/f16/m.dat"
        reference report --quant $s "$IN/f16/m.dat" >want.tsv
        python3 - <<'PY'
import math
rows = [l.rstrip("\n").split("\t") for l in open("got.tsv")]
want = [l.rstrip("\n").split("\t") for l in open("want.tsv")]
assert rows[0] == ["name", "shape", "sqnr_db", "mse", "max_err", "zero_scales",
                   "saturated_blocks"], rows[0]
assert len(rows) == 1 + len(want) == 16
for got, w in zip(rows[1:], want):
    assert got[0] == w[0] and len(got) == 7, got
    assert [int(x) for x in got[1].strip("[]").replace(",", "x").split("x")] == \
        [int(x) for x in w[1].split("x")], got
    for a, b, tol in zip(got[2:5], w[2:5], (1e-3, None, None)):
        a, b = float(a), float(b)
        ok = a == b or (abs(a - b) <= tol if tol else abs(a - b) <= 1e-5 * abs(b))
        assert ok or (math.isnan(a) and math.isinf(b)), (got, w)
    assert int(got[5]) == int(w[5]), (got, w)
    assert int(got[6]) >= 0
PY
        rm got.tsv
    done
}

@test "--report: scales that are zero, blocks that saturate" {
    # One level: 6*448 = 2688 is the largest value.
    put in.dat "[T('q_proj.weight', 'f32', (1, 64), struct.pack('<64f', *[3000.0] * 16, *[0.0] * 16, *[2688.0] * 16, *[1e-7] * 16))]"
    quant --quant sweep1 --report r.tsv -o out.dat in.dat
    [ "$(sed -n 2p r.tsv | cut -f 6,7)" = "$(printf '1\t1')" ]
    quant --quant native --report r2.tsv -f -o out.dat in.dat
    [ "$(sed -n 2p r2.tsv | cut -f 6,7)" = "$(printf '2\t1')" ]
    quant --quant torchao --report r3.tsv -f -o out.dat in.dat
    [ "$(sed -n 2p r3.tsv | cut -f 6,7)" = "$(printf '0\t1')" ]
}

@test "--report never touches an input or the output" {
    cp "$IN/f16/m.dat" in.dat
    cp "$IN/f16/config.json" c.json
    local before
    before=$(sha256sum in.dat c.json)
    run -2 --separate-stderr nvquant -q --report in.dat -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    [ "$(sha256sum in.dat c.json)" = "$before" ]
    ln -s in.dat link
    ln in.dat hard
    run -2 --separate-stderr nvquant -q --report link -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    run -2 --separate-stderr nvquant -q --report hard -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    run -2 --separate-stderr nvquant -q --report c.json --config c.json -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    [ "$(sha256sum in.dat c.json)" = "$before" ]
    run -2 --separate-stderr nvquant -q --report out.dat -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    run -2 --separate-stderr nvquant -q --report out.dat.json -f -o out.dat in.dat
    [[ $stderr == "nvquant: "* && -z $output ]]
    if [ -e out.dat ]; then
        containers read out.dat >/dev/null
    fi
    run -2 nvquant -q --report /dev/full -f -o out.dat in.dat
    run -2 nvquant -q --report nodir/r.tsv -f -o out.dat in.dat
}

@test "a summary on stderr, nothing on stdout; -q is silent" {
    run -0 --separate-stderr nvquant -o out.dat "$IN/f16/m.dat"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} == 'nvquant: '*15* ]]
    [[ ${stderr_lines[0]} != *$'\r'* && ${stderr_lines[0]} != *$'\033'* ]]
    quant -f -o out.dat "$IN/f16/m.dat"
    run -0 --separate-stderr nvquant --dequant -o back.dat out.dat
    [ -z "$output" ]
}

# ---- outputs ----------------------------------------------------------------

@test "safetensors: the same codes and scales, under the same names, no head" {
    quant -o out.safetensors "$IN/bf16/m.dat"
    containers ours out.safetensors
    reference quantize "$IN/bf16/m.dat" want.dat
    python3 - <<'PY'
import nvfp4
a, b = ({t.name: (t.dtype, t.shape, t.data) for t in nvfp4.read_tensors(p)}
        for p in ("out.safetensors", "want.dat"))
for n in [n for n in b if n.startswith("lm_head")]:
    del b[n]
assert a == b, sorted(set(a) ^ set(b))
PY
    # And from a safetensors file.
    quant -o b.safetensors "$IN/plain.safetensors"
    containers read out.safetensors >a.tsv
    containers read b.safetensors | cmp - a.tsv
}

@test "from a model directory: an order of its own, the head made of the embedding" {
    quant -o out.dat "$IN/dir"
    # The model's order, as in a .dat.
    quant -o want.dat "$IN/bf16/m.dat"
    cmp out.dat want.dat
    # An untied head is itself.
    quant -o untied.dat "$IN/untied"
    python3 - <<'PY'
import nvmodel, nvfp4, containers as c
t = nvmodel.model("bf16", own_head=True)
want = c.dat_bytes(nvfp4.quantize(t, {
    "quant": "sweep", "variant": None, "criterion": "mse", "exhaustive": False,
    "share": True, "select": [], "exclude": [], "seed": False}))
assert open("untied.dat", "rb").read() == want
PY
    # Without a configuration nobody knows of a head.
    quant -o bare.dat "$IN/plain.safetensors"
    [ "$(names bare.dat | grep -c lm_head)" -eq 0 ]
    quant --config "$IN/conf/config.json" -f -o bare.dat "$IN/plain.safetensors"
    [ "$(names bare.dat | grep -c lm_head)" -eq 3 ]
    quant --tie -f -o bare.dat "$IN/dir"
    [ "$(names bare.dat | grep -c lm_head)" -eq 0 ]
}

@test "standard input and output" {
    quant -o want.dat "$IN/f16/m.dat"
    nvquant -q --config "$IN/f16/config.json" -o - "$IN/f16/m.dat" | cmp - want.dat
    # shellcheck disable=SC2094  # cmp only reads
    nvquant -q --config "$IN/f16/config.json" -o - - <"$IN/f16/m.dat" | cmp - want.dat
    # shellcheck disable=SC2002
    cat "$IN/f16/m.dat" | nvquant -q --config "$IN/f16/config.json" -o - - | cmp - want.dat
    run -0 nvquant -q --report /dev/stdout -f -o want.dat "$IN/f16/m.dat"
    [ "${#lines[@]}" -eq 16 ]
    refuse '' nvquant -q -o /dev/full "$IN/f16/m.dat"
}

@test "what is NVFP4 already: quantized again by another quantizer, which is said" {
    quant -o a.dat "$IN/f16/m.dat"
    run -0 --separate-stderr nvquant --quant max -o b.dat a.dat
    [[ $stderr == *again* ]]
    # From the decoded values, the head from the embedding.
    quant --dequant --dtype f32 -o v.dat a.dat
    quant --quant max -o want.dat v.dat
    nvmodel same b.dat want.dat pairs
}

@test "a checkpoint's master is quantized" {
    quiet datpack -q --config "$IN/conf/config.json" --quant max -o m.ckpt "$IN/dir"
    quant --quant max -o out.dat m.ckpt
    quant --quant max -o want.dat "$IN/dir"
    cmp out.dat want.dat
}

@test "provenance: options and hashes, no name, no time, no threads" {
    mkdir a b
    cp "$IN/f16/m.dat" a/x.dat
    cp "$IN/f16/m.dat" b/y.dat
    cp "$IN/f16/config.json" a
    cp "$IN/f16/config.json" b
    quant -j 1 --quant max --variant modelopt -o a/out.dat a/x.dat
    TZ=Asia/Tokyo quant -j 7 --quant max --variant modelopt -o b/other.dat b/y.dat
    cmp a/out.dat.json b/other.dat.json
    python3 - <<'PY'
import json, nvfp4, xxh3
o = json.load(open("a/out.dat.json"))
p = o["provenance"]
assert p["tool"] == "nvquant" and len(p["inputs"]) == 1, p
assert p["inputs"][0]["xxh3"] == xxh3.xxh3_128(open("a/x.dat", "rb").read()).hex(), p
assert p["options"]["quant"] == "max" and p["options"]["variant"] == "modelopt", p
assert "threads" not in json.dumps(p) and "x.dat" not in json.dumps(p)
assert o["config"]["hidden_size"] == 32
PY
    # The chain: what a file was made of.
    quant --dequant -o a/back.dat a/out.dat
    python3 - <<'PY'
import json
p = json.load(open("a/back.dat.json"))["provenance"]
assert p["tool"] == "nvquant" and p["inputs"][0]["provenance"]["options"]["quant"] == "max", p
PY
    # Different work, different words.
    quant --quant max -o a/plain.dat a/x.dat
    run ! cmp -s a/plain.dat.json a/out.dat.json
    # safetensors carries the same.
    quant -o s.safetensors "$IN/f16/m.dat"
    run -0 datcat -q --meta s.safetensors
    [[ $output == *nvquant* && $output == *sweep* ]]
}

# ---- whole or not at all ----------------------------------------------------

@test "an existing output stays without -f, and when the run fails" {
    echo mine >o.dat
    refuse o.dat nvquant -o o.dat "$IN/f16/m.dat"
    [ "$(cat o.dat)" = mine ]
    quant -f -o o.dat "$IN/f16/m.dat"
    cp o.dat before
    cp o.dat.json before.json
    # Trouble in the last tensor, after much has been written.
    python3 - "$IN/f16/m.dat" <<'PY'
import sys, containers as c, nvfp4
ts = nvfp4.read_tensors(sys.argv[1])
ts[-1].data = ts[-1].data[:-2] + b"\0\x7e"
c.put("bad.dat", c.dat_bytes(ts))
PY
    refuse lm_head.weight nvquant -q -f -o o.dat bad.dat
    refuse lm_head.weight nvquant -q -f --quant torchao -o o.dat bad.dat
    refuse lm_head.weight nvquant -q -f --report r.tsv -o o.dat bad.dat
    refuse nosuch nvquant -f -o o.dat nosuch.dat
    cmp o.dat before
    cmp o.dat.json before.json
    refuse nodir nvquant -o nodir/o.dat "$IN/f16/m.dat"
    mkdir d.dat
    refuse d.dat nvquant -f -o d.dat "$IN/f16/m.dat"
}

@test "an input is never the output" {
    cp "$IN/f16/m.dat" a.dat
    ln a.dat hard.dat
    ln -s a.dat soft.dat
    local o
    for o in a.dat hard.dat soft.dat ./a.dat; do
        refuse '' nvquant -q -f -o $o a.dat
    done
    cp "$IN/conf/config.json" c.dat
    refuse '' nvquant -q -f --config c.dat -o c.dat a.dat
    cmp a.dat "$IN/f16/m.dat"
    cmp c.dat "$IN/conf/config.json"
}

# bats test_tags=native
@test "a failing disk: the old output stays, no other file" {
    local so=${NIBBLE_BUILD:-$BUILD}/failio.so kind
    [ -e "$so" ] || skip "failio.so is not built"
    so=$(realpath "$so")
    quant --quant native -o o.dat "$IN/f16/m.dat"
    local before
    before=$(sha256sum o.dat o.dat.json)
    for kind in anywrite:1:ENOSPC anywrite:2:EIO anysync:1:EIO anyrename:1:EIO \
        close:1:EIO:/w/ open:1:EACCES:/w/; do
        # A close or an open of something else may go well.
        FAILIO=$kind LD_PRELOAD=$so run nvquant -q -f -o o.dat "$IN/f16/m.dat"
        [ "$status" -eq 2 ] || [ "$status" -eq 0 ]
        [ "$(ls -A)" = "$(printf 'o.dat\no.dat.json')" ]
        if [ "$status" -eq 2 ]; then
            [ "$(sha256sum o.dat o.dat.json)" = "$before" ]
        else
            quant -f --quant native -o o.dat "$IN/f16/m.dat"
        fi
    done
}

@test "misuse: what is missing, contradictory or unknown" {
    local m=$IN/f16/m.dat
    refuse OUT nvquant "$m"
    refuse INPUT nvquant -o x.dat
    refuse '' nvquant -o x.dat "$m" "$m"
    refuse other nvquant --quant other -o x.dat "$m"
    refuse none nvquant --quant none -o x.dat "$m"
    refuse other nvquant --quant max --variant other -o x.dat "$m"
    refuse other nvquant --quant 4over6 --criterion other -o x.dat "$m"
    refuse qkv nvquant --share-scale qkv -o x.dat "$m"
    # Settings of another quantizer.
    refuse variant nvquant --variant modelopt -o x.dat "$m"
    refuse variant nvquant --quant 4over6 --variant modelopt -o x.dat "$m"
    refuse criterion nvquant --quant sweep --criterion mae -o x.dat "$m"
    refuse exhaustive nvquant --quant max --exhaustive -o x.dat "$m"
    # --dequant is the way back.
    refuse quant nvquant --dequant --quant max -o x.dat "$m"
    refuse dtype nvquant --dtype f16 -o x.dat "$m"
    refuse nvfp4 nvquant --dequant --dtype nvfp4 -o x.dat "$m"
    # Containers.
    refuse x.gguf nvquant -o x.gguf "$m"
    refuse x nvquant -o x "$m"
    refuse x.ckpt nvquant -o x.ckpt "$m"
    refuse config.json nvquant -o x.dat "$IN/conf/config.json"
    : >empty.dat
    refuse empty.dat nvquant -o x.dat empty.dat
}

@test "--device: cpu is there; what is not there is said" {
    quant --device cpu -o a.dat "$IN/f16/m.dat"
    quant -o b.dat "$IN/f16/m.dat"
    cmp a.dat b.dat
    cmp a.dat.json b.dat.json
    local d
    for d in cuda cuda:0 cuda:99; do
        run --separate-stderr nvquant -q --device $d -o c.dat "$IN/f16/m.dat"
        if [ "$status" -eq 0 ]; then
            cmp c.dat a.dat
            rm -f c.dat*
        else
            [ "$status" -eq 2 ]
            [ "${#stderr_lines[@]}" -eq 1 ]
            [ ! -e c.dat ]
        fi
    done
    for d in cuda: cuda:x cuda:-1 gpu cpu:0 ''; do
        refuse device nvquant --device "$d" -o x.dat "$IN/f16/m.dat"
    done
}

# ---- --dequant --------------------------------------------------------------

@test "--dequant: f16 by default, bf16 and f32, rounded once" {
    local q d
    for q in sweep torchao native; do
        quant --quant $q -f -o q.dat "$IN/f16/m.dat"
        for d in f16 bf16 f32; do
            # The head of a tied model is the embedding again, not its decoded pair.
            quant --dequant --dtype $d -f -o got.dat q.dat
            reference dequant --dtype $d --tied q.dat want.dat
            cmp got.dat want.dat
            quant --dequant --dtype $d --untie -f -o got.dat q.dat
            reference dequant --dtype $d q.dat want.dat
            cmp got.dat want.dat
        done
        quant --dequant -f -o got.dat q.dat
        reference dequant --dtype f16 --tied q.dat want.dat
        cmp got.dat want.dat
    done
    # -s and -x choose here, too; a safetensors file.
    quant --dequant -x '*mlp*' -f -o some.dat q.dat
    [ "$(names some.dat | grep -c 'mlp.*qdata')" -eq 6 ]
    [ "$(names some.dat | grep -c 'qdata')" -eq 6 ]
    quant --dequant --dtype bf16 -o got.safetensors q.dat
    containers ours got.safetensors
}

@test "--dequant: what f16 cannot hold is refused by tensor and index" {
    # 6 * 448 * scale2; the third code is the largest.
    put big.dat "[T('a.weight.qdata', 'u8', (1, 8), b'\\0\\7' + bytes(6)), T('a.weight.scale', 'f8_e4m3', (1, 1), b'\\x7e'), T('a.weight.scale2', 'f32', (1,), struct.pack('<f', 25.0))]"
    refuse 'a.weight * 2' nvquant --dequant -o x.dat big.dat
    quant --dequant --dtype bf16 -o b.dat big.dat
    quant --dequant --dtype f32 -o f.dat big.dat
    put edge.dat "[T('a.weight.qdata', 'u8', (1, 8), b'\\0\\7' + bytes(6)), T('a.weight.scale', 'f8_e4m3', (1, 1), b'\\x7e'), T('a.weight.scale2', 'f32', (1,), struct.pack('<f', 24.369))]"
    quant --dequant -o h.dat edge.dat
    reference dequant edge.dat want.dat
    cmp h.dat want.dat
}

@test "a finite NVFP4 value never becomes an infinity" {
    # Values up to 6 * 448 * 3e38; that of element 17 is 3e38 and a float still.
    huge() { # DTYPE-OF-REST SCALE FILE
        python3 - "$@" <<'PY'
import struct, sys
import containers as c, nvmodel
rest, scale, path = sys.argv[1], float(sys.argv[2]), sys.argv[3]
out = []
for t in nvmodel.model(rest):
    if t.name != "model.layers.0.mlp.up_proj.weight":
        out.append(t)
        continue
    r, k = t.shape
    codes = bytearray(r * k // 2)
    codes[8] = 0x22     # elements 16 and 17: 1
    codes[12] = 0x60    # element 25: 4
    out += [c.Tensor(t.name + ".qdata", "u8", (r, k // 2), bytes(codes)),
            c.Tensor(t.name + ".scale", "f8_e4m3", (r, k // 16), b"\x38" * (r * k // 16)),
            c.Tensor(t.name + ".scale2", "f32", (1,), struct.pack("<f", scale))]
c.put(path, c.dat_bytes(out))
PY
    }
    local words='up_proj.weight": element 25 is too large for a float'
    local d
    huge f32 3e38 m.dat
    for d in f32 bf16 f16; do
        refuse 'up_proj.weight * element' nvquant -q --dequant --dtype $d --config "$IN/conf/config.json" -o x.dat m.dat
        refuse 'up_proj.weight * element' datpack -q --dtype $d --config "$IN/conf/config.json" -o x.safetensors m.dat
    done
    refuse "$words" nvquant -q --dequant --dtype f32 --config "$IN/conf/config.json" -o x.dat m.dat
    refuse "$words" nvquant -q --dequant --dtype bf16 --config "$IN/conf/config.json" -o x.dat m.dat
    for d in f32 bf16; do
        refuse "$words" datpack -q --master $d --config "$IN/conf/config.json" -o x.ckpt m.dat
    done
    # Requantized.
    refuse 'up_proj.weight * element * 25 * not * finite' nvquant -q --quant sweep1 -o x.dat m.dat
    # What bf16 rounds up to an infinity: 3.3961776e38 does, 3.39e38 does not.
    huge f32 3.3961776e38 edge.dat
    python3 - <<'PY'
import containers as c
ts = c.read_any("edge.dat")
for t in ts:
    t.data = bytearray(t.file[t.offset:t.offset + t.nbytes(True)])
    if t.name.endswith(".qdata"):
        t.data[12] = 0
c.put("edge.dat", c.dat_bytes(ts))
PY
    refuse 'element * 16 * 3.39617' nvquant -q --dequant --dtype bf16 --config "$IN/conf/config.json" -o x.dat edge.dat
    quiet nvquant -q --dequant --dtype f32 --config "$IN/conf/config.json" -o y.dat edge.dat
    # An infinity that stands in a file stays one.
    put inf.safetensors '[T("x", "f32", (2,), struct.pack("<2f", math.inf, -math.inf))]'
    for d in f32 bf16; do
        quiet datpack -q --dtype $d -o $d.safetensors inf.safetensors
        datcat -q --diff --atol 0 --rtol 0 $d.safetensors inf.safetensors
    done
}

@test "a value of the embedding is named as the embedding's, not the head's" {
    python3 - <<'PY'
import struct, nvfp4, containers as c
ts = nvfp4.read_tensors(__import__("os").environ["IN"] + "/dir")
for t in ts:
    if t.name == "model.embed_tokens.weight":
        t.dtype, n = "f32", len(t.data) // 2
        t.data = struct.pack("<%df" % n, *[0] * (n - 1), float("nan"))
c.put("nan.safetensors", c.st_bytes(ts, {"format": "pt"}))
PY
    refuse 'nan.safetensors: "model.embed_tokens.weight" * not finite' \
        nvquant -q --config "$IN/conf/config.json" -o x.dat nan.safetensors
    [[ $stderr != *lm_head* ]]
}

@test "NVFP4 tensors that are broken are refused" {
    local q='T("a.weight.qdata", "u8", (2, 16), bytes(32))'
    local s='T("a.weight.scale", "f8_e4m3", (2, 2), b"8888")'
    local s2='T("a.weight.scale2", "f32", (1,), struct.pack("<f", .5))'
    local bad
    put good.dat "[$q, $s, $s2]"
    quant --dequant -o x.dat good.dat
    rm x.dat x.dat.json
    for bad in "[$q]" "[$s]" "[$q, $s2]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (2, 1), b'88')]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (1, 4), b'8888')]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (4,), b'8888')]" \
        "[$q, T('a.weight.scale', 'f16', (2, 2), bytes(8))]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (2, 2), b'88\\x7f8')]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (2, 2), b'888\\xff')]" \
        "[$q, T('a.weight.scale', 'f8_e4m3', (2, 2), b'\\x80888')]" \
        "[T('a.weight.qdata', 'u8', (2, 12), bytes(24)), $s]" \
        "[T('a.weight.qdata', 'u8', (32,), bytes(32)), $s]" \
        "[T('a.weight.qdata', 'f16', (2, 16), bytes(64)), $s]" \
        "[$q, $s, T('a.weight.scale2', 'f32', (1,), bytes(4))]" \
        "[$q, $s, T('a.weight.scale2', 'f32', (1,), struct.pack('<f', -1))]" \
        "[$q, $s, T('a.weight.scale2', 'f32', (1,), struct.pack('<f', math.nan))]" \
        "[$q, $s, T('a.weight.scale2', 'f32', (1,), struct.pack('<f', math.inf))]" \
        "[$q, $s, T('a.weight.scale2', 'f16', (1,), bytes(2))]" \
        "[$q, $s, T('a.weight.scale2', 'f32', (2,), struct.pack('<2f', 1, 1))]" \
        "[$q, $s, T('a.qdata', 'u8', (2, 16), bytes(32)), T('a.scale', 'f8_e4m3', (2, 2), b'8888')]"; do
        put bad.dat "$bad"
        refuse '"a' nvquant -q --dequant -o x.dat bad.dat
    done
}

@test "torchao of its own values changes nothing; native after its first pass" {
    local d
    for d in f16 f32 bf16; do
        quant --quant torchao -f -o a.dat "$IN/$d/m.dat"
        quant --dequant --dtype $d -f -o v.dat a.dat
        quant --quant torchao -f -o b.dat v.dat
        nvmodel same a.dat b.dat
        quant --quant native -f -o a.dat "$IN/$d/m.dat"
        quant --dequant --dtype $d -f -o v.dat a.dat
        quant --quant native -f -o a.dat v.dat
        quant --dequant --dtype $d -f -o v.dat a.dat
        quant --quant native -f -o b.dat v.dat
        nvmodel same a.dat b.dat
    done
}

# ---- --compat torchsharp ----------------------------------------------------------

@test "--compat torchsharp: torchao, one level, f16, no sidecar" {
    local q d
    for d in f16 bf16 f32; do
        quant --compat torchsharp -f -o out.dat "$IN/$d/m.dat"
        [ ! -e out.dat.json ]
        reference quantize --compat torchsharp "$IN/$d/m.dat" want.dat
        cmp out.dat want.dat
        containers list out.dat | cut -f 2 | sort -u | tr '\n' ' ' >dtypes
        [ "$(cat dtypes)" = 'f16 f8_e4m3 u8 ' ]
    done
    for q in native sweep1 torchao; do
        quant --compat torchsharp --quant $q -f -o out.dat "$IN/bf16/m.dat"
        reference quantize --compat torchsharp --quant $q "$IN/bf16/m.dat" want.dat
        cmp out.dat want.dat
    done
    # Each pair together, lm_head the last.
    python3 - <<'PY'
import nvfp4
n = [t.name for t in nvfp4.read_tensors("out.dat")]
assert n[-2:] == ["lm_head.weight.qdata", "lm_head.weight.scale"]
assert all(n[i + 1] == x[:-5] + "scale" for i, x in enumerate(n) if x.endswith("qdata"))
PY
    # From a directory: the head of a tied model, too.
    quant --compat torchsharp -f -o dir.dat "$IN/dir"
    reference quantize --compat torchsharp "$IN/bf16/m.dat" want.dat
    cmp dir.dat want.dat
    refuse '' nvquant --compat torchsharp --quant sweep -o x.dat "$IN/f16/m.dat"
    refuse '' nvquant --compat torchsharp --quant max -o x.dat "$IN/f16/m.dat"
    refuse '' nvquant --compat torchsharp -o x.safetensors "$IN/f16/m.dat"
    # What f16 cannot hold is refused where it is copied.
    put big.dat '[T("model.norm.weight", "f32", (16,), struct.pack("<16f", *[7e4] * 16))]'
    put big.dat '[T("model.norm.weight", "f32", (16,), struct.pack("<16f", *[0] * 9, *[7e4] * 7)), T("q_proj.weight", "f32", (1, 16), bytes(64))]'
    refuse 'model.norm.weight * 9' nvquant --compat torchsharp -o x.dat big.dat
}

# ---- datpack ----------------------------------------------------------------

@test "datpack --dtype nvfp4 is nvquant" {
    local q
    # But for bf16, which becomes f16 in a .dat that datpack writes.
    quiet datpack -q --dtype nvfp4 -o a.dat "$IN/bf16/m.dat"
    quant -o b.dat "$IN/bf16/m.dat"
    nvmodel same a.dat b.dat pairs
    for q in sweep sweepfp8 max 4over6 torchao native sweep1; do
        quiet datpack -q --dtype nvfp4 --quant $q -f -o a.dat "$IN/f16/m.dat"
        quant --quant $q -f -o b.dat "$IN/f16/m.dat"
        cmp a.dat b.dat
    done
    quiet datpack -q --dtype nvfp4 -f -o a.dat "$IN/f16/m.dat"
    quant -f -o b.dat "$IN/f16/m.dat"
    cmp a.dat b.dat
    quiet datpack -q --dtype nvfp4 --quant max --variant modelopt --share-scale qkv,gate_up \
        -f -o a.dat "$IN/f16/m.dat"
    quant --quant max --variant modelopt --share-scale qkv,gate_up -f -o b.dat "$IN/f16/m.dat"
    cmp a.dat b.dat
    quiet datpack -q --dtype nvfp4 --quant 4over6 --criterion mae -f -o a.dat "$IN/f16/m.dat"
    quant --quant 4over6 --criterion mae -f -o b.dat "$IN/f16/m.dat"
    cmp a.dat b.dat
    quiet datpack -q --compat torchsharp --dtype nvfp4 -f -o a.dat "$IN/f16/m.dat"
    quant --compat torchsharp -f -o b.dat "$IN/f16/m.dat"
    cmp a.dat b.dat
}

@test "datpack --like: the reference's order and kind, the input's values" {
    local q
    for q in torchao native sweep1; do
        quant --compat torchsharp --quant $q -f -o ref.dat "$IN/f16/m.dat"
        # Another order, other weights.
        python3 - <<'PY'
import containers as c, nvfp4
ts = nvfp4.read_tensors("ref.dat")
pairs = [ts[i:i + 2] for i, t in enumerate(ts) if t.name.endswith(".qdata")]
rest = [t for t in ts if not t.name.endswith((".qdata", ".scale"))]
c.put("ref.dat", c.dat_bytes(rest[::-1] + [t for p in pairs[::-1] for t in p]))
PY
        quiet datpack -q --like ref.dat --quant $q -f -o got.dat "$IN/bf16/m.dat"
        quant --compat torchsharp --quant $q -f -o want.dat "$IN/bf16/m.dat"
        [ "$(names got.dat)" = "$(names ref.dat)" ]
        nvmodel same got.dat want.dat
    done
    # Two levels have no place in it.
    refuse '' datpack --like ref.dat --quant sweep -o x.dat "$IN/f16/m.dat"
    quant --quant max -o two.dat "$IN/f16/m.dat"
    refuse '' datpack -q --like ref.dat -o x.dat two.dat
    # Into a reference of two levels.
    quiet datpack -q --like two.dat --quant max -f -o got.dat "$IN/f16/m.dat"
    cmp got.dat two.dat
    quiet datpack -q --like two.dat -f -o got.dat two.dat
    cmp got.dat two.dat
}

@test "datpack from a checkpoint: its own quantizer, what the forward pass saw" {
    local q
    for q in sweep sweepfp8 max 4over6 torchao; do
        quiet datpack -q --config "$IN/conf/config.json" --quant $q -f -o m.ckpt "$IN/dir"
        quiet datpack -q --dtype nvfp4 -f -o got.dat m.ckpt
        quant --quant $q -f -o want.dat "$IN/dir"
        nvmodel same got.dat want.dat pairs
    done
    quiet datpack -q --config "$IN/conf/config.json" --quant max --share-scale qkv,gate_up \
        -f -o m.ckpt "$IN/dir"
    quiet datpack -q --dtype nvfp4 -f -o got.dat m.ckpt
    quant --quant max --share-scale qkv,gate_up -f -o want.dat "$IN/dir"
    nvmodel same got.dat want.dat pairs
    # Two levels are nothing for TorchSharp, unless another quantizer is asked for.
    refuse '' datpack -q --compat torchsharp --dtype nvfp4 -o x.dat m.ckpt
    quiet datpack -q --compat torchsharp --dtype nvfp4 --quant native -f -o got.dat m.ckpt
    quant --compat torchsharp --quant native -f -o want.dat "$IN/dir"
    cmp got.dat want.dat
}

# quant_word CKPT: the quantizer in its header.
quant_word() {
    python3 -c '
import sys, containers as c
print(c.read_ckpt_header(c.map_file(sys.argv[1]))[0]["quant"]["name"])' "$1"
}

@test "a checkpoint of one-level NVFP4 takes a quantizer of one level, and says so" {
    local q
    for q in torchao native sweep1; do
        quant --quant $q -f -o m.dat "$IN/f16/m.dat"
        run -0 --separate-stderr datpack -f -o m.ckpt m.dat
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == *"one level"*" $q,"*"--quant"* ]]
        [ "$(quant_word m.ckpt)" = $q ]
        quiet datpack -q -f -o quiet.ckpt m.dat
        cmp m.ckpt quiet.ckpt
        # Also where another run handed it on.
        quiet datpack -q -f -o m.safetensors m.dat
        quiet datpack -q -f -o again.ckpt m.safetensors
        [ "$(quant_word again.ckpt)" = $q ]
        # Of a file that does not tell.
        rm m.dat.json
        run -0 --separate-stderr datpack --config "$IN/conf/config.json" -f -o bare.ckpt m.dat
        [[ $stderr == *"one level"*" sweep1,"* ]]
        [ "$(quant_word bare.ckpt)" = sweep1 ]
    done
    # What comes out of it is what went in.
    quant --quant torchao -f -o m.dat "$IN/f16/m.dat"
    for q in again bare; do
        quiet datpack -q --master f32 -f -o $q.ckpt m.dat
        quiet datpack -q --like m.dat -f -o back.dat $q.ckpt
        datcat -q --diff --atol 0 --rtol 0 -x lm_head.weight m.dat back.dat # that is made anew
        rm -f m.dat.json
        cp "$IN/conf/config.json" .
    done
    # Told otherwise, no word.
    run -0 --separate-stderr datpack --quant sweep -f -o m.ckpt m.dat
    [ -z "$stderr" ]
    [ "$(quant_word m.ckpt)" = sweep ]
}

@test "a checkpoint of NVFP4 by another quantizer than its own says which two" {
    quant --quant max -o m.dat "$IN/f16/m.dat"
    run -0 --separate-stderr datpack -o m.ckpt m.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"by max"*"by sweep"*"--quant max"* ]]
    [ "$(quant_word m.ckpt)" = sweep ]
    local q
    for q in max sweep sweepfp8; do
        run -0 --separate-stderr datpack --quant $q -f -o m.ckpt m.dat
        [ -z "$stderr" ]
        [ "$(quant_word m.ckpt)" = $q ]
    done
    quant -f -o m.dat "$IN/f16/m.dat"
    run -0 --separate-stderr datpack -f -o m.ckpt m.dat
    [ -z "$stderr" ]
    run -0 --separate-stderr datpack --config "$IN/conf/config.json" -f -o m.ckpt "$IN/f16/m.dat"
    [ -z "$stderr" ]
}

# ---- size -------------------------------------------------------------------

# bats test_tags=nosan,native
@test "memory stays below 256 MiB, whatever the size" {
    python3 -c '
import containers as c
with open("big.dat", "wb") as f:
    f.write(c.uleb(2))
    for n in "up", "down":
        f.write(c.dat_header("a.%s_proj.weight" % n, "f16", (20000, 4096)))
        f.truncate(f.tell() + 2 * 20000 * 4096)
        f.seek(0, 2)'
    local j
    for j in 2 64; do
        python3 -c '
import resource, subprocess, sys
subprocess.run(["nvquant", "-q", "-f", "-j", sys.argv[1], "--quant", "max", "-o", "out.dat",
                "big.dat"], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak)
assert peak < 256 << 10, peak' $j
    done
    [ "$(stat -c %s out.dat)" -gt $((2 * 20000 * 4096 * 9 / 16)) ]
}
