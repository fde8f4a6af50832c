// The tensor-core product under the emulator, against a plain product in f64; and the choice of
// tiles.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/cuda/gemm.cuh"
#include "tests/support/errors.h"

namespace mixtape::kernels::cuda {
namespace {

struct Problem {
  int64_t m, n, k;
  bool a_by_rows = true, b_by_rows = true;
  int split = 1;
  int64_t extra = 0;  // of the leading dimensions
  int64_t batch = 1;
  bool bias = false;
};

// Relative error of the product in the L2 norm.
template <class T, class Out, bool ra, bool rb, int tile>
double error_of(const Problem& p) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto filled = [&](int64_t n) {
    std::vector<T> x(static_cast<size_t>(n));
    for (T& v : x) v = T(uniform(random));
    return x;
  };
  const int64_t lda = (ra ? p.k : p.m) + p.extra, ldb = (rb ? p.n : p.k) + p.extra;
  const int64_t size_a = lda * (ra ? p.m : p.k), size_b = ldb * (rb ? p.k : p.n),
                size_c = p.m * p.n;
  const std::vector<T> a = filled(size_a * p.batch), b = filled(size_b * p.batch);
  std::vector<float> bias(size_t(p.n));
  for (float& v : bias) v = uniform(random);
  std::vector<Out> c(size_t(size_c * p.batch), Out(-77.0f));
  std::vector<float> parts(p.split > 1 ? size_t(size_c * p.split) : 0);

  constexpr int64_t chunk = 16 / int64_t(sizeof(T));
  Gemm<T, Out> g{a.data(),
                 b.data(),
                 p.bias ? bias.data() : nullptr,
                 c.data(),
                 p.m,
                 p.n,
                 p.k,
                 lda,
                 ldb,
                 p.n,
                 p.split,
                 0,
                 lda % chunk == 0,
                 ldb % chunk == 0,
                 {}};
  if (p.batch > 1) g.batch = {1, {p.batch}, {size_a}, {size_b}, {size_c}};
  constexpr Tile t = tiles[tile];
  const gpu::Grid grid{
      "gemm_tensor",
      {unsigned(ceil_div(p.m, t.m) * ceil_div(p.n, t.n)), unsigned(p.split), unsigned(p.batch)},
      {unsigned(t.threads()), 1, 1},
      gemm_shared_bytes<T>(t, ra, rb)};
  if (p.split > 1) {
    Gemm<T, float> to_parts{g.a,   g.b,   nullptr, parts.data(), g.m,      g.n,      g.k, g.lda,
                            g.ldb, g.ldc, p.split, size_c,       g.fast_a, g.fast_b, {}};
    gpu::launch(grid, nullptr, gemm_tensor<T, float, ra, rb, tile>, to_parts);
    gpu::launch({"gemm_add_parts", {unsigned(ceil_div(size_c, 256)), 1, 1}, {256, 1, 1}}, nullptr,
                gemm_add_parts<Out>, static_cast<const float*>(parts.data()), p.split, size_c,
                g.bias, p.n, size_c, c.data());
  } else {
    gpu::launch(grid, nullptr, gemm_tensor<T, Out, ra, rb, tile>, g);
  }

  double off = 0, all = 0;
  for (int64_t i = 0; i < p.batch; ++i)
    for (int64_t r = 0; r < p.m; ++r)
      for (int64_t n = 0; n < p.n; ++n) {
        double want = p.bias ? double(bias[size_t(n)]) : 0;
        for (int64_t k = 0; k < p.k; ++k)
          want += double(float(a[size_t(i * size_a + (ra ? r * lda + k : k * lda + r))])) *
                  double(float(b[size_t(i * size_b + (rb ? k * ldb + n : n * ldb + k))]));
        const double d = double(float(c[size_t(i * size_c + r * p.n + n)])) - want;
        off += d * d;
        all += want * want;
      }
  return std::sqrt(off / all);
}
template <class T, class Out, int tile>
double error_in_layout(const Problem& p) {
  return p.a_by_rows   ? p.b_by_rows ? error_of<T, Out, true, true, tile>(p)
                                     : error_of<T, Out, true, false, tile>(p)
           : p.b_by_rows ? error_of<T, Out, false, true, tile>(p)
                       : error_of<T, Out, false, false, tile>(p);
}

TEST(CudaGemm, MultipliesInAllLayouts) {
  for (const bool ra : {true, false})
    for (const bool rb : {true, false}) {
      const Problem p{.m = 136, .n = 72, .k = 80, .a_by_rows = ra, .b_by_rows = rb};
      EXPECT_LT((error_in_layout<Half, float, 2>(p)), 1e-6) << ra << rb;
      EXPECT_LT((error_in_layout<BFloat16, float, 2>(p)), 1e-6) << ra << rb;
      EXPECT_LT((error_in_layout<Half, Half, 2>(p)), 5e-4) << ra << rb;
      EXPECT_LT((error_in_layout<BFloat16, BFloat16, 2>(p)), 4e-3) << ra << rb;
      EXPECT_LT((error_in_layout<float, float, 2>(p)), 1e-3) << ra << rb << " TF32";
    }
}
TEST(CudaGemm, EveryTileMultiplies) {
  const Problem p{.m = 200, .n = 300, .k = 100, .bias = true};
  EXPECT_LT((error_in_layout<Half, float, 0>(p)), 1e-6);
  EXPECT_LT((error_in_layout<Half, float, 1>(p)), 1e-6);
  EXPECT_LT((error_in_layout<Half, float, 2>(p)), 1e-6);
}
TEST(CudaGemm, TakesAnySize) {
  for (const int64_t m : {1, 7, 65})
    for (const int64_t n : {1, 9, 66})
      for (const int64_t k : {1, 15, 67})
        for (const bool rows : {true, false}) {
          const Problem p{
              .m = m, .n = n, .k = k, .a_by_rows = rows, .b_by_rows = !rows, .extra = k % 2};
          EXPECT_LT((error_in_layout<Half, float, 2>(p)), 1e-6) << m << " " << n << " " << k;
        }
}
TEST(CudaGemm, TakesBatches) {
  EXPECT_LT(
      (error_in_layout<Half, float, 2>({.m = 33, .n = 65, .k = 40, .batch = 5, .bias = true})),
      1e-6);
}
TEST(CudaGemm, SplitsLongSums) {
  for (const int split : {2, 4, 7}) {
    const Problem p{.m = 48, .n = 40, .k = 1000, .a_by_rows = false, .split = split, .bias = true};
    EXPECT_LT((error_in_layout<BFloat16, float, 2>(p)), 1e-6) << split;
  }
}
TEST(CudaGemm, LoadsFragmentsWithoutBankConflicts) {
  // What the epilogue reads may conflict; the loop must not add to it as k grows.
  const auto conflicts = [](int64_t k) {
    const simt::BankConflicts counted;
    error_in_layout<Half, float, 2>({.m = 64, .n = 64, .k = k});
    return counted.count(simt::Access::Read);
  };
  EXPECT_EQ(conflicts(512), conflicts(128));
}

// What an H200 (132 multiprocessors) would run.
TEST(CudaGemm, PlansByShape) {
  const auto planned = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    return plan({m, n, k, batch}, 132);
  };
  EXPECT_EQ(planned(8192, 8192, 8192), (GemmPlan{0, 1})) << "the largest tile";
  EXPECT_EQ(planned(4096, 4096, 4096), (GemmPlan{0, 1}));
  EXPECT_EQ(planned(64, 64, 64), (GemmPlan{2, 1})) << "one small tile";
  EXPECT_GT(planned(768, 768, 65536).split, 1)
      << "a weight gradient fills the machine by parts of k";
  EXPECT_EQ(planned(64, 64, 64, 4096).split, 1);
  EXPECT_EQ(planned(1, 1, 1), (GemmPlan{2, 1}));
}

}  // namespace
}  // namespace mixtape::kernels::cuda
