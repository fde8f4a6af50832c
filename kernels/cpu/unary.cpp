// y = f(x) and dx = dy * f' for every op of elementwise.h, on SIMD lanes.

#include "kernels/cpu/simd.h"
#include "kernels/cpu/strips.h"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

template <class F, class Tx, class Ty>
void forward(void* const* p, int64_t n, const void*) {
  const Tx* const x = static_cast<const Tx*>(p[0]);
  Ty* const y = static_cast<Ty*>(p[1]);
  for (int64_t i = 0; i < n; i += Lanes<math_t<Tx>>::width) store(y + i, F::f(load(x + i)));
}

template <class F, class Tx, class Ty>
void backward(void* const* p, int64_t n, const void*) {
  using M = math_t<Tx>;
  using Tv = std::conditional_t<NeedsX<F>, Tx, Ty>;
  const Tv* const v = static_cast<const Tv*>(p[0]);
  const Ty* const dy = static_cast<const Ty*>(p[1]);
  Tx* const dx = static_cast<Tx*>(p[2]);
  for (int64_t i = 0; i < n; i += Lanes<M>::width)
    store(dx + i, load<Ty, M>(dy + i) * derivative<F>(load<Tv, M>(v + i)));
}

template <class F>
Strip pick_forward(DType x, DType y) {
  return visit_float(x, y, []<class Tx, class Ty>() -> Strip { return &forward<F, Tx, Ty>; });
}
template <class F>
Strip pick_backward(DType x, DType y) {
  return visit_float(x, y, []<class Tx, class Ty>() -> Strip { return &backward<F, Tx, Ty>; });
}

using Pick = Strip (*)(DType, DType);
template <class... F>
Pick forward_of(OpList<F...>, int op) {
  static constexpr Pick table[] = {&pick_forward<F>...};
  return table[op];
}
template <class... F>
Pick backward_of(OpList<F...>, int op) {
  static constexpr Pick table[] = {&pick_backward<F>...};
  return table[op];
}

}  // namespace

void unary(Launch& launch, int op, In x, Out y) {
  for_strips(launch, {&x, &y}, forward_of(UnaryOps{}, op)(x.dtype, y.dtype));
}

void unary_grad(Launch& launch, int op, In v, In dy, Out dx) {
  for_strips(launch, {&v, &dy, &dx}, backward_of(UnaryOps{}, op)(dx.dtype, dy.dtype));
}

}  // namespace mixtape::kernels::cpu
