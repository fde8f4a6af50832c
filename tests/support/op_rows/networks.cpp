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
  const auto attention = [](AttentionOptions o) {
    return [o](In x) {
      const Seed seed(7);
      AttentionOptions with_mask = o;
      if (x.size() > 3) with_mask.mask = x[3];
      return scaled_dot_product_attention(x[0], x[1], x[2], with_mask);
    };
  };
  const auto resized = [](Size2 size, InterpolateOptions o) {
    return [=](In x) { return interpolate(x[0], size, o); };
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
      {.op = "softmax",
       .inputs = {{{2, 3, 4, 5}}},
       .run = [](In x) { return softmax(x[0], 1); },
       .label = "columns",
       .empty = {{2, 3, 0, 20}}},
      {.op = "log_softmax",
       .inputs = {{{3, 17}}},
       .run = [](In x) { return log_softmax(x[0], 0); },
       .label = "columns",
       .empty = {{0, 17}}},
      {.op = "log_softmax",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return log_softmax(x[0], 0); },
       .empty = {{5, 0}}},
      {.op = "prelu",
       .inputs = {{{3, 5}, -2, 2, Input::Real, 0.1}, {{1}, 0.1, 0.5}},
       .run = [](In x) { return prelu(x[0], x[1]); },
       .empty = {{0, 5}, {1}}},
      {.op = "prelu",
       .inputs = {{{2, 3, 4}, -2, 2, Input::Real, 0.1}, {{3}, 0.1, 0.5}},
       .run = [](In x) { return prelu(x[0], x[1]); },
       .label = "channels"},
      {.op = "layer_norm",
       .inputs = {{{4, 6}}, {{6}, 0.5, 1.5}, {{6}}},
       .run = [](In x) { return layer_norm(x[0], {6}, x[1], x[2]); },
       .tolerance = 8,
       .empty = {{0, 6}, {6}, {6}}},
      {.op = "layer_norm",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return layer_norm(x[0], {3, 4}); },
       .label = "plain",
       .tolerance = 8},
      {.op = "rms_norm",
       .inputs = {{{4, 6}}, {{6}, 0.5, 1.5}},
       .run = [](In x) { return rms_norm(x[0], {6}, x[1]); },
       .tolerance = 8,
       .empty = {{0, 6}, {6}}},
      {.op = "rms_norm",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return rms_norm(x[0], {3, 4}); },
       .label = "plain",
       .tolerance = 8},
      {.op = "group_norm",
       .inputs = {{{2, 6, 3, 2}}, {{6}, 0.5, 1.5}, {{6}}},
       .run = [](In x) { return group_norm(x[0], 3, x[1], x[2]); },
       .tolerance = 8,
       .empty = {{0, 6, 3, 2}, {6}, {6}}},
      {.op = "group_norm",
       .inputs = {{{3, 4}}},
       .run = [](In x) { return group_norm(x[0], 1); },
       .label = "plain",
       .tolerance = 8},
      {.op = "instance_norm",
       .inputs = {{{2, 3, 4, 2}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = [](In x) { return instance_norm(x[0], x[1], x[2]); },
       .tolerance = 8,
       .empty = {{0, 3, 4, 2}, {3}, {3}}},
      {.op = "batch_norm",
       .inputs = {{{4, 3, 2, 2}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(true),
       .tolerance = 8},
      {.op = "batch_norm",
       .inputs = {{{4, 3}}, {{3}, 0.5, 1.5}, {{3}}},
       .run = batch_norm_case(false),
       .label = "eval",
       .tolerance = 8,
       .empty = {{0, 3}, {3}, {3}}},
      {.op = "scaled_dot_product_attention",
       .inputs = {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 3}}},
       .run = attention({}),
       .tolerance = 8,
       .empty = {{2, 3, 4}, {2, 0, 4}, {2, 0, 3}}},
      {.op = "scaled_dot_product_attention",  // two heads share keys, all share values
       .inputs = {{{2, 2, 4, 3}}, {{2, 1, 5, 3}}, {{5, 2}}},
       .run = attention({.causal = true, .scale = 1.5}),
       .label = "causal",
       .tolerance = 8,
       .empty = {{2, 0, 4, 3}, {2, 1, 5, 3}, {5, 2}}},
      {.op = "scaled_dot_product_attention",
       .inputs = {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 3}}, {{3, 5}}},
       .run = attention({.dropout = 0.3}),
       .label = "biased",
       .tolerance = 8},
      {.op = "scaled_dot_product_attention",
       .inputs = {{{2, 3, 4}}, {{2, 5, 4}}, {{2, 5, 3}}, {{2, 1, 5}, 0, 1, Input::Mask}},
       .run = attention({}),
       .label = "masked",
       .tolerance = 8},
      {.op = "interpolate",
       .inputs = {{{2, 2, 3, 4}}},
       .run = resized({5, 3}, {}),
       .tolerance = 2,
       .empty = {{0, 2, 3, 4}}},
      {.op = "interpolate",
       .inputs = {{{2, 2, 3, 4}}},
       .run = resized({7, 2}, {.mode = Interpolation::Bilinear}),
       .label = "bilinear",
       .tolerance = 2},
      {.op = "interpolate",
       .inputs = {{{2, 2, 3, 4}}},
       .run = resized({5, 9}, {.mode = Interpolation::Bilinear, .align_corners = true}),
       .label = "corners",
       .tolerance = 2},
      {.op = "interpolate",
       .inputs = {{{2, 2, 3, 4}}},
       .run = resized({7, 3}, {.mode = Interpolation::Bicubic}),
       .label = "bicubic",
       .tolerance = 2},
      {.op = "interpolate",
       .inputs = {{{2, 2, 3, 4}}},
       .run = resized({5, 9}, {.mode = Interpolation::Bicubic, .align_corners = true}),
       .label = "bicubic_corners",
       .tolerance = 2},
      {.op = "interpolate_gradient",
       .inputs = {{{2, 1, 5, 3}}},
       .run =
           [](In x) {
             const Tensor image = ones({2, 1, 3, 4}, x[0].dtype()).set_requires_grad();
             const Tensor y = interpolate(image, {5, 3}, {.mode = Interpolation::Bilinear});
             return grad({sum(y * x[0])}, {image}, {.create_graph = true})[0];
           },
       .composite = true},
      {.op = "permute",
       .inputs = {{{2, 8, 2, 3}}},
       .run = [](In x) { return pixel_shuffle(x[0], 2); },
       .label = "in_pixel_shuffle",
       .empty = {{0, 8, 2, 3}}},
      {.op = "permute",
       .inputs = {{{2, 2, 4, 6}}},
       .run = [](In x) { return pixel_unshuffle(x[0], 2); },
       .label = "in_pixel_unshuffle",
       .empty = {{2, 2, 0, 6}}},
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
           [](In x) {  // never looked up: gradcheck sees its values
             return embedding(x[0], x[1], {.padding_idx = 4});
           },
       .label = "padding"},
  };
}

}  // namespace mixtape::tests
