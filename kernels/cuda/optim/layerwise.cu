// Optimizer steps that need a whole parameter: LAMB and LARS its norm, Muon its matrix.

#include "kernels/common/layerwise.h"
#include "kernels/cuda/optim/update.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// --- LAMB and LARS ---

template <class T, class O, class Item>
__global__ void layerwise_norms(Table<Item> table, Control control, const StepOf<O, T>* steps,
                                SquaredNorms* parts) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const StepOf<O, T> step = steps[table.number[chunk.tensor]];
  SquaredNorms sum;
  for_elements<Writes{.param = false, .states = O::moves_states_first}>(
      table.item[chunk.tensor], chunk, control.scale<T>(),
      [&](int64_t i, T p, T g, StatesAt<T> state) {
        const T m = step.measured(p, g, state);
        if (i < chunk.end) {
          sum.param += double(p) * double(p);
          sum.measured += double(m) * double(m);
        }
        return p;
      });
  sum.param = sum_over_block(sum.param);
  sum.measured = sum_over_block(sum.measured);
  if (gpu::thread().x == 0) parts[chunk.number] = sum;
}

// The trust ratio of each parameter, a block for each.
template <class O, class Item>
__global__ void layerwise_trust(Table<Item> table, Control control, OptionsNow<O> o,
                                const SquaredNorms* parts, double* trust) {
  if (control.is_skipped()) return;
  const int k = int(gpu::block().x);
  SquaredNorms sum;
  for (int i = table.first[k] + int(gpu::thread().x); i < table.first[k + 1]; i += chunk_threads) {
    const SquaredNorms part = parts[table.chunks_before + i];
    sum.param += part.param;
    sum.measured += part.measured;
  }
  sum.param = sum_over_block(sum.param);
  sum.measured = sum_over_block(sum.measured);
  if (gpu::thread().x == 0) trust[table.number[k]] = trust_ratio(o(), sum);
}

template <class T, class O, class Item>
__global__ void layerwise_move(Table<Item> table, Control control, const StepOf<O, T>* steps,
                               const double* trust) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const int number = table.number[chunk.tensor];
  const StepOf<O, T> step = steps[number];
  const double ratio = trust[number];
  for_elements<Writes{.states = !O::moves_states_first}>(
      table.item[chunk.tensor], chunk, control.scale<T>(),
      [&](int64_t, T p, T g, StatesAt<T> state) { return step.moved(p, g, state, ratio); });
}

template <class T, Layerwise O>
void take_both_passes(Launch& launch, Updates updates, const OptionsNow<O>& o,
                      const Control& control) {
  int64_t chunks = 0;
  for (const Update& u : updates) chunks += ceil_div(u.param.size(), chunk_length);
  auto* const steps = launch.scratch<StepOf<O, T>>(int64_t(updates.size()));
  double* const trust = launch.scratch<double>(int64_t(updates.size()));
  SquaredNorms* const parts = launch.scratch<SquaredNorms>(chunks);
  launch_begin<T>(launch, updates, o, control, steps);
  for_parameters<O, T>(updates, [&]<class Item>(const Table<Item>& table) {
    launch_table(launch, "layerwise_norms", layerwise_norms<T, O, Item>, table, control, steps,
                 parts);
    gpu::launch({"layerwise_trust",
                 {unsigned(table.count), 1, 1},
                 {unsigned(chunk_threads), 1, 1},
                 chunk_threads / gpu::warp_size * sizeof(double)},
                launch.stream, layerwise_trust<O, Item>, table, control, o, parts, trust);
    launch_table(launch, "layerwise_move", layerwise_move<T, O, Item>, table, control, steps,
                 trust);
  });
}

// --- Muon ---

// The options, and the shape of a parameter.
struct MuonAt {
  OptionsNow<Muon> o;
  int64_t rows, columns;
  template <class T>
  __device__ Muon::Step<T> step() const {
    return {o(), rows, columns};
  }
};

// Fills x, the matrix to orthogonalize, and parts, its squared norms by chunk.
template <class T, class Item>
__global__ void muon_momentum(Table<Item> table, Control control, MuonAt at, T* x, double* parts) {
  if (control.is_skipped()) return;
  const auto step = at.step<T>();
  const Chunk chunk = chunk_of_block(table);
  double sum = 0;
  for_elements<Writes{.param = false}>(table.item[chunk.tensor], chunk, control.scale<T>(),
                                       [&](int64_t i, T p, T g, StatesAt<T> state) {
                                         const T ahead = step.ahead(g, state);
                                         if (i < chunk.end) {
                                           x[i] = ahead;
                                           sum += double(ahead) * double(ahead);
                                         }
                                         return p;
                                       });
  sum = sum_over_block(sum);
  if (gpu::thread().x == 0) parts[chunk.number] = sum;
}

// x /= |x|, a block for each chunk. Every block adds up the parts, which are few.
template <class T>
__global__ void make_unit(const double* parts, int64_t chunks, OptionsNow<Muon> o, T* x,
                          int64_t n) {
  double sum = 0;
  for (int64_t i = gpu::thread().x; i < chunks; i += chunk_threads) sum += parts[i];
  const T unit(1 / (sqrt(sum_over_block(sum)) + o().eps));
  const int64_t begin = int64_t(gpu::block().x) * chunk_length;
  for (int64_t i = begin + gpu::thread().x; i < n && i < begin + chunk_length; i += chunk_threads)
    x[i] *= unit;
}

// f = b s + c f + a I, all [k, k]; a block for each row.
template <class T>
__global__ void mix(T b, const T* s, T c, T a, T* f, int64_t k) {
  const int64_t row = gpu::block().x;
  for (int64_t i = gpu::thread().x; i < k; i += chunk_threads) {
    const T x = fma(s[row * k + i], b, f[row * k + i] * c);
    f[row * k + i] = i == row ? x + a : x;
  }
}

template <class T, class Item>
__global__ void muon_move(Table<Item> table, Control control, MuonAt at, const T* orthogonal) {
  if (control.is_skipped()) return;
  const auto step = at.step<T>();
  const Chunk chunk = chunk_of_block(table);
  for_elements<Writes{.states = false}>(table.item[chunk.tensor], chunk, T(1),
                                        [&](int64_t i, T p, T, StatesAt<T>) {
                                          return step.move(p, i < chunk.end ? orthogonal[i] : T(0));
                                        });
}

// Moves one parameter, a matrix of shape[0] rows. (A skipped step multiplies uninitialised scratch
// and does not use it.)
template <class T>
void muon_step(const Launch& outer, const Update& update, const OptionsNow<Muon>& o,
               const Control& control) {
  const int64_t size = update.param.size(), rows = update.param.shape()[0];
  if (size == 0) return;
  const int64_t columns = size / rows, k = std::min(rows, columns);
  Launch launch(outer.device);
  const auto matrix = [&](int64_t m, int64_t n) {
    return View{launch.scratch<T>(m * n), dtype_of<T>(), Layout({m, n})};
  };
  const MuonAt at{o, rows, columns};
  const View x = matrix(rows, columns);
  const int64_t chunks = ceil_div(size, chunk_length);
  double* const parts = launch.scratch<double>(chunks);
  for_parameters<Muon, T>(std::span(&update, 1), [&]<class Item>(const Table<Item>& table) {
    launch_table(launch, "muon_momentum", muon_momentum<T, Item>, table, control, at, x.as<T>(),
                 parts);
  });
  const gpu::Index3 threads{unsigned(chunk_threads), 1, 1};
  gpu::launch({"make_unit", {unsigned(chunks), 1, 1}, threads, 64}, launch.stream, make_unit<T>,
              parts, chunks, o, x.as<T>(), size);
  const View result = orthogonalize(
      x, matrix(rows, columns), matrix(k, k), matrix(k, k),
      [&](In a, In b, Out c) { gemm(launch, a, b, {}, c); },
      [&](double b, In s, double c, double a, Out f) {
        gpu::launch({"mix", {unsigned(k), 1, 1}, threads}, launch.stream, mix<T>, T(b), s.as<T>(),
                    T(c), T(a), f.as<T>(), k);
      });
  for_parameters<Muon, T>(std::span(&update, 1), [&]<class Item>(const Table<Item>& table) {
    launch_table(launch, "muon_move", muon_move<T, Item>, table, control, at, result.as<T>());
  });
}

}  // namespace

template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lamb>& o, const Control& control) {
  take_both_passes<T>(launch, updates, o, control);
}
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lars>& o, const Control& control) {
  take_both_passes<T>(launch, updates, o, control);
}

template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Muon>& o, const Control& control) {
  launch_begin<T, Muon>(launch, updates, o, control, nullptr);
  for (const Update& u : updates)
    if (is_computed_in<T>(u)) muon_step<T>(launch, u, o, control);
}

template void run_step<float>(Launch&, Updates, const OptionsNow<Lamb>&, const Control&);
template void run_step<double>(Launch&, Updates, const OptionsNow<Lamb>&, const Control&);
template void run_step<float>(Launch&, Updates, const OptionsNow<Lars>&, const Control&);
template void run_step<double>(Launch&, Updates, const OptionsNow<Lars>&, const Control&);
template void run_step<float>(Launch&, Updates, const OptionsNow<Muon>&, const Control&);
template void run_step<double>(Launch&, Updates, const OptionsNow<Muon>&, const Control&);

}  // namespace mixtape::kernels::cuda
