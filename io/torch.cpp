// A file is read in three steps: values from the pickle; names from the values; and for each
// storage that a name needs, one tensor of its numbers, of which other tensors are views.

#include "io/torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/pickle.h"
#include "io/text.h"
#include "io/zip.h"

namespace mixtape::io {
namespace {

using Value = PickleValue;

constexpr uint64_t longest_pickle = 100'000'000;
constexpr std::string_view zip_magic = "PK\3\4";

// Unfolds the containers of a pickle to names, without those that are left out.
class Names {
 public:
  struct Named {
    std::string name;
    Value value;
  };

  Names(const Pickle& pickle, std::string where, const ReadOptions& options, uint64_t most)
      : pickle_(pickle),
        where_(std::move(where)),
        options_(options),
        memory_(pickle.memory()),
        most_(most) {
    add("", pickle.value(), 0);
    std::ranges::sort(found, {}, &Named::name);
    const auto twice = std::ranges::adjacent_find(found, {}, &Named::name);
    if (twice != found.end()) fail("{}: duplicate name {}", where_, quote(twice->name));
  }

  std::vector<Named> found;  // sorted by name

 private:
  // A container may be in others several times, so that few bytes unfold to many names.
  void add(const std::string& name, const Value& v, int depth) {
    charge(sizeof(Named) + name.size() + bytes(v));
    const bool is_dict = v.kind == Value::Dict && has_names(v),
               is_list = v.kind == Value::List && !is_numbers(v);
    const std::string prefix = depth == 0 ? "" : name + ".";
    if ((is_dict || is_list) && options_.skips(prefix + "*")) return;  // all that it holds
    constexpr int deepest = 64;
    check(depth <= deepest, "{}: {}: dicts and lists nest deeper than {}", where_, quote(name),
          deepest);
    if (is_dict) {
      const std::vector<Value>& items = pickle_.list(v);
      for (size_t i = 0; i + 1 < items.size(); i += 2)
        add(prefix + key(items[i]), items[i + 1], depth + 1);
    } else if (is_list) {
      const std::vector<Value>& elements = pickle_.list(v);
      for (size_t i = 0; i < elements.size(); ++i)
        add(prefix + fmt::format("{}", i), elements[i], depth + 1);
    } else if (v.kind != Value::None && !options_.skips(name)) {
      constexpr uint64_t tensor_bytes = 400;  // of an object with the smallest memory
      charge(tensor_bytes);
      found.push_back({name, v});
    }
  }

  void charge(uint64_t bytes) {
    memory_ += bytes;
    check(memory_ <= most_, "{}: takes more than {} bytes of memory (raise max_memory)", where_,
          most_);
  }

  uint64_t bytes(const Value& v) const {
    if (v.kind == Value::Array) return bytes(pickle_.array(v).data);
    return v.kind == Value::List || v.kind == Value::Dict ? 8 * pickle_.list(v).size() : v.size;
  }

  bool has_names(const Value& dict) const {
    const std::vector<Value>& items = pickle_.list(dict);
    for (size_t i = 0; i < items.size(); i += 2)
      if (items[i].kind != Value::Int && items[i].kind != Value::Text) return false;
    return true;
  }

  bool is_numbers(const Value& v) const {
    const std::vector<Value>& elements = pickle_.list(v);
    return !elements.empty() && std::ranges::all_of(elements, [](const Value& e) {
      return e.kind == Value::Int || e.kind == Value::Float;
    });
  }

  std::string key(const Value& v) const {
    return v.kind == Value::Int ? fmt::format("{}", v.whole) : std::string(pickle_.text(v));
  }

  const Pickle& pickle_;
  const std::string where_;
  const ReadOptions& options_;
  uint64_t memory_;
  const uint64_t most_;
};

// The numbers of a file's storages.
struct Numbers {
  virtual ~Numbers() = default;
  virtual uint64_t bytes(std::string_view key, const std::string& where) const = 0;
  virtual void read(std::string_view key, std::span<std::byte> into) const = 0;
};

class ZipNumbers final : public Numbers {
 public:
  ZipNumbers(const Source& source, const std::map<std::string, ZipEntry>& entries,
             std::string folder)
      : source_(source), entries_(entries), folder_(std::move(folder)) {}

  uint64_t bytes(std::string_view key, const std::string& where) const override {
    const auto found = entries_.find(folder_ + std::string(key));
    if (found == entries_.end()) fail("{}: the file has no storage {}", where, quote(key));
    return found->second.size;
  }
  void read(std::string_view key, std::span<std::byte> into) const override {
    const ZipEntry& entry = entries_.at(folder_ + std::string(key));
    ZipReader reader(source_, entry);
    reader.read(into);
    if (entry.crc != 0) reader.finish();  // PyTorch may leave checksums out
  }

 private:
  const Source& source_;
  const std::map<std::string, ZipEntry>& entries_;
  const std::string folder_;
};

// The storages of an old file, after the pickle: for each, the number of elements, then the
// elements.
class OldNumbers final : public Numbers {
 public:
  OldNumbers(const Source& source, const Pickle& keys, const Pickle& object, uint64_t at)
      : source_(source) {
    std::map<std::string_view, const Pickle::Storage*> storages;
    for (const Pickle::Storage& s : object.storages()) storages.emplace(s.key, &s);
    for (const Value& v : keys.list(keys.value())) {
      const std::string_view key = v.kind == Value::Text ? keys.text(v) : "";
      const auto found = storages.find(key);
      if (found == storages.end())
        fail("{}: no tensor needs its storage {}", source.name(), quote(key));
      const Pickle::Storage& s = *found->second;
      uint64_t numel = 0, bytes = 0;
      source.read(at, std::as_writable_bytes(std::span(&numel, 1)));
      at += sizeof numel;
      const uint64_t width = s.dtype ? s.dtype->bytes : 1;
      if (__builtin_mul_overflow(numel, width, &bytes) || bytes > source.size() - at)
        fail("{}: its storage {} of {} elements does not fit it", source.name(), quote(key), numel);
      places_[std::string(key)] = {at, bytes};
      at += bytes;
    }
    check(at == source.size(), "{}: its last {} bytes belong to no storage", source.name(),
          source.size() - at);
  }

  uint64_t bytes(std::string_view key, const std::string& where) const override {
    const auto found = places_.find(key);
    if (found == places_.end()) fail("{}: the file has no storage {}", where, quote(key));
    return found->second.second;
  }
  void read(std::string_view key, std::span<std::byte> into) const override {
    source_.read(places_.find(key)->second.first, into);
  }

 private:
  const Source& source_;
  std::map<std::string, std::pair<uint64_t, uint64_t>, std::less<>> places_;  // first byte, bytes
};

// Reads each storage once; its tensors share it.
class Storages {
 public:
  Storages(const Pickle& pickle, const Numbers& numbers, uint64_t most)
      : pickle_(pickle), numbers_(numbers), most_(most) {}

  Tensor tensor(const Pickle::Tensor& t, const std::string& where) {
    const Tensor& all = storage(t, where);
    const internal::Layout& l = t.layout;
    check(!t.conjugated && (!t.negated || (t.dtype->here && is_float(*t.dtype->here))),
          "{}: {} that is only marked as conjugated or negated: save its "
          ".resolve_conj().resolve_neg(), or leave it out by .skip",
          where, t.dtype->name);
    if (t.dtype->here) {
      const Tensor view =
          l.shape.size() > 0 ? all.with_layout(l) : Tensor(l.shape, *t.dtype->here, Device::cpu());
      return t.negated ? negated(view, where) : view;
    }
    check(l.is_contiguous(), "{}: {} with strides {} is not kept as bytes", where, t.dtype->name,
          l.strides);
    const int64_t width = t.dtype->bytes, bytes = l.shape.size() * width;
    return bytes > 0 ? all.with_layout(internal::Layout({bytes}).at_offset(l.offset * width))
                     : Tensor({0}, u8, Device::cpu());
  }

 private:
  struct Known {
    const TorchDType* dtype;             // null if untyped
    Tensor bytes = {};                   // u8
    std::map<DType, Tensor> views = {};  // of all bytes
  };

  // All numbers of the tensor's storage, as u8 if its dtype is not one of ours.
  const Tensor& storage(const Pickle::Tensor& t, const std::string& where) {
    const Pickle::Storage& s = pickle_.storages()[t.storage];
    Known& known = known_.try_emplace(s.key, Known{s.dtype}).first->second;
    const auto name = [](const TorchDType* dtype) { return dtype ? dtype->name : "untyped"; };
    check(known.dtype == s.dtype, "{}: its storage is {} and {}", where, name(known.dtype),
          name(s.dtype));
    const uint64_t stored = numbers_.bytes(s.key, where), width = s.dtype ? s.dtype->bytes : 1;
    if (s.numel != stored / width || stored % width != 0)
      fail("{}: its storage {} has {} bytes, not {} elements of {}", where, quote(s.key), stored,
           s.numel, width);
    if (!known.bytes) {
      charge(stored, where);
      known.bytes = Tensor({int64_t(stored)}, u8, Device::cpu());
      numbers_.read(s.key, bytes_in(known.bytes));
    }
    const DType dtype = t.dtype->here.value_or(u8);
    const auto [found, is_new] = known.views.try_emplace(dtype);
    if (!is_new) return found->second;
    const internal::Layout layout({int64_t(stored / size_of(dtype))});
    const Tensor all(known.bytes.storage(), {known.bytes.raw(), dtype, layout});
    if (const auto bad = first_bad_bool(all))
      fail("{}: byte {} of its storage is not a bool", where, *bad);
    return found->second = all;
  }

  void charge(uint64_t bytes, const std::string& where) {
    check((memory_ += bytes) <= most_, "{}: needs more than {} bytes of memory (raise max_memory)",
          where, most_);
  }

  // A copy with the other sign, which is the top bit of an element's last byte.
  Tensor negated(const Tensor& t, const std::string& where) {
    charge(t.nbytes(), where);
    const Tensor made(t.shape(), t.dtype(), Device::cpu());
    const std::span<std::byte> bytes = bytes_in(made);
    auto to = bytes.begin();
    for_each_chunk(t,
                   [&](std::span<const std::byte> part) { to = std::ranges::copy(part, to).out; });
    const size_t width = size_of(t.dtype());
    for (size_t i = width - 1; i < bytes.size(); i += width) bytes[i] ^= std::byte{0x80};
    return made;
  }

  const Pickle& pickle_;
  const Numbers& numbers_;
  const uint64_t most_;
  uint64_t memory_ = 0;
  std::map<std::string_view, Known> known_;
};

Tensor number_tensor(const Value& v) {
  const DType dtype = v.kind == Value::Float ? f64 : v.kind == Value::Int ? i64 : boolean;
  const Tensor t({}, dtype, Device::cpu());
  if (dtype == f64)
    *t.data<double>() = v.real;
  else if (dtype == i64)
    *t.data<int64_t>() = v.whole;
  else
    *t.data<bool>() = v.whole != 0;
  return t;
}

Tensor numbers_tensor(const std::vector<Value>& numbers) {
  const bool whole = std::ranges::all_of(numbers, [](auto& v) { return v.kind == Value::Int; });
  const Tensor t({int64_t(numbers.size())}, whole ? i64 : f64, Device::cpu());
  for (size_t i = 0; i < numbers.size(); ++i)
    if (whole)
      t.data<int64_t>()[i] = numbers[i].whole;
    else
      t.data<double>()[i] =
          numbers[i].kind == Value::Int ? double(numbers[i].whole) : numbers[i].real;
  return t;
}

Tensor bytes_tensor(std::string_view bytes, DType dtype = u8) {
  const Tensor t({int64_t(bytes.size() / size_of(dtype))}, dtype, Device::cpu());
  std::memcpy(t.host(), bytes.data(), bytes.size());
  return t;
}

Tensor array_tensor(const Pickle::Array& a, std::string_view bytes, const std::string& where) {
  const DType dtype = a.type.dtype;
  check(bytes_needed(a.shape, dtype) == bytes.size(), "{}: an array {} of {} has {} bytes", where,
        a.shape, dtype, bytes.size());
  const Tensor t = bytes_tensor(bytes, dtype);
  if (a.type.big_endian) swap_bytes(t);
  if (const auto bad = first_bad_bool(t)) fail("{}: byte {} is not a bool", where, *bad);
  return t.with_layout(a.by_columns ? by_columns(a.shape) : internal::Layout(a.shape));
}

// Makes a tensor from a NumPy value or from bytes.
Tensor data_tensor(const Pickle& pickle, const Value& v, const std::string& where) {
  const bool is_array = v.kind == Value::Array;
  const Value& data = is_array ? pickle.array(v).data : v;
  check(data.kind == Value::Bytes || data.kind == Value::Latin1, "{}: an array has no bytes",
        where);
  const std::string bytes = pickle.content(data);
  return is_array ? array_tensor(pickle.array(v), bytes, where) : bytes_tensor(bytes);
}

[[noreturn]] void refuse(const Pickle& pickle, const Value& v, const std::string& name,
                         const std::string& file) {
  const std::string skip = fmt::format("{{.skip = {{{}}}}}", quote(name));
  if (v.kind == Value::Unknown) {
    const Pickle::Unknown& u = pickle.unknown(v);
    fail(
        "{}: pickle: near byte {}: {} is not among the names of Python that are read; {}save a "
        "state_dict(), or numbers, texts, lists and dicts of tensors",
        file, u.at, quote(std::string(u.module) + "." + std::string(u.name)),
        name.empty() ? "" : fmt::format("leave it out, {}, or ", skip));
  }
  if (v.kind == Value::HighRank) check_rank(v.size, name, file);
  if (v.kind == Value::Dict)
    fail("{}: {}: a key of this dict is neither a text nor an integer: {}", file, quote(name),
         skip);
  fail("{}: {} is neither a tensor nor a number of 64 bits nor a text: {}", file, quote(name),
       skip);
}

// Makes tensors and texts from a pickle's values.
SafeTensors tensors_of(const Pickle& pickle, const Numbers& numbers, const Source& source,
                       const ReadOptions& options, uint64_t most) {
  const Names names(pickle, source.name(), options, most);
  SafeTensors result;
  for (const auto& [name, v] : names.found) {
    if (v.kind != Value::Tensor) continue;
    const Pickle::Tensor& t = pickle.tensor(v);
    if (!t.dtype->here) result.raw.push_back({name, std::string(t.dtype->name), t.layout.shape});
  }
  if (!options.keep_bytes) check_dtypes(result.raw, source.name());
  Storages storages(pickle, numbers, most);
  for (const auto& [name, v] : names.found) {
    const std::string where = fmt::format("{}: tensor {}", source.name(), quote(name));
    switch (v.kind) {
      case Value::Tensor:
        result.tensors.emplace_back(name, storages.tensor(pickle.tensor(v), where));
        break;
      case Value::Text:
        result.metadata.emplace(name, pickle.text(v));
        break;
      case Value::List:
        result.tensors.emplace_back(name, numbers_tensor(pickle.list(v)));
        break;
      case Value::Bool:
      case Value::Int:
      case Value::Float:
        result.tensors.emplace_back(name, number_tensor(v));
        break;
      case Value::Array:
        if (const Value& data = pickle.array(v).data; data.is_unread())
          refuse(pickle, data, name, source.name());
        [[fallthrough]];
      case Value::Bytes:
      case Value::Latin1:
        result.tensors.emplace_back(name, data_tensor(pickle, v, where));
        break;
      default:
        refuse(pickle, v, name, source.name());
    }
  }
  return result;
}

SafeTensors read_zip(const Source& source, const ReadOptions& options, uint64_t most) {
  const std::string& file = source.name();
  constexpr std::string_view pickle_name = "data.pkl";
  std::map<std::string, ZipEntry> entries;
  std::string folder;
  for (const ZipEntry& e : read_zip_directory(source)) {
    if (!entries.emplace(e.name, e).second) fail("{}: duplicate entry {}", file, quote(e.name));
    if (e.name.ends_with(pickle_name) && e.name.find('/') == e.name.size() - pickle_name.size() - 1)
      folder = e.name.substr(0, e.name.size() - pickle_name.size());
  }
  check(!folder.empty() && !entries.contains(folder + "constants.pkl"),
        "{}: not a file of torch.save{}", file, but_is(source));
  const auto content = [&](const std::string& name, uint64_t limit) {
    const auto found = entries.find(folder + name);
    if (found == entries.end()) return std::string();
    check(found->second.size <= limit, "{}: {} of {} bytes is above the limit of {}", file, name,
          found->second.size, limit);
    std::string text(found->second.size, '\0');
    ZipNumbers(source, entries, folder).read(name, std::as_writable_bytes(std::span(text)));
    return text;
  };
  const std::string order = content("byteorder", 100);
  if (!order.empty() && order != "little")
    fail("{}: its byte order is {}, not little", file, quote(order));
  const std::string text = content(std::string(pickle_name), std::min(longest_pickle, most));
  const Pickle pickle(text, file, most);
  return tensors_of(pickle, ZipNumbers(source, entries, folder + "data/"), source, options, most);
}

// Reads an old file: pickles of a magic number, the protocol, the machine that saved, the object,
// and the keys of storages.
SafeTensors read_old(const Source& source, const ReadOptions& options, uint64_t most) {
  const std::string& file = source.name();
  const std::string text = source.head(longest_pickle);
  uint64_t at = 0;
  const auto next = [&] {
    Pickle p(std::string_view(text).substr(at), file, most);
    at += p.length();
    return p;
  };
  next();
  const Pickle protocol = next();
  check(protocol.value().kind == Value::Int && protocol.value().whole == 1001,
        "{}: its protocol is not 1001", file);
  const Pickle machine = next();
  const Value little = machine.item(machine.value(), "little_endian");
  check(little.kind == Value::None || little.whole == 1,
        "{}: its byte order is \"big\", not little", file);
  const Pickle object = next(), keys = next();
  check(keys.value().kind == Value::List, "{}: the keys of its storages are not a list", file);
  return tensors_of(object, OldNumbers(source, keys, object, at), source, options, most);
}

}  // namespace

bool is_torch(const Source& source) {
  const std::string head = source.head(old_torch_bytes);
  return is_old_torch(head) || head.starts_with(zip_magic);
}

bool is_torch_name(std::string_view path) {
  return has_extension(path, ".pt") || has_extension(path, ".pth") || has_extension(path, ".bin");
}

SafeTensors read_torch(const Source& source, const ReadOptions& options) {
  const uint64_t most = memory_limit(source.size(), options.max_memory);
  const bool is_old = is_old_torch(source.head(old_torch_bytes));
  return is_old ? read_old(source, options, most) : read_zip(source, options, most);
}

SafeTensors parse_torch(std::span<const std::byte> file, const std::string& name,
                        const ReadOptions& options) {
  return read_torch(InputBytes(file, name), options);
}

}  // namespace mixtape::io
