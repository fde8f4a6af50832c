// CUDA matrix products by groups of warps (compute capability 9.0), compared with the CPU's in f64:
// on the emulator, on nvcc's PTX for that capability, or on such a device.

#include <fmt/format.h>

#include "core/format.h"
#include "core/runtime.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gpu_hopper.cuh"
#include "tests/support/kernel_compare.h"
#ifdef MIXTAPE_EMULATED
#include "emulator/simt/hopper.h"
#include "emulator/simt/runtime.h"
#endif

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_gemm_groups_test {

using cuda::GemmPlan;
using cuda::Tier;

struct Case {
  int64_t m, n, k;
  DType in = bf16, out = bf16;
  bool a_by_rows = true, b_by_rows = true;
  int tile = 0, split = 1;
  Shape batch = {};
  int64_t gap_a = 0, gap_b = 0, gap_c = 0;  // between lines
  DType bias = boolean;                     // none
  Activation activation = Activation::None;
  bool before = false, row_sums = false, residual = false, column_sums = false;
  int cluster = 1;
  double alpha = 1;
  std::string text() const {
    return fmt::format(
        "[{}, {}, {}] x {} of {} to {}, by rows {} {}, tile {}, parts {}, gaps {} {} {}, bias {}, "
        "activation {}, before {}, row sums {}, residual {}, column sums {}, clusters of {}, "
        "alpha {}",
        m, n, k, batch, in, out, a_by_rows, b_by_rows, tile, split, gap_a, gap_b, gap_c, bias,
        int(activation), before, row_sums, residual, column_sums, cluster, alpha);
  }
};

// A batch of matrices; by columns if not by rows.
Tensor matrix(Tensor (*make)(const Shape&, DType), const Shape& batch, int64_t rows,
              int64_t columns, bool by_rows, int64_t gap, DType dtype) {
  Shape all = batch, shape = batch, strides = batch;
  const int64_t lines = by_rows ? rows : columns, length = (by_rows ? columns : rows) + gap;
  all.push_back(lines);
  all.push_back(length);
  for (int64_t d = batch.rank - 1, stride = lines * length; d >= 0; --d) {
    strides[d] = stride;
    stride *= batch[d];
  }
  shape.push_back(rows);
  shape.push_back(columns);
  strides.push_back(by_rows ? length : 1);
  strides.push_back(by_rows ? 1 : length);
  return make(all, dtype).with_layout(Layout(shape, strides));
}
template <uint64_t seed>
Tensor numbers(const Shape& shape, DType dtype) {
  return random(shape, dtype, seed);
}

// (The emulator's second device is of that capability.)
#ifdef MIXTAPE_EMULATED
const Device device = Device::cuda(1);
#else
const Device device = Device::cpu();
#endif
void launch_groups(const std::function<void(Launch&)>& body) {
  {
    Launch l(device);
    body(l);
  }
  runtime::cuda().finish(device.index);
}

// The results of a product and its epilogue.
struct Ended {
  Tensor c, before, row_sums, column_sums;
  Epilogue epilogue(const Case& is, const Tensor& bias, const Tensor& residual) const {
    Epilogue e{.alpha = is.alpha, .bias = bias, .residual = residual, .activation = is.activation};
    if (is.before) e.before = before;
    if (is.row_sums) e.row_sums = row_sums;
    if (is.column_sums) e.column_sums = column_sums;
    return e;
  }
};
class CudaGemmGroups : public testing::Test {
 protected:
  void SetUp() override {
    if (!gpu::has_groups(device.index)) GTEST_SKIP() << "the device has no compute capability 9.0";
  }
  static Ended results(const Case& is, DType out, DType sums) {
    const auto make = [&] { return matrix(output, is.batch, is.m, is.n, true, is.gap_c, out); };
    return {make(), make(), output({is.m}, sums), output({is.n}, sums)};
  }
  static Ended multiply(const Case& is, const Tensor& a, const Tensor& b, const Tensor& bias,
                        const Tensor& residual) {
    const Ended got = results(is, is.out, f32);
    const GemmPlan plan{is.tile, is.split, Tier::Groups, is.cluster};
    const Tf32 mode(is.in == f32);
    launch_groups(
        [&](Launch& l) { cuda::gemm(l, a, b, got.epilogue(is, bias, residual), got.c, plan); });
    return got;
  }
  static void expect_product(const Case& is) {
    const Tensor a = matrix(numbers<1>, is.batch, is.m, is.k, is.a_by_rows, is.gap_a, is.in),
                 b = matrix(numbers<2>, is.batch, is.k, is.n, is.b_by_rows, is.gap_b, is.in);
    const Tensor bias = is.bias == boolean ? Tensor() : random({is.n}, is.bias, 3);
    Tensor residual, exact_residual;
    if (is.residual) {
      residual = matrix(numbers<4>, is.batch, is.m, is.n, true, is.gap_c, is.in);
      exact_residual = matrix(numbers<4>, is.batch, is.m, is.n, true, is.gap_c, f64);
      launch([&](Launch& l) { on_cpu(convert)(l, residual, exact_residual); });
    }
#ifdef MIXTAPE_EMULATED
    const int64_t copies = simt::cp_asyncs();
#endif
    const Ended got = multiply(is, a, b, bias, residual),
                again = multiply(is, a, b, bias, residual);
#ifdef MIXTAPE_EMULATED
    EXPECT_EQ(simt::cp_asyncs(), copies) << "another kernel multiplied " << is.text();
#endif
    const Ended want = results(is, f64, f64);
    launch([&](Launch& l) {
      const Tensor added = bias ? in_f64(bias) : bias;
      on_cpu(gemm)(l, in_f64(a), in_f64(b), want.epilogue(is, added, exact_residual), want.c);
    });
    const double tol = is.out == f16 ? 2e-3 : is.out == bf16 ? 1.6e-2 : is.in == f32 ? 4e-3 : 1e-5;
    expect_close(got.c, to_vector(want.c), tol, is.text());
    expect_equal(again.c, got.c, "again " + is.text());
    if (is.before) expect_close(got.before, to_vector(want.before), tol, "before " + is.text());
    if (is.row_sums)
      expect_close(got.row_sums, to_vector(want.row_sums), 3e-6, "row sums " + is.text());
    if (is.column_sums)
      expect_close(got.column_sums, to_vector(want.column_sums), 3e-6, "column sums " + is.text());
  }
};

const std::pair<DType, DType> dtypes[] = {{f16, f16}, {f16, f32}, {bf16, bf16}, {bf16, f32}};

TEST_F(CudaGemmGroups, MultipliesInAllLayouts) {
  for (int tile = 0; tile < cuda::groups_tiles; ++tile) {
    for (const DType in : {f16, bf16})
      for (const bool ra : {true, false})
        for (const bool rb : {true, false}) expect_product({136, 264, 200, in, in, ra, rb, tile});
    expect_product({136, 264, 100, f32, f32, true, false, tile});
  }
}
// More tiles than blocks, more steps than slots, and fewer.
TEST_F(CudaGemmGroups, GoesFromTileToTile) {
  for (const int64_t k : {8, 72, 456})
    for (const auto& [m, n] : {std::pair{1, 8}, {64, 520}, {1160, 24}})
      for (const bool rows : {true, false})
        expect_product({m, n, k, bf16, bf16, rows || m % 8 != 0, rows, 1});
}
TEST_F(CudaGemmGroups, TakesBatches) {
  for (const Shape& batch : {Shape{3}, Shape{2, 3}})
    for (const bool ra : {true, false})
      for (const auto& [in, out] : dtypes)
        expect_product({40, 72, 88, in, out, ra, !ra, 1, 1, batch, 8, 16, 24});
}
TEST_F(CudaGemmGroups, SplitsLongSums) {
  for (const int split : {2, 3, 7})
    for (const auto& [in, out] : dtypes) {
      expect_product({48, 40, 712, in, out, false, true, 1, split, {2}});
      expect_product({48,
                      43,
                      712,
                      in,
                      out,
                      true,
                      false,
                      0,
                      split,
                      {},
                      0,
                      0,
                      0,
                      f32,
                      Activation::Gelu,
                      true,
                      true,
                      true});
    }
}
TEST_F(CudaGemmGroups, EndsInAnyEpilogue) {
  for (const Activation f :
       {Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh})
    for (const auto& [in, out] : dtypes)
      for (const bool ra : {true, false})
        expect_product({200,
                        144,
                        136,
                        in,
                        out,
                        ra,
                        ra,
                        f == Activation::Relu,
                        1,
                        {},
                        0,
                        0,
                        0,
                        ra ? f32 : in,
                        f,
                        ra,
                        in == out,
                        f != Activation::None,
                        in != out,
                        1,
                        in == out ? 1.0 : -0.75});
  for (const DType bias : {f64, f32, f16, bf16})
    expect_product({70, 90, 64, f16, f16, true, false, 1, 1, {}, 0, 0, 0, bias});
}
// Rows of results that the copy engine cannot write, and ragged ones of those that it can.
TEST_F(CudaGemmGroups, StoresRowsOfAnyLength) {
  for (const DType out : {bf16, f32})
    for (const int64_t n : {3, 66, 129})
      for (const int64_t gap : {0, 1, 7})
        expect_product({67,
                        n,
                        64,
                        bf16,
                        out,
                        true,
                        false,
                        1,
                        1,
                        {},
                        0,
                        0,
                        gap,
                        bf16,
                        Activation::Relu,
                        true,
                        false,
                        gap > 0});
}
TEST_F(CudaGemmGroups, AddsToItsResult) {
  for (const auto& [in, out] : dtypes)
    for (const int split : {1, 2}) {
      const Tensor a = random({72, 520}, in, 1), b = random({520, 80}, in, 2),
                   got = random({72, 80}, out, 3), want = in_f64(got);
      const GemmPlan plan{1, split, Tier::Groups};
      launch_groups([&](Launch& l) { cuda::gemm(l, a, b, {.bias = got}, got, plan); });
      launch([&](Launch& l) { on_cpu(gemm)(l, in_f64(a), in_f64(b), {.bias = want}, want); });
      expect_close(got, to_vector(want), out == f32 ? 1e-5 : 1.6e-2, "c += a b");
    }
}
// Clusters of two blocks, of which one may have no tile, with more tiles than clusters.
TEST_F(CudaGemmGroups, BlocksOfAClusterShareBoxes) {
  for (const DType in : {f16, bf16})
    for (const bool ra : {true, false})
      for (const bool rb : {true, false})
        expect_product({.m = in == f16 ? 136 : 264,
                        .n = ra == rb ? 264 : 136,
                        .k = 136,
                        .in = in,
                        .out = in,
                        .a_by_rows = ra,
                        .b_by_rows = rb,
                        .cluster = 2});
  expect_product(
      {.m = 136, .n = 24, .k = 100, .in = f32, .out = f32, .b_by_rows = false, .cluster = 2});
  for (const int64_t k : {8, 456})
    for (const auto& [m, n] : {std::pair{1, 8}, {600, 72}})
      expect_product({.m = m, .n = n, .k = k, .cluster = 2});
}
TEST_F(CudaGemmGroups, ClustersTakeBatchesPartsAndEpilogues) {
  for (const auto& [in, out] : dtypes)
    expect_product({.m = 40,
                    .n = 72,
                    .k = 88,
                    .in = in,
                    .out = out,
                    .a_by_rows = out == in,
                    .b_by_rows = in == f16,
                    .batch = {2, 2},
                    .gap_a = 8,
                    .gap_b = 16,
                    .gap_c = 24,
                    .cluster = 2});
  for (const auto& [in, out] : dtypes)
    expect_product({.m = 200,
                    .n = 43,
                    .k = 712,
                    .in = in,
                    .out = out,
                    .b_by_rows = false,
                    .split = out == in ? 1 : 3,
                    .bias = f32,
                    .activation = Activation::Gelu,
                    .before = true,
                    .row_sums = true,
                    .cluster = 2});
  expect_product({.m = 280, .n = 72, .k = 72, .row_sums = true, .residual = true, .cluster = 2});
}
#ifdef MIXTAPE_EMULATED
// A step of a tile costs the second-level cache 32 KiB instead of 48.
TEST_F(CudaGemmGroups, BlocksOfAClusterReadLess) {
  const auto read = [](int cluster) {
    const Tensor a = random({512, 256}, bf16, 1), b = random({256, 512}, bf16, 2),
                 c = output({512, 512}, bf16);
    const int64_t before = simt::bytes_of_boxes();
    launch_groups(
        [&](Launch& l) { cuda::gemm(l, a, b, {}, c, GemmPlan{0, 1, Tier::Groups, cluster}); });
    return simt::bytes_of_boxes() - before;
  };
  EXPECT_EQ(read(1), 8 * 4 * 48 * 1024);
  EXPECT_EQ(read(2), 8 * 4 * 32 * 1024);
}
#endif
// A batch of b beside a shared a; operands that another kernel takes.
TEST_F(CudaGemmGroups, TakesAnyStrides) {
  const Tensor x = random({64, 64}, f16, 1), y = random({4, 64, 64}, f16, 2);
  const auto expect = [&](const Tensor& a, const Tensor& b, const char* what) {
    Shape shape = b.shape();
    shape[-2] = a.size(-2);
    const Tensor got = output(shape, f32), want = output(shape, f32);
    launch_groups([&](Launch& l) { cuda::gemm(l, a, b, {}, got, GemmPlan{1, 1, Tier::Groups}); });
    launch([&](Launch& l) { on_cpu(gemm)(l, a, b, {}, want); });
    expect_close(got, to_vector(want), 1e-5, what);
  };
  const auto shared = [&](const Shape& strides) {
    return x.with_layout(Layout({4, 24, 64}, strides));
  };
  expect(shared({0, 64, 1}), y, "shared");
  expect(shared({0, 1, 64}), y, "shared by columns");
  expect(x.with_layout(Layout({24, 64}, {0, 1})), x, "repeated");
  expect(x.with_layout(Layout({24, 64}, {-64, 1}, 23 * 64)), x, "reversed");
  expect(x.with_layout(Layout({24, 64}, {8, 1})), x, "overlapping");
  expect(x.with_layout(Layout({24, 64}, {64, 1}, 1)), x, "not aligned");
  expect(x.with_layout(Layout({24, 63}, {63, 1})), x.with_layout(Layout({63, 64}, {64, 1})),
         "odd lines");
}
TEST_F(CudaGemmGroups, RoundsToTf32) {
  const Tensor a = filled({1, 4}, f32, 1.0 + 1.0 / 4096), one = filled({4, 1}, f32, 1);
  const Tensor b = one.with_layout(Layout({4, 1}, {1, 4}));
  const Tensor c = output({1, 1}, f32);
  const Tf32 mode(true);
  launch_groups([&](Launch& l) { cuda::gemm(l, a, b, {}, c, GemmPlan{1, 1, Tier::Groups}); });
  EXPECT_EQ(c.at(0), 4.0);
}
#ifdef MIXTAPE_EMULATED
TEST_F(CudaGemmGroups, IsChosenForLargeProducts) {
  const Tensor a = random({256, 512}, bf16, 1), b = random({512, 256}, bf16, 2),
               c = output({256, 256}, bf16);
  const auto copies = [&](const auto& launch_on) {
    const int64_t before = simt::cp_asyncs();
    launch_on([&](Launch& l) { cuda::gemm(l, a, b, {}, c); });
    return simt::cp_asyncs() - before;
  };
  const bool is_large = runtime::cuda().properties(device.index).multiprocessors <= 2;
  EXPECT_EQ(copies(launch_groups) == 0, is_large) << "its tiles do not fill a large device";
  EXPECT_GT(copies(launch), 0) << "a device without groups";
}
TEST_F(CudaGemmGroups, DoesNotDependOnTheTimeOfCopies) {
  for (const auto when : {simt::BoxTiming::Random, simt::BoxTiming::Late})
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const simt::BoxTiming timing(when, seed);
      expect_product({.m = 200, .n = 72, .k = 328, .b_by_rows = seed > 1, .cluster = 2});
      expect_product({200,
                      264,
                      584,
                      bf16,
                      bf16,
                      true,
                      false,
                      0,
                      1,
                      {},
                      0,
                      0,
                      0,
                      bf16,
                      Activation::Relu,
                      true,
                      true});
    }
}
#endif

// The plans for an H200 (132 multiprocessors).
TEST(CudaGemm, PlansForGroupsOfWarps) {
  const auto planned = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    return cuda::plan({m, n, k, batch}, true, 132, true);
  };
  const auto groups = [](int tile, int split, int cluster = 1) {
    return GemmPlan{tile, split, Tier::Groups, cluster};
  };
  EXPECT_EQ(planned(8192, 8192, 8192), groups(0, 1, 2));
  EXPECT_EQ(planned(65536, 768, 3072), groups(0, 1, 2));
  EXPECT_EQ(planned(4096, 4096, 4096), groups(0, 1, 2));
  EXPECT_EQ(planned(3 * 128, 44 * 256, 4096), groups(0, 1)) << "a wave; of pairs, two";
  EXPECT_EQ(planned(128, 8192, 4096).cluster, 1) << "no tile below";
  EXPECT_EQ(planned(1408, 1536, 1024), groups(1, 1)) << "a wave of smaller tiles";
  EXPECT_GT(planned(768, 768, 65536).split, 1);
  EXPECT_EQ(planned(768, 768, 65536).tier, Tier::Groups);
  EXPECT_EQ(planned(64, 64, 64), (GemmPlan{2, 1})) << "one small tile";
  EXPECT_EQ(cuda::plan({64, 64, 64, 1}, true, 132, true, Tier::Groups), groups(1, 1)) << "asked";
  EXPECT_EQ(cuda::plan({64, 64, 64, 1}, true, 132, false, Tier::Groups), (GemmPlan{2, 1}));
}

}  // namespace kernels_cuda_gemm_groups_test
}  // namespace mixtape::kernels
