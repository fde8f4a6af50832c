// Indexing along one dimension, in the order of the CPU. If several positions scatter to one
// target, the largest wins. scatter_reduce sorts the index, once for all elements that share an
// index entry (a row of an embedding), and then adds or compares the values of each target in
// order.

#include "kernels/common/scatter.h"
#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/cuda/index/sort.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// (The host reports an index out of range after these kernels ran (core/readback.h); here it
// becomes 0, so that they access no foreign memory.)
MIXTAPE_HD inline int64_t within(int64_t index, int64_t size) {
  return uint64_t(index) < uint64_t(size) ? index : 0;
}

// Layouts of the index's shape: for the operand that is indexed (with stride 0 along dim, where the
// index counts in steps of `step` elements), the index and the other operand; then for the claims
// of scatter and the position along dim.
struct Operands {
  Layout indexed, index, other, claims, position;
  int64_t size, step, claim_count;

  Operands(int dim, In a, In i, In o)
      : indexed(i.shape(), a.strides()),
        index(i.layout),
        other(i.shape(), o.strides()),
        claims(i.shape(), i.shape()),
        position(i.shape(), i.shape()),
        size(a.shape()[dim]),
        step(a.strides()[dim]),
        claim_count(size) {
    indexed.strides[dim] = 0;
    for (int d = 0; d < i.layout.rank(); ++d) {
      position.strides[d] = d == dim;
      claims.strides[d] = 0;
      if (d == dim || index.strides[d] == 0) continue;
      claims.strides[d] = claim_count;
      claim_count *= index.shape[d];
    }
  }
  // Groups elements that share an index entry into words of up to `most`; returns the group size.
  template <class... P>
  int group(int64_t most, const P*... data) {
    Layout* const all[] = {&indexed, &index, &other, &claims, &position};
    collapse(all);
    const bool whole = index.strides[-1] == 0 && position.strides[-1] == 0 &&
                       indexed.strides[-1] == 1 && other.strides[-1] == 1;
    int64_t n = whole ? most : 1;
    const auto fits = [&](int64_t x) {
      while (x % n != 0) n /= 2;
    };
    fits(indexed.shape[-1]);
    fits(step);
    for (int d = 0; d + 1 < indexed.rank(); ++d) {
      fits(indexed.strides[d]);
      fits(other.strides[d]);
    }
    for (const uintptr_t address : {reinterpret_cast<uintptr_t>(data)...})
      while (address % uintptr_t(16 / most * n) != 0) n /= 2;
    for (Layout* l : all) l->shape[-1] /= n;
    for (Layout* l : {&indexed, &other})
      for (int d = 0; d + 1 < l->rank(); ++d) l->strides[d] /= n;
    step /= n;
    return int(n);
  }
};

// Calls f.operator()<Word>() with a type of `bytes` bytes.
template <class F>
void with_word(size_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    case 8:
      return f.template operator()<uint64_t>();
    default:
      return f.template operator()<gpu::Pack<uint64_t, 2>>();
  }
}

template <class Word>
__global__ void gather_words(Walk<3> walk, int64_t count, int64_t size, int64_t step, const Word* x,
                             const int64_t* index, Word* y) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    int64_t at[3];
    walk.find(i, at);
    gpu::store_global(y + at[2], gpu::load_as<Word>(x + at[0] + within(index[at[1]], size) * step));
  }
}

// claims[target] = the largest position with that index.
__global__ void claim_targets(Walk<3> walk, int64_t count, int64_t size, const int64_t* index,
                              int* claims) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    int64_t at[3];
    walk.find(i, at);
    gpu::atomic_max(claims + at[1] + within(index[at[0]], size), int(at[2]));
  }
}
template <class Word>
__global__ void scatter_words(Walk<5> walk, int64_t count, int64_t size, int64_t step,
                              const int* claims, const int64_t* index, const Word* x, Word* y) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    int64_t at[5];
    walk.find(i, at);
    const int64_t target = within(index[at[1]], size);
    if (claims[at[3] + target] == at[4])
      gpu::store_global(y + at[0] + target * step, gpu::load_as<Word>(x + at[2]));
  }
}

// --- scatter_reduce ---

// One thread per line of the index. Operand 0 is y, 1 the index, 2 x.
template <class F, class S, class T>
__global__ void reduce_lines(Walk<3> lines, int64_t count, int64_t n, int64_t size, int64_t step,
                             int64_t along_index, int64_t along_x, const int64_t* index, const S* x,
                             T* y) {
  for (int64_t line = gpu::global_thread(); line < count; line += gpu::all_threads()) {
    int64_t at[3];
    lines.find(line, at);
    const auto target = [&](int64_t i) { return within(index[at[1] + i * along_index], size); };
    const auto term = [&](int64_t i) { return gpu::widen(x[at[2] + i * along_x]); };
    uint32_t met_before = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (met_before >> i & 1) continue;
      T* const to = y + at[0] + target(i) * step;
      T all = met<F>(*to, term(i));
      if constexpr (leaves_f32<F, T>)
        if (all - all != T(0)) {  // not finite: goes on in f64 with the terms that follow
          double wide = *to;
          for (int64_t k = i; k < n; ++k)
            if (target(k) == target(i)) wide += term(k), met_before |= 1u << k;
          all = T(wide);
        }
      *to = all;
    }
  }
}

struct FromKeys {
  const uint32_t* keys;
  int64_t n;
  template <class K>
  __device__ void operator()(int64_t row, int i, K& key, uint32_t& at) const {
    key = keys[row * n + i];
    at = uint32_t(i);
  }
};
__global__ void write_keys(Walk<1> walk, int64_t count, int64_t size, const int64_t* index,
                           uint32_t* keys) {
  for (int64_t i = gpu::global_thread(); i < count; i += gpu::all_threads()) {
    int64_t at[1];
    walk.find(i, at);
    keys[i] = uint32_t(within(index[at[0]], size));
  }
}

// A sorted index: `lines` lines of n keys; `inner` elements share an entry. Operand 0 is y, 1 x.
struct SortedIndex {
  const uint32_t *keys, *at;
  int64_t lines, n, inner, step, along;
  Walk<2> of_line, of_inner;
};
// Threads down: positions in the sorted lines; the thread at the first of equal keys takes all of
// their values together, in Sum. Threads across: the elements that share the entry, `pack` at a
// time.
template <class F, class S, class T, class Sum, int pack>
__global__ void reduce_segments(SortedIndex r, const S* x, T* y) {
  const int64_t position = int64_t(gpu::block().x) * gpu::block_size().y + gpu::thread().y;
  if (position >= r.lines * r.n) return;
  const int64_t line = position / r.n, first = position % r.n;
  const uint32_t* const keys = r.keys + line * r.n;
  const uint32_t* const at = r.at + line * r.n;
  const uint32_t key = keys[first];
  if (first > 0 && keys[first - 1] == key) return;
  int64_t base[2];
  r.of_line.find(line, base);
  const int64_t across = int64_t(gpu::grid_size().y) * gpu::block_size().x;
  for (int64_t e = int64_t(gpu::block().y) * gpu::block_size().x + gpu::thread().x;
       e < r.inner / pack; e += across) {
    int64_t beside[2];
    r.of_inner.find(e * pack, beside);
    T* const to = y + base[0] + beside[0] + int64_t(key) * r.step;
    const S* const from = x + base[1] + beside[1];
    using In = gpu::Pack<S, pack>;
    using Out = gpu::Pack<T, pack>;
    const Out begun = gpu::load_as<Out>(to);
    Out out;
    Sum sum[pack];
#pragma unroll
    for (int p = 0; p < pack; ++p) sum[p] = begun.v[p];
    constexpr int ahead = 4;  // loads in flight together
    for (int64_t i = first;; i += ahead) {
      bool same[ahead];
      In v[ahead];
#pragma unroll
      for (int k = 0; k < ahead; ++k) {
        same[k] = i + k < r.n && keys[i + k] == key;
        if (same[k]) v[k] = gpu::load_as<In>(from + int64_t(at[i + k]) * r.along);
      }
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (same[k]) {
#pragma unroll
          for (int p = 0; p < pack; ++p) sum[p] = met<F>(sum[p], gpu::widen(v[k].v[p]));
        }
      if (!same[ahead - 1]) break;
    }
#pragma unroll
    for (int p = 0; p < pack; ++p) {
      out.v[p] = T(sum[p]);
      if constexpr (leaves_f32<F, Sum>)
        if (out.v[p] - out.v[p] != T(0)) {
          double wide = begun.v[p];
          for (int64_t i = first; i < r.n && keys[i] == key; ++i)
            wide += gpu::widen(from[int64_t(at[i]) * r.along + p]);
          out.v[p] = T(wide);
        }
    }
    gpu::store_global(to, out);
  }
}

// Sorts each line of the index along dim.
SortedIndex sorted_index(Launch& launch, int dim, In index, In x, In y) {
  Layout lines_of_y, lines_of_x, inner_of_y, inner_of_x, names;
  const auto append = [](Layout& l, int64_t size, int64_t stride) {
    l.shape.push_back(size);
    l.strides.push_back(stride);
  };
  for (int d = 0; d < index.layout.rank(); ++d) {
    const int64_t size = index.shape()[d];
    if (d == dim || size == 1) continue;
    const bool whole = index.strides()[d] == 0;
    append(whole ? inner_of_y : lines_of_y, size, y.strides()[d]);
    append(whole ? inner_of_x : lines_of_x, size, x.strides()[d]);
    if (!whole) append(names, size, index.strides()[d]);
  }
  const int64_t n = index.shape()[dim], lines = lines_of_y.shape.size();
  append(names, n, index.strides()[dim]);
  collapse(std::array{&lines_of_y, &lines_of_x});
  collapse(std::array{&inner_of_y, &inner_of_x});

  uint32_t* const keys = launch.scratch<uint32_t>(lines * n);
  gpu::launch_over(launch, "write_keys", lines * n, write_keys, walk_of<1>({&names}), lines * n,
                   y.shape()[dim], index.as<const int64_t>(), keys);
  Sorted<uint32_t> sorted{launch.scratch<uint32_t>(lines * n), launch.scratch<uint32_t>(lines * n),
                          n};
  if (n <= bitonic_most) {
    launch_bitonic<uint32_t>(launch, lines, n, n, FromKeys{keys, n}, sorted);
  } else {
    const uint64_t largest = uint64_t(std::max<int64_t>(1, y.shape()[dim] - 1));
    sorted = radix_sort(launch, keys, lines, n, int(std::bit_width(largest)));
  }
  return {sorted.keys,
          sorted.at,
          lines,
          n,
          inner_of_y.shape.size(),
          y.strides()[dim],
          x.strides()[dim],
          walk_of<2>({&lines_of_y, &lines_of_x}),
          walk_of<2>({&inner_of_y, &inner_of_x})};
}

template <class F, class S, class T, class Sum>
void reduce_sorted(Launch& launch, int dim, In index, In x, In y) {
  const SortedIndex r = sorted_index(launch, dim, index, x, y);
  constexpr int most = int(16 / std::max(sizeof(S), sizeof(T)));
  bool packed = r.of_inner.rank == 1 && r.of_inner.stride[0][0] == 1 &&
                r.of_inner.stride[1][0] == 1 && r.inner % most == 0 && r.step % most == 0 &&
                r.along % most == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                reinterpret_cast<uintptr_t>(y.data) % 16 == 0;
  // (The walk over no lines has a stride of 1, which is never used.)
  for (int d = 0; d < r.of_line.rank && r.lines > 1; ++d)
    for (int k = 0; k < 2; ++k) packed = packed && r.of_line.stride[k][d] % most == 0;
  const int64_t across = packed ? r.inner / most : r.inner;
  unsigned wide = 1;
  while (wide < 32 && wide < across) wide *= 2;
  const unsigned down = 256 / wide;
  const gpu::Index3 blocks{unsigned(ceil_div(r.lines * r.n, down)),
                           unsigned(std::min<int64_t>(ceil_div(across, wide), 65535)), 1};
  gpu::launch({"reduce_segments", blocks, {wide, down, 1}}, launch.stream,
              packed ? reduce_segments<F, S, T, Sum, most> : reduce_segments<F, S, T, Sum, 1>, r,
              x.as<const S>(), y.as<T>());
}

template <class F, class S, class T>
void reduce_unsorted(Launch& launch, int dim, In index, In x, In y) {
  Layout of_y(index.shape(), y.strides()), of_index = index.layout,
                                           of_x(index.shape(), x.strides());
  for (Layout* l : {&of_y, &of_index, &of_x}) l->shape[dim] = 1;
  collapse(std::array{&of_y, &of_index, &of_x});
  const int64_t lines = of_y.shape.size();
  gpu::launch_over(launch, "reduce_lines", lines, reduce_lines<F, S, T>,
                   walk_of<3>({&of_y, &of_index, &of_x}), lines, index.shape()[dim], y.shape()[dim],
                   y.strides()[dim], index.strides()[dim], x.strides()[dim],
                   index.as<const int64_t>(), x.as<const S>(), y.as<T>());
}

// --- the indices of true elements ---

constexpr int64_t mask_tile = 2048;
constexpr int mask_of_thread = int(mask_tile) / sort_threads;

__device__ inline int count_set(const uint8_t* mask, int64_t begin, int64_t n, bool (&set)[8]) {
  int count = 0;
#pragma unroll
  for (int k = 0; k < mask_of_thread; ++k) {
    set[k] = begin + k < n && mask[begin + k] != 0;
    count += set[k];
  }
  return count;
}
__global__ void count_true(const uint8_t* mask, int64_t n, int64_t* counts) {
  bool set[mask_of_thread];
  const int64_t begin = (int64_t(gpu::block().x) * sort_threads + gpu::thread().x) * mask_of_thread;
  const Before<int> before = sum_before(count_set(mask, begin, n, set), gpu::shared_memory<int>());
  if (gpu::thread().x == 0) counts[gpu::block().x] = before.total;
}
__global__ void write_true(const uint8_t* mask, int64_t n, const int64_t* offsets, Walk<1> walk,
                           int64_t* index) {
  bool set[mask_of_thread];
  const int64_t begin = (int64_t(gpu::block().x) * sort_threads + gpu::thread().x) * mask_of_thread;
  const Before<int> before = sum_before(count_set(mask, begin, n, set), gpu::shared_memory<int>());
  const int rank = walk.rank;
  int64_t* to = index + (offsets[gpu::block().x] + before.sum) * rank;
  for (int k = 0; k < mask_of_thread; ++k) {
    if (!set[k]) continue;
    int64_t rest = begin + k;
    for (int d = rank - 1; d >= 0; --d) {
      to[d] = rest % walk.size[d];
      rest /= walk.size[d];
    }
    to += rank;
  }
}

}  // namespace

void gather(Launch& launch, int dim, In x, In index, Out y) {
  if (y.size() == 0) return;
  Operands o(dim, x, index, y);
  const size_t bytes = size_of(y.dtype);
  const int n = o.group(int64_t(16 / bytes), x.as<char>(), y.as<char>());
  const int64_t count = o.index.shape.size();
  with_word(bytes * size_t(n), [&]<class Word>() {
    gpu::launch_over(launch, "gather", count, gather_words<Word>,
                     walk_of<3>({&o.indexed, &o.index, &o.other}), count, o.size, o.step,
                     x.as<const Word>(), index.as<const int64_t>(), y.as<Word>());
  });
}

void scatter(Launch& launch, int dim, In index, In x, Out y) {
  if (index.size() == 0) return;
  Operands o(dim, y, index, x);
  int* const claims = launch.scratch<int>(o.claim_count);
  fill(launch, -1, View{claims, i32, Layout({o.claim_count})});
  Layout names = o.index, of_claims = o.claims, positions = o.position;
  for (int d = 0; d < names.rank(); ++d)  // elements that share an entry are claimed once
    if (d != dim && names.strides[d] == 0)
      for (Layout* l : {&names, &of_claims, &positions}) l->shape[d] = 1;
  collapse(std::array{&names, &of_claims, &positions});
  const int64_t claimed = names.shape.size();
  gpu::launch_over(launch, "claim_targets", claimed, claim_targets,
                   walk_of<3>({&names, &of_claims, &positions}), claimed, o.size,
                   index.as<const int64_t>(), claims);
  const size_t bytes = size_of(y.dtype);
  const int n = o.group(int64_t(16 / bytes), x.as<char>(), y.as<char>());
  const int64_t count = o.index.shape.size();
  with_word(bytes * size_t(n), [&]<class Word>() {
    gpu::launch_over(launch, "scatter", count, scatter_words<Word>,
                     walk_of<5>({&o.indexed, &o.index, &o.other, &o.claims, &o.position}), count,
                     o.size, o.step, static_cast<const int*>(claims), index.as<const int64_t>(),
                     x.as<const Word>(), y.as<Word>());
  });
}

void scatter_reduce(Launch& launch, Reduce op, int dim, In index, In x, Out y) {
  if (index.size() == 0) return;
  const auto run = [&]<class F, class S>() {
    using T = math_t<S>;
    using Wide = std::conditional_t<std::is_same_v<F, Add> && std::is_same_v<T, float>, double, T>;
    if (index.shape()[dim] <= few_indices)
      reduce_unsorted<F, S, T>(launch, dim, index, x, y);
    else if (sums_in_f64(dim, index, y))
      reduce_sorted<F, S, T, Wide>(launch, dim, index, x, y);
    else
      reduce_sorted<F, S, T, T>(launch, dim, index, x, y);
  };
  visit_meeting(op, [&]<class F>() {
    visit(x.dtype, [&]<class S>() {
      if constexpr (!std::is_same_v<S, bool>) run.template operator()<F, S>();
    });
  });
}

void bounds(Launch& launch, In x, Out low_high) {
  Shape one;
  for (int d = 0; d < x.layout.rank(); ++d) one.push_back(1);
  int64_t* const to = low_high.as<int64_t>();
  reduce(launch, Reduce::Min, x, View{to, i64, Layout(one)});
  reduce(launch, Reduce::Max, x, View{to + low_high.strides()[0], i64, Layout(one)});
}

void nonzero(Launch& launch, In mask, Out index) {
  const int64_t n = mask.size(), tiles = ceil_div(n, mask_tile);
  if (index.size() == 0) return;
  int64_t* const counts = launch.scratch<int64_t>(tiles);
  const gpu::Index3 blocks{unsigned(tiles), 1, 1}, threads{sort_threads, 1, 1};
  gpu::launch({"count_true", blocks, threads, 64}, launch.stream, count_true,
              mask.as<const uint8_t>(), n, counts);
  launch_offsets(launch, counts, 1, tiles);
  gpu::launch({"write_true", blocks, threads, 64}, launch.stream, write_true,
              mask.as<const uint8_t>(), n, static_cast<const int64_t*>(counts),
              walk_of<1>({&mask.layout}), index.as<int64_t>());
}

}  // namespace mixtape::kernels::cuda
