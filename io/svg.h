#pragma once
// A line chart as SVG text. It takes its colours from the reader's light or dark theme.

#include <string>
#include <vector>

namespace mixtape::io {

struct Series {
  std::string name;
  std::vector<double> x, y;  // of equal length; a point that is not finite leaves a gap
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_y = false;             // points that are not positive leave gaps, too
  int width = 720, height = 400;  // pixels
};

// Throws Error if a series has more of x than of y, or less.
std::string to_svg(const Chart& chart);

}  // namespace mixtape::io
