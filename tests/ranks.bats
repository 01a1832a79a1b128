#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2030,SC2031,SC2154  # output, stderr, stderr_lines: set by run; each test has its own
# trainstep on several ranks, which are CPU processes that mpirun starts: whatever their number, the
# bytes are those of one process; and a rank that fails, is killed or differs ends all.

# bats file_tags=native,nosan

load common

# settings: of Open MPI, for all that mpirun starts here.
settings() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    # A container may not let processes read each other's memory.
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
    # Open MPI 4 gives the others seconds to end when one has ended badly; here they are at their end.
    export OMPI_MCA_odls_base_sigkill_timeout=0
}

setup_file() {
    has_mpi || return 0
    settings
    # Without a network interface, also without that of this machine itself, it starts nothing.
    started -n 2 true >"$BATS_FILE_TMPDIR/unstarted" 2>&1 || return 0
    rm "$BATS_FILE_TMPDIR/unstarted"
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(5)
for name, n, most in ("ids", 31, 18), ("held", 7, 25), ("other", 31, 18):
    with open(name, "w") as f:
        for _ in range(n):
            print(*[random.randrange(97) for _ in range(random.randrange(3, most))], file=f)
PY
    local f
    for f in ids held other; do
        tokenize -q --input ids -o $f.tok $f
    done
    tokenize -q --input ids --pack --seq-len 24 -o packed.tok ids
    fresh plain.ckpt --quant none --master f32 --moments f32
    fresh small.ckpt --quant sweep
}

setup() {
    has_mpi || skip "no mpirun, or this was built without mpicc (tools/setup.sh)"
    [ ! -e "$BATS_FILE_TMPDIR/unstarted" ] || skip "mpirun starts nothing: $(head -n 1 "$BATS_FILE_TMPDIR/unstarted")"
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    settings
}

has_mpi() { command -v mpirun >/dev/null && [ -e "$BUILD/mpi/lib/dist/comm_mpi.o" ]; }

# fresh OUT OPTION...: a random checkpoint.
fresh() {
    datpack -q -f --init 3 --config "$IN/config.json" --to ckpt -o "$@"
}

# started ARGUMENT...: by mpirun, which says nothing itself.
started() {
    timeout 300 mpirun --quiet --oversubscribe --bind-to none "$@" </dev/null
}

# ranks N OPTION...: trainstep on so many.
ranks() {
    started -n "$1" trainstep -d "$IN/ids.tok" --lr 1e-2 "${@:2}"
}

alone() {
    trainstep -d "$IN/ids.tok" --lr 1e-2 "$@"
}

# meta EXPRESSION CKPT: of its state.
meta() { datcat --meta "$2" | json "d['meta']['state']$1"; }

# numbers: the columns of a table that do not depend on time and memory.
numbers() { cut -f 1-5,10; }

# once PROGRAM WORDS SECONDS: what ranks have said, on stdin, has one line of PROGRAM, and WORDS in it.
# A rank that fails before MPI has begun waits 5 s for that, and then speaks for itself: of a run
# that took so long, lines that differ in their rank alone count as one.
once() {
    local said words=$2 anyone='s/^([a-z]+: )rank [0-9]+: /\1/'
    said=$(grep "^$1: " || true)
    if [ "$3" -ge 5 ]; then
        said=$(sed -E "$anyone" <<<"$said" | sort -u)
        words=$(sed -E "$anyone" <<<"$words")
    fi
    [[ $(wc -l <<<"$said") -eq 1 && $said == *"$words"* ]] || { echo "$said, want once: $words" && false; }
}

# refused WORDS ARGUMENT...: of mpirun; all end with 2, one rank says why, and no file changes.
refused() {
    local words=$1 before began=$SECONDS
    shift
    before=$(ls -A -I 'separate-stderr-*' && cat ./*.ckpt | cksum)
    run -2 --separate-stderr started "$@" || { echo "$output$stderr" && false; }
    [ -z "$output" ] || { echo "stdout: $output" && false; }
    once trainstep "$words" $((SECONDS - began)) <<<"$stderr"
    [ "$(ls -A -I 'separate-stderr-*' && cat ./*.ckpt | cksum)" = "$before" ]
}

# ---- the same bytes -------------------------------------------------------------------------

# same CKPT OPTION...: as many ranks as $counts says end in the bytes of one process, and print its
# numbers.
same() {
    local n from=$1
    shift
    cp "$from" one.ckpt
    alone -q -n 5 --accum 12 "$@" one.ckpt | numbers >one
    [ "$(wc -l <one)" -eq 6 ]
    run ! cmp -s "$from" one.ckpt
    for n in $counts; do
        cp "$from" some.ckpt
        ranks "$n" -q -n 5 --accum 12 "$@" some.ckpt | numbers >some
        cmp one some
        cmp one.ckpt some.ckpt
    done
}

@test "2, 3 and 4 ranks end in the bytes of one process: clip modes, schedules, weight decay" {
    counts="2 3 4"
    same "$IN/small.ckpt" --schedule cosine --warmup 2 --total-steps 6 --weight-decay 0.1
    same "$IN/plain.ckpt" --clip 0.3 --clip-mode prev --schedule wsd --decay 2 --total-steps 5
    same "$IN/small.ckpt" --clip 0.05 --clip-mode tensor --recompute block --chunk-rows 5
}

@test "frozen layers, late quantizing, losses, NVFP4 activations and packing make no difference" {
    counts="3 4"
    same "$IN/small.ckpt" --train-last-layers 1 --quant-from 3
    same "$IN/plain.ckpt" --loss scalar --clip 0
    same "$IN/small.ckpt" --compute bf16 --activations nvfp4
    cp "$IN/packed.tok" packed.tok
    alone() { trainstep -d "packed.tok" --lr 1e-2 "$@"; }
    ranks() { started -n "$1" trainstep -d packed.tok --lr 1e-2 "${@:2}"; }
    same "$IN/small.ckpt"
}

@test "an untied head, a packed optimizer and a teacher make no difference" {
    counts="2 3"
    sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$IN/config.json" >untied.json
    datpack -q --init 4 --config untied.json --to ckpt -o untied.ckpt
    same untied.ckpt
    same untied.ckpt --teacher "$IN/plain.ckpt" --distill 0.6 --distill-temp 1.5
    fresh torch.ckpt --compat torchsharp --moments int8
    same torch.ckpt --compat torchsharp
}

@test "evaluations and saves change no byte; their losses are those of one process" {
    cp "$IN/small.ckpt" one.ckpt
    alone -q -n 5 --accum 6 --batch 2 --eval "$IN/held.tok" --eval-every 2 --log one.jsonl one.ckpt >/dev/null
    # What it found of 7 samples, in batches of 2, which 3 ranks take in turn.
    for n in 2 3; do
        cp "$IN/small.ckpt" some.ckpt
        ranks $n -n 5 --accum 6 --batch 2 --eval "$IN/held.tok" --eval-every 2 --save-every 1 \
            --log some.jsonl --tensorboard tb$n --memory-report m$n.json some.ckpt >out 2>err
        cmp one.ckpt some.ckpt
        # One table, one log, one report, and nobody's words twice.
        [ "$(wc -l <out)" -eq 6 ]
        [ "$(wc -l <some.jsonl)" -eq 8 ]
        [ "$(grep -c 'evaluation loss' err)" -eq 3 ]
        [ "$(grep -c "^trainstep: $n ranks, started by mpirun" err)" -eq 1 ]
        [ "$(grep -c "rank [0-9]" err)" -eq 0 ]
        [ "$(find tb$n -type f | wc -l)" -eq 1 ]
        json "len(d['Samples']) > 5" <m$n.json | has True
        for f in one some; do
            jsonl "[(l['step'], l.get('loss'), l.get('eval_loss'), l.get('grad_norm'), l.get('tokens'))
                for l in d]" <$f.jsonl >$f.numbers
        done
        cmp one.numbers some.numbers
        [ "$(grep -o None one.numbers | wc -l)" -gt 8 ]
    done
    # Fewer samples than ranks.
    head -n 1 "$IN/held" | tokenize -q --input ids -o few.tok
    alone -q -n 2 --accum 3 --eval few.tok --log one.jsonl -f -o one.ckpt "$IN/small.ckpt" >/dev/null
    ranks 3 -q -n 2 --accum 3 --eval few.tok --log some.jsonl -f -o some.ckpt "$IN/small.ckpt" >/dev/null
    cmp one.ckpt some.ckpt
    for f in one some; do
        jsonl "[(l['step'], l.get('loss'), l.get('eval_loss')) for l in d]" <$f.jsonl | tail -n 3 >$f.numbers
    done
    cmp one.numbers some.numbers
}

@test "steps of one process, replayed by two ranks: they lead there, or not" {
    cp "$IN/small.ckpt" m.ckpt
    alone -q -n 3 --accum 2 -o r.ckpt m.ckpt >/dev/null
    started -n 2 trainstep -d "$IN/ids.tok" --replay 0..3 --from m.ckpt r.ckpt >table 2>err
    grep -q 'r.ckpt: steps 1..3 from m.ckpt lead to it' err
    [ "$(wc -l <table)" -eq 4 ]
    alone -q -n 3 --accum 2 --seed 4 -o s.ckpt m.ckpt >/dev/null
    # Weights of the one, state and record of the other.
    python3 - <<'PY'
import containers as c
def read(path):
    raw = open(path, "rb").read()
    h = c.unpack(raw[64:64 + int.from_bytes(raw[24:32], "little")])
    return h, [raw[x["offset"]:x["offset"] + x["nbytes"]] for x in h["arrays"]]
h, arrays = read("r.ckpt")[0], read("s.ckpt")[1]
for x, data in zip(h["arrays"], arrays):
    x["xxh3"] = c.xxh3_128(data)
total = c.ckpt_place(h)
with open("bad.ckpt", "wb") as f:
    f.write(c.ckpt_seal(c.pack(h), [(x["offset"], d) for x, d in zip(h["arrays"], arrays)], total))
PY
    run -1 started -n 2 trainstep -q -d "$IN/ids.tok" --replay 0..3 --from m.ckpt bad.ckpt
    [[ $output == *"do not lead to it: array "* ]]
}

@test "saved on two ranks, resumed on one and on three, and back" {
    cp "$IN/small.ckpt" one.ckpt
    alone -q -n 8 --accum 6 one.ckpt >/dev/null
    cp "$IN/small.ckpt" some.ckpt
    ranks 2 -q -n 2 --accum 6 some.ckpt >/dev/null
    [ "$(meta "['settings']['accum']" some.ckpt)" -eq 6 ]
    # What is kept need not be said again.
    alone -q -n 2 some.ckpt >/dev/null
    ranks 3 -q -n 3 some.ckpt >/dev/null
    ranks 2 -q --until 8 some.ckpt >/dev/null
    cmp one.ckpt some.ckpt
    # Nothing is left to do: all say so by ending well.
    ranks 2 --until 8 some.ckpt >out 2>err
    [ ! -s out ]
    [ "$(grep -c 'at step 8: nothing to do' err)" -eq 1 ]
    cmp one.ckpt some.ckpt
}

@test "steps that are skipped are skipped by all: a gradient that is too large, a spike" {
    sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --dtype f32 -o m.safetensors
    # A sample with token 5 has an activation of 1e25 in layer 0.
    python3 "$HERE/overflow.py" m.safetensors
    python3 - <<'PY'
with open("ids", "w") as f:
    for i in range(24):
        print(*([10 + i, 20, 5 if i == 10 else 30, 40]), file=f)
with open("calm", "w") as f:
    for i in range(320):
        print(*([7, 8, 9, 10] if i != 251 else [k * 37 % 97 for k in range(40)]), file=f)
PY
    datpack -q --to ckpt --master f32 --moments f32 --quant none -o m.ckpt m.safetensors
    tokenize -q --input ids -o d.tok ids
    tokenize -q --input ids -o calm.tok calm
    local mode n o spike
    for mode in "--clip 0" "--clip-mode prev"; do
        # shellcheck disable=SC2206  # words
        o=(-q -d d.tok --order file --lr 0 $mode --accum 4 -n 6 -f)
        trainstep "${o[@]}" -o one.ckpt m.ckpt >one 2>err
        grep 'step 3 was skipped: the gradient of .* is too large' err
        for n in 2 4; do
            started -n $n trainstep "${o[@]}" -o some.ckpt m.ckpt >some 2>err
            cmp <(numbers <one) <(numbers <some)
            [ "$(grep -c 'step 3 was skipped' err)" -eq 1 ]
            cmp one.ckpt some.ckpt
        done
    done
    [ "$(meta "['t']" one.ckpt)" -eq 5 ]
    # Too many of them: all end, the checkpoint is as it was.
    head -n 12 ids | tail -n 2 | tokenize -q --input ids -o bad.tok
    cp m.ckpt bad.ckpt
    run -4 --separate-stderr started -n 2 \
        trainstep -q -d bad.tok --lr 0 --clip 0 --accum 2 -n 9 bad.ckpt
    [ "$(grep -c '5 steps in a row were skipped' <<<"$stderr")" -eq 1 ]
    cmp m.ckpt bad.ckpt
    # The window of losses is every rank's.
    trainstep -q -d calm.tok --order file --lr 1e-2 --accum 4 -n 20 -o calm.ckpt "$IN/plain.ckpt" >/dev/null
    spike=(-q -d calm.tok --lr 1e-5 --until 70 --spike 6 -f)
    trainstep "${spike[@]}" -o one.ckpt calm.ckpt >one 2>err
    grep 'step 63 was skipped: a spike' err
    started -n 4 trainstep "${spike[@]}" -o some.ckpt calm.ckpt >some 2>err
    [ "$(grep -c 'step 63 was skipped: a spike' err)" -eq 1 ]
    cmp <(numbers <one) <(numbers <some)
    cmp one.ckpt some.ckpt
}

@test "without --accum there are as many passes as ranks at first, and then for good" {
    cp "$IN/small.ckpt" some.ckpt
    ranks 3 -n 2 some.ckpt >/dev/null 2>err
    [ "$(grep -c 'some.ckpt: a step has 3 passes from here on, .* --accum 3$' err)" -eq 1 ]
    [ "$(meta "['settings']['accum']" some.ckpt)" -eq 3 ]
    cp "$IN/small.ckpt" one.ckpt
    alone -q -n 2 --accum 3 one.ckpt >/dev/null
    cmp one.ckpt some.ckpt
    ranks 3 -n 1 some.ckpt >/dev/null 2>err
    run ! grep passes err
    refused "--accum: 3 passes of a step cannot be divided among 2 ranks: expected --accum 4, " \
        -n 2 trainstep -q -d "$IN/ids.tok" some.ckpt
    # One process has one pass.
    alone -q -n 1 -o kept.ckpt "$IN/small.ckpt" >/dev/null
    refused "--accum: 1 passes of a step cannot be divided among 2 ranks: expected --accum 2, " \
        -n 2 trainstep -q -d "$IN/ids.tok" kept.ckpt
}

@test "the first step's gradients and logits, and a plan, are written once" {
    alone -q --accum 4 --dump one.safetensors -o one.ckpt "$IN/small.ckpt" >/dev/null
    ranks 2 -q --accum 4 --dump some.safetensors -o some.ckpt "$IN/small.ckpt" >/dev/null
    cmp one.safetensors some.safetensors
    cmp one.ckpt some.ckpt
    ranks 2 -q --accum 4 --dry-run "$IN/small.ckpt" >plan
    [ "$(grep -c '^program' plan)" -eq 1 ]
    [ "$(grep -c '^total' plan)" -eq 1 ]
}

@test "each rank holds its part of masters and moments: the plan is smaller; damage in any part is found" {
    local n part whole
    # A model whose tensors have several parts.
    sed 's/"hidden_size": [0-9]*/"hidden_size": 256/; s/"intermediate_size": [0-9]*/"intermediate_size": 512/' \
        "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt --moments f32 -o wide.ckpt
    counts="2 3 4"
    same wide.ckpt --train-last-layers 1 --quant-from 3
    datpack -q --init 3 --config config.json --to ckpt --quant 4over6 --master f32 -o over.ckpt
    same over.ckpt --clip 0
    same wide.ckpt --weight-decay 0.1
    same wide.ckpt --clip 0.05 --clip-mode tensor
    part() { awk -F'\t' -v p="$2" '$1 == p { print $2; exit }' "$1"; }
    trainstep -q -d "$IN/ids.tok" --accum 4 --dry-run wide.ckpt >plan.1
    for n in 2 4; do
        ranks $n -q --accum 4 --dry-run wide.ckpt >plan.$n
        whole=$(part plan.1 moments)
        part=$(part plan.$n moments)
        [ "$(part plan.$n master)" -lt "$(part plan.1 master)" ]
        # Parts are of 16384 elements and more, so they need not be equal.
        [ "$part" -gt $((whole / n / 2)) ]
        [ "$part" -lt $((whole * 5 / 4 / n)) ]
        [ "$(part plan.$n gradients)" -lt "$(part plan.1 gradients)" ]
    done
    for part in "adam.m/model.layers.0.mlp.up_proj.weight" "adam.v/model.embed_tokens.weight"; do
        python3 - "$part" <<'PY'
import subprocess, sys
whole = bytearray(open("one.ckpt", "rb").read())
payload = subprocess.check_output(["datcat", "--payload", sys.argv[1], "one.ckpt"])
assert whole.count(payload) == 1 and len(payload) > 1000
whole[whole.find(payload) + len(payload) - 4] ^= 1
open("bad.ckpt", "wb").write(whole)
PY
        refused "$part" -n 2 trainstep -q -d "$IN/ids.tok" --accum 4 bad.ckpt
        # Also where it stays in the file.
        refused "$part" -n 3 trainstep -q -d "$IN/ids.tok" --accum 3 --train-last-layers 1 bad.ckpt
    done
}

@test "the commands of the page about it run, in their order" {
    cp "$IN/config.json" .
    export OMPI_MCA_rmaps_base_oversubscribe=1
    awk '/^```$/ { on = 0 } on { print } /^```sh$/ { on = 1 }' "$root/doc/several-gpus.md" >page.sh
    [ "$(grep -c mpirun page.sh)" -eq 2 ]
    timeout 300 bash -euo pipefail page.sh </dev/null >out 2>err || { cat err && false; }
    [ "$(meta "['step']" run.ckpt)" -eq 30 ]
    grep -q 'doc/several-gpus.md' "$root/README.md"
}

@test "scores of several ranks are those of one process; one that fails is named" {
    local n o
    datpack -q --init 5 --config "$IN/config.json" -o m.dat
    datpack -q --init 6 --config "$IN/config.json" -o other.dat
    generate -q --score "$IN/ids.tok" --logits other.safetensors other.dat >/dev/null
    for o in "" "--kl-model other.dat" "--kl other.safetensors --json"; do
        # shellcheck disable=SC2086  # words
        for n in 1 2 3; do
            started -n $n generate -q --score "$IN/ids.tok" $o m.dat >some
            [ $n -gt 1 ] || cp some one
            cmp one some
        done
        [ -s one ]
    done
    # More ranks than samples.
    head -n 2 "$IN/ids" | tokenize -q --input ids -o few.tok
    generate -q --score few.tok --kl-model other.dat m.dat >one
    started -n 4 generate -q --score few.tok --kl-model other.dat m.dat >some
    cmp one some
    local g=(generate -q --score)
    # alike WORDS ARGUMENT...: all ranks fail alike.
    alike() {
        local began=$SECONDS
        run -2 started -n 2 "${g[@]}" "${@:2}"
        once generate "generate: $1" $((SECONDS - began)) <<<"$output"
    }
    alike "--logits: one process writes it: expected no other ranks" "$IN/ids.tok" --logits x.safetensors m.dat
    alike "-: a pipe would reach one of 2 ranks only: expected a file" - m.dat
    alike "none.tok: No such file or directory" none.tok m.dat
    run -2 started -n 1 "${g[@]}" "$IN/ids.tok" m.dat : -n 1 "${g[@]}" "$IN/other.tok" m.dat
    [[ $output == "generate: rank 1: the hash of --score: "* ]]
    # Of the same shape, and other weights.
    run -2 started -n 1 "${g[@]}" "$IN/ids.tok" m.dat : -n 1 "${g[@]}" "$IN/ids.tok" other.dat
    [[ $output == "generate: rank 1: the model: "* ]]
    run -2 started -n 1 "${g[@]}" "$IN/ids.tok" --kl-model other.dat m.dat : \
        -n 1 "${g[@]}" "$IN/ids.tok" --kl-model m.dat m.dat
    [[ $output == "generate: rank 1: the model of --kl-model: "* ]]
    run -2 started -n 1 "${g[@]}" "$IN/ids.tok" --kl other.safetensors m.dat : \
        -n 1 "${g[@]}" "$IN/ids.tok" m.dat
    [[ $output == "generate: rank 1: --kl: 0 here, rank 0 has 1"* ]]
}

# ---- what does not fit ------------------------------------------------------------------------

@test "ranks that differ are refused before the first step, and what differs is named" {
    cp "$IN/small.ckpt" m.ckpt
    cp "$IN/plain.ckpt" p.ckpt
    local t=(trainstep -q --accum 2 -d "$IN/ids.tok")
    # differ WORDS FIRST... -- SECOND...
    differ() {
        local words=$1 first=()
        shift
        while [ "$1" != -- ]; do
            first+=("$1")
            shift
        done
        refused "trainstep: rank 1: $words" -n 1 "${first[@]}" : -n 1 "${@:2}"
    }
    differ "the hash of -d: " "${t[@]}" m.ckpt -- trainstep -q --accum 2 -d "$IN/other.tok" m.ckpt
    differ "--accum: 4 here, rank 0 has 2" "${t[@]}" m.ckpt -- "${t[@]}" --accum 4 m.ckpt
    differ "--schedule: \"linear\" here, rank 0 has \"constant\"" "${t[@]}" --total-steps 9 m.ckpt -- \
        "${t[@]}" --schedule linear --total-steps 9 m.ckpt
    differ "--stop-after: none here, rank 0 has batch_ready" "${t[@]}" --stop-after batch_ready m.ckpt -- "${t[@]}" m.ckpt
    differ "--save-every: 0 here, rank 0 has 1" "${t[@]}" --save-every 1 m.ckpt -- "${t[@]}" m.ckpt
    differ "the hash of --eval: none here, rank 0 has " "${t[@]}" --eval "$IN/held.tok" m.ckpt -- "${t[@]}" m.ckpt
    differ "the last step: 2 here, rank 0 has 1" "${t[@]}" m.ckpt -- "${t[@]}" -n 2 m.ckpt
    differ "the checkpoint's hash: " "${t[@]}" m.ckpt -- "${t[@]}" p.ckpt
    differ "the route of products: cpu bf16 2 here, rank 0 has cpu f32 2" "${t[@]}" --compute f32 m.ckpt -- \
        "${t[@]}" --compute bf16 m.ckpt
    isas
    if [ "$isas" != 'scalar ' ]; then
        differ "the instruction set: scalar here, rank 0 has " "${t[@]}" m.ckpt -- \
            env NIBBLE_ISA=scalar "${t[@]}" m.ckpt
    fi
}

@test "an error of one rank, or of all, ends all, and is said once" {
    cp "$IN/small.ckpt" m.ckpt
    local t=(trainstep -q --accum 6)
    refused "trainstep: -d -: a pipe would reach one of 2 ranks only: expected a file" -n 2 "${t[@]}" -d - m.ckpt
    refused "trainstep: -d -: " -n 2 "${t[@]}" m.ckpt
    refused "trainstep: --accum: 5 passes of a step cannot be divided among 2 ranks: expected --accum 6, " \
        -n 2 trainstep -q -d "$IN/ids.tok" --accum 5 m.ckpt
    refused "trainstep: none.tok: No such file" -n 3 "${t[@]}" -d none.tok m.ckpt
    refused "trainstep: none.ckpt: No such file" -n 3 "${t[@]}" -d "$IN/ids.tok" none.ckpt
    refused "trainstep: --nonsense: unknown option" -n 2 "${t[@]}" --nonsense m.ckpt
    refused "trainstep: rank 1: --nonsense: unknown option" -n 1 "${t[@]}" -d "$IN/ids.tok" m.ckpt : \
        -n 1 "${t[@]}" --nonsense m.ckpt
    refused "trainstep: rank 2: none.tok: No such file" -n 2 "${t[@]}" -d "$IN/ids.tok" m.ckpt : \
        -n 1 "${t[@]}" -d none.tok m.ckpt
    : >there.ckpt
    refused "trainstep: there.ckpt: exists; -f replaces it" -n 2 "${t[@]}" -d "$IN/ids.tok" -o there.ckpt m.ckpt
    # Another run has the checkpoint.
    exec 9>.m.ckpt.nibble-lock
    flock 9
    refused "trainstep: " -n 2 "${t[@]}" -d "$IN/ids.tok" m.ckpt
    [[ $stderr == *"another process"* ]]
    exec 9>&-
}

@test "arrays that all ranks have, or that stay in the file, are written by all in equal shares" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    sed 's/"hidden_size": [0-9]*/"hidden_size": 256/; s/"intermediate_size": [0-9]*/"intermediate_size": 4224/' \
        "$IN/config.json" >config.json
    datpack -q --init 3 --config config.json --to ckpt --quant none --master f32 --moments f32 -o large.ckpt
    alone -q -n 1 --accum 12 --train-last-layers 1 -o one.ckpt large.ckpt >/dev/null
    local n k log=$BATS_TEST_TMPDIR/log
    for n in 2 3 4; do
        rm -f "$log".*
        # shellcheck disable=SC2016  # for the inner shell
        started -n $n bash -c 'LD_PRELOAD=$0 FAILIO_LOG=$1.$OMPI_COMM_WORLD_RANK exec "${@:2}"' "$FAILIO_SO" "$log" \
            trainstep -q -d "$IN/ids.tok" --lr 1e-2 -n 1 --accum 12 --train-last-layers 1 -f -o some.ckpt large.ckpt >/dev/null
        cmp one.ckpt some.ckpt
        for ((k = 0; k < n; k++)); do
            awk -v whole="$(stat -c %s one.ckpt)" -v n=$n '/ pwrite pass .*some\.ckpt/ { bytes += $4 }
                END { exit !(bytes > 0.8 * whole / n && bytes < 1.2 * whole / n) }' "$log.$k"
        done
    done
}

# saves RANK VARIABLE=VALUE... -- RANKS OPTION...: m.ckpt is saved twice; the variables are those of one rank.
saves() {
    local rank=$1 k set=() args=()
    shift
    while [ "$1" != -- ]; do
        set+=("$1")
        shift
    done
    for ((k = 0; k < $2; k++)); do
        args+=(-n 1 env)
        [ $k -ne "$rank" ] || args+=("LD_PRELOAD=$FAILIO_SO" "${set[@]}")
        args+=(trainstep -q -d "$IN/ids.tok" --lr 1e-2 --accum 6 --save-every 3 "${@:3}" m.ckpt :)
    done
    unset "args[-1]"
    cp "$IN/small.ckpt" m.ckpt
    started "${args[@]}"
}

# fails_saving WORDS RULE RANK RANKS: the second save fails, since failio has the rule for a rank, and ends all.
fails_saving() {
    run -2 --separate-stderr saves "$3" "FAILIO=$2" -- "$4" -n 9
    # shellcheck disable=SC2053  # a pattern
    [[ $stderr == $1 ]] || { echo "$stderr, want $1" && false; }
    cmp three.ckpt m.ckpt
    [ "$(ls -A -I 'separate-stderr-*')" = $'m.ckpt\nthree.ckpt' ] || { ls -A && false; }
}

@test "a disk that is full for one rank ends all, in its words; the checkpoint is the last one, nothing else is left" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    cp "$IN/small.ckpt" three.ckpt
    alone -q --accum 6 -n 3 three.ckpt >/dev/null
    local n k of log=$BATS_TEST_TMPDIR/log
    fails_saving "trainstep: m.ckpt: cannot rename the temporary file to it: No space left on device" \
        'anyrename:2+:ENOSPC:m.ckpt' 0 2
    for n in 2 3; do
        for ((k = 0; k < n; k++)); do
            of=
            [ $k -eq 0 ] || of="rank $k: "
            rm -f "$log"
            saves $k "FAILIO_LOG=$log" -- $n -n 3 >/dev/null
            cmp three.ckpt m.ckpt
            fails_saving "trainstep: ${of}m.ckpt: byte *: write: No space left on device" \
                "pwrite:$(($(grep -c ' pwrite pass .*m\.ckpt' "$log") + 2))+:ENOSPC:m.ckpt" $k $n
        done
        fails_saving "trainstep: rank 1: m.ckpt: fsync: Input/output error" 'fsync:2:EIO:m.ckpt' 1 $n
    done
}

@test "a rank that is killed while it saves: the checkpoint is the last one, and the next run goes on" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    cp "$IN/small.ckpt" three.ckpt
    alone -q --accum 6 -n 3 three.ckpt >/dev/null
    cp three.ckpt six.ckpt
    alone -q -n 3 six.ckpt >/dev/null
    local k
    for k in 0 1; do
        run ! saves $k "FAILIO=fsync:2:kill=9:m.ckpt" -- 2 -n 9
        cmp three.ckpt m.ckpt
        ranks 2 -q -n 3 m.ckpt >/dev/null
        cmp six.ckpt m.ckpt
        [ "$(ls -A)" = $'m.ckpt\nsix.ckpt\nthree.ckpt' ] || { ls -A && false; }
    done
}

@test "ranks that do not see the file that rank 0 writes are refused before the first step" {
    mkdir other
    cp "$IN/small.ckpt" m.ckpt
    cp "$IN/small.ckpt" other
    cp "$IN/small.ckpt" other/m.ckpt
    local t=(trainstep -q -d "$IN/ids.tok" --accum 2)
    refused "trainstep: rank 1: m.ckpt: is not the file that rank 0 writes: " -n 1 "${t[@]}" m.ckpt : \
        -n 1 -wdir other "${t[@]}" m.ckpt
    refused "trainstep: rank 1: y.ckpt: is not the file that rank 0 writes: " -n 1 "${t[@]}" -o x.ckpt m.ckpt : \
        -n 1 "${t[@]}" -o y.ckpt m.ckpt
    # By another path it is the same one.
    ln -s "$PWD/m.ckpt" other/same.ckpt
    started -n 1 "${t[@]}" m.ckpt : -n 1 -wdir other "${t[@]}" same.ckpt >/dev/null
    [ "$(meta "['step']" m.ckpt)" -eq 1 ]
    [ -L other/same.ckpt ]
}

@test "launchers are recognised, and what MPI cannot join is refused in words" {
    cp "$IN/small.ckpt" m.ckpt
    local t=(trainstep -q -d "$IN/ids.tok" --accum 2 -o x.ckpt m.ckpt)
    local torchrun=(WORLD_SIZE=2 MASTER_ADDR=localhost)
    refuse -2 "torchrun has started 2 ranks, MPI knows of 1" env RANK=0 "${torchrun[@]}" "${t[@]}"
    refuse -2 "mpiexec has started 2 ranks, MPI knows of 1" env PMI_RANK=0 PMI_SIZE=2 "${t[@]}"
    # Each says so, since there may be no other: the variables may be left over.
    run -2 --separate-stderr env RANK=1 "${torchrun[@]}" "${t[@]}"
    [ -z "$output" ]
    [[ $stderr == "trainstep: rank 1: "*"MPI knows of 1: "*"for one process unset the launcher's variables" ]]
    refuse -2 'PMI_SIZE="x" in the environment: want a number below' env PMI_RANK=0 PMI_SIZE=x "${t[@]}"
    refuse -2 'RANK="2" in the environment: want a number below 2' env RANK=2 "${torchrun[@]}" "${t[@]}"
    refuse -2 'RANK=" 1" in the environment: want a number below 2' env RANK=" 1" "${torchrun[@]}" "${t[@]}"
    refuse -2 'RANK="1 " in the environment: want a number below 2' env RANK="1 " "${torchrun[@]}" "${t[@]}"
    refuse -2 'RANK="" in the environment: want a number below 2' env RANK= "${torchrun[@]}" "${t[@]}"
    refuse -2 'WORLD_SIZE="2\t" in the environment: want a number below' env RANK=0 "${torchrun[@]}" WORLD_SIZE=$'2\t' "${t[@]}"
    # Without the library.
    refuse -2 "2 ranks, started by torchrun: no MPI: /none: " env NIBBLE_MPI=/none RANK=0 "${torchrun[@]}" "${t[@]}"
    mkdir bin
    cp "$bin/trainstep" bin
    refuse -2 "there is no libnibble-mpi.so beside the program: it was built without mpicc" \
        env RANK=0 "${torchrun[@]}" "bin/trainstep" "${t[@]:1}"
    refuse -2 "rank 1: 2 ranks, started by torchrun: no MPI: " env NIBBLE_MPI=/none RANK=1 "${torchrun[@]}" "${t[@]}"
    # One rank of any launcher is one process.
    local e
    for e in "RANK=0 WORLD_SIZE=1 MASTER_ADDR=x" "PMI_RANK=0 PMI_SIZE=1" \
        "RANK=0 WORLD_SIZE=2"; do
        # shellcheck disable=SC2086  # words
        env $e NIBBLE_MPI=/none "${t[@]}" -f >out
        [ "$(wc -l <out)" -eq 2 ]
    done
    started -n 1 trainstep -q -d "$IN/ids.tok" --accum 2 -f -o y.ckpt m.ckpt >/dev/null
    cmp x.ckpt y.ckpt
}

@test "srun is recognised where it has started several tasks; Slurm's scripts and shells are one process" {
    cp "$IN/small.ckpt" m.ckpt
    local t=(trainstep -q -d "$IN/ids.tok" --accum 2 -o x.ckpt m.ckpt)
    # What Slurm 22.05 sets of what could be taken for a launcher: for any process of a job of four
    # tasks, in a script of sbatch, for a task of srun, in a shell of salloc, which is a step of one task.
    local job=(SLURM_JOB_ID=10 SLURM_JOBID=10 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_NNODES=1 SLURM_NODELIST=n1
        SLURM_JOB_NODELIST=n1 SLURM_TASKS_PER_NODE=4 SLURM_JOB_CPUS_PER_NODE=4)
    local script=("${job[@]}" SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_CPUS_ON_NODE=4
        "SLURM_TASK_PID=$$")
    local task=("${script[@]}" SLURM_STEP_ID=0 SLURM_STEPID=0 "SLURM_GTIDS=0,1,2,3" SLURM_STEP_NODELIST=n1
        SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4)
    # shellcheck disable=SC2034  # read by its name
    local shell=("${script[@]}" SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_STEP_NODELIST=n1
        SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PTY_PORT=41551
        SLURM_MPI_TYPE=none)
    local one="4 ranks, started by srun: Open MPI finds them by a PMI, and there is none: expected mpirun or srun --mpi=pmix"
    refuse -2 "$one" env "${task[@]}" "${t[@]}"
    refuse -2 "rank 3: $one" env "${task[@]}" SLURM_PROCID=3 "${t[@]}"
    refuse -2 'SLURM_PROCID="4" in the environment: want a number below 4' env "${task[@]}" SLURM_PROCID=4 "${t[@]}"
    refuse -2 "$one" env "${task[@]}" SLURM_PTY_PORT=1 "${t[@]}"
    trainstep -q -d "$IN/ids.tok" --accum 2 -o one.ckpt m.ckpt >/dev/null
    local e
    for e in job script shell; do
        # shellcheck disable=SC2178  # the name of an array
        local -n set=$e
        env "${set[@]}" NIBBLE_MPI=/none "${t[@]}" -f >out
        [ "$(wc -l <out)" -eq 2 ]
        cmp one.ckpt x.ckpt
    done
    # On the terminal of srun --pty what has it is one process, unless it is in the group of the task.
    if command -v script >/dev/null; then
        timeout 60 script -qec "env ${task[*]} SLURM_PTY_PORT=1 NIBBLE_MPI=/none ${t[*]} -f" /dev/null >out </dev/null
        cmp one.ckpt x.ckpt
        # shellcheck disable=SC2016  # for the inner shell
        run -2 timeout 60 script -qec "sh -c 'env ${task[*]} SLURM_TASK_PID=\$\$ SLURM_PTY_PORT=1 ${t[*]} -f; exit \$?'" \
            /dev/null </dev/null
        [[ $output == *"$one"* ]]
    fi
    # Hydra's processes in such a job are its own.
    refuse -2 "2 ranks, started by mpiexec: no MPI: /none" env "${task[@]}" PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1 \
        MPI_LOCALRANKID=0 NIBBLE_MPI=/none "${t[@]}" -f
}

# ---- signals --------------------------------------------------------------------------------------

# begin OPTION...: many steps on two ranks; mpirun's id is in $pid, those of the ranks in $rank.
begin() {
    local i
    cp "$IN/small.ckpt" m.ckpt
    rm -f rank.[01]
    # A signal to timeout reaches mpirun once, not also as one of a group: a second one makes it kill.
    # shellcheck disable=SC2016  # for the inner shell
    timeout --foreground -k 20 300 mpirun --quiet --oversubscribe --bind-to none -n 2 bash -c \
        'echo $$ >rank.$OMPI_COMM_WORLD_RANK && exec "$@"' bash \
        trainstep -q -d "$IN/ids.tok" --lr 1e-4 --accum 2 -n 100000000 --save-every 20 "$@" m.ckpt \
        </dev/null >out 2>err 3>&- &
    pid=$!
    for ((i = 0; i < 2400; i++)); do
        sleep 0.05
        if [ "$(wc -l <out)" -gt 45 ]; then # after a save or two
            rank=("$(cat rank.0)" "$(cat rank.1)")
            return
        fi
    done
    kill -TERM $pid
    cat err
    false
}

# over: how mpirun has ended is in $ended; soon nobody is left, also on a machine that has much to do.
over() {
    local i k began=$SECONDS
    ended=0
    wait $pid || ended=$?
    for ((i = 0; i < 300; i++)); do
        kill -0 "${rank[@]}" 2>/dev/null || break
        sleep 0.1
    done
    [ $((SECONDS - began)) -le 90 ]
    for k in "${rank[@]}"; do
        [ ! -e "/proc/$k" ] || grep '^State:.Z' "/proc/$k/status"
    done
}

# goes_on: m.ckpt is of the step that it says, and whole: what one process ends in.
goes_on() {
    local step
    datcat --verify m.ckpt >/dev/null
    step=$(meta "['step']" m.ckpt)
    [ "$step" -ge 20 ]
    cp "$IN/small.ckpt" one.ckpt
    trainstep -q -d "$IN/ids.tok" --lr 1e-4 --accum 2 -n "$step" one.ckpt >/dev/null
    cmp one.ckpt m.ckpt
    alone -q -n 1 m.ckpt >/dev/null
}

@test "a rank that is killed ends all; who it was is said; the checkpoint is the last one" {
    local k
    for k in 0 1; do
        begin
        kill -KILL "${rank[k]}"
        over
        [ "$ended" -ne 0 ]
        [ "$(($(meta "['step']" m.ckpt) % 20))" -eq 0 ]
        goes_on
    done
    # mpirun has the words, if it is not quiet.
    # shellcheck disable=SC2016  # for the inner shell
    run ! timeout 300 mpirun --oversubscribe --bind-to none -n 1 trainstep -q -d "$IN/ids.tok" --accum 2 -n 99999999 \
        --log rows m.ckpt : -n 1 bash -c 'trainstep -q -d "$0" --accum 2 -n 99999999 m.ckpt &
            until [ -s rows ]; do sleep 0.1; done; kill -KILL $! $$' \
        "$IN/ids.tok" </dev/null
    [[ $output == *"rank 1 "*"signal 9"* ]]
}

@test "SIGTERM to any rank: all save once, and end with 75" {
    local k
    for k in 0 1; do
        begin
        kill -TERM "${rank[k]}"
        over
        [ "$ended" -eq 75 ] || { echo "status $ended" && cat err && false; }
        [ "$(meta "['step']" m.ckpt)" -eq "$(tail -n 1 out | cut -f 1)" ]
        goes_on
    done
}

@test "SIGTERM to all ranks at once, as a launcher sends it: all save once, and end with 75" {
    begin
    kill -TERM "${rank[@]}"
    over
    [ "$ended" -eq 75 ] || { echo "status $ended" && cat err && false; }
    [ "$(meta "['step']" m.ckpt)" -eq "$(tail -n 1 out | cut -f 1)" ]
    goes_on
}

@test "SIGTERM to mpirun reaches all, who save once, if it gives them the time" {
    export OMPI_MCA_odls_base_sigkill_timeout=20
    begin
    kill -TERM $pid
    over
    [ "$ended" -ne 0 ]
    # Its words may be lost with mpirun.
    [ "$(meta "['step']" m.ckpt)" -ge "$(tail -n 1 out | cut -f 1)" ] || { cat err && tail -n 1 out && meta "['step']" m.ckpt && false; }
    goes_on
}

@test "a rank that hangs is noticed and named; all end, the checkpoint is the last one" {
    local k
    for k in 0 1; do
        begin --rank-timeout 2
        kill -STOP "${rank[k]}"
        over
        [ "$ended" -eq 2 ] || { echo "status $ended" && cat err && false; }
        [ "$(grep -c "rank $k hangs: nothing has come from it for 2 s (--rank-timeout)" err)" -eq 1 ] || { cat err && false; }
        [ "$(grep -c '^trainstep: ' err)" -eq 1 ] || { cat err && false; }
        [ "$(($(meta "['step']" m.ckpt) % 20))" -eq 0 ]
        goes_on
    done
    # Of four the two that wait for one agree on who it is; one of them says so.
    cp "$IN/small.ckpt" m.ckpt
    rm -f rows
    # shellcheck disable=SC2016  # for the inner shell
    run -2 --separate-stderr started -n 2 trainstep -q -d "$IN/ids.tok" --accum 4 -n 99999999 --rank-timeout 6 \
        --log rows m.ckpt : \
        -n 1 bash -c 'trainstep -q -d "$0" --accum 4 -n 99999999 --rank-timeout 6 m.ckpt &
            until [ -s rows ]; do sleep 0.1; done; kill -STOP $!; wait' \
        "$IN/ids.tok" : -n 1 trainstep -q -d "$IN/ids.tok" --accum 4 -n 99999999 --rank-timeout 6 m.ckpt
    # libevent, in mpirun, may warn of what it closes.
    [ "$(grep -v '^\[warn\] Epoll' <<<"$stderr")" = "trainstep: rank 2 hangs: nothing has come from it for 6 s (--rank-timeout)" ] ||
        { echo "$stderr" && false; }
}
