#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# trainstep: a training that diverges is warned of, and --stop-if-worse ends it before it saves.

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
with open("ids", "w") as f:
    for _ in range(30):
        print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    tokenize -q --input ids -o ids.tok ids
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
}

t() { trainstep -q -d "$IN/ids.tok" --batch 3 "$@"; }

# The vocabulary has 97 ids: 1.5 ln(97) is 6.862.
@test "a loss above that of guessing for ten steps is warned of once, with what to do" {
    # Two steps spoil the model; those that follow change nothing.
    cp "$IN/start.ckpt" bad.ckpt
    t --lr 0.5 -n 2 bad.ckpt >/dev/null
    cp bad.ckpt m.ckpt
    run -0 --separate-stderr t --lr 1e-9 --until 32 m.ckpt
    [ "$(grep -c 'the loss was above 6.862 for 10 steps' <<<"$stderr")" -eq 1 ]
    [[ $stderr == *'--lr'*'--stop-if-worse'* ]]
    # It comes with the tenth such step, and not before.
    n=$(awk -F '\t' 'NR > 1 { high = $2 > 6.862 ? high + 1 : 0; if (high == 10) { print $1; exit } }' <<<"$output")
    [[ $stderr == *"step $n: the loss was above"* ]]
    run -0 --separate-stderr t --lr 1e-9 --until $((n - 1)) bad.ckpt
    [ -z "$stderr" ]
    # A training that learns says nothing.
    cp "$IN/start.ckpt" m.ckpt
    run -0 --separate-stderr t --lr 1e-2 -n 30 m.ckpt
    [ -z "$stderr" ]
}

@test "a loss far above that of guessing is warned of at once, and once" {
    cp "$IN/start.ckpt" m.ckpt
    run -0 --separate-stderr t --lr 10 -n 30 m.ckpt
    n=$(awk -F '\t' 'NR > 1 && $2 > 4 * log(97) { print $1; exit }' <<<"$output")
    [ "$n" -lt 10 ]
    [[ $stderr == *"step $n: the loss is "*', and that of equal probabilities for all tokens is 4.575: '*'--lr'* ]]
    [ "$(grep -c 'has diverged: ' <<<"$stderr")" -eq 1 ]
}

@test "the checkpoint from before a divergence is kept, once, and none that was bad already" {
    cp "$IN/start.ckpt" m.ckpt
    run -0 --separate-stderr t --lr 10 -n 30 m.ckpt
    [ "$(grep -c 'm.ckpt: step 0, from before the training diverged, is kept as m.ckpt.step0' <<<"$stderr")" -eq 1 ]
    cmp m.ckpt.step0 "$IN/start.ckpt"
    run -1 cmp -s m.ckpt m.ckpt.step0
    # What goes on from there has nothing to keep.
    run -0 --separate-stderr t -n 30 m.ckpt
    [[ $stderr == *'has diverged: '* ]]
    [[ $stderr != *'is kept as'* ]]
    [ ! -e m.ckpt.step30 ]
    # With saves between it is the last one whose weights gave no such loss: 1.5 ln(97) is 6.862.
    run -0 --separate-stderr t --lr 3 --warmup 50 -n 60 -o n.ckpt "$IN/start.ckpt"
    n=$(awk -F '\t' 'NR > 1 && $2 > 6.862 { print $1 - 1; exit }' <<<"$output")
    [ "$n" -gt 3 ]
    n=$((n / 2 + 1))
    run -0 --separate-stderr t --lr 3 --warmup 50 -n 60 --save-every "$n" -f -o n.ckpt "$IN/start.ckpt"
    [[ $stderr == *"n.ckpt: step $n, from before the training diverged, is kept as n.ckpt.step$n"* ]]
    [ "$(datcat --meta "n.ckpt.step$n" | json "d['meta']['state']['step']")" -eq "$n" ]
    # The copy does not replace a file that is there, whether a checkpoint or not.
    cp "$IN/start.ckpt" o.ckpt
    echo mine >o.ckpt.step0
    run -0 --separate-stderr t --lr 10 -n 5 o.ckpt
    [[ $stderr == *'is not kept: o.ckpt.step0 is another file'* ]]
    [ "$(cat o.ckpt.step0)" = mine ]
    cp "$IN/start.ckpt" o.ckpt
    cp "$IN/start.ckpt" o.ckpt.step0
    run -0 --separate-stderr t --lr 10 -n 5 o.ckpt
    [[ $stderr == *'is kept as o.ckpt.step0'* ]]
    # With -o the input is left as it is.
    run -0 --separate-stderr t --lr 10 -n 5 -o p.ckpt "$IN/start.ckpt"
    [[ $stderr == *'has diverged: '* && $stderr != *'is kept as'* ]]
    [ ! -e p.ckpt.step0 ]
}

@test "a rate without its minus is refused, and a warm-up beyond the run is remarked on" {
    cp "$IN/start.ckpt" m.ckpt
    refuse -2 "--lr: 5e5: expected at most 10000: is 5e-5 meant?" t --lr 5e5 m.ckpt
    refuse -2 "--lr: 20000: expected at most 10000, as 1e-5" t --lr 20000 m.ckpt
    cmp "$IN/start.ckpt" m.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --batch 3 --warmup 1000 -n 5 m.ckpt
    [[ $stderr == *'--warmup 1000: the run ends with step 5, where the rate is 0.005 of --lr '* ]]
    # Later runs are not asked again.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 5 m.ckpt
    [[ $stderr != *'--warmup'* ]]
}

@test "a gradient of zeros is warned of once" {
    # Weights so large that each probability is 0 or 1.
    cp "$IN/start.ckpt" m.ckpt
    run -0 --separate-stderr t --lr 1e4 -n 30 m.ckpt
    n=$(awk -F '\t' 'NR > 1 && $5 == 0 { print $1; exit }' <<<"$output")
    [ -n "$n" ]
    [ "$(grep -c 'the gradient norm is exactly 0' <<<"$stderr")" -eq 1 ]
    [[ $stderr == *"step $n: the gradient norm is exactly 0"*'lower --lr'* ]]
}

@test "--stop-if-worse ends with 4 and leaves the checkpoint, wherever the run is cut" {
    local want k
    s() { t --lr 0.5 --stop-if-worse 1.2 "$@"; }
    cp "$IN/start.ckpt" m.ckpt
    run -4 --separate-stderr s --until 200 m.ckpt
    cmp "$IN/start.ckpt" m.ckpt
    want=$(awk -F '\t' 'NR > 1 { worse = best && $2 > 1.2 * best ? worse + 1 : 0
        if (!best || $2 < best) best = $2
        if (worse == 10) { print $1; exit } }' <<<"$output")
    [[ $stderr == *"step $want: the loss of 10 steps in a row was above 1.2 times the lowest one, "*': m.ckpt stays at step 0: '* ]]
    # Without it nothing ends the run.
    run -0 t --lr 0.5 --until "$want" -o x.ckpt m.ckpt
    # Cut before, within and just before the end of the ten steps.
    for k in 1 $((want - 5)) $((want - 1)); do
        rm -f m.ckpt*
        cp "$IN/start.ckpt" m.ckpt
        s --until "$k" m.ckpt >/dev/null
        [ "$(grep -c '"worse"' m.ckpt.eval.jsonl)" -eq 1 ]
        run -4 --separate-stderr s --until 200 m.ckpt
        [[ $stderr == *"step $want: the loss of 10 steps"*": m.ckpt stays at step $k: "* ]]
    done
    # With -o the message names the file that was saved.
    run -4 --separate-stderr s --until 200 --save-every 2 -o out.ckpt "$IN/start.ckpt"
    [[ $stderr =~ ': out.ckpt stays at step '[1-9] ]]
    # Saves on the way are those of steps before.
    rm -f m.ckpt*
    cp "$IN/start.ckpt" m.ckpt
    run -4 --separate-stderr s --until 200 --save-every "$want" m.ckpt
    cmp "$IN/start.ckpt" m.ckpt
    # The bytes of a checkpoint do not depend on it.
    rm -f m.ckpt*
    cp "$IN/start.ckpt" m.ckpt
    t --lr 1e-2 -n 6 --stop-if-worse 3 m.ckpt >/dev/null
    t --lr 1e-2 -n 6 -o want.ckpt "$IN/start.ckpt" >/dev/null
    cmp want.ckpt m.ckpt
    # What a checkpoint does not have is not counted: it began anew.
    cp "$IN/start.ckpt" m.ckpt
    t --lr 1e-2 -n 1 --stop-if-worse 3 m.ckpt >/dev/null
    [ "$(jsonl "' '.join(str(x['step']) for x in d)" <m.ckpt.eval.jsonl)" = 1 ]
}

@test "--stop-if-worse beside evaluations: both are in one list" {
    cp "$IN/start.ckpt" m.ckpt
    t --lr 1e-2 -n 4 --stop-if-worse 3 --eval "$IN/ids.tok" --eval-every 2 --save-every 2 --keep-best m.ckpt >/dev/null
    [ "$(grep -c '"eval_loss"' m.ckpt.eval.jsonl)" -eq 2 ]
    [ "$(grep -c '"best_loss"' m.ckpt.eval.jsonl)" -eq 2 ]
    cp m.ckpt.eval.jsonl was
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 4 --stop-if-worse 3 \
        --eval "$IN/ids.tok" --eval-every 2 --keep-best m.ckpt
    [[ $stderr == *'nothing to do'* ]]
    cmp was m.ckpt.eval.jsonl
}

@test "--stop-if-worse: what makes no sense" {
    refuse '--stop-if-worse: 0.5: ' t --stop-if-worse 0.5 "$IN/start.ckpt"
    refuse '--stop-if-worse: nan: ' t --stop-if-worse nan "$IN/start.ckpt"
    refuse '--stop-after: * expected no --stop-if-worse' t --stop-after start --stop-if-worse 2 "$IN/start.ckpt"
}
