#pragma once
// nvcuda::wmma under the emulator: fragments are opaque, as the API says. Element e of a matrix
// lives in lane e % 32.

#include <type_traits>

#include "tests/simt/simt.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
namespace precision {
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

// The float that a tensor core sees in TF32 mode: 10 bits of fraction, to nearest (ties away from
// zero, as cvt.rna does).
inline float __float_to_tf32(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  return std::bit_cast<float>(bits);
}

template <class Use, int M, int N, int K, class T, class L = void>
struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
  static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
  using element = std::conditional_t<std::is_same_v<T, precision::tf32>, float, T>;
  static constexpr int num_elements = rows * columns / 32;
  element x[num_elements];
};

template <class Use, int M, int N, int K, class T, class L, class V>
void fill_fragment(fragment<Use, M, N, K, T, L>& f, V v) {
  for (auto& e : f.x) e = typename fragment<Use, M, N, K, T, L>::element(v);
}

namespace simt_detail {
template <class T>
T read(const T* p) {
  return *p;
}
template <class T>
T read(mixtape::simt::Shared<T> p) {
  return *p;
}
// 16 x 16 elements of two bytes come by ldmatrix: each lane reads 16 bytes of a line, aligned.
template <class F, class P>
void load(F& f, P p, int64_t ld, bool rows, mixtape::Where where) {
  using namespace mixtape;
  constexpr bool by_lines = requires { p.unchecked(); }
  &&sizeof(f.x[0]) == 2 && F::rows == 16 && F::columns == 16;
  if constexpr (by_lines)
    simt::touch((p + (simt::lane() % 16 * ld + simt::lane() / 16 * 8)).unchecked(), 16,
                simt::Access::Read);
  for (int i = 0; i < F::num_elements; ++i) {
    const int e = i * 32 + simt::lane(), r = e / F::columns, c = e % F::columns;
    const int64_t at = rows ? r * ld + c : c * ld + r;
    if constexpr (by_lines)
      f.x[i] = p.unchecked()[at];
    else
      f.x[i] = read(p + at);
  }
  simt::sync_warp(where);
}
}  // namespace simt_detail

template <class Use, int M, int N, int K, class T, class L, class P>
void load_matrix_sync(fragment<Use, M, N, K, T, L>& f, P p, unsigned ld,
                      mixtape::Where where = mixtape::Where::here()) {
  simt_detail::load(f, p, ld, std::is_same_v<L, row_major>, where);
}
template <int M, int N, int K, class T, class P>
void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, P p, unsigned ld, layout_t layout,
                      mixtape::Where where = mixtape::Where::here()) {
  simt_detail::load(f, p, ld, layout == mem_row_major, where);
}
template <int M, int N, int K, class T, class P>
void store_matrix_sync(P p, const fragment<accumulator, M, N, K, T>& f, unsigned ld,
                       layout_t layout, mixtape::Where where = mixtape::Where::here()) {
  for (int i = 0; i < f.num_elements; ++i) {
    const int e = i * 32 + mixtape::simt::lane(), r = e / N, c = e % N;
    p[layout == mem_row_major ? int64_t(r) * ld + c : int64_t(c) * ld + r] = f.x[i];
  }
  mixtape::simt::sync_warp(where);
}

// d = a b + c with sums in C. Every lane hands in where its parts are; the first computes the
// whole.
template <int M, int N, int K, class T, class LA, class LB, class C>
void mma_sync(fragment<accumulator, M, N, K, C>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
              const fragment<matrix_b, M, N, K, T, LB>& b,
              const fragment<accumulator, M, N, K, C>& c,
              mixtape::Where where = mixtape::Where::here()) {
  using E = typename fragment<matrix_a, M, N, K, T, LA>::element;
  struct Parts {
    const E *a, *b;
    const C* c;
    C* d;
  };
  const Parts mine{a.x, b.x, c.x, d.x};
  Parts all[32];
  mixtape::simt::gather(&mine, sizeof mine, all, where);
  if (mixtape::simt::lane() == 0) {
    static thread_local float wide[K][N];
    for (int e = 0; e < K * N; ++e) wide[e / N][e % N] = float(all[e % 32].b[e / 32]);
    for (int r = 0; r < M; ++r) {
      float sum[N] = {};
      for (int k = 0; k < K; ++k) {
        const int e = r * K + k;
        const float x = float(all[e % 32].a[e / 32]);
        for (int n = 0; n < N; ++n) sum[n] += x * wide[k][n];
      }
      for (int n = 0; n < N; ++n) {
        const int e = r * N + n;
        all[e % 32].d[e / 32] = C(float(all[e % 32].c[e / 32]) + sum[n]);
      }
    }
  }
  mixtape::simt::sync_warp(where);
}

}  // namespace nvcuda::wmma
