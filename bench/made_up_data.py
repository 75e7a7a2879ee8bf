#!/usr/bin/env python3
"""Makes data sets of noise in the formats that the trainers read, for machines without data: bench/made_up_data.py DIR.

Writes DIR/cifar-10-batches-bin, DIR/mnist and DIR/ptb. Existing directories are not changed. A training step takes as long
on noise as on real data. There is nothing to learn.
"""
import os
import random
import struct
import sys


def write(path, *parts):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)


def labels(count):
    return bytes(byte % 10 for byte in os.urandom(count))


def cifar10(folder):
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        records = bytearray(os.urandom(10_000 * 3073))
        records[0::3073] = labels(10_000)
        write(os.path.join(folder, name), records)


def mnist(folder):
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        write(os.path.join(folder, f"{part}-images-idx3-ubyte"), struct.pack(">4i", 2051, count, 28, 28),
              os.urandom(count * 784))
        write(os.path.join(folder, f"{part}-labels-idx1-ubyte"), struct.pack(">2i", 2049, count), labels(count))


def ptb(folder):
    """Writes lines of 20 words from 10,000 words, whose frequencies follow a Pareto distribution."""
    draw = random.Random(1)
    for split, n_lines in (("train", 42_000), ("valid", 3_400), ("test", 3_800)):
        lines = (" ".join(f"w{min(int(draw.paretovariate(0.5)), 9999)}" for _ in range(20)) for _ in range(n_lines))
        write(os.path.join(folder, f"ptb.{split}.txt"), "".join(line + "\n" for line in lines).encode())


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: bench/made_up_data.py DIR")
    for name, make in (("cifar-10-batches-bin", cifar10), ("mnist", mnist), ("ptb", ptb)):
        folder = os.path.join(sys.argv[1], name)
        if not os.path.exists(folder):
            os.makedirs(folder)
            make(folder)


if __name__ == "__main__":
    main()
