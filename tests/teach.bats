#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr: set by run
# trainstep --teacher: a model learns from the logits of another one.  Gradients are compared
# with float64 by golden.py --distill and with finite differences by unit/net.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN" "$IN/other"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    python3 - <<'PY'
import random
random.seed(7)
for name, rows in ("ids", 24), ("held", 6):
    with open(name, "w") as f:
        for _ in range(rows):
            print(*[random.randrange(97) for _ in range(random.randrange(3, 18))], file=f)
PY
    local f
    for f in ids held; do
        tokenize -q --input ids -o $f.tok $f
    done
    datpack -q --init 3 --config config.json -o student.safetensors
    datpack -q --quant sweep --to ckpt -o small.ckpt student.safetensors
    datpack -q --to ckpt --quant none --master f32 --moments f32 -o plain.ckpt student.safetensors
    # Another shape, the same vocabulary.
    sed -e 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 1/' \
        -e 's/"intermediate_size": [0-9]*/"intermediate_size": 48/' config.json >other/config.json
    datpack -q --init 9 --config other/config.json -o other/model.safetensors
}

# learn OPTION... CHECKPOINT: quiet training from the other model.
learn() {
    local teacher=(--teacher "$IN/other")
    case " $* " in *' --teacher '*) teacher=() ;; esac
    trainstep -q -d "$IN/ids.tok" --batch 3 --lr 1e-2 "${teacher[@]}" "$@"
}

# last KEY: of the last line of log.jsonl.
last() { jsonl "d[-1]['$1']" <log.jsonl; }

@test "KL and cross-entropy are those of both models' logits, in float64" {
    generate -q --score "$IN/held.tok" --logits s.safetensors "$IN/student.safetensors" >/dev/null
    generate -q --score "$IN/held.tok" --logits t.safetensors "$IN/other" >/dev/null
    python3 - "$IN/held" >want <<'PY'
import math, sys
from golden import Tensors

def log_softmax(z, cold):
    z = [x / cold for x in z]
    top = max(z)
    total = math.log(math.fsum(math.exp(x - top) for x in z)) + top
    return [x - total for x in z]

s, t = Tensors("s.safetensors"), Tensors("t.safetensors")
for cold in 1, 2.5:
    ce, kl, n = 0, 0, 0
    for i, line in enumerate(open(sys.argv[1])):
        ids = list(map(int, line.split()))
        for k, y in enumerate(ids[1:]):
            mine, theirs = (x["logits.%d" % i][k * 97:k * 97 + 97] for x in (s, t))
            ce -= log_softmax(mine, 1)[y]
            q, p = log_softmax(mine, cold), log_softmax(theirs, cold)
            kl += math.fsum(math.exp(a) * (a - b) for a, b in zip(p, q))
            n += 1
    for share in 1, 0.25:
        print(cold, share, ce / n, kl / n, (1 - share) * ce / n + share * cold ** 2 * kl / n)
PY
    [ "$(wc -l <want)" -eq 4 ]
    while read -r cold share ce kl loss; do
        # Without a rate the model stays as it is.
        learn -n 1 --lr 0 --distill "$share" --distill-temp "$cold" --eval "$IN/held.tok" \
            --log log.jsonl -f -o a.ckpt "$IN/plain.ckpt" >/dev/null
        for pair in eval_ce:$ce eval_kl:$kl eval_loss:$loss; do
            awk -v a="$(last "${pair%:*}")" -v b="${pair#*:}" \
                'BEGIN { d = a / b - 1; exit !(d < 3e-6 && d > -3e-6) }'
        done
        rm log.jsonl
    done <want
}

@test "a student comes closer to its teacher, and cross-entropy alone does not bring it there" {
    local first
    learn -n 60 --batch 8 --eval "$IN/ids.tok" --log log.jsonl -o a.ckpt "$IN/plain.ckpt" >/dev/null
    first=$(jsonl "d[0]['kl']" <log.jsonl)
    awk -v a="$first" -v b="$(last eval_kl)" 'BEGIN { exit !(b < a / 5) }'
    mv log.jsonl taught
    learn -n 60 --batch 8 --distill 0 --eval "$IN/ids.tok" --log log.jsonl -o b.ckpt \
        "$IN/plain.ckpt" >/dev/null
    awk -v a="$(jsonl "d[-1]['eval_kl']" <taught)" -v b="$(last eval_kl)" 'BEGIN { exit !(b > 2 * a) }'
    # With a share of 0 it is training as without a teacher, but for the last bits of a sum.
    trainstep -q -d "$IN/ids.tok" --batch 8 --lr 1e-2 --log alone.jsonl -n 2 -o c.ckpt \
        "$IN/plain.ckpt" >/dev/null
    awk -v a="$(jsonl "d[1]['loss']" <alone.jsonl)" -v b="$(jsonl "d[1]['loss']" <log.jsonl)" \
        'BEGIN { d = a / b - 1; exit !(d < 1e-5 && d > -1e-5) }'
}

@test "who has the teacher's weights learns nothing" {
    learn -n 2 --teacher "$IN/student.safetensors" --log log.jsonl -o a.ckpt "$IN/plain.ckpt" >/dev/null
    [ "$(jsonl "[x[k] for x in d for k in ('loss', 'kl', 'grad_norm')]" <log.jsonl)" = '[0, 0, 0, 0, 0, 0]' ]
    datpack -q -o a.safetensors a.ckpt
    datcat -q --diff a.safetensors "$IN/student.safetensors"
}

@test "the same bytes: cut anywhere, for any threads and instruction set, with either teacher's container" {
    local k isa options=(--distill 0.6 --distill-temp 1.5 --accum 2 --clip-mode prev)
    learn -n 7 "${options[@]}" -o a.ckpt "$IN/small.ckpt" >/dev/null
    datcat --verify a.ckpt
    for k in 1 4 6; do
        learn -n $k "${options[@]}" -f -o b.ckpt "$IN/small.ckpt" >/dev/null
        # The settings are kept; the teacher is named each time.
        learn --until 7 b.ckpt >/dev/null
        cmp a.ckpt b.ckpt
    done
    for isa in scalar $(isas; echo "$isas"); do
        NIBBLE_ISA=$isa learn -j 3 -n 7 "${options[@]}" --recompute block -f -o b.ckpt \
            "$IN/small.ckpt" >/dev/null
        cmp a.ckpt b.ckpt
    done
    # Equal values in another file are another teacher by its hash; the weights are the same.
    datpack -q --config "$IN/other/config.json" -o t.dat "$IN/other"
    learn -n 7 "${options[@]}" --teacher t.dat -f -o b.ckpt "$IN/small.ckpt" >/dev/null
    datpack -q -f -o x.safetensors a.ckpt
    datpack -q -f -o y.safetensors b.ckpt
    datcat -q --diff x.safetensors y.safetensors
}

@test "every container can teach: NVFP4, a checkpoint with its quantizer" {
    local found
    nvquant -q -o n.dat "$IN/other"
    datpack -q --to ckpt --quant sweep --master f32 -o n.ckpt "$IN/other"
    for f in n.dat n.ckpt "$IN/other"; do
        learn -n 1 --teacher "$f" --log log.jsonl -f -o a.ckpt "$IN/plain.ckpt" >/dev/null
        found+=" $(last kl)"
        rm log.jsonl
    done
    read -r a b c <<<"$found"
    # A .dat has the embedding in f16.
    awk -v a="$a" -v b="$b" -v c="$c" '
        function off(x, y) { return x > y ? x - y : y - x }
        BEGIN { exit !(off(a, c) > 1e-4 * c && off(a, b) < off(a, c) / 5) }'
}

@test "the teacher is part of checkpoint and provenance, and another one is refused" {
    local hash
    cp "$IN/small.ckpt" a.ckpt
    learn -n 2 --distill 0.5 a.ckpt >/dev/null
    hash=$(python3 -c '
import sys
from xxh3 import xxh3_128
print(xxh3_128(open(sys.argv[1], "rb").read()).hex())' "$IN/other/model.safetensors")
    [ "$(datcat --meta a.ckpt | json "d['meta']['state']['teacher']")" = "$hash" ]
    [ "$(datcat --meta a.ckpt | json "d['meta']['state']['settings']['distill']")" = 0.5 ]
    [[ $(datcat --meta a.ckpt) == *'"settings":{'*'"teacher":"'"$hash"'"'* ]]
    refuse 'student.safetensors: is another teacher * --new-teacher' learn -n 1 \
        --teacher "$IN/student.safetensors" a.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 1 -o b.ckpt a.ckpt
    [[ $stderr == *'trained with a teacher so far, from here on without'* ]]
    [ "$(datcat --meta b.ckpt | json "'teacher' in d['meta']['state']")" = False ]
    learn -n 1 --teacher "$IN/student.safetensors" --new-teacher a.ckpt >/dev/null
    # A file that no teacher had a part in has no trace of one.
    trainstep -q -n 1 -d "$IN/ids.tok" -o c.ckpt "$IN/small.ckpt" >/dev/null
    [[ $(datcat --meta c.ckpt) != *teacher* && $(datcat --meta c.ckpt) != *distill* ]]
}

@test "what cannot teach is refused" {
    cp "$IN/plain.ckpt" a.ckpt
    mkdir v
    sed 's/"vocab_size": [0-9]*/"vocab_size": 98/' "$IN/config.json" >v/config.json
    datpack -q --init 9 --config v/config.json -o v/model.safetensors
    refuse 'v: its vocab_size is 98, that of the model to train is 97' learn --teacher v a.ckpt
    sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 8/' \
        "$IN/config.json" >v/config.json
    refuse 'v: has 8 positions, a sample has * --seq-len 8' learn --teacher v a.ckpt
    refuse '--teacher: a.ckpt is the checkpoint that is written' learn --teacher a.ckpt a.ckpt
    ln -s a.ckpt link.ckpt
    refuse 'is the checkpoint that is written' learn --teacher link.ckpt a.ckpt
    learn --teacher a.ckpt -o b.ckpt a.ckpt >/dev/null
    refuse '--teacher: --loss scalar' learn --loss scalar a.ckpt
    refuse 'none: No such file' learn --teacher none a.ckpt
    refuse 'ids.tok' learn --teacher "$IN/ids.tok" a.ckpt
    refuse '--distill: needs --teacher' trainstep -d "$IN/ids.tok" --distill 0.5 a.ckpt
    refuse '--new-teacher: needs --teacher' trainstep -d "$IN/ids.tok" --new-teacher a.ckpt
    refuse '--distill: 1.5: want a number of at most 1' learn --distill 1.5 a.ckpt
    refuse '--distill' learn --distill -0.1 a.ckpt
    refuse '--distill-temp: 0: expected a number above 0' learn --distill-temp 0 a.ckpt
    refuse 'model.safetensors: is an input, too, or belongs to one' learn --dump "$IN/other/model.safetensors" -f a.ckpt
    # One flipped bit of a checkpoint that teaches.
    cp "$IN/small.ckpt" bad.ckpt
    printf '\x55\xaa' | dd of=bad.ckpt bs=1 seek=20000 conv=notrunc status=none
    refuse 'bad.ckpt' learn --teacher bad.ckpt a.ckpt
    cmp a.ckpt "$IN/plain.ckpt"
}

@test "another tokenizer than the data's is refused" {
    cp "$root/pipelines/demo/tokenizer.json" .
    printf 'one\ttwo\n' | tokenize -q -t tokenizer.json --input tsv -o d.tok -
    vocab=$(datcat --meta d.tok | json "d['meta']['vocab']")
    mkdir t s
    sed "s/\"vocab_size\": [0-9]*/\"vocab_size\": $vocab/" "$IN/config.json" | tee s/config.json >t/config.json
    datpack -q --init 1 --config t/config.json -o t/model.safetensors
    datpack -q --init 1 --config t/config.json --to ckpt --quant none -o s.ckpt
    cp tokenizer.json t
    trainstep -q -d d.tok --teacher t -o x.ckpt s.ckpt >/dev/null
    echo >>t/tokenizer.json
    refuse 't: has another tokenizer than the data' trainstep -d d.tok --teacher t -o y.ckpt s.ckpt
    # Of a checkpoint it is that of its training.
    refuse 'x.ckpt: has another tokenizer' trainstep --teacher x.ckpt -o y.ckpt s.ckpt -d \
        <(printf 'one\ttwo\n' | tokenize -q -t t/tokenizer.json --input tsv -)
}

@test "of two kinds of samples the teacher teaches its own, the others their labels" {
    local all=(-q -n 1 --order file --lr 1e-3 -f -o x.ckpt) ids=(-d "$IN/ids.tok")
    local taught=(--teacher "$IN/other" --distill 0.75 --distill-temp 1.5)
    trainstep "${all[@]}" "${ids[@]}" --batch 24 --dump ce --log ce.jsonl "$IN/plain.ckpt" >/dev/null
    trainstep "${all[@]}" -d "$IN/held.tok" --batch 6 "${taught[@]}" --dump kl --log kl.jsonl \
        "$IN/plain.ckpt" >/dev/null
    trainstep "${all[@]}" "${ids[@]}" --teacher-data "$IN/held.tok" --batch 30 "${taught[@]}" \
        --dump both --log both.jsonl "$IN/plain.ckpt" >/dev/null
    # In two passes, of which the second has both kinds.
    trainstep "${all[@]}" "${ids[@]}" --teacher-data "$IN/held.tok" --batch 15 --accum 2 \
        "${taught[@]}" --dump passes --log passes.jsonl "$IN/plain.ckpt" >/dev/null
    python3 - <<'PY'
import json
from golden import Tensors, relative
ce, kl, both, passes = (json.loads(open(n + ".jsonl").read()) for n in ("ce", "kl", "both", "passes"))
a, b = ce["target_tokens"], kl["target_tokens"]
assert a > 200 and b > 40 and both["target_tokens"] == passes["target_tokens"] == a + b
for found in both, passes:
    assert abs(found["loss"] * (a + b) / (ce["loss"] * a + kl["loss"] * b) - 1) < 1e-6
    assert abs(found["kl"] / kl["kl"] - 1) < 1e-6
    assert abs(found["ce"] * (a + b) / (ce["loss"] * a + kl["ce"] * b) - 1) < 1e-6
x, y = Tensors("ce"), Tensors("kl")
for name in "both", "passes":
    found = Tensors(name)
    grads = [n for n in found.names() if n.startswith("grad.")]
    assert len(grads) > 20, found.names()
    for n in grads:
        want = [(p * a + q * b) / (a + b) for p, q in zip(x[n], y[n])]
        off = relative(found[n], want)
        assert off < 1e-5 and relative(found[n], x[n]) > 1e-2, (name, n, off)
PY
}

@test "--teacher-data: the same bytes wherever a run is cut; its hash is in checkpoint and provenance" {
    local k own theirs both
    two() { learn --teacher-data "$IN/held.tok" "$@"; }
    two -n 9 -o a.ckpt "$IN/small.ckpt" >/dev/null
    learn -n 9 -o without.ckpt "$IN/small.ckpt" >/dev/null
    run -1 cmp -s a.ckpt without.ckpt
    for k in 2 7; do
        two -j 3 -n $k -f -o b.ckpt "$IN/small.ckpt" >/dev/null
        two --until 9 b.ckpt >/dev/null
        cmp a.ckpt b.ckpt
    done
    own=$(datcat --meta "$IN/ids.tok" | json "d['meta']['xxh3']")
    theirs=$(datcat --meta "$IN/held.tok" | json "d['meta']['xxh3']")
    both=$(python3 -c '
import sys
from xxh3 import xxh3_128
print(xxh3_128(bytes.fromhex(sys.argv[1])).hex())' "$own$theirs")
    [ "$(datcat --meta a.ckpt | json "d['meta']['state']['sampler']['data']")" = "$both" ]
    [[ $(datcat --meta a.ckpt) == *'"teacher_data":"'"$theirs"'"'* ]]
    # 30 samples of both are an epoch.
    [ "$(datcat --meta a.ckpt | json "d['meta']['state']['sampler']['index']")" -eq 27 ]
    [ "$(datcat --meta a.ckpt | json "d['meta']['state']['teacher_data']")" = "$theirs" ]
    cp a.ckpt b.ckpt
    refuse 'a.ckpt: trained with --teacher-data so far: * --new-teacher' \
        trainstep -q -d "$IN/ids.tok" --teacher "$IN/other" -n 1 a.ckpt
    cmp a.ckpt b.ckpt
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" --teacher "$IN/other" --new-teacher -n 1 a.ckpt
    [[ $stderr == *'other data than before'* ]]
    [[ $(datcat --meta a.ckpt | json "d['meta']['state']") != *teacher_data* ]]
    run -0 --separate-stderr trainstep -d "$IN/ids.tok" -n 1 b.ckpt
    [[ $(datcat --meta b.ckpt | json "d['meta']['state']") != *teacher* ]]
}

@test "--teacher-data that cannot be" {
    cp "$IN/plain.ckpt" a.ckpt
    refuse '--teacher-data: needs --teacher' trainstep -d "$IN/ids.tok" --teacher-data "$IN/held.tok" a.ckpt
    refuse '--teacher-data: expected a file' learn --teacher-data - a.ckpt
    refuse 'none.tok: No such file' learn --teacher-data none.tok a.ckpt
    refuse 'config.json' learn --teacher-data "$IN/config.json" a.ckpt
    printf '1 2 3\n4 97\n' | tokenize -q --input ids -o far.tok -
    refuse 'far.tok: sample 1: id 97 at position 1' learn --teacher-data far.tok a.ckpt
    printf '1 2 3\n%s\n' "$(seq -s ' ' 1 40)" | tokenize -q --input ids -o long.tok -
    refuse 'long.tok: sample 1 (line 2 of its text) has 40 ids, --seq-len 20' learn --teacher-data long.tok --seq-len 20 a.ckpt
    printf '1 2 3\n' | tokenize -q --input ids -o out.tok -
    head -c -1 out.tok >cut.tok
    refuse 'cut.tok' learn --teacher-data cut.tok a.ckpt
    refuse 'out.tok: is an input, too' learn --teacher-data out.tok --log out.tok a.ckpt
    cmp a.ckpt "$IN/plain.ckpt"
}

@test "logits of a teacher that are not finite: the step is skipped, and the run ends with 4" {
    python3 - "$IN/other" <<'PY'
import json, os, shutil, struct, sys
shutil.copytree(sys.argv[1], "nan")
with open("nan/model.safetensors", "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    head = json.loads(f.read(n))
    f.seek(8 + n + head["model.norm.weight"]["data_offsets"][0])
    f.write(b"\xff\xff\xff\xff")
PY
    cp "$IN/plain.ckpt" a.ckpt
    run -4 --separate-stderr learn -n 3 --max-skips 2 --teacher nan a.ckpt
    [[ $stderr == *'the divergence from the teacher is not finite; 2 steps in a row were skipped'* ]]
    cmp a.ckpt "$IN/plain.ckpt"
}

@test "--dry-run plans both models" {
    learn --dry-run -n 1 "$IN/small.ckpt" >with
    trainstep -q -d "$IN/ids.tok" --batch 3 --dry-run "$IN/small.ckpt" >without
    # Weights of the teacher, as they are stored but for norms in f32.
    want=$(datcat "$IN/other/model.safetensors" | awk -F '\t' '
        $1 == "total" { next } { n = $4; if ($3 !~ /,/ && $2 == "bf16") n *= 2; sum += n } END { print sum }')
    [ "$(awk '$1 == "teacher" { print $2 }' with)" -eq "$want" ]
    [ "$(grep -c teacher without)" -eq 0 ]
    [ "$(awk '$1 == "total" { print $2 }' with)" -gt "$(awk '$1 == "total" { print $2 }' without)" ]
    refuse -3 'the plan needs' learn --memory-limit 0.0001 -o b.ckpt "$IN/small.ckpt"
}
