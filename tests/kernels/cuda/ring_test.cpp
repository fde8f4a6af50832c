// All interleavings of a ring: one producer, consumers that keep one product in flight, and boxes
// that land at any later time.

#include "kernels/cuda/gemm/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>

namespace mixtape::kernels::cuda {
namespace ring_test {

enum class Bug { None, FirstPhase, OneArrival, EarlyRelease, ResetEachTile };

template <int stages, int consumers>
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
  };
  Walk producer = {}, consumer[consumers] = {};
  Barrier full[stages] = {}, empty[stages] = {};
  int content[stages] = {}, landing[stages] = {};  // steps, -1: none
};

template <int stages, int consumers = 2>
class Model {
  using State = ring_test::State<stages, consumers>;

 public:
  Model(int steps, int tiles, Bug bug) : steps_(steps), total_(steps * tiles), bug_(bug) {}

  // The first fault that any interleaving has, or nothing.
  std::string explore() {
    State start;
    std::fill_n(start.content, stages, -1);
    std::fill_n(start.landing, stages, -1);
    for (auto& b : start.empty) b.awaited = arrivals();
    reach(start);
    while (!todo_.empty() && fault_.empty()) {
      const State s = todo_.front();
      todo_.pop_front();
      const size_t before = moves_;
      produce(s);
      for (int slot = 0; slot < stages; ++slot) land(s, slot);
      for (int i = 0; i < consumers; ++i) consume(s, i);
      if (moves_ == before && !finished(s)) fault_ = "deadlock";
    }
    return fault_;
  }
  size_t states() const { return seen_.size(); }

 private:
  int arrivals() const { return bug_ == Bug::OneArrival ? 1 : consumers; }
  bool finished(const State& s) const {
    return s.producer.step == total_ &&
           std::ranges::all_of(s.consumer, [&](const auto& c) { return c.step == total_; });
  }
  void reach(const State& s) {
    static_assert(std::has_unique_object_representations_v<State>);
    ++moves_;
    std::string key(sizeof s, '\0');
    std::memcpy(key.data(), &s, sizeof s);
    if (seen_.insert(key).second) todo_.push_back(s);
  }
  void next(typename State::Walk& w) const {
    ++w.step;
    w.ring.next();
    if (bug_ == Bug::ResetEachTile && w.step % steps_ == 0) w.ring = {};
  }
  static void settle(typename State::Barrier& b, int arrivals) {
    if (b.awaited > 0 || b.boxes != 0) return;
    b.phase ^= 1;
    b.awaited = arrivals;
  }

  // Waits for an empty slot; then announces a box and sends it.
  void produce(State s) {
    auto& p = s.producer;
    if (p.step == total_) return;
    const int slot = p.ring.slot;
    if (!p.busy) {
      const unsigned parity =
          bug_ == Bug::FirstPhase ? p.ring.full_parity() : p.ring.empty_parity();
      if (s.empty[slot].phase == parity) return;
      p.busy = 1;
    } else {
      if (s.full[slot].awaited == 0 || s.landing[slot] >= 0) fault_ = "a slot is filled twice";
      --s.full[slot].awaited;
      ++s.full[slot].boxes;
      s.landing[slot] = p.step;
      p.busy = 0;
      next(p);
    }
    reach(s);
  }

  void land(State s, int slot) {
    if (s.landing[slot] < 0) return;
    for (const auto& c : s.consumer)
      if (std::ranges::count(c.flight, slot)) fault_ = "a box lands in what is read";
    s.content[slot] = std::exchange(s.landing[slot], -1);
    --s.full[slot].boxes;
    settle(s.full[slot], 1);
    reach(s);
  }

  // Waits for a full slot and starts its product; then waits for older products, at the end of a
  // tile for all, and gives back their slots.
  void consume(State s, int i) {
    auto& c = s.consumer[i];
    if (c.step == total_) return;
    const int slot = c.ring.slot;
    if (!c.busy) {
      if (s.full[slot].phase == c.ring.full_parity()) return;
      if (s.content[slot] != c.step) fault_ = "a consumer reads another step";
      c.flight[c.flight[0] < 0 ? 0 : 1] = slot;
      c.busy = 1;
    } else {
      const bool all = (c.step + 1) % steps_ == 0;
      if (bug_ == Bug::EarlyRelease) {
        give_back(s, slot);
        if (c.flight[1] >= 0 || all) finish(c);
        if (all) finish(c);
      } else {
        if (c.flight[1] >= 0) give_back(s, finish(c));
        if (all) give_back(s, finish(c));
      }
      c.busy = 0;
      next(c);
    }
    reach(s);
  }
  static int finish(typename State::Walk& c) {
    return std::exchange(c.flight[0], std::exchange(c.flight[1], -1));
  }
  void give_back(State& s, int slot) {
    if (s.empty[slot].awaited == 0) fault_ = "too many arrivals";
    --s.empty[slot].awaited;
    settle(s.empty[slot], arrivals());
  }

  const int steps_, total_;
  const Bug bug_;
  std::string fault_;
  size_t moves_ = 0;
  std::unordered_set<std::string> seen_;
  std::deque<State> todo_;
};

// Explores many lengths; returns the number of states.
template <int stages, int consumers = 2>
size_t explore_all() {
  size_t states = 0;
  for (const int steps : {1, 2, 3, 5})
    for (const int tiles : {1, 2, 3}) {
      Model<stages, consumers> model(steps, tiles, Bug::None);
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
TEST(Ring, PlantedFaultsAreFound) {
  EXPECT_EQ(Model<3>(4, 2, Bug::FirstPhase).explore(), "deadlock");
  EXPECT_EQ(Model<3>(4, 2, Bug::OneArrival).explore(), "a box lands in what is read");
  EXPECT_EQ(Model<3>(4, 2, Bug::EarlyRelease).explore(), "a box lands in what is read");
  EXPECT_EQ(Model<3>(4, 2, Bug::ResetEachTile).explore(), "a consumer reads another step");
}

}  // namespace ring_test
}  // namespace mixtape::kernels::cuda
