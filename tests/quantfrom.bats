#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr: set by run
# trainstep --quant-from: the first steps of a training are not quantized, the later ones are.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(7)
for name, rows in ("ids", 24), ("held", 6):
    with open(name, "w") as f:
        for _ in range(rows):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    local f
    for f in ids held; do
        tokenize -q --input ids -o $f.tok $f
    done
    # The same weights, with a quantizer and without.
    new none --quant none
    new sweep --quant sweep
    new max --quant max --master f32 --moments f32
    new plain --quant none --master f32 --moments f32
}

# new NAME OPTION...: a checkpoint.
new() {
    local name=$1
    shift
    datpack -q --init 3 --config config.json --to ckpt "$@" -o "$name.ckpt"
}

# steps OPTION... CHECKPOINT: quiet training.
steps() {
    trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 "$@" >/dev/null
}

# same_steps FROM TO A B: these steps of two logs have the same numbers; both have all of them.
same_steps() {
    python3 - "$@" <<'PY'
import json, sys
first, last = map(int, sys.argv[1:3])
logs = [[tuple(x[k] for k in ("step", "loss", "grad_norm", "clip", "skipped"))
         for x in map(json.loads, open(path)) if "loss" in x and first <= x["step"] <= last]
        for path in sys.argv[3:5]]
assert [[x[0] for x in log] for log in logs] == 2 * [list(range(first, last + 1))], logs
sys.exit(0 if logs[0] == logs[1] else 3)
PY
}

# same_arrays A B: all arrays of two checkpoints, moments too, whatever their headers say.
same_arrays() {
    local f
    for f in "$@"; do
        datcat --hash "$f" | awk '$2 != "*"' >"$f.arrays"
        [ "$(wc -l <"$f.arrays")" -ge 50 ]
    done
    cmp "$1.arrays" "$2.arrays"
}

# kept FILE: the setting as the checkpoint has it.
kept() { datcat --meta "$1" | json "d['meta']['state']['settings'].get('quant_from')"; }

# seen FILE: what products saw in each step, or evaluation, of a log.
seen() { jsonl "' '.join('%d%s:%s' % (x['step'], 'e' * ('eval_loss' in x), x['quant']) for x in d)" <"$1"; }

@test "steps before it are those of --quant none, the others those of the quantizer" {
    local pair with without
    for pair in sweep:none max:plain; do
        with=$IN/${pair%:*}.ckpt without=$IN/${pair#*:}.ckpt
        rm -f ./*
        steps -n 8 --quant-from 5 --log from.jsonl -o from.ckpt "$with"
        steps -n 8 --log none.jsonl -o none.ckpt "$without"
        steps -n 8 --log all.jsonl -o all.ckpt "$with"
        same_steps 1 4 from.jsonl none.jsonl
        run -3 same_steps 5 5 from.jsonl none.jsonl
        run -3 same_steps 1 1 from.jsonl all.jsonl
        # All arrays, moments too, are as without a quantizer up to there.
        steps -n 4 --quant-from 5 -o four.ckpt "$with"
        steps -n 4 -o plain.ckpt "$without"
        same_arrays four.ckpt plain.ckpt
        run -1 same_arrays from.ckpt none.ckpt
        # From there on it is a run that is quantized from its first step.
        steps -n 4 --quant-from 0 --log rest.jsonl four.ckpt
        same_steps 5 8 from.jsonl rest.jsonl
        same_arrays from.ckpt four.ckpt
    done
}

@test "the same bytes wherever a run is cut, with all that changes no byte" {
    local k options isa
    for options in "" "--clip-mode prev" "--clip-mode tensor --accum 2"; do
        # shellcheck disable=SC2086
        steps -n 7 --quant-from 4 $options -f -o a.ckpt "$IN/sweep.ckpt"
        datcat -q --verify a.ckpt
        for k in 1 2 3 4 5 6; do
            # shellcheck disable=SC2086
            steps -n $k --quant-from 4 $options -f -o b.ckpt "$IN/sweep.ckpt"
            steps --until 7 --recompute block -j 3 --eval "$IN/held.tok" --eval-every 1 --save-every 1 b.ckpt
            cmp a.ckpt b.ckpt
        done
        [ "$(kept b.ckpt)" = 4 ]
        for isa in scalar $(isas; echo "$isas"); do
            # shellcheck disable=SC2086
            NIBBLE_ISA=$isa steps -n 7 --quant-from 4 $options -f -o b.ckpt "$IN/sweep.ckpt"
            cmp a.ckpt b.ckpt
        done
    done
}

@test "with a decimal point it is a fraction of --total-steps, rounded to the nearest step" {
    local f
    t() { steps --lr 0 --total-steps "$2" -n "$3" --quant-from "$1" --log log.jsonl -f -o a.ckpt "$IN/sweep.ckpt"; }
    t 0.5 8 6
    [ "$(seen log.jsonl)" = '1:none 2:none 3:none 4:none 5:sweep 6:sweep' ]
    [ "$(kept a.ckpt)" = 0.5 ]
    # It is kept as it was given: the step follows --total-steps.
    rm log.jsonl
    steps --lr 0 --total-steps 14 -n 2 --log log.jsonl a.ckpt
    [ "$(seen log.jsonl)" = '7:none 8:sweep' ]
    # 0.29 of 100 is 28.99 in binary; .4 of 6 is 2.4, .45 of 6 is 2.7.
    for f in 0.29:100:30 .4:6:3 .45:6:4 0.8:3:3 0.0:3:1 0.001:9:1; do
        IFS=: read -r f total first <<<"$f"
        rm -f log.jsonl
        t "$f" "$total" $((first + 1))
        [ "$(jsonl "[x['step'] for x in d if x.get('quant', 'sweep') == 'sweep'][0]" <log.jsonl)" = "$first" ]
    done
    # A fraction and the step that it means are the same training.
    steps --schedule linear --total-steps 8 -n 8 --quant-from 0.5 -o b.ckpt "$IN/sweep.ckpt"
    steps --schedule linear --total-steps 8 -n 8 --quant-from 5 -o c.ckpt "$IN/sweep.ckpt"
    same_arrays b.ckpt c.ckpt
    [ "$(kept c.ckpt)" = 5 ]
}

@test "0 and 1 are training as without it; a file that never used it has no trace of it" {
    steps -n 3 -o a.ckpt "$IN/sweep.ckpt"
    steps -n 3 --quant-from 0 --log log.jsonl -o b.ckpt "$IN/sweep.ckpt"
    cmp a.ckpt b.ckpt
    [ "$(kept a.ckpt)" = None ]
    [[ $(datcat --meta a.ckpt) != *quant_from* ]]
    [ "$(jsonl "any('quant' in x for x in d)" <log.jsonl)" = False ]
    steps -n 3 --quant-from 1 -f -o b.ckpt "$IN/sweep.ckpt"
    same_arrays a.ckpt b.ckpt
    steps -n 3 --quant-from 0 -o n.ckpt "$IN/none.ckpt"
    # It is in the provenance, of the steps for which it was set.
    steps -n 2 --quant-from 3 -f -o b.ckpt "$IN/sweep.ckpt"
    steps -n 2 --quant-from 0 b.ckpt
    [ "$(datcat --meta b.ckpt | json "[(x['first'], x['last'], x['settings'].get('quant_from'))
        for x in d['meta']['provenance']['options']['spans']]")" = "[(1, 2, 3), (3, 4, None)]" ]
}

@test "an evaluation sees what the step before it saw; log and messages say which" {
    local step loss
    run -0 --separate-stderr trainstep --device cpu -d "$IN/ids.tok" --batch 3 --lr 1e-2 -n 4 --quant-from 3 \
        --eval "$IN/held.tok" --eval-every 1 --log log.jsonl -o a.ckpt "$IN/sweep.ckpt"
    [ "$(seen log.jsonl)" = \
        '1:none 1e:none 2:none 2e:none 3:sweep 3e:sweep 4:sweep 4e:sweep' ]
    [ "$(grep -v 'evaluation\|saved at' <<<"$stderr")" = "trainstep: steps before 3 are not quantized
trainstep: from step 3 on the forward pass uses NVFP4 weights (sweep)" ]
    # Of what was saved there, generate says the same.
    for step in 1:none 2:none 3:sweep 4:sweep; do
        steps -n "${step%:*}" --quant-from 3 -f -o b.ckpt "$IN/sweep.ckpt"
        loss=$(generate -q --device cpu --quant "${step#*:}" --score "$IN/held.tok" b.ckpt | awk 'NR == 2 { print $4 }')
        awk -v a="$loss" -v b="$(jsonl "[x['eval_loss'] for x in d if 'eval_loss' in x][${step%:*} - 1]" <log.jsonl)" \
            'BEGIN { d = a / b - 1; exit !(a > 1 && d < 1e-6 && d > -1e-6) }'
    done
    # So it is in a run that begins there, also if its first step is the first quantized one.
    for step in 1 2 3; do
        steps -n $step --quant-from 3 -f -o b.ckpt "$IN/sweep.ckpt"
        steps -n 1 --eval "$IN/held.tok" --eval-first --log first.$step b.ckpt
        [ "$(jsonl "[x['eval_loss'] for x in d if 'eval_loss' in x][0]" <first.$step)" = \
            "$(jsonl "[x['eval_loss'] for x in d if 'eval_loss' in x][$step - 1]" <log.jsonl)" ]
    done
    # generate's default is the checkpoint's quantizer, before the first quantized step as well.
    steps -n 1 --quant-from 3 -f -o b.ckpt "$IN/sweep.ckpt"
    generate -q --device cpu --score "$IN/held.tok" b.ckpt >of.default
    generate -q --device cpu --quant sweep --score "$IN/held.tok" b.ckpt >of.sweep
    cmp of.default of.sweep
    [ "$(wc -l <of.sweep)" -eq 2 ]
    # A run that goes on, and one behind the first quantized step, say what concerns them.
    run -0 --separate-stderr trainstep --device cpu -d "$IN/ids.tok" -n 1 b.ckpt
    [ "${stderr_lines[0]}" = 'trainstep: steps before 3 are not quantized' ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    run -0 --separate-stderr trainstep --device cpu -d "$IN/ids.tok" -n 1 b.ckpt
    [ "${stderr_lines[0]}" = 'trainstep: from step 3 on the forward pass uses NVFP4 weights (sweep)' ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    run -0 --separate-stderr trainstep --device cpu -d "$IN/ids.tok" -n 1 b.ckpt
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "activations in NVFP4 begin with the weights" {
    local k
    steps -n 6 --activations nvfp4 --quant-from 4 --log from.jsonl -o a.ckpt "$IN/sweep.ckpt"
    steps -n 6 --log none.jsonl -o none.ckpt "$IN/none.ckpt"
    same_steps 1 3 from.jsonl none.jsonl
    for k in 2 3 4; do
        steps -n $k --activations nvfp4 --quant-from 4 -f -o b.ckpt "$IN/sweep.ckpt"
        steps --until 6 --recompute block b.ckpt
        cmp a.ckpt b.ckpt
    done
    steps -n 3 --activations nvfp4 --quant-from 4 -f -o b.ckpt "$IN/sweep.ckpt"
    steps -n 3 --quant-from 0 --log rest.jsonl b.ckpt
    same_steps 4 6 from.jsonl rest.jsonl
    # They do begin: weights alone make other steps.
    steps -n 6 --quant-from 4 --log plain.jsonl -f -o b.ckpt "$IN/sweep.ckpt"
    same_steps 1 3 from.jsonl plain.jsonl
    run -3 same_steps 4 4 from.jsonl plain.jsonl
}

# The sample with token 5 gives layer 0 an activation of 1e25, whose gradient is found to be too
# large after others were used up (trainstep.bats has the same).
@test "a step that is undone before the first quantized one, there, and after it" {
    sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --dtype f32 -o m.safetensors
    python3 "$HERE/overflow.py" m.safetensors
    python3 - <<'PY'
with open("ids", "w") as f:
    for i in range(8):
        print(*([10 + i, 20, 5 if i == 3 else 30, 40]), file=f)
PY
    datpack -q --to ckpt --master f32 --moments f32 --quant max --share-scale none -o m.ckpt m.safetensors
    tokenize -q --input ids -o d.tok ids
    t() { trainstep --device cpu -d d.tok --order file --lr 0 --clip-mode prev --eval d.tok --eval-every 1 "$@"; }
    local from k want
    for from in 2 3 4 5 6; do
        rm -f whole* cut* kept*
        run -0 --separate-stderr t -n 6 --quant-from $from --log whole.jsonl -o whole.ckpt m.ckpt
        [[ $stderr == *"step 4 is undone: "* ]]
        [ "$(grep -c 'is undone' <<<"$stderr")" -eq 1 ]
        [ "$(grep -c 'from step '$from' on the forward pass uses' <<<"$stderr")" -eq 1 ]
        [ "$(column 10 <<<"$output" | tr '\n' ' ')" = "0 0 0 1 0 0 " ]
        want=$(for k in 1 2 3 4 5 6; do
            [ $k -lt $from ] && echo "$k:none $k""e:none" || echo "$k:max $k""e:max"
        done | tr '\n' ' ')
        [ "$(seen whole.jsonl) " = "$want" ]
        # Undone from the last save, cut behind each step, and with gradients that are kept.
        for k in 1 2 3 4 5; do
            t -q -n $k --quant-from $from -f -o cut.ckpt m.ckpt >/dev/null 2>&1
            t -q --until 6 --save-every 2 --log cut.jsonl cut.ckpt >/dev/null 2>&1
            cmp whole.ckpt cut.ckpt
            losses cut.jsonl >cut.losses
            losses whole.jsonl | tail -n $((2 * (6 - k))) | cmp - cut.losses
            rm cut.jsonl
        done
        t -q -n 6 --quant-from $from --dump x.safetensors -f -o kept.ckpt m.ckpt >/dev/null 2>&1
        cmp whole.ckpt kept.ckpt
    done
}

# Column N of a table behind its head.
column() { awk -F '\t' -v n="$1" 'NR > 1 { print $n }'; }
# Losses of steps and evaluations of a log, a line each.
losses() { jsonl "'\n'.join(str(x.get('loss', x.get('eval_loss'))) for x in d)" <"$1"; }

@test "the plan has what the run's steps need: of a run that crosses both forms" {
    plan() { steps_plan "$@" | awk -F '\t' '$1 == "weights" || $1 == "total" { print $2 }' | tr '\n' ' '; }
    steps_plan() { trainstep -q --device cpu -j 1 -d "$IN/ids.tok" --batch 3 --dry-run "$@"; }
    local before across after plain quantized
    read -r before _ <<<"$(plan -n 4 --quant-from 5 "$IN/sweep.ckpt")"
    read -r across _ <<<"$(plan -n 5 --quant-from 5 "$IN/sweep.ckpt")"
    read -r after _ <<<"$(plan -n 5 --quant-from 1 "$IN/sweep.ckpt")"
    read -r plain _ <<<"$(plan -n 4 "$IN/none.ckpt")"
    read -r quantized _ <<<"$(plan -n 5 "$IN/sweep.ckpt")"
    [ "$before" -eq "$plain" ]
    [ "$after" -eq "$quantized" ]
    [ "$across" -eq "$quantized" ]
    [ "$across" -gt "$before" ]
    # A step has the operations of one step.
    [ "$(steps_plan -n 5 --quant-from 5 "$IN/sweep.ckpt" | grep flops)" = \
        "$(steps_plan -n 5 "$IN/sweep.ckpt" | grep flops)" ]
    # Activations in NVFP4 need memory from the first quantized step on.
    work() { steps_plan "$@" --activations nvfp4 "$IN/sweep.ckpt" | awk -F '\t' '$1 == "work" { print $2 }'; }
    [ "$(work -n 5 --quant-from 5)" -ge "$(work -n 5)" ]
    # A model that is no checkpoint is planned for, too.
    datpack -q -o m.safetensors "$IN/sweep.ckpt"
    read -r across _ <<<"$(plan -n 5 --quant-from 5 m.safetensors)"
    [ "$across" -eq "$quantized" ]
}

@test "what cannot be is refused" {
    local v
    cp "$IN/sweep.ckpt" m.ckpt
    cp "$IN/none.ckpt" n.ckpt
    t() { refuse -2 "$1" trainstep -q -d "$IN/ids.tok" "${@:2}"; }
    for v in 1.0 1.5 -1 -0.5 nan 1e-1 0x.8 4294967296 5. '' 3x; do
        t "--quant-from: $v: want a step, 0..4294967295, or with a decimal point a fraction of --total-steps below 1.0" \
            --quant-from "$v" --total-steps 9 m.ckpt
    done
    t '--quant-from: 0.5 is a fraction of --total-steps, which is not given' --quant-from 0.5 m.ckpt
    t '--quant-from: 0.99 of 3 steps leaves none that is quantized' --quant-from 0.99 --total-steps 3 m.ckpt
    t 'n.ckpt: --quant-from: its projections are never quantized; datpack --to ckpt --quant NAME' \
        --quant-from 5 n.ckpt
    datpack -q --init 3 --config "$IN/config.json" --to ckpt --compat torchsharp -o packed.ckpt
    t 'packed.ckpt: --quant-from: its optimizer keeps packed weights' --quant-from 5 packed.ckpt
    cmp m.ckpt "$IN/sweep.ckpt"
    cmp n.ckpt "$IN/none.ckpt"
    # Of a file whose numbers were made up.
    python3 - <<'PY'
import containers as c
raw = open("m.ckpt", "rb").read()
size = int.from_bytes(raw[24:32], "little")
for name, v in ("good", 3.0), ("share", 0.5), ("half", 2.5), ("minus", -1.0), ("large", 2.0 ** 32), ("int", 3):
    h = c.unpack(raw[64:64 + size])
    h["state"]["settings"]["quant_from"] = v
    arrays = [raw[a["offset"]:a["offset"] + a["nbytes"]] for a in h["arrays"]]
    total = c.ckpt_place(h)
    with open(name + ".ckpt", "wb") as f:
        f.write(c.ckpt_seal(c.pack(h), [(a["offset"], x) for a, x in zip(h["arrays"], arrays)], total))
PY
    trainstep -q -d "$IN/ids.tok" -n 1 --log log.jsonl good.ckpt >/dev/null
    [ "$(seen log.jsonl)" = 1:none ]
    t '"quant_from": 2.5 is neither a step nor a fraction' half.ckpt
    t '"quant_from": -1 is out of range' minus.ckpt
    t '"quant_from": 4.29497e+09 is out of range' large.ckpt
    t '"quant_from"' int.ckpt
    t '--quant-from: 0.5 is a fraction of --total-steps' share.ckpt
}
