// Checks of dtypes, shapes and elements. Checks of elements read back only the extremes.
#include "autograd/ops/checks.h"

#include <fmt/format.h>

#include "core/readback.h"
#include "kernels/kernels.h"

namespace mixtape::ops {
using namespace internal;

void check_real(const Tensor& t) {
  check(is_float(t.dtype()), "elements must be floats, got {} (convert them to a float dtype)",
        t.dtype());
}
void check_numeric(const Tensor& t) {
  check(t.dtype() != boolean,
        "elements must be numbers, got bool (convert them to a number dtype)");
}
void check_batch(const Tensor& x, int rank) {
  constexpr std::string_view sizes[] = {"l", "h, w", "d, h, w"};
  check(x.rank() == rank, "the input has shape {0}, not [n, c, {1}] or [c, {1}]", x.shape(),
        sizes[rank - 3]);
}
void check_counted(std::string_view what, std::initializer_list<int64_t> sizes) {
  double all = 1;
  for (const int64_t n : sizes) all *= double(n);
  check(all <= 0x1p31 - 8, "{} of {} elements, which are counted in 32 bits", what, Shape(sizes));
}
void check_shape(const Tensor& t, std::string_view what, const Shape& shape) {
  if (t) check(t.shape() == shape, "{} has shape {}, not {}", what, t.shape(), shape);
}
void check_weight(const Tensor& x, const Tensor& weight, std::string_view names) {
  check(weight.rank() == 2, "the weight has shape {}, not {}", weight.shape(), names);
  check(x.size(-1) == weight.size(1), "the input has {} features, the weight {} takes {}",
        x.size(-1), weight.shape(), weight.size(1));
}
void check_number(DType t, double s) {
  check(is_float(t) || holds(i64, s),
        "cannot combine {} elements with {} (convert them to a float dtype)", t, s);
}
void check_fits(DType t, double value) {
  check(holds(t, value), "{} does not fit elements of {}", value, t);
}

Tensor as_index(const Tensor& t, std::string_view what) {
  check(is_integer(t.dtype()), "{} must be integers, got {}", what, t.dtype());
  return cast(t, i64);
}
int64_t one_past_largest(const Tensor& index) {
  const auto largest = max(index).item<int64_t>();
  check(largest < std::numeric_limits<int64_t>::max(), "{} is too large to be counted", largest);
  return largest + 1;
}
void check_range(const Tensor& index, int64_t low, int64_t end,
                 const std::function<std::string(int64_t)>& problem, SourceLocation where) {
  if (index.numel() == 0) return;
  const Tensor bounds({2}, i64, index.device());
  Layout distinct = index.layout();  // without the repeats of an expand(), as for slices of rows
  for (int d = 0; d < distinct.rank(); ++d)
    if (distinct.strides[d] == 0) distinct.shape[d] = 1;
  kernels::bounds(index.device(), index.with_layout(distinct), bounds);
  const auto verdict = [=](const void* values) {
    const auto* const b = static_cast<const int64_t*>(values);
    return b[0] < low ? problem(b[0]) : b[1] >= end ? problem(b[1]) : std::string();
  };
  const bool none = end <= low;  // kernels then have no valid element to use instead
  check_later(bounds.raw(), 16, index.device(), verdict, where, /*wait=*/none);
}

void check_index_range(const Tensor& index, int dim, int64_t low, int64_t size) {
  check_range(index, low, size, [=](int64_t i) {
    return fmt::format("index {} is out of range for dimension {} of size {}", i, dim, size);
  });
}

void check_targets(const Tensor& targets, int64_t classes) {
  check_range(targets, 0, classes, [classes](int64_t target) {
    return fmt::format("target {} is out of range for {} classes", target, classes);
  });
}
void check_lengths(const Tensor& lengths, std::string_view what, int64_t longest) {
  check_range(lengths, 0, longest + 1, [=](int64_t length) {
    return fmt::format("{} must be from 0 to {}, got {}", what, longest, length);
  });
}

void check_probabilities(const Tensor& p, bool nan_passes, SourceLocation where) {
  if (p.numel() == 0 || !is_float(p.dtype())) return;
  const DType dtype = accumulate_dtype(p.dtype());
  const Tensor bounds({2}, dtype, p.device());
  Layout one(p.shape());
  for (int d = 0; d < p.rank(); ++d) one.shape.dim[d] = 1;
  kernels::reduce(p.device(), kernels::Reduce::Min, p, bounds.with_layout(one));
  kernels::reduce(p.device(), kernels::Reduce::Max, p, bounds.with_layout(one.at_offset(1)));
  const auto verdict = [wide = dtype == f64, nan_passes](const void* found) {
    const auto at = [=](int i) {
      return wide ? static_cast<const double*>(found)[i]
                  : double(static_cast<const float*>(found)[i]);
    };
    const bool fit = nan_passes ? !(at(0) < 0 || at(1) > 1) : at(0) >= 0 && at(1) <= 1;
    return fit ? std::string()
               : fmt::format("probabilities must be from 0 to 1, got {} to {}", at(0), at(1));
  };
  check_later(bounds.raw(), 2 * size_of(dtype), p.device(), verdict, where);
}

}  // namespace mixtape::ops
