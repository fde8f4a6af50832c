// Losses.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {
namespace {

[[maybe_unused]] constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                None = Reduction::None;

OpCase cross_entropy_case(std::string label, std::vector<Input> inputs, CrossEntropyOptions o) {
  const bool probabilities = inputs[1].real();
  return {.op = probabilities ? "cross_entropy_probabilities" : "cross_entropy",
          .inputs = std::move(inputs),
          .run =
              [o](In x) {
                CrossEntropyOptions with_weights = o;
                if (x.size() > 2) with_weights.class_weights = x[2];
                return cross_entropy(x[0], x[1], with_weights);
              },
          .label = std::move(label)};
}
// Inputs: x, weight, target, and bias and class weights, if there are so many. In chunks of 2 rows.
OpCase linear_cross_entropy_case(std::string label, std::vector<Input> inputs,
                                 LinearCrossEntropyOptions o) {
  o.rows = 2;
  return {.op = "linear_cross_entropy",
          .inputs = std::move(inputs),
          .run =
              [o](In x) {
                LinearCrossEntropyOptions more = o;
                if (x.size() > 3) more.bias = x[3];
                if (x.size() > 4) more.class_weights = x[4];
                return linear_cross_entropy(x[0], x[1], x[2], more);
              },
          .label = std::move(label)};
}
OpCase nll_case(std::string label, std::vector<Input> inputs, NllOptions o) {
  return {.op = "nll_loss",
          .inputs = std::move(inputs),
          .run =
              [o](In x) {
                NllOptions with_weights = o;
                if (x.size() > 2) with_weights.class_weights = x[2];
                return nll_loss(x[0], x[1], with_weights);
              },
          .label = std::move(label)};
}
OpCase nothing_of(OpCase c, std::vector<Shape> shapes) {
  c.empty = std::move(shapes);
  return c;
}
OpCase sums_of(OpCase c, std::vector<Shape> shapes) {
  c.sums = std::move(shapes);
  c.pointwise = false;
  return c;
}

// An elementwise loss of an input and a target.
template <class F>
OpCase each(std::string op, F f, double low = -2, double high = 2, double target_low = -2,
            double target_high = 2) {
  return {.op = std::move(op),
          .inputs = {{{3, 4}, low, high}, {{3, 4}, target_low, target_high}},
          .run = [f](In x) { return f(x[0], x[1]); },
          .tolerance = 4,
          .empty = {{0, 4}, {0, 4}},
          .pointwise = true};
}
// The same with more inputs, and a label.
OpCase with(OpCase c, std::string label, std::vector<Input> more, std::function<Tensor(In)> run) {
  c.inputs.insert(c.inputs.end(), more.begin(), more.end());
  c.run = std::move(run);
  c.label = std::move(label);
  c.empty = {};
  c.pointwise = false;
  return c;
}

}  // namespace

std::vector<OpCase> losses() {
  const Input index{{5}, 0, 4, Input::Index}, weights{{4}, 0.5, 2, Input::Constant};
  const Input pixels{{2, 2, 2}, 0, 3, Input::Index}, of_three{{3}, 0.5, 2, Input::Constant};
  std::vector<OpCase> cases = {
      nothing_of(
          sums_of(cross_entropy_case("", {{{5, 4}}, index}, {.reduction = None}), {{2, 4096}, {2}}),
          {{0, 4}, {0}}),
      sums_of(cross_entropy_case("smoothed", {{{5, 4}}, index},
                                 {.label_smoothing = 0.2, .ignore_index = 2, .weight = 3}),
              {{4096, 4}, {4096}}),
      cross_entropy_case("weighted", {{{5, 4}}, index, weights}, {.ignore_index = 1}),
      cross_entropy_case("weighted_smoothed", {{{5, 4}}, index, weights},
                         {.label_smoothing = 0.3, .ignore_index = 1}),
      cross_entropy_case("pixels", {{{2, 3, 2, 2}}, pixels, of_three},
                         {.reduction = None, .label_smoothing = 0.1}),
      sums_of(
          cross_entropy_case("columns", {{{2, 3, 4, 5}}, {{2, 4, 5}, 0, 3, Input::Index}, of_three},
                             {.label_smoothing = 0.1, .ignore_index = 2}),
          {{1, 3, 64, 64}, {1, 64, 64}, {3}}),
      nothing_of(sums_of(cross_entropy_case("", {{{5, 4}}, {{5, 4}, 0, 1}}, {.reduction = None}),
                         {{2, 4096}, {2, 4096}}),
                 {{0, 4}, {0, 4}}),
      sums_of(cross_entropy_case("weighted", {{{5, 4}}, {{5, 4}, 0, 1}, weights},
                                 {.label_smoothing = 0.2}),
              {{1024, 4}, {1024, 4}, {4}}),
      cross_entropy_case("pixels", {{{2, 3, 2, 2}}, {{2, 3, 2, 2}, 0, 1}, of_three},
                         {.reduction = None}),
      cross_entropy_case("columns", {{{2, 3, 4, 5}}, {{2, 3, 4, 5}, 0, 1}, of_three},
                         {.label_smoothing = 0.1}),
      nothing_of(
          sums_of(linear_cross_entropy_case("", {{{5, 3}}, {{4, 3}}, index}, {.reduction = None}),
                  {{2, 4096}, {4, 4096}, {2}}),
          {{0, 3}, {4, 3}, {0}}),
      sums_of(linear_cross_entropy_case("biased", {{{5, 3}}, {{4, 3}}, index, {{4}}},
                                        {.label_smoothing = 0.2, .ignore_index = 2}),
              {{4096, 3}, {4, 3}, {4096}, {4}}),
      linear_cross_entropy_case("weighted", {{{5, 3}}, {{4, 3}}, index, {{4}}, weights},
                                {.label_smoothing = 0.3, .ignore_index = 1}),
      linear_cross_entropy_case("tokens", {{{2, 3, 3}}, {{4, 3}}, {{2, 3}, 0, 4, Input::Index}},
                                {.reduction = Reduction::Sum}),
      nothing_of(nll_case("", {{{5, 4}, -4, 0}, index}, {.reduction = None}), {{0, 4}, {0}}),
      sums_of(nll_case("weighted", {{{5, 4}, -4, 0}, index, weights}, {.ignore_index = 1}),
              {{4096, 4}, {4096}, {4}}),
      nll_case("pixels", {{{2, 3, 2, 2}, -4, 0}, pixels, of_three}, {.reduction = None}),
  };
  for (OpCase& c : cases) c.tolerance = 4;

  const auto logits = [](const BceOptions& o) {
    return
        [o](const Tensor& x, const Tensor& t) { return binary_cross_entropy_with_logits(x, t, o); };
  };
  OpCase probabilities = each(
      "binary_cross_entropy",
      [](const Tensor& x, const Tensor& t) {
        return binary_cross_entropy(x, t, {.reduction = None});
      },
      0.1, 0.9, 0, 1);
  probabilities.half = false, probabilities.least = 0, probabilities.most = 1;
  const OpCase of_logits =
      each("binary_cross_entropy_with_logits", logits({.reduction = None}), -4, 4, 0, 1);
  const OpCase positives = each("binary_cross_entropy_with_pos_weight", logits({}), -4, 4, 0, 1);
  const auto with_pos_weight = [](In x) {
    return binary_cross_entropy_with_logits(x[0], x[1], {.reduction = None, .pos_weight = x[2]});
  };
  const Input row{{4}, 0.5, 2}, fixed_row{{4}, 0.5, 2, Input::Constant};
  for (OpCase c : {
           each("mse_loss", [](const Tensor& x, const Tensor& t) { return mse_loss(x, t, None); }),
           each("l1_loss", [](const Tensor& x, const Tensor& t) { return l1_loss(x, t, None); }),
           each("smooth_l1_loss",
                [](const Tensor& x, const Tensor& t) {
                  return smooth_l1_loss(x, t, {.reduction = None, .beta = 0.8});
                }),
           each("huber_loss",
                [](const Tensor& x, const Tensor& t) {
                  return huber_loss(x, t, {.reduction = None, .delta = 0.8});
                }),
           probabilities,
           sums_of(with(probabilities, "weighted", {fixed_row},
                        [](In x) { return binary_cross_entropy(x[0], x[1], {.weight = x[2]}); }),
                   {{1024, 4}, {1024, 4}, {4}}),
           of_logits,
           sums_of(with(of_logits, "weighted", {fixed_row},
                        [](In x) {
                          return binary_cross_entropy_with_logits(x[0], x[1], {.weight = x[2]});
                        }),
                   {{1024, 4}, {1024, 4}, {4}}),
           nothing_of(with(positives, "", {fixed_row}, with_pos_weight), {{0, 4}, {0, 4}, {4}}),
           sums_of(with(positives, "learned", {row}, with_pos_weight), {{1024, 4}, {1024, 4}, {4}}),
           each(
               "kl_div",
               [](const Tensor& x, const Tensor& t) { return kl_div(x, t, {.reduction = None}); },
               -3, 0, 0.05, 1),
           sums_of(each(
                       "kl_div_log_target",
                       [](const Tensor& x, const Tensor& t) {
                         return kl_div(x, t, {.batch_mean = true, .log_target = true});
                       },
                       -3, 0, -3, 0),
                   {{64, 64}, {64, 64}}),
           sums_of(each("cosine_similarity",
                        [](const Tensor& x, const Tensor& y) { return cosine_similarity(x, y); }),
                   {{2, 4096}, {2, 4096}}),
       })
    cases.push_back(std::move(c));
  for (OpCase c :
       {sums_of(each(
                    "soft_margin_loss",
                    [](const Tensor& x, const Tensor& t) { return soft_margin_loss(x, t); }, -4, 4,
                    -1, 1),
                {{64, 64}, {64, 64}}),
        sums_of(each(
                    "poisson_nll_loss",
                    [](const Tensor& x, const Tensor& t) { return poisson_nll_loss(x, t); }, -3, 3,
                    0, 4),
                {{64, 64}, {64, 64}}),
        each(
            "poisson_rate_nll_loss",
            [](const Tensor& x, const Tensor& t) {
              return poisson_nll_loss(x, t, {.reduction = None, .log_input = false});
            },
            0.1, 4, 0, 4)}) {
    c.composite = true;  // 16 bits are converted to f64 first
    cases.push_back(std::move(c));
  }
  cases.push_back({.op = "cosine_similarity",
                   .inputs = {{{2, 3, 4}}, {{2, 3, 1}}},
                   .run = [](In x) { return cosine_similarity(x[0], x[1], 0); },
                   .label = "broadcast",
                   .tolerance = 4,
                   .sums = {{1, 4096, 2}, {1, 4096, 1}}});
  return cases;
}

}  // namespace mixtape::tests
