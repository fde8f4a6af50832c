#pragma once
// A running block: what its warps meet at, and what is on its way between them; and a cluster of
// blocks.

#include "emulator/ptx/ptx.h"

namespace mixtape::ptx {

extern const bool watch_races;

// The events that are known to have happened before, as a count for each actor: the warps, then the
// mbarriers, as which boxes write, both of all blocks of the cluster. fenced: the same for writes
// that copy engine and tensor cores can see.
struct Clock {
  // The last is a box that is under way; before it are the groups of warps, as wgmma reads.
  static constexpr int warps = 32, actors = 128, in_flight = actors - 1,
                       groups = in_flight - warps / 4, barriers = groups - warps;
  std::array<uint32_t, actors> seen = {}, fenced = {};

  void join(const Clock& other);
};

// An mbarrier. Its 8 bytes in shared memory hold a mark, to notice when they are overwritten.
struct Barrier {
  static constexpr uint64_t mark = 0x6d62'6172'7269'6572;
  uint32_t at = 0;                // in shared memory
  int32_t number = 0;             // in its cluster
  int32_t needed, missing;        // arrivals
  int64_t bytes = 0;              // of this phase that are yet to come
  uint64_t phase = 0;             // phases that are over
  bool fenced = false;            // visible to the copy engine
  int maker = 0;                  // the actor of its mbarrier.init
  uint32_t made = 0;              // its clock before
  Clock arrived = {}, over = {};  // learned by waiting for a phase
};

// Threads at a bar.sync or bar.arrive.
struct Gate {
  uint32_t needed = 0, here = 0;  // threads; needed: 0 for all of the block
  Clock arrived = {};
};

// A box of a tensor and its place in shared memory.
struct Box {
  struct Row {
    char* tensor;              // the first byte inside of the tensor
    uint32_t skipped, inside;  // bytes of the row before it, and inside
  };
  uint32_t shared = 0, row_bytes = 0;
  uint32_t swizzle = 0;  // bits of a 16-byte chunk's place that change from row to row
  bool nan = false, to_tf32 = false;
  std::vector<Row> rows = {};
  uint32_t barrier = 0;  // a load's, in shared memory
  int lane = 0;

  uint32_t bytes() const { return row_bytes * uint32_t(rows.size()); }
  // The place of a byte (at a multiple of 16) of the box in shared memory.
  uint32_t place(uint32_t byte) const {
    const uint32_t at = shared + byte;
    return at ^ ((at >> 7 & swizzle) << 4);
  }
};

// When boxes land: as late as possible, at random turns, or at once (MIXTAPE_PTX_BOXES).
enum class Landing { Late, Random, Early };
extern const Landing landing;

struct Cluster;
struct Block {
  const Kernel* kernel;
  const Grid* grid;
  const char* parameters;
  int device;
  std::array<uint32_t, 3> index = {};
  char* shared = nullptr;
  uint32_t shared_bytes = 0;
  Range recent[2] = {};             // the ranges of the last global accesses
  uint64_t launch = 0, number = 0;  // (the number is that of its cluster's first block)
  Cluster* cluster = nullptr;
  int rank = 0, first_actor = 0;  // in the cluster; of its warps, in clocks
  bool has_ended = false;
  uint64_t moves = 0;  // grows whenever something happens that a warp may wait for
  std::vector<Warp*> warps = {};
  std::vector<Clock> clocks = {};     // of the warps
  std::map<int, uint32_t> sent = {};  // the last arrivals here of actors of other blocks
  std::array<Gate, 16> gates = {};
  std::vector<Barrier> barriers = {};
  std::vector<Box> boxes = {};                       // being loaded
  std::vector<int> registers = {};                   // of a thread of each warp, after setmaxnreg
  std::vector<std::vector<uint64_t>> products = {};  // of the warps of a group

  void start(size_t warps);
  void enter_gate(Warp& warp);
  Barrier* barrier(uint32_t at);
  void arrive(Barrier& b, int count);  // (count: 0 after other changes)
  std::string name() const;            // "block (1, 0, 0)"
  void land(size_t box);
  bool writes(uint32_t begin, uint32_t end) const;  // Is a box being loaded to these addresses?
  uint32_t random();

  uint32_t seed = 0;
};

// Blocks that run together and reach each other's shared memory; mostly one.
struct Cluster {
  std::vector<Block> blocks = {};
  const char *begin = nullptr, *end = nullptr;  // of their shared memory
  int barriers = 0;                             // mbarriers so far
  uint32_t here = 0;                            // threads at the barrier of the cluster
  uint64_t phase = 0;                           // of that barrier
  Clock arrived = {}, over = {};

  void settle();  // opens the barrier of the cluster if all threads are there
};

// Marks bytes that a box under way will write, that a product of a group reads, or that a box wrote
// before the end of the barrier's phase.
void mark_in_flight(const Block& block, const char* at, int bytes);
void mark_product(const Block& block, int group, size_t number, const char* at, int bytes);
void mark_landed(const Block& block, const Barrier& barrier, const char* at, int bytes);

// Copies between shared memory and the tensor.
void read_box(Block& block, const Box& box);
std::vector<char> contents_of(const Block& block, const Box& box);
void write_box(const Box& box, const std::vector<char>& contents);

}  // namespace mixtape::ptx
