#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154,SC2094  # output, stderr: set by run; words named like files
# trainstep --compute fp8, which the CPU emulates: what a step computes is what qwen3.py says, and
# it depends on nothing but weights and samples.  The conversion is tested by the unit program
# e4m3, and on a GPU by gpu/fp8.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    qwen config config.json hidden_size=32 intermediate_size=48 num_attention_heads=2 \
        num_key_value_heads=1
    printf '%s\n' '3 5 9 7 30 8 41' '80 71 2 5 9' '6 6 6 12 13 14 15 16 90' '1 2 3 4 5 6 7' >ids
    tokenize -q --input ids -o d.tok ids
    head -n 2 ids | tokenize -q --input ids -o two.tok
    new sweepfp8
    new sweep
    new none
}

# new QUANT: a checkpoint of that name.
new() {
    datpack -q --init 3 --config config.json --to ckpt --quant "$1" --master f32 --moments f32 \
        -o "$1.ckpt"
}

# column N: of the table of steps.
column() {
    awk -F '\t' -v n="$1" 'NR > 1 { print $n }'
}

steps() {
    trainstep -q --device cpu -d "$IN/d.tok" --batch 2 --lr 1e-2 "$@"
}

fp8() {
    steps --compute fp8 "$@"
}

@test "a step: the loss is that of float64 with operands rounded to E4M3" {
    # Weights of sweepfp8 are numbers of E4M3: what is exported is what is multiplied.
    datpack -q --dtype nvfp4 -o q.safetensors "$IN/sweepfp8.ckpt"
    nvquant -q --dequant --dtype f32 -o w.safetensors q.safetensors
    trainstep -q --device cpu --compute fp8 -d "$IN/two.tok" --batch 2 --dump fp8 -o o.ckpt \
        "$IN/sweepfp8.ckpt" >/dev/null
    qwen loss w.safetensors "$IN/config.json" fp8 "$IN/two.tok"
    # The oracle tells one from the other.
    trainstep -q --device cpu --compute f32 -d "$IN/two.tok" --batch 2 --dump f32 -o p.ckpt \
        "$IN/sweepfp8.ckpt" >/dev/null
    run ! qwen loss w.safetensors "$IN/config.json" f32 "$IN/two.tok"
}

@test "gradients are close to those of f32, and are not the same" {
    local c
    for c in fp8 f32; do
        steps --compute $c --dump $c -f -o o.ckpt "$IN/sweep.ckpt" >/dev/null
    done
    python3 - <<'PY'
import math
from qwen3 import floats, read_tensors
a, b = read_tensors("fp8"), read_tensors("f32")
names = [n for n in a if n.startswith("grad.") and "_proj" in n]
assert len(names) == 14, names
for n in names:
    x, y = floats(*a[n][1:]), floats(*b[n][1:])
    size = math.sqrt(sum(v * v for v in x) * sum(v * v for v in y))
    cosine = sum(p * q for p, q in zip(x, y)) / size
    off = math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y)) / sum(v * v for v in y))
    # Two operands with errors of 2.6 % each, and what came to this layer with them.
    assert 0.005 < off < 0.2 and cosine > 0.98, (n, off, cosine)
PY
}

@test "losses stay within three percent of those of f32" {
    local c
    for c in fp8 f32; do
        steps --compute $c --lr 1e-3 -n 20 -f -o o.ckpt "$IN/sweep.ckpt" | column 2 >$c
    done
    run -1 cmp -s fp8 f32
    paste fp8 f32 | awk 'NR == 1 { first = $1 }
        { d = $1 / $2 - 1; n++; if (d > 0.03 || d < -0.03) { print NR, $0; bad = 1 } }
        END { exit bad || n != 20 || $1 > first - 0.3 }'
}

@test "equal bytes for any threads, instruction set and cut, with kept and released gradients" {
    local options
    for options in '' '--clip-mode prev' '--accum 2' '--recompute block'; do
        # shellcheck disable=SC2086  # options
        {
            fp8 $options -n 4 -j 1 -f -o a.ckpt "$IN/sweep.ckpt" >/dev/null
            NIBBLE_ISA=scalar fp8 $options -n 4 -j 5 -f -o b.ckpt "$IN/sweep.ckpt" >/dev/null
            cmp a.ckpt b.ckpt
            fp8 $options -n 1 -f -o b.ckpt "$IN/sweep.ckpt" >/dev/null
            fp8 $options --until 4 b.ckpt >/dev/null
            cmp a.ckpt b.ckpt
            steps $options --compute f32 -n 4 -f -o b.ckpt "$IN/sweep.ckpt" >/dev/null
            run -1 cmp -s a.ckpt b.ckpt
        }
    done
    # What --recompute does changes no number.
    fp8 -n 4 --recompute none -f -o b.ckpt "$IN/sweep.ckpt" >/dev/null
    cmp a.ckpt b.ckpt
}

@test "it is said on a CPU, and kept with the steps" {
    cp "$IN/sweep.ckpt" m.ckpt
    run -0 --separate-stderr trainstep --device cpu --compute fp8 -d "$IN/d.tok" m.ckpt
    [[ $stderr == *'--compute fp8: this CPU emulates it'* ]]
    datcat --meta m.ckpt | has 'cpu f32 [0-9]* fp8 1'
    run -0 --separate-stderr fp8 m.ckpt
    [ -z "$stderr" ]
    run -0 --separate-stderr steps --compute f32 m.ckpt
    [[ $stderr == *'trained by "cpu f32 '*' fp8 1" so far, from here on by "cpu f32 '* ]]
}

@test "steps before --quant-from are those of f32" {
    local c
    for c in fp8 f32; do
        steps --compute $c --quant-from 3 -n 4 -f -o o.ckpt "$IN/sweep.ckpt" | column 2 >$c
    done
    [ "$(wc -l <fp8)" -eq 4 ]
    cmp <(head -n 2 fp8) <(head -n 2 f32)
    run -1 cmp -s fp8 f32
}

@test "what is no multiple of 16 is left out, and said once" {
    qwen config odd.json hidden_size=32 intermediate_size=48 num_attention_heads=4 \
        num_key_value_heads=1 head_dim=24
    datpack -q --init 3 --config odd.json --to ckpt --quant sweep -o m.ckpt
    run -0 --separate-stderr trainstep --device cpu --compute fp8 -n 3 -d "$IN/d.tok" m.ckpt
    [ "$(grep -c 'k_proj.weight is 24 x 32.*multiples of 16' <<<"$stderr")" -eq 1 ]
    [ "$(column 10 <<<"$output" | tr '\n' ' ')" = '0 0 0 ' ]
}

@test "an input that is not finite is no saturated one: the step is skipped" {
    datpack -q --init 3 --config "$IN/config.json" --dtype f32 -o m.safetensors
    qwen put m.safetensors model.layers.0.input_layernorm.weight 0 3e38 big.safetensors
    cp "$IN/config.json" .
    datpack -q --to ckpt --config config.json --quant sweep --master f32 --moments f32 -o m.ckpt \
        big.safetensors
    cp m.ckpt before.ckpt
    run -4 --separate-stderr fp8 -n 9 m.ckpt
    [[ $stderr == *'the loss is not finite; 5 steps in a row were skipped'* ]]
    cmp m.ckpt before.ckpt
}

@test "the plan has its memory" {
    local c
    for c in f32 fp8; do
        steps --compute $c --dry-run "$IN/sweep.ckpt" >$c
    done
    # A byte a weight in place of nine bits in two, and codes of the widest group.
    python3 - <<'PY'
a, b = (dict(line.split("\t")[:2] for line in open(x)) for x in ("f32", "fp8"))
assert int(b["weights"]) > 1.3 * int(a["weights"]) and int(b["work"]) > int(a["work"])
assert a["master"] == b["master"] and a["gradients"] == b["gradients"] and a["kept"] == b["kept"]
PY
}

@test "what cannot be is refused" {
    refuse 'none.ckpt: --compute fp8: its projections are not quantized' fp8 "$IN/none.ckpt"
    refuse 'sweep.ckpt: --compute fp8: * --activations nvfp4' fp8 --activations nvfp4 "$IN/sweep.ckpt"
    refuse '--compute: fp8: want one of auto, f32, bf16' generate --compute fp8 --ids -p 3 "$IN/sweep.ckpt"
    refuse '--compute: fp4: want one of auto, f32, bf16, fp8' steps --compute fp4 "$IN/sweep.ckpt"
}
