// Scans along one dimension, in f64 or 64-bit integers. Steps are pairs of numbers, which compose
// (kernels/common/scan.h): a block takes a line 1024 elements at a time, composes
// within threads, warps and the block, and carries the state on. A thread takes a line if lines are
// short or neighbours in memory. Few long lines are cut into parts, which are composed first.

#include <algorithm>

#include "kernels/common/scan.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

constexpr int scan_threads = 256, per_thread = 4, scan_tile = scan_threads * per_thread;

// Lines of n. Operand 0 is a, 1 is b, 2 is y. Strides along the line follow the direction of the
// scan. S is as in element_of.
template <class S, class O>
struct Scan {
  const S *a, *b;
  O* y;
  Walk<3> lines;
  int64_t count, n, along[3];
  bool transposed;
  int parts;
  DType dtype;  // of a and b

  // Step i of a line that begins at `at`. The first a has nothing to multiply, except the 1 of a
  // product.
  template <class R, class T>
  __device__ Pair<T> step(const int64_t (&at)[3], int64_t i) const {
    T factor(R::has_b ? 0 : 1), term(0);
    if (R::has_a && (i > 0 || (!R::has_b && !transposed)))
      factor = T(element_of(a, dtype, at[0] + (i - transposed) * along[0]));
    if (R::has_b) term = T(element_of(b, dtype, at[1] + i * along[1]));
    return R::step(factor, term, i);
  }
};
template <class S>
using state_t = std::conditional_t<std::is_integral_v<S>, Whole, double>;

template <class R, class S, class O>
__global__ void scan_by_thread(Scan<S, O> s) {
  using T = state_t<S>;
  for (int64_t line = gpu::global_thread(); line < s.count; line += gpu::all_threads()) {
    int64_t at[3];
    s.lines.find(line, at);
    Pair<T> state = R::template nothing<T>();
    for (int64_t i = 0; i < s.n; ++i) {
      const Pair<T> p = s.template step<R, T>(at, i);
      state = i == 0 ? p : R::compose(state, p);
      s.y[at[2] + i * s.along[2]] = convert_to<O>(R::result(state));
    }
  }
}

// The composed pairs of the threads before this one (undefined for the first) and of all threads.
template <class T>
struct BlockPairs {
  Pair<T> before, all;
};
template <class R, class T>
__device__ BlockPairs<T> compose_block(Pair<T> mine, gpu::Shared<T> as, gpu::Shared<T> bs) {
  const int warp = int(gpu::thread().x) / gpu::warp_size;
  Pair<T> upto = mine;  // with the lanes below
  for (int by = 1; by < gpu::warp_size; by *= 2) {
    const Pair<T> below = gpu::shuffle(upto, gpu::lane() - by);
    if (gpu::lane() >= by) upto = R::compose(below, upto);
  }
  Pair<T> before = gpu::shuffle(upto, gpu::lane() - 1);
  gpu::sync_block();  // threads may still be reading the last tile
  if (gpu::lane() == gpu::warp_size - 1) {
    as[warp] = upto.a;
    bs[warp] = upto.b;
  }
  gpu::sync_block();
  Pair<T> all = R::template nothing<T>(), warps_before = all;
  for (int w = 0; w < scan_threads / gpu::warp_size; ++w) {
    if (w == warp) warps_before = all;
    const Pair<T> of_warp{as[w], bs[w]};
    all = w == 0 ? of_warp : R::compose(all, of_warp);
  }
  if (warp > 0) before = gpu::lane() > 0 ? R::compose(warps_before, before) : warps_before;
  return {before, all};
}

// Grid: lines times parts. `ends` [line, part] holds the states at which parts begin. Without y,
// the kernel writes the composed steps of each part there instead.
template <class R, class S, class O>
__global__ void scan_by_block(Scan<S, O> s, Pair<state_t<S>>* ends) {
  using T = state_t<S>;
  const gpu::Shared<T> as = gpu::shared_memory<T>(), bs = gpu::shared_memory<T>(64);
  const int64_t line = int64_t(gpu::block().x) / s.parts;
  const int part = int(gpu::block().x % unsigned(s.parts)), t = int(gpu::thread().x);
  const int64_t begin = s.n * part / s.parts, end = s.n * (part + 1) / s.parts;
  int64_t at[3];
  s.lines.find(line, at);
  const Pair<T> nothing = R::template nothing<T>();
  bool fresh = part == 0 || !s.y;  // there is no state yet: a may be infinite
  Pair<T> state = nothing;
  if (!fresh) state = ends[line * s.parts + part];
  for (int64_t tile = begin; tile < end; tile += scan_tile) {
    Pair<T> mine[per_thread];
    Pair<T> sum = nothing;
#pragma unroll
    for (int k = 0; k < per_thread; ++k) {
      const int64_t i = tile + t * per_thread + k;
      mine[k] = i < end ? s.template step<R, T>(at, i) : nothing;
      sum = k == 0 ? mine[0] : R::compose(sum, mine[k]);
    }
    const BlockPairs<T> composed = compose_block<R>(sum, as, bs);
    const auto after = [&](Pair<T> p) { return fresh ? p : R::compose(state, p); };
    if (s.y) {
      Pair<T> now = composed.before;
#pragma unroll
      for (int k = 0; k < per_thread; ++k) {
        const int64_t i = tile + t * per_thread + k;
        now = k == 0 && t == 0 ? mine[0] : R::compose(now, mine[k]);
        if (i < end) s.y[at[2] + i * s.along[2]] = convert_to<O>(R::result(after(now)));
      }
    }
    state = after(composed.all);
    fresh = false;
  }
  if (!s.y && t == 0) ends[line * s.parts + part] = state;
}

// Replaces the composed steps of parts by the states at which they begin.
template <class R, class T>
__global__ void start_parts(Pair<T>* ends, int64_t lines, int parts) {
  const int64_t line = gpu::global_thread();
  if (line >= lines) return;
  Pair<T> state = R::template nothing<T>();
  constexpr int ahead = 8;  // loads in flight together
  for (int i = 0; i < parts; i += ahead) {
    Pair<T>* const at = ends + line * parts + i;
    Pair<T> p[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (i + k < parts) p[k] = at[k];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      if (i + k >= parts) break;
      at[k] = state;
      state = i + k == 0 ? p[k] : R::compose(state, p[k]);
    }
  }
}

// The beginnings of the lines along dim, and the strides along them.
struct ScanLayout {
  Walk<3> walk;
  int64_t count, n, along[3], first[3];
  bool transposed, by_thread;

  ScanLayout(bool backward, int dim, In a, In b, In y) : n(y.shape()[dim]), transposed(backward) {
    Layout layouts[3] = {a.layout, b.layout, y.layout};
    for (int k = 0; k < 3; ++k) {
      along[k] = layouts[k].strides[dim];
      first[k] = transposed ? (n - 1) * along[k] : 0;
      if (transposed) along[k] = -along[k];
      layouts[k].shape[dim] = 1;
    }
    collapse(std::array{&layouts[0], &layouts[1], &layouts[2]});
    walk = walk_of<3>({&layouts[0], &layouts[1], &layouts[2]});
    count = layouts[2].shape.size();
    const bool columns = layouts[2].strides[-1] == 1 && along[2] != 1 && along[2] != -1;
    by_thread = n <= 16 || (columns && count >= 1024);
  }
};

template <class R, class S, class O>
void run(Launch& launch, const ScanLayout& lines, In a, In b, Out y) {
  const auto begin = [&](In x, int64_t first) {
    return reinterpret_cast<const S*>(static_cast<char*>(x.data) +
                                      first * int64_t(size_of(x.dtype)));
  };
  Scan<S, O> s{a ? begin(a, lines.first[0]) : nullptr,
               b ? begin(b, lines.first[1]) : nullptr,
               y.as<O>() + lines.first[2],
               lines.walk,
               lines.count,
               lines.n,
               {lines.along[0], lines.along[1], lines.along[2]},
               lines.transposed,
               1,
               (a ? a : b).dtype};
  const gpu::Index3 threads{scan_threads, 1, 1};
  if (lines.by_thread)
    return gpu::launch(
        {"scan_by_thread", gpu::blocks_for(s.count, scan_threads, launch.device.index), threads},
        launch.stream, scan_by_thread<R, S, O>, s);
  using T = state_t<S>;
  const int64_t wanted = int64_t(gpu::multiprocessors(launch.device.index)) * 4 / s.count;
  s.parts = int(std::clamp<int64_t>(std::min(wanted, s.n / (4 * scan_tile)), 1, 1024));
  Pair<T>* ends = nullptr;
  const gpu::Grid grid{"scan_by_block", {unsigned(s.count * s.parts), 1, 1}, threads, 128};
  if (s.parts > 1) {
    ends = launch.scratch<Pair<T>>(s.count * s.parts);
    Scan<S, O> ends_only = s;
    ends_only.y = nullptr;
    gpu::launch(grid, launch.stream, scan_by_block<R, S, O>, ends_only, ends);
    gpu::launch({"start_parts", {unsigned(ceil_div(s.count, 256)), 1, 1}, threads}, launch.stream,
                start_parts<R, T>, ends, s.count, s.parts);
  }
  gpu::launch(grid, launch.stream, scan_by_block<R, S, O>, s, ends);
}

}  // namespace

void scan(Launch& launch, bool transposed, int dim, In a, In b, Out y) {
  if (y.size() == 0) return;
  const View& x = a ? a : b;
  const ScanLayout lines(transposed, dim, x, b ? b : x, y);
  const auto start = [&]<class S, class O>() {
    if (a && b)
      run<Linear<true, true>, S, O>(launch, lines, a, b, y);
    else if (a)
      run<Linear<true, false>, S, O>(launch, lines, a, b, y);
    else
      run<Linear<false, true>, S, O>(launch, lines, a, b, y);
  };
  if (is_float(x.dtype)) return visit_float(x.dtype, y.dtype, start);
  check_computed(x.dtype);
  start.template operator()<int64_t, int64_t>();
}

void arg_scan(Launch& launch, Reduce op, int dim, In x, Out index) {
  if (index.size() == 0) return;
  const ScanLayout lines(false, dim, x, x, index);
  const auto start = [&]<class S>() {
    if (op == Reduce::Max)
      run<Extreme<true>, S, int64_t>(launch, lines, {}, x, index);
    else
      run<Extreme<false>, S, int64_t>(launch, lines, {}, x, index);
  };
  visit_elements(x.dtype, start);
}

void log_cumsum_exp(Launch& launch, int dim, In x, Out y) {
  if (y.size() == 0) return;
  const ScanLayout lines(false, dim, x, x, y);
  visit_float(x.dtype, y.dtype,
              [&]<class S, class O>() { run<LogSumExp, S, O>(launch, lines, {}, x, y); });
}

}  // namespace mixtape::kernels::cuda
