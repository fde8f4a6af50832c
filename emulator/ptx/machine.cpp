// Runs grids: lanes of a warp at the same instruction together, the lowest address first; the warps
// of a block one after the other, each up to its next barrier.
#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {

uint64_t instructions = 0;

namespace {

constexpr int32_t nowhere = INT32_MAX;

std::string hex(uint64_t n) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
  return text;
}

// The last accesses of a byte. (One of several readers.)
struct Touched {
  uint64_t writer = 0, reader = 0;
};
// In one word: the launch, its block, the barriers before, the warp, and a bit for atomics.
uint64_t who(const Block& b, int warp, bool is_atomic) {
  return b.launch << 42 | (b.number & 0xffffff) << 18 | (b.epoch & 0xfff) << 6 |
         uint64_t(warp) << 1 | uint64_t(is_atomic);
}
bool unordered(uint64_t a, uint64_t b, bool is_shared) {
  if (a >> 42 != b >> 42 || (a & b & 1)) return false;
  if (a >> 18 != b >> 18) return !is_shared;  // (blocks have shared memory one after the other)
  return a >> 6 == b >> 6 && a >> 1 != b >> 1;
}
Touched& touched(const char* at) {
  static std::unordered_map<uint64_t, std::unique_ptr<Touched[]>> pages;
  static uint64_t recent = 0;
  static Touched* there = nullptr;
  const auto address = reinterpret_cast<uint64_t>(at);
  if (address >> 12 != recent) {
    auto& page = pages[recent = address >> 12];
    if (!page) page = std::make_unique<Touched[]>(4096);
    there = page.get();
  }
  return there[address & 4095];
}

}  // namespace

const bool watch_races = std::getenv("MIXTAPE_PTX_RACES") != nullptr;

void Warp::note(int lane, const char* at, int bytes, Access access, bool same) {
  if (at >= local_.data() && at < local_.data() + local_.size()) return;
  const uint64_t me = who(*block, number_, access == Access::Atomic);
  const bool is_shared = at >= block->shared && at < block->shared + block->shared_bytes;
  const auto describe = [](uint64_t w) {
    return "block " + std::to_string(w >> 18 & 0xffffff) + ", warp " + std::to_string(w >> 1 & 31);
  };
  for (int i = 0; i < bytes; ++i) {
    Touched& t = touched(at + i);
    if (!same && unordered(t.writer, me, is_shared))
      fault(lane, std::string(is_shared ? "shared memory" : "memory") + " that was written by " +
                      describe(t.writer));
    if (access == Access::Read) {
      t.reader = me;
      continue;
    }
    if (!same && unordered(t.reader, me, is_shared))
      fault(lane, std::string(is_shared ? "shared memory" : "memory") + " that is read by " +
                      describe(t.reader));
    t.writer = me;
  }
}

void Warp::start(Block& in, int number, uint32_t live) {
  block = &in;
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
  const uint32_t x = in.grid->threads[0], y = in.grid->threads[1];
  for (int l = 0; l < lanes; ++l) {
    const uint32_t thread = uint32_t(number * lanes + l);
    at<uint32_t>(tid_x)[l] = thread % x;
    at<uint32_t>(tid_y)[l] = thread / x % y;
    at<uint32_t>(tid_z)[l] = thread / (x * y);
    at<uint32_t>(lane_id)[l] = uint32_t(l);
    at<uint32_t>(warp_id)[l] = uint32_t(number);
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
      "kernel " + block->kernel->name + ", block " +
      triple(block->index[0], block->index[1], block->index[2]) + ", thread " +
      triple(at<uint32_t>(tid_x)[lane], at<uint32_t>(tid_y)[lane], at<uint32_t>(tid_z)[lane]) +
      ", " + name_of(c.name) + " of " + file + ":" + std::to_string(c.line) + ": " + what);
}

// Selects the lanes at the lowest address; false if all others wait.
bool Warp::pick() {
  pc_ = nowhere;
  for (const Group& g : groups_)
    if (!g.waits) pc_ = std::min(pc_, g.pc);
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
      each_bit(mask, [&](int l) {
        if (!copies[size_t(l)].empty()) fault(l, "exits while a cp.async is under way");
      });
      live_ &= ~mask;
      if (active_ & ~mask) split(pc_ + 1, active_ & ~mask);
      for (Group& g : groups_) g.waits = false;  // those that wait for these lanes may continue
      return false;
    case Flow::Together: {
      const uint32_t waits = converge(c, mask);
      if (waits == 0) {
        ++pc_;
        return true;
      }
      if (active_ != waits) split(pc_ + 1, active_ & ~waits);
      split(pc_, waits, true);
      return false;
    }
    case Flow::Barrier:
      if (active_ != mask) split(pc_ + 1, active_ & ~mask);
      split(pc_, mask, true);
      at_barrier_ = mask == live_;
      return false;
  }
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
    for (Group& g : groups_) g = {g.pc + 1, g.mask, false};
  }
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
  if (groups_.empty()) return Stop::Done;
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

void run(const Kernel& kernel, const Grid& grid, const void* parameters, int device) {
  static thread_local std::vector<std::unique_ptr<Warp>> warps;
  static thread_local std::vector<char> shared;
  Block block{&kernel,
              &grid,
              static_cast<const char*>(parameters),
              device,
              {},
              nullptr,
              uint32_t(kernel.shared_bytes) + grid.shared_bytes,
              {}};
  shared.resize(block.shared_bytes + 128);
  block.shared = shared.data();
  static uint64_t launches = 0;
  block.launch = ++launches;
  const auto [bx, by, bz] = grid.blocks;
  const uint32_t threads = grid.threads[0] * grid.threads[1] * grid.threads[2];
  const size_t count = (threads + lanes - 1) / lanes;
  while (warps.size() < count) warps.push_back(std::make_unique<Warp>());
  std::vector<Warp::Stop> stops(count);
  for (uint32_t z = 0; z < bz; ++z)
    for (uint32_t y = 0; y < by; ++y)
      for (uint32_t x = 0; x < bx; ++x) {
        block.index = {x, y, z};
        block.number = (uint64_t(z) * by + y) * bx + x;
        std::memset(block.shared, 0xff, block.shared_bytes);
        for (size_t w = 0; w < count; ++w) {
          const uint32_t here = std::min(threads - uint32_t(w) * lanes, uint32_t(lanes));
          warps[w]->start(block, int(w), here == lanes ? ~0u : (1u << here) - 1);
          stops[w] = Warp::Stop::Barrier;
        }
        // (In another order in each block and after each barrier: kernels must not depend on it.)
        for (size_t turn = x + y + z, waiting = count; waiting > 0; ++turn) {
          waiting = 0;
          ++block.epoch;
          for (size_t i = 0; i < count; ++i) {
            const size_t w = turn % 2 ? i : count - 1 - i;
            if (stops[w] == Warp::Stop::Done) continue;
            stops[w] = warps[w]->run();
            waiting += stops[w] == Warp::Stop::Barrier;
          }
        }
      }
}

}  // namespace mixtape::ptx
