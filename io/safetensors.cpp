// Reads in three steps: parses JSON to entries, checks the entries against each other and the
// file's size, reads the data into tensors. Tensors must tile the data without overlaps or holes.

#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

using nlohmann::json;

constexpr uint64_t length_bytes = 8;
constexpr uint64_t longest_header = 100'000'000;  // the reference implementation's limit
constexpr const char* metadata_key = "__metadata__";
constexpr std::string_view extension = ".safetensors", index_extension = ".index.json";

constexpr std::pair<const char*, DType> spellings[] = {
    {"F64", f64}, {"F32", f32}, {"F16", f16}, {"BF16", bf16},
    {"I64", i64}, {"I32", i32}, {"U8", u8},   {"BOOL", boolean}};

const char* spelling(DType t) {
  for (const auto& [text, dtype] : spellings)
    if (dtype == t) return text;
  fail("safetensors has no dtype {}", t);
}

struct Entry {
  std::string name;
  DType dtype = f32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

struct Header {
  std::vector<Entry> entries;  // by begin
  Metadata metadata;
};

// Limits depth and array lengths while parsing, and rejects duplicate keys, which JSON would drop.
class Guard {
 public:
  explicit Guard(const std::string& where) : where_(where) {}  // "file: header"

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    constexpr int deepest = 3;  // {"name": {"shape": [2]}}
    switch (event) {
      case json::parse_event_t::object_start:
        keys_.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        check(depth < deepest, "{}: nested deeper than {} levels", where_, deepest);
        items_ = 0;
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) fail("{}: duplicate key {}", where_, quote(key));
        break;
      }
      case json::parse_event_t::value:
        if (depth == deepest)
          check(++items_ <= max_rank, "{}: a list has more than {} numbers", where_, max_rank);
        break;
      case json::parse_event_t::array_end:
        break;
    }
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> keys_;  // of the open objects
  int items_ = 0;
};

// `begin` is the text's offset in the file.
json parse_json(std::string_view text, const std::string& where, uint64_t begin) {
  try {
    return json::parse(text, Guard(where));
  } catch (const json::parse_error& e) {
    fail("{}: invalid JSON near byte {}", where, begin + e.byte);
  } catch (const json::out_of_range&) {
    fail("{}: invalid JSON: a number is too large", where);
  }
}

Entry read_entry(const std::string& name, const json& info, uint64_t data_bytes,
                 const std::string& file) {
  const std::string at = fmt::format("{}: tensor {}", file, quote(name));
  check(info.is_object() && info.size() == 3 && info.contains("dtype") && info.contains("shape") &&
            info.contains("data_offsets"),
        "{}: needs dtype, shape and data_offsets, and nothing else", at);

  Entry entry{name, f32, {}, 0, 0};
  const json& dtype = info["dtype"];
  check(dtype.is_string(), "{}: dtype is not a string", at);
  const auto& spelled = dtype.get_ref<const std::string&>();
  const auto* found = std::ranges::find(spellings, spelled, [](const auto& s) { return s.first; });
  check(found != std::end(spellings), "{}: dtype {} is not supported", at, quote(spelled));
  entry.dtype = found->second;

  const json& shape = info["shape"];
  check(shape.is_array(), "{}: shape is not a list", at);
  for (const json& size : shape) {
    check(size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX,
          "{}: sizes must be integers >= 0, got {}", at, quote(size.dump()));
    entry.shape.push_back(size.get<int64_t>());
  }

  const json& offsets = info["data_offsets"];
  check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
            offsets[1].is_number_unsigned(),
        "{}: data_offsets must be two integers >= 0", at);
  entry.begin = offsets[0];
  entry.end = offsets[1];
  check(entry.begin <= entry.end && entry.end <= data_bytes,
        "{}: data_offsets {} to {} are out of range for {} bytes of data", at, entry.begin,
        entry.end, data_bytes);

  const auto bytes = bytes_needed(entry.shape, entry.dtype);
  check(bytes.has_value(), "{}: the size of {} {} overflows", at, entry.dtype, entry.shape);
  check(*bytes == entry.end - entry.begin, "{}: {} {} needs {} bytes, but data_offsets span {}", at,
        entry.dtype, entry.shape, *bytes, entry.end - entry.begin);
  return entry;
}

// Throws Error unless tensors are contiguous and cover all of the data.
void check_tiling(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
  uint64_t end = 0;
  for (const Entry& e : entries) {
    check(e.begin >= end, "{}: tensor {}: overlaps another at byte {} of the data", file,
          quote(e.name), e.begin);
    check(e.begin == end, "{}: bytes {} to {} of the data belong to no tensor", file, end, e.begin);
    end = e.end;
  }
  check(end == data_bytes, "{}: the last {} bytes belong to no tensor", file, data_bytes - end);
}

Header read_header(std::string_view text, uint64_t data_bytes, const std::string& file) {
  const json root = parse_json(text, file + ": header", length_bytes);
  check(root.is_object(), "{}: header: not a JSON object", file);
  Header header;
  for (const auto& [name, info] : root.items()) {
    if (name != metadata_key) {
      header.entries.push_back(read_entry(name, info, data_bytes, file));
      continue;
    }
    check(info.is_object(), "{}: {} is not an object", file, metadata_key);
    for (const auto& [key, value] : info.items()) {
      check(value.is_string(), "{}: {}: {} is not a string", file, metadata_key, quote(key));
      header.metadata.emplace(key, value);
    }
  }
  std::ranges::sort(header.entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  check_tiling(header.entries, data_bytes, file);
  return header;
}

SafeTensors read_all(const Source& source) {
  const uint64_t size = source.size();
  const std::string& file = source.name();
  check(size >= length_bytes, "{}: has {} bytes, too few for a safetensors file", file, size);
  uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  check(length <= longest_header,
        "{}: a header of {} bytes is above the limit of {}: not a safetensors file, or too many "
        "names",
        file, length, longest_header);
  check(length <= size - length_bytes, "{}: a header of {} bytes does not fit a file of {}", file,
        length, size);
  std::string text(length, ' ');
  source.read(length_bytes, std::as_writable_bytes(std::span(text)));

  const uint64_t data = length_bytes + length;
  Header header = read_header(text, size - data, file);
  SafeTensors result{{}, std::move(header.metadata)};
  for (const Entry& e : header.entries) {
    const Tensor t(e.shape, e.dtype, Device::cpu());
    source.read(data + e.begin, bytes_in(t));
    if (const auto bad = first_bad_bool(t))
      fail("{}: tensor {}: byte {} of the file is not a bool", file, quote(e.name),
           data + e.begin + *bad);
    result.tensors.emplace_back(e.name, t);
  }
  std::ranges::sort(result.tensors, {}, &StateDict::value_type::first);
  return result;
}

std::string header_text(const StateDict& tensors, const Metadata& metadata) {
  auto root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root[metadata_key] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, t] : tensors) {
    const uint64_t end = offset + bytes_of(t);
    root[name] = {{"dtype", spelling(t.dtype())},
                  {"shape", std::vector<int64_t>(t.shape().begin(), t.shape().end())},
                  {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = root.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data starts aligned
  return text;
}

// Throws Error unless all tensors are defined and have unique names.
void check_writable(const std::string& path, const StateDict& tensors) {
  std::set<std::string> names{metadata_key};
  for (const auto& [name, t] : tensors) {
    check(names.insert(name).second, "{}: duplicate or reserved name {}", path, quote(name));
    check(bool(t), "{}: {} is undefined", path, quote(name));
  }
}

void write(AtomicFile& file, StateDict tensors, const Metadata& metadata, const std::string& path) {
  // Sorts by element size, largest first, so that every tensor is aligned.
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    const size_t wa = size_of(a.second.dtype()), wb = size_of(b.second.dtype());
    return wa != wb ? wa > wb : a.first < b.first;
  });
  std::string header;
  try {
    header = header_text(tensors, metadata);
  } catch (const json::type_error&) {
    fail("{}: a name or the metadata is not UTF-8", path);
  }
  check(header.size() <= longest_header, "{}: a header of {} bytes is above the limit of {}", path,
        header.size(), longest_header);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto& [name, t] : tensors)
    for_each_chunk(t, [&](std::span<const std::byte> chunk) { file.write(chunk); });
}

std::vector<StateDict> split(const StateDict& tensors, uint64_t max_bytes) {
  std::vector<StateDict> shards(1);
  uint64_t filled = 0;
  for (const auto& [name, t] : tensors) {
    if (!shards.back().empty() && bytes_of(t) > max_bytes - std::min(filled, max_bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().emplace_back(name, t);
    filled += bytes_of(t);
  }
  return shards;
}

// Throws Error unless the file is beside the index.
void check_shard_name(const std::string& shard, const std::string& where) {
  check(
      shard.ends_with(extension) && shard.find_first_of(std::string_view("/\\\0", 3)) == shard.npos,
      "{}: {} is not the name of a {} file beside the index", where, quote(shard), extension);
}

SafeTensors load_shards(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path, longest_header);
  const auto file_of =
      parse_safetensors_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  std::map<std::string, size_t> shards;  // and the number of their tensors
  for (const auto& [name, shard] : file_of) ++shards[shard];
  SafeTensors all;
  for (const auto& [shard, count] : shards) {
    const std::string file = path.substr(0, path.find_last_of('/') + 1) + shard;
    SafeTensors part = read_all(InputFile(file));
    for (const auto& [name, t] : part.tensors) {
      const auto found = file_of.find(name);
      check(found != file_of.end() && found->second == shard,
            "{}: holds tensor {}, which the index does not place there", file, quote(name));
    }
    if (part.tensors.size() < count)
      for (const auto& [name, owner] : file_of)
        check(owner != shard || part.tensors.contains(name), "{}: lacks tensor {} of the index",
              file, quote(name));
    all.tensors.add("", part.tensors);
    all.metadata.merge(part.metadata);
  }
  std::ranges::sort(all.tensors, {}, &StateDict::value_type::first);
  return all;
}

}  // namespace

void save(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  check_writable(path, tensors);
  AtomicFile file(path);
  write(file, tensors, metadata, path);
  file.commit();
}

void save_sharded(const std::string& path, const StateDict& tensors, const ShardOptions& options) {
  check(path.ends_with(extension), "{}: the name must end in {}", path, extension);
  check(options.max_bytes > 0, "{}: max_bytes must be > 0", path);
  check_writable(path, tensors);
  const std::vector<StateDict> shards = split(tensors, options.max_bytes);
  const std::string stem = path.substr(0, path.size() - extension.size());
  auto weight_map = json::object();
  uint64_t total = 0;
  std::deque<AtomicFile> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        fmt::format("{}-{:05}-of-{:05}{}", stem, i + 1, shards.size(), extension);
    write(files.emplace_back(file), shards[i], options.metadata, file);
    files.back().sync();
    for (const auto& [name, t] : shards[i]) {
      weight_map[name] = file.substr(file.find_last_of('/') + 1);
      total += bytes_of(t);
    }
  }
  const json index{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  files.emplace_back(path + std::string(index_extension)).write(index.dump(2) + '\n');
  files.back().sync();
  for (AtomicFile& file : files) file.commit();
}

SafeTensors load(const std::string& path) {
  return path.ends_with(index_extension) ? load_shards(path) : read_all(InputFile(path));
}

SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  return read_all(InputBytes(file, name));
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text,
                                                           const std::string& name) {
  const json root = parse_json(text, name, 0);
  check(root.is_object() && root.contains("weight_map") && root["weight_map"].is_object(),
        "{}: has no object weight_map", name);
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    check(shard.is_string(), "{}: the file of {} is not a string", name, quote(tensor));
    const auto& file = shard.get_ref<const std::string&>();
    check_shard_name(file, name);
    file_of.emplace(tensor, file);
  }
  return file_of;
}

}  // namespace mixtape::io
