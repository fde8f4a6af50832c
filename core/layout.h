#pragma once
// Shape and Layout: the sizes and strides that map array indices to elements in memory. Every view
// of a tensor is one of the pure functions below. Plain data, so it can be a kernel's argument.

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape {

inline constexpr int max_rank = 8;  // dimensions of a tensor

// Up to max_rank sizes, or strides in elements. A negative index counts from the end.
struct Shape {
  int64_t dim[max_rank] = {};
  int rank = 0;

  Shape() = default;
  // Throw Error above max_rank.
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);

  // Throws Error beyond the rank (unchecked in device code).
  [[gnu::always_inline]] MIXTAPE_HD int64_t operator[](int i) const { return dim[within(i)]; }
  [[gnu::always_inline]] MIXTAPE_HD int64_t& operator[](int i) { return dim[within(i)]; }
  MIXTAPE_HD int64_t size() const {  // their product: the number of elements
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[i];
    return n;
  }
  int64_t front() const { return (*this)[0]; }       // the outermost size; throws Error without one
  int64_t back() const { return (*this)[-1]; }       // the innermost size
  const int64_t* begin() const { return dim; }       // the outermost size
  const int64_t* end() const { return dim + rank; }  // behind the innermost
  void push_back(int64_t size);                      // throws Error above max_rank
  std::string to_string() const;                     // "[2, 3]"

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank != b.rank) return false;
    for (int i = 0; i < a.rank; ++i)
      if (a.dim[i] != b.dim[i]) return false;
    return true;
  }

 private:
  [[gnu::always_inline]] MIXTAPE_HD int within(int i) const {
    const int at = i < 0 ? i + rank : i;
#ifndef __CUDA_ARCH__
    if (at < 0 || at >= rank) [[unlikely]]
      refuse(i);
#endif
    return at;
  }
  [[noreturn]] void refuse(int i) const;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape);

// The order of an image's elements [n, c, h, w] in memory: row-major, or with the channels of a
// pixel side by side, as tensor cores read them.
enum class MemoryFormat : uint8_t { Contiguous, ChannelsLast };

namespace internal {

// Element (i, j, ...) is at offset + i * strides[0] + j * strides[1] + ...
struct Layout {
  Shape shape, strides;
  int64_t offset = 0;

  Layout() = default;
  explicit Layout(const Shape& shape);  // row-major and dense
  Layout(const Shape& sizes, const Shape& steps, int64_t first = 0)
      : shape(sizes), strides(steps), offset(first) {}  // in elements

  int rank() const { return shape.rank; }  // the number of dimensions
  bool is_contiguous() const {             // row-major and dense (sizes of 1 may have any stride)
    int64_t dense = 1;
    bool ok = true;
    for (int d = shape.rank - 1; d >= 0; --d) {
      const int64_t size = shape.dim[d];
      if (size == 0) return true;
      if (size != 1 && strides.dim[d] != dense) ok = false;
      dense *= size;
    }
    return ok;
  }
  bool is_dense() const { return is_contiguous() || is_channels_last(); }  // no gaps, either order
  bool is_channels_last() const;  // dense, [n, c, ...] with the strides of [n, ..., c]
  // True if several elements may share memory, as after expand and unfold.
  bool repeats() const;
  // The position of the i-th element in row-major order.
  MIXTAPE_HD int64_t at(int64_t i) const {
    int64_t o = offset;
    for (int d = shape.rank - 1; d >= 0; --d) {
      o += (i % shape.dim[d]) * strides.dim[d];
      i /= shape.dim[d];
    }
    return o;
  }
  // The same, but with the first element at that position.
  Layout at_offset(int64_t first) const { return {shape, strides, first}; }
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout channels_last(const Shape&);  // [n, c, ...] as a dense [n, ..., c]
// ChannelsLast for images in that order, unless they are row-major as well.
MemoryFormat format_of(const Layout&);
// Row-major, but each row begins at a multiple of 16 bytes in any float dtype except f64. For long
// rows on a GPU, which products then read 16 bytes at a time.
Layout padded_rows(const Shape&);
bool pads_rows(const Shape&);           // rows are long, and their length is not such a multiple
bool has_padded_rows(const Layout& l);  // pads_rows(), and with these strides
// The functions below throw Error, with both values, if arguments do not fit. Dimensions may be
// negative.
Layout permute(const Layout&, std::span<const int> order);
Layout transpose(const Layout&, int a, int b);  // swaps a and b
// As in Python. The lowest int64_t stands for the position before the first element, where a
// negative step may stop.
Layout slice(const Layout&, int dim, int64_t start, int64_t stop, int64_t step = 1);
Layout select(const Layout&, int dim, int64_t index);  // drops dim
Layout expand(const Layout&, const Shape&);            // stride 0 where a size of 1 is repeated
Layout unsqueeze(const Layout&, int dim);              // inserts a size of 1 there
Layout flip(const Layout&, int dim);                   // reverses the order
// Windows of `size` elements, `step` apart, as a new last dimension.
Layout unfold(const Layout&, int dim, int64_t size, int64_t step);
// x[..., i, i + offset]: a new last dimension replaces a and b.
Layout diagonal(const Layout&, int64_t offset, int a, int b);
// The lowest and the highest position of an element; meaningless if there are none. Throws Error
// if they overflow.
std::pair<int64_t, int64_t> extent(const Layout&);
std::optional<Layout> reshape(const Layout&, const Shape&);  // none if it needs a copy
// Merges dimensions of several layouts of the same shape where all of them allow it, for the loops
// of a strided kernel. Keeps the order of elements and at least one dimension.
void collapse(std::span<Layout* const> layouts);

Shape joined(const Shape& a, const Shape& b);  // the sizes of a, then those of b
// The shape with `count` dimensions from `at` on replaced by others.
Shape spliced(const Shape& shape, int at, int count, const Shape& others);
// The shape without the dimension, which counts from the front.
inline Shape without(const Shape& shape, int dim) { return spliced(shape, dim, 1, {}); }
// The shape with another size in a dimension, which may count from the end.
inline Shape with_size(Shape shape, int dim, int64_t size) {
  shape[dim] = size;
  return shape;
}

}  // namespace internal

// Throw Error as above.
int wrap_dim(int dim, int rank);                     // -1 -> rank - 1
Shape infer(const Shape& wanted, int64_t elements);  // fills in one -1
Shape broadcast(const Shape& a, const Shape& b);     // NumPy's rule

}  // namespace mixtape
