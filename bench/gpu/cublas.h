#pragma once
// cuBLAS as a peer, loaded at run time.

#include <string>

#include "core/view.h"

namespace mixtape::bench {

using internal::View;

class Cublas {
 public:
  // Loads MIXTAPE_CUBLAS, else libcublas.so.13 or .12, and keeps it until the process ends:
  // unloading it earlier would race with the driver's shutdown.
  Cublas();

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& about() const { return about_; }  // its version, or why it is missing
  // c = a @ b on this thread's stream for 2-d tensors of one dtype; a and b row- or column-major.
  void multiply(const View& a, const View& b, const View& c, bool tf32) const;

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;
  std::string about_;
};

}  // namespace mixtape::bench
