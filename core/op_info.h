#pragma once
// OpInfo: an op's name, its Precision and the roles of its inputs. Plain data, free of Tensor.

#include <array>
#include <cstdint>
#include <string_view>

#include "core/cxx20.h"

namespace mixtape {

// The precision that an op needs: a property of its numerics, from which amp derives casts.
enum class Precision : uint8_t {
  Any,     // moves or selects values, so any dtype will do: reshape, relu
  Native,  // keeps the dtype of its activations and computes in f32 registers: gelu, tanh
  Low,     // gains from tensor cores and accumulates in f32: matmul
  Full,    // its result needs f32; kernels read 16 bits and write f32: exp, sum
  Widest,  // several float inputs that must agree: add, where
};
std::string_view name(Precision p);  // "Low"

// The role of an input. Policies look at activations and cast them; for Low ops, parameters too.
// Activations must agree in dtype. A parameter or statistic (a bias, a running mean: read in f32)
// has that dtype or f32. Indices and masks are never cast.
enum class Role : uint8_t { Activation, Parameter, Statistic, Index, Mask };

// The kind of product that an op computes of two operands, its first two inputs that are
// activations or parameters. Policies may round them to 8-bit or 4-bit formats.
enum class Product : uint8_t {
  None,
  Linear,      // over the last dimension of both
  Matmul,      // over the last dimension of the first, and the last but one of the second
  Convolution  // over channels and a window
};

struct OpInfo {  // one constant per op
  std::string_view name;
  Precision precision = Precision::Any;
  std::array<Role, 6> roles = {};  // by input; the last applies to all further inputs
  Product product = Product::None;

  constexpr Role role(size_t input) const {  // by its position, from 0 on
    return roles[input < roles.size() ? input : roles.size() - 1];
  }
};

}  // namespace mixtape
