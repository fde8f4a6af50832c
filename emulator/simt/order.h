#pragma once
// The order of accesses to shared memory in a block whose threads meet in parts: at barriers that
// count, at barriers of some threads, and with copies and products that run beside them. Each
// access has its agent, a thread or something beside the threads, and a time of that agent; each
// thread knows up to which time the accesses of every agent came before (a vector clock). An access
// that follows one it does not know of is a race, however the fibers happened to run.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mixtape::simt {

class Order {
 public:
  // Accesses of an agent up to the time `all` came before; of those up to `shown`, copy engine and
  // tensor cores see the stores, too.
  struct Known {
    uint32_t all = 0, shown = 0;
  };
  using Knowledge = std::vector<Known>;  // by agent

  void begin(int threads, size_t bytes);
  // Accesses that came before begin(), in some order. `known`: all threads have met since.
  void add_write(size_t at, int thread, bool known);
  void add_read(size_t at, int thread);
  // Something beside the threads, which keeps its own time.
  int add_agent();
  bool is_thread(int agent) const { return agent < threads_; }
  uint32_t time(int thread) const { return time_[size_t(thread)]; }
  bool knows(int thread, int agent, uint32_t time) const {
    return thread == agent || knowledge_[size_t(thread)][size_t(agent)].all >= time;
  }

  // The knowledge of the thread, with its own accesses so far.
  const Knowledge& publish(int thread);
  static void merge(Knowledge& into, const Knowledge& from);
  void learn(int thread, const Knowledge& from) { merge(knowledge_[size_t(thread)], from); }
  void learn(int thread, int agent, uint32_t time);
  // Each of these threads learns what all of them know.
  void meet(std::span<const int> threads);
  // Shows the stores that the thread knows of, its own included.
  void fence(int thread);

  // Copies to these bytes are under way.
  void set_landing(size_t begin, size_t bytes, bool landing);

  struct Conflict {
    enum Kind { Landing, Written, Read, NotShown } kind;
    int agent;  // of the other access
    size_t at;
  };

 private:
  // The last accesses of a byte. (Without gaps, to be compared as bytes.)
  struct Cell {
    uint32_t written = 0, read[2] = {};
    int16_t writer = -1, reader[2] = {-1, -1};
    bool landing = false, more = false;  // more readers, in more_
  };

 public:
  // Accesses by an agent at a time of its own, which some threads started: what came before must be
  // known to each of them.
  class Accesses {
   public:
    Accesses(Order& order, std::span<const int> starters, int agent, uint32_t time)
        : order_(order), starters_(starters), agent_(agent), time_(time) {}
    std::optional<Conflict> operator()(size_t begin, size_t bytes, bool write);

   private:
    struct Seen {
      int agent = -1;
      uint32_t time = 0;
    };
    bool known(int agent, uint32_t time, Seen& last) const;
    bool shown(int agent, uint32_t time);
    bool all_read(size_t at, int& reader);
    void add_read(size_t at);

    Order& order_;
    const std::span<const int> starters_;
    const int agent_;
    const uint32_t time_;
    Seen writer_, shown_, reader_;   // the last ones that were found to be known
    Cell before_ = {}, after_ = {};  // of the last byte; equal ones are handled alike
    bool last_ = false;
  };

 private:
  int threads_ = 0;
  std::vector<Knowledge> knowledge_;  // by thread
  std::vector<uint32_t> time_;        // by thread
  std::vector<Cell> cells_;
  std::unordered_map<size_t, std::vector<std::pair<int, uint32_t>>> more_;
  Knowledge common_;  // of meet()
};

}  // namespace mixtape::simt
