#pragma once
// The structs of DLPack 1.0, by which libraries hand tensors to each other: a fixed binary
// interface, whose names are not ours to choose. Its own header takes the place of this one if that
// was included before, and is empty afterwards.

#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_

#include <cstdint>

struct DLPackVersion {
  uint32_t major, minor;  // structs of another major version are laid out otherwise
};

enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2 };
struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};

enum DLDataTypeCode : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };
struct DLDataType {
  uint8_t code;  // a DLDataTypeCode
  uint8_t bits;
  uint16_t lanes;  // 1, but for elements that are short vectors
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;      // in elements; null: row-major
  uint64_t byte_offset;  // of the first element from data
};

// A tensor with what keeps it alive. Who is done with it calls the deleter, unless that is null.
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

#endif
