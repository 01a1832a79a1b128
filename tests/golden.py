#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains golden models through the programs and compares with what float64 says.

usage: golden.py [--device NAME] [--compute TYPE] DIR...
       golden.py [--device NAME] [--compute TYPE] --distill TEACHER DIR

Each DIR has config.json, model.safetensors and expect.safetensors: ids and mask, loss,
logits, gradients (grad.NAME), five AdamW steps (step.loss, step.grad_norm, step5.NAME:
lr 1e-3, 0.9/0.999/1e-8, weight decay 0.1 on matrices, clip 1), the same under ste_max. and
ste_torchao. for projections that are quantized straight through, and greedy tokens.
TEACHER has teacher.safetensors, of the shape of DIR's model, and expect-distill.safetensors:
ids and mask; loss, cross-entropy and KL, gradients and three steps' losses of the model of
DIR that learns from it: kl. (a share of 1, temperature 1), mix. (0.5 and 2), ste_max. (1 and
1 with projections quantized).
Prints the relative error of each; exit 1 if one is too large.  What is right in bf16 is
some 2^-8 for each rounding of an activation: its limits are wider; on the CPU, which rounds
operands of products only, they are three times what is found for the models that there are.

Environment: NIBBLE_BIN (default ../bin beside this script)."""
import array
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.environ.get("NIBBLE_BIN") or os.path.join(HERE, "..", "bin")
WHERE = ["--device", "cpu"]
BF16 = False
STEP = ["--order", "file", "--lr", "1e-3", "--weight-decay", "0.1", "--clip", "1"]
CODES = {"F32": "f", "F64": "d", "I32": "i", "I64": "q", "U8": "B", "BOOL": "B"}


class Tensors:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.raw = f.read()
        n = struct.unpack_from("<Q", self.raw)[0]
        self.head = json.loads(self.raw[8:8 + n])
        self.base = 8 + n

    def names(self):
        return [k for k in self.head if k != "__metadata__"]

    def shape(self, name):
        return self.head[name]["shape"]

    def __getitem__(self, name):
        t = self.head[name]
        a, b = t["data_offsets"]
        return array.array(CODES[t["dtype"]], self.raw[self.base + a:self.base + b])


def relative(a, b):
    off = math.fsum((x - y) ** 2 for x, y in zip(a, b))
    size = math.fsum(y * y for y in b)
    return math.sqrt(off / size) if size else math.sqrt(off)


def tool(name, *args, **kw):
    p = subprocess.run([os.path.join(BIN, name), *args], stdout=subprocess.PIPE,
                       check=True, **kw)
    return p.stdout.decode()


class Check:
    def __init__(self, what):
        self.what, self.bad, self.words = what, 0, []

    def close(self, name, off, limit, bf16=None, on_cpu=None):
        if BF16 and bf16 is not None:
            limit = on_cpu if on_cpu is not None and WHERE[1] == "cpu" else bf16
        good = off <= limit
        self.bad += not good
        self.words.append("%s %.1e%s" % (name, off, "" if good else " (above %g)" % limit))

    def end(self):
        print("%s: %s" % (self.what, ", ".join(self.words)))
        return self.bad


def samples(expect, path):
    rows, length = expect.shape("ids")
    ids, mask = expect["ids"], expect["mask"]
    with open(path, "w") as f:
        for r in range(rows):
            at = slice(r * length, (r + 1) * length)
            f.write(json.dumps({"ids": list(ids[at]), "mask": [int(m) for m in mask[at]]}) + "\n")
    return rows, length


def train(where, model, expect, variant):
    """One variant: the first step's dump, then five steps."""
    quant = variant.split("_")[1] if variant else "none"
    prefix = variant + "." if variant else ""
    c = Check("%s, %s" % (os.path.basename(model), quant))
    w = lambda leaf: os.path.join(where, leaf)
    rows, length = samples(expect, w("ids"))
    tool("tokenize", "-q", "-f", "--input", "ids", "-o", w("d.tok"), w("ids"))
    tool("datpack", "-q", "-f", "--to", "ckpt", "--master", "f32", "--moments", "f32",
         "--quant", quant, *(["--share-scale", "none"] if quant != "none" else []),
         "-o", w("m.ckpt"), os.path.join(model, "model.safetensors"))
    lines = tool("trainstep", "-q", "-f", "-n", "5", "-d", w("d.tok"), "--batch", str(rows),
                 "--dump", w("dump.safetensors"), *STEP, *WHERE, w("m.ckpt")).splitlines()[1:]
    dump = Tensors(w("dump.safetensors"))
    c.close("loss", relative(dump["loss"], expect[prefix + "loss"]), 2e-3 if variant else 1e-4,
            5e-3, 2e-3 if variant else 1e-3)
    # The last id of a sample is no input of ours.
    vocab = expect.shape("logits")[2]
    want = []
    for r in range(rows):
        at = r * length * vocab
        want.extend(expect[prefix + "logits"][at:at + (length - 1) * vocab])
    c.close("logits", relative(dump["logits"], want), 1e-4, 2e-2, 1e-2)
    worst = max(relative(dump[n], expect[prefix + n]) for n in dump.names()
                if n.startswith("grad."))
    c.close("gradients", worst, 1e-3, 5e-2, 3e-2)
    rows5 = [line.split("\t") for line in lines]
    c.close("5 losses", relative([float(r[1]) for r in rows5], expect[prefix + "step.loss"]), 1e-4,
            1e-2, 1e-2)
    c.close("5 norms", relative([float(r[4]) for r in rows5],
                                expect[prefix + "step.grad_norm"]), 1e-3, 2e-2, 1.5e-2)
    tool("datpack", "-q", "-f", "-o", w("w.safetensors"), w("m.ckpt"))
    trained = Tensors(w("w.safetensors"))
    before = Tensors(os.path.join(model, "model.safetensors"))
    # What five steps have done, so that weights that never moved do not pass.
    worst = 0
    for n in trained.names():
        want = expect[prefix + "step5." + n]
        moved = [x - y for x, y in zip(trained[n], before[n])]
        worst = max(worst, relative(moved, [x - y for x, y in zip(want, before[n])]))
    c.close("5 steps' way", worst, 1e-2, 0.5, 0.2)
    return c.end()


def distill(where, model, teacher, expect, variant):
    """The first step's dump and log, then two more steps."""
    quant = "max" if variant == "ste_max" else "none"
    mix = ["--distill", "0.5", "--distill-temp", "2"] if variant == "mix" else []
    c = Check("%s, a teacher, %s" % (os.path.basename(model), variant))
    w = lambda leaf: os.path.join(where, leaf)
    os.makedirs(w("teacher"), exist_ok=True)
    shutil.copy(os.path.join(teacher, "teacher.safetensors"), w("teacher/model.safetensors"))
    shutil.copy(os.path.join(model, "config.json"), w("teacher/config.json"))
    rows, _ = samples(expect, w("ids"))
    tool("tokenize", "-q", "-f", "--input", "ids", "-o", w("d.tok"), w("ids"))
    tool("datpack", "-q", "-f", "--to", "ckpt", "--master", "f32", "--moments", "f32",
         "--quant", quant, *(["--share-scale", "none"] if quant != "none" else []),
         "-o", w("m.ckpt"), os.path.join(model, "model.safetensors"))
    lines = tool("trainstep", "-q", "-f", "-n", "3", "-d", w("d.tok"), "--batch", str(rows),
                 "--order", "file", "--lr", "1e-3", "--dump", w("dump.safetensors"),
                 "--teacher", w("teacher"), "--log", w(variant + ".jsonl"), *mix, *WHERE,
                 w("m.ckpt")).splitlines()[1:]
    dump = Tensors(w("dump.safetensors"))
    loss, ce, kl = expect[variant + ".loss"]
    with open(w(variant + ".jsonl")) as f:
        log = json.loads(f.readline())
    c.close("loss", relative(dump["loss"], [loss]), 1e-4, 4e-2)
    c.close("ce", relative([log["ce"]], [ce]), 1e-4, 2e-3, 1e-3)
    c.close("kl", relative([log["kl"]], [kl]), 1e-4, 4e-2)
    worst = max(relative(dump[n], expect["%s.%s" % (variant, n)]) for n in dump.names()
                if n.startswith("grad."))
    c.close("gradients", worst, 1e-3, 5e-2, 3e-2)
    c.close("3 losses", relative([float(line.split("\t")[1]) for line in lines],
                                 expect[variant + ".step.loss"]), 1e-4, 8e-2)
    return c.end()


def greedy(where, model, expect):
    ids = list(expect["greedy.ids"])
    given, made = ids[:8], ids[8:]
    c = Check("%s, greedy" % os.path.basename(model))
    for extra in ([], ["--no-kv"], ["--prefill-chunk", "3"]):
        out = tool("generate", "-q", "--ids", "--ignore-eos", "-n", str(len(made)), "-p",
                   " ".join(map(str, given)), *extra, *WHERE, os.path.join(model, "model.safetensors"))
        got = list(map(int, out.split()))
        # Behind a tie in f32 everything may differ: count up to there.
        same = next((i for i, (a, b) in enumerate(zip(got, made)) if a != b), len(made))
        c.close("tokens that differ%s" % "".join(" " + e for e in extra),
                len(made) - same, 0, len(made))
    return c.end()


def main(argv):
    global BF16
    while argv and argv[0] in ("--device", "--compute") and len(argv) > 1:
        if argv[0] == "--device":
            WHERE[1] = argv[1]
        else:
            WHERE.extend(argv[:2])
            BF16 = argv[1] == "bf16"
        argv = argv[2:]
    if not argv:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    bad = 0
    if argv[0] == "--distill" and len(argv) == 3:
        teacher, model = argv[1:]
        expect = Tensors(os.path.join(teacher, "expect-distill.safetensors"))
        with tempfile.TemporaryDirectory() as where:
            for variant in "kl", "mix", "ste_max":
                bad += distill(where, model, teacher, expect, variant)
        return bad > 0
    for model in argv:
        expect = Tensors(os.path.join(model, "expect.safetensors"))
        with tempfile.TemporaryDirectory() as where:
            for variant in "", "ste_max", "ste_torchao":
                bad += train(where, model, expect, variant)
            bad += greedy(where, model, expect)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
