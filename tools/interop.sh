#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Other programs beside ours: installs them with pip into build-interop (some gigabytes) and
# runs tests/interop.py, tests/peers_nvfp4.py and tests/peers_gguf.py with them.
#
#   tools/interop.sh [PART]...    PART: of tests/interop.py, or peers (default: all)
#
# QWEN3=DIR: Qwen3's tokenizer.json and tokenizer_config.json, for its chats.  SERVERS=1: vLLM's
# package, too, without what it depends on, for its configuration classes.  What cannot be
# installed is "not run", in words.  The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
export NIBBLE_BIN=${NIBBLE_BIN:-$PWD/bin}
venv=${VENV:-build-interop/venv}
peers=(compressed-tensors modelopt gguf)
[ ! -f "${QWEN3:-}" ] || QWEN3=$(dirname "$QWEN3")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

not_run() { echo "$1: not run: $2" && exit 77; }

# get WORDS PACKAGE...: with pip; if that fails its last line says why.
get()
{
    local what=$1
    shift
    echo "installing $what" >&2
    "$venv/bin/pip" install -q --disable-pip-version-check "$@" >"$log" 2>&1 ||
        echo "$what: not installed: $(grep -v '^ *$' "$log" | tail -n 1)"
}

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" >"$log" 2>&1 || not_run interop "$(tail -n 1 "$log"): python3-venv is needed"
fi
if [ ! -e "$venv/complete" ]; then
    get "PyTorch and what is of Hugging Face" torch transformers safetensors tokenizers numpy
    get "quantizers and gguf" compressed-tensors llmcompressor nvidia-modelopt gguf
    get "llama.cpp, which is compiled, minutes" "llama-cpp-python[server]"
    get "model_signing" model-signing pyopenssl # which it imports and does not ask for
    "$venv/bin/python" -c 'import torch, transformers' 2>/dev/null && touch "$venv/complete"
fi
# vLLM whole would replace half of the others; its classes want modules of no weight, which
# are installed as it asks for them.
servers()
{
    local n module package
    "$venv/bin/python" -c 'import vllm' 2>/dev/null || get vLLM --no-deps vllm
    for ((n = 0; n < 40; n++)); do
        module=$("$venv/bin/python" -c 'import vllm.model_executor.layers.quantization.modelopt
import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors' 2>&1 |
            sed -n "s/.*No module named '\([A-Za-z0-9_]*\).*/\1/p" | tail -n 1)
        case $module in
        '' | vllm) break ;;
        zmq) package=pyzmq ;;
        cv2) package=opencv-python-headless ;;
        PIL) package=pillow ;;
        yaml) package=pyyaml ;;
        dotenv) package=python-dotenv ;;
        google) package=protobuf ;;
        *) package=$module ;;
        esac
        get "$package, for vLLM" "$package"
    done
}
[ -z "${SERVERS:-}" ] || servers
"$venv/bin/python" -c 'import torch' 2>/dev/null || not_run interop "PyTorch could not be installed"

passed=0 failed=0
count()
{
    local line f
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    f=${line#* passed, }
    passed=$((passed + ${line%% passed*})) failed=$((failed + ${f% failed}))
}

parts=() with_peers=
for p; do
    if [ "$p" = peers ]; then with_peers=1; else parts+=("$p"); fi
done
if [ $# -eq 0 ] || [ ${#parts[@]} -gt 0 ]; then
    "$venv/bin/python" tests/interop.py ${QWEN3:+-q "$QWEN3"} "${parts[@]+"${parts[@]}"}" \
        2>/dev/null | tee "$log" || true # what failed is counted
    count
fi
if [ $# -eq 0 ] || [ -n "$with_peers" ]; then
    for how in "" "-b $NIBBLE_BIN"; do
        # shellcheck disable=SC2086  # two words
        "$venv/bin/python" tests/peers_nvfp4.py $how "${peers[@]}" 2>/dev/null >"$log" || true
        awk -F '\t' 'NR > 1 { n[$1 " " $2 FS $7]++ } END { for (k in n) print "peers\t" k ": " n[k] }' "$log"
        passed=$((passed + $(cut -f 7 "$log" | grep -cx ok || true)))
        failed=$((failed + $(cut -f 7 "$log" | grep -cx DIFFERS || true)))
        grep DIFFERS "$log" || true
    done
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
