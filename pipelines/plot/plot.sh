#!/bin/sh
# SPDX-License-Identifier: MIT
# Pictures of logs and reports: see plot.py, or --help.  "make install" installs this as
# nibble-plot, and plot.py in lib/nibble.
name=${0##*/}
dir=$(dirname "$0")
[ -e "$dir/plot.py" ] || dir=$dir/../lib/nibble
command -v python3 >/dev/null || { echo "${name%.sh}: python3 is not installed" >&2; exit 2; }
NIBBLE_NAME=${name%.sh} exec python3 -B "$dir/plot.py" "$@"
