// Copies with elements in another order: three ops, and functions made of views, joining and
// indexing.

#include <algorithm>
#include <numeric>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct Flip {
  static constexpr OpInfo info{"flip"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, uint32_t dims) {
    const Tensor y = ctx.output(x.shape());
    Layout backwards = x.layout();
    for (int d = 0; d < x.rank(); ++d)
      if (dims >> d & 1) backwards = flip(backwards, d);
    ctx.run(kernels::convert, x.with_layout(backwards), y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, uint32_t dims) {
    return {call<Flip>(dy, dims)};
  }
};

template <bool upper>
struct Triangle {
  static constexpr OpInfo info{upper ? "triu" : "tril"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, int64_t diagonal) {
    check(x.rank() >= 2, "the input has shape {}, not [..., m, n]", x.shape());
    const Tensor y = ctx.output(x.shape(), x.dtype()), xc = x.contiguous();
    ctx.run(kernels::triangle, upper, diagonal, xc, y);
    return cast(y, ctx.dtype());
  }
  static Grads backward(const Ctx&, const Tensor& dy, int64_t diagonal) {
    return {call<Triangle>(dy, diagonal)};
  }
};

// {left, right} of the last dimension, then of the one before, ...
using Margins = std::vector<int64_t>;

struct Pad {  // by a constant; no margin is negative
  static constexpr OpInfo info{"pad"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, const Margins& margins, double value) {
    Shape shape = x.shape();
    for (size_t i = 0; i < margins.size(); ++i) shape[-1 - int(i / 2)] += margins[i];
    const Tensor y = image(ctx, shape, order_of(x));
    Layout inside = y.layout();
    for (int d = shape.rank - 1; size_t(shape.rank - 1 - d) < margins.size() / 2; --d) {
      const size_t i = 2 * size_t(shape.rank - 1 - d);
      const auto fill = [&](int64_t begin, int64_t end) {
        if (begin < end) ctx.run(kernels::fill, value, y.with_layout(slice(inside, d, begin, end)));
      };
      fill(0, margins[i]);
      fill(shape[d] - margins[i + 1], shape[d]);
      inside = slice(inside, d, margins[i], shape[d] - margins[i + 1]);
    }
    ctx.run(kernels::convert, x, y.with_layout(inside));
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Margins& margins, double) {
    Tensor dx = dy;
    for (size_t i = 0; i < margins.size(); i += 2) {
      const int d = dy.rank() - 1 - int(i / 2);
      dx = narrow(dx, d, margins[i], ctx.shape(0)[d]);
    }
    return {dx};
  }
};

// The source index of each element of a padded dimension of n, for modes other than Constant.
// Inside, element i has index i; in a margin, indices continue from the edge in steps of 1, 0 or
// -1. With Circular they wrap around, to what a negative margin on the other side leaves.
Tensor source_of(PadMode mode, int64_t n, int64_t left, int64_t right, Device device) {
  const bool circular = mode == PadMode::Circular, replicate = mode == PadMode::Replicate;
  const int64_t period = n + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0),
                most = mode == PadMode::Reflect ? n - 1
                       : circular               ? period
                                                : n;
  check(replicate ? n > 0 : left <= most && right <= most,
        "margins of {} and {} elements cannot come from {}", left, right, n);
  const Tensor index({left + n + right}, i64, device);
  // Elements [begin, end): element i has first + i step.
  const auto run = [&](int64_t begin, int64_t end, int64_t first, int64_t step) {
    if (begin >= end) return;
    kernels::arange(device, double(first + begin * step), double(step),
                    index.with_layout(Layout({end - begin}).at_offset(begin + left)));
  };
  const int64_t step = circular ? 1 : replicate ? 0 : -1, end = n + right;
  run(-left, std::min<int64_t>(0, end), circular ? period : 0, step);
  run(std::max<int64_t>(0, -left), std::min(n, end), 0, 1);
  run(std::max(n, -left), end, circular ? -period : replicate ? n - 1 : 2 * (n - 1), step);
  return index;
}

std::vector<Tensor> mapped(std::vector<Tensor> parts, Tensor (*f)(const Tensor&)) {
  for (Tensor& part : parts) part = f(part);
  return parts;
}

// The shape with dimension dim repeated.
Shape repeated(const Shape& shape, int dim, int64_t times) {
  Shape longer = shape;
  int64_t& n = longer[wrap_dim(dim, shape.rank)];
  check(times >= 0 && !__builtin_mul_overflow(n, times, &n),
        "cannot repeat dimension {} of {} {} times", dim, shape, times);
  return longer;
}

}  // namespace

Tensor flip(const Tensor& x, const Dims& dims) {
  const Scope scope(Flip::info.name);
  return call<Flip>(x, reduce_options(dims, x.rank()).dims);
}
Tensor rot90(const Tensor& x, int64_t times, const Dims& dims) {
  const Scope scope("rot90");
  check(dims.size() == 2, "a plane has two dimensions, got {} of them", dims.size());
  const int from = wrap_dim(dims[0], x.rank()), to = wrap_dim(dims[1], x.rank());
  check(from != to, "dimensions {} and {} are the same", dims[0], dims[1]);
  const int64_t quarters = (times % 4 + 4) % 4;
  if (quarters == 0) return clone(x);
  if (quarters == 2) return flip(x, dims);
  return transpose(flip(x, quarters == 1 ? to : from), from, to);
}

std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors) {
  const Scope scope("broadcast_tensors");
  Shape shape;
  for (const Tensor& t : tensors) shape = broadcast(shape, t.shape());
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(expand(t, shape));
  return all;
}
Tensor atleast_1d(const Tensor& x) { return as_line(x); }
Tensor atleast_2d(const Tensor& x) { return x.rank() < 2 ? reshape(x, {1, x.numel()}) : x; }
Tensor atleast_3d(const Tensor& x) {
  const Tensor plane = atleast_2d(x);
  return plane.rank() == 2 ? unsqueeze(plane, -1) : plane;
}

Tensor vstack(const std::vector<Tensor>& parts) {
  const Scope scope("vstack");
  return cat(mapped(parts, atleast_2d));
}
Tensor hstack(const std::vector<Tensor>& parts) {
  const Scope scope("hstack");
  const std::vector<Tensor> lines = mapped(parts, atleast_1d);
  return cat(lines, !lines.empty() && lines[0].rank() == 1 ? 0 : 1);
}
Tensor dstack(const std::vector<Tensor>& parts) {
  const Scope scope("dstack");
  return cat(mapped(parts, atleast_3d), 2);
}
Tensor column_stack(const std::vector<Tensor>& parts) {
  const Scope scope("column_stack");
  const auto column = [](const Tensor& t) { return t.rank() < 2 ? reshape(t, {-1, 1}) : t; };
  return cat(mapped(parts, column), 1);
}

Tensor block_diag(const std::vector<Tensor>& parts) {
  const Scope scope("block_diag");
  int64_t left = 0, right = 0;
  for (const Tensor& part : parts) {
    check(part.rank() <= 2, "a part has shape {}, not [m, n], [n] or []", part.shape());
    right += as_line(part).size(-1);
  }
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) {
    const int64_t width = as_line(part).size(-1);
    right -= width;
    rows.push_back(pad(as_line(part), {left, right}));
    left += width;
  }
  return vstack(rows);
}
Tensor cartesian_prod(const std::vector<Tensor>& parts) {
  const Scope scope("cartesian_prod");
  if (parts.size() == 1) return as_line(parts[0]);
  return stack(mapped(meshgrid(parts), [](const Tensor& grid) { return flatten(grid); }), 1);
}

Tensor roll(const Tensor& x, int64_t shift, int dim) {
  const Scope scope("roll");
  const int64_t n = x.size(dim), by = n == 0 ? 0 : (shift % n + n) % n;
  if (by == 0) return clone(x);
  return cat({narrow(x, dim, n - by, by), narrow(x, dim, 0, n - by)}, dim);
}
Tensor roll(const Tensor& x, const Shape& shifts, const Dims& dims) {
  const Scope scope("roll");
  check(shifts.rank > 0 && size_t(shifts.rank) == dims.size(), "{} shifts for {} dimensions",
        shifts.rank, dims.size());
  Tensor y = x;
  for (int i = 0; i < shifts.rank; ++i) y = roll(y, shifts[i], dims[size_t(i)]);
  return y;
}
Tensor roll(const Tensor& x, int64_t shift) {
  return reshape(roll(flatten(x), shift, 0), x.shape());
}

Tensor repeat(const Tensor& x, const Shape& times) {
  const Scope scope("repeat");
  check(times.rank >= x.rank(), "{} dimensions need as many repeats, got {}", x.rank(), times);
  Shape shape;
  for (int d = x.rank(); d < times.rank; ++d) shape.push_back(1);
  for (const int64_t n : x.shape()) shape.push_back(n);
  Tensor y = reshape(x, shape);
  for (int d = times.rank - 1; d >= 0; --d) {
    if (times[d] == 1) continue;
    // Dimensions before d are rows; those from d on form one piece, which is repeated.
    const int64_t rows =
        std::accumulate(shape.begin(), shape.begin() + d, int64_t{1}, std::multiplies<>());
    const int64_t n = rows == 0 ? 0 : y.numel() / rows;
    shape = repeated(shape, d, times[d]);
    y = reshape(expand(reshape(y, {rows, 1, n}), {rows, times[d], n}), shape);
  }
  // If y is a view of x or repeats a part of it, it is copied.
  return y.storage() == x.storage() || !y.is_contiguous() ? clone(y) : y;
}
Tensor repeat_interleave(const Tensor& x, int64_t times, int dim) {
  const Scope scope("repeat_interleave");
  const int64_t n = repeated(x.shape(), dim, times)[dim];
  return n == 0
             ? narrow(x, dim, 0, 0)
             : index_select_unchecked(
                   x, dim, floor_divide(arange(0, double(n), 1, i64, x.device()), double(times)));
}
Tensor repeat_interleave(const Tensor& x, int64_t times) {
  return repeat_interleave(flatten(x), times, 0);
}
Tensor repeat_interleave(const Tensor& x, const Tensor& times, int dim) {
  const Scope scope("repeat_interleave");
  const int64_t n = x.size(dim);
  const Tensor given = as_index(times, "times");
  check(given.rank() == 0 || given.shape() == Shape{n}, "times has shape {}, not [] or [{}]",
        given.shape(), n);
  if (n == 0) return clone(x);
  const int64_t least = min(given).item<int64_t>();
  check(least >= 0, "times must be >= 0, got {}", least);
  const double total = sum(cast(expand(given, {n}), f64)).item();
  check(total < 0x1p63, "times add up to more than 2^63");
  const Tensor ends = cumsum(expand(given, {n}), 0);
  const Tensor each = arange(0, select(ends, 0, -1).item(), 1, i64, x.device());
  return index_select_unchecked(x, dim, searchsorted(ends, each, true));
}
Tensor repeat_interleave(const Tensor& x, const Tensor& times) {
  return repeat_interleave(flatten(x), times, 0);
}

Tensor tril(const Tensor& x, int64_t diagonal) { return call<Triangle<false>>(x, diagonal); }
Tensor triu(const Tensor& x, int64_t diagonal) { return call<Triangle<true>>(x, diagonal); }

Tensor pad(const Tensor& x, const std::vector<int64_t>& sizes, PadMode mode, double value) {
  const Scope scope(Pad::info.name);
  check(sizes.size() % 2 == 0 && sizes.size() <= size_t(2 * x.rank()),
        "sizes must be pairs for up to {} dimensions, got {} of them", x.rank(), sizes.size());
  if (mode == PadMode::Constant) check_fits(x.dtype(), value);
  Tensor y = x;
  Margins margins = sizes;  // those still to add
  for (size_t i = 0; i < sizes.size(); i += 2) {
    const int64_t left = sizes[i], right = sizes[i + 1];
    const int d = x.rank() - 1 - int(i / 2);
    const int64_t n = x.size(d);
    int64_t total;
    check(left >= -n && right >= -n &&
              std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0) >= -n &&
              !__builtin_add_overflow(n, left, &total) &&
              !__builtin_add_overflow(total, right, &total),
          "margins of {} and {} elements do not fit beside {}", left, right, n);
    const int64_t kept = n + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0);
    if (mode != PadMode::Constant) {
      if (left != 0 || right != 0)
        y = with_f32_gradient(
            index_select_unchecked(y, d, source_of(mode, n, left, right, x.device())));
      margins[i] = margins[i + 1] = 0;
    } else if (kept < n) {
      y = narrow(y, d, std::max<int64_t>(0, -left), kept);
      for (const size_t k : {i, i + 1}) margins[k] = std::max<int64_t>(0, sizes[k]);
    }
  }
  const bool done = std::ranges::all_of(margins, [](int64_t m) { return m == 0; });
  return done && y.storage() != x.storage() ? y : call<Pad>(y, margins, value);
}

}  // namespace mixtape
