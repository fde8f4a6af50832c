// Joins two graphs of a network for two batch sizes, which may differ only in sizes that depend on
// the batch. Such a size becomes -1 if it is a Reshape's only unknown one; else it is computed from
// the input's shape.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/module.h"
#include "train/onnx/trace.h"

namespace mixtape::train::onnx {
namespace {

bool are_equal(const Tensor& a, const Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const auto here = [](const Tensor& t) { return t.copied_to(Device::cpu()).contiguous(); };
  const Tensor x = here(a), y = here(b);
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

Tensor first_number(const Tensor& t) { return flatten(t)(0); }
// True if every element of t is the first one of `like`.
bool is_filled(const Tensor& t, const Tensor& like) {
  if (t.numel() == 0 || like.numel() == 0 || t.dtype() != like.dtype()) return false;
  return are_equal(t, expand(first_number(like), t.shape()));
}

class Merger {
 public:
  Merger(const Trace& one, const Trace& other, int64_t batch, int64_t other_batch)
      : one_(one), other_(other), graph_(one.graph), batch_(batch), other_batch_(other_batch) {}

  io::OnnxGraph merged() {
    compare_nodes();
    const StateDict &a = one_.graph.initializers, &b = other_.graph.initializers;
    StateDict kept;
    for (size_t i = 0; i < a.size(); ++i) {
      const auto& [name, t] = a[i];
      if (are_equal(t, b[i].second))
        kept.emplace_back(name, t);
      else
        generalise(name, t, b[i].second, kept);
    }
    kept.insert(kept.end(), added_.begin(), added_.end());
    graph_.initializers = std::move(kept);
    graph_.nodes.insert(graph_.nodes.begin(), sizes_.begin(), sizes_.end());
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      name_sizes(graph_.inputs[i], other_.graph.inputs[i]);
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      name_sizes(graph_.outputs[i], other_.graph.outputs[i]);
    return std::move(graph_);
  }

 private:
  void compare_nodes() const {
    const auto &a = one_.graph.nodes, &b = other_.graph.nodes;
    const size_t n = std::min(a.size(), b.size());
    for (size_t i = 0; i < n; ++i) {
      const bool same = a[i].op == b[i].op && a[i].inputs == b[i].inputs &&
                        a[i].outputs == b[i].outputs && a[i].attributes == b[i].attributes;
      check(same, "batches of {} and {} run different ops: {} and {}", batch_, other_batch_,
            a[i].outputs[0], b[i].outputs[0]);
    }
    check(
        a.size() == b.size() && one_.graph.initializers.size() == other_.graph.initializers.size(),
        "batches of {} and {} run {} and {} ops", batch_, other_batch_, a.size(), b.size());
  }

  // A size as a multiple of the batch; 0 if it does not depend on it.
  int64_t multiple(int64_t size, int64_t other) const {
    if (size == other) return 0;
    check(size % batch_ == 0 && size / batch_ * other_batch_ == other,
          "with batches of {} and {} a size is {} and {}, which are not multiples", batch_,
          other_batch_, size, other);
    return size / batch_;
  }

  void generalise(const std::string& name, const Tensor& t, const Tensor& other, StateDict& kept) {
    if (is_filled(t, t) && is_filled(other, t) && t.rank() == other.rank())
      return fill(name, t, other.shape());
    check(
        one_.number_lists.contains(name) && t.numel() == other.numel(),
        "{} of shape {} is not constant: it depends on the inputs in other ways than by ops, such "
        "as item() or arange(x.size(0))",
        name, t.shape());
    std::vector<int64_t> sizes = to_vector<int64_t>(t), multiples;
    for (size_t i = 0; i < sizes.size(); ++i)
      multiples.push_back(multiple(sizes[i], other.at<int64_t>(int64_t(i))));
    const bool one = std::ranges::count(multiples, 0) == int64_t(sizes.size()) - 1;
    if (one && only_shapes(name) && std::ranges::count(sizes, 0) == 0) {
      for (size_t i = 0; i < sizes.size(); ++i)
        if (multiples[i] != 0) sizes[i] = -1;
      kept.emplace_back(name, numbers(sizes));
      return;
    }
    join(name, sizes, multiples);
  }
  void join(const std::string& name, const std::vector<int64_t>& sizes,
            const std::vector<int64_t>& multiples) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < sizes.size(); ++i)
      parts.push_back(multiples[i] == 0 ? constant(sizes[i]) : batch_times(multiples[i]));
    sizes_.push_back({"Concat", parts, {name}, {{"axis", int64_t{0}}}});
  }
  // Expands the one number of a tensor, such as zeros({x.size(0), 3}).
  void fill(const std::string& name, const Tensor& t, const Shape& other) {
    std::vector<int64_t> multiples;
    for (int d = 0; d < other.rank; ++d) multiples.push_back(multiple(t.size(d), other[d]));
    const std::string number = unused(name + "_number"), shape = unused(name + "_shape");
    added_.emplace_back(number, first_number(t));
    join(shape, {t.shape().begin(), t.shape().end()}, multiples);
    sizes_.push_back({"Expand", {number, shape}, {name}});
  }
  // True if the numbers are read only as shapes by Reshapes.
  bool only_shapes(const std::string& name) const {
    for (const io::OnnxNode& node : graph_.nodes)
      if (node.op != "Reshape" && std::ranges::count(node.inputs, name) > 0) return false;
    return true;
  }

  static Tensor numbers(const std::vector<int64_t>& values) {
    const Tensor t({int64_t(values.size())}, i64, Device::cpu());
    std::ranges::copy(values, t.data<int64_t>());
    return t;
  }
  std::string unused(std::string name) const {
    while (one_.taken.contains(name)) name += '_';
    return name;
  }
  std::string constant(int64_t value) {
    const std::string name = unused(fmt::format("size_{}", value));
    if (names_.insert(name).second) added_.emplace_back(name, numbers({value}));
    return name;
  }
  std::string batch_times(int64_t factor) {
    const std::string batch = unused("batch");
    if (names_.insert(batch).second)
      sizes_.push_back({"Shape",
                        {graph_.inputs[0].name},
                        {batch},
                        {{"start", int64_t{0}}, {"end", int64_t{1}}}});
    if (factor == 1) return batch;
    const std::string name = unused(fmt::format("batch_times_{}", factor));
    if (names_.insert(name).second) sizes_.push_back({"Mul", {batch, constant(factor)}, {name}});
    return name;
  }

  // (Outputs of other ranks come from other ops, or are reshaped by other numbers.)
  void name_sizes(io::OnnxValue& value, const io::OnnxValue& other) const {
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const int64_t times =
          multiple(std::get<int64_t>(value.shape[d]), std::get<int64_t>(other.shape[d]));
      if (times == 1)
        value.shape[d] = "batch";
      else if (times > 1)
        value.shape[d] = fmt::format("{}*batch", times);
    }
  }

  const Trace &one_, &other_;
  io::OnnxGraph graph_;
  const int64_t batch_, other_batch_;
  std::vector<io::OnnxNode> sizes_;  // nodes that compute sizes from the batch size
  StateDict added_;
  std::set<std::string> names_;
};

// The first n rows of x, repeated as often as needed.
Tensor with_rows(const Tensor& x, int64_t n) {
  return index_select(x, 0, remainder(arange(0, double(n), 1, i64, x.device()), double(x.size(0))));
}

}  // namespace

io::OnnxGraph merge(const Trace& one, const Trace& other, int64_t batch, int64_t other_batch) {
  return Merger(one, other, batch, other_batch).merged();
}

}  // namespace mixtape::train::onnx

namespace mixtape::train {

void detail::save_onnx(const std::string& path, nn::ModuleBase& net, const nn::Tensors& inputs,
                       const OnnxRun& run, const OnnxOptions& o) {
  const nn::Evaluating mode(net);
  const NoGrad off;
  const auto of_rows = [&](int64_t rows) {
    nn::Tensors sized;
    for (const Tensor& x : inputs) {
      const bool batched = rows > 0 && x.rank() > 0 && x.size(0) == inputs[0].size(0);
      sized.push_back(batched ? onnx::with_rows(x, rows) : x.clone());  // never shared
    }
    return sized;
  };
  const auto traced = [&](int64_t rows) { return onnx::trace(net, of_rows(rows), run, o); };
  if (!o.dynamic_batch) {
    io::save_onnx(path, traced(0).graph, o.external_data);
    return;
  }
  check(inputs[0].rank() > 0 && inputs[0].size(0) > 0,
        "the first input has shape {}, without a batch: set dynamic_batch = false",
        inputs[0].shape());
  // (At a batch of 1, layouts and broadcasts are special.)
  const int64_t batch = std::max<int64_t>(inputs[0].size(0), 2);
  if (thread_state.policy) run(of_rows(batch));  // so that both traces find all weights cast
  io::save_onnx(path, onnx::merge(traced(batch), traced(batch + 1), batch, batch + 1),
                o.external_data);
}

}  // namespace mixtape::train
