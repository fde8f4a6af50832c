#pragma once
// Autocast: while one is alive, every op called on this thread runs in the precision that its
// OpInfo asks for. No op, and no layer below amp, knows that it exists.

#include <concepts>
#include <memory>
#include <optional>

#include "amp/policy.h"

namespace mixtape::amp {

// A dtype or its name: f16, "fp16".
struct DTypeOrName {
  DType dtype;
  DTypeOrName(DType t) : dtype(t) {}
  template <std::convertible_to<std::string_view> S>
  DTypeOrName(const S& name) : dtype(parse_dtype(name)) {}
};

struct AutocastOptions {
  std::optional<DTypeOrName> low = {};  // f16, bf16 or f32; else the enclosing region's, or bf16
  std::optional<Preset> preset = {};    // else the enclosing region's, or Torch
  Overrides overrides = {};             // win over the enclosing region's, which hold as well
  bool cache = true;                    // convert an f32 leaf once, however often it is used
  bool enabled = true;                  // false: an island in which ops run as called
};

// Narrow copies of f32 leaves, each for one version of the bytes it was made from. They are data
// without history, so it does not matter whether the first use was recorded; and a view of a leaf,
// be it a transpose or a slice, is the same view of the leaf's copy. Where an optimizer keeps the
// copy (its `shadow`), there is nothing to cast. Ops may hand out views of a copy: one that is
// written to is dropped.
class CastCache {
 public:
  // t in dtype `to`, with the history of a cast of t. `leaf` is t, or what t is a view of.
  Tensor to_half(const Tensor& t, const Tensor& leaf, DType to);

  struct Stats {
    int64_t casts = 0, hits = 0;
  };
  Stats stats;
  static thread_local Stats of_thread;  // of all caches since the thread began

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
    uint64_t written = 0;  // the data's version
  };
  std::unordered_map<Key, Copy, Hash> copies_;
  size_t sweep_at_ = 64;  // entries; then those of storages that are gone are dropped
};

class Autocast final : public Policy {
 public:
  // Throws Error if `low` is not f16, bf16 or f32, or as Rules::make does.
  [[nodiscard]] explicit Autocast(const AutocastOptions& options = {});
  ~Autocast() override;  // aborts unless it is the innermost of its thread
  Autocast& operator=(const Autocast&) = delete;

  static const Autocast* innermost();  // of this thread, or null
  bool enabled() const { return state_.enabled; }
  DType low() const { return state_.low; }
  Preset preset() const { return state_.rules->preset(); }
  const std::shared_ptr<const Rules>& rules() const { return state_.rules; }
  // Of the outermost region, whose cache the regions in it share.
  const CastCache::Stats& cache_stats() const { return cache_->stats; }

  void apply(Call& call) override;
  // With copies of leaves and a memory of rules of its own: it may act on another thread.
  std::shared_ptr<Policy> snapshot() const override;

 private:
  struct State {
    bool enabled, cache;
    DType low;
    std::shared_ptr<const Rules> rules;
  };
  Autocast(const Autocast& region);  // opens nothing
  static State opened(const AutocastOptions& options, const Autocast* around);
  Tensor converted(const Tensor& t, DType to);

  State state_;
  CastCache own_cache_;
  CastCache* const cache_;
  std::optional<ScopedValue<&ThreadState::policy>> open_;
};

}  // namespace mixtape::amp
