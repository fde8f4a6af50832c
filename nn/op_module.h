#pragma once
// OpModule: an op as a module that stores the op's options and is called with its tensors.
//
//   struct ReLU : OpModule<ReLU, relu> {};
//   struct Softmin : OpModule<Softmin, softmin, int> {
//     explicit Softmin(int dim = -1) : OpModule(dim) {}
//   };

#include <type_traits>
#include <utility>

#include "nn/module.h"

namespace mixtape::nn {

// The arguments of an op after its tensors. (A std::tuple for each combination would take 5 % of
// the time to compile <mixtape.h>.)
template <class... Options>
struct BoundOptions {
  auto call(auto op, const auto&... x) const { return op(x...); }
};
template <class First, class... Rest>
struct BoundOptions<First, Rest...> {
  explicit BoundOptions(First f, Rest... others)
      : first(std::move(f)), rest(std::move(others)...) {}
  auto call(auto op, const auto&... x) const { return rest.call(op, x..., first); }

  First first;
  BoundOptions<Rest...> rest;
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
  BoundOptions<Options...> options_;
};

}  // namespace mixtape::nn
