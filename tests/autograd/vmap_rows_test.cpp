// vmap and gradients by example of every op, by its row: those of a loop.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/vmap.h"
#include "core/format.h"
#include "tests/support/op_rows/rows.h"
#include "tests/support/values.h"

namespace mixtape {
namespace vmap_rows_test {

using tests::OpCase;
using Tensors = std::vector<Tensor>;

std::string row_name(const testing::TestParamInfo<OpCase>& i) { return i.param.name(); }
struct EveryRow : testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Ops, EveryRow, testing::ValuesIn(tests::op_cases()), row_name);
INSTANTIATE_TEST_SUITE_P(Composed, EveryRow, testing::ValuesIn(tests::composed()), row_name);

// Compares values and gradients with those of a loop, whatever the dimension of examples.
void expect_a_loop(const OpCase& c, int64_t n, double digits) {
  std::vector<Tensors> by_example, by_input(c.inputs.size());
  for (int64_t b = 0; b < n; ++b) {
    by_example.push_back(
        tests::make_inputs(c, f64, true, tests::shapes(c), uint64_t(100 + 50 * b)));
    for (size_t i = 0; i < c.inputs.size(); ++i)
      by_input[i].push_back(by_example.back()[i].detach());
  }
  VmapOptions options{.in_dims = {}, .out_dims = {-1}};
  Tensors inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const int dim = int(i) % (c.inputs[i].shape.rank + 1);
    options.in_dims.emplace_back(dim);
    inputs.push_back(stack(by_input[i], dim));
    if (c.differentiable && c.inputs[i].differentiated()) inputs.back().set_requires_grad();
  }
  if (inputs.empty()) return;
  const auto run = [&](const Tensors& in) { return Tensors{c.run(in)}; };
  Tensors each;
  for (const Tensors& one : by_example) each.push_back(c.run(one));
  if (std::ranges::any_of(each, [&](const Tensor& y) {
        return y.shape() != each[0].shape();
      })) {  // which depends on values
    EXPECT_THROW(detail::vmap(run, inputs, options), Error);
    return;
  }
  const Tensor all = detail::vmap(run, inputs, options)[0], want = stack(each, -1);
  EXPECT_EQ(all.dtype(), want.dtype());
  expect_near(all, want, digits);
  if (!c.differentiable) return;
  const Tensor dy = tests::output_gradient(all);
  all.backward({.gradient = dy});
  want.backward({.gradient = dy});
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    for (int64_t b = 0; b < n; ++b)
      expect_near(select(inputs[i].grad(), *options.in_dims[i], b), by_example[size_t(b)][i].grad(),
                  digits);
  }
}
// Two examples take a loop, with its bits; three the batching rules.
TEST_P(EveryRow, VmapIsALoop) { expect_a_loop(GetParam(), 2, 0); }
TEST_P(EveryRow, VmapByRulesIsALoop) { expect_a_loop(GetParam(), 3, 1e-9); }

// The results of two examples, one below the other, if rows of the first input stand for
// themselves; else no tensor.
Tensor of_both(const OpCase& c, const Tensors& in, const Tensor& x) {
  const auto with = [&](const Tensor& first) {
    Tensors all = in;
    all[0] = first;
    return c.run(all);
  };
  try {
    const Tensor y = with(x), a = with(slice(x, 0, 0, x.size(0) / 2)),
                 b = with(slice(x, 0, x.size(0) / 2, x.size(0)));
    if (a.rank() == 0 || y.shape() != cat({a, b}).shape()) return {};
    return allclose(y, cat({a, b})) ? y : Tensor();
  } catch (const Error&) {
    return {};
  }
}

// Compares the gradients of further inputs of these shapes, which the examples share.
enum class Found { Nothing, Refused, Gradients };
Found gradients_by_example(const OpCase& c, const std::vector<Shape>& shapes) {
  if (!c.differentiable || shapes.size() < 2 || shapes[0].rank == 0) return Found::Nothing;
  const Tensors in = tests::make_inputs(c, f64, true, shapes);
  const Tensor other = tests::make_inputs(c, f64, false, shapes, 150)[0];
  const Tensor x = cat({in[0].detach(), other});
  Tensors params;
  for (size_t i = 1; i < in.size(); ++i)
    if (in[i].requires_grad()) params.push_back(in[i]);
  const Tensor y = of_both(c, in, x);
  if (params.empty() || !y || !y.requires_grad()) return Found::Nothing;
  const auto f = [&](const Tensors& examples) {
    Tensors all = in;
    all[0] = examples[0].flatten(0, 1);
    const Tensor y = c.run(all);
    const Tensor of_rows = reshape(y, {examples[0].size(0), y.numel() / examples[0].size(0)});
    return sum(square(of_rows) + of_rows, {1});
  };
  const Tensor examples = reshape(x, internal::joined({2}, in[0].shape()));
  Tensors all;
  try {
    all = per_sample_gradients(f, params, {examples});
  } catch (const Error&) {  // an op in it has the examples elsewhere than in dimension 0
    return Found::Refused;
  }
  for (int64_t b = 0; b < 2; ++b) {
    const Tensors want =
        grad({sum(f({slice(examples, 0, b, b + 1)}))}, params, {.allow_unused = true});
    for (size_t k = 0; k < params.size(); ++k) {
      const Tensor got = select(all[k], 0, b);
      EXPECT_EQ(got.shape(), params[k].shape());
      for (int64_t i = 0; i < got.numel(); ++i) {
        const double w = want[k] ? want[k].at(i) : 0;
        EXPECT_NEAR(got.at(i), w, 1e-9 * (1 + std::abs(w))) << "input " << k + 1;
      }
    }
  }
  return Found::Gradients;
}

TEST(GradientsByExample, AreThoseOfALoop) {
  int compared = 0, refused = 0;
  for (const OpCase& c : tests::op_cases()) {
    SCOPED_TRACE(c.name());
    if (c.inputs.empty()) continue;
    std::vector<Shape> broadcast = tests::reduced_shapes(c);
    broadcast[0] = c.inputs[0].shape;
    Found found = gradients_by_example(c, tests::shapes(c));
    if (found == Found::Nothing) found = gradients_by_example(c, broadcast);
    compared += found == Found::Gradients;
    refused += found == Found::Refused;
  }
  EXPECT_GE(compared, 45);
  EXPECT_LE(refused, 5);
}

}  // namespace vmap_rows_test
}  // namespace mixtape
