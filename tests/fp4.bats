#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr, stderr_lines: set by run
# --activations nvfp4: what trainstep and generate compute is what qwen3.py says, and it
# depends on nothing but a token and those before it.  The operations are tested by the
# unit program fp4, and on a GPU by check-gpu.

load common

setup_file() {
    M=$BATS_FILE_TMPDIR/m
    export M
    mkdir "$M"
    cd "$M" || return
    qwen config config.json hidden_size=32 \
        intermediate_size=48 num_attention_heads=2 num_key_value_heads=1
    datpack -q --init 3 --config config.json --to ckpt --quant max --master f32 \
        --moments f32 -o m.ckpt
    # What products see, for the oracle.
    datpack -q --dtype nvfp4 -o q.safetensors m.ckpt
    nvquant -q --dequant --dtype f32 -o w.safetensors q.safetensors
    printf '%s\n' '3 5 9 7 30 8 41' '80 71 2 5 9' '6 6 6 12 13 14 15 16 90' >ids
    tokenize -q --input ids -o d.tok ids
    head -n 2 ids | tokenize -q --input ids -o two.tok
}

oracle() {
    qwen "$@"
}

# ids OPTION...: an answer of four ids to some.
ids() {
    generate -q -f --ids --ignore-eos -n 4 -p '5 9 3 77 13 9 9 1 40 2 60' \
        --activations nvfp4 "$@"
}

step() {
    trainstep -q -d "$M/d.tok" --batch 2 --lr 1e-2 "$@"
}

@test "a step: the loss, and gradients straight through, are those of float64" {
    trainstep -q -d "$M/two.tok" --batch 2 --activations nvfp4 --dump max -o o.ckpt \
        "$M/m.ckpt" >/dev/null
    oracle --activations max slopes "$M/w.safetensors" "$M/config.json" max "$M/two.tok"
    # The oracle tells one from the other.
    run ! oracle slopes "$M/w.safetensors" "$M/config.json" max "$M/two.tok"
}

@test "with --compat torchsharp by TorchSharp's quantizer, and that is kept" {
    head -n 1 "$M/ids" | tokenize -q --input ids -o one.tok
    trainstep -q -d one.tok --activations nvfp4 --compat torchsharp --dump seed -o o.ckpt \
        "$M/m.ckpt" >/dev/null
    oracle --activations native slopes "$M/w.safetensors" "$M/config.json" seed one.tok
    run ! oracle --activations max slopes "$M/w.safetensors" "$M/config.json" seed one.tok
    datcat --meta o.ckpt | has '"activations":"nvfp4-seed"'
    trainstep -q -d one.tok o.ckpt >/dev/null
    datcat --meta o.ckpt | has '"activations":"nvfp4-seed"'
    ids --logits max "$M/m.ckpt"
    ids --logits seed2 --compat torchsharp "$M/m.ckpt"
    [ -s max ]
    [ -s seed2 ]
    run ! cmp -s max seed2
}

@test "logits of every kind of file are those of float64" {
    ids --logits l "$M/m.ckpt" >ckpt
    oracle --activations max logits "$M/w.safetensors" "$M/config.json" l \
        5 9 3 77 13 9 9 1 40 2 60 | tee want
    [ "$(cut -d ' ' -f 1-4 want)" = "$(cat ckpt)" ]
    run ! oracle logits "$M/w.safetensors" "$M/config.json" l 5 9 3 77 13 9 9 1 40 2 60
    # Codes and scales as they are stored.
    ids --logits a "$M/q.safetensors" >stored
    cmp stored ckpt
    datcat --payload logits l >a.raw
    datcat --payload logits a | cmp - a.raw
    # Quantized here.
    nvquant -q --dequant --dtype f32 -o plain.safetensors "$M/q.safetensors"
    ids --quant max --config "$M/config.json" plain.safetensors >again
    cmp again ckpt
}

@test "chunks, cache, threads and instruction sets change no bit" {
    local how
    ids --logits want "$M/m.ckpt" >said
    for how in '--prefill-chunk 1' '--prefill-chunk 3' '--prefill-chunk 9' '--no-kv' '-j 1' '-j 3' \
        '--path dequant'; do
        # shellcheck disable=SC2086
        ids --logits got $how "$M/m.ckpt" >now
        cmp now said
        datcat --payload logits want >a
        datcat --payload logits got | cmp - a
    done
    isas
    for how in $isas; do
        NIBBLE_ISA=$how ids --logits got "$M/m.ckpt" >now
        datcat --payload logits got | cmp - a
    done
    datcat --meta want | has '"activations":"nvfp4"'
}

@test "a sample's logits do not depend on those beside it" {
    local n
    trainstep -q -d "$M/d.tok" --order file --batch 3 --activations nvfp4 --dump all -o o.ckpt \
        "$M/m.ckpt" >/dev/null
    for n in 1 2 3; do
        sed -n "${n}p" "$M/ids" | tokenize -q -f --input ids -o one.tok
        trainstep -q -f -d one.tok --activations nvfp4 --dump one.$n -o o.ckpt "$M/m.ckpt" >/dev/null
    done
    python3 - "$HERE" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
from qwen3 import read_tensors
(b, t, v), _, raw = read_tensors("all")["logits"]
for n in range(b):
    (_, length, _), _, mine = read_tensors("one.%d" % (n + 1))["logits"]
    assert raw[4 * n * t * v:4 * (n * t + length) * v] == mine, n
PY
}

@test "a run that was cut is the same run, and says how it computed" {
    local how
    step -n 4 --activations nvfp4 -o whole.ckpt "$M/m.ckpt" >/dev/null
    step -n 1 --activations nvfp4 -o cut.ckpt "$M/m.ckpt" >/dev/null
    step -n 3 cut.ckpt >/dev/null
    cmp whole.ckpt cut.ckpt
    for how in '-j 1' '--recompute block' '--chunk-rows 5' '--path dequant'; do
        # shellcheck disable=SC2086
        step -n 4 --activations nvfp4 $how -f -o other.ckpt "$M/m.ckpt" >/dev/null
        cmp whole.ckpt other.ckpt
    done
    step -n 4 -o plain.ckpt "$M/m.ckpt" >/dev/null
    run -1 datcat --diff whole.ckpt plain.ckpt
    # Back to plain ones: a span of its own.
    step -n 1 --activations plain cut.ckpt >/dev/null
    datcat --meta cut.ckpt | python3 -c '
import json, sys
spans = json.load(sys.stdin)["meta"]["provenance"]["options"]["spans"]
said = [(s["first"], s["last"], s["settings"]["activations"]) for s in spans]
assert said == [(1, 4, "nvfp4"), (5, 5, "plain")], said'
}

@test "the plan has room for the codes" {
    local plain nvfp4 opt="-d $M/d.tok --order file --batch 3 --dry-run"
    # shellcheck disable=SC2086
    plain=$(trainstep -q $opt "$M/m.ckpt" | awk '$1 == "work" { print $2 }')
    # shellcheck disable=SC2086
    nvfp4=$(trainstep -q $opt --activations nvfp4 "$M/m.ckpt" | awk '$1 == "work" { print $2 }')
    # 18 tokens, 48 columns at most: half a byte each, a scale a block, a float a token.
    [ $((nvfp4 - plain)) -eq $((18 * 48 / 2 + 18 * 48 / 16 + 18 * 4)) ]
}

@test "what is missing is said, and nothing else is computed" {
    local m=$M/m.ckpt
    refuse '--path native: multiplies NVFP4 with NVFP4: it needs --activations nvfp4' \
        generate -q --ids -p 5 --path native "$m"
    refuse '--path native: multiplies NVFP4 with NVFP4: it needs --activations nvfp4' \
        step --path native -o o.ckpt "$m"
    refuse '--path native: the CPU has no 4-bit products; --path dequant emulates them' \
        generate -q --ids -p 5 --device cpu --path native --activations nvfp4 "$m"
    refuse '--path native: the CPU has no 4-bit products; --path dequant emulates them' \
        step --device cpu --path native --activations nvfp4 -o o.ckpt "$m"
    refuse 'is f32: --activations nvfp4 needs projections in NVFP4; --quant NAME makes them' \
        generate -q --ids -p 5 --quant none --activations nvfp4 "$m"
    datpack -q --init 3 --config "$M/config.json" --to ckpt --quant none -o none.ckpt
    refuse 'none.ckpt: --activations nvfp4: its projections are not quantized' \
        step --activations nvfp4 -o o.ckpt none.ckpt
    refuse '--activations: int8: want' step --activations int8 -o o.ckpt "$m"
    refuse '--activations: nvfp4-seed: want' generate --activations nvfp4-seed "$m"
    refuse '--activations: nvfp4-seed: want' step --activations nvfp4-seed -o o.ckpt "$m"
    [ ! -e o.ckpt ]
    run -0 trainstep --diagnose
    [[ $output == *$'\npath.dequant\tyes'*$'\npath.native\t'* ]]
}

@test "without a GPU its self-tests say so and end with 77" {
    local root=$root
    [ -x "${NIBBLE_BUILD:-$root/build}/gpu/open" ] || skip "tests/gpu is not built"
    [ ! -e /dev/nvidia0 ] || skip "there is a GPU"
    run -77 "$root/tools/check-gpu.sh"
    [[ $output == 'check-gpu: not run: there is no GPU'* ]]
    run -77 "$root/tools/check-gpu.sh" --sanitize
    [[ $output == 'check-sanitize-gpu: not run: there is no GPU'* ]]
    run -2 "$root/tools/check-gpu.sh" --nothing
}
