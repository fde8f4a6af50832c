#pragma once
// functional_call: a module as a function of its tensors.

#include <memory>
#include <utility>

#include "nn/module.h"

namespace mixtape::detail {

void replace_tensors(nn::ModuleBase& module, const StateDict& tensors);
void keep_for_backward(const Tensor& y, const std::shared_ptr<const void>& object);

}  // namespace mixtape::detail

namespace mixtape::nn {

// net(args...) with other tensors in place of those with these names and all that are tied to them.
// Gradients flow to the given tensors. A copy of `net` runs, which shares its other tensors and
// buffers, so several threads may do this at once; updates of buffers reach `net`, and hooks do not
// run. Throws Error if the module has no tensor of a name, if a shape differs, or if two tensors
// are given for names that are tied.
template <std::derived_from<ModuleBase> M, class... Args>
auto functional_call(const M& net, const StateDict& tensors, Args&&... args) {
  const auto copy = [&] {
    const Cloning permit;
    return std::make_shared<M>(net);
  }();
  detail::replace_tensors(*copy, tensors);
  auto y = std::as_const(*copy)(std::forward<Args>(args)...);
  static_assert(HoldsTensors<decltype(y)> || !std::is_class_v<decltype(y)>,
                "a struct that forward returns needs tensors(), as nn::RnnOutput has");
  // A checkpoint inside calls the copy again in backward.
  for_each_tensor(y, [&](const Tensor& t) { detail::keep_for_backward(t, copy); });
  return y;
}

}  // namespace mixtape::nn
