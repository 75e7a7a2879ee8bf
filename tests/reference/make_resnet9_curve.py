#!/usr/bin/env python3
"""The losses of PyTorch's first 50 steps on ResNet9, which ours have to follow.

  make_resnet9_curve.py                prints the curve; resnet9_curve.txt here is its output
  make_resnet9_curve.py --check FILE   computes FILE's curve again and compares; exit status 1 where it differs

File format and random numbers: as in make_curves.py, with a third column: float32 without mkldnn. How far it is from the
second is how far two correct programs are apart. The last line is no step: the loss of the next batch in evaluation,
by the running statistics. Weights and batches are formulas, so that C makes the very same:

  parameter number p (of all parameters in the order of their names' bytes), element i, row-major, computed in double:
      v = (float)((2.0 * u(1, p, i) - 1.0) * bound), bound sqrt(6 / fan_in) for a weight of 2 or 4 dimensions, fan_in the
      product of all dimensions but the first, else 0.1; of a batch norm's weight: (float)(1.0 + v)
  batch of step t: 8 images of 3 x 32 x 32 features; labels and features as in make_curves.py

  Adam lr 1e-3, weight decay 1e-3, betas 0.9 0.999, eps 1e-8; cross entropy (mean)
"""
import argparse
import math
import os
import sys

import make_curves
import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "peers"))
from torch_resnet9 import ResNet9

STEPS = 50
make_curves.BATCH = 8
# In float64, other libraries add in another order. In float32 these differences are 2^29 times larger, and this model,
# which normalises over 8 elements, carries them on.
TOLERANCE = {"float64": 1e-8, "float32": 0.1, "float32 without mkldnn": 0.1}


def set_weights(model):
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        shape = tuple(parameter.shape)
        bound = math.sqrt(6 / math.prod(shape[1:])) if len(shape) > 1 else 0.1
        values = ((2.0 * make_curves.uniform(make_curves.WEIGHT_SEED, number, math.prod(shape)) - 1.0) * bound)
        values = values.astype(np.float32)
        if len(shape) == 1 and name.endswith("weight"):
            values = (1.0 + values.astype(np.float64)).astype(np.float32)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.reshape(shape)))


def batch(step, dtype):
    features, labels = make_curves.batch(step, 3 * 32 * 32, 10)
    return torch.from_numpy(features.reshape(-1, 3, 32, 32)).to(dtype), torch.from_numpy(labels)


def losses(dtype, has_mkldnn=True):
    model = ResNet9().to(dtype)
    set_weights(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    result = []
    with torch.backends.mkldnn.flags(enabled=has_mkldnn):
        for step in range(STEPS):
            x, y = batch(step, dtype)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            result.append(loss.item())
        x, y = batch(STEPS, dtype)
        with torch.no_grad():
            result.append(torch.nn.functional.cross_entropy(model.eval()(x), y).item())
    return result


def curve():
    return list(zip(losses(torch.float64), losses(torch.float32), losses(torch.float32, False)))


def check(path):
    with open(path, encoding="ascii") as file:
        stored = [tuple(float(column) for column in line.split()[1:]) for line in file if not line.startswith("#")]
    if len(stored) != STEPS + 1:
        sys.exit(f"{path}: not a curve of this script")
    for step, (was, now) in enumerate(zip(stored, curve())):
        for (column, tolerance), a, b in zip(TOLERANCE.items(), was, now):
            if not abs(a - b) <= tolerance * abs(a):
                sys.exit(f"{path}: step {step}, {column}: stored {a:.9g}, PyTorch {torch.__version__} gives {b:.9g}")
    print(f"{path}: {len(stored)} steps agree with PyTorch {torch.__version__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        check(arguments.check)
        return
    rows = curve()
    distance = max(abs(single - other) for _, single, other in rows)
    print("# curve resnet9")
    print("# Made by tests/reference/make_resnet9_curve.py, which says what is computed. Step, loss in float64, in float32,")
    print(f"# in float32 without mkldnn. The last two are up to {distance:.4f} apart.")
    for step, row in enumerate(rows):
        print(step, *(f"{loss:.11g}" for loss in row))


if __name__ == "__main__":
    main()
