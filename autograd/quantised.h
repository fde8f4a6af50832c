#pragma once
// Quantised: the node of a product's operand that a policy rounded to a format of 8 or 4 bits. The
// product's rule finds there how to round its own factors: the gradient of the result and, for
// formats of blocks, the operands along the dimension that the rule's products sum over.

#include "autograd/tape.h"

namespace mixtape {
namespace internal {

// Rounds the factors of one product. `dim` is the dimension that a product sums over, -1
// or -2, or 0 if it is several.
class Quantiser {
 public:
  virtual ~Quantiser() = default;
  virtual bool by_blocks() const = 0;  // so that the dimension matters
  // Operand 0 or 1 in a product of the backward pass.
  virtual Tensor operand(int number, const Tensor& t, int dim) = 0;
  virtual Tensor gradient(const Tensor& dz, int dim) = 0;
};

class Quantised final : public Node {
 public:
  // `operands` as the caller gave them are kept for formats of blocks.
  Quantised(const Tensor* input, std::shared_ptr<Quantiser> quantiser,
            std::span<const Tensor> operands);
  std::string_view name() const override;
  Grads backward(const Tensor& dy) override { return {dy}; }  // rounding counts as the identity

  const std::shared_ptr<Quantiser> quantiser;
};

// The node by which an op's operands were quantised, or null.
const Quantised* quantised_operand(const Ctx& ctx);

}  // namespace internal
}  // namespace mixtape
