// Attention, forward: a block takes 128 queries of a head, a warp 32 of them. Probabilities stay in
// registers, where the sums of one product are the operand of the next; the largest score so far
// and the sum of exponentials are corrected from tile to tile of keys.

#include "kernels/cuda/nn/flash_launch.h"

namespace mixtape::kernels::cuda {
using namespace detail;
using namespace internal;
namespace {

template <class T>
struct Flash {
  Positions<const T> q, k, v;
  Positions<T> o;
  float* stats;   // [heads, queries, 2]: the largest score and log2 of the sum of exponentials
  Walk<5> heads;  // q, k, v, o, mask
  FlashRule rule;
};

// The constants and steps of one kernel. adds: its mask is added to scores, which takes registers.
template <class T, int d, bool adds>
struct FlashForward {
  static constexpr int rows = 2, queries = flash_warps * rows * 16, ld = flash_stride<d>;
  static constexpr int keys = d > (adds ? 64 : 96) ? 32 : 64;  // of a tile
  static constexpr bool held = d <= (adds ? 32 : 64);          // queries stay in registers
  static constexpr int slot = 2 * keys * ld;                   // a tile of keys and one of values
  static constexpr size_t shared_bytes = size_t(queries * ld + 2 * slot) * sizeof(T);

  using Queries = gpu::Fragment[rows][held ? d / 16 : 1];
  using Scores = float[rows][keys / 16][2][4];
  struct Sums {
    float out[rows][d / 16][2][4] = {};
    float top[rows][2], sum[rows][2] = {};  // a lane's share of the sum
  };

  static __device__ __forceinline__ gpu::Fragment query(Shared<T> qs, int r, int s) {
    return gpu::load_matrices<false>(qs + (r * 16 * ld + s * 16));
  }

  // Loads the queries that stay in registers.
  static __device__ __forceinline__ void hold(Shared<T> qs, Queries& fq) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int s = 0; s < d / 16; ++s) fq[r][s] = query(qs, r, s);
  }

  // scores = queries times keys.
  static __device__ __forceinline__ void multiply(const Queries& fq, Shared<T> qs, Shared<T> ks,
                                                  Scores& score) {
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      gpu::Fragment a[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r) a[r] = held ? fq[r][held ? s : 0] : query(qs, r, s);
#pragma unroll
      for (int n = 0; n < keys / 16; ++n) {
        const gpu::Fragment f = second_operand<false>(ks + (n * 16 * ld + s * 16));
#pragma unroll
        for (int r = 0; r < rows; ++r) gpu::multiply<T>(score[r][n], a[r], f);
      }
    }
  }

  // Scores of keys that a query does not see become -inf.
  static __device__ __forceinline__ void hide(const FlashRule& rule, const void* mask, int row,
                                              int key, Scores& score) {
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      const ScoreBits<false, rows> seen(visible_bits(rule, mask, row + gpu::lane(), key + n * 16));
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int e = 0; e < 8; ++e)
          if (!seen.at(r, e / 4, e % 4)) score[r][n][e / 4][e % 4] = -INFINITY;
    }
  }

  // Scores are scaled, and the mask is added.
  static __device__ __forceinline__ void add_bias(const FlashRule& rule, const void* mask, int row,
                                                  int key, Scores& score) {
    const int down = row + gpu::lane() / 4, right = key + gpu::lane() % 4 * 2;
    const float* from = static_cast<const float*>(mask) + down * rule.mask_down + right;
    // (The first key of a pair is even, and the second may be beyond the end.)
    const int queries_left = rule.queries - down, keys_left = rule.keys - right;
#pragma unroll
    for (int i = 0; i < 2 * rows; ++i, from += 8 * rule.mask_down)
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        const auto b = bias_at<2>(from + n * 8, i * 8 < queries_left && n * 8 < keys_left);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& s = score[i / 2][n / 2][n % 2][i % 2 * 2 + e];
          s = s * rule.scale + b.v[e];
        }
      }
  }

  // Scores become exponentials; the sums so far are scaled to the new largest score.
  static __device__ __forceinline__ void exponentials(float scale, Scores& score, Sums& x) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // rows lane / 4 and + 8
        float top = x.top[r][h], total = 0;
        const auto for_scores = [&](auto f) {
#pragma unroll
          for (int n = 0; n < keys / 16; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) f(score[r][n][e / 2][h * 2 + e % 2]);
        };
        for_scores([&](float& s) {
          if constexpr (!adds) s = scaled(s, scale);
          top = fmaxf(top, s);
        });
        top = fmaxf(top, gpu::shuffle_xor(top, 1));
        top = fmaxf(top, gpu::shuffle_xor(top, 2));
        const float shift = top == -INFINITY ? 0.0f : top,
                    factor = gpu::exp2_fast(x.top[r][h] - shift);
        for_scores([&](float& s) {
          s = gpu::exp2_fast(s - shift);
          total += s;
        });
        x.top[r][h] = top;
        x.sum[r][h] = x.sum[r][h] * factor + total;
#pragma unroll
        for (int n = 0; n < d / 16; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) x.out[r][n][e / 2][h * 2 + e % 2] *= factor;
      }
  }

  // out += exponentials times values. `element`: the number of the warp's first score of this tile.
  static __device__ __forceinline__ void add_values(const FlashRule& rule, int64_t element,
                                                    Shared<T> vs, Scores& score, Sums& x) {
#pragma unroll
    for (int n = 0; n < keys / 16; ++n) {
      if (rule.threshold != 0) {
        const int64_t row = element + int64_t(gpu::lane()) * rule.keys;
        const ScoreBits<false, rows> kept(kept_bits(rule, rule.draw.now(), row + n * 16));
#pragma unroll
        for (int r = 0; r < rows; ++r)
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (!kept.at(r, e / 4, e % 4)) score[r][n][e / 4][e % 4] = 0;
      }
      gpu::Fragment p[rows];
#pragma unroll
      for (int r = 0; r < rows; ++r) p[r] = as_operand<T>(score[r][n]);
#pragma unroll
      for (int c = 0; c < d / 16; ++c) {
        const gpu::Fragment f = second_operand<true>(vs + (n * 16 * ld + c * 16));
#pragma unroll
        for (int r = 0; r < rows; ++r) gpu::multiply<T>(x.out[r][c], p[r], f);
      }
    }
  }

  // Stores the results and statistics of the warp's queries, the first of which is `first`.
  static __device__ __forceinline__ void store(const Flash<T>& g, T* o, float* stats, int first,
                                               const Sums& x) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = x.sum[r][h];
        sum += gpu::shuffle_xor(sum, 1);
        sum += gpu::shuffle_xor(sum, 2);
        const int row = first + r * 16 + h * 8 + gpu::lane() / 4;
        if (row >= g.rule.queries) continue;
        const bool none = x.top[r][h] == -INFINITY && !(sum != 0);  // (NaN is not nothing)
        const float by = none ? 0.0f : g.rule.kept / sum;
        // The differences of scores from infinity have exponentials of 0.
        if (gpu::lane() % 4 == 0)
          gpu::store_global(
              stats + int64_t(row) * 2,
              gpu::Pack<float, 2>{{none ? INFINITY : x.top[r][h], none ? 0.0f : log2f(sum)}});
        T* const to = o + row * g.o.step + gpu::lane() % 4 * 2;
#pragma unroll
        for (int n = 0; n < d / 16; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            gpu::store_global(
                to + (n * 16 + e * 8),
                gpu::round_pair<T>(x.out[r][n][e][h * 2] * by, x.out[r][n][e][h * 2 + 1] * by));
      }
  }
};

// Grid: the blocks of queries of each head; of causal attention, those with the most keys first.
template <class T, int d, bool adds>
__global__ void __launch_bounds__(flash_threads, 2) flash_forward(Flash<T> g) {
  using Steps = FlashForward<T, d, adds>;
  constexpr int rows = Steps::rows, ld = Steps::ld, keys = Steps::keys;
  const int blocks = ceil_div(g.rule.queries, Steps::queries);
  const int head = int(gpu::block().x) / blocks,
            m0 = (blocks - 1 - int(gpu::block().x) % blocks) * Steps::queries;
  const int row = m0 + int(gpu::thread().x) / 32 * rows * 16;  // the warp's first query
  int64_t at[5];
  g.heads.find(head, at);
  const FlashRule& rule = g.rule;
  const void* const mask = rule.mask_of(at[4]);
  const Shared<T> qs = gpu::shared_memory<T>(), ring = qs + Steps::queries * ld;
  const Positions<const T> q{g.q.data + at[0], g.q.step}, k{g.k.data + at[1], g.k.step},
      v{g.v.data + at[2], g.v.step};
  const auto load = [&](int tile) {
    const Shared<T> to = ring + tile % 2 * Steps::slot;
    load_positions<T, d, keys>(to, k, tile * keys, rule.keys);
    load_positions<T, d, keys>(to + keys * ld, v, tile * keys, rule.keys);
  };

  const int end = rule.causal && m0 + Steps::queries < rule.keys ? m0 + Steps::queries : rule.keys;
  const int tiles = ceil_div(end, keys);
  load_positions<T, d, Steps::queries>(qs, q, m0, rule.queries);
  gpu::copy_commit();
  load(0);
  gpu::copy_commit();
  const Shared<T> mine = qs + ((row - m0) * ld + place_by_rows<d>());
  typename Steps::Queries fq;
  if constexpr (Steps::held) {
    gpu::copy_wait<1>();
    gpu::sync_block();
    Steps::hold(mine, fq);
  }
  typename Steps::Sums sums;
#pragma unroll
  for (int r = 0; r < rows; ++r) sums.top[r][0] = sums.top[r][1] = -INFINITY;
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    gpu::copy_wait<0>();
    gpu::sync_block();  // the tile is here, and all have finished with the other slot
    if (tile + 1 < tiles) load(tile + 1);
    gpu::copy_commit();
    const int key = tile * keys;
    if (rule.causal && key >= row + rows * 16) continue;  // none of the warp's queries sees it
    const Shared<T> ks = ring + tile % 2 * Steps::slot;
    typename Steps::Scores score = {};
    Steps::multiply(fq, mine, ks + place_by_columns<d>(), score);
    if constexpr (adds) Steps::add_bias(rule, mask, row, key, score);
    if ((mask && !adds) || key + keys > rule.keys || (rule.causal && key + keys > row + 1))
      Steps::hide(rule, mask, row, key, score);
    Steps::exponentials(rule.scale, score, sums);
    Steps::add_values(rule, (int64_t(head) * rule.queries + row) * rule.keys + key,
                      ks + (keys * ld + place_by_rows<d>()), score, sums);
  }
  gpu::copy_wait<0>();
  Steps::store(g, g.o.data + at[3], g.stats + int64_t(head) * rule.queries * 2, row, sums);
}

template <class T, int d, bool adds>
void start_forward(void* stream, int64_t heads, const Flash<T>& g) {
  using Steps = FlashForward<T, d, adds>;
  const int64_t blocks = heads * ceil_div(g.rule.queries, Steps::queries);
  gpu::launch(
      {"flash_forward", {unsigned(blocks), 1, 1}, {flash_threads, 1, 1}, Steps::shared_bytes},
      stream, flash_forward<T, d, adds>, g);
}

}  // namespace

void attention(Launch& launch, In q_in, In k_in, In v_in, const AttentionRule& rule, Out o,
               Out stats) {
  const View q = flash_operand(launch, q_in), k = flash_operand(launch, k_in),
             v = flash_operand(launch, v_in), mask = flash_mask(launch, rule.mask);
  visit_flash(q.dtype, q.shape()[-1], [&]<class T, int d>() {
    const Flash<T> g{positions<const T>(q),       positions<const T>(k),
                     positions<const T>(v),       positions<T>(o),
                     stats.as<float>(),           walk_heads<5>({&q, &k, &v, &o, &mask}),
                     flash_rule(rule, mask, q, k)};
    g.rule.adds ? start_forward<T, d, true>(launch.stream, heads_of(q), g)
                : start_forward<T, d, false>(launch.stream, heads_of(q), g);
  });
}

}  // namespace mixtape::kernels::cuda
