#include "train/plot.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "io/file.h"

namespace mixtape::train {
namespace {

// Halves a list by averaging neighbours.
void halve(std::vector<double>& v) {
  for (size_t i = 0; i < v.size() / 2; ++i) v[i] = v[2 * i] / 2 + v[2 * i + 1] / 2;
  v.resize(v.size() / 2);
}

}  // namespace

Plot::Plot(io::Chart chart, size_t most_points)
    : empty_(std::move(chart)), most_points_(most_points) {
  check(most_points >= 2 && most_points % 2 == 0, "curves of {} points", most_points);
}

void Plot::add(std::string_view name, double x, double y) {
  auto curve =
      std::find_if(curves_.begin(), curves_.end(), [&](const Curve& c) { return c.name == name; });
  if (curve == curves_.end()) curve = curves_.insert(curve, Curve{std::string(name), {}, {}, 1, 0});
  Curve& c = *curve;
  if (c.pending == 0) {
    if (c.x.size() == most_points_) {
      halve(c.x);
      halve(c.y);
      c.per_point *= 2;
    }
    c.x.push_back(x);
    c.y.push_back(y);
  } else {  // running means
    const double weight = 1.0 / static_cast<double>(c.pending + 1);
    c.x.back() += (x - c.x.back()) * weight;
    c.y.back() += (y - c.y.back()) * weight;
  }
  if (++c.pending == c.per_point) c.pending = 0;
}

io::Chart Plot::chart() const {
  io::Chart chart = empty_;
  for (const Curve& c : curves_) chart.series.push_back({c.name, c.x, c.y});
  return chart;
}

void Plot::save(const std::string& path) const { io::write_file(path, io::to_svg(chart())); }

}  // namespace mixtape::train
