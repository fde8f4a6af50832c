#pragma once
// Tensors as runs of bytes: what the formats that hold tensors share. Little-endian, as the CPU.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "core/tensor.h"

namespace mixtape::io {

// The bytes of such a tensor, or nothing if they do not fit 63 bits: for what a file claims.
std::optional<uint64_t> bytes_needed(const Shape& shape, DType dtype);

uint64_t bytes_of(const Tensor& t);
std::span<std::byte> bytes_in(const Tensor& t);  // of a contiguous one

// The elements in row-major order, a run at a time; one run if t is contiguous. On any device.
void each_run(const Tensor& t, const std::function<void(std::span<const std::byte>)>& f);

// The first byte of a bool tensor that is neither 0 nor 1, if t is one and has such.
std::optional<uint64_t> first_bad_bool(const Tensor& t);

}  // namespace mixtape::io
