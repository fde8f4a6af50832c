#pragma once
// OpModule: an op as a module, which keeps the op's options and is called with its tensors.
//
//   struct ReLU : OpModule<ReLU, relu> {};
//   struct Softmax : OpModule<Softmax, softmax, int> {
//     explicit Softmax(int dim = -1) : OpModule(dim) {}
//   };

#include <concepts>
#include <tuple>
#include <utility>

#include "nn/module.h"

namespace mixtape::nn {

template <class Derived, auto op, class... Options>
struct OpModule : Module<Derived> {
  explicit OpModule(Options... options) : options_(std::move(options)...) {}
  template <class... X>
  requires std::invocable<decltype(op), const X&..., const Options&...> Tensor
  forward(const X&... x)
  const {
    return std::apply([&](const Options&... o) { return op(x..., o...); }, options_);
  }
  MIXTAPE_FIELDS()

 private:
  std::tuple<Options...> options_;
};

}  // namespace mixtape::nn
