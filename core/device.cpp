// Names and abilities of devices. Without CUDA in the build there is one: the CPU.
#include "core/device.h"

#include <charconv>

#include "core/check.h"

namespace mixtape {

Device Device::best() { return cpu(); }

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

// CPU kernels convert f16 and bf16 to f32 and back, so narrow arithmetic is never faster there.
bool Device::supports_fast(DType t) const { return !is_narrow(t) || type == DeviceType::cuda; }

std::string Device::to_string() const { return is_cpu() ? "cpu" : "cuda:" + std::to_string(index); }

}  // namespace mixtape
