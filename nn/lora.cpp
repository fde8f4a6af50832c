#include "nn/lora.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/format.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"

namespace mixtape::nn {
using namespace internal;
namespace {

constexpr std::string_view peft_prefix = "base_model.model.";

bool is_target(const std::vector<std::string>& targets, const std::string& path) {
  return std::ranges::any_of(targets, [&](const std::string& t) {
    return path == t || (path.ends_with(t) && path[path.size() - t.size() - 1] == '.');
  });
}

// A layer that may get an adapter.
struct Layer {
  std::string path;
  bool is_transposed;
  Tensor *weight, *A, *B;
  LoraScale* scale;

  int64_t in() const { return weight->size(is_transposed ? 0 : 1); }
  int64_t out() const { return weight->size(is_transposed ? 1 : 0); }
};
using Layers = std::vector<Layer>;

std::optional<Layer> layer_of(const std::string& path, ModuleBase* module) {
  const auto of = [&](auto& layer, bool is_transposed) {
    return Layer{path, is_transposed, &layer.weight, &layer.lora_A, &layer.lora_B, &layer.lora};
  };
  if (auto* const layer = dynamic_cast<Linear*>(module)) return of(*layer, false);
  if (auto* const layer = dynamic_cast<models::Conv1D*>(module)) return of(*layer, true);
  return {};
}

Layers adapters_in(ModuleBase& net) {
  Layers found;
  for (const auto& [path, module] : net.named_modules())
    if (const auto layer = layer_of(path, module); layer && *layer->A) found.push_back(*layer);
  return found;
}

// The layers that get adapters.
Layers targets_in(ModuleBase& net, const LoraOptions& o) {
  check(o.rank > 0, "rank must be > 0, got {}", o.rank);
  check(std::isfinite(o.alpha), "alpha must be finite, got {}", o.alpha);
  check(0 <= o.dropout && o.dropout <= 1, "dropout must be from 0 to 1, got {}", o.dropout);
  Layers layers;
  for (const auto& [path, module] : net.named_modules()) {
    const std::optional<Layer> layer = layer_of(path, module);
    if (o.targets.empty() ? !layer : !is_target(o.targets, path)) continue;
    check(layer.has_value(), "{} is a {}, not a Linear", path, type_name(typeid(*module)));
    check(!*layer->A, "{} has an adapter already", path);
    layers.push_back(*layer);
  }
  check(!layers.empty(), "no Linear of {} is among the targets", type_name(typeid(net)));
  // A merged adapter would change every layer that shares the weight.
  const StateDict state = net.state_dict();
  for (const Layer& layer : layers) {
    const std::string own = layer.path.empty() ? "weight" : layer.path + ".weight";
    for (const auto& [name, t] : state)
      check(name == own || t.id() != layer.weight->id(), "{} is {}, too: it cannot have an adapter",
            own, name);
  }
  return layers;
}

std::string peft_name(const std::string& path, char matrix) {
  return std::string(peft_prefix) + path + (path.empty() ? "" : ".") + "lora_" + matrix + ".weight";
}

StateDict state_of(const Layers& layers) {
  StateDict adapters;
  for (const Layer& layer : layers) {
    adapters.emplace_back(peft_name(layer.path, 'A'), layer.A->detach());
    adapters.emplace_back(peft_name(layer.path, 'B'), layer.B->detach());
  }
  return adapters;
}

void copy_into(const StateDict& adapters, const StateDict& from) {
  const NoGrad off;
  for (const auto& [name, t] : adapters) copy_(t, from.at(name).to(t.device()));
}

// Throws Error unless the file has exactly these adapters.
void check_adapters(const StateDict& from, const std::vector<std::pair<std::string, Shape>>& own) {
  check(own.size() == from.size(), "{} tensors for {} of adapters", from.size(), own.size());
  for (const auto& [name, shape] : own) {
    check(from.contains(name), "there is no {}", name);
    check(from.at(name).shape() == shape, "{} has shape {}, not {}", name, from.at(name).shape(),
          shape);
  }
}

void add_adapter(const Layer& layer, const LoraOptions& o) {
  const DType dtype = o.dtype.value_or(layer.weight->dtype());
  const Device device = layer.weight->device();
  const auto make = [&](const Tensor& t) { return parameter(cast(t.detach(), dtype).to(device)); };
  *layer.A = make(init::starting_weight({o.rank, layer.in()}));
  *layer.B = make(zeros({layer.out(), o.rank}));
  *layer.scale = {o.alpha / double(o.rank), o.dropout};
}

// Freezes all but existing adapters, and adds adapters to `layers`.
std::vector<std::string> add_to(const Layers& layers, ModuleBase& net, const LoraOptions& o) {
  for (const auto& [name, p] : net.named_parameters()) {
    if (name.ends_with("lora_A") || name.ends_with("lora_B")) continue;
    p.set_requires_grad(false);
    p.set_grad({});
  }
  std::vector<std::string> paths;
  for (const Layer& layer : layers) {
    add_adapter(layer, o);
    paths.push_back(layer.path);
  }
  return paths;
}

}  // namespace

std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& o) {
  const Scope scope("add_lora");
  return add_to(targets_in(net, o), net, o);
}

std::vector<std::string> add_lora(ModuleBase& net, const LoraOptions& o, const StateDict& values) {
  const Scope scope("add_lora");
  const Layers layers = targets_in(net, o);
  std::vector<std::pair<std::string, Shape>> wanted;
  for (const Layer& layer : layers) {
    wanted.emplace_back(peft_name(layer.path, 'A'), Shape{o.rank, layer.in()});
    wanted.emplace_back(peft_name(layer.path, 'B'), Shape{layer.out(), o.rank});
  }
  check_adapters(values, wanted);
  const std::vector<std::string> paths = add_to(layers, net, o);
  copy_into(state_of(layers), values);
  return paths;
}

void merge_lora(ModuleBase& net) {
  const NoGrad off;
  const NoPolicy in_their_own_dtype;
  for (const Layer& layer : adapters_in(net)) {
    const Tensor weight = layer.is_transposed ? layer.weight->t() : *layer.weight;
    copy_(weight, whole_weight(weight, *layer.A, *layer.B, *layer.scale));
    *layer.A = *layer.B = {};
  }
}

std::vector<LoraLayer> lora_layers(ModuleBase& net) {
  std::vector<LoraLayer> all;
  for (const Layer& layer : adapters_in(net))
    all.push_back({layer.path, layer.is_transposed, layer.A->size(0), layer.scale->scale});
  return all;
}

StateDict lora_state_dict(ModuleBase& net) { return state_of(adapters_in(net)); }

void load_lora_state_dict(ModuleBase& net, const StateDict& from) {
  const Scope scope("load_lora_state_dict");
  const StateDict own = lora_state_dict(net);
  std::vector<std::pair<std::string, Shape>> wanted;
  for (const auto& [name, t] : own) wanted.emplace_back(name, t.shape());
  check_adapters(from, wanted);
  copy_into(own, from);
}

}  // namespace mixtape::nn
