#include "nn/hooks.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/module.h"

namespace mixtape::nn {
using namespace internal;

struct ModuleHooks {
  HookList<ForwardPreHook> before_forward;
  HookList<ForwardHook> after_forward;
  HookList<BackwardHook> backward;

  // Adds a hook to one of the lists; creates the module's hooks if there are none.
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

// A node that joins the gradients of several tensors, each of which passes through a GradInput. In
// backward, a GradInput stores its gradient here and sends on a token, one-hot at its index.
// GradJoin is older than all of them, so it runs after them, and the sum of the tokens marks the
// indices that have a gradient. (Others may hold leftovers of a failed backward.)
class GradJoin final : public Node {
 public:
  GradJoin(std::span<const Tensor*> tensors, OnGradients f)
      : Node(Call{info, tensors}), grads(tensors.size()), f_(std::move(f)) {}
  std::string_view name() const override { return info.name; }
  Grads backward(const Tensor& tokens) override {
    Tensors arrived = std::exchange(grads, Tensors(grads.size()));
    for (size_t i = 0; i < arrived.size(); ++i)
      if (tokens.at(int64_t(i)) == 0) arrived[i] = {};
    f_(arrived);
    Grads result;
    for (Tensor& g : arrived) result.push_back(std::move(g));
    return result;
  }

  Tensors grads;

 private:
  const OnGradients f_;
};

class GradInput final : public Node {
 public:
  GradInput(const Tensor* token, GradJoin& join, size_t index)
      : Node(Call{info, {&token, 1}}), join_(join), index_(index) {}
  std::string_view name() const override { return info.name; }
  Grads backward(const Tensor& dy) override {
    join_.grads[index_] = dy;
    const Tensor token = zeros({int64_t(join_.grads.size())}, f32, Device::cpu());
    token.set(int64_t(index_), 1);
    return {token};
  }

 private:
  GradJoin& join_;  // alive as long as the edge to it
  const size_t index_;
};

// Makes backward call f with the gradients of all these tensors. Replaces handles by new ones of
// the same data, except where no gradient is needed. Returns null if no tensor needs one.
std::shared_ptr<Node> join_gradients(const std::vector<Tensor*>& tensors, OnGradients f) {
  const auto needs = [](const Tensor* t) { return t->requires_grad(); };
  if (!grad_enabled() || std::ranges::none_of(tensors, needs)) return nullptr;
  std::vector<const Tensor*> inputs(tensors.begin(), tensors.end());
  const auto join = std::make_shared<GradJoin>(inputs, std::move(f));
  const Tensor token = zeros({int64_t(tensors.size())}, f32, Device::cpu());
  join->finish(token, false);
  token.set_grad_fn(join);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!needs(tensors[i])) continue;
    const auto input = std::make_shared<GradInput>(&token, *join, i);
    const Tensor passed = tensors[i]->detach();
    input->finish(passed, false);
    input->grad_dtype = join->ctx.grad_dtype(i);  // as it would be without a hook
    passed.set_grad_fn(input);
    *tensors[i] = passed;
  }
  return join;
}

Tensors values(const std::vector<Tensor*>& tensors) {
  Tensors result;
  for (const Tensor* t : tensors) result.push_back(*t);
  return result;
}
void assign(const Tensors& from, const std::vector<Tensor*>& to) {
  for (size_t i = 0; i < to.size(); ++i) *to[i] = from[i];
}
// Calls each hook, which may change the list but not its length.
template <class F, class Call>
void run_all(const HookList<F>& hooks, Tensors& list, const char* what, const Call& call) {
  const size_t n = list.size();
  hooks.for_each([&](const F& hook) {
    call(hook);
    check(list.size() == n, "a hook must leave all {1} {2}, got {0}", list.size(), n, what);
  });
}

}  // namespace

struct HookedCall::Gradients {
  std::shared_ptr<ModuleHooks> hooks;
  size_t inputs;
  std::weak_ptr<Node> at_inputs = {};  // the node that calls the hooks, if any
  Tensors of_outputs = {};             // one per output, absent where none has arrived

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
void HookedCall::add_one(Tensor& t) { tensors_.push_back(&t); }

void HookedCall::before_forward() {
  inputs_ = values(tensors_);
  run_all(hooks_->before_forward, inputs_, "inputs",
          [&](const ForwardPreHook& hook) { hook(module_, inputs_); });
  assign(inputs_, tensors_);
  if (!hooks_->backward.empty() && grad_enabled()) {
    gradients_ = std::make_shared<Gradients>(Gradients{hooks_, inputs_.size()});
    gradients_->at_inputs =
        join_gradients(tensors_, [g = gradients_](Tensors& grads) { g->run(grads); });
  }
  tensors_.clear();
}

void HookedCall::after_forward() {
  Tensors outputs = values(tensors_);
  run_all(hooks_->after_forward, outputs, "outputs",
          [&](const ForwardHook& hook) { hook(module_, inputs_, outputs); });
  assign(outputs, tensors_);
  if (!gradients_) return;
  gradients_->of_outputs.resize(tensors_.size());
  join_gradients(tensors_, [g = gradients_](Tensors& grads) {
    const auto inputs = g->at_inputs.lock();
    if (!inputs) {
      g->of_outputs = grads;
      Tensors none(g->inputs);
      return g->run(none);
    }
    // Skipped if grad() needs nothing before the module, else they would keep this graph alive.
    for (size_t i = 0; i < inputs->ctx.inputs(); ++i)
      if (inputs->ctx.wants(i)) return void(g->of_outputs = grads);
  });
}

}  // namespace mixtape::nn
