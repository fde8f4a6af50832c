// Convolutions: some layers of ResNet-50 on 64 images, forward and both gradients.

#include <fmt/format.h>

#include "bench/gpu/op_case.h"

namespace mixtape::bench {

void measure_convolutions(Report& report) {
  struct Layer {
    int64_t in, out, size, stride, side;
  };
  for (const auto& [in, out, size, stride, side] :
       {Layer{3, 64, 7, 2, 224}, Layer{64, 64, 3, 1, 56}, Layer{256, 64, 1, 1, 56},
        Layer{128, 128, 3, 1, 28}, Layer{256, 512, 1, 2, 56}, Layer{256, 256, 3, 1, 14},
        Layer{512, 512, 3, 1, 7}}) {
    const bool smoke = report.settings.smoke;
    const int64_t c = smoke ? 3 : in, o = smoke ? 5 : out, k = size, s = smoke ? 9 : side;
    const Conv2dOptions options{.stride = {stride, stride}, .padding = {k / 2, k / 2}};
    const int64_t after = (s + 2 * (k / 2) - k) / stride + 1;
    OpCase layer{
        .name = fmt::format("conv/f16/{}_{}_{}x{}_s{}_{}", in, out, size, size, stride, side),
        .dtype = f16,
        .rows = 64,
        .inputs = [=](int64_t n,
                      DType t) { return Tensors{randn({n, c, s, s}, t), randn({o, c, k, k}, t)}; },
        .op = [=](const Tensors& t) { return conv2d(t[0], t[1], {}, options); },
        .work = 2.0 * double(after * after * o * c * k * k),
        .kind = Figure::Kind::Operations,
        .input_bytes = 2 * double(c * s * s),
        .few = 1};
    measure(report, layer);
    const std::string forward = layer.name;
    layer.name = forward + "/dx", layer.wrt = {0};
    measure(report, layer);
    layer.name = forward + "/dw", layer.wrt = {1};
    measure(report, layer);
  }
}

}  // namespace mixtape::bench
