#pragma once
// JSON lines: a log that programs read. One object per line, appended and flushed at once, so that
// a crash loses at most the line being written.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/file.h"

namespace mixtape::io {

using JsonValue = std::variant<double, int64_t, std::string, bool>;
using JsonFields = std::vector<std::pair<std::string, JsonValue>>;

// {"epoch":1,"loss":0.25}. Doubles read back to the same bits, whole ones as integers; those that
// are not finite are null.
std::string json_object(const JsonFields& fields);

class JsonLines {
 public:
  // Appends to the file, or creates it. Throws Error if that cannot be done.
  explicit JsonLines(std::string path);
  void write(const JsonFields& fields);

 private:
  AppendFile file_;
};

// The objects of such a file, in order; null becomes NaN. A last line that a crash cut is left out.
// Throws Error that names the file and the line where one is no object of numbers, text and bools.
std::vector<JsonFields> read_json_lines(const std::string& path);

}  // namespace mixtape::io
