#!/usr/bin/env python3
"""Measures what `lockstep bench` measures, on PyTorch's Gloo: torch.distributed over loopback TCP.

Warm-up, blocks, single calls and definitions are those of src/cli/bench_measure.c, with f32 and sum. PyTorch's all_reduce
and broadcast have no separate output. They run in place, which saves them a copy. The sums are timed on zeros, which stay
zeros, and checked on values before and after. Prints one JSON object per size.
"""
import argparse
import json
import statistics
import time

import peer
import torch
import torch.distributed as dist

N_BLOCKS, MAX_SINGLES, MIN_SINGLES, PERIOD = 9, 1000, 10, 61
BLOCK_S, SINGLES_S = 2e-3, 0.1
OPERATIONS = ("all_reduce", "broadcast", "all_gather", "send_recv")  # Gloo has no reduce_scatter in PyTorch 1.13


def values(rank, count):
    index = torch.arange(count)
    return ((index % PERIOD * 3 + rank * 5) % 8).float()


class AllReduce:
    factor = staticmethod(lambda n: 2 * (n - 1) / n)

    def __init__(self, rank, size, count):
        self.rank, self.size, self.data = rank, size, torch.zeros(count)

    def run(self):
        dist.all_reduce(self.data)

    def count_errors(self):
        self.data.copy_(values(self.rank, len(self.data)))
        self.run()
        n_errors = int((self.data != sum(values(rank, len(self.data)) for rank in range(self.size))).sum())
        self.data.zero_()
        return n_errors


class Broadcast:
    factor = staticmethod(lambda n: 1)

    def __init__(self, rank, size, count):
        self.rank, self.data = rank, torch.zeros(count)

    def run(self):
        dist.broadcast(self.data, 0)

    def count_errors(self):
        self.data.copy_(values(self.rank, len(self.data)))
        self.run()
        return int((self.data != values(0, len(self.data))).sum())


class AllGather:
    factor = staticmethod(lambda n: (n - 1) / n)

    def __init__(self, rank, size, count):
        self.block, self.out = values(rank, max(count // size, 1)), torch.zeros(max(count // size, 1) * size)
        self.blocks = list(self.out.chunk(size))

    def run(self):
        dist.all_gather(self.blocks, self.block)

    def count_errors(self):
        self.out.fill_(-1)
        self.run()
        return sum(int((block != values(rank, len(block))).sum()) for rank, block in enumerate(self.blocks))


class SendRecv:
    """A round trip between ranks 0 and 1. The reported time is half of it."""
    factor = staticmethod(lambda n: 1)

    def __init__(self, rank, size, count):
        self.rank, self.sent, self.received = rank, values(rank, count), torch.zeros(count)

    def run(self):
        if self.rank == 0:
            dist.send(self.sent, 1)
            dist.recv(self.received, 1)
        elif self.rank == 1:
            dist.recv(self.received, 0)
            dist.send(self.sent, 0)

    def count_errors(self):
        self.received.fill_(-1)
        self.run()
        return int((self.received != values(1 - self.rank, len(self.sent))).sum()) if self.rank < 2 else 0


def time_blocks(run, n_calls, n_blocks):
    """Returns the slowest rank's seconds per call for each block, sorted."""
    times = []
    for _ in range(n_blocks):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(n_calls):
            run()
        times.append((time.perf_counter() - start) / n_calls)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return sorted(slowest.tolist())


def block_length(run):
    n_calls = 1
    while True:
        needed = BLOCK_S / max(time_blocks(run, n_calls, 3)[0], 1e-9)
        if n_calls >= needed:
            return n_calls
        n_calls = min(int(needed * 1.1 + 1), 10 * n_calls)


def measure(operation, rank, size, nbytes):
    kind = {"all_reduce": AllReduce, "broadcast": Broadcast, "all_gather": AllGather, "send_recv": SendRecv}[operation]
    task = kind(rank, size, max(nbytes // 4, 1))
    if operation == "all_gather":
        nbytes = len(task.out) * 4
    n_errors = task.count_errors()
    median = statistics.median(time_blocks(task.run, block_length(task.run), N_BLOCKS))
    n_singles = min(max(int(SINGLES_S / median), MIN_SINGLES), MAX_SINGLES)
    p99 = time_blocks(task.run, 1, n_singles)[(n_singles * 99 + 99) // 100 - 1]
    all_errors = torch.tensor([n_errors + task.count_errors()])
    dist.all_reduce(all_errors)
    share = 0.5 if operation == "send_recv" else 1
    algbw = nbytes / (median * share) / 1e9
    return {"op": operation, "algorithm": "auto", "chosen": "auto", "transport": "gloo", "ranks": size,
            "symmetric": False, "type": "f32", "bytes": nbytes, "time_us_median": median * share * 1e6,
            "time_us_p99": p99 * share * 1e6, "algbw": algbw, "busbw": algbw * task.factor(size),
            "errors": int(all_errors)}


def work(arguments, rank, size):
    torch.set_num_threads(1)
    for nbytes in arguments.sizes.split(","):
        row = measure(arguments.operation, rank, size, int(nbytes))
        if rank == 0:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("sizes", help="bytes, separated by commas")
    parser.add_argument("--nproc", type=int, default=2, help="ranks to start")
    peer.run(work, parser.parse_args())
