#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The peer of bench/gpu.sh: full-parameter training steps and greedy decoding of a Qwen3 model in
PyTorch, in the form that was the fastest of those tried: bf16 everywhere, each decoder layer
compiled, loss over 2048 tokens at a time, fused AdamW, norm clipped at 1.

usage: gpu_torch.py train BATCH LENGTH STEPS | decode PROMPT TOKENS

CONFIG is the model's config.json (default: Qwen3-4B's, beside this file).

Prints one line: what, milliseconds (median), tokens a second, peak GiB."""
import os
import sys
import time

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

PIECE = 2048


def model():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "qwen3-4b-config.json")
    config = Qwen3Config.from_json_file(os.environ.get("CONFIG", beside))
    config._attn_implementation = "sdpa"
    with torch.device("cuda"):
        return Qwen3ForCausalLM(config)


@torch.compile(dynamic=False)
def piece_loss(hidden, head, labels):
    return F.cross_entropy((hidden @ head.T).float(), labels, reduction="sum")


class PiecewiseLoss(torch.autograd.Function):
    """Mean cross-entropy whose logits exist for some tokens at a time; the gradients are
    made on the way forward."""

    @staticmethod
    def forward(ctx, hidden, head, labels):
        into_hidden = torch.empty_like(hidden)
        into_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device)
        total = torch.zeros((), dtype=torch.float32, device=head.device)
        for at in range(0, len(labels), PIECE):
            part = slice(at, at + PIECE)
            with torch.enable_grad():
                h = hidden[part].detach().requires_grad_()
                w = head.detach().requires_grad_()
                loss = piece_loss(h, w, labels[part])
                loss.backward()
            into_hidden[part] = h.grad
            into_head += w.grad
            total += loss.detach()
        ctx.save_for_backward(into_hidden / len(labels),
                              (into_head / len(labels)).to(head.dtype))
        return total / len(labels)

    @staticmethod
    def backward(ctx, g):
        into_hidden, into_head = ctx.saved_tensors
        return g * into_hidden, g * into_head, None


def train(batch, length, steps):
    m = model().train()
    for layer in m.model.layers:
        layer.compile(dynamic=False)
    adam = torch.optim.AdamW(m.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, 151643, (batch, length + 1), device="cuda")

    def step():
        hidden = m.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        loss = PiecewiseLoss.apply(hidden.reshape(-1, hidden.shape[-1]), m.lm_head.weight,
                                   ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2], batch * length


def decode(prompt, tokens):
    m = model().eval()
    ids = torch.randint(0, 151643, (1, prompt), device="cuda")
    options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                   cache_implementation="static", pad_token_id=0)
    with torch.no_grad():
        for _ in range(2):
            m.generate(ids, **options)
        torch.cuda.synchronize()
        start = time.perf_counter()
        m.generate(ids, **options)
        torch.cuda.synchronize()
    return time.perf_counter() - start, tokens


def main(argv):
    what, numbers = argv[0], [int(a) for a in argv[1:]]
    seconds, tokens = (train if what == "train" else decode)(*numbers)
    print("torch %s %s\t%.1f\t%.0f\t%.1f" % (torch.__version__, " ".join(argv), seconds * 1e3,
                                            tokens / seconds,
                                            torch.cuda.max_memory_allocated() / 2**30))


if __name__ == "__main__":
    main(sys.argv[1:])
