// Order: kernels sort and select positions, which have no gradient. Values are gathered from these
// positions, and so get gradients. Also order statistics and counts, composed of other ops.

#include <cmath>
#include <type_traits>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct Argsort {  // along the last dimension
  static constexpr OpInfo info{"argsort"};
  static Tensor forward(Ctx& ctx, const Tensor& x, bool descending) {
    const Tensor y = ctx.output(x.shape(), i64), xc = x.contiguous();
    ctx.run(kernels::argsort, descending, xc, y);
    return y;
  }
};

struct TopK {  // along the last dimension
  static constexpr OpInfo info{"topk"};
  static Tensor forward(Ctx& ctx, const Tensor& x, int64_t k, bool largest) {
    const Tensor y = ctx.output(with_size(x.shape(), -1, k), i64), xc = x.contiguous();
    ctx.run(kernels::topk, largest, xc, y);
    return y;
  }
};

struct Median {  // of a 1-d tensor; NaN if it is empty, as in PyTorch
  static constexpr OpInfo info{"median", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    const Tensor y =
        x.numel() == 0 && is_float(x.dtype()) ? number_like(x, std::nan("")) : median(x, 0).values;
    ctx.save(x);
    ctx.save_result(y);
    return y;
  }
  // All elements equal to the median share its gradient.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor x = ctx.saved(0), y = ctx.saved(1);
    return {share_among(dy, logical_or(eq(x, y), logical_and(isnan(x), isnan(y))), {.dims = 1})};
  }
};

// The op applied with dimension dim as the last one.
template <class Op, class... A>
Tensor over_lines(int dim, const Tensor& x, const A&... args) {
  check(x.size(dim) < int64_t{1} << 32, "a row must have fewer than 2^32 elements, got {}",
        x.size(dim));  // kernels keep positions in 32 bits
  if (dim == x.rank() - 1) return call<Op>(x, args...);
  return transpose(call<Op>(transpose(x, dim, -1), args...), dim, -1);
}

void check_elements(const Tensor& x, int dim) {
  check(x.size(dim) > 0, "dimension {} of {} has no elements", dim, x.shape());
}

// The number of elements along a dimension that are not NaN, f64.
Tensor numbers_along(const Tensor& x, int dim) {
  return cast(sum(logical_not(isnan(x)), {dim}, true), f64);
}

// The elements of x at these indices, and the indices; without keepdim, less dim, of size 1.
Sorted picked(const Tensor& x, int dim, const Tensor& indices, bool keepdim) {
  const Tensor values = gather_unchecked(x, dim, indices);
  return keepdim ? Sorted{values, indices} : Sorted{squeeze(values, dim), squeeze(indices, dim)};
}

// The middle element along a dimension; with a NaN the last one, or the middle of the others.
Sorted middle(const Tensor& given, int along, bool keepdim, bool without_nan) {
  return along_line(given, along, [&](const Tensor& x, int dim) {
    check_elements(x, dim);
    const int64_t n = x.size(dim);
    const Tensor order = argsort(x, dim), last = narrow(order, dim, n - 1, 1);
    Tensor indices = narrow(order, dim, (n - 1) / 2, 1);
    if (without_nan)
      indices = gather_unchecked(order, dim,
                                 cast(clamp((numbers_along(x.detach(), dim) - 1) / 2, 0), i64));
    else if (is_float(x.dtype()))
      indices = where(isnan(gather_unchecked(x.detach(), dim, last)), last, indices);
    return picked(x, dim, indices, keepdim);
  });
}

// A position among sorted elements, moved to that at which linear interpolation gives the result of
// another kind.
template <class P>
P placed(const P& position, std::string_view kind) {
  using std::ceil, std::floor;
  if (kind == "lower") return floor(position);
  if (kind == "higher") return ceil(position);
  if (kind == "midpoint") return (floor(position) + ceil(position)) * 0.5;
  if (kind == "linear") return position;
  check(kind == "nearest",
        "interpolation must be \"linear\", \"lower\", \"higher\", \"nearest\" or \"midpoint\", got "
        "\"{}\"",
        kind);
  if constexpr (std::is_same_v<P, double>)
    return std::nearbyint(position);  // ties to even, as round() of tensors
  else
    return round(position);
}

// The q-quantile of the first `count` of sorted elements; each line has its own count, in f64.
Tensor quantile_of_first(const Tensor& sorted, const Tensor& count, double q, int dim,
                         std::string_view kind) {
  const Tensor position = placed(clamp((count - 1) * q, 0), kind), part = frac(position);
  const auto at = [&](const Tensor& i) {
    return cast(gather_unchecked(sorted, dim, cast(i, i64)), f64);
  };
  const Tensor low = at(floor(position)), between = low * (1 - part) + at(ceil(position)) * part;
  return cast(where(eq(part, 0), low, between), sorted.dtype());
}

// The q-quantile along a dimension for each q, of all elements or of those that are not NaN.
std::vector<Tensor> quantiles(const Tensor& given, const std::vector<double>& each, int along,
                              bool keepdim, std::string_view kind, bool without_nan) {
  check_real(given);
  for (const double q : each) check(q >= 0 && q <= 1, "q must be from 0 to 1, got {}", q);
  const Tensor x = as_line(given);
  const int dim = wrap_line(along, given.rank());
  check_elements(x, dim);
  const int64_t n = x.size(dim);
  const Tensor sorted = sort(x, dim).values;
  const auto at = [&](int64_t i) { return narrow(sorted, dim, i, 1); };
  // Part of the way from one element to the next. (lerp() subtracts them: with infinities, NaN.)
  const auto between = [&](int64_t i, double part) {
    const Tensor low = at(i), high = at(i + 1), y = lerp(low, high, part);
    return where(isnan(y), low * (1 - part) + high * part, y);
  };
  const Tensor largest = at(n - 1), missing = isnan(largest),
               count = without_nan ? numbers_along(x.detach(), dim) : Tensor();
  std::vector<Tensor> results;
  for (const double q : each) {
    Tensor y;
    if (without_nan) {
      y = quantile_of_first(sorted, count, q, dim, kind);
    } else {
      const double position = placed(q * double(n - 1), kind), below = std::floor(position);
      const auto i = static_cast<int64_t>(below);
      y = where(missing, largest, position == below ? at(i) : between(i, position - below));
    }
    results.push_back(keepdim && given.rank() > 0 ? y : squeeze(y, dim));
  }
  return results;
}
Tensor quantiles(const Tensor& x, const Tensor& q, int dim, bool keepdim, std::string_view kind,
                 bool without_nan) {
  check(q.rank() <= 1 && q.numel() > 0, "q has shape {}, not [] or [k]", q.shape());
  const std::vector<Tensor> each = quantiles(x, to_vector(q), dim, keepdim, kind, without_nan);
  return q.rank() == 0 ? each[0] : stack(each);
}

// The runs of equal neighbours in v, [n] or rows [n, m]: the value of each, the run of each
// element, and lengths.
Unique runs_of(const Tensor& v) {
  const int64_t n = v.size(0);
  const Device device = v.device();
  if (n == 0) return {v.clone(), zeros({0}, i64, device), zeros({0}, i64, device)};
  const Tensor unequal = ne(narrow(v, 0, 1, n - 1), narrow(v, 0, 0, n - 1));
  const Tensor differs = cast(v.rank() == 1 ? unequal : any(unequal, {1}), i64);
  const Tensor starts = flatten(nonzero(cat({ones({1}, i64, device), differs})));
  const Tensor ends = cat({slice(starts, 0, 1), full({1}, double(n), i64, device)});
  return {index_select(v, 0, starts), cumsum(cat({zeros({1}, i64, device), differs}), 0),
          ends - starts};
}

// f of the slices of a dimension as rows [n, m], with its values as slices again.
template <class F>
Unique of_slices(const Tensor& given, int along, const F& f) {
  const Tensor x = as_line(given.detach());
  const int dim = wrap_line(along, given.rank());
  const Tensor slices = movedim(x, {dim}, {0});
  Shape shape = slices.shape();
  int64_t size = 1;
  for (int d = 1; d < shape.rank; ++d) size *= shape[d];
  auto [values, inverse, counts] = f(reshape(slices, {shape[0], size}));
  shape[0] = values.size(0);
  return {movedim(reshape(values, shape), {0}, {dim}), inverse, counts};
}

// The runs of elements or rows x in this order, and for each of x its run.
Unique runs_in_order(const Tensor& sorted, const Tensor& order) {
  const auto [values, run, counts] = runs_of(sorted);
  return {values, scatter(zeros_like(run), 0, order, run), counts};
}

}  // namespace

Tensor argsort(const Tensor& x, int dim, bool descending) {
  const Scope scope(Argsort::info.name);
  return along_line(x, dim,
                    [&](const Tensor& t, int d) { return over_lines<Argsort>(d, t, descending); });
}
Sorted sort(const Tensor& x, int dim, bool descending) {
  const Scope scope("sort");
  return along_line(x, dim, [&](const Tensor& t, int d) {
    return picked(t, d, argsort(t, d, descending), true);
  });
}
Sorted topk(const Tensor& x, int64_t k, int dim, bool largest) {
  const Scope scope(TopK::info.name);
  return along_line(x, dim, [&](const Tensor& t, int d) {
    check(k >= 0 && k <= t.size(d), "k must be from 0 to {}, got {}", t.size(d), k);
    const int64_t least = x.rank() == 0 ? 1 : 0;  // a 0-d result has one element
    return picked(t, d, over_lines<TopK>(d, t, std::max(k, least), largest), true);
  });
}

Sorted median(const Tensor& x, int dim, bool keepdim) {
  const Scope scope("median");
  return middle(x, dim, keepdim, false);
}
Tensor median(const Tensor& x) {
  const Scope scope(Median::info.name);
  return call<Median>(flatten(x));
}
Sorted nanmedian(const Tensor& x, int dim, bool keepdim) {
  const Scope scope("nanmedian");
  return middle(x, dim, keepdim, true);
}
Tensor nanmedian(const Tensor& x) {
  const Scope scope("nanmedian");
  return median(masked_select(x, logical_not(isnan(x))));
}

Sorted kthvalue(const Tensor& given, int64_t k, int along, bool keepdim) {
  const Scope scope("kthvalue");
  return along_line(given, along, [&](const Tensor& x, int dim) {
    const int64_t n = x.size(dim);
    check(k >= 1 && k <= n, "k must be from 1 to {}, got {}", n, k);
    return picked(x, dim, narrow(topk(x.detach(), k, dim, false).indices, dim, k - 1, 1), keepdim);
  });
}

// Counts, for each sorted element, the equal ones up to it. The count is largest at the end of the
// longest run; of several runs, the first has the smallest value.
Sorted mode(const Tensor& given, int along, bool keepdim) {
  const Scope scope("mode");
  return along_line(given, along, [&](const Tensor& x, int dim) {
    check_elements(x, dim);
    const int64_t n = x.size(dim);
    const Tensor order = argsort(x, dim), sorted = gather_unchecked(x.detach(), dim, order);
    Shape one_line;
    for (int d = 0; d < x.rank(); ++d) one_line.push_back(d == dim ? n : 1);
    const Tensor place =
        expand(reshape(arange(0, double(n), 1, i64, x.device()), one_line), x.shape());
    const Tensor differs = ne(narrow(sorted, dim, 1, n - 1), narrow(sorted, dim, 0, n - 1));
    const Tensor first = zeros(with_size(x.shape(), dim, 1), i64, x.device());
    const Tensor begin =
        cummax(cat({first, where(differs, narrow(place, dim, 1, n - 1), 0)}, dim), dim).values;
    const Tensor end = argmax(place - begin, dim, true);
    return picked(x, dim, gather_unchecked(order, dim, end), keepdim);
  });
}

Tensor quantile(const Tensor& x, double q, int dim, bool keepdim, std::string_view kind) {
  const Scope scope("quantile");
  return quantiles(x, std::vector{q}, dim, keepdim, kind, false)[0];
}
Tensor quantile(const Tensor& x, double q, std::string_view kind) {
  return quantile(flatten(x), q, 0, false, kind);
}
Tensor quantile(const Tensor& x, const Tensor& q, int dim, bool keepdim, std::string_view kind) {
  const Scope scope("quantile");
  return quantiles(x, q, dim, keepdim, kind, false);
}
Tensor quantile(const Tensor& x, const Tensor& q, std::string_view kind) {
  return quantile(flatten(x), q, 0, false, kind);
}
Tensor nanquantile(const Tensor& x, double q, int dim, bool keepdim, std::string_view kind) {
  const Scope scope("nanquantile");
  return quantiles(x, std::vector{q}, dim, keepdim, kind, true)[0];
}
Tensor nanquantile(const Tensor& x, double q, std::string_view kind) {
  return nanquantile(flatten(x), q, 0, false, kind);
}
Tensor nanquantile(const Tensor& x, const Tensor& q, int dim, bool keepdim, std::string_view kind) {
  const Scope scope("nanquantile");
  return quantiles(x, q, dim, keepdim, kind, true);
}
Tensor nanquantile(const Tensor& x, const Tensor& q, std::string_view kind) {
  return nanquantile(flatten(x), q, 0, false, kind);
}

Unique unique(const Tensor& x) {
  const Scope scope("unique");
  const Sorted all = sort(flatten(x.detach()), 0);
  const auto [values, run, counts] = runs_in_order(all.values, all.indices);
  return {values, reshape(run, x.shape()), counts};
}
// Sorts rows by their last element, then the one before, ...: the sort is stable.
Unique unique(const Tensor& x, int dim) {
  const Scope scope("unique");
  return of_slices(x, dim, [](const Tensor& rows) {
    Tensor order = arange(0, double(rows.size(0)), 1, i64, rows.device());
    for (int64_t column = rows.size(1); column-- > 0;) {
      const Tensor keys = index_select(select(rows, 1, column), 0, order);
      order = index_select(order, 0, argsort(keys, 0));
    }
    return runs_in_order(index_select(rows, 0, order), order);
  });
}
Unique unique_consecutive(const Tensor& x) {
  const Scope scope("unique_consecutive");
  const auto [values, run, counts] = runs_of(flatten(x.detach()));
  return {values, reshape(run, x.shape()), counts};
}
Unique unique_consecutive(const Tensor& x, int dim) {
  const Scope scope("unique_consecutive");
  return of_slices(x, dim, runs_of);
}

Tensor bincount(const Tensor& given, const Tensor& weights, int64_t least) {
  const Scope scope("bincount");
  const Tensor x = as_index(given, "numbers");
  check(x.rank() == 1, "the numbers have shape {}, not [n]", x.shape());
  check(least >= 0, "least must be >= 0, got {}", least);
  if (weights) check_shape(weights, "weights", x.shape());
  const bool none = x.numel() == 0;
  const int64_t smallest = none ? 0 : min(x).item<int64_t>();
  check(smallest >= 0, "numbers must be >= 0, got {}", smallest);
  const int64_t size = std::max(least, none ? 0 : one_past_largest(x));
  const Tensor each = !weights                    ? ones({x.numel()}, i64, x.device())
                      : is_float(weights.dtype()) ? weights
                                                  : cast(weights, i64);
  return scatter_add(zeros({size}, each.dtype(), x.device()), 0, x, each);
}

// Sorts both together and counts the sorted numbers before each value.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right) {
  const Scope scope("searchsorted");
  const Tensor s = sorted.detach(), v = s.rank() == 1 ? flatten(values.detach()) : values.detach();
  check(s.rank() > 0 && v.rank() == s.rank() &&
            with_size(v.shape(), -1, 1) == with_size(s.shape(), -1, 1),
        "numbers of shape {} for values of shape {}, not [n], or [..., n] for [..., m]", s.shape(),
        values.shape());
  const int64_t n = s.size(-1), m = v.size(-1);
  // The sort is stable: ties keep their order.
  const Tensor order = argsort(right ? cat({s, v}, -1) : cat({v, s}, -1));
  const Tensor before = cumsum(cast(right ? lt(order, double(n)) : ge(order, double(m)), i64), -1);
  const Tensor all = scatter(zeros_like(before), -1, order, before);
  return reshape(narrow(all, -1, right ? n : 0, m), values.shape());
}

}  // namespace mixtape
