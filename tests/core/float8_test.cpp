// Conversions to and from 8-bit floats, against checksums of ml_dtypes' results for the same bits.
#include "core/float8.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mixtape {
namespace float8_test {

// FNV-1a
class Checksum {
 public:
  void add(uint8_t byte) { sum_ = (sum_ ^ byte) * 0x100000001b3u; }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0xcbf29ce484222325u;
};

// The f32 bits of all codes, with one NaN; and the codes of 393,216 f32, all upper halves with six
// lower ones.
template <class F>
std::pair<uint64_t, uint64_t> checksums() {
  Checksum values, codes;
  for (int c = 0; c < 256; ++c) {
    const float x = std::bit_cast<F>(uint8_t(c));
    const uint32_t bits = std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x);
    for (int byte = 0; byte < 4; ++byte) values.add(uint8_t(bits >> 8 * byte));
  }
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      codes.add(F(std::bit_cast<float>(upper << 16 | lower)).bits);
  return {values.sum(), codes.sum()};
}

TEST(Float8, IsThatOfMlDtypes) {
  EXPECT_EQ(checksums<F8E4M3>(), std::pair(0xdad1d9c50f749ca5u, 0x2774c221a9b3efc5u));
  EXPECT_EQ(checksums<F8E5M2>(), std::pair(0x6c1e56b6fb09c905u, 0xe0b75d497df94d25u));
  EXPECT_EQ(checksums<F8E8M0>(), std::pair(0x6d2c8b41c3f0e5a5u, 0x09baf3c8cf01425bu));
}

TEST(Float8, RoundsOnceToNearestEven) {
  EXPECT_EQ(float(F8E4M3(464.0f)), 448);
  EXPECT_TRUE(std::isnan(float(F8E4M3(465.0f))));
  EXPECT_TRUE(std::isnan(float(F8E4M3(-INFINITY))));
  EXPECT_EQ(float(F8E5M2(61439.0f)), 57344);
  EXPECT_EQ(float(F8E5M2(61440.0f)), INFINITY);
  EXPECT_EQ(float(F8E4M3(1.0625f)), 1);
  EXPECT_EQ(float(F8E4M3(1.0625 + 0x1p-40)), 1.125f);  // through f32 it would be a tie
  EXPECT_EQ(float(F8E4M3(0x1p-10f)), 0);
  EXPECT_EQ(float(F8E4M3(-0x1.1p-10f)), -0x1p-9f);
}

}  // namespace float8_test
}  // namespace mixtape
