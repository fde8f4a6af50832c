#pragma once
// A stream for kernels that run on the interpreter of PTX, and their results.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <vector>

namespace {

cudaStream_t stream() {
  static const cudaStream_t made = [] {
    cudaStream_t s = nullptr;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    return s;
  }();
  return made;
}
template <class T>
std::vector<T> read(const T* from, size_t count) {
  std::vector<T> all(count);
  EXPECT_EQ(cudaMemcpyAsync(all.data(), from, count * sizeof(T), cudaMemcpyDefault, stream()),
            cudaSuccess);
  return all;
}

}  // namespace
