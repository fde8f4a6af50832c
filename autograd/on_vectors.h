#pragma once
// Adapts functions of tensors to the form that the library calls: one vector in, one vector out.

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::detail {

// run(f on vectors, {inputs...}), whose result has the form of f's: a tensor or a vector of
// tensors.
template <class F, class Run, std::derived_from<Tensor>... T>
auto on_vectors(F f, const Run& run, const T&... inputs) {
  using Result = std::remove_cvref_t<std::invoke_result_t<const F&, const T&...>>;
  constexpr bool several = std::is_same_v<Result, std::vector<Tensor>>;
  static_assert(several || std::is_base_of_v<Tensor, Result>,
                "the function returns a Tensor, or a std::vector of them");
  auto call = [f = std::move(f)](const std::vector<Tensor>& in) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return std::vector<Tensor>{f(in[i]...)};
    }(std::index_sequence_for<T...>());
  };
  const std::vector<Tensor> all = run(std::move(call), {inputs...});
  if constexpr (several)
    return all;
  else
    return all[0];
}

}  // namespace mixtape::detail
