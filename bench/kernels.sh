#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What the operations of the CPU backend cost: see bench/kernels.c.
#
#   bench/kernels.sh [-o CSV] [-j THREADS]... [PART]...
#
#   -o  where the rows go (default: only standard output)
#   -j  how many threads; may be given several times (1)
#
# Without a PART: products decode attention adamw small tiny.  BENCH_BLAS, such as
# -lopenblas, is linked in, and products are measured beside its; set the number of its
# threads as it wants it.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
csv=''
threads=()
usage='usage: bench/kernels.sh [-o CSV] [-j THREADS]... [PART]...'
while getopts o:j:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    j) threads+=("$OPTARG") ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(products decode attention adamw small tiny)
[ ${#threads[@]} -gt 0 ] || threads=(1)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck source=bench/common.bash
source "$here/common.bash"
build=${NIBBLE_BUILD:-$root/build}
libs=()
for l in model kernels format text nvfp4 core; do
    libs+=("$build/lib$l.a")
done
blas=()
[ -z "${BENCH_BLAS:-}" ] || blas=("-DPEER=\"${BENCH_PEER:-blas}\"" "$BENCH_BLAS")
"${CC:-cc}" -std=c11 -O2 -D_GNU_SOURCE -I"$root" -o "$dir/kernels" "$here/kernels.c" \
    "${libs[@]}" "${blas[@]}" -lxxhash -lpthread -lm
begin what,threads,path,value,unit
for j in "${threads[@]}"; do
    "$dir/kernels" -j "$j" "${parts[@]}" | keep
done
