"""Text data for the PyTorch scripts here, made as by src/data/text.c and src/data/windows.c, and their timed loop."""
import os
import time

import torch


def read(directory, level):
    """Returns the training split as tokens, and the number of different words of all three splits."""
    vocabulary, train = {}, None
    for split in ("train", "valid", "test"):
        path = os.path.join(directory, f"ptb.{split}.txt")
        path = path if os.path.exists(path) else os.path.join(directory, f"{split}.txt")
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        words = [word for line in lines for word in ((line.split() + ["<eos>"]) if level == "word" else line + "\n")]
        tokens = torch.tensor([vocabulary.setdefault(word, len(vocabulary)) for word in words])
        train = tokens if train is None else train
    return train, len(vocabulary)


def columns(tokens, batch, rank, size):
    """Returns inputs and labels (batch / size, length) of this rank's columns. The remainder is left out."""
    length = (len(tokens) - 1) // batch
    share = slice(rank * (batch // size), (rank + 1) * (batch // size))
    inputs = tokens[: length * batch].view(batch, length)[share].contiguous()
    labels = tokens[1 : length * batch + 1].view(batch, length)[share].contiguous()
    return inputs, labels


def train(model, optimizer, inputs, labels, *, arguments, n_steps, t, clip, rate, carries_state):
    """Returns the seconds of each step: window, forward, backward, clipping, update. `rate(step)` is the learning rate."""
    times, state = [], None
    n_windows = inputs.shape[1] // t
    for step in range(n_steps):
        begin = step % n_windows * t
        state = None if begin == 0 else state
        start = time.perf_counter()
        x, y = inputs[:, begin : begin + t], labels[:, begin : begin + t]
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad(set_to_none=arguments.style == "tuned")
        if carries_state:
            logits, state = model(x, state)
            state = tuple(part.detach() for part in state)
        else:
            logits = model(x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if arguments.style == "tutorial":
            loss.item()
        times.append(time.perf_counter() - start)
    return times
