#pragma once
// The engine of NCCL, for the memory of GPUs, in addition to an engine for the host's.

#include "dist/engine.h"

namespace mixtape::dist {

// Opens libnccl.so.2, or the file that MIXTAPE_NCCL names. The first transfer connects the GPUs;
// rank 0 tells the others over `host` how. Throws Error if there is no NCCL, if it is older
// than 2.19, or if `device`, this rank's, is not a GPU.
std::unique_ptr<Engine> open_nccl(Engine& host, Device device);

}  // namespace mixtape::dist
