#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154  # bin, root: of common.bash
# shellcheck shell=bats
# bats file_tags=native,nosan
# A listing of a cold file reads the pages that hold entry headers and no other: asked
# of the kernel with mincore, by the helper program of the benchmarks.


load common

setup() {
    cd "$BATS_TEST_TMPDIR" || return
    ${CC:-gcc} -O1 -std=c11 -D_GNU_SOURCE -o pages "$root/bench/pages.c"
    cat >config.json <<'END'
{"model_type":"qwen3","hidden_size":512,"num_hidden_layers":2,"num_attention_heads":8,
"num_key_value_heads":2,"head_dim":64,"intermediate_size":2048,"vocab_size":8192,
"rms_norm_eps":1e-6,"rope_theta":10000,"tie_word_embeddings":true,
"max_position_embeddings":512}
END
    "$bin/datpack" --init 1 --config config.json -o m.dat
}

@test "a listing reads no page without an entry header" {
    ./pages evict m.dat || skip "this file system keeps its pages in memory"
    run -0 "$bin/datcat" m.dat
    ./pages list m.dat | sort >touched
    "$bin/datcat" --map m.dat | awk -F '\t' 'NR > 1 && $3 != "payload" {
        for (p = int($1 / 4096); p <= int(($1 + $2 - 1) / 4096); p++) print p
    }' | sort -u >headers
    [ "$(getconf PAGESIZE)" -eq 4096 ] || skip "pages of another size"
    [ -s headers ]
    [ -z "$(comm -23 touched headers)" ]
    [ -z "$(comm -13 touched headers)" ]
}
