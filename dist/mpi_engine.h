#pragma once
// The engine of MPI, through a plug-in that is opened at run time: programs link no MPI.

#include "dist/engine.h"

namespace mixtape::dist {

// Opens the plug-in MIXTAPE_MPI_PLUGIN or, without it, that of the MPI that started this process,
// from the library's folder or the loader's path; and initialises MPI. Throws Error with what to
// install if there is none.
std::unique_ptr<Engine> open_mpi();

}  // namespace mixtape::dist
