// Functions that are made of other ops, which have their own rows.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

namespace {

OpCase row(std::string op, std::string label, std::vector<Input> inputs,
           std::function<Tensor(In)> run, std::vector<Shape> empty = {}) {
  return {.op = std::move(op),
          .inputs = std::move(inputs),
          .run = std::move(run),
          .label = std::move(label),
          .empty = std::move(empty)};
}
// A row whose result has a dtype of its own.
OpCase of_own_dtype(OpCase c) {
  c.composite = true;
  return c;
}
OpCase in_f32(OpCase c) {
  c.half = false;
  return c;
}
OpCase first_repeats(OpCase c) {
  c.repeat = {0, -1, -1, -1};
  return c;
}
// Both results of a function, as one.
Tensor both(const Tensor& a, const Tensor& b) { return cat({flatten(a), flatten(b)}); }

std::vector<OpCase> placed() {
  const auto i = [](const Shape& shape, double high) {
    return Input{shape, 0, high, Input::Index};
  };
  const auto reduced = [&](std::string op, std::string label, ScatterMode mode, bool self) {
    return row(std::move(op), std::move(label), {{{6, 3}}, i({9, 2}, 4), {{9, 3}}}, [=](In x) {
      return scatter_reduce(x[0], 0, x[1], x[2], mode, {.include_self = self});
    });
  };
  return {
      reduced("scatter_add", "reduce_sum", ScatterMode::Sum, true),
      reduced("scatter_add", "reduce_sum_without_self", ScatterMode::Sum, false),
      reduced("scatter_add", "reduce_mean", ScatterMode::Mean, true),
      reduced("scatter_add", "reduce_mean_without_self", ScatterMode::Mean, false),
      row("scatter", "index_fill", {{{2, 5, 3}}, i({3}, 5)},
          [](In x) { return index_fill(x[0], 1, x[1], -1.5); }),
      row("scatter", "index_copy",
          {{{2, 5, 3}}, {.shape = {3}, .kind = Input::Index, .values = {4, 0, 2}}, {{2, 3, 3}}},
          [](In x) { return index_copy(x[0], -2, x[1], x[2]); }),
      row("gather", "take_along_dim", {{{3, 1, 4}}, i({1, 2, 5}, 4)},
          [](In x) { return take_along_dim(x[0], x[1], 2); }),
      row("gather", "take_along_dim_flat", {{{3, 4}}, i({2, 5}, 12)},
          [](In x) { return take_along_dim(x[0], x[1]); }),
      row("scatter", "number", {{{3, 4}}, i({2, 3}, 3)},
          [](In x) { return scatter(x[0], 0, x[1], 1.5); }),
      row("scatter", "index_put_number", {{{3, 4}}, i({5}, 3)},
          [](In x) { return index_put(x[0], {x[1]}, -2.5); }),
      row("place_diagonal", "diag_embed", {{{2, 3}}},
          [](In x) { return diag_embed(x[0], -1, 0, 2); }),
      row("where", "masked_scatter", {{{3, 4}}, {{2, 3, 1}, 0, 1, Input::Mask}, {{30}}},
          [](In x) { return masked_scatter(x[0], x[1], x[2]); }),
  };
}

std::vector<OpCase> statistics() {
  const auto holes = [](const Shape& shape) {
    return Input{.shape = shape, .kind = Input::Mask, .values = {0, 0, 1, 0, 1}};
  };
  const auto with_nan = [](In x) { return masked_fill(x[0], x[1], NAN); };
  const Input ties{.shape = {4, 7}, .low = -2, .high = 2, .kind = Input::Tied};
  const Input times{{5}, 0, 4, Input::Index}, weights{{5}, 0.2, 1, Input::Constant};
  return {
      row("sum", "nansum", {{{3, 4}}, holes({3, 4})},
          [=](In x) { return nansum(with_nan(x), {1}); }),
      first_repeats(row("sum", "nanmean", {{{3, 4}}, holes({3, 4})},
                        [=](In x) { return nanmean(with_nan(x), {0}, true); })),
      row("sum", "var_mean", {{{3, 4, 2}}},
          [](In x) {
            const auto [v, m] = var_mean(x[0], {0, 2}, true, 0);
            return both(v, m);
          }),
      row("sqrt", "std_mean", {{{3, 4}}},
          [](In x) {
            const auto [s, m] = std_mean(x[0], {1});
            return both(s, m);
          }),
      row("max", "aminmax", {{{4, 7}}},
          [](In x) {
            const auto [low, high] = aminmax(x[0], {1});
            return both(low, high);
          }),
      row("matmul", "cov", {{{3, 5}}}, [](In x) { return cov(x[0]); }),
      row("matmul", "cov_of_one", {{{5}}}, [](In x) { return cov(x[0], {.correction = 0}); }),
      row("matmul", "cov_weighted", {{{3, 5}}, times, weights},
          [](In x) { return cov(x[0], {.fweights = x[1], .aweights = x[2]}); }),
      row("matmul", "cov_of_times", {{{3, 5}}, times},
          [](In x) { return cov(x[0], {.correction = 2, .fweights = x[1]}); }),
      row("matmul", "corrcoef", {{{3, 5}}}, [](In x) { return corrcoef(x[0]); }),
      predicate(
          row("scatter_add", "histc", {{{40}}}, [](In x) { return histc(x[0], 7, -1, 1.5); })),
      predicate(row("scatter_add", "histc_of_all", {ties}, [](In x) { return histc(x[0], 4); })),
      predicate(row("eq", "isin", {ties, {.shape = {3}, .low = -2, .high = 2, .kind = Input::Tied}},
                    [](In x) { return isin(x[0], x[1]); })),
      predicate(row("logical_not", "isin", {ties, {.shape = {3}, .kind = Input::Tied}},
                    [](In x) { return isin(x[0], x[1], true); })),
      predicate(row("sum", "count_nonzero", {ties}, [](In x) { return count_nonzero(x[0], {1}); })),
      row("lerp", "quantiles", {{{4, 7}}},
          [](In x) {
            return quantile(x[0], from({0.5, 0, 0.3}, {3}, f64).to(x[0].device()), 0, true);
          }),
      first_repeats(row("gather", "nanmedian", {{{5, 4}}, holes({5, 4})},
                        [=](In x) { return nanmedian(with_nan(x), 0).values; })),
      row("median", "nanmedian_of_all", {{{3, 5}}, {{3, 5}, 0, 1, Input::Mask}},
          [=](In x) { return nanmedian(with_nan(x)); }),
      first_repeats(row("where", "nanquantile", {{{5, 4}}, holes({5, 4})},
                        [=](In x) { return nanquantile(with_nan(x), 0.3, 0, true); })),
      row("where", "nanquantiles", {{{4, 6}}, {{4, 6}, 0, 1, Input::Mask}},
          [=](In x) {
            return nanquantile(with_nan(x), from({1, 0.4}, {2}, f64).to(x[0].device()), 1);
          }),
      row("log", "xlogy", {{{3, 4}}, {{2, 1, 4}, 0.1, 2}}, [](In x) { return xlogy(x[0], x[1]); }),
      row("mul", "xlogy_of_number", {{{3, 4}, 0.1, 2}}, [](In x) { return xlogy(1.5, x[0]); }),
      row("mul", "xlogy_with_number", {{{3, 4}}}, [](In x) { return xlogy(x[0], 0.3); }),
      row("gather", "kthvalue", {{{4, 7}}}, [](In x) { return kthvalue(x[0], 3).values; }),
      row("gather", "kthvalue_first", {{{4, 7}}},
          [](In x) { return kthvalue(x[0], 2, 0, true).values; }),
      row("sub", "diff", {{{3, 5}}}, [](In x) { return diff(x[0], 2); }),
      row("sub", "diff_beside", {{{3, 4}}, {{1, 4}}, {{2, 4}}},
          [](In x) { return diff(x[0], 1, 0, x[1], x[2]); }),
      predicate(row("logical_xor", "diff", {{{3, 5}, 0, 1, Input::Mask}},
                    [](In x) { return diff(x[0]); })),
  };
}

std::vector<OpCase> rearranged() {
  const Input times{{4}, 0, 4, Input::Index};
  return {
      row("gather", "repeat_interleave_each", {{{2, 4, 3}}, times},
          [](In x) { return repeat_interleave(x[0], x[1], -2); }),
      row("gather", "repeat_interleave_flat", {{{2, 3}}},
          [](In x) { return repeat_interleave(x[0], 2); }),
      row("cat", "roll_of_two", {{{3, 4, 5}}}, [](In x) { return roll(x[0], {1, -7}, {0, -1}); }),
      row("cat", "roll_flat", {{{3, 4}}}, [](In x) { return roll(x[0], 5); }),
      row("reshape", "unflatten", {{{2, 12, 3}}},
          [](In x) { return unflatten(x[0], -2, {3, -1, 2}); }),
      row("tanh", "tanhshrink", {{{3, 5}}}, [](In x) { return tanhshrink(x[0]); }),
      row("max_pool2d", "by_position", {{{1, 2, 7, 6}}},
          [](In x) { return max_pool2d(x[0], {3, 2}, {2, 1}, 1); }),
      row("avg_pool2d", "by_position", {{{2, 7, 6}}},
          [](In x) { return avg_pool2d(x[0], 3, 2, {1, 0}); }),
      row("gather", "max_pool2d_with_indices", {{{2, 2, 7, 6}}},
          [](In x) {
            return max_pool2d_with_indices(x[0], {3, 2}, {.stride = {2, 1}, .padding = 1}).values;
          },
          {{0, 2, 7, 6}}),
      row("scatter", "max_unpool2d", {{{2, 2, 3, 2}}, {{2, 2, 7, 5}, -2, 2, Input::Constant}},
          [](In x) {
            const Tensor at = max_pool2d_with_indices(x[1], 2).indices;
            return max_unpool2d(x[0], at, 2, {}, Size2(7, 5));
          }),
      row("scatter", "max_unpool2d_of_one", {{{2, 2, 2}}, {{2, 5, 5}, -2, 2, Input::Constant}},
          [](In x) {
            const Tensor at = max_pool2d_with_indices(x[1], 2, {.stride = 3}).indices;
            return max_unpool2d(x[0], at, 2, {.stride = 3});
          }),
      row("max_pool2d", "of_lines_by_position", {{{2, 3, 8}}},
          [](In x) { return max_pool1d(x[0], 3, 2, 1); }),
      row("avg_pool2d", "of_lines_by_position", {{{2, 3, 8}}},
          [](In x) { return avg_pool1d(x[0], 3, 2); }),
      row("conv2d", "by_position", {{{1, 4, 6, 7}}, {{2, 2, 3, 2}}},
          [](In x) { return conv2d(x[0], x[1], {}, {2, 1}, {0, 2}, 1, 2); }),
      row("conv2d", "of_lines_by_position", {{{1, 4, 9}}, {{3, 4, 3}}, {{3}}},
          [](In x) { return conv1d(x[0], x[1], x[2], 2, 1, 2); }),
  };
}

std::vector<OpCase> products_of_parts() {
  const AddmmOptions scaled{.beta = -0.5, .alpha = 2};
  return {
      row("addmm", "of_batches", {{{2, 3, 5}}, {{2, 3, 4}}, {{2, 4, 5}}},
          [](In x) { return baddbmm(x[0], x[1], x[2]); }),
      row("addmm", "of_batches_and_a_row", {{{1, 5}}, {{2, 3, 4}}, {{2, 4, 5}}},
          [=](In x) { return baddbmm(x[0], x[1], x[2], scaled); }),
      row("matmul", "tensordot", {{{2, 3, 4}}, {{4, 5, 3}}},
          [](In x) { return tensordot(x[0], x[1], {1, -1}, {2, 0}); }),
      row("matmul", "tensordot_of_last", {{{2, 3, 4}}, {{3, 4, 5}}},
          [](In x) { return tensordot(x[0], x[1]); }),
      row("matmul", "power", {{{2, 3, 3}}}, [](In x) { return matrix_power(x[0], 5); }),
      {.op = "matmul",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return matrix_power(x[0], -3); },
       .label = "power_of_inverse",
       .cpu_only = true},
      row("mul", "kron", {{{2, 3}}, {{3, 2}}}, [](In x) { return kron(x[0], x[1]); }),
      row("mul", "kron_of_ranks", {{{3}}, {{2, 1, 2}}}, [](In x) { return kron(x[0], x[1]); }),
      row("mul", "cross", {{{4, 3}}, {{2, 1, 3}}}, [](In x) { return cross(x[0], x[1]); }),
      row("mul", "cross_first", {{{3, 4}}, {{3, 4}}}, [](In x) { return cross(x[0], x[1], 0); }),
      row("softmax", "gumbel", {{{3, 5}}},
          [](In x) {
            const Seed seed(3);
            return gumbel_softmax(x[0], 0.7);
          }),
  };
}

std::vector<OpCase> resized() {
  const auto image = [](std::string op, std::string label, const Shape& x, Size2 size,
                        InterpolateOptions o) {
    return row(std::move(op), std::move(label), {{x}},
               [=](In in) { return interpolate(in[0], size, o); });
  };
  const auto volume = [](std::string op, std::string label, Size3 size, InterpolateOptions o) {
    return row(std::move(op), std::move(label), {{{1, 2, 3, 4, 5}}},
               [=](In in) { return interpolate3d(in[0], size, o); });
  };
  const auto by_factor = [](std::string label, const Shape& x, InterpolateOptions o) {
    return row("interpolate", std::move(label), {{x}},
               [=](In in) { return interpolate(in[0], o); });
  };
  using enum Interpolation;
  return {
      by_factor("by_two", {1, 2, 3, 4}, {.scale_factor = 2}),
      by_factor("of_lines", {2, 3, 5}, {.scale_factor = 2, .mode = Bilinear}),
      row("interpolate", "of_lines_to_size", {{{1, 2, 8}}},
          [](In in) { return interpolate(in[0], 3); }),
      by_factor("by_half", {1, 2, 6, 4}, {.scale_factor = 0.5, .mode = Bilinear}),
      by_factor("by_fraction", {1, 1, 4, 6}, {.scale_factor = 1.5, .mode = Bicubic}),
      by_factor("by_half_of_odd", {1, 2, 5, 7}, {.scale_factor = 0.5, .mode = Bilinear}),
      by_factor("nearest_rounded_down", {1, 2, 5, 7}, {.scale_factor = 1.3}),
      by_factor("bicubic_rounded_down", {1, 1, 4, 5}, {.scale_factor = 1.7, .mode = Bicubic}),
      by_factor("corners_rounded_down", {1, 1, 4, 5},
                {.scale_factor = 1.7, .mode = Bilinear, .align_corners = true}),
      by_factor("of_lines_rounded_down", {2, 3, 5}, {.scale_factor = 0.7, .mode = Bilinear}),
      row("sum", "antialias_rounded_down", {{{1, 2, 9, 7}}},
          [](In in) {
            return interpolate(in[0], {.scale_factor = 0.4, .mode = Bilinear, .antialias = true});
          }),
      image("adaptive_avg_pool2d", "in_interpolate", {1, 2, 5, 7}, {3, 4}, {.mode = Area}),
      image("sum", "antialias", {1, 2, 9, 7}, {4, 3}, {.mode = Bilinear, .antialias = true}),
      image("sum", "antialias_larger", {1, 2, 3, 7}, {5, 3}, {.mode = Bilinear, .antialias = true}),
      image("sum", "antialias_cubic", {1, 1, 12, 9}, {5, 2}, {.mode = Bicubic, .antialias = true}),
      image("sum", "antialias_corners", {1, 2, 9, 7}, {4, 3},
            {.mode = Bilinear, .align_corners = true, .antialias = true}),
      volume("interpolate", "of_volumes", {5, 3, 7}, {}),
      volume("interpolate", "trilinear", {5, 3, 7}, {.mode = Trilinear}),
      volume("interpolate", "trilinear_corners", {2, 7, 3},
             {.mode = Trilinear, .align_corners = true}),
      volume("adaptive_avg_pool2d", "in_interpolate3d", {2, 3, 3}, {.mode = Area}),
  };
}

std::vector<OpCase> others() {
  const auto to_all = [](double p) { return [p](In x) { return cdist(x[0], x[1], p); }; };
  const auto bags = [](EmbeddingBagOptions o) {
    return [o](In x) {
      return embedding_bag(x[0], x[1], from({0, 3, 3, 5}, {4}, i64).to(x[1].device()), o);
    };
  };
  const std::vector<Input> points{{{2, 3, 4}}, {{5, 4}}}, many{{{2, 27, 3}}, {{4, 3}}};
  const std::vector<Input> words{{{5, 3}}, {{9}, 0, 5, Input::Index}};
  return {
      {.op = "where",
       .inputs = {{{3, 4}}, {{4}, -2, 1}, {{3, 1}, -1, 2}},
       .run = [](In x) { return clamp(x[0], x[1], x[2]); },
       .label = "clamp"},
      {.op = "where",
       .inputs = {{{4}}, {{3, 1}}},
       .run = [](In x) { return clamp(x[0], {}, x[1]); },
       .label = "clamp_from_above"},
      {.op = "expand",
       .inputs = {{{3}}, {{4}}, {{2}}},
       .run = [](In x) { return stack(meshgrid(x)); },
       .label = "meshgrid"},
      {.op = "expand",
       .inputs = {{{3}}, {{4}}, {{2}}},
       .run = [](In x) { return stack(meshgrid(x, "xy")); },
       .label = "meshgrid_xy"},
      {.op = "permute",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return movedim(x[0], {0, -1}, {-1, 0}); },
       .label = "movedim"},
      {.op = "place_diagonal",
       .inputs = {{{4}}},
       .run = [](In x) { return diag(x[0], -2); },
       .label = "diag"},
      {.op = "diagonal",
       .inputs = {{{3, 4}}},
       .run = [](In x) { return trace(x[0]); },
       .label = "trace"},
      {.op = "diagonal",
       .inputs = {{{3, 4, 2}}},
       .run = [](In x) { return diagonal(x[0]); },
       .label = "of_first_dimensions"},
      {.op = "clamp",
       .inputs = {{{3, 4}, 1, 2}},
       .run = [](In x) { return nan_to_num(x[0] + log(floor(x[0].detach() - 0.5)), 7, 8, -9); },
       .label = "nan_to_num"},
      {.op = "gather",
       .inputs = {{{5, 4}}},
       .run = [](In x) { return median(x[0], 0).values; },
       .label = "median"},
      {.op = "gather",
       .inputs = {{{4, 5}}},
       .run = [](In x) { return quantile(x[0], 0.3, -1); },
       .label = "quantile"},
      row("gather", "quantile_of_all", {{{4, 5}}}, [](In x) { return quantile(x[0], 0.5); }),
      {.op = "log",
       .inputs = {{{3, 4}}, {{3, 4}}, {{3}, 0.5, 2}},
       .run = [](In x) { return gaussian_nll_loss(x[0], x[1], x[2], {.full = true}); },
       .label = "gaussian_nll"},
      {.op = "poisson_nll_loss",
       .inputs = {{{3, 4}}, {{3, 4}, 0, 4}},
       .run = [](In x) { return poisson_nll_loss(x[0], x[1], {.full = true}); },
       .label = "full"},
      {.op = "soft_margin_loss",
       .inputs = {{{3, 4}}},
       .run =
           [](In x) {
             return soft_margin_loss(x[0], sign(x[0].detach())) +
                    hinge_embedding_loss(x[0], sign(x[0].detach()), {.margin = 0.7});
           },
       .label = "and_hinge"},
      in_f32(row("norm", "cdist", points, to_all(2))),
      in_f32(row("norm", "cdist_1", points, to_all(1))),
      in_f32(row("norm", "cdist_3", points, to_all(3))),
      in_f32(row("norm", "cdist_inf", points, to_all(INFINITY))),
      in_f32(row("matmul", "cdist", many, to_all(2))),
      {.op = "conv_transpose2d",
       .inputs = {{{2, 4, 5}}, {{4, 3, 3}}, {{6}}},
       .run =
           [](In x) {
             return conv_transpose1d(
                 x[0], x[1], x[2],
                 {.stride = 2, .padding = 1, .output_padding = 1, .dilation = 2, .groups = 2});
           },
       .label = "1d"},
      {.op = "embedding", .inputs = words, .run = bags({}), .label = "bag"},
      {.op = "embedding", .inputs = words, .run = bags({.mode = BagMode::Sum}), .label = "bag_sum"},
      {.op = "embedding",
       .inputs = {{{5, 3}}, {{9}, 0, 5, Input::Index}, {{9}}},
       .run =
           [](In x) {
             return embedding_bag(x[0], x[1], from({0, 3, 3, 5, 9}, {5}, i64).to(x[1].device()),
                                  {.mode = BagMode::Sum,
                                   .padding_idx = 2,
                                   .per_sample_weights = x[2],
                                   .include_last_offset = true});
           },
       .label = "bag_weighted"},
      {.op = "embedding",
       .inputs = words,
       .run = bags({.mode = BagMode::Max, .padding_idx = 2}),
       .label = "bag_max"},
      {.op = "embedding",
       .inputs = {{{4, 3}}, {{3, 4}, 0, 4, Input::Index}},
       .run = [](In x) { return embedding_bag(x[0], x[1], {}, {.padding_idx = 1}); },
       .label = "bag_of_rows"},
  };
}

// Functions by the names of PyTorch.
std::vector<OpCase> by_name() {
  const Input ties{.shape = {3, 8}, .low = 0, .high = 3, .kind = Input::Tied};
  const Input pairs{
      .shape = {2, 6}, .kind = Input::Tied, .values = {1, 0, 0, 1, 1, 2, 3, 2, 2, 3, 0, 1}};
  const Input bounds{.shape = {5}, .kind = Input::Constant, .values = {-1, 0, 0, 0.5, 1}};
  const Input places{.shape = {2, 3}, .kind = Input::Index, .values = {-1, 0, 5, 5, 11, -12}};
  const auto all_of = [](const Unique& u) {
    return cat({flatten(u.values), cast(flatten(u.inverse), u.values.dtype()),
                cast(u.counts, u.values.dtype())});
  };
  return {
      row("gather", "take", {{{3, 4}}, places}, [](In x) { return take(x[0], x[1]); }),
      row("slice", "tensor_split", {{{2, 7}}},
          [](In x) {
            const auto parts = tensor_split(x[0], 3, -1);
            return cat({parts[2], parts[0]}, 1);
          }),
      row("slice", "tensor_split_at", {{{7, 2}}},
          [](In x) {
            const auto parts = tensor_split(x[0], {1, -2, 9});
            return cat({parts[2], parts[1], parts[3]});
          }),
      row("cat", "block_diag", {{{2, 3}}, {{1, 2}}, {{3}}, {.shape = {}}},
          [](In x) { return block_diag(x); }),
      row("cat", "cartesian_prod", {{{3}}, {{2}}, {{4}}}, [](In x) { return cartesian_prod(x); }),
      row("norm", "vector_norm", {{{3, 4, 2}}},
          [](In x) { return vector_norm(x[0], 3, {0, 2}, true); }),
      row("max", "amax", {{{3, 8}}}, [](In x) { return amax(x[0], {1}); }),
      row("min", "amin", {{{3, 8}}}, [](In x) { return amin(x[0], {0}, true); }),
      {.op = "slogdet",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return logdet(matmul(x[0], transpose(x[0]))); },
       .label = "logdet",
       .composite = true,
       .cpu_only = true},
      row("matmul", "mv", {{{3, 4}}, {{4}}}, [](In x) { return mv(x[0], x[1]); }),
      of_own_dtype(
          row("softmax", "of_dtype", {{{3, 4}}}, [](In x) { return softmax(x[0], 0, f64); })),
      of_own_dtype(row("log_softmax", "of_dtype", {{{3, 4}}},
                       [](In x) { return log_softmax(x[0], -1, f64); })),
      row("gelu_tanh", "by_name", {{{3, 4}}}, [](In x) { return gelu(x[0], "tanh"); }),
      row("softplus", "with_beta", {{{3, 4}}}, [](In x) { return softplus(x[0], 2.5, 1.5); }),
      row("permute", "channel_shuffle", {{{2, 6, 2, 3}}},
          [](In x) { return channel_shuffle(x[0], 3); }),
      predicate(row("argsort", "bucketize", {{{3, 4}}, bounds},
                    [](In x) { return bucketize(x[0], x[1], true); })),
      of_own_dtype(predicate(row("eq", "one_hot", {{{2, 5}, 0, 4, Input::Index}},
                                 [](In x) { return one_hot(x[0]); }))),
      predicate(row("argsort", "unique", {ties}, [=](In x) { return all_of(unique(x[0])); })),
      predicate(row("ne", "unique_consecutive", {ties},
                    [=](In x) { return all_of(unique_consecutive(x[0])); })),
      predicate(
          row("argsort", "unique_slices", {pairs}, [=](In x) { return all_of(unique(x[0], 1)); })),
      predicate(row("ne", "unique_consecutive_slices", {pairs},
                    [=](In x) { return all_of(unique_consecutive(x[0], -1)); })),
      predicate(row("argsort", "searchsorted_by_row", {{{2, 3, 4}}, {{2, 3, 5}}},
                    [](In x) { return searchsorted(sort(x[0]).values, x[1], true); },
                    {{2, 0, 4}, {2, 0, 5}})),
  };
}

// Arguments that functions of PyTorch have, and further functions.
std::vector<OpCase> by_argument() {
  const auto quantiles = [](std::string op, std::string kind) {
    return row(std::move(op), "quantiles_" + kind, {{{4, 6}}}, [=](In x) {
      return quantile(x[0], from({0.55, 0.3, 1}, {3}, f64).to(x[0].device()), 1, false, kind);
    });
  };
  const auto nanquantiles = [](std::string kind) {
    return row("where", "nanquantiles_" + kind, {{{4, 6}}, {{4, 6}, 0, 1, Input::Mask}},
               [=](In x) { return nanquantile(masked_fill(x[0], x[1], NAN), 0.4, 1, true, kind); });
  };
  const PoolOptions dilated{.stride = {2, 1}, .padding = 1, .dilation = {2, 3}, .ceil_mode = true};
  return {
      quantiles("gather", "lower"),
      quantiles("gather", "higher"),
      quantiles("gather", "nearest"),
      quantiles("lerp", "midpoint"),
      nanquantiles("lower"),
      nanquantiles("higher"),
      nanquantiles("nearest"),
      nanquantiles("midpoint"),
      row("max_pool2d", "dilated", {{{2, 2, 9, 8}}},
          [=](In x) { return max_pool2d(x[0], {3, 2}, dilated); }, {{0, 2, 9, 8}}),
      row("max_pool2d", "of_dilated_lines", {{{2, 9}}},
          [](In x) { return max_pool1d(x[0], 3, 2, 1, 2); }),
      row("max_pool2d", "of_dilated_volumes", {{{1, 2, 4, 5, 6}}},
          [](In x) { return max_pool3d(x[0], 2, {.stride = 1, .dilation = {2, 1, 3}}); }),
      row("gather", "dilated_max_pool2d_with_indices", {{{2, 2, 9, 8}}},
          [=](In x) {
            const auto [y, at] = max_pool2d_with_indices(x[0], {3, 2}, dilated);
            return y + gather(flatten(x[0], -2), -1, flatten(at, -2)).view(y.shape());
          }),
      row("avg_pool2d", "of_divisor", {{{2, 2, 6, 7}}},
          [](In x) {
            return avg_pool2d(
                x[0], {2, 3},
                {.stride = 2, .padding = 1, .ceil_mode = true, .divisor_override = 5});
          },
          {{0, 2, 6, 7}}),
      row("avg_pool2d", "of_divisor_and_volumes", {{{1, 2, 4, 5, 6}}},
          [](In x) {
            return avg_pool3d(x[0], 2, {.stride = 1, .padding = {0, 1, 1}, .divisor_override = 3});
          }),
      row("norm", "pdist", {{{5, 3}}}, [](In x) { return pdist(x[0]); }, {{5, 0}}),
      row("norm", "pdist_1", {{{4, 3}}}, [](In x) { return pdist(x[0], 1); }),
      row("mul", "renorm", {{{3, 4, 2}}}, [](In x) { return renorm(x[0], 3, 1, 1.7); },
          {{3, 0, 2}}),
      row("matmul", "multi_dot", {{{4, 7}}, {{7, 2}}, {{2, 6}}, {{6, 3}}},
          [](In x) { return multi_dot(x); }),
      row("matmul", "multi_dot_of_vectors", {{{4}}, {{4, 2}}, {{2}}},
          [](In x) { return multi_dot(x); }),
  };
}

// Joining, activations, writes in place and pools.
std::vector<OpCase> more_by_name() {
  const auto activation = [](std::string op, std::string label, Tensor (*f)(const Tensor&)) {
    return row(std::move(op), std::move(label), {{{3, 5}}}, [=](In x) { return f(x[0]); },
               {{0, 5}});
  };
  // A function that writes to its first operand, which is no leaf.
  const auto in_place = [](std::string op, std::string label,
                           Tensor (*f)(const Tensor&, const Tensor&)) {
    return row(std::move(op), std::move(label), {{{3, 5}}, {{3, 5}, 0.5, 2}},
               [=](In x) { return f(clone(x[0]), x[1]); }, {{0, 5}, {0, 5}});
  };
  using X = const Tensor&;
  const std::vector<Input> volume{{{1, 2, 4, 5, 6}}};
  return {
      row("cat", "concat", {{{2, 3}}, {{2, 1}}}, [](In x) { return concat(x, -1); },
          {{0, 3}, {0, 1}}),
      row("cat", "vstack", {{{3}}, {{2, 3}}}, [](In x) { return vstack(x); }, {{0}, {2, 0}}),
      row("cat", "hstack", {{{2, 3}}, {{2, 1}}}, [](In x) { return hstack(x); }, {{0, 3}, {0, 1}}),
      row("pad", "pad_sequence", {{{2, 3}}, {{4, 3}}},
          [](In x) { return pad_sequence(x, true, 0.5); }, {{0, 3}, {2, 3}}),
      activation("elu", "celu", [](X x) { return celu(x, 2); }),
      activation("clamp", "softshrink", [](X x) { return softshrink(x, 0.7); }),
      activation("masked_fill", "hardshrink", [](X x) { return hardshrink(x, 0.7); }),
      activation("masked_fill", "threshold", [](X x) { return threshold(x, 0.3, -0.7); }),
      activation("where", "rrelu",
                 [](X x) {
                   const Seed seed(3);
                   return rrelu(x, 0.1, 0.4);
                 }),
      activation("softmax", "softmin", [](X x) { return softmin(x, 0); }),
      in_place("add", "in_place", add_),
      in_place("sub", "in_place", sub_),
      in_place("mul", "in_place", mul_),
      in_place("div", "in_place", div_),
      row("mul", "copied", {{{3, 5}}, {{3, 5}}},
          [](In x) { return copy_(clone(x[0]), x[1]) * x[0]; }, {{0, 5}, {0, 5}}),
      activation("clamp", "in_place", [](X x) { return clamp_(clone(x), -0.7, 1); }),
      activation("mul", "filled", [](X x) { return fill_(clone(x), 2) * x + zero_(clone(x)); }),
      predicate(row("logical_or", "isclose", {{{3, 4}, 0, 1}, {{3, 4}, 0, 1}},
                    [](In x) { return isclose(x[0], x[1], 0.1, 0.1); }, {{0, 4}, {0, 4}})),
      row("scatter_add", "bincount",
          {{.shape = {6}, .kind = Input::Index, .values = {2, 0, 2, 3, 0, 2}}, {{6}}},
          [](In x) { return bincount(x[0], x[1], 5); }, {{0}, {0}}),
      row("clone", "contiguous", {{{3, 4}}}, [](In x) { return contiguous(x[0].t()); }, {{0, 4}}),
      row("reshape", "view", {{{3, 4}}}, [](In x) { return view(clone(x[0]), {2, -1}); }),
      row("matmul", "mm", {{{3, 4}}, {{4, 2}}}, [](In x) { return mm(x[0], x[1]); },
          {{3, 0}, {0, 2}}),
      row("avg_pool2d", "of_volumes", volume,
          [](In x) { return avg_pool3d(x[0], 2, {.stride = 1, .padding = {0, 1, 1}}); },
          {{0, 2, 4, 5, 6}}),
      row("adaptive_avg_pool2d", "of_volumes", volume,
          [](In x) { return adaptive_avg_pool3d(x[0], {3, 2, 4}); }, {{0, 2, 4, 5, 6}}),
      row("adaptive_max_pool2d", "of_volumes", volume,
          [](In x) { return adaptive_max_pool3d(x[0], {3, 2, 4}); }, {{0, 2, 4, 5, 6}}),
      row("conv_transpose2d", "fold", {{{2, 12, 6}}},
          [](In x) { return fold(x[0], {4, 5}, {2, 3}, {.padding = {0, 1}, .stride = {2, 2}}); },
          {{0, 12, 6}}),
      row("avg_pool2d", "in_local_response_norm", {{{2, 5, 3}}},
          [](In x) { return local_response_norm(x[0], 3, 0.5, 0.75, 2); }, {{0, 5, 3}}),
      row("gather", "grid_sample", {{{1, 2, 4, 5}}, {{1, 3, 2, 2}, -1.1, 1.1}},
          [](In x) { return grid_sample(x[0], x[1]); }, {{0, 2, 4, 5}, {0, 3, 2, 2}}),
      in_f32(row("matmul", "affine_grid", {{{2, 2, 3}}},
                 [](In x) { return affine_grid(x[0], {2, 1, 3, 4}); })),
  };
}

// Functions of numbers, arrangements and sums that people of NumPy and PyTorch type first.
std::vector<OpCase> typed_first() {
  const auto pointwise = [](std::string op, std::string label, std::vector<Input> inputs,
                            std::function<Tensor(In)> run) {
    OpCase c = row(std::move(op), std::move(label), std::move(inputs), std::move(run));
    c.pointwise = true;
    return c;
  };
  const auto on_cpu = [](OpCase c) {
    c.cpu_only = true;
    return c;
  };
  const Input ties{.shape = {4, 5}, .low = -2, .high = 2, .kind = Input::Tied};
  const Input nan{.shape = {4, 5}, .low = 0, .high = 1, .kind = Input::Mask};
  const Input places{{2, 3}, 0, 60, Input::Index};
  const std::vector<Input> lines{{{2, 3, 4}}, {{3}}}, matrix{{{2, 3, 4}}};
  return {
      pointwise("where", "fmax", {{{3, 5}}, {{3, 5}}}, [](In x) { return fmax(x[0], x[1]); }),
      pointwise("where", "fmin", {{{3, 5}}, {{3, 5}}}, [](In x) { return fmin(x[0], x[1]); }),
      row("where", "fmax_of_ties", {ties, ties, nan},
          [](In x) { return fmax(masked_fill(x[0], x[2], NAN), x[1]); }),
      row("where", "fmin_of_ties", {ties, ties, nan},
          [](In x) { return fmin(x[0], masked_fill(x[1], x[2], NAN)); }),
      pointwise("mul_scalar", "deg2rad", {{{3, 5}}}, [](In x) { return deg2rad(x[0]); }),
      pointwise("mul_scalar", "rad2deg", {{{3, 5}}}, [](In x) { return rad2deg(x[0]); }),
      pointwise("where", "sinc", {{{3, 5}, -3, 3}}, [](In x) { return sinc(x[0]); }),
      pointwise("where", "div_toward_zero", {{{3, 5}}, {{3, 5}, -2, 2, Input::Real, 0.4}},
                [](In x) { return div(x[0], x[1], "trunc"); }),
      pointwise("where", "div_scalar_toward_zero", {{{3, 5}}},
                [](In x) { return div(x[0], -0.7, "trunc"); }),
      pointwise("floor_divide", "div_rounded_down", {{{3, 5}}, {{3, 5}, -2, 2, Input::Real, 0.4}},
                [](In x) { return div(x[0], x[1], "floor"); }),
      pointwise("round", "to_decimals", {{{3, 5}}}, [](In x) { return round(x[0], 1); }),
      pointwise("round", "to_hundreds", {{{3, 5}, -900, 900}},
                [](In x) { return round(x[0], -2); }),
      row("where", "sinc_near_0", {{{3, 5}, -0.2, 0.2}}, [](In x) { return sinc(x[0]); }, {{0, 5}}),
      row("flip", "rot90", {{{2, 3, 4}}}, [](In x) { return rot90(x[0]); }, {{2, 0, 4}}),
      row("flip", "rot90_twice", {{{2, 3}}}, [](In x) { return rot90(x[0], 6); }),
      row("flip", "rot90_back", {{{2, 3, 4}}}, [](In x) { return rot90(x[0], -1, {-1, 0}); }),
      row("reshape", "atleast", {{{5}}, {{4}}, {.shape = {}}},
          [](In x) { return addcmul(atleast_3d(x[0]), atleast_2d(x[1]), atleast_1d(x[2])); }),
      row("expand", "broadcast_tensors", {{{3, 1}}, {{4}}},
          [](In x) { return stack(broadcast_tensors(x), -1); }, {{0, 1}, {4}}),
      row("cat", "dstack", {{{2, 3}}, {{2, 3, 2}}}, [](In x) { return dstack(x); },
          {{0, 3}, {0, 3, 2}}),
      row("cat", "column_stack", {{{3}}, {{3, 2}}}, [](In x) { return column_stack(x); },
          {{0}, {0, 2}}),
      row("scatter_extremum", "by_name", {{{6, 3}}, {{9, 2}, 0, 4, Input::Index}, {{9, 3}}},
          [](In x) { return scatter_reduce(x[0], 0, x[1], x[2], "amin"); }),
      predicate(row("floor_divide_scalar", "unravel_index", {places},
                    [](In x) { return stack(unravel_index(x[0], {3, 4, 5})); }, {{0, 3}})),
      row("sum", "trapezoid", {{{3, 5}}}, [](In x) { return trapezoid(x[0], 0.5); }, {{0, 5}}),
      row("sum", "trapezoid_at", lines, [](In x) { return trapezoid(x[0], x[1], 1); },
          {{2, 0, 4}, {0}}),
      row("cumsum", "cumulative_trapezoid", {{{3, 5}}},
          [](In x) { return cumulative_trapezoid(x[0], 0.5, 0); }, {{3, 0}}),
      row("cumsum", "cumulative_trapezoid_at", {{{3, 5}}, {{3, 5}}},
          [](In x) { return cumulative_trapezoid(x[0], x[1]); }),
      of_own_dtype(row("mul", "windows", {{{8}}},
                       [](In x) {
                         const Device d = x[0].device();
                         const Tensor w =
                             hamming_window(8, true, f64, d) + kaiser_window(8, true, 6, f64, d) +
                             blackman_window(8, false, f64, d) * fftfreq(8, 0.5, f64, d);
                         return x[0].to(f64) * (w + rfftfreq(14, 1, f64, d));
                       })),
      on_cpu(predicate(row("svdvals", "matrix_rank", matrix,
                           [](In x) { return matrix_rank(matmul(x[0], transpose(x[0]))); }))),
      on_cpu(row("svdvals", "cond", matrix, [](In x) { return cond(x[0]); }, {{0, 3, 4}})),
      on_cpu(row("svdvals", "nuclear_norm", matrix, [](In x) { return matrix_norm(x[0], "nuc"); },
                 {{2, 0, 4}})),
      on_cpu(row("svdvals", "matrix_norm", matrix, [](In x) { return matrix_norm(x[0], -2); })),
      row("norm", "matrix_norm", matrix, [](In x) { return matrix_norm(x[0]); }, {{2, 0, 4}}),
      row("max", "matrix_norm", matrix, [](In x) { return matrix_norm(x[0], 1); }),
      row("min", "matrix_norm", matrix, [](In x) { return matrix_norm(x[0], -INFINITY); }),
  };
}

// Methods that write to their tensor, which is no leaf.
std::vector<OpCase> in_place() {
  const auto unary = [](std::string op, Tensor (Tensor::*f)() const, double low) {
    return row(std::move(op), "in_place", {{{3, 5}, low, 3, Input::Real, 0.1}},
               [=](In x) { return (clone(x[0]).*f)(); }, {{0, 5}});
  };
  const std::vector<Input> three{{{3, 5}}, {{3, 5}}, {{3, 1}, 0.5, 2}};
  return {
      unary("abs", &Tensor::abs_, -3),
      unary("neg", &Tensor::neg_, -3),
      unary("square", &Tensor::square_, -3),
      unary("sqrt", &Tensor::sqrt_, 0.1),
      unary("rsqrt", &Tensor::rsqrt_, 0.1),
      unary("exp", &Tensor::exp_, -3),
      unary("log", &Tensor::log_, 0.1),
      unary("reciprocal", &Tensor::reciprocal_, 0.1),
      unary("floor", &Tensor::floor_, -3),
      unary("ceil", &Tensor::ceil_, -3),
      unary("round", &Tensor::round_, -3),
      unary("relu", &Tensor::relu_, -3),
      unary("sigmoid", &Tensor::sigmoid_, -3),
      unary("tanh", &Tensor::tanh_, -3),
      row("pow_scalar", "in_place", {{{3, 5}, 0.1, 3}}, [](In x) { return clone(x[0]).pow_(1.5); },
          {{0, 5}}),
      row("addcmul", "in_place", three,
          [](In x) { return clone(x[0]).addcmul_(x[1], x[2], -0.5); }),
      row("addcdiv", "in_place", three, [](In x) { return clone(x[0]).addcdiv_(x[1], x[2], 2); }),
  };
}

std::vector<OpCase> named_losses() {
  const std::vector<Input> three{{{4, 3}}, {{4, 3}}, {{4, 3}}};
  const std::vector<Shape> none{{0, 3}, {0, 3}, {0, 3}};
  const Input signs{.shape = {4}, .kind = Input::Constant, .values = {1, -1, -1, 1}};
  return {
      row("norm", "pairwise_distance", {{{4, 3}}, {{4, 3}}},
          [](In x) { return pairwise_distance(x[0], x[1], 3, 0.1, true); }, {{0, 3}, {0, 3}}),
      row(
          "norm", "triplet_margin_loss", three,
          [](In x) {
            return triplet_margin_loss(x[0], x[1], x[2],
                                       {.reduction = Reduction::Sum, .swap = true});
          },
          none),
      row(
          "norm", "triplet_margin_with_distance_loss", three,
          [](In x) {
            return triplet_margin_with_distance_loss(
                x[0], x[1], x[2],
                [](const Tensor& a, const Tensor& b) { return norm(a - b, 2, {-1}); },
                {.reduction = Reduction::Sum, .margin = 0.7});
          },
          none),
      row("relu", "multi_margin_loss", {{{4, 3}}, {{4}, 0, 3, Input::Index}},
          [](In x) { return multi_margin_loss(x[0], x[1], {.reduction = Reduction::Sum, .p = 2}); },
          {{0, 3}, {0}}),
      row("relu", "multilabel_margin_loss",
          {{{2, 3}}, {.shape = {2, 3}, .kind = Input::Index, .values = {2, 0, -1, 1, -1, 0}}},
          [](In x) { return multilabel_margin_loss(x[0], x[1], Reduction::Sum); },
          {{0, 3}, {0, 3}}),
      row("binary_cross_entropy_with_logits", "in_multilabel_soft_margin_loss",
          {{{4, 3}}, {{4, 3}, 0, 1, Input::Constant}},
          [](In x) { return multilabel_soft_margin_loss(x[0], x[1], Reduction::Sum); },
          {{0, 3}, {0, 3}}),
      row("cosine_similarity", "in_cosine_embedding_loss", {{{4, 3}}, {{4, 3}}, signs},
          [](In x) {
            return cosine_embedding_loss(x[0], x[1], x[2],
                                         {.reduction = Reduction::Sum, .margin = 0.1});
          },
          {{0, 3}, {0, 3}, {0}}),
      row("mul", "margin_ranking_loss", {{{4}}, {{4}}, signs},
          [](In x) {
            return margin_ranking_loss(x[0], x[1], x[2],
                                       {.reduction = Reduction::Sum, .margin = 0.3});
          },
          {{0}, {0}, {0}}),
      first_repeats(row("gather", "ctc_loss",
                        {{{5, 2, 4}},
                         {.shape = {2, 3}, .kind = Input::Index, .values = {1, 2, 2, 3, 1, 0}},
                         {.shape = {2}, .kind = Input::Index, .values = {5, 4}},
                         {.shape = {2}, .kind = Input::Index, .values = {3, 2}}},
                        [](In x) {
                          return ctc_loss(log_softmax(x[0]), x[1], x[2], x[3],
                                          {.reduction = Reduction::Sum});
                        })),
      first_repeats(row("gather", "ctc_loss_of_joined_targets",
                        {{{5, 2, 4}},
                         {.shape = {5}, .kind = Input::Index, .values = {1, 2, 2, 3, 1}},
                         {.shape = {2}, .kind = Input::Index, .values = {5, 4}},
                         {.shape = {2}, .kind = Input::Index, .values = {3, 2}}},
                        [](In x) { return ctc_loss(log_softmax(x[0]), x[1], x[2], x[3]); })),
  };
}

}  // namespace

std::vector<OpCase> composed() {
  std::vector<OpCase> cases = placed();
  for (auto more : {statistics, rearranged, products_of_parts, resized, others, by_name,
                    by_argument, more_by_name, typed_first, in_place, named_losses})
    for (OpCase& c : more()) cases.push_back(std::move(c));
  return cases;
}

}  // namespace mixtape::tests
