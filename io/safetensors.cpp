// Reading goes in three steps: JSON to entries, entries checked against each other and the file's
// size, then data straight into tensors. Tensors must tile the data: no overlap, no holes.

#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using nlohmann::json;

constexpr uint64_t length_bytes = 8;
constexpr uint64_t longest_header = 100'000'000;  // the reference implementation's limit
constexpr const char* metadata_key = "__metadata__";

constexpr std::pair<const char*, DType> spellings[] = {
    {"F64", f64}, {"F32", f32}, {"F16", f16}, {"BF16", bf16},
    {"I64", i64}, {"I32", i32}, {"U8", u8},   {"BOOL", boolean}};

const char* spelling(DType t) {
  for (const auto& [text, dtype] : spellings)
    if (dtype == t) return text;
  fail("{} has no name in safetensors", t);
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

// Checks while the parser runs what must not grow first: depth, lengths of arrays; and what a JSON
// object would forget: keys given twice.
class Guard {
 public:
  explicit Guard(const std::string& file) : file_(file) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    constexpr int deepest = 3;  // {"name": {"shape": [2]}}
    switch (event) {
      case json::parse_event_t::object_start:
        keys_.emplace_back();
        [[fallthrough]];
      case json::parse_event_t::array_start:
        check(depth < deepest, "{}: header: nested deeper than {} levels", file_, deepest);
        items_ = 0;
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second)
          fail("{}: header: {} is given twice", file_, quote(key));
        break;
      }
      case json::parse_event_t::value:
        if (depth == deepest)
          check(++items_ <= max_rank, "{}: header: a list has more than {} numbers", file_,
                max_rank);
        break;
      case json::parse_event_t::array_end:
        break;
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;  // of the objects now open
  int items_ = 0;
};

json parse_json(std::string_view text, const std::string& file) {
  try {
    return json::parse(text, Guard(file));
  } catch (const json::parse_error& e) {
    fail("{}: header: invalid JSON near byte {}", file, length_bytes + e.byte);
  } catch (const json::out_of_range&) {
    fail("{}: header: invalid JSON: a number is too large", file);
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
  const auto found = std::find_if(std::begin(spellings), std::end(spellings),
                                  [&](const auto& s) { return spelled == s.first; });
  check(found != std::end(spellings), "{}: dtype {} is not supported", at, quote(spelled));
  entry.dtype = found->second;

  const json& shape = info["shape"];
  check(shape.is_array(), "{}: shape is not a list", at);
  for (const json& size : shape) {
    check(size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX,
          "{}: size {} is not an integer from 0 on", at, quote(size.dump()));
    entry.shape.push_back(size.get<int64_t>());
  }

  const json& offsets = info["data_offsets"];
  check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
            offsets[1].is_number_unsigned(),
        "{}: data_offsets are not two integers from 0 on", at);
  entry.begin = offsets[0];
  entry.end = offsets[1];
  check(entry.begin <= entry.end && entry.end <= data_bytes,
        "{}: data_offsets {} to {} lie outside the {} bytes of data", at, entry.begin, entry.end,
        data_bytes);

  const auto bytes = bytes_needed(entry.shape, entry.dtype);
  check(bytes.has_value(), "{}: the size of {} {} overflows", at, entry.dtype, entry.shape);
  check(*bytes == entry.end - entry.begin, "{}: {} {} takes {} bytes, but data_offsets span {}", at,
        entry.dtype, entry.shape, *bytes, entry.end - entry.begin);
  return entry;
}

// Tensors must follow each other from the first byte of the data to the last.
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
  const json root = parse_json(text, file);
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
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_tiling(header.entries, data_bytes, file);
  return header;
}

SafeTensors read_all(const Source& source) {
  const uint64_t size = source.size();
  const std::string& file = source.name();
  check(size >= length_bytes, "{}: has {} bytes, too few for a safetensors file", file, size);
  uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  check(length <= longest_header, "{}: a header of {} bytes is above the limit of {}", file, length,
        longest_header);
  check(length <= size - length_bytes, "{}: a header of {} bytes does not fit a file of {}", file,
        length, size);
  std::string text(length, ' ');
  source.read(length_bytes, std::as_writable_bytes(std::span(text)));

  const uint64_t data = length_bytes + length;
  Header header = read_header(text, size - data, file);
  SafeTensors result{{}, std::move(header.metadata)};
  for (const Entry& e : header.entries) {
    const Tensor t(e.shape, e.dtype);
    source.read(data + e.begin, bytes_in(t));
    if (const auto bad = first_bad_bool(t))
      fail("{}: tensor {}: byte {} of the file is not a bool", file, quote(e.name),
           data + e.begin + *bad);
    result.tensors.emplace(e.name, t);
  }
  return result;
}

std::string header_text(const NamedTensors& tensors, const Metadata& metadata) {
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

}  // namespace

void save(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  // The widest elements come first: then each tensor is aligned to its own.
  NamedTensors sorted = tensors;
  std::set<std::string> names{metadata_key};
  for (const auto& [name, t] : sorted) {
    check(names.insert(name).second, "{}: the name {} is taken", path, quote(name));
    check(bool(t), "{}: {} is no tensor", path, quote(name));
    check(t.device().is_cpu(), "{}: {} is on {}, not on the cpu", path, quote(name), t.device());
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    const size_t wa = size_of(a.second.dtype()), wb = size_of(b.second.dtype());
    return wa != wb ? wa > wb : a.first < b.first;
  });

  std::string header;
  try {
    header = header_text(sorted, metadata);
  } catch (const json::type_error&) {
    fail("{}: a name or the metadata is not UTF-8", path);
  }
  check(header.size() <= longest_header, "{}: a header of {} bytes is above the limit of {}", path,
        header.size(), longest_header);
  AtomicFile file(path);
  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto& [name, t] : sorted)
    each_run(t, [&](std::span<const std::byte> run) { file.write(run); });
  file.commit();
}

SafeTensors load(const std::string& path) { return read_all(InputFile(path)); }

SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name) {
  return read_all(InputBytes(file, name));
}

}  // namespace mixtape::io
