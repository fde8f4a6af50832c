#include "autograd/tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
using namespace internal;
namespace {

// A leaf's accumulator: sums the gradients of all uses for grad(). The leaf owns it, for all
// graphs.
class LeafNode final : public Node {
 public:
  LeafNode(const Tensor& leaf, const Call& call) : Node(call, false), leaf_(leaf) {}
  std::string_view name() const override { return "leaf"; }
  bool is_leaf() const override { return true; }
  Grads backward(const Tensor&) override { return {}; }
  Tensor leaf() const override { return leaf_.lock(); }

  void join(const AutogradMeta& leaf, uint64_t as) {
    order = as;
    hooks = leaf.hooks;
  }

 private:
  WeakTensor leaf_;
};
constexpr OpInfo leaf_info{"leaf"};

// A remedy for activations of different dtypes, besides conversion: amp::Autocast, which casts
// floats narrower than f64 for ops whose Precision asks for it; or, for bytes, to_float(), as they
// are probably pixels.
std::string_view other_remedy(const OpInfo& op, DType a, DType b) {
  const auto castable = [](DType t) { return is_float(t) && t != f64; };
  if (a == u8 || b == u8) return "; train::transforms::to_float() for images";
  if (!castable(a) || !castable(b)) return "";
  const bool ever_cast = op.precision != Precision::Any && op.precision != Precision::Native;
  return !ever_cast            ? ", or give the op a Precision that amp::Autocast casts for"
         : thread_state.policy ? "; the region here, or an override in it, leaves them as they are"
                               : ", or run under amp::Autocast";
}

}  // namespace

namespace detail {

[[gnu::noinline]] static void broadcast_inputs(Call& call) {
  Shape shape = call.inputs[0]->shape();
  for (const Tensor* t : call.inputs) shape = broadcast(shape, t->shape());
  // The policy has made the dtypes agree for this op and must not change them for expand.
  const NoPolicy as_called;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (call.inputs[i]->shape() != shape) call.replace(i, expand(*call.inputs[i], shape));
}

// Converts bool activations beside numbers to 0 and 1 in the numbers' dtype.
[[gnu::noinline]] static void count_bools(Call& call) {
  if (call.inputs.size() < 2) return;
  const auto is_bool = [](const Tensor* t) { return *t && t->dtype() == boolean; };
  if (std::ranges::none_of(call.inputs, is_bool)) [[likely]]
    return;
  const auto counts = [&](size_t i) {
    return *call.inputs[i] && call.op.role(i) == Role::Activation;
  };
  size_t number = 0;
  while (number < call.inputs.size() && (!counts(number) || is_bool(call.inputs[number]))) ++number;
  if (number == call.inputs.size()) return;
  const DType dtype = call.inputs[number]->dtype();
  const NoPolicy as_called;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (counts(i) && is_bool(call.inputs[i])) call.replace(i, cast(*call.inputs[i], dtype));
}

[[gnu::noinline]] static void check_inputs(const Call& call) {
  const Tensor* const first = call.deciding();
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& t = *call.inputs[i];
    if (!t) continue;
    if (t.device() != first->device()) [[unlikely]]
      fail("inputs are on different devices: {} and {}", first->device(), t.device());
    const DType want = first->dtype();
    // A matrix product reads all its operands in one dtype.
    const bool operand = call.op.role(i) == Role::Parameter && call.op.precision == Precision::Low;
    switch (operand ? Role::Activation : call.op.role(i)) {
      case Role::Activation:
        if (t.dtype() != want) [[unlikely]]
          fail("inputs have different dtypes: {} and {} (convert one with .to(){})", want,
               t.dtype(), other_remedy(call.op, want, t.dtype()));
        break;
      case Role::Parameter:
      case Role::Statistic:
        if (t.dtype() != want && !(t.dtype() == f32 && is_half(want))) [[unlikely]]
          fail("input {} must be {}{} beside {} activations, got {}", i, want,
               is_half(want) ? " or f32" : "", want, t.dtype());
        break;
      case Role::Index:
        if (t.dtype() != i64) [[unlikely]]
          fail("indices must be i64, got {}", t.dtype());
        break;
      case Role::Mask:
        if (t.dtype() != boolean) [[unlikely]]
          fail("the mask must be bool, got {}", t.dtype());
        break;
    }
  }
}

// The facts about its inputs by which prepare() treats a call, found in one loop.
struct InputFacts {
  bool alike, one_shape, requires_grad;  // see Call::alike; all defined, of one shape
};
[[gnu::always_inline]] static inline InputFacts input_facts(const Call& call, bool only_values) {
  InputFacts facts{only_values, true, false};
  const Tensor* last = nullptr;  // the last defined one
  for (const Tensor* t : call.inputs) {
    if (!*t) {
      facts.alike = facts.one_shape = false;
      continue;
    }
    if (last) {
      if (t->dtype() != last->dtype() || t->device() != last->device()) facts.alike = false;
      if (t->shape() != last->shape()) facts.one_shape = false;
    }
    if (t->requires_grad()) facts.requires_grad = true;
    last = t;
  }
  return facts;
}
[[gnu::noinline]] static InputFacts replaced_facts(const Call& call, bool only_values) {
  return input_facts(call, only_values);
}

Tensor RepeatedArguments::tensor() {
  check(!inputs.empty(), "a call to be repeated has too few inputs");
  const Tensor& first = inputs.front();
  inputs = inputs.subspan(1);
  return first;
}
std::vector<Tensor> RepeatedArguments::list() {
  check(!lists.empty() && lists[0] >= 0 && lists[0] <= int64_t(inputs.size()),
        "a call to be repeated has no such list of inputs");
  const size_t n = size_t(lists[0]);
  std::vector<Tensor> all(inputs.begin(), inputs.begin() + std::ptrdiff_t(n));
  inputs = inputs.subspan(n);
  lists = lists.subspan(1);
  return all;
}
void RepeatedArguments::read(void* to, size_t bytes) {
  check(attributes.size() >= bytes, "a call to be repeated has too few attributes");
  std::memcpy(to, attributes.data(), bytes);
  attributes.remove_prefix(bytes);
}

void RepeatedArguments::check_rank(const Shape& s) {
  check(s.rank >= 0 && s.rank <= max_rank, "a call to be repeated has a shape of rank {}", s.rank);
}

// Applies the policy, broadcasts and checks inputs before an op runs. Returns true if the call is
// to be recorded.
static bool prepare(Call& call, const BoxedOp& op) {
  InputFacts facts = input_facts(call, op.facts.only_values);
  call.alike = facts.alike;
  if (!facts.alike) [[unlikely]]
    count_bools(call);
  const ThreadState& state = thread_state;
  if (state.policy && !call.out) state.policy->apply(call);
  if (!call.replaced.empty()) [[unlikely]]
    facts = replaced_facts(call, op.facts.only_values);
  if (op.facts.broadcasts && !facts.one_shape) [[unlikely]]
    broadcast_inputs(call);
  if (!facts.alike) [[unlikely]]
    check_inputs(call);
  observe(&Observer::before, call);
  return op.node && state.recording && facts.requires_grad;
}

// Makes y the result of the node.
static void attach(const Call& call, Tensor& y, std::shared_ptr<Node>&& node, bool moves_only) {
  if (call.composed) node->classify_saved(call.inputs, y);
  // The result may be a tensor with a history of its own: an input or, from a Function, any tensor.
  if (call.composed ||
      std::ranges::any_of(call.inputs, [&](const Tensor* t) { return t->is_same(y); })) [[unlikely]]
    y = y.detach();
  node->finish(y, moves_only);
  y.set_grad_fn(std::move(node));
}

void accumulate(const Tensor& x, const Tensor& y) {
  const bool as_it_is = x.dtype() == y.dtype() || (is_half(x.dtype()) && y.dtype() == f32);
  if (!as_it_is) return accumulate(cast(x, y.dtype()), y);
  y.storage()->begin_write();
  kernels::accumulate(y.device(), x, y);
  y.storage()->bump_version();
}

void write(const Tensor& x, const Tensor& y) {
  y.storage()->begin_write();
  kernels::convert(y.device(), x, y);
  y.storage()->bump_version();
}

// Stands for the history of a fused gradient, which cannot be differentiated.
class FirstOrderOnly final : public Node {
 public:
  FirstOrderOnly(const Call& call, const Node& of) : Node(call), op_(of.name()) {
    inherit_edges(of, of.order - 1);
  }
  std::string_view name() const override { return op_; }
  Grads backward(const Tensor&) override {
    fail("the gradient of {} is a fused kernel, which can't be differentiated again", op_);
  }

 private:
  std::string_view op_;
};

static Grads forbid_second_order(Grads grads, const Tensor& dy, const Node& of) {
  for (Tensor& g : grads) {
    if (!g) continue;
    g = g.detach();
    const Tensor* input = &dy;
    const auto node = std::make_shared<FirstOrderOnly>(Call{leaf_info, {&input, 1}}, of);
    node->grad_dtype = g.dtype();
    g.set_grad_fn(node);
  }
  return grads;
}

OpNode::OpNode(const Call& call, const BoxedOp& op, const void* attributes)
    : Node(call), op_(op), attributes_(attributes) {}
Grads OpNode::backward(const Tensor& dy) {
  Grads grads = op_.backward(ctx, dy, attributes_);
  return op_.facts.first_order_only && grad_enabled()
             ? forbid_second_order(std::move(grads), dy, *this)
             : grads;
}

static Tensor run_forward(const BoxedOp& op, Ctx& ctx, const Call& call,
                          const void* const* arguments) {
  // Ops called inside are helpers, neither recorded nor changed by a policy.
  const ScopedValue<&ThreadState::recording> recording(false);
  const NoPolicy as_called;
  Tensor y = op.forward(ctx, call.inputs.data(), arguments);
  if (y.requires_grad()) [[unlikely]]  // y is an input, which keeps its own history
    y = y.detach();
  return y;
}

// Runs an op whose node saves what backward needs.
static Tensor run_recorded(const BoxedOp& op, const Call& call, const void* const* arguments) {
  std::shared_ptr<Node> node = op.node(call, op, arguments);
  Tensor y = run_forward(op, node->ctx, call, arguments);
  attach(call, y, std::move(node), op.facts.moves_only);
  if (op.facts.wide_gradient && is_half(y.dtype())) y.grad_fn()->grad_dtype = f32;
  return y;
}

// Tells observers of a call, with its arguments.
[[gnu::noinline]] static void observe_after(const BoxedOp& op, Call& call, const Tensor& y,
                                            const void* const* arguments) {
  InlineVector<int64_t, 4> lists;
  for (size_t i = 0; op.arguments[i]; ++i)
    if (*op.arguments[i] == typeid(std::vector<Tensor>))
      lists.push_back(std::ssize(*static_cast<const std::vector<Tensor>*>(arguments[i])));
  const Repetition repetition{op, arguments, {lists.begin(), lists.size()}};
  call.repetition = &repetition;
  observe(&Observer::after, call, y);
  call.repetition = nullptr;
}

Tensor run(const BoxedOp& op, const Tensor* out, std::span<const Tensor*> inputs,
           std::optional<DType> dtype, const void* const* arguments) {
  const Scope scope(op.op.name);
  Call call{op.op, inputs};
  call.out = dtype;
  call.backward = backward_state.running;
  call.composed = op.facts.composed;
  const bool recorded = prepare(call, op);
  if (!recorded) call.result = out;
  const auto run = [&] {
    if (recorded) return run_recorded(op, call, arguments);
    Ctx ctx(call);
    return run_forward(op, ctx, call, arguments);
  };
  const Tensor y = run();
  if (thread_state.observer) [[unlikely]]
    observe_after(op, call, y, arguments);
  return y;
}

}  // namespace detail

[[gnu::noinline]] static std::shared_ptr<Node> new_leaf_node(const Tensor& t) {
  return make_pooled<LeafNode>(t, Call{leaf_info, {}});
}
// node_of(). A leaf that is in no graph yet takes the order that `order` gives.
template <class Order>
static std::shared_ptr<Node> node_of(const Tensor& t, Order new_order) {
  if (t.grad_fn()) return t.grad_fn();
  if (!t.is_leaf()) return nullptr;
  AutogradMeta& meta = t.autograd_meta();
  std::shared_ptr<Node>& node = meta.accumulator;
  if (!node) [[unlikely]]
    node = new_leaf_node(t);
  if (node.use_count() == 1) static_cast<LeafNode&>(*node).join(meta, new_order());
  node->grad_dtype = meta.grad_dtype(t.dtype());  // it may have changed since an older graph
  return node;
}
std::shared_ptr<Node> node_of(const Tensor& t) {
  return node_of(t, [] { return Node::next(); });
}

Ctx::Ctx(const Call& call, uint64_t order)
    : result_(call.result),
      recording_(order != 0 && !backward_state.saves_nothing),
      freed_(order != 0 && !recording_) {
  if (order != 0)
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Tensor& t = *call.inputs[i];
      const auto before = [&] { return order - call.inputs.size() + i; };
      if (t)
        edges_.emplace_back(node_of(t, before), t.shape(), t.dtype(), t.device());
      else
        edges_.emplace_back();
    }
  if (const Tensor* first = call.deciding()) {
    out_ = call.out.value_or(first->dtype());
    device_ = first->device();
  }
}

void Ctx::check_kept() const {
  if (!freed_) return;
  check(recording_, "backward() or grad() inside checkpoint(), where {} saved nothing for it",
        node_->name());
  fail(
      "second backward() through {}: its saved tensors were freed by the first (pass "
      "{{.retain_graph = true}} to it, or detach() tensors passed from one graph to the next)",
      node_->name());
}

std::vector<Tensor> Ctx::saved() const {
  check_kept();
  std::vector<Tensor> all;
  for (size_t i = 0; i < saved_.size(); ++i) all.push_back(saved(i));
  return all;
}

Tensor Ctx::saved(size_t i) const {
  check_kept();
  check(i < saved_.size(), "saved({}), but {} tensors were saved for backward", i, saved_.size());
  const Saved& s = saved_[i];
  if (!s.tensor) return {};
  const bool replaced = s.tensor.storage()->id() != s.storage;
  if (replaced || s.tensor.version() != s.version) [[unlikely]]
    fail(
        "a tensor that {} saved for backward was modified{}: {}, {} {} (call backward() first, or "
        "write to a clone())",
        node_->name(),
        replaced
            ? ": its data was replaced"
            : fmt::format(" in place: it is at version {}, not {}", s.tensor.version(), s.version),
        s.as == Kept::Result       ? "its result"
        : s.as != Kept::Input      ? "computed in its forward"
        : s.tensor.is_leaf()       ? "an input that is a leaf"
        : s.tensor.requires_grad() ? "an input that an op made"
                                   : "an input",
        s.tensor.dtype(), s.tensor.shape());
  if (s.as == Kept::Between && grad_enabled())
    fail(
        "second order through {}: its backward() reads a tensor that forward() computed (save() "
        "the inputs and compute it in backward(), or save_extra() a constant)",
        node_->name());
  if (s.as == Kept::Result && grad_enabled()) {
    const Tensor y = s.tensor.detach();
    y.set_grad_fn(node_->shared_from_this());
    return y;
  }
  return s.tensor;
}

void Node::classify_saved(std::span<const Tensor* const> inputs, const Tensor& y) {
  for (Ctx::Saved& s : ctx.saved_) {
    if (!s.tensor || s.as != Ctx::Kept::Input) continue;
    const auto is_saved = [&](const Tensor* t) { return t->is_same(s.tensor); };
    if (std::ranges::any_of(inputs, is_saved)) continue;
    s.as = y.is_same(s.tensor) ? Ctx::Kept::Result : Ctx::Kept::Between;
  }
}

const Ctx::Edge& Ctx::edge(size_t input) const {
  check(input < edges_.size(), "input {} is out of range for {} inputs", input, edges_.size());
  return edges_[input];
}

DType Ctx::grad_dtype(size_t input) const { return edges_[input].node->grad_dtype; }

DType Ctx::source_grad_dtype(size_t input) const {
  const Node* n = edges_[input].node.get();
  while (n->moves && n->ctx.edges_[0].node) n = n->ctx.edges_[0].node.get();
  return n->grad_dtype;
}

void Node::finish(const Tensor& y, bool moves_only) {
  grad_dtype = y.dtype();
  moves = moves_only;
  if (!moves_only || !is_half(grad_dtype)) return;
  const auto& [shape, strides, offset] = y.layout();
  bool repeats = false;  // if so, the gradient is a sum, whose terms need not be rounded
  for (int d = 0; d < shape.rank; ++d) repeats |= strides[d] == 0 && shape[d] > 1;
  if (repeats || (ctx.edges_[0].node && ctx.grad_dtype(0) == f32)) grad_dtype = f32;
}

void Node::inherit_edges(const Node& other, uint64_t since) {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open{&other};
  while (!open.empty()) {
    const Node* n = open.back();
    open.pop_back();
    for (const Ctx::Edge& e : n->ctx.edges_) {
      if (!e.node || !seen.insert(e.node.get()).second) continue;
      if (e.node->order > since && !e.node->is_leaf())
        open.push_back(e.node.get());
      else
        ctx.edges_.push_back(e);
    }
  }
}

std::vector<Tensor> Node::leaves() const {
  std::vector<Tensor> found;
  for (const Ctx::Edge& e : ctx.edges_)
    if (e.node)
      if (const Tensor leaf = e.node->leaf()) found.push_back(leaf);
  return found;
}

struct FreedNodes : InlineVector<std::shared_ptr<void>, 8> {};

// The outermost destructor frees, one after the other, all nodes that it and the freed ones were
// the last to hold. Freeing each in its owner's destructor would recurse through a long history.
Node::~Node() {
  FreedNodes own;
  FreedNodes& held = backward_state.freed ? *backward_state.freed : own;
  const ScopedValue<&BackwardState::freed> collect(&held);
  // A saved input holds its grad_fn, too, which may not be an edge: a checkpoint saves all inputs.
  for (auto& s : ctx.saved_) {
    if (s.tensor && s.tensor.grad_fn().use_count() == 1) held.push_back(s.tensor.grad_fn());
    s.tensor = {};
  }
  for (auto& e : ctx.edges_) {
    if (e.node.use_count() == 1)
      held.push_back(std::move(e.node));
    else
      e.node.reset();
  }
  if (hooks) held.push_back(std::move(hooks));  // they may hold tensors with a history
  while (!own.empty()) {
    const std::shared_ptr<void> next = std::move(own.back());
    own.pop_back();
  }
}

Tensor leaf_of(const Tensor& t) {
  if (t.is_leaf()) return t;
  const Node* n = t.grad_fn().get();
  while (n && n->moves) n = n->ctx.edges_[0].node.get();
  if (!n || !n->is_leaf()) return {};
  const Tensor leaf = n->leaf();
  return leaf && leaf.storage() == t.storage() ? leaf : Tensor();
}

}  // namespace mixtape
