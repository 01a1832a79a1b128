#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Which tests pass although the program under them does not work?
#
#   tools/vacuous.sh [PROGRAM]...       default: all that have tests
#
# In a run of a program's bats files (tests/PROGRAM.bats and those named below) the program
# is replaced by one that, inside of tests but not in setup_file,
#
#   kill        dies of SIGSEGV
#   silent      prints nothing and exits 0
#   third1, third2, third3
#               dies of SIGSEGV in the first, second, third of each three calls
#
# A test in which that happened must fail.  One that passes all the same is printed, unless
# tests/vacuous.tsv lists it: file, program, modes, the test's name, the reason.  A listed
# test that fails is printed, too.  Reports of bats are in build/vacuous.
#
# The last line is "N passed, N failed": tests that failed as they must, and those printed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

real=$(realpath -m "${NIBBLE_BIN:-bin}")
build=$(realpath -m "${NIBBLE_BUILD:-build}")
out=$build/vacuous
modes='kill silent third1 third2 third3'

files_of()
{
    case $1 in
    datcat) echo datcat roundtrip attest ;;
    datpack) echo datpack roundtrip atomic damage dialects gguf importance teach ;;
    nvquant) echo nvquant damage importance ;;
    tokenize) echo tokenize tok ;;
    trainstep) echo trainstep fp4 fp8 damage epochs replay quantfrom teach report ranks ;;
    generate) echo generate fp4 importance chats typed ;;
    memguard) echo memguard ;;
    *) echo "tools/vacuous.sh: $1: expected one of ${all[*]}" >&2 && exit 2 ;;
    esac
}

# saboteur PROGRAM MODE DIR: a folder of programs, one of which does not work.
saboteur()
{
    local p
    mkdir -p "$3/bin" "$3/calls"
    for p in "$real"/*; do
        ln -s "$p" "$3/bin/"
    done
    rm "$3/bin/$1"
    cat >"$3/bin/$1" <<END
#!/bin/bash
# What works is started by its own name: nothing else may differ.
[ -n "\${BATS_TEST_NAME-}" ] || exec "$real/$1" "\$@"
calls=$3/calls/\$BATS_TEST_NUMBER
n=\$({ flock 9; cat "\$calls"; echo . >>"\$calls"; } 9>>"\$calls" | wc -l)
case $2 in
third*) [ \$((n % 3 + 1)) = ${2#third} ] || exec "$real/$1" "\$@" ;;
esac
: >"\$calls.hit"
[ $2 = silent ] && exit 0
ulimit -c 0
kill -SEGV \$\$
END
    chmod +x "$3/bin/$1"
}

# reason FILE PROGRAM MODE NAME: that of the list.
reason()
{
    awk -F '\t' -v f="$1" -v p="$2" -v m="$3" -v name="$4" '
        $1 == f && $2 == p && index(" " $3 " ", " " m " ") && $4 == name { print $5 }
    ' tests/vacuous.tsv
}

# check FILE PROGRAM MODE: prints what is wrong; how many tests failed as they must, and how
# many lines were printed, are in DIR/count.
check()
{
    local dir=$out/$1-$2-$3 good=0 bad=0 verdict number name listed
    mkdir -p "$dir"
    saboteur "$2" "$3" "$dir"
    NIBBLE_BIN=$dir/bin NIBBLE_BUILD=$build NIBBLE_FAILIO=$build/failio.so \
        timeout -k 10 1200 bats --tap "tests/$1.bats" >"$dir/tap" 2>&1 3>&-
    while IFS=$'\t' read -r verdict number name; do
        [ -e "$dir/calls/$number.hit" ] || continue
        [ -z "$(reason "$1" "$2" "$3" "$name")" ] && listed= || listed=', but is listed'
        if [ "$verdict" = ok ] && [ -z "$listed" ]; then
            printf '%s.bats passes with %s %s: %s\n' "$1" "$2" "$3" "$name"
            bad=$((bad + 1))
        elif [ "$verdict" != ok ] && [ -n "$listed" ]; then
            printf '%s.bats fails with %s %s, as it should%s: %s\n' "$@" "$listed" "$name"
            bad=$((bad + 1))
        elif [ "$verdict" != ok ]; then
            good=$((good + 1))
        fi
    done < <(sed -nE 's/^((not )?ok) ([0-9]+) (.*)$/\1\t\3\t\4/p' "$dir/tap" |
        grep -v '# skip')
    # A plan that bats could not make is not a success.
    if ! grep -q '^1\.\.[1-9]' "$dir/tap"; then
        echo "$1.bats with $2 $3: not run: see $dir/tap"
        bad=$((bad + 1))
    fi
    echo "$good $bad" >"$dir/count"
}

all=(datcat datpack nvquant tokenize trainstep generate memguard)
[ $# -eq 0 ] || all=("$@")
export real build out modes
export -f check reason saboteur
rm -rf "$out"
mkdir -p "$out"
for p in "${all[@]}"; do
    for f in $(files_of "$p"); do
        for m in $modes; do
            echo "$f $p $m"
        done
    done
done >"$out/plan"
# shellcheck disable=SC2016  # for the inner shell
xargs -P "$(nproc)" -L 1 bash -c 'check "$@"' check <"$out/plan"

read -r good bad < <(cat "$out"/*/count | awk '{ good += $1; bad += $2 }
    END { print good + 0, bad + 0 }')
echo "$good passed, $bad failed"
[ "$bad" -eq 0 ] && [ "$good" -gt 0 ]
