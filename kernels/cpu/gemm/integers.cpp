// Products of integer matrices: each row of c is a sum of rows of b, which wraps around in 64 bits.

#include <algorithm>
#include <vector>

#include "kernels/common/always_inline.h"
#include "kernels/common/batch.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;

void gemm_integers(Launch&, In a, In b, Out c) {
  if (c.size() == 0) return;
  const Layout &al = a.layout, &bl = b.layout, &cl = c.layout;
  const Layout a_batch = leading(al), b_batch = leading(bl), c_batch = leading(cl);
  const int64_t m = cl.shape[-2], n = cl.shape[-1], k = al.shape[-1];
  const int64_t next = bl.strides[-1];
  const auto multiply = [&]<class T>(int64_t begin, int64_t end) {
    std::vector<uint64_t> sums(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      const T* const x = a.as<T>() + a_batch.at(i / m) + i % m * al.strides[-2];
      const T* const y = b.as<T>() + b_batch.at(i / m);
      uint64_t* const sum = sums.data();
      std::fill_n(sum, n, 0);
      for (int64_t d = 0; d < k; ++d) {
        const uint64_t factor = static_cast<uint64_t>(x[d * al.strides[-1]]);
        const T* const row = y + d * bl.strides[-2];
        const auto add = [&](int64_t step) MIXTAPE_INLINE_LAMBDA {
          for (int64_t j = 0; j < n; ++j) sum[j] += factor * static_cast<uint64_t>(row[j * step]);
        };
        next == 1 ? add(1) : add(next);
      }
      T* const to = c.as<T>() + c_batch.at(i / m) + i % m * cl.strides[-2];
      for (int64_t j = 0; j < n; ++j) to[j * cl.strides[-1]] = static_cast<T>(sum[j]);
    }
  };
  visit(c.dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>)
      parallel_ranges(c.size() / n, grain_of(n * k), [&](int64_t begin, int64_t end) {
        multiply.template operator()<T>(begin, end);
      });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
