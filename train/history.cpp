#include "train/history.h"

#include <cmath>

#include "autograd/ops.h"

namespace mixtape::train {

bool History::Coming::has_arrived() const {
  return loss.has_arrived() && (!scale || scale.has_arrived()) && result.has_arrived();
}

void History::add(int64_t step, const Tensor& loss, double lr, const amp::GradScaler& scaler,
                  const amp::StepResult& result) {
  const NoGrad off;
  const auto asked = [](const Tensor& x) { return Readback(x.raw(), sizeof(double), x.device()); };
  Coming next{{step, 0, lr, 1, false}, asked(loss.detach().to(f64)), {}, result};
  if (scaler.enabled()) next.scale = asked(scaler.scale_tensor().to(f64));
  coming_.push_back(std::move(next));
  while (!coming_.empty() && coming_.front().has_arrived()) take();
}

void History::settle() {
  if (coming_.empty()) return;
  const Coming& last = coming_.back();  // once it is there, all others are
  (last.scale ? last.scale : last.loss).wait();
  while (!coming_.empty()) take();
}

void History::take() {
  Coming& first = coming_.front();
  first.loss.wait();
  first.row.loss = *first.loss.as<double>();
  if (first.scale) {
    first.scale.wait();
    first.row.scale = *first.scale.as<double>();
  }
  first.row.skipped = first.result.state() == amp::StepResult::State::Skipped;
  steps.push_back(first.row);
  coming_.pop_front();
}

double History::last_loss() const { return steps.empty() ? NAN : steps.back().loss; }

}  // namespace mixtape::train
