#pragma once
// ldmatrix and mma.sync of the emulator, with the register layout that PTX documents.

#include <bit>

#include "emulator/simt/simt.h"

namespace mixtape::simt {

// The lanes' rows of 16 bytes form four matrices of 8 rows. part[i] is word lane % 4 of row lane /
// 4 of matrix i or, transposed, two elements of two bytes of its column lane / 4.
inline void load_matrices(const void* row, bool transposed, uint32_t (&part)[4],
                          SourceLocation where) {
  touch(row, 16, Access::Read);
  const void* rows[32];
  gather(&row, sizeof row, rows, where);
  const int down = lane() / 4, along = lane() % 4;
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const int r = transposed ? 2 * along + e : down, c = transposed ? down : 2 * along + e;
      uint16_t element;
      std::memcpy(&element, static_cast<const char*>(rows[8 * i + r]) + 2 * c, sizeof element);
      part[i] = (e == 0 ? 0 : part[i]) | uint32_t(element) << (16 * e);
    }
}

// Rounds to TF32: 10 bits of fraction, to nearest, ties away from zero, as cvt.rna does.
inline uint32_t rounded_to_tf32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000u) != 0x7f800000u ? (bits + 0x1000u) & ~0x1fffu : bits;
}

// sum += a b^T for 16 lines of 16 numbers of two bytes, or of 8 of TF32, whose last bits a tensor
// core ignores. Every lane passes pointers to its parts; the first lane computes all of it.
template <class T>
void multiply(float (&sum)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4],
              SourceLocation where) {
  constexpr int depth = 32 / int(sizeof(T)), in_word = 4 / int(sizeof(T));
  struct Parts {
    const uint32_t *a, *b;
    float* sum;
  };
  const Parts mine{a, b, sum[0]};
  Parts all[32];
  gather(&mine, sizeof mine, all, where);
  if (lane() == 0) {
    static thread_local float wide_a[16][depth], wide_b[depth][16], product[16][16];
    const auto number = [](uint32_t word, int e) {
      if constexpr (sizeof(T) == 4)
        return std::bit_cast<float>(word & ~0x1fffu);
      else
        return float(std::bit_cast<T>(uint16_t(word >> (16 * e))));
    };
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i)
        for (int e = 0; e < in_word; ++e) {
          const int line = i % 2 * 8 + l / 4, k = i / 2 * (depth / 2) + l % 4 * in_word + e;
          wide_a[line][k] = number(all[l].a[i], e);
          wide_b[k][line] = number(all[l].b[i], e);
        }
    for (int r = 0; r < 16; ++r) {
      float line[16] = {};
      for (int k = 0; k < depth; ++k)
        for (int c = 0; c < 16; ++c) line[c] += wide_a[r][k] * wide_b[k][c];
      std::memcpy(product[r], line, sizeof line);
    }
    for (int l = 0; l < 32; ++l)
      for (int e = 0; e < 8; ++e)
        all[l].sum[e] += product[l / 4 + e % 4 / 2 * 8][e / 4 * 8 + l % 4 * 2 + e % 2];
  }
  sync_warp(where);
}

}  // namespace mixtape::simt
