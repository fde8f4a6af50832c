// Elements by index along one dimension: gather reads at the index, scatter and scatter_reduce
// write there. Writes to the same position happen in the order of the index, on one thread.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/common/elementwise.h"
#include "kernels/common/scatter.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/line_iterator.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// `count` elements: position index[i * index_stride] of the addressed operand, plus i * at_stride
// in its other dimensions, and element i * stride of the other operand.
struct IndexRun {
  int64_t count, at_stride, index_stride, stride;
  bool dense() const { return index_stride == 0 && at_stride == 1 && stride == 1; }
  // Calls f(position, i * stride) for each element; compiled separately for the common strides.
  template <class F>
  MIXTAPE_ALWAYS_INLINE void for_each(const int64_t* index, int64_t step, F&& f) const {
    const auto loop = [&](int64_t by_index, int64_t by) MIXTAPE_INLINE_LAMBDA {
      for (int64_t i = 0; i < count; ++i) f(index[i * by_index] * step + i * at_stride, i * by);
    };
    index_stride == 1 && stride == 1 ? loop(1, 1) : loop(index_stride, stride);
  }
};

// Calls f(at, index, other, run) for all of the index; `at` and `other` are offsets of the
// operands' first elements. Independent elements may run in any order.
template <class F>
void for_runs(int dim, In addressed, In index, In other, bool independent, F&& f) {
  Shape beside = addressed.strides();
  beside[dim] = 0;  // the index decides the position there
  const LineIterator<3> lines(dim, index.shape(), {beside, index.strides(), other.strides()});
  // Runs follow the denser dimension of the other operand, or of the index if that is constant.
  const int by = lines.along[2] == 0 && lines.next[2] == 0 ? 1 : 2;
  const bool along = lines.width == 1 || std::abs(lines.along[by]) < std::abs(lines.next[by]);
  // Across lines, narrow blocks use few cache lines and give threads more to share; but rows that
  // one index selects are copied in long runs.
  const int64_t columns = along                               ? grain_of(lines.length)
                          : independent && lines.next[1] == 0 ? 4096
                                                              : 64;
  const int64_t block = grain / std::clamp<int64_t>(along ? 1 : lines.width, 1, columns);
  const int64_t steps = independent ? block : lines.length;
  const int64_t* const indices = index.as<int64_t>();
  lines.for_blocks(columns, steps, [&](const int64_t(&at)[3], int64_t width, int64_t length) {
    if (along) {
      for (int64_t c = 0; c < width; ++c)
        f(at[0] + c * lines.next[0], indices + at[1] + c * lines.next[1], at[2] + c * lines.next[2],
          IndexRun{length, 0, lines.along[1], lines.along[2]});
    } else {
      for (int64_t i = 0; i < length; ++i)
        f(at[0], indices + at[1] + i * lines.along[1], at[2] + i * lines.along[2],
          IndexRun{width, lines.next[0], lines.next[1], lines.next[2]});
    }
  });
}

// Copies the addressed elements to the other operand (gather), or from there (scatter).
template <bool reads>
void move_elements(int dim, In addressed, In index, In other) {
  const int64_t step = addressed.strides()[dim];
  with_word(size_of(other.dtype), [&]<class Word>(Word) {
    for_runs(dim, addressed, index, other, reads,
             [&](int64_t at, const int64_t* at_index, int64_t first, const IndexRun& run) {
               Word *there = addressed.as<Word>() + at, *const here = other.as<Word>() + first;
               if (run.dense()) {
                 there += *at_index * step;
                 std::memcpy(reads ? here : there, reads ? there : here,
                             static_cast<size_t>(run.count) * sizeof(Word));
               } else {
                 run.for_each(at_index, step, [=](int64_t position, int64_t i) {
                   reads ? here[i] = there[position] : there[position] = here[i];
                 });
               }
             });
  });
}

}  // namespace

void gather(Launch&, int dim, In x, In index, Out y) { move_elements<true>(dim, x, index, y); }

void scatter(Launch&, int dim, In index, In x, Out y) { move_elements<false>(dim, y, index, x); }

namespace {

// Terms of f32 that would take a sum out of its range. They wait for the others, since the sum may
// come back, and are added in f64, those of one place in their order.
class WaitingTerms {
 public:
  [[gnu::noinline]] float add(float* place, float term) {
    const float sum = *place + term;
    if (!std::isfinite(*place) || !std::isfinite(term)) return sum;
    const std::lock_guard lock(mutex_);
    terms_.push_back({place, term});
    return *place;
  }
  void finish() {
    std::stable_sort(terms_.begin(), terms_.end(),
                     [](const Term& a, const Term& b) { return a.place < b.place; });
    for (auto t = terms_.begin(); t != terms_.end();) {
      float* const place = t->place;
      double sum = *place;
      for (; t != terms_.end() && t->place == place; ++t) sum += t->value;
      *place = static_cast<float>(sum);
    }
  }

 private:
  struct Term {
    float *place, value;
  };
  std::mutex mutex_;
  std::vector<Term> terms_;
};

template <class F, class S, class T>
void reduce_elements(int dim, In index, In x, Out y) {
  const int64_t step = y.strides()[dim];
  WaitingTerms waiting;
  const auto join = [&](T* place, S term) MIXTAPE_INLINE_LAMBDA {
    const T all = met<F>(*place, term);
    if constexpr (leaves_f32<F, T>)
      if (!std::isfinite(all)) [[unlikely]]
        return waiting.add(place, static_cast<float>(term));
    return all;
  };
  for_runs(dim, y, index, x, false,
           [&](int64_t at, const int64_t* at_index, int64_t other, const IndexRun& run) {
             const S* const from = x.as<S>() + other;
             T* to = y.as<T>() + at;
             if (run.dense()) {
               to += *at_index * step;
               int64_t i = 0;
               if constexpr (leaves_f32<F, T>) {
                 constexpr int64_t w = Vec<T>::width;
                 const auto add = [&](auto vectors, int64_t count) MIXTAPE_INLINE_LAMBDA {
                   constexpr int k = vectors;
                   Vec<T> all[k], sum(T(0));  // the sum is finite only if each is
                   for (int v = 0; v < k; ++v) {
                     all[v] = read<T>(to + i + v * w, count) + read<T>(from + i + v * w, count);
                     sum += all[v];
                   }
                   if (any(sum - sum != Vec<T>(T(0)))) [[unlikely]]
                     for (int64_t e = i; e < i + k * count; ++e) to[e] = join(to + e, from[e]);
                   else
                     for (int v = 0; v < k; ++v) write(to + i + v * w, all[v], count);
                   i += k * count;
                 };
                 while (i + 4 * w <= run.count) add(std::integral_constant<int, 4>(), w);
                 while (i < run.count)
                   add(std::integral_constant<int, 1>(), std::min(w, run.count - i));
               }
               for (; i < run.count; ++i) to[i] = join(to + i, from[i]);
             } else {
               run.for_each(at_index, step, [&](int64_t position, int64_t i) {
                 to[position] = join(to + position, from[i]);
               });
             }
           });
  waiting.finish();
}

}  // namespace

void scatter_reduce(Launch& launch, Reduce op, int dim, In index, In x, Out y) {
  if (op == Reduce::Sum && sums_in_f64(dim, index, y)) {
    const View sums{launch.scratch<double>(y.size()), f64, Layout(y.shape())};
    convert(launch, y, sums);
    visit_float(x.dtype, [&]<class S>() { reduce_elements<Add, S, double>(dim, index, x, sums); });
    return convert(launch, sums, y);
  }
  visit_meeting(op, [&]<class F>() {
    visit(x.dtype, [&]<class S>() { reduce_elements<F, S, math_t<S>>(dim, index, x, y); });
  });
}

void bounds(Launch& launch, In x, Out low_high) {
  Layout layout = x.layout;
  Layout* const one[] = {&layout};
  collapse(one);
  const int64_t count = ceil_div(x.size(), grain);
  int64_t* const parts = launch.scratch<int64_t>(2 * count);
  parallel_ranges(x.size(), grain, [&](int64_t begin, int64_t end) {
    int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
    const auto add = [&](const int64_t* p, int64_t count, int64_t stride) {
      for (int64_t i = 0; i < count; ++i) {
        low = std::min(low, p[i * stride]);
        high = std::max(high, p[i * stride]);
      }
    };
    Walk walk(x.data, sizeof(int64_t), layout, begin);
    for (int64_t left = end - begin; left > 0;) {
      const Walk::Run run = walk.next(left);
      const int64_t* const p = reinterpret_cast<const int64_t*>(run.data);
      if (run.stride == 1)
        add(p, run.count, 1);
      else
        add(p, run.count, run.stride);
      left -= run.count;
    }
    parts[begin / grain * 2] = low;
    parts[begin / grain * 2 + 1] = high;
  });
  for (int64_t i = 1; i < count; ++i) {
    parts[0] = std::min(parts[0], parts[2 * i]);
    parts[1] = std::max(parts[1], parts[2 * i + 1]);
  }
  for (const int64_t i : {0, 1}) low_high.as<int64_t>()[low_high.layout.at(i)] = parts[i];
}

void nonzero(Launch& launch, In mask, Out index) {
  constexpr int64_t piece = 4096;
  const uint8_t* const set = mask.as<uint8_t>();
  const int64_t n = mask.size(), count = ceil_div(n, piece);
  const int rank = mask.layout.rank();
  int64_t* const first = launch.scratch<int64_t>(count);  // of the true elements in each piece
  parallel_ranges(n, piece, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += set[i] != 0;
    first[begin / piece] = count;
  });
  for (int64_t i = 0, total = 0; i < count; ++i) total += std::exchange(first[i], total);
  parallel_ranges(n, piece, [&](int64_t begin, int64_t end) {
    int64_t* to = index.as<int64_t>() + first[begin / piece] * rank;
    int64_t found[piece + 1], count = 0;
    for (int64_t i = begin; i < end; ++i) {  // no branch that could be mispredicted
      found[count] = i;
      count += set[i] != 0;
    }
    if (rank == 1) std::copy_n(found, count, to);
    if (rank < 2) return;
    for (int64_t k = 0; k < count; ++k, to += rank) {
      int64_t rest = found[k];
      for (int d = rank - 1; d > 0; --d) {
        to[d] = rest % mask.shape()[d];
        rest /= mask.shape()[d];
      }
      to[0] = rest;
    }
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
