// Views, rearranging and joining.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> views() {
  return {
      {.op = "reshape",
       .inputs = {{{3, 4}}},
       .run =
           [](In x) {
             return reshape(x[0], {2, -1});
           }},
      {.op = "reshape",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return flatten(transpose(x[0], 0, 1), 1); },
       .label = "of_transposed",
       .empty = {{2, 0, 4}}},
      {.op = "permute",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return permute(x[0], {2, 0, 1});
           },
       .empty = {{2, 0, 3}}},
      {.op = "expand",
       .inputs = {{{3, 1}}},
       .run =
           [](In x) {
             return expand(x[0], {2, 3, 4});
           },
       .empty = {{3, 1}}},
      {.op = "slice",
       .inputs = {{{7, 3}}},
       .run = [](In x) { return slice(x[0], 0, 1, 6, 2); },
       .empty = {{7, 0}}},
      {.op = "slice",
       .inputs = {{{6, 3}}},
       .run =
           [](In x) {
             const auto parts = chunk(x[0], 3);
             return parts[0] * parts[2] + parts[1];
           },
       .label = "chunks"},
      {.op = "slice",
       .inputs = {{{4, 3}}},
       .run = [](In x) { return select(x[0], 1, -1) * select(x[0], 1, 0); },
       .label = "select"},
      {.op = "place_slice",
       .inputs = {{{2, 3}}},
       .run =
           [](In x) {  // the gradient of a slice, recorded
             const Tensor whole = ones({5, 3}, x[0].dtype()).set_requires_grad();
             return grad({sum(slice(whole, 0, 1, 5, 2) * x[0])}, {whole},
                         {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{4, 3}}},
       .run =
           [](In x) {
             return cat({x[0], x[1]});
           },
       .empty = {{0, 3}, {2, 3}}},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{2, 3}}},
       .run =
           [](In x) {
             return stack({x[0], x[1]}, 1);
           },
       .label = "stack"},
  };
}

}  // namespace mixtape::tests
