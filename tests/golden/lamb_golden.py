#!/usr/bin/env python3
"""Writes a golden run of LAMB: five steps of five tensors, in float64.

    python3 tests/golden/lamb_golden.py [DIRECTORY]

It writes lamb_golden.json: the settings, and after each step the first and last elements of each tensor. Written from algorithm 2
of You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020), with NumPy alone; tensors with one
extent are neither decayed nor scaled. Weights and gradients come from Sparrow's counter-based generator, written again here,
and are rounded to float32 as the test rounds them.
"""

import json
import os
import sys

import numpy as np

MASK = (1 << 64) - 1
SHAPES = [[40, 130], [3, 5], [6, 7], [130], [1]]  # t0 to t4; t2 starts with zeros.
SETTINGS = {"learning_rate": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1, "gradient_scale": 0.25}


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def uniform(seed, index):
    return (mix64(seed ^ mix64(index)) >> 11) / (1 << 53)


def hash_of_short(text):
    """XXH64, seed 0, of fewer than four bytes."""
    h = (0x27D4EB2F165667C5 + len(text)) & MASK
    for byte in text:
        h ^= byte * 0x27D4EB2F165667C5 & MASK
        h = ((h << 11 | h >> 53) & MASK) * 0x9E3779B185EBCA87 & MASK
    h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4F & MASK
    h = (h ^ h >> 29) * 0x165667B19E3779F9 & MASK
    return h ^ h >> 32


def numbers(seed, first, n):
    return np.array([np.float32(uniform(seed, first + i) - 0.5) for i in range(n)], dtype=np.float64)


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    s = SETTINGS
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    names = [f"t{t}" for t in range(len(SHAPES))]
    x = [numbers(hash_of_short(name.encode()), 0, size) * (name != "t2") for name, size in zip(names, sizes)]
    m = [np.zeros(size) for size in sizes]
    v = [np.zeros(size) for size in sizes]
    after = []
    for t in range(1, 6):
        rate = s["learning_rate"] / t
        for i, shape in enumerate(SHAPES):
            g = numbers(99 + t, sum(sizes[:i]), sizes[i]) * s["gradient_scale"]
            m[i] = s["beta1"] * m[i] + (1 - s["beta1"]) * g
            v[i] = s["beta2"] * v[i] + (1 - s["beta2"]) * g**2
            r = m[i] / (1 - s["beta1"]**t) / (np.sqrt(v[i] / (1 - s["beta2"]**t)) + s["eps"])
            if len(shape) == 1:
                x[i] = x[i] - rate * r
                continue
            u = r + s["weight_decay"] * x[i]
            norms = np.linalg.norm(x[i]), np.linalg.norm(u)
            x[i] = x[i] - rate * (norms[0] / norms[1] if min(norms) > 0 else 1) * u
        shown = [min(3, size) for size in sizes]
        after.append({name: [*w[:n].tolist(), *w[-n:].tolist()] for name, w, n in zip(names, x, shown)})
    with open(os.path.join(directory, "lamb_golden.json"), "w") as f:
        json.dump({**s, "shapes": SHAPES, "after": after}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
