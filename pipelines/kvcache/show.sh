#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Shows the table of compare.py, counts its cases, and fails if one differs.
#
#   pipelines/kvcache/show.sh MATRIX.tsv
set -euo pipefail

awk -f "$(dirname "$0")/../table.awk" "$1"
awk -F '\t' 'NR > 1 {
    for (i = 8; i <= NF; i++) {
        n++
        if ($i == "=")
            equal++
        else if ($i ~ /^DIFFERS/)
            bad++
    }
}
END {
    printf "%d cases: %d equal to the last digit, %d close, %d differ\n",
        n, equal, n - equal - bad, bad
    exit !n || bad > 0
}' "$1"
