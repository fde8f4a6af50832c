// Data to pixels through two axes, each a range with round tick values.

#include "io/svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

// Mid-tones that stand out on white and on near-black (Okabe and Ito's, yellow left out).
constexpr const char* colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

constexpr const char* style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #333; }
  .title { font-size: 15px; font-weight: 600; }
  .grid { stroke: #ddd; } .axis { stroke: #888; }
  .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
  @media (prefers-color-scheme: dark) { text { fill: #ddd; } .grid { stroke: #3a3a3a; } }
</style>
)";

// Values to pixels, in the logarithm where the axis is logarithmic.
struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;
  double from = 0, to = 1;  // pixels of low and high

  bool shows(double v) const { return std::isfinite(v) && (!log || v > 0); }
  // Values beyond 1e300 are drawn there, so that the range of an axis is a double, too.
  double scale(double v) const { return log ? std::log10(v) : std::clamp(v, -1e300, 1e300); }
  void include(double v) {
    low = std::min(low, scale(v));
    high = std::max(high, scale(v));
  }
  double pixel(double v) const { return from + (scale(v) - low) / (high - low) * (to - from); }
};

// The smallest of 1, 2, 5 times a power of ten that cuts `range` into at most `pieces`.
double round_step(double range, int pieces) {
  const double raw = range / pieces, power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= raw * (1 - 1e-9)) return m * power;
  return 10 * power;
}

// Widens an empty or single-valued range, then rounds its ends to ticks. Returns the ticks.
std::vector<double> settle(Axis& axis, int pieces, bool round_ends) {
  if (!(axis.low <= axis.high)) axis.low = 0, axis.high = 1;
  const double magnitude = std::max(std::abs(axis.low), std::abs(axis.high));
  if (axis.high - axis.low <= std::max(magnitude * 1e-12, 1e-290)) {
    const double margin = magnitude > 1e-280 ? magnitude / 10 : 1;
    axis.low -= margin;
    axis.high += margin;
  }

  std::vector<double> ticks;
  double step = round_step(axis.high - axis.low, pieces);
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
  if (axis.log && std::abs(tick) > 5)
    return fmt::format("1e{}", tick);  // whole, and never infinite
  return fmt::format("{:.6g}", axis.log ? std::pow(10.0, tick) : tick);
}

// Moves on gaps, lines elsewhere. A lone point becomes a dot: round caps draw a line of no length.
std::string path(const Series& s, const Axis& x, const Axis& y) {
  std::string d;
  bool drawing = false;
  for (size_t i = 0; i < s.x.size(); ++i) {
    const bool shown = x.shows(s.x[i]) && y.shows(s.y[i]);
    if (shown) {
      const double px = x.pixel(s.x[i]), py = y.pixel(s.y[i]);
      d +=
          drawing ? fmt::format("L{:.1f} {:.1f}", px, py) : fmt::format("M{:.1f} {:.1f}h0", px, py);
    }
    drawing = shown;
  }
  return d;
}

}  // namespace

std::string to_svg(const Chart& chart) {
  constexpr double left = 64, right = 16, top = 36, bottom = 48, legend_row = 16;
  Axis x, y;
  y.log = chart.log_y;
  for (const Series& s : chart.series) {
    check(s.x.size() == s.y.size(), "series {} has {} x and {} y", quote(s.name), s.x.size(),
          s.y.size());
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (!x.shows(s.x[i]) || !y.shows(s.y[i])) continue;
      x.include(s.x[i]);
      y.include(s.y[i]);
    }
  }
  const bool empty = x.low > x.high;
  const auto x_ticks = settle(x, 8, false), y_ticks = settle(y, 6, true);
  x.from = left, x.to = chart.width - right;
  y.from = chart.height - bottom, y.to = top;

  const auto text = [](double px, double py, const char* attributes, std::string_view content) {
    return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", px, py, attributes,
                       xml_text(content));
  };
  const auto line = [](const char* kind, double x1, double y1, double x2, double y2) {
    return fmt::format(
        "<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1,
        y1, x2, y2);
  };
  const auto at = [](const Axis& a, double tick) {
    return a.from + (tick - a.low) / (a.high - a.low) * (a.to - a.from);
  };
  const double middle = (x.from + x.to) / 2, center = (y.from + y.to) / 2;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "width=\"{0}\" height=\"{1}\" role=\"img\">\n<title>{2}</title>\n",
      chart.width, chart.height, xml_text(chart.title));
  svg += style;
  for (const double t : y_ticks) {
    svg += line("grid", x.from, at(y, t), x.to, at(y, t));
    svg += text(x.from - 8, at(y, t) + 4, "text-anchor=\"end\"", tick_text(y, t));
  }
  for (const double t : x_ticks) {
    svg += line("axis", at(x, t), y.from, at(x, t), y.from + 5);
    svg += text(at(x, t), y.from + 18, "text-anchor=\"middle\"", tick_text(x, t));
  }
  svg += line("axis", x.from, y.from, x.to, y.from);
  svg += text(middle, 20, "class=\"title\" text-anchor=\"middle\"", chart.title);
  svg += text(middle, chart.height - 10, "text-anchor=\"middle\"", chart.x_label);
  svg += fmt::format("<g transform=\"translate(14 {:.1f}) rotate(-90)\">{}</g>\n", center,
                     text(0, 0, "text-anchor=\"middle\"", chart.y_label));
  if (empty) svg += text(middle, center, "text-anchor=\"middle\"", "no data");

  double row = top + legend_row;
  size_t color = 0;
  for (const Series& s : chart.series) {
    const char* stroke = colors[color++ % std::size(colors)];
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"{}\"/>\n", stroke, path(s, x, y));
    svg += fmt::format("<path class=\"line\" stroke=\"{}\" d=\"M{:.1f} {:.1f}h18\"/>\n", stroke,
                       x.to - 24, row - 4);
    svg += text(x.to - 30, row, "text-anchor=\"end\"", s.name);
    row += legend_row;
  }
  return svg + "</svg>\n";
}

}  // namespace mixtape::io
