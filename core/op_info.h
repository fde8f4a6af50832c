#pragma once
// What the library knows about an op besides how to compute it. Plain data: kernels may include it.

#include <array>
#include <cstdint>
#include <string_view>

namespace mixtape {

// A fact about an op's numerics, not about any mixed-precision mechanism. core states it, amp reads
// it.
enum class Precision : uint8_t {
  Any,     // moves or selects values, so any dtype will do: reshape, relu
  Native,  // keeps the dtype of its activations and computes in f32 registers: gelu, tanh
  Low,     // gains from tensor cores and accumulates in f32: matmul
  Full,    // its result needs f32; its kernels read narrow and write f32: exp, sum
  Widest,  // several float inputs that must agree: add, where
};
std::string_view name(Precision p);

// What an input is to its op. Only activations decide a policy and receive its casts; Low also
// casts parameters. The dtypes of activations must agree; a parameter or statistic (anything read
// in f32 as it is: a running mean, a bias) is of that dtype or f32; indices and masks are never
// cast.
enum class Role : uint8_t { Activation, Parameter, Statistic, Index, Mask };

struct OpInfo {
  std::string_view name;
  Precision precision = Precision::Any;
  std::array<Role, 6> roles = {};  // by input; inputs beyond the last are like the last

  constexpr Role role(size_t input) const {
    return roles[input < roles.size() ? input : roles.size() - 1];
  }
};

}  // namespace mixtape
