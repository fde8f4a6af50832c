// Views as arithmetic on sizes and strides, with checked arguments.
#include "core/layout.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"

namespace mixtape {
namespace {

// Throws Error if a size is negative or the number of elements overflows. A size of 0 counts as 1,
// so that strides stay sensible without elements.
void check_sizes(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) {
    check(d >= 0, "sizes cannot be negative: {}", shape);
    check(!__builtin_mul_overflow(n, std::max<int64_t>(d, 1), &n), "{} has too many elements",
          shape);
  }
}

// Arithmetic that wraps around: the strides of dimensions of 0 or 1 elements may be anything, and
// are never used.
int64_t plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

void erase(Shape& s, int dim) {
  std::copy(s.dim + dim + 1, s.dim + s.rank, s.dim + dim);
  s.dim[--s.rank] = 0;
}
void insert(Shape& s, int dim, int64_t value) {
  s.push_back(0);
  std::copy_backward(s.dim + dim, s.dim + s.rank - 1, s.dim + s.rank);
  s.dim[dim] = value;
}

template <class T>
std::string bracketed(std::span<const T> numbers) {
  std::string out = "[";
  for (const T& n : numbers) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + "]";
}

}  // namespace

Shape::Shape(std::span<const int64_t> sizes) {
  check(sizes.size() <= max_rank, "at most {} dimensions are possible, got {}", max_rank,
        sizes.size());
  std::copy(sizes.begin(), sizes.end(), dim);
  rank = static_cast<int>(sizes.size());
}

void Shape::push_back(int64_t size) {
  check(rank < max_rank, "at most {} dimensions are possible, got {}", max_rank, rank + 1);
  dim[rank++] = size;
}

void Shape::refuse(int i) const { fail("dimension {} is out of range for rank {}", i, rank); }

std::string Shape::to_string() const { return bracketed(std::span(begin(), end())); }

int wrap_dim(int dim, int rank) {
  check(-rank <= dim && dim < rank, "dimension {} is out of range for rank {}", dim, rank);
  return dim < 0 ? dim + rank : dim;
}

Shape infer(const Shape& wanted, int64_t elements) {
  Shape out = wanted;
  int64_t known = 1;
  int unknown = -1;
  for (int d = 0; d < wanted.rank; ++d) {
    const int64_t size = wanted.dim[d];
    if (size == -1) {
      check(unknown < 0, "only one size may be -1, got {}", wanted);
      unknown = d;
    } else {
      check(size >= 0, "sizes cannot be negative: {}", wanted);
      check(!__builtin_mul_overflow(known, size, &known), "{} has too many elements", wanted);
    }
  }
  const bool fits = unknown < 0 ? known == elements : known > 0 && elements % known == 0;
  check(fits, "cannot reshape {} elements to {}", elements, wanted);
  if (unknown >= 0) out.dim[unknown] = elements / known;
  return out;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape out = a.rank >= b.rank ? a : b;
  const Shape& shorter = a.rank >= b.rank ? b : a;
  for (int d = 1; d <= shorter.rank; ++d) {
    const int64_t other = shorter[-d];
    if (out[-d] == 1) out[-d] = other;
    check(other == 1 || other == out[-d], "shapes {} and {} do not broadcast", a, b);
  }
  return out;
}

namespace internal {

Layout::Layout(const Shape& shape) : shape(shape) {
  strides.rank = shape.rank;
  int64_t stride = 1;
  bool sane = true;
  for (int d = shape.rank - 1; d >= 0; --d) {
    const int64_t n = shape.dim[d];
    strides.dim[d] = stride;
    sane &= n >= 0 && !__builtin_mul_overflow(stride, n > 0 ? n : 1, &stride);
  }
  if (!sane) [[unlikely]]
    check_sizes(shape);  // throws
}

Layout padded_rows(const Shape& shape) {
  Layout l(shape);
  const int64_t length = shape[-1], stride = round_up(length, 8);
  for (int d = 0; d < l.rank() - 1; ++d) l.strides[d] = l.strides[d] / length * stride;
  return l;
}
bool pads_rows(const Shape& shape) {
  constexpr int64_t long_row = 1024;
  return shape.rank >= 2 && shape[-1] >= long_row && shape[-1] % 8 != 0;
}
bool has_padded_rows(const Layout& l) {
  return pads_rows(l.shape) && l.strides == padded_rows(l.shape).strides;
}
Layout channels_last(const Shape& shape) {
  check(shape.rank >= 3, "channels last of shape {}, not [n, c, ...]", shape);
  Layout l(joined(without(shape, 1), {shape[1]}));
  const int64_t step = l.strides[-1];
  for (int d = shape.rank - 1; d > 1; --d) l.strides[d] = l.strides[d - 1];
  l.strides[1] = step;
  l.shape = shape;
  return l;
}
MemoryFormat format_of(const Layout& l) {
  const bool may = l.shape.rank == 4 && l.strides.dim[1] == 1 && !l.is_contiguous();
  return may && l.is_channels_last() ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}
bool Layout::is_channels_last() const {
  if (shape.rank < 3) return false;
  const Layout memory = channels_last(shape);
  for (int d = 0; d < shape.rank; ++d)
    if (shape[d] != 1 && strides[d] != memory.strides[d]) return shape.size() == 0;
  return true;
}

// True unless each stride exceeds the extent of all dimensions with smaller ones.
bool Layout::repeats() const {
  if (is_contiguous()) return false;
  std::vector<int> order;
  for (int d = 0; d < rank(); ++d)
    if (shape[d] > 1) order.push_back(d);
  std::ranges::sort(order, {}, [&](int d) { return std::abs(strides[d]); });
  int64_t reach = 0;
  for (const int d : order) {
    if (std::abs(strides[d]) <= reach) return shape.size() > 0;
    reach += (shape[d] - 1) * std::abs(strides[d]);
  }
  return false;
}

Layout permute(const Layout& l, std::span<const int> order) {
  check(static_cast<int>(order.size()) == l.rank(),
        "the order must name all {1} dimensions, got {0}", order.size(), l.rank());
  Layout out = l;
  unsigned seen = 0;
  for (int d = 0; d < l.rank(); ++d) {
    const int from = wrap_dim(order[d], l.rank());
    check(!(seen >> from & 1), "the order {} names dimension {} twice", bracketed(order), from);
    seen |= 1u << from;
    out.shape[d] = l.shape[from];
    out.strides[d] = l.strides[from];
  }
  return out;
}

Layout transpose(const Layout& l, int a, int b) {
  a = wrap_dim(a, l.rank());
  b = wrap_dim(b, l.rank());
  Layout out = l;
  std::swap(out.shape[a], out.shape[b]);
  std::swap(out.strides[a], out.strides[b]);
  return out;
}

Layout slice(const Layout& l, int dim, int64_t start, int64_t stop, int64_t step) {
  dim = wrap_dim(dim, l.rank());
  check(step != 0, "step must not be 0");
  const int64_t size = l.shape[dim], most = std::max<int64_t>(size, 1);
  const bool forward = step > 0;
  const auto clamp = [=](int64_t i) {
    return std::clamp<int64_t>(i < 0 ? i + size : i, forward ? 0 : -1, forward ? size : size - 1);
  };
  start = clamp(start);
  stop = clamp(stop);
  step = std::clamp(step, -most, most);  // a longer step takes one element as well
  const int64_t reach = forward ? stop - start : start - stop, stride = forward ? step : -step;
  Layout out = l;
  out.shape[dim] = reach > 0 ? ceil_div(reach, stride) : 0;
  out.strides[dim] = times(l.strides[dim], step);
  if (reach > 0) out.offset += times(start, l.strides[dim]);
  return out;
}

Layout select(const Layout& l, int dim, int64_t index) {
  dim = wrap_dim(dim, l.rank());
  const int64_t size = l.shape[dim];
  check(-size <= index && index < size, "index {} is out of range for dimension {} of {}", index,
        dim, l.shape);
  Layout out = l;
  out.offset += (index < 0 ? index + size : index) * l.strides[dim];
  erase(out.shape, dim);
  erase(out.strides, dim);
  return out;
}

Layout expand(const Layout& l, const Shape& shape) {
  check_sizes(shape);
  const int extra = shape.rank - l.rank();
  check(extra >= 0, "{} cannot expand to {}", l.shape, shape);
  Layout out(shape, shape, l.offset);
  for (int d = 0; d < shape.rank; ++d) {
    const int64_t size = d < extra ? 1 : l.shape[d - extra];
    check(size == shape[d] || size == 1, "{} cannot expand to {}", l.shape, shape);
    out.strides[d] = d < extra || size != shape[d] ? 0 : l.strides[d - extra];
  }
  return out;
}

Layout unsqueeze(const Layout& l, int dim) {
  dim = wrap_dim(dim, l.rank() + 1);
  Layout out = l;
  insert(out.strides, dim, dim < l.rank() ? times(l.shape[dim], l.strides[dim]) : 1);
  insert(out.shape, dim, 1);
  return out;
}

Layout flip(const Layout& l, int dim) {
  dim = wrap_dim(dim, l.rank());
  Layout out = l;
  if (l.shape[dim] > 0) out.offset += times(l.shape[dim] - 1, l.strides[dim]);
  out.strides[dim] = times(l.strides[dim], -1);
  return out;
}

Layout unfold(const Layout& l, int dim, int64_t size, int64_t step) {
  dim = wrap_dim(dim, l.rank());
  const int64_t n = l.shape[dim];
  check(size > 0 && size <= n && step > 0,
        "windows of {} elements with step {} do not fit dimension {} of {}", size, step, dim,
        l.shape);
  step = std::min(step, n);  // a longer step makes one window as well
  Layout out = l;
  out.shape[dim] = (n - size) / step + 1;
  out.strides[dim] = times(l.strides[dim], step);
  out.shape.push_back(size);
  out.strides.push_back(l.strides[dim]);
  check_sizes(out.shape);
  return out;
}

Layout diagonal(const Layout& l, int64_t offset, int a, int b) {
  a = wrap_dim(a, l.rank());
  b = wrap_dim(b, l.rank());
  check(a != b, "a diagonal needs two dimensions, got {} twice", a);
  const int64_t rows = l.shape[a], columns = l.shape[b];
  offset = std::clamp(offset, -rows, columns);
  const int64_t size =
      offset < 0 ? std::min(rows + offset, columns) : std::min(rows, columns - offset);
  Layout out = l;
  if (size > 0) out.offset += offset < 0 ? -offset * l.strides[a] : offset * l.strides[b];
  for (const int d : {std::max(a, b), std::min(a, b)}) {
    erase(out.shape, d);
    erase(out.strides, d);
  }
  out.shape.push_back(size);
  out.strides.push_back(plus(l.strides[a], l.strides[b]));
  return out;
}

std::pair<int64_t, int64_t> extent(const Layout& l) {
  constexpr int64_t far = int64_t{1} << 62;  // so that a caller may add an offset
  int64_t first = l.offset, last = l.offset, reach = 0;
  bool overflows = false;
  for (int d = 0; d < l.rank(); ++d) {
    if (l.shape.dim[d] == 0) return {l.offset, l.offset};
    overflows |= __builtin_mul_overflow(l.shape.dim[d] - 1, l.strides.dim[d], &reach);
    overflows |= __builtin_add_overflow(first, std::min<int64_t>(reach, 0), &first);
    overflows |= __builtin_add_overflow(last, std::max<int64_t>(reach, 0), &last);
  }
  check(!overflows && -far < first && last < far,
        "positions of {} with strides {} from {} overflow", l.shape, l.strides, l.offset);
  return {first, last};
}

std::optional<Layout> reshape(const Layout& l, const Shape& shape) {
  std::optional<Layout> out(std::in_place, shape);
  const int64_t elements = l.shape.size(), wanted = shape.size();
  check(elements == wanted, "cannot reshape {} to {}: {} and {} elements", l.shape, shape, elements,
        wanted);
  out->offset = l.offset;
  if (l.is_contiguous()) return out;

  // Collapsed dimensions are maximal, so each new dimension must divide the rest of one of them.
  Layout runs = l;
  Layout* const one[] = {&runs};
  collapse(one);
  int run = runs.rank() - 1;
  int64_t left = runs.shape.dim[run], stride = runs.strides.dim[run];
  for (int d = shape.rank - 1; d >= 0; --d) {
    if (shape.dim[d] == 1) continue;
    if (left == 1) {
      --run;
      left = runs.shape.dim[run];
      stride = runs.strides.dim[run];
    }
    if (left % shape.dim[d] != 0) {
      out.reset();
      break;
    }
    out->strides.dim[d] = stride;
    stride *= shape.dim[d];
    left /= shape.dim[d];
  }
  return out;
}

void collapse(std::span<Layout* const> layouts) {
  if (layouts.empty()) return;
  const Shape shape = layouts[0]->shape;
  for (const Layout* l : layouts)
    check(l->shape == shape, "collapse needs layouts of one shape: {} and {}", shape, l->shape);

  int rank = 0;  // of the result; its last dimension is the one that grows
  for (int d = 0; d < shape.rank; ++d) {
    const int64_t size = shape.dim[d];
    if (size == 1) continue;
    const bool merges =
        rank > 0 && std::all_of(layouts.begin(), layouts.end(), [=](const Layout* l) {
          return l->strides.dim[rank - 1] == times(size, l->strides.dim[d]);
        });
    if (!merges) ++rank;
    for (Layout* l : layouts) {
      l->shape.dim[rank - 1] = merges ? l->shape.dim[rank - 1] * size : size;
      l->strides.dim[rank - 1] = l->strides.dim[d];
    }
  }
  for (Layout* l : layouts) {
    if (rank == 0) l->shape.dim[0] = l->strides.dim[0] = 1;
    l->shape.rank = l->strides.rank = std::max(rank, 1);
  }
}

Shape joined(const Shape& a, const Shape& b) { return spliced(a, a.rank, 0, b); }
Shape spliced(const Shape& shape, int at, int count, const Shape& others) {
  Shape out(std::span(shape.begin(), size_t(at)));
  for (const int64_t n : others) out.push_back(n);
  for (int d = at + count; d < shape.rank; ++d) out.push_back(shape[d]);
  return out;
}

}  // namespace internal
}  // namespace mixtape
