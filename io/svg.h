#pragma once
// Charts as SVG text. A media query adapts them to the reader's light or dark theme.

#include <string>
#include <vector>

namespace mixtape::io {

struct Series {
  std::string name;          // in the legend; empty: not shown
  std::vector<double> x, y;  // equally long; non-finite points leave gaps
  bool dots = false;         // markers instead of a line
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_x = false, log_y = false;  // non-positive points leave gaps, too
  int width = 720, height = 400;      // pixels; a legend of several rows adds height
};

// Throws Error if a series has unequal numbers of x and y.
std::string to_svg(const Chart& chart);

// A table of counts, such as a confusion matrix, shaded by fraction of the row sum; 0 is blank.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<std::string> rows = {}, columns = {};
  std::vector<std::vector<double>> values = {};  // by row, >= 0
};

// Throws Error unless there is one value per row and column.
std::string to_svg(const HeatMap& map);

}  // namespace mixtape::io
