#pragma once
// Autocast: a region in which every op of this thread runs in the precision of its OpInfo.

#include <concepts>
#include <memory>
#include <optional>

#include "amp/policy.h"
#include "amp/recipe.h"

namespace mixtape::amp {

struct DTypeOrName {  // a dtype, f16, or its name, "fp16"
  DType dtype;
  DTypeOrName(DType t) : dtype(t) {}  // any dtype; Autocast checks it
  template <std::convertible_to<std::string_view> S>
  DTypeOrName(const S& name) : dtype(parse_dtype(name)) {}  // throws Error as parse_dtype() does
};

struct AutocastOptions {
  // f16, bf16 or f32; by default the outer region's, or bf16. f8_e4m3 stands for bf16 with a
  // recipe, by default Current{}.
  std::optional<DTypeOrName> low = {};
  std::optional<DTypeOrName> dtype = {};  // PyTorch's name for `low`; Error if both differ
  std::optional<Preset> preset = {};      // by default the outer region's, or Torch
  Overrides overrides = {};               // take precedence over the outer region's
  bool cache = true;                      // casts an f32 leaf once for all its uses
  bool enabled = true;                    // false: ops run as called
  // Rounds the operands of products to 8 or 4 bits, in a region of bf16 or f32: Current{},
  // Delayed{}, Mx{} or NvFp4{}. By default none if `low` is given, else the outer region's.
  // Products that an override sets to Low, and (unless `ends`) those with the first or last weight
  // of the running model, are not rounded.
  Recipe recipe = {};
  bool ends = false;
};

// 16-bit copies of f32 leaves. A copy is valid for one version of its leaf, and dropped once
// written to. Copies have no history, so they may be made unrecorded. A view of a leaf becomes the
// same view of the copy. If an optimizer keeps a copy (its `shadow`), that is used and nothing is
// cast.
class CastCache {
 public:
  // t in f16 or bf16, with the history of a cast. `leaf` is t or the leaf of which t is a view.
  Tensor to_half(const Tensor& t, const Tensor& leaf, DType to);
  struct Stats {  // casts made, and uses that found a copy
    int64_t casts = 0, hits = 0;
  };
  Stats stats;
  static thread_local Stats of_thread;  // of all caches of this thread

 private:
  struct Key {
    uint64_t storage;
    int64_t offset, count;  // elements of the storage
    DType dtype;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Hash {
    size_t operator()(const Key& k) const {
      return ((k.storage * 0x9e3779b97f4a7c15u + uint64_t(k.offset)) * 31 + uint64_t(k.count)) * 8 +
             size_t(k.dtype);
    }
  };
  struct Copy {
    std::weak_ptr<Storage> source;
    uint64_t version = 0;
    Tensor data;
    uint64_t written = 0;  // version of data
    uint64_t capture = 0;  // in which it was made; in another one it is not valid
  };
  std::unordered_map<Key, Copy, Hash> copies_;
  size_t sweep_at_ = 64;  // number of entries at which those of freed storages are dropped
};

// A guard: ops of this thread run in the precision that its rules give them. New threads start
// without a region.
class Autocast final : public internal::Policy {
 public:
  // Throws Error if `low` is not f16, bf16 or f32, and for overrides as Rules::make does.
  [[nodiscard]] explicit Autocast(const AutocastOptions& options = {});
  // Autocast on(f16), or with a dtype's name.
  template <std::convertible_to<DTypeOrName> T>
  [[nodiscard]] explicit Autocast(const T& low) : Autocast(AutocastOptions{.low = low}) {}
  ~Autocast() override;  // aborts if it is not the innermost of its thread
  Autocast& operator=(const Autocast&) = delete;

  static const Autocast* innermost();                       // of this thread, or null
  bool enabled() const { return state_.enabled; }           // false: ops run as called
  DType low() const { return state_.low; }                  // of the operands of Precision::Low ops
  DType dtype() const { return low(); }                     // PyTorch's name for low()
  Preset preset() const { return state_.rules->preset(); }  // given here, or of the outer region
  // The overrides of this region and those around it.
  const std::shared_ptr<const Rules>& rules() const { return state_.rules; }
  const Recipe& recipe() const { return state_.recipe; }  // none: operands are not rounded
  // Statistics of the cache, which nested regions share with the outermost one.
  const CastCache::Stats& cache_stats() const { return cache_->stats; }

  void apply(internal::Call& call) override;
  // A copy with its own cast cache and compiled rules, so that it may act on another thread.
  std::shared_ptr<internal::Policy> snapshot() const override;

 private:
  struct State {
    bool enabled, cache;
    DType low;
    std::shared_ptr<const Rules> rules;
    Recipe recipe;
    bool ends;
    bool began_step = false;  // this region began the recipe's step
  };
  Autocast(const Autocast& region);  // for snapshot()
  static State opened(const AutocastOptions& options, const Autocast* around);
  Tensor converted(const Tensor& t, DType to);

  State state_;
  CastCache own_cache_;
  CastCache* const cache_;
  std::optional<ScopedValue<&ThreadState::policy>> open_;
};

}  // namespace mixtape::amp
