#pragma once
// safetensors: named tensors in one file, compatible with Python's (huggingface/safetensors): eight
// bytes of header length, a JSON header, the data. Everything is checked, nothing executed. load()
// and save() also read and write PyTorch's files (io/torch.h).

#include <map>

#include "core/state_dict.h"

namespace mixtape::io {

class Source;  // io/file.h

using Metadata = std::map<std::string, std::string>;

// A tensor of a dtype that Mixtape lacks, loaded as bytes.
struct RawTensor {
  std::string name;
  std::string dtype;  // the file's name for it: "F8_E4M3", "I16"
  Shape shape;
};

struct SafeTensors {  // the content of a file
  StateDict tensors;  // sorted by name
  Metadata metadata;
  std::vector<RawTensor> raw = {};  // tensors loaded as bytes (see keep_bytes), sorted by name
};

struct ReadOptions {
  std::vector<std::string> skip = {};  // names to leave out; a final * stands for any text
  bool keep_bytes = false;  // loads tensors of other dtypes as u8 [bytes], instead of an Error
  uint64_t max_memory = 0;  // for PyTorch's files, see io::memory_limit; others take their size

  bool skips(std::string_view name) const;  // true if `skip` names it
};

// Writes tensors from any device in row-major order, atomically: a crash leaves either the old or
// the new file. If the name ends in .pt, .pth or .bin (upper or lower case), the file is one that
// torch.load reads. Throws Error for a duplicate name, for a file named as an index of
// shards, and if writing fails.
void save(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

// The same for anything with a state_dict(): a module, an optimizer, a schedule.
template <class M>
  requires requires(const M& m) { StateDict(m.state_dict()); }
void save(const std::string& path, const M& m, const Metadata& metadata = {}) {
  save(path, StateDict(m.state_dict()), metadata);
}

struct ShardOptions {
  uint64_t max_bytes = 5'000'000'000;  // of tensors per file, unless one alone is larger
  Metadata metadata = {};              // of each file
};
// Writes several files: for the path model.safetensors, model-00001-of-00003.safetensors and so on,
// filled in the order of the tensors, and model.safetensors.index.json, which maps tensors to
// files. If there are shards already, new names contain the number of the save,
// model.save2-00001-of-00003.safetensors, and old shards are removed after the index is replaced.
// So a crash always leaves an index with all the files that it names. Throws Error for a name that
// is not UTF-8 or has a backslash, which no index may hold.
void save_sharded(const std::string& path, const StateDict& tensors,
                  const ShardOptions& options = {});

// Reads one file of safetensors or torch.save, told by its first bytes. If its name ends in
// .index.json, reads all files that it lists, which must be in its folder and hold exactly the
// listed tensors. If metadata differ, the first file's are used. If a file is invalid, throws Error
// that names the file and the tensor or byte, before allocating tensors, and says what the file is
// if its format is known.
SafeTensors load(const std::string& path, const ReadOptions& options = {});

// Reads one file, which errors call by the source's name.
SafeTensors read_safetensors(const Source& source, const ReadOptions& options = {});
SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name,
                              const ReadOptions& options = {});
// Parses an index, which gives the file of each tensor.
std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& name);

}  // namespace mixtape::io
