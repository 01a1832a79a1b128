#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One member of a family: puts the values that all of the family share into a container,
# runs it (run.sh), and removes it.
#
#   container.sh FAMILY CONTAINER BASE OUT
#
# BASE has the models that all is made of: bf16/, f16.dat, nvfp4.dat (two levels, the head
# not quantized), head.dat (the head, too) and one.dat (one level, from f16).
set -euo pipefail

family=$1 container=$2 base=$3 out=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$out.container
pack=(-q)
[ -z "${THREADS:-}" ] || pack+=(-j "$THREADS")
gguf=(--to gguf)
[ ! -e "$TOKENIZER" ] || gguf+=(-t "$TOKENIZER")
trap 'rm -rf "$work"' EXIT
rm -rf "$work"
mkdir "$work"
options=()
case $family in
bf16 | f16) source=$base/$family && [ -d "$source" ] || source=$source.dat ;;
*) source=$base/$family.dat ;;
esac

model=$work/model.safetensors
case $family.$container in
bf16.directory) model=$source ;;
bf16.shards)
    model=$work/model
    datpack "${pack[@]}" --shard-size $(($(datcat --tsv "$source" | awk '{ n += $5 } END { printf "%d", n }') / 3)) \
        -o "$model/" "$source"
    ;;
bf16.dat)
    model=$work/model.dat
    datpack "${pack[@]}" --dtype bf16 -o "$model" "$source"
    ;;
f16.dat | nvfp4.dat | head.dat | one.dat) model=$source ;;
f16.directory)
    model=$work/model
    datpack "${pack[@]}" -o "$model/" "$source"
    ;;
bf16.safetensors | f16.safetensors) datpack "${pack[@]}" -o "$model" "$source" ;;
bf16.f32 | f16.f32) datpack "${pack[@]}" --dtype f32 -o "$model" "$source" ;;
bf16.ckpt)
    model=$work/run.ckpt
    datpack "${pack[@]}" --master bf16 --quant none -o "$model" "$source"
    ;;
bf16.ckpt-f32 | f16.ckpt-f32)
    model=$work/run.ckpt
    datpack "${pack[@]}" --master f32 --quant none -o "$model" "$source"
    ;;
nvfp4.safetensors) nvquant "${pack[@]}" -x lm_head.weight -o "$model" "$base/bf16" ;;
nvfp4.modelopt | nvfp4.compressed-tensors)
    model=$work/model
    datpack "${pack[@]}" --to "$container" -o "$model" "$source"
    ;;
nvfp4.gguf)
    model=$work/model.gguf
    datpack "${pack[@]}" "${gguf[@]}" -o "$model" "$source"
    ;;
nvfp4.ckpt) # training sees the weights that are exported
    model=$work/run.ckpt
    datpack "${pack[@]}" --quant sweep -o "$model" "$base/bf16"
    ;;
nvfp4.export)
    datpack "${pack[@]}" --quant sweep -o "$work/run.ckpt" "$base/bf16"
    datpack "${pack[@]}" --dtype nvfp4 -o "$model" "$work/run.ckpt"
    ;;
nvfp4.quantized-here)
    model=$base/bf16
    options=(--quant sweep)
    ;;
head.safetensors) nvquant "${pack[@]}" --untie -o "$model" "$base/bf16" ;;
one.seed)
    model=$work/model.dat
    nvquant "${pack[@]}" --compat torchsharp --quant sweep1 -o "$model" "$base/f16.dat"
    cp "$base/bf16/config.json" "$work/config.json" # such files have no sidecar
    ;;
one.safetensors) nvquant "${pack[@]}" --untie --quant sweep1 -o "$model" "$base/f16.dat" ;;
*)
    echo "container.sh: $family.$container: no such member" >&2
    exit 2
    ;;
esac
"$here/run.sh" "$out" "$model" "${options[@]}"
