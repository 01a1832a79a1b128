#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the small model that experiments use when they are given none: that of "make demo",
# trained on its questions and answers, as a Hugging Face directory with its tokenizer.
# It takes about half a minute, and is the same on every machine.
#
#   pipelines/tiny.sh DIR        DIR/model appears whole or not at all
#
# Environment: NIBBLE_BIN, where the programs are (default: ../bin beside this script).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
if ! [ -x "$bin/trainstep" ]; then
    echo "tiny: no programs in $bin; make builds them" >&2
    exit 2
fi
if [ $# -ne 1 ]; then
    echo "usage: pipelines/tiny.sh DIR" >&2
    exit 2
fi
mkdir -p "$1"
cd "$1"
exec 9>.lock
flock 9
if [ -e model/config.json ] && ! [ "$here/demo/pretrain.tsv" -nt model/config.json ] &&
    ! [ "$here/tiny.sh" -nt model/config.json ]; then
    exit 0 # another process made it meanwhile
fi
rm -rf model model.part work
mkdir work
echo "tiny: training the small model, about half a minute" >&2
"$bin/tokenize" -q -t "$here/demo/tokenizer.json" -o work/pretrain.tok "$here/demo/pretrain.tsv"
"$bin/datpack" -q --init 2 --config "$here/demo/config.json" --to ckpt --quant none -o work/base.ckpt
"$bin/trainstep" -q -d work/pretrain.tok --until 1200 --batch 16 --lr 4e-3 --schedule cosine \
    --warmup 20 --total-steps 1200 work/base.ckpt >work/steps.tsv
cp "$here/demo/tokenizer.json" work
"$bin/datpack" -q --dtype bf16 -o model.part/ work/base.ckpt
[ -e model.part/tokenizer.json ] || cp work/tokenizer.json model.part
sync model.part
mv model.part model
rm -rf work
