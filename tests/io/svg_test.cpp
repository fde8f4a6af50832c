// Charts as SVG.

#include "io/svg.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "tests/support/errors.h"

namespace mixtape::io {
namespace svg_test {

// True if tags are nested correctly and quotes and ampersands are valid XML.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&' && xml.find(';', i) == std::string::npos) return false;
    if (xml[i] != '<') continue;
    const size_t end = xml.find('>', i);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2) return false;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    i = end;
  }
  return open.empty();
}

std::string drawn(const Chart& chart) {
  const std::string svg = to_svg(chart);
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  return svg;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Svg, DrawsSeriesWithRoundTicks) {
  const std::string svg =
      drawn({.title = "a < b & \"c\"",
             .x_label = "step",
             .y_label = "loss",
             .series = {{"one", {0, 50, 100}, {0.2, 0.71, 0.93}}, {"two", {0, 100}, {1, 0.5}}}});
  EXPECT_TRUE(has(svg, "a &lt; b &amp; &quot;c&quot;"));
  for (const char* label :
       {">20<", ">100<", ">0.2<", ">0.4<", ">1<", ">one<", ">two<", ">step<", ">loss<"})
    EXPECT_TRUE(has(svg, label)) << label;
  EXPECT_TRUE(has(svg, "prefers-color-scheme: dark"));
}

TEST(Svg, LeavesGapsForNonFiniteValues) {
  const std::string svg = drawn({.series = {{"s", {0, 1, 2, 3, 4}, {1, NAN, 2, INFINITY, 3}}}});
  const size_t d = svg.find("d=\"M");
  const std::string path = svg.substr(d, svg.find('"', d + 3) - d);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 3);  // three single points
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 0);
}

TEST(Svg, LogAxisHasDecades) {
  const std::string svg =
      drawn({.series = {{"s", {0, 1, 2, 3}, {0.002, 0, -1, 30}}}, .log_y = true});
  for (const char* label : {">0.001<", ">0.1<", ">10<", ">100<"})
    EXPECT_TRUE(has(svg, label)) << label;
}

TEST(Svg, HandlesExtremes) {
  const double big = std::numeric_limits<double>::max(),
               tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_TRUE(has(drawn({}), "no data"));
  EXPECT_TRUE(has(drawn({.series = {{"s", {1}, {NAN}}}}), "no data"));
  for (const std::vector<double>& y : {std::vector<double>{5, 5},
                                       {0, 0},
                                       {-big, big},
                                       {big, big},
                                       {tiny, -tiny},
                                       {1e15, 1e15 + 1},
                                       {2, 2 * (1 + 2e-10)},
                                       {0, tiny}})
    for (const bool log : {false, true}) {
      drawn({.series = {{"s", {0, 1}, y}}, .log_y = log});
      drawn({.series = {{"s", y, {1, 2}}}, .log_y = log});
    }
  EXPECT_ERROR(to_svg({.series = {{"s", {1, 2}, {1}}}}), "series \"s\" has 2 x and 1 y");
}

TEST(Svg, LegendTakesTheRowsItNeeds) {
  Chart chart;
  for (int i = 0; i < 12; ++i)
    chart.series.push_back({fmt::format("a run with a long name {}", i), {0, 1}, {0, 1}});
  const std::string svg = drawn(chart);
  EXPECT_TRUE(has(svg, "height=\"454\"")) << svg;  // four rows, three to each
  EXPECT_TRUE(has(svg, "stroke-dasharray"));       // colours repeat with dashes
  chart.series = {{std::string(500, 'x'), {0, 1}, {0, 1}}};
  EXPECT_FALSE(has(drawn(chart), std::string(100, 'x')));
  EXPECT_TRUE(has(drawn(chart), "xx\u2026<"));
}

TEST(Svg, DotsAndBothAxesLogarithmic) {
  const std::string svg =
      drawn({.series = {{"s", {1e-5, 0.01}, {2, 3}, true}}, .log_x = true, .log_y = true});
  for (const char* label : {">1e-5<", ">0.01<", ">2<", ">5<"})
    EXPECT_TRUE(has(svg, label)) << label << svg;
  EXPECT_TRUE(has(svg, "class=\"dots c0\""));
  EXPECT_FALSE(has(svg, "class=\"line c0\""));
}

TEST(Svg, HeatMapHasANumberPerCell) {
  const auto map = [](const HeatMap& m) {
    const std::string svg = to_svg(m);
    EXPECT_TRUE(well_formed(svg)) << svg;
    return svg;
  };
  const std::string svg = map({.title = "t",
                               .rows = {"a", "b"},
                               .columns = {"<", "a long name"},
                               .values = {{12, 0}, {3, 1}}});
  for (const char* part : {">12<", ">3<", ">&lt;<", "fill-opacity=\"1.000\"", "rotate(-90)"})
    EXPECT_TRUE(has(svg, part)) << part << svg;
  EXPECT_FALSE(has(svg, ">0<"));
  map({});
  map({.rows = {"a"}, .columns = {"b"}, .values = {{0}}});
  EXPECT_ERROR(to_svg(HeatMap{.rows = {"a"}}), "0 rows of values for 1 names");
  EXPECT_ERROR(to_svg(HeatMap{.rows = {"a"}, .values = {{1}}}), "a row of 1 values for 0 columns");
}

}  // namespace svg_test
}  // namespace mixtape::io
