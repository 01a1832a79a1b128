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
        [[ $a == *cmd.a ]] || [[ $a =~ /lib(core|format|text|nvfp4|kernels|model|io)\.a$ ]]
    done
}

@test "rule: lib/core includes nothing else" {
    for to in lib/format/dat.h lib/nvfp4/codec.h lib/text/bpe.h lib/model/qwen3.h \
        kernels/kernels.h cmd/cmd.h; do
        refused lib/core/a.c "#include \"$to\"" "lib/core must not include"
    done
    allowed lib/core/a.c '#include "lib/core/err.h"'
}

@test "rule: lib/format, lib/text and lib/nvfp4 include lib/core only" {
    for from in format text nvfp4; do
        for to in lib/format/x.h lib/text/x.h lib/nvfp4/x.h lib/model/x.h \
            kernels/kernels.h cmd/cmd.h cmd/datcat/x.h; do
            [[ $to == lib/$from/* ]] ||
                refused "lib/$from/a.h" "#include \"$to\"" "lib/$from must not include"
        done
        allowed "lib/$from/a.h" '#include "lib/core/err.h"'
        allowed "lib/$from/a.h" "#include \"lib/$from/b.h\""
    done
}

@test "rule: lib/model includes kernels, lib/nvfp4 and lib/core" {
    for to in lib/format/dat.h lib/text/bpe.h cmd/cmd.h; do
        refused lib/model/a.c "#include \"$to\"" "lib/model must not include"
    done
    for to in lib/core/err.h lib/nvfp4/codec.h kernels/kernels.h; do
        allowed lib/model/a.c "#include \"$to\""
    done
}

@test "rule: lib/io includes every other library, and no command" {
    for to in cmd/cmd.h cmd/device.h cmd/datcat/x.h; do
        refused lib/io/pack/a.c "#include \"$to\"" "lib/io must not include"
    done
    for to in kernels/kernels.h lib/model/config.h lib/format/dat.h lib/text/bpe.h \
        lib/nvfp4/codec.h lib/core/err.h lib/io/pack/b.h; do
        allowed lib/io/a.c "#include \"$to\""
    done
    for from in core format text nvfp4 model; do
        refused "lib/$from/a.c" '#include "lib/io/io.h"' "lib/$from must not include"
    done
    refused kernels/cpu/a.c '#include "lib/io/io.h"' "kernels must not include"
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
    allowed cmd/device.h '#include "kernels/kernels.h"'
}

@test "rule: no command includes another, and the shared part none" {
    refused cmd/datcat/a.c '#include "cmd/datpack/pack.h"' \
        "cmd/datcat must not include cmd/datpack"
    refused cmd/cmd.c '#include "cmd/datcat/view.h"' "cmd must not include cmd/datcat"
    allowed cmd/datcat/a.c '#include "cmd/datcat/view.h"'
    for to in cmd/cmd.h lib/core/err.h lib/format/dat.h lib/text/bpe.h lib/nvfp4/codec.h \
        lib/model/qwen3.h lib/io/values.h lib/io/pack/pack.h; do
        allowed cmd/datcat/a.c "#include \"$to\""
    done
}

@test "rule: a library that the list does not know includes nothing" {
    refused lib/extra/a.c '#include "lib/core/err.h"' "lib/extra must not include"
}

@test "rule: paths start at the root, whatever the spelling" {
    refused lib/core/a.c '#include "err.h"' "from the root"
    refused lib/core/a.c '#include "../format/dat.h"' "from the root"
    refused lib/core/a.c '#include "lib/core/../format/dat.h"' "from the root"
    refused lib/core/a.c '#include <lib/format/dat.h>' "lib/core must not include"
    refused lib/core/a.c '  #  include	"lib/format/dat.h" // why' "lib/core must not include"
    refused lib/core/a.c '#include HEADER' "no file named"
    refused lib/core/a.c '#include "lib/core/err.c"' "want a header"
    allowed lib/core/a.c '#include <stdio.h>'
    allowed lib/core/a.c '#include <sys/stat.h>'
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
        library core "$data"
        run -1 "$layers" -a "$tree"
        [[ $output == "libcore.a(x.o): x"*" is writable data" ]]
    done
    library core 'const int x = 1; static const char *const t[] = { "a", "b" };
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

@test "rule: nothing to look at is no pass" {
    mkdir -p "$tree/build" "$tree/lib"
    run -1 "$layers" -i "$tree"
    [[ $output == *"no sources"* ]]
    run -1 "$layers" -a "$tree"
    [[ $output == *"no archives"* ]]
}
