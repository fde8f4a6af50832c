#pragma once
// Tensors as bytes, for the formats that hold tensors. Little-endian, as the CPU.

#include <functional>

#include "core/tensor.h"

namespace mixtape::io {

// The size of a tensor in bytes, or nothing if it exceeds 63 bits. Checks what a file claims.
std::optional<uint64_t> bytes_needed(const Shape& shape, DType dtype);

uint64_t bytes_of(const Tensor& t);
std::span<std::byte> bytes_in(const Tensor& t);  // t must be contiguous

// Passes on the elements in row-major order in chunks; a contiguous t is one chunk. Any device.
void for_each_chunk(const Tensor& t, const std::function<void(std::span<const std::byte>)>& f);

// The position of the first byte of a bool tensor that is neither 0 nor 1, if any.
std::optional<uint64_t> first_bad_bool(const Tensor& t);

}  // namespace mixtape::io
