#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr_lines: set by run
# Every option of datcat, against numbers and bytes that Python's standard
# library (struct, hashlib) computes from the same files; datcat's contract is
# the page on the programs, its containers are in doc/FORMAT.md.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    PYTHONPATH=$HERE:$BATS_FILE_TMPDIR
    export IN PYTHONPATH
    mkdir "$IN"
    cat >"$BATS_FILE_TMPDIR/make.py" <<'PY'
"""Inputs, and decoders of one's own: values(dtype, bytes) -> floats or ints."""
import json, math, os, random, struct, sys
import containers as c
T = c.Tensor
E2M1 = [0.0, .5, 1, 1.5, 2, 3, 4, 6]


def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    v = math.nan if b & 127 == 127 else (
        m / 512 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
    return -v if b & 128 else v


def e5m2(b):
    return struct.unpack("<e", bytes([0, b]))[0]


def bf16(data):
    n = len(data) // 2
    wide = b"".join(b"\0\0" + data[2 * i:2 * i + 2] for i in range(n))
    return list(struct.unpack("<%df" % n, wide))


def e2m1(nibble):
    return (-1 if nibble & 8 else 1) * E2M1[nibble & 7]


def nibbles(data):
    return [v for b in data for v in (b & 15, b >> 4)]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def values(dtype, data):
    letter = {"f16": "e", "f32": "f", "f64": "d", "u8": "B", "i8": "b",
              "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q",
              "u64": "Q", "bool": "B"}.get(dtype)
    if letter:
        n = len(data) // struct.calcsize(letter)
        return list(struct.unpack("<%d%s" % (n, letter), data))
    if dtype == "bf16":
        return bf16(data)
    if dtype == "f4_e2m1":
        return [e2m1(v) for v in nibbles(data)]
    return [{"f8_e4m3": e4m3, "f8_e5m2": e5m2}[dtype](b) for b in data]


def nvfp4(codes, scales, tensor_scale=1.0):
    """(E2M1 * E4M3) * scale2 in fp32."""
    return [f32(e2m1(v) * e4m3(scales[i // 16]) * tensor_scale)
            for i, v in enumerate(nibbles(codes))]


def scale_bytes(seed, n):
    return bytes(b % 0x7F for b in c.noise(seed, n))


def pair(x, rows, cols, scale2=None, spelling="%s.weight"):
    b = spelling % x
    out = [T(b + ".qdata", "u8", (rows, cols // 2),
             c.noise((x, "q"), rows * cols // 2)),
           T(b + ".scale", "f8_e4m3", (rows, cols // 16),
             scale_bytes((x, "s"), rows * cols // 16))]
    if scale2 is not None:
        out.append(T(b + ".scale2", "f32", (1,), struct.pack("<f", scale2)))
    return out


def floats(n, seed):
    """Values with zeros of both signs, NaN and infinities."""
    r = random.Random(seed)
    odd = [0.0, -0.0, math.nan, math.inf, -math.inf]
    return [odd[i % 5] if i % 97 < 5 and i >= 5 else r.uniform(-3, 3)
            for i in range(n)]


def main(d):
    os.chdir(d)
    small = [T("a.weight", "f16", (2, 3), struct.pack(
                 "<6e", 1, -2, 0.5, -0.0, 65504, 2.0 ** -24)),
             T("b:2", "i8", (3,), bytes([1, 255, 128])),
             T("b", "f32", (), struct.pack("<f", 0.1))] + pair("c", 2, 32, .25)
    c.put("small.dat", c.dat_bytes(small))
    every = c.sample([x for x in c.DAT_CODE], 5, True)
    c.put("every.dat", c.dat_bytes(every))
    c.put("every.safetensors", c.st_bytes(
        c.sample(list(c.ST_DTYPE), 5, False), {"format": "pt"}))
    sizes = [0, 1, 15, 16, 17, 4095, 4096, 4097, 262143, 262144, 262145]
    ts = []
    for n in sizes:
        v = floats(n, n)
        ts.append(T("f16.%d" % n, "f16", (n,), struct.pack("<%de" % n, *v)))
        ts.append(T("bf16.%d" % n, "bf16", (n,), b"".join(
            struct.pack("<f", x)[2:] for x in v)))
        ts.append(T("f32.%d" % n, "f32", (n,), struct.pack("<%df" % n, *v)))
        if n < 5000:
            ts.append(T("f64.%d" % n, "f64", (n,), struct.pack("<%dd" % n, *v)))
            for d in "u8", "i8", "bool", "f8_e4m3":
                ts.append(T("%s.%d" % (d, n), d, (n,), c.filler((d, n), d, n)))
            ts.append(T("i16.%d" % n, "i16", (n,), c.noise(n, 2 * n)))
            ts.append(T("i32.%d" % n, "i32", (n,), c.noise(n, 4 * n)))
    ts += pair("one", 3, 16) + pair("two", 5, 4096, 0.3)
    ts.append(T("noughts", "f16", (4,), struct.pack("<4e", 0, -0.0, 0, -0.0)))
    ts.append(T("nothing", "f32", (3,), struct.pack(
        "<3f", math.nan, math.inf, -math.inf)))
    c.put("sizes.dat", c.dat_bytes(ts))
    c.put("list.json", json.dumps([(t.name, t.dtype) for t in ts]).encode())
    names = ["esc\x1b[31m", "tab\tx", "nl\nx", "back\\x", "bidi\u202ex", "c1\u0085",
             "del\x7f", "iso\u2066x", "層.größe"]
    c.put("names.dat", c.dat_bytes([T(n, "u8", (1,), b"x") for n in names]))
    c.put("names.safetensors", c.st_bytes([T(n, "u8", (1,), b"x") for n in names]))
    c.make_tiny_dat("tiny.dat", 1)
    c.make_tiny_ckpt("tiny.ckpt", 1)
    c.make_tiny_shards("shards", 1)
    c.make_tiny_dir("dir", 1)
    c.make_sidecar("side.dat", 1)
    for kind, div in ("modelopt", False), ("compressed", True):
        os.mkdir(kind)
        codes, scale = c.noise("m", 32), scale_bytes("m", 4)
        names = (("m.weight_packed", "m.weight_global_scale") if div else
                 ("m.weight", "m.weight_scale_2"))
        c.put(kind + "/model.safetensors", c.st_bytes([
            T(names[0], "u8", (2, 16), codes),
            T("m.weight_scale", "f8_e4m3", (2, 2), scale),
            T(names[1], "f32", (1,) if div else (),
              struct.pack("<f", 3.0 if div else 0.3)),
            T("n.weight", "bf16", (2,), b"\x80\x3f\0\x40")]))


if __name__ == "__main__":
    main(sys.argv[1])
PY
    python3 "$BATS_FILE_TMPDIR/make.py" "$IN"
}

setup() {
    cd "$IN" || return
}

T=$'\t'

# lists OPTION...: exit 0 and nothing on stderr; standard output in $output.
lists() {
    run -0 --separate-stderr datcat "$@"
    [ -z "$stderr" ] || { echo "$stderr" && false; }
}

refused() { refuse "$1" datcat "${@:2}"; }

# ---- listings ---------------------------------------------------------------

# cannot WHAT PATHPART WORDS PROG ARG...: an open of such a file fails with the errno WHAT:
# exit 2, one line with the words and what the system said.
cannot() {
    local what=$1 part=$2 words=$3
    shift 3
    run -2 --separate-stderr env LD_PRELOAD="$SHIM" FAILIO="open:*:$what:$part" \
        ASAN_OPTIONS="verify_asan_link_order=0:${ASAN_OPTIONS:-}" "$@"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ] || { printf '%s\n' "${stderr_lines[@]}" && false; }
    [[ $stderr == *"$words"* && $stderr == *": Too many open files" ]] || {
        echo "$stderr" && false
    }
}

# not_those FILE WORDS...: exit 1, a line on stderr with each of the WORDS; nothing else.
not_those() {
    local file=$1 w
    shift
    run -1 --separate-stderr datcat --verify "$file"
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq $# ] || { printf '%s\n' "${stderr_lines[@]}" && false; }
    for w; do
        [[ $stderr == *"$w"* ]] || { printf '%s\n' "${stderr_lines[@]}" && false; }
    done
    run -1 datcat -q --verify=quick "$file"
}

@test "a line a tensor, tab-separated, then the total" {
    lists small.dat
    [ "$output" = "a.weight${T}f16${T}[2,3]${T}12
b:2${T}i8${T}[3]${T}3
b${T}f32${T}[]${T}4
c.weight${T}nvfp4${T}[2,32]${T}40
total${T}1 f16, 1 f32, 1 i8, 1 nvfp4${T}4 tensors${T}59" ]
}

@test "aligned on a terminal" {
    NO_COLOR=1 run -0 script -qec 'datcat small.dat' /dev/null
    [ "${output//$'\r'/}" = "\
a.weight  f16                          [2,3]      12
b:2       i8                           [3]         3
b         f32                          []          4
c.weight  nvfp4                        [2,32]     40
total     1 f16, 1 f32, 1 i8, 1 nvfp4  4 tensors  59" ]
}

@test "colours on a terminal: quantized dtypes, and counts of NaN" {
    local e=$'\e'
    TERM=xterm NO_COLOR='' run -0 script -qec 'datcat small.dat' /dev/null
    [[ $output == *"c.weight  ${e}[32mnvfp4${e}[0m  "* ]]
    # Without the colours it is what it is without them; nothing else has one.
    NO_COLOR=1 script -qec 'datcat small.dat' /dev/null >plain
    printf '%s\n' "$output" | sed $'s/\e\\[[0-9;]*m//g' | cmp - plain
    [ "$(grep -c "$e" <<<"$output")" -eq 1 ]
    python3 -c '
import containers as c, struct
c.put("nan.dat", c.dat_bytes([c.Tensor("n", "f32", (3,), struct.pack("<3f", float("nan"), 1, 2)),
                              c.Tensor("e", "f32", (1,), struct.pack("<f", 1))]))'
    TERM=xterm NO_COLOR='' run -0 script -qec 'datcat --stats nan.dat' /dev/null
    [[ ${lines[1]} == *"${e}[1;31m1${e}[0m"* ]]
    [ "$(grep -c "$e" <<<"$output")" -eq 1 ]
    # What a name holds makes no colour, nor does a dumb terminal.
    python3 -c '
import containers as c
c.put("evil.dat", c.dat_bytes([c.Tensor("a\x1b[31mb", "u8", (1,), b"x")]))'
    TERM=xterm NO_COLOR='' run -0 script -qec 'datcat evil.dat' /dev/null
    [[ $output == *'a\x1b[31mb'* && $output != *"$e"* ]]
    TERM=dumb NO_COLOR='' run -0 script -qec 'datcat small.dat' /dev/null
    [[ $output == *nvfp4* && $output != *"$e"* ]]
}

@test "no colour and no progress where there is no terminal" {
    datcat --stats sizes.dat >"$BATS_TEST_TMPDIR/o" 2>"$BATS_TEST_TMPDIR/e"
    [ -s "$BATS_TEST_TMPDIR/o" ]
    run -1 grep -q $'\x1b' "$BATS_TEST_TMPDIR/o" "$BATS_TEST_TMPDIR/e"
    [ ! -s "$BATS_TEST_TMPDIR/e" ]
    NO_COLOR=1 run -0 script -qec 'datcat small.dat' /dev/null
    [[ $output == *a.weight* && $output != *$'\x1b'* ]]
}

@test "-l and --names: names only, in file order" {
    local o
    for o in -l --names; do
        lists $o small.dat
        [ "$output" = $'a.weight\nb:2\nb\nc.weight' ]
    done
    lists -l --raw-entries small.dat
    [ "$output" = $'a.weight\nb:2\nb\nc.weight.qdata\nc.weight.scale\nc.weight.scale2' ]
}

@test "safetensors and shards: in the order of the file, whatever that of the header" {
    mkdir "$BATS_TEST_TMPDIR/dir"
    python3 - "$BATS_TEST_TMPDIR" <<'PY'
import json, struct, sys
def st(name, records, data):
    h = "{%s}" % ",".join('%s:{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}' % (
        json.dumps(k), e - b, b, e) for k, b, e in records)
    with open(sys.argv[1] + "/" + name, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h.encode() + data)
# Empty ones stand before what begins where they do, in the order of the header.
st("o.safetensors", [("last", 6, 9), ("end", 9, 9), ("b2", 2, 2), ("mid\n", 2, 6),
                     ("b1", 2, 2), ("first", 0, 2)], bytes(range(9)))
st("dir/2.safetensors", [("d", 1, 2), ("c", 0, 1)], b"xy")
st("dir/1.safetensors", [("a", 0, 1), ("b", 1, 1)], b"z")
with open(sys.argv[1] + "/dir/model.safetensors.index.json", "w") as f:
    json.dump({"weight_map": {"d": "2.safetensors", "b": "1.safetensors",
                              "c": "2.safetensors", "a": "1.safetensors"}}, f)
PY
    cd "$BATS_TEST_TMPDIR"
    lists --names o.safetensors
    [ "$output" = $'first\nb2\nb1\nmid\\n\nlast\nend' ]
    [ "$(datcat --payload last o.safetensors | od -An -tu1)" = "   6   7   8" ]
    datcat --map o.safetensors >/dev/null
    lists --names dir
    [ "$output" = $'a\nb\nc\nd' ]
    [ "$(datcat --payload c dir)" = x ]
}

@test "--json: one valid document with its keys" {
    datcat --json small.dat | python3 -m json.tool >/dev/null
    lists --json small.dat
    python3 -c '
import json, os, sys
o = json.loads(sys.argv[1])
assert set(o) >= {"file", "container", "bytes", "tensors", "totals", "config", "meta"}, o
assert o["file"] == "small.dat" and o["container"] == "dat"
assert o["bytes"] == os.stat("small.dat").st_size and o["config"] is None
assert [t["name"] for t in o["tensors"]] == ["a.weight", "b:2", "b", "c.weight"]
q = o["tensors"][3]
assert (q["dtype"], q["shape"], q["nbytes"], q["levels"]) == ("nvfp4", [2, 32], 40, 2)
assert o["totals"]["tensors"] == 4 and o["totals"]["bytes"] == 59, o["totals"]
' "$output"
    for f in every.dat every.safetensors names.dat names.safetensors sizes.dat \
        tiny.ckpt shards dir side.dat modelopt; do
        datcat -q --json --stats $f | python3 -m json.tool >/dev/null
    done
}

@test "--json has no bare NaN" {
    datcat --json --stats sizes.dat |
        python3 -c 'import json, sys
def no(x): raise ValueError(x)
json.load(sys.stdin, parse_constant=no)'
}

@test "--ndjson: an object a tensor; offsets from the start of the file" {
    lists --ndjson small.dat
    python3 -c '
import json, sys
import containers as c
got = [json.loads(x) for x in sys.argv[1].splitlines()]
m, ts = c.read_dat("small.dat")
at = {t.name: t.offset for t in ts}
assert [list(g)[:5] for g in got] == [["name", "dtype", "shape", "offset", "nbytes"]] * 4
assert [g["offset"] for g in got] == [at["a.weight"], at["b:2"], at["b"], at["c.weight.qdata"]]
assert ["levels" in g for g in got] == [False, False, False, True]
assert not any("file" in g for g in got)
' "$output"
    lists --ndjson shards
    python3 -c '
import json, sys, os
import containers as c
got = [json.loads(x) for x in sys.argv[1].splitlines()]
want = c.read_dir("shards")
assert [(g["name"], g["offset"]) for g in got] == [(t.name, t.offset) for t in want]
for g in got:
    ts = c.read_safetensors(os.path.join("shards", g["file"]))[1]
    assert g["name"] in [t.name for t in ts], g
' "$output"
}

@test "--tsv: the same with a header row, no total" {
    lists --tsv small.dat
    [ "${#lines[@]}" -eq 5 ]
    [[ ${lines[0]} == "name${T}dtype${T}shape${T}offset${T}nbytes"* ]]
    [[ ${lines[2]} == "b:2${T}i8${T}[3]${T}"* ]]
    # Every row has as many fields as the header.
    [ "$(awk -F '\t' '{ print NF }' <<<"$output" | sort -u | wc -l)" -eq 1 ]
    # Of several files and with statistics, too; integers have counts only, NVFP4 has levels.
    make_sample pair "$BATS_TEST_TMPDIR/pair.dat"
    cp small.dat "$BATS_TEST_TMPDIR"
    cd "$BATS_TEST_TMPDIR"
    lists --tsv --stats small.dat pair.dat
    [ "$(awk -F '\t' '{ print NF }' <<<"$output" | sort -u)" = 15 ]
    [ "$(awk -F '\t' '$6 ~ /^[12]$/ && $7 == "pair.dat"' <<<"$output" | wc -l)" -gt 0 ]
}

@test "-s and -x: globs over the whole name" {
    lists -l -s 'model.*' tiny.dat
    [ "${#lines[@]}" -eq 24 ]
    lists -l -s '*q_proj*' -s 'lm_head.weight' tiny.dat
    [ "${#lines[@]}" -eq 3 ]
    lists -l --select='*q_proj*' --exclude '*.1.*' tiny.dat
    [ "$output" = model.layers.0.self_attn.q_proj.weight ]
    lists -l -x '*layers*' -x 'lm*' tiny.dat
    [ "$output" = $'model.embed_tokens.weight\nmodel.norm.weight' ]
    lists -l -s 'model.layers.[01].input_layernorm.weigh?' tiny.dat
    [ "${#lines[@]}" -eq 2 ]
    # -x wins; an empty answer is no error as long as -s matched.
    lists -l -s 'lm_head.weight' -x '*' tiny.dat
    [ -z "$output" ]
    refused 'nosuch' -s nosuch tiny.dat
    refused 'weigh' -s weigh tiny.dat
    refused 'nosuch' -s '*' -s nosuch tiny.dat
    lists -s 'lm*' tiny.dat
    [ "${lines[1]}" = "total${T}1 f16${T}1 tensors${T}3072" ]
}

@test "--group collapses layer numbers, and only them" {
    lists --group tiny.dat
    [ "${#lines[@]}" -eq 15 ]
    [ "${lines[1]}" = "model.layers.*.self_attn.q_proj.weight${T}f16${T}[64,32]${T}8192${T}x2" ]
    [[ ${lines[14]} == "total${T}25 f16${T}25 tensors${T}49600"* ]]
    # Names that are text stay readable.
    lists --group names.dat
    [[ $output == *$'\n層.größe\t'* ]]
}

# ---- numbers ----------------------------------------------------------------

@test "a file without tensors, the shortest that there is" {
    local f
    printf '\2\0\0\0\0\0\0\0{}' >e.safetensors
    printf '\0' >e.dat
    for f in e.*; do
        run -0 --separate-stderr datcat "$f"
        [ "$output" = $'total\t-\t0 tensors\t0' ]
        [ -z "$stderr" ]
        quiet datcat -q --verify "$f"
    done
    printf '\1\0\0\0\0\0\0\0{' >f.safetensors
    refused 'byte 9: the file ends inside its header' f.safetensors
}

@test "--stats: against an independent computation, odd sizes" {
    datcat -q --json --stats sizes.dat >"$BATS_TEST_TMPDIR/stats.json"
    python3 - "$BATS_TEST_TMPDIR/stats.json" <<'PY'
import json, math, sys
import containers as c, make
got = {t["name"]: t for t in json.load(open(sys.argv[1]))["tensors"]}
m, ts = c.read_dat("sizes.dat")
by = {t.name: m[t.offset:t.offset + t.nbytes(True)] for t in ts}
data = {}
for t in ts:
    if not t.name.endswith((".qdata", ".scale", ".scale2")):
        data[t.name] = make.values(t.dtype, by[t.name])
for x, s in ("one", 1.0), ("two", make.f32(0.3)):
    w = x + ".weight"
    data[w] = make.nvfp4(by[w + ".qdata"], by[w + ".scale"], s)
assert set(data) == set(got), set(data) ^ set(got)
for name, v in data.items():
    g = got[name]
    fin = [x for x in v if math.isfinite(x)]
    assert g["zeros"] == sum(x == 0 for x in v), (name, g)
    assert g["nan"] == sum(math.isnan(x) for x in v), (name, g)
    assert g["inf"] == sum(math.isinf(x) for x in v), (name, g)
    if not fin:
        assert g["min"] is None and g["std"] is None, (name, g)
        continue
    mean = math.fsum(fin) / len(fin)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in fin) / len(fin))
    top = max(map(abs, fin))
    assert g["min"] == min(fin) and g["max"] == max(fin), (name, g)
    assert g["absmax"] == top, (name, g)
    # Sums of n doubles: n*eps is far below 1e-12 of the largest value.
    assert abs(g["mean"] - mean) <= 1e-12 * top, (name, g["mean"], mean)
    assert abs(g["std"] - std) <= 1e-12 * top, (name, g["std"], std)
PY
    lists --stats -s noughts sizes.dat
    [[ ${lines[0]} == *"min${T}max${T}mean${T}std${T}absmax${T}zeros${T}nan${T}inf" ]]
    [[ ${lines[1]} == "noughts${T}f16${T}[4]${T}8${T}"*"${T}4${T}0${T}0" ]]
    # What has no finite value has its counts all the same.
    make_sample small-dat "$BATS_TEST_TMPDIR/none.dat"
    lists --stats -s none "$BATS_TEST_TMPDIR/none.dat"
    [ "${lines[1]}" = "none${T}u8${T}[0,9]${T}0${T}-${T}-${T}-${T}-${T}-${T}0${T}0${T}0" ]
}

@test "--stats and --hist: the same for any -j and NIBBLE_ISA" {
    local j isa
    cd "$BATS_TEST_TMPDIR"
    datcat --json --stats -j 1 "$IN/sizes.dat" >a
    datcat --hist=7 -j 1 "$IN/sizes.dat" >h
    for j in 2 3 16; do
        datcat --json --stats -j $j "$IN/sizes.dat" | cmp a -
        datcat --hist=7 -j $j "$IN/sizes.dat" | cmp h -
    done
    for isa in scalar avx2 avx512 amx; do
        if NIBBLE_ISA=$isa datcat --json --stats "$IN/sizes.dat" >b 2>e; then
            cmp a b
            NIBBLE_ISA=$isa datcat --hist=7 "$IN/sizes.dat" | cmp h -
        else
            [ "$isa" != scalar ]
            NIBBLE_ISA=$isa run -2 --separate-stderr datcat --stats "$IN/sizes.dat"
            [[ ${stderr_lines[0]} == *"NIBBLE_ISA=$isa"* ]]
        fi
    done
    NIBBLE_ISA=neon5 refused NIBBLE_ISA --stats "$IN/sizes.dat"
}

@test "--hist: the counts sum to the finite values, in the right bins" {
    datcat -q --hist sizes.dat >"$BATS_TEST_TMPDIR/h20"
    datcat -q --hist=3 sizes.dat >"$BATS_TEST_TMPDIR/h3"
    python3 - "$BATS_TEST_TMPDIR" <<'PY'
import math, sys
import containers as c, make
m, ts = c.read_dat("sizes.dat")
data = {t.name: make.values(t.dtype, m[t.offset:t.offset + t.nbytes(True)])
        for t in ts if not t.name.endswith((".qdata", ".scale", ".scale2"))}
for bins in 20, 3:
    rows = [x.rstrip("\n").split("\t") for x in open("%s/h%d" % (sys.argv[1], bins))]
    assert rows[0] == ["name", "from", "to", "count"], rows[0]
    got = {}
    for name, lo, hi, n in rows[1:]:
        got.setdefault(name, []).append((float(lo), float(hi), int(n)))
    for name, v in data.items():
        fin = [x for x in v if math.isfinite(x)]
        if not fin:
            assert name not in got, name
            continue
        assert len(got[name]) == bins, name
        assert sum(n for _, _, n in got[name]) == len(fin), name
        assert math.isclose(got[name][0][0], min(fin), rel_tol=1e-8), name
        assert math.isclose(got[name][-1][1], max(fin), rel_tol=1e-8), name
        lo, hi = min(fin), max(fin)
        want = [0] * bins
        for x in fin:
            k = int((x - lo) / (hi - lo) * bins) if hi > lo else 0
            want[min(k, bins - 1)] += 1
        # A value on an edge may fall to either side.
        near = sum(abs((x - lo) / (hi - lo) * bins -
                       round((x - lo) / (hi - lo) * bins)) < 1e-9
                   for x in fin) if hi > lo else 0
        moved = sum(abs(a - b) for a, (_, _, b) in zip(want, got[name]))
        assert moved <= 2 * near, (name, want, got[name])
PY
}

@test "--hist of numbers at the end of the range of doubles" {
    python3 -c '
import struct, containers as c
c.put("'"$BATS_TEST_TMPDIR"'/x.dat", c.dat_bytes([c.Tensor("f", "f64", (4,),
      struct.pack("<4d", -1.7e308, 1.7e308, 0, 1))]))'
    lists --hist=3 "$BATS_TEST_TMPDIR/x.dat"
    [[ $output != *nan* ]]
    [[ $output != *inf* ]]
    [ "$(cut -f 4 <<<"$output" | tail -n +2 | tr '\n' ' ')" = "1 2 1 " ]
}

@test "--values: every dtype that has values, exactly" {
    python3 - <<'PY'
import json, math, struct, subprocess
import containers as c, make
def run(*a):
    p = subprocess.run(["datcat", *a], stdout=subprocess.PIPE, check=True)
    return p.stdout.decode().split("\n")[:-1]
def same(g, w, dtype):
    if isinstance(w, float) and math.isnan(w):
        return g == "NaN"
    if isinstance(w, float) and math.isinf(w):
        return g == ("Infinity" if w > 0 else "-Infinity")
    x = int(g) if isinstance(w, int) else float(g)
    if dtype != "f64" and isinstance(w, float):
        x = make.f32(x)
    return x == w and math.copysign(1, x) == math.copysign(1, w)
for f in "every.dat", "every.safetensors":
    for t in c.read_any(f):
        d = t.dtype
        if d in ("c64", "c128") or d not in c.CKPT_DTYPES + ["f4_e2m1"]:
            continue
        if "." not in t.name or t.name[0] not in "zmak":
            continue
        want = make.values(d, t.file[t.offset:t.offset + t.nbytes(f[-3:] == "dat")])
        got = run("--values", t.name, f)
        assert len(got) == len(want), (t.name, len(got), len(want))
        for i, (g, w) in enumerate(zip(got, want)):
            assert same(g, w, d), (t.name, i, g, w)
m, ts = c.read_dat("sizes.dat")
by = {t.name: m[t.offset:t.offset + t.nbytes(True)] for t in ts}
for x, s in ("one", 1.0), ("two", make.f32(0.3)):
    w = x + ".weight"
    want = make.nvfp4(by[w + ".qdata"], by[w + ".scale"], s)
    got = run("--values", w, "sizes.dat")
    assert [make.f32(float(g)) for g in got] == want, w
for n in 262143, 262144, 262145:
    got = run("--values", "f32.%d" % n, "sizes.dat")
    assert len(got) == n
    assert all(same(g, w, "f32") for g, w in
               zip(got[-9:], make.values("f32", by["f32.%d" % n])[-9:]))
PY
}

@test "--values NAME:COUNT, and names with a colon" {
    lists --values a.weight:2 small.dat
    [ "$output" = $'1\n-2' ]
    lists --values=a.weight:99 small.dat
    [ "${#lines[@]}" -eq 6 ]
    [ "${lines[3]}" = -0 ]
    lists --values a.weight:0 small.dat
    [ -z "$output" ]
    # The name b:2 wins over two values of b.
    lists --values b:2 small.dat
    [ "$output" = $'1\n-1\n-128' ]
    lists --values b:2:1 small.dat
    [ "$output" = 1 ]
    lists --values b:7 small.dat
    [ "$output" = 0.100000001 ]
    # Counts that are no multiple of a block.
    lists --values c.weight:17 small.dat
    [ "${#lines[@]}" -eq 17 ]
    refused nosuch --values nosuch small.dat
    refused 'a.weight:1x' --values a.weight:1x small.dat
    refused 'a.weight:-1' --values a.weight:-1 small.dat
    refused '' --values c64 every.dat
    refused '' --values a.weight small.dat small.dat
}

@test "64-bit integers are shown as they are" {
    python3 -c '
import struct, containers as c
c.put("'"$BATS_TEST_TMPDIR"'/x.dat", c.dat_bytes([c.Tensor("i", "i64", (3,),
      struct.pack("<3q", -2**63, 2**63 - 1, 2**53 + 1))]))'
    lists --values i "$BATS_TEST_TMPDIR/x.dat"
    [ "$output" = $'-9223372036854775808\n9223372036854775807\n9007199254740993' ]
}

@test "--payload: an entry's bytes; not to a terminal" {
    datcat --payload c.weight.qdata small.dat >"$BATS_TEST_TMPDIR/p"
    python3 -c '
import sys, make
assert open(sys.argv[1], "rb").read() == make.c.noise(("c", "q"), 32)' "$BATS_TEST_TMPDIR/p"
    [ "$(datcat --payload b:2 small.dat | od -An -tx1 | tr -d ' ')" = 01ff80 ]
    refused c.weight --payload c.weight small.dat
    run -2 script -qec 'datcat --payload b:2 small.dat' /dev/null
    [[ $output == *terminal* ]]
    run -2 script -qec 'datpack -o - small.dat' /dev/null
    [[ $output == *terminal* ]]
}

# ---- hashes -----------------------------------------------------------------

@test "--hash: against sha256sum and xxh128sum, the last line the file's" {
    local f
    for f in small.dat every.safetensors tiny.ckpt; do
        datcat --hash=sha256 $f >"$BATS_TEST_TMPDIR/m"
        [ "$(tail -n 1 "$BATS_TEST_TMPDIR/m")" = "$(sha256sum <$f | cut -d ' ' -f 1)  *" ]
        datcat --hash $f | tail -n 1 >"$BATS_TEST_TMPDIR/x"
        if command -v xxh128sum >/dev/null; then
            [ "$(cat "$BATS_TEST_TMPDIR/x")" = "$(xxh128sum <$f | cut -d ' ' -f 1)  *" ]
        fi
    done
    [ "$(datcat --hash=sha256 small.dat | head -n 1)" = "$(datcat \
        --payload a.weight small.dat | sha256sum | cut -d ' ' -f 1)  a.weight" ]
    # Raw entries, whatever is selected, and then no line for the file.
    lists --hash=xxh3 -s 'c.*' small.dat
    [ "${#lines[@]}" -eq 3 ]
    [[ ${lines[2]} == *"  c.weight.scale2" ]]
    diff <(datcat --hash small.dat) <(datcat --hash=xxh3 -j 1 small.dat)
    refused md5 --hash=md5 small.dat
}

@test "--check: the same lines compared; 1 if they are not equal" {
    local m=$BATS_TEST_TMPDIR/m
    local kind
    for kind in xxh3 sha256; do
        datcat --hash=$kind small.dat >"$m"
        run -0 datcat --check "$m" small.dat
        lists -q --check "$m" small.dat
        [ -z "$output" ]
        sed '2s/^./g/' "$m" >"$m.bad"
        sed '2y/0123456789abcdef/123456789abcdef0/' "$m" >"$m.2"
        run -1 datcat -q --check "$m.2" small.dat
        [[ $output == *b:2* ]]
        run -1 datcat -q --check "$m" every.dat
        # A line too few, a line too many.
        sed 2d "$m" >"$m.less"
        run -1 datcat -q --check "$m.less" small.dat
        (cat "$m" && sed -n '1s/a.weight/zzz/p' "$m") >"$m.more"
        run -1 datcat -q --check "$m.more" small.dat
        run -2 --separate-stderr datcat --check "$m.bad" small.dat
    done
    run -0 datcat -q --check - small.dat < <(datcat --hash small.dat)
    refused '' --check /nonexistent/m small.dat
    : >"$m"
    run -2 datcat --check "$m" small.dat
    # Names that need escapes.
    datcat --hash names.dat >"$m"
    lists -q --check "$m" names.dat
}

# bats test_tags=nosan,native
@test "--check: a manifest that cannot be read, or has no end" {
    local m=$BATS_TEST_TMPDIR/m so=${NIBBLE_FAILIO:-$BUILD/failio.so}
    datcat --hash small.dat >"$m"
    refused "Is a directory" --check "$IN" small.dat
    [[ $stderr == *"line 1: read:"* ]]
    # The limit is of memory: no line of a manifest is as long as what there is.
    run -2 --separate-stderr bash -c 'ulimit -v 200000
        timeout 60 datcat --check /dev/zero small.dat'
    [[ $stderr == "datcat: /dev/zero: line 1: longer than 1048576 bytes"* ]]
    run -2 --separate-stderr bash -c 'ulimit -v 200000
        timeout 60 datcat --check - small.dat < <(yes)'
    [[ $stderr == "datcat: <stdin>: line 1: expected HEX  NAME"* ]]
    [ -e "$so" ] || skip "no failio.so"
    run -2 --separate-stderr env LD_PRELOAD="$so" FAILIO="read:2:EIO:/m" \
        datcat -q --check "$m" small.dat
    [[ $stderr == "datcat: $m: line "*": read: Input/output error" ]]
    [ -z "$output" ]
    run -3 --separate-stderr env LD_PRELOAD="$so" FAILIO="read:1:ENOMEM:/m" \
        datcat -q --check "$m" small.dat
    [[ $stderr == "datcat: $m: line 1: read: Cannot allocate memory" ]]
}

# ---- --diff -----------------------------------------------------------------

# put FILE TENSORS: a Python expression, a list of T(...), in a .dat or safetensors.
put() {
    python3 -c '
import struct, sys, math
from make import *
ts = eval(sys.argv[2])
c.put(sys.argv[1], c.dat_bytes(ts) if sys.argv[1].endswith(".dat") else c.st_bytes(ts))
' "$BATS_TEST_TMPDIR/$1" "$2"
}

@test "--diff: equal files are silent, whatever the order and container" {
    lists --diff small.dat small.dat
    [ -z "$output" ]
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("x", "u8", (2,), b"ab"), T("y", "u8", (1,), b"c")]'
    put b.safetensors '[T("y", "u8", (1,), b"c"), T("x", "u8", (2,), b"ab")]'
    lists --diff a.dat b.safetensors
    [ -z "$output" ]
    # And one that differs is not.
    put c.dat '[T("x", "u8", (2,), b"ax"), T("y", "u8", (1,), b"c")]'
    run -1 datcat --diff a.dat c.dat
    [[ $output == *x* ]]
}

@test "--diff: names, shapes, dtypes, values" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("n", "u8", (1,), b"a"), T("s", "u8", (2, 1), b"ab"),
        T("d", "f16", (1,), struct.pack("<e", 2)), T("v", "f32", (3,), struct.pack("<3f", 1, 2, 4))]'
    put b.dat '[T("m", "u8", (1,), b"a"), T("s", "u8", (1, 2), b"ab"),
        T("d", "f32", (1,), struct.pack("<f", 2)), T("v", "f32", (3,), struct.pack("<3f", 1, 2.5, 4))]'
    run -1 --separate-stderr datcat --diff a.dat b.dat
    [ "${#stderr_lines[@]}" -eq 0 ]
    [ "$(grep -c . <<<"$output")" -eq 6 ] # a header and five differences
    grep "^n$T" <<<"$output" | has first
    grep "^m$T" <<<"$output" | has second
    grep "^s$T" <<<"$output" | grep -F '[2,1]' | has -F '[1,2]'
    grep "^d$T" <<<"$output" | grep f16 | has f32
    # |2 - 2.5| and the same over |2.5|; a third of it; (1 + 5 + 16) / sqrt(21 * 23.25)
    [[ $(grep "^v$T" <<<"$output") == *"${T}0.5${T}0.2${T}0.166666667${T}0.9956"* ]]
    # What cannot be compared has as many columns.
    [ -z "$(awk -F "$T" 'NF != 8' <<<"$output")" ]
    [[ ${lines[0]} == "name${T}what${T}first${T}second${T}max_abs${T}max_rel${T}mean_abs${T}cosine" ]]
}

@test "--diff: what differs has a colour on a terminal, and nowhere else" {
    local e=$'\e'
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("n\x1b[31m", "u8", (1,), b"a"), T("s", "u8", (2, 1), b"ab"),
        T("d", "f16", (1,), struct.pack("<e", 2)), T("v", "f32", (3,), struct.pack("<3f", 1, 2, 4)),
        T("z", "f32", (1,), struct.pack("<f", 0.0))]'
    put b.dat '[T("s", "u8", (1, 2), b"ab"), T("d", "f32", (1,), struct.pack("<f", 2)),
        T("v", "f32", (3,), struct.pack("<3f", 1, 2.5, 4)), T("z", "f32", (1,), struct.pack("<f", -0.0))]'
    datcat --diff a.dat b.dat >plain || [ $? -eq 1 ]
    [ "$(wc -l <plain)" -eq 6 ]
    run -1 grep -q "$e" plain
    for how in '' '--sort name' '--sort diff --top 9'; do
        TERM=xterm NO_COLOR='' run -1 script -qec "datcat --diff $how a.dat b.dat" /dev/null
        printf '%s\n' "${output//$'\r'/}" >seen
        # The same words; an escape in a name is none.
        sed $'s/\e\\[[0-9;]*m//g' seen | sort | diff - <(sort plain)
        has -F "${T}${e}[1;31monly in the first${e}[0m$T" <seen
        has -F "s${T}${e}[1;31mshape${e}[0m$T" <seen
        has -F "d${T}${e}[1;33mdtype${e}[0m$T" <seen
        has -F "v${T}${e}[33mvalues${e}[0m$T" <seen
    done
    NO_COLOR=1 run -1 script -qec 'datcat --diff a.dat b.dat' /dev/null
    [[ $output == *only* && $output != *"$e"* ]]
    TERM=dumb NO_COLOR='' run -1 script -qec 'datcat --diff a.dat b.dat' /dev/null
    [[ $output == *only* && $output != *"$e"* ]]
}

@test "--diff --atol --rtol: |a-b| <= atol + rtol*|b|, whatever the dtypes" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("v", "f32", (2,), struct.pack("<2f", 1, 10))]'
    put b.dat '[T("v", "f64", (2,), struct.pack("<2d", 1.5, 8))]'
    run -1 datcat --diff a.dat b.dat
    run -0 datcat --diff --rtol 0.3334 a.dat b.dat # .5/1.5 and 2/8
    [ -z "$output" ]
    run -1 datcat --diff --rtol 0.3332 a.dat b.dat
    # It is not symmetric: .5/1 of b.
    run -1 datcat --diff --rtol 0.3334 b.dat a.dat
    run -0 datcat --diff --rtol 0.5 b.dat a.dat
    run -0 datcat --diff --atol 2 a.dat b.dat
    run -1 datcat --diff --atol 1.9999 a.dat b.dat
    run -0 datcat --diff --atol 0.5 --rtol 0.1876 a.dat b.dat # 2 <= .5 + 8*.1875
    run -1 datcat --diff --atol 0.5 --rtol 0.1874 a.dat b.dat
    # Exactly on the edge is within.
    run -0 datcat --diff --atol 0 --rtol 0.5 b.dat a.dat
    local bad
    for bad in 1x '' nan inf -1 1e999 0x1; do
        run -2 --separate-stderr datcat --diff --atol "$bad" a.dat b.dat
        run -2 --separate-stderr datcat --diff --rtol "$bad" a.dat b.dat
    done
}

@test "--diff: mean_abs and cosine, against an independent computation" {
    cd "$BATS_TEST_TMPDIR"
    cat >make2.py <<'PY'
import math, random, struct
import containers as c
from make import T, nvfp4, pair
r = random.Random(3)
n = 200003
a = [r.gauss(0, 1) for _ in range(n)]
b = [x + r.gauss(0, .1) for x in a]
f = lambda v: struct.pack("<%df" % len(v), *v)
odd_a, odd_b = [math.nan, math.inf, 1, 2, math.nan], [math.nan, math.inf, 3, 2, math.nan]
pa = [T("q" + t.name[1:], t.dtype, t.shape, t.data) for t in pair("x", 6, 4096, .25)]
pb = [T("q" + t.name[1:], t.dtype, t.shape, t.data) for t in pair("y", 6, 4096, .5)]
c.put("a.dat", c.dat_bytes([T("v", "f32", (n,), f(a)), T("odd", "f32", (5,), f(odd_a)),
                            T("zero", "f32", (3,), f([0, 0, 0])), T("gap", "f32", (2,), f([1, math.inf]))] + pa))
c.put("b.dat", c.dat_bytes([T("v", "f32", (n,), f(b)), T("odd", "f32", (5,), f(odd_b)),
                            T("zero", "f32", (3,), f([1, 0, 0])), T("gap", "f32", (2,), f([1, 1]))] + pb))
def row(name, x, y):
    gap = [0 if p == q or (math.isnan(p) and math.isnan(q)) else abs(p - q) for p, q in zip(x, y)]
    both = [(p, q) for p, q in zip(x, y) if math.isfinite(p) and math.isfinite(q)]
    norm = math.sqrt(math.fsum(p * p for p, _ in both)) * math.sqrt(math.fsum(q * q for _, q in both))
    mean = math.inf if math.inf in gap else math.fsum(gap) / len(gap)
    print(name, mean, math.fsum(p * q for p, q in both) / norm if norm else "-")
un = lambda d: struct.unpack("<%df" % (len(d) // 4), d)
row("v", un(f(a)), un(f(b)))
row("odd", odd_a, odd_b)
row("zero", [0, 0, 0], [1, 0, 0])
row("gap", [1, math.inf], [1, 1])
row("q.weight", nvfp4(pa[0].data, pa[1].data, .25), nvfp4(pb[0].data, pb[1].data, .5))
PY
    python3 make2.py >want
    run -1 datcat --diff -j 3 a.dat b.dat
    printf '%s\n' "$output" >got
    run -1 datcat --diff -j 1 a.dat b.dat
    [ "$output" = "$(cat got)" ]
    python3 - <<'PY'
want = dict((w[0], w[1:]) for w in (line.split() for line in open("want")))
got = dict((w[0], w[6:]) for w in (line.rstrip("\n").split("\t") for line in open("got")))
assert set(want) == set(got) - {"name"} and len(want) == 5, (want, got)
for name, (mean, cosine) in want.items():
    m, c = got[name]
    assert float(m) == float(mean) or abs(float(m) - float(mean)) < 1e-8 * float(mean), (name, m, mean)
    assert (c or "-") == cosine or abs(float(c) - float(cosine)) < 2e-9, (name, c, cosine)
PY
}

@test "--sort and --top: listings" {
    local k
    cd "$BATS_TEST_TMPDIR"
    cp "$IN/sizes.dat" "$IN/small.dat" .
    datcat --tsv --stats sizes.dat | tail -n +2 >rows
    sorted() { python3 - "$1" "$2" <<'PY'
import sys
rows = [line.rstrip("\n").split("\t") for line in open("rows")]
number = {"bytes": lambda r: -int(r[4]), "absmax": lambda r: -float(r[10]) if r[10] else 1,
          "name": lambda r: r[0].encode()}
for r in sorted(rows, key=number[sys.argv[1]])[:int(sys.argv[2])]:
    print("\t".join(r))
PY
    }
    for k in bytes absmax name; do
        sorted $k 999 >want
        [ "$(wc -l <want)" -gt 60 ]
        datcat --tsv --stats --sort $k sizes.dat | tail -n +2 | cmp - want
        datcat --tsv --stats --sort $k --top 5 sizes.dat | tail -n +2 | cmp - <(head -n 5 want)
        datcat --stats --sort $k --top 5 sizes.dat | sed 1d | cut -f 1-3 | head -n 5 | cmp - <(head -n 5 want | cut -f 1-3)
        datcat --json --stats --sort $k --top 7 sizes.dat | json "'\n'.join(t['name'] for t in d['tensors'])" | cmp - <(head -n 7 want | cut -f 1)
    done
    sorted bytes 9 | cut -f 1 >want
    datcat -l --sort bytes --top 9 sizes.dat | cmp - want
    datcat --ndjson --sort bytes --top 9 sizes.dat | python3 -c 'import json, sys; [print(json.loads(x)["name"]) for x in sys.stdin]' | cmp - want
    # The total is that of all tensors.
    [ "$(datcat --top 2 sizes.dat | tail -n 1)" = "$(datcat sizes.dat | tail -n 1)" ]
    [ "$(datcat --top 2 sizes.dat | wc -l)" -eq 3 ]
    [ "$(datcat --json --top 1 sizes.dat | json "d['totals']")" = "$(datcat --json sizes.dat | json "d['totals']")" ]
    # Without --sort in the order of the file; more than there are is all.
    datcat -l sizes.dat | head -n 4 | cmp - <(datcat -l --top 4 sizes.dat)
    datcat sizes.dat | cmp - <(datcat --top 9999 sizes.dat)
    refused '--sort: size: want one of bytes, absmax, diff, name' --sort size small.dat
    refused '--top: 0: is too small: want 1..' --top 0 small.dat
    refused '--sort absmax: needs --stats' --sort absmax small.dat
    refused '--sort diff: goes with --diff' --sort diff small.dat
    refused '--sort and --top: go with' --sort name --group small.dat
    refused '--sort and --top: go with' --top 3 --hash small.dat
}

@test "--sort and --top: --diff" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T(n, "f32", (k,), struct.pack("<%df" % k, *[0] * k)) for n, k in (("d", 2), ("a", 9), ("c", 4), ("b", 1), ("e", 5), ("only", 1))]'
    put b.dat '[T(n, "f32", (k,), struct.pack("<%df" % k, *[x] * k)) for n, k, x in (("d", 2, 3), ("a", 9, 2), ("c", 5, 1), ("b", 1, 7), ("e", 5, 0))]'
    names() {
        run -1 --separate-stderr datcat --diff "$@" a.dat b.dat
        [ -z "$stderr" ]
        printf '%s\n' "${lines[@]}" | tail -n +2 | cut -f 1 | paste -s -d ' '
    }
    [ "$(names)" = 'd a c b only' ]
    [ "$(names --sort diff)" = 'c only b d a' ] # those without numbers first
    [ "$(names --sort diff --top 3)" = 'c only b' ]
    [ "$(names --sort bytes)" = 'a c d b only' ]
    [ "$(names --sort name --top 2)" = 'a b' ]
    [ "$(names --top 2)" = 'd a' ]
    # The lines are those of the whole, the answer is about all.
    datcat --diff a.dat b.dat >all || [ $? -eq 1 ]
    datcat --diff --sort name a.dat b.dat >sorted || [ $? -eq 1 ]
    cmp <(sort all) <(sort sorted)
    run -0 datcat --diff --sort diff --top 1 a.dat a.dat
    [ -z "$output" ]
    refused '--sort absmax: needs --stats' --diff --sort absmax a.dat b.dat
}

@test "--stats of a checkpoint: the weights; --all and -s: other arrays, too" {
    local weights
    cd "$BATS_TEST_TMPDIR"
    cp "$IN/tiny.ckpt" .
    datcat -l tiny.ckpt >all
    weights=$(python3 -c 'import containers as c; print(len(c.tiny_model("bf16", 1)))')
    [ "$(wc -l <all)" -gt "$weights" ]
    datcat --tsv --stats tiny.ckpt | sed 1d | cut -f 1 >names
    [ "$(wc -l <names)" -eq "$weights" ]
    python3 -c 'import containers as c; print(*sorted(t.name for t in c.tiny_model("bf16", 1)), sep="\n")' | cmp - <(sort names)
    datcat --tsv --stats --all tiny.ckpt | sed 1d | cut -f 1 | cmp - all
    grep -m 1 -vxFf names all >state
    datcat --tsv --stats -s "$(cat state)" tiny.ckpt | sed 1d | cut -f 1 | cmp - state
    # A listing without statistics is of all, as ever.
    datcat tiny.ckpt | sed '$d' | cut -f 1 | cmp - all
    refused '--all: goes with --stats' --all tiny.ckpt
}

@test "--npy: a decoded tensor as NumPy reads it" {
    cat >"$BATS_TEST_TMPDIR/check.py" <<'PY'
import ast, math, struct, sys
import containers as c
from make import T, nvfp4, pair, values
name, dtype, shape, want_dtype = sys.argv[2], sys.argv[3], tuple(ast.literal_eval(sys.argv[4])), sys.argv[5]
d = open(sys.argv[1], "rb").read()
assert d[:8] == b"\x93NUMPY\1\0", d[:8]
n = struct.unpack("<H", d[8:10])[0]
assert (10 + n) % 64 == 0 and d[9 + n:10 + n] == b"\n"
head = ast.literal_eval(d[10:10 + n].decode())
assert head == {"descr": want_dtype, "fortran_order": False, "shape": shape}, head
payload = open(sys.argv[6], "rb").read()
if want_dtype == "<f4" and dtype != "f32":
    got = struct.unpack("<%df" % ((len(d) - 10 - n) // 4), d[10 + n:])
    if dtype == "nvfp4":
        scale, scale2 = open(sys.argv[7], "rb").read(), struct.unpack("<f", open(sys.argv[8], "rb").read())[0]
        want = nvfp4(payload, scale, scale2)
    elif dtype == "f8_e8m0":
        want = [math.nan if b == 255 else 2.0 ** (b - 127) for b in payload]
    else:
        want = values(dtype, payload)
    assert len(got) == len(want) == math.prod(shape)
    assert all(g == w or (math.isnan(g) and math.isnan(w)) for g, w in zip(got, want))
    assert all(math.copysign(1, g) == math.copysign(1, w) for g, w in zip(got, want) if w == 0)
else:
    assert d[10 + n:] == payload and len(payload)
PY
    local name dtype shape of n=0 t=$BATS_TEST_TMPDIR
    declare -A want=([f16]='<f2' [bf16]='<f4' [f32]='<f4' [f64]='<f8' [u8]='|u1' [i8]='|i1' [i16]='<i2' [i32]='<i4'
        [i64]='<i8' [u16]='<u2' [u32]='<u4' [u64]='<u8' [bool]='|b1' [c64]='<c8' [c128]='<c16' [f8_e4m3]='<f4' [f8_e5m2]='<f4' [f8_e8m0]='<f4' [f4_e2m1]='<f4')
    for of in every.dat every.safetensors; do
        while IFS=$T read -r name dtype shape _; do
            printf -v name %b "$name"
            if [ -z "${want[$dtype]:-}" ]; then # listed, not decoded
                refused "NumPy has no type for $dtype" --npy "$name" $of
                continue
            fi
            datcat --npy "$name" $of >"$t/x.npy"
            datcat --payload "$name" $of >"$t/payload"
            [ -s "$t/payload" ] || continue
            python3 "$t/check.py" "$t/x.npy" "$name" "$dtype" "$shape" "${want[$dtype]}" "$t/payload"
            n=$((n + 1))
        done < <(datcat --tsv --raw-entries $of | sed 1d)
    done
    [ "$n" -gt 15 ]
    datcat --npy two.weight sizes.dat >"$t/x.npy"
    for of in qdata scale scale2; do
        datcat --payload two.weight.$of sizes.dat >"$t/$of"
    done
    python3 "$t/check.py" "$t/x.npy" two.weight nvfp4 '(5, 4096)' '<f4' "$t/qdata" "$t/scale" "$t/scale2"
    # More than one piece; no dimension, and none at all.
    datcat --npy bf16.262145 sizes.dat >"$t/x.npy"
    datcat --payload bf16.262145 sizes.dat >"$t/payload"
    python3 "$t/check.py" "$t/x.npy" x bf16 '(262145,)' '<f4' "$t/payload"
    datcat --npy b small.dat | head -c 128 | tail -c +11 | head -n 1 | has -F "'shape': (), }"
    [ "$(datcat --npy f32.0 sizes.dat | wc -c)" -eq 128 ]
    refused 'no tensor "none"' --npy none small.dat
    refused 'want one FILE' --npy b small.dat tiny.dat
    refused 'cannot be combined' --npy b --json small.dat
    run -2 script -qec "datcat --npy b '$IN/small.dat'" /dev/null
    [[ $output == *terminal* ]]
    run -2 --separate-stderr bash -c 'datcat --npy bf16.262145 sizes.dat >/dev/full'
    [[ $stderr == *'No space'* ]]
}

@test "--diff: integers of 64 bits are compared exactly" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("v", "i64", (2,), struct.pack("<2q", 2**53, 2**53 + 1))]'
    put b.dat '[T("v", "i64", (2,), struct.pack("<2q", 2**53, 2**53))]'
    run -1 datcat --diff --atol 0 a.dat b.dat
    [ "$(cut -f 2,5 <<<"${lines[1]}")" = $'values\t1' ]
    run -0 datcat --diff --atol 1 a.dat b.dat
    run -1 datcat --diff a.dat b.dat
    [ "$(cut -f 2,5 <<<"${lines[1]}")" = $'values\t1' ]
    # At both ends, where the nearest double is no integer of the type.
    put c.dat '[T("v", "i64", (3,), struct.pack("<3q", 2**63 - 1, -2**63, -2**63 + 1))]'
    put d.dat '[T("v", "i64", (3,), struct.pack("<3q", 2**63 - 2, -2**63, -2**63 + 1))]'
    put u.safetensors '[T("v", "u64", (1,), struct.pack("<Q", 2**64 - 1))]'
    put w.safetensors '[T("v", "u64", (1,), struct.pack("<Q", 2**64 - 2))]'
    run -1 datcat --diff --atol 0.5 c.dat d.dat
    run -1 datcat --diff --atol 0.5 u.safetensors w.safetensors
    # Of two types, and beside a float.
    put e.safetensors '[T("v", "u64", (2,), struct.pack("<2Q", 2**63 - 1, 5))]'
    put f.dat '[T("v", "i64", (2,), struct.pack("<2q", 2**63 - 1, 5))]'
    put g.dat '[T("v", "i64", (2,), struct.pack("<2q", 2**63 - 2, 5))]'
    put h.dat '[T("v", "f64", (2,), struct.pack("<2d", 2**53, 2**53))]'
    run -0 datcat --diff --atol 0 e.safetensors f.dat
    run -1 datcat --diff --atol 0 e.safetensors g.dat
    run -0 datcat --diff --atol 0 h.dat b.dat
    run -1 datcat --diff --atol 0 h.dat a.dat
}

@test "--diff: NaN is equal to NaN, an infinity to itself only" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("v", "f32", (3,), struct.pack("<3f", math.nan, math.inf, 1))]'
    put b.dat '[T("v", "f16", (3,), struct.pack("<3e", math.nan, math.inf, 1))]'
    put c.dat '[T("v", "f32", (3,), struct.pack("<3f", math.nan, 5, 1))]'
    put d.dat '[T("v", "f32", (3,), struct.pack("<3f", 7, math.inf, 1))]'
    put e.dat '[T("v", "f32", (3,), struct.pack("<3f", math.nan, -math.inf, 1))]'
    run -0 datcat --diff --atol 0 a.dat b.dat
    local x
    for x in c d e; do
        run -1 datcat --diff --atol 1e30 --rtol 1e30 a.dat $x.dat
        run -1 datcat --diff --atol 1e30 --rtol 1e30 $x.dat a.dat
    done
    # Bytes without a tolerance: another NaN, or -0, is a difference.
    put n.dat '[T("v", "f32", (2,), bytes([1, 0, 0xc0, 0x7f]) + struct.pack("<f", 0))]'
    put m.dat '[T("v", "f32", (2,), bytes([2, 0, 0xc0, 0x7f]) + struct.pack("<f", -0.0))]'
    run -1 datcat --diff n.dat m.dat
    run -0 datcat --diff --atol 0 n.dat m.dat
}

@test "--diff: a head that copies the embedding, on one side only" {
    cd "$BATS_TEST_TMPDIR"
    put with.dat 'c.tiny_model("f16", 1, True)'
    put without.dat 'c.tiny_model("f16", 1)'
    put other.dat 'c.tiny_model("f16", 1) + [T("lm_head.weight", "f16", (48, 32), bytes(3072))]'
    run -0 datcat --diff with.dat without.dat
    [ -z "$output" ]
    run -0 datcat --diff without.dat with.dat
    [ -z "$output" ]
    run -1 datcat --diff without.dat other.dat
    [[ $output == *lm_head.weight* ]]
    run -1 datcat --diff other.dat without.dat
    run -1 datcat --diff other.dat with.dat
}

@test "--diff: a checkpoint is compared by its weights" {
    cd "$BATS_TEST_TMPDIR"
    put w.safetensors 'c.tiny_model("bf16", 1)'
    put h.dat 'c.tiny_model("f16", 1, True)'
    run -0 datcat --diff "$IN/tiny.ckpt" w.safetensors
    [ -z "$output" ]
    run -0 datcat --diff w.safetensors "$IN/tiny.ckpt"
    run -1 datcat --diff "$IN/tiny.ckpt" h.dat
    run -0 datcat --diff --atol 0 "$IN/tiny.ckpt" h.dat
    [ -z "$output" ]
    run -0 datcat --diff --atol 0 h.dat "$IN/tiny.ckpt"
}

@test "--diff: -s and -x choose what is compared" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat '[T("x", "u8", (1,), b"a"), T("y", "u8", (1,), b"a")]'
    put b.dat '[T("x", "u8", (1,), b"a"), T("y", "u8", (1,), b"b")]'
    run -0 datcat --diff -s x a.dat b.dat
    run -0 datcat --diff -x y a.dat b.dat
    run -1 datcat --diff -s y a.dat b.dat
    run -2 --separate-stderr datcat --diff -s z a.dat b.dat
    # A tensor that only one side has was matched, whichever side it is.
    put c.dat '[T("x", "u8", (1,), b"a")]'
    run -1 datcat --diff -s y a.dat c.dat
    run -1 datcat --diff -s y c.dat a.dat
}

@test "--diff: values of NVFP4 tensors, one level against two" {
    cd "$BATS_TEST_TMPDIR"
    put one.dat 'pair("x", 2, 32)'
    put two.dat 'pair("x", 2, 32, 1.0)'
    put half.dat 'pair("x", 2, 32, 0.5)'
    put plain.dat '[T("x.weight", "f32", (2, 32), struct.pack("<64f", *nvfp4(
        c.noise(("x", "q"), 32), scale_bytes(("x", "s"), 4))))]'
    run -0 datcat --diff --atol 0 one.dat two.dat
    run -0 datcat --diff --atol 0 one.dat plain.dat
    run -1 datcat --diff one.dat plain.dat
    run -1 datcat --diff --rtol 0.4 half.dat one.dat
    run -0 datcat --diff --rtol 0.5 half.dat one.dat
}

@test "--diff: equal values in other bytes are said to be that" {
    cd "$BATS_TEST_TMPDIR"
    # Blocks: zeros, zeros, [1 1 ...] of scale 2, [2 2 ...] of scale 1, all the same.
    put a.dat '[T("a.weight.qdata", "u8", (1, 40), bytes(16) + b"\x22" * 8 + b"\x33" * 16),
        T("a.weight.scale", "f8_e4m3", (1, 5), b"\x00\x08\x40\x38\x38"),
        T("z", "f32", (2,), struct.pack("<2f", 0, 1))]'
    put b.dat '[T("a.weight.qdata", "u8", (1, 40), bytes(16) + b"\x22" * 8 + b"\x33" * 16),
        T("a.weight.scale", "f8_e4m3", (1, 5), b"\x20\x38\x40\x38\x38"),
        T("z", "f32", (2,), struct.pack("<2f", -0.0, 1))]'
    run -1 --separate-stderr datcat --diff a.dat b.dat
    [ "${#lines[@]}" -eq 3 ]
    [[ ${lines[1]} == "a.weight${T}bytes differ, values equal (2 zero blocks with other scales)$T$T${T}0${T}0${T}0${T}1" ]]
    [[ ${lines[2]} == "z${T}bytes differ, values equal ("*sign*")$T$T${T}0${T}0${T}0${T}1" ]]
    lists --diff --atol 0 a.dat b.dat
    [ -z "$output" ]
    # Signs of zero codes, and codes and scales of the same products.
    put c.dat '[T("a.weight.qdata", "u8", (1, 40), b"\x80" + bytes(15) + b"\x44" * 8 + b"\x33" * 16),
        T("a.weight.scale", "f8_e4m3", (1, 5), b"\x00\x08\x38\x38\x38"),
        T("z", "f32", (2,), struct.pack("<2f", 0, 1))]'
    run -1 --separate-stderr datcat --diff a.dat c.dat
    [[ ${lines[1]} == *"(1 block with zeros of another sign, 1 block with other codes and scales)"* ]]
    # Values that differ are values.
    put d.dat '[T("a.weight.qdata", "u8", (1, 40), bytes(16) + b"\x22" * 8 + b"\x33" * 16),
        T("a.weight.scale", "f8_e4m3", (1, 5), b"\x20\x38\x48\x38\x38"),
        T("z", "f32", (2,), struct.pack("<2f", 0, 1))]'
    run -1 --separate-stderr datcat --diff a.dat d.dat
    [[ ${lines[1]} == "a.weight${T}values${T}${T}${T}2${T}0.5${T}0.4${T}0.946"* ]]
}

@test "--diff wants two files that can be read" {
    refused two --diff small.dat
    refused two --diff small.dat small.dat small.dat
    refused nosuch --diff small.dat nosuch
    refused nosuch --diff nosuch small.dat
    refused '--diff' --atol 1 small.dat
}

# ---- --verify ---------------------------------------------------------------

@test "--verify: says what it looked at; silent with -q" {
    run -0 datcat --verify=quick tiny.ckpt
    [[ $output == *"not read"* ]]
    run -0 datcat --verify tiny.ckpt
    [[ $output != *"not read"* ]]
    run -0 datcat --verify=full small.dat
    [[ $output == *"no checksum"* ]]
    run -0 datcat --verify=quick small.dat
    run -0 datcat --verify side.dat
    [[ $output != *"no checksum"* ]]
    lists -q --verify small.dat tiny.ckpt shards side.dat every.safetensors
    [ -z "$output" ]
    refused medium --verify=medium small.dat
}

@test "--verify: damage is 1, what cannot be read is 2" {
    cd "$BATS_TEST_TMPDIR"
    cp "$IN/tiny.ckpt" bad.ckpt
    local at
    at=$(datcat --ndjson "$IN/tiny.ckpt" | sed -n 1p | grep -o '"offset":[0-9]*' | cut -d: -f2)
    printf '\x55' | dd of=bad.ckpt bs=1 seek=$((at + 7)) conv=notrunc status=none
    run -0 datcat --verify=quick bad.ckpt
    run -1 --separate-stderr datcat --verify bad.ckpt
    [ -z "$output" ]
    [ "${#stderr_lines[@]}" -eq 1 ]
    head -c 100 "$IN/small.dat" >cut.dat
    run -1 --separate-stderr datcat --verify=quick cut.dat
    : >empty.dat
    run -1 datcat --verify empty.dat
    run -2 datcat --verify nosuch.dat
    cp "$IN/side.dat" side.dat
    cp "$IN/side.dat.json" side.dat.json
    run -0 datcat -q --verify side.dat
    # The last byte of the last payload: the index still fits.
    printf '\x3c' | dd of=side.dat bs=1 seek=$(($(stat -c %s side.dat) - 1)) conv=notrunc status=none
    run -0 datcat --verify=quick side.dat
    run -1 datcat --verify side.dat
    # The worst of several files counts, and all are looked at.
    run -1 datcat --verify "$IN/small.dat" bad.ckpt "$IN/side.dat"
    [[ $output == *small.dat* ]]
    [[ $output == *side.dat* ]]
    # A scale byte with a sign or NaN is damage.
    put nan.dat '[T("x.weight.qdata", "u8", (1, 8), bytes(8)),
        T("x.weight.scale", "f8_e4m3", (1, 1), b"\x7f")]'
    run -1 --separate-stderr datcat --verify nan.dat
    [[ ${stderr_lines[0]} == *"row 0"*"column 0"* ]]
}

# ---- --map, --meta ----------------------------------------------------------

@test "--map accounts for every byte of every container" {
    local f
    for f in small.dat every.dat every.safetensors tiny.ckpt shards dir tiny.dat names.dat; do
        datcat -q --map $f >"$BATS_TEST_TMPDIR/map"
        python3 - "$BATS_TEST_TMPDIR/map" $f <<'PY'
import os, sys
rows = [x.rstrip("\n").split("\t") for x in open(sys.argv[1])]
assert rows[0][:4] == ["offset", "bytes", "what", "name"], rows[0]
d, at = sys.argv[2], {}
for r in rows[1:]:
    assert len(r) == len(rows[0]), r
    f = os.path.join(d, r[4]) if os.path.isdir(d) else d
    assert int(r[0]) == at.get(f, 0), r
    at[f] = int(r[0]) + int(r[1])
for f, n in at.items():
    assert n == os.stat(f).st_size, (f, n)
if os.path.isdir(d):
    assert len(at) == sum(x.endswith(".safetensors") for x in os.listdir(d))
PY
    done
}

@test "--meta: configuration, state and provenance as JSON" {
    lists --meta tiny.ckpt
    python3 -c '
import json, sys
o = json.loads(sys.argv[1])
assert o["config"]["model_type"] == "qwen3", o
m = o["meta"]
assert m["state"]["step"] == 0 and m["master"] == "bf16" and m["quant"]["name"] == "none"
assert m["provenance"]["tool"] == "containers.py"' "$output"
    lists --meta small.dat
    python3 -c '
import json, sys
o = json.loads(sys.argv[1])
assert o["config"] is None and o["meta"]["provenance"] is None, o' "$output"
    lists --meta shards
    python3 -c '
import json, sys
assert json.loads(sys.argv[1])["config"]["hidden_size"] == 32' "$output"
}

# ---- NVFP4 ------------------------------------------------------------------

@test "an NVFP4 pair is one tensor, as entries with --raw-entries" {
    cd "$BATS_TEST_TMPDIR"
    put p.dat 'pair("x", 2, 32) + pair("y", 1, 16, 0.5)'
    lists p.dat
    [ "${lines[0]}" = "x.weight${T}nvfp4${T}[2,32]${T}36" ]
    [ "${lines[1]}" = "y.weight${T}nvfp4${T}[1,16]${T}13" ]
    lists --raw-entries p.dat
    [ "${lines[0]}" = "x.weight.qdata${T}u8${T}[2,16]${T}32" ]
    [ "${lines[4]}" = "y.weight.scale2${T}f32${T}[1]${T}4" ]
    run -0 grep -o '"levels":[12]' <(datcat --ndjson p.dat)
    [ "$output" = $'"levels":1\n"levels":2' ]
}

@test "the old spelling X.qdata is read; both for one prefix are refused" {
    cd "$BATS_TEST_TMPDIR"
    put old.dat 'pair("x", 2, 32, None, "%s")'
    lists old.dat
    [ "${lines[0]}" = "x.weight${T}nvfp4${T}[2,32]${T}36" ]
    put mixed.dat 'pair("x", 2, 32) + pair("x", 2, 32, None, "%s")'
    refused x mixed.dat
    put half.dat '[pair("x", 2, 32)[0], pair("x", 2, 32, None, "%s")[1]]'
    refused x half.dat
    # As entries they are plain data.
    lists -l --raw-entries mixed.dat
    [ "${#lines[@]}" -eq 4 ]
}

@test "codes of dtype 100 and scales of dtype 0 are read as well" {
    cd "$BATS_TEST_TMPDIR"
    put a.dat 'pair("x", 2, 32)'
    put b.dat '[T("x.weight.qdata", "f4_e2m1", (2, 16), pair("x", 2, 32)[0].data),
        T("x.weight.scale", "u8", (2, 2), pair("x", 2, 32)[1].data)]'
    lists b.dat
    [ "${lines[0]}" = "x.weight${T}nvfp4${T}[2,32]${T}36" ]
    diff <(datcat --values x.weight a.dat) <(datcat --values x.weight b.dat)
}

@test "ModelOpt multiplies, compressed-tensors divides" {
    python3 - <<'PY'
import struct, subprocess
from make import *
codes, scales = c.noise("m", 32), scale_bytes("m", 4)
def got(d):
    out = subprocess.run(["datcat", "-q", "--values", "m.weight", d], check=True,
                         stdout=subprocess.PIPE).stdout.decode().split()
    return [float(x) for x in out]
for d, s in ("modelopt", f32(0.3)), ("compressed", 1 / 3.0):
    want = [e2m1(v) * e4m3(scales[i // 16]) * s
            for i, v in enumerate(nibbles(codes))]
    for g, w in zip(got(d), want):
        assert abs(g - w) <= abs(w) * 2 ** -22, (d, g, w)   # formats, X3
PY
    local d
    for d in modelopt compressed; do
        lists $d
        [ "${lines[0]}" = "m.weight${T}nvfp4${T}[2,32]${T}40" ]
        [ "${lines[1]}" = "n.weight${T}bf16${T}[2]${T}4" ]
        [ "${#lines[@]}" -eq 3 ]
    done
}

@test "an incomplete or misshapen pair is said to be one, --strict refuses it" {
    cd "$BATS_TEST_TMPDIR"
    put half.dat '[pair("x", 2, 32)[0]]'
    put cols.dat '[T("x.weight.qdata", "u8", (2, 4), bytes(8)), T("x.weight.scale", "f8_e4m3", (2, 1), b"88")]'
    put rows.dat '[T("x.weight.qdata", "u8", (2, 8), bytes(16)), T("x.weight.scale", "f8_e4m3", (1, 1), b"8")]'
    put f16.dat '[T("x.weight.qdata", "u8", (1, 8), bytes(8)), T("x.weight.scale", "f16", (1, 1), b"88")]'
    local f
    for f in half cols rows f16; do
        run -0 --separate-stderr datcat -l $f.dat
        [ "${lines[0]}" = x.weight.qdata ]
        [ "${#stderr_lines[@]}" -eq 1 ]
        lists -q -l $f.dat
        refused x --strict -l $f.dat
    done
}

# ---- names, streams, several files ------------------------------------------

@test "control and bidi characters of names are escaped in every text mode" {
    local o
    for o in '' -l --tsv --stats --hist --map --hash --group --raw-entries; do
        # shellcheck disable=SC2086  # no option at all is one case
        datcat $o names.dat >"$BATS_TEST_TMPDIR/out"
        LC_ALL=C run -1 grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae|\xe2\x81\xa6' \
            "$BATS_TEST_TMPDIR/out"
        grep -qF 'esc\x1b[31m' "$BATS_TEST_TMPDIR/out"
        grep -qF 'tab\tx' "$BATS_TEST_TMPDIR/out"
        grep -qF 'nl\nx' "$BATS_TEST_TMPDIR/out"
        grep -qF 'back\\x' "$BATS_TEST_TMPDIR/out"
        grep -qF 'bidi\xe2\x80\xaex' "$BATS_TEST_TMPDIR/out"
        grep -qF '層.größe' "$BATS_TEST_TMPDIR/out"
    done
    datcat -l names.dat >"$BATS_TEST_TMPDIR/out"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/out")" -eq 9 ]
    run -1 datcat --diff names.dat small.dat
    [[ $output != *$'\x1b'* ]]
    # In JSON they are what they are.
    for o in names.dat names.safetensors; do
        datcat --ndjson $o >"$BATS_TEST_TMPDIR/out"
        python3 -c '
import json, sys
import containers as c
got = [json.loads(x)["name"] for x in open(sys.argv[1])]
assert got == [t.name for t in c.read_any(sys.argv[2])]' "$BATS_TEST_TMPDIR/out" $o
    done
}

@test "a terminal does not obey what a file says; a pipe gets it as it is" {
    cd "$BATS_TEST_TMPDIR"
    python3 - <<'PY'
import json, struct
# What JSON may hold as it is: DEL, C1, bidi; the rest by escapes.
evil = "\x7f \u009b31m \u0085 \u202e \u2066 \u061c \u2028 \\u001b]0;x\\u0007 größe"
head = ('{"__metadata__": {\r\n\t"note": "%s", "%s": "key"},'
        ' "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}' % (evil, evil))
head = head.encode()
open("evil.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + b"x")
conf = '{"model_type": "qwen3",\r "note": "%s"}' % evil
open("config.json", "w").write(conf)
PY
    local o
    for o in --meta --json; do
        datcat $o evil.safetensors >pipe
        LC_ALL=C grep -qP '\x7f.*\xc2\x9b31m.*\xe2\x80\xae.*\xe2\x81\xa6' pipe
        script -qec "datcat $o evil.safetensors" /dev/null | sed 's/\r$//' >shown
        LC_ALL=C run -1 grep -P '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]' shown
        python3 - <<'PY'
import json
shown, pipe = open("shown").read(), open("pipe").read()
assert json.loads(shown) == json.loads(pipe), shown
assert "größe" in shown and "\\u202e" in shown and "\\u009b31m" in shown, shown
PY
    done
}

@test "a file name with control characters is escaped, too" {
    local f=$BATS_TEST_TMPDIR/$'x\e[31m\ny.dat'
    refused '\x1b[31m\ny.dat' "$f"
    printf 'not a dat' >"$f"
    refused '\x1b[31m\ny.dat' "$f"
    cp small.dat "$f"
    run -0 datcat --verify "$f"
    [[ $output != *$'\e'* ]]
    run -0 datcat -l "$f" "$f"
    [[ $output != *$'\e'* ]]
}

@test "- reads a .dat from standard input, a file or a pipe" {
    lists -l - <small.dat
    [ "$output" = "$(datcat -l small.dat)" ]
    # shellcheck disable=SC2002  # the pipe is the point
    diff <(cat sizes.dat | datcat --ndjson --stats -) <(datcat --ndjson --stats sizes.dat)
    # shellcheck disable=SC2002
    diff <(cat small.dat | datcat --hash -) <(datcat --hash small.dat)
    # shellcheck disable=SC2002
    diff <(cat small.dat | datcat --map -) <(datcat --map small.dat)
    run -2 datcat - < <(head -c 60 small.dat)
    # shellcheck disable=SC2002
    run -0 bash -o pipefail -c 'cat small.dat | datcat --diff - small.dat'
    run -2 datcat - </dev/null
}

@test "several files, one after the other" {
    lists -l small.dat dir
    [ "$(grep -c 'model.norm.weight' <<<"$output")" -eq 1 ]
    [ "$(grep -c '^a.weight' <<<"$output")" -eq 1 ]
    lists --ndjson small.dat side.dat
    python3 -c '
import json, sys
files = {json.loads(x)["file"] for x in sys.argv[1].splitlines()}
assert files == {"small.dat", "side.dat"}, files' "$output"
    lists --tsv small.dat side.dat
    [ "$(grep -c "^name$T" <<<"$output")" -eq 1 ]
    # What could be read before the trouble was shown, the exit code is 2.
    run -2 --separate-stderr datcat -l small.dat nosuch
    # A glob needs to match in one of them, whichever comes first.
    lists -q -l -s 'model.norm.weight' dir small.dat
    lists -q -l -s 'model.norm.weight' small.dat dir
}

# bats test_tags=nosan,native
@test "statistics of many files take the memory of one" {
    local o many
    mapfile -t many < <(for _ in {1..100}; do echo small.dat; done)
    for o in --stats --hist; do
        run -0 bash -c 'ulimit -v 200000; datcat -j 1 "$@"' - $o "${many[@]}"
        [ "${#lines[@]}" -eq $((100 * $(datcat $o small.dat | wc -l) + 100)) ]
    done
}

@test "-q says nothing, -v more; -j takes numbers" {
    lists -q -v small.dat
    run -0 --separate-stderr datcat -v small.dat
    local j
    for j in 0 x -1 1x 99999999999 ''; do
        run -2 --separate-stderr datcat -j "$j" small.dat
        [ "${#stderr_lines[@]}" -eq 1 ]
    done
    lists -j2 small.dat
    lists --threads=2 small.dat
}

@test "a stale or foreign sidecar is said to be one, and counts as absent" {
    cd "$BATS_TEST_TMPDIR"
    cp "$IN/side.dat.json" small.dat.json
    cp "$IN/small.dat" .
    run -0 --separate-stderr datcat --meta small.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ ${stderr_lines[0]} == *stale* ]]
    [[ $output == *'"provenance":null'* ]]
    lists -q --meta small.dat
    echo '{}' >small.dat.json
    run -0 --separate-stderr datcat --meta small.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    lists -q --verify small.dat
}

@test "files that are none: exit 2, one line, at once" {
    local f
    mkfifo "$BATS_TEST_TMPDIR/fifo"
    for f in '' /nonexistent /dev/null /dev/zero "$BATS_TEST_TMPDIR/fifo" "$BATS_TEST_TMPDIR" /proc/self/mem; do
        run -2 --separate-stderr timeout 60 datcat "$f"
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" -eq 1 ]
    done
}

@test "a .dat that begins as a longer safetensors file would is a .dat" {
    # 8 bytes that are the length of a header, and a brace; but the file ends before.
    python3 - "$BATS_TEST_TMPDIR/model" <<'PY'
import struct, sys
import containers as c
first = c.uleb(2) + c.dat_header("a", "i32", ()) + b"\0\0\0{"
size = struct.unpack("<Q", first[:8])[0]
n = size - len(first) - len(c.dat_header("b", "u8", (1 << 25,)))
assert first[8:] == b"{" and 1 << 21 < n < 1 << 28
with open(sys.argv[1], "wb") as f:
    f.write(first + c.dat_header("b", "u8", (n,)))
    f.truncate(size)
PY
    lists "$BATS_TEST_TMPDIR/model"
    [ "${lines[0]}" = "a${T}i32${T}[]${T}4" ]
    [[ ${lines[1]} == "b${T}u8${T}["* ]]
}

@test "a safetensors header longer than its file, or than any may be, is said to be that" {
    cd "$BATS_TEST_TMPDIR"
    printf '\25\0\0\0\0\0\0\0{}%18s' '' >m.safetensors
    refused 'm.safetensors: byte 0: a header of 21 bytes, expected at most 20' m.safetensors
    printf '\1\341\365\5\0\0\0\0{}' >m.safetensors
    truncate -s 100000100 m.safetensors
    refused 'm.safetensors: byte 0: a header of 100000001 bytes, expected at most 100000000' m.safetensors
}

@test "the tensor that an index of shards has wrong is named" {
    cp -r shards "$BATS_TEST_TMPDIR/m"
    cd "$BATS_TEST_TMPDIR"
    # index STATEMENT: the map w of names to files is changed.
    index() {
        python3 -c '
import json, sys
d = json.load(open(sys.argv[2] + "/shards/model.safetensors.index.json"))
w = d["weight_map"]
exec(sys.argv[1])
json.dump(d, open("m/model.safetensors.index.json", "w"))' "$1" "$IN"
    }
    local first=model-00001-of-00003.safetensors last=model-00003-of-00003.safetensors
    index 'pass'
    lists -q m
    index "w['model.x'] = '$last'"
    refused "index.json: tensor \"model.x\" is not in \"$last\"" m
    index "n = min(k for k in w if w[k] == '$first'); w[n] = '$last'; w['y'] = w.pop(n)"
    refused "index.json: tensor \"y\" is not in \"$last\"" m
    index "del w['model.norm.weight']"
    refused '.safetensors: tensor "model.norm.weight" is not listed in model.safetensors.index.json' m
}

# bats test_tags=native
@test "what cannot be opened is not taken for what does not exist" {
    SHIM=${NIBBLE_FAILIO:-$BUILD/failio.so}
    [ -e "$SHIM" ] || skip "no failio.so"
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    datpack -q -o m.dat in/dir
    datpack -q --shard-size 4K -o shards/ in/dir
    cannot EMFILE model-00002 shards/model-00002 datcat -q shards
    cannot EMFILE model.safetensors in/dir/model.safetensors datcat -q in/dir
    cannot EMFILE index.json index.json datcat -q shards
    cannot EMFILE config.json shards/config.json datcat -q shards
    cannot EMFILE nibble.json shards/nibble.json datcat -q shards
    # A sidecar holds the checksum: without it nothing is verified.
    cannot EMFILE m.dat.json m.dat.json datcat -q --verify m.dat
    cannot EMFILE m.dat.json m.dat.json datpack -q -o x.safetensors m.dat
    cp m.dat old.dat
    cp m.dat.json old.dat.json
    cannot EMFILE old.dat.json old.dat.json datpack -q -f -o old.dat in/dir
    cmp m.dat old.dat
    cannot EMFILE generation_config.json generation_config.json datpack -q -o y/ in/dir
    cannot EMFILE tokenizer.json tokenizer.json datpack -q -o y.gguf in/gguf
    # No open at all: a link to itself.
    for f in model.safetensors model.safetensors.index.json nibble.json config.json \
        tokenizer.json; do
        rm -rf loop
        cp -r in/dir loop
        ln -sf $f loop/$f
        run -2 --separate-stderr datpack -q -f -o z/ loop
        [[ $stderr == *"loop/$f: Too many levels of symbolic links" ]] || {
            echo "$f: $stderr" && false
        }
    done
    rm in/gguf/tokenizer.json
    ln -s tokenizer.json in/gguf/tokenizer.json
    run -2 --separate-stderr datpack -q -o y.gguf in/gguf
    [[ $stderr == *"tokenizer.json: Too many levels of symbolic links" ]]
    # A directory of that name is no sidecar of ours, as before.
    rm m.dat.json
    mkdir m.dat.json
    run -0 --separate-stderr datcat --verify m.dat
    [[ $stderr == *"was not written by nibble"* ]]
}

@test "a long name and many tensors" {
    cd "$BATS_TEST_TMPDIR"
    put long.dat '[T("n" * 65536, "u8", (1,), b"x")]'
    [ "$(datcat -l long.dat | wc -c)" -eq 65537 ]
    put many.dat '[T("t%d" % i, "u8", (1,), b"x") for i in range(10000)]'
    [ "$(datcat --stats many.dat | wc -l)" -eq 10002 ]
    [ "$(datcat --hash many.dat | wc -l)" -eq 10001 ]
    lists --diff many.dat many.dat
    [ "$(within 20 datcat --group many.dat | wc -l)" -eq 10001 ]
}

# ---- --verify: the tensors of the configuration ------------------------------

@test "--verify: a whole model of each kind has the tensors of its configuration" {
    local f
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    datpack -q -o m.dat in/dir
    datpack -q --tie -o tied.dat in/dir
    datpack -q -o m.safetensors in/dir
    datpack -q -o m.ckpt in/dir
    datpack -q -o m.gguf in/gguf
    nvquant -q -o nvfp4.dat m.dat
    nvquant -q -o nvfp4.safetensors in/untied
    datpack -q --to modelopt -o mo/ in/dir
    datpack -q --to compressed-tensors -o ct/ in/untied
    datpack -q --shard-size 4K -o shards/ in/dir
    for f in *.dat *.safetensors m.ckpt m.gguf mo ct shards in/dir in/untied; do
        run -0 --separate-stderr datcat --verify "$f"
        [[ $output == "$f: OK ("*"names and shapes are those of the configuration)" ]]
        run -0 --separate-stderr datcat --verify=quick "$f"
        [[ $output == *"names and shapes are those of the configuration)" ]]
    done
    # A configuration that only lies beside a file, and one of something else.
    cp in/dir/config.json .
    datpack -q --config in/conf/config.json -s '*.mlp.*' -o part.dat in/dir
    rm part.dat.json
    run -0 --separate-stderr datcat --verify part.dat
    [[ $output != *names* ]]
    mkdir other
    datpack -q -s '*.mlp.*' -o other/model.safetensors in/dir
    printf '{"model_type":"llama"}' >other/config.json
    run -0 --separate-stderr datcat --verify other
    [[ $output == *"names were not compared: "* ]]
    cp -r in/dir awq
    sed -i 's/{/{"quantization_config":{"quant_method":"awq"},/' awq/config.json
    run -0 --separate-stderr datcat --verify awq
    [[ $output == *"names were not compared: "* ]]
}

# without FILE NEW NAME...: a copy of a .dat or directory that lacks these entries.
without() {
    python3 - "$@" <<'PY'
import os, shutil, sys, nvfp4, containers as c
old, new, *names = sys.argv[1:]
whole = nvfp4.read_tensors(old)
ts = [t for t in whole if t.name not in names]
assert len(ts) == len(whole) - len(names), names
if os.path.isdir(old):
    shutil.copytree(old, new)
    c.put(new + "/model.safetensors", c.st_bytes(ts, {"format": "pt"}))
else:
    c.put(new, c.dat_bytes(ts))
PY
}

@test "--verify: an NVFP4 tensor without one of its parts, configuration or not" {
    local up=model.layers.1.mlp.up_proj part f
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    nvquant -q -o n.dat in/dir
    for part in qdata scale; do
        without n.dat $part.dat $up.weight.$part
    done
    without n.dat scale2.dat $up.weight.qdata $up.weight.scale
    without n.dat both.dat $up.weight.scale $up.weight.scale2
    for f in qdata scale scale2 both; do
        run -1 --separate-stderr datcat -q --verify $f.dat
        [[ $stderr == *"\"$up"*'is one part of an NVFP4 tensor, and another part is missing'* ]]
        cp in/conf/config.json . # beside it
        run -1 --separate-stderr datcat -q --verify=quick $f.dat
        rm config.json
    done
    for f in modelopt compressed-tensors; do
        datpack -q --to $f -o $f/ in/dir
        run -0 datcat --verify $f
        for part in $(datcat -l --raw-entries $f | grep "^$up"); do
            rm -rf less
            without $f less "$part"
            run -1 datcat -q --verify less
            rm less/config.json
            # ModelOpt calls its codes like a plain tensor: without block scales they are one.
            [ "$f.$part" = modelopt.$up.weight_scale ] || run -1 datcat -q --verify less
        done
    done
    # Not those of other quantizations, nor of tensors that are called so.
    python3 - <<'PY'
import containers as c
T = c.Tensor
c.put("other.safetensors", c.st_bytes([
    T("fp8.weight", "f8_e4m3", (2, 16), bytes(32)), T("fp8.weight_scale", "f32", (1,), bytes(4)),
    T("int8.weight", "i8", (2, 16), bytes(32)), T("int8.weight.scale", "u8", (2,), bytes(2)),
    T("norm.scale", "u8", (2,), bytes(2)), T("x.weight.scale", "f32", (2,), bytes(8)),
    T("norm.scale2", "f32", (1,), bytes(4))]))
PY
    run -0 --separate-stderr datcat --verify other.safetensors
    [ -z "$stderr" ]
}

@test "--verify: an activation scale that only one tensor lacks" {
    local up=model.layers.1.mlp.up_proj
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    datpack -q --to compressed-tensors -o ct/ in/dir
    python3 - <<'PY'
import json, struct, nvfp4, containers as c
ts = nvfp4.read_tensors("ct")
ts += [c.Tensor(t.name.replace("weight_packed", "input_global_scale"), "f32", (1,),
                struct.pack("<f", 20)) for t in ts if t.name.endswith("weight_packed")]
c.put("ct/model.safetensors", c.st_bytes(ts, {"format": "pt"}))
PY
    run -0 datcat --verify ct
    without ct less $up.input_global_scale
    not_those less "\"$up.weight\": has no activation scale"
    # Of two groups of modules one may be W4A16.
    python3 - <<'PY'
import json
c = json.load(open("less/config.json"))
groups = c["quantization_config"]["config_groups"]
groups["group_1"] = dict(groups["group_0"], input_activations=None)
json.dump(c, open("less/config.json", "w"))
PY
    run -0 datcat --verify less
}

@test "--verify: a broken configuration of Qwen3 is damage, one of another kind is not" {
    local change
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    config() { # KEY VALUE: in/dir with that in its configuration
        python3 - "$1" "$2" <<'PY'
import json, sys
c = json.load(open("in/conf/config.json"))
c[sys.argv[1]] = json.loads(sys.argv[2])
json.dump(c, open("in/dir/config.json", "w"))
PY
    }
    for change in 'hidden_size -64' 'num_hidden_layers 2000000000' 'rms_norm_eps 0' \
        'hidden_size 9223372036854775807' 'num_key_value_heads 3'; do
        config "${change% *}" "${change#* }"
        not_those in/dir "in/dir: configuration: "
    done
    for change in 'attention_bias true' 'model_type "qwen3_moe"' 'architectures ["Other"]' \
        'rope_scaling {"rope_type":"yarn"}'; do
        config "${change%% *}" "${change#* }"
        run -0 --separate-stderr datcat --verify in/dir
        [[ $output == *"names were not compared: "*"${change%% *}"* ]]
    done
}

@test "--verify: missing, extra, misshapen and unpaired tensors are named" {
    local up=model.layers.1.mlp.up_proj
    cd "$BATS_TEST_TMPDIR"
    nvmodel make "$PWD/in"
    datpack -q -o m.dat in/dir
    datpack -q -x $up.weight -o less.dat m.dat
    not_those less.dat "\"$up.weight\": is missing"
    datpack -q -x $up.weight -o less.safetensors in/dir
    not_those less.safetensors "\"$up.weight\": is missing"
    datpack -q -x $up.weight --shard-size 4K -o less/ in/dir
    not_those less "\"$up.weight\": is missing"
    datpack -q --rename $up.weight=a.$up.weight -o renamed.dat m.dat
    not_those renamed.dat "\"$up.weight\": is missing" \
        "\"a.$up.weight\": is not in the configuration"
    nvquant -q -o nvfp4.dat m.dat
    datpack -q -x $up.weight -o less4.dat nvfp4.dat
    not_those less4.dat "\"$up.weight\": is missing"
    # All of them: twenty lines, and how many more.
    datpack -q -s 'model.norm.*' -o norm.dat m.dat
    run -1 --separate-stderr datcat --verify norm.dat
    [ "${#stderr_lines[@]}" -eq 21 ]
    [[ ${stderr_lines[20]} == *": and 3 more" ]]
    # A part of an NVFP4 tensor; another shape; a head that an untied model lacks.
    python3 - <<'PY'
import json, os, shutil, nvmodel, nvfp4, containers as c
os.mkdir("alone")
os.mkdir("shape")
ts = nvfp4.read_tensors("in/dir")
for t in ts:
    if t.name == "model.norm.weight":
        t.shape = (t.shape[0] // 2, 2)
c.put("shape/model.safetensors", c.st_bytes(ts, {"format": "pt"}))
shutil.copy("in/dir/config.json", "shape")
PY
    not_those shape '"model.norm.weight": shape [16,2], the configuration expects [32]'
    cp -r in/dir untied
    cp in/untied/config.json untied
    not_those untied '"lm_head.weight": is missing'
    datpack -q --to compressed-tensors -o ct/ in/dir
    python3 - <<'PY'
import nvfp4, containers as c
ts = nvfp4.read_tensors("ct")
c.put("ct/model.safetensors", c.st_bytes(
    [t for t in ts if t.name != "model.layers.1.mlp.up_proj.weight_scale"], {"format": "pt"}))
PY
    run -1 --separate-stderr datcat -q --verify ct
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"\"$up\""* ]]
    # A GGUF whose keys ask for another layer.
    datpack -q -o m.gguf in/gguf
    python3 - <<'PY'
m = bytearray(open("m.gguf", "rb").read())
at = m.index(b"qwen3.block_count") + len("qwen3.block_count") + 4
assert m[at:at + 4] == b"\1\0\0\0"
m[at] = 2
open("m.gguf", "wb").write(m)
PY
    run -1 --separate-stderr datcat --verify m.gguf
    [[ $stderr == *'"model.layers.1.self_attn.q_proj.weight": is missing'* ]]
}

@test "several files: each has its line above it, where their lines do not name it" {
    local o
    for o in '' -l --hash --hist --map; do
        # shellcheck disable=SC2086  # '' is no word
        lists $o small.dat sizes.dat
        [ "$(grep -c '^==> .*[.]dat <==$' <<<"$output")" -eq 2 ] || { echo "$o" && false; }
        # shellcheck disable=SC2086
        lists $o small.dat
        [[ $output != *'==>'* ]]
    done
    for o in --tsv --ndjson --json; do
        lists $o small.dat sizes.dat
        [[ $output != *'==>'* ]]
    done
}
