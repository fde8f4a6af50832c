// Tensor's methods for functions of ops.h: x.exp() is exp(x).

#include "autograd/ops.h"

namespace mixtape {

#define MIXTAPE_METHOD(NAME) \
  Tensor Tensor::NAME() const { return mixtape::NAME(*this); }
MIXTAPE_METHOD(squeeze)
MIXTAPE_METHOD(neg)
MIXTAPE_METHOD(abs)
MIXTAPE_METHOD(square)
MIXTAPE_METHOD(sqrt)
MIXTAPE_METHOD(rsqrt)
MIXTAPE_METHOD(exp)
MIXTAPE_METHOD(log)
MIXTAPE_METHOD(sin)
MIXTAPE_METHOD(cos)
MIXTAPE_METHOD(relu)
MIXTAPE_METHOD(sigmoid)
MIXTAPE_METHOD(tanh)
MIXTAPE_METHOD(sum)
MIXTAPE_METHOD(mean)
MIXTAPE_METHOD(max)
MIXTAPE_METHOD(min)
MIXTAPE_METHOD(argmax)
#undef MIXTAPE_METHOD

Tensor Tensor::reshape(const Shape& shape) const { return mixtape::reshape(*this, shape); }
Tensor Tensor::view(const Shape& shape) const { return mixtape::view(*this, shape); }
Tensor Tensor::flatten(int from, int to) const { return mixtape::flatten(*this, from, to); }
Tensor Tensor::t() const { return mixtape::transpose(*this); }
Tensor Tensor::transpose(int a, int b) const { return mixtape::transpose(*this, a, b); }
Tensor Tensor::select(int dim, int64_t index) const { return mixtape::select(*this, dim, index); }
Tensor Tensor::squeeze(int dim) const { return mixtape::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int dim) const { return mixtape::unsqueeze(*this, dim); }
Tensor Tensor::expand(const Shape& shape) const { return mixtape::expand(*this, shape); }
Tensor Tensor::softmax(int dim) const { return mixtape::softmax(*this, dim); }
Tensor Tensor::sum(int dim, bool keepdim) const { return mixtape::sum(*this, {dim}, keepdim); }
Tensor Tensor::mean(int dim, bool keepdim) const { return mixtape::mean(*this, {dim}, keepdim); }
Tensor Tensor::argmax(int dim) const { return mixtape::argmax(*this, dim); }
Tensor Tensor::matmul(const Tensor& other) const { return mixtape::matmul(*this, other); }
Tensor Tensor::mm(const Tensor& other) const { return mixtape::mm(*this, other); }

}  // namespace mixtape
