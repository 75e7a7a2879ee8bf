#!/usr/bin/env python3
"""Compares step times on a GPU with PyTorch on the same GPU, in turns. Prints a line of JSON per comparison, then a table.

Our side is the example itself with --device cuda. It reads its data from the host's memory, and the loss of every step.
PyTorch (bench/peers/torch_gpu.py) has all data in the GPU's memory and reads no loss. It runs eagerly and under
torch.compile (mode reduce-overhead), each in the faster of its two image layouts. The faster layout is found first, and
named. A repetition runs ours, eager, compiled. A figure is the median of the repetitions. Our epoch time is that of the
last epoch of a run. PyTorch's is its step time multiplied by our number of steps.

kernels_us is the time of a step's kernels alone. PyTorch's is measured by its profiler, ours by Nsight Compute (ncu) if it
is installed. The rest of a step's time is launches and waits. Missing data sets are replaced by noise
(bench/made_up_data.py). A step takes as long on noise.
"""
import argparse
import csv
import io
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

import train
from options import Lines, build_directory, choices, number, steps

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SETS = {"resnet9": "cifar-10-batches-bin", "mnist": "mnist", "language_model": "ptb", "transformer": "ptb"}

# name: example, batch, precision, our further flags, PyTorch's further flags, PyTorch's steps in a repetition
CASES = {
    "resnet9": ("resnet9", 128, "f32", ["--epochs", "4"], [], 200),
    "resnet9-bf16": ("resnet9", 1024, "bf16", ["--epochs", "8"], [], 100),
    "mnist": ("mnist", 64, "f32", ["--epochs", "3"], [], 1000),
    "mlp": ("mlp", 64, "f32", ["--epochs", "8"], [], 1000),
    "language_model": ("language_model", 20, "f32", ["--steps", "300", "--hidden", "650", "--dropout", "0.5"],
                       ["--hidden", "650"], 150),
    "transformer": ("transformer", 32, "f32", ["--steps", "400"], [], 200),
}
FAMILIES = ("eager", "compile")
PEER_PATIENCE_S = 120 # long, because PyTorch compiles


class Failed(Exception):
    pass


def assignments(text):
    chosen = [word for word in text.split(",") if word]
    for word in chosen:
        if "=" not in word:
            raise argparse.ArgumentTypeError(f"'{word}' is not NAME=VALUE")
    return chosen


def data_flags(example, arguments):
    return ["--data", os.path.join(arguments.data, SETS[example])] if example in SETS else []


def our_command(case, arguments, *more):
    example, batch, precision, flags, _, _ = CASES[case]
    if arguments.steps:
        flags = ["--steps", str(arguments.steps), *flags[2:]]
    return [os.path.join(arguments.build, "examples", example), "--device", arguments.device, "--batch", str(batch),
            "--precision", precision, *data_flags(example, arguments), *flags, "--quiet", *more]


def output_of(command, seconds, variable=""):
    environment = {**os.environ, **dict([variable.split("=", 1)])} if variable else None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              text=True, timeout=seconds, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from error
    if done.returncode != 0:
        raise Failed(f"{os.path.basename(command[0])}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


# --- ours ---

def run_ours(case, arguments, variable=""):
    """Returns microseconds per step, and steps per epoch (None if the run had no whole epoch)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary.json")
        output_of(our_command(case, arguments, "--summary", path), arguments.patience, variable)
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
    if "epoch_s" not in summary:
        return summary["step_us_median"], None
    n_steps = summary["steps"] / summary["epochs"]
    return summary["epoch_s"] / n_steps * 1e6, n_steps


def our_kernels(case, arguments):
    """Measures the kernels of a step from the first launches of a run, which repeat from step to step at the end."""
    command = our_command(case, arguments, "--steps", "100")
    n_launches = "1000" if CASES[case][0] in ("mnist", "mlp", "resnet9") else "6000" # a step of a text model has a kernel per word
    text = output_of(["ncu", "--clock-control", "none", "--cache-control", "none", "--launch-count", n_launches, "--csv",
                      "--metrics", "gpu__time_duration.sum", *command], 2 * arguments.patience)
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
    launches = [(row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * scale[row["Metric Unit"]])
                for row in csv.DictReader(io.StringIO(text[text.index('"ID"'):])) if row.get("Metric Unit") in scale]
    n_kernels = period([name for name, _ in launches])
    return {"kernels_us": sum(us for _, us in launches[-2 * n_kernels:]) / 2, "kernels": n_kernels}


def our_program(case, arguments):
    """Returns the kernels of a step as --print-program lists them. Each time includes a launch and a wait."""
    lines = output_of(our_command(case, arguments, "--steps", str(arguments.steps or 60), "--print-program"), arguments.patience).splitlines()
    program = [line for line in lines if line.endswith(" us") and " | " in line]
    return {"waited_us": sum(float(line.split()[-2]) for line in program), "program": program}


def period(names):
    """Returns the period with which the end of a list repeats, at least three times."""
    for length in range(1, len(names) // 4 + 1):
        end = names[-4 * length:]
        if end[length:] == end[:-length] and len(set(end)) > 2:
            return length
    raise Failed(f"the last of {len(names)} kernels do not repeat")


# --- PyTorch's ---

class Peer:
    """A process of PyTorch that keeps its models ready and runs steps on request."""

    def __init__(self, case, arguments):
        example, batch, precision, _, flags, _ = CASES[case]
        device = arguments.device if arguments.device.startswith("cuda") and not arguments.peer_on_cpu else "cpu"
        command = [arguments.python, os.path.join(ROOT, "bench", "peers", "torch_gpu.py"), example, "--batch", str(batch),
                   "--precision", precision, "--device", device, *data_flags(example, arguments), *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        try:
            print(line, file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], PEER_PATIENCE_S)[0]:
                raise Failed(f"PyTorch did not answer '{line}' within {PEER_PATIENCE_S} s")
            answer = self.process.stdout.readline()
        except OSError as error:
            raise Failed(f"PyTorch: {error}") from error
        if not answer:
            raise Failed("PyTorch's process ended")
        return json.loads(answer)

    def step_us(self, style, n_steps):
        answer = self.ask(f"{style} {n_steps}")
        if "error" in answer:
            raise Failed(f"PyTorch, {style}: {answer['error']}")
        return answer["step_us"]

    def close(self):
        self.process.kill()
        self.process.wait()


def faster_styles(peer, case, arguments):
    """Returns the faster layout per family ({"eager": "eager+channels_last"}), and errors by family."""
    layouts = ("", "+channels_last") if CASES[case][0] == "resnet9" else ("",)
    chosen, errors = {}, {}
    for family in FAMILIES:
        times = {}
        for layout in layouts:
            answer = peer.ask(f"{family}{layout} {arguments.steps or 40}")
            if "step_us" in answer:
                times[family + layout] = answer["step_us"]
            else:
                errors[family] = answer["error"]
        if times:
            chosen[family] = min(times, key=times.get)
    return chosen, errors


# --- a comparison ---

def compare(case, arguments):
    peer = Peer(case, arguments)
    try:
        styles, errors = faster_styles(peer, case, arguments)
        times, n_steps = {"ours": []}, None
        for _ in range(arguments.repetitions):
            step_us, n_steps = run_ours(case, arguments)
            times["ours"].append(step_us)
            for variable in arguments.variables if case in arguments.kernels else ():
                times.setdefault(variable, []).append(run_ours(case, arguments, variable)[0])
            for style in styles.values():
                times.setdefault(style, []).append(peer.step_us(style, arguments.steps or CASES[case][5]))
        row = {"case": case, "batch": CASES[case][1], "precision": CASES[case][2],
               "step_us": {who: {"median": statistics.median(t), "min": min(t), "max": max(t)} for who, t in times.items()},
               "styles": styles, "errors": errors}
        ours = row["step_us"]["ours"]["median"]
        row["ratio"] = {family: row["step_us"][style]["median"] / ours for family, style in styles.items()}
        if n_steps:
            row["epoch_s"] = {who: t["median"] * n_steps / 1e6 for who, t in row["step_us"].items()}
        if case in arguments.kernels and not arguments.peer_on_cpu:
            row["kernels"] = {family: peer.ask(f"profile {style} 20") for family, style in styles.items()}
    finally:
        peer.close()
    if case in arguments.kernels:
        ours = row.setdefault("kernels", {})["ours"] = {}
        for find in (our_program, our_kernels):
            try:
                ours.update(find(case, arguments))
            except (Failed, ValueError) as error:
                ours["error"] = str(error)
    return row


def print_table(rows):
    def figure(times):
        return f"{times['median']:.1f} ({times['min']:.1f} to {times['max']:.1f})"

    print(f"\n{'case':<15} {'batch':>5} {'Lockstep, us a step':>30}" + "".join(f" {family:>32} {'':>6}" for family in FAMILIES))
    for row in rows:
        cells = ""
        for family in FAMILIES:
            style = row["styles"].get(family)
            cells += (f" {figure(row['step_us'][style]):>32} {row['ratio'][family]:>5.2f}x" if style else
                      f" {'failed':>32} {'':>6}")
        print(f"{row['case']:<15} {row['batch']:>5} {figure(row['step_us']['ours']):>30}{cells}")
    for row in rows:
        for who, times in row["step_us"].items():
            if "=" in who:
                print(f"{row['case']}: Lockstep with {who}: {figure(times)} us a step")
        for who, seconds in row.get("epoch_s", {}).items():
            print(f"{row['case']}: an epoch: {who} {seconds:.3f} s")
        for who, kernels in row.get("kernels", {}).items():
            figures = {name: value for name, value in kernels.items() if name != "program"}
            print(f"{row['case']}: of a step its kernels: {who} {json.dumps(figures)}")
        for family, error in row["errors"].items():
            print(f"{row['case']}: {family}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=choices(CASES), default=",".join(CASES), help=f"default: {', '.join(CASES)}")
    parser.add_argument("--kernels", type=choices(CASES), default="resnet9", help="cases whose kernel times are measured, too")
    parser.add_argument("--variables", type=assignments,
                        default="LOCKSTEP_GPU_BRANCHES=0,LOCKSTEP_CUDNN_BENCHMARK=1,LOCKSTEP_GPU_GRAPHS=0",
                        help="in the cases of --kernels, our side also runs with each of these set, in turn; '' for none")
    parser.add_argument("--repetitions", type=number, default=3)
    parser.add_argument("--seconds", type=float, default=460, help="no comparison begins after this time")
    parser.add_argument("--patience", type=float, default=60, help="time limit in seconds for one run of our side")
    parser.add_argument("--steps", type=steps, help="steps of every run, to test that everything works")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--peer-on-cpu", action="store_true", help="run PyTorch on the CPU, to test that everything works")
    parser.add_argument("--data", help="directory with cifar-10-batches-bin, mnist and ptb; default $LOCKSTEP_DATA")
    parser.add_argument("--python", help="a Python that has PyTorch; default: the one that tools/torch-python finds")
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    parser.add_argument("--json", metavar="FILE", help="also append the JSON lines to FILE")
    arguments = parser.parse_args()
    lines = Lines(arguments.json, "a")
    arguments.python = arguments.python or train.find_python()
    arguments.data = arguments.data or os.environ.get("LOCKSTEP_DATA") or os.path.expanduser("~/.cache/lockstep/data")
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        if not all(os.path.exists(os.path.join(arguments.data, name)) for name in SETS.values()):
            for name in set(SETS.values()):
                if os.path.exists(os.path.join(arguments.data, name)):
                    os.symlink(os.path.abspath(os.path.join(arguments.data, name)), os.path.join(folder, name))
            output_of([sys.executable, os.path.join(ROOT, "bench", "made_up_data.py"), folder], 300)
            arguments.data = folder
        for case in arguments.cases:
            if time.monotonic() - began > arguments.seconds:
                print(f"{case}: left out, because {arguments.seconds:.0f} s have passed", flush=True)
                continue
            try:
                entry = compare(case, arguments)
                rows.append(entry)
            except Failed as error:
                entry = {"case": case, "error": str(error)}
            print(json.dumps(entry), flush=True)
            lines.write([entry])
    print_table(rows)


if __name__ == "__main__":
    main()
