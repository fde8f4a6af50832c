#include "train/onnx/builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "core/format.h"

namespace mixtape::train::onnx {
using namespace internal;
namespace {

// True for ops that support bf16 only from opset 22 (or 20) on.
bool lacks_bf16(const std::string& op, int opset) {
  static const std::set<std::string> since_22{
      "Acos",      "Asin",  "Atan",  "AveragePool",
      "Conv",      "Cos",   "Cosh",  "ConvTranspose",
      "Elu",       "GRU",   "LSTM",  "GlobalAveragePool",
      "HardSwish", "Mish",  "RNN",   "HardSigmoid",
      "MaxPool",   "Round", "Selu",  "InstanceNormalization",
      "Sin",       "Sinh",  "Tan",   "Softplus",
      "Softsign",  "Acosh", "Asinh", "Atanh"};
  return opset < 22 && since_22.contains(op);
}

Sizes sizes_of(const Shape& s) { return {s.begin(), s.end()}; }

}  // namespace

Name GraphBuilder::fresh(const std::string& what) {
  Name name;
  do name = fmt::format("{}{}{}_{}", path, path.empty() ? "" : "/", what, count_++);
  while (taken.contains(name));
  return name;
}

std::vector<Name> GraphBuilder::nodes(const std::string& op, std::vector<Name> inputs,
                                      size_t results, Attributes attributes) {
  const bool widens = lacks_bf16(op, opset()) && dtype(inputs[0]) == bf16;
  for (Name& x : inputs)
    if (widens && !x.empty() && dtype(x) == bf16) x = cast(x, f32);
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  const DType made = dtype(inputs[0]);
  std::vector<Name> outputs;
  for (size_t i = 0; i < results; ++i) {
    outputs.push_back(fresh(op));
    dtypes_[outputs.back()] = made;
    makers_[outputs.back()] = graph.nodes.size();
  }
  graph.nodes.push_back({op, std::move(inputs), outputs, std::move(attributes)});
  for (Name& y : outputs)
    if (widens) y = cast(y, bf16);
  return outputs;
}

Name GraphBuilder::node(const std::string& op, std::vector<Name> inputs, Attributes attributes,
                        std::optional<DType> dtype) {
  const Name y = nodes(op, std::move(inputs), 1, std::move(attributes))[0];
  if (dtype) dtypes_[y] = *dtype;
  return y;
}

Name GraphBuilder::cast(const Name& x, DType to) {
  if (x.empty() || dtype(x) == to) return x;
  if (const auto known = casts_.find({x, to}); known != casts_.end()) return known->second;
  const Name y = node("Cast", {x}, {{"to", io::onnx_type(to)}}, to);
  casts_[{x, to}] = y;
  for (auto* const origins : {&reshaped_, &expanded_})
    if (const auto from = origins->find(x); from != origins->end()) {
      const Origin origin = from->second;
      (*origins)[y] = {cast(origin.name, to), origin.shape};
    }
  return y;
}

Name GraphBuilder::reshape(const Name& x, const Shape& from, const Shape& to) {
  const Origin origin = before_reshape(x, from);
  if (origin.shape == to) return origin.name;
  Attributes attributes;
  if (to.size() == 0) attributes.emplace_back("allowzero", int64_t{1});
  const Name y = node("Reshape", {origin.name, numbers(sizes_of(to))}, std::move(attributes));
  reshaped_[y] = origin;
  return y;
}
Name GraphBuilder::expand(const Name& x, const Shape& from, const Shape& to) {
  const Name y = node("Expand", {x, numbers(sizes_of(to))});
  expanded_[y] = before_expand(x, from);
  return y;
}
Name GraphBuilder::transpose(const Name& x, const Sizes& order) {
  return node("Transpose", {x}, {{"perm", order}});
}
Name GraphBuilder::slice(const Name& x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
  std::vector<Name> inputs{x, numbers({start}), numbers({stop}), numbers({dim})};
  if (step != 1) inputs.push_back(numbers({step}));
  return node("Slice", std::move(inputs));
}

Origin GraphBuilder::before_reshape(const Name& x, const Shape& shape) const {
  const auto found = reshaped_.find(x);
  return found == reshaped_.end() ? Origin{x, shape} : found->second;
}
Origin GraphBuilder::before_expand(const Name& x, const Shape& shape) const {
  const auto found = expanded_.find(x);
  return found == expanded_.end() ? Origin{x, shape} : found->second;
}
const io::OnnxNode* GraphBuilder::made_by(const Name& x) const {
  const auto found = makers_.find(x);
  return found == makers_.end() ? nullptr : &graph.nodes[found->second];
}

Name GraphBuilder::initializer(const Name& name, const Tensor& t) {
  if (!dtypes_.contains(name)) {
    graph.initializers.emplace_back(name, t.detach());
    dtypes_[name] = t.dtype();
  }
  return name;
}
Name GraphBuilder::constant(const Tensor& t) { return initializer(fresh("Constant"), t); }
Name GraphBuilder::number(double value, DType dtype) {
  return constant(full({}, value, dtype, Device::cpu()));
}
Name GraphBuilder::numbers(const Sizes& values) {
  const Tensor t({int64_t(values.size())}, i64, Device::cpu());
  std::ranges::copy(values, t.data<int64_t>());
  const Name name = constant(t);
  number_lists.insert(name);
  return name;
}
Name GraphBuilder::position(int64_t value) {
  const Name name = number(double(value), i64);
  number_lists.insert(name);
  return name;
}

Name OpCall::in(size_t i) const {
  return has(i) ? names.name_of(tensor(i), call_.given(i)) : Name();
}

std::vector<Name> OpCall::broadcast_inputs(std::optional<DType> dtype) const {
  std::vector<Name> all, whole;
  Shape together;
  for (size_t i = 0; i < inputs(); ++i) {
    const Origin origin = g.before_expand(in(i), shape(i));
    together = i == 0 ? origin.shape : broadcast(together, origin.shape);
    all.push_back(origin.name);
    whole.push_back(in(i));
  }
  if (together != result_.shape()) all = whole;
  for (size_t i = 0; i < inputs(); ++i)
    if (dtype && is_float(tensor(i).dtype())) all[i] = g.cast(all[i], *dtype);
  return all;
}

}  // namespace mixtape::train::onnx
