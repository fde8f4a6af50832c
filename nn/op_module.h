#pragma once
// OpModule: an op as a module, which keeps the op's options and is called with its tensors.
//
//   struct ReLU : OpModule<ReLU, relu> {};
//   struct Softmax : OpModule<Softmax, softmax, int> {
//     explicit Softmax(int dim = -1) : OpModule(dim) {}
//   };

#include <type_traits>
#include <utility>

#include "nn/module.h"

namespace mixtape::nn {

// What an op is called with after its tensors. (A std::tuple for each combination would be 5 % of
// what <mixtape.h> costs.)
template <class... Options>
struct Kept {
  auto call(auto op, const auto&... x) const { return op(x...); }
};
template <class First, class... Rest>
struct Kept<First, Rest...> {
  explicit Kept(First f, Rest... others) : first(std::move(f)), rest(std::move(others)...) {}
  auto call(auto op, const auto&... x) const { return rest.call(op, x..., first); }

  First first;
  Kept<Rest...> rest;
};

template <class Derived, auto op, class... Options>
struct OpModule : Module<Derived> {
  explicit OpModule(Options... options) : options_(std::move(options)...) {}
  template <class... X>
  auto forward(const X&... x) const
      -> std::invoke_result_t<decltype(op), const X&..., const Options&...> {
    return options_.call(op, x...);
  }
  MIXTAPE_FIELDS()

 private:
  Kept<Options...> options_;
};

}  // namespace mixtape::nn
