#!/usr/bin/env python3
"""Measures what grains cost: step times and memory of the trainers with and without them, in turns in one run.

Each repetition runs every case once: every example at every number of ranks without grains, then with each number of
grains that the number of ranks divides. Each rank has one CPU. The figure of a case is the median over its repetitions of
the run's median step time. "against none" divides it by the figure of the same example and number of ranks without grains.
The bits are compared, too: with the same number of grains, all numbers of ranks must end with the same parameters.

    python3 bench/grains.py --repetitions 5
"""
import argparse
import os
import statistics
import sys
import tempfile

from options import build_directory, choices, number, numbers, steps
from train import ROOT, find_cached, find_data, run_example, shorten_text

STEPS = {"mlp": 1500, "mnist": 6000, "resnet9": 100, "language_model": 100}


def work_of(example, arguments):
    directory = {"mlp": None, "mnist": arguments.data, "resnet9": arguments.images, "language_model": arguments.text}[example]
    return [*(["--data", directory] if directory else []), "--steps", str(arguments.steps or STEPS[example])]


def run_once(case, arguments):
    example, ranks, grains = case
    return run_example(arguments.build, example, ranks,
                       [*work_of(example, arguments), *(["--grains", str(grains)] if grains else [])])


def check_bits(runs):
    """Checks that an example with the same grains ends with the same parameters on any number of ranks."""
    for example, grains in sorted({(e, g) for e, _, g in runs if g}):
        seen = {r["params_sha256"] for (e, _, g), results in runs.items() if (e, g) == (example, grains) for r in results}
        if len(seen) != 1:
            sys.exit(f"{example} with {grains} grains ended with {len(seen)} different parameters")


def print_table(runs, arguments):
    times = {case: [r["step_us_median"] for r in results] for case, results in runs.items()}
    print(f"microseconds per step, median of {arguments.repetitions} alternating runs (least to greatest); peak memory of rank 0\n")
    print("| example | ranks | grains | step, us | against none | 2 ranks against 1 | peak, MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (example, ranks, grains), results in runs.items():
        mine = statistics.median(times[example, ranks, grains])
        none = statistics.median(times[example, ranks, 0])
        alone = times.get((example, 1, grains))
        gain = f"{statistics.median(alone) / mine:.2f}x" if ranks > 1 and alone else ""
        peak = statistics.median(r["peak_rss_bytes"] for r in results) / 2**20
        print(f"| {example} | {ranks} | {grains or 'none'} | {mine:.0f} ({min(times[example, ranks, grains]):.0f} to "
              f"{max(times[example, ranks, grains]):.0f}) | {mine / none:.2f}x | {gain} | {peak:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=number, default=3)
    parser.add_argument("--examples", type=choices(STEPS), default=list(STEPS))
    parser.add_argument("--ranks", type=numbers, default=[1, 2])
    parser.add_argument("--grains", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=steps, help="steps of every run, to test that everything works")
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    arguments = parser.parse_args()
    arguments.data = arguments.images = arguments.text = None
    examples = arguments.examples
    if "mnist" in examples:
        arguments.data = find_data(None, "$LOCKSTEP_DATA")
    if "resnet9" in examples:
        arguments.images = find_cached(None, "cifar-10-batches-bin", "data_batch_1.bin", "$LOCKSTEP_DATA")
    cases = [(example, ranks, grains) for example in examples for ranks in arguments.ranks
             for grains in (0, *arguments.grains) if grains % ranks == 0]
    with tempfile.TemporaryDirectory() as folder:
        if "language_model" in examples:
            arguments.text = shorten_text(find_cached(None, "ptb", "ptb.train.txt", "$LOCKSTEP_DATA"), folder)
        runs = {case: [] for case in cases}
        for repetition in range(arguments.repetitions):
            for case in cases:
                runs[case].append(run_once(case, arguments))
                print(f"{repetition + 1}/{arguments.repetitions} {case}", file=sys.stderr, flush=True)
    check_bits(runs)
    print_table(runs, arguments)


if __name__ == "__main__":
    main()
