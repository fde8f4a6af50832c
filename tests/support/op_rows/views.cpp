// Views, rearranging and joining.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> views() {
  return {
      {.op = "reshape", .inputs = {{{3, 4}}}, .run = [](In x) { return reshape(x[0], {2, -1}); }},
      {.op = "reshape",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return flatten(transpose(x[0], 0, 1), 1); },
       .label = "of_transposed",
       .empty = {{2, 0, 4}}},
      {.op = "permute",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return permute(x[0], {2, 0, 1}); },
       .empty = {{2, 0, 3}}},
      {.op = "expand",
       .inputs = {{{3, 1}}},
       .run = [](In x) { return expand(x[0], {2, 3, 4}); },
       .empty = {{3, 1}}},
      {.op = "slice",
       .inputs = {{{7, 3}}},
       .run = [](In x) { return slice(x[0], 0, 1, 6, 2); },
       .empty = {{7, 0}}},
      {.op = "slice",
       .inputs = {{{6, 3}}},
       .run =
           [](In x) {
             const auto parts = unpack<3>(chunk(x[0], 3));
             return parts[0] * parts[2] + parts[1];
           },
       .label = "chunks"},
      {.op = "slice",
       .inputs = {{{4, 3}}},
       .run = [](In x) { return select(x[0], 1, -1) * select(x[0], 1, 0); },
       .label = "select"},
      {.op = "slice",
       .inputs = {{{6, 3}}},
       .run = [](In x) { return x[0](Slice(None, None, -2), None, 1); },
       .label = "and_more",
       .empty = {{0, 3}}},
      {.op = "slice_scatter",
       .inputs = {{{5, 3}}, {{2, 3}}},
       .run = [](In x) { return slice_scatter(x[0], x[1], 0, 1, 5, 2); },
       .empty = {{5, 0}, {2, 0}}},
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
      {.op = "reshape",
       .inputs = {{{2, 1, 3, 1}}},
       .run = [](In x) { return squeeze(squeeze(squeeze(x[0]), 0), -1); },
       .label = "squeezed",
       .empty = {{2, 1, 0, 1}}},
      {.op = "reshape",
       .inputs = {{{1, 3, 1, 4, 1}}},
       .run = [](In x) { return squeeze(x[0], {0, -1, 1}); },
       .label = "squeezed_dimensions",
       .empty = {{1, 0, 1, 4, 1}}},
      {.op = "slice",
       .inputs = {{{3, 6}}},
       .run =
           [](In x) {
             const auto parts = split(x[0], {2, 0, 3, 1}, -1);
             return parts[2] * 2 + narrow(parts[0], 1, 1, 1) * parts[3];
           },
       .label = "split"},
      {.op = "slice",
       .inputs = {{{3, 4, 2}}},
       .run =
           [](In x) {
             const auto rows = unbind(x[0], 1);
             return rows[3] * rows[1] + rows[0];
           },
       .label = "unbound",
       .empty = {{0, 4, 2}}},
      {.op = "split_heads",
       .inputs = {{{2, 3, 12}}},
       .run =
           [](In x) {
             const auto parts = split_heads(x[0], 2);
             return parts[0] * parts[2] + parts[1];
           },
       .empty = {{2, 0, 12}}},
      {.op = "split_heads",  // one part is not used, one twice
       .inputs = {{{3, 2, 12}}},
       .run =
           [](In x) {
             const auto parts = split_heads(x[0], 2, {.batch_first = false});
             return parts[2] * parts[2] - transpose(parts[0], 2, 3).t();
           },
       .label = "of_time_first",
       .empty = {{0, 2, 12}}},
      {.op = "place_heads",
       .inputs = {{{2, 2, 3, 2}}},
       .run =
           [](In x) {
             const Tensor whole = ones({2, 3, 12}, x[0].dtype()).set_requires_grad();
             return grad({sum(split_heads(whole, 2)[1] * x[0])}, {whole},
                         {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "diagonal",
       .inputs = {{{4, 3}}},
       .run = [](In x) { return diagonal(x[0], -1); },
       .empty = {{0, 3}}},
      {.op = "diagonal",
       .inputs = {{{3, 2, 4}}},
       .run = [](In x) { return diagonal(x[0], 1, -1, 0); },
       .label = "of_planes",
       .empty = {{3, 0, 4}}},
      {.op = "diagonal",
       .inputs = {{{3, 1}}},
       .run =
           [](In x) {
             const Tensor y = expand(x[0], {2, 3, 4});
             return diagonal(y, 7, -2, -1) + diagonal(y, 4, -2, -1);
           },
       .label = "beside_the_matrix"},
      {.op = "place_diagonal",
       .inputs = {{{2, 3}}},
       .run =
           [](In x) {
             const Tensor whole = ones({3, 2, 4}, x[0].dtype()).set_requires_grad();
             return grad({sum(diagonal(whole, 1, 0, 2) * x[0])}, {whole},
                         {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "unfold",
       .inputs = {{{3, 7}}},
       .run = [](In x) { return unfold(x[0], 1, 3, 1); },
       .empty = {{0, 7}}},
      {.op = "unfold",
       .inputs = {{{8, 2}}},
       .run = [](In x) { return unfold(x[0], -2, 4, 3); },
       .label = "overlapping",
       .empty = {{8, 0}}},
      {.op = "unfold",
       .inputs = {{{2, 9}}},
       .run = [](In x) { return unfold(unfold(x[0], 1, 2, 4), 2, 2, 1); },
       .label = "with_gaps"},
      {.op = "fold",
       .inputs = {{{3, 2, 4}}},
       .run =
           [](In x) {
             const Tensor whole = ones({8, 2}, x[0].dtype()).set_requires_grad();
             return grad({sum(unfold(whole, 0, 4, 2) * x[0])}, {whole}, {.create_graph = true})[0] *
                    2;
           },
       .composite = true},
      {.op = "flip",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return flip(x[0], {0, -1}); },
       .empty = {{2, 0, 4}}},
      {.op = "flip",
       .inputs = {{{3, 1}}},
       .run = [](In x) { return flip(expand(x[0], {3, 4}), {}); },
       .label = "all"},
      {.op = "cat",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return roll(x[0], -8, -1); },
       .label = "roll",
       .empty = {{0, 5}}},
      {.op = "expand",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return repeat(x[0], {2, 3, 1}); },
       .label = "repeat",
       .empty = {{0, 3}}},
      {.op = "gather",
       .inputs = {{{2, 3, 2}}},
       .run = [](In x) { return repeat_interleave(x[0], 3, -2); },
       .label = "repeat_interleave",
       .empty = {{2, 0, 2}}},
      {.op = "tril",
       .inputs = {{{3, 5}}},
       .run = [](In x) { return tril(x[0]); },
       .empty = {{3, 0}}},
      {.op = "tril",
       .inputs = {{{2, 5, 3}}},
       .run = [](In x) { return tril(x[0], -1); },
       .label = "below",
       .empty = {{0, 5, 3}}},
      {.op = "triu",
       .inputs = {{{2, 4, 3}}},
       .run = [](In x) { return triu(x[0], 1); },
       .empty = {{2, 0, 3}}},
      {.op = "pad",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return pad(x[0], {1, 2, 0, 3}); },
       .empty = {{0, 3}}},
      {.op = "pad",
       .inputs = {{{2, 4, 5}}},
       .run = [](In x) { return pad(x[0], {-2, 3, 1, -2}, PadMode::Constant, 0.5); },
       .label = "and_crop",
       .empty = {{0, 4, 5}}},
      {.op = "gather",
       .inputs = {{{2, 3, 4}}},
       .run = [](In x) { return pad(x[0], {3, 2, 2, -1}, PadMode::Reflect); },
       .label = "pad_reflect",
       .empty = {{0, 3, 4}}},
      {.op = "gather",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return pad(x[0], {0, 4, 3, 1}, PadMode::Replicate); },
       .label = "pad_replicate"},
      {.op = "gather",
       .inputs = {{{2, 3}}},
       .run = [](In x) { return pad(x[0], {3, 2, 1, 2}, PadMode::Circular); },
       .label = "pad_circular"},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{4, 3}}},
       .run = [](In x) { return cat({x[0], x[1]}); },
       .empty = {{0, 3}, {2, 3}}},
      {.op = "cat",
       .inputs = {{{2, 3}}, {{2, 3}}},
       .run = [](In x) { return stack({x[0], x[1]}, 1); },
       .label = "stack"},
  };
}

}  // namespace mixtape::tests
