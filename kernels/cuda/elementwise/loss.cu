// Elementwise losses and their gradients.

#include "kernels/common/losses.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
namespace {

template <class F, class V>
struct Forward {
  V s, w;
  MIXTAPE_HD V operator()(V x, V t) const { return F::f(x, t, s, w); }
};

template <class F, class V>
struct Backward {
  V s, w;
  bool x, target;  // the gradients that are needed
  MIXTAPE_HD Values<V, 2> operator()(V a, V t, V dy) const {
    return {{x ? dy * F::dx(a, t, s, w) : V(0), target ? dy * F::dt(a, t, s, w) : V(0)}};
  }
};

// Calls run.operator()<F, V>() with a loss and the type in which it is computed.
template <class Run>
void visit_loss(int op, DType t, Run run) {
  visit_op(Losses{}, op, [&]<class F>() {
    visit_float_math(loss_dtype<F>(t), [&]<class V>() { run.template operator()<F, V>(); });
  });
}

}  // namespace

void elementwise_loss(Launch& launch, int op, In x, In target, double s, double w, Out y) {
  visit_loss(op, x.dtype, [&]<class F, class V>() {
    map_numbers<V>(launch, F::info.name.data(), Forward<F, V>{V(s), V(w)}, {&y}, {{&x}, {&target}});
  });
}

void elementwise_loss_grad(Launch& launch, int op, In x, In target, double s, double w, In dy,
                           Out dx, Out dtarget) {
  visit_loss(op, x.dtype, [&]<class F, class V>() {
    map_numbers<V>(launch, F::info.name.data(), Backward<F, V>{V(s), V(w), bool(dx), bool(dtarget)},
                   {&dx, &dtarget}, {{&x}, {&target}, {&dy}});
  });
}

}  // namespace mixtape::kernels::cuda
