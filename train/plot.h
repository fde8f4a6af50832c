#pragma once
// Curves that grow during a run (loss, accuracy, scale) and end as one SVG chart. A curve keeps so
// many points at most, each the mean of as many neighbours as that takes.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/svg.h"

namespace mixtape::train {

class Plot {
 public:
  // The chart, whose series come behind those that it may have.
  explicit Plot(io::Chart chart, size_t most_points = 1024);

  // Adds a point to the named curve, which is made on first use. Values that are not finite become
  // gaps.
  void add(std::string_view curve, double x, double y);

  io::Chart chart() const;
  void save(const std::string& path) const;  // atomically; throws Error as io::write_file does

 private:
  struct Curve {
    std::string name;
    std::vector<double> x, y;
    int64_t per_point = 1;  // values averaged into each point
    int64_t pending = 0;    // of which the last point has these
  };

  const io::Chart empty_;
  size_t most_points_;
  std::vector<Curve> curves_;
};

}  // namespace mixtape::train
