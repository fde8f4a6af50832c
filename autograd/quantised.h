#pragma once
// Quantised: the node of a product's operand that a policy rounded to an 8-bit or 4-bit format.
// From it the product's rule learns how to round its own factors: the gradient of the result and,
// for block formats, the operands along the dimension over which the rule's products sum.

#include "autograd/tape.h"

namespace mixtape {
namespace internal {

// Rounds the factors of one product. `dim` is the dimension over which a product sums, -1 or -2, or
// 0 for several.
class Quantiser {
 public:
  virtual ~Quantiser() = default;
  virtual bool by_blocks() const = 0;  // if so, the dimension matters
  // Rounds operand 0 or 1 for a product of the backward pass.
  virtual Tensor operand(int number, const Tensor& t, int dim) = 0;
  virtual Tensor gradient(const Tensor& dz, int dim) = 0;
};

class Quantised final : public Node {
 public:
  // `operands`, as the caller gave them, are kept for block formats.
  Quantised(const Tensor* input, std::shared_ptr<Quantiser> quantiser,
            std::span<const Tensor> operands);
  std::string_view name() const override;
  Grads backward(const Tensor& dy) override { return {dy}; }  // rounding counts as the identity

  const std::shared_ptr<Quantiser> quantiser;
};

// The node that quantised an op's operands, or null.
const Quantised* quantised_operand(const Ctx& ctx);

}  // namespace internal
}  // namespace mixtape
