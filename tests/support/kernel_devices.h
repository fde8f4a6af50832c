#pragma once
// How tests of kernels run those of CUDA.

#include <functional>

#include "kernels/kernels.h"

namespace mixtape::kernels {

// (The emulator's memory is the CPU's.)
inline void on_device(const std::function<void(Launch&)>& body) {
  Launch l(Device::cpu());
  body(l);
}

}  // namespace mixtape::kernels
