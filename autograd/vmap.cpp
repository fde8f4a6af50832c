// vmap by a replay or a loop. per_sample_gradients() takes each example's gradient at the calls
// that join parameters and examples.
#include "autograd/vmap.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "autograd/ops.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "autograd/quantised.h"
#include "autograd/tape.h"
#include "autograd/vmap_replay.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape {
using namespace internal;

namespace {

using Examples = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

std::vector<Tensor> example(const std::vector<Tensor>& inputs,
                            const std::vector<std::optional<int>>& in_dims, int64_t b) {
  std::vector<Tensor> one = inputs;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (in_dims[i]) one[i] = select(inputs[i], *in_dims[i], b);
  return one;
}

// True if results agree, except for rounding.
bool agree(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  bool same = got.size() == want.size();
  for (size_t k = 0; same && k < want.size(); ++k) {
    same = want[k] && got[k].dtype() == want[k].dtype() && got[k].shape() == want[k].shape();
    if (!same || want[k].numel() == 0) continue;
    const double digits = is_half(want[k].dtype()) ? 2e-2 : want[k].dtype() == f32 ? 1e-4 : 1e-9;
    const Tensor a = cast(got[k], f64), b = cast(want[k], f64);
    const double size = max(where(isfinite(b), abs(b), 0)).item();
    const double most = is_float(want[k].dtype()) ? digits : 0;
    const Tensor both_nan = logical_and(isnan(a), isnan(b));
    same = all(logical_or(isclose(a, b, most, most * size), both_nan)).item<bool>();
  }
  return same;
}

// f's results for example b, whose calls the trace records.
std::vector<Tensor> traced(const Examples& f, const std::vector<Tensor>& inputs,
                           const std::vector<std::optional<int>>& in_dims, int64_t b,
                           detail::VmapTrace& trace) {
  const std::vector<Tensor> one = example(inputs, in_dims, b);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    in_dims[i] ? trace.add(one[i], {movedim(inputs[i], {*in_dims[i]}, {0}), true})
               : trace.add(inputs[i], {inputs[i]});
  }
  const Observe watch(trace);
  return f(one);
}

// The number of examples along these dimensions. An input without one is shared by all examples.
int64_t examples_in(const std::vector<Tensor>& inputs,
                    const std::vector<std::optional<int>>& dims) {
  std::optional<int64_t> n;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!dims[i]) continue;
    check(bool(inputs[i]), "input {} is undefined", i);
    check(inputs[i].rank() > 0, "input {} has no dimension of examples", i);
    const int64_t size = inputs[i].size(*dims[i]);
    check(!n || n == size, "input {} has {} examples, others have {}", i, size, n.value_or(0));
    n = size;
  }
  check(n.value_or(0) > 0, "no input has an example");
  return *n;
}

// f's results for all examples, [n, shape] each, by a replay of its calls for the first example,
// whose results are left in `first`. Empty if only a loop is right.
std::optional<std::vector<Tensor>> replayed(const Examples& f, const std::vector<Tensor>& inputs,
                                            const std::vector<std::optional<int>>& in_dims,
                                            int64_t n, std::vector<Tensor>& first) {
  const uint64_t drawn = generator().offset();
  detail::VmapTrace trace(n);
  try {
    first = traced(f, inputs, in_dims, 0, trace);
  } catch (const Error&) {  // perhaps because the trace holds a tensor that f writes to
    generator().set_offset(drawn);
    return std::nullopt;
  }
  const uint64_t drawn_by_first = generator().offset();
  try {
    const auto all = trace.replay(first);
    if (!all) return std::nullopt;
    std::vector<Tensor> last;
    for (size_t k = 0; k < first.size(); ++k) {
      if ((*all)[k].requires_grad() != first[k].requires_grad()) return std::nullopt;
      last.push_back(select((*all)[k], 0, n - 1));
    }
    detail::VmapTrace of_last(n);
    const std::vector<Tensor> want = traced(f, inputs, in_dims, n - 1, of_last);
    const Unobserved compares;
    const uint64_t reads = effects.reads;  // the answer is the same for all examples
    const bool same = trace.is_like(first, of_last, want) && agree(last, want);
    effects.reads = reads;
    if (same) return all;
  } catch (const Error&) {  // an op that takes no batch
  }
  generator().set_offset(drawn_by_first);
  return std::nullopt;
}

}  // namespace

std::vector<Tensor> detail::vmap(const Examples& f, const std::vector<Tensor>& inputs,
                                 const VmapOptions& options) {
  std::vector<std::optional<int>> in_dims = options.in_dims;
  const int64_t n = [&] {
    const Scope scope("vmap");
    if (in_dims.size() == 1) in_dims.resize(inputs.size(), in_dims[0]);
    check(in_dims.size() == inputs.size(), "in_dims must be one or, as inputs, {}, got {}",
          inputs.size(), in_dims.size());
    return examples_in(inputs, in_dims);
  }();
  const bool on_meta =
      std::ranges::any_of(inputs, [](const Tensor& t) { return t && t.device().is_meta(); });
  const auto out_dim = [&](size_t k, size_t results) {
    const size_t dims = options.out_dims.size();
    check(dims == 1 || dims == results, "out_dims must be one or, as results, {}, got {}", results,
          dims);
    return options.out_dims[dims == 1 ? 0 : k];
  };
  std::vector<Tensor> first;
  // Two examples take two calls either way. A captured graph and meta have no values to compare.
  if (n > 2 && !captured_graph && !on_meta) {
    if (std::optional<std::vector<Tensor>> all = replayed(f, inputs, in_dims, n, first)) {
      const Scope scope("vmap");
      for (size_t k = 0; k < all->size(); ++k) {
        Tensor& y = (*all)[k];
        y = movedim(y, {0}, {out_dim(k, all->size())});
        y = y.is_contiguous() && y.storage().use_count() == 1 ? y : clone(y);
      }
      return std::move(*all);
    }
  }
  std::vector<std::vector<Tensor>> results;  // by result, then example
  for (int64_t b = 0; b < n; ++b) {
    const std::vector<Tensor> y = b == 0 && !first.empty() ? first : f(example(inputs, in_dims, b));
    const Scope scope("vmap");
    if (b == 0) results.resize(y.size());
    check(y.size() == results.size(), "example {} has {} results, the first has {}", b, y.size(),
          results.size());
    for (size_t k = 0; k < y.size(); ++k) {
      check(bool(y[k]), "result {} of example {} is undefined", k, b);
      const Shape& one = b == 0 ? y[k].shape() : results[k][0].shape();
      check(y[k].shape() == one, "result {} of example {} has shape {}, that of the first {}", k, b,
            y[k].shape(), one);
      results[k].push_back(y[k]);
    }
  }
  const Scope scope("vmap");
  std::vector<Tensor> stacked;
  for (size_t k = 0; k < results.size(); ++k)
    stacked.push_back(stack(results[k], out_dim(k, results.size())));
  return stacked;
}

namespace {

// A recorded call in which inputs that depend on the examples meet shared ones that need gradients.
struct JoiningCall {
  Tensor y;
  std::vector<Tensor> shared;  // by input: the shared tensor as given to the call, or empty
};

// Finds these calls. Dependence on the examples is tracked by storage, which covers views and
// writes in place, and by node, which covers a state that an op returns beside its result.
class Joins : public Observer {
 public:
  explicit Joins(const std::vector<Tensor>& examples) {
    for (const Tensor& t : examples) dependent_.insert(t.storage()->id());
  }
  bool reads_values() const override { return false; }
  void after(const Call& call, const Tensor& y) override {
    check(!backward_state.saves_nothing, "checkpoint() keeps no graph for gradients by example");
    JoiningCall joining{y, std::vector<Tensor>(call.inputs.size())};
    bool any_dependent = false, any_shared = false;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Tensor& t = call.given(i);  // a policy may have replaced it, unobserved
      if (!t) continue;
      if (dependent_.contains(t.storage()->id()) || nodes_.contains(t.grad_fn())) {
        any_dependent = true;
      } else if (t.requires_grad()) {
        joining.shared[i] = t;
        any_shared = true;
      }
    }
    if (!any_dependent) return;
    dependent_.insert(y.storage()->id());
    if (y.grad_fn()) nodes_.insert(y.grad_fn());
    if (any_shared && y.grad_fn()) calls.push_back(std::move(joining));
  }

  std::vector<JoiningCall> calls;

 private:
  std::unordered_set<uint64_t> dependent_;
  std::unordered_set<std::shared_ptr<Node>> nodes_;
};

// Sums, for each example, its rows of g: the gradient of a shared tensor of this shape after the
// tensor was expanded. Empty if the tensor has rows that belong to single examples.
Tensor sum_by_example(const Tensor& g, const Shape& shape, int64_t n) {
  const int more = g.rank() - shape.rank;  // g's dimensions before those of the tensor
  if (g.rank() == 0 || g.size(0) % n != 0 || (more == 0 && shape[0] != 1)) return {};
  Dims over{1};
  for (int d = 1; d < g.rank(); ++d)
    if (d < more || shape[d - more] == 1) over.push_back(d + 1);
  return reshape(sum(ops::wide(ops::by_example(g, n)), over), joined({n}, shape));
}

// The gradient of one input by running the rule once for each example, since it is linear in dy.
Tensor repeat_rule(Node& node, size_t input, const Tensor& dy, int64_t n) {
  check(dy.rank() > 0 && dy.size(0) % n == 0,
        "{} gives shape {}, whose rows do not belong to {} examples", node.name(), dy.shape(), n);
  std::vector<Tensor> each;
  const int64_t rows = dy.size(0) / n;
  for (int64_t b = 0; b < n; ++b) {
    const Tensor one = slice_scatter(zeros_like(dy), slice(dy, 0, b * rows, (b + 1) * rows), 0,
                                     b * rows, (b + 1) * rows);
    each.push_back(node.backward(one)[input]);
    if (!each.back()) return {};  // no gradient at all
  }
  return stack(each);
}

// A leaf's gradients, [n, shape], from those of a view of it.
Tensor place_in(const Tensor& leaf, const Tensor& view, const Tensor& g) {
  if (view.is_leaf()) return g;
  const Shape whole = joined({g.size(0)}, leaf.shape());
  const Layout part(g.shape(), joined({leaf.numel()}, view.strides()),
                    view.offset() - leaf.offset());
  const bool covers = view.numel() == leaf.numel();
  if (covers && g.layout() == part) return g.with_layout(Layout(whole));
  const Tensor all =
      covers ? Tensor(whole, g.dtype(), g.device()) : zeros(whole, g.dtype(), g.device());
  copy_(all.with_layout(part), g);
  return all;
}

// The gradients, by example, of the tensors that calls share.
class SharedGradients {
 public:
  SharedGradients(const std::vector<Tensor>& params, int64_t n) : params_(params), n_(n) {
    for (const Tensor& p : params) sums_.push_back({p});
  }
  void add(const JoiningCall& call, const Tensor& dy) {
    Node& node = *call.y.grad_fn();
    const Tensor kept = dy;  // a rule may write over a gradient that nothing else holds
    Grads each;              // without factors that a recipe rounds, which the rule itself rounds
    if (node.broadcasts())
      each = node.backward(dy);
    else if (!quantised_operand(node.ctx))
      each = node.backward_each(dy, n_);
    for (size_t i = 0; i < call.shared.size(); ++i) {
      const Tensor& t = call.shared[i];
      const Tensor leaf = t ? leaf_of(t) : t;
      if (!t || (leaf && !find(leaf))) continue;
      Tensor g = i < each.size() ? each[i] : Tensor();
      if (g && node.broadcasts()) g = sum_by_example(g, t.shape(), n_);
      if (!g) g = repeat_rule(node, i, dy, n_);
      if (!g) continue;
      const bool is_part = leaf && leaf.is_contiguous() && !t.layout().repeats();
      is_part ? add_to(leaf, place_in(leaf, t, g)) : add_to(t, g);
    }
  }
  // The gradients of the parameters. Those of tensors computed from parameters alone, such as a
  // transposed or normed weight, are taken back one example after another.
  std::vector<Tensor> of_params() {
    std::vector<Tensor> computed, of_computed;
    for (size_t i = params_.size(); i < sums_.size(); ++i) {
      computed.push_back(sums_[i].of);
      of_computed.push_back(sums_[i].gradient);
    }
    std::vector<std::vector<Tensor>> rows(params_.size());
    for (int64_t b = 0; b < n_ && !computed.empty(); ++b) {
      GradOptions o{.retain_graph = true, .allow_unused = true};
      for (const Tensor& g : of_computed) o.gradients.push_back(select(g, 0, b));
      const std::vector<Tensor> dp = grad(computed, params_, o);
      for (size_t k = 0; k < dp.size(); ++k)
        if (dp[k]) rows[k].push_back(dp[k]);
    }
    std::vector<Tensor> all;
    for (size_t k = 0; k < params_.size(); ++k) {
      const Tensor& p = params_[k];
      if (!rows[k].empty()) add_to(p, stack(rows[k]));
      const Tensor& g = find(p)->gradient;
      all.push_back(g ? cast(g, p.dtype())
                      : zeros(detail::of_all(p.shape(), n_), p.dtype(), p.device()));
    }
    return all;
  }

 private:
  struct Total {
    Tensor of, gradient = {};
  };
  Total* find(const Tensor& t) {
    const auto at = std::ranges::find_if(sums_, [&](const Total& s) { return s.of.is_same(t); });
    return at == sums_.end() ? nullptr : &*at;
  }
  void add_to(const Tensor& t, const Tensor& g) {
    if (!find(t)) sums_.push_back({t});
    Tensor& sum = find(t)->gradient;
    sum = sum ? sum + cast(g, sum.dtype()) : g;
  }

  const std::vector<Tensor>& params_;
  const int64_t n_;
  std::vector<Total> sums_;  // of the parameters, then of what was computed from them
};

// Compares the last example's gradients with those of its loss alone, all as one vector.
void check_last(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                const std::vector<Tensor>& params, const std::vector<Tensor>& inputs, int64_t n,
                const std::vector<Tensor>& all) {
  std::vector<Tensor> last, alone;
  for (const Tensor& t : inputs) last.push_back(slice(t, 0, n - 1, n));
  {
    const EnableGrad on;
    alone = grad({f(last)}, params, {.gradients = {ones({1})}, .allow_unused = true});
  }
  double difference = 0, size = 0;
  bool narrow = false, wide = true;
  for (size_t k = 0; k < params.size(); ++k) {
    const Tensor got = cast(select(all[k], 0, n - 1), f64);
    const Tensor want = alone[k] ? cast(alone[k], f64) : zeros_like(got);
    difference += sum(square(got - want)).item();
    size += sum(square(want)).item();
    narrow = narrow || is_half(params[k].dtype());
    wide = wide && params[k].dtype() == f64;
  }
  const double most = (narrow ? 0.1 : wide ? 1e-8 : 1e-2) * std::sqrt(size);
  check(!(std::sqrt(difference) > most),
        "the last example's gradient differs by {:.2g} from that of its loss alone, whose norm is "
        "{:.2g}: examples depend on each other, do not follow each other along dimension 0, or f "
        "draws (vmap() calls a function for each example)",
        std::sqrt(difference), std::sqrt(size));
}

std::vector<Tensor> gradients_of(const Tensor& losses, const std::vector<Tensor>& params, int64_t n,
                                 const std::vector<JoiningCall>& calls) {
  const NoGrad off;
  const NoPolicy as_called;
  std::vector<Tensor> results;
  for (const JoiningCall& call : calls) results.push_back(call.y);
  SharedGradients shared(params, n);
  if (!results.empty()) {
    const std::vector<Tensor> dy =
        grad({losses}, results,
             {.gradients = {ones_like(losses)}, .retain_graph = true, .allow_unused = true});
    for (size_t i = 0; i < dy.size(); ++i)
      if (dy[i]) shared.add(calls[i], dy[i]);
  }
  return shared.of_params();
}

}  // namespace

std::vector<Tensor> per_sample_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                         const std::vector<Tensor>& params,
                                         const std::vector<Tensor>& inputs,
                                         const PerSampleOptions& options) {
  const Scope scope("per_sample_gradients");
  const int64_t n = examples_in(inputs, std::vector<std::optional<int>>(inputs.size(), 0));
  for (size_t k = 0; k < params.size(); ++k)
    check(params[k] && params[k].is_leaf() && params[k].requires_grad(),
          "parameter {} is not a leaf that requires a gradient", k);
  Joins joins(inputs);
  Tensor losses;
  {
    const EnableGrad on;
    const Observe watch(joins);
    const ScopedValue<&BackwardState::by_example> examples_first(true);
    losses = f(inputs);
  }
  check(losses && losses.shape() == Shape{n} && losses.requires_grad(),
        "f must give losses of shape [{}] that depend on parameters, got {}", n,
        losses ? losses.shape() : Shape{});
  const std::vector<Tensor> all = gradients_of(losses, params, n, joins.calls);
  if (options.check && n > 1) check_last(f, params, inputs, n, all);
  return all;
}

}  // namespace mixtape
