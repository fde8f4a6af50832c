#include "io/jsonl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/json.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

struct ToJson {
  std::string operator()(double x) const {
    if (x == 0 && std::signbit(x)) return "-0.0";  // -0 would be an integer, which has no sign
    return std::isfinite(x) ? fmt::format("{}", x) : "null";
  }
  std::string operator()(int64_t x) const { return fmt::format("{}", x); }
  std::string operator()(const std::string& x) const { return json_string(x); }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
};

// Takes at most `most` fields of a line.
class LineReader final : public JsonEvents {
 public:
  LineReader(std::string_view line, const std::string& where, uint64_t most)
      : line_(line), where_(where), most_(most) {}

  JsonFields fields;

  void open(char bracket) override {
    check(!is_open_, "{}: values must be numbers, strings or bools, got an {}", where_,
          bracket == '{' ? "object" : "array");
    if (bracket != '{') refuse();
    is_open_ = true;
  }
  void close() override {}
  void key(std::string& name) override {
    check(fields.size() < most_, "{}: has more than {} fields (raise max_memory)", where_, most_);
    fields.emplace_back(std::move(name), 0.0);
  }
  void scalar(JsonScalar& value) override {
    if (!is_open_) refuse();
    fields.back().second = std::visit(ToField{}, std::move(value));
  }

 private:
  struct ToField {
    JsonValue operator()(std::nullptr_t) const { return double(NAN); }
    JsonValue operator()(uint64_t x) const {
      return x <= uint64_t(INT64_MAX) ? JsonValue(int64_t(x)) : JsonValue(double(x));
    }
    template <class T>
    JsonValue operator()(T&& x) const {
      return JsonValue(std::forward<T>(x));
    }
  };
  [[noreturn]] void refuse() const { fail("{}: {} is not a JSON object", where_, quote(line_)); }

  const std::string_view line_;
  const std::string& where_;
  const uint64_t most_;
  bool is_open_ = false;
};

}  // namespace

std::string json_object(const JsonFields& fields) {
  std::string out = "{";
  for (const auto& [key, value] : fields) {
    if (out.size() > 1) out += ',';
    out += json_string(key) + ':' + std::visit(ToJson{}, value);
  }
  return out + '}';
}

const JsonValue* find_field(const JsonFields& fields, std::string_view key) {
  const auto found = std::ranges::find(fields, key, &JsonFields::value_type::first);
  return found == fields.end() ? nullptr : &found->second;
}

double number_in(const JsonValue& value) {
  if (const auto* const whole = std::get_if<int64_t>(&value)) return double(*whole);
  const auto* const real = std::get_if<double>(&value);
  return real ? *real : NAN;
}
double number_in(const JsonFields& fields, std::string_view key) {
  const JsonValue* const value = find_field(fields, key);
  return value ? number_in(*value) : NAN;
}

JsonLines::JsonLines(std::string path) : file_(std::move(path)) {
  file_.cut_after_last('\n');  // drops an incomplete line left by a crash
}

void JsonLines::write(const JsonFields& fields) { file_.append(json_object(fields) + '\n'); }

std::vector<JsonFields> parse_json_lines(std::string_view text, const std::string& name,
                                         uint64_t max_memory) {
  constexpr uint64_t field_bytes = sizeof(JsonFields::value_type);
  const uint64_t size = text.size();
  const auto lines = uint64_t(std::ranges::count(text, '\n'));
  const uint64_t limit = memory_limit(size, max_memory);
  uint64_t taken = size + lines * sizeof(JsonFields);
  check_memory(taken, name, size, max_memory);
  std::vector<JsonFields> all;
  all.reserve(lines);
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    const std::string where = fmt::format("{}: line {}", name, all.size() + 1);
    // A growing list takes up to three times its size.
    LineReader line(text.substr(0, end), where, (limit - taken) / (3 * field_bytes));
    parse_json(text.substr(0, end), where, 0, line);
    line.fields.shrink_to_fit();
    taken += line.fields.size() * field_bytes;
    all.push_back(std::move(line.fields));
  }
  return all;
}

std::vector<JsonFields> read_json_lines(const std::string& path, uint64_t max_memory) {
  return parse_json_lines(as_text(read_whole(path, max_memory, 1)), path,
                          memory_limit(InputFile(path).size(), max_memory));
}

}  // namespace mixtape::io
