// Draws charts: data are mapped to pixels by two axes with round tick values.

#include "io/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

// Curve colours, with a contrast of at least 3:1 on white and on near-black.
constexpr const char* light[] = {"#0069b4", "#d1510a", "#00845a", "#b0468f",
                                 "#9a6a00", "#5b4bc4", "#7a3b1e", "#5c6670"};
constexpr const char* dark[] = {"#4ea8ec", "#ff8a4d", "#3cc796", "#e58ac4",
                                "#e0b03c", "#a394ff", "#d09a78", "#a3b0bd"};
constexpr size_t colors = std::size(light);
static_assert(colors == std::size(dark));
constexpr const char* dashes[] = {"", " stroke-dasharray=\"7 4\"", " stroke-dasharray=\"2 4\""};

// The style sheet, with a background, since the page around the picture may have another theme.
std::string style() {
  std::string in_light, in_dark;
  for (size_t i = 0; i < colors; ++i) {
    in_light += fmt::format(" .c{0} {{ stroke: {1}; }} .b{0} {{ fill: {1}; }}", i, light[i]);
    in_dark += fmt::format(" .c{0} {{ stroke: {1}; }} .b{0} {{ fill: {1}; }}", i, dark[i]);
  }
  return R"(<style>
  .back { fill: #fff; } text { font: 12px system-ui, sans-serif; fill: #333; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #ddd; } .axis { stroke: #888; } .range { stroke: #333; stroke-width: 2; }
  .line, .dots { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
  .dots { stroke-width: 7; }
  .cell { fill: #0069b4; } .number { fill: #111; } .strong { fill: #fff; }
 )" + in_light +
         R"(
  @media (prefers-color-scheme: dark) {
    .back { fill: #1a1b1e; } text { fill: #ddd; } .grid { stroke: #3a3a3a; } .range { stroke: #ddd; }
    .cell { fill: #2a75b5; } .number, .strong { fill: #fff; }
   )" + in_dark +
         R"(
  }
</style>
)";
}

// Mean width of a letter at 12 pixels, since there is no font to measure.
constexpr double letter = 6.8;

size_t letters(std::string_view text) {
  return size_t(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// Truncates a text to about this width.
std::string fitted(std::string_view text, double pixels) {
  const auto most = size_t(std::max(pixels / letter, 2.0));
  if (letters(text) <= most) return std::string(text);
  size_t n = 0, end = 0;
  while (n < most) n += (text[++end] & 0xc0) != 0x80;
  return std::string(text.substr(0, end)) + "\u2026";
}

double widest(const std::vector<std::string>& texts) {
  size_t most = 0;
  for (const std::string& t : texts) most = std::max(most, letters(t));
  return letter * double(most);
}

std::string text(double x, double y, const char* attributes, std::string_view content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     xml_text(content));
}
// Rotated text that reads upwards.
std::string upright(double x, double y, const char* attributes, std::string_view content) {
  return fmt::format("<g transform=\"translate({:.1f} {:.1f}) rotate(-90)\">{}</g>\n", x, y,
                     text(0, 0, attributes, content));
}
constexpr const char *middle = "text-anchor=\"middle\"", *end = "text-anchor=\"end\"";

std::string line(const char* kind, double x1, double y1, double x2, double y2) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1,
      y1, x2, y2);
}

std::string heading(double width, std::string_view title) {
  return text(width / 2, 20, "class=\"title\" text-anchor=\"middle\"", fitted(title, width / 1.3));
}

// Maps values, or their logarithms on a log axis, to pixels.
struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;
  double from = 0, to = 1;  // pixels of low and high

  bool shows(double v) const { return std::isfinite(v) && (!log || v > 0); }
  // Clamps to 1e300, so that the range of the axis is a finite double.
  double scale(double v) const { return log ? std::log10(v) : std::clamp(v, -1e300, 1e300); }
  void include(double v) {
    low = std::min(low, scale(v));
    high = std::max(high, scale(v));
  }
  double pixel(double v) const { return from + (scale(v) - low) / (high - low) * (to - from); }
};

// The smallest of 1, 2, 5 times a power of ten that divides `range` into at most `intervals`.
double round_step(double range, int intervals) {
  const double raw = range / intervals, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= raw * (1 - 1e-9)) return m * power;
  return 10 * power;
}

// Widens an empty or single-valued range, then rounds its ends to ticks. Returns the ticks.
std::vector<double> choose_ticks(Axis& axis, int intervals, bool round_ends) {
  if (!(axis.low <= axis.high)) axis.low = 0, axis.high = 1;
  const double magnitude = std::max(std::abs(axis.low), std::abs(axis.high));
  if (axis.high - axis.low <= std::max(magnitude * 1e-12, 1e-290)) {
    const double margin = magnitude > 1e-280 ? magnitude / 10 : 1;
    axis.low -= margin;
    axis.high += margin;
  }

  std::vector<double> ticks;
  if (axis.log && axis.high - axis.low < 2) {  // 1, 2 and 5 of each decade
    for (double k = std::floor(axis.low) - 1; k <= axis.high + 1; ++k)
      for (const double m : {1.0, 2.0, 5.0}) ticks.push_back(k + std::log10(m));
    const auto first = std::ranges::upper_bound(ticks, axis.low + 1e-9) - 1;
    const auto last = std::max(first + 1, std::ranges::lower_bound(ticks, axis.high - 1e-9));
    axis.low = *first;
    axis.high = *last;
    return {first, last + 1};
  }
  double step = round_step(axis.high - axis.low, intervals);
  if (axis.log) step = std::max(step, 1.0);  // whole decades
  if (round_ends || axis.log) {
    axis.low = std::floor(axis.low / step + 1e-9) * step;
    axis.high = std::ceil(axis.high / step - 1e-9) * step;
    if (axis.low == axis.high) axis.high += step;
  }
  for (double i = std::ceil(axis.low / step - 1e-9); i * step <= axis.high + step * 1e-6; ++i)
    ticks.push_back(i * step == 0 ? 0 : i * step);
  return ticks;
}

std::string tick_text(const Axis& axis, double tick) {
  if (!axis.log) return fmt::format("{:.6g}", tick);
  const double power = std::floor(tick + 1e-9), mantissa = std::pow(10.0, tick - power);
  if (power < -4 || power > 5)  // never infinite
    return fmt::format("{:.0f}e{:.0f}", mantissa, power);
  return fmt::format("{:.6g}", std::pow(10.0, tick));
}

std::vector<std::string> tick_texts(const Axis& axis, const std::vector<double>& ticks) {
  std::vector<std::string> all;
  for (const double t : ticks) all.push_back(tick_text(axis, t));
  return all;
}

// SVG paths of lines, interrupted by gaps, and of dots, which are zero-length lines with round
// caps. A single point between gaps is a dot, too.
struct Paths {
  std::string lines, dots;
  std::vector<std::string> noted;  // dots with notes
};
Paths series_paths(const Series& s, const Axis& x, const Axis& y) {
  Paths paths;
  const auto shown = [&](size_t i) { return i < s.x.size() && x.shows(s.x[i]) && y.shows(s.y[i]); };
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!shown(i)) continue;
    const std::string at = fmt::format("{:.1f} {:.1f}", x.pixel(s.x[i]), y.pixel(s.y[i]));
    const bool continues = i > 0 && shown(i - 1);
    if (s.dots && !s.notes.empty())
      paths.noted.push_back(
          fmt::format(" d=\"M{}h0\"><title>{}</title></path>\n", at, xml_text(s.notes[i])));
    else if (s.dots || (!continues && !shown(i + 1)))
      paths.dots += "M" + at + "h0";
    else
      paths.lines += (continues ? "L" : "M") + at;
  }
  return paths;
}

// The names of series in rows above the chart.
struct Legend {
  static constexpr double row = 18;
  std::string svg;
  double height = 0;

  Legend(const std::vector<Series>& series, double left, double right, double top) {
    double at = left;
    for (size_t i = 0; i < series.size(); ++i) {
      if (series[i].name.empty()) continue;
      const std::string name = fitted(series[i].name, right - left - 40);
      const double width = 24 + letter * double(letters(name)) + 16;
      if (height == 0 || at + width > right + 16) {
        height += row;
        at = left;
      }
      const double y = top + height - 6;
      svg += path(series[i].dots ? "dots" : "line", color_of(series, i),
                  fmt::format("M{:.1f} {:.1f}h{}", at + (series[i].dots ? 9 : 0), y - 4,
                              series[i].dots ? 0 : 18));
      svg += text(at + 24, y, "", name);
      at += width;
    }
  }

  static size_t color_of(const std::vector<Series>& series, size_t i) {
    return series[i].color < 0 ? i : size_t(series[i].color);
  }
  static std::string start(const char* kind, size_t color) {
    return fmt::format("<path class=\"{} c{}\"{}", kind, color % colors,
                       kind[0] == 'l' ? dashes[color / colors % std::size(dashes)] : "");
  }
  static std::string path(const char* kind, size_t color, const std::string& d) {
    return d.empty() ? "" : fmt::format("{} d=\"{}\"/>\n", start(kind, color), d);
  }
};

}  // namespace

Drawing draw(const Chart& chart) {
  Axis x, y;
  x.log = chart.log_x;
  y.log = chart.log_y;
  for (const Series& s : chart.series) {
    check(s.x.size() == s.y.size(), "series {} has {} x and {} y", quote(s.name), s.x.size(),
          s.y.size());
    check(s.notes.empty() || s.notes.size() == s.x.size(), "series {} has {} x and {} notes",
          quote(s.name), s.x.size(), s.notes.size());
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (!x.shows(s.x[i]) || !y.shows(s.y[i])) continue;
      x.include(s.x[i]);
      y.include(s.y[i]);
    }
  }
  const bool empty = x.low > x.high;
  const auto x_ticks = choose_ticks(x, 8, false), y_ticks = choose_ticks(y, 6, true);
  const auto x_texts = tick_texts(x, x_ticks), y_texts = tick_texts(y, y_ticks);
  x.from = 36 + widest(y_texts);
  x.to = chart.width - std::max(16.0, widest(x_texts) / 2 + 4);
  const Legend legend(chart.series, x.from, x.to, 30);
  const double height = chart.height + std::max(0.0, legend.height - Legend::row);
  y.from = height - 48, y.to = 36 + legend.height;

  const auto at = [](const Axis& a, double tick) {
    return a.from + (tick - a.low) / (a.high - a.low) * (a.to - a.from);
  };
  const double center_x = (x.from + x.to) / 2, center_y = (y.from + y.to) / 2;
  std::string svg = heading(chart.width, chart.title);
  for (size_t i = 0; i < y_ticks.size(); ++i) {
    const double py = at(y, y_ticks[i]);
    svg += line("grid", x.from, py, x.to, py) + text(x.from - 8, py + 4, end, y_texts[i]);
  }
  for (size_t i = 0; i < x_ticks.size(); ++i) {
    const double px = at(x, x_ticks[i]);
    svg += line("axis", px, y.from, px, y.from + 5) + text(px, y.from + 18, middle, x_texts[i]);
  }
  svg += line("axis", x.from, y.from, x.to, y.from);
  svg += text(center_x, height - 10, middle, chart.x_label);
  svg += upright(16, center_y, middle, chart.y_label);
  if (empty) svg += text(center_x, center_y, middle, "no data");
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Paths paths = series_paths(chart.series[i], x, y);
    const size_t color = Legend::color_of(chart.series, i);
    svg += Legend::path("line", color, paths.lines) + Legend::path("dots", color, paths.dots);
    for (const std::string& dot : paths.noted) svg += Legend::start("dots", color) + dot;
  }
  return {chart.title, double(chart.width), height, svg + legend.svg};
}

Drawing draw(const HeatMap& map) {
  const auto number = [](double v) { return v == 0 ? std::string() : fmt::format("{:.6g}", v); };
  std::vector<std::string> numbers, rows, columns;
  check(map.values.size() == map.rows.size(), "{} rows of values for {} names", map.values.size(),
        map.rows.size());
  for (const auto& row : map.values) {
    check(row.size() == map.columns.size(), "a row of {} values for {} columns", row.size(),
          map.columns.size());
    for (const double v : row) numbers.push_back(number(v));
  }
  for (const std::string& name : map.rows) rows.push_back(fitted(name, 160));
  for (const std::string& name : map.columns) columns.push_back(fitted(name, 160));

  const double n = double(columns.size());
  const double cell =
      std::max({30.0, widest(numbers) + 10, std::min(64.0, 480 / std::max(n, 1.0))});
  const bool rotated = widest(columns) > cell - 4;
  const double left = 46 + widest(rows), top = 36, below = rotated ? widest(columns) + 12 : 20;
  const double to_x = left + cell * n, to_y = top + cell * double(rows.size());
  // Leaves room for the title above few columns.
  const double width = std::max(to_x + 16, letter * 1.3 * double(letters(map.title)) + 16);

  std::string svg = heading(width, map.title);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = top + cell * double(r);
    svg += text(left - 8, y + cell / 2 + 4, end, rows[r]);
    double sum = 0;
    for (const double v : map.values[r]) sum += v;
    for (size_t c = 0; c < columns.size(); ++c) {
      const double v = map.values[r][c], part = sum > 0 && v > 0 ? v / sum : 0;
      const double x = left + cell * double(c);
      svg += fmt::format(
          "<rect class=\"cell\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill-opacity=\"{:.3f}\"/>\n",
          x + 0.5, y + 0.5, cell - 1, cell - 1, 0.05 + 0.95 * part);
      svg += text(x + cell / 2, y + cell / 2 + 4,
                  part > 0.8 ? "class=\"strong\" text-anchor=\"middle\""
                             : "class=\"number\" text-anchor=\"middle\"",
                  number(v));
    }
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    const double x = left + cell * (double(c) + 0.5);
    svg += rotated ? upright(x + 4, to_y + 8, end, columns[c])
                   : text(x, to_y + 17, middle, columns[c]);
  }
  svg += text((left + to_x) / 2, to_y + below + 20, middle, map.x_label);
  svg += upright(16, (top + to_y) / 2, middle, map.y_label);
  return {map.title, width, to_y + below + 32, svg};
}

Drawing draw(const BarChart& chart) {
  Axis x;
  x.low = x.high = 0;
  x.include(chart.reference);
  std::vector<std::string> labels;
  for (const Bar& bar : chart.bars) {
    check(0 <= bar.low && bar.low <= bar.value && bar.value <= bar.high && std::isfinite(bar.high),
          "bar {} has {} from {} to {}", quote(bar.label), bar.value, bar.low, bar.high);
    x.include(bar.high);
    labels.push_back(fitted(bar.label, chart.width / 3.0));
  }
  const auto ticks = choose_ticks(x, 8, true);
  x.from = 24 + widest(labels);
  x.to = chart.width - 60;  // leaves room for the value beside the longest bar
  constexpr double top = 36, row = 22;
  const double bottom = top + row * double(chart.bars.size());
  std::string svg = heading(chart.width, chart.title);
  for (const double tick : ticks) {
    const double px = x.pixel(tick);
    svg += line("grid", px, top, px, bottom) + text(px, bottom + 18, middle, tick_text(x, tick));
  }
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    const double y = top + row * double(i), center = y + row / 2;
    svg += text(x.from - 8, center + 4, end, labels[i]);
    svg += fmt::format(
        "<rect class=\"b{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
        size_t(bar.color) % colors, x.from, y + 3, x.pixel(bar.value) - x.from, row - 6);
    svg += line("range", x.pixel(bar.low), center, x.pixel(bar.high), center);
    svg += text(x.pixel(bar.high) + 6, center + 4, "", fmt::format("{:.2f}", bar.value));
  }
  const double reference = x.pixel(chart.reference);
  svg += line("axis", reference, top, reference, bottom);
  return {chart.title, double(chart.width), bottom + 28, svg};
}

namespace {

constexpr double box_row = 26, box_gap = 4, box_margin = 8;

double height_of(const Box& box) {
  double height = box_row;
  for (const Box& b : box.inside) height += height_of(b) + box_gap;
  return height + (box.inside.empty() ? 0 : box_gap);
}

std::string rect(const char* attributes, double x, double y, double width, double height) {
  return fmt::format(
      "<rect {} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\"/>\n",
      attributes, x, y, width, height);
}

std::string mark(int color, double x, double y) {
  if (color < 0) return "";
  return rect(fmt::format("class=\"b{}\"", size_t(color) % colors).c_str(), x, y, 8, box_row - 12);
}

std::string boxes(const Box& box, double x, double y, double right) {
  const double note = letter * double(letters(box.note)), room = right - x - 40 - note;
  std::string svg = rect("class=\"axis\" fill=\"none\"", x, y, right - x, height_of(box));
  svg += mark(box.color, x + 7, y + 6) + text(x + 22, y + 17, "", fitted(box.name, room));
  svg += text(right - 8, y + 17, end, box.note);
  y += box_row;
  for (const Box& b : box.inside) {
    svg += boxes(b, x + box_margin, y, right - box_margin);
    y += height_of(b) + box_gap;
  }
  return svg;
}

}  // namespace

Drawing draw(const BoxDiagram& diagram) {
  std::string svg = heading(diagram.width, diagram.title);
  double x = 16, y = 36;
  for (const auto& [name, color] : diagram.legend) {
    svg += mark(color, x, y - 2) + text(x + 14, y + 9, "", name);
    x += 30 + letter * double(letters(name));
  }
  if (!diagram.legend.empty()) y += box_row;
  for (const Box& box : diagram.boxes) {
    svg += boxes(box, 16, y, diagram.width - 16);
    y += height_of(box) + box_gap;
  }
  return {diagram.title, double(diagram.width), y + 12, svg};
}

std::string to_svg(std::span<const Drawing> drawings) {
  double width = 0, height = 0;
  std::string title, elements;
  for (const Drawing& d : drawings) {
    elements += height == 0 ? d.elements
                            : fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", height,
                                          d.elements);
    title += (title.empty() ? "" : "; ") + d.title;
    width = std::max(width, d.width);
    height += d.height;
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
             "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n<title>{2}</title>\n",
             width, height, xml_text(title)) +
         style() + "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n" + elements +
         "</svg>\n";
}

}  // namespace mixtape::io
