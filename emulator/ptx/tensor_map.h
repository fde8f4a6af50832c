#pragma once
// The contents of a CUtensorMap, as cuTensorMapEncodeTiled packs it here.

#include <cstdint>

namespace mixtape::ptx {

struct TensorMap {
  static constexpr uint32_t mark = 0x6d61'7073;
  uint32_t is_map = mark;
  uint8_t rank = 0, element_bytes = 0;
  uint8_t swizzle = 0;  // bits of a 16-byte chunk's place that change from row to row
  bool nan = false, to_tf32 = false;
  uint16_t box[5] = {1, 1, 1, 1, 1};
  uint64_t base = 0, size[5] = {1, 1, 1, 1, 1}, stride[5] = {};  // bytes; the first is an element's
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace mixtape::ptx
