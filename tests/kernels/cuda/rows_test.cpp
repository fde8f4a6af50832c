// CUDA row kernels under the emulator, compared with the CPU: rows for part of a warp, a warp, a
// block, and rows too long for its registers.

#include <fmt/format.h>

#include <set>

#include "core/format.h"
#include "kernels/common/launch.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_rows_test {

const Shape row_shapes[] = {{3, 1},   {70, 7},   {9, 31},   {40, 33},  {9, 64},
                            {3, 257}, {2, 1000}, {2, 1025}, {1, 9001}, {0, 5}};

struct Result {
  Shape shape;
  DType dtype;
  double tol;
};
// Compares the results that both kernels write: run(kernel, launch, results).
template <class Kernel, class Run>
void expect_same(const std::string& what, const std::vector<Result>& results, Kernel on_cuda,
                 Kernel on_cpu, const Run& run) {
  std::vector<Tensor> got, want;
  for (const Result& r : results)
    got.push_back(output(r.shape, r.dtype)), want.push_back(output(r.shape, r.dtype));
  launch([&](Launch& l) { run(on_cuda, l, got); });
  launch([&](Launch& l) { run(on_cpu, l, want); });
  for (size_t i = 0; i < results.size(); ++i)
    expect_close(got[i], to_vector(want[i]), results[i].tol, fmt::format("{}, result {}", what, i));
}

// The same elements at an address where no pack is aligned.
Tensor misplaced(const Tensor& x) {
  const Tensor room({x.numel() + 1}, x.dtype());
  const Tensor view = room.with_layout(Layout(x.shape()).at_offset(1));
  for (int64_t i = 0; i < x.numel(); ++i) view.set(i, x.at(i));
  return view;
}

// The same vector with stride 2.
Tensor spread(const Tensor& x) {
  const Tensor view =
      filled({2 * x.numel()}, x.dtype(), 100).with_layout(Layout(x.shape(), Shape{2}));
  for (int64_t i = 0; i < x.numel(); ++i) view.set(i, x.at(i));
  return view;
}

TEST(CudaSoftmax, RowsOfAnyLength) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (const bool log : {false, true}) {
        const std::string what = fmt::format("{} to {} {} log {}", in, out, shape, log);
        const Tensor x = random(shape, in, 1, -5, 5), dy = random(shape, out, 2);
        const Tensor y = output(shape, out);
        expect_same(what, {{shape, out, tolerance(out)}}, cuda::softmax, on_cpu(softmax),
                    [&](auto kernel, Launch& l, const auto& to) { kernel(l, log, x, to[0]); });
        launch([&](Launch& l) { on_cpu(softmax)(l, log, x, y); });
        for (const DType dx : {in, out})
          expect_same(what + " gradient", {{shape, dx, 2 * tolerance(dx)}}, cuda::softmax_grad,
                      on_cpu(softmax_grad), [&](auto kernel, Launch& l, const auto& to) {
                        kernel(l, log, y, dy, to[0]);
                      });
        if (is_half(in) && out == in)
          expect_same(
              what + " gradient from x", {{shape, in, 2 * tolerance(in)}}, cuda::softmax_input_grad,
              on_cpu(softmax_input_grad),
              [&](auto kernel, Launch& l, const auto& to) { kernel(l, log, x, dy, to[0]); });
        expect_same(what + " logsumexp", {{{shape[0]}, out, tolerance(out)}}, cuda::logsumexp,
                    on_cpu(logsumexp),
                    [&](auto kernel, Launch& l, const auto& to) { kernel(l, x, to[0]); });
      }
}
TEST(CudaSoftmax, LongRowsAndOddPlaces) {
  for (const DType t : {f64, f32, bf16})
    for (const Shape& shape : {Shape{2, 17001}, Shape{3, 40}, Shape{5, 2053}}) {
      const Tensor x = misplaced(random(shape, t, 1, -5, 5)), dy = random(shape, t, 2),
                   p = misplaced(random(shape, t, 3, 0, 0.5));
      const std::string what = fmt::format("{} {}", t, shape);
      expect_same(what, {{shape, t, tolerance(t)}}, cuda::softmax, on_cpu(softmax),
                  [&](auto kernel, Launch& l, const auto& to) { kernel(l, true, x, to[0]); });
      expect_same(what, {{shape, t, 4 * tolerance(t)}}, cuda::softmax_grad, on_cpu(softmax_grad),
                  [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, p, dy, to[0]); });
    }
}
TEST(CudaSoftmax, InfinitiesAndNan) {
  const Tensor x = from({-inf, -inf, -inf, inf, 1, inf, nan, 1, 2, 3e38, -inf, 3e38, -inf, 5, -inf},
                        {5, 3}, f32);
  expect_same("softmax", {{{5, 3}, f32, 1e-6}}, cuda::softmax, on_cpu(softmax),
              [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, x, to[0]); });
  expect_same("logsumexp", {{{5}, f32, 1e-6}, {{2}, f32, 0}}, cuda::logsumexp, on_cpu(logsumexp),
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, to[0]);
                kernel(l, Tensor({2, 0}, f32), to[1]);
              });
  // NaN at each position of a pack, in this lane, another lane and another warp.
  for (const auto& [n, at] : {std::pair{8, 0}, {8, 7}, {40, 3}, {3000, 5}, {3000, 2999}})
    for (const double rest : {-inf, 1., inf}) {
      const Tensor row = filled({1, n}, f32, rest);
      row.set(at, nan);
      expect_same("NaN", {{{1, n}, f32, 0}, {{1}, f32, 0}},
                  std::pair(&cuda::softmax, &cuda::logsumexp),
                  std::pair(on_cpu(softmax), on_cpu(logsumexp)),
                  [&](auto kernels, Launch& l, const auto& to) {
                    kernels.first(l, false, row, to[0]);
                    kernels.second(l, row, to[1]);
                  });
    }
  // A lane with only -inf in a row of a block.
  const Tensor wide = filled({1, 3000}, f32, -inf);
  wide.set(1700, 2);
  wide.set(5, 1);
  expect_same("mostly -inf", {{{1, 3000}, f32, 1e-6}}, cuda::softmax, on_cpu(softmax),
              [&](auto kernel, Launch& l, const auto& to) { kernel(l, false, wide, to[0]); });
}

void compare_masked(DType in, DType out, const Shape& shape, bool masks, bool biases, bool causal) {
  const int64_t q = shape[2], k = shape[3];
  const Tensor x = random(shape, in, 1, -5, 5), mask = random({q, k}, u8, 2, 0, 2),
               bias = random({shape[0], k, q}, out, 3), allowed({q, k}, boolean);
  for (int64_t i = 0; i < q * k; ++i) allowed.set(i, mask.at(i));
  // One mask for all images and heads; a transposed bias for all heads.
  const View seen = allowed.with_layout(Layout(shape, {0, 0, k, 1})),
             added = bias.with_layout(Layout(shape, {q * k, 0, 1, q}));
  expect_same(
      fmt::format("{} to {} {} mask {} bias {} causal {}", in, out, shape, masks, biases, causal),
      {{shape, out, tolerance(out)}}, cuda::masked_softmax, on_cpu(masked_softmax),
      [&](auto kernel, Launch& l, const auto& to) {
        kernel(l, x, masks ? seen : View{}, biases ? added : View{}, causal, 0.7, to[0]);
      });
}
TEST(CudaMaskedSoftmax, MasksAndBiases) {
  for (const auto& [out, in] : float_pairs)
    for (const Shape& shape : {Shape{2, 3, 5, 5}, {2, 1, 9, 40}, {1, 2, 3, 1111}})
      for (int which = 0; which < 8; ++which)
        compare_masked(in, out, shape, which & 1, which & 2, which & 4);
  compare_masked(f32, bf16, {1, 1, 2, 17000}, true, true, false);
}
TEST(CudaMaskedSoftmax, NothingAllowedAndInPlace) {
  const Values x = {1, 2, 3, nan, 1, 2, 0, 1, 2};
  const Tensor got = from(x, {3, 3}, f32), want = from(x, {3, 3}, f32),
               mask = from({0, 0, 0, 1, 1, 1, 1, 0, 1}, {3, 3}, boolean);
  launch([&](Launch& l) { cuda::masked_softmax(l, got, mask, View{}, false, 1, got); });
  launch([&](Launch& l) { on_cpu(masked_softmax)(l, want, mask, View{}, false, 1, want); });
  expect_close(got, to_vector(want), 1e-6, "in place");
}
TEST(CudaMaskedSoftmax, NanStaysBesideWhatIsMasked) {
  const Tensor mask = from({1, 0, 0, 0}, {1, 4}, boolean);
  for (const bool causal : {false, true}) {
    const Tensor x = filled({4, 4}, f32, nan);
    const View seen = mask.with_layout(Layout({4, 4}, {0, 1}));
    expect_same("NaN", {{{4, 4}, f32, 0}}, cuda::masked_softmax, on_cpu(masked_softmax),
                [&](auto kernel, Launch& l, const auto& to) {
                  kernel(l, x, causal ? View{} : seen, View{}, causal, 1, to[0]);
                });
  }
}

// --- losses ---

void compare_cross_entropy(DType in, DType out, DType of_logits, const Shape& shape,
                           double smoothing, bool weighted, bool probabilities) {
  const int64_t rows = shape[0], n = shape[1], ignore = -100;
  const Tensor x = random(shape, in, 1, -5, 5), dloss = random({rows}, out, 2),
               w = random({n}, wide(in), 3, 0.5, 2);
  const Tensor target =
      probabilities ? random(shape, wide(in), 4, 0, 2.0 / double(n)) : Tensor({rows}, i64);
  if (!probabilities)
    for (int64_t r = 0; r < rows; ++r) target.set(r, double(r % 3 == 2 ? ignore : r * 7 % n));
  const View weights = weighted ? View(w) : View{};
  const std::string what =
      fmt::format("{} to {} and {} {} smoothing {} weighted {} probabilities {}", in, out,
                  of_logits, shape, smoothing, weighted, probabilities);
  expect_same(what,
              {{{rows}, out, tolerance(out)},
               {{rows, 4}, wide(in), tolerance(wide(in))},
               {shape, of_logits, tolerance(of_logits)}},
              std::pair(&cuda::cross_entropy, &cuda::cross_entropy_grad),
              std::pair(on_cpu(cross_entropy), on_cpu(cross_entropy_grad)),
              [&](auto kernels, Launch& l, const auto& to) {
                kernels.first(l, x, target, weights, ignore, smoothing, to[0], to[1]);
                kernels.second(l, x, target, weights, to[1], dloss, ignore, smoothing, to[2]);
              });
}
TEST(CudaCrossEntropy, ClassesAndProbabilities) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (int which = 0; which < 8; ++which)
        compare_cross_entropy(in, out, out, shape, which & 1 ? 0.1 : 0, which & 2, which & 4);
  for (const DType narrow : {f16, bf16})
    for (const Shape& shape : row_shapes)
      compare_cross_entropy(f32, f32, narrow, shape, 0.1, true, false);
}
TEST(CudaCrossEntropy, ForbiddenClasses) {
  const Tensor x = from({0, -inf, 0, 0, -inf, 0}, {2, 3}, f32),
               p = from({0.5, 0, 0.5, 0, 1, 0}, {2, 3}, f32);
  for (const Tensor& target : {p, indices({2, 1})})
    expect_same("forbidden", {{{2}, f32, 1e-6}, {{2, 4}, f32, 1e-6}}, cuda::cross_entropy,
                on_cpu(cross_entropy), [&](auto kernel, Launch& l, const auto& to) {
                  kernel(l, x, target, View{}, -100, 0, to[0], to[1]);
                });
}
// The host learns of such a target only after the kernels ran (core/readback.h).
TEST(CudaCrossEntropy, ATargetOutOfRangeReadsNoOtherMemory) {
  const Tensor x = random({4, 3}, f32, 1), w = random({3}, f32, 2), target({4}, i64);
  const double values[] = {1, 0x1p52, -0x1p52, 3};
  for (int64_t i = 0; i < 4; ++i) target.set(i, values[i]);
  const Tensor loss = output({4}, f32), lse = output({4, 4}, f32), dx = output({4, 3}, f32);
  launch([&](Launch& l) {
    cuda::cross_entropy(l, x, target, w, -100, 0, loss, lse);
    cuda::cross_entropy_grad(l, x, target, w, lse, loss, -100, 0, dx);
  });
  EXPECT_NE(loss.at(0), 0);
  const Tensor picked = output({4}, f32);
  launch([&](Launch& l) {
    const Tensor planes = x.with_layout(Layout({4, 3, 1}, {3, 1, 1}));
    cuda::nll_loss(l, planes, target.with_layout(Layout({4, 1}, {1, 1})), w, -100,
                   picked.with_layout(Layout({4, 1}, {1, 1})));
  });
  EXPECT_FLOAT_EQ(float(picked.at(0)), float(-w.at(1) * x.at(1)));
  for (int64_t i = 1; i < 4; ++i) {
    EXPECT_EQ(loss.at(i), 0);
    EXPECT_EQ(dx.at(3 * i), 0);
    EXPECT_EQ(picked.at(i), 0);
  }
}
TEST(CudaNll, PicksClasses) {
  for (const auto& [in, out] : float_pairs)
    for (const bool weighted : {false, true}) {
      const Tensor room = random({3, 7, 5}, in, 1), w = random({5}, wide(in), 2),
                   dy = random({3, 7}, out, 3), target({3, 7}, i64);
      const Tensor x = room.with_layout(Layout({3, 5, 7}, {35, 1, 5}));
      for (int64_t i = 0; i < 21; ++i) target.set(i, double(i % 4 == 3 ? 9 : i * 3 % 5));
      const View weights = weighted ? View(w) : View{};
      expect_same(fmt::format("{} to {}", in, out), {{{3, 7}, out, tolerance(out)}}, cuda::nll_loss,
                  on_cpu(nll_loss), [&](auto kernel, Launch& l, const auto& to) {
                    kernel(l, x, target, weights, 9, to[0]);
                  });
      expect_same(fmt::format("gradient to {}", out), {{{3, 5, 7}, out, tolerance(out)}},
                  cuda::nll_loss_grad, on_cpu(nll_loss_grad),
                  [&](auto kernel, Launch& l, const auto& to) {
                    kernel(l, target, weights, 9, dy, to[0]);
                  });
    }
}
TEST(CudaLosses, WeightsApart) {
  const Tensor x = random({5, 40}, f32, 1), w = spread(random({40}, f32, 2)), target({5}, i64);
  for (int64_t r = 0; r < 5; ++r) target.set(r, double(7 * r));
  expect_same("cross entropy", {{{5}, f32, 1e-6}, {{5, 4}, f32, 1e-6}}, cuda::cross_entropy,
              on_cpu(cross_entropy), [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, target, w, -100, 0.1, to[0], to[1]);
              });
  expect_same("nll", {{{5, 1}, f32, 0}}, cuda::nll_loss, on_cpu(nll_loss),
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x.with_layout(Layout({5, 40, 1}, {40, 1, 1})),
                       target.with_layout(Layout({5, 1}, {1, 1})), w, -100, to[0]);
              });
}
TEST(CudaRowProducts, RowsOfAnyLength) {
  for (const DType t : {f64, f32, f16, bf16})
    for (const Shape& shape : row_shapes) {
      const Tensor x = random(shape, t, 1), y = misplaced(random(shape, t, 2));
      expect_same(fmt::format("{} {}", t, shape), {{{shape[0], 3}, f64, tolerance(wide(t))}},
                  cuda::row_products, on_cpu(row_products),
                  [&](auto kernel, Launch& l, const auto& to) { kernel(l, x, y, to[0]); });
    }
}

// --- norms ---

// Parameters: none, in the dtype of x, wide. `centered`: layer norm, else RMS.
void compare_layer_norm(DType in, DType out, const Shape& shape, int params, bool centered) {
  const int64_t rows = shape[0], n = shape[1];
  const DType p = params == 1 ? in : wide(in), s = wide(in);
  const Tensor x = random(shape, in, 1, 3, 5), w = random({n}, p, 3), b = random({n}, p, 4);
  const Tensor y = output(shape, out), mean = output({rows}, s), rstd = output({rows}, s);
  const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
  const View center = centered ? View(mean) : View{};
  const std::string what =
      fmt::format("{} to {} {} parameters {} centered {}", in, out, shape, params, centered);
  expect_same(what,
              {{shape, out, 2 * tolerance(out)}, {{rows}, s, tolerance(s)}, {{rows}, s, 2e-5}},
              cuda::layer_norm, on_cpu(layer_norm), [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, weight, shift, 1e-3, to[0], centered ? View(to[1]) : View{}, to[2]);
              });
  launch([&](Launch& l) { on_cpu(layer_norm)(l, x, weight, shift, 1e-3, y, center, rstd); });
  if (size_of(in) > size_of(out)) return;
  for (const DType d : std::set{in, out})
    for (const bool more : {false, true}) {
      if (more && (d != out || params != 2)) continue;
      const Tensor dy = random(shape, d, 2), added = random(shape, out, 5);
      expect_same(what + (more ? " gradient and more" : " gradient"),
                  {{shape, out, 4 * tolerance(out)},
                   {{n}, p, 4 * tolerance(p)},
                   {{n}, p, 4 * tolerance(p)}},
                  cuda::layer_norm_grad, on_cpu(layer_norm_grad),
                  [&](auto kernel, Launch& l, const auto& to) {
                    kernel(l, x, weight, center, rstd, dy, more ? View(added) : View{}, to[0],
                           to[1], to[2]);
                  });
    }
}
TEST(CudaLayerNorm, RowsOfAnyLength) {
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (const int params : {0, 1, 2})
        for (const bool centered : {true, false})
          compare_layer_norm(in, out, shape, params, centered);
  for (const Shape& shape : row_shapes) compare_layer_norm(f32, bf16, shape, 2, true);
  compare_layer_norm(f32, f16, {3, 700}, 0, false);
}
// The sum is written where the gradient that it begins with was.
TEST(CudaLayerNorm, AddsInPlace) {
  for (const int64_t n : {7, 768, 20'001}) {
    const Tensor x = random({5, n}, f32, 1), dy = random({5, n}, f32, 2), s = filled({5}, f32, 1),
                 added = random({5, n}, f32, 3), apart = output({5, n}, f32);
    launch([&](Launch& l) {
      cuda::layer_norm_grad(l, x, View{}, s, s, dy, added, apart, View{}, View{});
      cuda::layer_norm_grad(l, x, View{}, s, s, dy, added, added, View{}, View{});
    });
    EXPECT_EQ(to_vector(added), to_vector(apart)) << n;
  }
}
TEST(CudaLayerNorm, SumsOverManyRowsInParts) {
  compare_layer_norm(f32, f32, {700, 12}, 2, true);
  compare_layer_norm(bf16, bf16, {300, 200}, 1, true);
  const Tensor x = random({400, 6}, f32, 1), stats = random({400}, f32, 2, 0.5, 1);
  const Tensor dw = output({6}, f32), db = output({6}, f32);
  expect_same("only sums, where no pack is aligned", {{{6}, f32, 1e-5}, {{6}, f32, 1e-5}},
              cuda::layer_norm_grad, on_cpu(layer_norm_grad),
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, misplaced(x), View{}, stats, stats, x, View{}, View{}, to[0], to[1]);
              });
}
TEST(CudaNorms, LargeMeanKeepsTheVariance) {
  const double mean = 1e4;
  for (const int64_t n : {100, 3000, 20000}) {
    const Tensor x({2, n}, f32);
    double var[2] = {};
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < n; ++i)
        x.set(r * n + i,
              mean + 3.4 * (Philox::uniform(Philox::bits(7, uint64_t(r * n + i))[0]) - 0.5));
      double m = 0;
      for (int64_t i = 0; i < n; ++i) m += x.at(r * n + i) / double(n);
      for (int64_t i = 0; i < n; ++i) var[r] += std::pow(x.at(r * n + i) - m, 2) / double(n);
    }
    const Tensor y = output({2, n}, f32), center = output({2}, f32), rstd = output({2}, f32);
    launch([&](Launch& l) { cuda::layer_norm(l, x, View{}, View{}, 0, y, center, rstd); });
    for (int64_t r = 0; r < 2; ++r) EXPECT_NEAR(rstd.at(r) * std::sqrt(var[r]), 1, 1e-5) << n;
    const Tensor channels = x.with_layout(Layout({1, 2, n}, {2 * n, n, 1})),
                 spread = output({2}, f32);
    launch([&](Launch& l) { cuda::batch_stats(l, channels, 0, center, spread, rstd); });
    for (int64_t r = 0; r < 2; ++r) EXPECT_NEAR(spread.at(r) / var[r], 1, 1e-5) << n;
  }
}

TEST(CudaGroupNorm, ForwardAndGradient) {
  const struct {
    Shape shape;
    int64_t groups;
  } cases[] = {{{1, 1, 3}, 1},  {{3, 4, 1}, 2},  {{2, 6, 16}, 3},   {{2, 3, 33}, 3},
               {{70, 4, 5}, 1}, {{2, 6, 49}, 2}, {{1, 2, 9000}, 1}, {{0, 2, 4}, 1}};
  for (const auto& [in, out] : float_pairs)
    for (const auto& [shape, in_groups] : cases)
      for (const int params : {0, 1, 2}) {
        const int64_t groups = in_groups,  // (clang 14 cannot capture a structured binding)
            c = shape[1], rows = shape[0] * groups;
        const DType p = params == 1 ? in : wide(in), s = wide(in);
        const Tensor x = random(shape, in, 1, 3, 5), w = random({c}, p, 3), b = random({c}, p, 4);
        const Tensor y = output(shape, out), mean = output({rows}, s), rstd = output({rows}, s);
        const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
        const std::string what =
            fmt::format("{} to {} {} in {} parameters {}", in, out, shape, groups, params);
        expect_same(
            what, {{shape, out, 2 * tolerance(out)}, {{rows}, s, tolerance(s)}, {{rows}, s, 2e-5}},
            cuda::group_norm, on_cpu(group_norm), [&](auto kernel, Launch& l, const auto& to) {
              kernel(l, x, groups, weight, shift, 1e-3, to[0], to[1], to[2]);
            });
        launch([&](Launch& l) {
          on_cpu(group_norm)(l, x, groups, weight, shift, 1e-3, y, mean, rstd);
        });
        for (const DType d : {in, out}) {
          const Tensor dy = random(shape, d, 2);
          expect_same(what + " gradient",
                      {{shape, out, 4 * tolerance(out)},
                       {{c}, p, 4 * tolerance(p)},
                       {{c}, p, 4 * tolerance(p)}},
                      cuda::group_norm_grad, on_cpu(group_norm_grad),
                      [&](auto kernel, Launch& l, const auto& to) {
                        kernel(l, x, groups, weight, mean, rstd, dy, to[0], to[1], to[2]);
                      });
        }
      }
}

TEST(CudaBatchNorm, ForwardAndGradient) {
  const Shape shapes[] = {{1, 1, 3},  {4, 3, 1},  {300, 37, 1}, {300, 8, 1}, {3, 5, 6},
                          {2, 4, 16}, {5, 3, 33}, {70, 2, 49},  {2, 2, 9000}};
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : shapes)
      for (const bool params : {false, true}) {
        const int64_t c = shape[1];
        const DType s = wide(in), p = params ? in : s;
        const Tensor x = random(shape, in, 1, 2, 4), w = random({c}, p, 3), b = random({c}, p, 4);
        const Tensor mean = output({c}, s), var = output({c}, s), rstd = output({c}, s);
        const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
        const std::string what = fmt::format("{} to {} {} parameters {}", in, out, shape, params);
        expect_same(
            what + " statistics", {{{c}, s, tolerance(s)}, {{c}, s, tolerance(s)}, {{c}, s, 2e-5}},
            cuda::batch_stats, on_cpu(batch_stats), [&](auto kernel, Launch& l, const auto& to) {
              kernel(l, x, 1e-3, to[0], to[1], to[2]);
            });
        launch([&](Launch& l) { on_cpu(batch_stats)(l, x, 1e-3, mean, var, rstd); });
        for (const Tensor& from : {x, misplaced(x)})
          expect_same(what, {{shape, out, 2 * tolerance(out)}}, cuda::batch_norm,
                      on_cpu(batch_norm), [&](auto kernel, Launch& l, const auto& to) {
                        kernel(l, from, mean, rstd, weight, shift, to[0]);
                      });
        for (const bool fixed : {false, true}) {
          const Tensor dy = random(shape, fixed ? in : out, 2);
          expect_same(what + " gradient",
                      {{shape, out, 4 * tolerance(out)},
                       {{c}, p, 4 * tolerance(p)},
                       {{c}, p, 4 * tolerance(p)}},
                      cuda::batch_norm_grad, on_cpu(batch_norm_grad),
                      [&](auto kernel, Launch& l, const auto& to) {
                        kernel(l, x, mean, rstd, weight, dy, fixed, to[0], to[1], to[2]);
                      });
        }
      }
}
TEST(CudaNorms, ParametersApart) {
  const Tensor x = random({3, 8, 5}, f32, 1), rows = x.with_layout(Layout({15, 8}, {8, 1})),
               w = spread(random({8}, f32, 2)), b = spread(random({8}, f32, 3)),
               stats = filled({8}, f32, 1);
  const Result y{{3, 8, 5}, f32, 1e-5}, of_rows{{15}, f32, 1e-5}, of_groups{{6}, f32, 1e-5};
  expect_same("layer norm", {y, of_rows, of_rows}, cuda::layer_norm, on_cpu(layer_norm),
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, rows, w, b, 1e-3, to[0], to[1], to[2]);
              });
  expect_same("group norm", {y, of_groups, of_groups}, cuda::group_norm, on_cpu(group_norm),
              [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, 2, w, b, 1e-3, to[0], to[1], to[2]);
              });
  expect_same(
      "batch norm", {y}, cuda::batch_norm, on_cpu(batch_norm),
      [&](auto kernel, Launch& l, const auto& to) { kernel(l, x, stats, stats, w, b, to[0]); });
}
TEST(CudaBatchNorm, OnlyWhatIsWanted) {
  const Tensor x = random({3, 2, 4}, f32, 1), stats = filled({2}, f32, 1),
               dx = output({3, 2, 4}, f32);
  expect_same("dx alone", {{{3, 2, 4}, f32, 1e-5}, {{2}, f32, 1e-5}}, cuda::batch_norm_grad,
              on_cpu(batch_norm_grad), [&](auto kernel, Launch& l, const auto& to) {
                kernel(l, x, stats, stats, View{}, x, false, to[0], View{}, View{});
                kernel(l, x, stats, stats, View{}, x, true, View{}, View{}, to[1]);
              });
}

}  // namespace kernels_cuda_rows_test
}  // namespace mixtape::kernels
