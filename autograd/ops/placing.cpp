// Placing elements by an index or a mask, and combining those that go to the same place.

#include <fmt/ranges.h>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Reduce;

// True where the index names no element.
Tensor untouched(const Shape& shape, int dim, const Tensor& index) {
  const Tensor all = ones(shape, boolean, index.device());
  return scatter_unchecked(all, dim, index, number_like(all, 0, index.shape()));
}

struct ScatterReduce {
  static constexpr std::array<Role, 6> roles = {Role::Activation, Role::Index, Role::Activation};
  static Tensor reduced(Ctx& ctx, const Tensor& x, const Tensor& index, const Tensor& source,
                        const Meeting& m) {
    check_numeric(x);
    check_counted("indices", {index.size(m.dim)});
    const bool wide = m.op == Reduce::Prod && is_float(x.dtype());  // may come back into range
    const Tensor y = ctx.output(x.shape(), wide ? f64 : is_half(x.dtype()) ? f32 : x.dtype());
    const Tensor from = wide ? cast(source, f64) : source;
    ctx.run(kernels::convert, x, y);
    if (!m.include_self)  // begins with 1 or, for extrema, any of the sources
      ctx.run(kernels::scatter, m.dim, index,
              m.op == Reduce::Prod ? number_like(y, 1, index.shape()) : cast(from, y.dtype()), y);
    ctx.run(kernels::scatter_reduce, m.op, m.dim, index, from, y);
    ctx.save(x, index, source);
    return cast(y, ctx.dtype());
  }
};

struct ScatterExtremum : ScatterReduce {
  static constexpr OpInfo info{"scatter_extremum", Precision::Widest, roles};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& index, const Tensor& source,
                        const Meeting& m) {
    const Tensor y = reduced(ctx, x, index, source, m);
    ctx.save_result(y);
    return y;
  }
  // The elements that equal the result share its gradient.
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Meeting& m) {
    const Tensor y = ctx.saved(3), index = ctx.saved(1);  // y in the dtype that a policy chose
    const Tensor x = cast(ctx.saved(0), y.dtype()), source = cast(ctx.saved(2), y.dtype());
    const DType wide = accumulate_dtype(dy.dtype());
    Tensor kept = eq(x, y);
    if (!m.include_self) kept = logical_and(kept, untouched(x.shape(), m.dim, index));
    kept = cast(kept, wide);
    const Tensor placed = cast(eq(source, gather_unchecked(y, m.dim, index)), wide);
    const Tensor share = cast(dy, wide) / scatter_add_unchecked(kept, m.dim, index, placed);
    return ctx.grads([&] { return kept * share; }, [] { return Tensor(); },
                     [&] { return placed * gather_unchecked(share, m.dim, index); });
  }
};

struct ScatterProduct : ScatterReduce {
  static constexpr OpInfo info{"scatter_product", Precision::Full, roles};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& index, const Tensor& source,
                        const Meeting& m) {
    return reduced(ctx, x, index, source, m);
  }
  // The gradient of a factor is the product of the other factors: the product P of all that are not
  // 0, divided by x if x is one of them, times any zero among the others. (A derivative of it needs
  // those zeros with their history.) In f64, whose range is large enough for P.
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Meeting& m) {
    const Tensor x = cast(ctx.saved(0), f64), index = ctx.saved(1),
                 source = cast(ctx.saved(2), f64);
    const Tensor x_zero = eq(x, 0), source_zero = eq(source, 0), d = cast(dy, f64);
    const Tensor counts = m.include_self ? ones(x.shape(), f64, x.device())
                                         : cast(untouched(x.shape(), m.dim, index), f64);
    const Tensor product = call<ScatterProduct>(masked_fill(x, x_zero, 1), index,
                                                masked_fill(source, source_zero, 1), m);
    const auto total = [&](const Tensor& of_x, const Tensor& of_source) {
      return scatter_add_unchecked(of_x * counts, m.dim, index, of_source);
    };
    const auto zero_in = [](const Tensor& t) { return masked_fill(t, ne(t, 0), 0); };
    const Tensor zeros = total(cast(x_zero, f64), cast(source_zero, f64));
    const auto at = [&](const Tensor& t) { return gather_unchecked(t, m.dim, index); };
    if (!grad_enabled()) {
      const auto if_zeros = [&](double n) { return product * cast(eq(zeros, n), f64); };
      const Tensor none = if_zeros(0), own = if_zeros(1);  // own: the factor is the one zero
      return ctx.grads(
          [&] { return masked_fill(d * where(x_zero, own, none / x), eq(counts, 0), 0); },
          [] { return Tensor(); },
          [&] { return at(d) * where(source_zero, at(own), at(none) / source); });
    }
    const Tensor zero = total(zero_in(x), zero_in(source));
    const auto others = [&](const Tensor& t, const Tensor& product, const Tensor& zeros,
                            const Tensor& zero) {
      const Tensor left = zeros - cast(eq(t, 0), f64), rest = product / masked_fill(t, eq(t, 0), 1);
      return where(eq(left, 0), rest, masked_fill((zero - zero_in(t)) * rest, ne(left, 1), 0));
    };
    return ctx.grads(
        [&] { return masked_fill(d * others(x, product, zeros, zero), eq(counts, 0), 0); },
        [] { return Tensor(); },
        [&] { return at(d) * others(source, at(product), at(zeros), at(zero)); });
  }
};

Tensor reduce_lines(const Tensor& x, int d, const Tensor& given, const Tensor& whole_source,
                    ScatterMode mode, const ScatterReduceOptions& o) {
  const Tensor index = element_index(x, d, given), source = corner(whole_source, index.shape());
  if (mode == ScatterMode::Prod)
    return call<ScatterProduct>(x, index, source, Meeting{d, Reduce::Prod, o.include_self});
  if (mode == ScatterMode::Amax || mode == ScatterMode::Amin)
    return call<ScatterExtremum>(
        x, index, source,
        Meeting{d, mode == ScatterMode::Amax ? Reduce::Max : Reduce::Min, o.include_self});
  const auto total = [&](const Tensor& from, const Tensor& added) {
    const Tensor start =
        o.include_self ? from
                       : scatter_unchecked(from, d, index, number_like(from, 0, index.shape()));
    return scatter_add_unchecked(start, d, index, added);
  };
  if (mode == ScatterMode::Sum) return total(x, source);
  const auto mean = [&](const Tensor& from, const Tensor& added) {
    const auto ones_of = [](const Tensor& t) { return ones(t.shape(), f32, t.device()); };
    const Tensor count = clamp(total(ones_of(from), ones_of(added)), 1, {});
    return total(from, added) / cast(count, from.dtype());
  };
  return in_wider(mean, x, source);
}

}  // namespace

Tensor scatter(const Tensor& x, int dim, const Tensor& index, double value) {
  const Scope scope("scatter");
  check_number(x.dtype(), value);
  return scatter(x, dim, index, number_like(x, value, index.shape()));
}
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, double value,
                 bool accumulate) {
  const Scope scope("index_put");
  check_number(x.dtype(), value);
  return index_put(x, indices, number_like(x, value), accumulate);
}
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                      ScatterMode mode, const ScatterReduceOptions& o) {
  const Scope scope("scatter_reduce");
  return along_line(
      x, dim, [&](const Tensor& t, int d) { return reduce_lines(t, d, index, source, mode, o); });
}

Tensor index_fill(const Tensor& x, int dim, const Tensor& given, double value) {
  const Scope scope("index_fill");
  check_number(x.dtype(), value);
  return along_line(x, dim, [&](const Tensor& t, int d) {
    const Tensor index = slice_index(t, d, given);
    return index_put_unchecked(t, d, index,
                               number_like(t, value, with_size(t.shape(), d, index.numel())));
  });
}

Tensor index_copy(const Tensor& x, int dim, const Tensor& given, const Tensor& source) {
  const Scope scope("index_copy");
  return along_line(x, dim, [&](const Tensor& t, int d) {
    const Tensor index = slice_index(t, d, given), slices = as_line(source);
    check_shape(slices, "the source", with_size(t.shape(), d, index.numel()));
    return index_put_unchecked(t, d, index, slices);
  });
}
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                      std::string_view mode, const ScatterReduceOptions& o) {
  static constexpr std::string_view names[] = {"sum", "prod", "mean", "amax", "amin"};
  const auto* const found = std::ranges::find(names, mode);
  const Scope scope("scatter_reduce");
  check(found != std::end(names), "mode is \"{}\", not \"{}\"", mode, fmt::join(names, "\", \""));
  return scatter_reduce(x, dim, index, source, ScatterMode(found - names), o);
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, int dim) {
  const Scope scope("take_along_dim");
  check(index.rank() == x.rank(), "the index must have the rank of {1}, got {0}", index.shape(),
        x.shape());
  const int d = wrap_dim(dim, x.rank());
  const Shape beside = broadcast(with_size(x.shape(), d, 1), with_size(index.shape(), d, 1));
  return gather(expand(x, with_size(beside, d, x.size(d))), d,
                expand(index, with_size(beside, d, index.size(d))));
}
Tensor take_along_dim(const Tensor& x, const Tensor& index) {
  return take_along_dim(flatten(x), flatten(index), 0);
}
Tensor take(const Tensor& x, const Tensor& index) {
  const Scope scope("take");
  return mixtape::index(flatten(x), {as_index(index)});
}
std::vector<Tensor> unravel_index(const Tensor& positions, const Shape& shape) {
  const Scope scope("unravel_index");
  Tensor rest = as_index(positions, "positions");
  check_range(rest, 0, shape.size(), [shape](int64_t i) {
    return fmt::format("position {} is out of range for shape {}", i, shape);
  });
  std::vector<Tensor> indices(size_t(shape.rank));
  for (int d = shape.rank - 1; d >= 0; --d) {
    const double n = double(std::max<int64_t>(1, shape[d]));
    indices[size_t(d)] = remainder(rest, n);
    rest = floor_divide(rest, n);
  }
  return indices;
}

Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source) {
  const Scope scope("masked_scatter");
  check(mask.dtype() == boolean, "the mask must be bool, got {}", mask.dtype());
  const Shape shape = broadcast(x.shape(), mask.shape());
  const Tensor chosen = expand(mask, shape), to = expand(x, shape);
  const Tensor position = cumsum(cast(flatten(chosen), i64), 0) - 1;  // in the source
  check_range(position, -1, source.numel(), [n = source.numel()](int64_t last) {
    return fmt::format("the mask chooses at least {} elements, and the source has {}", last + 1, n);
  });
  if (source.numel() == 0) return to;
  const Tensor each = gather_unchecked(flatten(source), 0, clamp(position, 0, {}));
  return where(chosen, reshape(each, shape), to);
}

}  // namespace mixtape
