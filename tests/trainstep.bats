#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2030,SC2031,SC2154  # output, lines, status, stderr_lines: set by run or paused
# trainstep as its users run it: cut anywhere, killed anywhere, fed with anything.  What a
# step computes is compared with float64 by golden.py (make check-golden) and by the unit
# programs net, adamw and train.

load common
load paused

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    MACHINE_SO=$(realpath -m "${NIBBLE_BUILD:-$BUILD}")/machine.so
    export IN MACHINE_SO
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(1)
with open("ids", "w") as f:
    for _ in range(30):
        print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
with open("held", "w") as f:
    for _ in range(7):
        print(*[random.randrange(97) for _ in range(random.randrange(3, 25))], file=f)
with open("even", "w") as f:
    for _ in range(16):
        print(*[random.randrange(97) for _ in range(9)], file=f)
PY
    local f
    for f in ids held even; do
        tokenize -q --input ids -o $f.tok $f
    done
    fresh plain.ckpt --quant none --master f32 --moments f32
    fresh small.ckpt --quant sweep
}

# fresh OUT OPTION...: a random checkpoint.
fresh() {
    datpack -q -f --init 3 --config "$IN/config.json" --to ckpt -o "$@"
}

# step OPTION... CHECKPOINT: quiet training on the usual samples.
step() {
    trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 "$@"
}

# at_step STEP CKPT: it is at that step.
at_step() {
    [ "$(datcat --meta "$2" | json "d['meta']['state']['step']")" -eq "$1" ]
}

# column N: that column of a TSV log, without its head.
column() {
    tail -n +2 | cut -f "$1"
}

# ---- the same bytes ---------------------------------------------------------

# bats test_tags=slow
@test "25 steps are k steps and 25 - k, at each of 24 cuts" {
    local k options
    options=(--schedule cosine --warmup 4 --total-steps 25 --accum 2 --weight-decay 0.1
        --spike 4)
    cp "$IN/small.ckpt" whole.ckpt
    step -n 25 "${options[@]}" whole.ckpt >/dev/null
    datcat --verify whole.ckpt
    at_step 25 whole.ckpt
    for ((k = 1; k < 25; k++)); do
        cp "$IN/small.ckpt" cut.ckpt
        step -n $k "${options[@]}" cut.ckpt >/dev/null
        # Settings are kept: they need not be said again.
        trainstep -q -d "$IN/ids.tok" --until 25 cut.ckpt >/dev/null
        cmp whole.ckpt cut.ckpt
    done
}

# bats test_tags=slow
@test "threads, instruction sets, logs, saves and evaluation change no byte" {
    local isa
    cp "$IN/small.ckpt" a.ckpt
    step -j 1 -n 7 a.ckpt >/dev/null
    for j in 2 3 8; do
        step -j $j -n 7 -f -o b.ckpt "$IN/small.ckpt" >/dev/null
        cmp a.ckpt b.ckpt
    done
    isas
    for isa in $isas; do
        NIBBLE_ISA=$isa step -n 7 -f -o b.ckpt "$IN/small.ckpt" >/dev/null
        cmp a.ckpt b.ckpt
    done
    step -n 7 -f -o b.ckpt --log l.jsonl --eval "$IN/held.tok" --eval-every 2 --save-every 3 \
        --tensorboard tb --memory-report m.json --recompute block --chunk-rows 5 \
        --dump d.safetensors "$IN/small.ckpt" >/dev/null 2>&1
    cmp a.ckpt b.ckpt
}

# bats test_tags=slow
@test "--compute bf16: the same bytes for any threads and instruction set, cut anywhere" {
    local isa j k
    for f in small plain; do
        cp "$IN/$f.ckpt" a.ckpt
        step -j 1 -n 7 --accum 2 --compute bf16 a.ckpt >/dev/null
        for j in 2 3; do
            step -j $j -n 7 --accum 2 --compute bf16 -f -o b.ckpt "$IN/$f.ckpt" >/dev/null
            cmp a.ckpt b.ckpt
        done
        isas
        for isa in $isas; do
            NIBBLE_ISA=$isa step -n 7 --accum 2 --compute bf16 -f -o b.ckpt "$IN/$f.ckpt" >/dev/null
            cmp a.ckpt b.ckpt
        done
        for k in 1 4; do
            step -n $k --accum 2 --compute bf16 -f -o b.ckpt "$IN/$f.ckpt" >/dev/null
            trainstep -q -d "$IN/ids.tok" --until 7 --compute bf16 b.ckpt >/dev/null
            cmp a.ckpt b.ckpt
        done
        step -n 7 --accum 2 --compute bf16 --recompute block --chunk-rows 5 --log l.jsonl -f -o b.ckpt \
            "$IN/$f.ckpt" >/dev/null
        cmp a.ckpt b.ckpt
    done
}

@test "--compute bf16 is not f32, comes close to it, and is kept with the steps it was used for" {
    step -n 4 -o f32.ckpt "$IN/plain.ckpt" >f32
    step -n 4 --compute bf16 -o bf16.ckpt "$IN/plain.ckpt" >rounded
    paste <(column 2 <f32) <(column 2 <rounded) | awk '
        { off = ($1 - $2) / $1; same += off == 0; bad += off > 2e-3 || off < -2e-3 }
        END { exit !(NR == 4 && same == 0 && bad == 0) }'
    [ "$(routes f32.ckpt)" = '1-4 cpu f32 2' ]
    [ "$(routes bf16.ckpt)" = '1-4 cpu bf16 2' ]
    # Another route begins another span, and is said.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 2 --device cpu bf16.ckpt
    [[ $stderr == *'trained by "cpu bf16 2" so far, from here on by "cpu f32 2"'* ]]
    [ "$(routes bf16.ckpt)" = $'1-4 cpu bf16 2\n5-6 cpu f32 2' ]
}

# routes CKPT: spans of steps and what they were computed with.
routes() {
    datcat --meta "$1" | python3 -c '
import json, sys
def spans(x):
    if isinstance(x, dict):
        if "route" in x:
            print("%d-%d %s" % (x["first"], x["last"], x["route"]))
        x = list(x.values())
    if isinstance(x, list):
        for v in x:
            spans(v)
spans(json.load(sys.stdin))'
}

@test "--fast says what it did, and does it" {
    local words='--fast: no effect' route='cpu f32 2' reason=NIBBLE_ISA
    # The file's model is narrow; this one is not.
    sed 's/"hidden_size": 32/"hidden_size": 256/' "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt -o wide.ckpt
    pairs=$(diagnosed cpu.bf16.pairs)
    if [[ $pairs == yes* ]]; then
        words='--fast: products of bf16' route='cpu bf16 2' reason='less than 256 wide'
    fi
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu --fast -o a.ckpt "$IN/small.ckpt"
    [[ $stderr == *'--fast: no effect: '*"$reason"* ]]
    [ "$(routes a.ckpt)" = '1-1 cpu f32 2' ]
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu --fast -f -o a.ckpt wide.ckpt
    [ "$(grep -c -- --fast <<<"$stderr")" -eq 1 ]
    [[ $stderr == *"trainstep: $words"* ]]
    [ "$(routes a.ckpt)" = "1-1 $route" ]
    # As if that had been asked for.
    trainstep -q -d "$IN/ids.tok" --device cpu --compute "$(cut -d ' ' -f 2 <<<"$route")" \
        -o b.ckpt wide.ckpt >/dev/null
    cmp a.ckpt b.ckpt
    run -0 --separate-stderr trainstep -q -d "$IN/ids.tok" --fast -f -o a.ckpt "$IN/small.ckpt"
    [ -z "$stderr" ]
    # What was asked for by name, and what a lower path lacks.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu --fast --compute f32 -f -o a.ckpt \
        "$IN/small.ckpt"
    [[ $stderr == *'--fast: no effect: --compute says'* ]]
    NIBBLE_ISA=scalar run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu --fast -f \
        -o a.ckpt "$IN/small.ckpt"
    [[ $stderr == *'--fast: no effect: '*NIBBLE_ISA* ]]
    [ "$(routes a.ckpt)" = '1-1 cpu f32 2' ]
}

@test "gradients that are released are those that are kept" {
    local mode
    for mode in prev tensor; do
        step -n 5 --clip 0.3 --clip-mode $mode -o kept.ckpt --dump d.safetensors \
            "$IN/small.ckpt" >/dev/null
        step -n 5 --clip 0.3 --clip-mode $mode -o gone.ckpt "$IN/small.ckpt" >/dev/null
        cmp kept.ckpt gone.ckpt
        rm kept.ckpt gone.ckpt d.safetensors
    done
    step -n 3 --clip 0 -o free.ckpt "$IN/small.ckpt" >/dev/null
    step -n 3 --clip 1e30 -o wide.ckpt "$IN/small.ckpt" >/dev/null
    datcat -q --diff free.ckpt wide.ckpt
}

@test "8 samples are 1 pass of 8, 2 of 4 or 8 of 1" {
    local split
    for split in "8 1" "4 2" "2 4" "1 8"; do
        trainstep -q -d "$IN/even.tok" -n 2 --lr 1e-2 --batch "${split% *}" --accum "${split#* }" \
            -o "m${split#* }.ckpt" "$IN/plain.ckpt" | column 2 >"loss${split#* }"
        awk 'NR == FNR { want[FNR] = $1; next }
             { d = $1 / want[FNR] - 1; if (d > 1e-5 || d < -1e-5) exit 1 }' \
            loss1 "loss${split#* }"
        datcat -q --diff --rtol 1e-4 --atol 1e-5 m1.ckpt "m${split#* }.ckpt"
    done
}

@test "the forward pass sees what datpack exports" {
    local f q
    for q in sweep sweepfp8 max 4over6 torchao sweep1 native; do
        fresh m.ckpt --quant $q --master f32 --moments f32
        step -n 2 m.ckpt >/dev/null
        # Dequantized values, exact in f32, trained on without a quantizer.
        datpack -q -f --dtype nvfp4 -o m.safetensors m.ckpt
        datpack -q -f --dtype f32 -o wide.safetensors m.safetensors
        datpack -q -f --to ckpt --quant none --master f32 --moments f32 -o wide.ckpt \
            wide.safetensors
        # Other data than before: both begin with the first sample.
        trainstep -q -f -d "$IN/even.tok" --batch 5 --dump a.safetensors --order file \
            -o x.ckpt m.ckpt >/dev/null
        trainstep -q -f -d "$IN/even.tok" --batch 5 --dump b.safetensors --order file \
            -o y.ckpt wide.ckpt >/dev/null
        for f in a b; do
            datcat --hash -s loss -s logits $f.safetensors | sed -n 1,2p >$f.hash
        done
        [ "$(grep -c . a.hash)" -eq 2 ]
        cmp a.hash b.hash
        rm -f x.ckpt y.ckpt
    done
}

# ---- where a run begins and ends ----------------------------------------------

@test "--until: nothing left to do is done; -o leaves the checkpoint alone" {
    cp "$IN/small.ckpt" m.ckpt
    step --until 2 m.ckpt >/dev/null
    cp m.ckpt two.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 2 m.ckpt
    [ -z "$output" ]
    [[ $stderr == *"at step 2: nothing to do"* ]]
    cmp m.ckpt two.ckpt
    step -n 1 -o three.ckpt m.ckpt >/dev/null
    cmp m.ckpt two.ckpt
    [ "$(datcat --meta three.ckpt | grep -o '"step":[0-9]*')" = '"step":3' ]
    refuse -2 "three.ckpt: exists; -f replaces it" trainstep -q -d "$IN/ids.tok" -o three.ckpt m.ckpt
    # However long the name is, the reason is not cut.
    long=$(printf '%0200d/' {1..6})
    mkdir -p "$long"
    touch "$long/x"
    refuse -2 "/x: exists; -f replaces it" trainstep -q -d "$IN/ids.tok" -o "$long/x" m.ckpt
    ln -s m.ckpt link.ckpt
    refuse -2 "is the checkpoint itself" trainstep -q -d "$IN/ids.tok" -f -o link.ckpt m.ckpt
    # Through a link the file is advanced, not the link replaced.
    step -n 1 link.ckpt >/dev/null
    [ -L link.ckpt ]
    cmp m.ckpt three.ckpt
}

@test "nothing to do: -o and --dump must be what a run would leave" {
    cp "$IN/small.ckpt" m.ckpt
    step -n 3 m.ckpt >/dev/null
    t() { refuse -2 "$1" trainstep -q -d "$IN/ids.tok" --until 2 -f "${@:2}" m.ckpt; }
    cp "$IN/small.ckpt" stale.ckpt
    t "stale.ckpt: is at step 0, and m.ckpt at step 3 already" -o stale.ckpt
    cmp stale.ckpt "$IN/small.ckpt"
    cp "$IN/plain.ckpt" plain.ckpt
    t "plain.ckpt: not a checkpoint of the kind of m.ckpt, which is at step" -o plain.ckpt
    local how
    for how in '--moments f32' '--master f32' '--quant max'; do
        # shellcheck disable=SC2086  # two words
        fresh kind.ckpt --quant sweep $how
        t "kind.ckpt: not a checkpoint of the kind of m.ckpt, which is at step" -o kind.ckpt
    done
    datpack -q -o model.dat "$IN/plain.ckpt"
    mv model.dat model
    t "model: not a checkpoint" -o model
    echo foreign >note
    t "note: " -o note
    cp "$IN/small.ckpt" other.ckpt
    step --seed 9 -n 3 other.ckpt >/dev/null
    t "other.ckpt: differs from m.ckpt, which is at step 3 already" -o other.ckpt
    t "d.safetensors is not made" --dump d.safetensors
    cp m.ckpt copy.ckpt
    cp "$IN/small.ckpt" two.ckpt
    step -n 2 two.ckpt >/dev/null
    touch d.safetensors
    local out
    for out in copy.ckpt two.ckpt; do
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 2 -f -o $out \
            --dump d.safetensors m.ckpt
        [[ $stderr == *"m.ckpt: at step 3: nothing to do"* ]]
    done
    cmp m.ckpt copy.ckpt
}

@test "nothing to do needs no lock, and no place to write" {
    cp "$IN/small.ckpt" m.ckpt
    step -n 3 m.ckpt >/dev/null
    cp m.ckpt before
    t() { run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 3 "$@"; }
    # Another run has it.
    exec 9>.m.ckpt.nibble-lock
    flock 9
    t m.ckpt 9>&-
    [[ $stderr == *"m.ckpt: at step 3: nothing to do"* ]]
    refuse -2 "another process is writing it" trainstep -q -d "$IN/ids.tok" --until 4 m.ckpt 9>&-
    exec 9>&-
    # Its lock cannot be made: as in a directory that is not ours.
    rm .m.ckpt.nibble-lock
    mkdir .m.ckpt.nibble-lock
    t m.ckpt
    [[ $stderr == *"m.ckpt: at step 3: nothing to do"* ]]
    rmdir .m.ckpt.nibble-lock
    cmp m.ckpt before
}

# waits COMMAND...: it is stopped before it asks a second time for the lock of m.ckpt, which this
# shell has by descriptor 9.
waits() {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    exec 9>.m.ckpt.nibble-lock
    flock 9
    paused flock:2:stop:.m.ckpt.nibble-lock "$@" 9>&-
}

# goes_on: the lock is free, and the command ends well.
goes_on() {
    exec 9>&-
    ended
    [ "$status" -eq 0 ] || { cat err && false; }
    [ ! -e .m.ckpt.nibble-lock ]
}

# bats test_tags=native
@test "a run that waits for the lock goes on from what the other has left" {
    cp "$IN/small.ckpt" m.ckpt
    cp m.ckpt later.ckpt
    step -n 3 later.ckpt >/dev/null
    waits trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 -n 2 m.ckpt
    mv later.ckpt m.ckpt
    goes_on
    [ "$(column 1 <out | tr '\n' ' ')" = "4 5 " ]
    # Or finds that nothing is left.
    cp m.ckpt five.ckpt
    cp "$IN/small.ckpt" m.ckpt
    waits trainstep -d "$IN/ids.tok" --until 5 m.ckpt
    mv five.ckpt m.ckpt
    goes_on
    grep -q "m.ckpt: at step 5: nothing to do" err
    # One that is about to end, as a killed run is, is waited for.
    waits trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 m.ckpt
    goes_on
}

@test "samples come by a pipe as from a file; other data start at their beginning" {
    cp "$IN/small.ckpt" a.ckpt
    cp "$IN/small.ckpt" b.ckpt
    step -n 2 a.ckpt >/dev/null
    # shellcheck disable=SC2002  # a pipe is the point
    cat "$IN/ids.tok" | trainstep -q -n 2 --batch 3 --lr 1e-2 b.ckpt >/dev/null
    cmp a.ckpt b.ckpt
    run -0 --separate-stderr trainstep -d "$IN/even.tok" --device cpu a.ckpt
    [[ $stderr == *"other data than before"* ]]
    datcat --meta a.ckpt | has -F '"epoch":0,"index":3'
    # Round and round: 30 samples, 3 a step.
    step -n 11 b.ckpt >/dev/null
    datcat --meta b.ckpt | has -F '"epoch":1,"index":9'
}

@test "only the last layers" {
    step -n 3 --train-last-layers 1 -o m.ckpt "$IN/small.ckpt" >/dev/null
    run -1 datcat --diff "$IN/small.ckpt" m.ckpt
    [[ $output == *layers.1.* ]]
    [[ $output != *layers.0.* && $output != *embed* && $output != *model.norm* ]]
    datcat --verify m.ckpt
    step -n 2 --train-last-layers 1 m.ckpt >/dev/null
    step -n 5 --train-last-layers 1 -o w.ckpt "$IN/small.ckpt" >/dev/null
    cmp m.ckpt w.ckpt
    refuse -2 "the model has 2" trainstep -q -d "$IN/ids.tok" --train-last-layers 3 m.ckpt
}

# ---- learning ------------------------------------------------------------------

@test "it learns: samples by heart in a hundred steps, with every kind of moments" {
    local m
    printf '%s\n' '5 6 7 8 9 10' '11 3 5 77 12' '44 45 46 47' >ids
    tokenize -q --input ids -o d.tok ids
    for m in "f32 f32 none" "bf16 int8 sweep" "bf16 bf16 max" "f32 int8 torchao"; do
        read -r master moments quant <<<"$m"
        fresh m.ckpt --master "$master" --moments "$moments" --quant "$quant"
        trainstep -q -d d.tok -n 100 --batch 3 --lr 1e-2 m.ckpt >log
        column 2 <log | awk 'NR == 1 { first = $1 } { last = $1 }
            END { exit !(first > 3 && last < 0.1) }'
    done
}

@test "schedules" {
    local f
    check() { # FORMULA OPTION...: of t, for lr 1
        f=$1
        shift
        step -n 12 --lr 1 -f -o s.ckpt "$@" "$IN/plain.ckpt" | column 4 |
            awk "function f(t) { return $f }
                 { d = \$1 - f(NR); if (d > 1e-5 || d < -1e-5) { print NR, \$1, f(NR); exit 1 } }"
    }
    check '1'
    check 't <= 4 ? t / 4 : 1' --warmup 4
    check 't <= 2 ? t / 2 : t < 10 ? 1 - .9 * (t - 2) / 8 : .1' --schedule linear --warmup 2 \
        --total-steps 10 --min-lr 0.1
    check 't < 10 ? .2 + .8 * .5 * (1 + cos(3.14159265 * t / 10)) : .2' --schedule cosine \
        --total-steps 10 --min-lr 0.2
    check 't <= 6 ? 1 : t < 10 ? (10 - t) / 4 : 0' --schedule wsd --decay 4 --total-steps 10 \
        --allow-zero-lr
    refuse -2 "needs --total-steps" trainstep -q -d "$IN/ids.tok" --schedule linear "$IN/plain.ckpt"
    refuse -2 "above --lr" trainstep -q -d "$IN/ids.tok" --min-lr 1 "$IN/plain.ckpt"
}

@test "a spike is skipped and counted" {
    python3 - <<'PY'
import random
random.seed(2)
with open("calm", "w") as f:
    for i in range(80):
        print(*([7, 8, 9, 10] if i != 70 else [random.randrange(97) for _ in range(40)]), file=f)
PY
    tokenize -q --input ids -o calm.tok calm
    cp "$IN/plain.ckpt" m.ckpt
    trainstep -q -d calm.tok --order file -n 75 --lr 1e-2 m.ckpt >/dev/null
    run -0 --separate-stderr trainstep -q -d calm.tok --until 155 --lr 1e-4 --spike 6 m.ckpt
    [ "$(column 10 <<<"$output" | grep -c 1)" -eq 1 ]
    [[ $stderr == *"step 151 was skipped: a spike"* ]]
    datcat --meta m.ckpt | has -F '"step":155,"t":154'
    # Across a cut, too: the window is kept.
    cp "$IN/plain.ckpt" cut.ckpt
    trainstep -q -d calm.tok --order file -n 75 --lr 1e-2 cut.ckpt >/dev/null
    trainstep -q -d calm.tok --until 150 --lr 1e-4 --spike 6 cut.ckpt >/dev/null
    trainstep -q -d calm.tok --until 155 cut.ckpt >/dev/null 2>&1
    cmp m.ckpt cut.ckpt
}

@test "weights that are not numbers: named, skipped, 4, and the file as it was" {
    datpack -q -o m.safetensors "$IN/plain.ckpt"
    python3 - <<'PY'
import json, struct
raw = bytearray(open("m.safetensors", "rb").read())
n = struct.unpack_from("<Q", raw)[0]
head = json.loads(raw[8:8 + n])
for i, (name, bits) in enumerate((("model.norm.weight", 0x7fc00000),
                                  ("model.layers.1.mlp.up_proj.weight", 0xff800000),
                                  ("model.embed_tokens.weight", 0x7f800000))):
    bad = bytearray(raw)
    struct.pack_into("<I", bad, 8 + n + head[name]["data_offsets"][0] + 8, bits)
    open("bad%d.safetensors" % i, "wb").write(bad)
PY
    local bad names=(model.norm.weight model.layers.1.mlp.up_proj.weight model.embed_tokens.weight)
    for bad in 0 1 2; do
        datpack -q --to ckpt --quant none --master f32 -o bad.ckpt bad$bad.safetensors
        cp bad.ckpt was.ckpt
        run -4 --separate-stderr trainstep -q -d "$IN/ids.tok" -n 9 --max-skips 3 bad.ckpt
        [ "$(wc -l <<<"$output")" -eq 4 ]
        [[ $stderr == *"the weight ${names[bad]} is not finite; 3 steps in a row were skipped"* ]]
        cmp bad.ckpt was.ckpt
        [ "$bad" -gt 0 ] || run -4 --separate-stderr trainstep -q -d "$IN/ids.tok" -n 9 bad.ckpt
        [ "$bad" -gt 0 ] || [[ $stderr == *"; 5 steps in a row were skipped"* ]]
        rm bad.ckpt
    done
}

# ---- signals, disks, others ----------------------------------------------------

# bats test_tags=slow,native
@test "SIGTERM and SIGINT at any moment: 75, a good checkpoint, and the same end" {
    local i rc sig
    cp "$IN/small.ckpt" whole.ckpt
    step -n 60 --accum 4 whole.ckpt >/dev/null
    at_step 60 whole.ckpt
    for i in {1..100}; do
        cp "$IN/small.ckpt" m.ckpt
        sig=$((i % 2)) && sig=$([ $sig = 1 ] && echo TERM || echo INT)
        rc=0
        timeout -s "$sig" "$(printf '0.%03d' $((i * 37 % 100 + 1)))" trainstep -q -d "$IN/ids.tok" --batch 3 --accum 4 \
            --lr 1e-2 --until 60 --save-every 7 m.ckpt >/dev/null || rc=$?
        # timeout itself answers 124 when it had to send the signal.
        [ $rc -eq 124 ] || [ $rc -eq 0 ]
        datcat --verify m.ckpt >/dev/null
        [ -z "$(find . -name '.*nibble*')" ]
        step --until 60 --accum 4 m.ckpt >/dev/null
        cmp m.ckpt whole.ckpt
    done
}

# bats test_tags=slow,native
@test "SIGKILL at any moment: a good checkpoint, no lock that stays, and the same end" {
    local i
    cp "$IN/small.ckpt" whole.ckpt
    step -n 60 --accum 4 whole.ckpt >/dev/null
    at_step 60 whole.ckpt
    cp "$IN/small.ckpt" m.ckpt
    for i in {1..50}; do
        timeout -s KILL "$(printf '0.%03d' $((i * 37 % 60 + 1)))" trainstep -q -d "$IN/ids.tok" \
            --batch 3 --accum 4 --lr 1e-2 --until 60 --save-every 2 m.ckpt >/dev/null || true
        datcat --verify m.ckpt >/dev/null
        if [ $((i % 10)) -eq 0 ]; then
            step --until 60 --accum 4 m.ckpt >/dev/null
            cmp m.ckpt whole.ckpt
            cp "$IN/small.ckpt" m.ckpt
        fi
    done
}

@test "the status after a signal is 75" {
    python3 - <<'PY'
import os, shutil, signal, subprocess, time
shutil.copy(os.environ["IN"] + "/small.ckpt", "m.ckpt")
p = subprocess.Popen(["trainstep", "-q", "-d", os.environ["IN"] + "/ids.tok", "-n", "1000000",
                      "m.ckpt"], stdout=subprocess.PIPE, text=True)
for _ in range(4):
    line = p.stdout.readline()
p.send_signal(signal.SIGTERM)
rest = p.stdout.read().split("\n")
assert p.wait() == 75, p.returncode
last = int((rest[-2] if len(rest) > 1 else line).split("\t")[0])
meta = subprocess.run(["datcat", "--meta", "m.ckpt"], stdout=subprocess.PIPE, text=True).stdout
assert '"step":%d,' % last in meta, (last, meta[-200:])
PY
}

# signals.py: trainstep under a signal; failio stops it where it should come.
signals() {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    cat >signals.py <<'PY'
import os, shutil, signal, subprocess, sys, time

IN = os.environ["IN"]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
signal.alarm(300)  # an end also to a wait for what a broken program never does


def fresh():
    shutil.copy(IN + "/small.ckpt", "m.ckpt")


def start(*options, failio="", data=IN + "/ids.tok", ignore=()):
    env = dict(os.environ)
    if failio:
        env.update(FAILIO=failio, LD_PRELOAD=os.environ["FAILIO_SO"])

    def dispositions():
        for s in SIGNALS:
            signal.signal(s, signal.SIG_IGN if s in ignore else signal.SIG_DFL)

    return subprocess.Popen(["trainstep", "--device", "cpu", "-d", data, *options], env=env, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=open("err", "w"), preexec_fn=dispositions)


def rows(p, n):
    for _ in range(n + 1):
        last = p.stdout.readline()
    assert last, open("err").read()


def send(p, *signals):
    for s in signals:
        p.send_signal(s)


def stopped(p):
    pid, status = os.waitpid(p.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), (status, open("err").read())


def ends(p, want, say=None):
    """say: the only line of words."""
    p.stdout.read()
    rc = p.wait(60)
    err = open("err").read()
    assert rc == want, (rc, want, err)
    assert rc >= 0 or err == "", err
    left = [f for f in os.listdir(".") if ".nibble" in f]
    assert not left, left
    assert say is None or err == "trainstep: " + say % step() + "\n", err


def step():
    meta = subprocess.run(["datcat", "--meta", "m.ckpt"], stdout=subprocess.PIPE, text=True).stdout
    return int(meta.split('"step":')[1].split(",")[0].rstrip("}"))


def unchanged():
    return open("m.ckpt", "rb").read() == open(IN + "/small.ckpt", "rb").read()
PY
}

# bats test_tags=native
@test "a signal before the first step: died of it, nothing written" {
    signals
    python3 - <<'PY'
from signals import *
os.mkfifo("gate")
for sig in SIGNALS:
    fresh()
    # Waiting for data, and while they come.
    p = start("m.ckpt", data="gate")
    gate = open("gate", "r+b", buffering=0)  # waits for no reader
    gate.write(open(IN + "/ids.tok", "rb").read()[:50])
    while not os.path.exists(".m.ckpt.nibble-lock"):
        assert p.poll() is None, open("err").read()
        time.sleep(0.01)
    send(p, sig)
    ends(p, -sig)
    gate.close()
    assert unchanged()
    # Loading, and opening the log.
    for at in "pread:3:stop:m.ckpt", "open:1:stop:log.jsonl":
        p = start("--log", "log.jsonl", "m.ckpt", failio=at)
        stopped(p)
        send(p, sig, signal.SIGCONT)
        ends(p, -sig)
        assert unchanged()
PY
}

# bats test_tags=native
@test "a signal in a step or a save: saved, 75, and the last line tells how to go on" {
    signals
    python3 - <<'PY'
from signals import *
for sig in SIGNALS:
    fresh()
    p = start("--until", "1000000", "m.ckpt")
    rows(p, 3)
    send(p, sig)
    ends(p, 75, "m.ckpt: saved at step %d of 1000000; go on with the same command")
    assert step() >= 3
    fresh()
    p = start("-n", "1000000", "m.ckpt")
    rows(p, 1)
    send(p, sig)
    ends(p, 75)
    words = "m.ckpt: saved at step %d of 1000000; go on with the same command, but -n %d"
    assert open("err").read() == "trainstep: %s\n" % (words % (step(), 1000000 - step()))
    # In the first save it is the step of that save; after the last no step is left.
    for until, n, say in ("9", 1, "go on with the same command"), ("2", 2, "all steps are taken"):
        fresh()
        p = start("--until", until, "--save-every", "1", "m.ckpt",
                  failio="rename:%d:stop:m.ckpt" % n)
        stopped(p)
        send(p, sig, signal.SIGCONT)
        ends(p, 75, "m.ckpt: saved at step %%d of %s; %s" % (until, say))
        assert step() == n, step()
# -q says nothing; another file is gone on from.
fresh()
p = start("-q", "--until", "1000000", "m.ckpt")
rows(p, 1)
send(p, signal.SIGTERM)
ends(p, 75)
assert step() >= 1 and open("err").read() == ""
p = start("-n", "1000000", "-o", "o.ckpt", IN + "/small.ckpt")
rows(p, 1)
send(p, signal.SIGTERM)
ends(p, 75)
assert "trainstep: o.ckpt: saved at step " in open("err").read()
assert "; go on from it, without -o, with -n 9999" in open("err").read()
PY
    run -0 datcat --verify o.ckpt
}

# bats test_tags=native
@test "a signal during evaluation cuts it short" {
    signals
    python3 - <<'PY'
from signals import *
for sig in SIGNALS:
    for until, say in (("9", "go on with the same command"),
                       ("1", "all steps are taken, but the evaluation is not finished; "
                             "generate --score " + IN + "/held.tok makes it")):
        fresh()
        open("log.jsonl", "w").close()  # not another run's
        # The second of seven samples.
        p = start("--until", until, "--eval", IN + "/held.tok", "--eval-every", "1",
                  "--log", "log.jsonl", "m.ckpt", failio="pread:2:stop:held.tok")
        stopped(p)
        send(p, sig, signal.SIGCONT)
        ends(p, 75, "m.ckpt: saved at step %%d of %s; %s" % (until, say))
        assert step() == 1
        assert "eval_loss" not in open("log.jsonl").read()
PY
}

# bats test_tags=native
@test "a second signal does not wait; what timeout sends twice is one" {
    signals
    python3 - <<'PY'
from signals import *
for sig in SIGNALS:
    # The first comes as the save begins, the second before the file is in place.
    for n, want in (1, -sig), (2, 75):
        fresh()
        p = start("-q", "--until", "9", "--save-every", "1", "m.ckpt",
                  failio="fallocate:%d:stop:m.ckpt;fsync:%d:stop:m.ckpt" % (n, n))
        stopped(p)
        send(p, sig, signal.SIGCONT)
        stopped(p)
        time.sleep(0.4)
        send(p, sig, signal.SIGCONT)
        ends(p, want)
        assert step() == n - 1, step()
    # Sent to a stopped program they are handled at the same time at any load; the kernel merges
    # two of the same number, so these are two different ones.
    for other in set(SIGNALS) - {sig}:
        fresh()
        p = start("--until", "1000000", "m.ckpt")
        rows(p, 1)
        send(p, signal.SIGSTOP)
        stopped(p)
        send(p, sig, other, signal.SIGCONT)
        ends(p, 75, "m.ckpt: saved at step %d of 1000000; go on with the same command")
        assert step() >= 1
PY
}

# bats test_tags=native
@test "who reads the table or the log goes away: saved, 75, no other words" {
    signals
    local status
    cp "$IN/small.ckpt" m.ckpt
    status=$(trainstep --device cpu -d "$IN/ids.tok" --until 1000000 m.ckpt 2>err | head -n 1 >rows
        echo "${PIPESTATUS[*]}")
    [ "$status" = '75 0' ]
    [ "$(cut -f 1 rows)" = step ]
    [ "$(wc -l <err)" -eq 1 ]
    grep -qE '^trainstep: m.ckpt: saved at step [1-9][0-9]* of 1000000; go on with the same command$' err
    python3 - <<'PY'
from signals import *
fresh()
os.mkfifo("log")
p = start("--until", "1000000", "--log", "log", "m.ckpt")
with open("log") as log:
    assert log.readline().startswith('{"step":1,')
ends(p, 75, "m.ckpt: saved at step %d of 1000000; go on with the same command")
assert step() >= 1
PY
}

# bats test_tags=native
@test "who reads the table or the log is stopped: a signal saves all the same" {
    signals
    python3 - <<'PY'
from signals import *
import array, fcntl, glob, termios
os.mkfifo("log")


def state():
    """Bytes in the pipe, and whether all threads sleep."""
    held = array.array("i", [0])
    fcntl.ioctl(full.fileno(), termios.FIONREAD, held)
    tasks = [open(f).read().split()[2] for f in glob.glob("/proc/%d/task/*/stat" % p.pid)]
    return held[0], set(tasks) == {"S"}


for options in [], ["--log", "log"]:
    fresh()
    p = start("--until", "1000000", *options, "m.ckpt")
    full = p.stdout
    if options:
        full = open("log")
        os.set_blocking(p.stdout.fileno(), False)
    fcntl.fcntl(full.fileno(), 1031, 4096)  # F_SETPIPE_SZ
    # Until nothing more comes: five times the same bytes, and nobody at work.
    seen = [(0, False)]
    while not (seen[-1][0] > 0 and seen[-1][1] and seen[-5:] == 5 * seen[-1:]):
        assert p.poll() is None, open("err").read()
        time.sleep(0.1)
        seen.append(state())
    send(p, signal.SIGTERM)
    assert p.wait(60) == 75
    assert step() >= 1
    words = "trainstep: m.ckpt: saved at step %d of 1000000; go on with the same command\n"
    assert open("err").read() == words % step()
PY
}

# bats test_tags=native
@test "a signal that was ignored when it began stays so" {
    signals
    python3 - <<'PY'
from signals import *
for sig in signal.SIGHUP, signal.SIGINT:
    fresh()
    p = start("--until", "1000000", "m.ckpt", ignore=[sig])
    rows(p, 1)
    send(p, sig)
    time.sleep(0.1)
    for _ in range(2000):
        assert p.stdout.readline()
    send(p, signal.SIGTERM)
    ends(p, 75)
    assert step() > 2000
PY
}

# bats test_tags=native
@test "a disk that is full at the third save: the second stays, 2" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    cp "$IN/small.ckpt" m.ckpt
    cp m.ckpt four.ckpt
    step -n 4 four.ckpt >/dev/null
    # A call in the middle of the third save's payloads.
    local kind n
    FAILIO_LOG=calls FAILIO='pwrite:1000000:EIO' LD_PRELOAD=$FAILIO_SO \
        step -n 6 --save-every 2 -o x.ckpt m.ckpt >/dev/null
    n=$(grep -c ' pwrite .*/\.x\.ckpt' calls)
    [ "$n" -gt 60 ]
    for kind in fallocate:3:ENOSPC fsync:5:EIO pwrite:$((n * 5 / 6)):EIO; do
        cp "$IN/small.ckpt" m.ckpt
        run -2 --separate-stderr env LD_PRELOAD="$FAILIO_SO" FAILIO=$kind \
            trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 -n 10 --save-every 2 m.ckpt
        [ "${#stderr_lines[@]}" -eq 1 ]
        datcat --verify m.ckpt
        cmp m.ckpt four.ckpt
        [ -z "$(find . -name '.*nibble*')" ]
    done
}

@test "two runs cannot advance one file" {
    cp "$IN/small.ckpt" m.ckpt
    mkfifo gate
    trainstep -q -n 1 m.ckpt <gate >/dev/null &
    exec 9>gate
    until [ -e .m.ckpt.nibble-lock ]; do sleep 0.01 && kill -0 $!; done
    refuse -2 "another process is writing it" trainstep -q -d "$IN/ids.tok" m.ckpt
    # Nor does datpack write what the run would replace, under whatever name.
    ln -s m.ckpt link.ckpt
    refuse -2 "m.ckpt: another process is writing it" datpack -q -f -o m.ckpt "$IN/plain.ckpt"
    refuse -2 "link.ckpt: another process is writing it" \
        datpack -q -f -o link.ckpt "$IN/plain.ckpt"
    cmp m.ckpt "$IN/small.ckpt"
    datpack -q -f -o other.ckpt "$IN/plain.ckpt"
    cat "$IN/ids.tok" >&9
    exec 9>&-
    wait $!
    [ ! -e .m.ckpt.nibble-lock ]
    # What a killed run left is no lock.
    touch .m.ckpt.nibble-lock
    step m.ckpt >/dev/null
}

# ---- bad input -----------------------------------------------------------------

@test "a checkpoint that advances keeps its permissions" {
    cp "$IN/small.ckpt" m.ckpt
    umask 022
    chmod 600 m.ckpt
    step -n 2 --save-every 1 --log l.jsonl --memory-report r.json m.ckpt >/dev/null
    [ "$(stat -c %a m.ckpt)" = 600 ]
    chmod 600 l.jsonl r.json
    step -n 1 -f --log l.jsonl --memory-report r.json -o other.ckpt m.ckpt >/dev/null
    [ "$(stat -c %a m.ckpt other.ckpt l.jsonl r.json | tr '\n' ' ')" = '600 644 600 600 ' ]
}

# bats test_tags=native
@test "a filesystem without locks: 2, and why" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    local error words
    cp "$IN/small.ckpt" m.ckpt
    while read -r error words; do
        refuse -2 "m.ckpt: this file system has no locks, which two runs need (flock): $words" \
            env LD_PRELOAD="$FAILIO_SO" FAILIO="flock:1:$error" trainstep -q -d "$IN/ids.tok" m.ckpt
        cmp m.ckpt "$IN/small.ckpt"
    done <<<$'ENOLCK No locks available\nENOTSUP Operation not supported\nEOPNOTSUPP Operation not supported'
}

@test "a link in place of the lock is refused, not followed" {
    cp "$IN/small.ckpt" m.ckpt
    ln -s ../victim .m.ckpt.nibble-lock
    refuse -2 'is in the way of its lock' \
        trainstep -q -d "$IN/ids.tok" m.ckpt
    [ ! -e ../victim ]
    [ -L .m.ckpt.nibble-lock ]
    echo precious >../victim
    refuse -2 'is in the way of its lock' \
        trainstep -q -d "$IN/ids.tok" m.ckpt
    [ "$(cat ../victim)" = precious ]
    [ -L .m.ckpt.nibble-lock ]
    cmp m.ckpt "$IN/small.ckpt"
}

@test "what is no checkpoint, or not of this model" {
    cp "$IN/small.ckpt" m.ckpt
    datpack -q -o m.safetensors m.ckpt
    refuse -2 "not a checkpoint" trainstep -q -d "$IN/ids.tok" m.safetensors
    refuse -2 "nothing.ckpt" trainstep -q -d "$IN/ids.tok" nothing.ckpt
    head -c 5000 m.ckpt >cut.ckpt
    refuse -2 "cut.ckpt: byte 16: size of the file" trainstep -q -d "$IN/ids.tok" cut.ckpt
    : >empty.ckpt
    refuse -2 "empty.ckpt" trainstep -q -d "$IN/ids.tok" empty.ckpt
    # A payload that is not what its hash says.
    python3 - <<'PY'
import json, subprocess
raw = bytearray(open("m.ckpt", "rb").read())
at = json.loads(subprocess.check_output(["datcat", "--json", "m.ckpt"]))["tensors"][2]["offset"]
raw[at + 9] ^= 4
open("flip.ckpt", "wb").write(raw)
PY
    refuse -2 "is damaged: XXH3 is" trainstep -q -d "$IN/ids.tok" flip.ckpt
}

# A checkpoint whose numbers were made up, and its hashes with them.
@test "a training state out of range is refused, by datcat --verify too" {
    cp "$IN/small.ckpt" m.ckpt
    step -n 3 --spike 4 m.ckpt >/dev/null
    python3 - <<'PY'
import containers as c
raw = open("m.ckpt", "rb").read()
size = int.from_bytes(raw[24:32], "little")
head = c.unpack(raw[64:64 + size])
assert head["state"]["step"] == 3 and head["state"]["sampler"]["index"] == 9

def put(name, change):
    h = c.unpack(raw[64:64 + size])
    change(h["state"])
    arrays = [(a["offset"], raw[a["offset"]:a["offset"] + a["nbytes"]]) for a in h["arrays"]]
    total = c.ckpt_place(h)
    moved = [(a["offset"], data) for a, (_, data) in zip(h["arrays"], arrays)]
    with open(name + ".ckpt", "wb") as f:
        f.write(c.ckpt_seal(c.pack(h), moved, total))

put("same", lambda s: None)
M = (1 << 64) - 1
for key in "epoch", "index":
    put(key, lambda s: s["sampler"].update({key: M}))
    put(key + "63", lambda s: s["sampler"].update({key: (1 << 63) - 1}))
put("epoch62", lambda s: s["sampler"].update(epoch=(1 << 62) - 1))
put("step", lambda s: s.update(step=M))
put("step32", lambda s: s.update(step=(1 << 32) - 1))
put("t", lambda s: s.update(t=4))
put("skips", lambda s: s.update(skips=M))
put("norm", lambda s: s["spike"].update(norm=[-1.0] * 3))
put("loss", lambda s: s["spike"].update(loss=[1e300] * 3))
put("route", lambda s: s["routes"].update(gemm="\033[31mred"))
put("batch", lambda s: s["settings"].update(batch=M))
put("zero", lambda s: s["settings"].update(accum=0))
put("seed", lambda s: s["settings"].update(seed=1 << 32))
put("clip", lambda s: s["settings"].update(clip=1e300))
put("eps", lambda s: s["settings"].update(eps=0.0))
put("warm", lambda s: s["settings"].update(warmup=9, total_steps=3))
PY
    cmp m.ckpt same.ckpt
    local name
    # What no checkpoint may hold: the container knows.
    for name in epoch index step t skips norm loss; do
        cp $name.ckpt was
        run -1 --separate-stderr datcat -q --verify $name.ckpt
        [[ $stderr == *": \"$name\": expected "* ]] || { echo "$stderr" && false; }
        refuse -2 ": \"$name\": expected " trainstep -q -d "$IN/ids.tok" $name.ckpt
        cmp $name.ckpt was
    done
    # What only a training knows.
    for name in batch clip seed; do
        refuse -2 "\"$name\": " trainstep -q -d "$IN/ids.tok" $name.ckpt
    done
    refuse -2 '"accum": ' trainstep -q -d "$IN/ids.tok" zero.ckpt
    refuse -2 "--eps: 0: " trainstep -q -d "$IN/ids.tok" eps.ckpt
    refuse -2 "--warmup: " trainstep -q -d "$IN/ids.tok" warm.ckpt
    refuse -2 "-n: step 4294967296 is the last one" trainstep -q -d "$IN/ids.tok" step32.ckpt
    refuse -2 "goes on at sample 9223372036854775807: expected at most 30" \
        trainstep -q -d "$IN/ids.tok" index63.ckpt
    refuse -2 "goes on in epoch 9223372036854775807: expected less than 4611686018427387904" \
        trainstep -q -d "$IN/ids.tok" epoch63.ckpt
    # The last epoch to begin in; a name that a terminal would obey; an eps that is mended.
    run -0 --separate-stderr trainstep -q -d "$IN/ids.tok" -n 12 epoch62.ckpt
    [ "${#lines[@]}" -eq 13 ]
    datcat --meta epoch62.ckpt | has -F '"epoch":4611686018427387904,'
    run -0 --separate-stderr trainstep -q -d "$IN/ids.tok" route.ckpt
    [[ $stderr == *'\x1b[31mred" so far'* ]]
    trainstep -q -d "$IN/ids.tok" --eps 1e-8 eps.ckpt >/dev/null
}

@test "a pass of more positions than 31 bits count is refused" {
    cp "$IN/small.ckpt" m.ckpt
    sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 16777216/' \
        "$IN/config.json" >wide.json
    datpack -q --init 3 --config wide.json --to ckpt --quant none -o wide.ckpt
    for _ in {1..3000}; do echo -n '1 2 3 '; done >row
    tokenize -q --input ids -o row.tok row
    refuse -2 "--batch: 1048576 samples are a pass of 9436135424 positions" \
        trainstep -q -d row.tok --batch 1048576 --accum 1048576 wide.ckpt
    refuse -2 "expected at most 2147483647; --accum takes them in several" \
        trainstep -q -d row.tok --batch 1048576 --dry-run wide.ckpt
}

@test "what are no samples, or not for this model" {
    cp "$IN/small.ckpt" m.ckpt
    : >empty.tok
    refuse -2 "empty.tok" trainstep -q -d empty.tok m.ckpt
    echo '1 2 3 97' | tokenize -q --input ids -o big.tok
    refuse -2 "id 97 at position 3, the model's vocabulary is 97" trainstep -q -d big.tok m.ckpt
    refuse -2 "sample " trainstep -q -d "$IN/held.tok" --seq-len 8 m.ckpt
    [[ $stderr =~ ' (line '[0-9]+' of its text) has '([0-9]+)' ids, --seq-len 8 allows 9: --seq-len '([0-9]+)' takes it, tokenize --chunk 8 cuts documents, ' ]]
    [ "${BASH_REMATCH[1]}" -eq $((BASH_REMATCH[2] + 1)) ]
    seq -s ' ' 1 66 | tokenize -q --input ids -o long.tok
    refuse -2 "the model's context of 64 allows 65" trainstep -q -d long.tok m.ckpt
    # The producer is killed in the middle.
    head -c 900 "$IN/ids.tok" >part.tok
    refuse -2 "part.tok" trainstep -q -d part.tok m.ckpt
    # shellcheck disable=SC2016  # for the inner shell
    run -2 --separate-stderr bash -c 'head -c 900 "$IN/ids.tok" | trainstep -q m.ckpt'
    [ "${#stderr_lines[@]}" -eq 1 ]
    # shellcheck disable=SC2016  # for the inner shell
    run -2 --separate-stderr bash -c 'cat "$IN/ids.tok" "$IN/ids.tok" | trainstep -q m.ckpt'
    [ "${#stderr_lines[@]}" -eq 1 ]
    cmp m.ckpt "$IN/small.ckpt"
}

# bats test_tags=native
@test "samples that are written over or cut while they are trained on: 2, and the last save" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    local how what
    python3 - <<'PY'
import random
random.seed(5)
rows = [[random.randrange(97) for _ in range(9)] for _ in range(12)]
def put(name, rows):
    with open(name, "w") as f:
        for r in rows:
            print(*r, file=f)
put("was", rows)
put("other", [[96 - i for i in r] for r in rows])
put("wild", [[4000000000 - i for i in r] for r in rows])
put("longer", [r + [1] * 8 for r in rows[:7]])
PY
    for how in was other wild longer; do
        tokenize -q --input ids -o $how.tok $how
    done
    cp "$IN/plain.ckpt" two.ckpt
    trainstep -q -d was.tok --order file -n 2 two.ckpt >/dev/null
    # Nobody writes: the pause alone changes nothing, nor does another file of that name.
    for how in nothing other wild longer cut renamed; do
        for what in data eval; do
            cp was.tok live.tok
            cp "$IN/plain.ckpt" m.ckpt
            rm -f l.jsonl
            if [ $what = data ]; then
                paused write:2:stop:l.jsonl trainstep -q -d live.tok --order file -n 4 \
                    --save-every 2 --log l.jsonl m.ckpt
            else
                paused write:3:stop:l.jsonl trainstep -q -d was.tok --order file -n 4 \
                    --save-every 2 --eval live.tok --eval-every 1 --log l.jsonl m.ckpt
            fi
            case $how in
            nothing) ;;
            cut) truncate -s 100 live.tok ;;
            renamed) cp other.tok new.tok && mv new.tok live.tok ;;
            *) dd if=$how.tok of=live.tok conv=notrunc status=none ;;
            esac
            ended
            datcat --verify m.ckpt >/dev/null
            if [ $how = nothing ] || [ $how = renamed ]; then
                [ $status -eq 0 ]
                [ ! -s err ]
                continue
            fi
            echo "$how $what: $status $(cat err)"
            [ $status -eq 2 ]
            [ "$(wc -l <err)" -eq 1 ]
            grep -qE '^trainstep: live.tok: byte [0-9]+: sample [0-9]+: was (overwritten|cut off) ' err
            [ $what = eval ] || cmp m.ckpt two.ckpt
        done
    done
}

@test "another tokenizer than before" {
    local t=$HERE/vectors/tokenizer-small.json
    sed 's/97/4000/' "$IN/config.json" >config.json
    datpack -q --init 1 --config config.json --to ckpt -o m.ckpt
    printf 'a\tb\n' | tokenize -q -t "$t" -o a.tok
    sed 's/^{/{ /' "$t" >other.json
    printf 'a\tb\n' | tokenize -q -t other.json -o b.tok
    trainstep -q -d a.tok m.ckpt >/dev/null
    refuse -2 "another tokenizer" trainstep -q -d b.tok m.ckpt
}

@test "the tokenizer of an evaluation is compared, and not kept" {
    local t=$HERE/vectors/tokenizer-small.json
    sed 's/97/4000/' "$IN/config.json" >config.json
    datpack -q --init 1 --config config.json --to ckpt -o m.ckpt
    printf 'a\tb\n' | tokenize -q -t "$t" -o a.tok
    sed 's/^{/{ /' "$t" >other.json
    printf 'a\tb\n' | tokenize -q -t other.json -o b.tok
    trainstep -q -d "$IN/ids.tok" -o plain.ckpt m.ckpt >/dev/null
    trainstep -q -d "$IN/ids.tok" -o eval.ckpt --eval a.tok m.ckpt >/dev/null
    cmp plain.ckpt eval.ckpt
    trainstep -q -d b.tok eval.ckpt >/dev/null
    refuse -2 "a.tok: made with another tokenizer" trainstep -q -d b.tok --eval a.tok eval.ckpt
    refuse -2 "a.tok: made with another tokenizer" trainstep -q -d "$IN/ids.tok" --eval a.tok eval.ckpt
    refuse -2 "a.tok: made with another tokenizer" trainstep -q -d b.tok --eval a.tok m.ckpt
}

@test "options that make no sense" {
    cp "$IN/small.ckpt" m.ckpt
    t() { refuse -2 "$1" trainstep -q -d "$IN/ids.tok" "${@:2}"; }
    t "no CHECKPOINT: expected trainstep "
    t "found 2 operands: expected one CHECKPOINT" m.ckpt m.ckpt
    t "--lr: -1" --lr -1 m.ckpt
    t "--lr: nan" --lr nan m.ckpt
    t "--beta2" --beta2 1 m.ckpt
    # What kernels take as f32 must not become 0 there, which means something else.
    local option
    for option in lr min-lr beta1 beta2 weight-decay clip eps; do
        t "--$option: 1e-46: is 0 in f32: expected 0 or at least 1.4013e-45" --$option 1e-46 m.ckpt
        [ $option = eps ] || trainstep -q -d "$IN/ids.tok" --dry-run --$option 0 m.ckpt >/dev/null
        trainstep -q -d "$IN/ids.tok" --dry-run --$option 1e-45 --lr 1 m.ckpt >/dev/null
    done
    t "--eps: 0: expected a number above 0: an update divides by sqrt(v) + eps" --eps 0 m.ckpt
    t "--batch: 0" --batch 0 m.ckpt
    t "--order" --order random m.ckpt
    t "one of them" -n 1 --until 3 m.ckpt
    t "--compute: fp4" --compute fp4 m.ckpt
    t "--device cuda:1" --device cuda:1 m.ckpt
    t "native" --path native m.ckpt
    t "--eval" --eval-every 2 m.ckpt
    t "unknown" --nothing m.ckpt
    cmp m.ckpt "$IN/small.ckpt"
}

# ---- logs ---------------------------------------------------------------------

@test "the log: its keys, and lines of a run that was lost are dropped" {
    cp "$IN/small.ckpt" m.ckpt
    step -n 3 --log l.jsonl m.ckpt >tsv
    [ "$(head -n 1 tsv)" = $'step\tloss\ttokens\tlr\tgrad_norm\ttok_s\tmfu\tmem_gb\tms\tskipped' ]
    python3 - <<'PY'
import json
lines = [json.loads(l) for l in open("l.jsonl")]
want = "step loss tokens lr grad_norm tok_s mfu mem_gb ms skipped".split()
assert [l["step"] for l in lines] == [1, 2, 3]
assert all(list(l)[:10] == want for l in lines), lines[0]
assert all(l["mfu"] is None and l["skipped"] == 0 and l["mem_gb"] > 0 for l in lines)
rows = [l.rstrip("\n").split("\t") for l in open("tsv")][1:]
assert all(abs(float(r[1]) / l["loss"] - 1) < 1e-5 for r, l in zip(rows, lines))
PY
    cp l.jsonl three.jsonl
    # Lines of steps 4 and 5 that no checkpoint knows, and half a line.
    sed 's/"step":2/"step":4/; s/"step":3/"step":5/' three.jsonl | tail -n 2 >>l.jsonl
    printf '{"step":6,"lo' >>l.jsonl
    step -n 2 --log l.jsonl --eval "$IN/held.tok" m.ckpt >/dev/null
    head -n 3 l.jsonl | cmp - three.jsonl
    [ "$(grep -c '"eval_loss"' l.jsonl)" -eq 1 ]
    python3 -c '
import json
steps = [json.loads(l)["step"] for l in open("l.jsonl")]
assert steps == [1, 2, 3, 4, 5, 5], steps'
}

# bats test_tags=nosan,native
@test "a log that cannot be read is not cut" {
    local so=${NIBBLE_FAILIO:-$BUILD/failio.so}
    cp "$IN/small.ckpt" m.ckpt
    step -n 1 --log l.jsonl m.ckpt >/dev/null
    # A line of somebody's own, longer than a log has: the lines behind it are not lost.
    (cat l.jsonl; head -c 2000000 /dev/zero | tr '\0' x; echo; cat l.jsonl) >long.jsonl
    cp long.jsonl before
    refuse -2 'long.jsonl: line 2: longer than' trainstep -q -d "$IN/ids.tok" -n 1 \
        --log long.jsonl m.ckpt
    cmp long.jsonl before
    [ -e "$so" ] || skip "no failio.so"
    cp l.jsonl before
    refuse -2 'l.jsonl: line 1: read: Input/output error' env LD_PRELOAD="$so" \
        FAILIO="read:1:EIO:/l.jsonl" trainstep -q -d "$IN/ids.tok" -n 1 --log l.jsonl m.ckpt
    cmp l.jsonl before
    refuse -3 'l.jsonl: line 1: read: Cannot allocate memory' env LD_PRELOAD="$so" \
        FAILIO="read:1:ENOMEM:/l.jsonl" trainstep -q -d "$IN/ids.tok" -n 1 --log l.jsonl m.ckpt
    cmp l.jsonl before
}

@test "a log that a crash has cut anywhere is continued" {
    local n bytes first
    cp "$IN/plain.ckpt" m.ckpt
    step -n 2 --log whole.jsonl m.ckpt >/dev/null
    bytes=$(wc -c <whole.jsonl)
    first=$(head -n 1 whole.jsonl | wc -c)
    for ((n = 0; n <= bytes; n += n < 12 || n + 3 > first && n < first + 12 ? 1 : 37)); do
        head -c $n whole.jsonl >l.jsonl
        cp m.ckpt n.ckpt
        step -n 1 --log l.jsonl n.ckpt >/dev/null
        # Lines that were whole, and then that of step 3.
        python3 - $n <<'PY'
import json, sys
whole = open("whole.jsonl", "rb").read()[:int(sys.argv[1])]
kept = whole[:whole.rfind(b"\n") + 1]
got = open("l.jsonl", "rb").read()
assert got.startswith(kept), (kept, got)
rest = got[len(kept):]
assert rest.count(b"\n") == 1 and json.loads(rest)["step"] == 3, (kept, rest)
PY
    done
    # What is not the beginning of a log is not ours to cut.
    for n in '{"stop' '{"step"}' 'x' '{' '{"stepx":1}'; do
        printf '%s\n' "$n" >other
        refuse -2 "is no log of trainstep" trainstep -q -d "$IN/ids.tok" --log other m.ckpt
        [ "$(cat other)" = "$n" ]
    done
    printf '{"stop' >other
    refuse -2 "is no log of trainstep" trainstep -q -d "$IN/ids.tok" --log other m.ckpt
}

@test "a run that is refused leaves its log as it was" {
    local option
    cp "$IN/small.ckpt" m.ckpt
    cp m.ckpt old.ckpt
    step -n 3 --log l.jsonl old.ckpt >/dev/null
    printf '{"step":4,"lo' >>l.jsonl
    cp l.jsonl before
    echo foreign >there
    for option in '--tensorboard nodir/x' '--memory-report nodir/x' '--memory-report there'; do
        # shellcheck disable=SC2086  # two words
        refuse -2 "${option#* }" trainstep -q -d "$IN/ids.tok" --log l.jsonl $option m.ckpt
        cmp l.jsonl before
    done
    step -n 1 --log l.jsonl --tensorboard tb --memory-report new m.ckpt >/dev/null
    [ "$(grep -c . l.jsonl)" -eq 1 ]
    [ -e new ]
}

@test "lines of a log that are dropped are counted" {
    cp "$IN/small.ckpt" m.ckpt
    cp m.ckpt three.ckpt
    step -n 3 --log l.jsonl three.ckpt >/dev/null
    head -n 1 l.jsonl >one.jsonl
    cp l.jsonl quiet.jsonl
    # All but the last line, which says where the run was saved.
    t() {
        run -0 --separate-stderr trainstep --device cpu -d "$IN/ids.tok" -n 1 -f -o x.ckpt "$@"
        stderr=$(grep -v 'x.ckpt: saved at step ' <<<"$stderr") || true
    }
    cp l.jsonl eval.jsonl
    t --log l.jsonl m.ckpt
    [ "$stderr" = "trainstep: l.jsonl: 3 lines of steps beyond 0 are dropped" ]
    # An evaluation is said behind what its line of the log does.
    t --log eval.jsonl --eval "$IN/held.tok" --eval-first m.ckpt
    [[ $stderr == "trainstep: eval.jsonl: 3 lines of steps beyond 0 are dropped"$'\n'"trainstep: step 0: evaluation loss "* ]]
    t --log one.jsonl m.ckpt
    [ "$stderr" = "trainstep: one.jsonl: 1 line of steps beyond 0 is dropped" ]
    t -q --log quiet.jsonl m.ckpt
    [ -z "$stderr" ]
    [ "$(wc -l <quiet.jsonl)" -eq 1 ]
    # Of a line that a crash has cut nothing is said.
    printf '{"step":4,"lo' >>l.jsonl
    step -n 1 m.ckpt >/dev/null
    t --log l.jsonl m.ckpt
    [ -z "$stderr" ]
    [ "$(wc -l <l.jsonl)" -eq 2 ]
}

@test "a memory report to a pipe: its reader is waited for at the start, and a signal ends that" {
    mkfifo pipe
    cp "$IN/small.ckpt" m.ckpt
    run -124 timeout -k 60 1 trainstep -q -f -d "$IN/ids.tok" -n 1 --memory-report pipe m.ckpt
    [ -z "$output" ]
    cmp m.ckpt "$IN/small.ckpt"
    cat pipe >m.json &
    step -n 2 --memory-report pipe m.ckpt >/dev/null
    wait $!
    report 'assert p.count("optimizer_step_done") == 2, p'
    # One that does not read holds nothing up either.
    exec 9<>pipe
    local pid status=0
    trainstep -q -d "$IN/ids.tok" --until 1000000 --memory-report pipe m.ckpt >rows 9>&- 3>&- &
    pid=$!
    for _ in $(seq 1200); do
        [ "$(wc -l <rows)" -lt 2 ] || break # a step is done
        sleep 0.05
        kill -0 $pid
    done
    kill -TERM $pid
    wait $pid || status=$?
    [ "$status" -eq 75 ]
    exec 9>&-
}

@test "evaluation is what generate --score says" {
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu --batch 2 -n 1 --lr 0 \
        --eval "$IN/held.tok" -o e.ckpt "$IN/plain.ckpt"
    local ours theirs
    ours=$(sed -n 's/.*evaluation loss \([0-9.]*\) .*/\1/p' <<<"$stderr")
    theirs=$(generate --score "$IN/held.tok" "$IN/plain.ckpt" | tail -n 1 | cut -f 4)
    awk -v a="$ours" -v b="$theirs" 'BEGIN { d = a / b - 1; exit !(d < 1e-5 && d > -1e-5) }'
    # A pass is of a batch, however many samples there are: the memory of the next step tells.
    for _ in $(seq 200); do cat "$IN/held"; done | tokenize -q --input ids -o many.tok
    trainstep -q -d "$IN/ids.tok" --device cpu --batch 2 -n 2 --eval many.tok --eval-every 1 \
        -o f.ckpt "$IN/plain.ckpt" >rows
    column 8 <rows | awk '{ gb[NR] = $1 } END { exit !(NR == 2 && gb[2] < gb[1] + 0.03) }'
}

@test "TensorBoard's events, and memory by phase" {
    step -n 2 --tensorboard tb --memory-report m.json -o x.ckpt "$IN/small.ckpt" >tsv
    # Numbers of steps that take two bytes.
    step -n 129 --tensorboard far -o far.ckpt "$IN/small.ckpt" >/dev/null
    python3 - <<'PY'
import glob, json, struct

def crc(data):
    c = 0xffffffff
    for b in data:
        c ^= b
        for _ in range(8):
            c = c >> 1 ^ (0x82f63b78 if c & 1 else 0)
    c ^= 0xffffffff
    return ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff

def read(folder):
    raw = open(glob.glob(folder + "/events.out.tfevents.*")[0], "rb").read()
    events, at = [], 0
    while at < len(raw):
        n, c = struct.unpack_from("<QI", raw, at)
        assert crc(raw[at:at + 8]) == c
        body = raw[at + 12:at + 12 + n]
        assert crc(body) == struct.unpack_from("<I", raw, at + 12 + n)[0]
        events.append(body)
        at += 16 + n
    return events

far = [e[9:12] for e in read("far")[1:]]
assert len(far) == 4 * 129 and far[4 * 126][:2] == b"\x10\x7f"
assert far[4 * 127] == b"\x10\x80\x01" and far[-1] == b"\x10\x81\x01", far[-5:]
events = read("tb")
assert events[0][9:] == b"\x1a\x0dbrain.Event:2", events[0]
assert len(events) == 1 + 2 * 4
rows = [l.split("\t") for l in open("tsv")][1:]
first = events[1]
# Step 1; a summary of 13 bytes, in it a value of 11: the tag and a float.
assert first[9:-4] == b"\x10\x01\x2a\x0d\x0a\x0b\x0a\x04loss\x15", first
assert abs(struct.unpack("<f", first[-4:])[0] / float(rows[0][1]) - 1) < 1e-5
m = json.load(open("m.json"))
phases = [s["Phase"] for s in m["Samples"]]
step = ["batch_ready", "zero_grad_done", "backward_done", "optimizer_step_done"]
assert phases == ["start", "model_loaded"] + 2 * step, phases
for s in m["Samples"]:
    assert len(s["TimestampUtc"]) == 28 and s["PidMemoryMiB"] > 0
assert set(m) >= {"Pid", "CreatedUtc", "Samples"}
PY
}

# report PYTHON: about the memory report m.json, m; its phases, p.
report() {
    python3 -c "import json
m = json.load(open('m.json'))
p = [s['Phase'] for s in m['Samples']]
$1"
}

# bats test_tags=native
@test "the memory report is whole at every save and on every exit" {
    signals
    cp "$IN/small.ckpt" m.ckpt
    # Steps that are not finite.
    datpack -q -o m.safetensors "$IN/plain.ckpt"
    python3 - <<'PY'
import json, struct
raw = bytearray(open("m.safetensors", "rb").read())
n = struct.unpack_from("<Q", raw)[0]
at = json.loads(raw[8:8 + n])["model.norm.weight"]["data_offsets"][0]
struct.pack_into("<I", raw, 8 + n + at, 0x7fc00000)
open("m.safetensors", "wb").write(raw)
PY
    datpack -q --to ckpt --quant none --master f32 -o nan.ckpt m.safetensors
    run -4 trainstep -q -d "$IN/ids.tok" --batch 3 -n 30 --max-skips 2 --memory-report m.json nan.ckpt
    report 'assert p[:2] == ["start", "model_loaded"] and p.count("optimizer_step_done") == 2, p'
    # Replaced, since it is ours, by that of a run whose second save fails.
    run -2 env LD_PRELOAD="$FAILIO_SO" FAILIO='fallocate:2:ENOSPC:.m.ckpt' \
        trainstep -q -d "$IN/ids.tok" -n 9 --save-every 2 --memory-report m.json m.ckpt
    report 'assert p.count("optimizer_step_done") == 4, p'
    python3 - <<'PY'
from signals import *
import json
fresh()
p = start("--until", "1000000", "--save-every", "2", "--memory-report", "m.json", "m.ckpt",
          failio="rename:2:kill=9:m.ckpt")
ends_by = p.wait(60)
assert ends_by == -9, ends_by
m = json.load(open("m.json"))
# Of the first save.
steps = [s["Step"] for s in m["Samples"] if s["Phase"] == "optimizer_step_done"]
assert steps == [1, 2], steps
for f in os.listdir("."):
    if ".nibble" in f:
        os.unlink(f)
p = start("--until", "1000000", "--memory-report", "m.json", "m.ckpt")
rows(p, 3)
send(p, signal.SIGTERM)
ends(p, 75)
m = json.load(open("m.json"))
assert m["Samples"][-1]["Step"] == step() > 2
PY
    report 'assert m["UnifiedMemory"] is False and m["Device"] == "cpu"
for s in m["Samples"]:
    assert s["PidMemoryMiB"] == s["TotalMemoryMiB"] == s["HostRssMiB"] > 0'
    # What is not ours is not replaced without -f, and known before the first step.
    local other
    for other in '' '{"Pid":1,"CreatedUtc":"x","Samples":[]}' '{"Tool":"trainstep"}'; do
        printf '%s' "$other" >m.json
        refuse -2 "exists; -f replaces it" trainstep -q -d "$IN/ids.tok" --memory-report m.json m.ckpt
        [ "$(cat m.json)" = "$other" ]
    done
    trainstep -q -f -d "$IN/ids.tok" --memory-report m.json m.ckpt >/dev/null
    report 'assert len(p) == 6'
    refuse -2 "standard output" trainstep -q -d "$IN/ids.tok" --memory-report - m.ckpt
}

# fake_driver CUINIT COUNT: a libcuda.so.1 in ./driver that says so.
fake_driver() {
    command -v "${CC:-cc}" >/dev/null || skip "no compiler for a driver"
    mkdir -p driver
    echo "int cuInit(unsigned f) { (void)f; return $1; } int cuDeviceGetCount(int *n) { *n = $2; return 0; }" |
        "${CC:-cc}" -shared -fPIC -o driver/libcuda.so.1 -x c -
}

# bats test_tags=native
@test "--diagnose, and a device or path that is not here: 2, and why" {
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | has libcuda.so.1 && skip "this machine has a driver"
    local none="no NVIDIA GPU or driver here: there is no libcuda.so.1"
    run -2 --separate-stderr trainstep --diagnose --device cuda
    [ "$stderr" = "trainstep: --device cuda: $none" ]
    [[ $output == *$'\nisa\t'*$'\ncuda\t'"$none" ]]
    run -2 --separate-stderr trainstep --diagnose --device cuda:1
    [ "$stderr" = "trainstep: --device cuda:1: $none" ]
    run -2 --separate-stderr trainstep --diagnose --path native
    [[ $stderr == "trainstep: --path native: "* ]]
    [[ $output == *$'\npath.native\tno: '"$none"$'\n'* ]]
    run -0 --separate-stderr trainstep --diagnose --device cpu
    run -0 --separate-stderr trainstep --diagnose --path dequant
    run -0 --separate-stderr trainstep --diagnose
    # The others say the same.
    refuse -2 "--device cuda: $none" trainstep -q --device cuda -d "$IN/ids.tok" --overcommit "$IN/small.ckpt"
    refuse -2 "--device cuda: $none" generate -q --device cuda --ids -p '1 2' "$IN/small.ckpt"
    refuse -2 "$none" nvquant -q --device cuda -o x.dat "$IN/small.ckpt"
    # A driver that starts not, or finds nothing.
    local words rc n
    while read -r rc n words; do
        fake_driver "$rc" "$n"
        LD_LIBRARY_PATH=$PWD/driver refuse -2 "$words" generate -q --device cuda:1 --ids -p '1 2' "$IN/small.ckpt"
        LD_LIBRARY_PATH=$PWD/driver run -2 --separate-stderr trainstep --diagnose --device cuda:1
        [[ $stderr == "trainstep: --device cuda:1: $words"* ]]
    done <<'DRIVERS'
100 0 no NVIDIA GPU here: the driver finds none
0 0 no NVIDIA GPU here: the driver finds none
803 0 the NVIDIA driver does not start: CUDA error 803; does nvidia-smi work?
0 1 there is no GPU 1: there are 1, from 0 on
DRIVERS
}

# fits WHAT PLANNED COMMAND...: the most that it ever needs, saving too, is what was planned,
# and no less than .95 of it, or of $least bytes: on a busy machine some of many threads get no
# work, and touch no room.
fits() {
    local used
    used=$(python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "${@:3}")
    echo "$1: planned $2 bytes, used $used KiB"
    awk -v p="$2" -v u="$used" -v least="${least:-$2}" \
        'BEGIN { u *= 1024; exit !(u > .95 * least && u < 1.05 * p) }'
}

@test "the plan: what is recomputed or not trained has no activations of its own" {
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 8/' "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt -o m.ckpt
    activations() {
        trainstep -q -d "$IN/ids.tok" --batch 4 "$@" --dry-run m.ckpt | awk '$1 == "kept" { print $2 }'
    }
    local all block last
    all=$(activations)
    block=$(activations --recompute block)
    last=$(activations --train-last-layers 1)
    # The parts are all that there is.
    trainstep -q -d "$IN/ids.tok" --batch 4 --dry-run m.ckpt | awk -F '\t' '
        $1 == "total" { exit !(sum == $2 && has["inputs"] > 0 && has["program"] > 0) }
        NR > 1 { sum += $2; has[$1] = $2 }'
    [ $((block * 2)) -lt "$all" ]
    [ $((last * 2)) -lt "$all" ]
    [ $((block * 8)) -gt "$all" ]
    [ $((last * 8)) -gt "$all" ]
}

# Measured and planned memory, of models that are larger than the program.
# bats test_tags=nosan,native,slow
@test "the plan is what a run needs, within 5 %" {
    sed 's/"vocab_size": 97/"vocab_size": 6000/; s/"hidden_size": 32/"hidden_size": 384/
        s/"intermediate_size": 48/"intermediate_size": 1024/
        s/"num_hidden_layers": 2/"num_hidden_layers": 6/' "$IN/config.json" >config.json
    python3 -c '
for i in range(8):
    print(*[(i * 97 + k * 31) % 6000 for k in range(65)])' >ids
    tokenize -q --input ids -o d.tok ids
    # Neither the free memory of this machine nor its number of processors counts.
    plenty
    local options
    while read -r options; do
        datpack -q -f --init 3 --config config.json --to ckpt -o m.ckpt
        # shellcheck disable=SC2086
        planned=$(here trainstep -q -d d.tok -j 2 --batch 8 $options --dry-run m.ckpt |
            sed -n 's/^total\t\([0-9]*\)\t.*/\1/p')
        # shellcheck disable=SC2086
        fits "$options" "$planned" env LD_PRELOAD="$MACHINE_SO" trainstep -q -d d.tok -j 2 --batch 8 $options -n 2 m.ckpt
    done <<'OPTIONS'
--recompute none
--recompute block
--clip-mode prev
--train-last-layers 2
OPTIONS
    # A small model whose threads need much: each has long rows of scores of its own.
    sed 's/"vocab_size": 97/"vocab_size": 3000/; s/"hidden_size": 32/"hidden_size": 384/
        s/"intermediate_size": 48/"intermediate_size": 512/
        s/"max_position_embeddings": [0-9]*/"max_position_embeddings": 2048/' \
        "$IN/config.json" >config.json
    python3 -c 'print(*[(k * 31) % 3000 for k in range(1025)])' >ids
    tokenize -q -f --input ids -o d.tok ids
    # One always works; the others are planned with what they have at most, here less than a MB.
    total() {
        here trainstep -q -d "$1" --batch "$2" -j "$3" --dry-run m.ckpt | sed -n 's/^total\t\([0-9]*\)\t.*/\1/p'
    }
    local threads one least
    for threads in 1 16 40; do
        datpack -q -f --init 3 --config config.json --to ckpt -o m.ckpt
        one=$(total d.tok 1 1)
        planned=$(total d.tok 1 $threads)
        [ "$threads" = 1 ] || {
            [ $(((planned - one) / (threads - 1))) -gt 500000 ]
            [ $(((planned - one) / (threads - 1))) -lt 1000000 ]
        }
        least=$((one * 9 / 10)) fits "$threads threads" "$planned" env LD_PRELOAD="$MACHINE_SO" trainstep -q -d d.tok -j $threads -n 2 m.ckpt
    done
    # Full bins have one length, and documents in them: a row of scores is as long as the pass.
    python3 -c '
for i in range(164):
    print(*[(i * 31 + k * 7) % 3000 for k in range(25)])' >ids
    tokenize -q -f --input ids --pack --seq-len 1024 -o packed.tok ids
    datpack -q -f --init 3 --config config.json --to ckpt -o m.ckpt
    one=$(total packed.tok 4 1)
    planned=$(total packed.tok 4 16)
    echo "packed: one thread $one, 16 $planned"
    least=$((one * 9 / 10)) fits "packed" "$planned" env LD_PRELOAD="$MACHINE_SO" trainstep -q -d packed.tok --batch 4 -j 16 -n 2 m.ckpt
    refuse -3 "--memory-limit is 0.050" env LD_PRELOAD="$MACHINE_SO" trainstep -q -d d.tok --batch 8 --memory-limit 0.05 m.ckpt
}

# ---- plans above what is free ----------------------------------------------------

# little KB: what is free, as the kernel tells programs that begin from now on.
little() {
    mkdir -p machine/proc/self machine/sys/fs/cgroup/group
    echo "MemAvailable: $1 kB" >machine/proc/meminfo
    printf 'VmRSS: 0 kB\nVmHWM: 0 kB\n' >machine/proc/self/status
    : >machine/proc/self/cgroup
    export MACHINE=$PWD/machine
}

# plenty: a TB is free, whatever this machine has; what a process says of itself is true.
plenty() {
    little 1000000000
    ln -sf /proc/self/status machine/proc/self/status
}

# here COMMAND...: on that machine.
here() {
    LD_PRELOAD=$MACHINE_SO "$@"
}

# bats test_tags=native
@test "a plan above what is free: 3, and the largest batch that fits" {
    local n
    cp "$IN/small.ckpt" m.ckpt
    little 20000
    run -3 --separate-stderr here trainstep -d "$IN/ids.tok" --batch 20000 m.ckpt
    [ -z "$output" ]
    [[ ${stderr_lines[-1]} =~ ^'trainstep: the plan needs '.*' GB, this machine has 0.019 free: --batch '([0-9]+)' is the largest that fits; --overcommit tries it'$ ]]
    n=${BASH_REMATCH[1]}
    [ "$n" -gt 10 ]
    cmp m.ckpt "$IN/small.ckpt"
    # It is; and a plan is printed whether it fits or not.
    run -0 --separate-stderr here trainstep -d "$IN/ids.tok" --batch "$n" --dry-run m.ckpt
    [[ $output == *$'\nfits\tyes\t' ]]
    run -0 --separate-stderr here trainstep -d "$IN/ids.tok" --batch $((n + 1)) --dry-run m.ckpt
    [[ $output == *$'\nfits\tno\t' ]]
    [[ ${stderr_lines[-1]} == *": --batch $n is the largest that fits" ]]
    run -0 --separate-stderr here trainstep -q -d "$IN/ids.tok" --batch $((n + 1)) --dry-run m.ckpt
    [ -z "$stderr" ]
    here trainstep -q -d "$IN/ids.tok" --batch "$n" -o x.ckpt m.ckpt >/dev/null
    # Tried all the same, with a warning; but a limit that was set holds.
    run -0 --separate-stderr here trainstep -d "$IN/ids.tok" --batch $((2 * n)) --overcommit -o y.ckpt m.ckpt
    [[ $stderr == *"the plan needs "*" GB, this machine has 0.019 free: --overcommit tries it"* ]]
    # What is too large by far is not counted token by token, but estimated from smaller plans.
    little 4000000
    run -3 --separate-stderr here trainstep -q -d "$IN/ids.tok" --batch 1000000 m.ckpt
    [[ ${stderr_lines[-1]} =~ ^'trainstep: the plan needs about '([0-9]+).*': --batch '([0-9]+)' is the largest that fits; --overcommit tries it'$ ]]
    need=${BASH_REMATCH[1]} n=${BASH_REMATCH[2]}
    run -0 here trainstep -q -d "$IN/ids.tok" --batch 1000000 --dry-run m.ckpt
    awk -v need="$need" '$1 == "total" { d = $3 / need; exit !(d > 0.9 && d < 1.2) }' <<<"$output"
    # A plan has the program's own size, which may differ a little from run to run.
    run -0 here trainstep -q -d "$IN/ids.tok" --batch $((n - n / 50)) --dry-run m.ckpt
    [[ $output == *$'\nfits\tyes\t' ]]
    run -0 here trainstep -q -d "$IN/ids.tok" --batch $((n + n / 50)) --dry-run m.ckpt
    [[ $output == *$'\nfits\tno\t' ]]
    # A process with sanitizers is large before it has begun.
    n=${NIBBLE_SAN:+5}
    plenty
    run -3 --separate-stderr here trainstep -d "$IN/ids.tok" --batch 1000000 --overcommit \
        --memory-limit "0.${n:-0}5" m.ckpt
    [[ $stderr =~ "--memory-limit is 0.${n:-0}50: --batch "[0-9]+' is the largest that fits'$ ]]
}

# bats test_tags=native
@test "limits of control groups count as what is free, less the page cache" {
    local version
    cp "$IN/small.ckpt" m.ckpt
    little 20000000
    for version in 2 1; do
        rm -rf machine/sys
        if [ $version = 2 ]; then
            mkdir -p machine/sys/fs/cgroup/group
            echo 0::/group >machine/proc/self/cgroup
            cd machine/sys/fs/cgroup/group
            echo 40000000 >memory.max
            echo 30000000 >memory.current
            printf 'inactive_file 4000000\nactive_file 1000000\n' >memory.stat
        else
            mkdir -p machine/sys/fs/cgroup/memory/group
            echo 4:memory:/group >machine/proc/self/cgroup
            cd machine/sys/fs/cgroup/memory/group
            echo 40000000 >memory.limit_in_bytes
            echo 30000000 >memory.usage_in_bytes
            printf 'total_inactive_file 4000000\ntotal_active_file 1000000\n' >memory.stat
        fi
        cd "$BATS_TEST_TMPDIR/w"
        run -3 --separate-stderr here trainstep -d "$IN/ids.tok" --batch 20000 m.ckpt
        [[ ${stderr_lines[-1]} == *"this machine has 0.014 free: --batch "* ]]
        run -0 here trainstep --diagnose
        [[ $output == *$'\nmemory_available\t15000000\n'* ]]
    done
}

# bats test_tags=native
@test "where not even one sample fits, what else does is what the plan says" {
    local words
    sed 's/"vocab_size": 97/"vocab_size": 300/; s/"num_hidden_layers": 2/"num_hidden_layers": 8/
        s/"hidden_size": 32/"hidden_size": 64/; s/"intermediate_size": 48/"intermediate_size": 256/' \
        "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt -o m.ckpt
    python3 -c 'print(*[(k * 31) % 97 for k in range(60)])' >ids
    tokenize -q --input ids -o d.tok ids
    # plan LENGTH OPTION...: for a sample of that many positions.
    plan() {
        python3 -c "print(*[(k * 31) % 97 for k in range($1 + 1)])" >ids
        tokenize -q -f --input ids -o short.tok ids
        here trainstep -q -d short.tok -j 1 "${@:2}" --dry-run m.ckpt
    }
    # enough LENGTH OPTION...: what is free is that plan and 1 to 2 KB.
    enough() {
        little 1000000
        little $(($(plan "$@" | sed -n 's/^total\t\([0-9]*\)\t.*/\1/p') / 1024 + 2))
    }
    # advised OTHERS LENGTH: OTHERS stand before the number of layers, and a length is named when
    # LENGTH, which fits, is not 0; each is the largest that fits, what is not named does not fit.
    advised() {
        local layers=0 most=0 prev=no
        run -3 --separate-stderr here trainstep -d d.tok -j 1 --batch 4 --recompute none m.ckpt
        words=${stderr_lines[-1]#*: not even --batch 1 fits; with it "$1"}
        [[ $words != '--clip-mode prev does, or '* ]] || prev=yes
        words=${words#'--clip-mode prev does, or '}
        [[ $(plan 59 --recompute none --clip-mode prev) == *$'\nfits\t'$prev$'\t' ]]
        [[ $words =~ ^'--train-last-layers '([0-9]+)' does'(', or samples of at most '([0-9]+)' positions do')?'; --overcommit tries it'$ ]]
        layers=${BASH_REMATCH[1]} most=${BASH_REMATCH[3]:-0}
        [ "$layers" -ge 3 ]
        [ "$layers" -lt 8 ]
        [[ $(plan 59 --recompute none --train-last-layers "$layers") == *$'\nfits\tyes\t' ]]
        [[ $(plan 59 --recompute none --train-last-layers $((layers + 1))) == *$'\nfits\tno\t' ]]
        [ "$most" -ge "$2" ]
        [ "$most" -lt 59 ]
        [ $((most > 0)) -eq $(($2 > 0)) ]
        [ "$most" -eq 0 ] || [[ $(plan "$most" --recompute none) == *$'\nfits\tyes\t' ]]
        [[ $(plan $((most + 1)) --recompute none) == *$'\nfits\tno\t' ]]
        [[ $(plan 59 --recompute block) == *$'\nfits\t'"$([ -n "$1" ] && echo yes || echo no)"$'\t' ]]
    }
    enough 59 --recompute none --train-last-layers 3
    advised '' 0
    enough 16 --recompute none
    advised '' 16
    enough 40 --recompute none
    advised '--recompute block does, or ' 40
    # With much less nothing helps.
    little 100
    run -3 --separate-stderr here trainstep -d d.tok -j 1 m.ckpt
    [[ ${stderr_lines[-1]} == *': not even --batch 1 fits, nor do shorter samples or fewer layers to train; --overcommit tries it' ]]
}

@test "--dry-run needs a config.json and nothing else" {
    local with
    trainstep -q -d "$IN/ids.tok" -n 1 -o m.ckpt "$IN/small.ckpt" >/dev/null
    # As for samples of that length; both have the default checkpoint of a new model.
    python3 -c "print(*[(k * 31) % 97 for k in range(33)])" >ids
    tokenize -q --input ids -o long.tok ids
    datpack -q --init 1 --config "$IN/config.json" -o m.safetensors
    with=$(trainstep -q -j 1 -d long.tok --batch 4 --dry-run m.safetensors)
    mkdir alone
    cp "$IN/config.json" alone/
    run -0 --separate-stderr trainstep -j 1 --batch 4 --seq-len 32 --dry-run alone/config.json </dev/null
    # The program's own size and the length of the file's header are not those of the model.
    not_model='^(program|total|checkpoint)'
    [ "$(grep -Ev "$not_model" <<<"$output")" = "$(grep -Ev "$not_model" <<<"$with" | sed 's/^targets.*/targets\t128\t/')" ]
    [[ $stderr == *'no samples: the plan is for samples of 32 positions that are all targets; -d FILE.tok plans for samples'* ]]
    # A pipe that never ends, as of a remote shell, is not read.
    mkfifo endless
    run -0 timeout 60 bash -c 'exec 0<>endless; trainstep -q --dry-run alone/config.json'
    # Without --seq-len: the context of a short model. Samples can be given.
    run -0 trainstep -q --dry-run alone/config.json
    [[ $output == *$'\ntokens\t'"$(json "d['max_position_embeddings']" <alone/config.json)"$'\t'* ]]
    run -0 trainstep -q -j 1 -d long.tok --batch 4 --dry-run alone/config.json
    [ "$(grep -Ev "$not_model" <<<"$output")" = "$(grep -Ev "$not_model" <<<"$with")" ]
    # What is no configuration of a model says so; only a plan takes one.
    echo '{}' >alone/tokenizer.json
    refuse 'alone/tokenizer.json: ' trainstep -q --dry-run alone/tokenizer.json
    run -2 --separate-stderr trainstep -q -d "$IN/ids.tok" alone/config.json
}

@test "of a GPU the plan and --memory-limit count what its driver takes" {
    run -0 --separate-stderr trainstep -q --device cuda -d "$IN/ids.tok" --dry-run "$IN/small.ckpt"
    awk '$1 == "driver" { driver = $2 } $1 == "total" { total = $2 }
        END { exit !(driver > 2^29 && driver < 2^31 && total > driver && total < driver + 2^29) }' <<<"$output"
    [[ $output != *program* ]]
    refuse -3 "--memory-limit is 1.000" trainstep -q --device cuda -d "$IN/ids.tok" --memory-limit 1 "$IN/small.ckpt"
    # Without a GPU nothing is known to be free: the fastest way, as it would be.
    run -0 --separate-stderr trainstep -v --device cuda -d "$IN/ids.tok" --dry-run "$IN/small.ckpt"
    [[ $stderr == *"--recompute none, weights expanded"* ]]
}

@test "TorchSharp's loss, and its gradient" {
    run -0 --separate-stderr step -n 30 --loss scalar -o x.ckpt "$IN/plain.ckpt"
    column 2 <<<"$output" | awk 'NR == 1 { a = $1 } { b = $1 } END { exit !(b < 0.9 * a) }'
    # Each step begins without a gradient: a run that was cut has the same.
    step -n 3 --loss scalar --compat torchsharp -o y.ckpt "$IN/plain.ckpt" >/dev/null
    step -n 1 --loss scalar --compat torchsharp -o z.ckpt "$IN/plain.ckpt" >/dev/null
    trainstep -q -d "$IN/ids.tok" --compat torchsharp --until 3 z.ckpt >/dev/null
    cmp y.ckpt z.ckpt
}

@test "TorchSharp's packed optimizer: the same bytes however it is run" {
    local moments isa
    for moments in nvfp4 int8; do
        fresh new.ckpt --compat torchsharp --moments $moments
        # Rates and gradients that move codes: those of the usual size do not.
        step -n 6 --lr 0.1 --clip 0 --weight-decay 0.1 -f -o whole.ckpt new.ckpt >/dev/null
        datcat --verify whole.ckpt
        run -1 datcat -q --diff new.ckpt whole.ckpt
        step -n 2 --lr 0.1 --clip 0 --weight-decay 0.1 -f -o cut.ckpt new.ckpt >/dev/null
        trainstep -q -d "$IN/ids.tok" --until 6 cut.ckpt >/dev/null
        cmp whole.ckpt cut.ckpt
        isas
        for isa in $isas; do
            NIBBLE_ISA=$isa step -n 6 -j 3 --chunk-rows 5 --recompute block --lr 0.1 --clip 0 \
                --weight-decay 0.1 -f -o cut.ckpt new.ckpt >/dev/null
            cmp whole.ckpt cut.ckpt
        done
        step -n 2 --lr 0.1 --train-last-layers 1 -f -o last.ckpt new.ckpt >/dev/null
        datcat -q --diff -s 'model.layers.0.*' new.ckpt last.ckpt
        run -1 datcat -q --diff -s 'model.layers.1.*' new.ckpt last.ckpt
    done
}

@test "TorchSharp's packed optimizer: what is wrong with it" {
    local array
    fresh new.ckpt --compat torchsharp --moments nvfp4
    # Weights of deviation 0.1 do not move at a rate that others learn by.
    step -n 5 --lr 3e-4 --clip 0.05 -o same.ckpt new.ckpt >/dev/null
    datcat -q --diff --atol 0 --rtol 0 new.ckpt same.ckpt # but the sign of 0 may
    # And what it should remember is 0.
    datcat --names --raw-entries same.ckpt | grep '^adam.*scale$' >scales
    [ "$(wc -l <scales)" -eq 48 ]
    while read -r array; do
        [ "$(datcat --payload "$array" same.ckpt | tr -d '\0' | wc -c)" -eq 0 ]
    done <scales
    # Larger gradients leave an m beside a v of 0: where none comes in the next step, as in
    # rows of the embedding, that is a step of m / eps.
    step -n 5 --lr 3e-4 --clip 0 -o wild.ckpt new.ckpt >/dev/null
    run -1 datcat -q --diff --atol 0.1 --rtol 0 -s model.embed_tokens.weight new.ckpt wild.ckpt
    # Norm gains of 1 are 1.03125 from the first.
    [ "$(datcat --values model.norm.weight:1 new.ckpt)" = 1.03125 ]
}

@test "a checkpoint of the packed optimizer is a model like others" {
    fresh new.ckpt --compat torchsharp
    step -n 1 --lr 0.1 -o m.ckpt new.ckpt >/dev/null
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --device cpu -n 1 --lr 0 \
        --eval "$IN/held.tok" -o e.ckpt m.ckpt
    local ours theirs f
    ours=$(sed -n 's/.*evaluation loss \([0-9.]*\) .*/\1/p' <<<"$stderr")
    theirs=$(generate --score "$IN/held.tok" e.ckpt | tail -n 1 | cut -f 4)
    awk -v a="$ours" -v b="$theirs" 'BEGIN { d = a / b - 1; exit !(d < 1e-5 && d > -1e-5) }'
    # Into any container, projections as they are, the rest as floats that hold it exactly.
    for f in m.dat m.safetensors; do
        datpack -q -o $f e.ckpt
        datcat -q --diff --atol 0 --rtol 0 -x lm_head.weight $f e.ckpt
        datcat --names "$f" >/dev/null
    done
    datpack -q --compat torchsharp -o s.dat e.ckpt
    [ "$(datcat --tsv s.dat | grep -c nvfp4)" -eq 15 ]
}

@test "where the weights come from, in one span however a run was cut" {
    cp "$IN/small.ckpt" m.ckpt
    step -n 2 m.ckpt >/dev/null
    step -n 2 m.ckpt >/dev/null
    step -n 1 --lr 2e-3 m.ckpt >/dev/null
    datcat --meta m.ckpt | python3 -c '
import json, sys
p = json.load(sys.stdin)["meta"]["provenance"]
spans = p["options"]["spans"]
assert p["tool"] == "trainstep" and len(p["inputs"]) == 1
assert p["inputs"][0]["provenance"]["tool"] == "datpack"
assert [(s["first"], s["last"]) for s in spans] == [(1, 4), (5, 5)], spans
assert [s["settings"]["lr"] for s in spans] == [1e-2, 2e-3]
assert spans[0]["data"]["tool"] == "tokenize"'
}

# bats test_tags=slow
@test "of many spans the older ones are one digest, the same however a run was cut" {
    local span
    for m in a b c; do
        cp "$IN/plain.ckpt" $m.ckpt
    done
    # a: a run for each span of two steps.  b: a run for each step.  c: both by turns.
    t() { trainstep -q -d "$IN/even.tok" --seed "$@" >/dev/null; }
    for span in {1..140}; do
        t "$span" -n 2 a.ckpt
        t "$span" -n 1 b.ckpt
        t "$span" -n 1 b.ckpt
        [ "$span" -ne 128 ] || datcat --meta a.ckpt >all.json
        [ "$span" -ne 129 ] || cmp a.ckpt b.ckpt
        case $((span % 3)) in
        0) t "$span" -n 2 --save-every 1 c.ckpt ;;
        *) t "$span" -n 1 c.ckpt && t "$span" -n 1 c.ckpt ;;
        esac
    done
    cmp a.ckpt b.ckpt
    cmp a.ckpt c.ckpt
    datcat -q --verify a.ckpt
    datcat --meta a.ckpt >last.json
    python3 - <<'PY'
import json
from containers import xxh3_128

def spans(path):        # with the text of each
    text = open(path).read()
    at = text.index('"spans":[') + 9
    found = []
    while text[at - 1] != "]":
        span, end = json.JSONDecoder().raw_decode(text, at)
        found.append((span, text[at:end].encode()))
        at = end + 1
    return found

all, last = spans("all.json"), spans("last.json")
assert [s["first"] for s, _ in all] == list(range(1, 256, 2)), all[:2]
assert len(last) == 129
old = last[0][0]
assert old["count"] == 12 and old["first"] == 1 and old["last"] == 24, old
d = bytes(16)
for _, text in all[:12]:
    d = xxh3_128(d + text)
assert old["digest"] == d.hex(), (old, d.hex())
assert last[1:117] == all[12:], "the last 128 stand there as they are"
assert last[-1][0]["first"] == 279 and last[-1][0]["last"] == 280
assert [s["settings"]["seed"] for s, _ in last[1:]] == list(range(13, 141))
PY
}

@test "data of very many inputs: one hash for all of them" {
    local n
    echo '1 2 3' >one
    for n in 256 257 60000; do
        # shellcheck disable=SC2046  # that many words
        tokenize -q --input ids -o $n.tok $(yes one | head -n $n)
        cp "$IN/plain.ckpt" $n.ckpt
        trainstep -q -d $n.tok -n 1 $n.ckpt >/dev/null
        datcat --meta $n.ckpt >$n.json
        [ "$(wc -c <$n.json)" -lt 40000 ]
    done
    python3 - <<'PY'
import json
from containers import xxh3_128
one = xxh3_128(open("one", "rb").read())
for n in 256, 257, 60000:
    p = json.load(open("%d.json" % n))["meta"]["provenance"]
    inputs = p["options"]["spans"][0]["data"]["inputs"]
    if n == 256:
        assert inputs == n * [{"kind": "ids", "provenance": None, "xxh3": one.hex()}]
    else:
        assert inputs == [{"count": n, "kind": "ids", "provenance": None,
                           "xxh3": xxh3_128(n * one).hex()}], inputs
PY
}

# fill N: $IN/plain.ckpt as full.ckpt, its configuration made so long that the header
# has N bytes.
fill() {
    python3 -c 'print(open("'"$IN"'/config.json").read().rstrip()[:-1] + ",\"pad\":\"" +
                      "x" * int("'"$1"'") + "\"}", end="")' >long.json
    datpack -q -f --init 3 --config long.json --to ckpt --quant none --master f32 --moments f32 \
        -o full.ckpt
}

# bats test_tags=slow
@test "a header that cannot be saved is refused before the first step" {
    local have
    fill 16000000
    have=$(od -A n -t u8 -j 24 -N 8 full.ckpt)
    # The whole of it: a new checkpoint may have that.
    fill $((16000000 + 16777216 - have))
    [ "$(od -A n -t u8 -j 24 -N 8 full.ckpt)" -eq 16777216 ]
    datcat -q --verify full.ckpt
    cp full.ckpt was.ckpt
    refuse -2 "expected at most 16777216" trainstep -q -d "$IN/even.tok" -n 2 full.ckpt
    cmp full.ckpt was.ckpt
    run -2 --separate-stderr fill $((16000000 + 16777217 - have))
    [[ $stderr == *"would have 16777217 bytes"* ]]
    # What is checked is enough for what is written: at the largest that passes, it passes.
    local low=0 high=20000 mid
    while [ $((high - low)) -gt 1 ]; do
        mid=$(((low + high) / 2))
        fill $((16000000 + 16777216 - have - mid))
        if trainstep -q -d "$IN/even.tok" -n 1 full.ckpt >out 2>err; then high=$mid; else low=$mid; fi
        [ $low -ne $mid ] || { [ ! -s out ] && grep -q "expected at most" err; }
    done
    fill $((16000000 + 16777216 - have - high))
    trainstep -q -d "$IN/even.tok" -n 1 --save-every 1 full.ckpt >/dev/null
    datcat -q --verify full.ckpt
}

@test "weights of several megabytes are saved as they are" {
    sed 's/"vocab_size": [0-9]*/"vocab_size": 20000/' "$IN/config.json" >wide.json
    datpack -q --init 1 --config wide.json --to ckpt --master f32 -o new.ckpt
    datcat -q new.ckpt | has -F $'model.embed_tokens.weight\tf32\t[20000,32]\t2560000'
    step -n 1 --lr 0 -o m.ckpt new.ckpt >/dev/null
    datcat --diff new.ckpt m.ckpt
    datcat -q --verify m.ckpt
}

# bats test_tags=slow
@test "a model of 1,500 layers" {
    sed 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1500/' "$IN/config.json" >deep.json
    grep -q 1500 deep.json
    datpack -q --init 1 --config deep.json --to ckpt -o m.ckpt
    trainstep -q -d "$IN/even.tok" -n 1 m.ckpt >out
    [ "$(wc -l <out)" -eq 2 ]
    datcat -q --verify m.ckpt
}

@test "it says what it can do" {
    run -0 trainstep --diagnose
    [[ $output == *$'device\tcpu'* ]]
    run -0 trainstep --help
    [ "$(trainstep -V)" = "$(datcat -V | sed 's/datcat/trainstep/')" ]
    run -0 --separate-stderr trainstep -q -d "$IN/ids.tok" --dry-run "$IN/small.ckpt"
    [[ $output == *$'\ntotal\t'* && $output == *$'\nflops\t'* ]]
}

@test "a model is planned for as the checkpoint that datpack makes of it; it is not trained" {
    datpack -q -o model/ "$IN/small.ckpt"
    datpack -q --to ckpt -o new.ckpt model
    for m in model new.ckpt; do
        # Apart from what the program itself has, and the file's header.
        trainstep -q -d "$IN/ids.tok" --dry-run $m | grep -vE '^(program|total|checkpoint)' >plan.$m
    done
    diff plan.model plan.new.ckpt
    [ "$(wc -l <plan.model)" -ge 10 ]
    run -2 trainstep -q -d "$IN/ids.tok" model
    [[ $output == *"not a checkpoint"* ]]
}

# A gradient that is too large in one sample alone, found after others were used up: a
# sample with token 5 has an activation of 1e25 in layer 0.
@test "a step that has moved weights is undone: the last save, the same steps, one less" {
    sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --dtype f32 -o m.safetensors
    python3 "$HERE/overflow.py" m.safetensors
    python3 - <<'PY'
with open("ids", "w") as f:
    for i in range(8):
        print(*([10 + i, 20, 5 if i == 2 else 30, 40]), file=f)
PY
    datpack -q --to ckpt --master f32 --moments f32 --quant none -o m.ckpt m.safetensors
    tokenize -q --input ids -o d.tok ids
    t() { trainstep -q -d d.tok --order file --lr 0 --clip-mode prev "$@"; }
    cp m.ckpt whole.ckpt
    run -0 --separate-stderr t -n 6 --log whole.jsonl whole.ckpt
    [[ $stderr == *"step 3 is undone: the gradient of model.layers.0.mlp.down_proj.weight is too large"* ]]
    [ "$(column 10 <<<"$output" | tr '\n' ' ')" = "0 0 1 0 0 0 " ]
    [ "$(grep -c '"step"' whole.jsonl)" -eq 6 ]
    datcat --meta whole.ckpt | has -F '"step":6,"t":5'
    # What comes again is not evaluated again.
    cp m.ckpt eval.ckpt
    run -0 --separate-stderr trainstep --device cpu -d d.tok --order file --lr 0 --clip-mode prev \
        -n 6 --eval d.tok --eval-every 1 --log eval.jsonl --tensorboard tb eval.ckpt
    [[ $stderr == *"step 3 is undone"* ]]
    [ "$(sed -n 's/.*{"step":\([0-9]*\),"\(eval_\)\?loss.*/\1\2/p' eval.jsonl | tr '\n' ' ')" = \
        "1 1eval_ 2 2eval_ 3 3eval_ 4 4eval_ 5 5eval_ 6 6eval_ " ]
    [ "$(grep -c 'evaluation loss' <<<"$stderr")" -eq 6 ]
    [ "$(grep -ao eval_loss tb/* | wc -l)" -eq 6 ]
    cmp whole.ckpt eval.ckpt
    # Undone from a save, and from another run's.
    cp m.ckpt saves.ckpt
    t -n 6 --save-every 1 saves.ckpt >/dev/null 2>&1
    cmp whole.ckpt saves.ckpt
    cp m.ckpt cut.ckpt
    t -n 2 cut.ckpt >/dev/null
    t -n 1 cut.ckpt >/dev/null 2>&1
    t -n 3 cut.ckpt >/dev/null
    cmp whole.ckpt cut.ckpt
    # Other data than the checkpoint's begin again, too.
    sed 's/^1/2/' ids | tokenize -q --input ids -o other.tok
    cp m.ckpt other.ckpt
    trainstep -q -d other.tok --order file --lr 0 -n 2 other.ckpt >/dev/null
    run -0 --separate-stderr t -n 6 other.ckpt
    [ "$(grep -o 'step [0-9]* is undone' <<<"$stderr")" = 'step 5 is undone' ]
    datcat --meta other.ckpt | has -F '"epoch":0,"index":6'
    # Kept gradients: the step is skipped before anything has moved.
    t -n 6 --dump x.safetensors -o kept.ckpt m.ckpt >/dev/null 2>&1
    cmp whole.ckpt kept.ckpt
    # Nothing but such samples.
    sed -n 3p ids | tokenize -q --input ids -o bad.tok
    run -4 --separate-stderr trainstep -q -d bad.tok --lr 0 --clip-mode prev -n 9 -o x.ckpt m.ckpt
    [ ! -e x.ckpt ]
    # A signal while the first step is undone: the checkpoint is as it was saved last.
    [ -e "$FAILIO_SO" ] && [ -z "${NIBBLE_EMULATED:-}" ] || return 0
    cp m.ckpt x.ckpt
    local spoilt=(trainstep -q --device cpu -j 1 -d bad.tok --lr 0 --allow-zero-lr --clip-mode prev -n 9)
    run -4 env LD_PRELOAD="$FAILIO_SO" FAILIO_LOG=calls "${spoilt[@]}" --max-skips 1 x.ckpt
    paused "pread:$(grep -c ' pread .*/x.ckpt' calls):stop:x.ckpt" "${spoilt[@]}" x.ckpt
    kill -TERM "$pid"
    ended
    [ "$status" -eq 75 ]
    [ "$(cat err)" = "trainstep: step 1 is undone: $(sed -n 's/.*is undone: //p' err)" ]
    cmp m.ckpt x.ckpt
}

@test "no output is a file that belongs to the checkpoint's model" {
    local o
    cp "$IN/small.ckpt" m.ckpt
    echo '{}' >tokenizer.json
    for o in --memory-report --dump -o; do
        refuse -2 "tokenizer.json: is an input, too" trainstep -q -d "$IN/ids.tok" -f $o tokenizer.json m.ckpt
    done
    : >tokenizer.json
    refuse -2 "tokenizer.json: is an input, too" trainstep -q -d "$IN/ids.tok" --log tokenizer.json m.ckpt
    [ ! -s tokenizer.json ]
}

@test "no output is an input or another output, whatever its option" {
    cp "$IN/small.ckpt" m.ckpt
    cp "$IN/ids.tok" d.tok
    cp "$IN/held.tok" e.tok
    ln d.tok hard.tok
    t() { refuse -2 "$1" trainstep -q -d d.tok "${@:2}"; }
    t "is an input" --log d.tok m.ckpt
    t "is an input" --log hard.tok m.ckpt
    t "is an input" --memory-report m.ckpt -f m.ckpt
    t "is an input" -f -o d.tok m.ckpt
    t "is an input" -f -o e.tok --eval e.tok m.ckpt
    t "is an input" -f --dump d.tok m.ckpt
    t "is another output" -f --dump x -o x m.ckpt
    t "is another output" --log x --memory-report x m.ckpt
    printf 'a line\nand half' >note
    t "is no log of trainstep" --log note m.ckpt
    touch there
    t "exists; -f replaces it" --memory-report there m.ckpt
    t "nodir/x" --memory-report nodir/x m.ckpt
    # Where nothing can be saved, nothing is begun.
    mkdir dir
    t "want the name of a file" -f -o dir m.ckpt
    t "want the name of a file" -o new/ m.ckpt
    t "want the name of a file" -o '' m.ckpt
    t "pipe or a device" -o - m.ckpt
    t "pipe or a device" -f -o /dev/null m.ckpt
    t "x.ckpt is not made" -n 0 -o x.ckpt m.ckpt
    # Readers go by the suffix: under these names nothing could be opened.
    local kind
    for kind in dat safetensors gguf tok; do
        t "a ckpt is written: expected .ckpt or no suffix of a container, found .$kind" \
            -o x.$kind m.ckpt
        t "found .$kind" --dry-run -o x.$kind m.ckpt
    done
    for kind in dat gguf ckpt tok; do
        t "--dump x.$kind: a safetensors is written" --dump x.$kind m.ckpt
    done
    trainstep -q -d d.tok -o x.other --dump dump m.ckpt >/dev/null
    datcat -q --verify x.other
    datcat dump >/dev/null
    rm x.other dump
    t "above 0" --memory-limit 0 m.ckpt
    refuse -2 "no pipe" trainstep -q -d d.tok -
    # Names that a save removes, through links too, and in their own right.
    ln -s .m.ckpt.nibble-tmp link
    for kind in .m.ckpt.nibble-tmp .m.ckpt.nibble-lock .x.nibble-old link; do
        t "$kind: is a name of temporary files and locks" --log $kind m.ckpt
        t "$kind: is a name of temporary files and locks" --memory-report $kind -f m.ckpt
        t "$kind: is a name of temporary files and locks" --dump $kind m.ckpt
        t "$kind: is a name of temporary files and locks" --tensorboard $kind m.ckpt
        t "$kind: is a name of temporary files and locks" -o $kind m.ckpt
    done
    cp m.ckpt .y.nibble-tmp
    t ".y.nibble-tmp: is a name of temporary files and locks" .y.nibble-tmp
    cmp m.ckpt .y.nibble-tmp
    # Others that only look like them.
    trainstep -q -d d.tok -o y.ckpt --log m.nibble-tmp --memory-report .nibble-tmps m.ckpt >/dev/null
    [ -s m.nibble-tmp ]
    [ -s .nibble-tmps ]
    rm y.ckpt
    cmp m.ckpt "$IN/small.ckpt"
    cmp d.tok "$IN/ids.tok"
}

@test "weights that a step makes infinite are not saved" {
    # A first moment that no gradient explains: the update is above f32.
    python3 - <<'PY'
import os, struct
import containers as c
raw = open(os.environ["IN"] + "/plain.ckpt", "rb").read()
h = c.unpack(raw[64:64 + int.from_bytes(raw[24:32], "little")])
payloads = [bytearray(raw[a["offset"]:a["offset"] + a["nbytes"]]) for a in h["arrays"]]
for a, p in zip(h["arrays"], payloads):
    if a["name"] == "adam.m/model.norm.weight":
        p[:4] = struct.pack("<f", 1e38)
        a["xxh3"] = c.xxh3_128(bytes(p))
with open("m.ckpt", "wb") as f:
    f.write(c.ckpt_seal(c.pack(h), [(a["offset"], p) for a, p in zip(h["arrays"], payloads)],
                        len(raw)))
PY
    cp m.ckpt was.ckpt
    run -4 --separate-stderr trainstep -q -d "$IN/ids.tok" -n 9 --lr 10 m.ckpt
    [[ $stderr == *"is not finite any more"* ]]
    cmp m.ckpt was.ckpt
}

@test "a run of any length begins at once, and frozen layers can be thawed" {
    cp "$IN/small.ckpt" m.ckpt
    run -0 within 20 trainstep -q -d "$IN/ids.tok" --until 4294967295 --dry-run m.ckpt
    # And of steps of any size the plan is told at once: two passes tell of all.
    run -0 within 20 trainstep -q -d "$IN/ids.tok" --batch 1024 --accum 65536 --dry-run m.ckpt
    many=$(sed -n 's/^flops\t//p' <<<"$output")
    run -0 trainstep -q -d "$IN/ids.tok" --batch 1024 --until 4294967295 --dry-run m.ckpt
    one=$(sed -n 's/^flops\t//p' <<<"$output")
    awk -v a="$many" -v b="$one" 'BEGIN { r = a / b / 65536; exit !(r > .99 && r < 1.01) }'
    # The samples of such a step are held in memory, and planned.
    refuse -3 "--memory-limit is 2.000" trainstep -q -d "$IN/ids.tok" --batch 1024 --accum 65536 \
        --memory-limit 2 m.ckpt
    step -n 1 --train-last-layers 1 m.ckpt >/dev/null
    cp m.ckpt was.ckpt
    step -n 1 --train-last-layers 0 m.ckpt >/dev/null
    run -1 datcat --diff was.ckpt m.ckpt
    [[ $output == *layers.0.* && $output == *embed* ]]
    # What cannot be trained is not made.
    sed 's/"hidden_size": 32/"hidden_size": 40/' "$IN/config.json" >c.json
    refuse -2 "needs a multiple of 16" datpack -q --init 1 --config c.json --to ckpt -o x.ckpt
}

@test "--stop-after: ends at a phase of the first step, saves nothing, and has a report" {
    local phase n=0
    cp "$IN/small.ckpt" m.ckpt
    for phase in start model_loaded batch_ready zero_grad_done backward_done optimizer_step_done; do
        n=$((n + 1))
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 3 --stop-after $phase --memory-report r.json m.ckpt
        [[ $stderr == *"stopped after $phase of step 0; nothing was saved"* ||
            $stderr == *"stopped after $phase of step 1; nothing was saved"* ]]
        [ "$(json '[s["Phase"] for s in d["Samples"]][-1], len(d["Samples"])' <r.json)" = "('$phase', $n)" ]
        cmp m.ckpt "$IN/small.ckpt"
        [ "$(ls -A)" = "$(printf '%s\n' m.ckpt r.json)" ]
    done
    run -0 --separate-stderr trainstep -v -d "$IN/ids.tok" -n 3 --stop-after backward_done m.ckpt
    [[ $stderr == *$'\ntrainstep: model_loaded: 0.0'*' GB in use'*$'\ntrainstep: backward_done: 0.0'* ]]
    refuse "want one of start, model_loaded" trainstep --stop-after x -d "$IN/ids.tok" m.ckpt
}
