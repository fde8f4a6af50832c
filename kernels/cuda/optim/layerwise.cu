// Optimizer steps that need a whole parameter: LAMB, LARS and Adafactor its norm, Muon its matrix.

#include "kernels/common/layerwise.h"
#include "kernels/cuda/optim/update.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// --- LAMB, LARS and Adafactor ---

// The states of an element of a matrix, none of which is stored.
template <class T>
struct EstimateAt {
  T v;
  __device__ T get(int) const { return v; }
  __device__ T set(int, T) const { return v; }
};

// The squares of a parameter's blocks, a chunk each.
struct Blocks {
  Squares* at;
  int64_t count;
};

// all[number of each item] = the item
template <class Item>
__global__ void place_items(Table<Item> table, Item* all) {
  const int k = int(gpu::block().x);
  if (gpu::thread().x == 0) all[table.number[k]] = table.item[k];
}
template <class Item>
void launch_place(Launch& launch, const char* name, const Table<Item>& table, Item* all) {
  gpu::launch({name, {unsigned(table.blocks()), 1, 1}, {gpu::warp_size, 1, 1}}, launch.stream,
              place_items<Item>, table, all);
}

// Calls f(the states of element i, as a step sees them): with factors, the estimate.
template <class T, class Step, class F>
__device__ T with_states(const Step& step, const FactoredV* factors, int tensor, int64_t i,
                         int64_t end, StatesAt<T> state, F f) {
  if constexpr (std::is_same_v<Step, Adafactor::Step<T>>) {
    const FactoredV matrix = factors[tensor];
    if (matrix.rows) {
      if (i >= end) return f(EstimateAt<T>{T(1)});
      const auto at = matrix.at(i, step.least);
      return f(EstimateAt<T>{at.row * at.columns[at.column]});
    }
  }
  return f(state);
}

template <class T, class O, class Item>
__global__ void layerwise_norms(Table<Item> table, Control control, const StepOf<O, T>* steps,
                                const FactoredV* factors, const Blocks* blocks) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const int number = table.number[chunk.tensor];
  const StepOf<O, T> step = steps[number];
  Squares sum{0, 0};
  for_elements<Writes{.param = false, .states = O::moves_states_first}>(
      table.item[chunk.tensor], chunk, control.scale<T>(),
      [&](int64_t i, T p, T g, StatesAt<T> state) {
        const T m = with_states(step, factors, number, i, chunk.end, state,
                                [&](auto seen) { return step.measured(p, g, seen); });
        if (i < chunk.end) {
          sum.param += double(p) * double(p);
          sum.measured += double(m) * double(m);
        }
        return p;
      });
  sum.param = sum_over_block(sum.param);
  sum.measured = sum_over_block(sum.measured);
  if (gpu::thread().x == 0) blocks[number].at[chunk.begin / chunk_length] = sum;
}

// The trust ratio of each parameter, a block for each.
template <class O, class Item>
__global__ void layerwise_trust(Table<Item> table, Control control, OptionsNow<O> o,
                                const Blocks* all, double* trust) {
  if (control.is_skipped()) return;
  const int k = int(gpu::block().x);
  const Blocks blocks = all[table.number[k]];
  SquaredNorms sum{.size = table.size[k]};
  for (int64_t i = gpu::thread().x; i < blocks.count; i += chunk_threads) sum.add(blocks.at[i]);
  sum.param = sum_over_block(sum.param);
  sum.measured = sum_over_block(sum.measured);
  if (gpu::thread().x == 0) trust[table.number[k]] = trust_ratio(o(), sum);
}

template <class T, class O, class Item>
__global__ void layerwise_move(Table<Item> table, Control control, const StepOf<O, T>* steps,
                               const FactoredV* factors, const double* trust) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const int number = table.number[chunk.tensor];
  const StepOf<O, T> step = steps[number];
  const double ratio = trust[number];
  for_elements<Writes{.states = !O::moves_states_first}>(
      table.item[chunk.tensor], chunk, control.scale<T>(),
      [&](int64_t i, T p, T g, StatesAt<T> state) {
        return with_states(step, factors, number, i, chunk.end, state,
                           [&](auto seen) { return step.moved(p, g, seen, ratio); });
      });
}

// Where each parameter's Blocks are: those of Update::norms or, without, in scratch.
template <class T>
const Blocks* place_blocks(Launch& launch, Updates updates) {
  static_assert(chunk_length == norm_block);
  int64_t chunks = 0;
  for (const Update& u : updates) chunks += ceil_div(u.param.size(), chunk_length);
  Squares* next = launch.scratch<Squares>(chunks);
  Blocks* const all = launch.scratch<Blocks>(int64_t(updates.size()));
  for_tables<Blocks>(
      updates.size(), 0,
      [&](size_t i, Blocks& item, int64_t& size) {
        const Update& u = updates[i];
        size = 1;
        item = u.norms ? Blocks{static_cast<Squares*>(u.norms.data), u.norms.size() / 2}
                       : Blocks{next, ceil_div(u.param.size(), chunk_length)};
        if (!u.norms) next += item.count;
        return is_computed_in<T>(u);
      },
      [&](const Table<Blocks>& table) { launch_place(launch, "place_blocks", table, all); });
  return all;
}

// make_factors(steps) returns where each parameter's FactoredV is, or null.
template <class T, Layerwise O, class Make>
void take_both_passes(Launch& launch, Updates updates, const OptionsNow<O>& o,
                      const Control& control, Make make_factors) {
  auto* const steps = launch.scratch<StepOf<O, T>>(int64_t(updates.size()));
  double* const trust = launch.scratch<double>(int64_t(updates.size()));
  const Blocks* const blocks = place_blocks<T>(launch, updates);
  launch_begin<T>(launch, updates, o, control, steps);
  const FactoredV* const factors = make_factors(steps);
  for_parameters<O, T>(updates, [&]<class Item>(const Table<Item>& table) {
    if (control.pass != Pass::Move)
      launch_table(launch, "layerwise_norms", layerwise_norms<T, O, Item>, table, control, steps,
                   factors, blocks);
    if (control.pass == Pass::Measure) return;
    gpu::launch({"layerwise_trust",
                 {unsigned(table.count), 1, 1},
                 {unsigned(chunk_threads), 1, 1},
                 chunk_threads / gpu::warp_size * sizeof(double)},
                launch.stream, layerwise_trust<O, Item>, table, control, o, blocks, trust);
    launch_table(launch, "layerwise_move", layerwise_move<T, O, Item>, table, control, steps,
                 factors, trust);
  });
}

// Rows or columns of a matrix, or of several, with the norms of their gradients.
template <class T>
struct Averaged {
  T* mean;
  const void* norms;
  DType norm_type;
  double length;  // elements of a row or column
};
template <class T>
__global__ void adafactor_average(Table<Averaged<T>> table, Control control,
                                  const Adafactor::Step<T>* steps) {
  if (control.is_skipped()) return;
  const Chunk chunk = chunk_of_block(table);
  const Averaged<T> item = table.item[chunk.tensor];
  const Adafactor::Step<T> step = steps[table.number[chunk.tensor] / 2];
  const double by = control.scale<double>() / sqrt(item.length);
  for (int64_t i = chunk.begin + gpu::thread().x; i < chunk.end; i += chunk_threads) {
    const double norm = item.norm_type == f64 ? static_cast<const double*>(item.norms)[i]
                                              : double(static_cast<const float*>(item.norms)[i]);
    const T root(norm * by);
    item.mean[i] = step.averaged(item.mean[i], root * root);
  }
}

// Items 2 k and 2 k + 1 are the rows and the columns of parameter k.
template <class T>
void average_factors(Launch& launch, Updates updates, const Control& control,
                     const Adafactor::Step<T>* steps) {
  for_tables<Averaged<T>>(
      2 * updates.size(), 0,
      [&](size_t i, Averaged<T>& item, int64_t& size) {
        const Update& u = updates[i / 2];
        const Shape& shape = u.param.shape();
        if (!is_computed_in<T>(u) || shape.rank < 2 || shape.size() == 0) return false;
        const View& mean = u.state[1 + i % 2];
        Launch of_reduce(launch.device);
        View grad = u.grad;
        if (std::is_same_v<T, double> && grad.dtype != f64) {
          grad = {of_reduce.scratch<double>(grad.size()), f64, Layout(shape)};
          convert(of_reduce, u.grad, grad);
        }
        const DType wide = grad.dtype == f64 ? f64 : f32;
        const View norms{launch.scratch<double>(mean.size()), wide, Layout(mean.shape())};
        reduce(of_reduce, Reduce::Norm, grad, norms);
        item = {mean.as<T>(), norms.data, wide, double(shape[shape.rank - 1 - int(i % 2)])};
        size = mean.size();
        return true;
      },
      [&](const Table<Averaged<T>>& table) {
        launch_table(launch, "adafactor_average", adafactor_average<T>, table, control, steps);
      });
}

// FactoredV of all parameters, in device memory.
template <class T>
const FactoredV* make_factors(Launch& launch, Updates updates, const Control& control,
                              const Adafactor::Step<T>* steps) {
  average_factors(launch, updates, control, steps);
  FactoredV* const all = launch.scratch<FactoredV>(int64_t(updates.size()));
  for_tables<FactoredV>(
      updates.size(), 0,
      [&](size_t i, FactoredV& item, int64_t& size) {
        const Update& u = updates[i];
        const Shape& shape = u.param.shape();
        size = 1;
        item = {};
        if (!is_computed_in<T>(u)) return false;
        if (shape.rank < 2 || shape.size() == 0) return true;
        Shape each = shape;
        each[shape.rank - 2] = each[shape.rank - 1] = 1;
        const View &rows = u.state[1],
                   means{launch.scratch<T>(each.size()), rows.dtype, Layout(each)};
        Launch of_reduce(launch.device);
        reduce(of_reduce, Reduce::Mean, rows, means);
        item = {rows.data, u.state[2].data, means.data, shape[shape.rank - 2],
                shape[shape.rank - 1]};
        return true;
      },
      [&](const Table<FactoredV>& table) { launch_place(launch, "place_factors", table, all); });
  return all;
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
  take_both_passes<T>(launch, updates, o, control, [](const auto*) { return nullptr; });
}
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Lars>& o, const Control& control) {
  take_both_passes<T>(launch, updates, o, control, [](const auto*) { return nullptr; });
}
template <class T>
void run_step(Launch& launch, Updates updates, const OptionsNow<Adafactor>& o,
              const Control& control) {
  take_both_passes<T>(launch, updates, o, control, [&](const Adafactor::Step<T>* steps) {
    return make_factors(launch, updates, control, steps);
  });
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
template void run_step<float>(Launch&, Updates, const OptionsNow<Adafactor>&, const Control&);
template void run_step<double>(Launch&, Updates, const OptionsNow<Adafactor>&, const Control&);
template void run_step<float>(Launch&, Updates, const OptionsNow<Muon>&, const Control&);
template void run_step<double>(Launch&, Updates, const OptionsNow<Muon>&, const Control&);

}  // namespace mixtape::kernels::cuda
