// Modules: the functions and variables of a file of PTX, and the words of which its text is made.
#include <algorithm>
#include <charconv>

#include "emulator/ptx/text.h"

namespace mixtape::ptx {

[[noreturn]] void unknown(std::string_view what, std::string_view where) {
  throw Fault("PTX not understood: " + std::string(what) + ": " + std::string(where));
}

namespace {
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.';
}
}  // namespace

size_t word_end(std::string_view text, size_t i) {
  while (i < text.size() && (is_word(text[i]) || text.substr(i, 2) == "::"))
    i += is_word(text[i]) ? 1 : 2;
  return i;
}
std::vector<std::string_view> tokens_of(std::string_view text) {
  std::vector<std::string_view> tokens;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::max(word_end(text, i), i + 1);
    if (!std::isspace(static_cast<unsigned char>(text[i])))
      tokens.push_back(text.substr(i, end - i));
    i = end;
  }
  return tokens;
}
std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t dot; (dot = name.find('.')) != name.npos; name.remove_prefix(dot + 1))
    parts.push_back(name.substr(0, dot));
  parts.push_back(name);
  return parts;
}
std::optional<int64_t> number(std::string_view text) {
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  if (hex) text.remove_prefix(2);
  if (text.ends_with('U')) text.remove_suffix(1);
  uint64_t n = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), n, hex ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return int64_t(n);
}
int64_t to_number(std::string_view text) {
  const auto n = number(text);
  return n ? *n : (unknown("number", text), 0);
}
int width_of(std::string_view type) {
  if (type == ".pred") return 0;
  const auto digits = type.find_first_of("0123456789");
  return int(to_number(type.substr(digits))) / 8;
}
int round_up(int n, int to) { return (n + to - 1) / to * to; }

Declared declared(std::span<const std::string_view> t) {
  Declared d;
  for (size_t i = 0; i < t.size(); ++i) {
    if (t[i] == ".align") {
      d.alignment = int(to_number(t[++i]));
    } else if (t[i] == ".ptr" && i + 1 < t.size() && t[i + 1] == ".align") {
      i += 2;  // the space and alignment of a pointer
    } else if (t[i] == "[") {
      d.open = t[i + 1] == "]";
      d.count = d.open ? 0 : int(to_number(t[i + 1]));
    } else if (t[i] == "=") {
      break;
    } else if (t[i].size() > 1 && t[i][0] == '.' && std::isdigit(t[i].back())) {
      d.width = width_of(t[i]);
    } else if (t[i][0] != '.' && is_word(t[i][0]) && d.name.empty()) {
      d.name = t[i];
    }
  }
  d.alignment = std::max({d.alignment, d.width, 1});
  return d;
}

std::vector<Declared> parameters_of(std::span<const std::string_view> t) {
  std::vector<Declared> all;
  for (size_t i = 0; i < t.size(); ++i)
    if (t[i] == ".param") {
      const auto end =
          std::ranges::find_if(t.subspan(i), [](auto s) { return s == "," || s == ")"; });
      all.push_back(declared({t.begin() + std::ptrdiff_t(i) + 1, end}));
    }
  return all;
}

namespace {

size_t closing(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  unknown("body without end", text.substr(open, 40));
}

std::vector<std::string>& all_names() {
  static std::vector<std::string> names;
  return names;
}

}  // namespace

uint32_t intern(std::string_view name) {
  static std::map<std::string, uint32_t, std::less<>> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  all_names().emplace_back(name);
  return known[std::string(name)] = uint32_t(all_names().size() - 1);
}
const std::string& name_of(uint32_t number) { return all_names()[number]; }

Module::Module(std::string text, void* (*reserve)(size_t, size_t)) : text_(std::move(text)) {
  const std::string_view all = text_;
  size_t i = 0;
  while (true) {
    while (i < all.size() && std::isspace(static_cast<unsigned char>(all[i]))) ++i;
    if (i >= all.size() || all[i] == '\0') return;
    const std::string_view rest = all.substr(i);
    const size_t line_end = std::min(all.find('\n', i), all.size());
    if (rest.starts_with("//") || rest.starts_with(".version") || rest.starts_with(".target") ||
        rest.starts_with(".address_size")) {
      i = line_end;
    } else if (rest.starts_with(".file")) {
      const std::string_view line = all.substr(i, line_end - i);
      const size_t n = size_t(to_number(tokens_of(line)[1])), quote = line.find('"');
      if (files.size() <= n) files.resize(n + 1);
      files[n] = line.substr(quote + 1, line.rfind('"') - quote - 1);
      i = line_end;
    } else if (rest.starts_with(".section")) {
      i = closing(all, all.find('{', i)) + 1;
    } else {
      const auto t = tokens_of(all.substr(i, all.find_first_of(";{=", i) - i));
      const bool is_function =
          std::ranges::find(t, ".entry") != t.end() || std::ranges::find(t, ".func") != t.end();
      i = is_function ? read_function(i, t) : read_variable(i, t, reserve);
    }
  }
}

// Each reads one from position i on, with its tokens, and returns the position after it.
size_t Module::read_function(size_t i, const std::vector<std::string_view>& t) {
  const std::string_view all = text_;
  const size_t stop = all.find_first_of(";{=", i);
  if (all[stop] == ';') return stop + 1;  // a declaration without a body
  const size_t end = closing(all, stop);
  // The name precedes the parameters, and follows those of a result.
  size_t name = 0;
  for (size_t k = 0, depth = 0; k < t.size(); ++k) {
    depth += t[k] == "(";
    depth -= t[k] == ")";
    if (depth == 0 && t[k] != ")" && t[k][0] != '.' && name == 0) name = k;
  }
  const bool entry = std::ranges::find(t, ".entry") != t.end();
  (entry ? entries : functions)[std::string(t[name])] = {all.substr(i, stop - i),
                                                         all.substr(stop + 1, end - stop - 1)};
  return end + 1;
}

size_t Module::read_variable(size_t i, const std::vector<std::string_view>& t,
                             void* (*reserve)(size_t, size_t)) {
  const std::string_view all = text_;
  const size_t stop = all.find_first_of(";{=", i), end = all.find(';', i);
  const Declared d = declared(t);
  if (std::ranges::find(t, ".shared") != t.end()) {
    // Allocated by each kernel that uses it: size, 0 if the launch sets it, and alignment.
    variables[std::string(d.name)] = {
        Space::Shared, uint64_t(d.open ? 0 : d.bytes()) << 16 | uint64_t(d.alignment)};
    return end + 1;
  }
  auto* const address = static_cast<char*>(reserve(size_t(d.bytes()), size_t(d.alignment)));
  const Range range = find_memory(reinterpret_cast<uint64_t>(address), -1);
  char* to = range.host + (reinterpret_cast<uint64_t>(address) - range.begin);
  std::memset(to, 0, size_t(d.bytes()));
  if (all[stop] == '=')
    for (const std::string_view n : tokens_of(all.substr(stop, end - stop)))
      if (is_word(n[0])) {
        const int64_t value = to_number(n);
        std::memcpy(to, &value, size_t(d.width));
        to += d.width;
      }
  variables[std::string(d.name)] = {Space::Global, reinterpret_cast<uint64_t>(address)};
  return end + 1;
}

}  // namespace mixtape::ptx
