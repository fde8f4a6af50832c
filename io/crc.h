#pragma once
// Checksums: CRC-32, as in zip, and CRC-32C (Castagnoli), as in TensorBoard's files.

#include <cstddef>
#include <cstdint>
#include <span>

namespace mixtape::io {

// Continues the checksum `before` with more bytes.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

}  // namespace mixtape::io
