#pragma once
// Derivatives of functions rather than of tensors: products with the Jacobian, the Jacobian and the
// Hessian. Every form takes a function of one tensor, or one of several in a vector. The function
// sees its inputs as leaves of their own, so no grad() is touched; it is called once, and recorded
// even inside a NoGrad.

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct DerivativeOptions {
  bool create_graph = false;  // results have a history that leads to the inputs
};

// What a function gives, and the product of its derivatives with what was asked for.
template <class Y, class P>
struct WithProduct {
  Y value;
  P product;
};

// v J, the sum of v[i] dy[i]/dx: v has the shapes of f's results (left out: ones, for results of a
// single element), the product those of the inputs. One backward pass.
WithProduct<Tensor, Tensor> vjp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v = {}, const DerivativeOptions& options = {});
WithProduct<std::vector<Tensor>, std::vector<Tensor>> vjp(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const std::vector<Tensor>& v = {},
    const DerivativeOptions& options = {});

// J v, the derivative of f along v: v has the shapes of the inputs, the product those of f's
// results. Two backward passes, since u J is linear in u and its derivative along v is J v; so the
// rules of f's ops must be made of ops.
WithProduct<Tensor, Tensor> jvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v, const DerivativeOptions& options = {});
WithProduct<std::vector<Tensor>, std::vector<Tensor>> jvp(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const std::vector<Tensor>& v,
    const DerivativeOptions& options = {});

// J[i][j] holds dy[i]/dx[j]: the sizes of y[i], then those of x[j], which together may be max_rank
// dimensions. One backward pass for each element of y.
Tensor jacobian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                const DerivativeOptions& options = {});
std::vector<std::vector<Tensor>> jacobian(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const DerivativeOptions& options = {});

// H[i][j] holds the second derivatives of f, whose result has one element: the sizes of x[i], then
// those of x[j]. One backward pass for each element of the inputs.
Tensor hessian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
               const DerivativeOptions& options = {});
std::vector<std::vector<Tensor>> hessian(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                         const std::vector<Tensor>& inputs,
                                         const DerivativeOptions& options = {});

// H v, without H: v and the product have the shapes of the inputs. Two backward passes.
WithProduct<Tensor, Tensor> hvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v, const DerivativeOptions& options = {});
WithProduct<Tensor, std::vector<Tensor>> hvp(
    const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs,
    const std::vector<Tensor>& v, const DerivativeOptions& options = {});

}  // namespace mixtape
