#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Models beside the one that they were made from, as a table.
#
#   evaluate.sh DATA.tok REFERENCE NAME=MODEL...
#
# Environment: RUN_FLAGS (device, threads).
set -euo pipefail

data=$1 reference=$2
shift 2
read -ra flags <<<"${RUN_FLAGS-}"
head=
for m; do
    said=$(generate -q "${flags[@]}" --score "$data" --kl-model "$reference" "${m#*=}")
    if [ -z "$head" ]; then
        printf 'model\t%s\n' "$(head -n 1 <<<"$said")"
        head=1
    fi
    printf '%s\t%s\n' "${m%%=*}" "$(tail -n 1 <<<"$said")"
done
