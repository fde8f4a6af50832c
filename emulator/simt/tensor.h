#pragma once
// Tensor cores of the emulator: ldmatrix and mma.sync, with the register layout that PTX documents,
// and wmma, whose layout it does not.

#include <bit>

#include "emulator/simt/simt.h"

namespace mixtape::simt {

// The lanes' rows of 16 bytes form four matrices of 8 rows. part[i] is word lane % 4 of row lane /
// 4 of matrix i or, transposed, two elements of two bytes of its column lane / 4.
inline void load_matrices(const void* row, bool transposed, uint32_t (&part)[4],
                          SourceLocation where) {
  touch(row, 16, Access::Read);
  const Gathered<const void*> rows(row, where);
  const int down = lane() / 4, along = lane() % 4;
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const int r = transposed ? 2 * along + e : down, c = transposed ? down : 2 * along + e;
      uint16_t element;
      std::memcpy(&element, static_cast<const char*>(rows[8 * i + r]) + 2 * c, sizeof element);
      part[i] = (e == 0 ? 0 : part[i]) | uint32_t(element) << (16 * e);
    }
}

// The reverse for four matrices that are not transposed: lane l stores word l % 4 of row l / 4 of
// each.
inline void store_matrices(void* row, const uint32_t (&part)[4], SourceLocation where) {
  touch(row, 16, Access::Write);
  const Gathered<void*> rows(row, where);
  for (int i = 0; i < 4; ++i)
    std::memcpy(static_cast<char*>(rows[8 * i + lane() / 4]) + lane() % 4 * 4, &part[i], 4);
}

// Rounds to TF32: 10 bits of fraction, to nearest, ties away from zero, as cvt.rna does.
inline uint32_t rounded_to_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) != 0x7f800000u ? (bits + 0x1000u) & ~0x1fffu : bits;
}

// A product of 16 x depth by depth x 16, each element summed in the order of k, for depths of 8 and
// 16.
template <int depth>
void product(const float (&a)[16][depth], const float (&b)[depth][16], float (&c)[16][16]);

// sum += a b^T for 16 lines of 16 numbers of two bytes, or of 8 of TF32, whose last bits a tensor
// core ignores. Every lane passes pointers to its parts; the first lane computes all of it.
template <class T>  // Half, BFloat16 or float
void multiply(float (&sum)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4],
              SourceLocation where);

// A matrix of a warp, for wmma. Its elements are spread over the lanes in an order of no device, so
// that no kernel can rely on one.
template <int rows, int columns>
class WarpMatrix {
 public:
  // Loads a row- or column-major matrix, whose lines are ld apart. All lanes name the same one.
  template <bool by_rows, class T>
  void load(const T* from, int ld, bool is_shared, SourceLocation where) {
    check_place(from, ld);
    if (is_shared) {  // 16 bytes a lane, as for ldmatrix; before the lanes meet, which is a barrier
      constexpr int lines = by_rows ? rows : columns, chunk = 16 / int(sizeof(T));
      touch(from + lane() % lines * ld + lane() / lines * chunk, 16, Access::Read);
    }
    meet(from, ld, where);
    for (int i = 0; i < count / 32; ++i) {
      const int e = element(lane(), i), r = e / columns, c = e % columns;
      const T x = from[by_rows ? r * ld + c : c * ld + r];
      if constexpr (sizeof(T) == 4)
        mine_[i] = std::bit_cast<float>(rounded_to_tf32(x));
      else
        mine_[i] = float(x);
    }
  }
  // Stores a row-major matrix.
  void store(float* to, int ld, bool is_shared, SourceLocation where) const {
    check_place(to, ld);
    // Both before and after the lanes meet, which is a barrier, this is a write.
    for (const bool have_met : {false, true}) {
      if (have_met) meet(to, ld, where);
      for (int i = 0; i < count / 32; ++i) {
        const int e = element(lane(), i);
        float* const at = to + e / columns * ld + e % columns;
        if (is_shared) touch(at, sizeof *at, Access::Write);
        if (have_met) *at = mine_[i];
      }
    }
  }
  // *this += a b. The first lane computes all of it.
  template <int depth>
  void add_product(const WarpMatrix<rows, depth>& a, const WarpMatrix<depth, columns>& b,
                   SourceLocation where) {
    struct Parts {
      const float *a, *b;
      float* sum;
    };
    const Parts mine{a.mine_, b.mine_, mine_};
    const Gathered<Parts> all(mine, where);
    if (lane() == 0) {
      static thread_local float wide_a[16][depth], wide_b[depth][16], c[16][16];
      for (int l = 0; l < 32; ++l)
        for (int i = 0; i < 16 * depth / 32; ++i) {
          const int of_a = a.element(l, i), of_b = b.element(l, i);
          wide_a[of_a / depth][of_a % depth] = all[l].a[i];
          wide_b[of_b / 16][of_b % 16] = all[l].b[i];
        }
      product(wide_a, wide_b, c);
      for (int l = 0; l < 32; ++l)
        for (int i = 0; i < count / 32; ++i) {
          const int e = element(l, i);
          all[l].sum[i] += c[e / 16][e % 16];
        }
    }
    sync_warp(where);
  }

 private:
  template <int, int>
  friend class WarpMatrix;
  static constexpr int count = rows * columns;
  static int element(int lane, int i) { return ((i * 32 + lane) * 77 + 41) % count; }

  template <class T>
  static void check_place(const T* at, int ld) {
    check_aligned(at, 32);
    require(size_t(ld) * sizeof(T) % 16 == 0, "lines of a wmma matrix are not 16-byte aligned");
  }
  // The lanes meet with the address and the distance of lines.
  template <class T>
  static void meet(const T* at, int ld, SourceLocation where) {
    struct Place {
      const T* at;
      int64_t ld;
    };
    const Gathered<Place> all({at, ld}, where);
    for (int l = 0; l < 32; ++l) {
      const Place other = all[l];
      require(other.at == at && other.ld == ld, "lanes of a warp name different wmma matrices");
    }
  }

  float mine_[count / 32] = {};
};

}  // namespace mixtape::simt
