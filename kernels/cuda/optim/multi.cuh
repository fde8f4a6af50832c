#pragma once
// Kernels over lists of tensors. Pointers and sizes are passed as a kernel parameter, in tables of
// less than 4 KB, so that one launch serves dozens of tensors and nothing is copied to the device.
// Each block takes one chunk of one tensor; all chunks have one length, so sums over them depend
// neither on the device nor on how the list was divided.

#include "kernels/cuda/gpu.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
using namespace internal;

constexpr int64_t chunk_length = 8192;
constexpr int chunk_threads = 256;

// A part of a list of tensors. Item: the kernel's arguments for each.
template <class Item>
struct Table {
  // Kernel parameters take at most 4096 bytes in all on any device and driver.
  static constexpr int capacity = int(3840 / (sizeof(Item) + 16));

  int count = 0;
  int first[capacity + 1] = {};  // the first block of each, then the number of blocks
  int number[capacity];          // position in the list
  int64_t chunks_before = 0;     // in earlier tables
  int64_t size[capacity];
  Item item[capacity];

  int blocks() const { return first[count]; }
};

// A block's work: elements [begin, end) of a tensor of the table; `number` counts all chunks.
struct Chunk {
  int tensor;
  int64_t begin, end, number;
};
template <class Item>
__device__ inline Chunk chunk_of_block(const Table<Item>& table) {
  const int block = int(gpu::block().x);
  int low = 0, high = table.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first[middle] <= block ? low : high) = middle;
  }
  const int64_t begin = int64_t(block - table.first[low]) * chunk_length, size = table.size[low];
  return {low, begin, size - begin < chunk_length ? size : begin + chunk_length,
          table.chunks_before + block};
}

// Calls f(table) for tables of all tensors for which describe(i, item, size), which fills in both,
// returns true. Returns the total number of chunks.
template <class Item, class Describe, class F>
int64_t for_tables(size_t tensors, int64_t chunks_before, Describe describe, F f) {
  Table<Item> table;
  table.chunks_before = chunks_before;
  const auto flush = [&] {
    if (table.blocks() > 0) f(static_cast<const Table<Item>&>(table));
    table.chunks_before += table.blocks();
    table.count = 0;
  };
  for (size_t i = 0; i < tensors; ++i) {
    const int k = table.count;
    table.size[k] = 0;
    if (!describe(i, table.item[k], table.size[k]) || table.size[k] == 0) continue;
    table.number[k] = int(i);
    table.first[k + 1] = table.first[k] + int(ceil_div(table.size[k], chunk_length));
    if (++table.count == table.capacity) flush();
  }
  flush();
  return table.chunks_before;
}

// Launches a kernel with a block for each chunk.
template <class Item, class... P, class... A>
void launch_table(Launch& launch, const char* name, void (*kernel)(Table<Item>, P...),
                  const Table<Item>& table, A&&... args) {
  gpu::launch({name,
               {unsigned(table.blocks()), 1, 1},
               {unsigned(chunk_threads), 1, 1},
               chunk_threads / gpu::warp_size * sizeof(double)},
              launch.stream, kernel, table, std::forward<A>(args)...);
}

// --- four elements at once, of a dtype known at run time ---

// The bits of four elements for arithmetic in T, unconverted, so that loads overlap. (f64 for
// arithmetic in f32 is rounded when loaded.)
template <class T>
struct Words {
  uint32_t word[sizeof(T)] = {};
};

// The position of four elements: the first `count` exist (none if negative); `whole` if all do and
// are aligned.
struct Four {
  int64_t at;
  int count;
  bool whole;
};
__device__ inline Four four_at(int64_t at, int64_t end, bool aligned) {
  const int count = int(end - at < 4 ? end - at : 4);
  return {at, count, aligned && count == 4};
}
// True if four elements of a dense view can be loaded at once.
inline bool is_aligned(const View& v) {
  return reinterpret_cast<uintptr_t>(v.data) % std::min<size_t>(16, 4 * size_of(v.dtype)) == 0;
}

template <class T>
__device__ inline Words<T> fetch(const void* data, DType t, const Four& f) {
  using Pair = gpu::Pack<uint32_t, 2>;
  using Vec4 = gpu::Pack<uint32_t, 4>;
  Words<T> bits;
  if (t == f64) {
    const double* const p = static_cast<const double*>(data) + f.at;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count) bits.word[e] = std::bit_cast<uint32_t>(float(p[e]));
    } else if (f.whole) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec4 q = gpu::load_as<Vec4>(p + 2 * half);
#pragma unroll
        for (int w = 0; w < 4; ++w) bits.word[4 * half + w] = q.v[w];
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint64_t x = e < f.count ? std::bit_cast<uint64_t>(p[e]) : 0;
        bits.word[2 * e] = uint32_t(x);
        bits.word[2 * e + 1] = uint32_t(x >> 32);
      }
    }
  } else if (t == f32) {
    const uint32_t* const p = static_cast<const uint32_t*>(data) + f.at;
    if (f.whole) {
      const Vec4 q = gpu::load_as<Vec4>(p);
#pragma unroll
      for (int w = 0; w < 4; ++w) bits.word[w] = q.v[w];
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count) bits.word[e] = p[e];
    }
  } else {
    const uint16_t* const p = static_cast<const uint16_t*>(data) + f.at;
    if (f.whole) {
      const Pair q = gpu::load_as<Pair>(p);
      bits.word[0] = q.v[0];
      bits.word[1] = q.v[1];
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count) bits.word[e / 2] |= uint32_t(p[e]) << (16 * (e % 2));
    }
  }
  return bits;
}

template <class T>
__device__ inline void store(void* data, DType t, const Four& f, const Words<T>& bits) {
  using Pair = gpu::Pack<uint32_t, 2>;
  using Vec4 = gpu::Pack<uint32_t, 4>;
  const auto quad = [&](int from) {
    return Vec4{{bits.word[from], bits.word[from + 1], bits.word[from + 2], bits.word[from + 3]}};
  };
  if (sizeof(T) == 8 && t == f64) {
    double* const p = static_cast<double*>(data) + f.at;
    if (f.whole) {
      gpu::store_global(p, quad(0));
      gpu::store_global(p + 2, quad(sizeof(T) - 4));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count)
          p[e] = std::bit_cast<double>(uint64_t(bits.word[2 * e % sizeof(T) + 1]) << 32 |
                                       bits.word[2 * e % sizeof(T)]);
    }
  } else if (t == f32) {
    uint32_t* const p = static_cast<uint32_t*>(data) + f.at;
    if (f.whole) {
      gpu::store_global(p, quad(0));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count) p[e] = bits.word[e];
    }
  } else {
    uint16_t* const p = static_cast<uint16_t*>(data) + f.at;
    if (f.whole) {
      gpu::store_global(p, Pair{{bits.word[0], bits.word[1]}});
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (e < f.count) p[e] = uint16_t(bits.word[e / 2] >> (16 * (e % 2)));
    }
  }
}

// Element e of four as T; and four values as bits of a dtype.
template <class T>
__device__ inline T element(const Words<T>& bits, DType t, int e) {
  if (sizeof(T) == 8 && t == f64)
    return T(std::bit_cast<double>(uint64_t(bits.word[2 * e % sizeof(T) + 1]) << 32 |
                                   bits.word[2 * e % sizeof(T)]));
  if (t == f32 || t == f64) return T(std::bit_cast<float>(bits.word[e]));
  const uint16_t half = uint16_t(bits.word[e / 2] >> (16 * (e % 2)));
  return T(t == f16 ? gpu::widen(std::bit_cast<Half>(half))
                    : gpu::widen(std::bit_cast<BFloat16>(half)));
}
template <class T>
__device__ inline Words<T> packed(const T (&x)[4], DType t) {
  Words<T> bits;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (sizeof(T) == 8 && t == f64) {
      const uint64_t b = std::bit_cast<uint64_t>(double(x[e]));
      bits.word[2 * e % sizeof(T)] = uint32_t(b);
      bits.word[2 * e % sizeof(T) + 1] = uint32_t(b >> 32);
    } else if (t == f32) {
      bits.word[e] = std::bit_cast<uint32_t>(float(x[e]));
    } else {
      const uint16_t half =
          t == f16 ? gpu::round_to<Half>(x[e]).bits : gpu::round_to<BFloat16>(x[e]).bits;
      bits.word[e / 2] |= uint32_t(half) << (16 * (e % 2));
    }
  }
  return bits;
}

// Stores one number of any float dtype.
__device__ inline void store_one(void* data, DType t, double x) {
  const double all[4] = {x};
  store(data, t, {0, 1, false}, packed(all, t));
}

// An optional number in device memory, f32 or f64.
struct Scalar {
  const void* data;
  bool is_double;

  explicit Scalar(const View& v) : data(v.data), is_double(v.dtype == f64) {}
  __device__ double or_else(double absent) const {
    if (!data) return absent;
    return is_double ? *static_cast<const double*>(data) : double(*static_cast<const float*>(data));
  }
};

// --- reductions over a block, in a fixed order; all threads get the result ---
template <class T, class Join>
__device__ T over_block(T v, Join join) {
  for (int mask = gpu::warp_size / 2; mask > 0; mask /= 2) v = join(v, gpu::shuffle_xor(v, mask));
  const gpu::Shared<T> of_warps = gpu::shared_memory<T>();
  gpu::sync_block();  // the last result may still be read
  if (gpu::lane() == 0) of_warps[gpu::thread().x / gpu::warp_size] = v;
  gpu::sync_block();
  v = of_warps[0];
  for (int w = 1; w < chunk_threads / gpu::warp_size; ++w) v = join(v, T(of_warps[w]));
  return v;
}
template <class T>
__device__ T sum_over_block(T v) {
  return over_block(v, [](T a, T b) { return a + b; });
}

}  // namespace mixtape::kernels::cuda
