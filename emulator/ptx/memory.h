#pragma once
// The memory of devices that interpret PTX.

#include <cstdlib>
#include <mutex>

#include "emulator/ptx/ptx.h"

namespace mixtape::ptx {

inline int setting(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}
constexpr int host = -2;  // for kernels that are given host memory
inline const int devices = setting("MIXTAPE_PTX_DEVICES", 2);
constexpr size_t device_bytes = size_t{8} << 30, address_space = size_t{1} << 38;

// Reserved addresses, invalid on the host; their contents are elsewhere. None is used twice.
struct Memory {
  char* addresses = nullptr;
  char* contents = nullptr;
  size_t used = 0, in_use = 0;
  std::map<uint64_t, size_t> blocks;     // as allocated
  std::map<uint64_t, uint64_t> allowed;  // accessible parts of them, by begin
};

// (Never destroyed: tensors may outlive any static.)
inline std::recursive_mutex& lock = *new std::recursive_mutex;
std::vector<Memory>& memories();       // the last is for modules
std::map<uint64_t, size_t>& pinned();  // sizes of host memory that devices may access
int device_of(uint64_t address);       // -1 if none
char* contents(uint64_t address);      // in host memory
void forbid(Memory& memory, uint64_t begin, uint64_t end);
void* allocate(size_t bytes, int device, size_t alignment = 256);  // null if there is none left

}  // namespace mixtape::ptx
