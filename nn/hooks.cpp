#include "nn/hooks.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/check.h"

namespace mixtape::nn {
namespace {

constexpr OpInfo info{"module hook"};
using OnGradients = std::function<void(Tensors&)>;

// A point of the graph that several tensors pass through together. Each has a Pass, which puts its
// gradient down here and sends on only a token; the Meeting is older than all of them, so by the
// time the token arrives, all gradients have been put down.
class Meeting final : public Node {
 public:
  Meeting(std::span<const Tensor*> tensors, OnGradients f)
      : Node(Call{info, tensors}), arrived(tensors.size()), f_(std::move(f)) {}
  std::string_view name() const override { return info.name; }
  Grads backward(const Tensor&) override {
    Tensors grads = std::exchange(arrived, Tensors(arrived.size()));
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
    return {zeros({})};
  }

 private:
  Meeting& meeting_;  // alive as long as the edge to it
  const size_t place_;
};

// In backward f sees the gradients of these tensors, all at once; from here on they are new
// handles to the same data. Those that want no gradient stay as they are.
bool meet(const std::vector<Tensor*>& tensors, OnGradients f) {
  const auto wants = [](const Tensor* t) { return t->requires_grad(); };
  if (!grad_enabled() || std::ranges::none_of(tensors, wants)) return false;
  std::vector<const Tensor*> inputs(tensors.begin(), tensors.end());
  const auto meeting = std::make_shared<Meeting>(inputs, std::move(f));
  const Tensor token = zeros({});
  meeting->finish(token, false);
  token.set_maker(meeting);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!wants(tensors[i])) continue;
    const auto pass = std::make_shared<Pass>(&token, *meeting, i);
    const Tensor passed = tensors[i]->detach();
    pass->finish(passed, false);
    passed.set_maker(pass);
    *tensors[i] = passed;
  }
  return true;
}

Tensors values(const std::vector<Tensor*>& tensors) {
  Tensors result;
  for (const Tensor* t : tensors) result.push_back(*t);
  return result;
}
// Calls each hook, which may change the list, but not its length. (From a copy: a hook may remove
// itself.)
template <class F, class Call>
void run_all(ModuleHooks::List<F> hooks, Tensors& list, const char* what, const Call& call) {
  const size_t n = list.size();
  for (const auto& entry : hooks) {
    call(entry.second);
    check(list.size() == n, "a hook left {} of {} {}", list.size(), n, what);
  }
}

}  // namespace

struct HookedCall::Gradients {
  std::shared_ptr<ModuleHooks> hooks;
  size_t inputs;
  bool from_inputs = false;  // the hooks are called there
  Tensors of_outputs = {};

  void run(Tensors& of_inputs) {
    const Tensors outputs = std::move(of_outputs);
    run_all(hooks->backward, of_inputs, "gradients",
            [&](const BackwardHook& hook) { hook(of_inputs, outputs); });
  }
};

void HookHandle::remove() {
  const auto hooks = hooks_.lock();
  if (!hooks) return;
  const auto is_this = [this](const auto& hook) { return hook.first == id_; };
  std::erase_if(hooks->before_forward, is_this);
  std::erase_if(hooks->after_forward, is_this);
  std::erase_if(hooks->backward, is_this);
}

HookedCall::HookedCall(const ModuleBase& m, std::shared_ptr<ModuleHooks> hooks,
                       const std::vector<Tensor*>& inputs)
    : module_(m), hooks_(std::move(hooks)), inputs_(values(inputs)) {
  run_all(hooks_->before_forward, inputs_, "inputs",
          [&](const ForwardPreHook& hook) { hook(module_, inputs_); });
  for (size_t i = 0; i < inputs.size(); ++i) *inputs[i] = inputs_[i];
  if (hooks_->backward.empty() || !grad_enabled()) return;
  gradients_ = std::make_shared<Gradients>(Gradients{hooks_, inputs.size()});
  gradients_->from_inputs = meet(inputs, [g = gradients_](Tensors& grads) { g->run(grads); });
}

void HookedCall::finish(const std::vector<Tensor*>& outputs) {
  Tensors y = values(outputs);
  run_all(hooks_->after_forward, y, "outputs",
          [&](const ForwardHook& hook) { hook(module_, inputs_, y); });
  for (size_t i = 0; i < outputs.size(); ++i) *outputs[i] = y[i];
  if (!gradients_) return;
  meet(outputs, [g = gradients_](Tensors& grads) {
    g->of_outputs = grads;
    if (g->from_inputs) return;
    Tensors none(g->inputs);
    g->run(none);
  });
}

}  // namespace mixtape::nn
