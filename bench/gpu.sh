#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The CUDA backend on this machine's GPU: is it right, and how fast beside its limits, beside
# the disk and beside PyTorch.
#
#   bench/gpu.sh [-o CSV] [-d DIR] [PART]...
#
#   -o  the file that rows are added to (default: bench/results/gpu-NAME.csv, by the GPU)
#   -d  scratch directory (${TMPDIR:-/var/tmp}); files, train and generate need 45 GB
#
# Parts, all by default:
#   check      every operation against the CPU's, nvquant's bytes, golden models by the programs
#   kernels    times of products, attention, the optimizer, quantizers and the rest
#   files      a checkpoint of Qwen3-4B loaded and saved, beside cat and dd, on DIR's disk; cold
#              where the page cache can be emptied of it; its weights quantized by CPU and GPU
#   train      steps of a random Qwen3-4B; TRAIN="8x2048 2x2048" are its passes, STEPS (8) of each
#   small      one sample of 2048 as on a card of 24 GB: memory planned, and seen from outside
#   twice      TWICE (200) steps twice: equal bytes, no NaN
#   generate   prefill and decoding of the same, NVFP4; and of PROMPTS ("4 16 64") at a time
#   peers      the same steps and decoding in PyTorch
#   audit      steps of AUDIT (8x2048) with checkpoints kept and without; then trainstep --replay of
#              one step, from its start to its answer.  With DEVICE=cpu, and CONFIG and AUDIT of a
#              small model, it needs no GPU; only when it is asked for
#   fp8        steps of a sweepfp8 Qwen3-4B in bf16 and in FP8 with current and delayed scales,
#              bytes over CUTS (24) cuts, prefill, and from PEERS the steps of torch_fp8.py and
#              torch_multi.py on one GPU; only when it is asked for
#   ranks      steps of a sweepfp8 Qwen3-4B on one GPU and on all, and from PEERS those of
#              torch_multi.py on all; its checkpoint saved by one and by all; only when asked for
#   large      LARGE ("8b:4x2048 14b:1x2048"): steps of models of Qwen3's other shapes, with
#              QUANT, on all GPUs; on one GPU beside PyTorch's; only when it is asked for
#
# A row: date,machine,versions,commit,part,what,value,unit.  Only what was measured in one run
# is to be compared: the chip's own pace changes by some percent from hour to hour.
#
# Environment: NIBBLE_BIN (../bin), NIBBLE_BUILD (../build: gpu/ has the test programs),
# GOLDEN (directories of golden models), BENCH_PYTHON (python3 with torch, transformers),
# CONFIG (qwen3-4b-config.json), DEVICE (cuda), QUANT (max), SHARE (what shares a tensor scale:
# qkv,gate_up; the quantizer's default), PEERS (the directory of torch_fp8.py and torch_multi.py),
# PEER_PROGRAMS (lines: these with their options; default: FP8, bf16 and torch_multi.py on one GPU).
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
build=${NIBBLE_BUILD:-$here/../build}
python=${BENCH_PYTHON:-python3}
config=${CONFIG:-$here/qwen3-4b-config.json}
device=${DEVICE:-cuda}
csv='' scratch=${TMPDIR:-/var/tmp}
usage='usage: bench/gpu.sh [-o CSV] [-d DIR] [PART]...'
while getopts o:d:h opt; do
    case $opt in
    o) csv=$OPTARG ;;
    d) scratch=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
parts=("$@")
[ $# -gt 0 ] || parts=(check kernels files train small twice generate peers)
for p in "${parts[@]}"; do
    case $p in
    audit) ;;
    check | kernels | files | train | small | twice | generate | peers | fp8 | ranks | large)
        [ "$device" != cpu ] || { echo "bench/gpu.sh: $p: not run: DEVICE is cpu" >&2 && exit 77; }
        ;;
    *) echo "bench/gpu.sh: $p: no such part" >&2 && exit 2 ;;
    esac
done
if [ "$device" = cpu ]; then
    gpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
    csv=${csv:-/dev/null}
else
    command -v nvidia-smi >/dev/null || { echo 'bench/gpu.sh: not run: no GPU' >&2 && exit 77; }
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
    gpu=${gpu#NVIDIA }
fi
[ -x "$bin/trainstep" ] || { echo "bench/gpu.sh: no programs in $bin: make builds them" >&2 && exit 2; }
[ -n "$csv" ] || csv=$here/results/gpu-$(echo "$gpu" | tr 'A-Z ' 'a-z-').csv
commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo -)
versions=$("$bin/trainstep" --diagnose 2>/dev/null | awk -F '\t' '
    /^CUDA of the driver|^CUDA runtime|^cuBLASLt|^cuDNN/ { gsub(",", " "); s = s sep $1 " " $2; sep = "; " }
    END { print s }')
dir=$(mktemp -d "$scratch/nibble-gpu.XXXXXX")
shm=
trap 'rm -rf "$dir" ${shm:+"$shm"}' EXIT
export NIBBLE_BIN=$bin
failed=0
part=

[ -s "$csv" ] || echo date,machine,versions,commit,part,what,value,unit >"$csv"

# row WHAT VALUE UNIT
row()
{
    printf '%s,%s,%s,%s,%s,%s,%s,%s\n' "$(date -u +%F)" "${gpu//,/ }" "$versions" "$commit" \
        "$part" "${1//,/ }" "$2" "$3" >>"$csv"
    printf '%-60s %s %s\n' "$1" "$2" "$3"
}

# rows: lines of WHAT, VALUE and UNIT with tabs between them
rows()
{
    local what value unit
    while IFS=$'\t' read -r what value unit; do
        row "$what" "$value" "$unit"
    done
}

# fail WHAT [FILE]: note it, and show what the file says.
fail()
{
    failed=1
    row "$1" failed -
    [ $# -lt 2 ] || tail -n 12 "$2" >&2
}

# ---- is it right ---------------------------------------------------------------------

part_check()
{
    local t rc q d
    for t in "$build"/gpu/*; do
        case ${t##*/} in *.*) continue ;; esac
        rc=0
        "$t" >"$dir/log" 2>&1 || rc=$?
        if [ "$rc" -eq 0 ]; then
            row "operations: ${t##*/}" ok -
        else
            fail "operations: ${t##*/}" "$dir/log"
        fi
    done
    "$bin/datpack" -q -f --init 3 --config "$here/../tests/vectors/qwen3-4b-config.json" \
        --dtype bf16 -s 'model.layers.0.*' -s 'model.layers.17.*' -o "$dir/part.dat"
    for q in max 4over6 sweep native; do
        for d in cpu "$device"; do
            "$bin/nvquant" -q -f --device "$d" --quant $q -o "$dir/$d.dat" "$dir/part.dat"
        done
        if cmp -s "$dir/cpu.dat" "$dir/$device.dat"; then
            row "nvquant $q: bytes of the CPU's" equal -
        else
            fail "nvquant $q: bytes of the CPU's"
        fi
    done
    rm -f "$dir"/*.dat
    [ -n "${GOLDEN:-}" ] || return 0
    for t in f32 bf16; do
        # shellcheck disable=SC2086  # a list of directories
        if "$python" -B "$here/../tests/golden.py" --device "$device" --compute $t $GOLDEN \
            >"$dir/log" 2>&1; then
            row "golden models, $t" ok -
        else
            fail "golden models, $t" "$dir/log"
        fi
        tail -n 5 "$dir/log"
    done
}

# ---- what operations cost --------------------------------------------------------------

# A table with a header becomes rows: the columns before the time say what, the time is one
# row, the rate behind it another.  What is measured against a copy is given as a part of it.
table_rows()
{
    awk -F '\t' -v OFS='\t' -v program="$1" '
        /(^|\t)(us|microseconds)(\t|$)/ { # a head, of which there may be several
            for (i = 1; i <= NF; i++) {
                head[i] = $i
                if ($i == "us" || $i == "microseconds")
                    time = i
            }
            next
        }
        !time { next }
        {
            what = program ":"
            for (i = 1; i < time; i++)
                what = what " " $i
            print what, $time, "us"
            rate = $NF
            unit = head[NF] == "tflops" ? "TFLOP/s" : head[NF] == "gb_s" ? "GB/s" : head[NF]
            if (split(rate, w, " ") == 2) {
                rate = w[1]
                unit = w[2]
            }
            print what, rate, unit
            if ($1 == "copy")
                copy = rate
            else if (copy && unit == "GB/s")
                print what ": of a copy", sprintf("%.1f", 100 * rate / copy), "%"
        }'
}

part_kernels()
{
    local t
    for t in gemm attention rows adamw quant fp8; do
        [ -x "$build/gpu/$t" ] || continue
        if "$build/gpu/$t" --time >"$dir/log" 2>&1; then
            table_rows "$t" <"$dir/log" | rows
        else
            fail "$t --time" "$dir/log"
        fi
    done
}

# ---- a model ---------------------------------------------------------------------------

# The random model, once.
need_model()
{
    [ -e "$dir/m.ckpt" ] && return
    echo "-- making a model"
    "$bin/datpack" -q --init 1 --config "$config" --to ckpt --quant "${QUANT:-max}" \
        ${SHARE:+--share-scale "$SHARE"} -o "$dir/m.ckpt"
    vocab=$(sed -n 's/.*"vocab_size": *\([0-9]*\).*/\1/p' "$config")
}

# ids N: so many in a line
ids()
{
    awk -v n="$1" -v vocab="$vocab" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++)
            printf "%d ", int(rand() * vocab)
        print ""
    }'
}

# N samples of LENGTH + 1 ids, every token a target.
samples()
{
    awk -v n="$1" -v length_="$2" -v vocab="$vocab" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++) {
            for (k = 0; k <= length_; k++)
                printf "%d ", int(rand() * vocab)
            print ""
        }
    }' | "$bin/tokenize" -q -f --input ids -o "$dir/data.tok"
}

now()
{
    date +%s.%N
}

# speed WHAT BYTES SECONDS
speed()
{
    row "$1" "$(awk -v b="$2" -v s="$3" 'BEGIN { printf "%.2f", b / s / 1e9 }')" GB/s
}

# since START: seconds
since()
{
    awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.3f", b - a }'
}

# chill FILE: out of the page cache; 1: it could not be, or there is no compiler.
chill()
{
    local rc=0
    [ -x "$dir/pages" ] || "${CC:-cc}" -O2 -o "$dir/pages" "$here/pages.c" 2>/dev/null || return 1
    [ -x "$dir/pages" ] || return 1 # a file system without programs
    "$dir/pages" evict "$1" 2>"$dir/stay" || rc=$?
    # That pages stay, as in a tmpfs, is an answer; its caller has a row for it.
    [ $rc -le 1 ] || cat "$dir/stay" >&2
    return $rc
}

# load_and_save HOW: one step, with the program's own times of both in $dir/err
load_and_save()
{
    rm -f "$dir/o.ckpt"
    "$bin/trainstep" -v --device "$device" -d "$dir/data.tok" -n 1 -o "$dir/o.ckpt" "$dir/m.ckpt" \
        >/dev/null 2>"$dir/err" || { fail "checkpoint, $1" "$dir/err" && return 1; }
}

# said WHAT: the seconds that it said for that
said()
{
    sed -n "s/.*: $1 [0-9.]* GB in \([0-9.]*\) s.*/\1/p" "$dir/err"
}

# Loading goes from the file to the GPU, and verifies; saving the other way, and ends with
# fsync as dd does here.  What the disk does changes: dd comes before and after.
part_files()
{
    need_model
    samples 4 256
    local bytes start i
    bytes=$(stat -c %s "$dir/m.ckpt")
    row "scratch directory: $(stat -f -c %T "$dir")" "$bytes" bytes
    if chill "$dir/m.ckpt"; then
        start=$(now)
        cat "$dir/m.ckpt" >/dev/null
        speed "cat of the checkpoint, cold" "$bytes" "$(since "$start")"
        if chill "$dir/m.ckpt" && load_and_save cold; then
            speed "checkpoint loaded, cold" "$bytes" "$(said loaded)"
        fi
    else
        row "checkpoint, cold: not run, its pages stay in the cache, or there is no compiler" - -
    fi
    cat "$dir/m.ckpt" >/dev/null
    start=$(now)
    cat "$dir/m.ckpt" >/dev/null
    speed "cat of the checkpoint, in the page cache" "$bytes" "$(since "$start")"
    for i in 1 2; do
        rm -f "$dir/o.ckpt"
        start=$(now)
        dd if="$dir/m.ckpt" of="$dir/copy" bs=16M conv=fsync 2>/dev/null
        speed "dd of the checkpoint, fsync, run $i" "$bytes" "$(since "$start")"
        rm -f "$dir/copy"
        load_and_save "run $i" || return 0
        speed "checkpoint loaded, run $i" "$bytes" "$(said loaded)"
        speed "checkpoint saved, run $i" "$bytes" "$(said saved)"
    done
    rm -f "$dir/o.ckpt"
    quantize_file
}

# From weights in the page cache to an NVFP4 file that is synced: by the CPU and by the GPU.
quantize_file()
{
    local d bytes start
    "$bin/datpack" -q -o "$dir/w.safetensors" "$dir/m.ckpt"
    bytes=$(stat -c %s "$dir/w.safetensors")
    cat "$dir/w.safetensors" >/dev/null
    for d in cpu "$device" cpu "$device"; do
        start=$(now)
        "$bin/nvquant" -q -f --device "$d" --quant sweep -o "$dir/q.dat" "$dir/w.safetensors" ||
            { fail "nvquant --quant sweep, $d" && break; }
        speed "nvquant --quant sweep, $d" "$bytes" "$(since "$start")"
    done
    rm -f "$dir/w.safetensors" "$dir/q.dat"
}

# watch FILE: the most memory of the GPU that was in use, in MiB, until it is ended
watch()
{
    local most=0 used
    while used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1); do
        [ "$used" -gt "$most" ] && most=$used && echo "$most" >"$1"
        sleep 0.2
    done
}

# train BATCHxLENGTH OPTION...: some steps; the median without the first two
train()
{
    local shape=$1 batch=${1%x*} length=${1#*x} before watcher rc=0 what plan seen
    shift
    what="trainstep ${of:+$of, }$shape${gpus:+, $where}${SHARE:+, one scale for $SHARE}${*:+ $*}"
    samples $((batch * 4 * ${gpus:-1})) "$length"
    rm -f "$dir/steps.json" "$dir/o.ckpt" # of a run that failed
    before=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1)
    echo "$before" >"$dir/used"
    watch "$dir/used" &
    watcher=$!
    # shellcheck disable=SC2086  # an option and its value
    "$bin/trainstep" -v ${where:---device "$device"} -d "$dir/data.tok" --batch "$batch" -n "${STEPS:-8}" \
        --lr 1e-5 --log "$dir/steps.json" -o "$dir/o.ckpt" "$@" "$dir/${model:-m}.ckpt" >"$dir/tsv" 2>"$dir/err" || rc=$?
    kill "$watcher"
    wait "$watcher" 2>/dev/null || true
    if [ "$rc" -ne 0 ]; then
        fail "$what" "$dir/err"
        return
    fi
    "$python" - "$dir/steps.json" "$what" <<'END' | rows
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
lines = [l for l in lines if "ms" in l and "loss" in l]
ms = sorted(l["ms"] for l in lines[2:])
ms = ms[len(ms) // 2]
last = lines[-1]
said = [("", "%.1f" % ms, "ms"), ("", "%.0f" % (last["tokens"] / ms * 1e3), "tokens/s"),
        (": memory as logged", "%.2f" % last["mem_gb"], "GiB"), (": last loss", "%.4f" % last["loss"], "-")]
if "wait_ms" in last:
    said.append((": wait for exchanges", "%.1f" % last["wait_ms"], "ms"))
for name, value, unit in said:
    print("%s%s\t%s\t%s" % (sys.argv[2], name, value, unit))
END
    plan=$(sed -n 's/.*plan: \([0-9.]*\) GB.*/\1/p' "$dir/err")
    seen=$(awk -v a="$before" -v b="$(cat "$dir/used")" 'BEGIN { printf "%.2f", (b - a) / 1024 }')
    row "$what: plan" "$plan" GiB
    row "$what: memory seen from outside" "$seen" GiB
    row "$what: seen, of the plan" "$(awk -v a="$seen" -v b="$plan" 'BEGIN { printf "%.1f", 100 * a / b }')" %
    rm -f "$dir/steps.json" "$dir/o.ckpt"
}

part_train()
{
    need_model
    for shape in ${TRAIN:-8x2048 2x2048 16x512 1x8192}; do
        # shellcheck disable=SC2086  # options
        train "$shape" ${OPTIONS:-}
    done
}

part_small()
{
    need_model
    train 1x2048 --memory-limit 22 --clip-mode prev
}

part_twice()
{
    need_model
    samples 16 255
    local a b steps=${TWICE:-200}
    for i in a b; do
        "$bin/trainstep" -q --device "$device" -d "$dir/data.tok" --batch 8 -n "$steps" --lr 1e-5 \
            -o "$dir/$i.ckpt" -f "$dir/m.ckpt" >"$dir/$i.tsv" 2>"$dir/err" ||
            { fail "$steps steps" "$dir/err" && return; }
        "$bin/datcat" --hash "$dir/$i.ckpt" >"$dir/$i.hash"
        rm "$dir/$i.ckpt"
    done
    a=$(cut -f 2 "$dir/a.tsv" | tail -n 1)
    b=$(cut -f 2 "$dir/a.tsv" | sed -n 2p)
    row "$steps steps of 8x255: loss of the first" "$b" -
    row "$steps steps of 8x255: loss of the last" "$a" -
    if grep -qi nan "$dir/a.tsv"; then
        fail "$steps steps: NaN"
    fi
    if cmp -s "$dir/a.hash" "$dir/b.hash"; then
        row "$steps steps twice: bytes" equal -
    else
        fail "$steps steps twice: bytes"
    fi
}

part_generate()
{
    need_model
    "$bin/datpack" -q -f --quant max --to dat --dtype nvfp4 --config "$config" \
        -o "$dir/m.dat" "$dir/m.ckpt"
    local prompt n
    for n in 128 4096; do
        prompt=$(ids "$n")
        # The first prompt pays for what is made once.
        "$bin/generate" -v --device "$device" --config "$config" --ids --ignore-eos \
            -n 128 -p "$prompt" -p "$prompt" -p "$prompt" "$dir/m.dat" >/dev/null 2>"$dir/err" ||
            { fail "generate" "$dir/err" && return; }
        sed -n "s/.*prompt \([12]\): prefill \([0-9]*\) tokens, \([0-9.]*\) tok\/s; decode \([0-9]*\) tokens, \([0-9.]*\) tok\/s.*/prefill of \2, run \1\t\3\ttokens\/s\ndecode after \2, run \1\t\5\ttokens\/s/p" \
            "$dir/err" | rows
    done
    for n in ${PROMPTS:-4 16 64}; do
        decode_together "$n"
    done
    rm -f "$dir/m.dat"
}

# decode_together N: prompts of 128 tokens, 128 more of each; all steps of the prompt that comes
# last have N rows.
decode_together()
{
    local n=$1 i
    for ((i = 0; i < n; i++)); do
        ids $((128 + i))
    done | awk '{ for (i = NF - 127; i <= NF; i++) printf "%s ", $i; print "" }' >"$dir/prompts"
    for i in 1 "$n"; do
        "$bin/generate" -v --device "$device" --config "$config" --ids --ignore-eos -n 128 \
            --batch "$i" "$dir/m.dat" <"$dir/prompts" >"$dir/answers.$i" 2>"$dir/err" ||
            { fail "generate --batch $i" "$dir/err" && return; }
    done
    sed -n "s/.*prompt $((n - 1)): .* decode [0-9]* tokens, \([0-9.]*\) tok.*/\1/p" "$dir/err" |
        awk -v n="$n" -v OFS='\t' '{ print "decode of " n " prompts after 128", sprintf("%.0f", $1 * n), "tokens/s" }' |
        rows
    if cmp -s "$dir/answers.1" "$dir/answers.$n"; then
        row "decode of $n prompts: bytes of each alone" equal -
    else
        fail "decode of $n prompts: bytes of each alone"
    fi
}

part_peers()
{
    local shape
    for shape in ${TRAIN:-8x2048 2x2048}; do
        "$python" "$here/gpu_torch.py" train "${shape%x*}" "${shape#*x}" "${STEPS:-8}" 2>"$dir/err" >"$dir/log" ||
            { fail "PyTorch $shape" "$dir/err" && continue; }
        peer_rows <"$dir/log" | rows
    done
    if "$python" "$here/gpu_torch.py" decode 128 128 2>"$dir/err" >"$dir/log"; then
        peer_rows <"$dir/log" | rows
    else
        fail "PyTorch decode" "$dir/err"
    fi
}

# config_of SHAPE: the configuration of Qwen3-SHAPE
config_of()
{
    local hidden ffn layers heads tied=false
    case $1 in
    8b) hidden=4096 ffn=12288 layers=36 heads=32 ;;
    14b) hidden=5120 ffn=17408 layers=40 heads=40 ;;
    32b) hidden=5120 ffn=25600 layers=64 heads=64 ;;
    *) fail "LARGE: $1: no such shape: 8b, 14b or 32b" >&2 && return 1 ;;
    esac
    sed -e 's/\("hidden_size": \)[0-9]*/\1'"$hidden/" -e 's/\("intermediate_size": \)[0-9]*/\1'"$ffn/" \
        -e 's/\("num_hidden_layers": \)[0-9]*/\1'"$layers/" -e 's/\("num_attention_heads": \)[0-9]*/\1'"$heads/" \
        -e 's/\("tie_word_embeddings": \)[a-z]*/\1'"$tied/" "$here/qwen3-4b-config.json"
}

# One model at a time: a checkpoint of 14B is 61 GB.
part_large()
{
    local one shape of gpus where model=large vocab=151936
    gpus=$(nvidia-smi -L | wc -l)
    for one in ${LARGE:-8b:4x2048 14b:1x2048}; do
        shape=${one#*:}
        of="Qwen3-${one%%:*}"
        of=${of%b}B
        config_of "${one%%:*}" >"$dir/large.json" || return 0
        echo "-- making a model"
        "$bin/datpack" -q -f --init 1 --config "$dir/large.json" --to ckpt --quant "${QUANT:-max}" \
            ${SHARE:+--share-scale "$SHARE"} -o "$dir/large.ckpt"
        where="--gpus $gpus"
        [ "$gpus" -gt 1 ] || where="--device cuda:0"
        train "$shape" --accum "$gpus"
        rm -f "$dir/large.ckpt"
        [ "$gpus" -eq 1 ] || continue
        CONFIG=$dir/large.json "$python" "$here/gpu_torch.py" train "${shape%x*}" "${shape#*x}" "${STEPS:-8}" \
            2>"$dir/err" >"$dir/log" || { fail "PyTorch $of, $shape" "$dir/err" && continue; }
        sed "s/^torch [^ ]*/&, $of,/" "$dir/log" | peer_rows | rows
    done
}

# ---- FP8 ---------------------------------------------------------------------------------

# All in one run, since rows of two runs are not to be compared.
part_fp8()
{
    local shape model=f
    need_model
    "$bin/datpack" -q -f --init 1 --config "$config" --to ckpt --quant sweepfp8 -o "$dir/f.ckpt"
    for shape in ${TRAIN:-8x2048 2x2048}; do
        train "$shape"
        train "$shape" --compute fp8
        train "$shape" --compute fp8 --fp8-scales delayed
        [ -z "${PEERS:-}" ] || fp8_peers "$shape"
    done
    train 1x2048 --compute fp8 --memory-limit 22 --clip-mode prev
    fp8_cut current
    fp8_cut delayed
    fp8_prefill
    rm -f "$dir/f.ckpt"
}

# fp8_cut SCALES: CUTS (24) cuts, a step between two of them, against one run; of a model of 112
# million weights, which loads and saves within a second
fp8_cut()
{
    local i cuts=${CUTS:-24} vocab=16896
    [ -e "$dir/base.ckpt" ] || "$bin/datpack" -q --init 1 --config "$here/../pipelines/base/base.json" \
        --to ckpt --quant sweepfp8 -o "$dir/base.ckpt"
    samples 8 255
    "$bin/trainstep" -q --device "$device" --compute fp8 --fp8-scales "$1" -d "$dir/data.tok" --batch 8 \
        -n $((cuts + 1)) --lr 1e-5 -o "$dir/whole.ckpt" -f "$dir/base.ckpt" >"$dir/tsv" 2>"$dir/err" ||
        { fail "fp8 $1, $cuts cuts" "$dir/err" && return; }
    cp "$dir/base.ckpt" "$dir/cut.ckpt"
    for ((i = 0; i <= cuts; i++)); do
        "$bin/trainstep" -q --device "$device" --compute fp8 --fp8-scales "$1" -d "$dir/data.tok" \
            --batch 8 -n 1 --lr 1e-5 "$dir/cut.ckpt" >"$dir/tsv" 2>"$dir/err" ||
            { fail "fp8 $1, $cuts cuts" "$dir/err" && return; }
    done
    if cmp -s "$dir/whole.ckpt" "$dir/cut.ckpt"; then
        row "fp8 $1 scales, $cuts cuts: bytes" equal -
    else
        fail "fp8 $1 scales, $cuts cuts: bytes"
    fi
    rm -f "$dir/whole.ckpt" "$dir/cut.ckpt"
}

fp8_prefill()
{
    local compute prompt
    prompt=$(ids 4096)
    for compute in bf16 fp8; do
        "$bin/generate" -v --device "$device" --compute $compute --ids --ignore-eos -n 1 \
            -p "$prompt" -p "$prompt" -p "$prompt" "$dir/f.ckpt" >/dev/null 2>"$dir/err" ||
            { fail "generate --compute $compute" "$dir/err" && return; }
        sed -n "s/.*prompt \([12]\): prefill \([0-9]*\) tokens, \([0-9.]*\) tok\/s.*/prefill of \2 $compute, run \1\t\3\ttokens\/s/p" \
            "$dir/err" | rows
    done
}

# fp8_peers SHAPE: PyTorch with torchao's FP8 and without, and the program for several GPUs on one
fp8_peers()
{
    local batch=${1%x*} length=${1#*x} peer
    while read -r peer; do
        # shellcheck disable=SC2086  # a program and its options
        if (cd "$PEERS" && "$python" $peer --batch "$batch" --seq "$length" --steps "${STEPS:-8}") \
            </dev/null 2>"$dir/err" >"$dir/log"; then
            json_rows "$peer $1" <"$dir/log" | rows
        else
            fail "$peer $1" "$dir/err"
        fi
    done <<END
${PEER_PROGRAMS-torch_fp8.py --recipe tensorwise
torch_fp8.py --recipe none
torch_multi.py}
END
}

# json_rows WHAT: of the last line that is an object with "ms"
json_rows()
{
    "$python" -c 'import json, sys
said = [json.loads(l) for l in sys.stdin if l.startswith("{")]
said = [s for s in said if "ms" in s and "tok_s" in s][-1]
for key, unit in ("ms", "ms"), ("tok_s", "tokens/s"), ("peak_gb", "GiB"):
    if key in said:
        print("%s%s\t%s\t%s" % (sys.argv[1], ": memory" if unit == "GiB" else "", said[key], unit))' "$1"
}

# A pass a GPU: one GPU, all of them, and PyTorch's FSDP2 on all.
# saves N: the checkpoint, by one GPU and by N in turns, on the disk and in memory.
saves()
{
    local at i where bytes
    bytes=$(stat -c %s "$dir/f.ckpt")
    samples "$1" 256
    shm=$(mktemp -d /dev/shm/nibble-gpu.XXXXXX)
    for at in "$dir" "$shm"; do
        for i in 1 2 3; do
            for where in "--device cuda:0" "--gpus $1"; do
                rm -f "$at/o.ckpt"
                # shellcheck disable=SC2086  # an option and its value
                "$bin/trainstep" -v $where -d "$dir/data.tok" --accum "$1" -n 1 -o "$at/o.ckpt" "$dir/f.ckpt" \
                    >/dev/null 2>"$dir/err" || { fail "checkpoint, $where" "$dir/err" && return 0; }
                speed "checkpoint saved, $where, $(stat -f -c %T "$at"), run $i" "$bytes" "$(said saved)"
            done
        done
        rm -f "$at/o.ckpt"
    done
}

part_ranks()
{
    local shape where gpus model=f
    gpus=$(nvidia-smi -L | wc -l)
    [ "$gpus" -gt 1 ] || { row "ranks: not run, there is one GPU" - - && return; }
    need_model
    [ -e "$dir/f.ckpt" ] || "$bin/datpack" -q --init 1 --config "$config" --to ckpt --quant sweepfp8 -o "$dir/f.ckpt"
    for shape in ${TRAIN:-8x2048 4x2048 2x2048}; do
        where="--device cuda:0"
        train "$shape" --accum 1
        where="--gpus $gpus"
        train "$shape" --accum "$gpus"
        train "$shape" --accum "$gpus" --compute fp8
        [ -n "${PEERS:-}" ] || continue
        if (cd "$PEERS" && torchrun --nproc-per-node "$gpus" torch_multi.py --batch "${shape%x*}" \
            --seq "${shape#*x}" --steps "${STEPS:-8}") </dev/null 2>"$dir/err" >"$dir/log"; then
            json_rows "torch_multi.py $shape, $gpus GPUs" <"$dir/log" | rows
        else
            fail "torch_multi.py $shape, $gpus GPUs" "$dir/err"
        fi
    done
    saves "$gpus"
    rm -f "$dir/f.ckpt"
}

# ---- the audit of a step ----------------------------------------------------------------

# step_ms: the median time in the table of steps, without the first two; of one step, its time
step_ms()
{
    awk -F '\t' '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == "ms") c = i; next }
        { ms[NR] = $c }
        END { for (i = NR > 3 ? 4 : 2; i <= NR; i++) print ms[i] }' "$dir/tsv" |
        sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# steps WHAT OPTION...: STEPS (8) from the random model to o.ckpt; sets ms and wall
steps()
{
    local what=$1 start
    shift
    rm -f "$dir"/o.ckpt*
    start=$(now)
    "$bin/trainstep" -v --device "$device" -d "$dir/data.tok" --batch "${AUDIT%x*}" -n "$n" \
        -o "$dir/o.ckpt" "$@" "$dir/m.ckpt" >"$dir/tsv" 2>"$dir/err" ||
        { fail "trainstep $what" "$dir/err" && return 1; }
    wall=$(since "$start")
    ms=$(step_ms)
    row "$n steps of $AUDIT, $what: one step" "$ms" ms
    row "$n steps of $AUDIT, $what: from start to end" "$wall" s
}

# replay HOW: the last step of o.ckpt, as a user starts it
replay()
{
    local start wall what
    start=$(now)
    "$bin/trainstep" -v --device "$device" -d "$dir/data.tok" --replay "$n..$((n + 1))" \
        "$dir/o.ckpt" >"$dir/tsv" 2>"$dir/err" ||
        { fail "replay of a step, $1" "$dir/err" && return 1; }
    wall=$(since "$start")
    row "replay of a step of $AUDIT, $1: from start to answer" "$wall" s
    for what in verified loaded compared; do
        row "replay of a step, $1: checkpoint $what" "$(said $what)" s
    done
    row "replay of a step, $1: the step" "$(step_ms)" ms
}

# What a replay needs is a checkpoint from before: a save, which -v times, and the disk that it
# takes.  At the end three checkpoints are on the disk.
part_audit()
{
    local n=${STEPS:-8} AUDIT=${AUDIT:-8x2048} ms wall saved file
    need_model
    samples $((${AUDIT%x*} * 4)) "${AUDIT#*x}"
    steps 'nothing kept' || return 0
    steps "checkpoints kept every $((n / 2))" --keep-every $((n / 2)) || return 0
    saved=$(said saved | sort -g | tail -n 1)
    row "a kept checkpoint" "$(stat -c %s "$dir/o.ckpt")" bytes
    row "a kept checkpoint: saved in" "$saved" s
    row "steps between kept checkpoints that cost 1 % of the time" \
        "$(awk -v s="$saved" -v ms="$ms" 'BEGIN { printf "%.0f", 100 * s / (ms / 1000) }')" steps
    rm "$dir/o.ckpt.step$((n / 2))"
    "$bin/trainstep" -q --device "$device" -d "$dir/data.tok" -n 1 "$dir/o.ckpt" >/dev/null 2>"$dir/err" ||
        { fail "the step to replay" "$dir/err" && return 0; }
    replay 'first' || return 0
    replay 'in the page cache' || return 0
    for file in "$dir"/o.ckpt*; do
        chill "$file" || { row "replay, cold: not run, pages stay in the cache, or there is no compiler" - - && return 0; }
    done
    replay cold || return 0
    rm -f "$dir"/o.ckpt*
}

peer_rows()
{
    awk -F '\t' -v OFS='\t' '{ print $1, $2, "ms"; print $1, $3, "tokens/s"; print $1 ": memory", $4, "GiB" }'
}

for part in "${parts[@]}"; do
    echo "== $part"
    "part_$part"
done
[ "$failed" -eq 0 ]
