#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Other programs, as they are installed, and ours on the same model.

usage: interop.py [-q QWEN3DIR] [-n LINES] [PART]...

  transformers   f32 directories both ways, tied and untied, sharded: logits, greedy
                 tokens, tensors; ten steps of AdamW beside PyTorch
  compressed     NVFP4 directories that transformers loads with compressed-tensors
  llmcompressor  a directory of its own making, read here
  modelopt       its own export beside datpack's: equal bytes
  w4a4           activation scales, in both dialects: as they are loaded, beside ModelOpt's
                 export, from llm-compressor's; logits of --input-scale static
  llama          a GGUF in NVFP4 by llama.cpp (llama-cpp-python)
  serve          answers of its server over HTTP, by the model of the demo
  sign           a model directory, signed by model_signing
  tokenizers     LINES lines (20000), 3000 chats: ids of the package and the template of
                 transformers; QWEN3DIR has Qwen3's tokenizer.json and tokenizer_config.json
  servers        what vLLM's and SGLang's own classes say of a directory's configuration

A line a check: part, versions, what, figure, its limit, "ok", "DIFFERS" or "not run: why".
The last line is "N passed, N failed".  make check-interop installs what is needed into
build-interop.  Environment: NIBBLE_BIN (default ../bin beside this script)."""
import base64
import contextlib
import copy
import getopt
import importlib
import importlib.metadata
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")
os.environ.update(TORCH_CPP_LOG_LEVEL="ERROR", TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1",
                  TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", CUDA_VISIBLE_DEVICES="",
                  TOKENIZERS_PARALLELISM="false")
HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.abspath(os.environ.get("NIBBLE_BIN") or os.path.join(HERE, "..", "bin"))
SMALL_TOKENIZER = os.path.join(HERE, "vectors", "tokenizer-small.json")
SIZES = dict(vocab_size=3200, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             max_position_embeddings=512, initializer_range=.25, rope_theta=1e6)
passed = failed = 0


class NotRun(Exception):
    pass


def say(part, packages, what, figure, limit, good, remark=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print("\t".join((part, packages, what, figure, limit,
                     ("ok" if good else "DIFFERS") + (": " + remark if remark else ""))), flush=True)


def versions(*names):
    out = []
    for n in names:
        try:
            out.append("%s %s" % (n, importlib.metadata.version(n)))
        except importlib.metadata.PackageNotFoundError as e:
            raise NotRun("%s is not installed" % n) from e
    return ", ".join(out)


def tool(name, *args, stdin=None):
    done = subprocess.run([os.path.join(BIN, name), *args], input=stdin, stdout=subprocess.PIPE,
                          check=False)
    if done.returncode:
        raise RuntimeError("%s %s: status %d" % (name, " ".join(args), done.returncode))
    return done.stdout


def quietly():
    """What packages print is not a result."""
    return contextlib.redirect_stdout(io.StringIO())


# ---- the model, and both sides of it ------------------------------------------------------

def make_model(to, tied, dtype="float32", **more):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    torch.manual_seed(3 + tied)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + .2 * torch.randn_like(p))
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(to, **more)
    shutil.copy(SMALL_TOKENIZER, os.path.join(to, "tokenizer.json"))
    return model


def load(path, dtype="float32", **more):
    import torch
    from transformers import AutoModelForCausalLM
    with quietly():
        return AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype),
                                                    **more).eval()


def some_ids(n, seed=1):
    chance = random.Random(seed)
    return [chance.randrange(SIZES["vocab_size"]) for _ in range(n)]


def tok_file(path, samples):
    tool("tokenize", "-q", "-f", "--input", "ids", "-o", path,
         stdin="".join(" ".join(map(str, s)) + "\n" for s in samples).encode())


def our_logits(model, ids, folder, *options):
    """Of the positions that have a target: all but the last."""
    import safetensors.torch
    tok, out = os.path.join(folder, "x.tok"), os.path.join(folder, "logits.safetensors")
    tok_file(tok, [ids])
    tool("generate", "-f", "--score", tok, "--logits", out, "--device", "cpu", *options, model)
    return safetensors.torch.load_file(out)["logits.0"]


def their_logits(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].float()


def apart(a, b):
    """The largest difference, and of what."""
    return float((a - b).abs().max()), float(b.abs().max())


def compare_logits(part, packages, what, ours, theirs, limit):
    off, size = apart(ours, theirs)
    say(part, packages, what, "%.2g of %.3g" % (off, size), "%g of it" % limit, off <= limit * size)


def greedy(part, packages, what, path, model, n=64):
    import torch
    prompt = some_ids(40, 2)
    ours = tool("generate", "--ids", "-n", str(n), "--temp", "0", "--ignore-eos", "--compute", "f32",
                "--device", "cpu", path, stdin=" ".join(map(str, prompt)).encode())
    ours = [int(x) for x in ours.split()]
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=n, do_sample=False,
                            eos_token_id=None, pad_token_id=0)[0, len(prompt):].tolist()
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours),
                                                                                   len(theirs)))
    say(part, packages, what, "%d of %d tokens" % (same, n), "all", ours == theirs and len(ours) == n)


# ---- transformers ---------------------------------------------------------------------------

def part_transformers(folder):
    import torch
    packages = versions("transformers", "torch", "safetensors")
    for tied in (True, False):
        word = "tied" if tied else "untied"
        src = os.path.join(folder, "t-" + word)
        model = make_model(src, tied, **({} if tied else {"max_shard_size": "1MB"}))
        files = len([f for f in os.listdir(src) if f.endswith(".safetensors")])
        ids = some_ids(300)
        compare_logits("transformers", packages, "its directory, %s, %d files: f32 logits"
                       % (word, files), our_logits(src, ids, folder, "--compute", "f32"),
                       their_logits(model, ids), 3e-5)
        greedy("transformers", packages, "its directory, %s: greedy tokens" % word, src, model)
        for dtype in ("f32", "bf16"):
            out = os.path.join(folder, "out-%s-%s" % (word, dtype))
            tool("datpack", "-q", "--dtype", dtype, "--shard-size", "2000000", "-o", out + "/", src)
            back = load(out, "float32" if dtype == "f32" else "bfloat16").state_dict()
            want = {k: v.to(back[k].dtype) for k, v in model.state_dict().items()}
            differ = sum(not torch.equal(want[k], back[k]) for k in want)
            say("transformers", packages, "our directory, %s, %s: tensors" % (word, dtype),
                "%d of %d differ" % (differ, len(want)), "0", differ == 0 and want.keys() == back.keys())
        adamw(packages, word, src, folder)


def adamw(packages, word, src, folder, steps=10):
    """Two samples a step, in the order of the file; the model is trained in f32."""
    import torch
    samples = [some_ids(50, 10 + i) for i in range(2 * steps)]
    tok, ckpt, log = (os.path.join(folder, word + s) for s in (".tok", ".ckpt", ".log"))
    tok_file(tok, samples)
    tool("datpack", "-q", "-f", "--to", "ckpt", "--master", "f32", "--moments", "f32", "--quant", "none",
         "-o", ckpt, src)
    if os.path.exists(log):
        os.remove(log)
    tool("trainstep", "-q", "--device", "cpu", "--compute", "f32", "-d", tok, "--order", "file", "--batch",
         "2", "-n", str(steps), "--lr", "1e-3", "--weight-decay", "0.1", "--clip", "1", "--log", log,
         ckpt)
    with open(log, encoding="ascii") as f:
        rows = [json.loads(line) for line in f]
    ours = [r["loss"] for r in rows if "loss" in r][:steps]
    model = load(src).train()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": .1},
                             {"params": rest, "weight_decay": 0}], lr=1e-3, eps=1e-8,
                            betas=(.9, .999))
    worst = 0
    for i in range(steps):
        ids = torch.tensor(samples[2 * i:2 * i + 2])
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                                 ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        worst = max(worst, abs(ours[i] / loss.item() - 1))
    say("transformers", packages, "%s: losses of %d AdamW steps" % (word, steps), "%.1e apart" % worst,
        "5e-06", len(ours) == steps and worst <= 5e-6, "from %.3f to %.3f" % (ours[0], ours[-1]))


# ---- compressed-tensors, llm-compressor, ModelOpt --------------------------------------------

def decoded(path, folder, dtype="f32"):
    """What our programs decode of an NVFP4 directory, as transformers' model."""
    out = os.path.join(folder, "decoded")
    shutil.rmtree(out, ignore_errors=True)
    tool("datpack", "-q", "--dtype", dtype, "-o", out + "/", path)
    return load(out, {"f32": "float32", "bf16": "bfloat16"}[dtype])


def part_compressed(folder):
    packages = versions("transformers", "compressed-tensors", "torch")
    src = os.path.join(folder, "c-src")
    make_model(src, False, "bfloat16")
    ids = some_ids(200)
    for quant in ("sweep", "sweepfp8", "max", "4over6"):
        out = os.path.join(folder, "ct-" + quant)
        tool("datpack", "-q", "--to", "compressed-tensors", "--quant", quant, "--share-scale",
             "qkv,gate_up", "-o", out + "/", src)
        # It decodes to bf16; tests/peers_nvfp4.py compares the decoded values themselves.
        compare_logits("compressed", packages, "our directory, %s: bf16 logits of it and of decoded "
                       "weights" % quant, their_logits(load(out, "bfloat16"), ids),
                       their_logits(decoded(out, folder, "bf16"), ids), 3e-2)
        reference = decoded(out, folder)
        compare_logits("compressed", packages, "our directory, %s: f32 logits here and of decoded "
                       "weights" % quant, our_logits(out, ids, folder, "--compute", "f32"),
                       their_logits(reference, ids), 3e-5)
        greedy("compressed", packages, "our directory, %s: greedy tokens here and of decoded weights"
               % quant, out, reference)


def part_llmcompressor(folder):
    packages = versions("llmcompressor", "compressed-tensors", "transformers")
    with quietly():
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier
    src, out = os.path.join(folder, "l-src"), os.path.join(folder, "l-out")
    make_model(src, False, "bfloat16")
    model = load(src, "bfloat16")
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="NVFP4A16",
                                                         ignore=["lm_head"]))
        model.save_pretrained(out, save_compressed=True)
    shutil.copy(SMALL_TOKENIZER, os.path.join(out, "tokenizer.json"))
    ids = some_ids(200)
    compare_logits("llmcompressor", packages, "its directory: bf16 logits of it and of decoded weights",
                   their_logits(load(out, "bfloat16"), ids),
                   their_logits(decoded(out, folder, "bf16"), ids), 3e-2)
    reference = decoded(out, folder)
    compare_logits("llmcompressor", packages, "its directory: f32 logits here and of decoded weights",
                   our_logits(out, ids, folder, "--compute", "f32"), their_logits(reference, ids), 3e-5)
    greedy("llmcompressor", packages, "its directory: greedy tokens here and of decoded weights", out,
           reference)
    damage = subprocess.run([os.path.join(BIN, "datcat"), "-q", "--verify", out], check=False,
                            stdout=subprocess.DEVNULL).returncode
    say("llmcompressor", packages, "its directory: datcat --verify", "status %d" % damage, "0",
        damage == 0)


def tensors_of(folder):
    out = {}
    for f in sorted(os.listdir(folder)):
        if not f.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, f), "rb") as s:
            raw = s.read()
        n = struct.unpack_from("<Q", raw)[0]
        for name, t in json.loads(raw[8:8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                out[name] = t["dtype"], t["shape"], raw[8 + n + a:8 + n + b]
    return out


def part_modelopt(folder):
    packages = versions("nvidia-modelopt", "transformers")
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint
    src, theirs, ours = (os.path.join(folder, "m-" + x) for x in ("src", "theirs", "ours"))
    make_model(src, False, "bfloat16")
    model = load(src, "bfloat16")
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        mtq.quantize(model, copy.deepcopy(mtq.W4A16_NVFP4_CFG), lambda m: m(
            __import__("torch").tensor([some_ids(16)])))
        export_hf_checkpoint(model, export_dir=theirs)
    shutil.copy(SMALL_TOKENIZER, os.path.join(theirs, "tokenizer.json"))
    tool("datpack", "-q", "--to", "modelopt", "--quant", "max", "--variant", "modelopt",
         "--share-scale", "qkv,gate_up", "-o", ours + "/", src)
    a, b = tensors_of(ours), tensors_of(theirs)
    differ = [n for n in b if n in a and a[n] != b[n] and not
              (a[n][0] == b[n][0] and a[n][2] == b[n][2] and len(a[n][2]) == 4)]
    say("modelopt", packages, "its export and ours: tensors", "%d of %d differ" % (len(differ), len(b)),
        "0", not differ and set(a) == set(b), " ".join(differ[:3] + sorted(set(a) ^ set(b))[:3]))
    with open(os.path.join(theirs, "hf_quant_config.json"), encoding="utf-8") as f:
        want = json.load(f)["quantization"]
    with open(os.path.join(ours, "hf_quant_config.json"), encoding="utf-8") as f:
        have = json.load(f)["quantization"]
    keys = ("quant_algo", "kv_cache_quant_algo", "group_size", "exclude_modules")
    other = [k for k in keys if want.get(k) != have.get(k)]
    say("modelopt", packages, "hf_quant_config.json: %s" % ", ".join(keys), "%d differ" % len(other),
        "0", not other, " ".join("%s: %s, %s" % (k, want.get(k), have.get(k)) for k in other))
    ids = some_ids(200)
    compare_logits("modelopt", packages, "its export: f32 logits of it here and of decoded weights in "
                   "transformers", our_logits(theirs, ids, folder, "--compute", "f32"),
                   their_logits(decoded(theirs, folder), ids), 3e-5)


# ---- W4A4: activations quantized by calibrated scales ------------------------------------------

def measured(src, ids, folder):
    """What generate --dump-importance measures on these ids, and the file."""
    import safetensors.torch
    tok, out = (os.path.join(folder, "measured" + s) for s in (".tok", ".safetensors"))
    tok_file(tok, [ids])
    tool("generate", "-q", "-f", "--device", "cpu", "--score", tok, "--dump-importance", out, src)
    t = safetensors.torch.load_file(out)
    return {n[:-len(".input_amax")]: v for n, v in t.items() if n.endswith(".input_amax")}, out


def w4a4_compressed(folder, src, ids):
    import torch
    from compressed_tensors.quantization import preset_name_to_scheme
    packages = versions("transformers", "compressed-tensors", "torch")
    amax, file = measured(src, ids, folder)
    out = os.path.join(folder, "ct-w4a4")
    tool("datpack", "-q", "--to", "compressed-tensors", "--quant", "max", "--share-scale", "qkv,gate_up",
         "--input-scales", file, "-o", out + "/", src)
    model = load(out, "bfloat16")
    scheme = preset_name_to_scheme("NVFP4", ["Linear"])
    modules = {n: m for n, m in model.named_modules() if getattr(m, "quantization_scheme", None)}
    for what in ("weights", "input_activations"):
        other = {}
        for n, m in modules.items():
            a = getattr(m.quantization_scheme, what).model_dump()
            b = getattr(scheme, what).model_dump()
            # An observer of weights is a default, as they are not calibrated any more.
            other.update({k: (a[k], b[k]) for k in a if a[k] != b[k] and (what, k) != ("weights", "observer")})
        say("w4a4", packages, "our directory: %s of its modules beside the preset NVFP4" % what,
            "%d members differ" % len(other), "0",
            not other and len(modules) == 21, repr(other) if other else "")
    differ = [n for n, m in modules.items()
              if not torch.equal(m.input_global_scale.data, torch.tensor([2688.]) / amax[n])]
    say("w4a4", packages, "our directory: input_global_scale as it is loaded, and 2688 / amax",
        "%d of %d differ" % (len(differ), len(modules)), "0", modules and not differ)
    w4a4_logits(packages, "our directory", out, model, ids, folder)


def w4a4_logits(packages, what, path, model, ids, folder):
    """transformers loads a W4A4 directory as weights alone; so what compressed-tensors makes of the
    inputs is put before the products of a model with the decoded weights, all in f32."""
    from compressed_tensors.quantization.lifecycle.forward import forward_quantize
    reference = decoded(path, folder)
    plain = their_logits(reference, ids)
    for name, m in model.named_modules():
        if getattr(m, "quantization_scheme", None):
            reference.get_submodule(name).register_forward_pre_hook(
                lambda _, x, m=m: (forward_quantize(m, x[0], "input", m.quantization_scheme.input_activations),))
    theirs = their_logits(reference, ids)
    ours = our_logits(path, ids, folder, "--compute", "f32", "--activations", "nvfp4", "--input-scale", "static")
    far = float((plain - theirs).norm() / theirs.norm())
    compare_logits("w4a4", packages, "%s: f32 logits of --input-scale static here and with its inputs "
                   "quantized (%.2g from those of plain ones)" % (what, far), ours, theirs, 1e-4)
    if far < .02:
        raise RuntimeError("quantized inputs change nothing")


def w4a4_modelopt(folder, src, ids):
    packages = versions("nvidia-modelopt", "transformers")
    import safetensors.torch
    import torch
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint
        from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
    theirs, ours, file = (os.path.join(folder, x) for x in ("mo-theirs", "mo-ours", "amax.safetensors"))
    model = load(src, "bfloat16")
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        mtq.quantize(model, copy.deepcopy(mtq.NVFP4_DEFAULT_CFG), lambda m: m(torch.tensor([ids[:-1]])))
        amax = {n[:-len(".input_quantizer")]: m.amax.detach().float().reshape(1)
                for n, m in model.named_modules()
                if n.endswith(".input_quantizer") and m.is_enabled and m.amax is not None}
        export_hf_checkpoint(model, export_dir=theirs)
    mine, _ = measured(src, ids, folder)
    off = max(abs(float(mine[n] / v) - 1) for n, v in amax.items())
    say("w4a4", packages, "largest magnitudes that it calibrates in bf16, and that generate measures in f32",
        "%.2g apart, %d modules" % (off, len(amax)), "0.05", off <= .05 and len(amax) == 21)
    safetensors.torch.save_file({n + ".input_amax": v for n, v in amax.items()}, file)
    tool("datpack", "-q", "--to", "modelopt", "--quant", "max", "--variant", "modelopt", "--share-scale",
         "qkv,gate_up", "--input-scales", file, "-o", ours + "/", src)
    a, b = tensors_of(ours), tensors_of(theirs)
    differ = [n for n in b if n in a and a[n] != b[n] and
              not (n.endswith("weight_scale_2") and a[n][2] == b[n][2])]
    say("w4a4", packages, "its export and ours, by its magnitudes: tensors",
        "%d of %d differ, %d of them input_scale" % (len(differ), len(b), sum("input_scale" in n for n in b)),
        "0", not differ and set(a) == set(b), " ".join(differ[:3] + sorted(set(a) ^ set(b))[:3]))
    w4a4_configurations(packages, ours, theirs, convert_hf_quant_config_format)
    shutil.copy(SMALL_TOKENIZER, os.path.join(theirs, "tokenizer.json"))
    ct = os.path.join(folder, "mo-ct")
    tool("datpack", "-q", "--to", "compressed-tensors", "-o", ct + "/", theirs)
    back = load(ct, "bfloat16")
    differ = [n for n, v in amax.items() if not
              torch.equal(back.get_submodule(n).input_global_scale.data, torch.tensor([2688.]) / v)]
    say("w4a4", packages, "its export as compressed-tensors loads it from here: input_global_scale",
        "%d of %d differ" % (len(differ), len(amax)), "0", not differ)


def w4a4_configurations(packages, ours, theirs, convert):
    def members(folder, name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)

    def groups(q):
        return sorted(json.dumps({k: v for k, v in g.items()}, sort_keys=True)
                      for g in q["config_groups"].values())
    keys = ("quant_algo", "kv_cache_quant_algo", "group_size", "exclude_modules")
    a, b = (members(x, "hf_quant_config.json") for x in (ours, theirs))
    other = [k for k in keys if a["quantization"].get(k) != b["quantization"].get(k)]
    say("w4a4", packages, "hf_quant_config.json: %s" % ", ".join(keys), "%d differ" % len(other), "0",
        not other, " ".join("%s: %s, %s" % (k, a["quantization"].get(k), b["quantization"].get(k)) for k in other))
    q = members(ours, "config.json")["quantization_config"]
    for what, want in (("its converter makes of our hf_quant_config.json", convert(a)),
                       ("its export has", members(theirs, "config.json")["quantization_config"])):
        other = [k for k in ("quant_method", "quant_algo", "ignore") if q.get(k) != want.get(k)]
        other += [] if groups(q) == groups(want) else ["config_groups"]
        say("w4a4", packages, "config.json: quant_method, quant_algo, ignore, config_groups as %s" % what,
            "%d differ" % len(other), "0", not other,
            " ".join("%s: %s, %s" % (k, q.get(k), want.get(k)) for k in other))


def w4a4_llmcompressor(folder, src, ids):
    packages = versions("llmcompressor", "compressed-tensors", "transformers")
    with quietly():
        from datasets import Dataset
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier
    out = os.path.join(folder, "l-w4a4")
    model = load(src, "bfloat16")
    samples = [ids[i:i + 50] for i in range(0, len(ids), 50)]
    data = Dataset.from_dict({"input_ids": samples, "attention_mask": [[1] * len(s) for s in samples]})
    with quietly(), contextlib.redirect_stderr(io.StringIO()):
        oneshot(model=model, dataset=data, max_seq_length=50, num_calibration_samples=len(samples),
                recipe=QuantizationModifier(targets="Linear", scheme="NVFP4", ignore=["lm_head"]))
        model.save_pretrained(out, save_compressed=True)
    shutil.copy(SMALL_TOKENIZER, os.path.join(out, "tokenizer.json"))
    w4a4_logits(packages, "its directory", out, load(out, "bfloat16"), ids, folder)
    there, back = os.path.join(folder, "l-mo"), os.path.join(folder, "l-back")
    tool("datpack", "-q", "--to", "modelopt", "-o", there + "/", out)
    tool("datpack", "-q", "--to", "compressed-tensors", "-o", back + "/", there)
    a, b = tensors_of(out), tensors_of(back)
    scales = [n for n in a if n.endswith("input_global_scale")]
    differ = [n for n in scales if a[n] != b.get(n)]
    say("w4a4", packages, "its directory to ModelOpt's dialect and back: input_global_scale",
        "%d of %d differ" % (len(differ), len(scales)), "0", len(scales) == 21 and not differ)


def part_w4a4(folder):
    src, ids = os.path.join(folder, "w-src"), some_ids(200)
    make_model(src, False, "bfloat16")
    tried = 0
    for one in (w4a4_compressed, w4a4_modelopt, w4a4_llmcompressor):
        try:
            one(folder, src, ids)
            tried += 1
        except (NotRun, ImportError) as e:
            print("w4a4\t-\t%s\t-\t-\tnot run: %s" % (one.__name__[5:], e), flush=True)
    if not tried:
        raise NotRun("none of compressed-tensors, ModelOpt and llm-compressor is installed")


# ---- llama.cpp ------------------------------------------------------------------------------

def part_llama(folder):
    packages = versions("llama-cpp-python", "numpy")
    import numpy as np
    import torch
    import llama_cpp
    src = os.path.join(folder, "g-src")
    make_model(src, False, "float32")
    ids = some_ids(100)
    for quant in ("sweep", "max"):
        out = os.path.join(folder, quant + ".gguf")
        tool("datpack", "-q", "--to", "gguf", "--quant", quant, "-o", out, src)
        with contextlib.redirect_stderr(io.StringIO()):
            model = llama_cpp.Llama(out, n_ctx=512, logits_all=True, verbose=False, n_threads=2)
        model.eval(ids)
        theirs = torch.from_numpy(np.array(model.scores[:len(ids) - 1]))
        # It rounds what NVFP4 is multiplied with to 8 bits.
        ours = our_logits(out, ids, folder, "--compute", "f32")
        rms = float((ours - theirs).norm() / ours.norm())
        same = float((ours.argmax(1) == theirs.argmax(1)).float().mean())
        say("llama", packages, "our GGUF, NVFP4 by %s: logits" % quant,
            "%.2g apart (root mean square), the same first of %d at %.0f %%" % (rms, len(ours[0]),
                                                                          100 * same),
            "0.05", rms <= .05)


# ---- a server, and signatures -----------------------------------------------------------------

DEMO = os.path.join(HERE, "..", "pipelines", "demo")
CHATML = ("{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
          "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def trained_model(folder):
    """A small model that has learnt the demo's rows; its checkpoint and tokenizer.json."""
    tokenizer, rows = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "rows.tok")
    ckpt = os.path.join(folder, "run.ckpt")
    shutil.copy(os.path.join(DEMO, "tokenizer.json"), tokenizer)
    with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(CHATML)
    tool("tokenize", "-q", "-t", tokenizer, "-o", rows, os.path.join(DEMO, "whoami.tsv"))
    tool("datpack", "-q", "--init", "7", "--config", os.path.join(DEMO, "config.json"), "-o", ckpt)
    tool("trainstep", "-q", "-d", rows, "-n", "150", "--batch", "8", "--lr", "3e-3", ckpt)
    return ckpt, tokenizer


def ask(port, path, **body):
    import urllib.request
    r = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path),
                               json.dumps(body).encode() if body else None,
                               {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=60) as answer:
        return json.load(answer)


@contextlib.contextmanager
def server(gguf):
    """llama.cpp's, on a free port of the loopback interface; it ends with the block."""
    import socket
    import time
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with subprocess.Popen([sys.executable, "-m", "llama_cpp.server", "--model", gguf, "--host", "127.0.0.1",
                           "--port", str(port), "--n_ctx", "256", "--n_threads", "2"],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            for left in range(300, -1, -1):
                try:
                    ask(port, "/v1/models")
                    break
                except OSError:
                    if left == 0 or child.poll() is not None:
                        raise NotRun("llama_cpp.server does not start") from None
                    time.sleep(.2)
            yield port
        finally:
            child.terminate()


def divergence(gguf, tok, folder):
    """Mean KL(generate || llama.cpp) in nats over all positions of the samples, and their number."""
    import llama_cpp
    import numpy as np
    from golden import Tensors
    logits = os.path.join(folder, "kl.safetensors")
    tool("generate", "-q", "-f", "--compute", "f32", "--score", tok, "--logits", logits, gguf)
    ours, kl, n = Tensors(logits), 0, 0
    with contextlib.redirect_stderr(io.StringIO()):
        model = llama_cpp.Llama(gguf, n_ctx=256, logits_all=True, verbose=False, n_threads=2)
    for i in range(json.loads(tool("datcat", "--json", tok))["totals"]["samples"]):
        ids = [int(line.split()[0]) for line in tool("datcat", "--values", str(i), tok).decode().splitlines()]
        a = np.array(ours["logits.%d" % i], dtype=np.float64).reshape(len(ids) - 1, -1)
        model.reset()
        model.eval(ids)
        b = np.array(model.scores[:len(ids) - 1], dtype=np.float64)
        p, q = (z - z.max(1, keepdims=True) for z in (a, b))
        p, q = (z - np.log(np.exp(z).sum(1, keepdims=True)) for z in (p, q))
        kl, n = kl + float((np.exp(p) * (p - q)).sum()), n + len(a)
    return kl / n, n


def part_serve(folder):
    packages = versions("llama-cpp-python", "uvicorn")
    ckpt, tokenizer = trained_model(folder)
    gguf = os.path.join(folder, "served.gguf")
    tool("datpack", "-q", "-t", tokenizer, "-o", gguf, ckpt)
    with open(os.path.join(DEMO, "whoami.tsv"), encoding="utf-8") as f:
        prompts = [line.split("\t")[0] for line in f]
    ours = tool("generate", "-q", "-t", tokenizer, "-n", "24", "--compute", "f32", gguf,
                stdin="".join(p + "\n" for p in prompts).encode()).decode().splitlines()
    with server(gguf) as port:
        theirs = [ask(port, "/v1/chat/completions", temperature=0, max_tokens=24, repeat_penalty=1,
                      messages=[{"role": "user", "content": p}])["choices"][0]["message"]["content"]
                  for p in prompts]
    same = sum(a == b for a, b in zip(ours, theirs))
    say("serve", packages, "answers over HTTP, greedy, and those of generate", "%d of %d equal" % (
        same, len(prompts)), "all", same == len(prompts) == len(ours) and all(theirs))
    kl, n = divergence(gguf, os.path.join(folder, "rows.tok"), folder)
    say("serve", packages, "KL(generate, f32 || llama.cpp, which rounds activations to 8 bits)",
        "%.2g over %d positions" % (kl, n), "0.01", 0 <= kl <= .01)


def part_sign(folder):
    packages = versions("model-signing")
    signer = os.path.join(os.path.dirname(sys.executable), "model_signing")
    key, public = os.path.join(folder, "key.pem"), os.path.join(folder, "public.pem")
    served, signature = os.path.join(folder, "served"), os.path.join(folder, "model.sig")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    tool("datpack", "-q", "--init", "7", "--config", os.path.join(DEMO, "config.json"), "--dtype", "nvfp4",
         "--to", "modelopt", "-o", served)
    statement = json.loads(tool("datcat", "--attest", served))
    with quietly():
        subprocess.run([signer, "sign", "key", "--private_key", key, "--signature", signature, served],
                       check=True, stdout=subprocess.DEVNULL)
    verify = [signer, "verify", "key", "--public_key", public, "--signature", signature, served]
    good = subprocess.run(verify, check=False, stdout=subprocess.DEVNULL).returncode
    with open(signature, encoding="utf-8") as f:
        payload = json.loads(base64.b64decode(json.load(f)["dsseEnvelope"]["payload"]))
    files = {r["name"]: r["digest"] for r in payload["predicate"]["resources"]}
    ours = {s["name"]: s["digest"]["sha256"] for s in statement["subject"]}
    say("sign", packages, "a directory is signed and verified; its SHA-256 are the statement's",
        "%d files" % len(files), "equal", good == 0 and files == ours and len(files) > 2)
    with open(os.path.join(served, "config.json"), "a", encoding="utf-8") as f:
        f.write(" ")
    bad = subprocess.run(verify, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    again = {s["name"]: s["digest"]["sha256"] for s in json.loads(tool("datcat", "--attest", served))["subject"]}
    say("sign", packages, "a changed file: no longer verified, another statement", "status %d" % bad, "not 0",
        bad != 0 and again != ours)


# ---- tokenizers -------------------------------------------------------------------------------

def lines_of(n):
    """Lines of every kind that JSON can carry."""
    chance = random.Random(7)
    words = ["the", "4-bit", "weights", "naïve", "café", "你是誰", "日本語", "한국어", "Привет", "العربية",
             "हिन्दी", "don't", "I'LL", "we've", "1234567", "3.14", "x=y+1;", "\u200d", "é", "ﬃ",
             "👩‍👩‍👧", "  ", "\t", "!!!", "...", "—", "<tag>", "A\u0301", "\u00a0", "ก็", "def f(x):",
             "https://example.org/?q=1", "𝔘𝔫𝔦", "\u3000"]
    for _ in range(n):
        yield "".join(chance.choice(words) + chance.choice(["", " ", " ", "\n", "\r\n", "  "])
                      for _ in range(chance.randrange(1, 30)))


def part_tokenizers(folder):
    packages = versions("tokenizers", "transformers")
    import tokenizers
    from transformers import AutoTokenizer
    path = os.path.join(QWEN3, "tokenizer.json") if QWEN3 else SMALL_TOKENIZER
    package = tokenizers.Tokenizer.from_file(path)
    word = "Qwen3's tokenizer" if QWEN3 else "a small tokenizer"
    texts = list(lines_of(LINES))
    src = os.path.join(folder, "rows.jsonl")
    with open(src, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"prompt": t, "target": "x"}) + "\n" for t in texts)
    ours = tool("tokenize", "-q", "-t", path, "--input", "jsonl", "--template", "none", "--no-end",
                "--joint", "--emit", "ids", src).decode().splitlines()
    differ = sum(list(map(int, a.split())) != package.encode(t + "x", add_special_tokens=False).ids
                 for a, t in zip(ours, texts))
    say("tokenizers", packages, "%s: lines" % word, "%d of %d differ" % (differ, len(texts)), "0",
        differ == 0 and len(ours) == len(texts))
    if not QWEN3:
        raise NotRun("chats: no QWEN3DIR with Qwen3's tokenizer_config.json")
    chat = AutoTokenizer.from_pretrained(QWEN3)
    chance, chats = random.Random(8), []
    for i in range(3000):
        messages = [{"role": "system", "content": texts[i % len(texts)][:40]}] if chance.randrange(3) == 0 else []
        for k in range(chance.randrange(1, 4)):
            messages += [{"role": "user", "content": chance.choice(texts) or "?"},
                         {"role": "assistant", "content": chance.choice(texts).strip() or "!"}]
        chats.append(messages)
    with open(src, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"messages": m}) + "\n" for m in chats)
    ours = tool("tokenize", "-q", "-t", path, "--input", "jsonl", "--joint", "--emit", "ids",
                src).decode().splitlines()
    differ, first = 0, ""
    for line, m in zip(ours, chats):
        text = chat.apply_chat_template(m, tokenize=False)
        want = chat(text, add_special_tokens=False)["input_ids"]
        have = list(map(int, line.split()))
        if have != want:
            differ += 1
            first = first or "%s here, %s there" % (package.decode(have, skip_special_tokens=False),
                                                    text)
    say("tokenizers", packages, "%s: chats by the template" % word, "%d of %d differ"
        % (differ, len(chats)), "0", differ == 0 and len(ours) == len(chats), first and repr(first)[:300])


# ---- servers -----------------------------------------------------------------------------------

def part_servers(folder):
    src = os.path.join(folder, "s-src")
    make_model(src, False, "bfloat16")
    tried = 0
    for kind, module, name in (
            ("compressed-tensors", "vllm.model_executor.layers.quantization.compressed_tensors."
             "compressed_tensors", "CompressedTensorsConfig"),
            ("modelopt", "vllm.model_executor.layers.quantization.modelopt", "ModelOptNvFp4Config"),
            ("modelopt", "sglang.srt.layers.quantization.modelopt_quant", "ModelOptFp4Config")):
        server = module.split(".", maxsplit=1)[0]
        try:
            packages = versions(server)
            with quietly(), contextlib.redirect_stderr(io.StringIO()):
                cls = getattr(importlib.import_module(module), name)
        except (NotRun, ImportError, OSError, AttributeError, RuntimeError) as e:
            print("servers\t%s\t%s\t-\t-\tnot run: %s" % (server, name, str(e).split("\n")[0]), flush=True)
            continue
        out = os.path.join(folder, "s-" + kind)
        if not os.path.exists(out):
            tool("datpack", "-q", "--to", kind, "-o", out + "/", src)
        with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
            config = json.load(f)["quantization_config"]
        tried += 1
        try:
            made = cls.from_config(config)
            say("servers", packages, "%s.from_config of our %s" % (name, kind),
                "accepted" if isinstance(made, cls) else repr(made), "-", True)
        except Exception as e: # what it says is the result
            say("servers", packages, "%s.from_config of our %s" % (name, kind), repr(e)[:200], "-", False)
    if not tried:
        raise NotRun("neither vLLM nor SGLang can be imported")


PARTS = {"transformers": part_transformers, "compressed": part_compressed,
         "llmcompressor": part_llmcompressor, "modelopt": part_modelopt, "w4a4": part_w4a4,
         "llama": part_llama, "serve": part_serve, "sign": part_sign,
         "tokenizers": part_tokenizers, "servers": part_servers}
QWEN3 = None
LINES = 20000


def main(argv):
    global QWEN3, LINES, failed
    try:
        opts, chosen = getopt.gnu_getopt(argv, "q:n:h")
        o = dict(opts)
        QWEN3, LINES = o.get("-q"), int(o.get("-n", LINES))
        if "-h" in o or set(chosen) - set(PARTS):
            raise getopt.GetoptError("want parts of: " + " ".join(PARTS))
    except (getopt.GetoptError, ValueError) as e:
        print("interop.py: %s" % e, __doc__.strip(), sep="\n", file=sys.stderr)
        return 2
    print("part\tversions\twhat\tfigure\tlimit\tverdict")
    for part in chosen or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                PARTS[part](folder)
            except (NotRun, ImportError) as e:
                print("%s\t-\t-\t-\t-\tnot run: %s" % (part, e), flush=True)
            except Exception as e: # one neighbour's failure hides no other's
                failed += 1
                if os.environ.get("INTEROP_TRACE"):
                    raise
                print("%s\t-\t-\t-\t-\tFAILED: %s: %s" % (part, type(e).__name__, str(e)[:500]),
                      flush=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
