#!/usr/bin/env python3
"""Writes more_reference.json, the modules of nn/more.h in the form of modules_reference.py.

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


def main():
    torch.manual_seed(1)
    lines = ",\n".join(f'"{name}": {json.dumps(c, separators=(",", ":"))}' for name, c in modules())
    Path(__file__).with_suffix(".json").write_text('{"more": {\n' + lines + "}}\n")


if __name__ == "__main__":
    main()
