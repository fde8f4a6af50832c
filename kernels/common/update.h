#pragma once
// Update: the tensors of a parameter in an optimizer step. One kernel call updates a whole group.

#include <span>

#include "core/philox.h"
#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

// The rounding of f16 and bf16 parameters that have no masters. Stochastic: up or down at random,
// so that the mean is exact. Kahan: to nearest, with the rounding error kept beside the parameter.
enum class Rounding : uint8_t { Nearest, Stochastic, Kahan };
// 8-bit codes (block_codes.h), or none.
enum class StateCode : uint8_t { None, Dynamic, E4M3 };
inline constexpr int64_t code_block = 256;  // elements that share a scale

// The storage of a parameter and its states if it is not plain f32. Kernels then go through blocks
// of code_block elements, which they convert to f32, update, and convert back.
struct LowMemory {
  Rounding rounding = Rounding::Nearest;
  View compensation;  // Kahan's, of the parameter's dtype
  StateCode code = StateCode::None;
  View scale[3];             // with codes: f32, one of each block
  uint32_t nonnegative = 0;  // a bit for each state
  uint64_t seed = 0;         // of Stochastic and of bf16 states, which are rounded at random, too
  uint32_t index = 0;        // of the parameter in its optimizer
  int64_t first = 0;         // the first element of a piece, in the parameter; a block begins there

  // The random bits of step number `count`, for the parameter or its states. Element i of the whole
  // parameter reads word i % 4 of block i / 4.
  MIXTAPE_HD static Draw draw(uint64_t seed, uint32_t index, float count, bool for_states) {
    const Philox::Block key =
        Philox::bits({uint32_t(count), index, for_states, uint32_t(Philox::Purpose::rounding)},
                     uint32_t(seed), uint32_t(seed >> 32));
    return {uint64_t(key[1]) << 32 | key[0], 0};
  }
};

// All views are dense. `state` are the optimizer's buffers of the parameter's size, f32 (f64 for an
// f64 parameter; with `low` perhaps bf16 or u8 codes); buffers without data are not used. `steps`,
// one f32 that the kernel advances, counts steps that were not skipped. `shadow`, optional, is a
// 16-bit copy of `param` that is written with it: the model's parameter may be either. `norms`: see
// Pass.
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

// The passes of a step that needs norms of the parameter (layerwise.h). Pieces of a parameter take
// them in two calls: Measure writes the squares of the piece's blocks to `norms`, f64 [blocks, 2],
// and Move reads the squares of the whole parameter there.
enum class Pass : uint8_t { Both, Measure, Move };

// Scalars of a step. `skip` and `grad_scale`, both optional, are read from device memory, so that
// the host need not wait: if `skip` (f32) is not 0, the kernel does nothing; `grad_scale` (f32 or
// f64: 1/S times any clipping factor) multiplies the gradients first, and so does `rescale`.
struct StepControl {
  View skip = {}, grad_scale = {};
  double rescale = 1;
  Pass pass = Pass::Both;
};

struct AnyOptimizer;  // kernels/common/optimizers.h

}  // namespace mixtape::kernels
