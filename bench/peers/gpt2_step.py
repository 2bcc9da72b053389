"""The training step of bench/worker/gpt2_bench.cc in PyTorch: what Sparrow is held against.

The same arithmetic: a GPT-2 with a tied head, AdamW with decay on matrices alone, clipping by the global norm at 1, tokens
that follow Zipf's law, a new batch for each step, copied from pinned memory. What makes PyTorch fast is on: torch.compile,
scaled_dot_product_attention (flash or cuDNN, as it chooses), the fused AdamW, TF32 where float32 is left, a vocabulary
padded to 50,304, gradients set to None.

Varies: --dtype amp (float32 weights, bfloat16 autocast; what Sparrow's BFLOAT16 is) or bf16 (weights and optimizer state in
bfloat16, which no longer keeps small updates, as a bound), --micro (windows at a time), --mode of torch.compile, --gpus: so many processes, each with a GPU and --windows windows of its own,
under DistributedDataParallel; tokens/s are those of all, and the time is rank 0's.

  python3 bench/peers/gpt2_step.py [--model 124M|355M|774M] [--windows 64] [--micro 64] [--dtype amp|bf16] [--steps 40] [--gpus 1]
"""

import argparse
import contextlib
import math
import os
import statistics
import time

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SIZES = {"124M": (12, 12, 768), "355M": (24, 16, 1024), "774M": (36, 20, 1280)}
CONTEXT = 1024
VOCABULARY, PADDED = 50257, 50304
PEAK = 989.5e12


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        sequences, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (t.view(sequences, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_c_proj(y.transpose(1, 2).reshape(sequences, length, width))
        return x + self.mlp_c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.wte = nn.Embedding(PADDED, width)
        self.wpe = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, PADDED), targets.view(-1), reduction="sum")


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--model", default="124M", choices=SIZES)
    flags.add_argument("--windows", type=int, default=64)
    flags.add_argument("--micro", type=int, default=64)
    flags.add_argument("--dtype", default="amp", choices=("amp", "bf16"))
    flags.add_argument("--mode", default="default")
    flags.add_argument("--steps", type=int, default=40)
    flags.add_argument("--warm-up", type=int, default=5)
    flags.add_argument("--gpus", type=int, default=1)
    flags = flags.parse_args()
    if flags.gpus == 1:
        train(0, flags)
    else:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29531")
        multiprocessing.spawn(train, (flags,), nprocs=flags.gpus)


def train(rank, flags):
    torch.cuda.set_device(rank)
    if flags.gpus > 1:
        distributed.init_process_group("nccl", rank=rank, world_size=flags.gpus)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    layers, heads, width = SIZES[flags.model]
    model = Gpt2(layers, heads, width).cuda()
    if flags.dtype == "bf16":
        model = model.bfloat16()
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=3e-4, fused=True)
    forward = torch.compile(model, mode=None if flags.mode == "default" else flags.mode)
    if flags.gpus > 1:
        forward = DistributedDataParallel(forward, device_ids=[rank], gradient_as_bucket_view=True, static_graph=True)
        torch.manual_seed(1 + rank)  # Of its windows.

    ranks = 1.0 / torch.arange(1, VOCABULARY + 1, dtype=torch.float64)
    count = flags.windows * CONTEXT

    def batch():
        stream = torch.multinomial(ranks, count + 1, replacement=True)
        return [t.view(flags.windows, CONTEXT).pin_memory() for t in (stream[:-1], stream[1:])]

    def step(tokens, targets):
        tokens, targets = tokens.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        total = torch.zeros((), device="cuda")
        for first in range(0, flags.windows, flags.micro):
            part = slice(first, first + flags.micro)
            last = first + flags.micro >= flags.windows
            with contextlib.nullcontext() if flags.gpus == 1 or last else forward.no_sync():
                with torch.autocast("cuda", torch.bfloat16, enabled=flags.dtype == "amp"):
                    loss = forward(tokens[part], targets[part])
                (loss / count).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total, norm

    times = []
    for i in range(flags.warm_up + flags.steps):
        tokens, targets = batch()
        torch.cuda.synchronize()
        if flags.gpus > 1:
            distributed.barrier()
        start = time.perf_counter()
        total, norm = step(tokens, targets)
        loss = total.item() / count
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        if i == 0 and rank == 0:
            print(f"first step {elapsed:.1f} s (compiles), loss {loss:.4f}", flush=True)
        if i >= flags.warm_up:
            times.append(elapsed * 1e3)
    if flags.gpus > 1:
        distributed.destroy_process_group()
    if rank > 0:
        return
    median = statistics.median(times)
    flops = 6 * (layers * 12 * width * width + width * VOCABULARY) + 6 * layers * CONTEXT * width
    rate = flags.gpus * count / median * 1e3
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}, {flags.gpus} GPUs, {flags.model}, {flags.dtype}, micro batches of "
          f"{flags.micro} of {flags.windows} windows, compile {flags.mode}: median {median:.2f} ms (min {min(times):.2f}, "
          f"max {max(times):.2f}) of {len(times)} steps, {rate * 1e-3:.1f} K tokens/s, MFU {100 * flops * rate / flags.gpus / PEAK:.1f} %; "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB; loss {loss:.6f}")


if __name__ == "__main__":
    main()
