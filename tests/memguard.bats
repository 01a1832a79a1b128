#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# shellcheck disable=SC2016  # $1 is for the inner shell
# memguard: real memory hogs (200 MB at most), families of processes, signals, limits.
#
# Beside each test a bystander runs; that it lives at the end of each is what matters
# most here.

# bats file_tags=native
load common

setup_file()
{
    ACT=$HERE/memguard.py
    export ACT
    mkdir "$BATS_FILE_TMPDIR/lib"
    ln -s "$BUILD/nvml.so" "$BATS_FILE_TMPDIR/lib/libnvidia-ml.so.1"
}

setup()
{
    cd "$BATS_TEST_TMPDIR" || return
    sleep 600 3>&- &
    bystander=$!
}

teardown()
{
    [ -z "${shm-}" ] || rm -rf "$shm"
    kill -0 "$bystander"
    kill "$bystander"
}

# guard OPTION...: memguard with a short poll; a hang fails.
guard()
{
    timeout -k 1 120 memguard --poll 0.05 "$@"
}

# act WORD...: a command of memguard.py; for the operands of memguard.
act()
{
    python3 "$ACT" "$@"
}

# gone FILE: no process whose number is a line of it is there (or it is a zombie that
# an outer process has not reaped yet).
gone()
{
    local pid
    [ -s "$1" ]
    while read -r pid; do
        if [ -e "/proc/$pid" ] && ! grep -q '^State:.*Z' "/proc/$pid/status"; then
            echo "process $pid lives"
            return 1
        fi
    done <"$1"
}

# ends STATUS PID: a process of this shell.
ends()
{
    local rc=0
    wait "$2" || rc=$?
    [ "$rc" -eq "$1" ] || { echo "status $rc" && false; }
}

# until_there FILE...
until_there()
{
    local f
    for f; do
        for _ in $(seq 1200); do
            [ ! -s "$f" ] || continue 2
            sleep 0.05
        done
        echo "no $f"
        return 1
    done
}

@test "limits have a unit, GB without one" {
    local size
    for size in 0.05 0.05G 51.2M 52428K 0.00005T; do
        run -124 --separate-stderr memguard -l $size --term-first 5 -- \
            python3 -c 'b = bytearray(120 << 20); import time; time.sleep(20)'
        [[ $stderr == *' is over the limit of 0.05 GB'* ]]
    done
    memguard -q -l 1.5G -a 1M -- true
    local wrong
    while read -r size wrong; do
        run -2 --separate-stderr memguard -l "$size" -- true
        [ "$stderr" = "memguard: --limit: $size: $wrong: want a number of GB of at least 0, as 1.5, or one with K, M, G or T, as 1500M" ]
    done <<'EOF'
1.5x "x" after the number
1GB "GB" after the number
G is no number
-1G is negative
EOF
}

@test "the command's own status" {
    run -0 --separate-stderr guard -l 1 -- true
    [ -z "$output$stderr" ]
    run -7 guard -l 1 -- sh -c 'exit 7'
    run -75 guard -l 1 sh -c 'exit 75'
    run -137 guard -l 1 -- sh -c 'kill -9 $$'
    run -143 guard -l 1 -- sh -c 'kill -TERM $$'
}

@test "a command that cannot be started: 127 and 126" {
    run -127 --separate-stderr guard -l 1 -- no-such-command
    [ "$stderr" = 'memguard: no-such-command: No such file or directory' ]
    echo x >plain
    run -126 --separate-stderr guard -l 1 -- ./plain
    [ "$stderr" = 'memguard: ./plain: Permission denied' ]
    run -126 guard -l 1 -- .
    run -127 guard -l 1 -- ''
}

@test "nothing to watch, and zero is no watch" {
    run -2 guard -- touch began
    run -2 guard -l 0 -- touch began
    run -2 --separate-stderr guard -l 0 -g 0 -a 0.0 -- touch began
    [[ $stderr == 'memguard: nothing to watch: expected '* ]]
    run -2 guard -l 1
    [ ! -e began ]
    # A limit of zero beside another one: it would end all at once if it counted.
    run -0 guard -l 0 -g 0 -a 0.001 -- true
}

@test "options end at the command" {
    run -0 guard -l 1 echo -l -x --help
    [ "$output" = '-l -x --help' ]
    run -0 guard -l 1 -- echo --
    [ "$output" = -- ]
}

@test "streams, descriptors and signals are as without memguard" {
    head -c 300000 /dev/urandom >in
    guard -l 1 -- tee /dev/stderr <in >out 2>err
    cmp in out
    cmp in err
    local show='for fd in 0 1 2 5; do readlink /proc/$$/fd/$fd || echo closed; done
        grep -E "^(Sig(Blk|Ign|Cgt)|NSpid)" /proc/$$/status | grep -v NSpid'
    local how
    for how in ':' 'exec <&-' 'exec 2>&-' 'trap "" PIPE HUP' 'trap "" TERM CHLD' \
        'exec 5</dev/null'; do
        bash -c "$how; exec sh -c '$show'" >plain 2>/dev/null
        bash -c "$how; exec memguard -l 1 -- sh -c '$show'" >guarded 2>/dev/null
        # Where stdout goes differs by name only.
        diff <(grep -v plain plain) <(grep -v guarded guarded)
    done
}

@test "host memory: a hog is ended, and one line says why" {
    run -124 --separate-stderr guard -l 0.08 -- python3 "$ACT" hog 120 20
    [[ $stderr =~ ^'memguard: host memory of 0.'[0-9]+' GB is over the limit of 0.08 GB; largest is process '[0-9]+' "python3" with 0.'[0-9]+' GB; ended by SIGTERM in '[0-9.]+' s, its status was 143'$ ]]
    # Below the limit nothing happens.
    run -0 --separate-stderr guard -l 0.5 -- python3 "$ACT" hog 60 0.5
    [ -z "$stderr" ]
}

@test "host memory: the sum of all processes counts" {
    # Four of 40 MB, each alone below the limit.
    run -124 guard -l 0.14 -- python3 "$ACT" workers 4 40
    # Those that end themselves by SIGTERM leave before the parent does.
    run -0 guard -l 0.14 -- python3 "$ACT" hog 40 0.3
}

@test "host memory: shared pages count once" {
    # Four processes with the same 100 MB: 500 MB as a sum of what each holds.
    run -0 --separate-stderr guard -v -l 0.25 -- python3 "$ACT" shared 4 100
    [[ $stderr == 'memguard: at most 0.'[12]?' GB of host memory'* ]]
    # But not when each writes to them.
    run -124 guard -l 0.25 -- python3 "$ACT" unshare 4 100
}

@test "host memory: files in memory that nobody maps count, those that are mapped count once" {
    run -124 --separate-stderr guard -l 0.08 -- python3 "$ACT" memfd 120 20
    [[ $stderr =~ 'host memory of '0.[0-9]+' GB, '0.[0-9]+' GB of it in files in memory, is over the limit of 0.08 GB; largest is process '[0-9]+' "python3" with '0.[0-9]+' GB' ]]
    run -0 --separate-stderr guard -l 0.2 -- python3 "$ACT" memfd 120 0.5
    [ -z "$stderr" ]
    run -0 --separate-stderr guard -l 0.2 -- python3 "$ACT" map 120 1
    [ -z "$stderr" ]
    # However many processes have it.
    run -0 --separate-stderr guard -l 0.2 -- python3 "$ACT" heirs 4 120
    [ -z "$stderr" ]
    # Each has one.
    run -124 guard -l 0.2 -- sh -c 'python3 "$0" memfd 120 20 & python3 "$0" memfd 120 20; wait' "$ACT"
}

@test "host memory: files of a tmpfs count from their first byte to their removal, unless they were there before" {
    [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] || skip "/dev/shm is no tmpfs"
    shm=$(mktemp -d /dev/shm/nibble.XXXXXX) || skip "/dev/shm cannot be written"
    [ "$(df -k --output=avail "$shm" | tail -n 1)" -gt 300000 ] || skip "/dev/shm is too small"
    local how
    for how in open deleted mapped; do
        run -124 --separate-stderr guard -l 0.08 -- python3 "$ACT" file "$shm/$how" $how 120 20
        [[ $stderr == *"is over the limit of 0.08 GB"* ]]
        rm -f "$shm"/*
    done
    run -124 --separate-stderr guard -l 0.2 --report r.json -- python3 "$ACT" after "$shm/f" closed 120 r.json
    [[ $stderr == *"of it in files in memory"* ]]
    rm -f "$shm"/*
    run -0 guard -l 0.2 -f --report r.json -- python3 "$ACT" after "$shm/f" removed 120 r.json
    rm -f "$shm"/*
    # The memory of what was there before the command is not its own.
    head -c 120M /dev/zero >"$shm/before"
    for how in read there; do
        run -0 guard -l 0.08 -- python3 "$ACT" file "$shm/before" $how 120 0.5
    done
}

@test "host memory: what may not be looked into counts, too" {
    # Root may look into all, by its capabilities.
    local as=()
    [ "$(id -u)" -ne 0 ] || as=(setpriv --bounding-set -all --inh-caps -all)
    "${as[@]}" true || skip "capabilities cannot be dropped here"
    as+=(timeout -k 1 120 memguard --poll 0.05)
    run -124 "${as[@]}" -l 0.08 -- sh -c 'python3 "$0" secret 120 20; exit 3' "$ACT"
}

@test "a grandchild, also in a session of its own, belongs to the command" {
    run -124 guard -l 0.08 -- sh -c 'sh -c "python3 $0 hog 120 20; exit 3"; exit 4' "$ACT"
    run -124 guard -l 0.08 --term-first 2 -- python3 "$ACT" daemon 120 pids
    gone pids
    # When the command has ended it is nobody's, as without memguard.
    run -0 guard -l 0.5 -- sh -c 'setsid sleep 20 >/dev/null 2>&1 3>&- & echo $! >left'
    kill "$(cat left)"
}

@test "all of a large family is ended" {
    local seconds
    for seconds in 0 4; do
        echo 'device 3000' >nvml
        # When all are there the GPU's memory grows.
        run -124 gpu -q -g 1 --term-first $seconds -- sh -c 'python3 "$0" storm pids &
            until [ "$(cat pids | wc -l)" -eq 40 ]; do sleep 0.1; done
            echo "device 9000" >nvml.new; mv nvml.new nvml; wait' "$ACT"
        gone pids
        rm pids
    done
}

@test "SIGTERM that is ignored: SIGKILL follows --term-first later" {
    local start=$EPOCHREALTIME
    # It would go on for 30 s.
    run -124 --separate-stderr guard -l 0.08 --term-first 1 -- python3 "$ACT" deaf 120
    [[ $stderr =~ 'ended by SIGKILL, '[1-9][0-9]?'.'[0-9]' s after SIGTERM, its status was 137'$ ]]
    awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a >= 1) }'
    # 0: nobody is asked.
    run -124 --separate-stderr guard -l 0.08 --term-first 0 -- python3 "$ACT" count heard 120
    [[ $stderr =~ 'ended by SIGKILL in '[0-9.]+' s, its status was 137'$ ]]
    [ ! -e heard ]
}

@test "SIGTERM comes once, also through those that pass it on" {
    run -124 guard -l 0.08 -- timeout 20 python3 "$ACT" count heard 120
    [ "$(cat heard)" = 'SIGTERM 1' ]
    rm heard*
    # The reader of a pipe outlives the writer, and the shell has time for what comes then.
    mkfifo never
    run -124 guard -l 0.08 -- bash -c 'python3 "$0" count heard 120 | cat
        s=${PIPESTATUS[*]}
        read -rt 0.2 <>never
        echo "$s"' "$ACT"
    [ "$(cat heard)" = 'SIGTERM 1' ]
    [[ $output == *'75 0'* ]]
}

@test "--over: a spike is let pass, what stays is not" {
    run -0 guard -l 0.08 --over 10 -- python3 "$ACT" spike 120 0.3
    run -124 guard -l 0.08 --over 0.5 -- python3 "$ACT" hog 120 20
}

@test "free memory of the machine" {
    run -124 --separate-stderr guard -a 100000 -- sleep 20
    [[ $stderr == 'memguard: free memory of the machine, '*' GB, is under the limit of 100000.00 GB; largest is process '*'"sleep"'* ]]
    run -0 guard -a 0.001 -- sleep 0.2
}

@test "trainstep saves before it goes" {
    cp "$root/pipelines/demo/config.json" .
    datpack -q --init 7 --config config.json -o run.ckpt
    printf '1 2 3 4\n5 6 7 8 9\n' | tokenize -q --input ids -o ids.tok
    echo 'device 3000' >nvml
    # After some steps the GPU's memory grows; the trainer is the largest process.
    run -124 --separate-stderr gpu -q -g 1 -- bash -c '
        (until [ "$(wc -l <log)" -gt 5 ]; do sleep 0.1; done 2>/dev/null
            echo "device 9000" >nvml.new; mv nvml.new nvml) &
        trainstep -q --until 1000000 -d ids.tok run.ckpt | tee log >/dev/null
        echo "${PIPESTATUS[*]}" >statuses'
    [ "$(cat statuses)" = '75 0' ]
    run -0 datcat --verify run.ckpt
    local last
    last=$(tail -n 1 log | cut -f 1)
    [ "$last" -ge 1 ]
    datcat --meta run.ckpt | has "\"step\":$last\b"
}

@test "signals sent to memguard reach the command, once" {
    local sig
    for sig in TERM HUP USR1 INT; do
        # In a shell without job control background commands ignore SIGINT; not here.
        python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' memguard -l 1 -- python3 "$ACT" count $sig 3>&- &
        until_there $sig.ready
        kill -$sig $!
        ends 75 $!
        [ "$(cat $sig)" = "SIG$sig 1" ]
    done
}

@test "signals to the whole process group reach the command once, too" {
    run -75 act group memguard -l 1 -- python3 "$ACT" count heard
    [ "$(cat heard)" = 'SIGTERM 1' ]
    # As timeout does it, to memguard and to the group.
    timeout 600 memguard -l 1 -- python3 "$ACT" count heard2 3>&- &
    until_there heard2.ready
    kill -ALRM $! # its time is over
    ends 124 $!
    until_there heard2
    [ "$(cat heard2)" = 'SIGTERM 1' ]
}

@test "Ctrl-C on a terminal reaches the command as without memguard" {
    run -75 act tty C memguard -l 1 -- python3 "$ACT" count heard
    [ "$(cat heard)" = 'SIGINT 1' ]
    run -130 act tty C memguard -l 1 -- sh -c 'sleep 10'
}

@test "a stopped command is waited for, and ended if it must be" {
    memguard -l 1 -- sh -c 'echo $$ >pid; kill -STOP $$; exit 5' 3>&- &
    until_there pid
    sleep 0.3
    kill -0 $!
    kill -CONT "$(cat pid)"
    ends 5 $!
    run -124 guard -a 100000 --over 0.3 --term-first 3 -- sh -c 'kill -STOP $$; sleep 9'
}

@test "memguard killed: the command is asked to end" {
    memguard -l 1 -- python3 "$ACT" count heard 3>&- &
    until_there heard.ready
    kill -KILL $!
    ends 137 $!
    until_there heard
    [ "$(cat heard)" = 'SIGTERM 1' ]
}

@test "children that memguard was born with are no business of it" {
    run -124 --separate-stderr bash -c 'sleep 30 >/dev/null 2>&1 3>&- & echo $! >other
        exec memguard -a 100000 --over 0.2 -- sh -c "sleep 9; true"'
    [[ $stderr == *'has other children than the command'*'ended by SIGTERM'* ]]
    kill -0 "$(cat other)"
    kill "$(cat other)"
}

@test "huge numbers of short-lived children" {
    run -3 guard -l 1 -- sh -c 'i=0
        while [ $i -lt 1000 ]; do /bin/true & i=$((i + 1)); done; wait; exit 3'
    # Orphans become memguard's: no zombie stays while it runs.
    run -0 guard -l 1 -- bash -c 'for i in {1..9}; do (true &) ; done
        zombies() { grep -l "^PPid:.$PPID$" /proc/[0-9]*/status 2>/dev/null |
            xargs grep -h "^State:" | grep -c Z; }
        for i in {1..200}; do
            sleep 0.1
            n=$(zombies) || break
        done
        echo "$n"'
    [ "$output" = 0 ]
}

@test "no way to signal but one" {
    [ -z "${NIBBLE_SAN:-}" ] || skip "sanitizers bring their own"
    run nm -u "$bin/memguard"
    [[ $output != *kill* ]]
    [[ $output != *sigqueue* ]]
    run -0 grep -c 'SYS_pidfd_send_signal' "$HERE"/../cmd/memguard/tree.c
    [ "$output" -eq 1 ]
    run ! grep -l 'send_signal\|SYS_.*kill' "$HERE"/../cmd/memguard/{gpu,memfiles,memguard,report,start}.c
}

# ---- GPU ---------------------------------------------------------------------------

# gpu OPTION...: with the NVML of tests/nvml.c, whose numbers are in ./nvml.
gpu()
{
    LD_LIBRARY_PATH=$BATS_FILE_TMPDIR/lib FAKE_NVML=$PWD/nvml guard "$@"
}

@test "GPU memory: without NVML, GPUs or numbers it says what to do" {
    if PATH=$PATH:/sbin:/usr/sbin ldconfig -p | has libnvidia-ml; then
        skip "this machine has NVML"
    fi
    run -2 --separate-stderr guard -g 1 -- touch began
    [[ $stderr == 'memguard: --gpu-limit: '*libnvidia-ml.so.1*'driver'* ]]
    run -2 --separate-stderr env LD_LIBRARY_PATH="$BATS_FILE_TMPDIR/lib" \
        memguard -g 1 -- touch began
    [[ $stderr == *'NVML does not start: Uninitialized'* ]]
    : >nvml
    run -2 --separate-stderr gpu -g 1 -- touch began
    [[ $stderr == *'finds no GPU'* ]]
    # Unified memory.
    echo 'device -' >nvml
    run -2 --separate-stderr gpu -g 1 -- touch began
    [[ $stderr == *"shares the machine's"*--available* ]]
    [ ! -e began ]
}

@test "GPU memory: what the command's processes hold, on all GPUs" {
    printf 'device 3000\ncompute 1 3000\ndevice 100\n' >nvml
    # Somebody else's is not ours.
    run -0 --separate-stderr gpu -g 1 -- sleep 0.3
    [ -z "$stderr" ]
    run -0 gpu -g 1 -- sh -c "printf 'device 9000\ncompute 1 3000\ncompute %d 900\ngraphics %d 900\n' \$\$ \$\$ >nvml.new
        mv nvml.new nvml; sleep 0.4"
    printf 'device 3000\ndevice 100\n' >nvml
    # Two GPUs with 900 MiB each are over 1 GB.
    run -124 --separate-stderr gpu -g 1 -- sh -c "printf 'device 9000\ncompute 1 3000\ncompute %d 900\ndevice 999\ngraphics %d 900\n' \$\$ \$\$ >nvml.new
        mv nvml.new nvml; exec sleep 20"
    [[ $stderr == 'memguard: GPU memory of 1.76 GB is over the limit of 1.00 GB; largest is process '*'" with 1.76 GB; ended by SIGTERM'* ]] || { echo "$stderr" && false; }
}

@test "GPU memory: where numbers of processes are not ours, growth counts" {
    printf 'device 3000\n' >nvml
    run -124 --separate-stderr gpu -g 1 -- sh -c 'sleep 0.2
        printf "device 5000\ncompute 4190000 2000\n" >nvml.new; mv nvml.new nvml
        exec sleep 20'
    [[ $stderr == *'does not know the processes by our numbers'*'GPU memory of 1.95 GB is over'* ]]
    # A stranger that we see is told from ours, however it grows.
    printf 'device 3000\n' >nvml
    run -0 --separate-stderr gpu -g 1 -- sh -c 'printf "device 5000\ncompute 1 2000\n" >nvml.new
        mv nvml.new nvml; sleep 0.3'
    [ -z "$stderr" ]
}

# ---- the report --------------------------------------------------------------------

# json_holds FILE EXPRESSION: of the document d.
json_holds()
{
    python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
assert eval("(" + sys.argv[2] + ")"), d' "$@"
}

@test "--report: samples, peaks, limits, result" {
    run -124 guard -l 0.08 --report r.json -- python3 "$ACT" hog 120 20
    json_holds r.json 'd["Tool"] == "memguard" and d["Exit"] == 124 and
        "over the limit of 0.08 GB" in d["Ended"] and "SIGTERM" in d["Ended"] and
        d["Command"][0] == "python3" and d["Command"][2:] == ["hog", "120", "20"] and
        d["Limits"] == {"HostRssMiB": 81} and d["Peaks"]["HostRssMiB"] > 81'
    json_holds r.json 'd["Peaks"]["HostRssMiB"] == max(s["HostRssMiB"] for s in d["Samples"]) and
        d["Peaks"]["MemAvailableMiB"] == min(s["MemAvailableMiB"] for s in d["Samples"]) and
        [s["ElapsedMs"] for s in d["Samples"]] == sorted(s["ElapsedMs"] for s in d["Samples"])'
    # It is there: replaced only when that was said.
    run -2 --separate-stderr guard -l 1 --report r.json -- touch began
    [[ $stderr == *'exists; -f replaces it'* ]]
    run -7 guard -l 1 -f --report r.json -- sh -c 'exit 7'
    json_holds r.json 'd["Exit"] == 7 and d["Ended"] is None'
    run -127 guard -l 1 -f --report r.json -- no-such-command
    json_holds r.json 'd["Exit"] == 127'
    [ ! -e began ]
    [ "$(find . -name '.*' -type f)" = "" ]
}

@test "--report: readable while the command runs" {
    guard -l 1 --report r.json -- sh -c 'until [ -e stop ]; do sleep 0.1; done' 3>&- &
    until_there r.json
    json_holds r.json 'd["Exit"] is None and d["Peaks"]["Processes"] <= 2'
    local i
    for ((i = 0; i < 600; i++)); do
        [ "$(grep -c ElapsedMs r.json)" -le 9 ] || break
        sleep 0.1
    done
    json_holds r.json 'd["Exit"] is None and len(d["Samples"]) > 9'
    touch stop
    ends 0 $!
    json_holds r.json 'd["Exit"] == 0 and len(d["Samples"]) > 10'
}

@test "--report: what cannot be written is known before the command begins" {
    run -2 guard -l 1 --report no/such/r.json -- touch began
    run -2 guard -l 1 --report /dev/full -- touch began
    run -2 guard -l 1 --report . -- touch began
    [ ! -e began ]
}

@test "--report: streams" {
    guard -l 1 --report /dev/stdout -- \
        sh -c 'echo word >&2; until [ "$(wc -l <lines)" -gt 4 ]; do sleep 0.1; done' 2>err | cat >lines
    [ "$(cat err)" = word ]
    python3 -c 'import json, sys
d = [json.loads(l) for l in open("lines")]
assert d[0]["Tool"] == "memguard" and len(d) > 4 and d[-1]["Exit"] == 0
assert all(s["HostRssMiB"] >= 0 for s in d[1:-1])'
    # Into a file that the shell opened it goes on where that stands.
    bash -c 'echo first; memguard -l 1 --report - -- echo second; echo third' >file
    [ "$(head -n 1 file)" = first ]
    [ "$(tail -n 1 file)" = third ]
    grep -qx second file
    # A FIFO that nobody reads does not hang, and stays one.
    mkfifo fifo
    run -0 guard -l 1 --report fifo -- sleep 0.2
    [ -p fifo ]
    rm lines
    cat fifo >lines 3>&- &
    run -0 guard -l 1 --report fifo -- sh -c 'until [ -s lines ]; do sleep 0.1; done'
    wait $!
    grep -q '"Exit":0' lines
    # A pipe that is full: lines are dropped, and counted in the last one.
    python3 - <<'PY'
import array, fcntl, json, os, signal, subprocess, termios, time
signal.alarm(120)
r, w = os.pipe()
fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096)
p = subprocess.Popen(["memguard", "-l", "1", "--poll", "0.01", "--report", "-", "--", "sh", "-c",
                      "until [ -e full ]; do sleep 0.1; done; : >ended"], stdout=w)
os.close(w)


def waits_of_memguard():
    with open("/proc/%d/status" % p.pid) as f:
        return int(f.read().split("\nvoluntary_ctxt_switches:")[1].split()[0])


# A pipe of one page is full when there is a line in it.  A hundred samples come after that.
held = array.array("i", [0])
while held[0] == 0:
    assert p.poll() is None
    time.sleep(0.01)
    fcntl.ioctl(r, termios.FIONREAD, held)
enough = waits_of_memguard() + 100
while waits_of_memguard() < enough:
    assert p.poll() is None
    time.sleep(0.01)
open("full", "w").close()
while not os.path.exists("ended"):
    assert p.poll() is None
    time.sleep(0.01)
with os.fdopen(r) as f:
    last = json.loads(list(f)[-1])
assert p.wait(60) == 0 and last["Exit"] == 0 and last["Dropped"] > 5, last
PY
    # A reader that does not read cannot hold it up, nor one that went away.
    run -0 guard -l 1 --poll 0.01 --report >(exec sleep 3 3>&-) -- sleep 0.5
    run -0 guard -l 1 --report >(exec true) -- sleep 0.5
}
