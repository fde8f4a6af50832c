#pragma once
// The engine of NCCL, for the memory of GPUs, beside one for that of the host.

#include "dist/engine.h"

namespace mixtape::dist {

// Opens libnccl.so.2, or the file that MIXTAPE_NCCL names. The first transfer between GPUs connects
// them, by what rank 0 tells the others over `host`. Throws Error if there is no NCCL, if it is
// older than 2.19, or if `device`, this rank's, is no GPU.
std::unique_ptr<Engine> open_nccl(Engine& host, Device device);

}  // namespace mixtape::dist
