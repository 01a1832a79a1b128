#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a command as on a Debian machine that has nothing but compilers and what
# tools/setup.sh installs.
#
#   tools/bare.sh [-g GROUP]... COMMAND [ARGUMENT]...
#
# PATH becomes one folder of links: programs of packages that every Debian has (essential
# ones and those of priority "required"), of gcc, g++ and make, of what setup.sh names for
# GROUP (build and test), and of all that these depend on.  So a test that calls anything
# else fails as it would there: "command not found".  Libraries, headers and Python's modules
# are not hidden; PYTHONPATH, CUDA and pip's packages of a user are.
#
# Exit: that of the command; 77 where there is no dpkg.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

groups=()
while [ "${1-}" = -g ]; do
    groups+=("$2")
    shift 2
done
[ $# -gt 0 ] || { echo "usage: tools/bare.sh [-g GROUP]... COMMAND [ARGUMENT]..." >&2 && exit 2; }
if ! command -v dpkg-query >/dev/null || ! command -v apt-cache >/dev/null; then
    echo "bare: not run: this is no Debian"
    exit 77
fi

# lines NAME...: a sorted list, a name a line.
lines() { printf '%s\n' "$@" | LC_ALL=C sort -u; }
both() { LC_ALL=C comm -12 "$1" "$2"; }

# Of alternatives a|b those that are installed.
names=$("$here/setup.sh" -p "${groups[@]+"${groups[@]}"}" | tr '|' ' ')
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' |
    LC_ALL=C sort -u)
always=$(dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' |
    awk '$1 == "yes" || $2 == "required" { print $NF }')
# shellcheck disable=SC2086  # names
roots=$(both <(lines $names $always gcc g++ make) <(echo "$installed"))
# shellcheck disable=SC2086  # names
closure=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts \
    --no-breaks --no-replaces --no-enhances $roots | sed -n 's/^\([a-z0-9][^ :]*\)[^ ]*$/\1/p')
# shellcheck disable=SC2086  # names
closure=$(both <(lines $roots $closure) <(echo "$installed"))

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# shellcheck disable=SC2086
dpkg-query -L $closure 2>/dev/null | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u >"$dir/files"
mkdir "$dir/bin"
while IFS= read -r f; do
    [ ! -x "$f" ] || [ -d "$f" ] || ln -sf "$f" "$dir/bin/"
done <"$dir/files"
# Names that lead to those files by way of /etc/alternatives: awk, cc.
for f in /usr/bin/* /bin/*; do
    [[ -L $f && $(readlink "$f") == /etc/alternatives/* ]] || continue
    to=$(readlink -f "$f")
    if grep -qx -e "$to" -e "${to#/usr}" "$dir/files"; then
        ln -sf "$f" "$dir/bin/"
    fi
done
env -u PYTHONPATH -u VIRTUAL_ENV -u CUDA_HOME PYTHONNOUSERSITE=1 PATH="$dir/bin" "$@"
