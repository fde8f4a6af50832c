// Fourier transforms beyond rows: every length, against the sum that defines them, and round trips.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "kernels/cpu/loops/parallel.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace fft_test {

double error_of(const Tensor& got, const Tensor& want) {
  EXPECT_EQ(got.shape(), want.shape());
  return max(abs(got - want)).item();
}

// The sum that defines the transform, as a matrix product.
Tensor by_definition(const Tensor& x) {
  const int64_t n = x.size(-2);
  Tensor phase({n, n}, f64);
  for (int64_t j = 0; j < n; ++j)
    for (int64_t k = 0; k < n; ++k) phase.set(j * n + k, -2 * M_PI * double(j * k % n) / double(n));
  const Tensor c = cos(phase), s = sin(phase), re = select(x, -1, 0), im = select(x, -1, 1);
  return stack({matmul(re, c) - matmul(im, s), matmul(re, s) + matmul(im, c)}, -1);
}

TEST(Fft, IsRightForEveryLength) {
  std::vector<int64_t> lengths = {128, 210, 243, 256, 257, 360, 31 * 31, 37 * 8, 997, 1000};
  for (int64_t n = 1; n <= 70; ++n) lengths.push_back(n);
  for (const int64_t n : lengths) {
    const Tensor x = drawn({9, n, 2}, uint64_t(n)), want = by_definition(x);
    EXPECT_LT(error_of(fft(x), want), 1e-12 * double(n)) << n;
    EXPECT_LT(error_of(ifft(fft(x)), x), 1e-13 * double(n)) << n;
    const Tensor real = select(x, -1, 0), half = rfft(real);
    EXPECT_LT(error_of(half, narrow(fft(stack({real, zeros_like(real)}, -1)), -2, 0, n / 2 + 1)),
              1e-12 * double(n))
        << n;
    EXPECT_LT(error_of(irfft(half, {.n = n}), real), 1e-13 * double(n)) << n;
  }
}

TEST(Fft, LongLinesKeepTheirEnergy) {
  for (const int64_t n : {1 << 17, 100'003, 3 * 5 * 7 * 11 * 13 * 8}) {
    const Tensor x = drawn({n, 2});
    EXPECT_LT(error_of(ifft(fft(x)), x), 1e-10) << n;
    EXPECT_NEAR(norm(fft(x, {.norm = FftNorm::Ortho})).item() / norm(x).item(), 1, 1e-12) << n;
  }
}

// Imaginary parts of bins that must be real are ignored.
TEST(Fft, TheInverseOfARealTransformDropsImaginaryEnds) {
  const Tensor x = drawn({4, 2}), other = clone(x);
  other.set(1, 7);
  other.set(7, -3);
  EXPECT_EQ(error_of(irfft(x), irfft(other)), 0);
  EXPECT_EQ(rfft(drawn({37})).at(1), 0);
}

// Several lines are transformed at once, others one by one.
TEST(Fft, ALineHasTheSameBitsAloneAndAmongOthers) {
  for (const int64_t n : {2, 5, 12, 37, 64, 105, 400, 257}) {
    const Tensor x = drawn({11, n, 2}, uint64_t(n)), real = select(x, -1, 0), half = rfft(real);
    const Tensor whole = fft(x), back = irfft(half, {.n = n});
    for (const int64_t i : {0, 7, 10}) {
      EXPECT_TRUE(equal(fft(x[i]), whole[i])) << n;
      EXPECT_TRUE(equal(rfft(real[i]), half[i])) << n;
      EXPECT_TRUE(equal(irfft(half[i], {.n = n}), back[i])) << n;
    }
  }
}

TEST(Fft, HasTheSameBitsForAnyNumberOfThreads) {
  const Tensor x = drawn({300, 37, 2});
  Tensor one;
  {
    const kernels::cpu::ThreadLimit limit(1);
    one = fft(x);
  }
  const kernels::cpu::ThreadLimit limit(3);
  EXPECT_TRUE(equal(one, fft(x)));
}

TEST(Fft, SaysWhatIsWrong) {
  EXPECT_ERROR(fft(ones({4, 3})), "complex numbers of shape [4, 3], not [..., n, 2]");
  EXPECT_ERROR(fft(ones({4, 2}, i64)), "i64");
  EXPECT_ERROR(rfft(ones({4}), {.n = 0}), "n must be >= 1, got 0");
  EXPECT_ERROR(fftn(ones({4, 4, 2}), {.s = {4}, .dim = {0, 1}}), "fftn: 1 sizes for 2 dimensions");
  EXPECT_ERROR(rfftn(ones({4, 4}), {.dim = {1, -1}}), "rfftn: dimension -1 is named twice");
  EXPECT_ERROR(rfftn(ones({})), "rfftn: a number has no dimension to transform");
  EXPECT_ERROR(irfftn(ones({4, 3})), "irfftn: complex numbers of shape [4, 3]");
  EXPECT_ERROR(ifftn(ones({4, 2}), {.s = {4, 4}}),
               "ifftn: dimension -2 is out of range for rank 1");
  EXPECT_ERROR(irfft(ones({1, 2})), "n must be >= 1, got 0");
}

TEST(Stft, IsUndoneByItsInverse) {
  const Tensor x = drawn({2, 100});
  for (const bool normalized : {false, true})
    for (const bool onesided : {false, true}) {
      const Tensor window = hann_window(16, true, f64);
      const Tensor y =
          stft(x, 16, {.window = window, .normalized = normalized, .onesided = onesided});
      EXPECT_EQ(y.shape(), (Shape{2, onesided ? 9 : 16, 26, 2}));
      const Tensor back =
          istft(y, 16, {.window = window, .normalized = normalized, .onesided = onesided});
      EXPECT_LT(error_of(back, x), 1e-13);
      EXPECT_LT(
          error_of(
              istft(
                  y, 16,
                  {.window = window, .normalized = normalized, .onesided = onesided, .length = 90}),
              narrow(x, 1, 0, 90)),
          1e-13);
    }
  EXPECT_EQ(istft(stft(x, 16), 16, {.length = 120}).at(119), 0) << "behind the last frame";
}

// Sums beyond f64, of which the results are in range.
TEST(Fft, OfLargeNumbers) {
  const double size = 4e307;
  const Tensor x = full({16}, size, f64), y = rfft(x, {.norm = FftNorm::Ortho});
  EXPECT_EQ(y.at(0), 4 * size);
  EXPECT_LT(error_of(irfft(y * 0.25, {.norm = FftNorm::Ortho}) * (4 / size), ones({16}, f64)),
            1e-14);
  const Tensor pairs = stack({x, -x}, -1), z = fft(pairs, {.norm = FftNorm::Forward});
  EXPECT_LT(error_of(select(z, 0, 0) * (1 / size), from({1, -1}, {2}, f64)), 1e-15);
}

TEST(Stft, SaysWhatIsWrong) {
  const Tensor x = ones({20});
  EXPECT_ERROR(stft(ones({1, 1, 9}), 4), "a signal of shape [1, 1, 9], not [t] or [b, t]");
  EXPECT_ERROR(stft(x, 32, {.center = false}), "a frame of 32 numbers does not fit into 20");
  EXPECT_ERROR(stft(x, 0), "stft: n_fft must be >= 1, got 0");
  EXPECT_ERROR(istft(ones({4, 3, 2}), -8), "istft: n_fft must be >= 1, got -8");
  EXPECT_ERROR(stft(x, 8, {.hop_length = 0}), "hop_length must be >= 1, got 0");
  EXPECT_ERROR(stft(x, 3), "stft: n_fft must be >= 4 without a hop_length, got 3");
  EXPECT_ERROR(stft(x, 8, {.win_length = 9}), "win_length must be from 1 to 8, got 9");
  EXPECT_ERROR(stft(x, 8, {.window = ones({5})}), "the window");
  EXPECT_ERROR(istft(ones({4, 3, 2}), 8),
               "a transform of shape [4, 3, 2], not [5, frames, 2] or [b, 5, frames, 2]");
  EXPECT_ERROR(istft(stft(x, 8), 8, {.length = 0}), "length must be >= 1, got 0");
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_ERROR(istft(stft(x, 8), 8, {.length = most}), "istft: ");
  EXPECT_ERROR(istft(stft(x, 8), 8, {.hop_length = most}),
               "istft: hop_length must be from 1 to 8, got 9223372036854775807");
  EXPECT_ERROR(istft(stft(x, 8), 8, {.window = zeros({8})}),
               "the squares of windows must not vanish, got a sum of 0");
}

TEST(HannWindow, IsPeriodicOrSymmetric) {
  EXPECT_EQ(to_vector(hann_window(4, true, f64))[2], 1);
  EXPECT_NEAR(hann_window(5, false, f64).at(4), 0, 1e-16);
  EXPECT_EQ(hann_window(1, false).at(0), 1);
}

TEST(Windows, AreThoseOfPyTorch) {
  expect_near(hamming_window(4), {0.08, 0.54, 1, 0.54});
  expect_near(blackman_window(5, false, f64), {0, 0.34, 1, 0.34, 0}, 1e-15);
  EXPECT_EQ(blackman_window(8, true, f64).at(0), 0);
  expect_near(kaiser_window(4, false, 3.5, f64),
              {0.13553434913875384, 0.8459726478388895, 0.8459726478388895, 0.13553434913875384},
              1e-15);
  EXPECT_NEAR(kaiser_window(5).at(0), 5.2773441320097665e-05, 1e-11);
  EXPECT_NEAR(kaiser_window(5).at(2), 0.7929398341014605, 1e-7);
  EXPECT_EQ(kaiser_window(1).at(0), 1);
  EXPECT_ERROR(kaiser_window(4, true, 701), "kaiser_window: beta must be from 0 to 700, got 701");
  EXPECT_ERROR(kaiser_window(0), "kaiser_window: n must be >= 1, got 0");
  EXPECT_EQ(hamming_window(1).item(), 1);
  EXPECT_ERROR(hamming_window(0), "hamming_window: hann_window: n must be >= 1, got 0");
}

TEST(Frequencies, AreThoseOfNumPy) {
  expect_near(fftfreq(4), {0, 0.25, -0.5, -0.25}, 0);
  expect_near(fftfreq(5, 0.1, f64), {0, 2, 4, -4, -2}, 1e-15);
  expect_near(rfftfreq(4), {0, 0.25, 0.5}, 0);
  expect_near(rfftfreq(5, 0.5), {0, 0.4, 0.8});
  EXPECT_EQ(to_vector(fftfreq(1)), Values{0});
  EXPECT_ERROR(fftfreq(0), "fftfreq: n must be >= 1, got 0");
}

}  // namespace fft_test
}  // namespace mixtape
