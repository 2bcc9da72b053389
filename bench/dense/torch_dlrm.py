#!/usr/bin/env python3
"""The peer of Sparrow's end-to-end benchmark: DLRM on Criteo-Kaggle shapes in PyTorch on the CPU.

    python3 bench/dense/torch_dlrm.py [--model kaggle|quickstart] [--clicks FILE] [--batch-size 2048] [--steps 60] [--json FILE]

One step: 26 EmbeddingBags (dimension 16, sum, sparse gradients), bottom 13-512-256-64-16, dot interaction of 27 vectors, top
367-512-256-1, BCE with logits, backward, SGD for the dense part and sparse SGD for the tables. Batches are in memory before the
clock starts; ids are Zipf-like (rank = rows * u^3). Prints one JSON object: samples/s of eager and of torch.compile (null where
it does not work), and the better of the two, with the loss of the last step. Dense-only figures (embeddings given) come with
--dense-only, for comparison with dense_model_bench.
"""

import argparse
import json
import time

import torch

KAGGLE_ROWS = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
               2173, 4, 7046547, 18, 15, 286181, 105, 142572]
DIM = 16


# name: bottom, top, optimizer of everything. As in deploy/jobs/.
MODELS = {"kaggle": ([13, 512, 256, 64, DIM], [512, 256, 1], "sgd", 0.1),
          "quickstart": ([13, 64, DIM], [128, 64, 1], "adagrad", 0.05)}


def mlp(sizes, relu_last):
    layers = []
    for i in range(len(sizes) - 1):
        layers.append(torch.nn.Linear(sizes[i], sizes[i + 1]))
        if relu_last or i + 2 < len(sizes):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


class DenseDlrm(torch.nn.Module):

    def __init__(self, bottom, top):
        super().__init__()
        self.bottom = mlp(bottom, True)
        self.top = mlp([DIM + 27 * 26 // 2] + top, False)
        self.register_buffer("pairs", torch.tril_indices(27, 27, offset=-1))

    def forward(self, dense, pooled):  # pooled: [rows, 26, DIM]
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None, :], pooled], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat([bottom, dots[:, self.pairs[0], self.pairs[1]]], dim=1))[:, 0]


def measure(step, steps, batch_size):
    """Samples a second over the best of 3 rounds, and the last loss."""
    for i in range(5):
        loss = step(i)
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        for i in range(steps):
            loss = step(i)
        best = max(best, steps * batch_size / (time.perf_counter() - start))
    return best, float(loss)


def read_clicks(args, rows):
    """Batches of a click log in memory, transformed as Sparrow does it."""
    batches = []
    with open(args.clicks) as f:
        for _ in range(args.batches):
            lines = [f.readline().rstrip("\n").split("\t") for _ in range(args.batch_size)]
            if len(lines[-1]) != 40:
                break
            dense = torch.tensor([[max(float(x or 0), 0) for x in line[1:14]] for line in lines]).log1p()
            ids = [torch.tensor([0 if x == "" else 1 + int(x, 16) % (r - 1) for x in column])
                   for r, column in zip(rows, zip(*[line[14:] for line in lines]))]
            batches.append({"dense": dense, "labels": torch.tensor([float(line[0]) for line in lines]), "ids": ids,
                            "offsets": torch.arange(args.batch_size)})
    return batches


def make_step(args, forward, model, tables, batches):
    _, _, kind, lr = MODELS[args.model]
    make = torch.optim.SGD if kind == "sgd" else torch.optim.Adagrad
    dense_optimizer = make(model.parameters(), lr=lr)
    sparse_optimizer = make([t.weight for t in tables], lr=lr) if tables else None
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits

    def step(i):
        batch = batches[i % len(batches)]
        if tables:
            pooled = torch.stack([t(ids, batch["offsets"]) for t, ids in zip(tables, batch["ids"])], dim=1)
        else:
            pooled = batch["pooled"]
        loss = loss_of(forward(batch["dense"], pooled), batch["labels"])
        dense_optimizer.zero_grad()
        if tables:
            sparse_optimizer.zero_grad()
        else:
            pooled.grad = None
        loss.backward()
        dense_optimizer.step()
        if tables:
            sparse_optimizer.step()
        return loss.detach()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="kaggle")
    parser.add_argument("--clicks", help="take the batches from this click log in Criteo's format, ids modulo the tables' rows")
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batches", type=int, default=16, help="different batches in memory")
    parser.add_argument("--rows-max", type=int, default=1000000, help="cap of a table's rows")
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's choice")
    parser.add_argument("--dense-only", action="store_true", help="embeddings given: no tables")
    parser.add_argument("--no-compile", action="store_true", help="do not try torch.compile")
    parser.add_argument("--json", help="also write the JSON object here")
    args = parser.parse_args()
    torch.manual_seed(1)
    if args.threads:
        torch.set_num_threads(args.threads)

    rows = [min(r, args.rows_max) for r in KAGGLE_ROWS]
    batches = read_clicks(args, rows) if args.clicks else []
    for _ in range(0 if args.clicks else args.batches):
        batch = {"dense": torch.rand(args.batch_size, 13), "labels": (torch.rand(args.batch_size) < 0.25).float(),
                 "offsets": torch.arange(args.batch_size)}
        if args.dense_only:
            batch["pooled"] = torch.rand(args.batch_size, 26, DIM).requires_grad_()
        else:
            batch["ids"] = [(r * torch.rand(args.batch_size, dtype=torch.float64)**3).long() for r in rows]
        batches.append(batch)

    results = {}
    for name in ["eager"] if args.no_compile else ["eager", "compile"]:
        torch.manual_seed(2)
        model = DenseDlrm(*MODELS[args.model][:2])
        tables = []
        if not args.dense_only:
            for r in rows:
                table = torch.nn.EmbeddingBag(r, DIM, mode="sum", sparse=True)
                torch.nn.init.uniform_(table.weight, -r**-0.5, r**-0.5)
                tables.append(table)
        try:
            forward = torch.compile(model) if name == "compile" else model
            results[name] = measure(make_step(args, forward, model, tables, batches), args.steps, args.batch_size)
        except Exception as error:  # No compiler, for example.
            results[name] = None
            results[name + "_error"] = str(error).splitlines()[0]

    worked = {name: r for name, r in results.items() if isinstance(r, tuple)}
    best = max(worked, key=lambda name: worked[name][0])
    out = {"framework": "PyTorch " + torch.__version__, "model": args.model, "threads": torch.get_num_threads(), "batch_size": args.batch_size,
           "rows_max": args.rows_max, "dense_only": args.dense_only, "steps": args.steps,
           "eager_samples_per_second": results["eager"][0] if results["eager"] else None,
           "compile_samples_per_second": results["compile"][0] if results.get("compile") else None,
           "best": best, "samples_per_second": worked[best][0], "loss": worked[best][1]}
    if "compile_error" in results:
        out["compile_error"] = results["compile_error"]
    text = json.dumps(out)
    print(text)
    if args.json:
        with open(args.json, "w") as f:
            f.write(text + "\n")


if __name__ == "__main__":
    main()
