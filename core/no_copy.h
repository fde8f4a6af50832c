#pragma once
// NoCopy: base of classes that can be neither copied nor moved: guards and owners of resources.

#include "core/cxx20.h"

namespace mixtape {

struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

}  // namespace mixtape
