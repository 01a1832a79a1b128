#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# "generate --batch" on the CPU: several prompts at a time against one at a time.
#
#   bench/batch.sh [-o CSV] [-j THREADS] [-r ROUNDS] [-b BATCH] [-n TOKENS] [ISA]...
#
#   -o  where rows go (default: only standard output)
#   -j  threads (default: all processors)
#   -r  rounds: in each, both ways run once for each ISA, one after the other (5)
#   -b  prompts, and how many at a time (8)
#   -n  tokens of each answer (48)
#   ISA: avx2, avx512, auto... (default: avx2 and what the machine has best)
#
# The model is random, of the shape of Qwen3-0.6B, quantized by nvquant; it takes 2 GB of disk.
# Timed are the tokens after the first of each answer: loading and prompts lie outside.  Two rates:
# tokens a second, and tokens a second of processor time, from which that of a run with one token an
# answer is subtracted; the second tells more where others keep processors busy (busy: how many of
# them, on average; 0 is a machine of one's own).
# ratio: of the two runs of a round, the median of all rounds.  Both ways must print the same bytes.
#
# Environment: NIBBLE_BIN, the programs (default: ../bin)
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
csv='' threads=$(nproc) rounds=5 batch=8 tokens=48
usage='usage: bench/batch.sh [-o CSV] [-j THREADS] [-r ROUNDS] [-b BATCH] [-n TOKENS] [ISA]...'
while getopts o:j:r:b:n:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    j) threads=$OPTARG ;;
    r) rounds=$OPTARG ;;
    b) batch=$OPTARG ;;
    n) tokens=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
isas=("$@")
[ $# -gt 0 ] || isas=(avx2 auto)
for p in "$threads" "$rounds" "$batch" "$tokens"; do
    case $p in
    '' | *[!0-9]* | 0*) echo "bench/batch.sh: $p: want a whole number above 0" >&2 && exit 2 ;;
    esac
done

# shellcheck source=bench/common.bash
source "$here/common.bash"
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/nibble-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
begin threads,isa,way,what,value,low,high,rounds,busy

"$bin/datpack" -q --init 1 --config "$here/qwen3-0.6b-config.json" --dtype bf16 -o "$dir/m.safetensors"
"$bin/nvquant" -q -o "$dir/m.dat" "$dir/m.safetensors"
rm "$dir/m.safetensors"
awk -v n="$batch" 'BEGIN {
    for (i = 1; i <= n; i++)
        for (k = 1; k <= 8; k++)
            printf "%d%s", i * k * 7919 % 151936, k < 8 ? " " : "\n"
}' >"$dir/prompts"

# Clock ticks: of all programs on all processors, and of ours that have ended.
ticks()
{
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat
    awk '{ print $16 + $17 }' /proc/$$/stat
}

# run ISA N TOKENS FILE: N at a time; processor seconds, and the answers in FILE.
run()
{
    local TIMEFORMAT='%U %S' isa=()
    [ "$1" = auto ] || isa=(NIBBLE_ISA="$1")
    { time env "${isa[@]}" "$bin/generate" -q --no-verify --device cpu -j "$threads" --ids --json --ignore-eos \
        --batch "$2" -n "$3" "$dir/m.dat" <"$dir/prompts" >"$4"; } 2>&1 | awk '{ print $1 + $2 }'
}

# seconds N FILE: of all tokens after the first ones.  Many at a time begin when the last prompt is
# computed, and end together.
seconds()
{
    sed 's/.*"decode_s":\([^,}]*\).*/\1/' "$2" |
        awk -v n="$1" '{ s = n == 1 ? s + $1 : $1 } END { printf "%.9f", s }'
}

# rates ISA N: tokens a second, and a second of processor time.
rates()
{
    local all load
    load=$(run "$1" "$2" 1 "$dir/none")
    all=$(run "$1" "$2" $((tokens + 1)) "$dir/$2")
    awk -v n=$((batch * tokens)) -v s="$(seconds "$2" "$dir/$2")" -v cpu="$all" -v load="$load" \
        'BEGIN { printf "%.3f %.3f", n / s, n / (cpu - load) }'
}

# row ISA WAY WHAT BUSY: of the numbers in sorted order
row()
{
    local n
    n=$(wc -l <"$dir/sorted")
    echo "$threads,$1,$2,$3,$(sed -n "$(((n + 1) / 2))p" "$dir/sorted"),$(head -n 1 "$dir/sorted"),$(
        tail -n 1 "$dir/sorted"),$n,$4"
}

for isa in "${isas[@]}"; do
    mapfile -t start < <(ticks)
    SECONDS=0
    for ((i = 0; i < rounds; i++)); do
        echo "$(rates "$isa" 1) $(rates "$isa" "$batch")"
        cmp <(sed 's/"timing".*//' "$dir/1") <(sed 's/"timing".*//' "$dir/$batch") >&2
    done >"$dir/rates"
    busy=$(ticks | paste -s - | awk -v all="${start[0]}" -v own="${start[1]}" -v s=$SECONDS \
        -v hz="$(getconf CLK_TCK)" '{ printf "%.2f", ($1 - all - $2 + own) / hz / s }')
    column=1
    for way in 'one at a time' "$batch at a time"; do
        for what in 'tokens/s' 'tokens/s of processor time'; do
            cut -d ' ' -f $column "$dir/rates" | sort -g >"$dir/sorted"
            row "$isa" "$way" "$what" "$busy"
            column=$((column + 1))
        done
    done | keep
    column=1
    for what in 'tokens/s' 'tokens/s of processor time'; do
        awk -v c=$column '{ printf "%.3f\n", $(c + 2) / $c }' "$dir/rates" | sort -g >"$dir/sorted"
        row "$isa" ratio "$what" "$busy"
        column=$((column + 1))
    done | keep
done
