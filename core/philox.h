#pragma once
// Philox4x32-10: random bits as a pure function of (seed, counter), equal on every device.
// Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011).

#include <array>
#include <cstdint>
#include <type_traits>

#include "core/draw.h"
#include "core/half.h"  // MIXTAPE_HD

namespace mixtape {

struct Philox {
  using Block = std::array<uint32_t, 4>;

  MIXTAPE_HD static constexpr Block bits(Block counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t(0xD2511F53u) * counter[0], b = uint64_t(0xCD9E8D57u) * counter[2];
      counter = {uint32_t(b >> 32) ^ counter[1] ^ key0, uint32_t(b),
                 uint32_t(a >> 32) ^ counter[3] ^ key1, uint32_t(a)};
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    return counter;
  }
  // The block-th block of the stream of `seed`.
  MIXTAPE_HD static constexpr Block bits(uint64_t seed, uint64_t block) {
    return bits({uint32_t(block), uint32_t(block >> 32), 0, 0}, uint32_t(seed),
                uint32_t(seed >> 32));
  }
  MIXTAPE_HD static constexpr Block bits(const Draw& draw, uint64_t block) {
    return bits(draw.seed, draw.offset + block);
  }
  // The purpose of a seed made of another: the last word of a counter, 0 in the streams themselves.
  enum class Purpose : uint32_t { rounding = 1, transforms = 1, dataset = 2, chunks = 3 };
  static constexpr uint64_t seed_for(Purpose purpose, uint64_t seed, uint64_t count) {
    const Block b = bits({uint32_t(count), uint32_t(count >> 32), 0, uint32_t(purpose)},
                         uint32_t(seed), uint32_t(seed >> 32));
    return uint64_t(b[0]) << 32 | b[1];
  }
  // 24 bits as a float in [0, 1): exact, so equal on every device.
  MIXTAPE_HD static constexpr float uniform(uint32_t bits) { return float(bits >> 8) * 0x1p-24f; }
  // With as many bits as T's fraction holds: with more, rounding could give 1.
  template <class T>
  MIXTAPE_HD static constexpr float uniform_of(uint32_t bits) {
    constexpr int dropped = std::is_same_v<T, Half> ? 13 : std::is_same_v<T, BFloat16> ? 16 : 0;
    return float(bits >> (8 + dropped)) * (0x1p-24f * (1 << dropped));
  }
};

}  // namespace mixtape
