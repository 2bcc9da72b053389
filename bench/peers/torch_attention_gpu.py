#!/usr/bin/env python3
"""The peer of Sparrow's attention on a GPU: PyTorch's scaled_dot_product_attention, causal, with each backend that it has.

    python3 bench/peers/torch_attention_gpu.py [--sequences 64] [--length 1024] [--heads 12] [--head-width 64] [--dropout 0]

Queries, keys and values are views of one [sequences, length, 3 * heads * head_width] matrix in bfloat16, as a product leaves them, and
their gradients go to one. Forward and backward are measured apart, each the median of 20 rounds of 10 calls between two events; the
rate counts 2 products of a causal forward and 5 of a backward. Prints a line for each backend, and with --json one JSON object.
"""

import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
CALLS = 10


def median_ms(call):
    for _ in range(3):
        call()
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.manual_seed(1)
    width = args.heads * args.head_width
    shape = (args.sequences, args.length)
    qkv = torch.randn(*shape, 3 * width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y_gradients = torch.randn(args.sequences, args.heads, args.length, args.head_width, device="cuda", dtype=torch.bfloat16)
    y_gradients = y_gradients.transpose(1, 2).contiguous().transpose(1, 2)
    product = args.sequences * args.length * width * (args.length + 1)
    results = []
    for name, backend in BACKENDS.items():
        with sdpa_kernel(backend):

            def forward():
                q, k, v = (x.view(*shape, args.heads, args.head_width).transpose(1, 2) for x in qkv.split(width, dim=2))
                return q, k, v, torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, dropout_p=args.dropout, is_causal=True)

            try:
                q, k, v, y = forward()
                forward_ms = median_ms(forward)
                backward_ms = median_ms(lambda: torch.autograd.grad(y, (q, k, v), y_gradients, retain_graph=True))
            except RuntimeError as error:
                print(f"{name:8} {str(error).splitlines()[0]}")
                continue
        results.append({"backend": name, "forward_ms": forward_ms, "backward_ms": backward_ms})
        print(f"{name:8} forward {forward_ms:.3f} ms, {2 * product / forward_ms / 1e9:.0f} TFLOP/s;"
              f" backward {backward_ms:.3f} ms, {5 * product / backward_ms / 1e9:.0f} TFLOP/s")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), **vars(args), "results": results}, file)


if __name__ == "__main__":
    main()
