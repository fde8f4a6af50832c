// Causal attention of GPT-2's size, forward and all gradients, with heads of 64 and 128 features.

#include <fmt/format.h>

#include "bench/gpu/op_case.h"

namespace mixtape::bench {

void measure_attention(Report& report) {
  for (const int64_t features : {64, 128}) {
    const bool smoke = report.settings.smoke;
    const int64_t heads = smoke ? 2 : 768 / features, positions = smoke ? 40 : 1024;
    const double each = double(positions * positions * features);
    OpCase attention{.name = fmt::format("attention/bf16/{}", features),
                     .dtype = bf16,
                     .rows = 16,
                     .inputs =
                         [=](int64_t n, DType t) {
                           const auto one = [&] {
                             return randn({n, heads, positions, features}, t);
                           };
                           return Tensors{one(), one(), one()};
                         },
                     .op =
                         [](const Tensors& t) {
                           return scaled_dot_product_attention(t[0], t[1], t[2], {.causal = true});
                         },
                     // Two products, half of whose results count; backward has five.
                     .work = 2 * double(heads) * each,
                     .kind = Figure::Kind::Operations,
                     .input_bytes = 6 * double(heads * positions * features),
                     .few = 1};
    measure(report, attention);
    attention.name += "/backward", attention.wrt = {0, 1, 2}, attention.work *= 2.5;
    measure(report, attention);
  }
}

}  // namespace mixtape::bench
