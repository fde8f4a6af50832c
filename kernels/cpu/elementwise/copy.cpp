// Copies between layouts, as planes in the order of the output's memory: columns are the dimension
// in which y is dense, rows the one in which x is. If these are the same, a plane is copied row by
// row; otherwise in square tiles, transposed in registers, so that reads and writes use whole cache
// lines. Measured in bench/worklog/100.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/simd/vec.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

template <class Word>
struct Tile {
  static constexpr int size = std::min<int>(16, vector_bytes / sizeof(Word));
  using Row __attribute__((vector_size(size * sizeof(Word)))) = Word;

  template <int half, int... i>
  static Row interleaved(Row a, Row b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, ((i + half * size) / 2 + i % 2 * size)...);
  }
  // y[r, c] = x[c, r]. Interleaving the two halves of the rows log2(size) times transposes a tile.
  static void copy(const Word* x, int64_t x_step, Word* y, int64_t y_step) {
    constexpr std::make_integer_sequence<int, size> lanes;
    Row a[size], b[size];
    for (int c = 0; c < size; ++c) std::memcpy(&a[c], x + c * x_step, sizeof(Row));
#pragma GCC unroll 4
    for (int stage = 1; stage < size; stage *= 2) {
      for (int i = 0; i < size / 2; ++i) {
        b[2 * i] = interleaved<0>(a[i], a[i + size / 2], lanes);
        b[2 * i + 1] = interleaved<1>(a[i], a[i + size / 2], lanes);
      }
      for (int i = 0; i < size; ++i) a[i] = b[i];
    }
    for (int r = 0; r < size; ++r) std::memcpy(y + r * y_step, &a[r], sizeof(Row));
  }
};

// One plane of x and y.
template <class Word>
struct Plane {
  const Word* x;
  Word* y;
  int64_t rows, columns;
  int64_t x_row, x_column, y_row, y_column;  // strides

  // True if x is dense along its columns, and its rows are no repetition worth filling.
  bool transposed() const {
    return x_row == 1 && x_column != 1 && (x_column != 0 || columns < 32) && rows > 1;
  }
  void copy() const {
    if (transposed() && y_column == 1)
      transpose();
    else
      for (int64_t r = 0; r < rows; ++r) copy_row(x + r * x_row, y + r * y_row);
  }

 private:
  void copy_row(const Word* from, Word* to) const {
    if (x_column == 1 && y_column == 1)
      copy_run(from, columns, to);
    else if (x_column == 0 && y_column == 1)
      std::fill_n(to, columns, *from);
    else if (x_column == -1 && y_column == 1)
      for (int64_t c = 0; c < columns; ++c) to[c] = from[-c];
    else
      for (int64_t c = 0; c < columns; ++c) to[c * y_column] = from[c * x_column];
  }

  // y[r, c] = x[c, r], both dense along their last index.
  void transpose() const {
    if (columns <= 4 && y_row == columns)
      return few(columns, [this]<int n>(std::integral_constant<int, n>) {
        for (int64_t r = 0; r < rows; ++r)
          for (int c = 0; c < n; ++c) y[r * n + c] = x[c * x_column + r];
      });
    if (rows <= 4 && x_column == rows)
      return few(rows, [this]<int n>(std::integral_constant<int, n>) {
        for (int64_t c = 0; c < columns; ++c)
          for (int r = 0; r < n; ++r) y[r * y_row + c] = x[c * n + r];
      });
    constexpr int64_t size = Tile<Word>::size;
    for (int64_t c = 0; c < columns; c += size) {
      for (int64_t r = 0; r < rows; r += size) {
        const Word* const from = x + c * x_column + r;
        Word* const to = y + r * y_row + c;
        const int64_t height = std::min(size, rows - r), width = std::min(size, columns - c);
        if (height == size && width == size) {
          Tile<Word>::copy(from, x_column, to, y_row);
        } else {
          for (int64_t i = 0; i < height; ++i)
            for (int64_t j = 0; j < width; ++j) to[i * y_row + j] = from[j * x_column + i];
        }
      }
    }
  }
  // Calls f with n as a compile-time constant, so that its loops are vectorised.
  template <class F>
  static void few(int64_t n, F f) {
    n == 2   ? f(std::integral_constant<int, 2>())
    : n == 3 ? f(std::integral_constant<int, 3>())
             : f(std::integral_constant<int, 4>());
  }
};

// Splits both layouts into planes, with dimensions in the order of y's memory, collapsed.
struct CopyPlan {
  Layout x, y;  // of the planes: their rows and columns have size 1
  int64_t rows = 1, columns = 1, x_row = 0, x_column, y_row = 0, y_column;

  CopyPlan(const Layout& from, const Layout& to) {
    const MemoryOrder order(to);
    x = order.of(from);
    y = order.of(to);
    Layout* const both[] = {&x, &y};
    collapse(both);
    const int last = y.rank() - 1;
    int row = last - 1;
    if (x.strides[last] != 1)
      for (int d = 0; d < last; ++d)
        if (x.strides[d] == 1) row = d;
    take(last, columns, x_column, y_column);
    if (row >= 0) take(row, rows, x_row, y_row);
  }

 private:
  void take(int d, int64_t& size, int64_t& in_x, int64_t& in_y) {
    size = x.shape[d];
    in_x = x.strides[d];
    in_y = y.strides[d];
    x.shape.dim[d] = y.shape.dim[d] = 1;
  }
};

// Iterates over the offsets of planes in both layouts.
class PlaneIterator {
 public:
  int64_t x, y;

  PlaneIterator(const CopyPlan& plan, int64_t first)
      : x(plan.x.at(first)), y(plan.y.at(first)), plan_(plan) {
    for (int d = plan.x.rank() - 1; d >= 0; --d) {
      index_[d] = first % plan.x.shape.dim[d];
      first /= plan.x.shape.dim[d];
    }
  }
  void next() {
    for (int d = plan_.x.rank() - 1; d >= 0; --d) {
      const int64_t size = plan_.x.shape.dim[d];
      if (size == 1) continue;
      x += plan_.x.strides.dim[d];
      y += plan_.y.strides.dim[d];
      if (++index_[d] < size) return;
      x -= size * plan_.x.strides.dim[d];
      y -= size * plan_.y.strides.dim[d];
      index_[d] = 0;
    }
  }

 private:
  const CopyPlan& plan_;
  int64_t index_[max_rank] = {};
};

}  // namespace

MemoryOrder::MemoryOrder(const Layout& y) : rank_(y.rank()) {
  for (int d = 0; d < rank_; ++d) {
    int at = d;
    for (; at > 0 && std::abs(y.strides[dim_[at - 1]]) < std::abs(y.strides[d]); --at)
      dim_[at] = dim_[at - 1];
    dim_[at] = d;
  }
}

Layout MemoryOrder::of(const Layout& l) const {
  Layout sorted;
  sorted.shape.rank = sorted.strides.rank = rank_;
  for (int d = 0; d < rank_; ++d) {
    sorted.shape.dim[d] = l.shape.dim[dim_[d]];
    sorted.strides.dim[d] = l.strides.dim[dim_[d]];
  }
  return sorted;
}

bool is_transposed(const View& x, const View& y) {
  if (y.size() < 4096) return false;
  const CopyPlan plan(x.layout, y.layout);
  const bool few_rows = plan.rows <= 4 && plan.x_column == plan.rows;  // a copy interleaves them
  return plan.x_row == 1 && plan.y_column == 1 && plan.x_column != 0 && plan.x_column != 1 &&
         (plan.rows >= 8 || few_rows) && plan.columns >= 2;
}

void copy(const View& x, const View& y) {
  if (y.size() == 0) return;
  const CopyPlan plan(x.layout, y.layout);
  // Work is cut into blocks of rows and columns; a chunk has one large or many small ones.
  const bool transposed = plan.x_row == 1 && plan.x_column != 1;
  const int64_t columns = std::min(plan.columns, transposed ? 4096 : grain);
  const int64_t rows = std::min(plan.rows, transposed ? 64 : grain_of(columns));
  const int64_t across = ceil_div(plan.columns, columns),
                blocks = across * ceil_div(plan.rows, rows);
  with_word(size_of(y.dtype), [&]<class Word>(Word) {
    parallel_ranges(plan.x.shape.size() * blocks, grain_of(rows * columns),
                    [&](int64_t begin, int64_t end) {
                      PlaneIterator plane(plan, begin / blocks);
                      for (int64_t i = begin; i < end; ++i) {
                        const int64_t block = i % blocks;
                        if (block == 0 && i > begin) plane.next();
                        const int64_t r = block / across * rows, c = block % across * columns;
                        Plane<Word>{x.as<Word>() + plane.x + r * plan.x_row + c * plan.x_column,
                                    y.as<Word>() + plane.y + r * plan.y_row + c * plan.y_column,
                                    std::min(rows, plan.rows - r),
                                    std::min(columns, plan.columns - c),
                                    plan.x_row,
                                    plan.x_column,
                                    plan.y_row,
                                    plan.y_column}
                            .copy();
                      }
                    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
