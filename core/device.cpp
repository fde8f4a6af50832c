// Names and abilities of devices.
#include "core/device.h"

#include <charconv>

#include "core/check.h"
#include "core/runtime.h"

namespace mixtape {

Device Device::best() { return runtime::devices().empty() ? cpu() : runtime::devices().front(); }

void Device::require() const {
  const int count = is_host() ? index + 1 : runtime::of(type).device_count();
  if (0 <= index && index < count) [[likely]]
    return;
  if (count == 0)
    fail("there is no device {}: {}", to_string(), runtime::of(type).no_device_reason());
  fail("there is no device {}: this machine has {}, from cuda:0 on", to_string(), count);
}

bool Device::supports_fast(DType dtype) const {
  require();
  if (!is_half(dtype)) return is_float(dtype);
  if (!is_host()) return runtime::of(type).properties(index).major >= (dtype == f16 ? 7 : 8);
#ifdef __x86_64__
  __builtin_cpu_init();
  return dtype == bf16 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

DefaultDevice::DefaultDevice(Device device) : outer_(current_) {
  device.require();
  current_ = device;
}

Device Device::parse(std::string_view text) {
  constexpr std::string_view prefix = "cuda:";
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda();
  if (text.substr(0, prefix.size()) == prefix) {
    const char *first = text.data() + prefix.size(), *last = text.data() + text.size();
    int index = -1;
    const auto [end, error] = std::from_chars(first, last, index);
    if (error == std::errc() && end == last && index >= 0) return cuda(index);
  }
  fail("unknown device '{}'; known are cpu, cuda, cuda:0, cuda:1, ...", text);
}

std::string Device::to_string() const {
  return is_host() ? "cpu" : "cuda:" + std::to_string(index);
}

}  // namespace mixtape
