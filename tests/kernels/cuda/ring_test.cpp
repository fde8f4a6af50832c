// All interleavings of a ring: a producer, consumers that keep one product in flight, and boxes
// that land at any later time; and of a cluster's blocks, whose producers each send half of what
// all of them read, and whose arrivals at each other's barriers take any time.

#include "kernels/cuda/gemm/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_set>
#include <utility>

namespace mixtape::kernels::cuda {
namespace ring_test {

enum class Bug {
  None,
  FirstPhase,
  OneArrival,
  EarlyRelease,
  ResetEachTile,
  OwnReaders,
  FewBytes,
  NoEnd
};

template <int stages, int consumers, int blocks>
struct State {
  struct Walk {
    Ring<stages> ring = {};
    int step = 0;
    int busy = 0;              // between its wait and what follows
    int flight[2] = {-1, -1};  // slots of products, the older first
  };
  struct Barrier {
    unsigned phase = 0;  // modulo 2
    int awaited = 1, boxes = 0;
    int coming = 0;  // arrivals of other blocks
  };
  struct Block {
    Walk producer = {}, consumer[consumers] = {};
    Barrier full[stages] = {}, empty[stages] = {};
    int content[stages][blocks] = {}, landing[stages][blocks] = {};  // steps by sender, -1: none
  };
  Block block[blocks] = {};
};

template <int stages, int consumers = 2, int blocks = 1>
class Model {
  using State = ring_test::State<stages, consumers, blocks>;
  using Block = State::Block;
  using Walk = State::Walk;

 public:
  Model(int steps, int tiles, Bug bug) : steps_(steps), total_(steps * tiles), bug_(bug) {}

  // The first fault that any interleaving has, or nothing.
  std::string explore() {
    State start;
    for (Block& b : start.block) {
      for (auto& slot : b.content) std::fill_n(slot, blocks, -1);
      for (auto& slot : b.landing) std::fill_n(slot, blocks, -1);
      for (auto& e : b.empty) e.awaited = arrivals();
    }
    reach(start);
    while (!todo_.empty() && fault_.empty()) {
      const State s = todo_.front();
      todo_.pop_front();
      const size_t before = moves_;
      for (int b = 0; b < blocks; ++b) {
        produce(s, b);
        for (int slot = 0; slot < stages; ++slot) {
          for (int from = 0; from < blocks; ++from) land(s, b, slot, from);
          come(s, b, slot);
        }
        for (int i = 0; i < consumers; ++i) consume(s, b, i);
      }
      if (moves_ == before && !finished(s)) fault_ = "deadlock";
    }
    return fault_;
  }
  size_t states() const { return seen_.size(); }

 private:
  int arrivals() const {
    return bug_ == Bug::OneArrival ? 1 : bug_ == Bug::OwnReaders ? consumers : consumers * blocks;
  }
  bool finished(const Block& b) const {
    return b.producer.step == total_ &&
           std::ranges::all_of(b.consumer, [&](const Walk& c) { return c.step == total_; });
  }
  bool finished(const State& s) const {
    return std::ranges::all_of(s.block, [&](const Block& b) { return finished(b); });
  }
  void reach(const State& s) {
    static_assert(std::has_unique_object_representations_v<State>);
    ++moves_;
    std::string key(sizeof s, '\0');
    std::memcpy(key.data(), &s, sizeof s);
    if (seen_.insert(key).second) todo_.push_back(s);
  }
  void next(Walk& w) const {
    ++w.step;
    w.ring.next();
    if (bug_ == Bug::ResetEachTile && w.step % steps_ == 0) w.ring = {};
  }
  static void settle(State::Barrier& b, int arrivals) {
    if (b.awaited > 0 || b.boxes != 0) return;
    b.phase ^= 1;
    b.awaited = arrivals;
  }

  // Waits for an empty slot; then announces the boxes of all senders, and sends its own to all.
  void produce(State s, int me) {
    Block& b = s.block[me];
    Walk& p = b.producer;
    if (p.step == total_) return;
    const int slot = p.ring.slot;
    if (!p.busy) {
      const unsigned parity =
          bug_ == Bug::FirstPhase ? p.ring.full_parity() : p.ring.empty_parity();
      if (b.empty[slot].phase == parity) return;
      p.busy = 1;
    } else {
      if (b.full[slot].awaited == 0) fault_ = "a slot is filled twice";
      --b.full[slot].awaited;
      b.full[slot].boxes += bug_ == Bug::FewBytes ? 1 : blocks;
      for (Block& to : s.block) {
        if (to.landing[slot][me] >= 0) fault_ = "a slot is filled twice";
        to.landing[slot][me] = p.step;
      }
      settle(b.full[slot], 1);
      p.busy = 0;
      next(p);
    }
    reach(s);
  }

  void land(State s, int to, int slot, int from) {
    Block& b = s.block[to];
    if (b.landing[slot][from] < 0) return;
    for (const Walk& c : b.consumer)
      if (std::ranges::count(c.flight, slot)) fault_ = "a box lands in what is read";
    b.content[slot][from] = std::exchange(b.landing[slot][from], -1);
    --b.full[slot].boxes;
    settle(b.full[slot], 1);
    reach(s);
  }

  // Waits for a full slot and starts its product; then waits for older products, at the end of a
  // tile for all, and gives back their slots.
  void consume(State s, int me, int i) {
    Block& b = s.block[me];
    Walk& c = b.consumer[i];
    if (c.step == total_) return;
    const int slot = c.ring.slot;
    if (!c.busy) {
      if (b.full[slot].phase == c.ring.full_parity()) return;
      for (const int step : b.content[slot])
        if (step != c.step) fault_ = "a consumer reads another step";
      c.flight[c.flight[0] < 0 ? 0 : 1] = slot;
      c.busy = 1;
    } else {
      const bool all = (c.step + 1) % steps_ == 0;
      if (bug_ == Bug::EarlyRelease) {
        give_back(s, me, slot);
        if (c.flight[1] >= 0 || all) finish(c);
        if (all) finish(c);
      } else {
        if (c.flight[1] >= 0) give_back(s, me, finish(c));
        if (all) give_back(s, me, finish(c));
      }
      c.busy = 0;
      next(c);
    }
    reach(s);
  }
  static int finish(Walk& c) { return std::exchange(c.flight[0], std::exchange(c.flight[1], -1)); }
  void give_back(State& s, int me, int slot) {
    arrive(s.block[me].empty[slot]);
    for (int b = 0; b < blocks && bug_ != Bug::OwnReaders; ++b)
      if (b != me) ++s.block[b].empty[slot].coming;
  }
  void arrive(State::Barrier& b) {
    if (b.awaited == 0) fault_ = "too many arrivals";
    --b.awaited;
    settle(b, arrivals());
  }
  // An arrival of another block comes. (A block ends when all have finished.)
  void come(State s, int to, int slot) {
    Block& b = s.block[to];
    if (b.empty[slot].coming == 0) return;
    if (bug_ == Bug::NoEnd && finished(b)) fault_ = "an arrival comes to a block that has ended";
    --b.empty[slot].coming;
    arrive(b.empty[slot]);
    reach(s);
  }

  const int steps_, total_;
  const Bug bug_;
  std::string fault_;
  size_t moves_ = 0;
  std::unordered_set<std::string> seen_;
  std::deque<State> todo_;
};

// Explores many lengths; returns the number of states.
template <int stages, int consumers = 2, int blocks = 1>
size_t explore_all(std::initializer_list<int> lengths = {1, 2, 3, 5}) {
  size_t states = 0;
  for (const int steps : lengths)
    for (const int tiles : {1, 2, 3}) {
      Model<stages, consumers, blocks> model(steps, tiles, Bug::None);
      EXPECT_EQ(model.explore(), "") << stages << " " << consumers << " " << steps << " " << tiles;
      states += model.states();
    }
  return states;
}
TEST(Ring, HasNoFaultInAnyInterleaving) {
  explore_all<4, 1>();
  explore_all<3, 4>();  // warps that give slots back one by one
  EXPECT_EQ(explore_all<2>() + explore_all<3>() + explore_all<4>(), 14059u);
}
TEST(Ring, BlocksOfAClusterHaveNoFaultInAnyInterleaving) {
  explore_all<2, 1, 2>({1, 2, 3, 5});
  explore_all<2, 2, 2>({1});
  EXPECT_EQ((explore_all<3, 1, 2>({1, 2})), 201287u);
}
TEST(Ring, PlantedFaultsOfClustersAreFound) {
  using Pair = Model<2, 1, 2>;
  EXPECT_EQ(Pair(3, 2, Bug::FirstPhase).explore(), "deadlock");
  EXPECT_EQ(Pair(3, 2, Bug::OneArrival).explore(), "a slot is filled twice");
  EXPECT_EQ(Pair(3, 2, Bug::EarlyRelease).explore(), "a box lands in what is read");
  EXPECT_EQ(Pair(3, 2, Bug::ResetEachTile).explore(), "a consumer reads another step");
  EXPECT_EQ(Pair(3, 2, Bug::OwnReaders).explore(), "a slot is filled twice");
  EXPECT_EQ(Pair(3, 2, Bug::FewBytes).explore(), "a consumer reads another step");
  EXPECT_EQ(Pair(2, 1, Bug::NoEnd).explore(), "an arrival comes to a block that has ended");
}
TEST(Ring, PlantedFaultsAreFound) {
  EXPECT_EQ(Model<3>(4, 2, Bug::FirstPhase).explore(), "deadlock");
  EXPECT_EQ(Model<3>(4, 2, Bug::OneArrival).explore(), "a box lands in what is read");
  EXPECT_EQ(Model<3>(4, 2, Bug::EarlyRelease).explore(), "a box lands in what is read");
  EXPECT_EQ(Model<3>(4, 2, Bug::ResetEachTile).explore(), "a consumer reads another step");
}

}  // namespace ring_test
}  // namespace mixtape::kernels::cuda
