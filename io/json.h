#pragma once
// JSON as events, for readers of hostile files: only what the reader keeps takes memory, so time
// and memory are linear in the text. Writers use json_string() of io/text.h.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace mixtape::io {

// A value that is neither an object nor a list. Whole numbers >= 0 are uint64_t.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

// The value as in JSON, but texts without quotes, for error messages.
std::string json_text(const JsonScalar& value);

// The receiver of events. Any function may throw, and may move from its argument.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void open(char bracket) = 0;         // '{' or '['
  virtual void close() = 0;                    // ends the innermost object or list
  virtual void key(std::string& name) = 0;     // of the value that follows, in an object
  virtual void scalar(JsonScalar& value) = 0;  // an item of a list, or the value of a key
};

// Passes on a text's events in order. If it is not JSON, throws Error that begins with `where`;
// byte numbers count from `begin`, the text's place in its file. Duplicate keys are the receiver's
// concern.
void parse_json(std::string_view text, const std::string& where, uint64_t begin,
                JsonEvents& events);

}  // namespace mixtape::io
