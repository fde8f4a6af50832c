#pragma once
// summary: a table of a model's modules. (train/picture.h draws it.)

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace mixtape::nn {

// A module in a forward pass. `parameters` leaves out those of modules inside it; a tied parameter
// counts where it first occurs.
struct ModuleSummary {
  std::string path, type;
  std::optional<Shape> output = {};  // none if it did not run or its result is not a tensor
  DType dtype = f32;                 // of the output
  int64_t parameters = 0;
};
// Describes net and all modules inside it, in the order of their fields, while `run` runs them in
// evaluation, unrecorded.
std::vector<ModuleSummary> summarize(ModuleBase& net, const std::function<void()>& run);

// The table for the forward pass that `run` makes.
std::string summary_of(ModuleBase& net, const std::function<void()>& run);

// A table with one row per module: path, type, shape of its output for these inputs, and number of
// parameters without those of modules inside it (a tied parameter counts where it first occurs);
// then totals. Runs net(inputs...) in evaluation, unrecorded. Without inputs nothing runs, and no
// output has a shape.
template <class M, class... Inputs>
std::string summary(M& net, const Inputs&... inputs) {
  return summary_of(net, [&] {
    if constexpr (sizeof...(inputs) > 0) net(inputs...);
  });
}

}  // namespace mixtape::nn
