#pragma once
// Attention kernels compared with sums in f64: results and gradients.

#include <fmt/format.h>

#include "core/format.h"
#include "kernels/common/attention.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
namespace attention_cases {

// Columns: the same keys for all queries. Bias, OfColumns: a mask that is added, in f32, or in the
// dtype of the case and the same for all queries.
enum class Hides { None, Causal, Mask, Columns, Bias, OfColumns };

struct Case {
  int64_t d, queries, keys;
  Hides hides = Hides::None;
  double dropped = 0;
  DType dtype = bf16;
  int64_t batch = 1, heads = 1;
  std::string text() const {
    return fmt::format("{} [{}, {}, {} x {}, {}], hides {}, dropped {}", dtype, batch, heads,
                       queries, keys, d, int(hides), dropped);
  }
  Shape shape(int64_t positions, int64_t features) const {
    return {batch, heads, positions, features};
  }
};

// [batch, heads, positions, d], the heads of a position side by side in memory, where each has
// `apart` vectors.
inline Tensor by_positions(const Case& c, int64_t positions, int apart, const Tensor& data) {
  const int64_t step = c.heads * apart * c.d;
  return data.with_layout(
      Layout(c.shape(positions, c.d), {positions * step, apart * c.d, step, 1}));
}
inline Tensor operand(const Case& c, int64_t positions, uint64_t seed) {
  return by_positions(c, positions, 3,
                      random({c.batch, positions, c.heads, 3, c.d}, c.dtype, seed, -2, 2));
}
inline Tensor result(const Case& c, int64_t positions, DType dtype) {
  return by_positions(c, positions, 1, output({c.batch, positions, c.heads, c.d}, dtype));
}
inline Tensor mask_of(const Case& c) {
  if (c.hides == Hides::None || c.hides == Hides::Causal) return {};
  const bool adds = c.hides == Hides::Bias || c.hides == Hides::OfColumns;
  const int64_t rows = c.hides == Hides::Mask || c.hides == Hides::Bias ? c.queries : 1;
  const Tensor mask({c.batch, rows, c.keys}, !adds                    ? boolean
                                             : c.hides == Hides::Bias ? f32
                                                                      : c.dtype);
  for (int64_t i = 0; i < mask.numel(); ++i) {
    const uint32_t bits = Philox::bits(5, uint64_t(i))[0];
    const bool seen = bits % 3 != 0 && (rows == 1 || i / c.keys % 7 != 2);
    mask.set(i, !adds ? seen : seen ? double(bits % 64) / 16 - 2 : -inf);
  }
  return mask.with_layout(
      Layout(c.shape(c.queries, c.keys), {rows * c.keys, 0, rows == 1 ? 0 : c.keys, 1}));
}

inline constexpr uint64_t seed = 3, offset = 11;
inline constexpr double scale = 0.3;

// A result and the gradients for dy, in f64.
struct Exact {
  Values o, dq, dk, dv;
};
inline Exact exact(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& mask, const Tensor& dy) {
  const Values qs = to_vector(q), ks = to_vector(k), vs = to_vector(v), dys = to_vector(dy),
               seen = mask ? to_vector(mask) : Values();
  Exact x{Values(qs.size()), Values(qs.size()), Values(ks.size()), Values(ks.size())};
  const auto at = [&](int64_t head, int64_t positions, int64_t i) {
    return size_t((head * positions + i) * c.d);
  };
  for (int64_t head = 0; head < c.batch * c.heads; ++head)
    for (int64_t i = 0; i < c.queries; ++i) {
      Values s(size_t(c.keys)), dp(s.size()), kept(s.size());
      const size_t qi = at(head, c.queries, i);
      double top = -inf, sum = 0, product = 0;
      for (int64_t j = 0; j < c.keys; ++j) {
        const size_t kj = at(head, c.keys, j), n = size_t(j);
        const int64_t element = (head * c.queries + i) * c.keys + j;
        const uint32_t bits =
            Philox::bits(seed, offset + uint64_t(element / 4))[size_t(element % 4)];
        kept[n] = Philox::uniform(bits) >= c.dropped ? 1 / (1 - c.dropped) : 0;
        for (int64_t e = 0; e < c.d; ++e) {
          s[n] += scale * qs[qi + size_t(e)] * ks[kj + size_t(e)];
          dp[n] += kept[n] * dys[qi + size_t(e)] * vs[kj + size_t(e)];
        }
        if (mask && mask.dtype() != boolean)
          s[n] += seen[size_t(element)];
        else if ((c.hides == Hides::Causal && j > i) || (mask && seen[size_t(element)] == 0))
          s[n] = -inf;
        top = std::max(top, s[n]);
      }
      if (top == -inf) continue;
      for (double& p : s) sum += p = std::exp(p - top);
      for (size_t n = 0; n < s.size(); ++n) product += (s[n] /= sum) * dp[n];
      for (int64_t j = 0; j < c.keys; ++j)
        for (int64_t e = 0; e < c.d; ++e) {
          const size_t kj = at(head, c.keys, j) + size_t(e), n = size_t(j), here = qi + size_t(e);
          const double ds = scale * s[n] * (dp[n] - product);
          x.o[here] += kept[n] * s[n] * vs[kj];
          x.dq[here] += ds * ks[kj];
          x.dk[kj] += ds * qs[here];
          x.dv[kj] += kept[n] * s[n] * dys[here];
        }
    }
  return x;
}

// The relative error of x in the L2 norm.
inline double error(const Tensor& got, const Values& want) {
  const Values x = to_vector(got);
  double off = 0, all = 1e-30;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - want[i]) * (x[i] - want[i]);
    all += want[i] * want[i];
  }
  return std::sqrt(off / all);
}

using Attention = std::function<void(Launch&, In, In, In, const AttentionRule&, Out, Out)>;
using AttentionGrad =
    std::function<void(Launch&, In, In, In, In, In, const AttentionRule&, Out, Out, Out)>;

inline void expect_attention(const Case& c, const Attention& forward,
                             const AttentionGrad& backward) {
  const Tensor q = operand(c, c.queries, 1), k = operand(c, c.keys, 2), v = operand(c, c.keys, 3),
               dy = operand(c, c.queries, 4), mask = mask_of(c);
  const bool wide = c.dtype == f16;  // gradients in f32 for one of both dtypes
  const DType of_gradient = wide ? f32 : c.dtype;
  const Tensor o = result(c, c.queries, c.dtype), stats = output(c.shape(c.queries, 2), f32),
               dq = result(c, c.queries, of_gradient), dk = result(c, c.keys, of_gradient),
               dv = result(c, c.keys, of_gradient);
  const AttentionRule rule{mask, c.hides == Hides::Causal, scale, {seed, offset}, c.dropped};
  launch([&](Launch& l) { forward(l, q, k, v, rule, o, stats); });
  launch([&](Launch& l) { backward(l, q, k, v, stats, dy, rule, dq, dk, dv); });
  const Exact want = exact(c, q, k, v, mask, dy);
  const double rounding = c.dtype == f64   ? 1e-14
                          : c.dtype == f32 ? 1e-6
                          : c.dtype == f16 ? 1e-3
                                           : 8e-3;
  EXPECT_LE(error(o, want.o), rounding) << c.text();
  EXPECT_LE(error(dq, want.dq), rounding) << c.text();
  EXPECT_LE(error(dk, want.dk), rounding) << c.text();
  EXPECT_LE(error(dv, want.dv), rounding) << c.text();
}

}  // namespace attention_cases
}  // namespace mixtape::kernels
