#pragma once
// The callbacks that most trainings need.
//
//   learner.add(std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 5}));

#include <memory>
#include <optional>
#include <string>

#include "io/file.h"
#include "optim/ema.h"
#include "optim/plateau.h"
#include "train/callback.h"
#include "train/history.h"
#include "train/run_folder.h"

namespace mixtape::train {

// A number of the table, and whether it got better. The first always did; NaN never does.
class Best {
 public:
  explicit Best(std::string monitor, double min_delta = 0)
      : monitor_(std::move(monitor)), min_delta_(min_delta) {}
  bool improved(const Learner& learner);  // throws Error as Learner::score does
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  std::string monitor_;
  double min_delta_;
  std::optional<double> value_;
};

struct EarlyStoppingOptions {
  std::string monitor = "valid_loss";
  int64_t patience = 3;  // epochs without improvement until training ends
  double min_delta = 0;  // what counts as one
};
// A fit without validation data, which are what all numbers but train_loss are of, is an Error.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  const EarlyStoppingOptions options_;
  Best best_;
  int64_t waited_ = 0;
};

struct ModelCheckpointOptions {
  std::string folder;                  // for last.ckpt and best.ckpt
  std::string monitor = "valid_loss";  // what best.ckpt is best in; none if empty
  int64_t every_steps = 0;             // last.ckpt after so many batches, too
};
// Writes last.ckpt after each epoch and when training ends early, by Ctrl-C say, and best.ckpt
// whenever there was none better (without validation data never). Learner::load and
// FitOptions::resume read them. What a process left half written when it was killed is removed when
// a fit begins.
class ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(const ModelCheckpointOptions& options);
  int order() const override { return looks_on + 10; }  // after all that it is to save
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  void on_checkpoint(Learner& learner) override;
  StateDict state_dict() const override { return best_.state_dict(); }
  void load_state_dict(const StateDict& dict) override { best_.load_state_dict(dict); }

 private:
  const ModelCheckpointOptions options_;
  const RunFolder folder_;
  Best best_;
  bool is_best_ = false;  // the epoch that just ended
};

// A row per epoch: epoch, train_loss, valid_loss, metrics, seconds. The file of an earlier run is
// replaced, but not by a fit that resumes.
class CsvLogger : public Callback {
 public:
  explicit CsvLogger(std::string path) : path_(std::move(path)) {}
  int order() const override { return looks_on; }
  void on_epoch_end(Learner& learner) override;

 private:
  const std::string path_;
};

// A line of JSON per epoch, and with `steps` per step, soon after it: train/charts.h has the
// format. When a fit begins the file becomes what the learner's history says, so that none is there
// twice after a resume.
class JsonlLogger : public Callback {
 public:
  explicit JsonlLogger(std::string path, bool steps = false);
  int order() const override { return looks_on; }
  void on_train_begin(Learner& learner) override;
  void on_batch_end(Learner& learner) override;
  void on_epoch_end(Learner& learner) override { write(learner); }
  void on_train_end(Learner& learner) override;  // after an exception some are missing

 private:
  void write(Learner& learner);

  const std::string path_;
  const bool steps_;
  std::optional<io::AppendFile> file_;
  HistoryReader reader_;
};

// The optimizer steps after so many batches, of which the last group of an epoch may have fewer;
// gradients are those of the mean loss over them. A batch that is skipped is none of them: where
// the epoch ends before its last group is whole, the next one completes it.
class GradientAccumulation : public Callback {
 public:
  explicit GradientAccumulation(int64_t batches);
  int order() const override { return -20; }  // before gradients are unscaled
  void on_backward_begin(Learner& learner) override;
  void on_backward_end(Learner& learner) override;
  int64_t batches_per_step() const override { return batches_; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;

 private:
  const int64_t batches_;
  int64_t group_ = 0, done_ = 0;  // batches of the group at hand, and how many of them ran
};

// Limits the norm of all gradients, in the step's own kernel.
class GradientClip : public Callback {
 public:
  explicit GradientClip(double max_norm);
  void on_step_begin(Learner& learner) override;

 private:
  const double max_norm_;
};

// Lowers the learning rate when a number of the table no longer gets better; counts in epochs. Its
// options' `better` follows from the number. Throws Error in a fit that has a schedule, or no
// validation data for it.
class ReduceLrOnPlateau : public Callback {
 public:
  explicit ReduceLrOnPlateau(const optim::PlateauOptions& options = {},
                             std::string monitor = "valid_loss");
  void on_train_begin(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;
  void on_train_end(Learner& learner) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override {
    plateau_.reset();
    loaded_ = dict;
  }

 private:
  optim::PlateauOptions options_;
  const std::string monitor_;
  std::optional<optim::Plateau> plateau_;  // of this fit, from its first epoch's end
  StateDict loaded_;                       // of a checkpoint, until then
};

// Averages the weights and buffers of the steps that happened. Validation is of the averages, which
// the model keeps when a fit ends; the next fit begins a new average. A checkpoint of a fit holds
// the averages beside the last weights: loaded, they validate. With a GradScaler every step
// waits for the device, to learn whether it happened.
class EmaWeights : public Callback {
 public:
  explicit EmaWeights(const optim::EmaOptions& options = {}) : options_(options) {}
  int order() const override { return looks_on; }
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
  std::optional<optim::Ema> ema_;  // of this fit, from its first batch; or of what was loaded
  std::optional<optim::Ema::Applied> applied_;
  StateDict loaded_;  // of a checkpoint, until then
};

// Ends a training whose loss is NaN or infinite, with an Error. It learns of a loss when that has
// arrived from the device, perhaps some steps late, but before the epoch ends.
class TerminateOnNan : public Callback {
 public:
  int order() const override { return looks_on; }  // an exploding loss is what lr_find is after
  void on_train_begin(Learner& learner) override;
  void on_batch_end(Learner& learner) override;
  void on_epoch_end(Learner& learner) override;

 private:
  size_t seen_ = 0;   // of the history's steps
  bool ran_ = false;  // a batch of this epoch
};

}  // namespace mixtape::train
