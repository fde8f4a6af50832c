#pragma once
// FloatMode: while it lives, its thread keeps subnormal numbers and rounds to nearest. A program
// that is linked with -ffast-math flushes subnormals to zero on every thread.

#include <cstdint>

#include "core/no_copy.h"

namespace mixtape::internal {

class FloatMode : NoCopy {
 public:
  FloatMode() : found_(read()) {
    if (found_ & modes) [[unlikely]]
      write(found_ & ~modes);
  }
  ~FloatMode() {
    if (found_ & modes) [[unlikely]]
      write(read() | (found_ & modes));
  }

 private:
#if defined(__x86_64__)
  using Register = unsigned;
  static constexpr Register modes = 0xe040;  // MXCSR: flush to zero, rounding, denormals are zero
  static Register read() { return __builtin_ia32_stmxcsr(); }
  static void write(Register mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register modes = 0x1c80000;  // FPCR: flush to zero, rounding, and f16's flush
  static Register read() {
    Register mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Register mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Register = unsigned;
  static constexpr Register modes = 0;
  static Register read() { return 0; }
  static void write(Register) {}
#endif
  const Register found_;
};

}  // namespace mixtape::internal
