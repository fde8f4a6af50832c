#pragma once
// A small training for tests of Learner: points in three clusters, a net for them, a callback that
// records events, and the whole state as bytes.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/ops.h"
#include "core/random.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/temp_folder.h"
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
  const DefaultDevice on_cpu(Device::cpu());  // data sets must be there
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

// A learner after one epoch, and its checkpoint.
struct SavedLearner {
  const Seed seed{1};
  const TempFolder folder;
  const std::string file = folder / "a.ckpt";
  train::Learner learner{loaders(), Net(), quiet()};
  SavedLearner() {
    learner.fit(1);
    learner.save(file);
  }
};

// Records every event, and may call a function at one of them.
struct Spy : train::Callback {
  std::string seen, at;
  std::function<void(train::Learner&)> ask;
  void note(std::string_view event, train::Learner& l) {
    seen += seen.empty() ? "" : " ";
    seen += event;
    if (event == at) ask(l);
  }
  void on_train_begin(train::Learner& l) override { note("train", l); }
  void on_epoch_begin(train::Learner& l) override { note("epoch", l); }
  void on_batch_begin(train::Learner& l) override {
    note(l.state.training ? "batch" : "vbatch", l);
  }
  void on_loss_begin(train::Learner& l) override { note(l.state.training ? "loss" : "vloss", l); }
  void on_backward_begin(train::Learner& l) override { note("backward", l); }
  void on_backward_end(train::Learner& l) override { note("backward.", l); }
  void on_step_begin(train::Learner& l) override { note("step", l); }
  void on_step_end(train::Learner& l) override { note("step.", l); }
  void on_batch_end(train::Learner& l) override {
    note(l.state.training ? "batch." : "vbatch.", l);
  }
  void on_valid_begin(train::Learner& l) override { note("valid", l); }
  void on_valid_end(train::Learner& l) override { note("valid.", l); }
  void on_epoch_end(train::Learner& l) override { note("epoch.", l); }
  void on_train_end(train::Learner& l) override { note("train.", l); }
};

using Bytes = std::map<std::string, std::vector<uint8_t>>;

// The whole training state as bytes.
inline Bytes bytes(train::Learner& l) {
  Bytes all;
  for (const auto& [name, t] : l.state_dict()) {
    const Tensor dense = t.contiguous().to(Device::cpu());
    const auto* const data = static_cast<const uint8_t*>(dense.host());
    all[name].assign(data, data + dense.nbytes());
  }
  return all;
}

// The names of tensors that differ.
inline std::string differing(const Bytes& a, const Bytes& b) {
  std::string names;
  for (const auto& [name, data] : a)
    if (!b.contains(name) || b.at(name) != data) names += name + " ";
  for (const auto& [name, data] : b)
    if (!a.contains(name)) names += name + " ";
  return names;
}

// Every precision.
using Choose = void (*)(train::Learner&);
inline const Choose precisions[] = {
    [](train::Learner&) {}, [](train::Learner& l) { l.to_fp16({.growth_interval = 3}); },
    [](train::Learner& l) { l.to_bf16(); }, [](train::Learner& l) { l.to_fp16({.max_noskip = 3}); },
    [](train::Learner& l) { l.to_fp16({.clip = 1, .flat_master = true}); }};

}  // namespace mixtape::test
