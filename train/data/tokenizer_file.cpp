// Takes the values that a tokenizer needs from JSON's events, by the path of keys: "model.vocab".

#include "train/data/tokenizer_file.h"

#include <array>
#include <filesystem>
#include <map>

#include "core/check.h"
#include "io/file.h"
#include "io/json.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

using io::JsonScalar;
using io::quote;

class TokenizerReader final : public io::JsonEvents {
 public:
  explicit TokenizerReader(const std::string& name) : name_(name) {}

  TokenizerFile file;
  bool has_model = false;

  void open(char bracket) override {
    if (is_vocabulary()) fail("{}: token {} has no number", name_, quote(key_));
    std::string path = paths_.empty() ? "" : paths_.back() + (lists_.back() ? ".*" : "." + key_);
    check(paths_.size() < 16, "{}: nests deeper than 16", name_);
    if (path == ".added_tokens.*") file.added.emplace_back();
    if (path == ".model.merges.*") file.merges.emplace_back();
    if (path == ".model") has_model = true;
    if (path == ".pre_tokenizer" || path == ".pre_tokenizer.pretokenizers.*") steps_.emplace_back();
    paths_.push_back(std::move(path));
    lists_.push_back(bracket == '[');
    halves_ = 0;
  }
  void close() override {
    paths_.pop_back();
    lists_.pop_back();
  }
  void key(std::string& name) override { key_ = std::move(name); }
  void scalar(JsonScalar& value) override {
    if (is_vocabulary()) return add_to_vocabulary(value);
    if (paths_.empty()) refuse("it is not an object");
    const std::string& in = paths_.back();
    if (in.empty() && std::holds_alternative<uint64_t>(value)) return add_to_vocabulary(value);
    if (in == ".model.merges" || in == ".model.merges.*") return add_merge(value);
    if (in == ".added_tokens.*") return set_added(value);
    if (in == ".model") return set_model(value);
    if (in == ".normalizer" && key_ == "type") refuse_value("normalizer", value);
    if (steps_.empty() || !in.starts_with(".pre_tokenizer")) return;
    auto& step = in.starts_with(".pre_tokenizer.pretokenizers") ? steps_.back() : steps_.front();
    step[in.ends_with(".pattern") ? "pattern" : key_] = io::json_text(value);
  }

  // Sets file.pretokenizer from the steps in the file.
  void finish() {
    bool splits = false, has_bytes = false;
    for (auto& step : steps_) {
      const std::string type = step["type"];
      const bool by_regex = step["use_regex"] != "false",
                 space = step["add_prefix_space"] == "true";
      if (type == "Sequence") continue;
      if (type == "Split" && !splits && !has_bytes) {
        const std::string behavior = step["behavior"];
        check(step["invert"] == "true" ? behavior == "Removed" : behavior == "Isolated",
              "{}: its pre_tokenizer's behavior must be Isolated, got {}", name_, quote(behavior));
        file.pretokenizer = pretokenizer_of(step["pattern"], name_);
        splits = true;
      } else if (type == "ByteLevel" && !has_bytes && by_regex != splits && !(splits && space)) {
        file.pretokenizer.prefix_space = space;
        has_bytes = true;
      } else {
        fail("{}: its pre_tokenizer has a step {} that is not supported there", name_, quote(type));
      }
    }
    if (!has_bytes) refuse("its pre_tokenizer has no step ByteLevel");
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const { fail("{}: {}", name_, what); }
  [[noreturn]] void refuse_value(std::string_view what, const JsonScalar& value) const {
    fail("{}: {} {} is not supported", name_, what, quote(io::json_text(value)));
  }

  bool is_vocabulary() const { return !paths_.empty() && paths_.back() == ".model.vocab"; }

  std::string text(JsonScalar& value, std::string_view what) const {
    auto* const s = std::get_if<std::string>(&value);
    if (!s) fail("{}: {} is not a text", name_, what);
    return std::move(*s);
  }
  int64_t id(const JsonScalar& value) const {
    const auto* const n = std::get_if<uint64_t>(&value);
    constexpr uint64_t most = 100'000'000;
    if (!n || *n >= most) fail("{}: token {} has no number below {}", name_, quote(key_), most);
    return int64_t(*n);
  }

  void add_to_vocabulary(const JsonScalar& value) {
    file.vocabulary.emplace_back(std::move(key_), id(value));
  }
  void add_merge(JsonScalar& value) {
    std::string s = text(value, "a merge");
    if (paths_.back() == ".model.merges.*") {
      check(halves_ < 2, "{}: a merge has more than two parts", name_);
      (halves_++ == 0 ? file.merges.back().first : file.merges.back().second) = std::move(s);
      return;
    }
    const size_t space = s.find(' ');
    if (space == s.npos) fail("{}: merge {} does not have two parts", name_, quote(s));
    file.merges.emplace_back(s.substr(0, space), s.substr(space + 1));
  }
  void set_added(JsonScalar& value) {
    AddedToken& t = file.added.back();
    const bool is_true = std::holds_alternative<bool>(value) && std::get<bool>(value);
    if (key_ == "content") t.text = text(value, "an added token");
    if (key_ == "id") t.id = id(value);
    if (key_ == "lstrip") t.lstrip = is_true;
    if (key_ == "rstrip") t.rstrip = is_true;
    if (key_ == "special") t.special = is_true;
    if (key_ == "single_word" && is_true) refuse("an added token of single words is not supported");
  }
  void set_model(JsonScalar& value) {
    const std::string is = io::json_text(value);
    const bool is_true = std::holds_alternative<bool>(value) && std::get<bool>(value);
    if (key_ == "type" && is != "BPE") refuse_value("a model of type", value);
    if (key_ == "ignore_merges") file.ignore_merges = is_true;
    if (key_ == "byte_fallback" && is_true) refuse("byte_fallback is not supported");
    const bool is_set = is != "null" && !is.empty();
    if (is_set &&
        (key_ == "dropout" || key_ == "continuing_subword_prefix" || key_ == "end_of_word_suffix"))
      refuse_value(key_, value);
  }

  const std::string& name_;
  std::vector<std::string> paths_;  // of open objects and lists
  std::vector<bool> lists_;
  std::string key_;
  int halves_ = 0;                                         // of the last merge
  std::vector<std::map<std::string, std::string>> steps_;  // of the pre_tokenizer
};

// Reads merges.txt: lines of two parts, after a line "#version".
void parse_merges(std::string_view text, const std::string& name, TokenizerFile& file) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == line.npos)
      fail("{}: line {} of the merges, {}, does not have two parts", name, number, quote(line));
    file.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
}

// The byte of each letter. Visible bytes have their letter of Latin-1, the others the next from
// U+0100 on.
std::array<int, 512> letter_bytes() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool visible = (33 <= b && b <= 126) || (161 <= b && b != 173);
    bytes[size_t(visible ? b : next++)] = b;
  }
  return bytes;
}

}  // namespace

bool bytes_of_letters(std::string_view letters, std::string& bytes) {
  static const std::array<int, 512> byte_of = letter_bytes();
  bytes.clear();
  for (size_t i = 0; i < letters.size(); ++i) {
    size_t code = uint8_t(letters[i]);
    if (code >= 0x80) {
      if (code < 0xc4 ? code != 0xc2 && code != 0xc3 : code > 0xc5) return false;
      if (++i == letters.size()) return false;
      code = (code & 31) << 6 | (uint8_t(letters[i]) & 63);
    }
    if (byte_of[code] < 0) return false;
    bytes += char(byte_of[code]);
  }
  return true;
}

TokenizerFile load_tokenizer_file(const std::string& path) {
  const auto text_of = [](const std::string& file) {
    return std::string(io::as_text(io::read_file(file)));
  };
  const std::string folder = path.substr(0, path.find_last_of('/') + 1);
  std::string merges;
  for (const char* name : {"vocab.bpe", "merges.txt"})
    if (!path.ends_with("tokenizer.json") && std::filesystem::exists(folder + name))
      merges = text_of(folder + name);
  return parse_tokenizer(text_of(path), merges, path);
}

TokenizerFile parse_tokenizer(std::string_view json, std::string_view merges,
                              const std::string& name) {
  TokenizerReader reader(name);
  io::parse_json(json, name, 0, reader);
  if (reader.has_model) {
    reader.finish();
    return std::move(reader.file);
  }
  parse_merges(merges, name, reader.file);
  check(!reader.file.vocabulary.empty() && !reader.file.merges.empty(),
        "{}: has neither a model nor, beside it, merges", name);
  constexpr std::string_view end_of_text = "<|endoftext|>";
  for (const auto& [letters, id] : reader.file.vocabulary)
    if (letters == end_of_text) reader.file.added.push_back({letters, id});
  return std::move(reader.file);
}

}  // namespace mixtape::train
