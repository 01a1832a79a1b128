#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the seeds of the fuzz harnesses, tests/fuzz/corpus/NAME/*: small
valid files of each shape, and some that are refused late.  Deterministic,
standard library only; made by the independent writer, tests/containers.py.

usage: seeds.py [OUTDIR]        default: the corpus beside this file
"""
import copy
import json
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import containers as c  # noqa: E402
import gguf_file as g  # noqa: E402
from containers import Tensor, dat_header, pack, uleb  # noqa: E402
from xxh3 import xxh3_128  # noqa: E402

OUT = os.path.join(HERE, "corpus")


def seed(harness, name, data):
    os.makedirs(os.path.join(OUT, harness), exist_ok=True)
    with open(os.path.join(OUT, harness, name), "wb") as f:
        f.write(data)


def t(name, dtype, shape, packed=False):
    n = c.payload_bytes(dtype, shape, packed)
    return Tensor(name, dtype, shape, c.filler(name, dtype, n))


def pair(names, rows, cols, packed=False, scale2=0.25):
    """Codes, scales and perhaps the tensor scale, by their names."""
    out = [Tensor(names[0], "u8", (rows, cols // 2),
                  c.noise(names[0], rows * cols // 2)),
           Tensor(names[1], "f8_e4m3", (rows, cols // 16),
                  bytes(b % 0x7F for b in c.noise(names[1],
                                                  rows * cols // 16)))]
    if len(names) == 3:
        out.append(Tensor(names[2], "f32", (1,), struct.pack("<f", scale2)))
    return out


# ---- .dat -------------------------------------------------------------------

def make_dat():
    def put(name, tensors):
        seed("dat", name, c.dat_bytes(tensors))
    put("none", [])
    put("types", [t(d[:6] + "\u00e9", d, (1, 2), True) for d in c.DAT_CODE])
    put("shapes", [t("scalar", "f32", ()), t("empty", "u8", (3, 0, 5)),
                   t("rank9", "i16", (1,) * 8 + (2,)), t("f4", "f4_e2m1", (), 1)])
    put("pair", pair(["a.weight.qdata", "a.weight.scale"], 1, 16))
    put("three", pair(["a.weight.qdata", "a.weight.scale", "a.weight.scale2"],
                      2, 32))
    put("older", pair(["a.qdata", "a.scale"], 1, 32) + [t("b", "f16", (2,))])
    put("both", pair(["a.qdata", "a.scale"], 1, 16) +
        pair(["a.weight.qdata", "a.weight.scale"], 1, 16))
    put("misfit", [t("a.weight.qdata", "u8", (1, 8)),
                   t("a.weight.scale", "f16", (1, 1))])
    put("odd-names", [t("esc\x1b[1m", "u8", (1,)), t("\u202e\n\t\\", "i8", (2,)),
                      t("n" * 130, "bool", (3,))])
    seed("dat", "long-leb", b"\x82\x80\0" + dat_header("x", "u8", (2,)) + b"ab" +
         b"\x81\0y\x06\x81\0\x81\0" + b"abcd")
    put("rank65", [t("r", "u8", (1,) * 65)])
    for name, leb in (("11-bytes", b"\x80" * 10 + b"\0"), ("4711", uleb(4711)),
                      ("huge", uleb((1 << 63) - 1))):
        seed("dat", name, b"\1\1x" + leb + b"\1" + leb + b"abcdef")
        seed("dat", name + "-dim", b"\1\1xd\1" + leb + b"abcdef")
    put("rows", [t("a.qdata", "u8", (2, 8)), t("a.scale", "f8_e4m3", (1, 1)),
                 t("b.qdata", "u8", (1, 16)), t("b.scale", "f8_e4m3", (1, 1)),
                 t("c.qdata", "u8", (1, 8)), t("c.scale", "u8", (1, 1)),
                 t("c.scale2", "f32", (2,))])
    seed("dat", "trailing", c.dat_bytes([t("x", "u8", (3,))]) + b"!")
    seed("dat", "twice", uleb(2) + 2 * (dat_header("x", "u8", (1,)) + b"a"))


# ---- safetensors ------------------------------------------------------------

def make_safetensors():
    def put(name, tensors, metadata=None):
        seed("safetensors", name, c.st_bytes(tensors, metadata))
    nibble = json.dumps({"format": "nibble-1", "config": {"a": [1]},
                         "provenance": {"tool": "x"}}, separators=(",", ":"))
    put("none", [])
    put("types", [t(d, d, (1, 4)) for d in c.ST_DTYPE])
    put("shapes", [t("scalar", "i64", ()), t("empty", "u8", (3, 0)),
                   t("empty2", "f32", (0,)), t("last", "bool", (1,) * 7)])
    put("nibble", [t("a", "f16", (3,))], {"format": "pt", "nibble": nibble})
    put("modelopt", pair(["a.weight", "a.weight_scale", "a.weight_scale_2"],
                         1, 16))
    put("divides", pair(["a.weight_packed", "a.weight_scale",
                         "a.weight_global_scale"], 1, 32, scale2=3.5))
    put("f4", [t("a.weight_packed", "f4_e2m1", (1, 16)),
               t("a.weight_scale", "u8", (1, 1)),
               t("a.weight_global_scale", "f32", ())])
    put("rank65", [t("r", "u8", (1,) * 65)])
    seed("safetensors", "escapes", c.st_pack(
        b'{"\\u0061\\ud83d\\ude00":{"shape":[ 1 ,2],"data_offsets":[0,2],'
        b'"dtype":"U8"}, "__metadata__" : {"\\n":""}}   ', b"ab"))
    seed("safetensors", "order", c.st_pack(
        b'{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},'
        b'"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"ab"))
    seed("safetensors", "trailing", c.st_bytes([t("x", "u8", (3,))]) + b"!")


# ---- GGUF -------------------------------------------------------------------

def blocks(name, rows, cols):
    return (name, 40, (rows, cols), bytes(
        b & 0x7E for b in c.noise(name, rows * cols // 64 * 36)))


def make_gguf():
    def put(name, pairs, tensors, *more):
        seed("gguf", name, g.gguf_bytes(pairs, tensors, *more))

    def one(number, shape):
        return ("t%d" % number, number, shape, c.noise(
            number, g.payload_bytes(number, shape)))
    scale = ("blk.0.ffn_up.scale", 0, (1,), struct.pack("<f", 0.5))
    put("none", [], [])
    put("values", [g.pair("k%d" % i, *kv) for i, kv in
                   enumerate(g.EVERY_VALUE) if kv[0] != g.STRING or
                   len(kv[1]) < 99], [])
    put("types", [], [one(n, (2, g.TYPES[n][1])) for n in g.TYPES])
    put("shapes", [g.pair("general.alignment", g.U32, 64)],
        [one(0, ()), one(24, (3, 0, 5)), one(25, (1,) * 8 + (2,)),
         one(40, (2, 1, 64))], 64)
    put("nvfp4", [g.pair("general.architecture", g.STRING, "qwen3")],
        [blocks("blk.0.ffn_up.weight", 2, 64), scale,
         ("blk.0.ffn_up.input_scale", 0, (1,), b"\0\0\0?")], 32, False)
    put("llama", [g.pair("general.architecture", g.STRING, "llama")],
        [blocks("blk.0.ffn_up.weight", 1, 128), scale])
    put("both-names", [], [one(0, ()), ("token_embd.weight", 0, (1,), b"abcd"),
                           ("model.embed_tokens.weight", 0, (1,), b"abcd")])
    put("misfit", [], [blocks("x.weight", 1, 64),
                       ("x.scale", 1, (2,), b"abcd")])
    config = dict(c.TINY, hidden_size=2, vocab_size=3)
    embed = ("token_embd.weight", 30, (3, 2), c.noise("e", 12))
    put("config", g.model_pairs(config), [embed])
    for name, of in (("nibble", config), ("nibble-other", c.TINY)):
        put(name, g.model_pairs(config, [g.pair(
            "nibble.provenance", g.STRING, json.dumps(
                {"format": "nibble-1", "config": of, "provenance": {}}))]),
            [embed])
    put("no-config", g.model_pairs(config)[:9], [embed])
    put("rope", g.model_pairs(config, [
        g.pair("qwen3.rope.scaling.type", g.STRING, "ya\"rn")]), [embed])
    put("rank65", [], [one(24, (1,) * 65)])
    put("scale", [], [("x.weight", 40, (1, 64), b"\x7f" * 36)])
    seed("gguf", "order", b"GGUF" + struct.pack("<IQQ", 3, 2, 0) +
         g.info("b", (1,), 24, 32) + g.info("a", (4,), 24, 0) +
         bytes(6) + b"abcd" + bytes(28) + b"x")
    seed("gguf", "trailing", g.gguf_bytes([], [one(24, (3,))]) + b"!")
    seed("gguf", "version2", b"GGUF" + struct.pack("<IQQ", 2, 0, 0))


# ---- checkpoints: a byte for the rest of the file, then the header ----------

def make_ckpt():
    zero = [Tensor("w", "bf16", (2, 3), bytes(12)),
            Tensor("none", "u8", (0, 5), b""),
            Tensor("adam.m/w", "i8", (2, 3), bytes(6)),
            Tensor("adam.m/w.scale", "bf16", (1,), bytes(2))]
    deep = {"a": [{"b": [[[[{"c": [-1, -33, 1 << 40, 0.5, None, True]}]]]]}],
            "grad_norm": 1.5, "z": b"\0\xff"}

    def put(name, tensors, config="{}", pages=None, fill=0, **more):
        h = c.ckpt_header(tensors, config, **more)
        size = c.ckpt_place(h)
        rest = (size - c.align(64 + len(pack(h)))) // c.PAGE
        byte = (rest if pages is None else pages) | fill
        seed("ckpt", name, bytes([byte]) + pack(h))
    put("none", [], c.tiny_config()[:0])
    put("weights", zero, '{"model_type":"qwen3"}')
    put("state", zero[:1], state=copy.deepcopy(deep), master="f32")
    put("damaged", zero, fill=0x50)
    put("short", zero, pages=1)
    put("types", [Tensor(d, d, (1, 2), bytes(c.payload_bytes(d, (1, 2))))
                  for d in c.CKPT_DTYPES[:9]])
    put("rank65", [Tensor("r", "u8", (1,) * 65, b"\0")])
    raw = c.ckpt_bytes([], "{}")
    seed("ckpt", "whole", b"\xff" + raw[:512])
    for at in (0, 8, 12, 16, 24):
        bad = bytearray(raw[:512])
        bad[at] ^= 1
        seed("ckpt", "prologue-%d" % at, b"\xfe" + bad)


# ---- training -----------------------------------------------------------------

def make_state():
    def put(name, **more):
        seed("state", name, pack(dict(c.STATE_NEW, **more)))
    put("new")
    settings = {"accum": 2, "activations": "plain", "batch": 3, "beta1": 0.9, "beta2": 0.999,
                "clip": 1.0, "clip_mode": "prev", "decay": 0, "eps": 1e-8, "loss": "ce",
                "lr": 1e-3, "min_lr": 0.0, "order": "shuffle", "schedule": "wsd", "seed": 7,
                "seq_len": 4, "spike": 3.0, "total_steps": 100, "train_last_layers": 1,
                "warmup": 5, "weight_decay": 0.1}
    sampler = {"data": bytes(16), "epoch": 4, "index": 2}
    put("all", grad_norm=0.5, routes={"gemm": "cpu f32 1"}, sampler=sampler,
        settings=settings, skips=1, step=9, t=8, tokenizer=bytes(32),
        spike={"loss": [1.0, 2.0], "norm": [0.5, 0.25]})
    put("file-order", settings=dict(settings, order="file", schedule="cosine"),
        sampler=dict(sampler, epoch=(1 << 62) - 1, index=5))
    put("quant-from", settings=dict(settings, quant_from=0.5))
    put("window", spike={"loss": 128 * [1.0], "norm": 128 * [1.0]}, step=(1 << 32) - 1)
    put("last-epoch", sampler=dict(sampler, epoch=(1 << 64) - 1))


def make_history():
    def put(name, n, *before):
        spans = list(before) + [
            {"data": {}, "first": k + 1, "last": k + 1, "route": "r",
             "settings": {"lr": k}} for k in range(n)]
        o = {"inputs": [], "options": {"spans": spans}, "tool": "trainstep"}
        seed("history", name, json.dumps(o, separators=(",", ":")).encode())
    put("few", 3)
    put("many", 130)
    put("older", 128, {"count": 3, "digest": "0f" * 16, "first": 1, "last": 7})


# ---- model directories ------------------------------------------------------

def make_hf():
    where = {"a": "a.safetensors", "b": "a.safetensors", "c": "b.safetensors",
             "x.weight": "b.safetensors", "x.weight_scale": "b.safetensors",
             "x.weight_scale_2": "b.safetensors"}
    two = [k for k in where if where[k][0] == "a"]

    def index(names, total=23, **more):
        o = {"metadata": {"total_size": total}}
        o["weight_map"] = {k: where[k] for k in names}
        o.update(more)
        return json.dumps(o).encode()
    nibble = json.dumps({"format": "nibble-1", "config": None,
                         "provenance": {"tool": "x"}}).encode()
    seed("hf", "both", index(where))
    seed("hf", "one", index(two, 8))
    seed("hf", "none", b'{"weight_map":{}}')
    seed("hf", "total", index(where, 20, metadata={"a": [1], "total_size": 1}))
    seed("hf", "extra", index(list(where)[1:]))
    seed("hf", "missing", b'{"weight_map":{"a":"no.safetensors"}}')
    seed("hf", "escape", b'{"weight_map":{"a":"../a.safetensors"}}')
    seed("hf", "beside", index(where) + b"\0" + nibble + b'\0{"a":1}')
    seed("hf", "map-twice", index(two, 8)[:-1] + b',"weight_map":{}}')
    seed("hf", "single", b"\0\0{}\0" + c.st_bytes([t("a", "u8", (3,))]))
    seed("hf", "foreign", index(two, 8) + b"\0[]\0 {} ")


# ---- the rest ---------------------------------------------------------------

def make_object():
    dat = bytes([1, 1, 0x61, 0, 1, 3, 7, 8, 9])     # as in object.c
    good = {"format": "nibble-1", "bytes": len(dat),
            "index_xxh3": xxh3_128(dat[:6]).hex(), "xxh3": xxh3_128(dat).hex(),
            "config": {"a": 1}, "provenance": {"tool": "x", "inputs": []}}

    def put(name, **changes):
        o = dict(good)
        o.update(changes)
        seed("object", name, json.dumps(o).encode() + b"\n")
    put("fits")
    put("null", config=None, provenance=None)
    put("stale", bytes=10)
    put("damaged", xxh3="0" * 32)
    put("foreign", format="nibble-2")
    seed("object", "config", b'{"format":"nibble-1"}\0{"a":1} ')
    seed("object", "no-config", b"\0[]")
    put("nested", more={"x": [{}, [], "\u202e"]}, config=[1])


def make_json():
    for i, text in enumerate((
            '{"a":[1,-2.5e+10,true,false,null,{"b":{}}],"":"\\u0000\\n"}',
            ' [ "\\ud83d\\ude00" , "\u00e9\U0001f600" , [ [ ] ] ] ',
            '"\\"\\\\\\/\\b\\f\\n\\r\\t"', "-0.0E-0", "1e999", "[" * 40 + "]" * 40,
            '{"k":"v","k":1,"l":[{"m":[]}]}')):
        seed("json", "%d" % i, text.encode())


def make_mp():
    for i, v in enumerate((
            {"a": 1, "b": [None, True, False, -1, -33, -1000, -1 << 40],
             "c": {"d": b"\0\1", "e": "\u00e9"}},
            [127, 128, 255, 256, 65535, 65536, 1 << 32, (1 << 64) - 1],
            ["x" * 31, "x" * 32, b"y" * 3, 1.5, float("inf")],
            {"%02d" % k: k for k in range(17)}, [0] * 16)):
        seed("mp", "%d" % i, pack(v))
    seed("mp", "deep", b"\x91" * 15 + b"\x81\xa1k\x00")


def make_config():
    with open(os.path.join(HERE, "..", "vectors",
                           "qwen3-4b-config.json"), "rb") as f:
        seed("config", "4b", f.read())
    tiny = json.loads(c.tiny_config())
    seed("config", "tiny", json.dumps(tiny).encode())
    del tiny["rope_theta"], tiny["torch_dtype"], tiny["head_dim"]
    del tiny["tie_word_embeddings"]
    tiny.update(rope_parameters={"rope_type": "default", "rope_theta": 1e6},
                dtype="float32", layer_types=["full_attention"] * 2)
    seed("config", "newer", json.dumps(tiny).encode())


def make_request():
    for name, o in (
            ("prompt", {"id": "a", "prompt": "Hello", "max_tokens": 5, "stop": ["x", "\n"]}),
            ("ids", {"id": 1.5, "ids": [1, 2, 99], "temperature": 0.7, "top_p": 0.9,
                     "top_k": 40, "seed": 4294967295, "stop": None}),
            ("messages", {"messages": [{"role": "system", "content": ""},
                                       {"role": "user", "content": "\u4f60", "time": [1],
                                        "tool_calls": []}]}),
            ("unknown", {"temprature": 1, "id": "behind"}),
            ("twice", {"prompt": "x", "ids": [100]})):
        seed("request", name, json.dumps(o).encode())


def main(argv):
    global OUT
    if len(argv) > 1:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    if argv:
        OUT = argv[0]
    for make in (make_dat, make_safetensors, make_gguf, make_ckpt, make_state, make_history,
                 make_hf, make_object, make_json, make_mp, make_config, make_request):
        make()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
