#include "io/jsonl.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

struct ToJson {
  std::string operator()(double x) const {
    return std::isfinite(x) ? fmt::format("{}", x) : "null";
  }
  std::string operator()(int64_t x) const { return fmt::format("{}", x); }
  std::string operator()(const std::string& x) const { return json_string(x); }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
};

using Json = nlohmann::ordered_json;

JsonValue value_of(const Json& j, const std::string& where) {
  if (j.is_null()) return double(NAN);
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_string()) return j.get<std::string>();
  check(j.is_number(), "{}: values must be numbers, strings or bools, got an {}", where,
        j.type_name());
  const bool whole = j.is_number_integer() &&
                     (!j.is_number_unsigned() || j.get<uint64_t>() <= uint64_t(INT64_MAX));
  return whole ? JsonValue(j.get<int64_t>()) : JsonValue(j.get<double>());
}

JsonFields fields_of(std::string_view line, const std::string& where) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  check(object.is_object(), "{}: {} is not a JSON object", where, quote(line));
  JsonFields fields;
  for (const auto& [key, value] : object.items()) fields.emplace_back(key, value_of(value, where));
  return fields;
}

}  // namespace

std::string json_object(const JsonFields& fields) {
  std::string out = "{";
  for (const auto& [key, value] : fields) {
    if (out.size() > 1) out += ',';
    out += json_string(key) + ':' + std::visit(ToJson{}, value);
  }
  return out + '}';
}

JsonLines::JsonLines(std::string path) : file_(std::move(path)) {
  file_.cut_after_last('\n');  // drops an incomplete line left by a crash
}

void JsonLines::write(const JsonFields& fields) { file_.append(json_object(fields) + '\n'); }

std::vector<JsonFields> read_json_lines(const std::string& path) {
  const std::vector<std::byte> bytes = read_file(path);
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<JsonFields> all;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    all.push_back(fields_of(text.substr(0, end), fmt::format("{}: line {}", path, all.size() + 1)));
  return all;
}

}  // namespace mixtape::io
