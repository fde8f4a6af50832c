#pragma once
// Timing in turns: all variants of a workload (precisions, and peers where they are installed) run
// one after the other in each of several rounds, so that what else the machine does hits all alike.
// Times are medians of the rounds, ratios the medians of each round's ratio. Each variant is a line
// of Google Benchmark's table, and all that is known of it a counter.

#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace mixtape::bench {

using Call = std::function<void()>;

struct Variant {
  DType dtype;                    // its peak is the roof
  std::string peer;               // who does it; empty: we
  double operations;              // of one call; 0: unknown
  std::function<double()> bytes;  // moved by one call; none: unknown
  std::function<Call()> make;     // ready to be called again and again; lives while it is timed
};

struct Settings {
  bool smoke = false;        // tiny sizes, each runs once, and nothing is measured
  bool full = false;         // also what takes long
  int rounds = 9;            // each variant is timed once in each
  double stretch = 8;        // milliseconds of calls that are timed together, at least
  std::vector<int> threads;  // each workload with so many; by default 1 and as many as there are
};
const Settings& settings();
// For sizes: the real one, or in smoke the tiny one.
int64_t pick(int64_t real, int64_t tiny);

// One line for each variant and number of threads: NAME/threads:N/DTYPE[/PEER]
void compare(const std::string& name, const std::vector<Variant>& variants);
// Tells each peer how many threads it may use.
void on_threads(std::function<void(int)> set);

// main: reads the options, calls `declare`, which calls compare(), and runs what was chosen.
int run(int argc, char** argv, void (*declare)());

}  // namespace mixtape::bench
