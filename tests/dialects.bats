#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr_lines: set by run
# shellcheck disable=SC2086  # kinds are plain words
# NVFP4 in the containers of other programs, both ways: ModelOpt and
# compressed-tensors directories, GGUF.  nvmodel.py reads and writes them from
# the rules alone; tests/peers_nvfp4.py asks the other programs themselves.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    nvmodel make "$IN"
    reference quantize "$IN/bf16/m.dat" "$IN/sweep.dat"
    reference quantize --quant max "$IN/bf16/m.dat" "$IN/max.dat"
    reference quantize --quant sweep1 "$IN/bf16/m.dat" \
        "$IN/sweep1.dat"
    nvmodel foreign-all "$IN" "$IN/sweep.dat"
    cp "$IN/conf/config.json" "$IN"
}

pack() { quiet datpack -q "$@"; }
refuse_pack() { refuse "$1" datpack -q "${@:2}"; }

KINDS='modelopt compressed-tensors'

# ---- directories ------------------------------------------------------------

@test "a model to a directory: names, shapes, bytes, configuration" {
    local k q
    for k in $KINDS; do
        for q in sweep sweepfp8 4over6; do
            reference quantize --quant $q "$IN/bf16/m.dat" ref.dat
            pack --to $k --quant $q -f -o d/ "$IN/dir"
            nvmodel dialect $k d ref.dat
        done
        # sweep without being asked.
        pack --to $k -f -o d/ "$IN/dir"
        nvmodel dialect $k d "$IN/sweep.dat"
        pack --to $k --dtype nvfp4 -f -o d/ "$IN/dir"
        nvmodel dialect $k d "$IN/sweep.dat"
        # Shared scales are a must there, also for max, when it makes them anew.
        reference quantize --quant max --share-scale qkv,gate_up "$IN/bf16/m.dat" ref.dat
        pack --to $k --quant max --share-scale qkv,gate_up -f -o d/ "$IN/dir"
        nvmodel dialect $k d ref.dat
        reference quantize --quant max --variant modelopt --share-scale qkv,gate_up \
            "$IN/bf16/m.dat" ref.dat
        pack --to $k --quant max --variant modelopt --share-scale qkv,gate_up -f -o d/ \
            "$IN/dir"
        nvmodel dialect $k d ref.dat
    done
}

@test "one level to a directory: tensor scale 1" {
    local k
    for k in $KINDS; do
        pack --to $k --quant sweep1 -f -o d/ "$IN/dir"
        nvmodel dialect $k d "$IN/sweep1.dat" single
        # An NVFP4 file whose rest is bf16.
        pack --to $k -f -o d/ "$IN/sweep1.dat"
        nvmodel dialect $k d "$IN/sweep1.dat" single
    done
}

@test "one level through a directory: a checkpoint takes its quantizer" {
    local k q
    for q in torchao native sweep1; do
        nvquant -q --quant $q -f -o q.dat "$IN/dir"
        for k in $KINDS; do
            pack --to $k -f -o d/ q.dat
            run -0 --separate-stderr datpack -f -o q.ckpt d
            [[ $stderr == *"have one level of scales, so the forward pass quantizes by $q,"* ]]
            datcat --meta q.ckpt >meta
            grep -q "\"name\": *\"$q\"" meta
        done
    done
    # Two levels are two.
    nvquant -q -f -o q.dat "$IN/dir"
    pack --to modelopt -f -o d/ q.dat
    run -0 --separate-stderr datpack -f -o q.ckpt d
    [ -z "$stderr" ]
}

@test "one level: a checkpoint takes the recorded quantizer, if it is one that is known" {
    local options q
    nvquant -q --quant native -o q.dat "$IN/dir"
    for options in '{"quant":"native"}=native' '{"quant":"future"}=sweep1' '{"quant":5}=sweep1' \
        '{"quant":""}=sweep1' '{}=sweep1' '=sweep1'; do
        python3 - "${options%=*}" <<'PY'
import json, sys
with open("q.dat.json", encoding="utf-8") as f:
    d = json.load(f)
p = d["provenance"]
p.pop("options", None)
if sys.argv[1]:
    p["options"] = json.loads(sys.argv[1])
p["inputs"] = []
with open("q.dat.json", "w", encoding="utf-8") as f:
    json.dump(d, f)
PY
        q=${options##*=}
        run -0 --separate-stderr datpack -f -o q.ckpt q.dat
        [[ $stderr == *"so the forward pass quantizes by $q,"* ]] || { echo "$options: $stderr" && false; }
    done
}

@test "an untied head stays as it is, and is in ignore" {
    local k
    reference quantize "$IN/bf16/m.dat" ref.dat
    for k in $KINDS; do
        pack --to $k -f -o d/ "$IN/untied"
        nvmodel dialect $k d ref.dat untied
    done
}

@test "the files of tokenizer and generation go along; shards and index" {
    local k f
    for k in $KINDS; do
        pack --to $k -o $k/ "$IN/dir"
        for f in tokenizer.json tokenizer_config.json generation_config.json; do
            cmp $k/$f "$IN/dir/$f"
        done
        pack --to $k --shard-size 8K -o $k.shards/ "$IN/dir"
        [ -e $k.shards/model.safetensors.index.json ]
        nvmodel dialect $k $k.shards "$IN/sweep.dat"
    done
}

@test "the same directory for any -j" {
    local k j
    for k in $KINDS; do
        pack -j 1 --to $k -f -o a/ "$IN/dir"
        for j in 2 3 8; do
            pack -j $j --to $k -f -o b/ "$IN/dir"
            diff -r a b
        done
    done
}

@test "the configuration is kept but for what says how it is quantized" {
    python3 - "$IN" <<'PY'
import json, os, sys, nvmodel, shutil
shutil.copytree(sys.argv[1] + "/dir", "src")
o = json.load(open("src/config.json"))
o["quantization_config"] = {"quant_method": "awq", "bits": 4}
o["eos_token_id"] = [2, 1, 40]
json.dump(o, open("src/config.json", "w"))
PY
    local k
    for k in $KINDS; do
        datpack -q --to $k -o $k/ src || continue # refused is as good
        python3 - $k <<'PY'
import json, sys
o = json.load(open(sys.argv[1] + "/config.json"))
assert o["eos_token_id"] == [2, 1, 40] and o["x_unknown_field"] == "é"
assert o["quantization_config"]["quant_method"] == sys.argv[1]
PY
    done
    # The way back to a plain model: no word of quantization is left.
    pack --to modelopt -f -o d/ "$IN/dir"
    pack --dtype bf16 -o plain/ d
    run ! grep -q quantization_config plain/config.json
    [ ! -e plain/hf_quant_config.json ]
    pack --to compressed-tensors -o e/ d
    [ ! -e e/hf_quant_config.json ]
}

@test "more patterns than can be matched are refused with their number" {
    pack --to compressed-tensors -o d/ "$IN/dir"
    python3 - <<'PY'
import json, struct
with open("d/model.safetensors", "rb") as f:
    n, = struct.unpack("<Q", f.read(8))
    head, data = json.loads(f.read(n)), f.read()
for i in range(60): # small tensors behind the others
    head["extra.%d" % i] = {"dtype": "F32", "shape": [1],
                            "data_offsets": [len(data), len(data) + 4]}
    data += bytes(4)
head = json.dumps(head).encode()
with open("d/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + data)
o = json.load(open("d/config.json"))
q = o["quantization_config"]
q["ignore"] = ["model.layers.%d.x" % i for i in range(65000)]
q["config_groups"]["group_0"]["targets"] = ["y"] * 5000
json.dump(o, open("d/config.json", "w"))
PY
    refuse_pack "d: quantization_config: 70000 patterns for $(($(datcat --names "$IN/dir" | wc -l) + 60)) tensors" -o x.dat d
}

@test "a tensor scale without a reciprocal is refused by its name" {
    cp -r "$IN/dir" d
    python3 - <<'PY'
import json, struct
name = "model.layers.0.mlp.down_proj.weight"
with open("d/model.safetensors", "r+b") as f:
    n, = struct.unpack("<Q", f.read(8))
    a, b = json.loads(f.read(n))[name]["data_offsets"]
    f.seek(8 + n + a)
    f.write(b"\x80\x00" * ((b - a) // 2)) # the least normal number
PY
    refuse_pack 'd: "model.layers.0.mlp.down_proj.weight_global_scale": the tensor scale would be inf' \
        --to compressed-tensors -o x/ d
    pack --to modelopt -o y/ d
}

@test "no configuration, no directory" {
    local k
    cp "$IN/plain.safetensors" .
    for k in $KINDS; do
        refuse_pack config --to $k -o x/ plain.safetensors
        pack --to $k --config "$IN/conf/config.json" -o $k/ plain.safetensors
        nvmodel dialect $k $k "$IN/sweep.dat"
    done
}

@test "a checkpoint to a directory: its own quantizer, if that shares its scales" {
    local k
    pack --config "$IN/conf/config.json" --quant 4over6 -o m.ckpt "$IN/dir"
    pack --config "$IN/conf/config.json" --quant max -o max.ckpt "$IN/dir"
    reference quantize --quant 4over6 "$IN/bf16/m.dat" ref.dat
    for k in $KINDS; do
        pack --to $k -f -o d/ m.ckpt
        nvmodel dialect $k d ref.dat
        refuse_pack scale --to $k -o x/ max.ckpt
    done
}

@test "unshared scales are refused unless anew is asked for" {
    local k
    for k in $KINDS; do
        refuse_pack scale --to $k -o x/ "$IN/max.dat"
        run -0 --separate-stderr datpack --to $k --quant max --share-scale qkv,gate_up \
            -o $k/ "$IN/max.dat"
        # It is said that they were quantized again.
        [ -n "$stderr" ]
    done
}

# ---- there and back ---------------------------------------------------------

@test "from dialect to dialect and back: codes and scales bit for bit" {
    local k other
    for k in $KINDS; do
        other=${KINDS/$k/}
        other=${other// /}
        pack --to $k -f -o a/ "$IN/sweep.dat"
        nvmodel dialect $k a "$IN/sweep.dat"
        pack --to "$other" -f -o b/ a
        pack --to $k -f -o c/ b
        pack -x lm_head.weight --tie -f -o a.dat a
        pack -x lm_head.weight --tie -f -o b.dat b
        pack -x lm_head.weight --tie -f -o c.dat c
        nvmodel same a.dat b.dat
        nvmodel same a.dat c.dat
    done
}

@test "a partly quantized W4A4 model with a quantized head is carried over as it is" {
    local k other
    for k in $KINDS; do
        other=${KINDS/$k/}
        other=${other// /}
        nvmodel partly $k src.$k "$IN/sweep.dat"
        pack --to $k -o same.$k/ src.$k
        nvmodel unchanged src.$k same.$k
        # Every scale finds back, multiplier or divisor.
        pack --to "$other" -o there.$k/ src.$k
        pack --to $k -o back.$k/ there.$k
        nvmodel unchanged src.$k back.$k
        # And both are read again: the head is still there.
        run -0 datcat -l there.$k
        [[ $output == *lm_head.weight* ]]
    done
}

@test "plain projections beside NVFP4 are quantized when that is asked for" {
    local k
    for k in $KINDS; do
        nvmodel partly $k src.$k "$IN/sweep.dat"
        run -0 --separate-stderr datpack --to $k --dtype nvfp4 -o all.$k/ src.$k
        # Some have no activation scale now, so none is kept, which is said.
        [[ $stderr == *"activation scales"*"weight-only"* ]]
        run -0 datcat -l all.$k
        [[ $output == *lm_head.weight* && $output != *input_scale* && $output != *input_global* ]]
        run ! grep -q '"lm_head"\|o_proj"' all.$k/config.json
        run -0 datcat --ndjson -s '*.o_proj.weight' all.$k
        [ "$(grep -c '"dtype":"nvfp4"' <<<"$output")" -eq 2 ]
    done
}

@test "activation scales: dropping them is said, a bad one is refused" {
    local k
    for k in $KINDS; do
        run -0 --separate-stderr datpack --tie -o $k.dat "$IN/$k.w4a4"
        [[ $stderr == *"14 activation scales"*"left out"* ]]
        run -0 --separate-stderr datpack --dtype bf16 -o $k.safetensors "$IN/$k.w4a4"
        [[ $stderr == *"14 activation scales"*"left out"* ]]
        run -0 --separate-stderr datpack --tie -o none.$k.dat "$IN/$k.none"
        [[ $stderr != *"activation scales"* ]]
        python3 - "$IN" $k <<'PY'
import sys, nvmodel, containers as c
there, kind = sys.argv[1:]
o = nvmodel.Foreign(kind, there + "/sweep.dat")
nvmodel.w4a4(o)
name = [n for n in o.t if ".input_" in n][3]
o.put(name, "f32", o.t[name].shape, nvmodel.f32(-1.0))
o.write("bad." + kind)
PY
        refuse_pack "activation * scale" --to $k -o x/ bad.$k
    done
}

@test "another writer's directory: multiplier and divisor, codes and scales as they are" {
    local k
    for k in $KINDS; do
        # The head of a .dat is made anew from the embedding, unless not wanted.
        run -0 --separate-stderr datpack -q --tie -o $k.dat "$IN/$k.none"
        python3 - "$IN" $k <<'PY'
import struct, sys, nvfp4, nvmodel, containers as c
there, kind = sys.argv[1:]
got = {t.name: (t.dtype, list(t.shape), t.data) for t in nvfp4.read_tensors(kind + ".dat")}
src = {t.name: t for t in nvfp4.read_tensors("%s/%s.none" % (there, kind))}
packed, scale, tensor = nvmodel.PARTS[kind]
n = 0
for name, t in src.items():
    x = name[:-len(packed)]
    if t.dtype == "u8":
        assert got[x + ".weight.qdata"] == ("u8", list(t.shape), t.data), x
        s = src[x + scale]
        assert got[x + ".weight.scale"] == ("f8_e4m3", list(s.shape), s.data), x
        v = struct.unpack("<f", src[x + tensor].data)[0]
        if kind != "modelopt":
            v = nvfp4.div(1.0, v)
        assert got[x + ".weight.scale2"] == ("f32", [1], struct.pack("<f", v)), x
        n += 1
assert n == 14 and len(got) == 3 * 14 + 10, (n, len(got))
PY
    done
}

@test "directories of other writers that are read" {
    local k c
    for k in $KINDS; do
        for c in none w4a4 patterns; do
            run -0 datpack -q --dtype f32 -o $k.$c.safetensors "$IN/$k.$c"
            run -0 datpack -q --tie -o $k.$c.dat "$IN/$k.$c"
            # Nothing of the activations is left.
            run ! grep -q 'input_scale\|input_global' $k.$c.dat
        done
        cmp $k.w4a4.dat $k.none.dat
    done
    # Scales of the key and value cache are dropped, which is said.
    run -0 --separate-stderr datpack --tie -o kv.dat "$IN/modelopt.kv"
    [[ $stderr == *k_scale* ]]
    cmp kv.dat modelopt.none.dat
}

@test "directories of other writers that are refused" {
    local k change words n=0
    nvmodel changes >list
    for k in $KINDS; do
        while read -r change words; do
            [ -n "$words" ] || continue
            echo "$k.$change"
            refuse_pack "$words" --dtype f32 -o x.safetensors "$IN/$k.$change"
            n=$((n + 1))
        done <list
        refuse -1 'q_proj.bias" belongs to a quantized module, but its meaning is unknown' datcat --verify "$IN/$k.bias"
    done
    [ "$n" -eq 40 ]
}

@test "multiplier and divisor mixed up: a warning names the tensor" {
    local k
    for k in $KINDS; do
        cp -r "$IN/$k.none" $k
        python3 - $k <<'PY'
import struct, sys, containers as c, nvfp4, nvmodel
kind = sys.argv[1]
ts = nvfp4.read_tensors(kind)
for t in ts:
    if t.name == nvmodel.FIRST + nvmodel.PARTS[kind][2]:
        t.data = struct.pack("<f", nvfp4.div(1.0, struct.unpack("<f", t.data)[0]))
c.put(kind + "/model.safetensors", c.st_bytes(ts, {"format": "pt"}))
PY
        run -0 --separate-stderr datpack --tie -o $k.dat $k
        [[ $stderr == *q_proj* ]]
    done
}

# ---- GGUF -------------------------------------------------------------------

gguf_or_skip() {
    datpack --help | has gguf || skip "datpack does not write GGUF yet"
}

@test "GGUF: every tensor and key, as an independent reader finds them" {
    gguf_or_skip
    local q
    for q in sweep sweepfp8 4over6 sweep1; do
        reference quantize --quant $q "$IN/gguf/model.safetensors" ref.dat
        pack --quant $q -f -o m.gguf "$IN/gguf"
        nvmodel gguf m.gguf ref.dat
    done
    pack -f -o m.gguf "$IN/gguf"
    reference quantize "$IN/gguf/model.safetensors" ref.dat
    nvmodel gguf m.gguf ref.dat
    pack -j 1 --to gguf -o other "$IN/gguf"
    cmp other m.gguf
    # What stands in it is listed and verified.
    run -0 datcat --meta m.gguf
    [[ $output == *'"general.tensor_extra.name":{"items":7,"of":"string"}'* ]]
    [[ $output == *'"general.tensor_extra.prec_a4":{"items":7,"of":"bool"}'* ]]
    run -0 datcat -q m.gguf
    run -0 datcat -q --verify m.gguf
    run -0 datcat -q --map m.gguf
}

@test "GGUF and back: codes and scales bit for bit" {
    gguf_or_skip
    pack -o m.gguf "$IN/gguf"
    pack --tie -o a.dat m.gguf
    reference quantize "$IN/gguf/model.safetensors" ref.dat
    nvmodel same a.dat ref.dat pairs zeros
    # By the other dialects, and a second generation.
    local k
    cp "$IN/gguf/tokenizer.json" .
    for k in $KINDS; do
        pack --to $k -o $k/ m.gguf
        pack --tie -o $k.dat $k
        nvmodel same $k.dat a.dat pairs zeros
    done
    pack -o n.gguf m.gguf
    nvmodel gguf n.gguf ref.dat
}

@test "GGUF: activation scales and a quantized head go along" {
    gguf_or_skip
    pack --to modelopt -o m/ "$IN/gguf"
    python3 - <<'PY'
import json, nvfp4, nvmodel, containers as c
ts = nvfp4.read_tensors("m")
done = [t.name[:-7] for t in ts if t.dtype == "u8"]
ts += [c.Tensor(x + ".input_scale", "f32", (), nvmodel.f32(.25 + i))
       for i, x in enumerate(done)]
head = {t.name: t for t in ts}
for a in ".weight", ".weight_scale", ".weight_scale_2", ".input_scale":
    up = head["model.layers.0.mlp.up_proj" + a]     # [128, 64], so 25 of it
    k = 1 if "_2" in a or "input" in a else 25
    shape = (3200, *up.shape[1:]) if k > 1 else up.shape
    ts.append(c.Tensor("lm_head" + a, up.dtype, shape, up.data * k))
c.put("m/model.safetensors", c.st_bytes(sorted(ts, key=lambda t: t.name),
                                        {"format": "pt"}))
o = json.load(open("m/config.json"))
o["tie_word_embeddings"] = False
q = o["quantization_config"]
q["quant_algo"], q["ignore"] = "NVFP4", []
q["config_groups"]["group_0"]["input_activations"] = q["config_groups"]["group_0"]["weights"]
json.dump(o, open("m/config.json", "w"))
h = json.load(open("m/hf_quant_config.json"))
h["quantization"].update(quant_algo="NVFP4", exclude_modules=[])
json.dump(h, open("m/hf_quant_config.json", "w"))
PY
    cp "$IN/gguf/tokenizer.json" m
    pack -o m.gguf m
    python3 - <<'PY'
import nvmodel, nvfp4
g = nvmodel.Gguf("m.gguf")
assert not [k for k in g.kv if "tensor_extra" in k], "weight-only, it says"
g = g.tensors
m = {t.name: t for t in nvfp4.read_tensors("m")}
assert g["output.weight"][0] == "nvfp4"
for ours, theirs in (("lm_head", "output"), ("model.layers.0.self_attn.k_proj",
                                             "blk.0.attn_k")):
    assert g[theirs + ".input_scale"] == ("f32", [1], m[ours + ".input_scale"].data)
    assert g[theirs + ".scale"] == ("f32", [1], m[ours + ".weight_scale_2"].data)
PY
    cp "$IN/gguf/tokenizer.json" .
    pack --to modelopt -o back/ m.gguf
    nvmodel unchanged m back
}

@test "GGUF: rows that are no multiple of 64, no tokenizer, unshared scales" {
    gguf_or_skip
    cp -r "$IN/dir" narrow
    cp "$IN/gguf/tokenizer.json" narrow
    refuse_pack 64 -o x.gguf narrow
    cp -r "$IN/gguf" bare
    rm bare/tokenizer.json
    refuse_pack tokenizer.json -o x.gguf bare
    reference quantize --quant max "$IN/gguf/model.safetensors" max.dat
    cp "$IN/gguf/config.json" "$IN/gguf/tokenizer.json" .
    refuse_pack scale -o x.gguf max.dat
}
