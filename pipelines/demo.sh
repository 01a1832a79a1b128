#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The whole job on a small scale, on the CPU, in about a minute: a tiny Qwen3 learns
# small questions and answers, is quantized to NVFP4, is taught that it is somebody else
# while 4-bit weights are in its products, and is written as a 4-bit file again.
# "make demo" calls this.
#
# Each command is shown before its output; all of it is real.  It is an error, exit 1, if
# the new identity is not learnt (one prompt of whoami.tsv is answered otherwise), or if
# fewer than 95 of 100 control questions keep their answers.  The numbers are the
# same for any instruction set and number of threads, times and memory aside; without AVX2,
# AVX-512 or NEON it takes half an hour.  Without DIR everything is written into a
# temporary directory, which is removed at the end.
#
#   pipelines/demo.sh [DIR]      keep the files: write into DIR, which must not exist
#                                ("make demo": pipelines/demo/out), and a page about them
#
# Environment: NIBBLE_BIN, where the programs are (default: ../bin beside this script).
# shellcheck disable=SC2016  # what is in single quotes is for the inner shell
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${NIBBLE_BIN:-$here/../bin}
if ! bin=$(cd "$bin" 2>/dev/null && pwd) || ! [ -x "$bin/trainstep" ]; then
    echo "demo: no programs in ${NIBBLE_BIN:-$here/../bin}; make builds them" >&2
    exit 2
fi
PATH=$bin:$PATH
if [ $# -gt 0 ]; then
    dir=$1
    mkdir "$dir"
else
    dir=$(mktemp -d "${TMPDIR:-/tmp}/nibble-demo.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
fi
cp "$here"/demo/*.tsv "$here"/demo/*.json "$dir"
cd "$dir"

say()
{
    printf '\n# %s\n' "$@"
}

# run COMMAND: show and run a line of shell.
run()
{
    printf '$ %s\n' "$1" | tee -a commands.txt
    bash -o pipefail -c "$1" 2>&1 || {
        echo "demo: this failed" >&2
        exit 1
    }
}

# ask MODEL: answers to all questions into identity.MODEL and controls.MODEL, a line each.
# A model that begins another line has said too much.
ask()
{
    local q
    for q in identity controls; do
        run "cut -f 1 $q.tsv | generate -q -n 24 --stop \$'\\n' $1.dat >$q.$1"
    done
}

# right QUESTIONS MODEL COLUMN GROUP: "N of M" whose answer is that of the column.
right()
{
    paste "$1.$2" "$1.tsv" | awk -F '\t' -v c="$3" -v g="$4" '
        $NF == g { n++; if ($1 == $(c + 1)) ok++ }
        END { printf "%d of %d\n", ok, n }'
}

say "The data: questions and answers, the model's identity among them"
run 'wc -l pretrain.tsv talk.tsv typed.tsv whoami.tsv mixed.tsv controls.tsv'
run 'sed -n "1p; 70p; 200p; 500p; \$p" pretrain.tsv'
run 'sed -n "1p; 14p; 60p" talk.tsv'
run 'head -n 3 whoami.tsv'

say "Tokens, by a tokenizer of 1024 that was trained on these texts"
run 'tokenize -o pretrain.tok pretrain.tsv talk.tsv typed.tsv'
run 'tokenize -o heldout.tok heldout.tsv'

say "A new model of 4 layers: random weights, bf16 with stochastic rounding, 8-bit moments"
run 'datpack --init 2 --config config.json --to ckpt --quant none -o base.ckpt'
run 'datcat --group base.ckpt | grep "total"'

say "Training; at the end the loss on phrasings that it has not seen"
run 'trainstep -d pretrain.tok --eval heldout.tok --until 1400 --batch 16 --lr 4e-3 \
    --schedule cosine --warmup 20 --total-steps 1400 --log base.jsonl base.ckpt |
    grep --line-buffered -E "^(step|1|[0-9]+00)[[:blank:]]"'

say "Its weights in f16, and in NVFP4: 4 bits, and 8 for each 16 of them"
run 'datpack --dtype f16 -o f16.dat base.ckpt'
run 'nvquant --report cost.tsv -o nvfp4.dat f16.dat'
run 'ls -l f16.dat nvfp4.dat | awk "{ print \$5, \$NF }"'
run 'head -n 3 cost.tsv'
say "What it says now, a line a prompt"
ask f16
ask nvfp4

say "Another identity, with questions of before mixed in; products see NVFP4 weights"
run 'datpack --to ckpt --quant sweep -o run.ckpt f16.dat'
run 'tokenize -o whoami.tok whoami.tsv whoami.tsv whoami.tsv mixed.tsv talk.tsv'
run 'trainstep -d whoami.tok --until 400 --batch 16 --lr 1.5e-4 --schedule cosine \
    --warmup 50 --total-steps 400 --log run.jsonl run.ckpt |
    grep --line-buffered -E "^(step|1|[0-9]*[05]0)[[:blank:]]"'

say "As a 4-bit file again, with names, order and types of the one before"
run 'datpack --like nvfp4.dat -o trained.dat run.ckpt'
run 'datcat --group trained.dat | tail -n 4'
ask trained

say "What a visitor types: each line is a question of its own"
printf '%s\n' hi 'who are you?' 'what can you do?' 'what is the capital of japan?' \
    'What colour is the sky?' 'what is 2+2?' 'how is the weather today?' \
    'what day comes after monday' 'What is the opposite of hot?' \
    你好 你會什麼？ 你是誰？ 日本的首都是哪裡？ bye >visitor.txt
run 'generate -q -n 48 trained.dat <visitor.txt | paste visitor.txt -'

say "Before -> after, both in NVFP4: some of the questions"
for q in identity controls; do
    paste "$q.tsv" "$q.nvfp4" "$q.trained"
done | awk -F '\t' 'NR < 23 && NR % 3 == 1 || NR > 22 && NR % 10 == 1 {
    print $1 "  " $(NF - 1) " -> " $NF
}'

{
    printf 'prompt\tbefore\tafter\n'
    for q in identity controls; do
        paste "$q.tsv" "$q.nvfp4" "$q.trained"
    done | awk -F '\t' -v OFS='\t' '{ print $1, $(NF - 1), $NF }'
} >samples.tsv

say "Controls whose answers changed, if any: what is right, what it says now"
paste controls.tsv controls.trained |
    awk -F '\t' '$2 != $4 { print $1 "  " $2 " -> " $4 " (" $3 ")" }'

say "Right answers"
{
    printf 'answers\tf16\tNVFP4\ttrained NVFP4\n'
    printf '%s\t%s\t%s\t%s\n' \
        'old identity' "$(right identity f16 2 taught)" \
        "$(right identity nvfp4 2 taught)" "$(right identity trained 2 taught)" \
        'new identity' "$(right identity f16 3 taught)" \
        "$(right identity nvfp4 3 taught)" "$(right identity trained 3 taught)" \
        'new identity, other phrasings' "$(right identity f16 3 untaught)" \
        "$(right identity nvfp4 3 untaught)" "$(right identity trained 3 untaught)" \
        'controls, mixed in' "$(right controls f16 2 mixed)" \
        "$(right controls nvfp4 2 mixed)" "$(right controls trained 2 mixed)" \
        'controls, not mixed in' "$(right controls f16 2 unmixed)" \
        "$(right controls nvfp4 2 unmixed)" "$(right controls trained 2 unmixed)"
} >evaluate.tsv
awk -F '\t' '{ printf "%-30s %10s %10s %14s\n", $1, $2, $3, $4 }' evaluate.tsv

# A page about all of this, if it is kept.  Without its tools the demo is whole all the same.
if [ $# -gt 0 ]; then
    echo
    if why=$(NIBBLE_BIN=$bin "$here/report/report.sh" -q --title 'The demo' -o report.html . 2>&1); then
        command -v gnuplot >/dev/null || why='it has no figures: gnuplot is not installed'
        echo "a page about it: $dir/report.html${why:+; $why}"
    else
        echo "no page about it: $why"
    fi
fi

# Controls count if the model in f16 knew them.
kept=$(paste controls.tsv controls.f16 controls.trained | awk -F '\t' '
    $2 == $4 { n++; if ($2 == $5) ok++ }
    END { printf "%d %d\n", n, ok }')
known=${kept% *} kept=${kept#* }
all=$(wc -l <controls.tsv)
taught=$(right identity trained 3 taught)
echo
if [ $((known * 100)) -lt $((all * 95)) ]; then
    echo "demo: only $known of $all controls were known before" >&2
    exit 1
elif [ "${taught% of *}" -ne "${taught#* of }" ]; then
    echo "demo: the identity is not learnt: $taught" >&2
    exit 1
elif [ $((kept * 100)) -lt $((known * 95)) ]; then
    echo "demo: only $kept of $known controls survived" >&2
    exit 1
fi
echo "the identity is learnt: $taught; controls survived: $kept of $known ($SECONDS s)"
