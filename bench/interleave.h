#pragma once
// Interleaved timing: in each of several rounds, all variants of a workload (precisions, and
// installed peers) run one after the other, so that other load on the machine affects all alike.
// Times are medians over the rounds, ratios are medians of the ratio per round. Each variant is a
// line of Google Benchmark's table with counters.

#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace mixtape::bench {

using Call = std::function<void()>;

// A repeatable call, and the form in which a peer makes it, if it has several.
struct Task {
  Call call;
  std::string form;
  std::function<double(int64_t)> timed;  // seconds of that many calls; null: timed from outside
  template <class F>
  Task(F call, std::string form = {}) : call(std::move(call)), form(std::move(form)) {}
};

struct Variant {
  DType dtype;                    // determines the peak
  std::string peer;               // empty: this library
  double operations;              // of one call; 0: unknown
  std::function<double()> bytes;  // moved by one call; null: unknown
  std::function<Task()> make;     // its call lives while it is timed
};

struct Settings {
  bool smoke = false;        // tiny sizes, each runs once without measuring
  bool full = false;         // also slow workloads
  int rounds = 9;            // each times every variant once; at least 5, fewer of slow calls
  double stretch = 8;        // minimum milliseconds of calls timed together
  std::string torch;         // a command that trains by PyTorch, see script/bench_torch.py; or ""
  std::vector<int> threads;  // runs each workload with these; default: 1 and all
};
const Settings& settings();
// Chooses a size: `full`, or the tiny one in smoke.
int64_t pick(int64_t real, int64_t tiny);

// Adds a line per variant and number of threads: NAME/threads:N/DTYPE[/PEER].
void compare(const std::string& name, const std::vector<Variant>& variants);
// Sets the number of threads of each peer.
void on_threads(std::function<void(int)> set);

// main(): reads the options, calls `declare`, which calls compare(), and runs the chosen lines.
int run(int argc, char** argv, void (*declare)());

}  // namespace mixtape::bench
