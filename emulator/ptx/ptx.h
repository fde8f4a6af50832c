#pragma once
// An interpreter of PTX, which runs and checks nvcc's output without a GPU. A kernel is decoded
// once; then each instruction is one call for the 32 lanes of a warp.

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mixtape::ptx {

constexpr int lanes = 32;

// An error on the device: something that a GPU would reject, or not notice.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Warp;
struct Grid;
struct Code;

// Executes an instruction for the lanes of the mask.
using Run = void (*)(Warp&, const Code&, uint32_t mask);

// The location of an operand's 32 lanes: a byte offset in the warp's registers or, if negative, the
// complement of one in the kernel's constants. Predicates are one word, with a bit for each lane.
using Slot = int32_t;

enum class Space : uint8_t { Generic, Global, Shared, Local, Param };

// The effect of an instruction on control flow: none, a jump, a wait for other lanes or warps.
// (After Pause, other warps run if the op says so.)
enum class Flow : uint8_t { Next, Branch, Switch, Exit, Together, Barrier, Pause };

struct Code {
  Run run = nullptr;
  std::array<Slot, 5> at = {};  // results first
  Slot guard = 0;
  bool guarded = false, unless = false;
  Flow flow = Flow::Next;
  Space space = Space::Generic;
  uint8_t width[2] = {};  // of the registers of result and argument, if wider than the type
  int32_t target = 0;     // of a branch; other instructions store a parameter
  int64_t offset = 0;     // added to an address
  uint32_t list = 0;      // further slots, from here in Kernel::lists
  uint32_t name = 0;      // by intern()
  int32_t file = 0, line = 0;
};

struct Parameter {
  int32_t offset, bytes;
};

struct Kernel {
  std::string name;
  std::vector<Code> code;
  std::vector<Slot> lists;
  std::vector<char> constants;
  std::vector<Parameter> parameters;
  int parameter_bytes = 0, register_bytes = 0, local_bytes = 0, shared_bytes = 0;
  int most_threads = 1024;   // per block
  int thread_registers = 0;  // at a launch, by the bounds it was compiled for
  std::vector<std::string> files;
};

// The registers that every warp has, before its others.
enum Special : Slot {
  tid_x = 0,
  tid_y = 128,
  tid_z = 256,
  lane_id = 384,
  warp_id = 512,
  ntid_x = 640,
  ntid_y = 768,
  ntid_z = 896,
  ctaid_x = 1024,
  ctaid_y = 1152,
  ctaid_z = 1280,
  nctaid_x = 1408,
  nctaid_y = 1536,
  nctaid_z = 1664,
  carry = 1792,
  sink = 1920,
  cluster_rank = 2176,
  cluster_size = 2304,
  specials_end = 2432
};

// The PTX of one source file. Variables are allocated at once, kernels are decoded on first use.
class Module {
 public:
  Module(std::string text, void* (*reserve)(size_t bytes, size_t alignment));
  const Kernel& kernel(const std::string& name);

  struct Function {
    std::string_view head, body;
  };
  struct Variable {
    Space space;
    uint64_t address;
  };
  std::map<std::string, Function, std::less<>> entries, functions;
  std::map<std::string, Variable, std::less<>> variables;
  std::vector<std::string> files;

 private:
  size_t read_function(size_t i, const std::vector<std::string_view>& tokens);
  size_t read_variable(size_t i, const std::vector<std::string_view>& tokens,
                       void* (*reserve)(size_t, size_t));

  const std::string text_;
  std::map<std::string, std::unique_ptr<Kernel>> decoded_;
};

using Width = uint8_t;  // of an operand's registers in bytes; 0: a predicate
struct Op {
  Run run = nullptr;
  std::vector<Width> operands = {};
};
// Ops with plain operands, by name, such as add.f32.
const std::map<std::string, Op, std::less<>>& plain_ops();
// Other ops, whose operands decode.cpp reads.
Run memory_op(std::string_view kind, std::string_view type, int count);  // kind: ld, st
Run convert_op(std::string_view name, int32_t& how);  // cvt.rn.f32.s32; sets `how` for Code::target
Run pack_op(int width, int parts, bool apart);        // mov of a register from or to parts
Run special_op(std::string_view name);                // shfl, atom, cp.async, and tensor_core_op()
Run tensor_core_op(std::string_view name);            // mma, ldmatrix, wmma

// Ops whose slots are all in Kernel::lists, in the order of their operands:
//   w, W, p  result: a word, 64 bits, a predicate      e  result: a word and its predicate, d|p
//   r, l, q  source: a word, 64 bits, a predicate      i  a small number instead of a slot
//   h        source: 16 bits
//   a        an address: its slot, that of an offset, and the width instead of a slot
//   m        an address and words in braces            L  words in braces
//   D        results in braces that are sources too    M  the member mask (no slot)
//   A        64 bits, or words in braces (which sets bit 16 of Code::offset)
struct Form {
  Run run = nullptr;
  std::string_view operands = {};
  Flow flow = Flow::Next;
  int64_t number = 0;                 // for Code::offset
  std::array<uint8_t, 2> types = {};  // for Code::width
};
Form form_of(std::string_view name, size_t operands);       // run: null if there is none
Form barrier_form(std::string_view name, size_t operands);  // mbarrier.*, fences
Form box_form(std::string_view name, size_t operands);      // cp.async.bulk.*
Form product_form(std::string_view name, size_t operands);  // wgmma.*

uint32_t intern(std::string_view name);  // the name of an instruction
const std::string& name_of(uint32_t number);

// --- running ---

struct Grid {
  std::array<uint32_t, 3> blocks, threads;
  uint32_t shared_bytes;  // besides those that the kernel declares
  uint32_t cluster = 1;   // neighbouring blocks along x that run together
};
// Runs a grid, cluster by cluster (which are mostly single blocks), in this thread. Throws Fault.
void run(const Kernel& kernel, const Grid& grid, const void* parameters, int device);

// A range of accessible device memory, whose addresses are invalid on the host, and its contents in
// host memory.
struct Range {
  uint64_t begin = 0, end = 0;
  char* host = nullptr;  // the contents of begin
};
Range find_memory(uint64_t address, int device);  // empty if there is none
std::string describe_memory(uint64_t address);    // for errors
std::string hex(uint64_t number);
void complain(const std::string& what);  // prints it, and makes the program fail
extern uint64_t instructions;            // executed by warps so far

}  // namespace mixtape::ptx
