#!/usr/bin/env python3
"""Writes golden training runs of a small DLRM and a small DCNv2, computed by PyTorch in float64.

    python3 tests/golden/dlrm_golden.py [DIRECTORY]

For each model NAME it writes NAME.tsv (the data), NAME.textproto (the job, to be run with the directory as data root) and
NAME_golden.json: the mean BCE of each step's batch before that step's update, and samples of the initial values. Made with
PyTorch 2.15 and NumPy; the version used is written into the JSON file. What is Sparrow's own is written again here from its
definition, not called: initial values from a counter-based generator (SplitMix64's finaliser), XXH64 of names and string
ids, the reader's transforms, the optimizers of table rows. Gradients are PyTorch's autograd, dense updates torch.optim's.
Initial values are rounded to float32 as Sparrow rounds them; everything after that is float64.
"""

import json
import math
import os
import struct
import sys

import numpy as np
import torch

MASK = (1 << 64) - 1


# ------------------------------------------------------------------------------------------ hashes and random numbers


def xxh64(data, seed=0):
    """XXH64 (xxHash specification 0.1.1)."""
    p1, p2, p3, p4, p5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
                          0x27D4EB2F165667C5)

    def rotate(x, r):
        return ((x << r) | (x >> (64 - r))) & MASK

    def round_(acc, lane):
        return rotate((acc + lane * p2) & MASK, 31) * p1 & MASK

    i, n = 0, len(data)
    if n >= 32:
        acc = [(seed + p1 + p2) & MASK, (seed + p2) & MASK, seed, (seed - p1) & MASK]
        while i + 32 <= n:
            for k in range(4):
                acc[k] = round_(acc[k], struct.unpack_from("<Q", data, i + 8 * k)[0])
            i += 32
        h = (rotate(acc[0], 1) + rotate(acc[1], 7) + rotate(acc[2], 12) + rotate(acc[3], 18)) & MASK
        for k in range(4):
            h = ((h ^ round_(0, acc[k])) * p1 + p4) & MASK
    else:
        h = (seed + p5) & MASK
    h = (h + n) & MASK
    while i + 8 <= n:
        h = (rotate(h ^ round_(0, struct.unpack_from("<Q", data, i)[0]), 27) * p1 + p4) & MASK
        i += 8
    if i + 4 <= n:
        h = (rotate(h ^ (struct.unpack_from("<I", data, i)[0] * p1 & MASK), 23) * p2 + p3) & MASK
        i += 4
    while i < n:
        h = rotate(h ^ (data[i] * p5 & MASK), 11) * p1 & MASK
        i += 1
    h = (h ^ (h >> 33)) * p2 & MASK
    h = (h ^ (h >> 29)) * p3 & MASK
    return h ^ (h >> 32)


assert xxh64(b"") == 0xEF46DB3751D8E999
assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def random_bits(seed, index):
    return mix64(seed ^ mix64(index))


def random_uniform(seed, index):
    return (random_bits(seed, index) >> 11) * 2.0**-53


def random_normal(seed, index):
    u = 1.0 - random_uniform(seed, 2 * index)
    v = random_uniform(seed, 2 * index + 1)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(6.283185307179586 * v)


def float32(x):
    return float(np.float32(x))


# ------------------------------------------------------------------------------------------------------- initial values


def initial_parameter(job_seed, name, shape, variance):
    seed = random_bits(job_seed, xxh64(name.encode()))
    size = int(np.prod(shape))
    stddev = math.sqrt(variance)
    values = [float32(stddev * random_normal(seed, i)) if variance else 0.0 for i in range(size)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape).requires_grad_()


class Table:
    """Rows that appear on first use, each with its optimizer state."""

    def __init__(self, job_seed, name, dim, initializer, optimizer):
        self.seed = random_bits(job_seed, xxh64(name.encode()))
        self.name, self.dim = name, dim
        self.kind, self.scale = initializer
        self.optimizer = optimizer
        self.rows = {}

    def initial_row(self, key):
        seed = random_bits(self.seed, key)
        if self.kind == "uniform":
            return [float32(self.scale * (2 * random_uniform(seed, c) - 1)) for c in range(self.dim)]
        return [float32(self.scale * random_normal(seed, c)) for c in range(self.dim)]

    def weights(self, key):
        if key not in self.rows:
            self.rows[key] = {"w": torch.tensor(self.initial_row(key), dtype=torch.float64)}
        return self.rows[key]["w"]

    def update(self, key, g, factor):
        row, o = self.rows[key], self.optimizer
        lr = o["learning_rate"] * factor
        if o["kind"] == "rowwise_adagrad":
            row["a"] = row.get("a", o["initial_accumulator"]) + float((g * g).mean())
            row["w"] = row["w"] - lr * g / (math.sqrt(row["a"]) + o["eps"])
        elif o["kind"] == "adam":  # t counts the updates of this row alone.
            t = row["t"] = row.get("t", 0) + 1
            row["m"] = o["beta1"] * row.get("m", 0) + (1 - o["beta1"]) * g
            row["v"] = o["beta2"] * row.get("v", 0) + (1 - o["beta2"]) * g * g
            m_hat = row["m"] / (1 - o["beta1"]**t)
            v_hat = row["v"] / (1 - o["beta2"]**t)
            row["w"] = row["w"] - lr * m_hat / (torch.sqrt(v_hat) + o["eps"])


# ----------------------------------------------------------------------------------------------------------- the data


def parse_dense(text):
    return math.log1p(max(float(text), 0.0)) if text else 0.0


def modulo_id(v, missing, modulo):
    if modulo is None:
        return v
    return 0 if missing or modulo == 1 else 1 + v % (modulo - 1)


def parse_bag(text, column, modulo):
    """(id, weight) pairs of one value."""
    missing_id = xxh64(b"")
    if "separator" in column:
        tokens = text.split(column["separator"]) if text else []
    else:
        tokens = [text]
    bag = []
    for token in tokens:
        weight = 1.0
        if "weight_separator" in column and column["weight_separator"] in token:
            token, weight_text = token.split(column["weight_separator"])
            weight = float32(float(weight_text))
        if token == "":
            bag.append((modulo_id(missing_id, True, modulo), weight))
        elif column["ids"] == "STRING":
            bag.append((modulo_id(xxh64(token.encode()), False, modulo), weight))
        else:
            v = int(token, 16 if column["ids"] == "HEX" else 10) & MASK
            bag.append((modulo_id(v, False, modulo), weight))
    return bag


def generate_rows(columns, seed, count):
    """Lines of text. The label depends on the dense values and on the ids, so that there is something to learn."""
    lines = []
    for row in range(count):
        base = random_bits(seed, row)
        draw = lambda k: random_uniform(base, k)
        fields, logit = [], -0.6
        for c, column in enumerate(columns):
            if column["kind"] == "label":
                fields.append(None)
            elif column["kind"] == "dense":
                x = int(-2 + 40 * draw(100 + c)**3)
                text = "" if draw(200 + c) < 0.1 else str(x)
                logit += (0.5 if c % 2 else -0.4) * (parse_dense(text) - 1)
                fields.append(text)
            else:
                def one_id(k):
                    rank = int(column["distinct"] * draw(k)**2)  # Low ranks are frequent.
                    effect = random_normal(seed, (c << 32) + rank) * column.get("effect", 0.8)
                    if column["ids"] == "STRING":
                        return "item-%d/%s" % (rank, "x" * (rank % 40)), effect
                    if column["ids"] == "HEX":
                        return "%08x" % (random_bits(seed + 1, rank) & 0xFFFFFFFF), effect
                    return str(rank * 1000003 - 3 if column.get("spread") else rank), effect

                if "separator" in column:
                    tokens = []
                    for j in range(int(5 * draw(300 + c))):
                        token, effect = one_id(1000 * c + j)
                        logit += effect / 3
                        if "weight_separator" in column and draw(400 + j) < 0.7:
                            token += column["weight_separator"] + ("%.2f" % (0.25 + draw(500 + j)))
                        tokens.append(token)
                        if draw(600 + j) < 0.2:  # A duplicate in the bag.
                            tokens.append(token)
                    fields.append(column["separator"].join(tokens))
                elif draw(700 + c) < 0.08:
                    fields.append("")
                else:
                    token, effect = one_id(1000 * c)
                    logit += effect
                    fields.append(token)
        label = "1" if draw(1) < 1 / (1 + math.exp(-logit)) else "0"
        fields[[column["kind"] for column in columns].index("label")] = label
        lines.append("\t".join(fields))
    return lines


# ----------------------------------------------------------------------------------------------------------- the models


class Model:

    def __init__(self, spec):
        self.spec = spec
        self.parameters = {}

    def add(self, name, shape, variance):
        self.parameters[name] = initial_parameter(self.spec["seed"], name, shape, variance)

    def add_mlp(self, prefix, inputs, sizes):
        for i, out in enumerate(sizes):
            self.add("%s.%d.weight" % (prefix, i), (out, inputs), 2 / (inputs + out))
            self.add("%s.%d.bias" % (prefix, i), (out,), 1 / out)
            inputs = out

    def mlp(self, prefix, x, layers, relu_last):
        for i in range(layers):
            x = torch.nn.functional.linear(x, self.parameters["%s.%d.weight" % (prefix, i)],
                                           self.parameters["%s.%d.bias" % (prefix, i)])
            if i + 1 < layers or relu_last:
                x = torch.relu(x)
        return x


class Dlrm(Model):

    def __init__(self, spec):
        super().__init__(spec)
        vectors = 1 + len(spec["features"])
        self.add_mlp("bottom", spec["dense"], spec["bottom"])
        self.add_mlp("top", spec["bottom"][-1] + vectors * (vectors - 1) // 2, spec["top"])

    def logits(self, dense, pooled):
        bottom = self.mlp("bottom", dense, len(self.spec["bottom"]), True)
        vectors = torch.stack([bottom] + pooled, dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        n = vectors.shape[1]
        li = [i for i in range(n) for j in range(i)]
        lj = [j for i in range(n) for j in range(i)]
        return self.mlp("top", torch.cat([bottom, dots[:, li, lj]], dim=1), len(self.spec["top"]), False)[:, 0]


class Dcnv2(Model):

    def __init__(self, spec):
        super().__init__(spec)
        dims = {table["name"]: table["dim"] for table in spec["tables"]}
        inputs = spec["bottom"][-1] + sum(dims[f["table"]] for f in spec["features"])
        rank = spec["cross_rank"]
        self.add_mlp("bottom", spec["dense"], spec["bottom"])
        for i in range(spec["cross_layers"]):
            self.add("cross.%d.v" % i, (rank, inputs), 2 / (inputs + rank))
            self.add("cross.%d.w" % i, (inputs, rank), 2 / (inputs + rank))
            self.add("cross.%d.b" % i, (inputs,), 0)
        self.add_mlp("top", inputs, spec["top"])

    def logits(self, dense, pooled):
        x0 = torch.cat([self.mlp("bottom", dense, len(self.spec["bottom"]), True)] + pooled, dim=1)
        x = x0
        for i in range(self.spec["cross_layers"]):
            v, w, b = (self.parameters["cross.%d.%s" % (i, k)] for k in "vwb")
            x = x0 * (x @ v.T @ w.T + b) + x
        return self.mlp("top", x, len(self.spec["top"]), False)[:, 0]


def learning_rate_factor(schedule, step):
    if step < schedule.get("warmup_steps", 0):
        return (step + 1) / schedule["warmup_steps"]
    if "polynomial" not in schedule:
        return 1.0
    p = schedule["polynomial"]
    t = min(max((step - p["decay_start"]) / p["decay_steps"], 0), 1)
    return p["end_factor"] + (1 - p["end_factor"]) * (1 - t)**p["power"]


def train(spec, lines):
    columns, features = spec["columns"], spec["features"]
    names = [column["name"] for column in columns]
    tables = {t["name"]: Table(spec["seed"], t["name"], t["dim"], t["initializer"], t["optimizer"]) for t in spec["tables"]}
    labels, dense, bags = [], [], []
    for line in lines:
        fields = dict(zip(names, line.split("\t")))
        labels.append(float(fields["label"]))
        dense.append([float32(parse_dense(fields[c["name"]])) for c in columns if c["kind"] == "dense"])
        bags.append([parse_bag(fields[f["name"]], columns[names.index(f["name"])], f.get("modulo")) for f in features])
    labels = torch.tensor(labels, dtype=torch.float64)
    dense = torch.tensor(dense, dtype=torch.float64)

    model = {"dlrm": Dlrm, "dcnv2": Dcnv2}[spec["kind"]](spec)
    samples = {
        name: {"shape": list(p.shape), "first": p.flatten()[:4].tolist(), "sum": float(p.sum()),
               "sum_of_squares": float((p * p).sum())}
        for name, p in ((name, parameter.detach()) for name, parameter in model.parameters.items())
    }
    o = spec["optimizer"]
    if o["kind"] == "adagrad":
        optimizer = torch.optim.Adagrad(model.parameters.values(), lr=o["learning_rate"], eps=o["eps"])
    else:
        optimizer = torch.optim.Adam(model.parameters.values(), lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]),
                                     eps=o["eps"])
    losses, begin = [], 0
    for step in range(spec["steps"]):
        factor = learning_rate_factor(spec["schedule"], step)
        rows = range(begin, min(begin + spec["batch_size"], len(lines)))  # The last batch of an epoch is short.
        begin = 0 if rows.stop == len(lines) else rows.stop
        leaves = {}
        for name, table in tables.items():
            keys = sorted({key for f, feature in enumerate(features) if feature["table"] == name for row in rows
                           for key, _ in bags[row][f]})
            if keys:
                leaves[name] = (keys, torch.stack([table.weights(key) for key in keys]).requires_grad_())
        pooled = []
        for f, feature in enumerate(features):
            table = tables[feature["table"]]
            out = torch.zeros(len(rows), table.dim, dtype=torch.float64)
            if feature["table"] in leaves:
                keys, leaf = leaves[feature["table"]]
                position = {key: i for i, key in enumerate(keys)}
                bag_of, positions, weights = [], [], []
                for i, row in enumerate(rows):
                    bag = bags[row][f]
                    total = sum(w for _, w in bag) if feature.get("pooling") == "MEAN" else 1.0
                    for key, w in bag:
                        bag_of.append(i), positions.append(position[key]), weights.append(w / total)
                if bag_of:
                    values = leaf[torch.tensor(positions)] * torch.tensor(weights, dtype=torch.float64)[:, None]
                    out = out.index_add(0, torch.tensor(bag_of), values)
            pooled.append(out)
        logits = model.logits(dense[rows.start:rows.stop], pooled)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[rows.start:rows.stop])
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = o["learning_rate"] * factor
        optimizer.step()
        for name, (keys, leaf) in leaves.items():
            if leaf.grad is not None:
                for key, gradient in zip(keys, leaf.grad):
                    tables[name].update(key, gradient, factor)
    row_samples = {
        name: {str(key): table.initial_row(key)[:4] for key in sorted(table.rows)[:2]} for name, table in tables.items()
    }
    return losses, samples, row_samples


# ------------------------------------------------------------------------------------------------------------- the jobs


def job_text(spec):
    quote = json.dumps
    out = ['# Written by dlrm_golden.py. Run it with this directory as data root.', "name: %s" % quote("golden-" + spec["kind"])]
    out += ["data {", "  train { path: %s }" % quote(spec["kind"] + ".tsv"), "  text {"]
    for c in spec["columns"]:
        if c["kind"] != "categorical":
            kind = "%s {}" % c["kind"]
        else:
            parts = ["ids: " + c["ids"]] + ["%s: %s" % (k, quote(c[k])) for k in ("separator", "weight_separator") if k in c]
            kind = "categorical { %s }" % " ".join(parts)
        out.append("    columns { name: %s %s }" % (quote(c["name"]), kind))
    out += ["  }", "}"]
    fields = lambda o: " ".join("%s: %r" % (k, v) for k, v in o.items() if k not in ("kind", "learning_rate"))
    optimizer = lambda o: "learning_rate: %r %s { %s }" % (o["learning_rate"], o["kind"], fields(o))
    for t in spec["tables"]:
        kind, scale = t["initializer"]
        initializer = "initializer { %s: %r } " % ({"uniform": "uniform_bound", "normal": "normal_stddev"}[kind], scale)
        if t.get("by_rows"):
            initializer = ""  # The default of bounded tables.
        rows = "bounded_rows: %d" % t["bounded_rows"] if "bounded_rows" in t else "hashed {}"
        out.append("tables { name: %s dim: %d %s %soptimizer { %s } }" %
                   (quote(t["name"]), t["dim"], rows, initializer, optimizer(t["optimizer"])))
    for f in spec["features"]:
        extra = "".join(" %s: %s" % (k, f[k]) for k in ("pooling", "modulo") if k in f)
        out.append("features { name: %s table: %s%s }" % (quote(f["name"]), quote(f["table"]), extra))
    layers = " ".join("%s: %d" % (k, n) for k in ("bottom", "top") for n in spec[k])
    cross = "cross_layers: %d cross_rank: %d " % (spec["cross_layers"], spec["cross_rank"]) if spec["kind"] == "dcnv2" else ""
    out.append("model { %s { %s%s } }" % (spec["kind"], cross, layers))
    out += ["train {", "  batch_size: %d" % spec["batch_size"], "  epochs: 3", "  steps_max: %d" % spec["steps"],
            "  optimizer { %s }" % optimizer(spec["optimizer"])]
    schedule = spec["schedule"]
    if schedule:
        out.append("  schedule { warmup_steps: %d polynomial { %s } }" % (schedule["warmup_steps"], fields(schedule["polynomial"])))
    out += ["  seed: %d" % spec["seed"], "  loss_every_steps: 1", "}", "checkpoint { at_end: false }"]
    return "\n".join(out) + "\n"


def label(name):
    return {"name": name, "kind": "label"}


def dense(name):
    return {"name": name, "kind": "dense"}


def categorical(name, ids, distinct, **more):
    return {"name": name, "kind": "categorical", "ids": ids, "distinct": distinct, **more}


def dlrm_spec():
    rowwise = {"kind": "rowwise_adagrad", "learning_rate": 0.1, "eps": 1e-08, "initial_accumulator": 0.0}
    return {
        "kind": "dlrm", "seed": 20250611, "steps": 50, "batch_size": 48, "schedule": {}, "dense": 4,
        "columns": [label("label"), dense("d1"), dense("d2"), categorical("place", "INTEGER", 60, spread=True),
                    categorical("device", "HEX", 300), dense("d3"), categorical("seen", "STRING", 80),
                    categorical("clicked", "STRING", 80), categorical("tags", "INTEGER", 25, separator=","), dense("d4")],
        # Two features share a table; a bag may hold an id twice.
        "tables": [
            {"name": "place", "dim": 8, "bounded_rows": 40, "initializer": ("uniform", 1 / math.sqrt(40)), "by_rows": True,
             "optimizer": rowwise},
            {"name": "device", "dim": 8, "initializer": ("normal", 0.1), "optimizer": rowwise},
            {"name": "item", "dim": 8, "initializer": ("uniform", 0.2), "optimizer": {**rowwise, "initial_accumulator": 0.01}},
            {"name": "tags", "dim": 8, "initializer": ("uniform", 0.3), "optimizer": {**rowwise, "learning_rate": 0.05}},
        ],
        "features": [{"name": "place", "table": "place", "modulo": 40}, {"name": "device", "table": "device"},
                     {"name": "seen", "table": "item"}, {"name": "clicked", "table": "item"}, {"name": "tags", "table": "tags"}],
        "bottom": [16, 8], "top": [24, 12, 1],
        "optimizer": {"kind": "adagrad", "learning_rate": 0.05, "eps": 1e-08},
    }


def dcnv2_spec():
    adam = {"kind": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-06}
    return {
        "kind": "dcnv2", "seed": 7, "steps": 50, "batch_size": 56, "dense": 3,
        "schedule": {"warmup_steps": 5, "polynomial": {"decay_start": 20, "decay_steps": 40, "power": 2, "end_factor": 0.1}},
        "columns": [dense("d1"), categorical("words", "STRING", 40, separator="|", weight_separator=":"), label("label"),
                    categorical("place", "INTEGER", 50), dense("d2"), categorical("tags", "INTEGER", 20, separator=","),
                    categorical("device", "HEX", 200), dense("d3")],
        "tables": [
            {"name": "words", "dim": 5, "initializer": ("normal", 0.2), "optimizer": adam},
            {"name": "place", "dim": 1, "initializer": ("uniform", 0.5), "optimizer": {**adam, "learning_rate": 0.03}},
            {"name": "tags", "dim": 12, "initializer": ("uniform", 0.1), "optimizer": adam},
            {"name": "device", "dim": 8, "initializer": ("uniform", 0.1), "optimizer": adam},
        ],
        # Weighted and plain means, different dimensions.
        "features": [{"name": "words", "table": "words", "pooling": "MEAN"}, {"name": "place", "table": "place"},
                     {"name": "tags", "table": "tags", "pooling": "MEAN"}, {"name": "device", "table": "device"}],
        "bottom": [10, 6], "cross_layers": 2, "cross_rank": 7, "top": [16, 1],
        "optimizer": {"kind": "adam", "learning_rate": 0.005, "beta1": 0.9, "beta2": 0.999, "eps": 1e-08},
    }


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.set_num_threads(1)
    for spec in (dlrm_spec(), dcnv2_spec()):
        lines = generate_rows(spec["columns"], spec["seed"] + 1, 1000)
        losses, parameters, rows = train(spec, lines)
        name = os.path.join(directory, spec["kind"])
        with open(name + ".tsv", "w", newline="\n") as f:
            f.write("\n".join(lines) + "\n")
        with open(name + ".textproto", "w") as f:
            f.write(job_text(spec))
        with open(name + "_golden.json", "w") as f:
            json.dump({"framework": "PyTorch " + torch.__version__.split("+")[0], "arithmetic": "float64",
                       "batch_size": spec["batch_size"], "steps": spec["steps"], "seed": spec["seed"],
                       "losses": losses, "initial_parameters": parameters, "initial_rows": rows}, f, indent=1)
            f.write("\n")
        print(spec["kind"], "loss", losses[0], "to", losses[-1])


if __name__ == "__main__":
    main()
