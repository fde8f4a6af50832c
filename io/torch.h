#pragma once
// Files of PyTorch: the zip archives of torch.save, and its files from before PyTorch 1.6. io::load
// and io::save use these; see io/safetensors.h.

#include "io/safetensors.h"

namespace mixtape::io {

bool is_torch(const Source& source);        // by its first bytes
bool is_torch_name(std::string_view path);  // *.pt, *.pth or *.bin, in letters of either case

// Flattens nested dicts and lists to names with dots: "state.0.exp_avg", and the attributes of an
// argparse.Namespace likewise. Numbers become tensors of no dimension (f64, i64 or bool), lists of
// numbers and bytes (u8) of one, NumPy's arrays and scalars their own; texts become metadata; None
// and what is empty is left out. Other values of Python are an Error that names them, unless
// `skip` does. Tensors that share a storage in the file share it here.
SafeTensors read_torch(const Source& source, const ReadOptions& options = {});
SafeTensors parse_torch(std::span<const std::byte> file, const std::string& name,
                        const ReadOptions& options = {});

// Writes a dict that torch.load(path, weights_only=True) returns: tensors, and metadata as texts.
// Tensors that are the same here are so there.
void save_torch(const std::string& path, const StateDict& tensors, const Metadata& metadata = {});

}  // namespace mixtape::io
