#pragma once
// Functions without parameters as modules, for Sequential.

#include "autograd/ops.h"
#include "nn/op_module.h"

namespace mixtape::nn {

struct ReLU : OpModule<ReLU, relu> {};
// x * Phi(x), exact or by GPT-2's approximation, GELU("tanh").
struct GELU : Module<GELU> {
  explicit GELU(std::string_view approximate = "none");
  Tensor forward(const Tensor& x) const { return tanh_ ? gelu_tanh(x) : gelu(x); }
  MIXTAPE_FIELDS()

 private:
  bool tanh_;
};
struct SiLU : OpModule<SiLU, silu> {};
struct Sigmoid : OpModule<Sigmoid, sigmoid> {};
struct Tanh : OpModule<Tanh, tanh> {};
struct SELU : OpModule<SELU, selu> {};
struct ReLU6 : OpModule<ReLU6, relu6> {};
struct Mish : OpModule<Mish, mish> {};
// log(1 + exp(beta x)) / beta
struct Softplus
    : OpModule<Softplus, static_cast<Tensor (*)(const Tensor&, double, double)>(softplus), double,
               double> {
  explicit Softplus(double beta = 1, double threshold = 20) : OpModule(beta, threshold) {}
};
struct Softsign : OpModule<Softsign, softsign> {};
struct LogSigmoid : OpModule<LogSigmoid, log_sigmoid> {};
struct Hardsigmoid : OpModule<Hardsigmoid, hardsigmoid> {};
struct Hardswish : OpModule<Hardswish, hardswish> {};
struct LeakyReLU : OpModule<LeakyReLU, leaky_relu, double> {
  explicit LeakyReLU(double slope = 0.01) : OpModule(slope) {}
};
// x below zero is multiplied by a learned weight, one for all channels or one per channel.
struct PReLU : Module<PReLU> {
  Tensor weight;  // [channels], starts as `init`

  explicit PReLU(int64_t channels = 1, double init = 0.25)
      : weight(parameter(full({channels}, init))) {}
  Tensor forward(const Tensor& x) const { return prelu(x, weight); }
  MIXTAPE_FIELDS(weight)
};
struct ELU : OpModule<ELU, elu, double> {
  explicit ELU(double alpha = 1) : OpModule(alpha) {}
};
struct GLU : OpModule<GLU, glu, int> {
  explicit GLU(int dim = -1) : OpModule(dim) {}
};
struct LogSoftmax : OpModule<LogSoftmax, log_softmax, int, std::optional<DType>> {
  explicit LogSoftmax(int dim = -1, std::optional<DType> dtype = {}) : OpModule(dim, dtype) {}
};
struct GELUTanh : OpModule<GELUTanh, gelu_tanh> {};  // GPT-2's approximation
struct Softmax : OpModule<Softmax, softmax, int, std::optional<DType>> {
  explicit Softmax(int dim = -1, std::optional<DType> dtype = {}) : OpModule(dim, dtype) {}
};

}  // namespace mixtape::nn
