#pragma once
// Traits of elementwise ops, which are in activation.h, unary.h and binary.h. An op is a struct
// with its name, precision, formula and derivatives, as static functions of a type T: float,
// double, a SIMD vector, Whole for integers or, in derivatives, an expression on the tape. Formulas
// therefore use only + - * /, T(constant), comparisons, select and the functions of scalar.h.
// `integers` marks ops that also take integers, `only_integers` those that take nothing else;
// predicates take every dtype. `exact` marks ops whose y is x or a constant.

#include "core/view.h"
#include "kernels/common/binary.h"
#include "kernels/common/unary.h"

namespace mixtape::kernels {
using namespace internal;

// Ops with gradient(dy, x), or of y, instead of a derivative: dy / x is in range where 1 / x need
// not be.
template <class F>
concept HasGradient = requires(float x) { F::gradient(x, x); };
template <class F>
concept FromY = requires { F::template d_from_y<float>; } || requires { requires F::from_y; };
template <class F>
concept FromX = (HasGradient<F> && !FromY<F>) || requires { F::template d_from_x<float>; };
template <class F>
concept Exact = requires { requires F::exact; };
template <class F>
concept Constant = requires { double(F::d); };

// True if the op takes only integers.
template <class F>
concept OnlyIntegers = requires { requires F::only_integers; };

// The tensor that a unary op saves for its backward pass: y if its derivative is a function of y,
// which is cheaper, else x. In f16 and bf16 it saves x unless y is exact, since y is rounded.
template <class F>
constexpr bool saves_x(bool half) {
  return FromX<F> || (FromY<F> && !Exact<F> && half);
}
template <class F>
constexpr bool saves_y(bool half) {
  return FromY<F> && !saves_x<F>(half);
}

// The number of scalar arguments of a unary op.
template <class F>
inline constexpr int numbers_of = []<class R, class T, class... S>(R (*)(T, S...)) {
  return int{sizeof...(S)};
}(&F::template f<std::conditional_t<OnlyIntegers<F>, Whole, float>>);
// Calls use(s[0], ...) with the scalar arguments that F takes.
template <class F, class V, class Use>
MIXTAPE_HD auto with_numbers([[maybe_unused]] const V* s, Use use) {
  return [&]<int... i>(std::integer_sequence<int, i...>) {
    return use(s[i]...);
  }(std::make_integer_sequence<int, numbers_of<F>>());
}

// The derivative from the tensor that F saves, of half or wider elements; or x or y, for
// gradient().
template <class F, bool half, class T, class... S>
MIXTAPE_HD T derivative(T v, S... numbers) {
  if constexpr (Constant<F>)
    return T(F::d);
  else if constexpr (FromY<F> && saves_x<F>(half))
    return derivative<F, false>(F::f(v, numbers...), numbers...);
  else if constexpr (HasGradient<F>)
    return v;
  else if constexpr (FromX<F>)
    return F::d_from_x(v, numbers...);
  else
    return F::d_from_y(v, numbers...);
}

// True if a derivative of a binary op is a constant.
template <class F>
concept ConstantA = requires { double(F::da); };
template <class F>
concept ConstantB = requires { double(F::db); };

// Ops with gradient_a(dy, a, b) and gradient_b instead, for the same reason as HasGradient.
template <class F>
concept HasGradients = requires(float x) { F::gradient_a(x, x, x); };

template <class F, class T>
MIXTAPE_HD T derivative_a(T a, T b, T c) {
  if constexpr (ConstantA<F>)
    return T(F::da);
  else if constexpr (HasGradients<F>)
    return F::gradient_a(T(1), a, b);
  else
    return F::da(a, b, c);
}
template <class F, class T>
MIXTAPE_HD T derivative_b(T a, T b, T c) {
  if constexpr (ConstantB<F>)
    return T(F::db);
  else if constexpr (HasGradients<F>)
    return F::gradient_b(T(1), a, b);
  else
    return F::db(a, b, c);
}

// True if f is constant on an interval. There it passes no gradient, not even a non-finite one: the
// gradient of sqrt(relu(x)) is 0 for negative x.
template <class F>
concept Flat = requires { requires F::flat; };
template <class F, class T>
MIXTAPE_HD T passed(T dy, T derivative) {
  if constexpr (Flat<F>)
    return select(derivative == T(0), T(0), dy * derivative);
  else if constexpr (HasGradient<F>)
    return F::gradient(dy, derivative);
  else
    return dy * derivative;
}
template <class F, class T>
MIXTAPE_HD T gradient_a(T dy, T a, T b, T c) {
  if constexpr (HasGradients<F>)
    return F::gradient_a(dy, a, b);
  else
    return passed<F>(dy, derivative_a<F>(a, b, c));
}
template <class F, class T>
MIXTAPE_HD T gradient_b(T dy, T a, T b, T c) {
  if constexpr (HasGradients<F>)
    return F::gradient_b(dy, a, b);
  else
    return passed<F>(dy, derivative_b<F>(a, b, c));
}

template <class F>
concept Differentiable = FromX<F> || FromY<F> || Constant<F> || ConstantA<F> || HasGradients<F> ||
                         requires(float x) { F::da(x, x, x); };

// True if the result is bool, without a derivative.
template <class F>
concept Predicate = !Differentiable<F> && !OnlyIntegers<F>;

template <class F>
concept TakesIntegers = Predicate<F> || OnlyIntegers<F> || requires { requires F::integers; };
template <class F, class T>  // T: in which the op is computed
concept Takes = (std::is_same_v<T, Whole> ? TakesIntegers<F> : !OnlyIntegers<F>);

// A constant in the type in which an op is computed.
template <class T>
MIXTAPE_HD T number(double x) {
  if constexpr (std::is_same_v<T, Whole>)
    return Whole(convert_to<int64_t>(x));
  else
    return T(x);
}

// The common powers, without the library's pow.
template <int n>
struct Power : Pow {
  MIXTAPE_HD static auto f(auto a, auto) { return n == 2 ? a * a : a * a * a; }
  MIXTAPE_HD static auto gradient_a(auto dy, auto a, auto b) {
    return n == 2 ? dy * (b * a) : dy * a * a * b;
  }
};
// x^(1/2), or x^(-1/2) if inverse: sqrt, except that powers of -0 and -inf are 0 and inf.
template <bool inverse>
struct Root : Pow {
  static constexpr bool integers = false;
  template <class T>
  MIXTAPE_HD static T root(T a) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    return select(a == T(-infinity), T(infinity), sqrt(a + T(0)));
  }
  template <class T>
  MIXTAPE_HD static T f(T a, T) {
    return inverse ? T(1) / root(a) : root(a);
  }
  template <class T>
  MIXTAPE_HD static T gradient_a(T dy, T a, T b) {
    const T r = root(a), y = T(1) / r;
    return inverse ? dy * b * y * y * y : dy * b / r;
  }
};

// The ops of a tensor and a number, f(x, scalar) and, swapped, f(scalar, x). Kernels have no
// others.
template <bool swapped>
using ScalarOps = std::conditional_t<
    swapped, OpList<Sub, Div, Pow>,
    OpList<Add, Sub, Mul, Div, Pow, Remainder, Fmod, FloorDivide, Copysign, Equal, NotEqual, Less,
           LessEqual, Greater, GreaterEqual, BitAnd, BitOr, BitXor, LeftShift, RightShift>>;
template <class F>
constexpr bool takes_scalar(bool swapped) {
  return swapped ? is_in<F>(ScalarOps<true>{}) : is_in<F>(ScalarOps<false>{});
}

// Calls run.operator()<F, swapped>() with the op of a number, which is the second operand of F or,
// swapped, the first.
template <class Run>
void visit_scalar_op(int op, double scalar, bool swapped, Run run) {
  const bool power = op == index_in<Pow>(BinaryOps{}) && !swapped;
  if (power && scalar == 2) return run.template operator()<Power<2>, false>();
  if (power && scalar == 3) return run.template operator()<Power<3>, false>();
  if (power && scalar == 0.5) return run.template operator()<Root<false>, false>();
  if (power && scalar == -0.5) return run.template operator()<Root<true>, false>();
  visit_op(BinaryOps{}, op, [&]<class F>() {
    if constexpr (takes_scalar<F>(true))
      if (swapped) return run.template operator()<F, true>();
    if constexpr (takes_scalar<F>(false)) run.template operator()<F, false>();
  });
}

// The operands' dtype, or f64 if dy is. If a backward pass has neither operand, dy's if that is f16
// or bf16, else `gradient`.
inline DType operand_dtype(const View& a, const View& b, const View& dy, DType gradient) {
  return dy.dtype == f64     ? f64
         : a                 ? a.dtype
         : b                 ? b.dtype
         : is_half(dy.dtype) ? dy.dtype
                             : gradient;
}

}  // namespace mixtape::kernels
