#pragma once
// The tape: the op that made a tensor, its inputs, and what it saved for backward. Nodes are
// numbered as they are made; backward pops the newest first and needs neither recursion nor a sort.

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "autograd/autograd_meta.h"
#include "autograd/backward_state.h"
#include "autograd/hook_list.h"
#include "core/dispatch.h"
#include "core/inline_vector.h"
#include "core/scope.h"

namespace mixtape {

// One gradient per tensor input of an op, in order; an empty Tensor where none is needed.
using Grads = InlineVector<Tensor, 4>;

// An op's context: the dtype and device of its result, the tensors it saves, and which gradients
// are needed. Lives in the op's node as long as the graph.
class Ctx {
 public:
  // `order` is that of the recording node, or 0 if nothing is recorded.
  explicit Ctx(const internal::Call& call, uint64_t order = 0);

  // --- in forward ---
  // The result's dtype: the policy's choice, else that of the first activation.
  DType dtype() const { return out_; }
  Device device() const { return device_; }  // on which the op runs
  // A new tensor for the result, on that device.
  Tensor output(const Shape& shape) const { return Tensor(shape, out_, device_); }
  Tensor output(const Shape& shape, DType dtype) const { return Tensor(shape, dtype, device_); }
  // The result: call_out()'s tensor, if it has x's shape and this dtype, or a new one.
  Tensor result(const Tensor& x, DType dtype) const {
    const bool fits = result_ && result_->shape() == x.shape() && result_->dtype() == dtype;
    return fits ? *result_ : x.like(dtype);
  }
  bool recording() const { return recording_; }  // true if backward may follow
  // Saves inputs, with their history, for backward. An absent input stays absent.
  template <class... T>
  void save(const T&... inputs) {
    if (recording_) (keep(inputs), ...);
  }
  // Saves the op's result without history, which would be a cycle. saved() attaches it to its node
  // again.
  void save_result(const Tensor& y) {
    if (recording_) keep(y.detach(), Kept::Result);
  }
  // Saves a tensor that forward computed, as a constant: backward does not differentiate it.
  void save_extra(const Tensor& t) {
    if (recording_) keep(t.detach(), Kept::Constant);
  }

  template <class T = std::vector<Tensor>, class... More>
  void save_for_backward(const T&, const More&...) = delete;  // ctx.save(x), then ctx.saved(0)

  // --- in backward ---
  // Saved tensor i. Throws Error if the graph was freed, or if it was modified since it was saved.
  Tensor saved(size_t i) const;
  std::vector<Tensor> saved() const;                         // all, in the order they were saved
  std::vector<Tensor> get_saved_variables() const = delete;  // ctx.saved()
  // True if the input's gradient is needed.
  bool wants(size_t input) const {
    return input < edges_.size() && edges_[input].node &&
           (!backward_state.needed || leads_to_needed(*edges_[input].node));
  }
  const Shape& shape(size_t input) const { return edge(input).shape; }  // of an input
  DType dtype(size_t input) const { return edge(input).dtype; }         // of an input
  size_t inputs() const { return edges_.size(); }                       // their number
  // The node that an input's gradient goes to; null if it needs none.
  const internal::Node* source(size_t input) const { return edge(input).node.get(); }
  // The dtype of an input's gradient, wider than the input if that is a 16-bit copy of an f32
  // tensor. A rule may return any float dtype; the engine converts it.
  DType grad_dtype(size_t input) const;
  // The dtype of the gradient in the op that made the input: f16 even if the input is a view of
  // that op's result or was converted to f32.
  DType source_grad_dtype(size_t input) const;
  // A new tensor for the gradient of an input, in the input's shape and dtype.
  Tensor like(size_t input) const { return Tensor(shape(input), dtype(input), device_); }
  // Takes the sum of an input's gradients so far. The rule adds its own in place and returns the
  // sum, which saves a pass. Empty if there is no sum that may be written to.
  Tensor take_sum(size_t input) const;
  // Takes a function per input that returns its gradient, and calls those whose gradients are
  // needed.
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
  friend class internal::Node;
  friend struct Engine;
  friend Tensor leaf_of(const Tensor& t);

  enum class Kept : uint8_t {
    Input,     // keeps its history
    Result,    // has no history; attached to its node for second order
    Constant,  // has no history, for second order either
    Between,   // computed by a Function's forward, so its history is lost to second order
  };
  struct Edge {  // one input: the node that its gradient goes to (null: none), and its properties
    std::shared_ptr<internal::Node> node = nullptr;
    Shape shape = {};
    DType dtype = f32;
    Device device = {};
  };
  struct Saved {
    Tensor tensor;
    uint64_t storage, version;  // storage by id, since addresses are reused
    Kept as;
  };
  static bool leads_to_needed(const internal::Node& node);
  void check_kept() const;
  void keep(const Tensor& t, Kept as = Kept::Input) {
    saved_.emplace_back(t, t ? t.storage()->id() : 0, t ? t.version() : 0, as);
  }
  const Edge& edge(size_t input) const;  // throws Error if there is no such input

  InlineVector<Edge, 3> edges_;
  InlineVector<Saved, 3> saved_;
  internal::Node* node_ = nullptr;
  const Tensor* result_ = nullptr;  // see Call::result
  DType out_ = f32;
  Device device_;
  bool recording_;      // true if saved tensors are kept
  bool freed_ = false;  // saved tensors were dropped, or never kept (a checkpoint's first call)
};

// A graph that is built only in backward, once the gradients of its results are known (see
// autograd/checkpoint.h). Until then, nodes with consecutive numbers stand in for its results.
class CheckpointGraph {
 public:
  virtual ~CheckpointGraph() = default;
  // The results with their history, one per element of `nodes`. `node` is one of `nodes`.
  virtual std::vector<Tensor> make(const internal::Node& node) = 0;

  std::vector<std::weak_ptr<internal::Node>> nodes;
};

namespace internal {

class Node : public std::enable_shared_from_this<Node>, NoCopy {
 public:
  using Hook = std::function<Tensor(const Tensor&)>;

  Node(const Call& call, bool recording = true)
      : order(recording ? next(call.inputs.size() + 1) : 0),
        ctx(call, order),
        module(Scope::module_path()) {
    ctx.node_ = this;
  }
  virtual ~Node();  // frees a long history without recursion

  virtual std::string_view name() const = 0;
  virtual bool is_leaf() const { return false; }
  virtual Tensor leaf() const { return {}; }  // the leaf of this node, while it is alive
  virtual Grads backward(const Tensor& dy) = 0;
  // True for an op that selects part of its one input. part() then returns the same part of
  // `whole`, the buffer for the input's gradient, and dy is added there. This saves a full-size
  // tensor of zeros per selection.
  virtual bool selects() const { return false; }
  virtual bool covers() const { return false; }  // nodes like this one select all of it
  virtual Tensor part(const Tensor& whole) const { return whole; }
  // Replaces backward() for a checkpoint's results.
  virtual CheckpointGraph* checkpoint_graph() { return nullptr; }
  // The gradient of each shared input for each of n examples, [n, shape]; the rows of dy belong to
  // the examples in order. Empty if the op has no rule for it.
  virtual Grads backward_each(const Tensor& dy, int64_t n) { return (void)dy, (void)n, Grads(); }
  virtual bool broadcasts() const { return false; }  // its inputs were expanded to a common shape

  // The highest order so far.
  static uint64_t newest() { return count_.load(std::memory_order_relaxed); }
  // Reserves n orders and returns the last, the op's; leaves among its inputs take those before it.
  static uint64_t next(uint64_t n = 1) {
    return count_.fetch_add(n, std::memory_order_relaxed) + n;
  }
  // Classifies each tensor that a Function saved: an input, its result y, or a tensor in between.
  void classify_saved(std::span<const Tensor* const> inputs, const Tensor& y);
  // Called with the output after forward.
  void finish(const Tensor& y, bool moves_only);

  // Grows with time: an op is newer than its inputs; a leaf is as old as its first use in its
  // graph.
  uint64_t order;
  Ctx ctx;
  DType grad_dtype = f32;           // of the output's gradient
  bool moves = false;               // the result holds the input's numbers: a cast, a view
  const std::string* const module;  // path of the module that ran it, or null
  std::shared_ptr<void> hooks;      // see register_hook

 protected:
  // Takes over the inputs of the graph that was made after `since` and ends in `other`.
  void inherit_edges(const Node& other, uint64_t since);
  std::vector<Tensor> leaves() const;  // among its inputs

  static inline std::atomic<uint64_t> count_{0};
};

}  // namespace internal

// The node that receives the gradient of `t`: its grad_fn(), a leaf's accumulator, or null.
std::shared_ptr<internal::Node> node_of(const Tensor& t);
// The leaf whose storage t shares: t itself or the base of a recorded view; else empty.
Tensor leaf_of(const Tensor& t);

struct BackwardOptions {
  Tensor gradient = {};       // of y; for a scalar 1 by default
  bool retain_graph = false;  // keep saved tensors, for another backward()
  bool create_graph = false;  // record the backward pass, for second order; implies retain_graph
};
// Adds the gradient of y to grad() of every leaf from which y was computed. Throws Error if y has
// no history, or if it has several elements and no gradient is given.
void backward(const Tensor& y, const BackwardOptions& options = {});

struct GradOptions {
  std::vector<Tensor> gradients = {};  // of the outputs; ones for scalars
  bool retain_graph = false;
  bool create_graph = false;
  bool allow_unused = false;  // an empty Tensor, not an Error, if no output depends on an input
};
// The gradients of the sum of the outputs with respect to inputs, which may be leaves or results of
// ops. Changes no grad(), and computes only the gradients needed for these.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options = {});

// libtorch's names whose arguments are others here: the compiler shows these lines.
namespace autograd {
template <class List = std::vector<Tensor>>
void grad(List, List, List = {}, bool = 0, bool = 0) = delete;  // grad({y}, {x}, {.gradients = v})
class AutogradContext;  // Ctx& ctx, with ctx.save(x) and ctx.saved(0)
}  // namespace autograd

// The leaves from which y was computed and that require gradients, oldest first.
std::vector<Tensor> leaves_of(const Tensor& y);

// Calls f with the gradient of x, summed over all its uses, once per backward() or grad() that
// reaches x. A tensor that f returns replaces the gradient, for grad() as well. Hooks run in order
// of registration; those registered when the run began count. The hooks of a result belong to the
// op that made it. Throws Error unless x.requires_grad(), and in backward if the shape, dtype or
// device of f's result differs.
HookHandle register_hook(const Tensor& x, internal::Node::Hook f);
template <std::invocable<const Tensor&> F>
  requires std::is_void_v<std::invoke_result_t<F&, const Tensor&>>
HookHandle register_hook(const Tensor& x, F f) {  // f only looks
  return register_hook(x, [f = std::move(f)](const Tensor& g) mutable { return f(g), Tensor(); });
}
// Makes each backward() or grad() that reaches x, the result of an op, add to x.grad() from now on,
// once and after the hooks of x. Throws Error unless x.requires_grad().
void retain_grad(const Tensor& x);
// Calls f with a leaf each time backward() has added to its grad(). The rest of the pass does not
// read the leaf's data (unless the graph is retained, or the leaf was used through detach() before
// it was used itself), so f may update the leaf and clear its grad(). An optimizer that does so
// keeps one gradient alive at a time. Ops in f are not recorded, except under create_graph. (Under
// a dist::DataParallel, calls f at the end of a step, with the mean in grad().)
HookHandle register_post_accumulate_hook(const Tensor& leaf, std::function<void(const Tensor&)> f);

// For hooks: tags the gradient that the hook sees, and all gradients computed from it, as
// multiplied by the loss scale of this number after `moves` updates. See Observer::scaled_loss().
void tag_loss_scale(uint64_t number, int64_t moves, int id, const Tensor& nonfinite);

namespace detail {
void accumulate(const Tensor& x, const Tensor& y);  // y += x, in place, of any float dtypes
void write(const Tensor& x, const Tensor& y);       // y = x, in place, of any dtypes
}  // namespace detail

inline bool grad_enabled() { return thread_state.recording; }

// A guard: this thread records nothing.
struct NoGrad : ScopedValue<&ThreadState::recording> {
  [[nodiscard]] NoGrad() : ScopedValue(false) {}
};
using InferenceMode = NoGrad;  // torch.inference_mode
using NoGradGuard = NoGrad;    // of libtorch
// A guard: this thread records, even inside a NoGrad.
struct EnableGrad : ScopedValue<&ThreadState::recording> {
  [[nodiscard]] EnableGrad() : ScopedValue(true) {}
};
// A guard for computations about a training run that are not part of it: nothing is recorded, no
// observer sees them and no policy applies.
struct Unobserved {
  const NoGrad off;
  const NoPolicy as_called;
  const ScopedValue<&ThreadState::observer> unseen{nullptr};
};

}  // namespace mixtape
