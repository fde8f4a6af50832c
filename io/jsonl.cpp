// One write() per line to a file opened for appending: lines of several writers do not mix.

#include "io/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

struct Spell {
  std::string operator()(double x) const {
    return std::isfinite(x) ? fmt::format("{}", x) : "null";
  }
  std::string operator()(int64_t x) const { return fmt::format("{}", x); }
  std::string operator()(const std::string& x) const { return json_string(x); }
  std::string operator()(bool x) const { return x ? "true" : "false"; }
};

}  // namespace

std::string json_object(const JsonFields& fields) {
  std::string out = "{";
  for (const auto& [key, value] : fields) {
    if (out.size() > 1) out += ',';
    out += json_string(key) + ':' + std::visit(Spell{}, value);
  }
  return out + '}';
}

JsonLines::JsonLines(std::string path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  const char* reason = std::strerror(errno);
  check(fd_ >= 0, "{}: cannot open for appending: {}", path_, reason);
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n')
    append("\n");  // a line cut by a crash must not swallow the next
}

JsonLines::~JsonLines() { ::close(fd_); }

void JsonLines::write(const JsonFields& fields) { append(json_object(fields) + '\n'); }

void JsonLines::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    const char* reason = std::strerror(errno);
    check(n > 0, "{}: cannot append: {}", path_, reason);
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace mixtape::io
