#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA backend's own kernels on the CPU; "make check-emulated" builds and calls this.
#
#   tests/emulate/check.sh [PART]...     default: operations others more programs
#
# operations   tests/gpu, their smallest cases, against the CPU's operations
# others       some of them with threads and blocks in the opposite order, with queues as late and
#              as early as they can be, and as if the device were of sm_120, with less shared
#              memory and products of NVFP4
# more         the longer ones of these
# programs     tools/check-gpu.sh: steps of a small model, nvquant's bytes, failures; as
#              sm_90 and as sm_120, or as NIBBLE_EMULATE_SM says
#
# No GPU is used, and no time means anything.  The last line is "N passed, N failed".
#
# Environment: NIBBLE_BIN and NIBBLE_BUILD, as tools/test.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
shopt -s lastpipe # what count counts is counted here
export LC_ALL=C

export NIBBLE_BIN=${NIBBLE_BIN:-$PWD/bin} NIBBLE_BUILD=${NIBBLE_BUILD:-$PWD/build}
export NIBBLE_CUDA=$NIBBLE_BUILD/emulate/libnibble-cuda.so
export LD_LIBRARY_PATH=$NIBBLE_BUILD/emulate${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# run SETTINGS TEST: of tests/gpu; settings have commas between them.  What it says goes to a log,
# its status to another file.
run()
{
    local rc=0 settings
    IFS=, read -ra settings <<<"$1"
    env "${settings[@]}" "$NIBBLE_BUILD/gpu/$2" --tiny >"$dir/$1 $2" 2>&1 || rc=$?
    echo $rc >"$dir/$1 $2.rc"
}
export -f run
export dir

# count: lines of a setting and a test, the longest first, side by side.
count()
{
    local cases setting name rc
    cases=$(cat)
    # shellcheck disable=SC2016  # for the inner shell
    printf '%s\n' "$cases" | xargs -P "$(nproc)" -L 1 bash -c 'run "$@"' run
    while read -r setting name; do
        rc=$(cat "$dir/$setting $name.rc")
        if [ "$rc" = 0 ]; then
            passed=$((passed + 1))
            echo "emulated $name, $setting: ok"
        else
            failed=$((failed + 1))
            echo "emulated $name, $setting: FAILED, status $rc"
            tail -n 40 "$dir/$setting $name" | sed 's/^/    /'
        fi
    done <<<"$cases"
}

part_operations()
{
    local name
    for name in attention rows gemm step quant adamw fp4 fp8 queue open; do
        echo "NIBBLE_EMULATE_SM=90 $name"
    done | count
}

part_others()
{
    local name
    {
        echo "NIBBLE_EMULATE_SM=120 fp4"
        echo "NIBBLE_EMULATE_SM=120 step"
        echo "NIBBLE_EMULATE_SMS=5 step"
        echo "NIBBLE_EMULATE_SMS=3,NIBBLE_EMULATE_BLOCKS=together attention"
        echo "NIBBLE_EMULATE_SMS=3,NIBBLE_EMULATE_BLOCKS=together,NIBBLE_EMULATE_ORDER=back attention"
        echo "NIBBLE_EMULATE_COPIES=early attention"
        echo "NIBBLE_EMULATE_COPIES=early step"
        for name in quant adamw fp4 fp8 step; do
            echo "NIBBLE_EMULATE_ORDER=back $name"
        done
        for name in queue step; do
            echo "NIBBLE_EMULATE_QUEUES=late $name"
            echo "NIBBLE_EMULATE_QUEUES=early $name"
        done
    } | count
}

part_more()
{
    printf '%s\n' 'NIBBLE_EMULATE_SM=120 attention' 'NIBBLE_EMULATE_SM=120 gemm' \
        'NIBBLE_EMULATE_ORDER=back rows' | count
}

part_programs()
{
    local sm line
    for sm in ${NIBBLE_EMULATE_SM:-90 120}; do
        NIBBLE_EMULATE_SM=$sm NIBBLE_GPU_TESTS=open tools/check-gpu.sh >"$dir/log" 2>&1 || :
        sed "\$d; s/^/emulated sm_$sm, /" "$dir/log"
        line=$(tail -n 1 "$dir/log")
        if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
            passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
        else
            echo "emulated programs, sm_$sm: FAILED: $line"
            failed=$((failed + 1))
        fi
    done
}

[ $# -gt 0 ] || set -- operations others more programs
[ -e "$NIBBLE_CUDA" ] || { echo "$0: no $NIBBLE_CUDA: make emulated" >&2 && exit 2; }
echo 'check-emulated: kernels run on the CPU, by tests/emulate; no GPU is used, and times mean nothing'
for part; do
    case $part in
    operations | others | more | programs) "part_$part" ;;
    *) echo "usage: tests/emulate/check.sh [operations|others|more|programs]..." >&2 && exit 2 ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
