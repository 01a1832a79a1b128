#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# trainstep as a real srun starts it: in a Slurm of two nodes that belongs to this file, all on this
# machine, where Slurm is installed (Debian: slurmctld slurmd slurm-client munge).  What its variables
# are is also tested without it, with the environment of Slurm 22.05: ranks.bats, gpus.bats.

# bats file_tags=native,nosan

load common

setup_file() {
    local d=$BATS_FILE_TMPDIR/slurm why=$BATS_FILE_TMPDIR/why program ports i
    export SLURM_CONF=$d/slurm.conf D=$d
    unset "${!SLURM_@}" "${!PMI_@}" "${!PMIX_@}" "${!OMPI_@}"
    export SLURM_CONF=$d/slurm.conf
    PATH=$PATH:/usr/sbin:/sbin
    : >"$why"
    for program in munged slurmctld slurmd srun sbatch sinfo; do
        command -v $program >/dev/null || { echo "no $program: this needs Slurm" >"$why" && return 0; }
    done
    mkdir -p "$d"/{munge,state,log} "$d"/{spool,tmp}/127.0.0.{1,2}
    chmod 711 "$d/munge"
    head -c 128 /dev/urandom >"$d/munge/key"
    chmod 600 "$d/munge/key"
    ports=$(python3 - <<'PY'
import socket
held = [socket.socket() for _ in range(3)]
for s in held:
    s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in held])
PY
    )
    # shellcheck disable=SC2086  # three of them
    configure $ports >"$SLURM_CONF"
    start munged --foreground --force --key-file="$d/munge/key" --socket="$d/munge/socket" --pid-file="$d/munge/pid" \
        --log-file="$d/munge/log" --seed-file="$d/munge/seed" --num-threads=2
    for ((i = 0; i < 50; i++)); do
        [ ! -S "$d/munge/socket" ] || break
        sleep 0.1
    done
    start slurmctld -D -c
    start slurmd -D -N 127.0.0.1
    start slurmd -D -N 127.0.0.2
    for ((i = 0; i < 100; i++)); do
        [ "$(timeout 5 sinfo -h -t idle -o %D 2>/dev/null)" != 2 ] || break
        sleep 0.1
    done
    timeout 20 srun -N 2 true 2>"$d/log/srun" ||
        { echo "Slurm does not start here: $(cat "$d"/log/* | grep -m 1 -iE 'fatal|error')" >"$why" && return 0; }
    cp "$HERE/vectors/qwen3-tiny-config.json" "$BATS_FILE_TMPDIR/config.json"
    cd "$BATS_FILE_TMPDIR" || return
    printf '1 2 3 4\n5 6 7 8 9\n3 1 2\n6 4 8 8\n9 9 2 1 7\n5 5 5\n' | tokenize -q --input ids -o ids.tok
    datpack -q --init 3 --config config.json --to ckpt -o small.ckpt --quant sweep
}

# configure PORT PORT PORT: slurm.conf.
configure() {
    cat <<CONF
ClusterName=nibble
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$1
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$D/munge/socket
CredType=cred/munge
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
TmpFS=$D/tmp/%n
SlurmctldPidFile=$D/slurmctld.pid
SlurmdPidFile=$D/slurmd.%n.pid
SlurmctldLogFile=$D/log/slurmctld
SlurmdLogFile=$D/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
MpiDefault=none
SwitchType=switch/none
NodeName=127.0.0.[1-2] NodeHostname=$(hostname -s) NodeAddr=127.0.0.[1-2] Port=$2,$3 CPUs=4 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=10 State=UP
CONF
}

# start PROGRAM ARGUMENT...: a daemon, which teardown_file ends.
start() {
    "$@" >"$D/log/$1.out" 2>&1 </dev/null 3>&- &
    echo $! >>"$D/pids"
}

teardown_file() {
    local id
    [ -e "$D/pids" ] || return 0
    timeout 10 scancel -s KILL -u "$(id -un)" 2>/dev/null || true
    tac "$D/pids" >"$D/ids"
    while read -r id; do
        kill "$id" 2>/dev/null || true
        for _ in {1..50}; do
            kill -0 "$id" 2>/dev/null || break
            sleep 0.1
        done
        kill -KILL "$id" 2>/dev/null || true
    done <"$D/ids"
}

setup() {
    [ ! -s "$BATS_FILE_TMPDIR/why" ] || skip "$(cat "$BATS_FILE_TMPDIR/why")"
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    cp "$BATS_FILE_TMPDIR"/{small.ckpt,ids.tok} .
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
    t=(trainstep -q -d ids.tok --lr 1e-2 -n 3 --accum 6)
}

# one DEVICE: what a process by itself ends in, one.ckpt.
one() { "${t[@]}" --device "$1" -f -o one.ckpt small.ckpt >/dev/null; }

@test "srun --mpi=pmix: 2 and 3 ranks, on one node and on two, end in the bytes of one process" {
    [ -e "$BUILD/mpi/lib/dist/comm_mpi.o" ] || skip "this was built without mpicc"
    [[ $(srun --mpi=list 2>&1) == *pmix* ]] || skip "this Slurm has no PMIx"
    local o
    one cpu
    for o in "-n 2" "-n 3 -N 2"; do
        # shellcheck disable=SC2086  # words
        timeout 60 srun --mpi=pmix $o "${t[@]}" --device cpu -f -o some.ckpt small.ckpt </dev/null >out 2>err ||
            { cat err && false; }
        [ "$(wc -l <out)" -eq 4 ]
        cmp one.ckpt some.ckpt
        rm some.ckpt
    done
    # The ranks of a node share the processors that Slurm gave, here one each.
    timeout 60 srun --mpi=pmix -n 2 generate -v --device cpu --score ids.tok small.ckpt </dev/null >out 2>err ||
        { cat err && false; }
    grep -qE '[, ]1 threads?' err || { cat err && false; }
}

@test "srun --mpi=none on CPUs is refused in words, at once" {
    [ -e "$BUILD/mpi/lib/dist/comm_mpi.o" ] || skip "this was built without mpicc"
    run -2 --separate-stderr timeout 60 srun --mpi=none -n 2 "${t[@]}" --device cpu -f -o x.ckpt small.ckpt
    # shellcheck disable=SC2154  # of run
    [ "$(grep -c 'trainstep: .*expected mpirun or srun --mpi=pmix' <<<"$stderr")" -eq 2 ] || { echo "$stderr" && false; }
    [ ! -e x.ckpt ]
}

@test "srun with emulated GPUs, on one node and on two: the bytes of one, and scancel's SIGTERM saves" {
    [ -e "$BUILD/emulate/libnccl.so.2" ] || skip "no emulation: make emulated"
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate NIBBLE_EMULATE_GPUS=4
    unset CUDA_VISIBLE_DEVICES
    local o i job
    one cuda
    for o in "-n 2" "-n 3 -N 2"; do
        # shellcheck disable=SC2016,SC2086  # for the inner shell; words
        timeout 60 srun $o bash -c 'exec "$@" --device "cuda:$SLURM_PROCID"' bash "${t[@]}" -f -o some.ckpt small.ckpt \
            </dev/null >out 2>err || { cat err && false; }
        cmp one.ckpt some.ckpt
        rm some.ckpt
    done
    timeout 200 srun -n 2 "${t[@]}" --device cuda -n 100000000 small.ckpt </dev/null >out 2>err 3>&- &
    for ((i = 0; i < 600; i++)); do
        sleep 0.1
        [ "$(wc -l <out)" -lt 3 ] || break
    done
    job=$(squeue -h -t R -o %i)
    scancel --signal=TERM "$job"
    i=0
    wait $! || i=$?
    [ "$i" -eq 75 ] || { cat err && false; }
    [ "$(datcat --meta small.ckpt | json "d['meta']['state']['step'] > 1")" = True ]
}

@test "in a script of sbatch, and in shells of srun --pty and salloc, trainstep without srun is one process" {
    one cpu
    local command="${t[*]} --device cpu"
    printf '#!/bin/bash\n%s -o batch.ckpt small.ckpt\n' "$command" >script
    timeout 60 sbatch --wait -n 4 -o batch.out script >/dev/null || { cat batch.out && false; }
    cmp one.ckpt batch.ckpt
    command -v script >/dev/null || skip "no script(1): the rest needs a terminal"
    local shell
    for shell in "srun -n 4 --pty bash --norc -i" "salloc -n 4"; do
        printf '%s -o shell.ckpt small.ckpt\nexit\n' "$command" |
            timeout 60 script -qec "$shell" /dev/null >out 2>&1 3>&- || { cat out && false; }
        cmp one.ckpt shell.ckpt || { cat out && false; }
        rm shell.ckpt
    done
}
