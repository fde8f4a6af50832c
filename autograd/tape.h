#pragma once
// The tape: which op made a tensor, from what, and what it kept for backward. Nodes are numbered as
// they are made; backward pops the newest first, so it needs neither recursion nor a sort.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "autograd/autograd_meta.h"
#include "autograd/backward_state.h"
#include "autograd/hook_list.h"
#include "core/dispatch.h"
#include "core/inline_vector.h"
#include "core/scope.h"

namespace mixtape {

// One gradient per tensor input of an op, in order; no tensor where none is wanted.
using Grads = InlineVector<Tensor, 4>;

// What an op gets besides its arguments: where to put its result, what to save, and which gradients
// are wanted. Lives in the op's node while the graph does.
class Ctx {
 public:
  Ctx(const Call& call, bool recording);

  // --- in forward ---
  DType dtype() const {
    return out_;
  }  // of the result: as the policy says, else of the first activation
  Device device() const { return device_; }
  Tensor output(const Shape& shape) const { return Tensor(shape, out_, device_); }
  Tensor output(const Shape& shape, DType dtype) const { return Tensor(shape, dtype, device_); }
  // The result: call_out()'s tensor, if it has this shape and dtype, or a new one.
  Tensor result(const Shape& shape, DType dtype) const {
    const bool fits = result_ && result_->shape() == shape && result_->dtype() == dtype;
    return fits ? *result_ : output(shape, dtype);
  }
  bool recording() const { return recording_; }
  // Keeps inputs, with their history, for backward. An input that is absent stays absent.
  template <class... T>
  void save(const T&... inputs) {
    if (recording_) (keep(inputs), ...);
  }
  // Keeps the op's own result. Held without history, so that no cycle arises; second order sees it
  // attached to its node again.
  void save_result(const Tensor& y) {
    if (recording_) keep(y.detach(), Kept::Result);
  }
  void save_extra(const Tensor& t) {
    if (recording_) keep(t.detach(), Kept::Constant);
  }

  // --- in backward ---
  // Throws Error if the graph was freed, or if the tensor was written to since it was saved.
  Tensor saved(size_t i) const;
  std::vector<Tensor> saved() const;  // all, in the order they were saved
  bool wants(size_t input) const {
    return input < edges_.size() && edges_[input].node &&
           (!backward_state.needed || leads_to_needed(*edges_[input].node));
  }
  const Shape& shape(size_t input) const { return edge(input).shape; }
  DType dtype(size_t input) const { return edge(input).dtype; }
  size_t inputs() const { return edges_.size(); }
  // The dtype in which the gradient of an input is wanted: wider than the input if that is the
  // narrow copy of an f32 tensor. A rule may deliver in any float dtype; the engine converts.
  DType grad_dtype(size_t input) const;
  // A new tensor for the gradient of an input, in the input's shape and dtype.
  Tensor like(size_t input) const { return Tensor(shape(input), dtype(input), device_); }
  // One function per input, each returning that input's gradient; called only where it is wanted.
  template <class... F>
  Grads grads(const F&... rules) const {
    Grads result;
    (result.push_back(wants(result.size()) ? rules() : Tensor()), ...);
    return result;
  }

  // Runs a kernel on the op's device.
  template <class Kernel, class... A>
  void run(const Kernel& kernel, A&&... args) const {
    kernel(device_, std::forward<A>(args)...);
  }

 private:
  friend class Node;
  friend struct Engine;
  friend Tensor leaf_of(const Tensor& t);

  enum class Kept : uint8_t {
    Input,     // with its history
    Result,    // without, which it has again for second order
    Constant,  // to second order as well
    Between,   // made of inputs by a Function's forward: second order would lack how
  };
  struct Edge {  // one input: where its gradient goes (nowhere if no node), and what it looks like
    std::shared_ptr<Node> node = nullptr;
    Shape shape = {};
    DType dtype = f32;
    Device device = {};
  };
  struct Saved {
    Tensor tensor;
    uint64_t storage, version;  // by its id: an address may come again
    Kept as;
  };
  static bool leads_to_needed(const Node& node);
  void check_kept() const;
  void keep(const Tensor& t, Kept as = Kept::Input) {
    saved_.emplace_back(t, t ? t.storage()->id() : 0, t ? t.version() : 0, as);
  }
  const Edge& edge(size_t input) const;  // throws Error if there is no such input

  InlineVector<Edge, 3> edges_;
  InlineVector<Saved, 3> saved_;
  Node* node_ = nullptr;
  const Tensor* result_ = nullptr;  // see Call::result
  DType out_ = f32;
  Device device_;
  bool recording_;      // what is saved, too
  bool freed_ = false;  // what was saved; where nothing was to be, from the start
};

// A graph that is made only in backward, when the gradients of its results are there: see
// autograd/checkpoint.h. Until then, nodes of consecutive numbers stand in for the results.
class Deferred {
 public:
  virtual ~Deferred() = default;
  // The results with their history, by position as the nodes. `node` is one of the nodes.
  virtual std::vector<Tensor> make(const Node& node) = 0;

  std::vector<std::weak_ptr<Node>> nodes;
};

class Node : public std::enable_shared_from_this<Node>, NoCopy {
 public:
  using Hook = std::function<Tensor(const Tensor&)>;

  Node(const Call& call, bool recording = true)
      : ctx(call, recording), order(recording ? next() : 0), module(Scope::module_path()) {
    ctx.node_ = this;
  }
  virtual ~Node();  // frees a long history without recursing along it

  virtual std::string_view name() const = 0;
  virtual bool is_leaf() const { return false; }
  virtual Tensor leaf() const { return {}; }  // whose node this is, while that is alive
  virtual Grads backward(const Tensor& dy) = 0;
  // An op that selects part of its one input can add dy into that part of `whole`, the buffer for
  // the input's gradient. Saves a full-size tensor of zeros per selection.
  virtual bool selects() const { return false; }
  virtual void backward_into(const Tensor& dy, const Tensor& whole) { (void)dy, (void)whole; }
  // In place of backward().
  virtual Deferred* deferred() { return nullptr; }

  static uint64_t newest() { return count_.load(std::memory_order_relaxed); }  // order so far
  static uint64_t next() { return count_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Of a Function, which may have saved anything: whether that was an input or its result y.
  void sort_saved(std::span<const Tensor* const> inputs, const Tensor& y);
  // Called with the output, once it is there.
  void finish(const Tensor& y, bool moves_only);

  Ctx ctx;
  // An op is newer than its inputs; a leaf is as old as its first use in its graph.
  uint64_t order;
  DType grad_dtype = f32;           // in which it takes the gradient of its output
  bool moves = false;               // its result holds its input's numbers: a cast, a view
  const std::string* const module;  // path of the module that ran it, or null
  std::shared_ptr<void> hooks;      // see register_hook

 protected:
  // Adds as its own inputs those of the graph that ends in `other` and was made after `since`.
  void lead_as(const Node& other, uint64_t since);
  std::vector<Tensor> leaves() const;  // among its inputs

  static inline std::atomic<uint64_t> count_{0};
};

// Where the gradient of `t` goes: the node that made it, its leaf's node, or nowhere.
std::shared_ptr<Node> node_of(const Tensor& t);
// The leaf whose storage t sees: t itself, or what it is a recorded view of; else no tensor.
Tensor leaf_of(const Tensor& t);

struct BackwardOptions {
  Tensor gradient = {};       // of the output; ones for a scalar
  bool retain_graph = false;  // keep what the ops saved, for another backward
  bool create_graph = false;  // record the backward pass, for second order; implies retain_graph
};
// Adds to grad() of every leaf that y was computed from. Throws Error if y has no history, or is
// not a scalar and no gradient is given.
void backward(const Tensor& y, const BackwardOptions& options = {});

struct GradOptions {
  std::vector<Tensor> gradients = {};  // of the outputs; ones for scalars
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused = false;  // an input that no output depends on: no tensor, not an Error
};
// Gradients of the sum of the outputs with respect to inputs, which may be leaves or results of
// ops. Touches no grad(), and computes no gradient that leads to none of these.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options = {});

// Calls f with the gradient of x, the sum over all its uses, once per backward() or grad() that
// reaches x; what f returns, if it is a tensor, takes its place, for grad() as well. Hooks run in
// the order in which they were registered; one that is registered or removed meanwhile counts from
// the next time on. Those of a result belong to the op that made it. Throws Error if x wants no
// gradient, and in backward if shape, dtype or device differ.
HookHandle register_hook(const Tensor& x, Node::Hook f);
// From now on each backward() or grad() that reaches x, the result of an op, adds to x.grad().
// Throws Error if it wants no gradient.
void retain_grad(const Tensor& x);
// Calls f with a leaf each time that backward() has added to its grad(). No op that is still to
// come needs the leaf's data (unless the graph is retained, or it was used through detach() before
// it was used itself), so f may update it and clear its grad(): an optimizer that does so keeps one
// gradient at a time alive. Nothing is recorded meanwhile, unless by create_graph.
HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> f);

// Called by a hook: the gradient that it sees, and with it what the backward pass makes of that, is
// multiplied by the loss scale of that number, as it is after so many moves.
void carry_scale(uint64_t number, int64_t moves);

inline bool grad_enabled() { return thread_state.recording; }

// While one is alive, this thread records nothing.
struct NoGrad : ScopedValue<&ThreadState::recording> {
  [[nodiscard]] NoGrad() : ScopedValue(false) {}
};
// While one is alive, this thread records, also inside a NoGrad.
struct EnableGrad : ScopedValue<&ThreadState::recording> {
  [[nodiscard]] EnableGrad() : ScopedValue(true) {}
};
// While one is alive, this thread computes something about a training that is no part of it: it is
// not recorded, seen by no observer and under no policy.
struct Unobserved {
  const NoGrad off;
  const NoPolicy as_called;
  const ScopedValue<&ThreadState::observer> unseen{nullptr};
};

}  // namespace mixtape
