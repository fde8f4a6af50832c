// Writing to tensors. While recording, an in-place op runs the plain op, whose result replaces the
// old value in every handle. That is safe only if no other tensor sees the storage, which is
// checked.

#include "autograd/ops/pointwise.h"
#include "core/effects.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// x = f(out, x), for every handle of x. f may write to `out`, which is empty, or x itself if f is
// `direct`: elementwise, and reading none of x's memory but the element that it writes.
template <class F>
Tensor rewrite(std::string_view op, const Tensor& x, bool history, bool direct, const F& f) {
  const Scope scope(op);
  ++effects.writes;
  if (!grad_enabled() || !(x.requires_grad() || history)) {
    check(!x.layout().repeats(),
          "elements of shape {} with strides {} share memory (clone() it first)", x.shape(),
          x.strides());
    const NoGrad off;
    x.storage()->begin_write();
    // (Observers read the old x after the op.)
    const Tensor y = f(direct && !values_are_observed() ? x : Tensor(), x);
    if (!direct || y.storage() != x.storage()) {
      detail::observe(&Observer::before_write, x, y);
      kernels::convert(x.device(), expand(y, x.shape()), x);
    }
    x.storage()->bump_version();
    return x;
  }
  const bool fills = op == "fill_" || op == "copy_",
             sets = fills || op == "masked_fill_" || op == "scatter_";
  std::string instead = fills ? "make a new tensor by where, index_put, cat or stack"
                              : "use the form without underscore";
  if (!x.is_leaf()) instead += sets ? ", x[i] = y for a part" : ", x[i] += y for a part";
  replace_value(x, instead, [&](const Tensor& old) { return f(Tensor(), old); });
  return x;
}

Tensor fitting(const Tensor& x, const Tensor& y) { return cast(expand(y, x.shape()), x.dtype()); }

// x = F(x, y), with y converted to x's dtype (but never from float to integer, which would
// truncate).
template <class F>
Tensor combine(std::string_view op, const Tensor& x, const Tensor& y) {
  // (Inside rewrite() an undefined tensor is an error that names the op.)
  const bool direct = x && y && !y.storage()->overlaps(*x.storage());
  const bool history = y && y.requires_grad();
  return rewrite(op, x, history, direct, [&](const Tensor& out, const Tensor& t) {
    check(is_float(t.dtype()) || !is_float(y.dtype()),
          "{} elements would truncate {} values (convert one with .to())", t.dtype(), y.dtype());
    return binary_out<F>(out, t, fitting(t, y));
  });
}
template <class F>
Tensor combine(std::string_view op, const Tensor& x, double y) {
  return rewrite(op, x, false, true,
                 [&](const Tensor& out, const Tensor& t) { return binary_out<F>(out, t, y); });
}

// x = f(x) of an op that has no kernel for a result in place.
template <class F>
Tensor replace(std::string_view op, const Tensor& x, bool history, const F& f) {
  return rewrite(op, x, history, false, [&](const Tensor&, const Tensor& t) { return f(t); });
}

void check_quotient(const Tensor& x) {
  const Scope scope("div_");
  check(is_float(x.dtype()), "{} elements cannot hold quotients (convert with .to())", x.dtype());
}

}  // namespace

void ops::replace_value(const Tensor& x, std::string_view instead,
                        const std::function<Tensor(const Tensor& old)>& f) {
  check(!x.is_leaf(), "a leaf that requires a gradient cannot change in place: {}, or NoGrad",
        instead);
  long owners = x.storage().use_count();
  for (const Observer* o = thread_state.observer; o; o = o->outer)
    owners -= o->handles(*x.storage());
  check(
      owners == 1,
      "storage that a view or an op that saved it for backward shares cannot change in place: {}, "
      "or NoGrad",
      instead);
  const Tensor old = x.detach();  // keeps its value if the op saves it
  old.set_grad_fn(x.grad_fn());
  const Tensor y = cast(expand(f(old), x.shape()), x.dtype());
  x.set_data(y.is_contiguous() ? y : contiguous(y));  // new storage, which the op may have saved
  x.set_grad_fn(y.grad_fn());
}

Tensor fill_(const Tensor& x, double value) {
  return rewrite("fill_", x, false, false,
                 [&](const Tensor&, const Tensor& t) { return number_like(t, value); });
}
Tensor zero_(const Tensor& x) { return fill_(x, 0); }
Tensor copy_(const Tensor& x, const Tensor& from) {
  return rewrite("copy_", x, from.requires_grad(), false, [&](const Tensor&, const Tensor& t) {
    const Tensor y = fitting(t, from.to(t.device()));
    // If `from` shares its storage with y, y must neither become x nor be read while x is written.
    const bool lent = y.storage() == from.storage();
    return lent && (grad_enabled() || y.storage()->overlaps(*t.storage())) ? clone(y) : y;
  });
}
Tensor add_(const Tensor& x, const Tensor& y) { return combine<kernels::Add>("add_", x, y); }
Tensor sub_(const Tensor& x, const Tensor& y) { return combine<kernels::Sub>("sub_", x, y); }
Tensor mul_(const Tensor& x, const Tensor& y) { return combine<kernels::Mul>("mul_", x, y); }
Tensor div_(const Tensor& x, const Tensor& y) {
  check_quotient(x);
  return combine<kernels::Div>("div_", x, y);
}
Tensor add_(const Tensor& x, double y) { return combine<kernels::Add>("add_", x, y); }
Tensor sub_(const Tensor& x, double y) { return combine<kernels::Sub>("sub_", x, y); }
Tensor mul_(const Tensor& x, double y) { return combine<kernels::Mul>("mul_", x, y); }
Tensor div_(const Tensor& x, double y) {
  check_quotient(x);
  return combine<kernels::Div>("div_", x, y);
}
Tensor clamp_(const Tensor& x, std::optional<double> low, std::optional<double> high) {
  return rewrite("clamp_", x, false, true,
                 [&](const Tensor& out, const Tensor& t) { return clamp_out(out, t, low, high); });
}

Tensor Tensor::masked_fill_(const Tensor& mask, double value) const {
  return replace("masked_fill_", *this, false,
                 [&](const Tensor& x) { return x.masked_fill(mask, value); });
}
Tensor Tensor::scatter_(int dim, const Tensor& index, const Tensor& source) const {
  return replace("scatter_", *this, source.requires_grad(),
                 [&](const Tensor& x) { return x.scatter(dim, index, source); });
}
Tensor Tensor::scatter_(int dim, const Tensor& index, double value) const {
  return replace("scatter_", *this, false,
                 [&](const Tensor& x) { return x.scatter(dim, index, value); });
}
Tensor Tensor::scatter_add_(int dim, const Tensor& index, const Tensor& source) const {
  return replace("scatter_add_", *this, source.requires_grad(),
                 [&](const Tensor& x) { return x.scatter_add(dim, index, source); });
}
Tensor Tensor::index_add_(int dim, const Tensor& index, const Tensor& source) const {
  return replace("index_add_", *this, source.requires_grad(),
                 [&](const Tensor& x) { return x.index_add(dim, index, source); });
}
Tensor Tensor::lerp_(const Tensor& end, double weight) const {
  return replace("lerp_", *this, end.requires_grad(),
                 [&](const Tensor& x) { return x.lerp(end, weight); });
}
Tensor Tensor::addcmul_(const Tensor& a, const Tensor& b, double value) const {
  return replace("addcmul_", *this, a.requires_grad() || b.requires_grad(),
                 [&](const Tensor& x) { return addcmul(x, a, b, value); });
}
Tensor Tensor::addcdiv_(const Tensor& a, const Tensor& b, double value) const {
  return replace("addcdiv_", *this, a.requires_grad() || b.requires_grad(),
                 [&](const Tensor& x) { return addcdiv(x, a, b, value); });
}
Tensor Tensor::pow_(double b) const {
  return replace("pow_", *this, false, [&](const Tensor& x) { return x.pow(b); });
}

#define MIXTAPE_METHOD(NAME, OP)                                                       \
  Tensor Tensor::NAME() const {                                                        \
    return rewrite(#NAME, *this, false, true, [](const Tensor& out, const Tensor& x) { \
      return call_out<Unary<kernels::OP>>(out, x);                                     \
    });                                                                                \
  }
MIXTAPE_METHOD(abs_, Abs)
MIXTAPE_METHOD(neg_, Neg)
MIXTAPE_METHOD(square_, Square)
MIXTAPE_METHOD(sqrt_, Sqrt)
MIXTAPE_METHOD(rsqrt_, Rsqrt)
MIXTAPE_METHOD(exp_, Exp)
MIXTAPE_METHOD(log_, Log)
MIXTAPE_METHOD(reciprocal_, Reciprocal)
MIXTAPE_METHOD(floor_, Floor)
MIXTAPE_METHOD(ceil_, Ceil)
MIXTAPE_METHOD(round_, Round)
MIXTAPE_METHOD(relu_, Relu)
MIXTAPE_METHOD(sigmoid_, Sigmoid)
MIXTAPE_METHOD(tanh_, Tanh)
#undef MIXTAPE_METHOD

}  // namespace mixtape
