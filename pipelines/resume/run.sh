#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One case: trains in two or more pieces and compares the checkpoint with that of the whole
# run.  Prints a row of the table, with its head.
#
#   run.sh KIND WHAT NUMBER DIR WORK OPTION...
#
# WHAT is one of
#   whole    all STEPS at once; prints the checkpoint's hash and the time instead of a row
#   cut      two pieces, cut at place NUMBER of CUTS
#   threads  the first with -j 1, the second with -j 2
#   isa      the second with scalar instructions, which must be few
#   saves    the first with saves, log, evaluations and reports, the second without
#   pieces   a process for each step
#   control  the second with another rate: must differ, or the check could not see it
#   damage   a bit of the checkpoint flips at the cut: must be refused
#   term     SIGTERM at a random moment, then the rest
#   kill     SIGKILL at a random moment of a run that saves after each step, then the rest
#
# DIR has KIND.ckpt, KIND.hash, train.tok and eval.tok.  Environment: STEPS, CUTS, SEED, SECOND,
# RUN_FLAGS.
set -euo pipefail

kind=$1 what=$2 number=$3 dir=$4 work=$5
shift 5
options=(-q -d "$dir/train.tok" "$@")
read -ra flags <<<"$RUN_FLAGS"
read -ra second <<<"${SECOND:-}"
must=equal
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir "$work"
cp --reflink=auto "$dir/$kind.ckpt" "$work/run.ckpt"

# train OPTION...: steps from the checkpoint on; a line a step into a file.
train()
{
    trainstep "${options[@]}" "${flags[@]}" "$@" "$work/run.ckpt" >"$work/steps"
}

# reached: the step that the checkpoint has.
reached()
{
    datcat --meta "$work/run.ckpt" | sed -n 's/.*"step":\([0-9]*\).*/\1/p' | head -n 1
}

# draw N: a number below it, from SEED and the case.
draw()
{
    printf '%s' "$SEED $kind $what $number $1" | cksum |
        awk -v n="$1" '{ print int($1 / 4294967296 * n) }'
}

# running: is the run in the background still there?  (After its end the number of its
# process may be another's.)
running()
{
    [ -n "$(jobs -r)" ]
}

# stop SIGNAL OPTION...: send it in a random step of a whole run, some time after it began.
stop()
{
    local signal=$1 step pid status=0
    shift
    step=$(draw "$STEPS")
    : >"$work/steps"
    trainstep "${options[@]}" "${flags[@]}" --until "$STEPS" "$@" "$work/run.ckpt" >"$work/steps" &
    pid=$!
    # The first line is the head.
    while [ "$(wc -l <"$work/steps")" -le "$step" ] && running; do
        sleep 0.001
    done
    sleep "$(awk -v ms="$(draw "$(cut -f 2 "$dir/$kind.hash")")" -v steps="$STEPS" \
        'BEGIN { printf "%.4f", ms / 1000 / steps }')"
    ! running || kill "-$signal" $pid 2>/dev/null || : # it was faster
    { wait $pid || status=$?; } 2>/dev/null # the shell would say "Killed"
    detail="SIG$signal in step $((step + 1)): status $status"
    case $signal:$status in
    *:0 | TERM:75 | TERM:143 | KILL:137) ;;
    *) exit $status ;;
    esac
}

# flip: the lowest bit of some byte of the checkpoint's arrays.  (Padding between them is
# not read by who trains; datcat --verify looks at it.)
flip()
{
    local n at byte
    datcat --map "$work/run.ckpt" | grep '	payload	' >"$work/map"
    n=$(draw "$(wc -l <"$work/map")")
    at=$(awk -v n="$n" 'NR == n + 1 { printf "%d", $1 + $2 / 2 }' "$work/map")
    byte=$(od -An -tu1 -j "$at" -N 1 "$work/run.ckpt")
    printf '%b' "\\x$(printf %x $((byte ^ 1)))" |
        dd of="$work/run.ckpt" bs=1 seek="$at" conv=notrunc status=none
}

at=$((number * STEPS / (CUTS + 1)))
[ "$at" -gt 0 ] || at=1
detail=
case $what in
whole)
    start=${EPOCHREALTIME/./}
    train --until "$STEPS"
    printf '%s\t%d\n' "$(sha256sum <"$work/run.ckpt" | cut -c 1-64)" \
        $(((${EPOCHREALTIME/./} - start) / 1000))
    exit
    ;;
cut) train --until "$at" ;;
threads)
    train --until "$at" -j 1
    second+=(-j 2)
    detail='-j 1, then -j 2'
    ;;
isa)
    at=$((STEPS - 1))
    train --until "$at"
    export NIBBLE_ISA=scalar
    detail='then NIBBLE_ISA=scalar'
    ;;
saves)
    train --until "$at" --save-every 1 --log "$work/log" --eval "$dir/eval.tok" --eval-every 7 \
        --tensorboard "$work/events" --memory-report "$work/report"
    detail='saves, log, evaluations; then none'
    ;;
pieces)
    for ((at = 1; at < STEPS; at++)); do
        train --until "$at"
    done
    at=$((STEPS - 1))
    detail='a process a step'
    ;;
control)
    train --until "$at"
    second+=(--lr 2e-3)
    must=differs
    detail='then another rate'
    ;;
damage)
    train --until "$at"
    flip
    must=refused
    detail='a bit flips'
    ;;
term) stop TERM ;;
kill) stop KILL --save-every 1 ;;
esac
[ "$must" = refused ] || at=$(reached)
status=0
train --until "$STEPS" "${second[@]}" 2>"$work/said" || status=$?

case $status:$(cut -c 1-64 "$dir/$kind.hash") in
0:"$(sha256sum <"$work/run.ckpt" | cut -c 1-64)") verdict=equal ;;
0:*) verdict=differs ;;
2:*) verdict=refused ;;
*)
    cat "$work/said" >&2
    exit $status
    ;;
esac
[ "$verdict" = "$must" ] || cat "$work/said" >&2
printf 'run\tcase\tcut\tof\thow\tcheckpoint\tmust_be\n'
printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$kind" "$what" "$at" "$STEPS" "${detail:--}" "$verdict" "$must"
