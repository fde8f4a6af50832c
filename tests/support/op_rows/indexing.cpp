// Indexing and order.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> indexing() {
  const auto i = [](const Shape& shape, double high) {
    return Input{shape, 0, high, Input::Index};
  };
  const Input mask{{4, 3}, 0, 1, Input::Mask};
  return {
      {.op = "gather",
       .inputs = {{{3, 5}}, i({3, 4}, 5)},
       .run = [](In x) { return gather(x[0], 1, x[1]); },
       .empty = {{3, 5}, {3, 0}}},
      {.op = "gather",
       .inputs = {{{4, 3, 2}}, i({6, 2, 2}, 4)},
       .run = [](In x) { return gather(x[0], -3, x[1]); },
       .label = "of_a_corner",
       .empty = {{4, 0, 2}, {6, 0, 2}}},
      {.op = "gather",
       .inputs = {{{4, 1}}, i({4, 3, 1}, 4)},
       .run =
           [](In x) {
             return gather(expand(x[0], {4, 4, 2}), 1, expand(x[1], {4, 3, 2}));
           },
       .label = "expanded"},
      {.op = "gather",
       .inputs = {{{4, 3}}, i({7}, 4)},
       .run = [](In x) { return index_select(x[0], 0, x[1]); },
       .label = "index_select",
       .empty = {{4, 3}, {0}}},
      {.op = "gather",
       .inputs = {{{2, 4, 3}}, i({5}, 4)},
       .run = [](In x) { return index_select(x[0], -2, x[1]); },
       .label = "index_select_middle",
       .empty = {{2, 4, 0}, {5}}},
      {.op = "gather",
       .inputs = {{{4, 3, 2}}, i({5, 1}, 4), i({2}, 3)},
       .run =
           [](In x) {
             return index(x[0], {x[1] - 4, x[2]});
           },
       .label = "index",
       .empty = {{4, 3, 0}, {5, 1}, {2}}},
      {.op = "gather",
       .inputs = {{{4, 3, 2}}, mask},
       .run = [](In x) { return index(x[0], {x[1]}); },
       .label = "index_mask",
       .empty = {{4, 0, 2}, {4, 0}}},
      {.op = "gather",
       .inputs = {{{4, 3}}, mask},
       .run = [](In x) { return masked_select(x[0], x[1]); },
       .label = "masked_select",
       .empty = {{0, 3}, {0, 3}}},
      {.op = "gather",
       .inputs = {{{3}}, mask},
       .run = [](In x) { return masked_select(x[0], x[1]); },
       .label = "masked_select_broadcast"},
      {.op = "scatter",
       .inputs = {{{3, 5}}, i({3, 7}, 5), {{3, 7}}},
       .run = [](In x) { return scatter(x[0], 1, x[1], x[2]); },
       .empty = {{3, 5}, {3, 0}, {3, 0}}},
      {.op = "scatter",
       .inputs = {{{4, 3, 2}}, i({2, 2, 1}, 4), {{3, 2, 2}}},
       .run = [](In x) { return scatter(x[0], 0, x[1], x[2]); },
       .label = "into_a_corner",
       .empty = {{4, 0, 2}, {2, 0, 1}, {3, 0, 2}}},
      {.op = "scatter",
       .inputs = {{{4, 3}}, i({6}, 4), i({6}, 3), {{1}}},
       .run =
           [](In x) {
             return index_put(x[0], {x[1], x[2] - 3}, x[3]);
           },
       .label = "index_put"},
      {.op = "scatter",
       .inputs = {{{4, 3, 2}}, mask, {{2}}},
       .run = [](In x) { return index_put(x[0], {x[1]}, x[2]); },
       .label = "index_put_mask",
       .empty = {{0, 3, 2}, {0, 3}, {2}}},
      {.op = "scatter_add",
       .inputs = {{{3, 5}}, i({3, 9}, 5), {{3, 9}}},
       .run = [](In x) { return scatter_add(x[0], 1, x[1], x[2]); },
       .tolerance = 2,
       .empty = {{3, 5}, {3, 0}, {3, 0}}},
      {.op = "scatter_add",
       .inputs = {{{4, 3, 2}}, i({9, 2, 1}, 4), {{9, 2, 2}}},
       .run = [](In x) { return scatter_add(x[0], 0, x[1], x[2]); },
       .label = "into_a_corner",
       .tolerance = 2},
      {.op = "scatter_add",
       .inputs = {{{3, 4, 2}}, i({6}, 4), {{3, 6, 2}}},
       .run = [](In x) { return index_add(x[0], 1, x[1], x[2]); },
       .label = "index_add",
       .tolerance = 2,
       .empty = {{0, 4, 2}, {6}, {0, 6, 2}}},
      {.op = "scatter_add",
       .inputs = {{{4, 3, 2}}, i({5, 2}, 4), i({2}, 3), {{2, 1}}},
       .run =
           [](In x) {
             return index_put(x[0], {x[1], x[2]}, x[3], true);
           },
       .label = "index_put",
       .tolerance = 2},
      {.op = "scatter_add",
       .inputs = {{{3, 2, 4}}, i({3, 2, 4}, 5)},
       .run =
           [](In x) {  // the gradient of gathering, recorded
             const Tensor table = ones({5, 2, 4}, x[0].dtype()).set_requires_grad();
             return grad({sum(gather(table, 0, x[1]) * x[0])}, {table}, {.create_graph = true})[0] *
                    2;
           },
       .label = "of_gather",
       .composite = true},
      {.op = "argsort",
       .inputs = {{{3, 6}}},
       .run = [](In x) { return argsort(x[0], 1, true); },
       .differentiable = false,
       .empty = {{0, 6}}},
      {.op = "gather",
       .inputs = {{{3, 6}}},
       .run = [](In x) { return sort(x[0]).values; },
       .label = "sort",
       .empty = {{3, 0}}},
      {.op = "gather",
       .inputs = {{{6, 2, 3}}},
       .run = [](In x) { return sort(x[0], 0, true).values; },
       .label = "sort_first",
       .empty = {{0, 2, 3}}},
      {.op = "topk",
       .inputs = {{{3, 6}}},
       .run = [](In x) { return topk(x[0], 2, 0).indices; },
       .differentiable = false,
       .empty = {{3, 0}}},
      {.op = "gather",
       .inputs = {{{2, 9, 2}}},
       .run = [](In x) { return topk(x[0], 4, 1, false).values; },
       .label = "topk",
       .empty = {{0, 9, 2}}},
  };
}

}  // namespace mixtape::tests
