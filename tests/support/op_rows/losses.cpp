// Losses.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> losses() {
  const auto cross_entropy_case = [](CrossEntropyOptions o) {
    return [o](In x) { return cross_entropy(x[0], x[1], o); };
  };
  return {
      {.op = "cross_entropy",
       .inputs = {{{5, 4}}, {{5}, 0, 4, Input::Index}},
       .run = cross_entropy_case({.reduction = Reduction::None}),
       .empty = {{0, 4}, {0}}},
      {.op = "cross_entropy",
       .inputs = {{{5, 4}}, {{5}, 0, 4, Input::Index}},
       .run = cross_entropy_case({.label_smoothing = 0.2, .ignore_index = 2, .weight = 3}),
       .label = "smoothed"},
      {.op = "mse_loss",
       .inputs = {{{3, 4}}, {{3, 4}}},
       .run = [](In x) { return mse_loss(x[0], x[1], Reduction::None); },
       .tolerance = 4,
       .empty = {{0, 4}, {0, 4}}},
  };
}

}  // namespace mixtape::tests
