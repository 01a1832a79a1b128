#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# tokenize: rows and samples by the rules of TSV data, every form of input and output,
# order and bins, streams, bad input.  The tokenizer's tokens are bytes (tok.py), so
# that a few lines of Python know all ids; tokenizer parity has tests of its own.
# shellcheck disable=SC2154  # output, lines, stderr, stderr_lines: set by run
# shellcheck disable=SC2016  # $1 is for the inner shell

load common

setup_file() {
    TOK=$HERE/tok.py
    T=$BATS_FILE_TMPDIR/tokenizer.json
    export TOK T
    python3 "$TOK" tokenizer "$T"
}

tok() {
    python3 "$TOK" "$@"
}

# many ROWS: rows of a few to a few hundred bytes, no two equal.
many() {
    awk -v n="$1" 'BEGIN { for (i = 1; i <= n; i++) {
        r = (i * 7919) % 211; t = ""
        for (k = 0; k < r; k++) t = t sprintf("%c", 97 + (i + k * k) % 26)
        printf "question %d\tanswer %d %s\n", i, i, t } }'
}

# awkward: rows that know every rule.
awkward() {
    printf '%b' '\xef\xbb\xbfprompt\ttarget\r\n' \
        '# a comment\tis no row\n' '   # neither is this\t x\n' '\n' ' \t \n' \
        'no tab\n' '\tled\tby a tab\n' 'p\t\n' 'p\t \xc2\xa0\n' \
        'first\tsecond\tthird\n' '\xe3\x80\x80wide\xc2\x85\t\xe2\x80\xa8space\xc2\xa0\n' \
        '\xe1\xa0\x8ekept\t\xe1\xa0\x8ekept\n' \
        'control <|im_end|>\t<|im_start|> stays text\n' 'cafe\xcc\x81\te\xcc\x81\n' \
        'CRLF\tends\r\n' 'last\twithout newline'
}

# piped INPUT WORDS ARGUMENT...: the same of tokenize with that standard input.
piped() {
    local input=$1 words=$2
    shift 2
    printf '%b' "$input" >in
    refuse "$words" bash -c 'exec tokenize "$@" <in' - "$@"
}

# ---- TSV ---------------------------------------------------------------------------

@test "rows of TSV are what the rules say, in every template" {
    local how
    awkward >a.tsv
    for how in '' --template=torchsharp --template=none '--no-end' '--template=none --no-end'; do
        # shellcheck disable=SC2086
        tokenize -q -t "$T" $how --emit jsonl a.tsv >got
        # shellcheck disable=SC2086
        tok expect ${how//no-end/no_end} a.tsv >want
        cmp got want
    done
    [ "$(wc -l <got)" -eq 9 ]
}

@test "the summary counts rows and what was skipped, warnings name what is odd" {
    awkward >a.tsv
    run -0 --separate-stderr tokenize -t "$T" -o a.tok a.tsv
    [ -z "$output" ]
    [[ ${stderr_lines[0]} == 'tokenize: a.tsv: a byte order mark was dropped' ]]
    [[ ${stderr_lines[1]} == 'tokenize: a.tsv: line 1: looks like the names of columns, and is learnt as a row: '* ]]
    [[ ${stderr_lines[-2]} == 'tokenize: 12 rows, '*', 3 skipped, 0 truncated' ]]
    [[ $stderr == *'tokenize: skipped, the first: a.tsv: line 6: '*'no TAB; -v shows all, --strict refuses them' ]]
    run -0 --separate-stderr tokenize -q -t "$T" -f -o a.tok a.tsv
    [ -z "$output$stderr" ]
    run -0 --separate-stderr tokenize -v -t "$T" -f -o a.tok a.tsv
    [[ $stderr == *'a.tsv: line 6: skipped: '*'no TAB'* ]]
    [[ $stderr == *'a.tsv: line 8: skipped: '*'empty'* ]] || [[ $stderr == *'line 8'* ]]
}

@test "--strict: a line that would be skipped is an error" {
    printf 'a\tb\nno tab here\n' >a.tsv
    refuse 'a.tsv: line 2: ' tokenize -t "$T" --strict -o a.tok a.tsv
    [ ! -e a.tok ]
    printf '# only\na\tb\n\n' >b.tsv
    tokenize -q -t "$T" --strict -o b.tok b.tsv
}

@test "several files are one input; each has its own start and end" {
    printf '\xef\xbb\xbfa\tb' >1.tsv
    printf '\xef\xbb\xbfc\td' >2.tsv
    tokenize -q -t "$T" --emit ids 1.tsv 2.tsv >got
    tokenize -q -t "$T" --emit ids - 2.tsv <1.tsv >same
    cmp got same
    [ "$(wc -l <got)" -eq 2 ]
    tokenize -q -t "$T" -o x.tok 1.tsv 2.tsv
    [ "$(tok read x.tok | sed -n 2p | grep -o '"[0-9a-f]\{32\}"' | wc -l)" -eq 2 ]
}

# ---- what comes out -------------------------------------------------------------------

@test "tok, ids and jsonl say the same" {
    many 300 >m.tsv
    tokenize -q -t "$T" m.tsv >m.tok
    tokenize -q -t "$T" --emit ids m.tsv >m.ids
    tokenize -q -t "$T" --emit jsonl m.tsv >m.jsonl
    tok expect m.tsv | cmp - m.jsonl
    tok read m.tok | tail -n +3 | sed 's/,"starts":\[0\]//' | cmp - m.jsonl
    sed 's/.*"ids":\[\([^]]*\)].*/\1/; s/,/ /g' m.jsonl | cmp - m.ids
}

@test "header and end record" {
    printf 'a\tb\nno tab\n' >a.tsv
    tokenize -q -t "$T" --seq-len 9 --template torchsharp --parse-special -o a.tok a.tsv
    run -0 tok read a.tok
    [ "${lines[0]}" = '{"packed":false,"seq_len":9,"settings":{"end":true,"input":"tsv","invalid":"error","joint":false,"parse_special":true,"shuffle":null},"template":"seed","tokenizer":"'"$(sha256sum <"$T" | cut -d ' ' -f 1)"'","version":"'"$(tokenize --version | cut -d ' ' -f 3)"'","vocab":259}' ]
    [[ ${lines[1]} == *'"longest":10,"samples":1,"skipped":1,"targets":2,"tokens":10,"truncated":1}' ]]
    # What has no template and no tokenizer does not name one.
    printf '1 2\n' | tokenize -q --input ids -o i.tok
    [[ $(tok read i.tok) == *'"end":false'*'"template":"none","tokenizer":null,'*'"vocab":null}'* ]]
}

@test "--emit ids: a line for each sample, also for an empty text" {
    printf 'ab\n\ncd' >l
    run -0 tokenize -q -t "$T" --input lines --emit ids l
    [ "${lines[0]}" = '64 65 256' ]
    [ "$(tokenize -q -t "$T" --input lines --no-end --emit ids l)" = $'64 65\n\n66 67' ]
    printf '{"text":""}\n{"text":"a"}\n' |
        tokenize -q -t "$T" --input jsonl --emit jsonl >got
    [ "$(head -n 1 got)" = '{"ids":[],"mask":[]}' ]
    # A .tok has no place for it.
    tokenize -q -t "$T" --input lines -o l.tok l
    [[ $(tok read l.tok) == *'"samples":2,"skipped":1'* ]]
}

@test "--count: totals only" {
    awkward >a.tsv
    run -0 --separate-stderr tokenize -q -t "$T" --count a.tsv
    [ "${lines[0]}" = $'samples\ttokens\ttargets\tskipped\ttruncated' ]
    tokenize -q -t "$T" -o a.tok a.tsv
    [ "${lines[1]}" = "$(datcat a.tok | sed -n 2p | cut -f 1-5)" ]
    [ "${#lines[@]}" -eq 2 ]
    many 200 >m.tsv
    tokenize -q -t "$T" --seq-len 99 --pack -o p.tok m.tsv
    [ "$(tokenize -q -t "$T" --seq-len 99 --pack --count m.tsv | tail -n 1)" = \
        "$(datcat p.tok | sed -n 2p | cut -f 1-5)" ]
}

@test "-o: whole or not at all, never over a file without -f, never over an input" {
    printf 'a\tb\n' >a.tsv
    tokenize -q -t "$T" -o a.tok a.tsv
    refuse 'a.tok: exists' tokenize -q -t "$T" -o a.tok a.tsv
    tokenize -q -t "$T" -f -o a.tok a.tsv
    refuse 'is an input' tokenize -q -t "$T" -f -o a.tsv a.tsv
    ln -s a.tsv link
    refuse 'is an input' tokenize -q -t "$T" -f -o link a.tsv
    refuse 'is an input' bash -c 'exec tokenize -q -t "$T" -f -o a.tsv <a.tsv'
    printf 'a\tb\nc\t\xff\n' >bad.tsv
    refuse 'line 2' tokenize -q -t "$T" -f -o a.tok bad.tsv
    tok read a.tok
    [ -z "$(find . -name '.*nibble-tmp')" ]
    refuse 'No space' bash -c 'exec tokenize -q -t "$T" a.tsv >/dev/full'
}

@test "the output is not the tokenizer" {
    cp "$T" tokenizer.json
    mkdir t
    ln tokenizer.json t/tokenizer.json
    printf 'a\tb\n' >a.tsv
    refuse 'tokenizer.json: is the tokenizer' tokenize -q -t tokenizer.json -f -o tokenizer.json a.tsv
    refuse 'tokenizer.json: is the tokenizer' tokenize -q -t t -f -o tokenizer.json a.tsv
    refuse 'tokenizer.json: is the tokenizer' tokenize -q -f -o tokenizer.json a.tsv
    cmp tokenizer.json "$T"
}

@test "-o: not under the suffix of another container" {
    local kind
    for kind in dat safetensors gguf ckpt; do
        run -2 --separate-stderr tokenize --input ids -o x.$kind <<<'1 2 3'
        [[ $stderr == "tokenize: -o x.$kind: a tok is written: expected .tok or no suffix"* ]]
        run -2 --separate-stderr tokenize --input ids --emit jsonl -o x.$kind <<<'1 2 3'
        [[ $stderr == *": a text is written: expected no suffix of a container, found .$kind" ]]
        [ ! -e x.$kind ]
    done
    run -2 --separate-stderr tokenize --input ids --emit ids -o x.tok <<<'1 2 3'
    [[ $stderr == *": a text is written"* ]]
    tokenize -q --input ids --emit ids -o x.ids <<<'1 2 3'
    [ "$(cat x.ids)" = '1 2 3' ]
    tokenize -q --input ids -o x <<<'1 2 3'
    datcat -q --verify x
}

@test "a producer that fails sends no end record" {
    printf 'a\tb\nc\t\xff\n' >bad.tsv
    run -2 bash -o pipefail -c 'tokenize -q -t "$T" bad.tsv | tokenize -q --decode -t "$T"'
    [[ $output == *bad.tsv* ]]
    run -2 bash -c 'tokenize -q -t "$T" bad.tsv 2>/dev/null | tokenize -q --decode -t "$T"'
    [[ $output == *'the stream was cut'* ]]
}

# ---- other input --------------------------------------------------------------------

@test "jsonl: text, prompt and target, messages" {
    cat >j <<'END'
{"text":"ab","source":[1,{"x":null}]}

{"target":" t\u0000 ","prompt":"p\ud83d\ude00"}
{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user","content":"v"},{"role":"assistant","content":"b"}]}
{"messages":[{"role":"user","content":"u"}]}
END
    tokenize -q -t "$T" --input jsonl --emit jsonl j >got
    python3 - >want <<'END'
import json, os, sys
sys.path.insert(0, os.path.dirname(os.environ["TOK"]))
from tok import IM_START, IM_END, END_OF_TEXT, encode, render
def say(ids, mask):
    print(json.dumps({"ids": ids, "mask": mask}, separators=(",", ":")))
say(encode("ab") + [END_OF_TEXT], [1] * 3)
say(*render("p\U0001f600", " t\0 ", "qwen3", False))
def chat(*turns):
    ids, mask = [], []
    for role, text in turns:
        head = [IM_START] + encode(role + "\n")
        ids += head + encode(text) + [IM_END] + encode("\n")
        mask += [0] * len(head) + [int(role == "assistant")] * (len(text) + 1) + [0]
    say(ids, mask)
chat(("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b"))
chat(("user", "u"))
END
    cmp got want
    # Without an assistant's turn there is nothing to learn.
    tokenize -q -t "$T" --input jsonl -o j.tok j
    [[ $(tok read j.tok) == *'"samples":3,"skipped":1'* ]]
}

@test "jsonl: what is refused" {
    local m='{"role":"user","content":"u"}'
    piped '{"text":1}' 'line 1: byte 8: ' -t "$T" --input jsonl
    piped '{"text":"a"}\n{"text":"b"' 'line 2: byte 24: ' -t "$T" --input jsonl --count
    piped '{"text":"a","text":"b"}' 'a second "text"' -t "$T" --input jsonl
    piped '{"text":"a","prompt":"b"}' 'expected "text"' -t "$T" --input jsonl
    piped '{"prompt":"b"}' 'expected "text"' -t "$T" --input jsonl
    piped '[1]' 'an object' -t "$T" --input jsonl
    piped '{"messages":[{"role":"user"}]}' '"content"' -t "$T" --input jsonl
    piped '{"messages":[{"role":"bot","content":""}]}' 'line 1: ' -t "$T" --input jsonl
    piped "{\"messages\":[$m],\"tools\":[{}]}" 'tools' -t "$T" --input jsonl
    piped "{\"messages\":[$m]}" 'line 1: ' -t "$T" --input jsonl --template torchsharp
}

# masks ROWS ARGUMENT...: of each sample the text that is learnt, ids of no character as @.
masks() {
    printf '%s\n' "$1" >masks.jsonl
    tokenize -q -t "$T" --emit jsonl "${@:2}" masks.jsonl >masked
    python3 -c '
import json, os, sys
sys.path.insert(0, os.path.dirname(os.environ["TOK"]))
from tok import encode
char = {encode(chr(c))[0]: chr(c) for c in range(128)}
for line in open("masked"):
    s = json.loads(line)
    print("".join(char.get(i, "@") for i, m in zip(s["ids"], s["mask"]) if m))'
}

@test "weight 0, train, loss, masked: that answer is context and no target" {
    local u='{"role":"user","content":"u"}' say how key
    say="{\"messages\":[$u,{\"role\":\"assistant\",\"content\":\"first\"%s},$u,{\"role\":\"assistant\",\"content\":\"last\"%s}]}"
    # shellcheck disable=SC2059  # the row is the format
    row() { printf "$say" "$@"; }
    [ "$(masks "$(row '' '')")" = 'first@last@' ]
    for key in '"weight":0' '"weight": 0.0 ' '"train":false' '"train":0' '"loss":false' '"masked":true' '"loss_weight":0'; do
        [ "$(masks "$(row ",$key" '')")" = 'last@' ]
        [ "$(masks "$(row '' ",$key")")" = 'first@' ]
    done
    for key in '"weight":1' '"weight":1.0' '"weight":null' '"train":true' '"train":null' '"loss":true' \
        '"masked":false' '"loss_weight":1' '"train_detail":null'; do
        [ "$(masks "$(row ",$key" '')")" = 'first@last@' ]
    done
    # Only the mask changes, and the key may stand before the role.
    row ',"weight":0' '' >a.jsonl
    row '' '' >b.jsonl
    [ "$(tokenize -q -t "$T" --emit ids a.jsonl)" = "$(tokenize -q -t "$T" --emit ids b.jsonl)" ]
    [ "$(masks '{"messages":['"$u"',{"weight":0,"content":"first","role":"assistant"},'"$u"',{"role":"assistant","content":"last"}]}')" = 'last@' ]
    [ "$(masks '{"conversations":[{"from":"human","value":"u"},{"from":"gpt","value":"a","weight":0},{"from":"gpt","value":"b"}]}')" = 'b@' ]
    # With prompts as targets, what was excluded stays so; so does a mask in other input.
    how=$(masks "$(row ',"weight":0' '')" --targets all)
    [[ $how == *user*last@* ]]
    [[ $how != *first* ]]
    [[ $(masks '{"messages":[{"role":"user","content":"ask","weight":0},{"role":"assistant","content":"a"}]}' --targets all) != *ask* ]]
    # Of a message that is no target anyway nothing changes.
    for key in 0 1 null; do
        [ "$(masks '{"messages":[{"role":"system","content":"s","weight":'$key'},{"role":"user","content":"u","weight":'$key'},{"role":"assistant","content":"a"}]}')" = 'a@' ]
    done
}

@test "weight 0: without a target left a conversation is skipped and counted" {
    printf '%s\n' '{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"bad","weight":0}]}' \
        '{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"good","weight":1}]}' >w.jsonl
    run -0 --separate-stderr tokenize -v -t "$T" -o w.tok w.jsonl
    [[ $stderr == *'w.jsonl: line 1: skipped: no target after its first id'* ]]
    [[ $stderr == *': 2 rows, '*' (5 targets), 1 skipped, 0 truncated' ]]
    refuse 'w.jsonl: line 1: no target' tokenize -t "$T" --strict -f -o w.tok w.jsonl
    refuse '1 rows, 1 skipped' tokenize -t "$T" -o x.tok <(head -n 1 w.jsonl) --input jsonl
}

@test "keys that exclude in another way are refused by name, never learnt" {
    local u='{"role":"user","content":"u"}' j=(-t "$T" --input jsonl) key
    for key in '"weight":0.5' '"weight":2' '"weight":-1' '"weight":"0"' '"weight":true' '"weight":[0]' '"loss_weight":0.3'; do
        piped '{"text":"a"}\n{"messages":['"$u"',{"role":"assistant","content":"a",'"$key}]}" \
            "line 2: byte * ${key%%:*}: expected 0 (not learnt) or 1, found ${key#*:}" "${j[@]}" --count
    done
    for key in '"train":2' '"loss":"no"' '"masked":0.5'; do
        piped '{"messages":['"$u"',{"role":"assistant","content":"a",'"$key}]}" \
            "line 1: byte * ${key%%:*}: expected true or false, found ${key#*:}" "${j[@]}"
    done
    for key in '"train_detail":[{"begin_offset":0,"end_offset":1,"train":false}]' '"loss_mask":[0,1]' '"loss_scale":0.1' '"mask":1'; do
        piped '{"messages":['"$u"',{"role":"assistant","content":"a",'"$key}]}" \
            "line 1: byte * ${key%%:*}: expected null: a part of a text cannot be excluded" "${j[@]}"
    done
    piped '{"messages":[{"role":"user","content":"u","train":true}]}' \
        'line 1: byte * "train": expected an assistant'"'s message, found \"user\"" "${j[@]}"
    piped '{"messages":['"$u"',{"role":"assistant","content":[{"type":"text","text":"a","weight":0}]}]}' \
        'line 1: byte * "weight": expected it beside "role"' "${j[@]}"
    # Of a row: another mask is refused, a row that is excluded is skipped.
    piped '{"prompt":"a","completion":"b","completion_mask":[0,1]}' 'line 1: byte * "completion_mask": expected null' "${j[@]}"
    piped '{"messages":['"$u"'],"mask":"User"}' '"mask": expected null' "${j[@]}"
    piped '{"prompt":"a","completion":"b","weight":3}' '"weight": expected 0 (not learnt) or 1, found 3' "${j[@]}"
    for key in '"weight":0' '"train":false' '"label":false' '"kto_tag":false'; do
        printf '{"prompt":"a","completion":"b"}\n{"prompt":"a","completion":"b",%s}\n' "$key" >r.jsonl
        run -0 --separate-stderr tokenize -v -t "$T" -f -o r.tok r.jsonl
        [[ $stderr == *"line 2: skipped: ${key%%:*} excludes it"* ]]
        [[ $stderr == *', 1 skipped, '* ]]
    done
    # What names a class, or says nothing, changes nothing.
    for key in '"label":0' '"label":true' '"weight":1' '"train":true' '"loss":2.5' '"mask":null'; do
        [ "$(masks '{"prompt":"a","completion":"b",'"$key}")" = b@ ]
    done
    [ "$(masks '{"text":"b","label":false}')" = b@ ]
}

@test "content null is refused with its line; calls are named" {
    local u='{"role":"user","content":"u"}' j=(-t "$T" --input jsonl --count)
    piped '{"text":"a"}\n{"messages":['"$u"',{"role":"assistant","content":null}]}' \
        'line 2: byte 86: "content" is null: expected a text' "${j[@]}"
    piped '{"messages":['"$u"',{"role":"assistant","content":null,"tool_calls":[]}]}' '"content" is null' "${j[@]}"
    piped '{"conversations":[{"from":"gpt","value":null}]}' 'line 1: byte 40: "value" is null' "${j[@]}"
    piped '{"messages":['"$u"',{"role":"assistant","content":null,"tool_calls":[{}]}]}' 'line 1: byte 91: "tool_calls": tools are not supported' "${j[@]}"
    piped '{"messages":['"$u"',{"role":"assistant","content":"","function_call":{"name":"f"}}]}' '"function_call": tools' "${j[@]}"
    piped '{"messages":['"$u"'],"functions":[{"name":"f"}]}' '"functions": tools' "${j[@]}"
    [ "$(masks '{"messages":['"$u"',{"role":"assistant","content":"a","tool_calls":null,"function_call":null}],"functions":[]}')" = a@ ]
}

# shapes FILE: what the rows of FILE, objects of any known shape, must give, by tok.py's rules.
shapes() {
    python3 - "$1" <<'END'
import json, os, sys
sys.path.insert(0, os.path.dirname(os.environ["TOK"]))
from tok import IM_START, IM_END, END_OF_TEXT, encode, render
def chat(turns):
    ids, mask = [], []
    for role, text in turns:
        head = [IM_START] + encode(role + "\n")
        body = encode(text)
        ids += head + body + [IM_END] + encode("\n")
        mask += [0] * len(head) + [int(role == "assistant")] * (len(body) + 1) + [0]
    return ids, mask
def text(content):
    return content if isinstance(content, str) else "".join(p["text"] for p in content)
def row(o):
    if "instruction" in o:
        more = o.get("input")
        return render(o["instruction"] + ("\n" + more if more else ""), o["output"], "qwen3", False)
    if "conversations" in o:
        names = {"human": "user", "gpt": "assistant"}
        return chat((names.get(m["from"], m["from"]), m["value"]) for m in o["conversations"])
    if "messages" in o:
        return chat((m["role"], text(m["content"])) for m in o["messages"])
    if "prompt" in o:
        return render(o["prompt"], o.get("target", o.get("completion")), "qwen3", False)
    ids = encode(o["text"]) + [END_OF_TEXT]
    return ids, [1] * len(ids)
for o in json.load(open(sys.argv[1])):
    ids, mask = row(o)
    print(json.dumps({"ids": list(ids), "mask": list(mask)}, separators=(",", ":")))
END
}

@test "jsonl: the shapes of public data sets, as lines and as one array" {
    cat >a.json <<'END'
[
  {"text": "a, ] } and \"[{\" \\", "input": 1, "output": {"x": [2, "]"]}},
  {"prompt": "p", "completion": " c", "id": 7}, {"prompt": "p", "target": "t"},

  {"instruction": "Add.", "input": "1 2", "output": "3", "text": "### Instruction: Add."},
  {"instruction": "Say it.", "input": "", "output": "it"},
  {"output": "it", "input": null, "instruction": "Say it."}, {"instruction": "No", "output": "yes"},
  {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h", "weight": 0},
    {"value": "g", "from": "gpt"}, {"from": "user", "value": "u"}, {"from": "assistant", "value": "a"}]},
  {"prompt": "the first message", "messages": [
    {"role": "user", "content": [{"type": "text", "text": "one "}, {"text": "tw\u006f", "type": "text"}]},
    {"role": "assistant", "content": []}, {"role": "user", "content": "x"},
    {"role": "assistant", "content": "y"}]}
]
END
    shapes a.json >want
    [ "$(wc -l <want)" -eq 9 ]
    tokenize -q -t "$T" --emit jsonl a.json >got
    cmp got want
    python3 -c 'import json; [print(json.dumps(o)) for o in json.load(open("a.json"))]' >a.jsonl
    tokenize -q -t "$T" --emit jsonl a.jsonl | cmp - want
    # On one line, in a pipe that brings a byte at a time, behind white space and a BOM.
    python3 -c 'import json; print(end=" \ufeff"[1:] + "\n \n" + json.dumps(json.load(open("a.json"))))' >one
    tokenize -q -t "$T" --input jsonl --emit jsonl one | cmp - want
    dd if=one bs=1 status=none | tokenize -q -t "$T" --input jsonl --emit jsonl | cmp - want
    printf ' [ ] \n' >none.json
    run -0 --separate-stderr tokenize -q -t "$T" --emit ids none.json
    [ -z "$output$stderr" ]
    refuse 'at least one sample' tokenize -t "$T" -o n.tok none.json
    # ShareGPT's tool is the tool of messages.
    echo '[{"conversations":[{"from":"human","value":"q"},{"from":"tool","value":"r"},{"from":"gpt","value":"a"}]}]' >s.json
    echo '{"messages":[{"role":"user","content":"q"},{"role":"tool","content":"r"},{"role":"assistant","content":"a"}]}' >m.jsonl
    tokenize -q -t "$HERE/vectors/tokenizer-small.json" --emit jsonl s.json >s
    grep -q ids s
    tokenize -q -t "$HERE/vectors/tokenizer-small.json" --emit jsonl m.jsonl | cmp - s
}

@test "jsonl: a long array, by any number of threads" {
    python3 - <<'END'
import json
rows = [{"text": "row %d [%s]," % (i, "x{\"\\" * (i % 97))} for i in range(60000)]
json.dump(rows, open("a.json", "w"), indent=1)
with open("a.jsonl", "w") as f:
    for r in rows:
        print(json.dumps(r), file=f)
END
    tokenize -q -t "$T" --emit ids a.jsonl >want
    [ "$(wc -l <want)" -eq 60000 ]
    tokenize -q -t "$T" -j 1 --emit ids a.json | cmp - want
    tokenize -q -t "$T" -j 5 --emit ids - a.json </dev/null | cmp - want
    # The item of an error is counted from 1, the byte is that of the file.
    python3 - <<'END'
s = open("a.json").read()
at = s.index('"text": "row 41000 ')
open("bad.json", "w").write(s[:at] + '"Text' + s[at + 5:])
open("at", "w").write(str(s.rindex("},", 0, at) + 2))
END
    refuse "bad.json: item 41001: byte $(cat at): expected " tokenize -t "$T" --count bad.json
    head -c 100000 a.json >cut.json
    refuse 'cut.json: item ' tokenize -t "$T" --count cut.json
    head -n 28 a.json >cut.json
    refuse 'expected a row behind the comma, found the end of the file' tokenize -t "$T" --count cut.json
}

@test "jsonl: an error instead of an answer is skipped and counted" {
    printf '%s\n' '{"turn":0,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}' \
        '{"turn":1,"line":2,"error":"not UTF-8"}' >said.jsonl
    run -0 --separate-stderr tokenize -t "$T" -o said.tok said.jsonl
    [[ $stderr == *' 2 rows, '*', 1 skipped, '* ]]
    refuse 'said.jsonl: line 2: an error instead of an answer' tokenize -q -t "$T" --strict -f -o said.tok said.jsonl
}

@test "jsonl: unknown shapes are named by their keys, and what is known" {
    local known='expected "text", "messages", "conversations", "prompt" with "completion" or "target", or "instruction" with "output"'
    local j=(-t "$T" --input jsonl)
    piped '{"text":"a"}\n{"question":"q","answer":{"x":[1]}}\n' "line 2: byte 13: $known: " "${j[@]}" --count
    piped '{"question":"q","answer":{"x":[1]}}' 'found the keys "question", "answer"' "${j[@]}"
    piped '{}' 'found no keys' "${j[@]}"
    piped '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"k":1,"l":1}' '"i", "j", ...' "${j[@]}"
    for keys in '"instruction":"a"' '"instruction":"a","input":"b"' '"prompt":"a","output":"b"' \
        '"completion":"a"' '"messages":[],"conversations":[]' '"messages":[],"text":"a"' \
        '"prompt":"a","target":"b","completion":"c"' '"instruction":"a","output":"b","target":"c"'; do
        piped "{$keys}" "$known: " "${j[@]}"
    done
    piped '{"instruction":1,"output":"b"}' 'byte 15: expected a string' "${j[@]}"
    piped '{"instruction":"a","input":1,"output":"b"}' 'byte 27: expected a string' "${j[@]}"
    piped '{"conversations":[{"role":"user","content":"b"}]}' '"from" and "value"' "${j[@]}"
    piped '{"conversations":[{"from":"bing","value":"b"}]}' 'found "bing"' "${j[@]}"
    piped '{"messages":[{"role":"user","content":[{"type":"image","url":"x"}]}]}' 'byte 39: expected a part of type "text", found "image"' "${j[@]}"
    piped '{"messages":[{"role":"user","content":[{"type":"text"}]}]}' 'a part with "text"' "${j[@]}"
    piped '{"messages":[{"role":"user","content":["x"]}]}' 'an object' "${j[@]}" --count
    piped '[{"text":"a"},]' 'byte 14: expected a row behind the comma, found ]' "${j[@]}" --count
    piped '[,{"text":"a"}]' 'byte 1: expected a row or ' "${j[@]}"
    piped '[{"text":"a"}' 'byte 13: ' "${j[@]}" --count
    piped '[{"text":"a"}] {' 'byte 15: expected nothing behind the array' "${j[@]}" --count
    piped '[{"text":"a"}}]' 'item 1: ' "${j[@]}" --count
    piped '[{"text":"a"},[{"text":"a"}]]' 'item 2: byte 14: expected an object' "${j[@]}" --count
    # Rows before an error are written.
    run -2 bash -c 'echo "[{\"text\":\"a\"},]" | tokenize -q -t "$T" --input jsonl --emit ids 2>/dev/null'
    [ "$output" = '64 256' ]
}

@test "the kind of input is that of the suffix, --input overrules" {
    printf '5 6\t7\n' >a.tsv
    printf '{"text":"5 6"}\n' >a.jsonl
    printf '[{"text":"5 6"}]\n' >a.json
    printf '5 6\n' >a.txt
    cp a.tsv plain
    tokenize -q -t "$T" --emit ids a.jsonl >doc
    tokenize -q -t "$T" --input lines --emit ids a.txt | cmp - doc
    for f in a.json a.txt; do
        tokenize -q -t "$T" --emit ids $f | cmp - doc
    done
    tokenize -q -t "$T" --emit ids a.tsv >pair
    tokenize -q -t "$T" --emit ids plain | cmp - pair
    tokenize -q -t "$T" --emit ids <a.tsv | cmp - pair
    [ "$(tokenize -q --input ids --emit ids a.txt)" = '5 6' ]
    [ "$(tokenize -q -t "$T" --input tsv --emit ids a.tsv a.jsonl 2>/dev/null)" = "$(cat pair)" ]
    tokenize -q -t "$T" -o x.tok a.txt
    [[ $(tok read x.tok) == *'"input":"lines"'* ]]
    # .txt was TSV once: that is said, but not where one was asked.
    run -0 --separate-stderr tokenize -t "$T" --emit ids a.txt
    [[ ${stderr_lines[0]} == 'tokenize: a.txt: is read as lines'*'--input tsv'* ]]
    [ "${#stderr_lines[@]}" -eq 2 ]
    run -0 --separate-stderr tokenize -t "$T" --input lines --emit ids a.txt
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -0 --separate-stderr tokenize -t "$T" --emit ids a.jsonl
    [ "${#stderr_lines[@]}" -eq 1 ]
    # A name that tells nothing goes with the others; two that differ do not go together.
    cp a.jsonl other
    cp a.jsonl third
    tokenize -q -t "$T" --emit ids other a.jsonl - <third | cmp - <(cat doc doc doc)
    refuse 'a.jsonl is jsonl by its suffix, a.tsv is tsv' tokenize -t "$T" --count a.jsonl other a.tsv
    refuse 'files of one kind' tokenize -t "$T" -o y.tok a.txt a.json
    # --decode reads ids whatever they are called.
    echo '64 65' >ids.txt
    [ "$(tokenize -q -t "$T" --decode ids.txt)" = ab ]
}

@test "a kind that yields no sample names the likely one" {
    printf '{"text":"a"}\n' >j
    printf '[\n{"text":"a"}]\n' >array
    printf '# c\n\na b\tc\n' >t
    printf 'a b\nc d\n' >l
    printf '5 6 7\n' >i
    printf '{"ids":[5,6]}\n' >o
    local hint='; it looks like' # behind it, what
    refuse "1 skipped$hint JSON: try --input jsonl" tokenize -t "$T" --count j
    refuse "2 skipped$hint JSON: try --input jsonl" tokenize -t "$T" --count array
    refuse "$hint lines of text: try --input lines" tokenize -t "$T" -o x.tok l
    refuse "$hint ids: try --input ids" tokenize -t "$T" -o x.tok i
    refuse "$hint ids: try --input ids" tokenize -t "$T" --input jsonl -o x.tok o
    refuse "line 1: byte 0: expected an object, found * $hint TSV: try --input tsv" tokenize -t "$T" --input jsonl <(tail -n 1 t)
    refuse "$hint JSON: try --input jsonl" tokenize -t "$T" --input ids j
    refuse "$hint TSV: try --input tsv" tokenize -t "$T" --input ids t
    # No hint where it is what it was taken for, or where rows were found.
    printf 'a\t\nno tab\n' >t
    run -2 --separate-stderr tokenize -t "$T" --count t
    [[ $stderr == *'2 skipped; the first is t: line 1: expected prompt, TAB, target: one of them is empty' ]]
    printf '{"text":"a"}\nx\n' >j
    run -2 --separate-stderr tokenize -t "$T" --input jsonl --count j
    [[ $stderr == *"line 2: "* ]]
    [[ $stderr != *"looks like"* ]]
}

@test "ids: lines of numbers, with or without a mask" {
    printf '5 6  7\n\n{"ids":[4294967295,0],"mask":[0,1]}\n{"ids":[1,2]}\n' >i
    run -0 tokenize -q --input ids --emit jsonl i
    [ "${lines[0]}" = '{"ids":[5,6,7],"mask":[1,1,1]}' ]
    [ "${lines[1]}" = '{"ids":[],"mask":[]}' ]
    [ "${lines[2]}" = '{"ids":[4294967295,0],"mask":[0,1]}' ]
    [ "${lines[3]}" = '{"ids":[1,2],"mask":[1,1]}' ]
    tokenize -q --input ids --emit jsonl i | tokenize -q --input ids --emit jsonl >again
    [ "$output" = "$(cat again)" ]
    tokenize -q --input ids -o i.tok i
    [[ $(tok read i.tok) == *'"samples":3,"skipped":1,"targets":4,"tokens":7,'* ]]
    piped '1 2\n3 x4\n' 'line 2: byte 6: ' --input ids --count
    piped '1 -2' 'byte 2' --input ids
    piped '9xyz\n1\n' 'byte 0: expected an id of 0..4294967295, found "9xyz"' --input ids
    piped '1 2 3x\n4 5\n' 'byte 4: expected an id of 0..4294967295, found "3x"' --input ids
    piped '12 3x45 6' 'byte 3: expected an id of 0..4294967295, found "3x45"' --input ids
    piped '4294967296' '4294967295' --input ids
    piped '{"ids":[1,2],"mask":[1]}' 'mask of 2, found 1' --input ids
    piped '{"ids":[1,2],"mask":[1,2]}' '0 and 1' --input ids
    piped '{"ids":[1.5]}' 'integer' --input ids
    piped '1 300' 'id 300 at position 1' --input ids -t "$T"
}

# ---- CSV ---------------------------------------------------------------------------

# both CSV JSONL ARGUMENT...: they give the same ids and masks.
both() {
    tokenize -q -t "$T" --emit jsonl "${@:3}" "$1" >from-csv
    tokenize -q -t "$T" --emit jsonl "${@:3}" "$2" >from-jsonl
    cmp from-csv from-jsonl
    [ -s from-csv ]
}

@test "csv: quotes, doubled quotes, commas, line feeds, CR LF, a byte order mark" {
    printf '%b' '\xef\xbb\xbf"id","prompt",completion\r\n' \
        '1,"hello, you","he said ""hi""\nand left"\r\n' '2, b ,c\r\n' '\r\n' \
        '3,"","x"\r\n' '4,"a\r\nb",""""\r\n' '5,p,"last"' >c.csv
    printf '%s\n' '{"prompt":"hello, you","completion":"he said \"hi\"\nand left"}' \
        '{"prompt":" b ","completion":"c"}' '{"prompt":"a\r\nb","completion":"\""}' \
        '{"prompt":"p","completion":"last"}' >c.jsonl
    both c.csv c.jsonl
    # By suffix, by name, from a pipe.
    tokenize -q -t "$T" --emit jsonl --input csv <c.csv | cmp - from-csv
    tail -c +1 c.csv | tokenize -q -t "$T" --emit jsonl --input csv - | cmp - from-csv
    run -0 --separate-stderr tokenize -v -t "$T" -o c.tok c.csv
    [[ ${stderr_lines[0]} == 'tokenize: c.csv: a byte order mark was dropped' ]]
    [[ ${stderr_lines[1]} == 'tokenize: c.csv: line 6: skipped: '*'one of them is empty' ]]
    [[ ${stderr_lines[2]} == 'tokenize: 5 rows, '*', 1 skipped, 0 truncated' ]]
    [[ $(tok read c.tok) == *'"input":"csv"'*'"template":"qwen3"'* ]]
    refuse 'c.csv: line 6: expected a prompt and an answer: one of them is empty' tokenize -q -t "$T" --strict -f -o c.tok c.csv
    # Each file has its own header; columns may stand in another order.
    printf 'completion,prompt\ny,x\n' >d.csv
    printf '{"prompt":"x","completion":"y"}\n' >d.jsonl
    [ "$(tokenize -q -t "$T" --emit jsonl c.csv d.csv)" = "$(tokenize -q -t "$T" --emit jsonl c.jsonl d.jsonl)" ]
}

@test "csv: the shapes of JSONL, by the names of the columns" {
    printf 'text\n"a\nb"\nc\n' >t.csv
    printf '{"text":"a\\nb"}\n{"text":"c"}\n' >t.jsonl
    both t.csv t.jsonl
    both t.csv t.jsonl --chunk 2
    printf 'prompt,source,target\na,1,b\n' >t.csv
    printf '{"prompt":"a","target":"b"}\n' >t.jsonl
    both t.csv t.jsonl
    printf 'instruction,input,output\na,i,b\nc,,d\n' >t.csv
    printf '%s\n' '{"instruction":"a","input":"i","output":"b"}' '{"instruction":"c","input":"","output":"d"}' >t.jsonl
    both t.csv t.jsonl --template torchsharp
    # Keys that exclude count here, too; an empty cell says nothing.
    printf 'prompt,completion,label,weight\na,b,False,1\nc,d,True,\ne,f,,0\n' >t.csv
    run -0 --separate-stderr tokenize -v -t "$T" --emit ids t.csv
    [ "${#lines[@]}" -eq 1 ]
    [[ $stderr == *'line 2: skipped: "label" excludes it'*'line 4: skipped: "weight" excludes it'* ]]
    printf 'prompt,completion,weight\na,b,0.5\n' >t.csv
    refuse 't.csv: line 2: column "weight": expected 0 (not learnt) or 1, found 0.5' tokenize -t "$T" --count t.csv
}

@test "csv: what is refused, with its line" {
    local c=(-t "$T" --input csv) known='expected the columns "text", "prompt" with "completion" or "target", or "instruction" with "output"'
    piped 'question,the answer\na,b\n' "line 1: $known * found \"question\", \"the answer\" * --prompt-key" "${c[@]}"
    piped 'prompt,response\na,b\n' "line 1: $known" "${c[@]}" --count
    piped 'prompt;completion\na;b\n' 'found "prompt;completion": fields are separated by commas' "${c[@]}"
    piped 'prompt\tcompletion\na\tb\n' 'fields are separated by commas * it looks like TSV: try --input tsv' "${c[@]}"
    piped 'messages\n"[]"\n' "line 1: $known" "${c[@]}"
    piped 'text,prompt,target\na,b,c\n' "line 1: $known" "${c[@]}"
    piped 'prompt,prompt,target\na,b,c\n' 'line 1: a second column "prompt"' "${c[@]}"
    piped 'prompt,target\na,b\n"x\ny",b,c\n' 'line 3: expected as many fields as the header has, 2, found 3: a field with a comma needs quotes' "${c[@]}" --count
    piped 'prompt,target\n"x\ny",b\na\n' 'line 4: expected as many fields as the header has, 2, found 1' "${c[@]}" --count
    piped 'prompt,target\na,b\nc,"d\ne,f\n' 'line 3: byte 20: expected a field whose opening quote is closed, found "d\ne,f' "${c[@]}" --count
    piped 'prompt,target\na,"b"c\n' 'line 2: byte 19: expected a comma or the end of the line behind the closing quote' "${c[@]}"
    piped 'prompt,target\na, "b"\n' 'line 2: byte 17: expected no quote inside a field without quotes' "${c[@]}"
    piped '"prompt,target\na,b\n' 'line 1: byte 0: expected a field whose opening quote is closed' "${c[@]}"
    piped '' 'line 1: expected a header with the names of the columns, found the end' "${c[@]}" --emit ids
    piped 'prompt,target\n' 'at least one sample' "${c[@]}" --emit ids
    piped 'prompt,target\na,b\nc,\xff\n' 'line 3: byte 20: expected UTF-8, found byte 0xff' "${c[@]}" --count
    piped 'prompt,target,\xff\na,b,c\n' 'line 1: byte 14: expected UTF-8, found byte 0xff' "${c[@]}"
    piped 'prompt,target,\0\na,b,c\n' 'line 1: byte 14: expected text, found a NUL byte' "${c[@]}"
    piped 'prompt,target\n"a\n\0",b\n' 'line 2: byte 17: expected text, found a NUL byte' "${c[@]}" --count
    # Replaced, also in the header.
    printf 'prompt,target,\xff\na,b\xff,c\n' >r.csv
    run -0 --separate-stderr tokenize -t "$T" --invalid replace --emit ids r.csv
    [[ $stderr == *', 2 bad sequences replaced' ]]
    # No error of a table is answered with lines, as which it would be learnt.
    run -2 --separate-stderr tokenize "${c[@]}" --count <<<$'a sentence, or two\nfoo'
    [[ $stderr != *'looks like'* ]]
    printf 'a\tb\n' >a.tsv
    refuse 'a.tsv is tsv by its suffix, r.csv is csv' tokenize -t "$T" --count a.tsv r.csv
    refuse '-o x.csv: a .tok is written' tokenize -t "$T" -f -o x.csv r.csv
}

@test "--prompt-key, --answer-key: a name that excludes rows elsewhere is that of a text here" {
    local key f
    for key in label train weight loss_weight tools; do
        printf 'text,%s\nthe sky is blue,true\nthe sky is green,false\na feather,0\n' $key >named.csv
        python3 -c 'import csv, json
for row in csv.DictReader(open("named.csv")): print(json.dumps(row))' >named.jsonl
        for f in named.csv named.jsonl; do
            run -0 --separate-stderr tokenize -t "$T" --prompt-key text --answer-key $key --emit ids $f
            [[ $stderr == *' 3 rows, '*' 0 skipped'* ]] || { echo "$key $f: $stderr" && false; }
            [ "$(wc -l <<<"$output")" -eq 3 ]
        done
    done
}

@test "csv: a table under another kind's name is recognised" {
    local hint='; it looks like CSV: try --input csv' head
    for head in 'prompt,completion\na b,c d' 'instruction,input,output\na,b,c' 'text\nsome words' \
        'question,answer\n"a, b",c' 'id,"user_input",best.answer\n1,2,3'; do
        printf '%b\n' "$head" >plain
        refuse "$hint" tokenize -t "$T" --count plain
        refuse "$hint" tokenize -t "$T" --input jsonl --count plain
        refuse "$hint" tokenize -t "$T" --input ids --count plain
    done
    # Sentences are lines, whatever commas they have.
    for head in 'Hello, world\nHow are you, then' 'yes,no\nfoo' 'One.\nTwo.' 'a b,c d\ne,f' \
        '[中文](a.md)\nmore'; do
        printf '%b\n' "$head" >plain
        refuse '; it looks like lines of text: try --input lines' tokenize -t "$T" --count plain
    done
}

@test "csv: random tables of Python's writer, whatever the threads and the sizes of reads" {
    python3 - <<'END'
import csv, io, json, random
r = random.Random(5)
def text(n):
    return "".join(r.choice(['a', 'b ', '"', ',', '\n', '\r\n', 'é', '😀', '\t', ' ', "'", '""']) for _ in range(n))
rows = [{"prompt": "p" + text(r.choice([0, 1, 2, 9, 50, 400, 3000])), "id": text(3),
         "completion": text(r.choice([0, 1, 5, 40, 900])) + "c"} for _ in range(3000)]
with open("r.jsonl", "w") as f:
    f.writelines(json.dumps({"prompt": x["prompt"], "completion": x["completion"]}) + "\n" for x in rows)
for name, end, how in (("all.csv", "\r\n", csv.QUOTE_ALL), ("min.csv", "\n", csv.QUOTE_MINIMAL)):
    with open(name, "w", newline="") as f:
        w = csv.DictWriter(f, ["id", "prompt", "completion"], lineterminator=end, quoting=how)
        w.writeheader()
        w.writerows(rows)
END
    both all.csv r.jsonl
    tokenize -q -t "$T" --emit jsonl -j 1 min.csv | cmp - from-jsonl
    tokenize -q -t "$T" --emit jsonl -j 5 min.csv | cmp - from-jsonl
    run -0 bash -o pipefail -c 'dd bs=777 if=min.csv 2>/dev/null | tokenize -q -t "$T" --input csv --emit jsonl | cmp - from-jsonl'
    # A row's side is that of its texts, in whatever form they are written.
    tokenize -q -t "$T" --split 0.3:7 --emit jsonl -o c1 -o c2 all.csv
    tokenize -q -t "$T" --split 0.3:7 --emit jsonl -o j1 -o j2 r.jsonl
    cmp c1 j1
    cmp c2 j2
    # The line of an error is that of the file.
    printf '"x\ny",z,"q\n' >>min.csv
    refuse "min.csv: line $(($(wc -l <min.csv) - 1)): byte * expected a field whose opening quote is closed" \
        tokenize -t "$T" -j 3 --count min.csv
}

@test "csv: a slow producer is followed record by record" {
    mkfifo in
    tokenize -q -t "$T" --input csv --emit ids --template none --no-end in >out &
    exec 5<>in # does not wait for a reader
    printf 'prompt,target\na,"b\n' >&5
    printf 'c"\nd' >&5
    for _ in $(seq 100); do
        [ ! -s out ] || break
        sleep 0.05
    done
    [ "$(cat out)" = '64 65 198 66' ]
    printf ',e\n' >&5
    exec 5>&-
    wait $!
    [ "$(wc -l <out)" -eq 2 ]
}

# bats test_tags=nosan
@test "csv: a stream takes little memory, a quote without end is refused" {
    run -0 python3 - <<'END'
import os, resource, subprocess, sys
p = subprocess.Popen(["tokenize", "-q", "-j", "4", "-t", os.environ["T"], "--input", "csv", "-o", "/dev/null"],
                     stdin=subprocess.PIPE)
p.stdin.write(b"prompt,completion\n")
rows = b"".join(b'prompt %d,"%s\n"\r\n' % (i, b"word, " * (i % 50)) for i in range(20000))
for _ in range(12):
    p.stdin.write(rows)
p.stdin.close()
rc = p.wait()
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(rc, kib)
sys.exit(rc or kib > 256 * 1024)
END
    run -2 --separate-stderr bash -c '{ printf "text\n\"a"; yes; } | (ulimit -v 1500000
        timeout 60 tokenize --input csv -t "$T" -j 1 --count)'
    [ -z "$output" ]
    [[ $stderr == "tokenize: <stdin>: line 2: longer than 268435456 bytes, which is the limit: a quote is open" ]]
}

@test "--prompt-key, --answer-key: a pair under other names, in JSONL and CSV" {
    local k=(--prompt-key question --answer-key 'the answer')
    printf '%s\n' '{"question":"q","the answer":"a","text":[1]}' '{"error":"none"}' '{"the answer":"c","question":"b"}' >q.jsonl
    printf '[\n{"question":"q","the answer":"a"},{"the answer":"c","question":"b"}]\n' >q.json
    printf 'text,the answer,question,prompt\n1,a,q,\n2,c,b,\n' >q.csv
    printf 'q\ta\nb\tc\n' >q.tsv
    tokenize -q -t "$T" --emit jsonl q.tsv >want
    for f in q.jsonl q.json q.csv; do
        tokenize -q -t "$T" --emit jsonl "${k[@]}" $f | cmp - want
    done
    tokenize -q -t "$T" "${k[@]}" -o q.tok q.csv
    [[ $(tok read q.tok) == *'"answer_key":"the answer"'*'"prompt_key":"question"'* ]]
    refuse 'the input is tsv: expected --input jsonl or csv' tokenize -t "$T" "${k[@]}" --count q.tsv
    refuse '--prompt-key: names keys of JSONL and columns of CSV' tokenize -t "$T" "${k[@]}" --input lines --count q.tsv
    refuse '--decode' tokenize -t "$T" "${k[@]}" --decode q.tok
    refuse '--prompt-key: needs --answer-key' tokenize -t "$T" --prompt-key a q.csv
    refuse '--answer-key: needs --prompt-key' tokenize -t "$T" --answer-key a q.csv
    refuse 'expected two names' tokenize -t "$T" --prompt-key a --answer-key a q.csv
    piped '{"prompt":"q","completion":"a"}' 'line 1: byte 0: expected "question" and "the answer"; found the keys "prompt", "completion"' -t "$T" --input jsonl "${k[@]}"
    piped '{"question":1,"the answer":"a"}' 'line 1: byte 12: expected a string' -t "$T" --input jsonl "${k[@]}"
    piped 'question,answer\na,b\n' 'line 1: expected the columns "question" and "the answer"; found "question", "answer"' -t "$T" --input csv "${k[@]}"
}

# ---- length, order, bins -----------------------------------------------------------------

@test "--targets all: prompts and the template count" {
    printf 'one\ttwo\nthree\tfour\n' >p.tsv
    cat >p.jsonl <<'END'
{"messages":[{"role":"system","content":"s"},{"role":"user","content":"one"},{"role":"assistant","content":"two"},{"role":"user","content":"x"}]}
{"text":"all the same"}
{"messages":[{"role":"user","content":"without an answer"}]}
END
    # shellcheck disable=SC2094  # all is a word and a file
    for f in 'tsv p.tsv' 'tsv p.tsv --joint' 'tsv p.tsv --template torchsharp --no-end' 'jsonl p.jsonl'; do
        # shellcheck disable=SC2086  # words
        set -- $f
        tokenize -q -t "$T" --input "$@" --emit jsonl >answer
        tokenize -q -t "$T" --targets all --input "$@" --emit jsonl >whole
        tokenize -q -t "$T" --targets answer --input "$@" --emit jsonl | cmp - answer
        python3 - "$1" <<'PY'
import json, sys
a, b = ([json.loads(line) for line in open(f)] for f in ("answer", "whole"))
assert len(a) == len(b) == (2 if sys.argv[1] == "tsv" else 3), (len(a), len(b))
for x, y in zip(a, b):
    assert x["ids"] == y["ids"]
    assert y["mask"] == [1] * len(x["ids"]), y
assert sum(sum(x["mask"]) for x in a) < sum(sum(x["mask"]) for x in b)
PY
    done
    # Who asks for all has a sample even without an answer; the header says so, and only then.
    run -0 --separate-stderr tokenize -t "$T" --input jsonl -o answer.tok p.jsonl
    [[ $stderr == *' targets), 1 skipped, '* ]]
    run -0 --separate-stderr tokenize -t "$T" --targets all --input jsonl -o all.tok p.jsonl
    [[ $stderr == *' targets), 0 skipped, '* ]]
    [ "$(datcat --meta all.tok | json "d['meta']['settings']['targets']")" = all ]
    [[ $(datcat --meta answer.tok) != *targets* ]]
    datcat --verify all.tok
    [[ $(tokenize -q -t "$T" --decode all.tok) == *'without an answer'* ]]
    # Of what has no prompts nothing changes.
    echo '{"ids":[1,2,3],"mask":[0,0,1]}' >i
    tokenize -q --input ids -o i.tok i
    tokenize -q --input ids --targets all i | cmp - i.tok
    refuse '--targets: some' tokenize -t "$T" --targets some p.tsv
    refuse '--decode' tokenize -t "$T" --decode --targets all all.tok
}

@test "--chunk cuts documents, and each id but the first is a target once" {
    local n
    { for n in 0 1 2 3 4 5 6 7 8 40 1000; do head -c "$n" <(yes abcdefghijk | tr -d '\n') && echo; done; } >l
    tokenize -q -t "$T" --input lines --no-end --emit jsonl l >whole
    for n in 2 3 4 7 100 5000; do
        python3 - "$n" >want <<'END'
import json, sys
n = int(sys.argv[1])
for line in open("whole"):
    ids = json.loads(line)["ids"]
    parts = [ids[i:i + n + 1] for i in range(0, len(ids) - 1, n)] if len(ids) > n + 1 else [ids]
    for part in parts:
        print(json.dumps({"ids": part, "mask": [1] * len(part)}, separators=(",", ":")))
END
        tokenize -q -t "$T" --input lines --no-end --chunk $n --emit jsonl l >got
        cmp got want
        # A stream has them all but what is too short to be a sample.
        run -0 --separate-stderr tokenize -t "$T" --input lines --no-end --chunk $n -o c$n.tok l
        [[ $stderr == "tokenize: 11 rows, $(awk -F , 'NF > 2' want | wc -l) samples, "*' 2 skipped, 0 truncated'* ]]
        tok read c$n.tok | tail -n +3 | sed 's/,"starts":\[0\]//' | cmp - <(awk -F , 'NF > 2' want)
        [[ $(tok read c$n.tok | head -n 1) == *"\"seq_len\":$n,\"settings\":{\"chunk\":$n,"* ]]
        tokenize -q -t "$T" --input lines --no-end --chunk $n -j 3 l | cmp - c$n.tok
        tokenize -q -t "$T" --input ids --chunk $n --emit ids <(tokenize -q -t "$T" --input lines --no-end --emit ids l) |
            cmp - <(tokenize -q --input ids --emit ids want)
        [ "$(tokenize -q -t "$T" --input lines --no-end --chunk $n --count l | tail -n 1)" = "$(datcat c$n.tok | sed -n 2p | cut -f 1-5)" ]
        # The targets of all samples are those of the whole documents.
        [ "$(datcat c$n.tok | sed -n 2p | cut -f 3)" = "$(tokenize -q -t "$T" --input lines --no-end --count l | awk 'NR == 2 { print $3 }')" ]
    done
    tokenize -q -t "$T" --input lines --chunk 99 --seq-len 200 --pack -o p.tok l
    tokenize -q -t "$T" --input lines --chunk 99 -o c.tok l
    tok packed p.tok c.tok
}

@test "--chunk: rows with prompts are not cut" {
    printf '{"text":"abcdefgh"}\n{"prompt":"abcdefgh","target":"xyz"}\n' >r.jsonl
    refuse 'r.jsonl: line 2: 32 ids of a prompt * expected at most 5 ids; --seq-len 4' \
        tokenize -t "$T" --chunk 4 --count r.jsonl
    tokenize -q -t "$T" --chunk 4 --seq-len 4 --emit jsonl r.jsonl >got
    tokenize -q -t "$T" --seq-len 4 --emit jsonl r.jsonl | tail -n 1 | cmp - <(tail -n 1 got)
    [ "$(wc -l <got)" -eq 3 ]
    tokenize -q -t "$T" --chunk 31 --emit ids r.jsonl >whole
    tokenize -q -t "$T" --emit ids r.jsonl | cmp - whole
    # Where prompts are targets, too, nothing is lost.
    [ "$(tokenize -q -t "$T" --chunk 4 --targets all --emit ids r.jsonl | wc -l)" -eq 10 ]
    printf 'abcdefgh\txyz\n' >r.tsv
    [ "$(tokenize -q -t "$T" --chunk 4 --targets all --emit ids r.tsv | wc -l)" -eq 8 ]
    refuse '--chunk: cuts documents, and rows of TSV have prompts' tokenize -t "$T" --chunk 4 --seq-len 9 --count r.tsv
    # A mask that was given tells the same.
    printf '{"ids":[1,2,3,4,5],"mask":[0,1,1,1,1]}\n{"ids":[1,2,3,4,5],"mask":[1,0,1,1,1]}\n' >i
    refuse 'i: line 2: 5 ids' tokenize --input ids --chunk 2 --count i
    [ "$(head -n 1 i | tokenize -q --input ids --chunk 2 --emit jsonl)" = \
        $'{"ids":[1,2,3],"mask":[0,1,1]}\n{"ids":[3,4,5],"mask":[1,1,1]}' ]
    refuse '--chunk: 1: is too small: want 2..' tokenize --chunk 1
    refuse '--chunk 9: want at most --seq-len, which is 8' tokenize --chunk 9 --seq-len 8
    refuse '--decode' tokenize --decode --chunk 9 i
}

# sides FRACTION SEED FILE: the rows of a TSV, JSONL or lines of ids that are held out, by their
# texts.
sides() {
    python3 - "$HERE" "$@" <<'END'
import json, struct, sys
sys.path.insert(0, sys.argv[1])
from xxh3 import xxh3_128
fraction, seed, name = float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
for line in open(name, newline="\n"):
    line = line.rstrip("\n")
    if name.endswith(".ids"):
        what = b"".join(struct.pack("<I", int(w)) for w in line.split())
    elif name.endswith(".jsonl"):
        o = json.loads(line)
        texts = [m["content"] for m in o["messages"]] if "messages" in o else \
            [o["prompt"], o["target"]] if "prompt" in o else [o["text"]]
        what = b"".join(t.encode() + b"\0" for t in texts)
    else:
        what = b"".join(t.strip().encode() + b"\0" for t in line.strip().split("\t", 1))
    h = xxh3_128(struct.pack("<I", seed) + what)
    digest = h if isinstance(h, bytes) else bytes.fromhex(h)
    if int.from_bytes(digest[:8], "little") < int(fraction * 2**64):
        print(line)
END
}

@test "--split: a row's side is that of its hash, whatever is around it" {
    local f
    many 600 >m.tsv
    sides 0.2 7 m.tsv >held.tsv
    [ "$(wc -l <held.tsv)" -gt 80 ]
    [ "$(wc -l <held.tsv)" -lt 160 ]
    grep -vxFf held.tsv m.tsv >kept.tsv
    run -0 --separate-stderr tokenize -t "$T" --split 0.20:7 --emit ids -o a -o b m.tsv
    [ -z "$output" ]
    [[ ${stderr_lines[0]} == "tokenize: a: $(wc -l <kept.tsv) rows, "* ]]
    [[ ${stderr_lines[1]} == "tokenize: b: $(wc -l <held.tsv) rows, "* ]]
    tokenize -q -t "$T" --emit ids kept.tsv | cmp - a
    tokenize -q -t "$T" --emit ids held.tsv | cmp - b
    # As streams, which say whose side they are.
    tokenize -q -t "$T" --split .2:7 -j 3 -o a.tok -o b.tok m.tsv
    for f in a b; do
        datcat -q --verify $f.tok
        tok read $f.tok | tail -n +3 | sed 's/.*"ids":\[\([^]]*\)].*/\1/; s/,/ /g' | cmp - $f
    done
    [[ $(tok read a.tok) == *'"shuffle":null,"side":1,"split":"0.2:7"}'* ]]
    [[ $(tok read b.tok) == *'"shuffle":null,"side":2,"split":"0.2:7"}'* ]]
    # Other rows, another order, another template: the same sides.
    { many 900 | tail -n +550 | tac && head -n 400 m.tsv; } >other.tsv
    sides 0.2 7 other.tsv >held.tsv
    grep -qxFf held.tsv m.tsv
    tokenize -q -t "$T" --split 0.2:7 --template none --no-end --emit ids -f -o a -o b other.tsv
    tokenize -q -t "$T" --template none --no-end --emit ids held.tsv | cmp - b
    [ "$(cat a b | wc -l)" -eq "$(wc -l <other.tsv)" ]
    # Another seed, another share.
    sides 0.7 8 m.tsv >held.tsv
    tokenize -q -t "$T" --split 0.7:8 --emit ids -f -o a -o b m.tsv
    tokenize -q -t "$T" --emit ids held.tsv | cmp - b
}

@test "--split: messages, texts and ids; what else works with it" {
    python3 - <<'END'
import json
with open("r.jsonl", "w") as f, open("r.ids", "w") as g:
    for i in range(200):
        o = {"text": "text %d" % i} if i % 3 == 0 else {"prompt": "p%d" % i, "target": "é%d" % i} if i % 3 == 1 else \
            {"messages": [{"role": "user", "content": "u%d" % i}, {"role": "assistant", "content": "a"}]}
        print(json.dumps(o), file=f)
        print(*range(i, 3 * i + 2), file=g)
END
    for f in r.jsonl r.ids; do
        sides 0.3 4294967295 $f >held.${f#r.}
        [ -s held.${f#r.} ]
        how=(--input "${f#r.}" -t "$T" --emit ids)
        [ $f = r.jsonl ] || how=(--input ids --emit ids)
        tokenize -q "${how[@]}" --split 0.3:4294967295 -f -o a -o b $f
        tokenize -q "${how[@]}" held.${f#r.} | cmp - b
        [ "$(cat a b | wc -l)" -eq 200 ]
    done
    # A pair and the same as messages are one row.
    printf '{"prompt":"p%s","target":"t"}\n' {1..50} >p.jsonl
    sed 's/"prompt":\("[^"]*"\),"target":"t"/"messages":[{"role":"user","content":\1},{"role":"assistant","content":"t"}]/' p.jsonl >m.jsonl
    tokenize -q -t "$T" --split 0.5:1 --emit ids -o pa -o pb p.jsonl
    tokenize -q -t "$T" --split 0.5:1 --emit ids -o ma -o mb m.jsonl
    cmp pa ma
    cmp pb mb
    # Each side is shuffled, packed and cut for itself.
    tokenize -q --input ids --split 0.3:1 --chunk 50 --emit ids -o c1 -o c2 r.ids
    tokenize -q --input ids --split 0.3:1 --emit ids -o w1 -o w2 r.ids
    tokenize -q --input ids --chunk 50 --emit ids w2 | cmp - c2
    tokenize -q --input ids --split 0.3:1 --chunk 50 --seq-len 60 --pack --shuffle 5 -o p1.tok -o p2.tok r.ids
    tokenize -q --input ids --chunk 50 --seq-len 60 --pack --shuffle 5 --emit jsonl w2 >want
    tok read p2.tok | tail -n +3 | cmp - want
}

@test "--split: two files or none" {
    printf 'a\tb\nc\td\n' >t.tsv
    refuse '--split: want two files' tokenize -t "$T" --split 0.5:1 -o a.tok t.tsv
    refuse '--split: want two files' tokenize -t "$T" --split 0.5:1 t.tsv
    refuse '--split: want two files' tokenize -t "$T" --split 0.5:1 -o a.tok -o - t.tsv
    refuse 'at most two' tokenize -t "$T" --split 0.5:1 -o a.tok -o b.tok -o c.tok t.tsv
    refuse 'a second output' tokenize -t "$T" -o a.tok -o b.tok t.tsv
    refuse './a.tok: ' tokenize -t "$T" --split 0.5:1 -o a.tok -o ./a.tok t.tsv
    refuse 'the other output' tokenize -t "$T" --split 0.5:1 -o a.tok -o a.tok t.tsv
    refuse 't.tsv: is an input' tokenize -t "$T" --split 0.5:1 --emit ids -f -o a -o t.tsv t.tsv
    refuse '--count' tokenize -t "$T" --split 0.5:1 --count t.tsv
    refuse '--decode' tokenize -t "$T" --split 0.5:1 --decode -o a -o b t.tsv
    for how in 0:1 1:1 -0.5:1 0.5 0.5: 0.5:x 0.5:-1 0.5:4294967296 nan:1 :1 '' 0.5:1:1; do
        refuse '--split: * want FRACTION:SEED' tokenize -t "$T" --split "$how" -o a.tok -o b.tok t.tsv
    done
    # An empty side, an error, a file that is there: neither file is made.
    refuse '--split 1e-09:1: expected a sample on each side, found none of 2 for b.tok' \
        tokenize -t "$T" --split 1e-9:1 -o a.tok -o b.tok t.tsv
    refuse 'of 2 for a:' tokenize -t "$T" --split 0.999999999:1 --emit ids -o a -o b t.tsv
    many 100 >m.tsv
    printf 'c\t\xff\n' >>m.tsv
    refuse 'm.tsv: line 101: ' tokenize -t "$T" --split 0.5:1 -o a.tok -o b.tok m.tsv
    sed -i '$d' m.tsv
    tokenize -q -t "$T" -o b.tok t.tsv
    ln b.tok c.tok
    refuse 'the other output' tokenize -t "$T" --split 0.5:1 -f -o c.tok -o b.tok m.tsv
    refuse 'b.tok: exists' tokenize -t "$T" --split 0.5:1 -o a.tok -o b.tok m.tsv
    refuse 'No space' tokenize -t "$T" --split 0.5:1 -f -o a.tok -o /dev/full m.tsv
    tokenize -q -t "$T" --split 0.5:1 -f -o a.tok -o b.tok m.tsv
    datcat -q --verify a.tok b.tok
}

@test "--seq-len keeps the last N+1 ids" {
    local n
    many 50 >m.tsv
    for n in 2 3 10 40 100000; do
        tokenize -q -t "$T" --seq-len $n --emit jsonl m.tsv >got
        tok expect --seq_len=$n m.tsv | cmp - got
        tokenize -q -t "$T" --seq-len $n -o m$n.tok m.tsv
        tok read m$n.tok | tail -n +3 | sed 's/,"starts":\[0\]//' | cmp - got
    done
    [[ $(tok read m10.tok) == *'"truncated":50}'* ]]
    [[ $(tok read m100000.tok) == *'"truncated":0}'* ]]
    refuse '--seq-len: 1: is too small: want 2..' tokenize --seq-len 1
}

@test "--shuffle is a function of seed and index alone" {
    many 500 >m.tsv
    tokenize -q -t "$T" --emit jsonl m.tsv >plain
    tokenize -q -t "$T" --shuffle 7 --emit jsonl m.tsv >a
    tokenize -q -t "$T" --shuffle 7 --emit jsonl -j 1 - <m.tsv >b
    tokenize -q -t "$T" --shuffle 8 --emit jsonl m.tsv >c
    cmp a b
    run ! cmp -s a c
    run ! cmp -s a plain
    sort a | cmp - <(sort plain)
    # The order itself: Philox4x32-10 of (seed, epoch 0) and (index, 0, use 1).
    python3 - >want <<'END'
M = 0xffffffff
def philox(c, k):
    for _ in range(10):
        p0, p1 = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & M, p0 >> 32 ^ c[3] ^ k[1], p0 & M]
        k = [k[0] + 0x9e3779b9 & M, k[1] + 0xbb67ae85 & M]
    return c[0] | c[1] << 32
lines = open("plain").readlines()
order = sorted(range(len(lines)), key=lambda i: (philox([i, 0, 0, 1], [7, 0]), i))
print("".join(lines[i] for i in order), end="")
END
    cmp a want
    tokenize -q -t "$T" --shuffle 7 -o s.tok m.tsv
    tok read s.tok | tail -n +3 | sed 's/,"starts":\[0\]//' | cmp - a
}

@test "--pack: every document once and whole, bins nearly full" {
    local n
    many 700 >m.tsv
    for n in 63 300 5000; do
        tokenize -q -t "$T" --seq-len $n -o plain$n.tok m.tsv
        run -0 --separate-stderr tokenize -t "$T" --seq-len $n --pack -o p$n.tok m.tsv
        tok packed p$n.tok plain$n.tok >report
        read -r bins padding <report
        [[ $stderr == *"700 documents in $bins samples"*' % padding' ]]
        [[ $stderr == *", $(printf %.2f "$padding") % padding" ]]
        tokenize -q -t "$T" --seq-len $n --pack -j 3 m.tsv | cmp - p$n.tok
        # Bins are shuffled whole.
        tokenize -q -t "$T" --seq-len $n --pack --shuffle 1 -o s.tok -f m.tsv
        tok packed s.tok plain$n.tok
        [ "$(tok read s.tok | tail -n +3 | sort)" = "$(tok read p$n.tok | tail -n +3 | sort)" ]
    done
    [ "${padding%.*}" -lt 3 ]
    tokenize -q -t "$T" --seq-len 300 --pack --emit jsonl m.tsv >j
    tok read p300.tok | tail -n +3 | cmp - j
    refuse '--seq-len' tokenize --pack
}

@test "-j N changes no byte" {
    local j how
    many 4000 >m.tsv
    for how in '' '--emit ids' '--emit jsonl --shuffle 3' '--count'; do
        # shellcheck disable=SC2086
        tokenize -q -t "$T" -j 1 $how m.tsv >one
        for j in 2 3 8; do
            # shellcheck disable=SC2086
            tokenize -q -t "$T" -j $j $how m.tsv | cmp - one
        done
    done
    # Nor what comes before an error, nor the error.
    { cat m.tsv && printf 'x\t\xff\n' && cat m.tsv && printf 'x\t\xfe\n'; } >bad.tsv
    run -2 bash -c 'tokenize -t "$T" -j 1 --emit ids bad.tsv >one 2>err1'
    run -2 bash -c 'tokenize -t "$T" -j 4 --emit ids bad.tsv >four 2>err4'
    cmp one four
    cmp err1 err4
    [ "$(wc -l <one)" -eq 4000 ]
    grep -q 'bad.tsv: line 4001: byte ' err1
}

# ---- back to text --------------------------------------------------------------------

@test "--decode: a .tok and lines of ids come back as text" {
    printf 'caf\xc3\xa9 \xf0\x9f\x98\x80\nsecond\n' >l
    tokenize -q -t "$T" --input lines --no-end --emit ids l >l.ids
    tokenize -q -t "$T" --decode l.ids | cmp - l
    tokenize -q -t "$T" --decode - <l.ids | cmp - l
    tokenize -q -t "$T" --input lines --no-end -o l.tok l
    tokenize -q -t "$T" --decode l.tok | cmp - l
    tokenize -q -t "$T" --decode - <l.tok | cmp - l
    tokenize -q -t "$T" --decode -o out l.tok
    cmp out l
    [ "$(tokenize -q -t "$T" --decode --emit jsonl l.tok)" = \
        $'{"text":"café 😀"}\n{"text":"second"}' ]
    printf 'q\ta\n' | tokenize -q -t "$T" | tokenize -q -t "$T" --decode >chat
    printf '<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n\n' | cmp - chat
    # Half a character is bytes in text, U+FFFD in JSON.
    [ "$(printf '127\n' | tokenize -q -t "$T" --decode | od -An -v -tx1 | tr -d " \n")" = c30a ]
    [ "$(printf '127 127\n' | tokenize -q -t "$T" --decode --emit jsonl)" = \
        $'{"text":"\xef\xbf\xbd\xef\xbf\xbd"}' ]
}

@test "--decode: a terminal does not obey the text, a pipe gets it as it is" {
    local evil='\x1b]0;x\x07 \x7f \xc2\x9b31m \xe2\x80\xae \xe2\x81\xa6 \x9b \xff \r end\\\\ gr\xc3\xb6\xc3\x9fe\ttab\n'
    printf '%b' "$evil" >text
    python3 - "$T" >ids <<'PY'
import json, sys
vocab = json.load(open(sys.argv[1]))["model"]["vocab"]
shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
other = [b for b in range(256) if b not in shown]
name = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(other)}
print(*(vocab[name[b]] for b in open("text", "rb").read()))
PY
    tokenize -q -t "$T" --decode ids >pipe
    (cat text; echo) | cmp - pipe
    script -qec "tokenize -q -t '$T' --decode ids" /dev/null | sed 's/\r$//' >shown
    printf '%s\n' '\x1b]0;x\x07 \x7f \xc2\x9b31m \xe2\x80\xae \xe2\x81\xa6 \x9b \xff \x0d end\\ größe'$'\t''tab' '' |
        cmp - shown
    # A device is what it is, whatever its name.
    tokenize -q -t "$T" --decode --emit jsonl ids >pipe
    script -qec "tokenize -q -t '$T' --decode --emit jsonl ids" /dev/null | sed 's/\r$//' | cmp - pipe
}

@test "--decode: what is refused" {
    printf 'a\tb\n' | tokenize -q -t "$T" -o a.tok
    piped '1 259\n' 'line 1: ' --decode -t "$T"
    sed 's/"version": "1.0"/"version":  "1.0"/' "$T" >other.json
    refuse 'SHA-256' tokenize --decode -t other.json a.tok
    refuse '.tok already' tokenize -t "$T" --emit ids a.tok
    piped '' 'found the end' --decode -t "$T"
    printf '' | tokenize -q --decode --input ids -t "$T"
    refuse '--decode' tokenize --decode --emit tok a.tok
    refuse '--decode' tokenize --decode --input tsv a.tok
    refuse '--decode' tokenize --decode --pack --seq-len 9 a.tok
}

# ---- the tokenizer ---------------------------------------------------------------------

@test "tokenizer.json: -t, else the one beside the file, else words" {
    mkdir d
    printf 'a\tb\n' >d/a.tsv
    refuse 'd/tokenizer.json' tokenize --count d/a.tsv
    cp "$T" d/
    run -0 tokenize -q --emit ids d/a.tsv
    run -0 tokenize -q -t d --emit ids d/a.tsv
    run -0 bash -c 'cd d && tokenize -q --emit ids <a.tsv'
    piped 'a\tb\n' './tokenizer.json' --count
    refuse 'none.json' tokenize -q -t none.json d/a.tsv
}

@test "control tokens are found in text only with --parse-special" {
    printf 'x<|im_end|>\ty\n' >a.tsv
    tokenize -q -t "$T" --emit ids a.tsv >plain
    [ "$(grep -o '\b258\b' plain | wc -l)" -eq 2 ]
    tokenize -q -t "$T" --parse-special --emit ids a.tsv >special
    [ "$(grep -o '\b258\b' special | wc -l)" -eq 3 ]
}

@test "--compat torchsharp is its four options" {
    printf 'a.\tb\n<|im_end|>\tc\n' >a.tsv
    tokenize -q -t "$T" --compat torchsharp a.tsv >one
    tokenize -q -t "$T" --template torchsharp --joint --no-end --parse-special a.tsv | cmp - one
    # As it was called before, and is in files.
    tokenize -q -t "$T" --compat seed a.tsv | cmp - one
    tokenize -q -t "$T" --template seed --joint --no-end --parse-special a.tsv | cmp - one
    # What is said explicitly holds.
    tokenize -q -t "$T" --template qwen3 --compat torchsharp -o q.tok a.tsv
    [[ $(tok read q.tok) == *'"template":"qwen3"'* ]]
}

# ---- bad input ------------------------------------------------------------------------------

@test "bad UTF-8: line and byte, or U+FFFD for each maximal bad sequence" {
    printf 'a\tb\nc\td\xe2\x82\n' >b.tsv
    refuse 'b.tsv: line 2: byte 7: expected UTF-8, found byte 0xe2' \
        tokenize -t "$T" --count b.tsv
    python3 - >l <<'END'
import sys
bad = [b"\xff", b"\xc0\xaf", b"\xe2\x82", b"\xe2\x82A", b"\xf0\x9f\x98", b"\xed\xa0\x80",
       b"\xf4\x90\x80\x80", b"\x80\x80", b"\xf0\x80\x80\x41", b"a\xc3", b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"]
sys.stdout.buffer.write(b"\n".join(bad) + b"\n")
END
    run -0 --separate-stderr bash -c 'tokenize -t "$T" --input lines --no-end \
        --invalid replace --emit ids l | tokenize -q -t "$T" --decode'
    [ "$output" = "$(python3 -c 'print(open("l", "rb").read().decode("utf-8", "replace"), end="")')" ]
    [[ $stderr == *", $(grep -o $'\xef\xbf\xbd' <<<"$output" | wc -l) bad sequences replaced" ]]
}

@test "NUL bytes, empty files, no rows, directories" {
    piped 'a\tb\0c\n' 'byte 3: expected text, found a NUL' -t "$T"
    piped 'a\tb\0\xff\n' 'NUL' -t "$T" --invalid replace
    piped 'a\tb\xff\0\n' 'NUL' -t "$T" --invalid replace
    piped '' 'at least one sample' -t "$T"
    piped 'a b\nc d\n' '2 skipped' -t "$T" --emit ids
    piped '# only a comment\n' 'at least one sample' -t "$T" --count
    refuse 'nofile: No such file' tokenize -t "$T" nofile
    mkdir d
    refuse 'd: ' tokenize -t "$T" --count d
    refuse 'read once' tokenize -t "$T" - -
    # Without TSV an empty input is an empty output; a .tok of nothing is none.
    run -0 bash -c 'tokenize -q -t "$T" --input lines --emit ids </dev/null'
    [ -z "$output" ]
    refuse 'at least one sample' bash -c 'exec tokenize -t "$T" --input lines </dev/null'
}

@test "CRLF is LF, in every kind of line" {
    printf 'a\tb\r\nc\td\r\n' | tokenize -q -t "$T" --emit ids >crlf
    printf 'a\tb\nc\td\n' | tokenize -q -t "$T" --emit ids | cmp - crlf
    printf 'ab\r\n\rc\rd\r' >l
    [ "$(tokenize -q -t "$T" --input lines --no-end --emit ids l)" = $'64 65\n201 66 201 67 201' ]
    printf '{"text":"a"}\r\n' | tokenize -q -t "$T" --input jsonl --emit ids
    [ "$(printf '1 2\r\n3\r\n' | tokenize -q --input ids --emit ids)" = $'1 2\n3' ]
}

@test "lines of every length around the sizes of buffers" {
    python3 - >l <<'END'
for n in (0, 1, 2, 32767, 32768, 32769, 262143, 262144, 262145, 524288, 0, 3):
    print("x" * n)
END
    tokenize -q -t "$T" --input lines --no-end --emit ids l |
        tokenize -q -t "$T" --decode - | cmp - l
    # However the bytes arrive.
    run -0 bash -o pipefail -c 'dd bs=1000 if=l 2>/dev/null |
        tokenize -q -t "$T" --input lines --no-end --emit ids |
        tokenize -q -t "$T" --decode | cmp - l'
}

@test "a slow producer is followed line by line" {
    mkfifo in
    tokenize -q -t "$T" --input lines --no-end --emit ids in >out &
    exec 5<>in # does not wait for a reader
    echo ab >&5
    for _ in $(seq 1200); do
        [ ! -s out ] || break
        sleep 0.05
    done
    [ "$(cat out)" = '64 65' ]
    echo cd >&5
    exec 5>&-
    wait $!
    [ "$(wc -l <out)" -eq 2 ]
}

# bats test_tags=slow,nosan
@test "a line of 64 MiB; the memory that a long line takes" {
    # Each byte is a token here, so ids are four times the line; with a real tokenizer
    # 64 MiB of text stay below 256 MiB and the line.
    python3 -c 'print("ab cd ef " * 7456541)' >long
    [ "$(stat -c %s long)" -gt 67108864 ]
    run -0 tokenize -q -t "$T" --input lines --count long
    [ "${lines[1]}" = $'1\t67108870\t67108869\t0\t0' ]
    head -c 16777216 long >shorter
    run -0 --separate-stderr python3 - <<'END'
import os, resource, subprocess, sys
rc = subprocess.call(["tokenize", "-q", "-j", "2", "-t", os.environ["T"], "--input", "lines",
                      "-o", "/dev/null", "shorter"])
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(rc, kib)
sys.exit(rc or kib > (256 + 16) * 1024)
END
}

# bats test_tags=slow,nosan
# bats test_tags=nosan
@test "a line without end is refused, not read until the memory is full" {
    run -2 --separate-stderr bash -c 'ulimit -v 1500000
        timeout 60 tokenize --input lines -t "$T" -j 1 --count </dev/zero'
    [ -z "$output" ]
    [[ $stderr == "tokenize: <stdin>: line 1: longer than 268435456 bytes"* ]]
}

@test "a stream of any length takes little memory" {
    run -0 python3 - <<'END'
import os, resource, subprocess, sys
p = subprocess.Popen(["tokenize", "-q", "-j", "4", "-t", os.environ["T"], "-o", "/dev/null"],
                     stdin=subprocess.PIPE)
row = b"".join(b"prompt %d\t%s\n" % (i, b"word " * (i % 50)) for i in range(20000))
for _ in range(24):
    p.stdin.write(row)
p.stdin.close()
rc = p.wait()
kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(rc, kib)
sys.exit(rc or kib > 256 * 1024)
END
}

# ---- what is left out, or read otherwise than it was meant ------------------------------

# said WORDS ARGUMENT...: tokenize succeeds, and says that once.
said() {
    local words=$1
    shift
    run -0 --separate-stderr tokenize -t "$T" -f -o said.tok "$@"
    [ "$(grep -cF -e "$words" <<<"$stderr")" -eq 1 ] || { echo "$stderr, want $words" && false; }
}

@test "what a row has and nobody learns is remarked on, once a file" {
    printf 'prompt\tcompletion\na\tb\n' >names.tsv
    said 'names.tsv: line 1: looks like the names of columns, and is learnt as a row: delete it' names.tsv
    refuse 'names.tsv: line 1: the names of columns: expected a prompt, TAB, its answer' \
        tokenize -t "$T" --strict -f -o x.tok names.tsv
    printf 'a\tb\nc\td\te\nf\tg\th\n' >three.tsv
    said 'three.tsv: line 2: has several TABs: all behind the first one is the answer' three.tsv
    printf '{"instruction":"a","output":"b","system":"c"}\n{"prompt":"a","completion":"","history":[]}\n' >k.jsonl
    said 'k.jsonl: line 1: the key "system" is not read; "messages" hold such texts' k.jsonl
    [[ $stderr == *'tokenize: skipped: k.jsonl: line 2: the answer is empty; -v shows all, --strict refuses them' ]]
    refuse 'k.jsonl: line 2: the answer is empty' tokenize -q -t "$T" --strict -f -o x.tok k.jsonl
    # A quiet run says nothing of it.
    run -0 --separate-stderr tokenize -q -t "$T" -f -o x.tok names.tsv
    [ -z "$stderr" ]
    # Blanks in place of a TAB are no lines of text.
    printf 'who are you?    a model\nand now?   another\n' >blanks.tsv
    refuse "2 rows, 2 skipped; line 1 has several blanks in place of a TAB: sed -E 's/ {2,}/\\t/' FILE >NEW makes it one" \
        tokenize -t "$T" -f -o x.tok blanks.tsv
    printf 'b\t\n' >side.tsv
    refuse '1 skipped; the first is side.tsv: line 1: expected prompt, TAB, target: one of them is empty' \
        tokenize -t "$T" -f -o x.tok side.tsv
}
