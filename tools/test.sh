#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the tests that the Makefile has built, and counts.
#
#   tools/test.sh [--tags EXPR] [--changed] PART...      PART: unit bats valgrind fuzz
#
# unit      each program of tests/unit is one test; exit 0 passes, 77 is "not run"
# valgrind  the same programs under valgrind, any complaint or leak fails
# bats      tests/*.bats (or $TESTS), each test counts
# fuzz      each harness of tests/fuzz runs over its kept corpus, then for
#           FUZZ_SECONDS (3); one that does not build has failed
#
# --changed: the bats files that most of the last 300 commits changed come first, not the biggest.
#
# The last line is "N passed, N failed"; the exit code is 1 when something failed
# or nothing ran.  What cannot run here is named and is in neither number.
#
# Tags of bats tests, for --tags: "long" is only run by "make check-long", "slow" stays
# out of "make check", "native" needs this machine itself (LD_PRELOAD, strace, nm) and
# stays out of qemu, "nosan" measures memory or time and stays out of the sanitizers.
#
# Environment: NIBBLE_BIN and NIBBLE_BUILD (both have defaults, tests find programs
# and failio.so by them), NIBBLE_RUN a command to put before a unit program,
# NIBBLE_PLAIN the build that valgrind looks at, TESTS some files of tests/*.bats
# instead of all, NIBBLE_STOP a time in seconds since 1970 after which no test of bats begins
# and none goes on: what did not come to its end is "not run".  Tests may look at NIBBLE_SAN
# (a build with sanitizers), at NIBBLE_EMULATED (qemu) and at NIBBLE_VALGRIND.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

export NIBBLE_BIN=${NIBBLE_BIN:-$PWD/bin}
export NIBBLE_BUILD=${NIBBLE_BUILD:-$PWD/build}
# What is slower by nature has wider limits of time and memory, and shorter loops.
[ -z "${NIBBLE_SAN:-}${NIBBLE_EMULATED:-}" ] || export NIBBLE_SLOW=1
jobs=$(nproc)
logs=$NIBBLE_BUILD/log
tags='!long'
changed=
passed=0 failed=0 skipped=0

# An error of a sanitizer must never look like an honest exit code.  Leaks are
# looked for in the libraries, by the unit programs; a command may leave them.
san=exitcode=99:verify_asan_link_order=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:exitcode=99

say() { printf '%s\n' "$*"; }

# not_run WHAT WHY: something is missing here; never a pass.
not_run()
{
    say "$1: not run: $2"
    skipped=$((skipped + 1))
}

have() { command -v "$1" >/dev/null 2>&1; }

unit_names()
{
    local f
    for f in tests/unit/*.c; do
        [ -e "$f" ] && basename "$f" .c
    done
}

# each_unit WHAT BUILD [COMMAND...]: the programs of tests/unit side by side, below COMMAND.
each_unit()
{
    local what=$1 n log rc had=$passed
    export UNIT_LOG=$logs/$what UNIT_BUILD=$2
    shift 2
    rm -rf "$UNIT_LOG" && mkdir -p "$UNIT_LOG"
    # shellcheck disable=SC2016  # for the inner shell
    unit_names | xargs -P "$jobs" -I NAME bash -c '
        name=$0
        timeout -k 10 600 "$@" "$UNIT_BUILD/unit/$name" >"$UNIT_LOG/$name" 2>&1
        echo $? >"$UNIT_LOG/$name.rc"' NAME "$@"
    for n in $(unit_names); do
        log=$UNIT_LOG/$n
        rc=$(cat "$log.rc" 2>/dev/null || echo none)
        case $rc in
        0) passed=$((passed + 1)) ;;
        77) not_run "$what $n" "$(tail -n 1 "$log")" ;;
        *)
            failed=$((failed + 1))
            say "$what $n: FAILED, status $rc"
            tail -n 40 "$log" | sed 's/^/    /'
            ;;
        esac
    done
    say "$what: $((passed - had)) passed"
}

part_unit()
{
    # shellcheck disable=SC2086  # NIBBLE_RUN may be several words
    ASAN_OPTIONS=$san each_unit unit "$NIBBLE_BUILD" ${NIBBLE_RUN:-}
}

part_valgrind()
{
    if ! have valgrind; then
        not_run valgrind "valgrind is not installed"
        return
    fi
    # The stack of a thread that is still there at the end is "possibly" lost.
    NIBBLE_VALGRIND=1 each_unit valgrind "${NIBBLE_PLAIN:-$NIBBLE_BUILD}" valgrind -q \
        --error-exitcode=99 --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite
}

# Count one TAP file.  Planned tests that left no line have failed, and so has a
# file without a plan or one that bats did not like.
count_tap()
{
    local name=$1 log=$2 rc plan p f s
    rc=$(cat "$log.rc" 2>/dev/null || echo 124)
    if [ "$rc" = late ]; then
        not_run "$name" "no time left"
        return
    fi
    plan=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$log" | head -n 1)
    s=$(grep -c '^ok .*# skip' "$log")
    p=$(($(grep -c '^ok ' "$log") - s))
    f=$(grep -c '^not ok ' "$log")
    if [ "$rc" = cut ]; then
        not_run "$name" "no time left for $((${plan:-0} - p - f - s)) tests"
    elif [ -z "$plan" ]; then
        f=$((f + 1))
    elif [ $((p + f + s)) -lt "$plan" ]; then
        f=$((plan - p - s))
    elif [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    [ "$plan" != 0 ] || return 0 # none of these tags
    say "$name: $p passed, $f failed$([ "$s" -eq 0 ] || echo ", $s not run") ($(cat \
        "$log.time" 2>/dev/null || echo '?') s)"
    if [ "$s" -gt 0 ]; then
        sed -n 's/^ok [0-9]* \(.*\) # skip\(.*\)/    not run: \1:\2/p' "$log"
    fi
    if [ "$f" -gt 0 ]; then
        awk '/^(ok|1\.\.)/ { on = 0 } /^not ok/ { on = 1 }
            on || !/^(ok|not ok|1\.\.|#)/ { print "    " $0 }' "$log" | head -n 200
        say "    bats ended with status $rc; all of it: $log"
    fi
}

# The files in the order in which they are to begin.
bats_files()
{
    # shellcheck disable=SC2206  # a list
    local files=(${TESTS:-tests/*.bats})
    if [ -n "$changed" ]; then
        { printf '%s\n' "${files[@]}" && git log -n 300 --format= --name-only -- tests 2>/dev/null; } |
            grep -Fx "${files[@]/#/-e}" | sort | uniq -c
    else
        wc -c "${files[@]}"
    fi | sort -rn | awk '$2 != "total" { print $2 }'
}

# Files side by side, each with a log of its own.  bats --jobs
# needs GNU parallel and waits half a second for each test: 60 small tests take
# 3.5 s one by one and 31 s with --jobs 2.
part_bats()
{
    local f opt
    if ! have bats; then
        not_run bats "bats is not installed"
        failed=$((failed + 1))
        return
    fi
    opt=(--filter-tags "$tags")
    mkdir -p "$logs"
    # shellcheck disable=SC2016  # for the inner shell
    bats_files | ASAN_OPTIONS=$san:detect_leaks=0 xargs -P "$jobs" -n 1 bash -c '
        log=$0/$(basename "${@: -1}") start=$SECONDS limit=1200 at_limit=124
        rm -f "$log.rc"
        if [ -n "${NIBBLE_STOP:-}" ] && [ $((NIBBLE_STOP - $(date +%s))) -lt $limit ]; then
            limit=$((NIBBLE_STOP - $(date +%s))) at_limit=cut
        fi
        if [ $limit -le 0 ]; then
            echo late >"$log.rc"
            exit
        fi
        timeout -k 10 $limit bats --tap "$@" >"$log" 2>&1
        rc=$?
        # 137: it had to be killed
        case $rc in 124 | 137) rc=$at_limit ;; esac
        echo $rc >"$log.rc"
        echo $((SECONDS - start)) >"$log.time"' "$logs" "${opt[@]}"
    for f in ${TESTS:-tests/*.bats}; do
        count_tap "$(basename "$f")" "$logs/$(basename "$f")"
    done
}

fuzz_names()
{
    local f
    for f in tests/fuzz/*.c; do
        [ -e "$f" ] && basename "$f" .c
    done
}

# The kept corpus is read only; what a run finds goes to build-fuzz/corpus, inputs
# that break a parser to build-fuzz/crash.  A harness that is not there did not
# build: the Makefile removes it.
part_fuzz()
{
    local n rc had=$passed out=build-fuzz seconds=${FUZZ_SECONDS:-3}
    if ! have "${FUZZ_CC:-clang}"; then
        not_run fuzz "${FUZZ_CC:-clang} is not installed"
        return
    fi
    rm -rf $out/log
    mkdir -p $out/log $out/crash
    # shellcheck disable=SC2016  # for the inner shell
    fuzz_names | xargs -P "$jobs" -I NAME bash -c '
        out=$0 name=$1 seconds=$2 kept=tests/fuzz/corpus/$1
        [ -x "$out/fuzz/$name" ] || exit 0
        [ -d "$kept" ] || kept=
        mkdir -p "$out/corpus/$name"
        ASAN_OPTIONS=allocator_may_return_null=1 \
            timeout -k 10 $((seconds + 300)) "$out/fuzz/$name" \
            -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
            -artifact_prefix="$out/crash/$name-" \
            "$out/corpus/$name" ${kept:+"$kept"} >"$out/log/$name" 2>&1
        echo $? >"$out/log/$name.rc"' $out NAME "$seconds"
    for n in $(fuzz_names); do
        rc=$(cat "$out/log/$n.rc" 2>/dev/null || echo none)
        if [ "$rc" = 0 ]; then
            passed=$((passed + 1))
            continue
        fi
        failed=$((failed + 1))
        if [ -x "$out/fuzz/$n" ]; then
            say "fuzz $n: FAILED, status $rc"
            tail -n 40 "$out/log/$n" | sed 's/^/    /'
        else
            say "fuzz $n: FAILED, the harness does not build"
        fi
    done
    say "fuzz: $((passed - had)) passed, $seconds s each"
}

while [ $# -gt 0 ]; do
    case $1 in
    --tags)
        tags=$2 && shift
        case $tags in *long*) ;; *) tags+=',!long' ;; esac
        ;;
    --changed) changed=1 ;;
    unit | bats | valgrind | fuzz) "part_$1" ;;
    *) echo "tools/test.sh: $1: want [--tags EXPR] [--changed] unit|bats|valgrind|fuzz" >&2 && exit 2 ;;
    esac
    shift
done
[ "$skipped" -eq 0 ] || say "$skipped not run, see above"
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
