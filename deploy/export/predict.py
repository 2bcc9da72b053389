#!/usr/bin/env python3
"""Predictions from an exported model, with NumPy alone.

usage: predict.py EXPORT_DIR FILE

EXPORT_DIR is what `sparrowctl export CHECKPOINT --to EXPORT_DIR` wrote; FILE has the form of the job's own data: delimited text or slot text, plain
or gzip, or, for npy data, the prefix of a set of three files, such as day_0. Writes row,label,probability as CSV; the label is empty where
the rows have none. The model itself is the dozen lines of predict(); the rest reads files. It checks no more of its input than it must: for
errors by line and column there is `sparrowctl data check`.
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


def xxh64(data, seed=0):
    """XXH64 of bytes, from its specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): the id of a string."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
    rotate = lambda x, n: (x << n | x >> 64 - n) & MASK
    lane = lambda acc, word: rotate((acc + word * p2) & MASK, 31) * p1 & MASK
    at = 0
    if len(data) >= 32:
        acc = [seed + p1 + p2 & MASK, seed + p2 & MASK, seed, seed - p1 & MASK]
        while len(data) - at >= 32:
            acc = [lane(a, word) for a, word in zip(acc, struct.unpack_from("<4Q", data, at))]
            at += 32
        h = sum(rotate(a, n) for a, n in zip(acc, (1, 7, 12, 18))) & MASK
        for a in acc:
            h = ((h ^ lane(0, a)) * p1 + p4) & MASK
    else:
        h = seed + p5 & MASK
    h = h + len(data) & MASK
    while len(data) - at >= 8:
        h = (rotate(h ^ lane(0, struct.unpack_from("<Q", data, at)[0]), 27) * p1 + p4) & MASK
        at += 8
    if len(data) - at >= 4:
        h = (rotate(h ^ struct.unpack_from("<I", data, at)[0] * p1 & MASK, 23) * p2 + p3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * p5 & MASK, 11) * p1 & MASK
    h = (h ^ h >> 33) * p2 & MASK
    h = (h ^ h >> 29) * p3 & MASK
    return h ^ h >> 32


def integer(text):
    """Of a decimal id; 1.0 is 1, a negative number its two's complement."""
    return int(text.split(b".")[0]) & MASK


def read_bag(text, column, missing_id):
    """[(id, weight), ...] of one value."""
    if column["separator"] is None and text == b"":
        return [(missing_id, 1.0)]
    pairs = []
    for item in text.split(column["separator"].encode()) if column["separator"] else [text]:
        weight = b"1"
        if column["weight_separator"] and column["weight_separator"].encode() in item:
            item, weight = item.rsplit(column["weight_separator"].encode(), 1)
        if item != b"":
            key = {"STRING": xxh64, "HEX": lambda text: int(text, 16), "INTEGER": integer}[column["ids"]](item)
            pairs.append((key, float(weight)))
    return pairs


def read_lines(path):
    raw = open(path, "rb").read()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    lines = raw.split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines[:-1] if lines[-1] == b"" else lines)]


# Each of these returns labels [n] as text, numbers [n, columns] (NaN: missing), and for each feature its n bags.

def read_text(data, features, path):
    delimiter = data["delimiter"].encode()
    rows = [line.split(delimiter) for line in read_lines(path)]
    columns = {column["name"]: column for column in data["columns"]}
    label = next(name for name, column in columns.items() if column["kind"] == "label")
    names = [name.decode() for name in rows.pop(0)] if data["header"] else list(columns)
    rows = rows[data.get("skip_lines", 0):]
    if not data["header"] and rows and len(rows[0]) == len(names) - 1:
        names.remove(label)
    at = {name: names.index(name) for name in names}
    number = lambda text: float(text) if text else np.nan
    labels = [str(int(float(row[at[label]]))) if label in at else "" for row in rows]
    dense = [[number(row[at[name]]) for name, column in columns.items() if column["kind"] == "dense"] for row in rows]
    bags = [[read_bag(row[at[f["column"]]], columns[f["column"]], data["missing_id"]) for row in rows] for f in features]
    return labels, dense, bags


def read_slots(data, features, path):
    labels, bags = [], [[] for _ in features]
    for line in read_lines(path):
        slots = {}
        for token in line.split():
            feasign, slot = token.split(b":", 1)
            slots.setdefault(slot.decode(), []).append(feasign)
        label = slots.get(data["label_slot"])
        labels.append(str(int(float(label[0]))) if label else "")
        for feature, bag in zip(features, bags):
            bag.append([(integer(feasign), 1.0) for feasign in slots.get(feature["column"], [])])
    return labels, [[] for _ in labels], bags


def read_npy(data, features, prefix):
    labels, dense, sparse = (np.load(f"{prefix}_{part}.npy") for part in ("labels", "dense", "sparse"))
    ends = np.cumsum([feature["bag_size"] for feature in features])
    bags = [[[(int(key) & MASK, 1.0) for key in row] for row in sparse[:, end - f["bag_size"]:end]]
            for f, end in zip(features, ends)]
    return [str(label) for label in labels.reshape(-1)], dense, bags


def reduce_id(key, feature, missing_id):
    m = feature["modulo"]
    return key if not m else 0 if key == missing_id or m == 1 else 1 + key % (m - 1)


def main(directory, path):
    info = json.load(open(f"{directory}/model.json"))
    if info["model"]["kind"] == "gpt2":
        sys.exit(f"{directory} is a language model, which predicts no rows; its model.safetensors is the hub's GPT-2")
    data, features = info["data"], info["features"]
    params = read_safetensors(f"{directory}/dense.safetensors")
    tables = {spec["name"]: Table(directory, spec) for spec in info["tables"]}
    labels, dense, bags = {"text": read_text, "slots": read_slots, "dlrm_npy": read_npy}[data["format"]](data, features, path)
    dense = np.array(dense, np.float64)
    if data["dense_transform"] == "log1p":
        dense = np.log1p(np.maximum(dense, 0))
    dense = np.nan_to_num(dense)  # Missing.

    pooled = []
    for feature, bags_of_feature in zip(features, bags):
        table = tables[feature["table"]]
        output = np.zeros((len(labels), table.spec["dim"]))
        for i, bag in enumerate(bags_of_feature):
            for key, weight in bag:
                output[i] += weight * table.row(reduce_id(key, feature, data["missing_id"]))
            if feature["pooling"] == "mean" and bag:
                output[i] /= sum(weight for _, weight in bag)
        pooled.append(output)
    print("row,label,probability")
    for i, logit in enumerate(predict(info["model"], params, dense, pooled)):
        print(f"{i},{labels[i]},{1 / (1 + np.exp(-logit)):.9g}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
