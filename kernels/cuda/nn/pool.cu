// Max pooling, and reading and writing planes at the indices of maxima. The first maximum of a
// window in row-major order wins, and NaN beats everything. Sums at one index are in the order of
// y, as on the CPU.

#include "kernels/cuda/nn/pixels.cuh"

namespace mixtape::kernels::cuda {
namespace {

// Windows of a pool, of either kind that it has: interpolation's are left out of its code.
__device__ inline Sampling windows_of(Sampling s) {
  if (s.kind != Sampling::Kind::Adaptive) s.kind = Sampling::Kind::Windows;
  return s;
}

template <class T>
__device__ bool beats(T v, T best) {
  return v > best || (v != v && best == best);
}

// Windows of at most `size` rows and columns, read at once; 0: of any size. If a window ends early,
// its last row or column is read again, which changes no maximum.
template <class S, int size>
__global__ void max_of_windows(const S* __restrict__ x, Sampling down, Sampling across,
                               RowQuads quads, S* __restrict__ y, int32_t* __restrict__ index) {
  using T = gpu::math_t<S>;
  const Sampling rows = windows_of(down), columns = windows_of(across);
  const int64_t quad = gpu::global_thread();
  if (quad >= quads.count) return;
  const RowQuads::Position at = quads.find(quad);
  const int width = int(columns.from), left = int(columns.begin(at.column)),
            right = int(columns.end(at.column));
  x += at.plane * rows.from * width;
#pragma unroll 1
  for (int row = at.row; row < std::min(at.row + RowQuads::height, int(rows.to)); ++row) {
    const int top = int(rows.begin(row)), bottom = int(rows.end(row));
    int position = top * width + left;
    T best = gpu::widen(x[position]);
    const auto take = [&](T v, int from) {
      if (!beats(v, best)) return;
      best = v;
      position = from;
    };
    if constexpr (size > 0) {
      S window[size][size];
#pragma unroll
      for (int i = 0; i < size; ++i)
#pragma unroll
        for (int j = 0; j < size; ++j)
          window[i][j] = x[std::min(top + i, bottom - 1) * width + std::min(left + j, right - 1)];
#pragma unroll
      for (int i = 0; i < size; ++i)
#pragma unroll
        for (int j = 0; j < size; ++j)
          take(gpu::widen(window[i][j]),
               std::min(top + i, bottom - 1) * width + std::min(left + j, right - 1));
    } else {
      for (int r = top; r < bottom; ++r)
        for (int q = left; q < right; ++q) take(gpu::widen(x[r * width + q]), r * width + q);
    }
    const int64_t to = (at.plane * rows.to + row) * columns.to + at.column;
    y[to] = gpu::round_to<S>(best);
    index[to] = position;
  }
}

// --- sums at indices ---
// A warp owns a tile of x in shared memory and goes through the elements of y in its planes. No
// other warp adds to the tile, so there are no atomics; lanes with equal indices add in turn.

constexpr int tile_bytes = 4096, warps = 8;
constexpr int chunk = 512;  // elements of y that are skipped or read together

struct Span {  // the range of indices of a chunk of a plane
  int32_t first, last;
};

// A warp per chunk.
__global__ void find_spans(const int32_t* index, int y_plane, int chunks, int64_t count,
                           Span* spans) {
  const int64_t i = gpu::global_thread() / gpu::warp_size;
  if (i >= count) return;
  const int64_t plane = i / chunks;
  const int begin = int(i % chunks) * chunk;
  Span s{std::numeric_limits<int32_t>::max(), -1};
  for (int k = begin + gpu::lane(); k < y_plane && k - begin < chunk; k += gpu::warp_size) {
    const int32_t at = index[plane * y_plane + k];
    s = {std::min(s.first, at), std::max(s.last, at)};
  }
  for (int mask = 16; mask > 0; mask /= 2)
    s = {std::min(s.first, gpu::shuffle_xor(s.first, mask)),
         std::max(s.last, gpu::shuffle_xor(s.last, mask))};
  if (gpu::lane() == 0) spans[i] = s;
}

// sums[at] += v for each lane with an index (others: -1), in the order of lanes.
template <class T>
__device__ void add_in_order(gpu::Shared<T> sums, int at, T v) {
  const int before = gpu::same_before(at), round = at < 0 ? -1 : before;
  for (int r = 0; gpu::any_lane(round >= r); ++r) {
    if (round == r) sums[at] += v;
    gpu::sync_warp();
  }
}

// Writes the sums of a tile to its place in x, in packs of 16 bytes if x is aligned to them.
template <class O, class T>
__device__ void store_tile(gpu::Shared<T> sums, int length, bool aligned, O* x) {
  constexpr int step = gpu::warp_size, n = 16 / int(sizeof(O)), m = 16 / int(sizeof(T));
  const int lane = gpu::lane(), packed = aligned ? length / n * n : 0;
  for (int i = lane * n; i < packed; i += step * n) {
    gpu::Pack<O, n> out;
#pragma unroll
    for (int j = 0; j < n; j += m) {
      const auto in = gpu::load_as<gpu::Pack<T, m>>(sums + (i + j));
#pragma unroll
      for (int e = 0; e < m; ++e) out.v[j + e] = gpu::round_to<O>(in.v[e]);
    }
    gpu::store_global(x + i, out);
  }
  for (int i = packed + lane; i < length; i += step) x[i] = gpu::round_to<O>(T(sums[i]));
}

// spans may be null. x_size: of all planes. aligned: x is, to 16 bytes. apart: no index repeats.
template <class S, class O, bool apart>
__global__ void put(const S* y, const int32_t* index, const Span* spans, int x_plane, int y_plane,
                    int64_t x_size, bool aligned, O* x) {
  using T = gpu::math_t<S>;
  constexpr int tile = tile_bytes / int(sizeof(T)), step = gpu::warp_size;
  const int64_t begin = gpu::global_thread() / gpu::warp_size * tile;
  if (begin >= x_size) return;
  const int length = int(std::min<int64_t>(tile, x_size - begin)), lane = gpu::lane();
  const auto sums =
      gpu::shared_memory<T>(size_t(gpu::thread().x) / gpu::warp_size * size_t(tile_bytes));
  for (int i = lane; i < tile; i += step) sums[i] = T(0);
  gpu::sync_warp();

  const int chunks = ceil_div(y_plane, chunk);
  for (int64_t plane = begin / x_plane; plane * x_plane < begin + length; ++plane) {
    const int base = int(plane * x_plane - begin);  // of the plane, relative to the tile
    const int32_t* const indices = index + plane * y_plane;
    const S* const values = y + plane * y_plane;
    for (int c = 0; c < chunks; ++c) {
      if (spans) {
        const Span s = spans[plane * chunks + c];
        if (s.last < -base || s.first >= length - base) continue;
      }
      const int end = std::min(y_plane, (c + 1) * chunk);
      constexpr int each = 4;
      for (int i = c * chunk + lane; i - lane < end; i += each * step) {
        int at[each];
        T v[each];
#pragma unroll
        for (int e = 0; e < each; ++e) {
          const int k = i + e * step;
          const unsigned to = k < end ? unsigned(base) + unsigned(indices[k]) : ~0u;
          at[e] = to < unsigned(length) ? int(to) : -1;
        }
#pragma unroll
        for (int e = 0; e < each; ++e) v[e] = at[e] >= 0 ? gpu::widen(values[i + e * step]) : T(0);
#pragma unroll
        for (int e = 0; e < each; ++e) {
          if constexpr (!apart)
            add_in_order(sums, at[e], v[e]);
          else if (at[e] >= 0)
            sums[at[e]] = v[e];
        }
      }
    }
  }
  gpu::sync_warp();
  store_tile(sums, length, aligned, x + begin);
}

// Each thread reads four elements of y.
template <class S, class O>
__global__ void take(const S* __restrict__ x, const int32_t* __restrict__ index, int64_t x_plane,
                     int64_t y_plane, int64_t count, O* __restrict__ y) {
  constexpr int each = 4;
  const int64_t begin = int64_t(gpu::block().x) * gpu::block_size().x * each + gpu::thread().x;
#pragma unroll
  for (int e = 0; e < each; ++e) {
    const int64_t i = begin + e * int64_t(gpu::block_size().x);
    if (i < count) y[i] = gpu::round_to<O>(gpu::widen(x[i / y_plane * x_plane + index[i]]));
  }
}

// --- images with channels last ---

template <class S>
__global__ void max_of_pixels(const S* __restrict__ x, Sampling down, Sampling across,
                              Pixels<S> pixels, S* __restrict__ y, int32_t* __restrict__ index) {
  using T = gpu::math_t<S>;
  const Sampling rows = windows_of(down), columns = windows_of(across);
  constexpr int n = Pixels<S>::width;
  const int64_t id = gpu::global_thread();
  if (id >= pixels.count) return;
  const auto at = pixels.find(id);
  const int top = int(rows.begin(at.row)), bottom = int(rows.end(at.row)),
            left = int(columns.begin(at.column)), right = int(columns.end(at.column));
  T best[n];
  int32_t position[n];
#pragma unroll 1
  for (int r = top; r < bottom; ++r)
#pragma unroll 1
    for (int q = left; q < right; ++q) {
      S v[n] = {};
      load_channels(x + pixels.offset(at, r, q, rows.from, columns.from), at.channels, v);
      const bool first = r == top && q == left;
#pragma unroll
      for (int e = 0; e < n; ++e) {
        const T value = gpu::widen(v[e]);
        if (!first && !beats(value, best[e])) continue;
        best[e] = value;
        position[e] = int32_t(r * columns.from + q);
      }
    }
  const int64_t to = pixels.offset(at, at.row, at.column, rows.to, columns.to);
  store_channels(y + to, at.channels, best);
#pragma unroll
  for (int e = 0; e < n; ++e)
    if (e < at.channels) index[to + e] = position[e];
}

// The first window that ends behind element i. (Ends ascend.)
__device__ int first_window(const Sampling& s, int64_t i) {
  return first_where(s.to, [&](int64_t k) { return s.end(k) > i; });
}
// A pixel of x adds what the windows that contain it give it, in their order.
template <class S, class O>
__global__ void put_pixels(const S* __restrict__ y, const int32_t* __restrict__ index,
                           Sampling down, Sampling across, Pixels<S> pixels, O* __restrict__ x) {
  using T = gpu::math_t<S>;
  const Sampling rows = windows_of(down), columns = windows_of(across);
  constexpr int n = Pixels<S>::width;
  const int64_t id = gpu::global_thread();
  if (id >= pixels.count) return;
  const auto at = pixels.find(id);
  const auto own = int32_t(at.row * columns.from + at.column);
  const int left = first_window(columns, at.column);
  T sum[n] = {};
#pragma unroll 1
  for (int i = first_window(rows, at.row); i < rows.to && rows.begin(i) <= at.row; ++i)
#pragma unroll 1
    for (int j = left; j < columns.to && columns.begin(j) <= at.column; ++j) {
      const int64_t from = pixels.offset(at, i, j, rows.to, columns.to);
      S v[n] = {};
      load_channels(y + from, at.channels, v);
#pragma unroll
      for (int e = 0; e < n; ++e)
        if (e < at.channels && index[from + e] == own) sum[e] += gpu::widen(v[e]);
    }
  store_channels(x + pixels.offset(at, at.row, at.column, rows.from, columns.from), at.channels,
                 sum);
}

int64_t plane_of(In x) { return x.shape()[-2] * x.shape()[-1]; }
unsigned blocks(int64_t count, int64_t each) { return unsigned(ceil_div(count, each)); }

}  // namespace

void max_pool2d(Launch& launch, In x, const Sampling& rows, const Sampling& columns, Out y,
                Out index) {
  if (y.size() == 0) return;
  if (has_channels_last(x))
    return visit_float(x.dtype, [&]<class S>() {
      const Pixels<S> pixels(y);
      gpu::launch(pixels.grid("max_pool2d"), launch.stream, max_of_pixels<S>, x.as<const S>(), rows,
                  columns, pixels, y.as<S>(), index.as<int32_t>());
    });
  const RowQuads quads(y.size() / (rows.to * columns.to), rows.to, columns.to);
  const auto small = [](const Sampling& s, int64_t size) {
    return s.kind == Sampling::Kind::Windows && s.size <= size;
  };
  visit_float(x.dtype, [&]<class S>() {
    const auto run = [&](auto* kernel) {
      gpu::launch(quads.grid("max_pool2d"), launch.stream, kernel, x.as<const S>(), rows, columns,
                  quads, y.as<S>(), index.as<int32_t>());
    };
    if (small(rows, 2) && small(columns, 2))
      run(max_of_windows<S, 2>);
    else if (small(rows, 3) && small(columns, 3))
      run(max_of_windows<S, 3>);
    else
      run(max_of_windows<S, 0>);
  });
}

void put_at(Launch& launch, In y, In index, const Sampling& rows, const Sampling& columns, Out x) {
  if (x.size() == 0) return;
  if (has_channels_last(x) || has_channels_last(y))
    return visit_float(y.dtype, x.dtype, [&]<class S, class O>() {
      const Pixels<S> pixels(x);
      gpu::launch(pixels.grid("put_at"), launch.stream, put_pixels<S, O>, y.as<const S>(),
                  index.as<const int32_t>(), rows, columns, pixels, x.as<O>());
    });
  const int x_plane = int(plane_of(x)), y_plane = int(plane_of(y));  // fit, as an index does
  const bool apart = rows.apart() && columns.apart();
  visit_float(y.dtype, x.dtype, [&]<class S, class O>() {
    constexpr int64_t tile = tile_bytes / int64_t(sizeof(gpu::math_t<S>));
    Span* spans = nullptr;
    if (x_plane > tile && y_plane > chunk) {
      const int chunks = ceil_div(y_plane, chunk);
      const int64_t count = x.size() / x_plane * chunks;
      spans = launch.scratch<Span>(count);
      gpu::launch({"put_at_spans", {blocks(count, warps), 1, 1}, {warps * gpu::warp_size, 1, 1}},
                  launch.stream, find_spans, index.as<const int32_t>(), y_plane, chunks, count,
                  spans);
    }
    gpu::launch({"put_at",
                 {blocks(x.size(), tile * warps), 1, 1},
                 {warps * gpu::warp_size, 1, 1},
                 size_t(warps) * tile_bytes},
                launch.stream, apart ? put<S, O, true> : put<S, O, false>, y.as<const S>(),
                index.as<const int32_t>(), static_cast<const Span*>(spans), x_plane, y_plane,
                x.size(), reinterpret_cast<uintptr_t>(x.data) % 16 == 0, x.as<O>());
  });
}

void take_at(Launch& launch, In x, In index, Out y) {
  if (y.size() == 0) return;
  visit_float(x.dtype, y.dtype, [&]<class S, class O>() {
    gpu::launch({"take_at", {blocks(y.size(), 1024), 1, 1}, {256, 1, 1}}, launch.stream, take<S, O>,
                x.as<const S>(), index.as<const int32_t>(), plane_of(x), plane_of(y), y.size(),
                y.as<O>());
  });
}

}  // namespace mixtape::kernels::cuda
