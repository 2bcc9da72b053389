#!/usr/bin/env python3
"""Question: how many samples a second does a whole training run reach, from text on disk to trained tables, beside PyTorch on the same machine?

Fixed: one process, all cores, one worker, one server, click logs of `sparrowctl gen clicks` that are read, parsed and trained once.
Varies: the job (the quickstart job at its own batch, Criteo-Kaggle's model at batch 2,048) and who trains it.
The peer has it easier: its batches are parsed and in memory before the clock starts, and its tables are plain arrays (no servers, no row
metadata). torch.compile is tried for the quickstart job alone: for the other it does not end within minutes. Each side runs ROUNDS times in turn; the median and the spread are printed as a Markdown table.

    python3 bench/end_to_end.py --torch-python PYTHON [--bin build/release/bin] [--rounds 3] [--rows 400000]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def sparrow(args, job, data, sets):
    out = os.path.join(data, "out.json")
    command = [os.path.join(args.bin, "sparrowctl"), "run", os.path.join(ROOT, "deploy/jobs", job + ".textproto"), "--data-root", data,
               "--json", out, "--checkpoint-root", os.path.join(data, "checkpoints"), "--set", "checkpoint.at_end=false"]
    for s in sets:
        command += ["--set", s]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(out) as f:
        summary = json.load(f)
    assert summary["state"] == "SUCCEEDED", summary
    return summary


def peer(args, model, batch, data, options):
    command = [args.torch_python, os.path.join(ROOT, "bench/dense/torch_dlrm.py"), "--model", model, "--batch-size", str(batch), "--clicks",
               os.path.join(data, "clicks.tsv"), "--batches", "40", "--steps", "80", "--rows-max", "12000000"] + options
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(text.splitlines()[-1])


def spread(values):
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--torch-python", help="a Python with PyTorch; without it there is no peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400000)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as data:
        subprocess.run([os.path.join(args.bin, "sparrowctl"), "gen", "clicks", "--rows", str(args.rows), "--out", os.path.join(data, "clicks.tsv"),
                        "--test-rows", "10000", "--test-out", os.path.join(data, "clicks.test.tsv")], check=True, stdout=subprocess.DEVNULL)
        print("| job | batch | Sparrow, samples/s | PyTorch, samples/s | ratio |")
        print("|---|---|---|---|---|")
        details = []
        for job, model, batch, peer_options, sets in [
                ("quickstart", "quickstart", 512, [], ["train.batch_size=512", "eval.every_steps=0"]),
                ("criteo_kaggle", "kaggle", 2048, ["--no-compile"],
                 ["train.batch_size=2048", "data.train.path[0]=clicks.tsv", "data.test.path[0]=clicks.test.tsv",
                  "data.train.rows.take_share=1", "data.test.rows.skip_share=0"])]:
            ours, theirs, split, framework = [], [], {}, "none"
            for _ in range(args.rounds):
                summary = sparrow(args, job, data, sets)
                ours.append(summary["samples_per_second"])
                split = summary["step_seconds"]
                if args.torch_python:
                    result = peer(args, model, batch, data, peer_options)
                    theirs.append(result["samples_per_second"])
                    framework = f'{result["framework"]}, {result["best"]}'
            ratio = f"{statistics.median(ours) / statistics.median(theirs):.2f}" if theirs else ""
            print(f"| {job} | {batch} | {spread(ours)} | {spread(theirs) if theirs else 'not installed'} | {ratio} |", flush=True)
            details.append(f"{job}: peer {framework}; Sparrow's ms a step: " + ", ".join(f"{k} {1e3 * v:.2f}" for k, v in split.items()))
        print()
        for line in details:
            print(line)


if __name__ == "__main__":
    main()
