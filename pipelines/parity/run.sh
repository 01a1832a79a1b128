#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a model in all the ways that must agree; leaves in the directory OUT, for each way,
# WAY.hidden (hidden states of the prompt) and WAY.logits (of the first token), which are
# safetensors.  WAY is cpu.THREADS.ISA or cuda.COMPUTE.
#
#   run.sh OUT MODEL [OPTION of generate]...
#
# Environment: DEVICES, JOBS, ISAS; IDS, or PROMPT and TOKENIZER.
set -euo pipefail

out=$1 model=$2
shift 2
prompt=(-t "$TOKENIZER" -p "$PROMPT")
[ -z "$IDS" ] || prompt=(--ids -p "$IDS")
rm -rf "$out"
mkdir "$out"

# way NAME OPTION...
way()
{
    local name=$1
    shift
    generate -q "${prompt[@]}" -n 1 --ignore-eos --temp 0 --dump-layers "$out/$name.hidden" \
        --logits "$out/$name.logits" "$@" "$model" >/dev/null
}

for device in $DEVICES; do
    if [ "$device" = cpu ]; then
        for isa in $ISAS; do
            for n in $JOBS; do
                (
                    [ "$isa" = auto ] || export NIBBLE_ISA=$isa
                    way "cpu.$n.$isa" --device cpu -j "$n" "$@"
                )
            done
        done
    else
        for compute in f32 bf16; do
            way "$device.$compute" --device "$device" --compute "$compute" "$@"
        done
    fi
done
