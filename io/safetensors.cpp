// A file is read in three steps: entries from the header, while its JSON is parsed; checks of the
// entries against each other and the file's size; tensors from the data. Tensors must tile the data
// without overlaps or gaps.

#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/json.h"
#include "io/text.h"
#include "io/torch.h"

namespace mixtape::io {
namespace {

constexpr uint64_t length_bytes = 8;
constexpr uint64_t longest_header = 100'000'000;  // the reference implementation's limit

constexpr std::pair<std::string_view, DType> spellings[] = {
    {"F64", f64}, {"F32", f32}, {"F16", f16},         {"BF16", bf16},       {"I64", i64},
    {"I32", i32}, {"U8", u8},   {"BOOL", boolean},    {"I8", i8},           {"I16", i16},
    {"U16", u16}, {"U32", u32}, {"F8_E4M3", f8_e4m3}, {"F8_E5M2", f8_e5m2}, {"F8_E8M0", f8_e8m0}};

std::string_view spelling(DType t) {
  for (const auto& [text, dtype] : spellings)
    if (dtype == t) return text;
  fail("safetensors has no dtype {}", t);
}

struct Entry {
  std::string name;
  bool is_here = true;  // true if the dtype is one of ours
  std::string other;    // otherwise the file's name for it
  DType dtype = u8;
  Shape shape;                  // its first sizes, if there are more than a shape holds
  uint64_t rank = 0;            // the number of all
  uint64_t begin = 0, end = 0;  // bytes from the start of the data
};

// Takes a header while it is parsed. Throws Error at the first thing that does not belong in one.
class HeaderReader final : public JsonEvents {
 public:
  HeaderReader(uint64_t data_bytes, const std::string& file)
      : data_bytes_(data_bytes), file_(file) {}

  std::vector<Entry> entries;
  Metadata metadata;

  void open(char bracket) override {
    switch (in_) {
      case Nothing:
        check(bracket == '{', "{}: header: not a JSON object", file_);
        in_ = Names;
        break;
      case Names:
        if (bracket != '{') refuse_value();
        in_ = is_metadata_ ? Strings : Fields;
        break;
      case Fields:
        if (bracket != '[' || field_ == dtype) refuse_field();
        in_ = Numbers;
        break;
      default:
        refuse_value();
    }
  }

  void close() override {
    switch (in_) {
      case Numbers:
        if (field_ == offsets && numbers_ != 2) refuse_field();
        in_ = Fields;
        break;
      case Fields:
        finish_entry();
        [[fallthrough]];
      case Strings:
        in_ = Names;
        break;
      default:
        in_ = Nothing;
    }
  }

  void key(std::string& name) override {
    if (in_ == Fields) return begin_field(name);
    if (in_ == Strings) {
      key_ = std::move(name);
      if (metadata.contains(key_)) refuse_twice(key_);
      return;
    }
    is_metadata_ = name == metadata_key;
    if (is_metadata_) {
      if (std::exchange(has_metadata_, true)) refuse_twice(name);
      return;
    }
    seen_ = 0;
    entries.emplace_back().name = std::move(name);
  }

  void scalar(JsonScalar& value) override {
    check(in_ != Nothing, "{}: header: not a JSON object", file_);
    auto* const text = std::get_if<std::string>(&value);
    if (in_ == Numbers) return add_number(value);
    if (in_ == Strings && text) {
      metadata.emplace(std::move(key_), std::move(*text));
      return;
    }
    if (in_ != Fields) refuse_value();
    if (field_ != dtype || !text) refuse_field();
    const auto* const found =
        std::ranges::find(spellings, *text, [](const auto& s) { return s.first; });
    if (found != std::end(spellings))
      entries.back().dtype = found->second;
    else
      entries.back().other = std::move(*text);
    entries.back().is_here = found != std::end(spellings);
  }

 private:
  enum In { Nothing, Names, Strings, Fields, Numbers };
  enum Field { dtype = 1, shape = 2, offsets = 4, all_fields = 7 };

  std::string at() const { return fmt::format("{}: tensor {}", file_, quote(entries.back().name)); }

  [[noreturn]] void refuse_twice(std::string_view key) const {
    fail("{}: header: duplicate key {}", file_, quote(key));
  }
  [[noreturn]] void refuse_entry() const {
    fail("{}: needs dtype, shape and data_offsets, and nothing else", at());
  }
  [[noreturn]] void refuse_value() const {
    if (in_ == Numbers) refuse_field();
    if (in_ == Strings) fail("{}: {}: {} is not a string", file_, metadata_key, quote(key_));
    if (is_metadata_) fail("{}: {} is not an object", file_, metadata_key);
    refuse_entry();
  }
  [[noreturn]] void refuse_field() const {
    if (field_ == dtype) fail("{}: dtype is not a string", at());
    if (field_ == shape) fail("{}: shape is not a list of numbers", at());
    fail("{}: data_offsets must be two integers >= 0", at());
  }

  void begin_field(std::string_view name) {
    field_ = name == "dtype" ? dtype : name == "shape" ? shape : offsets;
    if (field_ == offsets && name != "data_offsets") refuse_entry();
    if (seen_ & field_) refuse_twice(name);
    seen_ |= field_;
    numbers_ = 0;
  }

  void add_number(const JsonScalar& value) {
    const auto* const number = std::get_if<uint64_t>(&value);
    Entry& e = entries.back();
    if (field_ == offsets) {
      if (!number || numbers_ == 2) refuse_field();
      (numbers_++ == 0 ? e.begin : e.end) = *number;
      return;
    }
    if (!number || *number > INT64_MAX)
      fail("{}: sizes must be integers >= 0, got {}", at(), quote(json_text(value)));
    if (e.rank++ < uint64_t{max_rank}) e.shape.push_back(static_cast<int64_t>(*number));
  }

  void finish_entry() const {
    if (seen_ != all_fields) refuse_entry();
    const Entry& e = entries.back();
    if (e.begin > e.end || e.end > data_bytes_)
      fail("{}: data_offsets {} to {} are out of range for {} bytes of data", at(), e.begin, e.end,
           data_bytes_);
    if (!e.is_here || e.rank > uint64_t{max_rank}) return;
    const auto bytes = bytes_needed(e.shape, e.dtype);
    if (!bytes) fail("{}: the size of {} {} overflows", at(), e.dtype, e.shape);
    if (*bytes != e.end - e.begin)
      fail("{}: {} {} needs {} bytes, but data_offsets span {}", at(), e.dtype, e.shape, *bytes,
           e.end - e.begin);
  }

  const uint64_t data_bytes_;
  const std::string& file_;
  In in_ = Nothing;
  std::string key_;  // of metadata
  bool is_metadata_ = false, has_metadata_ = false;
  Field field_ = dtype;
  int seen_ = 0;     // fields of the last entry
  int numbers_ = 0;  // numbers of its data_offsets
};

// Sorts the entries by their place. Throws Error unless names are unique and tensors cover all of
// the data without overlaps.
void check_entries(std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
  std::ranges::sort(entries, {}, &Entry::name);
  const auto twice = std::ranges::adjacent_find(entries, {}, &Entry::name);
  if (twice != entries.end()) fail("{}: header: duplicate key {}", file, quote(twice->name));
  std::ranges::sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
  uint64_t end = 0;
  for (const Entry& e : entries) {
    if (e.begin < end)
      fail("{}: tensor {}: overlaps another at byte {} of the data", file, quote(e.name), e.begin);
    check(e.begin == end, "{}: bytes {} to {} of the data belong to no tensor", file, end, e.begin);
    end = e.end;
  }
  check(end == data_bytes, "{}: the last {} bytes belong to no tensor", file, data_bytes - end);
}

std::string read_text(const Source& source) {
  const uint64_t size = source.size();
  const std::string& file = source.name();
  check(size >= length_bytes, "{}: has {} bytes, too few for a safetensors file", file, size);
  uint64_t length = 0;
  source.read(0, std::as_writable_bytes(std::span(&length, 1)));
  const bool fits = length <= longest_header && length <= size - length_bytes;
  // If the header is truncated, only its first byte is read.
  std::string text(fits ? length : std::min<uint64_t>(1, size - length_bytes), ' ');
  source.read(length_bytes, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with('{'))
    if (const std::string other = but_is(source); !other.empty())
      fail("{}: not a safetensors file{}", file, other);
  check(length <= longest_header,
        "{}: a header of {} bytes is above the limit of {}: not a safetensors file, or too many "
        "names",
        file, length, longest_header);
  check(fits, "{}: a header of {} bytes does not fit a file of {}", file, length, size);
  return text;
}

Tensor read_tensor(const Source& source, const Entry& e, uint64_t data) {
  const Tensor t(e.is_here ? e.shape : Shape{static_cast<int64_t>(e.end - e.begin)}, e.dtype,
                 Device::cpu());
  source.read(data + e.begin, bytes_in(t));
  if (const auto bad = first_bad_bool(t))
    fail("{}: tensor {}: byte {} of the file is not a bool", source.name(), quote(e.name),
         data + e.begin + *bad);
  return t;
}

std::string header_text(const StateDict& tensors, const Metadata& metadata) {
  std::string text = "{";
  const auto add_key = [&](std::string_view name) {
    if (!text.ends_with('{')) text += ',';
    text += json_string(name) + ":{";
  };
  if (!metadata.empty()) {
    add_key(metadata_key);
    for (const auto& [key, value] : metadata)
      text += (text.ends_with('{') ? "" : ",") + json_string(key) + ':' + json_string(value);
    text += '}';
  }
  uint64_t offset = 0;
  for (const auto& [name, t] : tensors) {
    const uint64_t end = offset + t.nbytes();
    add_key(name);
    fmt::format_to(std::back_inserter(text),
                   "\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", spelling(t.dtype()),
                   t.shape(), offset, end);
    offset = end;
  }
  text += '}';
  text.resize(internal::round_up(text.size(), size_t{8}), ' ');  // so that the data starts aligned
  return text;
}

}  // namespace

bool ReadOptions::skips(std::string_view name) const {
  return std::ranges::any_of(skip, [&](std::string_view s) {
    return s.ends_with('*') ? name.starts_with(s.substr(0, s.size() - 1)) : name == s;
  });
}

SafeTensors read_safetensors(const Source& source, const ReadOptions& options) {
  const std::string& file = source.name();
  std::string text = read_text(source);
  const uint64_t data = length_bytes + text.size();
  HeaderReader header(source.size() - data, file);
  parse_json(std::exchange(text, {}), file + ": header", length_bytes, header);
  check_entries(header.entries, source.size() - data, file);
  std::erase_if(header.entries, [&](const Entry& e) { return options.skips(e.name); });
  SafeTensors result{{}, std::move(header.metadata), {}};
  for (const Entry& e : header.entries) check_rank(e.rank, e.name, file);
  for (const Entry& e : header.entries)
    if (!e.is_here) result.raw.push_back({e.name, e.other, e.shape});
  if (!options.keep_bytes) check_dtypes(result.raw, file);

  result.tensors.reserve(header.entries.size());
  for (const Entry& e : header.entries)
    result.tensors.emplace_back(e.name, read_tensor(source, e, data));
  std::ranges::sort(result.tensors, {}, &StateDict::value_type::first);
  std::ranges::sort(result.raw, {}, &RawTensor::name);
  return result;
}

SafeTensors parse_safetensors(std::span<const std::byte> file, const std::string& name,
                              const ReadOptions& options) {
  return read_safetensors(InputBytes(file, name), options);
}

void save(const std::string& path, const StateDict& unsorted, const Metadata& metadata) {
  if (is_torch_name(path)) return save_torch(path, unsorted, metadata);
  check(!has_extension(path, ".gguf"), "{}: train::save_gguf writes models, io::save_gguf tensors",
        path);
  check(!path.ends_with(index_extension),
        "{}: load() reads a file of this name as an index of shards: end it in .safetensors", path);
  check_writable(path, unsorted, metadata);
  // Sorted by element size, largest first, so that every tensor is aligned.
  StateDict tensors = unsorted;
  std::ranges::sort(tensors, [](const auto& a, const auto& b) {
    const size_t wa = size_of(a.second.dtype()), wb = size_of(b.second.dtype());
    return wa != wb ? wa > wb : a.first < b.first;
  });
  const std::string header = header_text(tensors, metadata);
  const uint64_t length = header.size();
  check(length <= longest_header, "{}: a header of {} bytes is above the limit of {}", path, length,
        longest_header);
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto& [name, t] : tensors) write_elements(file, t);
  file.commit();
}

}  // namespace mixtape::io
