#include "nn/lora.h"

#include <algorithm>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"
#include "nn/linear.h"

namespace mixtape::nn {
using namespace internal;
namespace {

constexpr std::string_view peft_prefix = "base_model.model.";

bool is_target(const std::vector<std::string>& targets, const std::string& path) {
  return std::ranges::any_of(targets, [&](const std::string& t) {
    return path == t || (path.ends_with(t) && path[path.size() - t.size() - 1] == '.');
  });
}

// Linears with adapters, by their paths.
std::vector<std::pair<std::string, Linear*>> adapters_in(ModuleBase& net) {
  std::vector<std::pair<std::string, Linear*>> found;
  for (const auto& [path, module] : net.named_modules())
    if (auto* const layer = dynamic_cast<Linear*>(module); layer && layer->lora_A)
      found.emplace_back(path, layer);
  return found;
}

void add_adapter(Linear& layer, const LoraOptions& o) {
  const int64_t out = layer.weight.size(0), in = layer.weight.size(1);
  const DType dtype = o.dtype.value_or(layer.weight.dtype());
  const Device device = layer.weight.device();
  const auto make = [&](const Tensor& t) { return parameter(cast(t.detach(), dtype).to(device)); };
  layer.lora_A = make(init::starting_weight({o.rank, in}));
  layer.lora_B = make(zeros({out, o.rank}));
  layer.lora = {o.alpha / double(o.rank), o.dropout};
}

}  // namespace

std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& o) {
  const Scope scope("add_lora");
  check(o.rank > 0, "rank must be > 0, got {}", o.rank);
  check(0 <= o.dropout && o.dropout <= 1, "dropout must be from 0 to 1, got {}", o.dropout);
  std::vector<std::pair<std::string, Linear*>> layers;
  for (const auto& [path, module] : net.named_modules()) {
    auto* const layer = dynamic_cast<Linear*>(module);
    if (o.targets.empty() ? !layer : !is_target(o.targets, path)) continue;
    check(layer != nullptr, "{} is a {}, not a Linear", path, type_name(typeid(*module)));
    check(!layer->lora_A, "{} has an adapter", path);
    layers.emplace_back(path, layer);
  }
  check(!layers.empty(), "no Linear of {} is among the targets", type_name(typeid(net)));
  net.requires_grad_(false);
  std::vector<std::string> paths;
  for (const auto& [path, layer] : layers) {
    add_adapter(*layer, o);
    paths.push_back(path);
  }
  return paths;
}

void merge_lora(ModuleBase& net) {
  const NoGrad off;
  const NoPolicy in_their_own_dtype;
  for (const auto& [path, layer] : adapters_in(net)) {
    copy_(layer->weight, layer->whole_weight());
    layer->lora_A = layer->lora_B = {};
  }
}

StateDict lora_state_dict(ModuleBase& net) {
  StateDict adapters;
  for (const auto& [path, layer] : adapters_in(net)) {
    const std::string name = std::string(peft_prefix) + path + (path.empty() ? "" : ".");
    adapters.emplace_back(name + "lora_A.weight", layer->lora_A.detach());
    adapters.emplace_back(name + "lora_B.weight", layer->lora_B.detach());
  }
  return adapters;
}

void load_lora_state_dict(ModuleBase& net, const StateDict& from) {
  const Scope scope("load_lora_state_dict");
  const StateDict own = lora_state_dict(net);
  check(own.size() == from.size(), "{} tensors for {} of adapters", from.size(), own.size());
  for (const auto& [name, t] : own) {
    check(from.contains(name), "there is no {}", name);
    check(from.at(name).shape() == t.shape(), "{} has shape {}, not {}", name,
          from.at(name).shape(), t.shape());
  }
  const NoGrad off;
  for (const auto& [name, t] : own) copy_(t, from.at(name).to(t.device()));
}

}  // namespace mixtape::nn
