#!/usr/bin/env python3
"""The losses of PyTorch's first 50 steps on a 2-layer LSTM and a small GPT, which ours have to follow.

  make_text_curves.py lstm|transformer   prints the curve; lstm_curve.txt and transformer_curve.txt here are its output
  make_text_curves.py --check FILE       computes FILE's curve again and compares; exit status 1 where it differs

File format and random numbers: as in make_curves.py. Weights and words are formulas, so that C makes the very same:

  parameter number p (of all parameters in the order of their names' bytes), element i, row-major:
      (float)((2.0 * u(1, p, i) - 1.0) * 0.3), computed in double; of a layer norm's weight: 1 + that, as float
  words: w[-1] = 0; r[j] = lksi_random_below(3, 0, j, 4 * 50); w[j] = r[j] < 50 ? r[j] : (5 * w[j-1] + 3) % 50
  step s of column c (of 8), T words: inputs w[c * 1000 + s * T ...], labels the words that follow

  lstm:        embedding(50, 24), LSTM(24, 24, 2 layers) whose state goes on from step to step, linear(24, 50); T 10;
               SGD lr 1, the gradient clipped to a norm of 0.25
  transformer: embedding(50, 32) plus positions (16, 32), 2 causal blocks of 4 heads and 64 hidden units (norm first,
               gelu), layer norm, linear(32, 50) without bias; T 16; AdamW lr 1e-3, betas 0.9 0.999, eps 1e-8, decay 0.01
"""
import argparse
import math
import sys

import make_curves
import numpy as np
import torch

STEPS, WORDS, COLUMNS, COLUMN_LENGTH = 50, 50, 8, 1000
# In float64, other libraries add in another order. In float32 these differences are 2^29 times larger.
TOLERANCE = {"float64": 2e-8, "float32": 1e-4}


def words():
    draws = make_curves.below(make_curves.LABEL_SEED, 0, COLUMNS * COLUMN_LENGTH, 4 * WORDS)
    result, before = [], 0
    for draw in draws.tolist():
        before = draw if draw < WORDS else (5 * before + 3) % WORDS
        result.append(before)
    return torch.tensor(result).view(COLUMNS, COLUMN_LENGTH)


def set_weights(model):
    for number, (name, parameter) in enumerate(sorted(model.named_parameters())):
        draws = make_curves.uniform(make_curves.WEIGHT_SEED, number, math.prod(parameter.shape))
        values = ((2.0 * draws - 1.0) * 0.3).astype(np.float32)
        if "norm" in name and name.endswith("weight"):
            values = (1.0 + values.astype(np.float64)).astype(np.float32)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values.reshape(parameter.shape)))


class Lstm(torch.nn.Module):
    T = 10

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Embedding(WORDS, 24)
        self.rnn = torch.nn.LSTM(24, 24, 2, batch_first=True)
        self.decoder = torch.nn.Linear(24, WORDS)
        self.state = None

    def forward(self, x):
        y, state = self.rnn(self.encoder(x), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.decoder(y)

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.25)


class Transformer(torch.nn.Module):
    T = 16

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, 32)
        self.positions = torch.nn.Embedding(self.T, 32)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(2))
        self.norm = torch.nn.LayerNorm(32)
        self.decoder = torch.nn.Linear(32, WORDS, bias=False)

    def forward(self, x):
        mask = torch.full((self.T, self.T), float("-inf"), dtype=self.norm.weight.dtype).triu(1)
        x = self.embedding(x) + self.positions.weight
        for layer in self.layers:
            x = layer(x, mask)
        return self.decoder(self.norm(x))

    def optimizer(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.01)

    def clip(self):
        pass


MODELS = {"lstm": Lstm, "transformer": Transformer}


def losses(name, dtype):
    model = MODELS[name]().to(dtype)
    set_weights(model)
    optimizer, text, t, result = model.optimizer(), words(), model.T, []
    for step in range(STEPS):
        x, y = text[:, step * t : (step + 1) * t], text[:, step * t + 1 : (step + 1) * t + 1]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        model.clip()
        optimizer.step()
        result.append(loss.item())
    return result


def curve(name):
    return list(zip(losses(name, torch.float64), losses(name, torch.float32)))


def read(path):
    name, rows = None, []
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("# curve "):
                name = line.split()[2]
            elif not line.startswith("#"):
                rows.append(tuple(float(column) for column in line.split()[1:]))
    if name not in MODELS or len(rows) != STEPS:
        sys.exit(f"{path}: not a curve of this script")
    return name, rows


def check(path):
    name, stored = read(path)
    for step, (was, now) in enumerate(zip(stored, curve(name))):
        for (column, tolerance), a, b in zip(TOLERANCE.items(), was, now):
            if not abs(a - b) <= tolerance * abs(a):
                sys.exit(f"{path}: step {step}, {column}: stored {a:.9g}, PyTorch {torch.__version__} gives {b:.9g}")
    print(f"{path}: {len(stored)} steps agree with PyTorch {torch.__version__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=sorted(MODELS))
    parser.add_argument("--check", metavar="FILE")
    arguments = parser.parse_args()
    if (arguments.model is None) == (arguments.check is None):
        parser.error("give either a model or --check FILE")
    torch.set_num_threads(1)
    if arguments.check:
        check(arguments.check)
        return
    print(f"# curve {arguments.model}")
    print("# Made by tests/reference/make_text_curves.py, which says what is computed. Step, loss in float64, in float32.")
    for step, (double, single) in enumerate(curve(arguments.model)):
        print(f"{step} {double:.9g} {single:.9g}")


if __name__ == "__main__":
    main()
