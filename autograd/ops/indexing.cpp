// Indexing as in NumPy: a view by basic indexing, then slices of that view if tensors index it.
// Both steps work in both directions: reading is a slice and a gather, writing their transposes.

#include <limits>
#include <optional>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "core/effects.h"
#include "core/index.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// The positions of true elements in row-major order, i64 [k].
Tensor flat_positions(const Tensor& mask) {
  return reshape(nonzero(reshape(mask, {mask.numel()})), {-1});
}

// A tensor among the indices, for `dims` dimensions of the view from `dim` on.
struct TensorIndex {
  Tensor tensor;
  int dim, dims;
  int of_x;  // the same dimension counted in the indexed tensor, for messages
};

// The slices of a view that tensors select, with the indexed dimensions merged to one.
struct AdvancedIndex {
  Dims order;     // puts those dimensions of the view side by side; empty if they are
  Shape shape;    // of the view in that order
  int at, count;  // the dimensions [at, at + count)
  int to;         // where the tensors' dimensions are in the result
  Tensor index;   // i64 [k]: positions along the merged dimension
  Shape each;     // k elements: the tensors' shapes, broadcast

  AdvancedIndex(const Shape& view, const std::vector<TensorIndex>& parts, int first, bool adjacent)
      : shape(view), at(parts[0].dim), count(0), to(adjacent ? first : 0) {
    for (const TensorIndex& part : parts)
      for (int d = 0; d < part.dims; ++d) order.push_back(part.dim + d);
    count = static_cast<int>(order.size());
    if (order.back() == at + count - 1)
      order.clear();
    else
      reorder(view);
    Tensor row;
    for (const auto& [tensor, dim, dims, of_x] : parts) {
      Shape sizes;
      for (int d = dim; d < dim + dims; ++d) sizes.push_back(view[d]);
      const int64_t n = sizes.size();
      const Tensor here =
          tensor.dtype() == boolean ? flat_positions(tensor) : wrapped(tensor, of_x, n);
      row = row ? row * double(n) + here : here;
    }
    index = reshape(row, {row.numel()});
    each = row.shape();
  }

  Tensor read(const Tensor& view) const {
    const Tensor y = index_select_unchecked(reshape(ordered(view), merged(total())), at, index);
    return moved(reshape(y, spliced(shape, at, count, each)), at, to);
  }
  // The view with these slices replaced by values of the result's shape.
  Tensor replaced(const Tensor& view, const Tensor& values, bool accumulate) const {
    const Tensor y = index_put_unchecked(reshape(ordered(view), merged(total())), at, index,
                                         source(values), accumulate);
    const Tensor whole = reshape(y, shape);
    return order.empty() ? whole : permute(whole, inverse(order));
  }
  // The same in place, without recording; values have the view's dtype.
  void write(const Tensor& view, const Tensor& values) const {
    const Tensor target = ordered(view);
    const auto layout = reshape(target.layout(), merged(total()));
    if (!layout || view.layout().repeats()) {
      copy_(view, replaced(view, values, false));
      return;
    }
    const bool shared = values.storage()->overlaps(*view.storage());
    detail::observe(&Observer::before_write, view, values);
    ++effects.writes;
    view.storage()->begin_write();
    write_slices(target.with_layout(*layout), at, index, source(shared ? clone(values) : values));
    view.storage()->bump_version();
  }
  Shape result() const { return spliced(spliced(shape, at, count, {}), to, 0, each); }

 private:
  void reorder(const Shape& view) {
    for (int d = 0; d < view.rank; ++d)
      if (std::ranges::find(order, d) == order.end()) order.push_back(d);
    for (int d = 0; d < view.rank; ++d) shape[d] = view[order[static_cast<size_t>(d)]];
    at = 0;
  }
  static Tensor wrapped(const Tensor& given, int dim, int64_t n) {
    check(is_integer(given.dtype()) && given.dtype() != u8,
          "an index must be of integers other than u8, or a bool mask, got {}", given.dtype());
    const Tensor i = as_index(given);
    check_index_range(i, dim, -n, n);
    return where(lt(i, 0), i + double(n), i);
  }
  int64_t total() const {
    int64_t n = 1;
    for (int d = at; d < at + count; ++d) n *= shape[d];
    return n;
  }
  Shape merged(int64_t n) const { return spliced(shape, at, count, {n}); }
  Tensor ordered(const Tensor& view) const { return order.empty() ? view : permute(view, order); }
  // Values as slices along the merged dimension.
  Tensor source(const Tensor& values) const {
    return reshape(moved(values, to, at), merged(index.numel()));
  }
  // Moves the tensors' dimensions to where they belong.
  Tensor moved(const Tensor& x, int from, int there) const {
    Dims a, b;
    for (int d = 0; d < each.rank; ++d) {
      a.push_back(from + d);
      b.push_back(there + d);
    }
    return from == there ? x : movedim(x, a, b);
  }
};

// The indices of x(...), parsed.
struct IndexPlan {
  Tensor x;
  BasicIndex view = {};
  std::optional<AdvancedIndex> advanced = {};

  IndexPlan(const Tensor& of, std::span<const Index> indices);

  Tensor viewed(const Tensor& t) const {
    return advanced && view.steps.empty() ? t : basic_index(t, view);
  }
  Tensor read() const {
    const Tensor y = viewed(x);
    return advanced ? advanced->read(y) : y;
  }
  // Writes values of read()'s shape and dtype. If it records, no other view of x may exist.
  void write(const Tensor& values) const;

 private:
  // The number of x's dimensions that an index takes.
  static int dims_of(const Index& index) {
    if (index.kind == Index::Kind::Tensor)
      return index.tensor.dtype() == boolean ? index.tensor.rank() : 1;
    return index.kind == Index::Kind::Integer || index.kind == Index::Kind::Slice;
  }
  static BasicIndex::Step step_of(const Slice& s, int dim) {
    constexpr int64_t low = std::numeric_limits<int64_t>::min(),
                      high = std::numeric_limits<int64_t>::max();
    const bool backward = s.step < 0;
    return {BasicIndex::Kind::Slice, dim, s.start.value_or(backward ? high : 0),
            s.stop.value_or(backward ? low : high), s.step};
  }
  int64_t position(int dim, int64_t i) const {
    const int64_t n = x.size(dim);
    check(-n <= i && i < n, "index {} is out of range for dimension {} of size {}", i, dim, n);
    return i;
  }
  void check_mask(const Tensor& mask, int from, int dims) const {
    for (int d = 0; mask.dtype() == boolean && d < dims; ++d)
      check(mask.size(d) == x.size(from + d),
            "a mask of shape {} does not fit dimensions {} to {} of {}", mask.shape(), from,
            from + dims - 1, x.shape());
  }
};

IndexPlan::IndexPlan(const Tensor& of, std::span<const Index> indices) : x(of) {
  using Kind = Index::Kind;
  int taken = 0, gaps = 0;
  for (const Index& i : indices) {
    check(i.kind != Kind::Tensor || i.tensor, "index {} is undefined", &i - indices.data());
    taken += dims_of(i);
    gaps += i.kind == Kind::Ellipsis;
  }
  check(taken <= x.rank(), "too many indices: {} for a tensor of shape {}", taken, x.shape());
  check(gaps <= 1, "only one index may be Ellipsis, got {}", gaps);

  std::vector<TensorIndex> parts;
  int from = 0, dim = 0;  // the next dimensions of x and of the view
  int first = -1;         // the view's dimension of the first integer or tensor
  bool adjacent = true, within = false;
  for (const Index& i : indices) {
    const bool points = i.kind == Kind::Integer || i.kind == Kind::Tensor;
    if (points && first < 0)
      first = dim;
    else if (points && !within)
      adjacent = false;
    within = points;
    const int dims = i.kind == Kind::Ellipsis ? x.rank() - taken : dims_of(i);
    // None adds a dimension, and so does a 0-d mask, which then indexes it.
    const bool is_new = dims == 0 && i.kind != Kind::Ellipsis;
    if (is_new) view.steps.push_back({BasicIndex::Kind::Unsqueeze, dim});
    if (i.kind == Kind::Integer)
      view.steps.push_back({BasicIndex::Kind::Select, dim, position(from, *i.slice.start)});
    if (i.kind == Kind::Slice) view.steps.push_back(step_of(i.slice, dim));
    if (i.kind == Kind::Tensor) {
      check_mask(i.tensor, from, dims);
      parts.push_back({i.tensor, dim, is_new ? 1 : dims, from});
    }
    from += dims;
    if (i.kind != Kind::Integer) dim += is_new ? 1 : dims;
  }
  if (!parts.empty()) advanced.emplace(view.of(x.layout()).shape, parts, first, adjacent);
}

void IndexPlan::write(const Tensor& values) const {
  if (!grad_enabled() || !(x.requires_grad() || values.requires_grad())) {
    const NoGrad off;
    advanced->write(viewed(x), values);  // (Without one, the view itself is written.)
    return;
  }
  replace_value(x, "make a new tensor by where, index_put, cat or stack", [&](const Tensor& old) {
    const Tensor part = advanced ? advanced->replaced(viewed(old), values, false) : values;
    if (advanced && view.steps.empty()) return part;
    // (Observers read the old x after the op.)
    const bool in_place = !values_are_observed() && !old.layout().repeats();
    return replace_part(old, part, view, in_place);
  });
}

const IndexPlan& plan_in(const std::shared_ptr<void>& plan) {
  return *static_cast<const IndexPlan*>(plan.get());
}

}  // namespace

Indexed::Indexed(const Tensor& x, std::initializer_list<Index> indices) {
  const Scope scope("index");
  plan_ = std::make_shared<IndexPlan>(x, std::span(indices.begin(), indices.size()));
  Tensor::operator=(plan_in(plan_).read());
}
// In x[i][j], these are elements of x unless x[i] is a copy.
Indexed::Indexed(Indexed&& x, std::initializer_list<Index> indices)
    : Indexed(static_cast<const Tensor&>(x), indices) {
  if (x.plan_ && !plan_in(x.plan_).advanced) {
    IndexPlan whole = plan_in(plan_);
    whole.x = plan_in(x.plan_).x;
    whole.view.steps = plan_in(x.plan_).view.steps;
    for (const auto& step : plan_in(plan_).view.steps) whole.view.steps.push_back(step);
    plan_ = std::make_shared<IndexPlan>(std::move(whole));
  }
  x.Tensor::operator=(Tensor());
}

// True if assignment writes through this tensor, which is a view.
bool Indexed::is_written_itself(bool history) const {
  if (!plan_) return true;
  const bool records = grad_enabled() && (plan_in(plan_).x.requires_grad() || history);
  return !plan_in(plan_).advanced && !records;
}

void Indexed::put(const Tensor& values) {
  const Scope scope("index_put");
  Tensor v = values.to(device());
  while (v.rank() > rank() && v.size(0) == 1) v = mixtape::select(v, 0, 0);
  if (is_written_itself(v.requires_grad())) {
    copy_(v);
    return;
  }
  v = mixtape::expand(cast(v, dtype()), shape());
  Tensor::operator=(Tensor());
  plan_in(plan_).write(v);
}
void Indexed::put(double value) {
  const auto filled = [&] {
    const Scope scope("index_put");
    return number_like(*this, value);
  };
  put(filled());
}

// Replaces the elements by f(elements).
template <class F>
void Indexed::update(bool history, const F& f) {
  if (is_written_itself(history)) {
    f(*this);
    return;
  }
  const Tensor elements = plan_in(plan_).advanced ? Tensor(*this) : this->clone();
  Tensor::operator=(Tensor());
  f(elements);
  plan_in(plan_).write(elements);
}
#define MIXTAPE_INDEXED(OP, NAME)                                   \
  void Indexed::operator OP(const Tensor & v)&& {                   \
    update(v.requires_grad(), [&](const Tensor& x) { x.NAME(v); }); \
  }                                                                 \
  void Indexed::operator OP(double v)&& {                           \
    update(false, [&](const Tensor& x) { x.NAME(v); });             \
  }
MIXTAPE_INDEXED(+=, add_)
MIXTAPE_INDEXED(-=, sub_)
MIXTAPE_INDEXED(*=, mul_)
MIXTAPE_INDEXED(/=, div_)
#undef MIXTAPE_INDEXED

Tensor index(const Tensor& x, const std::vector<Tensor>& indices) {
  const Scope scope("index");
  check(!indices.empty(), "no indices");
  return IndexPlan(x, std::vector<Index>(indices.begin(), indices.end())).read();
}
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                 bool accumulate) {
  const Scope scope("index_put");
  check(!indices.empty(), "no indices");
  const IndexPlan plan(x, std::vector<Index>(indices.begin(), indices.end()));
  const AdvancedIndex& at = *plan.advanced;
  return reshape(at.replaced(plan.viewed(x), expand(values, at.result()), accumulate), x.shape());
}
Tensor masked_select(const Tensor& x, const Tensor& mask) {
  const Scope scope("masked_select");
  check(mask.dtype() == boolean, "the mask must be bool, got {}", mask.dtype());
  const Shape shape = broadcast(x.shape(), mask.shape());
  return index_select_unchecked(reshape(expand(x, shape), {shape.size()}), 0,
                                flat_positions(expand(mask, shape)));
}
// The indices of elements that are not 0: i64 [count, rank].
Tensor nonzero(const Tensor& x) {
  const Scope scope("nonzero");
  const Tensor mask = contiguous(x.dtype() == boolean ? x : ne(x, 0));
  const int64_t count = sum(mask).item<int64_t>();
  const Tensor y({count, x.rank()}, i64, x.device());
  kernels::nonzero(x.device(), mask, y);
  return y;
}

}  // namespace mixtape
