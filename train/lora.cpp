#include "train/lora.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/check.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "nn/linear.h"
#include "train/config_reader.h"

namespace mixtape::train {
namespace {

std::string file_in(const std::string& folder, const char* name) {
  return (std::filesystem::path(folder) / name).string();
}

constexpr const char* weights_file = "adapter_model.safetensors";
constexpr const char* config_file = "adapter_config.json";

}  // namespace

void save_lora(const std::string& folder, nn::ModuleBase& net, const nn::LoraOptions& o) {
  const StateDict adapters = nn::lora_state_dict(net);
  check(!adapters.empty(), "there are no adapters to save");
  std::string targets;  // paths, not names: no others end in them
  for (const auto& [path, module] : net.named_modules())
    if (const auto* const layer = dynamic_cast<nn::Linear*>(module); layer && layer->lora_A)
      targets += (targets.empty() ? "" : ", ") + io::json_string(path);
  std::filesystem::create_directories(folder);
  io::save(file_in(folder, weights_file), adapters, {{"format", "pt"}});
  io::AtomicFile file(file_in(folder, config_file));
  file.write(fmt::format(
      "{{\n  \"peft_type\": \"LORA\",\n  \"r\": {},\n  \"lora_alpha\": {},\n"
      "  \"lora_dropout\": {},\n  \"bias\": \"none\",\n  \"target_modules\": [{}]\n}}\n",
      o.rank, o.alpha, o.dropout, targets));
  file.commit();
}

nn::LoraOptions load_lora(const std::string& folder, nn::ModuleBase& net) {
  const std::string name = file_in(folder, config_file);
  const std::vector<std::byte> text = io::read_file(name);
  ConfigReader config(name);
  io::parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, name, 0, config);
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
  const std::string path = file_in(folder, weights_file);
  const StateDict adapters = io::load(path).tensors;
  if (adapters.size() > 0) o.dtype = adapters[0].second.dtype();
  nn::add_lora(net, o, adapters);
  return o;
}

}  // namespace mixtape::train
