// VGG, U-Net and ResNet v2 against the same in PyTorch, and their sizes.
#include <gtest/gtest.h>

#include "nn/models/resnet_v2.h"
#include "nn/models/unet.h"
#include "nn/models/vgg.h"
#include "tests/support/errors.h"
#include "tests/support/modules_reference.h"
#include "tests/support/travel.h"

namespace mixtape::models {
namespace zoo_test {

using test::error;
using test::model;

constexpr ResNetV2Options narrow_resnet{.num_classes = 2, .in_channels = 1, .width = 1};

const test::Models& zoo() {
  static const test::Models all = {
      {"VGG",
       [] {
         return model(
             Vgg(11, {.num_classes = 2, .in_channels = 1, .dropout = 0, .width = 1, .hidden = 3}));
       }},
      {"VGG norm",
       [] {
         return model(Vgg(13, {.num_classes = 2,
                               .in_channels = 1,
                               .batch_norm = true,
                               .dropout = 0,
                               .width = 1,
                               .hidden = 2}));
       }},
      {"UNet", [] { return model(UNet({.in_channels = 1, .num_classes = 2, .width = 1})); }},
      {"ResNetV2", [] { return model(ResNetV2({1, 2, 1, 1}, false, narrow_resnet)); }},
      {"ResNetV2 bottleneck", [] { return model(ResNetV2({1, 1, 1, 2}, true, narrow_resnet)); }},
  };
  return all;
}

struct Zoo : testing::TestWithParam<std::string> {};
TEST_P(Zoo, IsPyTorchs) {
  test::compare(zoo().at(GetParam())(), test::reference("zoo").at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Models, Zoo, testing::ValuesIn(test::names(zoo())), test::test_name);
TEST(Zoo, TravelsInPyTorchsFiles) { test::expect_travels(zoo(), "more_reference"); }
TEST(Zoo, HasEveryCase) { test::expect_complete(zoo(), "zoo"); }

TEST(Zoo, HasThePublishedDepths) {
  for (const auto& [depth, layers] : {std::pair(18, 2), std::pair(34, 6), std::pair(50, 6),
                                      std::pair(101, 23), std::pair(152, 36)}) {
    const ResNetV2 net(depth, narrow_resnet);
    EXPECT_EQ(net.layer3.size(), size_t(layers)) << depth;
    EXPECT_EQ(net.fc.weight.size(1), depth < 50 ? 8 : 32) << depth;
  }
  for (const int depth : {11, 13, 16, 19})  // three of its layers are linear
    EXPECT_EQ(Vgg(depth, {.width = 1, .hidden = 1}).features.size(), size_t(2 * (depth - 3) + 5));
}

TEST(Zoo, SaysWhatDoesNotFit) {
  EXPECT_EQ(error([] { Vgg(12); }), "Vgg: depth must be 11, 13, 16 or 19, got 12");
  EXPECT_EQ(error([] { ResNetV2(20); }), "ResNetV2: depth must be 18, 34, 50, 101 or 152, got 20");
  EXPECT_EQ(error([] { ResNetV2({1, 1}, false); }), "ResNetV2: blocks for 4 layers, got 2");
  EXPECT_EQ(error([] { UNet({.width = 1})(zeros({1, 3, 8, 16})); }),
            "UNet: the input has shape [1, 3, 8, 16], not [n, c, h, w] with at least 16 x 16 "
            "pixels");
}

}  // namespace zoo_test
}  // namespace mixtape::models
