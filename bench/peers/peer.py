"""Code that the PyTorch scripts here share: the ranks, the timed loop, and the JSON line at the end.

There are two styles. "tuned" is PyTorch at its best on a CPU: all data is in memory as tensors and a batch is one gather (no
DataLoader), the order of the epoch is made outside of the timed steps, gradients are views into DDP's buckets, the loss is
not read back, and the optimizers use their multi-tensor form. "tutorial" is what PyTorch's tutorials write and most people
run: TensorDataset, DistributedSampler, DataLoader, plain DDP and optimizer, loss.item() in every step.
The time of a step is the wall time from before the request for the batch until after the update. The first 20 steps are left
out.
"""
import ctypes
import json
import multiprocessing
import os
import re
import signal
import statistics
import tempfile
import time

# One thread per rank, as on our side. This must be set before torch and its BLAS are loaded.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"


def name_cpu_for_openblas():
    """Tells OpenBLAS the kind of CPU. An OpenBLAS that does not know a newer Intel CPU treats it as one without AVX."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        words = set(file.read().split())
    if "GenuineIntel" in words and "avx2" in words:
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX" if "avx512vl" in words else "Haswell")


name_cpu_for_openblas()

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP_STEPS = 20


def add_arguments(parser):
    parser.add_argument("--nproc", type=int, default=1, help="ranks to start; ignored under torchrun")
    parser.add_argument("--batch", type=int, default=64, help="samples of all ranks together in one step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--style", choices=("tuned", "tutorial"), default="tuned")


def blas():
    """Returns the BLAS library of this process, and whether it is the reference BLAS, which is many times slower than others."""
    fast = ("openblas", "mkl", "blis", "atlas")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        files = sorted({line.split()[-1] for line in maps if "/" in line})
    # Debian's PyTorch calls libblas.so.3, whichever library is behind that name. A fast library may also be loaded, as the
    # LAPACK of another module, and not be called.
    named = [file for file in files if os.path.basename(file).startswith("libblas.so")]
    if named:
        return named[0], not any(name in named[0] for name in fast)
    # PyTorch's own wheels contain their BLAS in libtorch. Any other BLAS in the process then belongs to another module.
    built_in = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return f"{built_in.group(1) if built_in else 'BLAS'}, built in", False


def run(work, arguments):
    """Calls work(arguments, rank, size) on every rank: those of torchrun, or `--nproc` processes that it starts."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        work(arguments, dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    elif arguments.nproc == 1:
        work(arguments, 0, 1)
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, args=(work, arguments, os.path.join(folder, "store")), nprocs=arguments.nproc)


def _end_with_parent():
    """Ends this rank where the process that started it is gone. A rank that waits in Gloo hears no milder signal."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != multiprocessing.parent_process().pid:
        os._exit(1)


def _rank(rank, work, arguments, store):
    _end_with_parent()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.nproc)
    work(arguments, rank, arguments.nproc)
    dist.barrier()  # PyTorch 2.15 aborts where the other rank is gone while this one takes its group apart
    dist.destroy_process_group()


def distributed(model, size, style):
    if size == 1:
        return model
    if style == "tutorial":
        return torch.nn.parallel.DistributedDataParallel(model)
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)


def train(model, optimizer, features, labels, *, arguments, n_steps, rank, size, rate=None):
    """Runs n_steps steps over shuffled epochs; returns the seconds each took. `rate(step)` sets the learning rate."""
    if arguments.batch % size:
        raise SystemExit(f"a batch of {arguments.batch} cannot be cut into {size} equal parts, as DDP's mean needs")
    loop = _train_tutorial if arguments.style == "tutorial" else _train_tuned
    return loop(model, optimizer, features, labels, arguments.batch, n_steps, rank, size, arguments.seed, rate)


def _train_tutorial(model, optimizer, features, labels, batch, n_steps, rank, size, seed, rate):
    dataset = torch.utils.data.TensorDataset(features, labels)
    sampler = torch.utils.data.distributed.DistributedSampler(dataset, size, rank, shuffle=True, seed=seed)
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch // size, sampler=sampler)
    criterion = torch.nn.CrossEntropyLoss()
    times, epoch = [], 0
    while len(times) < n_steps:
        sampler.set_epoch(epoch)
        batches = iter(loader)
        while len(times) < n_steps:
            start = time.perf_counter()
            pair = next(batches, None)
            if pair is None:
                break
            if rate is not None:
                optimizer.param_groups[0]["lr"] = rate(len(times))
            optimizer.zero_grad()
            loss = criterion(model(pair[0]), pair[1])
            loss.backward()
            optimizer.step()
            loss.item()
            times.append(time.perf_counter() - start)
        epoch += 1
    return times


def _train_tuned(model, optimizer, features, labels, batch, n_steps, rank, size, seed, rate):
    times = []
    generator = torch.Generator().manual_seed(seed)
    count = len(labels)
    while len(times) < n_steps:
        order = torch.randperm(count, generator=generator)
        for begin in range(0, count, batch):
            if len(times) == n_steps:
                break
            share = (min(begin + batch, count) - begin) // size
            first = begin + rank * share
            start = time.perf_counter()
            index = order[first : first + share]
            x, y = features.index_select(0, index), labels.index_select(0, index)
            if rate is not None:
                optimizer.param_groups[0]["lr"] = rate(len(times))
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
    return times


def test(model, features, labels):
    with torch.no_grad():
        logits = model(features)
    return {"test_loss": torch.nn.functional.cross_entropy(logits, labels).item(),
            "test_accuracy": (logits.argmax(1) == labels).double().mean().item()}


def report(example, times, size, arguments, **results):
    """Prints the result of rank 0: one JSON object in one line. Its keys are those of our own --summary."""
    steps = sorted(times[WARM_UP_STEPS:])
    library, is_reference = blas()
    print(json.dumps({"peer": "pytorch", "version": torch.__version__, "style": arguments.style, "example": example,
                      "world_size": size, "steps": len(times), "global_batch": arguments.batch, **results,
                      "step_us_median": statistics.median(steps) * 1e6, "step_us_p99": steps[int(0.99 * len(steps))] * 1e6,
                      "blas": library, "blas_is_reference": is_reference}), flush=True)
