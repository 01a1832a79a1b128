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
1e3|has an exponent
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
