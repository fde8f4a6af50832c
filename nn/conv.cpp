#include "nn/conv.h"

#include <fmt/format.h>

#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
namespace {

// For example "a stride of 0 x 1".
void check_sizes(const char* what, std::initializer_list<int64_t> sizes, int64_t least = 1) {
  for (const int64_t size : sizes)
    check(size >= least, "a {} of {}", what, fmt::join(sizes, " x "));
}
void check_window(const Size2& kernel, const auto& o) {
  check_sizes("kernel", {kernel.h, kernel.w});
  check_sizes("stride", {o.stride.h, o.stride.w});
  check_sizes("dilation", {o.dilation.h, o.dilation.w});
  check_sizes("padding", {o.padding.h, o.padding.w}, 0);
}
void check_window(int64_t kernel, const auto& o) {
  check_sizes("kernel", {kernel});
  check_sizes("stride", {o.stride});
  check_sizes("dilation", {o.dilation});
  check_sizes("padding", {o.padding}, 0);
}
void check_channels(int64_t in, int64_t out, int64_t groups) {
  check(in > 0 && out > 0, "channels must be positive: in {}, out {}", in, out);
  check(groups > 0 && in % groups == 0 && out % groups == 0,
        "{} and {} channels do not divide into {} groups", in, out, groups);
}

}  // namespace

Conv1d::Conv1d(int64_t in, int64_t out, int64_t kernel, const Conv1dOptions& o)
    : options_{o.stride, o.padding, o.dilation, o.groups, o.activation} {
  const Scope scope("Conv1d");
  check_channels(in, out, o.groups);
  check_window(kernel, o);
  weight = init::starting_weight({out, in / o.groups, kernel});
  bias = init::starting_bias(weight, out, o.bias);
}

Conv2d::Conv2d(int64_t in, int64_t out, Size2 kernel, const ConvOptions& o)
    : options_{o.stride, o.padding, o.dilation, o.groups, o.activation} {
  const Scope scope("Conv2d");
  check_channels(in, out, o.groups);
  check_window(kernel, o);
  weight = init::starting_weight({out, in / o.groups, kernel.h, kernel.w});
  bias = init::starting_bias(weight, out, o.bias);
}

ConvTranspose1d::ConvTranspose1d(int64_t in, int64_t out, int64_t kernel,
                                 const ConvTranspose1dOptions& o)
    : options_{o.stride, o.padding, o.output_padding, o.dilation, o.groups} {
  const Scope scope("ConvTranspose1d");
  check_channels(in, out, o.groups);
  check_window(kernel, o);
  check_sizes("padding at the output", {o.output_padding}, 0);
  weight = init::starting_weight({in, out / o.groups, kernel});
  bias = init::starting_bias(weight, out, o.bias);
}

ConvTranspose2d::ConvTranspose2d(int64_t in, int64_t out, Size2 kernel,
                                 const ConvTransposeOptions& o)
    : options_{o.stride, o.padding, o.output_padding, o.dilation, o.groups} {
  const Scope scope("ConvTranspose2d");
  check_channels(in, out, o.groups);
  check_window(kernel, o);
  check_sizes("padding at the output", {o.output_padding.h, o.output_padding.w}, 0);
  weight = init::starting_weight({in, out / o.groups, kernel.h, kernel.w});
  bias = init::starting_bias(weight, out, o.bias);
}

}  // namespace mixtape::nn
