#!/usr/bin/env python3
"""examples/language_model on PyTorch: embedding, LSTM, linear to the vocabulary; SGD 20 with clipping. One JSON line."""
import argparse

import peer
import text
import torch


class Model(torch.nn.Module):
    def __init__(self, n_words, hidden, layers, dropout):
        super().__init__()
        self.drop = torch.nn.Dropout(dropout)
        self.encoder = torch.nn.Embedding(n_words, hidden)
        self.rnn = torch.nn.LSTM(hidden, hidden, layers, dropout=dropout, batch_first=True)
        self.decoder = torch.nn.Linear(hidden, n_words)
        for table in (self.encoder, self.decoder):
            torch.nn.init.uniform_(table.weight, -0.1, 0.1)

    def forward(self, x, state):
        y, state = self.rnn(self.drop(self.encoder(x)), state)
        return self.decoder(self.drop(y)), state


def work(arguments, rank, size):
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    tokens, n_words = text.read(arguments.data, "word")
    model = Model(n_words, arguments.hidden, arguments.layers, arguments.dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=20, foreach=arguments.style == "tuned")
    times = text.train(peer.distributed(model, size, arguments.style), optimizer,
                       *text.columns(tokens, arguments.batch, rank, size), arguments=arguments,
                       n_steps=arguments.steps, t=arguments.bptt, clip=0.25, rate=lambda step: 20, carries_state=True)
    if rank == 0:
        peer.report("language_model", times, size, arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    peer.add_arguments(parser)
    parser.set_defaults(batch=20)
    parser.add_argument("--data", required=True, help="directory with ptb.{train,valid,test}.txt")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--dropout", type=float, default=0.2)
    peer.run(work, parser.parse_args())
