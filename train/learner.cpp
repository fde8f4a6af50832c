#include "train/learner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/warn.h"
#include "dist/data_parallel.h"
#include "dist/shards.h"
#include "io/text.h"
#include "nn/norm.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "train/callbacks.h"
#include "train/charts.h"
#include "train/progress.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

// Warns before the first epoch of a last batch that would end it with an Error.
void warn_of_last_batch(const DataLoader& data, nn::ModuleBase& model) {
  const DataLoaderOptions& o = data.options();
  if (o.drop_last || o.sampler || o.max_batches > 0) return;
  for (const auto& [name, m] : model.named_modules())
    if (dynamic_cast<const nn::BatchNorm1d*>(m))
      return warn(fmt::format(
          "the last batch of an epoch has a single example of {}, or chunks of one, and the "
          "BatchNorm1d {} cannot train on one of shape [1, channels]: .drop_last of the DataLoader "
          "omits it",
          data.examples(), name));
}

// Throws Error unless each has its functions and a name of its own.
void check_metrics(const std::vector<Metric>& metrics) {
  // The first names are the other keys of a log line and the other charts of a run folder.
  std::set<std::string> names = {"step",       "loss",    "lr",        "scale",
                                 "skipped",    "mode",    "epoch",     "train_loss",
                                 "valid_loss", "seconds", "confusion", "lr_find"};
  for (const Metric& m : metrics) {
    check(m.statistic && m.value, "metric \"{}\" has no .{}", m.name,
          m.statistic ? "value" : "statistic");
    check(io::is_utf8(m.name) && m.name.size() <= 200,  // which file systems and viewers take
          "a metric name must be UTF-8 of at most 200 bytes, got {}", io::quote(m.name));
    check(names.insert(m.name).second, "the metric name \"{}\" is taken", m.name);
  }
}

}  // namespace

Learner::Learner(Loaders loaders, Model model, const LearnerOptions& options)
    : data(std::move(loaders)),
      model_(std::move(model)),
      make_optimizer_([](auto params) { return optim::AdamW(std::move(params)); }),
      device_(options.device) {
  device_.require();
  model_.module->to(device_);
  compile(options);
}

Learner::Learner(Learner&&) noexcept = default;
Learner& Learner::operator=(Learner&&) noexcept = default;
Learner::~Learner() = default;

void Learner::compile(const LearnerOptions& options) {
  check(options.device == device_, "compiled for {}, but the learner is on {}", options.device,
        device_);
  check_metrics(options.metrics);
  check_storable(options.settings);
  const nn::ModuleBase& module = *model_.module;
  check(options.pass || model_.call,
        "{} does not map one tensor to one: compute its loss in LearnerOptions::pass",
        nn::type_name(typeid(module)));
  auto added = options.callbacks;
  for (const auto& callback : added) check(callback != nullptr, "a callback is null");
  std::optional<RunFolder> folder;
  if (!options.folder.empty()) {
    folder.emplace(options.folder);
    added.push_back(std::make_shared<JsonlLogger>(folder->path("metrics.jsonl"), /*steps=*/true));
    added.push_back(
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = options.folder}));
    added.push_back(std::make_shared<Charts>(options.folder, options.classes));
  }
  check(options.chunks >= 0, "chunks must be >= 0, got {}", options.chunks);
  const OptimizerMaker& maker = options.optimizer ? *options.optimizer : make_optimizer_;
  const std::vector<Tensor> parameters = model_.module->parameters();
  auto [made, loss_scale] = maker(parameters);
  const auto is_ours = [&](const Tensor& p) {
    return std::ranges::any_of(parameters, [&](const Tensor& own) { return own.is_same(p); });
  };
  check(std::ranges::any_of(made->params(), is_ours),
        "{} has none of the model's parameters: options.optimizer must use those it is given",
        made->name());
  // All checks have passed. Nothing has changed before this line.
  schedule.reset();  // it belongs to the former optimizer
  loss = options.loss;
  pass = options.pass;
  if (options.optimizer) make_optimizer_ = *options.optimizer;
  undivide();
  if (precision_) precision_->end(*this);  // copies the former optimizer's masters to the model
  step_options = {};
  optimizer = std::move(made);
  metrics = options.metrics;
  callbacks_.clear();
  const auto before = std::exchange(precision_, nullptr);
  for (auto& callback : added) add(std::move(callback));
  folder_ = std::move(folder);
  settings_ = options.settings;
  out_ = options.out;
  progress_ = options.progress;
  chunks_ = options.chunks;
  divides_ = options.shards;
  if (precision_) return;  // a callback
  if (loss_scale && options.optimizer)
    use_precision(std::make_shared<MixedPrecision>(*loss_scale));
  else if (before)
    use_precision(before);
}

void Learner::add(std::shared_ptr<Callback> callback) {
  check(callback != nullptr, "a callback is null");
  if (auto precision = std::dynamic_pointer_cast<MixedPrecision>(callback))
    use_precision(std::move(precision));
  else
    insert(std::move(callback));
}

void Learner::insert(std::shared_ptr<Callback> callback) {
  const auto position = std::ranges::upper_bound(callbacks_, callback->order(), {},
                                                 [](const auto& c) { return c->order(); });
  callbacks_.insert(position, std::move(callback));
}

Learner& Learner::use_precision(std::shared_ptr<MixedPrecision> precision) {
  require_optimizer();
  undivide();
  if (precision_) {
    std::erase(callbacks_, precision_);
    precision_->end(*this);
  }
  precision_ = std::move(precision);
  precision_->begin(*this);
  insert(precision_);
  return *this;
}

Learner& Learner::to_fp16(const AmpOptions& o) & {
  return use_precision(std::make_shared<MixedPrecision>(o));
}
Learner& Learner::to_fp16(const MasterOptions& o) & {
  return use_precision(std::make_shared<MixedPrecision>(o));
}

bool Learner::receives_events(const Callback& c) const {
  return (!in_lr_find_ || c.order() < Callback::observer_order) &&
         (c.everywhere() || is_first_rank());
}

bool Learner::notify(Event event, bool backwards) {
  auto receivers = callbacks_;  // a copy, since callbacks may add or remove some
  if (backwards) std::ranges::reverse(receivers);
  skipping_ = false;
  for (const auto& callback : receivers) {
    if (!receives_events(*callback)) continue;
    (*callback.*event)(*this);
    if (in_fit_ || state.training) require_optimizer();
    if (skipping_) break;
  }
  return !std::exchange(skipping_, false);
}

void Learner::check_batches(const DataLoader& data, const char* what) {
  check(data.batches() > 0, "{} has {} examples, too few for a batch", what, data.examples());
}

bool Learner::heed_interrupt() {
  if (!Interrupt::requested()) return false;
  Interrupt::keep();
  stop();
  return true;
}

void Learner::require_ready() const {
  check(!in_fit_, "a fit's callbacks cannot begin another fit");
  require_optimizer();
}
void Learner::require_optimizer() const {
  check(optimizer != nullptr, "there is no optimizer: compile() makes one");
}

void Learner::check_kept(const std::optional<DataLoader>& data) {
  check(data.has_value(), "a callback removed the data that were in use");
}

FitResult Learner::fit(int64_t epochs, const FitOptions& options) {
  require_ready();
  check(data.train.has_value(), "fit needs training data");
  check(epochs >= 0, "epochs must be >= 0, got {}", epochs);
  check(!device_.is_meta(),
        "nothing can be learnt on {}, where tensors have no values (amp::plan() measures a step)",
        device_);
  agree();
  if (heed_interrupt()) return FitResult::Interrupted;  // the program's own Interrupt got it
  options.resume.empty() ? Interrupt::raise_kept() : Interrupt::forget();
  const DefaultDevice here(device_);
  const Interrupt interrupt;
  state.epoch = state.batch = 0;
  state.epochs = epochs;
  state.batches = data.train->batches();
  check_batches(*data.train, "the training data");
  if (data.valid) check_batches(*data.valid, "the validation data");
  if (is_first_rank() && leaves_one(data.train->examples(), data.train->batch_size()))
    warn_of_last_batch(*data.train, *model_.module);
  stopping_ = false;
  resumable_ = true;
  if (options.lr) optimizer->set_lr(*options.lr);
  steps_ = bounded_product(epochs, (state.batches - 1) / batches_per_step() + 1);
  schedule = options.schedule && epochs > 0 ? options.schedule(*optimizer, steps_) : nullptr;
  drop_gradients();
  // A loader that another fit left within an epoch starts the next one.
  if (data.train->position() > 0) data.train->set_epoch(data.train->epoch() + 1);
  const Joined joined(*this);
  if (!options.resume.empty()) load(options.resume, /*this_fit=*/true);
  print_header();
  const Flag fitting(in_fit_);
  with_events(&Callback::on_train_begin, &Callback::on_train_end, [&] {
    divide();
    agree();
    while (state.epoch < epochs && !stopping_) run_epoch();
    history.settle();
  });
  agree();
  if (heed_interrupt()) return FitResult::Interrupted;
  return stopping_ ? FitResult::Stopped : FitResult::Finished;
}

// Runs the body between two events. Every callback gets the second event, even after an exception,
// and even if no memory is left.
void Learner::with_events(Event begin, Event end, const std::function<void()>& body) {
  std::exception_ptr first;  // later ones are probably consequences
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  auto receivers = callbacks_;  // allocates before the body runs
  attempt([&] {
    notify(begin);
    body();
  });
  if (first) attempt([&] { history.settle(); });
  attempt([&] { receivers = callbacks_; });  // the body may have added or removed some
  for (const auto& callback : receivers)
    if (receives_events(*callback)) attempt([&] { (*callback.*end)(*this); });
  if (first) std::rethrow_exception(first);
}

FitResult Learner::fit_one_cycle(int64_t epochs, double max_lr, FitOptions options) {
  check(!options.schedule, "fit_one_cycle sets the schedule itself");
  options.schedule = [max_lr](optim::Optimizer& opt, int64_t steps) {
    return std::make_unique<optim::OneCycle>(
        opt, optim::OneCycleOptions{.max_lr = max_lr, .total_steps = steps});
  };
  return fit(epochs, options);
}

FitResult Learner::fit(const Tensor& x, const Tensor& y, const FitArrays& o) {
  const TensorDataset all(x.to(Device::cpu()), y.to(Device::cpu()));
  const double part = o.validation_split;
  check(part >= 0 && part < 1, "validation_split must be in [0, 1), got {}", part);
  const int64_t train = all.size() - (part > 0 ? valid_count(all.size(), part, all.name()) : 0);
  DataLoader loader(all.rows(0, train),
                    {.batch_size = o.batch_size,
                     .shuffle = o.shuffle,
                     .drop_last = o.drop_last.value_or(leaves_one(train, o.batch_size)),
                     .seed = o.seed});
  if (data.train)  // continues its epochs, so that the order differs
    loader.set_epoch(data.train->epoch() + (data.train->position() > 0));
  data.train = std::move(loader);
  data.valid.reset();
  if (part > 0)
    data.valid.emplace(all.rows(train, all.size()), DataLoaderOptions{.batch_size = o.batch_size});
  return fit(o.epochs);
}

void Learner::run_epoch() {
  const auto start = std::chrono::steady_clock::now();
  if (state.batch == 0) loss_sum_ = {}, examples_ = 0;
  model_.module->train();
  state.training = true;
  const bool whole = notify(&Callback::on_epoch_begin);
  check_kept(data.train);
  state.batches = data.train->batches();  // a callback may have replaced the data
  if (whole) {
    std::optional<Progress> bar;
    if (progress_ && is_first_rank())
      bar.emplace(
          fmt::format("epoch {}/{}", state.epoch + 1, state.epochs), state.batches,
          [&] { return fmt::format("loss {:.4f}", history.last_loss()); }, stderr, state.batch);
    for (const Batch& batch : own_part(*data.train)) {  // after a resume, the remaining ones
      const int64_t before = state.batch;
      train_batch(batch);
      check_kept(data.train);
      if (bar) bar->step(state.batch - before);
      if (stopping_ && state.batch < state.batches) return;  // within the epoch
    }
  }
  resumable_ = false;  // the loader is in the next epoch
  history.settle();
  EpochRow row{.epoch = state.epoch,
               .step = state.step,
               .train_loss = examples_ ? loss_sum_.item() / double(examples_) : NAN,
               .valid_loss = NAN,
               .metrics = std::vector<double>(metrics.size(), NAN),
               .seconds = 0};
  if (data.valid) {
    const Scores scores = validate();
    row.valid_loss = scores.loss;
    row.metrics = scores.metrics;
  }
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  history.epochs.push_back(row);
  print_row(row);
  ++state.epoch;
  state.batch = 0;
  resumable_ = true;
  notify(&Callback::on_epoch_end);
  agree();
  notify(&Callback::on_checkpoint);
}

bool Learner::forward(const Batch& batch, bool predicts) {
  state.x = batch.x.to(device_);
  state.y = batch.y ? batch.y.to(device_) : Tensor();
  state.more.clear();
  for (const Tensor& t : batch.more) state.more.push_back(t.to(device_));
  state.output = state.loss = state.objective = {};
  if (!notify(&Callback::on_batch_begin)) return false;
  std::optional<amp::Autocast> region;
  if (autocast) region.emplace(*autocast);
  if (pass && !predicts) {
    const StepOutput step = pass({state.x, state.y, state.more});
    check(bool(step.loss), "LearnerOptions::pass returned no loss");
    state.output = step.output;
    if (!notify(&Callback::on_loss_begin)) return false;
    state.loss = step.loss;
    return true;
  }
  const nn::ModuleBase& module = *model_.module;
  check(bool(model_.call),
        "{} does not map one tensor to one: predict from a loader, with LearnerOptions::pass",
        nn::type_name(typeid(module)));
  state.output = model_.call(state.x);
  if (!notify(&Callback::on_loss_begin)) return false;
  if (!state.y || predicts) return true;
  const Tensor& given = batch.y ? batch.y : state.y;
  state.loss = loss                      ? loss(state.output, state.y)
               : is_float(given.dtype()) ? mse_loss(state.output, state.y)
                                         : cross_entropy(state.output, state.y);
  check(bool(state.loss), "LearnerOptions::loss returned no loss");
  return true;
}

void Learner::add_loss(Tensor& sum, const Tensor& mean, int64_t n) {
  const NoGrad off;
  const Tensor batch = mean.detach().to(f64) * double(n);
  sum = sum ? sum + batch : batch;
}

void Learner::train_batch(const Batch& batch) {
  check(parallel_ || part().ranks == 1,
        "train_batch() trains one rank alone, and there are {}: fit(), or a loop with a "
        "dist::DataParallel",
        part().ranks);
  require_optimizer();
  const DefaultDevice here(device_);
  state.training = true;
  resumable_ = false;
  // A group of batches counts as its last one.
  const int64_t others =
      parallel_ ? std::min(batches_per_step(), state.batches - state.batch) - 1 : 0;
  state.batch += others;
  state.step += others;
  const Batch kept = batch;  // the loader may be gone before the end of a step
  parallel_ ? learn_chunks(kept) : learn(kept);
  ++state.batch;
  ++state.step;
  resumable_ = true;
  if (Interrupt::requested()) stop();
  notify(&Callback::on_batch_end);
  notify(&Callback::on_checkpoint);
}

// A note for errors in a smaller last batch, since its size may be the reason.
std::string Learner::smaller_batch(int64_t examples) const {
  if (!in_fit_ || !data.train || examples >= data.train->batch_size()) return {};
  return fmt::format("smaller last batch of {} (.drop_last omits it)", examples);
}

void Learner::learn(const Batch& batch) {
  const std::string smaller = smaller_batch(batch.x.size(0));
  const internal::Scope scope(smaller);
  if (!forward(batch)) return;
  check_loss();
  state.objective = state.loss;
  if (notify(&Callback::on_backward_begin, /*backwards=*/true)) {
    state.objective.backward();
    if (notify(&Callback::on_backward_end)) make_step();
  }
  if (state.output) state.output = state.output.detach();
  state.loss = state.loss.detach();
  state.objective = {};
  add_loss(loss_sum_, state.loss, batch.x.size(0));
  examples_ += batch.x.size(0);
}

void Learner::check_loss() const {
  check(bool(state.loss),
        "a batch has no targets to train on (LearnerOptions::pass can train without)");
}

void Learner::make_step() {
  if (notify(&Callback::on_step_begin)) {
    step();
  } else {
    optimizer->zero_grad();
    scaler.update();  // still backs off after an overflow
  }
}

void Learner::drop_gradients() {
  optimizer->zero_grad();
  scaler.abandon();
}

void Learner::step() {
  const double lr = optimizer->lr();
  state.result = scaler.step(*optimizer, step_options);
  if (schedule && in_fit_) {
    check(schedule->refers_to(*optimizer),
          "a callback replaced the optimizer of the schedule {}: replace or reset it, too",
          schedule->name());
    schedule->step(state.result);
  }
  history.add(state.step, state.loss, lr, scaler, state.result);
  notify(&Callback::on_step_end);
  optimizer->zero_grad();
}

std::vector<Learner::Score> Learner::scores(const EpochRow& row) const {
  std::vector<Score> all = {{"train_loss", row.train_loss, false},
                            {"valid_loss", row.valid_loss, false}};
  for (size_t i = 0; i < metrics.size(); ++i)  // an old row may have fewer
    all.push_back({metrics[i].name, i < row.metrics.size() ? row.metrics[i] : NAN,
                   metrics[i].higher_is_better});
  return all;
}

Learner::Score Learner::score(std::string_view name) const {
  check(!history.epochs.empty(), "\"{}\" is unknown before an epoch has ended", name);
  return score(name, history.epochs.back());
}

Learner::Score Learner::score(std::string_view name, const EpochRow& row) const {
  std::string names;
  for (Score& s : scores(row)) {
    if (s.name == name) return std::move(s);
    names += (names.empty() ? "" : ", ") + s.name;
  }
  fail("no value is named \"{}\"; there are {}", name, names);
}

void Learner::print_header() const {
  if (!out_ || !is_first_rank()) return;
  fmt::print(out_, "{:<8}{:>12}{:>12}", "epoch", "train_loss", "valid_loss");
  for (const Metric& m : metrics) fmt::print(out_, "{:>12}", m.name);
  fmt::print(out_, "{:>9}\n", "time");
  std::fflush(out_);
}

void Learner::print_row(const EpochRow& row) const {
  if (!out_ || !is_first_rank()) return;
  fmt::print(out_, "{:<8}{:>12.6f}{:>12.6f}", row.epoch, row.train_loss, row.valid_loss);
  for (const double m : row.metrics) fmt::print(out_, "{:>12.6f}", m);
  const auto seconds = int64_t(row.seconds + 0.5);
  fmt::print(out_, "{:>9}\n", fmt::format("{:02}:{:02}", seconds / 60, seconds % 60));
  std::fflush(out_);
}

}  // namespace mixtape::train
