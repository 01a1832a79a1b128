#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the Debian packages that nibble needs, and nothing else.
#
#   tools/setup.sh [-n|-p] [GROUP]...    GROUP: build test lint san arm64 all
#
# Without a group: build and test, which is what "make setup demo" and
# "make setup test" need.  -n only says what is missing, and exits 1 if something
# is; -p prints the names.  When nothing is missing apt is not touched.  In "a|b" either name will do:
# the first that the release knows is installed.  "a?" is optional: what is built without it does
# less, and where it cannot be installed that is no failure.
set -euo pipefail

# libmsgpack-dev became libmsgpack-c-dev with msgpack-c 6; qemu-user holds static
# binaries since Debian 13 and dynamic ones before, both serve.
packages_of()
{
    case $1 in
    build) echo gcc make libc6-dev "libmsgpack-c-dev|libmsgpack-dev" libxxhash-dev "libedit-dev?" ;;
    test) echo bats python3 strace groff-base tmux clang "libclang-rt-dev|libclang-common-14-dev" \
        "gnuplot-nox|gnuplot-qt|gnuplot-x11" openmpi-bin libopenmpi-dev openssl ;;
    lint) echo clang-format clang-tidy cppcheck shellcheck ;;
    san) echo valgrind libc6-dbg ;;
    arm64) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross "qemu-user|qemu-user-static" ;;
    esac
}

usage="usage: tools/setup.sh [-n|-p] [build|test|lint|san|arm64|all]..."
dry=
print=
groups=
wanted=
for arg; do
    case $arg in
    -n) dry=1 ;;
    -p) print=1 ;;
    -h | --help) echo "$usage" && exit 0 ;;
    all) groups+=" build test lint san arm64" ;;
    build | test | lint | san | arm64) groups+=" $arg" ;;
    *) echo "tools/setup.sh: $arg: want build, test, lint, san, arm64 or all" >&2 && exit 2 ;;
    esac
done
groups=${groups:-build test}
for g in $groups; do
    wanted+=" $(packages_of "$g")"
done

if [ -n "$print" ]; then
    wanted=${wanted//\?/}
    echo "${wanted# }"
    exit 0
fi

# Elsewhere than on Debian: look at what is there, and name the packages.
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    missing=
    for tool in gcc make bats python3 strace tmux clang; do
        command -v $tool >/dev/null || missing+=" $tool"
    done
    for header in msgpack.h xxhash.h; do
        echo "#include <$header>" | gcc -fsyntax-only -x c - 2>/dev/null ||
            missing+=" $header"
    done
    if [ -z "$missing" ]; then
        echo "setup: this is no Debian, but everything for build and test is there"
        exit 0
    fi
    echo "setup: this is no Debian; please install what is missing:$missing" >&2
    echo "setup: on Debian these would be the packages:${wanted//\?/}" >&2
    exit 1
fi

# installed NAME: fully installed, for this machine's architecture or for all.
installed()
{
    dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed
}

any_installed()
{
    local p
    for p in ${1//|/ }; do
        installed "${p%\?}" && return
    done
    return 1
}

missing=
optional=1
for entry in $wanted; do
    any_installed "$entry" && continue
    missing+=" $entry"
    [[ $entry == *\? ]] || optional=
done
if [ -z "$missing" ]; then
    groups=${groups# }
    echo "setup: everything for ${groups// / and } is installed"
    exit 0
fi
if [ -n "$dry" ]; then
    echo "setup: missing:${missing//\?/}"
    exit 1
fi

# The names to install: of alternatives the first that the release knows.
choose()
{
    local entry p pick
    for entry in $missing; do
        pick=
        for p in ${entry//[|?]/ }; do
            if LC_ALL=C apt-cache policy "$p" | grep '^  Candidate: [^(]' >/dev/null; then
                pick=$p
                break
            fi
        done
        [[ -n $pick || $entry == *\? ]] || pick=${entry%%|*}
        [ -z "$pick" ] || echo "$pick"
    done
}

sudo=
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    if ! command -v sudo >/dev/null; then
        [ -z "$optional" ] || { echo "setup: going on without${missing//\?/}" && exit 0; }
        echo "setup: not root, and there is no sudo; please run as root:" >&2
        echo "    apt-get update" >&2
        echo "    apt-get install --no-install-recommends $(choose | xargs)" >&2
        exit 1
    fi
fi

echo "setup: missing:${missing//\?/}"
echo "setup: now ${sudo:+sudo }apt-get update, then apt-get install of these"
# One broken entry in the lists of a machine need not stop us: if it matters, the
# installation says so.
$sudo apt-get -q update ||
    echo "setup: apt-get update had trouble; going on with what is known" >&2

mapfile -t names < <(choose)
$sudo env DEBIAN_FRONTEND=noninteractive \
    apt-get -q install -y --no-install-recommends "${names[@]}" || {
    [ -n "$optional" ] || exit 1
    echo "setup: going on without${missing//\?/}"
    exit 0
}
echo "setup: installed: ${names[*]}"
