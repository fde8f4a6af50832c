#include "nn/conv.h"

#include <fmt/ranges.h>

#include "core/format.h"
#include "nn/init.h"
#include "nn/more.h"

namespace mixtape::nn {
using namespace internal;
namespace {

Shape sizes(int64_t size) { return {size}; }
Shape sizes(Size2 size) { return {size.h, size.w}; }
Shape sizes(Size3 size) { return {size.d, size.h, size.w}; }

// For example "stride must be >= 1, got 0 x 1".
void check_sizes(const char* what, const auto& given, int64_t least = 1) {
  for (const int64_t size : sizes(given))
    check(size >= least, "{} must be >= {}, got {}", what, least, fmt::join(sizes(given), " x "));
}

// Checks the arguments of a convolution of any kind, and makes its weight and bias.
template <class Layer>
void start(Layer& layer, const char* name, int64_t in, int64_t out, const auto& kernel,
           const auto& o) {
  const Scope scope(name);
  check(in > 0 && out > 0, "channels must be positive: in {}, out {}", in, out);
  check(o.groups > 0 && in % o.groups == 0 && out % o.groups == 0,
        "{} and {} channels do not divide into {} groups", in, out, o.groups);
  check_sizes("kernel", kernel);
  check_sizes("stride", o.stride);
  check_sizes("dilation", o.dilation);
  check_sizes("padding", o.padding, 0);
  Shape shape{out, in / o.groups};
  if constexpr (requires { o.output_padding; }) {  // transposed
    check_sizes("output_padding", o.output_padding, 0);
    shape = {in, out / o.groups};
  }
  layer.weight = init::starting_weight(internal::joined(shape, sizes(kernel)));
  layer.bias = init::starting_bias(layer.weight, out, o.bias);
}

// A layer's options as those of its op.
template <class Op>
Op options_of(const auto& o) {
  Op op{.stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups};
  if constexpr (requires { op.output_padding; }) op.output_padding = o.output_padding;
  if constexpr (requires { op.activation; }) op.activation = o.activation;
  if constexpr (requires { o.padding_mode; })
    if (o.padding_mode != PadMode::Constant) op.padding = 0;
  return op;
}

ConvPadding padding_of(const auto& o) {
  ConvPadding padding{{}, o.padding_mode};
  if (padding.mode == PadMode::Constant) return padding;
  for (const int64_t size : sizes(o.padding)) padding.sizes.insert(padding.sizes.begin(), 2, size);
  return padding;
}

}  // namespace

Conv1d::Conv1d(int64_t in, int64_t out, int64_t kernel, const Options& o)
    : padding_(padding_of(o)), options_(options_of<Conv1dOptions>(o)) {
  start(*this, "Conv1d", in, out, kernel, o);
}

Conv2d::Conv2d(int64_t in, int64_t out, Size2 kernel, const Options& o)
    : padding_(padding_of(o)), options_(options_of<Conv2dOptions>(o)) {
  start(*this, "Conv2d", in, out, kernel, o);
}

ConvTranspose1d::ConvTranspose1d(int64_t in, int64_t out, int64_t kernel, const Options& o)
    : options_(options_of<ConvTranspose1dOptions>(o)) {
  start(*this, "ConvTranspose1d", in, out, kernel, o);
}

ConvTranspose2d::ConvTranspose2d(int64_t in, int64_t out, Size2 kernel, const Options& o)
    : options_(options_of<ConvTranspose2dOptions>(o)) {
  start(*this, "ConvTranspose2d", in, out, kernel, o);
}

Conv3d::Conv3d(int64_t in, int64_t out, Size3 kernel, const Options& o)
    : padding_(padding_of(o)), options_(options_of<Conv3dOptions>(o)) {
  start(*this, "Conv3d", in, out, kernel, o);
}

ConvTranspose3d::ConvTranspose3d(int64_t in, int64_t out, Size3 kernel, const Options& o)
    : options_(options_of<ConvTranspose3dOptions>(o)) {
  start(*this, "ConvTranspose3d", in, out, kernel, o);
}

}  // namespace mixtape::nn
