// The CPU kernels for softmax, cross-entropy, logsumexp and recurrent cells against plain loops in
// double over the same rounded inputs, and against themselves on other numbers of threads.

#include <algorithm>

#include "kernels/common/cells.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_rows_test {

double log_sum_exp(const Values& v) {
  double top = -inf, s = 0;
  for (const double a : v) top = std::max(top, a);
  for (const double a : v) s += std::exp(a - top);
  return top + std::log(s);
}

// Short rows are columns of blocks if there are enough of them.
const Shape row_shapes[] = {{1, 1},     {3, 1},   {4, 7},   {5, 16},  {3, 17},  {2, 1000},
                            {1, 20000}, {0, 5},   {16, 1},  {7, 10},  {8, 10},  {600, 10},
                            {131, 2},   {70, 8},  {70, 16}, {70, 24}, {70, 32}, {70, 33},
                            {70, 47},   {70, 95}, {70, 97}};

// Rows [a, b, n] that are the columns of matrices [a, n, b].
const Shape column_shapes[] = {{1, 16, 3},   {2, 37, 2}, {3, 20, 7}, {2, 70, 33},
                               {1, 5, 1000}, {2, 40, 1}, {2, 0, 5},  {0, 20, 3}};
Tensor as_columns(const Tensor& x) {
  const Tensor matrices({x.size(0), x.size(2), x.size(1)}, x.dtype()),
      y = matrices.with_layout(transpose(matrices.layout(), 1, 2));
  for (int64_t i = 0; i < x.numel(); ++i) y.set(i, x.at(i));
  return y;
}
Tensor placed(const Tensor& x) { return x.rank() == 3 ? as_columns(x) : x; }

std::vector<Shape> all_shapes() {
  std::vector<Shape> all(std::begin(row_shapes), std::end(row_shapes));
  all.insert(all.end(), std::begin(column_shapes), std::end(column_shapes));
  return all;
}

// --- softmax ---

TEST(Softmax, ForwardAndGradient) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : all_shapes())
      for (const bool log : {false, true}) {
        const Tensor x = placed(random(shape, in, 1, -8, 8)), y = placed(output(shape, out));
        const Tensor v = placed(output(shape, in)), dy = placed(random(shape, in, 3)),
                     dx = placed(output(shape, out));
        launch([&](Launch& l) {
          softmax(l, log, x, y);
          softmax(l, log, x, v);
          softmax_grad(l, log, v, dy, dx);
        });
        Values y_want, dx_want;
        for (int64_t r = 0; r < shape.size() / shape[-1]; ++r) {
          const Values a = row(x, r), b = row(v, r), g = row(dy, r);
          const double lse = log_sum_exp(a), total = sum(g);
          double dot = 0;
          for (size_t i = 0; i < a.size(); ++i) {
            y_want.push_back(log ? a[i] - lse : std::exp(a[i] - lse));
            dot += g[i] * b[i] / sum(b);
          }
          for (size_t i = 0; i < a.size(); ++i)
            dx_want.push_back(log ? g[i] - std::exp(b[i]) * total : b[i] * (g[i] - dot));
        }
        const std::string what = std::string(name(in)) + shape.to_string() + (log ? " log" : "");
        expect_close(y, y_want, tolerance(out), "y " + what);
        expect_close(dx, dx_want, 8 * tolerance(out), "dx " + what);
      }
}

TEST(Softmax, ReadsAWiderGradient) {
  for (const Shape& shape : {Shape{3, 20}, Shape{1, 3, 20}}) {
    const Tensor y = placed(random(shape, bf16, 1, 0, 0.1)), dy = placed(random(shape, f32, 2)),
                 dx = placed(output(shape, bf16)), full = placed(output(shape, f32));
    launch([&](Launch& l) {
      softmax_grad(l, false, y, dy, full);
      softmax_grad(l, false, y, dy, dx);
    });
    for (int64_t i = 0; i < dx.numel(); ++i)
      EXPECT_EQ(dx.at(i), float(BFloat16(float(full.at(i))))) << i;
    double dot = 0;
    for (int64_t i = 0; i < 20; ++i) dot += y.at(i) * dy.at(i) / sum(row(y, 0));
    EXPECT_NEAR(full.at(3), y.at(3) * (dy.at(3) - dot), 1e-5);
  }
}

TEST(Softmax, TheGradientFromTheInputIsThatOfResultsInF32) {
  for (const DType t : {f16, bf16})
    for (const Shape& shape : all_shapes())
      for (const bool log : {false, true}) {
        const Tensor x = placed(random(shape, t, 1, -8, 8)), dy = placed(random(shape, t, 2)),
                     y = placed(output(shape, f32)), wide_dy = placed(output(shape, f32)),
                     want = placed(output(shape, t)), dx = placed(output(shape, t));
        launch([&](Launch& l) {
          softmax(l, log, x, y);
          convert(l, dy, wide_dy);
          softmax_grad(l, log, y, wide_dy, want);
          softmax_input_grad(l, log, x, dy, dx);
        });
        expect_close(dx, to_vector(want), tolerance(t), std::string(name(t)) + shape.to_string());
      }
}

TEST(Softmax, RoundedSharesPassNothingOfAConstant) {
  for (const Shape& shape : {Shape{1, 100}, Shape{1, 1, 100}}) {
    const Tensor y = placed(random(shape, bf16, 1, 0.01, 0.01)),
                 dy = placed(random(shape, f32, 2, 3, 3)), dx = placed(output(shape, f32));
    launch([&](Launch& l) { softmax_grad(l, false, y, dy, dx); });
    expect_close(dx, Values(100, 0), 1e-8, "dx");
  }
}

// The same numbers often, as a row of copies.
Values often(const Values& v, int64_t copies) {
  Values all;
  for (int64_t i = 0; i < copies; ++i) all.insert(all.end(), v.begin(), v.end());
  return all;
}

TEST(Softmax, InfinitiesAndNan) {
  const Values of_x = {-inf, -inf, -inf, 0, -inf, 0, 1, nan, 0, inf, 0, 0, 60000, 60000, -60000};
  const Values of_y = {nan, nan, nan, 0.5, 0, 0.5, nan, nan, nan, nan, nan, nan, 0.5, 0.5, 0};
  for (const DType dtype : {f64, f32, f16, bf16})
    for (const Shape& shape : {Shape{5, 3}, Shape{65, 3}, Shape{1, 5, 3}}) {
      const int64_t copies = shape.size() / 15;
      const Tensor x = placed(from(often(of_x, copies), shape, dtype)),
                   y = placed(output(shape, dtype));
      launch([&](Launch& l) { softmax(l, false, x, y); });
      expect_close(y, often(of_y, copies), tolerance(dtype), "y");
      launch([&](Launch& l) { softmax(l, true, x, y); });
      for (const int i : {0, 1, 2, 6, 7, 8}) EXPECT_TRUE(std::isnan(y.at(i))) << i;
      EXPECT_EQ(y.at(4), -inf);
      EXPECT_NEAR(y.at(3), -std::log(2), 2e-3);
    }
}

// Attention's softmax: scaled, biased, masked, causal, each with and without.
TEST(MaskedSoftmax, ShapesAndDtypes) {
  const Shape shape{2, 3, 5, 37};  // batch, heads, queries, keys
  const auto seen_as = [&](const Tensor& t) { return t.with_layout(expand(t.layout(), shape)); };
  for (const auto& [out, in] : float_pairs)
    for (const bool causal : {false, true})
      for (const int masks : {0, 1, 2})
        for (const int biases : {0, 1, 2}) {
          const Tensor x = random(shape, in, 1, -4, 4), y = output(shape, out);
          const Tensor m = random({2, 1, masks == 1 ? 5 : 1, 37}, f32, 2),
                       mask({2, 1, masks == 1 ? 5 : 1, 37}, boolean);
          for (int64_t i = 0; i < m.numel(); ++i) mask.set(i, m.at(i) > 0);
          Tensor bias = random({3, biases == 1 ? 37 : 1, 5}, biases == 1 ? out : wide(out), 3);
          bias = bias.with_layout(transpose(bias.layout(), 1, 2));  // keys are not the dense ones
          const Tensor mask_seen = seen_as(mask), bias_seen = seen_as(bias);
          launch([&](Launch& l) {
            masked_softmax(l, x, masks ? View(mask_seen) : View{},
                           biases ? View(bias_seen) : View{}, causal, 0.7, y);
          });
          Values want;
          for (int64_t r = 0; r < 30; ++r) {
            Values v = row(x, r);
            double total = 0;
            for (int64_t i = 0; i < 37; ++i) {
              const int64_t at = r * 37 + i;
              const bool hidden = (causal && i > r % 5) || (masks && !mask_seen.at(at));
              v[i] = hidden ? 0 : std::exp(0.7 * v[i] + (biases ? bias_seen.at(at) : 0));
              total += v[i];
            }
            for (const double e : v) want.push_back(total > 0 ? e / total : 0);
          }
          expect_close(y, want, tolerance(out),
                       std::string(name(out)) + " from " + std::string(name(in)) + " causal " +
                           std::to_string(causal) + " mask " + std::to_string(masks) + " bias " +
                           std::to_string(biases));
        }
}

TEST(MaskedSoftmax, RowsWithNothingAreZeroAndNanStays) {
  const Tensor x = from({1, 2, 3, 4, 5, nan, 1, inf, 2}, {3, 3}),
               mask = from({0, 0, 0, 1, 1, 1, 1, 0, 1}, {3, 3}, boolean), y = output({3, 3}, f32);
  launch([&](Launch& l) { masked_softmax(l, x, mask, View{}, false, 1, y); });
  const double e = std::exp(1);
  expect_close(y, {0, 0, 0, nan, nan, nan, 1 / (1 + e), 0, e / (1 + e)}, 1e-6, "y");
  const Tensor bias = filled({3, 3}, f32, -inf);
  launch([&](Launch& l) { masked_softmax(l, y, View{}, bias, true, 1, y); });
  EXPECT_EQ(y.at(0), 0);
  EXPECT_TRUE(std::isnan(y.at(3)));
}

// --- cross-entropy ---

// The shape of lse: for each row of x, the numbers that cross_entropy keeps.
Shape sums_of(Shape shape) {
  shape[-1] = 4;
  return shape;
}

// Compares with -sum(q log(softmax(x))), where q is the smoothed and weighted target of each class.
void compare_cross_entropy(DType in, DType out, const Shape& shape, double eps, bool weighted,
                           bool probabilities) {
  const int64_t n = shape[-1], rows = shape.size() / n, ignore = -100;
  const Tensor x = placed(random(shape, in, 1, -5, 5)), dloss = random({rows}, wide(in), 2),
               w = random({n}, wide(in), 3, 0.5, 2);
  const Tensor target = probabilities
                            ? placed(random(shape, wide(in), 4, 0, 2 / static_cast<double>(n)))
                            : Tensor({rows}, i64);
  if (!probabilities)
    for (int64_t r = 0; r < rows; ++r)
      target.set(r, static_cast<double>(r % 3 == 2 ? ignore : r * 7 % n));
  const Tensor loss = output({rows}, out), lse = placed(output(sums_of(shape), wide(in))),
               dx = placed(output(shape, out));
  launch([&](Launch& l) {
    const View weights = weighted ? View(w) : View{};
    cross_entropy(l, x, target, weights, ignore, eps, loss, lse);
    cross_entropy_grad(l, x, target, weights, lse, dloss, ignore, eps, dx);
  });
  Values loss_want, lse_want, dx_want;
  for (int64_t r = 0; r < rows; ++r) {
    const Values a = row(x, r);
    const int64_t t = probabilities ? -1 : static_cast<int64_t>(target.at(r));
    const double total = log_sum_exp(a), size = static_cast<double>(n);
    Values q(a.size()), loss_part;
    for (int64_t i = 0; i < n && t != ignore; ++i) {
      const double p = probabilities ? target.at(r * n + i) : i == t;
      q[i] = ((1 - eps) * p + eps / size) * (weighted ? w.at(i) : 1);
    }
    const double top = *std::ranges::max_element(a), mass = sum(q);
    double others = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (a[i] != top) others += q[i];
      loss_part.push_back(q[i] * (total - a[i]));
      dx_want.push_back(dloss.at(r) * (std::exp(a[i] - total) * mass - q[i]));
    }
    for (const double v : {top, total - top, mass, top - total > -0.6 ? others : 0})
      lse_want.push_back(v);
    loss_want.push_back(sum(loss_part));
  }
  const std::string what = std::string(name(in)) + shape.to_string() + " smoothing " +
                           std::to_string(eps) + (weighted ? " weighted" : "") +
                           (probabilities ? " probabilities" : "");
  expect_close(loss, loss_want, tolerance(out), "loss " + what);
  expect_close(lse, lse_want, tolerance(wide(in)), "lse " + what);
  expect_close(dx, dx_want, tolerance(out), "dx " + what);
}

TEST(CrossEntropy, ForwardAndGradient) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : all_shapes())
      for (const double eps : {0.0, 0.1})
        for (const bool weighted : {false, true})
          for (const bool probabilities : {false, true})
            compare_cross_entropy(in, out, shape, eps, weighted, probabilities);
}

TEST(CrossEntropy, ForbiddenClasses) {
  const View none;
  for (const Shape& shape : {Shape{1, 3}, Shape{1, 1, 3}}) {
    const Tensor x = placed(from({0, -inf, 0}, shape)), loss({1}, f32),
                 lse = placed(output(sums_of(shape), f32)), dx = placed(output(shape, f32));
    launch([&](Launch& l) {
      cross_entropy(l, x, indices({2}), none, -100, 0, loss, lse);
      cross_entropy_grad(l, x, indices({2}), none, lse, filled({1}, f32, 1), -100, 0, dx);
    });
    EXPECT_NEAR(loss.at(0), std::log(2), 1e-6);
    expect_close(dx, {0.5, 0, -0.5}, 1e-6, "dx");
    launch([&](Launch& l) { cross_entropy(l, x, indices({1}), none, -100, 0, loss, lse); });
    EXPECT_EQ(loss.at(0), inf);
    const Tensor p = placed(from({0.5, 0, 0.5}, shape));  // the class of probability 0 has target 0
    launch([&](Launch& l) {
      cross_entropy(l, x, p, none, -100, 0, loss, lse);
      cross_entropy_grad(l, x, p, none, lse, filled({1}, f32, 1), -100, 0, dx);
    });
    EXPECT_NEAR(loss.at(0), std::log(2), 1e-6);
    expect_close(dx, {0, 0, 0}, 1e-6, "dx");
  }
}

TEST(CrossEntropy, NothingComesFromIgnoredRows) {
  for (const Shape& shape : {Shape{2, 3}, Shape{38, 3}, Shape{1, 2, 3}}) {
    const int64_t rows = shape.size() / 3, copies = rows / 2;
    const Tensor x = placed(from(often({nan, inf, 0, 1, nan, 2}, copies), shape)),
                 target({rows}, i64), loss = output({rows}, f32),
                 lse = placed(output(sums_of(shape), f32)), dx = placed(output(shape, f32));
    for (int64_t r = 0; r < rows; ++r) target.set(r, 1 - r % 2);
    launch([&](Launch& l) {
      cross_entropy(l, x, target, View{}, 1, 0.1, loss, lse);
      cross_entropy_grad(l, x, target, View{}, lse, filled({rows}, f32, nan), 1, 0.1, dx);
    });
    expect_close(loss, often({0, nan}, copies), 0, "loss");
    expect_close(dx, often({0, 0, 0, nan, nan, nan}, copies), 0, "dx");
  }
}

// --- logsumexp ---

TEST(Rows, LogSumExp) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape :
         {Shape{7, 1}, Shape{7, 5}, Shape{7, 16}, Shape{7, 67}, Shape{77, 5}, Shape{17, 16},
          Shape{9, 47}, Shape{1, 7, 1}, Shape{2, 37, 3}, Shape{1, 16, 16}, Shape{2, 5, 67}}) {
      const Tensor x = placed(random(shape, in, 1, -30, 30)),
                   y = output({shape.size() / shape[-1]}, out);
      launch([&](Launch& l) { logsumexp(l, x, y); });
      Values want;
      for (int64_t r = 0; r < y.numel(); ++r) want.push_back(log_sum_exp(row(x, r)));
      expect_close(y, want, tolerance(out), std::string(name(in)) + shape.to_string());
    }
  const Values of_x = {-inf, -inf, -inf, inf, 1, inf, nan, 1, 2, 3e38, -inf, 3e38};
  for (const Shape& shape : {Shape{4, 3}, Shape{36, 3}, Shape{1, 4, 3}}) {
    const int64_t rows = shape.size() / 3, copies = rows / 4;
    const Tensor y = output({rows}, f32), none = output({2}, f32);
    Shape empty = shape;
    empty[-1] = 0, empty[-2] = 2;
    launch([&](Launch& l) {
      logsumexp(l, placed(from(often(of_x, copies), shape)), y);
      logsumexp(l, placed(Tensor(empty, f32)), none);
    });
    expect_close(y, often({-inf, inf, nan, 3e38}, copies), 1e-6, "edges");
    expect_close(none, {-inf, -inf}, 0, "of nothing");
  }
}

TEST(Rows, SameForAnyThreads) {
  for (const DType dtype : {f32, bf16})
    for (const Shape& shape : {Shape{500, 130}, Shape{6500, 10}, Shape{2, 250, 130}}) {
      const Tensor x = placed(random(shape, dtype, 1)), dy = placed(random(shape, dtype, 2));
      const int64_t n = shape[-1], rows = shape.size() / n;
      const Tensor w = random({n}, f32, 4), target({rows}, i64);
      for (int64_t i = 0; i < rows; ++i) target.set(i, static_cast<double>(i * 37 % 10));
      expect_same_for_any_threads([&] {
        const Tensor p = placed(output(shape, dtype)), dp = placed(output(shape, dtype)),
                     dx = placed(output(shape, dtype));
        const Tensor loss = output({rows}, f32), lse = placed(output(sums_of(shape), f32)),
                     total = output({rows}, f32);
        launch([&](Launch& l) {
          softmax(l, false, x, p);
          softmax_grad(l, false, x, dy, dp);
          logsumexp(l, x, total);
          cross_entropy(l, x, target, w, -1, 0.1, loss, lse);
          cross_entropy_grad(l, x, target, w, lse, loss, -1, 0.1, dx);
        });
        return std::vector<Tensor>{p, dp, total, loss, lse, dx};
      });
    }
}

TEST(MaskedSoftmax, SameForAnyThreads) {
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = random({500, 130}, dtype, 1), bias = random({500, 130}, f32, 3),
                 mask = filled({500, 130}, boolean, 1);
    expect_same_for_any_threads([&] {
      const Tensor y = output(x.shape(), dtype);
      launch([&](Launch& l) { masked_softmax(l, x, mask, bias, true, 0.3, y); });
      return std::vector<Tensor>{y};
    });
  }
}

TEST(Cell, IsTheFormulaInEveryDtype) {
  const int64_t rows = 3, n = 21;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (const auto& [in, out] : float_pairs) {
    const Tensor x = random({rows, 4 * n}, in, 1, -2, 2),
                 h = random({rows, 4 * n}, wide(in), 2, -2, 2);
    const Tensor c = random({rows, n}, wide(in), 3), y = output({rows, n}, out);
    Values y_want, c_want;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < n; ++j) {
        const auto gate = [&](int64_t k) {
          return x.at((r * 4 + k) * n + j) + h.at((r * 4 + k) * n + j);
        };
        c_want.push_back(sigmoid(gate(1)) * c.at(r * n + j) +
                         sigmoid(gate(0)) * std::tanh(gate(2)));
        y_want.push_back(sigmoid(gate(3)) * std::tanh(c_want.back()));
      }
    launch([&](Launch& l) { cell(l, Cell::Lstm, x, h, c, View{}, y); });
    expect_close(y, y_want, tolerance(out), std::string(name(in)));
    expect_close(c, c_want, tolerance(wide(in)), std::string(name(in)));
  }
}

TEST(Cell, SameForAnyThreads) {
  const int64_t rows = 90, n = 70;
  for (const DType dtype : {f32, f16})
    expect_same_for_any_threads([&] {
      const Tensor x = random({rows, 3 * n}, dtype, 1), h = random({rows, 3 * n}, f32, 2);
      const Tensor state = random({rows, n}, f32, 3), carry = random({rows, n}, f32, 4),
                   dnext = random({rows, n}, f32, 5);
      const Tensor kept = output({rows, 5 * n}, f32), y = output({rows, n}, dtype),
                   dx = output(x.shape(), dtype), dh = output(x.shape(), dtype);
      launch([&](Launch& l) {
        cell(l, Cell::Gru, x, h, state, kept, y);
        cell_grad(l, Cell::Gru, kept, y, y, dnext, carry, dx, dh);
      });
      return std::vector<Tensor>{state, kept, y, carry, dx, dh};
    });
}

}  // namespace kernels_rows_test
}  // namespace mixtape::kernels
