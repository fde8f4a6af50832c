// Kernels that move and convert elements: convert, where, fill, arange, accumulate and others.

#include <algorithm>
#include <cstring>

#include "core/float8.h"
#include "kernels/common/scalar.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Stores the lanes without their fractions, or returns false if one is not below 2^51: adding 1.5
// times 2^52 leaves the nearest whole number in the lowest bits.
MIXTAPE_ALWAYS_INLINE bool truncate(Vec<double> x, int64_t* y) {
  const Vec<double> magic = detail::whole_magic, zero = 0.0, sum = x + magic, nearest = sum - magic;
  if (any(!(abs(x) < Vec<double>(0x1p51)))) [[unlikely]]
    return false;
  const Mask<double> above = (nearest > x) & (x > zero), below = (nearest < x) & (x < zero);
  detail::put<int64_t>(y, detail::bits(sum) - detail::bits(magic) + above.v - below.v);
  return true;
}

// Stores the lanes as floats, or returns false if one is not below 2^51.
template <class To>
MIXTAPE_ALWAYS_INLINE bool store_whole(const int64_t* p, To* y) {
  const auto x = load<int64_t>(p).v, magic = detail::bits(detail::magic_lanes());
  if (any(Mask<double>{(x >= int64_t{1} << 51) | (x <= -(int64_t{1} << 51))})) [[unlikely]]
    return false;
  store(y, detail::from_bits<double>(x + magic) - detail::whole_magic);
  return true;
}

template <class From, class To>
void convert_loop(void* const* p, int64_t n, const void*) {
  const From* const x = static_cast<const From*>(p[0]);
  To* const y = static_cast<To*>(p[1]);
  if constexpr (is_float(dtype_of<From>()) && is_float(dtype_of<To>())) {
    using M = std::conditional_t<std::is_same_v<From, double> || std::is_same_v<To, double>, double,
                                 float>;
    for (int64_t i = 0; i < n; i += Vec<M>::width) store(y + i, load<From, M>(x + i));
  } else if constexpr (is_float(dtype_of<From>()) && std::is_same_v<To, int64_t>) {
    constexpr int64_t width = Vec<double>::width;
    for (int64_t i = 0; i < n; i += width)
      if (!truncate(load<From, double>(x + i), y + i))
        for (int64_t k = i; k < i + width; ++k) y[k] = convert_to<To>(x[k]);
  } else if constexpr (std::is_same_v<From, int64_t> && is_float(dtype_of<To>())) {
    constexpr int64_t width = Vec<double>::width;
    for (int64_t i = 0; i < n; i += width)
      if (!store_whole(x + i, y + i))
        for (int64_t k = i; k < i + width; ++k) y[k] = convert_to<To>(x[k]);
  } else if constexpr (is_f8(dtype_of<From>())) {
    for (int64_t i = 0; i < n; ++i) y[i] = convert_to<To>(static_cast<float>(x[i]));
  } else if constexpr (is_f8(dtype_of<To>())) {
    using M = std::conditional_t<std::is_integral_v<From>, double, From>;
    for (int64_t i = 0; i < n; ++i) y[i] = To(static_cast<M>(x[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = convert_to<To>(x[i]);
  }
}

// A dtype on the way from x to y that holds all numbers of x; perhaps one of both.
constexpr DType between(DType x, DType y) {
  if (is_float(x) || is_f8(x)) return x == f64 ? f64 : f32;
  if (x == i64 || x == u32) return i64;
  return !is_float(y) ? i32 : x == i32 ? f64 : f32;
}

// The loop from one dtype to another, if there is one: dtypes that only store numbers, and integers
// that become 16-bit floats, go by way of another. (A bool is the u8 of which it is made.)
ContiguousLoop direct_loop(DType from, DType to) {
  return visit_stored(from == boolean ? u8 : from, [&]<class From>() {
    return visit_stored(to, []<class To>() -> ContiguousLoop {
      constexpr DType x = dtype_of<From>(), y = dtype_of<To>(), way = between(x, y);
      constexpr bool detour = only_stores(x) || only_stores(y) || (!is_float(x) && is_half(y));
      if constexpr (x == boolean || (detour && x != way && y != way))
        return nullptr;
      else
        return &convert_loop<From, To>;
    });
  });
}

// A loop and, for each operand of another dtype than the loop's, the loop that converts it.
struct MixedLoop {
  ContiguousLoop loop;
  const void* context;
  int count, first_output;
  ContiguousLoop convert[max_operands] = {};
  int64_t size[max_operands] = {};  // bytes of an element, as stored
};
void run_mixed(void* const* p, int64_t n, const void* context) {
  const auto& mixed = *static_cast<const MixedLoop*>(context);
  alignas(64) int64_t buffer[max_operands][piece];
  for (int64_t i = 0; i < n; i += piece) {
    const int64_t some = std::min(piece, n - i);
    void *at[max_operands], *wide[max_operands];
    for (int k = 0; k < mixed.count; ++k) {
      at[k] = p[k] ? static_cast<char*>(p[k]) + i * mixed.size[k] : nullptr;
      wide[k] = p[k] && mixed.convert[k] ? buffer[k] : at[k];
      void* const both[] = {at[k], wide[k]};
      if (at[k] != wide[k] && k < mixed.first_output) mixed.convert[k](both, some, nullptr);
    }
    mixed.loop(wide, some, mixed.context);
    for (int k = mixed.first_output; k < mixed.count; ++k) {
      void* const both[] = {wide[k], at[k]};
      if (at[k] != wide[k]) mixed.convert[k](both, some, nullptr);
    }
  }
}

template <class Word>
void where_loop(void* const* p, int64_t n, const void*) {
  const uint8_t* const condition = static_cast<const uint8_t*>(p[0]);
  const Word* const a = static_cast<const Word*>(p[1]);
  const Word* const b = static_cast<const Word*>(p[2]);
  Word* const c = static_cast<Word*>(p[3]);
  for (int64_t i = 0; i < n; ++i) {  // unlike ?:, masks are vectorised
    const Word from_a = static_cast<Word>(-int64_t{condition[i] != 0});
    c[i] = static_cast<Word>((a[i] & from_a) | (b[i] & ~from_a));
  }
}

template <class Word>
void fill_loop(void* const* p, int64_t n, const void* value) {
  std::fill_n(static_cast<Word*>(p[0]), n, *static_cast<const Word*>(value));
}

template <class Tx, class Ty>
void accumulate_loop(void* const* p, int64_t n, const void*) {
  const Tx* const x = static_cast<const Tx*>(p[0]);
  Ty* const y = static_cast<Ty*>(p[2]);
  const Ty* const old = static_cast<const Ty*>(p[1]);
  if constexpr (std::is_integral_v<Ty>) {
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<Ty>(Whole(old[i]) + Whole(x[i]));
  } else {
    using M = math_t<Ty>;
    for (int64_t i = 0; i < n; i += Vec<M>::width)
      store(y + i, load<Ty, M>(old + i) + load<Tx, M>(x + i));
  }
}

}  // namespace

void convert(Launch& launch, In x, Out y) {
  if (x.dtype == y.dtype) return copy(x, y);
  if (const ContiguousLoop loop = direct_loop(x.dtype, y.dtype))
    return for_each_contiguous(launch, {&x, &y}, loop);
  const DType way = between(x.dtype, y.dtype);
  const MixedLoop both{direct_loop(x.dtype, way),
                       nullptr,
                       2,
                       1,
                       {nullptr, direct_loop(way, y.dtype)},
                       {int64_t(size_of(x.dtype)), int64_t(size_of(y.dtype))}};
  for_each_contiguous(launch, {&x, &y}, &run_mixed, &both);
}

void for_each_as(Launch& launch, DType dtype, std::initializer_list<const View*> operands,
                 ContiguousLoop loop, const void* context, int outputs) {
  const int count = static_cast<int>(operands.size());
  MixedLoop mixed{loop, context, count, count - outputs};
  bool converts = false;
  for (int k = 0; k < count; ++k) {
    const View& v = *operands.begin()[k];
    mixed.size[k] = int64_t(size_of(v.dtype));
    if (!v || v.dtype == dtype || !is_float(v.dtype)) continue;
    converts = true;
    mixed.convert[k] =
        k < mixed.first_output ? direct_loop(v.dtype, dtype) : direct_loop(dtype, v.dtype);
  }
  if (!converts) return for_each_contiguous(launch, operands, loop, context, outputs);
  for_each_contiguous(launch, operands, &run_mixed, &mixed, outputs);
}

void where(Launch& launch, In condition, In a, In b, Out c) {
  with_word(size_of(c.dtype), [&]<class Word>(Word) {
    for_each_contiguous(launch, {&condition, &a, &b, &c}, &where_loop<Word>);
  });
}

void fill(Launch& launch, double value, Out y) {
  visit(y.dtype, [&]<class T>() {
    const T v = convert_to<T>(value);
    with_word(sizeof(T), [&]<class Word>(Word) {
      Word bits;
      std::memcpy(&bits, &v, sizeof bits);
      for_each_contiguous(launch, {&y}, &fill_loop<Word>, &bits);
    });
  });
}

void arange(Launch&, double start, double step, Out y) {
  visit(y.dtype, [&]<class T>() {
    T* const to = y.as<T>();
    parallel_ranges(y.size(), grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = counted<T>(start, step, i);
    });
  });
}

// Counts from the nearer end, so that both ends are exact.
void linspace(Launch&, double start, double stop, Out y) {
  const int64_t last = y.size() - 1;
  const double step = last > 0 ? (stop - start) / static_cast<double>(last) : 0;
  visit(y.dtype, [&]<class T>() {
    T* const to = y.as<T>();
    parallel_ranges(y.size(), grain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        to[i] = convert_to<T>(2 * i <= last ? start + static_cast<double>(i) * step
                                            : stop - static_cast<double>(last - i) * step);
    });
  });
}

void accumulate(Launch& launch, In x, Out y) {
  if (is_float(x.dtype)) {
    for_each_contiguous(launch, {&x, &y, &y},
                        visit_float(x.dtype, y.dtype, []<class Tx, class Ty>() -> ContiguousLoop {
                          return &accumulate_loop<Tx, Ty>;
                        }));
  } else {
    for_each_contiguous(launch, {&x, &y, &y}, visit(x.dtype, []<class T>() -> ContiguousLoop {
                          return &accumulate_loop<T, T>;
                        }));
  }
}

void triangle(Launch&, bool upper, int64_t diagonal, In x, Out y) {
  if (y.size() == 0) return;
  const int64_t rows = y.shape()[-2], columns = y.shape()[-1];
  const int64_t shift = std::clamp(diagonal, -rows, columns) + (upper ? 0 : 1);
  const size_t size = size_of(y.dtype);
  parallel_ranges(y.size() / columns, grain_of(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const char* const from = x.as<char>() + r * columns * int64_t(size);
      char* const to = y.as<char>() + r * columns * int64_t(size);
      // Columns before `split` are below the diagonal; in a lower triangle, also on it.
      const size_t split = size_t(std::clamp<int64_t>(r % rows + shift, 0, columns)) * size;
      const size_t rest = size_t(columns) * size - split;
      std::memset(upper ? to : to + split, 0, upper ? split : rest);
      if (upper)
        std::memcpy(to + split, from + split, rest);
      else
        std::memcpy(to, from, split);
    }
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
