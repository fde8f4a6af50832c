#include "emulator/ptx/memory.h"

#include <sys/mman.h>

#include <cstdio>

namespace mixtape::ptx {

std::vector<Memory>& memories() {
  static auto* const all = [] {
    auto* const made = new std::vector<Memory>(size_t(devices) + 1);  // the last: for modules
    for (Memory& m : *made) {
      const auto reserve = [](int protection) {
        void* const p = mmap(nullptr, 2 * address_space, protection,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) std::perror("mmap"), std::abort();
        return reinterpret_cast<char*>((reinterpret_cast<uint64_t>(p) + address_space - 1) /
                                       address_space * address_space);
      };
      m.addresses = reserve(PROT_NONE);
      m.contents = reserve(PROT_READ | PROT_WRITE);
    }
    return made;
  }();
  return *all;
}
std::map<uint64_t, size_t>& pinned() {
  static auto* const all = new std::map<uint64_t, size_t>;
  return *all;
}
int device_of(uint64_t address) {
  for (size_t d = 0; d < memories().size(); ++d) {
    const auto begin = reinterpret_cast<uint64_t>(memories()[d].addresses);
    if (address >= begin && address < begin + address_space) return int(d);
  }
  return -1;
}
char* contents(uint64_t address) {
  const int d = device_of(address);
  if (d < 0) return reinterpret_cast<char*>(address);
  Memory& m = memories()[size_t(d)];
  return m.contents + (address - reinterpret_cast<uint64_t>(m.addresses));
}
void forbid(Memory& m, uint64_t begin, uint64_t end) {
  auto at = m.allowed.lower_bound(begin);
  if (at != m.allowed.begin()) {
    const auto before = std::prev(at);
    if (before->second > begin) {
      if (before->second > end) m.allowed[end] = before->second;
      before->second = begin;
    }
  }
  while (at != m.allowed.end() && at->first < end) {
    if (at->second > end) m.allowed[end] = at->second;
    at = m.allowed.erase(at);
  }
}

void* allocate(size_t bytes, int device, size_t alignment) {
  Memory& m = memories()[size_t(device)];
  m.used = (m.used + alignment - 1) / alignment * alignment;
  if (m.in_use + bytes > device_bytes || m.used + bytes + 4096 > address_space) return nullptr;
  char* const p = m.addresses + m.used;
  const auto begin = reinterpret_cast<uint64_t>(p);
  m.used += (bytes + 4095) / 4096 * 4096 + 4096;
  m.in_use += bytes;
  m.blocks[begin] = bytes;
  m.allowed[begin] = begin + bytes;
  return p;
}

Range find_memory(uint64_t address, int device) {
  const int owner = device_of(address);
  if (owner < 0 && device == host) {
    const uint64_t begin = address / address_space * address_space;  // which no device uses
    return {begin, begin + address_space, reinterpret_cast<char*>(begin)};
  }
  if (owner < 0) {
    auto after = pinned().upper_bound(address);
    if (after == pinned().begin()) return {};
    --after;
    if (address >= after->first + after->second) return {};
    return {after->first, after->first + after->second, reinterpret_cast<char*>(after->first)};
  }
  Memory& m = memories()[size_t(owner)];
  auto after = m.allowed.upper_bound(address);
  if (after == m.allowed.begin()) return {};
  --after;
  if (address >= after->second) return {};
  if (owner != device && owner != devices) return {};
  return {after->first, after->second, contents(after->first)};
}
std::string describe_memory(uint64_t address) {
  const int owner = device_of(address);
  if (owner < 0) return "neither a device's nor pinned";
  Memory& m = memories()[size_t(owner)];
  const auto offset = [&](uint64_t from) { return std::to_string(int64_t(address - from)); };
  std::string text = "memory of device " + std::to_string(owner);
  auto at = m.allowed.upper_bound(address);
  if (at != m.allowed.begin()) {
    --at;
    text +=
        ", at " + offset(at->first) + " of a block of " + std::to_string(at->second - at->first);
    ++at;
  }
  if (at != m.allowed.end()) text += ", at " + offset(at->first) + " of the next";
  return text;
}

}  // namespace mixtape::ptx
