#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# An output of datpack appears whole or not at all: under failing system
# calls (failio.c), kill -9 at each of them (strace), signals, races, and
# inputs that are the output or shrink while they are read.
#
# Each question is asked of four targets: a .dat with its sidecar, a
# safetensors file, a checkpoint and a directory of shards.  "$OLD/T" and
# "$NEW/T" hold the output directory of target T before and after; "$W" is
# the one at work.

# shellcheck disable=SC2154,SC2030,SC2031  # output, stderr_lines: set by run

# bats file_tags=native
load common

setup_file() {
    local top
    top=$(realpath "$BATS_FILE_TMPDIR")
    DATPACK=$(realpath -m "$bin/datpack")
    DATCAT=$(realpath -m "$bin/datcat")
    if [ ! -e "$FAILIO_SO" ]; then
        FAILIO_SO=$top/failio.so
        "${CC:-cc}" -shared -fPIC -O2 -o "$FAILIO_SO" \
            "$HERE/failio.c" -ldl || FAILIO_SO=
    fi
    IN=$top/in OLD=$top/old NEW=$top/new
    export DATPACK DATCAT IN OLD NEW

    mkdir -p "$IN" "$OLD" "$NEW"
    local seed t
    for seed in 1 2; do
        make_sample portable-dat "$IN/plain$seed.dat" $seed
        make_sample tiny-dat "$IN/model$seed.dat" $seed
    done
    make_sample config "$IN/config.json"
    for t in dat safetensors ckpt dir; do
        mkdir "$OLD/$t" "$NEW/$t"
        pack $t 1 "$OLD/$t" || return
        pack $t 2 "$NEW/$t" || return
    done
}

setup() {
    W=$(realpath "$BATS_TEST_TMPDIR")/out
    LOG=$BATS_TEST_TMPDIR/log
    ERR=$BATS_TEST_TMPDIR/err
    cd "$BATS_TEST_TMPDIR" || return
}

# The command line of target $1 from input $2 into directory $3, in ARGS.
args() {
    ARGS=(-q -f -j 1)
    case $1 in
    dat) ARGS+=(-o "$3/m.dat" "$IN/plain$2.dat") ;;
    safetensors) ARGS+=(-o "$3/m.safetensors" "$IN/plain$2.dat") ;;
    ckpt) ARGS+=(--config "$IN/config.json" --quant none
        -o "$3/m.ckpt" "$IN/model$2.dat") ;;
    dir) ARGS+=(--to safetensors --shard-size 1K -o "$3/m/"
        "$IN/plain$2.dat") ;;
    esac
}

pack() {
    args "$@"
    "$DATPACK" "${ARGS[@]}"
}

# What is renamed onto: the last part of the output's name.
target_name() {
    [ "$1" = dir ] && echo m || echo "m.$1"
}

reset() {
    rm -rf "$W"
    cp -a "$OLD/$1" "$W"
}

same() {
    diff -rq "$1" "$2" >/dev/null
}

is_old() { same "$W" "$OLD/$1"; }
is_new() { same "$W" "$NEW/$1"; }

# Each name in $W stands in the old directory too, and each file there is
# the old one or the new one: for the moment between two renames, when a
# new .dat has its old sidecar.
is_either() {
    if [ "$1" = dir ]; then
        is_old "$1" || is_new "$1"
        return
    fi
    local f
    for f in "$W"/* "$W"/.[!.]*; do
        [ -e "$f" ] || continue
        cmp -s "$f" "$OLD/$1/${f##*/}" || cmp -s "$f" "$NEW/$1/${f##*/}" ||
            return 1
    done
    [ -e "$W/$(target_name "$1")" ]
}

say() {
    echo "$*: $(tr '\n' '|' <"$ERR") left: $(cd "$W" && find . | sort | tr '\n' ' ')"
    return 1
}

need_failio() {
    [ -n "$FAILIO_SO" ] || skip "no failio.so, and no compiler to make it"
    [ "$(FAILIO_LOG=$LOG LD_PRELOAD=$FAILIO_SO "$DATPACK" --version 2>&1)" = \
        "$("$DATPACK" --version 2>&1)" ] ||
        skip "LD_PRELOAD does not work with these programs"
}

need_strace() {
    command -v strace >/dev/null || skip "strace is not installed"
    strace -f -o /dev/null true 2>/dev/null ||
        skip "ptrace is not permitted here"
}

# Run target $1 with FAILIO=$2; status in RC.
faulty() {
    args "$1" 2 "$W"
    RC=0
    : >"$LOG"
    FAILIO=$2 FAILIO_LOG=$LOG LD_PRELOAD=$FAILIO_SO \
        "$DATPACK" "${ARGS[@]}" 2>"$ERR" || RC=$?
}

# Did the output's own rename succeed before the first failure in the log?
renamed_before() {
    awk -v name="/$1" '
        $3 == "fail" { exit !done }
        $2 ~ /^(rename|renameat2|linkat)$/ && $4 == 0 &&
            substr($0, length($0) - length(name) + 1) == name { done = 1 }
        END { exit !done }' "$LOG"
}

# Does a rename succeed after the first failure in the log?
renamed_after() {
    awk '$3 == "fail" { failed = 1 }
        failed && $2 ~ /^(rename|renameat2|linkat)$/ && $4 == 0 { done = 1 }
        END { exit !done }' "$LOG"
}

# One failing call of target $1 has happened.  Before the rename the old
# output must be untouched.  Later (the second of two renames, the fsync of
# the directory) the new one may be there.  Passed over may be a close of
# what was only read, or of the output once all is done (its last chance to
# report was before the rename: REFUSED counts those), and a rename that
# another kind of rename then did (a directory that must be exchanged).
check_fault() {
    local flag kind
    kind=$(awk '$3 == "fail" { print $2; exit }' "$LOG")
    flag=$(awk '$3 == "fail" { print $5; exit }' "$LOG")
    if [ $RC -eq 0 ]; then
        case $kind in
        close) [ "$flag" != w ] || renamed_before "$(target_name "$1")" ;;
        rename*) renamed_after ;;
        *) false ;;
        esac || { say "exit 0, want 2"; return; }
        is_new "$1" || say "$kind passed over, and the output is not whole"
        return
    fi
    REFUSED=$((REFUSED + 1))
    [ $RC -eq 2 ] || { say "exit $RC, want 2"; return; }
    [ "$(wc -l <"$ERR")" -eq 1 ] || { say "want one line"; return; }
    if renamed_before "$(target_name "$1")" &&
        { [ "$flag" = d ] || [[ $kind == rename* ]]; }; then
        is_either "$1" || say "neither old nor new"
    else
        is_old "$1" || say "the old output is not as it was"
    fi
}

# The n-th call of kind $2 fails with $3, for n = 1, 2, ... until nothing
# fails any more; adds to FIRED (and REFUSED).
fault_lap() {
    local n
    for ((n = 1; n < 500; n++)); do
        reset "$1"
        faulty "$1" "$2:$n:$3:$W"
        if ! grep -q ' fail ' "$LOG"; then
            [ $RC -eq 0 ] || { say "$1: no fault, exit $RC"; return; }
            is_new "$1" || { say "$1: no fault, but not the new file"; return; }
            return
        fi
        FIRED=$((FIRED + 1))
        check_fault "$1" ||
            { echo "  in $1, $2 number $n, $3: $(grep -m1 ' fail ' "$LOG")"
              return 1; }
    done
    echo "$1: $2 never stops failing"
    return 1
}

fault_laps() {
    local t=$1 kind err
    need_failio
    for kind in anywrite anysync anyrename close; do
        FIRED=0 REFUSED=0
        for err in ENOSPC EIO; do
            fault_lap "$t" $kind $err
        done
        [ $REFUSED -gt 1 ] ||
            { echo "$t: $FIRED $kind failed, $REFUSED were heard"; return 1; }
    done
    for kind in fallocate posix_fallocate ftruncate mkdir; do
        for err in ENOSPC EIO; do
            fault_lap "$t" $kind $err
        done
    done
}

@test "failing calls: .dat" {
    fault_laps dat
}

@test "failing calls: safetensors" {
    fault_laps safetensors
}

@test "failing calls: checkpoint" {
    fault_laps ckpt
}

@test "failing calls: directory of shards" {
    fault_laps dir
}

@test "a filesystem without fallocate is no error" {
    need_failio
    local t kind err
    for t in dat safetensors ckpt dir; do
        for kind in fallocate posix_fallocate; do
            for err in EOPNOTSUPP EINVAL; do
                reset $t
                faulty $t "$kind:*:$err:$W"
                [ $RC -eq 0 ] || say "$t, $kind $err: exit $RC"
                is_new $t || say "$t, $kind $err: not the new file"
            done
        done
    done
}

@test "short writes and short reads change nothing" {
    need_failio
    local t kind n
    for t in dat safetensors ckpt dir; do
        for kind in "shortwrite:%d:short:$W" "shortread:%d:short:$IN"; do
            for n in 1 2 3 4; do
                reset $t
                # shellcheck disable=SC2059
                faulty $t "$(printf "$kind" $n)"
                [ $RC -eq 0 ] || say "$t, $kind $n: exit $RC"
                is_new $t || say "$t, $kind $n: not the new file"
            done
        done
    done
    reset dat
    faulty dat "shortwrite:*:short:$W"
    [ $RC -eq 0 ] || say "only short writes: exit $RC"
    is_new dat
}

@test "without -f an existing output is left alone" {
    local t
    for t in dat safetensors ckpt dir; do
        reset $t
        args $t 2 "$W"
        run -2 --separate-stderr "$DATPACK" "${ARGS[@]/#-f/-q}"
        [ "${#stderr_lines[@]}" -eq 1 ]
        is_old $t
    done
}

# ---- kill -9 ----------------------------------------------------------------

# "SYSCALL COUNT" for each system call of a run of target $1, $2 extra strace
# options.
count_calls() {
    reset "$1"
    args "$1" 2 "$W"
    strace -f -qq -o "$LOG" "$DATPACK" "${ARGS[@]}"
    awk '$2 ~ /^[a-z_0-9]+\(/ { sub(/\(.*/, "", $2); n[$2]++ }
        END { for (k in n) print k, n[k] }' "$LOG" | sort
}

# Kill target $1 at its $3-th call of $2; then once more without a kill.
kill_at() {
    reset "$1"
    args "$1" 2 "$W"
    {   # the group: the shell's own "Killed" is not wanted either
        strace -f -qq -o /dev/null -e trace="$2" \
            -e inject="$2:signal=SIGKILL:when=$3" \
            "$DATPACK" "${ARGS[@]}" || true
    } >/dev/null 2>&1
    : >"$ERR"
    case $1 in
    dir) same "$W/m" "$OLD/dir/m" || same "$W/m" "$NEW/dir/m" ;;
    *) cmp -s "$W/m.$1" "$OLD/$1/m.$1" || cmp -s "$W/m.$1" "$NEW/$1/m.$1" ;;
    esac || { say "killed at $2 number $3: a third thing"; return; }
    pack "$1" 2 "$W" 2>"$ERR" || { say "killed at $2 $3: the rerun fails"; return; }
    is_new "$1" || say "killed at $2 $3: after the rerun"
}

# Calls that bring a process up or that files do not feel.
BORING='^(execve|brk|arch_prctl|set_tid_address|set_robust_list|rseq|prlimit64|mprotect|exit_group|getrandom|futex|access|faccessat|madvise|rt_sig.*|sigaltstack|getpid|gettid|munmap|mmap|pread64|sched_.*|clone3?|exit|uname|sysinfo|getcwd|ioctl|lseek|statx|newfstatat|fstat|read|readlink.*)$'

kill_laps() {
    local name count n
    need_strace
    count_calls "$1" >calls
    [ -s calls ]
    while read -r name count; do
        [[ $2 == all || ! $name =~ $BORING ]] || continue
        [ "$name" != execve ] || continue
        for ((n = 1; n <= count; n++)); do
            kill_at "$1" "$name" $n
        done
    done <calls
}

@test "kill -9 at every system call: .dat" {
    kill_laps dat all
}

@test "kill -9 at each call that touches files: safetensors" {
    kill_laps safetensors
}

@test "kill -9 at each call that touches files: checkpoint" {
    kill_laps ckpt
}

@test "kill -9 at each call that touches files: directory of shards" {
    kill_laps dir
}

# ---- the order of calls, and the test of the test ---------------------------

# $1: strace -f -y of a run; $2: the output's name; $3: its directory.  Right
# is: what was written to the temporary file (or to files in the temporary
# directory) is fsynced before it is renamed to the output, and then the
# output's directory is fsynced.
order_ok() {
    awk -v out="$2" -v dir="$3" '
        function fd_path(s) {           # the path in the first N</path>
            return match(s, /<\/[^>]*>/) ? substr(s, RSTART + 1, RLENGTH - 2) : ""
        }
        function base(s) { sub(/\/+$/, "", s); sub(/.*\//, "", s); return s }
        function bad(s) { print "order: " s; failed = 1; exit 1 }
        / = -1 E/ { next }
        { call = $2; sub(/\(.*/, "", call); rest = $0; sub(/^[^(]*\(/, "", rest) }
        call == "copy_file_range" {     # in, offset, out
            sub(/^[^,]*,[^,]*,/, "", rest); call = "write"
        }
        call ~ /^(write|pwrite64|writev|pwritev2?|sendfile|ftruncate|fallocate)$/ {
            p = fd_path(rest)
            if (index(p, dir "/") == 1)
                dirty[p] = 1
        }
        call ~ /^(fsync|fdatasync)$/ {
            p = fd_path(rest)
            delete dirty[p]
            if (p == dir && renamed)
                synced = 1
        }
        call ~ /^(rename|renameat|renameat2|linkat)$/ {
            n = split(rest, q, "\"")
            if (base(q[4]) == out) {
                from = base(q[2])
                for (p in dirty)
                    if (index(p "/", "/" from "/"))
                        bad(p " is renamed before its fsync")
                renamed = 1
                synced = 0
            }
        }
        END {
            if (failed) exit 1
            if (!renamed) { print "order: no rename to " out; exit 1 }
            if (!synced) { print "order: no fsync of the directory after the rename"; exit 1 }
        }' "$1"
}

# A trace of target $1 in ./trace; $2...: environment of the run.
trace_run() {
    local t=$1
    shift
    reset "$t"
    args "$t" 2 "$W"
    strace -f -y -qq -o trace "${@/#/-E}" "$DATPACK" "${ARGS[@]}"
}

@test "the order is write, fsync, rename, fsync of the directory" {
    need_strace
    local t
    for t in dat safetensors ckpt dir; do
        trace_run $t
        order_ok trace "$(target_name $t)" "$W"
    done
    trace_run dat
    order_ok trace m.dat.json "$W"
    # The old sidecar goes aside, then comes the data file, then its sidecar.
    [ "$(grep -E '^[0-9]+ +rename' trace | sed -E 's/.*"([^"]*)"[^"]*$/\1/; s/.*\///' | xargs)" = \
        '.m.dat.json.nibble-old m.dat m.dat.json' ]
}

@test "the test of the test: without fsync or rename the order is wrong" {
    need_strace
    local t name
    for t in dat safetensors ckpt dir; do
        name=$(target_name $t)
        trace_run $t
        order_ok trace "$name" "$W"
        grep -vE '^[0-9]+ +f(data)?sync\(' trace >changed
        run -1 order_ok changed "$name" "$W"
        grep -vE '^[0-9]+ +(rename|link)' trace >changed
        run -1 order_ok changed "$name" "$W"
        # Only those behind the renames, the directory's, are missing.
        awk '/^[0-9]+ +rename/ { done = 1 }
            !done || !/^[0-9]+ +f(data)?sync\(/' trace >changed
        run -1 order_ok changed "$name" "$W"
        # The first one, a file's, comes after everything.
        awk '/^[0-9]+ +f(data)?sync\(/ && !/\.json/ && !n++ {
                first = $0
                next
            } 1
            END { print first }' trace >changed
        run -1 order_ok changed "$name" "$W"
    done
}

@test "the test of the test: an fsync or a rename that does nothing is seen" {
    need_strace
    need_failio
    trace_run safetensors LD_PRELOAD="$FAILIO_SO" FAILIO='anysync:*:noop'
    is_new safetensors
    run -1 order_ok trace m.safetensors "$W"
    trace_run safetensors LD_PRELOAD="$FAILIO_SO" FAILIO='anyrename:*:noop' ||
        true
    run -1 order_ok trace m.safetensors "$W"
    run ! is_new safetensors
}

# ---- signals, races, shrinking inputs ---------------------------------------

# driver.py waits for programs that failio has stopped, so nothing here
# depends on time.
driver() {
    cat >driver.py <<'PY'
import os, signal, subprocess, sys, time


def start(argv, failio="", **kw):
    env = dict(os.environ)
    if failio:
        env.update(FAILIO=failio, LD_PRELOAD=os.environ["FAILIO_SO"])
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, **kw)


def stopped(p, seconds=60):
    """True when p is stopped, False when it has ended."""
    for _ in range(int(seconds * 500)):
        pid, status = os.waitpid(p.pid, os.WUNTRACED | os.WNOHANG)
        if pid and os.WIFSTOPPED(status):
            return True
        if pid:
            p.returncode = os.waitstatus_to_exitcode(status)
            return False
        time.sleep(0.002)
    p.kill()
    sys.exit("neither stopped nor ended: %s" % p.args)


def ended(p, seconds=60):
    try:
        return p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.kill()
        sys.exit("does not end: %s" % p.args)
PY
}

@test "SIGINT, SIGTERM, SIGHUP: no leftovers, died by that signal" {
    need_failio
    driver
    cat >signals.py <<'PY'
from driver import *
sig, where = int(sys.argv[1]), sys.argv[2]
p = start(sys.argv[3:], where)
if not stopped(p):
    sys.exit("never stopped at %s, exit %d" % (where, p.returncode))
p.send_signal(sig)
p.send_signal(signal.SIGCONT)
rc = ended(p)
print("rc", rc)
sys.exit(0 if rc == -sig else 3)
PY
    local t at sig
    for t in dat safetensors ckpt dir; do
        for at in anywrite anysync; do
            for sig in 1 2 15; do
                reset $t
                args $t 2 "$W"
                python3 signals.py $sig "$at:1:stop:$W" \
                    "$DATPACK" "${ARGS[@]}" 2>"$ERR" || say "$t $at $sig"
                is_old $t || say "$t, signal $sig at $at"
            done
        done
        # At the rename it may be too late; but never a third thing.
        reset $t
        python3 signals.py 15 "anyrename:1:stop:$W" \
            "$DATPACK" "${ARGS[@]}" 2>"$ERR" || true
        is_either $t || say "$t, SIGTERM at the rename"
    done
    # No output before: none after.
    rm -rf "$W"
    mkdir "$W"
    args dat 2 "$W"
    python3 signals.py 15 "anywrite:1:stop:$W" "$DATPACK" "${ARGS[@]}"
    [ -z "$(ls -A "$W")" ]
}

# ---- a signal between any two calls, any program -------------------------------

# every_call.py MODE PROGRAM...: the program runs in a new directory out/, once for each call
# that touches what it makes there (or in another order of threads may touch): stopped before
# that call, it gets SIGTERM and goes on.  Then no temporary file may be left.  MODE "second":
# it is the second signal, after one that came as the first save began; that takes longer, so of
# each kind of call SAMPLE are tried, evenly, with the first and the last one.
every_call() {
    need_failio
    driver
    cat >every_call.py <<'PY'
from driver import *
import collections, shutil
mode, argv = sys.argv[1], sys.argv[2:]
KINDS = "open flock fallocate ftruncate write pwrite fsync close rename renameat2 linkat unlink mkdir".split()
SAMPLE = 6


def tried(kind, first, last):
    ns = range(first, last + 1)
    if kind == "pwrite" and len(ns) > 3:  # one write is like another
        return [first, first + 1, last]
    if mode == "first" or len(ns) <= SAMPLE:
        return ns
    return [ns[i * (len(ns) - 1) // (SAMPLE - 1)] for i in range(SAMPLE)]


def fresh():
    shutil.rmtree("out", ignore_errors=True)
    shutil.copytree("before", "out")


def quiet(argv, failio=""):
    return start(argv, failio, stdout=subprocess.DEVNULL, stderr=open("err", "w"))


fresh()
open("log", "w").close()
os.environ["FAILIO_LOG"] = os.path.abspath("log")
p = quiet(argv, "open:1000000:EIO")
assert ended(p) == 0, open("err").read()
del os.environ["FAILIO_LOG"]
calls = collections.Counter()
skipped = collections.Counter()
begun = mode == "first"
for line in open("log"):
    kind, path = line.split()[1], line.split(" ", 5)[5]
    begun |= kind == "fallocate"
    if "/out/" in path or path.endswith("/out\n"):
        calls[kind] += 1
        skipped[kind] += not begun
died = 0
for kind in KINDS:
    for n in tried(kind, skipped[kind] + 1, calls[kind]):
        fresh()
        first = "fallocate:1:stop:/out;" if mode == "second" and kind != "fallocate" else ""
        p = quiet(argv, first + "%s:%d:stop:/out" % (kind, n))
        if first and stopped(p):
            p.send_signal(signal.SIGTERM)
            p.send_signal(signal.SIGCONT)
        if p.returncode is None and stopped(p):
            time.sleep(0.35 if first else 0)
            p.send_signal(signal.SIGTERM)
            p.send_signal(signal.SIGCONT)
            ended(p)
        died += p.returncode == -signal.SIGTERM
        left = [os.path.join(d, f) for d, ds, fs in os.walk("out") for f in ds + fs if ".nibble" in f]
        if left or p.returncode not in (0, 75, -signal.SIGTERM):
            sys.exit("%s number %d: ended with %s, left: %s: %s"
                     % (kind, n, p.returncode, left, open("err").read()))
# It has met calls, and the signals were heard.
print(dict(calls), died)
assert calls["rename"] + calls["renameat2"] > 0 and died > 3
PY
    mkdir -p before
}

# inputs: a model, samples, a checkpoint.
inputs() {
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    "$DATPACK" -q --init 3 --config config.json -o model.dat
    "$DATPACK" -q --init 3 --config config.json --to ckpt -o model.ckpt
    printf '1 2 3 4\n5 6 7 8 9\n' >ids
    "$bin/tokenize" -q --input ids -o ids.tok ids
}

@test "SIGTERM before any call of datpack: nothing is left" {
    every_call
    inputs
    python3 every_call.py first "$DATPACK" -q -j 2 -o out/m.dat model.dat
    python3 every_call.py first "$DATPACK" -q -j 2 -o out/m.ckpt model.ckpt
    python3 every_call.py first "$DATPACK" -q -j 2 --to safetensors --shard-size 20K -o out/m/ model.dat
    # A directory that is replaced goes, too.
    "$DATPACK" -q --to safetensors --shard-size 30K -o before/m/ model.ckpt
    python3 every_call.py first "$DATPACK" -q -f -j 2 --to safetensors --shard-size 20K -o out/m/ model.dat
}

@test "SIGTERM before any call of nvquant, tokenize and generate: nothing is left" {
    every_call
    inputs
    python3 every_call.py first "$bin/nvquant" -q -j 2 -o out/m.dat --report out/table model.dat
    python3 every_call.py first "$bin/tokenize" -q --input ids -o out/ids.tok ids
    python3 every_call.py first "$bin/generate" -q --device cpu -j 2 --ids -n 2 -p '1 2 3' --logits out/l model.dat
}

@test "SIGTERM before any call of trainstep, once and twice: nothing is left" {
    every_call
    inputs
    cp model.ckpt before/m.ckpt
    set -- "$bin/trainstep" -q --device cpu -j 2 -d ids.tok -n 2 --save-every 1 --dump out/dump \
        --memory-report out/report out/m.ckpt
    python3 every_call.py first "$@"
    python3 every_call.py second "$@"
}

@test "two runs on one output: one wins or is refused" {
    need_failio
    driver
    cat >race.py <<'PY'
from driver import *
# A is stopped at its first call of a kind; B runs; A goes on.
where, a, b = sys.argv[1], sys.argv[2].split("\n"), sys.argv[3].split("\n")
p = start(a, where, stderr=subprocess.DEVNULL)
if not stopped(p):
    sys.exit("never stopped at " + where)
q = start(b, stderr=subprocess.DEVNULL)
try:
    q.wait(1)       # waiting for a lock would be allowed
except subprocess.TimeoutExpired:
    pass
p.send_signal(signal.SIGCONT)
rcs = ended(p), ended(q)
print(*rcs)
PY
    local t at rcs
    for t in dat safetensors ckpt dir; do
        # A directory: also when the old tree is being removed.
        for at in anywrite anysync anyrename $([ $t != dir ] || echo unlink); do
            reset $t
            args $t 2 "$W"
            a=$(printf '%s\n' "$DATPACK" "${ARGS[@]}")
            args $t 1 "$W"
            b=$(printf '%s\n' "$DATPACK" "${ARGS[@]}")
            rcs=$(python3 race.py "$at:1:stop:$W" "$a" "$b")
            : >"$ERR"
            case $rcs in
            "0 0") is_either $t ;;
            "0 2") is_new $t ;;
            "2 0") is_old $t ;;
            *) false ;;
            esac || say "$t, A stopped at $at: exits $rcs"
        done
    done
    # Without -f, and with nothing there before, only one may succeed.
    for at in anywrite anysync anyrename; do
        rm -rf "$W"
        mkdir "$W"
        rcs=$(python3 race.py "$at:1:stop:$W" \
            "$(printf '%s\n' "$DATPACK" -q -o "$W/m.dat" "$IN/plain2.dat")" \
            "$(printf '%s\n' "$DATPACK" -q -o "$W/m.dat" "$IN/plain1.dat")")
        case $rcs in
        "0 2") is_new dat ;;
        "2 0") is_old dat ;;
        *) false ;;
        esac || say "no -f, A stopped at $at: exits $rcs"
    done
}

@test "two runs at once, without any help, many times" {
    local i a b wrote=
    for ((i = 0; i < 30; i++)); do
        reset dat
        args dat 1 "$W"
        a=0 b=0
        "$DATPACK" "${ARGS[@]}" 2>/dev/null &
        pack dat 2 "$W" 2>"$ERR" || a=$?
        wait $! || b=$?
        case $a$b in
        00 | 02 | 20) is_either dat || say "exits $a $b: a third thing" ;;
        *) say "exits $a $b" ;;
        esac
        is_old dat || wrote=1
    done
    [ "$wrote" ] # the second program, at least once
}

# ---- inputs -----------------------------------------------------------------

# Refuse output $2 made from $3 (options: the rest); $1 must stay as it is.
refuse_same() {
    local keep=$1 out=$2 in=$3
    shift 3
    find "$keep" -type f -exec sha256sum {} + | sort >"$LOG"
    run -2 --separate-stderr "$DATPACK" -q -f "$@" -o "$out" "$in"
    [ "${#stderr_lines[@]}" -eq 1 ] || { echo "${stderr_lines[@]}"; return 1; }
    find "$keep" -type f -exec sha256sum {} + | sort | diff "$LOG" -
}

@test "an input that is the output is refused, through whatever link" {
    local t f name opt
    for t in dat safetensors ckpt; do
        rm -rf "$W"
        mkdir "$W"
        cp "$OLD/$t/m.$t" "$W"
        cd "$W"
        f=m.$t
        opt=()
        [ $t != ckpt ] || opt=(--config "$IN/config.json" --quant none)
        ln -s $f "soft.$t"
        ln $f "hard.$t"
        ln -s . "loop"
        for name in $f ./$f "$W/$f" "../out/$f" "loop/$f" "hard.$t"; do
            refuse_same "$W" $f "$name" "${opt[@]}"
            refuse_same "$W" "$name" $f "${opt[@]}"
        done
        # A symbolic link on either side is the file that it names.
        refuse_same "$W" $f "soft.$t" "${opt[@]}"
        refuse_same "$W" "soft.$t" $f "${opt[@]}"
        # Second of two inputs.
        cp "$IN/model1.dat" other.dat
        refuse_same "$W" $f other.dat "${opt[@]}" ./$f
    done
}

@test "a directory that is the output is refused as input" {
    reset dir
    cd "$W"
    ln -s m soft
    local name
    for name in m m/ ./m "$W/m" soft soft/; do
        refuse_same "$W" m/ "$name" --to safetensors
    done
    # A shard of the input is the input, too.
    local shard
    shard=$(basename "$(find m -name '*.safetensors' | sort | sed -n 1p)")
    refuse_same "$W" "m/$shard" m
    refuse_same "$W" m/ "m/$shard" --to safetensors
}

@test "an input that shrinks under datpack ends with exit 2" {
    need_failio
    driver
    cat >shrink.py <<'PY'
from driver import *
where, victim, to = sys.argv[1], sys.argv[2], int(sys.argv[3])
p = start(sys.argv[4:], where)
if stopped(p):
    os.truncate(victim, to)
    p.send_signal(signal.SIGCONT)
    sys.exit(ended(p) & 255)
sys.exit(98)
PY
    local n rc
    for n in 1 2; do
        reset dat
        # 64 MiB of holes, and a tensor behind them.
        python3 - "$HERE" big.dat <<'PY'
import os, sys
sys.path.insert(0, sys.argv[1])
import containers as c
with open(sys.argv[2], "wb") as f:
    f.write(c.uleb(2) + c.dat_header("big", "u8", (1 << 26,)))
    f.seek(1 << 26, os.SEEK_CUR)
    f.write(c.dat_header("last", "u8", (4,)) + b"last")
PY
        rc=0
        python3 shrink.py "anywrite:$n:stop:$W" big.dat 8192 \
            "$DATPACK" -q -f -o "$W/m.dat" big.dat 2>"$ERR" || rc=$?
        [ $rc -eq 2 ] || say "stopped at write $n: exit $rc, want 2"
        [ "$(wc -l <"$ERR")" -eq 1 ] || say "want one line"
        grep -q 'big\.dat' "$ERR" || say "the line does not name the input"
        is_old dat || say "stopped at write $n"
    done
}

@test "an input that shrinks under datcat ends with exit 2" {
    cat >shrink2.py <<'PY'
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import containers as c

SIZE = 6 << 30


def make():
    with open("big.dat", "wb") as f:
        f.write(c.uleb(1) + c.dat_header("big", "u8", (SIZE,)))
        f.truncate(f.tell() + SIZE)


def check(what, p, err):
    lines = err.decode().splitlines()
    if p.returncode != 2 or len(lines) != 1 or "big.dat" not in lines[0]:
        sys.exit("%s: exit %d, stderr %r" % (what, p.returncode, lines))


datcat = sys.argv[2]
# A reader of the pipe holds datcat up, so the moment is known.
make()
p = subprocess.Popen([datcat, "--payload", "big", "big.dat"],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
p.stdout.read(1 << 20)
os.truncate("big.dat", 4096)
p.stdout.read(1 << 28)
p.stdout.close()
err = p.stderr.read()
p.wait()
check("--payload", p, err)
# Nothing holds these up: stop from outside once they are at work.
for option in ("--hash", "--stats", "--verify"):
    make()
    p = subprocess.Popen([datcat, option, "-j", "1", "big.dat"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(0.05)
    p.send_signal(signal.SIGSTOP)
    os.truncate("big.dat", 4096)
    p.send_signal(signal.SIGCONT)
    err = p.stderr.read()
    p.wait()
    if option == "--verify" and p.returncode in (0, 1):
        continue    # no checksum to read payloads for, or: damaged
    check(option, p, err)
PY
    python3 shrink2.py "$HERE" "$DATCAT"
}

# ---- permissions --------------------------------------------------------------

# modes FILE...: their permissions, one word each.
modes() {
    stat -c %a "$@" | tr '\n' ' '
}

@test "a replaced file keeps its permissions, its sidecar has the same" {
    local t mode
    umask 022
    for mode in 600 640 604 666 400; do
        for t in dat safetensors ckpt; do
            reset "$t"
            chmod "$mode" "$W/$(target_name "$t")"
            pack "$t" 2 "$W"
            is_new "$t"
            [ "$(modes "$W"/*)" = "$(for f in "$W"/*; do printf '%s ' "$mode"; done)" ] ||
                { modes "$W"/* && echo "$t $mode" && false; }
        done
    done
    # A sidecar of other permissions, and none at all.
    reset dat
    chmod 600 "$W/m.dat"
    chmod 666 "$W/m.dat.json"
    pack dat 2 "$W"
    [ "$(modes "$W/m.dat" "$W/m.dat.json")" = '600 600 ' ]
    rm "$W/m.dat.json"
    pack dat 1 "$W"
    [ "$(modes "$W/m.dat" "$W/m.dat.json")" = '600 600 ' ]
    # A new file has what the umask leaves, beside an old sidecar too.
    rm "$W/m.dat"
    (umask 027 && pack dat 2 "$W")
    [ "$(modes "$W/m.dat" "$W/m.dat.json")" = '640 640 ' ]
    # Set-user-ID is of the program that was there.
    chmod 6755 "$W/m.dat"
    pack dat 1 "$W"
    [ "$(modes "$W/m.dat")" = '755 ' ]
}

@test "a replaced directory and its files keep their permissions" {
    umask 022
    reset dir
    chmod 700 "$W/m"
    chmod 600 "$W"/m/*
    pack dir 2 "$W"
    is_new dir
    [ "$(modes "$W/m")" = '700 ' ]
    run -1 grep -v '^600$' < <(stat -c %a "$W"/m/*)
    # Other shards: nobody may read them who could not read those before.
    chmod 751 "$W/m"
    "$DATPACK" -q -f --to safetensors -o "$W/m/" "$IN/plain2.dat"
    [ "$(find "$W/m" -name '*.safetensors' | wc -l)" -eq 1 ]
    [ "$(modes "$W/m")" = '751 ' ]
    run -1 grep -v '^600$' < <(stat -c %a "$W"/m/*)
    # A new one has what the umask leaves.
    rm -r "$W/m"
    (umask 027 && pack dir 2 "$W")
    [ "$(modes "$W/m")" = '750 ' ]
    run -1 grep -v '^640$' < <(stat -c %a "$W"/m/*)
}

@test "the temporary file is never more readable than what it replaces" {
    need_failio
    local t
    umask 022
    for t in dat safetensors ckpt dir; do
        reset "$t"
        chmod -R go= "$W/$(target_name "$t")"
        # At its last write and when it is complete.
        for when in anywrite:1 anysync:1 anyrename:1; do
            faulty "$t" "$when:kill=9"
            [ "$RC" -eq 137 ]
            run -1 grep -v '00$' < <(stat -c %a "$W"/.*.nibble-tmp)
            rm -r "$W"/.*.nibble-tmp
        done
    done
}

@test "the owner is kept where that is allowed, and a group gets no more than it had" {
    [ "$(id -u)" -eq 0 ] || skip "only root can give a file away"
    command -v setpriv >/dev/null || skip "no setpriv"
    local as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    reset dat
    chmod 640 "$W/m.dat"
    chown 65534:65533 "$W/m.dat"
    pack dat 2 "$W"
    is_new dat
    [ "$(stat -c '%u:%g %a' "$W/m.dat" "$W/m.dat.json")" = $'65534:65533 640\n65534:65533 640' ]
    # Somebody who may not give it away: the file of another owner becomes theirs.
    local open=$BATS_RUN_TMPDIR
    chmod a+rx "$open" "$BATS_TEST_TMPDIR" "$IN" "$BATS_FILE_TMPDIR" "${BATS_TEST_TMPDIR%/*}"
    "${as[@]}" "$DATPACK" --version || skip "another user cannot run the programs"
    reset dat
    chmod 664 "$W/m.dat" "$W/m.dat.json"
    chown 0:65533 "$W/m.dat" "$W/m.dat.json"
    chown 65534 "$W"
    args dat 2 "$W"
    "${as[@]}" "$DATPACK" "${ARGS[@]}"
    [ "$(stat -c '%u:%g %a' "$W/m.dat" "$W/m.dat.json")" = $'65534:65534 644\n65534:65534 644' ]
    # In its group: that is kept.
    chown 0:65533 "$W/m.dat"
    chmod 660 "$W/m.dat"
    setpriv --reuid 65534 --regid 65534 --groups 65533 "$DATPACK" "${ARGS[@]}"
    [ "$(stat -c '%u:%g %a' "$W/m.dat" "$W/m.dat.json")" = $'65534:65533 660\n65534:65533 660' ]
}

@test "an access control list is kept" {
    reset dat
    # user::rw- user:65533:r-- group::--- mask::r-- other::---
    python3 - "$W/m.dat" <<'PY' || skip "no access control lists here"
import os, struct, sys
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in (
    (1, 6, 2**32 - 1), (2, 4, 65533), (4, 0, 2**32 - 1), (16, 4, 2**32 - 1),
    (32, 0, 2**32 - 1)))
os.setxattr(sys.argv[1], "system.posix_acl_access", acl)
PY
    pack dat 2 "$W"
    is_new dat
    python3 - "$W/m.dat" "$W/m.dat.json" <<'PY'
import os, sys
for f in sys.argv[1:]:
    acl = os.getxattr(f, "system.posix_acl_access")
    assert len(acl) == 4 + 5 * 8, acl
    assert os.stat(f).st_mode & 0o777 == 0o640
PY
}

@test "a link, a directory or a pipe at the temporary name is refused, not followed" {
    local what t
    mkdir theirs
    echo precious >theirs/file
    for t in dat dir; do
        for what in 'ln -s ../theirs' 'ln -s ../theirs/file' 'ln -s /nonexistent/x' mkfifo; do
            [ "$t $what" = 'dir mkfifo' ] || reset "$t"
            $what "$W/.$(target_name "$t").nibble-tmp"
            args "$t" 2 "$W"
            run -2 --separate-stderr timeout 60 "$DATPACK" "${ARGS[@]}"
            [[ $stderr == *"$(target_name "$t")"*": .$(target_name "$t").nibble-tmp"*" is in the way: "* ]] ||
                { echo "$stderr" && false; }
            [ "$(cat theirs/file)" = precious ]
            [ -e "$W/.$(target_name "$t").nibble-tmp" ] || [ -L "$W/.$(target_name "$t").nibble-tmp" ]
            rm "$W/.$(target_name "$t").nibble-tmp"
            is_old "$t"
        done
    done
}

@test "a temporary output that another process removed or replaced is not put in place" {
    need_failio
    driver
    cat >disturbed.py <<'PY'
from driver import *
import shutil
how, w, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
p = start(argv, "fsync:2:stop" if how.startswith("dir") else "fsync:1:stop",
          stderr=subprocess.PIPE, text=True)
assert stopped(p)
temp = os.path.join(w, ".m.dat.nibble-tmp" if how.startswith("file") else ".m.nibble-tmp")
assert os.path.lexists(temp), os.listdir(w)
inside = temp + "/" + sorted(os.listdir(temp))[0] if how.startswith("dir") else temp
if how == "file gone":
    os.unlink(temp)
elif how == "file other":
    os.unlink(temp)
    open(temp, "w").write("theirs")
elif how == "dir file gone":
    os.unlink(inside)
elif how == "dir file other":
    data = open(inside, "rb").read()
    os.rename(inside, inside + ".old")
    open(inside, "wb").write(data)
    os.unlink(inside + ".old")
elif how == "dir file cut":
    os.truncate(inside, 1)
elif how == "dir gone":
    shutil.rmtree(temp)
elif how == "dir other":
    shutil.rmtree(temp)
    os.mkdir(temp)
    open(temp + "/config.json", "w").write("theirs")
os.kill(p.pid, signal.SIGCONT)
rc = ended(p)
words = p.stderr.read()
assert rc == 2, (how, rc, words)
assert "another process removed or replaced" in words or "No such file" in words, (how, words)
if how in ("file other", "dir other"):
    theirs = temp + ("/config.json" if how == "dir other" else "")
    assert open(theirs).read() == "theirs", how
    shutil.rmtree(temp) if how == "dir other" else os.unlink(temp)
PY
    local how t
    for how in "file gone" "file other" "dir file gone" "dir file other" "dir file cut" \
        "dir gone" "dir other"; do
        t=dat
        [ "${how%% *}" = file ] || t=dir
        reset $t
        args $t 2 "$W"
        python3 disturbed.py "$how" "$W" "$DATPACK" "${ARGS[@]}"
        is_old $t || { echo "$how" && ls -lAR "$W" && false; }
    done
}

@test "a directory whose files cannot be removed is not replaced" {
    [ "$(id -u)" -eq 0 ] || skip "only root can run as another user"
    command -v setpriv >/dev/null || skip "no setpriv"
    local as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    chmod a+rx "$BATS_RUN_TMPDIR" "$BATS_TEST_TMPDIR" "$IN" "$BATS_FILE_TMPDIR" "${BATS_TEST_TMPDIR%/*}"
    "${as[@]}" "$DATPACK" --version || skip "another user cannot run the programs"
    reset dir
    chown -R 65534 "$W"
    chmod 555 "$W/m"
    args dir 2 "$W"
    run -2 --separate-stderr "${as[@]}" "$DATPACK" "${ARGS[@]}"
    [[ $stderr == "datpack: "*"m/: the files in it cannot be removed"*"Permission denied" ]] ||
        { echo "$stderr" && false; }
    is_old dir
    chmod 755 "$W/m"
    "${as[@]}" "$DATPACK" "${ARGS[@]}"
    is_new dir
    # What an earlier run left there and cannot be removed is told, too.
    reset dir
    mkdir "$W/.m.nibble-tmp"
    touch "$W/.m.nibble-tmp/config.json"
    chown -R 65534 "$W"
    chmod 555 "$W/.m.nibble-tmp"
    run -2 --separate-stderr "${as[@]}" "$DATPACK" "${ARGS[@]}"
    [[ $stderr == *"which an earlier run has left, cannot be removed: Permission denied" ]] ||
        { echo "$stderr" && false; }
    chmod 755 "$W/.m.nibble-tmp"
}

@test "a file system that cannot swap directories is named as the reason" {
    need_failio
    local e
    for e in EINVAL ENOSYS; do
        reset dir
        faulty dir "renameat2:1:$e"
        [ "$RC" -eq 2 ]
        grep -q 'm/: this file system cannot swap two directories: write to another name' "$ERR" || say "$e"
        is_old dir
    done
}

@test "a file system that cannot rename to a new name only: the file is linked to it" {
    need_failio
    local e f
    "$DATPACK" -q -o want.dat "$IN/plain2.dat"
    mkdir new
    for e in EINVAL ENOSYS EIO; do
        rm -f new/* log
        FAILIO=renameat2:1:$e FAILIO_LOG=log LD_PRELOAD=$FAILIO_SO \
            "$DATPACK" -q -o new/m.dat "$IN/plain2.dat" || [ $e = EIO ]
        if [ $e = EIO ]; then # another reason
            [ -z "$(ls -A new)" ]
        else
            cmp new/m.dat want.dat
            [ "$(ls -A new)" = "$(for f in want*; do echo "m${f#want}"; done)" ]
            grep -q ' linkat pass' log
        fi
    done
}
