// A .npy file consists of a magic number, a version, a Python dictionary literal, and the elements.

#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/formats.h"
#include "io/text.h"
#include "io/zip.h"

namespace mixtape::io {
using namespace internal;
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr uint64_t longest_npy_header = 10'000;  // NumPy's own limit
constexpr std::string_view suffix = ".npy";

struct NpyHeader {
  DType dtype = f32;
  bool big_endian = false, fortran = false;
  Shape shape;
};

// Parses the subset of Python literals that occurs in headers.
class Parser {
 public:
  Parser(std::string_view text, uint64_t begin, const std::string& file)
      : text_(text), begin_(begin), file_(file) {}

  NpyHeader header() {
    NpyHeader h;
    std::set<std::string_view> keys;
    expect('{');
    while (!take('}')) {
      const std::string_view key = string("a key");
      check(keys.insert(key).second, "{}: header: duplicate key {}", file_, quote(key));
      expect(':');
      if (key == "descr")
        dtype(h);
      else if (key == "fortran_order")
        h.fortran = boolean_word();
      else if (key == "shape")
        h.shape = shape();
      else
        fail("{}: header: unknown key {}", file_, quote(key));
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    check(keys.size() == 3, "{}: header: needs descr, fortran_order and shape", file_);
    skip_spaces();
    if (at_ < text_.size()) wanted("the end");
    return h;
  }

 private:
  [[noreturn]] void wanted(std::string_view what) const {
    fail("{}: header: byte {} should be {}", file_, begin_ + at_, what);
  }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) wanted(fmt::format("'{}'", c));
  }
  bool take_word(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string_view string(std::string_view what) {
    const bool single = take('\'');
    if (!single && !take('"')) wanted(what);
    const size_t begin = at_;
    at_ = std::min(text_.find(single ? '\'' : '"', begin), text_.size());
    if (at_ == text_.size()) wanted("the end of a string");
    return text_.substr(begin, at_++ - begin);
  }

  void dtype(NpyHeader& h) {
    check(!take('['), "{}: header: structured arrays are not supported", file_);
    const std::string_view descr = string("a dtype");
    const bool has_order = descr.find_first_of("<>=|") == 0;  // otherwise the machine's
    const std::string_view kind = descr.substr(has_order);
    const auto found = std::find_if(std::begin(numpy_dtypes), std::end(numpy_dtypes),
                                    [&](const auto& s) { return s.first == kind; });
    check(found != std::end(numpy_dtypes),
          "{}: header: dtype {} is not supported (f8 f4 f2 i8 i4 i2 i1 u4 u2 u1 b1 are; convert it "
          "with astype)",
          file_, quote(descr));
    h.dtype = found->second;
    h.big_endian = descr.starts_with('>');
  }

  bool boolean_word() {
    if (take_word("True")) return true;
    if (!take_word("False")) wanted("True or False");
    return false;
  }

  Shape shape() {
    Shape shape;
    expect('(');
    while (!take(')')) {
      check(shape.rank < max_rank, "{}: header: more than {} dimensions", file_, max_rank);
      shape.push_back(integer());
      if (!take(',')) {
        if (shape.rank == 1) wanted("','");  // (3) is not a tuple
        expect(')');
        break;
      }
    }
    return shape;
  }

  int64_t integer() {
    skip_spaces();
    const size_t begin = at_;
    int64_t value = 0;
    bool fits = true;
    for (; at_ < text_.size() && '0' <= text_[at_] && text_[at_] <= '9'; ++at_)
      fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
             !__builtin_add_overflow(value, text_[at_] - '0', &value);
    if (at_ == begin) wanted("a size");
    check(fits, "{}: header: the size at byte {} does not fit 64 bits", file_, begin_ + begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // written by Python 2
    return value;
  }

  const std::string_view text_;
  const uint64_t begin_;
  const std::string& file_;
  size_t at_ = 0;
};

// Reads an array of `size` bytes. next(into) reads the next bytes; other() says what the file is if
// it is not an array.
template <class Next, class Other>
Tensor read_array(uint64_t size, const std::string& file, const Next& next, const Other& other) {
  constexpr uint64_t fixed = 8;  // magic, version
  const auto too_few = [&](uint64_t wanted) {
    check(size >= wanted, "{}: has {} bytes, too few for a .npy file", file, size);
  };
  too_few(fixed);
  std::string text(fixed, ' ');
  next(std::as_writable_bytes(std::span(text)));
  if (!text.starts_with(magic))
    fail("{}: not a .npy file: it starts with other bytes{}", file, other());
  const int major = text[6], minor = text[7];
  check(1 <= major && major <= 3 && minor == 0, "{}: version {}.{} is not supported", file,
        static_cast<uint8_t>(major), static_cast<uint8_t>(minor));

  const uint64_t width = major == 1 ? 2 : 4;
  too_few(fixed + width);
  uint64_t length = 0;
  next(std::as_writable_bytes(std::span(&length, 1)).first(width));
  check(length <= longest_npy_header, "{}: a header of {} bytes is above the limit of {}", file,
        length, longest_npy_header);
  const uint64_t begin = fixed + width;
  check(length <= size - begin, "{}: a header of {} bytes does not fit a file of {}", file, length,
        size);
  text.resize(length);
  next(std::as_writable_bytes(std::span(text)));
  const NpyHeader h = Parser(text, begin, file).header();

  const auto bytes = bytes_needed(h.shape, h.dtype);
  check(bytes.has_value(), "{}: the size of {} {} overflows", file, h.dtype, h.shape);
  check(*bytes == size - begin - length,
        "{}: {} {} needs {} bytes, but from byte {} on there are {}", file, h.dtype, h.shape,
        *bytes, begin + length, size - begin - length);
  const Tensor t(h.shape, h.dtype, Device::cpu());
  next(bytes_in(t));
  if (h.big_endian) swap_bytes(t);
  if (const auto bad = first_bad_bool(t))
    fail("{}: byte {} is not a bool", file, begin + length + *bad);
  return h.fortran ? t.with_layout(by_columns(h.shape)) : t;
}

Tensor read_npy(const Source& source) {
  uint64_t at = 0;
  const auto next = [&](std::span<std::byte> into) {
    source.read(at, into);
    at += into.size();
  };
  return read_array(source.size(), source.name(), next, [&] { return but_is(source); });
}

StateDict read_npz(const Source& source, uint64_t max_memory) {
  const std::vector<ZipEntry> entries = read_zip_directory(source);
  uint64_t bytes = 0;  // entries do not overlap, and each unpacks to at most 1032 times its size
  for (const ZipEntry& e : entries) bytes += e.size;
  check_memory(bytes, source.name(), source.size(), max_memory);
  StateDict tensors;
  std::set<std::string> names;
  for (const ZipEntry& e : entries) {
    const std::string where = fmt::format("{}: {}", source.name(), quote(e.name));
    check(e.name.ends_with(suffix), "{}: is not a .npy file", where);
    const std::string name = e.name.substr(0, e.name.size() - suffix.size());
    check(names.insert(name).second, "{}: duplicate entry", where);
    ZipReader reader(source, e);
    const auto next = [&](std::span<std::byte> into) { reader.read(into); };
    const Tensor t = read_array(e.size, where, next, [] { return ""; });
    reader.finish();
    tensors.emplace_back(name, t);
  }
  return tensors;
}

// The bytes of the file that come before t's elements in row-major order.
std::string npy_header(const Tensor& t, const std::string& where) {
  check(bool(t), "{} is undefined", where);
  const auto spelled = std::find_if(std::begin(numpy_dtypes), std::end(numpy_dtypes),
                                    [&](const auto& s) { return s.second == t.dtype(); });
  check(spelled != std::end(numpy_dtypes),
        "{} is {}, which NumPy does not have: convert it, .to(f32)", where, t.dtype());
  std::string sizes;
  for (const int64_t size : t.shape()) sizes += fmt::format("{}, ", size);
  if (t.rank() > 0) sizes.resize(sizes.size() - (t.rank() == 1 ? 1 : 2));  // (3,) but (3, 4)
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}",
                                 size_of(t.dtype()) == 1 ? '|' : '<', spelled->first, sizes);
  constexpr size_t fixed = 10, alignment = 64;  // the latter of the elements
  text.append(alignment - 1 - (fixed + text.size()) % alignment, ' ');
  text += '\n';
  std::string header(magic);
  header += {'\1', '\0', static_cast<char>(text.size() & 255), static_cast<char>(text.size() >> 8)};
  return header + text;
}

}  // namespace

void save_npy(const std::string& path, const Tensor& t) {
  const std::string header = npy_header(t, path + ": it");
  AtomicFile file(path);
  file.write(header);
  write_elements(file, t);
  file.commit();
}

void save_npz(const std::string& path, const StateDict& tensors) {
  std::set<std::string> names;
  for (const auto& [name, t] : tensors) {
    check(names.insert(name).second, "{}: duplicate name {}", path, quote(name));
    check(is_utf8(name), "{}: the name {} is not UTF-8", path, quote(name));
    npy_header(t, fmt::format("{}: {}", path, quote(name)));
  }
  AtomicFile file(path);
  ZipWriter zip(file);
  for (const auto& [name, t] : tensors)
    zip.add(name + std::string(suffix), [&, &tensor = t](const ZipWriter::Sink& sink) {
      const std::string header = npy_header(tensor, path);
      sink(std::as_bytes(std::span(header)));
      for_each_chunk(tensor, sink);
    });
  zip.finish();
  file.commit();
}

Tensor load_npy(const std::string& path) { return read_npy(InputFile(path)); }
Tensor parse_npy(std::span<const std::byte> file, const std::string& name) {
  return read_npy(InputBytes(file, name));
}
StateDict load_npz(const std::string& path, uint64_t max_memory) {
  return read_npz(InputFile(path), max_memory);
}
StateDict parse_npz(std::span<const std::byte> file, const std::string& name, uint64_t max_memory) {
  return read_npz(InputBytes(file, name), max_memory);
}

}  // namespace mixtape::io
