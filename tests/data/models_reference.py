#!/usr/bin/env python3
"""Writes what the models of nn/models are in PyTorch, beside itself: models_reference.json, what small ones compute (see
modules_reference.py); resnet18_names.txt and gpt2_names.txt, the state_dict of the full ones; and gpt2_tiny.safetensors,
the small GPT as Hugging Face's files have it, with the masks of attention among the weights.

The models are written here from PyTorch's modules, under the names of torchvision and transformers.

usage: models_reference.py    (with torch 1.13)"""
import json
import struct
from pathlib import Path

import torch
from modules_reference import case, indices, tensor, written
from torch import nn
from torch.nn import functional as F

FOLDER = Path(__file__).parent


def simple_cnn(channels, kernels, strides, norm):
    layers = []
    for i, (kernel, stride) in enumerate(zip(kernels, strides)):
        normed = norm and i + 1 < len(strides)
        conv = nn.Conv2d(channels[i], channels[i + 1], kernel, stride, (kernel - 1) // 2, bias=not normed)
        layers.append(nn.Sequential(conv, nn.ReLU(), *([nn.BatchNorm2d(channels[i + 1])] if normed else [])))
    return nn.Sequential(*layers, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))


def conv(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Pad(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.channels = channels

    def forward(self, x):
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.channels // 2, self.channels // 2))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, channels, stride, downsample):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3), nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (self.downsample(x) if self.downsample else x)).relu()


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, channels, stride, downsample):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = conv(channels, 4 * channels, 1), nn.BatchNorm2d(4 * channels)
        self.downsample = downsample

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        return (self.bn3(self.conv3(y)) + (self.downsample(x) if self.downsample else x)).relu()


def layer(block, inputs, channels, blocks, stride, pad):
    outputs, made = channels * block.expansion, []
    for i in range(blocks):
        downsample = None
        if i == 0 and (stride != 1 or inputs != outputs):
            downsample = Pad(outputs - inputs) if pad else nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        made.append(block(inputs if i == 0 else outputs, channels, stride if i == 0 else 1, downsample))
    return nn.Sequential(*made)


class ResNet(nn.Module):
    def __init__(self, block, blocks, classes, images=3, width=64):
        super().__init__()
        self.conv1, self.bn1 = conv(images, width, 7, 2), nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i, count in enumerate(blocks):
            setattr(self, f"layer{i + 1}", layer(block, inputs, width * 2**i, count, 1 if i == 0 else 2, False))
            inputs = width * 2**i * block.expansion
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


class CifarResNet(nn.Module):
    def __init__(self, blocks, classes, width, pad):
        super().__init__()
        self.conv1, self.bn1 = conv(3, width, 3), nn.BatchNorm2d(width)
        self.layer1 = layer(BasicBlock, width, width, blocks, 1, pad)
        self.layer2 = layer(BasicBlock, width, 2 * width, blocks, 2, pad)
        self.layer3 = layer(BasicBlock, 2 * width, 4 * width, blocks, 2, pad)
        self.fc = nn.Linear(4 * width, classes)

    def forward(self, x):
        return self.fc(self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)).relu()))).mean((2, 3)))


class LstmClassifier(nn.Module):
    def __init__(self, vocabulary, classes, embedding, hidden, layers, bidirectional):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.fc = nn.Linear(hidden * (1 + bidirectional), classes)

    def forward(self, tokens):
        _, (h, _) = self.lstm(self.embedding(tokens))
        return self.fc(torch.cat((h[-2], h[-1]), -1) if self.lstm.bidirectional else h[-1])


class LstmLanguageModel(nn.Module):
    def __init__(self, vocabulary, embedding, hidden, layers, tied):
        super().__init__()
        self.encoder = nn.Embedding(vocabulary, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens):
        y, state = self.rnn(self.encoder(tokens))
        return self.decoder(y), state


class Conv1D(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class GptAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.c_attn, self.c_proj, self.heads = Conv1D(width, 3 * width), Conv1D(width, width), heads

    def forward(self, x):
        b, t, width = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.c_attn(x).split(width, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, width))


class GptMlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), GptAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), GptMlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def nets(gpt=None):
    yield "simple_cnn", simple_cnn((3, 4, 3, 2), (3, 3, 3), (2, 2, 2), False), [tensor(2, 3, 8, 7)]
    yield "simple_cnn norm", simple_cnn((2, 3, 4, 2), (5, 3, 1), (1, 2, 1), True), [tensor(2, 2, 6, 5)]
    yield "ResNet Basic", ResNet(BasicBlock, (2, 1, 1, 1), 3, images=1, width=1), [tensor(4, 1, 16, 16)]
    yield "ResNet Bottleneck", ResNet(Bottleneck, (1, 2, 1, 1), 3, images=1, width=1), [tensor(4, 1, 16, 16)]
    yield "CifarResNet Pad", CifarResNet(1, 3, 2, True), [tensor(2, 3, 8, 8)]
    yield "CifarResNet Project", CifarResNet(1, 3, 2, False), [tensor(2, 3, 8, 8)]
    tokens = indices([3, 1, 4, 1], [5, 9, 2, 6])
    yield "LstmClassifier", LstmClassifier(10, 3, 2, 3, 1, False), [tokens]
    yield "LstmClassifier both", LstmClassifier(10, 2, 2, 2, 2, True), [tokens]
    yield "LstmLanguageModel", LstmLanguageModel(10, 2, 3, 2, False), [tokens]
    yield "LstmLanguageModel tied", LstmLanguageModel(10, 3, 3, 1, True), [tokens]
    yield "Gpt", gpt or Gpt(10, 6, 2, 2, 4), [tokens]


def models(gpt):
    return {name: case(net, inputs) for name, net, inputs in nets(gpt)}


def write_names(file, net):
    text = "".join(f"{name} {list(t.shape)}\n" for name, t in net.state_dict().items())
    (FOLDER / file).write_text(text)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        begin, data = len(data), data + t.detach().float().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    gpt = Gpt(10, 6, 2, 2, 4)
    made = f"by tests/data/models_reference.py with torch {torch.__version__}"
    (FOLDER / "models_reference.json").write_text(written({"made": made, "models": models(gpt)}) + "\n")
    masks = {f"h.{i}.attn.bias": torch.ones(6, 6).tril().reshape(1, 1, 6, 6) for i in range(2)}
    write_safetensors(FOLDER / "gpt2_tiny.safetensors", {**gpt.state_dict(), **masks})
    write_names("resnet18_names.txt", ResNet(BasicBlock, (2, 2, 2, 2), 1000))
    write_names("gpt2_names.txt", Gpt(50257, 1024, 12, 12, 768))


if __name__ == "__main__":
    main()
