// Pictures of networks: what is in which box, and in which color.

#include "train/picture.h"

#include <gtest/gtest.h>

#include "amp/autocast.h"
#include "nn/activation.h"
#include "nn/linear.h"
#include "nn/sequential.h"

namespace mixtape::train {
namespace picture_test {

struct Net : nn::Module<Net> {
  nn::Sequential body{nn::Linear(4, 1000), nn::ReLU()};
  nn::Linear unused{2, 2}, head{1000, 3};
  nn::Softmax softmax;
  Tensor forward(const Tensor& x) const { return softmax(head(body(x))); }
  MIXTAPE_FIELDS(body, unused, head, softmax)
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

TEST(Picture, HasTypesShapesAndDtypes) {
  Net net;
  const Tensor x = zeros({2, 4});
  const std::string svg = picture(net, x);
  EXPECT_EQ(io::graph(net, x), svg);
  for (const char* part :
       {">Net<", ">body  Sequential<", ">0  Linear<", ">1  ReLU<",
        ">5000 parameters   f32 [2, 1000]<", ">head  Linear<", ">3003 parameters   f32 [2, 3]<",
        ">unused  Linear<", ">6 parameters<", ">softmax  Softmax<", ">f32 [2, 3]<"})
    EXPECT_TRUE(has(svg, part)) << part << svg;
  EXPECT_FALSE(has(svg, "bf16"));
  EXPECT_TRUE(net.is_training());
}

// The colors of the legend and of boxes: f32 is 0, bf16 2.
TEST(Picture, ShowsWhereAutocastKeepsF32) {
  Net net;
  const Tensor x = zeros({2, 4});
  const auto marks = [](const std::string& svg, const std::string& color) {
    int n = 0;
    for (size_t at = 0; (at = svg.find("<rect class=\"" + color, at)) != svg.npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(marks(picture(net, x), "b0"), 1 + 6);
  const amp::Autocast on({.low = bf16});
  const std::string svg = picture(net, x);
  EXPECT_TRUE(has(svg, ">bf16<") && has(svg, ">f32<")) << svg;
  EXPECT_EQ(marks(svg, "b2"), 1 + 4) << "the body and both of its layers, and the head";
  EXPECT_EQ(marks(svg, "b0"), 1 + 2) << "the softmax, and so the network";
}

TEST(Picture, TakesAnyModule) {
  const nn::Any net = nn::Linear(4, 2);
  EXPECT_TRUE(has(picture(net, zeros({1, 4})), ">Linear<"));
}

}  // namespace picture_test
}  // namespace mixtape::train
