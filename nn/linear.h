#pragma once
// Linear: y = x W^T + b, followed by an optional activation.

#include <concepts>

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

// The dtype in which a product in this module reads x; a norm before it may write that dtype.
inline DType dtype_of_operand(const ModuleBase& module, const Tensor& x) {
  const Running as(module);
  return mixtape::dtype_of_operand(x);
}

// The options of a layer's adapter, set by add_lora (nn/lora.h).
struct LoraScale {
  double scale = 1, dropout = 0;
};
// The output of a layer's adapter plus a residual: scale dropout(x) AT BT + residual.
Tensor adapted(const Tensor& x, const Tensor& residual, const Tensor& lora_A, const Tensor& lora_B,
               const LoraScale& lora, bool training);
// weight [out, in] + scale B A
Tensor whole_weight(const Tensor& weight, const Tensor& lora_A, const Tensor& lora_B,
                    const LoraScale& lora);

// [..., in] -> [..., out]. Weight and bias start uniform within 1 / sqrt(in).
struct Linear : Module<Linear> {
  struct Options {
    bool bias = true;
    Activation activation = Activation::None;  // applied before the sums are rounded
  };
  Tensor weight;  // [out, in]
  Tensor bias;    // [out], or none
  Tensor lora_A;  // [rank, in], or none: without an adapter
  Tensor lora_B;  // [out, rank], or none
  LoraScale lora;

  Linear(int64_t in, int64_t out, std::same_as<bool> auto with_bias)
      : Linear(in, out, Options{with_bias}) {}
  Linear(int64_t in, int64_t out) : Linear(in, out, true) {}
  Linear(int64_t in, int64_t out, const Options& options);
  // Adds the residual to the sums, before the activation.
  Tensor forward(const Tensor& x, const Tensor& residual = {}) const;
  // The weight plus the adapter's product.
  Tensor whole_weight() const { return nn::whole_weight(weight, lora_A, lora_B, lora); }
  MIXTAPE_FIELDS(weight, bias, lora_A, lora_B)

 private:
  Activation activation_;
};

}  // namespace mixtape::nn
