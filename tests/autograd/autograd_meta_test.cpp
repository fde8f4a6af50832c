// AutogradMeta: the gradient of a tensor and its 16-bit copy.
#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace autograd_meta_test {

using test::error;

TEST(AutogradMeta, HoldsTheGradientOfALeaf) {
  const Tensor x = from({1, 2}, {2}).set_requires_grad();
  EXPECT_FALSE(x.grad());
  const Tensor g = from({3, 4}, {2});
  x.set_grad(g);
  EXPECT_TRUE(x.has_grad());
  EXPECT_TRUE(x.grad().is_same(g));
  EXPECT_EQ(error([&] { x.set_grad(from({1}, {1})); }),
            "the gradient must have shape [2], got [1]");
  x.set_grad({});
  EXPECT_FALSE(x.grad());
  EXPECT_EQ(error([] { Tensor().grad(); }),
            "the tensor is undefined: default-constructed or moved from");
}

TEST(AutogradMeta, SetDataDropsAGradientOfAnotherDType) {
  const Tensor x = from({1, 2}, {2}).set_requires_grad(), handle = x;
  x.set_grad(from({5, 6}, {2}));
  x.set_data(from({3, 4}, {2}));
  EXPECT_TRUE(handle.grad()) << "same dtype: the gradient stays";
  x.set_data(from({7, 8}, {2}, f16));
  EXPECT_FALSE(handle.grad()) << "another dtype: the gradient goes";
}

TEST(AutogradMeta, SetDataDropsTheHalfCopy) {
  const Tensor x = from({1, 2}, {2}).set_requires_grad();
  x.set_shadow(from({1, 2}, {2}, bf16));
  EXPECT_EQ(x.shadow().dtype(), bf16);
  x.set_data(from({3, 4}, {2}));
  EXPECT_FALSE(x.shadow());
}

}  // namespace autograd_meta_test
}  // namespace mixtape
