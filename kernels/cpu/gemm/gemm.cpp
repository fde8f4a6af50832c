// Matrix products: c is cut into chunks whose sizes depend on the shape alone. A chunk packs its
// parts of the operands, block by block of k, and a microkernel sums tiles of it in registers. Each
// element of c is one sum in the order of k, so its bits depend neither on the blocking and the
// number of threads nor on which operand becomes rows. See docs/gemm.md; measured in
// bench/worklog/020 to 022, 071, 092 and 143.

#include <algorithm>
#include <optional>

#include "kernels/common/batch.h"
#include "kernels/common/packed.h"
#include "kernels/cpu/gemm/blocking.h"
#include "kernels/cpu/gemm/lane_products.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t max_tile = 14 * 32;             // sums of the largest tile of any microkernel
constexpr int64_t l2_share = 512 << 10;           // bytes that may stay in the second-level cache
constexpr int64_t pack_lines = 256;               // packed by one task
constexpr int64_t least_work = int64_t{1} << 18;  // multiplications of one task

// One product of the batch.
template <class T, class S, class O>
struct Product {
  const Blocking<T>& blocking;
  const S *a, *b;
  T alpha;
  const T *bias, *residual;
  Activation activation;
  O *c, *before;
  Packed* packed;
};

// Working memory of one chunk: its packed operands, unless they are shared or read in place, and
// its sums, unless they stay in c.
template <class T>
struct PackBuffers {
  std::optional<Buffer<char>> a, b;
  std::optional<Buffer<T>> sums;

  explicit PackBuffers(const Blocking<T>& p) {
    if (!p.a.in_place && !p.a.shared)
      a.emplace(p.packed_bytes(p.a, p.b_outer ? p.a.chunk : p.a.sliver, p.k_block));
    if (!p.b.shared && !p.by_rows && !(p.b.in_place && p.b.count % p.b.sliver == 0))
      b.emplace(p.packed_bytes(p.b, p.b_outer || p.b.in_place ? p.b.sliver : p.b.chunk, p.k_block));
    if (!p.c_in_place || (p.half_c && p.k > p.k_block))
      sums.emplace(p.a.chunk * p.b.chunk * (p.by_rows && p.k > p.k_block ? 2 : 1));
  }
};

// Packs steps [k, k + depth) of lines [from, to), one sliver after the other.
template <class T, class S>
void pack(const Blocking<T>& p, const Operand& x, const S* data, int64_t from, int64_t to,
          int64_t k, int64_t depth, char* out) {
  const int64_t k_group = p.kernel.k_group;
  // Adjacent lines are read together, a few steps of k at a time; more of a, whose slivers are low,
  // if all of it fits in the second-level cache.
  const bool cached = &x == &p.a && x.count * p.k * p.element_bytes < l2_share;
  const int64_t steps = x.line_stride == 1 ? (cached ? 64 : 8) * k_group : depth;
  for (int64_t d = 0; d < depth; d += steps)
    for (int64_t i = from; i < to; i += x.sliver) {
      const int64_t count = std::min(x.sliver, to - i);
      // The last sliver of a is as low as its tile; the last one of b is padded.
      const int64_t width = &x == &p.b ? x.sliver : count;
      p.kernel.pack({data + i * x.line_stride + (k + d) * x.k_stride, x.line_stride, x.k_stride,
                     count, x.count - i},
                    std::min(steps, depth - d), width,
                    out + (i - from) / x.sliver * p.sliver_bytes(x, depth) +
                        d / k_group * width * p.kernel.k_group_bytes);
    }
}

// The offset of a line's sliver in a shared operand, in the block of k that begins at `k`.
template <class T>
int64_t shared_offset(const Blocking<T>& p, const Operand& x, int64_t line, int64_t k,
                      int64_t depth) {
  return k / p.k_block * p.packed_bytes(x, x.count, p.k_block) +
         line / x.sliver * p.sliver_bytes(x, depth);
}

// Packs all lines of an operand, block by block of k.
template <class T, class S>
void pack_shared(const Blocking<T>& p, const Operand& x, const S* data, char* out) {
  const int64_t group = x.sliver * std::max<int64_t>(1, pack_lines / x.sliver);
  const int64_t groups = ceil_div(x.count, group);
  parallel_for(groups * ceil_div(p.k, p.k_block), [&](int64_t i) {
    const int64_t k = i / groups * p.k_block, depth = std::min(p.k_block, p.k - k);
    const int64_t from = i % groups * group, to = std::min(x.count, from + group);
    pack(p, x, data, from, to, k, depth, out + shared_offset(p, x, from, k, depth));
  });
}

// A part of c and its sums, which fit in the first-level cache: c = activation(alpha sums + bias +
// residual), in one loop per operation.
template <class T, class S, class O>
struct EpiloguePart {
  const Product<T, S, O>& x;
  T* sums;
  int64_t stride;       // of the sums
  int64_t row, column;  // of c, where the part begins
  int64_t height, width;
  int64_t c_row = x.blocking.c[0], c_column = x.blocking.c[1];  // strides

  void finish() const {
    const int64_t first = row * c_row + column * c_column;
    if (x.alpha != T(1))
      for_each([&](T* sum, int64_t, int64_t, int64_t) {
        store(sum, load<T, T>(sum) * Vec<T>(x.alpha));
      });
    if (x.bias) add_bias();
    if (x.residual) add_residual(x.residual + first);
    if (x.before) write_to(x.before + first);
    activate(x.activation, sums, stride, height, width);
    write_to(x.c + first);
  }

 private:
  // Calls f(sum, i, j, count) for the vectors of each row.
  template <class F>
  MIXTAPE_ALWAYS_INLINE void for_each(F f) const {
    for (int64_t i = 0; i < height; ++i)
      for_each_vec<T>(width,
                      [&](int64_t j, int64_t count) { f(sums + i * stride + j, i, j, count); });
  }
  void add_bias() const {
    const int64_t b_row = x.blocking.bias[0], b_column = x.blocking.bias[1];
    for_each([&](T* sum, int64_t i, int64_t j, int64_t count) {
      const T* const bias = x.bias + (row + i) * b_row + (column + j) * b_column;
      Vec<T> added(*bias);
      if (b_column == 1)
        added = read<T>(bias, count);
      else if (b_column != 0)
        for (int64_t l = 1; l < count; ++l) added.v[l] = bias[l * b_column];
      store(sum, load<T, T>(sum) + added);
    });
  }
  void add_residual(const T* residual) const {
    if (c_column == 1)
      return for_each([&](T* sum, int64_t i, int64_t j, int64_t count) {
        write(sum, read<T>(sum, count) + read<T>(residual + i * c_row + j, count), count);
      });
    // c is computed as its transpose, and the rows of c are dense.
    const auto get = [&](int64_t j, int64_t i, int64_t count) {
      return read<T>(residual + i + j * c_column, count);
    };
    transpose_tiles<T>(width, height, get, [&](int64_t i, int64_t j, Vec<T> v, int64_t count) {
      T* const sum = sums + i * stride + j;
      write(sum, read<T>(sum, count) + v, count);
    });
  }
  void write_to(O* c) const {
    if (c_column == 1)
      return for_each([&](const T* sum, int64_t i, int64_t j, int64_t count) {
        write(c + i * c_row + j, load<T, T>(sum), count);
      });
    if (c_row == 1) {
      const auto get = [&](int64_t i, int64_t j, int64_t) {
        return load<T, T>(sums + i * stride + j);
      };
      return transpose_tiles<T>(height, width, get,
                                [&](int64_t j, int64_t i, Vec<T> v, int64_t count) {
                                  write(c + i + j * c_column, v, count);
                                });
    }
    for (int64_t i = 0; i < height; ++i)
      for (int64_t j = 0; j < width; ++j) c[i * c_row + j * c_column] = O(sums[i * stride + j]);
  }
};

// Epilogue pass over rows from `row` and columns from `column` on. A part is as long as c is
// contiguous.
template <class T, class S, class O>
void finish(const Product<T, S, O>& x, T* sums, int64_t stride, int64_t row, int64_t rows,
            int64_t column, int64_t columns) {
  constexpr int64_t part = 1024;  // sums
  const bool column_major = x.blocking.c[0] == 1 && x.blocking.c[1] != 1;
  const int64_t height = column_major ? rows : std::max<int64_t>(2, part / columns),
                width = column_major ? vec_width<T> : columns;
  for (int64_t i = 0; i < rows; i += height)
    for (int64_t j = 0; j < columns; j += width)
      EpiloguePart<T, S, O>{x,
                            sums + i * stride + j,
                            stride,
                            row + i,
                            column + j,
                            std::min(height, rows - i),
                            std::min(width, columns - j)}
          .finish();
}

// Stores `rows` x `columns` sums of a tile that was computed in a buffer. (Out of line: its vectors
// would cost every tile a stack frame.)
template <class T, class O>
[[gnu::noinline]] void store_edge(const T* tile, int64_t width, int64_t rows, int64_t columns,
                                  const T* add, int64_t add_row_stride, O* out,
                                  int64_t out_row_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for_each_vec<T>(columns, [&](int64_t q, int64_t count) {
      const Vec<T> sum = read<T>(tile + r * width + q, count);
      write(out + r * out_row_stride + q,
            add ? sum + read<T>(add + r * add_row_stride + q, count) : sum, count);
    });
}

// One chunk of c: for each block of k, packs the operands and sums tiles; then the epilogue.
template <class T, class S, class O>
class Chunk {
 public:
  // `shared_a`, `shared_b`: operands that are packed for all chunks, or null.
  MIXTAPE_ALWAYS_INLINE Chunk(const Product<T, S, O>& x, int64_t index, const char* shared_a,
                              const char* shared_b, PackBuffers<T>& own)
      : x_(x),
        p_(x.blocking),
        own_(own),
        shared_a_(shared_a),
        shared_b_(shared_b),
        row_(index / p_.chunk_columns() * p_.a.chunk),
        column_(index % p_.chunk_columns() * p_.b.chunk),
        rows_(std::min(p_.a.chunk, p_.a.count - row_)),
        columns_(std::min(p_.b.chunk, p_.b.count - column_)),
        c_(x.c + row_ * p_.c[0] + column_ * p_.c[1]),
        sums_(own.sums ? own.sums->data() : nullptr),
        sums_stride_(p_.b.chunk) {
    if constexpr (std::is_same_v<T, O>)
      if (!sums_) {
        sums_ = c_;
        sums_stride_ = p_.c[0];
      }
  }

  MIXTAPE_ALWAYS_INLINE void compute() {
    for (int64_t k = 0; k == 0 || k < p_.k; k += p_.k_block) {
      KBlock block = begin_block(k);
      if (p_.by_rows)
        sum_rows(block);
      else if (p_.b_outer)
        sum_b_outer(block);
      else
        sum_a_outer(block);
    }
    if (!p_.c_in_place) finish(x_, sums_, sums_stride_, row_, rows_, column_, columns_);
  }

 private:
  // A block of k: where slivers of its operands begin, and the arguments of its tiles.
  struct KBlock {
    int64_t k, depth;
    bool last, to_c;
    const char *a, *b, *b_in_place;                            // the first sliver
    int64_t a_sliver_bytes, b_sliver_bytes, b_in_place_bytes;  // from sliver to sliver
    Tile<T> tile;
  };

  MIXTAPE_ALWAYS_INLINE KBlock begin_block(int64_t k) const {
    KBlock block;
    block.k = k;
    const int64_t depth = block.depth = std::min(p_.k_block, p_.k - k);
    block.last = k + depth == p_.k;
    block.to_c = block.last && p_.c_in_place;
    const auto packed = [&](const Operand& x, const char* shared, int64_t line, const auto& own) {
      return x.shared ? shared + shared_offset(p_, x, line, k, depth) : own ? own->data() : nullptr;
    };
    const auto in_place = [&](const Operand& x, const S* data, int64_t line) {
      return reinterpret_cast<const char*>(data + line * x.line_stride + k * x.k_stride);
    };
    const char* const a = packed(p_.a, shared_a_, row_, own_.a);
    block.b = packed(p_.b, shared_b_, column_, own_.b);
    block.a = p_.a.in_place ? in_place(p_.a, x_.a, row_) : a;
    block.b_in_place = in_place(p_.b, x_.b, column_);
    // In the operand that the outer loop packs, each sliver overwrites the one before.
    const int64_t a_bytes = own_.a && !p_.b_outer ? 0 : p_.sliver_bytes(p_.a, depth);
    block.b_sliver_bytes =
        own_.b && (p_.b_outer || p_.b.in_place) ? 0 : p_.sliver_bytes(p_.b, depth);
    block.a_sliver_bytes =
        p_.a.in_place ? p_.a.sliver * p_.a.line_stride * p_.element_bytes : a_bytes;
    block.b_in_place_bytes = p_.b.sliver * p_.b.line_stride * p_.element_bytes;
    Tile<T>& t = block.tile;
    t.k_groups = p_.k_groups(depth);
    t.cold_out = rows_ * columns_ * int64_t{sizeof(T)} > l2_share;
    t.a_row_stride = p_.a.in_place ? p_.a.line_stride * p_.element_bytes : p_.kernel.k_group_bytes;
    return block;
  }

  // Sums of a few rows. Those of a block of k are added up on their own first, as in tiles.
  void sum_rows(const KBlock& block) {
    pack_a(block, 0, rows_);
    const int64_t all = rows_ * sums_stride_;
    T* const sums = block.k == 0 ? sums_ : sums_ + all;
    std::fill_n(sums, all, T(0));
    p_.kernel.row_sums({rows_, columns_, block.depth, reinterpret_cast<const T*>(block.a),
                        block.b_in_place, p_.b.k_stride, sums, sums_stride_});
    if (sums != sums_)
      for (int64_t i = 0; i < all; i += Vec<T>::width)
        store(sums_ + i, load<T, T>(sums_ + i) + load<T, T>(sums + i));
  }
  // Loop order with a packed whole: the inner loop reads a from the second-level cache.
  MIXTAPE_ALWAYS_INLINE void sum_b_outer(KBlock& block) {
    const int64_t tall = ceil_div(rows_, p_.a.sliver), wide = ceil_div(columns_, p_.b.sliver);
    pack_a(block, 0, rows_);
    for (int64_t right = 0; right < wide; ++right) {
      pack_b(block, right * p_.b.sliver, std::min(columns_, (right + 1) * p_.b.sliver));
      for (int64_t down = 0; down < tall; ++down) sum_tile(block, down, right);
    }
  }
  // The same with b packed whole.
  MIXTAPE_ALWAYS_INLINE void sum_a_outer(KBlock& block) {
    const int64_t tall = ceil_div(rows_, p_.a.sliver), wide = ceil_div(columns_, p_.b.sliver);
    pack_b(block, 0, columns_);
    for (int64_t down = 0; down < tall; ++down) {
      pack_a(block, down * p_.a.sliver, std::min(rows_, (down + 1) * p_.a.sliver));
      for (int64_t right = 0; right < wide; ++right) sum_tile(block, down, right);
    }
  }

  MIXTAPE_ALWAYS_INLINE void pack_a(const KBlock& block, int64_t from, int64_t to) {
    if (own_.a) pack(p_, p_.a, x_.a, row_ + from, row_ + to, block.k, block.depth, own_.a->data());
  }
  MIXTAPE_ALWAYS_INLINE void pack_b(const KBlock& block, int64_t from, int64_t to) {
    // A last sliver that is not full is packed even if b is read in place: tiles read all of it.
    if (p_.b.in_place) from = std::max(from, columns_ / p_.b.sliver * p_.b.sliver);
    if (own_.b)
      pack(p_, p_.b, x_.b, column_ + from, column_ + to, block.k, block.depth, own_.b->data());
  }

  // Sums tile (down, right) of the chunk. A tile with a partial vector goes through `edge_`.
  MIXTAPE_ALWAYS_INLINE void sum_tile(KBlock& block, int64_t down, int64_t right) {
    const int64_t width = p_.b.sliver, lanes = p_.kernel.lanes;
    const int64_t i = down * p_.a.sliver, j = right * width;
    const int64_t high = std::min(p_.a.sliver, rows_ - i), here = std::min(width, columns_ - j);
    const int vectors = here == width ? p_.kernel.vectors : static_cast<int>(ceil_div(here, lanes));
    Tile<T>& t = block.tile;
    set_operands(block, down, right, high, here == width);
    t.add = block.k > 0 ? sums_ + i * sums_stride_ + j : nullptr;
    t.add_row_stride = sums_stride_;
    if (p_.c_in_place && x_.bias) {  // then there is one block of k
      t.add = x_.bias + (row_ + i) * p_.bias[0] + column_ + j;
      t.add_row_stride = p_.bias[0];
    }
    const bool staged = p_.c_in_place && here < vectors * lanes;
    const T* const add = t.add;
    t.out_dtype = block.to_c && !staged ? dtype_of<O>() : dtype_of<T>();
    if (staged) {
      t.out = edge_;
      t.out_row_stride = width;
      t.add = nullptr;
    } else if (block.to_c) {
      t.out = c_ + i * p_.c[0] + j;
      t.out_row_stride = p_.c[0];
    } else {
      t.out = sums_ + i * sums_stride_ + j;
      t.out_row_stride = sums_stride_;
    }
    p_.kernel.tile(static_cast<int>(high), vectors, t);
    if (!staged) return;
    if (block.last)
      store_edge(edge_, width, high, here, add, t.add_row_stride, c_ + i * p_.c[0] + j, p_.c[0]);
    else
      store_edge(edge_, width, high, here, add, t.add_row_stride, sums_ + i * sums_stride_ + j,
                 sums_stride_);
  }

  MIXTAPE_ALWAYS_INLINE void set_operands(KBlock& block, int64_t down, int64_t right, int64_t high,
                                          bool full_width) const {
    Tile<T>& t = block.tile;
    t.a = block.a + down * block.a_sliver_bytes;
    t.a_k_stride = p_.a.in_place ? p_.a.k_stride * p_.element_bytes * p_.kernel.k_group
                                 : high * p_.kernel.k_group_bytes;
    const bool b_in_place = p_.b.in_place && full_width;
    t.b = b_in_place ? block.b_in_place + right * block.b_in_place_bytes
                     : block.b + right * block.b_sliver_bytes;
    t.b_k_stride =
        b_in_place ? p_.b.k_stride * p_.element_bytes : p_.b.sliver * p_.kernel.k_group_bytes;
    t.b_line_stride = b_in_place && p_.b_k_major ? p_.b.line_stride * p_.element_bytes : 0;
  }

  const Product<T, S, O>& x_;
  const Blocking<T>& p_;
  PackBuffers<T>& own_;
  const char *const shared_a_, *const shared_b_;
  const int64_t row_, column_, rows_, columns_;
  O* const c_;
  T* sums_;  // where sums wait for the next block of k: a buffer, or c itself
  int64_t sums_stride_;
  alignas(64) T edge_[max_tile];
};

template <class T, class S, class O>
void compute_chunk(const Product<T, S, O>& x, int64_t index, const char* shared_a,
                   const char* shared_b, PackBuffers<T>& own) {
  Chunk<T, S, O>(x, index, shared_a, shared_b, own).compute();
}

// One product in parallel: packs shared operands, then computes chunks.
template <class T, class S, class O>
void multiply(const Product<T, S, O>& x) {
  const Blocking<T>& p = x.blocking;
  Packed of_a, of_b;
  const auto share = [&](const Operand& operand, const S* data, Packed& own) -> const char* {
    if (!operand.shared) return nullptr;
    const int64_t block_bytes = p.packed_bytes(operand, operand.count, p.k_block);
    return (operand.kept ? *x.packed : own)
        .get(static_cast<size_t>(ceil_div(p.k, p.k_block) * block_bytes),
             [&](char* out) { pack_shared(p, operand, data, out); });
  };
  const char *const a = share(p.a, x.a, of_a), *const b = share(p.b, x.b, of_b);
  parallel_for(p.chunk_count(), [&](int64_t i) {
    PackBuffers<T> own(p);
    compute_chunk(x, i, a, b, own);
  });
}

}  // namespace

void gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c) {
  const View& bias = epilogue.bias;
  if (epilogue.row_sums) reduce(launch, Reduce::Sum, a, column(epilogue.row_sums));
  if (epilogue.column_sums) reduce(launch, Reduce::Sum, b, row(epilogue.column_sums));
  if (c.size() == 0) return;
  visit_float(a.dtype, c.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const Microkernel<T>* const kernel = find_microkernel<T>(current_isa(), a.dtype);
    if (!kernel) return eigen_gemm(launch, a, b, epilogue, c);
    Layout al = a.layout, bl = b.layout, cl = c.layout;
    merge_batch(al, bl, cl);
    if (multiply_in_lanes<T, S, O>(*kernel, a, b, epilogue, al, bl, cl, c)) return;
    const int64_t m = cl.shape[-2], n = cl.shape[-1], k = al.shape[-1];
    // The stride of a dimension of size 1 is free: dense lines along k are read in place.
    const auto stride = [](const Layout& l, int d) {
      return l.shape[d] != 1 ? l.strides[d] : l.strides[-3 - d] == 1 ? l.shape[-3 - d] : 1;
    };
    Blocking<T> blocking{*kernel,
                         k,
                         sizeof(S),
                         {m, stride(al, -2), stride(al, -1)},
                         {n, stride(bl, -1), stride(bl, -2)},
                         {stride(cl, -2), stride(cl, -1)},
                         {1, 1},
                         !std::is_same_v<T, O>,
                         bool(bias),
                         epilogue.activation != Activation::None || epilogue.before ||
                             epilogue.residual || T(epilogue.alpha) != T(1)};
    blocking.b.kept = epilogue.packed && leading(cl).shape.size() == 1;
    if (bias) blocking.bias[0] = bias.layout.rank() == 1 ? 0 : n;
    blocking.choose();
    const T* const bias_data = to_dense<T>(launch, bias);
    const T* const residual = widened<T>(launch, epilogue.residual);
    const Layout a_batch = leading(al), b_batch = leading(bl), c_batch = leading(cl);
    const auto product = [&](int64_t i) {
      const S *x = a.as<S>() + a_batch.at(i), *y = b.as<S>() + b_batch.at(i);
      return Product<T, S, O>{blocking,
                              blocking.swapped ? y : x,
                              blocking.swapped ? x : y,
                              T(epilogue.alpha),
                              bias_data,
                              residual ? residual + c_batch.at(i) : nullptr,
                              epilogue.activation,
                              c.as<O>() + c_batch.at(i),
                              epilogue.before ? epilogue.before.as<O>() + c_batch.at(i) : nullptr,
                              epilogue.packed};
    };
    const int64_t batch = c_batch.shape.size();
    if (blocking.chunk_count() > 1 || blocking.a.kept || blocking.b.kept) {
      for (int64_t i = 0; i < batch; ++i) multiply(product(i));
    } else {
      parallel_ranges(batch, std::max<int64_t>(1, least_work / std::max<int64_t>(1, m * n * k)),
                      [&](int64_t begin, int64_t end) {
                        PackBuffers<T> own(blocking);
                        for (int64_t i = begin; i < end; ++i)
                          compute_chunk(product(i), 0, nullptr, nullptr, own);
                      });
    }
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
