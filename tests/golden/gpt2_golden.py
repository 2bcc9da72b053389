#!/usr/bin/env python3
"""Writes a golden run of a small GPT-2: ten AdamW steps of the hub's own GPT2LMHeadModel, in float64.

    python3 tests/golden/gpt2_golden.py [DIRECTORY]

It writes gpt2_golden.json: the configuration, and of each step the mean cross-entropy before its update and the gradients' norm
before clipping; of each parameter, by the hub's names, some elements and sums before the first step and behind the last. Made
with PyTorch 2.11 and transformers 5.17; the versions used are written into the file. What is Sparrow's own (initial values,
the tokens) is computed again from its definition; forward and backward are the hub's model's and autograd's, updates
torch.optim.AdamW's, clipping torch.nn.utils.clip_grad_norm_.
"""

import json
import math
import os
import sys

import numpy as np
import torch
import transformers

from dlrm_golden import initial_parameter, random_bits

CONFIG = {"layers": 3, "heads": 4, "width": 32, "context": 24, "vocabulary": 61}
TRAIN = {"seed": 11, "steps": 10, "sequences": 4, "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
         "weight_decay": 0.1, "clip_norm": 1.0}


def stddev_of(name):
    if name.endswith("c_proj.weight"):
        return 0.02 / math.sqrt(2 * CONFIG["layers"])
    return 0.02


def samples(values):
    flat = values.detach().reshape(-1)
    return {"shape": list(values.shape), "first": flat[:5].tolist(), "last": flat[-5:].tolist(), "sum": flat.sum().item(),
            "sum_of_squares": (flat * flat).sum().item()}


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=CONFIG["vocabulary"], n_positions=CONFIG["context"], n_embd=CONFIG["width"], n_layer=CONFIG["layers"],
        n_head=CONFIG["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager")).double()
    parameters = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, p in parameters.items():
            if p.dim() == 2:
                p.copy_(initial_parameter(TRAIN["seed"], name, list(p.shape), stddev_of(name) ** 2))
            else:
                p.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
    before = {name: samples(p) for name, p in parameters.items()}

    decayed = [p for p in parameters.values() if p.dim() == 2]
    others = [p for p in parameters.values() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": TRAIN["weight_decay"]}, {"params": others, "weight_decay": 0}],
                                  lr=TRAIN["learning_rate"], betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"])
    losses, norms = [], []
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
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, CONFIG["vocabulary"]), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_norm"]).item())
        optimizer.step()
        losses.append(loss.item())

    golden = {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__, "config": CONFIG,
              "train": TRAIN, "losses": losses, "norms": norms, "before": before,
              "after": {name: samples(p) for name, p in parameters.items()}}
    with open(os.path.join(directory, "gpt2_golden.json"), "w") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
