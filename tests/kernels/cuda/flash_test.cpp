// Flash attention under the emulator, forward and gradients, compared with sums in f64.

#include "tests/support/attention_cases.h"

namespace mixtape::kernels {
namespace kernels_cuda_flash_test {

using attention_cases::Case;
using attention_cases::Hides;

void expect_attention(const Case& c) {
  attention_cases::expect_attention(c, cuda::attention, cuda::attention_grad);
}

TEST(CudaFlash, AttendsWithAnyNumberOfFeatures) {
  for (const int64_t d : {32, 64, 80, 96, 128})
    for (const DType dtype : {bf16, f16}) expect_attention({d, 150, 70, Hides::None, 0, dtype});
}

TEST(CudaFlash, HidesKeys) {
  for (const Hides hides : {Hides::Causal, Hides::Mask, Hides::Columns})
    for (const int64_t d : {64, 128})
      for (const auto& [queries, keys] :
           {std::pair<int64_t, int64_t>{1, 1}, {40, 200}, {200, 40}, {160, 160}})
        expect_attention({d, queries, keys, hides});
}

TEST(CudaFlash, DropsTheProbabilitiesThatDropoutDrops) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{33, 67}, {130, 128}})
    for (const int64_t d : {64, 96})
      expect_attention({d, queries, keys, Hides::Causal, 0.3, bf16, 2, 2});
  expect_attention({32, 20, 30, Hides::Mask, 1, f16});
}

TEST(CudaFlash, TakesHeadsOfABatch) { expect_attention({64, 70, 65, Hides::Mask, 0.1, f16, 2, 3}); }

}  // namespace kernels_cuda_flash_test
}  // namespace mixtape::kernels
