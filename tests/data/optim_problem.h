#pragma once
// The problem on which optimizers are compared with PyTorch: parameters and gradients by formula,
// so that both sides can make them. Exact in float.

#include <array>
#include <cstdint>

namespace optim_problem {

// In [-1, 1), different for every parameter k, element i and step t; t = 0 gives the first values.
inline double value(uint32_t k, uint32_t i, uint32_t t) {
  uint32_t x = ((t * 64 + k) * 64 + i + 1) * 2654435761u;
  x ^= x >> 15;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  return static_cast<double>(x >> 8) / (1 << 23) - 1;
}

inline constexpr std::array<std::array<int64_t, 2>, 4> shapes = {{{1, 3}, {2, 9}, {1, 1}, {5, 3}}};
inline constexpr uint32_t steps = 20;  // after which values are compared

// Parameter 1 gets its first gradient at this step in the problems named ".../late".
inline constexpr uint32_t late = 6;

}  // namespace optim_problem
