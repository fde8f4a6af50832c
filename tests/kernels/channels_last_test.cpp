// The CPU kernels of images with channels last against themselves on row-major ones: the same bits,
// unless sums are added in another order.

#include <gtest/gtest.h>

#include "tests/support/conv_cases.h"
#include "tests/support/each_isa.h"
#include "tests/support/kernel_compare.h"
#include "tests/support/samplings.h"

namespace mixtape::kernels {
using namespace internal;
namespace [[gnu::visibility("hidden")]] kernels_channels_last_test {

// The same elements, with channels last in memory.
Tensor last(const Tensor& x) {
  const Tensor y = Tensor(x.shape(), x.dtype()).with_layout(channels_last(x.shape()));
  launch([&](Launch& l) { convert(l, x, y); });
  return y;
}

using ConvOfPixels = OnEachIsa;
INSTANTIATE_TEST_SUITE_P(All, ConvOfPixels, every_isa, isa_name);

// Images that are read in place, or would be but for one thing.
const ConvCase point_cases[] = {
    {3, 32, 5, 7, 48, window({1, 1})},
    {2, 32, 5, 7, 24, window({1, 1}, {2, 3})},
    {2, 32, 9, 7, 16, window({3, 3}, {1, 2})},
    {2, 34, 5, 7, 40, window({1, 1}, {1, 1}, {1, 0})},
    {2, 7, 5, 7, 5, window({1, 1})},
    {1, 1024, 3, 2, 16, window({1, 1})},  // pixels whole pages apart
    {2, 64, 6, 7, 32, window({1, 1}, {1, 1}, {0, 0}, {1, 1}, 2)},
    {2, 6, 6, 7, 4, window({1, 1}, {1, 1}, {0, 0}, {1, 1}, 2)},
    {2, 2, 5, 7, 40, window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2)},  // groups of one channel
    {2, 16, 5, 7, 2, window({1, 1}, {1, 1}, {0, 0}, {1, 1}, 2)},
    {2, 64, 6, 7, 64, window({3, 3}, {1, 1}, {0, 0}, {1, 1}, 64)},  // depthwise
    {40, 16, 3, 3, 32, window({1, 1})},                             // images summed together
    {5, 24, 1, 1, 16, window({1, 1})},
};
struct ConvResults {
  Tensor y, before, plain, dx, dw, db;
};
ConvResults results_of(const ConvCase& k, DType in, DType out, bool x_last, bool y_last) {
  const auto ordered = [](const Tensor& t, bool l) { return l ? last(t) : t; };
  const Shape y_shape{k.n, k.o, k.window.count(k.h, 0), k.window.count(k.w, 1)};
  const Tensor x = ordered(random({k.n, k.c, k.h, k.w}, in, 1), x_last),
               dy = ordered(random(y_shape, in, 3), y_last),
               residual = ordered(random(y_shape, in, 6), y_last),
               w = random({k.o, k.c / k.window.groups, k.window.size[0], k.window.size[1]}, in, 2),
               bias = random({k.o}, wide(in), 4), shift = random({k.c}, wide(in), 5);
  const auto result = [&] { return ordered(output(y_shape, out), y_last); };
  const ConvResults r{result(),
                      result(),
                      result(),
                      ordered(output(x.shape(), out), x_last),
                      output(w.shape(), out),
                      output({k.o}, wide(in))};
  launch([&](Launch& l) {
    const Epilogue sum{
        .bias = bias, .residual = residual, .activation = Activation::Gelu, .before = r.before};
    conv2d(l, x, w, sum, k.window, r.y);
    conv2d(l, x, w, Epilogue{}, k.window, r.plain);
    conv2d_input(l, dy, w, shift, k.window, r.dx);
    conv2d_weight(l, x, dy, k.window, r.dw, r.db);
  });
  return r;
}
TEST_P(ConvOfPixels, ForwardAndGradients) {
  const auto expect_same = [](const ConvCase& k, DType in, DType out) {
    const std::string what = std::string(name(in)) + "->" + std::string(name(out)) + " x " +
                             Shape{k.n, k.c, k.h, k.w}.to_string() + " o " + std::to_string(k.o);
    const ConvResults want = results_of(k, in, out, false, false);
    for (const auto& [x_last, y_last] : {std::pair(true, true), {true, false}, {false, true}}) {
      const ConvResults got = results_of(k, in, out, x_last, y_last);
      for (Tensor ConvResults::* t :
           {&ConvResults::y, &ConvResults::before, &ConvResults::plain, &ConvResults::dx})
        ASSERT_EQ(to_vector(got.*t), to_vector(want.*t)) << what;
      // (The sums of depthwise weights over planes have an order of their own, as have those of the
      // bias alone.)
      const bool other = (k.window.groups > 1 && k.window.groups == k.c) || k.c == 0;
      expect_close(got.dw, to_vector(want.dw), other ? tolerance(out) : 0, what);
      expect_close(got.db, to_vector(want.db), other ? tolerance(wide(in)) : 0, what);
    }
  };
  for (const auto& [in, out] : float_pairs) {
    for (const ConvCase& k : conv_cases) expect_same(k, in, out);
    for (const ConvCase& k : point_cases) expect_same(k, in, out);
  }
}

TEST_P(ConvOfPixels, SameForAnyThreads) {
  for (const DType dtype : {f32, bf16})
    for (const ConvCase& k : {ConvCase{2, 32, 17, 18, 48, window({1, 1})},
                              ConvCase{3, 20, 17, 18, 40, window({3, 3}, {1, 1}, {1, 1})}})
      expect_same_for_any_threads([&] {
        const ConvResults r = results_of(k, dtype, dtype, true, true);
        return std::vector<Tensor>{r.y, r.before, r.plain, r.dx, r.dw, r.db};
      });
}

TEST(PoolsOfPixels, AreThoseOfPlanes) {
  const std::pair<Sampling, Sampling> cases[] = {
      {windows(8, 2, 2), windows(9, 2, 2)},
      {windows(7, 3, 2, 1), windows(9, 3, 2, 1)},
      {windows(9, 2, 1, 1), windows(12, 3, 2)},
      {windows(7, 2, 4), windows(9, 1, 3)},  // gaps
      {windows(10, 9, 3, 4), windows(11, 9, 2, 3)},
      {of_kind(Kind::Adaptive, 7, 3), of_kind(Kind::Adaptive, 9, 4)},
      {of_kind(Kind::Adaptive, 5, 1), of_kind(Kind::Adaptive, 4, 1)},
  };
  for (const auto& [in, out] : float_pairs)
    for (const auto& [rows, columns] : cases)
      for (const int64_t c : {2, 3, 19, 64}) {
        const Shape small{2, c, rows.to, columns.to}, large{2, c, rows.from, columns.from};
        const Tensor x = random(large, in, 5, -3, 3), dy = random(small, in, 6);
        for (int64_t i = 0; i < x.numel(); ++i) {
          if (i % 3) x.set(i, std::round(x.at(i)));  // ties
          if (i % 17 == 3) x.set(i, nan);
          if (i % 5 == 0) x.set(i, -inf);
        }
        const auto run = [&, in = in, out = out, &rows = rows,
                          &columns = columns](const auto& order) {
          const Tensor y = order(output(small, in)), index = order(output(small, i32)),
                       dx = order(output(large, out));
          launch([&](Launch& l) {
            max_pool2d(l, order(x), rows, columns, y, index);
            put_at(l, order(dy), index, rows, columns, dx);
          });
          return std::vector<Tensor>{y, index, dx};
        };
        const std::vector<Tensor> want = run([](const Tensor& t) { return t; }), got = run(last);
        for (size_t i = 0; i < want.size(); ++i)
          expect_close(got[i], to_vector(want[i]), 0,
                       std::string(name(in)) + " rows " + text(rows) + " columns " + text(columns));
      }
}

TEST(ResampleOfPixels, IsThatOfPlanes) {
  for (const auto& [in, out] : float_pairs)
    for (const auto& [rows, columns] : resamplings)
      for (const int64_t c : {3, 24}) {
        const Shape small{2, c, rows.to, columns.to}, large{2, c, rows.from, columns.from};
        const Tensor x = random(large, in, 1), dy = random(small, in, 2);
        const auto run = [&, out = out, &rows = rows, &columns = columns](const auto& order) {
          const Tensor y = order(output(small, out)), dx = order(output(large, out));
          launch([&](Launch& l) {
            resample(l, order(x), rows, columns, false, y);
            resample(l, order(dy), rows, columns, true, dx);
          });
          return std::pair(to_vector(y), to_vector(dx));
        };
        const auto [y, dx] = run([](const Tensor& t) { return t; });
        const std::string what = "rows " + text(rows) + " columns " + text(columns);
        const Tensor of_y = output(small, f64), of_dx = output(large, f64);
        const auto got = run(last);
        for (size_t i = 0; i < y.size(); ++i) of_y.set(int64_t(i), got.first[i]);
        for (size_t i = 0; i < dx.size(); ++i) of_dx.set(int64_t(i), got.second[i]);
        expect_close(of_y, y, tolerance(out), "y " + what);
        expect_close(of_dx, dx, tolerance(out), "dx " + what);
      }
}

TEST(PlanesOfPixels, SameForAnyThreads) {
  const Tensor x = last(random({8, 16, 27, 27}, f32, 1)),
               dy = last(random({8, 16, 13, 13}, f32, 2));
  const Sampling line = windows(27, 3, 2);
  expect_same_for_any_threads([&] {
    const Tensor y = last(output(dy.shape(), f32)), index = last(output(dy.shape(), i32)),
                 dx = last(output(x.shape(), f32)), mean = last(output(dy.shape(), f32)),
                 spread = last(output(x.shape(), f32));
    launch([&](Launch& l) {
      max_pool2d(l, x, line, line, y, index);
      put_at(l, dy, index, line, line, dx);
      resample(l, x, line, line, false, mean);
      resample(l, dy, line, line, true, spread);
    });
    return std::vector<Tensor>{y, index, dx, mean, spread};
  });
}

}  // namespace kernels_channels_last_test
}  // namespace mixtape::kernels
