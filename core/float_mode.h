#pragma once
// FloatMode: while it lives, its thread keeps subnormal numbers and rounds to nearest. A program
// that is linked with -ffast-math flushes subnormals to zero on every thread. Every kernel checks,
// by two additions on x86, where reading the register takes 6 ns, a tenth of a small op.

#include <cstdint>

#include "core/no_copy.h"

namespace mixtape::internal {

class FloatMode : NoCopy {
 public:
  FloatMode() {
    if (!is_usual()) [[unlikely]]
      write((found_ = read()) & ~modes);
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
  // 1 + 3/4 ulp + 1/8 ulp, added in this order, is 1 + 1 ulp only when rounding to nearest.
  static bool is_usual() {
    float one = 1, tiny = 0x1p-149f;
    asm volatile("" : "+x"(one), "+x"(tiny));  // numbers that the compiler does not know
    return one + 0x1.8p-24f + 0x1p-26f == 0x1.000002p0f && tiny + tiny != 0;
  }
#elif defined(__aarch64__)
  using Register = uint64_t;
  static constexpr Register modes = 0x1c80000;  // FPCR: flush to zero, rounding, and f16's flush
  static Register read() {
    Register mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Register mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  static bool is_usual() { return !(read() & modes); }
#else
  using Register = unsigned;
  static constexpr Register modes = 0;
  static Register read() { return 0; }
  static void write(Register) {}
  static bool is_usual() { return true; }
#endif
  Register found_ = 0;  // if it was not the usual one
};

}  // namespace mixtape::internal
