#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# "generate" on the CPU beside llama.cpp: with the same NVFP4 file, and with the types
# that are llama.cpp's own.
#
#   bench/prefill.sh [-o CSV] [-j THREADS] [-r ROUNDS] [-p PROMPT] [-n TOKENS] [PART]...
#
# Parts: tokens speed (all).
#
#   -o  where rows go (default: only standard output)
#   -j  threads of both (default: all processors)
#   -r  rounds of speed; in each, every competitor runs once (5)
#   -p  length of the prompt (512)
#   -n  tokens that are decoded (64)
#
# tokens: the small model of the pipelines answers its control questions in both programs,
# from one NVFP4 file: answers that are equal, and the largest difference of a token's
# log-probability.  llama.cpp rounds activations to 8 bits for such weights, and ours does
# not; so it gets the same values in a file of f32, too, where it rounds nothing, and in
# one of bf16.  Exit 1 if an answer differs in f32.
#
# speed: tokens a second of a prompt, and of those decoded one by one from an empty
# cache; timed is the second time in a process, loading lies outside.  Medians of all
# rounds, lowest and highest.  The model is random, of the shape of Qwen3-0.6B; it takes
# 4 GB of disk.  busy: processors that others kept busy meanwhile, on average; figures are
# worth something if that is about 0.
#
# Environment:
#   NIBBLE_BIN       the programs (default: ../bin)
#   BENCH_LLAMA      llama.cpp's sources with their build, which was made there by
#                        cmake -B build -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF
#                        cmake --build build --target llama
#                    (default: .cache/llama.cpp at the project's root; if that is not
#                    there, the sources within PyPI's llama-cpp-python are taken, and built)
#   BENCH_PEER       bench/llama_peer.c as a program that was built before, for machines
#                    without compilers or network; libllama.so and libggml.so are beside
#                    it, and BENCH_LLAMA is not looked at
#   BENCH_TOKENIZER  tokenizer.json of the random model (default: a small one of the tests;
#                    the vocabulary is filled up)
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$here/..
bin=${NIBBLE_BIN:-$root/bin}
csv='' threads=$(nproc) rounds=5 prompt=512 tokens=64
usage='usage: bench/prefill.sh [-o CSV] [-j THREADS] [-r ROUNDS] [-p PROMPT] [-n TOKENS] [PART]...'
while getopts o:j:r:p:n:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    j) threads=$OPTARG ;;
    r) rounds=$OPTARG ;;
    p) prompt=$OPTARG ;;
    n) tokens=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(tokens speed)
for p in "${parts[@]}"; do
    case $p in
    tokens | speed) ;;
    *) echo "bench/prefill.sh: $p: no such part" >&2 && exit 2 ;;
    esac
done
for p in "$threads" "$rounds" "$prompt" "$tokens"; do
    case $p in
    '' | *[!0-9]* | 0*) echo "bench/prefill.sh: $p: want a whole number above 0" >&2 && exit 2 ;;
    esac
done

# shellcheck source=bench/common.bash
source "$here/common.bash"
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/nibble-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
begin threads,program,file,compute,what,value,low,high,rounds,busy
failed=0

# ---- llama.cpp ------------------------------------------------------------------------

# fetch DIR: the newest sources that PyPI has, built by what pip has to build it.
fetch()
{
    local new=$1.part
    echo "prefill: building llama.cpp in $1, some minutes" >&2
    rm -rf "$new"
    mkdir -p "$new"
    {
        python3 -m venv "$new/venv"
        "$new/venv/bin/pip" install cmake ninja
        "$new/venv/bin/pip" download -d "$new" --no-deps --no-binary llama-cpp-python \
            llama-cpp-python
        tar -xzf "$new"/llama_cpp_python-*.tar.gz -C "$new"
        mv "$new"/llama_cpp_python-*/vendor/llama.cpp "$new/llama"
        PATH=$new/venv/bin:$PATH
        cd "$new/llama"
        cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
            -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF
        nice -n 10 cmake --build build -j "$(nproc)" --target llama
    } >"$new/log" 2>&1 || { tail -n 5 "$new/log" >&2 && exit 2; }
    mv "$new/llama" "$1"
    rm -rf "$new"
}

llama=${BENCH_LLAMA:-$root/.cache/llama.cpp}
if [ -z "${BENCH_PEER:-}${BENCH_LLAMA:-}" ] && ! [ -e "$llama" ]; then
    (fetch "$llama")
fi
lib=$llama/build/bin
[ -z "${BENCH_PEER:-}" ] || lib=$(dirname "$BENCH_PEER")
if ! [ -e "$lib/libllama.so" ]; then
    echo "bench/prefill.sh: no $lib/libllama.so; the head of this script says how to build it" >&2
    exit 2
fi
peer=${BENCH_PEER:-$dir/peer}
[ -n "${BENCH_PEER:-}" ] ||
    "${CC:-cc}" -std=c11 -O2 -D_GNU_SOURCE -I"$llama/include" -I"$llama/ggml/include" \
        -o "$peer" "$here/llama_peer.c" -L"$lib" -Wl,-rpath,"$lib" -lllama -lggml -lggml-base -lm

# Its version is in the name of the library.
version()
{
    local file
    file=$(readlink -f "$lib/lib$1.so")
    echo "${file##*.so.}"
}
theirs="llama.cpp $(version llama) (ggml $(version ggml))"

# Whether ours computes so on this machine.
can_compute()
{
    "$bin/generate" -q --device cpu --compute "$1" --ids -n 1 -p 1 "$2" >/dev/null 2>&1
}

# ---- tokens ---------------------------------------------------------------------------

# answers COMPUTE: a line a prompt, "id:logprob" for each token, then the end token.
answers()
{
    "$bin/generate" -q --device cpu -j "$threads" --compute "$1" --json --ids -n 24 \
        "$dir/small-nvfp4.gguf" <"$dir/prompts" |
        sed 's/.*"ids":\[\([^]]*\)\],"logprobs":\[\([^]]*\)\].*"stop_id":\([^,]*\),.*/\1|\2|\3/' |
        awk -F '|' '{
            n = split($1, id, ",")
            split($2, logprob, ",")
            for (i = 1; i <= n; i++)
                printf "%s:%s ", id[i], logprob[i]
            print $3 == "null" ? "" : $3 ":"
        }'
}

# equal OURS THEIRS: "answers equal of largest", the last over tokens of equal answers.
# Theirs may go on behind the end.
equal()
{
    paste -d '|' "$1" "$2" | awk -F '|' '{
        n = split($1, ours, " ")
        split($2, theirs, " ")
        same = 1
        for (i = 1; i <= n && same; i++) {
            split(ours[i], a, ":")
            split(theirs[i], b, ":")
            same = a[1] == b[1]
            d = a[2] - b[2]
            d = d < 0 ? -d : d
            if (same && a[2] != "" && d > most)
                most = d
        }
        equal += same
    }
    END { printf "%d %d %.3g\n", equal, NR, most }'
}

part_tokens()
{
    local file compute computes=(f32) equal all most
    NIBBLE_BIN=$bin "$root/pipelines/tiny.sh" "$root/out/tiny"
    local model=$root/out/tiny/model
    "$bin/datpack" -q --to gguf -o "$dir/small-nvfp4.gguf" "$model"
    for file in bf16 f32; do
        "$bin/datpack" -q -f --dtype $file -o "$dir/small.safetensors" "$dir/small-nvfp4.gguf"
        "$here/gguf_plain.py" "$dir/small.safetensors" "$dir/small-nvfp4.gguf" "$dir/small-$file.gguf"
    done
    # What comes before the first target is the prompt.
    cut -f 1,2 "$root/pipelines/demo/controls.tsv" |
        "$bin/tokenize" -q -t "$model/tokenizer.json" --emit jsonl |
        sed 's/.*"ids":\[\([^]]*\)\].*"mask":\[\([^]]*\)\].*/\1|\2/' |
        awk -F '|' '{
            split($1, id, ",")
            n = split($2, mask, ",")
            for (i = 1; i <= n && mask[i] == 0; i++)
                printf "%s ", id[i]
            print ""
        }' >"$dir/prompts"
    ! can_compute bf16 "$dir/small-nvfp4.gguf" || computes+=(bf16)
    for compute in "${computes[@]}"; do
        answers "$compute" >"$dir/ours"
        for file in nvfp4 bf16 f32; do
            "$peer" tokens "$dir/small-$file.gguf" 25 1 <"$dir/prompts" >"$dir/theirs"
            read -r equal all most < <(equal "$dir/ours" "$dir/theirs")
            printf '%s,%s,%s,%s,%s,%s,,,1,\n' \
                "$threads" "$theirs" "$file" "$compute" "answers equal of $all" "$equal" \
                "$threads" "$theirs" "$file" "$compute" "largest difference of a log-probability" \
                "$most" | keep
            if [ "$file $compute" = 'f32 f32' ] && [ "$equal" -ne "$all" ]; then
                failed=1
            fi
        done
    done
}

# ---- speed -----------------------------------------------------------------------------

# field JSON NAME: of the last line
field()
{
    sed -n "\$s/.*\"$2\":\([-0-9.e]*\).*/\1/p" "$1"
}

# run_ours COMPUTE: two rates
run_ours()
{
    local ask=("$bin/generate" -q --device cpu -j "$threads" --compute "$1" --json --ids
        --ignore-eos)
    # The first begins in another way: what prompts begin with together is computed once.
    "${ask[@]}" -n 1 -p "1 ${ids#* }" -p "$ids" "$dir/nvfp4.gguf" >"$dir/prefill"
    "${ask[@]}" -n $((tokens + 1)) -p 7919 -p 7919 "$dir/nvfp4.gguf" >"$dir/decode"
    awk -v prompt="$prompt" -v p="$(field "$dir/prefill" prefill_s)" \
        -v tokens="$tokens" -v d="$(field "$dir/decode" decode_s)" \
        'BEGIN { printf "%.2f %.2f\n", prompt / p, tokens / d }'
}

run_theirs()
{
    "$peer" speed "$dir/$1.gguf" "$prompt" "$tokens" "$threads"
}

# Clock ticks: of all programs on all processors, and of ours that have ended.
ticks()
{
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat
    awk '{ print $16 + $17 }' /proc/$$/stat
}

# summary: "NAME PREFILL DECODE" lines to rows
summary()
{
    local name what n
    for name in "${names[@]}"; do
        for what in 2 3; do
            grep "^$name " "$dir/rates" | cut -d ' ' -f $what | sort -g >"$dir/sorted"
            n=$(wc -l <"$dir/sorted")
            printf '%s,%s,%s,%s,%s,%s,%s,%s,%s,%s\n' "$threads" \
                "$([ "${name%-*}" = ours ] && echo generate || echo "$theirs")" \
                "$([ "${name%-*}" = ours ] && echo nvfp4 || echo "${name#*-}")" \
                "$([ "${name%-*}" = ours ] && echo "${name#*-}" || echo -)" \
                "$([ $what = 2 ] && echo "prefill $prompt" || echo "decode $tokens") tokens/s" \
                "$(sed -n "$(((n + 1) / 2))p" "$dir/sorted")" "$(head -n 1 "$dir/sorted")" \
                "$(tail -n 1 "$dir/sorted")" "$n" "$1"
        done
    done
}

part_speed()
{
    local config=$here/qwen3-0.6b-config.json type name busy start
    local tokenizer=${BENCH_TOKENIZER:-$root/tests/vectors/tokenizer-small.json}
    "$bin/datpack" -q --init 1 --config "$config" -o "$dir/m.safetensors"
    "$bin/datpack" -q --config "$config" -t "$tokenizer" -o "$dir/nvfp4.gguf" "$dir/m.safetensors"
    "$here/gguf_plain.py" "$dir/m.safetensors" "$dir/nvfp4.gguf" "$dir/bf16.gguf"
    rm "$dir/m.safetensors"
    for type in q8_0 q4_0; do
        "$peer" quantize "$dir/bf16.gguf" "$dir/$type.gguf" $type "$threads"
    done
    ids=$(awk -v n="$prompt" 'BEGIN { for (i = 1; i <= n; i++) printf "%d ", i * 7919 % 151936 }')
    names=(ours-f32)
    ! can_compute bf16 "$dir/nvfp4.gguf" || names+=(ours-bf16)
    names+=(theirs-nvfp4 theirs-bf16 theirs-q8_0 theirs-q4_0)

    mapfile -t start < <(ticks)
    SECONDS=0
    for ((i = 0; i < rounds; i++)); do
        for name in "${names[@]}"; do
            echo "$name $("run_${name%-*}" "${name#*-}")"
        done
    done >"$dir/rates"
    busy=$(ticks | paste -s - | awk -v all="${start[0]}" -v own="${start[1]}" -v s=$SECONDS \
        -v hz="$(getconf CLK_TCK)" '{ printf "%.2f", ($1 - all - $2 + own) / hz / s }')
    summary "$busy" | keep
}

for p in "${parts[@]}"; do
    "part_$p"
done
[ "$failed" -eq 0 ]
