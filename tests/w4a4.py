#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What W4A4 directories have to hold, from the rules alone.

    w4a4.py scales KIND DIR FILE [PLAIN]   the activation scales of DIR are those of FILE, to the
                                       bit, one for each NVFP4 tensor; all else is that of PLAIN
    w4a4.py config KIND DIR [PLAIN]...  what DIR's configuration files say, member by member;
                                       PLAIN: modules that are not quantized (lm_head)
    w4a4.py amax FILE OUT VALUE...     FILE with these for input_amax, in turns: each group its own
    w4a4.py set DIR NAME VALUE...      DIR with another f32 of that name
"""
import json
import struct
import sys

import containers as c
import nvfp4
import nvmodel

BOUND = 6.0 * 448.0


def number(t):
    return struct.unpack("<f", bytes(t.data))[0]


def read(path):
    return {t.name: t for t in nvfp4.read_tensors(path)}


def scales(kind, path, file, plain=None):
    made, measured = read(path), read(file)
    codes, _, _ = nvmodel.PARTS[kind]
    modules = [n[:-len(codes)] for n, t in made.items() if n.endswith(codes) and t.dtype == "u8"]
    suffix = ".input_scale" if kind == "modelopt" else ".input_global_scale"
    for x in modules:
        amax, t = number(measured[x + ".input_amax"]), made.pop(x + suffix)
        want = nvfp4.div(amax, BOUND) if kind == "modelopt" else nvfp4.div(BOUND, amax)
        assert t.dtype == "f32" and list(t.shape) == ([] if kind == "modelopt" else [1]), t.shape
        assert bytes(t.data) == struct.pack("<f", want), (x, number(t), want)
    left = [n for n in made if "input" in n and "layernorm" not in n]
    assert modules and not left, left
    if plain:
        want = read(plain)
        assert sorted(made) == sorted(want), sorted(set(made) ^ set(want))
        for n, t in want.items():
            assert (t.dtype, t.shape, t.data) == (made[n].dtype, made[n].shape, made[n].data), n
    print(len(modules), "scales")


def config(kind, path, *plain):
    ignored = list(plain) or ["lm_head"]
    if kind == "modelopt":
        ignored.insert(not plain, "model.embed_tokens")
    q = json.load(open(path + "/config.json"))["quantization_config"]
    if kind == "modelopt":
        producer = {"name": "modelopt", "version": q["producer"]["version"]}
        args = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
        want = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored,
                "producer": producer, "config_groups": {"group_0": {
                    "targets": ["Linear"], "weights": args, "input_activations": args}}}
        hf = json.load(open(path + "/hf_quant_config.json"))
        assert hf == {"producer": producer, "quantization": {
            "quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
            "exclude_modules": ignored}}, hf
    else:
        args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                "symmetric": True, "scale_dtype": "torch.float8_e4m3fn"}
        want = {"quant_method": "compressed-tensors", "version": "0.13.0",
                "format": "nvfp4-pack-quantized", "quantization_status": "compressed",
                "global_compression_ratio": None, "kv_cache_scheme": None, "sparsity_config": {},
                "transform_config": {}, "ignore": ignored, "config_groups": {"group_0": {
                    "targets": ["Linear"], "format": "nvfp4-pack-quantized",
                    "output_activations": None,
                    "weights": dict(args, dynamic=False, observer="minmax"),
                    "input_activations": dict(args, dynamic="local", observer="static_minmax")}}}
    assert q == want, json.dumps(q)


def rewritten(ts, out):
    with open(out, "wb") as f:
        f.write(c.st_bytes(sorted(ts.values(), key=lambda t: t.name), {"format": "pt"}))


def put_amax(file, out, *values):
    ts, groups = read(file), {}
    for n, t in ts.items():
        if n.endswith(".input_amax"):
            x = n.replace("k_proj", "q_proj").replace("v_proj", "q_proj")
            i = groups.setdefault(x.replace("up_proj", "gate_proj"), len(groups))
            t.data = struct.pack("<f", float(values[i % len(values)]))
    rewritten(ts, out)


def put(path, name, *values):
    """Also of another number of elements, and in a new entry."""
    file = path if path.endswith(".safetensors") else path + "/model.safetensors"
    ts = read(file)
    shape = [] if len(values) == 1 and name in ts and not ts[name].shape else [len(values)]
    ts[name] = c.Tensor(name, "f32", shape, struct.pack("<%df" % len(values), *map(float, values)))
    rewritten(ts, file)


if __name__ == "__main__":
    {"scales": scales, "config": config, "amax": put_amax, "set": put}[sys.argv[1]](*sys.argv[2:])
