// Scans along one dimension, in f64 or 64-bit integers: y_i = a_i y_(i-1) + b_i and its transpose.
// Steps are pairs (a, b), which compose: a block takes a line 1024 elements at a time, composes
// within threads, warps and the block, and carries the state on. A thread takes a line if lines are
// short or neighbours in memory. Few long lines are cut into parts, which are composed first.

#include <algorithm>

#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

constexpr int scan_threads = 256, per_thread = 4, scan_tile = scan_threads * per_thread;

template <class T>
struct Pair {
  T a, b;
};
template <bool has_a, bool has_b, class T>
__device__ Pair<T> compose(Pair<T> first, Pair<T> then) {
  if constexpr (!has_a) return {then.a, then.b + first.b};
  return {then.a * first.a, has_b ? then.a * first.b + then.b : then.b};
}
// The state after the steps of a pair.
template <bool has_a, bool has_b, class T>
__device__ T applied(Pair<T> p, T state) {
  if constexpr (!has_a) return state + p.b;
  return has_b ? p.a * state + p.b : p.a * state;
}

// Lines of n. Operand 0 is a, 1 is b, 2 is y. Strides along the line follow the direction of the
// scan.
template <class S, class O>
struct Scan {
  const S *a, *b;
  O* y;
  Walk<3> lines;
  int64_t count, n, along[3];
  bool transposed;
  int parts;

  // Step i of a line that begins at `at`. The first a has nothing to multiply, except the 1 of a
  // product.
  template <class T, bool has_a, bool has_b>
  __device__ Pair<T> step(const int64_t (&at)[3], int64_t i) const {
    Pair<T> p{T(has_b ? 0 : 1), T(0)};
    if (has_a && (i > 0 || (!has_b && !transposed)))
      p.a = T(a[at[0] + (i - transposed) * along[0]]);
    if (has_b) p.b = T(b[at[1] + i * along[1]]);
    return p;
  }
};
template <class S>
using state_t = std::conditional_t<std::is_integral_v<S>, Whole, double>;

template <bool has_a, bool has_b, class S, class O>
__global__ void scan_by_thread(Scan<S, O> s) {
  using T = state_t<S>;
  for (int64_t line = gpu::global_thread(); line < s.count; line += gpu::all_threads()) {
    int64_t at[3];
    s.lines.find(line, at);
    T state(has_b ? 0 : 1);
    for (int64_t i = 0; i < s.n; ++i) {
      const Pair<T> p = s.template step<T, has_a, has_b>(at, i);
      state = i == 0 && has_b ? p.b : applied<has_a, has_b>(p, state);
      s.y[at[2] + i * s.along[2]] = convert_to<O>(state);
    }
  }
}

// The composed pairs of the threads before this one (undefined for the first) and of all threads.
template <class T>
struct BlockPairs {
  Pair<T> before, all;
};
template <bool has_a, bool has_b, class T>
__device__ BlockPairs<T> compose_block(Pair<T> mine, gpu::Shared<T> as, gpu::Shared<T> bs) {
  const int warp = int(gpu::thread().x) / gpu::warp_size;
  Pair<T> upto = mine;  // with the lanes below
  for (int by = 1; by < gpu::warp_size; by *= 2) {
    const Pair<T> below = gpu::shuffle(upto, gpu::lane() - by);
    if (gpu::lane() >= by) upto = compose<has_a, has_b>(below, upto);
  }
  Pair<T> before = gpu::shuffle(upto, gpu::lane() - 1);
  gpu::sync_block();  // threads may still be reading the last tile
  if (gpu::lane() == gpu::warp_size - 1) {
    as[warp] = upto.a;
    bs[warp] = upto.b;
  }
  gpu::sync_block();
  Pair<T> all{T(1), T(0)}, warps_before = all;
  for (int w = 0; w < scan_threads / gpu::warp_size; ++w) {
    if (w == warp) warps_before = all;
    const Pair<T> of_warp{as[w], bs[w]};
    all = w == 0 ? of_warp : compose<has_a, has_b>(all, of_warp);
  }
  if (warp > 0)
    before = gpu::lane() > 0 ? compose<has_a, has_b>(warps_before, before) : warps_before;
  return {before, all};
}

// Grid: lines times parts. `ends` [line, part] holds the states at which parts begin. Without y,
// the kernel writes the composed steps of each part there instead.
template <bool has_a, bool has_b, class S, class O>
__global__ void scan_by_block(Scan<S, O> s, Pair<state_t<S>>* ends) {
  using T = state_t<S>;
  const gpu::Shared<T> as = gpu::shared_memory<T>(), bs = gpu::shared_memory<T>(64);
  const int64_t line = int64_t(gpu::block().x) / s.parts;
  const int part = int(gpu::block().x % unsigned(s.parts)), t = int(gpu::thread().x);
  const int64_t begin = s.n * part / s.parts, end = s.n * (part + 1) / s.parts;
  int64_t at[3];
  s.lines.find(line, at);
  const Pair<T> nothing{T(1), T(0)};
  bool fresh = part == 0;  // there is no state yet: a may be infinite
  T state(has_b ? 0 : 1);
  if (s.y && part > 0) state = ends[line * s.parts + part].b;
  Pair<T> total = nothing;  // of the tiles so far
  for (int64_t tile = begin; tile < end; tile += scan_tile) {
    Pair<T> mine[per_thread];
    Pair<T> sum = nothing;
#pragma unroll
    for (int k = 0; k < per_thread; ++k) {
      const int64_t i = tile + t * per_thread + k;
      mine[k] = i < end ? s.template step<T, has_a, has_b>(at, i) : nothing;
      sum = k == 0 ? mine[0] : compose<has_a, has_b>(sum, mine[k]);
    }
    const BlockPairs<T> composed = compose_block<has_a, has_b>(sum, as, bs);
    const auto after = [&](Pair<T> p) {
      return fresh && has_b ? p.b : applied<has_a, has_b>(p, state);
    };
    if (s.y) {
      Pair<T> now = composed.before;
#pragma unroll
      for (int k = 0; k < per_thread; ++k) {
        const int64_t i = tile + t * per_thread + k;
        now = k == 0 && t == 0 ? mine[0] : compose<has_a, has_b>(now, mine[k]);
        if (i < end) s.y[at[2] + i * s.along[2]] = convert_to<O>(after(now));
      }
    }
    total = tile == begin ? composed.all : compose<has_a, has_b>(total, composed.all);
    state = after(composed.all);
    fresh = false;
  }
  if (!s.y && t == 0) ends[line * s.parts + part] = total;
}

// Replaces the composed steps of parts by the states at which they begin.
template <bool has_a, bool has_b, class T>
__global__ void start_parts(Pair<T>* ends, int64_t lines, int parts) {
  const int64_t line = gpu::global_thread();
  if (line >= lines) return;
  T state(has_b ? 0 : 1);
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
      at[k].b = state;
      state = i + k == 0 && has_b ? p[k].b : applied<has_a, has_b>(p[k], state);
    }
  }
}

template <bool has_a, bool has_b, class S, class O>
void run(Launch& launch, Scan<S, O> s, bool by_thread) {
  const gpu::Index3 threads{scan_threads, 1, 1};
  if (by_thread)
    return gpu::launch(
        {"scan_by_thread", gpu::blocks_for(s.count, scan_threads, launch.device.index), threads},
        launch.stream, scan_by_thread<has_a, has_b, S, O>, s);
  using T = state_t<S>;
  const int64_t wanted = int64_t(gpu::multiprocessors(launch.device.index)) * 4 / s.count;
  s.parts = int(std::clamp<int64_t>(std::min(wanted, s.n / (4 * scan_tile)), 1, 1024));
  Pair<T>* ends = nullptr;
  const gpu::Grid grid{"scan_by_block", {unsigned(s.count * s.parts), 1, 1}, threads, 128};
  if (s.parts > 1) {
    ends = launch.scratch<Pair<T>>(s.count * s.parts);
    Scan<S, O> ends_only = s;
    ends_only.y = nullptr;
    gpu::launch(grid, launch.stream, scan_by_block<has_a, has_b, S, O>, ends_only, ends);
    gpu::launch({"start_parts", {unsigned(ceil_div(s.count, 256)), 1, 1}, threads}, launch.stream,
                start_parts<has_a, has_b, T>, ends, s.count, s.parts);
  }
  gpu::launch(grid, launch.stream, scan_by_block<has_a, has_b, S, O>, s, ends);
}

}  // namespace

void scan(Launch& launch, bool transposed, int dim, In a, In b, Out y) {
  if (y.size() == 0) return;
  const View& x = a ? a : b;
  const int64_t n = y.shape()[dim];
  Layout layouts[3] = {x.layout, (b ? b : x).layout, y.layout};
  int64_t along[3], first[3];
  for (int k = 0; k < 3; ++k) {
    along[k] = layouts[k].strides[dim];
    first[k] = transposed ? (n - 1) * along[k] : 0;
    if (transposed) along[k] = -along[k];
    layouts[k].shape[dim] = 1;
  }
  collapse(std::array{&layouts[0], &layouts[1], &layouts[2]});
  const int64_t count = layouts[2].shape.size();
  const bool columns = layouts[2].strides[-1] == 1 && along[2] != 1 && along[2] != -1;
  const bool by_thread = n <= 16 || (columns && count >= 1024);
  const auto start = [&]<class S, class O>() {
    const Scan<S, O> s{a ? a.as<const S>() + first[0] : nullptr,
                       b ? b.as<const S>() + first[1] : nullptr,
                       y.as<O>() + first[2],
                       walk_of<3>({&layouts[0], &layouts[1], &layouts[2]}),
                       count,
                       n,
                       {along[0], along[1], along[2]},
                       transposed,
                       1};
    if (a && b)
      run<true, true>(launch, s, by_thread);
    else if (a)
      run<true, false>(launch, s, by_thread);
    else
      run<false, true>(launch, s, by_thread);
  };
  if (is_float(x.dtype)) return visit_float(x.dtype, y.dtype, start);
  visit(x.dtype, [&]<class S>() {
    if constexpr (std::is_integral_v<S>) start.template operator()<S, int64_t>();
  });
}

}  // namespace mixtape::kernels::cuda
