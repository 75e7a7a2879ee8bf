#!/usr/bin/env python3
"""examples/mlp on PyTorch: 1024-256-256-256-32 without bias, tanh, SGD 0.1 falling to 0.03 over 1000 steps, batch 64.

The data set is made in the same way as ours, but drawn by NumPy: the same problem, not the same bits. Prints one JSON line.
"""
import argparse

import peer
import numpy as np
import torch

SAMPLES, TRAIN_SAMPLES, FEATURES, INFORMATIVE, CLASSES, CLUSTERS = 10_000, 9_000, 1024, 512, 32, 10
FLIP_FRACTION = 0.01


def make_data(seed):
    """Makes ten Gaussian clusters per class, at vertices of a hypercube in the informative features, with noise in the others."""
    random = np.random.default_rng(seed)
    vertices = random.choice(np.array([-1, 1], dtype=np.float32), size=(CLASSES * CLUSTERS, INFORMATIVE))
    cluster = random.integers(CLASSES * CLUSTERS, size=SAMPLES)
    features = random.standard_normal((SAMPLES, FEATURES), dtype=np.float32)
    features[:, :INFORMATIVE] += vertices[cluster]
    labels = cluster % CLASSES
    flipped = random.random(SAMPLES) < FLIP_FRACTION
    labels[flipped] = random.integers(CLASSES, size=flipped.sum())
    return torch.from_numpy(features), torch.from_numpy(labels)


def make_model():
    dims = [FEATURES, 256, 256, 256, CLASSES]
    layers = []
    for i in range(4):
        layers.append(torch.nn.Linear(dims[i], dims[i + 1], bias=False))
        torch.nn.init.kaiming_uniform_(layers[-1].weight)
        if i < 3:
            layers.append(torch.nn.Tanh())
    return torch.nn.Sequential(*layers)


def rate(step):
    """LinearLR(1.0, 0.3, 1000) as a plain product. The scheduler object would cost PyTorch some microseconds per step."""
    return 0.1 * (1 - 0.7 * min(step, 1000) / 1000)


def work(arguments, rank, size):
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    features, labels = make_data(arguments.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=arguments.style == "tuned")
    times = peer.train(peer.distributed(model, size, arguments.style), optimizer, features[:TRAIN_SAMPLES],
                       labels[:TRAIN_SAMPLES], arguments=arguments, n_steps=arguments.steps, rank=rank, size=size,
                       rate=rate)
    if rank == 0:
        peer.report("mlp", times, size, arguments,
                    **peer.test(model, features[TRAIN_SAMPLES:], labels[TRAIN_SAMPLES:]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    peer.add_arguments(parser)
    parser.add_argument("--steps", type=int, default=1000)
    peer.run(work, parser.parse_args())
