#!/usr/bin/env python3
"""examples/mnist on PyTorch: 784-50-10, ReLU, Adam 1e-3, batch 64. One JSON line on standard output."""
import argparse
import gzip
import os

import peer
import numpy as np
import torch


def read_idx(directory, name, header_nbytes):
    path = os.path.join(directory, name)
    opener = open
    if not os.path.exists(path):
        path, opener = path + ".gz", gzip.open
    with opener(path, "rb") as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header_nbytes)


def load(directory, part):
    images = read_idx(directory, f"{part}-images-idx3-ubyte", 16).reshape(-1, 784)
    labels = read_idx(directory, f"{part}-labels-idx1-ubyte", 8)
    return torch.from_numpy((images.astype(np.float32) / 255 - 0.1307) / 0.3081), torch.from_numpy(labels.astype(np.int64))


def work(arguments, rank, size):
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    features, labels = load(arguments.data, "train")
    model = torch.nn.Sequential(torch.nn.Linear(784, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=arguments.style == "tuned")
    n_steps = arguments.epochs * -(-len(labels) // arguments.batch)
    times = peer.train(peer.distributed(model, size, arguments.style), optimizer, features, labels,
                       arguments=arguments, n_steps=n_steps, rank=rank, size=size)
    if rank == 0:
        peer.report("mnist", times, size, arguments, **peer.test(model, *load(arguments.data, "t10k")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    peer.add_arguments(parser)
    parser.add_argument("--data", required=True, help="directory with MNIST's four files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=1)
    peer.run(work, parser.parse_args())
