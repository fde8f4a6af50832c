#pragma once
// Isa: the instruction sets among which kernels on the CPU choose at run time.

#include <optional>
#include <string_view>

#include "core/no_copy.h"

namespace mixtape::kernels {

// In ascending order: a processor with one of them has all before it of its architecture.
enum class Isa : int { Portable, Avx2, Avx512, Avx512Bf16, Neon, NeonBf16 };

// The instruction set of this thread's kernels: the fastest one of the processor, limited by
// MIXTAPE_ISA=portable|avx2|avx512|avx512_bf16, or portable|neon|neon_bf16 on AArch64, or by the
// innermost IsaLimit. (bf16 dot products that are slower than f32's multiply-adds are used only if
// one of these says so.) Microkernels are compiled for all of them, or with -Dcpu_arch=native for
// those of the processor; other kernels as -Dcpu_arch says.
Isa current_isa();
std::string_view instruction_set();  // as MIXTAPE_ISA spells it, for messages and records

// Gives this thread's kernels the best that they may use up to `most`, while alive.
class IsaLimit : NoCopy {
 public:
  explicit IsaLimit(Isa most);
  ~IsaLimit();

 private:
  std::optional<Isa> outer_;
};

}  // namespace mixtape::kernels
