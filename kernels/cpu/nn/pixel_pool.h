#pragma once
// Max pooling of images with channels last, and the reverse: lanes are channels, so that all
// windows are pooled alike.

#include <vector>

#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/nn/best.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Positions of as many lanes as T has, as they are stored.
template <class T>
struct StoredPositions {
  using Vector [[gnu::vector_size(Vec<T>::width * sizeof(int32_t))]] = int32_t;
};

template <class S>
void pool_pixels(In x, const Sampling& rows, const Sampling& columns, Out y, Out index) {
  using T = math_t<S>;
  using Positions = typename Best<T>::Positions;
  using Position = typename Best<T>::Position;
  using Stored = typename StoredPositions<T>::Vector;
  const int64_t channels = x.shape()[1], lines = x.shape()[0] * rows.to;
  const auto pool_line = [&](int64_t line) {
    const S* const image = x.as<S>() + line / rows.to * rows.from * columns.from * channels;
    const int64_t top = rows.begin(line % rows.to), bottom = rows.end(line % rows.to);
    for (int64_t q = 0; q < columns.to; ++q) {
      const int64_t left = columns.begin(q), right = columns.end(q),
                    to = (line * columns.to + q) * channels;
      for_each_vec<T>(channels, [&](int64_t c, int64_t count) {
        const auto pixel = [&](int64_t at) { return read<T>(image + at * channels + c, count).v; };
        const int64_t first = top * columns.from + left;
        Best<T> best{pixel(first), Positions{} + static_cast<Position>(first)};
        for (int64_t r = top; r < bottom; ++r)
          for (int64_t at = r * columns.from + left; at < r * columns.from + right; ++at)
            best.meet(pixel(at), Positions{} + static_cast<Position>(at));
        write(y.as<S>() + to + c, Vec<T>(best.value), count);
        const Stored stored = __builtin_convertvector(best.position, Stored);
        detail::write_first<int32_t, Vec<T>::width>(
            index.as<int32_t>() + to + c, reinterpret_cast<const int32_t*>(&stored), count);
      });
    }
  };
  parallel_ranges(lines, grain_of(x.size() / lines), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) pool_line(line);
  });
}

// For each element of a line, the windows that it is in: [first, end).
struct WindowsOf {
  std::vector<int64_t> first, end;

  explicit WindowsOf(const Sampling& s)
      : first(static_cast<size_t>(s.from)), end(static_cast<size_t>(s.from)) {
    for (int64_t i = s.to; i-- > 0;)
      for (int64_t j = s.begin(i); j < s.end(i); ++j) {
        first[j] = i;
        end[j] = std::max(end[j], i + 1);
      }
  }
};

// Each pixel of x is the sum of what the windows put there.
template <class S, class O>
void sum_windows(In y, In index, const Sampling& rows, const Sampling& columns, Out x) {
  using T = math_t<S>;
  using Positions = typename Best<T>::Positions;
  using Stored = typename StoredPositions<T>::Vector;
  const int64_t channels = x.shape()[1], lines = x.shape()[0] * rows.from;
  const WindowsOf down(rows), across(columns);
  const auto sum_line = [&](int64_t line) {
    const int64_t r = line % rows.from, image = line / rows.from * rows.to * columns.to;
    for (int64_t q = 0; q < columns.from; ++q)
      for_each_vec<T>(channels, [&](int64_t c, int64_t count) {
        const auto here = static_cast<typename Best<T>::Position>(r * columns.from + q);
        Vec<T> sum(T(0));
        for (int64_t a = down.first[r]; a < down.end[r]; ++a)
          for (int64_t b = across.first[q]; b < across.end[q]; ++b) {
            const int64_t at = (image + a * columns.to + b) * channels + c;
            Stored stored{};
            std::memcpy(&stored, index.as<int32_t>() + at,
                        static_cast<size_t>(count) * sizeof(int32_t));
            const Positions wins = __builtin_convertvector(stored, Positions) == here;
            sum += select(Mask<T>{wins}, read<T>(y.as<S>() + at, count), Vec<T>(T(0)));
          }
        write(x.as<O>() + (line * columns.from + q) * channels + c, sum, count);
      });
  };
  parallel_ranges(lines, grain_of(x.size() / lines), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) sum_line(line);
  });
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
