// Histograms of gradients, counted by the kernels that look for infinities and read on demand.
#include "amp/gradient_histogram.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "amp/scaler.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/scope.h"
#include "core/warn.h"
#include "io/svg.h"
#include "io/text.h"
#include "kernels/kernels.h"

namespace mixtape::amp {
using namespace internal;

using Row = GradientHistogram::Row;

namespace {

constexpr int bias = 127;  // of exponent fields in f32
constexpr int bins = int(kernels::exponent_bins);

int64_t count(const Row& r, int begin, int end) {
  return std::accumulate(r.counts.begin() + begin, r.counts.begin() + end, int64_t(0));
}
double part(const Row& r, int begin, int end) {
  const int64_t all = r.elements();
  return all == 0 ? 0 : double(count(r, begin, end)) / double(all);
}
int largest(const Row& r) {
  int e = bins - 1;
  while (e > 0 && r.counts[size_t(e)] == 0) --e;
  return e;
}
std::string name_of(const detail::OptimizerHistory& h, size_t i) {
  return i < h.names.size() ? h.names[i] : fmt::format("parameter {}", i);
}

}  // namespace

int64_t Row::elements() const { return count(*this, 0, bins); }
double Row::zeros() const { return part(*this, 0, 1); }
double Row::subnormals() const { return part(*this, 1, bias - 14); }
int Row::headroom() const { return bias + 15 - largest(*this); }

std::string GradientHistogram::text() const {
  std::vector<std::vector<std::string>> table{
      {"parameter", "elements", "zero", "< 2^-14", "headroom"}};
  for (const Row& r : rows)
    table.push_back({r.name, fmt::format("{}", r.elements()),
                     fmt::format("{:.0f} %", 100 * r.zeros()),
                     fmt::format("{:.0f} %", 100 * r.subnormals()),
                     count(r, 1, bins) > 0 ? fmt::format("2^{}", r.headroom()) : "-"});
  return fmt::format("gradients times {:g}\n{}", scale,
                     io::columns(table, {false, true, true, true, true}));
}

std::string GradientHistogram::svg() const {
  int low = bias - 24, high = bias + 16;  // f16's range, widened below if there is more
  for (const Row& r : rows)
    for (int e = 1; e < bins; ++e)
      if (r.counts[size_t(e)] > 0) low = std::min(low, e), high = std::max(high, e + 1);
  io::HeatMap map{.title = fmt::format("Gradients times {:g}", scale),
                  .x_label = "power of two",
                  .y_label = "parameter"};
  map.columns.push_back("0");
  for (int e = low; e < high; ++e) map.columns.push_back(fmt::format("{}", e - bias));
  for (const Row& r : rows) {
    map.rows.push_back(r.name);
    std::vector<double>& values = map.values.emplace_back(1, double(r.counts[0]));
    for (int e = low; e < high; ++e) values.push_back(double(r.counts[size_t(e)]));
  }
  return io::to_svg(map);
}

// --- in the scaler ---

// The counters for the next look at an optimizer's gradients; none if it should not count them.
View GradScaler::count_next(const optim::Optimizer& opt, size_t parameters, Device device) {
  if (options_.histogram == 0 || parameters == 0) return {};
  detail::OptimizerHistory& h = history_of(opt, parameters, device);
  if (h.steps++ % options_.histogram != 0 && !capture()) return {};
  const Shape shape{int64_t(parameters), kernels::exponent_bins};
  if (!h.exponents || h.exponents.shape() != shape || h.exponents.device() != device) {
    h.exponents = Tensor(shape, i32, device);
    h.worst = Tensor({3}, f32, device);
  }
  h.exponents.storage()->begin_write();
  return h.exponents;
}

void GradScaler::find_underflow(const optim::Optimizer& opt, const detail::ScaleState& s) {
  const detail::OptimizerHistory& h = histories_.at(opt.id());
  h.exponents.storage()->bump_version();
  h.worst.storage()->begin_write();
  kernels::find_underflow(h.worst.device(), h.exponents, s.value(), h.worst);
  h.worst.storage()->bump_version();
}

// Warns once per optimizer, from numbers that arrive without waiting. Meta tensors have none.
void GradScaler::warn_of_underflow(detail::OptimizerHistory& h) const {
  if (!h.worst || h.warned || h.worst.device().is_meta()) return;
  if (!h.pending_worst)
    h.pending_worst = Readback(View(h.worst).data, 3 * sizeof(float), h.worst.device());
  if (!h.pending_worst.has_arrived()) return;
  const auto* const worst = h.pending_worst.as<float>();
  const float zero_part = worst[1], scale = worst[2];
  const int64_t parameter = int64_t(worst[0]);
  h.pending_worst = {};
  if (parameter < 0) return;
  h.warned = true;
  constexpr auto advice = "begin with a larger one (init_scale), or let calibrate find it";
  if (parameter == h.exponents.size(0))
    warn(fmt::format("{}: all gradients are zero at a loss scale of {:g}. If it is too low: {}",
                     h.kind, scale, advice));
  else
    warn(
        fmt::format("{}: {:.0f} % of {}'s gradients are zero, and most of the others too small for "
                    "f16: the loss scale of {:g} is too low for them: {}, or give these layers a "
                    "scale of their own (amp::LayerGroup)",
                    h.kind, 100 * zero_part, name_of(h, size_t(parameter)), scale, advice));
}

GradientHistogram GradScaler::histogram(const optim::Optimizer& opt) const {
  const Scope scope("histogram");
  const auto h = histories_.find(opt.id());
  check(h != histories_.end() && h->second.exponents,
        "no step of {} has counted its gradients: set ScalerOptions::histogram", opt.name());
  const Tensor counts = h->second.exponents.copied_to(Device::cpu());
  GradientHistogram all;
  all.scale = h->second.worst.at(2);
  for (int64_t i = 0; i < counts.size(0); ++i) {
    Row& row = all.rows.emplace_back(Row{name_of(h->second, size_t(i))});
    std::copy_n(counts.data<int32_t>() + i * bins, bins, row.counts.begin());
  }
  return all;
}

}  // namespace mixtape::amp
