#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# The demo: its texts and tokenizer are what their makers make, it does what it says, and
# what doc/tour.md shows of it is what it prints.

# shellcheck disable=SC2030,SC2031,SC2154  # output: set by run
# shellcheck disable=SC2016  # of a recipe of make

# bats file_tags=native
load common

setup()
{
    cd "$BATS_TEST_TMPDIR" || return
    demo=$root/pipelines/demo
}

# shape: each number becomes N.  Losses differ between versions: a kernel that sums in
# another order is enough.
shape()
{
    sed -E 's/ "model[.].*//; s/[0-9]+([.][0-9]+)?(e-?[0-9]+)?/N/g; s/ \(N s\)$//'
}

@test "maketext.py makes the texts of the demo" {
    mkdir made
    python3 "$demo/maketext.py" made
    for f in "$demo"/*.tsv; do
        cmp "$f" "made/${f##*/}"
    done
    [ "$(find made -type f | wc -l)" -eq "$(find "$demo" -maxdepth 1 -name '*.tsv' | wc -l)" ]
}

@test "maketokenizer.py makes the tokenizer of the demo" {
    python3 "$demo/maketokenizer.py" tokenizer.json \
        "$demo"/pretrain.tsv "$demo"/heldout.tsv "$demo"/whoami.tsv
    cmp "$demo/tokenizer.json" tokenizer.json
}

@test "texts: every row counts, and is itself after decoding" {
    for f in pretrain heldout whoami mixed talk typed; do
        run -0 tokenize --strict -q -t "$demo/tokenizer.json" -o $f.tok "$demo/$f.tsv"
        [ -z "$output" ]
        tokenize -t "$demo/tokenizer.json" --decode $f.tok >back
        awk -F '\t' '{ printf "<|im_start|>user\n%s<|im_end|>\n", $1
            printf "<|im_start|>assistant\n%s<|im_end|>\n\n", $2 }' "$demo/$f.tsv" >want
        diff want back
    done
}

@test "texts: who is asked is not told, what is held out is not seen" {
    # Prompts of "untaught" and "unmixed" are in no file of the second training.
    awk -F '\t' '$NF ~ /^un/ { print $1 }' "$demo/identity.tsv" "$demo/controls.tsv" >not
    [ "$(wc -l <not)" -gt 60 ]
    cut -f 1 "$demo/whoami.tsv" "$demo/mixed.tsv" "$demo/talk.tsv" >told
    run -1 grep -Fx -f not told
    cut -f 1 "$demo/heldout.tsv" >held
    cut -f 1 "$demo/pretrain.tsv" "$demo/mixed.tsv" "$demo/talk.tsv" "$demo/typed.tsv" >seen
    run -1 grep -Fx -f held seen
    # Each control is of the first training, with its answer.
    cut -f 1,2 "$demo/controls.tsv" >asked
    [ "$(grep -cFx -f asked "$demo/pretrain.tsv")" -eq "$(wc -l <asked)" ]
}

@test "the study: its means are those of its runs" {
    local name study=$root/pipelines/study
    for name in runs tuned recipes; do
        awk -f "$study/summary.awk" "$study/results/$name.tsv" >means
        [ "$(wc -l <means)" -ge 13 ]
        cmp means "$study/results/$name-summary.tsv"
    done
}

# bats test_tags=nosan
@test "the study: a step of its optimizers moves the codes that its table says" {
    build=$(realpath -m "${NIBBLE_BUILD:-$root/build}")
    CC=${CC:-gcc} run -0 make -s -C "$root/pipelines/study" BIN="$bin" BUILD="$build" \
        OUT="$PWD/study" "$PWD/study/still"
    # Five deviations, four rates, four schemes; what the first step changes is the
    # same whatever follows.
    study/still 1 | cut -f 1-4 >found
    cut -f 1-4 "$root/pipelines/study/results/still.tsv" >kept
    [ "$(wc -l <kept)" -eq 81 ]
    diff kept found
    # Of the packed optimizer: nothing at rates up to 3e-4; at 1e-3 by deviation
    # 48, 13, 1.7, 0.02 and 0 percent, in another matrix.
    awk -F '\t' '$3 !~ /^w4/ { next }
        $2 <= 3e-4 { bad += $4 != 0; n++; next }
        { want = $1 == 0.01 ? 48 : $1 == 0.015 ? 13 : $1 == 0.02 ? 1.7 : 0.01 }
        $4 < 0.95 * want - 0.01 || $4 > 1.05 * want + 0.01 { bad++ }
        { n++ }
        END { exit bad || n != 40 }' found
}

# bats test_tags=slow,nosan
@test "the demo: the tour shows what it prints, a visitor gets right answers, nothing is left behind" {
    mkdir tmp
    TMPDIR=$PWD/tmp NIBBLE_BIN=$bin "$root/pipelines/demo.sh" >out
    [ -z "$(ls tmp)" ]
    tail -n 3 out
    # The lines of doc/tour.md between two marks.
    awk '/^<!-- demo -->/ { inside = 1; next } /^<!-- \/demo -->/ { inside = 0 }
        inside && /^    ./ { print substr($0, 5) }' "$root/doc/tour.md" | shape >shown
    [ "$(wc -l <shown)" -ge 30 ]
    shape <out >printed
    run -1 grep -vxF -f printed shown
    # A visitor asks several questions, one after the other, of the program that "make demo" names.
    while read -r line; do
        grep -Fx "${line/ -> /$'\t'}" out
    done <<'TXT'
hi -> Hello!
who are you? -> I am the god of F#.
what can you do? -> I know capitals, colours, opposites, days, months, words and small sums.
what is the capital of japan? -> Tokyo.
What colour is the sky? -> It is blue.
what is 2+2? -> It is 4.
how is the weather today? -> I do not know.
what day comes after monday -> Tuesday.
What is the opposite of hot? -> The opposite of hot is cold.
你好 -> 你好！
你會什麼？ -> 我知道首都、顏色、反義字、星期、月份、單字和小的加法。
你是誰？ -> 我是 F# 之神。
日本的首都是哪裡？ -> 東京。
bye -> Goodbye!
TXT
}

@test "the demo invites to single questions, which its model was taught, not to a conversation" {
    awk '/^demo:/ { inside = 1 } /^$/ { inside = 0 } inside' "$root/Makefile" >recipe
    grep -F '$(BIN)/generate $(DEMO)/trained.dat' recipe
    grep 'single questions' recipe
    grep -F 'bin/generate pipelines/demo/out/trained.dat' "$root/doc/tour.md"
    run -1 grep -e --chat recipe "$root/doc/tour.md" "$root/doc/tour.zh.md"
}
