#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA backend on this machine's GPU: is it right, and how fast beside its limits and
# beside PyTorch.
#
#   bench/gpu.sh [-o DIR] [-d DIR] [PART]...
#
#   -o  where results go: a file a part (default: bench/results/gpu-NAME, by the GPU)
#   -d  scratch directory (${TMPDIR:-/var/tmp}); train and generate need 45 GB
#
# Parts, all by default:
#   check      every operation against the CPU's, golden models by the programs
#   kernels    times of products, attention, the optimizer, quantizers and the rest
#   train      steps of a random Qwen3-4B; TRAIN="8x2048 2x2048" are its passes
#   generate   prefill and decoding of the same, NVFP4
#   peers      the same in PyTorch
#
# Environment: NIBBLE_BIN (../bin), NIBBLE_BUILD (../build: gpu/ has the test programs),
# GOLDEN (directories of golden models), BENCH_PYTHON (python3 with torch, transformers).
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
build=${NIBBLE_BUILD:-$here/../build}
python=${BENCH_PYTHON:-python3}
out='' scratch=${TMPDIR:-/var/tmp}
usage='usage: bench/gpu.sh [-o DIR] [-d DIR] [PART]...'
while getopts o:d:h opt; do
    case $opt in
    o) out=$OPTARG ;;
    d) scratch=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(check kernels train generate peers)
command -v nvidia-smi >/dev/null || { echo 'bench/gpu.sh: not run: no GPU' >&2 && exit 77; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
[ -n "$out" ] || out=$here/results/gpu-$(echo "${gpu#NVIDIA }" | tr 'A-Z ' 'a-z-')
mkdir -p "$out"
dir=$(mktemp -d "$scratch/nibble-gpu.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export NIBBLE_BIN=$bin
failed=0

# say FILE COMMAND...: run it, its output to the screen and to a result.
say()
{
    local file=$1
    shift
    if ! "$@" 2>&1 | tee "$out/$file"; then
        failed=1
        echo "FAILED: $*"
    fi
}

part_check()
{
    for t in adamw attention gemm quant rows; do
        if "$build/gpu/$t" >"$dir/log" 2>&1; then
            echo "$t: ok"
        else
            failed=1
            echo "$t: FAILED" && head -n 12 "$dir/log"
        fi
    done
    [ -n "${GOLDEN:-}" ] || return 0
    for compute in f32 bf16; do
        # shellcheck disable=SC2086  # a list of directories
        "$python" -B "$here/../tests/golden.py" --device cuda --compute $compute $GOLDEN ||
            failed=1
    done
}

part_kernels()
{
    for t in gemm attention rows adamw quant; do
        [ -x "$build/gpu/$t" ] && say "$t.tsv" "$build/gpu/$t" --time
    done
}

# The random model, once.
need_model()
{
    [ -e "$dir/m.ckpt" ] && return
    echo "-- making a model"
    "$bin/datpack" -q --init 1 --config "$here/qwen3-4b-config.json" --to ckpt \
        --quant "${QUANT:-max}" -o "$dir/m.ckpt"
}

# N samples of LENGTH + 1 ids, every token a target.
samples()
{
    awk -v n="$1" -v length_="$2" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++) {
            for (k = 0; k <= length_; k++)
                printf "%d ", int(rand() * 151643)
            print ""
        }
    }' | "$bin/tokenize" -q -f --input ids -o "$dir/data.tok"
}

# train BATCHxLENGTH OPTION...: a few steps; the median without the first two
train()
{
    local shape=$1 batch=${1%x*} length=${1#*x}
    shift
    samples $((batch * 4)) "$length"
    "$bin/trainstep" -v --device cuda -d "$dir/data.tok" --batch "$batch" -n "${STEPS:-8}" \
        --lr 1e-5 --log "$dir/log" -o "$dir/o.ckpt" -f "$@" "$dir/m.ckpt" >"$dir/tsv" 2>"$dir/err" ||
        { echo "FAILED: train $shape $*" && tail -n 3 "$dir/err" && failed=1 && return; }
    tail -n 3 "$dir/err"
    "$python" - "$dir/log" "$shape" "$*" <<'END' | tee -a "$out/train.tsv"
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
rows = [r for r in rows if "ms" in r and "loss" in r]
ms = sorted(r["ms"] for r in rows[2:])
ms = ms[len(ms) // 2]
b, t = map(int, sys.argv[2].split("x"))
print("trainstep %s %s\t%.1f ms\t%.0f tokens/s\t%.1f GB\tloss %.4f" %
      (sys.argv[2], sys.argv[3], ms, b * t / ms * 1e3, rows[-1]["mem_gb"], rows[-1]["loss"]))
END
}

part_train()
{
    need_model
    for shape in ${TRAIN:-8x2048 2x2048}; do
        # shellcheck disable=SC2086  # options
        train "$shape" ${OPTIONS:-}
    done
}

part_generate()
{
    need_model
    "$bin/datpack" -q -f --quant max --to dat --dtype nvfp4 --config "$here/qwen3-4b-config.json" \
        -o "$dir/m.dat" "$dir/m.ckpt" || return
    local ids
    for n in 128 4096; do
        ids=$(awk -v n="$n" 'BEGIN { srand(2); for (i = 0; i < n; i++) printf "%d ", int(rand() * 151643) }')
        # The first prompt pays for what is made once.
        "$bin/generate" -v --device cuda --config "$here/qwen3-4b-config.json" --ids --ignore-eos \
            -n 128 -p "$ids" -p "$ids" -p "$ids" "$dir/m.dat" 2>&1 >/dev/null | grep prefill |
            sed "s/^/$n ids: /" | tee -a "$out/generate.tsv"
    done
}

part_peers()
{
    for shape in ${TRAIN:-8x2048 2x2048}; do
        "$python" "$here/gpu_torch.py" train "${shape%x*}" "${shape#*x}" "${STEPS:-8}" 2>/dev/null |
            tee -a "$out/peers.tsv" || failed=1
    done
    "$python" "$here/gpu_torch.py" decode 128 128 2>/dev/null | tee -a "$out/peers.tsv" || failed=1
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$out/machine"
for p in "${parts[@]}"; do
    echo "== $p"
    "part_$p"
done
[ "$failed" -eq 0 ]
