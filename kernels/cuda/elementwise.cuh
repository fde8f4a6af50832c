#pragma once
// y = f(x...) element by element, for any function of values. Dense operands: 16 bytes of the
// widest type at a time, in a grid-stride loop, so every byte is moved once. Others: one element at
// a time, its position found by division. Memory bound: nothing is kept, nothing is shared.

#include <algorithm>
#include <utility>

#include "core/layout.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/launch.h"

namespace mixtape::kernels::cuda {

// y[i] = f(x[i]...) for dense operands at multiples of 16 bytes.
template <class F, class Out, class... In>
__global__ void map_dense(F f, int64_t count, Out* y, const In*... x) {
  constexpr size_t widest = std::max({sizeof(Out), sizeof(In)...});
  constexpr int n = int(16 / widest);
  const int64_t packs = count / n, all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < packs; i += all) {
    gpu::Pack<Out, n> out;
    const auto apply = [&](const gpu::Pack<In, n>&... in) {
#pragma unroll
      for (int e = 0; e < n; ++e) out.v[e] = f(in.v[e]...);
    };
    apply(gpu::load_as<gpu::Pack<In, n>>(x + i * n)...);
    gpu::store_as(y + i * n, out);
  }
  for (int64_t i = packs * n + gpu::global_thread(); i < count; i += all) y[i] = f(x[i]...);
}

// One shape with a set of strides per operand; the output is operand 0.
template <int operands>
struct Walk {
  int rank = 1;
  int64_t size[max_rank] = {1};
  int64_t stride[operands][max_rank] = {};

  __device__ void find(int64_t i, int64_t (&at)[operands]) const {
    if (rank == 1) {
      for (int k = 0; k < operands; ++k) at[k] = i * stride[k][0];
      return;
    }
    for (int k = 0; k < operands; ++k) at[k] = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t index = i % size[d];
      i /= size[d];
      for (int k = 0; k < operands; ++k) at[k] += index * stride[k][d];
    }
  }
};

// Layouts of one shape, as a Walk.
template <int operands>
Walk<operands> walk_of(const Layout* const (&layouts)[operands]) {
  Walk<operands> walk;
  walk.rank = layouts[0]->rank();
  for (int d = 0; d < walk.rank; ++d) {
    walk.size[d] = layouts[0]->shape[d];
    for (int k = 0; k < operands; ++k) walk.stride[k][d] = layouts[k]->strides[d];
  }
  return walk;
}

template <class F, class Out, class... In, size_t... k>
__device__ Out value_at(F& f, const int64_t* at, std::index_sequence<k...>, const In*... x) {
  return f(x[at[k + 1]]...);
}
template <class F, class Out, class... In>
__global__ void map_strided(F f, int64_t count, Walk<1 + int(sizeof...(In))> walk, Out* y,
                            const In*... x) {
  const int64_t all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < count; i += all) {
    int64_t at[1 + sizeof...(In)];
    walk.find(i, at);
    y[at[0]] = value_at<F, Out>(f, at, std::index_sequence_for<In...>(), x...);
  }
}

// Runs f over views of one shape: the output, then the inputs, whose element types are given.
template <class Out, class... In, class F, class... V>
void map(Launch& launch, const char* name, F f, const View& y, const V&... x) {
  const int64_t count = y.size();
  if (count == 0) return;
  constexpr int operands = 1 + int(sizeof...(In)), threads = 256;
  Layout layouts[operands] = {y.layout, x.layout...};
  Layout* pointers[operands];
  for (int k = 0; k < operands; ++k) pointers[k] = &layouts[k];
  collapse(pointers);
  bool dense = layouts[0].rank() == 1;
  for (const Layout& l : layouts) dense = dense && (l.strides[0] == 1 || count == 1);
  for (const void* p : {static_cast<const void*>(y.data), static_cast<const void*>(x.data)...})
    dense = dense && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  const gpu::Index3 blocks =
      gpu::blocks_for(dense ? (count + 3) / 4 : count, threads, launch.device.index);
  if (dense) {
    gpu::launch({name, blocks, {threads, 1, 1}}, launch.stream, map_dense<F, Out, In...>, f, count,
                y.as<Out>(), x.template as<const In>()...);
  } else {
    const Walk<operands> walk = walk_of<operands>(pointers);
    gpu::launch({name, blocks, {threads, 1, 1}}, launch.stream, map_strided<F, Out, In...>, f,
                count, walk, y.as<Out>(), x.template as<const In>()...);
  }
}

}  // namespace mixtape::kernels::cuda
