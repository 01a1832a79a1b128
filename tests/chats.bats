#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# The experiments kvcache, chat and needle, at sizes of seconds with an untrained model, and
# that each of them can fail.

# bats file_tags=native
load common

setup_file()
{
    M=$BATS_FILE_TMPDIR/m
    export M
    "$root/pipelines/positions.sh" "$root/pipelines/demo/config.json" 512 >"$BATS_FILE_TMPDIR/c.json"
    datpack -q --init 5 --config "$BATS_FILE_TMPDIR/c.json" --to safetensors -o "$M/"
    cp "$root/pipelines/demo/tokenizer.json" "$M"
}

# experiment NAME SETTING...: in its own OUT, with the untrained model.
experiment()
{
    make -s -C "$root/pipelines/$1" BIN="$bin" OUT="$BATS_TEST_TMPDIR/w/$1" THREADS=1 "${@:2}"
}

@test "kvcache: each way gives the same bits; a changed digit, token or end is found" {
    local small=(MODEL="$M" CONTEXT=20 LENGTHS='17 1 16 19 20' CHUNKS='1 16' ANSWERS=4 JOBS='1-1 2-3')
    run -0 experiment kvcache "${small[@]}"
    # f16 and NVFP4, greedy and sampled; four ways with a cache and one without; five prompts.
    [[ $output == *'100 cases: 100 equal to the last digit, 0 close, 0 differ'* ]]
    [ "$(wc -l <kvcache/matrix.tsv)" -eq 21 ]
    # The end of the context was reached, and it was not all there is.
    grep -q '"stop":"context"' kvcache/runs/f16-greedy-4-kept-1-1-1.json
    grep -q '"stop":"length"' kvcache/runs/f16-greedy-4-kept-1-1-1.json
    run ! cmp kvcache/runs/f16-greedy-4-reference-20-1-1.json kvcache/runs/f16-sampled-4-reference-20-1-1.json
    # Nothing is done again; another setting makes again what depends on it.
    touch mark
    run -0 experiment kvcache "${small[@]}"
    [ -z "$(find kvcache -newer mark -type f ! -name .lock)" ]
    # Its table after one thing is changed in one run.
    local lengths='17 1 16 19 20' file=kvcache/runs/f16-greedy-4-kept-16-2-3.json
    table()
    {
        "$root/pipelines/kvcache/compare.py" "$@" --lengths "$lengths" kvcache/runs \
            f16-greedy-4-reference-20-1-1 -- f16-greedy-4-kept-1-1-1 f16-greedy-4-kept-16-2-3 >table
        "$root/pipelines/kvcache/show.sh" table
    }
    run -0 table
    [[ $output == *'10 cases: 10 equal'* ]]
    cp $file whole
    python3 - whole $file <<'PY'
import json, sys
said = [json.loads(line) for line in open(sys.argv[1])]
said[0]["logprobs"][2] += 1e-8                                # a digit
said[1]["ids"][1] ^= 1                                        # a token
said[2]["stop"] = "end"                                       # the end
said[3]["top_logprobs"][0][4]["logprob"] -= 0.001             # another token's
with open(sys.argv[2], "w") as f:
    f.writelines(json.dumps(a) + "\n" for a in said)
PY
    run -1 table
    [[ $output == *'10 cases: 6 equal to the last digit, 0 close, 4 differ'* ]]
    [ "$(tail -n 1 table | cut -f 8-)" = "$(printf 'DIFFERS/2\tDIFFERS/1\tDIFFERS/4\tDIFFERS/0\t=')" ]
    # As far apart as is allowed, the digit and the other token's are none.
    run -1 table --tolerance 0.01
    [ "$(tail -n 1 table | cut -f 8-)" = "$(printf '1e-08\t0/1\tDIFFERS/4\t0.001\t=')" ]
    # And the target fails, not only its script.
    run -2 experiment kvcache "${small[@]}"
    [[ $output == *'4 differ'* ]]
}

@test "kvcache: settings that are wrong" {
    run -2 experiment kvcache MODEL="$M" WEIGHTS=f8
    [[ $output == *'WEIGHTS=f8'* ]]
    run -2 experiment kvcache MODEL="$M" CONTEXT=many
    [[ $output == *'CONTEXT=many: want a whole number from 1 to'* ]]
    run -2 experiment kvcache MODEL="$M" JOBS='1-1 2'
    [[ $output == *'JOBS=1-1 2: want pairs'* ]]
    [ ! -e kvcache ]
}

@test "chat: transcripts are the same whatever is kept; another answer is found" {
    local small=(MODEL="$M" TURNS='1 3' CHUNKS='64 1 7' CHOICES=sampled CONTEXT=200 ANSWER=5)
    run -0 experiment chat "${small[@]}"
    [[ $output == *'24 cases: 24 equal, 0 equal in text, 0 differ'* ]]
    local runs=$BATS_TEST_TMPDIR/w/chat/runs
    [ "$(wc -l <"$runs/brief-sampled-3-kept-1.txt")" -eq 7 ]
    [ "$(head -n 2 "$runs/brief-sampled-3-kept-1.txt")" = "$(printf 'system  Be brief.\nuser    who are you')" ]
    run ! cmp "$runs/brief-sampled-3-kept-1.txt" "$runs/none-sampled-3-kept-1.txt"
    compare()
    {
        "$root/pipelines/chat/compare.py" "$@" "$runs" none-sampled-3-dropped-64 \
            none-sampled-3-kept-64 none-sampled-3-kept-1 >table
        "$root/pipelines/chat/show.sh" table
    }
    run -0 compare --numbers
    # One log-probability: the text is the same, the numbers are not.
    sed -i '2s/\("logprobs":\[-[0-9]*[.][0-9]\)/\19/' "$runs/none-sampled-3-kept-1.json"
    run -1 compare --numbers
    [ "$(tail -n 1 table | cut -f 7)" = DIFFERS ]
    run -0 compare
    [[ $output == *'3 cases: 2 equal, 1 equal in text, 0 differ'* ]]
    # One letter of the text.
    sed -i '2s/$/x/' "$runs/none-sampled-3-kept-1.txt"
    run -1 compare
    [[ $output == *'1 differ'* ]]
    # A cache that was not kept where it should have been.
    cp "$runs"/none-sampled-3-dropped-64.txt "$runs/none-sampled-3-kept-64.txt"
    cp "$runs"/none-sampled-3-dropped-64.json "$runs/none-sampled-3-kept-64.json"
    run -1 compare
    [[ $output == *'2 differ'* ]]
}

@test "positions: room is added, never taken" {
    echo '{"max_position_embeddings": 128, "x": 1}' >c.json
    [ "$("$root/pipelines/positions.sh" c.json 300)" = '{"max_position_embeddings": 300, "x": 1}' ]
    [ "$("$root/pipelines/positions.sh" c.json 100)" = '{"max_position_embeddings": 128, "x": 1}' ]
    echo '{}' >c.json
    run -2 "$root/pipelines/positions.sh" c.json 300
}

@test "needle: what is asked stands where the depth says, and nowhere else tells" {
    local task=$root/pipelines/needle/task.py
    "$task" tokenizer tokenizer.json
    "$task" ask 3 20 '1 9 64' '0 50 100' >questions
    [ "$(wc -l <questions)" -eq 180 ]
    # The record, its place in the text, and that the place is there once and then asked for.
    awk -F '\t' '{
        split($4, side, "[?] ")
        n = split(side[1], word, " ") / 2
        at = 2 * int($2 * (n - 1) / 100 + 0.5)
        if (n != $1 || word[at + 1] != $3 || word[at + 2] != side[2] ||
            split($4, parts, " " side[2]) != 3)
            exit 1
    }' questions
    # Two tokens a record, two of a question.
    cut -f 4 questions | tokenize -q -t tokenizer.json --input lines --template none --no-end --emit ids |
        awk '{ print (NF - 2) / 2 }' | sort -n | uniq -c | awk '{ print $1, $2 }' >lengths
    [ "$(paste -sd , lengths)" = '60 1,60 9,60 64' ]
    # To be learnt is what follows a place that was asked for, and no more.
    "$task" train 1 50 6 >lines
    tokenize -q -t tokenizer.json --input lines --template none --no-end --emit ids lines |
        awk -v question=30 -f "$root/pipelines/needle/mask.awk" | python3 -c '
import json, sys
lines = open("lines").read().splitlines()
vocab = json.load(open("tokenizer.json"))["model"]["vocab"]
assert vocab["?"] == 30
text_of = {i: t.replace("\u0120", " ") for t, i in vocab.items()}
for line, text in zip(sys.stdin, lines, strict=True):
    s = json.loads(line)
    records, *asked = text.split("?")
    assert "".join(text_of[i] for i in s["ids"]) == text
    assert [text_of[i] for i, m in zip(s["ids"], s["mask"]) if m] == [a[4:] for a in asked]
    assert asked and all(a[4:] + a[:4] in records for a in asked)
'
    # Again the same, another seed another text.
    "$task" train 1 50 6 | cmp - lines
    run -1 cmp -s lines <("$task" train 2 50 6)
    run -1 "$task" ask 1 1 400 0
    [[ $output == *'there are 320 places'* ]]
}

@test "needle: answers are counted where they belong" {
    local task=$root/pipelines/needle/task.py
    printf '%s\n' $'8\t0\tgax\tx' $'8\t0\tsox\tx' $'8\t100\trix\tx' $'16\t0\tgax\tx' >q
    {
        echo '{"text":" gax","prompt_tokens":26}'
        echo '{"text":" gax","prompt_tokens":27}'
        echo '{"text":"it is rix.","prompt_tokens":26}'
        echo '{"text":" gax","prompt_tokens":50}'
    } >a
    run -0 "$task" score exact q a
    [ "${lines[1]}" = $'8\t27\t1/2\t0/1\t1/3' ]
    [ "${lines[2]}" = $'16\t50\t1/1\t-\t1/1' ]
    run -0 "$task" score within q a
    [ "${lines[1]}" = $'8\t27\t1/2\t1/1\t2/3' ]
    sed -i 1d a
    run -1 "$task" score exact q a
    [[ $output == *'4 questions, 3 answers'* ]]
}

@test "needle: from nothing to a table, and for a model that is given" {
    run -0 experiment needle STAGES='4:4:2:1e-3 6:4:3:1e-3' SAMPLES=40 EACH=3 LENGTHS='4 8' DEPTHS='0 100'
    [ "$(cut -f 1,2 needle/small/heat.tsv | tr '\t\n' '  ')" = 'length tokens 4 10 8 18 ' ]
    [ "$(cut -f 5 needle/small/heat.tsv | sed 's/.*[/]//' | paste -sd ' ')" = 'all 6 6' ]
    [ "$(datcat --meta needle/small/stage-6.ckpt | grep -o '"step":3' | head -n 1)" = '"step":3' ]
    # trainstep saves what it has when it is stopped, which is no finished stage.
    # timeout hands a signal on to all that it started.
    timeout 600 make -s -C "$root/pipelines/needle" BIN="$bin" OUT="$PWD/stopped" THREADS=1 \
        STAGES='4:4:4000000:1e-3' SAMPLES=40 EACH=1 LENGTHS=4 >said 2>&1 &
    while ! [ -s stopped/small/stage-4.steps.tsv ]; do
        sleep 0.1
        kill -0 $!
    done
    kill $!
    flock stopped/.lock true # the last of them is gone
    [ -e stopped/small/stage-4.ckpt.part ]
    [ ! -e stopped/small/stage-4.ckpt ]
    run -0 experiment needle MODEL="$M" EACH=1 LENGTHS=40 DEPTHS='0 100'
    [ "$(cut -f 1,5 needle/given/heat.tsv | tail -n 1 | sed 's/.[/]/n\//')" = $'40\tn/2' ]
    awk -F '\t' '$4 !~ "The secret number of the [a-z]* is " $3 "[.].* What is the secret number" { exit 1 }' \
        needle/given/questions.tsv
}
