#pragma once
// Trainings whose memory is planned, and measured without amp/plan.h: every model of nn/models, in
// five modes.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amp/autocast.h"
#include "amp/plan.h"
#include "amp/scaler.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/random.h"
#include "nn/models/by_name.h"
#include "nn/models/llama.h"
#include "nn/models/models.h"
#include "nn/models/unet.h"
#include "optim/optimizers.h"

namespace mixtape::test {

struct PlannedModel {
  std::shared_ptr<nn::ModuleBase> module;
  std::function<Tensor(int64_t batch_size, DType input)> loss;
};
struct NamedPlannedModel {
  std::string name;
  std::function<PlannedModel()> make;
  // One of planned_precisions(), for a model of so many parameters that steps take seconds.
  std::optional<size_t> only = {};
};

template <class M>
PlannedModel classifier(const std::shared_ptr<M>& net, nn::ModuleBase* module, int64_t classes,
                        int64_t side) {
  return {{net, module}, [net, classes, side](int64_t n, DType input) {
            const Tensor x = randn({n, 3, side, side}).to(input);
            return cross_entropy((*net)(x).to(f32), randint(0, classes, {n}));
          }};
}
// A model that gives the loss of the next tokens.
template <class M, class Config>
NamedPlannedModel reader(const std::string& name, const Config& config) {
  return {name, [config] {
            const auto net = std::make_shared<M>(config);
            return PlannedModel{net, [net, config](int64_t n, DType) {
                                  const auto tokens = [&] {
                                    return randint(0, config.vocabulary, {n, config.context});
                                  };
                                  return (*net)(tokens(), tokens());
                                }};
          }};
}

inline std::vector<NamedPlannedModel> planned_models() {
  const auto quick = {"simple",   "resnet20",  "resnet32", "resnet44",
                      "resnet56", "resnet110", "resnet18", "resnet18_v2"};
  std::vector<NamedPlannedModel> all;
  for (const std::string& name : models::model_names()) {
    const bool is_large = !std::ranges::count(quick, name);
    all.push_back({name,
                   [name] {
                     const auto net = std::make_shared<nn::Any>(models::get(name, {.classes = 10}));
                     return classifier(net, net->module(), 10, 32);
                   },
                   is_large ? std::optional(all.size() % 5) : std::nullopt});
  }
  all.push_back({"UNet", [] {
                   const auto net = std::make_shared<models::UNet>(
                       models::UNetOptions{.in_channels = 3, .num_classes = 2, .width = 8});
                   return PlannedModel{net, [net](int64_t n, DType input) {
                                         const Tensor x = randn({n, 3, 24, 16}).to(input);
                                         return cross_entropy((*net)(x).to(f32),
                                                              randint(0, 2, {n, 24, 16}));
                                       }};
                 }});
  all.push_back({"LstmClassifier", [] {
                   const auto net = std::make_shared<models::LstmClassifier>(
                       50, 3,
                       models::LstmClassifierOptions{.embedding = 12,
                                                     .hidden = 20,
                                                     .num_layers = 2,
                                                     .bidirectional = true,
                                                     .dropout = 0.1});
                   return PlannedModel{net, [net](int64_t n, DType) {
                                         return cross_entropy(
                                             (*net)(randint(0, 50, {n, 9})).to(f32),
                                             randint(0, 3, {n}));
                                       }};
                 }});
  all.push_back({"LstmLanguageModel", [] {
                   const auto net = std::make_shared<models::LstmLanguageModel>(50);
                   return PlannedModel{net, [net](int64_t n, DType) {
                                         const Tensor x = randint(0, 50, {n, 9});
                                         return models::next_token_loss((*net)(x).logits, x);
                                       }};
                 }});
  models::GptConfig gpt{
      .vocabulary = 500, .context = 64, .layers = 2, .heads = 4, .width = 128, .dropout = 0};
  all.push_back(reader<models::Gpt>("Gpt", gpt));
  gpt.checkpoint = true;
  all.push_back(reader<models::Gpt>("Gpt_with_checkpoints", gpt));
  gpt = {.vocabulary = 100, .context = 600, .layers = 1, .heads = 32, .width = 128, .dropout = 0.1};
  all.push_back(reader<models::Gpt>("Gpt_of_long_texts", gpt));
  all.push_back(reader<models::Llama>("Llama", models::LlamaConfig{.vocabulary = 300,
                                                                   .context = 40,
                                                                   .layers = 2,
                                                                   .heads = 4,
                                                                   .kv_heads = 2,
                                                                   .width = 128,
                                                                   .hidden = 200}));
  return all;
}

struct PlannedPrecision {
  std::string name;
  DType low = f32;  // of the region, or with `masters` of the whole model
  bool masters = false;
  optim::CommonOptions common = {};
};
inline std::vector<PlannedPrecision> planned_precisions() {
  return {{"f32"},
          {"f16", f16, false, {.shadow = f16}},
          {"bf16", bf16},
          {"bf16_with_masters", bf16, true, {.multi_precision = true}},
          {"bf16_with_8_bit_state", bf16, false, {.shadow = bf16, .state = i8}}};
}

inline amp::TrainingMaker planned_training(const NamedPlannedModel& model,
                                           const PlannedPrecision& precision) {
  return [model, precision](int64_t batch_size) {
    const PlannedModel net = model.make();
    const bool whole = precision.masters;
    if (whole) net.module->to(precision.low);
    const auto opt = std::make_shared<optim::AdamW>(net.module->parameters(), optim::AdamWOptions{},
                                                    precision.common);
    const auto scaler = std::make_shared<amp::GradScaler>(precision.low);
    const auto step = [=, low = precision.low] {
      opt->zero_grad();
      Tensor loss;
      {
        const amp::Autocast on({.low = low, .enabled = !whole && low != f32});
        loss = net.loss(batch_size, whole ? low : f32);
      }
      scaler->scale(loss).backward();
      scaler->step(*opt);
      scaler->update();
    };
    return amp::PlannedTraining{{opt}, step};
  };
}

// The most bytes that two steps took, the making of the training included.
inline int64_t measured(const amp::TrainingMaker& make, int64_t batch_size, Device device) {
  const DefaultDevice here(device);
  const Seed seed(1);
  const int64_t before = memory_stats(device).in_use;
  reset_peak(device);
  const amp::PlannedTraining training = make(batch_size);
  for (int i = 0; i < 2; ++i) training.step();
  return memory_stats(device).peak - before;
}

}  // namespace mixtape::test
