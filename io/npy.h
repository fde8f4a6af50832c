#pragma once
// NumPy files: .npy holds one array, .npz is a zip archive of named ones. Arrays without a matching
// dtype, such as structured and object arrays, are rejected; loading never executes code.

#include "io/safetensors.h"

namespace mixtape::io {

// Writes a tensor from any device in row-major order, atomically. Throws Error for bf16, which
// NumPy does not have (convert it with .to(f32)), and if writing fails.
void save_npy(const std::string& path, const Tensor& t);
// Reads versions 1.0 to 3.0 in either byte order; Fortran order becomes strides. If the file is
// invalid, throws Error that names file and byte, before allocating the tensor.
Tensor load_npy(const std::string& path);

// Writes an uncompressed archive, as numpy.savez does; the tensor `weight` is the entry weight.npy.
// Throws Error for a duplicate name.
void save_npz(const std::string& path, const StateDict& tensors);
// Reads archives of numpy.savez and savez_compressed (which needs zlib in this build), including
// zip64. Throws Error if entries overlap, claim more bytes than they can unpack to, or together
// take more memory than memory_limit().
StateDict load_npz(const std::string& path, uint64_t max_memory = 0);

// Parses a file in memory, which errors call `name`.
Tensor parse_npy(std::span<const std::byte> file, const std::string& name);
// The same for an archive.
StateDict parse_npz(std::span<const std::byte> file, const std::string& name,
                    uint64_t max_memory = 0);

}  // namespace mixtape::io
