// The rotation of queries and keys by their positions, as one op. Heads that lie side by side, as
// they come from a product, stay so.

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// An orthogonal matrix, so the gradient is the rotation back.
struct Rotary {
  static constexpr OpInfo info{
      "rotary_embedding", Precision::Native, {Role::Activation, Role::Statistic, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& given, const Tensor& cosines, const Tensor& sines,
                        bool back) {
    const Tensor x = given.strides()[-1] == 1 ? given : given.contiguous();
    const bool heads_inside = x.rank() > 3 && x.strides()[-3] < x.strides()[-2];
    Shape shape = x.shape();
    if (heads_inside) std::swap(shape[-3], shape[-2]);
    const Tensor made = ctx.output(shape), y = heads_inside ? transpose(made, -3, -2) : made;
    const DType wide = accumulate_dtype(x.dtype());
    const auto table = [&](const Tensor& t) { return t.to(wide).contiguous(); };
    const Tensor c = table(cosines), s = table(sines);
    ctx.run(kernels::rotate_halves, back, x, c, s, y);
    ctx.save(Tensor(), c, s);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, bool back) {
    return {call<Rotary>(dy, ctx.saved(1), ctx.saved(2), !back)};
  }
};

}  // namespace

Tensor rotary_embedding(const Tensor& x, const Tensor& cosines, const Tensor& sines) {
  const Scope scope(Rotary::info.name);
  check_real(x);
  check(x.rank() >= 2 && x.size(-1) % 2 == 0, "the input has shape {}, not [..., t, an even size]",
        x.shape());
  const Shape angles{x.size(-2), x.size(-1) / 2};
  check_shape(cosines, "the table of cosines", angles);
  check_shape(sines, "the table of sines", angles);
  const auto table = [&](const Tensor& t) {  // of x's dtype or wider
    return is_half(t.dtype()) && !is_half(x.dtype()) ? cast(t.detach(), x.dtype()) : t.detach();
  };
  return call<Rotary>(x, table(cosines), table(sines), false);
}

}  // namespace mixtape
