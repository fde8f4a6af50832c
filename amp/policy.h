#pragma once
// Which Precision an op runs with in a region: a preset, and overrides by op name or module path.
// Resolved once per op and module, then remembered: steady state does no string work.

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dispatch.h"
#include "core/scope.h"
namespace mixtape::amp {

enum class Preset : uint8_t {
  Torch,            // what each op's OpInfo says
  Fast,             // normalisation and softmax keep the narrow dtype
  Safe,             // gelu, silu, sigmoid, tanh and the output of attention are f32 too
  TensorCoresOnly,  // matrix products read narrow operands and write f32; no other op is touched
  O0,               // Apex: f32 throughout, as Off
  O1,               // Apex: by op, as Torch
  O2,               // Apex: everything follows narrow activations but the losses
  O3,               // Apex: everything follows narrow activations
  Off,              // ops run as called
};
std::string_view name(Preset p);

// One rule: {"softmax", Precision::Native} or {"decoder.*.mlp", Precision::Full}. `*` stands for
// any characters and `?` for one. A pattern that matches the name of a linked op is about those
// ops, in any module. Any other is a module's path, and is about all ops in that module and the
// modules within it except those of Precision::Any, which move values and follow their inputs.
//
// A path starts at the outermost module that runs. One that matches no module is an error, with
// near paths, but only once it is safe to say so: when a region with the same overrides is opened
// again, and no module has run since that was not known before.
//
// The innermost region that mentions an op decides; within a region an op's name beats a path, and
// of two names or two paths the last listed wins. Explicit casts are beyond any rule.
struct Override {
  std::string pattern;
  Precision precision;
  friend bool operator==(const Override&, const Override&) = default;
};
using Overrides = std::vector<Override>;

// Lines of `softmax = Native`; `#` begins a comment. Throws Error that names the line.
Overrides parse_overrides(std::string_view text);
Overrides load_overrides(const std::string& path);  // of a text file

// The rules of a region and of those around it.
class Rules {
 public:
  // Throws Error, listing near names, if an override is not the name of an op but looks like one
  // misspelt: near such a name, and without wildcard, dot or final digit; or if modules ran under
  // these rules, none of them for the first time, and the path of none is matched.
  static std::shared_ptr<const Rules> make(Preset preset, const Overrides& own, const Rules* outer);

  Precision precision(const OpInfo& op) const;  // in the module now running
  Preset preset() const { return preset_; }
  // In this preset a matrix product writes its f32 accumulators.
  bool widens_products() const { return preset_ == Preset::TensorCoresOnly; }

 private:
  struct Rule : Override {
    bool names_op;
  };
  using Levels = std::vector<std::vector<Rule>>;
  struct Place {
    const OpInfo* op;
    const std::string* module;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct Hash {
    size_t operator()(const Place& p) const {
      return std::hash<const void*>()(p.op) * 31 + std::hash<const void*>()(p.module);
    }
  };
  Precision resolve(const Place& place) const;
  void check_paths() const;

  Preset preset_ = Preset::Torch;
  Levels levels_;  // innermost region first
  mutable std::unordered_map<Place, Precision, Hash> resolved_;
  bool own_paths_ = false;            // among the rules of the innermost region
  mutable bool modules_ran_ = false;  // whose paths are not checked yet
  mutable size_t paths_seen_ = 0;     // when a region was last opened
};

}  // namespace mixtape::amp
