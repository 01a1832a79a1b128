#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr, stderr_lines: set by run
# shellcheck disable=SC2086  # lists of words
# Served W4A4 models: datpack --input-scales writes one scale for the input of each projection,
# as generate --dump-importance measured it, and generate --input-scale static computes with
# them.  w4a4.py has the names, values and configurations, qwen3.py the logits; both know
# nothing of the programs.  tests/interop.py asks the libraries themselves.

load common

KINDS='modelopt compressed-tensors'
PROMPT='5 9 3 77 13 9 9 1 40 2 60'

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    qwen config config.json hidden_size=32 intermediate_size=48 num_attention_heads=2 \
        num_key_value_heads=1
    printf '%s\n' '3 5 9 7 30 8 41' '80 71 2 5 9' '6 6 6 12 13 14 15 16 90' >ids
    tokenize -q --input ids -o ids.tok ids
    datpack -q --init 3 --config config.json -o m.safetensors
    generate -q --score ids.tok --dump-importance i.safetensors m.safetensors >/dev/null
    for k in $KINDS; do
        datpack -q --to $k -o plain.$k/ m.safetensors
        datpack -q --to $k --input-scales i.safetensors -o $k/ m.safetensors
    done
}

w4a4() { python3 "$HERE/w4a4.py" "$@"; }

# scaled KIND FILE: KIND/ of the model with the scales of FILE.
scaled() { datpack -q -f --to "$1" --input-scales "$2" -o "$1" "$IN/m.safetensors"; }

# ids OPTION... MODEL: an answer of four ids by NVFP4 times NVFP4.
ids() { generate -q -f --ids --ignore-eos -n 4 -p "$PROMPT" --activations nvfp4 "$@"; }

# static MODEL: the same by stored scales.
static() { ids --input-scale static "$@"; }

same_logits() {
    datcat --payload logits "$1" >a.raw
    datcat --payload logits "$2" | cmp - a.raw
}

# ---- files ------------------------------------------------------------------

@test "scales, names, shapes and configurations, in both dialects" {
    local k
    for k in $KINDS; do
        [ "$(w4a4 scales $k "$IN/$k" "$IN/i.safetensors" "$IN/plain.$k")" = '14 scales' ]
        w4a4 config $k "$IN/$k"
        run ! w4a4 config $k "$IN/plain.$k"
        datcat -q --verify "$IN/$k"
        # What is NVFP4 already gets them, too, and stays what it is.
        datpack -q --to $k --input-scales "$IN/i.safetensors" -o again/ "$IN/plain.$k"
        diff -r -x nibble.json "$IN/$k" again | tee differ
        [ ! -s differ ]
        rm -r again
    done
}

@test "what was measured can be weighed by, too, which changes weights and no scale" {
    local k=compressed-tensors
    datpack -q --to $k --importance "$IN/i.safetensors" -o i/ "$IN/m.safetensors"
    datpack -q --to $k --importance "$IN/i.safetensors" --input-scales "$IN/i.safetensors" -o both/ \
        "$IN/m.safetensors"
    [ "$(w4a4 scales $k both "$IN/i.safetensors" i)" = '14 scales' ]
    run ! w4a4 scales $k both "$IN/i.safetensors" "$IN/plain.$k"
}

@test "the file is part of the provenance" {
    local kinds="[i['kind'] for i in d['meta']['provenance']['inputs']]"
    [ "$(datcat --meta "$IN/modelopt" | json "$kinds")" = "['safetensors', 'input-scales']" ]
    [ "$(datcat --meta "$IN/plain.modelopt" | json "$kinds")" = "['safetensors']" ]
}

@test "any magnitudes: the quotient in f32, rounded once" {
    local k
    w4a4 amax "$IN/i.safetensors" v.safetensors 1 0.1 3.14159274 448 6.5e4 1.1754944e-10 2688 7
    for k in $KINDS; do
        scaled $k v.safetensors
        [ "$(w4a4 scales $k $k v.safetensors "$IN/plain.$k")" = '14 scales' ]
    done
}

@test "from dialect to dialect: the scales of the other, bit for bit" {
    local k other
    # Magnitudes of bf16, as they are where a model runs in bf16.
    w4a4 amax "$IN/i.safetensors" v.safetensors 1.0078125 0.107421875 33.25 5.0625 0.0008544921875
    for k in $KINDS; do
        other=${KINDS/$k/}
        other=${other// /}
        scaled $k v.safetensors
        quiet datpack -q --to "$other" -o there.$k/ $k
        [ "$(w4a4 scales $other there.$k v.safetensors)" = '14 scales' ]
        w4a4 config $other there.$k
        quiet datpack -q --to $k -o back.$k/ there.$k
        [ "$(w4a4 scales $k back.$k v.safetensors)" = '14 scales' ]
        w4a4 config $k back.$k
        # Containers without a place for them: that they are left out is said.
        run -0 --separate-stderr datpack -o $k.dat $k
        [[ $stderr == *'14 activation scales of a W4A4 model are left out: it has no place'* ]]
        # Scales of --input-scales replace those of the input.
        run -0 --separate-stderr datpack --to $k --input-scales "$IN/i.safetensors" -o new.$k/ there.$k
        [[ $stderr == *'activation scales are those of --input-scales, not of the input'* ]]
        [ "$(w4a4 scales $k new.$k "$IN/i.safetensors")" = '14 scales' ]
    done
}

@test "a quantized head has a scale, plain modules have none" {
    local k
    nvmodel make in
    reference quantize in/bf16/m.dat sweep.dat
    python3 - <<'PY'
import struct, containers as c
ts, cols = [], dict(c.model_table(c.TINY))
for i, n in enumerate(x for x in cols if "proj" in x or "lm_head" in x or "embed" in x):
    x = n[:-7].replace("model.embed_tokens", "lm_head")
    group = x.replace("k_proj", "q_proj").replace("v_proj", "q_proj").replace("up_proj", "gate_proj")
    v = 1 + sum(map(ord, group)) / 100
    ts.append(c.Tensor(x + ".input_amax", "f32", (1,), struct.pack("<f", v)))
ts = list({t.name: t for t in ts}.values())
open("f.safetensors", "wb").write(c.st_bytes(sorted(ts, key=lambda t: t.name), {}))
PY
    for k in $KINDS; do
        nvmodel partly $k src.$k sweep.dat
        datpack -q --to $k --input-scales f.safetensors -o out.$k/ src.$k
        [ "$(w4a4 scales $k out.$k f.safetensors)" = '13 scales' ]
        w4a4 config $k out.$k model.layers.0.self_attn.o_proj model.layers.1.mlp.down_proj
    done
}

@test "a GGUF has a place for them" {
    qwen config c.json hidden_size=64 intermediate_size=128 num_attention_heads=4 vocab_size=3200
    datpack -q --init 3 --config c.json -o m.safetensors
    generate -q --config c.json --score "$IN/ids.tok" --dump-importance i.safetensors m.safetensors
    datpack -q --config c.json -t "$HERE/vectors/tokenizer-small.json" --input-scales i.safetensors -o m.gguf \
        m.safetensors
    python3 - <<'PY'
import struct, nvmodel, nvfp4
g = nvmodel.Gguf("m.gguf")
assert not [k for k in g.kv if "tensor_extra" in k], "weight-only, it says"
amax = {t.name: struct.unpack("<f", t.data)[0] for t in nvfp4.read_tensors("i.safetensors")
        if t.name.endswith("input_amax")}
for theirs, ours in (("attn_k", "self_attn.k_proj"), ("ffn_down", "mlp.down_proj")):
    want = nvfp4.div(amax["model.layers.1.%s.input_amax" % ours], 2688.0)
    assert g.tensors["blk.1.%s.input_scale" % theirs] == ("f32", [1], struct.pack("<f", want))
assert sum(n.endswith("input_scale") for n in g.tensors) == 14
PY
    datpack -q --config c.json --to modelopt --input-scales i.safetensors -o mo/ m.safetensors
    # The same scales, so the same answer: a GGUF has codes and block scales of its own kind.
    static --logits a mo >mo.ids
    static --logits b m.gguf >gguf.ids
    cmp mo.ids gguf.ids
    same_logits a b
}

# ---- computing --------------------------------------------------------------

@test "static: logits are those of float64 with the stored scales" {
    local k
    # Far too small magnitudes, so that much saturates, and far too large ones.
    w4a4 amax "$IN/i.safetensors" few.safetensors .5 .3 .9
    w4a4 amax "$IN/i.safetensors" large.safetensors 1000 37000 450
    for k in $KINDS; do
        datpack -q -f --dtype f32 -o w.safetensors "$IN/plain.$k"
        for f in "$IN/i.safetensors" few.safetensors large.safetensors; do
            scaled $k "$f"
            static --logits l $k >ids
            qwen --activations static=$k/model.safetensors logits w.safetensors "$IN/config.json" l $PROMPT >want
            [ "$(cut -d ' ' -f 1-4 want)" = "$(cat ids)" ]
            # The oracle tells it from the other way.
            run ! qwen --activations max logits w.safetensors "$IN/config.json" l $PROMPT
            ids --logits l $k >said
            qwen --activations max logits w.safetensors "$IN/config.json" l $PROMPT >want
            ids --input-scale dynamic --logits d $k >again
            cmp said again
            same_logits l d
        done
    done
}

@test "static is dynamic where a token's largest magnitudes are the stored ones" {
    local k=compressed-tensors
    # One token, measured as it is computed.
    echo '60 3' | tokenize -q --input ids -o one.tok
    generate -q --activations nvfp4 --score one.tok --dump-importance one.safetensors "$IN/plain.$k" >/dev/null
    datpack -q --to $k --input-scales one.safetensors -o one/ "$IN/plain.$k"
    generate -q --activations nvfp4 --score one.tok --logits d one >d.tsv
    generate -q --activations nvfp4 --input-scale static --score one.tok --logits s one >s.tsv
    cmp d.tsv s.tsv
    datcat --payload logits.0 d >a
    datcat --payload logits.0 s | cmp - a
    # With others, which differ, it is not.
    generate -q --activations nvfp4 --input-scale static --score one.tok --logits s -f "$IN/$k" >/dev/null
    datcat --payload logits.0 s >b
    run ! cmp -s a b
}

@test "static: chunks, cache, threads and instruction sets change no bit" {
    local how m=$IN/modelopt
    static --logits want "$m" >said
    for how in '--prefill-chunk 1' '--prefill-chunk 3' '--no-kv' '-j 1' '-j 3' '--path dequant'; do
        static --logits got $how "$m" >now
        cmp now said
        same_logits want got
    done
    isas
    for how in $isas; do
        NIBBLE_ISA=$how static --logits got "$m" >now
        same_logits want got
    done
    # What --quant makes anew has the stored scales of its input, too.
    static --quant max "$m" >/dev/null
}

# ---- refusals ---------------------------------------------------------------

@test "static: a model without scales, or with wrong ones, is refused" {
    local k x=model.layers.1.mlp.up_proj n
    refuse '--input-scale static: goes with --activations nvfp4' generate -q --ids -p 5 --input-scale static "$IN/modelopt"
    refuse '--input-scale static: goes with --activations nvfp4, without --compat torchsharp' \
        static --compat torchsharp "$IN/modelopt"
    refuse '--input-scale: nosuch: want' ids --input-scale nosuch "$IN/modelopt"
    datpack -q -o m.dat "$IN/plain.modelopt"
    for k in m.dat "$IN/plain.modelopt" "$IN/plain.compressed-tensors" "$IN/m.safetensors"; do
        refuse '"model.layers.0.self_attn.q_proj.weight" has no activation scale * datpack --input-scales FILE' \
            static --config "$IN/config.json" "$k"
    done
    for k in $KINDS; do
        n=$x.input_scale
        [ $k = modelopt ] || n=$x.input_global_scale
        for v in 0 -1 nan inf 1e-40; do
            cp -r "$IN/$k" bad
            w4a4 set bad $n $v
            refuse 'activation scale of "'$x.weight'"' static bad
            # Who does not compute with it does not care.
            [ $v = 1e-40 ] || refuse 'activation scale of "'$x.weight'"' datpack -q --to $k -o out/ bad
            ids bad >/dev/null
            rm -r bad
        done
        cp -r "$IN/$k" bad
        w4a4 set bad $n 1 2
        refuse 'activation scale of "'$x.weight'": expected one f32' static bad
        w4a4 set bad $n 1
        refuse '"model.layers.1.mlp.gate_proj.weight" and "'$x.weight'" take the same input' static bad
        rm -r bad
    done
}

@test "--input-scales: what is not of this model, or no magnitude, is refused" {
    local x=model.layers.1.mlp.up_proj k v
    bad() { scaled modelopt w.safetensors; }
    for k in dat safetensors ckpt; do
        refuse '--input-scales: goes with --to modelopt, compressed-tensors or gguf' \
            datpack -q --input-scales "$IN/i.safetensors" --config "$IN/config.json" -o x.$k "$IN/m.safetensors"
    done
    refuse 'none.safetensors' scaled modelopt none.safetensors
    for v in 0 -1 nan inf 1e-40 1e38; do
        cp "$IN/i.safetensors" w.safetensors
        w4a4 set w.safetensors $x.input_amax $v
        refuse 'w.safetensors: "'$x'.input_amax": expected a magnitude above 0, of which a scale can be made, found' bad
    done
    w4a4 set w.safetensors $x.input_amax 1 1
    refuse '"'$x'.input_amax": expected one f32' bad
    w4a4 set w.safetensors $x.input_amax 1
    refuse '"model.layers.1.mlp.gate_proj.weight" is * 1: expected equal ones, since they take the same input' bad
    # A number of other things.
    datpack -q -f -x $x.input_amax -o w.safetensors "$IN/i.safetensors"
    refuse 'w.safetensors: "'$x'.weight" has no .input_amax: of another model?' bad
    datpack -q -f --rename 'model.layers.1.*=model.layers.2.*' -o w.safetensors "$IN/i.safetensors"
    refuse '"model.layers.2.mlp.down_proj.input_amax": the configuration has no such tensor: of another model?' bad
    cp "$IN/i.safetensors" w.safetensors
    w4a4 set w.safetensors $x.weight 1 2 3 4
    refuse '"'$x'.weight": expected [32], a value for each column: of another model?' bad
    cp "$IN/m.safetensors" w.safetensors
    refuse 'of another model?' bad
    # The output is no input.
    mkdir d
    cp "$IN/i.safetensors" d/own.safetensors
    refuse 'is an input' datpack -q -f --to modelopt --input-scales d/own.safetensors -o d/ "$IN/m.safetensors"
}
