#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Training steps on the CPU beside PyTorch's: the same model, tokens and threads, f32, in
# one run; ours with products of bf16, too; and what the memory of a step is beside its plan.
#
#   bench/train.sh [-o CSV] [-j THREADS] [PART]...     PART: tiny small (all)
#
#   -o  where rows go (default: only standard output)
#   -j  threads of both (default: all processors)
#
# tiny: hidden 128, 4 layers, vocabulary 4096, 8 samples of 64.  small: the shape of
# Qwen3-0.6B, one sample of 512; it needs 12 GB for PyTorch.  BENCH_PYTHON has torch and
# transformers; without it the peer is not run and the exit status is 77.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
csv='' threads=$(nproc)
usage='usage: bench/train.sh [-o CSV] [-j THREADS] [PART]...'
while getopts o:j:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    j) threads=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(tiny small)
for p in "${parts[@]}"; do
    case $p in
    tiny | small) ;;
    *) echo "bench/train.sh: $p: no such part" >&2 && exit 2 ;;
    esac
done

dir=$(mktemp -d "${TMPDIR:-/var/tmp}/nibble-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
# shellcheck source=bench/common.bash
source "$here/common.bash"
python=${BENCH_PYTHON:-python3}
missing=0
begin threads,model,program,ms_per_step,tokens_per_second,memory_gb,plan_gb

# row MODEL PROGRAM MS TOKENS MEMORY PLAN
row()
{
    printf '%s,%s,%s,%s,%s,%s,%s\n' "$threads" "$1" "$2" "$3" \
        "$(awk -v t="$4" -v ms="$3" 'BEGIN { printf "%.0f", t / ms * 1000 }')" "$5" "$6" | keep
}

# config HIDDEN FFN LAYERS HEADS KV DIM VOCAB
config()
{
    cat <<JSON
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
 "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
 "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": true,
 "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02,
 "hidden_size": $1, "intermediate_size": $2, "num_hidden_layers": $3,
 "num_attention_heads": $4, "num_key_value_heads": $5, "head_dim": $6, "vocab_size": $7}
JSON
}

# ours MODEL NAME COMPUTE BATCH LENGTH STEPS PACK...: a checkpoint made so, the median of steps
ours()
{
    local model=$1 name=$2 compute=$3 batch=$4 length=$5 steps=$6 ms memory plan
    shift 6
    "$bin/datpack" -q -f --init 1 --config "$dir/$model.json" --to ckpt "$@" -o "$dir/m.ckpt"
    plan=$("$bin/trainstep" -q -j "$threads" --device cpu --compute "$compute" \
        -d "$dir/$model.tok" --batch "$batch" --dry-run "$dir/m.ckpt" | sed -n 's/^total\t[0-9]*\t//p')
    "$bin/trainstep" -q -j "$threads" --device cpu --compute "$compute" -d "$dir/$model.tok" \
        --batch "$batch" -n $((steps + 1)) "$dir/m.ckpt" | tail -n +3 >"$dir/log"
    ms=$(cut -f 9 "$dir/log" | sort -g | sed -n "$((steps / 2 + 1))p")
    memory=$(tail -n 1 "$dir/log" | cut -f 8)
    row "$model" "trainstep $name" "$ms" $((batch * length)) "$memory" "$plan"
    rm -f "$dir/m.ckpt"
}

theirs()
{
    local model=$1 batch=$2 length=$3 steps=$4 how=$5 ms
    if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
        echo "train: not run: PyTorch: BENCH_PYTHON has no torch and transformers" >&2
        missing=1
        return
    fi
    # shellcheck disable=SC2086  # how: nothing, or a word
    ms=$("$python" "$here/train_torch.py" "$dir/$model.json" "$batch" "$length" "$steps" \
        "$threads" $how 2>"$dir/err") || { tail -n 3 "$dir/err" >&2 && missing=1 && return; }
    row "$model" "torch $("$python" -c 'import torch; print(torch.__version__)') ${how:-eager}" \
        "$ms" $((batch * length)) - -
}

# model NAME BATCH LENGTH STEPS VOCAB CONFIG...
model()
{
    local name=$1 batch=$2 length=$3 steps=$4 vocab=$5
    shift 5
    config "$@" "$vocab" >"$dir/$name.json"
    awk -v n="$batch" -v t="$length" -v v="$vocab" 'BEGIN { srand(1)
        for (i = 0; i < n; i++) { s = ""
            for (k = 0; k <= t; k++) s = s int(rand() * v) " "
            print s } }' | "$bin/tokenize" -q --input ids -o "$dir/$name.tok"
    theirs "$name" "$batch" "$length" "$steps" ''
    local plain=(--master f32 --moments f32 --quant none)
    ours "$name" "f32" f32 "$batch" "$length" "$steps" "${plain[@]}"
    ours "$name" "f32 --compute bf16" bf16 "$batch" "$length" "$steps" "${plain[@]}"
    ours "$name" "bf16+int8+sweep" f32 "$batch" "$length" "$steps"
    ours "$name" "bf16+int8+sweep --compute bf16" bf16 "$batch" "$length" "$steps"
    theirs "$name" "$batch" "$length" "$steps" compile
}

part_tiny() { model tiny 8 64 21 4096 128 384 4 4 2 32; }
part_small() { model small 1 512 3 151936 1024 3072 28 16 8 128; }

for p in "${parts[@]}"; do
    "part_$p"
done
[ $missing -eq 0 ] || exit 77
