#pragma once
// The instruction set of matrix products on the CPU, for messages and records.

#include <string_view>

namespace mixtape::kernels {

std::string_view instruction_set();  // of this thread's, as MIXTAPE_ISA spells it

}  // namespace mixtape::kernels
