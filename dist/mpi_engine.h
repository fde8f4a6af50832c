#pragma once
// The engine of MPI, through a plug-in that is opened at run time, so that programs do not link
// MPI.

#include "dist/engine.h"

namespace mixtape::dist {

// Opens the plug-in MIXTAPE_MPI_PLUGIN or, without it, the one for the MPI that started this
// process, from the library's folder or the loader's path, and initialises MPI. If there is none,
// throws Error with what to install.
std::unique_ptr<Engine> open_mpi();

}  // namespace mixtape::dist
