#!/usr/bin/env python3
"""examples/resnet9 on PyTorch: Adam 1e-3 with weight decay 1e-3, batch 128. One JSON line on standard output.

"tuned" keeps images in channels_last, with which PyTorch takes about 0.9 of the time of its default layout.
"""
import argparse
import os

import peer
import numpy as np
import torch

RECORD_NBYTES = 3073
MEAN, DEVIATION = 0.4734, 0.2516 # over all channels of the training set


def load(directory, names):
    records = np.concatenate([np.fromfile(os.path.join(directory, name), dtype=np.uint8) for name in names])
    records = records.reshape(-1, RECORD_NBYTES)
    images = (records[:, 1:].astype(np.float32) / 255 - MEAN) / DEVIATION
    return torch.from_numpy(images.reshape(-1, 3, 32, 32)), torch.from_numpy(records[:, 0].astype(np.int64))


def conv_bn(in_channels, out_channels, kernel, stride):
    conv = torch.nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2)
    torch.nn.init.kaiming_uniform_(conv.weight)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(out_channels), torch.nn.ReLU())


class ResNet9(torch.nn.Module):
    """Parameters are named as those of examples/resnet9_model.c."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = conv_bn(3, 16, 7, 4), conv_bn(16, 32, 3, 2)
        self.res1 = torch.nn.Sequential(conv_bn(32, 32, 3, 1), conv_bn(32, 32, 3, 1))
        self.conv3, self.conv4 = conv_bn(32, 64, 3, 2), conv_bn(64, 128, 3, 2)
        self.res2 = torch.nn.Sequential(conv_bn(128, 128, 3, 1), conv_bn(128, 128, 3, 1))
        self.classifier = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                                              torch.nn.Linear(128, 10))

    def forward(self, x):
        x = self.conv2(self.conv1(x))
        x = self.res1(x) + x
        x = self.conv4(self.conv3(x))
        return self.classifier(self.res2(x) + x)


def work(arguments, rank, size):
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    features, labels = load(arguments.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
    model = ResNet9()
    assert sum(p.numel() for p in model.parameters()) == 431_946
    if arguments.style == "tuned":
        features = features.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3, foreach=arguments.style == "tuned")
    n_steps = arguments.steps or arguments.epochs * -(-len(labels) // arguments.batch)
    times = peer.train(peer.distributed(model, size, arguments.style), optimizer, features, labels,
                       arguments=arguments, n_steps=n_steps, rank=rank, size=size)
    if rank == 0:
        model.eval()
        peer.report("resnet9", times, size, arguments, **peer.test(model, *load(arguments.data, ["test_batch.bin"])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer.add_arguments(parser)
    parser.set_defaults(batch=128)
    parser.add_argument("--data", required=True, help="directory with CIFAR-10's binary files")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="instead of whole epochs")
    peer.run(work, parser.parse_args())
