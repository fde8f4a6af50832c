#pragma once
// Helpers for tests of CPU kernels: inputs, comparison with values computed in double, and
// comparison between numbers of threads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "core/tensor.h"
#include "kernels/common/scalar.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {

using Values = std::vector<double>;
inline const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");

inline constexpr DType all_dtypes[] = {f64, f32, f16, bf16, i64, i32, u8, boolean};
// Each float input dtype with each possible output dtype.
inline const std::pair<DType, DType> float_pairs[] = {{f64, f64}, {f32, f32},   {f16, f16},
                                                      {f16, f32}, {bf16, bf16}, {bf16, f32}};

// A kernel's implementation for the CPU, whatever device its Launch is for.
template <class Signature>
auto on_cpu(const Kernel<Signature>& kernel) {
  return kernel.by_type[size_t(DeviceType::cpu)];
}

// The range where an op is smooth, from which inputs are drawn.
template <class F>
constexpr Domain domain_of() {
  if constexpr (requires { F::domain; })
    return F::domain;
  else
    return {};
}

inline double tolerance(DType t) {
  return t == f64 ? 1e-12 : t == f32 ? 1e-5 : t == f16 ? 1e-3 : 1e-2;
}
inline DType wide(DType t) { return t == f64 ? f64 : f32; }

inline Tensor random(const Shape& shape, DType dtype, uint64_t seed, double low = -1,
                     double high = 1) {
  Tensor t(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const auto bits = Philox::bits(seed, static_cast<uint64_t>(i));
    t.set(i, low + (high - low) * Philox::uniform(bits[0]));
  }
  return t;
}
inline Tensor filled(const Shape& shape, DType dtype, double value) {
  Tensor t(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i) t.set(i, value);
  return t;
}
// An output filled with NaN (77 for integers), so that unwritten elements show.
inline Tensor output(const Shape& shape, DType dtype) {
  return filled(shape, dtype, is_float(dtype) ? nan : dtype == boolean ? 1 : 77);
}
inline Tensor indices(const Values& v) { return from(v, {static_cast<int64_t>(v.size())}, i64); }

// Expects values within `tol` times the largest finite expected magnitude; infinities and NaN must
// be equal.
inline void expect_close(const Tensor& got, const Values& want, double tol,
                         const std::string& what) {
  const Values have = to_vector(got);
  ASSERT_EQ(have.size(), want.size()) << what;
  double scale = 1e-3;
  for (const double w : want)
    if (std::isfinite(w)) scale = std::max(scale, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = have[i] == want[i] || (std::isnan(have[i]) && std::isnan(want[i]));
    ASSERT_TRUE(same || std::abs(have[i] - want[i]) <= tol * scale)
        << what << ", element " << i << ": " << have[i] << ", expected " << want[i] << ", scale "
        << scale;
  }
}

inline void expect_equal(const Tensor& got, const Tensor& want, const std::string& what) {
  expect_close(got, to_vector(want), 0, what);
}

template <class... F, class Body>
void for_ops(OpList<F...>, Body body) {
  (body.template operator()<F>(), ...);
}

// Row r of x [.., n].
inline Values row(const Tensor& x, int64_t r) {
  Values v;
  for (int64_t i = 0; i < x.size(-1); ++i) v.push_back(x.at(r * x.size(-1) + i));
  return v;
}
inline double sum(const Values& v) {
  double s = 0;
  for (const double a : v) s += a;
  return s;
}

// a @ b + bias in double.
inline Values matmul(const Tensor& a, const Tensor& b, const Tensor& bias) {
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1),
                batch = m * k > 0 ? a.numel() / (m * k) : 1;
  const Values av = to_vector(a), bv = to_vector(b);
  Values c(static_cast<size_t>(batch * m * n));
  for (int64_t i = 0; i < static_cast<int64_t>(c.size()); ++i) {
    const int64_t p = i / (m * n), r = i / n % m, q = i % n;
    double s = bias ? bias.at(bias.rank() == 1 ? q : i) : 0;
    for (int64_t j = 0; j < k; ++j) s += av[(p * m + r) * k + j] * bv[(p * k + j) * n + q];
    c[i] = s;
  }
  return c;
}

// Runs CPU kernels, and CUDA kernels too, since the emulator's memory is the CPU's.
inline void launch(const std::function<void(Launch&)>& body) {
  Launch l(Device::cpu());
  body(l);
}
inline Tensor in_f64(const Tensor& x) {
  const Tensor y(x.shape(), f64);
  launch([&](Launch& l) { on_cpu(convert)(l, x, y); });
  return y;
}

// `body` writes and returns its outputs; their bytes must not depend on the number of threads.
inline void expect_same_for_any_threads(const std::function<std::vector<Tensor>()>& body) {
  std::vector<Tensor> first;
  for (const int threads : {1, 2, 3}) {
    const cpu::ThreadLimit limit(threads);
    const std::vector<Tensor> now = body();
    if (first.empty()) first = now;
    for (size_t i = 0; i < now.size(); ++i)
      ASSERT_EQ(0, std::memcmp(now[i].raw(), first[i].raw(), now[i].nbytes()))
          << "output " << i << " with " << threads << " threads";
  }
}

}  // namespace mixtape::kernels
