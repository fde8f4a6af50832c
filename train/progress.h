#pragma once
// Progress: a progress bar on a terminal; one plain line at the end in files and pipes.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "core/no_copy.h"

namespace mixtape::train {

struct ProgressState {  // the parts of a progress_line()
  std::string label;
  int64_t done = 0, total = 0;  // total 0: unknown
  double seconds = 0;           // since the start
  std::string suffix;
  int64_t before = 0;  // done before the start
};

// "epoch 1 [=====>     ] 250/500  1.2k/s  eta 0:04  loss 0.31", in at most `width` columns. The bar
// takes the remaining columns; it is left out if there are too few, or with width 0 (no limit).
std::string progress_line(const ProgressState& state, int width);

class Progress : NoCopy {
 public:
  // A function called when the bar is redrawn, at most ten times a second.
  using Suffix = std::function<std::string()>;

  // Starts with `done` of `total` done.
  Progress(std::string label, int64_t total, Suffix suffix = {}, std::FILE* out = stderr,
           int64_t done = 0);
  ~Progress();  // finishes, unless an exception is unwinding the stack

  void step(int64_t n = 1);  // counts n more as done
  void finish();             // draws the last state and ends the line

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  ProgressState state_;
  Suffix suffix_;
  std::FILE* out_;
  bool terminal_, color_, finished_ = false;
  int exceptions_;
  Clock::time_point start_, last_draw_;
};

}  // namespace mixtape::train
