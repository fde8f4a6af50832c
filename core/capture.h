#pragma once
// GraphState: a graph as the lower layers see it. During a capture they tell it what replays need.

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/random.h"
#include "core/readback.h"
#include "core/storage.h"
#include "core/thread_state.h"

namespace mixtape::internal {

// A stream that captures a thread's work. Other streams wait for its home instead, the stream in
// which the work will run.
class CaptureStream : NoCopy {
 public:
  explicit CaptureStream(Device device);  // throws Error if all streams are taken
  ~CaptureStream();

  void begin();  // sends this thread's work for the device here; other devices are refused
  void end();
  const Stream& stream() const { return *stream_; }
  const Stream& home() const { return *home_; }

 private:
  const Device device_;
  const Stream* stream_;
  const Stream* home_ = nullptr;
  std::array<const Stream*, device_slots> outer_ = {};
};

struct ValueCheck {
  size_t at;  // in the bytes that are read back
  Problem problem;
  std::string trail;  // module and op of the call
  SourceLocation where;
};
void check_later(Readback values, std::shared_ptr<const std::vector<ValueCheck>> checks);

// The storages that a graph's work uses: a replay touches them as ops would.
struct GraphMembers {
  std::mutex mutex;
  std::map<Storage*, bool> all;  // true: from before the capture
  bool lost = false;             // one of those was freed

  static void add(const std::shared_ptr<GraphMembers>& graph, Storage& storage, bool is_outside);
  static void remove(Storage& storage) noexcept;
};
struct GraphMember {  // a storage's list of graphs
  std::shared_ptr<GraphMembers> graph;
  GraphMember* next;
};

class GraphState : NoCopy {
 public:
  explicit GraphState(Device device);
  ~GraphState();

  void begin();
  void end(bool complete) noexcept;  // drops what was captured unless it is complete
  void replay();
  bool is_captured() const { return work_ != nullptr; }

  void use(Storage& storage);
  // A place in device memory, aligned to 8 bytes, where write() puts a value before each replay.
  const void* number(size_t bytes, std::function<void(void*)> write);
  // Checks values after each replay.
  void check_values(const void* from, size_t bytes, ValueCheck check);

  int home() const { return stream_.home().number; }  // the stream in which replays run

  void keep(std::shared_ptr<const void> object) { kept_.push_back(std::move(object)); }

  const Device device;
  const uint64_t id;  // unique, not 0

 private:
  struct Number {
    size_t at;
    std::function<void(void*)> write;
  };
  struct Checks {  // the values of one Readback
    size_t bytes = 0;
    std::vector<ValueCheck> all;
  };
  void forget() noexcept;
  void write_numbers();
  void draw(void* position);

  CaptureStream stream_;
  runtime::Captured work_ = nullptr;
  std::string failure_;
  std::shared_ptr<GraphMembers> members_;
  std::unique_ptr<Storage> on_device_, found_;  // the numbers; the values to check
  std::vector<std::byte> values_, sent_;        // the numbers, as they are and as last sent
  std::vector<Number> numbers_;
  std::vector<std::shared_ptr<const void>> kept_;  // objects that they read
  std::vector<std::shared_ptr<Checks>> checks_;
  RandomGenerator* generator_ = nullptr;  // during the capture
  uint64_t drawn_ = 0;                    // blocks, by one replay
};

// The graph that this thread captures, or null.
inline GraphState* capture() { return captured_graph; }
inline uint64_t capture_id() { return capture() ? capture()->id : 0; }

}  // namespace mixtape::internal
