#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One stage of a training: OUT.ckpt from START.ckpt, in steps that can be killed.
#
#   stage.sh START.ckpt DATA.tok EPOCHS|STEPSs PER-STEP OUT.ckpt [TRAINSTEP-OPTION]...
#
# The stage has as many steps as go EPOCHS times through DATA, PER-STEP samples each, or
# STEPS if there is an s behind the number.  What is trained so far is in OUT.work.ckpt,
# which becomes OUT.ckpt when the stage is done; START is never changed.  One that
# is older than START, DATA or a file of $SETTINGS is of another run, and begun anew.
# A schedule ends where the stage ends; the first stage of a checkpoint has a warm-up.
#
# Environment: SETTINGS, files (words); TAUGHT, samples of --teacher-data, which are of DATA, too; GUARD, a
# command (words) to run trainstep under; QUIET, if it is not empty: of what trainstep says in a stage that
# ends well, only warnings are shown.
set -euo pipefail

if [ $# -lt 5 ]; then
    sed -n 's/^#   \(stage.sh\)/usage: \1/p' "$0" >&2
    exit 2
fi
start=$1 data=$2 length=$3 per_step=$4 out=$5
shift 5
work=${out%.ckpt}.work.ckpt

for f in "$start" "$data" ${TAUGHT:+"$TAUGHT"} ${SETTINGS:-}; do
    if [ "$f" -nt "$work" ]; then
        rm -f "$work"
    fi
done

begin=$(datcat --meta "$start" | tr -d '\n' | sed -E 's/.*"step":([0-9]+),.*/\1/')
case $length in
*s) steps=${length%s} ;;
*)
    samples=0
    for f in "$data" ${TAUGHT:+"$TAUGHT"}; do
        samples=$((samples + $(datcat "$f" | awk 'NR == 2 { print $1 }')))
    done
    steps=$(((length * samples + per_step - 1) / per_step))
    ;;
esac
until=$((begin + steps))
if [ "$until" -gt 4294967295 ]; then
    echo "stage.sh: $length of $data is up to step $until: there are 4294967295" >&2
    exit 2
fi
warmup=0
if [ "$begin" -eq 0 ]; then
    warmup=$((steps < 300 ? steps / 10 : 30))
fi

# -f is for reports of a run that was cut; what is trained is never replaced so.
if [ -e "$work" ]; then
    where=("$work")
else
    where=(-o "$work" "$start")
fi

train()
{
    # shellcheck disable=SC2086  # GUARD is words
    ${GUARD:-} trainstep -f -d "$data" --until "$until" --total-steps "$until" \
        --warmup "$warmup" ${TAUGHT:+--teacher-data "$TAUGHT"} "$@" "${where[@]}" >/dev/null
}

status=0
if [ -z "${QUIET:-}" ]; then
    train "$@" || status=$?
else
    words=${out%.ckpt}.words.part
    train "$@" 2>"$words" || status=$?
    if [ $status -eq 0 ]; then
        grep -v ': saved at step \|: evaluation loss ' "$words" >&2 || true
    else
        cat "$words" >&2
    fi
    rm -f "$words"
fi
if [ $status -ne 0 ]; then
    if [ $status -eq 75 ] || [ $status -eq 124 ]; then
        echo 'stage.sh: what is trained so far is saved: the same make command goes on from there' >&2
    fi
    exit $status
fi
mv "$work" "$out"
