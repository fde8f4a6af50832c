#pragma once
// Charts as SVG text, for all pictures that programs of this repository draw. A media query adapts
// them to the reader's light or dark theme; viewers without media queries show the light one.

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mixtape::io {

struct Series {                         // a line or dots in a chart
  std::string name;                     // in the legend; empty: not listed
  std::vector<double> x, y;             // equally long; non-finite points leave gaps
  bool dots = false;                    // markers instead of a line
  int color = -1;                       // number of a color, from 0; -1: by position in the list
  std::vector<std::string> notes = {};  // of each dot, shown under the pointer; or none
};

struct Chart {  // lines and dots over two axes
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_x = false, log_y = false;  // non-positive points leave gaps as well
  int width = 720, height = 400;      // in pixels; a legend of several rows adds height
};

// A table of counts, such as a confusion matrix, shaded by fraction of the row sum; 0 is blank.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<std::string> rows = {}, columns = {};
  std::vector<std::vector<double>> values = {};  // by row, >= 0
};

struct Bar {  // of a BarChart
  std::string label;
  double low = 0, value = 0, high = 0;  // >= 0; low and high are the ends of its error bar
  int color = 0;
};

// Horizontal bars from 0, each with its value, and a line at `reference`.
struct BarChart {
  std::string title = {};
  std::vector<Bar> bars = {};
  double reference = 1;
  int width = 720;  // pixels
};

// A row of a diagram, framed together with the boxes inside it.
struct Box {
  std::string name, note;  // at the left and the right end
  int color = -1;          // of its mark; -1: none
  std::vector<Box> inside = {};
};
struct BoxDiagram {  // boxes in boxes, from top to bottom
  std::string title = {};
  std::vector<Box> boxes = {};
  std::vector<std::pair<std::string, int>> legend = {};  // names of colors
  int width = 720;                                       // pixels
};

// A picture, or a part of one.
struct Drawing {
  std::string title;
  double width, height;  // pixels
  std::string elements;
};
// Throw Error if a series has unequal numbers of x and y, unless a map has one value per row and
// column, and unless 0 <= low <= value <= high for each bar.
Drawing draw(const Chart& chart);
Drawing draw(const HeatMap& map);
Drawing draw(const BarChart& chart);
Drawing draw(const BoxDiagram& diagram);

// A picture with drawings below each other.
std::string to_svg(std::span<const Drawing> drawings);
inline std::string to_svg(const Drawing& drawing) { return to_svg(std::span(&drawing, 1)); }
inline std::string to_svg(const Chart& chart) { return to_svg(draw(chart)); }
inline std::string to_svg(const HeatMap& map) { return to_svg(draw(map)); }
inline std::string to_svg(const BarChart& chart) { return to_svg(draw(chart)); }
inline std::string to_svg(const BoxDiagram& diagram) { return to_svg(draw(diagram)); }

}  // namespace mixtape::io
