// Softmax, normalisation, dropout, embedding, attention, interpolation.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> networks() {
  const auto batch_norm_case = [](bool training) {
    return [training](In x) {
      const Tensor mean = full({x[0].size(1)}, 0.1, x[0].dtype() == f64 ? f64 : f32),
                   var = full_like(mean, 1.3);
      return batch_norm(x[0], mean, var, x[1], x[2], {.training = training});
    };
  };
  return {
      {.op = "softmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return softmax(x[0]); },
       .empty = {{0, 5}}},
      {.op = "softmax",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return softmax(x[0], 1); },
       .label = "middle"},
      {.op = "log_softmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return log_softmax(x[0], 0); },
       .empty = {{5, 0}}},
      {.op = "layer_norm",
       .inputs = {{{4, 6}}, {{6}, 0.5, 1.5}, {{6}}},
       .run = [](In x) { return layer_norm(x[0], {6}, x[1], x[2]); },
       .second_order = false,
       .tolerance = 8,
       .empty = {{0, 6}, {6}, {6}}},
      {.op = "layer_norm",
       .inputs = {{{2, 3, 4}}},
       .run =
           [](In x) {
             return layer_norm(x[0], {3, 4});
           },
       .label = "plain",
       .second_order = false,
       .tolerance = 8},
      {.op = "batch_norm",
       .inputs = {{{4, 3, 2, 2}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(true),
       .second_order = false,
       .tolerance = 8},
      {.op = "batch_norm",
       .inputs = {{{4, 3}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(false),
       .label = "eval",
       .second_order = false,
       .tolerance = 8,
       .empty = {{0, 3}, {3}, {3}}},
      {.op = "dropout",
       .inputs = {{{6, 7}}},
       .run =
           [](In x) {
             const Seed seed(5);
             return dropout(x[0], 0.4);
           },
       .empty = {{0, 3}}},
      {.op = "embedding",
       .inputs = {{{5, 3}}, {{2, 4}, 0, 5, Input::Index}},
       .run = [](In x) { return embedding(x[0], x[1]); },
       .empty = {{5, 3}, {0, 4}}},
  };
}

}  // namespace mixtape::tests
