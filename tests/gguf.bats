#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# GGUF: what datcat says of files that an independent writer made (gguf_file.py).
# Bad files of this kind are in bad.bats.
# shellcheck disable=SC2030,SC2031,SC2154  # output, stderr, lines: set by run

# bats file_tags=gguf
load common

gguf() {
    python3 "$HERE/gguf_file.py" "$@"
}

runbad() {
    python3 "$HERE/runbad.py" "$@"
}

# poke FILE OFFSET BYTES: set, as printf spells them.
poke() {
    printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# offset FILE ENTRY: of its payload.
offset() {
    datcat -q --raw-entries --tsv "$1" | awk -F '\t' -v n="$2" '$1 == n { print $4 }'
}

@test "the Python side agrees with itself" {
    gguf self-test
}

@test "every type of tensor and value, names that hurt: as the independent reader says" {
    gguf make gguf x.gguf
    gguf read x.gguf >want
    datcat --raw-entries --tsv x.gguf | tail -n +2 |
        awk -F '\t' -v OFS='\t' '{ print $1, $2, $3, $5 }' >found
    cut -f 1-4 want | diff - found
    datcat --hash=sha256 x.gguf | awk '{ print $1 }' | head -n -1 >found
    cut -f 5 want | diff - found
    cp x.gguf y # known by its first bytes
    [ "$(datcat --json y | python3 -c 'import json, sys
d = json.load(sys.stdin)
print(d["container"], d["config"])')" = "gguf None" ]
    [ "$(datcat --hash=sha256 x.gguf | tail -n 1)" = "$(sha256sum <x.gguf | cut -c -64)  *" ]
}

@test "key-value pairs are in --meta, arrays and long strings by their length" {
    gguf make gguf x.gguf
    datcat -q --meta x.gguf >meta.json
    python3 - <<'END'
import json
d = json.load(open("meta.json"))["meta"]
v = {k.split(".")[0]: x for k, x in d.items()}
assert [v["k%d" % i] for i in range(6)] == [
    200, -100, 60000, -30000, 4000000000, -2000000000], v
assert v["k6"] == 0.1 and v["k7"] is True and v["k8"] == "é\n\"\x1b", v
assert v["k9"] == 2**64 - 1 and v["k10"] == -2**63 and v["k11"] == 1e-300, v
assert v["k12"] == "" and v["k13"] == "NaN" and v["k14"] == "-Infinity", v
assert v["k15"] == {"bytes": 70000, "of": "string"}, v
assert v["k16"] == {"items": 3, "of": "string"}, v
assert v["k18"] == {"items": 50, "of": "i32"}, v
assert v["k19"] == {"items": 2, "of": "array"}, v
END
}

@test "--map accounts for every byte" {
    for kind in gguf small-gguf nvfp4-gguf; do
        gguf make $kind x.gguf
        datcat -q --map x.gguf >map
        awk -F '\t' -v size="$(stat -c %s x.gguf)" '
            NR > 1 { if ($1 != at) exit 1; at += $2 }
            END { exit at != size }' map
        for what in header "key-value pairs" "tensor infos" padding payload; do
            grep -q "	$what	" map
        done
    done
    # What is not there has no row.
    { printf 'GGUF\3\0\0\0' && head -c 24 /dev/zero; } >x.gguf
    run -0 datcat -q --map x.gguf
    [ "$(cut -f 1-3 <<<"${output#*$'\n'}")" = $'0\t24\theader\n24\t8\tpadding' ]
}

@test "what is wrong with a GGUF is said, and at which byte" {
    python3 - "$HERE" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c, gguf_file as g
nested = (g.U8, [1])
for n in range(5):
    if n == 3:
        c.put("four.gguf", g.gguf_bytes([g.pair("k", g.ARRAY, nested)], []))
    if n == 4:
        c.put("five.gguf", g.gguf_bytes([g.pair("k", g.ARRAY, nested)], []))
    nested = (g.ARRAY, [nested])
head = g.gguf_bytes([], [])[:24]
c.put("many.gguf", head[:8] + bytes([9]) + head[9:] + bytes(100))
END
    run -0 datcat --meta four.gguf
    # A head, a key and its type; four times a type and a length.
    refuse "five.gguf: byte $((24 + 13 + 4 * 12)): arrays nested deeper than 4" datcat five.gguf
    refuse 'many.gguf: byte 8: 9 tensors announced, 100 bytes follow' datcat many.gguf
}

@test "NVFP4 tensors are one each, under the names that they have everywhere" {
    gguf make nvfp4-gguf x.gguf
    gguf make nvfp4-dat x.dat
    datcat x.gguf | cut -f 1-3 | grep -v ^total >a
    datcat x.dat | cut -f 1-3 | grep -v ^total >b
    diff a b
    [ "$(grep -c nvfp4 a)" -eq 14 ]
    datcat --stats x.gguf | cut -f 1-3,5- | grep -v ^total >a
    datcat --stats x.dat | cut -f 1-3,5- | grep -v ^total >b
    diff a b
    run -0 datcat --raw-entries -l x.gguf
    [ "${lines[0]}" = token_embd.weight ]
    [ "${lines[1]}" = blk.0.attn_q.weight ]
    [ "${lines[2]}" = blk.0.attn_q.scale ]
    [ "$(datcat --ndjson -s '*.0.*q_proj*' x.gguf | grep -o '"levels":[0-9]')" = '"levels":2' ]
    for j in 1 3; do
        datcat -j $j --values model.layers.1.mlp.down_proj.weight x.gguf >a
        datcat -j $j --values model.layers.1.mlp.down_proj.weight x.dat >b
        cmp a b
    done
}

@test "--diff with a .dat of the same numbers: none; of others: the tensor" {
    gguf make nvfp4-gguf x.gguf
    gguf make nvfp4-dat x.dat
    run -0 datcat --diff x.gguf x.dat
    [ -z "$output" ]
    run -0 datcat --diff x.dat x.gguf
    run -0 datcat --diff --atol 0 --rtol 0 x.gguf x.dat
    run -0 datcat --diff x.gguf x.gguf
    local at
    at=$(offset x.gguf blk.1.ffn_down.weight)
    for byte in 0 3 4 35 36 200; do # scales and codes
        cp x.gguf y.gguf
        poke y.gguf $((at + byte)) '\x01'
        run -1 --separate-stderr datcat --diff y.gguf x.dat
        [ "${#lines[@]}" -eq 2 ]
        [[ ${lines[1]} == model.layers.1.mlp.down_proj.weight* ]]
        run -1 datcat --diff y.gguf x.gguf
    done
    cp x.gguf y.gguf
    poke y.gguf "$(offset x.gguf blk.1.ffn_down.scale)" '\x01'
    run -1 datcat --diff y.gguf x.dat
    [[ ${lines[1]} == model.layers.1.mlp.down_proj.weight* ]]
}

@test "a scale with a sign or NaN is damage, with its place" {
    gguf make nvfp4-gguf x.gguf
    local at byte
    at=$(offset x.gguf blk.0.ffn_up.weight)
    for byte in '\x7f' '\x80' '\xff'; do
        cp x.gguf y.gguf
        poke y.gguf $((at + 36 * 2 + 1)) "$byte" # row 2: a row is one block of four
        run -1 --separate-stderr datcat --verify y.gguf
        [[ $stderr == *"byte $((at + 73)): scale of \"model.layers.0.mlp.up_proj.weight\", row 2, column 1:"* ]]
        run -2 datcat --stats y.gguf
        run -2 datcat --diff --atol 1 --rtol 1 y.gguf x.gguf
        run -0 datcat --raw-entries y.gguf
        run -0 datcat --verify=quick y.gguf
    done
    run -0 datcat -q --verify x.gguf
    [ -z "$output" ]
}

@test "a scale of the tensor that is none" {
    gguf make nvfp4-gguf x.gguf
    local at value
    at=$(offset x.gguf blk.0.ffn_up.scale)
    for value in '\0\0\0\0' '\0\0\x80\x7f' '\0\0\xc0\x7f' '\0\0\x80\xbf'; do
        cp x.gguf y.gguf
        poke y.gguf "$at" "$value"
        run -1 datcat --verify y.gguf
        [[ $output == *"byte $at: tensor scale of"* ]]
    done
}

@test "the keys are a configuration, as config.json would say it" {
    gguf make nvfp4-gguf x.gguf
    gguf make config want.json
    datcat --meta x.gguf >meta.json
    python3 - <<'END'
import json
found = json.load(open("meta.json"))["config"]
want = json.load(open("want.json"))
want["eos_token_id"] = want["eos_token_id"][0]
for k in ("attention_dropout", "sliding_window", "use_sliding_window",
          "x_unknown_field"):
    del want[k]
assert found == want, (found, want)
END
    gguf make untied-gguf y.gguf
    datcat --meta y.gguf | has '"tie_word_embeddings": false'
}

@test "rope scaling of the keys is in the configuration, and refused by what does not know it" {
    python3 - "$HERE" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c, gguf_file as g
for kind in "none", "yarn":
    c.put(kind + ".gguf", g.gguf_bytes(g.model_pairs(g.MODEL, [
        g.pair("qwen3.rope.scaling.type", g.STRING, kind)]), [
        (g.their_name(n), 30, s, bytes(2 * c.numel(s))) for n, s in c.model_table(g.MODEL)]))
END
    datcat --meta none.gguf | has '"rope_scaling": null,'
    datcat --meta yarn.gguf | has '"rope_scaling": {"rope_type": "yarn"},'
    refuse rope_scaling generate --ids -p 1 -n 1 yarn.gguf
}

@test "a configuration and a provenance of ours are kept, if the keys agree" {
    python3 - "$HERE" <<'END'
import json, sys
sys.path.insert(0, sys.argv[1])
import containers as c, gguf_file as g
embed = ("token_embd.weight", 30, (320, 64), bytes(320 * 128))
def make(name, config, more=()):
    o = {"format": "nibble-1", "config": config, "provenance": {"tool": "t"}}
    c.put(name, g.gguf_bytes(g.model_pairs(g.MODEL, [g.pair(
        "nibble.provenance", g.STRING, json.dumps(o))]), [embed]))
make("same.gguf", g.MODEL)
make("newer.gguf", dict({k: v for k, v in g.MODEL.items() if k != "rope_theta"},
                        rope_parameters={"rope_type": "default", "rope_theta": 5e6}))
make("size.gguf", dict(g.MODEL, hidden_size=65))
make("vocab.gguf", dict(g.MODEL, vocab_size=319))
make("theta.gguf", dict(g.MODEL, rope_theta=10000))
make("inner.gguf", dict({k: v for k, v in g.MODEL.items() if k != "rope_theta"},
                        rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
c.put("other.gguf", g.gguf_bytes(g.model_pairs(g.MODEL, [g.pair(
    "nibble.provenance", g.STRING, "{}")]), [embed]))
END
    for f in same newer; do
        run -0 --separate-stderr datcat --meta $f.gguf
        [ -z "$stderr" ]
        [[ $output == *'"x_unknown_field"'* && $output == *'"tool": "t"'* ]]
        [[ $output != *nibble* ]]
    done
    for f in size:hidden_size vocab:vocab_size theta:rope_theta inner:rope_theta; do
        run -0 --separate-stderr datcat --meta ${f%:*}.gguf
        [[ $stderr == *"${f#*:} of the configuration"* ]]
        [[ $output != *'"x_unknown_field"'* && $output == *'"tool": "t"'* ]]
        [[ $output == *'"rope_theta": 5000000'* && $output == *'"hidden_size": 64'* ]]
    done
    run -0 --separate-stderr datcat --meta other.gguf
    [[ $stderr == *"was not written by nibble"* ]]
    [[ $output == *'"hidden_size": 64'* ]]
}

@test "an NVFP4 tensor of a short name, under a configuration that claims modules" {
    PYTHONPATH=$HERE python3 -c '
import json
import gguf_file as g
claims = dict(g.MODEL, quantization_config={"quant_method": "modelopt"})
ours = {"format": "nibble-1", "config": claims, "provenance": None}
g.c.put("x.gguf", g.gguf_bytes([g.pair("nibble.provenance", g.STRING, json.dumps(ours))],
                               [("n", 40, (2, 64), bytes(72))]))'
    datpack -q -o x.dat x.gguf
    [ "$(datcat -q --raw-entries -l x.dat)" = "$(printf 'n.qdata\nn.scale')" ]
}

@test "names stay what they are in a file of another architecture" {
    python3 - "$HERE" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c, gguf_file as g
t = [("blk.0.attn_q.weight", 0, (2, 2), bytes(16)),
     ("blk.00.attn_q.weight", 0, (1,), bytes(4)),
     ("rope_freqs.weight", 0, (1,), bytes(4))]
c.put("llama.gguf", g.gguf_bytes([g.pair("general.architecture", g.STRING, "llama")], t))
c.put("none.gguf", g.gguf_bytes([], t))
c.put("both.gguf", g.gguf_bytes([], t + [
    ("model.layers.0.self_attn.q_proj.weight", 0, (1,), bytes(4))]))
END
    run -0 datcat -l llama.gguf
    [ "${lines[0]}" = blk.0.attn_q.weight ]
    run -0 datcat -l none.gguf
    [ "${lines[0]}" = model.layers.0.self_attn.q_proj.weight ]
    [ "${lines[1]}" = blk.00.attn_q.weight ]
    [ "${lines[2]}" = rope_freqs.weight ]
    run -0 datcat -l both.gguf
    [ "${lines[0]}" = blk.0.attn_q.weight ]
    [ "${lines[3]}" = model.layers.0.self_attn.q_proj.weight ]
}

@test "--strict looks at the padding, too" {
    gguf make nvfp4-gguf x.gguf
    run -0 datcat --strict -l x.gguf
    local at
    at=$(datcat --map x.gguf | awk -F '\t' '$3 == "padding" && !n++ { print $1 }')
    poke x.gguf $((at + 1)) '\x05'
    run -0 --separate-stderr datcat -l x.gguf
    [ -z "$stderr" ]
    run -2 datcat --strict -l x.gguf
    [[ $output == *"byte $((at + 1)): padding of 0x05"* ]]
}

# A directory m with a bf16 model of one shape and the small tokenizer.
make_model() {
    gguf make vocab-config config.json
    datpack -q --init 3 --config config.json --to safetensors -o m/
    cp "$HERE/vectors/tokenizer-small.json" m/tokenizer.json
}

# What --diff says: the norms, which are f32 in a GGUF, and nothing more.
differ_in_norms() {
    local line
    run -1 --separate-stderr datcat --diff "$@"
    for line in "${lines[@]:1}"; do
        [[ $line == *norm*.weight$'\t'dtype$'\t'*$'\t'0$'\t'0$'\t'0$'\t'1 ]] || return
    done
}

@test "a model becomes a GGUF: all that readers ask for, the quantizer's numbers" {
    make_model
    run -0 --separate-stderr datpack -o q.gguf m/
    [[ $stderr == *"14 tensors by sweep"* ]]
    gguf check q.gguf m/config.json m/tokenizer.json
    datcat -q --strict --verify q.gguf
    nvquant -q -o q.safetensors m/
    differ_in_norms q.safetensors q.gguf
    for j in 1 3; do
        datpack -q -j $j -f -o j.gguf m/
        cmp q.gguf j.gguf
    done
    run -0 datcat --meta q.gguf
    [[ $output == *'"tool":"datpack"'* && $output == *'"quant":"sweep"'* ]]
    datpack -q --to gguf -o - m/ >pipe.gguf # its provenance is known before
    cmp q.gguf pipe.gguf
}

@test "codes and scales are kept on every way through a GGUF" {
    make_model
    datpack -q -o q.gguf m/
    datpack -q -o same.gguf -t m/tokenizer.json q.gguf
    run -0 datcat --diff q.gguf same.gguf
    datpack -q --to modelopt -o mo/ q.gguf
    differ_in_norms mo q.gguf
    datpack -q --to compressed-tensors -o ct/ q.gguf
    cp m/tokenizer.json ct
    datpack -q -o ct.gguf ct/
    # The tensor scale is inverted twice, and may be 1 ulp off.
    run -0 datcat --diff --atol 0 --rtol 3e-7 ct.gguf q.gguf
    datpack -q -o q.safetensors q.gguf
    run -0 datcat --diff q.safetensors q.gguf
    datpack -q -o q.dat --dtype keep --tie q.gguf
    run -0 datcat --diff -s '*_proj*' q.dat q.gguf
    # One level of scales: the tensor scale is 1, and nothing else changes.
    nvquant -q --quant torchao -o one.safetensors m/
    cp m/tokenizer.json .
    datpack -q --config m/config.json -o one.gguf one.safetensors
    [ "$(datcat --raw-entries --values blk.0.attn_q.scale one.gguf)" = 1 ]
    differ_in_norms one.safetensors one.gguf
}

@test "a block of zeros has codes 0 in a GGUF" {
    python3 - "$HERE" <<'END'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c, gguf_file as g
out = []
for name, shape, a, scales, scale2 in g.model_planes(1):
    if scales is None:
        out.append(c.Tensor(name, "f32", shape, a))
        continue
    rows, cols = shape
    scales = bytes(len(scales)) if "up_proj" in name else scales
    out += [c.Tensor(name + ".qdata", "u8", (rows, cols // 2), a),
            c.Tensor(name + ".scale", "f8_e4m3", (rows, cols // 16), scales)]
c.put("x.dat", c.dat_bytes(out))
END
    gguf make config config.json
    sed -i 's/"vocab_size": 320/"vocab_size": 3104/' config.json
    run -2 datpack -o x.gguf -t "$HERE/vectors/tokenizer-small.json" x.dat
    [[ $output == *"model.embed_tokens.weight"* ]] # it has 320 rows
    sed -i 's/"vocab_size": 3104/"vocab_size": 320/' config.json
    python3 - "$HERE/vectors/tokenizer-small.json" <<'END'
import json, sys
t = json.load(open(sys.argv[1]))
m = t["model"]
m["vocab"] = {k: v for k, v in m["vocab"].items() if v < 256}
m["merges"] = []
for i, a in enumerate(t["added_tokens"]):
    a["id"] = 256 + i
json.dump(t, open("tokenizer.json", "w"))
END
    datpack -q -o x.gguf x.dat
    gguf check x.gguf config.json tokenizer.json
    [ "$(datcat --raw-entries --payload blk.0.ffn_up.weight x.gguf | tr -d '\0' | wc -c)" -eq 0 ]
    run -1 datcat --diff x.dat x.gguf
    [ "$(grep -c up_proj <<<"$output")" -eq 2 ]
    run -0 datcat --diff --atol 0 --rtol 0 x.dat x.gguf # 0 times a code is 0
}

@test "what a GGUF cannot be made of is refused, and said" {
    make_model
    rm m/tokenizer.json
    run -2 datpack -o x.gguf m/
    [[ $output == *"looked for m/tokenizer.json; -t FILE names one"* ]]
    run -2 datpack -o x.gguf -t absent.json m/
    [[ $output == *absent.json* ]]
    run -2 datpack -o x.gguf -t m/config.json m/
    [[ $output == *"m/config.json: is a file that belongs to a model: expected a tokenizer.json"* ]]
    cp "$HERE/vectors/tokenizer-small.json" m/tokenizer.json
    run -2 datpack -o x.dat -t m/tokenizer.json m/
    [[ $output == *--tokenizer* ]]
    run -2 datpack -o x.gguf -t m/config.json m/
    [[ $output == *'--tokenizer: expected the tokenizer.json of a Qwen model'* ]]
    cp m/tokenizer.json own.gguf # it is read, so it is not replaced
    run -2 datpack -f -o own.gguf -t own.gguf m/
    [[ $output == *"is an input, too"* ]]
    cmp own.gguf m/tokenizer.json
    run -2 datpack --dtype f16 -o x.gguf m/
    # Rows that are no whole blocks of 64.
    sed 's/"intermediate_size": 128/"intermediate_size": 160/' m/config.json >160.json
    run -2 datpack --init 1 --config 160.json -t m/tokenizer.json -o x.gguf
    [[ $output == *down_proj* && $output == *64* ]]
    # Scales of their own for what is fused.
    gguf make nvfp4-gguf own.gguf
    run -2 datpack -t m/tokenizer.json -o x.gguf own.gguf
    [[ $output == *share-scale* ]]
    # Types that only ggml decodes.
    gguf make gguf every.gguf
    run -2 datpack -o x.dat every.gguf
    [ ! -e x.gguf ]
    [ ! -e x.dat ]
}

# bats test_tags=native
@test "a model and its tokenizer as the keys of a GGUF" {
    local write=${NIBBLE_BUILD:-$BUILD}/unit/gguf
    cp "$HERE/vectors/tokenizer-small.json" tokenizer.json
    gguf make vocab-config config.json
    run -0 "$write" out.gguf config.json tokenizer.json
    [ -z "$output" ]
    gguf check out.gguf config.json tokenizer.json
    run -0 datcat -q --strict --verify out.gguf
    datcat --meta out.gguf | has '"tokenizer.ggml.tokens":{"items":3104,"of":"string"}'

    # Both forms of merges are the same file.
    mkdir pairs
    python3 - <<'END'
import json
t = json.load(open("tokenizer.json"))
m = t["model"]
m["merges"] = [x.split(" ") if isinstance(x, str) else " ".join(x)
               for x in m["merges"]]
json.dump(t, open("pairs/tokenizer.json", "w"))
END
    run -0 "$write" pairs.gguf config.json pairs/tokenizer.json
    cmp out.gguf pairs.gguf

    # The chat template: of the settings first, else on its own.
    printf 'jinja \303\251\n' >chat_template.jinja
    run -0 "$write" x.gguf config.json tokenizer.json
    gguf check x.gguf config.json tokenizer.json chat_template.jinja
    printf '{"a":[1],"chat_template":"x\\ny"}' >tokenizer_config.json
    printf 'x\ny' >want
    run -0 "$write" x.gguf config.json tokenizer.json
    gguf check x.gguf config.json tokenizer.json want
    printf '{"chat_template":[{"name":"a","template":"z"},{"template":"x\\ny","name":"default"}]}' \
        >tokenizer_config.json
    run -0 "$write" x.gguf config.json tokenizer.json
    gguf check x.gguf config.json tokenizer.json want
    printf '{"chat_template":null}' >tokenizer_config.json
    run -0 "$write" x.gguf config.json tokenizer.json
    gguf check x.gguf config.json tokenizer.json chat_template.jinja
    printf '{' >tokenizer_config.json
    run -1 "$write" y.gguf config.json tokenizer.json
    [[ $output == *"tokenizer_config.json: byte 1:"* ]]
    [ ! -e y.gguf ]
    rm tokenizer_config.json

    # More tokens than the model has rows.
    sed -i 's/3104/3097/' config.json
    run -1 "$write" y.gguf config.json tokenizer.json
    [[ $output == *'tokenizer.json: byte '*'has the id 3097, the model'"'"'s vocab_size is 3097'* ]]
    sed -i 's/3097/3098/' config.json
    run -0 "$write" y.gguf config.json tokenizer.json
    gguf check y.gguf config.json tokenizer.json chat_template.jinja
    run -1 "$write" z.gguf config.json absent.json
    [ ! -e z.gguf ]
}

@test "the plain GGUF that benchmarks give to llama.cpp: the same values, all that readers ask for" {
    local demo=$root/pipelines/demo dtype
    for dtype in bf16 f32; do
        datpack -q --init 3 --config "$demo/config.json" --dtype $dtype -o m.safetensors -f
        datpack -q -t "$demo/tokenizer.json" -o like.gguf -f m.safetensors
        "$root/bench/gguf_plain.py" m.safetensors like.gguf plain.gguf
        # Norms are f32 in a GGUF whatever they were.
        datcat --diff --atol 0 --rtol 0 m.safetensors plain.gguf
        datcat --tsv -s '*_proj.weight' plain.gguf | awk -v t=$dtype -F '\t' '
            NR > 1 { n++; bad += $2 != t }
            END { exit bad || n != 28 }'
        gguf kv like.gguf | grep -v '^general.file_type' >want
        gguf kv plain.gguf | grep -v '^general.file_type' | diff want -
    done
}

@test "a file cut at every byte" {
    gguf make small-gguf small.gguf
    runbad cut small.gguf
}

@test "random mutations: datcat and an independent reader agree" {
    runbad differ gguf 2000
}

@test "valid files pass the runner of bad ones" {
    for kind in gguf small-gguf model-gguf nvfp4-gguf untied-gguf; do
        gguf make $kind $kind.gguf
    done
    runbad good ./*.gguf
    for kind in small-gguf model-gguf nvfp4-gguf untied-gguf; do
        datpack -q -o $kind.safetensors $kind.gguf
        [ -s $kind.safetensors ]
    done
}

# bats test_tags=nosan
@test "a tokenizer of 100 MB costs no memory" {
    python3 - "$HERE" <<'END'
import struct, sys
sys.path.insert(0, sys.argv[1])
import gguf_file as g
with open("big.gguf", "wb") as f:
    f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + g.string("t") +
            struct.pack("<IIQ", 9, 8, 1000000))
    for i in range(100):
        f.write(g.string(b"x" * 92) * 10000)
END
    cat >>rss.py <<'END'
import os, resource, subprocess, sys
subprocess.run(["datcat", "-q", "big.gguf"], check=True, stdout=subprocess.DEVNULL)
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
file = os.stat("big.gguf").st_size >> 10
assert kib < file + (16 << 10), kib  # pages of the file, which are nobody's
END
    python3 rss.py
}
