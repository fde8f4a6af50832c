#pragma once
// The formats that files are taken for by mistake, told by their first bytes.

#include "io/file.h"

namespace mixtape::io {

// The end of an error message, for a file that is not what its reader expects: ", but a NumPy array
// (io::load_npy reads it)", or nothing for a format that is not known here.
std::string but_is(const Source& file);

}  // namespace mixtape::io
