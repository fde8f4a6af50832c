// Runs grids, block by block: its warps in turn, each until it waits.
#include <algorithm>
#include <cstdlib>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {
namespace {

Landing landing_asked() {
  const char* const asked = std::getenv("MIXTAPE_PTX_BOXES");
  const std::string_view how = asked ? asked : "late";
  if (how == "random") return Landing::Random;
  if (how == "early") return Landing::Early;
  return Landing::Late;
}

enum class State : uint8_t { Ready, AtGate, Done };

// The warps of the running block.
struct Turns {
  Block& block;
  std::span<const std::unique_ptr<Warp>> warps;
  std::vector<State> states = std::vector<State>(warps.size(), State::Ready);
  size_t live = warps.size();

  void run(size_t w) {
    switch (warps[w]->run()) {
      case Warp::Stop::Done:
        states[w] = State::Done;
        --live;
        ++block.moves;
        break;
      case Warp::Stop::Barrier:
        states[w] = State::AtGate;
        block.enter_gate(*warps[w]);
        break;
      case Warp::Stop::Yield:
        break;
    }
  }
  bool waits_at(size_t w, size_t gate) const {
    return states[w] == State::AtGate && warps[w]->gate == gate;
  }
  void open_gates() {
    for (size_t g = 0; g < block.gates.size(); ++g) {
      Gate& gate = block.gates[g];
      if (gate.here == 0) continue;
      if (gate.here < (gate.needed ? gate.needed : uint32_t(live) * lanes)) continue;
      for (size_t w = 0; w < warps.size(); ++w)
        if (waits_at(w, g)) {
          states[w] = State::Ready;
          warps[w]->acquire(gate.arrived);
        }
      gate = {};
      ++block.moves;
    }
  }
  [[noreturn]] void stuck() {
    std::string text;
    Warp* first = nullptr;
    for (size_t w = 0; w < warps.size(); ++w) {
      if (states[w] == State::Done) continue;
      text += " warp " + std::to_string(w) + " ";
      if (states[w] == State::Ready) {
        text += "at " + warps[w]->waiting() + ";";
        if (!first) first = warps[w].get();
      } else {
        const Gate& gate = block.gates[warps[w]->gate];
        text += "at bar.sync " + std::to_string(warps[w]->gate) + " with " +
                std::to_string(gate.here) + " of " +
                std::to_string(gate.needed ? gate.needed : uint32_t(live) * lanes) + " threads;";
      }
    }
    text.pop_back();
    if (first) first->stuck(text);
    for (size_t w = 0;; ++w)
      if (states[w] == State::AtGate) warps[w]->fault(0, "waits for what never comes:" + text);
  }
};

void run_block(Block& block, std::span<const std::unique_ptr<Warp>> warps) {
  Turns turns{block, warps};
  const size_t count = warps.size();
  // (In another order in each block and after each turn: kernels must not depend on it.)
  for (size_t turn = block.index[0] + block.index[1] + block.index[2]; turns.live > 0; ++turn) {
    const uint64_t before = block.moves;
    const size_t first = landing == Landing::Random ? block.random() % count : 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t w = ((turn % 2 ? i : count - 1 - i) + first) % count;
      if (turns.states[w] == State::Ready) turns.run(w);
    }
    turns.open_gates();
    const size_t boxes = block.boxes.size();
    if (boxes > 0 && (block.moves == before || (landing == Landing::Random && block.random() % 2)))
      block.land(block.random() % boxes);
    if (block.moves == before && turns.live > 0) turns.stuck();
  }
  const auto at_end = [&](const std::string& what) {
    warps[0]->fault(0, "the block ends while " + what);
  };
  if (!block.boxes.empty()) at_end("boxes are under way");
  for (const Gate& g : block.gates)
    if (g.here > 0) at_end(std::to_string(g.here) + " threads wait at a barrier");
}

}  // namespace

const Landing landing = landing_asked();

void Block::start(size_t warps) {
  clocks.assign(watch_races ? warps : 0, Clock{});
  for (size_t w = 0; w < clocks.size(); ++w) clocks[w].seen[w] = 1;
  this->warps.assign(warps, nullptr);
  barriers.clear();
  boxes.clear();
  registers.assign(warps, 0);
  products.assign((warps + 3) / 4, {});
  seed = uint32_t(launch * 2654435761u + number);
  std::memset(shared, 0xff, shared_bytes);
}
uint32_t Block::random() {
  seed = seed * 1664525u + 1013904223u;
  return seed >> 8;
}
Barrier* Block::barrier(uint32_t at) {
  const auto found = std::ranges::find(barriers, at, &Barrier::at);
  return found == barriers.end() ? nullptr : &*found;
}
void Block::enter_gate(Warp& w) {
  Gate& gate = gates[w.gate];
  if (gate.here > 0 && gate.needed != w.gate_needed)
    w.fault(0, "a barrier of " + std::to_string(w.gate_needed) + " threads, and of " +
                   std::to_string(gate.needed) + " for others");
  gate.needed = w.gate_needed;
  gate.here += lanes;
  if (gate.needed && gate.here > gate.needed) w.fault(0, "more threads than the barrier is for");
  w.release(gate.arrived);
  ++moves;
}
void Block::arrive(Barrier& b, int count) {
  ++moves;
  b.missing -= count;
  if (b.missing > 0 || b.bytes != 0) return;
  b.missing = b.needed;
  ++b.phase;
  b.over = b.arrived;
}
void Block::land(size_t i) {
  const Box box = std::move(boxes[i]);
  boxes.erase(boxes.begin() + std::ptrdiff_t(i));
  read_box(*this, box);
  Barrier& b = *barrier(box.barrier);
  if (watch_races) {
    for (uint32_t at = 0; at < box.bytes(); at += 16)
      mark_landed(*this, b, shared + box.place(at), 16);
    uint32_t& landed = b.arrived.seen[size_t(Clock::warps + b.number)];
    landed = std::max(landed, uint32_t(b.phase) + 1);
  }
  b.bytes -= box.bytes();
  arrive(b, 0);
}
bool Block::writes(uint32_t begin, uint32_t end) const {
  return std::ranges::any_of(
      boxes, [&](const Box& b) { return b.shared < end && begin < b.shared + b.bytes(); });
}

void run(const Kernel& kernel, const Grid& grid, const void* parameters, int device) {
  static thread_local std::vector<std::unique_ptr<Warp>> warps;
  static thread_local std::vector<char> shared;
  Block block{&kernel, &grid, static_cast<const char*>(parameters), device};
  block.shared_bytes = uint32_t(kernel.shared_bytes) + grid.shared_bytes;
  shared.resize(block.shared_bytes + 128);
  block.shared = shared.data();
  static uint64_t launches = 0;
  block.launch = ++launches;
  const auto [bx, by, bz] = grid.blocks;
  const uint32_t threads = grid.threads[0] * grid.threads[1] * grid.threads[2];
  const size_t count = (threads + lanes - 1) / lanes;
  while (warps.size() < count) warps.push_back(std::make_unique<Warp>());
  for (uint32_t z = 0; z < bz; ++z)
    for (uint32_t y = 0; y < by; ++y)
      for (uint32_t x = 0; x < bx; ++x) {
        block.index = {x, y, z};
        block.number = (uint64_t(z) * by + y) * bx + x;
        block.start(count);
        for (size_t w = 0; w < count; ++w) {
          const uint32_t here = std::min(threads - uint32_t(w) * lanes, uint32_t(lanes));
          warps[w]->start(block, int(w), here == lanes ? ~0u : (1u << here) - 1);
        }
        run_block(block, std::span(warps).first(count));
      }
}

}  // namespace mixtape::ptx
