#pragma once
// The callbacks that most trainings need.
//
//   learner.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 5}));

#include "io/file.h"
#include "optim/ema.h"
#include "optim/plateau.h"
#include "train/history.h"
#include "train/run_folder.h"

namespace mixtape::train {

// The best value so far of a column of the epoch table. The first value is an improvement; NaN
// never is.
class BestValue {
 public:
  // A change below min_delta is no improvement. Throws Error unless min_delta >= 0.
  explicit BestValue(std::string monitor, double min_delta = 0);
  bool improved(const Learner& learner);  // throws Error as Learner::score does
  // "best", if there is a value.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  std::string monitor_;
  double min_delta_;
  std::optional<double> value_;
};

struct EarlyStoppingOptions {
  std::string monitor = "valid_loss";
  int64_t patience = 3;  // epochs without improvement before training ends
  double min_delta = 0;  // the smallest change that is an improvement
};
// Ends the fit when the monitored value stops improving. Throws Error if the value needs validation
// data (all but train_loss do) and there are none.
class EarlyStopping : public Callback {
 public:
  // Throws Error unless patience >= 1 and min_delta >= 0.
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  const EarlyStoppingOptions options_;
  BestValue best_;
  int64_t waited_ = 0;
};

struct ModelCheckpointOptions {
  std::string folder;                  // for last.ckpt and best.ckpt
  std::string monitor = "valid_loss";  // chooses best.ckpt; empty: none is written
  int64_t every_steps = 0;             // batches between further last.ckpt; 0: only by epochs
};
// Writes last.ckpt after each epoch and when training ends early (for example by Ctrl-C), and
// best.ckpt after each epoch that is the best so far (never without validation data), for
// Learner::load() and FitOptions::resume. A fit first removes temporary files of a killed process.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(const ModelCheckpointOptions& options);  // makes the folder
  int order() const override { return observer_order + 10; }        // after callbacks with state
  bool everywhere() const override { return true; }
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  void on_checkpoint(Learner& learner) override;
  StateDict state_dict() const override { return best_.state_dict(); }
  void load_state_dict(const StateDict& dict) override { best_.load_state_dict(dict); }

 private:
  const ModelCheckpointOptions options_;
  const RunFolder folder_;
  BestValue best_;
  bool is_best_ = false;  // true if the epoch that just ended is the best
};

// A CSV row per epoch: epoch, train_loss, valid_loss, metrics, seconds. A new run rewrites it.
class CsvLogger : public Callback {
 public:
  // Writes to that file, which on_train_begin opens.
  explicit CsvLogger(const std::string& path) : path_(io::absolute(path)) {}
  int order() const override { return observer_order; }
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;

 private:
  const std::string path_;
};

// A line of JSON per epoch and, with `steps`, per step, in the format of train/charts.h. When a fit
// begins, the file is rewritten from the learner's history, so resuming repeats no line.
class JsonlLogger : public HistoryWriter {
 public:
  // Writes to that file; `steps` adds the lines per step.
  explicit JsonlLogger(const std::string& path, bool steps = false)
      : path_(io::absolute(path)), steps_(steps) {}
  void on_train_begin(Learner& learner) override;

 private:
  void open() override { file_.reset(); }
  void write_step(const Learner& learner, const StepRow& row) override;
  void write_epoch(const Learner& learner, const EpochRow& row) override;
  void flush() override;

  const std::string path_;
  const bool steps_;
  std::optional<io::AppendFile> file_;
  std::string lines_;  // of this event
};

// Makes one optimizer step per `batches` batches (fewer in an epoch's last group), with the
// gradients of their mean loss. Skipped batches do not count; a group that lacks them goes on in
// the next epoch. With LearnerOptions::chunks or several ranks, a group is one batch of so many
// times more chunks.
class GradientAccumulation : public Callback {
 public:
  explicit GradientAccumulation(int64_t batches);  // throws Error unless batches >= 1
  int order() const override { return -20; }       // before gradients are unscaled
  void on_backward_begin(Learner& learner) override;
  void on_backward_end(Learner& learner) override;
  int64_t batches_per_step() const override { return batches_; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  const int64_t batches_;
  int64_t group_ = 0, done_ = 0;  // batches in the current group, and how many of them ran
};

// Limits the norm of all gradients, in the optimizer's kernel.
class GradientClip : public Callback {
 public:
  explicit GradientClip(double max_norm);  // throws Error unless max_norm > 0
  void on_step_begin(Learner& learner) override;

 private:
  const double max_norm_;
};

// Lowers the learning rate when the monitored value stops improving; steps are epochs. Sets
// options.better. Throws Error in a fit that has a schedule or lacks validation data.
class ReduceLrOnPlateau : public Callback {
 public:
  // `monitor` is a column of the epoch table. The first epoch checks the options.
  explicit ReduceLrOnPlateau(const optim::PlateauOptions& options = {},
                             std::string monitor = "valid_loss")
      : options_(options), monitor_(std::move(monitor)) {}
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  void on_train_end(Learner&) override { plateau_.reset(); }
  StateDict state_dict() const override { return state_; }
  void load_state_dict(const StateDict& dict) override {
    plateau_.reset();
    state_ = dict;
  }

 private:
  optim::PlateauOptions options_;
  const std::string monitor_;
  std::optional<optim::Plateau> plateau_;  // made after the fit's first epoch
  StateDict state_;  // its state after the last epoch, which does without the optimizer
};

// Averages weights and buffers over steps that were not skipped. Validation uses the averages, and
// the model keeps them when the fit ends; the next fit begins a new average. A checkpoint made
// within a fit holds the averages and the last weights, and once loaded validates with the
// averages. With a GradScaler, every step waits for the device to learn whether it was skipped.
class EmaWeights : public Callback {
 public:
  // The first batch checks the options; see optim::Ema.
  explicit EmaWeights(const optim::EmaOptions& options = {}) : options_(options) {}
  int order() const override { return observer_order; }
  bool everywhere() const override { return true; }
  void on_train_begin(Learner& learner) override;
  void on_batch_begin(Learner& learner) override;
  void on_step_end(Learner& learner) override;
  void on_valid_begin(Learner& learner) override;
  void on_valid_end(Learner& learner) override;
  void on_train_end(Learner&) override;
  StateDict state_dict() const override { return ema_ ? ema_->state_dict() : loaded_; }
  void load_state_dict(const StateDict& dict) override;

 private:
  void begin(Learner& learner);

  const optim::EmaOptions options_;
  std::optional<optim::Ema> ema_;  // made after the fit's first batch or from loaded averages
  std::optional<optim::Ema::Applied> applied_;
  StateDict loaded_;  // a checkpoint's state, until then
};

// Ends training with an Error if the loss is NaN or infinite. The Error comes when the loss has
// arrived from the device, perhaps some steps later, but before the epoch ends.
class TerminateOnNan : public Callback {
 public:
  int order() const override { return observer_order; }  // lr_find needs the loss to explode
  bool everywhere() const override { return true; }
  void on_train_begin(Learner& learner) override;
  void on_batch_end(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;

 private:
  size_t seen_ = 0;   // steps of the history that were checked
  bool ran_ = false;  // true if a batch of this epoch ran
};

}  // namespace mixtape::train
