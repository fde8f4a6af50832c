#pragma once
// In a build for the emulator, whose devices share the host's memory: refuses a kernel memory that
// a real device would crash of.

#ifdef MIXTAPE_EMULATED
#include <span>

#include "core/error.h"
#include "core/runtime.h"
#include "core/view.h"
#include "kernels/common/rules.h"

namespace mixtape::kernels {

inline void check_place(Device device, const char* kernel, const View& v) {
  if (!v.data || v.size() == 0) return;
  const int owner = runtime::owner(v.data);
  if (owner != (device.is_host() ? -1 : device.index))
    raise(std::string("kernel '") + kernel + "' on " + device.to_string() + " is given memory of " +
          (owner < 0 ? Device::cpu() : Device::cuda(owner)).to_string());
}
inline void check_place(Device device, const char* kernel, std::span<const View> views) {
  for (const View& v : views) check_place(device, kernel, v);
}
inline void check_place(Device device, const char* kernel, Updates updates) {
  for (const Update& u : updates) {
    for (const View& v : {u.param, u.grad, u.steps, u.shadow}) check_place(device, kernel, v);
    check_place(device, kernel, std::span<const View>(u.state));
  }
}
inline void check_place(Device device, const char* kernel, const StepControl& control) {
  check_place(device, kernel, control.skip);
  check_place(device, kernel, control.grad_scale);
}
template <class T>
void check_place(Device, const char*, const T&) {}  // a number, a struct of numbers

}  // namespace mixtape::kernels
#endif
