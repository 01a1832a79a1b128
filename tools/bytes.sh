#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Hashes of a fixed list of runs: what must not change when code is moved or renamed.
#
# usage: tools/bytes.sh [-j THREADS] [-d DEVICE] [BIN] >list
#
# A line is the hash of what a run wrote (files, or standard output) and its name.
# Compare the lists of two builds with diff.  On the CPU, or on DEVICE; under a minute.
set -euo pipefail
threads=2 device=cpu
while getopts j:d: option; do
    case $option in
    j) threads=$OPTARG ;;
    d) device=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
tree=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "${1:-$tree/bin}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >config.json <<'EOF'
{"model_type":"qwen3","architectures":["Qwen3ForCausalLM"],"vocab_size":3200,
"hidden_size":64,"intermediate_size":192,"num_hidden_layers":3,"num_attention_heads":4,
"num_key_value_heads":2,"head_dim":32,"hidden_act":"silu","max_position_embeddings":512,
"rms_norm_eps":1e-6,"rope_theta":1000000,"attention_bias":false,
"tie_word_embeddings":true,"torch_dtype":"bfloat16"}
EOF
sed 's/"tie_word_embeddings":true/"tie_word_embeddings":false/' config.json >untied.json

# hash NAME: of standard input, without times
hash()
{
    printf '%s  %s\n' "$(sed -E 's/"(prefill|decode)_s":[0-9.e-]+//g' |
        sha256sum | cut -c1-32)" "$*"
}

# files NAME PATH...: the hash of those files, of directories all that is in them
files()
{
    local name=$1
    shift
    ls -d "$@" >ls.txt
    find "$@" -type f -print0 | sort -z | xargs -0 cat | hash "$name"
}

run()
{
    local program=$1
    shift
    "$bin/$program" -q -f -j "$threads" "$@"
}

run datpack --init 1 --config config.json -o f16.dat
run datpack --init 2 --config untied.json --dtype bf16 -o hf/
run datpack --init 3 --config untied.json --dtype f32 -o f32.safetensors
files init f16.dat hf f32.safetensors

for quant in torchao native sweep1 max 4over6 sweep sweepfp8; do
    run nvquant --quant $quant --report report.tsv -o $quant.dat f16.dat
    files "nvquant $quant" $quant.dat report.tsv
    run nvquant --dequant --dtype f32 -o back.safetensors $quant.dat
    files "dequant $quant" back.safetensors
done
run nvquant --share-scale none --quant sweep --exhaustive -o x.dat f16.dat
files 'nvquant exhaustive' x.dat
run nvquant --quant max --variant modelopt -o x.safetensors f32.safetensors
files 'nvquant modelopt' x.safetensors
for to in modelopt compressed-tensors; do
    run datpack --to $to --quant max --dtype nvfp4 -o $to/ hf
    files "datpack $to" $to
done
run datpack --to gguf --dtype nvfp4 -t "$tree/tests/vectors/tokenizer-small.json" -o x.gguf f16.dat
files 'datpack gguf' x.gguf
run datpack --dtype bf16 -o from-gguf.dat x.gguf
files 'from gguf' from-gguf.dat

for ((i = 0; i < 40; i++)); do
    for ((k = 0; k < 5 + i % 23; k++)); do
        printf '%d ' $(((i * 131 + k * k * 7 + k) % 300))
    done
    echo
done >ids
run tokenize --input ids -o data.tok ids
run tokenize --input ids --seq-len 24 --pack -o packed.tok ids
run tokenize --input ids --shuffle 7 --seq-len 16 -o shuffled.tok ids
files tokenize data.tok packed.tok shuffled.tok

# train NAME PACK-OPTIONS -- OPTIONS: six steps, then as many again from the file
train()
{
    local name=$1 made=()
    shift
    while [ "$1" != -- ]; do
        made+=("$1")
        shift
    done
    shift
    run datpack --to ckpt --config config.json "${made[@]}" -o run.ckpt f16.dat
    for data in data packed; do
        "$bin/trainstep" -q -j "$threads" --device "$device" -d $data.tok -n 6 --lr 3e-3 "$@" \
            --log log.jsonl run.ckpt >table.tsv
    done
    run datpack --to dat -o out.dat run.ckpt
    files "train $name" run.ckpt out.dat
    rm run.ckpt log.jsonl
}
train default --
train f32 --master f32 --moments f32 --quant none -- --compute f32
train bf16 --master bf16 --moments bf16 -- --compute bf16 --batch 2
train accum -- --accum 3 --batch 2 --schedule cosine --warmup 2 --total-steps 9
train from --quant sweep -- --quant-from 4
train prev --quant max --share-scale none -- --clip-mode prev --weight-decay 0.1
train tensor --quant native -- --clip-mode tensor --recompute block --chunk-rows 5
train last --quant 4over6 -- --train-last-layers 1 --order file
train scalar -- --loss scalar
train activations -- --activations nvfp4 --batch 2
[ "$device" != cpu ] ||
    train torchsharp --compat seed --quant native --moments nvfp4 -- --compat seed
[ "$device" != cpu ] ||
    train int8 --compat seed --quant native --moments int8 -- --compat seed --loss scalar

for model in f16.dat hf sweep.dat native.dat modelopt compressed-tensors x.gguf; do
    for extra in '' '--compute bf16' '--fast'; do
        # shellcheck disable=SC2086  # options
        run generate --device "$device" --ids -p '1 2 3 4 5' -n 12 --json --top-logprobs 3 \
            $extra $model | hash "generate $model $extra"
        # shellcheck disable=SC2086
        run generate --device "$device" --score packed.tok $extra $model |
            hash "score $model $extra"
    done
done
run generate --device "$device" --ids -p '9 8 7' -n 20 --temp 0.8 --top-p 0.9 --seed 5 \
    --ignore-eos f16.dat | hash 'generate sampled'
run generate --device "$device" --ids -p '9 8 7' -n 9 --json --activations nvfp4 sweep.dat |
    hash 'generate activations'
run generate --device "$device" --ids -p '9 8 7' -n 9 --json --quant max hf |
    hash 'generate quant'
run generate --device "$device" --ids -p '9 8 7 6 5' -n 1 --dump-layers layers.safetensors \
    --logits logits.safetensors f16.dat >out.txt
files 'dump-layers, logits' layers.safetensors logits.safetensors out.txt
