#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Cross-builds everything for aarch64 and runs the quick tests under qemu-user.
# "make arm64" calls this.
#
# Compiler and emulator come from "tools/setup.sh arm64".  The two libraries come
# from Debian's arm64 packages, unpacked into build-arm64/sysroot with package
# lists of their own: the system's list of architectures stays as it is, no root is
# needed, and once unpacked no network either.  Programs are linked statically, so
# that qemu needs no sysroot; tests find them as wrappers in build-arm64/run.
#
# Exit: that of the tests, or 77 when something that is needed is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

out=build-arm64
sysroot=$out/sysroot
libdir=$sysroot/usr/lib/aarch64-linux-gnu
make=${MAKE:-make}

not_run()
{
    echo "arm64: not run: $*"
    exit 77
}

# Unpack the arm64 packages of the libraries into the sysroot.
make_sysroot()
{
    local apt=$PWD/$out/apt name
    rm -rf "$sysroot" "$apt"
    mkdir -p "$sysroot" "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/deb"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "$(id -un)";
Dir::State::Lists "$apt/lists/";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache/";
Acquire::Languages "none";
END
    export APT_CONFIG=$apt/apt.conf
    apt-get -q update || echo "arm64: apt-get update had trouble; going on"
    name=libmsgpack-c-dev
    LC_ALL=C apt-cache policy $name | grep '^  Candidate: [^(]' >/dev/null ||
        name=libmsgpack-dev
    (cd "$apt/deb" && apt-get -q download "$name" libxxhash-dev) || return
    unset APT_CONFIG
    for name in "$apt"/deb/*.deb; do
        dpkg -x "$name" "$sysroot" || return
    done
    rm -rf "$apt"
    touch "$sysroot/complete"
}

if [ "$(uname -m)" = aarch64 ]; then
    echo "arm64: this machine is one, so this is \"make check\""
    exec "$make" check
fi
command -v aarch64-linux-gnu-gcc >/dev/null ||
    not_run "aarch64-linux-gnu-gcc is not installed (tools/setup.sh arm64)"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
    not_run "qemu-aarch64 is not installed (tools/setup.sh arm64)"
if ! [ -e $sysroot/complete ]; then
    command -v apt-get >/dev/null || not_run "no apt-get to fetch arm64 libraries with"
    echo "arm64: fetching the arm64 packages of the libraries into $sysroot"
    make_sysroot || not_run "the arm64 packages could not be fetched"
fi

msgpack=-lmsgpackc
[ ! -e "$libdir/libmsgpack-c.a" ] || msgpack=-lmsgpack-c
# shellcheck disable=SC2086  # MAKE may be several words
$make NVCC= CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar BUILD=$out BIN=$out/bin \
    CFLAGS="-O2 -g -isystem $sysroot/usr/include" LDFLAGS="-static -L$libdir" \
    MSGPACK_LIB=$msgpack all unit-programs

rm -rf $out/run
mkdir -p $out/run
for prog in "$out"/bin/*; do
    [ -e "$prog" ] || continue
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$qemu" "$PWD/$prog" \
        >"$out/run/${prog##*/}"
    chmod 755 "$out/run/${prog##*/}"
done

NIBBLE_EMULATED=1 NIBBLE_RUN=$qemu NIBBLE_BIN=$PWD/$out/run NIBBLE_BUILD=$PWD/$out \
    tools/test.sh --tags '!slow,!native' --changed unit bats
