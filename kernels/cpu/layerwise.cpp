// Optimizer steps that look at a parameter as a whole: LAMB at its norm, Muon at its matrix.

#include <cmath>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/update.h"

namespace mixtape::kernels::cpu {
namespace {

// The direction r + weight_decay p of LAMB, where r is Adam's m / (1 - b1^t) / (sqrt(v / (1 -
// b2^t)) + eps).
template <class T>
struct LambDirection {
  Lanes<T> unbias1, unbias2, eps, decay;

  LambDirection(const LambRule& rule, double t)
      : unbias1(T(1 / (1 - std::pow(rule.beta1, t)))),
        unbias2(T(1 / std::sqrt(1 - std::pow(rule.beta2, t)))),
        eps(T(rule.eps)),
        decay(T(rule.weight_decay)) {}
  [[gnu::always_inline]] Lanes<T> operator()(Lanes<T> m, Lanes<T> v, Lanes<T> p) const {
    return fma(p, decay, m * unbias1 / fma(sqrt(v), unbias2, eps));
  }
};

struct SquaredNorms {
  double param = 0, direction = 0;
};

// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2; the norms of what follows from them.
template <class P, class G>
SquaredNorms move_moments(const LambRule& rule, const Run<P, G>& run) {
  using T = math_t<P>;
  const LambDirection<T> direction(rule, run.steps + 1);
  const Lanes<T> keep1(T(rule.beta1)), take1(T(1 - rule.beta1));
  const Lanes<T> keep2(T(rule.beta2)), take2(T(1 - rule.beta2));
  WideSum param2, direction2;
  for_lanes<T>(run.n, [&](int64_t i, int64_t count) {
    T *const at1 = run.state[0] + i, *const at2 = run.state[1] + i;
    const Lanes<T> p = read<T>(run.param + i, count), g = run.scaled_grad(i, count);
    const Lanes<T> m = fma(read<T>(at1, count), keep1, g * take1);
    const Lanes<T> v = fma(read<T>(at2, count), keep2, g * g * take2);
    write(at1, m, count);
    write(at2, v, count);
    param2.add_square(p);
    direction2.add_square(keep(direction(m, v, p), count));  // 0 / eps beyond count may be NaN
  });
  return {param2.total(), direction2.total()};
}

// What multiplies lr for one parameter: phi(|p|) / |direction|, phi limiting to a range; 1 where
// either norm is 0.
double trust_ratio(const LambRule& rule, const SquaredNorms& squared) {
  const double norm = std::clamp(std::sqrt(squared.param), rule.min_norm, rule.max_norm);
  const double length = std::sqrt(squared.direction);
  const double ratio = norm > 0 && length > 0 ? norm / length : 1;
  return std::clamp(ratio, rule.min_trust, rule.max_trust);
}

template <class P, class G>
void move_along(const LambRule& rule, const Run<P, G>& run, double trust) {
  using T = math_t<P>;
  const LambDirection<T> direction(rule, run.steps + 1);
  const Lanes<T> rate(T(-rule.lr * trust));
  run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T>) {
    const Lanes<T> m = read<T>(run.state[0] + i, count), v = read<T>(run.state[1] + i, count);
    return fma(rate, direction(m, v, p), p);
  });
}

// --- Muon ---

template <class T>
View matrix(T* data, int64_t rows, int64_t columns) {
  return {data, dtype_of<T>(), Layout({rows, columns})};
}
View transposed(const View& x) {
  return {x.data, x.dtype, Layout({x.shape()[1], x.shape()[0]}, {x.strides()[1], x.strides()[0]})};
}

// U V^T, about, for x = U S V^T: five steps of X' = a X + b (X X^T) X + c (X X^T)^2 X from x / |x|.
// The coefficients are Keller Jordan's (2024): steep at zero, and good enough at one. What is
// multiplied by itself is the smaller of X X^T and X^T X, which give the same.
template <class T>
void orthogonalize(Launch& launch, T* x, int64_t rows, int64_t columns) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const int64_t k = std::min(rows, columns);
  const Buffer<T> square_room(k * k), factor_room(k * k), next_room(rows * columns);
  View now = matrix(x, rows, columns), next = matrix(next_room.data(), rows, columns);
  const View square = matrix(square_room.data(), k, k), factor = matrix(factor_room.data(), k, k);
  T* const f = factor_room.data();
  const T* const s = square_room.data();
  for (int step = 0; step < 5; ++step) {
    const bool wide = rows <= columns;
    gemm(launch, wide ? now : transposed(now), wide ? transposed(now) : now, View{}, square);
    gemm(launch, square, square, View{}, factor);
    parallel_ranges(k, std::max<int64_t>(1, Chunks::length / k), [&](int64_t begin, int64_t end) {
      for_lanes<T>((end - begin) * k, [&](int64_t i, int64_t count) {
        const int64_t at = begin * k + i;
        write(f + at, fma(read<T>(s + at, count), T(b), read<T>(f + at, count) * T(c)), count);
      });
      for (int64_t i = begin; i < end; ++i) f[i * k + i] += T(a);
    });
    if (wide)
      gemm(launch, factor, now, View{}, next);
    else
      gemm(launch, now, factor, View{}, next);
    std::swap(now, next);
  }
  if (now.data != x) std::copy_n(now.as<T>(), rows * columns, x);
}

// One parameter, whose dimensions from the second on are taken as one.
template <class T>
void muon_step(Launch& launch, const Update& update, const MuonRule& rule,
               const StepControl& control) {
  const View& param = update.param;
  const int64_t size = param.size(), rows = param.shape()[0];
  if (size == 0) return;
  const double aspect = static_cast<double>(rows) / static_cast<double>(size / rows);
  const double factor = rule.match_adam
                            ? 0.2 * std::sqrt(static_cast<double>(std::max(rows, size / rows)))
                            : std::sqrt(std::max(1.0, aspect));

  const Chunks chunks(launch, std::span(&update, 1));
  const Buffer<T> room(size);
  T* const x = room.data();
  double* const parts = launch.scratch<double>(chunks.count());
  const Lanes<T> kept(T(rule.momentum)), taken(T(1 - rule.momentum));
  for_each_run(std::span(&update, 1), chunks, rule, control,
               [&]<class P, class G>(const Run<P, G>& run, size_t, int64_t chunk) {
                 if constexpr (std::is_same_v<math_t<P>, T>) {
                   WideSum sum;
                   for_lanes<T>(run.n, [&](int64_t i, int64_t count) {
                     const Lanes<T> g = run.scaled_grad(i, count) * taken;
                     const Lanes<T> buffer = fma(read<T>(run.state[0] + i, count), kept, g);
                     write(run.state[0] + i, buffer, count);
                     const Lanes<T> ahead = rule.nesterov ? fma(buffer, kept, g) : buffer;
                     write(x + run.begin + i, ahead, count);
                     sum.add_square(ahead);
                   });
                   parts[chunk] = sum.total();
                 }
               });
  double norm2 = 0;
  for (int64_t i = 0; i < chunks.count(); ++i) norm2 += parts[i];
  const Lanes<T> unit(T(1 / (std::sqrt(norm2) + rule.eps)));
  parallel_ranges(size, Chunks::length, [&](int64_t begin, int64_t end) {
    for_lanes<T>(end - begin, [&](int64_t i, int64_t count) {
      write(x + begin + i, read<T>(x + begin + i, count) * unit, count);
    });
  });
  orthogonalize(launch, x, rows, size / rows);

  const Lanes<T> rate(T(-rule.lr * factor)), shrink(T(1 - rule.lr * rule.weight_decay));
  for_each_run(std::span(&update, 1), chunks, rule, control,
               [&]<class P, class G>(const Run<P, G>& run, size_t, int64_t) {
                 if constexpr (std::is_same_v<math_t<P>, T>)
                   run.each([&](int64_t i, int64_t count, Lanes<T> p, Lanes<T>) {
                     return fma(rate, read<T>(x + run.begin + i, count), p * shrink);
                   });
               });
}

}  // namespace

// p -= lr trust_ratio (r + weight_decay p) (You et al. 2020, algorithm 2)
void lamb(Launch& launch, std::span<const Update> updates, const LambRule& rule,
          const StepControl& control) {
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

// m = momentum m + (1 - momentum) g; p -= lr (factor orthogonalize(m) + weight_decay p), or with
// momentum m + (1 - momentum) g for m if nesterov (Jordan 2024). factor is sqrt(max(1, rows /
// columns)), or that of Liu et al. 2025, by which steps are as large as Adam's.
void muon(Launch& launch, std::span<const Update> updates, const MuonRule& rule,
          const StepControl& control) {
  if (is_skipped(control)) return;
  for (const Update& u : updates)
    if (u.param.dtype == f64)
      muon_step<double>(launch, u, rule, control);
    else
      muon_step<float>(launch, u, rule, control);
  count_step(updates);
}

}  // namespace mixtape::kernels::cpu
