#pragma once
// Derivatives of functions: products with the Jacobian and the Hessian, and the matrices
// themselves. A function takes one tensor or a vector of them. Its inputs are new leaves, so no
// grad() changes; it is called once, and recorded even inside a NoGrad. Parameters as one vector.

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct DerivativeOptions {
  bool create_graph = false;  // results have a history that leads to the inputs
};

// A function's result, and a product with its derivative.
template <class Y, class P>
struct WithProduct {
  Y value;
  P product;
};

// v J, the sum of v[i] dy[i]/dx. v has the shapes of f's results (by default ones, if they have one
// element), the product those of the inputs. Takes one backward pass.
WithProduct<Tensor, Tensor> vjp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v = {}, const DerivativeOptions& options = {});
WithProduct<std::vector<Tensor>, std::vector<Tensor>> vjp(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const std::vector<Tensor>& v = {},
    const DerivativeOptions& options = {});

// J v, the derivative of f along v. v has the shapes of the inputs, the product those of f's
// results. Takes two backward passes: u J is linear in u, and its derivative along v is J v. The
// backward rules of f's ops must therefore be differentiable.
WithProduct<Tensor, Tensor> jvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v, const DerivativeOptions& options = {});
WithProduct<std::vector<Tensor>, std::vector<Tensor>> jvp(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const std::vector<Tensor>& v,
    const DerivativeOptions& options = {});

// J[i][j] is dy[i]/dx[j], with the dimensions of y[i], then those of x[j], at most max_rank in all.
// Takes one backward pass per element of y.
Tensor jacobian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                const DerivativeOptions& options = {});
std::vector<std::vector<Tensor>> jacobian(
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
    const std::vector<Tensor>& inputs, const DerivativeOptions& options = {});

// H[i][j] holds the second derivatives of f, whose result has one element, with the dimensions of
// x[i], then those of x[j]. Takes one backward pass per element of the inputs.
Tensor hessian(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
               const DerivativeOptions& options = {});
std::vector<std::vector<Tensor>> hessian(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                                         const std::vector<Tensor>& inputs,
                                         const DerivativeOptions& options = {});

// H v, without computing H. v and the product have the shapes of the inputs. Takes two backward
// passes.
WithProduct<Tensor, Tensor> hvp(const std::function<Tensor(const Tensor&)>& f, const Tensor& x,
                                const Tensor& v, const DerivativeOptions& options = {});
WithProduct<Tensor, std::vector<Tensor>> hvp(
    const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs,
    const std::vector<Tensor>& v, const DerivativeOptions& options = {});

// The elements of all parameters in a row, [n], with their history.
Tensor parameters_to_vector(const std::vector<Tensor>& params);
// Writes such a vector to the parameters, unrecorded. Throws Error unless its shape is [n].
void vector_to_parameters(const Tensor& vector, const std::vector<Tensor>& params);

}  // namespace mixtape
