#pragma once
// Learner: a model, its data, a loss and an optimizer, and the loop that brings them together. What
// else should happen during a training is a Callback.
//
//   Learner learner({std::move(train), std::move(valid)}, simple_cnn({1, 16, 16, 10}),
//                   {.metrics = {accuracy}});
//   learner.to_fp16().fit_one_cycle(1, 3e-3);

#include <concepts>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "core/no_copy.h"
#include "io/safetensors.h"
#include "io/svg.h"
#include "nn/sequential.h"
#include "optim/schedule.h"
#include "train/callback.h"
#include "train/data/loader.h"
#include "train/history.h"
#include "train/metric.h"
#include "train/mixed_precision.h"
#include "train/run_folder.h"

namespace mixtape::train {

struct Loaders {
  std::optional<DataLoader> train = {}, valid = {};
};

// Makes an optimizer for parameters, by value: [](auto params) { return optim::SGD(params); }
// (A Learner gives it all, frozen ones too, which it leaves as they are until they are thawed.)
class OptimizerMaker {
 public:
  template <class F>
    requires std::derived_from<std::invoke_result_t<F&, std::vector<Tensor>>, optim::Optimizer>
  OptimizerMaker(F make)
      : make_([make = std::move(make)](std::vector<Tensor> params) mutable {
          using O = std::invoke_result_t<F&, std::vector<Tensor>>;
          return std::unique_ptr<optim::Optimizer>(std::make_unique<O>(make(std::move(params))));
        }) {}
  std::unique_ptr<optim::Optimizer> operator()(std::vector<Tensor> params) const {
    return make_(std::move(params));
  }

 private:
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)> make_;
};

// A module that is given by name is referred to, any other is kept.
template <class M>
std::shared_ptr<std::remove_reference_t<M>> held(M&& module) {
  if constexpr (std::is_lvalue_reference_v<M>)
    return {std::shared_ptr<void>(), &module};
  else
    return std::make_shared<M>(std::move(module));
}

// What makes a loss of the model's output and the target: a function, or a module such as
// nn::CrossEntropyLoss, held as models are.
class LossFunction {
 public:
  LossFunction() = default;
  template <class F>
    requires(!std::same_as<std::decay_t<F>, LossFunction>)
  LossFunction(F&& f) {
    using Plain = std::decay_t<F>;
    static_assert(std::is_invocable_r_v<Tensor, Plain&, const Tensor&, const Tensor&>,
                  "a loss takes output and target: mse_loss, which takes options as well, is given "
                  "as nn::MSELoss() or in a lambda");
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

 private:
  std::function<Tensor(const Tensor&, const Tensor&)> loss_;
};
// cross_entropy for whole numbers, the mean squared error for others.
Tensor default_loss(const Tensor& output, const Tensor& target);

// What a learner does with a batch on its device, within its autocast region, where there is more
// to it than loss(model(x), y): a model of several inputs or results, a state that goes on.
struct Pass {
  Tensor loss;
  Tensor output = {};  // what the metrics get beside the target
};
using PassFunction = std::function<Pass(const Batch& batch)>;

// Makes a schedule for so many steps of the optimizer.
using ScheduleMaker =
    std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer&, int64_t total_steps)>;

struct LearnerOptions {
  LossFunction loss = default_loss;
  PassFunction pass = {};                        // in place of the model's call and the loss
  std::optional<OptimizerMaker> optimizer = {};  // AdamW by default
  std::vector<Metric> metrics = {};              // of the validation data
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // Where the run is recorded; nowhere if empty. metrics.jsonl (train/charts.h says what is in it)
  // has a line per step and epoch, last.ckpt and best.ckpt are ModelCheckpoint's, and each fit ends
  // with its charts as SVG. Files of an earlier run are replaced.
  std::string folder = {};
  std::vector<std::string> classes = {};     // their names: for confusion.svg in the folder
  Device device = DefaultDevice::current();  // where the model is put and batches go
  std::FILE* out = stdout;                   // for the table of epochs; null: none
  bool progress = true;                      // a bar on stderr while an epoch runs
};

struct FitOptions {
  std::optional<double> lr = {};  // by default the optimizer's
  ScheduleMaker schedule = {};    // by default the rate stays
  std::string resume = {};        // a checkpoint of this very fit, to be continued; none if empty
};

// Keras's names.
struct FitArrays {
  int64_t batch_size = 32, epochs = 1;
  double validation_split = 0;  // this part, from the end, validates
  bool shuffle = true;
  uint64_t seed = 0;
};

struct Scores {
  double loss;
  std::vector<double> metrics;
};

struct Predictions {
  Tensor output;
  Tensor y;  // the targets; no tensor where the data have none
};

struct LrFindOptions {
  double start = 1e-7, end = 10;
  int64_t steps = 100;
  double stop_factor = 4;  // ends when the smoothed loss is so many times its lowest
};
struct LrFind {
  std::vector<double> lr, loss;  // of each step; the loss is smoothed
  double suggested;              // where the loss falls fastest, before it is lowest
};
io::Chart chart(const LrFind& found);

class Learner : NoCopy {
 public:
  // A model that maps a tensor to a tensor, or any other with options.pass. One given by name is
  // referred to, and must outlive the learner; any other is kept.
  template <class M>
    requires std::derived_from<std::remove_cvref_t<M>, nn::ModuleBase>
  Learner(Loaders loaders, M&& model, const LearnerOptions& options = {})
      : Learner(std::move(loaders), Model(std::forward<M>(model)), options) {}
  // A model chosen at run time, which is kept.
  Learner(Loaders data, nn::Any model, const LearnerOptions& options = {});
  // Without data: for fit(x, y).
  template <class M>
    requires std::derived_from<std::remove_cvref_t<M>, nn::ModuleBase>
  explicit Learner(M&& model, const LearnerOptions& options = {})
      : Learner({}, Model(std::forward<M>(model)), options) {}
  ~Learner();

  // Another loss, optimizer, metrics, callbacks. A precision that was chosen stays, and so does the
  // device: throws Error if options.device is another.
  void compile(const LearnerOptions& options);
  // It sees the moments that come after this one. A MixedPrecision is chosen, as by to_fp16().
  void add(std::shared_ptr<Callback> callback);

  // How training is done from here on; each replaces what was chosen before. They change what
  // Autocast, GradScaler and the model's dtype are, and no code of the loop.
  Learner& to_fp16(const AmpOptions& options = {});  // Autocast and GradScaler
  Learner& to_fp16(const MasterOptions& options);    // the whole model in f16, with f32 masters
  Learner& to_bf16();
  Learner& to_fp32();
  Learner& to(DType dtype);  // the first, third or fourth: f16, bf16 or f32

  // Trains for so many epochs and prints a row for each. Throws Error without training data.
  void fit(int64_t epochs, const FitOptions& options = {});
  // (No plain double, which {} would be as well.)
  void fit(int64_t epochs, std::convertible_to<double> auto lr) {
    fit(epochs, FitOptions{.lr = double(lr)});
  }
  void fit_one_cycle(int64_t epochs, double max_lr = 3e-3, FitOptions options = {});
  void fit(const Tensor& x, const Tensor& y, const FitArrays& options = {});
  // One batch, as fit does it. For loops of your own, such as those of two learners.
  void train_batch(const Batch& batch);

  Scores validate();  // on the validation data
  Scores validate(DataLoader& loader);
  Scores validate(DataLoader&& loader) { return validate(loader); }
  Scores evaluate(const Tensor& x, const Tensor& y, int64_t batch_size = 256);
  // On the learner's device, and never narrower than f32. Between on_valid_begin and on_valid_end,
  // so of what validates: of the averages, where EmaWeights keeps them.
  Tensor predict(const Tensor& x, int64_t batch_size = 256);
  // Of an epoch, in its order; by options.pass where the model does not map one tensor to one.
  Predictions predict(DataLoader& loader);
  Predictions predict(DataLoader&& loader) { return predict(loader); }
  // The sum of a statistic over the validation data, on the CPU: a confusion matrix, say.
  Tensor total(const std::function<Tensor(const Tensor& output, const Tensor& target)>& statistic);

  // Trains with a rate that grows from step to step, until the loss explodes. Afterwards all is as
  // before: weights, optimizer, random numbers, history. Callbacks that only look on are left out.
  // A run folder gets lr_find.svg.
  LrFind lr_find(const LrFindOptions& options = {});
  std::string summary();  // for the first batch's shape

  // Everything that a training goes on from: model, optimizer, gradients of a step that has not
  // come yet, scaler, schedule, loaders, callbacks (found again by their types), random numbers,
  // history and where in a fit it is. One safetensors file, written atomically; the model's tensors
  // are there as "model.conv1.weight". Loading throws Error, and changes nothing, if the file does
  // not fit; a fit goes on from it by FitOptions::resume, unless it was saved within a batch or a
  // validation (in on_step_end, say, and not in on_checkpoint): then it is for load() alone.
  void save(const std::string& path);
  void load(const std::string& path, bool this_fit = false);
  StateDict state_dict();
  void load_state_dict(const StateDict& dict, bool this_fit = false);

  // For callbacks, which may change any of it.
  struct TrainState {
    int64_t epoch = 0, epochs = 0;   // of this fit
    int64_t batch = 0, batches = 0;  // of this epoch
    int64_t step = 0;                // batches since the learner was made
    bool training = false;           // or validating
    Tensor x, y, output;
    std::vector<Tensor> more;
    Tensor loss, objective;  // what the loss function gave, and what backward starts from
    amp::StepResult result;  // of the last step
  } state;
  Loaders data;
  LossFunction loss;
  PassFunction pass;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;  // of the last fit, or null; advances in it alone
  std::optional<amp::AutocastOptions> autocast;
  amp::GradScaler scaler{{.enabled = false}};
  amp::StepOptions step_options;
  History history;
  std::vector<Metric> metrics;

  nn::ModuleBase& model() const { return *model_.module; }
  Device device() const { return device_; }
  const std::vector<std::shared_ptr<Callback>>& callbacks() const { return callbacks_; }
  // What a row of the table says, by name: "train_loss", "valid_loss" and the metrics'.
  struct Score {
    std::string name;
    double value;
    bool higher_is_better;
  };
  std::vector<Score> scores(const EpochRow& row) const;
  // One of the last epoch's. Throws Error that lists the names if there is no such number, or no
  // epoch has ended.
  Score score(std::string_view name) const;
  Score score(std::string_view name, const EpochRow& row) const;  // of that
  void skip() { skipping_ = true; }
  void stop() { stopping_ = true; }
  bool is_stopping() const { return stopping_; }
  bool fits() const { return fits_; }  // or it is a loop of somebody's own that trains

 private:
  struct Model {
    std::shared_ptr<nn::ModuleBase> module;     // owns nothing if it is referred to
    std::function<Tensor(const Tensor&)> call;  // none if it maps no tensor to a tensor

    template <class M>
    explicit Model(M&& model) {
      const auto m = held(std::forward<M>(model));
      module = m;
      if constexpr (nn::TensorModule<std::remove_cvref_t<M>>)
        call = [m = m.get()](const Tensor& x) -> Tensor { return (*m)(x); };
    }
    explicit Model(nn::Any model) {
      check(bool(model), "a learner of an Any that holds no module");
      auto kept = std::make_shared<nn::Any>(std::move(model));
      module = {kept, kept->module()};
      call = [any = kept.get()](const Tensor& x) { return (*any)(x); };
    }
  };
  Learner(Loaders data, Model model, const LearnerOptions& options);

  struct Flag {  // true while it lives
    explicit Flag(bool& flag) : on(flag) { on = true; }
    ~Flag() { on = false; }
    bool& on;
  };
  using Moment = void (Callback::*)(Learner&);
  bool asks(const Callback& c) const { return !rehearsing_ || c.order() < Callback::looks_on; }
  // Whether to go on with what comes next.
  bool each(Moment moment, bool backwards = false);
  static void check_batches(const DataLoader& data, const char* what);  // that there are any
  // sum + the loss of n examples, in f64 and on the loss's device.
  static void add_loss(Tensor& sum, const Tensor& mean, int64_t n);
  void run_epoch();
  // Fills state up to the loss, or just up to the output; false if a callback skipped that.
  bool run(const Batch& batch, bool predicts = false);
  Tensor predicted(const Batch& batch, bool by_pass = false);
  void learn(const Batch& batch);
  void step();
  void between(Moment begin, Moment end, const std::function<void()>& body);
  void drop_gradients();
  void find_lr(const LrFindOptions& options, LrFind& found);
  Learner& use(std::shared_ptr<MixedPrecision> precision);
  void insert(std::shared_ptr<Callback> callback);  // by its order
  void evaluate_in(int64_t batches, const std::function<void()>& body);
  double run_validation(DataLoader& loader, std::vector<Total>& totals);  // the loss
  void restore(const StateDict& dict, bool this_fit);
  void print_header() const;
  void print_row(const EpochRow& row) const;

  Model model_;
  OptimizerMaker make_optimizer_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
  std::shared_ptr<MixedPrecision> precision_;
  Device device_;
  std::FILE* out_;
  std::optional<RunFolder> folder_;
  bool progress_, skipping_ = false, stopping_ = false;
  bool fits_ = false;
  bool rehearsing_ = false;  // in lr_find
  bool resumable_ = true;    // false within a batch, or when an exception left it there
  bool evaluating_ = false;  // between on_valid_begin and on_valid_end
  // Of the running epoch: the sum of its losses and how many examples they are of.
  Tensor loss_sum_;
  int64_t examples_ = 0;
};

}  // namespace mixtape::train
