// Cases without gradients, or where finite differences are noise: ties, large numbers, tails; and
// further options and shapes. Only compared with PyTorch.
#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

namespace {

Input tied(const Shape& shape, double low, double high) {
  return {.shape = shape, .low = low, .high = high, .kind = Input::Tied};
}

std::vector<OpCase> reduction_edges() {
  const auto variance = [](std::string label, int correction, bool root) {
    return OpCase{.op = root ? "sqrt" : "sum",
                  .inputs = {{{2, 3, 2}}},
                  .run =
                      [=](In x) {
                        return root ? stddev(x[0], {0, 2}, true, correction)
                                    : var(x[0], {0, 2}, false, correction);
                      },
                  .label = std::move(label)};
  };
  return {
      {.op = "max",
       .inputs = {tied({3, 4}, -2, 2)},
       .run = [](In x) { return max(x[0], {0}); },
       .label = "of_ties"},
      {.op = "min",
       .inputs = {tied({3, 4}, -2, 2)},
       .run = [](In x) { return min(x[0]); },
       .label = "of_ties"},
      {.op = "argmax",
       .inputs = {tied({3, 4}, -2, 2)},
       .run = [](In x) { return argmax(x[0], 0); },
       .label = "of_ties",
       .differentiable = false},
      {.op = "argmin",
       .inputs = {tied({3, 4}, -2, 2)},
       .run = [](In x) { return argmin(x[0], 1, true); },
       .label = "of_ties",
       .differentiable = false},
      variance("var_0", 0, false),
      variance("var_2", 2, false),
      variance("stddev_0", 0, true),
      {.op = "sqrt",
       .inputs = {{{3}}},
       .run = [](In x) { return stddev(expand(unsqueeze(x[0], 1), {3, 4}), {1}); },
       .label = "stddev_of_equals"},
      {.op = "softmax",
       .inputs = {{{3, 5}}},
       .run =
           [](In x) {
             const Seed seed(3);
             return gumbel_softmax(x[0], 1, true, 0);
           },
       .label = "gumbel_hard"},
      {.op = "softmax",
       .inputs = {{{2, 3}, 999, 1001}},
       .run = [](In x) { return softmax(x[0]); },
       .label = "of_large"},
      {.op = "log_softmax",
       .inputs = {{{2, 3}, 999, 1001}},
       .run = [](In x) { return log_softmax(x[0]); },
       .label = "of_large"},
  };
}

// Zeros and ties where order, products and norms have a kink.
std::vector<OpCase> order_edges() {
  const auto of_ties = [](std::string op, std::function<Tensor(const Tensor&)> f,
                          std::string label = "of_ties") {
    return OpCase{.op = std::move(op),
                  .inputs = {tied({4, 6}, -2, 2)},
                  .run = [f = std::move(f)](In x) { return f(x[0]); },
                  .label = std::move(label)};
  };
  using X = const Tensor&;
  return {
      predicate(of_ties("argsort", [](X x) { return argsort(x); })),
      predicate(of_ties(
          "argsort", [](X x) { return argsort(x, 0, true); }, "of_ties_descending")),
      of_ties(
          "gather", [](X x) { return sort(x, 0, true).values; }, "sort_of_ties"),
      predicate(of_ties("any", [](X x) { return any(x, {0}); })),
      predicate(of_ties("all", [](X x) { return all(x, {1}, true); })),
      of_ties("prod", [](X x) { return prod(x, {1}); }),
      of_ties(
          "prod", [](X x) { return prod(x + 0.5); }, "all"),
      of_ties("cumprod", [](X x) { return cumprod(x, 1); }),
      of_ties("norm", [](X x) { return norm(x, 1, {0}); }),
      of_ties(
          "norm", [](X x) { return norm(x, 3); }, "3_of_ties"),
      of_ties(
          "norm", [](X x) { return norm(x, 1.0 / 0.0, {1}); }, "infinity_of_ties"),
      of_ties(
          "norm", [](X x) { return norm(x, -1.0 / 0.0, {1}); }, "minus_infinity_of_ties"),
      of_ties(
          "norm", [](X x) { return norm(x * 0, 2, {1}); }, "of_zeros"),
      of_ties(
          "norm", [](X x) { return norm(x * 0, 2.5, {1}); }, "of_order_of_zeros"),
      of_ties(
          "norm", [](X x) { return norm(x * 0, 1.0 / 0.0, {1}); }, "infinity_of_zeros"),
      of_ties(
          "gather", [](X x) { return mode(x).values; }, "mode"),
      of_ties(
          "gather", [](X x) { return mode(x, 0, true).values; }, "mode_first"),
      {.op = "scatter_extremum",
       .inputs = {tied({3, 4}, -2, 2), {{8, 4}, 0, 3, Input::Index}, tied({8, 4}, -2, 2)},
       .run = [](In x) { return scatter_reduce(x[0], 0, x[1], x[2], ScatterMode::Amax); },
       .label = "of_ties"},
      {.op = "logsumexp",
       .inputs = {{{2, 3}, 999, 1001}},
       .run = [](In x) { return logsumexp(x[0], {1}); },
       .label = "of_large"},
  };
}

std::vector<OpCase> product_edges() {
  const auto product = [](std::string label, const Shape& a, const Shape& b) {
    return OpCase{.op = "matmul",
                  .inputs = {{a}, {b}},
                  .run = [](In x) { return matmul(x[0], x[1]); },
                  .label = std::move(label)};
  };
  const auto conv = [](std::string label, const Shape& x, const Shape& weight, Conv2dOptions o) {
    return OpCase{.op = "conv2d",
                  .inputs = {{x}, {weight}, {{weight[0]}}},
                  .run = [o](In x) { return conv2d(x[0], x[1], x[2], o); },
                  .label = std::move(label)};
  };
  return {
      product("1d_1d", {5}, {5}),
      product("1d_3d", {3}, {2, 3, 2}),
      product("3d_1d", {2, 2, 3}, {3}),
      conv("dilation", {1, 2, 5, 4}, {2, 2, 2, 3},
           {.stride = {1, 2}, .padding = {0, 1}, .dilation = {3, 2}}),
      conv("depthwise", {1, 3, 4, 4}, {3, 1, 3, 3}, {.padding = {1, 1}, .groups = 3}),
      conv("pointwise", {2, 3, 2, 2}, {2, 3, 1, 1}, {}),
      {.op = "max_pool2d",
       .inputs = {tied({1, 1, 5, 5}, 0, 2)},
       .run = [](In x) { return max_pool2d(x[0], {3, 3}, {.stride = {1, 1}}); },
       .label = "of_ties"},
  };
}

std::vector<OpCase> norm_edges() {
  // The result, and the updated running statistics.
  const auto running = [](In x) {
    const DType dtype = x[0].dtype() == f64 ? f64 : f32;
    const Tensor mean = full({2}, 0.3, dtype), var = full({2}, 1.5, dtype);
    const Tensor y =
        batch_norm(x[0], mean, var, x[1], x[2], {.training = true, .momentum = 0.3, .eps = 1e-3});
    return cat({flatten(y), mean, var});
  };
  return {
      {.op = "layer_norm",
       .inputs = {{{3, 5}}, {{5}}, {{5}}},
       .run = [](In x) { return layer_norm(x[0], {5}, x[1], x[2], 1e-3); },
       .label = "eps"},
      {.op = "batch_norm",
       .inputs = {{{3, 2, 2}}, {{2}}, {{2}}},
       .run = running,
       .label = "running"},
      {.op = "batch_norm",
       .inputs = {{{4, 3}}},
       .run = [](In x) { return batch_norm(x[0], {}, {}, {}, {}, {.training = true}); },
       .label = "plain"},
  };
}

std::vector<OpCase> loss_edges() {
  [[maybe_unused]] static constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                         None = Reduction::None;
  std::vector<OpCase> cases;
  const auto add = [&](std::string label, const CrossEntropyOptions& o) {
    cases.push_back({.op = "cross_entropy",
                     .inputs = {{{6, 3}}, {{6}, 0, 3, Input::Index}},
                     .run = [o](In x) { return cross_entropy(x[0], x[1], o); },
                     .label = std::move(label)});
  };
  for (const auto& [name, r] : {std::pair{"mean", Mean}, {"sum", Sum}, {"none", None}}) {
    add(name, {.reduction = r});
    add(std::string("smooth_") + name, {.reduction = r, .label_smoothing = 0.3});
    add(std::string("ignore_") + name, {.reduction = r, .ignore_index = 1});
    cases.push_back({.op = "mse_loss",
                     .inputs = {{{2, 3}}, {{2, 3}}},
                     .run = [r = r](In x) { return mse_loss(x[0], x[1], r); },
                     .label = name});
    cases.push_back(
        {.op = "nll_loss",
         .inputs = {{{6, 3}, -4, 0}, {{6}, 0, 3, Input::Index}},
         .run = [r = r](In x) { return nll_loss(x[0], x[1], {.reduction = r, .ignore_index = 1}); },
         .label = name});
    cases.push_back({.op = "cross_entropy_probabilities",
                     .inputs = {{{2, 3, 2}}, {{2, 3, 2}, 0, 1}},
                     .run = [r = r](In x) { return cross_entropy(x[0], x[1], {.reduction = r}); },
                     .label = name});
    cases.push_back({.op = "binary_cross_entropy_with_logits",
                     .inputs = {{{2, 3}, -40, 40}, {{2, 3}, 0, 1}},
                     .run =
                         [r = r](In x) {
                           return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = r});
                         },
                     .label = name});
    cases.push_back({.op = "kl_div",
                     .inputs = {{{2, 3}, -3, 0}, {{2, 3}, 0.1, 1}},
                     .run = [r = r](In x) { return kl_div(x[0], x[1], {.reduction = r}); },
                     .label = name});
  }
  const auto ties = [&](std::string name, Op2 f) {
    cases.push_back({.op = std::move(name),
                     .inputs = {tied({3, 4}, -2, 3), tied({3, 4}, -2, 3)},
                     .run = [f](In x) { return f(x[0], x[1]); },
                     .label = "of_ties"});
  };
  ties("l1_loss", [](const Tensor& x, const Tensor& t) { return l1_loss(x, t); });
  ties("smooth_l1_loss", [](const Tensor& x, const Tensor& t) { return smooth_l1_loss(x, t); });
  ties("huber_loss", [](const Tensor& x, const Tensor& t) { return huber_loss(x, t); });
  // (PyTorch's gradient does not match its value where a norm is below eps.)
  cases.push_back(
      {.op = "cosine_similarity",
       .inputs = {{{6, 3}, -1e-8, 1e-8, Input::Constant}, {{6, 3}, -2, 2, Input::Constant}},
       .run = [](In x) { return cosine_similarity(x[0], x[1]); },
       .label = "of_tiny",
       .differentiable = false});
  add("smooth_ignore", {.label_smoothing = 0.3, .ignore_index = 1});
  add("wholly_smooth", {.reduction = None, .label_smoothing = 1});
  for (const auto& [name, r] : {std::pair{"mean", Mean}, {"sum", Sum}})
    cases.push_back({.op = "cross_entropy",
                     .inputs = {{{6, 3}}},
                     .run =
                         [r = r](In x) {
                           return cross_entropy(x[0], full({6}, 7, i64),
                                                {.reduction = r, .ignore_index = 7});
                         },
                     .label = std::string("ignore_all_") + name});
  cases.push_back(
      {.op = "cross_entropy",
       .inputs = {tied({5, 3}, -2, 2), {{5}, 0, 3, Input::Index}},
       .run = [](In x) { return cross_entropy(x[0] + 8192, x[1], {.reduction = None}); },
       .label = "of_large"});
  return cases;
}

std::vector<OpCase> elementwise_edges() {
  std::vector<OpCase> cases;
  const auto far = [&](std::string name, Op1 f, double low, double high) {
    cases.push_back({.op = std::move(name),
                     .inputs = {{{11}, low, high}},
                     .run = [f](In x) { return f(x[0]); },
                     .label = "far"});
  };
  far("erf", erf, -6, 6);
  far("exp", exp, -40, 40);
  far("expm1", expm1, -40, 40);
  far("gelu", gelu, -6, 6);
  far("gelu_tanh", gelu_tanh, -6, 6);
  far("log", log, 1e-3, 1e3);
  far("log1p", log1p, -0.99, 1e3);
  far("rsqrt", rsqrt, 1e-3, 1e3);
  far("sigmoid", sigmoid, -20, 20);
  far("silu", silu, -20, 20);
  far("softplus", softplus, -40, 40);
  far("tanh", tanh, -12, 12);
  const auto ties = [&](std::string name, Op2 f, double low) {
    cases.push_back({.op = std::move(name),
                     .inputs = {tied({3, 1}, 0, 2), tied({4}, low, 2)},
                     .run = [f](In x) { return f(x[0], x[1]); },
                     .label = "of_ties"});
  };
  ties("maximum", maximum, 0);
  ties("minimum", minimum, 0);
  ties("pow", pow, -2);  // powers of zero
  return cases;
}

}  // namespace

std::vector<OpCase> edges() {
  std::vector<OpCase> all;
  for (auto* topic : {&elementwise_edges, &reduction_edges, &order_edges, &product_edges,
                      &norm_edges, &loss_edges})
    for (OpCase& c : topic()) all.push_back(std::move(c));
  return all;
}

}  // namespace mixtape::tests
