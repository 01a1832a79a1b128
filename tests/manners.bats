#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck shell=bats
# shellcheck disable=SC2154  # output, lines, stderr_lines: set by run
# shellcheck disable=SC2016  # $1 is for the inner shell
# The same questions to every program of bin/: options, help, numbers, streams,
# exit codes, and nothing left behind by a misuse.  What a program needs to know
# about itself for that stands in example, numbers and words below; one that is
# not listed there is asked the common questions only.

load common

setup_file() {
    IN=$BATS_FILE_TMPDIR/in
    PROGRAMS=$(find "$bin" -maxdepth 1 -type f -executable -printf '%f\n' | sort | tr '\n' ' ')
    export IN PROGRAMS
    mkdir "$IN"
    containers make tiny-dat "$IN/m.dat"
    containers make config "$IN/config.json"
    datpack -q --init 1 --config "$IN/config.json" -o "$IN/model.safetensors"
}

# example PROGRAM: arguments that succeed, one a line.
example() {
    case $1 in
    datcat) printf '%s\n' "$IN/m.dat" ;;
    datpack) printf '%s\n' --to dat -o /dev/null "$IN/m.dat" ;;
    nvquant) printf '%s\n' --dequant -f -o x.dat "$IN/m.dat" ;;
    memguard) printf '%s\n' -a 0.001 -- echo word ;;
    generate) printf '%s\n' --ids -p '1 2' -n 1 --ignore-eos "$IN/model.safetensors" ;;
    *) return 1 ;;
    esac
}

# numbers PROGRAM: an option that takes a number, what is wrong with it besides
# what is wrong with all, and the rest of the command; one a line.
numbers() {
    case $1 in
    datcat)
        echo "--threads 0 1.5 1025 99999999999999999999 : $IN/m.dat"
        echo "--hist= 0 1.5 99999999999999999999 : $IN/m.dat"
        echo "--atol 1e999 0x1 inf : --diff $IN/m.dat $IN/m.dat"
        echo "--rtol 1e999 0x1 inf : --diff $IN/m.dat $IN/m.dat"
        ;;
    datpack)
        echo "--threads 0 1.5 1025 99999999999999999999 : -o x.dat $IN/m.dat"
        echo "--init 1.5 4294967296 99999999999999999999 : --config $IN/config.json -o x.dat"
        echo "--shard-size 0 1.5 1KB 1k 20000000000G : -q -o x/ $IN/m.dat"
        ;;
    nvquant)
        echo "--threads 0 1.5 1025 99999999999999999999 : -o x.dat $IN/m.dat"
        ;;
    memguard)
        local o
        for o in --limit --gpu-limit --available --over --term-first; do
            echo "$o 0x1 inf 1e999 : -- true"
        done
        echo "--poll 0 0x1 inf 0.001 1e999 : -a 0.001 -- true"
        ;;
    generate)
        local m="--ids -p 1 $IN/model.safetensors"
        echo "--threads 0 1.5 1025 99999999999999999999 : $m"
        echo "--max-tokens 1.5 2147483648 99999999999999999999 : $m"
        echo "--temp 0x1 inf 1e999 : $m"
        echo "--top-p 1.1 0x1 inf : $m"
        echo "--top-k 1.5 4294967296 : $m"
        echo "--repeat-penalty 0 0x1 inf : $m"
        echo "--seed 1.5 4294967296 : $m"
        echo "--prefill-chunk 0 1.5 : $m"
        echo "--context 0 1.5 99999999999999999999 : $m"
        echo "--top-logprobs 0 1.5 99999999999 : --json $m"
        echo "--batch 0 1.5 65 : $m"
        ;;
    esac
}

# words PROGRAM: options that want one of some words, and the rest.
words() {
    case $1 in
    datcat)
        echo "--hash= : $IN/m.dat"
        echo "--verify= : $IN/m.dat"
        ;;
    datpack)
        local o
        for o in --to --dtype --compat; do
            echo "$o : -o x.dat $IN/m.dat"
        done
        for o in --master --moments --quant --variant --criterion --share-scale; do
            echo "$o : --config $IN/config.json -o x.ckpt $IN/m.dat"
        done
        ;;
    nvquant)
        local o
        for o in --quant --share-scale --variant --criterion --dtype --device --compat; do
            echo "$o : -o x.dat $IN/m.dat"
        done
        ;;
    generate)
        local o
        for o in --template --quant --device --compute --path --activations --compat --input; do
            echo "$o : --ids -p 1 $IN/model.safetensors"
        done
        ;;
    esac
}

# misuse PROGRAM ARGUMENT...: exit 2, one line on stderr that begins with the
# program's name, nothing on stdout, no new file.
misuse() {
    run -2 --separate-stderr timeout 60 "$@"
    if [ -n "$output" ] || [ "${#stderr_lines[@]}" -ne 1 ] ||
        [[ ${stderr_lines[0]} != "$1: "?* ]] || [ -n "$(ls -A)" ]; then
        printf 'misuse of:'
        printf ' %q' "$@"
        printf '\n'
        printf '%s\n' "$output" "${stderr_lines[@]}"
        ls -A
        return 1
    fi
}

# long_options PROGRAM: from its help, "--name" or "--name ARG" or "--name[=ARG]"; what the
# text behind it mentions may be another program's.
long_options() {
    "$1" --help | grep -oE '^  (-., |    )--[a-z][a-z0-9-]*(\[=[^ ]*| [A-Z][^ ]*)?' |
        sed 's/^[^-]*\(-., \)\{0,1\}--/--/' | sort -u
}

@test "there are programs to ask" {
    [[ $PROGRAMS == *datcat* ]]
    [[ $PROGRAMS == *datpack* ]]
    [[ $PROGRAMS == *nvquant* ]]
}

@test "--help and -h: to stdout, exit 0, a synopsis first, the common options" {
    local p o
    for p in $PROGRAMS; do
        for o in --help -h; do
            run -0 --separate-stderr "$p" $o
            [ "${#stderr_lines[@]}" -eq 0 ]
            [[ ${lines[0]} == "usage: $p "* ]]
            [[ $output == *'-h, --help'* ]]
            [[ $output == *'-V, --version'* ]]
            [[ $output == *'-q, --quiet'* ]]
            [[ $output == *'-v, --verbose'* ]]
            # It fits a terminal.
            [ "$(wc -L <<<"$output")" -le 100 ]
        done
        # Whatever else is on the line.
        run -0 --separate-stderr "$p" --help nosuchfile
    done
}

@test "--help lists what the program takes, and nothing else" {
    local p o name
    for p in $PROGRAMS; do
        while read -r o; do
            name=${o%%[\[ ]*}
            case $name in
            --help | --version) continue ;;
            esac
            # A listed option is known: what is wrong is not that it is unknown.
            run "$p" "$name" </dev/null
            [[ $output != *unknown* ]] || { echo "$p $name: $output" && false; }
        done < <(long_options "$p")
        [ "$(long_options "$p" | wc -l)" -ge 5 ]
    done
}

@test "--help lists every option of the contract" {
    local o
    for o in --names --json --ndjson --tsv --select --exclude --group --stats --all --sort --top --npy \
        --hist --values --payload --hash --check --diff --atol --rtol --verify \
        --map --meta --raw-entries --strict --threads --quiet --verbose; do
        datcat --help | has -- "$o" || { echo "datcat $o" && false; }
    done
    for o in --output --to --force --dtype --select --exclude --rename --like \
        --untie --tie --config --shard-size --strict --quant --variant \
        --criterion --share-scale --init --master --moments --compat --threads \
        --tokenizer --quiet --verbose; do
        datpack --help | has -- "$o" || { echo "datpack $o" && false; }
    done
    for o in --output --quant --select --exclude --share-scale --report --variant \
        --criterion --exhaustive --dequant --dtype --device --compat --config \
        --untie --tie --strict --force --threads --quiet --verbose; do
        nvquant --help | has -- "$o" || { echo "nvquant $o" && false; }
    done
}

@test "--version and -V: one line with the program's name" {
    local p o
    for p in $PROGRAMS; do
        for o in --version -V; do
            run -0 --separate-stderr "$p" $o
            [ "${#stderr_lines[@]}" -eq 0 ]
            [ "${#lines[@]}" -eq 1 ]
            [[ ${lines[0]} =~ ^$p\ .*[0-9]+\.[0-9]+ ]]
        done
    done
}

@test "unknown options, long and short; arguments missing or too many" {
    local p o
    for p in $PROGRAMS; do
        misuse "$p" --nosuch
        [[ ${stderr_lines[0]} == *--nosuch* ]]
        misuse "$p" --nosuch=1
        misuse "$p" -Z
        [[ ${stderr_lines[0]} == *Z* ]]
        misuse "$p" -qZ
        misuse "$p" -qqqZ x
        misuse "$p" $'-\xc3\xa9'
        misuse "$p" $'--no\nsuch\e[31m'
        [[ ${stderr_lines[0]} != *$'\e'* ]]
        misuse "$p" --quiet=1
        misuse "$p" --help=1
        misuse "$p" # an operand is missing
        while read -r o; do
            case $o in
            *' '*) misuse "$p" "${o%% *}" ;; # its argument is missing
            *'['*) ;;
            *) misuse "$p" "$o=1" ;; # it takes none
            esac
        done < <(long_options "$p")
    done
}

@test "an unknown long option suggests the nearest one" {
    local p o name typo n=0
    for p in $PROGRAMS; do
        while read -r o; do
            name=${o%%[ =[]*}
            name=${name#--}
            [ "${#name}" -ge 4 ] || continue
            # A letter twice, two swapped, one changed, one behind, one missing: of each option one.
            n=$((n + 1))
            case $((n % 5)) in
            0) typo=${name:0:2}${name:1} ;;
            1) typo=${name:1:1}${name:0:1}${name:2} ;;
            2) typo=${name:0:2}Q${name:3} ;;
            3) typo=${name}q ;;
            4) typo=${name:0:3}${name:4} && [ "${#name}" -ge 8 ] || typo=${name}q ;;
            esac
            misuse "$p" "--$typo"
            # Another one may be as near: --beta1 and --beta2.
            [[ ${stderr_lines[0]} == "$p: --$typo: unknown option: expected --$name? "* ]] ||
                [[ ${stderr_lines[0]} == *": expected --${name%?}"[0-9]"? "* ]] ||
                { echo "${stderr_lines[0]}" && false; }
        done < <(long_options "$p")
        misuse "$p" --quite
        [ "${stderr_lines[0]}" = "$p: --quite: unknown option: expected --quiet? --help lists all" ]
        misuse "$p" --helb=x
        [[ ${stderr_lines[0]} == "$p: --helb=x: unknown option: expected --help? "* ]]
        # A word with more behind an option's name.
        misuse "$p" --verbose-output
        [ "${stderr_lines[0]}" = "$p: --verbose-output: unknown option: expected --verbose? --help lists all" ]
        # Nothing is near, or but a third of the letters: no guess.
        misuse "$p" --zzzz
        [ "${stderr_lines[0]}" = "$p: --zzzz: unknown option; --help lists them" ]
        misuse "$p" --vexx
        [ "${stderr_lines[0]}" = "$p: --vexx: unknown option; --help lists them" ]
        misuse "$p" --xyzxyz
        [ "${stderr_lines[0]}" = "$p: --xyzxyz: unknown option; --help lists them" ]
        misuse "$p" "--$(printf '%0300d' 0)"
        [[ ${stderr_lines[0]} != *'expected --'* ]]
        misuse "$p" --=x
        [[ ${stderr_lines[0]} != *'expected --'* ]]
    done
}

@test "an ambiguous abbreviation is refused" {
    misuse datcat --ver "$IN/m.dat"
    [ "${stderr_lines[0]}" = "datcat: --ver: is the beginning of --verify, --verbose, --version: expected one of them" ]
    misuse datpack --s seed
    [[ ${stderr_lines[0]} == "datpack: --s: is the beginning of --select, "*"--strict"* ]]
}

# bats test_tags=slow
@test "bad numbers: trailing text, negative, empty, NaN, out of range" {
    local p line option bad rest args
    for p in $PROGRAMS; do
        while read -r line; do
            option=${line%% *}
            bad=${line%% : *}
            rest=${line##* : }
            # shellcheck disable=SC2206  # words, split on purpose
            args=($rest)
            # shellcheck disable=SC2295
            for bad in ${bad#$option} 1x x1 -1 nan NaN '1 ' ' 1' $'1\n' 1e 0x '' '--'; do
                case $option in
                *=) misuse "$p" "$option$bad" "${args[@]}" ;;
                *)
                    misuse "$p" "$option" "$bad" "${args[@]}"
                    misuse "$p" "$option=$bad" "${args[@]}"
                    ;;
                esac
                [[ ${stderr_lines[0]} == *"${option%=}"* ]]
            done
        done < <(numbers "$p")
    done
}

@test "bad words: one of some is expected, the line says which" {
    local p line option bad rest args
    for p in $PROGRAMS; do
        while read -r line; do
            option=${line%% *}
            rest=${line##* : }
            # shellcheck disable=SC2206
            args=($rest)
            for bad in nosuch '' $'x\e[31m\ny'; do
                case $option in
                *=) misuse "$p" "$option$bad" "${args[@]}" ;;
                *) misuse "$p" "$option" "$bad" "${args[@]}" ;;
                esac
                [[ ${stderr_lines[0]} == *"${option%=}"*want* ]]
                [[ ${stderr_lines[0]} != *$'\e'* ]]
            done
        done < <(words "$p")
    done
}

@test "operands and arguments with control characters make one clean line" {
    local bad=$'no\nsuch\e[31m\x01'
    misuse datcat "$bad"
    misuse datcat --check "$bad" "$IN/m.dat"
    misuse datcat --values "$bad" "$IN/m.dat"
    misuse datcat --payload "$bad" "$IN/m.dat"
    misuse datcat -s "$bad" "$IN/m.dat"
    misuse datpack -o x.dat "$bad"
    misuse datpack -o "$bad" "$IN/m.dat"
    misuse datpack -o "$bad/x.dat" "$IN/m.dat"
    misuse datpack --rename "$bad" -o x.dat "$IN/m.dat"
    misuse datpack --rename "$bad=x" -o x.dat "$IN/m.dat"
    misuse datpack --like "$bad" -o x.dat "$IN/m.dat"
    misuse datpack --config "$bad" -o x.dat "$IN/m.dat"
    misuse datpack -s "$bad" -o x.dat "$IN/m.dat"
    misuse nvquant -o x.dat "$bad"
    misuse nvquant -o "$bad" "$IN/m.dat"
    misuse nvquant -s "$bad" -o x.dat "$IN/m.dat"
    misuse nvquant --config "$bad" -o x.dat "$IN/m.dat"
    misuse nvquant --report "$bad/r.tsv" -o x.dat "$IN/m.dat"
}

@test "-- ends options; --opt=value is --opt value; options after operands" {
    cp "$IN/m.dat" ./--names
    run -0 datcat -l -- --names
    [ "${#lines[@]}" -eq 25 ]
    run -0 datpack -q -o x.dat -- --names
    cmp x.dat "$IN/m.dat"
    cmp <(datcat --select='*norm*' "$IN/m.dat") <(datcat --select '*norm*' "$IN/m.dat")
    cmp <(datcat -s'*norm*' "$IN/m.dat") <(datcat -s '*norm*' "$IN/m.dat")
    cmp <(datcat "$IN/m.dat" -l) <(datcat -l "$IN/m.dat")
    datpack --output=y.dat -q "$IN/m.dat"
    cmp y.dat x.dat
    datpack "$IN/m.dat" -q -oz.dat
    cmp z.dat x.dat
    run -2 datcat -- -l
}

# bats test_tags=native
@test "an output with the name of a temporary file or a lock is refused" {
    local leaf
    printf '1 2\n' >../ids
    # reserved PROGRAM ARGUMENT...: an output .NAME.
    reserved() {
        misuse "$@"
        [[ ${stderr_lines[0]} == "$1: "*"$leaf"*": is a name of temporary files and locks, which a run removes: expected another; choose one" ]] ||
            { echo "${stderr_lines[0]}" && false; }
    }
    for leaf in .m.dat.nibble-tmp .m.dat.nibble-lock .m.dat.nibble-old; do
        reserved datpack --to dat -o $leaf "$IN/m.dat"
        reserved datpack --to safetensors --shard-size 1K -f -o $leaf/ "$IN/m.dat"
        reserved nvquant -o x.dat --report $leaf "$IN/model.safetensors"
        reserved tokenize --input ids -f -o $leaf ../ids
        reserved generate --ids -p '1 2' -n 1 --logits $leaf "$IN/model.safetensors"
        reserved generate --ids -p '1 2' -n 1 --dump-layers $leaf "$IN/model.safetensors"
        reserved memguard -a 0.001 -f --report $leaf -- true
    done
}

@test "forms of output exclude each other" {
    local a b
    for a in --names --json --ndjson --tsv --hist --hash --verify --map --meta '--values=x' \
        '--payload=x' '--check=x' --diff; do
        for b in --names --json --map --verify; do
            [ "$a" = "$b" ] || misuse datcat "$a" "$b" "$IN/m.dat"
        done
    done
    misuse datcat --stats --names "$IN/m.dat"
    misuse datcat --atol 1 "$IN/m.dat"
}

@test "/dev/full on stdout makes every program fail" {
    local p o args
    for p in $PROGRAMS; do
        for o in --help --version; do
            run -2 --separate-stderr bash -c "$p $o >/dev/full"
            [ "${#stderr_lines[@]}" -eq 1 ]
        done
        # Also when each write failed at once, and none is left for the end.
        [ -z "${NIBBLE_EMULATED:-}" ] || continue
        run -2 --separate-stderr bash -c "stdbuf -o0 $p --version >/dev/full"
        [ "$stderr" = "$p: standard output: No space left on device" ]
    done
    for o in '' -l --json --ndjson --tsv --stats --group --hist --map --meta --hash --verify \
        '--values=model.norm.weight' '--payload=model.embed_tokens.weight'; do
        # shellcheck disable=SC2086
        run -2 --separate-stderr bash -c 'datcat "$@" >/dev/full' - $o "$IN/m.dat"
        [ "${#stderr_lines[@]}" -eq 1 ]
        [[ ${stderr_lines[0]} == "datcat: "* ]]
    done
    run -2 --separate-stderr bash -c 'datpack -o - "$1" >/dev/full' - "$IN/m.dat"
    [ "${#stderr_lines[@]}" -eq 1 ]
}

@test "a reader that leaves early: no message" {
    local o p
    python3 -c '
import sys
sys.path.insert(0, sys.argv[1])
import containers as c
c.put("many.dat", c.dat_bytes([c.Tensor("t%d.%s" % (i, "x" * 50), "u8", (40,), bytes(40))
                               for i in range(5000)]))' "$HERE"
    for o in '' -l --json --ndjson --tsv --stats --group --hist --map --hash; do
            run -0 --separate-stderr bash -c 'datcat $1 many.dat | head -n 1 >/dev/null
            case ${PIPESTATUS[0]} in 0 | 141) ;; *) exit 1 ;; esac' - $o
        [ "${#stderr_lines[@]}" -eq 0 ]
    done
    for p in $PROGRAMS; do
            run -0 --separate-stderr bash -c '$1 --help | head -n 1 >/dev/null
            case ${PIPESTATUS[0]} in 0 | 141) ;; *) exit 1 ;; esac' - "$p"
        [ "${#stderr_lines[@]}" -eq 0 ]
    done
    run -0 --separate-stderr bash -c 'datpack -o - many.dat | head -c 1 >/dev/null
        case ${PIPESTATUS[0]} in 0 | 141) ;; *) exit 1 ;; esac'
    [ "${#stderr_lines[@]}" -eq 0 ]
    # Also where SIGPIPE is ignored, as below some parents.
    run -0 --separate-stderr python3 -c '
import signal, subprocess
p = subprocess.Popen(["datcat", "-l", "many.dat"], stdout=subprocess.PIPE,
    stderr=subprocess.PIPE, restore_signals=False,
    preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN))
p.stdout.read(1)
p.stdout.close()
assert p.stderr.read() == b"", "words"
p.wait()'
    [ "$(ls -A)" = many.dat ]
}

@test "-q: silent on success; no colour or progress without a terminal" {
    local p args
    for p in $PROGRAMS; do
        example "$p" >/dev/null || continue
        # An emulator's system calls are not all there, and memguard says so.
        [ "$p" != memguard ] || [ -z "${NIBBLE_EMULATED:-}" ] || continue
        mapfile -t args < <(example "$p")
        run -0 --separate-stderr "$p" -q "${args[@]}"
        [ "${#stderr_lines[@]}" -eq 0 ]
        run -0 --separate-stderr "$p" "${args[@]}"
        [ "${#stderr_lines[@]}" -eq 0 ]
        [[ $output != *$'\e'* ]]
        # -v says more, on stderr only.
        cmp <("$p" "${args[@]}" 2>/dev/null) <("$p" -v "${args[@]}" 2>/dev/null)
        # -q wins over nothing on stdout: data is data.
        cmp <("$p" "${args[@]}") <("$p" -q "${args[@]}")
    done
    # Colour never with NO_COLOR, also on a terminal.
    NO_COLOR=1 run -0 script -qec "datcat --stats '$IN/m.dat'" /dev/null
    [[ $output != *$'\e'* ]]
}

# bats test_tags=native
@test "progress on a terminal: how much of all is done" {
    [ -e "$FAILIO_SO" ] || skip "there is no $FAILIO_SO"
    python3 -c '
import containers as c
c.put("four.dat", c.dat_bytes([c.Tensor("t%d" % i, "u8", (1000,), bytes(1000)) for i in range(4)]))'
    # Each tensor is two writes.  The second and the fourth take a while, others rarely.
    run -0 python3 "$HERE/terminal.py" 120 env LD_PRELOAD="$FAILIO_SO" \
        FAILIO='pwrite:4:delay=250:x.dat;pwrite:8:delay=250:x.dat' datpack -o x.dat four.dat
    output=$(grep -oE 'datpack: writing +[0-9]+ %' <<<"$output" | tr -dc '0-9\n' | tr '\n' ' ')
    [[ $output =~ ^('25 ')?'50 '('75 ')?'100 '$ ]]
}

@test "stdin, stdout or stderr closed: no crash, no word in a data file" {
    local p rc args
    echo '{}' >"$BATS_TEST_TMPDIR/m.dat.json" # makes datpack warn
    cp "$IN/m.dat" "$BATS_TEST_TMPDIR/m.dat"
    for p in $PROGRAMS; do
        for args in --help --version; do
            run -2 --separate-stderr bash -c "$p $args >&-"
            run -0 bash -c "$p $args 2>&- <&-"
        done
    done
    run -2 --separate-stderr bash -c 'datcat "$1" >&-' - "$IN/m.dat"
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -0 --separate-stderr bash -c 'datcat -l "$1" 2>&- <&-' - "$IN/m.dat"
    [ "${#lines[@]}" -eq 25 ]
    run -2 bash -c 'datcat nosuch 2>&-'
    run -2 bash -c 'datcat nosuch 2>&- >&- <&-'
    run -2 --separate-stderr bash -c 'datcat - <&-'
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -2 --separate-stderr bash -c 'datpack -o - "$1" >&-' - "$IN/m.dat"
    [ "${#stderr_lines[@]}" -eq 1 ]
    local how n=0
    for how in '2>&-' '<&-' '<&- 2>&-' '>&-' '<&- >&- 2>&-'; do
        n=$((n + 1))
        rc=0
        bash -c "datpack -o o$n.dat '$BATS_TEST_TMPDIR/m.dat' $how" 2>err || rc=$?
        rm -f err
        if [ "$rc" -eq 0 ]; then
            cmp o$n.dat "$IN/m.dat"
        else # then nothing is there
            [ "$rc" -eq 2 ]
            [ ! -e o$n.dat ] || { echo "exit $rc, but o$n.dat is there: $how" && false; }
        fi
    done
}

@test "stderr full or closed never changes the answer" {
    run -2 bash -c 'datcat nosuch 2>/dev/full'
    cp "$IN/m.dat" a.dat
    echo '{}' >a.dat.json
    run -0 bash -c 'datpack -o b.dat a.dat 2>/dev/full'
    cmp b.dat a.dat
}

@test "answers: 1 is an honest no, 2 is trouble" {
    printf '\0' >zero.dat
    run -1 datcat --diff "$IN/m.dat" zero.dat
    run -2 datcat --diff "$IN/m.dat" nosuch
    printf 'x' >bad.dat
    run -1 datcat --verify bad.dat
    run -2 datcat bad.dat
    run -2 datcat --verify nosuch
    run -0 datcat -q --verify "$IN/m.dat"
}

# bats test_tags=nosan,native
@test "too few file descriptors: the message says so, whatever was to be opened" {
    local n command good failed
    datpack -q --to safetensors --shard-size 1K -o shards/ "$IN/model.safetensors"
    datpack -q --config "$IN/config.json" --quant none -o m.ckpt "$IN/model.safetensors"
    tokenize -q --input ids -o s.tok <(echo 1 2 3)
    for command in 'datcat shards' 'datcat --verify shards' 'datpack -q -f -o out.dat shards' \
        'datpack -q -f -o out/ m.ckpt' 'nvquant -q -f -o out.dat m.ckpt' \
        'tokenize -q -f --input ids -o out.tok ids' 'generate --ids -p 1 -n 1 m.ckpt' \
        'generate --score s.tok m.ckpt' 'trainstep -q -f --device cpu -d s.tok -o out.ckpt m.ckpt' \
        "datcat --check sums $IN/m.dat" 'memguard -q -a 0.001 -f --report r.json -- true'; do
        echo 1 2 3 >ids
        datcat --hash "$IN/m.dat" >sums
        good=0 failed=0
        for ((n = 3; n < 60 && good < 3; n++)); do
            # shellcheck disable=SC2086  # a command and its arguments
            run --separate-stderr bash -c 'ulimit -n "$1"; shift; "$@" || exit 2' bash "$n" $command
            if [ "$status" -eq 0 ]; then
                good=$((good + 1))
            else
                failed=$((failed + 1))
                # Also where it cannot be loaded at all.
                [[ $stderr == *'Too many open files'* || $stderr == *'cannot open shared'* ]] ||
                    { echo "$n: $command: $status $stderr" && false; }
            fi
        done
        [ "$good" -eq 3 ] && [ "$failed" -gt 0 ] || { echo "$command: $good, $failed" && false; }
    done
}

@test "a shard that is no file, a directory that cannot be looked into" {
    datpack -q --to safetensors --shard-size 1K -o shards/ "$IN/model.safetensors"
    local shard
    shard=$(echo shards/model-00003-of-*.safetensors)
    rm "$shard"
    mkdir "$shard"
    run -2 --separate-stderr datcat shards
    [ "$stderr" = "datcat: $shard: not a regular file" ]
    [ "$(id -u)" -eq 0 ] && ! command -v setpriv >/dev/null && skip "no setpriv"
    local as=()
    [ "$(id -u)" -ne 0 ] || as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    chmod a+rx "$BATS_RUN_TMPDIR" "${BATS_TEST_TMPDIR%/*}" "$BATS_TEST_TMPDIR"
    "${as[@]}" "$bin/datcat" --version || skip "another user cannot run the programs"
    chmod 000 shards
    run -2 --separate-stderr "${as[@]}" "$bin/datcat" shards
    chmod 755 shards
    [ "$stderr" = "datcat: shards/model.safetensors: Permission denied" ]
}

@test "a file that may not be read is trouble" {
    [ "$(id -u)" -ne 0 ] || skip "root may read everything"
    cp "$IN/m.dat" a.dat
    chmod 0 a.dat
    run -2 --separate-stderr datcat a.dat
    [ "${#stderr_lines[@]}" -eq 1 ]
    run -2 --separate-stderr datcat --verify a.dat
    run -2 --separate-stderr datpack -o x.dat a.dat
    mkdir ro
    chmod 555 ro
    run -2 --separate-stderr datpack -o ro/x.dat "$IN/m.dat"
    chmod 755 ro
}

@test "numbers at the ends of their ranges are taken, beyond them not" {
    local m="--ids -p 1 -n 1 --ignore-eos $IN/model.safetensors" row
    for row in "datcat -j 1 $IN/m.dat" "datcat -j 1024 $IN/m.dat" "datcat --hist=1 $IN/m.dat" \
        "datcat --hist=100000 $IN/m.dat" \
        "datpack -q -f --init 0 --config $IN/config.json -o x.dat" \
        "datpack -q -f --init 4294967295 --config $IN/config.json -o x.dat" \
        "nvquant -q -f -j 1024 --quant max -o x.dat $IN/m.dat" \
        "generate --top-p 1 $m" "generate --top-k 4294967295 $m" "generate --seed 4294967295 $m" \
        "generate --temp 0 $m" "generate -j 1024 $m" "generate --prefill-chunk 1 $m"; do
        # shellcheck disable=SC2086  # words
        run -0 --separate-stderr $row
    done
    rm -f x.dat x.dat.json
    misuse datcat --hist=100001 "$IN/m.dat"
    misuse datcat --hist=0 "$IN/m.dat"
}
