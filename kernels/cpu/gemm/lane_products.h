#pragma once
// Batches of small products: the lanes of a vector hold one number of as many products, so that
// products of any size fill vectors, and none needs a tile of its own. Each sum is in the order of
// k, as in a tile, so that its bits are the same.

#include <algorithm>
#include <utility>

#include "core/int_math.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// One operand of a product [rows, columns], whose lines lie along its dense dimension.
struct SmallMatrix {
  int64_t lines, length;                  // one line, if they follow each other
  int64_t line_stride, step, next;        // strides of lines, in a line, and in the batch
  int64_t packed_row, packed_column = 1;  // strides of the packed matrix, in vectors

  SmallMatrix(const Layout& x, int64_t batch_stride)
      : lines(x.shape[-2]),
        length(x.shape[-1]),
        line_stride(x.strides[-2]),
        step(x.strides[-1]),
        next(batch_stride),
        packed_row(length) {
    if ((line_stride == 1 && step != 1) || length == 1) {
      std::swap(lines, length);
      std::swap(line_stride, step);
      packed_row = 1;
      packed_column = length;
    }
    if (lines == 1 || line_stride == step * length) {
      length *= lines;
      lines = 1;
    }
  }
  // Packs the matrices of `count` products side by side, as T; `readable` are in memory from here
  // on.
  template <class T, class S>
  void pack(const Microkernel<T>& kernel, const S* x, int64_t count, int64_t readable,
            T* out) const {
    for (int64_t i = 0; i < lines; ++i, x += line_stride, out += length * kernel.lanes)
      kernel.pack({x, next, step, count, readable}, length, kernel.lanes, out);
  }
};

// Merges the dimensions of the batch that follow each other in all operands.
inline void merge_leading(Layout& a, Layout& b, Layout& c) {
  const auto even = [](const Layout& l) {
    return l.shape[-4] == 1 || l.shape[-3] == 1 || l.strides[-4] == l.strides[-3] * l.shape[-3];
  };
  while (c.rank() > 3 && even(a) && even(b) && even(c))
    for (Layout* const l : {&a, &b, &c}) {
      if (l->shape[-3] != 1) l->strides[-4] = l->strides[-3];
      l->shape[-4] *= l->shape[-3];
      for (Shape* const s : {&l->shape, &l->strides}) {
        for (const int d : {-3, -2}) (*s)[d] = (*s)[d + 1];
        --s->rank;
      }
    }
}

// Stores sums [elements, lanes] as `count` products, `next` apart and dense. Vectors that are
// longer than a product end in the next one, which is stored later.
template <class T, class O>
void store_products(const T* sums, int64_t elements, int64_t lanes, T alpha, O* to, int64_t count,
                    int64_t next) {
  constexpr int64_t width = Vec<T>::width;
  const int64_t end = (count - 1) * next + elements;
  for (int64_t first = (elements - 1) / width * width; first >= 0; first -= width)
    transpose_tiles<T>(
        std::min(width, elements - first), count,
        [&](int64_t i, int64_t lane, int64_t size) {
          return read<T>(sums + (first + i) * lanes + lane, size) * Vec<T>(alpha);
        },
        [&](int64_t lane, int64_t i, Vec<T> v, int64_t size) {
          const int64_t at = lane * next + first + i;
          write(to + at, v, next == elements ? std::min(width, end - at) : size);
        });
}

// True if products [m, k] @ [k, n] are cheaper one in each lane than as tiles: if they are short
// and their numbers stay in the first-level cache, and unless tiles would read whole vectors of b
// in place.
template <class T>
bool fits_lanes(const Microkernel<T>& kernel, int64_t m, int64_t n, int64_t k, bool b_is_dense) {
  constexpr int64_t cached = 16 << 10, longest = 256;  // bytes; multiplications for each lane
  const int64_t lanes = kernel.lanes;
  return kernel.lane_products && m * n * k <= longest * lanes &&
         (m * k + k * n + m * n) * lanes * int64_t{sizeof(T)} <= cached &&
         !(b_is_dense && n % (kernel.vectors * lanes) == 0);
}

// gemm() of a batch of small products without an epilogue, but for a factor; returns false for
// others, without computing anything.
template <class T, class S, class O>
bool multiply_in_lanes(const Microkernel<T>& kernel, In x, In y, const Epilogue& epilogue, Layout a,
                       Layout b, Layout c, Out z) {
  constexpr int64_t task = int64_t{1} << 16;  // multiplications
  const int64_t m = c.shape[-2], n = c.shape[-1], k = a.shape[-1], lanes = kernel.lanes;
  if (epilogue.bias || epilogue.residual || epilogue.before || epilogue.packed ||
      epilogue.activation != Activation::None)
    return false;
  if (c.rank() < 3 || !fits_lanes(kernel, m, n, k, b.strides[-1] == 1)) return false;
  if ((n > 1 && c.strides[-1] != 1) || (m > 1 && c.strides[-2] != n)) return false;
  merge_leading(a, b, c);
  const int64_t batch = c.shape[-3], next = c.strides[-3], groups = ceil_div(batch, lanes);
  if (batch < lanes) return false;
  const SmallMatrix of_a(a, a.strides[-3]), of_b(b, b.strides[-3]);
  const auto outer = [](Layout l) {
    l.shape.rank = l.strides.rank -= 3;
    return l;
  };
  const Layout outer_a = outer(a), outer_b = outer(b), outer_c = outer(c);
  const auto run = [&](int64_t begin, int64_t end) {
    Buffer<T> buffer((m * k + k * n + m * n) * lanes);
    T *const left = buffer.data(), *const right = left + m * k * lanes,
             *const sums = right + k * n * lanes;
    for (int64_t g = begin; g < end; ++g) {
      const int64_t i = g / groups, first = g % groups * lanes, readable = batch - first;
      const int64_t count = std::min(lanes, readable);
      of_a.pack(kernel, x.as<S>() + outer_a.at(i) + first * of_a.next, count, readable, left);
      of_b.pack(kernel, y.as<S>() + outer_b.at(i) + first * of_b.next, count, readable, right);
      kernel.lane_products({m, n, k, left, right, sums, of_a.packed_row, of_a.packed_column,
                            of_b.packed_row, of_b.packed_column});
      store_products(sums, m * n, lanes, T(epilogue.alpha),
                     z.as<O>() + outer_c.at(i) + first * next, count, next);
    }
  };
  const int64_t work = std::max<int64_t>(1, m * n * k * lanes);
  parallel_ranges(outer_c.shape.size() * groups, std::max<int64_t>(1, task / work), run);
  return true;
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
