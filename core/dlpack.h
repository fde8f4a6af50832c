#pragma once
// Tensors to and from other libraries without a copy: PyTorch, NumPy and JAX speak DLPack; CuPy
// only takes tensors of a CUDA device. Both sides see one memory, so what one writes the other
// reads; the tape does not notice writes from outside. The structs are in core/dlpack_abi.h and in
// DLPack's own header.
//
// Neither side knows the other's streams: to_dlpack() waits for the device, and so does the deleter
// of what it gave; who writes to such a tensor waits before the other reads it.

#include "core/tensor.h"

struct DLManagedTensor;           // before DLPack 1.0
struct DLManagedTensorVersioned;  // since

namespace mixtape {

// The memory lives until the receiver calls the deleter. Throws Error if x.requires_grad().
DLManagedTensor* to_dlpack(const Tensor& x);
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x);

// Takes the struct over, also when it throws: its deleter runs when no tensor sees the memory any
// more. A read-only tensor is copied, since ours can be written to. Throws Error on what no Tensor
// can be: other devices than the CPU, other dtypes, more dimensions, elements that are not aligned.
Tensor from_dlpack(DLManagedTensor* from);
Tensor from_dlpack(DLManagedTensorVersioned* from);

}  // namespace mixtape
