#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# trainstep: where a run ends (--epochs, --patience), what it keeps (--keep-last, --keep-every,
# --keep-best) and what it shows (the table and the status line of a terminal).

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(5)
for name, rows in ("ids", 30), ("held", 7), ("other", 8):
    with open(name, "w") as f:
        for _ in range(rows):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    local f
    for f in ids held other; do
        tokenize -q --input ids -o $f.tok $f
    done
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
}

teardown() {
    local s
    # The path of a socket has 107 bytes at most.
    cd "$BATS_TEST_TMPDIR/w" || return
    for s in tmux*; do
        tmux -S "$s" kill-server 2>/dev/null || true
    done
}

# steps OPTION... CHECKPOINT: quiet training.
steps() { trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 "$@" >/dev/null; }

# fresh NAME: the checkpoint that runs begin with.
fresh() { cp "$IN/start.ckpt" "$1"; }

# state NAME FILE: what a checkpoint has under that name.
state() { datcat --meta "$2" | json "d['meta']['state']$1"; }
at() { state "['step']" "$1"; }
total() { state "['settings']['total_steps']" "$1"; }

# copies: the names that --keep options made, in order of steps.
copies() { find . -name 'm.ckpt.*' ! -name '*.keep-last' -printf '%f\n' | sort -V | paste -sd ' '; }

# evaluations LOG: step and loss of each, as the log has them.
evaluations() { jsonl "'\n'.join('%d %r' % (x['step'], x['eval_loss']) for x in d if 'eval_loss' in x)" <"$1"; }

# ---- where a run ends --------------------------------------------------------

@test "--epochs: as many steps as the samples need, the last one rounded up" {
    local epochs batch accum want
    while read -r epochs batch accum; do
        fresh m.ckpt
        want=$(python3 -c "
from fractions import Fraction as F
from math import ceil
print(ceil(ceil(F('$epochs') * 30) / F($batch * $accum)))")
        trainstep -q -d "$IN/ids.tok" --epochs "$epochs" --batch "$batch" --accum "$accum" m.ckpt >table
        [ "$(at m.ckpt)" -eq "$want" ] || { echo "$epochs $batch $accum: $(at m.ckpt), want $want" && false; }
        [ "$(wc -l <table)" -eq $((want + 1)) ]
    done <<'WORDS'
1 1 1
1 3 1
1 4 1
2 4 2
0.5 3 1
0.01 1 1
0.1 1 1
0.7 1 1
2.34 7 2
1e0 30 1
1 100 1
WORDS
}

@test "--epochs: a run that is cut ends in the same bytes, and then nothing is done" {
    local k
    steps --epochs 1.5 -o want.ckpt "$IN/start.ckpt"
    [ "$(at want.ckpt)" -eq 15 ]
    steps -n 15 -o n.ckpt "$IN/start.ckpt"
    cmp want.ckpt n.ckpt
    for k in 1 7 14; do
        fresh m.ckpt
        steps -n "$k" m.ckpt
        steps --epochs 1.5 m.ckpt
        cmp want.ckpt m.ckpt
    done
    touch -d @1000000000 m.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --epochs 1.5 m.ckpt
    [ -z "$output" ]
    [ "$stderr" = 'trainstep: m.ckpt: at step 15: nothing to do; -n, --until or --epochs takes more steps from it' ]
    [ "$(stat -c %Y m.ckpt)" -eq 1000000000 ]
    cmp want.ckpt m.ckpt
    # Samples by a pipe are as those of a file.
    fresh m.ckpt
    trainstep -q --batch 3 --lr 1e-2 --epochs 1.5 m.ckpt <"$IN/ids.tok" >/dev/null
    cmp want.ckpt m.ckpt
}

@test "--epochs: counted from the first step on these samples" {
    fresh m.ckpt
    steps -n 4 m.ckpt
    trainstep -q -d "$IN/other.tok" --batch 2 --epochs 2 m.ckpt >/dev/null
    [ "$(at m.ckpt)" -eq 12 ]
    trainstep -q -d "$IN/other.tok" --epochs 3 m.ckpt >/dev/null
    [ "$(at m.ckpt)" -eq 16 ]
    # A plan reads the samples, too.
    trainstep -q --dry-run -d "$IN/other.tok" --epochs 5 m.ckpt >plan
    [ -s plan ]
    [ "$(at m.ckpt)" -eq 16 ]
}

@test "--epochs, --patience and the options that keep: what makes no sense" {
    fresh m.ckpt
    t() { refuse "$1" trainstep -q -d "$IN/ids.tok" "${@:2}" m.ckpt; }
    t 'expected one of them' --epochs 1 -n 1
    t 'expected one of them' --epochs 1 --until 1
    for e in 0 -1 nan inf 1e10 x 1x ''; do
        t '--epochs: ' --epochs "$e"
    done
    t 'is the last one' --epochs 1e9
    for o in eval-first keep-best 'patience=2' 'eval-every=2'; do
        t "--${o%=*}: needs --eval" "--$o"
    done
    t '--keep-last: 0' --keep-last 0
    t '--keep-every: 0' --keep-every 0
    t '--patience: 0' --eval "$IN/held.tok" --patience 0
    t '--log-every: 0' --log-every 0
    cmp m.ckpt "$IN/start.ckpt"
}

@test "--total-steps is the end that was asked for first, and is kept" {
    local end
    for end in '--until 20' '--epochs 2'; do
        # shellcheck disable=SC2086  # two words
        steps $end --schedule cosine --warmup 2 -f -o m.ckpt "$IN/start.ckpt"
        steps --until 20 --schedule cosine --warmup 2 --total-steps 20 -f -o want.ckpt "$IN/start.ckpt"
        cmp want.ckpt m.ckpt
    done
    [ "$(total m.ckpt)" -eq 20 ]
    # Longer than that: said, with the rate that these steps have; the kept end stays.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 22 --min-lr 1e-4 m.ckpt
    [[ $stderr == *'m.ckpt: the schedule ends with step 20; later ones, up to 22, have the learning rate 0.0001: --total-steps moves its end'* ]]
    [ "$(tail -n 1 <<<"$output" | cut -f 1,4)" = $'22\t0.0001' ]
    [ "$(total m.ckpt)" -eq 20 ]
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 24 --total-steps 30 m.ckpt
    [[ $stderr != *'the schedule ends'* ]]
    [ "$(total m.ckpt)" -eq 30 ]
    # A constant rate has no end, and -n is none.
    steps --until 3 -f -o m.ckpt "$IN/start.ckpt"
    [ "$(total m.ckpt)" -eq 0 ]
    refuse '--schedule cosine: needs --total-steps, or --until or --epochs' \
        trainstep -q -d "$IN/ids.tok" -n 3 --schedule cosine m.ckpt
    # A fraction of the total needs one, too.
    steps --until 10 --quant-from 0.5 -f -o m.ckpt "$IN/start.ckpt"
    steps --until 10 --quant-from 0.5 --total-steps 10 -f -o want.ckpt "$IN/start.ckpt"
    cmp want.ckpt m.ckpt
    [ "$(total m.ckpt)" -eq 10 ]
}

# ---- what it keeps -------------------------------------------------------------

@test "steps behind the end of a schedule: refused at a rate of 0, warned of at another one" {
    steps --until 4 --schedule cosine --eval "$IN/ids.tok" --eval-every 1 -o m.ckpt "$IN/start.ckpt"
    cp m.ckpt m.ckpt.step4
    # An hour of steps that change nothing is no answer to a wrong --until.
    cp m.ckpt was.ckpt
    refuse 'm.ckpt: the schedule ends with step 4; later ones, up to 6, would have the learning rate 0: --total-steps moves its end, --min-lr sets the rate behind it, --allow-zero-lr takes such steps' \
        trainstep -q -d "$IN/ids.tok" --until 6 m.ckpt
    refuse 'later ones, up to 5, would have the learning rate 0' trainstep -q -d "$IN/ids.tok" -n 1 m.ckpt
    cmp was.ckpt m.ckpt
    steps --until 6 --min-lr 1e-4 -o min.ckpt m.ckpt
    steps --until 6 --total-steps 8 -o longer.ckpt m.ckpt
    # There is a rest of the schedule to take first.
    steps --until 3 --schedule linear --total-steps 4 -o rest.ckpt "$IN/start.ckpt"
    refuse 'later ones, up to 5, would have the learning rate 0' trainstep -q -d "$IN/ids.tok" --until 5 rest.ckpt
    steps --until 4 rest.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 6 --allow-zero-lr --eval "$IN/ids.tok" --eval-first --eval-every 1 --keep-best m.ckpt
    [[ $stderr == *'the schedule ends with step 4'* ]]
    [ "$(tail -n 1 <<<"$output" | cut -f 1,4)" = $'6\t0' ]
    # The settings of a replay are not given.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --replay 4..6 m.ckpt
    [[ $stderr == *'lead to it'* && $stderr != *'the schedule ends'* ]]
    # A rate of 0 improves nothing.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 9 --eval "$IN/ids.tok" --eval-every 1 --patience 1 m.ckpt
    [[ $stderr == *'nothing to do: '*'did not improve'* && $stderr != *'the schedule ends'* ]]
}

@test "--keep-last and --keep-every: whole checkpoints of their steps" {
    local k
    fresh m.ckpt
    steps -n 11 --save-every 2 --keep-last 3 m.ckpt
    [ "$(copies)" = 'm.ckpt.step8 m.ckpt.step10 m.ckpt.step11' ]
    for k in 8 10 11; do
        steps -n $k -f -o want.ckpt "$IN/start.ckpt"
        cmp want.ckpt m.ckpt.step$k
        datcat -q --verify m.ckpt.step$k
    done
    cmp m.ckpt m.ckpt.step11
    # Steps that --keep-every keeps are saved, and do not become older.
    fresh m.ckpt
    rm m.ckpt.*
    steps -n 11 --save-every 2 --keep-last 1 --keep-every 5 m.ckpt
    [ "$(copies)" = 'm.ckpt.step5 m.ckpt.step10 m.ckpt.step11' ]
    steps -n 5 -f -o want.ckpt "$IN/start.ckpt"
    cmp want.ckpt m.ckpt.step5
    # A copy can be gone on from; what it then saves is another file.
    steps -n 1 m.ckpt.step5
    [ "$(at m.ckpt.step5)" -eq 6 ]
    [ "$(at m.ckpt)" -eq 11 ]
    # With -o copies are those of OUT; only --keep-every: no others.
    rm m.ckpt.*
    steps -n 6 --keep-every 3 --save-every 2 -o o.ckpt "$IN/start.ckpt"
    [ "$(find . -name '*.step*' -printf '%f\n' | sort | paste -sd ' ')" = 'o.ckpt.step3 o.ckpt.step6' ]
}

# bats test_tags=native
@test "--keep-last: an older copy that cannot be removed is said" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    fresh m.ckpt
    run -0 --separate-stderr env LD_PRELOAD="$FAILIO_SO" FAILIO='unlink:*:EACCES:/m.ckpt.step' \
        trainstep -q -d "$IN/ids.tok" -n 3 --save-every 1 --keep-last 1 m.ckpt
    [[ $stderr == *'trainstep: m.ckpt.step1: an older copy cannot be removed: Permission denied'* ]]
    [ "$(copies)" = 'm.ckpt.step1 m.ckpt.step2 m.ckpt.step3' ]
}

@test "--keep-last leaves alone what is not an older copy" {
    fresh m.ckpt
    cp m.ckpt m.ckpt.step99
    echo notes >m.ckpt.step1
    echo notes >m.ckpt.step02
    cp m.ckpt m.ckpt.step2x
    steps -n 4 --save-every 1 --keep-last 1 m.ckpt 2>words || status=$?
    # The first save would replace notes: refused, and the save is there.
    [ "${status-0}" -eq 2 ]
    grep -q 'm.ckpt.step1: exists and is not a checkpoint' words
    [ "$(cat m.ckpt.step1)" = notes ]
    [ "$(at m.ckpt)" -eq 1 ]
    # The next run looks before its first step, and makes up for the copy.
    cp m.ckpt was.ckpt
    refuse 'm.ckpt.step1: exists and is not a checkpoint' \
        trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 --until 4 --save-every 1 --keep-last 1 m.ckpt
    cmp was.ckpt m.ckpt
    rm m.ckpt.step1
    steps --until 2 --save-every 1 --keep-last 2 m.ckpt
    cmp was.ckpt m.ckpt.step1
    steps --until 4 --save-every 1 --keep-last 1 m.ckpt
    [ "$(copies)" = 'm.ckpt.step02 m.ckpt.step2x m.ckpt.step4 m.ckpt.step99' ]
    [ "$(cat m.ckpt.step02)" = notes ]
}

@test "--keep-last removes only what it made" {
    fresh m.ckpt
    steps -n 6 --keep-every 3 m.ckpt
    steps -n 1 m.ckpt
    cp m.ckpt m.ckpt.step7
    steps -n 4 --save-every 1 --keep-last 2 m.ckpt
    [ "$(copies)" = 'm.ckpt.step3 m.ckpt.step6 m.ckpt.step7 m.ckpt.step10 m.ckpt.step11' ]
    [ "$(cat m.ckpt.keep-last)" = $'10\n11' ]
    # What a run with both keeps, later runs keep.
    steps -n 2 --save-every 1 --keep-last 1 --keep-every 12 m.ckpt
    steps -n 2 --save-every 1 --keep-last 1 m.ckpt
    [ "$(copies)" = 'm.ckpt.step3 m.ckpt.step6 m.ckpt.step7 m.ckpt.step12 m.ckpt.step15' ]
    # What is no list is not replaced.
    echo notes >m.ckpt.keep-last
    refuse 'm.ckpt.keep-last: line 1: expected a step; * remove it' \
        trainstep -q -d "$IN/ids.tok" -n 1 --keep-last 1 m.ckpt
    [ "$(cat m.ckpt.keep-last)" = notes ]
}

# bats test_tags=native
@test "copies where there are no hard links, and after a kill at each call of their making" {
    local n
    steps -n 4 -o want.ckpt "$IN/start.ckpt"
    fresh m.ckpt
    LD_PRELOAD=$FAILIO_SO FAILIO='linkat:*:EPERM' \
        trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 -n 4 --keep-every 2 m.ckpt >/dev/null
    cmp want.ckpt m.ckpt.step4
    [ "$(stat -c %h m.ckpt.step4)" -eq 1 ]
    # 8 calls of these kinds name a copy: two of each.
    for n in 1 2 3 4 5 6 7 8; do
        rm -f m.ckpt* .m.ckpt*
        fresh m.ckpt
        LD_PRELOAD=$FAILIO_SO FAILIO="rename:$n:kill=9:m.ckpt;linkat:$n:kill=9;unlink:$n:kill=9:m.ckpt" \
            trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 -n 4 --keep-every 2 m.ckpt >/dev/null || true
        for f in m.ckpt*; do
            datcat -q --verify "$f"
        done
        steps --until 4 --keep-every 2 m.ckpt
        cmp want.ckpt m.ckpt
    done
}

@test "--keep-best: the checkpoint of the lowest loss, remembered when a run is cut" {
    local best k
    e() { steps --lr 3e-2 --eval "$IN/held.tok" --eval-every 2 --keep-best "$@"; }
    fresh m.ckpt
    e -n 14 --log log.jsonl m.ckpt
    cp m.ckpt end.ckpt
    evaluations log.jsonl >evals
    [ "$(wc -l <evals)" -eq 7 ]
    best=$(sort -g -k 2 evals | sed -n '1s/ .*//p')
    # Not the last one, or there would be nothing to remember.
    [ "$best" -lt 14 ]
    steps --lr 3e-2 -n "$best" -o want.ckpt "$IN/start.ckpt"
    cmp want.ckpt m.ckpt.best
    datcat -q --verify m.ckpt.best
    # The list has the steps and losses of the log.
    python3 - <<'PY'
import json
a = [x for x in map(json.loads, open("log.jsonl")) if "eval_loss" in x]
b = list(map(json.loads, open("m.ckpt.eval.jsonl")))
assert [x["step"] for x in a] == [x["step"] for x in b], (a, b)
assert all(abs(x["eval_loss"] - y["eval_loss"]) < 1e-6 for x, y in zip(a, b))
assert len({x["data"] for x in b}) == 1 and len(b[0]["data"]) == 32
PY
    # Cut after the best one, a worse one does not replace it.
    for k in 2 4 6 8 10 12; do
        rm -f m.ckpt*
        fresh m.ckpt
        e -n $k m.ckpt
        e --until 14 m.ckpt
        cmp want.ckpt m.ckpt.best
        cmp end.ckpt m.ckpt
    done
    # A copy that is missing, as after a kill, is made up for while the checkpoint has its step.
    cp want.ckpt m.ckpt
    rm m.ckpt.best
    e --until 14 m.ckpt
    cmp want.ckpt m.ckpt.best
    # Other samples are another measure.
    steps --eval "$IN/other.tok" --keep-best -n 1 m.ckpt
    [ "$(at m.ckpt.best)" -eq 15 ]
    # Said at the end.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --eval "$IN/other.tok" --keep-best -n 1 m.ckpt
    [[ $stderr == *'the lowest loss, '*' of step '*', is that of '*'m.ckpt.best' ]]
}

@test "--patience: ends after so many evaluations without a lower loss, and stays there" {
    local want n
    # A rate that soon makes it worse.
    p() { steps --lr 0.3 --eval "$IN/held.tok" --eval-every 2 "$@"; }
    p -n 30 --log log.jsonl -o all.ckpt "$IN/start.ckpt"
    evaluations log.jsonl >evals
    for n in 1 3; do
        want=$(awk -v n=$n 'NR == 1 || $2 < best { best = $2; since = 0; next }
            ++since == n { print $1; exit }' evals)
        [ "$want" -lt 30 ]
        rm -f m.ckpt*
        fresh m.ckpt
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" --batch 3 --lr 0.3 --eval "$IN/held.tok" \
            --eval-every 2 --patience $n --until 30 m.ckpt
        [[ ${stderr##*$'\n'} == "trainstep: m.ckpt: saved at step $want: $n evaluation"*' did not improve on the loss '* ]]
        steps --lr 0.3 -n "$want" -f -o want.ckpt "$IN/start.ckpt"
        cmp want.ckpt m.ckpt
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" --eval "$IN/held.tok" --eval-every 2 \
            --patience $n --until 30 m.ckpt
        [[ $stderr == *"trainstep: m.ckpt: at step $want: nothing to do: $n evaluation"* ]]
        [ -z "$output" ]
        cmp want.ckpt m.ckpt
    done
    # Cut in between, the count goes on.
    rm m.ckpt*
    fresh m.ckpt
    p --until $((want - 2)) --patience 3 m.ckpt
    p --until 30 --patience 3 m.ckpt
    cmp want.ckpt m.ckpt
    # Without it, or with more of it, the run goes on.
    p --until $((want + 2)) m.ckpt
    [ "$(at m.ckpt)" -eq $((want + 2)) ]
    # What is no list is not replaced.
    echo notes >m.ckpt.eval.jsonl
    cp m.ckpt was.ckpt
    refuse 'm.ckpt.eval.jsonl * it is the list of evaluations * remove it' \
        trainstep -q -d "$IN/ids.tok" --eval "$IN/held.tok" --patience 3 -n 1 m.ckpt
    cmp was.ckpt m.ckpt
}

@test "--eval-first evaluates the checkpoint as it is; it can be the best one" {
    fresh m.ckpt
    steps -n 2 --lr 3 --eval "$IN/held.tok" --eval-first --keep-best --log log.jsonl m.ckpt
    [ "$(evaluations log.jsonl | cut -d ' ' -f 1 | paste -sd ' ')" = '0 2' ]
    cmp m.ckpt.best "$IN/start.ckpt"
    # As generate says, of the same weights.
    generate --score "$IN/held.tok" "$IN/start.ckpt" >score 2>/dev/null
    python3 - <<'PY'
import json
first = json.loads(open("log.jsonl").readline())
names, row = [x.rstrip("\n").split("\t") for x in open("score")][:2]
loss = float(dict(zip(names, row))["loss"])
assert first["step"] == 0 and abs(first["eval_loss"] - loss) < 1e-4, (first, loss)
PY
    # With -o as well.
    steps -n 2 --lr 3 --eval "$IN/held.tok" --eval-first --keep-best -o o.ckpt "$IN/start.ckpt"
    cmp o.ckpt.best "$IN/start.ckpt"
}

@test "copies of a checkpoint that is a symbolic link are those of its file" {
    local k
    mkdir disk
    fresh disk/real.ckpt
    ln -s disk/real.ckpt m.ckpt
    steps -n 4 --save-every 2 --keep-every 2 --eval "$IN/held.tok" --eval-every 2 --keep-best m.ckpt
    [ -L m.ckpt ]
    for k in 2 4; do
        steps -n $k -f -o want.ckpt "$IN/start.ckpt"
        [ ! -L m.ckpt.step$k ]
        cmp want.ckpt m.ckpt.step$k
    done
    [ ! -L m.ckpt.best ]
    k=$(at m.ckpt.best)
    cp m.ckpt.best best.ckpt
    [ "$k" -gt 0 ]
    steps -n 3 m.ckpt
    cmp want.ckpt m.ckpt.step4
    cmp best.ckpt m.ckpt.best
}

@test "the way back that the manual names leaves all copies as they are" {
    fresh m.ckpt
    steps -n 4 --save-every 2 --keep-every 2 m.ckpt
    cp m.ckpt.step4 four.ckpt
    cp --remove-destination m.ckpt.step2 m.ckpt
    cmp four.ckpt m.ckpt.step4
    steps -n 1 m.ckpt
    [ "$(at m.ckpt)" -eq 3 ]
    [ "$(at m.ckpt.step2)" -eq 2 ]
    cmp four.ckpt m.ckpt.step4
}

@test "evaluations of another training under the same name do not count" {
    local n
    e() { steps --lr 3e-2 --eval "$IN/held.tok" --eval-every 1 --eval-first "$@" m.ckpt; }
    fresh m.ckpt
    e -n 6 --keep-best
    # A new start whose losses are all higher: its own best one, and its own patience.
    datpack -q -f --init 4 --config "$IN/config.json" --to ckpt -o m.ckpt
    cp m.ckpt other.ckpt
    python3 - <<'PY'
import json
a = list(map(json.loads, open("m.ckpt.eval.jsonl")))
with open("m.ckpt.eval.jsonl", "w") as f:
    for x in a:
        x["eval_loss"] = 0.5 if x["step"] == 0 else 1
        print(json.dumps(x, separators=(",", ":")), file=f)
PY
    e -n 2 --keep-best --patience 3 --log log.jsonl
    [ "$(at m.ckpt)" -eq 2 ]
    n=$(evaluations log.jsonl | sort -g -k 2 | sed -n '1s/ .*//p')
    if [ "$n" -eq 0 ]; then
        cp other.ckpt want.ckpt
    else
        steps --lr 3e-2 -n "$n" -o want.ckpt other.ckpt
    fi
    cmp want.ckpt m.ckpt.best
    [ "$(jsonl "' '.join(str(x['step']) for x in d)" <m.ckpt.eval.jsonl)" = '0 1 2' ]
    [ "$(jsonl "len({x['origin'] for x in d}), min(x['eval_loss'] for x in d) > 1" <m.ckpt.eval.jsonl)" = '(1, True)' ]
}

@test "--stop-after saves nothing, so there is nothing to keep" {
    local o
    fresh m.ckpt
    for o in eval-first keep-best patience=1 keep-last=1 keep-every=1; do
        refuse "--stop-after: * expected no --${o%=*}" trainstep -q -d "$IN/ids.tok" --eval "$IN/held.tok" \
            --stop-after backward_done "--$o" m.ckpt
    done
    [ "$(find . -name '*m.ckpt*' | wc -l)" -eq 1 ]
    cmp m.ckpt "$IN/start.ckpt"
}

# ---- what it shows ----------------------------------------------------------------

@test "--log-every: the table has fewer lines, the log all" {
    fresh m.ckpt
    trainstep -q -d "$IN/ids.tok" -n 11 --log-every 4 --log log.jsonl m.ckpt >table
    [ "$(cut -f 1 table | paste -sd ' ')" = 'step 4 8 11' ]
    [ "$(wc -l <log.jsonl)" -eq 11 ]
    trainstep -q -d "$IN/ids.tok" --until 23 --log-every 4 --log log.jsonl m.ckpt >table
    [ "$(cut -f 1 table | paste -sd ' ')" = 'step 12 16 20 23' ]
}

@test "the last line says file, step and how to go on" {
    fresh m.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 3 m.ckpt
    [ "${stderr##*$'\n'}" = 'trainstep: m.ckpt: saved at step 3; -n, --until or --epochs takes more steps from it' ]
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 3 -o o.ckpt m.ckpt
    [[ ${stderr##*$'\n'} == 'trainstep: o.ckpt: saved at step 6; '* ]]
    run -0 --separate-stderr trainstep -q -d "$IN/ids.tok" -n 3 m.ckpt
    [ -z "$stderr" ]
}

tm() { tmux -S "tmux$terminal" -f /dev/null "$@" 3>&-; }

# on_terminal COLUMNS OPTION...: the screen when a run of 4000 steps is at work, and at its end.
on_terminal() {
    local command width=$1
    shift
    terminal=$width
    fresh m.ckpt
    command=$(printf '%q ' "$bin/trainstep" -j 1 -d "$IN/ids.tok" --batch 3 --lr 1e-2 "$@" m.ckpt)
    tm new-session -d -x "$width" -y 60 "TERM=screen LC_ALL=C.UTF-8 $command; echo \"[status \$?]\"; sleep 300"
    for _ in $(seq 3000); do
        tm capture-pane -p >seen
        ! has '^step [0-9]* of 4000 .* left [▁▂▃▄▅▆▇█ ]*$' <seen || cp seen middle
        ! has '^\[status 0\]$' <seen || return 0
        sleep 0.1
    done
    cat seen && false
}

# bats test_tags=native
@test "a terminal of 80 and of 200 columns: aligned columns, and the status line below them" {
    local width
    for width in 80 200; do
        on_terminal $width --until 4000 --log-every 400
        python3 - $width <<'PY'
import re, sys
width = int(sys.argv[1])
names = "step loss tokens lr grad_norm tok_s mfu mem_gb ms skipped".split()
if width == 80:
    names.remove("mfu")
status = re.compile(r"step (\d+) of 4000 \[([█░]+)\] loss [0-9.]+, \d+ tokens/s, \d+ s left [▁▂▃▄▅▆▇█ ]+")

def table(lines):
    head = next(i for i, x in enumerate(lines) if x.split() == names)
    ends = [m.end() for m in re.finditer(r"\S+", lines[head])]
    rows = []
    for x in lines[head + 1:]:
        if not re.match(r" *\d+ ", x):
            break
        # Right-aligned: each value ends where its name does.
        assert [m.end() for m in re.finditer(r"\S+", x)] == ends, x
        rows.append(int(x.split()[0]))
    return rows, lines[head + 1 + len(rows):]

for name in "middle", "seen":
    lines = [x.rstrip("\n") for x in open(name, encoding="utf-8")]
    assert all(len(x) < width for x in lines), lines
    rows, rest = table(lines)
    rest = [x for x in rest if x]
    if name == "middle":
        # Just one status line, below the last row, whose bar has the share of its step.
        assert len(rest) == 1, rest
        # There is space behind it for the ^C that a terminal shows of Ctrl-C.
        assert len(rest[0].rstrip()) <= width - 3, rest
        assert width > 80 or len(rest[0].rstrip()) == width - 3, rest
        m = status.fullmatch(rest[0].rstrip())
        assert m, rest
        step, bar = int(m[1]), m[2]
        assert len(bar) == (10 if width == 80 else 20), bar
        assert bar.count("█") == step * len(bar) // 4000, rest
        assert rows == list(range(400, step + 1, 400)), (rows, step)
    else:
        # None is left at the end.
        assert rows == list(range(400, 4001, 400)), rows
        assert rest[0].startswith("trainstep: m.ckpt: saved at step 4000; "), rest
        assert rest[-1] == "[status 0]" and not any(map(status.search, rest)), rest
PY
    done
}

@test "in a pipe the table is TSV, whatever stderr is" {
    fresh m.ckpt
    python3 "$HERE/terminal.py" 80 bash -c "trainstep -d $IN/ids.tok -n 3 m.ckpt >table" >raw
    has 'step 3 of 3 ' <raw
    [ "$(head -n 1 table)" = $'step\tloss\ttokens\tlr\tgrad_norm\ttok_s\tmfu\tmem_gb\tms\tskipped' ]
    [ "$(tail -n +2 table | awk -F '\t' 'NF == 10 { print $1 }' | paste -sd ' ')" = '1 2 3' ]
}
