// Learner::lr_find(): a short training that is undone (Smith 2017, "Cyclical learning rates").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <tuple>

#include "autograd/ops.h"
#include "core/check.h"
#include "io/file.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

double mean(std::span<const double> x) {
  return std::reduce(x.begin(), x.end()) / double(x.size());
}

// The losses before the explosion, which begins with two in a row that are above all earlier ones
// by more than their spread and more than a tenth. (The first third only shows the spread.)
std::span<const double> before_explosion(std::span<const double> loss) {
  double low = INFINITY, high = -INFINITY;
  for (size_t i = 0; i < loss.size(); ++i) {
    const double lower_of_two = std::min(loss[i], loss[std::min(i + 1, loss.size() - 1)]);
    if (i >= std::max<size_t>(loss.size() / 3, 2) &&
        lower_of_two > high + std::max(high - low, std::abs(high) / 10))
      return loss.first(i);
    low = std::min(low, loss[i]);
    high = std::max(high, loss[i]);
  }
  return loss;
}

// The number of losses up to the end of the run of `width` with the lowest mean.
size_t end_of_lowest(std::span<const double> loss, size_t width) {
  size_t end = width;
  double lowest = INFINITY;
  for (size_t i = width; i <= loss.size(); ++i)
    if (const double m = mean(loss.subspan(i - width, width)); m < lowest) lowest = m, end = i;
  return end;
}

// The index at which the losses fall, assuming that they fall once from one level to another: the
// split into two parts with the best t-test, which noise in single batches hardly changes. The last
// index if they do not fall.
size_t fall(std::span<const double> loss, size_t first) {
  const double n = double(loss.size());
  size_t at = loss.size() - 1;
  double most = 0, before = 0, after = std::reduce(loss.begin(), loss.end());
  for (size_t i = 0; i < loss.size(); ++i) {
    const double left = double(i), right = n - left;
    const double t = i > 0 ? (before / left - after / right) * std::sqrt(left * right) : 0;
    if (i >= first && t > most) most = t, at = i;
    before += loss[i];
    after -= loss[i];
  }
  return at;
}

// The suggested rate. Losses after the minimum are left out, since there a falling loss recovers
// from an explosion.
double suggestion(const LrFind& found) {
  if (found.lr.empty()) return NAN;
  const size_t tenth = std::max<size_t>(found.lr.size() / 10, 1);
  const auto calm = before_explosion(found.raw);
  return found.lr[fall(calm.first(end_of_lowest(calm, std::min(tenth, calm.size()))), tenth)];
}

}  // namespace

void Learner::find_lr(const LrFindOptions& o, LrFind& found) {
  double average = 0, best = INFINITY, first = 0;
  constexpr double decay = 0.98;
  // Single batches decide the first means, which may be lower than the loss ever is.
  const int64_t settled = o.steps / 10;
  model_.module->train();
  for (int64_t i = 0; i < o.steps;) {
    state.batch = 0;
    check_kept(data.train);
    for (const Batch& batch : own_part(*data.train)) {
      const double lr = o.start * std::pow(o.end / o.start, double(i) / double(o.steps - 1));
      optimizer->set_lr(lr);
      train_batch(batch);
      check_kept(data.train);
      check(bool(state.loss), "a callback skipped a batch of lr_find");
      const double loss = state.loss.item();
      average = decay * average + (1 - decay) * loss;
      const double smooth = average / (1 - std::pow(decay, double(++i)));
      if (!std::isfinite(smooth) || stopping_) return;
      if (i > settled) {
        if (best == INFINITY) first = smooth;
        best = std::min(best, smooth);
        // A loss that may be negative is compared with how far it has fallen.
        const double unit = best > 0 ? best : std::max(-best, first - best);
        if (smooth > best + (o.stop_factor - 1) * unit) return;
      }
      found.lr.push_back(lr);
      found.loss.push_back(smooth);
      found.raw.push_back(loss);
      if (i == o.steps) return;
    }
  }
}

LrFind Learner::lr_find(const LrFindOptions& o) {
  require_ready();
  check(data.train.has_value(), "lr_find needs training data");
  check_batches(*data.train, "the training data");
  check(0 < o.start && o.start < o.end && std::isfinite(o.end),
        "lr_find needs 0 < start < end, got {} and {}", o.start, o.end);
  check(o.steps >= 2, "steps must be >= 2, got {}", o.steps);
  check(o.stop_factor > 1, "stop_factor must be > 1, got {}", o.stop_factor);
  agree();
  Interrupt::raise_kept();
  const DefaultDevice here(device_);
  const Interrupt interrupt;
  const nn::Evaluating mode(*model_.module);  // restores the mode afterwards
  StateDict before;
  for (const auto& [name, tensor] : state_dict()) before.emplace_back(name, tensor.clone());
  std::vector<std::pair<Tensor, Tensor>> buffers;  // state_dict() leaves out UnsavedBuffers
  for (const auto& [name, b] : model_.module->named_buffers())
    if (!b.layout().repeats())
      buffers.emplace_back(b, b.clone());  // expanded ones are never written
  const auto rest = std::tuple(state, loss_sum_, examples_, history.epochs, resumable_);
  auto fit_schedule = std::move(schedule);

  LrFind found;
  in_lr_find_ = true;
  stopping_ = false;
  state.epoch = state.batch = 0;  // callbacks must not take it for a resumed fit
  state.batches = data.train->batches();
  const auto undo = [&] {
    in_lr_find_ = stopping_ = false;
    scaler.abandon();
    load_state_dict(before);
    const NoGrad off;
    for (const auto& [buffer, values] : buffers) copy_(buffer, values);
    std::tie(state, loss_sum_, examples_, history.epochs, resumable_) = rest;
    schedule = std::move(fit_schedule);
  };
  try {
    drop_gradients();
    const Joined joined(*this);
    const Flag fitting(in_fit_);
    with_events(&Callback::on_train_begin, &Callback::on_train_end, [&] {
      divide();
      find_lr(o, found);
    });
  } catch (...) {
    undo();
    throw;
  }
  undo();
  agree();
  heed_interrupt();
  found.suggested = suggestion(found);
  if (folder_ && is_first_rank())
    io::write_file(folder_->path("lr_find.svg"), io::to_svg(chart(found)));
  return found;
}

io::Chart chart(const LrFind& found) {
  io::Chart chart{.title = "Learning rate finder",
                  .x_label = "learning rate",
                  .y_label = "loss",
                  .series = {{"smoothed loss", found.lr, found.loss}},
                  .log_x = true};
  const auto at = std::ranges::find(found.lr, found.suggested);
  if (at != found.lr.end())
    chart.series.push_back({fmt::format("falls at {:.2g}", found.suggested),
                            {found.suggested},
                            {found.loss[size_t(at - found.lr.begin())]},
                            true});
  return chart;
}

}  // namespace mixtape::train
