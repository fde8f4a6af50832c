#pragma once
// Recipe: how a region's matrix products and convolutions round their operands to formats of 8 or 4
// bits. Their numbers stay in the region's bf16 (or f32), which holds them exactly, and sums are
// f32: so the numbers are those of the format on every device. See docs/fp8.md.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch.h"
#include "core/no_copy.h"
#include "core/state_dict.h"

namespace mixtape::amp {

// Operands are e4m3, gradients of results e5m2 (Micikevicius et al. 2022); each tensor has one
// scale, a power of two, from its largest |x| in this call.
struct Current {};
// The same, with the scale from the largest |x| of the last steps, so that a GPU need not read a
// tensor before it can round it (NVIDIA's Transformer Engine). A step begins where a
// region with this recipe opens while gradients are recorded, unless it lies in one that began one.
// (Processes and chunks that train one model have one step in common: see dist::DataParallel.)
struct Delayed {
  int history = 1024;  // steps
  int margin = 0;      // further powers of two below the largest number of the format
};
// OCP's MXFP8: blocks of 32 numbers, along the dimension that the product sums over, with a power
// of two each; all e4m3. Convolutions stay in 16 bits.
struct Mx {};
// NVIDIA's NVFP4: blocks of 16 numbers of 4 bits (e2m1) with a scale in e4m3 each, and a power of
// two for the tensor. Rounds to nearest, and rotates nothing. Convolutions stay in 16 bits.
struct NvFp4 {};

// Copies share the history of Delayed: make one recipe for each model and open each step's region
// with it. (The history knows modules by their paths: two models would share scales.)
class Recipe {
 public:
  Recipe() = default;  // none
  Recipe(const Current&);
  Recipe(const Delayed& d);  // Error unless history is 1 to 65536 and margin 0 to 64
  Recipe(const Mx&);
  Recipe(const NvFp4&);

  explicit operator bool() const { return bool(state_); }  // false: operands are not rounded
  std::string_view name() const;  // "current", "delayed", "mx", "nvfp4" or "none"
  // The history of Delayed, by module and op; others have none. Loading replaces it; evaluation
  // then scales by the largest numbers there. Throws Error for tensors of other names, shapes or
  // values, before it replaces anything.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // For Autocast. Begins a step, unless one is under way: then returns false.
  bool begin_step() const;
  void end_step() const;  // of the begin_step() that returned true
  // Rounds the operands of a product to `carrier`, and leaves other ops alone, and the first and
  // the last weight of the running model.
  void round_operands(internal::Call& call, DType carrier, bool ends) const;

  // Guard: while it lives, steps of the thread's recipes with a history are those of a model that
  // several regions or processes train. All of a step scale by the steps before or, where those saw
  // nothing but zeros, each region by its own numbers; the history has the largest of all.
  class Steps : NoCopy {
   public:
    Steps();
    ~Steps();
    bool begun() const;  // whether a region with such a recipe has opened in this step
    // Ends it. gather(own) returns the texts of all processes, all of which call it.
    void end(const std::function<std::vector<std::string>(const std::string& own)>& gather);
  };

 private:
  struct History;
  class State;
  class Product;
  struct Common;
  static thread_local Common common_;
  bool joins_common_step() const;
  std::shared_ptr<State> state_;
};

}  // namespace mixtape::amp
