#pragma once
// JSON as events, for readers of hostile files: nothing of the text is kept but what a reader
// keeps, so that time and memory stay linear in it. Writers use json_string of io/text.h.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace mixtape::io {

// A value that is neither an object nor a list. Whole numbers from 0 on are uint64_t.
using JsonScalar = std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string>;

// As it is written in JSON, but texts without their quotes: for error messages.
std::string json_text(const JsonScalar& value);

// The receiver of events. It may throw at any of them, and move from what it is given.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void open(char bracket) = 0;         // '{' or '['
  virtual void close() = 0;                    // ends the innermost object or list
  virtual void key(std::string& name) = 0;     // of the value that follows, in an object
  virtual void scalar(JsonScalar& value) = 0;  // an item of a list, or the value of a key
};

// Passes on a text's events in order. Throws Error that begins with `where` if it is no JSON; byte
// numbers begin with `begin`, the text's place in its file. Duplicate keys are for the receiver.
void parse_json(std::string_view text, const std::string& where, uint64_t begin,
                JsonEvents& events);

}  // namespace mixtape::io
