// The table of kernels: which implementation a call runs.

#include "kernels/kernels.h"
#include "tests/support/each_isa.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
namespace {

float sum_on(Isa isa) {
  const IsaLimit limit(isa);
  const Tensor x = random({10007}, f32, 1);
  Tensor y({1}, f32);
  reduce(Device::cpu(), Reduce::Sum, x, y);
  return float(y.at(0));
}

// Sums depend on the width of vectors, which tells what ran. (Those of 32 bytes are emulated where
// registers have 16.)
TEST(Table, KernelsFollowTheInstructionSet) {
  const float best = sum_on(Isa::NeonBf16), least = sum_on(Isa::Portable);
  if (MIXTAPE_TARGET_COUNT == 1 || current_isa() < Isa::Avx512 || current_isa() >= Isa::Neon)
    EXPECT_EQ(best, least);
  else
    EXPECT_NE(best, least);
  EXPECT_NEAR(best, least, 1e-2);
}

}  // namespace
}  // namespace mixtape::kernels
