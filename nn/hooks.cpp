#include "nn/hooks.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/module.h"

namespace mixtape::nn {

struct ModuleHooks {
  HookList<ForwardPreHook> before_forward;
  HookList<ForwardHook> after_forward;
  HookList<BackwardHook> backward;

  // Adds a hook to one of the lists, of a module's hooks that may not be there yet.
  template <class F>
  static HookHandle add(std::shared_ptr<ModuleHooks>& hooks, HookList<F> ModuleHooks::* list, F f) {
    if (!hooks) hooks = std::make_shared<ModuleHooks>();
    return ((*hooks).*list).add(hooks, std::move(f));
  }
};

bool has_any(const ModuleHooks& hooks) {
  return !hooks.before_forward.empty() || !hooks.after_forward.empty() || !hooks.backward.empty();
}

namespace {

constexpr OpInfo info{"module hook"};
using OnGradients = std::function<void(Tensors&)>;

// A point of the graph that several tensors pass through together, each by a Pass of its own. In
// backward a Pass puts its gradient down here and sends on a token: zeros but for a 1 at its place.
// The Meeting is older than all of them, so it runs when they have, and the sum of their tokens
// tells which places have a gradient. (In the others lies what a pass left that an error ended.)
class Meeting final : public Node {
 public:
  Meeting(std::span<const Tensor*> tensors, OnGradients f)
      : Node(Call{info, tensors}), arrived(tensors.size()), f_(std::move(f)) {}
  std::string_view name() const override { return info.name; }
  Grads backward(const Tensor& tokens) override {
    Tensors grads = std::exchange(arrived, Tensors(arrived.size()));
    for (size_t i = 0; i < grads.size(); ++i)
      if (tokens.at(int64_t(i)) == 0) grads[i] = {};
    f_(grads);
    Grads result;
    for (Tensor& g : grads) result.push_back(std::move(g));
    return result;
  }

  Tensors arrived;

 private:
  const OnGradients f_;
};

class Pass final : public Node {
 public:
  Pass(const Tensor* token, Meeting& meeting, size_t place)
      : Node(Call{info, {&token, 1}}), meeting_(meeting), place_(place) {}
  std::string_view name() const override { return info.name; }
  Grads backward(const Tensor& dy) override {
    meeting_.arrived[place_] = dy;
    const Tensor token = zeros({int64_t(meeting_.arrived.size())}, f32, Device::cpu());
    token.set(int64_t(place_), 1);
    return {token};
  }

 private:
  Meeting& meeting_;  // alive as long as the edge to it
  const size_t place_;
};

// In backward f sees the gradients of these tensors, all at once; from here on they are new
// handles to the same data. Those that want no gradient stay as they are. Null if none wants one.
std::shared_ptr<Node> meet(const std::vector<Tensor*>& tensors, OnGradients f) {
  const auto wants = [](const Tensor* t) { return t->requires_grad(); };
  if (!grad_enabled() || std::ranges::none_of(tensors, wants)) return nullptr;
  std::vector<const Tensor*> inputs(tensors.begin(), tensors.end());
  const auto meeting = std::make_shared<Meeting>(inputs, std::move(f));
  const Tensor token = zeros({int64_t(tensors.size())}, f32, Device::cpu());
  meeting->finish(token, false);
  token.set_grad_fn(meeting);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!wants(tensors[i])) continue;
    const auto pass = std::make_shared<Pass>(&token, *meeting, i);
    const Tensor passed = tensors[i]->detach();
    pass->finish(passed, false);
    pass->grad_dtype = meeting->ctx.grad_dtype(i);  // as wide as without a hook
    passed.set_grad_fn(pass);
    *tensors[i] = passed;
  }
  return meeting;
}

Tensors values(const std::vector<Tensor*>& tensors) {
  Tensors result;
  for (const Tensor* t : tensors) result.push_back(*t);
  return result;
}
void put(const Tensors& from, const std::vector<Tensor*>& to) {
  for (size_t i = 0; i < to.size(); ++i) *to[i] = from[i];
}
// Calls each hook, which may change the list, but not its length.
template <class F, class Call>
void run_all(const HookList<F>& hooks, Tensors& list, const char* what, const Call& call) {
  const size_t n = list.size();
  hooks.for_each([&](const F& hook) {
    call(hook);
    check(list.size() == n, "a hook left {} of {} {}", list.size(), n, what);
  });
}

}  // namespace

struct HookedCall::Gradients {
  std::shared_ptr<ModuleHooks> hooks;
  size_t inputs;
  std::weak_ptr<Node> at_inputs = {};  // calls the hooks, if there is one
  Tensors of_outputs = {};             // as many as there are outputs, also where none has arrived

  void run(Tensors& of_inputs) {
    const Tensors outputs = std::exchange(of_outputs, Tensors(of_outputs.size()));
    run_all(hooks->backward, of_inputs, "gradients",
            [&](const BackwardHook& hook) { hook(of_inputs, outputs); });
  }
};

HookHandle ModuleBase::register_forward_pre_hook(ForwardPreHook f) {
  return ModuleHooks::add(hooks_, &ModuleHooks::before_forward, std::move(f));
}
HookHandle ModuleBase::register_forward_hook(ForwardHook f) {
  return ModuleHooks::add(hooks_, &ModuleHooks::after_forward, std::move(f));
}
HookHandle ModuleBase::register_full_backward_hook(BackwardHook f) {
  return ModuleHooks::add(hooks_, &ModuleHooks::backward, std::move(f));
}

HookedCall::HookedCall(const ModuleBase& m, const std::shared_ptr<ModuleHooks>& hooks)
    : module_(m), hooks_(hooks) {}
HookedCall::~HookedCall() = default;
void HookedCall::add_one(Tensor& t) { places_.push_back(&t); }

void HookedCall::before_forward() {
  inputs_ = values(places_);
  run_all(hooks_->before_forward, inputs_, "inputs",
          [&](const ForwardPreHook& hook) { hook(module_, inputs_); });
  put(inputs_, places_);
  if (!hooks_->backward.empty() && grad_enabled()) {
    gradients_ = std::make_shared<Gradients>(Gradients{hooks_, inputs_.size()});
    gradients_->at_inputs = meet(places_, [g = gradients_](Tensors& grads) { g->run(grads); });
  }
  places_.clear();
}

void HookedCall::after_forward() {
  Tensors outputs = values(places_);
  run_all(hooks_->after_forward, outputs, "outputs",
          [&](const ForwardHook& hook) { hook(module_, inputs_, outputs); });
  put(outputs, places_);
  if (!gradients_) return;
  gradients_->of_outputs.resize(places_.size());
  meet(places_, [g = gradients_](Tensors& grads) {
    const auto inputs = g->at_inputs.lock();
    if (!inputs) {
      g->of_outputs = grads;
      Tensors none(g->inputs);
      return g->run(none);
    }
    // Not if grad() is asked for nothing before the module: they would keep this graph, which keeps
    // them, for good.
    for (size_t i = 0; i < inputs->ctx.inputs(); ++i)
      if (inputs->ctx.wants(i)) return void(g->of_outputs = grads);
  });
}

}  // namespace mixtape::nn
