#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prints the perplexity of a model on the held-out documents of each domain.
#
#   score.sh MODEL PACKAGES.tsv HELDOUT.DOMAIN.tok...
#
# PACKAGES.tsv is the table that corpus.py writes: it has the bytes of the documents.
# Environment: NIBBLE_BIN, where the programs are; RUN_FLAGS, device and threads.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: score.sh MODEL PACKAGES.tsv HELDOUT.DOMAIN.tok..." >&2
    exit 2
fi
model=$1 packages=$2
shift 2
read -ra flags <<<"$RUN_FLAGS"

printf 'domain\tbytes\ttargets\tloss\tperplexity\tbits_per_byte\n'
for samples in "$@"; do
    domain=${samples##*/heldout.}
    domain=${domain%.tok}
    bytes=$(awk -F '\t' -v d="$domain" '$3 == d { n += $7 } END { print n + 0 }' "$packages")
    "$NIBBLE_BIN/generate" -q "${flags[@]}" --score "$samples" "$model" |
        awk -F '\t' -v domain="$domain" -v bytes="$bytes" '
            NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
            NR == 2 {
                printf "%s\t%d\t%d\t%s\t%s\t%.4f\n", domain, bytes, $at["targets"], $at["loss"],
                    $at["perplexity"], $at["loss"] * $at["targets"] / log(2) / bytes
            }'
done
