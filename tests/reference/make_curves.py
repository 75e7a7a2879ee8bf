#!/usr/bin/env python3
"""The losses of PyTorch's first 100 steps on the two models of examples/, which ours have to follow.

  make_curves.py mnist|mlp [--steps N]   prints the curve; mnist_curve.txt and mlp_curve.txt here are its output
  make_curves.py --check FILE            computes FILE's curve again and compares; exit status 1 where it differs

File format: lines that begin with # say what the figures are, the first of them "# curve NAME"; then a line per step,
"STEP FLOAT64 FLOAT32": the step from 0, and the mean loss of its batch before that step's update, in PyTorch's float64
and float32 arithmetic. The float64 column is the one to follow; the float32 one shows how far rounding alone leads.

Weights and batches are formulas over Philox4x32-10, so that no file has to hold them and C makes the very same bits.
With u(seed, stream, index) = lksi_random_uniform, a multiple of 2^-24 in [0, 1):

  parameter number p (in the order of the model below), element i, row-major, (out features, in features):
      (float)((2.0 * u(1, p, i) - 1.0) * bound), computed in double
  label of sample s of step t:      lksi_random_below(3, t, s, classes)
  its feature f, i = s * F + f:     u(2, t, i) where f / (F / classes) == label, else u(2, t, i) / 2; exact in float

  mnist: linear(784, 50) with bias, relu, linear(50, 10) with bias; parameters w1 b1 w2 b2; bound sqrt(1 / fan_in) for a
         weight and its bias; batch 64, cross entropy (mean), Adam lr 1e-3, betas 0.9 0.999, eps 1e-8
  mlp:   linear without bias 1024-256-256-256-32, tanh between them; parameters w1 w2 w3 w4; bound sqrt(6 / fan_in);
         batch 64, cross entropy (mean), SGD; the rate of step t is 0.1 * (1 - 0.7 * min(t, 1000) / 1000)
"""
import argparse
import math
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np
import torch

BATCH = 64
STEPS = 100
WEIGHT_SEED, FEATURE_SEED, LABEL_SEED = 1, 2, 3
# Tolerances against the stored float64 column, which has 9 digits. Other BLAS libraries add in another order. In
# float32 these differences are 2^29 times larger, and a hundred steps of Adam, which divides by small numbers, carry
# them on.
TOLERANCE = {"float64": 2e-8, "float32": 1e-4}


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., 2011) on arrays: counter is four uint32 arrays, key two numbers."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0 = (product1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c2 = (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & mask, product0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(seed, stream, n_blocks):
    """The four random words of blocks 0..n_blocks-1, as src/base/philox.c draws them: (n_blocks, 4)."""
    index, zeros = np.arange(n_blocks, dtype=np.uint64), np.zeros(n_blocks, dtype=np.uint64)
    counter = (index, zeros, zeros + np.uint64(stream), zeros)
    return np.stack(philox(counter, (seed, 0)), axis=1)


def uniform(seed, stream, count):
    draws = words(seed, stream, (count + 3) // 4).reshape(-1)[:count]
    return (draws >> np.uint64(8)).astype(np.float64) * 2.0**-24


def below(seed, stream, count, bound):
    draws = words(seed, stream, count)
    return np.array([((int(high) << 32 | int(low)) * bound) >> 64 for high, low in draws[:, :2]], dtype=np.int64)


def batch(step, n_features, n_classes):
    labels = below(LABEL_SEED, step, BATCH, n_classes)
    features = uniform(FEATURE_SEED, step, BATCH * n_features).reshape(BATCH, n_features)
    block = np.arange(n_features) // (n_features // n_classes)
    return np.where(block[None, :] == labels[:, None], features, features / 2), labels


def parameter(number, shape, bound, dtype):
    values = ((2.0 * uniform(WEIGHT_SEED, number, math.prod(shape)) - 1.0) * bound).astype(np.float32)
    return torch.from_numpy(values.reshape(shape)).to(dtype).requires_grad_()


def mnist(dtype):
    shapes = [((50, 784), 784), ((50,), 784), ((10, 50), 50), ((10,), 50)]
    w1, b1, w2, b2 = parameters = [parameter(p, s, math.sqrt(1 / fan_in), dtype) for p, (s, fan_in) in enumerate(shapes)]

    def logits(x):
        return torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(x, w1, b1)), w2, b2)

    return logits, torch.optim.Adam(parameters, lr=1e-3), lambda step: 1e-3


def mlp(dtype):
    dims = [1024, 256, 256, 256, 32]
    parameters = [parameter(p, (dims[p + 1], dims[p]), math.sqrt(6 / dims[p]), dtype) for p in range(4)]

    def logits(x):
        for weight in parameters[:-1]:
            x = torch.tanh(torch.nn.functional.linear(x, weight))
        return torch.nn.functional.linear(x, parameters[-1])

    return logits, torch.optim.SGD(parameters, lr=0.1), lambda step: 0.1 * (1 - 0.7 * min(step, 1000) / 1000)


MODELS = {"mnist": (mnist, 784, 10), "mlp": (mlp, 1024, 32)}


def losses(name, n_steps, dtype):
    make, n_features, n_classes = MODELS[name]
    logits, optimizer, rate = make(dtype)
    result = []
    for step in range(n_steps):
        features, labels = batch(step, n_features, n_classes)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(torch.from_numpy(features).to(dtype)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def curve(name, n_steps):
    return list(zip(losses(name, n_steps, torch.float64), losses(name, n_steps, torch.float32)))


def read(path):
    name, rows = None, []
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("# curve "):
                name = line.split()[2]
            elif not line.startswith("#"):
                _, double, single = line.split()
                rows.append((float(double), float(single)))
    if name not in MODELS or not rows:
        sys.exit(f"{path}: not a curve of this script")
    return name, rows


def check(path):
    name, stored = read(path)
    for step, (was, now) in enumerate(zip(stored, curve(name, len(stored)))):
        for (column, tolerance), a, b in zip(TOLERANCE.items(), was, now):
            if not abs(a - b) <= tolerance * abs(a):
                sys.exit(f"{path}: step {step}, {column}: stored {a:.9g}, PyTorch {torch.__version__} gives {b:.9g}")
    print(f"{path}: {len(stored)} steps agree with PyTorch {torch.__version__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=sorted(MODELS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--check", metavar="FILE")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.check is None):
        parser.error("give either a model or --check FILE")
    # The first of the generator's published vectors. Without it, a wrong generator would only show as a wrong loss.
    assert [int(word) for word in words(0, 0, 1)[0]] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    torch.set_num_threads(1)
    if arguments.check:
        check(arguments.check)
        return
    print(f"# curve {arguments.model}")
    print("# Made by tests/reference/make_curves.py, which says what is computed. Step, loss in float64, in float32.")
    for step, (double, single) in enumerate(curve(arguments.model, arguments.steps)):
        print(f"{step} {double:.9g} {single:.9g}")


if __name__ == "__main__":
    main()
