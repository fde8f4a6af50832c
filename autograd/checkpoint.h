#pragma once
// Activation checkpointing: memory for time. A checkpoint keeps its inputs and nothing that its
// function computed on the way; backward calls the function again and goes on in the graph which
// that makes. So gradients, to whatever the function uses, are those without it, bit for bit; of
// second order as exact, but for the order in which they are added up.

#include <concepts>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/backward_state.h"
#include "core/tensor.h"

namespace mixtape {
namespace detail {

std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(const std::vector<Tensor>&)> f,
                               const std::vector<Tensor>& inputs);

// Registers a thread-local pointer of a layer above, which the second call is to find as the first
// did: nn keeps the module that paths start from in one.
using ThreadPointer = const void*& (*)();
bool restore_in_checkpoints(ThreadPointer pointer);

}  // namespace detail

// Whether this is a checkpoint's second call, for what moves with each call and is read by it.
inline bool called_again() { return backward_state.recomputing; }

// f(inputs...), where f gives a tensor or a vector of them. f is kept until backward and called
// there once more, so what it refers to must live as long and give the same results:
//   Tensor y = checkpoint([&](const Tensor& x) { return block(x); }, x);
// A module given by name, checkpoint(block, x), is referred to: what has a clone() is not copied.
// So must the outermost module that runs f, which the second call takes its paths from.
// The second call draws the random numbers of the first, in the same module, under the policy (such
// as an autocast region), the default device and the Tf32 of the first, and leaves the generator's
// position alone. Other traces are left twice, as by running statistics. What f captures gets its
// gradient like an input. May be nested and differentiated twice; f itself may take no gradients.
// Throws Error in backward if the second call is seen to differ, or if an input or parameter was
// written to in between. The gradient of a result, as a hook sees it or grad() gives it, is what
// comes from outside: what f makes of one result for another is not in it.
template <class F, std::same_as<Tensor>... T>
auto checkpoint(F&& f, const T&... inputs) {
  constexpr bool referred = std::is_lvalue_reference_v<F> && requires { f.clone(); };
  using Kept = std::conditional_t<referred, std::reference_wrapper<std::remove_reference_t<F>>,
                                  std::decay_t<F>>;
  using Result = std::remove_cvref_t<std::invoke_result_t<const Kept&, const T&...>>;
  constexpr bool several = std::is_same_v<Result, std::vector<Tensor>>;
  static_assert(several || std::is_same_v<Result, Tensor>);
  auto call = [f = Kept(std::forward<F>(f))](const std::vector<Tensor>& in) {
    return [&]<size_t... i>(std::index_sequence<i...>) -> std::vector<Tensor> {
      if constexpr (several)
        return f(in[i]...);
      else
        return {f(in[i]...)};
    }(std::index_sequence_for<T...>());
  };
  if constexpr (several)
    return detail::checkpoint(std::move(call), {inputs...});
  else
    return detail::checkpoint(std::move(call), {inputs...})[0];
}

}  // namespace mixtape
