#include "autograd/quantised.h"

namespace mixtape::internal {
namespace {

constexpr OpInfo quantise{"quantise"};

}  // namespace

Quantised::Quantised(const Tensor* input, std::shared_ptr<Quantiser> how,
                     std::span<const Tensor> operands)
    : Node(Call{quantise, {&input, 1}}), quantiser(std::move(how)) {
  if (quantiser->by_blocks())
    for (const Tensor& t : operands) ctx.save(t);
}

std::string_view Quantised::name() const { return quantise.name; }

const Quantised* quantised_operand(const Ctx& ctx) {
  for (size_t i = 0; i < ctx.inputs(); ++i) {
    const Node* const node = ctx.source(i);
    // The cheap tests come first, since every product of every backward pass asks.
    if (node && node->moves && node->name().data() == quantise.name.data())
      return static_cast<const Quantised*>(node);
  }
  return nullptr;
}

}  // namespace mixtape::internal
