#pragma once
// Tensor cores by wmma: opaque matrices, which a warp loads from memory, multiplies and stores. The
// device alone knows which lane holds which element. (nvcc's nvcuda::wmma would load bf16 by
// generic addresses, four bytes at a time; these instructions for shared memory become ldmatrix.)

#include "kernels/cuda/gpu.cuh"

namespace mixtape::gpu {

// The place of an operand in a product of 16 x depth by depth x 16.
enum class Use { A, B };
template <class T>
constexpr int matrix_depth = 32 / int(sizeof(T));  // f16, bf16: 16; f32, rounded to TF32: 8

// Matrix is a warp's operand, row- or column-major in memory, and MatrixSum 16 x 16 sums in f32.
// All lanes of a warp call these functions with the same arguments: the address of the matrix,
// aligned to 32 bytes, and the distance `ld` of its lines, in elements: a multiple of 16 bytes.
#ifdef __CUDACC__

template <Use use, class T, bool by_rows>
struct Matrix {
  uint32_t part[std::is_same_v<T, Half> ? 8 : 4];
};
template <class T>
struct MatrixSum {
  float part[8];
};

namespace detail {
// Parts of the names of instructions.
template <Use use>
inline constexpr char operand[] = "a";
template <>
inline constexpr char operand<Use::B>[] = "b";
template <bool by_rows>
inline constexpr char order[] = "row";
template <>
inline constexpr char order<false>[] = "col";
template <class T>
inline constexpr char shape[] = "m16n16k16";
template <>
inline constexpr char shape<float>[] = "m16n16k8";
template <class T>
inline constexpr char type[] = "f16";
template <>
inline constexpr char type<BFloat16>[] = "bf16";
template <>
inline constexpr char type<float>[] = "tf32";

__device__ inline unsigned address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
}  // namespace detail

#define MIXTAPE_WMMA_LOAD(space, at)                                                        \
  if constexpr (sizeof m.part == 32)                                                        \
    asm volatile("wmma.load.%10.sync.aligned.%11.%12." space                                \
                 ".%13 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                         \
                 : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3]),      \
                   "=r"(m.part[4]), "=r"(m.part[5]), "=r"(m.part[6]), "=r"(m.part[7])       \
                 : at, "r"(ld), "C"(detail::operand<use>), "C"(detail::order<by_rows>),     \
                   "C"(detail::shape<T>), "C"(detail::type<T>)                              \
                 : "memory");                                                               \
  else                                                                                      \
    asm volatile("wmma.load.%6.sync.aligned.%7.%8." space ".%9 {%0, %1, %2, %3}, [%4], %5;" \
                 : "=r"(m.part[0]), "=r"(m.part[1]), "=r"(m.part[2]), "=r"(m.part[3])       \
                 : at, "r"(ld), "C"(detail::operand<use>), "C"(detail::order<by_rows>),     \
                   "C"(detail::shape<T>), "C"(detail::type<T>)                              \
                 : "memory");                                                               \
  if constexpr (std::is_same_v<T, float>)                                                   \
    for (uint32_t& part : m.part) part = rounded_to_tf32(__uint_as_float(part))

template <Use use, class T, bool by_rows>
__device__ inline void load_matrix(Matrix<use, T, by_rows>& m, Shared<T> from, int ld) {
  MIXTAPE_WMMA_LOAD("shared", "r"(detail::address(from)));
}
template <Use use, class T, bool by_rows>
__device__ inline void load_global_matrix(Matrix<use, T, by_rows>& m, const T* from, int ld) {
  MIXTAPE_WMMA_LOAD("global", "l"(from));
}
#undef MIXTAPE_WMMA_LOAD

// sum += a b
template <class T, bool a_by_rows, bool b_by_rows>
__device__ inline void multiply(MatrixSum<T>& sum, const Matrix<Use::A, T, a_by_rows>& a,
                                const Matrix<Use::B, T, b_by_rows>& b) {
  float(&d)[8] = sum.part;
  if constexpr (sizeof a.part == 32)
    asm volatile(
        "wmma.mma.sync.aligned.%24.%25.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(a.part[4]),
          "r"(a.part[5]), "r"(a.part[6]), "r"(a.part[7]), "r"(b.part[0]), "r"(b.part[1]),
          "r"(b.part[2]), "r"(b.part[3]), "r"(b.part[4]), "r"(b.part[5]), "r"(b.part[6]),
          "r"(b.part[7]), "C"(detail::order<a_by_rows>), "C"(detail::order<b_by_rows>));
  else
    asm volatile(
        "wmma.mma.sync.aligned.%16.%17.%18.f32.%19.%19.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b.part[0]),
          "r"(b.part[1]), "r"(b.part[2]), "r"(b.part[3]), "C"(detail::order<a_by_rows>),
          "C"(detail::order<b_by_rows>), "C"(detail::shape<T>), "C"(detail::type<T>));
}

#define MIXTAPE_WMMA_STORE(space, at)                                                  \
  asm volatile("wmma.store.d.sync.aligned.row.%10." space                              \
               ".f32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7}, %9;" ::"f"(sum.part[0]),  \
               "f"(sum.part[1]), "f"(sum.part[2]), "f"(sum.part[3]), "f"(sum.part[4]), \
               "f"(sum.part[5]), "f"(sum.part[6]), "f"(sum.part[7]), at, "r"(ld),      \
               "C"(detail::shape<T>)                                                   \
               : "memory")
template <class T>
__device__ inline void store_matrix(Shared<float> to, int ld, const MatrixSum<T>& sum) {
  MIXTAPE_WMMA_STORE("shared", "r"(detail::address(to)));
}
template <class T>
__device__ inline void store_global_matrix(float* to, int ld, const MatrixSum<T>& sum) {
  MIXTAPE_WMMA_STORE("global", "l"(to));
}
#undef MIXTAPE_WMMA_STORE

#else

template <Use use, class T, bool by_rows>
struct Matrix {
  simt::WarpMatrix<use == Use::A ? 16 : matrix_depth<T>, use == Use::A ? matrix_depth<T> : 16> all;
};
template <class T>
struct MatrixSum {
  simt::WarpMatrix<16, 16> all;
};

template <Use use, class T, bool by_rows>
void load_matrix(Matrix<use, T, by_rows>& m, Shared<T> from, int ld,
                 SourceLocation where = SourceLocation::here()) {
  m.all.template load<by_rows>(from.unchecked(), ld, true, where);
}
template <Use use, class T, bool by_rows>
void load_global_matrix(Matrix<use, T, by_rows>& m, const T* from, int ld,
                        SourceLocation where = SourceLocation::here()) {
  m.all.template load<by_rows>(from, ld, false, where);
}
template <class T, bool a_by_rows, bool b_by_rows>
void multiply(MatrixSum<T>& sum, const Matrix<Use::A, T, a_by_rows>& a,
              const Matrix<Use::B, T, b_by_rows>& b,
              SourceLocation where = SourceLocation::here()) {
  sum.all.add_product(a.all, b.all, where);
}
template <class T>
void store_matrix(Shared<float> to, int ld, const MatrixSum<T>& sum,
                  SourceLocation where = SourceLocation::here()) {
  sum.all.store(to.unchecked(), ld, true, where);
}
template <class T>
void store_global_matrix(float* to, int ld, const MatrixSum<T>& sum,
                         SourceLocation where = SourceLocation::here()) {
  sum.all.store(to, ld, false, where);
}

#endif

}  // namespace mixtape::gpu
