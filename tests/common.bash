# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# What all tests share: strict mode, where things are, refusals, and functions that read files
# without the programs.  Each file of tests begins with "load common".

bats_require_minimum_version 1.8.0

# A pipe fails if any part of it does; bats itself stops at the first failure (set -e).
set -o pipefail

# root: the project; HERE: its tests; BUILD: objects and shims; bin: the programs, which are
# in PATH, too.  MAKE... of a make that runs the tests are not part of them.
if [ -z "${COMMON_LOADED-}" ]; then
    HERE=$(realpath "$BATS_TEST_DIRNAME")
    root=$(realpath "$HERE/..")
    bin=$(realpath -m "${NIBBLE_BIN:-$root/bin}")
    BUILD=$(realpath -m "${NIBBLE_BUILD:-$root/build}")
    FAILIO_SO=${NIBBLE_FAILIO:-$BUILD/failio.so}
    PATH=$bin:$PATH
    NIBBLE_BIN=$bin
    PYTHONPATH=$HERE PYTHONDONTWRITEBYTECODE=1
    LC_ALL=C.UTF-8
    # tmux and script run their commands by it; the user's own may be no shell of POSIX.
    SHELL=$BASH
    # A shim of LD_PRELOAD is loaded before the runtime of the sanitizers.
    ASAN_OPTIONS=verify_asan_link_order=0:${ASAN_OPTIONS:-}
    COMMON_LOADED=1
    export HERE root bin BUILD FAILIO_SO PATH NIBBLE_BIN PYTHONPATH PYTHONDONTWRITEBYTECODE \
        LC_ALL SHELL ASAN_OPTIONS COMMON_LOADED
    # make test is about the CPU, wherever it runs; make check-gpu is about GPUs.
    export CUDA_VISIBLE_DEVICES=
    # hwloc, a library of Open MPI, warns on stderr where there is no /sys: 2 hides its warnings.
    export HWLOC_HIDE_ERRORS=2
    unset MAKEFLAGS MAKELEVEL MFLAGS NIBBLE_LOCKED
fi

# What "make mutants" asks: which test executes which line.
[ -z "${NIBBLE_COVER-}" ] || export GCOV_PREFIX=$NIBBLE_COVER/${BATS_SUITE_TEST_NUMBER-file}

# Each test begins in an empty directory; bats has files of its own in the one above.
setup()
{
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
}

# python modules of tests/, as commands.
containers() { python3 "$HERE/containers.py" "$@"; }
nvmodel() { python3 "$HERE/nvmodel.py" "$@"; }
reference() { python3 "$HERE/nvfp4.py" "$@"; }
qwen() { python3 "$HERE/qwen3.py" "$@"; }
make_sample() { containers make "$@"; }

# json EXPRESSION: of the JSON d on stdin; jsonl EXPRESSION: of the list d of its lines.
json() { python3 -c "import json, sys; d = json.load(sys.stdin); print(($1))"; }
jsonl()
{
    python3 -c "import json, sys; d = [json.loads(line) for line in sys.stdin]; print(($1))"
}

# quiet COMMAND...: it succeeds and prints nothing.
quiet()
{
    run -0 --separate-stderr "$@"
    [ -z "$output" ]
    [ -z "$stderr" ] || { echo "$stderr" && false; }
}

# refuse [-STATUS] WORDS COMMAND...: the command ends with that status (2), within 60 s, with
# nothing on stdout and one line "program: ..." on stderr which has WORDS in it: parts that
# follow each other in any order are separated by " * ".  No file here appears or vanishes.
refuse()
{
    local status=2 words before part limit=()
    case $1 in -[0-9]*) status=${1#-} && shift ;; esac
    words=$1
    shift
    [ "$(type -t -- "$1")" = function ] || limit=(timeout 60)
    before=$(ls -AR -I 'separate-stderr-*')
    run "-$status" --separate-stderr "${limit[@]}" "$@"
    [ -z "$output" ] || { echo "stdout: $output" && false; }
    # shellcheck disable=SC2154  # of run
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "stderr: $stderr" && false; }
    [[ $stderr =~ ^(datcat|datpack|generate|memguard|nvquant|tokenize|trainstep):\  ]] ||
        { echo "$stderr" && false; }
    while [ -n "$words" ]; do
        part=${words%% \* *}
        [[ $stderr == *"$part"* ]] || { echo "$stderr, want $part" && false; }
        [ "$words" != "$part" ] || break
        words=${words#* \* }
    done
    [ "$(ls -AR -I 'separate-stderr-*')" = "$before" ] || { echo "before: $before, now:" && ls -AR && false; }
}

# within SECONDS COMMAND...: so much of the processor it may have; a busy machine takes longer for it.
within() { (ulimit -t "$1" && exec "${@:2}"); }

# has PATTERN: a line of stdin, which is read to its end, matches.  Options are grep's.
has() { grep "$@" >/dev/null; }

# diagnosed WHAT: the value that --diagnose prints of it; that it can be asked is tested, too.
diagnosed()
{
    trainstep --diagnose >"$BATS_TEST_TMPDIR/diagnosed"
    awk -F '\t' -v what="$1" '$1 == what { print $2; n++ } END { exit n != 1 }' \
        "$BATS_TEST_TMPDIR/diagnosed"
}

# isas: the instruction sets of this machine, to $isas, scalar first.
isas()
{
    trainstep --diagnose >"$BATS_TEST_TMPDIR/diagnosed"
    isas=$(sed -n 's/^isa\.\([a-z0-9]*\)\tyes$/\1/p' "$BATS_TEST_TMPDIR/diagnosed" | tr '\n' ' ')
    [[ $isas == 'scalar '* ]]
}
