#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr, stderr_lines: set by run
# The arguments of options: files given twice, numbers, words of other programs.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    printf '1 2 3 4\n5 6 7\n' >ids
    tokenize -q --input ids -o a.tok ids
    tokenize -q --input ids -o b.tok ids
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
    datpack -q --init 3 --config config.json -o model.safetensors
}

setup() {
    mkdir "$BATS_TEST_TMPDIR/w"
    cd "$BATS_TEST_TMPDIR/w" || return
    cp "$IN"/* .
}

# file_options PROGRAM: its options that take the name of a file or directory.
file_options() {
    "$1" --help | grep -oE -- '--[a-z-]+ (FILE|FILE\.tok|OUT|DIR|MODEL|REF|MANIFEST)( |$)' | tr -s ' '
}

@test "an option that takes one file refuses two different ones, and names both" {
    local p o noun n=0
    for p in datcat datpack generate memguard nvquant tokenize trainstep; do
        while read -r o noun; do
            n=$((n + 1))
            case "$p $o" in
            'tokenize --output')
                refuse '-o y: a second output besides x: want one, or --split' "$p" -o x -o y ids
                ;;
            *)
                refuse "$o: given as x and as y: want one $noun" "$p" "$o" x "$o" y z
                refuse "$o: given as x and as y: want one $noun" "$p" "$o=x" "$o" x "$o=y" z
                ;;
            esac
        done < <(file_options "$p")
    done
    [ "$n" -eq 33 ] || { echo "$n options" && false; }
    refuse '--data: given as a.tok and as b.tok: want one FILE' trainstep -d a.tok -d b.tok start.ckpt
    refuse '--eval: given as a.tok and as b.tok' trainstep -d a.tok --eval a.tok --eval b.tok start.ckpt
    refuse '--score: given as a.tok and as b.tok' generate --score a.tok --score b.tok model.safetensors
    # Equal bytes under two names are two files.
    cmp a.tok b.tok
    refuse '--check: given as a and as b: want one MANIFEST' datcat --check a --check b model.safetensors
}

@test "the same file twice is one file, by any name" {
    ln -s a.tok link.tok
    trainstep -q -d a.tok -d ./a.tok --data=link.tok --data a.tok start.ckpt >/dev/null
    generate -q --score a.tok --score ./a.tok model.safetensors >table
    [ -s table ]
    # An output that does not exist yet, and one below a directory.
    mkdir sub
    datpack -q -o x.dat -o ./x.dat --output "$PWD/x.dat" --output sub/../x.dat model.safetensors
    [ -s x.dat ]
    refuse '--output: given as y.dat and as sub/y.dat' datpack -o y.dat -o sub/y.dat model.safetensors
    tokenize -q --input ids -o z.tok -o ./z.tok ids
    cmp z.tok a.tok
    seq -f '%g 1 2' 40 >many
    tokenize -q --input ids --split 0.5:1 -o s.tok -o t.tok many
    refuse 'is the other output, too' tokenize -q --input ids --split 0.5:1 -o u.tok -o ./u.tok many
}

@test "of numbers and words the last holds, and -v says so" {
    run -0 --separate-stderr datcat --top 1 --top=2 -v --tsv model.safetensors
    [[ $stderr == *'datcat: --top: 1 has no effect: it is given again as 2'* ]]
    [ "${#lines[@]}" -eq 3 ]
    run -0 --separate-stderr datcat --top 1 --top=2 --tsv model.safetensors
    [ -z "$stderr" ]
    run -0 --separate-stderr datcat -qv --top 1 --top=2 --tsv model.safetensors
    [ -z "$stderr" ]
    run -0 --separate-stderr datcat -v --top 2 --top 2 --tsv model.safetensors
    [[ $stderr != *'has no effect'* ]]
    # The last of three, whose first is the same: the second has no effect.
    run -0 --separate-stderr datcat -v --sort bytes --sort name --sort bytes model.safetensors
    [[ $stderr == *'datcat: --sort: name has no effect: it is given again as bytes'* ]]
    # Each of several patterns and texts counts.
    run -0 --separate-stderr datcat -v -l -s '*norm*' -s '*embed*' -x '*k_norm*' -x '*q_norm*' model.safetensors
    [[ $stderr != *'has no effect'* ]]
    run -0 --separate-stderr generate -v --ids -p '1 2' -p '3 4' -n 1 --seed 1 --seed 2 model.safetensors
    [ "$(grep -c 'has no effect' <<<"$stderr")" -eq 1 ]
    [[ $stderr == *'--seed: 1 has no effect: it is given again as 2'* ]]
}

@test "a number that is refused: what is wrong with it, and what was expected" {
    local arg words
    while IFS='|' read -r arg words; do
        refuse "generate: --temp: ${arg:-\"\"}: $words: want a number of at least 0" generate --temp "$arg" x
    done <<'EOT'
5x|"x" after the number
5 |" " after the number
1e|"e" after the number
0x1|"x1" after the number
1,5|",5" after the number
50%|"%" after the number
|is empty
x|is no number
.|is no number
- 1|is no number
-1|is negative
-.5e-3|is negative
nan|is not finite
-Inf|is not finite
1e999|is too large
EOT
    while IFS='|' read -r arg words; do
        refuse "datcat: --top: ${arg:-\"\"}: $words: want 1..4294967295" datcat --top "$arg" x
        refuse "datcat: --top: ${arg:-\"\"}: $words: want 1..4294967295" datcat --top="$arg" x
    done <<'EOT'
5x|"x" after the number
10k|"k" after the number
5000000000|is too large
99999999999999999999|is too large
0|is too small
|is empty
-1|is negative
+1|has a sign
1.5|is no whole number
0.1|is a share, and a count is wanted
1e3|has an exponent: written as 1000 it has none
nan|is not finite
EOT
    while IFS='|' read -r arg words; do
        refuse "memguard: --limit: ${arg:-\"\"}: $words: want a number of GB" memguard -l "$arg" -- true
    done <<'EOT'
1GB|"GB" after the number
1g|"g" after the number
1 G|" G" after the number
-1G|is negative
G|is no number
|is empty
inf|is not finite
EOT
    while IFS='|' read -r arg words; do
        refuse "datpack: --shard-size: ${arg:-\"\"}: $words: want a number of bytes" datpack --shard-size "$arg" -o x/ y
    done <<'EOT'
1T|"T" after the number
1.5G|is no whole number
20000000000G|is too large
0|is too small
EOT
}

@test "what other programs call an option or a word is answered with ours, or with why it is not here" {
    python3 "$HERE/elsewhere.py" "$root/cmd/cli/elsewhere.c" >asked || { cat asked && false; }
    [ "$(tail -n 1 asked)" -ge 600 ]
    rm asked
    # Capitals, underscores and an argument behind "=" make no difference.
    local o
    for o in --gradient-accumulation-steps --gradient_accumulation_steps --Gradient_Accumulation-Steps; do
        refuse "$o: unknown option: here it is --accum A: passes of a step" trainstep $o 4 start.ckpt
        refuse "$o: unknown option: here it is --accum A: passes of a step" trainstep $o=4 start.ckpt
        refuse "$o: unknown option: here it is --accum A: passes of a step" trainstep start.ckpt $o
    done
    refuse '--optim: no such option here: AdamW is the only optimizer' trainstep --optim adamw_8bit x
    refuse '--lora_r: no such option here: nibble trains all weights' trainstep --lora_r 16 x
    refuse '--max_steps: unknown option: here it is --until STEP' trainstep --max_steps 60 x
    refuse '--loss: L1: here it is scalar; want one of ce, scalar' trainstep --loss L1 x
    refuse '--schedule: cosine_with_warmup: here it is cosine, with --warmup N' trainstep --schedule cosine_with_warmup x
    refuse '--device: gpu: here it is cuda; want cpu, cuda, cuda:N or auto' generate --device gpu x
    refuse '--dtype: Float16: here it is f16' nvquant --dequant --dtype Float16 -o x.dat y
    # Letters: alone, in one word with others, and where the first of them is one of ours.
    refuse '-m: no such option here: MODEL is an operand' generate -m model.safetensors -p x
    refuse '-ngl: no such option here: all layers are on' generate model.safetensors -ngl 99
    refuse '-cnv: unknown option: here it is --chat' generate -cnv model.safetensors
    refuse '-c: unknown option: here it is --context N' generate -qc 4096 model.safetensors
    refuse '-fa: no such option here: attention' generate -fa model.safetensors
    refuse '-hf: no such option here: nothing is downloaded; hf download' generate -hf a/b
    # An argument that looks like one of these is an argument.
    run -2 --separate-stderr generate -p -m nosuch.safetensors
    [[ $stderr == *'nosuch.safetensors: No such file'* ]]
    # What begins one of ours is an abbreviation, unless another program has that name.
    trainstep -q --epoch 1 -d a.tok start.ckpt >table
    refuse '--gpu: unknown option: here it is --device NAME' trainstep --gpu 0 -d a.tok start.ckpt
    refuse '--gpu: unknown option: here it is --device NAME' trainstep -d a.tok start.ckpt --gpu
}

@test "a guess is made only where it is close: a letter or two, or the same words" {
    local word option
    while read -r word option; do
        refuse "trainstep: --$word: unknown option: expected --$option? --help lists all" trainstep "--$word" 1
    done <<'EOT'
batchs batch
sead seed
save-evrey save-every
memory-limmits memory-limit
weight_decay weight-decay
train_last_layers train-last-layers
Save-Every save-every
num-seed seed
batch-size-total batch
log-file log
keep-best-path keep-best
EOT
    # No option is near.  Its help has some of these words, and some begin or end like one of ours.
    for word in zzzz bach2s eval-everything maximum-skips optimise rate-of-learning optimizer-state \
        gradients log-level-file time-limit eval-memory from-scratch keep chunk-rowsandmore; do
        run -2 --separate-stderr trainstep "--$word" 1
        [[ $stderr == "trainstep: --$word: unknown option; --help lists them" ||
            $stderr == "trainstep: --$word: is the beginning of "* ]] || { echo "$stderr" && false; }
    done
    refuse 'generate: --tokens: unknown option: expected --max-tokens?' generate --tokens 3 x
    refuse 'generate: --penalty: unknown option: expected --repeat-penalty?' generate --penalty 3 x
}
