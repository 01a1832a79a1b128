#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One row of the table, with its head: quantizes a model, runs it, removes it.
#
#   row.sh NAME SCORE.tok LOGITS WORK.dat [OPTION of nvquant]...
#
# NAME "none" is the model as it is.  Environment: MODEL_DIR, RUN_FLAGS (device, threads),
# RUNS (of nvquant, the fastest counts).
set -euo pipefail

name=$1 samples=$2 logits=$3 work=$4
shift 4
read -ra flags <<<"$RUN_FLAGS"
trap 'rm -f "$work" "$work.json" "$work".{report,times,score}' EXIT

# seconds FILE COMMAND...: its output into FILE; print how long it took.
seconds()
{
    local file=$1 start=${EPOCHREALTIME/./}
    shift
    "$@" >"$file"
    awk -v us=$((${EPOCHREALTIME/./} - start)) 'BEGIN { printf "%.3f\n", us / 1e6 }'
}

model=$MODEL_DIR
quantizing=-
if [ "$name" != none ]; then
    model=$work
    for ((i = 0; i < RUNS; i++)); do
        rm -f "$work.report"
        seconds /dev/null nvquant -q -f "${flags[@]}" "$@" --report "$work.report" -o "$work" "$MODEL_DIR"
    done >"$work.times"
    quantizing=$(sort -g "$work.times" | head -n 1)
else
    : >"$work.report"
fi

# Bits of a weight, over the tensors that some quantizer takes.
bits=$(datcat --tsv "$model" | awk -F '\t' '
    $1 ~ /(_proj|lm_head)\.weight$/ {
        gsub(/[][]/, "", $3)
        split($3, n, ",")
        bytes += $5
        weights += n[1] * n[2]
    }
    END { printf "%.4f\n", 8 * bytes / weights }')

# Signal to noise of all tensors of a kind together, in dB: from each one's ratio and mean
# squared error follows its signal.
kinds='q k v o gate up down lm_head'
sqnr=$(awk -F '\t' -v kinds="all $kinds" '
    function note(of) {
        noise[of] += n * $4
        signal[of] += n * $4 * 10 ^ ($3 / 10)
    }
    NR > 1 {
        split($2, shape, "x")
        n = shape[1] * shape[2]
        kind = $1
        sub(/\.weight$/, "", kind)
        sub(/.*\./, "", kind)
        sub(/_proj$/, "", kind)
        note(kind)
        note("all")
    }
    END {
        m = split(kinds, list, " ")
        for (i = 1; i <= m; i++) {
            s = signal[list[i]]
            e = noise[list[i]]
            db = e > 0 ? sprintf("%.3f", 10 * log(s / e) / log(10)) : "-"
            printf("%s%s", i == 1 ? "" : "\t", db)
        }
        print ""
    }' "$work.report")

scoring=$(seconds "$work.score" generate -q "${flags[@]}" --score "$samples" \
    --kl "$logits" "$model")
score=$(awk -F '\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR == 2 { printf "%s\t%s\t%s\t%s\n", $at["kl"], $at["top1"], $at["loss"], $at["perplexity"] }' \
    "$work.score")

printf 'quantizer\tkl\ttop1\tloss\tperplexity\tbits\tsqnr\t%s\tquant_s\tscore_s\n' "${kinds// /$'\t'}"
printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$score" "$bits" "$sqnr" "$quantizing" "$scoring"
