#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, status, stderr, stderr_lines: set by run or paused
# shellcheck disable=SC2016  # $1 is for the inner shell
# generate: against the model in plain Python (qwen3.py), and against itself where two
# ways must give the same.  Models are random ones.

load common
load paused

setup_file() {
    M=$BATS_FILE_TMPDIR/m
    export M
    mkdir "$M"
    cd "$M" || return
    # Ids only: tied and untied.
    qwen config c.json head_dim=32 intermediate_size=160
    qwen config u.json tie_word_embeddings=false num_key_value_heads=1 vocab_size=83
    datpack -q --init 3 --config c.json -o t.safetensors
    datpack -q --init 4 --config u.json -o u.safetensors
    # With text; rows of 64 columns, as a GGUF wants them.
    qwen config x.json vocab_size=3098 intermediate_size=128 'torch_dtype="bfloat16"' \
        eos_token_id=3074 max_position_embeddings=400
    cp "$HERE/vectors/tokenizer-small.json" tokenizer.json
    datpack -q --init 1 --config x.json -o x.safetensors
}

# The same tensors; files have a provenance, too.
same() { datcat --diff "$1" "$2"; }

# ids MODEL ARGUMENT...: what follows some ids, without end tokens.
PROMPT='5 6 7 8 9 10 11 12 13 14 80'
ids() { generate --ids -p "$PROMPT" --ignore-eos "${@:2}" "$1"; }

# bare: JSON lines without what depends on the clock.
bare() { sed 's/"timing":{[^}]*}/"timing":0/; s/,"time":"[^"]*"//g'; }

@test "logits of a whole prompt, in chunks, token by token, without the cache: the reference's" {
    local how
    for m in t u; do
        c=c && [ $m = t ] || c=u
        for how in '' '--prefill-chunk 1' '--prefill-chunk 3' '--prefill-chunk 7' \
            '--prefill-chunk 11' --no-kv '-j 1' '-j 3'; do
            # shellcheck disable=SC2086  # several words
            ids $M/$m.safetensors -n 24 --logits "l$how" --dump-layers "h$how" $how >said
            cmp "l$how" l
            cmp "h$how" h
        done
        # shellcheck disable=SC2086
        qwen logits $M/$m.safetensors $M/$c.json l $PROMPT >want
        cmp want said
        # shellcheck disable=SC2086
        qwen layers $M/$m.safetensors $M/$c.json h $PROMPT
        rm -f l* h*
    done
}

@test "every instruction set gives the same logits" {
    local isa
    ids "$M/t.safetensors" -n 4 --logits l
    isas
    for isa in $isas; do
        NIBBLE_ISA=$isa ids "$M/t.safetensors" -n 4 --logits "l.$isa"
        cmp "l.$isa" l
    done
}

@test "--compute bf16: the same logits in chunks, token by token, and everywhere; near f32's" {
    local how isa
    nvquant -q --quant sweep -o n.safetensors "$M/t.safetensors"
    for m in "$M/t.safetensors" "$M/u.safetensors" n.safetensors; do
        ids "$m" -n 3 --compute bf16 --logits l
        for how in '--prefill-chunk 1' '--prefill-chunk 7' --no-kv '-j 1' '-j 3'; do
            # shellcheck disable=SC2086  # several words
            ids "$m" -n 3 --compute bf16 --logits "l$how" $how
            cmp "l$how" l
        done
        isas
        for isa in $isas; do
            NIBBLE_ISA=$isa ids "$m" -n 3 --compute bf16 -f --logits l.isa
            cmp l.isa l
        done
        ids "$m" -n 3 --logits f
        # Rounded, not wrong: 2^-9 for each product on the way, thrice what is found.
        paste <(datcat --values logits f) <(datcat --values logits l) | awk '
            { off += ($1 - $2)^2; all += $1^2 }
            END { exit !(off > 0 && off / all < 0.04^2) }'
        rm -f l* f
    done
}

@test "--compute that is not the device's own is recorded with logits" {
    ids "$M/t.safetensors" -n 1 --logits f --compute f32
    ids "$M/t.safetensors" -n 1 --logits d
    cmp d f
    ids "$M/t.safetensors" -n 1 --logits b --compute bf16
    run -0 datcat --meta b
    [[ $output == *'"compute":"bf16"'* || $output == *'"compute": "bf16"'* ]]
    run -0 datcat --meta f
    [[ $output != *'"compute"'* ]]
}

@test "--fast: few tokens at a time, near the same logits, whatever the threads; said and recorded" {
    local how isa
    nvquant -q --quant sweep -o n.safetensors "$M/t.safetensors"
    ids n.safetensors -n 3 --prefill-chunk 1 --logits f
    NIBBLE_ISA=scalar run -0 --separate-stderr ids n.safetensors -n 3 --prefill-chunk 1 --fast --logits s
    [[ $stderr == 'generate: --fast: no effect: '*NIBBLE_ISA* ]]
    same s f
    isas
    [[ $isas == *avx2* ]] || return 0
    run -0 --separate-stderr ids n.safetensors -n 3 --prefill-chunk 1 --compute f32 --fast --logits l
    [ "$stderr" = 'generate: --fast: inputs of NVFP4 products of few tokens are rounded to 16 bits' ]
    run -0 datcat --meta l
    [[ $output == *'"fast":true'* || $output == *'"fast": true'* ]]
    run -0 datcat --meta f
    [[ $output != *'"fast"'* ]]
    paste <(datcat --values logits f) <(datcat --values logits l) | awk '
        { off += ($1 - $2)^2; all += $1^2 }
        END { exit !(off > 0 && off / all < 4e-4^2) }'
    for how in '-j 1' '-j 3'; do
        # shellcheck disable=SC2086  # two words
        ids n.safetensors -q -n 3 --prefill-chunk 1 --compute f32 --fast -f --logits o $how
        cmp o l
    done
    for isa in ${isas#scalar}; do
        NIBBLE_ISA=$isa ids n.safetensors -q -n 3 --prefill-chunk 1 --compute f32 --fast -f --logits o
        cmp o l
    done
    # More than four tokens at a time are computed as ever.
    ids n.safetensors -n 1 --logits f1
    ids n.safetensors -q -n 1 --compute f32 --fast --logits l1
    same f1 l1
    run -0 --separate-stderr ids "$M/t.safetensors" -n 3 --compute f32 --fast
    [ "$stderr" = 'generate: --fast: no effect: no weight is NVFP4' ]
    [ "$output" = "$(ids "$M/t.safetensors" -n 3)" ]
    run -0 --separate-stderr ids n.safetensors -n 3 --compute f32 --fast --activations nvfp4 --logits a
    [ "$stderr" = 'generate: --fast: no effect: --activations nvfp4 has products of its own' ]
    run -0 datcat --meta a
    [[ $output != *'"fast"'* ]]
    run -0 --separate-stderr ids "$M/t.safetensors" -q -n 1 --fast
    [ -z "$stderr" ]
}

@test "--json: log-probabilities of the chosen tokens and of the best" {
    ids "$M/u.safetensors" -n 6 --json --top-logprobs 3 >j
    ids "$M/u.safetensors" -n 6 --prefill-chunk 4 >plain # chosen where logits are
    [ "$(jsonl '" ".join(map(str, d[0]["ids"]))' <j)" = "$(cat plain)" ]
    # shellcheck disable=SC2086
    qwen greedy "$M/u.safetensors" "$M/u.json" j $PROMPT
    [ "$(jsonl 'len(d), d[0]["stop"], d[0]["text"], d[0]["prompt"], d[0]["prompt_tokens"]' <j)" = \
        "(1, 'length', None, 0, 11)" ]
    jsonl '[len(x) for x in d[0]["top_logprobs"]] == [3] * 6 and d[0]["timing"]["prefill_s"] > 0' \
        <j | has -x True
    [[ $(<j) != *'"logprob":'*'"text":"'* ]] # ids alone have none
}

@test "--top-logprobs: the text of each token, by the tokenizer" {
    datpack -q --init 7 --config "$root/pipelines/demo/config.json" -o m.safetensors
    generate -q -t "$root/pipelines/demo/tokenizer.json" -p x -n 4 --json --top-logprobs 5 m.safetensors >j
    python3 - "$root/pipelines/demo/tokenizer.json" j <<'PY'
import json, sys
t = json.load(open(sys.argv[1], encoding="utf-8"))
words = {i: w for w, i in t["model"]["vocab"].items()}
words.update({a["id"]: a["content"] for a in t["added_tokens"]})
added = {a["id"] for a in t["added_tokens"]}
# The byte-level alphabet: printable bytes stand for themselves, others from U+0100 on.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
byte = {chr(b): b for b in plain}
byte.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in plain)})
top = json.load(open(sys.argv[2], encoding="utf-8"))["top_logprobs"]
assert len(top) == 4
n = 0
for x in sum(top, []):
    if x["id"] not in words:
        assert "text" not in x, x
        continue
    w = words[x["id"]]
    raw = w.encode() if x["id"] in added else bytes(byte[c] for c in w)
    try:
        want = raw.decode()
    except UnicodeDecodeError:
        assert "\ufffd" in x["text"], x
        continue
    assert x["text"] == want, (x, want)
    n += 1
assert n > 5
PY
}

@test "the golden models, if they are there: NIBBLE_GOLDEN=DIR" {
    [ -n "${NIBBLE_GOLDEN:-}" ] || skip "not given"
    for m in tied untied; do
        python3 - "$NIBBLE_GOLDEN/tiny-$m" "$HERE" <<'PY'
import json, subprocess, sys
sys.path.insert(0, sys.argv[2])
from qwen3 import read_tensors
import struct
d = sys.argv[1]
t = read_tensors(d + "/expect.safetensors")
shape, kind, raw = t["greedy.ids"]
ids = struct.unpack("<%d%s" % (shape[0], {"I64": "q", "I32": "i"}[kind]), raw)
shape, kind, raw = t["greedy.logprob_margin"]
want = struct.unpack("<%d%s" % (2 * shape[0], {"F32": "f", "F64": "d"}[kind]), raw)[::2]
for extra in ([], ["--prefill-chunk", "1"], ["--prefill-chunk", "3"], ["--no-kv"]):
    said = json.loads(subprocess.check_output(
        ["generate", "--ids", "-p", " ".join(map(str, ids[:8])), "-n", "24", "--json",
         "--ignore-eos", *extra, d]))
    assert said["ids"] == list(ids[8:])
    assert max(abs(a - b) for a, b in zip(said["logprobs"], want)) < 1e-5
PY
    done
}

# ---- sampling ---------------------------------------------------------------------------

@test "temperature, top-k, top-p, penalty and seed: the reference chooses the same ids" {
    local o
    while read -r o; do
        # shellcheck disable=SC2086,SC2046
        ids "$M/t.safetensors" -n 40 --json --logits l -f \
            $(sed 's/\([a-z_]*\)=/--\1 /g; s/_/-/g; s/--penalty/--repeat-penalty/' <<<"$o") >j
        # shellcheck disable=SC2086
        different=$(qwen sample l j $o prompt="$PROMPT")
        [ "$different" -gt 3 ]
    done <<'END'
temp=0 penalty=1.5
temp=1
temp=0.7 top_p=0.8 top_k=20
temp=2 top_p=0.5 seed=1
temp=1.5 top_k=5 seed=4294967295
temp=5 top_p=0.999 seed=7
temp=0.9 top_k=90 top_p=0.9 penalty=1.2 seed=3
temp=1 penalty=0.5 seed=9
END
}

@test "a seed gives the same answer again, another one another; prompts have draws of their own" {
    generate --ids -p '5 6' -p '5 6' -n 12 --temp 1 --seed 5 "$M/t.safetensors" >a
    generate --ids -p '5 6' -p '5 6' -n 12 --temp 1 --seed 5 -j 1 "$M/t.safetensors" >b
    generate --ids -p '5 6' -p '5 6' -n 12 --temp 1 --seed 6 "$M/t.safetensors" >c
    cmp a b
    run ! cmp -s a c
    [ "$(sort -u a | wc -l)" -eq 2 ]
}

@test "options before generation_config.json before argmax" {
    mkdir m
    cp "$M/t.safetensors" m/t.safetensors
    cp "$M/c.json" m/config.json
    local t=m/t.safetensors
    ids $t -n 20 >greedy
    end=$(cut -d ' ' -f 3 greedy)
    echo '{"do_sample": true, "temperature": 1.5, "top_k": 7, "top_p": 0.9,
        "repetition_penalty": 1.1, "eos_token_id": [2, '"$end"']}' >m/generation_config.json
    ids $t -n 20 >sampled
    ids $t -n 20 --temp 1.5 --top-k 7 --top-p 0.9 --repeat-penalty 1.1 >same
    cmp sampled same
    run ! cmp -s sampled greedy
    ids $t -n 20 --temp 0 --repeat-penalty 1 >cold
    cmp cold greedy
    # In a directory, too.
    datpack -q -o d/ $t
    cp m/generation_config.json d/
    ids d -n 20 >dir
    cmp dir sampled
    # Its end tokens count.
    run -0 --separate-stderr generate --ids -p "$PROMPT" --temp 0 --repeat-penalty 1 --json $t
    [ "$(jsonl 'd[0]["stop"], d[0]["stop_id"]' <<<"$output")" = "('end', $end)" ]
    echo '{"do_sample": false, "temperature": 1.5}' >m/generation_config.json
    ids $t -n 20 >cold
    cmp cold greedy
    local bad
    for bad in '{' '{"temperature": -1}' '{"top_p": 2}' '{"eos_token_id": "x"}' '[]'; do
        echo "$bad" >m/generation_config.json
        run -2 --separate-stderr ids $t
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == *generation_config.json:* ]]
    done
}

@test "--top-k without a temperature is said to do nothing" {
    run -0 --separate-stderr ids "$M/t.safetensors" -n 2 --top-k 3
    [[ $stderr == *'do nothing without --temp'* ]]
    run -0 --separate-stderr ids "$M/t.safetensors" -n 2 --top-k 3 -q
    [ -z "$stderr" ]
}

# ---- containers -----------------------------------------------------------------------------

@test "the same answer from every container" {
    local f
    cp "$M/x.safetensors" "$M/x.json" .
    datpack -q x.safetensors -o x.dat --dtype bf16
    datpack -q x.safetensors -o x/
    datpack -q x.safetensors -o x.ckpt --quant none
    ids x.safetensors -n 12 --logits want >said
    for f in x.dat x x.ckpt; do
        ids "$f" -n 12 --logits l -f | cmp - said
        same l want
    done
    ids - -n 12 --config x.json --logits l -f <x.dat | cmp - said
    same l want
}

@test "NVFP4 of one and two levels, from every container, is what nvquant --dequant says" {
    local f
    cp "$M/x.safetensors" "$M/tokenizer.json" .
    nvquant -q x.safetensors -o n.safetensors
    nvquant -q --quant sweep1 x.safetensors -o n1.safetensors
    datpack -q n.safetensors -o n.dat --tie
    datpack -q n.safetensors --to modelopt -o mo
    datpack -q n.safetensors --to compressed-tensors -o ct
    datpack -q n.safetensors -o n.gguf
    datpack -q x.safetensors -o n.ckpt --quant sweep
    for f in n n1; do
        nvquant -q --dequant --dtype f32 $f.safetensors -o plain.$f.safetensors
        ids $f.safetensors -n 3 --logits $f.l >said.$f
        # shellcheck disable=SC2086
        qwen logits plain.$f.safetensors "$M/x.json" $f.l $PROMPT >want
        cmp want said.$f
    done
    for f in n.dat mo ct n.gguf n.ckpt; do
        ids "$f" -n 3 --logits l -f | cmp - said.n
        case $f in
        n.dat) ;; # bf16 became f16
        ct) ;;    # the reciprocal of a divisor may be a bit off
        *) same l n.l ;;
        esac
    done
    # An embedding, which is decoded in several parts.
    nvquant -q -s '*embed*' x.safetensors -o e.safetensors
    datcat -q -s '*embed*' e.safetensors | has -F $'nvfp4\t[3098,'
    nvquant -q --dequant --dtype f32 e.safetensors -o plain.e.safetensors
    ids e.safetensors -n 3 --logits e.l >said.e
    ids plain.e.safetensors -n 3 --logits l -f | cmp - said.e
    same l e.l
    # Quantized at load.
    ids x.safetensors -n 3 --quant sweep --logits l -f | cmp - said.n
    same l n.l
    ids x.safetensors -n 3 --quant sweep1 --logits l -f | cmp - said.n1
    same l n1.l
    ids n.ckpt -n 3 --quant none >said
    ids x.safetensors -n 3 | cmp - said
    # Again, from the decoded values: sweep finds its own codes.
    ids n1.safetensors -n 3 --quant sweep1 | cmp - said.n1
}

@test "the head that a file holds is computed with" {
    cp "$M/t.safetensors" "$M/c.json" .
    cp c.json config.json
    ids t.safetensors -n 4 --logits want >said
    # A copy of the embedding: the same.
    datpack -q t.safetensors -o t.dat
    datcat --names t.dat | has -x lm_head.weight
    ids t.dat -n 4 --logits l -f | cmp - said
    same l want
    # A pair quantized from it: another.
    nvquant -q t.safetensors -o n.dat
    datcat -s lm_head.weight n.dat | has nvfp4
    nvquant -q --dequant --dtype f32 --untie n.dat -o plain.safetensors
    ids n.dat -n 3 --logits l -f >said
    # shellcheck disable=SC2086
    qwen logits plain.safetensors c.json l $PROMPT >want
    cmp want said
    # A plain one that differs is said, and used.
    datpack -q t.safetensors --untie -o w.safetensors
    qwen put w.safetensors lm_head.weight 7 1000 v.safetensors
    run -0 --separate-stderr ids v.safetensors -n 3 --config c.json --logits l -f
    [[ $stderr == *'lm_head.weight" differs from the embedding'* ]]
    # shellcheck disable=SC2086
    [ "$(qwen logits v.safetensors c.json l $PROMPT)" = "$output" ]
}

# ---- text -----------------------------------------------------------------------------------

@test "a prompt of -p and one of a line are the same; the prompt is not repeated" {
    generate -n 12 -p 'Hello there' "$M/x.safetensors" >a
    echo 'Hello there' | generate -n 12 "$M/x.safetensors" >b
    cmp a b
    run ! grep -q Hello a
    # With the ids of the template.
    generate -n 12 --json -p 'Hello there' "$M/x.safetensors" >j
    printf 'Hello there\tx\n' | tokenize -q -t "$M/tokenizer.json" --emit jsonl >t
    n=$(jsonl 'len(d[0]["mask"]) - sum(d[0]["mask"]) - 1' <t)
    prompt=$(jsonl '" ".join(map(str, d[0]["ids"][:'"$n"']))' <t)
    [ "$(jsonl 'd[0]["prompt_tokens"]' <j)" -eq "$n" ]
    generate -n 12 --ids -p "$prompt" "$M/x.safetensors" >i
    [ "$(jsonl '" ".join(map(str, d[0]["ids"]))' <j)" = "$(cat i)" ]
    # Empty lines are no prompts, and CR LF is a line's end.
    printf '\nHello there\r\n\n\nHello there' | generate -n 12 "$M/x.safetensors" >c
    cat a a | cmp - c
}

@test "text is that of the ids, by tokenize --decode" {
    generate -n 60 --temp 3 --json -p x --ignore-eos "$M/x.safetensors" >j
    generate -n 60 --temp 3 -p x --ignore-eos "$M/x.safetensors" >a
    jsonl '" ".join(map(str, d[0]["ids"]))' <j >i
    tokenize -q --decode -t "$M/tokenizer.json" --input ids i >want
    cmp want a
    # How many U+FFFD stand for a run of bad bytes is a matter of taste.
    python3 - <<'PY'
import json, re
want = open("want", "rb").read()[:-1].decode(errors="replace")
text = json.load(open("j"))["text"]
assert re.sub("\ufffd+", "?", text) == re.sub("\ufffd+", "?", want)
PY
}

@test "a terminal does not obey what the model says; a pipe gets it as it is" {
    mkdir evil
    # Tokens are bytes, and 41 that somebody has chosen.
    python3 - "$HERE" <<'PY'
import json, subprocess, sys
subprocess.run(["python3", sys.argv[1] + "/tok.py", "tokenizer", "t.json"], check=True)
t = json.load(open("t.json"))
for i in range(259, 300):
    t["added_tokens"].append({
        "id": i, "special": False, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False,
        "content": "\x1b]0;x\x07\u009b31m\u202e\u2066\x7f\u00f6\tb\\\n%d" % i})
json.dump(t, open("evil/tokenizer.json", "w"))
PY
    qwen config evil/config.json vocab_size=300
    datpack -q --init 1 --config evil/config.json -o evil/m.safetensors
    local bad='[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae|\xe2\x81[\xa6-\xa9]' o
    local how="--template none -n 400 --temp 100 --seed 3 --ignore-eos evil/m.safetensors"
    for o in '-p x' '-p x --json' '-p x --stop ööö' "-p x --stop $(printf '\\202é')"; do
        # shellcheck disable=SC2086  # several words
        generate $o $how >pipe
        [[ $o == *--json* ]] ||
            LC_ALL=C grep -qaP '\x1b\]0;x\x07\xc2\x9b31m\xe2\x80\xae\xe2\x81\xa6\x7f' pipe
        script -qec "generate $o $how" /dev/null | sed 's/\r$//' >shown
        LC_ALL=C run -1 grep -aP "$bad" shown
        python3 - "$o" <<'PY'
import json, re, sys
pipe, shown = open("pipe", "rb").read(), open("shown", "rb").read()
if "--json" in sys.argv[1]:
    pipe, shown = json.loads(pipe), json.loads(shown)
    del pipe["timing"], shown["timing"]
else:
    def esc(m):
        return b"".join(b"\\x%02x" % b for b in m.group())
    # Characters as they stand, bad ones and controls as their bytes.
    out = pipe.decode("utf-8", "surrogateescape")
    unsafe = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e"
                        "\u2066-\u2069\udc80-\udcff]")
    pipe = unsafe.sub(lambda m: "".join(
        "\\x%02x" % b for b in m.group().encode("utf-8", "surrogateescape")), out).encode()
assert pipe == shown, (pipe, shown)
PY
    done
    # A turn of a chat.
    printf 'x\ny\n' >turns
    script -qec "generate --chat ${how/--template none -n 400/-n 100} <turns" /dev/null >shown
    grep -qaF '\x1b]0;x\x07\xc2\x9b31m' shown
    LC_ALL=C run -1 grep -aP '\x1b|\x07|\xc2\x9b' shown
}

@test "--stop: across borders of tokens, not shown, nothing behind it" {
    python3 - <<'PY'
import json, os, re, subprocess
args = ["generate", "-n", "40", "--temp", "1", "--seed", "2", "-p", "x",
        "--ignore-eos", os.environ["M"] + "/x.safetensors"]
text = subprocess.check_output(args)[:-1]
tried = 0
for at in range(0, len(text) - 6, 3):
    stop = text[at:at + 1 + at % 6]
    try:
        stop.decode()
    except UnicodeDecodeError:
        continue
    got = subprocess.check_output(args + ["--stop", stop])
    assert got == text[:text.index(stop)] + b"\n", (at, stop, got)
    tried += 1
assert tried > 20
stops = [s for s in (text[at:at + 4] for at in range(30, 60)) if s.isascii()][:2]
got = json.loads(subprocess.check_output(
    args + ["--json"] + [a for s in stops + [b"nowhere"] for a in ("--stop", s)]))
assert got["stop"] == "stop"
want = text[:min(map(text.index, stops))].decode(errors="replace")
assert re.sub("\ufffd+", "?", got["text"]) == re.sub("\ufffd+", "?", want)
PY
}

@test "end tokens: of the configuration and of the tokenizer; --ignore-eos goes on" {
    # <|im_end|> (3074) and <|endoftext|> (3072) whatever the model says.
    generate --json -n 300 --temp 4 -p x "$M/x.safetensors" --seed 11 >j
    generate --json -n 300 --temp 4 -p x "$M/x.safetensors" --seed 11 --ignore-eos >k
    python3 - <<'PY'
import json
a, b = json.load(open("j")), json.load(open("k"))
ends = [i for i, t in enumerate(b["ids"]) if t in (3072, 3074)]
if ends:
    assert a["stop"] == "end" and a["ids"] == b["ids"][:ends[0]]
    assert a["stop_id"] == b["ids"][ends[0]]
assert b["stop"] == "length" and len(b["ids"]) == 300
PY
    first=$(generate --ids -n 1 -p "$PROMPT" "$M/t.safetensors")
    sed "s/\"eos_token_id\": 2/\"eos_token_id\": [2, $first]/" "$M/c.json" >c.json
    run -0 --separate-stderr generate --ids -p "$PROMPT" --config c.json "$M/t.safetensors"
    [ -z "$output" ]
    [ -z "$stderr" ]
}

@test "--chat: the cache kept and dropped are the same, and a turn knows the ones before" {
    printf 'one\ntwo\nthree\n' >turns
    generate --chat --system 'Be brief' --json -n 9 "$M/x.safetensors" <turns | bare |
        sed 's/"prefill_tokens"//' >a
    generate --chat --system 'Be brief' --json -n 9 --no-kv "$M/x.safetensors" <turns | bare >b
    generate --chat --system 'Be brief' --json -n 9 --prefill-chunk 2 "$M/x.safetensors" <turns |
        bare >c
    cmp a b
    cmp a c
    [ "$(wc -l <a)" -eq 3 ]
    # The ids of all turns as one prompt.
    python3 - <<'PY'
import json, os, subprocess, sys
m = os.environ["M"]
said = [json.loads(x) for x in open("a")]
turns = open("turns").read().split()
messages, whole = [{"role": "system", "content": "Be brief"}], None
def render(messages):
    line = json.dumps({"messages": messages + [{"role": "assistant", "content": "z"}]})
    r = subprocess.run(["tokenize", "-q", "-t", m + "/tokenizer.json", "--input", "jsonl",
                        "--emit", "jsonl"], input=line + "\n", capture_output=True,
                       text=True, check=True)
    s = json.loads(r.stdout)
    n = len(s["ids"]) - 1                     # without the closing LF
    while s["mask"][n - 1]:
        n -= 1
    return s["ids"][:n]
prompt = render([messages[0], {"role": "user", "content": turns[0]}])
for i, turn in enumerate(turns):
    r = subprocess.run(["generate", "--ids", "-n", "9", "-p", " ".join(map(str, prompt)),
                        m + "/x.safetensors"], capture_output=True, text=True, check=True)
    assert list(map(int, r.stdout.split())) == said[i]["ids"], i
    assert said[i]["turn"] == i and said[i]["prompt_tokens"] == len(prompt)
    if i + 1 < len(turns):
        lf = render([{"role": "user", "content": "q"}])
        start = render([{"role": "user", "content": turns[i + 1]}])
        end, newline = 3074, start[-1]
        prompt = prompt + said[i]["ids"] + [end, newline] + start
PY
}

@test "--chat: a turn that needs a larger cache keeps what is in it" {
    { echo one && seq -s ' ' 90 && echo three; } >turns
    generate --chat --json -n 9 --ignore-eos "$M/x.safetensors" <turns >a
    generate --chat --json -n 9 --ignore-eos --no-kv "$M/x.safetensors" <turns | bare >b
    bare <a | cmp - b
    # Only the new tokens are computed, and the last one of the answer before.
    jsonl '[(t["prompt_tokens"], t["timing"]["prefill_tokens"], len(t["ids"])) for t in d]' <a >n
    python3 - <<'PY'
turns = eval(open("n").read())
assert turns[0][0] == turns[0][1] and turns[1][0] > 256 > turns[0][0], turns
for (before, _, said), (prompt, computed, _) in zip(turns, turns[1:]):
    assert computed == prompt - before - said + 1, turns
PY
}

# bats test_tags=slow
@test "--chat: a full context drops the oldest turns and says so; the rest is as if they had not been" {
    python3 - "$M/x.safetensors" <<'PY'
import json, subprocess, sys
model = sys.argv[1]
turns = ["turn number %d of many" % i for i in range(30)]

def chat(*more, status=0):
    p = subprocess.run(["generate", "--chat", "-n", "20", "--temp", "1", "--system", "Be brief", *more, model],
                       input="\n".join(turns), text=True, errors="replace",
                       capture_output=True)
    assert p.returncode == status, p.stderr
    return p.stdout, p.stderr

out, said = chat("--json")
lines = [json.loads(x) for x in out.splitlines()]
assert len(lines) == len(turns)
full = [x["turn"] for x in lines if x["dropped"]]
assert 1 < len(full) < 10, full
assert said.splitlines() == [
    "generate: turn %d: the context of 400 tokens is full: the oldest turns were dropped, %d of them"
    % (i, lines[i]["dropped"]) for i in full], said
assert all(x["prompt_tokens"] <= 200 for x in lines if x["dropped"])
assert all(x["prompt_tokens"] + 20 <= 400 for x in lines) and all(x["stop"] != "context" for x in lines)
assert chat("--json", "-q")[1] == "" and chat("-q")[0].count("\n") >= 30
# Nothing that was computed of the turns that left is used.
def bare(lines):
    for x in lines:
        del x["timing"]
        for m in x["messages"]:
            m.pop("time", None)
    return lines
kept = bare([json.loads(x) for x in chat("--json", "--no-kv")[0].splitlines()])
assert kept == bare(lines)
# What stays: the system message and the last turns, ids as they were made.
def ids(*arguments):
    return json.loads(subprocess.check_output(["generate", "--json", "-n", "0", *arguments, model]))["prompt_tokens"]
first, alone = ids("-p", turns[0], "--system", "Be brief"), ids("-p", turns[0])
i, k = full[0], lines[full[0]]["dropped"]
def cost(j):  # of a turn and its answer, which ends with <|im_end|> LF
    return ids("-p", turns[j]) + len(lines[j]["ids"]) + 2
head = first - alone
assert lines[i]["prompt_tokens"] == head + sum(cost(j) for j in range(k, i)) + ids("-p", turns[i])
# With --no-drop it ends there.
out, said = chat("--json", "--no-drop", status=2)
n = len(out.splitlines())
assert i <= n < 30 and said.startswith("generate: turn %d: " % n) and "--no-drop keeps all turns" in said
PY
    refuse '--no-drop: goes with --chat' generate --no-drop -p x "$M/x.safetensors"
    refuse '--history: goes with --chat' generate --history h -p x "$M/x.safetensors"
}

@test "--chat --json: turns with role, text and time, which tokenize takes as training data" {
    printf 'one\n\u4f60\u597d "x"\nthree\n' >turns
    generate --chat --json --system 'Be brief' -n 12 --temp 1 "$M/x.safetensors" <turns >talk.jsonl
    python3 - <<'PY'
import json, re
lines = [json.loads(x) for x in open("talk.jsonl")]
turns = open("turns").read().splitlines()
for i, x in enumerate(lines):
    assert x["turn"] == i and x["dropped"] == 0 and "text" not in x
    roles = ["system"] * (i == 0) + ["user", "assistant"]
    assert [m["role"] for m in x["messages"]] == roles
    assert x["messages"][-2]["content"] == turns[i]
    for m in x["messages"][-2:]:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", m["time"])
json.dump([[(m["role"], m["content"]) for m in x["messages"]] for x in lines], open("want", "w"))
PY
    tokenize -q -t "$M/tokenizer.json" --input jsonl -o talk.tok talk.jsonl
    datcat talk.tok | tail -n 1 | has -x $'3\t.*'
    # The targets are what the model said.
    tokenize -q -t "$M/tokenizer.json" --input jsonl --emit jsonl talk.jsonl >ids
    tokenize -q -t "$M/tokenizer.json" --decode --emit jsonl talk.tok >text
    python3 - <<'PY'
import json
want = json.load(open("want"))
texts = [json.loads(x)["text"] for x in open("text")]
for turn, text in zip(want, texts):
    assert text == "".join("<|im_start|>%s\n%s<|im_end|>\n" % tuple(m) for m in turn), (turn, text)
assert len(texts) == 3 and all(sum(json.loads(x)["mask"]) > 0 for x in open("ids"))
PY
}

@test "a terminal where lines are typed is asked for them, no other" {
    python3 - <<'PY'
import os, pty, subprocess
open("line", "w").write("one\n")

def shown(typed, seen, *options):
    """What the terminal got, and what was written elsewhere."""
    here, there = pty.openpty()
    os.write(here, b"one\n\x04")
    p = subprocess.run(["generate", *options, "--template", "none", "-n", "1",
                        os.environ["M"] + "/x.safetensors"], check=True, timeout=60,
                       stdin=there if typed else open("line"), stdout=subprocess.DEVNULL,
                       stderr=there if seen else open("words", "wb"))
    os.close(there)
    out = b"" if seen else open("words", "rb").read()
    try:
        while True:
            out += os.read(here, 4096)
    except OSError:  # Linux's end of file
        return out

assert shown(True, True).count(b"> ") == 2  # the second time for the end
for of in (True, True, "-q"), (True, False), (False, True):
    assert b"> " not in shown(*of), of
PY
}

@test "--system, --template and --compat torchsharp" {
    local x="$M/x.safetensors"
    n() { generate -n 0 --json -p hi "$@" "$x" | jsonl 'd[0]["prompt_tokens"]'; }
    # <|im_start|> user LF hi <|im_end|> LF <|im_start|> assistant LF, as this tokenizer cuts it
    full=$(n)
    [ "$(n --template none)" -lt "$full" ]
    [ "$(n --template torchsharp)" -ge "$full" ]
    [ "$(n --compat torchsharp)" -eq "$(n --template torchsharp)" ]
    [ "$(n --compat seed)" -eq "$(n --template seed)" ]
    [ "$(n --system 'Be brief')" -gt "$full" ]
    p() { generate -n 0 --json -p '<|im_end|>' "$@" "$x" | jsonl 'd[0]["prompt_tokens"]'; }
    [ "$(p --template none --compat torchsharp)" -eq 1 ]
    [ "$(p --template none)" -gt 1 ]
    for o in '--chat' '--system x'; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr generate $o --template torchsharp -p x "$x"
        [[ $stderr == *'needs --template qwen3'* ]]
    done
}

@test "the context: a prompt that does not fit, an answer that reaches its end" {
    local t=$M/t.safetensors
    run -2 --separate-stderr ids "$t" --context 10
    [ -z "$output" ]
    [[ $stderr == *'11 tokens, the context has 10 (--context)'* ]]
    run -0 --separate-stderr ids "$t" --context 16 --json
    # The last token needs no place.
    [ "$(jsonl 'd[0]["stop"], len(d[0]["ids"])' <<<"$output")" = "('context', 6)" ]
    run -0 ids "$t" -n 6 --context 16 --json
    [ "$(jsonl 'd[0]["stop"]' <<<"$output")" = length ]
    run -2 --separate-stderr ids "$t" --context 257
    [[ $stderr == *'has 256 positions'* ]]
    run -0 ids "$t" -n 400 --json
    [ "$(jsonl 'd[0]["stop"], len(d[0]["ids"])' <<<"$output")" = "('context', 246)" ]
    # Without an own limit the cache grows as it must; the answer is the same.
    { for _ in 1 2 3 4 5 6 7 8; do echo 'one more turn'; done; } >turns
    generate --chat -n 20 "$M/x.safetensors" --json <turns | bare >a
    generate --chat -n 20 "$M/x.safetensors" --json --no-kv <turns | bare >b
    cmp a b
    { cat turns turns turns; } >many
    run -2 --separate-stderr bash -c 'generate --chat --no-drop -n 20 "$1" <many' bash "$M/x.safetensors"
    [[ $stderr == 'generate: turn '*': 4'??' tokens, the context has 400, and --no-drop keeps all turns' ]]
}

@test "a prompt that cannot be answered is one error; the others are answered, the end is 2" {
    local t=$M/t.safetensors
    printf '5 6\n%s\n5 x\n5 97\n\n7 8\n' "$PROMPT" >prompts
    generate --ids -n 3 -p '5 6' "$t" >a
    generate --ids -n 3 -p '7 8' "$t" >b
    run -2 --separate-stderr bash -c 'generate --ids -n 3 --context 10 "$1" <prompts >out' bash "$t"
    # A line for each prompt.
    { cat a && printf '\n\n\n' && cat b; } | cmp - out
    [ "${#stderr_lines[@]}" -eq 3 ]
    [ "${stderr_lines[0]}" = 'generate: <stdin>: line 2: 11 tokens, the context has 10 (--context)' ]
    [ "${stderr_lines[1]}" = 'generate: <stdin>: line 3: expected ids, found "x"' ]
    [[ ${stderr_lines[2]} == 'generate: <stdin>: line 4: id 97 at position 1: '* ]]
    run -2 --separate-stderr bash -c 'generate --ids -n 3 --context 10 --json "$1" <prompts >out' bash "$t"
    [ "$stderr" = 'generate: 3 of 5 prompts could not be answered: see "error"' ]
    jsonl 'd[1] == {"prompt": 1, "line": 2,
        "error": "<stdin>: line 2: 11 tokens, the context has 10 (--context)"} and
        [x.get("line") for x in d] == [None, 2, 3, 4, None]' <out | has -x True
    [ "$(jsonl '" ".join(map(str, d[4]["ids"]))' <out)" = "$(cat b)" ]
    # Of -p, too, and of text.
    run -2 --separate-stderr generate --ids -n 3 --context 10 -p "$PROMPT" -p '7 8' "$t"
    [ "${stderr_lines[0]}" = 'generate: prompt 0: 11 tokens, the context has 10 (--context)' ]
    [ "${lines[0]}" = "$(cat b)" ]
    generate -n 3 -p hi "$M/x.safetensors" >a
    seq -s ' ' 500 >long
    echo hi >>long
    run -2 --separate-stderr bash -c 'generate -n 3 "$1" <long >out' bash "$M/x.safetensors"
    { echo && cat a; } | cmp - out
    [[ $stderr == 'generate: <stdin>: line 1: '*' tokens, the context has 400' ]]
    # A turn that does not fit is none; the next one stands behind those that do.
    { echo one && cat long; } >turns
    printf 'one\nhi\n' | generate --chat -n 3 --json "$M/x.safetensors" >want
    run -2 --separate-stderr bash -c 'generate --chat -n 3 --json "$1" <turns >out' bash "$M/x.safetensors"
    [ "$(jsonl '[x["ids"] for x in d]' <want)" = "$(jsonl '[x["ids"] for x in d if "ids" in x]' <out)" ]
}

@test "a template that the tokenizer lacks a token for is an error of each prompt" {
    sed 's/<|im_start|>/<|in_start|>/' "$M/tokenizer.json" >t.json
    run -2 --separate-stderr generate -t t.json -n 1 -p x "$M/x.safetensors"
    [ -z "$output" ]
    [ "$stderr" = 'generate: prompt 0: template qwen3: the tokenizer has no added token <|im_start|>' ]
    run -0 generate -t t.json -n 1 -p x --template none "$M/x.safetensors"
}

# bats test_tags=native
@test "progress of many prompts: on a terminal that gets no answers, and nowhere else" {
    local m=$M/x.safetensors
    yes hi | head -n 60 >prompts || true
    generate -n 300 --ignore-eos "$m" <prompts >want
    # Standard error is a terminal, standard output a file.
    python3 - "$m" <<'PY'
import os, pty, re, subprocess, sys

def shown(*options, stdin):
    here, there = pty.openpty()
    with open("out", "wb") as out:
        p = subprocess.Popen(["generate", *options, "-n", "300", "--ignore-eos", sys.argv[1]],
                             stdin=stdin, stdout=out, stderr=there)
    os.close(there)
    got = b""
    try:
        while part := os.read(here, 4096):
            got += part
    except OSError:  # Linux's end of file
        pass
    assert p.wait(60) == 0
    return got, open("out", "rb").read()

want = open("want", "rb").read()
got, out = shown(stdin=open("prompts"))
assert out == want
assert re.search(rb"\rgenerate: \d+ prompts, [\d.]+ tok/s, \d+ %, \d+ s left\x1b\[K", got), got
assert got.endswith(b"\r\x1b[K"), got
# Of a pipe it is not known how many are left.
got, out = shown(stdin=subprocess.Popen(["cat", "prompts"], stdout=subprocess.PIPE).stdout)
assert out == want and b" prompts, " in got and b"left" not in got, got
for o in (["-q"], ["--chat", "--context", "399"]):
    got, out = shown(*o, stdin=open("prompts") if o == ["-q"] else subprocess.DEVNULL)
    assert got == b"", got
got, out = shown("-p", "hi", stdin=subprocess.DEVNULL)
assert got == b"" and want.startswith(out), got
PY
    run -0 --separate-stderr generate -n 300 --ignore-eos "$m" <prompts
    [ -z "$stderr" ]
}

# bats test_tags=native
@test "keys and values above what is free: 3, and the largest context that fits" {
    local n so
    so=$(realpath -m "${NIBBLE_BUILD:-$HERE/../build}")/machine.so
    mkdir -p machine/proc/self
    : >machine/proc/self/cgroup
    echo 'MemAvailable: 30 kB' >machine/proc/meminfo
    export MACHINE=$PWD/machine LD_PRELOAD=$so
    run -3 --separate-stderr ids "$M/t.safetensors" -q -n 1000 --device cpu
    [ -z "$output" ]
    [[ $stderr =~ ^'generate: keys and values of '[0-9]+' tokens need '.*' GB, this machine has 0.000 free: --context '([0-9]+)' is the largest that fits'$ ]]
    n=${BASH_REMATCH[1]}
    [ "$n" -gt 11 ]
    run -0 --separate-stderr ids "$M/t.safetensors" -q -n 1000 --device cpu --context "$n"
    [ "$(wc -w <<<"$output")" -eq $((n + 1 - 11)) ]
    # A cache that cannot be doubled grows as far as it can.
    run -3 --separate-stderr ids "$M/t.safetensors" -q -n 1000 --device cpu --context $((n + 1))
}

@test "-n 0 computes the prompt only" {
    run -0 --separate-stderr ids "$M/t.safetensors" -n 0
    [ -z "$output" ]
    ids "$M/t.safetensors" -n 0 --dump-layers h
    # shellcheck disable=SC2086
    qwen layers "$M/t.safetensors" "$M/c.json" h $PROMPT
}

@test "-v tells speed and device; -q and success are silent" {
    run -0 --separate-stderr ids "$M/t.safetensors" -n 3 -v
    [[ $stderr == *'device: cpu'*'prefill 11 tokens, '*' tok/s; decode 2 tokens, '*' tok/s'* ]]
    run -0 --separate-stderr ids "$M/t.safetensors" -n 3
    [ -z "$stderr" ]
}

# ---- requests ---------------------------------------------------------------------------

@test "--input jsonl: each request gets the bytes that it gets alone, in order, ids kept" {
    python3 - "$M/x.safetensors" <<'PY'
import json, subprocess, sys
model = sys.argv[1]
base = ["generate", "--json", "-n", "7", "--temp", "0.3"]
option = {"max_tokens": "-n", "temperature": "--temp", "top_p": "--top-p", "top_k": "--top-k",
          "seed": "--seed", "stop": "--stop"}
requests = [
    {"id": "a", "prompt": "Hello there"},
    {"id": 7, "prompt": "Hello there", "seed": 3, "temperature": 1.5},
    {"prompt": "Hello there", "temperature": 0, "max_tokens": 12},
    {"max_tokens": 40, "temperature": 2, "top_p": 0.8, "top_k": 30, "seed": 4294967295, "prompt": "x"},
    {"id": "\u4f60", "prompt": "\u4f60\u597d", "seed": None, "stop": ["e", "nowhere"], "max_tokens": 60,
     "temperature": 3},
    {"id": 1.50, "ids": [5, 6, 3097], "max_tokens": 0},
    {"id": "a", "ids": [5, 6, 7], "temperature": 1, "stop": "a"},
    {"messages": [{"role": "user", "content": "Hello there"}], "seed": 9, "temperature": 1},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}],
     "seed": 9, "temperature": 1},
    {"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "x", "time": 1}]},
]

def bare(text):
    d = json.loads(text)
    del d["timing"], d["prompt"]
    return d

def alone(r, *more):
    args = base + list(more)
    for key, name in option.items():
        v = r.get(key)
        for x in v if isinstance(v, list) else [] if v is None else [v]:
            args += [name, str(x)]
    if "ids" in r:
        tokenizer = [] if "stop" not in r else ["-t", model.replace("x.safetensors", "tokenizer.json")]
        args += ["--ids", *tokenizer, "-p", " ".join(map(str, r["ids"]))]
    elif "prompt" in r:
        args += ["-p", r["prompt"]]
    else:
        *first, user = r["messages"]
        for m in first:
            args += ["--system", m["content"]]
        text = user["content"]
        args += ["-p", text if isinstance(text, str) else "".join(part["text"] for part in text)]
    d = bare(subprocess.check_output(args + [model]))
    return d

def ask(requests, *more):
    lines = "\n".join(json.dumps(r) for r in requests)
    said = subprocess.run(base + ["--input", "jsonl", *more, model], input=lines + "\n", text=True,
                          capture_output=True, check=True)
    assert said.stderr == "", said.stderr
    return said.stdout.splitlines()

def check(requests, said, *more):
    assert len(said) == len(requests)
    for i, (r, line) in enumerate(zip(requests, said)):
        assert json.loads(line)["prompt"] == i
        d, want = bare(line), alone(r, *more)
        assert d.pop("id", None) == r.get("id"), line
        if want["text"] is None:      # of --ids without a tokenizer
            del d["text"], want["text"]
        assert d == want, (r, d, want)

said = ask(requests)
check(requests, said)
assert '"id":"\\u4f60"' in said[4] and '"id":1.5,' in said[5]
texts = [r for r in requests if "ids" not in r and r.get("messages", [{}])[0].get("role") != "system"]
check(texts, ask(texts, "--system", "Be brief", "--top-logprobs", "2"), "--system", "Be brief",
      "--top-logprobs", "2")
check(texts[:4], ask(texts[:4], "--template", "none"), "--template", "none")
# Whatever stands before and behind it, and without a line end.
back = [bare(x) for x in ask(requests[::-1])][::-1]
assert back == [bare(x) for x in said]
one = subprocess.run(base + ["--input", "jsonl", model], input=json.dumps(requests[1]), text=True,
                     capture_output=True, check=True).stdout
assert bare(one) == bare(said[1])
# A request's own system message, and none of the options.
own = ask(requests[-1:], "--system", "Another")
assert bare(own[0]) == bare(said[-1])
# Options hold where a request says nothing.
assert len(json.loads(ask([{"prompt": "x"}])[0])["ids"]) <= 7
PY
}

@test "--input jsonl: what is wrong is an object with line and field; the others are answered" {
    python3 - "$M/x.safetensors" <<'PY'
import json, re, subprocess, sys
model = sys.argv[1]
bad = [  # line, field, id, what the error has
    ('{"id":"q","prompt":"x","temprature":1}', "temprature", "q", 'unknown field: expected "temperature"?'),
    ('{"temprature":1,"prompt":"x","id":"q"}', "temprature", "q", "byte 14: "),
    ('{"id":1,"prompt":"x","maximal":5}', "maximal", 1, "unknown field; generate(1) lists them"),
    ('{"id":1,"prompt":"x","max_new_tokens":5}', "max_new_tokens", 1, 'unknown field: expected "max_tokens"?'),
    ('{"id":2,"text":"x"}', "text", 2, 'unknown field: expected "prompt"?'),
    ('{"prompt":5}', "prompt", None, "expected a string, found 5"),
    ('{"prompt":"x","max_tokens":-1}', "max_tokens", None, "found -1"),
    ('{"prompt":"x","max_tokens":2147483648}', "max_tokens", None, "0 to 2147483647"),
    ('{"prompt":"x","max_tokens":1.5}', "max_tokens", None, "1.5"),
    ('{"prompt":"x","temperature":"hot"}', "temperature", None, "expected a number"),
    ('{"prompt":"x","temperature":-0.5}', "temperature", None, "at least 0"),
    ('{"prompt":"x","top_p":1.01}', "top_p", None, "0 to 1"),
    ('{"prompt":"x","top_k":4294967296}', "top_k", None, "0 to 4294967295"),
    ('{"prompt":"x","seed":4294967296}', "seed", None, "0 to 4294967295"),
    ('{"prompt":"x","stop":""}', "stop", None, "not empty"),
    ('{"prompt":"x","stop":["a",""]}', "stop", None, "not empty"),
    ('{"prompt":"x","stop":[1]}', "stop", None, "expected a string"),
    ('{"prompt":"x","stop":[%s]}' % ",".join(['"a"'] * 65), "stop", None, "at most 64"),
    ('{"prompt":"x","id":["a"]}', "id", None, "expected a string or a number"),
    ('{"prompt":"x","prompt":"y"}', "prompt", None, "is there twice"),
    ('{"prompt":"x","ids":[1]}', "ids", None, 'one of "prompt", "messages" and "ids"'),
    ('{"id":2}', None, 2, 'expected "prompt", "messages" or "ids"'),
    ('{"ids":[5,3098]}', "ids", None, "id 3098 at position 1: the model's vocab_size is 3098"),
    ('{"ids":[5,-1]}', "ids", None, "-1"),
    ('{"ids":[]}', "ids", None, "a prompt without a token"),
    ('{"ids":[%s]}' % ",".join(["5"] * 401), "ids", None, "401 tokens, the context has 400"),
    ('{"id":"long","prompt":"%s"}' % ("a b " * 900), "prompt", "long", " tokens, the context has 400"),
    ('{"messages":[]}', "messages", None, "expected messages, found none"),
    ('{"messages":{}}', "messages", None, "expected an array"),
    ('{"messages":[{"role":"user"}]}', "messages", None, 'with "role" and "content"'),
    ('{"messages":[{"role":"nobody","content":"x"}]}', "messages", None, 'found "nobody"'),
    ('{"messages":[{"role":"user","content":"x","tool_calls":[1]}]}', "messages", None, "not supported"),
    ('{"id":"a","prompt":"x"', None, "a", "the end of the JSON text"),
    ('{"prompt":"x"} {}', None, None, "byte 15"),
    ('["x"]', None, None, "expected an object"),
    ('hello', None, None, "expected an object"),
    (b'{"prompt":"\xff"}', "prompt", None, "not UTF-8"),
]
good = {"id": "good", "prompt": "Hello there"}
lines = b""
for text, *_ in bad:
    lines += json.dumps(good).encode() + b"\n"
    lines += (text if isinstance(text, bytes) else text.encode()) + b"\n\n"
base = ["generate", "-n", "3", "--input", "jsonl", model]
said = subprocess.run(base, input=lines, capture_output=True)
assert said.returncode == 2
n = len(bad)
assert said.stderr.decode() == 'generate: %d of %d prompts could not be answered: see "error"\n' % (n, 2 * n), said.stderr
out = [json.loads(x) for x in said.stdout.splitlines()]
assert [x["prompt"] for x in out] == list(range(2 * n))
for i, (text, field, id, words) in enumerate(bad):
    ok, d = out[2 * i], out[2 * i + 1]
    assert ok["id"] == "good" and ok["ids"] == out[0]["ids"] and len(ok["ids"]) == 3
    assert d["line"] == 3 * i + 2 and d.get("field") == field and d.get("id") == id, (text, d)
    where = "<stdin>: line %d: " % d["line"] + ('"%s": ' % field if field else "")
    assert d["error"].startswith(where) and words in d["error"], (text, d)
    assert not {"text", "ids"} & set(d)
# Several at a time: the same.
timing = re.compile(rb'"timing":{[^}]*}')
many = subprocess.run(base + ["--batch", "5"], input=lines, capture_output=True)
assert (many.returncode, many.stderr) == (2, said.stderr)
assert timing.sub(b"", many.stdout) == timing.sub(b"", said.stdout)
# Only errors, and a last line that was cut.
said = subprocess.run(base, input=b'{"prompt":"x', capture_output=True)
assert said.returncode == 2 and json.loads(said.stdout)["line"] == 1
PY
}

@test "--input jsonl: what clients of servers send; what would change the answer is refused by name" {
    python3 - "$M/x.safetensors" <<'PY'
import json, subprocess, sys
model = sys.argv[1]
base = ["generate", "-n", "5", "--input", "jsonl"]

def ask(lines, *more, status=0):
    text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n"
    r = subprocess.run(base + [*more, model], input=text, capture_output=True, text=True)
    assert r.returncode == status, r.stderr
    return [json.loads(x) for x in r.stdout.splitlines()], r.stderr

messages = [{"role": "user", "content": "Hello there"}]
plain = {"messages": messages, "max_tokens": 4, "temperature": 1, "seed": 5}
idle = {"model": "Qwen/Qwen3-4B", "user": "u", "metadata": {"a": [1]}, "store": False, "stream": False,
        "stream_options": None, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True,
        "response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {}, "presence_penalty": 0.0,
        "frequency_penalty": 0, "repeat_penalty": 1.0, "min_p": 0, "min_tokens": 0, "ignore_eos": False, "best_of": 1,
        "logprobs": True, "top_logprobs": None, "echo": False, "suffix": "", "cache_prompt": True,
        "reasoning_effort": None}
same = [
    plain,
    {"messages": messages, "max_completion_tokens": 4, "max_tokens": None, "temperature": 1, "top_p": 1, "top_k": -1,
     "seed": 5, "n": 1, "stop": None, "repetition_penalty": 1.0, "chat_template_kwargs": {}, **idle},
    {"messages": messages, "n_predict": 4, "temperature": 1, "seed": 5, "stop": [], "n": None},
    '{"messages":[{"role":"user","content":"Hello there"}],"max_tokens":4,"temperature":1,"seed":5,'
    '"response_format" : { "type" :\t"text" }, "presence_penalty":0e3, "logit_bias": { }, "top_k": -1.0}',
    dict(plain, **{k: None for k in idle}),
]
said, words = ask(same)
assert words == "", words
assert all(x["ids"] == said[0]["ids"] and len(x["ids"]) == 4 for x in said), said
# Which had no effect is said once, with -v.
words = ask([plain, {**plain, "model": "m", "stream": False}, {**plain, "model": "k"}], "-v")[1]
assert words.splitlines()[-1] == 'generate: requests: fields without an effect: "model", "stream"', words
assert "without an effect" not in ask([plain], "-v")[1]
# A penalty of a request is that of the option; the switch of thinking comes in two ways.
want = json.loads(subprocess.check_output(
    ["generate", "--json", "-n", "9", "--temp", "1", "--seed", "5", "--repeat-penalty", "7.5", "-p", "Hello there", model]))
have = ask([{**plain, "max_tokens": 9, "repetition_penalty": 7.5}])[0][0]
assert have["ids"] == want["ids"] and have["logprobs"] == want["logprobs"]
for think in (True, False):
    a, b = ask([{**plain, "enable_thinking": think}, {**plain, "chat_template_kwargs": {"enable_thinking": think}}])[0]
    assert a["prompt_tokens"] == b["prompt_tokens"] and "reasoning_content" in a and "reasoning_content" in b

bad = [  # field, value, what the error has
    ("stream", True, "is not supported: expected false; answers are written when they are complete"),
    ("tools", [{"type": "function"}], "expected []"),
    ("tool_choice", "required", 'expected "none" or "auto"'),
    ("response_format", {"type": "json_object"}, 'expected {"type":"text"}'),
    ("logit_bias", {"5": 1}, "expected {}"),
    ("presence_penalty", 0.5, 'expected 0; "repetition_penalty" is supported'),
    ("frequency_penalty", -2, "expected 0"),
    ("frequency_penalty", "0", "expected 0"),
    ("presence_penalty", False, "expected 0"),
    ("min_p", 0.05, "expected 0"),
    ("repeat_penalty", 1.1, "expected 1"),
    ("top_logprobs", 5, "expected 0; --top-logprobs"),
    ("logprobs", 1, "expected true or false or 0"),
    ("echo", True, "expected false"),
    ("ignore_eos", True, "--ignore-eos"),
    ("best_of", 2, "expected 1"),
    ("grammar", "root ::= [0-9]", 'expected ""'),
    ("guided_json", {"type": "object"}, "expected {}"),
    ("reasoning_effort", "high", "enable_thinking"),
    ("chat_template_kwargs", {"think": 1}, '"think": is not supported: expected "enable_thinking"'),
    ("chat_template_kwargs", {"enable_thinking": 1}, "expected true or false"),
    ("chat_template_kwargs", 5, "expected an object"),
    ("repetition_penalty", 0, "expected a number of 1e-06 to 1e+06"),
    ("max_completion_tokens", 5, 'means the same as "max_tokens"'),
    ("presence_penality", 0, 'unknown field: expected "presence_penalty"?'),
    ("n", 0, "expected a number of 1 to 65536"),
    ("n", 65537, "0 to 65536"),
    ("top_k", -2, "-2"),
]
out, words = ask([{**plain, field: value} for field, value, _ in bad] + [plain], status=2)
for (field, _, words), d in zip(bad, out):
    assert d.get("field") == field and words in d["error"] and "ids" not in d, (field, d)
assert out[-1]["ids"] == said[0]["ids"] and len(out) == len(bad) + 1
twice = '{"prompt":"x","enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false}}'
d = ask([twice, '{"prompt":"x","model":"a","model":"a"}'], status=2)[0]
assert "is there twice" in d[0]["error"] and "is there twice" in d[1]["error"], d
PY
}

@test "--answers N and \"n\": answers that are drawn apart, the same bytes at any --batch" {
    local x=$M/x.safetensors t=$M/t.safetensors n
    printf 'one\nHello there\nthree\n' >lines
    generate --temp 1 -n 9 --json "$x" <lines | bare >single
    generate --temp 1 -n 9 --json --answers 3 "$x" <lines | bare >want
    [ "$(wc -l <want)" -eq 9 ]
    jsonl '[(x["prompt"], x["answer"]) for x in d] == [(p, a) for p in range(3) for a in range(3)] and
        len({tuple(x["ids"]) for x in d}) == 9' <want | has -x True
    # The first of them is the one that there is without, and fewer answers are the first ones.
    grep '"answer":0,' want | sed 's/"answer":0,//' | cmp - single
    generate --temp 1 -n 9 --json --answers 2 "$x" <lines | bare | cmp - <(grep -v '"answer":2,' want)
    for n in 2 3 5 64; do
        generate --temp 1 -n 9 --json --answers 3 --batch $n "$x" <lines | bare | cmp - want
    done
    # As text, a line each; a prompt that cannot be answered has one error.
    generate --ids --temp 1 -n 3 --answers 2 -p '1 2' -p '3' "$t" >a
    [ "$(sort -u a | wc -l)" -eq 4 ]
    generate --ids --temp 1 -n 3 --answers 2 --batch 3 -p '1 2' -p '3' "$t" | cmp - a
    generate --ids --temp 1 -n 3 --answers 1 -p '1 2' -p '3' "$t" | cmp - <(sed -n '1p;3p' a)
    run -2 --separate-stderr generate --ids --temp 1 -n 3 --answers 2 -p 'x' -p '3' "$t"
    [ "${lines[*]}" = "$(sed -n 3,4p a | paste -sd " ")" ]
    [ "$stderr" = 'generate: prompt 0: expected ids, found "x"' ]
    # Requests with numbers of their own, between others; one that is alone is the first of many.
    printf '%s\n' '{"id":"a","ids":[1,2],"temperature":1,"n":3}' '{"ids":[5,99]}' '{"ids":[5]}' \
        '{"id":7,"ids":[1,2],"temperature":1}' '{"ids":[3],"n":2,"temperature":0}' '{"ids":[3],"n":1,"temperature":0}' >r
    run -2 --separate-stderr bash -c 'generate --ids -n 4 --input jsonl "$1" <r >out' bash "$t"
    [ "$stderr" = 'generate: 2 of 6 prompts could not be answered: see "error"' ]
    bare <out >want
    jsonl '[(x["prompt"], x.get("answer"), x.get("id"), x.get("field")) for x in d] == [
        (0, 0, "a", None), (0, 1, "a", None), (0, 2, "a", None), (1, None, None, "ids"), (2, None, None, None),
        (3, None, 7, None), (4, None, None, "n"), (5, None, None, None)] and
        d[0]["ids"] == d[5]["ids"] != d[1]["ids"] and "at temperature 0 all answers are equal" in d[6]["error"]' <want |
        has -x True
    for n in 2 4; do
        run -2 --separate-stderr bash -c 'generate --ids -n 4 --batch $2 --input jsonl "$1" <r >out' bash "$t" $n
        bare <out | cmp - want
    done
    # --answers is what a request has that does not say.
    generate --ids --temp 1 -n 4 --answers 3 --input jsonl "$t" <<<'{"id":"a","ids":[1,2]}' | bare | cmp - <(head -n 3 want)
    # One who waits for answers gets all of them before the next prompt is written.
    python3 - "$t" <<'PY'
import subprocess, sys
p = subprocess.Popen(["generate", "--ids", "--temp", "1", "-n", "3", "--batch", "2", "--answers", "3", sys.argv[1]],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
for line in (b"1\n", b"2\n"):
    p.stdin.write(line)
    for _ in range(3):
        assert p.stdout.readline().count(b" ") == 2
p.stdin.close()
assert p.wait(20) == 0
PY
    run -0 --separate-stderr generate --ids --temp 1 -n 3 -v --answers 2 -p 1 "$t"
    [[ $stderr == *'prompt 0, answer 0: prefill'*'prompt 0, answer 1: prefill'* ]]
    refuse '--answers: at temperature 0 all answers are equal: expected --temp above 0' \
        generate --ids --answers 2 -p 1 "$t"
    for n in --chat '--logits l' '--dump-layers l'; do
        # shellcheck disable=SC2086  # two words
        refuse '--answers: not with --' generate --temp 1 --answers 2 -p x $n "$x"
    done
    refuse 'want 1..65536' generate --temp 1 --answers 0 -p x "$x"
    refuse 'not with prompts' generate --temp 1 --answers 2 --score s.tok "$x"
}

@test "prompts: a byte order mark and blank lines are none; half a line does not hold up the others" {
    run -0 bash -c "printf '\xef\xbb\xbf{\"ids\":[5,6]}\n  \t\n\r\n{\"ids\":[7]}\r\n' |
        generate -q --ids --json --input jsonl -n 2 '$M/t.safetensors'"
    [ "${#lines[@]}" -eq 2 ]
    [[ ${lines[0]} == *'"prompt":0'*'"prompt_tokens":2'* && ${lines[1]} == *'"prompt":1'*'"prompt_tokens":1'* ]]
    # The answer to the first line comes while the second one is being written.
    mkfifo in out
    generate -q --ids --json --input jsonl --batch 2 -n 2 "$M/t.safetensors" <in >out &
    exec 8>in 9<out
    printf '{"ids":[5,6]}\n{"ids":' >&8
    read -r -t 60 first <&9
    [[ $first == *'"prompt":0'* ]]
    printf '[7]}\n' >&8
    exec 8>&-
    read -r -t 60 second <&9
    [[ $second == *'"prompt":1'* ]]
    wait $!
}

@test "--input jsonl: no tokenizer, a template without its tokens, nothing at all" {
    local t=$M/t.safetensors x=$M/x.safetensors
    printf '{"prompt":"x"}\n{"ids":[5],"stop":"a"}\n{"ids":[5]}\n' >r
    run -2 --separate-stderr bash -c 'generate --ids -n 2 --input jsonl "$1" <r >out' bash "$t"
    [ "$(jsonl '[x.get("field") for x in d]' <out)" = "['prompt', 'stop', None]" ]
    [ "$(jsonl 'd[2]["text"], len(d[2]["ids"])' <out)" = '(None, 2)' ]
    sed 's/<|im_end|>/<|in_end|>/' "$M/tokenizer.json" >t.json
    run -2 --separate-stderr bash -c 'generate -t t.json -n 2 --input jsonl "$1" <r >out' bash "$x"
    jsonl 'd[0]["field"] == "prompt" and d[0]["error"].endswith("has no added token <|im_end|>")' <out |
        has -x True
    [ "$(jsonl '["error" in x for x in d]' <out)" = '[True, False, False]' ]
    run -0 --separate-stderr generate --input jsonl "$x" </dev/null
    [ -z "$output" ]
    [ "$stderr" = 'generate: <stdin>: no requests' ]
    quiet generate -q --input jsonl "$x" </dev/null
    # A reader that leaves in the middle ends it quietly.
    yes '{"ids":[5,6]}' | head -n 3000 >many || true
    run -0 --separate-stderr bash -c 'generate --ids -n 3 --input jsonl "$1" <many | head -n 1' bash "$t"
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 1 ]
    local o
    for o in '-p x' --chat '--logits l' '--dump-layers l'; do
        # shellcheck disable=SC2086  # two words
        refuse '--input jsonl: not with --' generate --input jsonl $o "$x"
    done
    refuse 'want one of lines, jsonl' generate --input tsv "$x"
}

# ---- several at a time ----------------------------------------------------------------------

# requests N: as JSONL, of many lengths, with settings of many kinds.
requests() {
    python3 - "$1" <<'PY'
import json, random, sys
r = random.Random(5)
for i in range(int(sys.argv[1])):
    q = {"id": i, "ids": [r.randrange(83) for _ in range(r.choice((1, 2, 3, 7, 16, 40)))],
         "max_tokens": r.choice((0, 1, 2, 5, 9, 30))}
    if i % 3:
        q.update(temperature=1.5, seed=i // 2, top_k=r.choice((0, 5, 40)), top_p=r.choice((0.5, 0.9, 1)))
    print(json.dumps(q))
PY
}

@test "--batch: each answer has the bytes that it has alone, in order, whatever else there is" {
    local n how m isa
    requests 70 >r
    nvquant -q --quant sweep -o n.safetensors "$M/t.safetensors"
    for m in "$M/t.safetensors" "$M/u.safetensors" n.safetensors; do
        for how in '' '--compute bf16' '--activations nvfp4'; do
            [[ $how != --act* || $m == n.* ]] || continue
            # shellcheck disable=SC2086  # several words
            generate --ids --input jsonl $how "$m" <r | bare >want
            [ "$(wc -l <want)" -eq 70 ]
            for n in 2 3 8 17 64; do
                # shellcheck disable=SC2086
                generate --ids --input jsonl --batch $n $how "$m" <r | bare | cmp - want
            done
            # shellcheck disable=SC2086
            generate --ids --input jsonl --batch 8 -j 1 --prefill-chunk 3 $how "$m" <r | bare | cmp - want
        done
    done
    isas
    generate --ids --input jsonl "$M/t.safetensors" <r | bare >want
    for isa in $isas; do
        NIBBLE_ISA=$isa generate --ids --input jsonl --batch 8 "$M/t.safetensors" <r | bare | cmp - want
    done
    # Alone, as another program run.
    head -n 41 r | tail -n 1 >one
    generate --ids --input jsonl "$M/t.safetensors" <one | bare | sed 's/"prompt":0/"prompt":40/' >alone
    sed -n 41p want | cmp - alone
}

@test "--batch: lines of text, ids and -p; greedy and drawn; a prompt in error among them" {
    local x=$M/x.safetensors n
    for n in $(seq 40); do seq -s ' ' $((n % 7)) $((n + 1)); done >lines
    sed -i '7s/.*/'"$(seq -s ' ' 500)"'/; 20s/.*/\xff/' lines
    run -2 --separate-stderr bash -c 'generate -n 9 "$1" <lines >want' bash "$x"
    said=$stderr
    run -2 --separate-stderr bash -c 'generate -n 9 --batch 7 "$1" <lines >out' bash "$x"
    cmp out want
    [ "$stderr" = "$said" ]
    [ "${#stderr_lines[@]}" -eq 2 ]
    run -2 bash -c 'generate -n 9 --json --temp 1 --stop e "$1" <lines 2>/dev/null >want' bash "$x"
    run -2 bash -c 'generate -n 9 --json --temp 1 --stop e --batch 5 "$1" <lines 2>/dev/null >out' bash "$x"
    bare <want >a
    bare <out | cmp - a
    generate --ids -n 5 -p '1 2' -p '3' -p '4 5 6' "$M/t.safetensors" >want
    generate --ids -n 5 -p '1 2' -p '3' -p '4 5 6' --batch 2 "$M/t.safetensors" | cmp - want
    # Answers that end where the context does, and those that need a larger cache.
    generate --ids --ignore-eos -n 1000 --json -p 1 -p '2 3' -p 4 "$M/t.safetensors" | bare >want
    generate --ids --ignore-eos -n 1000 --json -p 1 -p '2 3' -p 4 --batch 3 "$M/t.safetensors" | bare | cmp - want
    # One line at a time, from one who waits for each answer.
    python3 - "$x" <<'PY'
import subprocess, sys
p = subprocess.Popen(["generate", "--json", "-n", "3", "--batch", "8", sys.argv[1]],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
for line in (b"one\n", b"two\n", b"three\n"):
    p.stdin.write(line)
    assert b'"text"' in p.stdout.readline()
p.stdin.close()
assert p.wait(60) == 0
PY
    run -0 --separate-stderr bash -c 'yes "5 6" | head -n 3000 | generate --ids -n 3 --batch 4 "$1" | head -n 1' \
        bash "$M/t.safetensors"
    [ -z "$stderr" ]
    for o in --chat '--logits l' '--dump-layers l' --no-kv; do
        # shellcheck disable=SC2086  # two words
        refuse '--batch: not with --' generate --batch 2 -p x $o "$x"
    done
    refuse 'want 1..64' generate --batch 65 -p x "$x"
}

@test "--batch: ids out of range, no prompts at all, a template without its tokens, a reader that leaves" {
    local t=$M/t.safetensors x=$M/x.safetensors n
    printf '%s\n' '5 6' '97' '7' '5 4294967296' '8 9' >prompts
    run -2 --separate-stderr bash -c 'generate --ids -n 3 "$1" <prompts >want' bash "$t"
    said=$stderr
    [ "${#stderr_lines[@]}" -eq 2 ]
    [[ $stderr == *'line 2: id 97 at position 0: '*'line 4: id '*' at position 1: '* ]]
    [ "$(grep -c . want)" -eq 3 ]
    for n in 2 8; do
        run -2 --separate-stderr bash -c 'generate --ids -n 3 --batch "$2" "$1" <prompts >out' bash "$t" $n
        cmp out want
        [ "$stderr" = "$said" ]
    done
    # An empty file, and one of empty lines.
    for n in '' $'\n\n'; do
        printf %s "$n" >prompts
        run -0 --separate-stderr bash -c 'generate --batch 4 "$1" <prompts' bash "$x"
        [ -z "$output" ]
        [ "$stderr" = 'generate: <stdin>: no prompts: expected one a line, or -p TEXT' ]
        run -0 --separate-stderr bash -c 'generate -q --batch 4 "$1" <prompts' bash "$x"
        [ -z "$output$stderr" ]
        run -0 --separate-stderr bash -c 'generate --batch 4 --input jsonl "$1" <prompts' bash "$x"
        [ -z "$output" ]
        [ "$stderr" = 'generate: <stdin>: no requests' ]
    done
    sed 's/<|im_start|>/<|in_start|>/' "$M/tokenizer.json" >t.json
    printf '%s\n' '{"prompt":"x"}' '{"ids":[5]}' '{"prompt":"y"}' >r
    run -2 --separate-stderr bash -c 'generate -t t.json -n 2 --batch 3 --input jsonl "$1" <r >out' bash "$x"
    [ "$(jsonl '[x.get("field") for x in d]' <out)" = "['prompt', None, 'prompt']" ]
    printf 'x\ny\n' >prompts
    run -2 --separate-stderr bash -c 'generate -t t.json -n 2 --batch 3 "$1" <prompts' bash "$x"
    [ "${#stderr_lines[@]}" -eq 2 ]
    [[ $stderr == *'line 1: template qwen3: the tokenizer has no added token <|im_start|>'* ]]
    # It leaves after the first of answers of different lengths, which others wait for.
    for n in $(seq 1000); do echo "{\"ids\":[5,6],\"max_tokens\":$((n % 9))}"; done >r
    run -0 --separate-stderr bash -c 'generate --ids --batch 4 --input jsonl "$1" <r | head -n 1' bash "$t"
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 1 ]
    [[ ${lines[0]} == '{"prompt":0,'* ]]
}

# alike: requests that begin alike in many ways, and some that are in error.
alike() {
    python3 - <<'PY'
import json, random
r = random.Random(7)
system = [r.randrange(83) for _ in range(40)]
other = system[:17] + [r.randrange(83) for _ in range(20)]
ids = [system + [5, 6], system + [7], system, system[:9], system + [5, 6], other + [1], [9, 9], [8], [8],
       system + [5, 6], [], other, system + [5, 6, 7, 8], [0, 1, 500], other + [2], system, [system[0]], other[:18]]
for i, x in enumerate(ids * 2):
    q = {"id": i, "ids": x, "max_tokens": (0, 3, 1, 12, 7)[i % 5]}
    if i % 3:
        q.update(temperature=1.5, seed=i)
    print(json.dumps(q))
PY
}

# bats test_tags=slow
@test "prompts that begin alike: what they share is computed once, and answers are those alone" {
    local n how m isa computed
    alike >r
    nvquant -q --quant sweep -o n.safetensors "$M/t.safetensors"
    numbered() { bare | sed 's/"prompt":[0-9]*/"prompt":N/; s/"line":[0-9]*/"line":N/; s/: line [0-9]*: /: line N: /'; }
    # Each one by itself, in a process of its own.
    alone() {
        local line
        while read -r line; do
            generate --ids --input jsonl "$@" <<<"$line" 2>words || grep -q 'could not be answered' words
        done <r | numbered
    }
    for m in t.safetensors --compute\ bf16 --compute\ fp8 n.safetensors --activations\ nvfp4 --fast; do
        case $m in
        t*) how=$M/t.safetensors ;;
        n*) how=n.safetensors ;;
        *bf16) how="$m $M/u.safetensors" ;;
        *) how="$m --prefill-chunk 8 n.safetensors" ;;
        esac
        # shellcheck disable=SC2086  # several words
        alone -q $how >want
        [ "$(grep -c '"stop"' want)" -eq 32 ]
        [ "$(grep -c '"error"' want)" -eq 4 ]
        for n in 1 2 8 64; do
            # shellcheck disable=SC2086
            run -2 --separate-stderr bash -c 'generate -q --ids --input jsonl "$@" <r >said' bash --batch $n $how
            numbered <said | cmp - want
        done
        # Less is computed; with numbers that depend on how many tokens are computed together, whole
        # chunks are shared.
        computed=$(jsonl 'sum(x["timing"]["prefill_tokens"] for x in d if "ids" in x)' <said)
        [ "$computed" -lt "$(jsonl 'sum(x["prompt_tokens"] for x in d if "ids" in x)' <said)" ]
        [[ $how != *fp8* && $how != *--fast* ]] ||
            jsonl 'not [1 / 0 for x in d if "ids" in x and (x["prompt_tokens"] - x["timing"]["prefill_tokens"]) % 8]' <said
        [[ $how != $M/t* ]] || [ "$computed" -lt 300 ]
    done
    isas
    alone -q "$M/t.safetensors" >want
    for isa in $isas; do
        NIBBLE_ISA=$isa run -2 --separate-stderr bash -c 'generate -q --ids --input jsonl --batch 4 "$1" <r >said' bash "$M/t.safetensors"
        numbered <said | cmp - want
    done
}

@test "prompts that begin alike: how much was computed, with -v; a system text; another one after it" {
    local x=$M/x.safetensors n
    for n in 1 2 3; do
        # The 9 tokens once; then the last one of each, behind the first eight.
        run -0 --separate-stderr generate -v --ids -n 4 --ignore-eos --batch $n -p '1 2 3 4 5 6 7 8 9' \
            -p '1 2 3 4 5 6 7 8 10' -p '1 2 3 4 5 6 7 8 11' "$M/t.safetensors"
        [ "${#lines[@]}" -eq 3 ]
        [[ $stderr == *'generate: prompts: 27 tokens, 11 computed: an earlier prompt began with the others'* ]]
    done
    run -0 --separate-stderr generate -v --ids -n 4 --batch 2 -p '1 2' -p '3 1 2' -p '4' "$M/t.safetensors"
    [[ $stderr != *'began with'* ]]
    run -0 --separate-stderr generate --ids -n 4 --batch 2 -p '1 2' -p '1 2' "$M/t.safetensors"
    [ -z "$stderr" ]
    # A prompt may begin with another one and its answer; a cache that grows keeps what is shared.
    generate --ids -n 20 --ignore-eos -p '1 2 3' "$M/t.safetensors" >said
    { echo '1 2 3' && echo "1 2 3 $(cat said) $(seq -s ' ' 80)"; } >prompts
    while read -r n; do generate --ids -n 20 --ignore-eos "$M/t.safetensors" <<<"$n"; done <prompts >want
    generate -v --ids -n 20 --ignore-eos "$M/t.safetensors" <prompts 2>words | cmp - want
    grep 'prompts: 106 tokens, 84 computed' words
    # Text behind a system text, one after the other and several at a time; another text among them.
    for n in $(seq 12); do echo "question $n"; done >prompts
    while read -r n; do generate -n 9 --system "$(seq -s ' ' 20)" "$x" <<<"$n"; done <prompts >want
    for n in 1 5; do
        generate -v -n 9 --batch $n --system "$(seq -s ' ' 20)" "$x" <prompts 2>words | cmp - want
        python3 - <<'PY'
import re
all, computed = map(int, re.search(r"prompts: (\d+) tokens, (\d+) computed", open("words").read()).groups())
assert computed < all / 3, (all, computed)
PY
    done
}

# bats test_tags=native
@test "--batch: as many at a time as there is memory for, which is said" {
    local so
    so=$(realpath -m "${NIBBLE_BUILD:-$HERE/../build}")/machine.so
    requests 12 >r
    generate --ids --input jsonl "$M/t.safetensors" <r | bare >want
    mkdir -p machine/proc/self
    : >machine/proc/self/cgroup
    echo 'MemAvailable: 600 kB' >machine/proc/meminfo
    run -0 --separate-stderr env MACHINE="$PWD/machine" LD_PRELOAD="$so" bash -c 'generate --ids --input jsonl --batch 8 --device cpu "$1" <r >out' \
        bash "$M/t.safetensors"
    [ -z "$stderr" ]
    bare <out | cmp - want
    echo 'MemAvailable: 60 kB' >machine/proc/meminfo
    run -0 --separate-stderr env MACHINE="$PWD/machine" LD_PRELOAD="$so" bash -c 'generate --ids --input jsonl --batch 8 --device cpu "$1" <r >out' \
        bash "$M/t.safetensors"
    [ "$stderr" = 'generate: --batch: not enough memory for keys and values: 1 at a time' ]
    bare <out | cmp - want
}

# ---- scores ---------------------------------------------------------------------------------

samples() {
    cat >lines <<'END'
{"ids":[5,6,7,8,9,10,11],"mask":[0,0,0,1,1,1,0]}
{"ids":[90,80,70,60],"mask":[1,1,1,1]}
{"ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20],"mask":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1]}
END
    tokenize -q --input ids --emit tok -o s.tok lines
    tokenize -q --input ids --emit tok --seq-len 12 --pack -o p.tok - <<'END'
{"ids":[5,6,7,8]}
{"ids":[50,60,70]}
{"ids":[5,6,7,8,9]}
{"ids":[1,2,3,4,5,6,7,8,9,10,11,12]}
END
}

@test "--score: loss and perplexity of the reference, packed too, in any chunks" {
    local t=$M/t.safetensors
    samples
    for s in s p; do
        generate --score $s.tok "$t" >a
        qwen score "$t" "$M/c.json" a $s.tok
        for how in '--prefill-chunk 1' '--prefill-chunk 5' '-j 1'; do
            # shellcheck disable=SC2086
            generate --score $s.tok $how "$t" | cmp - a
        done
        generate --score - "$t" <$s.tok | cmp - a
        generate --score $s.tok --json "$t" >j
        [ "$(jsonl 'list(d[0])' <j)" = "['samples', 'tokens', 'targets', 'loss', 'perplexity']" ]
    done
    head -n 1 a | has -xP 'samples\ttokens\ttargets\tloss\tperplexity'
}

@test "--score with --logits and --kl" {
    local t=$M/t.safetensors
    samples
    nvquant -q --quant max "$t" -o n.safetensors
    for s in s p; do
        generate --score $s.tok --logits $s.a "$t" >/dev/null
        generate --score $s.tok --logits $s.b --prefill-chunk 3 --kl $s.a n.safetensors >kl
        qwen kl $s.a $s.b kl $s.tok
        generate --score $s.tok --kl $s.a "$t" >kl
        [ "$(tail -n 1 kl | cut -f 6,7)" = $'0\t1' ]
    done
    [ "$(datcat -l s.a | tr '\n' ' ')" = 'logits.0 logits.1 logits.2 ' ]
    # More than ten: names in the file's order are not numbers in order.
    for _ in 1 2 3 4 5; do cat lines; done >many.jsonl
    tokenize -q --input ids --emit tok -o m.tok many.jsonl
    generate --score m.tok --logits m.a "$t" >/dev/null
    generate --score m.tok --kl m.a --logits m.b "$t" >kl
    [ "$(tail -n 1 kl | cut -f 6,7)" = $'0\t1' ]
    qwen kl m.a m.b kl m.tok
    run -2 --separate-stderr generate --score s.tok --kl m.a "$M/u.safetensors"
    run -2 --separate-stderr generate --score m.tok --kl s.a "$t"
    [[ $stderr == *'"logits.3" is missing'* || $stderr == *'expected f32'* ]]
    run -2 --separate-stderr generate --score s.tok --kl m.a "$t"
    [[ $stderr == *'has 15 tensors for 3 samples' ]]
}

@test "--score with --kl-model: as by a file of the other model's logits" {
    local t=$M/t.safetensors s n
    samples
    nvquant -q --quant max "$t" -o n.safetensors
    for s in s p; do
        generate --score $s.tok --logits $s.a "$t" >/dev/null
        generate --score $s.tok --logits $s.b n.safetensors >b
        for n in 1 3 128; do
            generate -j $n --score $s.tok --kl-model "$t" --prefill-chunk $n n.safetensors >$s.$n
            qwen kl $s.a $s.b $s.$n $s.tok 2e-5
            python3 - b $s.$n <<'PY'
import sys
one, two = ([float(x) for x in open(f).read().split("\n")[1].split("\t")] for f in sys.argv[1:])
assert one[:3] == two[:3] and abs(one[3] - two[3]) < 1e-5, (one, two)
PY
        done
        cmp $s.1 $s.3
        cmp $s.1 $s.128
        # The other way round it is another divergence, and of itself none.
        generate --score $s.tok --kl-model n.safetensors "$t" >back
        run ! cmp -s back $s.1
        generate --score $s.tok --kl-model "$t" "$t" | tail -n 1 | cut -f 6-8 >self
        [ "$(cat self)" = $'0\t1\t0' ]
    done
    # Of a hundred equal documents the largest but one is still the largest of one.
    for _ in {1..40}; do cat lines; done | tokenize -q --input ids --emit tok -o many.tok -
    generate --score many.tok --logits m.a "$t" >/dev/null
    generate --score many.tok --logits m.b --kl m.a n.safetensors >kl
    qwen kl m.a m.b kl many.tok
    # --json has the same numbers.
    generate --json --score s.tok --kl-model "$t" n.safetensors >j
    python3 - s.1 <<'PY'
import json, sys
names, row = (x.split("\t") for x in open(sys.argv[1]).read().split("\n")[:2])
assert json.load(open("j")) == dict(zip(names, map(float, row)))
PY
    run -2 --separate-stderr generate --score s.tok --kl-model "$M/u.safetensors" "$t"
    [[ $stderr == *'its vocab_size is '*': models that are compared have the same' ]]
    run -2 --separate-stderr generate --score s.tok --kl-model nosuch "$t"
    [[ $stderr == 'generate: nosuch: No such file or directory: expected a model or another file of tensors' ]]
    run -2 --separate-stderr generate --score s.tok --kl-model "$t" --kl s.a "$t"
    [[ $stderr == *'--kl-model: not with --kl: '* ]]
    run -2 --separate-stderr generate --score - --kl-model - "$t" <s.tok
    [[ $stderr == *'standard input can be read once' ]]
    run -2 --separate-stderr generate --ids -p 5 --kl-model "$t" "$t"
    [[ $stderr == *'--kl-model: goes with --score'* ]]
}

@test "--score: samples of another vocabulary, of ids out of range, too long, damaged" {
    local t=$M/t.safetensors
    printf 'a\tb\n' | tokenize -q -t "$M/tokenizer.json" --emit tok -o big.tok -
    run -2 --separate-stderr generate --score big.tok "$t"
    [[ $stderr == *'a vocabulary of 3098, the model'*' 97' ]]
    printf '5 6\n7 97 8\n' | tokenize -q --input ids --emit tok -o out.tok -
    run -2 --separate-stderr generate --score out.tok "$t"
    [[ $stderr == *'sample 1: id 97 at position 1:'* ]]
    samples
    run -2 --separate-stderr generate --score s.tok --context 18 "$t"
    [[ $stderr == *'sample 2: 19 positions, the context has 18'* ]]
    # Of a bin each document has a context of its own.
    run -0 generate --score p.tok --context 11 "$t"
    run -2 --separate-stderr generate --score p.tok --context 10 "$t"
    [[ $stderr == *': 11 positions, the context has 10'* ]]
    head -c -5 s.tok >cut.tok
    run -2 --separate-stderr generate --score cut.tok --logits l "$t"
    [ -z "$output" ]
    [ ! -e l ]
    run -2 --separate-stderr generate --score "$t" "$t"
}

# bats test_tags=native
@test "--score: a file that is written into meanwhile is not what was checked" {
    local how
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    printf '5 6 7 8\n9 10 11 12\n' | tokenize -q --input ids --emit tok -o was.tok -
    printf '5 6 7 8\n9 10 11 13\n' | tokenize -q --input ids --emit tok -o other.tok -
    for how in nothing other cut; do
        cp was.tok live.tok
        paused open:1:stop:out.safetensors generate --score live.tok \
            --logits out.safetensors "$M/t.safetensors"
        [ $how != other ] || dd if=other.tok of=live.tok conv=notrunc status=none
        [ $how != cut ] || truncate -s 120 live.tok
        ended
        if [ $how = nothing ]; then
            [ $status -eq 0 ]
            [ -s out ]
            [ ! -s err ]
            rm out.safetensors
            continue
        fi
        echo "$how: $status $(cat err)"
        [ $status -eq 2 ]
        [ ! -s out ]
        [ ! -e out.safetensors ]
        grep -qE '^generate: live.tok: byte [0-9]+: sample [01]: was (overwritten|cut off) ' err
    done
}

@test "a checkpoint learns an answer and gives it; another tokenizer is refused or said" {
    printf '你是誰\t我是 F# 之神。\nhello\tworld\n' >d.tsv
    datpack -q "$M/x.safetensors" -o r.ckpt
    tokenize -q -t "$M/tokenizer.json" d.tsv -o d.tok
    trainstep -q -d d.tok -n 80 --batch 2 --lr 3e-3 r.ckpt >/dev/null
    cp "$M/tokenizer.json" .
    run -0 --separate-stderr generate -p 你是誰 -p hello r.ckpt
    [ "$output" = $'我是 F# 之神。\nworld' ]
    [ -z "$stderr" ]
    # What is exported in NVFP4 is the model that was trained.
    datpack -q --dtype nvfp4 r.ckpt -o r.dat
    run -0 generate -p 你是誰 -p hello r.dat
    [ "$output" = $'我是 F# 之神。\nworld' ]
    generate --score d.tok r.ckpt >a
    # Near to what the training saw: its losses are sums of f32.
    trainstep -q -d d.tok -n 1 --lr 0 --eval d.tok --log l.jsonl -o s.ckpt r.ckpt >/dev/null
    python3 -c 'import json
said = float(open("a").read().splitlines()[1].split("\t")[3])
want = json.loads(open("l.jsonl").read().splitlines()[-1])["eval_loss"]
assert abs(said - want) < 2e-6, (said, want)'
    sed 's/"version": *"1.0"/"version":   "1.0"/' tokenizer.json >t.json
    run -0 --separate-stderr generate -t t.json -p hello r.ckpt
    [ "$output" = world ]
    [[ $stderr == *'t.json: is not the tokenizer that the checkpoint was trained with: -t names that one' ]]
    tokenize -q -t t.json d.tsv -o e.tok
    run -2 --separate-stderr generate --score e.tok r.ckpt
    [[ $stderr == *'e.tok: made with another tokenizer than the data that the checkpoint was trained on: make it again with that one (tokenize -t)' ]]
}

# ---- what is refused --------------------------------------------------------------------------

@test "what cannot work here is refused with a word" {
    local t=$M/t.safetensors o
    for o in '--device cuda' '--device cuda:1' '--path native'; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr ids "$t" $o
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ $stderr == "generate: $o: "* ]]
    done
    for o in '--device cpu' '--device auto' '--compute f32' '--compute bf16' '--compute auto' '--path dequant' \
        '--path auto' '--activations plain'; do
        # shellcheck disable=SC2086
        run -0 --separate-stderr ids "$t" -n 1 $o
        [ -z "$stderr" ]
    done
}

@test "misuse" {
    local t=$M/t.safetensors
    bad() {
        run -2 --separate-stderr generate "$@" </dev/null
        [ "${#stderr_lines[@]}" -eq 1 ]
        [ -z "$output" ]
        [[ $stderr == 'generate: '* ]]
    }
    bad
    bad "$t" "$t"
    bad --ids -p '5 x' "$t"
    [[ $stderr == *'expected ids, found "x"'* ]]
    bad --ids -p '5 6a' "$t"
    bad --ids -p '5 -6' "$t"
    bad --ids -p '5 97' "$t"
    [[ $stderr == *'id 97 at position 1: '*' 97' ]]
    bad --ids -p '99999999999999999999999' "$t"
    bad --ids -p '' "$t"
    [[ $stderr == *'without a token'* ]]
    bad --ids --chat "$t"
    bad --ids --stop x -p 5 "$t"
    bad --top-logprobs 3 -p x "$t"
    bad --kl x -p x "$t"
    bad --score x -p x "$t"
    local o
    for o in --chat --ids '--system s' '--stop s' '--top-logprobs 2' '--dump-layers f' --no-kv '--template qwen3' '--input jsonl' '--batch 2'; do
        # shellcheck disable=SC2086  # two words
        bad --score x $o "$t"
        [[ $stderr == *'goes with --logits, --kl, --kl-model, --dump-importance and --json, not with prompts' ]]
    done
    bad --stop '' -p x "$t"
    bad --top-p 1.5 --ids -p 5 "$t"
    bad --repeat-penalty 0 --ids -p 5 "$t"
    bad --temp -1 --ids -p 5 "$t"
    bad --temp nan --ids -p 5 "$t"
    bad --seed 4294967296 --ids -p 5 "$t"
    bad --prefill-chunk 0 --ids -p 5 "$t"
    bad --quant fine --ids -p 5 "$t"
    bad --ids -p 5 -p 6 --logits l "$t"
    bad --ids -p 5 nosuchfile
    bad -
    bad -p $'\xff' "$M/x.safetensors"
    [[ $stderr == *'byte 0: not UTF-8'* ]]
    run -2 --separate-stderr bash -c 'printf "ok\nab\xc3\n" | generate -n 1 "$1"' bash \
        "$M/x.safetensors"
    [[ $stderr == *'line 2: byte 2: not UTF-8'* ]]
}

@test "no tokenizer, none that fits, no configuration: where was looked" {
    cp "$M/t.safetensors" .
    run -2 --separate-stderr generate -p x t.safetensors
    [[ $stderr == *'want -t tokenizer.json: none was given, and there is no tokenizer.json; it comes with the model'* ]]
    # A chat needs one in any case, and one of a chat model: said before weights are read.
    refuse 'want -t tokenizer.json: none was given, and there is no tokenizer.json; it comes with the model' \
        generate --chat t.safetensors </dev/null
    [[ $stderr != *--ids* ]]
    local token
    for token in im_start im_end; do
        sed "s/<|$token|>/<|other|>/" "$M/tokenizer.json" >t.json
        refuse "t.json: has no added token <|$token|>, which --chat needs: expected the tokenizer.json of a chat model; -p TEXT --template none continues a text" \
            generate -t t.json --chat "$M/x.safetensors" </dev/null
    done
    datpack -q -o d/ t.safetensors
    run -2 --separate-stderr generate -p x d/
    [[ $stderr == *'there is no d/tokenizer.json; '* ]]
    run -2 --separate-stderr generate -t "$M/tokenizer.json" -p x t.safetensors
    [[ $stderr == *'has 3098 tokens, the model'*' 97: expected the tokenizer.json that came with the model' ]]
    run -2 --separate-stderr generate -t nosuch -p x t.safetensors
    [[ $stderr == *nosuch* ]]
    # A directory is where it lies.
    run -0 generate -t "$M" -n 1 -p x "$M/x.safetensors"
    # A request that nobody asked to read as one.
    run -0 --separate-stderr generate -t "$M" -n 1 "$M/x.safetensors" <<<'{"prompt":"hi"}'
    [ "$stderr" = 'generate: <stdin>: line 1: looks like a request, and is answered as a text: --input jsonl reads requests' ]
    run -0 --separate-stderr generate -t "$M" -n 1 "$M/x.safetensors" <<<'{prompt}'
    [ -z "$stderr" ]
    mkdir e
    datpack -q t.safetensors -o e/t.dat
    rm -f e/t.dat.json
    run -2 --separate-stderr ids e/t.dat
    [[ $stderr == *'no configuration: looked for --config'* ]]
    run -0 ids e/t.dat --config "$M/c.json" -n 1
    run -2 --separate-stderr ids e/t.dat --config nosuch
    echo '{"model_type": "llama"}' >e/config.json
    run -2 --separate-stderr ids e/t.dat
}

@test "missing, extra and wrongly shaped tensors are refused by name" {
    local t=$M/t.safetensors c=$M/c.json
    datpack -q -x '*0.mlp.up_proj*' -o a.dat "$t"
    run -2 --separate-stderr ids a.dat --config "$c"
    [[ $stderr == *'"model.layers.0.mlp.up_proj.weight" is missing' ]]
    datpack -q --rename model.norm.weight=model.norm.bias -o b.dat "$t"
    run -2 --separate-stderr ids b.dat --config "$c"
    [[ $stderr == *'"model.norm.weight" is missing' ]]
    printf '\x01\x01\x78\x06\x01\x01\x00\x00\x00\x00' >x.dat
    datpack -q -o e.dat "$t" x.dat
    run -2 --separate-stderr ids e.dat --config "$c"
    [[ $stderr == *'"x": the configuration has no such tensor' ]]
    sed 's/"intermediate_size": 160/"intermediate_size": 80/' "$c" >w.json
    run -2 --separate-stderr ids "$t" --config w.json
    [[ $stderr == *'mlp.gate_proj.weight": expected [80, 64], found [160, 64]' ]]
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "$c" >w.json
    run -2 --separate-stderr ids "$t" --config w.json
    [[ $stderr == *'model.layers.1.'*'the configuration has no such tensor' ]]
    sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$c" >w.json
    run -2 --separate-stderr ids "$t" --config w.json
    [[ $stderr == *'"lm_head.weight" is missing' ]]
    # A pair without its scales.
    nvquant -q "$t" -o n.dat
    LC_ALL=C sed 's/1.self_attn.o_proj.weight.scale/1.self_attn.o_proj.weight.xcale/' n.dat >h.dat
    run -2 --separate-stderr ids h.dat --config "$c"
}

@test "not a model" {
    printf 'prompt\tanswer\n' >t.tsv
    run -2 --separate-stderr ids t.tsv
    samples
    run -2 --separate-stderr ids s.tok
    : >empty.dat
    run -2 --separate-stderr ids empty.dat
    mkdir d
    run -2 --separate-stderr ids d
}

@test "numbers that are not finite: exit 4, in a matrix that is quantized 2" {
    local t=$M/t.safetensors
    qwen put "$t" model.norm.weight 3 nan n.safetensors
    run -4 --separate-stderr ids n.safetensors
    [[ $stderr == *'not finite'* ]]
    [ -z "$output" ]
    samples
    run -4 --separate-stderr generate --score s.tok n.safetensors
    [[ $stderr == *'sample 0: logits of position 2 are not finite' ]]
    qwen put "$t" model.layers.1.mlp.up_proj.weight 9 inf i.safetensors
    run -2 --separate-stderr ids i.safetensors --quant sweep
    [[ $stderr == *'"model.layers.1.mlp.up_proj.weight": a value is not finite' ]]
    # A scale with a sign.
    nvquant -q "$t" -o q.safetensors
    python3 - <<'PY'
import json, struct
d = bytearray(open("q.safetensors", "rb").read())
n = struct.unpack("<Q", d[:8])[0]
h = json.loads(d[8:8 + n])
at = h["model.layers.0.mlp.up_proj.weight.scale"]["data_offsets"][0]
d[8 + n + at + 5] = 0x80
open("q.safetensors", "wb").write(d)
PY
    run -2 --separate-stderr ids q.safetensors
    [[ $stderr == *'"model.layers.0.mlp.up_proj.weight", row 1, column 1: 0x80'* ]]
}

# ---- files and streams ----------------------------------------------------------------------------

@test "outputs are not replaced without -f, and are no inputs" {
    cp "$M/t.safetensors" .
    ids t.safetensors -n 1 --logits l >/dev/null
    for o in --logits --dump-layers; do
        run -2 --separate-stderr ids t.safetensors -n 1 $o l
        [[ $stderr == *'exists; -f replaces it' ]]
        run -0 ids t.safetensors -n 1 $o l -f
        run -2 --separate-stderr ids t.safetensors -n 1 $o t.safetensors -f
        [[ $stderr == *'is an input, too' ]]
        run -2 --separate-stderr ids t.safetensors -n 1 $o -
    done
    cmp t.safetensors "$M/t.safetensors"
    [ "$(find . -name '.*nibble*')" = "" ]
}

@test "logits and hidden states replace nothing that belongs to the model" {
    local o f
    datpack -q -o md/ --config "$M/c.json" "$M/t.safetensors"
    datpack -q -o m.dat --config "$M/c.json" "$M/t.safetensors"
    cp "$M/tokenizer.json" md/ 2>/dev/null || echo '{}' >md/tokenizer.json
    cp -r md before
    cp m.dat.json sidecar
    for o in --logits --dump-layers; do
        for f in config.json nibble.json tokenizer.json; do
            run -2 --separate-stderr ids md -n 1 -f $o md/$f
            [[ $stderr == "generate: md/$f: is an input, too"* ]] || { echo "$stderr" && false; }
        done
        run -2 --separate-stderr ids m.dat -n 1 -f $o m.dat.json
        [[ $stderr == "generate: m.dat.json: is an input, too"* ]]
    done
    diff -r md before
    cmp m.dat.json sidecar
}

@test "logits and hidden states do not stand under the suffix of another container" {
    local kind
    for kind in dat gguf ckpt tok; do
        run -2 --separate-stderr generate --ids -p 5 -n 1 --logits x.$kind "$M/t.safetensors"
        [[ $stderr == *"--logits x.$kind: a safetensors is written: expected .safetensors "* ]]
        run -2 --separate-stderr generate --ids -p 5 -n 1 --dump-layers x.$kind "$M/t.safetensors"
        [[ $stderr == *"--dump-layers x.$kind: a safetensors is written"* ]]
        [ ! -e x.$kind ]
    done
    generate --ids -p 5 -n 1 --logits logits --dump-layers x.layers "$M/t.safetensors"
    [ -s logits ]
    [ -s x.layers ]
}

@test "logits and hidden states tell where they come from" {
    cp "$M/t.safetensors" .
    ids t.safetensors -n 2 --temp 0.5 --top-k 3 --seed 4 --logits l --dump-layers h >/dev/null
    for f in l h; do
        datcat --meta $f | python3 -c 'import json, sys
p = json.load(sys.stdin)["meta"]["provenance"]
assert p["tool"] == "generate"
assert p["options"] == {"ignore_eos": True, "max_tokens": 2, "seed": 4, "temp": 0.5,
    "prompt": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 80], "top_k": 3}, p["options"]
assert [x["kind"] for x in p["inputs"]] == ["safetensors"]
assert p["inputs"][0]["provenance"]["tool"] == "datpack"
assert list(p) == sorted(p) and list(p["options"]) == sorted(p["options"])'
    done
    samples
    generate --score s.tok --quant max --logits s t.safetensors >/dev/null
    datcat --meta s | python3 -c 'import json, sys
p = json.load(sys.stdin)["meta"]["provenance"]
assert p["options"] == {"quant": "max"}
assert [x["kind"] for x in p["inputs"]] == ["safetensors", "tok"]
assert p["inputs"][1]["provenance"]["tool"] == "tokenize"'
}

@test "a full disk is heard, a closed pipe is not" {
    run -2 --separate-stderr bash -c 'generate --ids -p 5 -n 3 "$1" >/dev/full' bash \
        "$M/t.safetensors"
    [[ $stderr == *'standard output: '* ]]
    run -2 --separate-stderr bash -c 'generate -p 5 -n 3 "$1" >/dev/full' bash \
        "$M/x.safetensors"
    run -0 --separate-stderr bash -c 'yes 5 | head -n 3000 | generate --ids -n 3 "$1" | head -n 1' \
        bash "$M/t.safetensors"
    [ -z "$stderr" ]
    [ "${#lines[@]}" -eq 1 ]
}

# bats test_tags=nosan,native
@test "a prompt that cannot be read is heard, never skipped" {
    local so=${NIBBLE_FAILIO:-$BUILD/failio.so} failed=0 kb
    (echo 4; head -c 12000000 /dev/zero | tr '\0' ' '; echo 5; echo 6) >prompts
    # From too little memory for the second line up to enough: all answers, or no success.
    for ((kb = 12000; kb < 80000; kb += 2000)); do
        run --separate-stderr bash -c 'ulimit -v "$1"
            generate --ids -n 1 -j 1 --ignore-eos "$2" <prompts' bash "$kb" "$M/t.safetensors"
        if [ "$status" -eq 0 ]; then
            [ "${#lines[@]}" -eq 3 ] || { echo "$kb KiB: ${#lines[@]} answers" && false; }
            break
        fi
        failed=$((failed + 1))
    done
    [ "$failed" -gt 0 ]
    [ "$kb" -lt 80000 ]
    # Longer than the limit, without an end, a directory, a failing disk.
    run -2 --separate-stderr bash -c '(echo 4; cat /dev/zero) |
        timeout 60 generate --ids -n 1 --ignore-eos "$1"' bash "$M/t.safetensors"
    [ "${#lines[@]}" -eq 1 ]
    [[ $stderr == "generate: <stdin>: line 2: longer than 16777216 bytes"* ]]
    run -2 --separate-stderr generate --ids -n 1 "$M/t.safetensors" <.
    [ "$stderr" = "generate: <stdin>: line 1: read: Is a directory" ]
    [ -e "$so" ] || skip "no failio.so"
    run -2 --separate-stderr env LD_PRELOAD="$so" FAILIO="read:2:EIO:prompts" \
        generate --ids -n 1 --ignore-eos "$M/t.safetensors" <prompts
    [ "${#lines[@]}" -eq 1 ]
    [ "$stderr" = "generate: <stdin>: line 2: read: Input/output error" ]
}

@test "text comes out as it is made, an answer to a line before the next line" {
    python3 - <<'PY'
import os, subprocess
m = os.environ["M"] + "/x.safetensors"
p = subprocess.Popen(["generate", "--chat", "-n", "3", m], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, bufsize=0)
for turn in (b"one\n", b"two\n"):
    p.stdin.write(turn)
    got = b""
    while not got.endswith(b"\n"):
        part = os.read(p.stdout.fileno(), 4096)
        assert part, "it ended"
        got += part
p.stdin.close()
assert p.wait() == 0
PY
}

@test "SIGINT ends it, and leaves nothing behind" {
    python3 - <<'PY'
import os, signal, subprocess
m = os.environ["M"] + "/x.safetensors"
p = subprocess.Popen(["generate", "--chat", "-n", "3", m], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
p.stdin.write(b"one\n")
p.stdout.read(1)
p.send_signal(signal.SIGINT)
assert p.wait(60) == -signal.SIGINT
assert p.stderr.read() == b""
PY
    [ -z "$(ls -A)" ]
}
