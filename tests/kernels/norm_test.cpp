// The CPU kernels for normalisation against plain loops in double over the same rounded inputs, and
// against themselves on other numbers of threads.

#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_norm_test {

const Shape row_shapes[] = {{1, 1},   {3, 1},    {4, 7},     {5, 16}, {3, 17},
                            {70, 33}, {2, 1000}, {1, 20000}, {0, 5}};

struct Moments {
  double mean, var = 0;
};
Moments moments(const Values& a) {
  const double size = static_cast<double>(a.size());
  Moments m{sum(a) / size};
  for (const double v : a) m.var += (v - m.mean) * (v - m.mean) / size;
  return m;
}

// --- layer norm ---

TEST(LayerNorm, ForwardAndGradient) {
  const double eps = 1e-3;
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (const int params : {0, 1, 2}) {  // none, in the dtype of x, wide
        const int64_t rows = shape[0], n = shape[1];
        const DType p = params == 1 ? in : wide(in);
        const Tensor x = random(shape, in, 1, 3, 5), dy = random(shape, in, 2),
                     w = random({n}, p, 3), b = random({n}, p, 4), added = random(shape, out, 5);
        const Tensor y = output(shape, out), mean = output({rows}, wide(in)),
                     rstd = output({rows}, wide(in));
        const Tensor dx = output(shape, out), dw = output({n}, p), db = output({n}, p),
                     total = random(shape, out, 5);
        const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
        launch([&](Launch& l) {
          layer_norm(l, x, weight, shift, eps, y, mean, rstd);
          layer_norm_grad(l, x, weight, mean, rstd, dy, View{}, dx, params ? View(dw) : View{},
                          params ? View(db) : View{});
          layer_norm_grad(l, x, weight, mean, rstd, dy, total, total, View{}, View{});
        });
        Values y_want, dx_want, dw_want(n), db_want(n), mean_want;
        const double size = static_cast<double>(n);
        for (int64_t r = 0; r < rows; ++r) {
          const Values a = row(x, r);
          Values h = a, g = row(dy, r), gh;
          const auto [m, var] = moments(a);
          const double inverse = 1 / std::sqrt(var + eps);
          mean_want.push_back(m);
          for (int64_t i = 0; i < n; ++i) {
            h[i] = (a[i] - m) * inverse;
            y_want.push_back(params ? h[i] * w.at(i) + b.at(i) : h[i]);
            dw_want[i] += g[i] * h[i];
            db_want[i] += g[i];
            if (params) g[i] *= w.at(i);
            gh.push_back(g[i] * h[i]);
          }
          const double level = sum(g) / size, slope = sum(gh) / size;
          for (int64_t i = 0; i < n; ++i)
            dx_want.push_back(inverse * (g[i] - level - h[i] * slope));
        }
        const std::string what =
            std::string(name(in)) + shape.to_string() + " parameters " + std::to_string(params);
        expect_close(y, y_want, 2 * tolerance(out), "y " + what);
        expect_close(mean, mean_want, tolerance(wide(in)), "mean " + what);
        expect_close(dx, dx_want, 4 * tolerance(out), "dx " + what);
        for (int64_t i = 0; i < x.numel(); ++i) dx_want[size_t(i)] += added.at(i);
        expect_close(total, dx_want, 4 * tolerance(out), "dx and more " + what);
        if (!params) continue;
        expect_close(dw, dw_want, 2 * tolerance(p), "dw " + what);
        expect_close(db, db_want, 2 * tolerance(p), "db " + what);
      }
}

TEST(LayerNorm, RoundsF32AsItWrites) {
  for (const DType half : {f16, bf16})
    for (const Shape& shape : row_shapes) {
      const Tensor x = random(shape, f32, 1, 3, 5), y = output(shape, f32),
                   rounded = output(shape, half), mean = output({shape[0]}, f32),
                   rstd = output({shape[0]}, f32);
      launch([&](Launch& l) {
        layer_norm(l, x, View{}, View{}, 1e-3, y, mean, rstd);
        layer_norm(l, x, View{}, View{}, 1e-3, rounded, mean, rstd);
      });
      const Tensor want = output(shape, half);
      for (int64_t i = 0; i < y.numel(); ++i) want.set(i, y.at(i));
      expect_close(rounded, to_vector(want), 0, shape.to_string());
    }
}

TEST(LayerNorm, LargeMeanKeepsTheVariance) {
  const Tensor x = random({2, 500}, f32, 1, 10000, 10001), y({2, 500}, f32), mean({2}, f32),
               rstd({2}, f32);
  launch([&](Launch& l) { layer_norm(l, x, View{}, View{}, 0, y, mean, rstd); });
  for (int64_t r = 0; r < 2; ++r) {
    EXPECT_NEAR(rstd.at(r) * std::sqrt(moments(row(x, r)).var), 1, 1e-5);
  }
}

// The variance is first taken around a row's first element.
TEST(LayerNorm, FirstElementsMayLieFarOff) {
  for (const double first : {3e4, -1e6, 0.0, 40.0, 1e18}) {
    const Tensor x = random({19, 500}, f32, 1, 100, 101), y = output(x.shape(), f32),
                 mean = output({19}, f32), rstd = output({19}, f32);
    for (int64_t r = 0; r < 19; r += 3) x.set(r * 500, first);
    launch([&](Launch& l) { layer_norm(l, x, View{}, View{}, 0, y, mean, rstd); });
    for (int64_t r = 0; r < 19; ++r) {
      const auto [m, var] = moments(row(x, r));
      EXPECT_NEAR(mean.at(r), m, 1e-6 * std::abs(m)) << first;
      EXPECT_NEAR(rstd.at(r) * std::sqrt(var), 1, 1e-6) << first;
    }
  }
}

// Neither squares nor differences need fit in f32.
TEST(LayerNorm, SquaresBeyondF32) {
  for (const double size : {2e19, 3e38, 1e-21, 1e-30})
    for (const bool centered : {true, false}) {
      const Tensor x = random({9, 100}, f32, 1, -size, size), y = output(x.shape(), f32),
                   mean = output({9}, f32), rstd = output({9}, f32);
      launch([&](Launch& l) {
        layer_norm(l, x, View{}, View{}, 0, y, centered ? View(mean) : View{}, rstd);
      });
      for (int64_t r = 0; r < 9; ++r) {
        auto [m, var] = moments(row(x, r));
        if (centered)
          EXPECT_NEAR(mean.at(r), m, 1e-6 * size) << size;
        else
          var += m * m;
        EXPECT_NEAR(rstd.at(r) * std::sqrt(var), 1, 1e-5) << size;
      }
    }
}

TEST(LayerNorm, NoRowDependsOnAnother) {
  const Tensor x = random({16, 64}, f32, 1, -1, 1), y = output(x.shape(), f32),
               mean = output({16}, f32), rstd = output({16}, f32);
  const auto run = [&] {
    launch([&](Launch& l) { layer_norm(l, x, View{}, View{}, 1e-5, y, mean, rstd); });
    return to_vector(y);
  };
  const Values before = run();
  x.set(5 * 64, 1e3);
  x.set(9 * 64 + 1, nan);
  const Values after = run();
  for (size_t i = 0; i < before.size(); ++i) {
    if (i / 64 == 5 || i / 64 == 9) continue;
    EXPECT_EQ(after[i], before[i]) << i;
  }
}

// A sum in f32 over all rows of a part would round away a bit of each.
TEST(LayerNorm, GradientsOfManyRows) {
  constexpr int64_t rows = 1 << 18;
  const Tensor ones = filled({rows, 1}, f32, 1), rstd = filled({rows}, f32, 1),
               dy = filled({rows, 1}, f32, 0.1), dw = output({1}, f32), db = output({1}, f32);
  launch([&](Launch& l) {
    layer_norm_grad(l, ones, View{}, View{}, rstd, dy, View{}, View{}, dw, db);
  });
  for (const Tensor& sum : {dw, db}) EXPECT_NEAR(sum.at(0) / rows, double(0.1f), 4e-7);
}

TEST(RmsNorm, ForwardAndGradient) {
  const double eps = 1e-3;
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : row_shapes)
      for (const bool weighted : {false, true}) {
        const int64_t rows = shape[0], n = shape[1];
        const Tensor x = random(shape, in, 1, -1, 3), dy = random(shape, in, 2),
                     w = random({n}, wide(in), 3);
        const Tensor y = output(shape, out), rstd = output({rows}, wide(in)),
                     dx = output(shape, out), dw = output({n}, wide(in));
        const View weight = weighted ? View(w) : View{};
        launch([&](Launch& l) {
          layer_norm(l, x, weight, View{}, eps, y, View{}, rstd);
          layer_norm_grad(l, x, weight, View{}, rstd, dy, View{}, dx, dw, View{});
        });
        Values y_want, dx_want, dw_want(n);
        const double size = static_cast<double>(n);
        for (int64_t r = 0; r < rows; ++r) {
          const Values a = row(x, r);
          Values g = row(dy, r);
          double squares = 0, slope = 0;
          for (const double v : a) squares += v * v / size;
          const double inverse = 1 / std::sqrt(squares + eps);
          for (int64_t i = 0; i < n; ++i) {
            y_want.push_back(a[i] * inverse * (weighted ? w.at(i) : 1));
            dw_want[i] += g[i] * a[i] * inverse;
            if (weighted) g[i] *= w.at(i);
            slope += g[i] * a[i] * inverse / size;
          }
          for (int64_t i = 0; i < n; ++i)
            dx_want.push_back(inverse * (g[i] - a[i] * inverse * slope));
        }
        const std::string what =
            std::string(name(in)) + shape.to_string() + (weighted ? " weighted" : "");
        expect_close(y, y_want, 2 * tolerance(out), "y " + what);
        expect_close(dx, dx_want, 4 * tolerance(out), "dx " + what);
        expect_close(dw, dw_want, 2 * tolerance(wide(in)), "dw " + what);
      }
}

// --- group norm ---

TEST(GroupNorm, ForwardAndGradient) {
  const double eps = 1e-3;
  const struct {
    Shape shape;
    int64_t groups;
  } cases[] = {{{1, 1, 3}, 1},  {{3, 4, 1}, 2}, {{2, 6, 16}, 3},
               {{2, 3, 33}, 3}, {{4, 4, 5}, 1}, {{2, 2, 9000}, 1}};
  for (const auto& [in, out] : float_pairs)
    for (const auto& example : cases)
      for (const int params : {0, 1, 2}) {  // none, in the dtype of x, wide
        const Shape& shape = example.shape;
        const int64_t groups = example.groups;
        const int64_t n = shape[0], c = shape[1], inner = shape[2], k = c / groups;
        const DType p = params == 1 ? in : wide(in);
        const Tensor x = random(shape, in, 1, 3, 5), dy = random(shape, in, 2),
                     w = random({c}, p, 3), b = random({c}, p, 4);
        const Tensor y = output(shape, out), mean = output({n * groups}, wide(in)),
                     rstd = output({n * groups}, wide(in));
        const Tensor dx = output(shape, out), dw = output({c}, p), db = output({c}, p);
        const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
        launch([&](Launch& l) {
          group_norm(l, x, groups, weight, shift, eps, y, mean, rstd);
          group_norm_grad(l, x, groups, weight, mean, rstd, dy, dx, dw, db);
        });
        Values y_want(x.numel()), dx_want(x.numel()), dw_want(c), db_want(c);
        const int64_t length = k * inner;
        const double size = static_cast<double>(length);
        for (int64_t r = 0; r < n * groups; ++r) {
          double m = 0, var = 0, level = 0, slope = 0;
          const int64_t begin = r * length;
          for (int64_t i = begin; i < begin + length; ++i) m += x.at(i) / size;
          for (int64_t i = begin; i < begin + length; ++i) var += std::pow(x.at(i) - m, 2) / size;
          const double inverse = 1 / std::sqrt(var + eps);
          const auto h = [&](int64_t i) { return (x.at(i) - m) * inverse; };
          const auto channel = [&](int64_t i) { return i / inner % c; };
          const auto g = [&](int64_t i) { return dy.at(i) * (params ? w.at(channel(i)) : 1); };
          for (int64_t i = begin; i < begin + length; ++i) {
            y_want[i] = params ? h(i) * w.at(channel(i)) + b.at(channel(i)) : h(i);
            dw_want[channel(i)] += dy.at(i) * h(i);
            db_want[channel(i)] += dy.at(i);
            level += g(i) / size;
            slope += g(i) * h(i) / size;
          }
          for (int64_t i = begin; i < begin + length; ++i)
            dx_want[i] = inverse * (g(i) - level - h(i) * slope);
        }
        const std::string what = std::string(name(in)) + shape.to_string() + " in " +
                                 std::to_string(groups) + " parameters " + std::to_string(params);
        expect_close(y, y_want, 2 * tolerance(out), "y " + what);
        expect_close(dx, dx_want, 4 * tolerance(out), "dx " + what);
        expect_close(dw, dw_want, 4 * tolerance(p), "dw " + what);
        expect_close(db, db_want, 2 * tolerance(p), "db " + what);
      }
}

TEST(GroupNorm, AbsentOutputsAndEmpties) {
  const Tensor x = random({3, 2, 4}, f32, 1), ones = filled({6}, f32, 1), dw = output({2}, f32);
  launch([&](Launch& l) { group_norm_grad(l, x, 2, View{}, ones, ones, x, View{}, dw, View{}); });
  EXPECT_TRUE(std::isfinite(dw.at(0)));
  const Tensor none({0, 2, 4}, f32), no_rows({0}, f32), db = output({2}, f32);
  launch([&](Launch& l) {
    group_norm(l, none, 1, View{}, View{}, 1e-5, none, no_rows, no_rows);
    group_norm_grad(l, none, 1, View{}, no_rows, no_rows, none, none, dw, db);
  });
  expect_close(dw, {0, 0}, 0, "dw");
  expect_close(db, {0, 0}, 0, "db");
}

// --- batch norm ---

// Rounding errors of the mean must not show as variance.
TEST(Norms, EqualNumbersHaveNoVariance) {
  const struct {
    double value;
    int64_t n;
  } cases[] = {{470451.4375, 160}, {214258.921875, 192}, {2262875.25, 96}, {100001, 4096}};
  for (const auto& [value, n] : cases)
    for (const int64_t rows : {1, 4}) {
      const std::string what = std::to_string(value) + " rows " + std::to_string(rows);
      const Tensor x = filled({rows, n}, f32, value), y = output({rows, n}, f32),
                   mean = output({rows}, f32), var = output({rows}, f32),
                   rstd = output({rows}, f32);
      const auto check = [&, value = value] {  // (clang 14 cannot capture a structured binding)
        expect_close(mean, to_vector(filled({rows}, f32, value)), 0, "mean " + what);
        expect_close(rstd, to_vector(filled({rows}, f32, 1 / std::sqrt(1e-5))), 1e-2,
                     "rstd " + what);
      };
      launch([&](Launch& l) { layer_norm(l, x, View{}, View{}, 1e-5, y, mean, rstd); });
      check();
      expect_close(y, Values(size_t(rows * n)), 1e-6, "layer norm " + what);
      const Tensor channels = x.with_layout(Layout({1, rows, n}, {rows * n, n, 1}));
      launch(
          [&](Launch& l) { group_norm(l, channels, rows, View{}, View{}, 1e-5, y, mean, rstd); });
      check();
      expect_close(y, Values(size_t(rows * n)), 1e-6, "group norm " + what);
      launch([&](Launch& l) { batch_stats(l, channels, 1e-5, mean, var, rstd); });
      check();
      expect_close(var, Values(size_t(rows)), 1e-8, "var " + what);
    }
}

TEST(BatchNorm, ForwardAndGradient) {
  const double eps = 1e-3;
  const Shape shapes[] = {{1, 1, 3}, {4, 3, 1},  {70, 37, 1}, {9001, 17, 1},
                          {3, 5, 6}, {2, 4, 16}, {5, 3, 33},  {2, 2, 9000}};
  for (const auto& [in, out] : float_pairs)
    for (const Shape& shape : shapes)
      for (const bool fixed : {false, true})
        for (const bool params : {false, true}) {
          const int64_t n = shape[0], c = shape[1], inner = shape[2];
          const DType p = fixed ? in : wide(in);
          const Tensor x = random(shape, in, 1, 2, 4), dy = random(shape, in, 2),
                       w = random({c}, p, 3), b = random({c}, p, 4);
          const Tensor mean = output({c}, wide(in)), var = output({c}, wide(in)),
                       rstd = output({c}, wide(in));
          const Tensor y = output(shape, out), dx = output(shape, out), dw = output({c}, p),
                       db = output({c}, p);
          const View weight = params ? View(w) : View{}, shift = params ? View(b) : View{};
          launch([&](Launch& l) {
            batch_stats(l, x, eps, mean, var, rstd);
            batch_norm(l, x, mean, rstd, weight, shift, y);
            batch_norm_grad(l, x, mean, rstd, weight, dy, fixed, dx, dw, db);
          });
          Values y_want(x.numel()), dx_want(x.numel()), dw_want(c), db_want(c), mean_want(c),
              var_want(c);
          const double size = static_cast<double>(n * inner);
          for (int64_t k = 0; k < c; ++k) {
            const auto each = [&](const std::function<void(int64_t)>& f) {
              for (int64_t i = 0; i < n; ++i)
                for (int64_t j = 0; j < inner; ++j) f((i * c + k) * inner + j);
            };
            each([&](int64_t i) { mean_want[k] += x.at(i) / size; });
            each([&](int64_t i) { var_want[k] += std::pow(x.at(i) - mean_want[k], 2) / size; });
            const double inverse = 1 / std::sqrt(var_want[k] + eps), scale = params ? w.at(k) : 1;
            const auto normal = [&](int64_t i) { return (x.at(i) - mean_want[k]) * inverse; };
            each([&](int64_t i) {
              y_want[i] = normal(i) * scale + (params ? b.at(k) : 0);
              dw_want[k] += dy.at(i) * normal(i);
              db_want[k] += dy.at(i);
            });
            each([&](int64_t i) {
              dx_want[i] =
                  scale * inverse *
                  (fixed ? dy.at(i) : dy.at(i) - db_want[k] / size - normal(i) * dw_want[k] / size);
            });
          }
          const std::string what = std::string(name(in)) + shape.to_string() +
                                   (fixed ? " fixed" : "") + (params ? " parameters" : "");
          expect_close(mean, mean_want, tolerance(wide(in)), "mean " + what);
          expect_close(var, var_want, 2 * tolerance(wide(in)), "var " + what);
          expect_close(y, y_want, 2 * tolerance(out), "y " + what);
          expect_close(dx, dx_want, 4 * tolerance(out), "dx " + what);
          expect_close(dw, dw_want, 4 * tolerance(p), "dw " + what);
          expect_close(db, db_want, 4 * tolerance(p), "db " + what);
        }
}

TEST(BatchNorm, RowsThatBeginFarFromTheirMean) {
  const Tensor x = random({5000, 9}, f32, 1), mean = output({9}, f32), var = output({9}, f32),
               rstd = output({9}, f32);
  for (int64_t i = 9 * 20; i < x.numel(); ++i) x.set(i, x.at(i) + (i % 9 == 4 ? 1e5 : 3));
  launch([&](Launch& l) { batch_stats(l, x, 1e-5, mean, var, rstd); });
  for (int64_t c = 0; c < 9; ++c) {
    Values column;
    for (int64_t i = c; i < x.numel(); i += 9) column.push_back(x.at(i));
    const Moments want = moments(column);
    EXPECT_NEAR(mean.at(c), want.mean, 1e-6 * std::abs(want.mean)) << c;
    EXPECT_NEAR(var.at(c), want.var, 1e-5 * want.var) << c;
  }
}

TEST(BatchNorm, AbsentOutputsAndEmpties) {
  const Tensor x = random({3, 2, 4}, f32, 1), ones = filled({2}, f32, 1), dw = output({2}, f32);
  launch(
      [&](Launch& l) { batch_norm_grad(l, x, ones, ones, View{}, x, false, View{}, dw, View{}); });
  EXPECT_TRUE(std::isfinite(dw.at(0)));
  const Tensor none({0, 2, 4}, f32), y({0, 2, 4}, f32), db = output({2}, f32);
  launch([&](Launch& l) {
    batch_norm(l, none, ones, ones, ones, ones, y);
    batch_norm_grad(l, none, ones, ones, ones, none, true, y, dw, db);
  });
  expect_close(dw, {0, 0}, 0, "dw");
  expect_close(db, {0, 0}, 0, "db");
}

TEST(Norms, SameForAnyThreads) {
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = random({500, 130}, dtype, 1), dy = random({500, 130}, dtype, 2),
                 w = random({130}, f32, 3);
    const Tensor image = random({20, 10, 25}, dtype, 4), ten = filled({10}, f32, 1),
                 pixels = random({20000, 10, 1}, dtype, 5);
    expect_same_for_any_threads([&] {
      const auto of_rows = [&] { return output({500}, f32); };
      const auto of_channels = [&] { return output({10}, f32); };
      const Tensor y = output(x.shape(), dtype), mean = of_rows(), rstd = of_rows(),
                   dx = output(x.shape(), dtype);
      const Tensor dw = output({130}, f32), db = output({130}, f32);
      const Tensor m = of_channels(), v = of_channels(), s = of_channels();
      const Tensor dimage = output(image.shape(), dtype), dscale = of_channels(),
                   dshift = of_channels();
      const Tensor pm = of_channels(), pv = of_channels(), ps = of_channels(),
                   dpixels = output(pixels.shape(), dtype), pw = of_channels(), pb = of_channels();
      const Tensor grouped = output(image.shape(), dtype), gm = output({40}, f32),
                   gs = output({40}, f32), dgrouped = output(image.shape(), dtype),
                   gw = of_channels(), gb = of_channels();
      launch([&](Launch& l) {
        layer_norm(l, x, w, w, 1e-5, y, mean, rstd);
        layer_norm_grad(l, x, w, mean, rstd, dy, View{}, dx, dw, db);
        batch_stats(l, image, 1e-5, m, v, s);
        batch_norm_grad(l, image, m, s, ten, image, false, dimage, dscale, dshift);
        batch_stats(l, pixels, 1e-5, pm, pv, ps);
        batch_norm_grad(l, pixels, pm, ps, ten, pixels, false, dpixels, pw, pb);
        group_norm(l, image, 2, ten, ten, 1e-5, grouped, gm, gs);
        group_norm_grad(l, image, 2, ten, gm, gs, image, dgrouped, gw, gb);
      });
      return std::vector<Tensor>{y,  mean,   rstd,    dx,     dw, db,       m,  v,
                                 s,  dimage, dscale,  dshift, pm, pv,       ps, dpixels,
                                 pw, pb,     grouped, gm,     gs, dgrouped, gw, gb};
    });
  }
}

}  // namespace kernels_norm_test
}  // namespace mixtape::kernels
