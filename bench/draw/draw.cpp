// Draws a picture that JSON on its standard input describes: a list of bar charts and charts, which
// stand below each other. Scripts draw with it, so that all pictures come from io/svg.cpp.

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "io/svg.h"

namespace {

using mixtape::io::Drawing;
using nlohmann::json;

// {"title", "reference", "width", "bars": [[label, color, low, value, high], ...]}
Drawing bars(const json& j) {
  mixtape::io::BarChart chart{
      .title = j.at("title"), .reference = j.at("reference"), .width = j.at("width")};
  for (const json& bar : j.at("bars"))
    chart.bars.push_back({bar.at(0), bar.at(2), bar.at(3), bar.at(4), bar.at(1)});
  return draw(chart);
}

// {"title", "x_label", "y_label", "log", "width", "series": [{"name", "x", "y", "dots", "color",
// "notes"}, ...]}
Drawing chart(const json& j) {
  mixtape::io::Chart chart{.title = j.at("title"),
                           .x_label = j.at("x_label"),
                           .y_label = j.at("y_label"),
                           .log_x = j.at("log"),
                           .log_y = j.at("log"),
                           .width = j.at("width")};
  for (const json& s : j.at("series"))
    chart.series.push_back(
        {s.at("name"), s.at("x"), s.at("y"), s.at("dots"), s.at("color"), s.at("notes")});
  return draw(chart);
}

}  // namespace

int main() try {
  std::vector<Drawing> drawings;
  for (const json& j : json::parse(std::cin))
    drawings.push_back(j.contains("bars") ? bars(j) : chart(j));
  fmt::print("{}", to_svg(drawings));
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "draw: {}\n", e.what());
  return 1;
}
