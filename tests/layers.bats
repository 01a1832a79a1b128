#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154  # bin, root: of common.bash
# The directions of includes and the manners of the libraries, by tools/layers.sh;
# and the test of that test: each rule finds its violation in a scratch tree.

# bats file_tags=native,nosan
load common

setup()
{
    layers=$root/tools/layers.sh
    tree=$BATS_TEST_TMPDIR/tree
}

# seed FILE LINE: a scratch tree of one file with that line in it.
seed()
{
    mkdir -p "$tree/$(dirname "$1")"
    printf '/* a file */\n%s\n' "$2" >"$tree/$1"
}

# refused FILE LINE WORDS: the line in that file is found and named.
refused()
{
    seed "$1" "$2"
    run -1 "$layers" -i "$tree"
    [[ $output == "$1:2: "*"$3"* ]]
    rm -r "$tree"
}

# allowed FILE LINE
allowed()
{
    seed "$1" "$2"
    run -0 "$layers" -i "$tree"
    [ -z "$output" ]
    rm -r "$tree"
}

# library NAME C-TEXT: a scratch build with libNAME.a of that one source.
library()
{
    mkdir -p "$tree/build"
    printf '%s\n' "$2" >"$tree/x.c"
    ${CC:-cc} -O1 -c -o "$tree/x.o" "$tree/x.c"
    rm -f "$tree/build/lib$1.a"
    ar rcs "$tree/build/lib$1.a" "$tree/x.o"
}

@test "the include lines of the tree point one way" {
    run -0 "$layers" -i "$root"
    [ -z "$output" ]
}

@test "no library prints, exits or holds writable data" {
    run -0 "$layers" -a "$root" "${NIBBLE_BUILD:-$root/build}"
    [ -z "$output" ]
}

@test "all libraries of the Makefile are looked at" {
    for a in "${NIBBLE_BUILD:-$root/build}"/lib*.a; do
        [[ $a == *cmd.a ]] ||
            [[ $a =~ /lib(base|file|dist|format|arch|text|nvfp4|kernels|model|load|convert|inspect|data|infer|train)\.a$ ]]
    done
}

# A room, and those that it may include.
arrows() {
    cat <<'ROOMS'
lib/base
lib/file lib/base
lib/nvfp4 lib/base
lib/dist lib/base
lib/text lib/file lib/base
lib/model/arch lib/base
lib/format lib/model/arch lib/file lib/base
kernels lib/nvfp4 lib/base
lib/model lib/model/arch kernels lib/dist lib/nvfp4 lib/base
lib/load kernels lib/model lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base
lib/convert lib/load lib/model lib/format lib/text lib/nvfp4 lib/file lib/base
lib/inspect lib/load lib/model lib/format lib/text lib/nvfp4 lib/file lib/base
lib/data lib/format lib/text lib/file lib/base
lib/infer kernels lib/data lib/load lib/model lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base
lib/train kernels lib/data lib/load lib/model lib/dist lib/format lib/text lib/nvfp4 lib/file lib/base
ROOMS
}

@test "rule: each room includes those below it that it needs, and no other" {
    local room to below header rooms
    rooms=$(arrows | cut -d ' ' -f 1)
    while read -r room below; do
        for to in $rooms cmd/cli cmd/datcat; do
            header=$to/a.h
            [ "$to" != kernels ] || header=kernels/kernels.h
            if [ "$to" = "$room" ] || [[ " $below " == *" $to "* ]]; then
                allowed "$room/b.c" "#include \"$header\""
            else
                refused "$room/b.c" "#include \"$header\"" "$room must not include"
            fi
        done
    done < <(arrows)
}

@test "rule: of kernels only the interface is seen from outside" {
    refused lib/model/a.c '#include "kernels/cpu/gemm.h"' "only kernels/kernels.h"
    refused kernels/cpu/a.c '#include "lib/format/dat.h"' "kernels must not include"
    refused kernels/cuda/a.cu '#include "lib/model/qwen3.h"' "kernels must not include"
    allowed kernels/cpu/a.c '#include "lib/nvfp4/codec.h"'
    allowed kernels/cpu/a.c '#include "kernels/cpu/gemm.h"'
}

@test "rule: of the commands only what they share includes kernels" {
    refused cmd/datcat/a.c '#include "kernels/kernels.h"' "must not include kernels"
    refused cmd/nvquant/a.c '#include "kernels/kernels.h"' "must not include kernels"
    allowed cmd/cli/device.h '#include "kernels/kernels.h"'
}

@test "rule: no command includes another, and the shared part none" {
    refused cmd/datcat/a.c '#include "cmd/datpack/pack.h"' \
        "cmd/datcat must not include cmd/datpack"
    refused cmd/cli/cmd.c '#include "cmd/datcat/view.h"' "cmd/cli must not include cmd/datcat"
    allowed cmd/datcat/a.c '#include "cmd/datcat/view.h"'
    allowed cmd/datcat/a.c '#include "cmd/cli/cmd.h"'
    for to in $(arrows | cut -d ' ' -f 1 | grep -v kernels); do
        allowed cmd/datcat/a.c "#include \"$to/a.h\""
    done
}

@test "rule: a library that the list does not know includes nothing" {
    refused lib/extra/a.c '#include "lib/base/err.h"' "lib/extra must not include"
}

@test "rule: paths start at the root, whatever the spelling" {
    refused lib/base/a.c '#include "err.h"' "from the root"
    refused lib/base/a.c '#include "../format/dat.h"' "from the root"
    refused lib/base/a.c '#include "lib/base/../format/dat.h"' "from the root"
    refused lib/base/a.c '#include <lib/format/dat.h>' "lib/base must not include"
    refused lib/base/a.c '  #  include	"lib/format/dat.h" // why' "lib/base must not include"
    refused lib/base/a.c '#include HEADER' "no file named"
    refused lib/base/a.c '#include "lib/base/err.c"' "want a header"
    allowed lib/base/a.c '#include <stdio.h>'
    allowed lib/base/a.c '#include <sys/stat.h>'
}

@test "rule: a library does not print or exit" {
    for call in 'exit(1)' '_exit(1)' 'abort()' 'puts("x")' 'printf("%d", 1)' \
        'perror("x")' 'fprintf(f, "%d", 1)' 'dprintf(2, "x")' 'fputs("x", stderr)' \
        'fputs("x", stdout)'; do
        library format "#include <stdio.h>
            #include <stdlib.h>
            #include <unistd.h>
            void x(FILE *f) { (void)f; $call; }"
        run -1 "$layers" -a "$tree"
        [[ $output == "libformat.a(x.o): uses "* ]]
    done
    library format '#include <stdio.h>
        int x(char *s) { return snprintf(s, 9, "%p", s); }'
    run -0 "$layers" -a "$tree"
    [ -z "$output" ]
}

@test "rule: a library holds no writable data" {
    for data in 'int x;' 'int x = 1;' 'static int x; int *y(void) { return &x; }' \
        'int y(void) { static int x = 7; return x++; }' '_Thread_local int x;' \
        'const char *x[] = { "a" };'; do
        library base "$data"
        run -1 "$layers" -a "$tree"
        [[ $output == "libbase.a(x.o): x"*" is writable data" ]]
    done
    library base 'const int x = 1; static const char *const t[] = { "a", "b" };
        const char *y(int i) { return t[i]; }'
    run -0 "$layers" -a "$tree"
    [ -z "$output" ]
}

@test "rule: the sources of a library do not use each other in a circle" {
    # circle A-TEXT B-TEXT: libformat.a of a.c and b.c.
    circle() {
        mkdir -p "$tree/build"
        rm -f "$tree/build/libformat.a"
        for x in a b; do
            printf '%s\n' "$1" >"$tree/$x.c"
            ${CC:-cc} -c -o "$tree/$x.o" "$tree/$x.c"
            shift
        done
        ar rcs "$tree/build/libformat.a" "$tree/a.o" "$tree/b.o"
    }
    circle 'int b(void); int a(void) { return b(); }' \
        'int a(void); extern const int c; int b(void) { return a() + c; }'
    run -1 "$layers" -a "$tree"
    [ "$output" = "libformat.a: these use each other in a circle: a.o b.o" ]
    circle 'int b(void); int a(void) { return b(); }' 'int b(void) { return 1; }'
    run -0 "$layers" -a "$tree"
    [ -z "$output" ]
}

@test "rule: nor do those of a command" {
    mkdir -p "$tree/build/cmd/x" "$tree/cmd/x"
    echo 'int b(void); int a(void) { return b(); }' >"$tree/cmd/x/a.c"
    echo 'int a(void); int b(void) { return a(); }' >"$tree/cmd/x/b.c"
    for x in a b; do
        ${CC:-cc} -c -o "$tree/build/cmd/x/$x.o" "$tree/cmd/x/$x.c"
    done
    library format 'int y(void) { return 1; }'
    rm "$tree/x.c"
    run -1 "$layers" -a "$tree"
    [ "$output" = "cmd/x: these use each other in a circle: a.o b.o" ]
    # What was left by a source that is gone does not count.
    rm "$tree/cmd/x/b.c"
    run -0 "$layers" -a "$tree"
    [ -z "$output" ]
}

@test "rule: nothing to look at is no pass" {
    mkdir -p "$tree/build" "$tree/lib"
    run -1 "$layers" -i "$tree"
    [[ $output == *"no sources"* ]]
    run -1 "$layers" -a "$tree"
    [[ $output == *"no archives"* ]]
}
