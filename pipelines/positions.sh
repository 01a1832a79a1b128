#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prints a model's configuration with at least N positions.  Positions are no
# weights: any model runs with more of them; what it says beyond those that it was
# trained with is another question.
#
#   pipelines/positions.sh CONFIG.json N
set -euo pipefail

if [ $# -ne 2 ] || [[ ! $2 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: pipelines/positions.sh CONFIG.json N" >&2
    exit 2
fi
has=$(sed -n 's/.*"max_position_embeddings": *\([0-9]*\).*/\1/p' "$1")
if [ -z "$has" ]; then
    echo "positions: $1: has no max_position_embeddings" >&2
    exit 2
fi
[ "$has" -ge "$2" ] || has=$2
sed "s/\(\"max_position_embeddings\": *\)[0-9]*/\1$has/" "$1"
