// Attention by blocks of queries on the CPU.

#include "tests/support/attention_cases.h"

namespace mixtape::kernels {
namespace kernels_attention_test {

using attention_cases::Case;
using attention_cases::Hides;

void expect_attention(const Case& c) {
  attention_cases::expect_attention(c, on_cpu(attention), on_cpu(attention_grad));
}

TEST(Attention, ByBlocksIsThatOfSumsInF64) {
  for (const DType dtype : {f64, f32, f16, bf16})
    for (const Hides hides :
         {Hides::None, Hides::Causal, Hides::Mask, Hides::Columns, Hides::Bias, Hides::OfColumns})
      for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 1}, {70, 133}, {130, 65}})
        for (const double dropped : {0.0, 0.3})
          expect_attention({12, queries, keys, hides, dropped, dtype, 2, 3});
}

TEST(Attention, ByBlocksHasTheSameBitsForAnyNumberOfThreads) {
  const Tensor q = random({2, 3, 150, 16}, f32, 1), k = random({2, 3, 150, 16}, f32, 2);
  const AttentionRule rule{{}, true, 0.25, {}, 0};
  expect_same_for_any_threads([&] {
    const Tensor o = output(q.shape(), f32), dq = output(q.shape(), f32),
                 dk = output(k.shape(), f32), dv = output(k.shape(), f32);
    launch([&](Launch& l) { on_cpu(attention)(l, q, k, k, rule, o, Tensor()); });
    launch([&](Launch& l) { on_cpu(attention_grad)(l, q, k, k, Tensor(), q, rule, dq, dk, dv); });
    return std::vector<Tensor>{o, dq, dk, dv};
  });
}

}  // namespace kernels_attention_test
}  // namespace mixtape::kernels
