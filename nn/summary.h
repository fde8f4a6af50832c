#pragma once
// summary: what a model is made of, as a table.

#include <functional>
#include <string>

#include "nn/module.h"

namespace mixtape::nn {

// The table for a forward pass that `run` makes.
std::string summary_of(ModuleBase& net, const std::function<void()>& run);

// One row per module: path, type, shape of what it returned for these inputs, and how many
// parameters it has besides those of modules inside it (a tied one counts where it comes first).
// Then totals. Runs net(inputs...) in evaluation mode, unrecorded.
template <class M, class... Inputs>
std::string summary(M& net, const Inputs&... inputs) {
  return summary_of(net, [&] { net(inputs...); });
}

}  // namespace mixtape::nn
