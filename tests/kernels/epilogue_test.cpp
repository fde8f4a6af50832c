// Epilogues of CPU products (kernels/common/epilogue.h), with every instruction set, against loops
// in double.

#include <vector>

#include "kernels/common/activation.h"
#include "kernels/common/packed.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
namespace kernels_epilogue_test {

double activated(Activation a, double x) {
  visit_activation(a, [&]<class F>() { x = F::f(x); });
  return x;
}
Values activated(Activation a, Values v) {
  for (double& x : v) x = activated(a, x);
  return v;
}
Tensor scaled(const Tensor& x, double alpha) {
  Values v = to_vector(x);
  for (double& e : v) e *= alpha;
  return from(v, x.shape(), x.dtype());
}
constexpr Activation activations[] = {Activation::None, Activation::Relu, Activation::Gelu,
                                      Activation::GeluTanh};

// One of each kind that this processor has.
std::vector<Isa> isas_here() {
  std::vector<Isa> here;
  for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512Bf16, Isa::Neon, Isa::NeonBf16}) {
    const IsaLimit limit(isa);
    if (current_isa() == isa) here.push_back(isa);
  }
  return here;
}

TEST(Epilogue, ActivatesSumsBeforeTheyAreRounded) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 4, 0}, {17, 33, 65}, {130, 300, 70}, {40, 100, 900}};
  for (const Isa isa : isas_here())
    for (const auto& [in, out] : float_pairs)
      for (const auto& [m, n, k] : sizes)
        for (const Activation f : activations) {
          const IsaLimit limit(isa);
          const Tensor a = random({m, k}, in, 1), b = random({k, n}, in, 2),
                       bias = random({n}, wide(in), 3);
          const Tensor c = output({m, n}, out), by_columns = output({n, m}, out),
                       before = output({m, n}, out), row_sums = output({m}, wide(in)),
                       column_sums = output({n}, wide(in));
          // (A power of two scales a without rounding, too.)
          const double alpha = f == Activation::Relu ? -0.5 : f == Activation::Gelu ? 2 : 1;
          launch([&](Launch& l) {
            gemm(l, a, b,
                 Epilogue{.alpha = alpha,
                          .bias = bias,
                          .activation = f,
                          .before = before,
                          .row_sums = row_sums},
                 c);
            gemm(
                l, a, b,
                Epilogue{.alpha = alpha, .bias = bias, .activation = f, .column_sums = column_sums},
                by_columns.with_layout(transpose(by_columns.layout(), 0, 1)));
          });
          const std::string what = std::string(name(in)) + "->" + std::string(name(out)) + " " +
                                   Shape{m, n, k}.to_string() + " activation " +
                                   std::to_string(int(f));
          const Values sums = matmul(scaled(a, alpha), b, bias), want = activated(f, sums);
          expect_close(before, sums, tolerance(out), "before " + what);
          expect_close(c, want, tolerance(out), what);
          expect_close(by_columns.with_layout(transpose(by_columns.layout(), 0, 1)), want,
                       tolerance(out), "by columns " + what);
          expect_close(row_sums, matmul(a, filled({k, 1}, in, 1), {}), tolerance(wide(in)),
                       "row sums " + what);
          expect_close(column_sums, matmul(filled({1, k}, in, 1), b, {}), tolerance(wide(in)),
                       "column sums " + what);
        }
}

TEST(Epilogue, AddsAResidualOfAnyFloatDtype) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 4, 0}, {17, 33, 65}, {130, 300, 70}, {40, 100, 900}};
  for (const Isa isa : isas_here())
    for (const auto& [in, out] : float_pairs)
      for (const auto& [m, n, k] : sizes)
        for (const DType dtype : {f32, in}) {
          const IsaLimit limit(isa);
          const Tensor a = random({m, k}, in, 1), b = random({k, n}, in, 2),
                       bias = random({n}, wide(in), 3), residual = random({m, n}, dtype, 4);
          const Tensor c = output({m, n}, out), before = output({m, n}, out),
                       alone = output({m, n}, out);
          launch([&](Launch& l) {
            gemm(l, a, b,
                 Epilogue{.bias = bias,
                          .residual = residual,
                          .activation = Activation::Gelu,
                          .before = before},
                 c);
            gemm(l, a, b, Epilogue{.residual = residual}, alone);
          });
          const std::string what = std::string(name(in)) + "->" + std::string(name(out)) + " " +
                                   Shape{m, n, k}.to_string() + " residual " +
                                   std::string(name(dtype));
          Values sums = matmul(a, b, bias), plain = matmul(a, b, {});
          for (int64_t i = 0; i < m * n; ++i) {
            sums[size_t(i)] += residual.at(i);
            plain[size_t(i)] += residual.at(i);
          }
          expect_close(before, sums, tolerance(out), "before " + what);
          expect_close(c, activated(Activation::Gelu, sums), tolerance(out), what);
          expect_close(alone, plain, tolerance(out), "without bias " + what);
        }
}

TEST(Epilogue, RoundsOnce) {  // gelu of 1 + 1/512, which bf16 does not hold, rounds up
  const Tensor a = from({1, 0x1p-9}, {1, 2}, bf16), b = from({1, 1}, {2, 1}, bf16),
               c = output({1, 1}, bf16), before = output({1, 1}, bf16);
  launch([&](Launch& l) {
    gemm(l, a, b, Epilogue{.activation = Activation::Gelu, .before = before}, c);
  });
  EXPECT_EQ(before.at(0), 1);
  EXPECT_EQ(c.at(0), double(BFloat16(float(activated(Activation::Gelu, 1 + 0x1p-9)))));
  EXPECT_NE(c.at(0), double(BFloat16(float(activated(Activation::Gelu, 1)))));
}

TEST(Epilogue, MayAddToItsResult) {
  const int64_t sizes[][3] = {{3, 4, 5}, {5, 20, 0}, {33, 70, 90}, {200, 60, 900}};
  for (const Isa isa : isas_here())
    for (const auto& [in, out] : float_pairs)
      for (const auto& [m, n, k] : sizes)
        for (const bool by_rows : {true, false}) {
          const IsaLimit limit(isa);
          const Tensor a = random({m, k}, in, 1), b = random({k, n}, in, 2);
          Tensor c = random(by_rows ? Shape{m, n} : Shape{n, m}, out, 3);
          if (!by_rows) c = c.with_layout(transpose(c.layout(), 0, 1));
          const Values want = matmul(a, b, c);
          launch([&](Launch& l) { gemm(l, a, b, Epilogue{.bias = c}, c); });
          expect_close(c, want, tolerance(out),
                       Shape{m, n, k}.to_string() + " " + std::string(name(in)) + "->" +
                           std::string(name(out)) + (by_rows ? " by rows, " : " by columns, ") +
                           std::to_string(int(isa)));
        }
}

TEST(Epilogue, TakesBatches) {
  for (const auto& [in, out] : float_pairs) {
    const Tensor a = random({2, 3, 5, 7}, in, 1), b = random({2, 3, 7, 4}, in, 2),
                 bias = random({4}, in, 3), residual = random({2, 3, 5, 4}, in, 4);
    const Tensor c = output({2, 3, 5, 4}, out), before = output(c.shape(), out),
                 summed = output(c.shape(), out);
    launch([&](Launch& l) {
      gemm(l, a, b, Epilogue{.bias = bias, .activation = Activation::Relu, .before = before}, c);
      gemm(l, a, b, Epilogue{.bias = bias, .residual = residual}, summed);
    });
    Values sums = matmul(a, b, bias);
    expect_close(before, sums, tolerance(out), "before");
    expect_close(c, activated(Activation::Relu, sums), tolerance(out), "relu");
    for (int64_t i = 0; i < summed.numel(); ++i) sums[size_t(i)] += residual.at(i);
    expect_close(summed, sums, tolerance(out), "with residual");
  }
}

TEST(Epilogue, MultipliesWithoutABias) {
  for (const auto& [in, out] : float_pairs)
    for (const int64_t k : {0, 30, 900}) {
      const Tensor a = random({33, k}, in, 1), b = random({k, 70}, in, 2),
                   c = output({33, 70}, out);
      launch([&](Launch& l) { gemm(l, a, b, Epilogue{.alpha = -4}, c); });
      expect_close(c, matmul(scaled(a, -4), b, {}), tolerance(out), "alpha a b");
    }
}

TEST(Epilogue, SumsBesideNoResult) {
  const Tensor a = random({5, 7}, bf16, 1), sums = output({5}, f32), again = output({5}, f32);
  launch([&](Launch& l) {
    gemm(l, a, Tensor({7, 0}, bf16), Epilogue{.row_sums = sums}, Tensor({5, 0}, f32));
    gemm(l, Tensor({0, 7}, bf16), a.with_layout(transpose(a.layout(), 0, 1)),
         Epilogue{.column_sums = again}, Tensor({0, 5}, f32));
  });
  expect_close(sums, matmul(a, filled({7, 1}, bf16, 1), {}), 1e-6, "row sums");
  expect_close(again, to_vector(sums), 1e-6, "column sums");
}

TEST(Epilogue, KeepsBAsTheFirstProductPackedIt) {
  const int64_t sizes[][3] = {{1, 5, 7}, {32, 512, 128}, {20, 70, 900}, {300, 40, 60}, {3, 4, 0}};
  for (const Isa isa : isas_here())
    for (const auto& [in, out] : float_pairs)
      for (const auto& [m, n, k] : sizes)
        for (const bool by_rows : {true, false}) {
          const IsaLimit limit(isa);
          const Tensor first = random({m, k}, in, 1), second = random({m, k}, in, 2),
                       bias = random({n}, wide(in), 3);
          Tensor b = random(by_rows ? Shape{k, n} : Shape{n, k}, in, 4);
          if (!by_rows) b = b.with_layout(transpose(b.layout(), 0, 1));
          const auto product = [&, m = m, n = n, out = out](const Tensor& a, Packed* packed) {
            const Tensor c = output({m, n}, out);
            launch([&](Launch& l) { gemm(l, a, b, Epilogue{.bias = bias, .packed = packed}, c); });
            return to_vector(c);
          };
          const Values want[] = {product(first, nullptr), product(second, nullptr)};
          Packed packed;
          EXPECT_EQ(product(first, &packed), want[0]);
          launch([&](Launch& l) { fill(l, 0, b); });
          if (isa == Isa::Portable) continue;  // Eigen packs for itself
          EXPECT_EQ(product(second, &packed), want[1]);
        }
}

TEST(Epilogue, SameForAnyThreads) {
  const Tensor a = random({400, 900}, bf16, 1), b = random({900, 310}, bf16, 2),
               start = random({400, 310}, f32, 3);
  expect_same_for_any_threads([&] {
    const Tensor c = output({400, 310}, bf16), before = output({400, 310}, bf16),
                 sums = output({400}, f32), sum = output({400, 310}, f32);
    launch([&](Launch& l) {
      gemm(l, a, b, Epilogue{.activation = Activation::Gelu, .before = before, .row_sums = sums},
           c);
      convert(l, start, sum);
      gemm(l, a, b, Epilogue{.bias = sum}, sum);
    });
    return std::vector<Tensor>{c, before, sums, sum};
  });
}

}  // namespace kernels_epilogue_test
}  // namespace mixtape::kernels
