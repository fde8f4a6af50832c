#pragma once
// Image classifiers by name, for configuration files and command lines.
//
//   nn::Any net = models::get("resnet50", {.classes = 10});

#include "nn/sequential.h"

namespace mixtape::models {

struct ModelOptions {
  int64_t classes = 0;  // 0: 10 for "simple" and CIFAR's models, 1000 for the others, ImageNet's
  int64_t in_channels = 3;
};
// Makes one of model_names(): resnet18, resnet34, resnet50, resnet101, resnet152, vgg11 to vgg19
// and vgg11_bn to vgg19_bn, with torchvision's parameter names; resnet18_v2 to resnet152_v2;
// resnet20, 32, 44, 56 and 110 for CIFAR; "simple", three convolutions with batch norm and a linear
// layer. Throws Error that lists them if there is no such model.
nn::Any get(std::string_view name, const ModelOptions& options = {});
std::vector<std::string> model_names();  // the names that get() takes

}  // namespace mixtape::models
