#!/bin/sh
# SPDX-License-Identifier: MIT
# One page about an experiment: see report.py, or --help.  "make install" installs this as
# nibble-report, and report.py in lib/nibble.
name=${0##*/}
dir=$(dirname "$0")
[ -e "$dir/report.py" ] || dir=$dir/../lib/nibble
command -v python3 >/dev/null || { echo "${name%.sh}: python3 is not installed" >&2; exit 2; }
NIBBLE_NAME=${name%.sh} exec python3 -B "$dir/report.py" "$@"
