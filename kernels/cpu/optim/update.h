#pragma once
// Optimizer steps (kernels/common/optimizers.h) on the CPU: each thread takes chunks of parameters.

#include "kernels/common/always_inline.h"
#include "kernels/common/optimizers.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/loops/chunks.h"
#include "kernels/cpu/optim/blocks.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

// The states of a vector of elements, as Step<T> sees them.
template <class T>
struct StatesAt {
  T* const* state;
  int64_t i, count;

  MIXTAPE_ALWAYS_INLINE Vec<T> get(int k) const { return read<T>(state[k] + i, count); }
  MIXTAPE_ALWAYS_INLINE Vec<T> set(int k, Vec<T> x) const {
    write(state[k] + i, x, count);
    return x;
  }
};

// A chunk of a parameter of dtype P with a gradient of dtype G.
template <class P, class G>
struct ParamChunk {
  using T = math_t<P>;
  const Update& update;
  int64_t begin, n;  // elements of the parameter
  T grad_scale;
  double steps;  // so far

  // f(i, count, p, g, state) returns the new p; `writes` says what is stored.
  template <Writes writes, class F>
  MIXTAPE_ALWAYS_INLINE void for_elements(F f) const {
    Blocks<P, G> blocks(update);
    const int64_t length = blocks.length(n);
    for (int64_t first = 0; first < n; first += length) {
      const int64_t size = std::min(length, n - first), at = begin + first;
      const BlockAt<P, G> x = blocks.load(at, size);
      for_each_vec<T>(size, [&](int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
        const Vec<T> p = read<T>(x.param + i, count);
        const Vec<T> g = read<T>(x.grad + i, count) * Vec<T>(grad_scale);
        const Vec<T> y = f(first + i, count, p, g, StatesAt<T>{x.state, i, count});
        if constexpr (writes.param) write(x.param + i, y, count);
      });
      blocks.store(at, size, x, steps, writes);
    }
  }
};

// Calls f.operator()<P, G>() with the dtypes of a loop for this parameter: its own, if they are
// usual ones.
template <class F>
void visit_update(const Update& u, F f) {
  if (u.param.dtype == f64) return f.template operator()<double, double>();
  if (u.low || !is_half(u.grad.dtype) || (u.param.dtype != f32 && u.param.dtype != u.grad.dtype))
    return f.template operator()<float, float>();
  visit_half(u.grad.dtype, [&]<class G>() {
    u.param.dtype == f32 ? f.template operator()<float, G>() : f.template operator()<G, G>();
  });
}

// Calls f(chunk, tensor, number of the chunk) for all chunks of all parameters.
template <class F>
void for_each_chunk(Updates updates, const Chunks& chunks, const StepControl& control, F f) {
  const double scale = read_scalar(control.grad_scale, 1) * control.rescale;
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t number) {
    const Update& u = updates[tensor];
    visit_update(u, [&]<class P, class G>() {
      const int64_t n = std::min(Chunks::length, u.param.size() - begin);
      f(ParamChunk<P, G>{u, begin, n, math_t<P>(scale), read_scalar(u.steps, 0)}, tensor, number);
    });
  });
}

// Lamb, Lars, Adafactor and Muon look at a parameter as a whole (layerwise.cpp).
void take_step(Launch& launch, Updates updates, const Lamb& o, const StepControl& control);
void take_step(Launch& launch, Updates updates, const Lars& o, const StepControl& control);
void take_step(Launch& launch, Updates updates, const Adafactor& o, const StepControl& control);
void take_step(Launch& launch, Updates updates, const Muon& o, const StepControl& control);

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
