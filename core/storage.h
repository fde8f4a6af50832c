#pragma once
// Storage: bytes on a device, with a version that in-place writes bump, so that the tape notices
// changes of saved tensors. On the CPU up to 64 bytes are inline, not allocated and not counted.

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/allocator.h"
#include "core/stream.h"
#include "core/thread_state.h"

namespace mixtape {

namespace internal {
class GraphState;  // core/capture.h
struct GraphMember;
struct GraphMembers;
}  // namespace internal

class Storage : NoCopy {  // owned by the tensors that view it
 public:
  Storage(size_t bytes, Device device) : bytes_(bytes), device_(device) {  // uninitialised
    enter();
    data_ = bytes <= sizeof few_ && device.is_like_cpu() ? few_ : allocate(bytes, device, stream_);
  }
  // Memory from another library, freed with its owner `foreign` and not counted as tensor memory.
  Storage(std::shared_ptr<void> foreign, size_t bytes, Device device)
      : data_(foreign.get()), bytes_(bytes), device_(device), foreign_(std::move(foreign)) {
    enter();
  }
  ~Storage() {
    if (data_ == few_) return;
    if (member_) [[unlikely]]
      leave_graphs();
    if (used_.load(std::memory_order_relaxed) != 0) collect();
    if (!foreign_) release(data_, bytes_, device_, stream_);
  }

  void* data() const { return data_; }     // the first byte, on the device
  size_t bytes() const { return bytes_; }  // as asked for
  // The bytes that memory_stats() counts, which are not inline and not another library's.
  size_t counted_bytes() const { return data_ == few_ || foreign_ ? 0 : bytes_; }
  Device device() const { return device_; }                // where they are
  bool is_foreign() const { return foreign_ != nullptr; }  // the memory is not ours
  // True if both have bytes in common, as two storages of foreign memory may.
  bool overlaps(const Storage& other) const {
    const auto begin = reinterpret_cast<uintptr_t>(data_),
               there = reinterpret_cast<uintptr_t>(other.data_);
    return begin < there + other.bytes_ && there < begin + bytes_;
  }

  uint64_t id() const { return id_; }  // unique in the process, unlike an address
  // Called before this thread queues work on the bytes: waits for the stream that used them last.
  void touch() {
    if (!device_.is_host() && Stream::current(device_).number != last_.load()) [[unlikely]]
      hand_over(false);
  }
  // Called before touch() if the work changes the bytes in place: waits for all streams that used
  // them since they were last changed. (A stream that only reads waits once for each other reader,
  // not for what that queues later.)
  void begin_write() {
    if (used_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      hand_over(true);
  }
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }  // counts writes
  // (Not an atomic addition: concurrent writes to a tensor race on its bytes anyway.)
  void bump_version() { version_.store(version() + 1, std::memory_order_relaxed); }

 private:
  void enter() {
    if (device_.is_host()) return;
    stream_ = Stream::current(device_).number;
    last_.store(stream_, std::memory_order_relaxed);
    readers_ = uint64_t{1} << stream_;
    if (internal::captured_graph) [[unlikely]]
      join_graph();
  }
  void join_graph();
  void leave_graphs() noexcept;
  friend class internal::GraphState;
  friend struct internal::GraphMembers;
  void hand_over(bool to_write);
  void hand_over_to(const Stream& stream, bool to_write);
  void collect() noexcept;  // makes the owning stream wait for all streams that used the bytes

  // Threads reserve many numbers at a time.
  static uint64_t fresh_id() {
    constexpr uint64_t many = uint64_t(1) << 20;
    if (next_id_ % many == 0) [[unlikely]]
      next_id_ = next_ids_.fetch_add(many, std::memory_order_relaxed);
    return ++next_id_;
  }
  static inline std::atomic<uint64_t> next_ids_{uint64_t(1) << 20};
  static inline thread_local constinit uint64_t next_id_ = 0;

  alignas(64) unsigned char few_[64];
  void* data_ = nullptr;
  size_t bytes_;
  Device device_;
  int stream_ = -1;                // owns the memory
  std::atomic<int> last_{-1};      // the last stream that used it
  std::atomic<uint64_t> used_{0};  // a bit for each other stream that ever used it
  std::shared_ptr<void> foreign_;
  const uint64_t id_ = fresh_id();
  std::atomic<uint64_t> version_{0};
  internal::GraphMember* member_ = nullptr;  // the graphs that use it
  uint64_t readers_ = 0;  // a bit for each stream that used it since it was changed; under a lock
};

}  // namespace mixtape
