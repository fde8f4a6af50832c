// Softmax and the losses made of it where one class is nearly certain: what it leaves to the others
// is small, and as exact as they are. Numbers are in closed form.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "autograd/ops.h"
#include "core/format.h"

namespace mixtape {
namespace certain_test {

// Rows of n logits: that of class `at` is 0, the others' are -margin. f16 and bf16 hold them.
struct Case {
  int64_t n, at;
  double margin;
  DType dtype;

  double rest() const { return double(n - 1) * std::exp(-margin); }  // exponentials of the others
  double loss() const { return std::log1p(rest()); }
  double p() const { return 1 / (1 + rest()); }
  double others() const { return rest() * p(); }  // 1 - p
  double other() const { return std::exp(-margin) * p(); }
  Tensor logits(double top = 0) const {  // [3, n]
    const Tensor x = full({3, n}, top - margin, f32);
    for (int64_t r = 0; r < 3; ++r) x.set(r * n + at, top);
    return x.to(dtype).detach().set_requires_grad();
  }
  Tensor target() const { return full({3}, double(at), i64); }
  std::string name() const { return fmt::format("{} classes, {}, {}", n, margin, dtype); }
};

void expect_relative(double got, double want, DType dtype, const std::string& what,
                     double far = 1) {
  const double ulp = dtype == f16    ? 0x1p-10
                     : dtype == bf16 ? 0x1p-7
                                     : 0x1p-23,
               least = dtype == f16 ? 0x1p-24 : 0;
  EXPECT_NEAR(got, want, far * (dtype == f32 ? 8 : 1) * ulp * std::abs(want) + least) << what;
}

void for_each_case(const std::function<void(const Case&)>& f) {
  for (const DType dtype : {f32, f16, bf16})
    for (const double margin : {3., 12., 17., 30., 60.})
      for (const int64_t n : {2, 10, 300})
        for (const int64_t at : {int64_t{0}, n - 1}) {
          const Case c{n, at, margin, dtype};
          SCOPED_TRACE(c.name());
          f(c);
        }
}
Tensor slope(const Tensor& y, const Tensor& x, bool recorded = false) {
  return grad({y}, {x}, {.create_graph = recorded})[0];
}

TEST(Certain, LogarithmsAndTheirSlopes) {
  for_each_case([](const Case& c) {
    const Tensor x = c.logits(), y = log_softmax(x, 1);
    expect_relative(y.at(c.at), -c.loss(), c.dtype, "log_softmax");
    expect_relative(logsumexp(x, {1}).at(1), c.loss(), c.dtype, "logsumexp");
    for (const bool recorded : {false, true}) {
      const Tensor dx = slope(sum(select(log_softmax(x, 1), 1, c.at)), x, recorded);
      expect_relative(dx.at(c.at), c.others(), c.dtype, "slope");
      expect_relative(dx.at(1 - c.at + (c.at > 1 ? c.at - 1 : 0)), -c.other(), c.dtype, "others");
    }
  });
}

// dy is 1 at the certain class and 3 at the others: dx = p (dy - sum(p dy)).
TEST(Certain, SlopesOfSoftmax) {
  for_each_case([](const Case& c) {
    if (c.p() < 0.5) return;  // dy - sum(p dy) cancels
    const Tensor x = c.logits(5), dy = full({3, c.n}, 3, c.dtype);
    for (int64_t r = 0; r < 3; ++r) dy.set(r * c.n + c.at, 1);
    for (const bool recorded : {false, true}) {
      const Tensor dx =
          grad({softmax(x, 1)}, {x}, {.gradients = {dy}, .create_graph = recorded})[0];
      const double far = c.dtype == f32 ? 8 : 1;  // sums of 300 equal terms err alike
      expect_relative(dx.at(c.at), -2 * c.p() * c.others(), c.dtype, "certain", far);
      expect_relative(dx.at(c.at == 0 ? 1 : 0), 2 * c.p() * c.other(), c.dtype, "other", far);
    }
  });
}

TEST(Certain, CrossEntropyOfClasses) {
  for_each_case([](const Case& c) {
    const Tensor x = c.logits(3), t = c.target(), w = full({c.n}, 0.5, f32);
    const Tensor none = cross_entropy(x, t, {.reduction = Reduction::None});
    expect_relative(none.at(2), c.loss(), c.dtype, "loss");
    t.set(1, -100);
    for (const bool recorded : {false, true}) {
      const Tensor dx = slope(cross_entropy(x, t, Reduction::Sum), x, recorded);
      expect_relative(dx.at(c.at), -c.others(), c.dtype, "slope");
      EXPECT_EQ(dx.at(c.n + c.at), 0) << "ignored";
      const Tensor half = slope(
          cross_entropy(x, t, {.reduction = Reduction::Sum, .class_weights = w}), x, recorded);
      expect_relative(half.at(c.at), -0.5 * c.others(), c.dtype, "weighted");
    }
  });
}

// With smoothing of s, (n - 1) s / n of the target lie elsewhere.
TEST(Certain, CrossEntropyOfDistributions) {
  for_each_case([](const Case& c) {
    const double s = 1e-6, elsewhere = s * double(c.n - 1) / double(c.n);
    const double loss = c.loss() + elsewhere * c.margin, dx = elsewhere - c.others();
    const double noise = 1e-6 * (elsewhere + c.others());
    const auto expect = [&](double got, double want, double more, const char* what) {
      EXPECT_NEAR(got, want, more + (c.dtype == f32 ? 0 : 0x1p-7 * std::abs(want) + 0x1p-24))
          << what;
    };
    const Tensor x = c.logits(), smooth = cross_entropy(x, c.target(), {.label_smoothing = s});
    expect(smooth.item(), loss, 1e-6 * loss, "smoothed");
    expect(slope(smooth, x).at(c.at) * 3, dx, noise + 0x1p-24, "smoothed slope");
    const Tensor p = full({3, c.n}, s / double(c.n), f32);
    for (int64_t r = 0; r < 3; ++r) p.set(r * c.n + c.at, 1 - elsewhere);
    const double rest = to_vector(p)[size_t(c.at == 0 ? 1 : 0)] * double(c.n - 1), q = p.at(c.at);
    const Tensor soft = cross_entropy(x, p, {.reduction = Reduction::Sum});
    expect(slope(soft, x).at(c.at), rest - (q + rest) * c.others(),
           noise + (c.dtype == f32 ? 0 : 0x1p-24), "probabilities");
  });
}

TEST(Certain, CrossEntropyOfPixelsAndOfProducts) {
  for_each_case([](const Case& c) {
    const Tensor x = c.logits(3), pixels = reshape(transpose(x, 0, 1), {1, c.n, 3}),
                 t = reshape(c.target(), {1, 3});
    expect_relative(cross_entropy(pixels, t).item(), c.loss(), c.dtype, "pixels");
    expect_relative(slope(cross_entropy(pixels, t, Reduction::Sum), x).at(c.at), -c.others(),
                    c.dtype, "slope of pixels");
    expect_relative(log_softmax(pixels, 1).at(3 * c.at + 1), -c.loss(), c.dtype, "logarithm");
    expect_relative(logsumexp(c.logits().t(), {0}).at(1), c.loss(), c.dtype, "sum");
    if (c.dtype == bf16) return;  // the product's gradient of the logits is rounded to it
    const Tensor one = ones({3, 1}, c.dtype), weight = x.detach().clone();
    const Tensor logits = reshape(narrow(weight, 0, 0, 1), {c.n, 1}).detach().set_requires_grad();
    const Tensor loss =
        linear_cross_entropy(one, logits, c.target(), {.reduction = Reduction::Sum});
    EXPECT_NEAR(loss.item(), 3 * c.loss(), (c.dtype == f32 ? 1e-6 : 1e-3) * 3 * c.loss() + 0x1p-24);
    if (c.dtype == f32) expect_relative(slope(loss, logits).at(c.at), -3 * c.others(), f32, "dw");
  });
}

// 1 - x^2 and log(1 - p) - log(p) of numbers near 1 and 1/2.
TEST(Certain, DifferencesOfNearlyEqualNumbers) {
  for (const double off : {0x1p-22, 0x1p-13, 0x1p-7})
    for (const bool recorded : {false, true}) {
      const Tensor x = full({1}, 1 - off, f32).set_requires_grad();
      const double steep = 1 / std::sqrt(off * (2 - off));
      expect_relative(slope(asin(x), x, recorded).item(), steep, f32, "asin");
      expect_relative(slope(acos(x), x, recorded).item(), -steep, f32, "acos");
      const Tensor p = full({1}, 0.5 + off, f32), t = full({1}, 0.5, f32).set_requires_grad();
      expect_relative(slope(binary_cross_entropy(p, t), t, recorded).item(),
                      std::log1p(-4 * off / (1 + 2 * off)), f32, "binary cross-entropy");
    }
}

}  // namespace certain_test
}  // namespace mixtape
