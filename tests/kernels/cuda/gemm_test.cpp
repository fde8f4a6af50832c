// CUDA matrix products under the emulator, compared with the CPU's in f64; and the choice of tiles.

#include "kernels/cuda/gemm/gemm.h"

#include <fmt/format.h>

#include "core/format.h"
#include "kernels/cuda/gpu.cuh"
#include "tests/support/errors.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_gemm_test {

using cuda::GemmPlan;

// The allowed error from f64, relative to the L2 norm of the product.
double allowed(DType out, bool tf32) {
  return out == f64 ? 1e-14 : out == f16 ? 5e-4 : out == bf16 ? 4e-3 : tf32 ? 1e-3 : 3e-6;
}

struct Case {
  int64_t m, n, k;
  DType in = f16, out = f32;
  bool a_by_rows = true, b_by_rows = true;
  int64_t extra = 0;  // the gap between lines
  int64_t batch = 1;
  DType bias = boolean;  // none
  std::string text() const {
    return fmt::format("[{}, {}, {}] x {} of {} to {}, by rows {} {}, extra {}, bias {}", m, n, k,
                       batch, in, out, a_by_rows, b_by_rows, extra, bias);
  }
};

// A batch of matrices in the middle of a larger one; by columns if not by rows.
Tensor matrix(int64_t batch, int64_t rows, int64_t columns, bool by_rows, const Case& c,
              uint64_t seed) {
  const int64_t lines = by_rows ? rows : columns, length = (by_rows ? columns : rows) + c.extra;
  const Tensor x = random({batch, lines, length}, c.in, seed);
  const Shape strides =
      by_rows ? Shape{lines * length, length, 1} : Shape{lines * length, 1, length};
  return x.with_layout(Layout({batch, rows, columns}, strides));
}

void expect_product(const Case& c, const GemmPlan* plan = nullptr, bool tf32 = false) {
  const Tensor a = matrix(c.batch, c.m, c.k, c.a_by_rows, c, 1),
               b = matrix(c.batch, c.k, c.n, c.b_by_rows, c, 2);
  const bool with_bias = c.bias != boolean;
  const Tensor bias = with_bias ? random({c.n}, c.bias, 3) : Tensor();
  const Tensor got = output({c.batch, c.m, c.n}, c.out), want = output(got.shape(), f64);
  const Tf32 mode(tf32);
  launch([&](Launch& l) {
    if (plan)
      cuda::gemm(l, a, b, {.bias = bias}, got, *plan);
    else
      cuda::gemm(l, a, b, {.bias = bias}, got);
  });
  launch([&](Launch& l) {
    const Tensor wide = with_bias ? in_f64(bias) : Tensor();
    on_cpu(gemm)(l, in_f64(a), in_f64(b), {.bias = wide}, want);
  });
  const Values x = to_vector(got), y = to_vector(want);
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - y[i]) * (x[i] - y[i]);
    all += y[i] * y[i];
  }
  EXPECT_LE(std::sqrt(off), allowed(c.out, tf32) * std::sqrt(all)) << c.text();
}

const std::pair<DType, DType> dtypes[] = {{f16, f32},   {f16, f16}, {bf16, f32},
                                          {bf16, bf16}, {f32, f32}, {f64, f64}};

TEST(CudaGemm, MultipliesInAllLayouts) {
  for (const bool ra : {true, false})
    for (const bool rb : {true, false}) {
      for (const auto& [in, out] : dtypes) expect_product({136, 72, 80, in, out, ra, rb});
      expect_product({136, 72, 80, f32, f32, ra, rb}, nullptr, true);
    }
}
TEST(CudaGemm, EveryTileMultiplies) {
  for (int tile = 0; tile < cuda::tile_count; ++tile) {
    const GemmPlan whole{tile, 1}, parts{tile, 3};
    const bool tensor = cuda::tiles[tile].tensor;
    const Case c{200, 300, 100, tensor ? f16 : f32, f32, true, true, 0, 1, f32};
    expect_product(c, &whole);
    expect_product(c, &parts);
  }
}
TEST(CudaGemm, EveryTensorTileTakesAllLayouts) {
  for (int tile = 0; tile < cuda::tile_count; ++tile) {
    if (!cuda::tiles[tile].tensor) continue;
    const GemmPlan plan{tile, 1};
    for (const bool ra : {true, false})
      for (const bool rb : {true, false})
        for (const DType in : {f16, bf16, f32})
          expect_product({136, 264, 72, in, f32, ra, rb}, &plan, in == f32);
  }
}
// mma.sync and wmma sum in the same order, so that each element has the same bits.
TEST(CudaGemm, MultipliesIntegers) {
  for (const DType t : {i64, i32, u8}) {
    const Tensor a = random({2, 3, 20, 70}, t, 1, 0, 200), b = random({3, 33, 70}, t, 2, 0, 200);
    const Tensor turned = b.with_layout(transpose(expand(b.layout(), {2, 3, 33, 70}), 2, 3));
    const Tensor got({2, 3, 20, 33}, t), want({2, 3, 20, 33}, t);
    launch([&](Launch& l) { cuda::gemm_integers(l, a, turned, got); });
    launch([&](Launch& l) { on_cpu(gemm_integers)(l, a, turned, want); });
    EXPECT_EQ(to_vector(got), to_vector(want));
  }
}
TEST(CudaGemm, TiersAgreeBitForBit) {
  const auto product = [](const Case& c, GemmPlan plan, cuda::Tier tier) {
    plan.tier = tier;
    const Tensor a = matrix(c.batch, c.m, c.k, c.a_by_rows, c, 1),
                 b = matrix(c.batch, c.k, c.n, c.b_by_rows, c, 2),
                 got = output({c.batch, c.m, c.n}, c.out), bias = random({c.n}, f32, 3);
    launch([&](Launch& l) {
      cuda::gemm(l, a, b, {.bias = bias, .activation = Activation::Gelu}, got, plan);
    });
    return to_vector(got);
  };
  for (int tile = 0; tile < cuda::tile_count; ++tile) {
    if (!cuda::tiles[tile].tensor) continue;
    for (const bool ra : {true, false})
      for (const bool rb : {true, false})
        for (const DType in : {f16, bf16}) {
          const int split = in == f16 ? 1 : 2;
          const Case c{70, 140, 72, in, split == 1 ? in : f32, ra, rb, split == 1 ? 7 : 0, 1};
          const GemmPlan plan{tile, split};
          EXPECT_EQ(product(c, plan, cuda::Tier::Wmma), product(c, plan, cuda::Tier::Mma))
              << c.text() << ", tile " << tile;
        }
  }
}
TEST(CudaGemm, TakesAnySize) {
  for (const int64_t m : {1, 7, 65})
    for (const int64_t n : {1, 9, 66})
      for (const int64_t k : {0, 1, 15, 67})
        for (const bool rows : {true, false})
          for (const DType in : {f16, f32}) expect_product({m, n, k, in, f32, rows, !rows, k % 2});
}
// Lines begin at multiples of 16 bytes, but no size is one.
TEST(CudaGemm, TakesRaggedEdgesOfAlignedLines) {
  for (int tile = 0; tile < cuda::tile_count; ++tile)
    for (const bool ra : {true, false})
      for (const bool rb : {true, false}) {
        const DType in = cuda::tiles[tile].tensor ? bf16 : f32;
        const GemmPlan whole{tile, 1}, parts{tile, 2};
        expect_product({133, 261, 45, in, f32, ra, rb, 3}, &whole);
        expect_product({61, 53, 69, f32, f32, ra, rb, 3}, &parts, true);
      }
}
TEST(CudaGemm, TakesBatches) {
  for (const auto& [in, out] : dtypes)
    expect_product({33, 65, 40, in, out, true, false, 0, 5, out});
}
TEST(CudaGemm, SplitsLongSums) {
  for (const int split : {2, 4, 7})
    for (const auto& [in, out] : dtypes) {
      const GemmPlan plan{in == f64 || in == f32 ? 4 : 2, split};
      expect_product({48, 40, 700, in, out, false, true, 0, 2, out}, &plan);
    }
}
TEST(CudaGemm, TakesABiasOfAnyFloatAndOfTheResultsShape) {
  for (const DType t : {f32, f16, f64}) expect_product({9, 20, 30, f16, f16, true, true, 0, 1, t});
  const Tensor a = random({9, 5}, f32, 1), b = random({5, 7}, f32, 2),
               bias = random({7, 9}, f32, 3).with_layout(Layout({9, 7}, {1, 9}));
  const Tensor got = output({9, 7}, f32), want = output({9, 7}, f32);
  launch([&](Launch& l) { cuda::gemm(l, a, b, {.bias = bias}, got); });
  launch([&](Launch& l) { on_cpu(gemm)(l, a, b, {.bias = bias}, want); });
  expect_close(got, to_vector(want), 1e-6, "bias of c's shape");
}
// The results of a product and its epilogue.
struct Ended {
  Tensor c, before, row_sums, column_sums;
};
void expect_epilogue(const Case& c, Activation f, const GemmPlan* plan, bool tf32 = false) {
  const Tensor a = matrix(1, c.m, c.k, c.a_by_rows, c, 1),
               b = matrix(1, c.k, c.n, c.b_by_rows, c, 2), bias = random({c.n}, wide(c.in), 3),
               residual = random({c.m, c.n}, c.a_by_rows ? c.in : wide(c.in), 4);
  const auto two = [](const Tensor& x) {
    return x.with_layout(Layout({x.size(1), x.size(2)}, {x.strides()[1], x.strides()[2]}));
  };
  const auto outputs = [&](DType out, DType sums) {
    return Ended{output({c.m, c.n}, out), output({c.m, c.n}, out), output({c.m}, sums),
                 output({c.n}, sums)};
  };
  const bool of_b = f == Activation::Gelu || f == Activation::None;  // the sums over k
  const auto epilogue = [&](const Tensor& added, const Tensor& more, const Ended& e) {
    Epilogue all{.alpha = of_b ? 1 : 0.75,
                 .bias = added,
                 .residual = more,
                 .activation = f,
                 .before = e.before};
    (of_b ? all.column_sums : all.row_sums) = of_b ? e.column_sums : e.row_sums;
    return all;
  };
  const Ended got = outputs(c.out, wide(c.in)), want = outputs(f64, f64);
  const Tf32 mode(tf32);
  launch([&](Launch& l) {
    if (plan)
      cuda::gemm(l, two(a), two(b), epilogue(bias, residual, got), got.c, *plan);
    else
      cuda::gemm(l, two(a), two(b), epilogue(bias, residual, got), got.c);
  });
  launch([&](Launch& l) {
    const Tensor added = in_f64(bias), more = in_f64(residual);
    on_cpu(gemm)(l, in_f64(two(a)), in_f64(two(b)), epilogue(added, more, want), want.c);
  });
  const double tol = 4 * allowed(c.out, tf32);
  expect_close(got.c, to_vector(want.c), tol, c.text());
  expect_close(got.before, to_vector(want.before), tol, "before " + c.text());
  if (of_b)
    expect_close(got.column_sums, to_vector(want.column_sums), allowed(wide(c.in), false),
                 "column sums " + c.text());
  else
    expect_close(got.row_sums, to_vector(want.row_sums), allowed(wide(c.in), false),
                 "row sums " + c.text());
}

TEST(CudaGemm, WmmaMultipliesBatchesAndEndsThem) {
  for (const DType in : {f16, bf16, f32}) {  // (f32 by mma.sync)
    const GemmPlan plan{2, 1, cuda::Tier::Wmma}, parts{1, 3, cuda::Tier::Wmma};
    expect_product({33, 65, 40, in, f32, true, false, 0, 5, f32}, &plan, in == f32);
    expect_epilogue({67, 30, 300, in, in, false, true, 3}, Activation::Relu, &parts, in == f32);
  }
}
TEST(CudaGemm, EndsInAnyEpilogue) {
  for (const Activation f :
       {Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh})
    for (const auto& [in, out] : dtypes)
      for (const bool ra : {true, false}) {
        expect_epilogue({40, 34, 70, in, out, ra, !ra}, f, nullptr);
        const GemmPlan parts{in == f64 || in == f32 ? 4 : 2, 3};
        expect_epilogue({67, 30, 300, in, out, ra, ra, 3}, f, &parts);
      }
}
TEST(CudaGemm, EveryTileEndsInAnEpilogue) {
  for (int tile = 0; tile < cuda::tile_count; ++tile)
    for (const bool ra : {true, false})
      for (const bool tf32 : {true, false}) {
        const bool tensor = cuda::tiles[tile].tensor;
        if (tf32 && !tensor) continue;
        const GemmPlan whole{tile, 1}, parts{tile, 2};
        const Case c{140, 270, 100, tensor && !tf32 ? bf16 : f32, f32, ra, true};
        for (const Activation f : {Activation::Gelu, Activation::Relu}) {
          expect_epilogue(c, f, &whole, tf32);
          expect_epilogue(c, f, &parts, tf32);
        }
      }
}
TEST(CudaGemm, AddsToItsResult) {
  for (const auto& [in, out] : dtypes)
    for (const int split : {1, 3})
      for (const bool by_rows : {true, false})
        for (const int64_t n : {20, 37}) {
          const GemmPlan plan{in == f64 || in == f32 ? 4 : 2, split};
          const Tensor a = random({70, 90}, in, 1), b = random({90, n}, in, 2);
          Tensor got = random(by_rows ? Shape{70, n} : Shape{n, 70}, out, 3);
          if (!by_rows) got = got.with_layout(transpose(got.layout(), 0, 1));
          const Tensor want = in_f64(got);
          launch([&](Launch& l) { cuda::gemm(l, a, b, {.bias = got}, got, plan); });
          launch([&](Launch& l) { on_cpu(gemm)(l, in_f64(a), in_f64(b), {.bias = want}, want); });
          expect_close(got, to_vector(want), 4 * allowed(out, false), "c += a b");
        }
}
TEST(CudaGemm, EndsBatches) {
  const Tensor a = random({3, 5, 9}, bf16, 1), b = random({3, 9, 6}, bf16, 2);
  const Shape shape{3, 5, 6};
  const Tensor got = output(shape, bf16), got_before = output(shape, bf16),
               want = output(shape, bf16), want_before = output(shape, bf16),
               residual = random(shape, bf16, 3);
  const auto epilogue = [&](const Tensor& before) {
    return Epilogue{.residual = residual, .activation = Activation::Relu, .before = before};
  };
  launch([&](Launch& l) { cuda::gemm(l, a, b, epilogue(got_before), got); });
  launch([&](Launch& l) { on_cpu(gemm)(l, a, b, epilogue(want_before), want); });
  expect_close(got, to_vector(want), 1e-2, "relu");
  expect_close(got_before, to_vector(want_before), 1e-2, "before");
}
TEST(CudaGemm, SumsBesideNoResult) {
  const Tensor a = random({5, 7}, bf16, 1), got = output({5}, f32), want = output({5}, f32);
  const Tensor b({7, 0}, bf16), c({5, 0}, f32), columns = output({7}, f32),
                                                wanted = output({1, 7}, f32);
  launch([&](Launch& l) { cuda::gemm(l, a, b, {.row_sums = got}, c); });
  launch([&](Launch& l) { on_cpu(gemm)(l, a, b, {.row_sums = want}, c); });
  expect_close(got, to_vector(want), 1e-6, "row sums");
  launch([&](Launch& l) {
    cuda::gemm(l, Tensor({0, 5}, bf16), a, {.column_sums = columns}, Tensor({0, 7}, f32));
  });
  launch([&](Launch& l) { on_cpu(reduce)(l, Reduce::Sum, a, wanted); });
  expect_close(columns, to_vector(wanted), 1e-6, "column sums");
}
// Tiles that are stored by the short way are multiplied, too.
TEST(CudaGemm, MultipliesWholeTiles) {
  for (const DType out : {bf16, f32})
    for (int tile = 0; tile < 3; ++tile) {
      const Tensor a = random({256, 64}, bf16, 1), b = random({64, 256}, bf16, 2),
                   got = output({256, 256}, out), want = output({256, 256}, f64);
      launch([&](Launch& l) { cuda::gemm(l, a, b, {.alpha = -0.3}, got, {tile, 1}); });
      launch([&](Launch& l) { on_cpu(gemm)(l, in_f64(a), in_f64(b), {.alpha = -0.3}, want); });
      expect_close(got, to_vector(want), 4 * allowed(out, false), "alpha a b");
    }
}
TEST(CudaGemm, TakesAnyStrides) {
  // Every other element, repeated rows, reversed rows, and a result by columns.
  const Tensor x = random({40, 40}, f16, 1);
  const Layout every_other({20, 20}, {80, 2}), repeated({20, 20}, {0, 1}),
      reversed({20, 20}, {-40, 1}, 19 * 40);
  for (const Layout& la : {every_other, repeated, reversed})
    for (const Layout& lb : {every_other, repeated, reversed}) {
      const Tensor got = output({20, 20}, f32).with_layout(Layout({20, 20}, {1, 20})),
                   want = output({20, 20}, f32);
      const Tensor a = x.with_layout(la), b = x.with_layout(lb);
      launch([&](Launch& l) { cuda::gemm(l, a, b, {}, got); });
      launch([&](Launch& l) { on_cpu(gemm)(l, a, b, {}, want); });
      expect_close(got, to_vector(want), 1e-5, "strided");
    }
}
TEST(CudaGemm, MergesABatchOverOneMatrix) {
  const Tensor a = random({3, 4, 5}, f32, 1), b = random({5, 6}, f32, 2);
  const Tensor shared = b.with_layout(Layout({3, 5, 6}, {0, 6, 1}));
  const Tensor got = output({3, 4, 6}, f32), want = output({3, 4, 6}, f32);
  launch([&](Launch& l) { cuda::gemm(l, a, shared, {}, got); });
  launch([&](Launch& l) { on_cpu(gemm)(l, a, shared, {}, want); });
  expect_close(got, to_vector(want), 1e-6, "one tall product");
}
// A matrix of one row may be a column with any stride; merged with its batch it may not.
TEST(CudaGemm, MergesABatchOfRowsWithGaps) {
  const Tensor x = random({30}, f16, 1), b = random({5, 6}, f16, 2);
  const Tensor shared = b.with_layout(Layout({3, 5, 6}, {0, 6, 1}));
  for (const Shape& strides : {Shape{10, 10, 2}, Shape{2, 0, 4}, Shape{0, 0, 0}}) {
    const Tensor a = x.with_layout(Layout({3, 1, 5}, strides));
    const Tensor got = output({3, 1, 6}, f32), want = output({3, 1, 6}, f32);
    launch([&](Launch& l) { cuda::gemm(l, a, shared, {}, got); });
    launch([&](Launch& l) { on_cpu(gemm)(l, a, shared, {}, want); });
    expect_close(got, to_vector(want), 1e-5, strides.to_string());
  }
}
TEST(CudaGemm, RoundsToTf32OnlyWhereAllowed) {
  const Tensor a = from({1.0 + 1.0 / 4096}, {1, 1}, f32), one = from({1}, {1, 1}, f32);
  const auto product = [&](bool allow) {
    const Tf32 mode(allow);
    const Tensor c = output({1, 1}, f32);
    launch([&](Launch& l) { cuda::gemm(l, a, one, {}, c); });
    return to_vector(c)[0];
  };
  EXPECT_EQ(product(false), 1.0 + 1.0 / 4096);
  EXPECT_EQ(product(true), 1.0);
}
#ifdef MIXTAPE_EMULATED
// Aligned operands are copied 16 bytes at a time, asynchronously, with and without a batch.
TEST(CudaGemm, CopiesAlignedOperandsInTheBackground) {
  const auto copies = [](const Case& c) {
    const int64_t before = simt::cp_asyncs();
    const GemmPlan plan{2, 1};
    expect_product(c, &plan, c.in == f32);
    return simt::cp_asyncs() - before;
  };
  for (const int64_t batch : {1, 3})
    for (const bool ra : {true, false})
      for (const bool rb : {true, false})
        for (const DType in : {f16, bf16, f32})
          EXPECT_EQ(copies({64, 64, 64, in, f32, ra, rb, 0, batch}),
                    2 * batch * 64 * 64 * int64_t(size_of(in)) / 16)
              << name(in) << " " << batch << ra << rb;
  EXPECT_EQ(copies({64, 64, 64, f16, f32, true, true, 1}), 0) << "lines that are not aligned";
}
TEST(CudaGemm, UsesSharedMemoryWithoutBankConflicts) {
  // The epilogue may have bank conflicts; the loop must add none as k grows.
  const auto conflicts = [](const GemmPlan& plan, const Case& c) {
    const simt::BankConflicts counted;
    expect_product(c, &plan, c.in == f32);
    return std::pair{counted.count(simt::Access::Read), counted.count(simt::Access::Write)};
  };
  for (int i = 0; i < cuda::tile_count; ++i) {
    const cuda::Tile& tile = cuda::tiles[i];
    if (!tile.tensor) continue;
    for (const DType in : {f16, f32})
      for (const bool ra : {true, false})
        for (const bool rb : {true, false})
          EXPECT_EQ(conflicts({i, 1}, {tile.m, tile.n, 160, in, f32, ra, rb}),
                    conflicts({i, 1}, {tile.m, tile.n, 64, in, f32, ra, rb}))
              << i << " " << size_of(in) << ra << rb;
  }
}
#endif

// (The other 16-bit dtype, too: its bytes would be read as numbers of the wrong dtype.)
TEST(CudaGemm, RefusesAResultOfAnotherNarrowDtype) {
  const Tensor a = random({8, 8}, f16, 1), c = output({8, 8}, bf16);
  EXPECT_ERROR(launch([&](Launch& l) { cuda::gemm(l, a, a, {}, c); }),
               "from f16 a kernel writes f16 or f32, not bf16");
}

TEST(CudaGemm, CutsK) {
  using cuda::cut_k;
  using cuda::KParts;
  EXPECT_EQ(cut_k(100, 32, 1), (KParts{1, 128}));
  EXPECT_EQ(cut_k(100, 32, 2), (KParts{2, 64}));
  EXPECT_EQ(cut_k(9 * 32, 32, 4), (KParts{3, 96})) << "three equal parts, not 3, 3, 3 and 0 steps";
  EXPECT_EQ(cut_k(0, 32, 1), (KParts{1, 32}));
  EXPECT_EQ(cut_k(int64_t{1} << 33, 32, 1), (KParts{8, 1 << 30})) << "beyond 32 bits";
}

TEST(CudaGemm, UsesTheTierThatIsAskedFor) {
  using cuda::Tier;
  EXPECT_EQ(cuda::tier_named("mma"), Tier::Mma);
  EXPECT_EQ(cuda::tier_named("wmma"), Tier::Wmma);
  EXPECT_EQ(cuda::tier_named("groups"), Tier::Groups);
  EXPECT_EQ(cuda::tier_named(nullptr), std::nullopt);
  EXPECT_EQ(cuda::tier_named(""), std::nullopt);
  EXPECT_ERROR(cuda::tier_named("wgmma"),
               "MIXTAPE_GEMM must be mma, wmma or groups, got \"wgmma\"");

  const auto planned = [](int64_t size, bool tensor, bool groups, Tier asked) {
    return cuda::plan({size, size, size, 1}, tensor, 132, groups, asked).tier;
  };
  for (const int64_t size : {64, 4096}) {
    EXPECT_EQ(planned(size, true, true, Tier::Mma), Tier::Mma);
    EXPECT_EQ(planned(size, true, true, Tier::Wmma), Tier::Wmma);
    EXPECT_EQ(planned(size, true, true, Tier::Groups), Tier::Groups);
    EXPECT_EQ(planned(size, true, false, Tier::Groups), Tier::Mma) << "without Hopper";
    EXPECT_EQ(planned(size, false, false, Tier::Wmma), Tier::Mma)
        << "exact arithmetic has no tiers";
  }
}

// The plans for an H200 (132 multiprocessors).
TEST(CudaGemm, PlansByShape) {
  const auto planned = [](int64_t m, int64_t n, int64_t k, int64_t batch = 1) {
    return cuda::plan({m, n, k, batch}, true, 132);
  };
  EXPECT_EQ(planned(8192, 8192, 8192), (GemmPlan{0, 1})) << "the largest tile";
  EXPECT_EQ(planned(4096, 4096, 4096), (GemmPlan{0, 1}));
  EXPECT_EQ(planned(64, 64, 64), (GemmPlan{2, 1})) << "one small tile";
  EXPECT_GT(planned(768, 768, 65536).split, 1)
      << "a weight gradient fills the machine by parts of k";
  EXPECT_EQ(planned(64, 64, 64, 4096).split, 1);
  EXPECT_EQ(planned(1, 1, 1), (GemmPlan{2, 1}));
  EXPECT_EQ(cuda::plan({4096, 4096, 4096, 1}, false, 132), (GemmPlan{3, 1})) << "exact arithmetic";
  EXPECT_EQ(cuda::plan({64, 10, 64, 1}, false, 132), (GemmPlan{4, 1}));
  EXPECT_EQ(cuda::plan({1408, 1408, 1024, 1}, false, 132), (GemmPlan{3, 1}))
      << "121 tiles, of which a multiprocessor holds one, not two";
  EXPECT_EQ(cuda::plan({1024, 1024, 1024, 1}, false, 132), (GemmPlan{3, 2}))
      << "64 tiles in two parts of k: one block for each multiprocessor";
}

}  // namespace kernels_cuda_gemm_test
}  // namespace mixtape::kernels
