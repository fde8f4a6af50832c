#pragma once
// NumPy's files: .npy, one array, and .npz, a zip archive of them by name. Arrays that a dtype here
// has no match for are refused, among them structured and object ones: nothing in a file can run.

#include "io/safetensors.h"

namespace mixtape::io {

// Writes a tensor on any device, a strided one row-major, atomically. Throws Error on bf16, which
// NumPy does not have (convert it with .to(f32)), and when the disk refuses.
void save_npy(const std::string& path, const Tensor& t);
// Reads versions 1.0 to 3.0, either byte order. An array in Fortran order is one with such strides.
// Throws Error that names the file and the byte when anything is not as the format wants it, before
// memory for the tensor is allocated.
Tensor load_npy(const std::string& path);

// The same for an archive, uncompressed, as numpy.savez writes; `weight` is the entry weight.npy.
// Throws Error on a name given twice, and at 4 GiB, where plain zip ends.
void save_npz(const std::string& path, const StateDict& tensors);
// Reads what numpy.savez and savez_compressed write (the latter needs zlib in this build), zip64
// included. Entries may neither overlap nor claim to be larger than their bytes can unpack to.
StateDict load_npz(const std::string& path);

// From memory; `name` stands for the file in errors.
Tensor parse_npy(std::span<const std::byte> file, const std::string& name);
StateDict parse_npz(std::span<const std::byte> file, const std::string& name);

}  // namespace mixtape::io
