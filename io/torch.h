#pragma once
// PyTorch's files: the zip archives of torch.save, and its files from before PyTorch 1.6. io::load
// and io::save use these functions; see io/safetensors.h.

#include "io/safetensors.h"

namespace mixtape::io {

bool is_torch(const Source& source);        // by its first bytes
bool is_torch_name(std::string_view path);  // *.pt, *.pth or *.bin, in upper or lower case

// Flattens nested dicts and lists, and attributes of an argparse.Namespace, to names with dots:
// "state.0.exp_avg". Numbers become 0-d tensors (f64, i64 or bool), lists of numbers and bytes (u8)
// 1-d ones, NumPy's arrays and scalars tensors of their shape; texts become metadata; None and
// empty containers are left out. Views that are only marked as negated become copies with the other
// sign. Other Python values are an Error that names them, unless `skip` does. Tensors that share a
// storage in the file share it here.
SafeTensors read_torch(const Source& source, const ReadOptions& options = {});
SafeTensors parse_torch(std::span<const std::byte> file, const std::string& name,
                        const ReadOptions& options = {});

// Writes a dict that torch.load(path, weights_only=True) returns: tensors, and metadata as texts.
// Names of the same tensor are the same tensor in the file.
void save_torch(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

}  // namespace mixtape::io
