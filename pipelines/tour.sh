#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A first look at the tools for files: makes a tiny random Qwen3, looks at it, converts it
# and back, quantizes it, compares, verifies, damages one byte and finds it.
#
# Each command is shown before its output; all of it is real.  Everything is written
# into a temporary directory, which is removed at the end.
#
# Environment: NIBBLE_BIN, where the programs are (default: ../bin beside this script).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
if ! bin=$(cd "$bin" 2>/dev/null && pwd) || ! [ -x "$bin/datpack" ]; then
    echo "demo: no programs in ${NIBBLE_BIN:-$here/../bin}; make builds them" >&2
    exit 2
fi
PATH=$bin:$PATH
dir=$(mktemp -d "${TMPDIR:-/tmp}/nibble-demo.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cp "$here/demo/config.json" "$dir"
cd "$dir"

say()
{
    printf '\n# %s\n' "$*"
}

# run STATUS COMMAND: show and run a line of shell, which must end with STATUS.
run()
{
    local want=$1 status=0
    printf '$ %s\n' "$2"
    bash -c "$2" 2>&1 || status=$?
    [ "$status" -eq 0 ] || echo "(exit $status)"
    if [ "$status" -ne "$want" ]; then
        echo "demo: expected exit $want" >&2
        exit 1
    fi
}

say "A random model of the shape that config.json describes"
run 0 'datpack --init 7 --config config.json -o tiny.dat'
run 0 'ls tiny.dat*'

say "What is in it: all layers in one line each"
run 0 'datcat --group tiny.dat'

say "One tensor in numbers"
run 0 "datcat --tsv --stats -s model.embed_tokens.weight tiny.dat"
run 0 'datcat --values model.layers.0.mlp.up_proj.weight:4 tiny.dat'

say "Where each byte belongs"
run 0 'datcat --map tiny.dat | head -n 5'

say "Into safetensors, a model directory with two shards, a checkpoint, and back"
run 0 'datpack -o tiny.safetensors tiny.dat'
run 0 'datpack --shard-size 1M -o tiny-model/ tiny.safetensors'
run 0 'ls tiny-model'
run 0 'datpack -o tiny.ckpt tiny-model/'
run 0 'datcat --group tiny.ckpt | head -n 3'
run 0 'datpack -o back.dat tiny.ckpt'

say "Nothing was lost: equal files make no output"
run 0 'datcat --diff tiny.dat back.dat'

say "In NVFP4: 4 bits a value, 8 for each 16 of them, and what that costs"
run 0 'nvquant --report cost.tsv -o small.dat tiny.dat'
run 0 'head -n 3 cost.tsv'
run 0 'datcat --group small.dat | tail -n 3'
run 0 'datpack --to modelopt -o served small.dat'
run 0 'ls served'

say "Another seed is another model"
run 0 'datpack --init 8 --config config.json -o other.dat'
run 1 'datcat --diff -s "model.layers.0.mlp.*" tiny.dat other.dat'

say "How a file came to be: each tool, its options, the hashes of its inputs"
run 0 'datcat --meta back.dat'

say "Checksums: one byte of the checkpoint is changed, and found"
run 0 'datcat --verify tiny.dat tiny.ckpt'
run 0 'cp tiny.ckpt broken.ckpt'
run 0 'printf x | dd of=broken.ckpt bs=1 seek=100000 conv=notrunc status=none'
run 1 'datcat --verify broken.ckpt'
