// Unscaling, norms, clipping and sums of all gradients, and the loss scaler's decisions. Everything
// stays on the device: no step waits for the host.

#include <cmath>

#include "kernels/common/binary.h"
#include "kernels/common/scaling.h"
#include "kernels/common/sum_tree.h"
#include "kernels/common/tensor_stats.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cuda/optim/multi.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

struct Gradient {
  void* data;
  DType type;
  bool aligned;
};

// Calls run.operator()<T>(table) for all gradients in order, in runs that are computed in float or
// in double.
template <class Run>
void for_gradients(std::span<const View> grads, Run run) {
  int64_t chunks = 0;
  size_t begin = 0, end = 0;
  const auto of = [&]<class T>() {
    const auto belongs = [&](size_t i) {
      return grads[i].size() == 0 || (grads[i].dtype == f64) == std::is_same_v<T, double>;
    };
    begin = end;
    while (end < grads.size() && belongs(end)) ++end;
    chunks = for_tables<Gradient>(
        end, chunks,
        [&](size_t i, Gradient& item, int64_t& size) {
          item = {grads[i].data, grads[i].dtype, is_aligned(grads[i])};
          size = grads[i].size();
          return i >= begin;
        },
        [&](const Table<Gradient>& table) { run.template operator()<T>(table); });
  };
  while (end < grads.size()) {
    of.template operator()<float>();
    of.template operator()<double>();
  }
}

// Calls f(bits, four, gradient) for the elements of this block's chunk, with two loads in flight,
// and as often in each thread: at the chunk's end, `four` may have no elements.
template <class T, class F>
__device__ void for_chunk(const Table<Gradient>& table, const Chunk& chunk, F f) {
  constexpr int64_t across = 4 * chunk_threads;
  const Gradient& g = table.item[chunk.tensor];
  for (int64_t start = chunk.begin; start < chunk.end; start += 2 * across) {
    const int64_t i = start + 4 * int64_t(gpu::thread().x);
    const Four first = four_at(i, chunk.end, g.aligned),
               second = four_at(i + across, chunk.end, g.aligned);
    const Words<T> one = fetch<T>(g.data, g.type, first), other = fetch<T>(g.data, g.type, second);
    f(one, first, g);
    f(other, second, g);
  }
}

// The counts of a block's elements by exponent: a row per warp in shared memory, so that there are
// no atomic additions to it.
class ExponentCounts {
 public:
  static constexpr int warps = chunk_threads / gpu::warp_size;
  static constexpr size_t bytes = warps * exponent_bins * sizeof(int32_t);

  __device__ ExponentCounts()
      : all_(gpu::shared_memory<int32_t>()),
        mine_(gpu::shared_memory<int32_t>(gpu::thread().x / gpu::warp_size * exponent_bins *
                                          sizeof(int32_t))) {
    for (int e = gpu::lane(); e < exponent_bins; e += gpu::warp_size) mine_[e] = 0;
    gpu::sync_warp();
  }
  // Called by all lanes of a warp; one without an element passes `exists` = false. The first lane
  // of those with the same exponent adds for all.
  __device__ void add(float x, bool exists) {
    const int bin = exists ? int(std::bit_cast<uint32_t>(x) << 1 >> 24) : -1;
    const uint32_t same = gpu::same_lanes(bin), before = (1u << gpu::lane()) - 1;
    if (exists && (same & before) == 0) mine_[bin] += gpu::count_bits(same);
    gpu::sync_warp();
  }
  __device__ void add_to(int32_t* total) const {
    gpu::sync_block();
    const int e = int(gpu::thread().x);
    static_assert(chunk_threads == exponent_bins);
    int sum = 0;
    for (int w = 0; w < warps; ++w) sum += all_[w * exponent_bins + e];
    if (sum > 0) gpu::atomic_add(total + e, sum);
  }

 private:
  gpu::Shared<int32_t> all_, mine_;
};

// Tests the product alone, rounded if it is stored: no factor makes an infinity or NaN finite.
template <class T, bool writes, bool counts>
__global__ void scale_and_find(Table<Gradient> table, Scalar factor, float* found,
                               int32_t* exponents) {
  const Chunk chunk = chunk_of_block(table);
  std::conditional_t<counts, ExponentCounts, char> count{};
  const T by(factor.or_else(1));
  bool bad = false;
  for_chunk<T>(table, chunk, [&](const Words<T>& bits, const Four& four, const Gradient& g) {
    T x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const T given = element(bits, g.type, e);
      if constexpr (counts) count.add(float(given), e < four.count);
      x[e] = given * by;
    }
    const Words<T> rounded = packed(x, g.type);
    if (writes) store(g.data, g.type, four, rounded);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const T kept = writes ? element(rounded, g.type, e) : x[e];
      bad = bad || (e < four.count && kept * T(0) != T(0));
    }
  });
  const int64_t tensor = table.number[chunk.tensor];
  if (bad) found[tensor] = 1;
  if constexpr (counts) count.add_to(exponents + tensor * exponent_bins);
}

template <bool writes>
void run_scale_and_find(Launch& launch, std::span<const View> grads, In factor, Out found,
                        Out exponents) {
  if (grads.empty()) return;
  fill(launch, 0, found);
  if (exponents) fill(launch, 0, exponents);
  for_gradients(grads, [&]<class T>(const Table<Gradient>& table) {
    const auto start = [&](auto kernel, size_t bytes) {
      gpu::launch({writes ? "unscale" : "find_nonfinite",
                   {unsigned(table.blocks()), 1, 1},
                   {unsigned(chunk_threads), 1, 1},
                   bytes},
                  launch.stream, kernel, table, Scalar(factor), found.as<float>(),
                  exponents ? exponents.as<int32_t>() : nullptr);
    };
    if (exponents)
      start(scale_and_find<T, writes, true>, ExponentCounts::bytes);
    else
      start(scale_and_find<T, writes, false>, 0);
  });
}

// tensor_stats in two kernels: each chunk's stats, then their join for each tensor.
template <class T>
__global__ void stats_parts(Table<Gradient> table, TensorStats* parts) {
  const Chunk chunk = chunk_of_block(table);
  StatsAccumulator<T> c;
  for_chunk<T>(table, chunk, [&](const Words<T>& bits, const Four& four, const Gradient& g) {
    const T smallest = T(smallest_normal(g.type));
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < four.count) c.add(element(bits, g.type, e), smallest);
  });
  const double largest =
      over_block(double(c.largest), [](double a, double b) { return a > b ? a : b; });
  const TensorStats all{largest, sum_over_block(double(c.infinities)),
                        sum_over_block(double(c.nans)), sum_over_block(double(c.zeros)),
                        sum_over_block(double(c.subnormals))};
  if (gpu::thread().x == 0) parts[chunk.number] = all;
}
__global__ void join_stats(Table<Gradient> table, const TensorStats* parts, TensorStats* stats) {
  const int k = int(gpu::global_thread());
  if (k >= table.count) return;
  TensorStats all;
  for (int64_t i = table.first[k]; i < table.first[k + 1]; ++i)
    all.join(parts[table.chunks_before + i]);
  stats[table.number[k]] = all;
}

// The norms: an element's term, the join of terms, and the norm of the joined.
struct Euclidean {
  __device__ double of(double x) const { return x * x; }
  __device__ static double join(double a, double b) { return a + b; }
  __device__ double finish(double sum) const { return sqrt(sum); }
};
struct Manhattan : Euclidean {
  __device__ double of(double x) const { return abs(x); }
  __device__ double finish(double sum) const { return sum; }
};
struct Largest {
  __device__ double of(double x) const { return abs(x); }
  __device__ static double join(double a, double b) { return Maximum::f(a, b); }
  __device__ double finish(double largest) const { return largest; }
};
struct Power : Euclidean {
  double p;
  explicit Power(double p) : p(p) {}
  __device__ double of(double x) const { return pow(abs(x), p); }
  __device__ double finish(double sum) const { return pow(sum, 1 / p); }
};

template <class T, class Norm>
__global__ void part_of_norm(Table<Gradient> table, Norm norm, double* parts) {
  const Chunk chunk = chunk_of_block(table);
  double sum = 0;
  for_chunk<T>(table, chunk, [&](const Words<T>& bits, const Four& four, const Gradient& g) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (e < four.count) sum = Norm::join(sum, norm.of(double(element(bits, g.type, e))));
  });
  sum = over_block(sum, [](double a, double b) { return Norm::join(a, b); });
  if (gpu::thread().x == 0) parts[chunk.number] = sum;
}
template <class Norm>
__global__ void finish_norm(const double* parts, int64_t count, Norm norm, void* result,
                            DType type) {
  double sum = 0;
  for (int64_t i = gpu::thread().x; i < count; i += chunk_threads) sum = Norm::join(sum, parts[i]);
  sum = over_block(sum, [](double a, double b) { return Norm::join(a, b); });
  if (gpu::thread().x == 0) store_one(result, type, norm.finish(sum));
}

// Calls f(norm) with the norm of that p.
template <class F>
void visit_norm(double p, F f) {
  if (p == 2) return f(Euclidean());
  if (p == 1) return f(Manhattan());
  if (std::isinf(p)) return f(Largest());
  f(Power(p));
}

__global__ void find_clip_factor(Scalar grad_norm, Scalar scale, double max_norm, void* norm,
                                 DType norm_type, void* factor, DType factor_type) {
  const ClipFactor clip(grad_norm.or_else(0), scale.or_else(1), max_norm);
  store_one(norm, norm_type, clip.norm);
  store_one(factor, factor_type, clip.factor);
}

template <class T>
__global__ void limit_values(Table<Gradient> table, T limit) {
  const Chunk chunk = chunk_of_block(table);
  for_chunk<T>(table, chunk, [&](const Words<T>& bits, const Four& four, const Gradient& g) {
    T x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = Minimum::f(Maximum::f(element(bits, g.type, e), T(-limit)), limit);
    store(g.data, g.type, four, packed(x, g.type));
  });
}

template <class P, class S>
__global__ void sum_rows_in_tree(int64_t n, int64_t elements, math_t<S> by, const P* parts, S* y) {
  using T = math_t<S>;
  for (int64_t i = gpu::global_thread(); i < elements; i += gpu::all_threads())
    y[i] = gpu::round_to<S>(
        sum_tree<T>(n, [&](int64_t p) { return T(gpu::widen(parts[p * elements + i])); }) * by);
}

// --- the scaler: one block reads all flags ---

struct Flags {
  const float* data;
  bool of_loss;
};
struct Nonfinite {
  int loss, gradient;  // 1 if any flag of a loss, of a gradient is set
};

// Joins a table's flags with those of the tables before it; calls finish(found) after the last.
template <class Finish>
__global__ void reduce_flags(Table<Flags> table, bool last, Nonfinite* carried, Finish finish) {
  int loss = 0, gradient = 0;
  for (int k = 0; k < table.count; ++k)
    for (int64_t i = gpu::thread().x; i < table.size[k]; i += chunk_threads)
      if (table.item[k].data[i] != 0) (table.item[k].of_loss ? loss : gradient) = 1;
  if (table.chunks_before > 0) {
    loss |= carried->loss;
    gradient |= carried->gradient;
  }
  const auto either = [](int a, int b) { return a | b; };
  const Nonfinite found{over_block(loss, either), over_block(gradient, either)};
  if (last)
    finish(found);
  else if (gpu::thread().x == 0)
    *carried = found;
}

template <class Finish>
void run_reduce_flags(Launch& launch, const char* name, std::span<const View> found,
                      std::span<const View> losses, Finish finish) {
  Nonfinite* const carried = launch.scratch<Nonfinite>(1);
  const auto start = [&](const Table<Flags>& table, bool last) {
    gpu::launch({name, {1, 1, 1}, {chunk_threads, 1, 1}, 64}, launch.stream, reduce_flags<Finish>,
                table, last, carried, finish);
  };
  // A table is launched once the next one exists: finish() runs with the last.
  Table<Flags> held;
  for_tables<Flags>(
      found.size() + losses.size(), 0,
      [&](size_t i, Flags& item, int64_t& size) {
        const View& v = i < losses.size() ? losses[i] : found[i - losses.size()];
        item = {v.as<const float>(), i < losses.size()};
        size = v.size();
        return true;
      },
      [&](const Table<Flags>& table) {
        if (held.count > 0) start(held, false);
        held = table;
      });
  start(held, true);
}

struct WriteSkipReason {
  const float* found;
  int64_t count;
  float *reason, *last;
  __device__ void operator()(const Nonfinite& any) const {
    if (gpu::thread().x == 0) *reason = skip_reason(any.loss, any.gradient);
    if (any.gradient)
      for (int64_t i = gpu::thread().x; i < count; i += chunk_threads) last[i] = found[i];
  }
};
struct UpdateScale {
  ScalePolicy policy;
  float* scale;
  int32_t* counts;
  float* history;
  int64_t remembered;
  __device__ void operator()(const Nonfinite& any) const {
    if (gpu::thread().x == 0)
      update_scale(policy, any.loss, any.gradient, scale, counts, history, remembered);
  }
};

__global__ void reduce_underflow(const int32_t* exponents, int parameters, const float* scale,
                                 float* worst) {
  WorstUnderflow mine;
  for (int p = int(gpu::thread().x); p < parameters; p += chunk_threads) {
    Underflow u;
    for (int e = 0; e < exponent_bins; ++e) u.add(e, exponents[int64_t(p) * exponent_bins + e]);
    mine.add(u, p);
  }
  const WorstUnderflow all = over_block(mine, [](WorstUnderflow a, const WorstUnderflow& b) {
    a.join(b);
    return a;
  });
  if (gpu::thread().x == 0) all.write(parameters, *scale, worst);
}

}  // namespace

void unscale(Launch& launch, std::span<const View> grads, In inv_scale, Out found, Out exponents) {
  run_scale_and_find<true>(launch, grads, inv_scale, found, exponents);
}
void find_nonfinite(Launch& launch, std::span<const View> grads, In inv_scale, Out found,
                    Out exponents) {
  run_scale_and_find<false>(launch, grads, inv_scale, found, exponents);
}

void tensor_stats(Launch& launch, std::span<const View> tensors, Out stats) {
  if (tensors.empty()) return;
  fill(launch, 0, stats);
  int64_t most = 0;
  for (const View& t : tensors) most += ceil_div(t.size(), chunk_length);
  TensorStats* const parts = launch.scratch<TensorStats>(most);
  for_gradients(tensors, [&]<class T>(const Table<Gradient>& table) {
    launch_table(launch, "stats_parts", stats_parts<T>, table, parts);
    gpu::launch({"join_stats", {unsigned(ceil_div(table.count, 32)), 1, 1}, {32, 1, 1}},
                launch.stream, join_stats, table, static_cast<const TensorStats*>(parts),
                stats.as<TensorStats>());
  });
}

void norm_parts(Launch& launch, std::span<const View> grads, double p, Out parts) {
  static_assert(chunk_length == norm_block);
  visit_norm(p, [&]<class Norm>(const Norm& norm) {
    for_gradients(grads, [&]<class T>(const Table<Gradient>& table) {
      launch_table(launch, "norm_parts", part_of_norm<T, Norm>, table, norm, parts.as<double>());
    });
  });
}

void norm_of_parts(Launch& launch, In parts, double p, Out norm) {
  visit_norm(p, [&]<class Norm>(const Norm& kind) {
    gpu::launch({"finish_norm", {1, 1, 1}, {chunk_threads, 1, 1}, 64}, launch.stream,
                finish_norm<Norm>, parts.as<const double>(), parts.size(), kind, norm.data,
                norm.dtype);
  });
}

void clip_factor(Launch& launch, In grad_norm, In scale, double max_norm, Out norm, Out factor) {
  gpu::launch({"clip_factor", {1, 1, 1}, {1, 1, 1}}, launch.stream, find_clip_factor,
              Scalar(grad_norm), Scalar(scale), max_norm, norm.data, norm.dtype, factor.data,
              factor.dtype);
}

void sum_parts(Launch& launch, In parts, double by, Out y) {
  visit_float_or_narrow(parts.dtype, y.dtype, [&]<class P, class S>() {
    gpu::launch_over(launch, "sum_parts", y.size(), sum_rows_in_tree<P, S>, parts.shape()[0],
                     y.size(), math_t<S>(by), parts.as<const P>(), y.as<S>());
  });
}

void clip_value(Launch& launch, std::span<const View> grads, double limit) {
  for_gradients(grads, [&]<class T>(const Table<Gradient>& table) {
    launch_table(launch, "clip_value", limit_values<T>, table, T(limit));
  });
}

void scaler_skip_reason(Launch& launch, In found, std::span<const View> losses, Out reason,
                        Out last) {
  run_reduce_flags(
      launch, "scaler_skip_reason", std::span(&found, 1), losses,
      WriteSkipReason{found.as<const float>(), found.size(), reason.as<float>(), last.as<float>()});
}

void find_underflow(Launch& launch, In exponents, In scale, Out worst) {
  constexpr size_t bytes = chunk_threads / gpu::warp_size * sizeof(WorstUnderflow);
  gpu::launch({"find_underflow", {1, 1, 1}, {chunk_threads, 1, 1}, bytes}, launch.stream,
              reduce_underflow, exponents.as<const int32_t>(), int(exponents.shape()[0]),
              scale.as<const float>(), worst.as<float>());
}

void scaler_update(Launch& launch, std::span<const View> found, std::span<const View> losses,
                   const ScalePolicy& policy, Out scale, Out counts, Out history) {
  run_reduce_flags(launch, "scaler_update", found, losses,
                   UpdateScale{policy, scale.as<float>(), counts.as<int32_t>(), history.as<float>(),
                               history.size()});
}

}  // namespace mixtape::kernels::cuda
