#!/bin/sh
# SPDX-License-Identifier: MIT
# One page about an experiment: see report.py, or --help.
command -v python3 >/dev/null || { echo 'report: python3 is not installed' >&2; exit 2; }
exec python3 -B "$(dirname "$0")/report.py" "$@"
