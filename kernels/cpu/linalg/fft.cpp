// Fourier transforms of lines, in f64: Stockham's passes over the prime factors of a length and,
// where one is large, Bluestein's convolution with a chirp, whose length is a power of two. As many
// lines as a register has lanes are transformed at once, and those that are left one by one, with
// the same bits. An even number of real ones counts as half as many complex ones.

#include <cmath>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/simd/vec.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// A complex number, or one in each lane of registers.
template <class T>
struct Complex {
  T re, im;

  friend Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
  friend Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
  friend Complex operator*(Complex a, double b) { return {a.re * b, a.im * b}; }
};
using Root = Complex<double>;
template <class T>
Complex<T> conj(Complex<T> a) {
  return {a.re, -a.im};
}
template <class T>
Complex<T> times_i(Complex<T> a) {
  return {-a.im, a.re};
}
// As that of Vec: a product and a sum if the processor has no multiply-add.
double fma(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}
// (Not by operators, which the compiler could contract in two ways.)
template <class T>
Complex<T> times(Complex<T> a, Root b) {
  return {fma(a.re, T(b.re), -(a.im * b.im)), fma(a.re, T(b.im), a.im * b.re)};
}
template <class T>
Complex<T> add_times(Complex<T> sum, Complex<T> a, double b) {
  return {fma(a.re, T(b), sum.re), fma(a.im, T(b), sum.im)};
}
// exp(-2 pi i k / n) for 0 <= k <= n.
Root root(int64_t k, int64_t n) {
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
    for (int64_t k = 0; k <= n / 2; ++k) {
      roots_.data()[k] = root(k, n);
      if (k > 0) roots_.data()[n - k] = conj(roots_.data()[k]);
    }
  }
  int64_t size() const { return n_; }

  // Transforms x; `other`, of the same size, is overwritten as well. Returns where the result is.
  template <class T>
  Complex<T>* run(Complex<T>* x, Complex<T>* other) const {
    for (int64_t left = n_, done = 1; left > 1;) {
      const int64_t r = radix_of(left);
      r == 2   ? pass<2>(x, other, left, done, r)
      : r == 3 ? pass<3>(x, other, left, done, r)
      : r == 4 ? pass<4>(x, other, left, done, r)
      : r == 5 ? pass<5>(x, other, left, done, r)
               : pass<0>(x, other, left, done, r);
      left /= r;
      done *= r;
      std::swap(x, other);
    }
    return x;
  }

 private:
  Root power(int64_t k) const { return roots_.data()[k]; }

  // The transform of r numbers, given the roots of order r.
  template <int64_t fixed_radix, class T>
  static void butterfly(const Complex<T>* x, Complex<T>* y, int64_t r, const Root* roots) {
    if constexpr (fixed_radix == 2) {
      y[0] = x[0] + x[1];
      y[1] = x[0] - x[1];
    } else if constexpr (fixed_radix == 4) {
      const Complex<T> even = x[0] + x[2], odd = x[1] + x[3], a = x[0] - x[2],
                       b = times_i(x[1] - x[3]);
      y[0] = even + odd;
      y[1] = a - b;
      y[2] = even - odd;
      y[3] = a + b;
    } else {  // pairs j and r - j, whose roots are conjugate
      Complex<T> sum[largest_radix / 2 + 1], difference[largest_radix / 2 + 1];
      y[0] = x[0];
      for (int64_t j = 1; j <= r / 2; ++j) {
        sum[j] = x[j] + x[r - j];
        difference[j] = times_i(x[j] - x[r - j]);
        y[0] = y[0] + sum[j];
      }
      for (int64_t k = 1; k <= r / 2; ++k) {
        Complex<T> even = x[0], odd{};
        for (int64_t j = 1, at = k; j <= r / 2; ++j, at = at + k < r ? at + k : at + k - r) {
          even = add_times(even, sum[j], roots[at].re);
          odd = add_times(odd, difference[j], roots[at].im);
        }
        y[k] = even + odd;
        y[r - k] = even - odd;
      }
    }
  }

  // One pass: y[q, k, p] = w^(p k) sum_j x[q, p, j] v^(j k), w and v being the roots of order
  // `left` and r, for `done` transforms q side by side.
  template <int64_t fixed_radix, class T>
  void pass(const Complex<T>* x, Complex<T>* y, int64_t left, int64_t done, int64_t radix) const {
    const int64_t r = fixed_radix ? fixed_radix : radix, m = left / r;
    Root roots[largest_radix], twiddle[largest_radix];
    Complex<T> from[largest_radix], to[largest_radix];
    for (int64_t k = 0; k < r; ++k) roots[k] = power(k * (n_ / r));
    for (int64_t p = 0; p < m; ++p) {
      for (int64_t k = 0; k < r; ++k) twiddle[k] = power(p * k * (n_ / left));
      for (int64_t q = 0; q < done; ++q) {
        for (int64_t j = 0; j < r; ++j) from[j] = x[q + done * (p + m * j)];
        butterfly<fixed_radix>(from, to, r, roots);
        for (int64_t k = 0; k < r; ++k) y[q + done * (r * p + k)] = times(to[k], twiddle[k]);
      }
    }
  }

  int64_t n_;
  Buffer<Root> roots_;
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
    Buffer<Root> a(length), b(length);
    std::fill_n(a.data(), length, Root{});
    for (int64_t k = 0; k < n; ++k) {
      chirp_.data()[k] = root(k * k % (2 * n), 2 * n);
      a.data()[k] = a.data()[(length - k) % length] = conj(chirp_.data()[k]);
    }
    std::copy_n(passes_.run(a.data(), b.data()), length, chirps_.data());
  }
  // Elements of each of the buffers that run() takes.
  int64_t work_size() const { return passes_.size(); }

  // Transforms the first n elements of x; returns where the result is, x or `other`.
  template <class T>
  Complex<T>* run(Complex<T>* x, Complex<T>* other) const {
    const int64_t length = passes_.size();
    if (length == n_) return passes_.run(x, other);
    const Root* const chirp = chirp_.data();
    for (int64_t k = 0; k < n_; ++k) x[k] = times(x[k], chirp[k]);
    std::fill_n(x + n_, length - n_, Complex<T>{});
    Complex<T>* const y = passes_.run(x, other);
    // (The inverse transform is that of the conjugates, conjugated.)
    for (int64_t k = 0; k < length; ++k) y[k] = conj(times(y[k], chirps_.data()[k]));
    Complex<T>* const z = passes_.run(y, y == x ? other : x);
    for (int64_t k = 0; k < n_; ++k) z[k] = times(conj(z[k]), chirp[k]) * (1.0 / double(length));
    return z;
  }

 private:
  int64_t n_;
  Passes passes_;
  Buffer<Root> chirp_;   // exp(-pi i k^2 / n)
  Buffer<Root> chirps_;  // the transform of their conjugates
};

// Transforms lines of n numbers.
class LineTransform {
 public:
  LineTransform(Fourier kind, In x, Out y, int64_t n)
      : kind_(kind),
        x_(x),
        y_(y),
        n_(n),
        halved_((kind == Fourier::FromReal || kind == Fourier::ToReal) && n % 2 == 0),
        transform_(halved_ ? n / 2 : n),
        roots_(halved_ ? n / 2 : 0) {
    for (int64_t k = 0; halved_ && k < n / 2; ++k) roots_.data()[k] = root(k, n);
  }
  // Elements of each of the buffers that run() takes.
  int64_t work_size() const { return std::max(transform_.work_size(), n_ / 2 + 1); }

  // Transforms as many lines as T has lanes, from line i on.
  template <class T>
  void run(int64_t i, Complex<T>* a, Complex<T>* b) const {
    constexpr int64_t lanes = sizeof(T) / sizeof(double);
    for (int64_t j = 0; j < lanes; ++j)
      read(x_.as<double>() + (i + j) * x_.strides()[0], reinterpret_cast<double*>(a) + j, lanes);
    if (kind_ == Fourier::ToReal && halved_) {
      split(a, b);
      std::swap(a, b);
    }
    const int64_t size = halved_ ? n_ / 2 : n_;
    const bool inverse = kind_ == Fourier::Inverse || kind_ == Fourier::ToReal;
    for (int64_t k = 0; inverse && k < size; ++k) a[k] = conj(a[k]);
    Complex<T>* z = transform_.run(a, b);
    for (int64_t k = 0; inverse && k < size; ++k) z[k] = conj(z[k]);
    if (kind_ == Fourier::FromReal && halved_) {
      Complex<T>* const other = z == a ? b : a;
      join(z, other);
      z = other;
    }
    for (int64_t j = 0; j < lanes; ++j)
      write(reinterpret_cast<double*>(z) + j, lanes, y_.as<double>() + (i + j) * y_.strides()[0]);
  }

 private:
  // Reads a line into every `lanes`-th number of the buffer.
  void read(const double* line, double* to, int64_t lanes) const {
    if (kind_ == Fourier::FromReal && !halved_) {
      for (int64_t k = 0; k < n_; ++k) to[2 * k * lanes] = line[k], to[(2 * k + 1) * lanes] = 0;
      return;
    }
    const int64_t count = kind_ == Fourier::FromReal ? n_ : 2 * x_.shape()[1];
    for (int64_t k = 0; k < count; ++k) to[k * lanes] = line[k];
    if (kind_ != Fourier::ToReal) return;
    to[lanes] = 0;  // the imaginary parts that the transform of real numbers has not
    if (halved_) to[(n_ + 1) * lanes] = 0;
    for (int64_t k = 1; !halved_ && k < (n_ + 1) / 2; ++k) {
      to[2 * (n_ - k) * lanes] = line[2 * k];
      to[(2 * (n_ - k) + 1) * lanes] = -line[2 * k + 1];
    }
  }
  void write(double* from, int64_t lanes, double* line) const {
    if (kind_ == Fourier::ToReal && !halved_) {
      for (int64_t k = 0; k < n_; ++k) line[k] = from[2 * k * lanes];
      return;
    }
    if (kind_ == Fourier::FromReal) from[lanes] = 0;
    const int64_t count = kind_ == Fourier::ToReal ? n_ : 2 * y_.shape()[1];
    for (int64_t k = 0; k < count; ++k) line[k] = from[k * lanes];
  }

  // z[k] = x[2 k] + i x[2 k + 1] have the transform e + i o, where e and o are those of the even
  // and the odd x, and that of x is e + w^k o, then e - w^k o, w being the root of order n.
  template <class T>
  void join(const Complex<T>* z, Complex<T>* y) const {
    const int64_t m = n_ / 2;
    y[0] = {z[0].re + z[0].im, T(0.0)};
    y[m] = {z[0].re - z[0].im, T(0.0)};
    for (int64_t k = 1; k < m; ++k) {
      const Complex<T> a = z[k], b = conj(z[m - k]), even = (a + b) * 0.5,
                       odd = times_i(b - a) * 0.5;
      y[k] = even + times(odd, roots_.data()[k]);
    }
  }
  // The way back, twice as large, as the inverse transforms of n and of n / 2 numbers differ.
  template <class T>
  void split(const Complex<T>* y, Complex<T>* z) const {
    const int64_t m = n_ / 2;
    for (int64_t k = 0; k < m; ++k) {
      const Complex<T> a = y[k], b = conj(y[m - k]);
      z[k] = (a + b) + times_i(times(a - b, conj(roots_.data()[k])));
    }
  }

  Fourier kind_;
  In x_;
  Out y_;
  int64_t n_;
  bool halved_;  // pairs of real numbers are transformed as complex ones
  Transform transform_;
  Buffer<Root> roots_;
};

}  // namespace

void fft(Launch&, Fourier kind, In x, Out y) {
  const int64_t lines = y.shape()[0], n = (kind == Fourier::ToReal ? y : x).shape()[1];
  if (y.size() == 0) return;
  const LineTransform transform(kind, x, y, n);
  const int64_t size = transform.work_size(), lanes = Vec<double>::width;
  parallel_ranges(lines, ceil_div(grain_of(8 * size), lanes) * lanes,
                  [&](int64_t begin, int64_t end) {
                    if (end - begin >= lanes) {
                      Buffer<Complex<Vec<double>>> a(size), b(size);
                      for (; begin + lanes <= end; begin += lanes)
                        transform.run(begin, a.data(), b.data());
                    }
                    if (begin == end) return;
                    Buffer<Root> a(size), b(size);
                    for (; begin < end; ++begin) transform.run(begin, a.data(), b.data());
                  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
