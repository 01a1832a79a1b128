#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares NVFP4 quantizers and loaders of other programs with ours.

usage: peers_nvfp4.py [-n ROWS] [-b BINDIR] [PEER]...

  te                  TransformerEngine's reference in Python: max, 4over6, 16x16
  torchao             NVFP4 without a tensor scale: torchao
  modelopt            NVFP4QTensor: max --variant modelopt
  compressed-tensors  nvfp4-pack-quantized
  gguf                block layout and reader of gguf-py

Without -b the peers are compared with tests/nvfp4.py, which nvquant has to equal
byte for byte (tests/nvquant.bats).  With -b BINDIR (bin/) the programs write files
of a small model, which the peers then read with loaders of their own.

A line a comparison, tab-separated: peer, version, what, blocks, block scales that
differ, codes that differ, "ok" or "DIFFERS", a remark.  Differences that are known
and explained by the peer's own order of operations are checked to be just those.
Exit 0: all as expected, 1: not, 77: none of the peers is installed.

Not part of "make test".  In an environment of its own, all on the CPU:

  python3 -m venv V && V/bin/pip install numpy safetensors torch torchao \\
      nvidia-modelopt compressed-tensors gguf transformers
  V/bin/pip install --no-deps transformer_engine
"""
import getopt
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import containers
import nvfp4
from nvfp4 import Many, Spec, np

PACKAGES = {"te": "transformer_engine", "torchao": "torchao",
            "modelopt": "nvidia-modelopt", "compressed-tensors": "compressed-tensors",
            "gguf": "gguf"}
TOLERANCE = 2.0 ** -22
failed = False


def version(peer):
    try:
        return importlib.metadata.version(PACKAGES[peer])
    except importlib.metadata.PackageNotFoundError:
        return None


def say(peer, what, blocks, scales, codes, ok, remark=""):
    global failed
    failed |= not ok
    print("\t".join(map(str, (peer, version(peer), what, blocks, scales, codes,
                              "ok" if ok else "DIFFERS", remark))), flush=True)


def nibbles(b):
    return np.stack([b & 15, b >> 4], axis=1).reshape(-1)


def as_bytes(t):
    """A torch tensor, an array or bytes as an array of bytes."""
    if isinstance(t, np.ndarray):
        return t.reshape(-1)
    if isinstance(t, (bytes, bytearray)):
        return np.frombuffer(bytes(t), np.uint8)
    import torch
    return t.contiguous().view(torch.uint8).reshape(-1).numpy()


def compare(peer, what, ours, scales, codes, remark="", explained=None):
    """ours: what Many.tensor gives; explained: of the scales and codes that differ
    (indices of blocks, indices of elements), whether that is right."""
    c, q = as_bytes(scales), nibbles(as_bytes(codes))
    c0, q0 = as_bytes(ours[1]), nibbles(as_bytes(ours[2]))
    dc, dq = np.nonzero(c != c0)[0], np.nonzero(q != q0)[0]
    ok = not dc.size and not dq.size
    if not ok and explained:
        ok = bool(explained(dc, dq, c, q, c0, q0))
    say(peer, what, len(c0), len(dc), len(dq), ok, remark)


def close(peer, what, ours, theirs, remark=""):
    """Values, relatively; zero only where ours is."""
    a, b = np.asarray(ours, np.float64).reshape(-1), np.asarray(theirs, np.float64).reshape(-1)
    off = np.abs(a - b) > TOLERANCE * np.abs(a)
    say(peer, what, len(a) // 16, "-", int(off.sum()), not off.any(), remark)


# ---- inputs -----------------------------------------------------------------

def weights(rows, cols=1024):
    """name -> float32 values: what weights look like, and what they should not."""
    rng = np.random.default_rng(5)
    n = rows, cols
    out = {"gauss": rng.standard_normal(n) * .02, "laplace": rng.laplace(size=n) * .02,
           "t4": rng.standard_t(4, n) * .02}
    x = rng.standard_normal(n) * .02
    x[:, ::64] *= 20
    out["outliers"] = x
    x = rng.standard_normal(n) * .02
    x[0, :64], x[1, :32], x[2, ::7] = 0, x[1, :32] * 1e-6, -0.0
    x[3] *= 2.0 ** -np.arange(cols) // 16
    x[4, 5] = 3
    out["odd"] = x
    # Multiples of the smallest scales: many ties.
    x = rng.integers(-24, 25, n) * 2.0 ** -9
    x[:, 0::16] = 24 * 2.0 ** -9
    out["ties"] = x
    return {k: v.astype(np.float32) for k, v in out.items()}


def inputs(rows, dtypes):
    """(words, dtype, numpy values, torch tensor)."""
    import torch
    of = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    for name, x in weights(rows).items():
        for d in dtypes:
            v = nvfp4.load(d, nvfp4.store(d, x.reshape(-1))).reshape(x.shape)
            yield "%s.%s" % (name, d), d, v, torch.from_numpy(v.copy()).to(of[d])


# ---- TransformerEngine ------------------------------------------------------

def te_reference():
    """Its reference alone: the package itself wants CUDA."""
    root = importlib.util.find_spec("transformer_engine").submodule_search_locations[0]
    base = "transformer_engine.pytorch.custom_recipes"
    for name in ("transformer_engine", "transformer_engine.pytorch", base, base + ".gemm",
                 "transformer_engine.pytorch.quantized_tensor"):
        sys.modules[name] = types.ModuleType(name)
    tensor = sys.modules["transformer_engine.pytorch.quantized_tensor"]
    tensor.QuantizedTensorStorage = tensor.Quantizer = object
    gemm = sys.modules[base + ".gemm"]
    gemm.GEMMType, gemm.MMParams = types.SimpleNamespace(FPROP=0), object
    for name in "reference_utils", "reference_nvfp4":
        spec = importlib.util.spec_from_file_location(
            base + "." + name, "%s/pytorch/custom_recipes/%s.py" % (root, name))
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        setattr(sys.modules[base], name, module)
        setattr(sys.modules[base], "gemm", gemm)
        spec.loader.exec_module(module)
    for name in [n for n in sys.modules if n.startswith("transformer_engine")]:
        del sys.modules[name]       # others look for it, too
    return module.NVFP4QuantizerRef


def peer_te(rows):
    import torch
    ref = te_reference()._quantize_blockwise_reference
    for words, d, x, t in inputs(rows, ("bf16", "f32", "f16")):
        amax = t.abs().max().to(torch.float32).view(1)

        def minus_zero(dc, dq, c, q, c0, q0):
            # Its oracle gives code 0 for an exact -0.
            return (not dc.size and (x.reshape(-1)[dq] == 0).all() and
                    (q[dq] == 0).all() and (q0[dq] == 8).all())

        def run(tile, **more):
            q, s = ref(t, amax, 16, tile, pow_2_scales=False, eps=0.0, **more)
            return s, q

        for tile, make in ((1, Many.tensor), (16, Many.squares)):
            word = words + (" 16x16" if tile == 16 else "")
            compare("te", "max " + word, make(Spec("max", source=d), x), *run(tile),
                    "but for codes of -0", minus_zero)
            for crit in "mse", "mae":
                compare("te", "4over6 %s %s" % (crit, word),
                        make(Spec("4over6", criterion=crit, source=d), x),
                        *run(tile, nvfp4_use_4over6=True, nvfp4_e4m3_max=256,
                             nvfp4_4over6_err_mode=crit.upper()),
                        "but for codes of -0", minus_zero)


# ---- torchao ----------------------------------------------------------------

def peer_torchao(rows):
    import torch
    from torchao.prototype.mx_formats import nvfp4_tensor
    for words, d, x, t in inputs(rows, ("bf16", "f32")):
        # Step 1 of ours is bf16; theirs takes f32 as it is.
        if d == "f32":
            t = t.to(torch.bfloat16).to(torch.float32)
        scales, codes = nvfp4_tensor.nvfp4_quantize(t)
        ours = Many.tensor(Spec("torchao", source=d), x)
        y = Many.bf16(x).reshape(-1, 16) / Many.value[as_bytes(ours[1])][:, None]

        def ties(dc, dq, c, q, c0, q0):
            # They multiply by the reciprocal: other codes where a quotient is a tie.
            on = np.isin(np.abs(y.reshape(-1)[dq]), np.array(nvfp4.TIES, np.float32))
            return not dc.size and on.all()

        compare("torchao", "torchao " + words, ours, scales, codes,
                "multiplies by the reciprocal: other codes at exact ties", ties)
        theirs = nvfp4_tensor.NVFP4Tensor(
            torch.from_numpy(as_bytes(ours[2]).copy()).view(rows, -1),
            torch.from_numpy(as_bytes(ours[1]).copy()).view(torch.float8_e4m3fn)
            .view(rows, -1), 16, torch.float32).dequantize(torch.float32)
        close("torchao", "dequantize " + words, Many.values(*ours), theirs.numpy())


# ---- ModelOpt ---------------------------------------------------------------

def peer_modelopt(rows):
    import torch
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    for words, d, x, t in inputs(rows, ("bf16", "f32", "f16")):
        theirs, scales, scale2 = NVFP4QTensor.quantize(t.clone(), 16)
        ours = Many.tensor(Spec("max", "modelopt", source=d), x)
        same = np.float32(scale2.item()) == np.float32(ours[0])
        compare("modelopt", "max modelopt " + words, ours, scales, theirs._quantized_data,
                "scale2 " + ("equal" if same else "differs"),
                None if same else lambda *_: False)
        y = NVFP4QTensor(t.shape, torch.float32, torch.from_numpy(
            as_bytes(ours[2]).copy()).view(rows, -1)).dequantize(
            torch.float32, scale=torch.from_numpy(as_bytes(ours[1]).copy())
            .view(torch.float8_e4m3fn).view(rows, -1),
            double_scale=torch.tensor(ours[0]), block_sizes={-1: 16})
        close("modelopt", "dequantize " + words, Many.values(*ours), y.numpy())


# ---- compressed-tensors -----------------------------------------------------

def ct_scheme():
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import NVFP4A16
    return QuantizationScheme(targets=["Linear"], **NVFP4A16)


def ct_values(codes, scales, divisor, rows):
    """Their dequantization in float32."""
    import torch
    from compressed_tensors.compressors.nvfp4 import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    packed = torch.from_numpy(as_bytes(codes).copy()).view(rows, -1)
    x = unpack_fp4_from_uint8(packed, rows, packed.shape[1] * 2, torch.float32)
    s = torch.from_numpy(as_bytes(scales).copy()).view(torch.float8_e4m3fn)
    return dequantize(x_q=x, scale=s.to(torch.float32).view(rows, -1),
                      args=ct_scheme().weights, dtype=torch.float32,
                      global_scale=torch.tensor([divisor])).numpy()


def peer_compressed_tensors(rows):
    import torch
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization.utils.helpers import (calculate_qparams,
                                                               generate_gparam)
    scheme = ct_scheme()
    for words, d, x, t in inputs(rows, ("f32", "bf16")):
        divisor = generate_gparam(t.min().view(1), t.max().view(1))
        blocks = t.unflatten(-1, (-1, 16))
        scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights,
                                     global_scale=divisor)
        made = NVFP4PackedCompressor.compress(
            {"weight": t.clone(), "weight_scale": scale, "weight_global_scale": divisor},
            scheme)
        ours = Many.tensor(Spec("max", "modelopt", source=d), x)
        v = x.reshape(-1)
        a = np.abs(v.reshape(-1, 16)).max(axis=1)
        under = a * np.float32(divisor.item()) / 6 < 2.0 ** -9

        def known(dc, dq, c, q, c0, q0):
            # A scale that would be 0 is 0.125 there.  Theirs is divisor * (amax/6),
            # which may be the neighbour; in bf16 the divisor is rounded to bf16, too.
            small = under[dc] & (c[dc] == 0x20)
            step = np.abs(c[dc].astype(int) - c0[dc]) <= 1
            other = ~np.isin(dq // 16, dc) & ~under[dq // 16]
            code = np.abs((q[dq] & 7).astype(int) - (q0[dq] & 7)) <= 1
            limit = (4, 0) if d == "f32" else (len(c) // 10, len(q) // 50)
            return ((small | step).all() and code.all() and
                    (step & ~small).sum() <= limit[0] and other.sum() <= limit[1])

        compare("compressed-tensors", "max modelopt " + words, ours, made["weight_scale"],
                made["weight_packed"], "0.125 for a scale that would be 0" +
                ("; divisor and amax/6 rounded to bf16" if d == "bf16" else ""), known)
        close("compressed-tensors", "dequantize " + words, Many.values(*ours),
              ct_values(ours[2], ours[1], float(np.float32(1) / np.float32(ours[0])), rows))


# ---- gguf -------------------------------------------------------------------

def gguf_blocks(scales, codes):
    """Scales and codes of rows of a multiple of 64 columns as ggml has them: 4 scale
    bytes, then for each 8 bytes, byte j the elements j and j+8."""
    q = nibbles(as_bytes(codes)).reshape(-1, 4, 2, 8)
    packed = q[:, :, 0] | q[:, :, 1] << 4
    return np.concatenate([as_bytes(scales).reshape(-1, 4), packed.reshape(-1, 32)], axis=1)


def peer_gguf(rows):
    import gguf
    golden = bytes.fromhex("00089121b243546d")
    block = gguf_blocks(bytes([0x38] * 4), golden * 4)[0]
    say("gguf", "example of a block", 4, 0, 0,
        block.tobytes() == bytes([0x38] * 4) + bytes.fromhex("20b038404159d162") * 4)
    for words, x in weights(rows).items():
        for quant in "sweep1", "max", "sweep":
            ours = Many.tensor(Spec(quant), x)
            raw = gguf_blocks(ours[1], ours[2])
            y = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.NVFP4)
            y = y.reshape(-1) * np.float32(1 if ours[0] is None else ours[0])
            close("gguf", "dequantize %s %s" % (quant, words), Many.values(*ours), y)


# ---- the programs' files ----------------------------------------------------

def run(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        print("%s: exit %d: %s" % (" ".join(args), done.returncode, done.stderr.strip()),
              file=sys.stderr)
        sys.exit(1)


CONFIG = dict(containers.TINY, hidden_size=128, intermediate_size=256, vocab_size=3200,
              num_attention_heads=4, num_key_value_heads=2, head_dim=32,
              num_hidden_layers=2)


def files_dir(bindir, tokenizer, quant, kind, folder):
    """A directory or file of that kind, quantized; and the .dat with the same."""
    src = os.path.join(folder, "src")
    if not os.path.isdir(src):
        containers.put(os.path.join(folder, "c.json"), json.dumps(CONFIG).encode())
        run(bindir + "/datpack", "-q", "--init", "3", "--config",
            os.path.join(folder, "c.json"), "-o", src + "/")
        with open(tokenizer, "rb") as f:
            containers.put(src + "/tokenizer.json", f.read())
    out = os.path.join(folder, quant + "." + kind)
    share = ["--share-scale", "qkv,gate_up"]
    if not os.path.exists(out):
        run(bindir + "/datpack", "-q", "--to", kind, "--dtype", "nvfp4", "--quant", quant,
            *share, "-o", out + ("" if kind == "gguf" else "/"), src)
    dat = os.path.join(folder, quant + ".dat")
    if not os.path.exists(dat):
        run(bindir + "/nvquant", "-q", "--quant", quant, *share, "-o", dat, src)
    return out, {t.name: t for t in nvfp4.pairs(nvfp4.read_tensors(dat))}


def their_values(peer, folder):
    """module name -> values, by safetensors' reader and the peer's arithmetic."""
    import safetensors
    import torch
    out = {}
    with safetensors.safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        names = set(f.keys())
        for n in sorted(names):
            if peer == "compressed-tensors" and n.endswith(".weight_packed"):
                x = n[:-14]
                t = f.get_tensor(n)
                out[x] = ct_values(as_bytes(t), as_bytes(f.get_tensor(x + ".weight_scale")),
                                   f.get_tensor(x + ".weight_global_scale").item(), len(t))
            elif peer == "modelopt" and n + "_scale" in names:
                from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
                t, x = f.get_tensor(n), n[:-7]
                out[x] = NVFP4QTensor(
                    torch.Size((t.shape[0], t.shape[1] * 2)), torch.float32, t).dequantize(
                    torch.float32, scale=f.get_tensor(n + "_scale"),
                    double_scale=f.get_tensor(n + "_scale_2"),
                    block_sizes={-1: 16}).numpy()
    return out


def check_files(bindir):
    tokenizer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors",
                             "tokenizer-small.json")
    with tempfile.TemporaryDirectory() as folder:
        for quant in "sweep", "4over6", "max":
            for peer in "compressed-tensors", "modelopt":
                if not version(peer) or peer not in CHOSEN:
                    continue
                out, dat = files_dir(bindir, tokenizer, quant, peer, folder)
                theirs = their_values(peer, out)
                modules = [n[:-7] for n, t in dat.items()
                           if t.parts and n != "lm_head.weight"]
                say(peer, "modules of a directory, " + quant, "-", "-", "-",
                    sorted(theirs) == sorted(modules), len(theirs))
                for n in modules:
                    close(peer, "%s %s" % (quant, n),
                          Many.values(*dat[n + ".weight"].parts), theirs[n])
            if version("gguf") and "gguf" in CHOSEN:
                check_gguf(bindir, tokenizer, quant, folder)
        if version("compressed-tensors") and "compressed-tensors" in CHOSEN:
            check_transformers(bindir, tokenizer, folder)


GGUF_NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
              "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
              "mlp.down_proj": "ffn_down"}


def check_gguf(bindir, tokenizer, quant, folder):
    import gguf
    out, dat = files_dir(bindir, tokenizer, quant, "gguf", folder)
    reader = gguf.GGUFReader(out)
    tensors = {t.name: t for t in reader.tensors}
    for name, t in dat.items():
        parts = name.split(".")
        if not t.parts or parts[0] == "lm_head":
            continue
        base = "blk.%s.%s" % (parts[2], GGUF_NAMES[".".join(parts[3:5])])
        theirs = tensors.pop(base + ".weight")
        y = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        y = y.reshape(-1) * tensors.pop(base + ".scale").data[0]
        close("gguf", "%s %s" % (quant, name), Many.values(*t.parts), y)
    fields = {k: f.contents() for k, f in reader.fields.items()}
    say("gguf", "architecture, names", "-", "-", "-",
        fields["general.architecture"] == "qwen3",
        "file_type %s, %s here; not quantized: %s" % (
            fields["general.file_type"], int(gguf.LlamaFileType.MOSTLY_NVFP4),
            " ".join(sorted(n for n in tensors if not n.startswith("blk.")))))


def check_transformers(bindir, tokenizer, folder):
    """The whole model, loaded by transformers, beside one of decoded weights."""
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        return
    out, _ = files_dir(bindir, tokenizer, "sweep", "compressed-tensors", folder)
    plain = os.path.join(folder, "plain")
    run(bindir + "/datpack", "-q", "--dtype", "bf16", "-o", plain + "/", out)
    ids = torch.tensor([[1, 5, 9, 700, 33, 8, 2]])
    try:
        with torch.no_grad():
            a = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)(ids).logits
            b = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)(ids).logits
    except ImportError as e:
        say("compressed-tensors", "transformers", "-", "-", "-", True, "not run: %s" % e)
        return
    off = (a - b).abs().max() / b.abs().max()
    say("compressed-tensors", "transformers: logits", "-", "-", "-", off < .02,
        "largest difference %.2g of the largest logit" % off)


CHECKS = {"te": peer_te, "torchao": peer_torchao, "modelopt": peer_modelopt,
          "compressed-tensors": peer_compressed_tensors, "gguf": peer_gguf}
CHOSEN = []


def main(argv):
    try:
        opts, CHOSEN[:] = getopt.gnu_getopt(argv, "n:b:h")
        o = dict(opts)
        rows = int(o.get("-n", 256))
        if "-h" in o or set(CHOSEN) - set(CHECKS) or rows < 16 or rows % 16:
            raise getopt.GetoptError("want a peer of: " + " ".join(CHECKS))
    except (getopt.GetoptError, ValueError) as e:
        print("peers_nvfp4.py: %s" % e, __doc__.strip(), sep="\n", file=sys.stderr)
        return 2
    CHOSEN[:] = CHOSEN or list(CHECKS)
    if np is None or not any(version(p) for p in CHOSEN):
        print("none of the peers is installed")
        return 77
    print("peer\tversion\twhat\tblocks\tscales\tcodes\tverdict\tremark")
    if "-b" in o:
        check_files(o["-b"])
        return failed
    for p in CHOSEN:
        if version(p):
            CHECKS[p](rows)
        else:
            print("%s: not installed" % p, file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
