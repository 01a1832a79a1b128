#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr_lines: set by run
# What datpack writes, an independent reader reads (containers.py), and the
# way there and back changes no byte; what datcat says is what stands there.

load common

# The tensors of both files agree; a second argument of "sorted" forgets the
# order.
same_tensors() {
    containers read "$1" >a.tsv
    containers read "$2" >b.tsv
    if [ "${3:-}" = sorted ]; then
        LC_ALL=C sort -o a.tsv a.tsv
        LC_ALL=C sort -o b.tsv b.tsv
    fi
    [ -s a.tsv ]
    diff a.tsv b.tsv
}

pack() { quiet datpack -q "$@"; }

@test ".dat to .dat: the same bytes, and a sidecar that fits" {
    make_sample portable-dat in.dat
    pack -o out.dat in.dat
    cmp in.dat out.dat
    [ -e out.dat.json ]
    containers read out.dat >/dev/null
}

@test ".dat to .dat: order, names, codes and shapes that are not asked to change" {
    # Every code but bf16, in no order.
    python3 - "$HERE" in.dat <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
dtypes = [d for d in c.DAT_CODE if d != "bf16"]
c.put(sys.argv[2], c.dat_bytes(c.sample(dtypes, 3, True)))
PY
    pack -o out.dat in.dat
    cmp in.dat out.dat
}

@test "the golden pair of 48 bytes" {
    make_sample pair pair.dat
    [ "$(stat -c %s pair.dat)" -eq 48 ]
    pack -o out.dat pair.dat
    cmp pair.dat out.dat
    run -0 datcat --raw-entries --names pair.dat
    [ "$output" = 'a.weight.qdata
a.weight.scale' ]
    run -0 datcat --names pair.dat
    [ "$output" = a.weight ]
    datcat --ndjson pair.dat >pair.json
    datcat --values a.weight pair.dat >values
    datcat --payload a.weight.qdata pair.dat >codes
    python3 - <<'PY'
import json
o = json.load(open("pair.json"))
assert o["dtype"] == "nvfp4" and o["shape"] == [1, 16], o
assert o["nbytes"] == 9 and o["levels"] == 1 and o["offset"] == 20, o
mag = [0, .5, 1, 1.5, 2, 3, 4, 6]
want = [(-1) ** (k >> 3) * mag[k & 7] / 64 for k in
        (0, 0, 8, 0, 1, 9, 1, 2, 2, 11, 3, 4, 4, 5, 13, 6)]
got = [float(x) for x in open("values")]
assert got == want, got
assert open("codes", "rb").read().hex() == "00089121b243546d"
PY
}

@test ".dat to safetensors and back" {
    make_sample portable-dat in.dat
    pack -o out.safetensors in.dat
    same_tensors in.dat out.safetensors sorted
    containers ours out.safetensors
    pack -o back.dat out.safetensors
    cmp in.dat back.dat
    # The second generation, from the same bytes without their history.
    rm back.dat.json
    pack -o again.safetensors back.dat
    cmp out.safetensors again.safetensors
}

@test "foreign safetensors to .dat and back" {
    make_sample portable-safetensors in.safetensors
    pack -o out.dat in.safetensors
    same_tensors in.safetensors out.dat
    pack -o back.safetensors out.dat
    same_tensors in.safetensors back.safetensors sorted
    make_sample portable-dat expected.dat
    cmp expected.dat out.dat
}

@test "safetensors to safetensors: every dtype with a name, sorted" {
    python3 - "$HERE" in.safetensors <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
dtypes = [d for d in c.ST_DTYPE if not d.startswith("f6") and d not in
          ("f8_e8m0", "f8_e4m3fnuz", "f8_e5m2fnuz")]
c.put(sys.argv[2], c.st_bytes(c.sample(dtypes, 3, False)))
PY
    pack -o out.safetensors in.safetensors
    same_tensors in.safetensors out.safetensors sorted
    containers ours out.safetensors
}

@test "safetensors: what an input says of itself goes along, into shards too" {
    python3 - "$HERE" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
T = c.Tensor
c.put("a.safetensors", c.st_bytes([T("b", "u8", (3,), b"123"), T("c", "f32", (1,), b"abcd")],
    {"format": "mlx", "license": "MIT \" \u00e9\n", "nibble": "{}", "step": "1"}))
c.put("b.safetensors", c.st_bytes([T("a", "f64", (1,), b"12345678"),
                                   T("d", "bf16", (1,), b"xy")],
    {"step": "2", "z": "", "format": "pt"}))
c.put("none.safetensors", c.st_bytes([T("b", "u8", (3,), b"123")], {}))
PY
    pack -o out.safetensors a.safetensors b.safetensors
    pack --shard-size 4 -o d/ out.safetensors
    pack -o plain.safetensors none.safetensors
    python3 - <<'PY'
import glob, json, struct
def head(path):
    with open(path, "rb") as f:
        m = f.read()
    n = struct.unpack("<Q", m[:8])[0]
    assert n % 8 == 0
    o = json.loads(m[8:8 + n])
    return o.pop("__metadata__"), o
meta, tensors = head("out.safetensors")
assert "nibble" in meta and meta.pop("nibble") != "{}"
want = {"format": "mlx", "license": 'MIT " \u00e9\n', "step": "1", "z": ""}
assert meta == want, meta
# Wide elements first, each at a multiple of its size.
assert list(tensors) == ["a", "c", "d", "b"], list(tensors)
assert [t["data_offsets"][0] for t in tensors.values()] == [0, 8, 12, 14]
shards = glob.glob("d/model-*.safetensors")
assert len(shards) == 4
for s in shards:
    assert head(s)[0] == want, s
meta, _ = head("plain.safetensors")
assert meta["format"] == "pt" and len(meta) == 2, meta
index = json.load(open("d/model.safetensors.index.json"))["weight_map"]
assert list(index) == ["a", "b", "c", "d"], index
PY
    run -0 datcat --verify d
    [[ $output == 'd: OK'* ]]
}

@test "a directory of shards and back" {
    make_sample portable-dat in.dat
    pack --to safetensors --shard-size 600 -o out/ in.dat
    containers read out | LC_ALL=C sort >a.tsv
    containers read in.dat | LC_ALL=C sort | diff - a.tsv
    [ "$(find out -name 'model-0*-of-0*.safetensors' | wc -l)" -gt 2 ]
    for f in out/*.safetensors; do
        containers ours "$f"
    done
    pack -o back.dat out
    cmp in.dat back.dat
    rm back.dat.json
    pack --to safetensors --shard-size 600 -o again/ back.dat
    diff -r out again
    pack --to safetensors -o single/ in.dat
    [ -e single/model.safetensors ]
    same_tensors in.dat single sorted
    python3 - "$HERE" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
for d in "out", "single":
    c.check_nibble(open(d + "/nibble.json", "rb").read(), d)
PY
}

@test "a foreign directory of shards" {
    make_sample shards in
    make_sample portable-dat expected.dat
    pack -o out.safetensors in
    same_tensors expected.dat out.safetensors sorted
}

@test "the eighth bit of f4_e2m1 shapes: 100 in a .dat, F4 with twice the columns" {
    python3 - "$HERE" in.dat <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
c.put(sys.argv[2], c.dat_bytes([
    c.Tensor("a", "f4_e2m1", (2, 8), c.noise("a", 16)),
    c.Tensor("b", "f4_e2m1", (5,), c.noise("b", 5))]))
PY
    pack -o out.safetensors in.dat
    run -0 containers read out.safetensors
    [[ ${lines[0]} == a$'\t'f4_e2m1$'\t'[[]2,16]$'\t'16$'\t'* ]]
    [[ ${lines[1]} == b$'\t'f4_e2m1$'\t'[[]10]$'\t'5$'\t'* ]]
    pack -o back.dat out.safetensors
    cmp in.dat back.dat
}

# $1: a list of "name dtype"; a tensor each in FILE $2 of its kind.
write_tensors() {
    python3 - "$HERE" "$@" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
ts = []
for pair in sys.argv[2].split(","):
    name, dtype = pair.split()
    ts.append(c.Tensor(name, dtype, (4,), bytes(4 * c.BITS[dtype] // 8)))
path = sys.argv[3]
c.put(path, c.dat_bytes(ts) if path.endswith(".dat") else c.st_bytes(ts))
PY
}

@test "what the target cannot hold is refused, and nothing is left" {
    local d
    mkdir out
    write_tensors "a c128" in.dat
    run -2 --separate-stderr datpack -o out/x.safetensors in.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    [ -z "$(ls -A out)" ]
    for d in u16 u32 u64 f8_e5m2 f6_e2m3 f8_e8m0 f8_e4m3fnuz; do
        write_tensors "a u8,b $d" in.safetensors
        run -2 --separate-stderr datpack -o out/x.dat in.safetensors
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ -z "$(ls -A out)" ]
    done
    # A name that a .dat may not have.
    python3 - "$HERE" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
c.put("nul.safetensors", c.st_bytes([c.Tensor("a\0b", "u8", (1,), b"x")]))
c.put("long.safetensors", c.st_bytes([c.Tensor("n" * 65537, "u8", (1,), b"x")]))
PY
    for d in nul long; do
        run -2 --separate-stderr datpack -o out/x.dat $d.safetensors
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ -z "$(ls -A out)" ]
    done
}

@test "bf16 becomes f16 in a .dat, and stays bf16 where that is asked for" {
    make_sample tiny-safetensors in.safetensors
    pack -s 'model.norm*' -o f16.dat in.safetensors
    pack -s 'model.norm*' --dtype bf16 -o bf16.dat in.safetensors
    python3 - "$HERE" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
for d in "f16", "bf16":
    m, (t,) = c.read_dat(d + ".dat")
    want = c.exact_floats(d, (1, "model.norm.weight"), 32)
    assert (t.dtype, t.shape) == (d, (32,)), (t.dtype, t.shape)
    assert m[t.offset:] == want
PY
}

# ---- a tiny Qwen3 -----------------------------------------------------------

@test "a model in bf16 to the .dat that a TorchSharp reader expects" {
    make_sample tiny-dat expected.dat
    make_sample config config.json
    make_sample tiny-safetensors in.safetensors
    make_sample tiny-dir dir
    make_sample tiny-shards shards
    make_sample tiny-ckpt in.ckpt
    local in
    for in in dir shards in.ckpt; do
        pack -o out.dat $in
        cmp expected.dat out.dat
        containers read out.dat >/dev/null
        rm out.dat out.dat.json
    done
    pack --config config.json -o out.dat in.safetensors
    cmp expected.dat out.dat
    rm out.dat out.dat.json
    # config.json is looked for beside the file, too.
    pack -o out.dat in.safetensors
    cmp expected.dat out.dat
}

@test ".dat to checkpoint and back" {
    make_sample tiny-dat in.dat
    mkdir elsewhere
    make_sample config elsewhere/config.json
    make_sample tiny-ckpt expected.ckpt
    pack --quant none --config elsewhere/config.json -o out.ckpt in.dat
    # Weights, then zero moments, all in their order.
    same_tensors expected.ckpt out.ckpt
    containers header out.ckpt >header.json
    python3 - <<'PY'
import json
h = json.load(open("header.json"))
assert h["config"] == open("elsewhere/config.json").read(), h["config"]
assert (h["master"], h["moments"]) == ("bf16", "int8"), h
assert h["quant"]["name"] == "none", h["quant"]
assert h["state"] == {
    "grad_norm": None, "routes": None, "sampler": None, "settings": {},
    "skips": 0, "spike": None, "step": 0, "t": 0, "tokenizer": None}, h
PY
    pack -o back.dat out.ckpt
    cmp in.dat back.dat
    rm back.dat.json
    pack --quant none --config elsewhere/config.json -o again.ckpt back.dat
    cmp out.ckpt again.ckpt
    # From a checkpoint: a new one, step 0, the configuration from inside.
    pack --quant none -o from.ckpt out.ckpt
    same_tensors out.ckpt from.ckpt
    pack -o w.safetensors out.ckpt
    make_sample tiny-safetensors w0.safetensors
    same_tensors w0.safetensors w.safetensors sorted
    containers ours w.safetensors
}

@test "every kind of master and moments" {
    make_sample tiny-dat in.dat
    make_sample config config.json
    local master moments
    for master in f32 bf16; do
        for moments in f32 bf16 int8; do
            pack --quant none --master $master --moments $moments \
                -o $master-$moments.ckpt in.dat
            python3 - "$HERE" $master $moments <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
master, moments = sys.argv[2:]
want = c.tiny_model(master, 1)
want += c.tiny_states(want, moments)
m, got = c.read_ckpt("%s-%s.ckpt" % (master, moments))
show = lambda t: (t.name, t.dtype, t.shape)
got = [t for t in got if not t.name.startswith("master.low/")]
assert list(map(show, got)) == list(map(show, want))
for a, b in zip(got, want):
    assert m[a.offset:a.offset + a.nbytes()] == b.data, a.name
PY
        done
    done
}

@test "the head of a tied model stands in a .dat only" {
    make_sample tiny-dat in.dat
    make_sample config config.json
    pack -o out.safetensors in.dat
    make_sample tiny-safetensors want.safetensors
    containers list out.safetensors | cut -f 1 >got
    containers list want.safetensors | cut -f 1 | LC_ALL=C sort | diff - got
    run -0 grep -c f16 <(containers list out.safetensors)
    [ "$output" -eq 24 ]
    pack -o back.dat out.safetensors
    cmp in.dat back.dat
    pack --tie -o tied.dat in.dat
    run -1 grep -q lm_head <(containers list tied.dat)
    pack --untie -o untied.safetensors in.dat
    run -0 grep -c lm_head <(containers list untied.safetensors)
}

# ---- datcat against the reader ----------------------------------------------

@test "datcat --ndjson says what the reader says" {
    make_sample dat every.dat
    make_sample safetensors every.safetensors
    make_sample ckpt every.ckpt
    make_sample tiny-ckpt tiny.ckpt
    make_sample shards shards
    make_sample sidecar side.dat
    cat >compare.py <<'PY'
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
import containers as c
CLI = ("f16 bf16 f32 f64 u8 i8 i16 i32 i64 u16 u32 u64 bool c64 c128 f8_e4m3 "
       "f8_e5m2 f4_e2m1").split()
for path in sys.argv[2:]:
    want = [(t.name, t.dtype, list(t.shape), t.offset,
             t.nbytes(path.endswith(".dat"))) for t in c.read_any(path)]
    out = subprocess.run(["datcat", "--raw-entries", "--ndjson", path],
                         check=True, stdout=subprocess.PIPE).stdout
    got = [json.loads(line) for line in out.decode().splitlines()]
    assert len(got) == len(want), (path, len(got), len(want))
    for g, w in zip(got, want):
        g = (g["name"], g["dtype"], g["shape"], g["offset"], g["nbytes"])
        if w[1] not in CLI:
            g, w = g[:1] + g[2:], w[:1] + w[2:]
        elif w[1] == "f4_e2m1" and path.endswith(".dat"):
            # Elements, or bytes as in the file: the rules allow both.
            g, w = g[:2] + g[3:], w[:2] + w[3:]
        assert g == w, (path, g, w)
    out = subprocess.run(["datcat", "--raw-entries", "--json", path],
                         check=True, stdout=subprocess.PIPE).stdout
    doc = json.loads(out.decode())
    names = [t["name"] for t in doc["tensors"]]
    assert names == [w[0] for w in want], (path, names)
PY
    python3 compare.py "$HERE" every.dat every.safetensors \
        every.ckpt tiny.ckpt shards side.dat
}

@test "datcat --hash says what Python's hashes say" {
    make_sample dat every.dat
    make_sample safetensors every.safetensors
    make_sample small-ckpt small.ckpt
    local f kind
    for f in every.dat every.safetensors small.ckpt; do
        for kind in xxh3 sha256; do
            datcat --hash=$kind $f >got
            python3 - "$HERE" $f $kind >want <<'PY'
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import containers as c
from xxh3 import xxh3_128
f = {"xxh3": lambda b: xxh3_128(b).hex(),
     "sha256": lambda b: hashlib.sha256(b).hexdigest()}[sys.argv[3]]
for t in c.read_any(sys.argv[2]):
    print(f(t.file[t.offset:t.offset + t.nbytes(sys.argv[2].endswith(".dat"))]))
print(f(open(sys.argv[2], "rb").read()))
PY
            cut -d ' ' -f 1 got | diff want -
            [[ $(tail -1 got) == *'  *' ]]
            datcat --check got $f
            sed -e '1{s/^0/1/;t' -e 's/^./0/' -e '}' got >wrong
            run -1 datcat --check wrong $f
        done
    done
    # And as sha256sum says it.
    [ "$(datcat --hash=sha256 every.dat | tail -1 | cut -d ' ' -f 1)" = \
        "$(sha256sum <every.dat | cut -d ' ' -f 1)" ]
}

@test "datcat --payload: the bytes of each entry" {
    make_sample portable-dat in.dat
    python3 - "$HERE" <<'PY'
import subprocess, sys
sys.path.insert(0, sys.argv[1])
import containers as c
m, ts = c.read_dat("in.dat")
for t in ts:
    out = subprocess.run(["datcat", "--payload=" + t.name, "in.dat"],
                         check=True, stdout=subprocess.PIPE).stdout
    assert out == m[t.offset:t.offset + t.nbytes(True)], t.name
PY
}

@test "a .dat through a pipe is listed as from the file" {
    make_sample dat in.dat
    datcat in.dat >a
    [ "$(wc -l <a)" -gt 5 ]
    # shellcheck disable=SC2002  # the pipe is the point
    cat in.dat | datcat - >b
    diff a b
}

@test "the 4B file: 652 headers at their golden places, 3 GB of holes" {
    make_sample 4b 4b.dat
    [ "$(stat -c %s 4b.dat)" -eq 3040864449 ]
    datcat --raw-entries --ndjson 4b.dat >raw.json
    datcat --ndjson 4b.dat >pairs.json
    containers list 4b.dat >want.tsv
    python3 - <<'PY'
import json
raw = [json.loads(line) for line in open("raw.json")]
assert len(raw) == 652, len(raw)
at = {t["name"]: (t["offset"], t["nbytes"]) for t in raw}
L0 = "model.layers.0."
golden = {
    "model.embed_tokens.weight": (35, 777912320),
    L0 + "self_attn.q_proj.weight.qdata": (777912406, 5242880),
    L0 + "self_attn.q_proj.weight.scale": (783155337, 655360),
    L0 + "self_attn.k_proj.weight.qdata": (783810748, 1310720),
    L0 + "self_attn.o_proj.weight.qdata": (786760072, 5242880),
    L0 + "self_attn.q_norm.weight": (792658406, 256),
    L0 + "mlp.gate_proj.weight.qdata": (792659009, 12451840),
    L0 + "mlp.down_proj.weight.qdata": (820675837, 12451840),
    "model.norm.weight": (2822071433, 5120),
    "lm_head.weight.qdata": (2822076581, 194478080),
    "lm_head.weight.scale": (3016554689, 24309760),
}
for name, where in golden.items():
    assert at[name] == where, (name, at[name], where)
# Layer 1 begins at 834694538; its first header is 1 + 44 + 6 bytes.
assert at["model.layers.1.self_attn.q_proj.weight.qdata"][0] == 834694538 + 51
want = [line.rstrip("\n").split("\t") for line in open("want.tsv")]
got = [[t["name"], t["dtype"], "[%s]" % ",".join(map(str, t["shape"])),
        str(t["nbytes"]), str(t["offset"])] for t in raw]
assert got == want
pairs = [json.loads(line) for line in open("pairs.json")]
assert len(pairs) == 399, len(pairs)
q = next(t for t in pairs if t["name"] == L0 + "self_attn.q_proj.weight")
assert (q["dtype"], q["shape"], q["offset"], q["nbytes"], q["levels"]) == (
    "nvfp4", [4096, 2560], 777912406, 5242880 + 655360, 1), q
PY
}

# ---- the same bytes, whatever the surroundings ------------------------------

# The outputs of target $1 in directory $2, in the present surroundings.
outputs() {
    local opt=(-q -j "$JOBS")
    mkdir "$1"
    datpack "${opt[@]}" -o "$1/a.dat" "$IN/plain.dat"
    datpack "${opt[@]}" -o "$1/a.safetensors" "$IN/plain.dat"
    datpack "${opt[@]}" --to safetensors --shard-size 600 -o "$1/a/" \
        "$IN/plain.dat"
    datpack "${opt[@]}" --config "$IN/c/config.json" -o "$1/m.ckpt" \
        --quant none "$IN/model.dat"
    datpack "${opt[@]}" -o "$1/m.dat" "$1/m.ckpt"
    datpack "${opt[@]}" --dtype f32 -o "$1/m.safetensors" "$1/m.ckpt"
    datpack "${opt[@]}" --config "$IN/c/config.json" --init 7 -o "$1/i.dat"
    datpack "${opt[@]}" --config "$IN/c/config.json" --init 7 \
        -o "$1/i.safetensors"
    datpack "${opt[@]}" --config "$IN/c/config.json" --init 7 \
        --quant none -o "$1/i.ckpt"
    # What datcat prints is for people and programs of every locale.
    datcat --json --stats "$IN/model.dat" >"$1/stats.json"
    datcat --hash -j "$JOBS" "$IN/plain.dat" >"$1/hash"
    datcat "$IN/plain.dat" >"$1/list"
}

@test "the same bytes for any -j, directory, locale and umask" {
    IN=$BATS_TEST_TMPDIR/in JOBS=1
    mkdir "$IN" "$IN/c"
    make_sample portable-dat "$IN/plain.dat"
    make_sample tiny-dat "$IN/model.dat"
    make_sample config "$IN/c/config.json"
    outputs base
    containers read base/a.dat >/dev/null
    containers read base/i.ckpt >/dev/null
    [ -s base/stats.json ]
    [ -s base/hash ]
    [ -s base/list ]
    local j l
    for j in 2 8; do
        JOBS=$j outputs j$j
        diff -r base j$j
    done
    for l in C tr_TR.UTF-8 de_DE.UTF-8; do
        LC_ALL=$l LANG=$l outputs "$l"
        diff -r base "$l"
    done
    mkdir -p some/where/else
    (cd some/where/else && TZ=Asia/Tokyo HOME=/nowhere USER=someone outputs here)
    diff -r base some/where/else/here
    (umask 077 && outputs private)
    diff -r base private
    (umask 022 && outputs public)
    diff -r base public
    # Files and directories get the rights that the umask leaves.
    [ -z "$(find private -type f ! -perm 600)" ]
    [ -z "$(find private -type d ! -perm 700)" ]
    [ -z "$(find public -type f ! -perm 644)" ]
    [ -z "$(find public -type d ! -perm 755)" ]
}

@test "--init: another seed, other weights; a model that reads back" {
    make_sample config config.json
    pack --config config.json --init 1 -o a.dat
    pack --config config.json --init 1 -o b.dat
    pack --config config.json --init 2 -o c.dat
    cmp a.dat b.dat
    run -1 cmp -s a.dat c.dat
    make_sample tiny-dat t.dat
    # The same names, shapes and order as the model has.
    containers list t.dat | cut -f 1-4 >want
    containers list a.dat | cut -f 1-4 | diff want -
}
