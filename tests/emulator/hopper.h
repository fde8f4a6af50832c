#pragma once
// Running kernels for compute capability 9.0 on the emulator, with boxes that are late.

#include "emulator/simt/runtime.h"
#include "kernels/cuda/gpu_hopper.cuh"
#include "tests/support/errors.h"

namespace mixtape::hopper_test {

using namespace gpu;
using simt::BoxTiming;

template <class... P, class... A>
void run(unsigned threads, size_t shared, void (*kernel)(P...), const A&... args) {
  launch({"k", {1, 1, 1}, {threads, 1, 1}, shared}, nullptr, kernel, args...);
}

// Both ways in which boxes are late, and several orders.
template <class F>
void in_all_timings(const F& f) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const BoxTiming timing(seed == 0 ? BoxTiming::Late : BoxTiming::Random, seed);
    f();
  }
}

}  // namespace mixtape::hopper_test
