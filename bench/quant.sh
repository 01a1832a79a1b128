#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Quantizers without files: what they cost in dB beside reference figures, and how fast
# each of their paths is beside other programs' on the same processor.  The files are
# measured by "bench/containers.sh quant".
#
#   bench/quant.sh [-o CSV] [PART]...        PART: sqnr speed peers (all)
#
#   -o  where the rows of speed and peers go (default: only standard output)
#
# sqnr prints a table; exit 1 if a figure is off.  peers needs BENCH_PYTHON, a python3
# with torch and torchao or others that bench/quant_peers.py knows; without it the part
# is not run and the exit status is 77.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$here/.. csv=
usage='usage: bench/quant.sh [-o CSV] [PART]...'
while getopts o:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(sqnr speed peers)
for p in "${parts[@]}"; do
    case $p in
    sqnr | speed | peers) ;;
    *) echo "bench/quant.sh: $p: no such part" >&2 && exit 2 ;;
    esac
done

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=bench/common.bash
source "$here/common.bash"
build=${NIBBLE_BUILD:-$root/build}
"${CC:-cc}" -std=c11 -O2 -D_GNU_SOURCE -I"$root" -o "$dir/quant" "$here/quant.c" \
    "$build/libnvfp4.a" "$build/libbase.a" -lm
begin program,path,quantizer,elements_per_second
missing=0

part_sqnr() { "$dir/quant" sqnr; }

part_speed()
{
    "$dir/quant" speed | awk -F , 'NR > 1 { print "nibble -j 1," $1 "," $2 "," $3 }' | keep
}

part_peers()
{
    local python=${BENCH_PYTHON:-python3}
    if ! "$python" -c 'import torch' 2>/dev/null; then
        echo "quant: not run: peers: BENCH_PYTHON has no torch" >&2
        missing=1
        return
    fi
    "$python" "$here/quant_peers.py" |
        awk -F , 'NR > 1 { printf "%s,%s,%s,%.4g\n", $1, $2, $3, $5 / $4 }' | keep
}

for p in "${parts[@]}"; do
    "part_$p"
done
[ $missing -eq 0 ] || exit 77
