// Views: the same storage with another layout. Six ops (reshape, permute, expand, slice, diagonal,
// unfold) and the functions made of them. Also joining, which copies into views.

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "core/int_math.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct Reshape {
  static constexpr OpInfo info{"reshape"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx&, const Tensor& x, const Shape& shape) {
    if (const auto layout = reshape(x.layout(), shape)) return x.with_layout(*layout);
    return clone(x).with_layout(Layout(shape));
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) { return {reshape(dy, ctx.shape(0))}; }
};

struct Permute {
  static constexpr OpInfo info{"permute"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx&, const Tensor& x, const Dims& order) {
    return x.with_layout(permute(x.layout(), order));
  }
  static Grads backward(const Ctx&, const Tensor& dy, const Dims& order) {
    return {permute(dy, inverse(order))};
  }
};

struct Expand {
  static constexpr OpInfo info{"expand"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx&, const Tensor& x, const Shape& shape) {
    return x.with_layout(expand(x.layout(), shape));
  }
  // Sums over the repeated dimensions.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Shape& to = ctx.shape(0);
    const int added = dy.rank() - to.rank;
    Dims repeated;
    for (int d = 0; d < dy.rank(); ++d)
      if (d < added || (to[d - added] == 1 && dy.size(d) != 1)) repeated.push_back(d);
    return {repeated.empty() ? reshape(dy, to) : reshape(sum(dy, repeated, true), to)};
  }
};

// Zeros with x as one part: the transpose of selecting that part.
template <class Part>
struct Place {
  static constexpr OpInfo info = Part::place;
  static Tensor forward(Ctx& ctx, const Tensor& x, const Shape& whole, const Part& part) {
    const Tensor y = in_order_of(x, zeros(whole, x.dtype(), x.device()));
    ctx.run(kernels::convert, x, y.with_layout(part.of(y.layout())));
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, const Shape&, const Part& part);
};

template <class Part>
struct Select {
  static constexpr OpInfo info = Part::view;
  static constexpr bool moves_only = true, covers = requires { requires Part::covers; };
  static Tensor part(const Tensor& x, const Part& part) {
    return x.with_layout(part.of(x.layout()));
  }
  static Tensor forward(Ctx&, const Tensor& x, const Part& p) { return part(x, p); }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Part& part) {
    return {call<Place<Part>>(dy, ctx.shape(0), part)};
  }
};

template <class Part>
Grads Place<Part>::backward(const Ctx&, const Tensor& dy, const Shape&, const Part& part) {
  return {call<Select<Part>>(dy, part)};
}

// x with a part replaced by values.
struct SliceScatter {
  static constexpr OpInfo info{"slice_scatter", Precision::Widest};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& values, const BasicIndex& part,
                        bool in_place) {
    const Tensor y = in_place ? x : clone(x);
    check_shape(values, "the source", part.of(y.layout()).shape);
    y.storage()->begin_write();
    ctx.run(kernels::convert, values, y.with_layout(part.of(y.layout())));
    if (in_place) y.storage()->bump_version();
    return y;
  }
  // dx = dy with zeros in the part, dvalues = the part of dy
  static Grads backward(const Ctx& ctx, const Tensor& dy, const BasicIndex& part, bool) {
    const bool reuses =
        dy.is_unique() && dy.is_contiguous() && !grad_enabled() && !values_are_observed();
    Grads g;
    g.push_back(ctx.wants(0) ? dy : Tensor());
    g.push_back(ctx.wants(1) ? basic_index(dy, part) : Tensor());
    if (!g[0]) return g;
    if (reuses && g[1]) g[1] = clone(g[1]);
    g[0] = replace_part(dy, number_like(dy, 0, part.of(dy.layout()).shape), part, reuses);
    return g;
  }
};

// Sums windows at their positions in the whole: the transpose of Unfold.
struct Fold {
  static constexpr OpInfo info{"fold"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Shape& whole, const Windows& w) {
    Tensor y = zeros(whole, is_half(x.dtype()) ? f32 : x.dtype(), x.device());
    const Layout windows = unfold(y.layout(), w.dim, w.size, w.step);
    // Windows that are `apart` steps from each other do not overlap, so one kernel adds them.
    const int64_t n = x.size(w.dim), apart = (w.size - 1) / w.step + 1;
    for (int64_t first = 0; first < std::min(apart, n); ++first)
      ctx.run(kernels::accumulate, x.with_layout(slice(x.layout(), w.dim, first, n, apart)),
              y.with_layout(slice(windows, w.dim, first, n, apart)));
    return cast(y, x.dtype());
  }
  static Grads backward(const Ctx&, const Tensor& dy, const Shape&, const Windows& w) {
    return {unfold(dy, w.dim, w.size, w.step)};
  }
};

struct Unfold {
  static constexpr OpInfo info{"unfold"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx&, const Tensor& x, const Windows& w) {
    return x.with_layout(unfold(x.layout(), w.dim, w.size, w.step));
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Windows& w) {
    return {call<Fold>(dy, ctx.shape(0), w)};
  }
};

struct Cat {
  static constexpr OpInfo info{"cat", Precision::Widest};
  static Tensor forward(Ctx& ctx, const std::vector<Tensor>& parts, int dim) {
    Shape shape = parts[0].shape();
    shape[dim] = 0;
    for (const Tensor& p : parts) {
      check(p.rank() == shape.rank, "parts must have the same rank, got {} and {}", shape.rank,
            p.rank());
      for (int d = 0; d < shape.rank; ++d)
        check(d == dim || p.size(d) == shape[d], "shapes {} and {} differ outside dimension {}",
              parts[0].shape(), p.shape(), dim);
      check(!__builtin_add_overflow(shape[dim], p.size(dim), &shape[dim]),
            "the part of shape {} makes dimension {} too large to count", p.shape(), dim);
    }
    Tensor y = image(ctx, shape, order_of(parts[0]));
    int64_t at = 0;
    for (const Tensor& p : parts) {
      ctx.run(kernels::convert, p, y.with_layout(slice(y.layout(), dim, at, at + p.size(dim))));
      at += p.size(dim);
    }
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim) {
    Grads g;
    int64_t at = 0;
    for (size_t i = 0; i < ctx.inputs(); ++i) {
      const int64_t n = ctx.shape(i)[dim];
      g.push_back(ctx.wants(i) ? narrow(dy, dim, at, n) : Tensor());
      at += n;
    }
    return g;
  }
};

BasicIndex slice_of(int dim, int64_t start, int64_t stop, int64_t step) {
  using Limits = std::numeric_limits<int64_t>;
  if (step < 0 && stop == Limits::max()) stop = Limits::min();  // to the beginning
  return {{{BasicIndex::Kind::Slice, dim, start, stop, step}}};
}

// Throws Error for so many tensors that memory would hardly hold them.
void check_number_of_parts(int64_t parts) {
  constexpr int64_t most = int64_t{1} << 24;
  check(parts <= most, "at most {} parts are possible, got {}", most, parts);
}

// x as a view of itself, which like any view has no history while nothing is recorded.
Tensor unchanged(const Tensor& x) { return grad_enabled() || !x.requires_grad() ? x : x.detach(); }

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Scope scope(Reshape::info.name);
  const Shape to = infer(shape, x.numel());
  return to == x.shape() ? unchanged(x) : call<Reshape>(x, to);
}
Tensor view(const Tensor& x, const Shape& shape) {
  const Scope scope("view");
  const Shape to = infer(shape, x.numel());
  check(reshape(x.layout(), to).has_value(),
        "{} with strides {} cannot be viewed as {} without a copy (use reshape)", x.shape(),
        x.strides(), to);
  return reshape(x, to);
}
Tensor flatten(const Tensor& x, int from, int to) {
  const Scope scope("flatten");
  from = wrap_line(from, x.rank());
  to = wrap_line(to, x.rank());
  if (x.rank() == 0) return as_line(x);
  check(from <= to, "the first dimension must not come after the last, got {} and {}", from, to);
  int64_t all = 1;
  for (int d = from; d <= to; ++d) all *= x.size(d);
  return reshape(x, spliced(x.shape(), from, to - from + 1, {all}));
}
Tensor unflatten(const Tensor& x, int dim, const Shape& sizes) {
  const Scope scope("unflatten");
  dim = wrap_dim(dim, x.rank());
  return reshape(x, spliced(x.shape(), dim, 1, infer(sizes, x.size(dim))));
}

Tensor permute(const Tensor& x, const Dims& order) { return call<Permute>(x, order); }
Tensor transpose(const Tensor& x, int a, int b) {
  const Scope scope("transpose");
  const int from = wrap_line(a, x.rank()), to = wrap_line(b, x.rank());
  std::vector<int> order(x.rank());
  for (int d = 0; d < x.rank(); ++d) order[d] = d;
  if (from != to) std::swap(order[from], order[to]);
  return permute(x, order);
}
Tensor movedim(const Tensor& x, const Dims& from, const Dims& to) {
  const Scope scope("movedim");
  check(from.size() == to.size(), "{} dimensions need as many places, got {}", from.size(),
        to.size());
  std::vector<int> order(size_t(std::max(1, x.rank())), -1);
  uint32_t moved = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const int dim = wrap_line(from[i], x.rank());
    int& slot = order[size_t(wrap_line(to[i], x.rank()))];
    check(!(moved >> dim & 1), "dimension {} is moved twice", dim);
    check(slot < 0, "dimensions {} and {} go to the same place", slot, dim);
    slot = dim;
    moved |= 1u << dim;
  }
  for (int dim = 0; dim < x.rank(); ++dim)
    if (!(moved >> dim & 1)) *std::ranges::find(order, -1) = dim;
  return x.rank() == 0 ? x : permute(x, order);
}

Tensor squeeze(const Tensor& x, const Dims& dims) {
  const Scope scope("squeeze");
  const ReduceOptions dropped = reduce_options(dims, x.rank());
  Shape shape;
  for (int d = 0; d < x.rank(); ++d)
    if (x.size(d) != 1 || !(dropped.dims >> d & 1)) shape.push_back(x.size(d));
  return reshape(x, shape);
}
Tensor unsqueeze(const Tensor& x, int dim) {
  const Scope scope("unsqueeze");
  return reshape(x, unsqueeze(x.layout(), dim).shape);
}
Tensor expand(const Tensor& x, const Shape& wanted) {
  Shape shape = wanted;
  for (int d = 0, from = x.rank() - wanted.rank; d < shape.rank; ++d)
    if (shape[d] == -1 && from + d >= 0) shape[d] = x.shape()[from + d];
  return shape == x.shape() ? unchanged(x) : call<Expand>(x, shape);
}

Layout HeadsOf::of(const Layout& x) const {
  const Shape &n = x.shape, &s = x.strides;
  const int64_t d = n[2] / (parts * heads);
  const Layout all({n[0], n[1], heads, d}, {s[0], s[1], d * s[2], s[2]},
                   x.offset + index * heads * d * s[2]);
  return permute(all, batch_first ? Dims{0, 2, 1, 3} : Dims{1, 2, 0, 3});
}

Layout BasicIndex::of(Layout x) const {
  for (const Step& s : steps)
    x = s.kind == Kind::Slice    ? slice(x, s.dim, s.start, s.stop, s.step)
        : s.kind == Kind::Select ? select(x, s.dim, s.start)
                                 : unsqueeze(x, s.dim);
  return x;
}
Tensor ops::basic_index(const Tensor& x, const BasicIndex& index) {
  return call<Select<BasicIndex>>(x, index);
}
Tensor ops::replace_part(const Tensor& x, const Tensor& values, const BasicIndex& index,
                         bool in_place) {
  return call<SliceScatter>(x, values, index, in_place);
}

Tensor slice(const Tensor& x, int dim, int64_t start, int64_t stop, int64_t step) {
  return basic_index(x, slice_of(dim, start, stop, step));
}
Tensor slice_scatter(const Tensor& x, const Tensor& source, int dim, int64_t start, int64_t stop,
                     int64_t step) {
  return replace_part(x, source, slice_of(dim, start, stop, step), false);
}
Tensor narrow(const Tensor& x, int dim, int64_t start, int64_t length) {
  const Scope scope("narrow");
  const int64_t n = x.size(dim), from = start < 0 ? start + n : start;
  check(from >= 0 && length >= 0 && from <= n - length,
        "{} elements from {} on are out of range for dimension {} of size {}", length, start, dim,
        n);
  return slice(x, dim, from, from + length);
}
Tensor select(const Tensor& x, int dim, int64_t index) {
  const Scope scope("select");
  const int64_t n = x.size(dim);
  check(index >= -n && index < n, "index {} is out of range for dimension {} of size {}", index,
        dim, n);
  return basic_index(x, {{{BasicIndex::Kind::Select, dim, index}}});
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int dim) {
  const Scope scope("split");
  check(size > 0, "size must be > 0, got {}", size);
  std::vector<Tensor> pieces;
  const int64_t n = x.size(dim), count = std::max<int64_t>(1, internal::ceil_div(n, size));
  check_number_of_parts(count);
  for (int64_t i = 0; i < count; ++i)  // an empty x gives one empty piece
    pieces.push_back(narrow(x, dim, i * size, std::min(size, n - i * size)));
  return pieces;
}
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  const Scope scope("split");
  int64_t left = x.size(dim);
  bool fit = true;
  for (const int64_t size : sizes) fit = fit && 0 <= size && (left -= size) >= 0;
  check(fit && left == 0,
        "sizes must be >= 0 and add up to the {} elements of dimension {}, got [{}]", x.size(dim),
        dim, fmt::join(sizes, ", "));
  std::vector<Tensor> pieces;
  int64_t at = 0;
  for (const int64_t size : sizes)
    pieces.push_back(narrow(x, dim, std::exchange(at, at + size), size));
  return pieces;
}
std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int dim) {
  const Scope scope("chunk");
  check(chunks > 0, "chunks must be > 0, got {}", chunks);
  if (x.size(dim) == 0) return tensor_split(x, chunks, dim);
  return split(x, internal::ceil_div(x.size(dim), chunks), dim);
}
std::vector<Tensor> tensor_split(const Tensor& x, int64_t parts, int dim) {
  const Scope scope("tensor_split");
  check(parts > 0, "parts must be > 0, got {}", parts);
  check_number_of_parts(parts);
  const int64_t n = x.size(dim);
  std::vector<int64_t> sizes(size_t(parts), n / parts);
  std::for_each_n(sizes.begin(), n % parts, [](int64_t& size) { ++size; });
  return split(x, sizes, dim);
}
std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<int64_t>& indices, int dim) {
  const Scope scope("tensor_split");
  std::vector<Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t end : indices) pieces.push_back(slice(x, dim, std::exchange(begin, end), end));
  pieces.push_back(slice(x, dim, begin));
  return pieces;
}
std::vector<Tensor> unbind(const Tensor& x, int dim) {
  const Scope scope("unbind");
  check_number_of_parts(x.size(dim));
  std::vector<Tensor> pieces;
  for (int64_t i = 0; i < x.size(dim); ++i) pieces.push_back(select(x, dim, i));
  return pieces;
}
void detail::unpack(const std::vector<Tensor>& list, std::span<Tensor> parts) {
  check(list.size() == parts.size(), "a list of {} tensors does not unpack into {}", list.size(),
        parts.size());
  std::ranges::copy(list, parts.begin());
}
std::vector<Tensor> split_heads(const Tensor& x, int64_t heads, const SplitHeadsOptions& o) {
  const Scope scope(HeadsOf::view.name);
  check(x.rank() == 3 && o.parts > 0 && heads > 0 && countable({o.parts, heads}) &&
            x.size(2) % (o.parts * heads) == 0,
        "an input of shape {} does not divide into {} parts of {} heads", x.shape(), o.parts,
        heads);
  check_number_of_parts(o.parts);
  std::vector<Tensor> pieces;
  for (int64_t i = 0; i < o.parts; ++i)
    pieces.push_back(call<Select<HeadsOf>>(x, HeadsOf{o.parts, heads, i, o.batch_first}));
  return pieces;
}
std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes, std::string_view indexing) {
  const Scope scope("meshgrid");
  const bool turned = indexing == "xy";
  check(turned || indexing == "ij", "indexing is \"{}\", not \"ij\" or \"xy\"", indexing);
  Shape shape;
  for (const Tensor& axis : axes) {
    check(axis.rank() <= 1, "an axis has shape {}, not [n]", axis.shape());
    shape.push_back(axis.numel());
  }
  std::vector<Tensor> grids;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Tensor grid = expand(ops::laid_along(axes[i], int(i), shape.rank), shape);
    grids.push_back(turned && shape.rank > 1 ? transpose(grid, 0, 1) : grid);
  }
  return grids;
}

Tensor unfold(const Tensor& x, int dim, int64_t size, int64_t step) {
  const Scope scope(Unfold::info.name);
  const Tensor y = call<Unfold>(as_line(x), Windows{wrap_line(dim, x.rank()), size, step});
  return x.rank() == 0 ? squeeze(y, 0) : y;
}
Tensor diagonal(const Tensor& x, int64_t offset, int a, int b) {
  return call<Select<DiagonalOf>>(x, DiagonalOf{offset, a, b});
}
Tensor diag(const Tensor& x, int64_t offset) {
  const Scope scope("diag");
  check(x.rank() == 1 || x.rank() == 2, "the input has shape {}, not [n] or [m, n]", x.shape());
  return x.rank() == 2 ? diagonal(x, offset) : diag_embed(x, offset);
}
Tensor diag_embed(const Tensor& x, int64_t offset, int a, int b) {
  const Scope scope("diag_embed");
  check(x.rank() > 0 && x.rank() < max_rank, "the input has shape {}, not [..., n]", x.shape());
  const int64_t size = x.size(-1);
  check(countable({size}) && std::abs(double(offset)) < 0x1p31,
        "{} elements, {} beside the diagonal", size, offset);
  const int rank = x.rank() + 1, i = wrap_dim(a, rank), j = wrap_dim(b, rank);
  check(i != j, "dimensions {} and {} are the same", a, b);
  Shape shape;
  for (int d = 0, from = 0; d < rank; ++d)
    shape.push_back(d == i || d == j ? size + std::abs(offset) : x.size(from++));
  return call<Place<DiagonalOf>>(x, shape, DiagonalOf{offset, i, j});
}
Tensor trace(const Tensor& x) {
  const Scope scope("trace");
  check(x.rank() == 2, "the input has shape {}, not [m, n]", x.shape());
  return sum(diagonal(x));
}

Tensor concat(const std::vector<Tensor>& parts, int dim) { return cat(parts, dim); }
Tensor cat(const std::vector<Tensor>& parts, int dim) {
  const Scope scope(Cat::info.name);
  check(!parts.empty(), "nothing to join");
  const auto is_blank = [](const Tensor& t) { return t && t.shape() == Shape{0}; };
  const auto has_rows = [](const Tensor& t) { return t && t.rank() > 1; };
  if (std::ranges::any_of(parts, is_blank) && std::ranges::any_of(parts, has_rows)) {
    std::vector<Tensor> rest = parts;
    std::erase_if(rest, is_blank);
    return cat(rest, dim);
  }
  check(parts[0].rank() > 0, "numbers have no dimension along which to join them: use stack()");
  return call<Cat>(parts, wrap_dim(dim, parts[0].rank()));
}
Tensor stack(const std::vector<Tensor>& parts, int dim) {
  const Scope scope("stack");
  check(!parts.empty(), "nothing to join");
  const int d = wrap_dim(dim, parts[0].rank() + 1);
  std::vector<Tensor> rows;
  for (const Tensor& p : parts) {
    check(p.shape() == parts[0].shape(), "parts must have the same shape, got {} and {}",
          parts[0].shape(), p.shape());
    rows.push_back(unsqueeze(p, d));
  }
  return cat(rows, d);
}
Tensor pad_sequence(const std::vector<Tensor>& parts, bool batch_first, double value) {
  const Scope scope("pad_sequence");
  check(!parts.empty(), "nothing to join");
  int64_t longest = 0;
  for (const Tensor& p : parts) {
    check(p.rank() > 0, "part {} is not a sequence: it is 0-d", &p - parts.data());
    longest = std::max(longest, p.size(0));
  }
  std::vector<Tensor> rows;
  for (const Tensor& p : parts) {
    std::vector<int64_t> sizes(2 * static_cast<size_t>(p.rank()));
    sizes.back() = longest - p.size(0);
    rows.push_back(pad(p, sizes, PadMode::Constant, value));
  }
  return stack(rows, batch_first ? 0 : 1);
}

}  // namespace mixtape
