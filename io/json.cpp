// JSON by the SAX interface of nlohmann's parser. (Its parser with a callback takes quadratic time,
// and its objects in order of insertion look names up one by one.)

#include "io/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/check.h"

namespace mixtape::io {
namespace {

using nlohmann::json;

class Adapter final : public nlohmann::json_sax<json> {
 public:
  Adapter(const std::string& where, uint64_t begin, JsonEvents& events)
      : where_(where), begin_(begin), events_(events) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool x) override { return scalar(x); }
  bool number_integer(number_integer_t x) override { return scalar(x); }
  bool number_unsigned(number_unsigned_t x) override { return scalar(x); }
  bool number_float(number_float_t x, const string_t&) override { return scalar(x); }
  bool string(string_t& x) override { return scalar(std::move(x)); }
  bool binary(binary_t&) override { return false; }  // text has none
  bool start_object(size_t) override { return open('{'); }
  bool start_array(size_t) override { return open('['); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    events_.key(name);
    return true;
  }
  bool parse_error(size_t at, const std::string&, const json::exception& e) override {
    constexpr int too_large = 406;
    if (e.id == too_large) fail("{}: invalid JSON: a number is too large", where_);
    fail("{}: invalid JSON near byte {}", where_, begin_ + at);
  }

 private:
  bool scalar(JsonScalar value) {
    events_.scalar(value);
    return true;
  }
  bool open(char bracket) {
    events_.open(bracket);
    return true;
  }
  bool close() {
    events_.close();
    return true;
  }

  const std::string& where_;
  const uint64_t begin_;
  JsonEvents& events_;
};

struct Written {
  std::string operator()(std::nullptr_t) const { return "null"; }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
  std::string operator()(double x) const { return fmt::format("{:#}", x); }
  std::string operator()(const std::string& x) const { return x; }
  template <class Integer>
  std::string operator()(Integer x) const {
    return fmt::format("{}", x);
  }
};

}  // namespace

std::string json_text(const JsonScalar& value) { return std::visit(Written{}, value); }

void parse_json(std::string_view text, const std::string& where, uint64_t begin,
                JsonEvents& events) {
  Adapter adapter(where, begin, events);
  json::sax_parse(text, &adapter);
}

}  // namespace mixtape::io
