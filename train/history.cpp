#include "train/history.h"

#include <cmath>

#include "autograd/ops.h"
#include "train/learner.h"

namespace mixtape::train {

bool History::Pending::has_arrived() const {
  return loss.has_arrived() && (!scale || scale.has_arrived()) && result.has_arrived();
}

void History::add(int64_t step, const Tensor& loss, double lr, const amp::GradScaler& scaler,
                  const amp::StepResult& result) {
  const NoGrad off;
  const auto request = [](const Tensor& x) {
    return Readback(x.raw(), sizeof(double), x.device());
  };
  Pending next{{step, 0, lr, 1, false}, request(loss.detach().to(f64)), {}, result};
  if (scaler.enabled()) next.scale = request(scaler.scale_tensor().to(f64));
  pending_.push_back(std::move(next));
  while (!pending_.empty() && pending_.front().has_arrived()) take();
}

void History::settle() {
  if (pending_.empty()) return;
  const Pending& last = pending_.back();  // arrives last
  (last.scale ? last.scale : last.loss).wait();
  while (!pending_.empty()) take();
}

void History::take() {
  Pending& first = pending_.front();
  first.loss.wait();
  first.row.loss = *first.loss.as<double>();
  if (first.scale) {
    first.scale.wait();
    first.row.scale = *first.scale.as<double>();
  }
  first.row.skipped = first.result.state() == amp::StepResult::State::Skipped;
  steps.push_back(first.row);
  pending_.pop_front();
}

double History::last_loss() const { return steps.empty() ? NAN : steps.back().loss; }

// A validation alone opens no file.
void HistoryWriter::on_batch_end(Learner& learner) {
  if (learner.state.training) write(learner);
}

void HistoryWriter::on_train_end(Learner& learner) {
  if (is_open_) write(learner);
}

// A history with fewer rows than were written came from a checkpoint.
void HistoryWriter::write(Learner& learner) {
  if (reader_.is_ahead_of(learner.history)) is_open_ = false;
  if (!is_open_) {
    open();
    reader_ = {};
  }
  reader_.read(
      learner.history, [&](const StepRow& row) { write_step(learner, row); },
      [&](const EpochRow& row) { write_epoch(learner, row); });
  flush();
  is_open_ = true;
}

}  // namespace mixtape::train
