#pragma once
// Rows of dense tensors, each read by a group of threads: unaligned ends element by element, the
// rest in packs of 16 bytes, several in flight. A row that fits in registers is read once.

#include <algorithm>
#include <tuple>

#include "kernels/cuda/thread_group.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
using namespace internal;

// a / b, in 32 bits if both fit.
MIXTAPE_HD inline int64_t quotient(int64_t a, int64_t b) {
  return (uint64_t(a) | uint64_t(b)) >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}

// --- vectorised access: `count` neighbours, in accesses of at most 16 bytes ---

template <int count, class S>
inline constexpr int elements_at_once = std::min(count, int(16 / sizeof(S)));

template <int count, class S>
MIXTAPE_HD bool is_aligned(const S* p) {
  return reinterpret_cast<uintptr_t>(p) % (elements_at_once<count, S> * sizeof(S)) == 0;
}
template <int count, class P, class S>  // P: a pointer to S in any memory
__device__ void load_vec(P p, bool aligned, S (&v)[count]) {
  constexpr int n = elements_at_once<count, S>;
  if (!aligned) {
#pragma unroll
    for (int i = 0; i < count; ++i) v[i] = p[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < count; i += n) {
    const auto pack = gpu::load_as<gpu::Pack<S, n>>(p + i);
#pragma unroll
    for (int e = 0; e < n; ++e) v[i + e] = pack.v[e];
  }
}
template <int count, class T, class O>
__device__ void store_vec(O* p, bool aligned, const T (&v)[count]) {
  constexpr int n = elements_at_once<count, O>;
  if (!aligned) {
#pragma unroll
    for (int i = 0; i < count; ++i) p[i] = gpu::round_to<O>(v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < count; i += n) {
    gpu::Pack<O, n> pack;
#pragma unroll
    for (int e = 0; e < n; ++e) pack.v[e] = gpu::round_to<O>(v[i + e]);
    gpu::store_global(p + i, pack);
  }
}

// --- parameters: their dtype is known at run time only ---

// Calls f with `data` as a pointer to its dtype: one that is computed in T, or f32.
template <class T, class F>
MIXTAPE_HD auto with_type(void* data, DType t, F f) {
  if constexpr (std::is_same_v<T, double>) {
    if (t == f64) return f(static_cast<double*>(data));
  } else {
    if (t == f16) return f(static_cast<Half*>(data));
    if (t == bf16) return f(static_cast<BFloat16*>(data));
  }
  return f(static_cast<float*>(data));
}

// An optional vector that is computed in T; its elements are `step` apart in memory.
template <class T>
struct Parameter {
  void* data = nullptr;
  DType dtype = f32;
  int64_t step = 1;

  Parameter() = default;
  Parameter(const View& v) : data(v.data), dtype(v.dtype) {
    if (v && !v.layout.is_contiguous()) step = v.strides()[-1];
  }
  MIXTAPE_HD explicit operator bool() const { return data != nullptr; }

  __device__ T operator[](int64_t i) const {
    return with_type<T>(data, dtype, [&](auto* p) { return T(gpu::widen(p[i * step])); });
  }
  // v = elements i, i + 1, ... of a vector that begins at element `first` of the data
  template <int count>
  __device__ void load(int64_t first, int64_t i, T (&v)[count]) const {
    if (step == 1) return load_dense(first + i, v);
    with_type<T>(data, dtype, [&](auto* all) {
      const auto* const p = all + first + i * step;
#pragma unroll
      for (int e = 0; e < count; ++e) v[e] = T(gpu::widen(p[e * step]));
    });
  }
  template <int count>
  __device__ void load_dense(int64_t i, T (&v)[count]) const {
    with_type<T>(data, dtype, [&]<class S>(S* all) {
      const S* const p = all + i;
      S raw[count];
      load_vec(p, is_aligned<count>(p), raw);
#pragma unroll
      for (int e = 0; e < count; ++e) v[e] = T(gpu::widen(raw[e]));
    });
  }
  // v = element i of a dense vector `left` times, then each of those that follow `times` times
  template <int count>
  __device__ void repeat(int64_t i, int64_t left, int64_t times, T (&v)[count]) const {
    with_type<T>(data, dtype, [&](auto* p) {
      T last = T(gpu::widen(p[i]));
#pragma unroll
      for (int e = 0; e < count; ++e) {
        if (e == left) {
          last = T(gpu::widen(p[++i]));
          left += times;
        }
        v[e] = last;
      }
    });
  }
  __device__ void set(int64_t i, T x) const {
    with_type<T>(data, dtype, [&]<class S>(S* p) { p[i * step] = gpu::round_to<S>(x); });
  }
};

// A tensor that a kernel writes, of one of the types O, the smallest first. All threads branch by
// it, so that it is no reason for one more kernel.
template <class... O>
struct Output {
  using Smallest = std::tuple_element_t<0, std::tuple<O...>>;
  void* data;
  DType dtype;

  Output(const View& v) : data(v.data), dtype(v.dtype) {}
  // Calls f with `data` as a pointer to its type.
  template <class F>
  __device__ void visit(F f) const {
    if constexpr (sizeof...(O) > 1)
      if (dtype != dtype_of<Smallest>())
        return f(static_cast<std::tuple_element_t<1, std::tuple<O...>>*>(data));
    f(static_cast<Smallest*>(data));
  }
  template <class T>
  __device__ void set(int64_t i, T x) const {
    visit([&]<class S>(S* p) { p[i] = gpu::round_to<S>(x); });
  }
};
// The Output for O beside inputs of S: of all types for which packs have the same width.
template <class S, class O>
using OutputOf = std::conditional_t<
    sizeof(S) == 2, Output<S, float>,
    std::conditional_t<sizeof(S) == 4 && sizeof(O) == 2, Output<Half, BFloat16>, Output<O>>>;

// --- sums over a group ---

template <class T, int n>
struct Sums {
  T v[n] = {};
  __device__ static Sums joined(Sums a, const Sums& b) {
#pragma unroll
    for (int i = 0; i < n; ++i) a.v[i] += b.v[i];
    return a;
  }
};

// The sum of v over a group, for all of its threads.
template <class V>
__device__ V joined(ThreadGroup& group, const V& v) {
  return group.join(v, V::joined, V());
}

// The count of some numbers, their mean, and the sum of squared deviations from it (Chan, Golub and
// LeVeque 1979). Means of numbers far from zero lose digits: subtract one of the numbers.
template <class T>
struct Moments {
  T count = T(0), mean = T(0), squares = T(0);

  __device__ static Moments joined(const Moments& a, const Moments& b) {
    const T count = a.count + b.count, share = count > T(0) ? b.count / count : T(0);
    const T between = b.mean - a.mean;
    return {count, a.mean + between * share,
            a.squares + b.squares +
                between * (between * (a.count * share))};  // 0 if both are empty, not NaN
  }
  // Adds x - origin. Without `centered`, squares are around 0 and the mean stays 0.
  template <class S, int n>
  __device__ void add(const S (&x)[n], T origin, bool centered = true) {
    Moments more;
    more.count = T(n);
    if (centered) {
#pragma unroll
      for (int i = 0; i < n; ++i) more.mean += gpu::widen(x[i]) - origin;
      more.mean *= T(1) / T(n);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const T d = gpu::widen(x[i]) - origin - more.mean;
      more.squares += d * d;
    }
    *this = joined(*this, more);
  }
  __device__ T var() const { return squares / count; }
  // True if f32 holds the squares, or eps hides what it lost.
  __device__ bool in_range(T eps) const { return squares_in_range(var() + eps); }
};

// --- rows ---

// The number of elements in a pack, which is 16 bytes of the smallest type, and the number of packs
// of each input that a thread caches: at most 128 bytes in all.
template <class Out, class... In>
struct Packing {
  static constexpr int width = int(16 / std::min({sizeof(Out), sizeof(In)...}));
  static constexpr int packs = std::clamp(int(128 / (width * (sizeof(In) + ...))), 1, 4);
};

// Rows of n elements, each for a group of threads. They are `stride` apart in tensors.
struct Rows {
  int64_t count, n;
  int group_size;
  int64_t stride;
};

// A thread's share of a row of S: packs as in memory, with two 16-bit elements to a register.
template <class S, int width, int packs>
struct CachedRow {
  static constexpr int words = int(width * sizeof(S) / 4);
  const S* from;  // the first element of the row
  bool aligned;
  unsigned pack[packs][words];
  S edge[1];
};
// The elements of a pack.
template <class S, int n>
struct Elements {
  S v[n];
  Elements() = default;
  template <int words>
  __device__ explicit Elements(const unsigned (&pack)[words]) {
    static_assert(sizeof pack == sizeof v);
    memcpy(v, pack, sizeof v);
  }
};

// A thread's view of a row: one in group_size packs, and at most one element of unaligned ends.
template <class Packing>
class GroupRow {
  static constexpr int width = Packing::width, packs = Packing::packs;
  static constexpr bool is_wide = width == 2;  // all elements have 8 bytes

 public:
  // The row of n elements that begins at element `first` of its tensors.
  __device__ GroupRow(const ThreadGroup& group, int64_t first, int64_t n)
      : group_size_(group.size), index_(group.index), first_(first) {
    const int past = int(first % width);
    head_ = past == 0 ? 0 : int(std::min<int64_t>(n, width - past));
    count_ = needed_ = int((n - head_) / width);
    const int64_t begin = head_ + int64_t(count_) * width;
    edge_ = index_ < head_ ? index_ : index_ - head_ < n - begin ? begin + index_ - head_ : -1;
  }
  // Elements from the n-th on are not loaded: for_each() passes whatever is in the registers.
  __device__ void limit(int64_t n) {
    needed_ = int(std::min<int64_t>(count_, ceil_div(n - head_, width)));
  }

  // This row of a tensor, as much of it as the registers hold.
  template <class S>
  __device__ CachedRow<S, width, packs> load(const S* tensor) const {
    CachedRow<S, width, packs> row;
    row.from = tensor + first_;
    row.aligned = is_aligned<width>(tensor);
    if (edge_ >= 0) row.edge[0] = row.from[edge_];
    if constexpr (!is_wide) load_packs(row, index_);
    return row;
  }
  // f(column, elements of each row from there on) for this thread's share.
  template <class F, class... S>
  __device__ void for_each(F f, CachedRow<S, width, packs>&... rows) const {
    if constexpr (is_wide) {
      for_each_again(f, rows...);
    } else {
      for (int done = 0; done < count_; done += group_size_ * packs) {
        if (count_ > group_size_ * packs) (load_packs(rows, done + index_), ...);
#pragma unroll
        for (int v = 0; v < packs; ++v) {
          const int p = done + index_ + v * group_size_;
          if (p < count_) f(column(p), Elements<S, width>(rows.pack[v]).v...);
        }
      }
      if (edge_ >= 0) f(edge_, rows.edge...);
    }
  }
  // The same of what is in memory, by one copy of f for all packs: of rows of f64, and for what is
  // rare.
  template <class F, class... S>
  __device__ void for_each_again(F f, const CachedRow<S, width, packs>&... rows) const {
#pragma unroll 1
    for (int p = index_; p < count_; p += group_size_) f(column(p), read_pack(rows, p).v...);
    if (edge_ >= 0) f(edge_, rows.edge...);
  }
  // Stores v, rounded to O, from a column of this row of a tensor on.
  template <class O, class T, int count>
  __device__ void store(O* tensor, int64_t column, const T (&v)[count]) const {
    store_vec(tensor + first_ + column, count > 1 && is_aligned<width>(tensor), v);
  }
  template <class... O, class T, int count>
  __device__ void store(const Output<O...>& to, int64_t column, const T (&v)[count]) const {
    to.visit([&](auto* tensor) { store(tensor, column, v); });
  }

 private:
  __device__ int64_t column(int p) const { return head_ + int64_t(p) * width; }
  template <class S>
  __device__ Elements<S, width> read_pack(const CachedRow<S, width, packs>& row, int p) const {
    Elements<S, width> elements;
    if (p < needed_) load_vec(row.from + column(p), row.aligned, elements.v);
    return elements;
  }
  template <class S>
  __device__ void load_packs(CachedRow<S, width, packs>& row, int from) const {
    const auto load_all = [&](bool aligned) {
#pragma unroll
      for (int v = 0; v < packs; ++v) {
        const int p = from + v * group_size_;
        if (p >= needed_) continue;
        S elements[width];
        load_vec(row.from + column(p), aligned, elements);
        memcpy(row.pack[v], elements, sizeof elements);
      }
    };
    if (row.aligned)
      load_all(true);
    else
      load_all(false);
  }

  int group_size_, index_, head_, count_, needed_;  // count_, needed_: packs
  int64_t first_, edge_;
};

// The group of this thread and its row, which is empty if there are more groups than rows.
struct RowGroup {
  ThreadGroup group;
  int64_t index;       // of the row
  bool exists, leads;  // leads: this thread writes the results of the row

  __device__ explicit RowGroup(const Rows& rows)
      : group(rows.group_size),
        index(int64_t(gpu::block().x) * (int(gpu::block_size().x) / rows.group_size) +
              int(gpu::thread().x) / rows.group_size),
        exists(index < rows.count),
        leads(exists && group.index == 0) {}
};
template <class Packing>
struct RowTask : RowGroup, GroupRow<Packing> {
  __device__ explicit RowTask(const Rows& rows)
      : RowGroup(rows),
        GroupRow<Packing>(group, exists ? index * rows.stride : 0, exists ? rows.n : 0) {}
};

inline constexpr int most_threads = 512;  // of a block that works on one row
#define MIXTAPE_ROW_KERNEL __global__ __launch_bounds__(most_threads, 1) void

// The number of threads for a row of n: part of a warp while its lanes can cache the row.
template <class Packing>
int group_size_for(int64_t n) {
  const int64_t packs = n / Packing::width;
  const int warp = gpu::warp_size;
  if (packs <= warp * Packing::packs) {
    int size = n % Packing::width == 0 ? 1 : 2 * Packing::width;  // the ends need a thread each
    while (size < warp && size < packs) size *= 2;
    return std::min(size, warp);
  }
  const int64_t warps = ceil_div(packs, warp * Packing::packs);
  return int(std::min<int64_t>(warps * warp, most_threads));
}

// kernel(rows, a...) for rows of n, `stride` apart.
template <class Packing, class... P, class... A>
void launch_strided_rows(Launch& launch, const char* name, int64_t count, int64_t n, int64_t stride,
                         void (*kernel)(Rows, P...), const A&... a) {
  if (count == 0) return;
  const int size = group_size_for<Packing>(n), groups = size > gpu::warp_size ? 1 : 128 / size;
  gpu::launch({name,
               {unsigned(ceil_div(count, groups)), 1, 1},
               {unsigned(groups * size), 1, 1},
               size > gpu::warp_size ? ThreadGroup::shared_bytes : 0},
              launch.stream, kernel, Rows{count, n, size, stride}, a...);
}
template <class Packing, class... P, class... A>
void launch_rows(Launch& launch, const char* name, int64_t count, int64_t n,
                 void (*kernel)(Rows, P...), const A&... a) {
  launch_strided_rows<Packing>(launch, name, count, n, n, kernel, a...);
}

}  // namespace mixtape::kernels::cuda
