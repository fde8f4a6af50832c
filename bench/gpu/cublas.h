#pragma once
// cuBLAS as a peer, found at run time: nothing links it.

#include <string>

#include "core/view.h"

namespace mixtape::bench {

class Cublas {
 public:
  // Looks where MIXTAPE_CUBLAS says, else for libcublas.so.13 and .12.
  // It stays until the process ends: to end it sooner would race with the driver's own end.
  Cublas();

  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& about() const { return about_; }  // its version, or why there is none
  // c = a @ b on this thread's stream: two dimensions, of one dtype; a and b by rows or by columns.
  void multiply(const View& a, const View& b, const View& c, bool tf32) const;

 private:
  void* library_ = nullptr;
  void* handle_ = nullptr;
  std::string about_;
};

}  // namespace mixtape::bench
