#pragma once
// visit_float() for kernels whose output may be narrower than their input.

#include "core/dtype.h"

namespace mixtape::kernels {

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
