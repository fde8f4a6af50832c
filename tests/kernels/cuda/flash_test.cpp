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

TEST(CudaFlash, AddsAFloatMask) {
  for (const Hides hides : {Hides::Bias, Hides::OfColumns}) {
    for (const int64_t d : {32, 64, 80, 96, 128}) expect_attention({d, 70, 130, hides, 0, f16});
    for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 1}, {40, 201}, {200, 41}})
      expect_attention({64, queries, keys, hides, 0.1, bf16, 2, 2});
  }
}
// The mask decides where the scale of scores is next to nothing.
TEST(CudaFlash, AddsAMaskBesideAnyScale) {
  const Tensor q = random({1, 1, 3, 32}, f16, 1), v = random({1, 1, 5, 32}, f16, 2),
               mask = random({3, 5}, f16, 3), o = output({1, 1, 3, 32}, f16),
               stats = output({1, 1, 3, 2}, f32), weights = output({3, 5}, f32);
  const View broadcast{View(mask).data, f16, Layout({1, 1, 3, 5}, {0, 0, 5, 1})};
  launch([&](Launch& l) { cuda::attention(l, q, v, v, {broadcast, false, 1e-37}, o, stats); });
  launch([&](Launch& l) {
    const Tensor scores = filled({3, 5}, f32, 0);
    on_cpu(masked_softmax)(l, scores, View{}, mask, false, 1, weights);
  });
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t e = 0; e < 32; ++e) {
      double sum = 0;
      for (int64_t j = 0; j < 5; ++j) sum += weights.at(i * 5 + j) * v.at(j * 32 + e);
      EXPECT_NEAR(o.at(i * 32 + e), sum, 4e-3);
    }
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
