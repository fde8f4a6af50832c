#pragma once
// Division rounded up, and rounding up to a multiple.

#include <cstdint>

namespace mixtape::kernels::cpu {

constexpr int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }
constexpr int64_t up(int64_t n, int64_t to) { return pieces(n, to) * to; }

}  // namespace mixtape::kernels::cpu
