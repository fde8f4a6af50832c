// Optimizer steps that look at a parameter as a whole: LAMB at its norm, Muon at its matrix.

#include <cmath>

#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/optim/update.h"

namespace mixtape::kernels::cpu {
namespace {

// The first pass of LAMB.
template <class P, class G>
SquaredNorms move_moments(const LambRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const Step<LambRule, T> step(rule, run.steps);
  WideSum param, direction;
  for_each_vec<T>(run.n, [&](int64_t i, int64_t count) {
    const Vec<T> p = read<T>(run.param + i, count);
    const auto [m, v] = step.moments.move(run.scaled_grad(i, count), run.states(i, count));
    param.add_square(p);
    direction.add_square(keep(step.direction(p, m, v), count));  // 0 / eps beyond count may be NaN
  });
  return {param.total(), direction.total()};
}

template <class P, class G>
void move_along(const LambRule& rule, const Run<P, G>& run, double trust) {
  using T = math_t<P>;
  const Step<LambRule, T> step(rule, run.steps);
  const Vec<T> rate(T(-rule.lr * trust));
  run.each([&](int64_t i, int64_t count, Vec<T> p, Vec<T>) {
    const StatesAt<T> state = run.states(i, count);
    return fma(rate, step.direction(p, state.get(0), state.get(1)), p);
  });
}

// --- Muon ---

template <class T>
View matrix(T* data, int64_t rows, int64_t columns) {
  return {data, dtype_of<T>(), Layout({rows, columns})};
}

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

// One parameter, whose dimensions from the second on are taken as one.
template <class T>
void muon_step(Launch& launch, const Update& update, const MuonRule& rule,
               const StepControl& control) {
  const int64_t size = update.param.size(), rows = update.param.shape()[0];
  if (size == 0) return;
  const int64_t columns = size / rows, k = std::min(rows, columns);
  const Step<MuonRule, T> step(rule, rows, columns);

  const Chunks chunks(launch, std::span(&update, 1));
  const Buffer<T> room(size), next_room(size), square_room(k * k), factor_room(k * k);
  T* const x = room.data();
  double* const parts = launch.scratch<double>(chunks.count());
  for_each_run(std::span(&update, 1), chunks, rule, control,
               [&]<class P, class G>(const Run<P, G>& run, size_t, int64_t chunk) {
                 if constexpr (std::is_same_v<math_t<P>, T>) {
                   WideSum sum;
                   for_each_vec<T>(run.n, [&](int64_t i, int64_t count) {
                     const Vec<T> ahead =
                         step.ahead(run.scaled_grad(i, count), run.states(i, count));
                     write(x + run.begin + i, ahead, count);
                     sum.add_square(ahead);
                   });
                   parts[chunk] = sum.total();
                 }
               });
  double norm2 = 0;
  for (int64_t i = 0; i < chunks.count(); ++i) norm2 += parts[i];
  const Vec<T> unit(T(1 / (std::sqrt(norm2) + rule.eps)));
  parallel_ranges(size, Chunks::length, [&](int64_t begin, int64_t end) {
    for_each_vec<T>(end - begin, [&](int64_t i, int64_t count) {
      write(x + begin + i, read<T>(x + begin + i, count) * unit, count);
    });
  });
  const View result = orthogonalize(
      matrix(x, rows, columns), matrix(next_room.data(), rows, columns),
      matrix(square_room.data(), k, k), matrix(factor_room.data(), k, k),
      [&](In a, In b, Out c) { gemm(launch, a, b, {}, c); }, mix<T>);

  const T* const orthogonal = result.as<T>();
  for_each_run(std::span(&update, 1), chunks, rule, control,
               [&]<class P, class G>(const Run<P, G>& run, size_t, int64_t) {
                 if constexpr (std::is_same_v<math_t<P>, T>)
                   run.each([&](int64_t i, int64_t count, Vec<T> p, Vec<T>) {
                     return step.move(p, read<T>(orthogonal + run.begin + i, count));
                   });
               });
}

}  // namespace

void lamb(Launch& launch, Updates updates, const LambRule& rule, const StepControl& control) {
  if (is_skipped(control)) return;
  const Chunks chunks(launch, updates);
  SquaredNorms* const parts = launch.scratch<SquaredNorms>(chunks.count());
  for_each_run(updates, chunks, rule, control, [&](const auto& run, size_t, int64_t chunk) {
    parts[chunk] = move_moments(rule, run);
  });
  double* const trust = launch.scratch<double>(static_cast<int64_t>(updates.size()));
  for (size_t tensor = 0; tensor < updates.size(); ++tensor) {
    SquaredNorms sum;
    for (int64_t i = chunks.first(tensor); i < chunks.first(tensor + 1); ++i) {
      sum.param += parts[i].param;
      sum.direction += parts[i].direction;
    }
    trust[tensor] = trust_ratio(rule, sum);
  }
  for_each_run(updates, chunks, rule, control, [&](const auto& run, size_t tensor, int64_t) {
    move_along(rule, run, trust[tensor]);
  });
  count_step(updates);
}

void muon(Launch& launch, Updates updates, const MuonRule& rule, const StepControl& control) {
  if (is_skipped(control)) return;
  for (const Update& u : updates)
    if (u.param.dtype == f64)
      muon_step<double>(launch, u, rule, control);
    else
      muon_step<float>(launch, u, rule, control);
  count_step(updates);
}

}  // namespace mixtape::kernels::cpu
