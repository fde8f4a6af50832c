// Pools and interpolation, which sample the rows and columns of images.

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "autograd/ops/attributes.h"
#include "core/check.h"
#include "core/format.h"
#include "train/onnx/builder.h"

namespace mixtape::train::onnx {
namespace {

using kernels::Sampling;

// The padding after the elements with which exactly so many windows fit.
int64_t end_padding(const Sampling& s) {
  const int64_t over = (s.to - 1) * s.stride + s.size - s.from - s.padding;
  return std::max(over, over > s.padding - s.stride ? std::min(s.padding, over + s.stride - 1) : 0);
}

Attributes windows_of(const ops::Samplings& s) {
  return {{"kernel_shape", Sizes{s[0].size, s[1].size}},
          {"strides", Sizes{s[0].stride, s[1].stride}},
          {"pads", Sizes{s[0].padding, s[1].padding, end_padding(s[0]), end_padding(s[1])}}};
}

Name max_pool2d(const OpCall& c) {
  return c.g.node("MaxPool", {c.in(0, c.dtype())}, windows_of(c.argument<ops::Samplings>()));
}

// The weights of a sampling along a line, as a matrix [to, from].
Tensor weights_of(const Sampling& s, DType dtype) {
  const Tensor w = zeros({s.to, s.from}, f64, Device::cpu());
  for (int64_t i = 0; i < s.to; ++i)
    for (int64_t k = s.begin(i); k < s.end(i); ++k)
      w.data<double>()[i * s.from + k] = s.weight(i, k);
  return w.to(dtype);
}
// Means as products with weights.
Name weighted(const OpCall& c) {
  const auto& s = c.argument<ops::Samplings>();
  const DType wide = accumulate_dtype(c.dtype());
  Name x = c.in(0, wide);
  if (!s[0].abut(1)) x = c.g.node("MatMul", {c.g.constant(weights_of(s[0], wide)), x});
  if (!s[1].abut(1)) x = c.g.node("MatMul", {x, c.g.constant(weights_of(s[1], wide).t())});
  return x;
}

Name avg_pool2d(const OpCall& c) {
  if (c.dtype() == f64) return weighted(c);  // since runtimes have pools of f32
  const auto& s = c.argument<ops::Samplings>();
  Attributes attributes = windows_of(s);
  const int64_t divisor = s[1].fixed_divisor;
  const bool counts = s[0].count_padding || divisor != 0;
  for (const Sampling& along : s)
    check(!counts || end_padding(along) <= along.padding,
          "ONNX has no mean that counts padding in windows beyond it");
  attributes.emplace_back("count_include_pad", int64_t{counts});
  const Name x = c.in(0, divisor != 0 ? accumulate_dtype(c.dtype()) : c.dtype()),
             mean = c.g.node("AveragePool", {x}, std::move(attributes));
  if (divisor == 0) return mean;
  const double count = double(s[0].size) * double(s[1].size);
  const Name factor = c.g.number(count / double(divisor), accumulate_dtype(c.dtype()));
  return c.g.cast(c.g.node("Mul", {mean, factor}), c.dtype());
}

// Adaptive windows as plain ones, if all are equal.
std::optional<Attributes> equal_windows(const ops::Samplings& s) {
  if (s[0].from % s[0].to != 0 || s[1].from % s[1].to != 0) return {};
  const Sizes sizes{s[0].from / s[0].to, s[1].from / s[1].to};
  return Attributes{{"kernel_shape", sizes}, {"strides", sizes}};
}

Name adaptive_avg_pool2d(const OpCall& c) {
  const auto& s = c.argument<ops::Samplings>();
  if (s[0].to == s[0].from && s[1].to == s[1].from) return c.in(0, c.dtype());
  if (c.dtype() == f64) return weighted(c);
  const Name x = c.in(0, c.dtype());
  if (s[0].to == 1 && s[1].to == 1) return c.g.node("GlobalAveragePool", {x});
  if (const auto windows = equal_windows(s)) return c.g.node("AveragePool", {x}, *windows);
  return weighted(c);
}
Name adaptive_max_pool2d(const OpCall& c) {
  const auto& s = c.argument<ops::Samplings>();
  const auto windows = equal_windows(s);
  check(windows.has_value(), "ONNX has no {} x {} windows of different sizes over {} x {} pixels",
        s[0].to, s[1].to, s[0].from, s[1].from);
  return c.g.node("MaxPool", {c.in(0, c.dtype())}, *windows);
}

// The factor of a line's length, in f32 as in ONNX. Runtimes round its product with the length
// down, computed in f32 or exactly, to the length of the result.
float scale_of(const Sampling& s) {
  float scale = float(s.step > 0 ? 1 / s.step : double(s.to) / double(s.from));
  while (std::max(double(scale) * double(s.from), double(scale * float(s.from))) >=
         double(s.to + 1))
    scale = std::nextafter(scale, 0.0f);
  return scale;
}
// True if the ratio of lengths is that factor, which then might fall short of the length.
bool has_ratio(const Sampling& s) { return float(s.to) / float(s.from) == scale_of(s); }

Name interpolate(const OpCall& c) {
  const auto& s = c.argument<ops::Samplings>();
  const bool nearest = s[0].kind == Sampling::Kind::Nearest;
  Attributes attributes{
      {"mode", std::string(nearest                               ? "nearest"
                           : s[0].kind == Sampling::Kind::Linear ? "linear"
                                                                 : "cubic")},
      {"coordinate_transformation_mode", std::string(nearest              ? "asymmetric"
                                                     : s[0].align_corners ? "align_corners"
                                                                          : "half_pixel")}};
  if (nearest) attributes.emplace_back("nearest_mode", std::string("floor"));
  Name x = c.in(0, c.dtype());
  for (const bool by_sizes : {true, false}) {  // a node for each kind that there is
    Sizes axes, sizes;
    std::vector<float> scales;
    for (const int d : {0, 1})
      if (has_ratio(s[d]) == by_sizes) {
        axes.push_back(2 + d), sizes.push_back(s[d].to), scales.push_back(scale_of(s[d]));
      }
    if (axes.empty()) continue;
    Attributes all = attributes;
    all.emplace_back("axes", axes);
    std::vector<Name> inputs{x, Name(), Name()};
    if (by_sizes)
      inputs.push_back(c.g.numbers(sizes));
    else
      inputs[2] = c.g.constant(from_data(scales));
    x = c.g.node("Resize", inputs, std::move(all));
  }
  return x;
}

constexpr TranslationRow rows_of_images[] = {
    {"adaptive_avg_pool2d", adaptive_avg_pool2d},
    {"adaptive_max_pool2d", adaptive_max_pool2d},
    {"avg_pool2d", avg_pool2d},
    {"interpolate", interpolate},
    {"max_pool2d", max_pool2d},
};

}  // namespace

std::span<const TranslationRow> image_rows() { return rows_of_images; }

}  // namespace mixtape::train::onnx
