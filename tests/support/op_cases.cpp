#include "tests/support/op_cases.h"

#include <cmath>

namespace mixtape::tests {
namespace {

using In = const std::vector<Tensor>&;
using Op1 = Tensor (*)(const Tensor&);
using Op2 = Tensor (*)(const Tensor&, const Tensor&);
using OpS = Tensor (*)(const Tensor&, double);

OpCase unary(std::string name, Op1 f, double low = -3, double high = 3, double away = 0) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high, Input::Real, away}},
          .run = [f](In x) { return f(x[0]); },
          .empty = {{0, 4}}};
}
OpCase binary(std::string name, Op2 f, double low = -2, double high = 2) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high}, {{3, 5}, low, high}},
          .run = [f](In x) { return f(x[0], x[1]); },
          .empty = {{0, 4}, {0, 4}}};
}
OpCase with_scalar(std::string name, OpS f, double s, double low = -2, double high = 2) {
  return {.op = std::move(name),
          .inputs = {{{3, 5}, low, high}},
          .run = [f, s](In x) { return f(x[0], s); },
          .empty = {{0, 4}}};
}
OpCase predicate(OpCase c) {
  c.differentiable = false;
  return c;
}

std::vector<OpCase> elementwise() {
  return {
      unary("relu", relu, -3, 3, 0.1),
      unary("neg", neg),
      unary("abs", abs, -3, 3, 0.1),
      unary("gelu", gelu),
      unary("gelu_tanh", gelu_tanh),
      unary("silu", silu),
      unary("sigmoid", sigmoid),
      unary("tanh", tanh),
      unary("exp", exp, -2, 2),
      unary("log", log, 0.2, 3),
      unary("square", square),
      unary("sqrt", sqrt, 0.2, 3),
      unary("rsqrt", rsqrt, 0.2, 3),
      unary("reciprocal", reciprocal, 0.3, 3),
      unary("sin", sin),
      unary("cos", cos),
      unary("erf", erf),
      unary("log1p", log1p, -0.7, 3),
      unary("expm1", expm1, -2, 2),
      unary("softplus", softplus),
      binary("add", add),
      binary("sub", sub),
      binary("mul", mul),
      binary("div", div, 0.4, 2),
      binary("pow", pow, 0.4, 2),
      binary("maximum", maximum),
      binary("minimum", minimum),
      {.op = "add",
       .inputs = {{{3, 1, 4}}, {{2, 1}}},
       .run = [](In x) { return add(x[0], x[1]); },
       .label = "broadcast",
       .empty = {{3, 0, 4}, {1, 1}}},
      {.op = "mul",
       .inputs = {{{4}}, {{2, 3, 1}}},
       .run = [](In x) { return mul(x[0], x[1]); },
       .label = "broadcast",
       .empty = {{1}, {2, 0, 1}}},
      {.op = "mul",
       .inputs = {{{}}, {{2, 3}}},
       .run = [](In x) { return mul(x[0], x[1]); },
       .label = "with_0d"},
      with_scalar("add_scalar", add, 0.75),
      with_scalar("sub_scalar", sub, 0.75),
      with_scalar("mul_scalar", mul, -1.5),
      with_scalar("div_scalar", div, 0.8),
      with_scalar("pow_scalar", pow, 2.5, 0.3, 2),
      with_scalar(
          "sub_from_scalar", [](const Tensor& x, double s) { return sub(s, x); }, 0.75),
      with_scalar(
          "div_from_scalar", [](const Tensor& x, double s) { return div(s, x); }, 1.25, 0.4, 2),
      predicate(binary("eq", eq)),
      predicate(binary("ne", ne)),
      predicate(binary("lt", lt)),
      predicate(binary("le", le)),
      predicate(binary("gt", gt)),
      predicate(binary("ge", ge)),
      predicate(with_scalar("eq_scalar", eq, 1)),
      predicate(with_scalar("ne_scalar", ne, 1)),
      predicate(with_scalar("lt_scalar", lt, 0.3)),
      predicate(with_scalar("le_scalar", le, 0.3)),
      predicate(with_scalar("gt_scalar", gt, 0.3)),
      predicate(with_scalar("ge_scalar", ge, 0.3)),
      {.op = "logical_and",
       .inputs = {{{7}, 0, 1, Input::Mask}, {{7}, 0, 1, Input::Mask}},
       .run = [](In x) { return logical_and(x[0], x[1]); },
       .differentiable = false,
       .empty = {{0}, {0}}},
      {.op = "logical_or",
       .inputs = {{{7}, 0, 1, Input::Mask}, {{7}, 0, 1, Input::Mask}},
       .run = [](In x) { return logical_or(x[0], x[1]); },
       .differentiable = false,
       .empty = {{0}, {0}}},
      {.op = "where",
       .inputs = {{{3, 4}, 0, 1, Input::Mask}, {{3, 4}}, {{4}}},
       .run = [](In x) { return where(x[0], x[1], x[2]); },
       .empty = {{0, 4}, {0, 4}, {4}}},
      {.op = "masked_fill",
       .inputs = {{{3, 4}}, {{4}, 0, 1, Input::Mask}},
       .run = [](In x) { return masked_fill(x[0], x[1], -7); },
       .empty = {{0, 4}, {4}}},
      {.op = "cast",
       .inputs = {{{3, 4}}},
       .run = [](In x) { return cast(cast(x[0], f32), x[0].dtype()); },
       .second_order = false,
       .tolerance = 1e6,
       .empty = {{0, 2}},
       .narrow = false},
      {.op = "cast_to_integer",
       .inputs = {{{3, 4}, -9, 9}},
       .run = [](In x) { return cast(x[0], i32); },
       .differentiable = false,
       .empty = {{0, 2}}},
      {.op = "clone",
       .inputs = {{{3, 4}}},
       .run = [](In x) { return clone(x[0]); },
       .empty = {{0, 2}}},
  };
}

std::vector<OpCase> views() {
  return {
      {.op = "reshape",
       .inputs = {{{3, 4}}},
       .run =
           [](In x) {
             return reshape(x[0], {2, -1});
           }},
      {.op = "reshape",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return flatten(transpose(x[0], 0, 1), 1); },
       .label = "of_transposed",
       .empty = {{2, 0, 4}}},
      {.op = "permute",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return permute(x[0], {2, 0, 1});
           },
       .empty = {{2, 0, 3}}},
      {.op = "expand",
       .inputs = {{{3, 1}}},
       .run =
           [](In x) {
             return expand(x[0], {2, 3, 4});
           },
       .empty = {{3, 1}}},
      {.op = "slice",
       .inputs = {{{7, 3}}},
       .run = [](In x) { return slice(x[0], 0, 1, 6, 2); },
       .empty = {{7, 0}}},
      {.op = "slice",
       .inputs = {{{6, 3}}},
       .run =
           [](In x) {
             const auto parts = chunk(x[0], 3);
             return parts[0] * parts[2] + parts[1];
           },
       .label = "chunks"},
      {.op = "slice",
       .inputs = {{{4, 3}}},
       .run = [](In x) { return select(x[0], 1, -1) * select(x[0], 1, 0); },
       .label = "select"},
      {.op = "place_slice",
       .inputs = {{{2, 3}}},
       .run =
           [](In x) {  // the gradient of a slice, recorded
             const Tensor whole = ones({5, 3}, x[0].dtype()).set_requires_grad();
             return grad({sum(slice(whole, 0, 1, 5, 2) * x[0])}, {whole},
                         {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{4, 3}}},
       .run =
           [](In x) {
             return cat({x[0], x[1]});
           },
       .empty = {{0, 3}, {2, 3}}},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{2, 3}}},
       .run =
           [](In x) {
             return stack({x[0], x[1]}, 1);
           },
       .label = "stack"},
  };
}

std::vector<OpCase> reductions() {
  return {
      {.op = "sum",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return sum(x[0], {0, -1});
           },
       .empty = {{2, 0, 4}}},
      {.op = "sum",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return sum(x[0]); },
       .label = "all",
       .empty = {{0, 3}}},
      {.op = "mean",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return mean(x[0], {1}, true); },
       .empty = {{0, 3, 4}}},
      {.op = "max",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return max(x[0], {1}); },
       .empty = {{0, 5}}},
      {.op = "min",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return min(x[0], {0}); },
       .empty = {{5, 0}}},
      {.op = "argmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return argmax(x[0], 1); },
       .differentiable = false,
       .empty = {{0, 5}}},
      {.op = "argmin",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return argmin(x[0], 0, true); },
       .differentiable = false,
       .empty = {{5, 0}}},
      {.op = "sum",
       .inputs = {{{4, 5}}},
       .run = [](In x) { return var(x[0], {1}); },
       .label = "in_var",
       .tolerance = 4,
       .composite = true},
      {.op = "sqrt",
       .inputs = {{{4, 5}}},
       .run = [](In x) { return stddev(x[0], {0}, true); },
       .label = "in_stddev",
       .tolerance = 4,
       .composite = true},
  };
}

std::vector<OpCase> products() {
  const auto conv = [](Conv2dOptions o) {
    return [o](In x) { return conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o); };
  };
  // The gradient of a convolution with respect to operand i, recorded.
  const auto conv_gradient = [](size_t i) {
    return [i](In x) {
      const Tensor a = i == 0 ? ones({1, 2, 4, 5}, x[0].dtype()).set_requires_grad() : x[1];
      const Tensor w = i == 1 ? ones({3, 2, 2, 3}, x[0].dtype()).set_requires_grad() : x[1];
      return grad({sum(conv2d(a, w) * x[0])}, {i == 0 ? a : w}, {.create_graph = true})[0];
    };
  };
  return {
      {.op = "matmul",
       .inputs = {{{3, 4}}, {{4, 2}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .tolerance = 4,
       .empty = {{0, 4}, {4, 2}}},
      {.op = "matmul",
       .inputs = {{{2, 1, 3, 4}}, {{5, 4, 2}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .label = "batched",
       .tolerance = 4,
       .empty = {{2, 1, 3, 0}, {5, 0, 2}}},
      {.op = "matmul",
       .inputs = {{{4}}, {{4, 3}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .label = "vector",
       .tolerance = 4},
      {.op = "linear",
       .inputs = {{{2, 3, 4}}, {{5, 4}}, {{5}}},
       .run = [](In x) { return linear(x[0], x[1], x[2]); },
       .tolerance = 4,
       .empty = {{0, 4}, {5, 4}, {5}}},
      {.op = "linear",
       .inputs = {{{3, 4}}, {{5, 4}}},
       .run = [](In x) { return linear(x[0], x[1]); },
       .label = "no_bias",
       .tolerance = 4},
      {.op = "conv2d",
       .inputs = {{{2, 3, 5, 6}}, {{4, 3, 3, 2}}, {{4}}},
       .run = conv({}),
       .tolerance = 8,
       .empty = {{0, 3, 5, 6}, {4, 3, 3, 2}, {4}}},
      {.op = "conv2d",
       .inputs = {{{2, 4, 7, 6}}, {{6, 2, 3, 3}}, {{6}}},
       .run = conv({.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}),
       .label = "general",
       .tolerance = 8},
      {.op = "conv2d_input",
       .inputs = {{{1, 3, 3, 3}}, {{3, 2, 2, 3}}},
       .run = conv_gradient(0),
       .tolerance = 8,
       .composite = true},
      {.op = "conv2d_weight",
       .inputs = {{{1, 3, 3, 3}}, {{1, 2, 4, 5}}},
       .run = conv_gradient(1),
       .tolerance = 8,
       .composite = true},
      {.op = "max_pool2d",
       .inputs = {{{2, 3, 6, 5}}},
       .run =
           [](In x) {
             return max_pool2d(x[0], {2, 2});
           },
       .second_order = false,
       .empty = {{0, 3, 6, 5}}},
      {.op = "max_pool2d",
       .inputs = {{{1, 2, 5, 5}}},
       .run =
           [](In x) {
             return max_pool2d(x[0], {3, 3}, {.stride = {2, 2}, .padding = {1, 1}});
           },
       .label = "padded",
       .second_order = false},
  };
}

std::vector<OpCase> networks() {
  const auto batch_norm_case = [](bool training) {
    return [training](In x) {
      const Tensor mean = full({x[0].size(1)}, 0.1, x[0].dtype() == f64 ? f64 : f32),
                   var = full_like(mean, 1.3);
      return batch_norm(x[0], mean, var, x[1], x[2], {.training = training});
    };
  };
  const auto cross_entropy_case = [](CrossEntropyOptions o) {
    return [o](In x) { return cross_entropy(x[0], x[1], o); };
  };
  return {
      {.op = "softmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return softmax(x[0]); },
       .empty = {{0, 5}}},
      {.op = "softmax",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return softmax(x[0], 1); },
       .label = "middle"},
      {.op = "log_softmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return log_softmax(x[0], 0); },
       .empty = {{5, 0}}},
      {.op = "layer_norm",
       .inputs = {{{4, 6}}, {{6}, 0.5, 1.5}, {{6}}},
       .run = [](In x) { return layer_norm(x[0], {6}, x[1], x[2]); },
       .second_order = false,
       .tolerance = 8,
       .empty = {{0, 6}, {6}, {6}}},
      {.op = "layer_norm",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return layer_norm(x[0], {3, 4});
           },
       .label = "plain",
       .second_order = false,
       .tolerance = 8},
      {.op = "batch_norm",
       .inputs = {{{4, 3, 2, 2}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(true),
       .second_order = false,
       .tolerance = 8},
      {.op = "batch_norm",
       .inputs = {{{4, 3}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(false),
       .label = "eval",
       .second_order = false,
       .tolerance = 8,
       .empty = {{0, 3}, {3}, {3}}},
      {.op = "dropout",
       .inputs = {{{6, 7}}},
       .run =
           [](In x) {
             const Seed seed(5);
             return dropout(x[0], 0.4);
           },
       .empty = {{0, 3}}},
      {.op = "embedding",
       .inputs = {{{5, 3}}, {{2, 4}, 0, 5, Input::Index}},
       .run = [](In x) { return embedding(x[0], x[1]); },
       .empty = {{5, 3}, {0, 4}}},
      {.op = "scatter_rows",
       .inputs = {{{4, 3}}, {{4}, 0, 5, Input::Index}},
       .run =
           [](In x) {  // the gradient of an embedding, recorded
             const Tensor table = ones({5, 3}, x[0].dtype()).set_requires_grad();
             return grad({sum(embedding(table, x[1]) * x[0])}, {table}, {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "cross_entropy",
       .inputs = {{{5, 4}}, {{5}, 0, 4, Input::Index}},
       .run = cross_entropy_case({.reduction = Reduction::None}),
       .empty = {{0, 4}, {0}}},
      {.op = "cross_entropy",
       .inputs = {{{5, 4}}, {{5}, 0, 4, Input::Index}},
       .run = cross_entropy_case({.label_smoothing = 0.2, .ignore_index = 2, .weight = 3}),
       .label = "smoothed"},
      {.op = "mse_loss",
       .inputs = {{{3, 4}}, {{3, 4}}},
       .run = [](In x) { return mse_loss(x[0], x[1], Reduction::None); },
       .tolerance = 4,
       .empty = {{0, 4}, {0, 4}}},
  };
}

}  // namespace

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases;
    for (auto* topic : {&elementwise, &views, &reductions, &products, &networks})
      for (OpCase& c : topic()) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves) {
  std::vector<Shape> shapes;
  for (const Input& in : c.inputs) shapes.push_back(in.shape);
  return make_inputs(c, dtype, leaves, shapes);
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Input& in = c.inputs[i];
    const Seed seed(100 + i);
    const bool real = in.kind == Input::Real || in.kind == Input::Constant;
    Tensor t(shapes[i], real ? f64 : in.kind == Input::Index ? i64 : boolean);
    for (int64_t k = 0; k < t.numel(); ++k) {
      double v = in.low + (in.high - in.low) * generator().uniform();
      if (std::abs(v) < in.away) v = v < 0 ? v - in.away : v + in.away;
      if (in.kind == Input::Index) v = std::floor(v);
      if (in.kind == Input::Mask) v = v > 0.5;
      t.set(k, v);
    }
    if (real) t = t.to(dtype);
    if (leaves && in.kind == Input::Real) t.set_requires_grad();
    made.push_back(t);
  }
  return made;
}

}  // namespace mixtape::tests
