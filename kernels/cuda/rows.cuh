#pragma once
// Rows of dense tensors, each read by a team: unaligned ends element by element, the rest in packs
// of 16 bytes, several in flight. A row that fits in the team's registers stays there and is read
// once; a longer one is read again in each pass over it.

#include <algorithm>

#include "core/dtype.h"
#include "kernels/cuda/thread_group.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

// a / b, in 32 bits where both have no more.
MIXTAPE_HD inline int64_t quotient(int64_t a, int64_t b) {
  return (uint64_t(a) | uint64_t(b)) >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}

// --- runs of a few elements, in pieces of at most 16 bytes ---

template <int count, class S>
inline constexpr int piece = std::min(count, int(16 / sizeof(S)));

template <int count, class S>
MIXTAPE_HD bool at_once(const S* p) {  // whether an address allows whole pieces
  return reinterpret_cast<uintptr_t>(p) % (piece<count, S> * sizeof(S)) == 0;
}
template <int count, class P, class S>  // P: a pointer to S, of any memory
__device__ void load_run(P p, bool whole, S (&v)[count]) {
  constexpr int n = piece<count, S>;
  if (!whole) {
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
__device__ void store_run(O* p, bool whole, const T (&v)[count]) {
  constexpr int n = piece<count, O>;
  if (!whole) {
#pragma unroll
    for (int i = 0; i < count; ++i) p[i] = gpu::narrow<O>(v[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < count; i += n) {
    gpu::Pack<O, n> pack;
#pragma unroll
    for (int e = 0; e < n; ++e) pack.v[e] = gpu::narrow<O>(v[i + e]);
    gpu::store_as(p + i, pack);
  }
}

// --- parameters: their dtype is asked for at run time ---

// f(pointer) of the type that `data` has: one that is computed in T, or f32.
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

// Numbers that are computed in T, `step` apart in memory; what is absent has none.
template <class T>
struct Parameter {
  void* data = nullptr;
  DType dtype = f32;
  int64_t step = 1;

  Parameter() = default;
  explicit Parameter(const View& v) : data(v.data), dtype(v.dtype) {
    if (v && !v.layout.is_contiguous()) step = v.strides()[-1];
  }
  MIXTAPE_HD explicit operator bool() const { return data != nullptr; }

  __device__ T operator[](int64_t i) const {
    return with_type<T>(data, dtype, [&](auto* p) { return T(gpu::widen(p[i * step])); });
  }
  // v = the run that begins at i, of numbers that begin at `first` in memory
  template <int count>
  __device__ void load(int64_t first, int64_t i, T (&v)[count]) const {
    with_type<T>(data, dtype, [&]<class S>(S* all) {
      const S* const p = all + first + i * step;
      if (step == 1) {
        S raw[count];
        load_run(p, at_once<count>(p), raw);
#pragma unroll
        for (int e = 0; e < count; ++e) v[e] = T(gpu::widen(raw[e]));
      } else {
#pragma unroll
        for (int e = 0; e < count; ++e) v[e] = T(gpu::widen(p[e * step]));
      }
    });
  }
  // v[e] = that at index(e), of which all are the same one or not
  template <int count, class Index>
  __device__ void gather(Index index, bool one, T (&v)[count]) const {
    with_type<T>(data, dtype, [&](auto* p) {
      T last = T(gpu::widen(p[index(0) * step]));
#pragma unroll
      for (int e = 0; e < count; ++e) {
        if (e > 0 && !one) last = T(gpu::widen(p[index(e) * step]));
        v[e] = last;
      }
    });
  }
  __device__ void set(int64_t i, T x) const {
    with_type<T>(data, dtype, [&]<class S>(S* p) { p[i * step] = gpu::narrow<S>(x); });
  }
};

// --- rows ---

// How many elements a pack has, so that it is 16 bytes of the narrowest type, and how many packs of
// each of its inputs a thread keeps: at most 128 bytes of all.
template <class Out, class... In>
struct Fit {
  static constexpr int width = int(16 / std::min({sizeof(Out), sizeof(In)...}));
  static constexpr int packs = std::clamp(int(128 / (width * (sizeof(In) + ...))), 1, 4);
};

// Rows of n elements, and how many threads make a team for each.
struct Rows {
  int64_t count, n;
  int team;
};

// What a thread holds of a row of S: packs as they are in memory, two narrow elements to a
// register.
template <class S, int width, int packs>
struct Kept {
  static constexpr int words = int(width * sizeof(S) / 4);
  const S* from;  // where the row begins
  bool whole;
  unsigned pack[packs][words];
  S edge[1];
};
// A pack's elements.
template <class S, int n>
struct Elements {
  S v[n];
  template <int words>
  __device__ explicit Elements(const unsigned (&pack)[words]) {
    static_assert(sizeof pack == sizeof v);
    memcpy(v, pack, sizeof v);
  }
};

// A row as one of its team sees it: every so many packs, and at most one element of the ends.
template <int width, int packs>
class Row {
 public:
  // The row that begins at element `first` of its tensors; of it, up to `wanted` are ever looked
  // at.
  __device__ Row(const ThreadGroup& team, int64_t first, int64_t n, int64_t wanted)
      : team_(team.size), index_(team.index), first_(first) {
    const int past = int(first % width);
    head_ = past == 0 ? 0 : int(std::min<int64_t>(n, width - past));
    count_ = int((n - head_) / width);
    wanted_ = int(std::min<int64_t>(count_, ceil_div(wanted - head_, width)));
    const int64_t begin = head_ + int64_t(count_) * width;
    edge_ = index_ < head_ ? index_ : index_ - head_ < n - begin ? begin + index_ - head_ : -1;
  }
  __device__ Row(const ThreadGroup& team, int64_t first, int64_t n) : Row(team, first, n, n) {}

  // This row of a tensor, as far as it can be kept.
  template <class S>
  __device__ Kept<S, width, packs> keep(const S* tensor) const {
    Kept<S, width, packs> row;
    row.from = tensor + first_;
    row.whole = at_once<width>(tensor);
    if (edge_ >= 0) row.edge[0] = row.from[edge_];
    load(row, index_);
    return row;
  }
  // f(column, elements of each row from there on) for all that are this thread's.
  template <class F, class... S>
  __device__ void each(F f, Kept<S, width, packs>&... rows) const {
    for (int done = 0; done < count_; done += team_ * packs) {
      if (count_ > team_ * packs) (load(rows, done + index_), ...);
#pragma unroll
      for (int v = 0; v < packs; ++v) {
        const int p = done + index_ + v * team_;
        if (p < count_) f(column(p), Elements<S, width>(rows.pack[v]).v...);
      }
    }
    if (edge_ >= 0) f(edge_, rows.edge...);
  }
  // Elements from a column on, rounded to those of another tensor.
  template <class O, class T, int count>
  __device__ void put(O* tensor, int64_t column, const T (&v)[count]) const {
    store_run(tensor + first_ + column, count > 1 && at_once<width>(tensor), v);
  }

 private:
  __device__ int64_t column(int p) const { return head_ + int64_t(p) * width; }
  template <class S>
  __device__ void load(Kept<S, width, packs>& row, int from) const {
    const auto each_pack = [&](bool whole) {
#pragma unroll
      for (int v = 0; v < packs; ++v) {
        const int p = from + v * team_;
        if (p >= wanted_) continue;
        S run[width];
        load_run(row.from + column(p), whole, run);
        memcpy(row.pack[v], run, sizeof run);
      }
    };
    if (row.whole)
      each_pack(true);
    else
      each_pack(false);
  }

  int team_, index_, head_, count_, wanted_;  // of packs, how many there are and are wanted
  int64_t first_, edge_;
};

// Which row is this team's, and that row (of no elements, if there is none).
struct Place {
  ThreadGroup team;
  int64_t row;
  bool exists, leads;  // leads: the one who writes what there is once in a row

  __device__ explicit Place(const Rows& rows)
      : team(rows.team),
        row(int64_t(gpu::block().x) * (int(gpu::block_size().x) / rows.team) +
            int(gpu::thread().x) / rows.team),
        exists(row < rows.count),
        leads(exists && team.index == 0) {}

  template <class Fits>
  __device__ auto of(const Rows& rows) const {
    return of<Fits>(rows, rows.n);
  }
  template <class Fits>
  __device__ auto of(const Rows& rows, int64_t wanted) const {
    return Row<Fits::width, Fits::packs>(team, exists ? row * rows.n : 0, exists ? rows.n : 0,
                                         wanted);
  }
};

inline constexpr int most_threads = 512;  // of a block that works on one row

// The threads that make a row of n: a part of a warp while its lanes can keep the row.
template <class Fits>
int team_for(int64_t n) {
  const int64_t packs = n / Fits::width;
  const int warp = gpu::warp_size;
  if (packs <= warp * Fits::packs) {
    int team = n % Fits::width == 0 ? 1 : 2 * Fits::width;  // the ends need a thread each
    while (team < warp && team < packs) team *= 2;
    return std::min(team, warp);
  }
  const int64_t warps = ceil_div(packs, warp * Fits::packs);
  return int(std::min<int64_t>(warps * warp, most_threads));
}

// kernel(rows, a...) for rows of n.
template <class Fits, class... P, class... A>
void for_rows(Launch& launch, const char* name, int64_t count, int64_t n,
              void (*kernel)(Rows, P...), const A&... a) {
  if (count == 0) return;
  const int team = team_for<Fits>(n), teams = team > gpu::warp_size ? 1 : 128 / team;
  gpu::launch({name,
               {unsigned(ceil_div(count, teams)), 1, 1},
               {unsigned(teams * team), 1, 1},
               team > gpu::warp_size ? ThreadGroup::shared_bytes : 0},
              launch.stream, kernel, Rows{count, n, team}, a...);
}

// --- what is summed up ---

template <class T, int n>
struct Sums {
  T v[n] = {};
  __device__ static Sums joined(Sums a, const Sums& b) {
#pragma unroll
    for (int i = 0; i < n; ++i) a.v[i] += b.v[i];
    return a;
  }
};

// A sum that the whole team has, of each of its members'.
template <class V>
__device__ V joined(ThreadGroup& team, const V& v) {
  return team.join(v, V::joined, V());
}

// How many numbers, their mean, and the sum of their squared distances from it (Chan, Golub and
// LeVeque 1979). Numbers far from zero lose digits of their means: count them from one of them.
template <class T>
struct Moments {
  T count = T(0), mean = T(0), squares = T(0);

  __device__ static Moments joined(const Moments& a, const Moments& b) {
    const T count = a.count + b.count, share = count > T(0) ? b.count / count : T(0);
    const T between = b.mean - a.mean;
    return {count, a.mean + between * share,
            a.squares + b.squares + between * (between * (a.count * share))};  // 0 of none, not NaN
  }
  // Of x - origin. Not centered: the squares are those of the numbers, and their mean is not taken.
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
};

}  // namespace mixtape::kernels::cuda
