#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Shows transcripts and the table of compare.py, counts its cases, and fails if two differ.
#
#   pipelines/chat/show.sh TABLE.tsv TRANSCRIPT...
set -euo pipefail

table=$1
shift
for t; do
    printf '# %s\n' "$(basename "$t" .txt)"
    cat "$t"
    echo
done
awk -f "$(dirname "$0")/../table.awk" "$table"
awk -F '\t' 'NR > 1 {
    n++
    if ($7 == "=")
        equal++
    else if ($7 == "text")
        text++
}
END {
    printf "%d cases: %d equal, %d equal in text, %d differ\n", n, equal, text,
        n - equal - text
    exit !n || equal + text < n
}' "$table"
