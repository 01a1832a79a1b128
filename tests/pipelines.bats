#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# The experiments of pipelines/ that measure and compare, on a random model: each at a small
# setting says what it must, and each says no when something is wrong.

# shellcheck disable=SC2154  # output: set by run

# bats file_tags=native
load common

setup_file()
{
    model=$BATS_FILE_TMPDIR/model
    export model
    sed 's/"num_hidden_layers":4/"num_hidden_layers":2/' "$root/pipelines/demo/config.json" \
        >"$BATS_FILE_TMPDIR/config.json"
    datpack -q --init 5 --config "$BATS_FILE_TMPDIR/config.json" -o "$model/"
    cp "$root/pipelines/demo/tokenizer.json" "$model"
    head -n 40 "$root/pipelines/demo/pretrain.tsv" >"$BATS_FILE_TMPDIR/text.tsv"
}

setup()
{
    cd "$BATS_TEST_TMPDIR" || return
    out=$BATS_TEST_TMPDIR/out
}

# experiment NAME SETTING...: make it, quietly, one thread.
experiment()
{
    local name=$1
    shift
    make -s -C "$root/pipelines/$name" OUT="$out" MODEL="$model" THREADS=1 "$@"
}

# killed_after N: a directory of programs, of which trainstep is killed after step N.
killed_after()
{
    local dir=$BATS_TEST_TMPDIR/killed
    mkdir -p "$dir"
    ln -sf "$NIBBLE_BIN"/* "$dir"
    rm "$dir/trainstep"
    cat >"$dir/trainstep" <<END
#!/bin/bash
for ((i = 1; i < \$#; i++)); do
    [ "\${!i}" != --until ] || set -- "\${@:1:i}" $1 "\${@:i + 2}"
done
"$NIBBLE_BIN/trainstep" "\$@"
kill -9 \$\$
END
    chmod +x "$dir/trainstep"
    echo "$dir"
}

# column NAME: that column of the table, without its head.
column()
{
    awk -F '\t' -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i }
        NR > 1 { print $c }' "$out/table.tsv"
}

@test "all experiments say what can be set, and refuse what cannot be" {
    for e in quantizers resume memory parity distill quality; do
        run -0 experiment $e help
        [[ $output == *"  all "* && $output == *"  MODEL "* ]]
        run -2 experiment $e MODEL="$root/doc"
        [[ $output == *"MODEL=$root/doc: no config.json is there"*'; hf download '* ]]
        run -2 experiment $e model=x
        [[ $output == *'model=: settings have capitals: want MODEL='* ]]
    done
    run -2 experiment quantizers QUANTIZERS='sweep round'
    run -2 experiment quantizers RUNS=0
    run -2 experiment resume CUTS=9 STEPS=9
    run -2 experiment memory CASES=1.1
    run -2 experiment parity DEVICES=cuda
    for s in 'distill TEXT=' 'distill HELDOUT=' 'quality TEXT=' 'quality HELDOUT=' 'quality ROWS=' 'distill TOKENIZER='; do
        run -2 experiment "${s%% *}" "${s#* }" </dev/null
        [[ $output == *"${s:8:4}"*" is empty"* ]]
    done
    run -2 experiment distill TOKENIZER=nosuch.json
    [[ $output == *'TOKENIZER=nosuch.json: no such file'* ]]
    run -2 experiment quality TEXT=x.tok
    run -2 experiment quality HELDOUT="it's.tsv"
    [[ $output == *'want a name without quote'* ]]
    run -2 experiment distill QUANT=sweep1
    run -2 experiment distill DISTILL=2
    run -2 experiment distill HELDOUT=nosuch.tsv
    run -2 experiment quality ROWS='sweep round'
    run -2 experiment quality HELDOUT="$BATS_FILE_TMPDIR/text.tsv text.tsv"
    for s in 'resume CUTS=999999999' 'memory BATCH=4294967295' 'quantizers RUNS=5000' 'kvcache CHUNKS=0' \
        'kvcache LENGTHS=' 'distill STEPS=0' 'quality CALIBRATIONS=0' 'chat ANSWER=99999999999' 'needle SAMPLES=0' 'study SEEDS=0' 'kvcache JOBS=1025'; do
        run -2 experiment "${s%% *}" "${s#* }"
        [[ $output == *"${s#* }: want "*"whole number"*" from 1 to "* ]]
    done
    [ ! -e "$out/table.tsv" ]
}

@test "without a model of one's own the small one is made first, whatever is asked for" {
    for e in quantizers resume memory parity kvcache chat distill quality; do
        run -0 make -n -C "$root/pipelines/$e" OUT="$out" TINY="$PWD/tiny"
        [[ $output == *"pipelines/tiny.sh '$PWD/tiny'"* ]]
    done
}

@test "quantizers: the model itself first, then the nearest first" {
    run -0 experiment quantizers QUANTIZERS='max sweep native' SAMPLES=12 \
        TEXT="$BATS_FILE_TMPDIR/text.tsv"
    [ "$(column quantizer | head -n 1)" = none ]
    [ "$(column quantizer | wc -l)" -eq 4 ]
    # The same model gives the same logits, another does not.
    [ "$(column kl | head -n 1)" = 0 ]
    column kl | sort -g -c
    column kl | awk 'NR > 1 && $1 <= 0 { exit 1 }'
    # 4 bits and 8 for 16, and one more scale for the tensor.
    [ "$(awk -F '\t' '$1 == "native" { print $6 }' "$out/table.tsv")" = 4.5000 ]
    # Normal weights: what README says of sweep and max.
    awk -F '\t' '$1 == "sweep" && ($7 < 21.7 || $7 > 21.9) || $1 == "max" && ($7 < 20.3 || $7 > 20.6) {
        exit 1 }' "$out/table.tsv"
}

@test "quantizers: a row that is there stays, a setting that changes makes all again" {
    small=(QUANTIZERS=max SAMPLES=4 "TEXT=$BATS_FILE_TMPDIR/text.tsv")
    experiment quantizers "${small[@]}" >first
    touch mark
    # What a killed run leaves does not count.
    echo half >out/rows/max.tsv.part
    rm out/table.tsv
    experiment quantizers "${small[@]}" >second
    cmp first second
    [ ! out/rows/max.tsv -nt mark ]
    experiment quantizers "${small[@]}" SAMPLES=5 >/dev/null
    [ out/rows/max.tsv -nt mark ]
}

@test "resume: cut, stopped and killed runs end as the whole one" {
    run -0 experiment resume STEPS=4 CUTS=2 STOPS=1 BATCH=2 \
        CASES="cut.1 cut.2 threads.1 saves.2 control.1 damage.1 term.1 kill.1"
    [[ $output == *"16 of 16 as they must be" ]]
    [ "$(column checkpoint | grep -c equal)" -eq 12 ]
}

@test "resume: a second part that is not the same run is seen" {
    run -2 experiment resume STEPS=4 CUTS=2 STOPS=1 BATCH=2 CASES=cut.1 SECOND='--lr 2e-3'
    [[ $output == *"not as it must be: usual cut 1: differs"* ]]
    [[ $output == *"0 of 2 as they must be"* ]]
}

# bats test_tags=nosan
@test "memory: plans are kept, a run has all its phases" {
    cases='8.16.1.bf16.int8.sweep.none.global 8.16.1.bf16.int8.sweep.block.prev'
    run -0 experiment memory BATCH=8 LENGTH=16 CASES="$cases"
    [[ $output == *"2 of 2 plans were kept" ]]
    for phase in start model_loaded batch_ready zero_grad_done backward_done optimizer_step_done; do
        [ "$(grep -c "	$phase	" "$out/phases.tsv")" -ge 2 ]
    done
    [ "$(grep -c '	total	' "$out/plans.tsv")" -eq 2 ]
    # Of so small a model a plan is not exact: it has room for buffers of saving.
    run -2 experiment memory BATCH=8 LENGTH=16 CASES="$cases" TOLERANCE=1 SLACK=1
    [[ $output == *"0 of 2 plans were kept"* ]]
}

@test "parity: containers of the same values are equal to the bit" {
    run -0 experiment parity ISAS=auto
    [[ $output == *" of "*" runs are as they must be" ]]
    # 25 containers with one and two threads, and that other values are seen, three times.
    [ "$(column is_so | grep -cx yes)" -eq 53 ]
    [ "$(column must_be | grep -cx other)" -eq 3 ]
}

@test "parity: damage and another quantizer are seen" {
    datpack -q -o damaged.safetensors "$model"
    at=$(datcat --tsv damaged.safetensors |
        awk -F '\t' '$1 == "model.layers.1.mlp.up_proj.weight" { print $4 }')
    # The last bit of one weight.
    byte=$(od -An -tu1 -j "$at" -N 1 damaged.safetensors)
    printf '%b' "\\x$(printf %x $((byte ^ 1)))" |
        dd of=damaged.safetensors bs=1 seek="$at" conv=notrunc status=none
    nvquant -q --quant max --tie -o max.dat "$model"
    small=(JOBS=1 ISAS=auto MEMBERS='bf16.directory nvfp4.dat')
    run -0 experiment parity "${small[@]}" ALSO="bf16=$model"
    run -2 experiment parity "${small[@]}" \
        ALSO="bf16=$PWD/damaged.safetensors nvfp4=$PWD/max.dat"
    [[ $output == *"3 of 5 runs are as they must be"* ]]
    # Layer 0 is as it was, layer 1 is not.
    [ "$(awk -F '\t' '$2 == "also-1" { print $7 }' "$out/table.tsv")" = 1 ]
    [ "$(awk -F '\t' '$2 == "also-2" { print $7 }' "$out/table.tsv")" = 0 ]
    # A file that no reader takes ends it, too.
    printf 'no model' >none.safetensors
    run -2 experiment parity "${small[@]}" ALSO="bf16=$PWD/none.safetensors"
}

@test "parity: a layer that is spoiled is named, with mean abs and cosine; top tokens have a text" {
    datpack -q --dtype f32 -o plain.safetensors "$model"
    python3 - <<'PY'
import array, json, struct
whole = open("plain.safetensors", "rb").read()
n = struct.unpack_from("<Q", whole)[0]
for layer in (0, 1):
    begin, end = json.loads(whole[8:8 + n])["model.layers.%d.mlp.down_proj.weight" % layer]["data_offsets"]
    values = array.array("f", whole[8 + n + begin:8 + n + end])
    spoiled = array.array("f", [-x for x in values]).tobytes()
    with open("spoiled%d.safetensors" % layer, "wb") as f:
        f.write(whole[:8 + n + begin] + spoiled + whole[8 + n + end:])
PY
    run -2 experiment parity JOBS=1 ISAS=auto MEMBERS='bf16.directory bf16.f32' \
        ALSO="bf16=$PWD/spoiled0.safetensors bf16=$PWD/spoiled1.safetensors"
    [[ $output == *"2 of 4 runs are as they must be"* ]]
    python3 - "$out" "$model/tokenizer.json" <<'PY'
import csv, json, math, struct, sys
out = sys.argv[1]
def rows(name):
    return list(csv.DictReader(open(out + "/" + name), delimiter="\t", quoting=csv.QUOTE_NONE))
def tensors(container, what):
    data = open("%s/runs/bf16.%s/cpu.1.auto.%s" % (out, container, what), "rb").read()
    n = struct.unpack_from("<Q", data)[0]
    return {k: struct.unpack_from("<%df" % ((v["data_offsets"][1] - v["data_offsets"][0]) // 4), data,
                                  8 + n + v["data_offsets"][0])
            for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}
table = {r["container"]: r for r in rows("table.tsv")}
assert [table[c]["first_bad"] for c in ("directory", "f32", "also-1", "also-2")] == ["-", "-", "0", "1"], table
assert (table["f32"]["mean_abs"], table["f32"]["cosine"]) == ("0", "1")
layers = rows("layers.tsv")
for container in ("also-1", "also-2"):
    mine = [r for r in layers if r["container"] == container]
    assert [r["layer"] for r in mine] == ["0", "1", "logits"]
    a, b = tensors(container, "hidden"), tensors("directory", "hidden")
    means, cosines = [], []
    for i in (0, 1):
        x, y = a["hidden.%d" % i], b["hidden.%d" % i]
        mean = sum(abs(p - q) for p, q in zip(x, y)) / len(x)
        cosine = sum(p * q for p, q in zip(x, y)) / math.hypot(*x) / math.hypot(*y)
        assert math.isclose(float(mine[i]["mean_abs"]), mean, rel_tol=5e-3), (mine[i], mean)
        assert math.isclose(float(mine[i]["cosine"]), cosine, abs_tol=1e-8), (mine[i], cosine)
        means.append(mean)
        cosines.append(cosine)
    assert math.isclose(float(table[container]["mean_abs"]), max(means), rel_tol=5e-3)
    assert math.isclose(float(table[container]["cosine"]), min(cosines), abs_tol=1e-8)
assert float(layers[3]["mean_abs"]) == 0 and float(layers[3]["cosine"]) == 1, layers[3]
# The top ten of the first and of what differs from it, with the text of each.
t = json.load(open(sys.argv[2]))
text = {i: s.replace("\u0120", " ").replace("\u010a", "\n") for s, i in t["model"]["vocab"].items()}
text.update((a["id"], a["content"]) for a in t["added_tokens"])
top = rows("top.tsv")
assert [r["container"] for r in top[::10]] == ["directory", "also-1", "also-2"] and len(top) == 30
for r in top:
    logits = tensors(r["container"], "logits")["logits"]
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[int(r["rank"]) - 1]
    assert int(r["id"]) == best and math.isclose(float(r["logit"]), logits[best], rel_tol=1e-6), r
    assert json.loads(r["text"]) == text[best] or not text[best].isascii(), r
PY
}

# cell ROW COLUMN: of the table of distances.
cell()
{
    awk -F '\t' -v row="$1" -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i; next }
        $1 == row { print $c }' "$out/evaluate.tsv"
}

@test "distill: the 4-bit model comes nearer to the one that teaches it, killed or not" {
    local how=(TEXT="$BATS_FILE_TMPDIR/text.tsv" HELDOUT="$BATS_FILE_TMPDIR/text.tsv" STEPS=12 BATCH=4 LR=1e-4)
    run -0 experiment distill "${how[@]}"
    [ "$(cut -f 1 "$out/evaluate.tsv" | tr '\n' ' ')" = 'model model quantized distilled ' ]
    [ "$(cell model kl)" = 0 ]
    awk -v q="$(cell quantized kl)" -v d="$(cell distilled kl)" 'BEGIN { exit !(0 < d && d < q) }'
    # What was written is what was measured.
    generate -q --score "$out/heldout.tok" --kl-model "$model" "$out/distilled" | tail -n 1 >score
    [ "$(cut -f 6 score)" = "$(cell distilled kl)" ]
    [ "$(wc -l <"$out/train.jsonl")" -eq 12 ]
    grep -q distilled "$out/report.html"
    cp "$out/distilled.ckpt" whole.ckpt
    # Killed and started again: the same bytes.
    rm "$out/distilled.ckpt" "$out/training.ckpt"
    run ! experiment distill "${how[@]}" SAVE=5 BIN="$(killed_after 5)" "$out/distilled.ckpt"
    [ ! -e "$out/distilled.ckpt" ]
    [ "$(datcat --json "$out/training.ckpt" | json "d['meta']['state']['step']")" = 5 ]
    run -0 experiment distill "${how[@]}" SAVE=5
    cmp whole.ckpt "$out/distilled.ckpt"
    # Nothing is left to do; another setting is something to do.
    touch stamp
    run -0 experiment distill "${how[@]}" SAVE=5
    [ ! "$out/distilled.ckpt" -nt stamp ]
    run -0 experiment distill "${how[@]}" SEED=2
    run ! cmp -s whole.ckpt "$out/distilled.ckpt"
}

@test "quality: a row of each way, the model itself first, then the nearest" {
    cp "$BATS_FILE_TMPDIR/text.tsv" one.tsv
    head -n 9 one.tsv >two.tsv
    run -0 experiment quality TEXT="$PWD/one.tsv" HELDOUT="$PWD/one.tsv $PWD/two.tsv" STEPS=4 BATCH=4 LR=1e-4 \
        CALIBRATION=6 CALIBRATIONS=2 SEEDS='1 2' ROWS='sweep max sweep-down sweep-weighted sweep-hessian sweep-distilled max-tuned'
    [ "$(awk 'NR > 1 { print $1 }' "$out/evaluate.tsv" | head -n 1)" = model ]
    [ "$(cut -f 1 "$out/evaluate.tsv" | sort | tr '\n' ' ')" = \
        'max max-tuned.1 max-tuned.2 model row sweep sweep-distilled.1 sweep-distilled.2 sweep-down sweep-hessian.1 sweep-hessian.2 sweep-weighted.1 sweep-weighted.2 ' ]
    awk 'NR > 2 { print $4 }' "$out/evaluate.tsv" | sort -g -c
    awk 'NR > 2 && $4 <= 0 { exit 1 }' "$out/evaluate.tsv"
    [ "$(cell sweep-distilled.2 samples)" = 16 ]
    awk -v b="$(cell sweep-down bits)" 'BEGIN { exit !(6 < b && b < 9) }'
    # Another row is made and another one left out; nothing else is made again.
    cp -p "$out/rows/sweep.tsv" sweep.tsv
    run -0 experiment quality TEXT="$PWD/one.tsv" HELDOUT="$PWD/one.tsv $PWD/two.tsv" STEPS=4 BATCH=4 LR=1e-4 \
        CALIBRATION=6 ROWS='sweep sweep-hessian max-distilled'
    [ "$(cut -f 1 "$out/evaluate.tsv" | sort | tr '\n' ' ')" = 'max-distilled.1 model row sweep sweep-hessian.1 ' ]
    [ ! "$out/rows/sweep.tsv" -nt sweep.tsv ]
    # Other texts, other scales; another order, another model.
    run ! cmp -s "$out/models/sweep-weighted.1.safetensors" "$out/models/sweep-weighted.2.safetensors"
    run ! cmp -s "$out/models/sweep-distilled.1.ckpt" "$out/models/sweep-distilled.2.ckpt"
    # The mean over the domains is weighted by their targets.
    for d in one two; do generate -q --score "$out/heldout/$d.tok" --kl-model "$model" "$out/models/sweep.safetensors" |
        tail -n 1; done >scores
    awk -F '\t' -v kl="$(cell sweep kl)" '{ n += $3; s += $3 * $6 } END { d = s / n - kl; exit !(d * d < 1e-10 * kl * kl) }' scores
    [ "$(cell sweep kl_two)" = "$(tail -n 1 scores | cut -f 6)" ]
    [ ! -s "$out/quality.svg" ] || grep -q '</svg>' "$out/quality.svg"
}

@test "base: the small variant is the same twice, is scored, and its hash is judged" {
    small=(SMALL=1 STEPS=4 WARMUP=1 BATCH=2 T=64)
    run -0 experiment base "${small[@]}"
    [[ $output == *manual*docs*code*checkpoint*cpu* ]]
    # Four steps from random weights: not far from 1024, the size of the vocabulary.
    awk -F '\t' 'NR > 1 && !($5 > 100 && $5 < 2000 && $6 > 4) { exit 1 }' "$out/heldout.tsv"
    [ "$(wc -l <"$out/heldout.tsv")" -eq 4 ]
    make -s -C "$root/pipelines/base" OUT="$PWD/again" THREADS=2 "${small[@]}" >/dev/null
    for f in base.hash heldout.tsv base.ckpt train.tok model/model.safetensors; do
        cmp "$out/$f" "again/$f"
    done
    # Expected, another one, and one of another corpus, which is not judged.
    { printf 'variant\twhat\tdevice\thash\n'; tail -n +2 again/base.hash | sed 's/^/small\t/'; } >expected
    judge=(awk -F '\t' -v variant=small -f "$root/pipelines/base/check.awk")
    run -0 "${judge[@]}" expected "$out/base.hash"
    [ "${#lines[@]}" -eq 4 ]
    [[ ${lines[3]} == "small: checkpoint: as expected" ]]
    sed '/^checkpoint/s/.$/x/' "$out/base.hash" >bad
    run -1 "${judge[@]}" expected bad
    sed '/^c/s/.$/x/' "$out/base.hash" >other
    run -0 "${judge[@]}" expected other
    [[ $output == *"checkpoint: not compared"* ]]
}

@test "base: an archive of a corpus has the same bytes twice and gives the same text" {
    corpus=$root/pipelines/base/corpus.py
    "$corpus" --small "$root" text
    "$corpus" --pack text "$model/tokenizer.json" one.tar.xz
    "$corpus" --unpack one.tar.xz copy
    "$corpus" --pack copy copy/tokenizer.json two.tar.xz
    cmp one.tar.xz two.tar.xz
    for f in text/*; do
        cmp "$f" "copy/${f##*/}"
    done
    # What is held out of it is not in what is trained on.
    run -1 grep -qxFf text/heldout.docs.jsonl text/train.jsonl
    printf 'x' >x
    python3 -c 'import tarfile; tarfile.open("none.tar.xz", "w:xz").add("x")'
    run -2 "$corpus" --unpack none.tar.xz none
    [[ $output == *"it is not of --pack"* ]] && [ ! -e none ]
}
