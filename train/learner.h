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

// A function that makes an optimizer for parameters, by value:
//   [](auto params) { return optim::SGD(params); }
// (A Learner passes all parameters; the optimizer leaves frozen ones alone until they are
// unfrozen.) An amp::LossScaleOptimizer also chooses the precision: to_fp16() with its loss scale.
class OptimizerMaker {
 public:
  struct Made {  // an optimizer, and the loss scale that it requests
    std::unique_ptr<optim::Optimizer> optimizer;
    std::optional<amp::ScalerOptions> loss_scale = {};  // if it is a LossScaleOptimizer
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
            return {std::move(made)};  // from optim::get()
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
  // From a function of output and target, or a module, of which an lvalue is referred to.
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
// Replaces loss(model(x), y), for models with several inputs or results, or with state. It gets the
// batch on the learner's device, in the learner's autocast region.
using PassFunction = std::function<StepOutput(const Batch& batch)>;

// A function that makes a schedule over `total_steps` optimizer steps.
using ScheduleMaker =
    std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer&, int64_t total_steps)>;

struct LearnerOptions {
  // By default cross entropy if the data's targets are integers (even if a callback turns them into
  // probabilities), else the mean squared error.
  LossFunction loss = {};
  PassFunction pass = {};                        // replaces the model's call and the loss
  std::optional<OptimizerMaker> optimizer = {};  // AdamW by default
  std::vector<Metric> metrics = {};              // on the validation data
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // The run folder ("": none), for metrics.jsonl (see train/charts.h) with a line per step and
  // epoch, last.ckpt and best.ckpt (see ModelCheckpoint), and SVG charts. Earlier files are
  // replaced.
  std::string folder = {};
  std::vector<std::string> classes = {};     // class names, with which confusion.svg is drawn
  Device device = DefaultDevice::current();  // of the model and batches
  // The number of parts of a batch, over all ranks, that train one by one and whose gradients are
  // added up (see dist::DataParallelOptions). 0: one for each rank (and batch of
  // GradientAccumulation). With the same number of chunks, a fit gives the same bits on any number
  // of ranks.
  int64_t chunks = 0;
  // Divides the optimizer's state among ranks from the first fit on (see dist::Shards). All ranks
  // must then call state_dict(), save(), compile(), and to_fp16() and the like.
  bool shards = false;
  // Texts by name that describe the run, such as a program's options, and are kept in checkpoints.
  // A fit does not resume from a checkpoint in which one of them differs. compile() throws Error
  // unless all are UTF-8, with names other than those that a checkpoint has itself ("format").
  io::Metadata settings = {};
  std::FILE* out = stdout;  // for the table of epochs; null: no table
  bool progress = true;     // a progress bar on stderr
};

struct FitOptions {
  std::optional<double> lr = {};  // by default the optimizer's
  ScheduleMaker schedule = {};    // by default a constant rate
  std::string resume = {};        // a checkpoint of this fit from which to continue; "": none
};

// The end of a fit: after its epochs, by a callback's stop(), or by a signal (Ctrl-C or SIGTERM).
// After a signal the program should return, with 130 for Ctrl-C. Another fit, unless it resumes,
// would end the program by the signal (see Interrupt).
enum class FitResult { Finished, Stopped, Interrupted };

// Options with Keras's names.
struct FitArrays {
  int64_t batch_size = 32, epochs = 1;
  double validation_split = 0;  // fraction at the end of the data for validation
  bool shuffle = true;
  uint64_t seed = 0;
  // Leaves out a smaller last batch; by default only one that is a single example or has chunks of
  // one, on which batch norm cannot train.
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
struct LrFind {                  // the result of lr_find()
  std::vector<double> lr, loss;  // by step; the loss is smoothed
  std::vector<double> raw;       // by step, the unsmoothed loss
  // The rate at which the loss falls, before its minimum: the one for which raw losses before and
  // after differ most, relative to their noise.
  double suggested;
};
io::Chart chart(const LrFind& found);  // loss over rate, with the suggested rate

// Throws Error if the file is not a checkpoint or has another value for a setting. (Checkpoints
// that lack the setting pass.) FitOptions::resume checks the same, but later.
void check_settings(const std::string& checkpoint, const io::Metadata& settings);

// Under a dist::World of several ranks, each rank trains on its part of every batch of the loaders,
// and all have the same weights. All ranks must then call fit(), lr_find(), validate(), evaluate(),
// total(), save() and load(); predict() and summary() are each rank's own.
//
// A Learner may be moved, except by its own callbacks. After that it may only be assigned to.
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
  // Without data, for fit(x, y).
  template <class M>
    requires std::derived_from<std::remove_cvref_t<M>, nn::ModuleBase>
  explicit Learner(M&& model, const LearnerOptions& options = {})
      : Learner({}, Model(std::forward<M>(model)), options) {}
  Learner(Learner&&) noexcept;
  Learner& operator=(Learner&&) noexcept;
  ~Learner();

  // Replaces loss, optimizer, metrics and callbacks, and keeps the precision. The device must stay
  // the same.
  void compile(const LearnerOptions& options);
  // Adds a callback, for all later events. A MixedPrecision sets the precision, as to_fp16() does.
  void add(std::shared_ptr<Callback> callback);

  // These set the precision of further training; each call replaces the previous choice. Called on
  // a temporary, they return it: auto learner = Learner(...).to_fp16();
  Learner& to_fp16(const AmpOptions& options = {}) &;  // Autocast and GradScaler
  Learner& to_fp16(const MasterOptions& options) &;    // the whole model in f16, with f32 masters
  Learner& to(DType dtype) & { return to_fp16(AmpOptions{.amp_mode = dtype}); }  // f16, bf16, f32
  Learner& to_bf16() & { return to(bf16); }  // needs no loss scale
  Learner& to_fp32() & { return to(f32); }   // without Autocast, as initially
  Learner to_fp16(const AmpOptions& options = {}) && { return std::move(to_fp16(options)); }
  Learner to_fp16(const MasterOptions& options) && { return std::move(to_fp16(options)); }
  Learner to(DType dtype) && { return std::move(to(dtype)); }
  Learner to_bf16() && { return std::move(to(bf16)); }
  Learner to_fp32() && { return std::move(to(f32)); }

  // Trains and prints a row per epoch. Throws Error without training data.
  FitResult fit(int64_t epochs, const FitOptions& options = {});
  // fit(3, 1e-3). (A plain double would also accept {}.)
  FitResult fit(int64_t epochs, std::convertible_to<double> auto lr) {
    return fit(epochs, FitOptions{.lr = double(lr)});
  }
  // Fits with a OneCycle schedule up to this rate. Throws Error if options have a schedule.
  FitResult fit_one_cycle(int64_t epochs, double max_lr = 3e-3, FitOptions options = {});
  FitResult fit(const Tensor& x, const Tensor& y, const FitArrays& options = {});
  // Trains on one batch, as fit() does, for custom loops, such as those with two learners. Throws
  // Error on several ranks, which need a dist::DataParallel.
  void train_batch(const Batch& batch);

  Scores validate();                    // on the validation data
  Scores validate(DataLoader& loader);  // on one epoch of the loader
  Scores validate(DataLoader&& loader) { return validate(loader); }
  Scores evaluate(const Tensor& x, const Tensor& y, int64_t batch_size = 256);  // of n examples
  // The outputs, on the learner's device, in f32 or wider. Runs between on_valid_begin and
  // on_valid_end, so it uses EmaWeights' averages, as validation does.
  Tensor predict(const Tensor& x, int64_t batch_size = 256);
  // The same for one epoch of the loader, in its order; calls options.pass unless the model maps a
  // tensor to a tensor.
  Predictions predict(DataLoader& loader);
  Predictions predict(DataLoader&& loader) { return predict(loader); }
  // The sum of a statistic (such as a confusion matrix) over the validation data, on the CPU.
  Tensor total(const std::function<Tensor(const Tensor& output, const Tensor& target)>& statistic);

  // Trains with a growing rate until the loss explodes, then restores weights, optimizer, random
  // numbers and history. Callbacks that only observe are skipped. Writes lr_find.svg to the run
  // folder.
  LrFind lr_find(const LrFindOptions& options = {});
  std::string summary();  // nn::summary() for the first batch's shape

  // Saves the whole training state: model, optimizer, accumulated gradients, scaler, schedule,
  // loaders, callbacks (matched by type), random numbers, history and the position in the fit. It
  // is one safetensors file, written atomically, with the model's tensors as "model.conv1.weight".
  // FitOptions::resume continues a fit from it, unless it was saved within a batch or a validation
  // (for example in on_step_end instead of on_checkpoint): such a file is only for load().
  void save(const std::string& path);
  // Loads such a file. If it does not fit, throws Error and changes nothing. `this_fit` also loads
  // the schedule and the position, within a fit of as many epochs.
  void load(const std::string& path, bool this_fit = false);
  // The same state as a dict.
  StateDict state_dict();
  void load_state_dict(const StateDict& dict, bool this_fit = false);

  // State for callbacks, which may change it.
  struct TrainState {
    int64_t epoch = 0, epochs = 0;   // of this fit
    int64_t batch = 0, batches = 0;  // of this epoch
    int64_t step = 0;                // batches since the learner was made
    bool training = false;           // false: validating
    Tensor x, y, output;
    std::vector<Tensor> more;
    Tensor loss, objective;  // the loss, and the tensor from which backward() starts
    amp::StepResult result;  // of the last step
  } state;
  Loaders data;
  LossFunction loss;
  PassFunction pass;
  std::unique_ptr<optim::Optimizer> optimizer;
  // The schedule of the last fit, in which alone it advances; or null.
  std::unique_ptr<optim::Schedule> schedule;
  std::optional<amp::AutocastOptions> autocast;
  amp::GradScaler scaler{{.enabled = false}};
  amp::StepOptions step_options;
  History history;
  std::vector<Metric> metrics;

  nn::ModuleBase& model() const { return *model_.module; }  // as it was given
  Device device() const { return device_; }                 // of the model and the batches
  // In the order in which they run.
  const std::vector<std::shared_ptr<Callback>>& callbacks() const { return callbacks_; }
  // The ranks of this fit if its batches have chunks, else null. state.x and the events from
  // on_batch_begin to on_backward_begin are then those of a chunk; state.loss is later the batch's,
  // and stop() takes effect a batch later or at the end of the epoch, on all ranks.
  const dist::DataParallel* parallel() const { return parallel_.get(); }
  // A value of the table by its column: "train_loss", "valid_loss" or a metric.
  struct Score {
    std::string name;
    double value;
    bool higher_is_better;
  };
  std::vector<Score> scores(const EpochRow& row) const;
  // The last epoch's value. Throws Error if no epoch has ended; if the name is unknown, Error lists
  // all names.
  Score score(std::string_view name) const;
  Score score(std::string_view name, const EpochRow& row) const;  // the value in that row
  void skip() { skipping_ = true; }  // for callbacks: leaves out the next phase (see Callback)
  // Ends the fit after this batch.
  void stop() { (parallel_ ? wants_stop_ : stopping_) = true; }
  bool is_stopping() const { return stopping_; }  // true after stop() or a signal
  bool in_fit() const { return in_fit_; }         // false in a custom loop

 private:
  struct Model {
    std::shared_ptr<nn::ModuleBase> module;     // does not own an lvalue
    std::function<Tensor(const Tensor&)> call;  // empty unless it maps a tensor to a tensor

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
  // Calls an event of all callbacks; false if one skipped the next phase.
  bool notify(Event event, bool backwards = false);
  void require_ready() const;  // throws Error within a fit or without an optimizer
  void require_optimizer() const;
  // Throws Error if a callback removed the data that a loop of the learner goes over.
  static void check_kept(const std::optional<DataLoader>& data);
  static void check_batches(const DataLoader& data, const char* what);  // throws Error without any
  // Adds the loss of n examples to `sum`, in f64 and on the loss's device.
  static void add_loss(Tensor& sum, const Tensor& mean, int64_t n);
  void run_epoch();
  // Fills state up to the loss, or only to the output; false if a callback skipped the batch.
  bool forward(const Batch& batch, bool predicts = false);
  Tensor predicted(const Batch& batch, bool by_pass = false);
  void learn(const Batch& batch);
  void learn_chunks(const Batch& batch);
  std::string smaller_batch(int64_t examples) const;
  void check_loss() const;
  void make_step();  // steps after a backward pass, unless a callback skips it
  void step();
  void with_events(Event begin, Event end, const std::function<void()>& body);
  void drop_gradients();
  bool heed_interrupt();  // stops after a signal; returns true if there was one
  int64_t batches_per_step() const;
  dist::Part part() const;  // this rank's part of each batch
  // True if an epoch ends with a batch that is a single example or has chunks of one.
  bool leaves_one(int64_t examples, int64_t batch_size) const;
  DataLoader::Shared own_part(DataLoader& loader) const;
  struct Joined {  // a guard: trains with all ranks, beginning with the first one's state
    explicit Joined(Learner& l);
    ~Joined();
    Learner& learner;
  };
  void agree();  // with all ranks, on stop() and signals
  void heed(bool stop, int signal);
  void find_lr(const LrFindOptions& options, LrFind& found);
  Learner& use_precision(std::shared_ptr<MixedPrecision> precision);
  void insert(std::shared_ptr<Callback> callback);  // by its order()
  void evaluate_in(int64_t batches, const std::function<void()>& body);
  double run_validation(DataLoader& loader, std::vector<Total>& totals);  // the loss
  struct ChunkScores {
    Tensor loss = {};  // the sum, as in add_loss()
    int64_t examples = 0;
    std::vector<Total> totals = {};
  };
  void add_scores(ChunkScores& scores, int64_t examples);  // of the state
  static ChunkScores sum_of(const std::vector<ChunkScores>& chunks, std::vector<Total> totals);
  void divide();  // divides the optimizer state among ranks, if options say so
  void undivide();
  dist::Shards* shards() const;  // of the optimizer, which a program may have replaced; or null
  // With `whole`, divided state is included as a whole, for which all ranks must call this.
  StateDict collect(bool whole);
  void restore(const StateDict& dict, bool this_fit, bool whole);
  static void check_storable(const io::Metadata& settings);  // throws Error unless save() can do it
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
  bool resumable_ = true;    // false within a batch, even after an exception
  bool evaluating_ = false;  // between on_valid_begin and on_valid_end
  Tensor loss_sum_;          // of the running epoch
  int64_t examples_ = 0;     // the number of examples in loss_sum_
  int64_t steps_ = 0;        // of the fit, as its schedule was told
  int64_t chunks_ = 0;
  std::unique_ptr<dist::DataParallel> parallel_;  // of a fit, with more than one chunk
  bool divides_ = false;
  std::unique_ptr<dist::Shards> shards_;
  bool wants_stop_ = false;  // with parallel_: stop() was called, but not all ranks know yet
};

}  // namespace mixtape::train
