// y = f(x) and dx = dy * f' for every unary op.

#include "kernels/cpu/loops/elements.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Calls body(numbers...) with an op's parameters in the type in which F is computed.
template <class F, class V, class Body>
void with_numbers_of(const void* context, Body body) {
  with_numbers<F>(static_cast<const Numbers*>(context)->value,
                  [=](auto... s) { body(number<V>(s)...); });
}

template <class F, class Tx, class Ty>
void forward(void* const* p, int64_t n, const void* context) {
  const Tx* const x = static_cast<const Tx*>(p[0]);
  Ty* const y = static_cast<Ty*>(p[1]);
  with_numbers_of<F, typename Elements<Tx>::type>(context, [=](auto... s) {
    in_groups<Elements<Tx>::width>(
        n, [=](int64_t i) { return F::f(get<Tx>(x + i), s...); },
        [=](int64_t i, auto v) { put(y + i, v); });
  });
}

template <class F, class Tx, class Ty>
void backward(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<Tx>>;
  constexpr bool half = !std::is_same_v<math_t<Tx>, Tx>;
  using Tv = std::conditional_t<saves_x<F>(half), Tx, Ty>;
  const Tv* const v = static_cast<const Tv*>(p[0]);
  const Ty* const dy = static_cast<const Ty*>(p[1]);
  Tx* const dx = static_cast<Tx*>(p[2]);
  with_numbers_of<F, L>(context, [=](auto... s) {
    in_groups<L::width>(
        n,
        [=](int64_t i) {
          return passed<F>(get<Tx>(dy + i), derivative<F, half>(get<Tx>(v + i), s...));
        },
        [=](int64_t i, L x) { store(dx + i, x); });
  });
}

}  // namespace

void unary(Launch& launch, int op, In x, const Numbers& numbers, Out y) {
  const ContiguousLoop loop = contiguous_loop_of(UnaryOps{}, op, [&]<class F>() {
    return pick<F>(x.dtype, y.dtype,
                   []<class Tx, class Ty>() -> ContiguousLoop { return &forward<F, Tx, Ty>; });
  });
  for_each_contiguous(launch, {&x, &y}, loop, &numbers);
}

void unary_grad(Launch& launch, int op, In v, In dy, const Numbers& numbers, Out dx) {
  const ContiguousLoop loop = contiguous_loop_of(UnaryOps{}, op, [&]<class F>() {
    return visit_float(dx.dtype, dy.dtype, []<class Tx, class Ty>() -> ContiguousLoop {
      if constexpr (FromX<F> || FromY<F>)
        return &backward<F, Tx, Ty>;
      else
        return nullptr;
    });
  });
  for_each_contiguous(launch, {&v, &dy, &dx}, loop, &numbers);
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
