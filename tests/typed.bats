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
    # The path of a socket has 107 bytes at most.
    cd "$BATS_TEST_TMPDIR/w" || return
    for s in tmux*; do
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

# sees PATTERN [COUNT]: COUNT lines of the screen (default: 1 or more) match within two minutes.
sees()
{
    local n
    for _ in $(seq 1200); do
        screen >seen
        n=$(grep -cE -e "$1" seen) || true
        if [ -n "${2-}" ] && [ "$n" -eq "$2" ]; then return; fi
        if [ -z "${2-}" ] && [ "$n" -gt 0 ]; then return; fi
        sleep 0.1
    done
    echo "want: $1" && cat seen && false
}

# turn TEXT: it is typed, and answered: something stands below it, or so much that the turn has
# left the screen.
turn()
{
    text "$1"
    sees "^> $1\$"
    keys Enter
    for _ in $(seq 1200); do
        screen >seen
        ! sed "1,/^> $1\$/d" seen | has '[^ ]' && has "^> $1\$" <seen || return 0
        sleep 0.1
    done
    echo "no answer to $1" && cat seen && false
}

edits() { generate --help | has 'edited by libedit'; }

@test "a terminal: /help, turns, an unknown command, /exit; Ctrl-D ends, too" {
    chat -n 3
    sees '^generate: /help lists commands; Ctrl-D ends$'
    line /help
    for c in help retry undo reset 'system +\[TEXT\]' 'temp +\[X\]' think no-think 'save +FILE' 'load +FILE' exit quit; do
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
    turn one
    keys C-c
    sees '^generate: prompt 0: prefill .*; stopped by interrupt$'
    sees '\^C'
    turn two
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
    sees '^generate: /save: talk.jsonl: exists'
    line "/save $M/x.safetensors"
    sees '^generate: /save: .*/x.safetensors: is an input: expected a new name$'
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
    sees '^generate: /load: half.jsonl: expected the answer to each turn$'
    echo '{"messages":[{"role":"assistant","content":"x"}]}' >other.jsonl
    line '/load other.jsonl'
    sees '^generate: /load: other.jsonl: message 0: expected role user, found "assistant"$'
    echo '{"text":"x"}' >none.jsonl
    line '/load none.jsonl'
    sees 'none.jsonl: line 1: byte 0: expected "messages"'
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
    sees '^> kept$' 2
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

# ---- with terminal.py: all that the terminal gets, without waiting for a screen ------------

@test "a terminal: a backslash continues the line, and what is pasted is one message" {
    cat >talk.py <<'PY'
import json, os, sys
from terminal import Terminal
term, m = sys.argv[1], os.environ["M"] + "/x.safetensors"
home = os.getcwd()

def start(*more):
    t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "--json", "-n", "1", *more, m, TERM=term, HOME=home)
    return t

def said(t):
    """What the next turn has asked."""
    return json.loads(t.sees(r'^(\{"turn":.*\})$').group(1))["messages"][-2]["content"]

t = start()
t.line("one\\")
t.line("  two\\")
t.line("three")
assert said(t) == "one\n  two\nthree"
# Two backslashes are text, and so is one before a blank.
t.line("C:\\\\")
assert said(t) == "C:\\\\"
t.line("C:\\ ")
assert said(t) == "C:\\ "
# A paste, with text before and behind it; blank lines and line ends at its end.
t.type("Explain: ")
t.paste("def f():\n\n\treturn '\u4f60\u597d'\n/quit\\\nx\\y\n")
t.type("please")
t.line("")
assert said(t) == "Explain: def f():\n\n\treturn '\u4f60\u597d'\n/quit\\\nx\\y\nplease", t.got
t.paste("a\nb\n\n")
t.line("")
assert said(t) == "a\nb"
t.paste("only one")
t.line("")
assert said(t) == "only one"
# An empty one is no message, and blanks are none.
t.paste("")
t.line("")
t.line("   ")
t.line("next")
assert said(t) == "next"
# A command of several lines is one.
t.line("/system Be brief\\")
t.line("and kind")
t.sees("^generate: /system: set")
t.line("/save talk.jsonl")
t.sees("^generate: /save: talk.jsonl: 7 turns written$")
assert json.load(open("talk.jsonl"))["messages"][0]["content"] == "Be brief\nand kind"
# Ctrl-C discards all lines of a message, and half a paste.
t.line("never\\")
t.type("said\x03")
t.asked = False
t.line("after")
assert said(t) == "after"
t.type(t.PASTE[0] + "half\r")
t.sees("half" if term == "dumb" else "")
t.type("\x03")
t.asked = False
t.line("whole")
assert said(t) == "whole"
# Ctrl-D sends what was typed, and ends.
t.line("last\\")
t.type("\x04")
assert said(t) == "last"
assert t.ends() == 0
# Pastes are marked from the beginning to the end, also of a program that a signal ends.
marks = b"\033[?2004h", b"\033[?2004l"
assert (t.raw.count(marks[0]) > 0) == (t.raw.count(marks[1]) > 0) == (term != "dumb")
assert t.raw.rfind(marks[0]) <= t.raw.rfind(marks[1])
t = start()
t.ready()
os.kill(t.pid, 15)
assert t.ends() == -15
assert t.raw.count(marks[1]) == (term != "dumb"), t.raw
PY
    python3 talk.py dumb
    rm talk.jsonl
    python3 talk.py screen
}

@test "a terminal: libedit shows a long paste, edits it, and recalls it as one message" {
    edits || skip "not built with libedit"
    python3 - <<'PY'
import json, os, sys
from terminal import Terminal
m = os.environ["M"] + "/x.safetensors"

def start():
    t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "--json", "-n", "1", "--history", "h", m,
                 TERM="screen", HOME=os.getcwd())
    return t

def said(t):
    return json.loads(t.sees(r'^(\{"turn":.*\})$').group(1))["messages"][-2]["content"]

t = start()
t.paste("first\nsecond\nthixx")
t.type("\x7f\x7f")
t.line("rd")
assert said(t) == "first\nsecond\nthird"
# More than the screen has, and longer than its lines.
text = "\n".join("line %d of many " % i + "\u597d" * (i % 90) for i in range(150))
t.paste(text)
t.line("")
assert said(t) == text
# Both ends of lines, an invalid byte, a NUL.
t.type(t.PASTE[0] + "a\rb\n\rc\udcff\0d" + t.PASTE[1])
t.line("")
assert said(t) == "a\nb\n\nc\ufffdd"
t.type("\x10\x10\x10")  # Ctrl-P: the third message before
t.line("!")
assert said(t) == "first\nsecond\nthird!"
t.line("x\\\\")
assert said(t) == "x\\\\"
t.paste("end\\\nof")
t.line("")
assert said(t) == "end\\\nof"
t.line("/quit")
assert t.ends() == 0
lines = open("h").read().splitlines()
assert lines[:3] == ["first\\", "second\\", "third"] and lines[-1] == "/quit", lines[-5:]
# In the next conversation, too.
t = start()
t.type("\x10\x10")
t.line("")
assert said(t) == "end\\ \nof"
t.type("\x10" * 7)
t.line("")
assert said(t) == text
t.type("\x04")
assert t.ends() == 0
PY
}

@test "a terminal: /undo and /retry leave the conversation as if it had been so; /temp draws" {
    printf 'one\nthree\nfour\n' >turns
    generate --chat -n 6 --json --system 'Be brief' "$M/x.safetensors" <turns >want
    python3 - <<'PY'
import json, os
from terminal import Terminal
m = os.environ["M"] + "/x.safetensors"

def start(*more):
    t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "-n", "6", "--json", *more, m,
                 TERM="screen", HOME=os.getcwd())
    return t

def turn(t):
    return json.loads(t.sees(r'^(\{"turn":.*\})$').group(1))

want = [json.loads(x) for x in open("want")]
def same(a, b):
    assert a["ids"] == b["ids"] and a["logprobs"] == b["logprobs"] and a["prompt_tokens"] == b["prompt_tokens"], (a, b)

t = start("--system", "Be brief")
for word in ("/undo", "/retry"):
    t.line(word)
    t.sees("^generate: %s: there is no turn$" % word)
t.line("one")
same(turn(t), want[0])
t.line("two")
turn(t)
t.line("/undo")
t.sees("^generate: /undo: the last turn was removed; 1 turn left$")
t.line("three")
same(turn(t), want[1])
t.line("/retry")
same(turn(t), want[1])
t.sees("^generate: /retry: the same answer: at temperature 0 it does not change; /temp 0.7 before it draws another$")
t.line("four")
same(turn(t), want[2])
t.line("/temp")
t.sees("^generate: /temp: the temperature is 0: the most likely token is taken$")
t.line("/temp hot")
t.sees("^generate: /temp: hot: expected a number of at least 0$")
t.line("/temp -1")
t.sees("^generate: /temp: -1: expected a number of at least 0$")
t.line("/temp 1.5 ")
t.sees("^generate: /temp: the temperature is 1.5$")
t.line("/retry")
a = turn(t)
t.line("/retry")
b = turn(t)
assert len({tuple(x["ids"]) for x in (a, b, want[2])}) == 3
assert a["prompt_tokens"] == b["prompt_tokens"] == want[2]["prompt_tokens"]
t.line("/temp 0")
t.sees("most likely token is taken$")
t.line("/retry")
same(turn(t), want[2])
t.line("/save talk.jsonl")
t.sees("^generate: /save: talk.jsonl: 3 turns written$")
t.line("/reset")
t.sees("^generate: /reset: 3 turns forgotten; the system message stays$")
t.line("/load talk.jsonl")
t.sees("^generate: /load: talk.jsonl: 3 turns, with a system message$")
t.line("/undo")
t.sees("2 turns left$")
t.line("four")
same(turn(t), want[2])
t.line("/bye")
t.sees(r"^generate: /bye: unknown command: expected /exit\? /help lists all$")
t.line("/sys x")
t.sees(r"^generate: /sys: unknown command: expected /system\? ")
t.line("/qiut")
t.sees(r"^generate: /qiut: unknown command: expected /quit\? ")
t.line("/s")
t.sees("^generate: /s: unknown command; /help lists them$")
t.line("exit")
t.sees("^generate: not sent: /quit or Ctrl-D ends the chat$")
t.line("/quit")
assert t.ends() == 0
said = json.load(open("talk.jsonl"))["messages"]
assert [x["content"] for x in said if x["role"] == "user"] == ["one", "three", "four"]
# Greedy text, not JSON: from the argmax to draws and back.
def text(*lines):
    t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "-n", "6", "-q", m, prompt=None, TERM="dumb")
    for x in lines:
        t.line(x)
    t.line("/quit")
    assert t.ends() == 0 and "generate:" not in t.got, t.got
    return t.got.split("\n")
# Each typed line is shown once; then come the answers.
plain = text("one")
drawn = text("/temp 1.5", "one", "/temp 0", "/retry")
assert plain[-2] == drawn[-2] and drawn[-2] != drawn[-3], (plain, drawn)
PY
}

@test "a terminal: what is pasted and corrected during an answer is the next turn" {
    edits || skip "not built with libedit"
    python3 - <<'PY'
import json, os
from terminal import Terminal
m = os.environ["M"] + "/x.safetensors"
t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "-n", "3000", "--ignore-eos", m, TERM="screen",
             HOME=os.getcwd())
t.line("hello")
t.sees("(?s)hello\n.{200}")  # of its answer
t.asked = True
t.type(t.PASTE[0] + "ahead\rtwo" + t.PASTE[1] + "\x7f\x7fXX\r")
t.asked = False
t.sees(r"^> ")
t.line("/save talk.jsonl")
t.sees("^generate: /save: talk.jsonl: 2 turns written$")
t.line("/quit")
assert t.ends() == 0
said = [x["content"] for x in json.load(open("talk.jsonl"))["messages"] if x["role"] == "user"]
assert said == ["hello", "ahead\ntXX"], said
PY
}

@test "a terminal: /undo where the oldest turns were dropped" {
    python3 - <<'PY'
import json, os
from terminal import Terminal
m = os.environ["M"] + "/x.safetensors"
t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "-n", "8", "--context", "60", m, TERM="dumb")
for i in range(5):
    t.line("number %d" % i)
assert "the oldest turns were dropped" in t.got
t.at = len(t.got)
n = 0
while True:
    t.line("/undo")
    words = t.sees("^generate: /undo: (.*)$").group(1)
    if not words.startswith("the last turn was removed"):
        break
    n += 1
assert 0 < n < 5 and words == "the turns before this one were dropped: the context was full", words
t.line("goes on")
t.line("/reset")
t.sees("^generate: /reset: %d turns forgotten; there is no system message$" % (6 - n))
t.line("/quit")
assert t.ends() == 0
PY
}

@test "a terminal: a FIFO, a device or a directory is no conversation and no history" {
    mkfifo fifo
    mkdir dir
    python3 - <<'PY'
import os
from terminal import Terminal
m = os.environ["M"] + "/x.safetensors"
t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "-f", "-n", "1", "--history", "h", m, TERM="dumb")
t.line("one")
for name in ("fifo", "dir", "/dev/zero", "/dev/tty"):
    t.line("/load " + name)
    t.sees("^generate: /load: %s: is no regular file: expected one that /save has written$" % name)
for name in ("fifo", "/dev/null", "/dev/stdout", "-", "/dev/tty"):
    t.line("/save " + name)
    t.sees("^generate: /save: %s: is no regular file: expected a new name$" % name)
t.line("/save dir")
t.sees("^generate: /save: dir: is a directory")
t.line("/save h")
t.sees("^generate: /save: h: is the history: expected a new name$")
for name in (os.environ["M"] + "/tokenizer.json", m):
    t.line("/save " + name)
    t.sees("^generate: /save: .*: is an input: expected a new name$")
t.line("/save nodir/x")
t.sees("^generate: /save: nodir/x: there is no directory nodir$")
t.line("/save talk.jsonl")
t.sees("^generate: /save: talk.jsonl: 1 turn written$")
t.line("/reset")
t.line("/save talk.jsonl")
t.sees("^generate: /save: talk.jsonl: not written: there is no turn$")
open("talk.jsonl", "a").write('{"x":1}\n')
t.line("/load talk.jsonl")
t.sees(r'^generate: /load: talk.jsonl: line 2: byte 0: expected "messages"')
t.line("/quit")
assert t.ends() == 0
for name in ("fifo", "dir", "/dev/null"):
    t = Terminal(os.environ["NIBBLE_BIN"] + "/generate", "--chat", "--history", name, m, TERM="dumb")
    t.sees("^generate: --history: %s: (is no regular file|Is a directory)" % name)
    assert t.ends() == 2
PY
    [ "$(head -n 1 h)" = one ]
}

@test "a terminal that marks pastes: what tmux pastes is one turn" {
    chat -n 1 --json
    printf 'def f():\n    return 1\n' >text
    tm load-buffer text
    tm paste-buffer -p
    sees '^(> )?def f' || sees 'def f'
    keys Enter
    sees '"role":"user","content":"def f\(\):\\n    return 1"'
    line /exit
    sees '^\[status 0\]$'
    run ! grep '"turn":1' seen
}
