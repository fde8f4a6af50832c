"""PyTorch's equivalents of the rows of tests/support/op_rows/extremes.cpp that differ from those in
rows_reference.py, which reads this. Where ours differ on purpose, the reason is here."""
import math

import torch
import torch.nn.functional as F


def padded(sizes, mode):
    return lambda x: F.pad(x, sizes, mode=mode)


def with_ends(gelu):
    """The slopes at infinities are 1 and 0, their limits, not NaN: f16 may hold no other sum before a fused gelu."""
    def run(x):
        ends = x.isinf()
        at_ends = x.relu() + torch.where(x == -math.inf, math.nan, 0.0)
        return torch.where(ends, at_ends, gelu(torch.where(ends, 0.0, x)))
    return run


EXTREMES = {
    "gelu_special": with_ends(F.gelu),
    "gelu_tanh_special": with_ends(lambda x: F.gelu(x, approximate="tanh")),
    "pow_scalar_half": lambda x: x.pow(torch.tensor(0.5, dtype=x.dtype)),  # x**0.5 is NaN for -inf, unlike C's pow
    "pow_scalar_one": lambda x: x**1,
    "pow_scalar_minus_one": lambda x: x**-1,
    "where_beside_nan": torch.where,
    "masked_fill_of_nan": lambda x, mask: x.masked_fill(mask, 3),
    # reductions
    "prod_of_a_zero_or_two": lambda x: x.prod(1),
    "cumprod_of_a_zero_or_two": lambda x: x.cumprod(1),
    "cumprod_special": lambda x: x.cumprod(1),
    "cumsum_special": lambda x: x.cumsum(1),
    "logsumexp_special": lambda x: x.logsumexp(1),
    "softmax_special": lambda x: x.softmax(1),
    "log_softmax_special": lambda x: x.log_softmax(1),
    "sum_special": lambda x: x.sum(1),
    "mean_special": lambda x: x.mean(1),
    "max_special": lambda x: x.amax(1),
    "min_special": lambda x: x.amin(1),
    "argmax_special": lambda x: x.argmax(1),
    "argmin_special": lambda x: x.argmin(1),
    "sum_var_special": lambda x: x.var(1),
    "sum_var_of_one": lambda x: x.var(0),
    "sum_var_0_of_one": lambda x: x.var(0, unbiased=False),
    "sqrt_stddev_of_one": lambda x: x.std(0),
    "sqrt_stddev_0_of_one": lambda x: x.std(0, unbiased=False),
    "sum_of_none": lambda x: x.sum(0),
    "mean_of_none": lambda x: x.mean(0),
    "prod_of_none": lambda x: x.prod(0),
    "max_of_none": lambda x: x.amax(1),
    "any_of_none": lambda x: x.any(0),
    "all_of_none": lambda x: x.all(0),
    "logsumexp_of_none": lambda x: x.logsumexp(0),
    "sum_var_of_none": lambda x: x.var(0),
    "sqrt_stddev_of_none": lambda x: x.std(0),
    "cumsum_of_none": lambda x: x.cumsum(0),
    "cumprod_of_none": lambda x: x.cumprod(1),
    "max_of_0d": lambda x: x.amax(),
    "logsumexp_of_0d": lambda x: x.logsumexp(0),
    "sum_var_0_of_0d": lambda x: x.var(unbiased=False),
    "sqrt_stddev_of_0d": lambda x: x.std(),
    "cat_stack_of_0d": lambda x: torch.stack([x, 2 * x]),
    "gather_masked_select_of_0d": lambda x: x.masked_select(x > -9),
    # indices
    "gather_sort_special": lambda x: x.sort(stable=True)[0],
    "gather_sort_special_descending": lambda x: x.sort(stable=True, descending=True)[0],
    "argsort_special": lambda x: x.sort(stable=True)[1],
    "argsort_special_descending": lambda x: x.sort(stable=True, descending=True)[1],
    "gather_topk_special": lambda x: x.sort(stable=True, descending=True)[0][:, :4],
    "gather_topk_special_smallest": lambda x: x.sort(stable=True)[0][:, :5],
    "gather_of_the_same": lambda x, i: x.gather(0, i),
    "scatter_add_to_the_same": lambda x, i, source: x.scatter_add(0, i, source),
    "scatter_add_index_add_to_the_same": lambda x, i, source: x.index_add(0, i, source),
    "scatter_add_index_put_to_the_same": lambda x, i, source: x.index_put((i,), source, accumulate=True),
    "gather_index_select_of_the_same": lambda x, i: x.index_select(0, i),
    "gather_index_of_the_same": lambda x, i, j: x[i, j],
    "embedding_of_the_same": lambda table, i: F.embedding(i, table),
    "embedding_of_padding_alone": lambda table, i: F.embedding(i, table, padding_idx=2),
    "gather_masked_select_none": torch.masked_select,
    "gather_masked_select_all": torch.masked_select,
    "nonzero_special": torch.nonzero,
    "nonzero_of_zeros": lambda x: (x == 9).nonzero(),
    "nonzero_of_ones": lambda x: (x != 9).nonzero(),
    # views
    "unfold_wholly_overlapping": lambda x: x.unfold(0, 6, 1),
    "unfold_of_one": lambda x: x.unfold(0, 1, 2),
    "flip_several": lambda x: x.flip(0, 2),
    "cat_roll_whole": lambda x: x.roll(3, 1),
    "cat_roll_far": lambda x: x.roll((-5, 7), (2, 1)),
    "pad_largest_crop": padded((-1, -3, -3, 0), "constant"),
    "gather_pad_largest_reflect": padded((3, 3, 2, 2), "reflect"),
    "gather_pad_largest_circular": padded((4, 4, 3, 3), "circular"),
    "gather_pad_far_replicate": padded((9, 0, 0, 9), "replicate"),
    "gather_pad_replicate_of_one": padded((2, 1), "replicate"),
    # losses
    "cross_entropy_special": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "cross_entropy_of_weights_with_zero": F.cross_entropy,
    "cross_entropy_of_weights_smoothed_sum": lambda x, t, w: F.cross_entropy(
        x, t, w, reduction="sum", label_smoothing=0.4),
    "cross_entropy_of_zero_weight_alone": F.cross_entropy,
    "nll_loss_ignore_all": lambda x, t: F.nll_loss(x, t, ignore_index=1),
    "nll_loss_of_minus_infinity": lambda x, t: F.nll_loss(x, t, reduction="none"),
    "binary_cross_entropy_at_0_and_1": lambda x, t: F.binary_cross_entropy(x, t, reduction="none"),
    "mse_loss_of_none": F.mse_loss,
    "cross_entropy_of_none": F.cross_entropy,
    "cosine_similarity_of_zeros": F.cosine_similarity,
    # networks
    "max_pool2d_special": lambda x: F.max_pool2d(x, 2, 1),
    "max_pool2d_of_a_volume": lambda x: F.max_pool3d(x.reshape(1, 1, 4, 2, 2), (2, 1, 2), 1),
    "max_pool2d_special_padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d_of_minus_infinity": lambda x: F.max_pool2d(x, 2, 2, 1),
    "adaptive_max_pool2d_special": lambda x: F.adaptive_max_pool2d(x, 3),
    "adaptive_avg_pool2d_uneven": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive_avg_pool2d_larger": lambda x: F.adaptive_avg_pool2d(x, (6, 9)),
    "adaptive_max_pool2d_larger": lambda x: F.adaptive_max_pool2d(x, (6, 9)),
    "avg_pool2d_ceil_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool2d_ceil_with_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "interpolate_to_the_same_size": lambda x: F.interpolate(x, (5, 7), mode="bilinear"),
    "interpolate_corners_to_one": lambda x: F.interpolate(x, (1, 1), mode="bilinear", align_corners=True),
    "interpolate_corners_of_one": lambda x: F.interpolate(x, (3, 2), mode="bilinear", align_corners=True),
    "interpolate_to_one": lambda x: F.interpolate(x, (1, 1), mode="bilinear"),
    "interpolate_nearest_to_one": lambda x: F.interpolate(x, (1, 1)),
    "layer_norm_of_constants": lambda x: F.layer_norm(x, [4]),
    "layer_norm_special": lambda x: F.layer_norm(x, [3]),
    "layer_norm_of_one": lambda x: F.layer_norm(x, [1]),
    "rms_norm_of_zeros": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt(),
}
for name, equation in {
    "matmul_einsum_repeated_with_ellipsis": "...ii,...ij->...j", "sum_einsum_ellipsis_of_none": "i...->...",
    "mul_einsum_numbers": ",->", "matmul_einsum_of_none": "ij,jk->ik",
}.items():
    EXTREMES[name] = lambda *x, equation=equation: torch.einsum(equation, *x)
# The gradient of norm beside NaN is 0, which hides it; those of amax and amin are NaN.
for p, name in {0: "0", 0.5: "half", 1: "1", 2: "2", 3: "3", math.inf: "infinity", -math.inf: "minus_infinity"}.items():
    EXTREMES[f"norm_{name}_special"] = lambda x, p=p: x.norm(p, 1)
    EXTREMES[f"norm_{name}_of_none"] = lambda x, p=p: x.norm(p, int(math.isinf(p)))
EXTREMES["norm_infinity_special"] = lambda x: x.abs().amax(1)
EXTREMES["norm_minus_infinity_special"] = lambda x: x.abs().amin(1)
for diagonal, name in {-3: "minus_3", -2: "minus_2", 0: "0", 1: "1", 3: "3", 4: "4"}.items():
    EXTREMES["tril_at_" + name] = lambda x, diagonal=diagonal: x.tril(diagonal)
    EXTREMES["triu_at_" + name] = lambda x, diagonal=diagonal: x.triu(diagonal)
