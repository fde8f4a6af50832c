#pragma once
// The arithmetic of LAMB, LARS, Adafactor and Muon on whole parameters, for both devices: the trust
// ratio, means by row and column, and Newton-Schulz steps that make a matrix about orthogonal.

#include <algorithm>
#include <utility>

#include "kernels/common/optimizers.h"

namespace mixtape::kernels {
using namespace internal;

template <class O>
concept Layerwise = requires { O::moves_states_first; };

struct Squares {  // of a block of norm_block elements, added up
  double param, measured;
};
struct SquaredNorms {
  int64_t size;  // elements of the parameter
  double param = 0, measured = 0;

  MIXTAPE_HD void add(const Squares& block) {
    param += block.param;
    measured += block.measured;
  }
};

// The factor of lr for one parameter; 1 where either norm is 0. LAMB: phi(|p|) / |direction|
MIXTAPE_HD inline double trust_ratio(const Lamb& o, const SquaredNorms& squared) {
  const double norm = std::clamp(sqrt(squared.param), o.min_norm, o.max_norm);
  const double length = sqrt(squared.measured);
  const double ratio = norm > 0 && length > 0 ? norm / length : 1;
  return std::clamp(ratio, o.min_trust, o.max_trust);
}
// LARS: trust_coefficient |p| / (|g| + weight_decay |p|)
MIXTAPE_HD inline double trust_ratio(const Lars& o, const SquaredNorms& squared) {
  const double norm = sqrt(squared.param), length = sqrt(squared.measured);
  const double ratio =
      norm > 0 && length > 0 ? o.trust_coefficient * norm / (length + o.weight_decay * norm) : 1;
  return std::clamp(ratio, o.min_trust, o.max_trust);
}

// Adafactor: max(eps2, rms(p)) / max(1, rms(u) / d)
MIXTAPE_HD inline double trust_ratio(const Adafactor& o, const SquaredNorms& squared) {
  const double size = double(squared.size);
  const double norm = sqrt(squared.param / size), length = sqrt(squared.measured / size) / o.d;
  return (o.eps2 > norm ? o.eps2 : norm) / (length > 1 ? length : 1);
}

// Adafactor's v of matrices [height, width], one after another: rows columns / mean of rows. All in
// the type of the step, T.
struct FactoredV {
  const void *rows = nullptr, *columns = nullptr, *means = nullptr;  // of a vector: none
  int64_t height = 0, width = 0;

  template <class T>
  struct Element {
    T row;             // its row's number over the mean
    const T* columns;  // of its matrix
    int64_t column;
  };
  template <class T>
  MIXTAPE_HD Element<T> at(int64_t element, T least) const {  // the least that a mean may be
    const int64_t row = element / width, matrix = row / height;
    const T mean = static_cast<const T*>(means)[matrix];
    return {static_cast<const T*>(rows)[row] / (mean < least ? least : mean),
            static_cast<const T*>(columns) + matrix * width, element - row * width};
  }
};

// Approximates U V^T for x = U S V^T [rows, columns], |x| = 1, in five steps X' = a X + b (X X^T) X
// + c (X X^T)^2 X, or with X^T X where that is smaller. The coefficients are Keller Jordan's
// (2024): steep at zero, and good enough at one. gemm(a, b, c) is c = a @ b; mix(b, s, c, a, f) is
// f = b s + c f + a I. `square` and `factor` are [k, k], k = min(rows, columns). Returns x or
// `next`, whichever holds the result.
template <class Gemm, class Mix>
View orthogonalize(View x, View next, const View& square, const View& factor, Gemm gemm, Mix mix) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool wide = x.shape()[0] <= x.shape()[1];
  for (int step = 0; step < 5; ++step) {
    const View transposed{x.data, x.dtype, transpose(x.layout, 0, 1)};
    wide ? gemm(x, transposed, square) : gemm(transposed, x, square);
    gemm(square, square, factor);
    mix(b, square, c, a, factor);
    wide ? gemm(factor, x, next) : gemm(x, factor, next);
    std::swap(x, next);
  }
  return x;
}

}  // namespace mixtape::kernels
