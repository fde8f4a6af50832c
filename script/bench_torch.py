#!/usr/bin/env python3
"""A training step of bench_train by PyTorch, in the fastest of its forms, for script/bench --torch: it says the form when it is
ready, then reads numbers of steps, and writes how many seconds they took, until there is nothing to read.

usage: bench_torch.py NET SIZE... --dtype f32|bf16 --threads N [--compile]    the sizes of bench/models.h, in its order"""
import argparse
import sys
import time
from collections.abc import Callable

try:
    import torch
    import torch.nn.functional as F
except (ImportError, OSError) as error:
    sys.exit(f"bench_torch.py: no PyTorch in {sys.executable}: {str(error).splitlines()[0]}")
from torch import nn

CHANNELS_LAST, FUSED, TANH = "channels-last", "fused optimizer", "gelu by tanh"


class Block(nn.Module):
    """A transformer's block that normalises its inputs."""

    def __init__(self, width: int, heads: int, bias: bool, causal: bool, form: set):
        super().__init__()
        self.heads, self.causal, self.gelu = heads, causal, "tanh" if TANH in form else "none"
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate=self.gelu))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int, context: int, layers: int, heads: int, width: int, form: set):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, False, True, form) for _ in range(layers)))
        self.ln = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, x):
        h = self.blocks(self.wte(x) + self.wpe.weight[:x.shape[1]])
        return F.linear(self.ln(h), self.wte.weight).flatten(0, 1)


class Vit(nn.Module):
    def __init__(self, side: int, patch: int, layers: int, heads: int, width: int, classes: int, form: set):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, True, False, form) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.cls.expand(len(x), -1, -1).to(rows.dtype), rows], 1) + self.places
        return self.head(self.ln(self.blocks(rows))[:, 0])


class Lstm(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int):
        super().__init__()
        self.encoder, self.decoder = nn.Embedding(vocabulary, embedding), nn.Linear(hidden, vocabulary)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0]).flatten(0, 1)


class ResBlock(nn.Module):
    """Convolutions of `kernels`, the first 3 x 3 one with the stride, and a shortcut: by a convolution, or without parameters."""

    def __init__(self, channels_in: int, channels: int, out: int, kernels: list, stride: int, project: bool):
        super().__init__()
        layers, strided = [], kernels.index(3)
        for i, k in enumerate(kernels):
            last = i + 1 == len(kernels)
            before, after = channels if i else channels_in, out if last else channels
            layers += [nn.Conv2d(before, after, k, stride if i == strided else 1, k // 2, bias=False), nn.BatchNorm2d(after)]
            layers += [] if last else [nn.ReLU(inplace=True)]
        self.layers, self.stride, self.more = nn.Sequential(*layers), stride, out - channels_in
        self.down = None
        if project and (stride > 1 or self.more):
            self.down = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        short = x
        if self.down is not None:
            short = self.down(x)
        elif self.more:
            short = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(self.layers(x) + short, inplace=True)


def resnet(side: int, depth: int, width: int, classes: int) -> nn.Module:
    cifar = side == 32
    layers = [nn.Conv2d(3, width, 3 if cifar else 7, 1 if cifar else 2, 1 if cifar else 3, bias=False), nn.BatchNorm2d(width),
              nn.ReLU(inplace=True), *([] if cifar else [nn.MaxPool2d(3, 2, 1)])]
    channels_in = width
    for i, count in enumerate([(depth - 2) // 6] * 3 if cifar else [3, 4, 6, 3]):
        for b in range(count):
            channels = width << i
            out = channels if cifar else 4 * channels
            layers.append(ResBlock(channels_in, channels, out, [3, 3] if cifar else [1, 3, 1], 2 if i and not b else 1, not cifar))
            channels_in = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes))


def double_conv(channels_in: int, channels: int) -> nn.Module:
    return nn.Sequential(*(layer for before in (channels_in, channels) for layer in (
        nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))))


class Unet(nn.Module):
    def __init__(self, width: int, classes: int):
        super().__init__()
        sizes = [width << level for level in range(5)]
        self.down = nn.ModuleList(double_conv(before, c) for before, c in zip([3, *sizes], sizes))
        self.doubling = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in sizes[:-1])
        self.up = nn.ModuleList(double_conv(2 * c, c) for c in sizes[:-1])
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        beside = []
        for level, layers in enumerate(self.down):
            x = layers(F.max_pool2d(x, 2) if level else x)
            beside.append(x)
        for level in reversed(range(len(self.up))):
            x = self.up[level](torch.cat([beside[level], self.doubling[level](x)], 1))
        return self.out(x)


def images(batch: int, channels: int, side: int, classes: int) -> tuple:
    return torch.randn(batch, channels, side, side), torch.randint(classes, (batch,))


def text(batch: int, context: int, vocabulary: int) -> tuple:
    return torch.randint(vocabulary, (batch, context)), torch.randint(vocabulary, (batch * context,))


def workload(name: str, sizes: list[int], form: set) -> tuple:
    """The network, its inputs and targets, its optimizer with options, and to which norm gradients are clipped."""
    sgd, adam, adamw = (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}), (torch.optim.Adam, {"lr": 1e-3}), \
        (torch.optim.AdamW, {"lr": 1e-3})
    if name == "mlp":
        batch, n_in, hidden, classes = sizes
        net = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))
        return net, (torch.randn(batch, n_in), torch.randint(classes, (batch,))), sgd, None
    if name == "cnn":
        conv1, conv2, padding, flat, batch = sizes
        net = nn.Sequential(nn.Conv2d(1, conv1, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
                            nn.Conv2d(conv1, conv2, 3, padding=padding), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                            nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, 10))
        return net, images(batch, 1, 28, 10), adam, None
    if name == "lstm":
        batch, context, vocabulary, *rest = sizes
        return Lstm(vocabulary, *rest), text(batch, context, vocabulary), adam, None
    if name == "gpt":
        batch, context, vocabulary, *rest = sizes
        return Gpt(vocabulary, context, *rest, form), text(batch, context, vocabulary), adamw, 1.0
    if name == "vit":
        batch, side, *rest = sizes
        return Vit(side, *rest, form), images(batch, 3, side, sizes[-1]), adamw, None
    if name == "unet":
        batch, side, width, classes = sizes
        return Unet(width, classes), (images(batch, 3, side, classes)[0], torch.randint(classes, (batch, side, side))), adam, None
    batch, side, depth, width, classes = sizes
    return resnet(side, depth, width, classes), images(batch, 3, side, classes), sgd, None


def make(name: str, sizes: list[int], bf16: bool, compiled: bool, form: set) -> Callable[[], None]:
    net, (x, y), (optimizer, options), clip = workload(name, sizes, form)
    if CHANNELS_LAST in form:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    opt = optimizer(net.parameters(), **options, fused=FUSED in form)
    forward = torch.compile(net) if compiled else net

    def step() -> None:
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = forward(x)
        F.cross_entropy(logits.float(), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        opt.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=["mlp", "cnn", "lstm", "gpt", "vit", "resnet", "unet"])
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--dtype", choices=["f32", "bf16"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # One thread is timed by its processor time, as bench/machine.h does.
    clock = time.process_time if args.threads == 1 else time.perf_counter

    def seconds(step: Callable[[], None], count: int) -> float:
        start = clock()
        for _ in range(count):
            step()
        return clock() - start

    best: set = set()
    found, least = None, float("inf")
    choices = [FUSED] + [CHANNELS_LAST] * (args.net in ("cnn", "vit", "resnet", "unet")) + [TANH] * (args.net in ("gpt", "vit"))
    for choice in [None, *choices]:  # as bench/peers/form.h does
        form = best | ({choice} if choice else set())
        step = make(args.net, args.sizes, args.dtype == "bf16", args.compile, form)
        seconds(step, 2)
        if (took := min(seconds(step, 1) for _ in range(3))) < least:
            best, found, least = form, step, took
    print(", ".join(c for c in choices if c in best), flush=True)
    for line in sys.stdin:
        print(seconds(found, int(line)), flush=True)


if __name__ == "__main__":
    main()
