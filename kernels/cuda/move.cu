// Moving: converting, copying, filling, counting, adding up.

#include "kernels/cuda/elementwise.cuh"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
namespace {

template <class To, class From>
struct Convert {
  MIXTAPE_HD To operator()(From x) const {
    if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
      return Convert<To, float>()(gpu::widen(x));
    else if constexpr (std::is_same_v<From, float> &&
                       (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>))
      return gpu::narrow<To>(x);
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
  const int64_t all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < n; i += all)
    y[i] = convert_to<T>(start + double(i) * step);
}

template <class T, class S>
struct AddTo {
  MIXTAPE_HD T operator()(T y, S x) const {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(Whole(y) + Whole(x));
    else
      return gpu::narrow<T>(gpu::math_t<T>(gpu::widen(y)) + gpu::math_t<T>(gpu::widen(x)));
  }
};

}  // namespace

void convert(Launch& launch, In x, Out y) {
  visit(x.dtype, [&]<class From>() {
    visit(y.dtype,
          [&]<class To>() { map<To, From>(launch, "convert", Convert<To, From>(), y, x); });
  });
}

void fill(Launch& launch, double value, Out y) {
  visit(y.dtype, [&]<class T>() { map<T>(launch, "fill", Constant<T>{convert_to<T>(value)}, y); });
}

void arange(Launch& launch, double start, double step, Out y) {
  const int64_t n = y.size();
  if (n == 0) return;
  visit(y.dtype, [&]<class T>() {
    gpu::launch({"arange", gpu::blocks_for(n, 256, launch.device.index), {256, 1, 1}},
                launch.stream, count_up<T>, start, step, n, y.as<T>());
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
