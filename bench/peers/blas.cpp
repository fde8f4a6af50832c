#include "bench/peers/blas.h"

#include <dlfcn.h>

#include <initializer_list>

#include "core/check.h"
#include "core/format.h"

namespace mixtape::peers {
namespace {

using OpenBlas = void (*)(int order, int ta, int tb, int m, int n, int k, float alpha,
                          const float* a, int lda, const float* b, int ldb, float beta, float* c,
                          int ldc);
template <class T>
using OneDnn = int (*)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const T* a,
                       int64_t lda, const T* b, int64_t ldb, float beta, float* c, int64_t ldc);

template <class F>
F find(std::initializer_list<const char*> libraries, const char* name) {
  for (const char* library : libraries)
    if (void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL))
      if (void* const found = dlsym(handle, name)) return reinterpret_cast<F>(found);
  return nullptr;
}

// The function, if it works: oneDNN has no bf16 product without AVX-512.
template <class T>
OneDnn<T> works(OneDnn<T> gemm) {
  const T one[1] = {};
  float product = 0;
  return gemm && gemm('N', 'N', 1, 1, 1, 1, one, 1, one, 1, 0, &product, 1) == 0 ? gemm : nullptr;
}

constexpr auto openblas = {"libopenblas.so.0"};
constexpr auto dnnl = {"libdnnl.so.3", "libdnnl.so.2"};

struct Found {
  OpenBlas sgemm = find<OpenBlas>(openblas, "cblas_sgemm");
  OneDnn<float> f32_gemm = find<OneDnn<float>>(dnnl, "dnnl_sgemm");
  OneDnn<uint16_t> bf16_gemm = works(find<OneDnn<uint16_t>>(dnnl, "dnnl_gemm_bf16bf16f32"));
  using SetThreads = void (*)(int);
  SetThreads openblas_threads = find<SetThreads>(openblas, "openblas_set_num_threads"),
             openmp_threads = find<SetThreads>({"libgomp.so.1"}, "omp_set_num_threads");
};
const Found& found() {
  static const Found once;
  return once;
}

// A matrix of a batch for BLAS, row- or column-major.
struct Operand {
  bool transposed;
  int64_t leading, matrix;  // strides in elements

  explicit Operand(const Tensor& t)
      : transposed(t.strides()[2] != 1),
        leading(transposed ? t.strides()[2] : t.strides()[1]),
        matrix(t.strides()[0]) {}
};

template <class T, class Multiply>
bench::Call each(const Tensor& a, const Tensor& b, const Tensor& c, Multiply multiply) {
  const Operand left(a), right(b);
  return [=] {
    for (int64_t i = 0; i < c.size(0); ++i)
      multiply(left, static_cast<const T*>(a.raw()) + i * left.matrix, right,
               static_cast<const T*>(b.raw()) + i * right.matrix,
               static_cast<float*>(c.raw()) + i * c.strides()[0]);
  };
}

template <class T>
bench::Call onednn(OneDnn<T> gemm, const Tensor& a, const Tensor& b, const Tensor& c) {
  const int64_t m = c.size(1), n = c.size(2), k = a.size(2);
  return each<T>(a, b, c,
                 [=](const Operand& x, const T* px, const Operand& y, const T* py, float* out) {
                   gemm(x.transposed ? 'T' : 'N', y.transposed ? 'T' : 'N', m, n, k, 1, px,
                        x.leading, py, y.leading, 0, out, n);
                 });
}

}  // namespace

void set_blas_threads(int n) {
  if (found().openblas_threads) found().openblas_threads(n);
  if (found().openmp_threads) found().openmp_threads(n);
}

std::vector<std::string> blas(DType dtype) {
  std::vector<std::string> names;
  if (dtype == f32 && found().sgemm) names.emplace_back("openblas");
  if ((dtype == f32 && found().f32_gemm) || (dtype == bf16 && found().bf16_gemm))
    names.emplace_back("onednn");
  return names;
}

bench::Call product(const std::string& peer, const Tensor& a, const Tensor& b, const Tensor& c) {
  check(c.dtype() == f32, "a product of {} into {}, not f32", peer, c.dtype());
  if (peer == "onednn")
    return a.dtype() == bf16 ? onednn(found().bf16_gemm, a, b, c)
                             : onednn(found().f32_gemm, a, b, c);
  const int m = int(c.size(1)), n = int(c.size(2)), k = int(a.size(2));
  return each<float>(
      a, b, c,
      [=](const Operand& x, const float* px, const Operand& y, const float* py, float* out) {
        constexpr int row_major = 101, plain = 111;  // 112 would be transposed
        found().sgemm(row_major, plain + x.transposed, plain + y.transposed, m, n, k, 1, px,
                      int(x.leading), py, int(y.leading), 0, out, n);
      });
}

}  // namespace mixtape::peers
