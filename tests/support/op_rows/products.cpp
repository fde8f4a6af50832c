// Matrix products, convolutions, pools.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

namespace {

OpCase einsum_case(std::string label, const char* equation, std::vector<Input> inputs,
                   std::string op = "matmul") {
  return {.op = std::move(op),
          .inputs = std::move(inputs),
          .run = [equation](In x) { return einsum(equation, x); },
          .label = "einsum_" + label,
          .tolerance = 8};
}

// The recorded gradient of f with respect to an image of this shape: linear in x[0].
auto gradient_of(std::function<Tensor(const Tensor&)> f, Shape shape) {
  return [f, shape](In x) {
    const Tensor image =
        reshape(arange(0, double(shape.size()), 1, x[0].dtype()), shape).set_requires_grad();
    return grad({sum(f(image) * x[0])}, {image}, {.create_graph = true})[0];
  };
}

}  // namespace

std::vector<OpCase> products() {
  const auto groups_of = [](const Tensor& rows) {  // the second is empty
    return std::vector<int64_t>{rows.size(0) * 2 / 5, 0, rows.size(0) - rows.size(0) * 2 / 5};
  };
  const auto linear_to = [](Activation f) {
    return [f](In x) { return linear(x[0], x[1], x[2], {.activation = f}); };
  };
  const auto conv = [](Conv2dOptions o) {
    return [o](In x) { return conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o); };
  };
  const auto conv_and_residual = [](Conv2dOptions o) {
    return [o](In x) {
      Conv2dOptions with = o;
      with.residual = x[3];
      return conv2d(x[0], x[1], x[2], with);
    };
  };
  const auto conv_of_volumes = [](In x) {
    return conv3d(x[0], x[1], x[2],
                  {.stride = {2, 1, 2}, .padding = {1, 0, 1}, .dilation = {2, 1, 1}, .groups = 2});
  };
  const auto conv_transpose = [](ConvTranspose2dOptions o) {
    return [o](In x) { return conv_transpose2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o); };
  };
  return {
      {.op = "matmul",
       .inputs = {{{3, 4}}, {{4, 2}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .tolerance = 4,
       .empty = {{0, 4}, {4, 2}},
       .sums = {{2, 4096}, {4096, 2}}},
      {.op = "matmul",
       .inputs = {{{2, 1, 3, 4}}, {{5, 4, 2}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .label = "batched",
       .tolerance = 4,
       .empty = {{2, 1, 3, 0}, {5, 0, 2}},
       .sums = {{2, 1, 2, 4096}, {2, 4096, 2}}},
      {.op = "matmul",
       .inputs = {{{4}}, {{4, 3}}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .label = "vector",
       .tolerance = 4,
       .sums = {{4096}, {4096, 3}}},
      {.op = "matmul",
       .inputs = {{{2, 3, 4}}, {{2, 4, 5}}},
       .run = [](In x) { return bmm(x[0], x[1]); },
       .label = "bmm",
       .tolerance = 4,
       .empty = {{0, 3, 4}, {0, 4, 5}},
       .sums = {{1, 2, 4096}, {1, 4096, 2}}},
      {.op = "matmul",
       .inputs = {{{2, 3, 4}, -99, 99, Input::Index}, {{4, 5}, -99, 99, Input::Index}},
       .run = [](In x) { return matmul(x[0], x[1]); },
       .label = "of_integers",
       .differentiable = false},
      {.op = "grouped_matmul",
       .inputs = {{{5, 4}}, {{3, 4, 2}}},
       .run = [=](In x) { return grouped_matmul(x[0], x[1], groups_of(x[0])); },
       .tolerance = 4,
       .empty = {{0, 4}, {3, 4, 2}},
       .repeat = {1, 2},
       .sums = {{5, 4096}, {3, 4096, 2}}},
      {.op = "grouped_outer",
       .inputs = {{{5, 2}}, {{5, 4}}},
       .run =
           [=](In x) {  // the gradient of the matrices, recorded
             const Tensor w = ones({3, 4, 2}, x[0].dtype()).set_requires_grad();
             const Tensor y = grouped_matmul(x[1], w, groups_of(x[1]));
             return grad({sum(y * x[0])}, {w}, {.create_graph = true})[0];
           },
       .composite = true},
      {.op = "mul",
       .inputs = {{{3}}, {{4}}},
       .run = [](In x) { return outer(x[0], x[1]); },
       .label = "outer",
       .empty = {{0}, {4}}},
      {.op = "dot",
       .inputs = {{{20}}, {{20}}},
       .run = [](In x) { return dot(x[0], x[1]); },
       .tolerance = 4,
       .empty = {{0}, {0}},
       .sums = {{4096}, {4096}}},
      {.op = "addmm",
       .inputs = {{{3, 5}}, {{3, 4}}, {{4, 5}}},
       .run = [](In x) { return addmm(x[0], x[1], x[2]); },
       .tolerance = 4,
       .empty = {{3, 5}, {3, 0}, {0, 5}},
       .sums = {{2, 2}, {2, 4096}, {4096, 2}}},
      {.op = "addmm",
       .inputs = {{{5}}, {{3, 4}}, {{4, 5}}},
       .run = [](In x) { return addmm(x[0], x[1], x[2], {.beta = -0.5, .alpha = 2}); },
       .label = "row",
       .tolerance = 4,
       .empty = {{5}, {0, 4}, {4, 5}},
       .sums = {{2}, {2, 4096}, {4096, 2}}},
      {.op = "addmm",
       .inputs = {{{3, 1}}, {{3, 4}}, {{4, 5}}},
       .run = [](In x) { return addmm(x[0], x[1], x[2], {.alpha = 3}); },
       .label = "column",
       .tolerance = 8},
      einsum_case("product", "ik,kj->ji", {{{3, 4}}, {{4, 2}}}),
      einsum_case("implicit", "b...k,kb", {{{2, 3, 1, 4}}, {{4, 2}}}),
      einsum_case("heads", "bqhd, bkhd -> bhqk", {{{2, 3, 2, 4}}, {{2, 5, 2, 4}}}),
      einsum_case("ellipsis", "...ij,...jk->...ik", {{{2, 1, 3, 4}}, {{5, 4, 2}}}),
      einsum_case("ones", "ij,jk->k", {{{3, 1}}, {{4, 2}}}, "sum"),
      einsum_case("diagonals", "iijk,kli->jl", {{{3, 3, 2, 4}}, {{4, 2, 3}}}),
      einsum_case("three", "ab,bcd,de->ace", {{{2, 3}}, {{3, 2, 4}}, {{4, 2}}}),
      einsum_case("trace", "ii", {{{4, 4}}}, "sum"),
      einsum_case("lone", "ij,kl->jl", {{{2, 3}}, {{4, 2}}}, "sum"),
      einsum_case("elements", "...,i...->...i", {{{2, 3}}, {{4, 2, 3}}}, "mul"),
      {.op = "matmul",
       .inputs = {{{2, 3, 4}}, {{2, 3, 5}}, {{6, 4, 5}}, {{6}}},
       .run = [](In x) { return bilinear(x[0], x[1], x[2], x[3]); },
       .label = "bilinear",
       .tolerance = 8},
      {.op = "linear",
       .inputs = {{{2, 3, 4}}, {{5, 4}}, {{5}}},
       .run = [](In x) { return linear(x[0], x[1], x[2]); },
       .tolerance = 4,
       .empty = {{0, 4}, {5, 4}, {5}},
       .sums = {{64, 64, 4}, {5, 4}, {5}}},
      {.op = "linear",
       .inputs = {{{3, 4}}, {{5, 4}}},
       .run = [](In x) { return linear(x[0], x[1]); },
       .label = "no_bias",
       .tolerance = 4,
       .sums = {{2, 4096}, {3, 4096}}},
      {.op = "linear",
       .inputs = {{{2, 3, 4}}, {{5, 4}}, {{5}}},
       .run = linear_to(Activation::Gelu),
       .label = "to_gelu",
       .tolerance = 4,
       .empty = {{0, 4}, {5, 4}, {5}},
       .sums = {{1, 2, 4096}, {3, 4096}, {3}}},
      {.op = "linear",
       .inputs = {{{3, 4}}, {{5, 4}}, {{5}}},
       .run = linear_to(Activation::GeluTanh),
       .label = "to_gelu_tanh",
       .tolerance = 4,
       .sums = {{2, 4096}, {3, 4096}, {3}}},
      {.op = "linear",
       .inputs = {{{3, 4}}, {{5, 4}}, {{5}}},
       .run = linear_to(Activation::Relu),
       .label = "to_relu",
       .tolerance = 4,
       .sums = {{4096, 4}, {5, 4}, {5}}},
      {.op = "linear",
       .inputs = {{{2, 3, 4}}, {{5, 4}}, {{5}}, {{2, 3, 5}}},
       .run = [](In x) { return linear(x[0], x[1], x[2], {.residual = x[3]}); },
       .label = "and_residual",
       .tolerance = 4,
       .empty = {{0, 4}, {5, 4}, {5}, {0, 5}},
       .sums = {{1, 2, 4096}, {3, 4096}, {3}, {1, 2, 3}}},
      {.op = "linear",
       .inputs = {{{3, 4}}, {{5, 4}}, {{5}}, {{3, 5}}},
       .run =
           [](In x) {
             return linear(x[0], x[1], x[2],
                           {.activation = Activation::GeluTanh, .residual = x[3]});
           },
       .label = "and_residual_to_gelu_tanh",
       .tolerance = 4},
      {.op = "conv2d",
       .inputs = {{{2, 3, 5, 6}}, {{4, 3, 3, 2}}, {{4}}},
       .run = conv({}),
       .tolerance = 8,
       .empty = {{0, 3, 5, 6}, {4, 3, 3, 2}, {4}},
       .sums = {{1, 683, 4, 3}, {2, 683, 3, 2}, {2}}},
      {.op = "conv2d",
       .inputs = {{{2, 4, 7, 6}}, {{6, 2, 3, 3}}, {{6}}},
       .run = conv({.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}),
       .label = "general",
       .tolerance = 8,
       .sums = {{2, 4, 70, 62}, {6, 2, 3, 3}, {6}}},
      {.op = "conv2d",
       .inputs = {{{2, 3, 5, 6}}, {{4, 3, 3, 2}}, {{4}}},
       .run = conv({.activation = Activation::Relu}),
       .label = "to_relu",
       .tolerance = 8},
      {.op = "conv2d",
       .inputs = {{{2, 3, 4, 3}}, {{3, 1, 3, 2}}, {{3}}},
       .run = conv({.padding = 1, .groups = 3, .activation = Activation::Gelu}),
       .label = "to_gelu",
       .tolerance = 8,
       .sums = {{2, 3, 64, 32}, {3, 1, 3, 2}, {3}}},
      {.op = "conv2d",
       .inputs = {{{2, 3, 5, 6}}, {{4, 3, 3, 2}}, {{4}}, {{2, 4, 3, 5}}},
       .run = conv_and_residual({.activation = Activation::Relu}),
       .label = "and_residual_to_relu",
       .tolerance = 8,
       .empty = {{0, 3, 5, 6}, {4, 3, 3, 2}, {4}, {0, 4, 3, 5}}},
      {.op = "conv2d",
       .inputs = {{{2, 4, 5, 3}}, {{6, 2, 1, 1}}, {{6}}, {{2, 6, 3, 2}}},
       .run = conv_and_residual({.stride = 2, .groups = 2, .activation = Activation::Gelu}),
       .label = "and_residual_to_gelu",
       .tolerance = 8},
      {.op = "conv2d",
       .inputs = {{{3, 4, 3}}, {{3, 1, 3, 2}}, {{3}}, {{3, 4, 4}}},
       .run = conv_and_residual({.padding = 1, .groups = 3}),
       .label = "depthwise_and_residual",
       .tolerance = 8},
      {.op = "conv2d",
       .inputs = {{{2, 4, 9}}, {{6, 4, 3}}, {{2, 6, 7}}},
       .run = [](In x) { return conv1d(x[0], x[1], {}, {.residual = x[2]}); },
       .label = "of_lines_and_residual",
       .tolerance = 8},
      {.op = "conv2d",
       .inputs = {{{2, 4, 9}}, {{6, 4, 3}}},
       .run = [](In x) { return conv1d(x[0], x[1], {}, {.activation = Activation::GeluTanh}); },
       .label = "of_lines_to_gelu_tanh",
       .tolerance = 8},
      {.op = "conv2d",
       .inputs = {{{2, 4, 9}}, {{6, 2, 3}}, {{6}}},
       .run =
           [](In x) {
             return conv1d(x[0], x[1], x[2],
                           {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
           },
       .label = "of_lines",
       .tolerance = 8,
       .empty = {{0, 4, 9}, {6, 2, 3}, {6}},
       .sums = {{2, 4, 4096}, {6, 2, 3}, {6}}},
      {.op = "conv2d",
       .inputs = {{{2, 4, 5, 3, 4}}, {{6, 2, 2, 3, 2}}, {{6}}},
       .run = conv_of_volumes,
       .label = "of_volumes",
       .tolerance = 8,
       .empty = {{0, 4, 5, 3, 4}, {6, 2, 2, 3, 2}, {6}},
       .sums = {{1, 684, 5, 3, 4}, {6, 342, 2, 3, 2}, {6}}},
      {.op = "conv_transpose2d",
       .inputs = {{{2, 3, 3, 4}}, {{3, 2, 3, 2}}, {{2}}},
       .run = conv_transpose({}),
       .tolerance = 8,
       .empty = {{0, 3, 3, 4}, {3, 2, 3, 2}, {2}},
       .sums = {{1, 683, 3, 4}, {683, 2, 3, 2}, {2}}},
      {.op = "conv_transpose2d",
       .inputs = {{{2, 4, 3, 4}}, {{4, 3, 3, 2}}, {{6}}},
       .run = conv_transpose({.stride = {2, 3},
                              .padding = {1, 2},
                              .output_padding = {1, 0},
                              .dilation = {1, 2},
                              .groups = 2}),
       .label = "general",
       .tolerance = 8},
      {.op = "conv_transpose2d",
       .inputs = {{{1, 2, 3, 3}}, {{2, 3, 2, 2}}},
       .run = conv_transpose({.output_padding = {2, 1}, .dilation = {3, 2}}),
       .label = "padded_beyond_the_stride",
       .tolerance = 8},
      {.op = "conv_transpose2d",
       .inputs = {{{2, 4, 3, 2, 3}}, {{4, 3, 2, 3, 2}}, {{6}}},
       .run =
           [](In x) {
             return conv_transpose3d(x[0], x[1], x[2],
                                     {.stride = {2, 1, 3},
                                      .padding = {1, 1, 0},
                                      .output_padding = {1, 0, 2},
                                      .dilation = {2, 1, 1},
                                      .groups = 2});
           },
       .label = "of_volumes",
       .tolerance = 8,
       .empty = {{0, 4, 3, 2, 3}, {4, 3, 2, 3, 2}, {6}},
       .sums = {{1, 684, 3, 2, 3}, {684, 3, 2, 3, 2}, {6}}},
      {.op = "conv2d_weight",
       .inputs = {{{1, 3, 3, 3}}, {{1, 2, 4, 5}}},
       .run =
           [](In x) {  // the gradient of a convolution with respect to its weight, recorded
             const Tensor w = ones({3, 2, 2, 3}, x[0].dtype()).set_requires_grad();
             return grad({sum(conv2d(x[1], w) * x[0])}, {w}, {.create_graph = true})[0];
           },
       .tolerance = 8,
       .composite = true,
       .repeat = {1, 1}},
      {.op = "conv2d_weight",
       .inputs = {{{1, 3, 2, 3, 3}}, {{1, 2, 4, 4, 5}}},
       .run =
           [](In x) {
             const Tensor w = ones({3, 2, 2, 2, 3}, x[0].dtype()).set_requires_grad();
             const Tensor y = conv3d(x[1], w, {}, {.dilation = {2, 1, 1}});
             return grad({sum(y * x[0])}, {w}, {.create_graph = true})[0];
           },
       .label = "of_volumes",
       .tolerance = 8,
       .composite = true,
       .repeat = {1, 1}},
      {.op = "max_pool2d",
       .inputs = {{{2, 3, 6, 5}}},
       .run = [](In x) { return max_pool2d(x[0], {2, 2}); },
       .empty = {{0, 3, 6, 5}}},
      {.op = "max_pool2d_indices",
       .inputs = {{{2, 3, 6, 5}}},
       .run = [](In x) { return max_pool2d_with_indices(x[0], 2).indices; },
       .differentiable = false,
       .empty = {{0, 3, 6, 5}}},
      {.op = "max_pool2d",
       .inputs = {{{1, 2, 6, 5}}},
       .run =
           [](In x) {
             return max_pool2d(x[0], {3, 2},
                               {.stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true});
           },
       .label = "padded"},
      {.op = "max_pool2d",
       .inputs = {{{2, 3, 7}}},
       .run = [](In x) { return max_pool1d(x[0], 3, {.stride = 2, .padding = 1}); },
       .label = "of_lines",
       .empty = {{0, 3, 7}}},
      {.op = "adaptive_max_pool2d",
       .inputs = {{{2, 2, 5, 7}}},
       .run = [](In x) { return adaptive_max_pool2d(x[0], {3, 2}); },
       .empty = {{0, 2, 5, 7}}},
      {.op = "adaptive_max_pool2d",
       .inputs = {{{2, 2, 7}}},
       .run = [](In x) { return adaptive_max_pool1d(x[0], 3); },
       .label = "of_lines"},
      {.op = "put_at",
       .inputs = {{{2, 1, 3, 3}}},
       .run = gradient_of([](const Tensor& x) { return adaptive_max_pool2d(x, {3, 3}); },
                          {2, 1, 5, 4}),
       .composite = true},
      {.op = "take_at",
       .inputs = {{{2, 1, 4, 5}}},
       .run =
           [](In x) {  // the gradient of put_at, recorded
             const Tensor w = ones({2, 1, 2, 2}, x[0].dtype()).set_requires_grad();
             const auto pool = [](const Tensor& t) { return max_pool2d(t, {2, 2}); };
             const Tensor g = gradient_of(pool, {2, 1, 4, 5})({w});
             return grad({sum(g * x[0])}, {w}, {.create_graph = true})[0];
           },
       .composite = true},
      {.op = "avg_pool2d",
       .inputs = {{{2, 3, 6, 5}}},
       .run = [](In x) { return avg_pool2d(x[0], {2, 3}); },
       .tolerance = 2,
       .empty = {{0, 3, 6, 5}}},
      {.op = "avg_pool2d",
       .inputs = {{{1, 2, 6, 7}}},
       .run =
           [](In x) {
             return avg_pool2d(x[0], {3, 4},
                               {.stride = {2, 3}, .padding = {1, 2}, .ceil_mode = true});
           },
       .label = "padded",
       .tolerance = 2},
      {.op = "avg_pool2d",
       .inputs = {{{2, 3, 7}}},
       .run =
           [](In x) {
             return avg_pool1d(x[0], 4, {.stride = 2, .padding = 2, .count_include_pad = false});
           },
       .label = "of_lines",
       .tolerance = 2,
       .empty = {{0, 3, 7}}},
      {.op = "avg_pool2d_gradient",
       .inputs = {{{2, 1, 3, 2}}},
       .run = gradient_of([](const Tensor& x) { return avg_pool2d(x, {2, 3}, {.stride = {2, 2}}); },
                          {2, 1, 6, 5}),
       .composite = true},
      {.op = "adaptive_avg_pool2d",
       .inputs = {{{2, 2, 5, 7}}},
       .run = [](In x) { return adaptive_avg_pool2d(x[0], {3, 9}); },
       .tolerance = 2,
       .empty = {{0, 2, 5, 7}},
       .sums = {{1, 1, 192, 576}}},
      {.op = "adaptive_avg_pool2d",
       .inputs = {{{2, 2, 7}}},
       .run = [](In x) { return adaptive_avg_pool1d(x[0], 1); },
       .label = "of_lines",
       .tolerance = 2,
       .sums = {{1, 2, 4096}}},
      {.op = "adaptive_avg_pool2d_gradient",
       .inputs = {{{2, 1, 3, 2}}},
       .run = gradient_of([](const Tensor& x) { return adaptive_avg_pool2d(x, {3, 2}); },
                          {2, 1, 5, 5}),
       .composite = true},
  };
}

}  // namespace mixtape::tests
