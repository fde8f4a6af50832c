#pragma once
// GradientHistogram: the magnitudes of gradients by parameter, and what f16 makes of them.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mixtape::amp {

// The result of GradScaler::histogram(): the gradients of a step, multiplied by the loss scale, as
// f16 had them on their way. (Those of weights are sums of products with them, in f32.)
struct GradientHistogram {
  struct Row {                             // the gradients of a parameter
    std::string name;                      // as named, or "parameter 3"
    std::array<int64_t, 256> counts = {};  // by exponent field in f32: 127 is [1, 2), 0 is zero
    int64_t elements() const;              // the sum of counts
    double zeros() const;                  // the part that is zero
    double subnormals() const;  // the part below 2^-14, of which f16 has fewer bits or none
    // Powers of two between the largest and 65536; what is not finite counts as 2^128.
    int headroom() const;
  };
  double scale = 1;
  std::vector<Row> rows;  // a parameter each

  std::string text() const;  // a table
  std::string svg() const;   // a map: parameters by powers of two
};

}  // namespace mixtape::amp
