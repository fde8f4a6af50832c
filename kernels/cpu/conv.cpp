// 2-D convolution and its gradients as matrix products whose right operand is never built: an
// engine gathers panels of it, 32 lines of up to 384 steps, straight from an image. The forward
// pass has pixels as lines and the elements of a window as steps, the gradient of x is a forward
// pass over dy for each phase of the stride, and the gradient of w has the elements of a window as
// lines, channels last, and pixels as steps. Measured in bench/worklog/040.

#include <numeric>

#include "kernels/cpu/panels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

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

// Positions of the pixels of a plane that lie `stride` rows apart, and of the taps of a window over
// `planes` planes.
Positions pixels(const int64_t (&size)[2], int64_t row) {
  Positions at;
  at.reserve(size[0] * size[1]);
  for (int64_t r = 0; r < size[0]; ++r)
    for (int64_t q = 0; q < size[1]; ++q) at.push_back(r * row + q);
  return at;
}
Positions taps(const Window& window, int64_t planes, const Canvas& canvas) {
  Positions at;
  at.reserve(planes * window.size[0] * window.size[1]);
  for (int64_t p = 0; p < planes; ++p)
    for (int64_t i = 0; i < window.size[0]; ++i)
      for (int64_t j = 0; j < window.size[1]; ++j)
        at.push_back(p * canvas.plane() + i * window.dilation[0] * canvas.row() +
                     canvas.column(j * window.dilation[1]));
  return at;
}
Positions counting(int64_t n) {
  Positions at(n);
  std::iota(at.begin(), at.end(), int64_t{0});
  return at;
}

// [n][width], each element repeated.
template <class T>
const T* repeated(Launch& launch, In bias, int64_t width) {
  const T* const from = widened<T>(launch, bias);
  if (!from) return nullptr;
  T* const to = launch.scratch<T>(bias.size() * width);
  for (int64_t i = 0; i < bias.size(); ++i) std::fill_n(to + i * width, width, from[i]);
  return to;
}

// All passes over each image of x, [images, planes, size]; `weights` of pass i and group g begin at
// (i * groups + g).
template <class T, class S, class O>
void run_passes(Launch& launch, std::span<const Pass<T>> passes, const Canvas& canvas, In x,
                int64_t groups, const std::vector<const char*>& weights, In bias, Out y) {
  const int64_t size[2] = {x.shape()[2], x.shape()[3]}, y_row = y.shape()[2] * y.shape()[3];
  const int64_t planes = x.shape()[1] / groups, channels = y.shape()[1] / groups;
  const int64_t x_image = planes * size[0] * size[1], width = passes[0].panels.width;
  const T* const added = repeated<T>(launch, bias, width);
  parallel_for(x.shape()[0] * groups, [&](int64_t i) {
    const int64_t g = i % groups;
    const S* image = x.as<S>() + i * x_image;
    const bool direct = canvas.is_plain(size) && (i + 1) * x_image + beyond <= x.size();
    Buffer<S> room(direct ? 0 : planes * canvas.plane() + beyond);
    if (!direct) {
      canvas.draw(image, planes, size, room.data());
      image = room.data();
    }
    for (size_t p = 0; p < passes.size(); ++p)
      passes[p].run(image, weights[p * groups + g], added ? added + g * channels * width : nullptr,
                    y.as<O>() + i * channels * y_row, y_row);
  });
}

template <class T, class S, class O>
void forward(Launch& launch, In x, In w, In bias, const Window& window, Out y) {
  const Sizes z(x, w, y, window);
  const Engine<T>& engine = any_engine<T>(current_isa(), x.dtype);
  const Canvas canvas{{window.padding[0], window.padding[1]},
                      {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]},
                      window.stride[1]};
  const Pass<T> pass(engine, z.out, pixels(z.y, window.stride[0] * canvas.row()),
                     taps(window, z.in, canvas), counting(z.y_plane()));
  char* const packed = launch.scratch<char>(z.groups * pass.bytes());
  std::vector<const char*> weights;
  for (int64_t g = 0; g < z.groups; ++g) {
    char* const to = packed + g * pass.bytes();
    pass.pack(w.as<S>() + g * z.out * pass.depth, to);
    weights.push_back(to);
  }
  run_passes<T, S, O>(launch, std::span(&pass, 1), canvas, x, z.groups, weights, bias, y);
}

// Pixel y0 + stride * t of x gets dy[t + (y0 + padding - i * dilation) / stride] through each tap i
// that divides evenly. `low` zeros stand before dy, so that no position is negative. The pixels of
// x that meet the same taps are those whose rows and columns are equal modulo the stride.
template <class T, class S, class O>
void input_gradient(Launch& launch, In dy, In w, In bias, const Window& window, Out dx) {
  const Sizes z(dx, w, dy, window);
  const Engine<T>& engine = any_engine<T>(current_isa(), dy.dtype);
  Canvas canvas{};
  canvas.stride = 1;
  for (int d = 0; d < 2; ++d) {
    const int64_t before = window.dilation[d] * (window.size[d] - 1) - window.padding[d];
    canvas.low[d] = before > 0 ? pieces(before, window.stride[d]) : 0;
    canvas.size[d] =
        canvas.low[d] + std::max(z.y[d], (z.x[d] - 1 + window.padding[d]) / window.stride[d] + 1);
  }
  const auto shift = [&](int d, int64_t first, int64_t tap) {
    return first + window.padding[d] - tap * window.dilation[d];
  };
  std::vector<Pass<T>> passes;
  std::vector<const char*> weights;
  for (int64_t r0 = 0; r0 < std::min(window.stride[0], z.x[0]); ++r0)
    for (int64_t q0 = 0; q0 < std::min(window.stride[1], z.x[1]); ++q0) {
      const int64_t size[2] = {pieces(z.x[0] - r0, window.stride[0]),
                               pieces(z.x[1] - q0, window.stride[1])};
      Positions place, step, used;
      for (int64_t r = r0; r < z.x[0]; r += window.stride[0])
        for (int64_t q = q0; q < z.x[1]; q += window.stride[1]) place.push_back(r * z.x[1] + q);
      for (int64_t o = 0; o < z.out; ++o)
        for (int64_t i = 0; i < window.size[0]; ++i)
          for (int64_t j = 0; j < window.size[1]; ++j) {
            const int64_t down = shift(0, r0, i), across = shift(1, q0, j);
            if (down % window.stride[0] != 0 || across % window.stride[1] != 0) continue;
            used.push_back(o * z.in * z.taps + i * window.size[1] + j);
            step.push_back(o * canvas.plane() +
                           (canvas.low[0] + down / window.stride[0]) * canvas.row() +
                           canvas.low[1] + across / window.stride[1]);
          }
      const Pass<T>& pass = passes.emplace_back(engine, z.in, pixels(size, canvas.row()),
                                                std::move(step), std::move(place));
      S* const turned = launch.scratch<S>(z.in * pass.depth);
      char* const packed = launch.scratch<char>(z.groups * pass.bytes());
      for (int64_t g = 0; g < z.groups; ++g) {
        S* to = turned;
        for (int64_t c = 0; c < z.in; ++c)
          for (const int64_t at : used) *to++ = w.as<S>()[(g * z.out * z.in + c) * z.taps + at];
        weights.push_back(packed + g * pass.bytes());
        pass.pack(turned, packed + g * pass.bytes());
      }
    }
  run_passes<T, S, O>(launch, passes, canvas, dy, z.groups, weights, bias, dx);
}

template <class T, class S, class O>
void weight_gradient(Launch& launch, In x, In dy, const Window& window, Out dw) {
  const Sizes z(x, dw, dy, window);
  const Engine<T>& engine = any_engine<T>(current_isa(), x.dtype);
  const Canvas canvas{{window.padding[0], window.padding[1]},
                      {z.x[0] + 2 * window.padding[0], z.x[1] + 2 * window.padding[1]}};
  const int64_t image = z.in * canvas.plane() + beyond, plane = z.y_plane();
  Positions line, step;
  for (int64_t i = 0; i < window.size[0]; ++i)
    for (int64_t j = 0; j < window.size[1]; ++j)
      for (int64_t c = 0; c < z.in; ++c)
        line.push_back((i * window.dilation[0] * canvas.row() + j * window.dilation[1]) * z.in + c);
  for (int64_t r = 0; r < z.y[0]; ++r)
    for (int64_t q = 0; q < z.y[1]; ++q)
      step.push_back((r * window.stride[0] * canvas.row() + q * window.stride[1]) * z.in);
  const Panels panels(engine, line);
  // A block is a part of a plane, or several planes, each padded to whole units.
  const int64_t span = std::max<int64_t>(1, Pass<T>::block_of(engine, plane));
  const int64_t units = std::max<int64_t>(1, pieces(span, engine.unit));
  // (Rows of dy that need no packing are taken from one plane at a time.)
  const bool in_place = engine.in_place && engine.unit == 1 && plane >= 64 && plane % 64 != 0;
  const int64_t most = span < plane || in_place ? 1 : std::max<int64_t>(1, deep / units);
  const Rows<T> rows(engine, z.out, most * units);
  const int64_t panel_pitch = (most * units * panels.width + engine.lanes) * engine.unit_bytes;

  // Each part sums over its own images; the parts are added in order. All together they stay
  // smaller than half of what the call reads.
  const int64_t width = up(panels.lines, engine.lanes), group = z.out * width;
  const int64_t total = z.groups * group, half = (x.size() + dy.size()) / 2;
  const int64_t parts = std::clamp<int64_t>(std::min(z.images, half / total), 1, 16);
  T* const sums = launch.scratch<T>(parts * total);
  parallel_for(parts, [&](int64_t part) {
    T* const sum = sums + part * total;
    std::fill_n(sum, total, T(0));
    const int64_t end = (part + 1) * z.images / parts,
                  panels_here = std::min(together, panels.count());
    Buffer<S> room(most * image), other(z.in * z.x_plane());
    Buffer<char> a(rows.bytes()), b(panels_here * panel_pitch);
    const auto add_block = [&](int64_t g, int64_t n, int64_t images, int64_t k) {
      const auto steps = std::span(step).subspan(k, std::min(span, plane - k));
      const int64_t depth = static_cast<int64_t>(steps.size()), each = pieces(depth, engine.unit);
      const S* const from = dy.as<S>() + (n * z.groups + g) * z.out * plane + k;
      for (int64_t i = 0; i < images && !in_place; ++i)
        rows.pack(from + i * z.groups * z.out * plane, plane, depth, i * each, a.data());
      for (int64_t p = 0; p < panels.count(); p += panels_here) {
        const int64_t here = std::min(panels_here, panels.count() - p);
        for (int64_t i = 0; i < images; ++i)
          for (int64_t q = 0; q < here; ++q)
            panels.gather(
                engine, p + q, room.data() + i * image, steps,
                b.data() + q * panel_pitch + i * each * panels.width_of(p + q) * engine.unit_bytes);
        for (int64_t s = 0; s < rows.slivers(); ++s)
          for (int64_t q = 0; q < here; ++q) {
            Tile<T> t = rows.tile(a.data(), s, b.data() + q * panel_pitch, panels.width_of(p + q),
                                  images * each);
            if (in_place) {
              t.a = from + s * rows.sliver * plane;
              t.a_row = plane * int64_t{sizeof(S)};
              t.a_step = sizeof(S);
            }
            T* const to = sum + g * group + s * rows.sliver * width + (p + q) * panels.width;
            t.out = to;
            t.add = to;
            t.out_row = t.add_row = width;
            engine.tile(static_cast<int>(rows.height(s)), panels.vectors_of(p + q), t);
          }
      }
    };
    for (int64_t g = 0; g < z.groups; ++g)
      for (int64_t n = part * z.images / parts; n < end; n += most) {
        const int64_t images = std::min(most, end - n);
        for (int64_t i = 0; i < images; ++i)
          canvas.draw_last(x.as<S>() + ((n + i) * z.groups + g) * z.in * z.x_plane(), z.in, z.x,
                           room.data() + i * image, other.data());
        for (int64_t k = 0; k < plane; k += span) add_block(g, n, images, k);
      }
  });
  parallel_ranges(total, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t i = begin; i < end; ++i) sums[i] += sums[part * total + i];
  });
  for (int64_t o = 0; o < z.groups * z.out; ++o)
    for (int64_t c = 0; c < z.in; ++c)
      for (int64_t t = 0; t < z.taps; ++t)
        dw.as<O>()[(o * z.in + c) * z.taps + t] = O(sums[o * width + t * z.in + c]);
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
