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

template <class F, class T>
void forward(void* const* p, int64_t n, const void* context) {
  const T* const x = static_cast<const T*>(p[0]);
  auto* const y = static_cast<ResultOf<F, T>*>(p[1]);
  with_numbers_of<F, typename Elements<T>::type>(context, [=](auto... s) {
    in_groups<Elements<T>::width, loop_multiple>(
        n, [=](int64_t i) { return F::f(get<T>(x + i), s...); },
        [=](int64_t i, auto v) { put(y + i, v); });
  });
}

// Half: x is f16 or bf16, whatever the loop's type.
template <class F, class T, bool half>
void backward(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<T>>;
  const T* const v = static_cast<const T*>(p[0]);
  const T* const dy = static_cast<const T*>(p[1]);
  T* const dx = static_cast<T*>(p[2]);
  with_numbers_of<F, L>(context, [=](auto... s) {
    in_groups<L::width, loop_multiple>(
        n,
        [=](int64_t i) {
          return passed<F>(get<T>(dy + i), derivative<F, half>(get<T>(v + i), s...));
        },
        [=](int64_t i, L x) { store(dx + i, x); });
  });
}

}  // namespace

void unary(Launch& launch, int op, In x, const Numbers& numbers, Out y) {
  for_each_element(launch, {&x, &y}, &numbers, 1, [&](DType dtype) {
    return contiguous_loop_of(UnaryOps{}, op, [&]<class F>() {
      return pick<F>(dtype, []<class T>() -> ContiguousLoop { return &forward<F, T>; });
    });
  });
}

void unary_grad(Launch& launch, int op, In v, In dy, const Numbers& numbers, Out dx) {
  const bool half = is_half(dx.dtype);
  for_each_element(launch, {&v, &dy, &dx}, &numbers, 1, [&](DType dtype) {
    return contiguous_loop_of(UnaryOps{}, op, [&]<class F>() {
      return visit_float(dtype, [&]<class T>() -> ContiguousLoop {
        if constexpr (FromX<F> || FromY<F>) {
          if constexpr (std::is_same_v<T, float> && saves_x<F>(true) != saves_x<F>(false))
            if (half) return &backward<F, float, true>;
          return &backward<F, T, is_half(dtype_of<T>())>;
        } else {
          return nullptr;
        }
      });
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
