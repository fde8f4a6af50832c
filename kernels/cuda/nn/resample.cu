// Mean pooling and interpolation: each element of y is a weighted sum over a rectangle of x, with
// weights of its row times weights of its column. A first kernel computes the weights of rows and
// columns; then a thread sums over a small rectangle, or a warp over a large one.

#include "kernels/cuda/nn/pixels.cuh"

namespace mixtape::kernels::cuda {
namespace {

// The elements [begin, end) of x that make an element of y, with weights[0], weights[1], ...; all
// that follow have the last weight. Two weights do for all kinds of sampling but cubic: four.
template <class T, int n>
struct alignas(8) Taps {
  int32_t begin, end;
  T weights[n];
  MIXTAPE_HD T weight(int from) const {
    T found = weights[n - 1];
#pragma unroll
    for (int k = 0; k < n - 1; ++k) found = from == begin + k ? weights[k] : found;
    return found;
  }
};
struct Uses {  // the elements [begin, end) of y that read an element of x
  int32_t begin, end;
};

// Rows or columns: taps [to] and, for the gradient, uses [from].
template <class T, int n>
struct Axis {
  Sampling sampling;
  Taps<T, n>* taps;
  Uses* uses;

  __device__ void fill(int64_t i) const {
    if (i < sampling.to) {
      const int64_t begin = sampling.begin(i), end = sampling.end(i);
      taps[i].begin = int32_t(begin);
      taps[i].end = int32_t(end);
#pragma unroll 1  // it is long, and runs once for all planes
      for (int k = 0; k < n; ++k)
        taps[i].weights[k] = T(sampling.weight(i, std::min(begin + k, end - 1)));
    }
    if (uses && i < sampling.from)
      uses[i] = {first_where(sampling.to, [&](int64_t k) { return sampling.end(k) > i; }),
                 first_where(sampling.to, [&](int64_t k) { return sampling.begin(k) > i; })};
  }
};

// Grid: elements, the two axes.
template <class T, int n>
__global__ void fill_axes(Axis<T, n> rows, Axis<T, n> columns) {
  const Axis<T, n> axis = gpu::block().y == 0 ? rows : columns;
  axis.fill(gpu::global_thread());
}

// The elements that make element i of the result, in one direction.
template <class T, int n, bool transposed>
struct Range1d {
  const Taps<T, n>* taps;
  Taps<T, n> own;
  int i, begin, end;

  __device__ Range1d(const Axis<T, n>& axis, int i) : taps(axis.taps), i(i) {
    if constexpr (transposed) {
      begin = axis.uses[i].begin;
      end = axis.uses[i].end;
    } else {
      own = taps[i];
      begin = own.begin;
      end = own.end;
    }
  }
  __device__ T weight(int from) const {
    return transposed ? taps[from].weight(i) : own.weight(from);
  }
};

template <class S, class O, int n, bool transposed>
__global__ void sum_small(const S* __restrict__ x, Axis<gpu::math_t<S>, n> rows,
                          Axis<gpu::math_t<S>, n> columns, int height, int x_plane, int x_columns,
                          RowQuads quads, O* __restrict__ y) {
  using T = gpu::math_t<S>;
  const int64_t quad = gpu::global_thread();
  if (quad >= quads.count) return;
  const RowQuads::Position at = quads.find(quad);
  const Range1d<T, n, transposed> across(columns, at.column);
  x += at.plane * x_plane;
  y += (at.plane * height + at.row) * quads.columns + at.column;
#pragma unroll
  for (int k = 0; k < RowQuads::height; ++k) {
    if (at.row + k >= height) return;
    const Range1d<T, n, transposed> down(rows, at.row + k);
    T sum = T(0);
    for (int r = down.begin; r < down.end; ++r) {
      T line = T(0);
      for (int q = across.begin; q < across.end; ++q)
        line += across.weight(q) * gpu::widen(x[r * x_columns + q]);
      sum += down.weight(r) * line;
    }
    y[k * quads.columns] = gpu::round_to<O>(sum);
  }
}

// Weighted sums of n channels, in T of a few terms and in f64 of those sums, if there are several.
template <class T, int n>
struct LongSums {
  static constexpr int few = 32;
  T part[n] = {};
  double total[n] = {};
  int terms = 0;

  template <class S>
  __device__ void add(T weight, const S (&v)[n]) {
    if (terms > 0 && terms % few == 0) flush();
    ++terms;
#pragma unroll
    for (int e = 0; e < n; ++e) part[e] += weight * gpu::widen(v[e]);
  }
  __device__ void finish() {
    if (terms <= few) return;
    flush();
#pragma unroll
    for (int e = 0; e < n; ++e) part[e] = T(total[e]);
  }

 private:
  __device__ void flush() {
#pragma unroll
    for (int e = 0; e < n; ++e) {
      total[e] += double(part[e]);
      part[e] = T(0);
    }
  }
};

// A warp per element; its lanes form rows of `width`, a power of two.
template <class S, class O, int n, bool transposed>
__global__ void sum_large(const S* __restrict__ x, Axis<gpu::math_t<S>, n> rows,
                          Axis<gpu::math_t<S>, n> columns, int height, int x_plane, int x_columns,
                          int y_columns, int64_t count, int width, O* __restrict__ y) {
  using T = gpu::math_t<S>;
  const int64_t i = gpu::global_thread() / gpu::warp_size;
  if (i >= count) return;
  const int64_t line = i / y_columns, plane = line / height;
  const Range1d<T, n, transposed> across(columns, int(i - line * y_columns)),
      down(rows, int(line - plane * height));
  x += plane * x_plane;
  const int lane_row = gpu::lane() / width, lane_column = gpu::lane() & (width - 1);
  LongSums<T, 1> sums;
  for (int q = across.begin + lane_column; q < across.end; q += width) {
    const T weight = across.weight(q);
    for (int r = down.begin + lane_row; r < down.end; r += gpu::warp_size / width) {
      const S v[1] = {x[r * x_columns + q]};
      sums.add(weight * down.weight(r), v);
    }
  }
  sums.finish();
  T sum = sums.part[0];
  for (int mask = gpu::warp_size / 2; mask > 0; mask /= 2) sum += gpu::shuffle_xor(sum, mask);
  if (gpu::lane() == 0) y[i] = gpu::round_to<O>(sum);
}

// Images with channels last, which have x_rows and x_columns before and those of pixels after.
template <class S, class O, int n, bool transposed>
__global__ void resample_pixels(const S* __restrict__ x, Axis<gpu::math_t<S>, n> rows,
                                Axis<gpu::math_t<S>, n> columns, int x_rows, int x_columns,
                                Pixels<S> pixels, O* __restrict__ y) {
  using T = gpu::math_t<S>;
  constexpr int width = Pixels<S>::width;
  const int64_t id = gpu::global_thread();
  if (id >= pixels.count) return;
  const auto at = pixels.find(id);
  const Range1d<T, n, transposed> down(rows, at.row), across(columns, at.column);
  LongSums<T, width> sums;
#pragma unroll 1
  for (int r = down.begin; r < down.end; ++r) {
    const T weight = down.weight(r);
#pragma unroll 1
    for (int q = across.begin; q < across.end; ++q) {
      S v[width] = {};
      load_channels(x + pixels.offset(at, r, q, x_rows, x_columns), at.channels, v);
      sums.add(weight * across.weight(q), v);
    }
  }
  sums.finish();
  store_channels(y + pixels.offset(at, at.row, at.column, pixels.rows, pixels.columns), at.channels,
                 sums.part);
}

// The approximate number of rows, or columns, that an element of the result sums over.
double depth(const Sampling& s, bool transposed) {
  const double to = double(s.to), from = double(s.from);
  const double parts = s.kind == Sampling::Kind::Windows    ? double(std::min(s.size, s.from))
                       : s.kind == Sampling::Kind::Adaptive ? std::max(1.0, from / to)
                       : s.kind == Sampling::Kind::Nearest  ? 1.0
                       : s.kind == Sampling::Kind::Linear   ? 2.0
                                                            : 4.0;
  return transposed ? parts * to / from : parts;
}

}  // namespace

void resample(Launch& launch, In x, const Sampling& rows, const Sampling& columns, bool transposed,
              Out y) {
  if (y.size() == 0) return;
  const int height = int(y.shape()[-2]), x_columns = int(x.shape()[-1]),
            x_plane = int(x.shape()[-2]) * x_columns, y_columns = int(y.shape()[-1]);
  const double wide = depth(columns, transposed);
  const bool large = depth(rows, transposed) * wide >= 32;
  int width = 1;
  while (width < gpu::warp_size && width < wide) width *= 2;
  const RowQuads quads(y.size() / (int64_t(height) * y_columns), height, y_columns);
  const int64_t longest = std::max({rows.to, columns.to, rows.from, columns.from});

  const auto run = [&]<class S, class O, int n, bool backward>() {
    using T = gpu::math_t<S>;
    const auto axis = [&](const Sampling& s) {
      return Axis<T, n>{s, launch.scratch<Taps<T, n>>(s.to),
                        backward ? launch.scratch<Uses>(s.from) : nullptr};
    };
    const Axis<T, n> down = axis(rows), across = axis(columns);
    gpu::launch({"resample_axes", {unsigned(ceil_div(longest, 128)), 2, 1}, {128, 1, 1}},
                launch.stream, fill_axes<T, n>, down, across);
    if (has_channels_last(x) || has_channels_last(y)) {
      const Pixels<S> pixels(y);
      gpu::launch(pixels.grid("resample"), launch.stream, resample_pixels<S, O, n, backward>,
                  x.as<const S>(), down, across, int(x.shape()[2]), x_columns, pixels, y.as<O>());
    } else if (large)
      gpu::launch({"resample_large", {unsigned(ceil_div(y.size(), 8)), 1, 1}, {256, 1, 1}},
                  launch.stream, sum_large<S, O, n, backward>, x.as<const S>(), down, across,
                  height, x_plane, x_columns, y_columns, y.size(), width, y.as<O>());
    else
      gpu::launch(quads.grid("resample"), launch.stream, sum_small<S, O, n, backward>,
                  x.as<const S>(), down, across, height, x_plane, x_columns, quads, y.as<O>());
  };
  const bool cubic = rows.kind == Sampling::Kind::Cubic || columns.kind == Sampling::Kind::Cubic;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    const auto with = [&]<int n>() {
      transposed ? run.template operator()<S, O, n, true>()
                 : run.template operator()<S, O, n, false>();
    };
    cubic ? with.template operator()<4>() : with.template operator()<2>();
  });
}

}  // namespace mixtape::kernels::cuda
