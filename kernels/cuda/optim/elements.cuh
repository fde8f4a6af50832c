#pragma once
// The elements of a parameter in an optimizer step: loaded, handed to the step, and stored.

#include "kernels/common/optimizers.h"
#include "kernels/cuda/optim/multi.cuh"

namespace mixtape::kernels::cuda {

// An Update in a kernel's parameters.
template <int states>
struct ParamItem {
  void *param, *grad, *shadow;
  void* state[states];
  DType type, grad_type, shadow_type;
  bool aligned;
};

// The states of an element, as Step<T> sees them.
template <class T>
struct StatesAt {
  T* state;
  __device__ T get(int k) const { return state[k]; }
  __device__ T set(int k, T x) const { return state[k] = x; }
};

// For all elements of a chunk: f(i, p, g, state) returns the new p of element i, and sets its
// states; `writes` says which of them are stored. All loads are issued before the arithmetic, to
// overlap.
struct Writes {
  bool param = true, states = true;
};
template <Writes writes, class T, int states, class F>
__device__ void for_elements(const ParamItem<states>& p, const Chunk& chunk, T grad_scale, F f) {
  for (int64_t i = chunk.begin + 4 * int64_t(gpu::thread().x); i < chunk.end;
       i += 4 * chunk_threads) {
    const Four four = four_at(i, chunk.end, p.aligned);
    Words<T> state[states];
#pragma unroll
    for (int k = 0; k < states; ++k)
      if (p.state[k]) state[k] = fetch<T>(p.state[k], dtype_of<T>(), four);
    const Words<T> param = fetch<T>(p.param, p.type, four),
                   grad = fetch<T>(p.grad, p.grad_type, four);
    T x[4], s[states][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      T now[states];
#pragma unroll
      for (int k = 0; k < states; ++k) now[k] = element(state[k], dtype_of<T>(), e);
      x[e] = f(four.at + e, element(param, p.type, e), element(grad, p.grad_type, e) * grad_scale,
               StatesAt<T>{now});
#pragma unroll
      for (int k = 0; k < states; ++k) s[k][e] = now[k];
    }
    if (writes.param) {
      store(p.param, p.type, four, packed(x, p.type));
      if (p.shadow) store(p.shadow, p.shadow_type, four, packed(x, p.shadow_type));
    }
#pragma unroll
    for (int k = 0; k < states; ++k)
      if (writes.states && p.state[k])
        store(p.state[k], dtype_of<T>(), four, packed(s[k], dtype_of<T>()));
  }
}

}  // namespace mixtape::kernels::cuda
