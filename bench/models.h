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
  int64_t batch, context, vocabulary, embedding, hidden, layers = 1;
  double operations() const {
    const int64_t gates = 4 * (embedding + hidden + (layers - 1) * 2 * hidden);
    return 6.0 * double(batch * context) * double(hidden * (gates + vocabulary));
  }
};
inline constexpr LstmSize lstm{32, 64, 65, 64, 128}, lstm_2x512{20, 35, 10000, 512, 512, 2};

// The last layer shares its weight with the first; linear layers without biases; no dropout.
struct GptSize {
  int64_t batch, context, vocabulary, layers, heads, width;
  double operations() const {  // counts attention as not causal
    const double block = double(12 * width * width + 2 * context * width);
    return 6.0 * double(batch * context) * (double(layers) * block + double(width * vocabulary));
  }
};
inline constexpr GptSize gpt{12, 64, 65, 4, 4, 128},
    gpt2_256{2, 256, 50257, 12, 12, 768},  // 124 million parameters
    gpt2_1024{1, 1024, 50257, 12, 12, 768};

// Images [batch, 3, side, side], as patches and a class token; layers have biases, no dropout.
struct VitSize {
  int64_t batch, side, patch, layers, heads, width, classes;
  int64_t tokens() const { return side / patch * (side / patch) + 1; }
  double operations() const {
    const double block = double(12 * width * width + 2 * tokens() * width);
    return 2.0 * double(batch) *
           (2 * double((tokens() - 1) * 3 * patch * patch * width) +
            3 * (double(tokens()) * double(layers) * block + double(width * classes)));
  }
};
inline constexpr VitSize vit_s{8, 224, 16, 12, 6, 384, 1000};

// For images of 32 x 32, CIFAR's ResNet of `depth` = 6 n + 2 layers, whose shortcuts have no
// parameters; of others, ResNet-50.
struct ResNetSize {
  struct Block {
    int64_t channels, out, stride;
  };
  int64_t batch, side, depth, width, classes;
  bool cifar() const { return side == 32; }
  int64_t features() const { return blocks().back().out; }
  std::vector<Block> blocks() const {
    const std::vector<int64_t> counts =
        cifar() ? std::vector<int64_t>(3, (depth - 2) / 6) : std::vector<int64_t>{3, 4, 6, 3};
    std::vector<Block> all;
    for (size_t i = 0; i < counts.size(); ++i)
      for (int64_t b = 0; b < counts[i]; ++b) {
        const int64_t channels = width << i;
        all.push_back({channels, cifar() ? channels : 4 * channels, i > 0 && b == 0 ? 2 : 1});
      }
    return all;
  }
  double operations() const;
};
inline constexpr ResNetSize resnet20{32, 32, 20, 16, 10}, resnet50{8, 224, 50, 64, 1000};

// models::UNet for images [batch, 3, side, side], with a class for each pixel.
struct UnetSize {
  static constexpr int levels = 5;
  int64_t batch, side, width, classes;
  double operations() const {
    double first = 0, rest = double(side * side * width * classes);
    for (int level = 0; level < levels; ++level) {
      const int64_t pixels = (side >> level) * (side >> level), c = width << level;
      if (level == 0)
        first = double(pixels * 9 * 3 * c);  // the images need no gradient
      else
        rest += double(pixels * 9 * c / 2 * c);
      rest += double(pixels * 9 * c * c);
      if (level + 1 < levels) rest += double(pixels * (2 * c * c + 9 * 3 * c * c));  // back up
    }
    return 2.0 * double(batch) * (2 * first + 3 * rest);
  }
};
inline constexpr UnetSize unet_128{2, 128, 64, 2};

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

// ViT (Dosovitskiy et al. 2020, arXiv 2010.11929).
struct Vit : nn::Module<Vit> {
  nn::Conv2d patches;
  Tensor cls, places;
  nn::TransformerEncoder blocks;
  nn::Linear head;

  explicit Vit(const VitSize& s)
      : patches(3, s.width, s.patch, {.stride = s.patch}),
        cls(zeros({1, 1, s.width}).set_requires_grad()),
        places((randn({1, s.tokens(), s.width}) * 0.02).set_requires_grad()),
        blocks(nn::TransformerEncoderLayer(s.width, s.heads,
                                           {.dim_feedforward = 4 * s.width,
                                            .dropout = 0,
                                            .activation = [](const Tensor& x) { return gelu(x); },
                                            .batch_first = true,
                                            .norm_first = true}),
               s.layers, nn::LayerNorm({s.width})),
        head(s.width, s.classes) {}
  Tensor forward(const Tensor& x) const {
    const Tensor rows = transpose(flatten(patches(x), 2), 1, 2);
    const Tensor first = expand(cls, {x.size(0), 1, cls.size(2)}).to(rows.dtype());
    return head(select(blocks(cat({first, rows}, 1) + places), 1, 0));
  }
  MIXTAPE_FIELDS(patches, cls, places, blocks, head)
};

}  // namespace mixtape::bench
