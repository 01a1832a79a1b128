#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times what other programs take to quantize a matrix to NVFP4 on the CPU.

usage: quant_peers.py [-j THREADS] [-r RUNS] [-s ROWSxCOLS] [PEER]...

  torchao             without a tensor scale: our torchao
  modelopt            our max --variant modelopt
  compressed-tensors  scales by its observer's arithmetic, then its compressor
  te                  TransformerEngine's reference: max, and 4over6 by mse
  copy                the matrix copied by torch, for comparison

A line of CSV a way of quantizing, a header first: peer,version,what,seconds,elements.
seconds is the median of RUNS (3) after one that is not counted.  In the window: bf16
in memory to codes and scales in memory, the largest magnitude of the tensor included;
outside: imports, the matrix (9728x2560 of normal numbers), files.  THREADS (all
processors) are torch's.

What is not installed is named on stderr; exit 77 if nothing is.  How to install:
tests/peers_nvfp4.py.
"""
import getopt
import os
import statistics
import sys
import time
import warnings

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))

try:
    import torch

    import peers_nvfp4 as peers
except ImportError:
    print("torch is not installed", file=sys.stderr)
    sys.exit(77)


def torchao(x):
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize
    yield "torchao", lambda: nvfp4_quantize(x)


def modelopt(x):
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    yield "max modelopt", lambda: NVFP4QTensor.quantize(x, 16)


def compressed_tensors(x):
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization.utils.helpers import (calculate_qparams,
                                                               generate_gparam)
    scheme = peers.ct_scheme()

    def work():
        divisor = generate_gparam(x.min().view(1), x.max().view(1))
        blocks = x.unflatten(-1, (-1, 16))
        scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights,
                                     global_scale=divisor)
        NVFP4PackedCompressor.compress(
            {"weight": x, "weight_scale": scale, "weight_global_scale": divisor}, scheme)

    yield "nvfp4-pack-quantized", work


def te(x):
    ref = peers.te_reference()._quantize_blockwise_reference

    def work(**more):
        amax = x.abs().max().to(torch.float32).view(1)
        return ref(x, amax, 16, 1, pow_2_scales=False, eps=0.0, **more)

    yield "max", work
    yield "4over6", lambda: work(nvfp4_use_4over6=True, nvfp4_e4m3_max=256,
                                 nvfp4_4over6_err_mode="MSE")


def copy(x):
    y = torch.empty_like(x)
    yield "copy", lambda: y.copy_(x)


PEERS = {"torchao": torchao, "modelopt": modelopt,
         "compressed-tensors": compressed_tensors, "te": te, "copy": copy}


def timed(work, runs):
    work()
    took = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def main(argv):
    try:
        opts, chosen = getopt.gnu_getopt(argv, "j:r:s:h")
        o = dict(opts)
        threads = int(o.get("-j", os.cpu_count()))
        runs = int(o.get("-r", 3))
        rows, cols = map(int, o.get("-s", "9728x2560").split("x"))
        if "-h" in o or set(chosen) - set(PEERS) or min(threads, runs, rows) < 1 or cols % 16:
            raise ValueError("want options and peers as below")
    except (getopt.GetoptError, ValueError) as e:
        print("quant_peers.py: %s" % e, __doc__.strip(), sep="\n", file=sys.stderr)
        return 2
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x = (torch.randn(rows, cols) * .02).to(torch.bfloat16)
    done = 0
    print("peer,version,what,seconds,elements", flush=True)
    for name in chosen or PEERS:
        version = torch.__version__ if name == "copy" else peers.version(name)
        if not version:
            print("%s: not installed" % name, file=sys.stderr)
            continue
        with torch.no_grad():
            for what, work in PEERS[name](x):
                print("%s,%s,%s,%.4f,%d" % (name, version, what, timed(work, runs),
                                            x.numel()), flush=True)
        done += name != "copy"
    return 0 if done else 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
