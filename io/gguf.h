#pragma once
// GGUF, the file format of llama.cpp: typed metadata and tensors. Files are written, not read.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::io {

using GgufValue =
    std::variant<uint32_t, float, std::string, std::vector<std::string>, std::vector<int32_t>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

// Writes tensors from any device under their names, atomically. (GGUF lists sizes innermost first.)
// Throws Error for a duplicate name or key, for text that is not UTF-8, for a name of more than the
// 63 bytes that llama.cpp reads, for the key general.alignment, and for tensors that the format
// lacks: of more than 4 dimensions, u8 or bool. train::save_gguf writes a model that llama.cpp
// runs.
void save_gguf(const std::string& path, const StateDict& tensors, const GgufMetadata& metadata);

}  // namespace mixtape::io
