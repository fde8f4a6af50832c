#pragma once
// The table of AMP: which precision each op has by default, and how to run it.

#include <functional>
#include <string>
#include <vector>

#include "autograd/ops.h"

namespace mixtape::amp {

struct Row {
  std::string op;
  Precision precision;
  std::function<Tensor(const Tensor&)> run;  // of x [4, 4]
};

inline const std::vector<Row>& table() {
  using enum Precision;
  using X = const Tensor&;
  static const Tensor index = from({1, 0, 3, 2}, {4}, i64);
  static const std::vector<Row> rows = {
      {"matmul", Low, [](X x) { return matmul(x, x); }},
      {"linear", Low, [](X x) { return linear(x, x); }},
      {"conv2d", Low,
       [](X x) {
         return conv2d(x.reshape({1, 1, 4, 4}), x.reshape({1, 1, 4, 4}));
       }},
      {"embedding", Any, [](X x) { return embedding(x, index); }},
      {"add", Widest, [](X x) { return x + x; }},
      {"sub", Widest, [](X x) { return x - x; }},
      {"mul", Widest, [](X x) { return x * x; }},
      {"div", Widest, [](X x) { return x / x; }},
      {"maximum", Widest, [](X x) { return maximum(x, x); }},
      {"minimum", Widest, [](X x) { return minimum(x, x); }},
      {"where", Widest, [](X x) { return where(gt(x, 0.5), x, x); }},
      {"cat", Widest,
       [](X x) {
         return cat({x, x});
       }},
      {"add_scalar", Widest, [](X x) { return x + 1; }},
      {"sub_scalar", Widest, [](X x) { return x - 1; }},
      {"sub_from_scalar", Widest, [](X x) { return 1 - x; }},
      {"mul_scalar", Widest, [](X x) { return x * 2; }},
      {"div_scalar", Widest, [](X x) { return x / 2; }},
      {"div_from_scalar", Full, [](X x) { return 1 / x; }},
      {"exp", Full, [](X x) { return exp(x); }},
      {"expm1", Full, [](X x) { return expm1(x); }},
      {"log", Full, [](X x) { return log(x); }},
      {"log1p", Full, [](X x) { return log1p(x); }},
      {"pow", Full, [](X x) { return pow(x, x); }},
      {"pow_scalar", Full, [](X x) { return pow(x, 2); }},
      {"square", Full, [](X x) { return square(x); }},
      {"reciprocal", Full, [](X x) { return reciprocal(x); }},
      {"rsqrt", Full, [](X x) { return rsqrt(x); }},
      {"softplus", Full, [](X x) { return softplus(x); }},
      {"softmax", Full, [](X x) { return softmax(x); }},
      {"log_softmax", Full, [](X x) { return log_softmax(x); }},
      {"cross_entropy", Full, [](X x) { return cross_entropy(x, index); }},
      {"mse_loss", Full, [](X x) { return mse_loss(x, x); }},
      {"layer_norm", Full, [](X x) { return layer_norm(x, {4}, ones({4}), zeros({4})); }},
      {"batch_norm", Native,
       [](X x) {
         return batch_norm(x, zeros({4}), ones({4}), ones({4}), zeros({4}), {.training = true});
       }},
      {"sum", Full, [](X x) { return sum(x); }},
      {"mean", Full, [](X x) { return mean(x); }},
      {"var", Full, [](X x) { return var(x); }},
      {"stddev", Full, [](X x) { return stddev(x); }},
      {"relu", Any, [](X x) { return relu(x); }},
      {"dropout", Any, [](X x) { return dropout(x, 0.5); }},
      {"abs", Any, [](X x) { return abs(x); }},
      {"neg", Any, [](X x) { return -x; }},
      {"max_pool2d", Any,
       [](X x) {
         return max_pool2d(x.reshape({1, 1, 4, 4}), {2, 2});
       }},
      {"max", Any, [](X x) { return max(x); }},
      {"min", Any, [](X x) { return min(x); }},
      {"reshape", Any, [](X x) { return reshape(x, {16}); }},
      {"permute", Any, [](X x) { return transpose(x); }},
      {"slice", Any, [](X x) { return slice(x, 0, 1, 3); }},
      {"expand", Any,
       [](X x) {
         return expand(x, {2, 4, 4});
       }},
      {"masked_fill", Any, [](X x) { return masked_fill(x, gt(x, 0.5), -1e9); }},
      {"gelu", Native, [](X x) { return gelu(x); }},
      {"gelu_tanh", Native, [](X x) { return gelu_tanh(x); }},
      {"silu", Native, [](X x) { return silu(x); }},
      {"sigmoid", Native, [](X x) { return sigmoid(x); }},
      {"tanh", Native, [](X x) { return tanh(x); }},
      {"sqrt", Native, [](X x) { return sqrt(x); }},
  };
  return rows;
}

}  // namespace mixtape::amp
