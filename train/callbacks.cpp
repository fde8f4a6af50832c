#include "train/callbacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/parse.h"
#include "io/jsonl.h"
#include "io/text.h"
#include "optim/state_reader.h"
#include "train/charts.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

// A field of a CSV file, quoted if necessary (RFC 4180).
std::string quoted(const std::string& field) {
  if (field.find_first_of(",\"\r\n") == field.npos) return field;
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

bool is_resumed(const Learner& learner) {
  return learner.state.epoch > 0 || learner.state.batch > 0;
}

// Throws Error, before the first epoch, if the value is unknown or would stay NaN for lack of data.
void check_monitor(const Learner& learner, const std::string& monitor) {
  learner.score(monitor, {});
  check(learner.data.valid || monitor == "train_loss", "\"{}\" needs validation data", monitor);
}

}  // namespace

BestValue::BestValue(std::string monitor, double min_delta)
    : monitor_(std::move(monitor)), min_delta_(min_delta) {
  check(min_delta >= 0, "min_delta must be >= 0, got {}", min_delta);
}

bool BestValue::improved(const Learner& learner) {
  const auto [name, value, higher] = learner.score(monitor_);
  if (std::isnan(value)) return false;
  if (value_ && (higher ? value <= *value_ + min_delta_ : value >= *value_ - min_delta_))
    return false;
  value_ = value;
  return true;
}

StateDict BestValue::state_dict() const {
  if (!value_) return {};
  return {{"best", optim::from_number(*value_)}};
}

void BestValue::load_state_dict(const StateDict& dict) {
  optim::StateReader reader(dict);
  value_.reset();
  if (reader.find("best")) value_ = reader.number("best");
}

EarlyStopping::EarlyStopping(const EarlyStoppingOptions& options)
    : options_(options), best_(options.monitor, options.min_delta) {
  check(options.patience >= 1, "patience must be >= 1, got {}", options.patience);
}

void EarlyStopping::on_train_begin(Learner& learner) {
  check_monitor(learner, options_.monitor);
  if (is_resumed(learner)) {
    if (waited_ >= options_.patience) learner.stop();
    return;
  }
  best_ = BestValue(options_.monitor, options_.min_delta);
  waited_ = 0;
}

void EarlyStopping::on_epoch_end(Learner& learner) {
  waited_ = best_.improved(learner) ? 0 : waited_ + 1;
  if (waited_ >= options_.patience) learner.stop();
}

StateDict EarlyStopping::state_dict() const {
  StateDict all = best_.state_dict();
  all.emplace_back("waited", optim::from_number(double(waited_)));
  return all;
}

void EarlyStopping::load_state_dict(const StateDict& dict) {
  optim::StateReader reader(dict);
  waited_ = reader.find("waited") ? reader.count("waited") : 0;
  best_.load_state_dict(dict);
}

ModelCheckpoint::ModelCheckpoint(const ModelCheckpointOptions& options)
    : options_(options), folder_(options.folder), best_(options.monitor) {
  check(options.every_steps >= 0, "every_steps must be >= 0, got {}", options.every_steps);
}

void ModelCheckpoint::on_train_begin(Learner& learner) {
  if (!options_.monitor.empty()) learner.score(options_.monitor, {});
  if (!is_first_rank()) return;
  for (const char* name : {"last.ckpt", "best.ckpt"})
    io::remove_abandoned(folder_.path() + "/" + name);
}

void ModelCheckpoint::on_epoch_end(Learner& learner) {
  is_best_ = !options_.monitor.empty() && best_.improved(learner);
}

// Writes last.ckpt last: if the process is killed before that, resuming repeats the whole end of
// the epoch.
void ModelCheckpoint::on_checkpoint(Learner& learner) {
  const bool epoch = learner.state.batch == 0;
  const bool due = options_.every_steps > 0 && learner.state.step % options_.every_steps == 0;
  if (epoch && is_best_) learner.save(folder_.path("best.ckpt"));
  if (epoch || due || learner.is_stopping()) learner.save(folder_.path("last.ckpt"));
}

namespace {

struct LoggedEpoch {
  double epoch, train_loss, seconds;
};

// Takes the seconds of epochs from a log of the same run, in which they may be `rounded`.
// Checkpoints leave them out, so that they have the same bits however often training was
// interrupted.
void recall_seconds(History& history, const std::vector<LoggedEpoch>& logged, bool rounded) {
  for (size_t i = 0; i < std::min(history.epochs.size(), logged.size()); ++i) {
    EpochRow& row = history.epochs[i];
    if ((std::isnan(row.seconds) || !rounded) && logged[i].epoch == double(row.epoch) &&
        logged[i].train_loss == row.train_loss)
      row.seconds = logged[i].seconds;
  }
}

// The number in the cell that a text begins with, or NaN.
double number_in(std::string_view text) {
  return internal::parse_number<double>(text.substr(0, text.find(','))).value_or(NAN);
}

// The rows of a CsvLogger; none if it is not such a file.
std::vector<LoggedEpoch> logged_rows(const std::string& path) try {
  const std::vector<std::byte> bytes = io::read_file(path);
  std::string_view text = io::as_text(bytes);
  std::vector<LoggedEpoch> rows;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    const size_t loss = line.find(',') + 1, seconds = line.rfind(',') + 1;
    if (!line.starts_with("epoch,"))
      rows.push_back(
          {number_in(line), number_in(line.substr(loss)), number_in(line.substr(seconds))});
  }
  return rows;
} catch (const Error&) {
  return {};
}

// The epochs of a JsonlLogger.
std::vector<LoggedEpoch> logged_lines(const std::string& path) try {
  std::vector<LoggedEpoch> rows;
  for (const io::JsonFields& line : io::read_json_lines(path))
    if (const double epoch = io::number_in(line, "epoch"); !std::isnan(epoch))
      rows.push_back({epoch, io::number_in(line, "train_loss"), io::number_in(line, "seconds")});
  return rows;
} catch (const Error&) {
  return {};
}

}  // namespace

void CsvLogger::on_train_begin(Learner& learner) {
  recall_seconds(learner.history, logged_rows(path_), /*rounded=*/true);
}

void CsvLogger::on_epoch_end(Learner& learner) {
  // Rewrites the whole file: it is short, and so it never ends with half a row.
  std::string text = "epoch,train_loss,valid_loss";
  for (const Metric& m : learner.metrics) text += "," + quoted(m.name);
  text += ",seconds\n";
  for (const EpochRow& row : learner.history.epochs) {
    text += fmt::format("{}", row.epoch);
    for (const auto& score : learner.scores(row)) text += fmt::format(",{}", score.value);
    text += fmt::format(",{:.3f}\n", row.seconds);
  }
  io::write_file(path_, text);
}

void JsonlLogger::on_train_begin(Learner& learner) {
  recall_seconds(learner.history, logged_lines(path_), /*rounded=*/false);
  start_over();
  HistoryWriter::on_train_begin(learner);
}

void JsonlLogger::write_step(const Learner& learner, const StepRow& row) {
  if (steps_) lines_ += io::json_object(log_line(learner, row)) + '\n';
}

void JsonlLogger::write_epoch(const Learner& learner, const EpochRow& row) {
  lines_ += io::json_object(log_line(learner, row)) + '\n';
}

void JsonlLogger::flush() {
  const std::string lines = std::exchange(lines_, {});
  if (!file_) {
    io::write_file(path_, lines);
    file_.emplace(path_);
  } else if (!lines.empty()) {
    file_->append(lines);
  }
}

GradientAccumulation::GradientAccumulation(int64_t batches) : batches_(batches) {
  check(batches >= 1, "batches must be >= 1, got {}", batches);
}

void GradientAccumulation::on_backward_begin(Learner& learner) {
  if (learner.parallel()) return;
  const std::vector<Tensor> params = learner.optimizer->params();
  const bool dropped = std::ranges::none_of(params, &Tensor::has_grad);
  if (done_ == group_ || dropped) {
    const int64_t left = learner.in_fit() ? learner.state.batches - learner.state.batch : 0;
    group_ = left > 0 ? std::min(batches_, left) : batches_;
    done_ = 0;
  }
  learner.state.objective = learner.state.objective / double(group_);
}

void GradientAccumulation::on_backward_end(Learner& learner) {
  if (learner.parallel()) return;
  if (++done_ < group_) learner.skip();
}

StateDict GradientAccumulation::state_dict() const {
  return {{"group", optim::from_number(double(group_))},
          {"done", optim::from_number(double(done_))}};
}

void GradientAccumulation::load_state_dict(const StateDict& dict) {
  optim::StateReader reader(dict);
  const bool known = reader.find("group");
  group_ = known ? reader.count("group") : 0;
  done_ = known ? reader.count("done") : 0;
}

GradientClip::GradientClip(double max_norm) : max_norm_(max_norm) {
  check(max_norm > 0, "max_norm must be > 0, got {}", max_norm);
}

void GradientClip::on_step_begin(Learner& learner) { learner.step_options.clip_norm = max_norm_; }

void ReduceLrOnPlateau::on_train_begin(Learner& learner) {
  check(!learner.schedule, "ReduceLrOnPlateau cannot run beside the schedule {}",
        learner.schedule ? learner.schedule->name() : "");
  check_monitor(learner, monitor_);
  optim::Plateau(*learner.optimizer, options_);  // throws now instead of an epoch later
  if (!is_resumed(learner)) state_.clear();
}

void ReduceLrOnPlateau::on_epoch_end(Learner& learner) {
  const Learner::Score score = learner.score(monitor_);
  if (!plateau_) {
    options_.better = score.higher_is_better ? optim::Better::Higher : optim::Better::Lower;
    optim::Optimizer& opt = *learner.optimizer;
    plateau_.emplace(opt, options_);
    std::vector<double> rates;  // that may have been set since the state's
    for (size_t g = 0; g < opt.groups(); ++g) rates.push_back(opt.lr(g));
    if (!state_.empty()) plateau_->load_state_dict(state_);
    for (size_t g = 0; g < opt.groups(); ++g)
      if (rates[g] != opt.lr(g)) opt.set_lr(rates[g], g);
  }
  check(plateau_->refers_to(*learner.optimizer),
        "a callback replaced the optimizer, whose rates ReduceLrOnPlateau lowers");
  plateau_->step(score.value);
  state_ = plateau_->state_dict();
}

void EmaWeights::on_train_begin(Learner& learner) {
  applied_.reset();
  ema_.reset();
  if (!is_resumed(learner))
    loaded_.clear();
  else if (!loaded_.empty())
    begin(learner);
}

void EmaWeights::begin(Learner& learner) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : learner.model().state_dict()) tensors.push_back(tensor);
  ema_.emplace(tensors, options_);
  if (!loaded_.empty()) ema_->load_state_dict(std::exchange(loaded_, {}));
}

void EmaWeights::on_batch_begin(Learner& learner) {
  if (learner.state.training && !ema_) begin(learner);
}

void EmaWeights::on_step_end(Learner& learner) {
  if (!ema_) begin(learner);  // a checkpoint was loaded within the batch
  ema_->update(learner.state.result);
}

void EmaWeights::on_valid_begin(Learner& learner) {
  if (!ema_ && !loaded_.empty()) begin(learner);
  if (ema_) applied_.emplace(*ema_);
}

// Outside a fit, drops the averages, since a fit that fails to begin must not write them to the
// model.
void EmaWeights::on_valid_end(Learner& learner) {
  applied_.reset();
  if (learner.in_fit() || !ema_) return;
  loaded_ = ema_->state_dict();
  ema_.reset();
}

void EmaWeights::load_state_dict(const StateDict& dict) {
  applied_.reset();
  ema_.reset();
  loaded_ = dict;
}

void EmaWeights::on_train_end(Learner&) {
  applied_.reset();  // after an exception in a validation
  if (ema_) ema_->overwrite_tensors();
  ema_.reset();
}

// Ignores steps of earlier fits.
void TerminateOnNan::on_train_begin(Learner& learner) {
  seen_ = learner.history.steps.size();
  ran_ = false;
}

void TerminateOnNan::on_batch_end(Learner& learner) {
  ran_ = ran_ || (learner.state.training && learner.state.loss);
  for (; seen_ < learner.history.steps.size(); ++seen_) {
    const StepRow& row = learner.history.steps[seen_];
    check(std::isfinite(row.loss), "the loss of step {} is {}", row.step, row.loss);
  }
}

// Also checks the epoch's mean: with accumulated gradients only a step's last batch has a row.
void TerminateOnNan::on_epoch_end(Learner& learner) {
  on_batch_end(learner);
  const EpochRow& row = learner.history.epochs.back();
  check(!std::exchange(ran_, false) || std::isfinite(row.train_loss),
        "the training loss of epoch {} is {}", row.epoch, row.train_loss);
}

}  // namespace mixtape::train
