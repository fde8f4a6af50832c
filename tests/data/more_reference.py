#!/usr/bin/env python3
"""Writes more_reference.json, the modules of nn/more.h and further models in the form of modules_reference.py.

usage: more_reference.py    (with torch 2.15)"""
import json
from pathlib import Path

import torch
from modules_reference import case, tensor
from torch import nn
from torch.nn import functional as F


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *x):
        return self.f(*x)


def of(f, *shape):
    return case(Function(f), [tensor(*shape)])


def ctc(reduction, blank, zero_infinity=False):
    targets, lengths, inputs = torch.tensor([[1, 2, 2], [3, 1, 0], [1, 1, 1]]), torch.tensor([3, 2, 3]), torch.tensor([6, 4, 3])
    if blank == 3:
        targets = (targets + 3) % 4  # 0 1 1, 2 0, 0 0 0
    return lambda x: F.ctc_loss(x.log_softmax(-1), targets, inputs, lengths, blank, reduction, zero_infinity)


def modules():
    yield "Hardtanh", case(nn.Hardtanh(-0.505, 0.305), [tensor(3, 5)])
    yield "CELU", case(nn.CELU(), [tensor(3, 5)])
    yield "CELU alpha", case(nn.CELU(0.25), [tensor(3, 5)])  # its gradient takes alpha as f32
    yield "Softshrink", case(nn.Softshrink(0.305), [tensor(3, 5)])
    yield "Hardshrink", case(nn.Hardshrink(0.305), [tensor(3, 5)])
    yield "Tanhshrink", case(nn.Tanhshrink(), [tensor(3, 5)])
    yield "InstanceNorm1d", case(nn.InstanceNorm1d(2, affine=True), [tensor(2, 2, 4)])
    yield "InstanceNorm3d", case(nn.InstanceNorm3d(2), [tensor(2, 2, 2, 2, 2)])
    yield "BatchNorm3d", case(nn.BatchNorm3d(2, eps=1e-2, momentum=0.3), [tensor(2, 2, 2, 1, 2)])
    yield "LocalResponseNorm", case(nn.LocalResponseNorm(2, 0.3, 0.6, 1.5), [tensor(2, 4, 3)])
    yield "LocalResponseNorm images", case(nn.LocalResponseNorm(3), [tensor(1, 5, 2, 2)])
    for name, pad in {"ZeroPad1d": nn.ZeroPad1d((1, 2)), "ReflectionPad1d": nn.ReflectionPad1d(2),
                      "ReplicationPad1d": nn.ReplicationPad1d((0, 2)), "CircularPad1d": nn.CircularPad1d((2, 1)),
                      "ConstantPad": nn.ConstantPad1d((1, 2), 3.5)}.items():
        yield name, case(pad, [tensor(2, 1, 4)])
    yield "CircularPad2d", case(nn.CircularPad2d((1, 2, 0, 1)), [tensor(1, 2, 2, 3)])
    yield "Unfold", case(nn.Unfold((2, 3), dilation=(1, 2), padding=(1, 2), stride=(2, 1)), [tensor(2, 2, 3, 4)])
    yield "Fold", case(nn.Fold((4, 5), (2, 3), dilation=(2, 1), padding=(1, 0), stride=(2, 1)), [tensor(2, 12, 6)])
    yield "Conv3d", case(nn.Conv3d(4, 2, (2, 3, 2), stride=(2, 1, 2), padding=(1, 0, 1), dilation=(2, 1, 1), groups=2),
                         [tensor(2, 4, 4, 3, 3)])
    yield "Conv3d plain", case(nn.Conv3d(1, 2, 2, bias=False), [tensor(1, 1, 3, 2, 3)])
    yield "ConvTranspose3d", case(
        nn.ConvTranspose3d(4, 2, (3, 2, 2), stride=(2, 1, 2), padding=(1, 0, 1), output_padding=(1, 0, 0), dilation=(2, 1, 1), groups=2),
        [tensor(2, 4, 2, 3, 2)])
    yield "ConvTranspose3d plain", case(nn.ConvTranspose3d(1, 2, 2, bias=False), [tensor(1, 1, 2, 2, 2)])
    distinct = torch.randperm(5 * 4 * 3 * 2).double().reshape(1, 2, 5, 4, 3) / 60
    yield "MaxPool3d", case(nn.MaxPool3d((2, 3, 2), stride=(1, 2, 2), padding=(1, 1, 0), ceil_mode=True), [distinct])
    yield "AvgPool3d", case(nn.AvgPool3d((2, 3, 2), stride=(2, 2, 1), padding=(1, 1, 0)), [tensor(1, 2, 5, 4, 3)])
    yield "AvgPool3d without pad", case(nn.AvgPool3d(2, padding=1, ceil_mode=True, count_include_pad=False), [tensor(1, 1, 3, 3, 3)])
    yield "AdaptiveAvgPool3d", case(nn.AdaptiveAvgPool3d((2, 1, 3)), [tensor(1, 2, 3, 2, 4)])
    later = torch.ones(3, 3).triu(1).bool()
    yield "Transformer", case(nn.Transformer(4, 2, 1, 2, 3, dropout=0), [tensor(4, 2, 4), tensor(3, 2, 4)],
                              lambda m, s, t: m(s, t, tgt_mask=later))
    yield "Transformer first", case(nn.Transformer(4, 2, 2, 1, 3, dropout=0, norm_first=True, batch_first=True),
                                    [tensor(2, 4, 4), tensor(2, 3, 4)])
    classes, weights = torch.tensor([2, 0, 1]), torch.tensor([0.5, 2, 1.25]).double()
    yield "MultiMarginLoss", of(lambda x: F.multi_margin_loss(x, classes), 3, 3)
    yield "MultiMarginLoss squares", of(
        lambda x: F.multi_margin_loss(x, classes, p=2, margin=0.7, weight=weights, reduction="none"), 3, 3)
    yield "TripletMarginWithDistance", case(
        Function(lambda a, p, n: F.triplet_margin_with_distance_loss(
            a, p, n, distance_function=lambda u, v: (u - v).abs().sum(-1), margin=1.5, swap=True, reduction="sum")),
        [tensor(3, 4), tensor(3, 4), tensor(3, 4)])
    yield "CTCLoss", of(ctc("mean", 0, True), 6, 3, 4)
    yield "CTCLoss none", of(ctc("none", 0, True), 6, 3, 4)
    yield "CTCLoss blank", of(ctc("sum", 3, True), 6, 3, 4)
    targets = torch.tensor([0, 9, 3, 4, 1, 7])
    yield "AdaptiveLogSoftmaxWithLoss", case(nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6], div_value=2, head_bias=True), [tensor(6, 8)],
                                             lambda m, x: tuple(m(x, targets)))
    yield "AdaptiveLogSoftmaxWithLoss head", case(nn.AdaptiveLogSoftmaxWithLoss(4, 6, [5]), [tensor(2, 4)],
                                                  lambda m, x: (*m(x, targets[:1].expand(2)), m.log_prob(x)))
    yield "AdaptiveMaxPool3d", case(nn.AdaptiveMaxPool3d((2, 1, 3)), [torch.randperm(48).double().reshape(1, 2, 3, 2, 4) / 48])
    yield "Softmin", case(nn.Softmin(1), [tensor(3, 5)])
    yield "Softmax2d", case(nn.Softmax2d(), [tensor(2, 3, 2, 2)])
    yield "Softmax2d alone", case(nn.Softmax2d(), [tensor(3, 2, 2)])
    yield "Threshold", case(nn.Threshold(0.105, 7), [tensor(3, 5)])
    yield "RReLU", case(nn.RReLU(0.25, 0.25), [tensor(3, 5)])
    yield "RReLU evaluated", case(nn.RReLU(0.125, 0.5), [tensor(3, 5)], training=False)
    labels = torch.tensor([[2, 0, -1], [-1, 1, 2], [1, 2, 0]])
    yield "MultiLabelMarginLoss", of(lambda x: F.multilabel_margin_loss(x, labels), 3, 3)
    yield "MultiLabelMarginLoss none", of(lambda x: F.multilabel_margin_loss(x, labels, reduction="none"), 3, 3)
    truth = (labels > 0).double()
    yield "MultiLabelSoftMarginLoss", of(lambda x: F.multilabel_soft_margin_loss(x, truth), 3, 3)
    yield "MultiLabelSoftMarginLoss weighted", of(
        lambda x: F.multilabel_soft_margin_loss(x, truth, weight=weights, reduction="none"), 3, 3)
    yield "GELU tanh", case(nn.GELU("tanh"), [tensor(3, 5)])
    yield "Softplus", case(nn.Softplus(2, 1.5), [tensor(3, 5)])
    yield "Bilinear", case(nn.Bilinear(2, 3, 4), [tensor(5, 2), tensor(5, 3)])
    yield "Bilinear without bias", case(nn.Bilinear(2, 3, 4, False), [tensor(2, 1, 2), tensor(2, 1, 3)])
    yield "PairwiseDistance", case(nn.PairwiseDistance(3, 1e-3, True), [tensor(2, 4), tensor(2, 4)])
    yield "ChannelShuffle", case(nn.ChannelShuffle(2), [tensor(2, 4, 1, 2)])
    yield "Unfold by position", case(nn.Unfold((2, 3), (1, 2), (1, 2), (2, 1)), [tensor(2, 2, 3, 4)])
    yield "Fold by position", case(nn.Fold((4, 5), (2, 3), (2, 1), (1, 0), (2, 1)), [tensor(2, 12, 6)])


class VGG(nn.Module):
    def __init__(self, convolutions, width, hidden, classes, batch_norm):
        super().__init__()
        layers, channels = [], 1
        for i, count in enumerate(convolutions):
            out = min(width * 2**i, 8 * width)
            for _ in range(count):
                layers += [nn.Conv2d(channels, out, 3, padding=1), *([nn.BatchNorm2d(out)] if batch_norm else []), nn.ReLU()]
                channels = out
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(channels * 49, hidden), nn.ReLU(), nn.Dropout(0), nn.Linear(hidden, hidden),
                                        nn.ReLU(), nn.Dropout(0), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 7).flatten(1))


class DoubleConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(inputs, outputs))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, inputs // 2, 2, stride=2)
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x, beside):
        x = self.up(x)
        rows, columns = beside.size(2) - x.size(2), beside.size(3) - x.size(3)
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([beside, x], dim=1))


class UNet(nn.Module):
    def __init__(self, inputs, classes, width):
        super().__init__()
        self.inc = DoubleConv(inputs, width)
        for i in range(4):
            setattr(self, f"down{i + 1}", Down(width * 2**i, width * 2**(i + 1)))
        for i in range(4):
            setattr(self, f"up{i + 1}", Up(width * 2**(4 - i), width * 2**(3 - i)))
        self.outc = nn.Module()
        self.outc.conv = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        y = self.up1(self.down4(x4), x4)
        return self.outc.conv(self.up4(self.up3(self.up2(y, x3), x2), x1))


class PreActivation(nn.Module):
    def __init__(self, inputs, channels, stride, bottleneck):
        super().__init__()
        outputs = 4 * channels if bottleneck else channels
        conv = lambda i, o, kernel, step=1: nn.Conv2d(i, o, kernel, step, kernel // 2, bias=False)
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, channels, 1 if bottleneck else 3, 1 if bottleneck else stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels, 3, stride if bottleneck else 1)
        self.bottleneck, self.changes = bottleneck, stride != 1 or inputs != outputs
        if bottleneck:
            self.bn3, self.conv3 = nn.BatchNorm2d(channels), conv(channels, outputs, 1)
        if self.changes:
            self.downsample = conv(inputs, outputs, 1, stride)

    def forward(self, x):
        h = self.bn1(x).relu()
        y = self.conv2(self.bn2(self.conv1(h)).relu())
        if self.bottleneck:
            y = self.conv3(self.bn3(y).relu())
        return y + (self.downsample(h) if self.changes else x)


class ResNetV2(nn.Module):
    def __init__(self, blocks, bottleneck, width, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 7, 2, 3, bias=False)
        inputs = width
        for i, count in enumerate(blocks):
            row = []
            for j in range(count):
                row.append(PreActivation(inputs, width * 2**i, 2 if i > 0 and j == 0 else 1, bottleneck))
                inputs = width * 2**i * (4 if bottleneck else 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*row))
        self.bn, self.fc = nn.BatchNorm2d(inputs), nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x), 3, 2, 1)
        return self.fc(self.bn(self.layer4(self.layer3(self.layer2(self.layer1(x))))).relu().mean((2, 3)))


def nets():
    yield "VGG", VGG((1, 1, 2, 2, 2), 1, 3, 2, False), [tensor(1, 1, 32, 33)]
    yield "VGG norm", VGG((2, 2, 2, 2, 2), 1, 2, 2, True), [tensor(2, 1, 32, 32)]
    yield "UNet", UNet(1, 2, 1), [tensor(2, 1, 17, 18)]
    yield "ResNetV2", ResNetV2((1, 2, 1, 1), False, 1, 2), [tensor(2, 1, 18, 17)]
    yield "ResNetV2 bottleneck", ResNetV2((1, 1, 1, 2), True, 1, 2), [tensor(2, 1, 18, 17)]


def zoo():
    return ((name, case(net, inputs)) for name, net, inputs in nets())


def main():
    groups = []
    for name, cases in {"more": modules, "zoo": zoo}.items():
        torch.manual_seed(1)
        lines = ",\n".join(f'"{name}": {json.dumps(c, separators=(",", ":"))}' for name, c in cases())
        groups.append(f'"{name}": {{\n{lines}}}')
    Path(__file__).with_suffix(".json").write_text("{" + ",\n".join(groups) + "}\n")


if __name__ == "__main__":
    main()
