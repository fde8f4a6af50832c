#include "amp/autocast.h"

#include <cstdio>
#include <cstdlib>

#include "autograd/autograd_meta.h"
#include "autograd/backward_state.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/warn.h"

namespace mixtape::amp {
using namespace internal;
namespace {

DType widest(DType a, DType b) { return a == b ? a : f32; }

constexpr OpInfo shared_cast{"cast"};

}  // namespace

thread_local CastCache::Stats CastCache::of_thread;

// A cast whose result is cached. Warns if a gradient passes through f16 from an unscaled loss.
class SharedCast final : public Node {
 public:
  SharedCast(const Tensor* input, DType to)
      : Node(Call{shared_cast, {&input, 1}}), is_f16_(to == f16) {}
  std::string_view name() const override { return "cast"; }
  Grads backward(const Tensor& dy) override {
    const LossScaleTag* const tag = backward_state.loss_scale;
    if (is_f16_ && tag && tag->unscaled && !tag->number && !tag->declined)
      warn(
          "backward() passes through an f16 region, but the loss was not scaled: small gradients "
          "become zero. Use scaler.scale(loss).backward() or minimize(loss), or bf16.");
    return {dy};
  }

 private:
  const bool is_f16_;
};

Tensor CastCache::to_half(const Tensor& t, const Tensor& leaf, DType to) {
  const int64_t begin = leaf.offset(), count = leaf.numel();
  if (copies_.size() >= sweep_at_) {
    std::erase_if(copies_, [](const auto& entry) { return entry.second.source.expired(); });
    sweep_at_ = 64 + 2 * copies_.size();
  }
  Tensor data = leaf.shadow();
  bool hit = data && data.dtype() == to;
  if (!hit) {
    Copy& copy = copies_[{leaf.storage()->id(), begin, count, to}];
    hit = copy.data && copy.version == leaf.version() && copy.written == copy.data.version() &&
          copy.capture == capture_id();
    if (!hit) {
      const NoGrad off;
      copy = {leaf.storage(), leaf.version(), cast(leaf.with_layout({{count}, {1}}), to)};
      copy.written = copy.data.version();
      copy.capture = capture_id();
    }
    data = copy.data;
  }
  for (Stats* s : {&stats, &of_thread}) ++(hit ? s->hits : s->casts);
  const Tensor half = data.with_layout(t.layout().at_offset(t.offset() - begin));
  if (grad_enabled()) {
    const auto node = std::make_shared<SharedCast>(&t, to);
    node->finish(half, true);
    half.set_grad_fn(node);
  }
  return half;
}

Autocast::State Autocast::opened(const AutocastOptions& o, const Autocast* around) {
  DType low = o.low ? o.low->dtype : o.dtype ? o.dtype->dtype : around ? around->low() : bf16;
  check(!o.dtype || o.dtype->dtype == low, "autocast: low is {} and dtype {}: give only one", low,
        o.dtype.value_or(low).dtype);
  Recipe recipe = o.recipe;
  if (low == f8_e4m3) {
    if (!recipe) recipe = Current{};
    low = bf16;
  }
  check(is_half(low) || low == f32, "autocast: low must be f16, bf16, f32 or f8_e4m3, got {}", low);
  const Preset preset = o.preset.value_or(around ? around->preset() : Preset::Torch);
  const bool off = preset == Preset::Off || preset == Preset::O0;
  if (!recipe && !o.low && !o.dtype && around) recipe = around->recipe();
  if (recipe)
    check(low != f16, "autocast: the recipe {} needs low = bf16 or f32, got {}", recipe.name(),
          low);
  return {o.enabled && !off,
          o.cache,
          low,
          Rules::make(preset, o.overrides, around ? around->rules().get() : nullptr),
          recipe,
          o.ends || (around && !o.recipe && recipe && around->state_.ends)};
}

Autocast::Autocast(const AutocastOptions& options)
    : state_(opened(options, innermost())),
      cache_(innermost() ? innermost()->cache_ : &own_cache_),
      open_(this) {
  if (state_.recipe && state_.enabled && grad_enabled() && !called_again())
    state_.began_step = state_.recipe.begin_step();
}
Autocast::Autocast(const Autocast& region) : state_(region.state_), cache_(&own_cache_) {
  state_.rules = std::make_shared<const Rules>(*state_.rules);
  state_.began_step = false;
}
Autocast::~Autocast() {
  if (state_.began_step) state_.recipe.end_step();
  if (!open_ || thread_state.policy == this) return;
  // thread_state.policy would refer to a region that no longer exists.
  std::fputs("Autocast: a region ends before a region opened in it, or on another thread\n",
             stderr);
  std::abort();
}

const Autocast* Autocast::innermost() { return dynamic_cast<const Autocast*>(thread_state.policy); }

std::shared_ptr<Policy> Autocast::snapshot() const {
  return std::shared_ptr<Policy>(new Autocast(*this));
}

Tensor Autocast::converted(const Tensor& t, DType to) {
  if (t.dtype() == to) return t;
  const NoPolicy explicitly;
  const Tensor leaf = t.dtype() == f32 && is_half(to) ? leaf_of(t) : Tensor();
  if (!leaf || !leaf.is_contiguous()) return cast(t, to);
  return state_.cache ? cache_->to_half(t, leaf, to) : CastCache().to_half(t, leaf, to);
}

// Chooses the inputs to cast and the dtype of the result.
void Autocast::apply(Call& call) {
  if (!state_.enabled) return;
  const Rules::Choice choice = state_.rules->choice(call.op);
  const Precision precision = choice.precision;
  if (precision == Precision::Any) return;
  if (call.alike && (precision == Precision::Native || precision == Precision::Widest)) return;

  std::optional<DType> common, of_arrays;  // the widest of all activations, and of those not 0-d
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& t = *call.inputs[i];
    if (!t || call.op.role(i) != Role::Activation || !is_float(t.dtype())) continue;
    if (t.dtype() == f64) return;  // f64 is never cast, and its partners must match
    common = widest(common.value_or(t.dtype()), t.dtype());
    if (t.rank() > 0) of_arrays = widest(of_arrays.value_or(t.dtype()), t.dtype());
  }
  if (!common) return;

  // A matrix product reads all its operands, parameters included, in one dtype. (Native ops keep
  // their activations' dtype and get parameters that they can read.)
  const bool uniform = precision == Precision::Low || call.op.precision == Precision::Low;
  DType to = *common;
  if (precision == Precision::Low) {
    to = state_.low;
    call.out = state_.rules->widens_products() ? f32 : to;
    if (state_.recipe && !choice.by_override) [[unlikely]]
      state_.recipe.round_operands(call, to, state_.ends);
  } else if (precision == Precision::Widest) {
    to = of_arrays.value_or(to);
  } else if (precision == Precision::Full) {
    // The op reads its inputs as they are, unless they differ or forward cannot write f32.
    call.out = f32;
    if (call.op.precision == Precision::Any || call.composed) to = f32;
    for (size_t i = 0; uniform && i < call.inputs.size(); ++i)
      if (*call.inputs[i] && call.op.role(i) == Role::Parameter)
        to = widest(to, call.inputs[i]->dtype());
  }

  const auto target = [&](Role role, DType now) {
    const bool readable = now == to || (now == f32 && is_half(to));
    if (role == Role::Activation) return precision == Precision::Native ? now : to;
    if (role == Role::Parameter) return readable && !uniform ? now : to;
    if (role == Role::Statistic)  // not cast, so that it can be updated
      return readable || !uniform ? now : to;
    return now;
  };
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& t = *call.inputs[i];
    if (!t || !is_float(t.dtype()) || t.dtype() == f64) continue;
    const DType dtype = target(call.op.role(i), t.dtype());
    if (dtype != t.dtype()) call.replace(i, converted(t, dtype));
  }
}

}  // namespace mixtape::amp
