#pragma once
// Device: where bytes live and kernels run.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/dtype.h"
#include "core/no_copy.h"

namespace mixtape {

enum class DeviceType : uint8_t { cpu, cuda, meta };  // meta: shapes alone, the last
inline constexpr int device_types = 3;                // values of DeviceType
inline constexpr int max_devices = 16;                // of one type
inline constexpr int device_slots = 1 + (device_types - 1) * max_devices;  // values of slot()

struct Device {  // a type, and a number among the devices of that type; by default the CPU
  DeviceType type = DeviceType::cpu;
  int index = 0;  // on meta, the type that it stands in for

  constexpr Device() = default;
  constexpr Device(DeviceType of, int i) : type(of), index(i) {}  // need not exist: see require()
  template <std::convertible_to<std::string_view> Text>
    requires(!std::is_null_pointer_v<Text>)
  Device(const Text& text) : Device(parse(text)) {}  // implicit, for x.to("cuda:1")

  static constexpr Device cpu() { return {}; }                               // the host
  static constexpr Device cuda(int i = 0) { return {DeviceType::cuda, i}; }  // the i-th GPU, from 0
  // Stands in for a device of another type: tensors have no memory and ops run no kernel, but ops
  // choose, allocate and save as they would there. Reading a value throws Error.
  static constexpr Device meta(DeviceType of = DeviceType::cpu) {
    return {DeviceType::meta, int(of)};
  }
  static Device best();  // the first CUDA device, or the CPU where there is none
  static Device parse(std::string_view text);  // "cpu", "cuda", "cuda:1", "meta:cuda"

  void require() const;  // throws Error if this machine has no such device
  bool is_host() const { return type == DeviceType::cpu; }   // the host can read its memory
  bool is_meta() const { return type == DeviceType::meta; }  // it has no memory: see meta()
  // True where ops choose as for the CPU's kernels: on the CPU and on the meta device of the CPU.
  bool is_like_cpu() const { return is_host() || *this == meta(); }
  // A number below device_slots: 0 for the CPU, one for each other device.
  size_t slot() const {
    return is_host() ? 0 : (size_t(type) - 1) * max_devices + size_t(index) + 1;
  }
  // True if the hardware multiplies matrices of this dtype fast: f32 and f64 everywhere, bf16 on
  // CPUs whose bf16 dot products outrun f32's multiply-adds, f16 and bf16 on tensor cores. Throws
  // Error if there is no such device.
  bool supports_fast(DType dtype) const;
  std::string to_string() const;  // "cpu", "cuda:0", "meta:cuda"

  friend bool operator==(const Device&, const Device&) = default;
};
std::ostream& operator<<(std::ostream& out, const Device& device);

// A guard that sets the device of this thread's new tensors (by default the CPU). The innermost one
// applies.
class DefaultDevice : NoCopy {
 public:
  [[nodiscard]] explicit DefaultDevice(Device device);  // throws Error if there is no such device
  ~DefaultDevice() { current_ = outer_; }

  static Device current() { return current_; }  // where this thread makes tensors

 private:
  static inline thread_local constinit Device current_ = {};
  Device outer_;
};

}  // namespace mixtape
