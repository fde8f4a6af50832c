// Sorting by keys (kernels/common/order.h): short rows by comparison, long ones by radix.

#include <algorithm>

#include "kernels/common/order.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/line_iterator.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

template <class K>
struct Pair {
  K key;
  uint32_t at;
};
template <class K>
bool operator<(const Pair<K>& a, const Pair<K>& b) {
  return a.key != b.key ? a.key < b.key : a.at < b.at;
}

// Stable radix sort by digits of 8 bits, from the lowest. Returns the array that holds the result.
template <class K>
Pair<K>* sort_by_digits(Pair<K>* from, Pair<K>* to, int64_t n) {
  uint32_t counts[sizeof(K)][256] = {};
  for (int64_t i = 0; i < n; ++i)
    for (size_t d = 0; d < sizeof(K); ++d) ++counts[d][from[i].key >> (8 * d) & 0xff];
  for (size_t d = 0; d < sizeof(K); ++d) {
    if (counts[d][from[0].key >> (8 * d) & 0xff] == static_cast<uint32_t>(n))
      continue;  // the same in all
    uint32_t total = 0;
    for (uint32_t& count : counts[d]) total += std::exchange(count, total);
    for (int64_t i = 0; i < n; ++i) to[counts[d][from[i].key >> (8 * d) & 0xff]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

// The first position of the maximum or minimum in a dense line: finds the best piece first.
template <bool largest, class T>
int64_t winner(const T* x, int64_t n) {
  constexpr int64_t piece = 128;
  Key<T> best = 0;
  int64_t at = 0;
  for (int64_t begin = 0; begin < n; begin += piece) {
    Key<T> top = 0;
    for (int64_t i = begin; i < std::min(n, begin + piece); ++i)
      top = std::max(top, merit<largest>(x[i]));
    if (top <= best) continue;
    best = top;
    at = begin;
  }
  while (merit<largest>(x[at]) != best) ++at;
  return at;
}

constexpr int64_t most_columns = 64;

// The same for neighbouring lines, side by side.
template <bool largest, class T>
void winners(const T* x, int64_t n, int64_t along, int64_t next, int64_t columns, int64_t* at) {
  Key<T> best[most_columns];
  for (int64_t c = 0; c < columns; ++c) {
    best[c] = merit<largest>(x[c * next]);
    at[c] = 0;
  }
  for (int64_t i = 1; i < n; ++i)
    for (int64_t c = 0; c < columns; ++c) {
      const Key<T> v = merit<largest>(x[i * along + c * next]);
      at[c] = v > best[c] ? i : at[c];
      best[c] = std::max(best[c], v);
    }
}

template <bool largest>
void arg_reduce_with(int dim, In x, Out y) {
  const LineIterator<2> lines(dim, x.shape(), {x.strides(), y.strides()});
  visit_number(x.dtype, [&]<class T>() {
    const bool dense = lines.along[0] == 1;
    const int64_t most = dense ? std::min(grain_of(lines.length), most_columns) : most_columns;
    lines.for_blocks(most, lines.length, [&](const int64_t(&at)[2], int64_t columns, int64_t n) {
      const T* const from = x.as<T>() + at[0];
      int64_t* const to = y.as<int64_t>() + at[1];
      int64_t positions[most_columns];
      if (dense)
        for (int64_t c = 0; c < columns; ++c)
          positions[c] = winner<largest>(from + c * lines.next[0], n);
      else
        winners<largest>(from, n, lines.along[0], lines.next[0], columns, positions);
      for (int64_t c = 0; c < columns; ++c) to[c * lines.next[1]] = positions[c];
    });
  });
}

}  // namespace

void argsort(Launch&, bool descending, In x, Out index) {
  if (x.size() == 0) return;
  const int64_t n = x.shape()[-1];
  visit_number(x.dtype, [&]<class T>() {
    using P = Pair<Key<T>>;
    constexpr int64_t few = 16 * sizeof(T);  // below, comparing is faster
    parallel_ranges(x.size() / n, std::max<int64_t>(1, 1024 / n), [&](int64_t begin, int64_t end) {
      const Buffer<P> buffer(n < few ? n : 2 * n);
      for (int64_t r = begin; r < end; ++r) {
        P* row = buffer.data();
        for (int64_t i = 0; i < n; ++i)
          row[i] = {ranked(x.as<T>()[r * n + i], descending), static_cast<uint32_t>(i)};
        if (n < few)
          std::sort(row, row + n);
        else
          row = sort_by_digits(row, row + n, n);
        for (int64_t i = 0; i < n; ++i) index.as<int64_t>()[r * n + i] = row[i].at;
      }
    });
  });
}

// Keeps up to 2 k candidates. Once they are full, only the better half stays, and later candidates
// must beat the worst of it: most pieces have none that do.
void topk(Launch&, bool largest, In x, Out index) {
  const int64_t n = x.shape()[-1], k = index.shape()[-1];
  if (index.size() == 0) return;
  visit_number(x.dtype, [&]<class T>() {
    using P = Pair<Key<T>>;
    parallel_ranges(x.size() / n, std::max<int64_t>(1, 8192 / n), [&](int64_t begin, int64_t end) {
      constexpr int64_t piece = 64;
      const int64_t most = n <= 16 ? n : std::min(n, 2 * k);
      const Buffer<P> buffer(most);
      for (int64_t r = begin; r < end; ++r) {
        const T* const row = x.as<T>() + r * n;
        P* const kept = buffer.data();
        int64_t count = 0, i = 0;
        for (; i < most; ++i) kept[count++] = {ranked(row[i], largest), static_cast<uint32_t>(i)};
        const auto halve = [&] {
          if (count > k) std::nth_element(kept, kept + k - 1, kept + count);
          count = k;
          return kept[k - 1].key;
        };
        for (auto worst = halve(); i < n;) {
          const int64_t end = std::min(n, i + piece);
          auto best = worst;
          for (int64_t j = i; j < end; ++j) best = std::min(best, ranked(row[j], largest));
          if (best == worst) i = end;
          for (; i < end; ++i) {
            const auto v = ranked(row[i], largest);
            if (v >= worst) continue;  // of equals, the first wins
            kept[count++] = {v, static_cast<uint32_t>(i)};
            if (count == most) worst = halve();
          }
        }
        halve();
        std::sort(kept, kept + k);
        for (int64_t j = 0; j < k; ++j) index.as<int64_t>()[r * k + j] = kept[j].at;
      }
    });
  });
}

void arg_reduce(Launch&, Reduce op, int dim, In x, Out y) {
  op == Reduce::Max ? arg_reduce_with<true>(dim, x, y) : arg_reduce_with<false>(dim, x, y);
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
