#include "nn/models/by_name.h"

#include <fmt/ranges.h>

#include "core/check.h"
#include "nn/models/cnn.h"
#include "nn/models/resnet.h"
#include "nn/models/resnet_v2.h"
#include "nn/models/vgg.h"

namespace mixtape::models {
namespace {

struct NamedModel {
  const char* name;
  nn::Any (*make)(const ModelOptions& o);
};

int64_t classes_of(const ModelOptions& o, int64_t by_default) {
  return o.classes > 0 ? o.classes : by_default;
}

template <ResNet (*make)(const ResNetOptions&)>
nn::Any of_imagenet(const ModelOptions& o) {
  return make({.num_classes = classes_of(o, 1000), .in_channels = o.in_channels});
}

template <int depth>
nn::Any of_v2(const ModelOptions& o) {
  return ResNetV2(depth, {.num_classes = classes_of(o, 1000), .in_channels = o.in_channels});
}

template <int depth, bool batch_norm = false>
nn::Any of_vgg(const ModelOptions& o) {
  return Vgg(
      depth,
      {.num_classes = classes_of(o, 1000), .in_channels = o.in_channels, .batch_norm = batch_norm});
}

template <int64_t depth>
nn::Any of_cifar(const ModelOptions& o) {
  return CifarResNet(
      {.depth = depth, .num_classes = classes_of(o, 10), .in_channels = o.in_channels});
}

nn::Any simple(const ModelOptions& o) {
  nn::Sequential net = simple_cnn({o.in_channels, 32, 64, 128}, {.batch_norm = true});
  net.push_back(nn::Linear(128, classes_of(o, 10)));
  return net;
}

constexpr NamedModel named_models[] = {
    {"simple", simple},
    {"resnet20", of_cifar<20>},
    {"resnet32", of_cifar<32>},
    {"resnet44", of_cifar<44>},
    {"resnet56", of_cifar<56>},
    {"resnet110", of_cifar<110>},
    {"resnet18", of_imagenet<resnet18>},
    {"resnet34", of_imagenet<resnet34>},
    {"resnet50", of_imagenet<resnet50>},
    {"resnet101", of_imagenet<resnet101>},
    {"resnet152", of_imagenet<resnet152>},
    {"resnet18_v2", of_v2<18>},
    {"resnet34_v2", of_v2<34>},
    {"resnet50_v2", of_v2<50>},
    {"resnet101_v2", of_v2<101>},
    {"resnet152_v2", of_v2<152>},
    {"vgg11", of_vgg<11>},
    {"vgg13", of_vgg<13>},
    {"vgg16", of_vgg<16>},
    {"vgg19", of_vgg<19>},
    {"vgg11_bn", of_vgg<11, true>},
    {"vgg13_bn", of_vgg<13, true>},
    {"vgg16_bn", of_vgg<16, true>},
    {"vgg19_bn", of_vgg<19, true>},
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
