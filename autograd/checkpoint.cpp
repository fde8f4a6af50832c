#include "autograd/checkpoint.h"

#include <algorithm>
#include <utility>

#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "core/tf32.h"

namespace mixtape {
using namespace internal;
namespace {

using Tensors = std::vector<Tensor>;
using Segment = std::function<Tensors(const Tensors&)>;

constexpr OpInfo checkpoint_info{"checkpoint"};

// A call of f, with the thread state that the second call restores.
class Replay final : public CheckpointGraph {
 public:
  Replay(Segment f, size_t inputs) : f_(std::move(f)), inputs_(inputs) {}

  Tensors first(const Tensors& inputs) {
    const ScopedValue<&BackwardState::saves_nothing> discard(true);
    const Scope of_program("");  // no op calls those of f
    Tensors results = f_(inputs);
    end_ = generator().offset();
    return results;
  }

  // Registers `node` in place of a result of the first call.
  void stand_for(const std::shared_ptr<Node>& node, size_t result, const Tensor& y) {
    nodes.push_back(node);
    results_.push_back({result, y.shape(), y.dtype()});
  }

  Tensors make(const Node& node) override {
    Tensors inputs = node.ctx.saved();
    inputs.resize(inputs_);  // the rest are parameters, saved only for their versions
    const Tensors made = second(inputs);
    Tensors results;
    for (const Result& r : results_) {
      check(r.index < made.size(), "{} results the second time, at least {} the first", made.size(),
            r.index + 1);
      const Tensor& y = made[r.index];
      check(y && y.grad_fn(), "result {} has no gradient the second time", r.index);
      check(y.shape() == r.shape && y.dtype() == r.dtype,
            "result {} is {} {} the second time, {} {} the first", r.index, y.dtype(), y.shape(),
            r.dtype, r.shape);
      results.push_back(y);
    }
    return results;
  }

 private:
  struct Result {
    size_t index;
    Shape shape;
    DType dtype;
  };

  Tensors second(const Tensors& inputs) const {
    const ScopedValue<&ThreadState::recording> record(true);
    const ScopedValue<&BackwardState::running> forward(false);
    const ScopedValue<&BackwardState::saves_nothing> keep(false);
    const ScopedValue<&BackwardState::root_module> root(root_module_);
    const std::shared_ptr<Policy> region = policy_ ? policy_->snapshot() : nullptr;
    const ScopedValue<&ThreadState::policy> policy(region.get());
    const DefaultDevice here(device_);
    const Tf32 tf32(tf32_);
    const ScopedValue<&BackwardState::recomputing> second_call(true);
    Seed draws(begin_);
    const Scope of_program("");
    Tensors results = f_(inputs);
    check((*draws).offset() == end_,
          "{} blocks of random numbers drawn the second time, {} the first",
          (*draws).offset() - begin_.offset(), end_ - begin_.offset());
    return results;
  }

  const Segment f_;
  const size_t inputs_;
  const RandomGenerator begin_ = generator();
  uint64_t end_ = 0;
  const void* const root_module_ = backward_state.root_module;
  const Device device_ = DefaultDevice::current();
  const bool tf32_ = Tf32::allowed();
  const std::shared_ptr<Policy> policy_ =
      thread_state.policy ? thread_state.policy->snapshot() : nullptr;
  std::vector<Result> results_;
};

// Stands in for one result, made by the node `made` in the first call, which began after `since`.
class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::shared_ptr<Replay> replay, const Tensors& inputs, const Node& made,
                 uint64_t since)
      : Node(Call{checkpoint_info, {}}), replay_(std::move(replay)) {
    inherit_edges(made, since);
    grad_dtype = made.grad_dtype;
    for (const Tensor& x : inputs) ctx.save(x);
    for (const Tensor& leaf : leaves()) ctx.save(leaf);
  }
  std::string_view name() const override { return checkpoint_info.name; }
  Grads backward(const Tensor&) override { return {}; }
  CheckpointGraph* checkpoint_graph() override { return replay_.get(); }

 private:
  const std::shared_ptr<Replay> replay_;
};

}  // namespace

std::vector<Tensor> detail::checkpoint(Segment f, const Tensors& inputs) {
  if (!grad_enabled()) return f(inputs);
  const Scope scope(checkpoint_info.name);
  const auto replay = std::make_shared<Replay>(std::move(f), inputs.size());
  const uint64_t since = Node::newest();
  const auto state = [](const Tensor& x) {
    return x ? std::pair(x.storage()->id(), x.version()) : std::pair<uint64_t, uint64_t>();
  };
  std::vector<std::pair<uint64_t, uint64_t>> before;
  for (const Tensor& x : inputs) before.push_back(state(x));
  const Tensors made = replay->first(inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    check(state(inputs[i]) == before[i],
          "its function modified input {}, and would again when backward calls it", i);
  Tensors results = made;
  for (size_t i = 0; i < results.size(); ++i) {
    Tensor& y = results[i];
    if (!y || !y.grad_fn() || y.grad_fn()->order <= since) continue;  // not made by f
    // If f returns a tensor twice, both results stay one tensor, so that their gradients are added
    // up.
    const auto same = [&](const Tensor& t) { return t.is_same(made[i]); };
    if (const auto k = size_t(std::ranges::find_if(made, same) - made.begin()); k < i) {
      y = results[k];
      continue;
    }
    const auto node = std::make_shared<CheckpointNode>(replay, inputs, *y.grad_fn(), since);
    replay->stand_for(node, i, y);
    y = y.detach();
    y.set_grad_fn(node);
  }
  return results;
}

}  // namespace mixtape
