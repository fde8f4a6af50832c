#pragma once
// Functions without parameters as modules, for Sequential.

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

struct ReLU : Module<ReLU> {
  Tensor forward(const Tensor& x) const { return relu(x); }
  MIXTAPE_FIELDS()
};
struct GELU : Module<GELU> {
  Tensor forward(const Tensor& x) const { return gelu(x); }
  MIXTAPE_FIELDS()
};
struct SiLU : Module<SiLU> {
  Tensor forward(const Tensor& x) const { return silu(x); }
  MIXTAPE_FIELDS()
};
struct Sigmoid : Module<Sigmoid> {
  Tensor forward(const Tensor& x) const { return sigmoid(x); }
  MIXTAPE_FIELDS()
};
struct Tanh : Module<Tanh> {
  Tensor forward(const Tensor& x) const { return tanh(x); }
  MIXTAPE_FIELDS()
};
struct Softmax : Module<Softmax> {
  explicit Softmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return softmax(x, dim_); }
  MIXTAPE_FIELDS()

 private:
  int dim_;
};
struct Flatten : Module<Flatten> {  // all dimensions but the batch's
  explicit Flatten(int from = 1, int to = -1) : from_(from), to_(to) {}
  Tensor forward(const Tensor& x) const { return flatten(x, from_, to_); }
  MIXTAPE_FIELDS()

 private:
  int from_, to_;
};
struct Identity : Module<Identity> {
  Tensor forward(const Tensor& x) const { return x; }
  MIXTAPE_FIELDS()
};

}  // namespace mixtape::nn
