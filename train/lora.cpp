#include "train/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "core/check.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "nn/models/gpt.h"
#include "train/config_reader.h"
#include "train/run_folder.h"

namespace mixtape::train {
namespace {

std::string file_in(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

constexpr const char* weights_file = "adapter_model.safetensors";
constexpr const char* config_file = "adapter_config.json";

// The prefix of names in PEFT's files that names of `net` lack. Gpt is transformers'
// GPT2LMHeadModel, in which all layers that may have adapters are below "transformer".
std::string_view outer_name(const nn::ModuleBase& net) {
  return dynamic_cast<const models::Gpt*>(&net) ? "transformer." : "";
}
constexpr std::string_view peft_prefix = "base_model.model.";

// The options without which weights are of no use. The file of the weights repeats them, since a
// process may be killed before it writes the other.
io::Metadata options_of_weights(const nn::LoraOptions& o) {
  return {{"r", fmt::format("{}", o.rank)}, {"lora_alpha", fmt::format("{}", o.alpha)}};
}

}  // namespace

void save_lora(const std::string& folder, nn::ModuleBase& net, const nn::LoraOptions& o) {
  StateDict adapters = nn::lora_state_dict(net);
  check(!adapters.empty(), "there are no adapters to save");
  for (auto& [name, t] : adapters) name.insert(peft_prefix.size(), outer_name(net));
  std::string targets;  // paths instead of names, since no other path ends in them
  bool fan_in_fan_out = true;
  for (const nn::LoraLayer& layer : nn::lora_layers(net)) {
    check(layer.rank == o.rank && layer.scale == o.alpha / double(o.rank),
          "{} has an adapter of rank {} and alpha {}, but the options say {} and {}", layer.path,
          layer.rank, layer.scale * double(layer.rank), o.rank, o.alpha);
    targets += (targets.empty() ? "" : ", ") + io::json_string(layer.path);
    fan_in_fan_out = fan_in_fan_out && layer.fan_in_fan_out;  // with both, PEFT decides by type
  }
  const RunFolder files(folder);
  io::Metadata metadata = options_of_weights(o);
  metadata.emplace("format", "pt");
  io::save(files.path(weights_file), adapters, metadata);
  io::write_file(
      files.path(config_file),
      fmt::format("{{\n  \"peft_type\": \"LORA\",\n  \"r\": {},\n  \"lora_alpha\": {},\n"
                  "  \"lora_dropout\": {},\n  \"fan_in_fan_out\": {},\n  \"bias\": \"none\",\n"
                  "  \"target_modules\": [{}]\n}}\n",
                  o.rank, o.alpha, o.dropout, fan_in_fan_out, targets));
}

nn::LoraOptions parse_lora_config(std::string_view json, const std::string& name) {
  ConfigReader config(name);
  io::parse_json(json, name, 0, config);
  config.expect("peft_type", "LORA");
  config.expect("bias", "none");
  check(!config.value<bool>("use_dora", false) && !config.value<bool>("use_rslora", false),
        "{}: use_dora and use_rslora must be false", name);
  for (const char* key : {"alpha_pattern", "rank_pattern"})
    check(!config.has_within(key), "{}: {} must be empty: all adapters have one rank and alpha",
          name, key);
  const std::string start = config.text("init_lora_weights");
  for (const char* kind : {"pissa", "olora", "corda"})
    check(start.find(kind) == start.npos,
          "{}: init_lora_weights {} changes the network's own weights", name, start);
  nn::LoraOptions o{.rank = config.size("r"),
                    .alpha = config.value<double>("lora_alpha"),
                    .dropout = config.value<double>("lora_dropout", 0),
                    .targets = config.list<std::string>("target_modules")};
  if (o.targets == std::vector<std::string>{"all-linear"}) o.targets.clear();
  return o;
}

nn::LoraOptions load_lora(const std::string& folder, nn::ModuleBase& net) {
  const std::string name = file_in(folder, config_file);
  nn::LoraOptions o = parse_lora_config(io::as_text(io::read_file(name)), name);
  const std::string path = file_in(folder, weights_file);
  auto [adapters, saved, unused] = io::load(path);
  for (const auto& [key, value] : options_of_weights(o))
    if (const auto found = saved.find(key); found != saved.end() && found->second != value)
      fail("{}: was saved with {} {}, but {} says {}: they are not of one save", path, key,
           io::quote(found->second), config_file, value);
  const auto remove = [&](std::string& name, size_t at) {
    const std::string_view outer = outer_name(net);
    if (std::string_view(name).substr(std::min(at, name.size())).starts_with(outer))
      name.erase(at, outer.size());
  };
  for (auto& [name, t] : adapters) remove(name, peft_prefix.size());
  for (std::string& target : o.targets) remove(target, 0);
  if (adapters.size() > 0) o.dtype = adapters[0].second.dtype();
  nn::add_lora(net, o, adapters);
  return o;
}

}  // namespace mixtape::train
