#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# Bad files of every container: refused by datcat and datpack, found by
# datcat --verify, in little time and memory, with one clean line.
# The files come from mkbad.py, the questions are asked by runbad.py.

bats_require_minimum_version 1.5.0

setup_file() {
    export BAD="$BATS_FILE_TMPDIR/bad"
    python3 "$BATS_TEST_DIRNAME/mkbad.py" "$BAD"
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return
}

make_sample() {
    python3 "$BATS_TEST_DIRNAME/containers.py" make "$@"
}

runbad() {
    python3 "$BATS_TEST_DIRNAME/runbad.py" "$@"
}

@test "the Python side agrees with itself" {
    python3 "$BATS_TEST_DIRNAME/xxh3.py" --self-test
    python3 "$BATS_TEST_DIRNAME/containers.py" --self-test
}

@test "valid files pass the same runner" {
    make_sample dat every.dat
    make_sample safetensors every.safetensors
    make_sample ckpt every.ckpt
    make_sample sidecar sidecar.dat
    make_sample portable-dat portable.dat
    make_sample portable-safetensors portable.safetensors
    make_sample pair pair.dat
    make_sample tiny-dat tiny.dat
    make_sample tiny-safetensors tiny.safetensors
    make_sample tiny-ckpt tiny.ckpt
    make_sample small-ckpt small.ckpt
    make_sample shards shards
    make_sample tiny-dir tiny-dir
    make_sample tiny-shards tiny-shards
    runbad good ./*.dat ./*.safetensors ./*.ckpt shards tiny-dir tiny-shards
}

@test "a runner that is fooled would say so" {
    mkdir fake
    printf '#!/bin/sh\nexit 0\n' >fake/datcat
    cp fake/datcat fake/datpack
    chmod +x fake/*
    mkdir few
    cp "$BAD"/dat-name-dup.dat "$BAD"/ckpt-magic.ckpt few
    grep -E '^(dat-name-dup.dat|ckpt-magic.ckpt)	' "$BAD/MANIFEST" >few/MANIFEST
    : >few/ODD
    : >few/DAMAGED
    NIBBLE_BIN=fake run -1 runbad list few
    [ "$(grep -c '^FAIL' <<<"$output")" -eq 6 ]
}

@test "every class of bad file is refused, every damage found" {
    [ "$(wc -l <"$BAD/MANIFEST")" -ge 500 ]
    runbad list "$BAD"
}

@test "a .dat cut at every byte, as a file and in a pipe" {
    make_sample small-dat small.dat
    runbad cut small.dat
}

@test "a safetensors file cut at every byte" {
    make_sample small-safetensors small.safetensors
    runbad cut small.safetensors
}

@test "a checkpoint cut at every byte" {
    make_sample small-ckpt small.ckpt
    runbad cut small.ckpt
}

@test "10,000 single bits of a checkpoint, each found by --verify" {
    make_sample small-ckpt small.ckpt
    runbad flips small.ckpt "$([ "$NIBBLE_SLOW" = 1 ] && echo 1000 || echo 10000)"
}
