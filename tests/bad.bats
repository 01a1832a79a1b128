#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# Bad files of every container: refused by datcat and datpack, found by
# datcat --verify, in little time and memory, with one clean line.
# The files come from mkbad.py, the questions are asked by runbad.py.
# shellcheck disable=SC2154  # output, stderr, stderr_lines: set by run

# bats file_tags=native
load common

setup_file() {
    export BAD="$BATS_FILE_TMPDIR/bad"
    python3 "$HERE/mkbad.py" "$BAD"
}

runbad() {
    python3 "$HERE/runbad.py" "$@"
}

bin() {
    echo "${NIBBLE_BIN:-$root/bin}/$1"
}

@test "the Python side agrees with itself" {
    python3 "$HERE/xxh3.py" --self-test
    containers --self-test
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
    [ "$(datcat -q --names tiny.dat | wc -l)" -gt 9 ] # what is run is datcat
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
    [ "$(grep -c '^FAIL' <<<"$output")" -eq 7 ] || { echo "$output" && false; }
}

@test "every class of bad file is refused, every damage found" {
    [ "$(wc -l <"$BAD/MANIFEST")" -ge 500 ]
    runbad list "$BAD"
}

# Parsers are judged by what they say: places, and what is expected and found there.
# After a change of words: runbad.py messages DIR >tests/vectors/bad-messages.txt
@test "each refusal says what is wrong, where, in the words and numbers that were looked through" {
    runbad messages "$BAD" >said
    diff "$HERE/vectors/bad-messages.txt" said
}

# Their cost is the point, and it is not measured under sanitizers or emulation.
# bats test_tags=slow,nosan,native,long
@test "headers as large as they may be are refused as fast, in as little memory" {
    python3 "$HERE/mkbad.py" --big big
    [ "$(wc -l <big/MANIFEST)" -ge 20 ]
    runbad list big
}

# bats test_tags=slow
@test "what is large and legal is listed" {
    python3 - <<'PY'
import sys
sys.dont_write_bytecode = True
n = 1 << 20
with open("many.dat", "wb") as f:
    f.write(b"\x80\x80\x40")
    f.write(b"".join([b"\x06%06x\0\1\0" % k for k in range(n)]))
with open("nibble.safetensors", "wb") as f:
    h = b'{"__metadata__":{"nibble":"{\\"format\\":\\"nibble-1\\",\\"x\\":\\"%s\\"}"}}' % (
        b"v" * (17 << 20))
    f.write(len(h).to_bytes(8, "little") + h)
with open("small.dat", "wb") as f:
    f.write(b"\1\1a\0\1\1x")
with open("small.dat.json", "wb") as f:
    f.write(b'{"format":"nibble-1","x":"%s"}' % (b"v" * (17 << 20)))
PY
    "$(bin datcat)" many.dat | md5sum >file.md5
    "$(bin datcat)" - <many.dat | md5sum | cmp - file.md5
    # A file on standard input is a file; this is a pipe.
    dd if=many.dat bs=64K status=none | "$(bin datcat)" - | md5sum | cmp - file.md5
    run -0 --separate-stderr "$(bin datcat)" many.dat
    [ "${lines[0]}" = $'000000\tu8\t[0]\t0' ]
    [ "${lines[1048575]}" = $'0fffff\tu8\t[0]\t0' ]
    [ "${lines[1048576]}" = $'total\t1048576 u8\t1048576 tensors\t0' ]
    # Texts that are too large are not ours.
    run -0 --separate-stderr "$(bin datcat)" --json nibble.safetensors
    [[ $stderr == *ignored* ]]
    run -0 --separate-stderr "$(bin datcat)" --json small.dat
    [[ $stderr == *ignored* && $output == *'"config":null'* ]]
}

@test "a .dat cut at every byte, as a file and in a pipe" {
    make_sample small-dat small.dat
    runbad cut small.dat
}

@test "a safetensors file cut at every byte" {
    make_sample small-safetensors small.safetensors
    runbad cut small.safetensors
}

@test "a checkpoint cut at every seventh byte" {
    make_sample small-ckpt small.ckpt
    runbad cut small.ckpt 7
}

# bats test_tags=slow,nosan,long
@test "a checkpoint cut at every byte" {
    make_sample small-ckpt small.ckpt
    runbad cut small.ckpt
}

@test "1,000 single bits of a checkpoint, each found by --verify" {
    make_sample small-ckpt small.ckpt
    runbad flips small.ckpt 1000
}

# bats test_tags=slow,nosan,long
@test "10,000 single bits of a checkpoint, each found by --verify" {
    make_sample small-ckpt small.ckpt
    runbad flips small.ckpt 10000
}

@test "random mutations: datcat and an independent reader agree" {
    runbad differ dat 2000
    runbad differ safetensors 2000
    runbad differ ckpt 2000
}

@test "what cannot be read at all is exit 2, from --verify too" {
    ln -s loop.dat loop.dat
    mkdir dir.dat dir.ckpt
    local f option
    for f in absent.dat absent.safetensors absent.ckpt absent/ loop.dat \
        dir.dat dir.ckpt; do
        for option in --names --verify; do
            run -2 --separate-stderr timeout 60 "$(bin datcat)" $option $f
            [ -z "$output" ]
            [ "${#stderr_lines[@]}" -eq 1 ]
            [[ $stderr == *"${f%/}"* ]]
        done
        run -2 --separate-stderr timeout 60 "$(bin datpack)" -o out.dat $f
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ ! -e out.dat ]
    done
    # Not files, and endless.
    for f in /dev/zero /dev/null; do
        run -2 --separate-stderr timeout 60 "$(bin datcat)" $f
        run -2 --separate-stderr timeout 60 "$(bin datpack)" -o out.dat $f
        [ ! -e out.dat ]
    done
    run -2 bash -c "timeout 60 '$(bin datcat)' - </dev/zero"
    run -2 bash -c "yes | timeout 60 '$(bin datcat)' -"
    # One of two inputs is bad: nothing is written, nothing is listed twice.
    make_sample small-dat good.dat
    run -2 --separate-stderr "$(bin datpack)" -o out.dat good.dat "$BAD/dat-name-dup.dat"
    [ ! -e out.dat ]
    run -2 --separate-stderr "$(bin datpack)" -o out.dat "$BAD/dat-name-dup.dat" good.dat
    [ ! -e out.dat ]
    [ "$(find . -name '*tmp*')" = '' ]
}
