#pragma once
// Matrix products of OpenBLAS and oneDNN, loaded at run time if found.

#include <string>
#include <vector>

#include "bench/interleave.h"
#include "core/tensor.h"

namespace mixtape::peers {

void set_blas_threads(int n);

// "openblas" and "onednn", if found and able to multiply the dtype.
std::vector<std::string> blas(DType dtype);
// c = a @ b for dense [batch, m, k] and [batch, k, n], each possibly transposed. c is f32.
bench::Call product(const std::string& peer, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace mixtape::peers
