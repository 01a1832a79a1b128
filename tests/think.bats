#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr: set by run
# generate --think and --no-think: prompts as the template of hybrid Qwen3 models renders them, by
# vectors that jinja2 made (make_think.py).  Equal prompts have equal log-probabilities.

load common

setup_file()
{
    M=$BATS_FILE_TMPDIR/m
    export M
    mkdir "$M"
    cd "$M" || return
    qwen config x.json vocab_size=3098 intermediate_size=64 num_hidden_layers=2 \
        eos_token_id=3074 max_position_embeddings=400
    cp "$HERE/vectors/tokenizer-small.json" tokenizer.json
    datpack -q --init 1 --config x.json -o x.safetensors
    # And one that thinks: each token of a chain is followed by the next, any other one by id 0.
    mkdir y
    cp tokenizer.json y
    qwen config y/config.json vocab_size=3098 hidden_size=64 intermediate_size=16 num_hidden_layers=1 \
        tie_word_embeddings=false eos_token_id=3074 max_position_embeddings=400
    python3 - <<'PY'
import json, struct
from containers import Tensor, st_bytes
c = json.load(open("y/config.json"))
t = json.load(open("tokenizer.json"))
ids = {**t["model"]["vocab"], **{a["content"]: a["id"] for a in t["added_tokens"]}}
chain = [ids[x] for x in ("\u010a", "<think>", "\u0120not", "</think>", "\u010a\u010a", "no", "<|im_end|>")]
h, v, f, d = c["hidden_size"], c["vocab_size"], c["intermediate_size"], c["head_dim"]
q, k = d * c["num_attention_heads"], d * c["num_key_value_heads"]
block = "model.layers.0."
shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h),
          **{block + n + ".weight": s for n, s in {
              "input_layernorm": (h,), "post_attention_layernorm": (h,),
              "self_attn.q_proj": (q, h), "self_attn.k_proj": (k, h), "self_attn.v_proj": (k, h),
              "self_attn.o_proj": (h, q), "self_attn.q_norm": (d,), "self_attn.k_norm": (d,),
              "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h), "mlp.down_proj": (h, f)}.items()}}
values = {n: [1.0 if len(s) == 1 else 0.0] * (s[0] * (s[1] if len(s) > 1 else 1)) for n, s in shapes.items()}
for i, (a, b) in enumerate(zip(chain, chain[1:])):
    values["model.embed_tokens.weight"][a * h + i] = 1.0
    values["lm_head.weight"][b * h + i] = 4.0
open("y/model.safetensors", "wb").write(st_bytes(
    [Tensor(n, "f32", shapes[n], struct.pack("<%df" % len(values[n]), *values[n])) for n in shapes]))
PY
}

# answers OPTION...: to requests on stdin: of each the number of tokens before it, its ids and
# their log-probabilities.
answers()
{
    generate -q --input jsonl -n 3 --ignore-eos "$@" "$M/x.safetensors" >said
    jsonl '"\n".join(str((a["prompt_tokens"], a["ids"], a["logprobs"])) for a in d)' <said
}

# requests EXPRESSION: of each vector v: JSON lines.
requests()
{
    python3 -c "
import json, sys
for line in open('$HERE/vectors/think.jsonl'):
    v = json.loads(line)
    print(json.dumps($1))"
}

@test "messages and enable_thinking: the ids of the template of hybrid models" {
    requests '{"ids": v["ids"]}' | answers >want
    [ "$(wc -l <want)" -eq 36 ]
    # Control tokens in texts are recognised there; here only if asked for.
    requests '{k: v[k] for k in ("messages", "enable_thinking")}' >all
    answers --compat torchsharp --template qwen3 <all >have
    diff want have
    # The options are what a request leaves out.
    requests '{"messages": v["messages"]}' >plain
    answers --compat torchsharp --template qwen3 --think <plain | sed -n 'p;n' >on
    answers --compat torchsharp --template qwen3 --no-think <plain | sed -n 'n;p' >off
    diff <(sed -n 'p;n' want) on
    diff <(sed -n 'n;p' want) off
    # Without the switch the template is the one that knows no thoughts: a prompt is the same as with
    # --think, a history is not.
    answers --compat torchsharp --template qwen3 <plain | sed -n 'p;n' >none
    [ "$(head -n 1 none)" = "$(head -n 1 on)" ]
    [ "$(sed -n 2p none)" = "$(sed -n 2p on)" ]
    [ "$(sed -n 3p none)" != "$(sed -n 3p on)" ]
    # Texts in which control tokens are none: thoughts are still cut off and put in by id.
    python3 - <<'PY'
import json
v = [json.loads(x) for x in open("all")]
plain = [not any("<" in m["content"] for m in t["messages"]
                 if m["role"] != "assistant" or "</think>" not in m["content"] or
                 m.get("reasoning_content") == "") for t in v]
want = open("want").readlines()
assert 20 < sum(plain) < 36, plain
open("some", "w").writelines(x for x, p in zip(open("all"), plain) if p)
open("want-some", "w").writelines(x for x, p in zip(want, plain) if p)
PY
    answers <some >have
    diff want-some have
}

@test "-p, lines and --system: --think as before, --no-think an empty block of thoughts" {
    one() { generate -q --json -n 3 --ignore-eos "$@" "$M/x.safetensors" | sed 's/"timing".*//'; }
    one -p 'Who are you?' --think >on
    one -p 'Who are you?' --no-think >off
    python3 - on off <<'PY'
import json, os, sys
want = [len(json.loads(x)["ids"]) for x in open(os.environ["HERE"] + "/vectors/think.jsonl")][:2]
have = [json.loads(open(f).read().rstrip().rstrip(",") + "}") for f in sys.argv[1:]]
assert [a["prompt_tokens"] for a in have] == want and want[1] > want[0], (want, have)
assert all(a["reasoning_content"] is None for a in have)
PY
    one -p 'Who are you?' | diff - <(sed 's/"reasoning_content":null,//' on)
    echo 'Who are you?' | one --no-think | diff - off
    # The last of both holds.
    one -p 'Who are you?' --think --no-think | diff - off
    one -p 'Who are you?' --system 'Be brief.' --no-think >sys
    [ "$(sed 's/.*"prompt_tokens"://' sys)" != "$(sed 's/.*"prompt_tokens"://' off)" ]
}

@test "thoughts are apart from the text, in -p and in requests" {
    run -0 --separate-stderr generate -q -p hi --think "$M/y"
    [ "$output" = "$(printf '<think> not</think>\n\nno')" ]
    run -0 --separate-stderr generate -q -p hi --no-think "$M/y"
    [ "$output" = no ]
    answer() { generate -q --json -p hi "$@" "$M/y"; }
    look='[d[0].get("reasoning_content", 0), d[0]["text"], d[0]["stop"]]'
    [ "$(answer --think | jsonl "$look")" = "[' not', 'no', 'end']" ]
    [ "$(answer --no-think | jsonl "$look")" = "[None, 'no', 'end']" ]
    [ "$(answer | jsonl "$look")" = "[0, '<think> not</think>\\n\\nno', 'end']" ]
    # A thought that was cut off is no text.
    [ "$(answer --think -n 2 | jsonl "$look")" = "[' not', '', 'length']" ]
    printf '{"prompt":"hi","enable_thinking":%s}\n' true false null >in
    generate -q --input jsonl "$M/y" <in >out
    [ "$(jsonl '[[a.get("reasoning_content", 0), a["text"]] for a in d]' <out)" = \
        "[[' not', 'no'], [None, 'no'], [0, '<think> not</think>\\n\\nno']]" ]
    # Several at a time.
    generate -q --input jsonl --batch 3 "$M/y" <in | sed 's/"timing.*//' >three
    sed 's/"timing.*//' out | diff - three
}

@test "enable_thinking that cannot be, and options that do not go together" {
    printf '%s\n' '{"prompt":"a","enable_thinking":1}' '{"prompt":"a","enable_thinking":true,"enable_thinking":true}' \
        '{"ids":[1],"enable_thinking":false}' '{"prompt":"a","enable_think":true}' '{"prompt":"a"}' >in
    run -2 --separate-stderr generate --input jsonl -n 1 "$M/x.safetensors" <in
    jsonl '"\n".join(str((a.get("line"), a.get("field"), a.get("error"))) for a in d)' <<<"$output" >have
    diff have - <<'TXT'
(1, 'enable_thinking', '<stdin>: line 1: "enable_thinking": byte 32: expected true or false, found 1}')
(2, 'enable_thinking', '<stdin>: line 2: "enable_thinking": byte 55: is there twice')
(3, 'enable_thinking', '<stdin>: line 3: "enable_thinking": needs --template qwen3')
(4, 'enable_think', '<stdin>: line 4: "enable_think": byte 29: unknown field: expected "enable_thinking"?')
(None, None, None)
TXT
    echo '{"prompt":"a","enable_thinking":true}' >in
    run -2 --separate-stderr generate --input jsonl --template none "$M/x.safetensors" <in
    [[ $output == *'"field":"enable_thinking","error":'*'needs --template qwen3'* ]]
    # A tokenizer that has no such tokens.
    sed 's/<think>/<thank>/' "$M/tokenizer.json" >t.json
    printf '{"prompt":"hi","enable_thinking":%s}\n' true false null >in
    generate -q -t t.json -n 1 --input jsonl "$M/x.safetensors" <in >out || [ $? -eq 2 ]
    [ "$(jsonl '[a.get("field") for a in d]' <out)" = "[None, 'prompt', None]" ]
    [ "$(jsonl 'd[1]["error"]' <out)" = \
        '<stdin>: line 2: "prompt": template qwen3: the tokenizer has no added token <think>' ]
    refuse '--think: needs --template qwen3' generate --think --template none -p a "$M/x.safetensors"
    refuse '--no-think: needs --template qwen3' generate --no-think --ids -p 1 "$M/x.safetensors"
    refuse '--score: goes with' generate --think --score x.tok "$M/x.safetensors"
}

# A chat, in which thoughts leave the history, is the same as requests with its messages.
@test "--chat: thoughts are apart from the text and leave the history of later turns" {
    local how
    printf 'hi\nho\nhe\n' >turns
    for how in --think --no-think; do
        generate -q --chat --json $how "$M/y" <turns >log
        jsonl '[[(m["role"], m["content"], m.get("reasoning_content")) for m in t["messages"]] for t in d]' <log >have
        python3 -c '
import sys
thought = " not" if sys.argv[1] == "--think" else None
print([[("user", u, None), ("assistant", "no", thought)] for u in ("hi", "ho", "he")])' $how | diff have -
        python3 - log <<'PY' >requests
import json, sys
said = []
for line in open(sys.argv[1]):
    user, answer = json.loads(line)["messages"]
    said.append(user)
    print(json.dumps({"messages": said}))
    said.append(answer)
PY
        generate -q --input jsonl $how "$M/y" <requests >alone
        look='[(a["prompt_tokens"], a["ids"], a["logprobs"]) for a in d]'
        [ "$(jsonl "$look" <log)" = "$(jsonl "$look" <alone)" ]
        # What is computed again is what follows the question of the turn before.
        python3 - log $how <<'PY'
import json, sys
d = [json.loads(x) for x in open(sys.argv[1])]
n = [a["prompt_tokens"] for a in d]
fresh = [a["timing"]["prefill_tokens"] for a in d]
block = 4 if sys.argv[2] == "--no-think" else 0
assert fresh == [n[0], n[1] - n[0] + block, n[2] - n[1] + block], (n, fresh)
PY
    done
    # A random model, whose answers are any bytes: the same, with and without a cache.
    generate -q --chat --json --no-think -n 9 --temp 2 --ignore-eos "$M/x.safetensors" <turns |
        sed 's/"timing.*//; s/,"time":"[^"]*"//g' >kept
    generate -q --chat --json --no-think -n 9 --temp 2 --ignore-eos --no-kv "$M/x.safetensors" <turns |
        sed 's/"timing.*//; s/,"time":"[^"]*"//g' | diff kept -
    [ "$(wc -l <kept)" -eq 3 ]
    # Without the switch thoughts are text, and stay.
    generate -q --chat --json "$M/y" <turns >log
    [ "$(jsonl '{"reasoning_content" in m for t in d for m in t["messages"]}' <log)" = '{False}' ]
}

@test "--chat --json --time: tokens and speed of each message, from a pipe; a log that others read" {
    printf 'hi\n\xff\nho\n' >turns
    run -2 --separate-stderr generate --chat --json --time --think "$M/y" <turns
    printf '%s\n' "${lines[@]}" >log
    python3 - <<'PY'
import json, re
d = [json.loads(x) for x in open("log")]
assert [t["turn"] for t in d] == [0, 1, 2] and "error" in d[1]
for t in d[::2]:
    user, answer = t["messages"]
    assert list(user) == ["role", "content", "time", "tokens"], user
    assert list(answer) == ["role", "content", "reasoning_content", "time", "tokens", "first_token_ms",
                            "tokens_per_s"], answer
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer["time"])
    assert answer["tokens"] == len(t["ids"]) == 5
    timing = t["timing"]
    for where in (answer, timing):
        assert abs(where["first_token_ms"] - timing["prefill_s"] * 1e3) < 0.01
        assert where["first_token_ms"] > 0 and where["tokens_per_s"] > 0
    assert abs(answer["tokens_per_s"] * timing["decode_s"] - 5) < 0.01  # its end token, too
# Tokens of a turn are what it adds before its answer; 3 of the answer: text, end token, line end.
assert d[0]["messages"][0]["tokens"] == d[0]["prompt_tokens"]
assert d[2]["messages"][0]["tokens"] == d[2]["prompt_tokens"] - d[0]["prompt_tokens"] - 3, d
PY
    # As training data and as requests.
    tokenize -q -t "$M/tokenizer.json" --input jsonl --emit ids log >samples
    [ "$(wc -l <samples)" -eq 2 ]
    # Without --time nothing of it; with it also for prompts, and as words where there is no JSON.
    [ "$(generate -q --chat --json "$M/y" <<<hi | jsonl '"tokens" in d[0]["messages"][1]')" = False ]
    [ "$(generate -q --json --time -p hi "$M/y" | jsonl '"tokens_per_s" in d[0]["timing"]')" = True ]
    run -0 --separate-stderr generate -q --time -p hi --no-think "$M/y"
    [ "$output" = no ]
    [[ $stderr =~ ^'generate: prompt 0: prefill '[0-9]+' tokens, '.*'decode 1 tokens' ]]
    refuse '--score: goes with' generate --time --score x.tok "$M/y"
}
