// Several safetensors files with an index. A save never writes to a file that an index may name, so
// the index alone decides which files belong together.

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "io/torch.h"

namespace mixtape::io {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t largest_index = 100'000'000;
constexpr std::string_view extension = ".safetensors";

// Throws Error unless the file is beside the index.
void check_shard_name(const std::string& shard, const std::string& where) {
  if ((!shard.ends_with(extension) && !is_torch_name(shard)) ||
      shard.find_first_of(std::string_view("/\\\0", 3)) != shard.npos)
    fail("{}: {} is not the name of a {} file beside the index", where, quote(shard), extension);
}

// Takes weight_map from an index while it is parsed, and ignores the rest.
class IndexReader final : public JsonEvents {
 public:
  explicit IndexReader(const std::string& file) : file_(file) {}

  std::map<std::string, std::string> file_of;
  bool found = false;

  void open(char bracket) override {
    if (is_map_ && depth_ == 2) refuse_file();
    if (bracket != '{' && (depth_ == 0 || is_map_)) refuse();
    ++depth_;
  }
  void close() override { --depth_; }
  void key(std::string& name) override {
    if (depth_ == 1) {
      is_map_ = name == "weight_map";
      check(!is_map_ || !std::exchange(found, true), "{}: duplicate key {}", file_, quote(name));
    } else if (is_map_) {
      tensor_ = std::move(name);
      if (file_of.contains(tensor_)) fail("{}: duplicate key {}", file_, quote(tensor_));
    }
  }
  void scalar(JsonScalar& value) override {
    if (depth_ == 0 || (is_map_ && depth_ == 1)) refuse();
    if (!is_map_) return;
    auto* const shard = std::get_if<std::string>(&value);
    if (!shard) refuse_file();
    check_shard_name(*shard, file_);
    file_of.emplace(std::move(tensor_), std::move(*shard));
  }

  [[noreturn]] void refuse() const { fail("{}: has no object weight_map", file_); }

 private:
  [[noreturn]] void refuse_file() const {
    fail("{}: the file of {} is not a string", file_, quote(tensor_));
  }

  const std::string& file_;
  int depth_ = 0;
  bool is_map_ = false;  // within the value of weight_map
  std::string tensor_;
};

std::map<std::string, std::string> read_index(const std::string& path) {
  return parse_safetensors_index(as_text(read_file(path, largest_index)), path);
}

SafeTensors read_one(const std::string& path, const ReadOptions& options) {
  const InputFile file(path);
  return is_torch(file) ? read_torch(file, options) : read_safetensors(file, options);
}

SafeTensors load_shards(const std::string& path, const ReadOptions& options) {
  auto file_of = read_index(path);
  std::erase_if(file_of, [&](const auto& entry) { return options.skips(entry.first); });
  std::map<std::string_view, std::set<std::string_view>> tensors_of;  // by shard
  for (const auto& [name, shard] : file_of) tensors_of[shard].insert(name);
  SafeTensors all;
  for (auto& [shard, missing] : tensors_of) {
    const std::string file = path.substr(0, path.find_last_of('/') + 1) + std::string(shard);
    SafeTensors part = read_one(file, options);
    for (const auto& [name, t] : part.tensors)
      if (missing.erase(name) == 0)
        fail("{}: holds tensor {}, which the index does not place there", file, quote(name));
    if (!missing.empty()) fail("{}: lacks tensor {} of the index", file, quote(*missing.begin()));
    all.tensors.add("", part.tensors);
    all.metadata.merge(part.metadata);
    all.raw.insert(all.raw.end(), part.raw.begin(), part.raw.end());
  }
  std::ranges::sort(all.tensors, {}, &StateDict::value_type::first);
  std::ranges::sort(all.raw, {}, &RawTensor::name);
  return all;
}

std::vector<StateDict> split(const StateDict& tensors, uint64_t max_bytes) {
  std::vector<StateDict> shards(1);
  uint64_t filled = 0;
  for (const auto& [name, t] : tensors) {
    if (!shards.back().empty() && t.nbytes() > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace_back(name, t);
    filled += t.nbytes();
  }
  return shards;
}

// The names of a model's shards: STEM-00001-of-00002.safetensors of its first save, then
// STEM.save2-00001-of-00002.safetensors.
class ShardNames {
 public:
  explicit ShardNames(std::string stem) : stem_(std::move(stem)) {}

  std::string of(int64_t save, size_t shard, size_t shards) const {
    return fmt::format("{}{}-{:05}-of-{:05}{}", stem_, save > 1 ? fmt::format(".save{}", save) : "",
                       shard + 1, shards, extension);
  }
  // The number of the save that made a file of this name, or 0 if it is not a shard.
  int64_t save_of(std::string_view name) const {
    if (!name.starts_with(stem_) || !name.ends_with(extension)) return 0;
    name = name.substr(stem_.size(), name.size() - stem_.size() - extension.size());
    int64_t save = 1;
    if (constexpr std::string_view mark = ".save"; name.starts_with(mark)) {
      const auto [end, error] =
          std::from_chars(name.data() + mark.size(), name.data() + name.size(), save);
      if (error != std::errc() || save < 2 || save > most) return 0;
      name.remove_prefix(size_t(end - name.data()));
    }
    const size_t of = name.find("-of-");
    return of != name.npos && is_number(name.substr(0, of)) && is_number(name.substr(of + 3)) ? save
                                                                                              : 0;
  }

  static constexpr int64_t most = 1'000'000'000;

 private:
  static bool is_number(std::string_view text) {  // with a hyphen before it
    return text.size() > 5 && text[0] == '-' &&
           std::ranges::all_of(text.substr(1), [](unsigned char c) { return std::isdigit(c); });
  }
  std::string stem_;
};

// A save's files in its folder. Its shards are removed again unless the save is finished.
class ShardFolder {
 public:
  explicit ShardFolder(const std::string& stem)
      : folder_(fs::path(stem).parent_path()), names_(fs::path(stem).filename().string()) {
    std::error_code error;
    for (fs::directory_iterator it(folder_.empty() ? "." : folder_, error), end;
         !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const int64_t save = names_.save_of(AtomicFile::target_of_temporary(name));
      if (save > 0) old_.push_back(name);
      last_ = std::max(last_, save);
    }
  }
  ~ShardFolder() { remove(new_); }

  // The name of the shard that this save writes next.
  std::string add(size_t shard, size_t shards) {
    if (last_ >= ShardNames::most) fail("{}: its number of the save is too large", old_.back());
    return new_.emplace_back(names_.of(last_ + 1, shard, shards));
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void finish() {
    new_.clear();
    remove(old_);
  }

 private:
  void remove(const std::vector<std::string>& names) const {
    std::error_code ignored;
    for (const std::string& name : names)
      if (const std::string target = AtomicFile::target_of_temporary(name); target != name)
        remove_abandoned(path(target));
      else
        fs::remove(folder_ / name, ignored);
  }

  const fs::path folder_;
  const ShardNames names_;
  std::vector<std::string> old_, new_;
  int64_t last_ = 0;  // the highest number of an existing save
};

}  // namespace

void save_sharded(const std::string& path, const StateDict& tensors, const ShardOptions& options) {
  check_path(path);
  check(path.ends_with(extension), "{}: the name must end in {}", path, extension);
  check(options.max_bytes > 0, "{}: max_bytes must be > 0", path);
  check_writable(path, tensors, options.metadata);
  if (const std::string name = fs::path(path).filename().string();
      !is_utf8(name) || name.find('\\') != name.npos)
    fail("{}: the index cannot hold the name: it must be UTF-8 without \\", quote(path));
  ShardFolder folder(path.substr(0, path.size() - extension.size()));
  const std::vector<StateDict> shards = split(tensors, options.max_bytes);
  std::map<std::string_view, std::string> file_of;
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = folder.add(i, shards.size());
    for (const auto& [tensor, t] : shards[i]) {
      file_of.emplace(tensor, name);
      total += t.nbytes();
    }
    save(folder.path(name), shards[i], options.metadata);
  }
  std::string index = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", total);
  const char* separator = "\n    ";
  for (const auto& [tensor, file] : file_of) {
    index += separator + json_string(tensor) + ": " + json_string(file);
    separator = ",\n    ";
  }
  write_file(path + std::string(index_extension),
             index + (file_of.empty() ? "}\n}\n" : "\n  }\n}\n"));
  folder.finish();
}

SafeTensors load(const std::string& path, const ReadOptions& options) {
  return path.ends_with(index_extension) ? load_shards(path, options) : read_one(path, options);
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& name) {
  IndexReader index(name);
  parse_json(text, name, 0, index);
  if (!index.found) index.refuse();
  return std::move(index.file_of);
}

}  // namespace mixtape::io
