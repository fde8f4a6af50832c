// The record's file.
#include "emulator/simt/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "core/check.h"
#include "core/format.h"
#include "emulator/simt/runtime.h"
#include "emulator/simt/simt.h"

extern "C" const char __executable_start __attribute__((weak));  // by the linker of a program

namespace mixtape::simt {
namespace {

std::FILE* file() {
  static std::FILE* const opened = []() -> std::FILE* {
    const char* const name = std::getenv("MIXTAPE_RECORD");
    if (!name) return nullptr;
    std::FILE* const f = std::fopen(name, "w");
    check(f, "MIXTAPE_RECORD: {} cannot be written", name);
    return f;
  }();
  return opened;
}

std::string text(const Shape& sizes) {
  const std::span<const int64_t> all(sizes.begin(), sizes.end());
  return all.empty() ? "-" : fmt::format("{}", fmt::join(all, "x"));
}
std::string text(const Index3& i) { return fmt::format("{}x{}x{}", i.x, i.y, i.z); }

struct Watch final : internal::KernelWatch {
  void call(Device device, const char* kernel) override {
    if (!device.is_host() && recording()) fmt::print(file(), "call {}\n", kernel);
  }
  void view(Device device, const char* kernel, const internal::View& v) override {
    if (!v.data || v.size() == 0) return;
    bytes_given += v.size() * int64_t(size_of(v.dtype));
    if (!device.is_host() && recording()) record(v);
    const int of = owner(v.data);
    check(of == (device.is_host() ? -1 : device.index), "kernel '{}' on {} is given memory of {}",
          kernel, device, of < 0 ? Device::cpu() : Device::cuda(of));
  }
  void scratch(Device device, const void* memory, size_t bytes) override {
    if (!device.is_host() && recording())
      fmt::print(file(), "scratch {:x} {}\n", reinterpret_cast<uintptr_t>(memory), bytes);
  }

 private:
  static void record(const internal::View& v) {
    size_t bytes = size_of(v.dtype);
    for (int d = 0; d < v.layout.rank(); ++d)
      if (v.strides()[d] != 0) bytes *= size_t(v.shape()[d]);
    fmt::print(file(), "view {:x} {} {} {} {}\n", reinterpret_cast<uintptr_t>(v.data), bytes,
               name(v.dtype), text(v.shape()), text(v.strides()));
  }
};
constinit Watch watch;

}  // namespace

bool recording() { return file() != nullptr; }

void record_launch(const Config& config, const void* arguments, size_t bytes) {
  std::string line = fmt::format("launch {:x} {} {} {}",
                                 static_cast<const char*>(config.function) - &__executable_start,
                                 config.kernel, text(config.grid), text(config.block));
  for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, static_cast<const char*>(arguments) + at, sizeof word);
    if (owner(word) >= 0) line += fmt::format(" {:x}", reinterpret_cast<uintptr_t>(word));
  }
  fmt::print(file(), "{}\n", line);
}

}  // namespace mixtape::simt

mixtape::internal::KernelWatch* const mixtape::internal::kernel_watch = &mixtape::simt::watch;
