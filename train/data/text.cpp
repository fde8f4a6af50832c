#include "train/data/text.h"

#include <algorithm>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

// Calls f for each character of valid UTF-8, whose first byte determines its length.
template <class F>
void each_character(std::string_view text, F f) {
  for (size_t at = 0, length; at < text.size(); at += length) {
    const auto first = static_cast<unsigned char>(text[at]);
    length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    f(text.substr(at, length));
  }
}

size_t code_point(std::string_view c) {
  size_t code = static_cast<unsigned char>(c[0]);
  if (c.size() > 1) code &= 0x7fu >> c.size();
  for (const char next : c.substr(1)) code = code << 6 | (static_cast<unsigned char>(next) & 0x3f);
  return code;
}

std::string utf8(size_t code) {
  if (code < 0x80) return {char(code)};
  std::string c;
  for (; code >= (size_t(0x40) >> c.size()); code >>= 6)
    c.insert(c.begin(), char(0x80 | (code & 0x3f)));
  c.insert(c.begin(), char(0xff80u >> c.size() | code));
  return c;
}

}  // namespace

Windows::Windows(Tensor tokens, int64_t context, int64_t stride, std::string name)
    : tokens_(std::move(tokens)), context_(context), stride_(stride), name_(std::move(name)) {
  check(tokens_.rank() == 1 && is_integer(tokens_.dtype()) && tokens_.device().is_host(),
        "{}: tokens must be integers [n] on the CPU, got {} {} on {}", name_, tokens_.dtype(),
        tokens_.shape(), tokens_.device());
  check(context > 0 && stride > 0, "{}: context and stride must be > 0, got {} and {}", name_,
        context, stride);
}

int64_t Windows::size() const {
  const int64_t last = tokens_ ? tokens_.size(0) - context_ - 1 : -1;  // last start of a window
  return last < 0 ? 0 : last / stride_ + 1;
}

Example Windows::get(int64_t i) const {
  check_index(i);
  const auto from = [&](int64_t start) {
    return tokens_.with_layout(slice(tokens_.layout(), 0, start, start + context_)).to(i64);
  };
  return {from(i * stride_), from(i * stride_ + 1)};
}

CharText::CharText(std::string_view text, const CharTextOptions& options, const std::string& name) {
  check(io::is_utf8(text), "{}: is not UTF-8", name);
  std::vector<bool> seen(0x110000);
  each_character(text, [&](std::string_view c) { seen[code_point(c)] = true; });
  vocabulary_.reserve(size_t(std::ranges::count(seen, true)));
  for (size_t code = 0; code < seen.size(); ++code)
    if (seen[code]) vocabulary_.push_back(utf8(code));
  const Tensor tokens = encode(text);
  const int64_t n = tokens.size(0), valid = valid_count(n, options.valid_fraction, name);
  const auto part = [&](const char* what, int64_t begin, int64_t end) {
    check(end - begin > options.context,
          "{}: {} characters to {} with, but a window needs {} plus one", name, end - begin, what,
          options.context);
    return Windows(tokens.with_layout(slice(tokens.layout(), 0, begin, end)), options.context,
                   options.stride == 0 ? options.context : options.stride, name);
  };
  parts_ = {part("train", 0, n - valid), part("validate", n - valid, n)};
}

CharText CharText::load(const std::string& path, const CharTextOptions& options) {
  constexpr uint64_t growth = 9;  // tokens are i64
  return CharText(io::as_text(io::read_whole(path, options.max_memory, growth)), options, path);
}

Tensor CharText::encode(std::string_view text) const {
  check(io::is_utf8(text), "{} is not UTF-8", io::quote(text));
  int64_t n = 0;
  each_character(text, [&](std::string_view) { ++n; });
  const Tensor tokens({n}, i64, Device::cpu());
  each_character(text, [&, out = tokens.data<int64_t>()](std::string_view c) mutable {
    const auto found = std::ranges::lower_bound(vocabulary_, c);  // bytes sort like code points
    if (found == vocabulary_.end() || *found != c)
      fail("character {} is not among the {} of the vocabulary", io::quote(c), vocabulary_.size());
    *out++ = found - vocabulary_.begin();
  });
  return tokens;
}

std::string CharText::decode(const Tensor& tokens) const {
  check(is_integer(tokens.dtype()), "tokens must be integers, got {}", tokens.dtype());
  std::string text;
  for (const int64_t token : to_vector<int64_t>(tokens)) {
    check(token >= 0 && size_t(token) < vocabulary_.size(),
          "token {} is out of range for {} characters", token, vocabulary_.size());
    text += vocabulary_[size_t(token)];
  }
  return text;
}

}  // namespace mixtape::train
