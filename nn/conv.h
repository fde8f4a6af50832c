#pragma once
// Convolutions of [n, c, l] and [n, c, h, w]. Parameters start uniform within 1 / sqrt(fan in).
// Conv2d(1, 16, 3, {.stride = 2, .padding = 1}) by name; stride and padding may also be numbers.

#include <vector>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/module.h"

namespace mixtape::nn {

template <class Size>
struct ConvOptions {
  ByName by_name = {};
  Size stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
  PadMode padding_mode = PadMode::Constant;  // zeros; others pad by pad() first
  Activation activation = Activation::None;  // applied before the sums are rounded
};

// Pads the input of a convolution in a mode that its op lacks.
struct ConvPadding {
  std::vector<int64_t> sizes;  // as those of pad(); none: the op pads, with zeros
  PadMode mode;
  Tensor operator()(const Tensor& x) const { return sizes.empty() ? x : pad(x, sizes, mode); }
};

// [n, in, l] -> [n, out, l']
struct Conv1d : Module<Conv1d> {
  using Options = ConvOptions<int64_t>;
  Tensor weight;  // [out, in / groups, kernel]
  Tensor bias;    // [out], or none

  Conv1d(int64_t in, int64_t out, int64_t kernel, const Options& options = {});
  Conv1d(int64_t in, int64_t out, int64_t kernel, std::integral auto stride, int64_t padding = 0,
         int64_t dilation = 1, int64_t groups = 1, bool with_bias = true)
      : Conv1d(in, out, kernel, {{}, int64_t(stride), padding, dilation, groups, with_bias}) {}
  Tensor forward(const Tensor& x) const { return conv1d(padding_(x), weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvPadding padding_;
  Conv1dOptions options_;
};

// [n, in, h, w] -> [n, out, h', w']
struct Conv2d : Module<Conv2d> {
  using Options = ConvOptions<Size2>;
  Tensor weight;  // [out, in / groups, kh, kw]
  Tensor bias;    // [out], or none

  Conv2d(int64_t in, int64_t out, Size2 kernel, const Options& options = {});
  Conv2d(int64_t in, int64_t out, Size2 kernel, Size2 stride, Size2 padding = 0, Size2 dilation = 1,
         int64_t groups = 1, bool with_bias = true)
      : Conv2d(in, out, kernel, Options{{}, stride, padding, dilation, groups, with_bias}) {}
  Tensor forward(const Tensor& x) const { return conv2d(padding_(x), weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvPadding padding_;
  Conv2dOptions options_;
};

template <class Size>
struct ConvTransposeOptions {
  ByName by_name = {};
  Size stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// The gradient of a Conv1d as a layer: [n, in, l] -> [n, out, l'], where l' = (l - 1) stride
// - 2 padding + dilation (kernel - 1) + output_padding + 1.
struct ConvTranspose1d : Module<ConvTranspose1d> {
  using Options = ConvTransposeOptions<int64_t>;
  Tensor weight;  // [in, out / groups, kernel]; as in PyTorch its fan in is out / groups kernel
  Tensor bias;    // [out], or none

  ConvTranspose1d(int64_t in, int64_t out, int64_t kernel, const Options& options = {});
  ConvTranspose1d(int64_t in, int64_t out, int64_t kernel, std::integral auto stride,
                  int64_t padding = 0, int64_t output_padding = 0, int64_t groups = 1,
                  bool with_bias = true, int64_t dilation = 1)
      : ConvTranspose1d(
            in, out, kernel,
            {{}, int64_t(stride), padding, output_padding, dilation, groups, with_bias}) {}
  Tensor forward(const Tensor& x) const { return conv_transpose1d(x, weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvTranspose1dOptions options_;
};

// The gradient of a Conv2d as a layer: [n, in, h, w] -> [n, out, h', w'], where h' = (h - 1) stride
// - 2 padding + dilation (kh - 1) + output_padding + 1.
struct ConvTranspose2d : Module<ConvTranspose2d> {
  using Options = ConvTransposeOptions<Size2>;
  Tensor weight;  // [in, out / groups, kh, kw]; as in PyTorch its fan in is out / groups kh kw
  Tensor bias;    // [out], or none

  ConvTranspose2d(int64_t in, int64_t out, Size2 kernel, const Options& options = {});
  ConvTranspose2d(int64_t in, int64_t out, Size2 kernel, Size2 stride, Size2 padding = 0,
                  Size2 output_padding = 0, int64_t groups = 1, bool with_bias = true,
                  Size2 dilation = 1)
      : ConvTranspose2d(in, out, kernel,
                        Options{{}, stride, padding, output_padding, dilation, groups, with_bias}) {
  }
  Tensor forward(const Tensor& x) const { return conv_transpose2d(x, weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  ConvTranspose2dOptions options_;
};

}  // namespace mixtape::nn
