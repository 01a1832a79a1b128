#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The peer of bench/train.sh: full-parameter steps of a Qwen3 in PyTorch on the CPU, f32.

usage: train_torch.py CONFIG BATCH LENGTH STEPS THREADS [compile]

Random weights of the shape of config.json, fused AdamW, clip 1, every token learnt.
Prints the median milliseconds of a step."""
import json
import statistics
import sys
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

path, batch, length, steps, threads = sys.argv[1], *map(int, sys.argv[2:6])
torch.set_num_threads(threads)
torch.manual_seed(0)
with open(path) as f:
    given = json.load(f)
config = Qwen3Config(**{k: v for k, v in given.items() if k not in ("architectures", "torch_dtype")},
                     use_cache=False, attn_implementation="sdpa")
torch.set_default_dtype(torch.float32)
model = Qwen3ForCausalLM(config)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0, fused=True)
run = torch.compile(model) if sys.argv[6:] == ["compile"] else model
ids = torch.randint(0, config.vocab_size, (batch, length + 1))


def step():
    logits = run(input_ids=ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss)


step()
times = []
for _ in range(steps):
    t = time.monotonic()
    step()
    times.append(time.monotonic() - t)
print("%.3f" % (statistics.median(times) * 1000))
