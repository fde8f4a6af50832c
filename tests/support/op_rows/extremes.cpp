// The same ops at NaN, infinities, zeros of both signs, kinks, and sizes of zero and one; only
// compared with PyTorch.
#include <limits>

#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

namespace {

using Values = std::vector<double>;
using X = const Tensor&;
constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

Input of(const Shape& shape, Values values, Input::Kind kind = Input::Real) {
  return {.shape = shape, .kind = kind, .values = std::move(values)};
}
Input of(Values values, Input::Kind kind = Input::Real) {
  const Shape shape{int64_t(values.size())};
  return of(shape, std::move(values), kind);
}
Input constant(Input input) {
  input.kind = Input::Constant;
  return input;
}
OpCase at(std::string op, std::string label, std::vector<Input> inputs,
          std::function<Tensor(In)> run) {
  return {.op = std::move(op),
          .inputs = std::move(inputs),
          .run = std::move(run),
          .label = std::move(label)};
}
OpCase at(std::string op, std::string label, Input input, std::function<Tensor(X)> f) {
  return at(std::move(op), std::move(label), std::vector{std::move(input)},
            [f = std::move(f)](In x) { return f(x[0]); });
}

std::vector<OpCase> elementwise_extremes() {
  std::vector<OpCase> cases;
  const Values specials = {nan, inf, -inf, 0, -0.0, 0.5, -0.5, 1, -1, 2.5, -2.5, 3, -3, 6};
  const auto special = [&](std::string op, Op1 f) {
    cases.push_back(at(std::move(op), "special", of(specials), f));
  };
  special("relu", relu);
  special("gelu", gelu);
  special("gelu_tanh", gelu_tanh);
  special("silu", silu);
  special("sigmoid", sigmoid);
  special("tanh", tanh);
  special("softplus", softplus);
  special("abs", abs);
  special("square", square);
  special("sqrt", sqrt);
  special("rsqrt", rsqrt);
  special("reciprocal", reciprocal);
  special("exp", exp);
  special("expm1", expm1);
  special("log", log);
  special("log1p", log1p);
  special("sin", sin);
  special("cos", cos);
  special("erf", erf);
  special("asinh", asinh);
  special("atanh", atanh);
  special("erfc", erfc);
  special("erfinv", erfinv);
  special("frac", frac);
  special("lgamma", lgamma);
  cases.push_back(at("acosh", "special", of({nan, inf, 1, 1.5, 2.5, 6}), acosh));
  cases.push_back(at("digamma", "special", of({nan, inf, 0.5, -0.5, 1, 2.5, -2.5, 6}), digamma));
  const auto power = [&](std::string label, double p) {
    cases.push_back(
        at("pow_scalar", std::move(label), of(specials), [p](X x) { return pow(x, p); }));
  };
  power("half", 0.5);
  power("one", 1);
  power("minus_one", -1);
  // Combines each of the first with each of the second.
  const auto pairs = [&](std::string op, Op2 f, const Values& a, const Values& b) {
    Values left, right;
    for (const double v : a)
      for (const double w : b) left.push_back(v), right.push_back(w);
    cases.push_back(
        at(std::move(op), "special", {of(left), of(right)}, [f](In x) { return f(x[0], x[1]); }));
  };
  const Values signs = {nan, inf, -inf, 0, -0.0, 1, -2};
  pairs("maximum", maximum, signs, signs);
  pairs("minimum", minimum, signs, signs);
  pairs("atan2", atan2, signs, signs);  // (PyTorch's gradients are NaN where ours are limits.)
  cases.back() = predicate(cases.back());
  for (Input& in : cases.back().inputs) in.kind = Input::Constant;
  pairs("pow", pow, {nan, inf, -inf, 0, -0.0, 1, -1, 2, -2, 0.5},
        {nan, inf, -inf, 0, 1, 2, 0.5, -1});
  pairs("remainder", remainder, {nan, inf, -inf, 0, -0.0, 5, -5, 1},
        {3, -3, 0.1, -0.1, inf, -inf, nan});  // 1 / 0.1 rounds up to 10
  pairs("fmod", fmod, {nan, 0, -0.0, 5, -5, 1}, {3, -3, 0.3, -0.3, inf, -inf, nan});
  pairs("copysign", copysign, {0, -0.0, 5, -5}, {3, -3, 0, -0.0, inf, -inf});
  pairs("logaddexp", logaddexp, {nan, 0, 700, -5}, {0, -700, 3, inf, -inf});
  cases.push_back(
      predicate(at("remainder", "by_zero",
                   {constant(of({nan, inf, 0, 5, -5})), constant(of({0, -0.0, 0, 0, 0}))},
                   [](In x) { return remainder(x[0], x[1]); })));
  // The branch that is not taken gets no gradient.
  cases.push_back(at("where", "beside_nan",
                     {of({1, 0, 1, 0}, Input::Mask), of({2, nan, 3, inf}), of({nan, 4, -inf, 5})},
                     [](In x) { return where(x[0], x[1], x[2]); }));
  cases.push_back(at("masked_fill", "of_nan", {of({nan, 1, inf}), of({1, 0, 1}, Input::Mask)},
                     [](In x) { return masked_fill(x[0], x[1], 3); }));
  return cases;
}

std::vector<OpCase> reduction_extremes() {
  const Input zeros_within = of({4, 3}, {1, 0, 2, 0, 0, 3, -1.5, 2, 0.5, 2, nan, 1});
  const Input infinite =
      of({5, 3}, {-inf, -inf, -inf, inf, 1, 2, -inf, 3, 4, nan, 1, 0, inf, inf, -inf});
  const Input signs = of({4, 3}, {0, 0, 0, -0.0, 0, 2, -3, 3, 3, nan, inf, -inf});
  const Input one = of({1, 3}, {2, -1, 0}), lone{{}}, none{{0, 3}};
  std::vector<OpCase> cases = {
      at("prod", "of_a_zero_or_two", zeros_within, [](X x) { return prod(x, {1}); }),
      // (Beside NaN, PyTorch's running products have gradients of NaN where ours need not.)
      at("cumprod", "of_a_zero_or_two", of({3, 3}, {1, 0, 2, 0, 0, 3, -1.5, 2, 0.5}),
         [](X x) { return cumprod(x, 1); }),
      predicate(at("cumprod", "special", constant(infinite), [](X x) { return cumprod(x, 1); })),
      at("cumsum", "special", infinite, [](X x) { return cumsum(x, 1); }),
      predicate(
          at("logsumexp", "special", constant(infinite), [](X x) { return logsumexp(x, {1}); })),
      at("softmax", "special", infinite, [](X x) { return softmax(x); }),
      at("log_softmax", "special", infinite, [](X x) { return log_softmax(x); }),
      at("sum", "special", infinite, [](X x) { return sum(x, {1}); }),
      at("mean", "special", infinite, [](X x) { return mean(x, {1}); }),
      at("max", "special", infinite, [](X x) { return max(x, {1}); }),
      at("min", "special", infinite, [](X x) { return min(x, {1}); }),
      predicate(at("argmax", "special", infinite, [](X x) { return argmax(x, 1); })),
      predicate(at("argmin", "special", infinite, [](X x) { return argmin(x, 1); })),
      // (Where the result is NaN, gradients are NaN or infinite depending on the order of
      // operations.)
      predicate(at("sum", "var_special", constant(infinite), [](X x) { return var(x, {1}); })),
      at("sum", "var_of_one", one, [](X x) { return var(x, {0}); }),
      at("sum", "var_0_of_one", one, [](X x) { return var(x, {0}, false, 0); }),
      at("sqrt", "stddev_of_one", one, [](X x) { return stddev(x, {0}); }),
      at("sqrt", "stddev_0_of_one", one, [](X x) { return stddev(x, {0}, false, 0); }),
      // No elements
      at("sum", "of_none", none, [](X x) { return sum(x, {0}); }),
      at("mean", "of_none", none, [](X x) { return mean(x, {0}); }),
      at("prod", "of_none", none, [](X x) { return prod(x, {0}); }),
      at("max", "of_none", none, [](X x) { return max(x, {1}); }),
      predicate(at("any", "of_none", none, [](X x) { return any(x, {0}); })),
      predicate(at("all", "of_none", none, [](X x) { return all(x, {0}); })),
      at("logsumexp", "of_none", none, [](X x) { return logsumexp(x, {0}); }),
      at("sum", "var_of_none", none, [](X x) { return var(x, {0}); }),
      at("sqrt", "stddev_of_none", none, [](X x) { return stddev(x, {0}); }),
      at("cumsum", "of_none", none, [](X x) { return cumsum(x, 0); }),
      at("cumprod", "of_none", none, [](X x) { return cumprod(x, 1); }),
      // A 0-d tensor. (PyTorch accepts dimensions 0 and -1 for it.)
      at("sum", "of_0d", lone, [](X x) { return sum(x); }),
      at("mean", "of_0d", lone, [](X x) { return mean(x, {}, true); }),
      at("prod", "of_0d", lone, [](X x) { return prod(x); }),
      at("max", "of_0d", lone, [](X x) { return max(x); }),
      at("logsumexp", "of_0d", lone, [](X x) { return logsumexp(x); }),
      at("sum", "var_0_of_0d", lone, [](X x) { return var(x, {}, false, 0); }),
      at("sqrt", "stddev_of_0d", lone, [](X x) { return stddev(x); }),
      at("norm", "of_0d", lone, [](X x) { return norm(x); }),
      predicate(at("any", "of_0d", lone, [](X x) { return any(x); })),
      predicate(at("all", "of_0d", lone, [](X x) { return all(x); })),
      at("cat", "stack_of_0d", lone, [](X x) { return stack({x, x * 2}); }),
      at("gather", "masked_select_of_0d", lone, [](X x) { return masked_select(x, gt(x, -9)); }),
      predicate(at("nonzero", "of_0d", lone, [](X x) { return nonzero(x); })),
  };
  for (const auto& [name, p] : {std::pair{"0", 0.},
                                {"half", 0.5},
                                {"1", 1.},
                                {"2", 2.},
                                {"3", 3.},
                                {"infinity", inf},
                                {"minus_infinity", -inf}}) {
    const auto f = [p = p](X x) { return norm(x, p, {1}); };
    cases.push_back(at("norm", std::string(name) + "_special", signs, f));
    cases.push_back(at("norm", std::string(name) + "_of_none", none,
                       [p = p](X x) { return norm(x, p, {std::abs(p) == inf ? 1 : 0}); }));
  }
  return cases;
}

std::vector<OpCase> index_extremes() {
  const Input mixed = of({2, 6}, {1, nan, 3, 3, -inf, nan, inf, -0.0, 0, nan, 3, inf});
  const Input table = of({4, 2}, {1, 2, nan, 4, 5, inf, 7, 8});
  const Input again = of({2, 0, 2, 2, 3}, Input::Index);
  std::vector<OpCase> cases = {
      at("gather", "sort_special", mixed, [](X x) { return sort(x).values; }),
      at("gather", "sort_special_descending", mixed, [](X x) { return sort(x, 1, true).values; }),
      predicate(at("argsort", "special", mixed, [](X x) { return argsort(x); })),
      predicate(
          at("argsort", "special_descending", mixed, [](X x) { return argsort(x, 1, true); })),
      at("gather", "topk_special", mixed, [](X x) { return topk(x, 4).values; }),
      at("gather", "topk_special_smallest", mixed, [](X x) { return topk(x, 5, 1, false).values; }),
      at("gather", "of_the_same", {table, of({5, 2}, {2, 1, 2, 1, 2, 1, 0, 0, 0, 0}, Input::Index)},
         [](In x) { return gather(x[0], 0, x[1]); }),
      at("scatter", "to_the_same",
         {table, of({5, 2}, {2, 1, 2, 1, 2, 1, 0, 0, 0, 0}, Input::Index), {{5, 2}}},
         [](In x) { return scatter(x[0], 0, x[1], x[2]); }),
      at("scatter_add", "to_the_same",
         {table, of({5, 2}, {2, 1, 2, 1, 2, 1, 0, 0, 0, 0}, Input::Index), {{5, 2}}},
         [](In x) { return scatter_add(x[0], 0, x[1], x[2]); }),
      at("scatter_add", "index_add_to_the_same", {table, again, {{5, 2}}},
         [](In x) { return index_add(x[0], 0, x[1], x[2]); }),
      at("scatter_add", "index_put_to_the_same", {table, again, {{5, 2}}},
         [](In x) { return index_put(x[0], {x[1]}, x[2], true); }),
      at("gather", "index_select_of_the_same", {table, again},
         [](In x) { return index_select(x[0], 0, x[1]); }),
      at("gather", "index_of_the_same", {table, again, of({0, 1, 0, 0, 1}, Input::Index)},
         [](In x) { return index(x[0], {x[1], x[2]}); }),
      at("embedding", "of_the_same", {table, again}, [](In x) { return embedding(x[0], x[1]); }),
      at("embedding", "of_padding_alone", {table, of({2, 2}, Input::Index)},
         [](In x) { return embedding(x[0], x[1], {.padding_idx = 2}); }),
      at("gather", "masked_select_none", {table, of({4, 2}, {0}, Input::Mask)},
         [](In x) { return masked_select(x[0], x[1]); }),
      at("gather", "masked_select_all", {table, of({1}, {1}, Input::Mask)},
         [](In x) { return masked_select(x[0], x[1]); }),
      predicate(at("nonzero", "special", mixed, [](X x) { return nonzero(x); })),
      predicate(at("nonzero", "of_zeros", table, [](X x) { return nonzero(eq(x, 9)); })),
      predicate(at("nonzero", "of_ones", table, [](X x) { return nonzero(ne(x, 9)); })),
  };
  return cases;
}

std::vector<OpCase> view_extremes() {
  const Input batch{{2, 3, 4}}, image{{1, 2, 3, 4}};
  std::vector<OpCase> cases = {
      at("unfold", "wholly_overlapping", Input{{6}}, [](X x) { return unfold(x, 0, 6, 1); }),
      at("unfold", "of_one", Input{{5, 2}}, [](X x) { return unfold(x, 0, 1, 2); }),
      at("flip", "several", batch, [](X x) { return flip(x, {0, 2}); }),
      at("cat", "roll_whole", batch, [](X x) { return roll(x, 3, 1); }),
      at("cat", "roll_far", batch, [](X x) { return roll(roll(x, -5, 2), 7, 1); }),
      at("pad", "largest_crop", batch, [](X x) { return pad(x, {-1, -3, -3, 0}); }),
      at("gather", "pad_largest_reflect", batch,
         [](X x) { return pad(x, {3, 3, 2, 2}, PadMode::Reflect); }),
      at("gather", "pad_largest_circular", image,
         [](X x) { return pad(x, {4, 4, 3, 3}, PadMode::Circular); }),
      at("gather", "pad_far_replicate", image,
         [](X x) { return pad(x, {9, 0, 0, 9}, PadMode::Replicate); }),
      at("gather", "pad_replicate_of_one", Input{{2, 1, 1}},
         [](X x) { return pad(x, {2, 1}, PadMode::Replicate); }),
  };
  for (const int diagonal : {-3, -2, 0, 1, 3, 4}) {
    const std::string label =
        "at_" + std::string(diagonal < 0 ? "minus_" : "") + std::to_string(std::abs(diagonal));
    cases.push_back(at("tril", label, batch, [=](X x) { return tril(x, diagonal); }));
    cases.push_back(at("triu", label, batch, [=](X x) { return triu(x, diagonal); }));
  }
  return cases;
}

std::vector<OpCase> loss_extremes() {
  [[maybe_unused]] static constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                         None = Reduction::None;
  const Input logits = of({3, 3}, {1, -inf, 2, 0, 0, 0, 30, -30, 5});
  const Input target = of({0, 1, 2}, Input::Index);
  const Input weights = of({0.5, 2, 0}, Input::Constant);
  const Values differences = {0, 1, -1, 0.5, -0.5, 2, nan, inf, -inf};
  const Input d = of(differences), zero = of({9}, {0});
  return {
      at("cross_entropy", "special", {logits, target},
         [](In x) { return cross_entropy(x[0], x[1], {.reduction = None}); }),
      at("cross_entropy", "of_weights_with_zero", {{{3, 3}}, target, weights},
         [](In x) { return cross_entropy(x[0], x[1], {.class_weights = x[2]}); }),
      at("cross_entropy", "of_weights_smoothed_sum", {{{3, 3}}, target, weights},
         [](In x) {
           return cross_entropy(x[0], x[1],
                                {.reduction = Sum, .label_smoothing = 0.4, .class_weights = x[2]});
         }),
      at("cross_entropy", "of_zero_weight_alone", {{{2, 3}}, of({2, 2}, Input::Index), weights},
         [](In x) { return cross_entropy(x[0], x[1], {.class_weights = x[2]}); }),
      at("nll_loss", "ignore_all", {{{2, 3}}, of({1, 1}, Input::Index)},
         [](In x) { return nll_loss(x[0], x[1], {.ignore_index = 1}); }),
      at("nll_loss", "of_minus_infinity", {logits, target},
         [](In x) { return nll_loss(x[0], x[1], {.reduction = None}); }),
      // (Gradients are clamped with the logarithms; PyTorch's for the target is infinite there.)
      predicate(
          at("binary_cross_entropy", "at_0_and_1",
             {constant(of({0, 1, 0, 1, 0.5, 0, 1})), constant(of({0, 0, 1, 1, 0.5, 0.5, 0.5}))},
             [](In x) { return binary_cross_entropy(x[0], x[1], {.reduction = None}); })),
      at("binary_cross_entropy_with_logits", "special",
         {of({0, -0.0, inf, -inf, nan, 90, -90, 90}), of({0, 1, 1, 0, 0, 1, 0, 0})},
         [](In x) { return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = None}); }),
      at("kl_div", "special", {of({-1, 0, -inf, nan, -2}), constant(of({0, 1, 0.5, 0.5, nan}))},
         [](In x) { return kl_div(x[0], x[1], {.reduction = None}); }),
      at("mse_loss", "special", {d, zero}, [](In x) { return mse_loss(x[0], x[1], None); }),
      at("l1_loss", "special", {d, zero}, [](In x) { return l1_loss(x[0], x[1], None); }),
      at("smooth_l1_loss", "special", {d, zero},
         [](In x) { return smooth_l1_loss(x[0], x[1], {.reduction = None, .beta = 1}); }),
      at("huber_loss", "special", {d, zero},
         [](In x) { return huber_loss(x[0], x[1], {.reduction = None, .delta = 1}); }),
      at("cosine_similarity", "of_zeros", {of({2, 2}, {0, 0, 1, 2}), of({2, 2}, {1, 2, 3, 4})},
         [](In x) { return cosine_similarity(x[0], x[1]); }),
      at("mse_loss", "of_none", {{{0, 3}}, {{0, 3}}}, [](In x) { return mse_loss(x[0], x[1]); }),
      at("cross_entropy", "of_none", {{{0, 3}}, of({0}, {1}, Input::Index)},
         [](In x) { return cross_entropy(x[0], x[1]); }),
  };
}

std::vector<OpCase> network_extremes() {
  const Input image = of({1, 1, 4, 4}, {1, nan, 3, 3, -inf, 2, 0, 0, 5, 5, -1, nan, 4, 5, 2, inf});
  const Input low = of({1, 1, 3, 3}, {-inf}), plain{{1, 2, 5, 7}};
  std::vector<OpCase> cases = {
      at("max_pool2d", "special", image,
         [](X x) { return max_pool2d(x, {2, 2}, {.stride = {1, 1}}); }),
      at("max_pool2d", "special_padded", image,
         [](X x) { return max_pool2d(x, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}); }),
      at("max_pool2d", "of_a_volume", image,
         [](X x) {
           return max_pool3d(reshape(x[0], {1, 1, 4, 2, 2}), {2, 1, 2}, {.stride = {1, 1, 1}});
         }),
      at("max_pool2d", "of_minus_infinity", low,
         [](X x) { return max_pool2d(x, {2, 2}, {.stride = {2, 2}, .padding = {1, 1}}); }),
      at("adaptive_max_pool2d", "special", image,
         [](X x) { return adaptive_max_pool2d(x, {3, 3}); }),
      at("adaptive_avg_pool2d", "uneven", plain,
         [](X x) { return adaptive_avg_pool2d(x, {3, 4}); }),
      at("adaptive_avg_pool2d", "larger", plain,
         [](X x) { return adaptive_avg_pool2d(x, {6, 9}); }),
      at("adaptive_max_pool2d", "larger", plain,
         [](X x) { return adaptive_max_pool2d(x, {6, 9}); }),
      at("interpolate", "to_the_same_size", plain,
         [](X x) { return interpolate(x, {5, 7}, {.mode = Interpolation::Bilinear}); }),
      at("interpolate", "corners_to_one", plain,
         [](X x) {
           return interpolate(x, {1, 1}, {.mode = Interpolation::Bilinear, .align_corners = true});
         }),
      at("interpolate", "corners_of_one", Input{{1, 2, 1, 1}},
         [](X x) {
           return interpolate(x, {3, 2}, {.mode = Interpolation::Bilinear, .align_corners = true});
         }),
      at("interpolate", "to_one", plain,
         [](X x) { return interpolate(x, {1, 1}, {.mode = Interpolation::Bilinear}); }),
      at("interpolate", "nearest_to_one", plain, [](X x) { return interpolate(x, {1, 1}); }),
      at("layer_norm", "of_constants", of({2, 4}, {3, 3, 3, 3, -8, -8, -8, -8}),
         [](X x) { return layer_norm(x, {4}); }),
      at("layer_norm", "special", of({3, 3}, {1, nan, 1, inf, 3, 4, 5, 6, 9}),
         [](X x) { return layer_norm(x, {3}); }),
      at("layer_norm", "of_one", of({3, 1}, {3, -8, 0}), [](X x) { return layer_norm(x, {1}); }),
      at("rms_norm", "of_zeros", of({2, 3}, {0, 0, 0, 1, 2, 3}),
         [](X x) { return rms_norm(x, {3}); }),
      at("conv2d", "special", {image, {{2, 1, 2, 2}}}, [](In x) { return conv2d(x[0], x[1]); }),
      at("matmul", "special", {of({3, 2}, {1, inf, nan, 2, 3, 0}), of({2, 2}, {1, 0, 2, 3})},
         [](In x) { return matmul(x[0], x[1]); }),
  };
  for (const bool include : {false, true})
    cases.push_back(
        at("avg_pool2d", include ? "ceil_with_padding" : "ceil_without_padding", plain, [=](X x) {
          return avg_pool2d(x, {3, 3},
                            {.stride = {2, 2},
                             .padding = {1, 1},
                             .ceil_mode = true,
                             .count_include_pad = include});
        }));
  const auto einsum_of = [&](std::string op, std::string label, std::string equation,
                             std::vector<Input> inputs) {
    cases.push_back(at(std::move(op), "einsum_" + label, std::move(inputs),
                       [=](In x) { return einsum(equation, x); }));
  };
  einsum_of("matmul", "repeated_with_ellipsis", "...ii,...ij->...j", {{{2, 3, 3}}, {{3, 2}}});
  einsum_of("sum", "ellipsis_of_none", "i...->...", {{{3, 2}}});
  einsum_of("mul", "numbers", ",->", {{{}}, {{}}});
  einsum_of("matmul", "of_none", "ij,jk->ik", {{{2, 0}}, {{0, 3}}});
  return cases;
}

}  // namespace

std::vector<OpCase> extremes() {
  std::vector<OpCase> all;
  for (auto* topic : {&elementwise_extremes, &reduction_extremes, &index_extremes, &view_extremes,
                      &loss_extremes, &network_extremes})
    for (OpCase& c : topic()) all.push_back(std::move(c));
  return all;
}

}  // namespace mixtape::tests
