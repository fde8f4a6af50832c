#pragma once
// Learner: the training loop for a model, its data, a loss and an optimizer. Callbacks extend it.
//
//   Learner learner({std::move(train), std::move(valid)}, simple_cnn({1, 16, 16, 10}),
//                   {.metrics = {accuracy}});
//   learner.to_fp16().fit_one_cycle(1, 3e-3);

#include <concepts>
#include <cstdio>
#include <functional>

#include "amp/loss_scale_optimizer.h"
#include "io/safetensors.h"
#include "io/svg.h"
#include "nn/sequential.h"
#include "optim/schedule.h"
#include "train/data/loader.h"
#include "train/history.h"
#include "train/interrupt.h"
#include "train/metric.h"
#include "train/mixed_precision.h"
#include "train/run_folder.h"

namespace mixtape::dist {
class DataParallel;
class Shards;
}  // namespace mixtape::dist

namespace mixtape::train {

struct Loaders {  // the data of a Learner; without `valid`, nothing is validated
  std::optional<DataLoader> train = {}, valid = {};
};

// Makes an optimizer for parameters, by value: [](auto params) { return optim::SGD(params); }
// (A Learner passes all of them; the optimizer leaves frozen ones alone until they are unfrozen.)
// An amp::LossScaleOptimizer also chooses the precision: to_fp16() with its loss scale.
class OptimizerMaker {
 public:
  struct Made {  // an optimizer, and the loss scale that it asks for
    std::unique_ptr<optim::Optimizer> optimizer;
    std::optional<amp::ScalerOptions> loss_scale = {};  // of a LossScaleOptimizer
  };
  template <class F, class O = std::invoke_result_t<F&, std::vector<Tensor>>>
    requires std::derived_from<O, optim::Optimizer> || std::same_as<O, amp::LossScaleOptimizer> ||
             std::same_as<O, std::unique_ptr<optim::Optimizer>>
  OptimizerMaker(F make)
      : make_([make = std::move(make)](std::vector<Tensor> params) mutable -> Made {
          O made = make(std::move(params));
          if constexpr (std::same_as<O, amp::LossScaleOptimizer>) {
            const amp::ScalerOptions scale = made.scaler().options();
            return {amp::disable_mixed_precision(std::move(made)), scale};
          } else if constexpr (std::same_as<O, std::unique_ptr<optim::Optimizer>>) {
            return {std::move(made)};  // of optim::get
          } else {
            return {std::make_unique<O>(std::move(made))};
          }
        }) {}
  Made operator()(std::vector<Tensor> params) const { return make_(std::move(params)); }

 private:
  std::function<Made(std::vector<Tensor>)> make_;
};

// Refers to an lvalue module; takes ownership of an rvalue.
template <class M>
std::shared_ptr<std::remove_reference_t<M>> held(M&& module) {
  if constexpr (std::is_lvalue_reference_v<M>)
    return {std::shared_ptr<void>(), &module};
  else
    return std::make_shared<M>(std::move(module));
}

// A loss of the model's output and the target: a function, or a module such as
// nn::CrossEntropyLoss, which is held like a model.
class LossFunction {
 public:
  LossFunction() = default;  // none: the learner's default
  template <class F>
    requires(!std::same_as<std::decay_t<F>, LossFunction>)
  LossFunction(F&& f) {
    using Plain = std::decay_t<F>;
    static_assert(std::is_invocable_r_v<Tensor, Plain&, const Tensor&, const Tensor&>,
                  "a loss takes output and target: wrap one that takes options as well, such as "
                  "mse_loss, in a lambda, or pass nn::MSELoss()");
    if constexpr (std::derived_from<Plain, nn::ModuleBase>)
      loss_ = [module = held(std::forward<F>(f))](const Tensor& x, const Tensor& y) {
        return (*module)(x, y);
      };
    else
      loss_ = std::forward<F>(f);
  }
  Tensor operator()(const Tensor& output, const Tensor& target) const {
    return loss_(output, target);
  }
  explicit operator bool() const { return bool(loss_); }  // false: none

 private:
  std::function<Tensor(const Tensor&, const Tensor&)> loss_;
};

struct StepOutput {
  Tensor loss;
  Tensor output = {};  // for the metrics
};
// Replaces loss(model(x), y) for models with several inputs or results, or with state. Gets the
// batch on the learner's device, within its autocast region.
using PassFunction = std::function<StepOutput(const Batch& batch)>;

// Makes a schedule over `total_steps` optimizer steps.
using ScheduleMaker =
    std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer&, int64_t total_steps)>;

struct LearnerOptions {
  // Default: cross entropy if the data's targets are integers (also where a callback makes
  // probabilities of them), else the mean squared error.
  LossFunction loss = {};
  PassFunction pass = {};                        // replaces the model's call and the loss
  std::optional<OptimizerMaker> optimizer = {};  // AdamW by default
  std::vector<Metric> metrics = {};              // on the validation data
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // The run folder (empty: none), for metrics.jsonl (see train/charts.h) with a line per step and
  // epoch, last.ckpt and best.ckpt (see ModelCheckpoint), and SVG charts. Replaces earlier ones.
  std::string folder = {};
  std::vector<std::string> classes = {};     // class names: draws confusion.svg
  Device device = DefaultDevice::current();  // of the model and batches
  // Parts of a batch that train one by one, their gradients added up: of all ranks together; see
  // dist::DataParallelOptions. 0: one for each rank (and batch of GradientAccumulation). A fit with
  // as many chunks has the same bits on any number of ranks.
  int64_t chunks = 0;
  // Ranks divide the optimizer's state among them, from the first fit on: see dist::Shards.
  // state_dict() and save() are then called by all, as compile() and to_fp16() and its like are.
  bool shards = false;
  // Texts by name that say how the run was made, such as a program's options; kept in checkpoints.
  // A fit resumes from none that has another text of a name.
  io::Metadata settings = {};
  std::FILE* out = stdout;  // gets the table of epochs; null: none
  bool progress = true;     // a progress bar on stderr
};

struct FitOptions {
  std::optional<double> lr = {};  // default: the optimizer's
  ScheduleMaker schedule = {};    // default: a constant rate
  std::string resume = {};        // a checkpoint of this fit to continue from; empty: none
};

// The end of a fit: after its epochs, early since a callback called stop(), or after a signal
// (Ctrl-C or SIGTERM). A program then returns, with 130 for Ctrl-C; another fit, unless it resumes,
// would end the program by the signal (see Interrupt).
enum class FitResult { Finished, Stopped, Interrupted };

// Options by Keras's names.
struct FitArrays {
  int64_t batch_size = 32, epochs = 1;
  double validation_split = 0;  // fraction at the end that validates
  bool shuffle = true;
  uint64_t seed = 0;
  // Omits a smaller last batch. By default only one of a single example, on which a batch norm
  // cannot train.
  std::optional<bool> drop_last = {};
};

struct Scores {  // the mean loss, and the metrics in the order of the learner
  double loss;
  std::vector<double> metrics;
};

struct Predictions {
  Tensor output;
  Tensor y;  // the targets, or undefined
};

struct LrFindOptions {
  double start = 1e-7, end = 10;
  int64_t steps = 100;
  double stop_factor = 4;  // ends when the smoothed loss is this multiple of its minimum
};
struct LrFind {                  // the course of an lr_find()
  std::vector<double> lr, loss;  // per step; the loss is smoothed
  std::vector<double> raw;       // per step, the loss of its batch alone
  // Where the loss falls before its minimum, as far as a single rate can say: raw losses up to it
  // differ most from those after it, for the noise in them.
  double suggested;
};
io::Chart chart(const LrFind& found);  // loss over rate, with the suggested one

// Throws Error if the file is no checkpoint, or has another value of a setting. (Those without it,
// as of earlier versions, pass.) FitOptions::resume does, too; a program can tell earlier.
void check_settings(const std::string& checkpoint, const io::Metadata& settings);

// Under a dist::World of several ranks, each trains on its part of every batch of the loaders,
// which they leave as they are, and all have the same weights. fit, lr_find, validate, evaluate,
// total, save and load are then called by all ranks; predict and summary are each rank's own.
//
// May be moved, except by its own callbacks. A moved-from one may only be assigned to.
class Learner {
 public:
  // A model that maps a tensor to a tensor, or any other with options.pass. The learner refers to
  // an lvalue, which must outlive it, and takes ownership of an rvalue.
  template <class M>
    requires std::derived_from<std::remove_cvref_t<M>, nn::ModuleBase>
  Learner(Loaders loaders, M&& model, const LearnerOptions& options = {})
      : Learner(std::move(loaders), Model(std::forward<M>(model)), options) {}
  // Takes ownership of a model chosen at run time.
  Learner(Loaders loaders, nn::Any model, const LearnerOptions& options = {})
      : Learner(std::move(loaders), Model(std::move(model)), options) {}
  // Has no data yet: for fit(x, y).
  template <class M>
    requires std::derived_from<std::remove_cvref_t<M>, nn::ModuleBase>
  explicit Learner(M&& model, const LearnerOptions& options = {})
      : Learner({}, Model(std::forward<M>(model)), options) {}
  Learner(Learner&&) noexcept;
  Learner& operator=(Learner&&) noexcept;
  ~Learner();

  // Replaces loss, optimizer, metrics, callbacks; keeps the precision. The device must be the same.
  void compile(const LearnerOptions& options);
  // Adds a callback, for all later events. A MixedPrecision sets the precision, as to_fp16() does.
  void add(std::shared_ptr<Callback> callback);

  // Set the precision of further training; each call replaces the last choice. Called on a
  // temporary they return it: auto learner = Learner(...).to_fp16();
  Learner& to_fp16(const AmpOptions& options = {}) &;  // Autocast and GradScaler
  Learner& to_fp16(const MasterOptions& options) &;    // the whole model in f16, with f32 masters
  Learner& to(DType dtype) & { return to_fp16(AmpOptions{.amp_mode = dtype}); }  // f16, bf16, f32
  Learner& to_bf16() & { return to(bf16); }  // needs no loss scale
  Learner& to_fp32() & { return to(f32); }   // no Autocast, as at first
  Learner to_fp16(const AmpOptions& options = {}) && { return std::move(to_fp16(options)); }
  Learner to_fp16(const MasterOptions& options) && { return std::move(to_fp16(options)); }
  Learner to(DType dtype) && { return std::move(to(dtype)); }
  Learner to_bf16() && { return std::move(to(bf16)); }
  Learner to_fp32() && { return std::move(to(f32)); }

  // Trains and prints a row per epoch. Throws Error without training data.
  FitResult fit(int64_t epochs, const FitOptions& options = {});
  // (Not a plain double, which {} would convert to as well.)
  FitResult fit(int64_t epochs, std::convertible_to<double> auto lr) {
    return fit(epochs, FitOptions{.lr = double(lr)});
  }
  // Fits by OneCycle to this rate. Throws Error if options have a schedule.
  FitResult fit_one_cycle(int64_t epochs, double max_lr = 3e-3, FitOptions options = {});
  FitResult fit(const Tensor& x, const Tensor& y, const FitArrays& options = {});
  // Trains on one batch, as fit does. For custom loops, such as one with two learners. Throws Error
  // on several ranks, which need a dist::DataParallel.
  void train_batch(const Batch& batch);

  Scores validate();                    // on the validation data
  Scores validate(DataLoader& loader);  // in one epoch of it
  Scores validate(DataLoader&& loader) { return validate(loader); }
  Scores evaluate(const Tensor& x, const Tensor& y, int64_t batch_size = 256);  // of n examples
  // The outputs, on the learner's device, in f32 or wider. Runs between on_valid_begin and
  // on_valid_end, so it uses the averages of EmaWeights, as validation does.
  Tensor predict(const Tensor& x, int64_t batch_size = 256);
  // One epoch in its order, by options.pass unless the model maps a tensor to a tensor.
  Predictions predict(DataLoader& loader);
  Predictions predict(DataLoader&& loader) { return predict(loader); }
  // The sum of a statistic (such as a confusion matrix) over the validation data, on the CPU.
  Tensor total(const std::function<Tensor(const Tensor& output, const Tensor& target)>& statistic);

  // Trains with a growing rate until the loss explodes, then restores weights, optimizer, random
  // numbers and history. Skips observing callbacks. Writes lr_find.svg to the run folder.
  LrFind lr_find(const LrFindOptions& options = {});
  std::string summary();  // for the first batch's shape

  // The whole training state: model, optimizer, accumulated gradients, scaler, schedule, loaders,
  // callbacks (matched by type), random numbers, history and the position in the fit. One
  // safetensors file, written atomically, with the model's tensors as "model.conv1.weight". Loading
  // a file that does not fit throws Error and changes nothing. FitOptions::resume continues a fit
  // from it, unless it was saved within a batch or a validation (in on_step_end, for example,
  // instead of on_checkpoint): such a file is for load() only.
  void save(const std::string& path);
  // `this_fit` also loads the schedule and the position, within a fit of as many epochs.
  void load(const std::string& path, bool this_fit = false);
  // The same as a dict, without a file.
  StateDict state_dict();
  void load_state_dict(const StateDict& dict, bool this_fit = false);

  // State for callbacks, which may change it.
  struct TrainState {
    int64_t epoch = 0, epochs = 0;   // of this fit
    int64_t batch = 0, batches = 0;  // of this epoch
    int64_t step = 0;                // batches since the learner was made
    bool training = false;           // or validating
    Tensor x, y, output;
    std::vector<Tensor> more;
    Tensor loss, objective;  // the loss, and what backward() starts from
    amp::StepResult result;  // of the last step
  } state;
  Loaders data;
  LossFunction loss;
  PassFunction pass;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;  // of the last fit, or null; advances only in it
  std::optional<amp::AutocastOptions> autocast;
  amp::GradScaler scaler{{.enabled = false}};
  amp::StepOptions step_options;
  History history;
  std::vector<Metric> metrics;

  nn::ModuleBase& model() const { return *model_.module; }  // as it was given
  Device device() const { return device_; }                 // of the model and the batches
  // In the order in which they run.
  const std::vector<std::shared_ptr<Callback>>& callbacks() const { return callbacks_; }
  // The ranks of this fit, if its batches have chunks; else null. state.x and on_batch_begin to
  // on_backward_begin are then those of a chunk, state.loss after them that of the batch, and
  // stop() takes effect a batch later or at the epoch's end, on all ranks.
  const dist::DataParallel* parallel() const { return parallel_.get(); }
  // A value of the table by its column: "train_loss", "valid_loss" or a metric.
  struct Score {
    std::string name;
    double value;
    bool higher_is_better;
  };
  std::vector<Score> scores(const EpochRow& row) const;
  // The last epoch's value. Throws Error if no epoch has ended, or one with all names.
  Score score(std::string_view name) const;
  Score score(std::string_view name, const EpochRow& row) const;  // of that row
  void skip() { skipping_ = true; }  // for callbacks: leaves out what comes next (see Callback)
  // Ends the fit after this batch.
  void stop() { (parallel_ ? wants_stop_ : stopping_) = true; }
  bool is_stopping() const { return stopping_; }  // stop() was called, or a signal came
  bool in_fit() const { return in_fit_; }         // false in a custom loop

 private:
  struct Model {
    std::shared_ptr<nn::ModuleBase> module;     // owns nothing for an lvalue
    std::function<Tensor(const Tensor&)> call;  // empty unless tensor to tensor

    template <class M>
    explicit Model(M&& model) {
      const auto m = held(std::forward<M>(model));
      module = m;
      if constexpr (nn::TensorModule<std::remove_cvref_t<M>>)
        call = [m = m.get()](const Tensor& x) -> Tensor { return (*m)(x); };
    }
    explicit Model(nn::Any model) {
      check(bool(model), "the nn::Any holds no module");
      auto kept = std::make_shared<nn::Any>(std::move(model));
      module = {kept, kept->module()};
      call = [any = kept.get()](const Tensor& x) { return (*any)(x); };
    }
  };
  Learner(Loaders data, Model model, const LearnerOptions& options);

  struct Flag {  // sets a bool for its lifetime
    explicit Flag(bool& flag) : on(flag) { on = true; }
    ~Flag() { on = false; }
    bool& on;
  };
  using Event = void (Callback::*)(Learner&);
  bool receives_events(const Callback& c) const;
  // Calls an event of all callbacks; false if one skipped what comes next.
  bool notify(Event event, bool backwards = false);
  void require_no_fit() const;                                          // throws Error within one
  static void check_batches(const DataLoader& data, const char* what);  // throws Error if none
  // sum + the loss of n examples, in f64 and on the loss's device.
  static void add_loss(Tensor& sum, const Tensor& mean, int64_t n);
  void run_epoch();
  // Fills state up to the loss, or only to the output; false if a callback skipped the batch.
  bool forward(const Batch& batch, bool predicts = false);
  Tensor predicted(const Batch& batch, bool by_pass = false);
  void learn(const Batch& batch);
  void learn_chunks(const Batch& batch);
  std::string smaller_batch(int64_t examples) const;
  void check_loss() const;
  void make_step();  // after a backward pass, unless a callback skips it
  void step();
  void with_events(Event begin, Event end, const std::function<void()>& body);
  void drop_gradients();
  bool heed_interrupt();  // stops after a signal; true if there was one
  int64_t batches_per_step() const;
  dist::Part part() const;  // this rank's, of each batch
  DataLoader::Shared own_part(DataLoader& loader) const;
  struct Joined {  // guard: trains with all ranks, and as the first one
    explicit Joined(Learner& l);
    ~Joined();
    Learner& learner;
  };
  void agree();  // on stop() and signals, with all ranks
  void heed(bool stop, int signal);
  void find_lr(const LrFindOptions& options, LrFind& found);
  Learner& use_precision(std::shared_ptr<MixedPrecision> precision);
  void insert(std::shared_ptr<Callback> callback);  // by its order
  void evaluate_in(int64_t batches, const std::function<void()>& body);
  double run_validation(DataLoader& loader, std::vector<Total>& totals);  // the loss
  struct ChunkScores {
    Tensor loss = {};  // the sum, as in add_loss()
    int64_t examples = 0;
    std::vector<Total> totals = {};
  };
  void add_scores(ChunkScores& scores, int64_t examples);  // of the state
  static ChunkScores sum_of(const std::vector<ChunkScores>& chunks, std::vector<Total> totals);
  void divide();  // among ranks, if they are to
  void undivide();
  // `whole`: of divided state all of it, for which all ranks call this.
  StateDict collect(bool whole);
  void restore(const StateDict& dict, bool this_fit, bool whole);
  void print_header() const;
  void print_row(const EpochRow& row) const;

  Model model_;
  OptimizerMaker make_optimizer_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<MixedPrecision> precision_;
  Device device_;
  io::Metadata settings_;
  std::FILE* out_;
  std::optional<RunFolder> folder_;
  bool progress_, skipping_ = false, stopping_ = false, in_fit_ = false, in_lr_find_ = false;
  bool resumable_ = true;    // false within a batch, also after an exception
  bool evaluating_ = false;  // between on_valid_begin and on_valid_end
  Tensor loss_sum_;          // of the running epoch
  int64_t examples_ = 0;     // in loss_sum_
  int64_t chunks_ = 0;
  std::unique_ptr<dist::DataParallel> parallel_;  // of a fit, with more than one chunk
  bool divides_ = false;
  std::unique_ptr<dist::Shards> shards_;
  bool wants_stop_ = false;  // then, until all ranks know
};

}  // namespace mixtape::train
