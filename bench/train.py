#!/usr/bin/env python3
"""Compares step times of the trainers with PyTorch, in turns in one run (`make bench`).

Each repetition runs every case once, ours and the peer's in turn, so that other load on the machine affects both. The
figure of a run is the median wall time of its steps, input included. The table has the median of the repetitions with the
least and the greatest, and the ratio of the two medians. Both sides have one thread and one CPU per rank. Otherwise one rank
alone would make its batches on a second CPU. The global batch is the same for every number of ranks. PyTorch's ranks are DDP
on Gloo. PyTorch runs in two styles: "tuned" is its best on a CPU (tensors in memory, no DataLoader, no loss read back),
"tutorial" is what its tutorials write.

language_model is an LSTM of 2 layers of 650 units over 35 steps at batch 20. transformer is a GPT of 4 layers of 128
features over 128 characters at batch 32. Both use Penn Treebank. Only the first lines of its validation and test splits are
used, because no step reads them.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from options import Lines, build_directory, choices, number, numbers, steps

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS, PEERS = "lockstep", ("tuned", "tutorial") # the styles of bench/peers/peer.py
EXAMPLES = ("mnist", "mlp", "resnet9", "language_model", "transformer")


def a_cpu_each(ranks):
    """Returns a function that limits a child process to as many CPUs as it has ranks, if the machine has as many."""
    cpus = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, cpus[:ranks])


def output_of(command, ranks):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                              preexec_fn=a_cpu_each(ranks))
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def find_data(given, flag):
    """Returns the directory with MNIST's files: the given one, or the one that tools/find-data finds."""
    if given:
        return expect_file(given, ("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"), flag)
    try:
        done = subprocess.run([os.path.join(ROOT, "tools/find-data")], stdout=subprocess.PIPE, text=True, check=True)
    except subprocess.CalledProcessError:
        sys.exit(f"no data set in MNIST's format here; name its directory with {flag}")
    return done.stdout.split(maxsplit=1)[1].strip()


def expect_file(directory, files, flag):
    """Returns the directory that `flag` names, if it has one of these files."""
    if not any(os.path.exists(os.path.join(directory, file)) for file in files):
        sys.exit(f"{flag} {directory}: there is no {files[0]}")
    return directory


def find_cached(given, name, file, flag):
    """Returns the directory of the data set `name`: the given one, or the one in which the trainers find it."""
    if given:
        return expect_file(given, (file,), flag)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for root in (os.environ.get("LOCKSTEP_DATA"), os.path.join(cache, "lockstep", "data")):
        if root and os.path.exists(os.path.join(root, name, file)):
            return os.path.join(root, name)
    sys.exit(f"no {name} here; name its directory with {flag}")


def shorten_text(directory, folder):
    """Links the training split and copies only some lines of the others, because evaluation is not timed."""
    os.symlink(os.path.abspath(os.path.join(directory, "ptb.train.txt")), os.path.join(folder, "ptb.train.txt"))
    for split in ("valid", "test"):
        with open(os.path.join(directory, f"ptb.{split}.txt"), encoding="utf-8") as file:
            lines = [file.readline() for _ in range(40)]
        with open(os.path.join(folder, f"ptb.{split}.txt"), "w", encoding="utf-8") as file:
            file.writelines(lines)
    return folder


def find_python():
    done = subprocess.run([os.path.join(ROOT, "tools/torch-python")], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("no Python here has PyTorch; Debian: apt-get install python3-torch libopenblas0-pthread")
    return done.stdout.strip()


def work_of(example, arguments):
    """Returns the flags for data and number of steps, the same for both sides."""
    text = ["--data", arguments.text, "--steps", str(arguments.text_steps)]
    return {
        "mnist": ["--data", arguments.data, "--epochs", "1"],
        "mlp": ["--steps", str(arguments.steps)],
        "resnet9": ["--data", arguments.images, "--steps", str(arguments.image_steps)],
        "language_model": [*text, "--hidden", "650", "--dropout", "0.5"],
        "transformer": text,
    }[example]


def run_example(build, example, ranks, flags):
    """Runs an example and returns its summary."""
    with tempfile.TemporaryDirectory() as folder:
        summary = os.path.join(folder, "summary.json")
        output_of([os.path.join(build, "lockstep"), "run", "-n", str(ranks), os.path.join(build, "examples", example), *flags,
                   "--quiet", "--summary", summary], ranks)
        with open(summary, encoding="utf-8") as file:
            return json.load(file)


def run_peer(example, ranks, arguments, style):
    script = os.path.join(ROOT, "bench", "peers", f"torch_{example}.py")
    text = output_of([arguments.python, script, *work_of(example, arguments), "--nproc", str(ranks), "--style", style], ranks)
    result = json.loads(text.splitlines()[-1])
    if result["blas_is_reference"]:
        sys.exit(f"PyTorch uses the reference BLAS here ({result['blas']}), which is many times slower than the libraries in "
                 "common use. Ratios against it would be misleading. Debian: apt-get install libopenblas0-pthread")
    return result


def measure(cases, arguments, lines):
    """Returns one dictionary per run, in the order of the runs."""
    runs = []
    for repetition in range(arguments.repetitions):
        for example, ranks in cases:
            for who in (OURS, *PEERS):
                if who == OURS:
                    result = run_example(arguments.build, example, ranks, work_of(example, arguments))
                else:
                    result = run_peer(example, ranks, arguments, who)
                runs.append({"who": who, "example": example, "ranks": ranks, "repetition": repetition, **result})
                lines.write(runs[-1:])
                print(f"{repetition + 1}/{arguments.repetitions} {example} on {ranks}: {who} "
                      f"{result['step_us_median']:.1f} us", file=sys.stderr, flush=True)
    return runs


def summarise(cases, runs):
    rows = []
    for example, ranks in cases:
        row = {"example": example, "ranks": ranks}
        for who in (OURS, *PEERS):
            times = [r["step_us_median"] for r in runs if (r["who"], r["example"], r["ranks"]) == (who, example, ranks)]
            row[who] = {"median": statistics.median(times), "min": min(times), "max": max(times)}
        row["ratio"] = {who: row[who]["median"] / row[OURS]["median"] for who in PEERS}
        rows.append(row)
    return rows


def print_table(rows, arguments):
    def figure(times):
        return f"{times['median']:.1f} ({times['min']:.1f} to {times['max']:.1f})"

    print(f"microseconds per step, median of {arguments.repetitions} alternating runs (least to greatest)")
    print(f"{'example':<14} {'ranks':>5}  {'Lockstep':>26}" + "".join(f"  {'PyTorch ' + who:>26} {'':>7}" for who in PEERS))
    for row in rows:
        print(f"{row['example']:<14} {row['ranks']:>5}  {figure(row[OURS]):>26}" +
              "".join(f"  {figure(row[who]):>26} {row['ratio'][who]:>6.2f}x" for who in PEERS))
    for row in rows:
        alone = [r for r in rows if r["example"] == row["example"] and r["ranks"] == 1]
        if row["ranks"] > 1 and alone:
            gains = (f"{who} {alone[0][who]['median'] / row[who]['median']:.2f}x" for who in (OURS, *PEERS))
            print(f"{row['example']}: {row['ranks']} ranks against 1: " + ", ".join(gains))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=number, default=5)
    parser.add_argument("--examples", type=choices(EXAMPLES), default=["mnist", "mlp"], help=f"any of {', '.join(EXAMPLES)}")
    parser.add_argument("--ranks", type=numbers, default=[1, 2], help="numbers of ranks, separated by commas")
    parser.add_argument("--steps", type=steps, default=1000, help="steps of mlp; mnist runs one epoch")
    parser.add_argument("--data", help="directory with MNIST's files; default: the one that tools/find-data finds")
    parser.add_argument("--images", help="directory with CIFAR-10's binary files; default: where the trainers look for it")
    parser.add_argument("--image-steps", type=steps, default=100, help="steps of resnet9, at batch 128")
    parser.add_argument("--text", help="directory with Penn Treebank's files; default: where the trainers look for it")
    parser.add_argument("--text-steps", type=steps, default=60, help="steps of language_model and transformer")
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    parser.add_argument("--json", metavar="FILE", help="write one line per run and one per row of the table")
    arguments = parser.parse_args()
    arguments.python = find_python()
    cases = [(example, ranks) for example in arguments.examples for ranks in arguments.ranks]
    needed = set(arguments.examples)
    if "mnist" in needed:
        arguments.data = find_data(arguments.data, "--data")
    if "resnet9" in needed:
        arguments.images = find_cached(arguments.images, "cifar-10-batches-bin", "data_batch_1.bin", "--images")
    with tempfile.TemporaryDirectory() as folder:
        if needed & {"language_model", "transformer"}:
            arguments.text = shorten_text(find_cached(arguments.text, "ptb", "ptb.train.txt", "--text"), folder)
        lines = Lines(arguments.json)
        runs = measure(cases, arguments, lines)
    rows = summarise(cases, runs)
    print_table(rows, arguments)
    print(f"PyTorch {runs[1]['version']} with {runs[1]['blas']}" + (f"; mnist from {arguments.data}" if arguments.data else ""))
    lines.write(rows)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
