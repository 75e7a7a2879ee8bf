#!/usr/bin/env python3
"""Compares collectives with Open MPI, MPICH and PyTorch's Gloo, in one run (`make bench-comm`).

Contenders:
    symmetric  lockstep bench between processes, buffers in symmetric memory
    ordinary   the same with ordinary buffers
    tcp        the same over TCP (loopback)
    openmpi    bench/peers/comm_mpi.c, compiled with mpicc.openmpi
    mpich      the same with mpicc.mpich
    gloo       bench/peers/comm_gloo.py over loopback

All contenders measure in the same way: warm-up, then 9 blocks of at least 2 ms of calls back to back. The time of a block
is that of its slowest rank. The result is the median of the blocks. Results of the calls are checked. Each repetition runs
every contender once, in turn, so that other load on the machine affects all alike. A figure is the median of the
repetitions.

A virtual machine may move its CPUs. So half a round trip between two of them (lockstep bench send_recv, 4 bytes) is
measured before and after each run. Runs within twice the least value are "near", the others are "far". Tables and aims
compare runs of one state. Runs that met both are left out.

With --used, the input of each call is written before it and its result is read after it, within the measured time, as by a
program that computes what it sends. The aims are for calls without --used only.

The MPI libraries run with their defaults. Open MPI binds two ranks to cores; MPICH and Lockstep bind nothing. Open MPI gets
--oversubscribe only if there are more ranks than CPUs. A contender that is missing is named and left out.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from options import Lines, build_directory, choices, number, numbers

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = os.path.join(ROOT, "bench", "peers")
CONTENDERS = ("symmetric", "ordinary", "tcp", "openmpi", "mpich", "gloo")
MPI = ("openmpi", "mpich")
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
OTHERS = ("send_recv", "all_to_all", "all_to_allv")  # without aims
STATES = ("near", "far")
KIB = 1024

# (operations, ranks, ours, against, least size in bytes, aim: times as fast)
LEVEL = ("broadcast", "all_gather", "reduce_scatter")
AIMS = (
    (("all_reduce",), (2,), "symmetric", "mpi", 64 * KIB, 4),
    (("all_reduce",), (2,), "symmetric", "mpi", 256, 1.5),
    (("all_reduce",), (2,), "symmetric", "mpi", 0, 1),
    (("all_reduce",), (2,), "ordinary", "mpi", 0, 1),
    (("all_reduce",), (2,), "ordinary", "mpi", 8 * KIB, 1.2),
    (("all_reduce",), (4,), "symmetric", "mpi", 0, 2),
    (("all_reduce",), (2, 4), "tcp", "gloo", 0, 1.5),
    (("all_reduce",), (2, 4), "symmetric", "gloo", 0, 10),
    (LEVEL, (2, 4), "symmetric", "mpi", 0, 1),
    (LEVEL, (2, 4), "ordinary", "mpi", 0, 1),
)


class Missing(Exception):
    pass


def output_of(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Missing(f"{os.path.basename(command[0])}: exit status {done.returncode}: {lines[0]}")
    return done.stdout


def parse_sizes(text):
    """Parses sizes in the format of lockstep bench: 4:64M:4, 8,1K,3M."""
    def number(word):
        shift = {"K": 10, "M": 20, "G": 30}.get(word[-1:], 0)
        return int(word[:-1] if shift else word) << shift

    sizes = []
    for part in text.split(","):
        words = [number(word) for word in part.split(":")]
        first, last, factor = words[0], words[1] if len(words) > 1 else words[0], words[2] if len(words) > 2 else 2
        if first < 1 or factor < 2 or len(words) > 3:
            raise ValueError(part)
        while first <= last:
            sizes.append(first)
            first *= factor
    return sizes


# --- contenders: prepare() raises Missing, run() returns rows ---

def ours(who, operation, ranks, sizes, arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.json")
        flags = {"symmetric": ["--transport", "shm", "--symmetric"], "ordinary": ["--transport", "shm"],
                 "tcp": ["--transport", "tcp"]}[who]
        lockstep = os.path.join(arguments.build, "lockstep")
        output_of([lockstep, "run", "-n", str(ranks), lockstep, "bench", operation, "--json", path,
                   "--sizes", ",".join(map(str, sizes)), *flags, *(["--used"] if arguments.used else [])])
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def mpi_program(who, arguments):
    return os.path.join(arguments.build, "peers", f"comm_{who}")


def compile_mpi(who, arguments):
    for tool in (f"mpicc.{who}", f"mpirun.{who}"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed; Debian: apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev")
    os.makedirs(os.path.join(arguments.build, "peers"), exist_ok=True)
    output_of([f"mpicc.{who}", "-O3", os.path.join(PEERS, "comm_mpi.c"), "-o", mpi_program(who, arguments)])


def mpi(who, operation, ranks, sizes, arguments):
    launcher = [f"mpirun.{who}"]
    if who == "openmpi":
        launcher += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        launcher += ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
    text = output_of([*launcher, "-n", str(ranks), mpi_program(who, arguments), who, operation, ",".join(map(str, sizes)),
                      *(["used"] if arguments.used else [])])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def find_torch(arguments):
    try:
        arguments.python = output_of([os.path.join(ROOT, "tools/torch-python")]).strip()
    except Missing as error:
        raise Missing("no Python here has PyTorch; Debian: apt-get install python3-torch") from error


def gloo(operation, ranks, sizes, arguments):
    if operation == "reduce_scatter":
        return []  # Gloo has none in PyTorch 1.13
    text = output_of([arguments.python, os.path.join(PEERS, "comm_gloo.py"), operation, ",".join(map(str, sizes)),
                      "--nproc", str(ranks)])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def prepare(who, arguments):
    if who in MPI:
        compile_mpi(who, arguments)
    elif who == "gloo" and arguments.used:
        raise Missing("not measured with --used")
    elif who == "gloo":
        find_torch(arguments)
    else:
        ours(who, "all_reduce", 2, [4], arguments)


def run(who, operation, ranks, arguments):
    if who in MPI:
        return mpi(who, operation, ranks, arguments.sizes, arguments)
    if who == "gloo":
        return gloo(operation, ranks, arguments.sizes, arguments)
    return ours(who, operation, ranks, arguments.sizes, arguments)


# --- near and far ---

def half_round_trip(arguments):
    """Measures half a round trip between two CPUs, in microseconds."""
    return ours("ordinary", "send_recv", 2, [4], arguments)[0]["time_us_median"]


def name_states(rows):
    """Sets the state of each run: near, far, or mixed."""
    limit = 2 * min(min(row["half_round_trip_us"]) for row in rows)
    for row in rows:
        is_near = [time < limit for time in row["half_round_trip_us"]]
        row["state"] = "mixed" if is_near[0] != is_near[1] else STATES[0] if is_near[0] else STATES[1]


# --- measuring and summing up ---

def measure(present, arguments, lines):
    rows = []
    before = half_round_trip(arguments)
    for repetition in range(arguments.repetitions):
        for operation in arguments.operations:
            for ranks in arguments.ranks:
                for who in present:
                    print(f"{repetition + 1}/{arguments.repetitions} {operation} on {ranks}: {who}", file=sys.stderr, flush=True)
                    new = run(who, operation, ranks, arguments)
                    wrong = [row for row in new if row["errors"]]
                    if wrong:
                        sys.exit(f"{who}: wrong elements: {wrong[0]}")
                    after = half_round_trip(arguments)
                    new = [{"contender": who, "repetition": repetition, "half_round_trip_us": [before, after], **row}
                           for row in new]
                    lines.write(new)
                    rows += new
                    before = after
    if rows:
        name_states(rows)
    return rows


def medians(rows):
    """Returns {(operation, ranks, state): {bytes: {contender: microseconds}}}, with the better MPI library as "mpi"."""
    samples = {}
    for row in rows:
        if row["state"] not in STATES:
            continue
        samples.setdefault((row["op"], row["ranks"], row["state"]), {}).setdefault(row["bytes"], {}).setdefault(
            row["contender"], []).append(row["time_us_median"])
    for sizes in samples.values():
        for nbytes, times in sizes.items():
            sizes[nbytes] = {who: statistics.median(values) for who, values in times.items()}
            libraries = [sizes[nbytes][who] for who in MPI if who in sizes[nbytes]]
            if libraries:
                sizes[nbytes]["mpi"] = min(libraries)
    return samples


def ratio(times, us, against):
    return times[against] / times[us] if us in times and against in times else None


def print_states(rows):
    runs = {(row["op"], row["ranks"], row["contender"], row["repetition"]): row for row in rows}.values()
    counts = {state: [row for row in runs if row["state"] == state] for state in (*STATES, "mixed")}
    found = [time for row in runs for time in row["half_round_trip_us"]]
    print(f"half a round trip between two CPUs: {min(found):.3f} to {max(found):.3f} us; "
          f"{', '.join(f'{len(those)} runs {state}' for state, those in counts.items())}, the last left out")


def print_tables(results, present):
    ratios = (("symmetric", "mpi"), ("ordinary", "mpi"), ("tcp", "gloo"), ("symmetric", "gloo"))
    for (operation, ranks, state), sizes in results.items():
        print(f"\n{operation}, f32, {ranks} ranks, {state}: microseconds, and how many times as fast ('mpi': the better of both)")
        print(f"{'bytes':>10}" + "".join(f" {who:>11}" for who in present) +
              "".join(f" {us + '/' + them:>15}" for us, them in ratios))
        for nbytes, times in sorted(sizes.items()):
            print(f"{nbytes:>10}" + "".join(f" {times[who]:>11.2f}" if who in times else f" {'-':>11}" for who in present) +
                  "".join(f" {value:>14.2f}x" if (value := ratio(times, *pair)) else f" {'-':>15}" for pair in ratios))


def judge(results):
    """Returns a row for each aim that has figures, with its least ratio."""
    rows = []
    for operations, ranks_list, us, against, from_nbytes, aim in AIMS:
        for (operation, ranks, state), sizes in results.items():
            if operation not in operations or ranks not in ranks_list:
                continue
            found = [(ratio(times, us, against), nbytes) for nbytes, times in sizes.items()
                     if nbytes >= from_nbytes and ratio(times, us, against) is not None]
            if found:
                least, nbytes = min(found)
                rows.append({"op": operation, "ranks": ranks, "state": state, "ours": us, "against": against,
                             "from_bytes": from_nbytes,
                             "aim": aim, "least": least, "least_at_bytes": nbytes, "is_reached": least >= aim})
    return rows


def print_aims(rows):
    print("\nagainst the aims: the least ratio over the sizes")
    for row in rows:
        print(f"{row['op']:<14} {row['ranks']} ranks, {row['state']:<4}  {row['ours']:>9} against {row['against']:<4} from {row['from_bytes']:>6} B: "
              f"aim {row['aim']:>4}x, least {row['least']:>7.2f}x at {row['least_at_bytes']} B  "
              f"{'reached' if row['is_reached'] else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=number, default=5)
    parser.add_argument("--operations", type=choices((*OPERATIONS, *OTHERS)), default=list(OPERATIONS),
                        help=f"default: {', '.join(OPERATIONS)}; also {', '.join(OTHERS)}")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="numbers of ranks, separated by commas")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("4:64M:4"), help="bytes, in the format of lockstep bench")
    parser.add_argument("--contenders", type=choices(CONTENDERS), default=list(CONTENDERS), help=f"default: {', '.join(CONTENDERS)}")
    parser.add_argument("--used", action="store_true", help="write inputs and read results between the calls")
    parser.add_argument("--build", type=build_directory, default=os.path.join(ROOT, "build"))
    parser.add_argument("--json", metavar="FILE", help="write one line per measurement and one per aim")
    arguments = parser.parse_args()
    lines = Lines(arguments.json)
    present = []
    for who in arguments.contenders:
        try:
            prepare(who, arguments)
            present.append(who)
        except Missing as reason:
            print(f"skipped: {who}: {reason}")
    try:
        rows = measure(present, arguments, lines) if present else []
    except Missing as reason:
        sys.exit(str(reason))
    if not rows:
        sys.exit("nothing was measured")
    results = medians(rows)
    aims = [] if arguments.used else judge(results)
    print(f"{len(os.sched_getaffinity(0))} CPUs, median of {arguments.repetitions} alternating repetitions")
    print_states(rows)
    print_tables(results, present)
    if aims:
        print_aims(aims)
    lines.write(aims)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
