#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the runs of each family of models with the family's first.

  compare.py table|layers|top TOL_F32 TOL_BF16 RUNS/FAMILY.CONTAINER...

"table" prints a row a run: where its first layer is that is not equal, and the first that is
farther off than is allowed; the largest relative deviation of a layer, the largest mean of
absolute differences and the smallest cosine; the deviation of the logits, how many of the ten most likely first tokens are
the same ones in the same order, and whether that is what must be.  On the CPU all is equal
to the bit.  On another device deviations stay below the tolerance of its arithmetic, and
the most likely token is the same unless the two best are nearer than the deviation.  The
first member of each family is also compared with that of the next: values that are not the
same must be seen as such.  "layers" prints, for each run that is not equal, each layer's
deviation, mean absolute difference and cosine.  "top" prints, for each of these runs and for the
first of each family, the ten most likely first tokens, with their texts if TOKENIZER of the
environment is a tokenizer.json.
"""
import array
import json
import math
import os
import struct
import sys


def tensors(path):
    """The F32 tensors of a safetensors file, name: array."""
    with open(path, "rb") as f:
        data = f.read()
    (length,) = struct.unpack_from("<Q", data)
    found = {}
    for name, t in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            if t["dtype"] != "F32":
                sys.exit(f"{path}: {name}: want F32, found {t['dtype']}")
            found[name] = array.array("f", data[8 + length + begin:8 + length + end])
            if sys.byteorder == "big":
                found[name].byteswap()
    return found


def layer_number(name):
    return int(name.split(".")[1])


class Run:
    """Hidden states by layer, and logits."""

    def __init__(self, directory, way):
        hidden = tensors(os.path.join(directory, way + ".hidden"))
        self.layers = [hidden[n] for n in sorted(hidden, key=layer_number)]
        self.logits = tensors(os.path.join(directory, way + ".logits"))["logits"]

    def top(self, n):
        return sorted(range(len(self.logits)), key=lambda i: (-self.logits[i], i))[:n]


def deviation(a, b):
    """Norm of a - b over that of b; 0 only for equal bits."""
    if a.tobytes() == b.tobytes():
        return 0.0
    if len(a) != len(b):
        return math.inf
    size = math.sqrt(math.fsum(y * y for y in b))
    off = math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b)))
    # Bits may differ where values do not, as in 0 and -0: not equal, but not far.
    return max(off / size, sys.float_info.min) if size else math.inf


def mean_abs(a, b):
    """Mean of the absolute differences."""
    return math.fsum(abs(x - y) for x, y in zip(a, b)) / len(b) if len(a) == len(b) else math.inf


def cosine(a, b):
    """Of the angle between a and b; 1 for equal bits."""
    if a.tobytes() == b.tobytes():
        return 1.0
    sizes = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(y * y for y in b))
    return math.fsum(x * y for x, y in zip(a, b)) / sizes if sizes and len(a) == len(b) else 0.0


def compare(run, ref):
    """By layer, with the logits last: deviations, mean absolute differences, cosines."""
    pairs = [*zip(run.layers, ref.layers), (run.logits, ref.logits)]
    off, mean, cos = ([f(a, b) for a, b in pairs] for f in (deviation, mean_abs, cosine))
    if len(run.layers) != len(ref.layers):
        off.insert(-1, math.inf)
    return off, mean, cos


def first(off, allowed):
    """The first layer that is farther off than is allowed."""
    return next((str(i) for i, d in enumerate(off[:-1]) if not d <= allowed), "-")


def same_token(run, ref, off):
    """Is the first token the same, or a tie within what logits deviate?"""
    a, b = run.top(1)[0], ref.top(1)[0]
    size = math.sqrt(math.fsum(y * y for y in ref.logits) / len(ref.logits))
    return a == b or ref.logits[b] - ref.logits[a] <= 2 * off * size


def ways(directory):
    return sorted(f[:-len(".hidden")] for f in os.listdir(directory) if f.endswith(".hidden"))


def columns(way):
    device, second, third = (way.split(".") + ["-"])[:3]
    return (device, second, third, "f32") if device == "cpu" else (device, "-", "-", second)


def allowed(must):
    """The deviation of a layer that is no fault."""
    return float(must[1:]) if must.startswith("<") else 0.0


def as_must_be(must, run, ref, off):
    if must == "equal":
        return not any(off)
    if must == "other":
        return any(off)
    return all(d <= allowed(must) for d in off) and same_token(run, ref, off[-1])


def print_row(name, way, run, ref, must):
    off, mean, cos = compare(run, ref)
    same = sum(a == b for a, b in zip(run.top(10), ref.top(10)))
    print(*name, *columns(way), first(off, 0), first(off, allowed(must)), f"{max(off[:-1]):.3g}",
          f"{max(mean[:-1]):.3g}", f"{min(cos[:-1]):.9g}", f"{off[-1]:.3g}", same, must,
          "yes" if as_must_be(must, run, ref, off) else "NO", sep="\t")


def print_layers(name, way, run, ref, _):
    off, mean, cos = compare(run, ref)
    if any(off):
        for layer, d, m, c in zip([*range(len(off) - 1), "logits"], off, mean, cos):
            print(*name, *columns(way), layer, f"{d:.3g}", f"{m:.3g}", f"{c:.9g}", sep="\t")


def print_top(name, way, run, ref, _):
    if run.logits.tobytes() == ref.logits.tobytes() and run is not ref:
        return
    for i, token in enumerate(run.top(10)):
        print(*name, *columns(way), i + 1, token, text_of(token), f"{run.logits[token]:.9g}",
              f"{ref.logits[token]:.9g}", sep="\t")


def byte_of():
    """The byte that each character of a vocabulary stands for: GPT-2's alphabet."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in itself]
    return {**{chr(b): b for b in itself}, **{chr(256 + i): b for i, b in enumerate(others)}}


def read_texts(path):
    """Texts of tokens as JSON strings, which show spaces and hold no tab."""
    with open(path, encoding="utf-8") as f:
        t = json.load(f)
    byte = byte_of()
    found = {i: bytes(byte[c] for c in text).decode("utf-8", "replace")
             for text, i in t["model"]["vocab"].items()}
    found.update((a["id"], a["content"]) for a in t.get("added_tokens", []))
    return {i: json.dumps(text, ensure_ascii=False) for i, text in found.items()}


texts = {}


def text_of(token):
    path = os.environ.get("TOKENIZER", "")
    if not texts and os.path.isfile(path):
        texts.update(read_texts(path))
    return texts.get(token, "-")


def main():
    tables = {
        "table": (print_row, "first_off first_bad hidden_off mean_abs cosine logits_off top10 "
                             "must_be is_so"),
        "layers": (print_layers, "layer deviation mean_abs cosine"),
        "top": (print_top, "rank id text logit reference_logit"),
    }
    show, names = tables[sys.argv[1]]
    tolerance = {"f32": float(sys.argv[2]), "bf16": float(sys.argv[3])}
    families = {}
    for directory in sys.argv[4:]:
        family, container = os.path.basename(directory).split(".", 1)
        families.setdefault(family, []).append((container, directory))
    print(*f"family container device threads isa compute {names}".split(), sep="\t")
    measures = {}
    for family, members in families.items():
        _, directory = members[0]
        measure = next(w for w in ways(directory) if w.startswith("cpu."))
        measures[family] = Run(directory, measure)
        for container, directory in members:
            for way in ways(directory):
                must = "equal" if way.startswith("cpu.") else \
                    f"<{tolerance[columns(way)[3]]:g}"
                measured = (directory, way) == (members[0][1], measure)
                run = measures[family] if measured else Run(directory, way)
                show((family, container), way, run, measures[family], must)
    names = list(measures)
    for family, other in zip(names, names[1:]):
        if (family, other) == ("bf16", "f16"):
            continue  # a model may well be the same in both
        show((family, "control:" + other), "cpu.-.-", measures[other], measures[family], "other")


main()
