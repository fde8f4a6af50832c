// Convolutions of known networks, forward and backward, compared with libtorch's (oneDNN).

#include "bench/case.h"
#include "mixtape.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

struct Conv {
  const char* name;
  int64_t batch, channels, size, out, kernel, stride, padding, groups;
  bool full;  // only with --full
};
constexpr Conv convs[] = {
    {"cnn1", 64, 1, 28, 32, 3, 1, 0, 1, false},
    {"cnn2", 64, 32, 13, 64, 3, 1, 0, 1, false},
    {"resnet20_16", 32, 16, 32, 16, 3, 1, 1, 1, false},
    {"resnet20_32_down", 32, 16, 32, 32, 3, 2, 1, 1, true},
    {"resnet20_64", 32, 64, 8, 64, 3, 1, 1, 1, true},
    {"resnet50_1x1", 4, 64, 56, 256, 1, 1, 0, 1, false},
    {"resnet50_3x3", 4, 128, 28, 128, 3, 1, 1, 1, false},
    {"resnet50_7x7", 4, 3, 224, 64, 7, 2, 3, 1, true},
    {"depthwise", 8, 128, 28, 128, 3, 1, 1, 128, false},
    {"depthwise_7", 8, 960, 7, 960, 3, 1, 1, 960, true},
    {"depthwise_14", 8, 512, 14, 512, 3, 1, 1, 512, true},
    {"depthwise_5x5", 8, 240, 28, 240, 5, 1, 2, 240, true},
    {"depthwise_down", 4, 96, 112, 96, 3, 2, 1, 96, true},
    {"one_3x3", 1, 128, 28, 128, 3, 1, 1, 1, true},
    {"one_7x7", 1, 3, 224, 64, 7, 2, 3, 1, true},
    {"one_depthwise", 1, 128, 28, 128, 3, 1, 1, 128, true},
};

void declare() {
#ifdef MIXTAPE_TORCH
  on_threads(peers::set_threads);
#endif
  for (Conv c : convs) {
    if (c.full && !settings().full && !settings().smoke) continue;
    if (settings().smoke) c.batch = 1, c.size = c.kernel + 2;
    const int64_t side = (c.size + 2 * c.padding - c.kernel) / c.stride + 1;
    const int64_t depth = c.channels / c.groups * c.kernel * c.kernel;
    add({.name = std::string("conv/") + c.name,
         .op = "conv2d",
         .inputs = {{{c.batch, c.channels, c.size, c.size}},
                    {{c.out, c.channels / c.groups, c.kernel, c.kernel}},
                    {{c.out}}},
         .run =
             [=](const std::vector<Tensor>& x) {
               return conv2d(x[0], x[1], x[2],
                             {.stride = {c.stride, c.stride},
                              .padding = {c.padding, c.padding},
                              .groups = c.groups});
             },
         .options = {c.stride, c.padding, c.groups},
         .operations = 2.0 * double(c.batch * c.out * side * side * depth)});
  }
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
