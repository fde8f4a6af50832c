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
struct SELU : Module<SELU> {
  Tensor forward(const Tensor& x) const { return selu(x); }
  MIXTAPE_FIELDS()
};
struct ReLU6 : Module<ReLU6> {
  Tensor forward(const Tensor& x) const { return relu6(x); }
  MIXTAPE_FIELDS()
};
struct Mish : Module<Mish> {
  Tensor forward(const Tensor& x) const { return mish(x); }
  MIXTAPE_FIELDS()
};
struct Softplus : Module<Softplus> {
  Tensor forward(const Tensor& x) const { return softplus(x); }
  MIXTAPE_FIELDS()
};
struct Softsign : Module<Softsign> {
  Tensor forward(const Tensor& x) const { return softsign(x); }
  MIXTAPE_FIELDS()
};
struct LogSigmoid : Module<LogSigmoid> {
  Tensor forward(const Tensor& x) const { return log_sigmoid(x); }
  MIXTAPE_FIELDS()
};
struct Hardsigmoid : Module<Hardsigmoid> {
  Tensor forward(const Tensor& x) const { return hardsigmoid(x); }
  MIXTAPE_FIELDS()
};
struct Hardswish : Module<Hardswish> {
  Tensor forward(const Tensor& x) const { return hardswish(x); }
  MIXTAPE_FIELDS()
};
struct LeakyReLU : Module<LeakyReLU> {
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  Tensor forward(const Tensor& x) const { return leaky_relu(x, slope_); }
  MIXTAPE_FIELDS()

 private:
  double slope_;
};
// x below zero times a weight that is learned, one for all channels or one each.
struct PReLU : Module<PReLU> {
  Tensor weight;  // [channels], starts as `init`

  explicit PReLU(int64_t channels = 1, double init = 0.25)
      : weight(parameter(full({channels}, init))) {}
  Tensor forward(const Tensor& x) const { return prelu(x, weight); }
  MIXTAPE_FIELDS(weight)
};
struct ELU : Module<ELU> {
  explicit ELU(double alpha = 1) : alpha_(alpha) {}
  Tensor forward(const Tensor& x) const { return elu(x, alpha_); }
  MIXTAPE_FIELDS()

 private:
  double alpha_;
};
struct GLU : Module<GLU> {
  explicit GLU(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return glu(x, dim_); }
  MIXTAPE_FIELDS()

 private:
  int dim_;
};
struct LogSoftmax : Module<LogSoftmax> {
  explicit LogSoftmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return log_softmax(x, dim_); }
  MIXTAPE_FIELDS()

 private:
  int dim_;
};
struct GELUTanh : Module<GELUTanh> {  // GPT-2's approximation
  Tensor forward(const Tensor& x) const { return gelu_tanh(x); }
  MIXTAPE_FIELDS()
};
struct Softmax : Module<Softmax> {
  explicit Softmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) const { return softmax(x, dim_); }
  MIXTAPE_FIELDS()

 private:
  int dim_;
};

}  // namespace mixtape::nn
