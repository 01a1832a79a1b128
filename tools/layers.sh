#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the direction of includes and the manners of the libraries.
#
#   tools/layers.sh [-i|-a] [ROOT [BUILD]]     defaults: the tree, ROOT/build
#
# -i checks only the include lines, -a only the archives.  One line a violation;
# exit 1 when there is one.  tests/layers.bats shows that each rule can fail.
set -uo pipefail

includes=1 archives=1
case ${1-} in
-i) archives= && shift ;;
-a) includes= && shift ;;
esac
root=${1:-$(dirname "$0")/..}
build=${2:-$root/build}
cd "$root" || exit 2
bad=0

# The tree, as areas.  An area may include itself and what its line names; "cmd/cli" has
# what all commands share, "cmd/*" is the folder of any of them.
check_includes()
{
    local d dirs=() files
    for d in cmd lib kernels; do
        [ ! -d $d ] || dirs+=("$d")
    done
    mapfile -t files < <(find "${dirs[@]:-cmd}" -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) |
        LC_ALL=C sort)
    if [ ${#files[@]} -eq 0 ]; then
        echo "$root: no sources"
        bad=1
        return
    fi
    # shellcheck disable=SC2016  # $ is for awk
    awk '
    BEGIN {
        # What is above and what below, the lowest first.
        may["lib/base"] = ""
        may["lib/file"] = "lib/base"
        may["lib/nvfp4"] = "lib/base"
        may["lib/text"] = "lib/file lib/base"
        may["lib/model/arch"] = "lib/base"
        may["lib/format"] = "lib/model/arch lib/file lib/base"
        may["lib/dist"] = "lib/base"
        may["kernels"] = "lib/nvfp4 lib/base"
        may["lib/model"] = "lib/model/arch kernels lib/dist lib/nvfp4 lib/base"
        may["lib/load"] = "lib/model kernels lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base"
        may["lib/convert"] = "lib/load lib/model lib/format lib/text lib/nvfp4 lib/file lib/base"
        may["lib/inspect"] = "lib/load lib/model lib/format lib/text lib/nvfp4 lib/file lib/base"
        may["lib/data"] = "lib/format lib/text lib/file lib/base"
        may["lib/infer"] = "lib/data lib/load lib/model kernels lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base"
        may["lib/train"] = may["lib/infer"]
        all = "lib/train lib/infer lib/data lib/convert lib/inspect lib/load lib/model lib/model/arch lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base"
        may["cmd/cli"] = "kernels " all
        may["cmd/*"] = "cmd/cli " all
    }
    function area(path,    part, n) {
        n = split(path, part, "/")
        if (part[1] == "kernels")
            return "kernels"
        if (n < 3)
            return part[1]
        if (n > 3 && part[3] == "arch")
            return "lib/model/arch"
        return part[1] "/" part[2]
    }
    function wrong(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, $0, why
        count++
    }
    /^[ \t]*#[ \t]*include/ {
        line = $0
        sub(/^[ \t]*#[ \t]*include[ \t]*/, "", line)
        open = substr(line, 1, 1)
        if (open != "\"" && open != "<") {
            wrong("no file named")
            next
        }
        path = substr(line, 2)
        sub(/[">].*/, "", path)
        ours = path ~ /^(lib|cmd|kernels|tests|tools|bench)\//
        if (path ~ /(^|\/)\.\.?\// || (open == "\"" && !ours)) {
            wrong("want a path from the root of the tree")
            next
        }
        if (!ours)
            next
        if (path ~ /\.(c|cu|cpp)$/) {
            wrong("want a header, not a source")
            next
        }
        from = area(FILENAME)
        to = area(path)
        if (from == to)
            next
        allowed = from in may ? may[from] : from ~ /^cmd\// ? may["cmd/*"] : ""
        if (index(" " allowed " ", " " to " ") == 0)
            wrong(from " must not include " to)
        else if (to == "kernels" && path != "kernels/kernels.h")
            wrong("of kernels only kernels/kernels.h may be included from outside")
    }
    END { exit count > 0 }' "${files[@]}" || bad=1
}

# A library neither prints nor exits, and holds no writable data.  Tables of constant
# pointers are in .data.rel.ro, which is written by the loader only.
check_archives()
{
    local a found=
    for a in "$build"/lib{base,file,dist,format,arch,text,nvfp4,kernels,model,load,convert,inspect,data,infer,train}.a; do
        [ -e "$a" ] || continue
        found=1
        nm -A -f sysv "$a" | awk -F '|' -v archive="${a##*/}" '
        BEGIN {
            list = "exit _exit _Exit quick_exit abort stdout stderr printf vprintf " \
                "fprintf vfprintf dprintf vdprintf puts putchar putc perror psignal " \
                "err errx verr verrx warn warnx vwarn vwarnx error error_at_line " \
                "syslog __printf_chk __vprintf_chk __fprintf_chk __vfprintf_chk " \
                "__dprintf_chk __vdprintf_chk"
            n = split(list, names, " ")
            for (i = 1; i <= n; i++)
                banned[names[i]] = 1
        }
        NF >= 7 {
            gsub(/ /, "", $1); gsub(/ /, "", $3)
            sub(/.*:/, "", $7); gsub(/[ \t]/, "", $7)
            n = split($1, part, ":")
            name = part[n]; member = part[n - 1]
            sub(/@.*/, "", name)
            if ($3 == "U" && name in banned) {
                printf "%s(%s): uses %s\n", archive, member, name
                count++
            } else if ($3 ~ /^[BbDdCcSsGg]$/ && $7 !~ /^\.data\.rel\.ro/) {
                printf "%s(%s): %s is writable data\n", archive, member, name
                count++
            }
        }
        END { exit count > 0 }' || bad=1
    done
    if [ -z "$found" ]; then
        echo "$build: no archives of the libraries"
        bad=1
    fi
}

# circle NAME OBJECT...: these do not use each other in a circle; an archive has several.
circle()
{
    local name=$1 loop
    shift
    loop=$(nm -A "$@" 2>/dev/null | awk '
    {
        n = split($1, part, ":")
        member = part[n - 1]
        sub(/.*\//, "", member)
        name = $NF
        if ($(NF - 1) == "U")
            uses[member " " name]
        else if ($(NF - 1) ~ /[A-Z]/)
            where[name] = member
    }
    END {
        for (use in uses) {
            split(use, part, " ")
            if (part[2] in where && where[part[2]] != part[1])
                print part[1], where[part[2]]
        }
    }' | LC_ALL=C tsort 2>&1 >/dev/null | sed -n 's/^tsort: \([^:]*\.o\)$/\1/p' | sort -u)
    [ -z "$loop" ] && return
    echo "$name: these use each other in a circle: ${loop//$'\n'/ }"
    bad=1
}

# Of a command, too.
check_circles()
{
    local a d c objects
    for a in "$build"/lib{base,file,dist,format,arch,text,nvfp4,kernels,model,load,convert,inspect,data,infer,train}.a; do
        [ ! -e "$a" ] || circle "${a##*/}" "$a"
    done
    for d in cmd/*/; do
        d=${d%/} objects=()
        for c in "$d"/*.c; do
            [ ! -e "$build/${c%.c}.o" ] || objects+=("$build/${c%.c}.o")
        done
        [ ${#objects[@]} -eq 0 ] || circle "$d" "${objects[@]}"
    done
}

[ -z "$includes" ] || check_includes
[ -z "$archives" ] || { check_archives; check_circles; }
exit $bad
