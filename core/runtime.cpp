// The table of runtimes by device type.
#include "core/runtime.h"

namespace mixtape::runtime {

const Runtime& of(DeviceType type) {
  static const Runtime* const by_type[device_types] = {nullptr, &cuda()};
  return *by_type[size_t(type)];
}

const std::vector<Device>& devices() {
  static const auto& all = *new std::vector<Device>([] {
    std::vector<Device> found;
    for (int type = 1; type < device_types; ++type)
      for (int i = 0; i < of(DeviceType(type)).device_count(); ++i)
        found.push_back({DeviceType(type), i});
    return found;
  }());
  return all;
}

}  // namespace mixtape::runtime
