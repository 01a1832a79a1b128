#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Kills the pipeline at random places and restarts it, and wants the same results each time.
#
#   check-kills.sh [-s SEED] [-k KILLS] N DIR [VARIABLE=value]...
#
# The pipeline runs once to know its hashes and its time; then N times anew: killed (SIGKILL,
# all of its processes) at a random moment of that time, restarted, killed again until that
# happened KILLS times (1), and restarted to its end.  Each of these ends in the same
# hashes, or has failed.  DIR must not exist.  The last line is "N passed, N failed".
#
# Only a process group that this script has made itself is ever killed.
#
# Environment: NIBBLE_BIN, MAKE.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
seed=1 kills=1
while getopts s:k: o; do
    case $o in
    s) seed=$OPTARG ;;
    k) kills=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
if [ $# -lt 2 ]; then
    sed -n 's/^#   \(check-kills.sh\)/usage: \1/p' "$0" >&2
    exit 2
fi
n=$1 dir=$2
shift 2
mkdir "$dir"
dir=$(cd "$dir" && pwd)

# run: the pipeline in $dir/out, to its last hash; a page about it is not part of it.
run()
{
    "${MAKE:-make}" -C "$here" OUT="$dir/out" "$@" hashes
}

# draw N: a number from 0 to N-1 in $drawn, the same ones for the same seed everywhere.
state=$seed
draw()
{
    state=$(((state * 1103515245 + 12345) % 2147483648))
    drawn=$(((state >> 16) * $1 >> 15))
}

# killed MILLISECONDS: run, and after that time no process of it is left.
killed()
{
    local after=$1 pid group
    shift
    # A session of its own: its processes are the group whose number is that of the first.
    setsid "${MAKE:-make}" -C "$here" OUT="$dir/out" "$@" hashes >>"$dir/log" 2>&1 &
    pid=$!
    sleep "$((after / 1000)).$(printf '%03d' $((after % 1000)))"
    group=$(cut -d ' ' -f 5 "/proc/$pid/stat" 2>/dev/null) || group=
    if [ -n "$group" ] && [ "$group" = "$pid" ] && [ "$group" -gt 1 ]; then
        kill -KILL -- "-$group" 2>/dev/null || true
    fi
    wait "$pid" 2>/dev/null || true
}

# How many there are by now; a kill may come before there is a directory.
files() { { find "$dir/out" -maxdepth 1 -type f 2>/dev/null || true; } | wc -l; }

now() { date +%s%3N; }

begin=$(now)
run "$@" >"$dir/log" 2>&1 || { tail -n 20 "$dir/log" >&2; exit 2; }
whole=$(($(now) - begin))
cp "$dir/out/hashes.tsv" "$dir/want"
echo "a whole run takes $whole ms: $(sed -n 's/^trained.dat\t//p' "$dir/want") trained.dat"

passed=0 failed=0
for ((i = 1; i <= n; i++)); do
    rm -rf "$dir/out"
    : >"$dir/log"
    at=
    for ((k = 0; k < kills; k++)); do
        draw "$whole"
        killed "$drawn" "$@"
        at="$at $drawn ms ($(files) files)"
    done
    if run "$@" >>"$dir/log" 2>&1 && cmp -s "$dir/want" "$dir/out/hashes.tsv"; then
        passed=$((passed + 1))
        echo "killed at$at: equal"
    else
        failed=$((failed + 1))
        echo "killed at$at: NOT EQUAL"
        tail -n 5 "$dir/log"
        diff "$dir/want" "$dir/out/hashes.tsv" | head -n 6 || true
        cp -r "$dir/out" "$dir/failed.$i"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
