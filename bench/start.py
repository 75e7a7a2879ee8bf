#!/usr/bin/env python3
"""Measures the start of a run: from the command's start until the first barrier is done, on this machine.

Contenders: `lockstep run` with 8 and with 64 ranks (bench/start.c), and `torchrun` (python -m torch.distributed.run) with 8
(bench/peers/start_gloo.py, Gloo over loopback). Each repetition runs every contender once, in turn, so that other load on
the machine affects all alike. A figure is the median of the repetitions. A missing contender is named and left out.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from options import build_directory, number

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
AIM_MS = {"lockstep 8": 150, "lockstep 64": 1000}


def contenders(build, logs):
    command = [os.path.join(build, "lockstep"), "run", "-n"]
    program = os.path.join(build, "bench", "start")
    found = {f"lockstep {n}": [*command, str(n), program] for n in (8, 64)}
    python = subprocess.run([os.path.join(ROOT, "tools", "torch-python")], stdout=subprocess.PIPE, text=True, check=False)
    if python.returncode == 0:
        # Debian's PyTorch 1.13 does not start under Python 3.11 without explicit redirection options.
        found["torchrun 8"] = [python.stdout.strip(), "-m", "torch.distributed.run", "--nproc_per_node", "8", "--redirects", "2",
                               "--tee", "2", "--log_dir", logs, os.path.join(ROOT, "bench", "peers", "start_gloo.py")]
    else:
        print("torchrun is left out: no Python here has PyTorch; Debian: apt-get install python3-torch", file=sys.stderr)
    return found


def start_ms(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    begin = time.time_ns()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        sys.exit(f"{command[0]}: exit status {done.returncode}: {lines[-1]}")
    return (int(done.stdout.split()[0]) - begin) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    parser.add_argument("--repetitions", type=number, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as logs:
        found = contenders(arguments.build, logs)
        times_ms = {who: [] for who in found}
        for _ in range(arguments.repetitions):
            for who, command in found.items():
                times_ms[who].append(start_ms(command))
    print(f"{'ranks':<12} {'median/ms':>10} {'least':>8} {'most':>8} {'aim':>6}")
    for who, times in times_ms.items():
        print(f"{who:<12} {statistics.median(times):10.1f} {min(times):8.1f} {max(times):8.1f} {AIM_MS.get(who, ''):>6}")


if __name__ == "__main__":
    main()
