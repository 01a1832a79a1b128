# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# What benchmarks share: names of machine and commit, and rows of CSV.  Sourced by
# scripts that have set $here, the directory of bench/, and $csv, a file or nothing.

: "${here:?}" "${csv?}"
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
machine=${cpu:-$(uname -m)}
machine=${machine//,/ }
commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo -)

# begin COLUMNS: a new CSV begins with date,machine,commit and these.
begin()
{
    if [ -n "$csv" ] && ! [ -s "$csv" ]; then
        echo "date,machine,commit,$1" >"$csv"
    fi
}

# keep: rows of those columns from standard input, to the screen and into the CSV.
keep()
{
    sed "s/^/$(date -u +%F),$machine,$commit,/" | tee -a "${csv:-/dev/null}"
}
