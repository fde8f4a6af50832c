#pragma once
// Convolutions for tests of every device's kernels, each with an unusual property.

#include <utility>

#include "kernels/kernels.h"

namespace mixtape::kernels {

struct ConvCase {
  int64_t n, c, h, w, o;
  Window window;
};
inline Window window(std::pair<int64_t, int64_t> size, std::pair<int64_t, int64_t> stride = {1, 1},
                     std::pair<int64_t, int64_t> padding = {0, 0},
                     std::pair<int64_t, int64_t> dilation = {1, 1}, int64_t groups = 1) {
  return {{size.first, size.second},
          {stride.first, stride.second},
          {padding.first, padding.second},
          {dilation.first, dilation.second},
          groups};
}
inline const ConvCase conv_cases[] = {
    {1, 1, 1, 1, 1, window({1, 1})},
    {2, 3, 7, 9, 4, window({3, 3})},
    {2, 3, 7, 9, 4, window({3, 3}, {1, 1}, {1, 1})},
    {3, 2, 8, 8, 5, window({2, 3}, {2, 1}, {1, 2})},
    {1, 2, 11, 10, 3, window({3, 2}, {3, 2}, {0, 1}, {2, 3})},
    {2, 4, 6, 6, 6, window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 2)},
    {2, 4, 9, 5, 4, window({3, 3}, {2, 2}, {1, 1}, {1, 1}, 4)},  // depthwise
    {1, 3, 5, 5, 17, window({1, 1}, {3, 3})},                    // stride beyond the window
    {2, 2, 6, 7, 3, window({2, 2}, {2, 2}, {3, 3})},             // padding beyond the window
    {1, 2, 9, 9, 2, window({3, 3}, {2, 2}, {2, 2}, {2, 2})},  // dilation and stride share a factor
    {1, 1, 40, 33, 20, window({5, 5}, {1, 1}, {2, 2})},       // rows of more than two tiles
    {3, 16, 6, 6, 70, window({3, 3}, {1, 1}, {1, 1})},        // several vectors of channels
    {2, 1, 4, 4, 40, window({4, 4})},                         // one pixel
    {2, 90, 5, 6, 3, window({3, 3})},                         // few outputs of many channels
    {3, 5, 17, 15, 33, window({3, 3}, {2, 3}, {1, 1})},       // several tiles in a row of pixels
    {2, 35, 6, 9, 35, window({3, 2}, {1, 2}, {1, 1}, {1, 1}, 35)},  // depthwise, several vectors
    {1, 1024, 2, 2, 2, window({2, 2}, {1, 1}, {1, 1})},             // pixels whole pages apart
    {40, 2, 5, 5, 3, window({3, 3})},                               // images packed together
    {1, 2, 1, 3000, 3, window({1, 3})},  // more pixels per row than are summed at once
    {1, 3, 37, 19, 40, window({7, 7}, {2, 2}, {3, 3})},  // one image in several bands
    {1, 70, 21, 9, 70, window({3, 3}, {1, 1}, {1, 1}, {1, 1}, 70)},
    {2, 35, 6, 9, 35, window({3, 3}, {1, 1}, {0, 0}, {1, 1}, 35)},  // depthwise, narrow image
    {3, 3, 6, 7, 6,
     window({3, 5}, {1, 1}, {1, 2}, {1, 1}, 3)},  // depthwise, two outputs per channel
    {2, 4, 9, 8, 4, window({3, 3}, {3, 2}, {2, 2}, {1, 2}, 4)},  // depthwise, strided and dilated
    {2, 3, 40, 37, 20, window({16, 16}, {16, 16})},              // strides of many phases
    {3, 4, 20, 33, 6, window({9, 11}, {9, 9}, {2, 3}, {1, 1}, 2)},
    {2, 2, 30, 43, 3, window({3, 4}, {13, 6}, {4, 9}, {2, 3})},
    {2, 1, 1, 300, 7, window({1, 40}, {1, 70}, {0, 5})},
    {2, 5, 12, 25, 5, window({3, 8}, {10, 7}, {1, 9}, {1, 1}, 5)},  // depthwise
    {0, 2, 5, 5, 3, window({3, 3})},
    {2, 3, 5, 5, 0, window({3, 3})},
    {2, 3, 9, 9, 0, window({3, 3}, {9, 9})},
    {2, 0, 5, 5, 3, window({3, 3})},
};

}  // namespace mixtape::kernels
