#!/bin/sh
# SPDX-License-Identifier: MIT
# Pictures of logs and reports: see plot.py, or --help.
command -v python3 >/dev/null || { echo 'plot: python3 is not installed' >&2; exit 2; }
exec python3 -B "$(dirname "$0")/plot.py" "$@"
