#include "autograd/functional.h"

#include "autograd/ops.h"
#include "autograd/ops/rows.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape {
using namespace internal;
namespace {

using Tensors = std::vector<Tensor>;
using One = std::function<Tensor(const Tensor&)>;
using Several = std::function<Tensors(const Tensors&)>;
using Scalar = std::function<Tensor(const Tensors&)>;

// New leaves in place of the inputs, since one input may be computed from another.
Tensors independent(const Tensors& inputs, bool create_graph) {
  Tensors x;
  for (const Tensor& t : inputs) {
    check(bool(t), "input {} is undefined", x.size());
    x.push_back(create_graph && t.requires_grad() ? clone(t) : t.detach().set_requires_grad());
  }
  return x;
}

void check_shapes(const Tensors& v, const Tensors& like, const char* what) {
  check(v.size() == like.size(), "{} {}s need as many vectors, got {}", like.size(), what,
        v.size());
  for (size_t i = 0; i < v.size(); ++i)
    check(v[i] && v[i].shape() == like[i].shape(), "vector {} has shape {}, the {} has {}", i,
          v[i] ? v[i].shape().to_string() : "none", what, like[i].shape());
}

// grad() with zeros for unused inputs. The options' gradients are those of all outputs.
Tensors gradients(const Tensors& y, const Tensors& x, const GradOptions& options) {
  Tensors outputs;
  GradOptions o = options;
  o.allow_unused = true;
  o.gradients.clear();
  for (size_t i = 0; i < y.size(); ++i) {
    if (!y[i].requires_grad()) continue;
    outputs.push_back(y[i]);
    if (!options.gradients.empty()) o.gradients.push_back(options.gradients[i]);
  }
  Tensors dx = outputs.empty() ? Tensors(x.size()) : grad(outputs, x, o);
  for (size_t i = 0; i < x.size(); ++i)
    if (!dx[i]) dx[i] = zeros_like(x[i]);
  return dx;
}

Tensors finished(Tensors y, bool create_graph) {
  for (Tensor& t : y)
    if (!create_graph) t = t.detach();
  return y;
}

// dy/dx[j] for each j, a row for each element of y.
Tensors jacobian_of(const Tensor& y, const Tensors& x, bool create_graph) {
  const Tensor flat = reshape(y, {y.numel()});
  std::vector<Tensors> rows(x.size());
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const Tensors dx =
        gradients({select(flat, 0, i)}, x, {.retain_graph = true, .create_graph = create_graph});
    for (size_t j = 0; j < x.size(); ++j) rows[j].push_back(reshape(dx[j], {x[j].numel()}));
  }
  Tensors result;
  for (size_t j = 0; j < x.size(); ++j) {
    check(y.rank() + x[j].rank() <= max_rank, "{} by {} are more than {} dimensions", y.shape(),
          x[j].shape(), max_rank);
    const Shape shape = joined(y.shape(), x[j].shape());
    result.push_back(rows[j].empty() ? zeros(shape, x[j].dtype(), x[j].device())
                                     : reshape(stack(rows[j]), shape));
  }
  return result;
}

std::vector<Tensors> jacobian_at(const Several& f, const Tensors& inputs, bool create_graph) {
  const EnableGrad on;
  const Tensors x = independent(inputs, create_graph);
  std::vector<Tensors> result;
  for (const Tensor& y : f(x)) result.push_back(jacobian_of(y, x, create_graph));
  return result;
}

Tensors gradient(const Tensor& y, const Tensors& x) {
  check(y.numel() == 1, "the function gives shape {}, not a single element", y.shape());
  return gradients({y}, x, {.create_graph = true});
}

Several several(const One& f) {
  return [&f](const Tensors& x) { return Tensors{f(x[0])}; };
}
Scalar scalar(const One& f) {
  return [&f](const Tensors& x) { return f(x[0]); };
}

}  // namespace

WithProduct<Tensors, Tensors> vjp(const Several& f, const Tensors& inputs, const Tensors& v,
                                  const DerivativeOptions& options) {
  const Scope scope("vjp");
  const EnableGrad on;
  const Tensors x = independent(inputs, options.create_graph);
  const Tensors y = f(x);
  if (!v.empty()) check_shapes(v, y, "result");
  const Tensors dx = gradients(y, x, {.gradients = v, .create_graph = options.create_graph});
  return {finished(y, options.create_graph), finished(dx, options.create_graph)};
}

WithProduct<Tensors, Tensors> jvp(const Several& f, const Tensors& inputs, const Tensors& v,
                                  const DerivativeOptions& options) {
  const Scope scope("jvp");
  check_shapes(v, inputs, "input");
  const EnableGrad on;
  const Tensors x = independent(inputs, options.create_graph);
  const Tensors y = f(x);
  Tensors u, wanted;
  for (const Tensor& t : y) {
    u.push_back(zeros_like(t));
    if (t.requires_grad()) wanted.push_back(u.back().set_requires_grad());
  }
  const Tensors uJ = gradients(y, x, {.gradients = u, .create_graph = true});
  const Tensors found =
      gradients(uJ, wanted, {.gradients = v, .create_graph = options.create_graph});
  for (size_t i = 0, next = 0; i < u.size(); ++i)
    if (u[i].requires_grad()) u[i] = found[next++];
  return {finished(y, options.create_graph), finished(u, options.create_graph)};
}

std::vector<Tensors> jacobian(const Several& f, const Tensors& inputs,
                              const DerivativeOptions& options) {
  const Scope scope("jacobian");
  return jacobian_at(f, inputs, options.create_graph);
}

std::vector<Tensors> hessian(const Scalar& f, const Tensors& inputs,
                             const DerivativeOptions& options) {
  const Scope scope("hessian");
  return jacobian_at([&](const Tensors& x) { return gradient(f(x), x); }, inputs,
                     options.create_graph);
}

WithProduct<Tensor, Tensors> hvp(const Scalar& f, const Tensors& inputs, const Tensors& v,
                                 const DerivativeOptions& options) {
  const Scope scope("hvp");
  check_shapes(v, inputs, "input");
  const EnableGrad on;
  const Tensors x = independent(inputs, options.create_graph);
  const Tensor y = f(x);
  const Tensors product =
      gradients(gradient(y, x), x, {.gradients = v, .create_graph = options.create_graph});
  return {finished({y}, options.create_graph)[0], finished(product, options.create_graph)};
}

WithProduct<Tensor, Tensor> vjp(const One& f, const Tensor& x, const Tensor& v,
                                const DerivativeOptions& options) {
  const auto [y, dx] = vjp(several(f), {x}, v ? Tensors{v} : Tensors{}, options);
  return {y[0], dx[0]};
}
WithProduct<Tensor, Tensor> jvp(const One& f, const Tensor& x, const Tensor& v,
                                const DerivativeOptions& options) {
  const auto [y, dy] = jvp(several(f), {x}, {v}, options);
  return {y[0], dy[0]};
}
Tensor jacobian(const One& f, const Tensor& x, const DerivativeOptions& options) {
  return jacobian(several(f), {x}, options)[0][0];
}
Tensor hessian(const One& f, const Tensor& x, const DerivativeOptions& options) {
  return hessian(scalar(f), {x}, options)[0][0];
}
WithProduct<Tensor, Tensor> hvp(const One& f, const Tensor& x, const Tensor& v,
                                const DerivativeOptions& options) {
  const auto [y, product] = hvp(scalar(f), {x}, {v}, options);
  return {y, product[0]};
}

Tensor parameters_to_vector(const Tensors& params) {
  const Scope scope("parameters_to_vector");
  Tensors rows;
  for (const Tensor& p : params) rows.push_back(flatten(p));
  return cat(rows);
}
void vector_to_parameters(const Tensor& vector, const Tensors& params) {
  const Scope scope("vector_to_parameters");
  int64_t n = 0;
  for (const Tensor& p : params) n += p.numel();
  check(vector.shape() == Shape{n}, "the parameters need a vector of shape [{}], got {}", n,
        vector.shape());
  const NoGrad off;
  for (int64_t at = 0; const Tensor& p : params) {
    copy_(p, view(narrow(vector, 0, at, p.numel()), p.shape()));
    at += p.numel();
  }
}

}  // namespace mixtape
