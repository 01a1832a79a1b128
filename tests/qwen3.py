#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Qwen3 once more, in plain Python and double precision, and the choice of tokens:
the oracle of generate.bats.  Written from the formulas alone; nothing of the
programs is used.

usage: qwen3.py config OUT [KEY=VALUE]...
                                   a small configuration, JSON values
       qwen3.py logits MODEL CONFIG FILE IDS...
                                   FILE's "logits" are those behind IDS, each with
                                   one more of its last tokens; says greedy ids
       qwen3.py layers MODEL CONFIG FILE IDS...
                                   FILE's hidden.<i> are those of IDS
       qwen3.py greedy MODEL CONFIG JSON IDS...
                                   what generate --json said of IDS: the most likely
                                   ids and their log-probabilities
       qwen3.py sample LOGITS JSON KEY=VALUE...
                                   the ids of JSON are those that temp, top_k, top_p,
                                   penalty, seed and prompt= (ids) choose by LOGITS
       qwen3.py score MODEL CONFIG TSV TOK
                                   what generate --score said of TOK
       qwen3.py kl LOGITS OTHER TSV TOK
                                   kl and top1 that --kl said, of two files
       qwen3.py put FILE NAME WHERE VALUE OUT
                                   FILE with one f32 of a tensor replaced
       qwen3.py slopes MODEL CONFIG DUMP TOK
                                   the loss and the gradients of --dump of a step of
                                   all samples of TOK: along some directions the slope
                                   is that of dual numbers
       qwen3.py loss MODEL CONFIG DUMP TOK
                                   the loss of --dump of a step of one pass of TOK, where
                                   products of the projections are of FP8: what they take in
                                   is E4M3, times a power of two for all tokens
MODEL is a .safetensors of f32, bf16 or f16.  With --activations max|native before all
that, what the seven projections take in is NVFP4, a tensor scale a token; slopes go
straight through.  With --activations static=FILE, a .safetensors of ModelOpt or
compressed-tensors, the tensor scales are those that it has for the inputs.
"""
import bisect
import json
import math
import os
import random
import struct
import sys

sys.dont_write_bytecode = True

SMALL = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
         "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6,
         "rope_theta": 5000000.0, "max_position_embeddings": 256,
         "torch_dtype": "float32", "tie_word_embeddings": True,
         "initializer_range": 0.2, "vocab_size": 97, "bos_token_id": 1,
         "eos_token_id": 2, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16}
FLT_MAX = (2 - 2.0 ** -23) * 2.0 ** 127
TOLERANCE = 2e-5   # of the largest logit: f32 against doubles


def need(cond, *what):
    if not cond:
        sys.exit(what[0] % what[1:] if len(what) > 1 else str(what[0]))


def to_f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


# ---- files ------------------------------------------------------------------

def read_tensors(path):
    """{name: (shape, dtype, bytes)} of a .safetensors."""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["shape"], v["dtype"],
                data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


def floats(dtype, raw):
    if dtype == "F32":
        return list(struct.unpack("<%df" % (len(raw) // 4), raw))
    if dtype == "F16":
        return list(struct.unpack("<%de" % (len(raw) // 2), raw))
    need(dtype == "BF16", "a tensor of %s", dtype)
    wide = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
    return list(struct.unpack("<%df" % (len(wide) // 4), wide))


def rows_of(tensor):
    shape, dtype, raw = tensor
    v = floats(dtype, raw)
    n = shape[-1]
    return [v[i:i + n] for i in range(0, len(v), n)] if len(shape) == 2 else v


# ---- activations in NVFP4 ---------------------------------------------------

GRID = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
SCALES = [m * 2.0 ** -9 for m in range(8)] + [
    (1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]


def nearest(x, values, away=False):
    """The nearest of two neighbours; a tie goes to the even place, or up."""
    i = min(max(bisect.bisect_left(values, x), 1), len(values) - 1)
    below, above = x - values[i - 1], values[i] - x
    if below == above:
        return i if away or i % 2 == 0 else i - 1
    return i - 1 if below < above else i


def quantized(x, how, given=None):
    """x as NVFP4: each step rounded to f32, as the quantizers do.  given: by max, with that in
    place of 2688 over the largest magnitude, in the order of vLLM's ref_nvfp4_quant."""
    x = [to_f32(v) for v in x]
    enc = dec = 1.0
    top = max(map(abs, x))
    if given:
        enc, dec = given, to_f32(1 / given)
    elif how == "max" and top > 0:
        enc = to_f32(2688 / top)
        dec = to_f32(1 / enc)
    out = []
    for at in range(0, len(x), 16):
        block = x[at:at + 16]
        amax = max(map(abs, block))
        if how == "max":
            want = to_f32(enc * to_f32(amax * to_f32(1 / 6))) if given else \
                to_f32(amax * to_f32(enc * to_f32(1 / 6)))
            s = SCALES[nearest(min(want, 448), SCALES)]
            each = to_f32(1 / to_f32(s * dec)) if s else FLT_MAX
            y = [to_f32(abs(v) * each) for v in block]
        else:
            s = SCALES[nearest(min(max(to_f32(amax / 6), 2.0 ** -16), 448), SCALES)]
            y = [to_f32(abs(v) / to_f32(s + to_f32(1e-12))) for v in block]
        out += [math.copysign(GRID[nearest(min(a, 6), GRID, how == "native")] * s * dec, v)
                for a, v in zip(y, block)]
    return out


# ---- activations in FP8 -----------------------------------------------------

PEAKS = {}      # of a projection: the largest magnitude that it takes in, of all tokens
SEEN = {}       # the same in this pass
CLIPPED = []    # what was above the largest number of E4M3


def in_fp8(x, name):
    SEEN[name] = max([SEEN.get(name, 0), *map(abs, x)])
    up = 2.0 ** math.floor(math.log2(448 / (PEAKS.get(name) or SEEN[name])))
    CLIPPED.extend(v for v in x if abs(v) * up > 448)
    return [math.copysign(SCALES[nearest(min(abs(v) * up, 448), SCALES)] / up, v) for v in x]


# ---- slopes -----------------------------------------------------------------

class Dual:
    """A number and how fast it changes along a direction."""
    __slots__ = ("v", "d")

    def __init__(self, v, d):
        self.v, self.d = v, d

    def __add__(self, o):
        return Dual(self.v + o.v, self.d + o.d) if isinstance(o, Dual) else Dual(self.v + o, self.d)

    def __sub__(self, o):
        return self + -o

    def __neg__(self):
        return Dual(-self.v, -self.d)

    def __mul__(self, o):
        if isinstance(o, Dual):
            return Dual(self.v * o.v, self.v * o.d + self.d * o.v)
        return Dual(self.v * o, self.d * o)

    def __truediv__(self, o):
        return self * (1 / o)

    def __rtruediv__(self, o):
        return Dual(o / self.v, -o * self.d / (self.v * self.v))

    def __gt__(self, o):
        return self.v > o.v

    def __lt__(self, o):
        return self.v < o.v

    __radd__, __rmul__ = __add__, __mul__


def lifted(f, slope):
    def g(x):
        return Dual(f(x.v), slope(x.v) * x.d) if isinstance(x, Dual) else f(x)
    return g


exp = lifted(math.exp, math.exp)
root = lifted(math.sqrt, lambda v: 0.5 / math.sqrt(v))
log = lifted(math.log, lambda v: 1 / v)


# ---- the model --------------------------------------------------------------

ACTIVATIONS = None
STATIC = {}     # of a projection: what its input is multiplied by


def read_static(path):
    for name, (_, dtype, raw) in read_tensors(path).items():
        x, _, kind = name.rpartition(".")
        if kind in ("input_scale", "input_global_scale"):
            v = floats(dtype, raw)[0]
            STATIC[x] = v if kind == "input_global_scale" else to_f32(1 / v)


def dot(a, b):
    return sum(map(lambda x, y: x * y, a, b))


def taken(x, name):
    """What the projection of that name takes in: the value of NVFP4, the slope of x."""
    if ACTIVATIONS is None:
        return x
    if ACTIVATIONS == "fp8":
        return in_fp8(x, name)
    if isinstance(x[0], Dual):
        return [Dual(v, d.d) for v, d in
                zip(quantized([d.v for d in x], ACTIVATIONS), x)]
    return quantized(x, ACTIVATIONS, STATIC[name] if STATIC else None)


def matvec(rows, x):
    return [dot(r, x) for r in rows]


class Model:
    def __init__(self, path, config):
        self.c = json.load(open(config))
        self.w = {k: rows_of(t) for k, t in read_tensors(path).items()}
        self.cache = [([], []) for _ in range(self.c["num_hidden_layers"])]
        self.position = 0

    def norm(self, x, gain):
        scale = 1 / root(dot(x, x) / len(x) + self.c["rms_norm_eps"])
        return [v * scale * g for v, g in zip(x, gain)]

    def turn(self, x):
        half = len(x) // 2
        out = list(x)
        for i in range(half):
            angle = self.position * self.c["rope_theta"] ** (-2 * i / len(x))
            c, s = math.cos(angle), math.sin(angle)
            out[i] = x[i] * c - x[i + half] * s
            out[i + half] = x[i + half] * c + x[i] * s
        return out

    def attend(self, layer, n):
        c, w = self.c, self.w
        p = "model.layers.%d.self_attn." % layer
        n = taken(n, p + "q_proj")
        d, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (matvec(w[p + x + "_proj.weight"], n) for x in "qkv")

        def split(x, gain=None):
            parts = [x[i:i + d] for i in range(0, len(x), d)]
            return [self.turn(self.norm(y, gain)) for y in parts] if gain else parts
        keys, values = self.cache[layer]
        keys.append(split(k, w[p + "k_norm.weight"]))
        values.append(split(v))
        out = []
        for h, mine in enumerate(split(q, w[p + "q_norm.weight"])):
            g = h // (heads // kv)
            score = [dot(mine, key[g]) / math.sqrt(d) for key in keys]
            most = max(score)
            e = [exp(s - most) for s in score]
            total = sum(e)
            out += [sum(a * value[g][i] for a, value in zip(e, values)) / total
                    for i in range(d)]
        return matvec(w[p + "o_proj.weight"], taken(out, p + "o_proj"))

    def feed(self, layer, n):
        p = "model.layers.%d.mlp." % layer
        n = taken(n, p + "gate_proj")
        gate, up = (matvec(self.w[p + x + "_proj.weight"], n) for x in ("gate", "up"))
        return matvec(self.w[p + "down_proj.weight"],
                      taken([g / (1 + exp(-g)) * u for g, u in zip(gate, up)],
                            p + "down_proj"))

    def step(self, token):
        """Logits behind one more token, and the hidden state after each block."""
        w = self.w
        h, hidden = list(w["model.embed_tokens.weight"][token]), []
        for i in range(self.c["num_hidden_layers"]):
            p = "model.layers.%d." % i
            n = self.norm(h, w[p + "input_layernorm.weight"])
            h = [a + b for a, b in zip(h, self.attend(i, n))]
            n = self.norm(h, w[p + "post_attention_layernorm.weight"])
            h = [a + b for a, b in zip(h, self.feed(i, n))]
            hidden.append(h)
        self.position += 1
        head = w.get("lm_head.weight") or w["model.embed_tokens.weight"]
        return matvec(head, self.norm(h, w["model.norm.weight"])), hidden


def near(got, want, what):
    scale = max(map(abs, want)) or 1
    need(len(got) == len(want), "%s: %d numbers, expected %d", what, len(got),
         len(want))
    for i, (a, b) in enumerate(zip(got, want)):
        need(abs(a - b) <= TOLERANCE * scale, "%s: number %d: %.9g, expected %.9g",
             what, i, a, b)


def best(x):
    return max(range(len(x)), key=lambda i: (x[i], -i))


def log_sum(x):
    most = max(x)
    if isinstance(most, Dual):
        return most + log(sum(exp(v - most) for v in x))
    return most + math.log(math.fsum(math.exp(v - most) for v in x))


# ---- what generate said -----------------------------------------------------

def check_logits(model, config, path, ids):
    m = Model(model, config)
    got = rows_of(read_tensors(path)["logits"])
    chosen = []
    for t in ids:
        logits, _ = m.step(t)
    for row in got:
        near(row, logits, "logits %d" % len(chosen))
        chosen.append(best(logits))
        logits, _ = m.step(chosen[-1])
    print(*chosen)


def check_layers(model, config, path, ids):
    m = Model(model, config)
    t = read_tensors(path)
    n = m.c["num_hidden_layers"]
    need(sorted(t) == sorted("hidden.%d" % i for i in range(n)), "names: %s", sorted(t))
    got = [rows_of(t["hidden.%d" % i]) for i in range(n)]
    for p, token in enumerate(ids):
        _, hidden = m.step(token)
        for i in range(n):
            need(len(got[i]) == len(ids), "hidden.%d: %d rows", i, len(got[i]))
            near(got[i][p], hidden[i], "hidden.%d, token %d" % (i, p))


def check_greedy(model, config, path, ids):
    m = Model(model, config)
    said = json.load(open(path))
    for t in ids:
        logits, _ = m.step(t)
    for i, (token, p) in enumerate(zip(said["ids"], said["logprobs"])):
        want = best(logits)
        need(token == want, "token %d: %d, expected %d", i, token, want)
        total = log_sum(logits)
        need(abs(p - (logits[want] - total)) < 1e-4, "token %d: %.9g", i, p)
        for j, x in enumerate(said.get("top_logprobs", [[]] * (i + 1))[i]):
            order = sorted(range(len(logits)), key=lambda k: (-logits[k], k))
            need(x["id"] == order[j], "token %d, %d best: %s", i, j, x)
            need(abs(x["logprob"] - (logits[order[j]] - total)) < 1e-4, "%s", x)
        logits, _ = m.step(token)
    need(len(said["logprobs"]) == len(said["ids"]), "logprobs")


# ---- sampling ---------------------------------------------------------------

def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xd2511f53 * c[0], 0xcd9e8d57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xffffffff,
             p0 >> 32 ^ c[3] ^ k[1], p0 & 0xffffffff]
        k = [(k[0] + 0x9e3779b9) & 0xffffffff, (k[1] + 0xbb67ae85) & 0xffffffff]
    return c


def choose(logits, seen, o, token, prompt=0):
    x = list(logits)
    for i in set(seen):
        x[i] = to_f32(x[i] * o["penalty"] if x[i] < 0 else x[i] / o["penalty"])
    if o["temp"] == 0:
        return best(x), 1
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if o["top_k"]:
        order = order[:int(o["top_k"])]
    weight = {i: math.exp((x[i] - x[order[0]]) / o["temp"]) for i in order}
    if o["top_p"] < 1:
        limit, kept = o["top_p"] * sum(weight.values()), []
        while not kept or sum(weight[i] for i in kept) < limit:
            kept.append(order[len(kept)])
        order = kept
    elif not o["top_k"] or o["top_k"] >= len(x):
        order = list(range(len(x)))
    w = philox((prompt & 0xffffffff, prompt >> 32, 0, 5), (int(o["seed"]), token))
    u = ((w[0] >> 5) * 2**26 + (w[1] >> 6)) / 2**53
    total = sum(weight[i] for i in order)
    at, margin = 0, 1
    for i in order:
        at += weight[i] / total
        margin = min(margin, abs(at - u))
        if at > u:
            return i, margin
    return order[-1], margin


def check_sample(path, said, options):
    o = {"temp": 1, "top_k": 0, "top_p": 1, "penalty": 1, "seed": 0}
    seen = []
    for x in options:
        key, value = x.split("=")
        if key == "prompt":
            seen = list(map(int, value.split()))
        else:
            o[key] = float(value)
    ids = json.load(open(said))["ids"]
    rows = rows_of(read_tensors(path)["logits"])
    need(len(rows) == len(ids), "%d logits, %d ids", len(rows), len(ids))
    for token, (row, got) in enumerate(zip(rows, ids)):
        want, margin = choose(row, seen, o, token)
        need(got == want or margin < 1e-12, "token %d: %d, expected %d", token, got,
             want)
        seen.append(got)
    print(len(set(ids)))


# ---- scores -----------------------------------------------------------------

def samples_of(path):
    from tok import read_tok
    _, samples, _ = read_tok(open(path, "rb").read())
    return samples


def targets_of(sample):
    """Positions whose next id is a target."""
    return [i - 1 for i in range(1, len(sample["ids"]))
            if sample["mask"][i] and i not in sample["starts"]]


def read_tsv(path):
    head, line = open(path).read().splitlines()
    return dict(zip(head.split("\t"), map(float, line.split("\t"))))


def check_score(model, config, tsv, tok):
    loss, tokens, n = [], 0, 0
    m = Model(model, config)
    for s in samples_of(tok):
        n += 1
        logits = []
        for i, t in enumerate(s["ids"][:-1]):
            if i in s["starts"]:
                m.cache = [([], []) for _ in m.cache]
                m.position = 0
            logits.append(m.step(t)[0])
        tokens += len(logits)
        loss += [log_sum(logits[i]) - logits[i][s["ids"][i + 1]]
                 for i in targets_of(s)]
    said, mean = read_tsv(tsv), math.fsum(loss) / len(loss)
    want = {"samples": n, "tokens": tokens, "targets": len(loss), "loss": mean,
            "perplexity": math.exp(mean)}
    for k, v in want.items():
        need(abs(said[k] - v) <= 1e-5 * v, "%s: %.9g, expected %.9g", k, said[k], v)


def check_kl(path, other, tsv, tok, limit="1e-6"):
    a, b = read_tensors(path), read_tensors(other)
    kl, loss, same = [], [], 0
    for n, s in enumerate(samples_of(tok)):
        p, q = rows_of(a["logits.%d" % n]), rows_of(b["logits.%d" % n])
        need(len(p) == len(s["ids"]) - 1, "logits.%d: %d rows", n, len(p))
        for i in targets_of(s):
            sp, sq = log_sum(p[i]), log_sum(q[i])
            kl.append(math.fsum(math.exp(x - sp) * ((x - sp) - (y - sq))
                                for x, y in zip(p[i], q[i])))
            same += best(p[i]) == best(q[i])
            loss.append(sp - p[i][s["ids"][i + 1]])
    said, limit = read_tsv(tsv), float(limit)
    mean = sum(loss) / len(loss)
    for name, want in (("kl", sum(kl) / len(kl)),
                       ("kl_p99", sorted(kl)[math.ceil(0.99 * len(kl)) - 1]),
                       ("reference_loss", mean), ("reference_perplexity", math.exp(mean))):
        need(abs(said[name] - want) < 1e-9 + limit * (want + (limit > 1e-6)),
             "%s: %.9g, expected %.9g", name, said[name], want)
    need(abs(said["top1"] - same / len(kl)) < 1e-8, "top1: %.9g", said["top1"])


# ---- gradients --------------------------------------------------------------

def mean_loss(m, samples):
    loss = []
    for s in samples:
        m.cache = [([], []) for _ in m.cache]
        m.position = 0
        logits = [m.step(t)[0] for t in s["ids"][:-1]]
        loss += [log_sum(logits[i]) - logits[i][s["ids"][i + 1]] for i in targets_of(s)]
    return sum(loss) * (1 / len(loss))


def check_slopes(model, config, dump, tok):
    m, samples, t = Model(model, config), samples_of(tok), read_tensors(dump)
    want = mean_loss(m, samples)
    need(abs(floats(*t["loss"][1:])[0] - want) <= 1e-5 * want, "loss: %.9g, expected %.9g",
         floats(*t["loss"][1:])[0], want)
    rng = random.Random(7)
    for name, rows in m.w.items():
        if "layers.0" not in name or "norm" in name:
            continue
        grad = rows_of(t["grad." + name])
        # Where the gradient is large, so that no slope is next to nothing.
        way = [[g * rng.uniform(0, 1e3) for g in row] for row in grad]
        m.w[name] = [[Dual(v, d) for v, d in zip(*r)] for r in zip(rows, way)]
        slope = mean_loss(m, samples)
        m.w[name] = rows
        got = sum(dot(g, d) for g, d in zip(grad, way))
        need(abs(got - slope.d) <= 2e-4 * abs(slope.d), "%s: slope %.9g, expected %.9g", name,
             got, slope.d)


def check_loss(model, config, dump, tok):
    global ACTIVATIONS
    m, samples = Model(model, config), samples_of(tok)
    said = floats(*read_tensors(dump)["loss"][1:])[0]
    plain, ACTIVATIONS, peaks = mean_loss(m, samples), "fp8", None
    while PEAKS != peaks:   # those of a layer are right when those of all before are
        peaks = dict(PEAKS)
        SEEN.clear()
        want = mean_loss(m, samples)
        PEAKS.update(SEEN)
    # A value between two numbers of E4M3 may be rounded to either.
    need(abs(said - want) <= abs(plain - want) / 20, "loss: %.9g, expected %.9g, unrounded %.9g",
         said, want, plain)


def operands(state, layers):
    """Largest magnitudes of a checkpoint's "fp8_amax": of each layer inputs, and gradients."""
    raw = bytes.fromhex(state["fp8_amax"])
    need(len(raw) == 32 * layers, "fp8_amax: %d bytes", len(raw))
    f = struct.unpack("<%df" % (8 * layers), raw)
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    return [{"model.layers.%d.%s" % (i, n): f[8 * i + first + k] for i in range(layers)
             for k, n in enumerate(names)} for first in (0, 4)]


def check_delayed(model, config, dump, tok, meta):
    """The loss of a step whose scales are those of what `meta`, datcat --meta of the checkpoint
    before it, has kept; prints how many inputs are clipped then."""
    global ACTIVATIONS
    m, samples = Model(model, config), samples_of(tok)
    said = floats(*read_tensors(dump)["loss"][1:])[0]
    state = json.load(open(meta))["meta"]["state"]
    inputs, _ = operands(state, m.c["num_hidden_layers"])
    plain, ACTIVATIONS = mean_loss(m, samples), "fp8"
    PEAKS.update((k, 2 * v) for k, v in inputs.items())
    CLIPPED.clear()
    want = mean_loss(m, samples)
    need(abs(said - want) <= abs(plain - want) / 20, "loss: %.9g, expected %.9g, unrounded %.9g",
         said, want, plain)
    print(len(CLIPPED))


# ---- small helpers ----------------------------------------------------------

def replace(path, name, where, value, out):
    data = bytearray(open(path, "rb").read())
    n = struct.unpack("<Q", data[:8])[0]
    begin = json.loads(data[8:8 + n])[name]["data_offsets"][0]
    struct.pack_into("<f", data, 8 + n + begin + 4 * int(where), float(value))
    open(out, "wb").write(data)


def make_config(out, pairs):
    c = dict(SMALL)
    for x in pairs:
        key, value = x.split("=", 1)
        c[key] = json.loads(value)
    json.dump(c, open(out, "w"))


def main(a):
    global ACTIVATIONS
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    if a[0] == "--activations":
        ACTIVATIONS, a = a[1], a[2:]
        if ACTIVATIONS.startswith("static="):
            read_static(ACTIVATIONS[7:])
            ACTIVATIONS = "max"
    what, rest = a[0], a[1:]
    if what in ("logits", "layers", "greedy"):
        check = {"logits": check_logits, "layers": check_layers,
                 "greedy": check_greedy}[what]
        check(*rest[:3], list(map(int, rest[3:])))
    elif what == "config":
        make_config(rest[0], rest[1:])
    elif what == "sample":
        check_sample(rest[0], rest[1], rest[2:])
    else:
        {"score": check_score, "kl": check_kl, "put": replace, "slopes": check_slopes,
         "loss": check_loss, "delayed": check_delayed}[what](*rest)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
