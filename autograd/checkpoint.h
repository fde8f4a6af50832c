#pragma once
// Activation checkpointing, which trades time for memory: only the inputs of a function are kept,
// and backward calls it again and continues in the graph recorded then. Gradients have the same
// bits, except that those of second order may be added up in another order.

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/backward_state.h"
#include "autograd/on_vectors.h"

namespace mixtape {
namespace detail {

std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(const std::vector<Tensor>&)> f,
                               const std::vector<Tensor>& inputs);

}  // namespace detail

// True in a checkpoint's second call, which must not update running statistics and the like again.
inline bool called_again() { return backward_state.recomputing; }

// f(inputs...), where f returns a tensor or a vector of tensors. backward() calls f again, so
// everything that f refers to must live until then and f must return the same results:
//   Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);
// A module passed as an lvalue, checkpoint(block, x), is referred to, not copied. The outermost
// module that runs f must live until backward(), too.
// The second call runs with the random numbers, module path, policy (such as an autocast region),
// default device and Tf32 of the first, and leaves the generator's position alone. Other side
// effects happen twice unless they test called_again(). Tensors that f captures get gradients, as
// inputs do. Checkpoints may be nested and differentiated twice; f may not call backward() or
// grad(). backward() throws Error if it notices that the second call differs, or that an input or
// parameter was modified in between. Hooks on a result, and grad() with respect to it, see only the
// gradient from outside f, not the part through other results.
template <class F, std::derived_from<Tensor>... T>
auto checkpoint(F&& f, const T&... inputs) {
  constexpr bool referred = std::is_lvalue_reference_v<F> && requires { f.clone(); };
  using Kept = std::conditional_t<referred, std::reference_wrapper<std::remove_reference_t<F>>,
                                  std::decay_t<F>>;
  return detail::on_vectors(Kept(std::forward<F>(f)), detail::checkpoint, inputs...);
}

}  // namespace mixtape
