// y = f(x) and dx = dy * f' for every unary op.

#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class F, class V>
struct Forward {
  V s[2];
  MIXTAPE_HD auto operator()(V x) const {
    return with_numbers<F>(s, [=](auto... numbers) { return F::f(x, numbers...); });
  }
};

template <class F, bool half, class V>
struct Backward {
  V s[2];
  MIXTAPE_HD V operator()(V v, V dy) const {
    return with_numbers<F>(
        s, [=](auto... numbers) { return passed<F>(dy, derivative<F, half>(v, numbers...)); });
  }
};

// Functions that no layer of a network is made of.
using CostlyOps = OpList<Tan, Asin, Acos, Sinh, Cosh, Asinh, Acosh, Atanh, Erfc, Erfinv, Lgamma,
                         Digamma, BesselI0>;

}  // namespace

template <class F, class V>
constexpr bool is_costly<Forward<F, V>> = is_in<F>(CostlyOps());
template <class F, bool half, class V>
constexpr bool is_costly<Backward<F, half, V>> = is_in<F>(CostlyOps());

void unary(Launch& launch, int op, In x, const Numbers& numbers, Out y) {
  const double* const s = numbers.value;
  visit_op(UnaryOps{}, op, [&]<class F>() {
    visit_math(x.dtype, [&]<class V>() {
      using R = std::conditional_t<Predicate<F>, bool, V>;
      if constexpr (Takes<F, V>)
        map_numbers<V, R>(launch, F::info.name.data(),
                          Forward<F, V>{{number<V>(s[0]), number<V>(s[1])}}, {&y}, {{&x}});
    });
  });
}

void unary_grad(Launch& launch, int op, In v, In dy, const Numbers& numbers, Out dx) {
  const double* const s = numbers.value;
  visit_op(UnaryOps{}, op, [&]<class F>() {
    if constexpr (FromX<F> || FromY<F>) {
      constexpr bool depends = saves_x<F>(true) != saves_x<F>(false);
      const auto run = [&]<class V, bool half>() {
        map_numbers<V>(launch, F::info.name.data(),
                       Backward<F, half, V>{{number<V>(s[0]), number<V>(s[1])}}, {&dx},
                       {{&v}, {&dy}});
      };
      if (depends && is_half(dx.dtype))
        run.template operator()<float, depends>();
      else
        visit_float_math(dx.dtype, [&]<class V>() { run.template operator()<V, false>(); });
    }
  });
}

}  // namespace mixtape::kernels::cuda
