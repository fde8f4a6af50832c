// Copies between layouts that are dense along different dimensions: square tiles, transposed in
// registers, so that memory is read and written by whole cache lines.

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strips.h"

namespace mixtape::kernels::cpu {
namespace {

// The dimensions in which x and y are dense.
struct Dense {
  int x = -1, y = -1;

  Dense(const Layout& lx, const Layout& ly) {
    for (int d = 0; d < ly.rank(); ++d) {
      if (lx.strides[d] == 1 && ly.shape[d] > 1) x = d;
      if (ly.strides[d] == 1 && ly.shape[d] > 1) y = d;
    }
  }
};

template <class Word>
struct Tile {
  static constexpr int size = std::min<int>(16, 64 / sizeof(Word));
  using Row __attribute__((vector_size(size * sizeof(Word)))) = Word;

  template <int half, int... i>
  static Row interleaved(Row a, Row b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, ((i + half * size) / 2 + i % 2 * size)...);
  }
  // y[r, c] = x[c, r]. Interleaving the rows of both halves log2(size) times transposes them.
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

// y[r, c] = x[c, r]
template <class Word>
void copy_plane(const Word* x, int64_t x_step, Word* y, int64_t y_step, int64_t rows,
                int64_t columns) {
  constexpr int64_t size = Tile<Word>::size;
  for (int64_t c = 0; c < columns; c += size) {
    for (int64_t r = 0; r < rows; r += size) {
      const Word* const from = x + c * x_step + r;
      Word* const to = y + r * y_step + c;
      const int64_t height = std::min(size, rows - r), width = std::min(size, columns - c);
      if (height == size && width == size) {
        Tile<Word>::copy(from, x_step, to, y_step);
      } else {
        for (int64_t i = 0; i < height; ++i)
          for (int64_t j = 0; j < width; ++j) to[i * y_step + j] = from[j * x_step + i];
      }
    }
  }
}

}  // namespace

bool is_transposed(const View& x, const View& y) {
  const Dense d(x.layout, y.layout);
  return y.size() >= 4096 && d.x >= 0 && d.y >= 0 && d.x != d.y && x.strides()[d.y] != 0 &&
         x.shape()[d.x] >= 8 && x.shape()[d.y] >= 8;
}

void copy_transposed(const View& x, const View& y) {
  Layout lx = x.layout, ly = y.layout;
  const Dense d(lx, ly);
  const int64_t rows = ly.shape[d.x], columns = ly.shape[d.y];
  const int64_t x_step = lx.strides[d.y], y_step = ly.strides[d.x];
  constexpr int64_t band = 64;  // rows that a chunk of work copies
  const int64_t bands = (rows + band - 1) / band, planes = y.size() / (rows * columns);
  for (Layout* l : {&lx, &ly})
    l->shape.dim[d.x] = l->shape.dim[d.y] = 1;  // what is left counts planes
  with_word(size_of(y.dtype), [&]<class Word>(Word) {
    parallel_for(planes * bands, [&](int64_t i) {
      const int64_t r = i % bands * band;
      copy_plane(x.as<Word>() + lx.at(i / bands) + r, x_step,
                 y.as<Word>() + ly.at(i / bands) + r * y_step, y_step, std::min(band, rows - r),
                 columns);
    });
  });
}

}  // namespace mixtape::kernels::cpu
