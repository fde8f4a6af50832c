// The CPU kernels for matrices and convolutions against plain loops in double over the
// same rounded inputs, and against themselves on other numbers of threads. Products with every
// instruction set that this processor has.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/conv_cases.h"
#include "tests/support/each_isa.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace [[gnu::visibility("hidden")]] kernels_matrix_test {

// --- gemm ---

using Gemm = OnEachIsa;
INSTANTIATE_TEST_SUITE_P(All, Gemm, every_isa, isa_name);

TEST(Isa, TheInnermostLimitHolds) {
  const Isa usual = current_isa();
  {
    const IsaLimit outer(Isa::Portable);
    EXPECT_EQ(current_isa(), Isa::Portable);
    {
      const IsaLimit inner(Isa::NeonBf16);
      // (Slow dot products of bf16 are used under a limit alone.)
      if (usual != Isa::Avx512 || current_isa() != Isa::Avx512Bf16) {
        EXPECT_EQ(current_isa(), usual);
      }
    }
    EXPECT_EQ(current_isa(), Isa::Portable);
  }
  EXPECT_EQ(current_isa(), usual);
}

TEST(IsaDeathTest, BadNameInTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto report = [](const char* value) {
    ::setenv("MIXTAPE_ISA", value, 1);
    try {
      std::fprintf(stderr, "number %d", static_cast<int>(current_isa()));
    } catch (const Error& e) {
      std::fprintf(stderr, "%s", e.what());
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(report("mmx"), testing::ExitedWithCode(0),
              "MIXTAPE_ISA must be one of those compiled, portable(, [a-z0-9_]*)*; got 'mmx'");
  EXPECT_EXIT(report("portable"), testing::ExitedWithCode(0), "number 0");
}

void check_gemm(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& c,
                const std::string& what) {
  launch([&](Launch& l) { gemm(l, a, b, Epilogue{.bias = bias}, c); });
  expect_close(c, matmul(a, b, bias), tolerance(c.dtype()), what);
}

TEST_P(Gemm, ShapesAndDtypes) {
  const int64_t sizes[][3] = {{1, 1, 1},    {3, 4, 2},      {1, 7, 5},      {7, 1, 5},
                              {5, 6, 1},    {17, 33, 65},   {64, 64, 64},   {1, 300, 70},
                              {129, 1, 33}, {40, 100, 300}, {300, 130, 90}, {150, 77, 500}};
  for (const auto& [in, out] : float_pairs)
    for (const auto& [m, n, k] : sizes)
      for (const int with_bias : {0, 1, 2, 3}) {
        const Tensor a = random({m, k}, in, 1), b = random({k, n}, in, 2);
        const Tensor bias = with_bias == 0   ? Tensor()
                            : with_bias == 3 ? random({m, n}, in, 3)
                                             : random({n}, with_bias == 1 ? in : wide(in), 3);
        check_gemm(a, b, bias, output({m, n}, out),
                   std::string(name(in)) + " " + Shape{m, n, k}.to_string() + " bias " +
                       std::to_string(with_bias));
      }
}

TEST_P(Gemm, AnyStrides) {
  const int64_t m = 9, n = 21, k = 13;
  const auto variants = [](int64_t rows, int64_t columns, DType dtype, uint64_t seed) {
    const Tensor wider = random({rows, columns + 5}, dtype, seed),
                 steps = random({2 * rows, 3 * columns}, dtype, seed);
    const Tensor flipped = random({columns, rows}, dtype, seed),
                 row = random({1, columns}, dtype, seed);
    const Tensor column = random({rows, 1}, dtype, seed), one = random({1, 1}, dtype, seed);
    const Shape full{rows, columns};
    return std::vector<Tensor>{
        random(full, dtype, seed),
        flipped.with_layout(transpose(flipped.layout(), 0, 1)),
        wider.with_layout(slice(wider.layout(), 1, 2, 2 + columns)),
        steps.with_layout(slice(slice(steps.layout(), 0, 0, 2 * rows, 2), 1, 1, 3 * columns, 3)),
        row.with_layout(expand(row.layout(), full)),
        column.with_layout(expand(column.layout(), full)),
        one.with_layout(expand(one.layout(), full)),
    };
  };
  for (const auto& [in, out] : float_pairs)
    for (const Tensor& a : variants(m, k, in, 1))
      for (const Tensor& b : variants(k, n, in, 2))
        for (const Tensor& c : variants(m, n, out, 3)) {
          if (c.strides()[0] == 0 || c.strides()[1] == 0) continue;
          check_gemm(a, b, random({n}, wide(in), 4), c,
                     a.strides().to_string() + b.strides().to_string() + c.strides().to_string());
        }
}

TEST_P(Gemm, ABiasMayHaveAnyStrides) {
  const Tensor a = random({5, 3}, f32, 1), b = random({3, 20}, f32, 2), t = random({20, 5}, f32, 3),
               column = random({5, 1}, f32, 4);
  check_gemm(a, b, t.with_layout(transpose(t.layout(), 0, 1)), output({5, 20}, f32), "transposed");
  check_gemm(a, b, column.with_layout(expand(column.layout(), {5, 20})), output({5, 20}, f32),
             "a column for all");
}

TEST_P(Gemm, SizesOfOneMayHaveAnyStride) {
  const Tensor column = random({7, 4}, f32, 1), row = random({5, 9}, f32, 2);
  const Tensor a = column.with_layout(slice(column.layout(), 1, 2, 3)),
               b = row.with_layout(slice(row.layout(), 0, 3, 4));
  check_gemm(a, b, {}, output({7, 9}, f32), "outer product of slices");
  check_gemm(row.with_layout(transpose(b.layout(), 0, 1)), row.with_layout(b.layout()), {},
             output({9, 9}, f32), "same");
}

TEST_P(Gemm, Batches) {
  for (const auto& [in, out] : float_pairs) {
    const Tensor a = random({2, 3, 5, 7}, in, 1), b = random({2, 3, 7, 4}, in, 2),
                 w = random({7, 4}, in, 3);
    check_gemm(a, b, random({4}, in, 5), output({2, 3, 5, 4}, out), "plain");
    check_gemm(a, w.with_layout(expand(w.layout(), {2, 3, 7, 4})), {}, output({2, 3, 5, 4}, out),
               "shared b");
    const Tensor swapped = random({3, 2, 5, 7}, in, 1), one = random({2, 1, 7, 4}, in, 2);
    check_gemm(swapped.with_layout(transpose(swapped.layout(), 0, 1)),
               w.with_layout(expand(w.layout(), {2, 3, 7, 4})), {}, output({2, 3, 5, 4}, out),
               "permuted a, shared b");
    check_gemm(a, one.with_layout(expand(one.layout(), {2, 3, 7, 4})), {},
               output({2, 3, 5, 4}, out), "partly shared b");
    const Tensor rows = random({6, 1, 7}, in, 6);
    check_gemm(rows, w.with_layout(expand(w.layout(), {6, 7, 4})), {}, output({6, 1, 4}, out),
               "one row each");
    check_gemm(w.with_layout(expand(transpose(w.layout(), 0, 1), {2, 3, 4, 7})), b, {},
               output({2, 3, 4, 4}, out), "shared a");
  }
}

// Small products of a batch share vectors: each has the bits that it has alone.
TEST_P(Gemm, SmallProductsOfABatch) {
  const auto variants = [](int64_t batch, int64_t rows, int64_t columns, DType dtype,
                           uint64_t seed) {
    const Shape full{batch, rows, columns};
    const Tensor flipped = random({batch, columns, rows}, dtype, seed),
                 wider = random({batch, rows, columns + 3}, dtype, seed),
                 inner = random({rows, columns, batch}, dtype, seed),
                 one = random({1, rows, columns}, dtype, seed);
    return std::vector<Tensor>{
        random(full, dtype, seed),
        flipped.with_layout(transpose(flipped.layout(), 1, 2)),
        wider.with_layout(slice(wider.layout(), 2, 1, 1 + columns)),
        inner.with_layout(transpose(transpose(inner.layout(), 0, 2), 1, 2)),
        one.with_layout(expand(one.layout(), full)),
    };
  };
  const auto check = [&](const Tensor& a, const Tensor& b, DType out, double alpha) {
    const Shape shape{a.size(0), a.size(1), b.size(2)};
    const std::string what = std::string(name(a.dtype())) + " " + shape.to_string() +
                             a.strides().to_string() + b.strides().to_string();
    const Tensor c = output(shape, out);
    launch([&](Launch& l) { gemm(l, a, b, Epilogue{.alpha = alpha}, c); });
    for (int64_t i = 0; i < c.size(0); ++i) {
      const auto alone = [i](const Tensor& x) { return x.with_layout(select(x.layout(), 0, i)); };
      const Tensor d = output({shape[1], shape[2]}, out);
      launch([&](Launch& l) { gemm(l, alone(a), alone(b), Epilogue{.alpha = alpha}, d); });
      const double tol = GetParam() == Isa::Portable ? tolerance(out) : 0;  // Eigen's depend on it
      expect_close(alone(c), to_vector(d), tol, what + " product " + std::to_string(i));
    }
  };
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {3, 1, 4},
                              {1, 9, 5}, {5, 7, 3}, {4, 4, 0}, {8, 17, 1}};
  for (const auto& [in, out] : float_pairs)
    for (const auto& [m, n, k] : sizes)
      for (const int64_t batch : {2, 8, 19, 33})
        for (const Tensor& a : variants(batch, m, k, in, 1))
          for (const Tensor& b : variants(batch, k, n, in, 2))
            check(a, b, out, batch == 19 ? 0.7 : 1);
}

// The same for dimensions of a batch that do not follow each other.
TEST_P(Gemm, SmallProductsOfAnotherOrder) {
  for (const auto& [in, out] : float_pairs) {
    const Tensor a = random({3, 20, 2, 5}, in, 1), b = random({20, 3, 5, 3}, in, 2),
                 c = output({20, 3, 2, 3}, out), want = output({20, 3, 2, 3}, out);
    const Tensor swapped = a.with_layout(transpose(a.layout(), 0, 1)), dense({20, 3, 2, 5}, in);
    launch([&](Launch& l) {
      convert(l, swapped, dense);
      gemm(l, dense, b, Epilogue{}, want);
      gemm(l, swapped, b, Epilogue{}, c);
    });
    const double tol = GetParam() == Isa::Portable ? tolerance(out) : 0;
    expect_close(c, to_vector(want), tol, "swapped a");
    const Layout swap = transpose(b.layout(), 0, 1);
    const Tensor d = output({3, 20, 2, 3}, out);
    launch([&](Launch& l) { gemm(l, a, b.with_layout(swap), Epilogue{}, d); });
    expect_close(d.with_layout(transpose(d.layout(), 0, 1)), to_vector(want), tol, "swapped b");
  }
}

TEST_P(Gemm, Empty) {
  const Tensor bias = from({1, 2, 3}, {3});
  check_gemm(Tensor({2, 0}, f32), Tensor({0, 3}, f32), {}, output({2, 3}, f32), "k = 0");
  check_gemm(Tensor({2, 0}, bf16), Tensor({0, 3}, bf16), bias, output({2, 3}, bf16),
             "k = 0 with bias");
  check_gemm(Tensor({0, 4}, f32), random({4, 3}, f32, 1), {}, output({0, 3}, f32), "m = 0");
  check_gemm(random({3, 4}, f16, 1), Tensor({4, 0}, f16), {}, output({3, 0}, f16), "n = 0");
}

TEST_P(Gemm, AccumulatesWideAndRoundsOnce) {
  // 1 + 4096 terms of 2^-12 is 2 exactly; an f16 accumulator would stay at 1.
  const Tensor a = filled({2, 4097}, f16, 0x1p-6), b = filled({4097, 3}, f16, 0x1p-6),
               c({2, 3}, f16);
  for (int64_t i = 0; i < 3; ++i) b.set(i, 0x1p6);
  launch([&](Launch& l) { gemm(l, a, b, Epilogue{}, c); });
  EXPECT_EQ(c.at(0), 2);
  EXPECT_EQ(c.at(5), 2);
}

TEST_P(Gemm, PassesNanAndInfinity) {
  const Tensor a = filled({40, 40}, f32, 1), b = filled({40, 40}, f32, 1),
               c = output({40, 40}, f32);
  a.set(0, nan);
  a.set(40, inf);
  launch([&](Launch& l) { gemm(l, a, b, Epilogue{}, c); });
  EXPECT_TRUE(std::isnan(c.at(3)));
  EXPECT_EQ(c.at(43), inf);
  EXPECT_EQ(c.at(83), 40);
}

// Small whole numbers have exact sums in f32, in any order: the result is rounded once.
TEST_P(Gemm, SmallWholeNumbersAreExact) {
  const int64_t sizes[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257};
  const auto converted = [](const Tensor& x, DType dtype, bool transpose_it) {
    const Layout other = transpose(x.layout(), 0, 1);
    const Tensor y(transpose_it ? other.shape : x.shape(), dtype);
    launch([&](Launch& l) { convert(l, transpose_it ? x.with_layout(other) : x, y); });
    return transpose_it ? y.with_layout(transpose(y.layout(), 0, 1)) : y;
  };
  for (size_t i = 0; i < std::size(sizes); ++i)
    for (size_t j = 0; j < std::size(sizes); ++j) {
      const int64_t m = sizes[i], n = sizes[j], k = sizes[(5 * i + 3 * j + 7) % std::size(sizes)];
      Tensor a({m, k}, f32), b({k, n}, f32);
      for (const auto& [t, seed] : {std::pair(a, 1), std::pair(b, 2)})
        for (int64_t at = 0; at < t.numel(); ++at)
          static_cast<float*>(t.raw())[at] =
              float(int(Philox::bits(uint64_t(seed), uint64_t(at))[0] % 5) - 2);
      Values want(size_t(m * n));
      for (int64_t r = 0; r < m; ++r)
        for (int64_t d = 0; d < k; ++d)
          for (int64_t q = 0; q < n; ++q)
            want[size_t(r * n + q)] += static_cast<const float*>(a.raw())[r * k + d] *
                                       static_cast<const float*>(b.raw())[d * n + q];
      for (const auto& [in, out] : float_pairs) {
        const Tensor rounded = from(want, {m, n}, out);
        for (const bool a_t : {false, true})
          for (const bool b_t : {false, true}) {
            const Tensor c = output({m, n}, out);
            const Tensor at = converted(a, in, a_t), bt = converted(b, in, b_t);
            launch([&](Launch& l) { gemm(l, at, bt, Epilogue{}, c); });
            ASSERT_EQ(to_vector(c), to_vector(rounded)) << name(in) << " to " << name(out) << " "
                                                        << Shape{m, n, k}.to_string() << a_t << b_t;
          }
      }
    }
}

// Each element is one sum in the order of k: a row alone gives the same bits as the whole product,
// and so does the product of the transposes. (Eigen's sums depend on the shape.)
TEST_P(Gemm, AnElementDoesNotDependOnItsPlace) {
  if (GetParam() == Isa::Portable) GTEST_SKIP() << "is Eigen's";
  const auto transposed = [](const Tensor& x) {
    return x.with_layout(transpose(x.layout(), 0, 1));
  };
  const auto rows = [](const Tensor& x, int64_t count) {
    return x.with_layout(slice(x.layout(), 0, 77, 77 + count));
  };
  for (const auto& [in, out] : float_pairs)
    for (const bool k_major : {false, true})  // columns of b are dense along k
      for (const int64_t k : {33, 901, 1028}) {
        const Tensor a = random({150, k}, in, 1),
                     b = k_major ? transposed(random({70, k}, in, 2)) : random({k, 70}, in, 2),
                     c = output({150, 70}, out), c_transposed = output({70, 150}, out);
        launch([&](Launch& l) {
          gemm(l, a, b, Epilogue{}, c);
          gemm(l, transposed(b), transposed(a), Epilogue{}, c_transposed);
        });
        EXPECT_EQ(to_vector(transposed(c_transposed)), to_vector(c)) << name(in) << k_major << k;
        for (const int64_t count : {1, 3, 5, 14, 15}) {
          const Tensor some = output({count, 70}, out);
          launch([&](Launch& l) { gemm(l, rows(a, count), b, Epilogue{}, some); });
          EXPECT_EQ(to_vector(some), to_vector(rows(c, count)))
              << name(in) << k_major << k << count;
        }
      }
}

// The same with a bias, which is added last, however k is blocked.
TEST_P(Gemm, NorWithABias) {
  if (GetParam() == Isa::Portable) GTEST_SKIP() << "is Eigen's";
  for (const auto& [in, out] : float_pairs)
    for (const int64_t n : {10, 33, 70, 200, 1100}) {
      const Tensor a = random({150, 2101}, in, 1), b = random({2101, n}, in, 2),
                   c = output({150, n}, out), row = output({1, n}, out),
                   bias = random({n}, wide(in), 3);
      const Epilogue epilogue{.bias = bias};
      launch([&](Launch& l) {
        gemm(l, a, b, epilogue, c);
        gemm(l, a.with_layout(slice(a.layout(), 0, 77, 78)), b, epilogue, row);
      });
      EXPECT_EQ(to_vector(row), to_vector(c.with_layout(slice(c.layout(), 0, 77, 78))))
          << name(in) << n;
    }
}

TEST_P(Gemm, WhatIsNotThereIsNotMultiplied) {
  // An odd k leaves half a pair empty, odd rows and columns leave lanes.
  for (const auto& [in, out] : float_pairs) {
    const Tensor a = filled({15, 41}, in, 1), b = filled({41, 33}, in, 1),
                 c = output({15, 33}, out);
    a.set(41 * 14 + 40, inf);
    b.set(40 * 33 + 32, nan);
    launch([&](Launch& l) { gemm(l, a, b, Epilogue{}, c); });
    for (int64_t i = 0; i < c.numel(); ++i) {
      const double want = i % 33 == 32 ? nan : i / 33 == 14 ? inf : 41;
      EXPECT_TRUE(c.at(i) == want || (std::isnan(c.at(i)) && std::isnan(want))) << name(in) << i;
    }
    // Nor what follows a line that is dense along k: the next line.
    const Tensor rows = filled({50, 41}, in, 1), columns = filled({70, 41}, in, 1),
                 product = output({50, 70}, out);
    rows.set(41 * 9, inf);
    columns.set(41 * 20, inf);
    const Tensor across = columns.with_layout(transpose(columns.layout(), 0, 1));
    launch([&](Launch& l) { gemm(l, rows, across, Epilogue{}, product); });
    for (int64_t i = 0; i < product.numel(); ++i)
      EXPECT_EQ(product.at(i), i / 70 == 9 || i % 70 == 20 ? inf : 41) << name(in) << i;
  }
}

TEST_P(Gemm, SubnormalsOfBf16) {  // the dot product reads them as zero
  const Tensor a = filled({4, 6}, bf16, 0x1p-130), b = filled({6, 5}, bf16, 0x1p10),
               c = output({4, 5}, f32);
  launch([&](Launch& l) { gemm(l, a, b, Epilogue{}, c); });
  EXPECT_EQ(c.at(3),
            GetParam() == Isa::Avx512Bf16 || GetParam() == Isa::NeonBf16 ? 0 : 6 * 0x1p-120);
}

TEST_P(Gemm, ASecondProductAsksTheSystemForNothing) {
  for (const DType dtype : {f32, bf16}) {
    const Tensor a = random({300, 500}, dtype, 1), b = random({500, 700}, dtype, 2),
                 c({300, 700}, dtype), p({20, 30, 40}, dtype);
    const auto multiply = [&] {
      launch([&](Launch& l) {
        gemm(l, a, b, Epilogue{}, c);
        gemm(l, p, p.with_layout(transpose(p.layout(), 1, 2)), Epilogue{},
             output({20, 30, 30}, dtype));
      });
    };
    for (int i = 0; i < 8; ++i) multiply();  // until each thread has run some
    const int64_t before = memory_stats(Device::cpu()).system_calls;
    const cpu::ThreadLimit one(1);
    multiply();
    EXPECT_EQ(memory_stats(Device::cpu()).system_calls, before) << name(dtype);
  }
}

TEST(GemmIntegers, WrapsAroundInAnyStrides) {
  for (const DType t : {i64, i32, u8})
    for (const auto& [m, n, k] : {std::array{3, 4, 5}, {1, 7, 300}, {40, 33, 1}, {2, 3, 0}}) {
      const Tensor a = random({2, m, k}, t, 1, 0, 200),
                   b = random({1, n, k}, t, 2, t == u8 ? 0 : -200, 200), c = output({2, m, n}, t);
      const Tensor turned = b.with_layout(transpose(expand(b.layout(), {2, n, k}), 1, 2));
      launch([&](Launch& l) { gemm_integers(l, a, turned, c); });
      for (int64_t i = 0; i < c.numel(); ++i) {
        const int64_t row = i / n, column = i % n;
        int64_t sum = 0;
        for (int64_t d = 0; d < k; ++d)
          sum += int64_t(a.at(row * k + d)) * int64_t(b.at(column * k + d));
        ASSERT_EQ(c.at(i), t == u8 ? double(uint8_t(sum)) : double(sum)) << i;
      }
    }
  const Tensor x({1, 1}, i64), y({1, 1}, i64);
  x.data<int64_t>()[0] = (int64_t{1} << 62) + 1;  // more bits than f64 has
  launch([&](Launch& l) { gemm_integers(l, x, x, y); });
  EXPECT_EQ(y.data<int64_t>()[0], int64_t(uint64_t(x.data<int64_t>()[0]) * x.data<int64_t>()[0]));
}

TEST_P(Gemm, SameForAnyThreads) {
  const int64_t sizes[][4] = {{1, 400, 310, 150}, {1, 257, 100, 1000}, {1, 33, 900, 300},
                              {1, 700, 20, 500},  {7, 20, 20, 30},     {3, 130, 140, 150}};
  for (const auto& [in, out] : float_pairs)
    for (const auto& [batch, m, n, k] : sizes) {
      const Tensor a = random({batch, m, k}, in, 1), b = random({batch, n, k}, in, 2),
                   bias = random({n}, wide(in), 3);
      const Tensor like = output({batch, m, n}, out);
      expect_same_for_any_threads([&] {
        const Tensor c = output(like.shape(), like.dtype());
        launch([&](Launch& l) {
          gemm(l, a, b.with_layout(transpose(b.layout(), 1, 2)), Epilogue{.bias = bias}, c);
        });
        return std::vector<Tensor>{c};
      });
    }
}

// --- convolution ---

using Conv2d = OnEachIsa;
INSTANTIATE_TEST_SUITE_P(All, Conv2d, every_isa, isa_name);

// Calls f(input position, weight position, output position) for every product of the convolution.
void each_product(const ConvCase& k, const std::function<void(size_t, size_t, size_t)>& f) {
  const Window& v = k.window;
  const int64_t oh = v.count(k.h, 0), ow = v.count(k.w, 1), cg = k.c / v.groups,
                og = k.o / v.groups;
  for (int64_t n = 0; n < k.n; ++n)
    for (int64_t o = 0; o < k.o; ++o)
      for (int64_t r = 0; r < oh; ++r)
        for (int64_t q = 0; q < ow; ++q)
          for (int64_t c = 0; c < cg; ++c)
            for (int64_t i = 0; i < v.size[0]; ++i)
              for (int64_t j = 0; j < v.size[1]; ++j) {
                const int64_t y = r * v.stride[0] - v.padding[0] + i * v.dilation[0];
                const int64_t x = q * v.stride[1] - v.padding[1] + j * v.dilation[1];
                if (y < 0 || y >= k.h || x < 0 || x >= k.w) continue;
                f(((n * k.c + o / og * cg + c) * k.h + y) * k.w + x,
                  ((o * cg + c) * v.size[0] + i) * v.size[1] + j,
                  ((n * k.o + o) * oh + r) * ow + q);
              }
}

// More windows than are computed at a time; each element is the number of those that have it.
TEST_P(Conv2d, AddsUpManyWindows) {
  const int64_t n = 300'000, size = 200, stride = 70;
  Window v;
  v.size[1] = size, v.stride[1] = stride;
  const int64_t count = v.count(n, 1);
  for (const DType out : {f32, f16}) {
    const Tensor dy = filled({2, 1, 1, count}, out, 1), w = filled({1, 1, 1, size}, out, 1),
                 dx = output({2, 1, 1, n}, out);
    launch([&](Launch& l) { conv2d_input(l, dy, w, View{}, v, dx); });
    const Values got = to_vector(dx);
    for (int64_t i = 0; i < 2 * n; ++i) {
      const int64_t at = i % n, last = std::min(at / stride, count - 1),
                    first = at < size ? 0 : (at - size) / stride + 1;
      ASSERT_EQ(got[size_t(i)], std::max<int64_t>(last - first + 1, 0)) << i;
    }
  }
}

TEST_P(Conv2d, ForwardAndGradients) {
  for (const auto& [in, out] : float_pairs)
    for (const ConvCase& k : conv_cases) {
      const int64_t oh = k.window.count(k.h, 0), ow = k.window.count(k.w, 1);
      const Shape y_shape{k.n, k.o, oh, ow},
          w_shape{k.o, k.c / k.window.groups, k.window.size[0], k.window.size[1]};
      const Tensor x = random({k.n, k.c, k.h, k.w}, in, 1), w = random(w_shape, in, 2),
                   dy = random(y_shape, in, 3);
      const Tensor bias = random({k.o}, wide(in), 4);
      const Tensor y = output(y_shape, out), plain = output(y_shape, out),
                   before = output(y_shape, out), active = output(y_shape, out),
                   residual = random(y_shape, in, 6), summed = output(y_shape, out),
                   summed_before = output(y_shape, out), dx = output(x.shape(), out),
                   shifted = output(x.shape(), out), dw = output(w_shape, out),
                   db = output({k.o}, wide(in)), shift = random({k.c}, wide(in), 5);
      launch([&](Launch& l) {
        conv2d(l, x, w, Epilogue{.bias = bias}, k.window, y);
        conv2d(l, x, w, Epilogue{}, k.window, plain);
        conv2d(l, x, w, Epilogue{.bias = bias, .activation = Activation::Relu, .before = before},
               k.window, active);
        conv2d(l, x, w,
               Epilogue{.bias = bias,
                        .residual = residual,
                        .activation = Activation::Relu,
                        .before = summed_before},
               k.window, summed);
        conv2d_input(l, dy, w, View{}, k.window, dx);
        conv2d_input(l, dy, w, shift, k.window, shifted);
        conv2d_weight(l, x, dy, k.window, dw, db);
      });
      const Values xv = to_vector(x), wv = to_vector(w), dv = to_vector(dy);
      Values y_want(y.numel()), dx_want(x.numel()), dw_want(w.numel());
      each_product(k, [&](size_t i, size_t j, size_t p) {
        y_want[p] += xv[i] * wv[j];
        dx_want[i] += dv[p] * wv[j];
        dw_want[j] += dv[p] * xv[i];
      });
      const std::string what = std::string(name(in)) + "->" + std::string(name(out)) + " x " +
                               x.shape().to_string() + " w " + w_shape.to_string();
      expect_close(plain, y_want, tolerance(out), "y " + what);
      for (int64_t i = 0; i < y.numel(); ++i) y_want[i] += bias.at(i / (oh * ow) % k.o);
      expect_close(y, y_want, tolerance(out), "y with bias " + what);
      EXPECT_EQ(to_vector(before), to_vector(y)) << what;
      for (int64_t i = 0; i < y.numel(); ++i)
        ASSERT_EQ(active.at(i), std::max(y.at(i), 0.0)) << what << " at " << i;
      for (int64_t i = 0; i < y.numel(); ++i) y_want[i] += residual.at(i);
      expect_close(summed_before, y_want, tolerance(out), "y with residual " + what);
      for (int64_t i = 0; i < y.numel(); ++i)
        ASSERT_EQ(summed.at(i), std::max(summed_before.at(i), 0.0)) << what << " at " << i;
      expect_close(dx, dx_want, tolerance(out), "dx " + what);
      for (int64_t i = 0; i < x.numel(); ++i) dx_want[i] += shift.at(i / (k.h * k.w) % k.c);
      expect_close(shifted, dx_want, tolerance(out), "dx with bias " + what);
      expect_close(dw, dw_want, tolerance(out), "dw " + what);
      Values db_want(db.numel());
      for (int64_t i = 0; i < dy.numel(); ++i) db_want[i / (oh * ow) % k.o] += dv[i];
      expect_close(db, db_want, tolerance(wide(in)), "db " + what);
    }
}

TEST_P(Conv2d, DepthwisePlanesOfManyPixels) {
  const Window v = window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2);
  const Tensor x = random({1, 2, 150, 140}, f32, 1), dy = random({1, 2, 150, 140}, f32, 2);
  const auto gradient = [&](DType dtype) {
    const Tensor dw = output({2, 1, 3, 3}, dtype), db = output({2}, dtype);
    const Tensor a = output(x.shape(), dtype), b = output(dy.shape(), dtype);
    launch([&](Launch& l) {
      convert(l, x, a);
      convert(l, dy, b);
      conv2d_weight(l, a, b, v, dw, db);
    });
    return std::pair(to_vector(dw), to_vector(db));
  };
  const auto [dw, db] = gradient(f32);
  const auto [dw_want, db_want] = gradient(f64);
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(dw[i], dw_want[i], 1e-4) << i;
  for (size_t i = 0; i < db.size(); ++i) EXPECT_NEAR(db[i], db_want[i], 1e-4) << i;
}

// No product uses values beyond a plane, which belong to the next one.
TEST_P(Conv2d, DepthwisePlanesKeepToThemselves) {
  const Window v = window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 3);
  const Tensor x = filled({2, 3, 5, 6}, f32, 1), dy = filled({2, 3, 5, 6}, f32, 1),
               dw = output({3, 1, 3, 3}, f32), db = output({3}, f32);
  for (int64_t i = 0; i < 30; ++i) x.set(30 + i, nan), dy.set(30 + i, inf);
  launch([&](Launch& l) { conv2d_weight(l, x, dy, v, dw, db); });
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(dw.at(i), dw.at(18 + i)) << i;
    EXPECT_TRUE(std::isfinite(dw.at(i))) << i;
  }
  EXPECT_EQ(db.at(0), 60);
}

TEST_P(Conv2d, WeightGradientMayBeWider) {
  const Tensor x = random({2, 3, 6, 6}, bf16, 1), dy = random({2, 4, 4, 4}, bf16, 2),
               narrow({4, 3, 3, 3}, bf16), full({4, 3, 3, 3}, f32);
  launch([&](Launch& l) {
    conv2d_weight(l, x, dy, window({3, 3}), narrow, View{});
    conv2d_weight(l, x, dy, window({3, 3}), full, View{});
  });
  for (int64_t i = 0; i < full.numel(); ++i)
    EXPECT_EQ(narrow.at(i), float(BFloat16(full.at(i)))) << i;
}

TEST_P(Conv2d, SameForAnyThreads) {
  const Window v = window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2);
  for (const auto& [dtype, images] : {std::pair{f32, 9}, {f16, 9}, {f32, 1}, {bf16, 1}}) {
    const Tensor x = random({images, 4, 12, 12}, dtype, 1), w = random({6, 2, 3, 3}, dtype, 2),
                 dy = random({images, 6, 12, 12}, dtype, 3);
    expect_same_for_any_threads([&, dtype = dtype] {
      const Tensor y = output(dy.shape(), dtype), dx = output(x.shape(), dtype),
                   dw = output(w.shape(), f32), db = output({6}, f32);
      launch([&](Launch& l) {
        conv2d(l, x, w, Epilogue{}, v, y);
        conv2d_input(l, dy, w, View{}, v, dx);
        conv2d_weight(l, x, dy, v, dw, db);
      });
      return std::vector<Tensor>{y, dx, dw, db};
    });
  }
}

}  // namespace kernels_matrix_test
}  // namespace mixtape::kernels
