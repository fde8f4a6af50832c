// Tensor's methods for functions of ops.h: x.exp() is exp(x).

#include "autograd/ops.h"

namespace mixtape {

#define MIXTAPE_METHOD(NAME) \
  auto Tensor::NAME() const -> decltype(mixtape::NAME(*this)) { return mixtape::NAME(*this); }
MIXTAPE_METHOD(neg)
MIXTAPE_METHOD(abs)
MIXTAPE_METHOD(square)
MIXTAPE_METHOD(sqrt)
MIXTAPE_METHOD(rsqrt)
MIXTAPE_METHOD(exp)
MIXTAPE_METHOD(log)
MIXTAPE_METHOD(sin)
MIXTAPE_METHOD(cos)
MIXTAPE_METHOD(log1p)
MIXTAPE_METHOD(log2)
MIXTAPE_METHOD(log10)
MIXTAPE_METHOD(exp2)
MIXTAPE_METHOD(expm1)
MIXTAPE_METHOD(tan)
MIXTAPE_METHOD(logical_not)
MIXTAPE_METHOD(erf)
MIXTAPE_METHOD(reciprocal)
MIXTAPE_METHOD(sign)
MIXTAPE_METHOD(floor)
MIXTAPE_METHOD(ceil)
MIXTAPE_METHOD(round)
MIXTAPE_METHOD(trunc)
MIXTAPE_METHOD(relu)
MIXTAPE_METHOD(sigmoid)
MIXTAPE_METHOD(tanh)
MIXTAPE_METHOD(zero_)
MIXTAPE_METHOD(argmax)
MIXTAPE_METHOD(argmin)
MIXTAPE_METHOD(nonzero)
MIXTAPE_METHOD(isnan)
MIXTAPE_METHOD(isinf)
MIXTAPE_METHOD(isfinite)
#undef MIXTAPE_METHOD

Tensor Tensor::reshape(const Shape& shape) const { return mixtape::reshape(*this, shape); }
Tensor Tensor::view(const Shape& shape) const { return mixtape::view(*this, shape); }
Tensor Tensor::flatten(int from, int to) const { return mixtape::flatten(*this, from, to); }
Tensor Tensor::t() const { return rank() < 2 ? *this : mixtape::transpose(*this); }
Tensor Tensor::transpose(int a, int b) const { return mixtape::transpose(*this, a, b); }
Tensor Tensor::select(int dim, int64_t index) const { return mixtape::select(*this, dim, index); }
Tensor Tensor::squeeze(const Dims& dims) const { return mixtape::squeeze(*this, dims); }
Tensor Tensor::unsqueeze(int dim) const { return mixtape::unsqueeze(*this, dim); }
Tensor Tensor::permute(const Dims& order) const { return mixtape::permute(*this, order); }
std::vector<Tensor> Tensor::chunk(int64_t n, int dim) const {
  return mixtape::chunk(*this, n, dim);
}
Tensor Tensor::expand(const Shape& shape) const { return mixtape::expand(*this, shape); }
std::vector<Tensor> Tensor::split(int64_t size, int dim) const {
  return mixtape::split(*this, size, dim);
}
std::vector<Tensor> Tensor::split(const std::vector<int64_t>& sizes, int dim) const {
  return mixtape::split(*this, sizes, dim);
}
std::vector<Tensor> Tensor::unbind(int dim) const { return mixtape::unbind(*this, dim); }
Tensor Tensor::narrow(int dim, int64_t start, int64_t length) const {
  return mixtape::narrow(*this, dim, start, length);
}
Tensor Tensor::movedim(const Dims& from, const Dims& to) const {
  return mixtape::movedim(*this, from, to);
}
Tensor Tensor::unfold(int dim, int64_t size, int64_t step) const {
  return mixtape::unfold(*this, dim, size, step);
}
Tensor Tensor::slice(int dim, int64_t start, int64_t stop, int64_t step) const {
  return mixtape::slice(*this, dim, start, stop, step);
}
Tensor Tensor::unflatten(int dim, const Shape& sizes) const {
  return mixtape::unflatten(*this, dim, sizes);
}
Tensor Tensor::round(int decimals) const { return mixtape::round(*this, decimals); }
Tensor Tensor::diagonal(int64_t offset, int a, int b) const {
  return mixtape::diagonal(*this, offset, a, b);
}
Tensor Tensor::repeat(const Shape& times) const { return mixtape::repeat(*this, times); }
Tensor Tensor::repeat_interleave(int64_t times, int dim) const {
  return mixtape::repeat_interleave(*this, times, dim);
}
Tensor Tensor::flip(const Dims& dims) const { return mixtape::flip(*this, dims); }
Tensor Tensor::roll(int64_t shift, int dim) const { return mixtape::roll(*this, shift, dim); }
Tensor Tensor::tril(int64_t diagonal) const { return mixtape::tril(*this, diagonal); }
Tensor Tensor::triu(int64_t diagonal) const { return mixtape::triu(*this, diagonal); }
Tensor Tensor::index_select(int dim, const Tensor& index) const {
  return mixtape::index_select(*this, dim, index);
}
Tensor Tensor::gather(int dim, const Tensor& index) const {
  return mixtape::gather(*this, dim, index);
}
Tensor Tensor::scatter(int dim, const Tensor& index, const Tensor& source) const {
  return mixtape::scatter(*this, dim, index, source);
}
Tensor Tensor::scatter(int dim, const Tensor& index, double value) const {
  return mixtape::scatter(*this, dim, index, value);
}
Tensor Tensor::scatter_add(int dim, const Tensor& index, const Tensor& source) const {
  return mixtape::scatter_add(*this, dim, index, source);
}
Tensor Tensor::index_add(int dim, const Tensor& index, const Tensor& source) const {
  return mixtape::index_add(*this, dim, index, source);
}
Tensor Tensor::scatter_reduce(int dim, const Tensor& index, const Tensor& source,
                              std::string_view mode, bool include_self) const {
  return mixtape::scatter_reduce(*this, dim, index, source, mode, {.include_self = include_self});
}
Tensor Tensor::masked_fill(const Tensor& mask, double value) const {
  return mixtape::masked_fill(*this, mask, value);
}
Sorted Tensor::sort(int dim, bool descending) const {
  return mixtape::sort(*this, dim, descending);
}
Sorted Tensor::topk(int64_t k, int dim, bool largest) const {
  return mixtape::topk(*this, k, dim, largest);
}
Tensor Tensor::argsort(int dim, bool descending) const {
  return mixtape::argsort(*this, dim, descending);
}
Tensor Tensor::softmax(int dim, std::optional<DType> dtype) const {
  return mixtape::softmax(*this, dim, dtype);
}
Tensor Tensor::log_softmax(int dim, std::optional<DType> dtype) const {
  return mixtape::log_softmax(*this, dim, dtype);
}
Tensor Tensor::lerp(const Tensor& end, double weight) const {
  return mixtape::lerp(*this, end, weight);
}
Tensor Tensor::clamp(std::optional<double> low, std::optional<double> high) const {
  return mixtape::clamp(*this, low, high);
}

#define MIXTAPE_REDUCTION(RESULT, NAME)                       \
  RESULT Tensor::NAME(const Dims& dims, bool keepdim) const { \
    return mixtape::NAME(*this, dims, keepdim);               \
  }
MIXTAPE_REDUCTION(Tensor, sum)
MIXTAPE_REDUCTION(Tensor, mean)
MIXTAPE_REDUCTION(Tensor, prod)
MIXTAPE_REDUCTION(Tensor, logsumexp)
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
Tensor Tensor::cumprod(int dim) const { return mixtape::cumprod(*this, dim); }
Tensor Tensor::argmax(int dim, bool keepdim) const { return mixtape::argmax(*this, dim, keepdim); }
Tensor Tensor::argmin(int dim, bool keepdim) const { return mixtape::argmin(*this, dim, keepdim); }
Tensor Tensor::clamp_(std::optional<double> low, std::optional<double> high) const {
  return mixtape::clamp_(*this, low, high);
}
Tensor Tensor::fill_(double value) const { return mixtape::fill_(*this, value); }

#define MIXTAPE_METHOD(NAME)                                                      \
  auto Tensor::NAME(const Tensor& y) const -> decltype(mixtape::NAME(*this, y)) { \
    return mixtape::NAME(*this, y);                                               \
  }                                                                               \
  auto Tensor::NAME(double y) const -> decltype(mixtape::NAME(*this, y)) {        \
    return mixtape::NAME(*this, y);                                               \
  }
MIXTAPE_METHOD(add)
MIXTAPE_METHOD(sub)
MIXTAPE_METHOD(mul)
MIXTAPE_METHOD(div)
MIXTAPE_METHOD(pow)
MIXTAPE_METHOD(remainder)
MIXTAPE_METHOD(floor_divide)
MIXTAPE_METHOD(eq)
MIXTAPE_METHOD(ne)
MIXTAPE_METHOD(lt)
MIXTAPE_METHOD(le)
MIXTAPE_METHOD(gt)
MIXTAPE_METHOD(ge)
MIXTAPE_METHOD(add_)
MIXTAPE_METHOD(sub_)
MIXTAPE_METHOD(mul_)
MIXTAPE_METHOD(div_)
#undef MIXTAPE_METHOD
#define MIXTAPE_METHOD(NAME)                                                      \
  auto Tensor::NAME(const Tensor& y) const -> decltype(mixtape::NAME(*this, y)) { \
    return mixtape::NAME(*this, y);                                               \
  }
MIXTAPE_METHOD(maximum)
MIXTAPE_METHOD(minimum)
MIXTAPE_METHOD(logical_and)
MIXTAPE_METHOD(logical_or)
MIXTAPE_METHOD(dot)
MIXTAPE_METHOD(mv)
MIXTAPE_METHOD(outer)
MIXTAPE_METHOD(matmul)
MIXTAPE_METHOD(mm)
MIXTAPE_METHOD(bmm)
MIXTAPE_METHOD(copy_)
MIXTAPE_METHOD(masked_select)
#undef MIXTAPE_METHOD

}  // namespace mixtape
