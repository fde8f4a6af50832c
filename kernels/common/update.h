#pragma once
// Update: the tensors of a parameter in an optimizer step. One kernel call takes those of a group.

#include <span>

#include "core/philox.h"
#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

// The rounding of f16 and bf16 parameters that have no masters. Stochastic: up or down by chance,
// so that the mean of many is exact. Kahan: to nearest, and what is lost is kept beside the
// parameter.
enum class Rounding : uint8_t { Nearest, Stochastic, Kahan };
// Codes of 8 bits (block_codes.h), or none.
enum class StateCode : uint8_t { None, Dynamic, E4M3 };
inline constexpr int64_t code_block = 256;  // elements that share a scale

// The storage of a parameter and its states where it is not the plain one. Kernels then go
// through blocks of code_block elements, which they convert to f32, update, and convert back.
struct LowMemory {
  Rounding rounding = Rounding::Nearest;
  View compensation;  // Kahan's, of the parameter's dtype
  StateCode code = StateCode::None;
  View scale[3];             // with codes: f32, one of each block
  uint32_t nonnegative = 0;  // a bit for each state
  uint64_t seed = 0;         // of Stochastic, and of bf16 states, which are rounded by chance, too
  uint32_t index = 0;        // of the parameter in its optimizer
  int64_t first = 0;         // the parameter's element, of a block, with which a piece of it begins

  bool is_rounded() const { return rounding != Rounding::Nearest; }
  // The bits of the step that makes the count of steps `count`, for the parameter or its states:
  // element i of the whole parameter reads word i % 4 of block i / 4.
  MIXTAPE_HD static Draw draw(uint64_t seed, uint32_t index, float count, bool for_states) {
    const Philox::Block key =
        Philox::bits({uint32_t(count), index, for_states, 1}, uint32_t(seed), uint32_t(seed >> 32));
    return {uint64_t(key[1]) << 32 | key[0], 0};
  }
};

// All dense. `state` are the optimizer's buffers of the parameter's size, f32 (f64 for an f64
// parameter; with `low` perhaps bf16, or u8 codes); those without data are not used. `steps`, one
// f32 that the kernel advances, counts the steps that were not skipped. `shadow`, optional, is a
// 16-bit copy of `param` that is written with it: the model's parameter may be either. `norms` are
// for Pass.
struct Update {
  static constexpr size_t max_states = 3;
  View param, grad;
  View state[max_states];
  View steps;
  View shadow;
  View norms;
  const LowMemory* low = nullptr;  // optional
};
using Updates = std::span<const Update>;  // of parameters with the same options

// The passes of a step that looks at norms of the parameter (layerwise.h), which pieces of one take
// in two calls: Measure leaves the squares of the piece's blocks in `norms`, f64 [blocks, 2], and
// Move reads there those of the whole parameter.
enum class Pass : uint8_t { Both, Measure, Move };

// Scalars that every step reads from device memory, so that the host waits for nothing. Both are
// optional: a nonzero `skip` (f32) makes the kernel do nothing at all; `grad_scale` (f32 or f64:
// 1/S times any clipping factor) multiplies the gradients first. `rescale`, which the host knows,
// does too.
struct StepControl {
  View skip = {}, grad_scale = {};
  double rescale = 1;
  Pass pass = Pass::Both;
};

struct AnyOptimizer;  // kernels/common/optimizers.h

}  // namespace mixtape::kernels
