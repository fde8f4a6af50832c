#pragma once
// Tests on each instruction set that this processor has.

#include <gtest/gtest.h>

#include "kernels/cpu/gemm/microkernel.h"

namespace mixtape::kernels {

class [[gnu::visibility("hidden")]] OnEachIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (current_isa() != GetParam()) GTEST_SKIP() << "not on this processor";
  }
  const IsaLimit limit{GetParam()};
};
inline std::string isa_name(const testing::TestParamInfo<Isa>& info) {
  const char* const names[] = {"Portable", "Avx2", "Avx512", "Avx512Bf16", "Neon", "NeonBf16"};
  return names[static_cast<int>(info.param)];
}
inline const auto every_isa = testing::Values(Isa::Portable, Isa::Avx2, Isa::Avx512,
                                              Isa::Avx512Bf16, Isa::Neon, Isa::NeonBf16);

}  // namespace mixtape::kernels
