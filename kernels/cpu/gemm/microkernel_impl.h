#pragma once
// The microkernel as a template over its arithmetic: vectors of one length and their multiply-add.
// Each file that includes this is compiled for another instruction set, so everything has internal
// linkage: it is in an unnamed namespace.

#include <algorithm>
#include <utility>

#include "core/half.h"
#include "kernels/cpu/gemm/lane_sums.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/transpose.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
namespace {

// Multiply-add in T on `n` lanes.
template <class T_, int n, int rows_>
struct LaneFma {
  using T = T_;
  using Group = T;
  static constexpr int lanes = n, rows = rows_, vectors = 2, k_group = 1;
  using Vector = typename SimdVector<T, n>::type;
  using Groups = Vector;

  MIXTAPE_ALWAYS_INLINE static Vector multiply_add(Vector sum, Group a, Groups b) {
    return sum + a * b;
  }

  // Loads one k_group of `count` adjacent lines.
  template <class S>
  MIXTAPE_ALWAYS_INLINE static Groups load_across(const S* p, int64_t, int64_t count, int64_t) {
    using Stored = typename SimdVector<std::conditional_t<sizeof(S) == 2, uint16_t, S>, n>::type;
    const Stored x = count >= n ? load_vector<Stored>(p)
                                : load_bytes<Stored>(p, count * static_cast<int64_t>(sizeof(S)));
    if constexpr (std::is_same_v<S, T>)
      return x;
    else if constexpr (std::is_same_v<S, BFloat16>)
      return float_from_bf16<n>(x);
    else
      return float_from_half<n>(x);
  }
  // Loads `lanes` k_groups of one line, of which only the first `count` elements exist.
  template <class S>
  MIXTAPE_ALWAYS_INLINE static Groups load_along(const S* p, int64_t count) {
    return load_across(p, 0, count, 0);
  }
  template <class S>
  MIXTAPE_ALWAYS_INLINE static Group load_one(const S* p, int64_t, int64_t) {
    return load_across(p, 0, 1, 0)[0];
  }
};

// Pairs of bf16 for dot products on `n` lanes: each lane takes two steps of k at once.
template <int n, int rows_>
struct Bf16Pairs {
  using T = float;
  using Group = uint32_t;
  static constexpr int lanes = n, rows = rows_, vectors = 2, k_group = 2;
  using Vector = FloatVector<n>;
  using Groups = WordVector<n>;

  // Interleaves step k with step k + 1, or with zeros if only one is left.
  MIXTAPE_ALWAYS_INLINE static Groups load_across(const BFloat16* p, int64_t k_stride,
                                                  int64_t count, int64_t left) {
    const auto get = [&](const BFloat16* q) MIXTAPE_INLINE_LAMBDA {
      return count >= n ? load_vector<HalfVector<n>>(q) : load_bytes<HalfVector<n>>(q, 2 * count);
    };
    const HalfVector<n> odd = left > 1 ? get(p + k_stride) : HalfVector<n>{};
    return interleaved(get(p), odd, std::make_integer_sequence<int, 2 * n>());
  }
  MIXTAPE_ALWAYS_INLINE static Groups load_along(const BFloat16* p, int64_t count) {
    return count >= 2 * n ? load_vector<Groups>(p) : load_bytes<Groups>(p, 2 * count);
  }
  MIXTAPE_ALWAYS_INLINE static Group load_one(const BFloat16* p, int64_t k_stride, int64_t left) {
    return p->bits | (left > 1 ? uint32_t(p[k_stride].bits) << 16 : 0);
  }

 private:
  template <int... i>
  MIXTAPE_ALWAYS_INLINE static Groups interleaved(HalfVector<n> even, HalfVector<n> odd,
                                                  std::integer_sequence<int, i...>) {
    return reinterpret_cast<Groups>(__builtin_shufflevector(even, odd, (i / 2 + i % 2 * n)...));
  }
};

// Rounds lanes of f32 to f16 or bf16, to nearest even; the instruction for bf16 flushes subnormals
// to zero.
template <class O, class V>
MIXTAPE_ALWAYS_INLINE auto to_half(V x) {
  constexpr int n = sizeof(V) / sizeof(float);
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<O, BFloat16> && n == 16)
    return reinterpret_cast<HalfVector<n>>(_mm512_cvtneps_pbh(x));
#endif
  if constexpr (std::is_same_v<O, BFloat16>)
    return bf16_from_float<n>(x);
  else
    return half_from_float<n>(x);
}

// Calls f(i, put) for each vector of lines i, i + 1, ...; put(p, groups) stores them. A vector that
// is wider than the packed lines overwrites what follows, which is then stored later; the last
// vector of several is cut off.
template <class P, class F>
MIXTAPE_ALWAYS_INLINE void for_each_line_vector(int64_t width, F f) {
  constexpr int64_t n = P::lanes;
  const int64_t whole = width < n ? n : width / n * n;
  for (int64_t i = 0; i < whole; i += n)
    f(i, [](auto* p, auto v) MIXTAPE_INLINE_LAMBDA { store_vector(p, v); });
  const int64_t bytes = (width - whole) * static_cast<int64_t>(sizeof(typename P::Group));
  if (bytes > 0) f(whole, [&](auto* p, auto v) MIXTAPE_INLINE_LAMBDA { store_bytes(p, v, bytes); });
}

// Packs lines that are adjacent in memory.
template <class P, class S>
MIXTAPE_ALWAYS_INLINE void pack_across(const PackSource& from, int64_t depth, int64_t width,
                                       typename P::Group* out) {
  constexpr int64_t n = P::lanes;
  const S* const data = static_cast<const S*>(from.data);
  const int64_t groups = (depth + P::k_group - 1) / P::k_group;
  for_each_line_vector<P>(width, [&](int64_t i, auto put) MIXTAPE_INLINE_LAMBDA {
    const int64_t count = std::min(n, from.readable - i);
    const auto pack_lanes = [&](int64_t lanes) MIXTAPE_INLINE_LAMBDA {
      const S* p = data + i;
      for (int64_t g = 0; g < groups; ++g, p += P::k_group * from.k_stride) {
        for (int64_t k = 0; k < P::k_group; ++k)  // further ahead than hardware prefetches
          __builtin_prefetch(p + (8 * P::k_group + k) * from.k_stride);
        put(out + g * width + i, P::load_across(p, from.k_stride, lanes, depth - g * P::k_group));
      }
    };
    if (count == n)
      pack_lanes(n);
    else if (count > 0)
      pack_lanes(count);
  });
}

// Packs lines that are dense along k: transposes squares of k_groups in registers.
template <class P, class S>
MIXTAPE_ALWAYS_INLINE void pack_along(const PackSource& from, int64_t depth, int64_t width,
                                      typename P::Group* out) {
  constexpr int64_t n = P::lanes;
  const S* const data = static_cast<const S*>(from.data);
  const int64_t groups = (depth + P::k_group - 1) / P::k_group;
  // Elements after the end of each line that may be packed, too: none in the last k_group.
  const int64_t behind =
      depth % P::k_group == 0 ? (from.readable - from.count) * from.line_stride : 0;
  for_each_line_vector<P>(width, [&](int64_t i, auto put) MIXTAPE_INLINE_LAMBDA {
    for (int64_t g = 0; g < groups; g += n) {
      typename P::Groups v[n];
      const S* const p = data + i * from.line_stride + g * P::k_group;
      const int64_t left = depth - g * P::k_group, last = from.count - 1 - i;
      if (last < 0) continue;
      if (left + behind >= n * P::k_group && last >= n - 1) {
#pragma GCC unroll 16
        for (int64_t r = 0; r < n; ++r)
          v[r] = P::load_along(p + r * from.line_stride, n * P::k_group);
      } else {
        const int64_t count = std::min(left, n * P::k_group);
        for (int64_t r = 0; r < n; ++r)
          v[r] = P::load_along(p + std::min(r, last) * from.line_stride, count);
      }
      transpose<n>(v);
      typename P::Group* const block = out + g * width + i;
      if (groups - g >= n) {
#pragma GCC unroll 16
        for (int64_t r = 0; r < n; ++r) put(block + r * width, v[r]);
      } else {
        for (int64_t r = 0; r < groups - g; ++r) put(block + r * width, v[r]);
      }
    }
  });
}

template <class P, class S>
void pack(const PackSource& from, int64_t depth, int64_t width, void* to) {
  using Group = typename P::Group;
  const S* const data = static_cast<const S*>(from.data);
  const int64_t groups = (depth + P::k_group - 1) / P::k_group;
  Group* const out = static_cast<Group*>(to);
  if (from.line_stride == 1) {
    pack_across<P, S>(from, depth, width, out);
  } else if (from.k_stride == 1) {
    pack_along<P, S>(from, depth, width, out);
  } else {
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t i = 0; i < width; ++i)
        out[g * width + i] =
            i < from.count
                ? P::load_one(data + i * from.line_stride + g * P::k_group * from.k_stride,
                              from.k_stride, depth - g * P::k_group)
                : Group{};
  }
}

// Pointers to n lines `stride` bytes apart in few registers: each pointer reaches seven lines with
// three strides, within what an address can express. (The asm hides common subexpressions, which
// the compiler would otherwise keep in registers, and spill.)
template <int n>
struct RowPointers {
  const char* at[(n + 6) / 7];
  int64_t one, three, five;

  MIXTAPE_ALWAYS_INLINE RowPointers(const void* data, int64_t stride)
      : one(stride), three(3 * stride), five(5 * stride) {
    asm("" : "+r"(one), "+r"(three), "+r"(five));
    begin(data);
  }
  MIXTAPE_ALWAYS_INLINE void begin(const void* data) {
    const char* p = static_cast<const char*>(data);
    for (const char*& seven : at) {
      seven = p;
      p += 7 * one;
    }
  }
  MIXTAPE_ALWAYS_INLINE void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (const char*& seven : at) {
      seven += bytes;
      asm volatile("" : "+r"(seven));  // otherwise the compiler keeps a pointer for each line
    }
  }
  // Prefetches the n lines after these.
  MIXTAPE_ALWAYS_INLINE void prefetch_next() const {
    auto next = *this;
    next.advance(n * one);
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) __builtin_prefetch(next[i]);
  }
  MIXTAPE_ALWAYS_INLINE const char* operator[](int i) const {
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

// Stores R rows of V vectors as O.
template <class P, class O, int R, int V>
MIXTAPE_ALWAYS_INLINE void store_rows(const Tile<typename P::T>& t,
                                      const typename P::Vector (&sum)[R][V]) {
  // Copied first: for the compiler, a store might change t.
  O* to = static_cast<O*>(t.out);
  const int64_t out_row_stride = t.out_row_stride;
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      if constexpr (std::is_same_v<O, typename P::T>)
        store_vector(to + j * P::lanes, sum[i][j]);
      else
        store_vector(to + j * P::lanes, to_half<O>(sum[i][j]));
    }
    to += out_row_stride;
    asm volatile("" : "+r"(to));
  }
}

// Stores the sums, plus t.add. (One loop of sums for all dtypes of c compiles in half the time.)
template <class P, bool rounds, int R, int V>
MIXTAPE_ALWAYS_INLINE void store_tile(const Tile<typename P::T>& t,
                                      typename P::Vector (&sum)[R][V]) {
  if (const typename P::T* add = t.add) {
    const int64_t add_row_stride = t.add_row_stride;
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] += load_vector<typename P::Vector>(add + j * P::lanes);
      add += add_row_stride;
      asm volatile("" : "+r"(add));
    }
  }
  if constexpr (rounds && P::k_group == 1)
    if (t.out_dtype == f16) return store_rows<P, Half>(t, sum);
  if constexpr (rounds)
    if (t.out_dtype == bf16) return store_rows<P, BFloat16>(t, sum);
  store_rows<P, typename P::T>(t, sum);
}

// Prefetches the output of R rows of V vectors for writing, or to the second-level cache.
template <class P, int R, int V>
MIXTAPE_ALWAYS_INLINE void prefetch_output(const Tile<typename P::T>& t) {
  const Tile<typename P::T>* late = &t;  // not read before the loop, which needs the registers
  asm volatile("" : "+r"(late));
  const char* to = static_cast<const char*>(late->out);
  const auto size = static_cast<int64_t>(size_of(late->out_dtype));
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) __builtin_prefetch(to + j * P::lanes * size, 1);
    to += late->out_row_stride * size;
    asm volatile("" : "+r"(to));
  }
}
template <class P, int R, int V>
MIXTAPE_ALWAYS_INLINE void prefetch_cold_output(const Tile<typename P::T>& t) {
  const char* to = static_cast<const char*>(t.out);
  const auto size = static_cast<int64_t>(size_of(t.out_dtype));
  for (int i = 0; i < R; ++i, to += t.out_row_stride * size)
    for (int j = 0; j < V; ++j) __builtin_prefetch(to + j * P::lanes * size, 0, 2);
}

// Sums a tile of R rows of V vectors in registers. The rows of a are packed side by side or, if
// strided, a_row_stride apart in memory.
template <class P, bool rounds, int R, int V, bool strided>
void sum_tile(const Tile<typename P::T>& t) {
  using Group = typename P::Group;
  constexpr int bytes = sizeof(typename P::Vector);
  // Low tiles have few products to pay for a loop, which matters if a neighbour shares the core.
  constexpr int unroll = P::rows < 8 && !strided ? 2 : 1;
  constexpr int64_t steps_per_line = 64 / sizeof(Group);     // of a row, in one cache line
  constexpr int64_t prefetch_distance = 48, b_distance = 8;  // steps of packed a, and of b
  constexpr int64_t least_to_prefetch = 16;                  // steps; fewer end before data arrives
  typename P::Vector sum[R][V] = {};
  const char *a = static_cast<const char*>(t.a), *b = static_cast<const char*>(t.b);
  RowPointers<strided ? R : 1> rows(a, t.a_row_stride);
  const int64_t b_ahead = t.k_groups > least_to_prefetch ? b_distance * t.b_k_stride : 0;
  const auto step = [&]() MIXTAPE_INLINE_LAMBDA {
    typename P::Groups w[V];
#pragma GCC unroll 4
    for (int j = 0; j < V; ++j) {
      w[j] = load_vector<typename P::Groups>(b + j * bytes);
      if constexpr (R >= 8 && bytes == 64) __builtin_prefetch(b + b_ahead + j * bytes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Group x =
          load_vector<Group>(strided ? rows[i] : a + i * static_cast<int>(sizeof(Group)));
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sum[i][j] = P::multiply_add(sum[i][j], x, w[j]);
    }
    if constexpr (strided)
      rows.advance(t.a_k_stride);
    else
      a += t.a_k_stride;
    b += t.b_k_stride;
    if constexpr (unroll > 1) asm volatile("" : "+r"(a), "+r"(b));  // not a pointer for each step
  };
  if (t.cold_out) prefetch_cold_output<P, R, V>(t);
  for (int64_t n = 0; n < t.segment_count; ++n) {
    if (t.segments) {
      a = static_cast<const char*>(t.a) + t.segments[n].a;
      b = static_cast<const char*>(t.b) + t.segments[n].b;
      rows.begin(a);
    }
    for (int64_t left = t.k_groups; left > 0;) {
      int64_t some = left % steps_per_line ? left % steps_per_line : steps_per_line;
      left -= some;
      // Prefetches the rows of the next tile that are read in place, one cache line of each at a
      // time. The output comes last: the reads would evict it from the first-level cache.
      if (t.k_groups > least_to_prefetch) {
        if constexpr (strided) rows.prefetch_next();
        if (left == 0 && n + 1 == t.segment_count) prefetch_output<P, R, V>(t);
      }
      for (; some % unroll != 0; --some) step();
      for (; some > 0; some -= unroll) {
        if constexpr (!strided) __builtin_prefetch(a + prefetch_distance * t.a_k_stride);
#pragma GCC unroll 4
        for (int i = 0; i < unroll; ++i) step();
      }
    }
  }
  store_tile<P, rounds>(t, sum);
}

// Sums R packed rows times V vectors of lines of b that are dense along k: transposes squares of b
// in registers, while the products of the previous square are summed.
template <class P, class S, int R, int V>
void sum_k_major(const Tile<typename P::T>& t) {
  using Group = typename P::Group;
  constexpr int64_t n = P::lanes;
  typename P::Vector sum[R][V] = {};
  const char* a = static_cast<const char*>(t.a);
  RowPointers<V * n> lines(t.b, t.b_line_stride);
  // Sums `steps` steps of the square of vector j that begins at step `first`.
  const auto add = [&](int j, int64_t first, auto steps) MIXTAPE_INLINE_LAMBDA {
    typename P::Groups v[n];
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i)
      v[i] = P::load_along(reinterpret_cast<const S*>(lines[j * n + i]) + first * P::k_group,
                           steps * P::k_group);
    transpose(v);
    const auto multiply = [&](int64_t u) MIXTAPE_INLINE_LAMBDA {
      const char* const numbers = a + (first + u) * R * static_cast<int64_t>(sizeof(Group));
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
        sum[i][j] = P::multiply_add(
            sum[i][j], load_vector<Group>(numbers + i * static_cast<int64_t>(sizeof(Group))), v[u]);
    };
    if constexpr (std::is_same_v<decltype(steps), int64_t>) {  // a loop, which is less code
      for (int64_t u = 0; u < steps; ++u) multiply(u);
    } else {
#pragma GCC unroll 16
      for (int64_t u = 0; u < n; ++u) multiply(u);
    }
  };
  // Squares of one vector follow each other V at a time: a line that the other vector's lines evict
  // from the first-level cache has been read whole.
  int64_t left = t.k_groups;
  while (left > 0) {
    const int64_t steps = left >= V * n ? V * n : std::min(left, n);
    left -= steps;
    if (steps == V * n) {
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j)
#pragma GCC unroll 2
        for (int s = 0; s < V; ++s) add(j, s * n, std::integral_constant<int64_t, n>());
    } else {
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) add(j, 0, steps);
    }
    a += steps * R * static_cast<int64_t>(sizeof(Group));
    lines.advance(steps * P::k_group * static_cast<int64_t>(sizeof(S)));
  }
  store_tile<P, (sizeof(S) < sizeof(typename P::T))>(t, sum);
}

// A k_group is stored in memory as it is packed.
template <class P, class S>
inline constexpr bool groups_are_elements = sizeof(S) * P::k_group == sizeof(typename P::Group);

// (Only rows that are not packed are strided. Packed ones of f16 and bf16 are those of f32.)
template <class P, class S, bool strided, int... i>
void dispatch_tile(int rows, int vectors, const Tile<typename P::T>& t,
                   std::integer_sequence<int, i...>) {
  using Sum = void (*)(const Tile<typename P::T>&);
  if constexpr (!strided || groups_are_elements<P, S>) {
    constexpr bool rounds = std::is_same_v<typename P::T, float> && (!strided || sizeof(S) == 2);
    static constexpr Sum table[2][sizeof...(i)] = {{sum_tile<P, rounds, i + 1, 1, strided>...},
                                                   {sum_tile<P, rounds, i + 1, 2, strided>...}};
    table[vectors - 1][rows - 1](t);
  }
}
// (Up to two rows take both vectors at once, since each sum waits for the one before.)
template <class P, class S, int... i>
void dispatch_k_major(int rows, int vectors, Tile<typename P::T> t,
                      std::integer_sequence<int, i...>) {
  using Sum = void (*)(const Tile<typename P::T>&);
  static constexpr Sum table[] = {sum_k_major<P, S, i + 1, 1>...};
  static constexpr Sum of_both[] = {sum_k_major<P, S, 1, 2>, sum_k_major<P, S, 2, 2>};
  if (rows <= 2 && vectors == 2) return of_both[rows - 1](t);
  const auto step = P::lanes * static_cast<int64_t>(size_of(t.out_dtype));
  for (; vectors > 0; --vectors) {
    table[rows - 1](t);
    t.b = static_cast<const char*>(t.b) + P::lanes * t.b_line_stride;
    t.out = static_cast<char*>(t.out) + step;
    if (t.add) t.add += P::lanes;
  }
}
template <class P, class S>
void tile(int rows, int vectors, const Tile<typename P::T>& t) {
  const std::make_integer_sequence<int, P::rows> heights;
  if (t.b_line_stride != 0)
    dispatch_k_major<P, S>(rows, vectors, t, heights);
  else if (t.a_row_stride == int64_t{sizeof(typename P::Group)})
    dispatch_tile<P, S, false>(rows, vectors, t, heights);
  else
    dispatch_tile<P, S, true>(rows, vectors, t, heights);
}

template <class P, class S>
constexpr Microkernel<typename P::T> make_microkernel() {
  using T = typename P::T;
  Microkernel<T> kernel{P::rows,
                        P::lanes,
                        P::vectors,
                        P::k_group,
                        sizeof(typename P::Group),
                        groups_are_elements<P, S>,
                        &tile<P, S>,
                        &pack<P, S>};
  set_other_sums<P, S>(kernel);
  return kernel;
}
template <class Float, class Double>
constexpr Microkernels make_microkernels() {
  return {make_microkernel<Double, double>(), make_microkernel<Float, float>(),
          make_microkernel<Float, Half>(), make_microkernel<Float, BFloat16>()};
}

}  // namespace
}  // namespace cpu
}  // namespace mixtape::kernels
