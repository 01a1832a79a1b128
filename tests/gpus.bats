#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2030,SC2031,SC2154  # output, stderr: set by run; each test has its own
# trainstep on several GPUs, which tests/emulate makes of processes on the CPU, with memory that they
# map and a libnccl of its own: whatever their number, and whichever of the two they exchange by, the
# bytes are those of one; how they are started; and a rank that fails.
# Tests that need the emulation are part of "make check-long", which builds it.

# bats file_tags=native,nosan

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(5)
for name, n in ("ids", 31), ("held", 7), ("other", 31):
    with open(name, "w") as f:
        for _ in range(n):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    local f
    for f in ids held other; do
        tokenize -q --input ids -o $f.tok $f
    done
    datpack -q --init 3 --config config.json --to ckpt -o small.ckpt
    # Its tensors have parts of several ranks.
    sed 's/"hidden_size": [0-9]*/"hidden_size": 256/; s/"intermediate_size": [0-9]*/"intermediate_size": 512/' \
        config.json >wide.json
    datpack -q --init 3 --config wide.json --to ckpt --moments f32 -o wide.ckpt
}

setup() {
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT "${!OMPI_@}" "${!SLURM_@}" "${!PMI_@}"
}

# emulated: four GPUs, or the test is skipped.
emulated() {
    [ -e "$BUILD/emulate/libnccl.so.2" ] || skip "no emulation: make emulated"
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    export NIBBLE_EMULATE_GPUS=4
    unset CUDA_VISIBLE_DEVICES
}

gpus() { timeout 100 trainstep --gpus "$1" -d "$IN/ids.tok" --lr 1e-2 "${@:2}" </dev/null; }
alone() { timeout 100 trainstep --device cuda -d "$IN/ids.tok" --lr 1e-2 "$@"; }

# numbers: the columns of a table that do not depend on time and memory.
numbers() { cut -f 1-5,10; }

# same CKPT OPTION...: $counts GPUs end in the bytes of one, and print its numbers; $passes a step.
# Their queues do what they are given as late as they may, and as early; they exchange by copies, and
# by NCCL.
same() {
    local n queues by from=$1
    shift
    alone -q -n 2 --accum $passes -f -o one.ckpt "$@" "$from" | numbers >one
    [ "$(wc -l <one)" -eq 3 ]
    run ! cmp -s "$from" one.ckpt
    for n in $counts; do
        for queues in late early; do
            for by in copies nccl; do
                NIBBLE_EXCHANGE=$by NIBBLE_EMULATE_QUEUES=$queues gpus "$n" -q -n 2 --accum $passes -f -o some.ckpt \
                    "$@" "$from" | numbers >some
                cmp one some
                cmp one.ckpt some.ckpt
            done
        done
    done
}

# a free port, more or less.
free_port() {
    python3 -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"
}

# torch N [VARIABLE=VALUE]... -- ARGUMENT...: trainstep as torchrun starts N; their statuses are in
# $ended, what they said in said.0, said.1, ..., rank 0's table in out.0.
torch() {
    local n=$1 i id=() set=()
    shift
    while [ "$1" != -- ]; do
        set+=("$1")
        shift
    done
    shift
    for ((i = 0; i < n; i++)); do
        env RANK=$i LOCAL_RANK=$i WORLD_SIZE="$n" LOCAL_WORLD_SIZE="$n" MASTER_ADDR=127.0.0.1 \
            MASTER_PORT="$port" "${set[@]}" timeout 100 trainstep -d "$IN/ids.tok" --lr 1e-2 "$@" \
            >out.$i 2>said.$i </dev/null 3>&- &
        id+=($!)
    done
    ended=
    for ((i = 0; i < n; i++)); do
        local status=0
        wait "${id[i]}" || status=$?
        ended+="$status "
    done
}

# bats test_tags=long
@test "2, 3 and 4 emulated GPUs end in the bytes of one" {
    emulated
    counts="2 3" passes=6
    same "$IN/small.ckpt" --weight-decay 0.1 --schedule cosine --warmup 1 --total-steps 6
    same "$IN/wide.ckpt"
    [ "$(stat -c %s one.ckpt)" -gt 1000000 ]
    counts=4 passes=4
    same "$IN/wide.ckpt" --clip-mode tensor --clip 0.05
}

# bats test_tags=long
@test "ranks to which no gradient belongs" {
    emulated
    local counts=14 passes=14
    export NIBBLE_EMULATE_GPUS=14
    same "$IN/small.ckpt" --train-last-layers 1
}

# bats test_tags=long
@test "f32, FP8, NVFP4 activations, recomputing and released gradients make no difference" {
    emulated
    counts=2 passes=2
    same "$IN/wide.ckpt" --compute f32
    same "$IN/wide.ckpt" --compute fp8 --clip-mode prev
    same "$IN/wide.ckpt" --compute fp8 --quant-from 2
    same "$IN/wide.ckpt" --recompute block --activations nvfp4
    same "$IN/small.ckpt" --train-last-layers 1 --quant-from 2 --clip 0
}

# bats test_tags=long
@test "GPUs that cannot copy to each other exchange by NCCL, all of them, and -v says why" {
    emulated
    local variable words t=(--device cuda -n 1 --accum 6 -f -o some.ckpt "$IN/wide.ckpt")
    alone -q -n 1 --accum 6 -o one.ckpt "$IN/wide.ckpt" >/dev/null
    trainstep --diagnose | grep -q '^exchange of ranks.by copies, over NVLink$'
    NIBBLE_EXCHANGE=nccl trainstep --diagnose | grep -q '^exchange of ranks.by NCCL: NIBBLE_EXCHANGE is nccl$'
    NIBBLE_EMULATE_NO_NVLINK=1 trainstep --diagnose | grep -q '^exchange of ranks.by NCCL: no NVLink from cuda:0 to cuda:1$'
    NIBBLE_NCCL=/none gpus 2 -v "${t[@]:2}" >/dev/null 2>said
    [ "$(grep -c "GPUs exchange by copies into each other's memory" said)" -eq 1 ]
    cmp one.ckpt some.ckpt
    while read -r variable words; do
        env "$variable" timeout 100 trainstep --gpus 3 -v -d "$IN/ids.tok" --lr 1e-2 "${t[@]:2}" </dev/null >/dev/null 2>said
        [ "$(grep -c "GPUs exchange by NCCL; not by copies: $words" said)" -eq 1 ] || { cat said && false; }
        cmp one.ckpt some.ckpt
    done <<'END'
NIBBLE_EXCHANGE=nccl rank 0: NIBBLE_EXCHANGE is nccl
NCCL_P2P_DISABLE=1 rank 0: NCCL_P2P_DISABLE is set
NIBBLE_EMULATE_NO_IPC=1 rank 0: its memory cannot be shared with other processes
NIBBLE_EMULATE_NO_NVLINK=1 rank 1: no NVLink leads to its GPU
END
    # One that cannot is enough.
    port=$(free_port)
    local i id=()
    for i in 0 1 2; do
        words=copies
        [ $i -ne 1 ] || words=nccl
        env RANK=$i LOCAL_RANK=$i WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" NIBBLE_EXCHANGE=$words \
            timeout 100 trainstep -v -d "$IN/ids.tok" --lr 1e-2 "${t[@]}" >/dev/null 2>said.$i </dev/null 3>&- &
        id+=($!)
    done
    wait "${id[0]}"
    wait "${id[1]}"
    wait "${id[2]}"
    grep -q 'GPUs exchange by NCCL; not by copies: rank 1: NIBBLE_EXCHANGE is nccl' said.0
    cmp one.ckpt some.ckpt
}

# bats test_tags=long
@test "a rank that cannot map what another one receives into ends all" {
    emulated
    local i id=() nth=5 ended=
    port=$(free_port)
    for i in 0 1 2; do
        env RANK=$i LOCAL_RANK=$i WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
            NIBBLE_EMULATE_IPC_FAIL=$((i == 1 ? nth : 0)) timeout 100 trainstep --device cuda -d "$IN/ids.tok" -n 1 \
            --accum 6 -o some.ckpt "$IN/wide.ckpt" >/dev/null 2>said.$i </dev/null 3>&- &
        id+=($!)
    done
    for i in 0 1 2; do
        local status=0
        wait "${id[i]}" || status=$?
        ended+="$status "
    done
    [ "$ended" = "2 2 2 " ]
    grep -q '^trainstep: rank 1: cuda:1: cudaIpcOpenMemHandle (NIBBLE_EXCHANGE=nccl exchanges without it): ' said.1
    [ ! -e some.ckpt ]
}

# bats test_tags=long
@test "with less memory ranks expand weights before each product, not once a step; same bytes" {
    emulated
    local gb queues
    alone -q -n 3 --accum 2 -o one.ckpt "$IN/wide.ckpt" >/dev/null
    gb=$(trainstep -q --gpus 2 -d "$IN/ids.tok" -n 3 --accum 2 --recompute none --dry-run "$IN/wide.ckpt" |
        awk '$1 == "total" { printf "%.9f", ($2 - 2^19) / 2^30 }')
    for queues in late early; do
        NIBBLE_EMULATE_QUEUES=$queues gpus 2 -v -n 3 --accum 2 -f -o some.ckpt "$IN/wide.ckpt" >/dev/null 2>said
        grep -q 'plan: .*, weights expanded' said
        cmp one.ckpt some.ckpt
        NIBBLE_EMULATE_QUEUES=$queues gpus 2 -v -n 3 --accum 2 --recompute none --memory-limit "$gb" -f -o some.ckpt \
            "$IN/wide.ckpt" >/dev/null 2>said
        grep 'plan: ' said | run ! grep expanded
        cmp one.ckpt some.ckpt
    done
}

# plan OPTION...: bytes that a rank of a step in FP8 needs
plan() {
    trainstep -q -d "$IN/ids.tok" -n 2 --accum 6 --compute fp8 --dry-run "$@" "$IN/wide.ckpt" | awk '$1 == "total" { print $2 }'
}

# bats test_tags=long
@test "FP8: ranks that keep weights packed end in the bytes of one that keeps E4M3" {
    emulated
    local queues limit options n
    for options in '' '--quant-from 2 --fp8-scales delayed'; do
        # shellcheck disable=SC2086  # options
        {
            alone -q -n 3 --accum 6 --compute fp8 $options -f -o one.ckpt "$IN/wide.ckpt" >/dev/null
            for n in 2 3; do
                limit=$(plan --gpus $n --recompute none $options | awk '{ printf "%.9f", ($1 - 2^19) / 2^30 }')
                for queues in late early; do
                    NIBBLE_EMULATE_QUEUES=$queues gpus $n -v -n 3 --accum 6 --compute fp8 --recompute none $options \
                        --memory-limit "$limit" -f -o some.ckpt "$IN/wide.ckpt" >/dev/null 2>said
                    has 'FP8 weights packed' <said
                    cmp one.ckpt some.ckpt
                done
            done
        }
    done
}

# bats test_tags=long
@test "few tokens are multiplied alike where weights are expanded and where they are not" {
    emulated
    # With less memory the weights are codes.
    local gb
    trainstep --device cuda -v -d "$IN/ids.tok" --lr 1e-2 -n 2 -o a.ckpt "$IN/wide.ckpt" >/dev/null 2>plan
    gb=$(sed -n 's/.*plan: \([0-9.]*\) GB.*weights expanded.*/\1/p' plan)
    [ -n "$gb" ]
    gb=$(awk -v gb="$gb" 'BEGIN { print gb - 0.0005 }')
    trainstep --device cuda -v -d "$IN/ids.tok" --lr 1e-2 -n 2 --memory-limit "$gb" --recompute none -o b.ckpt \
        "$IN/wide.ckpt" >/dev/null 2>plan
    run ! grep expanded plan
    grep -q 'plan: ' plan
    cmp a.ckpt b.ckpt
}

# bats test_tags=long
@test "saved on two, evaluated and resumed on one, and back; words and logs come once" {
    emulated
    cp "$IN/small.ckpt" one.ckpt
    alone -q -n 3 --accum 2 one.ckpt >/dev/null
    cp "$IN/small.ckpt" some.ckpt
    gpus 2 -n 1 --log log.jsonl --eval "$IN/held.tok" --memory-report m.json some.ckpt >out 2>err
    jsonl "[l['wait_ms'] > 0 for l in d if 'loss' in l]" <log.jsonl | has True
    json "d['Samples'][0]['DeviceUsedMiB'] > 0" <m.json | has True
    json "d['Samples'][0]['DeviceUsedMiB'] > 0" <m.rank1.json | has True
    grep -q '2 ranks, started by --gpus, on GPUs' err
    [ "$(grep -c 'a step has 2 passes from here on' err)" -eq 1 ]
    [ "$(grep -c 'evaluation loss' err)" -eq 1 ]
    [ "$(wc -l <out)" -eq 2 ]
    alone -q -n 1 some.ckpt >/dev/null
    gpus 2 -q -n 1 some.ckpt >/dev/null
    cmp one.ckpt some.ckpt
    # A rank without a sample sends its weights all the same.
    local n queues
    head -n 1 "$IN/held" | tokenize -q --input ids -o few.tok
    alone -q -n 1 --accum 6 --eval few.tok --log one.jsonl -f -o one.ckpt "$IN/wide.ckpt" >/dev/null
    for n in 2 3; do
        for queues in late early; do
            NIBBLE_EMULATE_QUEUES=$queues gpus $n -q -n 1 --accum 6 --eval few.tok --log some.jsonl -f -o some.ckpt \
                "$IN/wide.ckpt" >/dev/null
            cmp one.ckpt some.ckpt
            cmp <(jsonl "[l['eval_loss'] for l in d if 'eval_loss' in l]" <one.jsonl) \
                <(jsonl "[l['eval_loss'] for l in d[-1:]]" <some.jsonl)
        done
    done
}

# bats test_tags=long
@test "torchrun, also with an agent that has the port, mpirun and --rendezvous start them" {
    emulated
    alone -q -n 2 --accum 6 -o one.ckpt "$IN/small.ckpt" >/dev/null
    local t=(--device cuda -n 2 --accum 6 -f -o some.ckpt "$IN/small.ckpt")
    port=$(free_port)
    torch 3 -- "${t[@]}"
    [ "$ended" = "0 0 0 " ] || { cat said.* && false; }
    cmp one.ckpt some.ckpt
    grep -q '3 ranks, started by torchrun, on GPUs' said.0
    [ ! -s said.1 ]
    # Another program listens there, and says nothing.
    python3 -c "import socket, time
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True)
time.sleep(60)" >port 3>&- &
    local agent=$!
    until [ -s port ]; do sleep 0.1; done
    port=$(cat port)
    torch 2 -- --rank-timeout 1 "${t[@]}"
    [[ $ended != *0* ]] || { cat said.* && false; }
    grep -q "rank 0 cannot listen at port $port: .*; --rendezvous HOST:PORT names another" said.0
    grep -q "127.0.0.1:$port accepts connections, but has not answered as rank 0 does within 1 s" said.1
    torch 2 TORCHELASTIC_USE_AGENT_STORE=True -- "${t[@]}"
    [ "$ended" = "0 0 " ] || { cat said.* && false; }
    cmp one.ckpt some.ckpt
    torch 2 -- --rendezvous "127.0.0.1:$(free_port)" "${t[@]}"
    [ "$ended" = "0 0 " ] || { cat said.* && false; }
    cmp one.ckpt some.ckpt
    kill $agent
    if command -v mpirun >/dev/null; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        timeout 100 mpirun --quiet --oversubscribe --bind-to none -n 2 trainstep -d "$IN/ids.tok" --lr 1e-2 "${t[@]}" \
            </dev/null >/dev/null 2>err
        grep -q '2 ranks, started by mpirun, on GPUs' err
        cmp one.ckpt some.ckpt
    fi
    # As srun sets its variables; a name that means this machine is that of the first host.
    local i id=()
    for i in 0 1; do
        env SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_JOB_ID="$port" \
            SLURM_STEP_NODELIST="127.0.0.[1-2],other" timeout 100 trainstep -d "$IN/ids.tok" --lr 1e-2 "${t[@]}" \
            >/dev/null 2>said.$i </dev/null 3>&- &
        id+=($!)
    done
    wait "${id[0]}" || { cat said.0 && false; }
    wait "${id[1]}" || { cat said.1 && false; }
    grep -q '2 ranks, started by srun, on GPUs' said.0
    cmp one.ckpt some.ckpt
}

# bats test_tags=long
@test "ranks that do not come, differ or share a GPU are refused, and what is wrong is said" {
    emulated
    cp "$IN/small.ckpt" m.ckpt
    local t=(--device cuda --accum 2 m.ckpt)
    port=$(free_port)
    refuse -2 "2 of 3 ranks have not connected within 1 s (--rank-timeout): rank 1, 2" \
        env RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" trainstep --rank-timeout 1 -d "$IN/ids.tok" "${t[@]}"
    refuse -2 "rank 0 is not at 127.0.0.1:$port: no process has listened there for 1 s (--rank-timeout)" \
        env RANK=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" trainstep --rank-timeout 1 -d "$IN/ids.tok" "${t[@]}"
    torch 2 LOCAL_RANK=1 -- "${t[@]}"
    [ "$ended" = "2 2 " ]
    grep -q '^trainstep: rank 1: cuda:1 is the GPU of rank 0, too' said.1
    torch 2 -- --device cuda:2 "${t[@]:2}"
    [ "$ended" = "2 2 " ]
    grep -q '^trainstep: rank 1: cuda:2 is the GPU of rank 0, too' said.1
    refuse -2 "there is no GPU for it: this machine has 4" gpus 5 -q --accum 5 m.ckpt
    refuse -2 "none.tok: No such file" trainstep --gpus 2 -q -d none.tok --accum 2 m.ckpt
    NIBBLE_EXCHANGE=nccl NIBBLE_NCCL=/none refuse -2 "no NCCL, by which GPUs exchange: /none: " gpus 2 -q --accum 2 m.ckpt
    cmp "$IN/small.ckpt" m.ckpt
    NIBBLE_EXCHANGE=mccl refuse -2 "NIBBLE_EXCHANGE=\"mccl\": want copies or nccl" gpus 2 -q --accum 2 m.ckpt
    # What NCCL says is passed on.
    NIBBLE_EXCHANGE=nccl NIBBLE_EMULATE_NCCL_FAIL=9 run -2 gpus 2 -q --accum 2 m.ckpt
    [[ $output == *"NCCL: an exchange: unhandled system error: an emulated cable is loose"* ]]
    # Two kinds of GPUs: only with --fast.
    local n
    two() {
        local i id=() e=()
        for i in 0 1; do
            env RANK=$i LOCAL_RANK=$i WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" NIBBLE_EMULATE_NAME=kind$i \
                timeout 100 trainstep -d "$IN/ids.tok" "$@" >out.$i 2>said.$i </dev/null 3>&- &
            id+=($!)
        done
        for i in 0 1; do
            n=0
            wait "${id[i]}" || n=$?
            e+=("$n")
        done
        ended="${e[*]}"
    }
    two "${t[@]}"
    [ "$ended" = "2 2" ]
    grep -q 'rank 1: the kind of GPU .*: kind1 here, rank 0 has kind0' said.1
    two --fast "${t[@]}"
    [ "$ended" = "0 0" ] || { cat said.* && false; }
}

@test "a rank that fails before it can know of GPUs says so, and ends all" {
    command -v mpirun >/dev/null || skip "no mpirun"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    cp "$IN/small.ckpt" m.ckpt
    local t=(trainstep --device cuda -d "$IN/ids.tok" --accum 2)
    run ! timeout 200 mpirun --quiet --oversubscribe --bind-to none -n 1 "${t[@]}" m.ckpt : \
        -n 1 "${t[@]}" --accum none m.ckpt </dev/null
    [ "$status" -ne 124 ]
    [ "$(grep -c 'rank 1: --accum: none' <<<"$output")" -eq 1 ]
}

# bats test_tags=long
@test "scores of two and three emulated GPUs are those of one, without NCCL" {
    emulated
    export NIBBLE_NCCL=/none
    local o
    datpack -q --init 5 --config "$IN/config.json" -o m.dat
    datpack -q --init 6 --config "$IN/config.json" -o other.dat
    for o in "" "--kl-model other.dat"; do
        # shellcheck disable=SC2086  # words
        {
            generate -q --device cuda --score "$IN/ids.tok" $o m.dat >one
            [ "$(wc -l <one)" -eq 2 ]
            generate -q --gpus 2 --score "$IN/ids.tok" $o m.dat >some
            cmp one some
            generate -q --gpus 3 --score "$IN/ids.tok" $o m.dat >some
            cmp one some
        }
    done
}

# begin OPTION...: many steps on three; the parent's id is in $pid, those of the ranks in $rank.
begin() {
    local i
    cp "$IN/small.ckpt" m.ckpt
    trainstep --gpus 3 -q -d "$IN/ids.tok" --lr 1e-4 --accum 3 -n 100000000 --save-every 2 "$@" m.ckpt \
        </dev/null >out 2>err 3>&- &
    pid=$!
    for ((i = 0; i < 6000; i++)); do
        sleep 0.05
        if [ "$(wc -l <out)" -gt 4 ]; then
            break
        fi
    done
    [ "$(wc -l <out)" -gt 4 ] || { cat err && false; }
    # In the order in which they were started.
    mapfile -t rank < <(children "$pid")
    [ "${#rank[@]}" -eq 3 ] || { cat err && false; }
    # Once they have met, no process listens.
    run ! grep socket <(find /proc/$pid/fd -printf '%l\n')
}

# over: the status is in $ended; long before --rank-timeout nobody is left.
over() {
    local k began=$SECONDS
    ended=0
    wait $pid || ended=$?
    [ $((SECONDS - began)) -le 300 ]
    for k in "${rank[@]}"; do
        [ ! -e "/proc/$k" ] || grep '^State:.Z' "/proc/$k/status"
    done
    datcat --verify m.ckpt >/dev/null
    [ "$(datcat --meta m.ckpt | json "d['meta']['state']['step']")" -ge 2 ]
}

# bats test_tags=long
@test "a rank that is killed or hangs ends all, and is named; the checkpoint is the last one" {
    emulated
    local k
    for k in 0 2; do
        NIBBLE_EXCHANGE=$([ $k = 0 ] && echo nccl) begin
        kill -KILL "${rank[k]}"
        over
        [ "$ended" -eq 2 ]
        [ "$(grep -c "rank $k has ended without a word" err)" -eq 1 ] || { cat err && false; }
        [ "$(wc -l <err)" -eq 1 ]
    done
    for k in 0 1; do
        NIBBLE_EXCHANGE=$([ $k = 0 ] && echo nccl) begin --rank-timeout 5
        kill -STOP "${rank[k]}"
        over
        [ "$ended" -eq 2 ]
        [ "$(grep -c "rank $k hangs: nothing has come from it for 5 s (--rank-timeout)" err)" -eq 1 ] || { cat err && false; }
        [ "$(wc -l <err)" -eq 1 ]
    done
}

# bats test_tags=long
@test "SIGTERM to any rank, or to the one that started them: all save once, 75" {
    emulated
    local to
    for to in 1 parent; do
        begin
        if [ "$to" = parent ]; then
            kill -TERM "$pid"
        else
            kill -TERM "${rank[to]}"
        fi
        over
        [ "$ended" -eq 75 ] || { echo "status $ended" && cat err && false; }
        [ "$(datcat --meta m.ckpt | json "d['meta']['state']['step']")" -eq "$(tail -n 1 out | cut -f 1)" ]
    done
}

# bats test_tags=long
@test "a rank that is killed while all save, or has no space: the checkpoint is the last one, and no other file is left" {
    emulated
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    local k rule words t=(--device cuda -q -d "$IN/ids.tok" --lr 1e-2 --accum 2)
    cp "$IN/wide.ckpt" one.ckpt
    alone -q --accum 2 one.ckpt >/dev/null
    while read -r k rule words; do
        local i id=() n
        cp "$IN/wide.ckpt" m.ckpt
        port=$(free_port)
        for i in 0 1; do
            n=
            [ $i -ne "$k" ] || n=$FAILIO_SO
            env RANK=$i LOCAL_RANK=$i WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" LD_PRELOAD="$n" \
                FAILIO="$rule" timeout 100 trainstep "${t[@]}" -n 9 --save-every 1 m.ckpt >out.$i 2>said.$i </dev/null 3>&- &
            id+=($!)
        done
        n=0
        wait "${id[1 - k]}" || n=$?
        [ "$n" -eq 2 ]
        wait "${id[k]}" || true
        [ "$(cat said.0 said.1)" = "trainstep: $words" ]
        cmp one.ckpt m.ckpt
        [ "$(find . -name '.m.ckpt*')" = "" ] || { find . && false; }
    done <<'END'
1 fsync:2:kill=9:m.ckpt rank 1 has ended without a word: it was killed, or its host is gone
1 fsync:2:ENOSPC:m.ckpt rank 1: m.ckpt: fsync: No space left on device
0 fsync:2:ENOSPC:m.ckpt m.ckpt: fsync: No space left on device
END
}

# bats test_tags=long
@test "a second SIGTERM to the one that started them ends them though one hangs" {
    emulated
    begin
    kill -STOP "${rank[1]}"
    kill -TERM "$pid"
    sleep 1
    kill -0 "$pid" # it waits for the step
    kill -TERM "$pid"
    over
    [ "$ended" -eq 75 ] || { echo "status $ended" && cat err && false; }
}

# connect PORT COUNT HOW: makes COUNT connections that say nothing, the beginning of a hello, or that of another run; the file
# ../connected says when they are there.  The process is $others; with HOW flood it goes on to connect for ever.
connect() {
    python3 - "$@" 3>&- <<'PY' &
import socket, sys, time
port, count, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
job = b"torchrun another run".ljust(64, b"\0")
hello = b"nibble 1" + b"".join(n.to_bytes(4, sys.byteorder) for n in (1, 3, 0)) + job
words = {"silent": lambda n: hello[:n % 9], "other": lambda n: hello, "flood": lambda n: b""}[how]
ends = []
end = time.monotonic() + 90
open("../connecting", "w").close()
while time.monotonic() < end and (len(ends) < count or how == "flood"):
    try:
        ends.append(socket.create_connection(("127.0.0.1", port)))
        ends[-1].send(words(len(ends)))
    except OSError:
        time.sleep(0.05)
    if len(ends) >= count:
        open("../connected", "w").close()
    if len(ends) > 400:
        ends.pop(0).close()
        time.sleep(0.001)
time.sleep(60)
PY
    others=$!
}

@test "who connects and says nothing, not all of it, or another name, keeps no rank from meeting" {
    # There is no GPU here: that is what they say when they have met.
    local i n id how others
    for how in silent other flood; do
        rm -f ../connected
        id=()
        port=$(free_port)
        connect "$port" 200 $how
        for i in 0 1 2; do
            env RANK=$i LOCAL_RANK=$i WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" NIBBLE_CUDA=/none \
                timeout 60 trainstep -q --device cuda -d "$IN/ids.tok" --accum 3 -o x.ckpt "$IN/small.ckpt" \
                >out.$i 2>said.$i </dev/null 3>&- &
            id+=($!)
            until [ "$i" -gt 0 ] || [ -e ../connected ]; do sleep 0.1; done
        done
        for i in 0 1 2; do
            n=0
            wait "${id[i]}" || n=$?
            [ "$n" -eq 2 ] || { cat said.* && false; }
        done
        kill "$others"
        [ -s said.0 ]
        run ! grep 'have not connected' said.0
        [ ! -s said.1 ]
    done
}

# lonely LIMIT: rank 0 of two, which may open LIMIT files, ends since no rank comes, and counts the connections of
# "connect".  If none of them came in that time, it gets more.
lonely() {
    local seconds
    for seconds in 1 10 50; do
        run -2 --separate-stderr bash -c "ulimit -n $1; exec \"\$@\"" bash env RANK=0 WORLD_SIZE=2 \
            MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" trainstep --device cuda --rank-timeout $seconds -d "$IN/ids.tok" \
            "$IN/small.ckpt"
        [[ $stderr == *"1 of 2 ranks have not connected within $seconds s (--rank-timeout): rank 1"* ]] ||
            { echo "$stderr" && false; }
        if [[ $stderr =~ "rank 1; "[1-9][0-9]*" other connections were closed, which were no rank of this run"$ ]]; then
            return 0
        fi
    done
    echo "$stderr" && false
}

@test "rank 0 names the ranks that did not come, and counts the connections that were none" {
    local others limit
    # With 16 it has fewer files than there are connections that say nothing.
    for limit in 256 16; do
        rm -f ../connecting
        port=$(free_port)
        connect "$port" 100 silent
        until [ -e ../connecting ]; do sleep 0.1; done
        lonely $limit
        kill "$others"
    done
}

# listener HOW: a program that has a port, which is set; it says nothing, closes, talks or does not accept.  It is $others.
listener() {
    rm -f port
    python3 - "$1" 3>&- <<'PY' &
import os, socket, sys, time
how = sys.argv[1]
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(0 if how == "full" else 100)
ends = []
for _ in range(4 if how == "full" else 0):
    ends.append(socket.socket())
    ends[-1].setblocking(False)
    ends[-1].connect_ex(s.getsockname())
with open("port.new", "w") as f:
    print(s.getsockname()[1], file=f)
os.rename("port.new", "port")
if how == "full":
    time.sleep(60)
s.settimeout(60)
while True:
    ends.append(s.accept()[0])
    if how == "talks":
        ends[-1].send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    if how == "closes":
        ends.pop().close()
PY
    others=$!
    until [ -s port ]; do sleep 0.1; done
    port=$(cat port)
}

@test "a rank at whose port another program listens waits for --rank-timeout, and says so" {
    local how seconds words others
    while read -r how seconds words; do
        listener "$how"
        refuse -2 "rank 1: * ${words/PORT/$port}" env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
            trainstep --device cuda --rank-timeout "$seconds" -d "$IN/ids.tok" "$IN/small.ckpt"
        kill "$others"
    done <<'END'
silent 1 127.0.0.1:PORT accepts connections, but has not answered as rank 0 does within 1 s (--rank-timeout)
closes 1 127.0.0.1:PORT accepts connections, but has not answered as rank 0 does within 1 s (--rank-timeout)
full 1 rank 0 is not at 127.0.0.1:PORT: no process has listened there for 1 s (--rank-timeout)
talks 600 127.0.0.1:PORT answers, but not as rank 0 does: another program has that port
END
}

# pose RANK PORT WHAT NUMBER...: another program that takes the place of that rank of two, and sends a vote, as WHAT is pulse
# a message to the thread that watches, as it is facts so many bytes to compare; then it listens.  ../posed says that it has done so.  It is $others.
pose() {
    rm -f ../posed
    python3 - "$@" 3>&- <<'PY' &
import select, socket, struct, sys, time
rank, port, what, numbers = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(a) for a in sys.argv[4:]]
HELLO, MET = 8 + 3 * 4 + 64, struct.pack("=8sI", b"nibble 1", 1)
def whole(s, n):
    got = b""
    while len(got) < n:
        more = s.recv(n - len(got))
        if not more:
            sys.exit("it has closed")
        got += more
    return got
def call(which):
    while True:
        try:
            s = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.05)
    s.sendall(struct.pack("=8sIII64s", b"nibble 1", rank, 2, which, b"torchrun  "))
    assert whole(s, len(MET)) == MET
    return s
def answer(listening):
    s = listening.accept()[0]
    which = struct.unpack("=8sIII64s", whole(s, HELLO))[3]
    s.sendall(MET)
    return which, s
if rank:
    ends = [call(0), call(1)]
else:
    listening = socket.create_server(("127.0.0.1", port))
    ends = [s for _, s in sorted([answer(listening), answer(listening)], key=lambda e: e[0])]
def vote():
    ends[0].sendall(struct.pack("=ii", 0, 0) + whole(ends[0], 8))
if what == "facts":
    # As generate --score exchanges before: a vote, GPUs, two votes.
    vote()
    ends[0].sendall(bytes(16) + whole(ends[0], 16))
    vote()
    vote()
    ends[0].sendall(struct.pack("=Q", numbers[0]) + b"version"[:numbers[0]])
    open("../posed", "w").close()
    vote()  # of a failure
elif what == "vote":
    if rank:
        ends[0].sendall(struct.pack("=ii", *numbers))
    else:
        ends[0].sendall(struct.pack("=ii", *numbers) + whole(ends[0], 8))
else:
    ends[1].sendall(struct.pack("=IiQ", *numbers, 0))
open("../posed", "w").close()
end = time.monotonic() + 60
while ends and time.monotonic() < end:
    for s in select.select(ends, [], [], 1)[0]:
        if not s.recv(1000):
            ends.remove(s)
PY
    others=$!
}

@test "what no rank sends is refused in words, whichever rank it comes from, and no exit status comes from there" {
    local others rank what a b
    while read -r rank what a b; do
        port=$(free_port)
        pose "$rank" "$port" "$what" "$a" "$b"
        refuse -2 "rank $rank has sent * $a, * $b: no rank sends that, so another program has connected as rank $rank" \
            env RANK=$((1 - rank)) WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" NIBBLE_CUDA=/none \
            trainstep -q --device cuda -d "$IN/ids.tok" --accum 2 "$IN/small.ckpt"
        wait "$others" || true # it ends as its connections do
        [ -e ../posed ]
    done <<'END'
1 vote 255 0
1 vote -1 15
1 vote 0 9999
0 vote 53 0
1 pulse 2 53
1 pulse 2 0
0 pulse 2 255
0 pulse 99 0
END
}

# bats test_tags=long
@test "facts of rank 0 that have no end, or are more than a rank sends, are refused" {
    emulated
    local others n words
    datpack -q --init 5 --config "$IN/config.json" -o m.dat
    while read -r n words; do
        port=$(free_port)
        pose 0 "$port" facts "$n"
        refuse -2 "$words" env RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
            generate -q --device cuda --score "$IN/ids.tok" m.dat
        wait "$others" || true # it ends as its connections do
        [ -e ../posed ]
    done <<'END'
18446744073709551615 rank 0 has sent 18446744073709551615 bytes of facts to compare: no rank sends that
1048577 rank 0 has sent 1048577 bytes of facts to compare: no rank sends that
7 version: * here, rank 0 has : ranks must be alike
0 version: * here, rank 0 has : ranks must be alike
END
}

# children PID: the processes that it has started, without pgrep, which a bare machine lacks.
children() {
    # A process may end before cat comes to it.
    (cat /proc/[0-9]*/stat 2>/dev/null || true) | sed -n "s/^\([0-9]*\) (.*) [A-Za-z] $1 .*/\1/p" | sort -n
}

@test "--gpus: another process of this machine cannot pose as a rank, since the name of the run is random" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    local started pid i rank=() n=0
    # Rank 1 stops before it connects, as it opens what takes its output.
    NIBBLE_CUDA=/none LD_PRELOAD=$FAILIO_SO FAILIO=open:1:stop:/dev/null timeout 60 trainstep --gpus 2 -q -d "$IN/ids.tok" \
        --accum 2 "$IN/small.ckpt" >out 2>said </dev/null 3>&- &
    started=$!
    for ((i = 0; i < 1200 && ${#rank[@]} < 2; i++)); do
        sleep 0.05
        pid=$(children $started)
        [ -n "$pid" ] || continue
        mapfile -t rank < <(children "$pid")
    done
    [ "${#rank[@]}" -eq 2 ] || { cat said && false; }
    for ((i = 0; i < 1200; i++)); do
        ! grep -q '^State:.T' "/proc/${rank[1]}/status" || break
        sleep 0.05
    done
    grep '^State:.T' "/proc/${rank[1]}/status"
    run -0 python3 - "${rank[0]}" <<'PY'
import os, re, socket, struct, sys
inodes = set()
for fd in os.listdir(f"/proc/{sys.argv[1]}/fd"):
    inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{sys.argv[1]}/fd/{fd}")))
rows = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
port, = [int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes]
for job in b"", b"--gpus  ", b"0" * 62:
    for which in 0, 1:
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(struct.pack("=8sIII64s", b"nibble 1", 1, 2, which, job))
        print(*struct.unpack("=8sI", s.recv(12)))
        s.close()
PY
    kill -CONT "${rank[1]}"
    [ "$(sort <<<"$output" | uniq -c | tr -s ' ')" = " 6 b'nibble 1' 2" ] || { echo "$output" && false; }
    wait $started || n=$?
    [ "$n" -eq 2 ]
    [ -s said ]
    run ! grep -E 'connect|already|another' said
}

@test "names of jobs that differ at the end only are told apart, however long they are" {
    local long n=0 others
    long=$(printf 'x%.0s' {1..100})
    port=$(free_port)
    env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" TORCHELASTIC_RUN_ID="$long" TORCHELASTIC_RESTART_COUNT=1 \
        NIBBLE_CUDA=/none timeout 60 trainstep -q --device cuda -d "$IN/ids.tok" --accum 2 "$IN/small.ckpt" \
        >out 2>said </dev/null 3>&- &
    others=$!
    refuse -2 "127.0.0.1:$port is rank 0 of another run" env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        TORCHELASTIC_RUN_ID="$long" TORCHELASTIC_RESTART_COUNT=0 NIBBLE_CUDA=/none \
        trainstep -q --device cuda -d "$IN/ids.tok" --accum 2 "$IN/small.ckpt"
    # The rank of that run is not kept out.
    run -2 env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" TORCHELASTIC_RUN_ID="$long" \
        TORCHELASTIC_RESTART_COUNT=1 NIBBLE_CUDA=/none timeout 60 trainstep -q --device cuda -d "$IN/ids.tok" --accum 2 "$IN/small.ckpt"
    [ -z "$output" ]
    wait $others || n=$?
    [ "$n" -eq 2 ]
    [ -s said ]
}

@test "--gpus: ranks that a library ends by a status of its own end the run in words" {
    command -v "${CC:-gcc}" >/dev/null || skip "no compiler"
    printf '#include <unistd.h>\n__attribute__((constructor)) static void end(void) { _exit(53); }\n' |
        ${CC:-gcc} -shared -fPIC -x c -o ends.so -
    NIBBLE_CUDA=$PWD/ends.so run -2 --separate-stderr timeout 60 trainstep --gpus 2 -q -d "$IN/ids.tok" --accum 2 \
        -o x.ckpt "$IN/small.ckpt"
    [[ $stderr == *"has ended with exit status 53, which no rank uses"* ]]
    [ ! -e x.ckpt ]
}

@test "a plan for more GPUs than there are is that of a rank, which holds its part" {
    local n part whole
    part() { awk -F'\t' -v p="$2" '$1 == p { print $2; exit }' "$1"; }
    for n in 1 4; do
        trainstep -q --gpus $n --dry-run --accum 4 -d "$IN/ids.tok" "$IN/wide.ckpt" >plan.$n
        [ "$(grep -c '^total' plan.$n)" -eq 1 ]
    done
    whole=$(part plan.1 moments)
    part=$(part plan.4 moments)
    # Parts are of 16384 elements and more, so they need not be equal.
    [ "$part" -gt $((whole / 4 / 2)) ]
    [ "$part" -lt $((whole * 5 / 4 / 4)) ]
    [ "$(part plan.4 gradients)" -lt "$(part plan.1 gradients)" ]
    [ "$(part plan.4 ranks)" -eq 4 ]
    [ -z "$(part plan.1 sent)" ]
    # The largest of many is found without planning each.
    within 3 trainstep -q --gpus 256 --dry-run --accum 256 -d "$IN/ids.tok" "$IN/wide.ckpt" >plan.256
    [ "$(part plan.256 ranks)" -eq 256 ]
    [ "$(part plan.256 moments)" -lt "$(part plan.4 moments)" ]
    # What a rank sends: of its pass three quarters of gradients, of the step as much of weights.
    python3 - "$(part plan.4 sent)" "$IN/wide.json" <<'PY'
import json, sys
c = json.load(open(sys.argv[2]))
h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
q, kv = d * c["num_attention_heads"], d * c["num_key_value_heads"]
projections = c["num_hidden_layers"] * (2 * h * q + 2 * h * kv + 3 * h * f)
others = c["vocab_size"] * h
want = 3 / 4 * (2 * projections + 4 * others + 9 / 16 * projections + 2 * others)
assert 0.8 * want < int(sys.argv[1]) < 1.2 * want, (sys.argv[1], want)
PY
}

@test "--gpus goes with no other launcher, device or place; ranks that do not fit are refused" {
    cp "$IN/small.ckpt" m.ckpt
    local t=(trainstep -q -d "$IN/ids.tok")
    refuse "--gpus: takes GPUs from cuda:0 on: expected no --device cuda:1" "${t[@]}" --gpus 2 --device cuda:1 m.ckpt
    refuse "--gpus: takes GPUs from cuda:0 on: expected no --device cpu" "${t[@]}" --gpus 2 --device cpu m.ckpt
    refuse "--gpus: torchrun has started this process as rank 1 of 4: expected one of the two" \
        env RANK=1 WORLD_SIZE=4 MASTER_ADDR=x "${t[@]}" --gpus 2 m.ckpt
    refuse "--gpus: its processes find each other: expected no --rendezvous" "${t[@]}" --gpus 2 --rendezvous a:1 m.ckpt
    refuse "--gpus: 0" "${t[@]}" --gpus 0 m.ckpt
    refuse "--accum: 3 passes of a step cannot be divided among 2 ranks" "${t[@]}" --gpus 2 --dry-run --accum 3 m.ckpt
    refuse "--gpus: goes with --score" generate --gpus 2 -p a m.ckpt
    refuse "--rendezvous: goes with --score" generate --rendezvous a:1 -p a m.ckpt
    refuse "--rank-timeout: goes with --score" generate --rank-timeout 1 -p a m.ckpt
    refuse "1 of 2 ranks have not connected within 1 s (--rank-timeout): rank 1" env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT="$(free_port)" generate --device cuda --rank-timeout 1 --score "$IN/ids.tok" m.ckpt
    local place
    for place in host :1 a: a:b a:0 a:65536 '[]:7'; do
        refuse "--rendezvous: $place: expected HOST:PORT of rank 0" \
            env RANK=0 WORLD_SIZE=2 MASTER_ADDR=x "${t[@]}" --device cuda --rendezvous "$place" m.ckpt
        refuse "--rendezvous: $place: expected HOST:PORT of rank 0" \
            "${t[@]}" --device cpu --rendezvous "$place" --dry-run m.ckpt
    done
    refuse "mpiexec does not say at which host rank 0 is: expected --rendezvous HOST:PORT" \
        env PMI_RANK=0 PMI_SIZE=2 "${t[@]}" --device cuda m.ckpt
    # Where the ends of processes are ignored, as some supervisors leave it, they are noticed all the same.
    run -2 python3 -c "import signal, subprocess, sys
p = subprocess.Popen(sys.argv[1:], preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
sys.exit(p.wait(120))" "${t[@]}" --gpus 2 none.ckpt
    [[ $output == *"none.ckpt: No such file"* || $output == *"--gpus: no NVIDIA GPU"* ]]
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p | has libcuda.so.1 ||
        refuse "--gpus: no NVIDIA GPU or driver here" "${t[@]}" --gpus 4 --accum 3 m.ckpt
    cmp "$IN/small.ckpt" m.ckpt
}
