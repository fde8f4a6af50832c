// cuTensorMapEncodeTiled, which rejects the arguments that the driver rejects, and the lookup of
// it.
#include "emulator/ptx/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <string_view>

#include "emulator/ptx/ptx.h"

namespace mixtape::ptx {
namespace {

int bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
    default:
      return 0;
  }
}
bool is_float(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ||
         type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 ||
         type == CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
}
int swizzle_bytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 128;
    default:
      return 16;
  }
}

CUresult refuse(const std::string& what) {
  complain("cuTensorMapEncodeTiled: " + what);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult encode(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                const cuuint32_t* steps, CUtensorMapInterleave interleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const auto of = [](const char* what, uint64_t n, uint32_t d) {
    return std::string(what) + " of " + std::to_string(n) + " in dimension " + std::to_string(d);
  };
  TensorMap map;
  map.rank = uint8_t(rank);
  map.element_bytes = uint8_t(bytes_of(type));
  if (reinterpret_cast<uint64_t>(to) % 64 != 0) return refuse("a map that is not aligned to 64");
  if (rank < 1 || rank > 5) return refuse(std::to_string(rank) + " dimensions");
  if (map.element_bytes == 0) return refuse("a type that is not known here");
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
    return refuse("an interleaving or swizzle that is not known here");
  map.base = reinterpret_cast<uint64_t>(address);
  if (map.base == 0 || map.base % 16 != 0) return refuse("an address that is not aligned to 16");
  for (uint32_t d = 0; d < rank; ++d) {
    map.size[d] = sizes[d];
    map.stride[d] = d == 0 ? map.element_bytes : strides[d - 1];
    map.box[d] = uint16_t(box[d]);
    if (sizes[d] == 0 || sizes[d] > uint64_t{1} << 32) return refuse(of("a size", sizes[d], d));
    if (d > 0 && (strides[d - 1] % 16 != 0 || strides[d - 1] >= uint64_t{1} << 40))
      return refuse(of("a stride", strides[d - 1], d));
    if (box[d] == 0 || box[d] > 256) return refuse(of("a box", box[d], d));
    if (steps[d] != 1) return refuse(of("a step", steps[d], d) + " is not known here");
  }
  const uint32_t row = box[0] * map.element_bytes, wide = uint32_t(swizzle_bytes(swizzle));
  if (row % 16 != 0) return refuse("rows of a box of " + std::to_string(row) + " bytes");
  // The place of narrower ones is not documented.
  if (wide > 16 && row != wide)
    return refuse("rows of a box of " + std::to_string(row) + " bytes, swizzled by " +
                  std::to_string(wide));
  map.swizzle = uint8_t(wide / 16 - 1);
  map.nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  if (map.nan && !is_float(type)) return refuse("NaN beyond a tensor of integers");
  map.to_tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  std::memset(static_cast<void*>(to), 0, sizeof *to);
  std::memcpy(static_cast<void*>(to), &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace mixtape::ptx

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                        unsigned long long,
                                                        cudaDriverEntryPointQueryResult* found) {
  const bool known = std::string_view(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&mixtape::ptx::encode) : nullptr;
  if (found) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  if (!known) mixtape::ptx::complain(std::string("there is no driver function ") + name);
  return known ? cudaSuccess : cudaErrorInvalidValue;
}
