#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Files of the size of a 4B model (8.8 GB): datcat and datpack beside what the system
# has for the same work.
#
#   bench/containers.sh [-s PERCENT] [-r RUNS] [-d DIR] [-o CSV] [PART]...
#
#   -s  size of the model in percent of the real one (100); 2 is a quick look
#   -r  runs of each side (5); a listing takes four times as many
#   -d  scratch directory (${TMPDIR:-/var/tmp}); needs about 30 GB at 100 percent
#   -o  where the rows go (bench/results/containers-MACHINE.csv at 100 percent, else
#       only to standard output); rows are added, header first
#
# Parts, all by default: init list hash stats copy convert quant verify hostile python.
#
# The model is made by "datpack --init" from qwen3-4b-config.json.  The two sides of a
# row run in turn (ours, peer, ours, peer ...), the row has the medians.
#
# Inside the timing window: the process from before its start to after its end, the
# reading of the page cache, and of writers the fsync: "cp" and "dd" are followed by
# "sync FILE", datpack syncs by itself.  Outside: making the model; bringing the input
# into the page cache (it is whole there before each run, but for "cold" rows);
# removing the output of the run before, and a "sync" of the machine after that;
# waiting until the machine is quiet.  A run during which others used more than 5
# percent of a processor is repeated, up to five times (two if it takes more than 5
# seconds); the note tells if it did not help.
#
# A part that lacks disk, memory or a program says so and is not run; then the exit
# status is 77.  1 is an error.  A missed target is none: the column "met" tells.
#
# Columns: ratio is ours_s / peer_s, gb_s is size_bytes / ours_s in 10^9, rss_mib the
# peak of our side over all runs.  A line "what" that begins with "list cold" has the
# numbers of pages in its note.
#
# Environment: NIBBLE_BIN (../bin beside this script), CC, BENCH_PYTHON (python3 with
# numpy and safetensors, for the part python), BENCH_WAIT seconds to wait for a quiet
# machine, all waits together (1800); after that nothing is repeated.
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
percent=100 runs=5 scratch=${TMPDIR:-/var/tmp} csv=
usage='usage: bench/containers.sh [-s PERCENT] [-r RUNS] [-d DIR] [-o CSV] [PART]...'
while getopts s:r:d:o:h opt; do
    case $opt in
    s) percent=$OPTARG ;;
    r) runs=$OPTARG ;;
    d) scratch=$OPTARG ;;
    o) csv=$OPTARG ;;
    h) echo "$usage" && exit 0 ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
done
shift $((OPTIND - 1))
if [[ ! $percent =~ ^[1-9][0-9]{0,2}$ || ! $runs =~ ^[1-9][0-9]{0,2}$ ]]; then
    echo "$usage" >&2
    exit 2
fi
parts=("$@")
[ $# -gt 0 ] || parts=(init list hash stats copy convert quant verify hostile python)
for p in "${parts[@]}"; do
    case $p in
    init | list | hash | stats | copy | convert | quant | verify | hostile | python) ;;
    *) echo "bench/containers.sh: $p: no such part" >&2 && exit 2 ;;
    esac
done

say() { printf 'containers: %s\n' "$*" >&2; }

missing=0
not_run()
{
    say "not run: $*"
    missing=1
}

# ---- the machine ----------------------------------------------------------------

cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
cores=$(nproc)
filesystem=$(df --output=fstype "$scratch" | tail -n 1)
machine="${cpu:-$(uname -m)}; $cores cores; Linux $(uname -r | sed 's/-.*//'); $filesystem"
machine=${machine//,/ }
slug=$(tr '[:upper:]' '[:lower:]' <<<"${cpu:-$(uname -m)}-$cores" | tr -cs 'a-z0-9\n' - | sed 's/-$//')
if [ -z "$csv" ] && [ "$percent" -eq 100 ]; then
    csv=$here/results/containers-$slug.csv
fi
version=$("$bin/datcat" --version | sed 's/.* //')
commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo -)
[ "$commit" = - ] || git -C "$here" diff --quiet HEAD -- ../lib ../cmd ../Makefile ||
    commit+=+ # with changes

# KiB that are free: of memory, and in the scratch directory.
memory() { awk '/^MemAvailable/ { print $2 }' /proc/meminfo; }
disk() { df -k --output=avail "$scratch" | tail -n 1; }

need=$((percent * 320000 + 100000)) # KiB
if [ "$(disk)" -lt $need ]; then
    not_run "everything: $scratch has $(($(disk) / 1000000)) GB free," \
        "$((need / 1000000)) GB are needed; -s makes it smaller"
    exit 77
fi

dir=$(mktemp -d "$scratch/nibble-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
for tool in meter pages; do
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -I"$here/.." -o "$dir/$tool" "$here/$tool.c" \
        "$here/../lib/base/os.c"
done

# ---- rows ------------------------------------------------------------------------

header=date,machine,version,commit,what,runs,size_bytes,ours_s,peer,peer_s,ratio
header+=,gb_s,target,met,rss_mib,note
if [ -n "$csv" ]; then
    mkdir -p "$(dirname "$csv")"
    [ -s "$csv" ] || echo $header >"$csv"
fi
echo $header

# row WHAT RUNS BYTES OURS_S PEER PEER_S TARGET MET RSS_MIB NOTE
row()
{
    local ratio='' rate='' line
    [ -z "$6" ] || ratio=$(awk "BEGIN { printf \"%.3f\", $4 / $6 }")
    # Only where all bytes are read or written.
    [[ -z $3 || -z $4 || $1 == list* || $1 == *quick* ]] ||
        rate=$(awk "BEGIN { printf \"%.3f\", $3 / $4 / 1e9 }")
    line="$(date -u +%F),$machine,$version,$commit,$1,$2,$3,$4,$5,$6,$ratio,$rate,$7,$8,$9,${10}"
    echo "$line"
    [ -z "$csv" ] || echo "$line" >>"$csv"
}

# column FILE N: "MEDIAN MINIMUM MAXIMUM" of a column.
column()
{
    awk -v n="$2" '{ print $n }' "$1" | sort -g | awk '
        { v[NR] = $1 }
        END {
            m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
            printf "%.4f %.4f %.4f\n", m, v[1], v[NR]
        }'
}

# holds EXPRESSION: "yes" or "no"
holds() { awk "BEGIN { print ($1) ? \"yes\" : \"no\" }"; }

busy()
{
    awk '/^cpu / { print $2 + $3 + $9 }' /proc/stat
}

# Wait until others use less than a tenth of a processor, or patience is at an end.
patience=$((2 * ${BENCH_WAIT:-1800}))
quiet()
{
    local before
    while [ $patience -gt 0 ]; do
        before=$(busy)
        sleep 0.5
        [ $(($(busy) - before)) -gt 5 ] || return 0
        patience=$((patience - 1))
        [ $((patience % 120)) -ne 0 ] || say "waiting for a quiet machine"
    done
}

# warm FILE: all of it in the page cache.
warm()
{
    local have all
    for _ in 1 2 3 4; do
        read -r have all < <("$dir/pages" count "$1")
        [ "$have" -lt "$all" ] || return 0
        cat "$1" >/dev/null
    done
    say "$(basename "$1"): only $have of $all pages stay in the page cache"
    return 1
}

# fits PART BYTES: so much fits into memory; or PART is not run.
fits()
{
    [ "$(memory)" -lt $(($2 / 1024 + 500000)) ] || return 0
    not_run "$1: needs $(($2 / 1000000)) MB of memory for the page cache"
    return 1
}

# once RESULT COMMAND...: one clean run, output discarded; "prepare" runs before.
noisy=0
once()
{
    local result=$1 try wall foreign
    shift
    for try in 4 3 2 1 0; do
        "${prepare[@]}"
        quiet
        : >"$dir/once"
        "$dir/meter" "$dir/once" "$@" >/dev/null
        read -r wall _ _ _ foreign _ <"$dir/once"
        [ "$(holds "$foreign > 0.05 * $wall + 0.03")" = yes ] || break
        # Long runs get two tries, all runs one when patience is at an end.
        if [ $try -eq 0 ] || [ $patience -le 0 ] ||
            { [ $try -lt 4 ] && [ "${wall%.*}" -gt 5 ]; }; then
            noisy=$((noisy + 1))
            break
        fi
    done
    cat "$dir/once" >>"$result"
}

# race WHAT BYTES RUNS PEER-NAME TARGET MET
# The commands are in the arrays prepare, ours and peer, which may be empty.  MET is
# an expression over o (our median), p (the peer's), r (the ratio), m (our peak in MiB)
# and g (GB/s), or empty.
prepare=() ours=() peer=()
race()
{
    local a=$dir/ours b=$dir/peer i o='' p='' low high plow phigh rss note met=''
    : >"$a" && : >"$b"
    noisy=0
    for ((i = 0; i < $3; i++)); do
        once "$a" "${ours[@]}"
        [ ${#peer[@]} -eq 0 ] || once "$b" "${peer[@]}"
    done
    read -r o low high < <(column "$a" 1)
    note="ours $low..$high"
    if [ ${#peer[@]} -gt 0 ]; then
        read -r p plow phigh < <(column "$b" 1)
        note+="; peer $plow..$phigh"
    fi
    [ $noisy -eq 0 ] || note+="; $noisy runs were disturbed"
    rss=$(awk '$4 > m { m = $4 } END { printf "%.1f", m / 1024 }' "$a")
    [ -z "$6" ] || met=$(awk -v o="$o" -v p="${p:-1}" -v m="$rss" -v bytes="$2" \
        "BEGIN { r = o / p; g = bytes / o / 1e9; print ($6) ? \"yes\" : \"no\" }")
    row "$1" "$3" "$2" "$o" "$4" "$p" "$5" "$met" "$rss" "$note"
}

# ---- the model -------------------------------------------------------------------

in=$dir/model.dat out=$dir/out
# The real configuration, or one with fewer layers and words.
cp "$here/qwen3-4b-config.json" "$dir/config.json"
if [ "$percent" -ne 100 ]; then
    sed -i "s/\(num_hidden_layers\": \)[0-9]*/\1$((1 + 35 * percent / 100))/
        s/\(vocab_size\": \)[0-9]*/\1$((151936 * percent / 100))/
        s/\(_token_id\": \)[0-9]*/\11/" "$dir/config.json"
fi
say "making the model"
: >"$dir/init"
"$dir/meter" "$dir/init" "$bin/datpack" -q --init 1 --config "$dir/config.json" -o "$in"
size=$(stat -c %s "$in")

# What "cp" and "dd" do, with the sync.
cat >"$dir/copy.sh" <<'END'
cp "$1" "$2" && sync "$2"
END
# As many bytes of a file, over and over, as the third argument says.
cat >"$dir/raw.sh" <<'END'
set -e
size=$(stat -c %s "$1") rest=$3
: >"$2"
while [ "$rest" -gt 0 ]; do
    n=$((rest < size ? rest : size))
    dd if="$1" of="$2" bs=1M iflag=count_bytes count=$n oflag=append conv=notrunc \
        status=none
    rest=$((rest - n))
done
sync "$2"
END

drop_output() { rm -rf "$out" "$out".*; }

# The output away, and the disk idle; the input FILE in the page cache.
ready()
{
    drop_output
    sync
    warm "$1"
}

# write WHAT TARGET MET OPTION...: datpack from the model beside as many raw bytes.
write()
{
    local what=$1 target=$2 met=$3 bytes
    shift 3
    drop_output
    "$bin/datpack" -q "$@" -o "$out" "$in"
    bytes=$(stat -c %s "$out")
    prepare=(ready "$in")
    ours=("$bin/datpack" -q "$@" -o "$out" "$in")
    peer=(sh "$dir/raw.sh" "$in" "$out" "$bytes")
    race "$what" "$bytes" "$runs" "as many bytes: dd + sync" "$target" "$met"
    drop_output
}

# ---- parts -----------------------------------------------------------------------

part_init()
{
    local wall rss
    read -r wall _ _ rss _ _ <"$dir/init"
    rss=$(awk "BEGIN { printf \"%.1f\", $rss / 1024 }")
    row "datpack --init: make the model" 1 "$size" "$wall" "" "" "rss < 256 MiB" \
        "$(holds "$rss < 256")" "$rss" "one run"
}

# The pages that hold bytes of entry headers, and those that a listing brought in.
part_list()
{
    local outside absent resident wanted
    ours=("$bin/datcat" "$in") peer=()
    prepare=(warm "$in")
    race "list warm" "$size" $((4 * runs)) "" "< 0.050 s" "o < 0.05"
    prepare=("$dir/pages" evict "$in")
    race "list cold" "$size" "$runs" "" "" ""

    "$dir/pages" evict "$in"
    "$bin/datcat" "$in" >/dev/null
    "$dir/pages" list "$in" | sort >"$dir/resident"
    "$bin/datcat" --map "$in" | awk -F '\t' -v page="$(getconf PAGESIZE)" '
        $3 == "entry header" || $3 == "number of entries" {
            last = int(($1 + $2 - 1) / page)
            for (i = int($1 / page); i <= last; i++)
                seen[i]
        }
        END { for (i in seen) print i }' | sort >"$dir/wanted"
    resident=$(wc -l <"$dir/resident")
    wanted=$(wc -l <"$dir/wanted")
    outside=$(comm -23 "$dir/resident" "$dir/wanted" | wc -l)
    absent=$(comm -13 "$dir/resident" "$dir/wanted" | wc -l)
    row "list cold: pages read without an entry header" 1 "$size" "" "" "" "0 pages" \
        "$(holds "$outside == 0 && $absent == 0 && $wanted > 0")" "" \
        "$resident pages read; $wanted hold headers; $outside read without a header; $absent not read"
}

part_hash()
{
    fits hash "$size" || return 0
    prepare=(warm "$in") peer=(cat "$in")
    ours=("$bin/datcat" -j 2 --hash "$in")
    race "datcat --hash -j 2" "$size" "$runs" "cat >/dev/null" \
        "ratio <= 1.25 (80 % of the speed)" "r <= 1.25"
    ours=("$bin/datcat" -j 1 --hash "$in")
    race "datcat --hash -j 1" "$size" "$runs" "cat >/dev/null" "" ""
    ours=("$bin/datcat" -j 2 --hash=sha256 "$in") peer=(sha256sum "$in")
    race "datcat --hash=sha256 -j 2" "$size" "$runs" "sha256sum" "" ""
}

part_stats()
{
    fits stats "$size" || return 0
    prepare=(warm "$in") peer=(cat "$in")
    ours=("$bin/datcat" -j 2 --stats "$in")
    race "datcat --stats of f16 -j 2" "$size" "$runs" "cat >/dev/null" ">= 1 GB/s" "g >= 1"
    ours=("$bin/datcat" -j 1 --stats "$in")
    race "datcat --stats of f16 -j 1" "$size" "$runs" "cat >/dev/null" "" ""
}

part_copy()
{
    fits copy $((2 * size)) || return 0
    prepare=(ready "$in")
    ours=("$bin/datpack" -q --to dat -o "$out" "$in") peer=(sh "$dir/copy.sh" "$in" "$out")
    race "datpack copy .dat to .dat" "$size" "$runs" "cp + sync" \
        "ratio <= 1.5; rss < 256 MiB" "r <= 1.5 && m < 256"
    drop_output
}

part_convert()
{
    fits convert $((2 * size)) || return 0
    write "datpack .dat to .safetensors" "rss < 256 MiB" "m < 256" --to safetensors
    write "datpack .dat to .ckpt (bf16 master; int8 moments)" \
        "ratio <= 1.43 (70 % of the disk)" "r <= 1.43 && m < 256" --to ckpt
    write "datpack .dat to .dat --dtype f32" "rss < 256 MiB" "m < 256" \
        --to dat --dtype f32
}

# The input is read twice and hashed, the output is a third of it.
part_quant()
{
    local q target met
    fits quant $((size + size / 2)) || return 0
    for q in max sweep torchao 4over6; do
        target='' met=''
        [ $q != max ] || target="ratio <= 1.5; rss < 512 MiB" met="r <= 1.5 && m < 512"
        [ $q != sweep ] || target=">= 0.6 GB/s; rss < 512 MiB" met="g >= 0.6 && m < 512"
        prepare=(ready "$in")
        ours=("$bin/nvquant" -q --quant "$q" -o "$out.dat" "$in")
        peer=(sh "$dir/copy.sh" "$in" "$out")
        race "nvquant --quant $q" "$size" "$runs" "cp + sync" "$target" "$met"
    done
    prepare=(ready "$in")
    ours=("$bin/datpack" -q --to modelopt --config "$dir/config.json" -o "$out.dir" "$in")
    race "datpack --to modelopt (sweep)" "$size" "$runs" "cp + sync" "rss < 256 MiB" "m < 256"
    drop_output
}

part_verify()
{
    local file=$dir/model.ckpt bytes
    "$bin/datpack" -q -o "$file" "$in"
    bytes=$(stat -c %s "$file")
    if fits verify "$bytes"; then
        "$dir/pages" evict "$in" || true # frees memory
        prepare=(warm "$file")
        ours=("$bin/datcat" --verify "$file") peer=(cat "$file")
        race "datcat --verify of a .ckpt" "$bytes" "$runs" "cat >/dev/null" \
            "ratio <= 1.43 (70 % of the page cache)" "r <= 1.43 && m < 256"
        ours=("$bin/datcat" --verify=quick "$file") peer=()
        race "datcat --verify=quick of a .ckpt" "$bytes" "$runs" "" "" ""
    fi
    rm -f "$file"
}

# hostile WHAT OPTION...: the files that mkbad.py makes with these options
hostile()
{
    local tests=$here/../tests what=$1 files seconds rss line
    shift
    mkdir "$dir/bad"
    python3 -B "$tests/mkbad.py" "$@" "$dir/bad" >/dev/null
    files=$(cat "$dir/bad/MANIFEST" "$dir/bad/DAMAGED" | wc -l)
    quiet
    line=$(NIBBLE_BIN=$bin python3 -B "$tests/runbad.py" list "$dir/bad") ||
        say "tests/runbad.py has complaints"
    seconds=$(sed -n 's/.*slowest \([0-9.]*\) s.*/\1/p' <<<"$line" | sort -g | tail -n 1)
    rss=$(sed -n 's/.*most \([0-9.]*\) MiB.*/\1/p' <<<"$line" | sort -g | tail -n 1)
    row "$what: slowest and largest of all runs" 1 "" "$seconds" "" "" \
        "< 1 s; < 64 MiB" "$(holds "$seconds < 1 && $rss < 64")" "$rss" "$files bad files"
    rm -rf "$dir/bad"
}

part_hostile()
{
    if ! command -v python3 >/dev/null || ! [ -e "$here/../tests/mkbad.py" ]; then
        not_run "hostile: needs python3 and tests/mkbad.py"
        return
    fi
    hostile "hostile input"
    hostile "hostile input with headers up to 100 MB" --big
}

# The reference library, loading and saving; it must hold the file twice in memory.
part_python()
{
    local python=${BENCH_PYTHON:-python3} source=$dir/model.safetensors bytes name
    if ! "$python" -c 'import numpy, safetensors.numpy' 2>/dev/null; then
        not_run "python: $(basename "$python") has no numpy and safetensors (BENCH_PYTHON)"
        return
    fi
    "$bin/datpack" -q -o "$source" "$in"
    bytes=$(stat -c %s "$source")
    if fits python $((bytes * 22 / 10)); then
        cat >"$dir/convert.py" <<'END'
import os, sys
from safetensors.numpy import load_file, save_file
with open("/proc/self/oom_score_adj", "w") as f:
    f.write("1000")
save_file(load_file(sys.argv[1]), sys.argv[2], {"format": "pt"})
os.fsync(os.open(sys.argv[2], os.O_RDONLY))
END
        "$dir/pages" evict "$in" || true # frees memory
        name=$("$python" -c 'import safetensors; print(safetensors.__version__)')
        prepare=(ready "$source")
        ours=("$bin/datpack" -q --to safetensors -o "$out" "$source")
        peer=("$python" "$dir/convert.py" "$source" "$out")
        race "datpack copy .safetensors to .safetensors" "$bytes" "$runs" \
            "python safetensors $name: load + save + fsync" "ratio <= 1" "r <= 1"
    fi
    rm -f "$source"
    drop_output
}

say "model of $((size / 1000000)) MB on $filesystem, $runs runs, NIBBLE_ISA=${NIBBLE_ISA:-best}"
for p in "${parts[@]}"; do
    say "$p"
    "part_$p"
done
[ $missing -eq 0 ] || exit 77
