// Reductions and scans.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> reductions() {
  return {
      {.op = "sum",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return sum(x[0], {0, -1});
           },
       .empty = {{2, 0, 4}}},
      {.op = "sum",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return sum(x[0]); },
       .label = "all",
       .empty = {{0, 3}}},
      {.op = "mean",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return mean(x[0], {1}, true); },
       .empty = {{0, 3, 4}}},
      {.op = "max",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return max(x[0], {1}); },
       .empty = {{0, 5}}},
      {.op = "min",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return min(x[0], {0}); },
       .empty = {{5, 0}}},
      {.op = "argmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return argmax(x[0], 1); },
       .differentiable = false,
       .empty = {{0, 5}}},
      {.op = "argmin",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return argmin(x[0], 0, true); },
       .differentiable = false,
       .empty = {{5, 0}}},
      {.op = "sum",
       .inputs = {{{4, 5}}},
       .run = [](In x) { return var(x[0], {1}); },
       .label = "in_var",
       .tolerance = 4,
       .composite = true},
      {.op = "sqrt",
       .inputs = {{{4, 5}}},
       .run = [](In x) { return stddev(x[0], {0}, true); },
       .label = "in_stddev",
       .tolerance = 4,
       .composite = true,
       .repeat = {1}},
  };
}

}  // namespace mixtape::tests
