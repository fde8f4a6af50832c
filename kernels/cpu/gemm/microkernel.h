#pragma once
// Microkernel: the part of a matrix product that depends on the instruction set, namely packing and
// the sums of one tile of c. Each is compiled in a file of its own with that set's flags; gemm.cpp
// and conv.cpp choose one at run time and do everything else. Without one, products use Eigen and
// convolutions the portable microkernel.

#include <cstdint>

#include "kernels/common/instruction_set.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {

// Byte offsets of one segment of k from Tile::a and Tile::b.
struct KSegment {
  int64_t a, b;
};

// Arguments of one tile: out[i][j] = sum over k of a[i][k] * b[k][j] (+ add[i][j], if given); `out`
// may be `add`. k counts groups of Microkernel::k_group elements; it runs once over each segment,
// or just once if there is no list of them. Strides of a and b are in bytes, others in elements.
template <class T>
struct Tile {
  int64_t k_groups;
  const void *a, *b;
  int64_t a_row_stride, a_k_stride, b_k_stride;
  int64_t b_line_stride = 0;  // not 0: b is read in place with lines along k, and a is packed
  void* out;
  int64_t out_row_stride;
  DType out_dtype = dtype_of<T>();  // T's, or the operands'
  const T* add;
  int64_t add_row_stride;
  bool cold_out = false;  // `out` is larger than this processor's own caches
  const KSegment* segments = nullptr;
  int64_t segment_count = 1;
};

// `count` lines along k to be packed side by side: rows of a, or columns of b.
struct PackSource {
  const void* data;
  int64_t line_stride, k_stride;  // in elements
  int64_t count;
  int64_t readable;  // lines in memory from here on, at least `count`
};

// Products [m, k] @ [k, n], one in each lane: where another tile has a number of a, b or c, these
// have a vector. Strides are in vectors; c is dense.
template <class T>
struct LaneProducts {
  int64_t m, n, k;
  const T *a, *b;
  T* c;
  int64_t a_row, a_k, b_k, b_column;
};

// Rows of sums in memory: sums[i][j] += sum over k of a[i][k] * b[k][j]. a is packed, b is in
// memory with its columns side by side; its stride is in elements. Rows of sums are whole vectors.
template <class T>
struct RowSums {
  int64_t rows, columns, k;
  const T* a;
  const void* b;
  int64_t b_k_stride;
  T* sums;
  int64_t row_stride;
};

template <class T>  // the type of sums: float or double
struct Microkernel {
  int rows, lanes, vectors;  // the largest tile has rows x (vectors * lanes) sums
  int k_group;               // elements of k that are multiplied together: 2 for bf16 dot products
  int k_group_bytes;
  bool in_place;  // a k_group is stored in memory as it is packed, so operands need no packing
  void (*tile)(int rows, int vectors, const Tile<T>&);
  // to[g * width + i] = k_group g of line i; zero beyond `depth` elements, unspecified beyond the
  // lines. If width is no multiple of lanes, writes up to `lanes` groups past the end.
  void (*pack)(const PackSource&, int64_t depth, int64_t width, void* to);
  void (*lane_products)(const LaneProducts<T>&) = nullptr;  // so if k_group is not 1
  void (*row_sums)(const RowSums<T>&) = nullptr;
};

// The microkernel for operands of this dtype; null if there is only the portable one.
template <class T>
const Microkernel<T>* find_microkernel(Isa, DType);
// The same, with the portable one as fallback.
template <class T>
const Microkernel<T>& microkernel_or_portable(Isa, DType);

// One microkernel for each dtype of operands.
struct Microkernels {
  Microkernel<double> f64;
  Microkernel<float> f32, f16, bf16;
};
extern const Microkernels portable_microkernels, avx2_microkernels, avx512_microkernels,
    neon_microkernels;
extern const Microkernel<float> avx512_bf16_microkernel, neon_bf16_microkernel;

inline namespace MIXTAPE_TARGET {
// gemm() by Eigen, without its row sums.
void eigen_gemm(Launch&, In a, In b, const Epilogue& epilogue, Out c);
}  // namespace MIXTAPE_TARGET

}  // namespace cpu
}  // namespace mixtape::kernels
