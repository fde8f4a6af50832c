#pragma once
// The cases of ops_reference.json: a name and the inputs. What a name means is said once by
// libtorch (make_ops_reference.cpp) and once by our ops (ops_reference_test.cpp).

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace ops_problem {

// Real is differentiated, Constant is not; Tied holds whole numbers, and is differentiated.
enum Kind { Real, Constant, Tied, Index, Mask };
struct Input {
  std::vector<int64_t> shape;
  double low = -2, high = 2;
  Kind kind = Real;
};
struct Case {
  std::string name;
  std::vector<Input> inputs;
};

// Element i of input k, in [low, high): the same bits everywhere, and exact in f32.
inline double value(uint32_t k, uint32_t i, const Input& in) {
  uint32_t x = i + (k + 1) * 0x9E3779B9u;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  const double v = in.low + (in.high - in.low) * (x >> 8) * 0x1p-24;
  return in.kind >= Tied ? std::floor(v) : static_cast<float>(v);
}
// The gradient that arrives at element i of the result.
inline double gradient(uint32_t i) { return value(99, i, {{}, -1, 1}); }

inline std::vector<Case> cases() {
  const Input a{{2, 1, 3}}, b{{4, 1}}, far{{2, 1, 3}, 0.3, 2}, off{{4, 1}, 0.3, 2},
      mask{{3}, 0, 2, Mask}, ties{{3, 4}, -2, 2, Tied};
  std::vector<Case> all = {
      {"add", {a, b}},
      {"sub", {a, b}},
      {"mul", {a, b}},
      {"div", {a, off}},
      {"pow", {far, b}},
      {"pow of zero", {{{12}, 0, 2, Tied}, {{12}, -2, 3, Tied}}},
      {"maximum", {a, b}},
      {"minimum", {a, b}},
      {"maximum of ties", {{{3, 1}, 0, 2, Tied}, {{4}, 0, 2, Tied}}},
      {"where", {a, b, mask}},
      {"masked_fill", {{{2, 3}}, mask}},
      {"expand", {{{2, 1, 3}}}},
      {"scalars", {{{6}, 0.5, 2}}},
      {"views", {{{2, 3, 4}}}},
      {"cat", {{{2, 1}}, {{2, 3}}}},
      {"stack", {{{2, 2}}, {{2, 2}}}},
      {"matmul", {{{2, 1, 2, 3}}, {{2, 3, 2}}}},
      {"matmul 1d 1d", {{{5}}, {{5}}}},
      {"matmul 1d 3d", {{{3}}, {{2, 3, 2}}}},
      {"matmul 3d 1d", {{{2, 2, 3}}, {{3}}}},
      {"linear", {{{2, 2, 3}}, {{4, 3}}, {{4}}}},
      {"embedding", {{{4, 2}}, {{2, 3}, 0, 4, Index}}},
      {"argmax", {ties}},
      {"argmin", {ties}},
      {"max of ties", {ties}},
      {"std of equals", {{{3}}}},
      {"softmax of large", {{{2, 3}, 999, 1001}}},
      {"log_softmax of large", {{{2, 3}, 999, 1001}}},
      {"cross_entropy large", {{{5, 3}, -2, 2, Tied}, {{5}, 0, 3, Index}}},
      {"layer_norm", {{{3, 5}}, {{5}}, {{5}}}},
      {"layer_norm plain", {{{2, 3, 2}}}},
      {"batch_norm plain", {{{4, 3}}}},
      {"conv2d", {{{2, 2, 4, 3}}, {{3, 2, 3, 2}}, {{3}}}},
      {"conv2d stride padding", {{{1, 2, 5, 4}}, {{2, 2, 3, 3}}}},
      {"conv2d dilation", {{{1, 2, 5, 4}}, {{2, 2, 2, 3}}, {{2}}}},
      {"conv2d groups", {{{1, 4, 3, 3}}, {{4, 2, 2, 2}}, {{4}}}},
      {"conv2d depthwise", {{{1, 3, 4, 4}}, {{3, 1, 3, 3}}, {{3}}}},
      {"conv2d pointwise", {{{2, 3, 2, 2}}, {{2, 3, 1, 1}}}},
      {"max_pool2d", {{{1, 2, 4, 5}}}},
      {"max_pool2d padding", {{{1, 2, 4, 5}}}},
      {"max_pool2d of ties", {{{1, 1, 5, 5}, 0, 2, Tied}}},
  };
  for (const char* name : {"abs", "cos", "erf", "exp", "expm1", "gelu", "gelu_tanh", "neg", "relu",
                           "sigmoid", "silu", "sin", "softplus", "square", "tanh"})
    all.push_back({name, {{{11}, -6, 6}}});
  for (const char* name : {"log", "log1p", "reciprocal", "rsqrt", "sqrt"})
    all.push_back({name, {{{8}, 0.05, 6}}});
  for (const char* name : {"sum", "mean", "max", "min", "var", "var 0", "var 2", "std", "std 0",
                           "mean of all", "softmax 0", "softmax 1", "log_softmax 1", "softmax -1"})
    all.push_back({name, {{{2, 3, 2}}}});
  for (const char* name : {"batch_norm", "batch_norm eval"})
    all.push_back(
        {name, {{{3, 2, 2}}, {{2}}, {{2}}, {{2}, -1, 1, Constant}, {{2}, 0.5, 2, Constant}}});
  for (const char* name :
       {"mean", "sum", "none", "smooth mean", "smooth sum", "smooth none", "ignore mean",
        "ignore sum", "ignore none", "smooth ignore", "ignore all", "ignore all sum"})
    all.push_back({std::string("cross_entropy ") + name, {{{6, 3}}, {{6}, 0, 3, Index}}});
  for (const char* name : {"mse mean", "mse sum", "mse none"})
    all.push_back({name, {{{2, 3}}, {{2, 3}}}});
  return all;
}

}  // namespace ops_problem
