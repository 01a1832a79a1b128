#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Independent writer and strict reader of GGUF, version 3: the oracle of
tests/gguf.bats.  Written from the format's description, standard library
only, never from the programs.

usage: gguf_file.py make KIND OUT [SEED]   a small valid sample (see KINDS)
       gguf_file.py read FILE...           as containers.py read, with the
                                           names that the file has
       gguf_file.py kv FILE                key TAB type TAB value, a line each
       gguf_file.py check FILE CONFIG TOKENIZER [TEMPLATE]
                                           whether FILE tells of that model all
                                           that it must
       gguf_file.py self-test
"""
import hashlib
import json
import os
import re
import struct
import sys
import tempfile

sys.dont_write_bytecode = True      # no __pycache__ in the tree

import containers as c
from containers import Bad, Cursor, Tensor, need

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
VALUE = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i",
         F32: "<f", BOOL: "<?", U64: "<Q", I64: "<q", F64: "<d"}
TYPE_NAMES = ("u8 i8 u16 i16 u32 i32 f32 bool string array u64 i64 "
              "f64").split()

# number: datcat's name, elements of a block, its bytes
TYPES = {0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18),
         3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24),
         8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40), 10: ("q2_k", 256, 84),
         11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
         13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210),
         15: ("q8_k", 256, 292), 16: ("iq2_xxs", 256, 66),
         17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
         19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18),
         21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82),
         23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2),
         26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8),
         29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54),
         35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
         40: ("nvfp4_gguf", 64, 36), 41: ("q1_0", 128, 18)}
NUMBER = {name: t for t, (name, _, _) in TYPES.items()}


def payload_bytes(number, shape):
    name, block, size = TYPES[number]
    n = c.numel(shape)
    if block > 1:
        need(shape and shape[-1] % block == 0, "%s in rows of %s", name,
             list(shape))
    need(n // block * size <= c.MAX63, "shape %s overflows", list(shape))
    return n // block * size


# ---- writing ----------------------------------------------------------------

def string(s):
    b = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(b)) + b


def value(kind, v):
    if kind == STRING:
        return string(v)
    if kind == ARRAY:               # (type of the items, list of them)
        return struct.pack("<IQ", v[0], len(v[1])) + b"".join(
            value(v[0], x) for x in v[1])
    return struct.pack(VALUE[kind], v)


def pair(key, kind, v):
    return string(key) + struct.pack("<I", kind) + value(kind, v)


def info(name, shape, number, offset, rank=None):
    return (string(name) +
            struct.pack("<I", len(shape) if rank is None else rank) +
            b"".join(struct.pack("<Q", d) for d in reversed(shape)) +
            struct.pack("<IQ", number, offset))


def pad(n, alignment=32):
    return -n % alignment


def gguf_bytes(pairs, tensors, alignment=32, end_padded=True):
    """pairs: bytes made by pair(); tensors: (name, number, shape, payload)."""
    infos, data = b"", b""
    for i, (name, number, shape, payload) in enumerate(tensors):
        infos += info(name, shape, number, len(data))
        data += payload
        if end_padded or i + 1 < len(tensors):
            data += bytes(pad(len(data), alignment))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    head += b"".join(pairs) + infos
    return head + bytes(pad(len(head), alignment)) + data


# ---- names, and NVFP4 -------------------------------------------------------

LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm",
           "lm_head": "output"}


def their_name(ours):
    m = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.(weight|scale)", ours)
    if m:
        return "blk.%s.%s.%s" % (m[1], LAYER[m[2]], m[3])
    stem, suffix = ours.rsplit(".", 1)
    return OUTSIDE[stem] + "." + suffix


def codes_of(packed):
    """Our bytes to a list of codes: the even column is low."""
    return [n for b in packed for n in (b & 15, b >> 4)]


def nvfp4_blocks(packed, scales):
    """Our codes and scales as blocks of 64."""
    out = b""
    codes = codes_of(packed)
    for i in range(0, len(codes), 64):
        out += scales[i // 16:i // 16 + 4]
        for s in range(i, i + 64, 16):
            out += bytes(codes[s + j] | codes[s + j + 8] << 4
                         for j in range(8))
    return out


# ---- reading ----------------------------------------------------------------

class Reader(Cursor):
    def number(self, fmt, what):
        return struct.unpack(fmt, self.take(struct.calcsize(fmt), what))[0]

    def string(self, what):
        return self.take(self.number("<Q", what), what)

    def value(self, kind, depth=0):
        need(kind < 13, "value type %d", kind)
        if kind == STRING:
            return self.string("a string")
        if kind != ARRAY:
            if kind == BOOL:
                b = self.take(1, "a bool")
                need(b in (b"\0", b"\1"), "bool %r", b)
                return b == b"\1"
            return self.number(VALUE[kind], "a value")
        need(depth < 4, "nested too deep")
        kind, n = self.number("<I", "a type"), self.number("<Q", "a count")
        need(kind < 13, "value type %d", kind)
        least = 8 if kind == STRING else 12 if kind == ARRAY else \
            struct.calcsize(VALUE[kind])
        need(n <= (self.size - self.pos) // least, "array of %d", n)
        if kind not in (STRING, ARRAY, BOOL):
            self.take(n * least, "items")
            return (kind, n)        # numbers are not needed one by one
        if kind == BOOL:            # our reader does not look at those
            self.take(n, "items")
            return (kind, n)
        return (kind, [self.value(kind, depth + 1) for _ in range(n)])


def read_gguf(path):
    """(mapped bytes, tensors in file order, {key: (type, value)})"""
    m = c.map_file(path)
    r = Reader(m)
    need(r.take(4, "magic") == b"GGUF", "magic")
    need(r.number("<I", "version") == 3, "version")
    n, pairs = r.number("<Q", "tensors"), r.number("<Q", "pairs")
    need(pairs <= (r.size - r.pos) // 13, "%d pairs", pairs)
    kv = {}
    for _ in range(pairs):
        raw = r.string("a key")
        need(len(raw) <= 65535, "key of %d bytes", len(raw))
        key = c.check_name(raw)
        need(key not in kv, "key %r twice", key)
        kind = r.number("<I", "a type")
        kv[key] = (kind, r.value(kind))
    kind, alignment = kv.get("general.alignment", (U32, 32))
    need(kind == U32 and alignment >= 8 and alignment & alignment - 1 == 0,
         "alignment %r", alignment)
    need(n <= (r.size - r.pos) // 24, "%d tensors", n)
    rows = []
    for _ in range(n):
        name = c.check_name(r.string("a name"))
        rank = r.number("<I", "rank")
        need(rank <= 64, "rank %d", rank)
        shape = [r.number("<Q", "a dimension") for _ in range(rank)][::-1]
        number, begin = r.number("<I", "type"), r.number("<Q", "offset")
        need(number in TYPES, "type %d", number)
        need(begin % alignment == 0, "offset %d", begin)
        rows.append((begin, payload_bytes(number, shape), len(rows), name,
                     number, shape))
    need(len({row[3] for row in rows}) == len(rows), "a name twice")
    end_of_infos = r.pos
    data = r.pos + pad(r.pos, alignment)
    out, end = [], 0
    for begin, size, _, name, number, shape in sorted(rows):
        need(begin == end + pad(end, alignment), "%s begins at %d", name,
             begin)
        need(size == 0 or data + begin + size <= r.size, "%s is cut", name)
        gap = data + end if end else end_of_infos
        if size:
            need(not any(m[gap:data + begin]), "padding")
        out.append(Tensor(name, TYPES[number][0], shape,
                          offset=min(data + begin, r.size), file=m))
        out[-1].size = size
        end = begin + size if size else end
    last = data + end if end else end_of_infos
    need(r.size in (last, data + end + pad(end, alignment)),
         "%d bytes after the last tensor", r.size - last)
    need(not any(m[last:]), "padding at the end")
    return m, out, kv


# ---- samples ----------------------------------------------------------------

MODEL = dict(c.TINY, hidden_size=64, intermediate_size=128, head_dim=32,
             vocab_size=320)
EVERY_VALUE = [
    (U8, 200), (I8, -100), (U16, 60000), (I16, -30000), (U32, 4000000000),
    (I32, -2000000000), (F32, 0.1), (BOOL, True), (STRING, "é\n\"\x1b"),
    (U64, (1 << 64) - 1), (I64, -(1 << 63)), (F64, 1e-300), (STRING, ""),
    (F32, float("nan")), (F64, float("-inf")), (STRING, "x" * 70000),
    (ARRAY, (STRING, ["a", "", "b" * 100])), (ARRAY, (U8, [])),
    (ARRAY, (I32, list(range(50)))),
    (ARRAY, (ARRAY, [(U8, [1]), (ARRAY, [(STRING, ["x"]), (F64, [])])]))]


def model_pairs(config, more=()):
    k = config
    rows = [("block_count", k["num_hidden_layers"]),
            ("context_length", k["max_position_embeddings"]),
            ("embedding_length", k["hidden_size"]),
            ("feed_forward_length", k["intermediate_size"]),
            ("attention.head_count", k["num_attention_heads"]),
            ("attention.head_count_kv", k["num_key_value_heads"]),
            ("attention.key_length", k["head_dim"]),
            ("attention.value_length", k["head_dim"])]
    out = [pair("general.architecture", STRING, "qwen3")]
    out += [pair("qwen3." + key, U32, v) for key, v in rows]
    out += [pair("qwen3.attention.layer_norm_rms_epsilon", F32,
                 k["rms_norm_eps"]),
            pair("qwen3.rope.freq_base", F32, k["rope_theta"]),
            pair("tokenizer.ggml.eos_token_id", U32, 2),
            pair("tokenizer.ggml.bos_token_id", U32, 1)]
    return out + list(more)


def is_projection(name):
    return "_proj." in name


def model_planes(seed, head=False):
    """(name, shape, codes, scales, tensor scale) of a projection; of others
    (name, shape, f32 payload, None, None)."""
    for name, shape in c.model_table(MODEL, head):
        n = c.numel(shape)
        if not is_projection(name):
            yield (name, shape, c.exact_floats("f32", (seed, name), n), None,
                   None)
            continue
        scales = bytes(b % 0x7F for b in c.noise((seed, name, "s"), n // 16))
        yield (name, shape, c.noise((seed, name), n // 2), scales,
               0.25 + shape[0] / 1024)


def bf16(f32):
    return b"".join(f32[i + 2:i + 4] for i in range(0, len(f32), 4))


def make_nvfp4(path, seed, head=False):
    tensors = []
    for name, shape, a, scales, scale2 in model_planes(seed, head):
        theirs = their_name(name)
        if scales is None:
            norm = len(shape) == 1
            tensors.append((theirs, NUMBER["f32" if norm else "bf16"], shape,
                            a if norm else bf16(a)))
            continue
        tensors.append((theirs, 40, shape, nvfp4_blocks(a, scales)))
        tensors.append((theirs[:-6] + "scale", 0, (1,),
                        struct.pack("<f", scale2)))
    c.put(path, gguf_bytes(model_pairs(MODEL), tensors))


def make_nvfp4_dat(path, seed):
    """The same numbers, as a .dat of ours."""
    out = []
    for name, shape, a, scales, scale2 in model_planes(seed):
        if scales is None:
            dtype = "f32" if len(shape) == 1 else "bf16"
            out.append(Tensor(name, dtype, shape,
                              a if dtype == "f32" else bf16(a)))
            continue
        rows, cols = shape
        out += [Tensor(name + ".qdata", "u8", (rows, cols // 2), a),
                Tensor(name + ".scale", "f8_e4m3", (rows, cols // 16), scales),
                Tensor(name + ".scale2", "f32", (1,),
                       struct.pack("<f", scale2))]
    c.put(path, c.dat_bytes(out))


def make_model(path, seed):
    """bf16, norms too, as it is made by nobody: for conversions."""
    c.put(path, gguf_bytes(model_pairs(MODEL), [
        (their_name(n), 30, s, c.exact_floats("bf16", (seed, n), c.numel(s)))
        for n, s in c.model_table(MODEL)]))


def make_every(path, seed):
    """Every type of value and of tensor, names that hurt, odd shapes."""
    pairs = [pair("k%d.%s" % (i, "é\x1b\n"), *kv)
             for i, kv in enumerate(EVERY_VALUE)]
    pairs.append(pair("general.alignment", U32, 64))
    tensors = []
    for number, (name, block, _) in TYPES.items():
        for shape in ((3, block), (2, 0, 2 * block), (5 * block,)):
            data = c.noise((seed, name, shape), payload_bytes(number, shape))
            if number == 40:        # no scale with a sign
                data = bytes(b % 0x7F for b in data)
            tensors.append(("%s.%d" % (name, len(shape)), number, shape,
                            data))
    tensors += [("scalar", 0, (), b"abcd"), ("rank64", 24, (1,) * 63 + (3,),
                                             b"abc")]
    tensors += [(name, 24, (i + 1,), c.noise((seed, name), i + 1))
                for i, name in enumerate(c.UNICODE)]
    c.put(path, gguf_bytes(pairs, tensors, 64))


def make_small(path, seed):
    """For tests at every byte: nothing is padded at the end."""
    pairs = [pair("a", U8, 1), pair("general.name", STRING, "層"),
             pair("t", ARRAY, (STRING, ["x", "yz"])), pair("f", BOOL, True)]
    tensors = [("a.weight", 1, (3, 5), c.noise((seed, "a"), 30)),
               ("層", 27, (), c.noise((seed, "b"), 8)),
               ("none", 24, (0, 9), b""),
               ("n.weight", 40, (2, 64), bytes(
                   b % 0x7F for b in c.noise((seed, "n"), 72))),
               ("c", 24, (200,), c.noise((seed, "c"), 200))]
    c.put(path, gguf_bytes(pairs, tensors, end_padded=False))


def make_vocab_config(path, _):
    """For the small tokenizer of tests/vectors."""
    c.put(path, json.dumps(dict(MODEL, vocab_size=3104), indent=2).encode())


KINDS = {"gguf": make_every, "small-gguf": make_small,
         "model-gguf": make_model, "nvfp4-gguf": make_nvfp4,
         "untied-gguf": lambda p, s: make_nvfp4(p, s, True),
         "nvfp4-dat": make_nvfp4_dat,
         "vocab-config": make_vocab_config,
         "config": lambda p, _: c.put(p, json.dumps(MODEL, indent=2).encode())}


# ---- judging what our writer wrote ------------------------------------------

def escape(name):
    """As datcat shows it: containers.py leaves bidi controls alone."""
    return re.sub("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]",
                  lambda m: "".join("\\x%02x" % b for b in m[0].encode()),
                  c.escape(name))


def shown(kind, v):
    if kind == ARRAY:
        n = v[1] if isinstance(v[1], int) else len(v[1])
        return "%d of %s" % (n, TYPE_NAMES[v[0]])
    if kind == STRING:
        return escape(v.decode("utf-8", "replace"))
    return "%.9g" % v if kind == F32 else str(v)


def expect(kv, key, kind, want):
    need(key in kv, "no %s", key)
    need(kv[key][0] == kind, "%s: type %s", key, TYPE_NAMES[kv[key][0]])
    have = kv[key][1]
    if kind == STRING:
        have = have.decode()
    if kind == F32:
        want = struct.unpack("<f", struct.pack("<f", want))[0]
    need(have == want, "%s: %r, expected %r", key, have, want)


def array_bytes(path, key):
    """Items of an array of i32, which the reader passes over."""
    with open(path, "rb") as f:
        m = f.read()
    at = m.index(string(key)) + len(string(key))
    kind, item, n = struct.unpack_from("<IIQ", m, at)
    need(kind == ARRAY and item == I32, "%s: types %d, %d", key, kind, item)
    return list(struct.unpack_from("<%di" % n, m, at + 16))


def check_vocab(path, kv, vocab_size, tokenizer, config):
    model = tokenizer["model"]
    tokens = {i: t for t, i in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, 1)
    for a in tokenizer["added_tokens"]:
        tokens[a["id"]] = a["content"]
        spelt = a["content"].startswith("<|") and a["content"].endswith("|>")
        kinds[a["id"]] = 3 if a["special"] or spelt else 4
    want = [tokens.get(i, "[PAD%d]" % i).encode() for i in range(vocab_size)]
    expect(kv, "tokenizer.ggml.tokens", ARRAY, (STRING, want))
    need(array_bytes(path, "tokenizer.ggml.token_type") ==
         [kinds.get(i, 5) for i in range(vocab_size)], "token_type")
    merges = [m if isinstance(m, str) else " ".join(m)
              for m in model["merges"]]
    expect(kv, "tokenizer.ggml.merges", ARRAY,
           (STRING, [m.encode() for m in merges]))
    expect(kv, "tokenizer.ggml.model", STRING, "gpt2")
    expect(kv, "tokenizer.ggml.pre", STRING, "qwen2")
    expect(kv, "tokenizer.ggml.add_bos_token", BOOL, False)
    by_text = {t: i for i, t in tokens.items()}
    end = by_text["<|endoftext|>"]
    eos = config.get("eos_token_id", by_text["<|im_end|>"])
    for name, i in (("eos", eos[0] if isinstance(eos, list) else eos),
                    ("bos", config.get("bos_token_id", end)),
                    ("padding", end)):
        expect(kv, "tokenizer.ggml.%s_token_id" % name, U32, i)


def check(path, config_path, tokenizer_path, template=None):
    _, tensors, kv = read_gguf(path)
    with open(config_path, encoding="utf-8") as f:
        config = json.load(f)
    with open(tokenizer_path, encoding="utf-8") as f:
        tokenizer = json.load(f)
    names = {t.name: t for t in tensors}
    table = c.model_table(config, not config.get("tie_word_embeddings"))
    scales = set()
    quantized = False
    for ours, shape in table:
        theirs = their_name(ours)
        t = names.get(theirs)
        need(t is not None, "no %s", theirs)
        need(t.shape == shape, "%s: shape %s", theirs, t.shape)
        if len(shape) == 1:
            need(t.dtype == "f32", "%s is %s", theirs, t.dtype)
        if t.dtype == "nvfp4_gguf":
            quantized = True
            need(is_projection(ours), "%s is nvfp4", theirs)
            scales.add(theirs[:-6] + "scale")
            s = names.get(theirs[:-6] + "scale")
            need(s is None or (s.dtype == "f32" and s.shape == (1,)),
                 "%s: its scale", theirs)
        else:
            need(t.dtype in ("f32", "f16", "bf16"), "%s is %s", theirs,
                 t.dtype)
    need(set(names) - scales == {their_name(n) for n, _ in table},
         "tensors: %s", sorted(set(names) - scales))
    order = [t.name for t in tensors if t.name not in scales]
    need(order == [their_name(n) for n, _ in table], "order")
    for p in model_pairs(config)[:11]:
        r = Reader(p)
        key = r.string("").decode()
        kind = r.number("<I", "")
        v = r.value(kind)
        expect(kv, key, kind, v.decode() if kind == STRING else v)
    types = {t.dtype for t in tensors if len(t.shape) == 2}
    expect(kv, "general.file_type", U32, FILE_TYPE if quantized else
           32 if "bf16" in types else 1 if "f16" in types else 0)
    expect(kv, "general.quantization_version", U32, 2)
    check_vocab(path, kv, config["vocab_size"], tokenizer, config)
    if template:
        with open(template, encoding="utf-8") as f:
            expect(kv, "tokenizer.chat_template", STRING, f.read())
    else:
        need("tokenizer.chat_template" not in kv, "a chat template")
    nibble = json.loads(kv["nibble.provenance"][1])
    need(nibble["format"] == "nibble-1" and nibble["config"] == config,
         "nibble.provenance: %r", nibble)


# What formats.md says of NVFP4.
FILE_TYPE = 39


def self_test():
    need(nvfp4_blocks(bytes.fromhex("00089121b243546d") * 4, b"\1\2\3\4") ==
         b"\1\2\3\4" + bytes.fromhex("20b038404159d162") * 4, "blocks")
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "x.gguf")
        for kind, make in KINDS.items():
            if not kind.endswith("gguf"):
                continue
            make(path, 1)
            need(read_gguf(path)[1], "%s reads nothing", kind)
        make_small(path, 1)
        with open(path, "rb") as f:
            good = f.read()
        for cut in range(len(good)):
            c.put(path, good[:cut])
            try:
                read_gguf(path)
            except Bad:
                continue
            raise Bad("cut at %d is read" % cut)
    return 0


def main(argv):
    if argv == ["self-test"]:
        return self_test()
    if len(argv) in (3, 4) and argv[0] == "make" and argv[1] in KINDS:
        KINDS[argv[1]](argv[2], int(argv[3]) if len(argv) == 4 else 1)
        return 0
    if len(argv) < 2 or argv[0] not in ("read", "kv", "check"):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        if argv[0] == "check":
            check(*argv[1:])
        elif argv[0] == "kv":
            for key, (kind, v) in read_gguf(argv[1])[2].items():
                print("%s\t%s\t%s" % (escape(key), TYPE_NAMES[kind],
                                      shown(kind, v)))
        else:
            for path in argv[1:]:
                m, tensors, _ = read_gguf(path)
                for t in tensors:
                    print("%s\t%s\t[%s]\t%d\t%s" % (
                        escape(t.name), t.dtype,
                        ",".join(map(str, t.shape)), t.size,
                        hashlib.sha256(m[t.offset:t.offset + t.size])
                        .hexdigest()))
    except (Bad, OSError) as e:
        print("gguf_file.py: %s: %s" % (argv[1], e), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(main(sys.argv[1:]))
