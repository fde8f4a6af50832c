#!/usr/bin/env python3
"""Writes modules_reference.json: what PyTorch's modules are called inside, and what they compute in f64.

Of every module: its state_dict in order (names, shapes, values), inputs, outputs, a gradient for each output, and the
gradients of inputs and parameters. Inputs and weights have two digits, so that the file stays small.

usage: modules_reference.py > modules_reference.json    (with torch 2.15)"""
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrize

torch.manual_seed(1)


def tensor(*shape):
    return torch.randint(-100, 101, shape).double() / 100


def dump(t):
    values = (float(f"{v:.11g}") for v in t.detach().flatten().tolist())
    return {"shape": list(t.shape), "values": [int(v) if v == int(v) else v for v in values]}


def tensors(y):
    """The tensors in a module's result, in order: (output, (h_n, c_n)) is three."""
    if y is None:
        return []
    parts = y.values() if isinstance(y, dict) else y
    return [y] if isinstance(y, torch.Tensor) else [t for part in parts for t in tensors(part)]


def case(module, inputs, run=None, training=True):
    """Results and gradients of `run` (by default, calling the module) on inputs; floats are differentiated."""
    module.double().train(training)
    with torch.no_grad():
        for name, t in module.state_dict().items():
            if t.is_floating_point():
                t.copy_(tensor(*t.shape).abs() + 0.1 if name.endswith("running_var") else tensor(*t.shape))
    state = [{"name": name, **dump(t)} for name, t in module.state_dict().items()]
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    outputs = tensors((run or (lambda m, *x: m(*x)))(module, *inputs))
    dy = [tensor(*y.shape) for y in outputs]
    torch.autograd.backward(outputs, dy)
    return {
        "state": state,
        "inputs": [dump(x) for x in inputs],
        "outputs": [dump(y) for y in outputs],
        "dy": [dump(d) for d in dy],
        "d_inputs": [dump(x.grad) for x in leaves],
        "d_parameters": {name: dump(p.grad) for name, p in module.named_parameters()},
        "after": {name: dump(b) for name, b in module.named_buffers()},
    }


def results(net, inputs):
    with torch.no_grad():
        return tensors(net.eval()(*inputs))


def write_files(folder, nets):
    """A file of torch.save for each model: its state_dict, inputs and outputs in f32."""
    for name, net, inputs in nets:
        net, inputs = net.float(), [x.float() if x.is_floating_point() else x for x in inputs]
        for p in net.parameters():
            nn.init.normal_(p, std=0.3)
        torch.save({"state": net.state_dict(), "inputs": inputs, "outputs": results(net, inputs)}, Path(folder) / f"{name}.pt")


def check_files(folder, nets):
    """Fails unless each model computes the outputs in NAME.ours.pt from the weights and inputs there."""
    for name, net, inputs in nets:
        file = torch.load(Path(folder) / f"{name}.ours.pt", weights_only=True)
        net.float().load_state_dict({key[6:]: t for key, t in file.items() if key.startswith("state.")})
        got = results(net, [file[f"inputs.{i}"] for i in range(len(inputs))])
        for i, y in enumerate(got):
            torch.testing.assert_close(y, file[f"outputs.{i}"], rtol=1e-5, atol=1e-5)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class WeightNorm(nn.Module):
    """That of torch.nn.utils.parametrizations, which torch 1.13 has not."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, g, v):
        return torch._weight_norm(v, g, self.dim)

    def right_inverse(self, weight):
        return torch.norm_except_dim(weight, 2, self.dim), weight


def indices(*values):
    return torch.tensor(values)


def layers():
    yield "Linear", case(nn.Linear(3, 2), [tensor(2, 2, 3)])
    yield "Linear plain", case(nn.Linear(3, 2, bias=False), [tensor(2, 3)])
    yield "Conv2d", case(nn.Conv2d(4, 2, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(1, 2), groups=2), [tensor(1, 4, 4, 5)])
    yield "BatchNorm1d", case(nn.BatchNorm1d(2, eps=1e-3, momentum=0.3), [tensor(3, 2, 2)])
    yield "BatchNorm2d", case(nn.BatchNorm2d(2), [tensor(2, 2, 2, 2)])
    yield "BatchNorm2d eval", case(nn.BatchNorm2d(2), [tensor(2, 2, 1, 2)], training=False)
    yield "LayerNorm", case(nn.LayerNorm((2, 3)), [tensor(2, 2, 3)])
    yield "LayerNorm plain", case(nn.LayerNorm(3, elementwise_affine=False), [tensor(2, 3)])
    yield "Embedding", case(nn.Embedding(4, 2), [indices(3, 0, 3)])
    yield "Embedding padding", case(nn.Embedding(4, 2, padding_idx=-1), [indices(3, 0, 3)])
    yield "Sequential", case(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Sequential(nn.Linear(4, 2), nn.Tanh())), [tensor(2, 3)])
    yield "RNN", case(nn.RNN(2, 3, num_layers=2), [tensor(3, 2, 2)])
    yield "RNN relu", case(nn.RNN(2, 3, nonlinearity="relu", bidirectional=True, batch_first=True), [tensor(2, 3, 2), tensor(2, 2, 3)])
    yield "LSTM", case(nn.LSTM(2, 2, num_layers=2, bidirectional=True), [tensor(3, 2, 2)])
    yield "LSTM state", case(nn.LSTM(2, 3, bias=False), [tensor(3, 2, 2), tensor(1, 2, 3), tensor(1, 2, 3)],
                             lambda m, x, h, c: m(x, (h, c)))
    yield "LSTM unbatched", case(nn.LSTM(2, 2), [tensor(3, 2), tensor(1, 2), tensor(1, 2)], lambda m, x, h, c: m(x, (h, c)))
    yield "GRU", case(nn.GRU(2, 2, num_layers=2, bidirectional=True, batch_first=True), [tensor(2, 3, 2), tensor(4, 2, 2)])
    yield "RNNCell", case(nn.RNNCell(2, 3, nonlinearity="relu"), [tensor(2, 2), tensor(2, 3)])
    yield "LSTMCell", case(nn.LSTMCell(2, 3), [tensor(2, 2), tensor(2, 3), tensor(2, 3)], lambda m, x, h, c: m(x, (h, c)))
    yield "GRUCell", case(nn.GRUCell(2, 3, bias=False), [tensor(2, 2)])


def blocks():
    yield "Conv1d", case(nn.Conv1d(4, 2, 3, stride=2, padding=2, dilation=2, groups=2), [tensor(1, 4, 6)])
    yield "ConvTranspose2d", case(
        nn.ConvTranspose2d(4, 2, (2, 3), stride=2, padding=(1, 0), output_padding=(1, 0), dilation=(2, 1), groups=2),
        [tensor(1, 4, 2, 3)])
    yield "ConvTranspose2d plain", case(nn.ConvTranspose2d(2, 3, 2, bias=False), [tensor(1, 2, 2, 2)])
    yield "RMSNorm", case(RMSNorm(4, torch.finfo(torch.float64).eps), [tensor(2, 4)])
    yield "RMSNorm eps", case(RMSNorm(4, 0.5), [tensor(2, 4)])
    yield "GroupNorm", case(nn.GroupNorm(2, 4, eps=1e-2), [tensor(2, 4, 2)])
    yield "InstanceNorm2d", case(nn.InstanceNorm2d(2), [tensor(2, 2, 2, 2)])
    yield "InstanceNorm2d affine", case(nn.InstanceNorm2d(2, affine=True), [tensor(2, 2, 2, 2)])

    def attention(**masks):
        return lambda m, x: m(x, x, x, need_weights=False, **masks)

    later = torch.ones(3, 3).triu(1).bool()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    per_head = torch.zeros(4, 3, 3).bool()
    per_head[1, 0, 2] = per_head[2, 1, 0] = True
    yield "MultiheadAttention", case(nn.MultiheadAttention(4, 2), [tensor(3, 2, 4)], attention())
    yield "MultiheadAttention causal", case(nn.MultiheadAttention(4, 2, bias=False, batch_first=True), [tensor(2, 3, 4)],
                                            attention(attn_mask=later))
    yield "MultiheadAttention masks", case(nn.MultiheadAttention(4, 2), [tensor(3, 2, 4)],
                                           attention(attn_mask=per_head, key_padding_mask=padding))
    yield "MultiheadAttention float mask", case(
        nn.MultiheadAttention(4, 2), [tensor(3, 2, 4)],
        attention(attn_mask=torch.arange(9).view(3, 3) / 8.0, key_padding_mask=padding))
    yield "MultiheadAttention cross", case(nn.MultiheadAttention(4, 2), [tensor(2, 2, 4), tensor(3, 2, 4)],
                                           lambda m, q, k: m(q, k, k))
    yield "MultiheadAttention weights", case(
        nn.MultiheadAttention(4, 2, batch_first=True), [tensor(2, 2, 4), tensor(2, 3, 4), tensor(2, 3, 4)],
        lambda m, q, k, v: m(q, k, v, average_attn_weights=False, key_padding_mask=padding))
    yield "MultiheadAttention unbatched", case(nn.MultiheadAttention(4, 1), [tensor(3, 4)], lambda m, x: m(x, x, x))
    yield "TransformerEncoderLayer", case(nn.TransformerEncoderLayer(4, 2, 3, dropout=0), [tensor(3, 2, 4)])
    yield "TransformerEncoderLayer first", case(
        nn.TransformerEncoderLayer(4, 2, 3, dropout=0, activation="gelu", layer_norm_eps=1e-2, batch_first=True, norm_first=True),
        [tensor(2, 3, 4)], lambda m, x: m(x, src_mask=later, src_key_padding_mask=padding))
    yield "TransformerEncoder", case(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 3, dropout=0, batch_first=True), 2, nn.LayerNorm(4)),
        [tensor(2, 3, 4)])
    yield "MultiheadAttention sizes", case(nn.MultiheadAttention(4, 2, kdim=3, vdim=2), [tensor(2, 2, 4), tensor(3, 2, 3), tensor(3, 2, 2)])
    yield "Conv1d unbatched", case(nn.Conv1d(2, 2, 2), [tensor(2, 4)])
    yield "Conv2d unbatched", case(nn.Conv2d(2, 2, 2), [tensor(2, 3, 3)])
    yield "ConvTranspose2d unbatched", case(nn.ConvTranspose2d(2, 2, 2), [tensor(2, 2, 3)])

    def packed(m, x, *start):
        ends = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2, 4, 1]), m.batch_first, enforce_sorted=False)
        y, last = m(ends, *([start] if len(start) == 2 else start))
        return nn.utils.rnn.pad_packed_sequence(y, m.batch_first, total_length=4)[0], last

    yield "LSTM lengths", case(nn.LSTM(2, 2, num_layers=2, bidirectional=True),
                               [tensor(4, 3, 2), tensor(4, 3, 2), tensor(4, 3, 2)], packed)
    yield "GRU lengths", case(nn.GRU(2, 2, bidirectional=True, batch_first=True), [tensor(3, 4, 2), tensor(2, 3, 2)], packed)
    yield "RNN lengths", case(nn.RNN(2, 2, num_layers=2), [tensor(4, 3, 2)], packed)
    yield "TransformerDecoderLayer", case(
        nn.TransformerDecoderLayer(4, 2, 3, dropout=0), [tensor(3, 2, 4), tensor(3, 2, 4)],
        lambda m, x, memory: m(x, memory, tgt_mask=later, memory_key_padding_mask=padding))
    yield "TransformerDecoder first", case(
        nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 3, dropout=0, activation="gelu", layer_norm_eps=1e-2,
                                                         batch_first=True, norm_first=True), 2, nn.LayerNorm(4)),
        [tensor(2, 3, 4), tensor(2, 5, 4)], lambda m, x, memory: m(x, memory, tgt_key_padding_mask=padding))


    def normed(module, dim=0):
        return parametrize.register_parametrization(module, "weight", WeightNorm(dim), unsafe=True)

    spectral_norm = nn.utils.parametrizations.spectral_norm
    yield "WeightNorm", case(normed(nn.Linear(3, 2)), [tensor(2, 3)])
    yield "WeightNorm dim", case(normed(nn.Conv2d(2, 3, 2, bias=False), 1), [tensor(1, 2, 3, 3)])
    yield "SpectralNorm", case(spectral_norm(nn.Linear(3, 2)), [tensor(2, 3)])
    yield "SpectralNorm eval", case(spectral_norm(nn.Conv2d(2, 3, 2)), [tensor(1, 2, 3, 3)], training=False)
    yield "SpectralNorm transposed", case(spectral_norm(nn.ConvTranspose2d(2, 3, 2), n_power_iterations=2), [tensor(1, 2, 2, 2)])
    yield "TransformerEncoderLayer plain", case(nn.TransformerEncoderLayer(4, 2, 3, dropout=0, bias=False), [tensor(3, 2, 4)])
    yield "TransformerDecoderLayer plain", case(
        nn.TransformerDecoderLayer(4, 2, 3, dropout=0, bias=False), [tensor(3, 2, 4), tensor(3, 2, 4)])


def written(value, depth=0):
    """JSON with one line for each leaf of the tree."""
    if depth < 4 and isinstance(value, dict) and "values" not in value:
        inside = ",\n".join(f"{' ' * depth}{json.dumps(k)}: {written(v, depth + 1)}" for k, v in value.items())
        return f"{{\n{inside}}}" if inside else "{}"
    if depth < 4 and isinstance(value, list):
        inside = ",\n".join(f"{' ' * depth}{written(v, depth + 1)}" for v in value)
        return f"[\n{inside}]" if inside else "[]"
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    made = f"by tests/data/modules_reference.py with torch {torch.__version__}"
    sys.stdout.write(written({"made": made, "layers": dict(layers()), "blocks": dict(blocks())}) + "\n")
