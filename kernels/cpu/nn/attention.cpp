// Attention by blocks of queries: the scores of a block stay in the second-level cache, and of
// causal attention only those up to the block's last query are computed. A block's probabilities
// are those of matmul() and masked_softmax(), to the bit; for gradients they are computed again
// (worklog 155).

#include "kernels/common/attention.h"
#include "kernels/common/batch.h"
#include "kernels/cpu/nn/softmax.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t block_rows = 64;  // queries

// Rows of a matrix [.., rows, columns] of a batch.
View rows_of(const View& x, int64_t matrix, int64_t first, int64_t count) {
  const int64_t at = leading(x.layout).at(matrix) + first * x.strides()[-2];
  return {x.as<char>() + at * int64_t(size_of(x.dtype)), x.dtype,
          Layout({count, x.shape()[-1]}, {x.strides()[-2], x.strides()[-1]})};
}
View transposed(View x) {
  x.layout = transpose(x.layout, 0, 1);
  return x;
}
template <class T>
View dense(const Buffer<T>& buffer, int64_t rows, int64_t columns) {
  return {buffer.data(), dtype_of<T>(), Layout({rows, columns})};
}

// A block of queries of one head, and the keys that it meets.
template <class T>
struct QueryBlock {
  using A = math_t<T>;
  const AttentionRule& rule;
  int64_t head, queries, keys;  // of a head
  int64_t first, count, seen;
  Launch launch{Device::cpu()};
  Buffer<A> scores, e;
  Buffer<T> left;  // probabilities after dropout

  QueryBlock(const AttentionRule& r, In q, In k, int64_t of_head, int64_t from)
      : rule(r),
        head(of_head),
        queries(q.shape()[-2]),
        keys(k.shape()[-2]),
        first(from),
        count(std::min(block_rows, queries - from)),
        seen(rule.causal ? std::min(keys, from + count) : keys),
        scores(count * seen),
        e(round_up(seen + 4, Vec<A>::width)),
        left(count * seen) {}

  // The probabilities, before dropout.
  void probabilities(In q, In k, const View& p) {
    const View s = dense(scores, count, seen);
    gemm(launch, rows_of(q, head, first, count), transposed(rows_of(k, head, 0, seen)), Epilogue{},
         s);
    const bool hides = rule.mask && rule.mask.dtype == boolean, adds = rule.mask && !hides;
    Buffer<bool> mask_buffer(seen);
    Buffer<A> bias_buffer(adds ? seen : 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = head * queries + first + i;
      const bool* const allowed =
          hides ? dense_row<bool, bool>(rule.mask, row, seen, mask_buffer.data()) : nullptr;
      const A* const bias =
          adds ? visit_float(rule.mask.dtype,
                             [&]<class M>() {
                               return dense_row<A, M>(rule.mask, row, seen, bias_buffer.data());
                             })
               : nullptr;
      masked_softmax_row(scores.data() + i * seen, seen,
                         rule.causal ? std::min(seen, first + i + 1) : seen,
                         static_cast<A>(rule.scale), bias, allowed, e.data(), p.as<T>() + i * seen);
    }
  }
  // y = dropout(x), [count, seen]: x itself if there is none. Blocks of random numbers do not begin
  // where rows do.
  template <class X>
  View dropped(const View& x, const Buffer<X>& y) {
    if (rule.dropped == 0) return x;
    Buffer<X> row(seen + 3);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = (head * queries + first + i) * keys, skipped = element % 4;
      std::fill_n(row.data(), skipped, X(0.0f));
      std::copy_n(x.as<X>() + i * seen, seen, row.data() + skipped);
      const View all = dense(row, 1, seen + skipped);
      dropout(launch, rule.draw.after(uint64_t(element / 4)), rule.dropped, all, all);
      std::copy_n(row.data() + skipped, seen, y.data() + i * seen);
    }
    return dense(y, count, seen);
  }
};

// y = scale x, [rows, columns].
template <class A>
void store_scaled(const Buffer<A>& x, double scale, const View& y) {
  const int64_t rows = y.shape()[0], columns = y.shape()[1];
  visit_float(y.dtype, [&]<class O>() {
    if constexpr (std::is_same_v<math_t<O>, A>)
      for (int64_t i = 0; i < rows; ++i)
        for_each_vec<A>(columns, [&](int64_t j, int64_t count) {
          write(y.as<O>() + i * y.strides()[0] + j,
                read<A>(x.data() + i * columns + j, count) * Vec<A>(static_cast<A>(scale)), count);
        });
  });
}

// The gradients of one head; sums over queries are added block by block.
template <class T>
void differentiate_head(const AttentionRule& rule, int64_t head, In q, In k, In v, In dy, Out dq,
                        Out dk, Out dv) {
  using A = math_t<T>;
  const int64_t queries = q.shape()[-2], keys = k.shape()[-2], d = q.shape()[-1],
                dv_columns = v.shape()[-1];
  const bool scores = dq || dk;
  Buffer<A> sum_k(keys * d), sum_v(keys * dv_columns), of_q(block_rows * d);
  std::fill_n(sum_k.data(), keys * d, A(0));
  std::fill_n(sum_v.data(), keys * dv_columns, A(0));
  const auto accumulate = [](Launch& launch, const View& a, const View& b, const View& c) {
    gemm(launch, transposed(a), b, Epilogue{.bias = c}, c);
  };
  for (int64_t first = 0; first < queries; first += block_rows) {
    QueryBlock<T> block(rule, q, k, head, first);
    const Buffer<T> p_buffer(block.count * block.seen);
    const View p = dense(p_buffer, block.count, block.seen),
               of_y = rows_of(dy, head, first, block.count), of_k = rows_of(k, head, 0, block.seen);
    block.probabilities(q, k, p);
    if (dv)
      accumulate(block.launch, block.dropped(p, block.left), of_y,
                 dense(sum_v, block.seen, dv_columns));
    if (!scores) continue;
    View dp = dense(block.scores, block.count, block.seen);
    gemm(block.launch, of_y, transposed(rows_of(v, head, 0, block.seen)), Epilogue{}, dp);
    dp = block.dropped(dp, block.scores);
    const View ds = dense(block.left, block.count, block.seen);
    softmax_grad(block.launch, false, p, dp, ds);
    if (dk)
      accumulate(block.launch, ds, rows_of(q, head, first, block.count),
                 dense(sum_k, block.seen, d));
    if (!dq) continue;
    gemm(block.launch, ds, of_k, Epilogue{}, dense(of_q, block.count, d));
    store_scaled(of_q, rule.scale, rows_of(dq, head, first, block.count));
  }
  if (dk) store_scaled(sum_k, rule.scale, rows_of(dk, head, 0, keys));
  if (dv) store_scaled(sum_v, 1, rows_of(dv, head, 0, keys));
}

int64_t heads_of(In x) { return x.size() / (x.shape()[-1] * x.shape()[-2]); }

}  // namespace

void attention(Launch&, In q, In k, In v, const AttentionRule& rule, Out o, Out) {
  const int64_t blocks = ceil_div(q.shape()[-2], block_rows);
  visit_float(q.dtype, [&]<class T>() {
    parallel_for(heads_of(q) * blocks, [&](int64_t i) {
      const int64_t head = i / blocks;
      QueryBlock<T> block(rule, q, k, head, i % blocks * block_rows);
      Buffer<T> p(block.count * block.seen);
      block.probabilities(q, k, dense(p, block.count, block.seen));
      gemm(block.launch, block.dropped(dense(p, block.count, block.seen), block.left),
           rows_of(v, head, 0, block.seen), Epilogue{}, rows_of(o, head, block.first, block.count));
    });
  });
}

void attention_grad(Launch&, In q, In k, In v, In, In dy, const AttentionRule& rule, Out dq, Out dk,
                    Out dv) {
  visit_float(q.dtype, [&]<class T>() {
    parallel_for(heads_of(q),
                 [&](int64_t head) { differentiate_head<T>(rule, head, q, k, v, dy, dq, dk, dv); });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
