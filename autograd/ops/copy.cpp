// Ops that choose, convert or copy elements: where, masked_fill, dropout, cast, clone.

#include <algorithm>
#include <cmath>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct WhereOp {
  static constexpr OpInfo info{
      "where", Precision::Widest, {Role::Mask, Role::Activation, Role::Activation}};
  static constexpr bool broadcasts = true;
  static Tensor forward(Ctx& ctx, const Tensor& condition, const Tensor& a, const Tensor& b) {
    Tensor y = deciding(a, b).like(ctx.dtype());
    // A policy may ask for a result wider than the operands, but the kernel only moves elements.
    ctx.run(kernels::where, condition, cast(a, y.dtype()), cast(b, y.dtype()), y);
    ctx.save(condition);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor condition = ctx.saved(0), none = number_like(dy, 0, dy.shape());
    return ctx.grads([] { return Tensor(); }, [&] { return call<WhereOp>(condition, dy, none); },
                     [&] { return call<WhereOp>(condition, none, dy); });
  }
};

struct MaskedFill {
  static constexpr OpInfo info{"masked_fill", Precision::Any, {Role::Activation, Role::Mask}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& mask, double value) {
    check_fits(x.dtype(), value);
    if (is_float(x.dtype()) && std::isfinite(value))
      value = std::clamp(value, -largest(x.dtype()), largest(x.dtype()));
    Tensor y = x.like(ctx.dtype());
    ctx.run(kernels::where, mask, number_like(x, value, x.shape()), x, y);
    ctx.save(mask);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return {call<MaskedFill>(dy, ctx.saved(0), 0.0)};
  }
};

// The mask is not saved, since the same position in the random stream gives it again.
struct Dropout {
  static constexpr OpInfo info{"dropout", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, const DropoutMask& at) {
    Tensor y = ctx.output(x.shape());
    ctx.run(kernels::dropout, at, at.p, x.contiguous(), y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, const DropoutMask& at) {
    return {dropout(dy, at)};
  }
};

struct Cast {
  static constexpr OpInfo info{"cast"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, DType to) {
    Tensor y = x.like(to);
    ctx.run(kernels::convert, x, y);
    return y;
  }
  // The engine converts a gradient to its receiver's dtype, so nothing is left to do here.
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy}; }
};
struct CastToInteger {  // piecewise constant: no gradient
  static constexpr OpInfo info{"cast_to_integer"};
  static Tensor forward(Ctx& ctx, const Tensor& x, DType to) { return Cast::forward(ctx, x, to); }
};

struct Clone {
  static constexpr OpInfo info{"clone"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, MemoryFormat format) {
    Tensor y = image(ctx, x.shape(), format);
    ctx.run(kernels::convert, x, y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, MemoryFormat) { return {dy}; }
};

struct ToDevice {
  static constexpr OpInfo info{"to_device"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx&, const Tensor& x, Device where) { return x.copied_to(where); }
  static Grads backward(const Ctx& ctx, const Tensor& dy) { return {dy.to(ctx.device())}; }
};

Tensor number_beside(const Tensor& t, double value) {
  const Scope scope(WhereOp::info.name);
  return number_like(t, value);
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call<WhereOp>(condition, a, b);
}
Tensor where(const Tensor& condition, const Tensor& a, double b) {
  return where(condition, a, number_beside(a, b));
}
Tensor where(const Tensor& condition, double a, const Tensor& b) {
  return where(condition, number_beside(b, a), b);
}
Tensor where(const Tensor& condition, double a, double b) {
  return where(condition, full({}, a, f32, condition.device()), b);
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  const Scope scope(MaskedFill::info.name);
  return call<MaskedFill>(x, expand(mask, x.shape()), value);
}

DropoutMask ops::draw_mask(double p, int64_t elements) {
  check(p >= 0 && p <= 1, "the probability must be from 0 to 1, got {}", p);
  if (p == 0) return {};
  return {generator().draw(elements), p};
}
Tensor ops::dropout(const Tensor& x, const DropoutMask& at) {
  return at.p == 0 ? x : call<Dropout>(x, at);
}

Tensor dropout(const Tensor& x, double p, bool training) {
  if (!training) return x;
  const Scope scope(Dropout::info.name);
  check_real(x);
  return dropout(x, draw_mask(p, x.numel()));
}

Tensor cast(const Tensor& x, DType to) {
  if (x.dtype() == to) return x;
  return is_float(to) ? call<Cast>(x, to) : call<CastToInteger>(x, to);
}
Tensor clone(const Tensor& x) { return call<Clone>(x, MemoryFormat::Contiguous); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
Tensor contiguous(const Tensor& x, MemoryFormat format) {
  return x.is_contiguous(format) ? x : call<Clone>(x, format);
}
Tensor detach(const Tensor& x) { return x.detach(); }

Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }
Tensor Tensor::clone() const { return mixtape::clone(*this); }
Tensor Tensor::contiguous() const { return mixtape::contiguous(*this); }
Tensor Tensor::contiguous(MemoryFormat format) const { return mixtape::contiguous(*this, format); }
Tensor Tensor::half() const { return to(f16); }
Tensor Tensor::bfloat16() const { return to(bf16); }
Tensor Tensor::cpu() const { return to(Device::cpu()); }
Tensor Tensor::cuda() const { return to(Device::cuda()); }
Tensor Tensor::to(MemoryFormat format) const { return contiguous(format); }
Tensor Tensor::to(Device where) const {
  if (where == device()) return *this;
  return call<ToDevice>(layout().is_dense() ? *this : mixtape::contiguous(*this), where);
}

}  // namespace mixtape
