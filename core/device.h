#pragma once
// Device: where bytes live and kernels run.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/no_copy.h"

namespace mixtape {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int i = 0) { return {DeviceType::cuda, i}; }
  static Device best();  // the first CUDA device, or the CPU where there is none
  static Device parse(std::string_view text);  // "cpu", "cuda", "cuda:1"

  void require() const;  // throws Error if this machine has no such device
  bool is_cpu() const { return type == DeviceType::cpu; }
  // Whether matrix products of this dtype have instructions of their own there: f32 and f64
  // anywhere, bf16 on CPUs with AVX-512 BF16, both narrow ones on tensor cores. On a device that is
  // not there it throws Error.
  bool supports_fast(DType dtype) const;
  std::string to_string() const;  // "cpu", "cuda:0"

  friend bool operator==(const Device&, const Device&) = default;
};

// Where tensors are made when nothing else is said: the CPU, but while one of these is alive, that
// device, on this thread. The innermost counts.
class DefaultDevice : NoCopy {
 public:
  [[nodiscard]] explicit DefaultDevice(Device device);  // throws Error if there is no such device
  ~DefaultDevice() { current_ = outer_; }

  static Device current() { return current_; }

 private:
  static inline thread_local constinit Device current_ = {};
  Device outer_;
};

}  // namespace mixtape
