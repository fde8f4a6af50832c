// Statistics composed of reductions, sorts and scans.

#include <cmath>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// The mean products of all variables' deviations from their means over the last dimension,
// [variables, observations] -> [variables, variables]. Each observation counts as often as its
// weight says, if there are weights.
Tensor covariance(const Tensor& x, const CovOptions& o) {
  const NoPolicy in_its_own_dtype;  // since it sums small numbers of both signs
  const int64_t n = x.size(1);
  Tensor weights;
  if (o.fweights) weights = cast(o.fweights, x.dtype());
  if (o.aweights) {
    const Tensor a = cast(o.aweights, x.dtype());
    weights = weights ? weights * a : a;
  }
  if (!weights) {
    const Tensor apart = x - mean(x, {1}, true);
    return matmul(apart, apart.t()) / double(std::max<int64_t>(0, n - o.correction));
  }
  const Tensor total = sum(weights), apart = x - sum(x * weights, {1}, true) / total;
  const Tensor lost =
      o.aweights ? sum(weights * cast(o.aweights, x.dtype())) / total * double(o.correction)
                 : number_like(x, o.correction);
  return matmul(apart, (apart * weights).t()) / clamp(total - lost, 0, {});
}

void check_weights(const Tensor& weights, std::string_view what, int64_t n) {
  if (!weights) return;
  check_shape(weights, what, {n});
  check(!(n > 0 && min(weights).item() < 0), "{} must be >= 0", what);
}

// x as [variables, observations]: a 1-d x is one variable, and no observations are one NaN.
Tensor as_variables(const Tensor& x) {
  check(x.rank() <= 2, "the input has shape {}, not [variables, observations] or [observations]",
        x.shape());
  return x.rank() == 2 ? x : reshape(x, {1, x.numel()});
}

// A statistic of x and its mean, both of f32 elements, so that the sum of their gradients is
// rounded once.
template <class Both, class F>
Both with_mean(const Tensor& x, const Dims& dims, bool keepdim, const F& statistic) {
  const Tensor w = wide(x);
  const DType out = dtype_of_sum(x);
  return {cast(statistic(w), out), cast(mean(w, dims, keepdim), out)};
}

// The area between each two points: the mean of their y, times their distance.
Tensor areas(const Tensor& y, int dim, const Tensor& distances) {
  const int64_t n = std::max<int64_t>(0, y.size(dim) - 1);
  const Tensor sums = narrow(y, dim, y.size(dim) - n, n) + narrow(y, dim, 0, n);
  return sums * distances * 0.5;
}
// f of areas, from distances or points.
template <class F>
Tensor from_areas(const Tensor& y, double dx, int dim, const F& f) {
  return in_wider([&](const Tensor& w) { return f(areas(w, dim, number_like(w, dx))); }, y);
}
template <class F>
Tensor from_areas(const Tensor& y, const Tensor& x, int dim, const F& f) {
  const int d = wrap_dim(dim, y.rank());
  check(x.shape() == y.shape() || x.shape() == Shape{y.size(d)},
        "points of shape {} for values of shape {}: neither the same nor [{}]", x.shape(),
        y.shape(), y.size(d));
  return in_wider(
      [&](const Tensor& w, const Tensor& points) { return f(areas(w, d, diff(points, 1, d))); }, y,
      x.shape() == y.shape() ? x : laid_along(x, d, y.rank()));
}

}  // namespace

Tensor trapezoid(const Tensor& y, double dx, int dim) {
  const Scope scope("trapezoid");
  // If points are evenly spaced, all but the ends count in two areas.
  if (const int d = wrap_dim(dim, y.rank()); y.size(d) > 1 && is_float(y.dtype())) {
    const auto part = [&](int64_t i, int64_t n) {
      return sum_to(narrow(y, d, i, n), {.dims = 1u << d, .out = f64});
    };
    const Tensor ends = part(0, 1) + part(-1, 1);
    return cast(squeeze((part(1, y.size(d) - 2) + ends * 0.5) * dx, d), dtype_of_sum(y));
  }
  return from_areas(y, dx, dim, [dim](const Tensor& areas) { return sum(areas, dim); });
}
Tensor trapezoid(const Tensor& y, const Tensor& x, int dim) {
  const Scope scope("trapezoid");
  return from_areas(y, x, dim, [dim](const Tensor& areas) { return sum(areas, dim); });
}
Tensor cumulative_trapezoid(const Tensor& y, double dx, int dim) {
  const Scope scope("cumulative_trapezoid");
  return from_areas(y, dx, dim, [dim](const Tensor& areas) { return cumsum(areas, dim); });
}
Tensor cumulative_trapezoid(const Tensor& y, const Tensor& x, int dim) {
  const Scope scope("cumulative_trapezoid");
  return from_areas(y, x, dim, [dim](const Tensor& areas) { return cumsum(areas, dim); });
}

Tensor count_nonzero(const Tensor& x, const Dims& dims, bool keepdim) {
  const Scope scope("count_nonzero");
  return sum(x.dtype() == boolean ? x : ne(x, 0), dims, keepdim);
}
Tensor nansum(const Tensor& x, const Dims& dims, bool keepdim) {
  const Scope scope("nansum");
  return sum(is_float(x.dtype()) ? masked_fill(x, isnan(x), 0) : x, dims, keepdim);
}
Tensor nanmean(const Tensor& x, const Dims& dims, bool keepdim) {
  const Scope scope("nanmean");
  check_real(x);
  const auto mean_of = [&](const Tensor& w) {
    const Tensor count = sum(logical_not(isnan(w)), dims, keepdim);
    return nansum(w, dims, keepdim) / cast(count, w.dtype());
  };
  return in_wider(mean_of, x);
}

StdMean std_mean(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  const Scope scope("std_mean");
  return with_mean<StdMean>(x, dims, keepdim,
                            [&](const Tensor& w) { return stddev(w, dims, keepdim, correction); });
}
VarMean var_mean(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  const Scope scope("var_mean");
  return with_mean<VarMean>(x, dims, keepdim,
                            [&](const Tensor& w) { return var(w, dims, keepdim, correction); });
}
AminMax aminmax(const Tensor& x, const Dims& dims, bool keepdim) {
  const Scope scope("aminmax");
  return {min(x, dims, keepdim), max(x, dims, keepdim)};
}

Tensor cov(const Tensor& given, const CovOptions& o) {
  const Scope scope("cov");
  check_real(given);
  const Tensor x = as_variables(given);
  if (o.fweights)
    check(is_integer(o.fweights.dtype()), "fweights must be integers, got {}", o.fweights.dtype());
  check_weights(o.fweights, "fweights", x.size(1));
  check_weights(o.aweights, "aweights", x.size(1));
  const auto scaled = [&](const Tensor& w) {  // sums of products may leave the range
    const Tensor scale = clamp(scale_of(w, reduce_options({1}, 2)), 1, 0x1p16);
    return covariance(w / scale, o) * scale * scale.t();
  };
  const Tensor y = in_f32(scaled, x);
  return x.size(0) == 1 ? reshape(y, {}) : y;
}
// Rescales variables, which does not matter here, since their squares might leave the range.
Tensor corrcoef(const Tensor& given) {
  const Scope scope("corrcoef");
  check_real(given);
  const Tensor x = as_variables(given);
  const auto ratio = [](const Tensor& w) {
    const Tensor c = covariance(w / scale_of(w, reduce_options({1}, 2)), {}), s = sqrt(diagonal(c));
    return clamp(c / unsqueeze(s, 1) / s, -1, 1);
  };
  const Tensor y = in_f32(ratio, x);
  return x.size(0) == 1 ? reshape(y, {}) : y;
}

Tensor histc(const Tensor& x, int64_t bins, double low, double high) {
  const Scope scope("histc");
  const NoGrad off;
  check_real(x);
  check(bins > 0 && countable({bins}), "bins must be > 0 and below 2^31, got {}", bins);
  check(low <= high && std::isfinite(high - low),
        "the range must be finite and ascending, got {} to {}", low, high);
  const Tensor v = wide(flatten(x.detach()));
  Tensor from = number_like(v, low), to = number_like(v, high);
  if (low == high && v.numel() > 0) {  // the range of the numbers, or 1 around one of them
    from = min(v);
    to = max(v);
    const double first = from.item(), last = to.item();
    check(std::isfinite(first) && std::isfinite(last),
          "the range must be finite and ascending, got {} to {}", first, last);
  }
  const Tensor none = cast(eq(from, to), v.dtype());
  from = from - none;
  to = to + none;
  const Tensor inside = logical_and(ge(v, from), le(v, to));
  const Tensor unit = scale_of(stack({from, to}));  // their difference may be infinite
  const Tensor start = from / unit, part = (v / unit - start) / (to / unit - start);
  const Tensor bin = clamp(floor(part * double(bins)), 0, double(bins - 1));
  // (The others go to a bin of their own.)
  const Tensor at = cast(where(inside, bin, double(bins)), i64);
  const Tensor counts = scatter_add(zeros({bins + 1}, v.dtype(), v.device()), 0, at, ones_like(v));
  return cast(narrow(counts, 0, 0, bins), x.dtype());
}

BoolTensor isin(const Tensor& elements, const Tensor& among, bool invert) {
  const Scope scope("isin");
  const NoGrad off;
  const Tensor x = flatten(elements.detach());
  const int64_t n = among.numel();
  Tensor found = zeros(x.shape(), boolean, x.device());
  if (n > 0) {
    const Tensor sorted = sort(flatten(among.detach()), 0).values;
    const Tensor at = clamp(searchsorted(sorted, x), {}, double(n - 1));
    found = eq(index_select_unchecked(sorted, 0, at), x);
  }
  found = reshape(found, elements.shape());
  return BoolTensor(invert ? logical_not(found) : found);
}

Tensor diff(const Tensor& given, int n, int dim, const Tensor& before, const Tensor& after) {
  const Scope scope("diff");
  check(n >= 0, "n must be >= 0, got {}", n);
  if (n == 0) return given;
  Tensor x = given;
  if (before) x = cat({before, x}, dim);
  if (after) x = cat({x, after}, dim);
  const auto differences = [&](Tensor y) {
    for (int i = 0; i < n && y.size(dim) > 0; ++i) {
      const int64_t size = y.size(dim) - 1;
      const Tensor later = narrow(y, dim, 1, size), earlier = narrow(y, dim, 0, size);
      y = y.dtype() == boolean ? logical_xor(later, earlier) : later - earlier;
    }
    return y;
  };
  return n > 1 ? in_f32(differences, x) : differences(x);
}

}  // namespace mixtape
