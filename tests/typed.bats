#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, stderr: set by run
# generate --chat at a terminal: keys are typed into tmux, and its screen is what a user sees.
# Lines are edited by libedit if the program was built with it; what only libedit can do is
# tested then.

# bats file_tags=native
load common

setup_file()
{
    M=$BATS_FILE_TMPDIR/m
    export M
    mkdir "$M"
    cd "$M" || return
    # Answers to -n 1000000 --ignore-eos take minutes.
    qwen config x.json vocab_size=3098 intermediate_size=128 'torch_dtype="bfloat16"' \
        eos_token_id=3074 max_position_embeddings=60000
    cp "$HERE/vectors/tokenizer-small.json" tokenizer.json
    datpack -q --init 1 --config x.json -o x.safetensors
}

teardown()
{
    local s
    for s in "$BATS_TEST_TMPDIR"/w/tmux*; do
        tmux -S "$s" kill-server 2>/dev/null || true
    done
}

tm() { tmux -S "tmux$terminal" -f /dev/null "$@" 3>&-; }
terminal=0

# chat OPTION...: a conversation in a terminal of 120 columns; its end is shown.
chat()
{
    local command
    terminal=$((terminal + 1)) # a server of its own
    command=$(printf '%q ' "$bin/generate" --chat "$@" "$M/x.safetensors")
    tm new-session -d -x 120 -y 100 "HOME=$PWD TERM=screen $command; echo \"[status \$?]\"; sleep 300"
    sees '^>'
}

# keys KEY...: as tmux calls them; text TEXT: letter by letter; line TEXT: with Enter.
keys() { tm send-keys "$@"; }
text() { tm send-keys -l -- "$1"; }
line() { text "$1" && keys Enter; }

screen() { tm capture-pane -p; }

# running: the program that the shell of the terminal has started.
running()
{
    local shell
    shell=$(tm display-message -p '#{pane_pid}')
    read -r pid _ <"/proc/$shell/task/$shell/children"
    echo "$pid"
}

# sees PATTERN [COUNT]: so many lines of the screen (1 or more) match within 30 s.
sees()
{
    local n
    for _ in $(seq 300); do
        screen >seen
        n=$(grep -cE -e "$1" seen) || true
        if [ -n "${2-}" ] && [ "$n" -eq "$2" ]; then return; fi
        if [ -z "${2-}" ] && [ "$n" -gt 0 ]; then return; fi
        sleep 0.1
    done
    echo "want: $1" && cat seen && false
}

edits() { generate --help | has 'edited by libedit'; }

@test "a terminal: /help, turns, an unknown command, /exit; Ctrl-D ends, too" {
    chat -n 3
    sees '^generate: /help lists commands; Ctrl-D ends$'
    line /help
    for c in help reset 'system +\[TEXT\]' think no-think 'save +FILE' 'load +FILE' exit; do
        sees "^/$c  +[a-z]"
    done
    sees '^Ctrl-C  '
    sees '^>' 2
    line hello
    sees '^>' 3
    line /sav
    sees '^generate: /sav: unknown command: expected /save\? /help lists all$'
    line /save
    sees '^generate: /save: want /save FILE$'
    line '/reset x'
    sees '^generate: /reset: takes no argument$'
    line /exit
    sees '^\[status 0\]$'
    chat -n 3
    keys C-d
    sees '^\[status 0\]$'
    # The thinking switch: an empty block of thoughts has 4 tokens.
    chat -n 1 -v
    line hello
    sees '^generate: prompt 0: prefill 14 tokens'
    line '/think now'
    sees '^generate: /think: takes no argument$'
    line /no-think
    line /reset
    line hello
    sees '^generate: prompt 0: prefill 18 tokens'
    line /think
    line /reset
    line hello
    sees '^generate: prompt 0: prefill 14 tokens' 2
    line /exit
    sees '^\[status 0\]$'
    # A slash that is typed twice begins a turn.
    chat -n 3 --json
    line //help
    sees '"role":"user","content":"/help"'
}

@test "a terminal: Ctrl-C ends the answer, not the program, and drops a line that is typed" {
    chat -n 1000000 --ignore-eos -v
    line one
    sleep 1
    keys C-c
    sees '^generate: prompt 0: prefill .*; stopped by interrupt$'
    sees '\^C'
    line two
    sleep 1
    keys C-c
    sees '^generate: prompt 1: prefill .*; stopped by interrupt$'
    sees '^>$'
    text 'not a turn'
    keys C-c
    sees '^>$'
    line /exit
    sees '^\[status 0\]$'
    run ! grep 'prompt 2' seen
}

@test "a terminal: /system, /reset, /save and /load; tokenize takes what was saved" {
    chat -n 4 --json --temp 1
    line '/system Be brief'
    line one
    sees '"turn":0,"messages":\[\{"role":"system","content":"Be brief"'
    line 'two "words"'
    sees '"turn":1'
    line '/save talk.jsonl'
    line '/save talk.jsonl'
    sees '^generate: talk.jsonl: exists'
    line "/save $M/x.safetensors"
    sees '^generate: /save: .*/x.safetensors: is an input$'
    line /reset
    line one
    sees '"turn":0,"messages":\[\{"role":"system","content":"Be brief"' 2
    line /system
    line /reset
    line one
    sees '"turn":0,"messages":\[\{"role":"user","content":"one"'
    line '/load nosuchfile'
    sees '^generate: /load: nosuchfile: No such file'
    echo '{"messages":[{"role":"user","content":"x"}]}' >half.jsonl
    line '/load half.jsonl'
    sees '^generate: /load: expected the answer to each turn$'
    echo '{"messages":[{"role":"assistant","content":"x"}]}' >other.jsonl
    line '/load other.jsonl'
    sees '^generate: /load: message 0: expected role user, found "assistant"$'
    echo '{"text":"x"}' >none.jsonl
    line '/load none.jsonl'
    sees 'none.jsonl: byte 0: expected "messages"'
    # After what could not be loaded the conversation is what it was.
    line two
    sees '"turn":1' 2
    line '/load talk.jsonl'
    line three
    sees '"turn":2'
    line '/save more.jsonl'
    line /exit
    sees '^\[status 0\]$'
    python3 - <<'PY'
import json
talk, = [json.loads(x) for x in open("talk.jsonl")]
more, = [json.loads(x) for x in open("more.jsonl")]
talk, more = talk["messages"], more["messages"]
assert [m["role"] for m in talk] == ["system"] + ["user", "assistant"] * 2
assert [m["content"] for m in talk[:4:2]] == ["Be brief", talk[2]["content"]]
assert talk[3]["content"] == 'two "words"' and all("time" in m for m in talk[1:])
assert [(m["role"], m["content"]) for m in more[:5]] == [(m["role"], m["content"]) for m in talk]
assert more[5]["content"] == "three" and len(more) == 7
PY
    tokenize -q -t "$M/tokenizer.json" --input jsonl -o more.tok more.jsonl
    datcat more.tok | tail -n 1 | has $'^1\t'
}

@test "a terminal: a turn behind a loaded conversation is answered as behind the one that was saved" {
    printf 'one\ntwo\nthree\n' >turns
    # Greedy, so that the text of an answer is likely to have the tokens that made it.
    generate --chat -n 4 --json "$M/x.safetensors" <turns >want
    head -n 2 want >log.jsonl
    # A turn that was refused has no messages, and is passed over.
    echo '{"turn":2,"line":3,"error":"not UTF-8"}' >>log.jsonl
    chat -n 4 --json
    line '/load log.jsonl'
    line three
    sees '"turn":2'
    line '/save all.jsonl'
    line /exit
    sees '^\[status 0\]$'
    python3 - <<'PY'
import json
want = [m["content"] for x in open("want") for m in json.loads(x)["messages"]]
have = [m["content"] for m in json.load(open("all.jsonl"))["messages"]]
assert have == want, (have, want)
PY
}

@test "a terminal: history is kept in a file only if asked, and only then" {
    chat -n 1
    line one
    sees '^>' 2
    line /exit
    sees '^\[status 0\]$'
    [ "$(ls -A)" = "$(printf 'seen\ntmux1')" ] || { ls -A && false; }
    chat -n 1 --history h
    line 'the first'
    line '你好'
    sees '^>' 3
    line /exit
    sees '^\[status 0\]$'
    [ "$(cat h)" = "$(printf 'the first\n你好\n/exit')" ]
    [ "$(stat -c %a h)" = 600 ]
    run -2 generate --chat --history "$M/x.safetensors" "$M/x.safetensors"
    [[ $output == *'is an input, too'* ]]
    edits || skip "not built with libedit"
    chat -n 1 --history h
    keys Up Up
    sees '^> 你好$'
    keys Up Enter
    sees '^> the first$'
    sees '^>$'
    [ "$(tail -n 1 h)" = 'the first' ]
}

@test "a terminal: libedit erases wide characters, moves in a line and finds earlier ones" {
    edits || skip "not built with libedit"
    chat -n 1 --json
    text '你好x'
    sees '^> 你好x$'
    keys BSpace BSpace
    sees '^> 你$'
    keys BSpace
    sees '^>$'
    text '好吗'
    keys C-a
    text '你'
    keys C-e BSpace
    text '!'
    sees '^> 你好!$'
    keys Enter
    sees '"role":"user","content":"你好!"'
    keys C-l
    keys Up
    sees '^> 你好!$'
    keys C-u
    sees '^>$'
    line 'other'
    sees '"content":"other"'
    keys Up Up
    sees '^> 你好!$'
}

@test "a terminal: libedit's line is there after Ctrl-C, a stop and a new size" {
    edits || skip "not built with libedit"
    tm new-session -d -x 120 -y 100 "HOME=$PWD TERM=screen bash --norc -i"
    line "PS1='shell: '"
    line "$bin/generate --chat -n 1 --json $M/x.safetensors"
    sees '^>'
    text 'kept '
    sees 'kept$'
    pid=$(running)
    kill -STOP "$pid"
    sees '^shell: $|Stopped'
    line fg
    sleep 1
    tm resize-window -x 60 -y 20
    text 'words'
    sees '^> kept words$'
    keys BSpace
    sees '^> kept word$'
    keys Enter
    sees '"content":"kept word"'
    # A terminal that is left by a signal is as it was.
    pid=$(running)
    kill -TERM "$pid"
    sees '^shell: ' || sees Terminated
    line 'stty -a | grep -o " icanon"'
    sees '^ icanon$'
}

@test "a terminal that cannot be edited on has plain lines" {
    tm new-session -d -x 120 -y 100 \
        "HOME=$PWD TERM=dumb $bin/generate --chat -n 3 --json $M/x.safetensors; echo \"[status \$?]\"; sleep 300"
    sees '^>'
    line one
    sees '"role":"user","content":"one"'
    text 'no turn'
    keys C-c
    sees '^>$'
    line two
    sees '"role":"user","content":"two"'
    keys C-d
    sees '^\[status 0\]$'
    run ! grep 'no turntwo' seen
}
