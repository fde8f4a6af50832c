#pragma once
// Names the format of a file that was given to the wrong reader, by its first bytes.

#include "io/file.h"

namespace mixtape::io {

// True if these first bytes of a file are those of torch.save before PyTorch 1.6, and still with
// _use_new_zipfile_serialization=False: the pickle of a magic number, of any protocol from 2 to 5.
bool is_old_torch(std::string_view head);
inline constexpr uint64_t old_torch_bytes = 24;  // that it needs

// The end of an error message about a file that its reader does not expect: ", but a NumPy array
// (io::load_npy reads it)", or "" for an unknown format.
std::string but_is(const Source& file);
// The same where a format begins with known bytes: "it starts with other bytes, but a NumPy ...",
// or "it is empty".
std::string wrong_begin(const Source& file);

}  // namespace mixtape::io
