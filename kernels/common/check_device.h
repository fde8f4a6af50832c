#pragma once
// A check of builds for the emulator, whose devices share the host's memory: kernels must not be
// given memory of another device, on which real hardware would crash. It also counts bytes, and
// records what was given (emulator/simt/record.h).

#ifdef MIXTAPE_EMULATED
#include <atomic>
#include <span>

#include "core/error.h"
#include "core/runtime.h"
#include "core/view.h"
#include "emulator/simt/record.h"
#include "kernels/common/attention.h"
#include "kernels/common/epilogue.h"
#include "kernels/common/update.h"

namespace mixtape::kernels {
using namespace internal;

// The bytes of all views that kernels were given so far.
inline std::atomic<int64_t> bytes_given{0};

inline void check_memory(Device device, const char* kernel, const View& v) {
  if (!v.data || v.size() == 0) return;
  bytes_given += v.size() * int64_t(size_of(v.dtype));
  if (!device.is_host()) simt::record_view(v);
  const int owner = runtime::owner(v.data);
  if (owner != (device.is_host() ? -1 : device.index))
    raise(std::string("kernel '") + kernel + "' on " + device.to_string() + " is given memory of " +
          (owner < 0 ? Device::cpu() : Device::cuda(owner)).to_string());
}
inline void check_memory(Device device, const char* kernel, std::span<const View> views) {
  for (const View& v : views) check_memory(device, kernel, v);
}
inline void check_memory(Device device, const char* kernel, Updates updates) {
  for (const Update& u : updates) {
    for (const View& v : {u.param, u.grad, u.steps, u.shadow, u.norms})
      check_memory(device, kernel, v);
    check_memory(device, kernel, std::span<const View>(u.state));
    if (!u.low) continue;
    check_memory(device, kernel, u.low->compensation);
    check_memory(device, kernel, std::span<const View>(u.low->scale));
  }
}
inline void check_memory(Device device, const char* kernel, const StepControl& control) {
  check_memory(device, kernel, control.skip);
  check_memory(device, kernel, control.grad_scale);
}
inline void check_memory(Device device, const char* kernel, const AttentionRule& rule) {
  check_memory(device, kernel, rule.mask);
}
inline void check_memory(Device device, const char* kernel, const Epilogue& e) {
  for (const View& v : {e.bias, e.residual, e.before, e.row_sums, e.column_sums})
    check_memory(device, kernel, v);
}
template <class T>
void check_memory(Device, const char*, const T&) {}  // a number, a struct of numbers

}  // namespace mixtape::kernels
#endif
