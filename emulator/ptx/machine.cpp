// Runs warps: lanes at the same instruction together, the lowest address first.
#include <algorithm>
#include <utility>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {

uint64_t instructions = 0;

namespace {

constexpr int32_t nowhere = INT32_MAX;

}  // namespace

std::string hex(uint64_t n) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

void Warp::start(Block& in, int number, uint32_t live) {
  block = &in;
  in.warps[size_t(number)] = this;
  const Kernel& k = *in.kernel;
  if (room_ < size_t(k.register_bytes)) {
    room_ = (size_t(k.register_bytes) / 4096 + 2) * 4096;
    registers_.reset(static_cast<char*>(std::aligned_alloc(4096, room_)));
  }
  constants_ = const_cast<char*>(k.constants.data());
  local_.assign(size_t(k.local_bytes) * lanes, char(0xff));
  number_ = number;
  live_ = live;
  at_barrier_ = false;
  groups_.clear();
  split(0, live);
  for (auto& c : copies) c.clear();
  group.fill(0);
  stores.clear();
  store_group.fill(0);
  sums.clear();
  products.clear();
  product_group = 0;
  products_begun = 0;
  sums_fenced = false;
  pause_ = Pause::None;
  at_cluster = 0;
  const uint32_t x = in.grid->threads[0], y = in.grid->threads[1];
  for (int l = 0; l < lanes; ++l) {
    const uint32_t thread = uint32_t(number * lanes + l);
    at<uint32_t>(tid_x)[l] = thread % x;
    at<uint32_t>(tid_y)[l] = thread / x % y;
    at<uint32_t>(tid_z)[l] = thread / (x * y);
    at<uint32_t>(lane_id)[l] = uint32_t(l);
    at<uint32_t>(warp_id)[l] = uint32_t(number);
    at<uint32_t>(cluster_rank)[l] = uint32_t(in.rank);
    at<uint32_t>(cluster_size)[l] = in.grid->cluster;
    for (int i = 0; i < 3; ++i) {
      at<uint32_t>(ntid_x + 128 * i)[l] = in.grid->threads[size_t(i)];
      at<uint32_t>(ctaid_x + 128 * i)[l] = in.index[size_t(i)];
      at<uint32_t>(nctaid_x + 128 * i)[l] = in.grid->blocks[size_t(i)];
    }
  }
}

void Warp::fault(int lane, const std::string& what) {
  const Code& c = block->kernel->code[size_t(pc_)];
  const auto triple = [](uint32_t a, uint32_t b, uint32_t c3) {
    return "(" + std::to_string(a) + ", " + std::to_string(b) + ", " + std::to_string(c3) + ")";
  };
  const auto& files = block->kernel->files;
  const std::string file = size_t(c.file) < files.size() ? files[size_t(c.file)] : "?";
  throw Fault(
      "kernel " + block->kernel->name + ", " + block->name() + ", thread " +
      triple(at<uint32_t>(tid_x)[lane], at<uint32_t>(tid_y)[lane], at<uint32_t>(tid_z)[lane]) +
      ", " + name_of(c.name) + " of " + file + ":" + std::to_string(c.line) + ": " + what);
}

// Selects the lanes at the lowest address; false if all others wait.
bool Warp::pick() {
  pc_ = nowhere;
  for (const Group& g : groups_)
    if (!g.waits && !g.paused) pc_ = std::min(pc_, g.pc);
  if (pc_ == nowhere) return false;
  active_ = 0;
  next_pc_ = nowhere;
  std::erase_if(groups_, [&](const Group& g) {
    if (g.pc == pc_) active_ |= g.mask;
    return g.pc == pc_;
  });
  for (const Group& g : groups_)
    if (g.pc > pc_) next_pc_ = std::min(next_pc_, g.pc);
  return true;
}

// Executes an instruction with a member mask, which may differ among the lanes. Returns the lanes
// that wait, since not all members are here.
uint32_t Warp::converge(const Code& c, uint32_t mask) {
  uint32_t waits = 0;
  for (uint32_t rest = mask; rest != 0;) {
    const uint32_t* const named = at<uint32_t>(c.target);
    const uint32_t needed = named[__builtin_ctz(rest)];
    uint32_t here = 0;
    for (int l = 0; l < lanes; ++l) here |= uint32_t(named[l] == needed) << l;
    here &= rest;
    if (here & ~needed) fault(__builtin_ctz(here & ~needed), "is not among the lanes it names");
    if (here != (needed & live_))
      waits |= here;
    else if (c.run)
      c.run(*this, c, here);
    rest &= ~here;
  }
  return waits;
}

// Executes an instruction for the lanes of the mask; false if the active lanes now differ in their
// next one.
bool Warp::execute(const Code& c, uint32_t mask) {
  switch (c.flow) {
    case Flow::Next:
      c.run(*this, c, mask);
      ++pc_;
      return true;
    case Flow::Branch:
      if (mask == active_ && groups_.empty()) {
        pc_ = c.target;
        return true;
      }
      if (mask != active_) split(pc_ + 1, active_ & ~mask);
      split(c.target, mask);
      return false;
    case Flow::Switch:
      branch_indirect(c, mask);
      return false;
    case Flow::Exit:
      leave(mask);
      if (active_ & ~mask) split(pc_ + 1, active_ & ~mask);
      for (Group& g : groups_) g.waits = false;  // those that wait for these lanes may continue
      return false;
    case Flow::Together: {
      const uint32_t waits = converge(c, mask);
      if (waits == 0) {
        if (active_ != mask && pause_ != Pause::None) split(pc_ + 1, active_ & ~mask);
        return go_on(mask);
      }
      if (active_ != waits) split(pc_ + 1, active_ & ~waits);
      split(pc_, waits, true);
      return false;
    }
    case Flow::Barrier:
      return meet_at_gate(c, mask);
    case Flow::Pause: {
      c.run(*this, c, mask);
      if (active_ != mask && pause_ != Pause::None) split(pc_ + 1, active_ & ~mask);
      return go_on(mask);
    }
  }
  return false;
}

// After an op that may have asked for a pause.
bool Warp::go_on(uint32_t mask) {
  const Pause asked = std::exchange(pause_, Pause::None);
  pc_ += asked != Pause::Again;
  if (asked != Pause::None) split(pc_, mask, false, true);
  return asked == Pause::None;
}

void Warp::leave(uint32_t mask) {
  each_bit(mask, [&](int l) {
    if (!copies[size_t(l)].empty()) fault(l, "exits while a cp.async is under way");
    for (const Store& s : stores)
      if (s.lane == l && !s.is_read) fault(l, "exits while a box is stored from shared memory");
  });
  if (!products.empty()) fault(__builtin_ctz(mask), "exits while wgmma is under way");
  if (at_cluster & mask)
    fault(__builtin_ctz(at_cluster & mask), "exits, and did not wait at the cluster's barrier");
  live_ &= ~mask;
  block->cluster->settle();
  if (live_ != 0) return;
  for (const Store& s : stores) write_box(s.box, s.contents);
  stores.clear();
}

bool Warp::meet_at_gate(const Code& c, uint32_t mask) {
  const int first = __builtin_ctz(mask);
  gate = at<uint32_t>(c.at[0])[first];
  gate_needed = at<uint32_t>(c.at[1])[first];
  if (gate >= block->gates.size() || gate_needed % lanes != 0)
    fault(first,
          "barrier " + std::to_string(gate) + " of " + std::to_string(gate_needed) + " threads");
  if (c.width[0]) {  // bar.arrive
    block->enter_gate(*this);
    ++pc_;
    return true;
  }
  if (active_ != mask) split(pc_ + 1, active_ & ~mask);
  split(pc_, mask, true);
  at_barrier_ = mask == live_;
  return false;
}

void Warp::branch_indirect(const Code& c, uint32_t mask) {
  if (mask != active_) split(pc_ + 1, active_ & ~mask);
  const uint32_t* const which = at<uint32_t>(c.at[0]);
  for (int32_t i = 0; i < c.target; ++i) {
    uint32_t there = 0;
    each_bit(mask, [&](int l) { there |= uint32_t(which[l] == uint32_t(i)) << l; });
    if (there) split(list(c)[i], there);
    mask &= ~there;
  }
  if (mask) fault(__builtin_ctz(mask), "brx.idx has no such target");
}

Warp::Stop Warp::run() {
  if (at_barrier_) {  // which is open now
    at_barrier_ = false;
    for (Group& g : groups_) g = {g.pc + 1, g.mask, false, false};
  }
  for (Group& g : groups_) g.paused = false;
  const Kernel& kernel = *block->kernel;
  const Code* const code = kernel.code.data();
  while (pick()) {
    for (bool same = true; same;) {
      if (pc_ == next_pc_) {
        split(pc_, active_);
        break;
      }
      const Code& c = code[pc_];
      ++instructions;
      uint32_t mask = active_;
      if (c.guarded) mask &= c.unless ? ~predicate(c.guard) : predicate(c.guard);
      if (mask == 0)
        ++pc_;
      else
        same = execute(c, mask);
    }
    if (at_barrier_) return Stop::Barrier;
  }
  if (groups_.empty()) {
    pc_ = int32_t(kernel.code.size()) - 1;
    return Stop::Done;
  }
  for (const Group& g : groups_)
    if (g.paused) return Stop::Yield;
  const Group stuck = groups_.front();
  pc_ = stuck.pc;
  std::string others;
  for (const Group& g : groups_)
    others += " " + hex(g.mask) + "@" + std::to_string(code[g.pc].line);
  fault(__builtin_ctz(stuck.mask), "waits for lanes that never come:" + others);
}

char* Warp::resolve(Space space, uint64_t address, int bytes, int lane) {
  const auto outside = [&](const char* what, uint64_t size) {
    fault(lane, std::string(what) + " memory of " + std::to_string(size) + " bytes, at " +
                    std::to_string(int64_t(address)) + ": " + std::to_string(bytes));
  };
  if (address % uint64_t(bytes) != 0 && (bytes & (bytes - 1)) == 0)
    fault(lane, "misaligned: " + std::to_string(bytes) + " bytes at " + hex(address));
  if (space == Space::Generic) {
    if (address >= shared_window && address < shared_window + window_size)
      return resolve(Space::Shared, address - shared_window, bytes, lane);
    if (address >= local_window && address < local_window + window_size)
      return resolve(Space::Local, address - local_window, bytes, lane);
    if (address >= param_window && address < param_window + window_size)
      return resolve(Space::Param, address - param_window, bytes, lane);
  }
  switch (space) {
    case Space::Shared:
      if (address + uint64_t(bytes) > block->shared_bytes || address >= window_size)
        outside("shared", block->shared_bytes);
      return block->shared + address;
    case Space::Local: {
      const uint64_t size = uint64_t(block->kernel->local_bytes);
      if (address + uint64_t(bytes) > size || address >= window_size) outside("local", size);
      return local_.data() + uint64_t(lane) * size + address;
    }
    case Space::Param: {
      const uint64_t size = uint64_t(block->kernel->parameter_bytes);
      if (address + uint64_t(bytes) > size || address >= window_size) outside("parameter", size);
      return const_cast<char*>(block->parameters) + address;
    }
    default:
      break;
  }
  for (Range& r : block->recent)
    if (address >= r.begin && address + uint64_t(bytes) <= r.end)
      return r.host + (address - r.begin);
  const Range found = find_memory(address, block->device);
  if (address < found.begin || address + uint64_t(bytes) > found.end)
    fault(lane,
          std::to_string(bytes) + " bytes at " + hex(address) + ": " + describe_memory(address));
  block->recent[1] = block->recent[0];
  block->recent[0] = found;
  return found.host + (address - found.begin);
}

uint64_t Warp::address(const Slot* s, int lane) {
  const uint64_t offset = at<uint64_t>(s[1])[lane];
  if (s[2] == 4) return at<uint32_t>(s[0])[lane] + uint32_t(offset);
  return at<uint64_t>(s[0])[lane] + offset;
}
uint32_t Warp::shared_address(const Slot* s, int bytes, int alignment, int lane) {
  uint64_t a = address(s, lane);
  if (a >= shared_window && a < shared_window + window_size) a -= shared_window;
  if (a % uint64_t(alignment) != 0)
    fault(lane, "misaligned: " + std::to_string(bytes) + " bytes at " + hex(a));
  resolve(Space::Shared, a, 1, lane);
  resolve(Space::Shared, a + uint64_t(bytes) - 1, 1, lane);
  return uint32_t(a);
}
Block& Warp::peer(uint32_t rank, int lane) {
  auto& all = block->cluster->blocks;
  if (rank >= all.size())
    fault(lane, "block " + std::to_string(rank) + " of a cluster of " + std::to_string(all.size()));
  if (all[rank].has_ended) fault(lane, all[rank].name() + " has ended");
  return all[rank];
}
Warp::Place Warp::cluster_address(const Slot* s, int bytes, int alignment, int lane) {
  const uint64_t a = address(s, lane);
  if (a >> rank_bits == 0 || a >= window_size)
    return {*block, shared_address(s, bytes, alignment, lane)};
  const uint32_t at = uint32_t(a) & ((1u << rank_bits) - 1);
  if (at % uint32_t(alignment) != 0 || at + uint32_t(bytes) > block->shared_bytes)
    fault(lane, std::to_string(bytes) + " bytes of another block, at " + hex(at));
  return {peer(uint32_t(a >> rank_bits) - 1, lane), at};
}
char* Warp::generic(uint64_t a, int bytes, int alignment, int lane) {
  if (a % uint64_t(alignment) != 0)
    fault(lane, "misaligned: " + std::to_string(bytes) + " bytes at " + hex(a));
  char* const last = resolve(Space::Generic, a + uint64_t(bytes) - 1, 1, lane);
  resolve(Space::Generic, a, 1, lane);
  return last - (bytes - 1);
}

std::string Warp::waiting() const {
  const auto& b = block->barriers;
  const auto at =
      waits_.barrier == ~0u ? b.end() : std::ranges::find(b, waits_.barrier, &Barrier::at);
  const std::string name = name_of(block->kernel->code[size_t(waits_.pc)].name) + " of line " +
                           std::to_string(block->kernel->code[size_t(waits_.pc)].line);
  if (at == b.end()) return name;
  return name + ": phase " + std::to_string(waits_.phase) + " of the mbarrier at " +
         hex(waits_.barrier) + " lacks " + std::to_string(at->missing) + " of " +
         std::to_string(at->needed) + " arrivals and " + std::to_string(at->bytes) + " bytes";
}
void Warp::stuck(const std::string& everyone) {
  pc_ = waits_.pc;
  fault(waits_.lane, "waits for what never comes:" + everyone);
}

void Warp::locate(const Code& c, Slot slot, int bytes, uint32_t mask, char* (&to)[lanes]) {
  uint64_t address[lanes];
  if (c.width[1] == 4) {
    const uint32_t* const a = at<uint32_t>(slot);
    for (int l = 0; l < lanes; ++l) address[l] = uint32_t(a[l] + uint32_t(c.offset));
  } else {
    const uint64_t* const a = at<uint64_t>(slot);
    for (int l = 0; l < lanes; ++l) address[l] = a[l] + uint64_t(c.offset);
  }
  // Together if all are in the same memory, which is the common case.
  if (c.space == Space::Global || c.space == Space::Shared || c.space == Space::Param) {
    uint64_t low = ~uint64_t{0}, high = 0, bits = 0;
    for (int l = 0; l < lanes; ++l) {
      const bool on = mask >> l & 1;
      low = on && address[l] < low ? address[l] : low;
      high = on && address[l] > high ? address[l] : high;
      bits |= on ? address[l] : 0;
    }
    const bool aligned = (bits & uint64_t(bytes - 1)) == 0;
    char* base = nullptr;
    uint64_t begin = 0, end = 0;
    if (c.space == Space::Global) {
      const Range& r =
          block->recent[low >= block->recent[0].begin && low < block->recent[0].end ? 0 : 1];
      base = r.host, begin = r.begin, end = r.end;
    } else if (c.space == Space::Shared) {
      base = block->shared, end = block->shared_bytes;
    } else {
      base = const_cast<char*>(block->parameters), end = uint64_t(block->kernel->parameter_bytes);
    }
    if (aligned && low >= begin && high < end && end - high >= uint64_t(bytes)) {
      for (int l = 0; l < lanes; ++l) to[l] = base + (address[l] - begin);
      return;
    }
  }
  each_bit(mask, [&](int l) { to[l] = resolve(c.space, address[l], bytes, l); });
}

}  // namespace mixtape::ptx
