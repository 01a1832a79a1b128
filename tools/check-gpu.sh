#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Is the CUDA backend right on this machine's GPU?  For who has a card; "make check-gpu"
# builds and calls this, "make check-sanitize-gpu" with --sanitize.
#
#   tools/check-gpu.sh [--sanitize]
#
# Every operation against the CPU's (tests/gpu), NVFP4 products by the chip's own units
# where it has them included; then steps of a small model and nvquant's bytes by the
# programs, on both sides and by both paths; what a GPU that fails does to them; golden
# models if GOLDEN names their directories.
# --sanitize: the tests of operations once more, their smaller cases, under each tool of
# compute-sanitizer; WHOLE=1: all cases, which takes hours.  Kernels of cuDNN are left out of
# synccheck and racecheck, which report their barriers; racecheck has fewer cases, none
# with products by cuBLASLt, since with those it does not end.
#
# The last line is "N passed, N failed".  What this card cannot do is named as "not run"
# and is in neither number; without a GPU nothing is run, and the exit code is 77.
#
# Environment: NIBBLE_BIN and NIBBLE_BUILD, as tools/test.sh; GOLDEN, TEACHER; WHOLE; NIBBLE_GPU_TESTS
# some programs of tests/gpu instead of all; NIBBLE_GPU_CASES attention says what case it is at.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

bin=${NIBBLE_BIN:-$PWD/bin}
build=${NIBBLE_BUILD:-$PWD/build}
export NIBBLE_BIN=$bin NIBBLE_BUILD=$build
# Programs look for the backend beside themselves, and those of tests/gpu are elsewhere.
[ ! -e "$bin/libnibble-cuda.so" ] || export NIBBLE_CUDA=${NIBBLE_CUDA:-$bin/libnibble-cuda.so}
passed=0 failed=0 skipped=0

say() { printf '%s\n' "$*"; }

not_run()
{
    say "$1: not run: $2"
    skipped=$((skipped + 1))
}

# one NAME COMMAND...: it passes with 0; lines that say "not run" are passed on.
one()
{
    local name=$1 rc=0 line
    shift
    "$@" >"$dir/log" 2>&1 || rc=$?
    while IFS= read -r line; do
        not_run "$name" "${line#*not run: }"
    done < <(grep 'not run: ' "$dir/log" || true)
    case $rc in
    0) passed=$((passed + 1)) && say "$name: ok" ;;
    77) ;;
    *)
        failed=$((failed + 1))
        say "$name: FAILED, status $rc"
        tail -n 40 "$dir/log" | sed 's/^/    /'
        ;;
    esac
}

names()
{
    local f
    if [ -n "${NIBBLE_GPU_TESTS:-}" ]; then
        echo "$NIBBLE_GPU_TESTS" | tr ' ' '\n'
        return
    fi
    for f in tests/gpu/*.c; do
        basename "$f" .c
    done
}

operations()
{
    local n
    for n in $(names); do
        one "gpu $n" "$build/gpu/$n"
    done
}

# Errors of the device; initcheck also of what was never written, racecheck of shared
# memory.  A finding makes the status 99, not that of the program.
sanitized()
{
    local tool n cases only
    if ! command -v compute-sanitizer >/dev/null; then
        say 'check-sanitize-gpu: FAILED: there is no compute-sanitizer'
        failed=$((failed + 1))
        return
    fi
    for tool in memcheck initcheck synccheck racecheck; do
        only=() cases=(--small)
        case $tool in
        synccheck | racecheck) only=(--kernel-name-exclude regex=cudnn) ;;
        esac
        [ -z "${WHOLE:-}" ] || cases=()
        [ "$tool" != racecheck ] || cases=(--few)
        for n in $(names); do
            one "$tool $n" compute-sanitizer --tool "$tool" --error-exitcode 99 \
                "${only[@]}" "$build/gpu/$n" "${cases[@]}"
        done
    done
}

# near NAME FIRST LATER A B: files of numbers that are the same but for a share, another one
# for the first.
near()
{
    # shellcheck disable=SC2016  # of awk
    one "$1" awk -v first="$2" -v later="$3" '
        function size(a) { return a < 0 ? -a : a }
        FNR == NR { a[FNR] = $1; n = FNR; next }
        $1 ~ /[^-+.0-9e]/ ||
        size($1 - a[FNR]) > (FNR == 1 ? first : later) * size(a[FNR]) {
            print "number " FNR ": " $1 ", the CPU says " a[FNR]; bad = 1
        }
        END { if (FNR != n || n == 0) { print FNR " numbers, the CPU has " n; bad = 1 }
              exit bad }' "$4" "$5"
}

# losses FILE OPTION...: of four steps of the small model, one a line.
losses()
{
    local to=$1
    shift
    rm -f "$dir/o.ckpt"
    "$bin/trainstep" -q -d "$dir/d.tok" --batch 4 -n 4 --lr 3e-4 -o "$dir/o.ckpt" "$@" \
        "$dir/m.ckpt" | tail -n +2 | cut -f 2 >"$to"
}

# Its projections have multiples of 128 rows and columns, which native products take.
make_model()
{
    cat >"$dir/config.json" <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
 "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0,
 "max_position_embeddings": 256, "torch_dtype": "float32", "tie_word_embeddings": true,
 "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 256,
 "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "head_dim": 64, "initializer_range": 0.05}
JSON
    "$bin/datpack" -q --init 1 --config "$dir/config.json" --to ckpt --master f32 \
        --moments f32 --quant max -o "$dir/m.ckpt"
    awk 'BEGIN { srand(1); for (i = 0; i < 8; i++) { for (k = 0; k < 40; k++)
        printf "%d ", int(rand() * 512); print "" } }' |
        "$bin/tokenize" -q --input ids -o "$dir/d.tok"
}

# Sums in another order are off by 1e-6, a code that falls on the other side of a threshold
# for that by more; where activations are bf16 one in fifty does.  The first loss shows such
# codes alone.  After it AdamW, whose first step has the size of lr however small a gradient
# is, takes weights near none the other way: later losses drift from there.
programs()
{
    local path native compute first later
    native=$("$bin/trainstep" --diagnose | awk -F '\t' '$1 == "path.native" { print $2 }')
    make_model
    losses "$dir/cpu.plain" --device cpu
    losses "$dir/cpu.nvfp4" --device cpu --activations nvfp4
    for compute in f32 bf16; do
        first=1e-4 later=1e-3
        [ $compute = f32 ] || first=1e-3 later=1e-2
        losses "$dir/gpu" --device cuda --compute $compute || : >"$dir/gpu"
        near "trainstep $compute" $first $later "$dir/cpu.plain" "$dir/gpu"
        first=1e-3 later=1e-2
        [ $compute = f32 ] || first=1e-2 later=3e-2
        for path in dequant native; do
            if [ $path = native ] && [[ $native != yes* ]]; then
                not_run "trainstep --activations nvfp4 --path native $compute" "$native"
                continue
            fi
            losses "$dir/gpu" --device cuda --compute $compute --activations nvfp4 \
                --path $path || : >"$dir/gpu"
            near "trainstep --activations nvfp4 --path $path $compute" $first $later \
                "$dir/cpu.nvfp4" "$dir/gpu"
        done
    done
}

# Products of FP8: as the CPU emulates them, and the same bytes however a training is cut.
fp8()
{
    losses "$dir/cpu.fp8" --device cpu --compute fp8
    losses "$dir/gpu" --device cuda --compute fp8 || : >"$dir/gpu"
    mv -f "$dir/o.ckpt" "$dir/whole.ckpt" || :
    near 'trainstep fp8' 5e-3 3e-2 "$dir/cpu.fp8" "$dir/gpu"
    losses "$dir/gpu" --device cuda --compute fp8 -n 1 || :
    "$bin/trainstep" -q --device cuda --compute fp8 -d "$dir/d.tok" --until 4 "$dir/o.ckpt" \
        >"$dir/log" || :
    one 'trainstep fp8, cut' cmp "$dir/whole.ckpt" "$dir/o.ckpt"
    losses "$dir/cpu.delayed" --device cpu --compute fp8 --fp8-scales delayed
    losses "$dir/gpu" --device cuda --compute fp8 --fp8-scales delayed || : >"$dir/gpu"
    mv -f "$dir/o.ckpt" "$dir/whole.ckpt" || :
    near 'trainstep fp8 delayed' 5e-3 3e-2 "$dir/cpu.delayed" "$dir/gpu"
    losses "$dir/gpu" --device cuda --compute fp8 --fp8-scales delayed -n 1 || :
    "$bin/trainstep" -q --device cuda --compute fp8 -d "$dir/d.tok" --until 4 "$dir/o.ckpt" \
        >"$dir/log" || :
    one 'trainstep fp8 delayed, cut' cmp "$dir/whole.ckpt" "$dir/o.ckpt"
    packed_fp8
    local device
    for device in cpu cuda; do
        "$bin/generate" -q --device $device --compute fp8 --score "$dir/d.tok" "$dir/m.ckpt" |
            awk -F '\t' 'NR == 2 { print 1, $4, 1, 1 }' >"$dir/$device.score" || :
    done
    near 'generate fp8' 5e-3 5e-3 "$dir/cpu.score" "$dir/cuda.score"
}

# With less memory weights stay packed: the same bytes.
packed_fp8()
{
    local limit
    set -- -q --device cuda --compute fp8 -d "$dir/d.tok" --batch 4 -n 4 --lr 3e-4 --recompute none
    "$bin/trainstep" "$@" -f -o "$dir/whole.ckpt" "$dir/m.ckpt" >"$dir/log" || :
    limit=$("$bin/trainstep" "$@" --dry-run "$dir/m.ckpt" |
        awk '$1 == "total" { printf "%.9f", ($2 - 2^19) / 2^30 }') || limit=
    shift
    "$bin/trainstep" "$@" -v --memory-limit "${limit:-1}" -f -o "$dir/o.ckpt" "$dir/m.ckpt" \
        >"$dir/log" 2>"$dir/words" || :
    one 'trainstep fp8, packed: its plan' grep 'FP8 weights packed' "$dir/words"
    one 'trainstep fp8, packed' cmp "$dir/whole.ckpt" "$dir/o.ckpt"
}

# The same bytes from both.
quantizers()
{
    local quant device
    "$bin/datpack" -q -o "$dir/m.dat" "$dir/m.ckpt"
    for quant in max sweep sweepfp8; do
        for device in cpu cuda; do
            rm -f "$dir/$device.dat"
            "$bin/nvquant" -q --device $device --quant $quant \
                -o "$dir/$device.dat" "$dir/m.dat" || :
        done
        one "nvquant $quant" cmp "$dir/cpu.dat" "$dir/cuda.dat"
    done
}

# Logits of a GPU say what computed them; m.dat is there.
routes()
{
    local compute path
    for compute in f32 bf16; do
        for path in '' dequant; do
            "$bin/generate" -q -f --device cuda --compute $compute --ids -p '5 6 7' -n 1 \
                ${path:+--quant max --activations nvfp4 --path $path} --config "$dir/config.json" \
                --logits "$dir/l" "$dir/m.dat" >/dev/null || : >"$dir/l"
            "$bin/datcat" --meta "$dir/l" >"$dir/meta" || :
            one "generate --logits $compute${path:+ $path}: its route" grep -Eq \
                "\"route\": ?\"cuda $compute [0-9]+ sm_[0-9]+ .*cudnn [0-9]+${path:+ fp4 $path}\"" "$dir/meta"
        done
    done
}

# An answer has the same bytes alone and with others, of which some end early; m.dat is there.
together()
{
    local compute n
    awk 'BEGIN { srand(2); for (i = 0; i < 21; i++) { n = int(rand() * 40) + (i % 3 == 2 ? 64 + i * 5 : 0)
        for (k = 0; k <= n; k++) printf "%d ", int(rand() * 512); print "" } }' >"$dir/prompts"
    for compute in f32 bf16; do
        for n in 1 3 8 21; do
            "$bin/generate" -q --device cuda --compute $compute --quant max --ids --json -n 20 \
                --top-logprobs 2 --temp 0.7 --batch $n --config "$dir/config.json" "$dir/m.dat" \
                <"$dir/prompts" | sed 's/,"timing.*//' >"$dir/answers.$n" || : >"$dir/answers.$n"
            [ $n -eq 1 ] || [ ! -s "$dir/answers.1" ] ||
                one "generate --batch $n $compute" cmp "$dir/answers.1" "$dir/answers.$n"
        done
        one "generate --batch $compute: all are answered" [ "$(wc -l <"$dir/answers.21")" = 21 ]
    done
}

# Prompts that begin alike share whole chunks of few tokens and any number of more, and have the answers
# that each has by itself; m.dat is there.
alike()
{
    local compute n line chunk
    awk 'BEGIN { split("28 29 60 1 100 4 28", own); for (i = 1; i <= 7; i++) {
        for (k = 1; k <= 100 + own[i]; k++) printf "%d ", (k <= 100 ? k : k + own[i]) * 37 % 512; print "" } }' >"$dir/prompts"
    for compute in 'f32 64' 'bf16 64' 'f32 4096' 'bf16 4096'; do
        chunk=${compute#* } compute=${compute% *}
        set -- -q --device cuda --compute "$compute" --quant max --ids -n 4 --ignore-eos \
            --prefill-chunk "$chunk" --config "$dir/config.json" "$dir/m.dat"
        while read -r line; do
            "$bin/generate" "$@" <<<"$line" || :
        done <"$dir/prompts" >"$dir/alone"
        for n in 1 4; do
            "$bin/generate" "$@" -v --batch $n <"$dir/prompts" >"$dir/answers" 2>"$dir/words" || :
            one "generate --batch $n $compute: prompts that begin alike, chunks of $chunk" cmp "$dir/alone" "$dir/answers"
            one "generate --batch $n $compute: less is computed, chunks of $chunk" grep -Eq 'prompts: 950 tokens, [1-7][0-9][0-9] computed' "$dir/words"
        done
        one "generate $compute: all by themselves, chunks of $chunk" [ "$(wc -w <"$dir/alone")" = 28 ]
    done
}

# What --fast is on a GPU, of a model that is too narrow for what it is on the CPU; d.tok is there.
fast()
{
    sed 's/"hidden_size": 256/"hidden_size": 128/' "$dir/config.json" >"$dir/narrow.json"
    "$bin/datpack" -q --init 1 --config "$dir/narrow.json" --to ckpt -o "$dir/narrow.ckpt"
    rm -f "$dir/o.ckpt"
    "$bin/trainstep" -q -d "$dir/d.tok" --device cuda --fast -o "$dir/o.ckpt" "$dir/narrow.ckpt" \
        >/dev/null || :
    "$bin/datcat" --meta "$dir/o.ckpt" >"$dir/meta" || : >"$dir/meta"
    one "trainstep --fast: its route" grep -Eq '"route": ?"cuda bf16 fast [0-9]+ sm_' "$dir/meta"
}

# A training on the GPU, computed again; d.tok and m.ckpt are there.
replay()
{
    local compute
    for compute in f32 bf16; do
        cp "$dir/m.ckpt" "$dir/r.ckpt"
        "$bin/trainstep" -q -d "$dir/d.tok" --device cuda --compute $compute --batch 4 -n 3 --lr 3e-4 \
            "$dir/r.ckpt" >/dev/null || :
        one "trainstep --replay $compute" "$bin/trainstep" -q -d "$dir/d.tok" --device cuda \
            --compute $compute --replay 0..3 --from "$dir/m.ckpt" "$dir/r.ckpt"
    done
}

golden()
{
    local compute
    for compute in f32 bf16; do
        # shellcheck disable=SC2086  # a list of directories
        one "golden models $compute" python3 -B tests/golden.py --device cuda \
            --compute $compute $GOLDEN
        [ -z "${TEACHER:-}" ] || one "distillation $compute" python3 -B tests/golden.py \
            --device cuda --compute $compute --distill "$TEACHER" "${GOLDEN%% *}"
    done
}

what=check-gpu
if [ "${1:-}" = --sanitize ]; then
    what=check-sanitize-gpu
    shift
fi
[ $# -eq 0 ] || { echo 'usage: tools/check-gpu.sh [--sanitize]' >&2 && exit 2; }
[ -x "$build/gpu/open" ] || { echo "tools/check-gpu.sh: no $build/gpu/open: make $what" >&2 && exit 2; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
rc=0
"$build/gpu/open" >"$dir/log" 2>&1 || rc=$?
if [ "$rc" -eq 77 ]; then
    say "$what: $(tail -n 1 "$dir/log")"
    exit 77
fi
if [ "$rc" -ne 0 ]; then
    sed 's/^/    /' "$dir/log"
    say "$what: FAILED: there is a GPU, and its backend does not open"
    say "0 passed, 1 failed"
    exit 1
fi
if [ $what = check-gpu ]; then
    operations
    programs
    fp8
    quantizers
    routes
    together
    alike
    fast
    replay
    one failures tests/gpu/failures.sh
    [ -z "${GOLDEN:-}" ] || golden
else
    sanitized
fi
[ "$skipped" -eq 0 ] || say "$skipped not run, see above"
say "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
