#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2016,SC2154  # inner shells; output, stderr: set by run
# datcat --attest: statements about files of every kind, compared with what attest.py makes of the
# same record and of the files' bytes; and the commands of doc/provenance.md, which sign one.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN" "$IN/teacher"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    cp config.json teacher
    printf '%s\n' '5 6 7 8' '9 10 11' '12 13 14 15 16' '20 21 22' >rows
    printf '%s\n' '5 6 9 8' '9 1 11' >others
    tokenize -q --input ids -o rows.tok rows
    tokenize -q --input ids -o more.tok others
    datpack -q --init 3 --config config.json -o base.dat
    datpack -q --init 4 --config config.json -o teacher/model.safetensors
    datpack -q --to ckpt -o run.ckpt base.dat
    trainstep -q -d rows.tok -n 2 run.ckpt >/dev/null
    trainstep -q -d rows.tok -n 2 --lr 1e-3 --teacher teacher --teacher-data more.tok run.ckpt >/dev/null
    nvquant -q -o nvfp4.dat base.dat
    datpack -q --like nvfp4.dat -o trained.dat run.ckpt
    datpack -q -o trained.safetensors trained.dat
    datpack -q --to modelopt -o served trained.dat
}

# record FILE: what it holds, to the file "record".
record() { datcat --meta "$1" | json 'json.dumps(d["meta"]["provenance"])' >record; }

# attested FILE [ROLE=FILE]...: its statement, to the file "statement", is right.  Prints the
# names of its dependencies.
attested() {
    record "$1"
    datcat --attest "$1" >statement
    python3 "$HERE/attest.py" "$1" record "${@:2}" <statement
}

@test "a stream of samples: its rows; and the tokenizer by its SHA-256" {
    run -0 attested "$IN/rows.tok" data="$IN/rows"
    [ "$output" = "data program" ]
    cp "$root/pipelines/demo/tokenizer.json" .
    printf 'a\tb\n' >rows.tsv
    tokenize -q -t tokenizer.json -o t.tok rows.tsv
    run -0 attested t.tok data=rows.tsv tokenizer=tokenizer.json
    [ "$output" = "data program tokenizer" ]
}

@test "a model that was quantized: the weights that it was made of" {
    run -0 attested "$IN/nvfp4.dat" weights="$IN/base.dat"
    [ "$output" = "program weights" ]
    # The same as the sidecar says, which datcat need not be asked for.
    json 'json.dumps(d["provenance"])' <"$IN/nvfp4.dat.json" >record
    datcat --attest "$IN/nvfp4.dat" | python3 "$HERE/attest.py" "$IN/nvfp4.dat" record
}

@test "a training: weights, the data of each span, teacher and tokenizer" {
    run -0 attested "$IN/run.ckpt" weights="$IN/base.dat" data="$IN/rows" \
        teacher="$IN/teacher/model.safetensors"
    # The checkpoint at step 0, what it was made of, rows, the teacher's samples (a hash only).
    [ "$output" = "data data program teacher weights weights" ]
    json '[s["first"] for s in d["predicate"]["buildDefinition"]["externalParameters"]["options"]["spans"]]' \
        <statement >firsts
    [ "$(cat firsts)" = "[1, 3]" ]
}

@test "the whole chain behind a trained model, in every container" {
    for f in trained.dat trained.safetensors; do
        run -0 --separate-stderr attested "$IN/$f" weights="$IN/nvfp4.dat" weights="$IN/base.dat" data="$IN/rows"
        [[ $output == "data data program teacher weights weights weights"* ]]
    done
    datpack -q --init 3 --config "$root/pipelines/demo/config.json" -o wide.dat
    datpack -q -t "$root/pipelines/demo/tokenizer.json" --to gguf --dtype nvfp4 -o wide.gguf wide.dat
    run -0 attested wide.gguf weights=wide.dat
}

@test "a model directory: each file that the run wrote, and no other" {
    run -0 attested "$IN/served" weights="$IN/trained.dat" data="$IN/rows"
    [ "$(json 'len(d["subject"])' <statement)" -eq 4 ]
    cp -r "$IN/served" .
    run -0 --separate-stderr datcat --attest served
    [[ $stderr == "datcat: served: its container has no checksums: "* && ${#stderr_lines[@]} -eq 1 ]]
    [ "$output" = "$(datcat --attest "$IN/served/")" ]
    cp statement served/notes.txt
    mkdir served/more
    run -0 --separate-stderr datcat --attest served
    [ "$output" = "$(cat statement)" ]
    [ "${#stderr_lines[@]}" -eq 3 ]
    [[ ${stderr_lines[0]} == 'datcat: served: its container has no checksums: '* ]]
    [[ ${stderr_lines[1]} == 'datcat: served: "more" is not part of the model'* ]]
    [[ ${stderr_lines[2]} == 'datcat: served: "notes.txt" is not part of the model'* ]]
    run -0 --separate-stderr datcat -q --attest served
    [ "${#stderr_lines[@]}" -eq 2 ] # a warning, not mere words
    rm served/hf_quant_config.json
    refuse 'served: "hf_quant_config.json" is missing' datcat -q --attest served
}

@test "equal files have equal statements, wherever they are and whatever reads them" {
    datcat --attest "$IN/trained.dat" >a
    mkdir d
    cp "$IN/trained.dat" "$IN/trained.dat.json" d
    (cd d && datcat -j 1 --attest ./trained.dat) >b
    cmp a b
}

@test "what has no record, or another file's, is refused" {
    cp "$IN/nvfp4.dat" bare.dat
    refuse "bare.dat: has no record" datcat --attest bare.dat
    cp "$IN/base.dat.json" bare.dat.json
    refuse "bare.dat: has no record" datcat -q --attest bare.dat # stale: said without -q
    datpack -q --compat torchsharp -o ts.dat "$IN/base.dat"
    refuse "ts.dat: has no record" datcat --attest ts.dat
    make_sample tiny-dir model
    refuse "model: has no record" datcat --attest model
    refuse "stdin" datcat --attest - <"$IN/nvfp4.dat"
}

@test "a damaged file is refused, whatever its container" {
    for f in trained.dat run.ckpt rows.tok; do
        cp "$IN/$f" .
        [ ! -e "$IN/$f.json" ] || cp "$IN/$f.json" .
        datcat --attest "$f" >/dev/null
    done
    for f in trained.dat run.ckpt rows.tok; do
        python3 - "$f" <<'PY'
import os, sys
with open(sys.argv[1], "r+b") as f:
    f.seek(os.path.getsize(sys.argv[1]) // 2)
    b = f.read(1)[0]
    f.seek(-1, 1)
    f.write(bytes([b ^ 4]))
PY
        refuse "$f: " datcat --attest "$f"
    done
}

@test "a damaged record is refused with what was expected" {
    local sidecar
    cp "$IN/nvfp4.dat" m.dat
    # A change in the record alone: the sidecar still fits its file.
    for change in '.pop("inputs")|"inputs" is missing' \
        '.update(inputs={})|"inputs" is not of its kind' \
        '.pop("options")|"options" is missing' \
        '.update(options=[])|"options" is not of its kind' \
        '.update(tool=3)|"tool" is not of its kind' \
        '.pop("version")|"version" is missing' \
        '.update(version="1\"")|"version" is no version' \
        '["inputs"].append(7)|record: byte 0: expected' \
        '["inputs"][0].pop("xxh3")|"xxh3" is missing' \
        '["inputs"][0].update(xxh3="00")|"xxh3" is no hash: expected 32 hex digits' \
        '["inputs"][0].update(xxh3="g" * 32)|"xxh3" is no hash' \
        '["inputs"][0].update(kind=None)|"kind" is not of its kind' \
        '["inputs"][0]["provenance"].pop("tool")|"tool" is missing' \
        '.update(tool="trainstep")|"spans" is missing' \
        '.update(tool="tokenize",options={"tokenizer":"00"})|"tokenizer" is no hash: expected 64'; do
        python3 - "$IN/nvfp4.dat.json" "${change%%|*}" >m.dat.json <<'PY'
import json, sys
with open(sys.argv[1]) as f:
    d = json.load(f)
exec("d['provenance']" + sys.argv[2])
print(json.dumps(d, separators=(",", ":")), end="")
PY
        refuse "m.dat: record: * ${change#*|}" datcat --attest m.dat
    done
    sidecar=$(<"$IN/nvfp4.dat.json")
    printf '%s' "${sidecar:0:300}" >m.dat.json
    refuse "m.dat.json" datcat --attest m.dat
}

@test "--attest is of one file, whole" {
    refuse "want one FILE" datcat --attest "$IN/base.dat" "$IN/nvfp4.dat"
    refuse "neither -s nor -x" datcat --attest -s '*' "$IN/base.dat"
    refuse "cannot be combined" datcat --attest --meta "$IN/base.dat"
    refuse "No such file" datcat --attest no.dat
    run -2 --separate-stderr bash -c 'datcat --attest "$1" >/dev/full' bash "$IN/base.dat"
    [[ $stderr == *"No space left"* ]]
}

@test "the commands of the page on provenance run, and a changed statement does not verify" {
    cp "$root/pipelines/demo/config.json" "$root/pipelines/demo/tokenizer.json" .
    cp "$root/pipelines/demo/whoami.tsv" rows.tsv
    awk '/^```$/ { on = 0 } on { print } /^```sh$/ { on = 1 }' "$root/doc/provenance.md" >page.sh
    [ "$(grep -c '^[a-z]' page.sh)" -ge 15 ]
    bash -euo pipefail -x page.sh >out 2>err || {
        tail -n 5 err
        return 1
    }
    grep -qx 'Signature Verified Successfully' out
    grep -qx 'trained.dat: OK' out
    # The envelope holds the statement, and its signature is of DSSE's encoding of it.
    python3 - <<'PY'
import base64, json
with open("trained.dsse.json") as f:
    d = json.load(f)
with open("trained.intoto.json", "rb") as f:
    text = f.read()
with open("signed", "rb") as f:
    signed = f.read()
assert base64.b64decode(d["payload"]) == text
kind = d["payloadType"].encode()
assert signed == b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(text), text)
PY
    sed -i 's/"tool":"datpack"/"tool":"nvquant"/' signed
    run -1 openssl pkeyutl -verify -rawin -pubin -inkey public.pem -in signed -sigfile signature
}
