#pragma once
// The inner loop of the convolutions, on wide vectors of T (float or double):
//     out[m][lane] = sum over s of in[base[m] + step[s]] * w[s][lane].
// A tile of `out` stays in registers while s runs; each element of `in` is broadcast to all lanes.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "kernels/cpu/simd.h"

namespace mixtape::kernels::cpu {

template <class T>
inline constexpr int wide = Lanes<T>::width;

// Rows become columns: log2(lanes) rounds in which blocks of d x d swap places.
template <class T>
void transpose(Lanes<T> (&v)[wide<T>]) {
  const auto round = [&]<int d, size_t... i>(std::integral_constant<int, d>,
                                             std::index_sequence<i...>) {
    for (int r = 0; r < wide<T>; ++r) {
      if (r & d) continue;
      const typename Lanes<T>::Vector a = v[r].v, b = v[r + d].v;
      v[r].v = __builtin_shufflevector(a, b, int(i & d ? wide<T> + i - d : i)...);
      v[r + d].v = __builtin_shufflevector(a, b, int(i & d ? wide<T> + i : i + d)...);
    }
  };
  constexpr std::make_index_sequence<wide<T>> lanes;
  round(std::integral_constant<int, 1>(), lanes);
  round(std::integral_constant<int, 2>(), lanes);
  round(std::integral_constant<int, 4>(), lanes);
  if constexpr (wide<T> == 16) round(std::integral_constant<int, 8>(), lanes);
}

namespace detail {

// A tile of M positions by N vectors is what the registers hold beside the operands: 32 vectors of
// 64 bytes with AVX-512, 16 of 32 bytes before it.
#ifdef __AVX512F__
inline constexpr int max_vectors = 4;
constexpr int positions(int vectors) { return vectors == 4 ? 6 : 8; }
#else
inline constexpr int max_vectors = 1;
constexpr int positions(int) { return 4; }
#endif

template <int M, int N, class T>
void tile(const T* in, const int64_t* base, std::span<const int64_t> step, const T* w,
          int64_t width, T* out, bool add) {
  using Vector = typename Lanes<T>::Vector;
  Vector sum[M][N];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
      sum[m][n] = add ? load<T, T>(out + m * width + n * wide<T>).v : Vector{};
  const T* x[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) x[m] = in + base[m];
  for (const int64_t s : step) {
    Vector weight[N];
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) weight[n] = load<T, T>(w + n * wide<T>).v;
    w += width;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const T value = x[m][s];
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[m][n] += value * weight[n];
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) store(out + m * width + n * wide<T>, Lanes<T>(sum[m][n]));
}

template <int M, int N, class T>
void column(const T* in, std::span<const int64_t> base, std::span<const int64_t> step, const T* w,
            int64_t width, T* out, bool add) {
  for (; base.size() >= M; base = base.subspan(M), out += M * width)
    tile<M, N>(in, base.data(), step, w, width, out, add);
  if constexpr (M > 1)
    if (!base.empty()) column<M / 2, N>(in, base, step, w, width, out, add);
}

}  // namespace detail

// w is [step.size(), width], out [base.size(), width], dense; width a multiple of wide<T>. Adds to
// `out`, or overwrites it.
template <class T>
void correlate(const T* in, std::span<const int64_t> base, std::span<const int64_t> step,
               const T* w, int64_t width, T* out, bool add) {
  constexpr size_t depth = 128;  // steps whose weights stay in the first-level cache
  if (step.empty() && !add) std::fill_n(out, static_cast<int64_t>(base.size()) * width, T(0));
  for (size_t s = 0; s < step.size(); s += depth, add = true) {
    const auto steps = step.subspan(s, std::min(depth, step.size() - s));
    for (int64_t lane = 0; lane < width;) {
      const T* const weights = w + static_cast<int64_t>(s) * width + lane;
      const auto run = [&]<int N>(std::integral_constant<int, N>) {
        detail::column<detail::positions(N), N>(in, base, steps, weights, width, out + lane, add);
        lane += N * wide<T>;
      };
      const int64_t left = std::min<int64_t>((width - lane) / wide<T>, detail::max_vectors);
      if constexpr (detail::max_vectors == 4) {
        if (left == 4)
          run(std::integral_constant<int, 4>());
        else if (left == 3)
          run(std::integral_constant<int, 3>());
        else if (left == 2)
          run(std::integral_constant<int, 2>());
      }
      if (left == 1) run(std::integral_constant<int, 1>());
    }
  }
}

}  // namespace mixtape::kernels::cpu
