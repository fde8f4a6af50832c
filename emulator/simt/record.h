#pragma once
// A record of what a program asks of the emulated devices. With MIXTAPE_RECORD=FILE in the
// environment it is written there, and no kernel runs: the memory of devices keeps zeros and what
// was copied there, so that the sizes of a real training take neither time nor memory. Lines are
//   call NAME                                       a kernel of kernels/kernels.h
//   view ADDRESS BYTES DTYPE SHAPE STRIDES          an argument of it: elements are counted once
//   scratch ADDRESS BYTES                           memory that it uses
//   launch FUNCTION NAME GRID THREADS ADDRESS...    of its arguments, those of device memory
// with sizes as 2x3, "-" for none, and addresses in hexadecimal, that of the function relative to
// the program.

#include <cstddef>

#include "core/view.h"

namespace mixtape::simt {

struct Config;

bool recording();
void record_call(const char* kernel);
void record_view(const internal::View& v);
void record_scratch(const void* memory, size_t bytes);
void record_launch(const Config& config, const void* arguments, size_t bytes);

}  // namespace mixtape::simt
