// Optimizer steps that need a whole parameter: LAMB, LARS and Adafactor its norm, Muon its matrix.

#include <cmath>

#include "kernels/common/layerwise.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/optim/update.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// Gives a step the states as they are: see(element, count, states) returns what it sees.
constexpr auto as_stored = [](int64_t, int64_t, const auto& states)
                               MIXTAPE_INLINE_LAMBDA { return states; };

// The first pass of a layerwise optimizer: adds up the squares of each block.
template <Layerwise O, class Chunk, class See>
void measure(const O& o, const Chunk& chunk, Squares* block, See see) {
  using T = typename Chunk::T;
  const StepOf<O, T> step(o, chunk.steps);
  WideSum param, measured;
  chunk.template for_elements<Writes{.param = false, .states = O::moves_states_first}>(
      [&](int64_t i, int64_t count, Vec<T> p, Vec<T> g, StatesAt<T> state) MIXTAPE_INLINE_LAMBDA {
        if (i > 0 && i % norm_block == 0) {
          *block++ = {param.total(), measured.total()};
          param = measured = {};
        }
        param.add_square(p);
        const Vec<T> m = step.measured(p, g, see(chunk.begin + i, count, state));
        measured.add_square(keep(m, count));  // 0 / 0 beyond count is NaN
        return p;
      });
  *block = {param.total(), measured.total()};
}

// Its second pass: moves the parameter.
template <Layerwise O, class Chunk, class See>
void move(const O& o, const Chunk& chunk, double trust, See see) {
  using T = typename Chunk::T;
  const StepOf<O, T> step(o, chunk.steps);
  chunk.template for_elements<Writes{.states = !O::moves_states_first}>(
      [&](int64_t i, int64_t count, Vec<T> p, Vec<T> g, StatesAt<T> state) MIXTAPE_INLINE_LAMBDA {
        return step.moved(p, g, see(chunk.begin + i, count, state), trust);
      });
}

// The squares of each parameter's blocks: in Update::norms or, without, in scratch.
const std::span<Squares>* place_squares(Launch& launch, Updates updates) {
  static_assert(Chunks::length % norm_block == 0);
  auto* const all = launch.scratch<std::span<Squares>>(static_cast<int64_t>(updates.size()));
  int64_t count = 0;
  for (const Update& u : updates) count += u.norms ? 0 : ceil_div(u.param.size(), norm_block);
  Squares* next = launch.scratch<Squares>(count);
  for (size_t i = 0; i < updates.size(); ++i) {
    const View& norms = updates[i].norms;
    const auto blocks = static_cast<size_t>(norms ? norms.size() / 2
                                                  : ceil_div(updates[i].param.size(), norm_block));
    all[i] = {norms ? static_cast<Squares*>(norms.data) : std::exchange(next, next + blocks),
              blocks};
  }
  return all;
}

// with_states(chunk, tensor, f) calls f(see).
template <Layerwise O, class With>
void take_both_passes(Launch& launch, Updates updates, const O& o, const StepControl& control,
                      With with_states) {
  const Chunks chunks(launch, updates);
  const std::span<Squares>* const blocks = place_squares(launch, updates);
  if (control.pass != Pass::Move)
    for_each_chunk(updates, chunks, control, [&](const auto& chunk, size_t tensor, int64_t) {
      Squares* const first = blocks[tensor].data() + chunk.begin / norm_block;
      with_states(chunk, tensor, [&](auto see) { measure(o, chunk, first, see); });
    });
  if (control.pass == Pass::Measure) return;
  double* const trust = launch.scratch<double>(static_cast<int64_t>(updates.size()));
  for (size_t tensor = 0; tensor < updates.size(); ++tensor) {
    SquaredNorms sum{.size = updates[tensor].param.size()};
    for (const Squares& block : blocks[tensor]) sum.add(block);
    trust[tensor] = trust_ratio(o, sum);
  }
  for_each_chunk(updates, chunks, control, [&](const auto& chunk, size_t tensor, int64_t) {
    with_states(chunk, tensor, [&](auto see) { move(o, chunk, trust[tensor], see); });
  });
}
template <Layerwise O>
void take_both_passes(Launch& launch, Updates updates, const O& o, const StepControl& control) {
  take_both_passes(launch, updates, o, control, [](const auto&, size_t, auto f) { f(as_stored); });
}

// --- Adafactor ---

// The states of elements of a matrix, none of which is stored.
template <class T>
struct EstimateAt {
  Vec<T> v;
  MIXTAPE_ALWAYS_INLINE Vec<T> get(int) const { return v; }
  MIXTAPE_ALWAYS_INLINE Vec<T> set(int, Vec<T>) const { return v; }
};

template <class T>
MIXTAPE_ALWAYS_INLINE EstimateAt<T> estimate(const FactoredV& f, T least, int64_t element,
                                             int64_t count) {
  auto at = f.at<T>(element, least);
  if (at.column + count <= f.width)
    return {Vec<T>(at.row) * read<T>(at.columns + at.column, count)};
  T all[Vec<T>::width] = {};
  for (int64_t i = 0; i < count; ++i) {
    if (at.column == f.width) at = f.at<T>(element + i, least);
    all[i] = at.row * at.columns[at.column++];
  }
  return {load<T, T>(all)};
}

// mean = the mean after this step, by norms of `length` elements of the gradient.
template <class T>
void average(const View& norms, double scale, int64_t length, const Adafactor::Step<T>& step,
             const View& mean) {
  const double by = scale / std::sqrt(double(length));
  visit_float(norms.dtype, [&]<class N>() {
    const N* const norm = norms.as<N>();
    for (int64_t i = 0; i < norms.size(); ++i) {
      const T root = T(double(norm[i]) * by);
      mean.as<T>()[i] = step.averaged(mean.as<T>()[i], root * root);
    }
  });
}

// Averages the rows and columns of a matrix, or of several.
template <class T>
FactoredV average_factors(Launch& outer, const Update& u, const Adafactor& o, double scale) {
  const Shape& shape = u.param.shape();
  const int rank = shape.rank;
  if (rank < 2 || u.param.size() == 0) return {};
  Launch launch(outer.device);
  const View &rows = u.state[1], &columns = u.state[2];
  const Adafactor::Step<T> step(o, read_scalar(u.steps, 0));
  const bool widens = std::is_same_v<T, double> && u.grad.dtype != f64;
  const Buffer<double> copy(widens ? u.grad.size() : 0);
  const View grad = widens ? View{copy.data(), f64, Layout(shape)} : u.grad;
  if (widens) convert(launch, u.grad, grad);
  const DType wide = grad.dtype == f64 ? f64 : f32;
  for (const View* const mean : {&rows, &columns}) {
    const Buffer<double> norm_data(mean->size());
    const View norms{norm_data.data(), wide, Layout(mean->shape())};
    reduce(launch, Reduce::Norm, grad, norms);
    average(norms, scale, shape[rank - (mean == &rows ? 1 : 2)], step, *mean);
  }
  Shape each = shape;
  each[rank - 2] = each[rank - 1] = 1;
  T* const means = outer.scratch<T>(each.size());
  reduce(launch, Reduce::Mean, rows, View{means, rows.dtype, Layout(each)});
  return {rows.as<T>(), columns.as<T>(), means, shape[rank - 2], shape[rank - 1]};
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
void take_step(Launch& launch, Updates updates, const Adafactor& o, const StepControl& control) {
  const double scale = read_scalar(control.grad_scale, 1) * control.rescale;
  FactoredV* const factors = launch.scratch<FactoredV>(static_cast<int64_t>(updates.size()));
  for (size_t i = 0; i < updates.size(); ++i)
    factors[i] = updates[i].param.dtype == f64
                     ? average_factors<double>(launch, updates[i], o, scale)
                     : average_factors<float>(launch, updates[i], o, scale);
  take_both_passes(
      launch, updates, o, control, [&]<class Chunk>(const Chunk&, size_t tensor, auto f) {
        using T = typename Chunk::T;
        const FactoredV& matrix = factors[tensor];
        if (!matrix.rows) return f(as_stored);
        const T least = Adafactor::Step<T>(o, 0).least;
        f([&](int64_t element, int64_t count, const StatesAt<T>&)
              MIXTAPE_INLINE_LAMBDA { return estimate<T>(matrix, least, element, count); });
      });
}
void take_step(Launch& launch, Updates updates, const Muon& o, const StepControl& control) {
  for (const Update& u : updates)
    if (u.param.dtype == f64)
      muon_step<double>(launch, u, o, control);
    else
      muon_step<float>(launch, u, o, control);
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
