// The engine: one backward pass, and the hooks that it calls.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/gradient_sum.h"
#include "core/effects.h"
#include "core/format.h"

namespace mixtape {
using namespace internal;
namespace {

// A tensor's hooks: what Node::hooks and AutogradMeta::hooks point to.
struct Hooks {
  HookList<Node::Hook> gradient;                             // from register_hook()
  HookList<Node::Hook> retained;                             // from retain_grad(): at most one
  HookList<std::function<void(const Tensor&)>> accumulated;  // from register_post_accumulate_hook()

  template <class F>
  static HookHandle add(const Tensor& x, HookList<F> Hooks::* list, F f) {
    check(f != nullptr, "a hook is an empty function");
    std::shared_ptr<void>& slot = x.grad_fn() ? x.grad_fn()->hooks : x.autograd_meta().hooks;
    if (!slot) slot = std::make_shared<Hooks>();
    if (x.is_leaf() && x.autograd_meta().accumulator) x.autograd_meta().accumulator->hooks = slot;
    return (of(slot)->*list).add(slot, std::move(f));
  }
  static Hooks* of(const std::shared_ptr<void>& slot) { return static_cast<Hooks*>(slot.get()); }
};

// True if g covers its storage and shares it with no other tensor.
bool owns_its_storage(const Tensor& g) {
  return g.is_unique() && g.is_contiguous() && g.storage()->bytes() == g.nbytes();
}

// Adds g to the gradient of x. The first g is taken over if no other tensor shares it, else copied.
// Later ones are added in place, so the gradient keeps its address; f16 and bf16 gradients are
// summed in f32, since they would soon stop growing. (A strided gradient that the user set is made
// contiguous first, since its elements may share memory.)
void accumulate_grad(const Tensor& x, Tensor g, bool recorded, const LossScaleTag& tag) {
  AutogradMeta& meta = x.autograd_meta();
  LossScaleTag sum = meta.loss_scale();
  sum.add(tag);
  if (!meta.grad) {  // one dy may go to several leaves
    if (recorded)
      meta.grad = clone(g);
    else
      meta.grad = owns_its_storage(g) && !g.grad_fn() ? std::move(g) : g.detach().clone();
  } else if (!is_half(meta.grad.dtype())) {
    if (recorded) {
      meta.grad = add(meta.grad, cast(g, meta.grad.dtype()));
    } else {
      if (!meta.grad.is_contiguous()) meta.grad = contiguous(meta.grad.detach());
      detail::accumulate(g, meta.grad);
    }
  } else {
    Tensor wide = meta.wide_grad();
    if (!wide) wide = cast(meta.grad, f32);
    if (recorded) {
      wide = add(wide, cast(g, f32));
      meta.grad = cast(wide, meta.grad.dtype());
    } else {
      wide = wide.grad_fn() ? wide.detach().clone() : contiguous(wide);
      detail::accumulate(g, wide);
      if (!meta.grad.is_contiguous()) meta.grad = contiguous(meta.grad.detach());
      detail::write(wide, meta.grad);
    }
    meta.set_wide_grad(wide);
  }
  meta.set_loss_scale(sum);
}

}  // namespace

struct NeededNodes : std::unordered_set<const Node*> {};

// One backward pass, newest node first. A node is newer than its inputs, so when it is popped, all
// gradients that reach it have been added up.
struct Engine {
  struct Entry {
    std::shared_ptr<Node> node;
    GradientSum grad;
    LossScaleTag scale = {};  // of grad
  };
  using Capture = std::unordered_map<const Node*, Tensor>;

  bool retain, record;
  LossScaleTag loss_scale = {};  // of the gradient being visited, and of those computed from it
  Capture* capture = nullptr;    // for grad(): the only gradients to compute
  NeededNodes needed = {};       // with capture: the nodes that lead to one of these
  // By order, newest first.
  using Queue =
      std::map<uint64_t, Entry, std::greater<>, PooledAllocator<std::pair<const uint64_t, Entry>>>;
  Queue queue = {};

  void run(std::span<const Tensor> outputs, std::span<const Tensor> gradients) {
    const ScopedValue<&ThreadState::recording> recording(record);
    const ScopedValue<&BackwardState::running> backward(true);
    const ScopedValue<&BackwardState::engine> engine(this);
    const ScopedValue<&BackwardState::needed> all(nullptr);  // a rule may run another engine
    const NoPolicy as_called;                                // forward chose the dtypes
    const ScopedValue<&BackwardState::loss_scale> scale(&loss_scale);
    for (size_t i = 0; i < outputs.size(); ++i)
      start(outputs[i], gradients.empty() ? Tensor() : gradients[i]);
    if (capture) {
      std::vector<const Node*> starts;
      for (const auto& [key, a] : queue) starts.push_back(a.node.get());
      mark_needed(std::move(starts));
    }
    while (!queue.empty()) {
      auto next = queue.extract(queue.begin());
      loss_scale = next.mapped().scale;
      const std::shared_ptr<Node>& node = next.mapped().node;
      visit(node, next.mapped().grad.take(node->grad_dtype));
    }
  }

  void visit(const std::shared_ptr<Node>& node, Tensor dy) {
    const Scope scope("backward", node->module);
    run_hooks(*node, dy);
    if (node->is_leaf()) return visit_leaf(*node, std::move(dy));
    if (!is_needed(*node)) return;
    if (!record && node->selects()) return add_to_part(*node, dy);
    const Scope op(node->name());
    if (CheckpointGraph* const graph = node->checkpoint_graph())
      return expand_checkpoint(*graph, *node, std::move(dy));
    detail::observe(&Observer::before_rule, *node, dy);
    Grads grads = apply_rule(*node, dy);
    detail::observe(&Observer::after_rule, *node, dy, std::span<const Tensor>(grads));
    dy = {};
    release(*node);
    send_all(*node, std::move(grads));
  }

  void visit_leaf(const Node& node, Tensor dy) {
    const Tensor leaf = node.leaf();
    if (!leaf || !leaf.is_leaf() || capture) return;  // freed or frozen since it was recorded
    check(dy.device() == leaf.device(), "a gradient on {} for a leaf that has moved to {}",
          dy.device(), leaf.device());
    if (dy.dtype() != leaf.grad_dtype()) dy = cast(dy, leaf.grad_dtype());
    accumulate_grad(leaf, std::move(dy), record, loss_scale);
    if (leaf.autograd_meta().listing == AutogradMeta::Listing::Unlisted) [[unlikely]]
      detail::note_forgotten(leaf, node.module);
    detail::observe(&Observer::after_accumulate, node, leaf.grad());
    if (leaf.has_grad()) run_accumulated_hooks(node, leaf);  // an observer may have taken it
  }
  static void run_accumulated_hooks(const Node& node, const Tensor& leaf) {
    for_each_hook(node, &Hooks::accumulated, [&](const auto& hook) { hook(leaf); });
  }

  Grads apply_rule(Node& node, const Tensor& dy) const {
    const ScopedValue<&BackwardState::in_rule> rule(true);
    const ScopedValue<&BackwardState::needed> some(capture ? &needed : nullptr);
    return node.backward(dy);
  }

  template <class F, class Run>
  static void for_each_hook(const Node& node, HookList<F> Hooks::* list, Run run) {
    if (!node.hooks) return;
    const std::string where = fmt::format("hook on {}", node.name());
    const Scope scope(where);
    (Hooks::of(node.hooks)->*list).for_each(run);
  }

  // Runs the hooks of a node, which may replace the gradient, and captures it for grad().
  void run_hooks(const Node& node, Tensor& dy) {
    const auto run = [&](const Node::Hook& hook) {
      Tensor changed = hook(dy);
      if (!changed) return;
      check(changed.shape() == dy.shape(), "a hook returned a gradient of shape {} for one of {}",
            changed.shape(), dy.shape());
      check(changed.dtype() == dy.dtype() && changed.device() == dy.device(),
            "a hook returned a gradient of {} on {} for one of {} on {}", changed.dtype(),
            changed.device(), dy.dtype(), dy.device());
      dy = std::move(changed);
    };
    for_each_hook(node, &Hooks::gradient, run);
    for_each_hook(node, &Hooks::retained, run);
    if (capture)
      if (auto wanted = capture->find(&node); wanted != capture->end()) wanted->second = dy;
  }

  bool is_needed(const Node& node) const {
    return !capture || std::ranges::any_of(node.ctx.edges_, [&](const Ctx::Edge& e) {
      return e.node && needed.contains(e.node.get());
    });
  }

  // Builds the graph for which `node` and the checkpoint's other nodes, one per result, stand in,
  // and moves all their gradients into it. The gradients are complete, since every use of a result
  // is newer than these nodes. The new graph is newer still, so it is visited before the rest of
  // the queue.
  void expand_checkpoint(CheckpointGraph& graph, Node& node, Tensor dy) {
    std::vector<std::tuple<size_t, Tensor, LossScaleTag>> grads;
    const LossScaleTag own = loss_scale;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const std::shared_ptr<Node> other = graph.nodes[i].lock();
      if (other.get() == &node) {
        grads.emplace_back(i, std::move(dy), own);
      } else if (auto waiting = other ? queue.extract(other->order) : Queue::node_type()) {
        loss_scale = waiting.mapped().scale;
        Tensor g = waiting.mapped().grad.take(other->grad_dtype);
        run_hooks(*other, g);
        grads.emplace_back(i, std::move(g), loss_scale);
      }
    }
    const uint64_t known = Node::newest();
    const std::vector<Tensor> results = graph.make(node);
    for (auto& [i, g, scale] : grads) {
      loss_scale = scale;
      if (capture) mark_needed({results[i].grad_fn().get()}, known);
      enqueue(results[i].grad_fn(), std::move(g));
      if (const std::shared_ptr<Node> done = graph.nodes[i].lock()) release(*done);
    }
  }

  // Adds a selection's gradient to the buffer for the whole input.
  void add_to_part(Node& node, const Tensor& dy) {
    const Ctx::Edge& e = node.ctx.edges_[0];
    slot(e.node)->grad.add_to_part(node, dy, e.shape, e.node->grad_dtype);
  }

  void send_all(const Node& node, Grads&& grads) {
    const auto& edges = node.ctx.edges_;
    check(grads.size() <= edges.size(), "{} gradients for {} inputs", grads.size(), edges.size());
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!node.ctx.wants(i)) continue;
      check(i < grads.size(),
            "{} gradients for {} inputs, but input {} needs one (an empty Tensor stands for none)",
            grads.size(), edges.size(), i);
      if (grads[i]) send(edges[i], std::move(grads[i]));
    }
  }

  void send(const Ctx::Edge& e, Tensor&& g) {
    if (capture && !needed.contains(e.node.get())) return;
    check(g.shape() == e.shape, "the gradient has shape {}, the input {}", g.shape(), e.shape);
    check(is_float(g.dtype()), "the gradient is {}, the input {}", g.dtype(), e.dtype);
    check(g.device() == e.device, "the gradient is on {}, the input on {}", g.device(), e.device);
    enqueue(e.node, std::move(g));
  }

  void enqueue(const std::shared_ptr<Node>& node, Tensor&& g) {
    if (g.dtype() != node->grad_dtype) g = cast(g, node->grad_dtype);
    slot(node)->grad.add(std::move(g));
  }

  // See Ctx::take_sum(). Not while observers read values: they see each rule's own gradient.
  Tensor take_sum(const Ctx::Edge& e) {
    const auto at = record || values_are_observed() ? queue.end() : queue.find(e.node->order);
    if (at == queue.end()) return {};
    const Tensor sum = at->second.grad.take_whole(e.dtype);
    if (!sum) return {};
    sum.storage()->begin_write();
    sum.storage()->bump_version();
    return sum;
  }

  Entry* slot(const std::shared_ptr<Node>& node) {
    const auto [at, first] = queue.try_emplace(node->order);
    Entry& entry = at->second;
    if (!first) {
      entry.scale.add(loss_scale);
    } else {
      entry.node = node;
      entry.scale = loss_scale;
    }
    return &entry;
  }

  void release(Node& node) const {
    if (retain) return;
    node.ctx.freed_ = !node.ctx.saved_.empty() || node.ctx.freed_;
    node.ctx.saved_.clear();
  }

  void start(const Tensor& y, Tensor g) {
    check(bool(y), "backward() of an undefined tensor");
    check(y.requires_grad(),
          "backward() of a tensor without history: no input of it requires a gradient, or it was "
          "made under NoGrad, by detach() or by grad() without {{.create_graph = true}}");
    loss_scale.unscaled = !g;  // a given gradient may be scaled or not
    if (!g) {
      check(y.numel() == 1,
            "backward() of a tensor of shape {} needs a gradient (the default of 1 is for a "
            "single element)",
            y.shape());
      g = ones(y.shape(), y.dtype(), y.device());
    }
    check(g.shape() == y.shape(), "the gradient has shape {}, the output {}", g.shape(), y.shape());
    check(g.device() == y.device(), "the gradient is on {}, the output on {}", g.device(),
          y.device());
    enqueue(node_of(y), std::move(g));
  }

  static std::vector<Tensor> leaves_of(const Tensor& y) {
    std::multimap<uint64_t, Tensor> leaves;
    std::unordered_set<const Node*> seen;
    std::vector<std::shared_ptr<Node>> open{node_of(y)};
    while (!open.empty()) {
      const std::shared_ptr<Node> n = std::move(open.back());
      open.pop_back();
      if (!n || !seen.insert(n.get()).second) continue;
      const Tensor leaf = n->is_leaf() ? n->leaf() : Tensor();
      if (leaf && leaf.requires_grad()) leaves.emplace(n->order, leaf);
      for (const Ctx::Edge& e : n->ctx.edges_) open.push_back(e.node);
    }
    std::vector<Tensor> all;
    for (const auto& [order, leaf] : leaves) all.push_back(leaf);
    return all;
  }

  // Finds the nodes newer than `known` that lead to a captured one, oldest first.
  void mark_needed(std::vector<const Node*> open, uint64_t known = 0) {
    std::map<uint64_t, const Node*> all;
    while (!open.empty()) {
      const Node* n = open.back();
      open.pop_back();
      if ((known && n->order <= known) || !all.emplace(n->order, n).second) continue;
      for (const auto& e : n->ctx.edges_)
        if (e.node) open.push_back(e.node.get());
    }
    for (const auto& [order, n] : all)
      if (capture->contains(n) || is_needed(*n)) needed.insert(n);
  }
};

Tensor Ctx::take_sum(size_t input) const {
  return wants(input) && backward_state.engine ? backward_state.engine->take_sum(edges_[input])
                                               : Tensor();
}
bool Ctx::leads_to_needed(const Node& node) { return backward_state.needed->contains(&node); }

void backward(const Tensor& y, const BackwardOptions& options) {
  const bool outermost = !backward_state.running;
  Engine engine{options.retain_graph || options.create_graph, options.create_graph};
  try {
    engine.run({&y, 1}, {&options.gradient, 1});
  } catch (...) {
    if (outermost) detail::observe(&Observer::after_backward, false);
    throw;
  }
  if (outermost) detail::observe(&Observer::after_backward, true);
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options) {
  check(options.gradients.empty() || options.gradients.size() == outputs.size(),
        "{} outputs need as many gradients, got {}", outputs.size(), options.gradients.size());
  Engine::Capture capture;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].requires_grad(), "input {} does not require a gradient", i);
    capture[node_of(inputs[i]).get()];
  }
  Engine engine{options.retain_graph || options.create_graph, options.create_graph};
  engine.capture = &capture;
  engine.run(outputs, options.gradients);

  std::vector<Tensor> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    result.push_back(capture[node_of(inputs[i]).get()]);
    check(result[i] || options.allow_unused,
          "no output depends on input {} (pass {{.allow_unused = true}} to get no gradient for it)",
          i);
  }
  return result;
}

std::vector<Tensor> leaves_of(const Tensor& y) { return Engine::leaves_of(y); }

void detail::run_accumulated_hooks(const Tensor& leaf) {
  const NoGrad off;
  const NoPolicy as_called;
  if (const auto node = node_of(leaf)) Engine::run_accumulated_hooks(*node, leaf);
}

void tag_loss_scale(uint64_t number, int64_t moves, int id, const Tensor& nonfinite) {
  if (LossScaleTag* const tag = backward_state.loss_scale)  // with a number, if scaled before
    *tag = {.number = number, .moves = moves, .mixed = tag->number != 0};
  detail::observe(&Observer::scaled_loss, id, nonfinite);
}

HookHandle register_hook(const Tensor& x, Node::Hook f) {
  check(x.requires_grad(), "a hook on a tensor that does not require a gradient");
  ++effects.writes;  // so x is no longer what another call would make
  return Hooks::add(x, &Hooks::gradient, std::move(f));
}

void retain_grad(const Tensor& x) {
  check(x.requires_grad(), "retain_grad() of a tensor that does not require a gradient");
  if (x.is_leaf()) return;
  const std::shared_ptr<void>& hooks = x.grad_fn()->hooks;
  if (hooks && !Hooks::of(hooks)->retained.empty()) return;
  ++effects.writes;
  const auto keep = [kept = WeakTensor(x)](const Tensor& g) {
    if (const Tensor t = kept.lock())
      accumulate_grad(t, g, grad_enabled(), *backward_state.loss_scale);
    return Tensor();
  };
  Hooks::add(x, &Hooks::retained, Node::Hook(keep));
}

HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> f) {
  check(leaf && leaf.is_leaf(),
        "a hook on the accumulated gradient of a tensor that is not a leaf");
  return Hooks::add(leaf, &Hooks::accumulated, std::move(f));
}

void Tensor::backward() const { mixtape::backward(*this); }
void Tensor::backward(const BackwardOptions& options) const { mixtape::backward(*this, options); }
void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  mixtape::backward(*this, {gradient, retain_graph, create_graph});
}

}  // namespace mixtape
