// Batching rules: how vmap() runs an op once for examples that lie along a new dimension 0.
#include <algorithm>
#include <string_view>

#include "autograd/ops/attributes.h"
#include "autograd/vmap_replay.h"
#include "kernels/common/binary.h"
#include "kernels/common/unary.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace detail {
namespace {

// --- inputs ---

// The input as [n, shape], even if examples share it. An absent input stays absent.
Tensor for_all(const MappedCall& c, size_t input) {
  const auto& [t, by_example] = c.inputs[input];
  return !t || by_example ? t : expand(t, of_all(t.shape(), c.n));
}
std::vector<Tensor> all_for_all(const MappedCall& c) {
  std::vector<Tensor> all;
  for (size_t i = 0; i < c.inputs.size(); ++i) all.push_back(for_all(c, i));
  return all;
}
// A tensor with dimensions of size 1 added, so that each example broadcasts to `rank` dimensions.
Tensor aligned(const Mapped& x, int rank) {
  if (!x.by_example || x.t.rank() > rank) return x.t;
  Shape shape{x.t.size(0)};
  for (int d = x.t.rank(); d <= rank; ++d) shape.push_back(1);
  for (int d = 1; d < x.t.rank(); ++d) shape.push_back(x.t.size(d));
  return reshape(x.t, shape);
}

// --- attributes ---

// A call's attributes, with another value for the first one of type A.
template <class A>
std::string with_attribute(const Call& call, const A& value) {
  const Repetition& own = *call.repetition;
  std::vector<const void*> arguments;
  bool found = false;
  for (size_t i = 0; own.how.arguments[i]; ++i) {
    const bool is_it = !found && *own.how.arguments[i] == typeid(A);
    found = found || is_it;
    arguments.push_back(is_it ? &value : own.arguments[i]);
  }
  return own.how.attributes(arguments.data());
}

// --- rules, made while a call's attributes are alive ---

BatchingRule elementwise(const Call&, const Tensor& y, int64_t) {
  return [rank = y.rank()](const MappedCall& c) {
    std::vector<Tensor> inputs;
    for (const Mapped& x : c.inputs) inputs.push_back(aligned(x, rank));
    return c.run(inputs);
  };
}
// For ops that treat all dimensions before the last one or two alike.
BatchingRule last_dims(const Call&, const Tensor&, int64_t) {
  return [](const MappedCall& c) { return c.run(all_for_all(c)); };
}

// The same dimensions, each of which now comes one later.
template <class Options>
BatchingRule over_dims(const Call& call, const Tensor&, int64_t) {
  Options o = call.repetition->argument<Options>();
  o.dims <<= 1;
  return
      [with = with_attribute(call, o)](const MappedCall& c) { return c.run(all_for_all(c), with); };
}
BatchingRule along_dim(const Call& call, const Tensor&, int64_t) {
  return [with = with_attribute(call, call.repetition->argument<int>() + 1)](const MappedCall& c) {
    return c.run(all_for_all(c), with);
  };
}
BatchingRule flipped(const Call& call, const Tensor&, int64_t) {
  return [with = with_attribute(call, call.repetition->argument<uint32_t>() << 1)](
             const MappedCall& c) { return c.run(all_for_all(c), with); };
}

BatchingRule reshaped(const Call&, const Tensor&, int64_t) {
  return [](const MappedCall& c) { return reshape(c.inputs[0].t, c.shape); };
}
BatchingRule expanded(const Call&, const Tensor& y, int64_t) {
  return [rank = y.rank()](const MappedCall& c) {
    return expand(aligned(c.inputs[0], rank), c.shape);
  };
}
BatchingRule permuted(const Call& call, const Tensor& y, int64_t) {
  Dims order{0};
  for (const int d : call.repetition->argument<Dims>()) order.push_back(wrap_dim(d, y.rank()) + 1);
  return [order](const MappedCall& c) { return permute(c.inputs[0].t, order); };
}
BatchingRule sliced(const Call& call, const Tensor&, int64_t) {
  BasicIndex index = call.repetition->argument<BasicIndex>();
  for (BasicIndex::Step& s : index.steps)
    if (s.dim >= 0) ++s.dim;
  return [index](const MappedCall& c) { return basic_index(c.inputs[0].t, index); };
}

BatchingRule product(const Call& call, const Tensor&, int64_t) {
  return [options = call.repetition->argument<MatmulOptions>()](const MappedCall& c) {
    return matmul(c.inputs[0].t, c.inputs[1].t, options);
  };
}
// Sums in f64, as the op does; the result has the dtype that the policy chose.
BatchingRule dot_product(const Call&, const Tensor&, int64_t) {
  return [](const MappedCall& c) {
    const NoPolicy as_called;
    return cast(sum(cast(c.inputs[0].t, f64) * cast(c.inputs[1].t, f64), {-1}), c.dtype);
  };
}

// Joins the rows of all examples along dimension 0 of the inputs whose bits are set. The others,
// parameters, must be shared.
Tensor run_rows(const MappedCall& c, uint32_t which, const std::string& attributes) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const bool has_rows = which >> i & 1;
    if (!has_rows && c.inputs[i].by_example) return {};
    const Tensor t = has_rows ? for_all(c, i) : c.inputs[i].t;
    inputs.push_back(has_rows && t ? flatten(t, 0, 1) : t);
  }
  return reshape(c.run(inputs, attributes), c.shape);
}
template <uint32_t which>
BatchingRule rows(const Call&, const Tensor&, int64_t) {
  return [](const MappedCall& c) { return run_rows(c, which, *c.attributes); };
}
BatchingRule images(const Call& call, const Tensor&, int64_t n) {
  ConvGeometry g = call.repetition->argument<ConvGeometry>();
  g.input[0] *= n;
  g.output[0] *= n;
  return
      [with = with_attribute(call, g)](const MappedCall& c) { return run_rows(c, 0b1001, with); };
}
// For norms over the last dimension whose weight and bias are shared.
BatchingRule row_norm_rule(const Call&, const Tensor&, int64_t) {
  return [](const MappedCall& c) {
    std::vector<Tensor> inputs;
    for (const Mapped& x : c.inputs) {
      if (!inputs.empty() && x.by_example) return Tensor();
      inputs.push_back(x.t);
    }
    return c.run(inputs);
  };
}

struct BatchingRow {
  std::string_view op;
  BatchingRule (*rule)(const Call&, const Tensor& y, int64_t n);
};
constexpr BatchingRow batching_rows[] = {
    {"where", elementwise},
    {"lerp", elementwise},
    {"addcmul", elementwise},
    {"addcdiv", elementwise},
    {"cast", elementwise},
    {"cast_to_integer", elementwise},
    {"clone", elementwise},
    {"masked_fill", last_dims},
    {"tril", last_dims},
    {"triu", last_dims},
    {"argsort", last_dims},
    {"topk", last_dims},
    {"sum", over_dims<ReduceOptions>},
    {"mean", over_dims<ReduceOptions>},
    {"max", over_dims<ReduceOptions>},
    {"min", over_dims<ReduceOptions>},
    {"any", over_dims<ReduceOptions>},
    {"all", over_dims<ReduceOptions>},
    {"prod", over_dims<ReduceOptions>},
    {"logsumexp", over_dims<ReduceOptions>},
    {"norm", over_dims<NormOptions>},
    {"argmax", along_dim},
    {"argmin", along_dim},
    {"cumsum", along_dim},
    {"cumprod", along_dim},
    {"logcumsumexp", along_dim},
    {"gather", along_dim},
    {"cat", along_dim},
    {"flip", flipped},
    {"reshape", reshaped},
    {"expand", expanded},
    {"permute", permuted},
    {"slice", sliced},
    {"matmul", product},
    {"dot", dot_product},
    {"softmax", rows<0b1>},
    {"log_softmax", rows<0b1>},
    {"linear", rows<0b1001>},
    {"group_norm", rows<0b1>},
    {"instance_norm", rows<0b1>},
    {"conv2d", images},
    {"layer_norm", row_norm_rule},
    {"rms_norm", row_norm_rule},
};

// The name of the op of two tensors, given that of its form with a number.
std::string_view without_scalar(std::string_view op) {
  for (const std::string_view suffix : {"_from_scalar", "_scalar"})
    if (op.ends_with(suffix)) return op.substr(0, op.size() - suffix.size());
  return op;
}
template <class... F>
constexpr bool lists(kernels::OpList<F...>, std::string_view op) {
  return ((F::info.name == op) || ...);
}

}  // namespace

BatchingRule batching_rule(const Call& call, const Tensor& result, int64_t n) {
  if (call.composed) return {};  // a Function of the program, whatever its name
  const std::string_view op = call.op.name;
  const auto row = std::ranges::find(batching_rows, op, &BatchingRow::op);
  if (row != std::end(batching_rows)) return row->rule(call, result, n);
  const bool by_element =
      lists(kernels::UnaryOps{}, op) || lists(kernels::BinaryOps{}, without_scalar(op));
  return by_element ? elementwise(call, result, n) : BatchingRule();
}

}  // namespace detail
}  // namespace mixtape
