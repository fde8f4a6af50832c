// Prints ops_reference.json: what libtorch makes of ops_problem.h in f64, values and gradients. Not
// part of the build. Written with libtorch 1.13:
//   g++ -std=c++17 -I. -I$TORCH/include -I$TORCH/include/torch/csrc/api/include
//     tests/data/make_ops_reference.cpp -ltorch -ltorch_cpu -lc10 && ./a.out >
//     tests/data/ops_reference.json
#include <torch/torch.h>

#include <cstdio>
#include <functional>
#include <map>

#include "tests/data/ops_problem.h"

using torch::Tensor, torch::indexing::Slice;
using X = const std::vector<Tensor>&;
using Y = std::vector<Tensor>;
using Run = std::function<Y(X)>;
namespace F = torch::nn::functional;

static Run loss(int64_t reduction, double smoothing = 0, int64_t ignore = -100) {
  return [=](X x) -> Y {
    return {at::cross_entropy_loss(x[0], x[1], {}, reduction, ignore, smoothing)};
  };
}
static Run ignoring_all(int64_t reduction) {
  return [=](X x) -> Y { return {at::cross_entropy_loss(x[0], x[1] * 0 + 7, {}, reduction, 7)}; };
}
static Run conv(std::vector<int64_t> stride, std::vector<int64_t> padding,
                std::vector<int64_t> dilation, int64_t groups) {
  return [=](X x) -> Y {
    return {torch::conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), stride, padding, dilation,
                          groups)};
  };
}
static Run norm(bool training) {
  return [=](X x) -> Y {
    const Tensor mean = x[3].clone(), var = x[4].clone();
    return {torch::batch_norm(x[0], x[1], x[2], mean, var, training, 0.3, 1e-3, false), mean, var};
  };
}
template <class Op>
static Run over(const Op& op) {
  return [op](X x) -> Y { return {op(x[0])}; };
}

static Run var(int64_t correction, bool keepdim = false) {
  return [=](X x) -> Y {
    return {x[0].var(c10::IntArrayRef{0, 2}, c10::optional<int64_t>(correction), keepdim)};
  };
}

static std::map<std::string, Run> runs() {
  const std::vector<int64_t> dims = {0, 2};
  enum { none, mean, sum };
  return {
      {"add", [](X x) -> Y { return {x[0] + x[1]}; }},
      {"sub", [](X x) -> Y { return {x[0] - x[1]}; }},
      {"mul", [](X x) -> Y { return {x[0] * x[1]}; }},
      {"div", [](X x) -> Y { return {x[0] / x[1]}; }},
      {"pow", [](X x) -> Y { return {x[0].pow(x[1])}; }},
      {"pow of zero", [](X x) -> Y { return {x[0].pow(x[1])}; }},
      {"maximum", [](X x) -> Y { return {torch::maximum(x[0], x[1])}; }},
      {"minimum", [](X x) -> Y { return {torch::minimum(x[0], x[1])}; }},
      {"maximum of ties", [](X x) -> Y { return {torch::maximum(x[0], x[1])}; }},
      {"where", [](X x) -> Y { return {torch::where(x[2], x[0], x[1])}; }},
      {"masked_fill", [](X x) -> Y { return {x[0].masked_fill(x[1], 0.5)}; }},
      {"expand", over([](Tensor x) {
         return x.expand({2, 2, 2, 3});
       })},
      {"scalars", over([](Tensor x) { return 3 / (2 - (x * 0.5 + 1).pow(-1.5)) - x.pow(3) / 4; })},
      {"views", over([](Tensor x) {
         return x.permute({2, 0, 1}).index({Slice(0, 4, 2)}).reshape({3, -1}).select(1, -1);
       })},
      {"cat",
       [](X x) -> Y {
         return {torch::cat({x[0], x[1], x[0]}, 1)};
       }},
      {"stack",
       [](X x) -> Y {
         return {torch::stack({x[0], x[1]}, -1)};
       }},
      {"matmul", [](X x) -> Y { return {torch::matmul(x[0], x[1])}; }},
      {"matmul 1d 1d", [](X x) -> Y { return {torch::matmul(x[0], x[1])}; }},
      {"matmul 1d 3d", [](X x) -> Y { return {torch::matmul(x[0], x[1])}; }},
      {"matmul 3d 1d", [](X x) -> Y { return {torch::matmul(x[0], x[1])}; }},
      {"linear", [](X x) -> Y { return {F::linear(x[0], x[1], x[2])}; }},
      {"embedding", [](X x) -> Y { return {torch::embedding(x[0], x[1])}; }},
      {"argmax", over([](Tensor x) { return x.argmax(0); })},
      {"argmin", over([](Tensor x) { return x.argmin(1, true); })},
      {"max of ties", over([](Tensor x) { return x.amax({0}); })},
      {"std of equals", over([](Tensor x) {
         return x.unsqueeze(1).expand({3, 4}).std(1);
       })},
      {"abs", over([](Tensor x) { return x.abs(); })},
      {"cos", over([](Tensor x) { return x.cos(); })},
      {"erf", over([](Tensor x) { return x.erf(); })},
      {"exp", over([](Tensor x) { return x.exp(); })},
      {"expm1", over([](Tensor x) { return x.expm1(); })},
      {"gelu", over([](Tensor x) { return torch::gelu(x); })},
      {"gelu_tanh", over([](Tensor x) { return torch::gelu(x, "tanh"); })},
      {"log", over([](Tensor x) { return x.log(); })},
      {"log1p", over([](Tensor x) { return x.log1p(); })},
      {"neg", over([](Tensor x) { return -x; })},
      {"reciprocal", over([](Tensor x) { return x.reciprocal(); })},
      {"relu", over([](Tensor x) { return x.relu(); })},
      {"rsqrt", over([](Tensor x) { return x.rsqrt(); })},
      {"sigmoid", over([](Tensor x) { return x.sigmoid(); })},
      {"silu", over([](Tensor x) { return torch::silu(x); })},
      {"sin", over([](Tensor x) { return x.sin(); })},
      {"softplus", over([](Tensor x) { return F::softplus(x); })},
      {"sqrt", over([](Tensor x) { return x.sqrt(); })},
      {"square", over([](Tensor x) { return x.square(); })},
      {"tanh", over([](Tensor x) { return x.tanh(); })},
      {"sum", over([=](Tensor x) { return x.sum(dims); })},
      {"mean", over([=](Tensor x) { return x.mean(dims, true); })},
      {"max", over([=](Tensor x) { return x.amax(dims); })},
      {"min", over([=](Tensor x) { return x.amin(dims, true); })},
      {"var", var(1, true)},
      {"var 0", var(0)},
      {"var 2", var(2)},
      {"std", over([=](Tensor x) { return x.std(dims, true); })},
      {"std 0", over([=](Tensor x) { return x.std(dims, 0, true); })},
      {"mean of all", over([](Tensor x) { return x.mean(); })},
      {"softmax 0", over([](Tensor x) { return x.softmax(0); })},
      {"softmax 1", over([](Tensor x) { return x.softmax(1); })},
      {"softmax -1", over([](Tensor x) { return x.softmax(-1); })},
      {"log_softmax 1", over([](Tensor x) { return x.log_softmax(1); })},
      {"softmax of large", over([](Tensor x) { return x.softmax(-1); })},
      {"log_softmax of large", over([](Tensor x) { return x.log_softmax(-1); })},
      {"layer_norm", [](X x) -> Y { return {torch::layer_norm(x[0], {5}, x[1], x[2], 1e-3)}; }},
      {"layer_norm plain", over([](Tensor x) {
         return torch::layer_norm(x, {3, 2});
       })},
      {"batch_norm", norm(true)},
      {"batch_norm eval", norm(false)},
      {"batch_norm plain",
       over([](Tensor x) { return torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false); })},
      {"conv2d", conv({1, 1}, {0, 0}, {1, 1}, 1)},
      {"conv2d stride padding", conv({2, 1}, {1, 2}, {1, 1}, 1)},
      {"conv2d dilation", conv({1, 2}, {0, 1}, {3, 2}, 1)},
      {"conv2d groups", conv({1, 1}, {1, 0}, {1, 1}, 2)},
      {"conv2d depthwise", conv({1, 1}, {1, 1}, {1, 1}, 3)},
      {"conv2d pointwise", conv({1, 1}, {0, 0}, {1, 1}, 1)},
      {"max_pool2d", over([](Tensor x) {
         return torch::max_pool2d(x, {2, 2});
       })},
      {"max_pool2d padding", over([](Tensor x) {
         return torch::max_pool2d(x, {3, 2}, {1, 2}, {1, 0});
       })},
      {"max_pool2d of ties", over([](Tensor x) {
         return torch::max_pool2d(x, {3, 3}, {1, 1});
       })},
      {"cross_entropy mean", loss(mean)},
      {"cross_entropy sum", loss(sum)},
      {"cross_entropy none", loss(none)},
      {"cross_entropy smooth mean", loss(mean, 0.3)},
      {"cross_entropy smooth sum", loss(sum, 0.3)},
      {"cross_entropy smooth none", loss(none, 1)},
      {"cross_entropy ignore mean", loss(mean, 0, 1)},
      {"cross_entropy ignore sum", loss(sum, 0, 1)},
      {"cross_entropy ignore none", loss(none, 0, 1)},
      {"cross_entropy smooth ignore", loss(mean, 0.3, 1)},
      {"cross_entropy ignore all", ignoring_all(mean)},
      {"cross_entropy ignore all sum", ignoring_all(sum)},
      {"cross_entropy large",
       [](X x) -> Y { return {at::cross_entropy_loss(x[0] + 8192, x[1], {}, none)}; }},
      {"mse mean", [](X x) -> Y { return {at::mse_loss(x[0], x[1], mean)}; }},
      {"mse sum", [](X x) -> Y { return {at::mse_loss(x[0], x[1], sum)}; }},
      {"mse none", [](X x) -> Y { return {at::mse_loss(x[0], x[1], none)}; }},
  };
}

// JSON has no NaN and no infinity: they become strings.
static void print(const std::vector<Tensor>& tensors) {
  std::printf("[");
  for (size_t k = 0; k < tensors.size(); ++k) {
    std::printf(k ? ", [" : "[");
    const Tensor t = tensors[k].detach().to(torch::kFloat64).flatten();
    for (int64_t i = 0; i < t.numel(); ++i) {
      const double v = t[i].item<double>();
      std::printf(std::isfinite(v) ? "%s%.15g" : "%s\"%g\"", i ? "," : "", std::isnan(v) ? NAN : v);
    }
    std::printf("]");
  }
  std::printf("]");
}

int main() {
  std::printf("{\"made\": \"by make_ops_reference.cpp with libtorch %s, f64\"", TORCH_VERSION);
  const auto run = runs();
  for (const ops_problem::Case& c : ops_problem::cases()) {
    std::vector<Tensor> x, leaves;
    for (const ops_problem::Input& in : c.inputs) {
      Tensor t = torch::empty(in.shape, torch::kFloat64);
      for (uint32_t i = 0; i < t.numel(); ++i)
        t.flatten()[i] = ops_problem::value(uint32_t(x.size()), i, in);
      if (in.kind == ops_problem::Index) t = t.to(torch::kInt64);
      if (in.kind == ops_problem::Mask) t = t.to(torch::kBool);
      if (in.kind == ops_problem::Real || in.kind == ops_problem::Tied)
        leaves.push_back(t.set_requires_grad(true));
      x.push_back(t);
    }
    const std::vector<Tensor> y = run.at(c.name)(x);
    std::printf(",\n\"%s\": {\"y\": ", c.name.c_str());
    print(y);
    std::printf(", \"dx\": ");
    if (y[0].requires_grad()) {
      Tensor dy = torch::empty(y[0].sizes(), torch::kFloat64);
      for (uint32_t i = 0; i < dy.numel(); ++i) dy.flatten()[i] = ops_problem::gradient(i);
      print(torch::autograd::grad({y[0]}, leaves, {dy}));
    } else {
      print({});
    }
    std::printf("}");
  }
  std::puts("\n}");
}
