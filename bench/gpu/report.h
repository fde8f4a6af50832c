#pragma once
// What the GPU benchmarks share: figures are checked before they are timed, timed by events in
// turns with their peer, and become lines of a table and a JSON file.

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
  std::vector<std::string> filter;  // parts of names; none: all
  int repeats = 20;
  double min_time = 0.5;  // milliseconds of one timed stretch
  double limit = 600;     // seconds after which no case begins
  bool smoke = false;     // tiny sizes and no figures: only that all runs and is right
  std::string json;
};

struct Timing {                          // milliseconds of one call
  double median = 0, low = 0, high = 0;  // the quartiles
};
using Call = std::function<void(int64_t i)>;  // i counts the calls, to take inputs in turns

struct Figure {
  enum class Kind { Bytes, Operations, Step };

  std::string name;
  Kind kind = Kind::Bytes;
  double work = 0;  // bytes that one call must move, or its operations
  double tolerance = 0;
  double error = 0;  // relative, in the L2 norm
  Timing ours = {};
  std::optional<Timing> peer = {};
  std::vector<std::string> wrong = {};
};

// ||x - y|| / ||y||, both brought to the CPU in f64.
double distance(const Tensor& x, const Tensor& y);

class Report {
 public:
  explicit Report(const Settings& settings);

  const Settings& settings;
  bool wants(const std::string& name) const;
  // Runs what makes a figure, if it is wanted, and takes the figure down. What it throws is a
  // failure.
  void take(const std::string& name, const std::function<void(Figure&)>& make);
  // The time of each of `calls`, one stretch after the other in turns. In smoke, runs them once.
  std::vector<Timing> time(const std::vector<Call>& calls) const;
  // How many sets of inputs of so many bytes do not fit in the device's cache together.
  int64_t sets(double bytes) const;
  // The best that is offered is what others are compared with.
  void offer_copy_rate(double bytes_per_second) {
    copy_rate_ = std::max(copy_rate_, bytes_per_second);
  }
  void set_peer(const std::string& peer) { peer_ = peer; }
  // The last line and the file; returns how many figures are wrong.
  int finish(const std::string& command) const;

 private:
  void print(const Figure& f) const;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Figure> figures_;
  std::vector<std::string> left_out_;  // for lack of time
  double copy_rate_ = 0;
  std::string peer_;
};

void measure_copies(Report& report);    // the ceilings that the rest is compared with
void measure_products(Report& report);  // beside cuBLAS
void measure_memory(Report& report);    // what memory limits
void measure_convolutions(Report& report);
void measure_optimizer(Report& report);
void measure_steps(Report& report);  // training steps of the demo's network

}  // namespace mixtape::bench
