// Indexing: three ops along one dimension, and functions made of them. gather and scatter_add are
// each other's gradient. An index that many elements share is expanded, not copied.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct Gather {  // index of x's rank, other dimensions at most x's
  static constexpr OpInfo info{"gather", Precision::Any, {Role::Activation, Role::Index}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& index, int dim) {
    const Tensor y = ctx.output(index.shape(), x.dtype());
    ctx.run(kernels::gather, dim, x, index, y);
    ctx.save(index);
    return cast(y, ctx.dtype());
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim);
};

struct Embedding : Gather {  // rows of a parameter
  static constexpr OpInfo info{"embedding", Precision::Any, {Role::Parameter, Role::Index}};
  struct Options {
    int64_t padding_row = -1;  // none
    std::optional<DType> out = {};
  };
  static Tensor forward(Ctx& ctx, const Tensor& table, const Tensor& index, int dim,
                        const Options&) {
    return Gather::forward(ctx, table, index, dim);
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim, const Options& o);
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, int dim,
                             const Options& o);
};

struct ScatterAdd {  // adds source, of the index's shape, to x or, if absent, zeros
  static constexpr OpInfo info{
      "scatter_add", Precision::Widest, {Role::Activation, Role::Index, Role::Activation}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& index, const Tensor& source,
                        const ScatterTarget& to) {
    check_numeric(source);
    check_counted("indices", {index.size(to.dim)});
    const Tensor y = ctx.output(to.shape, is_half(source.dtype()) ? f32 : source.dtype());
    if (x)
      ctx.run(kernels::convert, x, y);
    else
      ctx.run(kernels::fill, 0, y);
    ctx.run(kernels::scatter_reduce, kernels::Reduce::Sum, to.dim, index, source, y);
    ctx.save(index);
    return cast(y, ctx.dtype());
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ScatterTarget& to) {
    return ctx.grads([&] { return dy; }, [] { return Tensor(); },
                     [&] { return call<Gather>(dy, ctx.saved(0), to.dim); });
  }
};

Grads Gather::backward(const Ctx& ctx, const Tensor& dy, int dim) {
  return ctx.grads([&] {
    return call<ScatterAdd>(Tensor(), ctx.saved(0), dy,
                            ScatterTarget{dim, ctx.shape(0), ctx.grad_dtype(0)});
  });
}

// dy with zeros at the padding index.
Tensor unpadded(const Tensor& dy, const Tensor& index, const Embedding::Options& o) {
  return o.padding_row >= 0 ? masked_fill(dy, eq(index, double(o.padding_row)), 0) : dy;
}

Grads Embedding::backward(const Ctx& ctx, const Tensor& dy, int dim, const Options& o) {
  return Gather::backward(ctx, unpadded(dy, ctx.saved(0), o), dim);
}
// Stacks the tables of all examples, so that one scatter fills them.
Grads Embedding::backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, int, const Options& o) {
  const Tensor index = ctx.saved(0);
  const int64_t rows = ctx.shape(0)[0], columns = ctx.shape(0)[1];
  const Tensor below = arange(0, double(n * rows), double(rows), i64, index.device());
  const Tensor each = repeat_interleave(below, index.size(0) / n, 0);
  const Tensor all = call<ScatterAdd>(Tensor(), index + unsqueeze(each, 1), unpadded(dy, index, o),
                                      ScatterTarget{0, {n * rows, columns}, ctx.grad_dtype(0)});
  return {reshape(all, {n, rows, columns})};
}

struct Scatter {
  static constexpr OpInfo info{
      "scatter", Precision::Widest, {Role::Activation, Role::Index, Role::Activation}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& index, const Tensor& source,
                        int dim) {
    check_counted("indices", {index.size(dim)});
    const Tensor y = ctx.output(x.shape());
    ctx.run(kernels::convert, x, y);
    ctx.run(kernels::scatter, dim, index, cast(source, y.dtype()), y);
    ctx.save(index);
    return y;
  }
  // Replaced elements get no gradient. Where indices repeat, only the last source gets one.
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim) {
    const Tensor index = ctx.saved(0);
    const auto lost = [&] {
      const Tensor position = for_all_lines(
          arange(0, double(index.size(dim)), 1, i64, index.device()), dim, index.shape());
      const Tensor last(ctx.shape(0), i64, index.device()),
          winner(index.shape(), i64, index.device());
      ctx.run(kernels::scatter, dim, index, position, last);
      ctx.run(kernels::gather, dim, last, index, winner);
      return ne(winner, position);
    };
    return ctx.grads(
        [&] { return call<Scatter>(dy, index, number_like(dy, 0, index.shape()), dim); },
        [] { return Tensor(); },
        [&] { return masked_fill(call<Gather>(dy, index, dim), lost(), 0); });
  }
};

std::optional<int64_t> wrap_padding(std::optional<int64_t> row, int64_t rows) {
  if (!row) return row;
  check(-rows <= *row && *row < rows, "padding_idx {} is out of range for {} rows", *row, rows);
  return *row < 0 ? *row + rows : *row;
}

// F.embedding has the index first.
void check_index_second(const Tensor& index) {
  check(!is_float(index.dtype()),
        "the second argument is the index, of integers, and the first the table: got {} {}",
        index.dtype(), index.shape());
}

// The rows of a table at these indices: [..., n].
Tensor rows_at(const Tensor& table, const Tensor& given, std::optional<int64_t> padding,
               std::optional<DType> out = {}) {
  const Scope scope(Embedding::info.name);
  check_index_second(given);
  check(table.rank() == 2, "the table has shape {}, not [rows, n]", table.shape());
  const Tensor index = as_index(given), flat = reshape(index, {index.numel()});
  check_range(flat, 0, table.size(0), [rows = table.size(0)](int64_t i) {
    return fmt::format("index {} is out of range for {} rows", i, rows);
  });
  const Embedding::Options o{wrap_padding(padding, table.size(0)).value_or(-1), out};
  return reshape(
      call<Embedding>(table, for_all_lines(flat, 0, {flat.numel(), table.size(1)}), 0, o),
      joined(index.shape(), {table.size(1)}));
}

// Bags as padded rows [bags, longest], a mask of the indices in them, absent without padding, and
// factors of the rows, absent without weights.
struct Bags {
  Tensor index, inside = {}, weights = {};
};
// Pads bags, given by their first indices and sizes, i64 [bags] each.
Bags padded_bags(const Tensor& index, const Tensor& begin, const Tensor& size, int64_t longest,
                 const Tensor& weights) {
  const Tensor step = arange(0, double(longest), 1, i64, index.device());
  const Tensor inside = lt(step, unsqueeze(size, 1));
  const Tensor from = reshape(where(inside, unsqueeze(begin, 1) + step, 0), {inside.numel()});
  const auto padded = [&](const Tensor& t) {
    return t ? reshape(index_select(t, 0, from), inside.shape()) : t;
  };
  return {padded(index), inside, padded(weights)};
}

// Sums and means are computed in f32, or in f64 if they may exceed it, and rounded once.
Tensor reduce_bags(const Tensor& table, Bags bags, const EmbeddingBagOptions& o) {
  auto& [index, inside, weights] = bags;
  const bool largest = o.mode == BagMode::Max;
  Tensor rows = rows_at(table, index, o.padding_idx,
                        !largest && is_half(table.dtype()) ? std::optional(f32) : std::nullopt);
  if (weights) rows = rows * unsqueeze(cast(weights, rows.dtype()), 2);
  const auto finished = [&](const Tensor& y) {
    return cast(y, largest || !is_half(table.dtype()) ? table.dtype() : dtype_of_sum(table));
  };
  if (index.size(1) == 0) return finished(sum(rows, {1}));
  if (o.padding_idx) {
    const Tensor real = ne(index, double(*o.padding_idx));
    inside = inside ? Tensor(logical_and(inside, real)) : real;
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (inside) rows = masked_fill(rows, unsqueeze(logical_not(inside), 2), largest ? -infinity : 0);
  if (largest && !inside) return max(rows, {1});
  if (o.mode == BagMode::Sum) return finished(sum(rows, {1}));
  if (!inside) return finished(mean(rows, {1}));
  const Tensor count = sum(inside, {1}, true);
  if (largest) return masked_fill(max(rows, {1}), eq(count, 0), 0);
  const Tensor total = squeeze(sum_to(rows, {.dims = 0b10, .out = f64}), 1);
  return finished(total / cast(clamp(count, 1, {}), f64));
}

// Reduces bags of any sizes. If a few long bags would make the others mostly padding, bags of
// similar size (within a factor of two) are padded together, so that memory stays proportional to
// indices.
Tensor reduce_bags(const Tensor& table, const Tensor& index, const Tensor& offsets,
                   const EmbeddingBagOptions& o) {
  check(offsets.rank() == 1, "offsets have shape {}, not [bags]", offsets.shape());
  const int64_t n = index.numel(), bags = offsets.numel();
  if (bags == 0) return reduce_bags(table, {reshape(slice(index, 0, 0, 0), {0, 0})}, o);
  const Tensor end = full({1}, double(n), i64, offsets.device());
  const Tensor size = slice(cat({offsets, end}), 0, 1, bags + 1) - offsets;
  const std::vector<int64_t> sizes = to_vector<int64_t>(size);
  const auto [least, most] = std::ranges::minmax(sizes);
  const int64_t first =
      int64_t(uint64_t(n) - std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
  check(first == 0 && least >= 0 && most <= n,
        "offsets begin at {}, and the smallest of their bags of {} indices has {}", first, n,
        least);
  if (most <= 4 * (n / bags + 1))
    return reduce_bags(table, padded_bags(index, offsets, size, most, o.per_sample_weights), o);

  std::map<int, std::vector<int64_t>> alike;  // by bit width of their sizes
  for (int64_t i = 0; i < bags; ++i) alike[std::bit_width(uint64_t(sizes[size_t(i)]))].push_back(i);
  std::vector<Tensor> parts;
  std::vector<int64_t> row(sizes.size());  // of each bag in `parts`
  for (int64_t rows = 0; const auto& [bits, members] : alike) {
    int64_t longest = 0;
    for (const int64_t i : members) {
      row[size_t(i)] = rows++;
      longest = std::max(longest, sizes[size_t(i)]);
    }
    const Tensor which = from_data(members).to(index.device());
    const auto those = [&](const Tensor& t) { return index_select(t, 0, which); };
    const Bags padded =
        padded_bags(index, those(offsets), those(size), longest, o.per_sample_weights);
    parts.push_back(reduce_bags(table, padded, o));
  }
  return index_select(cat(parts), 0, from_data(row).to(index.device()));
}

}  // namespace

Tensor ops::gather_unchecked(const Tensor& x, int dim, const Tensor& index) {
  return call<Gather>(x, index, wrap_dim(dim, x.rank()));
}
Tensor ops::index_select_unchecked(const Tensor& x, int dim, const Tensor& index) {
  const int d = wrap_dim(dim, x.rank());
  return call<Gather>(x, for_all_lines(index, d, with_size(x.shape(), d, index.numel())), d);
}

Tensor ops::element_index(const Tensor& x, int dim, const Tensor& given) {
  const Tensor i64s = as_index(given), index = x.rank() == 1 ? as_line(i64s) : i64s;
  bool fits = index.rank() == x.rank();
  for (int d = 0; fits && d < x.rank(); ++d) fits = d == dim || index.size(d) <= x.size(d);
  check(fits,
        "the index must have the rank of {2} and, outside dimension {1}, no larger sizes, got {0}",
        index.shape(), dim, x.shape());
  check_index_range(index, dim, 0, x.size(dim));
  return index;
}

Tensor ops::slice_index(const Tensor& x, int dim, const Tensor& given) {
  const Tensor index = as_line(as_index(given));
  check(index.rank() == 1, "the index has shape {}, not [k]", index.shape());
  check_index_range(index, dim, 0, x.size(dim));
  return index;
}

Tensor ops::corner(Tensor x, const Shape& shape) {
  if (shape.rank == 1) x = as_line(x);
  bool fits = x.rank() == shape.rank;
  for (int d = 0; fits && d < shape.rank; ++d) fits = shape[d] <= x.size(d);
  check(fits, "the source must be at least as large as the index, {1}, got {0}", x.shape(), shape);
  for (int d = 0; d < shape.rank; ++d)
    if (x.size(d) != shape[d]) x = narrow(x, d, 0, shape[d]);
  return x;
}

Tensor ops::for_all_lines(const Tensor& index, int dim, const Shape& shape) {
  Shape strides = shape;
  for (int d = 0; d < shape.rank; ++d) strides[d] = d == dim ? index.strides()[0] : 0;
  return index.with_layout(Layout(shape, strides));
}
Tensor ops::scatter_unchecked(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  return call<Scatter>(x, index, source, dim);
}
Tensor ops::scatter_add_unchecked(const Tensor& x, int dim, const Tensor& index,
                                  const Tensor& source) {
  return call<ScatterAdd>(x, index, source, ScatterTarget{dim, x.shape()});
}
Tensor ops::index_put_unchecked(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                                bool accumulate) {
  const Tensor each = for_all_lines(index, dim, source.shape());
  return accumulate ? call<ScatterAdd>(x, each, source, ScatterTarget{dim, x.shape()})
                    : call<Scatter>(x, each, source, dim);
}
void ops::write_slices(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  check_counted("indices", {index.numel()});
  kernels::scatter(x.device(), dim, for_all_lines(index, dim, source.shape()), source, x);
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  const Scope scope(Gather::info.name);
  const Tensor lines = as_line(x);
  const int d = wrap_line(dim, x.rank());
  return reshape(call<Gather>(lines, element_index(lines, d, index), d), index.shape());
}
Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  const Scope scope("index_select");
  check(x.rank() > 0 || index.numel() == 1, "an index of shape {} for a 0-d tensor", index.shape());
  return along_line(x, dim, [&](const Tensor& t, int d) {
    return index_select_unchecked(t, d, slice_index(t, d, index));
  });
}
Tensor scatter(const Tensor& x, int dim, const Tensor& given, const Tensor& source) {
  const Scope scope(Scatter::info.name);
  return along_line(x, dim, [&](const Tensor& t, int d) {
    const Tensor index = element_index(t, d, given);
    return call<Scatter>(t, index, corner(source, index.shape()), d);
  });
}
Tensor scatter_add(const Tensor& x, int dim, const Tensor& given, const Tensor& source) {
  const Scope scope(ScatterAdd::info.name);
  return along_line(x, dim, [&](const Tensor& t, int d) {
    const Tensor index = element_index(t, d, given);
    return call<ScatterAdd>(t, index, corner(source, index.shape()), ScatterTarget{d, t.shape()});
  });
}
Tensor index_add(const Tensor& x, int dim, const Tensor& given, const Tensor& source) {
  const Scope scope("index_add");
  return along_line(x, dim, [&](const Tensor& t, int d) {
    const Tensor index = slice_index(t, d, given), slices = as_line(source);
    const Shape shape = with_size(t.shape(), d, index.numel());
    check_shape(slices, "the source", shape);
    return call<ScatterAdd>(t, for_all_lines(index, d, shape), slices, ScatterTarget{d, t.shape()});
  });
}

Tensor embedding(const Tensor& table, const Tensor& index, const EmbeddingOptions& options) {
  return rows_at(table, index, options.padding_idx);
}

Tensor embedding_bag(const Tensor& table, const Tensor& indices, const Tensor& starts,
                     const EmbeddingBagOptions& o) {
  const Scope scope("embedding_bag");
  check_index_second(indices);
  const Tensor index = as_index(indices);
  Tensor offsets = starts ? as_index(starts, "offsets") : starts;
  check(index.rank() == (offsets ? 1 : 2), "the index has shape {}, not {}", index.shape(),
        offsets ? "[k], beside offsets" : "[bags, k], without offsets");
  if (o.per_sample_weights) {
    check(o.mode == BagMode::Sum, "per_sample_weights are for BagMode::Sum alone");
    check_real(o.per_sample_weights);
    check_shape(o.per_sample_weights, "per_sample_weights", index.shape());
  }
  if (offsets && o.include_last_offset) {
    check(offsets.rank() == 1 && offsets.numel() > 0, "offsets have shape {}, not [bags + 1]",
          offsets.shape());
    const auto last = select(offsets, 0, -1).item<int64_t>();
    check(last == index.numel(), "the last offset must be the number of indices, {}, got {}",
          index.numel(), last);
    offsets = slice(offsets, 0, 0, -1);
  }
  EmbeddingBagOptions options = o;
  if (o.padding_idx) options.padding_idx = wrap_padding(o.padding_idx, table.size(0));
  return offsets ? reduce_bags(table, index, offsets, options)
                 : reduce_bags(table, {index, {}, o.per_sample_weights}, options);
}

}  // namespace mixtape
