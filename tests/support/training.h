#pragma once
// A small training that tests of Learner share: points in three clusters, and a net for them.

#include <vector>

#include "autograd/ops.h"
#include "core/random.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "train/learner.h"

namespace mixtape::test {

struct Net : nn::Module<Net> {
  nn::Linear up{6, 16}, down{16, 3};
  nn::LayerNorm norm{Shape{16}};
  nn::Dropout drop{0.1};
  Tensor forward(const Tensor& x) const { return down(drop(norm(relu(up(x))))); }
  MIXTAPE_FIELDS(up, norm, drop, down)
};

// Points in three clusters.
inline train::TensorDataset clusters(int64_t n, uint64_t seed) {
  const Seed s(seed);
  const DefaultDevice here(Device::cpu());  // where data sets are
  std::vector<double> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back(double(i % 3));
  const Tensor label = from(labels, {n}, i64);
  return {randn({n, 6}) + 2 * cat({one_hot(label, 3), one_hot(label, 3)}, 1), label, "clusters"};
}

inline train::Loaders loaders(int64_t n = 96, int64_t batch = 16) {
  train::Loaders l;
  l.train.emplace(clusters(n, 1), train::DataLoaderOptions{.batch_size = batch, .shuffle = true});
  l.valid.emplace(clusters(48, 2), train::DataLoaderOptions{.batch_size = 20});
  return l;
}

inline train::LearnerOptions quiet() {
  train::LearnerOptions o;
  o.optimizer = [](auto params) { return optim::AdamW(params, {.lr = 1e-2}); };
  o.metrics = {train::accuracy};
  o.out = nullptr;
  o.progress = false;
  return o;
}

}  // namespace mixtape::test
