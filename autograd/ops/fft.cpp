// Fourier transforms along one dimension, and short-time transforms made of them. A complex number
// is a pair in the last dimension. Kernels compute in f64, so every result is rounded once.

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "core/readback.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Fourier;

// The factor of a transform, and the dtype of its result if that differs from its input's: between
// the two dimensions of a plane, numbers are f64.
struct FourierScale {
  double factor;
  std::optional<DType> out = {};

  FourierScale backward(const Ctx& ctx) const {
    return out ? FourierScale{factor, ctx.grad_dtype(0)} : *this;
  }
};

// Transforms the lines of x, [..., n] or [..., n, 2], into `count` numbers each.
Tensor transform(const Ctx& ctx, Fourier kind, const Tensor& x, int64_t count,
                 const FourierScale& s) {
  const bool from_pairs = kind != Fourier::FromReal, to_pairs = kind != Fourier::ToReal;
  Shape shape = from_pairs ? without(x.shape(), x.rank() - 1) : x.shape();
  const int64_t lines = without(shape, shape.rank - 1).size();
  Shape in{lines, shape[-1]}, out{lines, count};
  shape[-1] = count;
  if (from_pairs) in.push_back(2);
  if (to_pairs) {
    out.push_back(2);
    shape.push_back(2);
  }
  const Tensor y = empty(out, f64, ctx.device());
  if (y.numel() == 0) return cast(reshape(y, shape), ctx.dtype());
  const Tensor given = reshape(dense(cast(x, f64)), in);
  if (x.dtype() != f64 || ctx.dtype() != f64) {
    ctx.run(kernels::fft, kind, given, y);
    return cast(reshape(s.factor == 1 ? y : y * s.factor, shape), ctx.dtype());
  }
  // Sums of f64 numbers may leave the range although a result does not. (If they were f32 before,
  // they cannot.)
  const Tensor unit = scale_of(given, reduce_options(from_pairs ? Dims{1, 2} : Dims{1}, in.rank));
  ctx.run(kernels::fft, kind, given / unit, y);
  return reshape(y * reshape(unit * s.factor, to_pairs ? Shape{lines, 1, 1} : Shape{lines, 1}),
                 shape);
}

struct Fft {  // [..., n, 2]
  static constexpr OpInfo info{"fft", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, bool inverse, const FourierScale& scale) {
    return transform(ctx, inverse ? Fourier::Inverse : Fourier::Forward, x, x.size(-2), scale);
  }
  // The transform as a real matrix has as its transpose the one with conjugate roots.
  static Grads backward(const Ctx& ctx, const Tensor& dy, bool inverse, const FourierScale& scale) {
    return {call<Fft>(wide(dy), !inverse, scale.backward(ctx))};
  }
};

// y [..., n / 2 + 1, 2] with the numbers that stand for two of n multiplied by `factor`: all but
// the first and, for an even n, the last.
Tensor scale_doubled(const Tensor& y, int64_t n, double factor) {
  const Tensor weight = full({y.size(-2), 1}, factor, y.dtype(), y.device());
  fill_(narrow(weight, 0, 0, 1), 1);
  if (n % 2 == 0) fill_(narrow(weight, 0, n / 2, 1), 1);
  return y * weight;
}

struct Irfft {  // [..., n / 2 + 1, 2] -> [..., n]
  static constexpr OpInfo info{"irfft", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, int64_t n, const FourierScale& scale) {
    return transform(ctx, Fourier::ToReal, x, n, scale);
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int64_t n, const FourierScale& scale);
};
struct Rfft {  // [..., n] -> [..., n / 2 + 1, 2]
  static constexpr OpInfo info{"rfft", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const FourierScale& scale) {
    return transform(ctx, Fourier::FromReal, x, x.size(-1) / 2 + 1, scale);
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const FourierScale& scale) {
    const int64_t n = ctx.shape(0)[-1];
    return {call<Irfft>(scale_doubled(wide(dy), n, 0.5), n, scale.backward(ctx))};
  }
};
Grads Irfft::backward(const Ctx& ctx, const Tensor& dy, int64_t n, const FourierScale& scale) {
  return {scale_doubled(call<Rfft>(wide(dy), scale.backward(ctx)), n, 2)};
}

double factor_of(FftNorm norm, int64_t n, bool inverse) {
  if (norm == FftNorm::Ortho) return 1 / std::sqrt(double(n));
  return (norm == FftNorm::Backward) == inverse ? 1 / double(n) : 1;
}

void check_complex(const Tensor& x) {
  check_real(x);
  check(x.rank() >= 2 && x.size(-1) == 2, "complex numbers of shape {}, not [..., n, 2]",
        x.shape());
}
int64_t checked_length(int64_t n, std::string_view name = "n") {
  check(n >= 1, "{} must be >= 1, got {}", name, n);
  return n;
}
// x cut or padded with zeros to n elements along a dimension, counted from the end.
Tensor resized(const Tensor& x, int dim, int64_t n) {
  const int64_t now = x.size(dim);
  if (n <= now) return narrow(x, dim, 0, n);
  std::vector<int64_t> sizes(size_t(-2 * dim), 0);
  sizes.back() = n - now;
  return pad(x, sizes);
}
// f of x with dimension `dim` moved last; the pairs of complex numbers do not count as a dimension.
template <class F>
Tensor along_numbers(const Tensor& x, int numbers, int dim, const F& f) {
  const int d = wrap_dim(dim, numbers), last = numbers - 1;
  return d == last ? f(x) : transpose(f(transpose(x, d, last)), d, last);
}
using Out = std::optional<DType>;
Tensor complex_transform(const Tensor& x, const FftOptions& o, bool inverse, Out out = {}) {
  check_complex(x);
  return along_numbers(x, x.rank() - 1, o.dim, [&](const Tensor& lines) {
    const int64_t n = checked_length(o.n.value_or(lines.size(-2)));
    return call<Fft>(resized(lines, -2, n), inverse,
                     FourierScale{factor_of(o.norm, n, inverse), out});
  });
}
Tensor from_real(const Tensor& x, const FftOptions& o, Out out = {}) {
  check_real(x);
  return along_numbers(x, x.rank(), o.dim, [&](const Tensor& lines) {
    const int64_t n = checked_length(o.n.value_or(lines.size(-1)));
    return call<Rfft>(resized(lines, -1, n), FourierScale{factor_of(o.norm, n, false), out});
  });
}
Tensor to_real(const Tensor& x, const FftOptions& o, Out out = {}) {
  check_complex(x);
  return along_numbers(x, x.rank() - 1, o.dim, [&](const Tensor& lines) {
    const int64_t n = checked_length(o.n.value_or(2 * (lines.size(-2) - 1)));
    return call<Irfft>(resized(lines, -2, n / 2 + 1), n,
                       FourierScale{factor_of(o.norm, n, true), out});
  });
}
FftnOptions of_two(const Fft2Options& o) {
  return {.s = o.s ? std::vector{o.s->h, o.s->w} : std::vector<int64_t>(),
          .dim = {o.dim[0], o.dim[1]},
          .norm = o.norm};
}
// The options of the transform along each dimension of an array of so many dimensions.
std::vector<FftOptions> along_each(const FftnOptions& o, int rank) {
  Dims dims = o.dim;
  if (dims.empty())
    for (int d = o.s.empty() ? rank : int(o.s.size()); d > 0; --d) dims.push_back(-d);
  reduce_options(dims, rank);  // names each once
  check(!dims.empty(), "a number has no dimension to transform");
  check(o.s.empty() || o.s.size() == dims.size(), "{} sizes for {} dimensions", o.s.size(),
        dims.size());
  std::vector<FftOptions> each;
  for (size_t i = 0; i < dims.size(); ++i)
    each.push_back(
        {.n = o.s.empty() ? std::nullopt : std::optional(o.s[i]), .dim = dims[i], .norm = o.norm});
  return each;
}
// Between these transforms, from the last to the first, numbers are f64.
Tensor complex_transforms(Tensor x, std::span<const FftOptions> each, bool inverse, DType out) {
  for (size_t i = each.size(); i-- > 0;)
    x = complex_transform(x, each[i], inverse, i > 0 ? f64 : out);
  return x;
}
Tensor complex_transforms(const Tensor& x, const FftnOptions& o, bool inverse) {
  check_complex(x);
  return complex_transforms(x, along_each(o, x.rank() - 1), inverse, dtype_of_sum(x));
}
Tensor from_real(const Tensor& x, const FftnOptions& o) {
  check_real(x);
  const std::vector<FftOptions> each = along_each(o, x.rank());
  const DType out = dtype_of_sum(x);
  const Tensor last = from_real(x, each.back(), each.size() > 1 ? f64 : out);
  return complex_transforms(last, std::span(each).first(each.size() - 1), false, out);
}
Tensor to_real(const Tensor& x, const FftnOptions& o) {
  check_complex(x);
  const std::vector<FftOptions> each = along_each(o, x.rank() - 1);
  const Tensor others = complex_transforms(x, std::span(each).first(each.size() - 1), true, f64);
  return to_real(others, each.back(), dtype_of_sum(x));
}

// The frames of a short-time transform: [n_fft] numbers each, hop_length apart, times a window.
struct Frames {
  int64_t n, hop;
  Tensor window;

  template <class Options>
  Frames(int64_t n_fft, const Options& o, const Tensor& x) : n(checked_length(n_fft, "n_fft")) {
    check(o.hop_length || n >= 4, "n_fft must be >= 4 without a hop_length, got {}", n);
    hop = o.hop_length.value_or(n / 4);
    check(hop >= 1, "hop_length must be >= 1, got {}", hop);
    const int64_t length = o.win_length.value_or(n), left = (n - length) / 2;
    check(1 <= length && length <= n, "win_length must be from 1 to {}, got {}", n, length);
    check_shape(o.window, "the window", {length});
    const DType dtype = accumulate_dtype(x.dtype());
    const Tensor given = o.window ? cast(o.window, dtype) : ones({length}, dtype, x.device());
    window = pad(given, {left, n - length - left});
  }
  // The sum of frames [..., count, n] at their places in a signal.
  Tensor overlap_add(const Tensor& frames) const {
    const int64_t count = frames.size(-2);
    const Shape flat = joined(leading(frames), {count * n}),
                whole = joined(leading(frames), {n + hop * (count - 1)});
    const Tensor first =
        unsqueeze(arange(0, double(count), 1, i64, frames.device()) * double(hop), 1);
    const Tensor places = flatten(first + arange(0, double(n), 1, i64, frames.device()));
    return index_add(zeros(whole, frames.dtype(), frames.device()), -1, places,
                     reshape(frames, flat));
  }
};
FftNorm fft_norm(bool normalized) { return normalized ? FftNorm::Ortho : FftNorm::Backward; }

}  // namespace

Tensor fft(const Tensor& x, const FftOptions& o) {
  const Scope scope(Fft::info.name);
  return complex_transform(x, o, false);
}
Tensor ifft(const Tensor& x, const FftOptions& o) {
  const Scope scope("ifft");
  return complex_transform(x, o, true);
}
Tensor rfft(const Tensor& x, const FftOptions& o) {
  const Scope scope(Rfft::info.name);
  return from_real(x, o);
}
Tensor irfft(const Tensor& x, const FftOptions& o) {
  const Scope scope(Irfft::info.name);
  return to_real(x, o);
}
Tensor fft2(const Tensor& x, const Fft2Options& o) {
  const Scope scope("fft2");
  return complex_transforms(x, of_two(o), false);
}
Tensor ifft2(const Tensor& x, const Fft2Options& o) {
  const Scope scope("ifft2");
  return complex_transforms(x, of_two(o), true);
}
Tensor rfft2(const Tensor& x, const Fft2Options& o) {
  const Scope scope("rfft2");
  return from_real(x, of_two(o));
}
Tensor irfft2(const Tensor& x, const Fft2Options& o) {
  const Scope scope("irfft2");
  return to_real(x, of_two(o));
}
Tensor fftn(const Tensor& x, const FftnOptions& o) {
  const Scope scope("fftn");
  return complex_transforms(x, o, false);
}
Tensor ifftn(const Tensor& x, const FftnOptions& o) {
  const Scope scope("ifftn");
  return complex_transforms(x, o, true);
}
Tensor rfftn(const Tensor& x, const FftnOptions& o) {
  const Scope scope("rfftn");
  return from_real(x, o);
}
Tensor irfftn(const Tensor& x, const FftnOptions& o) {
  const Scope scope("irfftn");
  return to_real(x, o);
}

Tensor stft(const Tensor& x, int64_t n_fft, const StftOptions& o) {
  const Scope scope("stft");
  check_real(x);
  check(x.rank() == 1 || x.rank() == 2, "a signal of shape {}, not [t] or [b, t]", x.shape());
  const Frames frames(n_fft, o, x);
  return in_f32(
      [&](const Tensor& t) {
        const Tensor signal = o.center ? pad(t, {n_fft / 2, n_fft / 2}, o.pad_mode) : t;
        check(signal.size(-1) >= n_fft, "a frame of {} numbers does not fit into {}", n_fft,
              signal.size(-1));
        const Tensor parts = unfold(signal, -1, n_fft, frames.hop) * frames.window;
        const FftOptions norm{.norm = fft_norm(o.normalized)};
        const Tensor y =
            o.onesided ? rfft(parts, norm) : fft(stack({parts, zeros_like(parts)}, -1), norm);
        return transpose(y, -3, -2);
      },
      x);
}

Tensor istft(const Tensor& x, int64_t n_fft, const IstftOptions& o) {
  const Scope scope("istft");
  check_complex(x);
  const Frames frames(n_fft, o, x);
  const int64_t numbers = o.onesided ? n_fft / 2 + 1 : n_fft;
  check((x.rank() == 3 || x.rank() == 4) && x.size(-3) == numbers && x.size(-2) > 0,
        "a transform of shape {}, not [{}, frames, 2] or [b, {}, frames, 2]", x.shape(), numbers,
        numbers);
  const int64_t count = x.size(-2);
  check(count == 1 || frames.hop <= n_fft, "hop_length must be from 1 to {}, got {}", n_fft,
        frames.hop);
  const int64_t total = n_fft + frames.hop * (count - 1), begin = o.center ? n_fft / 2 : 0,
                length = o.length.value_or(total - 2 * begin);
  check(length >= 1, "length must be >= 1, got {}", length);
  const auto within = [&](const Tensor& t) {
    return narrow(t, -1, begin, std::min(length, total - begin));
  };
  const Tensor weight = within(frames.overlap_add(expand(square(frames.window), {count, n_fft})));
  const Tensor least = cast(min(weight.detach()), f64);
  check_later(least.raw(), sizeof(double), least.device(), [](const void* found) {
    const double sum = *static_cast<const double*>(found);
    return sum > 1e-11
               ? ""
               : fmt::format("the squares of windows must not vanish, got a sum of {}", sum);
  });
  return in_f32(
      [&](const Tensor& t) {
        // Uses the first half of two-sided transforms, as PyTorch does.
        const Tensor lines = transpose(narrow(t, -3, 0, n_fft / 2 + 1), -3, -2);
        const Tensor parts = irfft(lines, {.n = n_fft, .norm = fft_norm(o.normalized)});
        const Tensor y = within(frames.overlap_add(parts * frames.window)) / weight;
        return resized(y, -1, length);
      },
      x);
}

Tensor hann_window(int64_t n, bool periodic, DType dtype, Device device) {
  const Scope scope("hann_window");
  checked_length(n);
  const double step = 2 * 3.14159265358979323846 / double(periodic || n == 1 ? n : n - 1);
  const Tensor phase = arange(0, double(n), 1, f64, device) * step;
  return cast(n == 1 ? ones({1}, f64, device) : 0.5 - cos(phase) * 0.5, dtype);
}
// The others in terms of it, h = (1 - cos) / 2, of which blackman_window's end is exactly 0.
Tensor hamming_window(int64_t n, bool periodic, DType dtype, Device device) {
  const Scope scope("hamming_window");
  return cast(hann_window(n, periodic, f64, device) * 0.92 + 0.08, dtype);
}
Tensor blackman_window(int64_t n, bool periodic, DType dtype, Device device) {
  const Scope scope("blackman_window");
  const Tensor h = hann_window(n, periodic, f64, device);
  return cast(h * (h * 0.64 + 0.36), dtype);
}

Tensor kaiser_window(int64_t n, bool periodic, double beta, DType dtype, Device device) {
  const Scope scope("kaiser_window");
  checked_length(n);
  check(beta >= 0 && beta <= 700, "beta must be from 0 to 700, got {}", beta);
  const double step = 2 / double(periodic || n == 1 ? n : n - 1);
  const Tensor t = arange(0, double(n), 1, f64, device) * step - (n == 1 ? 0 : 1);
  const Tensor arch = sqrt(clamp((1 - t) * (1 + t), 0));
  return cast(i0(arch * beta) / i0(full({}, beta, f64, device)), dtype);
}

Tensor fftfreq(int64_t n, double d, DType dtype, Device device) {
  const Scope scope("fftfreq");
  checked_length(n);
  const Tensor k = arange(0, double(n), 1, f64, device);  // counted from 0, then from -n / 2
  return cast(where(ge(k, double(n - n / 2)), k - double(n), k) / (double(n) * d), dtype);
}
Tensor rfftfreq(int64_t n, double d, DType dtype, Device device) {
  const Scope scope("rfftfreq");
  checked_length(n);
  return cast(arange(0, double(n / 2 + 1), 1, f64, device) / (double(n) * d), dtype);
}

}  // namespace mixtape
