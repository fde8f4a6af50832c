#pragma once
// OpModule: an op as a module, which keeps the op's options and is called with its tensors.
//
//   struct ReLU : OpModule<ReLU, relu> {};
//   struct Softmax : OpModule<Softmax, softmax, int> {
//     explicit Softmax(int dim = -1) : OpModule(dim) {}
//   };

#include <tuple>
#include <type_traits>
#include <utility>

#include "nn/module.h"

namespace mixtape::nn {

template <class Derived, auto op, class... Options>
struct OpModule : Module<Derived> {
  explicit OpModule(Options... options) : options_(std::move(options)...) {}
  template <class... X>
  auto forward(const X&... x) const
      -> std::invoke_result_t<decltype(op), const X&..., const Options&...> {
    return std::apply([&](const Options&... o) { return op(x..., o...); }, options_);
  }
  MIXTAPE_FIELDS()

 private:
  std::tuple<Options...> options_;
};

}  // namespace mixtape::nn
