#pragma once
// Elements: elementwise kernels compute floats as lanes, and integers one at a time as Whole.

#include "kernels/common/elementwise.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/simd/simd_special.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// The type in which elements of type T are computed, and how many at a time.
template <class T>
struct Elements {
  using type = Vec<math_t<T>>;
  static constexpr int64_t width = type::width;
};
template <std::integral T>
struct Elements<T> {
  using type = Whole;
  static constexpr int64_t width = 1;
};

// Loads the elements at p; a smaller type than T is converted.
template <class T, class S>
MIXTAPE_ALWAYS_INLINE typename Elements<T>::type get(const S* p) {
  if constexpr (std::is_integral_v<T>)
    return Whole(*p);
  else
    return load<S, math_t<T>>(p);
}
template <class S, class V>
MIXTAPE_ALWAYS_INLINE void put(S* p, V v) {
  if constexpr (requires { store(p, v); })
    store(p, v);
  else
    *p = static_cast<S>(v);
}

// The type of an op's results.
template <class F, class T>
using ResultOf = std::conditional_t<Predicate<F>, bool, T>;

// Calls make.operator()<T>() with the type of an op's operands.
template <class F, class Make>
ContiguousLoop pick(DType dtype, Make make) {
  return visit_number(dtype, [&]<class T>() -> ContiguousLoop {
    if constexpr (is_float(dtype_of<T>()) ? !OnlyIntegers<F> : TakesIntegers<F>)
      return make.template operator()<T>();
    else
      return nullptr;
  });
}

// Calls choose.operator()<F>() with the op at this position of a list.
template <class Ops, class Choose>
ContiguousLoop contiguous_loop_of(Ops ops, int op, Choose choose) {
  ContiguousLoop loop = nullptr;
  visit_op(ops, op, [&]<class F>() { loop = choose.template operator()<F>(); });
  return loop;
}

// Runs the loop choose(dtype) as for_each_contiguous does. The dtype is that of the first operand,
// or the widest of floats that differ.
template <class Choose>
void for_each_element(Launch& launch, std::initializer_list<const View*> operands,
                      const void* context, int outputs, Choose choose) {
  const View* widest = nullptr;
  bool mixed = false;
  for (const View* const v : operands) {
    if (!*v || (widest && (v->dtype == widest->dtype || !is_float(v->dtype)))) continue;
    mixed |= widest && is_float(widest->dtype);
    if (!widest || size_of(v->dtype) > size_of(widest->dtype)) widest = v;
  }
  if (!widest) return;  // all are empty
  const DType dtype = widest->dtype;
  if (mixed) return for_each_as(launch, dtype, operands, choose(dtype), context, outputs);
  for_each_contiguous(launch, operands, choose(dtype), context, outputs);
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
