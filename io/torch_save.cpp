// Writes the archive that torch.save writes, with a pickle of protocol 2 that builds a dict.

#include <fmt/format.h>

#include <map>

#include "core/check.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/pickle.h"
#include "io/text.h"
#include "io/torch.h"
#include "io/zip.h"

namespace mixtape::io {
namespace {

class PickleWriter {
 public:
  PickleWriter() { add("\x80\x02}("); }  // PROTO 2, EMPTY_DICT, MARK

  void add(std::string_view opcodes) { text_ += opcodes; }
  void add_text(std::string_view s) {  // BINUNICODE
    add("X");
    number(s.size(), 4);
    add(s);
  }
  void add_int(int64_t x) {  // BININT, or LONG1 of eight bytes
    const bool fits = x == int32_t(x);
    add(fits ? "J" : "\x8a\x08");
    number(uint64_t(x), fits ? 4 : 8);
  }
  void add_tuple(const Shape& numbers) {
    add("(");
    for (const int64_t x : numbers) add_int(x);
    add("t");
  }
  // _rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), or for bytes v3, with a
  // dtype at the end.
  void add_tensor(const Tensor& t, size_t key) {
    const internal::Layout dense(t.shape());
    const TorchDType& dtype = torch_dtype(t.dtype());
    const bool typed = !dtype.storage.empty();
    add(fmt::format("ctorch._utils\n_rebuild_tensor_v{}\n((", typed ? 2 : 3));
    add_text("storage");
    add(typed ? fmt::format("ctorch\n{}\n", dtype.storage) : "ctorch.storage\nUntypedStorage\n");
    add_text(fmt::format("{}", key));
    add_text("cpu");
    add_int(t.numel() * (typed ? 1 : dtype.bytes));
    add("tQ");
    add_int(0);
    add_tuple(dense.shape);
    add_tuple(dense.strides);
    add("\x89"
        "ccollections\nOrderedDict\n)R");
    if (!typed) add(fmt::format("ctorch\n{}\n", dtype.name));
    add("tR");
  }
  const std::string& finish() {
    add("u.");  // SETITEMS, STOP
    return text_;
  }

 private:
  void number(uint64_t value, size_t width) {
    text_.append(reinterpret_cast<const char*>(&value), width);
  }

  std::string text_;
};

// The tensors whose elements are written; of several that are the same, only the first.
class Stored {
 public:
  size_t key(const Tensor& t) {
    std::vector<size_t>& here = keys_[t.raw()];
    for (const size_t i : here)
      if (all_[i].storage() == t.storage() && all_[i].dtype() == t.dtype() &&
          all_[i].layout() == t.layout())
        return i;
    here.push_back(all_.size());
    all_.push_back(t);
    return here.back();
  }
  const std::vector<Tensor>& all() const { return all_; }

 private:
  std::vector<Tensor> all_;
  std::map<const void*, std::vector<size_t>> keys_;  // by the address of the first element
};

}  // namespace

void save_torch(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  check_writable(path, tensors, metadata);
  PickleWriter pickle;
  Stored stored;
  for (const auto& [name, t] : tensors) {
    check(!metadata.contains(name), "{}: duplicate or reserved name {}", path, quote(name));
    pickle.add_text(name);
    pickle.add_tensor(t, stored.key(t));
  }
  for (const auto& [key, value] : metadata) {
    pickle.add_text(key);
    pickle.add_text(value);
  }
  AtomicFile file(path);
  ZipWriter zip(file);
  constexpr uint64_t alignment = 64;  // torch.save's
  const auto add = [&](const std::string& name, std::string_view text) {
    zip.add(
        "archive/" + name, [&](const auto& sink) { sink(std::as_bytes(std::span(text))); },
        alignment);
  };
  add("data.pkl", pickle.finish());
  add("byteorder", "little");
  for (size_t i = 0; i < stored.all().size(); ++i)
    zip.add(
        fmt::format("archive/data/{}", i),
        [&](const auto& sink) { for_each_chunk(stored.all()[i], sink); }, alignment);
  add("version", "3\n");
  zip.finish();
  file.commit();
}

}  // namespace mixtape::io
