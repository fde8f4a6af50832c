#pragma once
// safetensors: named tensors in one file, exchanged with Python (huggingface/safetensors). Eight
// bytes of header length, a JSON header, the data. Nothing in it can run, and the reader trusts
// nothing in it.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape::io {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
using Metadata = std::map<std::string, std::string>;

struct SafeTensors {
  std::map<std::string, Tensor> tensors;
  Metadata metadata;
};

// Writes tensors on the CPU, strided ones row-major, atomically: a crash leaves the old file or the
// new one. Throws Error on a name given twice and when the disk refuses.
void save(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Throws Error that names the file and the tensor or byte when anything about the file is not as
// the format wants it, before memory for tensors is allocated.
SafeTensors load(const std::string& path);

// The same from memory; `name` stands for the file in errors.
SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name);

}  // namespace mixtape::io
