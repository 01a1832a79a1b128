#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a GPU that fails does to the programs: an allocation, a launch, a kernel or a copy to
# it, the n-th of a run for many n.  Each time the program must end with 3 (memory) or 2, one
# line that names the GPU and the call, and the checkpoint untouched.
#
#   tests/gpu/failures.sh [-a]
#
#   -a  every n; else about a dozen of each kind
#
# Environment: NIBBLE_BIN (../../bin).  Exit: 0; 1 if a case failed; 77 without a GPU.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../../bin}
whole=
[ "${1:-}" != -a ] || whole=1
dir=$(mktemp -d "${TMPDIR:-/tmp}/nibble-failures.XXXXXX")
trap 'rm -rf "$dir"' EXIT
demo=$here/../../pipelines/demo
passed=0 failed=0

if ! "$bin/trainstep" --diagnose | grep -q '^cuda:0'; then
    echo "not run: $("$bin/trainstep" --diagnose | sed -n 's/^cuda\t//p')"
    exit 77
fi
"$bin/tokenize" -q -t "$demo/tokenizer.json" -o "$dir/d.tok" "$demo/whoami.tsv"
"$bin/datpack" -q --init 1 --config "$demo/config.json" --to ckpt -o "$dir/m.ckpt"
"$bin/datpack" -q --init 1 --config "$demo/config.json" --dtype bf16 -o "$dir/m.dat"
hash=$("$bin/datcat" --hash "$dir/m.ckpt")

bad()
{
    failed=$((failed + 1))
    echo "FAILED: $1"
    cat "$dir/err"
}

# once VARIABLE N STATUS COMMAND...: 1 if the program came to its end without the failure.
once()
{
    local variable=$1 n=$2 want=$3 rc=0
    shift 3
    env "$variable=$n" "$@" >"$dir/out" 2>"$dir/err" || rc=$?
    [ "$rc" -ne 0 ] || return 1
    if [ "$rc" -ne "$want" ]; then
        bad "$variable=$n $1: exit $rc, want $want"
    elif [ "$(wc -l <"$dir/err")" -ne 1 ] || ! grep -q 'cuda:0: ' "$dir/err"; then
        bad "$variable=$n $1: want one line that names the GPU"
    elif [ "$("$bin/datcat" --hash "$dir/m.ckpt")" != "$hash" ]; then
        bad "$variable=$n $1: the checkpoint has changed"
        exit 1
    elif compgen -G "$dir/.*nibble*" >/dev/null; then
        bad "$variable=$n $1: something is left behind"
    else
        passed=$((passed + 1))
    fi
}

# every VARIABLE STATUS COMMAND...: for n = 1, 2, ... until nothing fails any more
every()
{
    local variable=$1 want=$2 n=1 step=1
    shift 2
    while once "$variable" "$n" "$want" "$@"; do
        [ -n "$whole" ] || step=$((n / 3 + 1))
        n=$((n + step))
    done
    if [ "$n" -eq 1 ]; then
        failed=$((failed + 1))
        echo "FAILED: $variable $1: nothing has failed"
    fi
    echo "$variable ${1##*/}: up to $n"
}

# all COMMAND...: of each kind
all()
{
    every NIBBLE_FAIL_ALLOC 3 "$@"
    every NIBBLE_FAIL_LAUNCH 2 "$@"
    every NIBBLE_FAIL_WAIT 2 "$@"
    every NIBBLE_FAIL_STAGE 2 "$@"
}

all "$bin/trainstep" -q --device cuda -d "$dir/d.tok" --batch 4 -n 2 -o "$dir/o.ckpt" -f "$dir/m.ckpt"
all "$bin/generate" -q --device cuda --ids -n 4 -p "5 6 7" --config "$demo/config.json" "$dir/m.dat"
all "$bin/nvquant" -q --device cuda -f -o "$dir/q.dat" "$dir/m.dat"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
