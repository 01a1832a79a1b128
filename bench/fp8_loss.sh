#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Losses of FP8 products beside those of other types, step by step.
#
#   bench/fp8_loss.sh table [FILE.tsv]            mean losses of each 100 steps, and of the last 50
#   bench/fp8_loss.sh plot FILE.svg [FILE.tsv]    the curves, means of 20 steps, by gnuplot
#   bench/fp8_loss.sh random [STEPS]              train from random weights on this CPU: a FILE.tsv
#
# FILE.tsv (results/fp8-loss-h200.tsv; fp8-loss-h100.tsv) has a column "step", one of the losses that others are
# compared with, and those others.  `random` has f32, and FP8 with current and with delayed
# scales, of a model of 0.3 million weights; its samples are the bytes of the manual pages.
#
# Environment: NIBBLE_BIN (../bin).
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}

table()
{
    awk -F '\t' -v OFS='\t' '
        NR == 1 {
            for (i = 2; i <= NF; i++)
                name[i] = $i
            n = NF
            next
        }
        {
            for (i = 2; i <= n; i++)
                loss[$1, i] = $i
            last = $1
        }
        function line(what, from, to,    i, k, sum, s, first) {
            s = what
            for (i = 2; i <= n; i++) {
                sum = 0
                for (k = from; k <= to; k++)
                    sum += loss[k, i]
                sum /= to - from + 1
                first = i == 2 ? sum : first
                s = s OFS sprintf("%.4f", sum) (i == 2 ? "" : OFS sprintf("%+.3f %%", 100 * (sum / first - 1)))
            }
            print s
        }
        END {
            s = "steps" OFS name[2]
            for (i = 3; i <= n; i++)
                s = s OFS name[i] OFS "difference"
            print s
            for (k = 1; k + 99 <= last; k += 100)
                line(k "-" k + 99, k, k + 99)
            line("last 50", last > 49 ? last - 49 : 1, last)
        }' "$1"
}

plot()
{
    command -v gnuplot >/dev/null || { echo 'bench/fp8_loss.sh: there is no gnuplot' >&2 && return 1; }
    # Means of 20 steps: single steps are all noise.
    awk -F '\t' -v OFS='\t' 'NR == 1 { print; next }
        { for (i = 2; i <= NF; i++) sum[i] += $i }
        (NR - 1) % 20 == 0 {
            s = $1
            for (i = 2; i <= NF; i++) { s = s OFS sum[i] / 20; sum[i] = 0 }
            print s
        }' "$2" >"$dir/curves"
    gnuplot <<GP
set terminal svg size 800,400 background "white"
set output "$dir/out.svg"
set datafile separator "\t"
set xlabel "step"
set ylabel "loss"
set key top right noenhanced
set grid
plot for [i=2:$(awk -F '\t' 'NR == 1 { print NF }' "$2")] "$dir/curves" using 1:i with lines title columnhead(i)
GP
    cp "$dir/out.svg" "$1"
}

config()
{
    cat <<'JSON'
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
 "attention_bias": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "torch_dtype": "float32",
 "vocab_size": 256, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
 "max_position_embeddings": 256, "initializer_range": 0.02, "tie_word_embeddings": true}
JSON
}

# losses NAME OPTION...: of each step, under a name
losses()
{
    echo "$1"
    "$bin/trainstep" -q --device cpu -d "$dir/d.tok" --batch 8 -n "$steps" --lr 1e-3 --warmup 50 \
        -f -o "$dir/o.ckpt" "${@:2}" "$dir/m.ckpt" | awk -F '\t' 'NR > 1 { print $2 }'
}

random()
{
    local steps=${1:-1000}
    config >"$dir/config.json"
    "$bin/datpack" -q --init 1 --config "$dir/config.json" --to ckpt --quant sweepfp8 -o "$dir/m.ckpt"
    cat "$here"/../man/*.1 | od -An -v -tu1 -w97 | "$bin/tokenize" -q --input ids -o "$dir/d.tok"
    losses f32 --compute f32 >"$dir/f32"
    losses fp8-current --compute fp8 --fp8-scales current >"$dir/current"
    losses fp8-delayed --compute fp8 --fp8-scales delayed >"$dir/delayed"
    { echo step && seq "$steps"; } | paste - "$dir/f32" "$dir/current" "$dir/delayed"
}

usage='usage: bench/fp8_loss.sh table [TSV] | plot SVG [TSV] | random [STEPS]'
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
default=$here/results/fp8-loss-h200.tsv
case "${1:-} $#" in
table\ [12]) table "${2:-$default}" ;;
plot\ [23]) plot "$2" "${3:-$default}" ;;
random\ [12]) random "${2:-1000}" ;;
*) echo "$usage" >&2 && exit 2 ;;
esac
