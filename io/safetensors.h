#pragma once
// safetensors: named tensors in one file, exchanged with Python (huggingface/safetensors). Eight
// bytes of header length, a JSON header, the data. Nothing in it can run, and the reader trusts
// nothing in it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::io {

using Metadata = std::map<std::string, std::string>;

struct SafeTensors {
  StateDict tensors;  // in the order of their names
  Metadata metadata;
};

// Writes tensors on any device, strided ones row-major, atomically: a crash leaves the old file or
// the new one. Throws Error on a name given twice and when the disk refuses.
void save(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

struct ShardOptions {
  uint64_t max_bytes = 5'000'000'000;  // of tensors in one file, unless one alone is larger
  Metadata metadata = {};              // of each file
};
// The same in several files: model-00001-of-00003.safetensors and so on, filled in the order of the
// tensors, and model.safetensors.index.json, which says where each is, for path model.safetensors.
// All are written before the first takes its name, the index last.
void save_sharded(const std::string& path, const StateDict& tensors,
                  const ShardOptions& options = {});

// Reads one file, or if its name ends in .index.json, all the files beside it that it names: they
// hold those tensors and no other, and must be in its folder. Metadata that differs is the first
// file's. Throws Error that names the file and the tensor or byte when anything about a file is not
// as the format wants it, before memory for its tensors is allocated.
SafeTensors load(const std::string& path);

// One file from memory; `name` stands for it in errors.
SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name);
// The text of an index: which file holds each tensor.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& name);

}  // namespace mixtape::io
