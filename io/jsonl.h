#pragma once
// JSON lines: a log with one object per line. Each line is appended at once, so a crash loses at
// most the last one.

#include <variant>

#include "io/file.h"

namespace mixtape::io {

using JsonValue = std::variant<double, int64_t, std::string, bool>;
using JsonFields = std::vector<std::pair<std::string, JsonValue>>;

// {"epoch":1,"loss":0.25}. Doubles keep their bits (whole ones but -0.0 are written as integers);
// those that are not finite become null.
std::string json_object(const JsonFields& fields);

// The first field of that name, or null.
const JsonValue* find_field(const JsonFields& fields, std::string_view key);
// The number in a value or field; NaN if there is none.
double number_in(const JsonValue& value);
double number_in(const JsonFields& fields, std::string_view key);

class JsonLines {
 public:
  // Opens the file for appending, or creates it. Throws Error if it cannot.
  explicit JsonLines(std::string path);
  void write(const JsonFields& fields);  // one line; throws Error if the file was removed

 private:
  AppendFile file_;
};

// The objects of such a file in order. null becomes NaN, and an incomplete last line is ignored.
// Throws Error that names file and line if a line is not an object of numbers, strings and bools,
// or if they take more memory than memory_limit().
std::vector<JsonFields> read_json_lines(const std::string& path, uint64_t max_memory = 0);
// Parses such a text, which errors call `name`.
std::vector<JsonFields> parse_json_lines(std::string_view text, const std::string& name,
                                         uint64_t max_memory = 0);

}  // namespace mixtape::io
