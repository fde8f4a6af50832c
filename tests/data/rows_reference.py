"""Writes rows_reference.json: what PyTorch makes, in f64, of the inputs of the rows in tests/support/op_rows; values,
and gradients for a fixed gradient of the result. Not part of the build. Written with torch 2.15:
    ninja -C build tests/dump_rows && build/tests/dump_rows | python3 tests/data/rows_reference.py

A new row needs a line in ROWS, by the row's name: a function of its inputs (for extremes.cpp, in EXTREMES). One that
PyTorch cannot express is named in WITHOUT, with the reason."""
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from rows_reference_extremes import EXTREMES

WITHOUT = {
    "dropout": "draws random numbers",
    "scaled_dot_product_attention_biased": "draws random numbers",
    "scaled_dot_product_attention_fused_causal": "draws random numbers",
    "binary_cross_entropy_with_pos_weight_learned": "has no gradient for pos_weight",
    "softmax_gumbel": "draws random numbers",
    "softmax_gumbel_hard": "draws random numbers",
    "where_rrelu": "draws random numbers",
}


def conv_gradient_of_weight(dy, x):  # of a weight [3, 2, 2, 3]: images and channels change places
    return F.conv2d(x.transpose(0, 1), dy.transpose(0, 1)).transpose(0, 1)


def scatter(x, dim, index, source):
    """Where indices repeat the last counts, also for the gradient, which PyTorch gives to all of them."""
    source = source[tuple(slice(n) for n in index.shape)]
    place = torch.arange(index.shape[dim]).reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
    last = x.new_zeros(x.shape, dtype=torch.int64).scatter(dim, index, place.expand(index.shape))
    return x.scatter(dim, index, torch.where(last.gather(dim, index) == place, source, source.detach()))


def place_windows(x):  # [3, 2, 4] to windows of 4, 2 apart, in [8, 2]
    return sum(F.pad(window.t(), (0, 0, 2 * i, 4 - 2 * i)) for i, window in enumerate(x))


def gradient_of_cumprod(dy, x):
    return torch.autograd.grad((x.cumprod(1) * dy).sum(), x, create_graph=True)[0]


def normed(training, mean=0.1, var=1.3, momentum=0.1, eps=1e-5):
    """batch_norm, and the running statistics after it."""
    def run(x, weight, bias):
        running = [torch.full((x.shape[1],), v, dtype=x.dtype) for v in (mean, var)]
        return F.batch_norm(x, *running, weight, bias, training, momentum, eps), *running
    return run


def bags(mode="mean", **options):
    return lambda table, i: F.embedding_bag(i, table, torch.tensor([0, 3, 3, 5]), mode=mode, **options)


def joined(parts):
    return torch.cat([part.flatten() for part in parts])


def recurrent(kind, reverse=False):
    """One direction of torch's RNN, LSTM or GRU, whose input weight is the identity: x holds the gates."""
    def run(x, weight, bias=None, h=None, c=None):
        n = weight.shape[1]
        zeros = x.new_zeros(x.shape[1], n)
        state = [zeros if t is None else t for t in ((h, c) if kind == "lstm" else (h,))]
        weights = [torch.eye(x.shape[2], dtype=x.dtype), weight]
        if bias is not None:
            weights += [torch.zeros_like(bias), bias]
        steps = x.flip(0) if reverse else x
        hx = tuple(t[None] for t in state) if kind == "lstm" else state[0][None]
        y, *last = getattr(torch, kind)(steps, hx, weights, bias is not None, 1, 0.0, False, False, False)
        y = y.flip(0) if reverse else y
        return torch.cat([y, last[1]]) if kind == "lstm" else y
    return run


def attention(q, k, v, allowed=None, causal=False, scale=None):
    """In torch 1.13 a query that may attend to nothing gets NaN, not zeros."""
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    hidden = torch.zeros(()).bool() if allowed is None else ~allowed
    return scores.masked_fill(hidden, -1e30).softmax(-1).masked_fill(hidden, 0) @ v


def grouped(q, k, v, **options):
    """Copies the heads of keys and values, as Hugging Face's repeat_kv."""
    times = q.shape[1] // k.shape[1]
    return attention(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1), **options)


def rotary(x, cosines, sines):
    """As apply_rotary_pos_emb of transformers."""
    a, b = x.chunk(2, -1)
    return x * torch.cat([cosines, cosines], -1) + torch.cat([-b, a], -1) * torch.cat([sines, sines], -1)


def rms_norm(x, dims, weight=1, eps=1e-6):  # not in torch 1.13
    return x * (x.square().mean(dims, keepdim=True) + eps).rsqrt() * weight


def heads(x, b=0):  # b: the dimension of the batch
    t = 1 - b
    return x.reshape(*x.shape[:2], 3, 2, -1).permute(2, b, 3, t, 4)


def gradient_of(f, *shape):
    """The gradient of f at an image of 0, 1, 2, ..., as a function of the gradient of its result."""
    def run(dy):
        image = torch.arange(math.prod(shape)).double().reshape(shape).requires_grad_()
        return torch.autograd.grad(f(image), image, dy, create_graph=True)[0]
    return run


def cofactors_of_first_two_rows(x):  # [..., 3, 3], whose last row counts as 0
    a, b, none = x[..., 0, :], x[..., 1, :], torch.zeros_like(x[..., 2, :])
    return torch.stack([torch.linalg.cross(b, none), torch.linalg.cross(none, a), torch.linalg.cross(a, b)], -2)


def at_maxima(x):  # of windows of 2 x 2 in an image of 0, 1, 2, ... of the shape of x
    image = torch.arange(x.numel()).double().reshape(x.shape)
    index = F.max_pool2d(image, 2, return_indices=True)[1]
    return x.flatten(2).gather(2, index.flatten(2)).reshape(index.shape)


def symmetric(x):  # torch's functions read one triangle
    return (x + x.mT) / 2


def squared(f):
    """Vectors whose sign is arbitrary."""
    return lambda x: joined([y.square() if y.dim() == x.dim() else y for y in f(x)])


def pairs(f, complex_input=True, complex_result=True):
    """A function of complex numbers as one of pairs."""
    def run(x, *more):
        y = f(torch.view_as_complex(x.contiguous()) if complex_input else x, *more)
        return torch.view_as_real(y) if complex_result else y
    return run


fft = torch.fft


def quantiles(kind):
    return lambda x: torch.quantile(x, torch.tensor([0.55, 0.3, 1], dtype=x.dtype), 1, interpolation=kind)


def nanquantiles(kind):
    return lambda x, mask: torch.nanquantile(x.masked_fill(mask, math.nan), 0.4, 1, True, interpolation=kind)


def reduced(mode, include_self=True, dim=0):
    return lambda x, i, source: x.scatter_reduce(dim, i, source[tuple(map(slice, i.shape))], mode, include_self=include_self)


def digamma(x):  # torch.digamma's own gradient has 10 digits
    at = x.detach()
    return torch.digamma(at) + torch.special.zeta(2, at) * (x - at)


def expert_rows(x, w):  # groups of 2, 0 and 3 rows
    return torch.cat([x[:2] @ w[0], x[2:] @ w[2]])


ROWS = {
    # linear algebra and Fourier transforms
    "solve": torch.linalg.solve,
    "solve_broadcast": torch.linalg.solve,
    "solve_vectors": lambda a, b: torch.linalg.solve(a, b) + torch.linalg.solve(a, b[0].expand(2, 3)),
    "solve_triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "solve_cholesky": lambda b, l: torch.cholesky_solve(b, l.tril()),
    "solve_triangular_from_the_right": lambda a, b: torch.linalg.solve_triangular(
        a, b, upper=True, left=False, unitriangular=True),
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "det_gradient": cofactors_of_first_two_rows,
    "slogdet": lambda x: joined(torch.linalg.slogdet(x)),
    "cholesky": lambda x: torch.linalg.cholesky(symmetric(x)),
    "cholesky_upper": lambda x: torch.linalg.cholesky(symmetric(x), upper=True),
    "qr": lambda x: joined(torch.linalg.qr(x)),
    "qr_of_wide": lambda x: joined(torch.linalg.qr(x)),
    "eigh": squared(lambda x: torch.linalg.eigh(symmetric(x))),
    "eigvalsh": lambda x: torch.linalg.eigvalsh(symmetric(x)),
    "svd": squared(lambda x: torch.linalg.svd(x, full_matrices=False)),
    "svd_of_wide": squared(lambda x: torch.linalg.svd(x, full_matrices=False)),
    "svdvals": torch.linalg.svdvals,
    "pinv": torch.linalg.pinv,
    "pinv_of_wide": torch.linalg.pinv,
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b).solution,
    "lstsq_of_wide": lambda a, b: torch.linalg.lstsq(a, b[..., None]).solution[..., 0],
    "matrix_exp": torch.linalg.matrix_exp,
    "fft": pairs(fft.fft),
    "fft_padded_columns": pairs(lambda x: fft.fft(x, 8, 1, "forward")),
    "fft_inverse_of_prime_length": pairs(fft.ifft),
    "fft_inverse_cut": pairs(lambda x: fft.ifft(x, 4, norm="ortho")),
    "fft_2": pairs(fft.fft2),
    "fft_2_inverse": pairs(lambda x: fft.ifft2(x, (2, 5), norm="ortho")),
    "rfft_2": pairs(fft.rfft2, complex_input=False),
    "rfft_2_of_first_dimensions": pairs(lambda x: fft.rfft2(x, dim=(0, 1), norm="ortho"), complex_input=False),
    "irfft_2_turned": pairs(lambda x: fft.irfft2(x, (5, 6), (-2, 0)), complex_result=False),
    "fft_n": pairs(fft.fftn),
    "fft_n_inverse_turned": pairs(lambda x: fft.ifftn(x, (4, 3, 2), (-1, 0, 1), "ortho")),
    "rfft_n_of_last_dimensions": pairs(lambda x: fft.rfftn(x, (3, 4)), complex_input=False),
    "rfft_n_of_one": pairs(lambda x: fft.rfftn(x, dim=0), complex_input=False),
    "irfft_n": pairs(fft.irfftn, complex_result=False),
    "rfft": pairs(fft.rfft, complex_input=False),
    "rfft_of_odd_columns": pairs(lambda x: fft.rfft(x, dim=0, norm="ortho"), complex_input=False),
    "irfft": pairs(fft.irfft, complex_result=False),
    "irfft_to_odd": pairs(lambda x: fft.irfft(x, 7, norm="forward"), complex_result=False),
    "irfft_2": pairs(lambda x: fft.irfft2(x, (4, 5)), complex_result=False),
    "rfft_in_stft": pairs(lambda x: torch.stft(x, 6, 1, window=torch.ones(6).to(x), return_complex=True), complex_input=False),
    "rfft_in_stft_of_windows": pairs(lambda x, w: torch.stft(
        x, 8, 3, 5, w, pad_mode="constant", normalized=True, return_complex=True), complex_input=False),
    "fft_in_stft_of_both_sides": pairs(lambda x: torch.stft(
        x, 6, window=torch.ones(6).to(x), center=False, onesided=False, return_complex=True), complex_input=False),
    "irfft_in_istft": pairs(lambda x: torch.istft(x, 4, window=torch.hann_window(4, dtype=x.real.dtype)), complex_result=False),
    "irfft_in_istft_of_both_sides": pairs(lambda x, w: torch.istft(
        x, 8, 3, 6, w, normalized=True, onesided=False, length=12), complex_result=False),
    # elementwise
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "add_broadcast": torch.add,
    "mul_broadcast": torch.mul,
    "mul_with_0d": torch.mul,
    "add_scalar": lambda x: x + 0.75,
    "sub_scalar": lambda x: x - 0.75,
    "mul_scalar": lambda x: x * -1.5,
    "div_scalar": lambda x: x / 0.8,
    "pow_scalar": lambda x: x**2.5,
    "sub_from_scalar": lambda x: 0.75 - x,
    "div_from_scalar": lambda x: 1.25 / x,
    "masked_fill": lambda x, mask: x.masked_fill(mask, -7),
    "cast": lambda x: x.float().double(),
    "cast_to_integer": lambda x: x.int(),
    "to_device": lambda x: x.clone(),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.5),
    "log_sigmoid": F.logsigmoid,
    "log_sigmoid_alias": F.logsigmoid,
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # F.hardsigmoid's own gradient rounds 1 / 6 to f32
    "swiglu": lambda a, b: F.silu(a) * b,
    "glu": F.glu,
    "glu_inner": lambda x: F.glu(x, 1),
    "clamp": lambda x: x.clamp(-1.25, 1.25),
    "clamp_from_below": lambda x: x.clamp(min=0.5),
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 1.3),
    "logit_of_clamped": lambda x: torch.logit(x, 0.3),
    "addcmul": lambda x, a, b: torch.addcmul(x, a, b, value=-1.5),
    "addcdiv": lambda x, a, b: torch.addcdiv(x, a, b, value=-1.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "lerp_near_b": lambda a, b: torch.lerp(a, b, 0.75),
    "remainder_scalar": lambda x: torch.remainder(x, 0.75),
    "pow_from_scalar": lambda x: torch.pow(1.25, x),
    "digamma": digamma,
    "digamma_of_negative": torch.digamma,
    "digamma_special": torch.digamma,
    "fmod_scalar": lambda x: torch.fmod(x, 0.75),
    "copysign_scalar": lambda x: torch.copysign(x, -1.0),
    "floor_divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide_of_integers": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide_scalar": lambda x: torch.div(x, 0.75, rounding_mode="floor"),
    "floor_divide_div_rounded_down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "where_div_toward_zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "where_div_scalar_toward_zero": lambda x: torch.div(x, -0.7, rounding_mode="trunc"),
    "round_to_decimals": lambda x: torch.round(x, decimals=1),
    "round_to_hundreds": lambda x: torch.round(x, decimals=-2),
    "bitwise_and_scalar": lambda x: x & 6,
    "bitwise_or_scalar": lambda x: x | 6,
    "bitwise_xor_scalar": lambda x: x ^ 6,
    "bitwise_left_shift_scalar": lambda x: x << 3,
    "bitwise_right_shift_scalar": lambda x: x >> 3,
    # views
    "reshape": lambda x: x.reshape(2, -1),
    "reshape_of_transposed": lambda x: x.transpose(0, 1).flatten(1),
    "permute": lambda x: x.permute(2, 0, 1),
    "expand": lambda x: x.expand(2, 3, 4),
    "slice": lambda x: x[1:6:2],
    "slice_chunks": lambda x: x[0:2] * x[4:6] + x[2:4],
    "slice_and_more": lambda x: x.flip(0)[::2, None, 1],
    "slice_scatter": lambda x, source: torch.slice_scatter(x, source, 0, 1, 5, 2),
    "slice_select": lambda x: x[:, -1] * x[:, 0],
    "place_slice": lambda x: 2 * x.new_zeros(5, 3).index_put((torch.tensor([1, 3]),), x),
    "reshape_squeezed": lambda x: x.squeeze().squeeze(0).squeeze(-1),
    "reshape_squeezed_dimensions": lambda x: x.squeeze((0, -1, 1)),
    "slice_split": lambda x: 2 * x[:, 2:5] + x[:, 1:2] * x[:, 5:6],
    "slice_unbound": lambda x: x[:, 3] * x[:, 1] + x[:, 0],
    "split_heads": lambda x: heads(x)[0] * heads(x)[2] + heads(x)[1],
    "split_heads_of_time_first": lambda x: heads(x, 1)[2] ** 2 - heads(x, 1)[0],
    "place_heads": lambda x: 2 * F.pad(x.permute(0, 2, 1, 3).reshape(2, 3, 4), (4, 4)),
    "diagonal": lambda x: x.diagonal(-1),
    "diagonal_of_planes": lambda x: x.diagonal(1, -1, 0),
    "diagonal_of_first_dimensions": lambda x: x.diagonal(),
    "diagonal_beside_the_matrix": lambda x: x.expand(2, 3, 4).diagonal(7, -2, -1),
    "place_diagonal": lambda x: 2 * torch.diagonal_scatter(x.new_zeros(3, 2, 4), x, 1, 0, 2),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "unfold_overlapping": lambda x: x.unfold(-2, 4, 3),
    "unfold_with_gaps": lambda x: x.unfold(1, 2, 4).unfold(2, 2, 1),
    "fold": lambda x: 2 * place_windows(x),
    "flip": lambda x: x.flip(0, -1),
    "flip_all": lambda x: x.expand(3, 4).flip(0, 1),
    "cat_roll": lambda x: x.roll(-8, -1),
    "expand_repeat": lambda x: x.repeat(2, 3, 1),
    "gather_repeat_interleave": lambda x: x.repeat_interleave(3, -2),
    "tril_below": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3)),
    "pad_and_crop": lambda x: F.pad(x, (-2, 3, 1, -2), value=0.5),
    "gather_pad_reflect": lambda x: F.pad(x, (3, 2, 2, -1), mode="reflect"),
    "gather_pad_replicate": lambda x: F.pad(x[None, None], (0, 4, 3, 1), mode="replicate")[0, 0],
    "gather_pad_circular": lambda x: F.pad(x[None, None], (3, 2, 1, 2), mode="circular")[0, 0],
    "cat": lambda a, b: torch.cat([a, b]),
    "cat_stack": lambda a, b: torch.stack([a, b], 1),
    # indexing and order
    "gather": lambda x, i: x.gather(1, i),
    "gather_of_a_corner": lambda x, i: x.gather(-3, i),
    "gather_expanded": lambda x, i: x.expand(4, 4, 2).gather(1, i.expand(4, 3, 2)),
    "gather_index_select": lambda x, i: x.index_select(0, i),
    "gather_index_select_middle": lambda x, i: x.index_select(-2, i),
    "gather_index": lambda x, i, j: x[i - 4, j],
    "gather_index_apart": lambda x, i, j: x[i, None, :, j],
    "gather_index_mask": lambda x, mask: x[mask],
    "gather_masked_select": torch.masked_select,
    "gather_masked_select_broadcast": torch.masked_select,
    "scatter": lambda x, i, source: scatter(x, 1, i, source),
    "scatter_into_a_corner": lambda x, i, source: scatter(x, 0, i, source),
    "scatter_index_put": lambda x, i, j, v: scatter(x.flatten(), 0, 3 * i + j, v.expand(6)).reshape(4, 3),
    "scatter_index_put_mask": lambda x, mask, v: x.index_put((mask,), v),
    "scatter_add": lambda x, i, source: x.scatter_add(1, i, source),
    "scatter_add_into_a_corner": lambda x, i, source: x.scatter_add(0, i, source[:, :, :1]),
    "scatter_add_index_add": lambda x, i, source: x.index_add(1, i, source),
    "scatter_add_index_put": lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
    "scatter_add_of_gather": lambda x, i: 2 * x.new_zeros(5, 2, 4).scatter_add(0, i, x),
    "argsort": lambda x: x.argsort(1, descending=True),
    "argsort_of_ties": lambda x: x.sort(dim=1, stable=True)[1],
    "argsort_of_ties_descending": lambda x: x.sort(dim=0, descending=True, stable=True)[1],
    "gather_sort": lambda x: x.sort()[0],
    "gather_sort_first": lambda x: x.sort(0, descending=True)[0],
    "gather_sort_of_ties": lambda x: x.sort(dim=0, descending=True, stable=True)[0],
    "topk": lambda x: x.topk(2, 0)[1],
    "gather_topk": lambda x: x.topk(4, 1, largest=False)[0],
    "scatter_extremum": reduced("amax", dim=1),
    "scatter_extremum_without_self": reduced("amin", False),
    "scatter_extremum_of_ties": reduced("amax"),
    "scatter_product": reduced("prod", dim=1),
    "scatter_product_without_self": reduced("prod", False),
    "scatter_product_with_zeros": lambda x, i, source, mask: reduced("prod", dim=1)(x, i, source.masked_fill(mask, 0)),
    "scatter_add_reduce_sum": reduced("sum"),
    "scatter_add_reduce_sum_without_self": reduced("sum", False),
    "scatter_add_reduce_mean": reduced("mean"),
    "scatter_add_reduce_mean_without_self": reduced("mean", False),
    "scatter_index_fill": lambda x, i: x.index_fill(1, i, -1.5),
    "scatter_index_copy": lambda x, i, source: x.index_copy(-2, i, source),
    "gather_take_along_dim": lambda x, i: torch.take_along_dim(x, i, 2),
    "gather_take_along_dim_flat": torch.take_along_dim,
    "scatter_number": lambda x, i: x.scatter(0, i, 1.5),
    "scatter_index_put_number": lambda x, i: x.index_put((i,), torch.tensor(-2.5, dtype=x.dtype)),
    "place_diagonal_diag_embed": lambda x: torch.diag_embed(x, -1, 0, 2),
    "where_masked_scatter": torch.masked_scatter,
    # reductions
    "cummax": lambda x: x.cummax(1)[1],
    "cummin": lambda x: x.cummin(0)[1],
    "gather_cummax": lambda x: x.cummax(-2)[0],
    "gather_cummin": lambda x: x.cummin(1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logcumsumexp_far": lambda x: x.logcumsumexp(-2),
    "sum_nansum": lambda x, mask: x.masked_fill(mask, math.nan).nansum(1),
    "sum_nanmean": lambda x, mask: x.masked_fill(mask, math.nan).nanmean(0, True),
    "sum_var_mean": lambda x: joined(torch.var_mean(x, [0, 2], unbiased=False, keepdim=True)),
    "sqrt_std_mean": lambda x: joined(torch.std_mean(x, 1)),
    "max_aminmax": lambda x: joined([x.amin(1), x.amax(1)]),
    "matmul_cov": torch.cov,
    "matmul_cov_of_one": lambda x: torch.cov(x, correction=0),
    "matmul_cov_weighted": lambda x, times, weights: torch.cov(x, fweights=times, aweights=weights),
    "matmul_cov_of_times": lambda x, times: torch.cov(x, correction=2, fweights=times),
    "matmul_corrcoef": torch.corrcoef,
    "scatter_add_histc": lambda x: x.histc(7, -1, 1.5),
    "scatter_add_histc_of_all": lambda x: x.histc(4),
    "eq_isin": torch.isin,
    "logical_not_isin": lambda x, among: torch.isin(x, among, invert=True),
    "sum_count_nonzero": lambda x: x.count_nonzero(1),
    "lerp_quantiles": lambda x: x.quantile(torch.tensor([0.5, 0, 0.3], dtype=x.dtype), 0, True),
    "gather_nanmedian": lambda x, mask: x.masked_fill(mask, math.nan).nanmedian(0).values,
    "median_nanmedian_of_all": lambda x, mask: x.masked_fill(mask, math.nan).nanmedian(),
    "where_nanquantile": lambda x, mask: x.masked_fill(mask, math.nan).nanquantile(0.3, 0, True),
    "where_nanquantiles": lambda x, mask: x.masked_fill(mask, math.nan).nanquantile(torch.tensor([1, 0.4], dtype=x.dtype), 1),
    "gather_take": torch.take,
    "slice_tensor_split": lambda x: torch.cat(torch.tensor_split(x, 3, -1)[::-2], 1),
    "slice_tensor_split_at": lambda x: torch.cat([torch.tensor_split(x, (1, -2, 9))[i] for i in (2, 1, 3)]),
    "cat_block_diag": torch.block_diag,
    "cat_cartesian_prod": torch.cartesian_prod,
    "norm_vector_norm": lambda x: torch.linalg.vector_norm(x, 3, (0, 2), True),
    "max_amax": lambda x: x.amax(1),
    "min_amin": lambda x: x.amin(0, True),
    "slogdet_logdet": lambda x: torch.logdet(x @ x.mT),
    "matmul_mv": torch.mv,
    "where_fmax": torch.fmax,
    "where_fmin": torch.fmin,
    "where_fmax_of_ties": lambda a, b, mask: torch.fmax(a.masked_fill(mask, math.nan), b),
    "where_fmin_of_ties": lambda a, b, mask: torch.fmin(a, b.masked_fill(mask, math.nan)),
    "mul_scalar_deg2rad": torch.deg2rad,
    "mul_scalar_rad2deg": torch.rad2deg,
    "where_sinc": torch.sinc,
    "where_sinc_near_0": torch.sinc,
    "flip_rot90": lambda x: torch.rot90(x),
    "flip_rot90_twice": lambda x: torch.rot90(x, 6),
    "flip_rot90_back": lambda x: torch.rot90(x, -1, (-1, 0)),
    "reshape_atleast": lambda x, y, z: torch.atleast_3d(x) + torch.atleast_2d(y) * torch.atleast_1d(z),
    "expand_broadcast_tensors": lambda *x: torch.stack(torch.broadcast_tensors(*x), -1),
    "cat_dstack": lambda *x: torch.dstack(x),
    "cat_column_stack": lambda *x: torch.column_stack(x),
    "scatter_extremum_by_name": reduced("amin"),
    "floor_divide_scalar_unravel_index": lambda i: torch.stack(torch.unravel_index(i, (3, 4, 5))),
    "sum_trapezoid": lambda y: torch.trapezoid(y, dx=0.5),
    "sum_trapezoid_at": lambda y, x: torch.trapezoid(y, x, dim=1),
    "cumsum_cumulative_trapezoid": lambda y: torch.cumulative_trapezoid(y, dx=0.5, dim=0),
    "cumsum_cumulative_trapezoid_at": torch.cumulative_trapezoid,
    "mul_windows": lambda x: x * (
        torch.hamming_window(8, dtype=x.dtype) + torch.kaiser_window(8, True, 6.0, dtype=x.dtype)
        + torch.fft.rfftfreq(14, dtype=x.dtype)
        + torch.blackman_window(8, periodic=False, dtype=x.dtype) * torch.fft.fftfreq(8, 0.5, dtype=x.dtype)),
    "svdvals_matrix_rank": lambda x: torch.linalg.matrix_rank(x @ x.mT),
    "svdvals_cond": torch.linalg.cond,
    "svdvals_nuclear_norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "svdvals_matrix_norm": lambda x: torch.linalg.matrix_norm(x, -2),
    "norm_matrix_norm": torch.linalg.matrix_norm,
    "max_matrix_norm": lambda x: torch.linalg.matrix_norm(x, 1),
    "min_matrix_norm": lambda x: torch.linalg.matrix_norm(x, -math.inf),
    "pow_scalar_in_place": lambda x: x.pow(1.5),
    "addcmul_in_place": lambda x, a, b: torch.addcmul(x, a, b, value=-0.5),
    "addcdiv_in_place": lambda x, a, b: torch.addcdiv(x, a, b, value=2),
    "softmax_of_dtype": lambda x: F.softmax(x, 0, dtype=torch.float64),
    "log_softmax_of_dtype": lambda x: F.log_softmax(x, -1, dtype=torch.float64),
    "gelu_tanh_by_name": lambda x: F.gelu(x, approximate="tanh"),
    "softplus_with_beta": lambda x: F.softplus(x, 2.5, 1.5),
    "permute_channel_shuffle": lambda x: F.channel_shuffle(x, 3),
    "argsort_bucketize": lambda x, bounds: torch.bucketize(x, bounds, right=True),
    "eq_one_hot": F.one_hot,
    "argsort_unique": lambda x: joined(torch.unique(x, return_inverse=True, return_counts=True)),
    "argsort_unique_slices": lambda x: joined(torch.unique(x, return_inverse=True, return_counts=True, dim=1)),
    "ne_unique_consecutive_slices": lambda x: joined(
        torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=-1)),
    "argsort_searchsorted_by_row": lambda x, y: torch.searchsorted(x.sort()[0], y, right=True),
    "ne_unique_consecutive": lambda x: joined(
        torch.unique_consecutive(x, return_inverse=True, return_counts=True)),
    "log_xlogy": torch.xlogy,
    "mul_xlogy_of_number": lambda x: torch.xlogy(1.5, x),
    "mul_xlogy_with_number": lambda x: torch.xlogy(x, 0.3),
    "gather_repeat_interleave_each": lambda x, times: x.repeat_interleave(times, -2),
    "gather_repeat_interleave_flat": lambda x: x.repeat_interleave(2),
    "cat_roll_of_two": lambda x: x.roll((1, -7), (0, -1)),
    "cat_roll_flat": lambda x: x.roll(5),
    "reshape_unflatten": lambda x: x.unflatten(-2, (3, -1, 2)),
    "tanh_tanhshrink": F.tanhshrink,
    "max_pool2d_by_position": lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1),
    "avg_pool2d_by_position": lambda x: F.avg_pool2d(x, 3, 2, (1, 0)),
    "max_pool2d_of_lines_by_position": lambda x: F.max_pool1d(x, 3, 2, 1),
    "avg_pool2d_of_lines_by_position": lambda x: F.avg_pool1d(x, 3, 2),
    "conv2d_by_position": lambda x, w: F.conv2d(x, w, None, (2, 1), (0, 2), 1, 2),
    "conv2d_of_lines_by_position": lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2),
    "interpolate_by_two": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate_of_lines": lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "interpolate_of_lines_to_size": lambda x: F.interpolate(x, 3),
    "interpolate_by_half": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "interpolate_by_fraction": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "interpolate_by_half_of_odd": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "interpolate_nearest_rounded_down": lambda x: F.interpolate(x, scale_factor=1.3),
    "interpolate_bicubic_rounded_down": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "interpolate_corners_rounded_down": lambda x: F.interpolate(
        x, scale_factor=1.7, mode="bilinear", align_corners=True),
    "interpolate_of_lines_rounded_down": lambda x: F.interpolate(x, scale_factor=0.7, mode="linear"),
    "sum_antialias_rounded_down": lambda x: F.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True),
    "max_pool2d_indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[1],
    "gather_max_pool2d_with_indices": lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1),
    "scatter_max_unpool2d": lambda x, y: F.max_unpool2d(
        x, F.max_pool2d(y, 2, return_indices=True)[1], 2, output_size=(7, 5)),
    "scatter_max_unpool2d_of_one": lambda x, y: F.max_unpool2d(
        x, F.max_pool2d(y, 2, 3, return_indices=True)[1], 2, 3),
    "gather_kthvalue": lambda x: x.kthvalue(3)[0],
    "gather_kthvalue_first": lambda x: x.kthvalue(2, 0, True)[0],
    "gather_mode": lambda x: x.mode()[0],
    "gather_mode_first": lambda x: x.mode(0, True)[0],
    "sub_diff": lambda x: x.diff(2),
    "sub_diff_beside": lambda x, before, after: x.diff(1, 0, before, after),
    "logical_xor_diff": torch.diff,
    "prod": lambda x: x.prod(1),
    "prod_of_ties": lambda x: x.prod(1),
    "prod_all": lambda x: (x + 0.5).prod(),
    "prod_first_and_last": lambda x: x.prod(2, True).prod(0, True),
    "prod_with_zeros": lambda x, mask: x.masked_fill(mask, 0).prod(0),
    "any": lambda x: (x > 1).any(1),
    "any_of_ties": lambda x: x.any(0),
    "all": lambda x: x.all().reshape(1, 1),
    "all_of_ties": lambda x: x.all(1, True),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp_of_large": lambda x: x.logsumexp(-1),
    "logsumexp_columns": lambda x: x.logsumexp(1),
    "logsumexp_first_and_last": lambda x: x.logsumexp((0, 2), True),
    "norm": lambda x: x.norm(2, 1),
    "normalize": lambda x: F.normalize(x),
    "normalize_of_order": lambda x: F.normalize(x, 3, -2),
    "median": lambda x: x.median(),
    "norm_1": lambda x: x.norm(1, (0, -1), True),
    "norm_of_ties": lambda x: x.norm(1, 0),
    "norm_infinity": lambda x: x.norm(math.inf, 0),
    "norm_infinity_of_ties": lambda x: x.norm(math.inf, 1),
    "norm_minus_infinity_of_ties": lambda x: x.norm(-math.inf, 1),
    "norm_of_order": lambda x: x.norm(2.5),
    "norm_3_of_ties": lambda x: x.norm(3),
    "norm_of_negative_order": lambda x: x.norm(-1.5, 1),
    "norm_0": lambda x: x.norm(0, 1),
    "norm_of_zeros": lambda x: (x * 0).norm(2, 1),
    "norm_of_order_of_zeros": lambda x: (x * 0).norm(2.5, 1),
    "norm_infinity_of_zeros": lambda x: (x * 0).norm(math.inf, 1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_middle": lambda x: x.cumsum(-2),
    "cumprod": lambda x: x.cumprod(-1),
    "cumprod_of_ties": lambda x: x.cumprod(-1),
    "cumprod_with_zeros": lambda x, mask: x.masked_fill(mask, 0).cumprod(0),
    "recurrence": gradient_of_cumprod,
    "sum": lambda x: x.sum([0, -1]),
    "sum_all": lambda x: x.sum(),
    "mean": lambda x: x.mean(1, keepdim=True),
    "max": lambda x: x.amax(1),
    "max_of_ties": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
    "min_of_ties": lambda x: x.amin(),
    "argmax": lambda x: x.argmax(1),
    "argmax_of_ties": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(0, keepdim=True),
    "argmin_of_ties": lambda x: x.argmin(1, keepdim=True),
    "sum_in_var": lambda x: x.var(1),
    "sum_var_0": lambda x: x.var([0, 2], unbiased=False),
    "sum_var_2": lambda x: x.var([0, 2], correction=2),
    "sqrt_in_stddev": lambda x: x.std(0, keepdim=True),
    "sqrt_stddev_0": lambda x: x.std([0, 2], unbiased=False, keepdim=True),
    "sqrt_stddev_of_equals": lambda x: x[:, None].expand(3, 4).std(1),
    # products
    "linear_no_bias": F.linear,
    "linear_to_gelu": lambda x, w, b: F.gelu(F.linear(x, w, b)),
    "linear_to_gelu_tanh": lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    "linear_to_relu": lambda x, w, b: F.relu(F.linear(x, w, b)),
    "linear_and_residual": lambda x, w, b, r: F.linear(x, w, b) + r,
    "linear_and_residual_to_gelu_tanh": lambda x, w, b, r: F.gelu(F.linear(x, w, b) + r, approximate="tanh"),
    "conv2d_general": lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(2, 1), groups=2),
    "conv2d_to_relu": lambda x, w, b: F.relu(F.conv2d(x, w, b)),
    "conv2d_to_gelu": lambda x, w, b: F.gelu(F.conv2d(x, w, b, padding=1, groups=3)),
    "conv2d_and_residual_to_relu": lambda x, w, b, r: F.relu(F.conv2d(x, w, b) + r),
    "conv2d_and_residual_to_gelu": lambda x, w, b, r: F.gelu(F.conv2d(x, w, b, stride=2, groups=2) + r),
    "conv2d_depthwise_and_residual": lambda x, w, b, r: F.conv2d(x, w, b, padding=1, groups=3) + r,
    "conv2d_of_lines_and_residual": lambda x, w, r: F.conv1d(x, w) + r,
    "conv2d_of_lines_to_gelu_tanh": lambda x, w: F.gelu(F.conv1d(x, w), approximate="tanh"),
    "conv2d_dilation": lambda x, w, b: F.conv2d(x, w, b, stride=(1, 2), padding=(0, 1), dilation=(3, 2)),
    "conv2d_depthwise": lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=3),
    "conv2d_pointwise": F.conv2d,
    "conv2d_of_lines": lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1, dilation=2, groups=2),
    "conv2d_of_volumes": lambda x, w, b: F.conv3d(x, w, b, (2, 1, 2), (1, 0, 1), (2, 1, 1), 2),
    "conv2d_weight": conv_gradient_of_weight,
    "conv2d_weight_of_volumes": lambda dy, x: F.conv3d(
        x.transpose(0, 1), dy.transpose(0, 1), stride=(2, 1, 1)).transpose(0, 1),
    "conv_transpose2d": F.conv_transpose2d,
    "conv_transpose2d_general": lambda x, w, b: F.conv_transpose2d(
        x, w, b, stride=(2, 3), padding=(1, 2), output_padding=(1, 0), dilation=(1, 2), groups=2),
    "conv_transpose2d_padded_beyond_the_stride": lambda x, w: F.conv_transpose2d(
        x, w, output_padding=(2, 1), dilation=(3, 2)),
    "conv_transpose2d_of_volumes": lambda x, w, b: F.conv_transpose3d(
        x, w, b, (2, 1, 3), (1, 1, 0), (1, 0, 2), 2, (2, 1, 1)),
    "matmul_bmm": torch.bmm,
    "matmul_of_integers": torch.matmul,
    "grouped_matmul": expert_rows,
    "grouped_outer": lambda dy, x: torch.stack([x[:2].t() @ dy[:2], 0 * x[:1].t() @ dy[:1], x[2:].t() @ dy[2:]]),
    "addmm_of_batches": torch.baddbmm,
    "addmm_of_batches_and_a_row": lambda c, a, b: torch.baddbmm(c, a, b, beta=-0.5, alpha=2),
    "matmul_tensordot": lambda x, y: torch.tensordot(x, y, ([1, -1], [2, 0])),
    "matmul_tensordot_of_last": torch.tensordot,
    "matmul_bilinear": F.bilinear,
    "matmul_power": lambda x: torch.matrix_power(x, 5),
    "matmul_power_of_inverse": lambda x: torch.matrix_power(x, -3),
    "mul_kron": torch.kron,
    "mul_kron_of_ranks": torch.kron,
    "mul_cross": lambda a, b: torch.linalg.cross(a[None], b),
    "mul_cross_first": lambda a, b: torch.linalg.cross(a, b, dim=0),
    "mul_outer": torch.outer,
    "addmm": torch.addmm,
    "addmm_row": lambda c, a, b: torch.addmm(c, a, b, beta=-0.5, alpha=2),
    "addmm_column": lambda c, a, b: torch.addmm(c, a, b, alpha=3),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "max_pool2d_padded": lambda x: F.max_pool2d(x, (3, 2), stride=2, padding=1, ceil_mode=True),
    "max_pool2d_of_lines": lambda x: F.max_pool1d(x, 3, stride=2, padding=1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 2)),
    "adaptive_max_pool2d_of_lines": lambda x: F.adaptive_max_pool1d(x, 3),
    "put_at": gradient_of(lambda x: F.adaptive_max_pool2d(x, 3), 2, 1, 5, 4),
    "take_at": at_maxima,
    "max_pool2d_dilated": lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (2, 3), True),
    "max_pool2d_of_dilated_lines": lambda x: F.max_pool1d(x, 3, 2, 1, 2),
    "max_pool2d_of_dilated_volumes": lambda x: F.max_pool3d(x, 2, 1, dilation=(2, 1, 3)),
    "gather_dilated_max_pool2d_with_indices": lambda x: 2 * F.max_pool2d(x, (3, 2), (2, 1), 1, (2, 3), True),
    "avg_pool2d_of_divisor": lambda x: F.avg_pool2d(x, (2, 3), 2, 1, True, divisor_override=5),
    "avg_pool2d_of_divisor_and_volumes": lambda x: F.avg_pool3d(x, 2, 1, (0, 1, 1), divisor_override=3),
    "avg_pool2d": lambda x: F.avg_pool2d(x, (2, 3)),
    "avg_pool2d_padded": lambda x: F.avg_pool2d(x, (3, 4), stride=(2, 3), padding=(1, 2), ceil_mode=True),
    "avg_pool2d_of_lines": lambda x: F.avg_pool1d(x, 4, stride=2, padding=2, count_include_pad=False),
    "avg_pool2d_gradient": gradient_of(lambda x: F.avg_pool2d(x, (2, 3), stride=2), 2, 1, 6, 5),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 9)),
    "adaptive_avg_pool2d_of_lines": lambda x: F.adaptive_avg_pool1d(x, 1),
    "adaptive_avg_pool2d_gradient": gradient_of(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), 2, 1, 5, 5),
    "max_pool2d_of_ties": lambda x: F.max_pool2d(x, 3, stride=1),
    # networks
    "softmax": lambda x: x.softmax(-1),
    "softmax_middle": lambda x: x.softmax(1),
    "softmax_of_large": lambda x: x.softmax(-1),
    "softmax_columns": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(0),
    "log_softmax_columns": lambda x: x.log_softmax(0),
    "log_softmax_of_large": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, [6], w, b),
    "layer_norm_beside_its_input": lambda x, w, b: F.layer_norm(x, [6], w, b) + x * 0.5,
    "layer_norm_plain": lambda x: F.layer_norm(x, [3, 4]),
    "layer_norm_eps": lambda x, w, b: F.layer_norm(x, [5], w, b, 1e-3),
    "prelu": F.prelu,
    "prelu_channels": F.prelu,
    "rms_norm": lambda x, w: rms_norm(x, -1, w),
    "rms_norm_plain": lambda x: rms_norm(x, (-2, -1)),
    "group_norm": lambda x, w, b: F.group_norm(x, 3, w, b),
    "group_norm_plain": lambda x: F.group_norm(x, 1),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "scaled_dot_product_attention": attention,
    "scaled_dot_product_attention_causal": lambda q, k, v: attention(q, k, v, causal=True, scale=1.5),
    "scaled_dot_product_attention_masked": attention,
    "scaled_dot_product_attention_grouped": grouped,
    "scaled_dot_product_attention_grouped_one": grouped,
    "scaled_dot_product_attention_grouped_fused": lambda q, k, v: grouped(q, k, v, causal=True),
    "rotary_embedding": rotary,
    "rotary_embedding_heads": lambda x, c, s: rotary(x.reshape(2, 3, 2, 6).transpose(1, 2), c, s),
    "scaled_dot_product_attention_fused": attention,
    "scaled_dot_product_attention_fused_masked": attention,
    "interpolate": lambda x: F.interpolate(x, (5, 3)),
    "interpolate_bilinear": lambda x: F.interpolate(x, (7, 2), mode="bilinear"),
    "interpolate_corners": lambda x: F.interpolate(x, (5, 9), mode="bilinear", align_corners=True),
    "interpolate_bicubic": lambda x: F.interpolate(x, (7, 3), mode="bicubic"),
    "interpolate_bicubic_corners": lambda x: F.interpolate(x, (5, 9), mode="bicubic", align_corners=True),
    "adaptive_avg_pool2d_in_interpolate": lambda x: F.interpolate(x, (3, 4), mode="area"),
    "sum_antialias": lambda x: F.interpolate(x, (4, 3), mode="bilinear", antialias=True),
    "sum_antialias_larger": lambda x: F.interpolate(x, (5, 3), mode="bilinear", antialias=True),
    "sum_antialias_cubic": lambda x: F.interpolate(x, (5, 2), mode="bicubic", antialias=True),
    "sum_antialias_corners": lambda x: F.interpolate(x, (4, 3), mode="bilinear", align_corners=True, antialias=True),
    "interpolate_of_volumes": lambda x: F.interpolate(x, (5, 3, 7)),
    "interpolate_trilinear": lambda x: F.interpolate(x, (5, 3, 7), mode="trilinear"),
    "interpolate_trilinear_corners": lambda x: F.interpolate(x, (2, 7, 3), mode="trilinear", align_corners=True),
    "adaptive_avg_pool2d_in_interpolate3d": lambda x: F.interpolate(x, (2, 3, 3), mode="area"),
    "interpolate_gradient": gradient_of(lambda x: F.interpolate(x, (5, 3), mode="bilinear"), 2, 1, 3, 4),
    "permute_in_pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "permute_in_pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "batch_norm": lambda x, w, b: normed(True)(x, w, b)[0],
    "batch_norm_eval": lambda x, w, b: normed(False)(x, w, b)[0],
    "batch_norm_running": lambda x, w, b: joined(normed(True, 0.3, 1.5, 0.3, 1e-3)(x, w, b)),
    "batch_norm_plain": lambda x: F.batch_norm(x, None, None, training=True),
    "lstm": recurrent("lstm"),
    "lstm_reverse": recurrent("lstm", reverse=True),
    "gru": recurrent("gru"),
    "gru_reverse": lambda x, weight, h: recurrent("gru", reverse=True)(x, weight, None, h),
    "rnn_tanh": recurrent("rnn_tanh"),
    "rnn_tanh_one_step": recurrent("rnn_tanh", reverse=True),
    "rnn_relu": recurrent("rnn_relu"),
    "embedding": lambda table, index: table[index],
    "embedding_padding": lambda table, index: table[index],
    # losses
    "cross_entropy": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "cross_entropy_smoothed": lambda x, t: 3 * F.cross_entropy(x, t, label_smoothing=0.2, ignore_index=2),
    "cross_entropy_smooth_ignore": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.3, ignore_index=1),
    "cross_entropy_wholly_smooth": lambda x, t: F.cross_entropy(x, t, label_smoothing=1, reduction="none"),
    "cross_entropy_of_large": lambda x, t: F.cross_entropy(x + 8192, t, reduction="none"),
    "cross_entropy_weighted": lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=1),
    "cross_entropy_weighted_smoothed": lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.3, ignore_index=1),
    "cross_entropy_pixels": lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1, reduction="none"),
    "cross_entropy_probabilities": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "cross_entropy_probabilities_weighted": lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.2),
    "cross_entropy_columns": lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1, ignore_index=2),
    "cross_entropy_probabilities_columns": lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
    "cross_entropy_probabilities_pixels": lambda x, t, w: F.cross_entropy(x, t, w, reduction="none"),
    "linear_cross_entropy": lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"),
    "linear_cross_entropy_biased": lambda x, w, t, b: F.cross_entropy(F.linear(x, w, b), t, ignore_index=2, label_smoothing=0.2),
    "linear_cross_entropy_weighted": lambda x, w, t, b, c: F.cross_entropy(F.linear(x, w, b), t, c, ignore_index=1, label_smoothing=0.3),
    "linear_cross_entropy_tokens": lambda x, w, t: F.cross_entropy(F.linear(x, w).flatten(0, 1), t.flatten(), reduction="sum"),
    "nll_loss": lambda x, t: F.nll_loss(x, t, reduction="none"),
    "nll_loss_weighted": lambda x, t, w: F.nll_loss(x, t, w, ignore_index=1),
    "nll_loss_pixels": lambda x, t, w: F.nll_loss(x, t, w, reduction="none"),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "l1_loss_of_ties": F.l1_loss,
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, beta=0.8, reduction="none"),
    "smooth_l1_loss_of_ties": F.smooth_l1_loss,
    "huber_loss": lambda x, y: F.huber_loss(x, y, delta=0.8, reduction="none"),
    "huber_loss_of_ties": F.huber_loss,
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    "binary_cross_entropy_weighted": F.binary_cross_entropy,
    "binary_cross_entropy_with_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    "binary_cross_entropy_with_logits_weighted": F.binary_cross_entropy_with_logits,
    "binary_cross_entropy_with_pos_weight": lambda x, y, w: F.binary_cross_entropy_with_logits(
        x, y, pos_weight=w, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_div_log_target": lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
    "soft_margin_loss": lambda x, y: torch.log1p(torch.exp(-x * y)).mean(),  # whose target has a gradient
    "poisson_nll_loss": F.poisson_nll_loss,
    "poisson_rate_nll_loss": lambda x, y: F.poisson_nll_loss(x, y, log_input=False, reduction="none"),
    "where_clamp": torch.clamp,
    "where_clamp_from_above": lambda x, high: torch.clamp(x, max=high),
    "expand_meshgrid": lambda *x: torch.stack(torch.meshgrid(*x, indexing="ij")),
    "expand_meshgrid_xy": lambda *x: torch.stack(torch.meshgrid(*x, indexing="xy")),
    "permute_movedim": lambda x: x.movedim((0, -1), (-1, 0)),
    "place_diagonal_diag": lambda x: torch.diag(x, -2),
    "diagonal_trace": torch.trace,
    "clamp_nan_to_num": lambda x: torch.nan_to_num(x + (x.detach() - 0.5).floor().log(), 7, 8, -9),
    "gather_median": lambda x: torch.median(x, 0).values,
    "gather_quantile": lambda x: torch.quantile(x, 0.3, dim=-1),
    "gather_quantile_of_all": lambda x: torch.quantile(x, 0.5),
    "log_gaussian_nll": lambda x, t, v: F.gaussian_nll_loss(x, t, v, full=True),
    "poisson_nll_loss_full": lambda x, t: F.poisson_nll_loss(x, t, full=True),
    "soft_margin_loss_and_hinge": lambda x: F.soft_margin_loss(x, x.detach().sign())
    + F.hinge_embedding_loss(x, x.detach().sign(), 0.7),
    "norm_pdist": F.pdist,
    "norm_pdist_1": lambda x: F.pdist(x, 1),
    "mul_renorm": lambda x: torch.renorm(x, 3, 1, 1.7),
    "matmul_multi_dot": lambda *x: torch.linalg.multi_dot(x),
    "matmul_multi_dot_of_vectors": lambda *x: torch.linalg.multi_dot(x),
    "gather_quantiles_lower": quantiles("lower"),
    "gather_quantiles_higher": quantiles("higher"),
    "gather_quantiles_nearest": quantiles("nearest"),
    "lerp_quantiles_midpoint": quantiles("midpoint"),
    "where_nanquantiles_lower": nanquantiles("lower"),
    "where_nanquantiles_higher": nanquantiles("higher"),
    "where_nanquantiles_nearest": nanquantiles("nearest"),
    "where_nanquantiles_midpoint": nanquantiles("midpoint"),
    "abs_lcm": torch.lcm,
    "norm_cdist": torch.cdist,
    "norm_cdist_1": lambda x, y: torch.cdist(x, y, 1),
    "norm_cdist_3": lambda x, y: torch.cdist(x, y, 3),
    "norm_cdist_inf": lambda x, y: torch.cdist(x, y, math.inf),
    "matmul_cdist": torch.cdist,
    "conv_transpose2d_1d": lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1, 2, 2),
    "embedding_bag": bags(),
    "embedding_bag_sum": bags(mode="sum"),
    "embedding_bag_weighted": lambda table, i, weights: F.embedding_bag(
        i, table, torch.tensor([0, 3, 3, 5, 9]), mode="sum", per_sample_weights=weights, include_last_offset=True,
        padding_idx=2),
    "embedding_bag_max": bags(mode="max", padding_idx=2),
    "embedding_bag_of_rows": lambda table, i: F.embedding_bag(i, table, padding_idx=1),
    "cat_concat": lambda *parts: torch.concat(parts, -1),
    "cat_vstack": lambda *parts: torch.vstack(parts),
    "cat_hstack": lambda *parts: torch.hstack(parts),
    "pad_pad_sequence": lambda *parts: torch.nn.utils.rnn.pad_sequence(parts, True, 0.5),
    "elu_celu": lambda x: F.celu(x, 2),
    "clamp_softshrink": lambda x: F.softshrink(x, 0.7),
    "masked_fill_hardshrink": lambda x: F.hardshrink(x, 0.7),
    "masked_fill_threshold": lambda x: F.threshold(x, 0.3, -0.7),
    "softmax_softmin": lambda x: F.softmin(x, 0),
    "add_in_place": torch.add,
    "sub_in_place": torch.sub,
    "mul_in_place": torch.mul,
    "div_in_place": torch.div,
    "mul_copied": lambda x, y: y * x,
    "clamp_in_place": lambda x: x.clamp(-0.7, 1),
    "mul_filled": lambda x: 2 * x,
    "logical_or_isclose": lambda x, y: torch.isclose(x, y, 0.1, 0.1),
    "scatter_add_bincount": lambda x, w: w.new_zeros(5).index_add(0, x, w),
    "clone_contiguous": lambda x: x.t().contiguous(),
    "reshape_view": lambda x: x.view(2, -1),
    "matmul_mm": torch.mm,
    "avg_pool2d_of_volumes": lambda x: F.avg_pool3d(x, 2, 1, (0, 1, 1)),
    "adaptive_avg_pool2d_of_volumes": lambda x: F.adaptive_avg_pool3d(x, (3, 2, 4)),
    "adaptive_max_pool2d_of_volumes": lambda x: F.adaptive_max_pool3d(x, (3, 2, 4)),
    "conv_transpose2d_fold": lambda x: F.fold(x, (4, 5), (2, 3), padding=(0, 1), stride=2),
    "avg_pool2d_in_local_response_norm": lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 2),
    "gather_grid_sample": lambda x, grid: F.grid_sample(x, grid, align_corners=False),
    "matmul_affine_grid": lambda theta: F.affine_grid(theta, (2, 1, 3, 4), align_corners=False),
    "norm_pairwise_distance": lambda x, y: F.pairwise_distance(x, y, 3, 0.1, True),
    "norm_triplet_margin_loss": lambda *x: F.triplet_margin_loss(*x, swap=True, reduction="sum"),
    "norm_triplet_margin_with_distance_loss": lambda *x: F.triplet_margin_with_distance_loss(
        *x, distance_function=lambda a, b: (a - b).norm(dim=-1), margin=0.7, reduction="sum"),
    "relu_multi_margin_loss": lambda x, t: F.multi_margin_loss(x, t, 2, reduction="sum"),
    "relu_multilabel_margin_loss": lambda x, t: F.multilabel_margin_loss(x, t, reduction="sum"),
    "binary_cross_entropy_with_logits_in_multilabel_soft_margin_loss": lambda x, t: F.multilabel_soft_margin_loss(
        x, t, reduction="sum"),
    "cosine_similarity_in_cosine_embedding_loss": lambda x, y, t: F.cosine_embedding_loss(x, y, t, 0.1, reduction="sum"),
    "mul_margin_ranking_loss": lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.3, reduction="sum"),
    "gather_ctc_loss": lambda x, *more: F.ctc_loss(x.log_softmax(2), *more, reduction="sum"),
    "gather_ctc_loss_of_joined_targets": lambda x, *more: F.ctc_loss(x.log_softmax(2), *more),
    "cosine_similarity": F.cosine_similarity,
    "cosine_similarity_broadcast": lambda x, y: F.cosine_similarity(x, y, 0),
    "cosine_similarity_of_tiny": F.cosine_similarity,
}
for name, equation in {
    "matmul_einsum_product": "ik,kj->ji", "matmul_einsum_implicit": "b...k,kb",
    "matmul_einsum_heads": "bqhd,bkhd->bhqk", "matmul_einsum_ellipsis": "...ij,...jk->...ik",
    "sum_einsum_ones": "ij,jk->k", "matmul_einsum_diagonals": "iijk,kli->jl",
    "matmul_einsum_three": "ab,bcd,de->ace", "sum_einsum_trace": "ii", "sum_einsum_lone": "ij,kl->jl",
    "mul_einsum_elements": "...,i...->...i",
}.items():
    ROWS[name] = lambda *x, equation=equation: torch.einsum(equation, *x)
# Functions of PyTorch by their own name.
for name in """abs acos acosh add asin asinh atan atan2 atanh hypot logit bitwise_and bitwise_left_shift bitwise_not bitwise_or
        bitwise_right_shift bitwise_xor ceil clone copysign cos cosh div dot gcd i0 eq erf erfc erfinv exp exp2 expm1 floor
        fmod frac ge gt isfinite isinf isnan le lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and
        logical_not logical_or logical_xor lt matmul maximum minimum mul ne neg pow reciprocal relu remainder round
        rsqrt sigmoid sign sin sinh sqrt square sub tan tanh tril trunc where""".split():
    ROWS[name] = getattr(torch, name)
for name in "conv2d gelu hardswish linear mish relu6 selu silu softplus softsign".split():
    ROWS[name] = getattr(F, name)
# The same of other inputs: rows such as matmul_batched.
for name in """erf_far exp_far expm1_far gelu_far gelu_tanh_far lgamma_of_negative log_far log1p_far matmul_1d_1d
        matmul_1d_3d matmul_3d_1d matmul_batched matmul_vector maximum_of_ties minimum_of_ties pow_of_ties rsqrt_far
        sigmoid_far silu_far softplus_far tanh_far abs_special acosh_special asinh_special atan2_special atanh_special
        copysign_special erfc_special erfinv_special fmod_special frac_special lgamma_special logaddexp_special
        cos_special erf_special exp_special expm1_special log_special log1p_special
        maximum_special minimum_special pow_special reciprocal_special relu_special remainder_by_zero
        remainder_special rsqrt_special sigmoid_special silu_special sin_special softplus_special sqrt_special
        square_special tanh_special matmul_special conv2d_special abs_in_place neg_in_place square_in_place
        sqrt_in_place rsqrt_in_place exp_in_place log_in_place reciprocal_in_place floor_in_place ceil_in_place
        round_in_place relu_in_place sigmoid_in_place tanh_in_place""".split():
    ROWS[name] = ROWS[max((known for known in ROWS if name.startswith(known + "_")), key=len)]
for name, number in {"eq": 1, "ne": 1, "lt": 0.3, "le": 0.3, "gt": 0.3, "ge": 0.3}.items():
    ROWS[name + "_scalar"] = lambda x, compare=ROWS[name], number=number: compare(x, torch.tensor(number))
for how in "mean sum none".split():
    for name, function in {"mse_loss": F.mse_loss, "cross_entropy_probabilities": F.cross_entropy, "kl_div": F.kl_div,
                           "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits}.items():
        ROWS[f"{name}_{how}"] = lambda x, y, function=function, how=how: function(x, y, reduction=how)
    ROWS["nll_loss_" + how] = lambda x, t, how=how: F.nll_loss(x, t, reduction=how, ignore_index=1)
    for label, options in {"": {}, "smooth_": {"label_smoothing": 0.3}, "ignore_": {"ignore_index": 1}}.items():
        ROWS["cross_entropy_" + label + how] = lambda x, t, how=how, options=options: F.cross_entropy(
            x, t, reduction=how, **options)
for how in "mean sum".split():
    ROWS["cross_entropy_ignore_all_" + how] = lambda x, how=how: F.cross_entropy(
        x, torch.full((6,), 7), reduction=how, ignore_index=7)


for name in "sum mean prod norm any all nonzero".split():
    ROWS[name + "_of_0d"] = getattr(torch, name)
for name in "mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits".split():
    ROWS[name + "_special"] = lambda x, y, function=getattr(F, name): function(x, y, reduction="none")
ROWS["scatter_to_the_same"] = lambda x, i, source: scatter(x, 0, i, source)
ROWS.update(EXTREMES)


def tensor(t: dict) -> torch.Tensor:
    dtype = {"f64": torch.float64, "i64": torch.int64, "bool": torch.bool}[t["dtype"]]
    return torch.tensor([float(v) for v in t["data"]], dtype=dtype).reshape(t["shape"])


def numbers(t: torch.Tensor) -> str:
    """13 digits; what JSON has no numbers for as text."""
    values = t.detach().double().flatten().tolist()
    return "[" + ",".join(f"{v:.13g}" if math.isfinite(v) else f'"{v}"' for v in values) + "]"


def reference(name: str, row: dict) -> str:
    if name in WITHOUT:
        return f'{{"without": {json.dumps(WITHOUT[name])}}}'
    x = [tensor(t).requires_grad_(wanted) for t, wanted in zip(row["inputs"], row["wanted"])]
    y = ROWS[name](*x)
    dx = []
    if "dy" in row:
        leaves = [t for t in x if t.requires_grad]
        dy = tensor(row["dy"])
        assert y.shape == dy.shape, f"{name}: PyTorch's result has shape {list(y.shape)}, ours {list(dy.shape)}"
        dx = torch.autograd.grad(y, leaves, dy, allow_unused=True)
        dx = [torch.zeros_like(leaf) if t is None else t for leaf, t in zip(leaves, dx)]
    return (f'{{"checksum": "{row["checksum"]}", "shape": {list(y.shape)}, "y": {numbers(y)}, '
            f'"dx": [{", ".join(map(numbers, dx))}]}}')


def main() -> None:
    rows = json.load(sys.stdin)
    unknown = [name for name in rows if name not in ROWS and name not in WITHOUT]
    stale = [name for name in [*ROWS, *WITHOUT] if name not in rows]
    if unknown or stale:
        sys.exit(f"rows that are not in ROWS or WITHOUT: {unknown}; names of no row: {stale}")
    lines = [f'"{name}": {reference(name, row)}' for name, row in rows.items()]
    made = f'"made": "by rows_reference.py with torch {torch.__version__}, f64"'
    Path(__file__).with_suffix(".json").write_text("{" + ",\n".join([made, *lines]) + "}\n")


if __name__ == "__main__":
    main()
