#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Speed of lib/text beside Hugging Face tokenizers, on one thread, in one run.
#
#   bench/tokenize.sh [TOKENIZER.json [TEXT]]
#
# Default: $NIBBLE_QWEN3_TOKENIZER and $NIBBLE_CORPUS (.gz or plain), else the small
# tokenizer of the tests and the text that it was made from, 64 times.  PYTHON
# (python3) is the interpreter that may have the package; without it that row is left
# out, and stderr says so.
#
# CSV on stdout: machine, program, what was encoded, seconds to load the tokenizer,
# MB/s (10^6 bytes of text a second) of encoding and of decoding, ids.  Each is the
# best of 5 runs (the package: 3).  Timed is one call with the whole text in memory;
# reading it, and for us making an encoder, lie outside.  The rows
# "1 MiB of ..." are the worst cases of merging, for us only: other programs may need
# minutes for them.
set -euo pipefail
cd "$(dirname "$0")/.."

tokenizer=${1:-${NIBBLE_QWEN3_TOKENIZER:-tests/vectors/tokenizer-small.json}}
text=${2:-${NIBBLE_CORPUS:-}}
python=${PYTHON:-python3}
build=${NIBBLE_BUILD:-build}
cc=${CC:-gcc}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

case $text in
'') for _ in {1..64}; do cat tests/vectors/tokenizer-text.txt; done >"$dir/text" ;;
*.gz) gzip -dc "$text" >"$dir/text" ;;
*) cp "$text" "$dir/text" ;;
esac
name=${text:-tokenizer-text.txt x64}
name=${name##*/}

make -s BUILD="$build" CC="$cc" "$build/libtext.a" "$build/libfile.a" "$build/libbase.a"
"$cc" -O2 -std=c11 -D_GNU_SOURCE -I. -o "$dir/tokenize" bench/tokenize.c \
    "$build/libtext.a" "$build/libfile.a" "$build/libbase.a" -lxxhash -lpthread -lm

machine=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
machine=$(uname -n)/${machine:-$(uname -m)}

# row PROGRAM WHAT NUMBERS
row() { echo "\"$machine\",$1,\"$2\",$3"; }

# a megabyte of one thing
mega() { yes "$1" | tr -d '\n' | head -c 1048576 >"$dir/mega" || true; }

echo machine,program,text,load_s,encode_mb_s,decode_mb_s,ids
row nibble "$name" "$("$dir/tokenize" "$tokenizer" "$dir/text" 5)"
for unit in a ' ' "'"; do
    mega "$unit"
    row nibble "1 MiB of [$unit]" "$("$dir/tokenize" "$tokenizer" "$dir/mega" 1)"
done

if ! "$python" -c 'import tokenizers' 2>/dev/null; then
    echo "bench/tokenize.sh: $python has no package tokenizers: no row of it" >&2
    exit 0
fi
row tokenizers "$name" "$(RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
    "$python" - "$tokenizer" "$dir/text" <<'EOF'
import sys
import time

import tokenizers


def best(what):
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = what()
        times.append(time.perf_counter() - start)
    return min(times), result


with open(sys.argv[2], encoding="utf-8", newline="") as f:
    text = f.read()
size = len(text.encode()) * 1e-6
load, t = best(lambda: tokenizers.Tokenizer.from_file(sys.argv[1]))
encode, e = best(lambda: t.encode(text, add_special_tokens=False))
decode, _ = best(lambda: t.decode(e.ids, skip_special_tokens=False))
print("%.3f,%.1f,%.1f,%d" % (load, size / encode, size / decode, len(e.ids)))
EOF
)"
