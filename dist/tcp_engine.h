#pragma once
// The engine of TCP, with a connection between each two ranks. It needs no MPI.

#include "dist/engine.h"

namespace mixtape::dist {

// Connects the processes that torchrun's variables describe: RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT and, if it is set, LOCAL_RANK. Rank 0 listens at MASTER_PORT + 1, since torchrun
// itself uses MASTER_PORT; the others meet there and learn where each of them listens. Throws Error
// if a variable is missing or wrong; if ranks have not come after `timeout` seconds, Error names
// them.
std::unique_ptr<Engine> open_tcp(double timeout);

}  // namespace mixtape::dist
