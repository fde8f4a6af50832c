#pragma once
// JSON lines: a log that programs read. One object per line, appended and flushed at once, so that
// a crash loses at most the line being written.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mixtape::io {

using JsonValue = std::variant<double, int64_t, std::string, bool>;
using JsonFields = std::vector<std::pair<std::string, JsonValue>>;

// {"epoch":1,"loss":0.25}. Doubles read back to the same bits; those that are not finite are null.
std::string json_object(const JsonFields& fields);

class JsonLines {
 public:
  // Appends to the file, or creates it. Throws Error if that cannot be done.
  explicit JsonLines(std::string path);
  ~JsonLines();
  JsonLines(const JsonLines&) = delete;
  JsonLines& operator=(const JsonLines&) = delete;

  void write(const JsonFields& fields);

 private:
  void append(std::string_view text);

  std::string path_;
  int fd_;
};

}  // namespace mixtape::io
