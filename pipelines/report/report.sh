#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One page about an experiment: a single HTML file with its figures, tables, answers before
# and after, settings, commands, hashes and where each file comes from.  It has no script and
# asks no network, and the same files give the same bytes.
#
#   pipelines/report/report.sh [-f] [--title TEXT] -o FILE.html OUTDIR
#
# What is in OUTDIR under these names gets on the page; what is not there is left out.  Each
# TSV has a header row; its columns are shown as they are.
#
#   evaluate.tsv       what was measured: the results
#   samples.tsv        prompt, before, after: answers; those that changed are marked
#   train*.jsonl       logs of trainstep, drawn into the same figures
#   memory*.json       memory reports of trainstep and memguard;  memory.tsv  other figures
#   cost*.tsv          nvquant --report;  hist.tsv  datcat --hist
#   settings.tsv       what was chosen, such as name and value
#   plan.txt           trainstep --dry-run
#   commands.txt       what was run
#   hashes.tsv         files and their hashes
#   *.ckpt *.dat *.safetensors *.gguf *.tok, directories with a config.json:
#                      where they come from, by datcat --meta
#
# Figures need gnuplot; without it the page says so.  Exit: 0 done, 1 OUTDIR has nothing to
# report, 2 trouble.  Environment: NIBBLE_BIN, where datcat is (default: ../../bin beside
# this script).
set -euo pipefail
export LC_ALL=C
tools=$(cd "$(dirname "$0")" && pwd)
plot=$tools/../plot
bin=${NIBBLE_BIN:-$tools/../../bin}

# as MODE [FILE]: a piece of the page.
as()
{
    # NUL bytes end strings in some awks.
    sed 's/\x00/\\x00/g' "${2:--}" | awk -v mode="$1" -f "$plot/text.awk" -f "$tools/html.awk"
}

# html TEXT: one line of text.
html()
{
    printf '%s' "${1//$'\n'/\\n}" | as text | sed 's/^<pre>//; /^<\/pre>$/d'
}

say()
{
    printf 'report: %s' "${*//$'\n'/\\n}" |
        awk -v most=400 -f "$plot/text.awk" -f "$plot/line.awk" >&2
}

fail()
{
    say "$@"
    exit 2
}

out='' title='An experiment' force='' dir=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '3,/^set/ { s/^# \{0,1\}//p; }' "$0" && exit 0 ;;
    -o | --output | --title) [ $# -gt 1 ] || fail "$1: needs an argument" ;;&
    -o | --output) out=$2 && shift ;;
    --output=*) out=${1#*=} ;;
    --title) title=$2 && shift ;;
    --title=*) title=${1#*=} ;;
    -f | --force) force=1 ;;
    --)
        shift
        [ $# -eq 0 ] || { [ $# -eq 1 ] && [ -z "$dir" ]; } || fail "want one OUTDIR"
        dir=${1-$dir}
        break
        ;;
    -?*) fail "$1: unknown option; --help tells which there are" ;;
    *) [ -z "$dir" ] || fail "$1: want one OUTDIR" && dir=$1 ;;
    esac
    shift
done
[ -n "$dir" ] || fail "want OUTDIR, where an experiment has written; --help tells more"
[ -n "$out" ] || fail "want -o FILE.html"
[ -d "$dir" ] || fail "$dir: is no directory"
[ -n "$force" ] || ! [ -e "$out" ] || fail "$out: exists; -f replaces it"
! [ -d "$out" ] || fail "$out: is a directory"

work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-report.XXXXXX")
trap 'rm -rf "$work"' EXIT
case $out in
/*) ;;
*) out=$PWD/$out ;;
esac
case $bin in
/*) ;;
*) bin=$PWD/$bin ;;
esac
case $tools in
/*) ;;
*) fail "$tools: cannot be entered" ;;
esac
cd -- "$dir" || fail "$dir: cannot be entered"
shopt -s nullglob

: >"$work/body"
sections=0

# section TITLE: begins one; all that is printed from here on goes into it.
section()
{
    sections=$((sections + 1))
    printf '<a href="#s%d">%s</a>\n' $sections "$1" >>"$work/nav"
    printf '<section>\n<h2 id="s%d">%s</h2>\n' $sections "$1"
}

# has FILE: whether to show it.  The page itself is none of its inputs.
has()
{
    [ -f "$1" ] && [ -s "$1" ] || return 1
    ! [ "$1" -ef "$out" ] || fail "$out: is an input, too"
    [ -r "$1" ] || fail "$1: cannot be read"
}

# facts <LINES: names and values, which are our words and numbers.
facts()
{
    echo '<dl class="facts">'
    awk -F '\t' '{ print "<div><dt>" $1 "</dt><dd>" $2 "</dd></div>" }'
    echo '</dl>'
}

# figures NAME...: those that plot.sh made, so that they fit into any page: what is ink has the
# colour of the text, paper has none, and ids are those of the figure alone.
figures()
{
    local name
    echo '<div class="figures">'
    for name; do
        [ -s "$work/plots/$name.svg" ] || continue
        # What is text in it stays as it is.
        sed -e '/^<?xml/d; /^<title>Gnuplot</d; /^<desc>Produced by GNUPLOT/d; /^$/d' \
            -e '/<text>/b' \
            -e "s/\\bid=\\(['\"]\\)/id=\\1$name-/g; s/href='#/href='#$name-/g; s/url(#/url(#$name-/g" \
            -e 's/ color="\(black\|gray\)"//g; s/rgb( *51, *51, *51)/currentColor/g' \
            -e '/^<rect x="0" y="0" width="[0-9]*" height="[0-9]*" fill="#ffffff"\/>$/d' \
            -e "s/^<svg *\$/<svg role=\"img\" aria-label=\"$name\"/" \
            -e 's/^[ \t]*//' "$work/plots/$name.svg" >"$work/svg"
        printf '<figure>\n%s\n</figure>\n' "$(cat "$work/svg")"
    done
    echo '</div>'
}

# draw FILE...: all that can be drawn of them; what cannot is said on the page.
draw()
{
    local rc=0 line
    if ! command -v gnuplot >/dev/null; then
        no_gnuplot=1
        return
    fi
    "$plot/plot.sh" -f -o "$work/plots" --only svg --smooth "$smooth" "$@" \
        >/dev/null 2>"$work/words" || rc=$?
    [ $rc -le 1 ] || cat "$work/words" >&2
    while IFS= read -r line; do
        printf '<p class="note">%s</p>\n' "$(html "${line#plot: }")"
    done <"$work/words"
}

# ---- the page, part by part ----------------------------------------------------------

smooth=1 no_gnuplot=''
logs=() costs=() memories=()
for f in ./train*.jsonl; do
    # An empty log is one that has no step yet.
    [ -f "$f" ] && { ! [ -s "$f" ] || has "$f"; } && logs+=("${f#./}")
done
for f in ./cost*.tsv; do
    has "$f" && costs+=("${f#./}")
done
for f in ./memory*.json; do
    has "$f" && memories+=("${f#./}")
done

{
    if has evaluate.tsv; then
        section "Results"
        as table evaluate.tsv
        echo '</section>'
    fi
    if has samples.tsv; then
        section "Answers before and after"
        as table samples.tsv
        echo '</section>'
    fi

    if [ ${#logs[@]} -gt 0 ]; then
        section "Training"
        longest=0 drawn=()
        for f in "${logs[@]}"; do
            awk -f "$plot/log.awk" "./$f" >"$work/table"
            [ ${#logs[@]} -eq 1 ] || printf '<h3>%s</h3>\n' "$(html "$f")"
            if ! [ -s "$work/table" ]; then
                printf '<p class="note">%s has no step.</p>\n' "$(html "$f")"
                continue
            fi
            drawn+=("./$f")
            steps=$(wc -l <"$work/table")
            [ "$steps" -le "$longest" ] || longest=$steps
            awk -f "$tools/facts.awk" "$work/table" | facts
        done
        # Long runs are read better through a mean.
        [ "$longest" -lt 200 ] || smooth=$((longest / 50 < 100 ? longest / 50 : 100))
        [ ${#drawn[@]} -eq 0 ] || draw "${drawn[@]}"
        figures loss lr grad_norm speed
        echo '</section>'
    fi

    if [ ${#costs[@]} -gt 0 ] || has hist.tsv; then
        section "Quantization"
        for f in ${costs[@]+"${costs[@]}"}; do
            [ ${#costs[@]} -eq 1 ] || printf '<h3>%s</h3>\n' "$(html "$f")"
            awk -f "$tools/cost.awk" "./$f" | facts
        done
        drawn=(${costs[@]+"${costs[@]/#/./}"})
        ! has hist.tsv || drawn+=(./hist.tsv)
        draw "${drawn[@]}"
        figures error values
        for f in ${costs[@]+"${costs[@]}"}; do
            echo "<details><summary>$(html "$f"), each tensor</summary>"
            as table "./$f"
            echo '</details>'
        done
        echo '</section>'
    fi

    if [ ${#memories[@]} -gt 0 ] || has memory.tsv; then
        section "Memory"
        ! has memory.tsv || as table memory.tsv
        if [ ${#memories[@]} -gt 0 ]; then
            draw "${memories[@]/#/./}"
            figures memory usage
            for f in "${memories[@]}"; do
                awk -f "$plot/memory.awk" "./$f" >"$work/table"
                [ -s "$work/table" ] || continue
                echo "<details><summary>$(html "$f"), the most of each phase in MiB</summary>"
                { printf 'phase\tsamples\tprocess\tdevice\n' && cat "$work/table"; } | as table
                echo '</details>'
            done
        fi
        echo '</section>'
    fi

    if has settings.tsv || has plan.txt; then
        section "Settings"
        ! has settings.tsv || as table settings.tsv
        if has plan.txt; then
            echo '<h3>Plan</h3>'
            # A plan as trainstep prints it is a table; of another program's it need not be.
            if head -n 1 plan.txt | grep -q $'\t'; then as table plan.txt; else as text plan.txt; fi
        fi
        echo '</section>'
    fi
    if has commands.txt; then
        section "Commands"
        as text commands.txt
        echo '</section>'
    fi

    files=()
    for f in ./*.tok ./*.ckpt ./*.dat ./*.safetensors ./*.gguf ./*/config.json; do
        f=${f#./}
        [ -f "$f" ] && files+=("${f%/config.json}")
    done
    if [ ${#files[@]} -gt 0 ]; then
        [ -x "$bin/datcat" ] || fail "no datcat in $bin; make builds it"
        section "Where the files come from"
        echo '<p class="note">By <code>datcat --meta</code>: tool, options and inputs of each, back to the weights and texts.</p>'
        for f in "${files[@]}"; do
            echo "<details><summary>$(html "$f")</summary>"
            if "$bin/datcat" --meta -- "$f" >"$work/meta" 2>"$work/words"; then
                as json "$work/meta"
            else
                as text "$work/words"
            fi
            echo '</details>'
        done
        echo '</section>'
    fi
    if has hashes.tsv; then
        section "Hashes"
        echo '<div class="hash">'
        as table hashes.tsv
        echo '</div>'
        echo '</section>'
    fi
} >"$work/body"

if [ $sections -eq 0 ]; then
    say "$dir: has nothing to report; --help tells what is looked for"
    exit 1
fi

{
    cat <<END
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$(html "$title")</title>
<style>
END
    cat "$tools/report.css"
    cat <<END
</style>
</head>
<body>
<header>
<h1>$(html "$title")</h1>
<nav>
$(cat "$work/nav")
</nav>
</header>
<main>
END
    [ -z "$no_gnuplot" ] || echo '<p class="note">There are no figures: gnuplot was not installed.</p>'
    cat "$work/body"
    printf '</main>\n</body>\n</html>\n'
} >"$work/page"

name=${out##*/}
part=${out%/*}/.$name.part
{ cp -- "$work/page" "$part" && mv -f -- "$part" "$out"; } 2>/dev/null || {
    rm -f -- "$part"
    fail "$out: cannot be written"
}
