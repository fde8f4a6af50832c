// Learner::lr_find: a short training that is undone (Smith 2017, "Cyclical learning rates").
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "autograd/ops.h"
#include "core/check.h"
#include "io/file.h"
#include "train/interrupt.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

// The rate at which the loss falls fastest over log(rate). Leaves out the first tenth, where means
// are not smooth yet, and all after the minimum, where a falling loss recovers from an explosion.
double steepest(const LrFind& f) {
  if (f.lr.empty()) return NAN;
  const auto first = f.loss.begin() + std::ssize(f.loss) / 10;
  const auto lowest = size_t(std::min_element(first, f.loss.end()) - f.loss.begin());
  double slope = 0, lr = f.lr[lowest];
  for (size_t i = std::max<size_t>(f.lr.size() / 10, 1); i < lowest; ++i)
    if (f.loss[i + 1] - f.loss[i - 1] < slope) {
      slope = f.loss[i + 1] - f.loss[i - 1];
      lr = f.lr[i];
    }
  return lr;
}

}  // namespace

void Learner::find_lr(const LrFindOptions& o, LrFind& found) {
  double average = 0, best = 0;
  constexpr double decay = 0.98;
  model_.module->train();
  for (int64_t i = 0; i < o.steps;) {
    state.batch = 0;
    for (const Batch& batch : *data.train) {
      const double lr = o.start * std::pow(o.end / o.start, double(i) / double(o.steps - 1));
      optimizer->set_lr(lr);
      train_batch(batch);
      check(bool(state.loss), "a callback skipped a batch of lr_find");
      average = decay * average + (1 - decay) * state.loss.item();
      const double smooth = average / (1 - std::pow(decay, double(++i)));
      if (i == 1 || smooth < best) best = smooth;
      if (!std::isfinite(smooth) || smooth > o.stop_factor * best || stopping_) return;
      found.lr.push_back(lr);
      found.loss.push_back(smooth);
      if (i == o.steps) return;
    }
  }
}

LrFind Learner::lr_find(const LrFindOptions& o) {
  check(data.train.has_value(), "lr_find needs training data");
  check_batches(*data.train, "the training data");
  check(0 < o.start && o.start < o.end && std::isfinite(o.end),
        "lr_find needs 0 < start < end, got {} and {}", o.start, o.end);
  check(o.steps >= 2, "steps must be >= 2, got {}", o.steps);
  check(o.stop_factor > 1, "stop_factor must be > 1, got {}", o.stop_factor);
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
    const Flag fitting(in_fit_);
    with_events(&Callback::on_train_begin, &Callback::on_train_end, [&] { find_lr(o, found); });
  } catch (...) {
    undo();
    throw;
  }
  undo();
  if (Interrupt::requested()) stop();
  found.suggested = steepest(found);
  if (folder_) io::write_file(folder_->path("lr_find.svg"), io::to_svg(chart(found)));
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
    chart.series.push_back({fmt::format("falls fastest at {:.2g}", found.suggested),
                            {found.suggested},
                            {found.loss[size_t(at - found.lr.begin())]},
                            true});
  return chart;
}

}  // namespace mixtape::train
