// Tensors are identified by their numbers: two with the same storage, layout and dtype are one
// value, whatever their handles. All tensors that a run makes are kept until its end, so that no
// memory is used twice.

#include "train/onnx/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/running_ops.h"
#include "io/text.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
using namespace internal;
namespace {

const TranslationRow* find_row(std::string_view op) {
  static const auto* const all = [] {
    auto* const rows = new std::map<std::string_view, const TranslationRow*>;
    for (const auto& table : {elementwise_rows(), view_rows(), product_rows(), image_rows(),
                              reduction_rows(), norm_rows(), recurrent_rows()})
      for (const TranslationRow& row : table) (*rows)[row.op] = &row;
    return rows;
  }();
  const auto found = all->find(op);
  return found == all->end() ? nullptr : found->second;
}

class Tracer final : public Observer, public Names {
 public:
  explicit Tracer(int opset) : g(opset) {}

  Name name_of(const Tensor& t, const Tensor& given) override {
    const auto found = known_.find(place_of(t));
    if (found != known_.end()) {
      check(found->second.version == t.version(), "an input was written to after it was computed");
      if (found->second.source) g.initializer(found->second.name, found->second.source);
      return found->second.name;
    }
    // A cast made earlier: a 16-bit copy of a weight.
    if (!t.is_same(given) && t.dtype() != given.dtype() && t.shape() == given.shape())
      return g.cast(name_of(given, given), t.dtype());
    check(has(t), "an input is a view that no op made");
    const Name name = g.constant(t);
    known_[place_of(t)] = {name, t, t.version()};
    kept_.push_back(t);
    return name;
  }
  void bind(const Tensor& t, const Name& name) override {
    known_[place_of(t)] = {g.cast(name, t.dtype()), {}, t.version()};
    computed_.insert(t.storage().get());
    kept_.push_back(t);
  }
  bool has(const Tensor& t) const override {
    return knows(t) || !computed_.contains(t.storage().get());
  }
  bool knows(const Tensor& t) const { return known_.contains(place_of(t)); }
  void add_weight(const Name& name, const Tensor& t) {
    known_.try_emplace(place_of(t), Known{name, t, t.version()});
    g.taken.insert(name);
    kept_.push_back(t);
  }

  GraphBuilder g;

 private:
  struct Known {
    Name name;
    Tensor source;  // an initializer, which is added to the graph when an op reads it
    uint64_t version;
  };
  using Place = std::vector<int64_t>;
  static Place place_of(const Tensor& t) {
    Place place{reinterpret_cast<int64_t>(t.storage().get()), t.offset(), int64_t(t.dtype())};
    for (int d = 0; d < t.rank(); ++d) {
      place.push_back(t.size(d));
      place.push_back(t.size(d) > 1 ? t.strides()[d] : 0);
    }
    return place;
  }

  // Calls within an op's forward are part of it; a composed op is written as the ops inside.
  void before(const Call& call) override {
    if (!call.composed) running_.begin();
  }
  void after(const Call& call, const Tensor& y) override {
    const bool outermost = call.composed ? running_.none() : running_.end();
    if (!outermost || (call.composed && knows(y))) return;
    const TranslationRow* const row = find_row(call.op.name);
    check(row != nullptr, "this op has no counterpart in ONNX");
    check(call.rounded_by.empty(),
          "operands that the recipe {} rounds have no counterpart in ONNX: open the region without "
          "it",
          call.rounded_by);
    g.path = Scope::path_text();
    bind(y, row->translate(OpCall(g, *this, row->to, call, y)));
  }

  std::map<Place, Known> known_;
  std::set<const Storage*> computed_;  // storages that the run computed, which are not constants
  std::vector<Tensor> kept_;
  RunningOps running_;  // but for composed ones
};

io::OnnxValue value_of(const Name& name, const Tensor& t) {
  return {name, t.dtype(), {t.shape().begin(), t.shape().end()}};
}

// Names for inputs or outputs, which nothing else may have: those given, or so many usual ones.
std::vector<Name> take(GraphBuilder& g, std::vector<Name> names, const char* what, size_t usual) {
  if (names.empty())
    for (size_t i = 0; i < usual; ++i)
      names.push_back(usual == 1 ? what : fmt::format("{}_{}", what, i));
  for (const Name& name : names) {
    check(!name.empty() && io::is_utf8(name), "an {} needs a name in UTF-8, got {}", what,
          io::quote(name));
    check(
        g.taken.insert(name).second,
        "an {} cannot have the name {}, since a weight, an input or an output has it: give another "
        "in OnnxOptions::{}s",
        what, io::quote(name), what);
  }
  return names;
}

// Gives a value its name as an output of the graph, by a node if it has a name already.
void add_output(io::OnnxGraph& graph, const Name& from, const Name& name, const Tensor& t) {
  bool renamed = false;
  const auto taken = [&](const io::OnnxValue& v) { return v.name == from; };
  if (std::ranges::none_of(graph.outputs, taken))
    for (io::OnnxNode& node : graph.nodes)
      for (Name& y : node.outputs)
        if (y == from) {
          y = name;
          renamed = true;
        }
  if (renamed)
    for (io::OnnxNode& node : graph.nodes) std::ranges::replace(node.inputs, from, name);
  else
    graph.nodes.push_back({"Identity", {from}, {name}});
  graph.outputs.push_back(value_of(name, t));
}

// Drops nodes that no output needs, such as expansions, which ONNX's ops do themselves.
void prune(io::OnnxGraph& graph) {
  std::set<Name> read;
  for (const io::OnnxValue& y : graph.outputs) read.insert(y.name);
  std::vector<io::OnnxNode> needed;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto is_read = [&](const Name& y) { return read.contains(y); };
    if (std::ranges::none_of(node->outputs, is_read)) continue;
    read.insert(node->inputs.begin(), node->inputs.end());
    needed.push_back(std::move(*node));
  }
  graph.nodes.assign(std::make_move_iterator(needed.rbegin()),
                     std::make_move_iterator(needed.rend()));
  std::erase_if(graph.initializers, [&](const auto& t) { return !read.contains(t.first); });
}

}  // namespace

Trace trace(nn::ModuleBase& net, const nn::Tensors& inputs, const detail::OnnxRun& run,
            const OnnxOptions& o) {
  Tracer tracer(o.opset);
  io::OnnxGraph& graph = tracer.g.graph;
  graph.name = nn::type_name(typeid(net));
  for (const StateDict& all : {net.state_dict(), net.named_buffers()})
    for (const auto& [name, t] : all) tracer.add_weight(name, t);
  const std::vector<Name> in = take(tracer.g, o.inputs, "input", inputs.size());
  std::vector<Name> out = take(tracer.g, o.outputs, "output", 0);  // before nodes get names
  check(in.size() == inputs.size(), "{} inputs need as many names, got {}", inputs.size(),
        in.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    graph.inputs.push_back(value_of(in[i], inputs[i]));
    tracer.g.set_dtype(in[i], inputs[i].dtype());
    tracer.bind(inputs[i], in[i]);
  }
  nn::Tensors outputs;
  {
    const Observe watching(tracer);
    outputs = run(inputs);
  }
  std::erase_if(outputs, [](const Tensor& t) { return !t; });
  check(!outputs.empty(), "the network returns no tensors");
  if (out.empty()) out = take(tracer.g, {}, "output", outputs.size());
  check(out.size() == outputs.size(), "{} outputs need as many names, got {}", outputs.size(),
        out.size());
  std::map<Name, Name> renamed;  // results, some of which may be the same
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Name name = tracer.name_of(outputs[i], outputs[i]);
    add_output(graph, renamed.try_emplace(name, name).first->second, out[i], outputs[i]);
    renamed[name] = out[i];
  }
  prune(graph);
  return {std::move(graph), std::move(tracer.g.number_lists), std::move(tracer.g.taken)};
}

}  // namespace mixtape::train::onnx
