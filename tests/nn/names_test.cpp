// Both namespaces at once: names of modules and their options do not clash with those of ops.
#include <gtest/gtest.h>

#include "nn/nn.h"

namespace mixtape_names_test {

using namespace mixtape;
using namespace mixtape::nn;

TEST(Names, OfOpsAndModulesDiffer) {
  const Sequential net(Conv2d(1, 4, 3, {.padding = 1, .bias = false}),
                       BatchNorm2d(4, {.eps = 1e-4}), ReLU(), MaxPool2d(2, {.stride = 2}),
                       Flatten(), Linear(16, 3, {.activation = Activation::Relu}));
  const Tensor x = randn({2, 1, 4, 4}), w = randn({4, 1, 3, 3}), index = ones({2}, i64);
  EXPECT_EQ(net(x).shape(), Shape({2, 3}));
  EXPECT_EQ(conv2d(x, w, {}, Conv2dOptions{.padding = 1}).shape(), Shape({2, 4, 4, 4}));
  EXPECT_EQ(linear(x, ones({3, 4}), {}, LinearOptions{}).shape(), Shape({2, 1, 4, 3}));
  const EmbeddingOptions padded{.padding_idx = 0};
  EXPECT_EQ(Embedding(5, 3, padded)(index).shape(), Shape({2, 3}));
  EXPECT_EQ(embedding(ones({5, 3}), index, padded).shape(), Shape({2, 3}));
  const Conv1d line(1, 2, 3, Conv1d::Options{.stride = 2});
  const ConvTranspose1d back(2, 1, 3, ConvTranspose1d::Options{.stride = 2});
  EXPECT_EQ(back(line(ones({1, 1, 9}))).shape(), Shape({1, 1, 9}));
  const Linear::Options no_bias{.bias = false};
  EXPECT_EQ(Linear(3, 2, no_bias).parameters().size(), 1U);
  EXPECT_EQ(BatchNorm1d(2, BatchNorm1d::Options{.affine = false}).parameters().size(), 0U);
}

}  // namespace mixtape_names_test

// A program's own names at top level, which a library's internals must not take.
using namespace mixtape;

struct Policy : nn::Module<Policy> {
  nn::Linear actor{2, 3};
  MIXTAPE_FIELDS(actor)
};
struct Generator : nn::Module<Generator> {
  nn::Linear up{2, 4};
  MIXTAPE_FIELDS(up)
};
template <class... T>
struct Names {};
struct Node;
struct Event;
struct Range;
struct View;
struct Layout;
struct Scope;
struct Call;
struct Observer;
using Own = Names<Node, Event, Range, View, Layout, Scope, Call, Observer>;

TEST(Names, InternalOnesAreFreeForPrograms) {
  EXPECT_EQ(Policy().parameters().size(), 2U);
  EXPECT_EQ(Generator().parameters().size(), 2U);
  [[maybe_unused]] const Own own;
}
