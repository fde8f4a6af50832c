// Conversions, copies, fill, arange, linspace, where, triangles and accumulation.

#include <algorithm>

#include "core/float8.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class To, class From>
struct Convert {
  MIXTAPE_HD To operator()(From x) const {
    if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
      return Convert<To, float>()(gpu::widen(x));
    else if constexpr (std::is_same_v<From, float> &&
                       (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>))
      return gpu::round_to<To>(x);
    else
      return convert_to<To>(x);
  }
};

template <class T>
struct Constant {
  T value;
  MIXTAPE_HD T operator()() const { return value; }
};

template <class T>
__global__ void count_up(double start, double step, int64_t n, T* y) {
  for (int64_t i = gpu::global_thread(); i < n; i += gpu::all_threads())
    y[i] = counted<T>(start, step, i);
}

// Counts from the nearer end, so that both ends are exact.
template <class T>
__global__ void count_between(double start, double stop, double step, int64_t n, T* y) {
  const int64_t all = gpu::all_threads(), last = n - 1;
  for (int64_t i = gpu::global_thread(); i < n; i += all)
    y[i] = convert_to<T>(2 * i <= last ? start + double(i) * step : stop - double(last - i) * step);
}

template <class Word>
struct Choose {
  MIXTAPE_HD Word operator()(bool condition, Word a, Word b) const { return condition ? a : b; }
};

// A warp per row: columns from `shift` + row on are above the diagonal.
template <class Word>
__global__ void keep_triangle(bool upper, int64_t shift, int64_t rows, int64_t all_rows,
                              int64_t columns, const Word* x, Word* y) {
  const int64_t warps = gpu::all_threads() / gpu::warp_size;
  for (int64_t r = gpu::global_thread() / gpu::warp_size; r < all_rows; r += warps) {
    const int64_t split = r % rows + shift;
    for (int64_t c = gpu::lane(); c < columns; c += gpu::warp_size)
      y[r * columns + c] = (c >= split) == upper ? x[r * columns + c] : Word(0);
  }
}

template <class T, class S>
struct AddTo {
  MIXTAPE_HD T operator()(T y, S x) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(Whole(y) + Whole(x));
    else
      return gpu::round_to<T>(gpu::math_t<T>(gpu::widen(y)) + gpu::math_t<T>(gpu::widen(x)));
  }
};

// Codes of 8 bits of a number, and back.
struct ToF8 {
  DType type;
  MIXTAPE_HD uint8_t operator()(auto x) const {
    return type == f8_e4m3 ? F8E4M3(x).bits : type == f8_e5m2 ? F8E5M2(x).bits : F8E8M0(x).bits;
  }
};
struct FromF8 {
  DType type;
  MIXTAPE_HD float operator()(uint8_t code) const {
    return type == f8_e4m3   ? float(std::bit_cast<F8E4M3>(code))
           : type == f8_e5m2 ? float(std::bit_cast<F8E5M2>(code))
                             : float(std::bit_cast<F8E8M0>(code));
  }
};
View with_dtype(const View& v, DType t) { return {v.data, t, v.layout}; }
// Memory for the elements of `x` as numbers of type T.
template <class T>
View wide_scratch(Launch& launch, In x) {
  return {launch.scratch<T>(x.size()), dtype_of<T>(), Layout(x.shape())};
}

void convert_f8(Launch& launch, In x, Out y) {
  const View from = with_dtype(x, is_f8(x.dtype) || x.dtype == boolean ? u8 : x.dtype);
  if (!is_f8(x.dtype)) {
    const View to = with_dtype(y, u8);
    if (is_half(x.dtype) || x.dtype == f32)
      map<uint8_t, float>(launch, "to_f8", ToF8{y.dtype}, to, from);
    else
      map<uint8_t, double>(launch, "to_f8", ToF8{y.dtype}, to, from);
  } else if (is_half(y.dtype) || y.dtype == f32) {
    map<float, uint8_t>(launch, "from_f8", FromF8{x.dtype}, y, from);
  } else {
    const View number = wide_scratch<float>(launch, x);
    map<float, uint8_t>(launch, "from_f8", FromF8{x.dtype}, number, from);
    convert(launch, number, y);
  }
}

// Integers that only store are widened to i64, and made of i64 or, where floats saturate, of f64.
bool stores_integers(DType t) { return is_integer(t) && only_stores(t); }
template <class F>
void visit_stored_integer(DType t, F f) {
  visit_only_stored(t, [&]<class S>() {
    if constexpr (is_integer(dtype_of<S>())) f.template operator()<S>();
  });
}
void widen_integer(Launch& launch, In x, Out y) {
  const View number = y.dtype == i64 ? y : wide_scratch<int64_t>(launch, x);
  visit_stored_integer(x.dtype, [&]<class S>() {
    map<int64_t, S>(launch, "widen", Convert<int64_t, S>(), number, x);
  });
  if (y.dtype != i64) convert(launch, number, y);
}
template <class Wide>
void narrow_integer(Launch& launch, In x, Out y) {
  const bool is_wide = x.dtype == dtype_of<Wide>();
  const View number = is_wide ? x : wide_scratch<Wide>(launch, x);
  if (!is_wide) convert(launch, x, number);
  visit_stored_integer(
      y.dtype, [&]<class S>() { map<S, Wide>(launch, "narrow", Convert<S, Wide>(), y, number); });
}

}  // namespace

void convert(Launch& launch, In x, Out y) {
  if (x.dtype == y.dtype)
    return visit_stored(x.dtype, [&]<class T>() {
      using Word = Bits<sizeof(T)>;
      map<Word, Word>(launch, "convert", Convert<Word, Word>(), y, x);
    });
  if (stores_integers(x.dtype)) return widen_integer(launch, x, y);
  if (stores_integers(y.dtype))
    return is_integer(x.dtype) || x.dtype == boolean ? narrow_integer<int64_t>(launch, x, y)
                                                     : narrow_integer<double>(launch, x, y);
  if (is_f8(x.dtype) || is_f8(y.dtype)) return convert_f8(launch, x, y);
  visit(x.dtype, [&]<class From>() {
    visit(y.dtype, [&]<class To>() {
      if constexpr (!std::is_same_v<From, To>)
        map<To, From>(launch, "convert", Convert<To, From>(), y, x);
    });
  });
}

void fill(Launch& launch, double value, Out y) {
  visit(y.dtype, [&]<class T>() {
    using Word = Bits<sizeof(T)>;
    map<Word>(launch, "fill", Constant<Word>{std::bit_cast<Word>(convert_to<T>(value))}, y);
  });
}

void arange(Launch& launch, double start, double step, Out y) {
  const int64_t n = y.size();
  visit(y.dtype, [&]<class T>() {
    gpu::launch_over(launch, "arange", n, count_up<T>, start, step, n, y.as<T>());
  });
}

void linspace(Launch& launch, double start, double stop, Out y) {
  const int64_t n = y.size();
  const double step = n > 1 ? (stop - start) / double(n - 1) : 0;
  visit(y.dtype, [&]<class T>() {
    gpu::launch_over(launch, "linspace", n, count_between<T>, start, stop, step, n, y.as<T>());
  });
}

void where(Launch& launch, In condition, In a, In b, Out c) {
  visit_stored(c.dtype, [&]<class T>() {
    using Word = Bits<sizeof(T)>;
    map<Word, bool, Word, Word>(launch, "where", Choose<Word>(), c, condition, a, b);
  });
}

void triangle(Launch& launch, bool upper, int64_t diagonal, In x, Out y) {
  if (y.size() == 0) return;
  const int64_t rows = y.shape()[-2], columns = y.shape()[-1], all_rows = y.size() / columns;
  const int64_t shift = std::clamp(diagonal, -rows, columns) + (upper ? 0 : 1);
  visit_stored(y.dtype, [&]<class T>() {
    using Word = Bits<sizeof(T)>;
    gpu::launch_over(launch, "triangle", all_rows * gpu::warp_size, keep_triangle<Word>, upper,
                     shift, rows, all_rows, columns, x.as<const Word>(), y.as<Word>());
  });
}

void accumulate(Launch& launch, In x, Out y) {
  const auto add = [&]<class T, class S>() {
    map<T, T, S>(launch, "accumulate", AddTo<T, S>(), y, y, x);
  };
  if (!is_float(y.dtype))
    return visit(y.dtype, [&]<class T>() { add.template operator()<T, T>(); });
  visit_float(x.dtype, y.dtype, [&]<class S, class T>() { add.template operator()<T, S>(); });
}

}  // namespace mixtape::kernels::cuda
