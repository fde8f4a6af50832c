#pragma once
// Sums of the products of LaneProducts, as a template over the arithmetic of a microkernel. In an
// unnamed namespace, as microkernel_impl.h says.

#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/simd/convert.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
namespace {

// Row i of c, columns [j, j + V).
template <class P, int V>
MIXTAPE_ALWAYS_INLINE void sum_lanes(const LaneProducts<typename P::T>& p, int64_t i, int64_t j) {
  using Vector = typename P::Vector;
  const auto *a = p.a + i * p.a_row * P::lanes, *b = p.b + j * p.b_column * P::lanes;
  Vector sum[V] = {};
  for (int64_t k = p.k; k > 0; --k, a += p.a_k * P::lanes, b += p.b_k * P::lanes) {
    const Vector x = load_vector<Vector>(a);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[v] += x * load_vector<Vector>(b + v * p.b_column * P::lanes);
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) store_vector(p.c + (i * p.n + j + v) * P::lanes, sum[v]);
}
template <class P>
void lane_products(const LaneProducts<typename P::T>& p) {
  for (int64_t i = 0; i < p.m; ++i) {
    int64_t j = 0;
    for (; j + 4 <= p.n; j += 4) sum_lanes<P, 4>(p, i, j);
    for (; j < p.n; ++j) sum_lanes<P, 1>(p, i, j);
  }
}

}  // namespace
}  // namespace cpu
}  // namespace mixtape::kernels
