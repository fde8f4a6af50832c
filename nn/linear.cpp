#include "nn/linear.h"

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;

Linear::Linear(int64_t in, int64_t out, const Options& options) : activation_(options.activation) {
  const Scope scope("Linear");
  check(in > 0 && out > 0, "sizes must be positive: in {}, out {}", in, out);
  weight = init::starting_weight({out, in});
  bias = init::starting_bias(weight, out, options.bias);
}

// (The adapter may be wider than x.)
Tensor adapted(const Tensor& x, const Tensor& residual, const Tensor& lora_A, const Tensor& lora_B,
               const LoraScale& lora, bool training) {
  const Tensor in = dropout(x, lora.dropout, training);
  const Tensor wide = cast(in, mixtape::dtype_of_operand(lora_A));
  const Tensor product = linear(linear(wide, lora_A) * lora.scale, lora_B);
  const Tensor y = cast(product, mixtape::dtype_of_operand(x));
  return residual ? (is_half(y.dtype()) ? cast(y, residual.dtype()) : y) + residual : y;
}

Tensor whole_weight(const Tensor& weight, const Tensor& lora_A, const Tensor& lora_B,
                    const LoraScale& lora) {
  if (!lora_A) return weight;
  const DType wide = accumulate_dtype(weight.dtype());
  const Tensor product = matmul(cast(lora_B, wide), cast(lora_A, wide), {.alpha = lora.scale});
  const Tensor whole = cast(cast(weight, wide) + cast(product, wide), weight.dtype());
  whole.mark_end(weight.is_end());
  return whole;
}

Tensor Linear::forward(const Tensor& x, const Tensor& residual) const {
  const Tensor added =
      lora_A ? adapted(x, residual, lora_A, lora_B, lora, is_training()) : residual;
  return linear(x, weight, bias, {activation_, added});
}

}  // namespace mixtape::nn
