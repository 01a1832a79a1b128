#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks the GGUF package of llama.cpp about a file of ours.  Optional: it needs
that package, so it is no part of "make test".

    python3 -m venv /tmp/v && /tmp/v/bin/pip install gguf
    /tmp/v/bin/python tests/peers_gguf.py FILE.gguf [MODEL]

Checked: its reader opens FILE; tensors stand under the names that its own table
gives to ours, in its types; NVFP4 decodes to the numbers that datcat shows;
keys are those that it knows, of the types that it writes.  With MODEL, a
directory with config.json and tokenizer.json, its writer is given the same and
the pairs are compared.

Environment: NIBBLE_BIN (default ../bin beside this script).
"""
import json
import os
import subprocess
import sys

sys.dont_write_bytecode = True      # no __pycache__ in the tree

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATCAT = os.path.join(os.environ.get("NIBBLE_BIN") or
                      os.path.join(HERE, "..", "bin"), "datcat")
T = gguf.GGMLQuantizationType
V = gguf.GGUFValueType


def datcat(*args):
    return subprocess.run([DATCAT, "-q", *args], check=True,
                          stdout=subprocess.PIPE).stdout.decode()


def need(cond, *what):
    if not cond:
        sys.exit("peers_gguf.py: " + what[0] % what[1:])


def check_names(reader, path, layers):
    """Returns {our name: its tensor}."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    by_name = {t.name: t for t in reader.tensors}
    out = {}
    for line in datcat("-l", path).splitlines():
        theirs = table.get_name(line, try_suffixes=(".weight",))
        need(theirs in by_name, "%s: it calls it %s", line, theirs)
        out[line] = by_name[theirs]
    rest = set(by_name) - {t.name for t in out.values()}
    for name in rest:
        need(name.endswith(".scale"), "%s is no tensor of the model", name)
    return out, {n: by_name[n] for n in rest}


def check_values(path, tensors, scales):
    for ours, t in tensors.items():
        if t.tensor_type in (T.F32, T.F16):
            want = t.data.astype(np.float32)
        else:
            want = gguf.quants.dequantize(t.data, t.tensor_type)
        scale = scales.get(t.name.replace(".weight", ".scale"))
        if scale is not None:
            want = want * scale.data[0]
        found = np.array(datcat("--values", ours, path).split(),
                         dtype=np.float32)
        need(np.array_equal(want.ravel(), found), "%s: other values", ours)


KEYS = {"general.architecture": V.STRING, "general.file_type": V.UINT32,
        "general.quantization_version": V.UINT32,
        "tokenizer.ggml.model": V.STRING, "tokenizer.ggml.pre": V.STRING,
        "tokenizer.ggml.tokens": V.ARRAY, "tokenizer.ggml.token_type": V.ARRAY,
        "tokenizer.ggml.merges": V.ARRAY,
        "tokenizer.ggml.bos_token_id": V.UINT32,
        "tokenizer.ggml.eos_token_id": V.UINT32,
        "tokenizer.ggml.padding_token_id": V.UINT32,
        "tokenizer.ggml.add_bos_token": V.BOOL}


def check_keys(reader):
    k = gguf.Keys
    sizes = (k.LLM.BLOCK_COUNT, k.LLM.CONTEXT_LENGTH, k.LLM.EMBEDDING_LENGTH,
             k.LLM.FEED_FORWARD_LENGTH, k.Attention.HEAD_COUNT,
             k.Attention.HEAD_COUNT_KV, k.Attention.KEY_LENGTH,
             k.Attention.VALUE_LENGTH)
    floats = (k.Attention.LAYERNORM_RMS_EPS, k.Rope.FREQ_BASE)
    want = dict(KEYS)
    want.update({s.format(arch="qwen3"): V.UINT32 for s in sizes})
    want.update({s.format(arch="qwen3"): V.FLOAT32 for s in floats})
    for key, kind in want.items():
        f = reader.get_field(key)
        need(f is not None, "no %s", key)
        need(f.types[0] == kind, "%s is %s", key, f.types)
    kind = reader.get_field("general.file_type").contents()
    need(gguf.LlamaFileType(kind).name == "MOSTLY_NVFP4",
         "general.file_type is %d", kind)


def check_vocab(reader, model):
    """Its own reader of vocabularies over the same directory."""
    with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
        tokens = json.load(f)
    special = gguf.SpecialVocab(model, load_merges=True)
    get = lambda key: reader.get_field("tokenizer.ggml." + key)
    need(get("merges").contents() == special.merges, "merges")
    for kind, i in special.special_token_ids.items():
        f = get(gguf.constants.Keys.Tokenizer.BOS_ID.split(".")[-1].replace(
            "bos", {"pad": "padding"}.get(kind, kind)))
        need(f is not None and f.contents() == i, "%s: %s", kind, i)
    words = get("tokens").contents()
    for text, i in tokens["model"]["vocab"].items():
        need(words[i] == text, "token %d", i)
    for a in tokens["added_tokens"]:
        need(words[a["id"]] == a["content"], "token %d", a["id"])
    template = reader.get_field("tokenizer.chat_template")
    need((template.contents() if template else None) == special.chat_template,
         "chat template")


def main(argv):
    if not 1 <= len(argv) <= 2:
        sys.exit(__doc__.strip())
    reader = gguf.GGUFReader(argv[0])
    layers = reader.get_field("qwen3.block_count").contents()
    tensors, scales = check_names(reader, argv[0], layers)
    check_keys(reader)
    check_values(argv[0], tensors, scales)
    if len(argv) == 2:
        check_vocab(reader, argv[1])
    print("%s: %d tensors, %d scales: agreed" % (argv[0], len(tensors),
                                                 len(scales)))


if __name__ == "__main__":
    main(sys.argv[1:])
