// Mean pools and interpolation: each result is a weighted sum over a rectangle, and each weight is
// a row weight times a column weight. So rows are summed first, in vectors, then columns. A column
// of an image with channels last is all channels of its pixels, of a plane one element.

#include <bit>
#include <numeric>
#include <vector>

#include "kernels/common/elementwise.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t piece = 32;  // the terms of a sum that are added one after the other

// The place where a longer sum is cut into two, so that its error grows with the logarithm of its
// length.
int64_t middle(int64_t begin, int64_t end) { return begin + round_up((end - begin) / 2, piece); }
template <class T, class F>
Vec<T> sum_of_halves(int64_t begin, int64_t end, F term);
template <class T, class F>
MIXTAPE_ALWAYS_INLINE Vec<T> sum_of(int64_t begin, int64_t end, F term) {
  if (end - begin > piece) [[unlikely]]
    return sum_of_halves<T>(begin, end, term);
  Vec<T> sum(T(0));
  for (int64_t k = begin; k < end; ++k) sum += term(k);
  return sum;
}
template <class T, class F>
[[gnu::noinline]] Vec<T> sum_of_halves(int64_t begin, int64_t end, F term) {
  const int64_t cut = middle(begin, end);
  return sum_of<T>(begin, cut, term) + sum_of<T>(cut, end, term);
}

template <class T>
int64_t whole_vectors(int64_t n) {
  return round_up(n, Vec<T>::width);
}

// Element i of a line is the sum of weight[k] * x[source[k]] for k in [first[i], first[i + 1]).
template <class T>
struct Taps {
  std::vector<int64_t> first;
  std::vector<int32_t> source;
  std::vector<T> weight;

  Taps(const Sampling& s, bool transposed) : first((transposed ? s.from : s.to) + 1) {
    const auto each = [&](auto tap) {  // tap(element, position in x, weight)
      for (int64_t i = 0; i < s.to; ++i)
        for (int64_t j = s.begin(i); j < s.end(i); ++j)
          transposed ? tap(j, i, s.weight(i, j)) : tap(i, j, s.weight(i, j));
    };
    each([&](int64_t i, int64_t, double) { ++first[i + 1]; });
    std::partial_sum(first.begin(), first.end(), first.begin());
    source.resize(first.back());
    weight.resize(first.back());
    each([&, next = first](int64_t i, int64_t j, double w) mutable {
      source[next[i]] = static_cast<int32_t>(j);
      weight[next[i]++] = static_cast<T>(w);
    });
  }
  int64_t length() const { return static_cast<int64_t>(first.size()) - 1; }
};

// The same with the k-th taps of all elements side by side, for loops over whole vectors of
// elements. A missing tap has weight 0 and reads x[x_length], a zero.
template <class T>
struct Columns {
  int64_t length, width, depth = 0;  // width: length rounded up to whole vectors
  std::vector<int32_t> source;
  std::vector<T> weight;

  Columns(const Taps<T>& taps, int64_t x_length)
      : length(taps.length()), width(whole_vectors<T>(length)) {
    for (int64_t i = 0; i < length; ++i) depth = std::max(depth, taps.first[i + 1] - taps.first[i]);
    source.assign(depth * width, static_cast<int32_t>(x_length));
    weight.assign(depth * width, T(0));
    for (int64_t i = 0; i < length; ++i)
      for (int64_t k = taps.first[i]; k < taps.first[i + 1]; ++k) {
        source[(k - taps.first[i]) * width + i] = taps.source[k];
        weight[(k - taps.first[i]) * width + i] = taps.weight[k];
      }
  }

  // y has room for room() lines of `width`, the first of which is the result.
  int64_t room() const { return 1 + std::bit_width(uint64_t(depth)); }
  void sum(const T* x, T* y) const { sum(x, 0, depth, y); }

 private:
  // (Out of line: g++ would inline the recursion many times.)
  [[gnu::noinline]] void sum(const T* x, int64_t begin, int64_t end, T* __restrict y) const {
    if (end - begin <= piece) return add(x, begin, end, y);
    const int64_t cut = middle(begin, end);
    T* const __restrict other = y + width;
    sum(x, begin, cut, y);
    sum(x, cut, end, other);
    for (int64_t i = 0; i < width; ++i) y[i] += other[i];
  }
  // y = the sums of taps [begin, end).
  void add(const T* __restrict x, int64_t begin, int64_t end, T* __restrict y) const {
    std::fill_n(y, width, T(0));
    for (int64_t k = begin; k < end; ++k) {
      const int32_t* __restrict const at = source.data() + k * width;
      const T* __restrict const w = weight.data() + k * width;
      for (int64_t i = 0; i < width; ++i) y[i] += w[i] * x[at[i]];
    }
  }
};

// The number of copies of each element, if the result is only that; otherwise 0.
int64_t repeats(const Sampling& s) {
  const int64_t n = s.to / s.from;
  if (s.kind != Sampling::Kind::Nearest || n * s.from != s.to) return 0;
  for (int64_t i = 0; i < s.to; ++i)
    if (s.begin(i) != i / n) return 0;
  return n;
}

// True if there is one result, the mean of all elements.
bool is_mean(const Sampling& s) {
  const bool pool = s.kind == Sampling::Kind::Windows || s.kind == Sampling::Kind::Adaptive;
  return pool && s.to == 1 && s.end(0) - s.begin(0) == s.from &&
         s.weight(0, 0) == 1 / static_cast<double>(s.from);
}

// Sums columns of a line of pixels.
template <class T, class O>
void sum_pixels(const Taps<T>& across, const T* line, int64_t channels, O* y) {
  for (int64_t i = 0; i < across.length(); ++i, y += channels)
    for_each_vec<T>(channels, [&](int64_t c, int64_t count) {
      const auto term = [&](int64_t k) {
        return Vec<T>(across.weight[k]) * load<T, T>(line + across.source[k] * channels + c);
      };
      write(y + c, sum_of<T>(across.first[i], across.first[i + 1], term), count);
    });
}

// Elements of a column: all channels of a pixel, or one of a plane.
int64_t column_size(In x, In y) {
  return has_channels_last(x) || has_channels_last(y) ? x.shape()[1] : 1;
}

// Runs other kernels where they compute the same: copies, and means of whole planes. Returns false,
// without computing anything, elsewhere.
bool resample_whole(Launch& launch, In x, const Sampling& rows, const Sampling& columns,
                    bool transposed, Out y) {
  const int64_t channels = column_size(x, y);
  if (const int64_t r = repeats(rows), c = repeats(columns); !transposed && r > 0 && c > 0) {
    const int64_t width = columns.from * channels;
    const Shape each{x.size() / width, r, columns.from, c, channels};
    const View repeated{x.data, x.dtype, Layout(each, {width, 0, channels, 0, 1})};
    convert(launch, repeated, {y.data, y.dtype, Layout(each)});
    return true;
  }
  if (!is_mean(rows) || !is_mean(columns)) return false;
  const int64_t n = rows.from * columns.from, planes = (transposed ? x : y).size() / channels;
  const Shape all{planes, n, channels};
  if (transposed)
    binary_scalar(launch, index_in<Mul>(BinaryOps{}),
                  {x.data, x.dtype, Layout(all, {channels, 0, 1})}, 1 / static_cast<double>(n),
                  false, {y.data, y.dtype, Layout(all)});
  else
    reduce(launch, Reduce::Mean, {x.data, x.dtype, Layout(all)},
           {y.data, y.dtype, Layout({planes, 1, channels})});
  return true;
}

}  // namespace

// Within the tensor, the last vector of a row extends into the next row: values read there are not
// used, and values written there are overwritten later.
void resample(Launch& launch, In x, const Sampling& rows, const Sampling& columns, bool transposed,
              Out y) {
  if (y.size() == 0 || resample_whole(launch, x, rows, columns, transposed, y)) return;
  const int64_t channels = column_size(x, y), width = x.shape()[-1] * channels,
                x_plane = x.shape()[-2] * width;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    constexpr int64_t lanes = Vec<T>::width;
    const Taps<T> down(rows, transposed), along(columns, transposed);
    const Columns<T> across(along, width);
    const int64_t y_width = across.length * channels;
    const auto run = [&](int64_t begin, int64_t end) {
      Buffer<T> buffer(whole_vectors<T>(width + lanes) + across.room() * across.width);
      T *const line = buffer.data(), *const sums = line + whole_vectors<T>(width + lanes);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t plane = i / down.length() * x_plane, r = i % down.length();
        for (int64_t c = 0; c < width; c += lanes) {
          const auto term = [&](int64_t k) {
            const int64_t at = plane + down.source[k] * width + c;
            return Vec<T>(down.weight[k]) * read<T>(x.as<S>() + at, std::min(lanes, x.size() - at));
          };
          store(line + c, sum_of<T>(down.first[r], down.first[r + 1], term));
        }
        if (channels > 1) {
          sum_pixels(along, line, channels, y.as<O>() + i * y_width);
          continue;
        }
        line[width] = T(0);
        across.sum(line, sums);
        for (int64_t c = 0; c < across.length; c += lanes) {
          const int64_t at = i * across.length + c;
          write(y.as<O>() + at, load<T, T>(sums + c), std::min(lanes, end * across.length - at));
        }
      }
    };
    const int64_t work = std::max(width, y_width * across.depth);
    parallel_ranges(y.size() / y_width, grain_of(work), run);
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
