#pragma once
// AutogradMeta: what autograd keeps with a tensor: its gradient with its loss scale, its hooks, its
// node in the graph and its 16-bit copy. Also Tensor::grad(), shadow() and what sets them.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

// The loss scale that multiplies a gradient, as far as it is known. The engine combines tags where
// it adds gradients; amp numbers the scales.
struct LossScaleTag {
  uint64_t number = 0;    // 0: unknown
  int64_t moves = 0;      // updates of that scale so far, each of which may have changed it
  bool moved = false;     // some parts are from before an update, some from after it
  bool mixed = false;     // parts carry different numbers
  bool unscaled = false;  // a part comes from an unscaled loss, or was divided by its scale
  bool declined = false;  // a part comes from a loss that a disabled scaler passed through
  bool zeroed = false;    // zero_grad() filled it, and nothing has been added since

  void add(const LossScaleTag& g) {
    zeroed = false;
    mixed = mixed || g.mixed || (number && g.number && number != g.number);
    unscaled = unscaled || g.unscaled;
    declined = declined || g.declined;
    moved = moved || g.moved || (g.number && number == g.number && moves != g.moves);
    if (g.number) number = g.number, moves = g.moves;
  }
};

// A copy in f16 or bf16, and the versions of the tensor and of the copy at which they agree.
struct HalfCopy {
  Tensor data;
  uint64_t of_version = 0, own_version = 0;
};

struct AutogradMeta final : AutogradMetaInterface {
  // The gradient. backward() adds to it in place, so it keeps its address. Tensor::set_grad() takes
  // a float tensor of the same shape and device (else throws Error), or an empty one, which clears
  // it.
  Tensor grad;
  std::shared_ptr<void> hooks;                  // see register_hook
  std::shared_ptr<internal::Node> accumulator;  // a leaf's node in the graph that is being recorded
  // The 16-bit copy. Tensor::shadow() returns it while it is up to date: writing to the tensor or
  // the copy invalidates it. An optimizer that updates both calls set_shadow() again.
  HalfCopy half;

  // The gradient's tag; unknown after a write to the gradient or set_grad().
  LossScaleTag loss_scale() const {
    return grad && tag_version_ == grad.version() ? tag_ : LossScaleTag();
  }
  void set_loss_scale(const LossScaleTag& tag) {
    tag_ = tag;
    tag_version_ = grad.version();
  }
  // The f32 sum of several backward passes, which an f16 or bf16 gradient rounds. Empty after a
  // single pass, a write to the gradient, or set_grad().
  Tensor wide_grad() const {
    const bool agrees = wide_ && grad && wide_version_ == grad.version();
    return agrees ? wide_ : Tensor();
  }
  void set_wide_grad(const Tensor& sum) {
    wide_ = sum;
    wide_version_ = grad.version();
  }
  void replace_grad(const Tensor& g) {
    grad = g;
    tag_ = {};
    wide_ = {};
  }
  // The dtype of gradients of a tensor of dtype `data`; see Tensor::set_grad_dtype().
  DType grad_dtype(DType data) const { return keeps_f32_grad && is_half(data) ? f32 : data; }
  // Drops the 16-bit copy, and a gradient of another dtype or device.
  void on_set_data(const Tensor& data) override {
    if (grad && (grad.dtype() != grad_dtype(data.dtype()) || grad.device() != data.device()))
      replace_grad({});
    half.data = {};
  }

 private:
  LossScaleTag tag_;
  uint64_t tag_version_ = 0;  // of grad

 public:
  // A tensor made by nn::parameter() is Unlisted until a module lists it or an optimizer takes it
  // (Trained), and Forgotten if it gets a gradient before that. All others are Plain.
  enum class Listing : uint8_t { Plain, Unlisted, Forgotten, Listed, Trained };
  Listing listing = Listing::Plain;
  bool keeps_f32_grad = false;  // see Tensor::set_grad_dtype()
  // An optim::Sharing, set on a parameter that several processes divide among themselves and on
  // this process's piece of it.
  std::shared_ptr<void> sharing;

 private:
  Tensor wide_;
  uint64_t wide_version_ = 0;  // of grad
};

namespace detail {

std::shared_ptr<AutogradMetaInterface> new_autograd_meta();
// Marks frozen tensors, too, which may be thawed.
void mark_listed(const Tensor& t, AutogradMeta::Listing as = AutogradMeta::Listing::Listed);
// The tensors that became Forgotten on this thread since the last call and still are, each with the
// path of the module that used it first, or null.
struct Forgotten {
  Tensor tensor;
  const std::string* module;
};
std::vector<Forgotten> take_forgotten();
void note_forgotten(const Tensor& leaf, const std::string* module);
// Runs its post-accumulate hooks. For an observer that takes gradients and gives them back later.
void run_accumulated_hooks(const Tensor& leaf);

}  // namespace detail

inline AutogradMeta& Tensor::autograd_meta() const {
  if (!impl().autograd_meta) [[unlikely]]
    impl().autograd_meta = detail::new_autograd_meta();
  return static_cast<AutogradMeta&>(*impl().autograd_meta);
}

}  // namespace mixtape
