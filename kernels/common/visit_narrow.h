#pragma once
// Visits for kernels of 16-bit operands, and for those whose output may be narrower than their
// input.

#include "core/dtype.h"

namespace mixtape::kernels {

// Calls f.operator()<S>() with the type of f16 or bf16.
template <class F>
void visit_half(DType t, F&& f) {
  t == f16 ? f.template operator()<Half>() : f.template operator()<BFloat16>();
}

// f.operator()<In, Out>() as visit_float(in, out) calls it, or also for an f32 input and a 16-bit
// output.
template <class F>
decltype(auto) visit_float_or_narrow(DType in, DType out, F&& f) {
  if (in != f32 || !is_half(out)) return visit_float(in, out, f);
  return visit_float(out, in, [&]<class Out, class In>() -> decltype(auto) {
    return f.template operator()<In, Out>();
  });
}

}  // namespace mixtape::kernels
