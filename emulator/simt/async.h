#pragma once
// The additions of compute capability 9.0, for a cluster of blocks, which is mostly one block:
// barriers that count arrivals and bytes, boxes that the copy engine moves, products of groups of
// four warps, register budgets, the barrier of the cluster. A box lands, or is read, some turns of
// the scheduler after it was asked for, in each block on its own; a product is made when it is
// waited for.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/simt/hopper.h"
#include "emulator/simt/order.h"

namespace mixtape::simt {

class Machine;

class Async {
 public:
  static constexpr int group_threads = 128;

  explicit Async(Machine& machine) : m_(machine) {}

  // --- for the machine ---
  void begin();
  bool active() const { return active_; }  // since a block used something of this header
  void touch(size_t begin, size_t bytes, Access access);
  void met(int first, int count);  // a barrier of these threads
  void end_thread();
  void left();  // a thread has ended
  void end_block(int rank);
  bool take_turn();  // false if no box is on its way or they are late
  bool land_one();   // false if no box is on its way
  // A thread whose wait cannot end, or -1, and the reason why no thread can go on.
  std::pair<int, std::string> what_never_comes() const;
  std::string awaits(int thread) const;  // the lack of the barrier at which it waits
  Order order;

  // --- for threads: as in hopper.h ---
  void init(const void* b, int arrivals);
  void show_barriers();
  void expect(const void* b, int bytes);
  void arrive(const void* b);
  void arrive(const void* b, int rank, SourceLocation where);
  void wait(const void* b, uint32_t parity, SourceLocation where);
  void load_box(const void* to, const TensorMap& from, const void* b, const BoxPlace& at,
                unsigned blocks, SourceLocation where);
  void store_box(const TensorMap& to, const void* from, const BoxPlace& at, SourceLocation where);
  void store_commit();
  void store_wait(int pending);
  void fence();
  void sync_threads(int id, int count, SourceLocation where);
  void multiply(const Product& product, SourceLocation where);
  void group_fence();
  void group_commit();
  void group_wait(int pending, SourceLocation where);
  void set_registers(int count, bool raise, SourceLocation where);
  void cluster_arrive(SourceLocation where);
  void cluster_wait(SourceLocation where);

 private:
  struct Counter {  // a Barrier
    size_t at;
    int arrivals, awaited;
    int64_t bytes = 0;
    uint32_t phase = 0;  // its times are one more than the phase in which a box lands
    int agent = 0;       // the boxes that land on it
    bool shown = false;  // to the copy engine
    int maker = 0;
    uint32_t made = 0;                          // the maker's time
    Order::Knowledge gathered = {}, over = {};  // by arrivals; when the last phase was over
    SourceLocation box = {};                    // the last load_box
    uint32_t landed = 0;                        // the agent's time when one landed last
  };
  struct Box {
    TensorMap map;
    BoxPlace place;
    size_t shared;
    int counter;  // -1: a store
    int thread, group;
    SourceLocation where;
    int turns = 0;
  };
  // The sums of products in flight, row by row, and the registers that will hold them.
  struct Sums {
    float* registers[group_threads];
    int n, products = 0;
    std::vector<float> values;
  };
  struct Flight {
    Product product;
    int group;
    Sums* sums;
    std::vector<size_t> a, b;  // addresses of their chunks of 16 bytes
  };
  struct Group {
    int agent = -1, arrived = 0, registers = 0, wanted = 0;
    std::vector<Flight> flights;
    std::vector<std::unique_ptr<Sums>> sums;
    SourceLocation where = {};  // the last multiply_group
  };
  struct Thread {
    int counter = -1;  // at which it waits
    uint32_t parity = 0;
    int store_agent = -1, stores = 0, committed_stores = 0, awaited_stores = 0;
    SourceLocation store = {};
    Product product = {};
    int committed = 0;
    bool fenced = false;
    bool at_cluster = false;  // between cluster_arrive and cluster_wait
    uint32_t cluster_phase = 0;
    SourceLocation arrived = {};
  };
  struct Some {  // a barrier of some threads
    int count = 0;
    std::vector<int> waiting;
  };

  struct Sent {  // the last arrival of a thread at a barrier of another block
    uint32_t time = 0;
    SourceLocation where = {};
  };
  struct ClusterBarrier {
    int arrived = 0;
    uint32_t phase = 0;
    Order::Knowledge gathered = {}, over = {};
  };

  void use();
  Thread& mine();
  int find(const void* b, int rank);
  int find(const void* b);
  void check_peer(int rank, const std::string& who) const;
  void arrive(int counter);
  void settle_cluster();
  std::string block_name(int rank) const;
  void keep_off_barriers(size_t begin, size_t bytes) const;
  void settle(int counter);
  std::string what(int agent) const;
  void check(const std::optional<Order::Conflict>& conflict, const std::string& who) const;
  size_t check_box(const void* shared, const TensorMap& map, const std::string& who) const;
  void start(Box box);
  void land(size_t i);
  void move(const Box& box);

  template <class F>
  void meet_group(const char* what, SourceLocation where, const F& act);
  int first_of_group() const;
  void start_product(Group& group, SourceLocation where);
  void finish_products(Group& group, int pending);
  Sums& sums_of(Group& group, const std::string& who);
  void check_registers(const Sums& sums) const;
  std::vector<size_t> chunks(const Product& product, bool of_a, const std::string& who) const;
  void make(const Flight& flight) const;
  void take_registers(int group);
  uint32_t next_random() { return random_ = random_ * 1664525u + 1013904223u; }

  Machine& m_;
  bool active_ = false;
  std::vector<Counter> counters_;
  std::vector<Box> boxes_;
  std::vector<Thread> threads_;
  std::vector<Group> groups_;
  std::vector<Some> some_;               // by rank and id
  std::vector<int> free_registers_;      // by rank
  std::vector<std::vector<Sent>> sent_;  // by rank of the barrier, by thread
  ClusterBarrier cluster_;
  uint32_t random_ = 0;
};

}  // namespace mixtape::simt
