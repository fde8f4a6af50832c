#pragma once
// Names the format of a file that was given to the wrong reader, by its first bytes.

#include "io/file.h"

namespace mixtape::io {

// The end of an error message about a file that its reader does not expect: ", but a NumPy array
// (io::load_npy reads it)", or "" for an unknown format.
std::string but_is(const Source& file);

}  // namespace mixtape::io
