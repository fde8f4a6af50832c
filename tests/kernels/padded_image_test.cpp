// Packing of images for convolutions: from planes and from pixels, one by one and in pairs.

#include "kernels/cpu/conv/padded_image.h"

#include <gtest/gtest.h>

#include "core/int_math.h"

namespace mixtape::kernels::cpu {
namespace kernels_padded_image_test {

// Channel c of pixel p of image n, in either order.
std::vector<BFloat16> elements(int64_t channels, int64_t pixels, bool last) {
  std::vector<BFloat16> x(2 * channels * pixels);
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < pixels; ++p)
        x[n * channels * pixels + (last ? p * channels + c : c * pixels + p)] =
            BFloat16(static_cast<float>(1 + n * 100 + c * 10 + p));
  return x;
}

// Two halves make a k_group: channels, as forward sums them, or images, as the weight's gradient.
TEST(PaddedImage, PairsFromPixelsAreThoseFromPlanes) {
  for (const int64_t channels : {2, 3, 8, 17, 40})
    for (const bool of_images : {false, true})
      for (const int64_t odds : {int64_t{0}, channels}) {
        const int64_t rows = 3, columns = 5, plane = rows * columns,
                      k_groups = of_images ? channels : ceil_div(channels, int64_t{2});
        const PaddedImage image({rows, columns}, {1, 2}, {6, 8}, k_groups, k_groups, false);
        std::vector<float> packed[2];
        for (const bool last : {false, true}) {
          const std::vector<BFloat16> x = elements(channels, plane, last);
          const int64_t channel = last ? 1 : plane, pixel = last ? channels : 1;
          const ChannelSource<BFloat16> from =
              of_images ? ChannelSource<BFloat16>{x.data(), x.data() + channels * plane,
                                                  channel,  pixel,
                                                  odds,     true}
                        : ChannelSource<BFloat16>{x.data(), x.data() + channel, 2 * channel,
                                                  pixel,    channels / 2,       true};
          packed[last].resize(image.area());
          image.pack_nhwc(from, k_groups, 0, image.size[0], packed[last].data());
        }
        EXPECT_EQ(0,
                  std::memcmp(packed[0].data(), packed[1].data(), packed[0].size() * sizeof(float)))
            << channels << of_images << odds;
      }
}

}  // namespace kernels_padded_image_test
}  // namespace mixtape::kernels::cpu
