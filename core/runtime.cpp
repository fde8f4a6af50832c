// The table of runtimes by device type.
#include "core/runtime.h"

#include <array>
#include <atomic>

namespace mixtape::runtime {
namespace {

std::array<std::atomic<const char*>, 16> launched;
std::atomic<unsigned> launches{0};

}  // namespace

void note_launch(const char* kernel) {
  launched[launches.fetch_add(1, std::memory_order_relaxed) % launched.size()].store(
      kernel, std::memory_order_relaxed);
}

std::string last_launches(int code) {
  // An illegal address, a time-out, an assertion; from a stack error to an unspecified failure.
  const bool failed = code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719);
  if (!failed) return "";
  std::string text;
  const unsigned end = launches;
  for (unsigned i = end; end - i < launched.size() && i > 0;)
    if (const char* const name = launched[--i % launched.size()])
      text += (text.empty() ? "" : ", ") + std::string(name);
  return "; launched last, the newest first: " + (text.empty() ? "no kernel" : text) +
         " (with CUDA_LAUNCH_BLOCKING=1 in the environment, the call that failed is the one)";
}

std::string driver_warning(const std::string& reason, int cuda) {
  const int major = cuda / 1000;
  return reason + ". This machine has one, but the library was built with CUDA " +
         std::to_string(major) + "." + std::to_string(cuda % 1000 / 10) + ", which needs driver " +
         (major >= 13 ? "580" : "525") + " or newer: Device::best() is the CPU";
}

const Runtime& of(DeviceType type) {
  static const Runtime* const by_type[device_types] = {nullptr, &cuda(), &meta()};
  return *by_type[size_t(type)];
}

const std::vector<Device>& devices() {
  static const auto& all = *new std::vector<Device>([] {
    std::vector<Device> found;
    for (int type = 1; type < int(DeviceType::meta); ++type)
      for (int i = 0; i < of(DeviceType(type)).device_count(); ++i)
        found.push_back({DeviceType(type), i});
    return found;
  }());
  return all;
}

}  // namespace mixtape::runtime
