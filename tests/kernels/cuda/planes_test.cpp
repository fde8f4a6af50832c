// CUDA pooling and interpolation under the emulator, compared with the CPU.

#include <fmt/format.h>

#include "core/format.h"
#include "tests/support/kernel_compare.h"
#include "tests/support/samplings.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_planes_test {

// The same values at an address that is not a multiple of 16 bytes.
Tensor unaligned(const Tensor& x) {
  const Tensor room = output({x.numel() + 1}, x.dtype());
  const Tensor y = room.with_layout(Layout(x.shape()).at_offset(1));
  for (int64_t i = 0; i < x.numel(); ++i) y.set(i, x.at(i));
  return y;
}

const struct {
  int64_t planes;
  Sampling rows, columns;
} pools[] = {
    {6, windows(26, 2, 2), windows(26, 2, 2)},
    {1, windows(1, 1, 1), windows(2, 2, 2)},
    {3, windows(7, 3, 2, 1), windows(33, 3, 2, 1)},
    {5, windows(7, 2, 2, 0, false, 1), windows(10, 3, 2, 1, false, 1)},
    {2, windows(40, 5, 1, 2), windows(31, 4, 3)},
    {3, windows(1, 1, 1), windows(257, 3, 1, 1)},
    {2, of_kind(Kind::Adaptive, 7, 3), of_kind(Kind::Adaptive, 5, 8)},
    {2, of_kind(Kind::Adaptive, 8, 4), of_kind(Kind::Adaptive, 66, 33)},
    {40, of_kind(Kind::Adaptive, 7, 1), of_kind(Kind::Adaptive, 7, 1)},
    {2, windows(70, 3, 2, 1), windows(61, 3, 2, 1)},  // several tiles and chunks per plane
    {0, windows(4, 2, 2), windows(4, 2, 2)},
};

TEST(CudaPool, TakesTheMaximaOfTheCpu) {
  for (const auto& [in, out] : float_pairs)
    for (const auto& k : pools)
      for (const bool ties : {false, true}) {
        const Shape small{k.planes, k.rows.to, k.columns.to},
            large{k.planes, k.rows.from, k.columns.from};
        const Tensor x = random(large, in, 5, -3, 3), dy = random(small, in, 6);
        for (int64_t i = 0; ties && i < x.numel(); ++i) {
          x.set(i, i % 17 == 3 ? nan : i % 5 == 0 ? -inf : std::round(x.at(i)));
        }
        struct Results {
          Tensor y, index, dx, taken;
        };
        const auto results = [&, in = in, out = out] {
          return Results{output(small, in), output(small, i32), output(large, out),
                         output(small, out)};
        };
        const Results got = results(), want = results();
        launch([&](Launch& l) {
          cuda::max_pool2d(l, x, k.rows, k.columns, got.y, got.index);
          cuda::put_at(l, dy, got.index, k.rows, k.columns, got.dx);
          cuda::take_at(l, x, got.index, got.taken);
        });
        launch([&](Launch& l) {
          on_cpu(max_pool2d)(l, x, k.rows, k.columns, want.y, want.index);
          on_cpu(put_at)(l, dy, want.index, k.rows, k.columns, want.dx);
          on_cpu(take_at)(l, x, want.index, want.taken);
        });
        const std::string what = fmt::format("{} to {}, rows {} columns {}, ties {}", name(in),
                                             name(out), text(k.rows), text(k.columns), ties);
        expect_equal(got.y, want.y, what);
        expect_equal(got.index, want.index, "index " + what);
        expect_equal(got.dx, want.dx, "dx " + what);
        expect_equal(got.taken, want.taken, "taken " + what);
      }
}
// An index may repeat arbitrarily: sums are bitwise those of the CPU.
TEST(CudaPool, PutsAnywhereInOrder) {
  for (const auto& [in, out] : float_pairs)
    for (const int64_t places : {1, 7, 63 * 50})
      for (const bool odd : {false, true}) {
        const Shape small{3, 21, 60}, large{3, 63, 50};
        const Sampling rows{.from = 63, .to = 21, .size = 63},
            columns{.from = 50, .to = 60, .size = 50};
        const Tensor y = random(small, in, 1), index = random(small, i32, 2, 0, double(places));
        Tensor x = output(large, out);
        const Tensor want = output(large, out);
        if (odd) x = unaligned(x);
        launch([&](Launch& l) { cuda::put_at(l, y, index, rows, columns, x); });
        launch([&](Launch& l) { on_cpu(put_at)(l, y, index, rows, columns, want); });
        expect_equal(x, want, fmt::format("{} to {}, {} places", name(in), name(out), places));
      }
}
TEST(CudaPool, PutsNothing) {
  const Tensor y({3, 0, 0}, f32), index({3, 0, 0}, i32), x = output({3, 5, 7}, f32);
  const Sampling rows{.from = 5, .to = 0, .size = 5}, columns{.from = 7, .to = 0, .size = 7};
  launch([&](Launch& l) { cuda::put_at(l, y, index, rows, columns, x); });
  expect_equal(x, filled({3, 5, 7}, f32, 0), "no elements");
}

TEST(CudaResample, SumsAsTheCpuDoes) {
  for (const auto& [in, out] : float_pairs)
    for (const auto& lines : resamplings) {
      const Sampling &rows = lines.first, &columns = lines.second;
      const Shape small{5, rows.to, columns.to}, large{5, rows.from, columns.from};
      for (const bool transposed : {false, true}) {
        const Tensor x = random(transposed ? small : large, in, 1);
        const Tensor got = output(transposed ? large : small, out), want = output(got.shape(), out);
        launch([&](Launch& l) { cuda::resample(l, x, rows, columns, transposed, got); });
        launch([&](Launch& l) { on_cpu(resample)(l, x, rows, columns, transposed, want); });
        expect_close(got, to_vector(want), tolerance(out),
                     fmt::format("{} to {}, rows {} columns {}, transposed {}", name(in), name(out),
                                 text(rows), text(columns), transposed));
      }
    }
}
TEST(CudaResample, OnlyReadsWhatItWeighs) {
  const Tensor x = random({2, 3, 4}, f32, 1);
  x.set(5, nan);  // row 1, column 1 of the first plane
  // Every second pixel coincides with one of x: its neighbour has weight zero.
  const Tensor y = output({2, 3, 7}, f32);
  launch([&](Launch& l) {
    cuda::resample(l, x, corners(Kind::Linear, 3, 3), corners(Kind::Linear, 4, 7), false, y);
  });
  for (int64_t i = 0; i < y.numel(); ++i) EXPECT_EQ(std::isnan(y.at(i)), i >= 8 && i <= 10) << i;
}

}  // namespace kernels_cuda_planes_test
}  // namespace mixtape::kernels
