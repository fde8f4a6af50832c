// Products of integer matrices of any strides, whose sums wrap around in 64 bits: a thread per
// element.

#include "kernels/common/batch.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

struct IntegerGemm {
  Walk<3> batch;  // of a, b and c
  int64_t m, n, k, a_down, a_right, b_down, b_right, c_down, c_right;
};

template <class T>
__global__ void multiply_integers(IntegerGemm g, int64_t count, const T* a, const T* b, T* c) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    const int64_t column = i % g.n, row = i / g.n % g.m;
    int64_t at[3];
    g.batch.find(i / g.n / g.m, at);
    const T* const x = a + at[0] + row * g.a_down;
    const T* const y = b + at[1] + column * g.b_right;
    Whole sum(0);
    for (int64_t d = 0; d < g.k; ++d) sum = sum + Whole(x[d * g.a_right]) * Whole(y[d * g.b_down]);
    c[at[2] + row * g.c_down + column * g.c_right] = static_cast<T>(sum);
  }
}

}  // namespace

void gemm_integers(Launch& launch, In a, In b, Out c) {
  const Layout &al = a.layout, &bl = b.layout, &cl = c.layout;
  Layout ab = leading(al), bb = leading(bl), cb = leading(cl);
  collapse(std::array{&ab, &bb, &cb});
  const IntegerGemm g{walk_of<3>({&ab, &bb, &cb}),
                      cl.shape[-2],
                      cl.shape[-1],
                      al.shape[-1],
                      al.strides[-2],
                      al.strides[-1],
                      bl.strides[-2],
                      bl.strides[-1],
                      cl.strides[-2],
                      cl.strides[-1]};
  visit(c.dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>)
      gpu::launch_over(launch, "gemm_integers", c.size(), multiply_integers<T>, g, c.size(),
                       a.as<const T>(), b.as<const T>(), c.as<T>());
  });
}

}  // namespace mixtape::kernels::cuda
