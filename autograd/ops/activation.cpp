// Activations, comparisons, and the bits of integers.

#include "autograd/ops/pointwise.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

template <class F>
BoolTensor compare(const Tensor& a, const Tensor& b) {
  return BoolTensor(call<Constant<Binary<F>>>(a, b));
}
template <class F>
BoolTensor compare(const Tensor& a, double b) {
  return BoolTensor(call<Constant<WithScalar<F, false>>>(a, b));
}
template <class F>
BoolTensor property(const Tensor& x) {
  return BoolTensor(call<Constant<Unary<F>>>(x));
}
// An op on the bits of integers; bools go to the logical op.
template <class F, class Logical>
Tensor bitwise(const Tensor& a, const Tensor& b) {
  if (a.dtype() == boolean && b.dtype() == boolean) return compare<Logical>(a, b);
  return call<Constant<Binary<F>>>(a, b);
}
template <class F>
Tensor bitwise(const Tensor& a, double b) {
  return call<Constant<WithScalar<F, false>>>(a.dtype() == boolean ? cast(a, i64) : a, b);
}

}  // namespace

Tensor ops::activation_gradient(Activation f, const Tensor& x_or_y, const Tensor& dy) {
  Tensor dx;
  kernels::visit_activation(f,
                            [&]<class F>() { dx = unary_gradient<F>(x_or_y, dy, x_or_y.dtype()); });
  return dx;
}

Tensor relu(const Tensor& x) { return call<Unary<kernels::Relu>>(x); }
Tensor relu6(const Tensor& x) { return call<Unary<kernels::Relu6>>(x); }
Tensor selu(const Tensor& x) { return call<Unary<kernels::Selu>>(x); }
Tensor gelu(const Tensor& x) { return call<Unary<kernels::Gelu>>(x); }
Tensor gelu_tanh(const Tensor& x) { return call<Unary<kernels::GeluTanh>>(x); }
Tensor gelu(const Tensor& x, std::string_view approximate) {
  const bool tanh = approximate == "tanh";
  check(tanh || approximate == "none", "approximate must be \"none\" or \"tanh\", got \"{}\"",
        approximate);
  return tanh ? gelu_tanh(x) : gelu(x);
}
Tensor silu(const Tensor& x) { return call<Unary<kernels::Silu>>(x); }
Tensor sigmoid(const Tensor& x) { return call<Unary<kernels::Sigmoid>>(x); }
Tensor hardsigmoid(const Tensor& x) { return call<Unary<kernels::Hardsigmoid>>(x); }
Tensor hardswish(const Tensor& x) { return call<Unary<kernels::Hardswish>>(x); }
Tensor mish(const Tensor& x) { return call<Unary<kernels::Mish>>(x); }
Tensor tanh(const Tensor& x) { return call<Unary<kernels::Tanh>>(x); }
Tensor softsign(const Tensor& x) { return call<Unary<kernels::Softsign>>(x); }
Tensor softplus(const Tensor& x) { return call<Unary<kernels::Softplus>>(x); }
Tensor log_sigmoid(const Tensor& x) { return call<Unary<kernels::LogSigmoid>>(x); }
Tensor leaky_relu(const Tensor& x, double slope) {
  return call<Unary<kernels::LeakyRelu, double>>(x, slope);
}
Tensor elu(const Tensor& x, double alpha) { return call<Unary<kernels::Elu, double>>(x, alpha); }
Tensor glu(const Tensor& x, int dim) {
  const Scope scope(kernels::Glu::info.name);
  const int64_t n = x.size(dim), half = n / 2;
  check(n % 2 == 0, "dimension {} has {} elements, which cannot be halved", dim, n);
  return call<Binary<kernels::Glu>>(narrow(x, dim, 0, half), narrow(x, dim, half, half));
}
Tensor swiglu(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Swiglu>>(a, b); }
BoolTensor eq(const Tensor& a, const Tensor& b) { return compare<kernels::Equal>(a, b); }
BoolTensor ne(const Tensor& a, const Tensor& b) { return compare<kernels::NotEqual>(a, b); }
BoolTensor lt(const Tensor& a, const Tensor& b) { return compare<kernels::Less>(a, b); }
BoolTensor le(const Tensor& a, const Tensor& b) { return compare<kernels::LessEqual>(a, b); }
BoolTensor gt(const Tensor& a, const Tensor& b) { return compare<kernels::Greater>(a, b); }
BoolTensor ge(const Tensor& a, const Tensor& b) { return compare<kernels::GreaterEqual>(a, b); }
BoolTensor eq(const Tensor& a, double b) { return compare<kernels::Equal>(a, b); }
BoolTensor ne(const Tensor& a, double b) { return compare<kernels::NotEqual>(a, b); }
BoolTensor lt(const Tensor& a, double b) { return compare<kernels::Less>(a, b); }
BoolTensor le(const Tensor& a, double b) { return compare<kernels::LessEqual>(a, b); }
BoolTensor gt(const Tensor& a, double b) { return compare<kernels::Greater>(a, b); }
BoolTensor ge(const Tensor& a, double b) { return compare<kernels::GreaterEqual>(a, b); }
BoolTensor logical_and(const Tensor& a, const Tensor& b) { return compare<kernels::And>(a, b); }
BoolTensor logical_or(const Tensor& a, const Tensor& b) { return compare<kernels::Or>(a, b); }
BoolTensor logical_xor(const Tensor& a, const Tensor& b) { return compare<kernels::Xor>(a, b); }
BoolTensor logical_not(const Tensor& x) { return property<kernels::Not>(x); }
Tensor bitwise_and(const Tensor& a, const Tensor& b) {
  return bitwise<kernels::BitAnd, kernels::And>(a, b);
}
Tensor bitwise_or(const Tensor& a, const Tensor& b) {
  return bitwise<kernels::BitOr, kernels::Or>(a, b);
}
Tensor bitwise_xor(const Tensor& a, const Tensor& b) {
  return bitwise<kernels::BitXor, kernels::Xor>(a, b);
}
Tensor bitwise_not(const Tensor& x) {
  return x.dtype() == boolean ? logical_not(x) : call<Constant<Unary<kernels::BitNot>>>(x);
}
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b) {
  return call<Constant<Binary<kernels::LeftShift>>>(a, b);
}
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b) {
  return call<Constant<Binary<kernels::RightShift>>>(a, b);
}
Tensor gcd(const Tensor& a, const Tensor& b) { return bitwise<kernels::Gcd, kernels::Or>(a, b); }
Tensor lcm(const Tensor& a, const Tensor& b) {
  const Scope scope("lcm");
  if (a.dtype() == boolean && b.dtype() == boolean) return logical_and(a, b);
  return abs(floor_divide(a, gcd(a, b)) * b);
}
Tensor bitwise_and(const Tensor& a, double b) { return bitwise<kernels::BitAnd>(a, b); }
Tensor bitwise_or(const Tensor& a, double b) { return bitwise<kernels::BitOr>(a, b); }
Tensor bitwise_xor(const Tensor& a, double b) { return bitwise<kernels::BitXor>(a, b); }
Tensor bitwise_left_shift(const Tensor& a, double b) { return bitwise<kernels::LeftShift>(a, b); }
Tensor bitwise_right_shift(const Tensor& a, double b) { return bitwise<kernels::RightShift>(a, b); }
BoolTensor isnan(const Tensor& x) { return property<kernels::IsNan>(x); }
BoolTensor isinf(const Tensor& x) { return property<kernels::IsInf>(x); }
BoolTensor isfinite(const Tensor& x) { return property<kernels::IsFinite>(x); }

}  // namespace mixtape
