#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fetches NVIDIA's headers of cudnn-frontend (Apache-2.0, parts MIT), which the CUDA backend is
# built with if it is to use cuDNN.
#
#   tools/cudnn-frontend.sh [DIR]      default: .cache/cudnn-frontend of this tree
#
# The headers are in DIR/include then; if they are already, nothing is done.  They come
# from PyPI, in a package for Python of which they alone are kept, the same one whatever
# machine and Python this is: its hash is known.
#
# Exit: 0; 77 when pip or the network is not there; 1 when it is another package.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.32.0
hash=c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
dir=${1:-.cache/cudnn-frontend}

not_fetched()
{
    echo "cudnn-frontend: not fetched: $*" >&2
    exit 77
}

if [ -e "$dir/include/cudnn_frontend.h" ] && [ "$(cat "$dir/version" 2>/dev/null)" = $version ]; then
    exit 0
fi
command -v python3 >/dev/null || not_fetched "there is no python3"
python3 -m pip --version >/dev/null 2>&1 || not_fetched "there is no pip"

mkdir -p "$dir"
trap 'rm -rf "$dir/new"' EXIT
rm -rf "$dir/new"
python3 -m pip download -q --retries 1 --timeout 20 --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
    -d "$dir/new" "nvidia-cudnn-frontend==$version" >&2 ||
    not_fetched "pip cannot download it"

wheel=$(echo "$dir"/new/*.whl)
echo "$hash  $wheel" | sha256sum -c --quiet - >&2
python3 - "$wheel" "$dir/new" <<'END'
import sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as z:
    z.extractall(sys.argv[2], [n for n in z.namelist()
                               if n.startswith("include/") or "/licenses/" in n])
END
rm -rf "$dir/include" "$dir/licenses"
mv "$dir/new/include" "$dir"
mv "$dir"/new/*.dist-info/licenses "$dir"
echo $version >"$dir/version"
