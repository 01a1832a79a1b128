#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2030,SC2031  # output is of run
# shellcheck disable=SC2154  # output, status, stderr, stderr_lines: set by run or paused.bash
# A damaged input never becomes a new file with fresh checksums, and nothing is computed
# from it: every program that passes payloads on or computes with them checks what its
# container has checksums of.  That the flips are found at all, datcat --verify, is in
# bad.bats.

load common
load paused

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    datpack -q --init 3 --config config.json --to ckpt -o new.ckpt
    printf '%s\n' '5 6 7 8' '9 10 11' '12 13 14 15 16' | tokenize -q --input ids -o ids.tok
    # With moments that are not all zero.
    trainstep -q -n 3 --lr 1e-2 -d ids.tok new.ckpt >/dev/null
    mv new.ckpt good.ckpt
    datpack -q --dtype f16 -o f16.dat good.ckpt
    nvquant -q -o nvfp4.dat f16.dat
}

# flip FILE BYTE: one bit of it, in place.
flip() {
    python3 - "$@" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2]))
    b = f.read(1)[0]
    f.seek(-1, 1)
    f.write(bytes([b ^ 4]))
PY
}

# arrays FILE [-s GLOB]: a line NAME FIRST MIDDLE LAST each, bytes of the payload.
arrays() {
    datcat --raw-entries --ndjson "${@:2}" "$1" | python3 -c '
import json, sys
for line in sys.stdin:
    t = json.loads(line)
    at, n = t["offset"], t["nbytes"]
    print(t["name"], at, at + n // 2, at + n - 1)'
}

# inside FILE NAME: a byte of that entry's payload.
inside() {
    arrays "$1" | awk -v name="$2" '$1 == name { print $3 }'
}

# flip_each FUNCTION [-s GLOB]: a bit of each array of good.ckpt, in its first, middle or last
# byte, is flipped in a copy, m.ckpt; then FUNCTION is called with the array's name.  The count of
# arrays is in $n.
flip_each() {
    local name at
    n=0
    while read -r name at; do
        cp "$IN/good.ckpt" m.ckpt
        flip m.ckpt "$at"
        "$1" "$name"
        n=$((n + 1))
    done < <(arrays "$IN/good.ckpt" "${@:2}" | awk '{ print $1, $(2 + NR % 3) }')
}

# resumed STATUS WORDS: $pid goes on and ends so.
resumed() {
    ended
    cat err
    [ "$status" -eq "$1" ]
    [[ $(cat err) == *"$2"* ]]
}

# ---- checkpoints ---------------------------------------------------------------------

refuse_weight() {
    refuse "m.ckpt: byte" datpack -q -o x.dat m.ckpt
    [[ $stderr == *"array \"$1\" is damaged"* ]]
    refuse "array \"$1\" is damaged" datpack -q --dtype nvfp4 -o x.dat m.ckpt
    refuse "array \"$1\" is damaged" nvquant -q -o x.dat m.ckpt
    refuse "array \"$1\" is damaged" generate -q --ids -n 3 -p '1 2' m.ckpt
}

# bats test_tags=slow
@test "a flipped byte of any weight: datpack, nvquant and generate end with 2" {
    local n
    flip_each refuse_weight -x 'adam.*'
    [ "$n" -eq 24 ]
}

@test "whatever the target is and however its values are made" {
    local to
    cp "$IN/good.ckpt" m.ckpt
    flip m.ckpt "$(inside m.ckpt model.layers.1.mlp.up_proj.weight)"
    for to in x.dat x.safetensors x/ x.ckpt '--dtype f32 x.safetensors' '--to modelopt x' \
        '--to compressed-tensors x' '--dtype bf16 x.safetensors' '--compat torchsharp x.dat' \
        '--like nvfp4.dat x.dat' '--quant max --dtype nvfp4 x.dat'; do
        cp "$IN/nvfp4.dat" .
        # shellcheck disable=SC2086  # options, then the name
        set -- $to
        refuse 'up_proj.weight" is damaged' datpack -q "${@:1:$#-1}" -o "${*: -1}" m.ckpt
    done
    # To a pipe as well: its reader finds the end missing.
    run -2 --separate-stderr bash -c 'set -o pipefail; datpack -q -o - m.ckpt | cat >piped.dat'
    [[ $stderr == *'is damaged'* ]]
    run -2 --separate-stderr datcat piped.dat
}

@test "what is not read does not matter" {
    cp "$IN/good.ckpt" m.ckpt
    flip m.ckpt "$(inside m.ckpt adam.m/model.norm.weight)"
    run -1 datcat --verify m.ckpt
    datpack -q -o x.dat m.ckpt
    datcat --diff x.dat "$IN/f16.dat"
    generate -q --ids -n 3 -p '1 2' m.ckpt >a
    generate -q --ids -n 3 -p '1 2' "$IN/good.ckpt" >b
    cmp a b
    flip m.ckpt "$(inside m.ckpt model.norm.weight)"
    datpack -q -s '*q_proj*' -o q.dat m.ckpt
    datpack -q -s '*q_proj*' -o want.dat "$IN/f16.dat"
    datcat --diff q.dat want.dat
}

@test "generate --no-verify takes weights as they are" {
    cp "$IN/good.ckpt" m.ckpt
    flip m.ckpt "$(inside m.ckpt model.layers.0.mlp.up_proj.weight)"
    run -0 --separate-stderr generate -q --no-verify --ids -n 3 -p '1 2' m.ckpt
    [ -n "$output" ]
    generate -q --ids -n 3 -p '1 2' "$IN/good.ckpt" >a
    generate -q --no-verify --ids -n 3 -p '1 2' "$IN/good.ckpt" | cmp a -
}

refuse_frozen() {
    cp m.ckpt before
    refuse "array \"$1\" is damaged" \
        trainstep -q -n 2 --train-last-layers 1 -d "$IN/ids.tok" m.ckpt
    cmp m.ckpt before
    refuse "array \"$1\" is damaged" \
        trainstep -q -n 2 --train-last-layers 1 -d "$IN/ids.tok" -o x.ckpt m.ckpt
}

# bats test_tags=slow
@test "trainstep checks arrays that it does not load, too" {
    local n
    flip_each refuse_frozen -s 'adam.*layers.0*' -s 'adam.*embed*' -s 'adam.*model.norm*'
    [ "$n" -gt 20 ]
}

# bats test_tags=native
@test "an array that is damaged while others are trained is not saved" {
    cp "$IN/good.ckpt" m.ckpt
    paused 'write:1:stop:log.jsonl' trainstep -q -n 3 --train-last-layers 1 \
        --log log.jsonl -d "$IN/ids.tok" -o x.ckpt m.ckpt
    flip m.ckpt "$(inside m.ckpt adam.m/model.layers.0.mlp.up_proj.weight)"
    resumed 2 'up_proj.weight" is damaged'
    [ ! -e x.ckpt ]
    run -0 bash -c 'ls -A | grep nibble-tmp || true'
    [ -z "$output" ]
}

# shown ARGUMENT...: datcat of m.ckpt, whose array up_proj is damaged, prints no value of it.
shown() {
    refuse 'up_proj.weight" is damaged' datcat "$@" m.ckpt
    [[ $output != *[0-9]* ]]
}

@test "datcat prints no value of a damaged array" {
    local name=model.layers.1.mlp.up_proj.weight
    cp "$IN/good.ckpt" m.ckpt
    flip m.ckpt "$(inside m.ckpt $name)"
    shown --values $name
    shown --values $name:3
    shown --payload $name
    shown --npy $name
    shown --stats
    shown --hist=4
    shown --stats --json
    # The others are whole.
    run -0 datcat --values model.norm.weight:1 m.ckpt
    [ -n "$output" ]
    run -0 datcat --stats -x '*up_proj*' m.ckpt
    datcat m.ckpt >/dev/null
    # Damage is no difference.
    run -2 --separate-stderr datcat --diff m.ckpt "$IN/good.ckpt"
    [[ $stderr == *'up_proj.weight" is damaged'* ]]
    run -2 --separate-stderr datcat --diff --atol 9 "$IN/good.ckpt" m.ckpt
    [[ $stderr == *'up_proj.weight" is damaged'* ]]
}

# forged NAME COPY: m.ckpt is good.ckpt with one array more, whose sizes and hashes are right.
forged() {
    python3 "$HERE/containers.py" forge "$IN/good.ckpt" m.ckpt "$1" "$2"
}

@test "a checkpoint with an array that its training does not have is refused by all" {
    local name copy
    cp "$IN/ids.tok" .
    trainstep -q -n 1 -d ids.tok -o later.ckpt "$IN/good.ckpt" >/dev/null
    while read -r name copy; do
        forged "$name" "$copy"
        for command in 'generate -q --ids -n 2 -p 1 m.ckpt' \
            'generate -q --no-verify --ids -n 2 -p 1 m.ckpt' \
            'generate -q --score ids.tok m.ckpt' 'datpack -q -o x.dat m.ckpt' \
            'datpack -q --untie -o x.safetensors m.ckpt' 'datpack -q -o x.ckpt m.ckpt' \
            'datpack -q -s model.norm.weight -o x.dat m.ckpt' \
            'datpack -q -f --like m.ckpt -o x.dat later.ckpt' \
            'nvquant -q -o x.dat m.ckpt' 'trainstep -q -n 1 -d ids.tok m.ckpt' \
            'trainstep -q -n 1 -d ids.tok -o x.ckpt m.ckpt' \
            'trainstep --dry-run -d ids.tok m.ckpt' 'trainstep -q --until 3 -d ids.tok m.ckpt' \
            "trainstep -q --replay 3..4 --from m.ckpt -d ids.tok later.ckpt" \
            'datcat --attest m.ckpt' 'datcat --diff m.ckpt later.ckpt' 'datcat m.ckpt' \
            'datcat --json m.ckpt'; do
            # shellcheck disable=SC2086  # words of a command
            run -2 --separate-stderr $command
            [[ $stderr == *"m.ckpt: \"$name\": is not an array of this training"* ]]
            [ -z "$(find . -name 'x.*')" ]
        done
        run -1 --separate-stderr datcat --verify m.ckpt
        [[ $stderr == *"$name"* ]]
    done <<<'lm_head.weight model.embed_tokens.weight
        evil.weight model.norm.weight
        model.layers.9.self_attn.q_proj.weight model.layers.0.self_attn.q_proj.weight
        adam.m/evil.weight adam.m/model.norm.weight'
}

@test "a checkpoint whose words for its arrays do not go together is refused by all" {
    python3 - "$HERE" "$IN/good.ckpt" <<'PY'
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
m, ts = c.read_ckpt(sys.argv[2], words=False)
h, _ = c.read_ckpt_header(m)
for t in ts:
    t.data = m[t.offset:t.offset + t.nbytes()]
h.pop("arrays")
h["moments"] = "nvfp4"
with open("m.ckpt", "wb") as f:
    f.write(c.ckpt_bytes(ts, h.pop("config"), **h))
PY
    run -1 --separate-stderr datcat --verify m.ckpt
    [[ $stderr == *'m.ckpt: moments "nvfp4" do not go with a master "bf16"'* ]]
    for command in 'generate -q --ids -n 2 -p 1 m.ckpt' 'datpack -q -o x.dat m.ckpt' \
        'nvquant -q -o x.dat m.ckpt' "trainstep -q -d $IN/ids.tok m.ckpt"; do
        # shellcheck disable=SC2086  # words of a command
        run -2 --separate-stderr $command
        [[ $stderr == *'m.ckpt: moments "nvfp4" do not go with a master "bf16"'* ]]
    done
}

@test "a replay refuses a claim with an array that was never trained" {
    trainstep -q -n 1 -d "$IN/ids.tok" -o later.ckpt "$IN/good.ckpt" >/dev/null
    run -0 trainstep --replay 3..4 --from "$IN/good.ckpt" -d "$IN/ids.tok" later.ckpt
    python3 "$HERE/containers.py" forge later.ckpt m.ckpt evil.weight model.norm.weight
    run -2 --separate-stderr trainstep --replay 3..4 --from "$IN/good.ckpt" \
        -d "$IN/ids.tok" m.ckpt
    [[ $stderr == *'m.ckpt: "evil.weight": is not an array of this training'* ]]
    [[ $stderr != *'are equal'* ]]
}

# ---- a .dat and its sidecar ----------------------------------------------------------

@test "a .dat that is not what its sidecar says is refused, alone it is taken" {
    local at
    for at in 9000 30000 45000; do
        rm -f m.dat m.dat.json
        cp "$IN/f16.dat" m.dat
        cp "$IN/f16.dat.json" m.dat.json
        flip m.dat "$at"
        refuse "m.dat: XXH3 of the file is" datpack -q -o x.safetensors m.dat
        [[ $stderr == *"without m.dat.json"* ]]
        refuse "m.dat: XXH3 of the file is" datpack -q --to ckpt -o x.ckpt m.dat
        refuse "m.dat: XXH3 of the file is" datpack -q -o - m.dat
        refuse "m.dat: XXH3 of the file is" nvquant -q -o x.dat m.dat
        refuse "m.dat: XXH3 of the file is" generate -q --ids -n 2 -p '1 2' m.dat
        generate -q --no-verify --ids -n 2 -p '1 2' m.dat >/dev/null
        cp "$IN/config.json" .
        rm m.dat.json
        datpack -q -o x.safetensors m.dat
        generate -q --ids -n 2 -p '1 2' m.dat >/dev/null
        rm x.safetensors config.json
    done
}

# edited: m.dat is nvfp4.dat, beside its sidecar, changed by the Python on standard input.
edited() {
    cp "$IN/nvfp4.dat" m.dat
    cp "$IN/nvfp4.dat.json" m.dat.json
    python3 -c "
raw = bytearray(open('m.dat', 'rb').read())
$(cat)
open('m.dat', 'wb').write(raw)"
}

@test "a flipped bit of an entry's name, type or shape is damage, too" {
    local what
    for what in 'at = raw.find(b"q_proj.weight.scale2") + 19' \
        'at = raw.find(b"model.norm.weight") + 3' \
        'at = raw.find(b"embed_tokens.weight") + 19; raw[at] ^= 11' \
        'at = raw.find(b"down_proj.weight.scale") + 22'; do
        edited <<<"$what; raw[at] ^= 1"
        run -1 datcat -q --verify m.dat
        run -2 --separate-stderr datpack -q --dtype f32 -o x.safetensors m.dat
        [ "${#stderr_lines[@]}" -ge 1 ]
        run -2 --separate-stderr nvquant -q --dequant --dtype f32 -o x.dat m.dat
        run -2 --separate-stderr generate -q --ids -n 2 -p '1 2' m.dat
        [ -z "$output" ]
        [ ! -e x.safetensors ]
        [ ! -e x.dat ]
    done
    # The first is a good file for all who do not ask its sidecar.
    edited <<<'raw[raw.find(b"q_proj.weight.scale2") + 19] ^= 1'
    refuse 'm.dat: XXH3 of the file is' datpack -q --dtype f32 -o x.safetensors m.dat
}

@test "a damaged sidecar is refused; one that fits by its size decides by its hash" {
    local cut
    for cut in 0 60 300; do
        cp "$IN/nvfp4.dat" m.dat
        head -c $cut "$IN/nvfp4.dat.json" >m.dat.json
        refuse 'm.dat.json: the sidecar is damaged' datpack -q --dtype f32 -o x.safetensors m.dat
        refuse 'm.dat.json: the sidecar is damaged' nvquant -q --dequant -o x.dat m.dat
        run -1 datcat --verify m.dat
    done
    edited <<<''
    python3 - <<'PY'
import json
o = json.load(open("m.dat.json"))
o["index_xxh3"] = "0" * 32
json.dump(o, open("m.dat.json", "w"), separators=(",", ":"))
PY
    # The whole file is what its hash says.
    run -0 --separate-stderr datpack -o x.safetensors m.dat
    [[ $stderr == *"m.dat: its entry headers differ from those in its sidecar"* ]]
}

@test "a flipped bit between the arrays of a checkpoint" {
    local at
    at=$(datcat --map "$IN/good.ckpt" | awk -F '\t' '$3 == "zeros" && !n++ { print $1 + 1 }')
    cp "$IN/good.ckpt" m.ckpt
    flip m.ckpt "$at"
    refuse "m.ckpt: byte $at: expected a zero of padding" datpack -q -o x.dat m.ckpt
    refuse "m.ckpt: byte $at: expected a zero of padding" datpack -q -o x.ckpt m.ckpt
    refuse "m.ckpt: byte $at: expected a zero of padding" nvquant -q -o x.dat m.ckpt
    refuse "m.ckpt: byte $at: expected a zero of padding" generate -q --ids -n 2 -p '1 2' m.ckpt
    refuse "m.ckpt: byte $at: expected a zero of padding" \
        trainstep -q -n 2 -d "$IN/ids.tok" -o x.ckpt m.ckpt
}

# bats test_tags=native
@test "between the renames of a .dat and its sidecar: nothing old stands beside the new" {
    local at rc
    datpack -q --init 4 --config "$IN/config.json" --to ckpt -o new.ckpt
    mkdir one two w
    datpack -q --dtype f32 -o one/m.dat "$IN/good.ckpt"
    datpack -q --dtype f32 -o two/m.dat new.ckpt
    cd w
    # A signal at any of them: the old pair or the new one.
    for at in 1 2 3; do
        cp ../one/* .
        paused "rename:$at:stop:$PWD" datpack -q -f --dtype f32 -o m.dat ../new.ckpt
        kill -TERM "$pid"
        rc=0
        kill -CONT "$pid"
        wait "$pid" || rc=$?
        [ "$rc" -eq 143 ] || [ "$rc" -eq 0 ]
        rm out err
        datcat --verify m.dat
        diff -r . ../one || diff -r . ../two
    done
    # Killed there, or an error: never the new file beside the old sidecar.
    for at in 1:kill=9 2:kill=9 3:kill=9 1:EIO 2:EIO 3:EIO; do
        cp ../one/* .
        rc=0
        LD_PRELOAD=$FAILIO_SO FAILIO="rename:$at:$PWD" \
            datpack -q -f --dtype f32 -o m.dat ../new.ckpt || rc=$?
        [ "$at" = 1:EIO ] || [ "$rc" -ne 0 ]
        datcat --verify m.dat
        cmp m.dat ../one/m.dat || cmp m.dat ../two/m.dat
        # Running it again cleans up.
        datpack -q -f --dtype f32 -o m.dat ../new.ckpt
        diff -r . ../two
    done
}

# ---- files that change while they are read -------------------------------------------

# bats test_tags=native
@test "an input that is written to while it is read is no input" {
    cp "$IN/f16.dat" m.dat
    paused "anywrite:3:stop:$PWD" datpack -q -o x.safetensors m.dat
    sleep 0.02 # times of change are as coarse as the kernel's tick
    flip m.dat 9000
    resumed 2 'm.dat: it was written to while being read'
    [ ! -e x.safetensors ]
}

@test "a model that is written to while it answers ends generate" {
    cp "$IN/f16.dat" m.dat
    cp "$IN/config.json" .
    mkfifo prompts
    generate -q --ids -n 2 m.dat <prompts >out 2>err 3>&- &
    # shellcheck disable=SC2034  # for resumed
    pid=$!
    exec 4>prompts
    echo '1 2' >&4
    for _ in {1..1200}; do
        [ ! -s out ] || break
        sleep 0.05
    done
    [ "$(wc -l <out)" -eq 1 ]
    flip m.dat 9000
    echo '1 2' >&4
    exec 4>&-
    resumed 2 'm.dat: it was written to while being read'
}
