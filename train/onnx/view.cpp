// Views, copies of parts, and joining. Where our ops only make another layout, ONNX has nodes.

#include <limits>

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/check.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
using namespace internal;
namespace {

Name reshaped(const OpCall& c) { return c.g.reshape(c.in(0), c.shape(0), c.result().shape()); }
Name expanded(const OpCall& c) { return c.g.expand(c.in(0), c.shape(0), c.result().shape()); }
Name permuted(const OpCall& c) {
  Sizes order;
  for (const int d : c.argument<Dims>()) order.push_back(wrap_dim(d, c.result().rank()));
  return c.g.transpose(c.in(0), order);
}

// Slices, integers and new dimensions, one after the other.
Name sliced(const OpCall& c) {
  Name x = c.in(0);
  Layout at(c.shape(0));
  using Kind = ops::BasicIndex::Kind;
  for (const auto& s : c.argument<ops::BasicIndex>().steps) {
    const Layout from = at;
    at = ops::BasicIndex{{s}}.of(at);
    if (s.kind == Kind::Unsqueeze) {
      x = c.g.reshape(x, from.shape, at.shape);
      continue;
    }
    const int dim = wrap_dim(s.dim, from.rank());
    const bool whole = s.kind == Kind::Slice && s.step == 1 && at.shape == from.shape;
    if (s.kind == Kind::Select) {
      x = c.g.node("Gather", {x, c.g.position(s.start)}, {{"axis", int64_t(dim)}});
    } else if (!whole) {
      x = c.g.slice(x, dim, s.start, s.stop, s.step);
    }
  }
  return x;
}

Name split_heads(const OpCall& c) {
  const auto& of = c.argument<ops::HeadsOf>();
  const Shape& all = c.shape(0);
  const int64_t size = all[2] / of.parts, d = size / of.heads;
  const Name x =
      of.parts == 1 ? c.in(0) : c.g.slice(c.in(0), 2, of.index * size, (of.index + 1) * size);
  const Name apart = c.g.reshape(x, {all[0], all[1], size}, {all[0], all[1], of.heads, d});
  return c.g.transpose(apart, of.batch_first ? Sizes{0, 2, 1, 3} : Sizes{1, 2, 0, 3});
}

Name joined(const OpCall& c) {
  std::vector<Name> parts;
  for (size_t i = 0; i < c.inputs(); ++i) parts.push_back(c.in(i, c.dtype()));
  return c.g.node("Concat", std::move(parts), {{"axis", int64_t(c.argument<int>())}});
}

Name padded(const OpCall& c) {
  const auto& margins = c.argument<std::vector<int64_t>>();  // {left, right} from the last one on
  const size_t rank = size_t(c.result().rank());
  Sizes pads(2 * rank);
  for (size_t i = 0; i < margins.size(); ++i) pads[rank - 1 - i / 2 + (i % 2) * rank] = margins[i];
  return c.g.node(
      "Pad", {c.in(0, c.dtype()), c.g.numbers(pads), c.g.number(c.argument<double>(), c.dtype())});
}

Name flipped(const OpCall& c) {
  Name x = c.in(0);
  for (int d = 0; d < c.result().rank(); ++d)
    if (c.argument<uint32_t>() >> d & 1)
      x = c.g.slice(x, d, -1, std::numeric_limits<int64_t>::min(), -1);
  return x;
}

Name triangle(const OpCall& c) {
  const Name diagonal = c.g.position(c.argument<int64_t>());
  return c.g.node("Trilu", {c.in(0, c.dtype()), diagonal}, {{"upper", int64_t(c.op() == "triu")}});
}

// The index [k] of all lines along `dim`, if it is the same for all and a value of its own.
Tensor index_of_lines(const OpCall& c, int dim, const Shape& x) {
  const Tensor& index = c.tensor(1);
  for (int d = 0; d < index.rank(); ++d)
    if (d != dim && (index.size(d) != x[d] || (index.size(d) > 1 && index.strides()[d] != 0)))
      return {};
  const Tensor line =
      index.with_layout(Layout(Shape{index.size(dim)}, Shape{index.strides()[dim]}));
  return c.names.has(line) ? line : Tensor();
}
Name gathered(const OpCall& c) {
  const int dim = c.argument<int>();
  const Attributes axis{{"axis", int64_t(dim)}};
  const Tensor& x = c.tensor(0);
  const Tensor lines = index_of_lines(c, dim, x.shape());
  if (!lines) return c.g.node("GatherElements", {c.in(0), c.in(1)}, axis);
  const Origin index = c.g.before_reshape(c.names.name_of(lines, lines), lines.shape());
  const Shape made = internal::spliced(x.shape(), dim, 1, index.shape);
  const Name y = c.g.node("Gather", {c.in(0), index.name}, axis);
  return c.g.reshape(y, made, c.result().shape());
}

Name scattered(const OpCall& c, int dim, const char* reduction) {  // f16 and bf16 in f32
  const DType wide = is_float(c.dtype()) ? accumulate_dtype(c.dtype()) : c.dtype();
  const Tensor& index = c.tensor(1);
  Shape whole = c.shape(0), line = whole;
  for (int d = 0; d < line.rank; ++d) line[d] = 1;
  whole[dim] = line[dim] = index.size(dim);
  Name each;
  if (const Tensor lines = index_of_lines(c, dim, whole))
    each = c.g.expand(c.g.reshape(c.names.name_of(lines, lines), lines.shape(), line), line, whole);
  else
    each = c.in(1);
  return c.g.node("ScatterElements", {c.in(0, wide), c.g.cast(each, i64), c.in(2, wide)},
                  {{"axis", int64_t(dim)}, {"reduction", std::string(reduction)}});
}
Name scattered_last(const OpCall& c) { return scattered(c, c.argument<int>(), "none"); }
Name scatter_added(const OpCall& c) {
  return scattered(c, c.argument<ops::ScatterTarget>().dim, "add");
}
Name scatter_reduced(const OpCall& c) {
  const auto& m = c.argument<ops::Meeting>();
  check(m.include_self, "ONNX has no scatter_reduce without the elements of x");
  using kernels::Reduce;
  return scattered(c, m.dim, m.op == Reduce::Prod ? "mul" : m.op == Reduce::Max ? "max" : "min");
}

// Elements `columns` + 1 apart of matrices in one row.
Name diagonal(const OpCall& c) {
  const auto& d = c.argument<ops::DiagonalOf>();
  const Shape& all = c.shape(0);
  const int a = wrap_dim(d.a, all.rank), b = wrap_dim(d.b, all.rank);
  Sizes order;
  Shape apart, joined;
  for (int i = 0; i < all.rank; ++i)
    if (i != a && i != b) order.push_back(i), joined.push_back(all[i]);
  order.insert(order.end(), {a, b});
  for (const int64_t i : order) apart.push_back(all[int(i)]);
  joined.push_back(all[a] * all[b]);
  const Name rows = c.g.reshape(c.g.transpose(c.in(0), order), apart, joined);
  const int64_t first = d.offset < 0 ? -d.offset * all[b] : d.offset;
  const Tensor places = arange(0, double(c.result().size(-1)), 1, i64, Device::cpu());
  return c.g.node("Gather", {rows, c.g.constant(places * double(all[b] + 1) + double(first))},
                  {{"axis", int64_t{-1}}});
}

// Gathers windows [..., count, size, ...] by positions, then moves `size` to the end.
Name windows(const OpCall& c) {
  const auto& w = c.argument<ops::Windows>();
  const int rank = c.result().rank();
  const int64_t count = c.result().size(w.dim);
  const Tensor first = unsqueeze(arange(0, count, 1, i64, Device::cpu()) * double(w.step), 1);
  const Name y =
      c.g.node("Gather", {c.in(0), c.g.constant(first + arange(0, w.size, 1, i64, Device::cpu()))},
               {{"axis", int64_t(w.dim)}});
  Sizes order;
  for (int d = 0; d < rank; ++d)
    if (d != w.dim + 1) order.push_back(d);
  order.push_back(w.dim + 1);
  return c.g.transpose(y, order);
}

constexpr TranslationRow rows_of_views[] = {
    {"cat", joined},
    {"diagonal", diagonal},
    {"embedding", gathered},
    {"expand", expanded},
    {"flip", flipped},
    {"gather", gathered},
    {"pad", padded},
    {"permute", permuted},
    {"reshape", reshaped},
    {"scatter", scattered_last},
    {"scatter_add", scatter_added},
    {"scatter_extremum", scatter_reduced},
    {"scatter_product", scatter_reduced},
    {"slice", sliced},
    {"split_heads", split_heads},
    {"tril", triangle},
    {"triu", triangle},
    {"unfold", windows},
};

}  // namespace

std::span<const TranslationRow> view_rows() { return rows_of_views; }

}  // namespace mixtape::train::onnx
