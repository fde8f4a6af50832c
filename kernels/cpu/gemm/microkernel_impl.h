#pragma once
// The engine as a template over an arithmetic: vectors of one length and their multiply-add. Each
// file that includes this is compiled for another processor, so nothing here may be shared between
// files: all is in an unnamed namespace.

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/half.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/simd/transpose.h"

namespace mixtape::kernels::cpu {
namespace {

// `n` numbers of type U as one.
template <class U, int n>
struct Pack {
  using type __attribute__((vector_size(sizeof(U) * n))) = U;
};

template <class V>
[[gnu::always_inline]] inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
[[gnu::always_inline]] inline void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
// The first `bytes` of a vector, the rest zero.
template <class V>
[[gnu::always_inline]] inline V load_first(const void* p, int64_t bytes) {
#ifdef __AVX512BW__
  if constexpr (sizeof(V) == 64)
    return reinterpret_cast<V>(_mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, p));
  if constexpr (sizeof(V) == 32)
    return reinterpret_cast<V>(_mm256_maskz_loadu_epi8((uint32_t{1} << bytes) - 1, p));
  if constexpr (sizeof(V) == 16)
    return reinterpret_cast<V>(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << bytes) - 1), p));
#endif
  V v = {};
  std::memcpy(&v, p, static_cast<size_t>(bytes));
  return v;
}

// And those of a vector to memory.
template <class V>
[[gnu::always_inline]] inline void store_first(void* p, V v, int64_t bytes) {
#ifdef __AVX512BW__
  if constexpr (sizeof(V) == 64)
    return _mm512_mask_storeu_epi8(p, (uint64_t{1} << bytes) - 1, reinterpret_cast<__m512i>(v));
#endif
  std::memcpy(p, &v, static_cast<size_t>(bytes));
}

// Ordinary arithmetic in T on `n` lanes.
template <class T_, int n, int rows_>
struct Plain {
  using T = T_;
  using Unit = T;
  static constexpr int lanes = n, rows = rows_, vectors = 2, unit = 1;
  using Vector = typename Pack<T, n>::type;
  using Units = Vector;

  [[gnu::always_inline]] static Vector multiply_add(Vector sum, Unit a, Units b) {
    return sum + a * b;
  }

  // `count` lanes of one unit, which lie side by side.
  template <class S>
  [[gnu::always_inline]] static Units across(const S* p, int64_t, int64_t count, int64_t) {
    using Stored = typename Pack<std::conditional_t<sizeof(S) == 2, uint16_t, S>, n>::type;
    const Stored x = count >= n ? load<Stored>(p)
                                : load_first<Stored>(p, count * static_cast<int64_t>(sizeof(S)));
    if constexpr (std::is_same_v<S, T>) {
      return x;
    } else if constexpr (std::is_same_v<S, BFloat16>) {
      using Words = typename Pack<uint32_t, n>::type;
      return reinterpret_cast<Vector>(__builtin_convertvector(x, Words) << 16);
    } else {
#ifdef __AVX512F__
      if constexpr (n == 16) return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(x));
#endif
#ifdef __AVX2__
      if constexpr (n == 8) return _mm256_cvtph_ps(reinterpret_cast<__m128i>(x));
#endif
      Vector y;
      for (int i = 0; i < n; ++i) y[i] = static_cast<T>(Half::from_bits(x[i]));
      return y;
    }
  }
  // Of one line, `lanes` units of which only the first `count` elements exist.
  template <class S>
  [[gnu::always_inline]] static Units along(const S* p, int64_t count) {
    return across(p, 0, count, 0);
  }
  template <class S>
  [[gnu::always_inline]] static Unit one(const S* p, int64_t, int64_t) {
    return across(p, 0, 1, 0)[0];
  }
};

// Lanes of f32 as f16 or bf16, rounded to nearest even; the instruction for bf16 takes subnormals
// for zero.
template <class O, class V>
[[gnu::always_inline]] inline auto narrowed(V x) {
  constexpr int n = sizeof(V) / 4;
  if constexpr (std::is_same_v<O, Half>) {
#ifdef __AVX512F__
    if constexpr (n == 16)
      return _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
#ifdef __AVX2__
    if constexpr (n == 8) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#endif
    if constexpr (n == 4) {
      typename Pack<uint16_t, n>::type y;
      for (int i = 0; i < n; ++i) y[i] = Half(x[i]).bits;
      return y;
    }
  } else {
#ifdef __AVX512BF16__
    if constexpr (n == 16)
      return _mm512_cvtneps_pbh(x);
    else
#endif
    {
      using Words = typename Pack<uint32_t, n>::type;
      const Words f = reinterpret_cast<Words>(x);
      const Words even = f + 0x7fffu + ((f >> 16) & 1u), quiet = f | 0x400000u;
      const Words r = (x == x ? even : quiet) >> 16;
#if defined(__AVX2__) && !defined(__AVX512F__)
      if constexpr (n == 8) {
        const __m256i both = reinterpret_cast<__m256i>(r);
        return _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      } else
#endif
        return __builtin_convertvector(r, typename Pack<uint16_t, n>::type);
    }
  }
}

template <class P, class S>
void pack(const Strands& from, int64_t depth, int64_t width, void* to) {
  constexpr int64_t n = P::lanes;
  using Unit = typename P::Unit;
  using Units = typename P::Units;
  const S* const data = static_cast<const S*>(from.data);
  const int64_t units = (depth + P::unit - 1) / P::unit;
  Unit* const out = static_cast<Unit*>(to);
  // f(i, put) for each vector of lines. What a single one writes beyond the width comes before what
  // belongs there; others must stop.
  const auto for_lines = [&](auto f) __attribute__((always_inline)) {
    const int64_t whole = width < n ? n : width / n * n;
    for (int64_t i = 0; i < whole; i += n)
      f(i, [](Unit* p, Units v) __attribute__((always_inline)) { store(p, v); });
    const int64_t bytes = (width - whole) * static_cast<int64_t>(sizeof(Unit));
    if (bytes > 0)
      f(whole, [&](Unit* p, Units v) __attribute__((always_inline)) { store_first(p, v, bytes); });
  };
  if (from.line == 1) {
    for_lines([&](int64_t i, auto put) __attribute__((always_inline)) {
      const int64_t count = std::min(n, from.readable - i);
      const auto each_unit = [&](int64_t lanes) __attribute__((always_inline)) {
        const S* p = data + i;
        for (int64_t u = 0; u < units; ++u, p += P::unit * from.step) {
          for (int64_t k = 0; k < P::unit; ++k)  // further than the processor foresees
            __builtin_prefetch(p + (8 * P::unit + k) * from.step);
          put(out + u * width + i, P::across(p, from.step, lanes, depth - u * P::unit));
        }
      };
      if (count == n)
        each_unit(n);
      else if (count > 0)
        each_unit(count);
    });
  } else if (from.step == 1) {
    for_lines([&](int64_t i, auto put) __attribute__((always_inline)) {
      for (int64_t u = 0; u < units; u += n) {
        Units v[n];
        const S* const p = data + i * from.line + u * P::unit;
        const int64_t left = depth - u * P::unit, last = from.count - 1 - i;
        if (last < 0) continue;
        if (left >= n * P::unit && last >= n - 1) {
#pragma GCC unroll 16
          for (int64_t r = 0; r < n; ++r) v[r] = P::along(p + r * from.line, n * P::unit);
        } else {
          const int64_t count = std::min(left, n * P::unit);
          for (int64_t r = 0; r < n; ++r) v[r] = P::along(p + std::min(r, last) * from.line, count);
        }
        transpose<n>(v);
        Unit* const block = out + u * width + i;
        if (units - u >= n) {
#pragma GCC unroll 16
          for (int64_t r = 0; r < n; ++r) put(block + r * width, v[r]);
        } else {
          for (int64_t r = 0; r < units - u; ++r) put(block + r * width, v[r]);
        }
      }
    });
  } else {
    for (int64_t u = 0; u < units; ++u)
      for (int64_t i = 0; i < width; ++i)
        out[u * width + i] = i < from.count ? P::one(data + i * from.line + u * P::unit * from.step,
                                                     from.step, depth - u * P::unit)
                                            : Unit{};
  }
}

// n lines `stride` bytes apart, by few registers: seven from each pointer on are reached with three
// strides, as addresses allow. (What they have in common is hidden, or the compiler would share it,
// and spill.)
template <int n>
struct RowPointers {
  const char* at[(n + 6) / 7];
  int64_t one, three, five;

  [[gnu::always_inline]] RowPointers(const void* data, int64_t stride)
      : one(stride), three(3 * stride), five(5 * stride) {
    asm("" : "+r"(one), "+r"(three), "+r"(five));
    begin(data);
  }
  [[gnu::always_inline]] void begin(const void* data) {
    const char* p = static_cast<const char*>(data);
    for (const char*& seven : at) {
      seven = p;
      p += 7 * one;
    }
  }
  [[gnu::always_inline]] void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (const char*& seven : at) {
      seven += bytes;
      asm volatile("" : "+r"(seven));  // else a pointer for each line
    }
  }
  [[gnu::always_inline]] const char* operator[](int i) const {
    const char* const p = at[i / 7];
    switch (i % 7) {
      case 0:
        return p;
      case 1:
        return p + one;
      case 2:
        return p + 2 * one;
      case 3:
        return p + three;
      case 4:
        return p + 4 * one;
      case 5:
        return p + five;
      default:
        return p + 2 * three;
    }
  }
};

// The sums of R rows of V vectors, plus what is to be added, to where they belong.
template <class P, class O, int R, int V>
[[gnu::always_inline]] inline void put(const Tile<typename P::T>& t,
                                       typename P::Vector (&sum)[R][V]) {
  if (const typename P::T* add = t.add) {
    const int64_t add_row = t.add_row;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] += load<typename P::Vector>(add + j * P::lanes);
      add += add_row;
      asm volatile("" : "+r"(add));
    }
  }
  // What is written might be t, for all that is known of it.
  O* to = static_cast<O*>(t.out);
  const int64_t out_row = t.out_row;
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      if constexpr (std::is_same_v<O, typename P::T>)
        store(to + j * P::lanes, sum[i][j]);
      else
        store(to + j * P::lanes, narrowed<O>(sum[i][j]));
    }
    to += out_row;
    asm volatile("" : "+r"(to));
  }
}

// R rows of V vectors stay in registers. The rows of a lie side by side, or a_row apart.
template <class P, class O, int R, int V, bool apart>
void sum_tile(const Tile<typename P::T>& t) {
  using Unit = typename P::Unit;
  constexpr int bytes = sizeof(typename P::Vector);
  // Low tiles have few products to pay for a loop, which tells where a neighbour uses the core too.
  constexpr int steps = P::rows < 8 && !apart ? 2 : 1;
  constexpr int64_t stretch = 64 / sizeof(Unit);  // steps that read one line of each row
  typename P::Vector sum[R][V] = {};
  const char *a = static_cast<const char*>(t.a), *b = static_cast<const char*>(t.b);
  RowPointers<apart ? R : 1> rows(a, t.a_row);
  const auto step = [&]() __attribute__((always_inline)) {
    typename P::Units w[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) w[j] = load<typename P::Units>(b + j * bytes);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Unit x = load<Unit>(apart ? rows[i] : a + i * static_cast<int>(sizeof(Unit)));
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] = P::multiply_add(sum[i][j], x, w[j]);
    }
    if constexpr (apart)
      rows.advance(t.a_step);
    else
      a += t.a_step;
    b += t.b_step;
    if constexpr (steps > 1) asm volatile("" : "+r"(a), "+r"(b));  // else one for each step
  };
  // What comes from memory is asked for in time: the rows of the next tile, where they are read in
  // place, a line of each at once; else what follows. What is written comes last, or what is read
  // would drive it out of the first cache again.
  const auto ask_for_rows = [&]() __attribute__((always_inline)) {
    auto next = rows;
    next.advance(R * rows.one);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) __builtin_prefetch(next[i]);
  };
  const auto ask_for_results = [&]() __attribute__((always_inline)) {
    const Tile<typename P::T>* late = &t;  // not read before the loop, which needs the registers
    asm volatile("" : "+r"(late));
    const O* to = static_cast<const O*>(late->out);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) __builtin_prefetch(to + j * P::lanes, 1);
      to += late->out_row;
      asm volatile("" : "+r"(to));
    }
  };
  if (t.far) {  // nearer, to begin with
    const O* to = static_cast<const O*>(t.out);
    for (int i = 0; i < R; ++i, to += t.out_row)
      for (int j = 0; j < V; ++j) __builtin_prefetch(to + j * P::lanes, 0, 2);
  }
  for (int64_t n = 0; n < t.blocks; ++n) {
    if (t.block) {
      a = static_cast<const char*>(t.a) + t.block[n].a;
      b = static_cast<const char*>(t.b) + t.block[n].b;
      rows.begin(a);
    }
    for (int64_t left = t.depth; left > 0;) {
      int64_t some = left % stretch ? left % stretch : stretch;
      left -= some;
      if (t.depth > 16) {  // else it would come too late
        if constexpr (apart) ask_for_rows();
        if (left == 0 && n + 1 == t.blocks) ask_for_results();
      }
      for (; some % steps != 0; --some) step();
      for (; some > 0; some -= steps) {
        if constexpr (!apart) __builtin_prefetch(a + 48 * t.a_step);
#pragma GCC unroll 4
        for (int i = 0; i < steps; ++i) step();
      }
    }
  }
  put<P, O>(t, sum);
}

// R rows, side by side, and one vector of lines of b that lie along k in memory: a square of them
// is turned in registers, while the products of the last one are summed.
template <class P, class S, class O, int R>
void sum_lines(const Tile<typename P::T>& t) {
  using Unit = typename P::Unit;
  constexpr int64_t n = P::lanes;
  typename P::Vector sum[R][1] = {};
  const char* a = static_cast<const char*>(t.a);
  RowPointers<n> lines(t.b, t.b_line);
  const auto square = [&](int64_t steps) __attribute__((always_inline)) {
    typename P::Units v[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i)
      v[i] = P::along(reinterpret_cast<const S*>(lines[i]), steps * P::unit);
    transpose(v);
#pragma GCC unroll 16
    for (int64_t u = 0; u < n; ++u) {
      if (u == steps) return;
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
        sum[i][0] = P::multiply_add(
            sum[i][0], load<Unit>(a + (u * R + i) * static_cast<int64_t>(sizeof(Unit))), v[u]);
    }
    a += n * R * static_cast<int64_t>(sizeof(Unit));
    lines.advance(n * P::unit * static_cast<int64_t>(sizeof(S)));
  };
  int64_t left = t.depth;
  for (; left >= n; left -= n) square(n);
  if (left > 0) square(left);
  put<P, O>(t, sum);
}

template <class P, class S>
inline constexpr bool as_stored = sizeof(S) * P::unit == sizeof(typename P::Unit);

// (Rows lie apart only where they are not packed.)
template <class P, class S, class O, bool apart, int... i>
void choose_tile(int rows, int vectors, const Tile<typename P::T>& t,
                 std::integer_sequence<int, i...>) {
  using Sum = void (*)(const Tile<typename P::T>&);
  if constexpr (!apart || as_stored<P, S>) {
    static constexpr Sum table[2][sizeof...(i)] = {{sum_tile<P, O, i + 1, 1, apart>...},
                                                   {sum_tile<P, O, i + 1, 2, apart>...}};
    table[vectors - 1][rows - 1](t);
  }
}
template <class P, class S, class O, int... i>
void choose_lines(int rows, int vectors, Tile<typename P::T> t, std::integer_sequence<int, i...>) {
  using Sum = void (*)(const Tile<typename P::T>&);
  static constexpr Sum table[] = {sum_lines<P, S, O, i + 1>...};
  for (; vectors > 0; --vectors) {
    table[rows - 1](t);
    t.b = static_cast<const char*>(t.b) + P::lanes * t.b_line;
    t.out = static_cast<O*>(t.out) + P::lanes;
    if (t.add) t.add += P::lanes;
  }
}
template <class P, class S>
void tile(int rows, int vectors, const Tile<typename P::T>& t) {
  const std::make_integer_sequence<int, P::rows> heights;
  const auto choose = [&]<class O>(std::type_identity<O>) {
    if (t.b_line != 0)
      choose_lines<P, S, O>(rows, vectors, t, heights);
    else if (t.a_row == int64_t{sizeof(typename P::Unit)})
      choose_tile<P, S, O, false>(rows, vectors, t, heights);
    else
      choose_tile<P, S, O, true>(rows, vectors, t, heights);
  };
  if (t.narrow)
    choose(std::type_identity<S>());
  else
    choose(std::type_identity<typename P::T>());
}

template <class P, class S>
constexpr Engine<typename P::T> make_engine() {
  return {P::rows,         P::lanes,    P::vectors, P::unit, sizeof(typename P::Unit),
          as_stored<P, S>, &tile<P, S>, &pack<P, S>};
}
template <class Float, class Double>
constexpr Engines make_engines() {
  return {make_engine<Double, double>(), make_engine<Float, float>(), make_engine<Float, Half>(),
          make_engine<Float, BFloat16>()};
}

}  // namespace
}  // namespace mixtape::kernels::cpu
