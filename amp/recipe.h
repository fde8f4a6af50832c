#pragma once
// Recipe: the way in which a region's matrix products and convolutions round their operands to
// 8-bit or 4-bit formats. Rounded numbers stay in the region's bf16 (or f32), which holds them
// exactly, and sums are f32, so results are those of the format on every device. See docs/fp8.md.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch.h"
#include "core/no_copy.h"
#include "core/state_dict.h"

namespace mixtape::amp {

// Operands are e4m3, gradients of results e5m2 (Micikevicius et al. 2022). Each tensor has one
// scale, a power of two, from its largest |x| in this call.
struct Current {};
// The same, but with the scale from the largest |x| of the last steps, so that a GPU need not read
// a tensor before rounding it (NVIDIA's Transformer Engine). A step begins when a region with this
// recipe opens while gradients are recorded, except inside another such region. (Processes and
// chunks that train one model share their steps: see dist::DataParallel.)
struct Delayed {
  int history = 1024;  // steps
  int margin = 0;      // headroom below the format's largest number, in powers of two
};
// OCP's MXFP8: blocks of 32 e4m3 numbers, along the dimension over which the product sums, each
// with a power of two as its scale. Convolutions stay in 16 bits.
struct Mx {};
// NVIDIA's NVFP4: blocks of 16 numbers of 4 bits (e2m1), each with an e4m3 scale, and a power of
// two for the tensor. Rounds to nearest, without rotations. Convolutions stay in 16 bits.
struct NvFp4 {};

// Copies share the history of Delayed, so make one recipe for each model and open every step's
// region with it. (The history identifies modules by path, so two models would share scales.)
class Recipe {
 public:
  Recipe() = default;        // none
  Recipe(const Current&);    // one scale per tensor and call
  Recipe(const Delayed& d);  // throws Error unless history is 1 to 65536 and margin 0 to 64
  Recipe(const Mx&);         // a scale for each 32 numbers
  Recipe(const NvFp4&);      // a scale for each 16 numbers

  explicit operator bool() const { return bool(state_); }  // false: operands are not rounded
  std::string_view name() const;  // "current", "delayed", "mx", "nvfp4" or "none"
  // The history of Delayed, by module and op; other recipes have none. Loading replaces it, and
  // evaluation then scales by its largest numbers. If names, shapes or values do not fit, loading
  // throws Error before it replaces anything.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

  // For Autocast. Begins a step and returns true, unless one is under way.
  bool begin_step() const;
  void end_step() const;  // ends the step that begin_step() began
  // Rounds the operands of a product to `carrier`. Leaves other ops alone and, unless `ends`,
  // products with the first or last weight of the running model.
  void round_operands(internal::Call& call, DType carrier, bool ends) const;

  // A guard for a step of a model that several regions or processes train, for the thread's recipes
  // with a history. All regions scale by earlier steps or, where those saw only zeros, each by its
  // own numbers. The history keeps the largest number of all.
  class Steps : NoCopy {
   public:
    Steps();  // begins the step
    ~Steps();
    bool begun() const;  // true if a region with such a recipe has opened in this step
    // Ends the step. gather(own) returns the texts of all processes; each of them must call end().
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
