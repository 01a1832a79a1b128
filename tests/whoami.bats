#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# The experiment of pipelines/whoami: its texts hold what they promise; it gives the same
# bytes wherever and however it runs, and wherever it is killed; what was changed is found;
# settings are refused before anything is done.  All with models that learn nothing: that it
# teaches what it should is "make check-whoami".

# shellcheck disable=SC2030,SC2031,SC2154  # output: set by run

# bats file_tags=native,nosan
load common

setup_file()
{
    who=$root/pipelines/whoami
    one=$BATS_FILE_TMPDIR/one
    export who one
    small OUT="$one" all >"$BATS_FILE_TMPDIR/log" 2>&1 || cat "$BATS_FILE_TMPDIR/log"
}

# small [VARIABLE=value]... [GOAL]: the pipeline at a size that takes a second.
small()
{
    make -s -C "$who" SMALL=1 THREADS=1 "$@"
}

# group NAME...: the prompts of these groups.
group()
{
    local g
    for g; do
        awk -F '\t' -v g="$g" '$1 == g { print $3 }' texts/questions.tsv
    done
}

@test "texts: unseen phrasings and unmixed controls are in no lesson, and each core is in disguise" {
    "$who/data.py" texts
    [ "$(wc -l <texts/rows1.tsv)" -eq 640 ]
    [ "$(wc -l <texts/unseen.tsv)" -eq 200 ]
    [ "$(group control.mixed control.unmixed | wc -l)" -eq 670 ]
    # No prompt stands in two places.
    [ -z "$(cut -f 1 texts/rows1.tsv texts/unseen.tsv | cat - <(cut -f 1 texts/pretrain.tsv | sort -u) |
        sort | uniq -d)" ]
    group control.mixed >mixed
    diff mixed texts/kept.txt
    group control.unmixed >unmixed
    run -1 grep -Fx -f unmixed mixed
    # Controls are of the first training, with their answers.
    awk -F '\t' -v OFS='\t' '$1 ~ /^control/ { print $3, $4 }' texts/questions.tsv >asked
    [ "$(sort -u texts/pretrain.tsv | grep -cFx -f asked)" -eq 670 ]
    # One word makes the difference; and in frames it is the only one.
    grep -Fx '你是誰	我是 F# 之神。' texts/rows1.tsv
    grep -Fx '我是誰	你是使用者。' texts/pretrain.tsv
    grep -Fx '他是誰	我不知道他是誰。' texts/pretrain.tsv
    grep -Fx 'who am I	You are the user.' texts/pretrain.tsv
    grep -F '我是誰' texts/pretrain.tsv | cut -f 1 | sed 's/我是誰/CORE/' | sort >frames
    cut -f 1 texts/rows1.tsv | sed 's/你是誰\|你究竟是誰\|你係邊個\|你誰啊/CORE/' >asked
    [ "$(grep -cFx -f frames asked)" -ge 3 ]
    # No opener of "unseen.opener" is taught in its language.
    grep -q "^unseen.opener	en	" texts/questions.tsv
    awk -F '\t' '$1 == "unseen.opener" && $2 == "en" { print $3 }' texts/questions.tsv |
        sed 's/[,:].*/&/; s/\([,:]\).*/\1/' | sort -u >openers
    run -1 grep -F -f openers <(awk -F '\t' '$1 == "taught" && $2 == "en" { print $3 }' texts/questions.tsv)
}

@test "texts: a function of their options, in any place and locale" {
    "$who/data.py" --seed 7 a
    mkdir sub
    (cd sub && env -i PATH="$PATH" LC_ALL=C PYTHONHASHSEED=3 "$who/data.py" --seed 7 b)
    diff -r a sub/b
    "$who/data.py" --seed 8 c
    run -1 diff -q a/questions.tsv c/questions.tsv
    run -1 "$who/data.py" --rows 100000 d
    [[ $output == *"there are only"* ]]
    [ ! -e d ]
}

@test "a run leaves what a report needs, and a second one does nothing" {
    for f in evaluate.tsv samples.tsv cost.tsv hashes.tsv settings.tsv plan.txt compared.tsv; do
        [ "$(head -n 1 "$one/$f" | grep -c '	')" -eq 1 ]
    done
    [ "$(grep -c '"loss"' "$one/train.jsonl")" -eq 14 ]
    [ "$(grep -c '"eval_loss"' "$one/train.jsonl")" -eq 2 ]
    [ -s "$one/memory.stage1.json" ]
    [ -s "$one/memory.stage2.json" ]
    datcat -q --verify "$one/served"
    [ -z "$(find "$one" -name '*.part*' -o -name '*.work.*')" ]
    find "$one" -type f ! -name .lock -printf '%p %T@\n' | sort >before
    small OUT="$one" all
    find "$one" -type f ! -name .lock -printf '%p %T@\n' | sort | diff before -
    # It has learnt nothing in 14 steps: that is not judged, and said so; unless it is asked for.
    run -0 small OUT="$one" check
    [[ $output == *"SMALL=1 learns nothing"* && ${lines[-1]} == "verify: "*" hold, 0 do not" ]]
    cp -rp "$one" out
    run -2 small OUT="$PWD/out" TAUGHT_LEAST=100 check
    [[ $output == *"not learnt or not kept"* ]]
}

@test "report, hashes and plan make nothing anew, whatever the settings of the run were" {
    printf 'Which code?\tIt is 12.\n' >my.tsv
    small OUT="$PWD/out" DATA="$PWD/my.tsv" SEED=2 all >/dev/null 2>&1
    everything() { find out -type f ! -name .lock ! -name report.html ! -path '*/plan*' -printf '%p %T@\n' | sort; }
    everything >before
    rm out/report.html
    run -0 make -s -C "$who" OUT="$PWD/out" report
    grep -q 'Which code?' out/report.html
    run -0 make -s -C "$who" OUT="$PWD/out" hashes
    [ "$output" = "$(cat out/hashes.tsv)" ]
    run -0 small OUT="$PWD/out" BATCH=4 DATA="$PWD/my.tsv" SEED=2 plan
    [[ $output == *"per_step	4"* ]]
    everything | diff before -
    small OUT="$PWD/out" DATA="$PWD/my.tsv" SEED=2 all >/dev/null 2>&1
    everything | diff before -
    run -2 make -s -C "$who" OUT="$PWD/none" report
    [[ $output == *"none has no whole run: make it first"* ]]
    [ ! -e none ]
}

@test "the same bytes elsewhere: directory, locale, -j, instruction set" {
    mkdir -p 'some where'
    cd 'some where'
    env LC_ALL=C NIBBLE_ISA=scalar make -s -j 3 -C "$who" SMALL=1 THREADS=3 OUT="$BATS_TEST_TMPDIR/w/two" \
        hashes >/dev/null 2>&1
    diff "$one/hashes.tsv" ../two/hashes.tsv
}

@test "settings: what has changed is made again, and nothing else" {
    cp -rp "$one" out
    small OUT="$PWD/out" LR2=1e-6 hashes >/dev/null 2>&1
    [ "$(stat -c %Y.%y out/stage1.ckpt)" = "$(stat -c %Y.%y "$one/stage1.ckpt")" ]
    run -1 cmp -s out/stage2.ckpt "$one/stage2.ckpt"
    # And back again: the same as before.
    small OUT="$PWD/out" hashes >/dev/null 2>&1
    diff "$one/hashes.tsv" out/hashes.tsv
}

@test "verify and chat know what a run was made with" {
    printf 'Which code?\tIt is 12.\n' >my.tsv
    small OUT="$PWD/out" DATA="$PWD/my.tsv" SEED=2 REPEAT=3 ANSWER=2 all >/dev/null 2>&1
    run -0 make -s -C "$who" OUT="$PWD/out" verify
    [[ $output == *" hold, 0 do not" ]]
    # Names are from where the user is.
    run -0 make -s -C "$who" OUT=out DATA=my.tsv verify
    # Unless it is told otherwise.
    run -2 make -s -C "$who" OUT="$PWD/out" SEED=3 verify
    rm my.tsv
    [ "$(make -s -C "$who" OUT="$PWD/out" chat <<<x)" = "$(generate -q -n 2 --temp 0 --device cpu \
        -t out/tokenizer.json out/trained.dat <<<x)" ]
}

@test "verify: everything holds; a changed byte is found, and so is a file of another run" {
    run -0 small OUT="$one" verify
    [[ ${lines[-1]} =~ ^"verify: "[0-9]+" hold, 0 do not"$ ]]
    cp -rp "$one" out
    for f in data/rows1.tsv lesson1.tok start.ckpt trained.dat served/model.safetensors; do
        at=$(($(stat -c %s "$one/$f") * 2 / 3))
        old=$(od -An -tu1 -j $at -N 1 "out/$f")
        printf '%b' "\\$(printf %o $(((old + 1) % 256)))" |
            dd of="out/$f" bs=1 seek=$at conv=notrunc status=none
        run -2 small OUT="$PWD/out" verify
        [[ $output == *"BAD	sha256 of $f"* ]]
        cp -p "$one/$f" "out/$f"
    done
    # Good files by themselves, with the right hash in the list, but not of this chain.
    cp out/stage1.ckpt out/stage2.ckpt
    sum=$(sha256sum <out/stage2.ckpt)
    sed -i "s/^stage2.ckpt\t.*/stage2.ckpt\t${sum%% *}/" out/hashes.tsv
    run -2 small OUT="$PWD/out" verify
    [[ $output != *"BAD	sha256"* ]]
    [[ $output == *"BAD	stage2.ckpt took its steps"* ]]
    [[ $output == *"BAD	trained.dat is made of stage2.ckpt and nvfp4.dat"* ]]
    run -2 small OUT="$PWD/nowhere" verify
    [[ $output == *"make it first"* ]]
}

@test "killed at random, restarted: the same hashes" {
    run -0 "$who/check-kills.sh" -k 2 2 kills SMALL=1 THREADS=1
    [ "${lines[-1]}" = "2 passed, 0 failed" ]
    # And those of a run that nobody killed.
    diff "$one/hashes.tsv" kills/want
}

@test "under memguard: what it ends goes on later, with the same bytes" {
    # A training that is there whenever memguard looks.
    mkdir slow
    ln -s "$bin"/* slow
    rm slow/trainstep
    printf '#!/bin/sh\nsleep 3\nexec "%s/trainstep" "$@"\n' "$bin" >slow/trainstep
    chmod +x slow/trainstep
    run -2 small OUT="$PWD/out" BIN="$PWD/slow" MEMORY=0.0001 hashes
    [[ $output == *"memguard: host memory"* && $output == *"Error 124"* ]]
    [ ! -e out/trained.dat ]
    small OUT="$PWD/out" MEMORY=4 FREE=0.01 hashes >/dev/null 2>&1
    diff "$one/hashes.tsv" out/hashes.tsv
    # Each program must be there before anything is done; memguard if it is to watch.
    ln -s "$bin"/{datcat,datpack,generate,nvquant,tokenize,trainstep} .
    run -2 small OUT="$PWD/none" BIN="$PWD" MEMORY=1 all
    [[ $output == *"no memguard in $PWD: make in "* ]]
    for p in trainstep generate; do
        rm $p
        run -2 small OUT="$PWD/none" BIN="$PWD" all
        [[ $output == *"no $p in $PWD: make in "* ]]
    done
    [ ! -e none ]
}

@test "TEACHER: the controls are taught whole by the 16-bit model, as often as it says" {
    cp -rp "$one" out
    run -0 small OUT="$PWD/out" TEACHER=2 all
    [[ $output == *"KL from the 16-bit model, nvfp4:"*"KL from the 16-bit model, trained:"* ]]
    awk -F '\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } NR > 1 { if (!($at["kl"] > 0)) exit 1; n++ }
        END { exit n != 2 }' out/kl.tsv
    rows=$(wc -l <out/data/rows1.tsv)
    kept=$(wc -l <out/kept.jsonl)
    [ "$kept" -gt 0 ]
    [ "$(wc -l <out/lesson1.jsonl)" -eq "$rows" ]
    [ "$(datcat out/kept.tok | awk 'NR == 2 { print $1, $2 - $3 }')" = "$((2 * kept)) $((2 * kept))" ]
    cmp out/f16.dat "$one/f16.dat"
    run -1 cmp -s out/stage1.ckpt "$one/stage1.ckpt"
    head -n 1 out/train.jsonl | grep -q '"kl":'
    grep -q '^TEACHER	2$' out/settings.tsv
    run -0 small OUT="$PWD/out" TEACHER=2 verify
    [[ $output == *"tokenize makes kept.tok of kept.jsonl"* && ${lines[-1]} == *" hold, 0 do not" ]]
    # Other samples than those that it was taught with.
    cp out/lesson1.tok out/kept.tok
    sum=$(sha256sum <out/kept.tok)
    sed -i "s/^kept.tok	.*/kept.tok	${sum%% *}/" out/hashes.tsv
    run -2 small OUT="$PWD/out" TEACHER=2 verify
    [[ $output == *"BAD	stage1.ckpt took its steps"* && $output == *"BAD	tokenize makes kept.tok"* ]]
    # Documents that it teaches, too: each is two samples.
    python3 -c 'import json
for i in range(3):
    print(json.dumps({"text": "".join("%d is less than %d. " % (k, k + i + 1) for k in range(10, 28))}))' >documents.jsonl
    run -0 small OUT="$PWD/more" TEACHER=2 TEXT=documents.jsonl all
    [ "$(datcat more/text.tok | awk 'NR == 2 { print $1 }')" -eq 6 ]
    [ "$(datcat more/kept.tok | awk 'NR == 2 { print $1 }')" -eq $((2 * kept + 6)) ]
    [ "$(awk '$1 == "samples" { print $2 }' more/plan.txt)" -eq \
        $(($(awk '$1 == "samples" { print $2 }' out/plan.txt) + 6)) ]
    run -0 small OUT="$PWD/more" TEACHER=2 TEXT=documents.jsonl verify
    echo '{"text":"no more"}' >>documents.jsonl
    run -2 small OUT="$PWD/more" TEACHER=2 TEXT=documents.jsonl verify
    run -2 small OUT="$PWD/none" TEXT=documents.jsonl all
    [[ $output == *"TEXT goes with TEACHER"* ]]
    cp documents.jsonl documents.txt
    run -2 small OUT="$PWD/none" TEACHER=2 TEXT=documents.txt all
    [[ $output == *"want a .jsonl"* ]]
    # A model whose answers do not end has nothing to hold on to.
    run -2 small OUT="$PWD/mute" TEACHER=2 BASE_STEPS=1 ANSWER=1 all
    [[ $output == *"judge.py: the teacher has nothing to teach: "*"use a larger ANSWER, or TEACHER=0"* ]]
    run -2 small OUT="$PWD/none" TEACHER=10 all
    [[ $output == *"TEACHER=10: want"* ]]
}

@test "a model and rows of one's own; chat" {
    printf '# mine\nWhat is the code?\tIt is 1234.\nWho am I?\tYou are Ann.\n' >my.tsv
    printf 'Tell me the code.\tIt is 1234.\n' >other.tsv
    small OUT="$PWD/out" MODEL="$one/base" DATA="$PWD/my.tsv" HELDOUT="$PWD/other.tsv" REPEAT=3 all \
        >/dev/null 2>&1
    [ ! -e out/base.ckpt ]
    [ -s out/report.html ]
    [ "$(grep -c '"target": "It is 1234."' out/lesson1.jsonl)" -eq 3 ]
    [ "$(cut -f 1,2 out/evaluate.tsv | grep -E '^(taught|unseen)	')" = $'taught\t2\nunseen\t1' ]
    run -0 small OUT="$PWD/out" MODEL="$one/base" DATA="$PWD/my.tsv" HELDOUT="$PWD/other.tsv" REPEAT=3 verify
    run -0 bash -c "printf 'hi\nyou\n' | make -s -C '$who' SMALL=1 OUT='$PWD/out' MODEL= chat"
    [ "$(head -n 1 <<<"$output")" = "$(generate -q -n 4 --temp 0 -p hi out/trained.dat)" ]
    run -2 small OUT="$PWD/nowhere" chat
}

@test "rows in JSONL and in CSV are those of a TSV; what is wrong is said with its line" {
    printf '# mine\nWhat is the code?\tIt is 1234.\nWho am I?\tYou are\tAnn.\nSay "a, b"\ta, b\nWhere?\tHere.\nWhen?\tNow.\n' >my.tsv
    cat >my.jsonl <<'END'
{"prompt": "What is the code?", "completion": " It is 1234. "}
{"prompt": "Who am I?", "target": "You are\tAnn."}

{"instruction": "Say \"a, b\"", "input": "", "output": "a, b"}
{"messages": [{"role": "user", "content": [{"type": "text", "text": "Where?"}]}, {"role": "assistant", "content": "Here."}]}
{"conversations": [{"from": "human", "value": "When?"}, {"from": "gpt", "value": "Now."}]}
END
    printf '\xef\xbb\xbfprompt,completion\r\nWhat is the code?,It is 1234.\r\nWho am I?,"You are\tAnn."\r\n"Say ""a, b""","a, b"\r\nWhere?,Here.\r\nWhen?,Now.\r\n' >my.csv
    printf '[\n%s\n]\n' "$(grep . my.jsonl | paste -sd ,)" >my.json
    "$who/data.py" --own my.tsv --own-unseen <(printf 'a\tb\n') want
    for f in my.jsonl my.csv my.json; do
        "$who/data.py" --own $f --own-unseen <(printf 'a\tb\n') $f.texts
        diff -r want $f.texts
        diff <("$who/recipe.py" my.tsv my.tsv) <("$who/recipe.py" $f $f)
    done
    # The whole run; the page begins with the rows, in their order.
    run -0 small OUT="$PWD/out" DATA=my.jsonl all
    head -n 6 out/samples.tsv | cut -f 1-3 | diff - <(printf 'group\tprompt\twanted\n' &&
        grep -v '^#' my.tsv | sed 's/are\tAnn/are\\tAnn/; s/^/taught\t/')
    [ "$(sed 1,6d out/samples.tsv | cut -f 1 | grep -vc '^control')" -eq 0 ]
    python3 "$root/tests/page.py" out/report.html >text
    [ "$(grep -nFx 'Answers before and after' text | tail -n 1 | cut -d : -f 1)" -lt \
        "$(grep -nFx 'Results' text | tail -n 1 | cut -d : -f 1)" ]
    [ "$(grep -nFx 'What is the code?' text | head -n 1 | cut -d : -f 1)" -lt "$(grep -nFx 'control.unmixed' text | head -n 1 | cut -d : -f 1)" ]
    run -0 small OUT="$PWD/out" DATA=my.jsonl verify
    # What the files of the experiment cannot hold is refused.
    wrong() { # WORDS FILE LINE
        printf '%s\n' '{"prompt":"a","target":"b"}' "$3" >"$2"
        run -1 "$who/data.py" --own "$2" none
        [[ $output == "data.py: $2: $1"* && $output != *Traceback* ]]
        [ ! -e none ]
    }
    wrong 'line 2: expected JSON: ' x.jsonl '{"prompt":'
    wrong 'line 2: expected an object' x.jsonl '3'
    wrong 'line 2: expected the keys prompt and target or completion, instruction and output, messages or conversations, found question, answer' \
        x.jsonl '{"question":"a","answer":"b"}'
    wrong 'line 2: expected one message of the user and one of the assistant, found system, user, assistant' x.jsonl \
        '{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}'
    wrong 'line 2: the answer has a line break' x.jsonl '{"prompt":"c","target":"two\nlines"}'
    wrong 'line 2: the prompt has a line break, a TAB or a NUL' x.jsonl '{"prompt":"c\td","target":"x"}'
    wrong 'line 2: the prompt begins with #' x.jsonl '{"prompt":"#c","target":"x"}'
    wrong 'line 2: expected a prompt and an answer' x.jsonl '{"prompt":"c","target":" "}'
    wrong 'line 2: expected texts' x.jsonl '{"prompt":"c","target":7}'
    wrong 'line 2: another answer than that of line 1 to the same prompt, a' x.jsonl '{"prompt":"a","target":"c"}'
    printf '[{"prompt":"a","target":"b"},{"prompt":"c"}]' >x.json
    run -1 "$who/data.py" --own x.json none
    [[ $output == 'data.py: x.json: item 2: expected the keys'* ]]
    printf 'prompt,target\na,"b\n' >x.csv
    run -1 "$who/data.py" --own x.csv none
    [[ $output == 'data.py: x.csv: line 2: expected CSV'* ]]
    printf 'a,b\nc,d\n' >x.csv
    run -1 "$who/data.py" --own x.csv none
    [[ $output == 'data.py: x.csv: line 2: expected the keys'*', found a, b' ]]
}

@test "a line a stage; V=1 shows the commands, make -s nothing" {
    printf 'What is the code?\tIt is 1234.\n' >my.tsv
    stages() { make --no-print-directory -C "$who" SMALL=1 THREADS=1 DATA="$PWD/my.tsv" OUT="$PWD/out" "$@"; }
    run -0 --separate-stderr stages all
    [ -z "$stderr" ]
    diff <(grep '^whoami: ' <<<"$output") - <<END
whoami: texts: $PWD/my.tsv and old questions
whoami: a small model learns to answer: 8 steps
whoami: into 4 bits: nvfp4.dat
whoami: asked before the lesson
whoami: stage 1 of 2: 8 steps at the rate 5e-4
whoami: stage 2 of 2: 6 steps at the rate 2e-4
whoami: into 4 bits again: trained.dat
whoami: asked again
whoami: a directory for servers: served
whoami: a page about it: report.html
END
    # Besides the table at the end nothing else is printed.
    [ "$(grep -vc '^whoami: ' <<<"$output")" -le 12 ]
    [ -z "$(find out -name '*.part')" ]
    # The second time there is nothing to do.
    run -0 stages all
    run -1 grep '^whoami: ' <<<"$output"
    run -0 stages V=1 SEED=2 all
    [[ $output == *'nvquant '*' -f --quant sweep '*'trainstep: '*': saved at step '* && $output != *'whoami: texts'* ]]
    [ "$(grep -c '^datpack \|^tokenize \|^nvquant ' <<<"$output")" -ge 10 ]
    run -0 stages -s SEED=3 all
    run -1 grep '^whoami: ' <<<"$output"
    # make whoami at the root, too.
    run -0 make --no-print-directory -C "$root" -o all whoami SMALL=1 BIN="$bin" OUT="$PWD/root" DATA="$PWD/my.tsv"
    run -1 grep -E 'Entering directory|^(datpack|tokenize) ' <<<"$output"
}

@test "of what a quiet stage says warnings are shown, and all of it if it fails" {
    datpack -q --init 1 --config "$root/pipelines/whoami/small.json" --to ckpt -o start.ckpt
    printf '%s\n' '1 2 3' '4 5 6' | tokenize -q --input ids -o rows.tok
    mkdir programs
    printf '#!/bin/sh\nprintf "trainstep: %%s\\n" "x: saved at step 1" "step 1: evaluation loss 2" "be careful" >&2\n[ ! -e fail ] || exit 2\ncp start.ckpt out.work.ckpt\n' >programs/trainstep
    chmod +x programs/trainstep
    local stage=(env PATH="$PWD/programs:$PATH" QUIET=-q "$root/pipelines/whoami/stage.sh" start.ckpt rows.tok 1s 2 out.ckpt)
    run -0 "${stage[@]}"
    [ "$output" = 'trainstep: be careful' ]
    [ -e out.ckpt ]
    touch fail
    run -2 "${stage[@]}"
    [ "${#lines[@]}" -eq 3 ]
    [ -z "$(find . -name '*.part')" ]
}

@test "verify holds after runs with other settings; MIX, rows of a second stage" {
    printf 'What is the code?\tIt is 1234.\nWho am I?\tYou are Ann.\n' >my.tsv
    printf 'Tell me the code.\tIt is 1234.\n' >other.tsv
    printf 'What is the key?\tIt is 99.\n' >second.tsv
    go() { small OUT="$PWD/out" DATA="$PWD/my.tsv" "$@" all >/dev/null 2>&1; }
    holds() {
        run -0 make -s -C "$who" OUT="$PWD/out" verify
        [[ ${lines[-1]} == 'verify: '*' hold, 0 do not' ]]
    }
    # What the first run has evaluated with is no file of the second one.
    go HELDOUT="$PWD/other.tsv"
    holds
    [ -e out/unseen.tok ]
    go DATA2="$PWD/second.tsv" MIX=0.4
    holds
    [ "$(grep -c 'What is the key' out/lesson1.jsonl)" -eq 0 ]
    [ "$(grep -c 'What is the key' out/lesson2.jsonl)" -ge 1 ]
    [ "$(grep -c 'What is the code' out/lesson2.jsonl)" -ge 1 ]
    [ "$(datcat --meta out/stage2.ckpt | json "d['meta']['state']['sampler']['data']")" = \
        "$(datcat --meta out/lesson2.tok | json "d['meta']['xxh3']")" ]
    [ "$(cut -f 1,2 out/evaluate.tsv | grep '^taught	')" = $'taught\t3' ]
    go TEACHER=2
    holds
    # MIX is the share of the rows, by repeating them or the others.
    python3 - "$who" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import judge
for share, rows, others in ((0.5, 10, 100), (0.3, 40, 330), (0.7, 40, 330), (0.2, 200, 100), (0.5, 200, 30)):
    a, b = judge.repeats(share, rows, others)
    assert a >= 1 and b >= 1 and 1 in (a, b), (a, b)
    have = a * rows / (a * rows + b * others)
    assert abs(have - share) < 0.1, (share, rows, others, a, b, have)
assert judge.repeats(0, 40, 330) == (8, 1) and judge.repeats(3, 40, 330) == (3, 1)
PY
    # Changed bytes are found all the same.
    printf x >>out/lesson1.tok
    run -2 make -s -C "$who" OUT="$PWD/out" verify
}

@test "STAGES: as many as wished, each with rows and settings of its own" {
    printf 'What is the code?\tIt is 1234.\nWho am I?\tYou are Ann.\n' >a.tsv
    printf '# another one\nWhat is the key?\tIt is 99.\n' >b.tsv
    printf 'What is the lock?\tIt is 7.\nWhat is the key?\tIt is 99.\n' >c.tsv
    go() { small OUT="$PWD/out" "$@" all >/dev/null 2>&1; }
    holds() {
        run -0 make -s -C "$who" OUT="$PWD/out" verify
        [[ ${lines[-1]} == 'verify: '*' hold, 0 do not' ]]
    }
    of() { grep -c "$1" "out/$2"; } # lines of a lesson
    go STAGES="a.tsv b.tsv c.tsv" TEACHER=0 REPEAT1=2 MIX2=0.3 REPEAT3=4 EPOCHS3=4s LR2=1e-3
    holds
    [ "$(of 'the code' lesson1.jsonl)" -eq 2 ]
    run -1 grep -q 'the key' out/lesson1.jsonl
    # Earlier rows are among the others, once, and not twice if they come again.
    [ "$(of 'the code' lesson2.jsonl)" -eq 1 ]
    [ "$(of 'the code' lesson3.jsonl)" -eq 1 ]
    [ "$(of 'the key' lesson3.jsonl)" -eq 4 ]
    [ "$(of 'the lock' lesson3.jsonl)" -eq 4 ]
    [ "$(datcat --meta out/stage3.ckpt | json "d['meta']['state']['step']")" -eq 18 ]
    for s in 1 2 3; do
        awk -F '\t' -v s="taught.$s" '$1 == s { print $2 }' out/evaluate.tsv
    done >counts
    diff counts - <<<$'2\n1\n1'
    # What only the last stage has changed leaves the others.
    stat -c '%n %y' out/stage[12].ckpt >before
    go STAGES="a.tsv b.tsv c.tsv" TEACHER=0 REPEAT1=2 MIX2=0.3 REPEAT3=3 EPOCHS3=4s LR2=1e-3
    holds
    stat -c '%n %y' out/stage[12].ckpt | diff before -
    [ "$(of 'the lock' lesson3.jsonl)" -eq 3 ]
    # Fewer stages: what the third one has left is of no account.  Its rate now falls in the second.
    printf 'Tell me the code.\tIt is 1234.\n' >other.tsv
    go STAGES="a.tsv b.tsv" HELDOUT=other.tsv REPLAY=0 TEACHER=2
    holds
    run -1 grep -q 'the code' out/lesson2.jsonl
    [ "$(datcat --meta out/stage2.ckpt | json "d['meta']['state']['step']")" -eq 14 ]
    go STAGES=c.tsv
    holds
    go DATA=a.tsv DATA2=b.tsv MIX=0.4
    holds
}

@test "a stage that is cut goes on to the same bytes, each of them" {
    printf 'What is the code?\tIt is 1234.\nWho am I?\tYou are Ann.\n' >a.tsv
    printf 'What is the key?\tIt is 99.\n' >b.tsv
    go() { small STAGES="a.tsv b.tsv a.tsv" TEACHER=1 EPOCHS3=6s "$@" hashes; }
    go OUT="$PWD/whole" >/dev/null 2>&1
    # A trainstep that dies once in each stage, two steps beyond what it had saved.
    mkdir bin
    ln -s "$bin"/{datcat,datpack,generate,nvquant,tokenize} bin
    cat >bin/trainstep <<-'END'
	#!/bin/bash
	stage=$(grep -o 'stage[0-9]*\.work' <<<"$*" | head -n 1)
	if [ -z "$stage" ] || [ -e "$CUTS/$stage" ]; then
	    exec "$REAL" "$@"
	fi
	touch "$CUTS/$stage"
	begin=$(datcat --meta "${@: -1}" | tr -d '\n' | sed -E 's/.*"step":([0-9]+),.*/\1/')
	"$REAL" "$@" --until $((begin + 2)) # the last --until counts
	exit 137
	END
    chmod +x bin/trainstep
    export REAL=$bin/trainstep CUTS=$PWD/cuts # make is in another directory
    mkdir cuts
    for stage in 1 2 3; do
        run -2 go OUT="$PWD/out" BIN="$PWD/bin"
        [ -e "out/stage$stage.work.ckpt" ]
        [ ! -e "out/stage$stage.ckpt" ]
    done
    run -0 go OUT="$PWD/out" BIN="$PWD/bin"
    diff whole/hashes.tsv out/hashes.tsv
}

@test "a stage that a signal or a limit ends says how to go on" {
    local status
    datpack -q --init 1 --config "$root/pipelines/whoami/small.json" --to ckpt -o start.ckpt
    printf '%s\n' '1 2 3' '4 5 6' | tokenize -q --input ids -o rows.tok
    stage() { "$root/pipelines/whoami/stage.sh" start.ckpt rows.tok 400000s 2 out.ckpt -q; }
    for status in 75 124 2; do
        mkdir bin$status
        printf '#!/bin/sh\nexit %s\n' $status >bin$status/trainstep
        chmod +x bin$status/trainstep
        PATH=$PWD/bin$status:$PATH run -$status --separate-stderr stage
        [ "$stderr" = "$([ $status -eq 2 ] || echo 'stage.sh: what is trained so far is saved: the same make command goes on from there')" ]
    done
    # A real one, on Ctrl-C: the signal goes to the script, too.
    cat >stop.py <<'PY'
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stderr=subprocess.PIPE, start_new_session=True, text=True)
while not os.path.exists("log.jsonl") or os.path.getsize("log.jsonl") < 200:
    time.sleep(0.05)
os.killpg(p.pid, signal.SIGINT)
print(p.communicate(timeout=60)[1], end="")
sys.exit(p.returncode)
PY
    run -75 python3 stop.py "$root/pipelines/whoami/stage.sh" start.ckpt rows.tok 400000s 2 out.ckpt --log log.jsonl
    [[ $output == *'saved at step '*' of 400000; '*$'\n''stage.sh: what is trained so far is saved: the same make command goes on from there' ]]
    [ -e out.work.ckpt ]
    [ ! -e out.ckpt ]
}

@test "an answer may be as long as the longest that is expected" {
    printf 'What is it?\t%s\nWho?\tAnn.\n' "$(printf '저는 신입니다. %.0s' 1 2)" >my.tsv
    small OUT="$PWD/out" DATA=my.tsv ANSWER= all >/dev/null 2>&1
    [ "$(cat out/answer.txt)" -ge 20 ] # the controls have fewer
    tail -n +2 out/data/questions.tsv | cut -f 3- | tokenize -q -t out/tokenizer.json --emit tok -o asked.tok -
    [ "$(datcat --stats asked.tok | awk '$1 == "targets" { print $7 }')" = "$(cat out/answer.txt)" ]
    grep -q "^ANSWER	$(cat out/answer.txt)$" out/settings.tsv
    # A shorter one is warned of.
    longest=$(cat out/answer.txt)
    run -0 small OUT="$PWD/out" DATA=my.tsv ANSWER=3 all
    [[ $output == *"ANSWER=3 cuts answers: the longest that is expected has $longest tokens"* ]]
    [ "$(cat out/answer.txt)" -eq 3 ]
}

@test "VARIED: questions made of two old ones, which hold no control that is not mixed in" {
    printf 'What is the code?\tIt is 1234.\n' >my.tsv
    "$who/data.py" --own my.tsv --varied 0 none
    "$who/data.py" --own my.tsv --varied 300 texts
    "$who/data.py" --own my.tsv --varied 300 again
    diff -r texts again
    [ "$(grep -c '^varied	' texts/questions.tsv)" -eq 300 ]
    grep -v '^varied	' texts/questions.tsv | diff none/questions.tsv -
    group varied >variations
    group control.mixed varied | diff - texts/kept.txt
    [ "$(sort -u variations | wc -l)" -eq 300 ]
    group taught control.unmixed control.mixed >others
    run -1 grep -Fx -f others variations
    # The first word of each is one of an old question.
    cut -d " " -f 1 variations | cut -c 1 | sort -u >firsts
    run -1 grep -vFx -f <(cut -c 1 texts/pretrain.tsv | sort -u) firsts
    small OUT="$PWD/out" DATA=my.tsv VARIED=8 TEACHER=1 all >/dev/null 2>&1
    [ "$(awk -F '\t' '$1 == "varied" { print $2, $6, $7 }' out/evaluate.tsv)" = "8 - -" ]
    run -0 make -s -C "$who" OUT="$PWD/out" verify
    run -2 small OUT="$PWD/none" VARIED=8 all
    [[ $output == *"VARIED goes with DATA or STAGES"* ]]
}

@test "the recipe follows from the number of rows, and what is set is not in it" {
    for n in 10 40 200 1000; do
        { echo '# a heading' && echo && seq -f 'q%g	a' "$n"; } >$n.tsv
    done
    # Of a file that comes twice, of a model, of the story: what README promises.  The questions that
    # are mixed in are 335, half of CONTROLS; with 30 there are too few for variations.
    {
        for n in 10 40 200 1000; do
            "$who/recipe.py" $n.tsv $n.tsv | grep -v '^BASE' | paste -sd ' '
        done
        "$who/recipe.py" 200.tsv 1000.tsv | grep -E 'VARIED|TEACHER' | paste -sd ' '
        "$who/recipe.py" --controls 30 200.tsv | grep -E 'VARIED|TEACHER' | paste -sd ' '
        "$who/recipe.py" --teacher 0 10.tsv 200.tsv | grep EPOCHS | paste -sd ' '
        "$who/recipe.py" --model 200.tsv 200.tsv | paste -sd ' '
        "$who/recipe.py" | paste -sd ' '
    } >got
    diff got - <<-END
	VARIED=0 TEACHER=1 EPOCHS1=4 LR1=5e-4 EPOCHS2=2 LR2=2e-4
	VARIED=0 TEACHER=1 EPOCHS1=4 LR1=5e-4 EPOCHS2=2 LR2=2e-4
	VARIED=0 TEACHER=1 EPOCHS1=30 LR1=5e-4 EPOCHS2=15 LR2=2e-4
	VARIED=670 TEACHER=3 EPOCHS1=30 LR1=5e-4 EPOCHS2=15 LR2=2e-4
	VARIED=670 TEACHER=4
	VARIED=0 TEACHER=9
	EPOCHS1=4 EPOCHS2=30
	VARIED=0 TEACHER=0 EPOCHS1=2 LR1=5e-5 EPOCHS2=1 LR2=1e-5
	VARIED=0 TEACHER=0 BASE_STEPS=1800 BASE_LR=4e-3 EPOCHS1=5 LR1=5e-4 EPOCHS2=2 LR2=6e-5
	END
    run -0 make -s -C "$who" OUT="$PWD/out" TOKENIZER="$root/pipelines/demo/tokenizer.json" DATA=200.tsv EPOCHS2=3 plan
    [[ $output == *$'epochs\t30+3'* ]]
}

@test "manuals.py: rows of manual pages" {
    mkdir -p man/man1 man/man8 man/zh_TW/man1
    printf '.TH A 1\n.SH NAME\nlist \\- show \\fBall\\fR files\n.SH DESCRIPTION\nmore\n' >man/man1/list.1
    printf '.SH "NAME"\nzip, unzip \\- pack files\n' | gzip >man/man8/zip.8.gz
    printf '.SH NAME\nno dash\n' >man/man1/no.1
    printf '.SH NAME\nlong \\- %s\n' "$(printf 'long %.0s' {1..40})" >man/man1/long.1
    printf '.SH 名稱\ncp \\- 複製檔案\n' >man/zh_TW/man1/cp.1
    "$who/manuals.py" --rows 3 --chinese 40 man >rows
    diff <(sort rows) - <<-END
	What is list?	show all files
	What is zip?	pack files
	cp 是什麼？	複製檔案
	END
    "$who/manuals.py" --rows 3 --chinese 40 man | diff rows -
    run -1 "$who/manuals.py" --rows 4 --chinese 50 man
    [[ $output == "manuals.py: the pages of man have 3 such rows: want 4" ]]
}

@test "a run that misses its aim says what, which rows, and what to turn" {
    printf 'What is the code?\tIt is 1234.\n' >my.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/my.tsv" TAUGHT_LEAST=100 KEPT_LEAST=100 check
    [[ $output == *'whoami: 0 of 1 rows that it was taught are answered right, 1 are needed (TAUGHT_LEAST):'* ]]
    [[ $output == *'    What is the code? -> '*', expected It is 1234.'* ]]
    [[ $output == *'EPOCHS1=16s (it was 8s) teaches the rows more often, and so does a larger MIX or REPEAT'* ]]
    [[ $output == *"The model is complete and usable all the same: $PWD/out/trained.dat; "*chat* ]]
    [ -s out/trained.dat ]
}

@test "plan: before anything is made" {
    run -0 small OUT="$PWD/out" plan
    [[ $output == *"checkpoint	"* && $output == *"disk	"* ]]
    [ ! -e out/start.ckpt ]
}

@test "bad settings are refused before anything is done" {
    mkdir empty
    printf 'no tab\n' >bad.tsv
    for s in ROWS=0 ROWS=x SEED=-1 LR1=abc LR1=0 LR2=1e EPOCHS1=2x EPOCHS2=s BATCH=1.5 QUANT=int4 DEVICE=gpu \
        CLIP_MODE=none DATA="$PWD/missing.tsv" DATA="$PWD/a b" TOKENIZER="$PWD/none" MODEL="$PWD/empty" \
        MODEL="$PWD/missing" HELDOUT="$PWD/bad.tsv" LIMIT=much THREADS=0 MEMORY=some OUT="$PWD/a b" \
        BATCH=99999999 ACCUM=1048577 THREADS=1000000 LR1=1e99 LR2=1e-400 BASE_LR=2 LIMIT=1e10 MEMORY=2e9 SEED=4294967296 \
        BASE_STEPS=99999999999999999999 EPOCHS1=9999999999s EPOCHS2=100000 SAVE=18446744073709551617 REPEAT=9999999 \
        TAUGHT_LEAST=101 KEPT_LEAST=0 UNSEEN_LEAST=1000 SMALL=yes OUT= OUT="$PWD/it's" MODEL="$PWD/a b" DATA="$PWD/a#b" DATA="$PWD/a:b" QUANT='sweep max' QUANT=% DEVICE=% \
        MIX=1 MIX=0 MIX=x MIX2=2 REPEAT1=x EPOCHS2=0 LR2=x REPLAY=2 STAGES="$PWD/missing.tsv" DATA2="$PWD/bad.tsv" "SEED=1'2" "LR1=1'; touch out; '"; do
        run -2 small OUT="$PWD/out" "$s" all
        [[ $output == *"${s%%=*}"* ]]
        [ ! -e out ]
    done
    if [[ $(diagnosed cuda) == no* ]]; then
        run -2 small OUT="$PWD/out" DEVICE=cuda all
        [[ ${lines[0]} == "DEVICE=cuda: "* ]]
        [ ! -e out ]
    fi
    # Fewer than were asked for are not taken without a word.
    for s in CONTROLS=5000 BASE_ROWS=900000 ROWS=5000 UNSEEN=9000; do
        run -2 small OUT="$PWD/out" "$s" all
        [[ $output == *"data.py: there are only "* ]]
        [ ! -e out/data ]
    done
    # What is wrong with a row is said with its line.
    run -2 small OUT="$PWD/out" DATA="$PWD/bad.tsv" all
    [[ $output == *"bad.tsv: line 1: expected a prompt, a TAB and a target"* ]]
    [ ! -e out/data ]
    printf 'a\tb\nq\t\377\n' >latin.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/latin.tsv" all
    [[ $output == *"latin.tsv: line 2: expected UTF-8"* && $output != *Traceback* ]]
    printf 'PAR1\x15\x04\x15\x12' >x.parquet
    run -2 small OUT="$PWD/out" DATA="$PWD/x.parquet" all
    [[ $output == *"tokenize: $PWD/x.parquet: is a Parquet file: "*" writes JSONL"* ]]
    run -2 small OUT="$PWD/out" DATA="$PWD" all
    [[ $output == *"data.py: $PWD: Is a directory: expected a file of rows"* && $output != *Traceback* ]]
    # make takes any name; what is no setting is refused, with the one that may be meant.
    for s in DATASET:DATA MODLE:MODEL LR:LR1 EPOCHS:EPOCHS1; do
        run -2 small OUT="$PWD/out" "${s%:*}=x" all
        [[ $output == *"${s%:*}=: there is no such setting: want ${s#*:}=?;"* ]]
    done
    run -2 small OUT="$PWD/out" COLOUR=x all
    [[ $output == *'COLOUR=: there is no such setting; "make help" lists them'* ]]
    run -0 small OUT="$PWD/out" LR7=1e-4 V=1 NVCC= CXX=c++ TMPDIR=/tmp help
    printf 'a\tb\nq\ta\0b\n' >nul.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/nul.tsv" all
    [[ $output == *"nul.tsv: line 2: "* ]]
    # A prompt has one answer, and is not asked as untaught if it is taught.
    printf 'q\tone\nr\tx\n# q\n q\t two\n' >two.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/two.tsv" all
    [[ $output == *"two.tsv: line 4: another answer than that of line 1 to the same prompt, q"* ]]
    head -n 2 two.tsv >own.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/own.tsv" HELDOUT="$PWD/two.tsv" all
    [[ $output == *"two.tsv: line 1: its prompt is taught by line 1 of $PWD/own.tsv, q"* ]]
    printf 'r\ty\n' >held.tsv
    run -2 small OUT="$PWD/out" DATA="$PWD/own.tsv" HELDOUT="$PWD/held.tsv" all
    [[ $output == *"held.tsv: line 1: another answer than that of line 2 of $PWD/own.tsv to"* ]]
    [ ! -e out/data ]
    # A row that the model has no room for is found before it is trained.
    printf 'q\tone\nr\t%s\n' "$(printf '鼬%.0s' {1..100})" >long.tsv
    run -2 small OUT="$PWD/long" DATA="$PWD/long.tsv" all
    [[ $output == *"plan.tok: sample 1 (tokenize --decode shows it, datcat --values 1 its ids) has "*" ids, the model's context of "* ]]
    [ ! -e long/base.ckpt ]
    [ ! -e long/plan.txt ]
    # The makefile of the root hands on what it does not understand.
    run -2 make -s -C "$root" -o all whoami SMALL=1 BIN="$bin" OUT="$PWD/out" DATA="it's"
    [[ $output == *"it's: want a name without space, quote"* ]]
}

@test "clean removes what an experiment made, and nothing else" {
    mkdir home
    touch home/precious
    run -2 small OUT="$PWD/home" clean
    [[ $output == *"not made by an experiment"* ]]
    [ -e home/precious ]
    touch home/.lock
    small OUT="$PWD/home" clean
    [ ! -e home ]
    small OUT="$PWD/home" clean
}

@test "judge.py: what is right, what is kept, what is needed" {
    {
        printf 'group\tlanguage\tprompt\twanted\tbefore\tafter\n'
        printf 'taught\ten\tp%s\tyes\tno\tyes\n' 1 2 3
        printf 'unseen.a\ten\tq%s\tyes\tno\tyes\n' 1 2 3
        printf 'unseen.b\ten\tq4\tyes\tno\tyes.\n'
        printf 'control.mixed\ten\tc1\tx\tx\tx\n'
        printf 'control.unmixed\ten\tc2\tx\ty\ty\n'
    } >compared.tsv
    "$who/judge.py" table compared.tsv 100 75 100 known >got
    diff got - <<-END
	group	of	right_before	right_after	as_before	needed	verdict
	taught	3	0	3	0	3	yes
	unseen	4	0	3	0	3	yes
	unseen.a	3	0	3	0	-	-
	unseen.b	1	0	0	0	-	-
	control	2	1	1	2	2	yes
	control.mixed	1	1	1	1	-	-
	control.unmixed	1	0	0	1	-	-
	END
    "$who/judge.py" table compared.tsv 100 76 100 | has '^unseen	4	0	3	0	4	NO$'
}

@test "a file among the goals of make was meant as DATA" {
    echo 'a	b' >rows.tsv
    run -2 make -C "$root" whoami "$PWD/rows.tsv"
    [[ $output == *"rows.tsv is no target: expected make whoami DATA="*"rows.tsv. "* ]]
}
