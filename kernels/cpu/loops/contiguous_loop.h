#pragma once
// How elementwise kernels see strided memory: as dense strips whose length is a multiple of 16.
// What is not dense, and the end of what is, passes through a small buffer. So a kernel is one
// plain loop, compiled once, and an element's bits do not depend on layout, position or number of
// threads.

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/common/launch.h"

namespace mixtape::kernels::cpu {

// p[k]: n dense elements of operand k, or null if that is absent; n is a multiple of 16. Operands
// may be the same memory.
using ContiguousLoop = void (*)(void* const* p, int64_t n, const void* context);

// Runs `strip` over up to six views of one shape, some of which may be absent; the last `outputs`
// are written, the others are read.
void for_each_contiguous(Launch& launch, std::initializer_list<const View*> operands,
                         ContiguousLoop strip, const void* context = nullptr, int outputs = 1);

// y = x, both of one shape and dtype.
void copy(const View& x, const View& y);
// Whether x is dense along another dimension than y, and a copy turns it fast: then reading it
// across its rows costs more than a copy. Both of one shape and dtype.
bool is_transposed(const View& x, const View& y);
// The dimensions of y from its largest stride to its smallest: the order of its memory. What may be
// done in any order is done in this one.
class MemoryOrder {
 public:
  explicit MemoryOrder(const Layout& y);
  Layout of(const Layout& l) const;  // its dimensions, as many as those of y, sorted

 private:
  int rank_, dim_[max_rank];
};

// f(word) with an unsigned number of `size` bytes: what is only moved need not be understood.
template <class F>
void with_word(size_t size, F f) {
  switch (size) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

// y[i] = x[i] for less than a vector: as two halves that may overlap, without a call.
template <int bytes, class Word>
[[gnu::always_inline]] inline void copy_short(const Word* x, int64_t n, Word* y) {
  if constexpr (bytes < 2 * sizeof(Word)) {
    if (n > 0) *y = *x;
  } else if (constexpr int64_t half = bytes / 2 / sizeof(Word); n < half) {
    copy_short<bytes / 2>(x, n, y);
  } else {
    char first[bytes / 2], last[bytes / 2];
    std::memcpy(first, x, sizeof first);
    std::memcpy(last, x + n - half, sizeof last);
    std::memcpy(y, first, sizeof first);
    std::memcpy(y + n - half, last, sizeof last);
  }
}
// y[i] = x[i], by whole vectors to aligned memory; the first and the last may overlap others.
// (Where y is a little ahead of x in its page, some memcpy take ten times as long:
// bench/worklog/123.)
template <class Word>
[[gnu::always_inline]] inline void copy_run(const Word* x, int64_t n, Word* y) {
  constexpr int64_t width = 64 / sizeof(Word);
  if (n < width) return copy_short<64>(x, n, y);
  const auto one = [=](int64_t i) { std::memcpy(y + i, x + i, 64); };
  one(0);
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 64 / sizeof(Word));
  for (int64_t i = width - beyond; i + width < n; i += width) one(i);
  one(n - width);
}

// Visits the elements of a layout in row-major order, from any position on.
class Walk {
 public:
  Walk() = default;
  Walk(void* data, size_t element_size, const Layout& collapsed, int64_t position);

  // The next elements that lie at one stride, up to `most` of them.
  struct Run {
    char* data;
    int64_t count;
    int64_t stride;
  };
  Run next(int64_t most);
  void gather(void* to, int64_t count);  // copies the next elements into dense memory
  void scatter(const void* from, int64_t count);

 private:
  char* data_ = nullptr;  // the next element
  size_t size_ = 0;
  const Layout* layout_ = nullptr;
  int64_t index_[max_rank] = {};
};

}  // namespace mixtape::kernels::cpu
