#pragma once
// The networks whose training steps are timed here and with peers, and their sizes.

#include "mixtape.h"

namespace mixtape::bench {

struct MlpSize {
  int64_t batch, in, hidden, classes;
  double operations() const {  // of a step; the images need no gradient
    const double first = double(in * hidden), rest = double(hidden * (hidden + classes));
    return 2.0 * double(batch) * (2 * first + 3 * rest);
  }
};
inline constexpr MlpSize mlp{128, 784, 512, 10};

// Images [batch, 1, 28, 28].
struct CnnSize {
  int64_t conv1, conv2, padding, flat, batch = 64;
  double operations() const {
    const int64_t side1 = 26 + 2 * padding, side2 = side1 / 2 - 2 + 2 * padding;
    const double first = double(side1 * side1 * conv1 * 9),
                 second = double(side2 * side2 * conv1 * conv2 * 9);
    return 2.0 * double(batch) * (2 * first + 3 * (second + double(flat * 128 + 128 * 10)));
  }
};
inline constexpr CnnSize demo_cnn{16, 32, 1, 32 * 7 * 7}, wide_cnn{32, 64, 0, 64 * 5 * 5};

struct LstmSize {
  int64_t batch, context, vocabulary, embedding, hidden;
  double operations() const {
    return 6.0 * double(batch * context) * double(hidden * (4 * (embedding + hidden) + vocabulary));
  }
};
inline constexpr LstmSize lstm{32, 64, 65, 64, 128};

// The last layer shares its weight with the first; linear layers without biases; no dropout.
struct GptSize {
  int64_t batch, context, vocabulary, layers, heads, width;
  double operations() const {  // counts attention as not causal
    const double block = double(12 * width * width + 2 * context * width);
    return 6.0 * double(batch * context) * (double(layers) * block + double(width * vocabulary));
  }
};
inline constexpr GptSize gpt{12, 64, 65, 4, 4, 128};

struct Mlp : nn::Module<Mlp> {
  nn::Linear fc1, fc2, fc3;

  explicit Mlp(const MlpSize& s)
      : fc1(s.in, s.hidden, {.activation = Activation::Relu}),
        fc2(s.hidden, s.hidden, {.activation = Activation::Relu}),
        fc3(s.hidden, s.classes) {}
  Tensor forward(const Tensor& x) const { return fc3(fc2(fc1(x))); }
  MIXTAPE_FIELDS(fc1, fc2, fc3)
};

struct Cnn : nn::Module<Cnn> {
  nn::Conv2d conv1, conv2;
  nn::Linear fc1, fc2{128, 10};

  explicit Cnn(const CnnSize& s)
      : conv1(1, s.conv1, 3, {.padding = s.padding, .activation = Activation::Relu}),
        conv2(s.conv1, s.conv2, 3, {.padding = s.padding, .activation = Activation::Relu}),
        fc1(s.flat, 128, {.activation = Activation::Relu}) {}
  Tensor forward(const Tensor& x) const {
    const Tensor h = max_pool2d(conv2(max_pool2d(conv1(x), 2)), 2);
    return fc2(fc1(flatten(h, 1)));
  }
  MIXTAPE_FIELDS(conv1, conv2, fc1, fc2)
};

}  // namespace mixtape::bench
