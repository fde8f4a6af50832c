// Softmax, normalisation, dropout, embedding, attention, interpolation, recurrence.
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
  const auto recurrent = [](auto op, int64_t gates, std::string name) {
    return OpCase{.op = std::move(name),
                  .inputs = {{{3, 2, gates * 3}}, {{gates * 3, 3}, -1, 1}, {{gates * 3}}, {{2, 3}}},
                  .run = [op](In x) { return op(x[0], x[1], x[2], x[3], RecurrentOptions{}); },
                  .tolerance = 8,
                  .empty = {{3, 0, gates * 3}, {gates * 3, 3}, {gates * 3}, {0, 3}}};
  };
  return {
      {.op = "lstm",
       .inputs = {{{3, 2, 12}}, {{12, 3}, -1, 1}, {{12}}, {{2, 3}}, {{2, 3}}},
       .run = [](In x) { return lstm(x[0], x[1], x[2], x[3], x[4]); },
       .tolerance = 8,
       .empty = {{3, 0, 12}, {12, 3}, {12}, {0, 3}, {0, 3}}},
      {.op = "lstm",
       .inputs = {{{4, 2, 8}}, {{8, 2}, -1, 1}},
       .run = [](In x) { return lstm(x[0], x[1], {}, {}, {}, {.reverse = true}); },
       .label = "reverse",
       .tolerance = 8},
      {.op = "gru",
       .inputs = {{{4, 1, 6}}, {{6, 2}, -1, 1}, {{1, 2}}},
       .run = [](In x) { return gru(x[0], x[1], {}, x[2], {.reverse = true}); },
       .label = "reverse",
       .tolerance = 8},
      {.op = "rnn_tanh",
       .inputs = {{{1, 2, 20}}, {{20, 20}, -1, 1}},
       .run = [](In x) { return rnn_tanh(x[0], x[1], {}, {}, {.reverse = true}); },
       .label = "one_step",
       .tolerance = 8},
      recurrent(gru, 3, "gru"),
      recurrent(rnn_tanh, 1, "rnn_tanh"),
      recurrent(rnn_relu, 1, "rnn_relu"),
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
      {.op = "embedding",
       .inputs = {{{5, 3}}, {{7}, 0, 4, Input::Index}},
       .run =
           [](In x) {  // never looked up: its gradient is not that of its values
             return embedding(x[0], x[1], {.padding = 4});
           },
       .label = "padding"},
  };
}

}  // namespace mixtape::tests
