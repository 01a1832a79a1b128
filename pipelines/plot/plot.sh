#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Pictures of what the programs write: each FILE is looked into, and drawn as what it is.
#
#   pipelines/plot/plot.sh [-f] [-o DIR] [--smooth N] [--only svg|png] FILE...
#
#   a log of trainstep (--log, or what it prints)    loss, lr, grad_norm, speed
#   trainstep --memory-report                        memory: the most of each phase
#   memguard --report                                usage: memory while a command ran
#   nvquant --report                                 error: tensors by what is left of them
#   datcat --hist                                    values: how they are distributed
#
# Several files of a kind are drawn into one picture.  DIR (default: plots) gets NAME.svg and
# NAME.png of those names, whose paths are printed; what is there is replaced with -f only.
# "--smooth N" draws the mean of the last N steps above the steps themselves.  "-" is
# standard input.
#
# Exit: 0 done, 1 there is nothing to draw in these files, 2 trouble (no gnuplot among it).
#
# Names, whatever they hold, never become part of gnuplot's commands: those are made of
# words of this script and of numbers, and a name is read by gnuplot from a file.
set -euo pipefail
export LC_ALL=C
tools=$(cd "$(dirname "$0")" && pwd)

say() { printf 'plot: %s\n' "$*" >&2; }

fail()
{
    say "$@"
    exit 2
}

# safe TEXT MOST: to be shown, shortened.
safe()
{
    printf '%s' "${1//$'\n'/\\n}" | awk -v most="$2" -f "$tools/text.awk" \
        -f "$tools/line.awk"
}

dir=plots smooth=1 force='' formats='svg png'
files=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '3,/^set/ { s/^# \{0,1\}//p; }' "$0" && exit 0 ;;
    -o | --output | --smooth | --only) [ $# -gt 1 ] || fail "$1: needs an argument" ;;&
    -o | --output) dir=$2 && shift ;;
    --output=*) dir=${1#*=} ;;
    --smooth) smooth=$2 && shift ;;
    --smooth=*) smooth=${1#*=} ;;
    --only) formats=$2 && shift ;;
    --only=*) formats=${1#*=} ;;
    -f | --force) force=1 ;;
    --) shift && files+=("$@") && break ;;
    -?*) fail "$(safe "$1" 60): unknown option; --help tells which there are" ;;
    *) files+=("$1") ;;
    esac
    shift
done
case $smooth in
'' | 0* | *[!0-9]* | ???????*) fail "--smooth: $(safe "$smooth" 60): want 1..999999" ;;
esac
case $formats in
svg | png | 'svg png') ;;
*) fail "--only: $(safe "$formats" 60): want svg or png" ;;
esac
[ ${#files[@]} -gt 0 ] || fail "want FILE...; --help tells what can be drawn"
[ -n "$dir" ] || fail "-o: want a directory"
command -v gnuplot >/dev/null ||
    fail "gnuplot is not installed; on Debian \"tools/setup.sh\" installs it"

work=$(mktemp -d "${TMPDIR:-/tmp}/nibble-plot.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"
export work # for awk, whose -v reads backslashes

# ---- what the files are ------------------------------------------------------

# kind FILE: by how it begins.
kind()
{
    case $({ head -c 4096 "$1" | tr -d '\000' | head -n 1; } 2>/dev/null || :) in
    '') [ -s "$1" ] && echo unknown || echo empty ;;
    '{"step":'*) echo log ;;
    $'step\tloss\t'*) echo log ;;
    $'name\tshape\tsqnr_db\t'*) echo report ;;
    $'name\tfrom\tto\tcount'*) echo hist ;;
    '{"Pid":'*'"Tool":"memguard"'*) echo guard ;;
    '{"Pid":'* | '[{"ts":'*) echo memory ;;
    *) echo unknown ;;
    esac
}

logs=() reports=() hists=() memories=() guards=()
for i in "${!files[@]}"; do
    name=$(safe "${files[i]#./}" 48)
    [ "${files[i]}" != - ] || name='standard input'
    printf '%s\n' "$name" >"$work/name.$i"
    if [ "${files[i]}" = - ]; then
        cat >"$work/in.$i"
    else
        cat 2>/dev/null <"${files[i]}" >"$work/in.$i" || fail "$name: cannot be read"
    fi
    case $(kind "$work/in.$i") in
    log) logs+=("$i") ;;
    report) reports+=("$i") ;;
    hist) hists+=("$i") ;;
    memory) memories+=("$i") ;;
    guard) guards+=("$i") ;;
    empty) say "$name: is empty: nothing to draw" ;;
    unknown) fail "$name: is no log or memory report of trainstep, no report of" \
        "nvquant or memguard and no histogram of datcat" ;;
    esac
done

# ---- figures ---------------------------------------------------------------------

# Commands for gnuplot, run at the end; it works in $work, where all names are ours.
gp=$work/commands
cat >"$gp" <<'END'
set encoding utf8
set datafile separator whitespace
set datafile missing "-"
label(i, k) = system(sprintf("sed -n %dp labels.%d", i, k))
ink = "#333333"
END

colours=('#1f86c8' '#d55e00' '#009e73' '#cc79a7' '#e69f00' '#56b4e9' '#7f3c8d' '#8c6d31')
colour() { echo "${colours[$1 % ${#colours[@]}]}"; }

figures=0 names=()

# begin NAME TITLE XLABEL YLABEL: a picture, whose curves come into "parts" then.
begin()
{
    figures=$((figures + 1))
    names+=("$1")
    : >"$work/labels.$figures"
    labels=0 parts=()
    title=$2 xlabel=$3 ylabel=$4 ranges='' below=54
}

# label TEXT: a line of the legend; sets $title_of for a plot command.
label()
{
    labels=$((labels + 1))
    printf '%s\n' "$1" >>"$work/labels.$figures"
    title_of="title label($labels, $figures)"
}

# range AXIS LOW HIGH [zero|log]: with some room; zero: begins at 0; log: if they are far apart.
range()
{
    ranges+=$(awk -v axis="$1" -v low="$2" -v high="$3" -v how="${4:-}" 'BEGIN {
        low += 0
        high += 0
        if (how == "zero" && low > 0)
            low = 0
        if (how == "log" && low > 0 && high / low > 50) {
            printf "set logscale %s\nset %srange [%.9g:%.9g]\n", axis, axis, low / 1.3, high * 1.3
            exit
        }
        room = (high - low) * (axis == "x" ? 0.01 : 0.05)
        if (room <= 0)
            room = axis == "x" ? 1 : high ? (high < 0 ? -high : high) * 0.1 : 1
        printf "set %srange [%.9g:%.9g]\n", axis, (how == "zero" && low == 0) ? 0 : low - room, high + room
    }')$'\n'
}

# finish [COMMANDS]: the picture, in all formats.  Without parts, words stand in it.
finish()
{
    local name=${names[-1]} rows=$labels format
    local height=$((260 + below + 16 * rows))
    for format in $formats; do
        {
            echo "reset"
            if [ "$format" = svg ]; then
                echo "set terminal svg size 480,$height noenhanced font 'sans-serif,11' background '#ffffff'"
            else
                echo "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) set terminal pngcairo size 960,$((2 * height)) noenhanced font 'sans,18' lw 2; else set terminal png size 960,$((2 * height)) noenhanced"
            fi
            cat <<END
set output "out/$name.$format"
set border 3 lc rgb ink lw 0.8
set tics nomirror out scale 0.5 textcolor rgb ink
set grid lc rgb "#b0b0b0" lw 0.4 dt 1
set bmargin at screen $((below + 16 * rows + 4)).0 / $height
set key at screen 0.03, screen 4.0 / $height bottom left Left reverse vertical maxcols 1 samplen 2 textcolor rgb ink
set title "$title" textcolor rgb ink
set xlabel "$xlabel" textcolor rgb ink
set ylabel "$ylabel" textcolor rgb ink
set style fill solid 0.85 noborder
set boxwidth 0.8 relative
END
            printf '%s\n' "$ranges" "${1:-}"
            if [ ${#parts[@]} -gt 0 ]; then
                printf 'plot %s' "${parts[0]}"
                [ ${#parts[@]} -eq 1 ] || printf ', %s' "${parts[@]:1}"
                echo
            else
                cat <<'END'
unset tics
unset key
set border 0
set xrange [0:1]
set yrange [0:1]
plot NaN notitle
END
            fi
            echo "unset output"
        } >>"$gp"
    done
}

# ---- logs ---------------------------------------------------------------------------

# extent NAME [FROM TO]: of a column of all logs: finite, others, first, last, lowest, highest.
extent()
{
    awk -v names=" $* " 'index(names, " " $1 " ") {
        n += $2
        others += $3
        if (!$2)
            next
        if (!any++ || $4 + 0 < first)
            first = $4 + 0
        if (any == 1 || $5 + 0 > last)
            last = $5 + 0
        if (any == 1 || $6 + 0 < low)
            low = $6 + 0
        if (any == 1 || $7 + 0 > high)
            high = $7 + 0
    }
    END { printf "%d %d %d %d %.9g %.9g\n", n, others, first, last, low, high }' \
        "${extents[@]}"
}

# curves NAME COLUMN TITLE YLABEL HOW: a picture of a column of all logs.
curves()
{
    local column=$2 k i n others first last low high name with missing=()
    local columns=("$column")
    [ "$column" != loss ] || columns+=(eval_loss)
    read -r n others first last low high < <(extent "${columns[@]}")
    [ "$n" -gt 0 ] || [ "$others" -gt 0 ] || return 0 # nothing of it was logged
    begin "$1" "$3" step "$4"
    if [ "$n" -eq 0 ]; then
        finish "set label 1 \"none of $others values is finite\" at graph 0.5, 0.5 center textcolor rgb ink"
        return
    fi
    range x "$first" "$last"
    range y "$low" "$high" "$5"
    for k in "${!logs[@]}"; do
        i=${logs[k]} name='' with=lines
        [ ${#logs[@]} -eq 1 ] || name=$(cat "$work/name.$i")
        n=$(awk -v c="$column" '$1 == c { print $2 }' "$work/log.$i.extent")
        [ "$n" -gt 30 ] || with='linespoints pt 7 ps 0.4'
        if [ "$n" -eq 0 ]; then
            :
        elif [ "$smooth" -gt 1 ] && [ "$column" != lr ]; then
            parts+=("\"log.$i.$column\" using 1:2 with $with lw 0.6 lc rgb \"#a0$(colour "$k" | tail -c 7)\" notitle")
            label "${name:-${6:-$3}}, mean of $smooth steps"
            parts+=("\"log.$i.$column\" using 1:3 with lines lw 1.6 lc rgb \"$(colour "$k")\" $title_of")
        else
            if [ -n "$name$6" ]; then
                label "${name:-$6}"
            else
                title_of=notitle
            fi
            parts+=("\"log.$i.$column\" using 1:2 with $with lw 1.2 lc rgb \"$(colour "$k")\" $title_of")
        fi
        [ -n "$name" ] && [ "$n" -eq 0 ] && missing+=("$name")
        if [ "$column" = loss ] && [ -s "$work/log.$i.eval_loss" ]; then
            label "${name:+$name, }evaluation"
            parts+=("\"log.$i.eval_loss\" using 1:2 with linespoints lw 1.2 dt (4,3) pt 7 ps 0.5 lc rgb \"$(colour $((${#logs[@]} == 1 ? 1 : k)))\" $title_of")
        fi
        if [ "$column" = loss ] || [ "$column" = grad_norm ]; then
            if [ -s "$work/log.$i.bad" ]; then
                label "${name:+$name, }steps that were skipped or not finite"
                parts+=("\"log.$i.bad\" using 1:(bottom) with points pt 2 ps 0.6 lc rgb \"$(colour $((${#logs[@]} == 1 ? 3 : k)))\" $title_of")
            fi
        fi
    done
    for name in ${missing[@]+"${missing[@]}"}; do
        say "$name: no finite value of $column"
    done
    ranges+="bottom = $low"$'\n'
    finish
}

extents=()
for i in ${logs[@]+"${logs[@]}"}; do
    awk -f "$tools/log.awk" "$work/in.$i" >"$work/log.$i"
    prefix=$work/log.$i awk -v smooth="$smooth" -f "$tools/curves.awk" "$work/log.$i" \
        >"$work/log.$i.extent"
    extents+=("$work/log.$i.extent")
    [ -s "$work/log.$i" ] || say "$(cat "$work/name.$i"): has no step: nothing to draw"
done
if [ ${#logs[@]} -gt 0 ]; then
    curves loss loss "Loss" "loss, nats a token" log training
    curves lr lr "Learning rate" "" zero ''
    curves grad_norm grad_norm "Gradient norm, before clipping" "" log ''
    curves speed tok_s "Speed" "tokens/s" zero ''
fi

# ---- memory by phase --------------------------------------------------------------------

# All reports have the phases of all of them, in the order of the first; a bar stands for the
# process, one beside it for its device, where the report tells of one.
bars=()
for i in ${memories[@]+"${memories[@]}"}; do
    awk -f "$tools/memory.awk" "$work/in.$i" >"$work/memory.$i"
    if [ -s "$work/memory.$i" ]; then
        bars+=("$i 3 process" "$i 4 device")
    else
        say "$(cat "$work/name.$i"): has no sample: nothing to draw"
    fi
done
used=()
for bar in ${bars[@]+"${bars[@]}"}; do
    read -r i c what <<<"$bar"
    ! awk -v c="$c" '$c != "-" { exit 1 }' "$work/memory.$i" || continue
    used+=("$bar")
done
if [ ${#used[@]} -gt 0 ]; then
    begin memory "Memory by phase, the most of all steps" '' MiB
    (cd "$work" && awk '!($1 in seen) { seen[$1]; print $1 }' memory.*[0-9]) >"$work/phases"
    high=0
    for b in "${!used[@]}"; do
        read -r i c what <<<"${used[b]}"
        awk -v c="$c" -v b="$b" -v n="${#used[@]}" 'NR == FNR { most[$1] = $c; next }
            { x = FNR + (b + 0.5) / n * 0.8 - 0.4
              print x, ($1 in most ? most[$1] : "-"), 0.72 / n, $1 }' \
            "$work/memory.$i" "$work/phases" >"$work/bar.$b"
        high=$(awk -v h="$high" '$2 != "-" && $2 + 0 > h { h = $2 } END { print h }' "$work/bar.$b")
        name=
        [ ${#memories[@]} -eq 1 ] || name="$(cat "$work/name.$i"), "
        label "$name$what"
        parts+=("\"bar.$b\" using 1:2:3 with boxes lc rgb \"$(colour "$b")\" $title_of")
    done
    # The words below the bars, from a file, too.
    parts+=('"phases" using (column(0)+1):(NaN):xtic(1) with lines notitle')
    n=$(wc -l <"$work/phases")
    below=76
    ranges=$(printf 'set xrange [0.4:%d.6]\nunset mxtics\nset xtics rotate by -20\nset grid noxtics ytics\n' "$n")$'\n'
    range y 0 "$high" zero
    finish
fi

# ---- memory while a command ran ----------------------------------------------------------

used=() last=0 high=0
for i in ${guards[@]+"${guards[@]}"}; do
    awk -f "$tools/usage.awk" "$work/in.$i" >"$work/usage.$i"
    [ -s "$work/usage.$i" ] || say "$(cat "$work/name.$i"): has no sample: nothing to draw"
    for c in 2 3; do
        awk -v c=$c '$c != "-" { exit 1 }' "$work/usage.$i" || used+=("$i $c")
    done
    read -r last high < <(awk -v last="$last" -v high="$high" '{
        if ($1 + 0 > last)
            last = $1
        for (c = 2; c <= 3; c++)
            if ($c != "-" && $c + 0 > high)
                high = $c
    } END { print last, high }' "$work/usage.$i")
done
if [ ${#used[@]} -gt 0 ]; then
    begin usage "Memory while it ran" seconds MiB
    range x 0 "$last"
    range y 0 "$high" zero
    for k in "${!used[@]}"; do
        read -r i c <<<"${used[k]}"
        name=
        [ ${#guards[@]} -eq 1 ] || name="$(cat "$work/name.$i"), "
        label "$name$([ "$c" -eq 2 ] && echo "processes" || echo "their GPU memory")"
        parts+=("\"usage.$i\" using 1:$c with steps lw 1.2 lc rgb \"$(colour "$k")\" $title_of")
    done
    finish
fi

# ---- errors of quantizers --------------------------------------------------------------------

# histogram FILE...: values, one a line in each file, counted in the same bins: FILE.bins.
histogram()
{
    awk '{ v = $1 + 0 }
        !n++ || v < low { low = v }
        n == 1 || v > high { high = v }
        { value[n] = v; file[n] = FILENAME }
        END {
            bins = 24
            # A round width, so that the bins are those of a person.
            width = (high - low) / bins
            if (width <= 0)
                width = 0.01
            p = 1
            while (p > width)
                p /= 10
            while (p * 10 <= width)
                p *= 10
            width = width <= p * 1.000001 ? p : width <= 2 * p ? 2 * p : width <= 5 * p ? 5 * p : 10 * p
            first = int(low / width) - 1
            last = int(high / width) + 1
            for (i = 1; i <= n; i++) {
                b = value[i] / width
                b = b < 0 && b != int(b) ? int(b) - 1 : int(b)
                count[file[i], b]++
            }
            for (f = 1; f < ARGC; f++)
                for (b = first; b <= last; b++)
                    printf "%.9g %d %.9g\n", (b + 0.5) * width, count[ARGV[f], b], width >(ARGV[f] ".bins")
        }' "$@"
}

# column 3, sqnr_db; a tensor that was quantized without an error has none.
sqnr=() used=()
for i in ${reports[@]+"${reports[@]}"}; do
    awk -F '\t' 'NR > 1 && $3 ~ /^-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?$/ { print $3 }' \
        "$work/in.$i" >"$work/sqnr.$i"
    if [ -s "$work/sqnr.$i" ]; then
        sqnr+=("$work/sqnr.$i")
        used+=("$i")
    else
        say "$(cat "$work/name.$i"): has no tensor with a finite error: nothing to draw"
    fi
done
if [ ${#used[@]} -gt 0 ]; then
    begin error "Error of quantization" "signal to noise, dB" tensors
    histogram "${sqnr[@]}"
    read -r first last high width < <(cat "${sqnr[@]/%/.bins}" | awk '
        NR == 1 || $1 + 0 < low { low = $1 + 0 }
        NR == 1 || $1 + 0 > high { high = $1 + 0 }
        $2 + 0 > most { most = $2 + 0 }
        END { printf "%.9g %.9g %d %.9g\n", low - $3 / 2, high + $3 / 2, most, $3 }')
    ranges="set xrange [$first:$last]"$'\n'
    [ "$high" -gt 4 ] || ranges+="set ytics 1"$'\n' # no halves of tensors
    range y 0 "$high" zero
    for k in "${!used[@]}"; do
        i=${used[k]} name=
        [ ${#used[@]} -eq 1 ] || name="$(cat "$work/name.$i"), "
        label "$name$(wc -l <"$work/sqnr.$i") tensors"
        if [ ${#used[@]} -eq 1 ]; then
            parts+=("\"sqnr.$i.bins\" using 1:2:($width * 0.92) with boxes lc rgb \"$(colour "$k")\" $title_of")
        else
            parts+=("\"sqnr.$i.bins\" using 1:2 with histeps lw 1.4 lc rgb \"$(colour "$k")\" $title_of")
        fi
    done
    finish
fi

# ---- distributions of values -----------------------------------------------------------------

# Each tensor of each histogram is a curve; more than eight of them nobody tells apart.
if [ ${#hists[@]} -gt 0 ]; then
    for i in "${hists[@]}"; do
        # A line of "values.list": file, number of its tensor, name as datcat has escaped it.
        awk -F '\t' -v i="$i" 'BEGIN { out = ENVIRON["work"] "/values" }
        NR > 1 && NF >= 4 && $4 ~ /^[0-9]+$/ {
            if (!($1 in number)) {
                number[$1] = ++n
                name[n] = $1
            }
            t = number[$1]
            rows[t]++
            from[t, rows[t]] = $2
            to[t, rows[t]] = $3
            count[t, rows[t]] = $4
            total[t] += $4
        }
        END {
            for (t = 1; t <= n; t++) {
                if (!total[t] || to[t, 1] + 0 <= from[t, 1] + 0)
                    continue
                print i "\t" t "\t" name[t]
                for (r = 1; r <= rows[t]; r++)
                    printf "%.9g %.9g\n", (from[t, r] + to[t, r]) / 2, \
                        count[t, r] / total[t] / (to[t, r] - from[t, r]) >(out "." i "." t)
            }
        }' "$work/in.$i" >>"$work/values.list"
        grep -q "^$i"$'\t' "$work/values.list" ||
            say "$(cat "$work/name.$i"): has no tensor with two different values: nothing to draw"
    done
    all=$(wc -l <"$work/values.list") k=0
    if [ "$all" -gt 0 ]; then
        begin values "Distribution of values$([ "$all" -le 8 ] || echo ", the first 8 of $all tensors")" value "density"
        while [ $k -lt 8 ] && IFS=$'\t' read -r i t name; do
            name=$(safe "$name" 48)
            [ ${#hists[@]} -eq 1 ] || name="$(cat "$work/name.$i"): $name"
            label "$name"
            parts+=("\"values.$i.$t\" using 1:2 with histeps lw 1.2 lc rgb \"$(colour "$k")\" $title_of")
            k=$((k + 1))
        done <"$work/values.list"
        # Tails are what a quantizer sees; counts of 0 are gaps.
        ranges="set logscale y"$'\n'"set format y \"%g\""$'\n'
        finish
    fi
fi

# ---- and drawn ---------------------------------------------------------------------------------

if [ $figures -eq 0 ]; then
    say "nothing to draw"
    exit 1
fi
for name in "${names[@]}"; do
    for format in $formats; do
        path=$dir/$name.$format
        for f in "${files[@]}"; do
            [ "$f" = - ] || ! [ "$path" -ef "$f" ] || fail "$(safe "$path" 60): is an input, too"
        done
        [ -n "$force" ] || ! [ -e "$path" ] || fail "$(safe "$path" 60): exists; -f replaces it"
        ! [ -d "$path" ] || fail "$(safe "$path" 60): is a directory"
    done
done
if ! (cd "$work" && gnuplot -d commands >words 2>&1 </dev/null); then
    fail "gnuplot: $(safe "$(tail -n 3 "$work/words")" 400)"
fi
mkdir -p -- "$dir" 2>/dev/null || fail "$(safe "$dir" 60): cannot be made"
for name in "${names[@]}"; do
    for format in $formats; do
        path=$dir/$name.$format
        [ -s "$work/out/$name.$format" ] || fail "gnuplot made no $name.$format"
        part=$dir/.$name.$format.part
        { cp -- "$work/out/$name.$format" "$part" && mv -f -- "$part" "$path"; } 2>/dev/null || {
            rm -f -- "$part"
            fail "$(safe "$path" 60): cannot be written"
        }
        printf '%s\n' "$path"
    done
done
