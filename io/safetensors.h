#pragma once
// safetensors: named tensors in one file, compatible with Python (huggingface/safetensors): eight
// bytes of header length, a JSON header, the data. Everything is checked, nothing executed.

#include <map>

#include "core/state_dict.h"

namespace mixtape::io {

using Metadata = std::map<std::string, std::string>;

struct SafeTensors {
  StateDict tensors;  // sorted by name
  Metadata metadata;
};

// Writes tensors from any device in row-major order, atomically: a crash leaves either the old or
// the new file. Throws Error for a duplicate name and if writing fails.
void save(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

struct ShardOptions {
  uint64_t max_bytes = 5'000'000'000;  // of tensors per file, unless one alone is larger
  Metadata metadata = {};              // of each file
};
// Writes several files: for path model.safetensors, model-00001-of-00003.safetensors and so on,
// filled in the order of the tensors, and model.safetensors.index.json, which maps tensors to
// files. Writes all of them before renaming the first, and renames the index last.
void save_sharded(const std::string& path, const StateDict& tensors,
                  const ShardOptions& options = {});

// Reads one file or, if its name ends in .index.json, all files that it names: they must be in its
// folder and hold exactly the tensors listed. If metadata differ, the first file's are used. Throws
// Error that names the file and the tensor or byte if a file is invalid, before allocating tensors.
SafeTensors load(const std::string& path);

// Parses one file in memory; errors call it `name`.
SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name);
// Parses an index: the file of each tensor.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& name);

}  // namespace mixtape::io
