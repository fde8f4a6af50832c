#pragma once
// The watch over kernels, whose emulated devices share the host's memory: a kernel must not be
// given memory of another device, on which real hardware would crash. And a record of what a
// program asks of the devices. With MIXTAPE_RECORD=FILE in the environment it is written there, and
// no kernel runs: the memory of devices keeps zeros and what was copied there, so that the sizes of
// a real training take neither time nor memory. Lines are
//   call NAME                                       a kernel of kernels/kernels.h
//   view ADDRESS BYTES DTYPE SHAPE STRIDES          an argument of it: elements are counted once
//   scratch ADDRESS BYTES                           memory that it uses
//   launch FUNCTION NAME GRID THREADS ADDRESS...    of its arguments, those of device memory
// with sizes as 2x3, "-" for none, and addresses in hexadecimal, that of the function relative to
// the program.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/kernel_watch.h"

namespace mixtape::simt {

struct Config;

// The bytes of all views that kernels were given so far.
inline std::atomic<int64_t> bytes_given{0};

bool recording();
void record_launch(const Config& config, const void* arguments, size_t bytes);

}  // namespace mixtape::simt
