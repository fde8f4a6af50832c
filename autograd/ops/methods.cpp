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
MIXTAPE_METHOD(zero_)
MIXTAPE_METHOD(argmax)
#undef MIXTAPE_METHOD
#define MIXTAPE_METHOD(NAME)                                                     \
  Tensor Tensor::NAME(const Tensor& y) const { return mixtape::NAME(*this, y); } \
  Tensor Tensor::NAME(double y) const { return mixtape::NAME(*this, y); }
MIXTAPE_METHOD(add_)
MIXTAPE_METHOD(sub_)
MIXTAPE_METHOD(mul_)
MIXTAPE_METHOD(div_)
#undef MIXTAPE_METHOD

Tensor Tensor::reshape(const Shape& shape) const { return mixtape::reshape(*this, shape); }
Tensor Tensor::view(const Shape& shape) const { return mixtape::view(*this, shape); }
Tensor Tensor::flatten(int from, int to) const { return mixtape::flatten(*this, from, to); }
Tensor Tensor::t() const { return mixtape::transpose(*this); }
Tensor Tensor::transpose(int a, int b) const { return mixtape::transpose(*this, a, b); }
Tensor Tensor::select(int dim, int64_t index) const { return mixtape::select(*this, dim, index); }
Tensor Tensor::squeeze(int dim) const { return mixtape::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int dim) const { return mixtape::unsqueeze(*this, dim); }
Tensor Tensor::permute(const Dims& order) const { return mixtape::permute(*this, order); }
std::vector<Tensor> Tensor::chunk(int64_t n, int dim) const {
  return mixtape::chunk(*this, n, dim);
}
Tensor Tensor::expand(const Shape& shape) const { return mixtape::expand(*this, shape); }
Tensor Tensor::softmax(int dim) const { return mixtape::softmax(*this, dim); }
Tensor Tensor::pow(double b) const { return mixtape::pow(*this, b); }
Tensor Tensor::pow(const Tensor& b) const { return mixtape::pow(*this, b); }
Tensor Tensor::clamp(std::optional<double> low, std::optional<double> high) const {
  return mixtape::clamp(*this, low, high);
}

#define MIXTAPE_REDUCTION(RESULT, NAME)                       \
  RESULT Tensor::NAME(const Dims& dims, bool keepdim) const { \
    return mixtape::NAME(*this, dims, keepdim);               \
  }
MIXTAPE_REDUCTION(Tensor, sum)
MIXTAPE_REDUCTION(Tensor, mean)
MIXTAPE_REDUCTION(Tensor, max)
MIXTAPE_REDUCTION(Tensor, min)
MIXTAPE_REDUCTION(BoolTensor, any)
MIXTAPE_REDUCTION(BoolTensor, all)
#undef MIXTAPE_REDUCTION

Tensor Tensor::var(const Dims& dims, bool keepdim, int correction) const {
  return mixtape::var(*this, dims, keepdim, correction);
}
Tensor Tensor::stddev(const Dims& dims, bool keepdim, int correction) const {
  return mixtape::stddev(*this, dims, keepdim, correction);
}
Tensor Tensor::norm(double p, const Dims& dims, bool keepdim) const {
  return mixtape::norm(*this, p, dims, keepdim);
}
Tensor Tensor::norm(std::initializer_list<int> dims, bool keepdim) const {
  return mixtape::norm(*this, dims, keepdim);
}
Tensor Tensor::cumsum(int dim) const { return mixtape::cumsum(*this, dim); }
Tensor Tensor::argmax(int dim) const { return mixtape::argmax(*this, dim); }
Tensor Tensor::matmul(const Tensor& other) const { return mixtape::matmul(*this, other); }
Tensor Tensor::mm(const Tensor& other) const { return mixtape::mm(*this, other); }
Tensor Tensor::fill_(double value) const { return mixtape::fill_(*this, value); }
Tensor Tensor::copy_(const Tensor& from) const { return mixtape::copy_(*this, from); }

}  // namespace mixtape
