// Creation: new tensors from numbers. Never recorded.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"
#include "kernels/common/draw.h"
#include "kernels/common/special.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

template <class Kernel, class... A>
Tensor made(const Kernel& kernel, const Shape& shape, DType dtype, Device device,
            const A&... args) {
  Tensor y(shape, dtype, device);
  kernel(device, args..., y);
  return y;
}

// One 32-bit number per element, whatever the dtype.
template <class Kernel>
Tensor drawn(const Kernel& kernel, const Shape& shape, double a, double b, DType dtype,
             Device device) {
  check(is_float(dtype), "random real numbers need a float dtype, got {}", dtype);
  const Tensor y(shape, dtype, device);  // made first: if this throws, nothing is drawn
  kernel(device, generator().draw(y.numel()), a, b, y);
  return y;
}

// The element type for numbers of type T: T itself, or for integers without a dtype the narrowest
// type that holds all of them, else int64_t.
template <class T>
constexpr auto element_for() {
  if constexpr (!std::is_integral_v<T> || std::is_same_v<T, bool>)
    return T();
  else if constexpr (sizeof(T) == 1 && std::is_unsigned_v<T>)
    return uint8_t();
  else if constexpr (sizeof(T) < 4 || (sizeof(T) == 4 && std::is_signed_v<T>))
    return int32_t();
  else
    return int64_t();
}

Tensor places_of(const Tensor& mask, Device device) {
  return contiguous(transpose(nonzero(mask))).to(device);
}

// The dtype holds each whole number of a range, so that none is rounded to its end.
void check_whole(DType dtype, int64_t low, int64_t high) {
  if (dtype == i64) return;
  if (is_integer(dtype)) {
    for (const int64_t end : {low, high}) check_fits(dtype, double(end));
    return;
  }
  const int digits = dtype == f64 ? 53 : dtype == f32 ? 24 : dtype == f16 ? 11 : 8;
  const int64_t most = dtype == boolean ? 1 : int64_t{1} << digits;
  check(-most <= low && high <= most, "{} has all whole numbers up to {}, got {} to {}", dtype,
        most, low, high);
}

// [0, 1) in f64 with 48 bits: with rand(), events rarer than 2^-24 would come too often or never.
Tensor fine_rand(const Shape& shape, DType dtype, Device device) {
  const Tensor coarse = rand(shape, dtype, device);
  return dtype == f64 ? coarse + rand(shape, f64, device) * 0x1p-24 : coarse;
}

}  // namespace

Tensor empty(const Shape& shape, DType dtype, Device device) {
  return Tensor(shape, dtype, device);
}
Tensor full(const Shape& shape, double value, DType dtype, Device device) {
  check_fits(dtype, value);
  if (only_stores(dtype)) return full(shape, value, f64, device).to(dtype);
  return made(kernels::fill, shape, dtype, device, value);
}
Tensor zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}
Tensor ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1, dtype, device);
}
Tensor empty_like(const Tensor& x, std::optional<DType> dtype) {
  return x.like(dtype.value_or(x.dtype()));
}
Tensor zeros_like(const Tensor& x, std::optional<DType> dtype) { return full_like(x, 0, dtype); }
Tensor ones_like(const Tensor& x, std::optional<DType> dtype) { return full_like(x, 1, dtype); }
Tensor full_like(const Tensor& x, double value, std::optional<DType> dtype) {
  return full(x.shape(), value, dtype.value_or(x.dtype()), x.device());
}

template <detail::Number T>
Tensor from_data(const T* data, const Shape& shape) {
  using E = decltype(element_for<T>());
  Tensor y(shape, dtype_of<E>(), Device::cpu());
  check(data || y.numel() == 0, "the data is a null pointer for {} elements", y.numel());
  std::transform(data, data + y.numel(), y.data<E>(), [](T value) {
    if constexpr (std::is_unsigned_v<T> && sizeof(T) == 8)
      check(value >> 63 == 0, "{} does not fit i64", value);
    return static_cast<E>(value);
  });
  return y.copied_to(DefaultDevice::current());
}
#define MIXTAPE_FROM(T) template Tensor from_data(const T*, const Shape&);
MIXTAPE_NUMBERS(MIXTAPE_FROM)
#undef MIXTAPE_FROM
Tensor from_data(const std::vector<bool>& data) {
  const Tensor y({static_cast<int64_t>(data.size())}, boolean, Device::cpu());
  std::ranges::copy(data, y.data<bool>());
  return y.copied_to(DefaultDevice::current());
}

Tensor arange(double start, double stop, double step, DType dtype, Device device) {
  check(step != 0 && std::isfinite(step) && std::isfinite(stop - start),
        "step and range must be finite and step not 0, got {} to {} by {}", start, stop, step);
  const double n = std::max(0.0, std::ceil((stop - start) / step));
  check(n <= 0x1p53, "{} to {} by {} has too many elements: {}", start, stop, step, n);
  check(is_float(dtype) || (start == std::trunc(start) && holds(i64, step)),
        "start {} and step {} must be whole in {} (give a float dtype after the step)", start, step,
        dtype);
  for (const double end : {start, n > 0 ? start + (n - 1) * step : start}) check_fits(dtype, end);
  return made(kernels::arange, Shape{static_cast<int64_t>(n)}, dtype, device, start, step);
}
Tensor arange(double stop, DType dtype, Device device) { return arange(0, stop, 1, dtype, device); }

Tensor linspace(double start, double stop, int64_t n, DType dtype, Device device) {
  check(n >= 0 && std::isfinite(stop - start),
        "n must be >= 0 and the range finite, got {} numbers from {} to {}", n, start, stop);
  return made(kernels::linspace, Shape{n}, dtype, device, start, stop);
}

Tensor logspace(double start, double stop, int64_t n, double base, DType dtype, Device device) {
  const Scope scope("logspace");
  return cast(pow(base, linspace(start, stop, n, f64, device)), dtype);
}

Tensor eye(int64_t rows, int64_t columns, DType dtype, Device device) {
  Tensor y = zeros({rows, columns}, dtype, device);
  const Layout places(Shape{std::min(rows, columns)}, Shape{columns + 1});
  kernels::fill(device, 1, y.with_layout(places));
  return y;
}
Tensor eye(int64_t n, DType dtype, Device device) { return eye(n, n, dtype, device); }

Tensor tril_indices(int64_t rows, int64_t columns, int64_t diagonal, Device device) {
  return places_of(tril(ones({rows, columns}, boolean, Device::cpu()), diagonal), device);
}
Tensor triu_indices(int64_t rows, int64_t columns, int64_t diagonal, Device device) {
  return places_of(triu(ones({rows, columns}, boolean, Device::cpu()), diagonal), device);
}

Tensor uniform(const Shape& shape, double low, double high, DType dtype, Device device) {
  check(low <= high && std::isfinite(high - low),
        "low must be <= high and the range finite, got {} and {}", low, high);
  return drawn(kernels::random_uniform, shape, low, high, dtype, device);
}
Tensor rand(const Shape& shape, DType dtype, Device device) {
  return uniform(shape, 0, 1, dtype, device);
}
Tensor normal(const Shape& shape, double mean, double std, DType dtype, Device device) {
  check(std >= 0, "the standard deviation must be >= 0, got {}", std);
  return drawn(kernels::random_normal, shape, mean, std, dtype, device);
}
Tensor randn(const Shape& shape, DType dtype, Device device) {
  return normal(shape, 0, 1, dtype, device);
}

Tensor rand_like(const Tensor& x, std::optional<DType> dtype) {
  return rand(x.shape(), dtype.value_or(x.dtype()), x.device());
}
Tensor randn_like(const Tensor& x, std::optional<DType> dtype) {
  return randn(x.shape(), dtype.value_or(x.dtype()), x.device());
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype, Device device) {
  check(low < high, "low must be < high, got {} and {}", low, high);
  check_whole(dtype, low, high - 1);
  const Tensor y(shape, i64, device);
  const Draw draw = generator().draw(y.numel());
  if (kernels::RandomInteger(low, high).is_wide()) generator().reserve(y.numel());
  kernels::random_integer(device, draw, low, high, y);
  return cast(y, dtype);
}

Tensor randperm(int64_t n, Device device) {
  check(n >= 0, "n must be >= 0, got {}", n);
  const Tensor y = arange(0, static_cast<double>(n), 1, i64, Device::cpu());
  using Limits = std::numeric_limits<int64_t>;
  const Tensor draws = randint(Limits::min(), Limits::max(), {n}, i64, Device::cpu());
  int64_t* const p = y.data<int64_t>();
  const int64_t* const draw = draws.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) {  // Fisher and Yates
    const uint64_t bits = static_cast<uint64_t>(draw[i]);
    const kernels::RandomInteger at(0, i + 1);
    std::swap(p[i], p[at(static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(bits))]);
  }
  return y.to(device);
}

Tensor multinomial(const Tensor& weights, int64_t n, bool replacement) {
  const Scope scope("multinomial");
  check(weights.rank() > 0 && is_float(weights.dtype()),
        "weights must be floats [..., classes], got {} {}", weights.dtype(), weights.shape());
  const NoGrad off;
  const Tensor w = is_half(weights.dtype()) ? cast(weights, f32) : weights;
  Shape shape = w.shape();
  const int64_t classes = shape[-1];
  if (n == 0 || (w.numel() == 0 && classes > 0)) {  // no draws or no rows
    shape[-1] = n;
    return empty(shape, i64, w.device());
  }
  const double least = classes == 0 ? 0 : min(w).item(), most = classes == 0 ? 0 : max(w).item();
  check(least >= 0 && std::isfinite(most), "weights must be >= 0 and finite, got {} to {}", least,
        most);
  const double possible = classes == 0 ? 0 : min(sum(gt(w, 0), {-1})).item();
  check(n >= 0 && possible >= static_cast<double>(replacement ? n > 0 : n),
        "cannot draw {} of {} classes whose weight is above zero", n, possible);
  const Tensor p = w / max(w, {-1}, true);  // so that sums and quotients are finite
  // Sorting classes by p / E, with E exponential, gives the order of successive draws.
  if (!replacement) {
    const Tensor above_zero = fine_rand(shape, w.dtype(), w.device()) + 0x1p-49;
    return topk(p / -log(above_zero), n).indices;
  }
  // The class of a uniform number is how many sums do not exceed it (the last one does), by binary
  // search.
  const Tensor sums = cumsum(cast(p, f64), -1);
  shape[-1] = n;
  const Tensor drawn = fine_rand(shape, f64, w.device()) * narrow(sums, -1, classes - 1, 1);
  Tensor counted = zeros(shape, i64, w.device());
  for (uint64_t step = std::bit_floor(uint64_t(classes)); step > 0; step /= 2) {
    const Tensor more = counted + double(step), at = clamp(more, {}, double(classes)) - 1.0;
    counted = where(gt(gather_unchecked(sums, w.rank() - 1, at), drawn), counted, more);
  }
  return counted;
}

Tensor bernoulli(const Tensor& p) {
  const Scope scope("bernoulli");
  check(is_float(p.dtype()), "probabilities must be floats, got {}", p.dtype());
  const NoGrad off;
  check_probabilities(p, false);
  const DType wide = is_half(p.dtype()) ? f32 : p.dtype();
  return cast(lt(fine_rand(p.shape(), wide, p.device()), cast(p, wide)), p.dtype());
}

namespace {
// Counts events at random times until the one of which `rate` are expected.
double few_events(RandomGenerator& g, double rate) {
  const double end = std::exp(-rate);
  double n = 0, left = g.uniform();
  for (; left > end; left *= g.uniform()) ++n;
  return n;
}
// The same for a rate from 10 on, by rejection from a table mountain (Hoermann 1993, PTRS).
double many_events(RandomGenerator& g, double rate) {
  const double b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b,
               inverse = 1.1239 + 1.1328 / (b - 3.4), inner = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    const double u = g.uniform() - 0.5, v = g.uniform(), edge = 0.5 - std::abs(u),
                 n = std::floor((2 * a / edge + b) * u + rate + 0.43);
    if (edge >= 0.07 && v <= inner) return n;
    if (n < 0 || (edge < 0.013 && v > edge)) continue;
    const double chance = std::log(v * inverse / (a / (edge * edge) + b));
    if (chance <= n * std::log(rate) - rate - kernels::math::lgamma(n + 1)) return n;
  }
}
}  // namespace
Tensor poisson(const Tensor& rate) {
  const Scope scope("poisson");
  check(is_float(rate.dtype()), "rates must be floats, got {}", rate.dtype());
  std::vector<double> each = to_vector(rate);
  RandomGenerator& g = generator();
  for (double& x : each) {
    check(x >= 0 && x <= 0x1p31, "rates must be from 0 to 2^31, got {}", x);
    x = x < 10 ? few_events(g, x) : many_events(g, x);
  }
  return from(each, rate.shape(), rate.dtype()).to(rate.device());
}

Tensor ops::one_hot_or_zeros(const Tensor& index, int64_t classes, DType dtype) {
  return cast(eq(unsqueeze(index, index.rank()),
                 arange(0, static_cast<double>(classes), 1, i64, index.device())),
              dtype);
}
Tensor one_hot(const Tensor& given, int64_t classes, DType dtype) {
  const Scope scope("one_hot");
  const Tensor index = as_index(given);
  if (classes == -1) {
    check(index.numel() > 0, "without indices, the number of classes must be given");
    classes = one_past_largest(index);
  }
  check_range(index, 0, classes, [classes](int64_t i) {
    return i < 0 ? fmt::format("indices must be >= 0, got {}", i)
                 : fmt::format("index {} is out of range for {} classes", i, classes);
  });
  return one_hot_or_zeros(index, classes, dtype);
}

}  // namespace mixtape
