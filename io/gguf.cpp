// Writes version 3: a header with all metadata and the places of tensors, then the tensors at
// multiples of 32 bytes.

#include "io/gguf.h"

#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "io/elements.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

constexpr uint64_t gguf_alignment = 32;
constexpr std::pair<DType, uint32_t> gguf_types[] = {{f32, 0},  {i8, 24},  {i16, 25}, {f16, 1},
                                                     {i32, 26}, {i64, 27}, {f64, 28}, {bf16, 30}};
constexpr uint32_t int32_type = 5, string_type = 8;

uint64_t padding(uint64_t size) { return internal::round_up(size, gguf_alignment) - size; }

class GgufHeader {
 public:
  explicit GgufHeader(const std::string& path) : path_(path) {}
  template <class T>
  void number(T x) {
    text_.append(reinterpret_cast<const char*>(&x), sizeof x);
  }
  void string(std::string_view s) {
    if (!is_utf8(s)) fail("{}: {} is not UTF-8", path_, quote(s));
    number(uint64_t{s.size()});
    text_ += s;
  }
  void value(uint32_t x) {
    number(uint32_t{4});
    number(x);
  }
  void value(float x) {
    number(uint32_t{6});
    number(x);
  }
  void value(const std::string& s) {
    number(string_type);
    string(s);
  }
  void value(const std::vector<std::string>& all) {
    list(string_type, all.size());
    for (const std::string& s : all) string(s);
  }
  void value(const std::vector<int32_t>& all) {
    list(int32_type, all.size());
    for (const int32_t x : all) number(x);
  }
  void pad() { text_.append(padding(text_.size()), '\0'); }
  const std::string& text() const { return text_; }

 private:
  void list(uint32_t type, uint64_t size) {
    number(uint32_t{9});
    number(type);
    number(size);
  }
  const std::string& path_;
  std::string text_ = "GGUF";
};

void add_place(GgufHeader& header, const std::string& name, const Tensor& t, uint64_t offset,
               const std::string& path) {
  const auto* const type =
      std::ranges::find(gguf_types, t.dtype(), [](auto& p) { return p.first; });
  if (type == std::end(gguf_types))
    fail("{}: {} is {}, which GGUF lacks", path, quote(name), t.dtype());
  constexpr int most = 4;
  if (t.rank() > most) fail("{}: {} has more than {} dimensions", path, quote(name), most);
  constexpr size_t longest = 63;  // that llama.cpp reads
  if (name.size() > longest)
    fail("{}: the name {} has {} bytes, more than {}", path, quote(name), name.size(), longest);
  header.string(name);
  header.number(uint32_t(std::max(t.rank(), 1)));
  if (t.rank() == 0) header.number(uint64_t{1});
  for (int d = t.rank() - 1; d >= 0; --d) header.number(uint64_t(t.size(d)));
  header.number(type->second);
  header.number(offset);
}

}  // namespace

void save_gguf(const std::string& path, const StateDict& tensors, const GgufMetadata& metadata) {
  check_writable(path, tensors, {});
  GgufHeader header(path);
  header.number(uint32_t{3});
  header.number(uint64_t{tensors.size()});
  header.number(uint64_t{metadata.size()});
  std::set<std::string_view> keys{"", "general.alignment"};  // not the caller's to set
  for (const auto& [key, entry] : metadata) {
    if (!keys.insert(key).second) fail("{}: duplicate or reserved key {}", path, quote(key));
    header.string(key);
    std::visit([&](const auto& x) { header.value(x); }, entry);
  }
  uint64_t offset = 0;
  for (const auto& [name, t] : tensors) {
    add_place(header, name, t, offset, path);
    offset += t.nbytes() + padding(t.nbytes());
  }
  header.pad();
  AtomicFile file(path);
  file.write(header.text());
  for (const auto& [name, t] : tensors) {
    write_elements(file, t);
    file.write(std::string(padding(t.nbytes()), '\0'));
  }
  file.commit();
}

}  // namespace mixtape::io
