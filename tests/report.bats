#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154,SC2016  # output, stderr: set by run; names that look like shell
# What makes results visible: figures (pipelines/plot), the page of an experiment
# (pipelines/report) and the course of the loss in trainstep's line of progress.

# bats file_tags=native,nosan
load common

setup_file()
{
    IN=$BATS_FILE_TMPDIR/in
    export IN
    mkdir "$IN"
    cd "$IN" || return
    cp "$HERE/vectors/qwen3-tiny-config.json" config.json
    seq 1 96 | paste -d ' ' - - - - - - - - >ids
    tokenize -q --input ids -o data.tok ids
    datpack -q --init 3 --config config.json --to ckpt -o start.ckpt
    cp start.ckpt run.ckpt
    trainstep -q -d data.tok --eval data.tok --eval-every 4 -n 12 --batch 4 --lr 1e-3 \
        --log train.jsonl --memory-report memory.json run.ckpt >train.tsv
    datpack -q --dtype f16 -o f16.dat run.ckpt
    nvquant -q --report cost.tsv -o nvfp4.dat f16.dat
    datcat --hist=12 -s '*0.mlp*' f16.dat >hist.tsv
}

need_gnuplot()
{
    command -v gnuplot >/dev/null || skip "gnuplot is not installed (tools/setup.sh)"
}

plot() { "$root/pipelines/plot/plot.sh" "$@"; }
report() { "$root/pipelines/report/report.sh" "$@"; }

# texts FILE.svg: what is written in a picture, a line each.
texts()
{
    python3 - "$1" <<'PY'
import sys, xml.etree.ElementTree as E
for t in E.parse(sys.argv[1]).iter("{http://www.w3.org/2000/svg}text"):
    print("".join(t.itertext()))
PY
}

# heights FILE.svg N: the points of its N-th curve, as "x y" in pixels upwards.
heights()
{
    python3 - "$1" "$2" <<'PY'
import re, sys, xml.etree.ElementTree as E
svg = "{http://www.w3.org/2000/svg}"
for g in E.parse(sys.argv[1]).iter(svg + "g"):
    if g.get("id") != "gnuplot_plot_" + sys.argv[2]:
        continue
    x = y = 0.0
    # The line in the legend is a path of its own, and has two points.
    d = "".join(p.get("d") or "" for p in g.iter(svg + "path"))
    for a, b in re.findall(r"(-?[\d.]+),(-?[\d.]+)", max(d.split("M"), key=len)):
        print(a, -float(b))
PY
}

# log LOSS...: a log of steps with these losses.
log()
{
    local n=0 v
    for v; do
        n=$((n + 1))
        printf '{"step":%d,"loss":%s,"tokens":10,"lr":0.001,"grad_norm":%s,"tok_s":100,"mfu":null,"mem_gb":0.5,"ms":9.5,"skipped":0,"epoch":0}\n' \
            "$n" "$v" "$v"
    done
}

# no_gnuplot DIR: a PATH of all that the scripts call, and no gnuplot.
no_gnuplot()
{
    local tool
    mkdir "$1"
    for tool in bash sh env cat rm mktemp dirname; do
        ln -s "$(command -v $tool)" "$1/$tool"
    done
    ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$1/python3"
}

@test "plot: each file is drawn as what it is, whatever its name" {
    need_gnuplot
    cp "$IN/train.jsonl" a.tsv && cp "$IN/memory.json" b.jsonl
    cp "$IN/cost.tsv" c && cp "$IN/hist.tsv" d.json
    run -0 --separate-stderr plot -o p a.tsv b.jsonl c d.json
    [ -z "$stderr" ]
    local list=$output
    for f in loss lr grad_norm speed memory error values; do
        grep -qx "p/$f.svg" <<<"$list"
        grep -qx "p/$f.png" <<<"$list"
        [ "$(head -c 4 p/$f.png | tail -c 3)" = PNG ]
        [ "$(wc -c <p/$f.png)" -gt 3000 ]
        run -1 grep -i '<script\|http://[^w]\|<image\|onload' p/$f.svg
    done
    [ "$(find p | wc -l)" -eq 15 ]
    [[ $'\n'$(texts p/loss.svg)$'\n' == *$'\n'training$'\n'evaluation$'\n'* ]]
    [[ $(texts p/memory.svg) == *model_loaded*optimizer_step_done*process*device* ]]
    [[ $(texts p/error.svg) == *'15 tensors'* ]]
    [[ $(texts p/values.svg) == *model.layers.0.mlp.down_proj.weight* ]]
}

@test "plot: the lines are where the numbers are" {
    need_gnuplot
    log 4 3 1 2 >a.jsonl
    plot -o p --only svg a.jsonl >list
    [ "$(wc -l <list)" -eq 4 ]
    heights p/loss.svg 1 >h
    cat h
    # Steps at equal distances, heights in proportion: 4 to 3 is half of 3 to 1.
    awk '{ x[NR] = $1; y[NR] = $2 }
        function near(a, b) { return a - b < 0.1 && b - a < 0.1 }
        END { exit !(NR == 4 && near(x[2] - x[1], x[4] - x[3]) && x[2] > x[1] + 20 &&
            near(2 * (y[1] - y[2]), y[2] - y[3]) && near(y[4] - y[3], y[1] - y[2]) && y[1] > y[2] + 10) }' h
    # What trainstep prints is drawn as its log is.
    awk 'BEGIN { print "step\tloss\ttokens\tlr\tgrad_norm\ttok_s\tmfu\tmem_gb\tms\tskipped"
        split("4 3 1 2", v, " ")
        for (i = 1; i <= 4; i++) print i "\t" v[i] "\t10\t0.001\t" v[i] "\t100\t-\t0.5\t9.5\t0" }' >b.tsv
    plot -o q --only svg b.tsv >list
    cmp p/loss.svg q/loss.svg
    cmp p/lr.svg q/lr.svg
    # The mean of two steps: 4, 3.5, 2, 1.5.
    plot -o r --only svg --smooth 2 - <a.jsonl >list
    heights r/loss.svg 2 >h
    awk '{ y[NR] = $2 } END { a = y[1] - y[2]; exit !(NR == 4 && a > 5 && y[2] - y[3] > 2.98 * a &&
        y[2] - y[3] < 3.02 * a && y[3] - y[4] > 0.98 * a && y[3] - y[4] < 1.02 * a) }' h
    [[ $(texts r/loss.svg) == *'training, mean of 2 steps'* ]]
}

@test "plot: several logs in one picture; long ones keep their spikes" {
    need_gnuplot
    log 4 3 2 >a.jsonl
    awk 'BEGIN { for (i = 1; i <= 4000; i++)
        printf "{\"step\":%d,\"loss\":%s,\"lr\":1,\"grad_norm\":1,\"tok_s\":1,\"skipped\":0}\n",
            i, i == 2345 ? 4 : 2 + i % 2 / 10 }' >long.jsonl
    run -0 --separate-stderr plot -o p --only svg a.jsonl long.jsonl
    [ -z "$stderr" ]
    [[ $(texts p/loss.svg) == *a.jsonl*long.jsonl* ]]
    [ "$(wc -c <p/loss.svg)" -lt 60000 ]
    heights p/loss.svg 2 | sort -k 2 -n | awk '{ y[NR] = $2; x[NR] = $1 }
        END { exit !(NR > 300 && y[NR] - y[NR - 1] > 50) }'
}

@test "plot: what is not finite, empty, cut or of one step only" {
    need_gnuplot
    # Gaps, and marks below them.
    log 4 '"NaN"' 3 '"Infinity"' '"-Infinity"' 2 >gaps.jsonl
    run -0 --separate-stderr plot -o gaps --only svg gaps.jsonl
    [ -z "$stderr" ]
    [[ $(texts gaps/loss.svg) == *'steps that were skipped or not finite'* ]]
    # None at all: words where the lines would be; the rate is drawn.
    log '"NaN"' '"NaN"' >nan.jsonl
    run -0 --separate-stderr plot -o nan --only svg nan.jsonl
    [[ $(texts nan/loss.svg) == *'none of 2 values is finite'* ]]
    [[ $(texts nan/lr.svg) != *finite* ]]
    # One step.
    log 3 >one.jsonl
    run -0 --separate-stderr plot -o one --only svg one.jsonl
    [ -z "$stderr" ]
    [[ $(texts one/loss.svg) != *finite* ]]
    # A cut last line counts as none.
    { log 4 3 && printf '{"step":3,"loss":1'; } >cut.jsonl
    plot -o cut --only svg cut.jsonl >list
    log 4 3 >whole.jsonl
    plot -o whole --only svg whole.jsonl >list
    cmp cut/loss.svg whole/loss.svg
    # A run that began again at step 2.
    { log 4 9 9 && log 4 3 | tail -n 1; } >again.jsonl
    plot -o again --only svg again.jsonl >list
    cmp again/loss.svg whole/loss.svg
    # Nothing.
    : >empty.jsonl
    run -1 --separate-stderr plot -o empty empty.jsonl
    [[ $stderr == *'empty.jsonl: is empty: nothing to draw'* ]]
    [ ! -e empty ]
    head -n 1 "$IN/train.tsv" >head.tsv
    run -1 --separate-stderr plot -o empty head.tsv
    [[ $stderr == *'head.tsv: has no step'* ]]
    run -1 --separate-stderr plot -o empty <(head -n 1 "$IN/cost.tsv") <(head -n 1 "$IN/hist.tsv") \
        <(echo '{"Pid":1,"Samples":[]}')
    [ ! -e empty ]
    # A tensor of one value has no histogram, one without an error no place in one.
    run -0 --separate-stderr plot -o odd --only svg - < <(
        printf 'name\tfrom\tto\tcount\na\t1\t1\t5\nb\t0\t1\t5\nb\t1\t2\t0\n')
    [ "$(texts odd/values.svg | grep -cx '[ab]')" -eq 1 ]
    run -0 plot -o odd --only svg - < <(
        printf 'name\tshape\tsqnr_db\tmse\na\t1x16\tinf\t0\nb\t1x16\t20\t0\nc\t1x16\tnan\t0\n')
    [[ $(texts odd/error.svg) == *'1 tensors'* ]]
}

@test "plot: memory while a command ran, as memguard reports it" {
    need_gnuplot
    {
        printf '{"Pid":7,"CreatedUtc":"2026-01-01T00:00:00.000Z","Tool":"memguard","Command":["x","{}"],"Samples":[\n'
        printf '{"TimestampUtc":"x","ElapsedMs":%d,"HostRssMiB":%d,"Processes":2},\n' 0 10 500 30 1000 20
        printf '{"TimestampUtc":"x","ElapsedMs":1500,"HostRssMiB":20,"Processes":2}\n]}\n'
    } >guard.json
    run -0 --separate-stderr plot -o p --only svg guard.json
    [ "$output" = p/usage.svg ]
    heights p/usage.svg 1 | awk '{ if (NR == 1 || $2 > high) high = $2; if (NR == 1) low = $2; last = $2 }
        END { d = (high - low) / 2 - (last - low); exit !(high > low + 20 && d < 0.1 && d > -0.1) }'
    [[ $(texts p/usage.svg) == *processes* && $(texts p/usage.svg) != *GPU* ]]
    memguard -q -l 4 --poll .05 --report real.json -- sleep .2
    run -0 --separate-stderr plot -o q --only svg real.json
    [ -z "$stderr" ]
    [ "$output" = q/usage.svg ]
}

@test "plot: names are only names" {
    need_gnuplot
    names=('`touch pwned`' '$(touch pwned)' "'; system('touch pwned') #" '"; system("touch pwned") #'
        'a@b @ARG1 {=40 x} a_b^c %s \n &amp; <script>' "a'b''c" '-o' '你是誰' $'\e[31m\nx\xff\xe2\x80\xae')
    shown=("${names[@]}")
    shown[8]='\x1b[31m\nx\xff\xe2\x80\xae'
    files=()
    mkdir in && cd in
    for n in "${names[@]}"; do
        log 3 2 1 >"./$n"
        files+=("$n")
    done
    run -0 --separate-stderr plot -o out --only svg -- "${files[@]}"
    [ -z "$stderr" ]
    texts out/loss.svg >text
    for n in "${shown[@]}"; do
        grep -Fqx -- "$n" text
    done
    # So are those in files.
    printf 'name\tfrom\tto\tcount\n"`touch pwned`"\t0\t1\t5\n"`touch pwned`"\t1\t2\t4\n' >hist
    printf '{"Pid":1,"Samples":[{"Phase":"`touch pwned`\\"; system(1)","PidMemoryMiB":5}]}\n' >mem
    run -0 --separate-stderr plot -o out2 --only svg hist mem
    texts out2/values.svg >text
    grep -Fqx '"`touch pwned`"' text
    [ -z "$(find .. -name 'pwned*')" ]
    # A name of any length is shortened.
    long=$(printf 'x%.0s' {1..200})
    log 3 2 >"$long"
    cp "$long" b
    run -0 plot -o out3 --only svg "$long" b
    [ "$(texts out3/loss.svg | wc -L)" -lt 60 ]
}

@test "plot: no file is written over that was not asked for" {
    need_gnuplot
    mkdir d
    log 3 2 >d/loss.svg
    cp d/loss.svg kept
    run -2 --separate-stderr plot -f -o d d/loss.svg
    [[ $stderr == *'d/loss.svg: is an input, too'* ]]
    ln d/loss.svg other
    run -2 --separate-stderr plot -f -o d other
    [[ $stderr == *'is an input, too'* ]]
    cmp d/loss.svg kept
    [ "$(ls -A d)" = loss.svg ]
    run -2 --separate-stderr plot -o d kept
    [[ $stderr == *'d/loss.svg: exists; -f replaces it'* ]]
    [ "$(ls -A d)" = loss.svg ]
    # A link is replaced, not what it points to.
    mkdir e && ln -s ../kept e/lr.svg
    run -0 plot -f -o e --only svg "$IN/train.jsonl"
    cmp d/loss.svg kept
    : >file
    run -2 --separate-stderr plot -o file kept
    [[ $stderr == 'plot: file: cannot be made' ]]
}

@test "plot: misuse, files of another kind, no gnuplot" {
    for args in '' '-o' '--smooth 0 x' '--smooth 1x x' '--only gif x' '--bad x' 'no-such-file' "$IN/run.ckpt" "$IN/ids"; do
        # shellcheck disable=SC2086  # several words
        run -2 --separate-stderr plot $args
        [[ $stderr == plot:* && $stderr != *$'\n'* ]]
        [ -z "$output" ]
    done
    run -0 --separate-stderr plot --help
    [[ $output == *--smooth* ]]
    no_gnuplot path
    log 3 2 >a.jsonl
    PATH=$PWD/path run -2 --separate-stderr plot -o p a.jsonl
    [[ $stderr == "plot: gnuplot is not installed; Debian's package is gnuplot-nox" ]]
    [ ! -e p ]
}

# experiment DIR: what an experiment leaves.
experiment()
{
    mkdir "$1"
    cp "$IN"/{train.jsonl,memory.json,cost.tsv,hist.tsv,run.ckpt,nvfp4.dat,nvfp4.dat.json,data.tok} "$1"
    printf 'answers\tbefore\tafter\nidentity\t0 of 16\t16 of 16\n' >"$1/evaluate.tsv"
    printf 'prompt\tbefore\tafter\n你是誰\t我是一個小模型。\t我是 F# 之神。\nHow are you?\tI am fine.\tI am fine.\n' >"$1/samples.tsv"
    printf 'file\txxh3\n' >"$1/hashes.tsv"
    printf 'nvfp4.dat\t%s\n' "$(datcat --hash "$1/nvfp4.dat" | tail -n 1 | cut -d ' ' -f 1)" >>"$1/hashes.tsv"
    printf 'name\tvalue\nDEVICE\tcpu\n' >"$1/settings.tsv"
    trainstep --dry-run -d "$1/data.tok" -n 100 "$1/run.ckpt" >"$1/plan.txt"
    grep -q '^total' "$1/plan.txt"
    printf '$ trainstep -d data.tok run.ckpt\n' >"$1/commands.txt"
}

@test "report: all of an experiment on one page" {
    need_gnuplot
    experiment out
    run -0 --separate-stderr report --title 'Who & what' -o page.html out
    [ -z "$stderr$output" ]
    python3 "$root/tests/page.py" page.html >text
    for words in 'Who & what' 'identity' '16 of 16' '我是 F# 之神。' 'training' 'MiB' '15 tensors' \
        'Memory by phase, the most of all steps' 'Distribution of values' 'DEVICE' 'checkpoint' \
        '$ trainstep -d data.tok run.ckpt'; do
        grep -Fqx -- "$words" text
    done
    # The answer that changed is marked, the one that did not is not.
    [ "$(grep -c 'class="new"' page.html)" -eq 1 ]
    grep -q '<td class="new">我是 F# 之神。</td>' page.html
    # Each tensor, the hash of the result, and the way back to the first weights and data.
    [ "$(grep -c '^model\.layers.*_proj\.weight$' text)" -ge 14 ]
    grep -Fqx "$(sed -n 2p out/hashes.tsv | cut -f 2)" text
    grep -Fqx '"init": 3,' text
    grep -Fqx "\"xxh3\": \"$(datcat --meta out/data.tok | sed 's/.*"xxh3":"\([0-9a-f]*\)"}}$/\1/')\"" text
    [ "$(grep -c '^<svg' page.html)" -eq 7 ]
    # Nothing of it is fetched or run.
    grep -q "content=\"default-src 'none'" page.html
    run -1 grep -i '<script\|<img\|<link\|@import\|javascript:' page.html
}

@test "report: the same files, the same bytes" {
    need_gnuplot
    experiment out
    report -o a.html out
    mkdir -p 'other/a dir'
    cp -r out 'other/a dir/-x'
    cd 'other/a dir'
    # In another locale, time zone and place, a page among the files, by another name.
    echo old >./-x/report.html
    LC_ALL=C TZ=Asia/Tokyo COLUMNS=40 report -f -o ./-x/report.html -- -x
    cmp ../../a.html ./-x/report.html
}

@test "report: hostile contents are text" {
    need_gnuplot
    mkdir out
    bad='<script>alert(1)</script>"'\''&amp;</td></table>'
    ctl=$'\x1b[31m\x01\x7f\xff\xc0\x80\xe2\x80\xaeX\xed\xa0\x80'
    long=$(printf 'long%.0s' {1..20000})
    printf 'prompt\tbefore\tafter\n%s\t%s\t%s\n' "$bad" "$ctl" "$long" >out/samples.tsv
    printf 'a\tb\nnul\0byte\tcr\r\nragged\n1\t2\t3\t4\n' >out/evaluate.tsv
    printf '%s\n' "$bad" "$ctl" "$long" >out/plan.txt
    cp out/plan.txt out/commands.txt
    printf '%s\n%s\n' "$bad" "$ctl" >"out/<b>\"'&x.dat"
    log 3 '"NaN"' >"out/train<i>\`touch pwned\`.jsonl"
    log 3 2 >out/train2.jsonl
    # More columns and rows than anybody looks at.
    awk 'BEGIN { for (r = 0; r < 500; r++) { for (c = 0; c < 80; c++) printf "%d\t", c; print "" } }' >out/hashes.tsv
    run -0 --separate-stderr report --title "$bad" -o page.html out
    [ -z "$stderr" ]
    python3 "$root/tests/page.py" page.html >text
    [ "$(grep -Fc "$bad" text)" -ge 4 ]
    grep -Fqx '\x1b[31m\x01\x7f\xff\xc0\x80\xe2\x80\xaeX\xed\xa0\x80' text
    grep -Fqx 'nul\x00byte' text
    grep -Fqx 'train<i>`touch pwned`.jsonl' text
    grep -Fqx 'The first 400 of 499 rows.' text
    grep -Fqx 'The first 64 of 81 columns.' text
    [ -z "$(find . -name 'pwned*')" ]
    [ "$(wc -c <page.html)" -lt 3000000 ]
    [ "$(awk '{ if (length($0) > n) n = length($0) } END { print n }' text)" -lt 20000 ]
}

@test "report: a log without one number gives a page that says so" {
    need_gnuplot
    mkdir out
    log '"NaN"' '"NaN"' '"Infinity"' >out/train.jsonl
    run -0 --separate-stderr report -o page.html out
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'none of 3 is finite' text
    grep -Fqx 'none of 3 values is finite' text
    : >out/train.jsonl
    run -0 --separate-stderr report -f -o page.html out
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'train.jsonl has no step.' text
}

@test "report: every log of trainstep is taken, by what it holds; what is left out is said" {
    need_gnuplot
    mkdir out
    log 4 3 2 >out/log.jsonl
    run -0 --separate-stderr report -o page.html out
    [ -z "$stderr$output" ]
    [ "$(grep -c '^<svg' page.html)" -eq 4 ]
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'last loss' text
    # Samples have the suffix of logs, whatever their name is.
    echo '{"prompt":"a","target":"b"}' >out/train.jsonl
    echo '{"step":1,"text":"a document"}' >out/documents.jsonl
    echo 'no JSON' >out/notes.jsonl
    # The evaluations of --keep-best are in the log, too.
    echo '{"step":2,"eval_loss":3,"eval_tokens":9,"data":"x","origin":"y"}' >out/run.ckpt.eval.jsonl
    log 5 4 >out/second.jsonl
    run -0 --separate-stderr report -f -o page.html out
    [ "$stderr" = $'report: left out: documents.jsonl, notes.jsonl, train.jsonl: no log of trainstep
report: left out: run.ckpt.eval.jsonl: evaluations, which the log has, too' ]
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'second.jsonl' text
    run -1 grep -F 'documents.jsonl' text
    run -0 --separate-stderr report -q -f -o page.html out
    [ -z "$stderr$output" ]
    # Where there is no log they are all that there is.
    rm out/log.jsonl out/second.jsonl
    run -0 --separate-stderr report -f -o page.html out
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'evaluation, last' text
    # A command of README, and its log.
    cp "$IN/start.ckpt" run.ckpt
    trainstep -q -d "$IN/data.tok" --until 3 --batch 2 --lr 1e-5 --log log.jsonl run.ckpt >steps
    run -0 --separate-stderr report -o here.html .
    [ -z "$stderr" ]
    [ "$(grep -c '^<svg' here.html)" -eq 4 ]
}

@test "report: files by name, with a directory or alone" {
    need_gnuplot
    mkdir out
    printf 'a\tb\n1\t2\n' >out/evaluate.tsv
    log 4 3 2 >out/log.jsonl
    log 5 4 >other
    cp "$IN/cost.tsv" report-of-nvquant
    cp "$IN/memory.json" mem
    run -0 --separate-stderr report -o page.html other report-of-nvquant mem
    [ -z "$stderr$output" ]
    python3 "$root/tests/page.py" page.html >text
    for words in 'Training' 'Quantization' 'Memory' 'report-of-nvquant, each tensor' '15 tensors'; do
        grep -Fqx "$words" text
    done
    run -1 grep -Fx 'Results' text
    # One that is in the directory is shown once.
    run -0 --separate-stderr report -f -o page.html out/log.jsonl out other
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'Results' text
    [ "$(grep -c '<h3>.*log.jsonl</h3>' page.html)" -eq 1 ]
    grep -q '<h3>.*/other</h3>' page.html
    run -2 --separate-stderr report -f -o other other
    [[ $stderr == *'is an input, too' ]]
    run -2 --separate-stderr report -o x.html out "$IN/ids"
    [[ $stderr == *'ids: is no log or memory report of trainstep'* ]]
    run -2 --separate-stderr report -o x.html - <other
    [ ! -e x.html ]
}

@test "make install: nibble-report and nibble-plot, and uninstall leaves nothing" {
    need_gnuplot
    make -s -C "$root" -o all install PREFIX=/usr DESTDIR="$PWD/dest" BIN="$bin"
    find dest -type f | grep -q 'bin/trainstep$'
    for p in nibble-plot nibble-report; do
        run -0 --separate-stderr "dest/usr/bin/$p" --help
        [[ $output == *"  $p [-f] "* && $output != *pipelines/* && -z $stderr ]]
        run -2 --separate-stderr "dest/usr/bin/$p"
        [[ $stderr == "$p: want "* ]]
    done
    mkdir out
    cp "$IN/train.jsonl" out/log.jsonl
    cp "$IN/run.ckpt" out
    PATH="$PWD/dest/usr/bin:$PATH" NIBBLE_BIN='' run -0 --separate-stderr nibble-report -o page.html out
    [ -z "$stderr" ]
    # The datcat beside it was asked.
    grep -q '&quot;init&quot;: 3' page.html
    PATH="$PWD/dest/usr/bin:$PATH" run -0 nibble-plot -o plots out/log.jsonl
    [ -s plots/loss.svg ]
    make -s -C "$root" -o all uninstall PREFIX=/usr DESTDIR="$PWD/dest" BIN="$bin"
    [ -z "$(find dest ! -type d)" ]
}

@test "report: without gnuplot it is a page without figures" {
    mkdir out
    cp "$IN"/{train.jsonl,cost.tsv} out
    no_gnuplot path
    PATH=$PWD/path run -0 --separate-stderr report -o page.html out
    python3 "$root/tests/page.py" page.html >text
    grep -Fqx 'There are no figures: gnuplot was not installed.' text
    grep -Fqx 'first loss' text
    run -1 grep '<svg' page.html
}

@test "report: what cannot be" {
    mkdir empty out
    run -1 --separate-stderr report -o page.html empty
    [[ $stderr == 'report: empty: has nothing to report'* ]]
    [ ! -e page.html ]
    printf 'a\tb\n1\t2\n' >out/evaluate.tsv
    run -2 --separate-stderr report -f -o out/evaluate.tsv out
    [[ $stderr == *'is an input, too' ]]
    [ "$(cat out/evaluate.tsv)" = $'a\tb\n1\t2' ]
    : >there.html
    run -2 --separate-stderr report -o there.html out
    [[ $stderr == 'report: there.html: exists; -f replaces it' ]]
    for args in '' 'out' '-o x.html' '-o x.html no-such-dir' '-o x.html out out' '--bad -o x.html out' '-o' '-o no/x.html out'; do
        # shellcheck disable=SC2086  # several words
        run -2 --separate-stderr report $args
        [[ $stderr == report:* && $stderr != *$'\n'* ]]
    done
    [ ! -e x.html ]
}

# stand_ins DIR: programs that know the answers of the demo and do nothing else, so that it takes
# a second; datcat is the real one.
stand_ins()
{
    mkdir "$1"
    cat >"$1/trainstep" <<'END'
#!/bin/bash
printf 'step\tloss\n1\t2\n'
while [ "$1" != --log ]; do shift; done
printf '{"step":%d,"loss":%d,"lr":1,"grad_norm":1,"tok_s":1,"skipped":0}\n' 1 5 2 4 >"$2"
END
    cat >"$1/generate" <<'END'
#!/bin/bash
model=${!#}
awk -F '\t' -v model="$model" 'FILENAME != "-" { old[$1] = $2; new[$1] = NF == 4 && model ~ /trained/ ? $3 : $2; next }
    { print new[$1] }' identity.tsv controls.tsv -
END
    printf '#!/bin/bash\nfor f; do :; done\necho x >"${f##*/}"\ntouch f16.dat nvfp4.dat trained.dat\n' >"$1/datpack"
    printf '#!/bin/bash\nprintf "name\tshape\tsqnr_db\\tmse\\na\\t1x16\\t20\\t0\\n" >cost.tsv\n' >"$1/nvquant"
    printf '#!/bin/bash\n' >"$1/tokenize"
    printf '#!/bin/bash\necho total\n' >"$1/datcat"
    chmod +x "$1"/*
}

@test "the demo makes a page and says where it is; without its tools it goes on" {
    need_gnuplot
    head -n 1 "$root/pipelines/demo/identity.tsv" | awk -F '\t' '{ exit NF != 4 }'
    stand_ins programs
    export NIBBLE_BIN=$PWD/programs
    run -0 --separate-stderr "$root/pipelines/demo.sh" out
    [[ $output == *$'\n''a page about it: out/report.html'$'\n'*'the identity is learnt: '* ]]
    python3 "$root/tests/page.py" out/report.html >text
    for words in 'The demo' 'Answers before and after' 'new identity, other phrasings' 'base.jsonl' 'run.jsonl' \
        '$ nvquant --report cost.tsv -o nvfp4.dat f16.dat'; do
        grep -Fqx -- "$words" text
    done
    grep -q '^<svg' out/report.html
    # As "make demo" does it.
    run -0 make -s -C "$root" -o all demo BIN="$NIBBLE_BIN" DEMO="$PWD/made"
    [[ $output == *"a page about it: $PWD/made/report.html"* && -s made/report.html ]]
    no_gnuplot path
    for tool in awk cp cut grep head ls mkdir paste sed tail tee touch tr wc; do
        ln -s "$(command -v $tool)" path
    done
    PATH=$PWD/path run -0 "$root/pipelines/demo.sh" plain
    [[ $output == *'a page about it: plain/report.html; it has no figures: gnuplot is not installed'$'\n'*'the identity is learnt'* ]]
    rm path/python3
    PATH=$PWD/path run -0 "$root/pipelines/demo.sh" none
    [[ $output == *'no page about it: report: python3 is not installed'$'\n'*'the identity is learnt'* ]]
    [ ! -e none/report.html ]
}

# shown COLUMNS: the last line of progress of a short run, as that terminal got it.
shown()
{
    cp "$IN/start.ckpt" run.ckpt
    python3 "$root/tests/terminal.py" "$1" trainstep -j 1 -d "$IN/data.tok" -n 40 --batch 4 \
        --lr 1e-2 run.ckpt >raw
    tr '\r' '\n' <raw | grep '^step ' | tail -n 1 | sed $'s/\e\\[K$//'
}

@test "trainstep: the course of the loss, as wide as the terminal allows" {
    LC_ALL=C.UTF-8 run -0 shown 120
    # 40 steps are more than 32 columns: each column is two of them.
    [[ $output =~ ^'step 40 of 40 [████████████████████] loss '[0-9.]*', '[0-9]*' tokens/s, 0 s left '[▁▂▃▄▅▆▇█]{20}$ ]]
    [[ $output == *█* && $output == *▁ ]]
    LC_ALL=C.UTF-8 run -0 shown 72
    [[ $output == *' [██████████] '*' left'* ]]
    [ "${#output}" -le 71 ]
    LC_ALL=C.UTF-8 run -0 shown 80
    [[ $output == *' [██████████] '*' left '[▁▂▃▄▅▆▇█]* ]]
    [ "${#output}" -le 79 ]
    LC_ALL=C.UTF-8 run -0 shown 40
    [ "$output" = "$(cut -c 1-39 <<<'step 40 of 40 loss '"${output#*loss }")" ]
    [ "${#output}" -le 39 ]
    # ASCII where the locale is not UTF-8.
    LC_ALL=C run -0 shown 120
    [[ $output =~ ' [####################] '.*' left '[_.:=+*#-]{20}$ ]]
    [[ $output == *'#'* && $output == *_ ]]
    LC_ALL=C run ! grep -q $'[\x80-\xff]' raw
}

@test "trainstep: what else comes to the terminal does not stand behind the line of progress" {
    cp "$IN/start.ckpt" run.ckpt
    # The table on the same terminal, and evaluations.
    script -qec "trainstep --device cpu -j 1 -d $IN/data.tok -n 20 --batch 4 --lr 1e-2 \
        --eval $IN/data.tok --eval-every 3 run.ckpt" /dev/null </dev/null >raw
    python3 - <<'PY'
import re
screen = []             # what stands there at the end, line by line
for line in open("raw", newline="", encoding="utf-8").read().split("\n"):
    cells, at = [], 0
    for part in re.findall(r"\x1b\[K|[^\x1b]", line):
        if part == "\r":
            at = 0
        elif part == "\x1b[K":
            del cells[at:]
        else:
            cells[at:at + 1] = part
            at += 1
    screen.append("".join(cells))
assert screen.pop() == "", screen
rows = [s.split()[0] for s in screen if re.match(r" +\d+ ", s)]
assert rows == [str(i) for i in range(1, 21)], screen
evals = [s for s in screen if re.fullmatch(
    r"trainstep: step \d+: evaluation loss [0-9.]+ over \d+ tokens", s)]
assert screen.pop().startswith("trainstep: run.ckpt: saved at step 20; "), screen
# After each third step and the last; all else is the head of the table.
assert len(evals) == 7 and len(screen) == 20 + 7 + 1, screen
PY
}

@test "trainstep: no line of progress where there is no terminal, or with -q" {
    cp "$IN/start.ckpt" run.ckpt
    trainstep -d "$IN/data.tok" -n 3 run.ckpt >steps 2>words
    [ "$(wc -l <steps)" -eq 4 ]
    [[ $(tail -n 1 words) == 'trainstep: run.ckpt: saved at step 3; '* ]]
    sed -i '$d' words
    run -1 grep $'step [0-9]\|\r\|\e' words
    run -0 python3 "$root/tests/terminal.py" 120 trainstep -q -d "$IN/data.tok" -n 3 -o more.ckpt run.ckpt
    [ -z "$output" ]
    datcat -q --verify more.ckpt
}
