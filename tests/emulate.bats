#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154,SC2030,SC2031  # bin, root: of common.bash; each test exports its own
# shellcheck shell=bats
# The CUDA backend's own kernels, run on the CPU by tests/emulate: no GPU is used, and no
# time means anything.  Part of "make check-long"; "make check-emulated" runs more cases.

# bats file_tags=slow,native,nosan,long

load common

setup_file() {
    CHECK=$HERE/emulate/check.sh
    export CHECK
}

setup() {
    [ -e "$BUILD/emulate/libnibble-cuda.so" ] || skip "no emulation: there is no C++ compiler"
}

# broken EDIT: a copy of quant.cu that perl has changed, in place of the one there is.
broken() {
    local to=$BATS_TEST_TMPDIR
    cd "$root" || return
    mkdir -p "$to/kernels"
    perl -0pe "$1" kernels/cuda/quant.cu >"$to/quant.cu"
    run ! cmp -s kernels/cuda/quant.cu "$to/quant.cu"
    python3 -B tests/emulate/translate.py "$to/quant.cu" >"$to/quant.cpp"
    "${CXX:-g++}" -std=c++17 -Itests/emulate/include -I. -D_GNU_SOURCE -D__CUDACC__ -w -fPIC \
        -ffp-contract=off -fno-strict-aliasing -march=native -c -o "$to/quant.o" "$to/quant.cpp"
    find "$BUILD/emulate" -name '*.o' ! -name driver.o ! -path "$BUILD/emulate/quant.o" \
        -exec "${CXX:-g++}" -shared -o "$to/broken.so" "$to/quant.o" {} +
    export NIBBLE_CUDA=$to/broken.so LD_LIBRARY_PATH=$BUILD/emulate
}

@test "every operation is the CPU's, by the kernels themselves" {
    run -0 "$CHECK" operations
    [[ $output == *'no GPU is used'* ]]
}

@test "no order of threads and blocks, and no smaller device, changes that" {
    run -0 "$CHECK" others
}

@test "steps, answers and quantized bytes of the programs, and what a failure does to them" {
    NIBBLE_EMULATE_SM=120 run -0 "$CHECK" programs
}

@test "the memory report of a GPU has its figures, and says whether it shares the machine's memory" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    datpack -q --init 3 --config config.json --to ckpt -o m.ckpt
    printf '1 2 3 4\n5 6 7 8 9\n' | tokenize -q --input ids -o d.tok
    local set
    for set in '' 1; do
        NIBBLE_EMULATE_INTEGRATED=$set
        [ -z "$set" ] || export NIBBLE_EMULATE_INTEGRATED
        trainstep -q --device cuda -d d.tok -n 2 --memory-report m.json m.ckpt >/dev/null
        python3 -c "import json
m = json.load(open('m.json'))
assert m['Device'] == 'cuda' and m['UnifiedMemory'] is bool('$set'), m
for s in m['Samples']:
    # Of 8 GB; what others take, and the driver, is none here.
    assert 0 < s['DeviceUsedMiB'] <= s['DevicePeakMiB'] < 1024, s
    assert s['DeviceUsedMiB'] <= s['PidMemoryMiB'] <= s['DeviceUsedMiB'] + s['DeviceDriverMiB'] + 1, s
    assert abs(s['TotalMemoryMiB'] - s['DeviceUsedMiB']) <= 2, s
    assert s['HostRssMiB'] > 0
assert any(s['HostRssMiB'] != s['PidMemoryMiB'] for s in m['Samples'])"
    done
}

@test "steps before --quant-from are those of --quant none, and cut anywhere the same bytes" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate NIBBLE_EMULATE_SM=120
    cd "$BATS_TEST_TMPDIR"
    # Native products take multiples of 128.
    sed 's/"hidden_size": [0-9]*/"hidden_size": 128/; s/"intermediate_size": [0-9]*/"intermediate_size": 128/
        s/"num_attention_heads": [0-9]*/"num_attention_heads": 4/; s/"head_dim": [0-9]*/"head_dim": 64/
        s/"num_key_value_heads": [0-9]*/"num_key_value_heads": 2/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    printf '1 2 3 4 5\n5 6 7 8 9\n3 2 1 0\n' | tokenize -q --input ids -o d.tok
    datpack -q --init 3 --config config.json --to ckpt --quant none -o none.ckpt
    datpack -q --init 3 --config config.json --to ckpt --quant sweep -o sweep.ckpt
    losses() { awk -F '\t' 'NR > 1 { print $1, $2, $5 }'; }
    steps() { trainstep -q --device cuda -d d.tok --batch 2 --lr 1e-2 "$@"; }
    local options k
    for options in '--compute f32' '--compute bf16' '--compute bf16 --clip-mode prev --activations nvfp4 --path dequant' \
        '--compute bf16 --activations nvfp4 --path native'; do
        # shellcheck disable=SC2086
        {
            steps $options --quant-from 3 -n 4 -f -o a.ckpt sweep.ckpt | losses >from
            steps ${options%--activations*} -n 4 -f -o n.ckpt none.ckpt | losses >none
            [ "$(wc -l <from)" -eq 4 ]
            cmp <(head -n 2 from) <(head -n 2 none)
            run -1 cmp -s from none
            for k in 1 2 3; do
                steps $options --quant-from 3 -n $k -f -o b.ckpt sweep.ckpt >/dev/null
                steps $options --until 4 b.ckpt >/dev/null
                cmp a.ckpt b.ckpt
            done
        }
    done
}

@test "products of FP8: scales of either kind, cut anywhere the same bytes; a chip without them is named" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    printf '1 2 3 4 5\n5 6 7 8 9\n3 2 1 0\n' | tokenize -q --input ids -o d.tok
    datpack -q --init 3 --config config.json --to ckpt --quant sweep -o m.ckpt
    steps() { trainstep -q --device cuda --compute fp8 -d d.tok --batch 2 --lr 1e-2 "$@"; }
    local scales options k
    for scales in current delayed; do
        for options in '' '--recompute block --clip-mode prev' '--accum 2'; do
            # shellcheck disable=SC2086
            {
                steps --fp8-scales $scales $options -n 3 -f -o a.ckpt m.ckpt >/dev/null
                for k in 1 2; do
                    steps --fp8-scales $scales $options -n $k -f -o b.ckpt m.ckpt >/dev/null
                    steps $options --until 3 b.ckpt >/dev/null
                    cmp a.ckpt b.ckpt
                done
            }
        done
    done
    # Weights that are no numbers of E4M3 are as many on both.
    for k in cpu cuda; do
        trainstep --device $k --compute fp8 -d d.tok -f -o b.ckpt m.ckpt 2>&1 >/dev/null |
            sed -n 's/.*: \([0-9]* of [0-9]*\) weights .*/\1/p' >"rounded.$k"
    done
    [ -s rounded.cpu ]
    cmp rounded.cpu rounded.cuda
    NIBBLE_EMULATE_SM=80 run -2 --separate-stderr steps m.ckpt
    [[ $stderr == *'compute capability 8.0; 9.0 or more is needed'* ]]
    NIBBLE_EMULATE_SM=80 run -2 --separate-stderr generate -q --device cuda --compute fp8 --ids -p '1 2' m.ckpt
    [[ $stderr == *'compute capability 8.0; 9.0 or more is needed'* ]]
}

@test "products of FP8: where memory is short weights stay packed, with the same bytes" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    sed 's/"hidden_size": [0-9]*/"hidden_size": 256/; s/"intermediate_size": [0-9]*/"intermediate_size": 512/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    printf '1 2 3 4 5\n5 6 7 8 9\n3 2 1 0\n' | tokenize -q --input ids -o d.tok
    steps() { trainstep --device cuda --compute fp8 -d d.tok --batch 2 --lr 1e-2 --recompute none "$@"; }
    local case quant options limit
    # With a tensor scale for q, k and v, and for gate and up; with one for each.
    for case in 'sweep --quant-from 2' 'max --fp8-scales delayed --clip-mode prev' 'max --recompute block'; do
        read -r quant options <<<"$case"
        datpack -q -f --init 3 --config config.json --to ckpt --quant "$quant" -o m.ckpt
        # shellcheck disable=SC2086
        {
            steps -q $options -n 3 -f -o kept.ckpt m.ckpt >/dev/null
            limit=$(steps -q $options -n 3 --dry-run m.ckpt |
                awk '$1 == "total" { printf "%.9f", ($2 - 2^19) / 2^30 }')
            steps -v $options -n 3 --memory-limit "$limit" -f -o packed.ckpt m.ckpt >/dev/null 2>plan
        }
        has 'FP8 weights packed' <plan
        cmp kept.ckpt packed.ckpt
    done
}

# Steps that the device is given ahead change no answer, and fail as others do.
answers_ahead() { # ids of the vocabulary
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR" || return
    sed 's/"vocab_size": [0-9]*/"vocab_size": '"$1"'/
         s/"hidden_size": [0-9]*/"hidden_size": 256/; s/"intermediate_size": [0-9]*/"intermediate_size": 768/
         s/"head_dim": [0-9]*/"head_dim": 128/; s/"num_key_value_heads": [0-9]*/"num_key_value_heads": 4/
         s/"max_position_embeddings": [0-9]*/"max_position_embeddings": 600/
         s/"initializer_range": [0-9.]*/"initializer_range": 0.3/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt --quant max -o m.ckpt
    datpack -q --quant max --to dat --dtype nvfp4 --config config.json -o m.dat m.ckpt
    # The first answer goes past the 256 tokens of a recording, and ends with its cache full.
    {
        awk 'BEGIN { for (i = 0; i < 248; i++) printf "%d ", (i * i + 7) % 97; print "" }'
        printf '5 6 7\n9 8 7 6 5 4\n5 6 7\n'
    } >prompts
    answers() { generate -q --device cuda --config config.json --ids --ignore-eos -n 20 "$@" m.dat <prompts; }
    # Steps of several prompts are never given ahead.
    answers --batch 4 >want
    [ "$(awk '{ print NF }' want | sort -u)" = 20 ]
    [ "$(sort -u want | wc -l)" = 3 ]
    answers | cmp - want
    local queues n
    for queues in late early; do
        NIBBLE_EMULATE_QUEUES=$queues answers | cmp - want
    done
    # An answer that ends by itself leaves a step that is not asked for.
    n=$(sed -n 2p want | cut -d ' ' -f 5)
    sed -i "s/\"eos_token_id\": 2/\"eos_token_id\": $n/" config.json
    ended() { generate -q --device cuda --config config.json --ids -n 20 "$@" m.dat <prompts; }
    ended --batch 4 >want.ended
    [ "$(sed -n 2p want.ended | wc -w)" -lt 20 ]
    ended | cmp - want.ended
    for n in 12 30; do
        NIBBLE_FAIL_WAIT=$n run -2 --separate-stderr answers
        [[ $stderr == *'a step: '* ]]
    done
    # Chosen at random, as another launch of the same operation.
    answers --temp 0.8 --seed 5 --batch 4 >want.chosen
    answers --temp 0.8 --seed 5 | cmp - want.chosen
    run -1 cmp -s want want.chosen
    NIBBLE_CUDA_TIMES=1 answers 2>spent >/dev/null
    grep -q 'all layers' spent
    largest=$(awk '/: argmax/ { print $4 }' spent) # launches of its own
}

@test "answers: steps of one launch for all layers that are given ahead" {
    answers_ahead 97
    [ "$largest" -gt 80 ]
}

@test "answers: steps of one launch for all of a token that are given ahead" {
    answers_ahead 112
    [ "$largest" -lt 20 ]
}

@test "answers: short prompts are computed together, which -v says, with the bytes that they have alone" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    sed 's/"head_dim": [0-9]*/"head_dim": 64/; s/"hidden_size": [0-9]*/"hidden_size": 128/
         s/"max_position_embeddings": [0-9]*/"max_position_embeddings": 600/
         s/"initializer_range": [0-9.]*/"initializer_range": 0.3/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt --quant max -o m.ckpt
    datpack -q --quant max --to dat --dtype nvfp4 --config config.json -o m.dat m.ckpt
    # Of 1 to 14 tokens; one that has too many to be computed with others.
    awk 'BEGIN {
        for (i = 1; i <= 21; i++) {
            n = i == 11 ? 70 : i * 5 % 14 + 1
            for (k = 0; k < n; k++) printf "%d ", (i * 7 + k * 5) % 97
            print ""
        }
    }' >prompts
    answers() {
        generate -v --device cuda --config config.json --ids --ignore-eos -n 4 "$@" m.dat <prompts 2>words |
            sed 's/"timing".*//'
    }
    local how
    for how in '' '--json --temp 1' '--compute f32 --json --top-logprobs 2'; do
        # shellcheck disable=SC2086  # several words
        answers $how >want
        [ "$(sort -u want | wc -l)" = 21 ]
        run ! grep 'computed in' words
        # shellcheck disable=SC2086
        answers --batch 64 $how | cmp - want
        # That of 70 tokens and that of one are by themselves.
        grep 'computed in' words
        grep -x 'generate: prompts: 21 computed in 5 passes' words
        # shellcheck disable=SC2086
        answers --batch 5 $how | cmp - want
        # shellcheck disable=SC2086
        answers --prefill-chunk 10 $how >want
        # shellcheck disable=SC2086
        answers --batch 64 --prefill-chunk 10 $how | cmp - want
        [ "$(sed -n 's/.*prompts: 21 computed in \(.*\) passes/\1/p' words)" -gt 12 ]
    done
    # Each has its part of the time, and its first token when all of it is over.
    generate -q --device cuda --config config.json --ids -n 1 --json --time --batch 64 m.dat <prompts | python3 -c '
import json, sys
first = [json.loads(l)["timing"] for l in sys.stdin][:8] # 62 tokens
assert len({t["first_token_ms"] for t in first}) == 1
whole = first[0]["first_token_ms"] / 1e3
assert abs(sum(t["prefill_s"] for t in first) - whole) < 1e-4 * whole
assert all(abs(t["prefill_s"] - whole * t["prefill_tokens"] / 62) < 1e-4 * whole for t in first)'
    # Numbers that depend on how many tokens are computed together: each by itself.
    answers --compute fp8 >want
    [ "$(wc -l <want)" = 21 ]
    answers --batch 8 --compute fp8 | cmp - want
    run ! grep 'computed in' words
}

@test "answers: longer prompts are computed together, and share what they begin with, with the bytes of each alone" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    # Wide enough for products whose order of sums depends on the number of rows.
    sed 's/"head_dim": [0-9]*/"head_dim": 128/; s/"hidden_size": [0-9]*/"hidden_size": 512/
         s/"intermediate_size": [0-9]*/"intermediate_size": 640/; s/"initializer_range": [0-9.]*/"initializer_range": 0.3/
         s/"max_position_embeddings": [0-9]*/"max_position_embeddings": 512/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    datpack -q --init 3 --config config.json --quant max --to dat --dtype nvfp4 -o m.dat
    # Of 65 to 165 tokens, one of two, one of 20; then five that begin with the same 250.
    awk 'BEGIN {
        split("65 66 2 100 165 127 20 128 129 90", n)
        for (i = 1; i <= 10; i++) { for (k = 0; k < n[i]; k++) printf "%d ", (i * 7 + k * (i + 4)) % 97; print "" }
        for (i = 1; i <= 5; i++) { for (k = 0; k < 250 + i * 9; k++) printf "%d ", (k < 250 ? k * 11 : k * i) % 97; print "" }
    }' >prompts
    answers() {
        generate -v --device cuda --config config.json --ids --ignore-eos -n 3 --json --top-logprobs 3 "$@" m.dat 2>words |
            sed 's/"timing".*//; s/"prompt":[0-9]*,//'
    }
    local how line
    for how in '' '--compute f32' UNLIKE 'SM --prefill-chunk 130'; do
        unset NIBBLE_EMULATE_UNLIKE NIBBLE_EMULATE_SM
        [ "$how" != UNLIKE ] || { export NIBBLE_EMULATE_UNLIKE=1 && how=''; }
        [ "$how" = "${how#SM}" ] || { export NIBBLE_EMULATE_SM=120 && how=${how#SM}; }
        # shellcheck disable=SC2086  # several words
        while read -r line; do answers $how <<<"$line"; done <prompts >want
        [ "$(sort -u want | wc -l)" = 15 ]
        # shellcheck disable=SC2086
        answers $how --batch 16 <prompts | cmp - want
        # A prompt of more than a chunk is by itself, and shares 194: 65 tokens are left of the second chunk, or one more.
        [ -z "${how%--compute f32}" ] || { has '2277 tokens, 1501 computed' <words && continue; }
        grep -x 'generate: prompts: 15 computed in 3 passes' words
        grep -x 'generate: prompts: 2277 tokens, 1477 computed: an earlier prompt began with the others' words
        # shellcheck disable=SC2086
        answers $how --batch 3 <prompts | cmp - want
        has '1477 computed' <words
    done
}

@test "answers: a device that is full answers fewer at a time, and keeps memory for a pass" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    # A token's keys and values are 128 KiB, the device has 8 GB.
    sed 's/"head_dim": [0-9]*/"head_dim": 128/; s/"num_attention_heads": [0-9]*/"num_attention_heads": 128/
         s/"num_key_value_heads": [0-9]*/"num_key_value_heads": 128/
         s/"max_position_embeddings": [0-9]*/"max_position_embeddings": 9000/
         s/"initializer_range": [0-9.]*/"initializer_range": 0.3/' \
        "$HERE/vectors/qwen3-tiny-config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt -o m.ckpt
    answers() { generate --device cuda --config config.json --ids "$@" m.ckpt; }
    # Prompts that wait to be computed together have caches, and leave what a pass needs.
    local k
    for k in $(seq 15); do echo '{"ids":[5,6,7,8],"max_tokens":4092}'; done >r
    echo '{"ids":[5,6,7,8],"max_tokens":2300}' >>r
    k=$(answers --ignore-eos -n 1 -p '5 6 7 8')
    sed -i "s/\"eos_token_id\": 2/\"eos_token_id\": $k/" config.json
    answers --json --input jsonl <r 2>words | sed 's/"timing".*//' >want
    [ "$(wc -l <want)" = 16 ]
    answers --json --input jsonl --batch 16 <r | sed 's/"timing".*//' | cmp - want
    # A prompt that does not fit at first gets the memory of answers that are complete.
    for k in $(seq 24); do echo 5 6 7 8; done >prompts
    answers -n 4000 <prompts >want
    [ "$(wc -l <want)" = 24 ]
    answers -n 4000 --batch 24 <prompts 2>words | cmp - want
    has 'not enough memory for keys and values: 15 at a time' <words
    # A pass of longer prompts, which is made when there is memory for it.
    for k in 71 72 73; do seq -s ' ' $k; done >prompts
    answers -n 2 <prompts >want
    [ "$(wc -l <want)" = 3 ]
    answers -v -n 2 --batch 3 <prompts 2>words | cmp - want
    has 'prompts: 3 computed in 1 pass' <words
    # 2 MiB a token: the cache of one prompt leaves no room for a pass of several, so there is none.
    sed -i 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 32/' config.json
    datpack -q -f --init 3 --config config.json --to ckpt -o m.ckpt
    seq -s ' ' 80 >prompts
    k=$(answers -n 1 <prompts)
    sed -i "s/\"eos_token_id\": [0-9]*/\"eos_token_id\": $k/" config.json
    answers -v -n 3600 --batch 2 <prompts 2>words
    has 'prompt 0: prefill 80 tokens' <words
}

@test "answers: a driver that refuses a tensor map is named" {
    export NIBBLE_CUDA=$BUILD/emulate/libnibble-cuda.so LD_LIBRARY_PATH=$BUILD/emulate
    cd "$BATS_TEST_TMPDIR"
    sed 's/"head_dim": [0-9]*/"head_dim": 128/' "$HERE/vectors/qwen3-tiny-config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt -o m.ckpt
    seq -s ' ' 20 >prompts
    answer() { generate -q --device cuda --config config.json --ids --ignore-eos -n 2 m.ckpt <prompts; }
    [ "$(answer | wc -w)" = 2 ]
    NIBBLE_EMULATE_NO_MAPS=1 run -2 --separate-stderr answer
    [[ $stderr == *'cuda:0: cuTensorMapEncodeTiled: error 1 for 20 rows of '* ]]
    # Few tokens, and other chips, do without.
    echo '1 2 3' | NIBBLE_EMULATE_NO_MAPS=1 generate -q --device cuda --config config.json --ids -n 2 m.ckpt >/dev/null
    NIBBLE_EMULATE_SM=120 NIBBLE_EMULATE_NO_MAPS=1 answer >/dev/null
}

@test "a barrier that some threads do not come to is found" {
    # shellcheck disable=SC2016  # for perl
    broken 's/(peak = float_of_peak\(peak, T\(\)\);)/$1 if (threadIdx.x < 32) __syncthreads();/'
    run "$BUILD/gpu/quant" --tiny
    [ "$status" -ne 0 ]
    [[ $output == *amax_kernel*'__syncthreads of line'*'while others'* ]]
}

@test "a barrier that is missing is found when threads run the other way around" {
    # shellcheck disable=SC2016  # for perl
    broken 's/__syncthreads\(\);(\s+if \(threadIdx.x % 32 == 0\)\s+atomicMax)/$1/'
    run -0 "$BUILD/gpu/quant" --tiny
    NIBBLE_EMULATE_ORDER=back run "$BUILD/gpu/quant" --tiny
    [ "$status" -eq 1 ]
    [[ $output == *amax* ]]
}
