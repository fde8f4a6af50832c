// Reductions (which, like ours, keep dimensions with size 1), running sums, and order.

#include <cmath>

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/check.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
namespace {

Name reduce(const OpCall& c, const char* op, const Name& x, uint32_t dims) {
  Sizes axes;
  for (int d = 0; d < c.result().rank(); ++d)
    if (dims >> d & 1) axes.push_back(d);
  if (axes.empty()) return x;
  return c.g.node(op, {x, c.g.numbers(axes)}, {{"keepdims", int64_t{1}}});
}

Name reduced(const OpCall& c) {
  return reduce(c, c.to, c.in(0, c.dtype()), c.argument<ops::ReduceOptions>().dims);
}
Name any_or_all(const OpCall& c) {  // as maximum or minimum of 0 and 1
  const Name truth = c.g.cast(c.in(0, boolean), i32);
  return reduce(c, c.to, truth, c.argument<ops::ReduceOptions>().dims);
}

Name norm_of(const OpCall& c, const Name& x, const ops::NormOptions& o) {
  const DType wide = c.g.dtype(x);
  if (o.p == 1 || o.p == 2) return reduce(c, o.p == 1 ? "ReduceL1" : "ReduceL2", x, o.dims);
  const Name size = c.g.node("Abs", {x});
  if (std::isinf(o.p)) return reduce(c, o.p > 0 ? "ReduceMax" : "ReduceMin", size, o.dims);
  const auto power = [&](const Name& of, double p) {
    return c.g.node("Pow", {of, c.g.number(p, wide)});
  };
  check(o.p != 0, "the norm of order 0 has no counterpart in ONNX");
  return power(reduce(c, "ReduceSum", power(size, o.p), o.dims), 1 / o.p);
}
Name norm(const OpCall& c) {
  return norm_of(c, c.in(0, accumulate_dtype(c.dtype())), c.argument<ops::NormOptions>());
}
Name at_least(const OpCall& c, const Name& length, double eps) {
  return c.g.node("Max", {length, c.g.number(eps, c.g.dtype(length))});
}
Name normalize(const OpCall& c) {
  const auto& o = c.argument<ops::NormalizeAttributes>();
  const Name x = c.in(0, accumulate_dtype(c.dtype()));
  return c.g.node("Div", {x, at_least(c, norm_of(c, x, o.norm), o.eps)});
}
Name cosine_similarity(const OpCall& c) {  // of rows [rows, n] -> [rows]
  const auto sum = [&](const char* op, const Name& x) {
    return c.g.node(op, {x, c.g.numbers({1})}, {{"keepdims", int64_t{0}}});
  };
  const DType wide = accumulate_dtype(c.dtype());
  const std::vector<Name> sides{c.in(0, wide), c.in(1, wide)};
  Name y = sum("ReduceSum", c.g.node("Mul", sides));
  for (const Name& x : sides) {
    const Name length = at_least(c, sum("ReduceL2", x), c.argument<ops::CosineOptions>().eps);
    y = c.g.node("Div", {y, length});
  }
  return y;
}

Name position(const OpCall& c) {
  const Attributes attributes{{"axis", int64_t(c.argument<int>())}, {"keepdims", int64_t{1}}};
  return c.g.node(c.to, {c.in(0)}, attributes, i64);
}

Name cumsum(const OpCall& c) {
  const Name axis = c.g.number(c.argument<int>(), i64);
  return c.g.node("CumSum", {c.in(0, c.dtype()), axis}, {{"reverse", int64_t(c.argument<bool>())}});
}

// A row for each element, behind its dimension, in which all later elements (or with `later` itself
// and those before it) are `nothing`.
Name rows_up_to(const OpCall& c, DType wide, double nothing, bool later) {
  const int dim = c.argument<int>();
  const int64_t n = c.shape(0)[dim];
  const Shape rows = internal::spliced(c.shape(0), dim, 0, {1});
  Shape mask{n, n};
  for (int d = dim + 1; d < c.shape(0).rank; ++d) mask.push_back(1);
  const Tensor all = ones({n, n}, boolean, Device::cpu());
  const Name taken = c.g.constant(reshape(later ? triu(all, 1) : tril(all), mask));
  const Name x = c.g.reshape(c.in(0, wide), c.shape(0), rows);
  return c.g.node("Where", {taken, x, c.g.number(nothing, wide)}, {}, wide);
}
// For each element the product, or logarithm of the sum, of all up to it.
Name running(const OpCall& c, const char* op, double nothing, bool later) {
  const DType wide = is_float(c.dtype()) ? accumulate_dtype(c.dtype()) : c.dtype();
  const Name row = rows_up_to(c, wide, nothing, later);
  return c.g.node(op, {row, c.g.numbers({c.argument<int>() + 1})}, {{"keepdims", int64_t{0}}});
}
Name cumprod(const OpCall& c) { return running(c, "ReduceProd", 1, c.argument<bool>()); }
Name logcumsumexp(const OpCall& c) { return running(c, "ReduceLogSumExp", -INFINITY, false); }

// For each element the position of the last extremum up to it. (The position is at most its own:
// a row of infinities ends in others that are not elements.)
Name running_position(const OpCall& c) {
  const DType dtype = c.tensor(0).dtype();
  const bool largest = c.op() == "cummax";
  const Name row = rows_up_to(c, is_float(dtype) ? accumulate_dtype(dtype) : f64,
                              largest ? -INFINITY : INFINITY, false);
  const int dim = c.argument<int>();
  const Attributes attributes{
      {"axis", int64_t(dim + 1)}, {"keepdims", int64_t{0}}, {"select_last_index", int64_t{1}}};
  Shape along{c.shape(0)[dim]};
  for (int d = dim + 1; d < c.shape(0).rank; ++d) along.push_back(1);
  const Tensor own = arange(0, double(along[0]), 1, i64, Device::cpu());
  return c.g.node("Min", {c.g.node(largest ? "ArgMax" : "ArgMin", {row}, attributes, i64),
                          c.g.constant(reshape(own, along))});
}

// The middle one of n elements.
Name median(const OpCall& c) {
  const int64_t middle = (c.shape(0)[0] - 1) / 2;
  const DType dtype = !is_float(c.dtype()) ? i64 : c.dtype() == f64 ? f64 : f32;
  const Name smallest = c.g.nodes("TopK", {c.in(0, dtype), c.g.numbers({middle + 1})}, 2,
                                  {{"axis", int64_t{0}}, {"largest", int64_t{0}}})[0];
  c.g.set_dtype(smallest, dtype);
  return c.g.reshape(c.g.slice(smallest, 0, middle, middle + 1), {1}, {});
}

// The positions of the first elements in order along the last dimension; of equal ones the lowest
// comes first, as in our ops. Dtypes that not every runtime can sort are widened.
Name ordered(const OpCall& c) {
  const DType dtype = c.tensor(0).dtype();
  const Name x = c.in(0, !is_float(dtype) ? i64 : dtype == f64 ? f64 : f32);
  const Name y = c.g.nodes("TopK", {x, c.g.numbers({c.result().size(-1)})}, 2,
                           {{"axis", int64_t{-1}}, {"largest", int64_t(c.argument<bool>())}})[1];
  c.g.set_dtype(y, i64);
  return y;
}

constexpr TranslationRow rows_of_reductions[] = {
    {"all", any_or_all, "ReduceMin"},
    {"any", any_or_all, "ReduceMax"},
    {"argmax", position, "ArgMax"},
    {"argmin", position, "ArgMin"},
    {"argsort", ordered},
    {"cosine_similarity", cosine_similarity},
    {"cummax", running_position},
    {"cummin", running_position},
    {"cumprod", cumprod},
    {"cumsum", cumsum},
    {"logcumsumexp", logcumsumexp},
    {"logsumexp", reduced, "ReduceLogSumExp"},
    {"max", reduced, "ReduceMax"},
    {"mean", reduced, "ReduceMean"},
    {"median", median},
    {"min", reduced, "ReduceMin"},
    {"norm", norm},
    {"normalize", normalize},
    {"prod", reduced, "ReduceProd"},
    {"sum", reduced, "ReduceSum"},
    {"topk", ordered},
};

}  // namespace

std::span<const TranslationRow> reduction_rows() { return rows_of_reductions; }

}  // namespace mixtape::train::onnx
