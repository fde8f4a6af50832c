// Learner without training: validation, totals, predictions, the summary.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/no_copy.h"
#include "nn/summary.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

// While one is alive the learner evaluates; then it is as it was.
class Evaluating : NoCopy {
 public:
  explicit Evaluating(Learner& l)
      : learner_(l), model_(l.model()), here_(l.device()), before_(l.state) {
    l.state.training = false;
  }
  ~Evaluating() { learner_.state = std::move(before_); }

 private:
  Learner& learner_;
  const nn::Evaluating model_;
  const NoGrad off_;
  const DefaultDevice here_;
  Learner::TrainState before_;
};

}  // namespace

// The body between on_valid_begin and on_valid_end; of a callback that evaluates in a validation,
// the body alone.
void Learner::evaluate_in(int64_t batches, const std::function<void()>& body) {
  const Evaluating evaluating(*this);
  state.batch = 0;
  state.batches = batches;
  if (evaluating_) return body();
  const Flag flag(evaluating_);
  between(&Callback::on_valid_begin, &Callback::on_valid_end, body);
}

double Learner::run_validation(DataLoader& loader, std::vector<Total>& totals) {
  check_batches(loader, "the validation data");
  Tensor sum;
  int64_t examples = 0;
  evaluate_in(loader.batches(), [&] {
    for (const Batch& batch : loader) {
      if (run(batch)) {
        check(bool(state.loss),
              "a batch without targets to validate (LearnerOptions::pass could do without)");
        add_loss(sum, state.loss, batch.x.size(0));
        examples += batch.x.size(0);
        check(totals.empty() || (state.output && state.y), "metrics of a batch that has no {}",
              state.output ? "targets" : "output: LearnerOptions::pass gave a loss alone");
        for (Total& total : totals) total.add(state.output, state.y);
      }
      ++state.batch;
      each(&Callback::on_batch_end);
    }
  });
  return sum ? sum.item() / double(examples) : NAN;
}

Scores Learner::validate(DataLoader& loader) {
  std::vector<Total> totals(metrics.begin(), metrics.end());
  Scores scores{run_validation(loader, totals), {}};
  for (const Total& total : totals) scores.metrics.push_back(total.value());
  return scores;
}

Scores Learner::validate() {
  check(data.valid.has_value(), "validate without validation data");
  return validate(*data.valid);
}

Scores Learner::evaluate(const Tensor& x, const Tensor& y, int64_t batch_size) {
  DataLoader loader(TensorDataset(x.to(Device::cpu()), y.to(Device::cpu())),
                    {.batch_size = batch_size});
  return validate(loader);
}

Tensor Learner::total(
    const std::function<Tensor(const Tensor& output, const Tensor& target)>& statistic) {
  check(data.valid.has_value(), "a total without validation data");
  std::vector<Total> totals{Total({"", statistic, {}})};
  run_validation(*data.valid, totals);
  check(bool(totals[0].sum()), "a total over no batch");
  return totals[0].sum().to(Device::cpu());
}

Tensor Learner::predicted(const Batch& batch, bool by_pass) {
  check(run(batch, /*predicts=*/!by_pass), "a callback skipped a batch of a prediction");
  check(bool(state.output), "no output to predict: LearnerOptions::pass gave a loss alone");
  return is_half(state.output.dtype()) ? state.output.to(f32) : state.output;
}

Tensor Learner::predict(const Tensor& x, int64_t batch_size) {
  check(batch_size > 0, "batches of {}", batch_size);
  const int64_t n = x.size(0);
  check(n > 0, "predictions for no examples");
  std::vector<Tensor> outputs;
  evaluate_in((n + batch_size - 1) / batch_size, [&] {
    for (int64_t i = 0; i < n; i += batch_size)
      outputs.push_back(predicted({narrow(x, 0, i, std::min(batch_size, n - i)), {}}));
  });
  return cat(outputs);
}

Predictions Learner::predict(DataLoader& loader) {
  check_batches(loader, "the data to predict from");
  std::vector<Tensor> outputs, targets;
  evaluate_in(loader.batches(), [&] {
    for (const Batch& batch : loader) {
      outputs.push_back(predicted(batch, /*by_pass=*/!model_.call && pass));
      if (state.y) targets.push_back(state.y);
    }
  });
  return {cat(outputs), targets.empty() ? Tensor() : cat(targets)};
}

std::string Learner::summary() {
  check(data.train.has_value(), "summary without training data: nn::summary takes inputs");
  const Batch first = data.train->batch(0);
  return nn::summary_of(*model_.module, [&] {
    const Evaluating evaluating(*this);
    run(first, /*predicts=*/!pass);
  });
}

}  // namespace mixtape::train
