#!/usr/bin/env python3
"""Measures what checkpoints add to the time of a training step: resnet9 with and without --checkpoint-every, in turns.

The figure of a run is the time of its epoch divided by its steps. It includes everything between the steps, but not the
wait for the last file at the end. The cost is the ratio of the medians, less 1. All ranks wait for the copy. Hashing and
writing take CPU time from a rank. All runs must end with the same parameters. Prints one JSON object.

    python3 bench/checkpoint.py --repetitions 9
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from options import build_directory, directory, number, steps
from train import ROOT, find_cached

FILE_LINE = re.compile(r"safetensors: (\d+) bytes, copied in ([0-9.]+) ms, written in ([0-9.]+) ms")


def run_once(every, arguments):
    length = ["--steps", str(arguments.steps)] if arguments.steps else ["--epochs", "1"]
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        summary = os.path.join(folder, "summary.json")
        command = [os.path.join(arguments.build, "lockstep"), "run", "-n", str(arguments.ranks),
                   os.path.join(arguments.build, "examples", arguments.example), *arguments.data, *length,
                   "--run", os.path.join(folder, "run"), *(["--checkpoint-every", str(every)] if every else []),
                   "--quiet", "--summary", summary]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True, env={**os.environ, "LOCKSTEP_LOG": "info"})
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
        with open(summary, encoding="utf-8") as file:
            result = json.load(file)
        step_us = result["step_us_median"] if arguments.steps else result["epoch_s"] / result["steps"] * 1e6
        return {"step_us": step_us, "hash": result["params_sha256"],
                "files": [tuple(map(float, found)) for found in FILE_LINE.findall(done.stderr)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=number, default=5, help="runs of each kind")
    parser.add_argument("--example", default="resnet9", choices=["resnet9", "mnist"])
    parser.add_argument("--ranks", type=number, default=2, help="number of ranks")
    parser.add_argument("--every", type=number, default=100, help="steps between two checkpoints")
    parser.add_argument("--steps", type=steps, help="steps of every run, to test that everything works; default: an epoch")
    parser.add_argument("--directory", type=directory, help="where the runs write (default: the system's directory for temporary files)")
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    arguments = parser.parse_args()
    arguments.data = []
    if arguments.example == "resnet9":
        arguments.data = ["--data", find_cached(None, "cifar-10-batches-bin", "data_batch_1.bin", "$LOCKSTEP_DATA")]
    runs = {0: [], arguments.every: []}
    for repetition in range(arguments.repetitions):
        for every, results in runs.items():
            results.append(run_once(every, arguments))
            print(f"{repetition + 1}/{arguments.repetitions} every {every or 'none'}: "
                  f"{results[-1]['step_us']:.0f} us a step", file=sys.stderr, flush=True)
    if len({result["hash"] for results in runs.values() for result in results}) != 1:
        sys.exit("the runs ended with different parameters")
    without, with_them = (statistics.median(r["step_us"] for r in results) for results in runs.values())
    files = [file for result in runs[arguments.every] for file in result["files"]]
    if not files:
        sys.exit(f"no checkpoint was due: a run has fewer than {arguments.every} steps")
    nbytes, copied, written = (statistics.median(column) for column in zip(*files))
    print(json.dumps({"example": arguments.example, "ranks": arguments.ranks, "every": arguments.every,
                      "repetitions": arguments.repetitions, "step_us_without": round(without, 1),
                      "step_us_with": round(with_them, 1), "cost_percent": round((with_them / without - 1) * 100, 2),
                      "file_bytes": int(nbytes), "copied_ms": copied, "written_ms": written}))


if __name__ == "__main__":
    main()
