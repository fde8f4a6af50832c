#pragma once
// The Precision of each op in a region: a preset, and overrides by op name or module path. They are
// resolved once per op and module and then cached, so the steady state compares no strings.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dispatch.h"
#include "core/scope.h"

namespace mixtape::amp {

enum class Preset : uint8_t {
  Torch,            // the Precision in each op's OpInfo
  Fast,             // normalisation and softmax keep the 16-bit dtype
  Safe,             // gelu, silu, sigmoid, tanh and the output of attention are f32, too
  TensorCoresOnly,  // matrix products read 16 bits and write f32; other ops run as called
  O0,               // Apex: f32 throughout, as Off
  O1,               // Apex: by op, as Torch
  O2,               // Apex: everything but the losses follows 16-bit activations
  O3,               // Apex: everything follows 16-bit activations
  Off,              // ops run as called
};
std::string_view name(Preset p);  // "Torch" for Preset::Torch

// {"softmax", Precision::Native} or {"decoder.*.mlp", Precision::Full}; `*` matches any characters,
// `?` one. A pattern that matches names of linked ops applies to these ops in any module. Any other
// pattern is a module path, from the outermost running module, and applies to all ops in that
// module and its submodules, except those of Precision::Any, which follow their inputs. If a path
// matches no module, an Error lists similar paths when a region with the same overrides opens again
// and no new module has run. The innermost region that mentions an op decides; within it, an op
// name beats a path, and the last of several wins. Explicit casts are not affected.
struct Override {
  std::string pattern;
  Precision precision;
  friend bool operator==(const Override&, const Override&) = default;
};
using Overrides = std::vector<Override>;

// The pattern of an override for the module at a path, or "" if it would name an op.
std::string path_pattern(std::string_view path);
// Lines like `softmax = Native`; `#` begins a comment. Throws Error naming the line.
Overrides parse_overrides(std::string_view text);
Overrides load_overrides(const std::string& path);  // from a regular file of at most 1 MiB

// The compiled overrides of a region and the regions around it.
class Rules {
 public:
  // Throws Error that lists similar names if an override looks like a misspelt op name (similar to
  // one, and without wildcard, dot or final digit), or if a path matches no module (see Override).
  static std::shared_ptr<const Rules> make(Preset preset, const Overrides& own, const Rules* outer);

  struct Choice {  // the precision of an op, and if it comes from an override
    Precision precision;
    bool by_override;
  };
  Choice choice(const OpInfo& op) const;  // in the running module
  // The part of choice() that decides dtypes.
  Precision precision(const OpInfo& op) const { return choice(op).precision; }
  Preset preset() const { return preset_; }  // of the innermost region
  // True if matrix products write their f32 accumulators.
  bool widens_products() const { return preset_ == Preset::TensorCoresOnly; }

 private:
  struct CompiledOverride : Override {
    bool names_op;
  };
  using Levels = std::vector<std::vector<CompiledOverride>>;
  struct CallSite {
    const OpInfo* op;
    const std::string* module;
    friend bool operator==(const CallSite&, const CallSite&) = default;
  };
  struct Hash {
    size_t operator()(const CallSite& p) const {
      return std::hash<const void*>()(p.op) * 31 + std::hash<const void*>()(p.module);
    }
  };
  Choice resolve(const CallSite& site) const;
  void check_paths() const;

  Preset preset_ = Preset::Torch;
  Levels levels_;  // innermost region first
  mutable std::unordered_map<CallSite, Choice, Hash> resolved_;
  bool own_paths_ = false;            // the innermost region has overrides by path
  mutable bool modules_ran_ = false;  // since paths were last checked
  mutable size_t paths_seen_ = 0;     // at that check
};

}  // namespace mixtape::amp
