#!/usr/bin/env python3
"""The peer of Sparrow's GPU step: MLPerf's DLRM in PyTorch on one GPU, in the strongest forms that PyTorch has.

    python3 bench/peers/torch_dlrm_gpu.py [--batch 65536 8192 2048] [--what given tables adagrad] [--forms graph compile]

Shape: bottom 13-512-256-128, dot of 27 x 128, top 1024-1024-512-256-1, 26 one-hot features of dimension 128. One step is
forward, BCE with logits, backward and the update, with inputs in GPU memory. What is measured:

  given     The 26 vectors are given in bfloat16, and get a gradient. Dense SGD.
  tables    26 tables of 1 M x 128 float32 on the GPU, as one array [26 M, 128] with one gather for all features (faster than 26
            nn.EmbeddingBags). Sparse SGD by one index_add_.
  adagrad   As tables, with row-wise Adagrad: equal rows are summed first (torch.unique), as Adagrad needs.

Forms: eager; graph (eager, recorded as one CUDA graph); compile (torch.compile, recorded as one CUDA graph). Two precisions: amp
(float32 weights, autocast to bfloat16) and bf16 (bfloat16 weights, which Sparrow does not stoop to; the faster of the two is the
peer). torch.unique waits for the host, so adagrad cannot be recorded and runs eager, its dense half compiled. Ids are uniform, or
Zipf with --zipf EXPONENT. Each figure is the median of 20 rounds of several steps, one after the other, between two events. Prints a
table, and with --json the same as one JSON object.
"""

import argparse
import json
import statistics
import sys
import time

import torch

FEATURES, DIM, ROWS, DENSE = 26, 128, 1_000_000, 13
BOTTOM, TOP = [512, 256, 128], [1024, 1024, 512, 256, 1]


def mlp(inputs, sizes, relu_last):
    layers = []
    for i, size in enumerate(sizes):
        layers.append(torch.nn.Linear(inputs, size))
        if relu_last or i + 1 < len(sizes):
            layers.append(torch.nn.ReLU())
        inputs = size
    return torch.nn.Sequential(*layers)


class Dlrm(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.bottom = mlp(DENSE, BOTTOM, True)
        self.top = mlp(DIM + (FEATURES + 1) * FEATURES // 2, TOP, False)
        self.register_buffer("pairs", torch.tril_indices(FEATURES + 1, FEATURES + 1, offset=-1))

    def forward(self, dense, vectors):  # vectors: [rows, FEATURES, DIM]
        bottom = self.bottom(dense)
        all_vectors = torch.cat([bottom[:, None, :], vectors.to(bottom.dtype)], dim=1)
        dots = torch.bmm(all_vectors, all_vectors.transpose(1, 2))
        return self.top(torch.cat([bottom, dots[:, self.pairs[0], self.pairs[1]]], dim=1))[:, 0]


def zipf_ids(shape, exponent):
    """Ranks of a Zipf distribution over ROWS, by inverting its cumulated weights; scattered over the table."""
    weights = torch.arange(1, ROWS + 1, dtype=torch.float64, device="cuda").pow(-exponent).cumsum(0)
    ranks = torch.searchsorted(weights, torch.rand(shape, dtype=torch.float64, device="cuda") * weights[-1])
    return (ranks.clamp_(max=ROWS - 1) * 7919 + 13) % ROWS


def median_ms(step, steps_a_round):
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(steps_a_round):
            step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / steps_a_round)
    return statistics.median(times)


def record(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def make_step(what, precision, batch, compiled, zipf):
    torch.manual_seed(1)
    model = Dlrm().cuda()
    if precision == "bf16":
        model = model.bfloat16()
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    dense = torch.rand(batch, DENSE, device="cuda").to(kind)
    labels = (torch.rand(batch, device="cuda") < 0.25).float()
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    lr = 0.01

    def forward(dense, vectors):
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp", cache_enabled=False):
            logits = model(dense, vectors)
        return loss_of(logits.float(), labels)

    if compiled:
        torch._dynamo.reset()
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)

    def dense_half(vectors):
        optimizer.zero_grad(set_to_none=False)
        loss = forward(dense, vectors)
        loss.backward()
        optimizer.step()
        return loss

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if what == "given":
        vectors = torch.rand(batch, FEATURES, DIM, device="cuda", dtype=torch.bfloat16).requires_grad_()
        vectors.grad = torch.zeros_like(vectors)

        def step():
            vectors.grad.zero_()
            return dense_half(vectors)

        return step

    table = torch.empty(FEATURES * ROWS, DIM, device="cuda").uniform_(-1e-3, 1e-3)
    ids = zipf_ids((batch, FEATURES), zipf) if zipf else torch.randint(ROWS, (batch, FEATURES), device="cuda")
    index = (ids + torch.arange(FEATURES, device="cuda") * ROWS).flatten()
    accumulator = torch.zeros(FEATURES * ROWS, device="cuda")

    def step():
        vectors = table[index].view(batch, FEATURES, DIM).bfloat16().requires_grad_()
        loss = dense_half(vectors)
        gradients = vectors.grad.view(-1, DIM)
        if what == "tables":
            table.index_add_(0, index, gradients.float(), alpha=-lr)
        else:
            rows, inverse = torch.unique(index, return_inverse=True)
            sums = torch.zeros(len(rows), DIM, device="cuda").index_add_(0, inverse, gradients.float())
            accumulator[rows] += sums.square().mean(1)
            table.index_add_(0, rows, sums / (accumulator[rows].sqrt() + 1e-8)[:, None], alpha=-lr)
        return loss

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[65536, 8192, 2048])
    parser.add_argument("--what", nargs="+", choices=["given", "tables", "adagrad"], default=["given", "tables", "adagrad"])
    parser.add_argument("--forms", nargs="+", choices=["eager", "graph", "compile"], default=["graph", "compile"])
    parser.add_argument("--precisions", nargs="+", choices=["amp", "bf16"], default=["amp", "bf16"])
    parser.add_argument("--zipf", type=float, default=0.0, help="exponent; 0: uniform ids")
    parser.add_argument("--json", help="also write the results here")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}\n")
    print("| what | batch | form | precision | ms a step | M samples/s | loss |\n|---|---|---|---|---|---|---|", flush=True)
    results = []
    for what in args.what:
        for batch in args.batch:
            for precision in args.precisions:
                for form in args.forms:
                    if what == "adagrad" and form == "graph":
                        continue
                    begin = time.time()
                    try:
                        step = make_step(what, precision, batch, form == "compile", args.zipf)
                        run = step if form == "eager" or what == "adagrad" else record(step)
                        ms = median_ms(run, max(1, 65536 // batch // 2))
                        loss = float(step())
                    except Exception as error:  # A form that does not work is a result too.
                        print(f"{what} {batch} {form} {precision}: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                        continue
                    torch.cuda.empty_cache()
                    results.append({"what": what, "batch": batch, "form": form, "precision": precision, "ms": ms, "loss": loss})
                    print(f"| {what} | {batch} | {form} | {precision} | {ms:.3f} | {batch / ms / 1e3:.2f} | {loss:.5f} |",
                          flush=True)
                    print(f"({time.time() - begin:.0f} s)", file=sys.stderr)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f)


if __name__ == "__main__":
    main()
