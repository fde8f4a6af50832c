#pragma once
// The networks whose training steps are timed: the demo's, and a wider one that is common
// elsewhere.

#include "mixtape.h"

namespace mixtape::bench {

struct CnnSize {
  int64_t conv1, conv2, padding, flat;
};
inline constexpr CnnSize demo_cnn{16, 32, 1, 32 * 7 * 7}, wide_cnn{32, 64, 0, 64 * 5 * 5};

struct Cnn : nn::Module<Cnn> {
  nn::Conv2d conv1, conv2;
  nn::Linear fc1, fc2{128, 10};

  explicit Cnn(const CnnSize& s)
      : conv1(1, s.conv1, 3, {.padding = {s.padding, s.padding}}),
        conv2(s.conv1, s.conv2, 3, {.padding = {s.padding, s.padding}}),
        fc1(s.flat, 128) {}
  Tensor forward(const Tensor& x) const {
    Tensor h = max_pool2d(relu(conv1(x)), {2, 2});
    h = max_pool2d(relu(conv2(h)), {2, 2});
    return fc2(relu(fc1(flatten(h, 1))));
  }
  MIXTAPE_FIELDS(conv1, conv2, fc1, fc2)
};

}  // namespace mixtape::bench
