// Progress on a terminal or file. Only terminals get control codes, and colours only if NO_COLOR
// (no-color.org) is not set.

#include "train/progress.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "core/check.h"

namespace mixtape::train {
namespace {

constexpr auto redraw_every = std::chrono::milliseconds(100);

bool is_terminal(std::FILE* out) {
  const char* kind = std::getenv("TERM");
  return ::isatty(::fileno(out)) == 1 && !(kind && std::string_view(kind) == "dumb");
}

bool wants_color() {
  const char* no = std::getenv("NO_COLOR");
  return !(no && *no);
}

int columns(std::FILE* out) {
  winsize size = {};
  const bool known = ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

// 3:07, 1:02:03
std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::min(std::ceil(seconds), 3.6e8));  // 100,000 hours
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// 950/s, 12.3k/s, 0.5/s
std::string rate_text(double rate) {
  if (rate < 10) return fmt::format("{:.1f}/s", rate);
  if (rate < 1e3) return fmt::format("{:.0f}/s", rate);
  if (rate < 1e6) return fmt::format("{:.1f}k/s", rate / 1e3);
  return fmt::format("{:.1f}M/s", rate / 1e6);
}

std::string bar(double part, int width) {
  const int filled = std::clamp(int(part * width), 0, width);
  std::string text(size_t(filled), '=');
  if (filled < width) text += '>';
  text.resize(size_t(width), ' ');
  return "[" + text + "] ";
}

}  // namespace

std::string progress_line(const ProgressState& s, int width) {
  const bool known = s.total > 0;
  std::string right = known ? fmt::format("{}/{}", s.done, s.total) : fmt::format("{}", s.done);
  if (s.seconds > 0 && s.done > s.before) {
    const double rate = double(s.done - s.before) / s.seconds;
    right += "  " + rate_text(rate);
    const bool running = known && s.done < s.total;
    right += running ? "  eta " + clock_text(double(s.total - s.done) / rate)
                     : "  in " + clock_text(s.seconds);
  }
  if (!s.suffix.empty()) right += "  " + s.suffix;

  std::string line = s.label.empty() ? "" : s.label + " ";
  constexpr int frame = 3, narrowest = 5, widest = 40;  // "[" "] ", and columns between them
  const int room = std::min(width - static_cast<int>(line.size() + right.size()) - frame, widest);
  if (known && room >= narrowest) line += bar(double(s.done) / double(s.total), room);
  line += right;
  if (width > 0 && line.size() > size_t(width)) line.resize(size_t(width));
  return line;
}

Progress::Progress(std::string label, int64_t total, Suffix suffix, std::FILE* out, int64_t done)
    : state_{std::move(label), done, total, 0, {}, done},
      suffix_(std::move(suffix)),
      out_(out),
      terminal_(is_terminal(out)),
      color_(wants_color()),
      exceptions_(std::uncaught_exceptions()),
      start_(Clock::now()),
      last_draw_(start_ - redraw_every) {}

Progress::~Progress() {
  try {
    if (std::uncaught_exceptions() == exceptions_)
      finish();
    else if (terminal_ && !finished_)
      std::fputc('\n', out_);  // so that the exception's text starts on its own line
  } catch (...) {              // the suffix may throw, a destructor must not
  }
}

void Progress::step(int64_t n) {
  state_.done += n;
  if (!terminal_ || finished_) return;
  const auto now = Clock::now();
  if (now - last_draw_ >= redraw_every) draw(now);
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  draw(Clock::now());
  std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::draw(Clock::time_point now) {
  last_draw_ = now;
  state_.seconds = std::chrono::duration<double>(now - start_).count();
  if (suffix_) state_.suffix = suffix_();
  std::string line = progress_line(state_, terminal_ ? columns(out_) - 1 : 0);
  if (terminal_) {
    const size_t open = line.find('['), close = line.find(']');
    if (color_ && open < close && close != std::string::npos) {
      line.insert(close, "\x1b[0m");
      line.insert(open + 1, "\x1b[32m");
    }
    line = "\r" + line + "\x1b[K";  // clears the rest of a longer line
  }
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
}

}  // namespace mixtape::train
