// Gradients of attention without scores in memory, and without atomic additions. Blocks that hold
// queries and gradients of results meet the keys twice, for sums of p dp and for dq; then blocks
// that hold keys and values meet the queries, for dk and dv. All compute scores and exponentials
// again; what rows are to one is columns to the other, so one text serves both. (The sum of p dp is
// also dy o, from a rounded o: what is left of dp - sum where they cancel would be that rounding.)

#include "kernels/cuda/nn/flash_launch.h"

namespace mixtape::kernels::cuda {
using namespace detail;
using namespace internal;
namespace {

// A gradient [.., positions, features], in T or f32; maybe not wanted.
struct GradientOut {
  void* data;
  int64_t step;
  bool wide;

  explicit GradientOut(const View& x)
      : data(x.data), step(x ? x.strides()[-2] : 0), wide(x.dtype == f32) {}
};

template <class T>
struct FlashGrad {
  Positions<const T> q, k, v, dy;
  GradientOut dq, dk, dv;
  const float* stats;  // of flash_forward
  float* products;     // [heads, queries]: sums of p dp
  Walk<8> heads;       // q, k, v, dy, mask, dq, dk, dv
  FlashRule rule;
  float scale;  // without log2(e)
};

// The statistics of a query: its largest score, log2 of its sum of exponentials, and its sum of
// p dp. Of one that does not exist, all exponentials are 0.
struct QueryStats {
  float top = INFINITY, log_sum = 0, product = 0;

  __device__ QueryStats() {}
  template <class T>
  __device__ QueryStats(const FlashGrad<T>& g, int head, int query, bool with_product) {
    if (query >= g.rule.queries) return;
    const int64_t i = int64_t(head) * g.rule.queries + query;
    const auto pair = gpu::load_as<gpu::Pack<float, 2>>(g.stats + i * 2);
    top = pair.v[0];
    log_sum = pair.v[1];
    if (with_product) product = g.products[i];
  }
};

// The constants, the sums and the steps of blocks that hold keys, or queries.
template <class T, int d, bool of_keys>
struct FlashBackward {
  static constexpr int rows = d <= 64 ? 2 : 1, held = flash_warps * rows * 16;
  static constexpr int tile = d <= 64 ? 64 : 32, ld = flash_stride<d>;
  static constexpr int slot = 2 * tile * ld;
  static constexpr size_t stats_at = size_t(2 * held * ld + 2 * slot) * sizeof(T),
                          heads_at = stats_at + (of_keys ? 2 * 3 * tile * sizeof(float) : 0),
                          shared_bytes = heads_at + 10 * sizeof(int64_t);
  // Fragments of the two operands that a warp holds in registers: as many as fit there.
  static constexpr int first_held = d / 16, second_held = !of_keys   ? d / 16
                                                          : d == 64  ? 2
                                                          : d == 128 ? 6
                                                                     : d / 16;
  template <int count>
  using Held = gpu::Fragment[rows][count];
  using Sums = float[rows][d / 16][2][4];
  using Scores = float[rows][2][4];

  const FlashGrad<T>& g;
  const int head, first, row;  // the first position of the block, and of the warp
  // In shared memory: the operands of the block, two slots of tiles, statistics of the queries of
  // both, and what would take registers: where the head begins, and its random numbers.
  const Shared<T> memory, ring, mine;
  const Shared<float> of_columns;
  const Shared<int64_t> at;
  Held<first_held> a;
  Held<second_held> b;
  QueryStats of_rows[rows][2];
  Sums sums = {}, more_sums = {};                       // dk and dv, or dq
  float products[rows][2] = {}, weights[rows][2] = {};  // a lane's share of sums of p dp and of p

  __device__ __forceinline__ FlashBackward(const FlashGrad<T>& grad, int of_head, int block)
      : g(grad),
        head(of_head),
        first(block * held),
        row(first + int(gpu::thread().x) / 32 * rows * 16),
        memory(gpu::shared_memory<T>()),
        ring(memory + 2 * held * ld),
        mine(memory + ((row - first) * ld + place_by_rows<d>())),
        of_columns(gpu::shared_memory<float>(of_keys ? stats_at : 0)),
        at(gpu::shared_memory<int64_t>(heads_at)) {
    if (gpu::thread().x == 0) {
      int64_t found[8];
      g.heads.find(head, found);
#pragma unroll
      for (int i = 0; i < 8; ++i) at[i] = found[i];
      const Draw draw = g.rule.draw.now();
      at[8] = int64_t(draw.seed);
      at[9] = int64_t(draw.offset);
    }
    gpu::sync_block();
  }

  __device__ __forceinline__ int row_end() const { return of_keys ? g.rule.keys : g.rule.queries; }
  __device__ __forceinline__ int column_end() const {
    return of_keys ? g.rule.queries : g.rule.keys;
  }
  __device__ __forceinline__ Positions<const T> positions(const Positions<const T>& x,
                                                          int i) const {
    return {x.data + int64_t(at[i]), x.step};
  }
  // Starts the copies of the positions that the block holds, and of tile `number` of the other
  // side.
  __device__ __forceinline__ void load_rows() const {
    load_positions<T, d, held>(memory, of_keys ? positions(g.k, 1) : positions(g.q, 0), first,
                               row_end());
    load_positions<T, d, held>(memory + held * ld, of_keys ? positions(g.v, 2) : positions(g.dy, 3),
                               first, row_end());
    gpu::copy_commit();
  }
  __device__ __forceinline__ void load_columns(int number, int to_slot) const {
    const Shared<T> to = ring + to_slot * slot;
    load_positions<T, d, tile>(to, of_keys ? positions(g.q, 0) : positions(g.k, 1), number * tile,
                               column_end());
    load_positions<T, d, tile>(to + tile * ld, of_keys ? positions(g.dy, 3) : positions(g.v, 2),
                               number * tile, column_end());
    const int i = int(gpu::thread().x);
    if (of_keys && i < tile) {
      const QueryStats x(g, head, number * tile + i, true);
      const Shared<float> here = of_columns + (to_slot * 3 * tile + i);
      here[0] = x.top;
      here[tile] = x.log_sum;
      here[2 * tile] = x.product;
    }
  }

  static __device__ __forceinline__ gpu::Fragment fragment(Shared<T> held_rows, int r, int s) {
    return gpu::load_matrices<false>(held_rows + (r * 16 * ld + s * 16));
  }
  __device__ __forceinline__ void load_fragments() {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int s = 0; s < d / 16; ++s) {
        if (s < first_held) a[r][s] = fragment(mine, r, s);
        if (s < second_held) b[r][s] = fragment(mine + held * ld, r, s);
      }
    if constexpr (!of_keys)
#pragma unroll
      for (int i = 0; i < rows * 2; ++i)
        of_rows[i / 2][i % 2] = QueryStats(g, head, row + i * 8 + gpu::lane() / 4, false);
  }

  // scores = x y^T for 16 positions of y. Fragments of x that are not held are loaded.
  template <int count>
  static __device__ __forceinline__ void multiply(const Held<count>& x, Shared<T> all_of_x,
                                                  Shared<T> y, Scores& score) {
#pragma unroll
    for (int s = 0; s < d / 16; ++s) {
      const gpu::Fragment f = second_operand<false>(y + s * 16);
#pragma unroll
      for (int r = 0; r < rows; ++r)
        gpu::multiply<T>(score[r], s < count ? x[r][s < count ? s : 0] : fragment(all_of_x, r, s),
                         f);
    }
  }
  // to += scores y for 16 positions of y.
  static __device__ __forceinline__ void add(const Scores& score, Shared<T> y, Sums& to) {
    gpu::Fragment x[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) x[r] = as_operand<T>(score[r]);
#pragma unroll
    for (int c = 0; c < d / 16; ++c) {
      const gpu::Fragment f = second_operand<true>(y + c * 16);
#pragma unroll
      for (int r = 0; r < rows; ++r) gpu::multiply<T>(to[r][c], x[r], f);
    }
  }
  template <class F>
  static __device__ __forceinline__ void for_scores(F f) {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int e = 0; e < 8; ++e) f(r, e / 4, e % 4);
  }

  // The query and the first key whose bits this lane brings to ScoreBits.
  __device__ __forceinline__ int query_of(int column) const {
    return of_keys ? column + gpu::lane() % 16 : row + gpu::lane() % (16 * rows);
  }
  __device__ __forceinline__ int key_of(int column) const {
    return of_keys ? row + gpu::lane() / 16 % rows * 16 : column;
  }
  // Those scores are scaled, and the mask is added.
  __device__ __forceinline__ void add_bias(const void* mask, int column, Scores& s) const {
    const int down = row + gpu::lane() / 4, right = column + gpu::lane() % 4 * 2;
    const int64_t next_row = of_keys ? 1 : g.rule.mask_down,
                  next_column = of_keys ? g.rule.mask_down : 1;
    const float* from = static_cast<const float*>(mask) + down * next_row + right * next_column;
    const int rows_left = row_end() - down, columns_left = column_end() - right;
#pragma unroll
    for (int i = 0; i < 2 * rows; ++i, from += 8 * next_row)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const pair = from + half * 8 * next_column;
        const bool exists = i * 8 < rows_left && half * 8 < columns_left;
        gpu::Pack<float, 2> b;
        if constexpr (of_keys)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            b.v[e] = bias_at<1>(pair + e * next_column, exists && half * 8 + e < columns_left).v[0];
        else  // (the first key is even, and the second may be beyond the end)
          b = bias_at<2>(pair, exists);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[i / 2][half][i % 2 * 2 + e];
          x = x * g.rule.scale + b.v[e];
        }
      }
  }
  // Scores of the 16 columns from `column` on become probabilities; those that dropout zeroes
  // become negative.
  template <class StatsOf>
  __device__ __forceinline__ void exponentials(int column, StatsOf stats_of, Scores& s) const {
    const FlashRule& rule = g.rule;
    float scale = rule.scale;
    const void* const mask = rule.mask_of(at[4]);
    if (rule.adds) {
      add_bias(mask, column, s);
      scale = 1;
    }
    const bool diagonal =
        rule.causal && (of_keys ? row + rows * 16 > column + 1 : column + 16 > row + 1);
    if ((mask && !rule.adds) || diagonal || (of_keys ? row + rows * 16 : column + 16) > rule.keys) {
      const ScoreBits<of_keys, rows> seen(
          visible_bits(rule, mask, query_of(column), key_of(column)));
      for_scores([&](int r, int half, int e) {
        if (!seen.at(r, half, e)) s[r][half][e] = -INFINITY;
      });
    }
    for_scores([&](int r, int half, int e) {
      const QueryStats x = stats_of(r, half, e);
      s[r][half][e] = gpu::exp2_fast(scaled(s[r][half][e], scale) - x.top - x.log_sum);
    });
    if (rule.threshold == 0) return;
    const int64_t query = int64_t(head) * rule.queries + query_of(column);
    const ScoreBits<of_keys, rows> kept(
        kept_bits(rule, {uint64_t(int64_t(at[8])), uint64_t(int64_t(at[9]))},
                  query * rule.keys + key_of(column)));
    for_scores([&](int r, int half, int e) {
      if (!kept.at(r, half, e)) s[r][half][e] = -s[r][half][e];
    });
  }

  // Meets the 16 columns from `column` on, which begin at `y` in a tile. For products, only adds to
  // those.
  __device__ __forceinline__ void step(int column, Shared<T> y, Shared<float> stats,
                                       bool for_products) {
    const auto stats_of = [&](int r, int half, int e) {
      if constexpr (!of_keys) return of_rows[r][e / 2];
      QueryStats x;
      const Shared<float> p = stats + (half * 8 + gpu::lane() % 4 * 2 + e % 2);
      x.top = p[0];
      x.log_sum = p[tile];
      x.product = p[2 * tile];
      return x;
    };
    Scores s = {}, dp = {};
    multiply(a, mine, y + place_by_columns<d>(), s);
    exponentials(column, stats_of, s);
    const bool drops = g.rule.threshold != 0;
    if constexpr (of_keys) {
      Scores left;
      for_scores([&](int r, int half, int e) { left[r][half][e] = s[r][half][e]; });
      if (drops)
        for_scores(
            [&](int r, int half, int e) { left[r][half][e] = fmaxf(left[r][half][e], 0.0f); });
      add(left, y + (tile * ld + place_by_rows<d>()), more_sums);
    }
    multiply(b, mine + held * ld, y + (tile * ld + place_by_columns<d>()), dp);
    if (drops)
      for_scores([&](int r, int half, int e) {
        dp[r][half][e] = s[r][half][e] < 0 ? 0 : dp[r][half][e] * g.rule.kept;
      });
    if (for_products) {
      for_scores([&](int r, int half, int e) {
        const float p = fabsf(s[r][half][e]);
        products[r][e / 2] += p * dp[r][half][e];
        weights[r][e / 2] += p;
      });
      return;
    }
    for_scores([&](int r, int half, int e) {
      dp[r][half][e] = fabsf(s[r][half][e]) * (dp[r][half][e] - stats_of(r, half, e).product);
    });
    add(dp, y + place_by_rows<d>(), sums);
  }

  // Adds up the lanes' products, for the next meeting and for blocks of keys. (The weights of a
  // query are 1 but for rounding, which would be left where all dp are equal.)
  __device__ __forceinline__ void finish_products() {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float product = products[r][h], weight = weights[r][h];
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) {
          product += gpu::shuffle_xor(product, mask);
          weight += gpu::shuffle_xor(weight, mask);
        }
        of_rows[r][h].product = weight > 0 ? product / weight : product;
        const int query = row + r * 16 + h * 8 + gpu::lane() / 4;
        if (gpu::lane() % 4 == 0 && query < g.rule.queries)
          g.products[int64_t(head) * g.rule.queries + query] = of_rows[r][h].product;
      }
  }

  __device__ __forceinline__ void store(const GradientOut& out, int i, float factor,
                                        const Sums& x) const {
    const auto store_as = [&]<class O>(O* data) {
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int position = row + r * 16 + h * 8 + gpu::lane() / 4;
          if (position >= row_end()) continue;
          O* const to = data + int64_t(at[i]) + position * out.step + gpu::lane() % 4 * 2;
#pragma unroll
          for (int n = 0; n < d / 16; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float u = x[r][n][e][h * 2] * factor, v = x[r][n][e][h * 2 + 1] * factor;
              if constexpr (sizeof(O) == 4)
                gpu::store_global(to + (n * 16 + e * 8), gpu::Pack<float, 2>{{u, v}});
              else
                gpu::store_global(to + (n * 16 + e * 8), gpu::round_pair<T>(u, v));
            }
        }
    };
    if (!out.data) return;
    if (out.wide)
      store_as(static_cast<float*>(out.data));
    else
      store_as(static_cast<T*>(out.data));
  }

  __device__ __forceinline__ void run() {
    const FlashRule& rule = g.rule;
    // If causal, keys meet the queries from their own positions on, queries the keys up to them.
    const int end =
        !of_keys && rule.causal && first + held < column_end() ? first + held : column_end();
    const int begin = of_keys && rule.causal ? first / tile : 0, tiles = ceil_div(end, tile);
    load_rows();
    if (begin < tiles) load_columns(begin, 0);
    gpu::copy_commit();
    gpu::copy_wait<1>();
    gpu::sync_block();
    load_fragments();
    int number = begin, in_slot = 0;
    bool for_products = !of_keys;
    while (number < tiles) {
      gpu::copy_wait<0>();
      gpu::sync_block();  // the tile is here, and all have finished with the other slot
      const bool again = for_products && number + 1 == tiles;
      const int next = again && g.dq.data ? begin : number + 1;
      if (next < tiles) load_columns(next, in_slot ^ 1);
      gpu::copy_commit();
#pragma unroll 1
      for (int n = 0; n < tile; n += 16) {
        const int column = number * tile + n;
        if (column >= column_end()) break;
        if (rule.causal && (of_keys ? row > column + 15 : column >= row + rows * 16)) continue;
        step(column, ring + (in_slot * slot + n * ld), of_columns + (in_slot * 3 * tile + n),
             for_products);
      }
      if constexpr (!of_keys)
        if (again) finish_products();
      for_products = for_products && !again;
      number = next;
      in_slot ^= 1;
    }
    gpu::copy_wait<0>();
    if constexpr (of_keys) store(g.dv, 7, rule.kept, more_sums);
    store(of_keys ? g.dk : g.dq, of_keys ? 6 : 5, g.scale, sums);
  }
};

// Grid: the blocks of keys, or of queries, of each head; of causal attention, those that meet the
// most come first.
template <class T, int d, bool of_keys>
__global__ void __launch_bounds__(flash_threads, 2) flash_backward(FlashGrad<T> g) {
  using Block = FlashBackward<T, d, of_keys>;
  const int blocks = ceil_div(of_keys ? g.rule.keys : g.rule.queries, Block::held),
            head = int(gpu::block().x) / blocks, block = int(gpu::block().x) % blocks;
  Block(g, head, of_keys ? block : blocks - 1 - block).run();
}
template <class T, int d, bool of_keys>
void start_backward(void* stream, int64_t heads, const FlashGrad<T>& g) {
  using Block = FlashBackward<T, d, of_keys>;
  const int64_t blocks = heads * ceil_div(of_keys ? g.rule.keys : g.rule.queries, Block::held);
  gpu::launch(
      {"flash_backward", {unsigned(blocks), 1, 1}, {flash_threads, 1, 1}, Block::shared_bytes},
      stream, flash_backward<T, d, of_keys>, g);
}

}  // namespace

void attention_grad(Launch& launch, In q_in, In k_in, In v_in, In stats, In dy_in,
                    const AttentionRule& rule, Out dq, Out dk, Out dv) {
  const View q = flash_operand(launch, q_in), k = flash_operand(launch, k_in),
             v = flash_operand(launch, v_in), dy = flash_operand(launch, dy_in),
             mask = flash_mask(launch, rule.mask);
  const int64_t heads = heads_of(q);
  visit_flash(q.dtype, q.shape()[-1], [&]<class T, int d>() {
    const FlashGrad<T> g{positions<const T>(q),
                         positions<const T>(k),
                         positions<const T>(v),
                         positions<const T>(dy),
                         GradientOut(dq),
                         GradientOut(dk),
                         GradientOut(dv),
                         stats.as<const float>(),
                         launch.scratch<float>(heads * q.shape()[-2]),
                         walk_heads<8>({&q, &k, &v, &dy, &mask, &dq, &dk, &dv}),
                         flash_rule(rule, mask, q, k),
                         float(rule.scale)};
    if (dq || dk) start_backward<T, d, false>(launch.stream, heads, g);  // (dk needs the products)
    if (dk || dv) start_backward<T, d, true>(launch.stream, heads, g);
  });
}

}  // namespace mixtape::kernels::cuda
