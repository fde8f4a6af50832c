#include "bench/gpu/cublas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "core/check.h"
#include "core/stream.h"

namespace mixtape::bench {
namespace {

// cuBLAS constants for dtypes, arithmetic and layouts.
int type(DType t) { return t == f16 ? 2 : t == bf16 ? 14 : t == f64 ? 1 : 0; }
int arithmetic(DType t, bool tf32) { return t == f64 ? 70 : t == f32 && tf32 ? 77 : 68; }

template <class... Args>
void call(void* library, const char* name, Args... args) {
  auto* const f = reinterpret_cast<int (*)(Args...)>(dlsym(library, name));
  check(f, "cuBLAS has no {}", name);
  const int status = f(args...);
  check(status == 0, "{} gives status {}", name, status);
}

}  // namespace

Cublas::Cublas() {
  const char* const asked = std::getenv("MIXTAPE_CUBLAS");
  for (const char* name :
       asked ? std::vector{asked} : std::vector{"libcublas.so.13", "libcublas.so.12"})
    if (!library_) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library_) {
    about_ = fmt::format("no cuBLAS: {}", dlerror());
    return;
  }
  try {
    int version = 0;
    call(library_, "cublasCreate_v2", &handle_);
    call(library_, "cublasGetVersion_v2", handle_, &version);
    call(library_, "cublasSetStream_v2", handle_, Stream::current(Device::cuda()).handle);
    about_ = fmt::format("cuBLAS {}", version);
  } catch (const Error& e) {
    const std::string said = e.what();
    about_ = "no cuBLAS: " + said.substr(0, said.find('\n'));
    handle_ = nullptr;
  }
}

void Cublas::multiply(const View& a, const View& b, const View& c, bool tf32) const {
  // cuBLAS is column-major, so it computes c^T = b^T a^T.
  const auto transposed = [](const View& x) { return x.strides()[1] != 1; };
  const auto leading_dimension = [&](const View& x) {
    return int(x.strides()[transposed(x) ? 1 : 0]);
  };
  const float one = 1, zero = 0;
  const double one64 = 1, zero64 = 0;
  const bool wide = c.dtype == f64;
  const void *const alpha = wide ? static_cast<const void*>(&one64) : &one,
                    *const beta = wide ? static_cast<const void*>(&zero64) : &zero;
  const int t = type(c.dtype);
  call<void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
       const void*, void*, int, int, int, int>(
      library_, "cublasGemmEx", handle_, transposed(b), transposed(a), int(c.shape()[1]),
      int(c.shape()[0]), int(a.shape()[1]), alpha, b.data, t, leading_dimension(b), a.data, t,
      leading_dimension(a), beta, c.data, t, int(c.strides()[0]), arithmetic(c.dtype, tf32), -1);
}

}  // namespace mixtape::bench
