// Random numbers: one thread computes one block of Philox and the four elements that read it, so
// the bits are those of the CPU.

#include <cmath>

#include "core/philox.h"
#include "kernels/common/draw.h"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// y[4 i + k] = f(words of block i, k, 4 i + k, x[4 i + k]) for k < 4.
template <class F, class X, class Y>
__global__ void generate(F f, Draw draw, int64_t n, const X* x, Y* y) {
  const Draw from = draw.now();
  const bool aligned_x = is_aligned<4>(x), aligned_y = is_aligned<4>(y);
  for (int64_t i = gpu::global_thread(); i * 4 < n; i += gpu::all_threads()) {
    const int64_t at = i * 4;
    const Philox::Block words = Philox::bits(from, uint64_t(i));
    const bool whole = at + 4 <= n;
    X in[4] = {};
    if (x && whole)
      load_vec(x + at, aligned_x, in);
    else if (x)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (at + k < n) in[k] = x[at + k];
    Y out[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) out[k] = f(words, k, at + k, in[k]);
    if (whole)
      store_vec(y + at, aligned_y, out);
    else
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (at + k < n) y[at + k] = out[k];
  }
}
template <class T, class F, class X = T>
void run(Launch& launch, const char* name, const Draw& at, const View& y, F f,
         const X* x = nullptr) {
  const int64_t n = y.size();
  gpu::launch_over(launch, name, ceil_div(n, 4), generate<F, X, T>, f, at, n, x, y.as<T>());
}

template <class T>
struct Uniform {
  RandomReal<T> draw;
  MIXTAPE_HD T operator()(const Philox::Block& words, int k, int64_t, T) const {
    return T(draw(words[size_t(k)]));
  }
};

// Box-Muller: words (0, 1) give elements 0 and 1, words (2, 3) elements 2 and 3.
template <class T>
struct Normal {
  gpu::math_t<T> mean, deviation;
  MIXTAPE_HD T operator()(const Philox::Block& words, int k, int64_t, T) const {
    using M = gpu::math_t<T>;
    using std::cos, std::log, std::sin, std::sqrt;
    const M u = M(1.0f - Philox::uniform(words[size_t(k / 2 * 2)])),
            v = M(Philox::uniform(words[size_t(k / 2 * 2 + 1)]));
    const M radius = sqrt(log(u) * M(-2)), angle = v * M(6.283185307179586);
    return gpu::round_to<T>(mean + deviation * radius * (k % 2 == 0 ? cos(angle) : sin(angle)));
  }
};

struct Integer {
  RandomInteger draw;
  Draw second;
  MIXTAPE_HD int64_t operator()(const Philox::Block& words, int k, int64_t i, int64_t) const {
    uint32_t more = 0;
    if (draw.is_wide()) more = Philox::bits(second.now(), uint64_t(i / 4))[size_t(k)];
    return draw(words[size_t(k)], more);
  }
};

template <class Tx, class Ty>
struct Dropout {
  uint32_t threshold;
  gpu::math_t<Tx> scale;
  MIXTAPE_HD Ty operator()(const Philox::Block& words, int k, int64_t, Tx x) const {
    using M = gpu::math_t<Tx>;
    return gpu::round_to<Ty>((words[size_t(k)] >> 8) >= threshold ? M(gpu::widen(x) * scale)
                                                                  : M(0));
  }
};

}  // namespace

void random_uniform(Launch& launch, const Draw& at, double low, double high, Out y) {
  visit_float(y.dtype, [&]<class T>() {
    run<T>(launch, "random_uniform", at, y, Uniform<T>{RandomReal<T>(low, high)});
  });
}

void random_normal(Launch& launch, const Draw& at, double mean, double std, Out y) {
  visit_float(y.dtype, [&]<class T>() {
    using M = gpu::math_t<T>;
    run<T>(launch, "random_normal", at, y, Normal<T>{M(mean), M(std)});
  });
}

void random_integer(Launch& launch, const Draw& at, int64_t low, int64_t high, Out y) {
  run<int64_t>(launch, "random_integer", at, y,
               Integer{RandomInteger(low, high), at.after(RandomInteger::blocks(y.size()))});
}

void dropout(Launch& launch, const Draw& at, double p, In x, Out y) {
  const uint32_t threshold = dropout_threshold(p);
  visit_float(x.dtype, y.dtype, [&]<class Tx, class Ty>() {
    run<Ty>(launch, "dropout", at, y, Dropout<Tx, Ty>{threshold, gpu::math_t<Tx>(1 / (1 - p))},
            x.as<const Tx>());
  });
}

}  // namespace mixtape::kernels::cuda
