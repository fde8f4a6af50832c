#pragma once
// The harness of the GPU benchmarks: figures are checked, then timed by events, interleaved with
// their peer, and become lines of a table and a JSON file.

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mixtape::bench {

inline constexpr Device gpu = Device::cuda();

struct Settings {
  std::vector<std::string> filter;  // parts of names; empty: all
  int repeats = 20;
  double min_time = 0.5;  // minimum milliseconds per timing
  double limit = 600;     // seconds after which no case starts
  bool smoke = false;     // tiny sizes; checks results without timing
  std::string json;
};

struct Timing {                          // milliseconds per call
  double median = 0, low = 0, high = 0;  // low and high are quartiles
};
using Call = std::function<void(int64_t i)>;  // i counts the calls, to alternate inputs

struct Figure {
  enum class Kind { Bytes, Operations, Step };

  std::string name;
  Kind kind = Kind::Bytes;
  double work = 0;  // bytes or operations per call
  double tolerance = 0;
  double error = 0;  // relative, in the L2 norm
  Timing ours = {};
  std::optional<Timing> peer = {};
  std::vector<std::string> wrong = {};
};

// ||x - y|| / ||y||, on the CPU in f64.
double distance(const Tensor& x, const Tensor& y);

class Report {
 public:
  explicit Report(const Settings& settings);

  const Settings& settings;
  bool wants(const std::string& name) const;
  // Runs the function that makes a figure, if it is selected, and records it. An exception is a
  // failure.
  void take(const std::string& name, const std::function<void(Figure&)>& make);
  // Times `calls`, interleaved. In smoke, runs each once.
  std::vector<Timing> time(const std::vector<Call>& calls) const;
  // The number of input sets of that size that exceed the device's cache together.
  int64_t sets(double bytes) const;
  // Keeps the best rate offered, as the ceiling for others.
  void offer_copy_rate(double bytes_per_second) {
    copy_rate_ = std::max(copy_rate_, bytes_per_second);
  }
  void set_peer(const std::string& peer) { peer_ = peer; }
  // Prints the last line, writes the file, and returns the number of wrong figures.
  int finish(const std::string& command) const;

 private:
  void print(const Figure& f) const;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Figure> figures_;
  std::vector<std::string> left_out_;  // after the time limit
  double copy_rate_ = 0;
  std::string peer_;
};

void measure_copies(Report& report);    // the ceilings of memory-bound ops
void measure_products(Report& report);  // compared with cuBLAS
void measure_memory(Report& report);    // memory-bound ops
void measure_attention(Report& report);
void measure_convolutions(Report& report);
void measure_optimizer(Report& report);
void measure_steps(Report& report);  // training steps of the demo's network

}  // namespace mixtape::bench
