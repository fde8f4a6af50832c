#pragma once
// Optimizer steps (kernels/common/optimizers.h) on the CPU: each thread takes chunks of parameters,
// with a loop compiled for their dtypes.

#include "kernels/common/always_inline.h"
#include "kernels/common/optimizers.h"
#include "kernels/cpu/loops/chunks.h"
#include "kernels/cpu/optim/blocks.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
using namespace internal;

template <class P>
void round_into(const View& shadow, int64_t begin, const P* param, int64_t n) {
  visit_float(shadow.dtype, [&]<class S>() { convert_run(param, n, shadow.as<S>() + begin); });
}

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
  P* param;
  const G* grad;
  T* state[Update::max_states];
  const View& shadow;  // of the whole parameter, in which the chunk starts at `begin`
  int64_t begin, n;
  T grad_scale;
  double steps;  // so far

  // f(i, count, p, g, state) returns the new p; `writes` says what is stored.
  template <Writes writes, class F>
  MIXTAPE_ALWAYS_INLINE void for_elements(F f) const {
    for_each_vec<T>(n, [&](int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
      const Vec<T> p = read<T>(param + i, count);
      const Vec<T> g = read<T>(grad + i, count) * Vec<T>(grad_scale);
      const Vec<T> y = f(i, count, p, g, StatesAt<T>{state, i, count});
      if constexpr (writes.param) write(param + i, y, count);
    });
    if constexpr (writes.param)
      if (shadow) round_into(shadow, begin, param, n);
  }
};

// A chunk of a parameter that is not stored the plain way: its blocks pass through f32.
template <class G>
struct BlockChunk {
  using T = float;
  const Update& update;
  int64_t begin, n;
  float grad_scale;
  double steps;

  template <Writes writes, class F>
  void for_elements(F f) const {
    BlockBuffers buffers;
    for (int64_t first = 0; first < n; first += code_block) {
      const int64_t size = std::min(code_block, n - first), at = begin + first;
      float* states[Update::max_states];
      float* const p = buffers.load(update, at, size, states);
      const G* const grad = update.grad.as<G>() + at;
      for_each_vec<float>(size, [&](int64_t i, int64_t count) MIXTAPE_INLINE_LAMBDA {
        const Vec<float> x = read<float>(p + i, count);
        const Vec<float> g = read<float>(grad + i, count) * Vec<float>(grad_scale);
        const Vec<float> y = f(first + i, count, x, g, StatesAt<float>{states, i, count});
        if constexpr (writes.param) write(p + i, y, count);
      });
      if (writes.param && update.shadow) round_into(update.shadow, at, p, size);
      buffers.store(update, at, size, steps, writes);
    }
  }
};

// Calls f(chunk, tensor, number of the chunk) for all chunks of all parameters.
template <class F>
void for_each_chunk(Updates updates, const Chunks& chunks, const StepControl& control, F f) {
  const double scale = read_scalar(control.grad_scale, 1) * control.rescale;
  chunks.for_each([&](size_t tensor, int64_t begin, int64_t number) {
    const Update& u = updates[tensor];
    if (u.low)
      return visit_float(u.grad.dtype, [&]<class G>() {
        const int64_t n = std::min(Chunks::length, u.param.size() - begin);
        f(BlockChunk<G>{u, begin, n, float(scale), read_scalar(u.steps, 0)}, tensor, number);
      });
    visit_chunk(u.param, begin, [&]<class P>(P* p, int64_t n) {
      visit_float(u.grad.dtype, [&]<class G>() {
        using T = math_t<P>;
        const auto state = [&](size_t k) {
          return u.state[k] ? u.state[k].as<T>() + begin : nullptr;
        };
        f(ParamChunk<P, G>{p,
                           u.grad.as<G>() + begin,
                           {state(0), state(1), state(2)},
                           u.shadow,
                           begin,
                           n,
                           T(scale),
                           read_scalar(u.steps, 0)},
          tensor, number);
      });
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
