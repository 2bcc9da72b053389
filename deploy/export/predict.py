#!/usr/bin/env python3
"""Predictions from an exported model, with NumPy alone.

usage: predict.py EXPORT_DIR FILE      (FILE.gz is decompressed)

EXPORT_DIR is what `sparrowctl export CHECKPOINT --to EXPORT_DIR` wrote; FILE is delimited text in the form of the job's own data. Writes
row,label,probability as CSV. The model itself is the dozen lines of predict(); the rest reads files. String ids need the xxhash module.
"""
import gzip, json, struct, sys
import numpy as np

MASK = (1 << 64) - 1


def predict(model, params, dense, pooled):
    """Logits of dense [n, columns] and pooled, a list of [n, dim], one a feature."""
    def mlp(name, x, last_relu):
        layers = sum(key.startswith(name + ".") and key.endswith(".weight") for key in params)
        for i in range(layers):
            x = x @ params[f"{name}.{i}.weight"].T + params[f"{name}.{i}.bias"]
            x = np.maximum(x, 0) if last_relu or i + 1 < layers else x
        return x
    vectors = ([mlp("bottom", dense, model["bottom_output"] == "relu")] if model["bottom"] else []) + pooled
    if model["kind"] == "dlrm":
        dots = [np.sum(vectors[i] * vectors[j], axis=1) for i in range(len(vectors)) for j in range(i)]
        x = np.column_stack((vectors[:1] if model["bottom"] else []) + dots)
    else:
        x = x0 = np.concatenate(vectors, axis=1)
        for i in range(model["cross_layers"]):
            x = x0 * ((x @ params[f"cross.{i}.v"].T) @ params[f"cross.{i}.w"].T + params[f"cross.{i}.b"]) + x
    return mlp("top", x, False)[:, 0]


def read_safetensors(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length:]
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], "<f4").reshape(t["shape"]).astype(np.float64)
            for name, t in header.items()}


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def uniform(seed, index):
    return (mix(seed ^ mix(index)) >> 11) / 2.0**53


class Table:
    def __init__(self, directory, spec):
        self.spec = spec
        self.ids = np.load(f"{directory}/{spec['ids']}")
        self.rows = np.load(f"{directory}/{spec['rows']}", mmap_mode="r")

    def row(self, key):
        at = np.searchsorted(self.ids, np.uint64(key))
        if at < len(self.ids) and self.ids[at] == np.uint64(key):
            return self.rows[at].astype(np.float64)
        seed, scale = mix(self.spec["seed"] ^ mix(key)), self.spec["initializer"]["scale"]  # Never trained: its initial value.
        kind, columns = self.spec["initializer"]["kind"], range(self.spec["dim"])
        if kind == "uniform":
            values = [scale * (2 * uniform(seed, c) - 1) for c in columns]
        elif kind == "normal":
            values = [scale * np.sqrt(-2 * np.log(1 - uniform(seed, 2 * c))) * np.cos(2 * np.pi * uniform(seed, 2 * c + 1))
                      for c in columns]
        else:
            values = [scale for _ in columns]
        return np.array(values, np.float32).astype(np.float64)


def read_bag(text, column, feature, missing_id):
    """[(id, weight), ...] of one value."""
    if column["separator"] is None and text == "":
        pairs = [(missing_id, 1.0)]
    else:
        pairs = []
        for item in text.split(column["separator"]) if column["separator"] else [text]:
            weight = 1.0
            if column["weight_separator"] and column["weight_separator"] in item:
                item, weight = item.rsplit(column["weight_separator"], 1)
            if item == "":
                continue
            if column["ids"] == "STRING":
                import xxhash
                key = xxhash.xxh64_intdigest(item.encode())
            else:
                key = (int(item, 16) if column["ids"] == "HEX" else int(item.removesuffix(".0"))) & MASK
            pairs.append((key, float(weight)))
    m = feature["modulo"]
    return [((0 if key == missing_id or m == 1 else 1 + key % (m - 1)) if m else key, weight) for key, weight in pairs]


def main(directory, path):
    info = json.load(open(f"{directory}/model.json"))
    data = info["data"]
    if data["format"] != "text":
        sys.exit(f"predict.py reads delimited text; this model's data is {data['format']}")
    params = read_safetensors(f"{directory}/dense.safetensors")
    tables = {spec["name"]: Table(directory, spec) for spec in info["tables"]}
    lines = (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8", newline="").read().splitlines()
    names = lines.pop(0).split(data["delimiter"]) if data["header"] else [column["name"] for column in data["columns"]]
    rows = [dict(zip(names, line.split(data["delimiter"]))) for line in lines[data.get("skip_lines", 0):]]
    columns = {column["name"]: column for column in data["columns"]}

    log1p = data["dense_transform"] == "log1p"
    number = lambda text: 0.0 if text == "" else np.log1p(max(float(text), 0)) if log1p else float(text)
    dense = np.array([[number(row[c["name"]]) for c in data["columns"] if c["kind"] == "dense"] for row in rows])
    pooled = []
    for feature in info["features"]:
        table, column = tables[feature["table"]], columns[feature["column"]]
        output = np.zeros((len(rows), table.spec["dim"]))
        for i, row in enumerate(rows):
            bag = read_bag(row[feature["column"]], column, feature, data["missing_id"])
            for key, weight in bag:
                output[i] += weight * table.row(key)
            if feature["pooling"] == "mean" and bag:
                output[i] /= sum(weight for _, weight in bag)
        pooled.append(output)
    label = next(c["name"] for c in data["columns"] if c["kind"] == "label")
    print("row,label,probability")
    for i, logit in enumerate(predict(info["model"], params, dense, pooled)):
        print(f"{i},{int(float(rows[i][label]))},{1 / (1 + np.exp(-logit)):.9g}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
