#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# What is written about the programs is true: --help, man pages, completion and README
# name the same options and programs, the examples of the pages run, the tour runs.

# shellcheck disable=SC2016,SC2030,SC2031,SC2154  # inner shells; output: set by run

# bats file_tags=native,nosan
load common

setup_file()
{
    local f
    programs=
    for f in "$bin"/*; do
        [[ ! -x $f || -d $f ]] || programs+=" ${f##*/}"
    done
    export programs
}

# help_options PROG: the options of --help as they are written there, sorted, such as
# "-s, --select GLOB" and "--hash[=xxh3|sha256]".
help_options()
{
    "$bin/$1" --help | sed -n '/^ \{2,6\}-/ { s/^ *//; s/  .*//; p; }' | sort
}

# man_options PROG: the same of the page's tag lines in OPTIONS.
man_options()
{
    awk '/^\.SH/ { inside = $2 == "OPTIONS" }
        inside && tag { print }
        { tag = $1 == ".TP" }' "$root/man/$1.1" |
        sed 's/\\f[BRIP]//g; s/\\-/-/g' | sort
}

# offers PROG WORD...: what the completion offers for the last WORD, a line each.
offers()
{
    local COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    # shellcheck source=/dev/null
    source "$root/tools/completion.bash"
    _nibble
    [ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\n' "${COMPREPLY[@]}"
}

# same TEXT TEXT: or show how they differ.
same()
{
    diff <(printf '%s\n' "$1") <(printf '%s\n' "$2")
}

# A list of && that fails before its last command ends no test.
@test "no test hides a failure before &&" {
    local found
    found=$(grep -nE '^ *(\[|datcat|datpack|nvquant|tokenize|trainstep|generate|cmp|diff|grep) .*[])a-z>] && [a-z[]' \
        "$HERE"/*.bats "$HERE"/common.bash "$HERE"/paused.bash |
        grep -vE '\|\||skip |return|^[^:]*:[0-9]*: *\[ "\$\(id -u\)"') || true
    [ -z "$found" ] || { echo "$found" && false; }
}

@test "there are programs, and --help begins with a synopsis" {
    [ -n "$programs" ]
    for p in $programs; do
        run -0 --separate-stderr "$bin/$p" --help
        [[ ${lines[0]} == "usage: $p "* ]]
        [ -z "$stderr" ]
    done
}

@test "man pages have just the options of --help" {
    for p in $programs; do
        [ -n "$(help_options "$p")" ]
        same "$(help_options "$p")" "$(man_options "$p")"
    done
}

@test "man pages have the sections that a reader looks for" {
    for p in $programs; do
        for s in NAME SYNOPSIS DESCRIPTION OPTIONS OUTPUT '"EXIT STATUS"' ENVIRONMENT \
            EXAMPLES '"SEE ALSO"'; do
            grep -qx ".SH ${s//\"/}" "$root/man/$p.1" || {
                echo "$p.1: no section $s"
                return 1
            }
        done
        for v in NIBBLE_ISA TMPDIR NO_COLOR; do
            [ "$p" != memguard ] || break # it neither computes nor keeps files
            [ "$p:$v" != trainstep:TMPDIR ] || continue # it keeps no pipe on disk
            grep -qx ".B $v" "$root/man/$p.1"
        done
        grep -q "^\.BR $p (1)" "$root/man/nibble.7"
    done
}

@test "man pages name their licence and render without a warning" {
    for page in "$root"/man/*.[1-8]; do
        [ "$(head -n 1 "$page")" = '.\" SPDX-License-Identifier: MIT' ]
    done
    if ! command -v groff >/dev/null && ! command -v man >/dev/null; then
        skip "neither groff nor man is installed"
    fi
    for page in "$root"/man/*.[1-8]; do
        if command -v groff >/dev/null; then
            run -0 groff -man -Tutf8 -ww -z "$page"
            same "" "$output"
            # No blank before a comma or a full stop, as .B "word"\fR, makes one.
            run -1 grep -E '[^ ] +[,.;:)]( |$)' <(groff -man -Tutf8 -P-cbu -rLL=180n "$page")
        fi
        if command -v man >/dev/null; then
            run -0 bash -c 'MANWIDTH=$2 man --warnings=w -l "$1" 2>&1 >/dev/null' \
                man "$page" 80
            same "" "$output"
        fi
    done
}

@test "the pages that SEE ALSO names exist" {
    run -0 bash -c 'sed -n "/^\.SH SEE ALSO/,\$ { s/^\.BR \([a-z]*\) (\([17]\)).*/\1.\2/p; }" \
        "$1"/man/*.[1-8] | sort -u' bash "$root"
    [ -n "$output" ]
    for page in $output; do
        [ -e "$root/man/$page" ]
    done
}

# section PAGE NAME: its text.
section()
{
    awk -v name="$2" '/^\.SH/ { inside = substr($0, 5) == name; next } inside' "$root/man/$1"
}

@test "SEE ALSO names all other programs; EXIT STATUS has only codes that nibble(7) has" {
    local codes p
    # Also those that a shell makes of a signal, and those of a command under memguard.
    codes=$(section nibble.7 'EXIT STATUS' | sed -n 's/^\.B \([0-9]*\)$/\1/p')
    same "$(printf '%s\n' 0 1 2 3 4 75 124)" "$codes"
    same "$(printf '%s\n' "$programs" | xargs -n 1)" \
        "$(section nibble.7 'SEE ALSO' | sed -n 's/^\.BR \([a-z]*\) (1),*$/\1/p')"
    for p in $programs; do
        same "$(printf '%s\n' "$programs" | xargs -n 1 | grep -vx "$p")" \
            "$(section "$p.1" 'SEE ALSO' | sed -n 's/^\.BR \([a-z]*\) (1),$/\1/p')"
        section "$p.1" 'SEE ALSO' | grep -qx '\.BR nibble (7)'
        section "$p.1" 'EXIT STATUS' | sed -n 's/^\.B \([0-9]*\)$/\1/p' >found
        [ -s found ]
        while read -r code; do
            [[ $p:$code != memguard:12[67] ]] || continue
            grep -qx "$code" <<<"$codes" || { echo "$p.1: $code" && false; }
        done <found
    done
}

@test "the examples of the man pages run, in their order" {
    for p in $programs; do
        mkdir "$p"
        cp "$root"/pipelines/demo/{config,tokenizer}.json "$p"
        awk '/^\.SH/ { inside = $2 == "EXAMPLES" }
            /^\.EE/ { code = 0 }
            inside && code { gsub(/\\-/, "-"); gsub(/\\e/, "\\"); print }
            /^\.EX/ { code = 1 }' "$root/man/$p.1" >"$p/examples.sh"
        [ "$(wc -l <"$p/examples.sh")" -ge 5 ]
        echo "$p: $(cat "$p/examples.sh")"
        (cd "$p" && bash -euo pipefail -x examples.sh) >"$p.out" 2>"$p.err" || {
            tail -n 5 "$p.err"
            return 1
        }
        run grep -v '^+' "$p.err"
        same "" "$output"
    done
}

@test "completion: just the options of --help" {
    for p in $programs; do
        want=$(help_options "$p" | sed 's/^-., //; s/[ [].*//' | sort)
        same "$want" "$(offers "$p" -- | grep -v '=$' | sort)"
        # An argument that is optional can follow an equals sign only.
        want=$(help_options "$p" | sed -n 's/\[=.*/=/p' | sort)
        same "$want" "$(offers "$p" -- | grep '=$' | sort)"
        same "--help" "$(offers "$p" --hel)"
    done
}

@test "completion: by the path of a program, too" {
    for p in $programs; do
        same "--help" "$(offers "$bin/$p" --hel)"
        same "" "$(offers "$bin/no-such-program" --hel)"
    done
}

# wanted_words PROG OPTION: what the program itself takes, from its complaint.
wanted_words()
{
    run -2 "$bin/$1" "$2=?" x
    [[ $output == *": want one of "* ]]
    sed 's/.*: want one of //; s/, /\n/g' <<<"$output" | sort
}

@test "completion: the words of an option are those that the program takes" {
    # shellcheck source=/dev/null
    source "$root/tools/completion.bash"
    for p in $programs; do
        for o in $(help_options "$p" | sed -n 's/.*\(--[a-z0-9-]*\).*/\1/p'); do
            words=$(_nibble_words "$p" "$o" | tr ' ' '\n' | sort)
            [[ -n $words && $words != @* ]] || continue
            echo "$p $o"
            if [ "$o" = --share-scale ]; then
                # One of them holds a comma.
                run -2 "$bin/$p" "$o=?" x
                [[ $output == *": want one of none, qkv,gate_up" ]]
            else
                same "$(wanted_words "$p" "$o")" "$words"
            fi
            same "$words" "$(offers "$p" "$o" = '' | sort)"
            first=${words%%$'\n'*}
            [[ $'\n'$(offers "$p" "$o" = "${first:0:1}")$'\n' == *$'\n'"$first"$'\n'* ]]
            # Where = does not break words the whole word is replaced.
            [[ $'\n'$(offers "$p" "$o=${first:0:1}")$'\n' == *$'\n'"$o=$first"$'\n'* ]]
        done
    done
}

@test "completion: an argument that must follow is completed as such" {
    same "bf16" "$(offers datpack --dtype b)"
    same "" "$(offers datcat --select '')"
    same "" "$(offers datpack --init '')"
    touch a.dat
    # --hash has an optional argument: the next word is a file.
    same "a.dat" "$(offers datcat --hash '')"
}

@test "completion: tensor files and directories, each with its option" {
    touch a.dat 'b c.safetensors' d.ckpt e.txt f.json g.tok h.gguf
    mkdir model
    same "$(printf '%s\n' a.dat 'b c.safetensors' d.ckpt g.tok h.gguf model)" \
        "$(offers datcat '' | sort)"
    same e.txt "$(offers tokenize e)"
    same "$(printf '%s\n' a.dat 'b c.safetensors' model)" "$(offers nvquant -o '' | sort)"
    want=$(printf '%s\n' a.dat 'b c.safetensors' d.ckpt h.gguf model)
    same "$want" "$(offers nvquant '' | sort)"
    same "$want" "$(offers datpack '' | sort)"
    same "$want" "$(offers datpack -o '' | sort)"
    same "$want" "$(offers datpack --output = '' | sort)"
    same "$want" "$(offers datpack --like '' | sort)"
    same "$want" "$(offers datpack -q -- '' | sort)"
    same "$(printf '%s\n' f.json model)" "$(offers datpack --config '' | sort)"
    same "e.txt" "$(offers datcat --check e)"
    same "a.dat" "$(offers datcat x.dat a)"
    same "" "$(offers datcat -- --hel)"
}

@test "completion: is registered for each program" {
    run -0 bash -c 'source "$1"/tools/completion.bash && complete -p' bash "$root"
    for p in $programs; do
        [[ $output == *"complete -F _nibble $p"* ]]
    done
}

@test "phrases that readers had to translate do not come back" {
    local phrase
    search() { grep -rnFIi -e "$1" README.md man doc cmd lib kernels; }
    cd "$root"
    while IFS= read -r phrase; do
        run -1 search "$phrase"
    done <"$HERE/vectors/bad-words.txt"
    # What looks for them finds what is there.
    [ "$(wc -l <"$HERE/vectors/bad-words.txt")" -ge 30 ]
    run -0 search 'look into any tensor file'
    [[ $output == *man/nibble.7* ]]
}

@test "README has each program in its table of commands" {
    [ -e "$root/README.md" ]
    for p in $programs; do
        grep -q "^| *\[\{0,1\}\`$p\`" "$root/README.md" || {
            echo "README.md: no row for $p"
            return 1
        }
    done
}

# The blocks of commands of a page for people who come from elsewhere.
page_commands()
{
    awk '/^```$/ { on = 0 } on { print } /^```sh$/ { on = 1 }' "$root/doc/$1.md"
}

@test "the commands of the pages for people from elsewhere run, in their order" {
    m=Qwen3-4B-Instruct-2507
    mkdir from-hf from-torchsharp
    datpack -q --init 3 --config "$root/pipelines/demo/config.json" --dtype bf16 -o from-hf/$m/
    cp "$root/pipelines/demo/tokenizer.json" from-hf/$m
    awk -F '\t' '{ printf "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}," \
        "{\"role\":\"assistant\",\"content\":\"%s\"}]}\n", $1, $2 }' \
        "$root/pipelines/demo/whoami.tsv" >from-hf/chat.jsonl
    # The other system's files have no sidecar, and lie in one directory.
    cp from-hf/$m/config.json from-hf/$m/tokenizer.json from-torchsharp
    cp "$root/pipelines/demo/whoami.tsv" from-torchsharp/train.tsv
    datpack -q --compat torchsharp -o from-torchsharp/$m-fp16.dat from-hf/$m
    nvquant -q --compat torchsharp -o from-torchsharp/$m-nvfp4.dat from-torchsharp/$m-fp16.dat
    for p in from-hf from-torchsharp; do
        page_commands $p >$p.sh
        [ "$(grep -c '^[a-z]' $p.sh)" -ge 15 ]
        (cd $p && bash -euo pipefail -x ../$p.sh) >$p.out 2>$p.err || {
            tail -n 5 $p.err
            return 1
        }
    done
    # What they say of the results.
    datcat -l from-hf/plain/ >names
    [ -s names ]
    [ -e from-hf/served-ct/tokenizer.json ]
    grep -q '^samples	.*	kl	top1	' from-hf.out
    [ "$(datcat -l from-torchsharp/trained-nvfp4.dat | wc -l)" -eq 47 ]
    [ ! -e from-torchsharp/trained-nvfp4.dat.json ]
    grep -q '^trainstep: backward_done: .* GB in use$' from-torchsharp.err
    [ "$(json '[p["Phase"] for p in d["Samples"]][-1]' <from-torchsharp/backward.json)" = backward_done ]
    grep -q '"top_logprobs":\[\[{"id":[0-9]*,"logprob":[-0-9.]*,"text":' from-torchsharp.out
    grep -q '^hidden.3	values	.*	.*	.*	0[.]9' from-torchsharp.out
    grep -q '"role":"assistant","content":".*"first_token_ms":.*"tokens_per_s":' from-torchsharp.out
}

# block_commands FILE: its indented commands, without remarks.
block_commands() { sed -n '/^    [a-z]/ { s/ *#.*//; p; }' "$1"; }

@test "README in Chinese: the same commands, programs, pages and figures" {
    local what
    cd "$root"
    block_commands README.md >"$BATS_TEST_TMPDIR/en"
    block_commands README.zh.md >"$BATS_TEST_TMPDIR/zh"
    [ "$(wc -l <"$BATS_TEST_TMPDIR/en")" -ge 20 ]
    diff "$BATS_TEST_TMPDIR/en" "$BATS_TEST_TMPDIR/zh"
    # Sections and rows; in rows also all that stands in backquotes, and numbers.
    for what in '^## ' '^|'; do
        [ "$(grep -c "$what" README.md)" -gt 5 ]
    done
    [ "$(grep -c '^## ' README.zh.md)" -eq "$(grep -c '^## ' README.md)" ]
    for f in README.md README.zh.md; do
        # The row about the Chinese pages is in the English one only.
        grep '^|' $f | grep -v '^| \[README' | grep -oE '`[^`]+`|[0-9][0-9,.]*' | sed 's/[,.]$//' | sort >"$BATS_TEST_TMPDIR/$f"
        [ -s "$BATS_TEST_TMPDIR/$f" ]
    done
    diff "$BATS_TEST_TMPDIR/README.md" "$BATS_TEST_TMPDIR/README.zh.md"
    # Links lead somewhere.
    grep -ohE '\]\([^)h#][^)]*\)' README.zh.md >"$BATS_TEST_TMPDIR/links"
    grep -oE '\]\([^)h][^)]*\)' doc/tour.zh.md | sed 's/(/(doc\//' >>"$BATS_TEST_TMPDIR/links"
    while IFS= read -r f; do
        [ -e "$(tr -d '()]' <<<"$f")" ] || { echo "$f" && false; }
    done <"$BATS_TEST_TMPDIR/links"
}

@test "the commands of the Chinese tour run, and the model says what the page says" {
    mkdir pipelines
    cp -r "$root/pipelines/demo" pipelines
    page_commands tour.zh >tour.sh
    [ "$(grep -c '^[a-z]' tour.sh)" -ge 15 ]
    bash -euo pipefail -x tour.sh >out 2>err || {
        tail -n 5 err
        return 1
    }
    answer=$(sed -n 's/^它回答：`\(.*\)`。.*/\1/p' "$root/doc/tour.zh.md")
    [ -n "$answer" ]
    grep -qxF "$answer" out
}

@test "the commands of the page on serving run, and the model answers as it was taught" {
    datpack -q --init 7 --config "$root/pipelines/demo/config.json" -o model/
    cp "$root/pipelines/demo/tokenizer.json" model
    cp "$root/pipelines/demo/whoami.tsv" rows.tsv
    page_commands serve >serve.sh
    [ "$(grep -c '^[a-z]' serve.sh)" -ge 7 ]
    bash -euo pipefail -x serve.sh >out 2>err || {
        tail -n 5 err
        return 1
    }
    [ "$(tail -n 1 out)" = "$(head -n 1 rows.tsv | cut -f 2)" ]
}

@test "the pages for people from elsewhere name options that there are, and README names the pages" {
    {
        for p in $programs; do
            help_options "$p"
        done
        for p in plot report; do
            "$root/pipelines/$p/$p.sh" --help
        done
    } | grep -o -- '--[a-z][a-z0-9-]*' | sort -u >known
    for f in "$root"/doc/*.md; do
        grep -q "](doc/${f##*/})" "$root/README.md"
    done
    for p in from-hf from-torchsharp; do
        # Of llama.cpp and others none is named with two dashes.
        run -0 bash -c 'grep -o -- "--[a-z][a-z0-9-]*" "$1" | sort -u | comm -23 - known' bash "$root/doc/$p.md"
        same "" "$output"
    done
}

@test "the commands that README begins with fine-tune a model" {
    awk '/^## / { on = $0 == "## Fine-tune a model" } on && /^    / { print substr($0, 5); n++; next }
        on && n && /[^ ]/ { exit }' "$root/README.md" >readme.sh
    [ "$(grep -c '^[a-z]' readme.sh)" -ge 8 ]
    # What the first command would bring from elsewhere.
    grep -qx 'hf download Qwen/[^ ]* --local-dir model' readme.sh
    datpack -q --init 3 --config "$root/pipelines/demo/config.json" --dtype bf16 -o model/
    cp "$root/pipelines/demo/tokenizer.json" model
    sed -i '/^hf /d' readme.sh
    cp "$root/pipelines/demo/whoami.tsv" rows.tsv
    echo 你是誰 | bash -euo pipefail -x readme.sh >out 2>err || {
        tail -n 5 err
        return 1
    }
    [ "$(grep -c '^100	' out)" -eq 1 ]
    datcat -q --verify run.ckpt served trained.gguf
    # Cut short, the same training goes on.
    before=$(datcat --hash run.ckpt)
    datpack -q --to ckpt -f -o run.ckpt model/
    trainstep -q -d rows.tok -n 40 --batch 8 --lr 1e-5 run.ckpt >/dev/null
    bash -c "$(grep '^trainstep' readme.sh)" >/dev/null 2>&1
    [ "$(datcat --hash run.ckpt)" = "$before" ]
    # The best of a training with rows held out.
    awk '/^## / { on = $0 == "## Fine-tune a model" } on && /^    / { if (!in_block) n++; in_block = 1
        if (n == 2) print substr($0, 5); next } { in_block = 0 }' "$root/README.md" >best.sh
    [ "$(grep -c '^[a-z]' best.sh)" -ge 4 ]
    bash -euo pipefail best.sh >/dev/null 2>err || {
        tail -n 5 err
        return 1
    }
    datcat -q --verify run.ckpt.best best.dat
    [ "$(datcat --meta run.ckpt.best | json "d['meta']['state']['step']")" -le \
        "$(datcat --meta run.ckpt | json "d['meta']['state']['step']")" ]
}

@test "the tour runs, shows its commands, and leaves nothing behind" {
    mkdir tmp
    TMPDIR=$PWD/tmp run -0 --separate-stderr env NIBBLE_BIN="$bin" "$root/pipelines/tour.sh"
    [ -z "$stderr" ]
    [[ $output == *'$ datpack --init 7 '* ]]
    [[ $output == *'$ nvquant '*' 29 tensors by sweep: '* ]]
    [[ $output == *'$ datcat --verify broken.ckpt'*'expects'*'(exit 1)' ]]
    [ -z "$(ls tmp)" ]
}
