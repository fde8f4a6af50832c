#pragma once
// GradientHistogram: the magnitudes of gradients by parameter, and how f16 represents them.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mixtape::amp {

// The result of GradScaler::histogram(): the gradients of a step multiplied by the loss scale, as
// they travel in f16. (Gradients of weights are f32 sums of products with these.)
struct GradientHistogram {
  struct Row {                             // the gradients of a parameter
    std::string name;                      // as named, or "parameter 3"
    std::array<int64_t, 256> counts = {};  // by exponent field in f32: 127 is [1, 2), 0 is zero
    int64_t elements() const;              // the sum of counts
    double zeros() const;                  // the fraction that is zero
    double subnormals() const;  // the fraction below 2^-14, for which f16 has fewer bits or none
    // Powers of two from the largest gradient to 65536; numbers that are not finite count as 2^128.
    int headroom() const;
  };
  double scale = 1;
  std::vector<Row> rows;  // one per parameter

  std::string text() const;  // a table
  std::string svg() const;   // a map: parameters by powers of two
};

}  // namespace mixtape::amp
