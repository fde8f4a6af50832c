#pragma once
// summary: a table of a model's modules.

#include <functional>
#include <string>

#include "nn/module.h"

namespace mixtape::nn {

// The table for a forward pass that `run` runs.
std::string summary_of(ModuleBase& net, const std::function<void()>& run);

// One row per module: path, type, shape of its output for these inputs, and number of parameters
// without those of modules inside it (a tied one counts at its first place). Then totals. Runs
// net(inputs...) in evaluation mode, unrecorded.
template <class M, class... Inputs>
std::string summary(M& net, const Inputs&... inputs) {
  return summary_of(net, [&] { net(inputs...); });
}

}  // namespace mixtape::nn
