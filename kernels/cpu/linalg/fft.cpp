// Fourier transforms of lines, in f64: Stockham's passes over the prime factors of a length and,
// where one is large, Bluestein's convolution with a chirp, whose length is a power of two. Each
// line is transformed by one thread, in the same order.

#include <cmath>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

struct Complex {
  double re, im;
};
Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
Complex conj(Complex a) { return {a.re, -a.im}; }
// exp(-2 pi i k / n) for 0 <= k <= n.
Complex root(int64_t k, int64_t n) {
  const double angle = -2 * 3.14159265358979323846 * double(k) / double(n);
  return {std::cos(angle), std::sin(angle)};
}

constexpr int64_t largest_radix = 31;

// The factor of n of the next pass: 4 where possible, else the least prime.
int64_t radix_of(int64_t n) {
  if (n % 4 == 0) return 4;
  for (int64_t r = 2; r * r <= n; ++r)
    if (n % r == 0) return r;
  return n;
}
bool has_large_factor(int64_t n) {
  while (n > 1) {
    const int64_t r = radix_of(n);
    if (r > largest_radix) return true;
    n /= r;
  }
  return false;
}

// The forward transform of n numbers; n has no large factor.
class Passes {
 public:
  explicit Passes(int64_t n) : n_(n), roots_(n) {
    for (int64_t k = 0; k < n; ++k) roots_.data()[k] = root(k, n);
  }
  int64_t size() const { return n_; }

  // Transforms x; `other`, of the same size, is overwritten as well. Returns where the result is.
  Complex* run(Complex* x, Complex* other) const {
    for (int64_t left = n_, done = 1; left > 1;) {
      const int64_t r = radix_of(left);
      r == 2   ? pass<2>(x, other, left, done, r)
      : r == 4 ? pass<4>(x, other, left, done, r)
               : pass<0>(x, other, left, done, r);
      left /= r;
      done *= r;
      std::swap(x, other);
    }
    return x;
  }

 private:
  Complex power(int64_t k) const { return roots_.data()[k]; }

  // The transform of r numbers.
  template <int64_t fixed_radix>
  void butterfly(const Complex* x, Complex* y, int64_t r) const {
    if constexpr (fixed_radix == 2) {
      y[0] = x[0] + x[1];
      y[1] = x[0] - x[1];
    } else if constexpr (fixed_radix == 4) {
      const Complex even = x[0] + x[2], odd = x[1] + x[3], a = x[0] - x[2], b = x[1] - x[3];
      y[0] = even + odd;
      y[1] = {a.re + b.im, a.im - b.re};
      y[2] = even - odd;
      y[3] = {a.re - b.im, a.im + b.re};
    } else {
      for (int64_t k = 0; k < r; ++k) {
        y[k] = x[0];
        for (int64_t j = 1; j < r; ++j) y[k] = y[k] + x[j] * power(j * k % r * (n_ / r));
      }
    }
  }

  // One pass: y[q, k, p] = w^(p k) sum_j x[q, p, j] v^(j k), w and v being the roots of order
  // `left` and r, for `done` transforms q side by side.
  template <int64_t fixed_radix>
  void pass(const Complex* x, Complex* y, int64_t left, int64_t done, int64_t radix) const {
    const int64_t r = fixed_radix ? fixed_radix : radix, m = left / r;
    Complex twiddle[largest_radix], from[largest_radix], to[largest_radix];
    for (int64_t p = 0; p < m; ++p) {
      for (int64_t k = 0; k < r; ++k) twiddle[k] = power(p * k * (n_ / left));
      for (int64_t q = 0; q < done; ++q) {
        for (int64_t j = 0; j < r; ++j) from[j] = x[q + done * (p + m * j)];
        butterfly<fixed_radix>(from, to, r);
        for (int64_t k = 0; k < r; ++k) y[q + done * (r * p + k)] = twiddle[k] * to[k];
      }
    }
  }

  int64_t n_;
  Buffer<Complex> roots_;
};

int64_t padded_length(int64_t n) {
  if (!has_large_factor(n)) return n;
  int64_t length = 1;
  while (length < 2 * n - 1) length *= 2;
  return length;
}

// The forward transform of any length.
class Transform {
 public:
  explicit Transform(int64_t n)
      : n_(n), passes_(padded_length(n)), chirp_(n), chirps_(passes_.size()) {
    const int64_t length = passes_.size();
    if (length == n) return;
    Buffer<Complex> a(length), b(length);
    std::fill_n(a.data(), length, Complex{});
    for (int64_t k = 0; k < n; ++k) {
      chirp_.data()[k] = root(k * k % (2 * n), 2 * n);
      a.data()[k] = a.data()[(length - k) % length] = conj(chirp_.data()[k]);
    }
    std::copy_n(passes_.run(a.data(), b.data()), length, chirps_.data());
  }
  // Elements of each of the buffers that run() takes.
  int64_t work_size() const { return passes_.size(); }

  // Transforms the first n elements of x; returns where the result is, x or `other`.
  Complex* run(Complex* x, Complex* other) const {
    const int64_t length = passes_.size();
    if (length == n_) return passes_.run(x, other);
    const Complex* const chirp = chirp_.data();
    for (int64_t k = 0; k < n_; ++k) x[k] = x[k] * chirp[k];
    std::fill_n(x + n_, length - n_, Complex{});
    Complex* const y = passes_.run(x, other);
    // (The inverse transform is that of the conjugates, conjugated.)
    for (int64_t k = 0; k < length; ++k) y[k] = conj(y[k] * chirps_.data()[k]);
    Complex* const z = passes_.run(y, y == x ? other : x);
    for (int64_t k = 0; k < n_; ++k) z[k] = 1.0 / double(length) * (conj(z[k]) * chirp[k]);
    return z;
  }

 private:
  int64_t n_;
  Passes passes_;
  Buffer<Complex> chirp_;   // exp(-pi i k^2 / n)
  Buffer<Complex> chirps_;  // the transform of their conjugates
};

// Drops the imaginary parts that the transform of n real numbers has not.
void make_ends_real(Complex* z, int64_t n) {
  z[0].im = 0;
  if (n % 2 == 0) z[n / 2].im = 0;
}
// Reads line i of x as n complex numbers.
void read_line(Fourier kind, const View& x, int64_t i, int64_t n, Complex* to) {
  const int64_t count = x.shape()[1];
  if (kind == Fourier::FromReal) {
    const double* const line = x.as<double>() + i * count;
    for (int64_t k = 0; k < n; ++k) to[k] = {line[k], 0};
    return;
  }
  const Complex* const line = x.as<Complex>() + i * count;
  std::copy_n(line, count, to);
  if (kind != Fourier::ToReal) return;
  make_ends_real(to, n);
  for (int64_t k = 1; k < (n + 1) / 2; ++k) to[n - k] = conj(line[k]);
}
void write_line(Fourier kind, Complex* from, int64_t n, const View& y, int64_t i) {
  const int64_t count = y.shape()[1];
  if (kind == Fourier::FromReal) make_ends_real(from, n);
  if (kind != Fourier::ToReal) return void(std::copy_n(from, count, y.as<Complex>() + i * count));
  double* const line = y.as<double>() + i * count;
  for (int64_t k = 0; k < count; ++k) line[k] = from[k].re;
}

}  // namespace

void fft(Launch&, Fourier kind, In x, Out y) {
  const int64_t lines = y.shape()[0], n = (kind == Fourier::ToReal ? y : x).shape()[1];
  if (y.size() == 0) return;
  const bool inverse = kind == Fourier::Inverse || kind == Fourier::ToReal;
  const Transform transform(n);
  const int64_t size = transform.work_size();
  parallel_ranges(lines, grain_of(8 * size), [&](int64_t begin, int64_t end) {
    Buffer<Complex> a(size), b(size);
    const auto conjugate = [&](Complex* z) {
      for (int64_t k = 0; inverse && k < n; ++k) z[k] = conj(z[k]);
    };
    for (int64_t i = begin; i < end; ++i) {
      read_line(kind, x, i, n, a.data());
      conjugate(a.data());
      Complex* const z = transform.run(a.data(), b.data());
      conjugate(z);
      write_line(kind, z, n, y, i);
    }
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
