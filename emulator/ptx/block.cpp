// Runs grids, cluster by cluster: the warps of its blocks in turn, each until it waits.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

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

// The warps of a running block.
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
  // Each ready warp once. (In another order in each block and after each turn: kernels must not
  // depend on it.)
  void run_all(size_t turn) {
    const size_t count = warps.size();
    const size_t first = landing == Landing::Random ? block.random() % count : 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t w = ((turn % 2 ? i : count - 1 - i) + first) % count;
      if (states[w] == State::Ready) run(w);
    }
    open_gates();
    if (live == 0) end();
  }
  void end() {
    block.has_ended = true;
    const auto at_end = [&](const std::string& what) {
      warps[0]->fault(0, "the block ends while " + what);
    };
    if (!block.boxes.empty()) at_end("boxes are under way");
    for (const Gate& g : block.gates)
      if (g.here > 0) at_end(std::to_string(g.here) + " threads wait at a barrier");
    for (const auto& [actor, done] : block.sent)
      if (std::ranges::none_of(block.clocks,
                               [&](const Clock& c) { return c.seen[size_t(actor)] >= done; }))
        at_end("an arrival of another block may be under way, which nothing waits for");
  }
  // The waits of its warps; `first`: the first that waits for something else than a gate.
  std::string waiting(Warp*& first) const {
    std::string text;
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
    return text;
  }
};

[[noreturn]] void stuck(std::vector<Turns>& all) {
  std::string text;
  Warp *first = nullptr, *at_gate = nullptr;
  for (Turns& t : all) {
    if (t.live == 0) continue;
    if (all.size() > 1) text += " " + t.block.name() + ":";
    text += t.waiting(first);
    for (size_t w = 0; w < t.warps.size() && !at_gate; ++w)
      if (t.states[w] == State::AtGate) at_gate = t.warps[w].get();
  }
  text.pop_back();
  if (first) first->stuck(text);
  at_gate->fault(0, "waits for what never comes:" + text);
}

// Lands any box of the cluster.
void land_one(Cluster& cluster, size_t boxes) {
  size_t which = cluster.blocks[0].random() % boxes;
  for (Block& b : cluster.blocks) {
    if (which < b.boxes.size()) return b.land(which);
    which -= b.boxes.size();
  }
}

void run_cluster(Cluster& cluster, std::vector<Turns>& all) {
  const auto sum = [](const auto& of, const auto& number) {
    uint64_t total = 0;
    for (const auto& each : of) total += number(each);
    return total;
  };
  const auto live = [&] { return sum(all, [](const Turns& t) { return t.live; }); };
  const auto moves = [&] { return sum(cluster.blocks, [](const Block& b) { return b.moves; }); };
  const auto [x, y, z] = cluster.blocks[0].index;
  for (size_t turn = x + y + z; live() > 0; ++turn) {
    const uint64_t before = moves();
    for (size_t i = 0; i < all.size(); ++i)
      if (Turns& t = all[turn % 2 ? i : all.size() - 1 - i]; t.live > 0) t.run_all(turn);
    const size_t boxes = sum(cluster.blocks, [](const Block& b) { return b.boxes.size(); });
    const bool now = landing == Landing::Random && boxes > 0 && cluster.blocks[0].random() % 2;
    if (boxes > 0 && (moves() == before || now)) land_one(cluster, boxes);
    if (moves() == before && live() > 0) stuck(all);
  }
}

}  // namespace

const Landing landing = landing_asked();

void Block::start(size_t warps) {
  clocks.assign(watch_races ? warps : 0, Clock{});
  for (size_t w = 0; w < clocks.size(); ++w) clocks[w].seen[size_t(first_actor) + w] = 1;
  has_ended = false;
  sent.clear();
  this->warps.assign(warps, nullptr);
  barriers.clear();
  boxes.clear();
  registers.assign(warps, 0);
  products.assign((warps + 3) / 4, {});
  seed = uint32_t(launch * 2654435761u + number + uint64_t(rank));
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

std::string Block::name() const {
  return "block (" + std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " +
         std::to_string(index[2]) + ")";
}
void Cluster::settle() {
  if (here == 0) return;
  uint32_t live = 0;
  for (const Block& b : blocks)
    for (const Warp* const w : b.warps) live += uint32_t(std::popcount(w->live()));
  if (here < live) return;
  here = 0;
  ++phase;
  over = std::exchange(arrived, {});
  ++blocks[0].moves;
}

void run(const Kernel& kernel, const Grid& grid, const void* parameters, int device) {
  static thread_local std::vector<std::unique_ptr<Warp>> warps;
  static thread_local std::vector<char> shared;
  static uint64_t launches = 0;
  ++launches;
  const auto [bx, by, bz] = grid.blocks;
  const uint32_t threads = grid.threads[0] * grid.threads[1] * grid.threads[2];
  const size_t count = (threads + lanes - 1) / lanes, size = grid.cluster;
  while (warps.size() < count * size) warps.push_back(std::make_unique<Warp>());
  const uint32_t shared_bytes = uint32_t(kernel.shared_bytes) + grid.shared_bytes;
  const size_t per_block = (shared_bytes + 255) / 128 * 128;
  shared.resize(size * per_block);
  Cluster cluster;
  cluster.begin = shared.data(), cluster.end = cluster.begin + shared.size();
  cluster.blocks.assign(size, {&kernel, &grid, static_cast<const char*>(parameters), device});
  for (size_t rank = 0; rank < size; ++rank) {
    Block& block = cluster.blocks[rank];
    block.shared = shared.data() + rank * per_block;
    block.shared_bytes = shared_bytes;
    block.launch = launches;
    block.cluster = &cluster;
    block.rank = int(rank);
    block.first_actor = int(rank * count);
  }
  std::vector<Turns> turns;
  for (uint32_t z = 0; z < bz; ++z)
    for (uint32_t y = 0; y < by; ++y)
      for (uint32_t x = 0; x < bx; x += uint32_t(size)) {
        cluster.barriers = 0;
        cluster.here = 0;
        turns.clear();
        for (Block& block : cluster.blocks) {
          block.index = {x + uint32_t(block.rank), y, z};
          block.number = (uint64_t(z) * by + y) * bx + x;
          block.start(count);
          const auto mine = std::span(warps).subspan(size_t(block.rank) * count, count);
          for (size_t w = 0; w < count; ++w) {
            const uint32_t here = std::min(threads - uint32_t(w) * lanes, uint32_t(lanes));
            mine[w]->start(block, int(w), here == lanes ? ~0u : (1u << here) - 1);
          }
          turns.push_back({block, mine});
        }
        run_cluster(cluster, turns);
      }
}

}  // namespace mixtape::ptx
