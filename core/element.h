#pragma once
// Element: one element of a tensor as the number that it is, whatever the dtype.

#include <cstdint>

#include "core/dtype.h"

namespace mixtape::internal {

// Exact: a double holds every float, and an int64_t every integer and bool.
struct Element {
  bool whole;
  int64_t integer;  // if it is whole
  double real;      // the same number, rounded where it is beyond 2^53
};
Element read_element(const void* at, DType dtype);  // at: in the host's memory

// The number nearest to x among those of a float or 8-bit dtype.
double rounded(double x, DType dtype);

}  // namespace mixtape::internal
