#!/usr/bin/env python3
"""examples/transformer on PyTorch: a small GPT of torch.nn.TransformerEncoderLayer, AdamW. One JSON line."""
import argparse

import peer
import text
import torch


class Model(torch.nn.Module):
    def __init__(self, n_words, context, hidden, layers, heads, dropout):
        super().__init__()
        self.embedding = torch.nn.Embedding(n_words, hidden)
        self.positions = torch.nn.Parameter(torch.empty(context, hidden))
        self.drop = torch.nn.Dropout(dropout)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout, activation="gelu", batch_first=True,
                                             norm_first=True) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(hidden)
        self.decoder = torch.nn.Linear(hidden, n_words, bias=False)
        for table in (self.embedding.weight, self.positions, self.decoder.weight):
            torch.nn.init.normal_(table, std=0.02)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        x = self.drop(self.embedding(x) + self.positions)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.decoder(self.norm(x))


def work(arguments, rank, size):
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokens, n_words = text.read(arguments.data, arguments.level)
    model = Model(n_words, arguments.context, arguments.hidden, arguments.layers, arguments.heads, arguments.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), foreach=arguments.style == "tuned")
    times = text.train(peer.distributed(model, size, arguments.style), optimizer,
                       *text.columns(tokens, arguments.batch, rank, size), arguments=arguments,
                       n_steps=arguments.steps, t=arguments.context, clip=1, rate=lambda step: 1e-3,
                       carries_state=False)
    if rank == 0:
        peer.report("transformer", times, size, arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    peer.add_arguments(parser)
    parser.set_defaults(batch=32)
    parser.add_argument("--data", required=True, help="directory with ptb.{train,valid,test}.txt")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--level", choices=("word", "character"), default="character")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    peer.run(work, parser.parse_args())
