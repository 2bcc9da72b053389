#!/usr/bin/env python3
"""Loads what `sparrowctl export` writes by the hub's own loader, and what the hub writes by `train.init_from`: the same
validation loss in both directions, no weight missing and none too many. Needs PyTorch, transformers, safetensors, NumPy.

  gpt2_hub.py build/release/bin/sparrowctl
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import safetensors
import torch
import transformers

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 3, 4, 64, 32, 101
TOLERANCE = 1e-4
JOB = """
name: "hub"
data { train { path: "train.bin" } test { path: "val.bin" } tokens {} }
model { gpt2 { layers: %d heads: %d width: %d context: %d vocabulary: %d } }
train { batch_size: 16 steps_max: 150 optimizer { learning_rate: 3e-3 adamw { weight_decay: 0.1 } } }
""" % (LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY)


def walk(count, seed):
    """Tokens of which each follows from the one before, but for four ways to go on."""
    steps = np.random.default_rng(seed).choice([1, 2, 5, 40], count)
    return (np.cumsum(steps) % VOCABULARY).astype("<u2")


def loss_of(model, tokens):
    windows = (len(tokens) - 1) // CONTEXT
    inputs = torch.from_numpy(tokens[: windows * CONTEXT].astype(np.int64)).reshape(windows, CONTEXT)
    targets = torch.from_numpy(tokens[1 : windows * CONTEXT + 1].astype(np.int64))
    with torch.no_grad():
        logits = model.eval()(inputs).logits
    return torch.nn.functional.cross_entropy(logits.double().reshape(-1, VOCABULARY), targets).item()


def main():
    ctl = os.path.abspath(sys.argv[1])
    print("torch", torch.__version__, "transformers", transformers.__version__, "safetensors", safetensors.__version__)
    good = True

    def compare(what, ours, theirs):
        nonlocal good
        good = good and abs(ours - theirs) <= TOLERANCE
        print(f"{what}: {ours:.7f} by Sparrow, {theirs:.7f} by the hub's model, difference {abs(ours - theirs):.1e}")

    with tempfile.TemporaryDirectory() as directory:
        def sparrowctl(*arguments):
            subprocess.run([ctl, *arguments], cwd=directory, check=True, stdout=subprocess.DEVNULL)

        def run(name, *sets):
            flags = [word for each in sets for word in ("--set", each)]
            sparrowctl("run", "hub.textproto", "--data-root", ".", "--json", name, *flags)
            return json.load(open(os.path.join(directory, name)))

        validation = walk(32 * 97 + 1, seed=2)
        walk(60000, seed=1).tofile(os.path.join(directory, "train.bin"))
        validation.tofile(os.path.join(directory, "val.bin"))
        open(os.path.join(directory, "hub.textproto"), "w").write(JOB)

        trained = run("trained.json")
        sparrowctl("export", trained["checkpoint"], "--to", "exported")
        model, info = transformers.GPT2LMHeadModel.from_pretrained(
            os.path.join(directory, "exported"), output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[kind]:
                good = False
                print(kind, info[kind])
        compare("exported", trained["eval_loss"], loss_of(model, validation))

        torch.manual_seed(3)
        config = transformers.GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=CONTEXT,
                                         vocab_size=VOCABULARY, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
        for dtype in (torch.float32, torch.bfloat16):
            model = transformers.GPT2LMHeadModel(config).to(dtype)
            name = str(dtype).split(".")[1]
            model.save_pretrained(os.path.join(directory, name))
            imported = run("imported.json", "train.epochs=0", f"train.init_from={name}/model.safetensors")
            compare(f"imported {name}", imported["eval_loss"], loss_of(model.float(), validation))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
