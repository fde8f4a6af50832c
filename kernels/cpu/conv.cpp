// 2-D convolution and its gradients, without an im2col matrix. All three are the sum in correlate.h
// with other lists of positions: the forward pass visits pixels and sums over taps, the gradient of
// w visits taps and sums over pixels, and the gradient of x is a forward pass over dy for each
// phase of the stride. `out` has channels as its lanes, so it is transposed on the way to memory.

#include <numeric>
#include <vector>

#include "kernels/cpu/buffer.h"
#include "kernels/cpu/correlate.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

using Positions = std::vector<int64_t>;
constexpr int64_t chunk = 256;  // pixels whose results wait for their transposition

// Sizes of one convolution, per group where channels are meant.
struct Sizes {
  int64_t images, groups, in, out, taps;  // taps: rows * columns of the window
  int64_t x[2], y[2];

  Sizes(In x_, In w, In y_, const Window& window)
      : images(x_.shape()[0]),
        groups(window.groups),
        in(w.shape()[1]),
        out(w.shape()[0] / window.groups),
        taps(window.size[0] * window.size[1]),
        x{x_.shape()[2], x_.shape()[3]},
        y{y_.shape()[2], y_.shape()[3]} {}
  int64_t x_plane() const { return x[0] * x[1]; }
  int64_t y_plane() const { return y[0] * y[1]; }
};

template <class T>
int64_t round_up(int64_t n) {
  return (n + wide<T> - 1) / wide<T> * wide<T>;
}

// The planes of one image in T, with `low` zeros before each axis and a new length. The data itself
// if nothing changes, else built in `room`.
template <class T, class S>
const T* padded(const S* x, int64_t planes, const int64_t (&size)[2], const int64_t (&low)[2],
                const int64_t (&padded_size)[2], T* room) {
  const bool same = size[0] == padded_size[0] && size[1] == padded_size[1];
  if constexpr (std::is_same_v<S, T>)
    if (same) return x;
  if (!same) std::fill_n(room, planes * padded_size[0] * padded_size[1], T(0));
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t r = 0; r < size[0]; ++r)
      convert_run(x + (p * size[0] + r) * size[1], size[1],
                  room + (p * padded_size[0] + low[0] + r) * padded_size[1] + low[1]);
  return room;
}

// out[c][r] = x[r][c] for `columns` columns; lanes beyond `rows` are zero.
template <class T, class S>
void pack_transposed(const S* x, int64_t rows, int64_t columns, int64_t stride, T* out,
                     int64_t width) {
  for (int64_t r0 = 0; r0 < width; r0 += wide<T>) {
    if (columns < wide<T>) {
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = r0; r < r0 + wide<T>; ++r)
          out[c * width + r] = r < rows ? T(x[r * stride + c]) : T(0);
      continue;
    }
    for (int64_t c = 0; c < columns; c += wide<T>) {
      const int64_t c0 = std::min(c, columns - wide<T>);  // the last tile overlaps the one before
      Lanes<T> v[wide<T>];
      for (int i = 0; i < wide<T>; ++i)
        v[i] = r0 + i < rows ? load<S, T>(x + (r0 + i) * stride + c0) : Lanes<T>(T(0));
      transpose<T>(v);
      for (int i = 0; i < wide<T>; ++i) store(out + (c0 + i) * width + r0, v[i]);
    }
  }
}

// out[r * stride + place[m]] = sum[m][r] + bias[r]; `place` ascends.
template <class T, class O>
void store_transposed(const T* sum, std::span<const int64_t> place, int64_t rows, int64_t width,
                      const T* bias, int64_t stride, O* out) {
  const int64_t count = static_cast<int64_t>(place.size());
  if (count < wide<T> || place.back() - place.front() != count - 1) {
    for (int64_t m = 0; m < count; ++m)
      for (int64_t r = 0; r < rows; ++r)
        out[r * stride + place[m]] = O(sum[m * width + r] + (bias ? bias[r] : T(0)));
    return;
  }
  for (int64_t r0 = 0; r0 < rows; r0 += wide<T>) {
    const int here = static_cast<int>(std::min<int64_t>(wide<T>, rows - r0));
    for (int64_t m = 0; m < count; m += wide<T>) {
      const int64_t m0 = std::min(m, count - wide<T>);
      Lanes<T> v[wide<T>];
      for (int i = 0; i < wide<T>; ++i) v[i] = load<T, T>(sum + (m0 + i) * width + r0);
      transpose<T>(v);
      for (int i = 0; i < here; ++i)
        store(out + (r0 + i) * stride + place[m0], v[i] + Lanes<T>(bias ? bias[r0 + i] : T(0)));
    }
  }
}

// Positions of the pixels of a plane, and of the taps of a window over `planes` planes, in a padded
// image with rows of `row` elements.
Positions pixels(const int64_t (&size)[2], const int64_t (&stride)[2], int64_t row) {
  Positions at;
  at.reserve(size[0] * size[1]);
  for (int64_t r = 0; r < size[0]; ++r)
    for (int64_t q = 0; q < size[1]; ++q) at.push_back(r * stride[0] * row + q * stride[1]);
  return at;
}
Positions taps(const Window& window, int64_t planes, const int64_t (&padded_size)[2]) {
  Positions at;
  at.reserve(planes * window.size[0] * window.size[1]);
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t i = 0; i < window.size[0]; ++i)
      for (int64_t j = 0; j < window.size[1]; ++j)
        at.push_back((p * padded_size[0] + i * window.dilation[0]) * padded_size[1] +
                     j * window.dilation[1]);
  return at;
}
Positions counting(int64_t n) {
  Positions at(n);
  std::iota(at.begin(), at.end(), int64_t{0});
  return at;
}

template <class T, class S, class O>
void forward(Launch& launch, In x, In w, In bias, const Window& window, Out y) {
  const Sizes z(x, w, y, window);
  const int64_t size[2] = {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]};
  const int64_t width = round_up<T>(z.out), depth = z.in * z.taps, plane = z.y_plane();
  const Positions base = pixels(z.y, window.stride, size[1]), step = taps(window, z.in, size);
  const Positions place = counting(plane);

  T* const weights = launch.scratch<T>(z.groups * depth * width);
  for (int64_t g = 0; g < z.groups; ++g)
    pack_transposed(w.as<S>() + g * z.out * depth, z.out, depth, depth, weights + g * depth * width,
                    width);
  const T* const added = widened<T>(launch, bias);

  parallel_for(z.images * z.groups, [&](int64_t i) {
    const int64_t g = i % z.groups;
    Buffer<T> room(z.in * size[0] * size[1]), sum(std::min(chunk, plane) * width);
    const T* const image =
        padded(x.as<S>() + i * z.in * z.x_plane(), z.in, z.x, window.padding, size, room.data());
    for (int64_t p = 0; p < plane; p += chunk) {
      const auto here = std::span(base).subspan(p, std::min(chunk, plane - p));
      correlate<T>(image, here, step, weights + g * depth * width, width, sum.data(), false);
      store_transposed(sum.data(), std::span(place).subspan(p, here.size()), z.out, width,
                       added ? added + g * z.out : nullptr, plane, y.as<O>() + i * z.out * plane);
    }
  });
}

// The pixels of x that meet the same taps: those whose rows and columns are equal modulo the
// stride.
struct Phase {
  Positions base, place, step;
  std::vector<int64_t> taps;
  int64_t weights = 0;  // where its packed weights begin
};

// Pixel y0 + stride * t of x gets dy[t + (y0 + padding - i * dilation) / stride] through each tap i
// that divides evenly. `low` zeros stand before dy, so that no position is negative.
std::vector<Phase> phases(const Sizes& z, const Window& window, const int64_t (&low)[2],
                          const int64_t (&size)[2]) {
  std::vector<Phase> all;
  const auto shift = [&](int d, int64_t first, int64_t tap) {
    return first + window.padding[d] - tap * window.dilation[d];
  };
  for (int64_t r0 = 0; r0 < std::min(window.stride[0], z.x[0]); ++r0)
    for (int64_t q0 = 0; q0 < std::min(window.stride[1], z.x[1]); ++q0) {
      Phase& phase = all.emplace_back();
      for (int64_t r = r0, t = 0; r < z.x[0]; r += window.stride[0], ++t)
        for (int64_t q = q0, u = 0; q < z.x[1]; q += window.stride[1], ++u) {
          phase.base.push_back(t * size[1] + u);
          phase.place.push_back(r * z.x[1] + q);
        }
      for (int64_t i = 0; i < window.size[0]; ++i)
        for (int64_t j = 0; j < window.size[1]; ++j)
          if (shift(0, r0, i) % window.stride[0] == 0 && shift(1, q0, j) % window.stride[1] == 0)
            phase.taps.push_back(i * window.size[1] + j);
      for (int64_t o = 0; o < z.out; ++o)
        for (const int64_t tap : phase.taps) {
          const int64_t i = tap / window.size[1], j = tap % window.size[1];
          phase.step.push_back((o * size[0] + low[0] + shift(0, r0, i) / window.stride[0]) *
                                   size[1] +
                               low[1] + shift(1, q0, j) / window.stride[1]);
        }
    }
  return all;
}

template <class T, class S, class O>
void input_gradient(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  const Sizes z(dx, w, dy, window);
  int64_t low[2], size[2];
  for (int d = 0; d < 2; ++d) {
    const int64_t before = window.dilation[d] * (window.size[d] - 1) - window.padding[d];
    low[d] = before > 0 ? (before + window.stride[d] - 1) / window.stride[d] : 0;
    size[d] = low[d] + std::max(z.y[d], (z.x[d] - 1 + window.padding[d]) / window.stride[d] + 1);
  }
  std::vector<Phase> all = phases(z, window, low, size);
  const int64_t width = round_up<T>(z.in), group_weights = z.out * z.taps * width;

  T* const weights = launch.scratch<T>(z.groups * group_weights);
  int64_t used = 0;
  for (Phase& phase : all) {
    phase.weights = used;
    used += static_cast<int64_t>(phase.step.size()) * width;
    for (int64_t g = 0; g < z.groups; ++g) {
      T* to = weights + g * group_weights + phase.weights;
      for (int64_t o = g * z.out; o < (g + 1) * z.out; ++o)
        for (const int64_t tap : phase.taps)
          for (int64_t c = 0; c < width; ++c)
            *to++ = c < z.in ? T(w.as<S>()[(o * z.in + c) * z.taps + tap]) : T(0);
    }
  }

  const T* const added = widened<T>(launch, bias);
  parallel_for(z.images * z.groups, [&](int64_t i) {
    const int64_t g = i % z.groups;
    Buffer<T> room(z.out * size[0] * size[1]), sum(chunk * width);
    const T* const image =
        padded(dy.as<S>() + i * z.out * z.y_plane(), z.out, z.y, low, size, room.data());
    for (const Phase& phase : all)
      for (size_t p = 0; p < phase.base.size(); p += chunk) {
        const auto here =
            std::span(phase.base).subspan(p, std::min<size_t>(chunk, phase.base.size() - p));
        correlate<T>(image, here, phase.step, weights + g * group_weights + phase.weights, width,
                     sum.data(), false);
        store_transposed(sum.data(), std::span(phase.place).subspan(p, here.size()), z.in, width,
                         added ? added + g * z.in : nullptr, z.x_plane(),
                         dx.as<O>() + i * z.in * z.x_plane());
      }
  });
}

template <class T, class S, class O>
void weight_gradient(Launch& launch, In x, In dy, const Window& window, Out dw) {
  const Sizes z(x, dw, dy, window);
  const int64_t size[2] = {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]};
  const int64_t width = round_up<T>(z.out), depth = z.in * z.taps, plane = z.y_plane();
  const Positions base = taps(window, z.in, size), step = pixels(z.y, window.stride, size[1]);
  const Positions place = counting(depth);

  // Each part sums over its own images; the parts are added in order. All together they stay
  // smaller than half of what the call reads.
  const int64_t total = z.groups * depth * width, half = (x.size() + dy.size()) / 2;
  const int64_t parts =
      std::clamp<int64_t>(std::min(z.images, half / std::max<int64_t>(total, 1)), 1, 16);
  T* const sums = launch.scratch<T>(parts * total);
  parallel_for(parts, [&](int64_t part) {
    T* const sum = sums + part * total;
    std::fill_n(sum, total, T(0));
    Buffer<T> room(z.in * size[0] * size[1]), columns(std::min(chunk, plane) * width);
    for (int64_t i = part * z.images / parts * z.groups;
         i < (part + 1) * z.images / parts * z.groups; ++i) {
      const T* const image =
          padded(x.as<S>() + i * z.in * z.x_plane(), z.in, z.x, window.padding, size, room.data());
      for (int64_t p = 0; p < plane; p += chunk) {
        const auto here = std::span(step).subspan(p, std::min(chunk, plane - p));
        pack_transposed(dy.as<S>() + i * z.out * plane + p, z.out,
                        static_cast<int64_t>(here.size()), plane, columns.data(), width);
        correlate<T>(image, base, here, columns.data(), width, sum + (i % z.groups) * depth * width,
                     true);
      }
    }
  });
  parallel_ranges(total, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[part * total + i];
  });
  for (int64_t g = 0; g < z.groups; ++g)
    store_transposed<T, O>(sums + g * depth * width, place, z.out, width, nullptr, depth,
                           dw.as<O>() + g * z.out * depth);
}

}  // namespace

void conv2d(Launch& launch, In x, In w, In bias, const Window& window, Out y) {
  if (y.size() == 0) return;
  visit_float(x.dtype, y.dtype,
              [&]<class S, class O>() { forward<math_t<S>, S, O>(launch, x, w, bias, window, y); });
}

void conv2d_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  if (dx.size() == 0) return;
  visit_float(dy.dtype, dx.dtype, [&]<class S, class O>() {
    input_gradient<math_t<S>, S, O>(launch, dy, w, bias, window, dx);
  });
}

void conv2d_weight(Launch& launch, In x, In dy, const Window& window, Out dw) {
  if (dw.size() == 0) return;
  visit_float(x.dtype, dw.dtype, [&]<class S, class O>() {
    weight_gradient<math_t<S>, S, O>(launch, x, dy, window, dw);
  });
}

}  // namespace mixtape::kernels::cpu
