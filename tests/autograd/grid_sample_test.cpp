// Images sampled at the points of a grid. Numbers are PyTorch's in f64.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "amp/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace grid_sample_test {

Tensor image(DType dtype = f64) {
  return sin(reshape(arange(0, 24, 1, f64), {1, 2, 3, 4})).to(dtype);
}
Tensor points() {  // six, three of them outside
  return from({-1.3, -.9, -.35, .2, .1, .9, .77, -.1, 1.4, .3, -.6, 2.7}, {1, 2, 3, 2}, f64);
}

TEST(GridSample, ReadsWherePyTorchReads) {
  const std::pair<GridSampleOptions, Values> cases[] = {
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Constant, .align_corners = false},
       {0, -0.4846800119, -0.1671665008, 0.5564223457, 0, 0, 0, -0.3231149915, 0.1591205038,
        0.2159412521, 0, 0}},
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Constant, .align_corners = true},
       {-0.04162413724, -0.6777870883, -0.240159384, 0.3411492095, 0.06395742286, 0, -0.2814382768,
        -0.5879355342, 0.1759054269, -0.06805911772, -0.0595808298, 0}},
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Replicate, .align_corners = false},
       {0, -0.4846800119, -0.257179232, 0.5796066101, -0.08865296365, 0.8161863182, -0.536572918,
        -0.3231149915, 0.2448007751, 0.2249388042, -0.2983667166, 0.8900583671}},
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Replicate, .align_corners = true},
       {-0.07568024953, -0.6777870883, -0.240159384, 0.3411492095, 0.1598935571, 0.6430143898,
        -0.5117059579, -0.5879355342, 0.1759054269, -0.06805911772, -0.1489520745, 0.8671714834}},
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Reflect, .align_corners = false},
       {0.08414709848, -0.4846800119, -0.257179232, 0.5796066101, -0.1816034817, 0.2524412954,
        -0.4408989225, -0.3231149915, 0.2448007751, 0.2249388042, -0.3339645241, -0.2495509316}},
      {{.mode = Interpolation::Bilinear, .padding = PadMode::Reflect, .align_corners = true},
       {0.2560200192, -0.6777870883, -0.240159384, 0.3411492095, -0.1513208863, 0.08999514474,
        -0.154533514, -0.5879355342, 0.1759054269, -0.06805911772, -0.3765887091, -0.1813702081}},
      {{.mode = Interpolation::Nearest, .padding = PadMode::Reflect, .align_corners = false},
       {0, -0.9589242747, -0.5440211109, 0.6569865987, 0.6569865987, 0, -0.536572918, -0.9613974919,
        -0.00885130929, 0.1498772097, 0.1498772097, -0.536572918}},
      {{.mode = Interpolation::Nearest, .padding = PadMode::Reflect, .align_corners = true},
       {0, -0.9589242747, -0.5440211109, 0.6569865987, -0.2794154982, 0.8414709848, -0.536572918,
        -0.9613974919, -0.00885130929, 0.1498772097, -0.7509872468, 0.4201670368}},
  };
  for (const auto& [options, want] : cases) {
    expect_near(grid_sample(image(), points(), options), want, 1e-9);
    const auto f = [o = options](const std::vector<Tensor>& in) {
      return grid_sample(in[0], in.size() > 1 ? in[1] : points(), o);
    };
    std::vector<Tensor> inputs{image().set_requires_grad()};
    if (options.mode == Interpolation::Bilinear) inputs.push_back(points().set_requires_grad());
    EXPECT_EQ(gradcheck(f, inputs), "");
  }
}

TEST(GridSample, IsZeroOutsideOfAnyPixels) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Tensor far = from({3, 0, -3, 0, 0, 1e30, 1e30, -1e30, 0, -3}, {1, 1, 5, 2}, f64);
  const Tensor nowhere = from({nan, 0, 0, nan, inf, 0, 0, -inf}, {1, 1, 4, 2}, f64);
  for (const double pixel : {inf, nan}) {
    const Tensor x = full({1, 1, 3, 2}, pixel, f64);
    for (const Interpolation mode : {Interpolation::Nearest, Interpolation::Bilinear})
      expect_near(grid_sample(x, far, {.mode = mode}), {0, 0, 0, 0, 0}, 0);
    expect_near(grid_sample(x, nowhere, {.mode = Interpolation::Nearest}), {0, 0, 0, 0}, 0);
    EXPECT_TRUE(all(isnan(grid_sample(x, nowhere))).item<bool>());
  }
}

TEST(GridSample, OfTheOwnGridIsTheImage) {
  for (const bool corners : {false, true}) {
    const Tensor same =
        affine_grid(from({1, 0, 0, 0, 1, 0}, {1, 2, 3}, f64), {1, 2, 3, 4}, corners);
    expect_near(grid_sample(image(), same, {.align_corners = corners}), to_vector(image()), 1e-9);
  }
}

// Beyond the border nothing changes, so that on it the slope is 0, as PyTorch's.
TEST(GridSample, HasNoSlopeOnTheBorder) {
  const Tensor theta = from({1, 0, 0, 0, 1, 0}, {1, 2, 3}, f64).set_requires_grad();
  for (const bool corners : {false, true})
    for (const PadMode padding : {PadMode::Replicate, PadMode::Reflect})
      for (const Shape& size : {Shape{1, 1, 3, 3}, Shape{1, 2, 1, 1}}) {
        const Tensor grid = affine_grid(theta, size, corners);
        const Tensor y =
            grid_sample(full(size, 5, f64), grid, {.padding = padding, .align_corners = corners});
        expect_near(grad({sum(y)}, {theta})[0], {0, 0, 0, 0, 0, 0}, 1e-12);
      }
  // On a ramp, only the pixel in the middle has a slope.
  const Tensor grid = affine_grid(theta, {1, 1, 1, 3}, true).detach().set_requires_grad();
  const Tensor y = grid_sample(from({0, 2, 6}, {1, 1, 1, 3}, f64), grid,
                               {.padding = PadMode::Replicate, .align_corners = true});
  expect_near(grad({sum(y)}, {grid})[0], {0, 0, 4, 0, 0, 0}, 1e-12);
}

TEST(AffineGrid, IsPyTorchs) {
  const Tensor theta = from({.5, .2, -.1, -.3, 1.1, .25}, {1, 2, 3}, f64).set_requires_grad();
  const Tensor edges = affine_grid(theta, {1, 1, 2, 3});
  expect_near(edges, {-8. / 15, -.1, -.2, -.3, 2. / 15, -.5, -1. / 3, 1, 0, .8, 1. / 3, .6}, 1e-9);
  expect_near(affine_grid(theta, {1, 1, 2, 3}, true),
              {-.8, -.55, -.3, -.85, .2, -1.15, -.4, 1.65, .1, 1.35, .6, 1.05}, 1e-9);
  expect_near(affine_grid(theta, {1, 1, 1, 2}, true), {-.6, .55, .4, -.05}, 1e-9);
  const Tensor weight = reshape(arange(1, 13, 1, f64), edges.shape());
  expect_near(grad({sum(edges * weight)}, {theta})[0], {5.333333333, 9, 36, 5.333333333, 9, 42},
              1e-9);
}

TEST(GridSample, KeepsPlacesWideInARegion) {
  const Tensor theta = from({1, 0, 0, 0, 1, 0}, {1, 2, 3}), x = randn({1, 1, 64, 64});
  const amp::Autocast on({.low = f16});
  const Tensor grid = affine_grid(theta.to(f16), {1, 1, 64, 64});
  EXPECT_EQ(grid.dtype(), f32);
  EXPECT_EQ(grid_sample(x.to(f16), grid).dtype(), f16);
  expect_near(grid_sample(x, grid), to_vector(x), 1e-4);  // f16: off by 1 / 128 of a pixel
}

// Half a pixel of a large image is below f16's resolution, so a half image may have an f32 grid.
TEST(GridSample, OfANarrowImageAtWidePlaces) {
  for (const DType low : {f16, bf16})
    for (const DType of_grid : {f32, low})
      for (const bool region : {false, true})
        for (const Interpolation mode : {Interpolation::Nearest, Interpolation::Bilinear}) {
          std::optional<amp::Autocast> on;
          if (region) on.emplace(amp::AutocastOptions{.low = low});
          const Tensor x = image(low).set_requires_grad(),
                       grid = points().to(of_grid).set_requires_grad();
          const Tensor y = grid_sample(x, grid, {.mode = mode});
          const Tensor wide = grid_sample(x.to(f64), grid.to(f64), {.mode = mode});
          EXPECT_EQ(y.dtype(), low);
          expect_near(y, to_vector(wide), low == f16 ? 1e-3 : 8e-3);
          sum(y.to(f32)).backward();
          EXPECT_EQ(x.grad().dtype(), low);
          if (mode == Interpolation::Bilinear) {
            EXPECT_EQ(grid.grad().dtype(), of_grid);
          }
        }
}

TEST(GridSample, Errors) {
  const Tensor x = zeros({2, 1, 4, 4});
  EXPECT_ERROR(grid_sample(zeros({4, 4}), zeros({2, 3, 3, 2})),
               "grid_sample: the input has shape [4, 4], not [n, c, h, w]");
  EXPECT_ERROR(grid_sample(x, zeros({1, 3, 3, 2})),
               "grid_sample: the grid for an input of shape [2, 1, 4, 4] must be [n, "
               "h', w', 2], got [1, 3, 3, 2]");
  EXPECT_ERROR(grid_sample(zeros({1, 1, 0, 3}), zeros({1, 2, 2, 2})),
               "grid_sample: an input of shape [1, 1, 0, 3] has no pixels");
  EXPECT_ERROR(grid_sample(x, zeros({2, 3, 3, 2}), {.mode = Interpolation::Bicubic}),
               "grid_sample: mode is Bicubic, not Nearest or Bilinear");
  EXPECT_ERROR(grid_sample(x, zeros({2, 3, 3, 2}), {.padding = PadMode::Circular}),
               "grid_sample: padding is Circular, not Constant, Replicate or Reflect");
  for (const Interpolation mode : {Interpolation::Nearest, Interpolation::Bilinear}) {
    EXPECT_ERROR(grid_sample(x, zeros({2, 3, 3, 2}, f64), {.mode = mode}),
                 "grid_sample: input and grid must both be f64 or neither, got f32 and f64");
    EXPECT_ERROR(grid_sample(x.to(f64), zeros({2, 3, 3, 2}), {.mode = mode}),
                 "grid_sample: input and grid must both be f64 or neither, got f64 and f32");
  }
  EXPECT_ERROR(grid_sample(zeros({2, 1, 4, 4}, i64), zeros({2, 3, 3, 2})),
               "grid_sample: elements must be floats, got i64");
  EXPECT_ERROR(affine_grid(zeros({2, 3}), {2, 1, 4, 4}),
               "affine_grid: theta has shape [2, 3], not [2, 2, 3]");
  EXPECT_ERROR(affine_grid(zeros({2, 2, 3}), {4, 4}),
               "affine_grid: the images have shape [4, 4], not [n, c, h, w]");
}

}  // namespace grid_sample_test
}  // namespace mixtape
