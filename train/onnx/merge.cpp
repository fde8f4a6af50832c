// Joins graphs of a network for several batch sizes, which may differ only in sizes that are linear
// in the batch. Such a size becomes -1 if it is a Reshape's only unknown one; else it is computed
// from the input's shape.

#include <fmt/format.h>
#include <fmt/ranges.h>

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

// times * batch + plus.
struct LinearSize {
  int64_t times, plus;

  std::string text() const {
    const std::string multiple = times == 1 ? "batch" : fmt::format("{}*batch", times);
    if (plus == 0) return multiple;
    return fmt::format("{} {} {}", multiple, plus < 0 ? '-' : '+', std::abs(plus));
  }
};

template <class T>
using OfEach = std::array<T, std::tuple_size_v<Traces>>;

template <class F>
auto of_each(const Traces& traces, const F& f) {
  OfEach<decltype(f(traces[0].graph))> all;
  std::ranges::transform(traces, all.begin(), [&](const Trace& t) { return f(t.graph); });
  return all;
}

class Merger {
 public:
  explicit Merger(const Traces& all)
      : all_(all), graph_(all[0].graph), batches_(of_each(all, [](const io::OnnxGraph& g) {
          return std::get<int64_t>(g.inputs[0].shape[0]);
        })) {}

  io::OnnxGraph merged() {
    for (size_t i = 1; i < all_.size(); ++i) compare_nodes(i);
    StateDict kept;
    for (size_t i = 0; i < graph_.initializers.size(); ++i) {
      const std::string& name = graph_.initializers[i].first;
      const auto t =
          of_each(all_, [i](const io::OnnxGraph& g) { return g.initializers[i].second; });
      if (std::ranges::all_of(t, [&](const Tensor& other) { return are_equal(t[0], other); }))
        kept.emplace_back(name, t[0]);
      else
        generalise(name, t, kept);
    }
    kept.insert(kept.end(), added_.begin(), added_.end());
    graph_.initializers = std::move(kept);
    graph_.nodes.insert(graph_.nodes.begin(), sizes_.begin(), sizes_.end());
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      name_sizes(graph_.inputs[i], [i](const io::OnnxGraph& g) { return g.inputs[i].shape; });
    for (size_t i = 0; i < graph_.outputs.size(); ++i)
      name_sizes(graph_.outputs[i], [i](const io::OnnxGraph& g) { return g.outputs[i].shape; });
    return std::move(graph_);
  }

 private:
  void compare_nodes(size_t other) const {
    const io::OnnxGraph &one = all_[0].graph, &two = all_[other].graph;
    const auto &a = one.nodes, &b = two.nodes;
    const size_t n = std::min(a.size(), b.size());
    for (size_t i = 0; i < n; ++i) {
      const bool same = a[i].op == b[i].op && a[i].inputs == b[i].inputs &&
                        a[i].outputs == b[i].outputs && a[i].attributes == b[i].attributes;
      check(same, "batches of {} and {} run different ops: {} for {} and {} for {}", batches_[0],
            batches_[other], a[i].op, a[i].outputs[0], b[i].op, b[i].outputs[0]);
    }
    check(a.size() == b.size() && one.initializers.size() == two.initializers.size(),
          "batches of {} and {} run {} and {} ops", batches_[0], batches_[other], a.size(),
          b.size());
  }

  LinearSize linear(const OfEach<int64_t>& sizes) const {
    const int64_t times = (sizes[1] - sizes[0]) / (batches_[1] - batches_[0]),
                  plus = sizes[0] - times * batches_[0];
    for (size_t i = 0; i < sizes.size(); ++i)
      check(sizes[i] == times * batches_[i] + plus,
            "with batches of {} a size is {}, which is not linear in the batch",
            fmt::join(batches_, ", "), fmt::join(sizes, ", "));
    return {times, plus};
  }

  void generalise(const std::string& name, const OfEach<Tensor>& t, StateDict& kept) {
    const auto all = [&](auto holds) { return std::ranges::all_of(t, holds); };
    if (all([&](const Tensor& x) { return x.rank() == t[0].rank() && is_filled(x, t[0]); }))
      return fill(name, t);
    const bool has_sizes = all_[0].number_lists.contains(name) && all([&](const Tensor& x) {
                             return x.shape() == t[0].shape() && x.dtype() == i64;
                           });
    check(has_sizes,
          "{} of shape {} is not constant: it depends on the inputs in other ways than by ops, "
          "such as item() or arange(x.size(0))",
          name, t[0].shape());
    std::vector<LinearSize> sizes;
    for (int64_t i = 0; i < t[0].numel(); ++i)
      sizes.push_back(
          linear({t[0].data<int64_t>()[i], t[1].data<int64_t>()[i], t[2].data<int64_t>()[i]}));
    if (t[0].rank() == 0)
      sizes_.push_back({"Squeeze", {value_of(sizes[0])}, {name}});
    else if (std::ranges::count(sizes, 0, &LinearSize::times) == t[0].numel() - 1 &&
             only_shapes(name) && std::ranges::none_of(sizes, is_0))
      kept.emplace_back(name, with_unknown(sizes));
    else
      join(name, sizes);
  }
  void join(const std::string& name, const std::vector<LinearSize>& sizes) {
    std::vector<std::string> parts;
    for (const LinearSize& s : sizes) parts.push_back(at_least_0(s));
    sizes_.push_back({"Concat", parts, {name}, {{"axis", int64_t{0}}}});
  }
  // Expands the one number of a tensor, such as zeros({x.size(0), 3}).
  void fill(const std::string& name, const OfEach<Tensor>& t) {
    std::vector<LinearSize> sizes;
    for (int d = 0; d < t[0].rank(); ++d)
      sizes.push_back(linear({t[0].size(d), t[1].size(d), t[2].size(d)}));
    const std::string number = unused(name + "_number"), shape = unused(name + "_shape");
    added_.emplace_back(number, first_number(t[0]));
    join(shape, sizes);
    sizes_.push_back({"Expand", {number, shape}, {name}});
  }
  // True if the numbers are read only as shapes by Reshapes.
  bool only_shapes(const std::string& name) const {
    for (const io::OnnxNode& node : graph_.nodes)
      if (node.op != "Reshape" && std::ranges::count(node.inputs, name) > 0) return false;
    return true;
  }

  static bool is_0(const LinearSize& s) { return s.times == 0 && s.plus == 0; }
  static Tensor numbers(const std::vector<int64_t>& values) {
    const Tensor t({int64_t(values.size())}, i64, Device::cpu());
    std::ranges::copy(values, t.data<int64_t>());
    return t;
  }
  static Tensor with_unknown(const std::vector<LinearSize>& sizes) {
    std::vector<int64_t> shape;
    for (const LinearSize& s : sizes) shape.push_back(s.times != 0 ? -1 : s.plus);
    return numbers(shape);
  }
  std::string unused(std::string name) const {
    while (all_[0].taken.contains(name)) name += '_';
    return name;
  }
  std::string constant(int64_t value) {
    const std::string name = unused(fmt::format("size_{}", value));
    if (names_.insert(name).second) added_.emplace_back(name, numbers({value}));
    return name;
  }
  std::string computed(const std::string& wanted, io::OnnxNode node) {
    const std::string name = unused(wanted);
    node.outputs = {name};
    if (names_.insert(name).second) sizes_.push_back(std::move(node));
    return name;
  }
  std::string computed(const char* op, const std::string& a, const char* how, int64_t b) {
    return computed(fmt::format("{}_{}_{}", a, how, b), {op, {a, constant(b)}, {}});
  }
  // A number [1].
  std::string value_of(const LinearSize& s) {
    if (s.times == 0) return constant(s.plus);
    std::string name = computed(
        "batch",
        {"Shape", {graph_.inputs[0].name}, {}, {{"start", int64_t{0}}, {"end", int64_t{1}}}});
    if (s.times != 1) name = computed("Mul", name, "times", s.times);
    return s.plus == 0 ? name : computed("Add", name, "plus", s.plus);
  }
  // Slices of the last rows begin with the first one, if there are fewer.
  std::string at_least_0(const LinearSize& s) {
    const std::string name = value_of(s);
    return s.times < 0 || s.plus < 0 ? computed("Max", name, "or", 0) : name;
  }

  // (Outputs of other ranks come from other ops, or are reshaped by other numbers.)
  template <class F>
  void name_sizes(io::OnnxValue& value, const F& shape_in) const {
    const auto shapes = of_each(all_, shape_in);
    for (size_t d = 0; d < value.shape.size(); ++d) {
      OfEach<int64_t> sizes;
      for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = std::get<int64_t>(shapes[i][d]);
      if (const LinearSize s = linear(sizes); s.times != 0) value.shape[d] = s.text();
    }
  }

  const Traces& all_;
  io::OnnxGraph graph_;
  const OfEach<int64_t> batches_;
  std::vector<io::OnnxNode> sizes_;  // nodes that compute sizes from the batch size
  StateDict added_;
  std::set<std::string> names_;
};

// The first n rows of x, repeated as often as needed.
Tensor with_rows(const Tensor& x, int64_t n) {
  return index_select(x, 0, remainder(arange(0, double(n), 1, i64, x.device()), double(x.size(0))));
}

// Three batch sizes from `least` on, none of them a size that something else has: two dimensions
// that are equal by chance are not told apart. One is odd and one even, and the last is so large
// that a half or a quarter of the batch has grown as well.
OfEach<int64_t> batches_from(int64_t least, nn::ModuleBase& net, const nn::Tensors& inputs) {
  std::set<int64_t> others;
  const auto add = [&](const Tensor& t, int from) {
    for (int d = from; d < t.rank(); ++d) others.insert(t.size(d));
  };
  for (const Tensor& x : inputs) add(x, x.rank() > 0 && x.size(0) == inputs[0].size(0) ? 1 : 0);
  for (const StateDict& all : {net.state_dict(), net.named_buffers()})
    for (const auto& [name, t] : all) add(t, 0);
  const auto unlike = [&](int64_t n, int64_t step = 1) {
    while (others.contains(n)) n += step;
    return n;
  };
  const int64_t first = unlike(least), second = unlike(first + 1, 2);
  return {first, second, unlike(first + second)};
}

}  // namespace

io::OnnxGraph merge(const Traces& traces) { return Merger(traces).merged(); }

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
  const auto batches = onnx::batches_from(std::max<int64_t>(inputs[0].size(0), 2), net, inputs);
  if (thread_state.policy) run(of_rows(batches[0]));  // so that all traces find all weights cast
  onnx::Traces traces;
  std::ranges::transform(batches, traces.begin(), traced);
  io::save_onnx(path, onnx::merge(traces), o.external_data);
}

}  // namespace mixtape::train
