#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# Messages with a way out: each says what was expected, and what to do.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    printf '1 2 3 4\n%s\n5 6 7\n' "$(seq -s ' ' 20 40)" >ids
    tokenize -q --input ids -o ids.tok ids
    printf 'who are you\tI am a model\n' >train.tsv
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
    datpack -q --init 3 --config config.json -o model.safetensors
}

setup() {
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    cp "$IN"/* .
}

@test "each message of the sources belongs to a class of nibble(7)" {
    python3 "$HERE/messages.py" list "$root" >all.txt
    # The list is one of messages, and the check finds what is in no class.
    [ "$(wc -l <all.txt)" -gt 800 ]
    grep -q $'^cmd/trainstep/trainstep.c:[0-9]*\tfound %d operands: expected one CHECKPOINT; -d FILE takes samples$' all.txt
    run -0 python3 "$HERE/messages.py" check "$root"
    mkdir -p tree/cmd tree/lib tree/kernels tree/man
    cp "$root/man/nibble.7" tree/man
    echo 'void f(void) { die(2, "%s: zzz" " qqq", x); }' >tree/cmd/new.c
    run -1 python3 "$HERE/messages.py" check tree
    [[ $output == *'cmd/new.c:1: in no class of man/nibble.7: %s: zzz qqq'* ]]
    [[ $output == *'man/nibble.7: a class without a message: '* ]]
}

@test "checkpoint and samples in each other's place" {
    refuse 'ids.tok: holds samples, which -d takes: expected -d ids.tok start.ckpt' trainstep ids.tok start.ckpt
    refuse 'ids.tok: holds samples, which -d takes: expected -d ids.tok start.ckpt' trainstep start.ckpt ids.tok
    refuse 'ids.tok: holds samples, and -d start.ckpt does not: expected -d ids.tok start.ckpt' \
        trainstep -d start.ckpt ids.tok
    refuse 'ids.tok: holds samples: expected a CHECKPOINT, and -d ids.tok' trainstep ids.tok
    refuse 'want one MODEL, found 2 operands: -p TEXT gives a prompt' generate model.safetensors hello
    refuse 'no output: expected -o new.dat?' datpack model.safetensors new.dat
    refuse 'no output: expected -o new.dat?' nvquant model.safetensors new.dat
    refuse 'no output: expected -o OUT, as in datpack -o OUT model.safetensors' datpack model.safetensors
    refuse 'model.safetensors: not a checkpoint: expected one; datpack --to ckpt -o run.ckpt model.safetensors makes it' trainstep model.safetensors
    # A model from a pipe is there.
    touch '1 2'
    datpack -q -o pipe.dat start.ckpt
    generate -q --config "$HERE/vectors/qwen3-tiny-config.json" --ids -n 1 -p '1 2' - <pipe.dat >/dev/null
    refuse 'hello: does not exist, and -p model.safetensors does: expected -p hello model.safetensors' \
        generate hello -p model.safetensors
    refuse 'ids.tok: is a .tok of samples: expected a MODEL, and --score ids.tok to measure its loss on them' \
        generate -p hello ids.tok
    refuse 'model.safetensors: byte 0: expected the magic number of a .tok of samples, which tokenize makes of text' \
        trainstep -d model.safetensors start.ckpt
    refuse 'ids.tok: is a .tok: it has samples, no tensors; datcat without options shows it' \
        datcat --diff ids.tok model.safetensors
}

@test "a text where samples or tensors are wanted names tokenize" {
    local text
    printf 'x' >short
    for text in train.tsv ids config.json short; do
        refuse "$text: byte 0: is a text: expected a .tok of samples, as tokenize -o FILE.tok makes" \
            trainstep -d $text start.ckpt
        refuse "$text: byte 0: is a text: expected a .tok" trainstep -d ids.tok --eval $text start.ckpt
        refuse "$text: byte 0: is a text: expected a .tok" generate --score $text model.safetensors
        [ "$text" != config.json ] || continue
        refuse "$text: byte 0: is a text: expected a model or another file of tensors" trainstep $text
        refuse "$text: byte 0: is a text: expected a model or another file of tensors" datcat $text
    done
    refuse 'config.json: is a file that belongs to a model: expected a model' trainstep config.json
    : >none
    refuse 'none: byte 0: is empty: expected a .tok of samples' trainstep -d none start.ckpt
    # Whatever the name of a .dat holds, it is read as one.
    cp train.tsv text.dat
    run -2 --separate-stderr datcat text.dat
    [[ $stderr == *'text.dat: byte 0: '*' entries announced'* ]]
    # A byte that no text has, and the beginning of a .tok.
    printf 'abc\1def' >binary
    run -2 --separate-stderr datcat binary
    [[ $stderr != *'is a text'* ]]
    head -c 7 ids.tok >cut.tok
    refuse 'the stream was cut' trainstep -d cut.tok start.ckpt
}

@test "no .tok under the name of a text" {
    local suffix
    for suffix in jsonl json tsv txt; do
        refuse "-o x.$suffix: a .tok is written: expected no suffix of a text" \
            tokenize --input ids -o x.$suffix ids
        refuse "-o x.$suffix: a .tok is written" tokenize --input ids --emit tok -f -o x.$suffix ids
        tokenize -q --input ids --emit jsonl -o x.$suffix ids
        [ "$(wc -l <x.$suffix)" -eq 3 ]
        rm x.$suffix
    done
    tokenize -q --input ids -o x.anything ids
    cmp x.anything ids.tok
}

@test "a name that is near, standard input without samples, a limit as the command" {
    refuse 'id.tok: No such file or directory: expected a .tok of samples, which tokenize makes of a text; there is ids.tok' \
        trainstep -d id.tok start.ckpt
    refuse "$PWD/model.safetensor: No such file or directory: expected a model * there is $PWD/model.safetensors" \
        datcat "$PWD/model.safetensor"
    refuse 'no/such/x.dat: there is no directory no' datpack -o no/such/x.dat start.ckpt
    run -2 --separate-stderr trainstep start.ckpt </dev/null
    [[ $stderr == 'trainstep: <stdin>: byte 0: is empty: expected a .tok of samples, '*', or -d FILE, which takes one' ]]
    refuse 'nothing to watch: expected --limit 4 -- COMMAND, if 4 are GB' memguard 4 true
    refuse 'as in memguard --limit 8 -- true' memguard true
    refuse 'unknown option: expected --max-tokens?' generate --maxtokens 4 model.safetensors
    refuse '-f is --force; * generate MODEL <FILE' generate -f prompts.txt model.safetensors
    refuse 'start.ckpt: is no text: expected a tokenizer.json; ' tokenize -t start.ckpt train.tsv
    # A training that has ended needs no samples, and a wrong name is one.
    cp start.ckpt done.ckpt
    trainstep -q -d ids.tok --until 1 done.ckpt >/dev/null
    refuse 'none.tok: No such file or directory' trainstep -d none.tok --until 1 done.ckpt
    refuse 'train.tsv: byte 0: is a text' trainstep -d ids.tok --eval train.tsv --until 1 done.ckpt
    trainstep -q -d ids.tok --until 1 done.ckpt
}

@test "what is no option of a program, but of another one" {
    local words='--quant: no such option here: the checkpoint has its quantizer; datpack --to ckpt --quant NAME makes one with another'
    refuse "$words" trainstep --quant sweep start.ckpt
    refuse "$words" trainstep --quant=sweep start.ckpt
    refuse "$words" trainstep start.ckpt --quant sweep
    trainstep -q --dry-run -d ids.tok --quant-f 0 start.ckpt >plan
    [ -s plan ]
    refuse 'ids.tok: a .tok has samples, no tensors' datcat --stats --all ids.tok
    datcat --stats ids.tok >stats
    [ -s stats ]
}

@test "a sample that is refused: its line, and what mends it" {
    local words='ids.tok: sample 1 (line 2 of its text) has 21 ids, --seq-len 4 allows 5: --seq-len 20 takes it, '
    words+='tokenize --chunk 4 cuts documents, tokenize --seq-len 4 keeps the last ids of a sample'
    refuse "$words" trainstep -d ids.tok --seq-len 4 start.ckpt
    # It is right.
    trainstep -q -d ids.tok --seq-len 20 start.ckpt >/dev/null
    refuse 'has 21 ids, --seq-len 19 allows 20' trainstep -d ids.tok --seq-len 19 start.ckpt
    tokenize -q --input ids --chunk 4 -o short.tok ids
    trainstep -q -d short.tok --seq-len 4 start.ckpt >/dev/null
    # Longer than the model takes: no --seq-len helps.
    seq -s ' ' 1 66 | tokenize -q --input ids -o long.tok
    cp "$IN/start.ckpt" start.ckpt
    refuse "long.tok: sample 0 (line 1 of its text) has 66 ids, the model's context of 64 allows 65: tokenize --chunk 64 cuts" \
        trainstep -d long.tok start.ckpt
    # A line is named only where it is known.
    tokenize -q --input ids --shuffle 3 -f -o mixed.tok ids
    run -2 --separate-stderr trainstep -d mixed.tok --seq-len 4 start.ckpt
    [[ $stderr != *' of its text'* ]]
    tokenize -q --input ids --chunk 6 -f -o mixed.tok ids
    run -2 --separate-stderr trainstep -d mixed.tok --seq-len 4 start.ckpt
    [[ $stderr != *' of its text'* ]]
    [[ $stderr =~ mixed.tok:\ sample\ ([0-9]+)\ .*' has 7 ids, --seq-len 4 allows 5' ]]
    local sample=${BASH_REMATCH[1]}
    [[ $stderr == *" (tokenize --decode shows it, datcat --values $sample its ids) "* ]]
    [ "$(datcat --values "$sample" mixed.tok | wc -l)" -eq 7 ]
}

@test "a file is named as the user named it" {
    mkdir far
    cp start.ckpt far/a.ckpt
    ln -s far/a.ckpt link.ckpt
    trainstep -v -d ids.tok link.ckpt 2>words >/dev/null
    grep -q '^trainstep: link.ckpt: saved [0-9.]* GB' words
    grep -q '^trainstep: link.ckpt: saved at step 1;' words
    run ! grep a.ckpt words
    [ -L link.ckpt ]
    [ "$(datcat --meta far/a.ckpt | json "d['meta']['state']['step']")" -eq 1 ]
    refuse 'no/dir/x.ckpt: there is no directory no' trainstep -d ids.tok -o no/dir/x.ckpt start.ckpt
    [[ $stderr != *nibble-lock* ]]
    # Where there is no tokenizer the place is named that was looked at.
    refuse 'want -t tokenizer.json: none was given, and there is no ./tokenizer.json; it comes with the model' \
        tokenize -o x.tok train.tsv
    refuse 'want -t tokenizer.json: none was given, and there is no * tokenizer.json; it comes with the model, and --ids needs none' \
        generate -p hello model.safetensors
}

@test "a file that was cut, a directory that is missing, files in each other's place" {
    head -c 60000 start.ckpt >cut.ckpt
    refuse 'found 60000: it may have been cut: copy or download it again' trainstep -d ids.tok cut.ckpt
    local f
    datpack -q -o model.dat start.ckpt
    for f in model.safetensors model.dat; do
        head -c $(($(stat -c %s $f) - 1)) $f >cut.$f
        refuse ': it may have been cut: copy or download it again' datcat cut.$f
    done
    refuse 'no/log.jsonl: there is no directory no' trainstep -q -d ids.tok --log no/log.jsonl start.ckpt
    refuse 'train.tsv: byte 0: expected a tokenizer.json, found ' tokenize -t train.tsv -o x.tok train.tsv
    echo '{}' >tokenizer.json
    refuse 'tokenizer.json: is a tokenizer by its name, and -t model.safetensors is none: expected -t tokenizer.json model.safetensors' \
        generate -t model.safetensors -p a tokenizer.json
    rm tokenizer.json
    refuse '--quantize: unknown option: here it is --quant NAME' nvquant --quantize x -o x.dat model.safetensors
}

@test "trainstep: a rate of 0, a batch that cannot be planned, a context that is shorter" {
    run -0 --separate-stderr trainstep -q -d ids.tok --lr 0 start.ckpt
    [ "$stderr" = "trainstep: --lr 0: steps change no weight; --allow-zero-lr says that this is meant" ]
    run -0 --separate-stderr trainstep -q -d ids.tok --lr 0 --allow-zero-lr start.ckpt
    [ -z "$stderr" ]
    refuse "--seq-len: 4096, the model's context is 64: expected at most 64" trainstep -d ids.tok --seq-len 4096 start.ckpt
    # No address space holds such a step of a model that is so wide.
    python3 - <<'PY'
import json
c = json.load(open("config.json"))
c.update(intermediate_size=1 << 22, max_position_embeddings=1 << 20)
json.dump(c, open("wide.json", "w"))
PY
    # An emulator takes memory for addresses that are only reserved.
    [ -n "${NIBBLE_EMULATED:-}" ] ||
        refuse -3 'is too large to plan: out of address space for ' trainstep -q --dry-run --batch 2047 wide.json
}

@test "an option that lacks a hyphen or a blank, or has another dash; a container under another's name" {
    refuse '-lr: unknown option: expected --lr?' trainstep -lr 1e-5 -d ids.tok start.ckpt
    refuse '--lr1e-5: unknown option: expected --lr 1e-5?' trainstep --lr1e-5 -d ids.tok start.ckpt
    refuse $'\u2014until: begins with a dash that is no hyphen: expected --until?' \
        trainstep -d ids.tok start.ckpt $'\u2014until' 3
    refuse '-b: unknown option: here it is --batch B' trainstep -b 4 -d ids.tok start.ckpt
    cp model.safetensors model.gguf
    refuse 'model.gguf: byte 0: is a safetensors, and its name says that it is a gguf' datcat model.gguf
    printf 'PK\3\4 %30s' '' >rows.xlsx
    refuse 'rows.xlsx: is a file of an office program: expected * save its table as CSV in UTF-8' tokenize -o x.tok rows.xlsx
}

@test "a batch above the data, a request that is taken as text, ids of another tokenizer, a config.json that is another's" {
    run -0 --separate-stderr trainstep -d ids.tok --batch 9 start.ckpt
    [[ $stderr == *'trainstep: --batch 9: a step takes 9 samples, and the data have 3: each is taken 3 times or more'* ]]
    run -0 --separate-stderr trainstep -d ids.tok start.ckpt
    [[ $stderr == *'trainstep: --batch 9, kept in the checkpoint: a step takes 9 samples'* ]]
    run -0 --separate-stderr trainstep -d ids.tok --batch 5 start.ckpt
    [[ $stderr != *'each is taken'* ]]
    # Nothing else has such logits.
    datpack -q -f --init 3 --config "$HERE/vectors/qwen3-tiny-config.json" --to ckpt -o far.ckpt
    trainstep -q --lr 10 -n 9 -d ids.tok far.ckpt >/dev/null 2>&1
    run -0 --separate-stderr generate --score ids.tok far.ckpt
    [[ $stderr == *'ids.tok: the loss is far above 4.575, that of equal probabilities for all tokens: '* ]]
    run -0 --separate-stderr generate --score ids.tok model.safetensors
    [[ $stderr != *'far above'* ]]
    # Without its sidecar a .dat takes the config.json that happens to lie beside it.
    datpack -q -o model.dat model.safetensors
    rm model.dat.json
    sed -i 's/"vocab_size": 97/"vocab_size": 98/' config.json
    refuse 'model.dat: "model.embed_tokens.weight": expected [98, 32], found [97, 32]; the configuration is the config.json beside it, perhaps of another model' \
        generate --ids -p '1 2' model.dat
    rm config.json
    refuse 'model.dat: no configuration: looked for --config, then inside the file, in model.dat.json, which is written with it' \
        generate --ids -p '1 2' model.dat
}
