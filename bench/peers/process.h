#pragma once
// A peer in a process of its own, which times itself.

#include <string>

#include "bench/interleave.h"

namespace mixtape::peers {

// Runs a shell's command. It writes a line when it is ready, then a line of seconds for each number
// of calls that it reads. The first line is the form of the task. Throws if the process ends early.
bench::Task process(const std::string& command);

}  // namespace mixtape::peers
