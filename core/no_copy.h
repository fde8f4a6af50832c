#pragma once
// NoCopy: base of what stays where it was made: guards, and whoever owns something of the system.

namespace mixtape {

struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

}  // namespace mixtape
