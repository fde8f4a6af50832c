#include "train/history_writer.h"

#include "train/learner.h"

namespace mixtape::train {

// A validation alone opens no file.
void HistoryWriter::on_batch_end(Learner& l) {
  if (l.state.training) write(l);
}

void HistoryWriter::on_train_end(Learner& l) {
  if (is_open_) write(l);
}

// A history shorter than what was written came from a checkpoint.
void HistoryWriter::write(Learner& l) {
  if (reader_.is_ahead_of(l.history)) is_open_ = false;
  if (!is_open_) {
    open();
    reader_ = {};
  }
  reader_.read(
      l.history, [&](const StepRow& row) { write_step(l, row); },
      [&](const EpochRow& row) { write_epoch(l, row); });
  flush();
  is_open_ = true;
}

}  // namespace mixtape::train
