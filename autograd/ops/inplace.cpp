// Writing to tensors. While recording, an in-place op is its out-of-place form whose result takes
// the place of the old value: safe only if nobody else can see the storage, which is checked.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

// x = f(x), seen by every handle to x.
template <class F>
const Tensor& rewrite(std::string_view op, const Tensor& x, bool history, const F& f) {
  const Scope scope(op);
  if (!grad_enabled() || !(x.requires_grad() || history)) {
    const NoGrad off;
    const Tensor y = f(x);
    kernels::Launch launch(x.device());
    kernels::convert(launch, expand(y, x.shape()), x);
    x.storage()->bump_version();
    return x;
  }
  check(!x.is_leaf(),
        "in place on a leaf that requires a gradient: use the form without underscore, or NoGrad");
  check(
      x.storage().use_count() == 1,
      "in place on storage that {} other tensors share: use the form without underscore, or NoGrad",
      x.storage().use_count() - 1);
  const Tensor y = cast(expand(f(x), x.shape()), x.dtype());
  x.set_data(y.is_contiguous() ? y : contiguous(y));
  x.set_maker(y.maker());
  x.storage()->bump_version();
  return x;
}

Tensor fitting(const Tensor& x, const Tensor& y) { return cast(expand(y, x.shape()), x.dtype()); }

}  // namespace

const Tensor& fill_(const Tensor& x, double value) {
  return rewrite("fill_", x, false,
                 [&](const Tensor& t) { return full({}, value, t.dtype(), t.device()); });
}
const Tensor& zero_(const Tensor& x) { return fill_(x, 0); }
const Tensor& copy_(const Tensor& x, const Tensor& from) {
  return rewrite("copy_", x, from.requires_grad(),
                 [&](const Tensor& t) { return fitting(t, from); });
}
const Tensor& add_(const Tensor& x, const Tensor& y) {
  return rewrite("add_", x, y.requires_grad(),
                 [&](const Tensor& t) { return add(t, fitting(t, y)); });
}
const Tensor& mul_(const Tensor& x, const Tensor& y) {
  return rewrite("mul_", x, y.requires_grad(),
                 [&](const Tensor& t) { return mul(t, fitting(t, y)); });
}
const Tensor& add_(const Tensor& x, double y) {
  return rewrite("add_", x, false, [&](const Tensor& t) { return add(t, y); });
}
const Tensor& mul_(const Tensor& x, double y) {
  return rewrite("mul_", x, false, [&](const Tensor& t) { return mul(t, y); });
}

}  // namespace mixtape
