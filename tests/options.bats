#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr, stderr_lines: set by run
# The arguments of options: numbers.

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
