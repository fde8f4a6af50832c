#pragma once
// Sums that are no tile, LaneProducts and RowSums, as templates over the arithmetic of a
// microkernel. In an unnamed namespace, as microkernel_impl.h says.

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

// Adds `steps` steps of k, from the first of p on: as many rows of b are read side by side.
template <class P, class S, int steps>
void add_steps(RowSums<typename P::T> p) {
  using Vector = typename P::Vector;
  const S* const b = static_cast<const S*>(p.b);
  const auto column = [&](int64_t j, int64_t count) MIXTAPE_INLINE_LAMBDA {
    Vector v[steps];
#pragma GCC unroll 4
    for (int u = 0; u < steps; ++u) v[u] = P::load_across(b + u * p.b_k_stride + j, 0, count, 0);
    auto* sums = p.sums + j;
    for (int64_t i = 0; i < p.rows; ++i, sums += p.row_stride) {
      Vector sum = load_vector<Vector>(sums);
#pragma GCC unroll 4
      for (int u = 0; u < steps; ++u) sum = P::multiply_add(sum, p.a[u * p.rows + i], v[u]);
      store_vector(sums, sum);
    }
  };
  int64_t j = 0;
  for (; j + P::lanes <= p.columns; j += P::lanes) column(j, P::lanes);
  if (j < p.columns) column(j, p.columns - j);
}
template <class P, class S>
void row_sums(const RowSums<typename P::T>& all) {
  RowSums<typename P::T> p = all;
  const auto add = [&]<int steps>() {
    for (; p.k >= steps; p.k -= steps) {
      add_steps<P, S, steps>(p);
      p.a += steps * p.rows;
      p.b = static_cast<const S*>(p.b) + steps * p.b_k_stride;
    }
  };
  add.template operator()<4>();
  add.template operator()<1>();
}

template <class P, class S>
constexpr void set_other_sums(Microkernel<typename P::T>& kernel) {
  if constexpr (P::k_group == 1) {
    kernel.lane_products = &lane_products<P>;
    kernel.row_sums = &row_sums<P, S>;
  }
}

}  // namespace
}  // namespace cpu
}  // namespace mixtape::kernels
