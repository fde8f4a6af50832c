// Names and properties of devices.
#include "core/device.h"

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "core/check.h"
#include "core/parse.h"
#include "core/runtime.h"

namespace mixtape {

constexpr std::string_view type_names[device_types] = {"cpu", "cuda", "meta"};

Device Device::best() { return runtime::devices().empty() ? cpu() : runtime::devices().front(); }

void Device::require() const {
  const int count = is_host() ? index + 1 : runtime::of(type).device_count();
  if (0 <= index && index < count) [[likely]]
    return;
  if (count == 0)
    fail("there is no device {}: {}", to_string(), runtime::of(type).no_device_reason());
  fail("there is no device {}: this machine has {}, from {} on", to_string(), count,
       Device{type, 0}.to_string());
}

bool Device::supports_fast(DType dtype) const {
  require();
  if (!is_half(dtype)) return is_float(dtype);
  if (!is_like_cpu()) return runtime::of(type).properties(index).major >= (dtype == f16 ? 7 : 8);
#ifdef __x86_64__
  __builtin_cpu_init();
  // Intel's processors after Cooper Lake leave bf16 to AMX: their dot products take twice the time
  // of f32's multiply-adds.
  return dtype == bf16 && __builtin_cpu_supports("avx512bf16") &&
         (!__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"));
#elif defined(__aarch64__)
  return dtype == bf16 && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

DefaultDevice::DefaultDevice(Device device) : outer_(current_) {
  device.require();
  current_ = device;
}

Device Device::parse(std::string_view text) {
  for (int t = 0; t < device_types; ++t) {
    const std::string_view name = type_names[t];
    const Device first{DeviceType(t), 0}, stand_in = meta(DeviceType(t));
    if (text == name) return first;
    if (!first.is_meta() && text == stand_in.to_string()) return stand_in;
    if (first.is_host() || first.is_meta() || !text.starts_with(name) ||
        text.substr(name.size(), 1) != ":")
      continue;
    const auto index = internal::parse_number<int>(text.substr(name.size() + 1));
    if (index && *index >= 0) return {first.type, *index};
  }
  fail("unknown device '{}'; known are cpu, cuda, cuda:0, cuda:1, ..., meta:cpu, meta:cuda", text);
}

std::string Device::to_string() const {
  const std::string name(type_names[int(type)]);
  if (is_meta() && 0 <= index && index < int(DeviceType::meta))
    return name + ":" + std::string(type_names[index]);
  return is_host() ? name : name + ":" + std::to_string(index);
}

}  // namespace mixtape
