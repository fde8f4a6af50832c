#pragma once
// ContiguousLoop: an elementwise kernel as one plain loop over dense memory, whose length is a
// multiple of 16. Strided operands, and the end of dense ones, pass through a small buffer. So each
// loop is compiled once, and an element's bits do not depend on layout, position or threads.

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "kernels/common/always_inline.h"
#include "kernels/common/launch.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

// p[k]: n dense elements of operand k, or null if it is absent; n is a multiple of 16. Operands may
// alias each other exactly.
inline constexpr int64_t loop_multiple = 16;
using ContiguousLoop = void (*)(void* const* p, int64_t n, const void* context);
inline constexpr int max_operands = 6;
inline constexpr int64_t piece = 512;  // elements of a buffer

// Runs `loop` over up to six views of one shape, some of which may be absent; the last `outputs`
// are written, the others are read.
void for_each_contiguous(Launch& launch, std::initializer_list<const View*> operands,
                         ContiguousLoop loop, const void* context = nullptr, int outputs = 1);

// As for_each_contiguous, for a loop of this dtype: floats of another pass through buffers, too.
void for_each_as(Launch& launch, DType dtype, std::initializer_list<const View*> operands,
                 ContiguousLoop loop, const void* context = nullptr, int outputs = 1);

// y = x, both of one shape and dtype.
void copy(const View& x, const View& y);
// True if x is dense along another dimension than y, so that a fast transposing copy costs less
// than reading x with strides. Both have one shape and dtype.
bool is_transposed(const View& x, const View& y);
// The order of y in memory: its dimensions from the largest stride to the smallest. Work that may
// run in any order runs in this one.
class MemoryOrder {
 public:
  explicit MemoryOrder(const Layout& y);
  Layout of(const Layout& l) const;  // sorts the dimensions of a layout of the same rank

 private:
  int rank_, dim_[max_rank];
};

// Calls f(word) with an unsigned integer of `size` bytes: moving values needs no dtype.
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

// Calls f.operator()<T>() as visit() does, but for a bool with u8, of which it has the bytes: one
// loop serves both. (And g++ 12 makes no vectors of !bool.)
template <class F>
decltype(auto) visit_number(DType t, F&& f) {
  return visit(t, [&]<class T>() -> decltype(auto) {
    return f.template operator()<std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>();
  });
}

// y[i] = x[i] for less than a vector: as two overlapping halves, without a call.
template <int bytes, class Word>
MIXTAPE_ALWAYS_INLINE void copy_short(const Word* x, int64_t n, Word* y) {
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
// y[i] = x[i], in whole vectors to aligned memory; the first and the last one may overlap others.
// (If y is slightly ahead of x within its page, some memcpy take ten times as long:
// bench/worklog/123.)
template <class Word>
MIXTAPE_ALWAYS_INLINE void copy_run(const Word* x, int64_t n, Word* y) {
  constexpr int64_t width = 64 / sizeof(Word);
  if (n < width) return copy_short<64>(x, n, y);
  const auto one = [=](int64_t i) { std::memcpy(y + i, x + i, 64); };
  one(0);
  const auto beyond = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 64 / sizeof(Word));
  for (int64_t i = width - beyond; i + width < n; i += width) one(i);
  one(n - width);
}

// Visits the elements of a layout in row-major order, starting at any position.
class Walk {
 public:
  Walk() = default;
  Walk(void* data, size_t element_size, const Layout& collapsed, int64_t position);

  // The next elements with a common stride, at most `most` of them.
  struct Run {
    char* data;
    int64_t count;
    int64_t stride;
  };
  Run next(int64_t most);
  void gather(void* to, int64_t count);  // copies the next elements into dense memory
  void scatter(const void* from, int64_t count);

 private:
  // Calls f(data, count, stride) for the runs of the next elements.
  template <class Word, class F>
  void for_runs(int64_t count, F f);
  void carry(int d);  // once index_[d] may be beyond the end

  char* data_ = nullptr;  // the next element
  size_t size_ = 0;
  const Layout* layout_ = nullptr;
  int64_t index_[max_rank] = {};
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
