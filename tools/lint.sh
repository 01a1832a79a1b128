#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that reads the sources without running them.  "make lint" calls this.
#
#   tools/lint.sh [PART]...     default: all of the parts below, in this order
#
# spdx layers shell format cppcheck tidy gcc clang
#
# Warnings are errors.  Each part is one check; the last line is "N passed, N
# failed".  A part whose tool is not installed is named and is in neither number.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

make=${MAKE:-make}
out=build-lint
cppflags=(-std=c11 -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DISA=scalar
    '-DNIBBLE_VERSION="lint"' '-DNIBBLE_COMMIT=""')
passed=0 failed=0 skipped=0
mkdir -p $out

have() { command -v "$1" >/dev/null 2>&1; }

# sources PATTERN...: files of the tree, hidden and built ones aside.
sources()
{
    local p dirs=() names=()
    for p in cmd lib kernels tests tools pipelines bench; do
        [ ! -d $p ] || dirs+=("$p")
    done
    for p; do
        names+=(-o -name "$p")
    done
    find "${dirs[@]}" -type f \( "${names[@]:1}" \) | LC_ALL=C sort
}

# Each file names its licence in its first line, after a #! in its second.
lint_spdx()
{
    local f n bad=0
    while IFS= read -r f; do
        n=1
        [ "$(head -c 2 "$f")" != '#!' ] || n=2
        if ! sed -n "${n}p" "$f" |
            grep -Eq '^(/\*|//|#|\.\\") SPDX-License-Identifier: MIT( \*/)?$'; then
            echo "$f:$n: want the line \"SPDX-License-Identifier: MIT\""
            bad=1
        fi
    done < <(sources '*.[ch]' '*.cu' '*.sh' '*.bash' '*.bats' '*.py' &&
        ls Makefile .ci/run .clang-tidy man/*.1 2>/dev/null)
    return $bad
}

lint_layers()
{
    tools/layers.sh
}

lint_shell()
{
    sources '*.sh' '*.bash' '*.bats' | xargs shellcheck .ci/run
}

lint_format()
{
    sources '*.[ch]' '*.cu' '*.cpp' | xargs clang-format --dry-run --Werror >$out/format 2>&1 && return
    sed -n 's/^\([^:]*\):.*error: .*/clang-format -i \1/p' $out/format | LC_ALL=C sort -u
    return 1
}

lint_cppcheck()
{
    mkdir -p $out/cppcheck
    sources '*.c' | xargs cppcheck -q -j "$(nproc)" --std=c11 --language=c \
        --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppress=normalCheckLevelMaxBranches --suppress=preprocessorErrorDirective \
        --cppcheck-build-dir=$out/cppcheck -I. -D_GNU_SOURCE -DISA=scalar
}

# Only the errors are shown, or how it ended without any; "clang-tidy FILE -- FLAGS" tells how it
# came to them.
# failio.c stands in for functions of the C library, whose names and checks it shares;
# llama_peer.c needs headers of llama.cpp, comm_mpi.c those of MPI.
lint_tidy()
{
    local without='tests/failio|bench/llama_peer' dir
    for dir in $(mpicc -showme:incdirs 2>/dev/null || true); do
        cppflags+=(-isystem "$dir")
    done
    have mpicc || without+='|lib/dist/comm_mpi'
    # shellcheck disable=SC2016  # for the inner shell
    sources '*.c' | grep -vE "^($without)\.c$" | xargs -P "$(nproc)" -n 1 bash -c '
        file=${@: -1}
        set -- "${@:1:$#-1}"
        text=$(clang-tidy --quiet "$file" -- "$@" 2>&1) || {
            rc=$?
            printf "%s\n" "$text" | grep "error:" | LC_ALL=C sort -u | grep . ||
                printf "%s: clang-tidy: status %s\n%s\n" "$file" $rc "$(tail -n 5 <<<"$text")"
            exit 1
        }' tidy "${cppflags[@]}"
}

lint_gcc()
{
    $make -s NVCC= CC=gcc BUILD=$out/gcc BIN=$out/gcc/bin WERROR=-Werror all test-programs
}

# Nothing here is compiled by nvcc a second time: the build itself has done it.
lint_clang()
{
    $make -s NVCC= CC=clang BUILD=$out/clang BIN=$out/clang/bin WERROR=-Werror \
        all test-programs
}

[ $# -gt 0 ] || set -- spdx layers shell format cppcheck tidy gcc clang
for part; do
    case $part in
    spdx | layers) tool=bash ;;
    shell) tool=shellcheck ;;
    format) tool=clang-format ;;
    tidy) tool=clang-tidy ;;
    cppcheck | gcc | clang) tool=$part ;;
    *) echo "tools/lint.sh: $part: no such part" >&2 && exit 2 ;;
    esac
    if ! have "$tool"; then
        echo "lint $part: not run: $tool is not installed (tools/setup.sh lint)"
        skipped=$((skipped + 1))
    elif "lint_$part"; then
        passed=$((passed + 1))
        echo "lint $part: ok"
    else
        failed=$((failed + 1))
        echo "lint $part: FAILED"
    fi
done
[ "$skipped" -eq 0 ] || echo "$skipped not run, see above"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
