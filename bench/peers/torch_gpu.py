#!/usr/bin/env python3
"""PyTorch's side of bench/gpu.py: runs training steps of an example on a GPU, as requested on standard input.

A request is a line "STYLE N". It runs N steps in a style and prints a line of JSON with the microseconds per step.
"profile STYLE N" prints the sum of the kernels' own times instead. Styles: eager, compile (torch.compile, mode
reduce-overhead: forward and backward replayed as CUDA graphs), and eager+channels_last, compile+channels_last.

This is PyTorch at its best: all data is in the GPU's memory and a batch is one gather there (no DataLoader, no copy), the
order of the epoch is drawn there, the optimizer is the fused one, gradients are set to None, the loss is not read back,
TF32 is on, and cuDNN chooses by measuring. A smaller last batch is left out, so that nothing is compiled again.
"""
import argparse
import json
import sys
import time

import peer # must be imported before torch: it sets environment variables
import text
import torch
import torch_language_model
import torch_mlp
import torch_mnist
import torch_resnet9
import torch_transformer

WARM_UP_STEPS = 20
cross_entropy = torch.nn.functional.cross_entropy


def shuffled(features, labels, batch):
    """Yields the batches of shuffled epochs, without end."""
    count = len(labels)
    while True:
        order = torch.randperm(count, device=labels.device)
        for begin in range(0, count - batch + 1, batch):
            index = order[begin : begin + batch]
            yield features.index_select(0, index), labels.index_select(0, index)


def windows(inputs, labels, t):
    while True:
        for begin in range(0, inputs.shape[1] - t + 1, t):
            yield inputs[:, begin : begin + t], labels[:, begin : begin + t]


class Example:
    """The model on `device`, its optimizer and its batches. `clip` is the largest norm of a gradient, or None."""

    clip = None

    def __init__(self, arguments, channels_last):
        torch.manual_seed(arguments.seed)
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        getattr(self, arguments.example)(torch.channels_last if channels_last else torch.contiguous_format)

    def place(self, model, optimizer, **options):
        self.model = model.to(self.device)
        if self.device.type == "cuda":
            options["fused"] = True
        self.optimizer = optimizer(self.model.parameters(), **options)

    def resnet9(self, memory_format):
        images, labels = torch_resnet9.load(self.arguments.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
        images = images.to(self.device).contiguous(memory_format=memory_format)
        self.place(torch_resnet9.ResNet9().to(memory_format=memory_format), torch.optim.Adam, lr=1e-3, weight_decay=1e-3)
        self.batches = shuffled(images, labels.to(self.device), self.arguments.batch)

    def mnist(self, _):
        images, labels = torch_mnist.load(self.arguments.data, "train")
        layers = torch.nn.Linear(784, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10)
        self.place(torch.nn.Sequential(*layers), torch.optim.Adam, lr=1e-3)
        self.batches = shuffled(images.to(self.device), labels.to(self.device), self.arguments.batch)

    def mlp(self, _):
        features, labels = torch_mlp.make_data(self.arguments.seed)
        n = torch_mlp.TRAIN_SAMPLES
        self.place(torch_mlp.make_model(), torch.optim.SGD, lr=0.1)
        self.batches = shuffled(features[:n].to(self.device), labels[:n].to(self.device), self.arguments.batch)

    def text(self, level, t):
        tokens, n_words = text.read(self.arguments.data, level)
        columns = text.columns(tokens, self.arguments.batch, 0, 1)
        self.batches = windows(*(part.to(self.device) for part in columns), t)
        return n_words

    def language_model(self, _):
        n_words = self.text("word", 35)
        self.clip, self.state = 0.25, None
        self.place(torch_language_model.Model(n_words, self.arguments.hidden, 2, 0.5), torch.optim.SGD, lr=0.1)

    def transformer(self, _):
        n_words = self.text("character", 128)
        self.clip = 1
        self.place(torch_transformer.Model(n_words, 128, 128, 4, 4, 0.1), torch.optim.AdamW, lr=1e-3, betas=(0.9, 0.99))

    def loss(self, x, y, state):
        """Returns the loss, and the state with which the next step begins."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.arguments.precision == "bf16"):
            if self.arguments.example != "language_model":
                logits = self.model(x)
            else:
                logits, state = self.model(x, state)
            if logits.dim() > 2:
                logits, y = logits.flatten(0, 1), y.flatten()
            return cross_entropy(logits, y), state


class Style:
    def __init__(self, name, arguments):
        self.example = Example(arguments, name.endswith("+channels_last"))
        self.loss = self.example.loss
        self.is_compiled = name.startswith("compile")
        if self.is_compiled:
            self.loss = torch.compile(self.loss, mode="reduce-overhead")
        self.state = None
        self.run(WARM_UP_STEPS)

    def step(self):
        example = self.example
        x, y = next(example.batches)
        if self.is_compiled:
            torch.compiler.cudagraph_mark_step_begin()
        loss, state = self.loss(x, y, self.state)
        if state is not None: # copied, because the next step overwrites the memory of the CUDA graph
            self.state = tuple(part.detach().clone() for part in state)
        loss.backward()
        if example.clip is not None:
            torch.nn.utils.clip_grad_norm_(example.model.parameters(), example.clip)
        example.optimizer.step()
        example.optimizer.zero_grad(set_to_none=True)

    def synchronize(self):
        if self.example.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, n_steps):
        self.synchronize()
        start = time.perf_counter()
        for _ in range(n_steps):
            self.step()
        self.synchronize()
        return (time.perf_counter() - start) / n_steps * 1e6

    def profile(self, n_steps):
        activities = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activities.CPU, activities.CUDA]) as profile:
            self.run(n_steps)
        on_gpu = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA and "#" not in e.name]
        return {"kernels_us": sum(e.time_range.elapsed_us() for e in on_gpu) / n_steps,
                "kernels": len(on_gpu) / n_steps}


def answer(words, styles, arguments):
    name, n_steps = words[-2], int(words[-1])
    try:
        if name not in styles:
            styles[name] = Style(name, arguments)
        if words[0] == "profile":
            return styles[name].profile(n_steps)
        return {"step_us": styles[name].run(n_steps)}
    except Exception as error: # if one style fails, the others continue
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=("mnist", "mlp", "resnet9", "language_model", "transformer"))
    parser.add_argument("--data", help="the data set's directory")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--hidden", type=int, default=650, help="of language_model")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.device.startswith("cuda"):
        torch.backends.cudnn.allow_tf32 = True # the default, and also ours; matrix products are in f32 on both sides
        torch.backends.cudnn.benchmark = True
    styles = {}
    for line in sys.stdin:
        print(json.dumps(answer(line.split(), styles, arguments)), flush=True)


if __name__ == "__main__":
    main()
