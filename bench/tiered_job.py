#!/usr/bin/env python3
"""Question: what share of the samples/s with every row in GPU memory is left when the GPU holds only a part of the rows, and servers in DRAM hold them all?

Fixed: one process (coordinator, one server, one worker on one GPU), DLRM of Criteo's Terabyte shape (dimension 64), bf16, 26 tables of equal size, ids by Zipf's law scattered
over them, read from npy files that `sparrow-bench npy-data` makes; the files are in memory (/dev/shm). Varies: the batch, and the part of the rows that the GPU may hold
(train.hot_rows; 1: all; none: no hot rows). The figures are those of the steady state: what the worker counts between two looks at its metrics, the first when --warm-samples
are over (at first no row is on the GPU, and rows are made), the second before its end. With 1, warm steps must be an epoch, so that no row is new in the measured ones.
The hit rate is of a batch's unique rows, most of which are seldom used, not of its look-ups.

With --workers N (and a --device for each, with commas) every worker trains batches of this size, and the rows that GPUs hold are the same on all: samples/s over those of one worker is how it scales.

    python3 bench/tiered_job.py [--run PROGRAM...] [--device cuda:0] [--batches 65536 8192] [--shares 1 0.1 0.01 none] [--samples 8000000] ...
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ["load", "pull", "h2d", "forward", "backward", "push", "allreduce", "optimizer", "wait"]
TOPS = {"terabyte": "512, 512, 256, 1", "mlperf": "1024, 1024, 512, 256, 1"}
OPTIMIZERS = {"sgd": "learning_rate: 0.05 sgd {}", "rowwise_adagrad": "learning_rate: 0.02 rowwise_adagrad {}"}


def write_job(path, args, batch, share, steps):
    rows = args.rows // args.features
    lines = ['name: "tiered"', 'data {', '  train { path: "clicks" }', "  dlrm_npy { dense_columns: 13 }", "  dense_transform: IDENTITY", "}"]
    for f in range(args.features):
        lines.append(f'tables {{ name: "F{f}" dim: {args.dim} bounded_rows: {rows} optimizer {{ {OPTIMIZERS[args.optimizer]} }} initializer {{ uniform_by_rows: true }} }}')
        lines.append(f'features {{ name: "F{f}" }}')
    lines.append(f"model {{ dlrm {{ bottom: [ 512, 256, {args.dim} ] top: [ {TOPS[args.top]} ] }} }}")
    hot = "" if share == "none" else f" hot_rows {{ rows: {round(float(share) * rows) * args.features} }}"
    lines.append(f"train {{ batch_size: {batch} epochs: {args.epochs} steps_max: {steps} optimizer {{ learning_rate: 0.05 sgd {{}} }}{hot} }}")
    lines.append("checkpoint { at_end: false }")
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


def read_metrics(address):
    """{name or name{labels}: value}, and when."""
    with urllib.request.urlopen(address, timeout=5) as reply:
        text = reply.read().decode()
    values = {}
    for line in text.splitlines():
        if line and line[0] != "#":
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return time.monotonic(), values


def look(looks, address):
    try:
        looks.append(read_metrics(address))
    except OSError:  # Not there yet, or any more.
        pass


def run(args, data, batch, share):
    batch *= args.workers
    steps_per_epoch = -(-args.samples // batch)
    steps = min(steps_per_epoch * args.epochs, args.samples_max // batch)
    warm = min(steps_per_epoch if args.warm_samples is None else args.warm_samples // batch, steps - 2)
    job = os.path.join(data, "tiered.textproto")
    out = os.path.join(data, "tiered.json")
    write_job(job, args, batch, share, steps)
    command = args.run + ["run", job, "--data-root", data, "--device", args.device, "--workers", str(args.workers), "--memory", args.memory, "--json", out, "--metrics", "127.0.0.1:0"] + args.flags
    start = time.monotonic()
    looks = []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=data)
        address = None
        while process.poll() is None:
            time.sleep(args.look_seconds)
            if address is None:
                log.seek(0)
                found = re.search(r"metrics on (http://\S+)", log.read())
                log.seek(0, os.SEEK_END)
                address = found and found.group(1)
            else:
                look(looks, address)
            if time.monotonic() - start > args.seconds_max:
                process.send_signal(signal.SIGINT)
                process.wait()
        log.seek(0)
        text = log.read()
    count = lambda values: values.get("sparrow_worker_steps_total", 0) / args.workers
    window = [l for l in looks if count(l[1]) >= warm and count(l[1]) > 0]
    # Looks after the last step would only add time.
    while len(window) > 2 and count(window[-2][1]) == count(window[-1][1]):
        window.pop()
    if len(window) > 2 and count(window[-1][1]) == steps:
        window.pop()  # It came some time after the last step.
    if len(window) < 2 or count(window[0][1]) == count(window[-1][1]):
        reached = count(looks[-1][1]) if looks else 0
        print(f"batch {batch}, share {share}: {reached:.0f} of {steps} steps in {time.monotonic() - start:.0f} s, no window after {warm}\n{text[-1500:]}", flush=True)
        window = [l for l in looks if count(l[1]) > 0][1:]
        if len(window) < 2 or count(window[0][1]) == count(window[-1][1]):
            return None
    (t0, a), (t1, b) = window[0], window[-1]
    change = lambda name: b.get(name, 0) - a.get(name, 0)
    done = change("sparrow_worker_steps_total")  # Of all workers.
    hits, misses = change("sparrow_worker_hot_row_hits_total"), change("sparrow_worker_hot_row_misses_total")
    total = lambda prefix: sum(v for n, v in b.items() if n.startswith(prefix))
    return {
        "batch": batch // args.workers, "share": share, "first_step": count(a), "steps": done / args.workers, "seconds": t1 - t0,
        "samples_per_second": change("sparrow_worker_samples_total") / (t1 - t0),
        "hit_rate": hits / (hits + misses) if hits + misses > 0 else None,
        "rows_per_step": (hits + misses) / done if hits + misses > 0 else change("sparrow_worker_rows_pulled_total") / done,
        "pulled_per_step": change("sparrow_worker_rows_pulled_total") / done,
        "returned_per_step": change("sparrow_worker_hot_rows_returned_total") / done,
        "rows_touched": total("sparrow_server_table_rows{"),
        "loss": b.get("sparrow_worker_loss"),
        "apply_ms": 1e3 * change("sparrow_server_apply_seconds_sum") * args.workers / done,
        "exposed_ms": {n: 1e3 * change(f"sparrow_worker_exposed_{n}_seconds_sum") / done for n in ["hot_row", "allreduce"]},
        "exchanged_bytes": change("sparrow_worker_hot_row_exchange_bytes_total") / done,
        "parts_ms": {p: 1e3 * change(f'sparrow_worker_step_seconds_sum{{part="{p}"}}') / done for p in PARTS},
        "seconds_all": time.monotonic() - start,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ctl", nargs="+", dest="run", default=[os.path.join(ROOT, "build/cuda/bin/sparrowctl")], help="sparrowctl, as a command")
    parser.add_argument("--bench", nargs="+", default=[os.path.join(ROOT, "build/cuda/bin/sparrow-bench")], help="sparrow-bench, as a command")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="more flags for sparrowctl run; last")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--memory", default="100GiB")
    parser.add_argument("--batches", type=int, nargs="+", default=[65536, 8192])
    parser.add_argument("--shares", nargs="+", default=["1", "0.1", "0.01", "none"])
    parser.add_argument("--rows", type=int, default=200_000_000, help="of all tables together")
    parser.add_argument("--load", type=float, default=1, help="the ids are those of this part of each table's rows: with 0.6 and share 1 no row has to leave the GPU")
    parser.add_argument("--features", type=int, default=26)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--top", choices=list(TOPS), default="terabyte", help="mlperf, with --dim 128: the model of worker_gpu_step_bench")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="rowwise_adagrad")
    parser.add_argument("--exponent", type=float, default=1.05, help="0: uniform ids")
    parser.add_argument("--samples", type=int, default=8_000_000, help="in the files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples-max", type=int, default=1 << 60, help="of a run")
    parser.add_argument("--warm-samples", type=int, help="before the window; default: one epoch")
    parser.add_argument("--seconds-max", type=float, default=600, help="a run ends after that long")
    parser.add_argument("--look-seconds", type=float, default=0.1)
    parser.add_argument("--data", default="/dev/shm" if os.path.isdir("/dev/shm") else None, help="where a directory for the files is made")
    parser.add_argument("--json", help="writes all figures to this file")
    args = parser.parse_args()
    for command in (args.run, args.bench):
        command[0] = os.path.abspath(command[0])  # They run in the data's directory.

    data = tempfile.mkdtemp(dir=args.data)
    results = []
    try:
        start = time.monotonic()
        subprocess.run(args.bench + ["npy-data", "--out", os.path.join(data, "clicks"), "--samples", str(args.samples), "--features", str(args.features),
                                     "--table-rows", str(int(args.load * args.rows) // args.features), "--exponent-percent", str(round(100 * args.exponent))], check=True)
        print(f"data made in {time.monotonic() - start:.1f} s; dim {args.dim}, {args.optimizer}, {args.rows} rows in all", flush=True)
        print("\n| batch | rows on the GPU | samples/s | of all on the GPU | hit rate | rows a step: unique, pulled, returned | rows touched | ms a step: " + ", ".join(PARTS) +
              "; server's apply | steps measured, after | loss |\n|" + "---|" * 10)
        for batch in args.batches:
            best = None
            for share in args.shares:
                r = run(args, data, batch, share)
                if r is None:
                    continue
                results.append(r)
                if args.workers > 1:
                    exposed = ", ".join(f"{n} {v:.3f} ms" for n, v in r["exposed_ms"].items())
                    print(f'exposed of a step: {exposed}; gradients of rows that all workers hold: {r["exchanged_bytes"]:,.0f} bytes a step', flush=True)
                best = r["samples_per_second"] if share == "1" else best
                ratio = f'{r["samples_per_second"] / best:.3f}' if best else ""
                hit = f'{r["hit_rate"]:.4f}' if r["hit_rate"] is not None else "-"
                name = share if share == "none" else f"{100 * float(share):g} %"
                print(f'| {batch:,} | {name} | {r["samples_per_second"]:,.0f} | {ratio} | {hit} | {r["rows_per_step"]:,.0f}, {r["pulled_per_step"]:,.0f}, {r["returned_per_step"]:,.0f} | '
                      f'{r["rows_touched"]:,.0f} | {", ".join(f"{v:.2f}" for v in r["parts_ms"].values())}; {r["apply_ms"]:.2f} | {r["steps"]:.0f}, {r["first_step"]:.0f} | {r["loss"]:.4f} |', flush=True)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(results, f, indent=1)
    finally:
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
