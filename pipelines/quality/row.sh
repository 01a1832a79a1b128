#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One row of the table, with its head: a model beside the reference, in each domain.
#
#   row.sh NAME SAMPLES MODEL      SAMPLES: what it was trained on
#
# Environment: HELDOUT (a .tok of each domain), REFERENCE (the unquantized model), RUN_FLAGS
# (device, threads).
set -euo pipefail

name=$1 samples=$2 model=$3
read -ra flags <<<"${RUN_FLAGS-}"
read -ra texts <<<"$HELDOUT"

# Bits of a weight of the projections.  In a checkpoint they are those of its quantizer.
case $model in
*.ckpt) bits=4.5 ;;
*) bits=$(datcat --tsv "$model" | awk -F '\t' '
    $1 ~ /_proj\.weight$/ {
        gsub(/[][]/, "", $3)
        split($3, n, ",")
        bytes += $5
        weights += n[1] * n[2]
    }
    END { printf "%.4f\n", 8 * bytes / weights }') ;;
esac

# All domains at once: most of the time is starting and loading.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
pids=()
for tok in "${texts[@]}"; do
    generate -q "${flags[@]}" --score "$tok" --kl-model "$REFERENCE" "$model" >"$dir/${tok##*/}" &
    pids+=($!)
done
for p in "${pids[@]}"; do
    wait "$p"
done

for tok in "${texts[@]}"; do
    domain=${tok##*/}
    printf '%s\t%s\n' "${domain%.tok}" "$(tail -n 1 "$dir/$domain")"
done | awk -F '\t' -v OFS='\t' -v name="$name" -v samples="$samples" -v bits="$bits" '
    # domain, samples, tokens, targets, loss, perplexity, kl, top1, p99, reference
    {
        n += $4
        loss += $4 * $5
        kl += $4 * $7
        top1 += $4 * $8
        p99 = $9 > p99 ? $9 : p99
        head = head OFS "kl_" $1 OFS "perplexity_" $1
        row = row OFS $7 OFS $6
    }
    END {
        print "row", "samples", "bits", "kl", "top1", "kl_p99", "loss", "perplexity" head
        printf "%s\t%d\t%s\t%.6g\t%.6g\t%.6g\t%.6g\t%.6g%s\n", name, samples, bits, kl / n,
            top1 / n, p99, loss / n, exp(loss / n), row
    }'
