// Optimizer steps that need a whole parameter: LAMB its norm, Muon its matrix.

#include <cmath>

#include "kernels/common/layerwise.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/optim/update.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
using namespace internal;
namespace {

// The first pass of a layerwise optimizer: returns the squared norms.
template <Layerwise O, class Chunk>
SquaredNorms measure(const O& o, const Chunk& chunk) {
  using T = typename Chunk::T;
  const StepOf<O, T> step(o, chunk.steps);
  WideSum param, measured;
  chunk.template for_elements<Writes{.param = false, .states = O::moves_states_first}>(
      [&](int64_t, int64_t count, Vec<T> p, Vec<T> g, StatesAt<T> state) MIXTAPE_INLINE_LAMBDA {
        param.add_square(p);
        measured.add_square(keep(step.measured(p, g, state), count));  // 0 / 0 beyond count is NaN
        return p;
      });
  return {param.total(), measured.total()};
}

// Its second pass: moves the parameter.
template <Layerwise O, class Chunk>
void move(const O& o, const Chunk& chunk, double trust) {
  using T = typename Chunk::T;
  const StepOf<O, T> step(o, chunk.steps);
  chunk.template for_elements<Writes{.states = !O::moves_states_first}>(
      [&](int64_t, int64_t, Vec<T> p, Vec<T> g, StatesAt<T> state)
          MIXTAPE_INLINE_LAMBDA { return step.moved(p, g, state, trust); });
}

template <Layerwise O>
void take_both_passes(Launch& launch, Updates updates, const O& o, const StepControl& control) {
  const Chunks chunks(launch, updates);
  SquaredNorms* const norms = launch.scratch<SquaredNorms>(chunks.count());
  for_each_chunk(updates, chunks, control, [&](const auto& chunk, size_t, int64_t number) {
    norms[number] = measure(o, chunk);
  });
  double* const trust = launch.scratch<double>(static_cast<int64_t>(updates.size()));
  for (size_t tensor = 0; tensor < updates.size(); ++tensor) {
    SquaredNorms sum;
    for (int64_t i = chunks.first(tensor); i < chunks.first(tensor + 1); ++i) {
      sum.param += norms[i].param;
      sum.measured += norms[i].measured;
    }
    trust[tensor] = trust_ratio(o, sum);
  }
  for_each_chunk(updates, chunks, control,
                 [&](const auto& chunk, size_t tensor, int64_t) { move(o, chunk, trust[tensor]); });
}

// --- Muon ---

template <class T>
View matrix(T* data, int64_t rows, int64_t columns) {
  return {data, dtype_of<T>(), Layout({rows, columns})};
}

// factor = b square + c factor + a I, all [k, k]
template <class T>
void mix(double b, const View& square, double c, double a, const View& factor) {
  const int64_t k = square.shape()[0];
  const T* const s = square.as<T>();
  T* const f = factor.as<T>();
  parallel_ranges(k, std::max<int64_t>(1, Chunks::length / k), [&](int64_t begin, int64_t end) {
    for_each_vec<T>((end - begin) * k, [&](int64_t i, int64_t count) {
      const int64_t at = begin * k + i;
      write(f + at, fma(read<T>(s + at, count), T(b), read<T>(f + at, count) * T(c)), count);
    });
    for (int64_t i = begin; i < end; ++i) f[i * k + i] += T(a);
  });
}

// Moves one parameter, a matrix of shape[0] rows.
template <class T>
void muon_step(Launch& launch, const Update& update, const Muon& o, const StepControl& control) {
  const int64_t size = update.param.size(), rows = update.param.shape()[0];
  if (size == 0) return;
  const int64_t columns = size / rows, k = std::min(rows, columns);
  const Muon::Step<T> step(o, rows, columns);

  const Chunks chunks(launch, std::span(&update, 1));
  const Buffer<T> x_data(size), next(size), square(k * k), factor(k * k);
  T* const x = x_data.data();
  double* const parts = launch.scratch<double>(chunks.count());
  for_each_chunk(std::span(&update, 1), chunks, control,
                 [&]<class Chunk>(const Chunk& chunk, size_t, int64_t number) {
                   if constexpr (std::is_same_v<typename Chunk::T, T>) {
                     WideSum sum;
                     chunk.template for_elements<Writes{.param = false}>(
                         [&](int64_t i, int64_t count, Vec<T> p, Vec<T> g, StatesAt<T> state) {
                           const Vec<T> ahead = step.ahead(g, state);
                           write(x + chunk.begin + i, ahead, count);
                           sum.add_square(ahead);
                           return p;
                         });
                     parts[number] = sum.total();
                   }
                 });
  double norm2 = 0;
  for (int64_t i = 0; i < chunks.count(); ++i) norm2 += parts[i];
  const Vec<T> unit(T(1 / (std::sqrt(norm2) + o.eps)));
  parallel_ranges(size, Chunks::length, [&](int64_t begin, int64_t end) {
    for_each_vec<T>(end - begin, [&](int64_t i, int64_t count) {
      write(x + begin + i, read<T>(x + begin + i, count) * unit, count);
    });
  });
  const View result = orthogonalize(
      matrix(x, rows, columns), matrix(next.data(), rows, columns), matrix(square.data(), k, k),
      matrix(factor.data(), k, k), [&](In a, In b, Out c) { gemm(launch, a, b, {}, c); }, mix<T>);

  const T* const orthogonal = result.as<T>();
  for_each_chunk(std::span(&update, 1), chunks, control,
                 [&]<class Chunk>(const Chunk& chunk, size_t, int64_t) {
                   if constexpr (std::is_same_v<typename Chunk::T, T>)
                     chunk.template for_elements<Writes{.states = false}>(
                         [&](int64_t i, int64_t count, Vec<T> p, Vec<T>, StatesAt<T>)
                             MIXTAPE_INLINE_LAMBDA {
                               return step.move(p, read<T>(orthogonal + chunk.begin + i, count));
                             });
                 });
}

}  // namespace

void take_step(Launch& launch, Updates updates, const Lamb& o, const StepControl& control) {
  take_both_passes(launch, updates, o, control);
}
void take_step(Launch& launch, Updates updates, const Lars& o, const StepControl& control) {
  take_both_passes(launch, updates, o, control);
}
void take_step(Launch& launch, Updates updates, const Muon& o, const StepControl& control) {
  for (const Update& u : updates)
    if (u.param.dtype == f64)
      muon_step<double>(launch, u, o, control);
    else
      muon_step<float>(launch, u, o, control);
}

}  // namespace mixtape::kernels::cpu
