#!/usr/bin/env python3
"""Writes a golden run of a small GPT-2: ten AdamW steps, computed by PyTorch in float64.

    python3 tests/golden/gpt2_golden.py [DIRECTORY]

It writes gpt2_golden.json: the configuration, and of each step the mean cross-entropy before its update and the gradients' norm
before clipping; of each parameter, by the hub's names, some elements and sums before the first step, of its gradients in that
step, before clipping, and behind the last. Made with PyTorch 1.13 and NumPy; the versions used are written into the file. What
is Sparrow's own (initial values, the tokens) is computed again from its definition; layers are torch.nn.functional's, gradients
autograd's, updates torch.optim.AdamW's, clipping torch.nn.utils.clip_grad_norm_'s.
"""

import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

from dlrm_golden import initial_parameter, random_bits

CONFIG = {"layers": 3, "heads": 4, "width": 32, "context": 24, "vocabulary": 61}
# eps is far above the rounding of float32 gradients. Adam divides what is smaller by itself: an element whose gradient is nothing
# but rounding (keys' biases have none) would go its own way by a whole learning rate a step. With 1e-4 PyTorch's own run in float32
# is within 8e-6 of this one, relative to a tensor's usual weight; with 1e-5 it would be 1.3e-4 away.
TRAIN = {"seed": 11, "steps": 10, "sequences": 4, "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-4,
         "weight_decay": 0.1, "clip_norm": 1.0}


def stddev_of(name):
    if name.endswith("c_proj.weight"):
        return 0.02 / math.sqrt(2 * CONFIG["layers"])
    return 0.02


def samples(values):
    flat = values.detach().reshape(-1)
    return {"shape": list(values.shape), "first": flat[:5].tolist(), "last": flat[-5:].tolist(), "sum": flat.sum().item(),
            "sum_of_squares": (flat * flat).sum().item()}


def shapes():
    width = CONFIG["width"]
    result = {"wte.weight": [CONFIG["vocabulary"], width], "wpe.weight": [CONFIG["context"], width],
              "ln_f.weight": [width], "ln_f.bias": [width]}
    for b in range(CONFIG["layers"]):
        for norm in ["ln_1", "ln_2"]:
            result[f"h.{b}.{norm}.weight"] = result[f"h.{b}.{norm}.bias"] = [width]
        for linear, ends in {"attn.c_attn": [width, 3 * width], "attn.c_proj": [width, width], "mlp.c_fc": [width, 4 * width],
                             "mlp.c_proj": [4 * width, width]}.items():
            result[f"h.{b}.{linear}.weight"] = ends
            result[f"h.{b}.{linear}.bias"] = ends[1:]
    return result


def logits_of(p, tokens):
    """[sequences, length] -> [sequences, length, vocabulary], as Radford et al. describe it."""
    n, length = tokens.shape
    width, heads = CONFIG["width"], CONFIG["heads"]

    def norm(x, name):
        return F.layer_norm(x, [width], p[name + ".weight"], p[name + ".bias"], eps=1e-5)

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    x = F.embedding(tokens, p["wte.weight"]) + F.embedding(torch.arange(length), p["wpe.weight"])
    for b in range(CONFIG["layers"]):
        q, k, v = (part.view(n, length, heads, width // heads).transpose(1, 2)
                   for part in linear(norm(x, f"h.{b}.ln_1"), f"h.{b}.attn.c_attn").split(width, dim=2))
        scores = (q @ k.transpose(2, 3) / math.sqrt(width // heads)).masked_fill(future, -math.inf)
        attended = (torch.softmax(scores, dim=3) @ v).transpose(1, 2).reshape(n, length, width)
        x = x + linear(attended, f"h.{b}.attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"h.{b}.ln_2"), f"h.{b}.mlp.c_fc"), approximate="tanh"), f"h.{b}.mlp.c_proj")
    return norm(x, "ln_f") @ p["wte.weight"].T


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    parameters = {}
    for name, shape in shapes().items():
        if len(shape) == 2:
            parameters[name] = initial_parameter(TRAIN["seed"], name, shape, stddev_of(name) ** 2)
        else:
            is_scale = "ln_" in name and name.endswith("weight")
            parameters[name] = torch.full(shape, 1.0 if is_scale else 0.0, dtype=torch.float64, requires_grad=True)
    before = {name: samples(p) for name, p in parameters.items()}

    decayed = [p for p in parameters.values() if p.dim() == 2]
    others = [p for p in parameters.values() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": TRAIN["weight_decay"]}, {"params": others, "weight_decay": 0}],
                                  lr=TRAIN["learning_rate"], betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])
    losses, norms, gradients = [], [], {}
    for step in range(TRAIN["steps"]):
        rows = []
        for s in range(TRAIN["sequences"]):
            # A cycle with steps of 1 to 3, so that there is something to learn.
            at = random_bits(1000 * step + s, 0) % CONFIG["vocabulary"]
            row = []
            for t in range(CONFIG["context"] + 1):
                row.append(at)
                at = (at + 1 + random_bits(1000 * step + s, t + 1) % 3) % CONFIG["vocabulary"]
            rows.append(row)
        tokens = torch.tensor(rows)
        logits = logits_of(parameters, tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, CONFIG["vocabulary"]), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {name: samples(p.grad) for name, p in parameters.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), TRAIN["clip_norm"]).item())
        optimizer.step()
        losses.append(loss.item())

    golden = {"torch": torch.__version__, "numpy": np.__version__, "config": CONFIG,
              "train": TRAIN, "losses": losses, "norms": norms, "before": before, "gradients": gradients,
              "after": {name: samples(p) for name, p in parameters.items()}}
    with open(os.path.join(directory, "gpt2_golden.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
