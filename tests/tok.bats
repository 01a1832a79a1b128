#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# The .tok container: what datcat shows of it, what it and tokenize --decode refuse.
# The independent reader and writer is tok.py.
# shellcheck disable=SC2154  # output, lines, stderr, stderr_lines: set by run

load common

setup_file() {
    TOK=$HERE/tok.py
    SMALL=$BATS_FILE_TMPDIR/tokenizer.json
    export TOK SMALL
    python3 "$TOK" tokenizer "$SMALL"
}

tok() {
    python3 "$TOK" "$@"
}

@test "the Python side agrees with itself" {
    tok --self-test
}

@test "totals, shortest, mean and longest" {
    tok make small s.tok
    run -0 --separate-stderr datcat s.tok
    [ -z "$stderr" ]
    [ "${lines[0]}" = $'samples\ttokens\ttargets\tskipped\ttruncated\tshortest\tmean\tlongest' ]
    [ "${lines[1]}" = $'3\t25\t12\t3\t1\t2\t8.33333\t20' ]
    tok make none n.tok
    run -0 datcat n.tok
    [ "${lines[1]}" = $'0\t0\t0\t3\t1\t0\t-\t0' ]
    # By its first bytes, too, and one after the other.
    cp s.tok other
    run -0 datcat s.tok other
    [ "${lines[3]}" = '==> other <==' ]
    [ "${lines[5]}" = "${lines[2]}" ]
}

@test "--values: a sample as lines of id and mask" {
    tok make small s.tok
    run -0 datcat --values 0 s.tok
    [ "$output" = $'7 0\n8 1\n9 1' ]
    run -0 datcat --values 2 s.tok
    [ "$output" = $'299 1\n0 1' ]
    run -0 datcat --values 1:2 s.tok
    [ "$output" = $'0 0\n1 0' ]
    run -0 datcat --values 1:0 s.tok
    [ -z "$output" ]
    run -2 --separate-stderr datcat --values 3 s.tok
    [[ $stderr == *'3 samples'* ]]
    run -2 --separate-stderr datcat --values 1:x s.tok
    [[ $stderr == *'--values: x: is no number: want'* ]]
}

@test "the provenance has the hash of each input, in their order" {
    local i
    for i in 1 2 3; do
        echo "$i 7 $i" >in$i
    done
    tokenize -q --input ids -o x.tok in3 in1 in2
    datcat --meta x.tok | python3 -c '
import json, sys
from xxh3 import xxh3_128
found = [i["xxh3"] for i in json.load(sys.stdin)["meta"]["provenance"]["inputs"]]
assert found == [xxh3_128(open("in%d" % i, "rb").read()).hex() for i in (3, 1, 2)], found'
}

@test "--stats: lengths of samples, targets and documents" {
    tok make packed p.tok
    run -0 datcat --stats p.tok
    [ "${lines[0]}" = $'length\tn\tmin\tp50\tp90\tp99\tmax\tmean\tstd' ]
    [ "${lines[1]}" = $'ids\t2\t2\t2\t9\t9\t9\t5.5\t3.5' ]
    [[ ${lines[2]} == $'targets\t2\t1\t'* ]]
    [[ ${lines[3]} == $'documents\t4\t2\t'* ]]
    # Memory that nobody wrote to is not zero.
    [ "$(MALLOC_PERTURB_=85 datcat --stats p.tok)" = "$output" ]
}

@test "--json and --meta" {
    tok make small s.tok
    datcat --json --stats s.tok >j
    [ "$(json 'd["container"], d["tensors"], d["config"]' <j)" = "('tok', [], None)" ]
    [ "$(json 'd["totals"]["tokens"], d["lengths"]["ids"]["max"]' <j)" = '(25, 20)' ]
    [ "$(json 'd["bytes"]' <j)" = "$(stat -c %s s.tok)" ]
    datcat --meta s.tok >m
    [ "$(json 'd["meta"]["vocab"], d["meta"]["settings"]["input"]' <m)" = "(300, 'tsv')" ]
    # The chain: the stream is named by its last 16 bytes.
    [ "$(json 'd["meta"]["xxh3"]' <m)" = "$(tail -c 16 s.tok | od -An -v -tx1 | tr -d " \n")" ]
    [ "$(json 'd["meta"]["provenance"]["inputs"][0]["kind"]' <m)" = tsv ]
    [ "$(json 'sorted(d["meta"]["provenance"])' <m)" = \
        "['inputs', 'options', 'tool', 'version']" ]
    # Settings of any length that a header can have.
    tok make wide w.tok
    [ "$(datcat --json w.tok | json 'd["totals"]["tokens"]')" = 25 ]
    datcat --meta w.tok | has -F "$(printf '"%.0s' 1)xxx"
}

@test "--map accounts for every byte" {
    local k
    for k in small packed ids none; do
        tok make $k $k.tok
        datcat --map $k.tok |
            awk -F '\t' -v size="$(stat -c %s $k.tok)" '
                NR > 1 && $1 != at { print "hole at " at; exit 1 }
                NR > 1 { at += $2 }
                END { exit at != size }'
    done
}

@test "--hash is that of the file, as sha256sum says" {
    tok make small s.tok
    run -0 datcat --hash=sha256 s.tok
    [ "$output" = "$(sha256sum <s.tok | cut -d ' ' -f 1)  *" ]
}

@test "what asks for tensors is refused in words" {
    local o
    tok make small s.tok
    for o in -l --ndjson --tsv --hist '--payload x' '-s x' '--raw-entries' --group '--sort name' '--top 1' \
        '--npy x'; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr datcat $o s.tok
        [[ $stderr == *'has samples, no tensors'* ]]
    done
}

@test "--verify: 0 for a good stream, 1 for damage, 2 for none" {
    tok make small s.tok
    run -0 datcat --verify s.tok
    [[ $output == 's.tok: OK'* ]]
    run -0 datcat --verify=quick s.tok
    [[ $output == *'not read'* ]]
    run -0 --separate-stderr datcat -q --verify s.tok
    [ -z "$output$stderr" ]
    run -2 datcat --verify none.tok
}

@test "every kind of bad stream is refused in words, every damage found" {
    local file words n=0
    tok bad bad
    while IFS=$'\t' read -r file words; do
        run -2 --separate-stderr timeout 60 datcat "bad/$file"
        [ -z "$output" ]
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == "datcat: bad/$file: byte "*"$words"* ]] ||
            { echo "$file: $stderr, want $words" && false; }
        run -1 --separate-stderr datcat --verify "bad/$file"
        [ -z "$output" ]
        n=$((n + 1))
    done <bad/MANIFEST
    [ "$n" -ge 40 ]
}

@test "a stream cut at every byte, as a file and in a pipe" {
    tok make packed p.tok
    run -0 tok cut p.tok datcat --json {}
    [ "$output" -gt 300 ]
    # Decoding meets another tokenizer first, unless the stream names none.
    tok make ids i.tok
    printf '5 6\n7 8 9\n' | tokenize -q --input ids -o ids.tok
    run -0 tok cut ids.tok tokenize -q -t "$SMALL" --decode -o /dev/null {}
}

@test "a stream with any bit flipped" {
    tok make small s.tok
    # Some of them; tests/unit/tok.c flips all.
    python3 - <<'END'
import subprocess, sys
data = open("s.tok", "rb").read()
for bit in range(0, 8 * len(data), 53):
    bad = bytearray(data)
    bad[bit // 8] ^= 1 << bit % 8
    open("b.tok", "wb").write(bad)
    r = subprocess.run(["datcat", "b.tok"], capture_output=True)
    if r.returncode != 2 or r.stdout:
        sys.exit("bit %d: exit %d" % (bit, r.returncode))
END
}

@test "datpack refuses a .tok with a clear word" {
    tok make small s.tok
    run -2 --separate-stderr datpack -o x.dat s.tok
    [[ $stderr == *'s.tok: '*'.tok'*'no tensors'* ]]
    [ ! -e x.dat ]
}

@test "hostile numbers take neither time nor memory" {
    [ -z "${NIBBLE_SAN:-}${NIBBLE_EMULATED:-}" ] || skip "memory is not ours under sanitizers and emulation"
    tok bad bad
    (
        ulimit -v 200000
        run -2 within 5 datcat bad/n-huge.tok
        run -2 within 5 datcat bad/header-big.tok
        run -2 within 5 datcat bad/end-size.tok
    )
}
