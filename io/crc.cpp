#include "io/crc.h"

#include <array>
#include <cstring>

namespace mixtape::io {
namespace {

// Eight tables process eight bytes per step (Kounavis and Berry 2005, "slicing by 8").
using Tables = std::array<std::array<uint32_t, 256>, 8>;
constexpr Tables tables(uint32_t polynomial) {  // bits reversed
  Tables t{};
  for (uint32_t n = 0; n < 256; ++n) {
    uint32_t c = n;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ polynomial : c >> 1;
    t[0][n] = c;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t n = 0; n < 256; ++n) t[k][n] = t[k - 1][n] >> 8 ^ t[0][t[k - 1][n] & 255];
  return t;
}
constexpr Tables ieee = tables(0xedb88320), castagnoli = tables(0x82f63b78);

uint32_t run(const Tables& t, std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  const std::byte* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    v ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= t[7 - k][v >> 8 * k & 255];
  }
  for (; n > 0; ++p, --n) crc = crc >> 8 ^ t[0][(crc ^ std::to_integer<uint32_t>(*p)) & 255];
  return ~crc;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  return run(ieee, bytes, before);
}
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  return run(castagnoli, bytes, before);
}

}  // namespace mixtape::io
