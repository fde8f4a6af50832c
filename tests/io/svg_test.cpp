// Charts as SVG.

#include "io/svg.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "core/format.h"
#include "io/png.h"
#include "tests/support/data.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"

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

TEST(Svg, BarsHaveValuesAndErrors) {
  const BarChart chart{
      .title = "t", .bars = {{"a < b", 0.9, 1, 1.25, 0}, {"c", 2, 2.5, 3, 2}}, .reference = 1};
  const std::string svg = to_svg(chart);
  EXPECT_TRUE(well_formed(svg)) << svg;
  for (const char* part : {">a &lt; b<", ">1.00<", ">2.50<", "class=\"b0\"", "class=\"b2\"", ">3<"})
    EXPECT_TRUE(has(svg, part)) << part << svg;
  EXPECT_EQ(std::count(svg.begin(), svg.end(), '\n') > 20, true);
  to_svg(BarChart{});
  for (const Bar& wrong :
       {Bar{"b", -1, 0, 1}, Bar{"b", 2, 1, 3}, Bar{"b", 0, 2, 1}, Bar{"b", 0, 1, INFINITY}})
    EXPECT_ERROR(to_svg(BarChart{.bars = {wrong}}), "bar \"b\" has ");
}

TEST(Svg, BoxesAreInsideEachOther) {
  const BoxDiagram diagram{
      .title = "t",
      .boxes = {{"outer", "", -1, {{"a < b", "note", 1}, {"deep", "", 2, {{"c", "", 9}}}}},
                {"next", "", 0}},
      .legend = {{"f16", 1}}};
  const std::string svg = to_svg(diagram);
  EXPECT_TRUE(well_formed(svg)) << svg;
  for (const char* part : {">a &lt; b<", ">note<", ">f16<", "class=\"b0\"", "class=\"b2\""})
    EXPECT_TRUE(has(svg, part)) << part << svg;
  const auto count = [&](std::string_view part) {
    int n = 0;
    for (size_t at = 0; (at = svg.find(part, at)) != svg.npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(count("fill=\"none\""), 5) << "frames";
  EXPECT_EQ(count("class=\"b1\""), 3) << "of the legend, of a < b, and the 9th of 8 colors";
  // c is 8 pixels inside deep, which is 8 inside outer; a frame is as high as all it contains.
  EXPECT_TRUE(has(svg, "x=\"32.0\" y=\"144.0\" width=\"656.0\" height=\"26.0\"")) << svg;
  EXPECT_TRUE(has(svg, "x=\"16.0\" y=\"62.0\" width=\"688.0\" height=\"124.0\"")) << svg;
  to_svg(BoxDiagram{});
}

TEST(Svg, StandsBelowEachOther) {
  const Drawing all[] = {draw(Chart{.title = "one", .series = {{"s", {1, 2}, {3, 4}}}}),
                         draw(BarChart{.title = "two", .bars = {{"b", 1, 1, 1}}, .width = 900})};
  const std::string svg = to_svg(all);
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_TRUE(has(svg, "<title>one; two</title>"));
  EXPECT_TRUE(has(svg, "width=\"900\" height=\"486\"")) << svg;
  EXPECT_TRUE(has(svg, "translate(0 400.0)")) << svg;
}

TEST(Svg, DotsHaveColorsAndNotes) {
  const std::string svg = drawn({.series = {{.name = "s",
                                             .x = {1, 2},
                                             .y = {3, 4},
                                             .dots = true,
                                             .color = 2,
                                             .notes = {"a&b", "c"}}}});
  EXPECT_TRUE(has(svg, "<title>a&amp;b</title>")) << svg;
  EXPECT_TRUE(has(svg, "class=\"dots c2\""));
  EXPECT_ERROR(to_svg({.series = {{.name = "s", .x = {1}, .y = {1}, .notes = {"a", "b"}}}}),
               "series \"s\" has 1 x and 2 notes");
}

// Pictures as librsvg shows them, which knows neither custom properties nor media queries.
class Pictures : public testing::Test {
 protected:
  void SetUp() override {
#ifndef MIXTAPE_PNG
    GTEST_SKIP() << "needs libpng";
#endif
    if (std::system("rsvg-convert --version >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "needs rsvg-convert (librsvg2-bin)";
  }
  void show(const std::string& svg) {
    test::spit(folder_ / "a.svg", svg);
    const std::string command =
        fmt::format("rsvg-convert '{}' -b red -o '{}'", folder_ / "a.svg", folder_ / "a.png");
    ASSERT_EQ(std::system(command.c_str()), 0) << svg;
    image_ = load_png(folder_ / "a.png", 3);
  }
  // The part of the picture with about this colour.
  double part(int red, int green, int blue) const {
    const int64_t n = image_.size(1) * image_.size(2);
    const uint8_t* const p = image_.data<uint8_t>();
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i)
      count += std::abs(p[i] - red) < 24 && std::abs(p[n + i] - green) < 24 &&
               std::abs(p[2 * n + i] - blue) < 24;
    return double(count) / double(n);
  }
  void expect_readable(const std::string& what) const {
    EXPECT_GT(part(255, 255, 255), 0.3) << what << " has a light page";
    EXPECT_LT(part(0, 0, 0), 0.1) << what << " is not black";
    EXPECT_EQ(part(255, 0, 0), 0) << what << " covers what is behind it";
    EXPECT_GT(part(0x33, 0x33, 0x33), 0.0005) << what << " has text";
  }

  const test::TempFolder folder_;
  Tensor image_;
};

TEST_F(Pictures, OfEachKindHaveTheirColors) {
  show(to_svg(Chart{.title = "title",
                    .series = {{"one", {0, 1, 2}, {1, 3, 2}}, {"two", {0, 1, 2}, {2, 1, 3}}}}));
  expect_readable("a chart");
  EXPECT_GT(part(0x00, 0x69, 0xb4), 0.001);
  EXPECT_GT(part(0xd1, 0x51, 0x0a), 0.001);
  show(to_svg(Chart{.title = "title", .series = {{"dots", {0, 1, 2}, {1, 3, 2}, true, 2}}}));
  expect_readable("a chart of dots");
  EXPECT_GT(part(0x00, 0x84, 0x5a), 0.0002);
  show(to_svg(HeatMap{
      .title = "title", .rows = {"a", "b"}, .columns = {"c", "d"}, .values = {{9, 1}, {0, 3}}}));
  expect_readable("a heat map");
  EXPECT_GT(part(0x0d, 0x70, 0xb8), 0.05);
  show(to_svg(BarChart{.title = "title", .bars = {{"a", 1, 2, 3, 0}, {"b", 1, 1, 1, 1}}}));
  expect_readable("a bar chart");
  EXPECT_GT(part(0x00, 0x69, 0xb4), 0.03);
  EXPECT_GT(part(0xd1, 0x51, 0x0a), 0.02);
}

TEST_F(Pictures, OfBoxesAreReadable) {
  show(to_svg(BoxDiagram{.title = "title", .boxes = {{"a", "note", 0, {{"b", "", 1}}}}}));
  expect_readable("boxes");
}

TEST_F(Pictures, OfThisRepositoryAreReadable) {
  int count = 0;
  const auto root =
      std::filesystem::path(test::data_file("")).parent_path().parent_path().parent_path();
  for (const char* folder : {"docs", "bench/results"})
    for (const auto& file : std::filesystem::directory_iterator(root / folder)) {
      if (file.path().extension() != ".svg") continue;
      const std::string svg = test::slurp(file.path().string());
      EXPECT_FALSE(has(svg, "var(--")) << file.path();
      show(svg);
      EXPECT_LT(part(0, 0, 0), 0.1) << file.path();
      ++count;
    }
  EXPECT_GE(count, 4);
}

}  // namespace svg_test
}  // namespace mixtape::io
