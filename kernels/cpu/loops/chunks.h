#pragma once
// Chunks: kernels over many tensors at once. All tensors are cut into chunks of one size, which
// threads take from one queue. So a hundred small tensors cost as much as one large one, and
// results do not depend on the number of threads.

#include <algorithm>

#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

class Chunks {
 public:
  static constexpr int64_t length = 16384;

  // Tensor i has size(i) elements.
  template <class Size>
  Chunks(Launch& launch, size_t tensors, Size size)
      : first_(launch.scratch<int64_t>(static_cast<int64_t>(tensors) + 1)),
        last_(first_ + tensors) {
    first_[0] = 0;
    for (size_t i = 0; i < tensors; ++i) first_[i + 1] = first_[i] + ceil_div(size(i), length);
  }
  Chunks(Launch& launch, std::span<const View> tensors)
      : Chunks(launch, tensors.size(), [&](size_t i) { return tensors[i].size(); }) {}
  Chunks(Launch& launch, Updates updates)
      : Chunks(launch, updates.size(), [&](size_t i) { return updates[i].param.size(); }) {}

  int64_t count() const { return *last_; }
  // The chunks of a tensor are [first(tensor), first(tensor + 1)).
  int64_t first(size_t tensor) const { return first_[tensor]; }

  // Calls f(tensor, begin, chunk) for each chunk, which starts at element `begin` of its tensor.
  template <class F>
  void for_each(F f) const {
    parallel_for(count(), [&](int64_t chunk) {
      const int64_t* const owner = std::upper_bound(first_, last_ + 1, chunk) - 1;
      f(static_cast<size_t>(owner - first_), (chunk - *owner) * length, chunk);
    });
  }

 private:
  int64_t* first_;  // the first chunk of each tensor, then the number of chunks
  int64_t* last_;
};

// Calls f(p, n) with the chunk of a dense float tensor that starts at element `begin`.
template <class F>
void visit_chunk(const View& x, int64_t begin, F f) {
  const int64_t n = std::min(Chunks::length, x.size() - begin);
  visit_float(x.dtype, [&]<class S>() { f(x.as<S>() + begin, n); });
}

// An optional number, f32 or f64.
inline double read_scalar(const View& v, double absent) {
  if (!v) return absent;
  return v.dtype == f64 ? *v.as<double>() : double(*v.as<float>());
}

// A sum in f64 over lanes of float or double.
class WideSum {
 public:
  MIXTAPE_ALWAYS_INLINE void add(Vec<double> x) { even_ += x; }
  MIXTAPE_ALWAYS_INLINE void add_square(Vec<double> x) { even_ = fma(x, x, even_); }
  MIXTAPE_ALWAYS_INLINE void add(Vec<float> x) {
    const Halves h(x);
    even_ += h.low;
    odd_ += h.high;
  }
  MIXTAPE_ALWAYS_INLINE void add_square(Vec<float> x) {
    const Halves h(x);
    even_ = fma(h.low, h.low, even_);
    odd_ = fma(h.high, h.high, odd_);
  }
  double total() const { return hsum(even_ + odd_); }

 private:
  struct Halves {
    Vec<double> low, high;

    MIXTAPE_ALWAYS_INLINE explicit Halves(Vec<float> x) {
      float all[Vec<float>::width];
      store(all, x);
      low = load<float, double>(all);
      high = load<float, double>(all + Vec<double>::width);
    }
  };

  Vec<double> even_{0.0}, odd_{0.0};
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
