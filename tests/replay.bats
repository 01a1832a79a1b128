#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2016,SC2154  # inner shells; output, stderr: set by run
# trainstep --replay: steps are computed again from an earlier checkpoint and compared with what a
# checkpoint claims.  Changed claims are made by containers.py, with right checksums.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN" "$IN/teacher"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    cp config.json teacher
    python3 - <<'PY'
import random
random.seed(2)
for name in "ids", "strange":
    with open(name, "w") as f:
        for _ in range(20):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    local f
    for f in ids strange; do
        tokenize -q --input ids -o $f.tok $f
    done
    datpack -q --init 4 --config config.json -o teacher/model.safetensors
    for f in 3 9; do
        datpack -q --init $f --config config.json --to ckpt -o $f.ckpt
    done
    # A run that was cut at 2, 4 and 6, each of which was kept.
    cp 3.ckpt run.ckpt
    cp 3.ckpt run.ckpt.step0
    for f in 2 4 6; do
        learn --until $f --spike 50 run.ckpt
        cp run.ckpt run.ckpt.step$f
    done
    learn -n 1 run.ckpt
}

# learn OPTION... CKPT: quiet training on the usual samples.
learn() { trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 "$@" >/dev/null; }

# replay OPTION... CKPT: on the same samples, with the table elsewhere.
replay() { trainstep -q -d "$IN/ids.tok" "$@" >table; }

# here FILE...: copies of these.
here() {
    local f
    for f; do cp "$IN/$f" .; done
}

# differs WORDS COMMAND...: the answer is no, in one line with WORDS.
differs() {
    run -1 --separate-stderr "${@:2}"
    [ "${#stderr_lines[@]}" -eq 1 ]
    [[ $stderr == *"$1"* ]] || { echo "$stderr" && false; }
}

# change IN OUT STATEMENT...: Python on the header h and the arrays a, lists of bytes; the
# checksums of the result are right.
change() {
    python3 - "$@" <<'PY'
import sys
import containers as c
raw = open(sys.argv[1], "rb").read()
h = c.unpack(raw[64:64 + int.from_bytes(raw[24:32], "little")])
a = [bytearray(raw[x["offset"]:x["offset"] + x["nbytes"]]) for x in h["arrays"]]
for statement in sys.argv[3:]:
    exec(statement)
for x, data in zip(h["arrays"], a):
    x["xxh3"] = c.xxh3_128(bytes(data))
total = c.ckpt_place(h)
with open(sys.argv[2], "wb") as f:
    f.write(c.ckpt_seal(c.pack(h), [(x["offset"], d) for x, d in zip(h["arrays"], a)], total))
PY
    datcat -q --verify "$2"
}

@test "the steps of a run lead to it, however it was cut, and nothing is written" {
    here run.ckpt run.ckpt.step{0,2,4,6}
    before=$(sha256sum run.ckpt*)
    local range steps
    for range in 0..2 2..4 0..6 2..7 6..7; do
        run -0 --separate-stderr trainstep -d "$IN/ids.tok" --replay $range run.ckpt
        # A row a step.
        [ "${#lines[@]}" -eq $((1 + ${range#*..} - ${range%..*})) ]
        steps="steps $((${range%..*} + 1))..${range#*..} from run.ckpt.step${range%..*} lead"
        [ $range != 6..7 ] || steps='step 7 from run.ckpt.step6 leads'
        [[ ${stderr##*$'\n'} == *": $steps to it: all 120 arrays, state and record are equal" ]]
        quiet replay --replay $range run.ckpt
    done
    [ "$(sha256sum run.ckpt*)" = "$before" ]
    [ "$(ls)" = "$(printf '%s\n' run.ckpt run.ckpt.step{0,2,4,6} table)" ]
    # The losses are those of the run.
    trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 --spike 50 -n 2 -o again.ckpt run.ckpt.step2 | cut -f 2,5 >want
    replay --replay 2..4 run.ckpt
    cut -f 2,5 table | diff want -
}

@test "the earlier checkpoint by its name, samples from a pipe, other threads and ranges of rows" {
    here run.ckpt
    quiet replay --replay 0..7 --from "$IN/3.ckpt" run.ckpt
    quiet replay --replay 4..7 --from "$IN/run.ckpt.step4" -j 1 --chunk-rows 3 --recompute block run.ckpt
    run -0 --separate-stderr bash -c 'trainstep --replay 4..7 --from "$1/run.ckpt.step4" run.ckpt \
        <"$1/ids.tok" >table' bash "$IN"
    [[ $stderr == *"lead to it"* ]]
    # What took the time: both checkpoints are read, the claim is compared.
    run -0 --separate-stderr trainstep -v -d "$IN/ids.tok" --replay 4..7 --from "$IN/run.ckpt.step4" run.ckpt
    local words
    for words in 'run.ckpt: verified' 'run.ckpt.step4: loaded' 'run.ckpt: compared'; do
        grep -Eq "$words [0-9.]+ GB in [0-9.]+ s$" <<<"$stderr"
    done
}

@test "a changed weight is found, and named with its first element" {
    here run.ckpt run.ckpt.step6
    change run.ckpt bad.ckpt 'a[3][6] ^= 1' # bf16: element 3
    name=$(datcat -l --raw-entries run.ckpt | sed -n 4p)
    cp run.ckpt.step6 bad.ckpt.step6
    differs "bad.ckpt: step 7 from bad.ckpt.step6 does not lead to it: array \"$name\": element 3: the replay has " \
        replay --replay 6..7 bad.ckpt
    [[ $stderr == *" (0x"*", the checkpoint "*" (0x"*"; 1 of 120 arrays differ" ]]
    # The values are those that datcat decodes.
    for f in run bad; do
        datcat --values "$name:4" $f.ckpt | tail -n 1 >$f.value
    done
    [[ $stderr == *"replay has $(cat run.value) ("*"checkpoint $(cat bad.value) ("* ]]
}

@test "a change of any array, of the state and of the record is found" {
    here run.ckpt run.ckpt.step6
    cp run.ckpt.step6 bad.ckpt.step6
    local at n name
    n=$(datcat -l --raw-entries run.ckpt | wc -l)
    [ "$n" -eq 120 ]
    for at in $(seq 0 11 $((n - 1))); do
        change run.ckpt bad.ckpt "a[$at][-1] ^= 16"
        differs "array \"$(datcat -l --raw-entries run.ckpt | sed -n $((at + 1))p)\": element " \
            replay --replay 6..7 bad.ckpt
    done
    change run.ckpt bad.ckpt 'a[0][0] ^= 1' 'a[50][0] ^= 1' 'a[119][0] ^= 1'
    name=$(datcat -l --raw-entries run.ckpt | sed -n 1p)
    for n in 1 2 7; do
        differs "array \"$name\": element 0: the replay has " replay -j $n --replay 6..7 bad.ckpt
        [[ $stderr == *"; 3 of 120 arrays differ" ]]
    done
    change run.ckpt bad.ckpt 'h["state"]["grad_norm"] += 1'
    differs "all arrays are equal, but not the training state: the last gradient norm differs" \
        replay --replay 6..7 bad.ckpt
    change run.ckpt bad.ckpt 'h["state"]["sampler"]["index"] = 0'
    differs "not the training state: the place in the data differs" replay --replay 6..7 bad.ckpt
    change run.ckpt bad.ckpt 'h["state"]["t"] -= 1'
    differs "not the training state: the count of updates differs" replay --replay 6..7 bad.ckpt
    # A better learning rate than there was: the record alone, and with it the settings.
    change run.ckpt bad.ckpt 'h["provenance"] = h["provenance"].replace("\"lr\":0.01", "\"lr\":0.02")'
    differs "not the record of how it was made" replay --replay 6..7 bad.ckpt
    change run.ckpt bad.ckpt 'h["state"]["settings"]["lr"] = .02' \
        'h["provenance"] = h["provenance"].replace("\"lr\":0.01", "\"lr\":0.02")'
    differs "array " replay --replay 6..7 bad.ckpt
}

@test "a claim of steps that were never taken is found" {
    # Weights of another training under the record of this one.
    learn -n 7 -o other.ckpt --seed 5 "$IN/3.ckpt"
    cp "$IN/run.ckpt" .
    change run.ckpt bad.ckpt 'o = open("other.ckpt", "rb").read()' \
        'g = c.unpack(o[64:64 + int.from_bytes(o[24:32], "little")])["arrays"]' \
        'a[:] = [bytearray(o[x["offset"]:x["offset"] + x["nbytes"]]) for x in g]'
    differs "3.ckpt do not lead to it: array" replay --replay 0..7 --from "$IN/3.ckpt" bad.ckpt
}

@test "a damaged claim is no answer but trouble" {
    here run.ckpt run.ckpt.step6
    python3 - <<'PY'
with open("run.ckpt", "r+b") as f:
    f.seek(-1, 2)
    b = f.read(1)[0]
    f.seek(-1, 1)
    f.write(bytes([b ^ 1]))
PY
    refuse "run.ckpt: byte" trainstep -q -d "$IN/ids.tok" --replay 6..7 run.ckpt
}

@test "ranges that cannot be replayed are refused with those that can" {
    here run.ckpt run.ckpt.step{2,4,6}
    local range
    for range in 6..4 4..4 4 ..4 4.. 4...6 -1..4 4..x 0..4294967296 18446744073709551616..2 ''; do
        refuse "--replay: $range: want A..B, the steps of two checkpoints, A below B" \
            trainstep -d "$IN/ids.tok" --replay="$range" run.ckpt
    done
    refuse "run.ckpt: is at step 7: expected step 5, or a checkpoint of that step as run.ckpt.step5; --replay 2..7 ends" \
        trainstep -d "$IN/ids.tok" --replay 2..5 run.ckpt
    refuse "run.ckpt: is at step 7: expected step 9 * --replay 0..7" trainstep -d "$IN/ids.tok" --replay 8..9 run.ckpt
    refuse "run.ckpt.step3: is not there: expected a checkpoint of step 3 * --from" \
        trainstep -d "$IN/ids.tok" --replay 3..7 run.ckpt
    refuse "run.ckpt.step2: is at step 2: expected step 4" \
        trainstep -d "$IN/ids.tok" --replay 4..7 --from run.ckpt.step2 run.ckpt
    mv run.ckpt.step2 run.ckpt.step5
    refuse "run.ckpt.step5: is at step 2: expected step 5" trainstep -d "$IN/ids.tok" --replay 4..5 run.ckpt
    refuse "--from: goes with --replay" trainstep -d "$IN/ids.tok" --from run.ckpt.step4 run.ckpt
    for o in --lr=1 --seed=1 --batch=2 --train-last-layers=1; do
        refuse "takes the settings of the steps from CHECKPOINT: expected no ${o%=*}" \
            trainstep -d "$IN/ids.tok" --replay 6..7 $o run.ckpt
    done
    for o in -n1 --until=9 --output=x.ckpt --log=x --save-every=1 --dry-run --dump=x --force; do
        refuse "--replay: repeats steps and writes nothing" trainstep -d "$IN/ids.tok" --replay 6..7 $o run.ckpt
    done
}

@test "other settings, data, teacher, route or version than before: refused, with the way out" {
    here run.ckpt run.ckpt.step{4,6}
    refuse "strange.tok: other data than run.ckpt was trained on * expected $(tail -c 16 "$IN/ids.tok" | od -An -tx1 | tr -d ' \n')" \
        trainstep -q -d "$IN/strange.tok" --replay 6..7 run.ckpt
    refuse 'run.ckpt: was computed by "cpu f32 * here it would be by "cpu bf16 * --compute' \
        trainstep -q -d "$IN/ids.tok" --compute bf16 --replay 6..7 run.ckpt
    refuse "run.ckpt: was trained without a teacher: leave --teacher out" \
        trainstep -q -d "$IN/ids.tok" --teacher "$IN/teacher" --replay 6..7 run.ckpt
    change run.ckpt bad.ckpt 'h["provenance"] = h["provenance"][:-3] + "9" + h["provenance"][-2:]'
    refuse "bad.ckpt: was written by version * this is * replay it with that version" \
        trainstep -q -d "$IN/ids.tok" --replay 6..7 --from run.ckpt.step6 bad.ckpt
    # Of another training, at the right step.
    learn -n 6 -o six.ckpt "$IN/9.ckpt"
    refuse "six.ckpt: is of another training than run.ckpt" \
        trainstep -q -d "$IN/ids.tok" --replay 6..7 --from six.ckpt run.ckpt
    datpack -q --init 3 --config "$IN/config.json" --to ckpt --quant none -o none.ckpt
    refuse "none.ckpt: has another configuration, quantizer or optimizer" \
        trainstep -q -d "$IN/ids.tok" --replay 0..7 --from none.ckpt run.ckpt
    refuse "x.dat: not a checkpoint" bash -c 'datpack -q -o x.dat run.ckpt && trainstep -q --replay 0..7 x.dat; s=$?; rm x.dat*; exit $s'
    refuse "3.ckpt: is at step 0: expected step 1" trainstep -q -d "$IN/ids.tok" --replay 0..1 "$IN/3.ckpt"
}

@test "a change of settings divides a run: the steps behind it are replayed from there" {
    here run.ckpt.step6
    cp run.ckpt.step6 m.ckpt
    cp run.ckpt.step6 m.ckpt.step6
    learn -n 2 --lr 1e-3 m.ckpt
    cp m.ckpt m.ckpt.step8
    trainstep -q -d "$IN/strange.tok" -n 2 m.ckpt >/dev/null
    quiet replay --replay 6..8 m.ckpt
    trainstep -q -d "$IN/strange.tok" --replay 8..10 m.ckpt >table
    refuse "m.ckpt: steps 7..8 had other settings, data or route than what follows: expected --replay 8..10, with a checkpoint of step 8" \
        trainstep -q -d "$IN/strange.tok" --replay 6..10 m.ckpt
}

@test "with a teacher, and packed moments" {
    learn -n 3 --teacher "$IN/teacher" -o t.ckpt "$IN/3.ckpt"
    quiet replay --replay 0..3 --from "$IN/3.ckpt" --teacher "$IN/teacher" t.ckpt
    refuse "t.ckpt: was trained with a teacher: name the one of hash * by --teacher" \
        trainstep -q -d "$IN/ids.tok" --replay 0..3 --from "$IN/3.ckpt" t.ckpt
    refuse "t.ckpt: was trained with another teacher" trainstep -q -d "$IN/ids.tok" --replay 0..3 \
        --from "$IN/3.ckpt" --teacher "$IN/9.ckpt" t.ckpt
    datpack -q --compat torchsharp --init 3 --config "$IN/config.json" --to ckpt -o p.ckpt
    trainstep -q -d "$IN/ids.tok" --compat torchsharp -n 2 -o q.ckpt p.ckpt >/dev/null
    quiet replay --compat torchsharp --replay 0..2 --from p.ckpt q.ckpt
}

# bats test_tags=native,nosan
@test "a stopped replay has no answer" {
    cp "$IN/3.ckpt" m.ckpt
    trainstep -q -d "$IN/ids.tok" -n 20000 -o long.ckpt m.ckpt >/dev/null
    trainstep -d "$IN/ids.tok" --replay 0..20000 --from m.ckpt long.ckpt >table 2>err &
    pid=$!
    until grep -q '^2	' table; do sleep .05; done
    kill -TERM $pid
    status=0
    wait $pid || status=$?
    [ "$status" -eq 143 ]
    run ! grep 'lead to it' err
    [ "$(ls)" = "$(printf '%s\n' err long.ckpt m.ckpt table)" ]
}

# audit DIR: the measurement of a replay, in a directory of DIR; its rows are in rows.csv.
audit() {
    rm -f rows.csv
    run -0 --separate-stderr env DEVICE=cpu STEPS=4 AUDIT=2x16 CONFIG="$IN/config.json" \
        "$HERE/../bench/gpu.sh" -o rows.csv -d "$1" audit
    [ -z "$stderr" ] || { echo "$stderr" && false; }
    run ! grep failed rows.csv
    # What was trained and what was kept is gone.
    [ "$(ls)" = rows.csv ]
}

# bats test_tags=native
@test "the measurement of a replay runs without a GPU, cold where pages leave the cache" {
    local rows='grep -c ,audit,replay.of.a.step.*,s$ rows.csv' cold='grep -c ,audit,replay..cold:.not.run rows.csv'
    audit .
    # Four rows a replay: the first, one in the page cache, one that is cold.
    if [ "$($rows)" -ne 12 ]; then
        [ "$($rows)" -eq 8 ]
        [ "$($cold)" -eq 1 ]
    fi
    # A tmpfs keeps its pages.
    if [ "$(stat -f -c %T /dev/shm)" = tmpfs ] && [ -w /dev/shm ]; then
        audit /dev/shm
        [ "$($rows)" -eq 8 ]
        [ "$($cold)" -eq 1 ]
    fi
    # Other parts need a GPU.
    run -77 env DEVICE=cpu "$HERE/../bench/gpu.sh" -d . train
}
