#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2317  # functions that others are given
# shellcheck disable=SC2154  # output, status, stderr, pid: set by run or paused.bash
# trainstep: what a run that was stopped or killed owes, an evaluation or a copy, is paid when the
# same command starts again, also where no step is left; and an output that cannot be written
# costs no step.

load common
load paused

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(5)
for name, rows in ("ids", 30), ("held", 7):
    with open(name, "w") as f:
        for _ in range(rows):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    tokenize -q --input ids -o ids.tok ids
    tokenize -q --input ids -o held.tok held
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
}

# train OPTION...: m.ckpt up to step 6.
train() { [ -e m.ckpt ] || cp "$IN/start.ckpt" m.ckpt && trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 --until 6 "$@" m.ckpt; }
evaluate() { train --eval "$IN/held.tok" "$@"; }

at() { datcat --meta "$1" | json "d['meta']['state']['step']"; }

# same_files: the directory holds what the undisturbed run in ../want left, and nothing else.  A
# lock that a killed run left is no lock, and the next run that needs one removes it.
same_files() {
    rm -f .m.ckpt.nibble-lock
    diff <(find ../want -type f -printf '%P\n' | sort) <(find . -type f -printf '%P\n' | sort)
    local f
    while read -r f; do
        cmp "../want/$f" "$f"
    done < <(find ../want -type f -printf '%P\n')
}

# want COMMAND...: ../want is what it leaves when nothing disturbs it.
want() {
    mkdir ../want
    cp "$IN/start.ckpt" ../want/m.ckpt
    (cd ../want && "$@" >/dev/null)
}

# killed_at_each KIND COMMAND...: killed at the first, second, ... call of that kind, and then
# called again, it leaves the same files each time.  How often it was killed is in $kills.
killed_at_each() {
    local kind=$1
    shift
    kills=0
    while :; do
        rm -rf ./* .m.ckpt*
        cp "$IN/start.ckpt" m.ckpt
        status=0
        LD_PRELOAD=$FAILIO_SO FAILIO="$kind:$((kills + 1)):kill=9:m.ckpt" "$@" >/dev/null ||
            status=$?
        [ $status -eq 137 ] || break
        kills=$((kills + 1))
        "$@" >/dev/null
        echo "killed at call $kills of $kind" && same_files
    done
    [ $status -eq 0 ]
    same_files
}

# bats test_tags=native,slow
@test "killed at each rename, link or unlink: the next run leaves the same copies and lists" {
    local kind
    all() { evaluate --eval-every 2 --save-every 2 --keep-best --keep-last 2; }
    want all
    [ -e ../want/m.ckpt.best ]
    [ -e ../want/m.ckpt.keep-last ]
    for kind in anyrename linkat unlink; do
        killed_at_each $kind all
        [ "$kills" -gt 3 ]
    done
}

# bats test_tags=native
@test "killed at each rename where copies are no links" {
    all() { FAILIO="linkat:*:EPERM${FAILIO:+;$FAILIO}" LD_PRELOAD=$FAILIO_SO evaluate --keep-best --keep-every 3; }
    want all
    killed_at_each rename all
    [ "$kills" -gt 3 ]
}

# bats test_tags=native
@test "a stop in the last evaluation: the same command makes it, and then does nothing" {
    local how reads
    while read -r how; do
        rm -rf ../want ./* .m.ckpt*
        # The seven samples of an evaluation are read one by one: the last one begins six reads
        # before the last read.
        # shellcheck disable=SC2086  # options
        LD_PRELOAD=$FAILIO_SO FAILIO_LOG=$PWD/calls want evaluate $how
        reads=$(grep -ac ' pread .*/held.tok' calls)
        [ "$reads" -ge 7 ]
        rm calls
        cp "$IN/start.ckpt" m.ckpt
        # shellcheck disable=SC2086
        paused "pread:$((reads - 6)):stop:held.tok" trainstep -d "$IN/ids.tok" --batch 3 --lr 1e-2 \
            --until 6 --eval "$IN/held.tok" $how m.ckpt
        kill -TERM "$pid"
        ended
        [ "$status" -eq 75 ]
        [[ $(tail -n 1 err) == *'m.ckpt: saved at step 6 of 6; all steps are taken; the same command makes the evaluation' ]]
        rm out err
        [ "$(at m.ckpt)" -eq 6 ]
        # shellcheck disable=SC2086
        evaluate $how >/dev/null
        same_files
        # shellcheck disable=SC2086
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" --until 6 --eval "$IN/held.tok" $how m.ckpt
        [[ $stderr == *'m.ckpt: at step 6: nothing to do'* ]]
        same_files
    done <<<'--keep-best
        --keep-best --eval-every 4
        --patience 9'
}

# bats test_tags=native
@test "--eval-first is the first evaluation of a training, not of each run" {
    local n
    first() { evaluate --eval-first --eval-every 3 --patience 2 --keep-best --lr 1e-3 --until 12; }
    want first
    for n in 10 13; do
        rm -rf ./* .m.ckpt*
        cp "$IN/start.ckpt" m.ckpt
        status=0
        LD_PRELOAD=$FAILIO_SO FAILIO="pread:$n:kill=15:ids.tok" first >/dev/null || status=$?
        [ $status -eq 75 ]
        first >/dev/null
        same_files
    done
}

@test "a copy that was not kept is not called the best one" {
    evaluate --eval-every 2 --patience 9 --lr 1e-3 >/dev/null
    # All evaluations so far were without --keep-best; a worse one becomes the first copy.
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --batch 3 --lr 3 --until 8 \
        --eval "$IN/held.tok" --eval-every 2 --keep-best m.ckpt
    [ "$(at m.ckpt.best)" -eq 8 ]
    [[ ${stderr##*$'\n'} =~ 'm.ckpt.best is step 8, of loss '.*': step '[0-9]+' had the lowest loss, '.*', in a run without --keep-best'$ ]]
}

# bats test_tags=native
@test "an output that cannot be written ends the run behind a save" {
    local rule file
    train >/dev/null
    mv m.ckpt want.ckpt
    options=(--log log.jsonl --tensorboard tb --eval "$IN/held.tok" --eval-every 1 --keep-best)
    # The third line of the log, one of TensorBoard's events, the list of the second evaluation.
    while read -r rule file; do
        rm -rf m.ckpt* log.jsonl tb
        cp "$IN/start.ckpt" m.ckpt
        run -2 --separate-stderr env LD_PRELOAD="$FAILIO_SO" FAILIO="$rule" \
            trainstep -d "$IN/ids.tok" --batch 3 --lr 1e-2 --until 6 "${options[@]}" m.ckpt
        [[ $stderr == *"trainstep: $file: "*"No space left on device; the run is saved and ends"* ]]
        [[ ${stderr##*$'\n'} =~ 'm.ckpt: saved at step '([1-5])' of 6; go on with the same command'$ ]]
        [ "$(at m.ckpt)" -eq "${BASH_REMATCH[1]}" ]
        train "${options[@]}" >/dev/null
        cmp want.ckpt m.ckpt
        datcat --verify m.ckpt.best
    done <<<'write:3:ENOSPC:/log.jsonl log.jsonl
        write:9:ENOSPC:/tb/ tb
        pwrite:2:ENOSPC:eval.jsonl m.ckpt.eval.jsonl'
    # The table.
    cp "$IN/start.ckpt" m.ckpt
    status=0
    train >/dev/full 2>err || status=$?
    [ $status -eq 2 ]
    [[ $(cat err) == 'trainstep: standard output: No space left on device; the run is saved and ends'* ]]
    [ "$(at m.ckpt)" -eq 1 ]
    train >/dev/null
    cmp want.ckpt m.ckpt
}

# bats test_tags=native
@test "a checkpoint in training is locked under all its names" {
    cp "$IN/start.ckpt" m.ckpt
    ln m.ckpt other.ckpt
    paused 'pread:1:stop:ids.tok' trainstep -q -d "$IN/ids.tok" --until 6 m.ckpt
    run -2 --separate-stderr trainstep -q -d "$IN/ids.tok" --until 6 other.ckpt
    [[ $stderr == *'other.ckpt: another process trains the same file under another name, a hard link: '* ]]
    [ ! -e .other.ckpt.nibble-lock ]
    # To begin another training with it, and to do nothing, needs no lock of it.
    run -0 trainstep -q -d "$IN/ids.tok" -n 1 -o new.ckpt other.ckpt
    run -0 trainstep -q -d "$IN/ids.tok" --until 0 other.ckpt
    ended
    [ "$status" -eq 0 ]
    run -0 trainstep -q -d "$IN/ids.tok" --until 6 other.ckpt
    cmp m.ckpt other.ckpt
}
