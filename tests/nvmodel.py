#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Inputs for the tests of nvquant and of the dialects of NVFP4, and judges of what
was made of them; standard library only.

usage: nvmodel.py make DIR                  the files that the tests know by name
       nvmodel.py vectors OUT.dat           tests/vectors/nvfp4.txt as tensors
       nvmodel.py check-vectors QUANT FILE  what was made of them (QUANT as there)
       nvmodel.py dialect KIND DIR REF.dat [untied|single]
                                            a directory of modelopt or
                                            compressed-tensors holds what REF holds
       nvmodel.py foreign-all DIR REF.dat   such directories, from another writer, each
                                            with one thing of its own (see CHANGES):
                                            DIR/KIND.CHANGE
       nvmodel.py changes                   their names
       nvmodel.py partly KIND DIR REF.dat   W4A4 with a quantized head, two modules plain
       nvmodel.py unchanged A B             two such directories hold the same
       nvmodel.py gguf FILE.gguf REF.dat [untied]
       nvmodel.py same A B [pairs] [zeros]  codes, scales and other tensors are equal;
                                            pairs: those of NVFP4 only; zeros: but
                                            for blocks of value 0
"""
import json
import math
import os
import random
import struct
import sys

sys.dont_write_bytecode = True

import containers as c
import nvfp4

T = c.Tensor
ZERO_SCALE = {"modelopt": 0x38, "compressed-tensors": 0x20, "gguf": 0}
PARTS = {"modelopt": (".weight", ".weight_scale", ".weight_scale_2"),
         "compressed-tensors": (".weight_packed", ".weight_scale",
                                ".weight_global_scale")}
HERE = os.path.dirname(os.path.abspath(__file__))


def f32(x):
    return struct.pack("<f", x)


# ---- models -----------------------------------------------------------------

def values(name, n):
    """Like weights; projections of a group differ in size, so that sharing shows."""
    rng = random.Random("nvmodel " + name)
    size = .02 * (5 if "k_proj" in name else 3 if "up_proj" in name else 1)
    if "norm" in name:
        return [1 + rng.gauss(0, .1) for _ in range(n)]
    out = [rng.gauss(0, size) for _ in range(n)]
    if name.endswith("0.self_attn.q_proj.weight"):
        out[:16] = [0.0] * 16                   # a block of zeros
        out[16:32] = [-0.0, 0.0] * 8
        out[32:48] = [v * 2.0 ** -16 for v in out[32:48]]   # a scale that underflows
        out[40] = .5                            # an outlier
    if name.endswith("1.mlp.down_proj.weight"):
        out = [0.0] * n                         # a tensor of zeros
        out[5] = -0.0
    return out


def model(dtype, head=False, cfg=c.TINY, own_head=False):
    """head: with a copy of the embedding, own_head: with another one."""
    out = []
    for name, shape in c.model_table(cfg, head or own_head):
        src = name
        if name == "lm_head.weight" and not own_head:
            src = "model.embed_tokens.weight"
        v = [nvfp4.f32(x) for x in values(src, c.numel(shape))]
        out.append(T(name, dtype, shape, nvfp4.store(dtype, v)))
    return out


def config(**more):
    return (json.dumps(dict(c.TINY, **more), indent=2, ensure_ascii=False) +
            "\n").encode()


def beside(path):
    """The files of a tokenizer and of generation, as far as names go."""
    for name in "tokenizer.json", "tokenizer_config.json", "generation_config.json":
        c.put(os.path.join(path, name), b'{"a": 1}\n')


GGUF_CONFIG = dict(c.TINY, hidden_size=64, intermediate_size=128, vocab_size=3200,
                   num_hidden_layers=1)


def make(d):
    os.makedirs(os.path.join(d, "conf"))
    os.chdir(d)
    c.put("conf/config.json", config())
    c.put("conf/untied.json", config(tie_word_embeddings=False))
    os.mkdir("parts")
    for dtype in "f16", "bf16", "f32":
        os.mkdir(dtype)     # with a configuration, but for parts of models
        c.put(dtype + "/m.dat", c.dat_bytes(model(dtype, True)))
        c.put(dtype + "/config.json", config())
        one = [t for t in model(dtype) if "layers.1" not in t.name]
        c.put("parts/%s.dat" % dtype, c.dat_bytes(one))
        c.put("parts/%s-k.dat" % dtype, c.dat_bytes(
            [t for t in one if "k_proj" in t.name]))
    for name, own in ("dir", False), ("untied", True):
        os.mkdir(name)
        c.put(name + "/config.json", config(tie_word_embeddings=not own))
        c.put(name + "/model.safetensors", c.st_bytes(
            model("bf16", False, own_head=own), {"format": "pt"}))
        beside(name)
    c.put("plain.safetensors", c.st_bytes(model("bf16"), {"format": "pt"}))
    os.mkdir("gguf")
    c.put("gguf/config.json", (json.dumps(GGUF_CONFIG) + "\n").encode())
    c.put("gguf/model.safetensors", c.st_bytes(model("bf16", cfg=GGUF_CONFIG),
                                               {"format": "pt"}))
    with open(os.path.join(HERE, "vectors", "tokenizer-small.json"), "rb") as f:
        c.put("gguf/tokenizer.json", f.read())


# ---- vectors ----------------------------------------------------------------

def vector_cases():
    """(index, name, source, T's bits, values' bytes, lines by quantizer) of the cases
    without square blocks and chance, which no option asks for."""
    out = []
    with open(os.path.join(HERE, "vectors", "nvfp4.txt")) as f:
        for line in f:
            word, *rest = line.split()
            if word == "case":
                lines = {}
                out.append([len(out), *rest[:2], int(rest[2], 16), None, lines])
                before = None
            elif word == "x":
                n = 2 * nvfp4.SIZE[out[-1][2]]
                h = rest[0]
                out[-1][4] = b"".join(bytes.fromhex(h[i:i + n])[::-1]
                                      for i in range(0, len(h), n))
            elif word[0] != "#":
                before = before if rest == ["="] else rest
                lines[word] = before
    return [v for v in out if "sweep" in v[5]]


def vector_names(i):
    return ["model.layers.%d.self_attn.%s_proj.weight" % (i, p) for p in "qk"]


def write_vectors(path):
    """q of a layer is a case, k holds its T: shared scales give T its say."""
    out = []
    for i, _, source, t, x, _ in vector_cases():
        q, k = vector_names(i)
        out.append(T(q, source, (1, len(x) // nvfp4.SIZE[source]), x))
        out.append(T(k, "f32", (1, 16), struct.pack("<I", t) + bytes(60)))
    c.put(path, c.dat_bytes(out))


def check_vectors(quant, path):
    got = {t.name: t.data for t in nvfp4.read_tensors(path)}
    n = 0
    for i, name, source, _, _, lines in vector_cases():
        q = vector_names(i)[0]
        scale2, scales, codes = lines[quant]
        c.need(got[q + ".scale"].hex() == scales and got[q + ".qdata"].hex() == codes,
               "%s %s %s: scales %s\nwant %s\ncodes %s\nwant %s", quant, name, source,
               got[q + ".scale"].hex(), scales, got[q + ".qdata"].hex(), codes)
        c.need((q + ".scale2" in got) == (scale2 != "-"), "%s: scale2", name)
        if scale2 != "-":
            c.need(got[q + ".scale2"] == struct.pack("<I", int(scale2, 16)),
                   "%s %s %s: scale2 %s, want %s", quant, name, source,
                   got[q + ".scale2"][::-1].hex(), scale2)
        n += 1
    c.need(n > 50, "%d cases", n)


# ---- directories of the dialects --------------------------------------------

def zero_blocks(kind, scales, codes):
    """formats.md X6."""
    codes = bytearray(codes)
    for i, s in enumerate(scales):
        if s == 0:
            codes[8 * i:8 * i + 8] = bytes(8)
    return bytes(s or ZERO_SCALE[kind] for s in scales), bytes(codes)


def reciprocal(x):
    return nvfp4.div(1.0, x)


def expected(kind, ref, head, single):
    """name -> (dtype, shape, bytes) of the directory of what REF.dat holds."""
    out = {}
    for t in nvfp4.pairs(nvfp4.read_tensors(ref)):
        if t.name == "lm_head.weight" and not head:
            continue
        if not t.parts:
            out[t.name] = (t.dtype, list(t.shape), t.data)
            continue
        scale2, scales, codes = t.parts
        scales, codes = zero_blocks(kind, scales, codes)
        r, k = t.shape
        x, names = t.name[:-7], PARTS[kind]
        c.need((scale2 is None) == single, "%s: levels", t.name)
        s2 = 1.0 if scale2 is None else scale2
        if kind == "compressed-tensors":
            s2 = reciprocal(s2)
        out[x + names[0]] = ("u8", [r, k // 2], codes)
        out[x + names[1]] = ("f8_e4m3", [r, k // 16], scales)
        out[x + names[2]] = ("f32", [] if kind == "modelopt" else [1], f32(s2))
    return out


def load_json(path):
    with open(path, "rb") as f:
        return c.json_strict(f.read(), floats=True)


def check_quant_config(kind, path):
    """formats.md 5.2, weight-only."""
    conf = load_json(path + "/config.json")
    q = conf.pop("quantization_config")
    if kind == "modelopt":
        producer = q.pop("producer")
        c.need(isinstance(producer.get("name"), str), "producer %r", producer)
        ignore = ["lm_head", "model.embed_tokens"]
        c.need(q == {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4",
                     "ignore": ignore, "config_groups": {"group_0": {
                         "targets": ["Linear"], "weights": {
                             "dynamic": False, "num_bits": 4, "type": "float",
                             "group_size": 16}}}}, "quantization_config %r", q)
        h = load_json(path + "/hf_quant_config.json")
        c.need(h.pop("producer") == producer, "producers differ")
        c.need(h == {"quantization": {
            "quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
            "exclude_modules": ignore}}, "hf_quant_config.json %r", h)
    else:
        c.need(q == {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "version": "0.13.0", "kv_cache_scheme": None, "sparsity_config": {},
            "transform_config": {}, "global_compression_ratio": None,
            "config_groups": {"group_0": {
                "targets": ["Linear"], "format": "nvfp4-pack-quantized",
                "output_activations": None, "input_activations": None, "weights": {
                    "num_bits": 4, "type": "float", "strategy": "tensor_group",
                    "group_size": 16, "symmetric": True, "dynamic": False,
                    "scale_dtype": "torch.float8_e4m3fn",
                    "observer": "minmax"}}}}, "quantization_config %r", q)
        c.need(not os.path.exists(path + "/hf_quant_config.json"), "a stray file")
    return conf


def check_dialect(kind, path, ref, *how):
    """The whole directory."""
    head, single = "untied" in how, "single" in how
    conf = check_quant_config(kind, path)
    c.need(conf == dict(c.TINY, tie_word_embeddings=not head), "config.json %r", conf)
    got = {t.name: (t.dtype, list(t.shape), bytes(t.file[t.offset:t.offset + t.nbytes()]))
           for t in c.read_dir(path)}
    want = expected(kind, ref, head, single)
    if head:        # listed in ignore: bf16 as it was, not the pair of the .dat
        for part in PARTS[kind]:
            want.pop("lm_head" + part, None)
        t = model("bf16", own_head=True)[-1]
        want["lm_head.weight"] = ("bf16", list(t.shape), t.data)
    c.need(sorted(got) == sorted(want), "names %s", sorted(set(got) ^ set(want)))
    for n in want:
        c.need(got[n][:2] == want[n][:2], "%s: %s, want %s", n, got[n][:2], want[n][:2])
        c.need(got[n][2] == want[n][2], "%s: %s\nwant %s", n, got[n][2].hex(),
               want[n][2].hex())
    # X2: one tensor scale for what is fused.
    for n in got:
        for a, b in (("q_proj", "k_proj"), ("q_proj", "v_proj"), ("gate_proj", "up_proj")):
            if n.endswith(a + PARTS[kind][2]):
                c.need(got[n] == got[n.replace(a, b)], "%s: not shared", n)


# ---- another writer's directories, good and bad ------------------------------

def plain_config(kind):
    """As other programs write it: W4A16, or W4A4 with input scales."""
    weights = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    if kind == "modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
                "producer": {"name": "modelopt", "version": "0.47.0"},
                "config_groups": {"group_0": {
                    "targets": ["Linear"], "weights": weights,
                    "input_activations": dict(weights)}}}
    weights.update(strategy="tensor_group", symmetric=True,
                   scale_dtype="torch.float8_e4m3fn", observer="minmax", zp_dtype=None)
    return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {
                "targets": ["Linear"], "format": "nvfp4-pack-quantized",
                "output_activations": None, "weights": weights,
                "input_activations": None}}}


FIRST = "model.layers.0.self_attn.q_proj"


class Foreign:
    """A directory in the making: tensors by name, configurations."""

    def __init__(self, kind, ref):
        self.kind, self.names = kind, PARTS[kind]
        self.t = {n: T(n, d, s, b)
                  for n, (d, s, b) in expected(kind, ref, False, False).items()}
        self.q = plain_config(kind)
        self.hf = None
        self.modules = [n[:-len(self.names[0])] for n in self.t
                        if n.endswith(self.names[0]) and self.t[n].dtype == "u8"]

    def put(self, name, dtype, shape, data):
        self.t[name] = T(name, dtype, shape, data)

    def byte(self, part, at, value):
        """One byte of a plane of the first module."""
        t = self.t[FIRST + part]
        t.data = t.data[:at] + bytes([value]) + t.data[at + 1:]

    def scale(self, value, shape=None):
        name = FIRST + self.names[2]
        t = self.t[name]
        n = c.numel(t.shape if shape is None else shape)
        self.put(name, "f32", t.shape if shape is None else shape, f32(value) * n)

    def plain(self, x):
        """A module that is not quantized."""
        for part in self.names:
            del self.t[x + part]
        shape = dict(c.model_table(c.TINY))[x + ".weight"]
        self.put(x + ".weight", "bf16", shape, bytes(2 * c.numel(shape)))

    def group(self):
        return self.q["config_groups"]["group_0"]

    def write(self, path):
        os.mkdir(path)
        c.put(path + "/config.json", config(quantization_config=self.q))
        if self.kind == "modelopt":
            hf = self.hf or {"producer": {"name": "modelopt", "version": "0.47.0"},
                             "quantization": {"quant_algo": self.q.get("quant_algo"),
                                              "kv_cache_quant_algo": None,
                                              "group_size": 16,
                                              "exclude_modules": self.q["ignore"]}}
            c.put(path + "/hf_quant_config.json", json.dumps(hf).encode())
        c.put(path + "/model.safetensors", c.st_bytes(
            sorted(self.t.values(), key=lambda t: t.name), {"format": "pt"}))


def w4a4(o):
    for x in o.modules:
        if o.kind == "modelopt":
            o.put(x + ".input_scale", "f32", (), f32(.01))
        else:
            o.put(x + ".input_global_scale", "f32", (1,), f32(100))
    if o.kind == "compressed-tensors":
        o.group()["input_activations"] = dict(o.group()["weights"], dynamic="local",
                                              observer="static_minmax")


def kv_scales(o):
    for i in 0, 1:
        for p in "kv":
            o.put("model.layers.%d.self_attn.%s_proj.%s_scale" % (i, p, p), "f32", (),
                  f32(1))


def patterns(o):
    o.q["ignore"] = ["re:.*lm_head", "model.layers.1.mlp.down_proj"]
    o.plain("model.layers.1.mlp.down_proj")


def drop(part):
    def change(o):
        del o.t[FIRST + o.names[part]]
    return change


def ignore(*names):
    def change(o):
        o.q["ignore"] = ["lm_head", *names]
    return change


# What a reader takes (True), and what it must refuse (the words that must appear).
CHANGES = {
    "none": (None, True),
    "w4a4": (w4a4, True),
    "kv": (kv_scales, True),                # read and dropped, with a warning
    "patterns": (patterns, True),
    "ignored": (ignore(FIRST), "q_proj"),
    "ignored-pattern": (ignore("re:.*q_proj$"), "q_proj"),
    "plain-linear": (lambda o: o.plain(FIRST), "q_proj"),
    "scale-sign": (lambda o: o.byte(".weight_scale", 3, 0xB8), "q_proj"),
    "scale-nan": (lambda o: o.byte(".weight_scale", 3, 0x7F), "q_proj"),
    "scale-minus-zero": (lambda o: o.byte(".weight_scale", 3, 0x80), "q_proj"),
    "unknown": (lambda o: o.put(FIRST + ".weight_foo", "f32", (1,), f32(1)), "q_proj"),
    "zero-point": (lambda o: o.put(FIRST + ".weight_zero_point", "i8", (64, 2),
                                   bytes(128)), "q_proj"),
    "bias": (lambda o: o.put(FIRST + ".bias", "bf16", (64,), bytes(128)), "q_proj"),
    "no-scale": (drop(1), "q_proj"),
    "no-tensor-scale": (drop(2), "q_proj"),
    "tensor-scale-zero": (lambda o: o.scale(0.0), "q_proj"),
    "tensor-scale-nan": (lambda o: o.scale(math.nan), "q_proj"),
    "tensor-scale-inf": (lambda o: o.scale(math.inf), "q_proj"),
    "tensor-scale-minus": (lambda o: o.scale(-.001), "q_proj"),
    "tensor-scale-many": (lambda o: o.scale(.5, (64,)), "q_proj"),
    "scale-shape": (lambda o: o.put(FIRST + ".weight_scale", "f8_e4m3", (32, 4),
                                    bytes([0x38] * 128)), "q_proj"),
    "scale-dtype": (lambda o: o.put(FIRST + ".weight_scale", "bf16", (64, 2),
                                    bytes(256)), "q_proj"),
    "packed-shape": (lambda o: o.put(FIRST + o.names[0], "u8", (64, 24),
                                     bytes(64 * 24)), "q_proj"),
    "packed-dtype": (lambda o: o.put(FIRST + o.names[0], "i8", (64, 16),
                                     bytes(1024)), "q_proj"),
}


def foreign_all(path, ref):
    for kind in PARTS:
        for change, (do, _) in CHANGES.items():
            o = Foreign(kind, ref)
            if do:
                do(o)
            o.write(os.path.join(path, kind + "." + change))


PLAIN = ("model.layers.0.self_attn.o_proj", "model.layers.1.mlp.down_proj")


def partly(kind, path, ref):
    """What a calibrated model can be: W4A4, the head quantized, some modules not; the
    scales as the program makes them from bf16 magnitudes, another one each group."""
    rng = random.Random(1)
    o = Foreign(kind, ref)
    o.t = {n: T(n, d, s, b) for n, (d, s, b) in expected(kind, ref, True, False).items()}
    for x in PLAIN:
        o.plain(x)
    o.q["ignore"] = list(PLAIN)
    o.modules = [n[:-len(o.names[0])] for n in o.t
                 if n.endswith(o.names[0]) and o.t[n].dtype == "u8"]
    w4a4(o)
    groups = {}
    for x in o.modules:
        group = x.replace("k_proj", "q_proj").replace("v_proj", "q_proj")
        group = group.replace("up_proj", "gate_proj")
        for names, key in ((o.names[2], group), (".input_scale", x)):
            if kind != "modelopt":
                names = names.replace("input_scale", "input_global_scale")
            amax = nvfp4.load("bf16", struct.pack("<H", rng.randrange(0x3c00, 0x4700)))[0]
            v = groups.setdefault((names, key), nvfp4.div(amax, 2688.0) if
                                  kind == "modelopt" else nvfp4.div(2688.0, amax))
            o.t[x + names].data = f32(v)
    if kind == "compressed-tensors":        # whose reciprocal is that of 839.99994, too
        o.t["lm_head" + o.names[2]].data = f32(840.0)
    o.write(path)
    c.put(path + "/config.json", config(tie_word_embeddings=False,
                                        quantization_config=o.q))


def claims(path):
    q = load_json(path + "/config.json")["quantization_config"]
    g = q["config_groups"]["group_0"]
    ignore = set(q["ignore"]) - {"model.embed_tokens"}
    hf = path + "/hf_quant_config.json"
    if os.path.exists(hf):
        h = load_json(hf)["quantization"]
        c.need(h["quant_algo"] == q["quant_algo"] and
               h["exclude_modules"] == q["ignore"], "%s: %r", hf, h)
    return q["quant_method"], q.get("quant_algo"), ignore, g["input_activations"]


def unchanged(a, b):
    ca, cb = claims(a), claims(b)
    c.need(ca[:3] == cb[:3], "claims %r, %r", ca, cb)
    for k, v in cb[3].items():
        c.need(ca[3].get(k) == v, "input_activations: %s: %r", k, v)
    a, b = ({t.name: (t.dtype, list(t.shape),
                      bytes(t.file[t.offset:t.offset + t.nbytes()]))
             for t in c.read_dir(d)} for d in (a, b))
    c.need(sorted(a) == sorted(b), "names %s", sorted(set(a) ^ set(b)))
    for n in a:
        c.need(a[n] == b[n], "%s: %s, %s", n, a[n], b[n])


# ---- GGUF -------------------------------------------------------------------

GGUF_TYPES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q",
              11: "q", 12: "d"}
GGUF_DTYPES = {0: ("f32", 32), 1: ("f16", 16), 30: ("bf16", 16), 40: ("nvfp4", 4.5)}


class Gguf:
    """.kv: key -> (type, value), .tensors: name -> (dtype, shape, bytes)."""

    def __init__(self, path):
        self.m = c.map_file(path)
        self.cur = c.Cursor(self.m)
        c.need(self.cur.take(4, "magic") == b"GGUF", "magic")
        c.need(self.num("I") == 3, "version")
        n, k = self.num("Q"), self.num("Q")
        self.kv, self.tensors = {}, {}
        for _ in range(k):
            key = self.text()
            c.need(key not in self.kv, "key %s twice", key)
            kind = self.num("I")
            self.kv[key] = kind, self.value(kind)
        infos = []
        for _ in range(n):
            name = self.text()
            dims = [self.num("Q") for _ in range(self.num("I"))]
            infos.append((name, dims[::-1], self.num("I"), self.num("Q")))
        step = self.kv.get("general.alignment", (4, 32))[1]
        start = -(-self.cur.pos // step) * step
        c.need(not any(self.m[self.cur.pos:start]), "gap")
        end = start
        for name, shape, kind, offset in sorted(infos, key=lambda i: i[3]):
            c.need(name not in self.tensors, "%s twice", name)
            c.need(offset % step == 0, "%s: offset %d", name, offset)
            dtype, bits = GGUF_DTYPES[kind]
            size = c.numel(shape) * bits / 8
            c.need(size == int(size), "%s: size", name)
            at = start + offset
            c.need(at == -(-end // step) * step and not any(self.m[end:at]),
                   "%s begins at %d, after %d", name, at, end)
            end = at + int(size)
            c.need(end <= len(self.m), "%s ends beyond the file", name)
            self.tensors[name] = dtype, shape, bytes(self.m[at:end])
        c.need(end <= len(self.m) < end + step and not any(self.m[end:]),
               "file ends at %d, data at %d", len(self.m), end)

    def num(self, letter):
        return struct.unpack("<" + letter, self.cur.take(struct.calcsize(letter), "n"))[0]

    def text(self):
        return bytes(self.cur.take(self.num("Q"), "text")).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            of, n = self.num("I"), self.num("Q")
            return of, [self.value(of) for _ in range(n)]
        return self.num(GGUF_TYPES[kind])


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    x = name[:-7]
    if x.startswith("model.layers."):
        _, _, i, rest = x.split(".", 3)
        return "blk.%s.%s" % (i, GGUF_NAMES[rest])
    return GGUF_NAMES[x]


def gguf_blocks(scales, codes):
    """Rows of a multiple of 64 columns: 4 scales, then 4 times 8 bytes, byte j of
    which has element j low and j+8 high."""
    out = bytearray()
    for i in range(0, len(scales), 4):
        out += scales[i:i + 4]
        for b in range(i, i + 4):
            raw = codes[8 * b:8 * b + 8]
            q = [v for x in raw for v in (x & 15, x >> 4)]
            out += bytes(q[j] | q[j + 8] << 4 for j in range(8))
    return bytes(out)


def check_gguf(path, ref, *how):
    g, cfg = Gguf(path), GGUF_CONFIG
    want = {}
    for t in nvfp4.pairs(nvfp4.read_tensors(ref)):
        if t.name == "lm_head.weight" and "untied" not in how:
            continue
        n = gguf_name(t.name)
        if not t.parts:
            dtype, data = t.dtype, t.data
            if "norm" in n:
                dtype, data = "f32", nvfp4.store("f32", nvfp4.load(t.dtype, t.data))
            want[n + ".weight"] = dtype, list(t.shape), data
            continue
        scale2, *planes = t.parts
        want[n + ".weight"] = ("nvfp4", list(t.shape),
                               gguf_blocks(*zero_blocks("gguf", *planes)))
        want[n + ".scale"] = "f32", [1], f32(1.0 if scale2 is None else scale2)
    c.need(sorted(want) == sorted(g.tensors), "names %s",
           sorted(set(want) ^ set(g.tensors)))
    for n in want:
        c.need(g.tensors[n] == want[n], "%s: %s", n, g.tensors[n][:2])
    text = {"general.architecture": "qwen3", "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2"}
    for k, v in text.items():
        c.need(g.kv.get(k) == (8, v), "%s: %r", k, g.kv.get(k))
    numbers = {"block_count": cfg["num_hidden_layers"],
               "context_length": cfg["max_position_embeddings"],
               "embedding_length": cfg["hidden_size"],
               "feed_forward_length": cfg["intermediate_size"],
               "attention.head_count": cfg["num_attention_heads"],
               "attention.head_count_kv": cfg["num_key_value_heads"],
               "attention.key_length": cfg["head_dim"],
               "attention.value_length": cfg["head_dim"]}
    for k, v in numbers.items():
        c.need(g.kv.get("qwen3." + k) == (4, v), "%s: %r", k, g.kv.get("qwen3." + k))
    for k, v in (("attention.layer_norm_rms_epsilon", cfg["rms_norm_eps"]),
                 ("rope.freq_base", cfg["rope_theta"])):
        kind, got = g.kv["qwen3." + k]
        c.need(kind == 6 and f32(got) == f32(v), "%s: %r", k, got)
    c.need(g.kv["general.file_type"] == (4, 39), "general.file_type")
    nvfp4_names = [n for n, t in g.tensors.items() if t[0] == "nvfp4"]
    c.need(nvfp4_names and g.kv.get("general.tensor_extra.name") ==
           (9, (8, nvfp4_names)), "general.tensor_extra.name")
    c.need(g.kv.get("general.tensor_extra.prec_a4") ==
           (9, (7, [False] * len(nvfp4_names))), "general.tensor_extra.prec_a4")
    c.need(g.kv["general.quantization_version"] == (4, 2), "quantization_version")
    check_gguf_tokens(g, cfg["vocab_size"])


def check_gguf_tokens(g, size):
    tk = load_json(os.path.join(HERE, "vectors", "tokenizer-small.json"))
    kind, (of, tokens) = g.kv["tokenizer.ggml.tokens"]
    c.need(kind == 9 and of == 8 and len(tokens) == size, "%d tokens", len(tokens))
    _, (of, types) = g.kv["tokenizer.ggml.token_type"]
    c.need(of == 5 and len(types) == size, "token_type")
    added = {t["id"]: t for t in tk["added_tokens"]}
    for s, i in tk["model"]["vocab"].items():
        c.need(tokens[i] == s and types[i] == 1, "token %d: %r", i, tokens[i])
    for i, t in added.items():
        control = t["special"] or t["content"][:2] + t["content"][-2:] == "<||>"
        c.need(tokens[i] == t["content"] and types[i] == (3 if control else 4),
               "token %d: %r, type %d", i, tokens[i], types[i])
    c.need(types[tokens.index("<|fim_prefix|>")] == 3, "<|fim_prefix|>")
    c.need(types[tokens.index("<tool_call>")] == 4, "<tool_call>")
    for i in range(max(added) + 1, size):
        c.need(tokens[i] == "[PAD%d]" % i and types[i] == 5, "token %d: %r", i, tokens[i])
    merges = [m if isinstance(m, str) else " ".join(m) for m in tk["model"]["merges"]]
    c.need(g.kv["tokenizer.ggml.merges"] == (9, (8, merges)), "merges")
    by_text = {t["content"]: i for i, t in added.items()}
    c.need(g.kv["tokenizer.ggml.add_bos_token"] == (7, False), "add_bos_token")
    for key in "bos", "eos", "padding":
        c.need(g.kv["tokenizer.ggml.%s_token_id" % key][0] == 4, key)
    c.need(g.kv["tokenizer.ggml.padding_token_id"][1] == by_text["<|endoftext|>"],
           "padding_token_id")


# ---- equality ---------------------------------------------------------------

def plain_zeros(name, tensors):
    """Codes or scales of a pair; of blocks whose value is 0 they are 0."""
    base, part = name.rsplit(".", 1)
    codes, scales = tensors[base + ".qdata"].data, tensors[base + ".scale"].data
    codes = zero_blocks("gguf", scales, codes)[1]
    if part == "qdata":
        return codes
    return bytes(s if any(codes[8 * i:8 * i + 8]) else 0 for i, s in enumerate(scales))


def same(a, b, *how):
    """Codes and scales bit for bit, tensor scales within 2^-23 of each other."""
    a, b = ({t.name: t for t in nvfp4.read_tensors(p) if "pairs" not in how or
             t.name.endswith((".qdata", ".scale", ".scale2"))} for p in (a, b))
    c.need(a, "no tensors")
    c.need(sorted(a) == sorted(b), "names %s", sorted(set(a) ^ set(b)))
    for n, t in a.items():
        u = b[n]
        if "zeros" in how and n.endswith((".qdata", ".scale")):
            t.data, u.data = plain_zeros(n, a), plain_zeros(n, b)
        c.need((t.dtype, t.shape) == (u.dtype, u.shape), "%s: %s", n, u.shape)
        if n.endswith(".scale2"):
            x, y = (struct.unpack("<f", v.data)[0] for v in (t, u))
            c.need(abs(x - y) <= 2.0 ** -23 * x, "%s: %r %r", n, x, y)
        else:
            c.need(t.data == u.data, "%s differs", n)


COMMANDS = {"make": make, "vectors": write_vectors, "check-vectors": check_vectors,
            "dialect": check_dialect, "foreign-all": foreign_all, "gguf": check_gguf,
            "same": same, "partly": partly, "unchanged": unchanged,
            "changes": lambda: print("\n".join(
                "%s %s" % (k, "" if v[1] is True else v[1]) for k, v in CHANGES.items()))}


def main(argv):
    if not argv or argv[0] not in COMMANDS:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        COMMANDS[argv[0]](*argv[1:])
    except (c.Bad, OSError) as e:
        print("nvmodel.py: %s" % e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
