#pragma once
// Charts as SVG text, readable in a light theme and in a dark one: the reader's, by a media query.

#include <string>
#include <vector>

namespace mixtape::io {

struct Series {
  std::string name;          // in the legend; not there if empty
  std::vector<double> x, y;  // of equal length; a point that is not finite leaves a gap
  bool dots = false;         // marks at the points, and no line
};

struct Chart {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_x = false, log_y = false;  // points that are not positive leave gaps, too
  int width = 720, height = 400;      // pixels; a legend of several rows adds to the height
};

// Throws Error if a series has more of x than of y, or less.
std::string to_svg(const Chart& chart);

// A table of counts, shaded by their part of the row's sum: a confusion matrix. Zeros stay empty.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<std::string> rows = {}, columns = {};
  std::vector<std::vector<double>> values = {};  // by row, none negative
};

// Throws Error if there is not one value per row and column.
std::string to_svg(const HeatMap& map);

}  // namespace mixtape::io
