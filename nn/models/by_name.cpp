#include "nn/models/by_name.h"

#include <fmt/ranges.h>

#include "core/check.h"
#include "nn/models/cnn.h"
#include "nn/models/resnet.h"

namespace mixtape::models {
namespace {

struct NamedModel {
  const char* name;
  nn::Any (*make)(const ModelOptions& o);
};

ResNetOptions of_imagenet(const ModelOptions& o) {
  return {.num_classes = o.classes > 0 ? o.classes : 1000, .in_channels = o.in_channels};
}

template <int64_t depth>
nn::Any of_cifar(const ModelOptions& o) {
  return CifarResNet({.depth = depth,
                      .num_classes = o.classes > 0 ? o.classes : 10,
                      .in_channels = o.in_channels});
}

nn::Any simple(const ModelOptions& o) {
  nn::Sequential net = simple_cnn({o.in_channels, 32, 64, 128}, {.batch_norm = true});
  net.push_back(nn::Linear(128, o.classes > 0 ? o.classes : 10));
  return net;
}

constexpr NamedModel named_models[] = {
    {"simple", simple},
    {"resnet20", of_cifar<20>},
    {"resnet32", of_cifar<32>},
    {"resnet44", of_cifar<44>},
    {"resnet56", of_cifar<56>},
    {"resnet110", of_cifar<110>},
    {"resnet18", [](const ModelOptions& o) -> nn::Any { return resnet18(of_imagenet(o)); }},
    {"resnet34", [](const ModelOptions& o) -> nn::Any { return resnet34(of_imagenet(o)); }},
    {"resnet50", [](const ModelOptions& o) -> nn::Any { return resnet50(of_imagenet(o)); }},
    {"resnet101", [](const ModelOptions& o) -> nn::Any { return resnet101(of_imagenet(o)); }},
    {"resnet152", [](const ModelOptions& o) -> nn::Any { return resnet152(of_imagenet(o)); }},
};

}  // namespace

nn::Any get(std::string_view name, const ModelOptions& options) {
  check(options.classes >= 0, "classes must be >= 0, got {}", options.classes);
  check(options.in_channels > 0, "in_channels must be > 0, got {}", options.in_channels);
  for (const NamedModel& model : named_models)
    if (model.name == name) return model.make(options);
  fail("\"{}\" is not a model: {}", name, fmt::join(model_names(), ", "));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const NamedModel& model : named_models) names.emplace_back(model.name);
  return names;
}

}  // namespace mixtape::models
