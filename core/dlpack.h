#pragma once
// DLPack: shares tensors with other libraries without a copy. PyTorch, NumPy and JAX support it;
// CuPy takes tensors of a CUDA device only. Each side sees the other's writes, but the tape does
// not notice those from outside. The structs are in core/dlpack_abi.h and in DLPack's own header.
//
// Neither side knows the other's streams, so to_dlpack() and the deleter of its result wait for the
// device. After writing to a shared tensor, synchronize before the other side reads it.

#include "core/tensor.h"

struct DLManagedTensor;           // before DLPack 1.0
struct DLManagedTensorVersioned;  // since

namespace mixtape {

// The memory lives until the receiver calls the deleter. Throws Error if x.requires_grad().
DLManagedTensor* to_dlpack(const Tensor& x);
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x);

// Takes ownership of the struct, even if it throws: the deleter runs once no tensor uses the
// memory. Copies a read-only tensor, since a Tensor is writable. Throws Error on devices other than
// the CPU, unsupported dtypes, more than max_rank dimensions and misaligned elements.
Tensor from_dlpack(DLManagedTensor* from);
Tensor from_dlpack(DLManagedTensorVersioned* from);

}  // namespace mixtape
