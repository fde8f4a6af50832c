// The parts of Learner that do not train: validation, totals, predictions, the summary.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/int_math.h"
#include "nn/summary.h"
#include "optim/averaged.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

// A guard: the learner evaluates; restores the state afterwards.
class Evaluating : NoCopy {
 public:
  explicit Evaluating(Learner& learner)
      : learner_(learner),
        model_(learner.model()),
        device_(learner.device()),
        before_(learner.state) {
    learner.state.training = false;
  }
  ~Evaluating() { learner_.state = std::move(before_); }

 private:
  Learner& learner_;
  const nn::Evaluating model_;
  const NoGrad off_;
  const DefaultDevice device_;
  Learner::TrainState before_;
};

}  // namespace

// Runs the body between on_valid_begin and on_valid_end, or without them within a validation.
void Learner::evaluate_in(int64_t batches, const std::function<void()>& body) {
  const Evaluating evaluating(*this);
  state.batch = 0;
  state.batches = batches;
  if (evaluating_) return body();
  const Flag flag(evaluating_);
  std::optional<optim::Averaged> of_a_schedule_free_optimizer;
  if (optimizer) of_a_schedule_free_optimizer.emplace(*optimizer);
  with_events(&Callback::on_valid_begin, &Callback::on_valid_end, body);
}

double Learner::run_validation(DataLoader& loader, std::vector<Total>& totals) {
  check_batches(loader, "the validation data");
  const dist::Part part = this->part();
  const bool is_own = data.valid && &loader == &*data.valid;
  std::vector<ChunkScores> chunks(size_t(part.own_chunks()), ChunkScores{.totals = totals});
  evaluate_in(loader.batches(), [&] {
    if (is_own) check_kept(data.valid);
    for (const Batch& batch : part.chunks > 1 ? loader.share(part) : own_part(loader)) {
      const RandomGenerator step = generator();
      if (part.chunks > 1) generator().reserve(1);
      for (int64_t i = 0; i < part.own_chunks(); ++i) {
        const Batch chunk = chunk_of(batch, part, part.first_chunk() + i);
        if (!chunk.x) continue;
        std::optional<ChunkSeed> seed;
        if (part.chunks > 1) seed.emplace(step, part.first_chunk() + i);
        if (forward(chunk)) add_scores(chunks[size_t(i)], chunk.x.size(0));
      }
      ++state.batch;
      notify(&Callback::on_batch_end);
      if (is_own) check_kept(data.valid);
    }
  });
  const ChunkScores all = part.chunks > 1 ? sum_of(chunks, totals) : chunks[0];
  totals = all.totals;
  return all.examples > 0 ? all.loss.item() / double(all.examples) : NAN;
}

void Learner::add_scores(ChunkScores& scores, int64_t examples) {
  check(bool(state.loss),
        "a batch has no targets to validate (LearnerOptions::pass can do without)");
  add_loss(scores.loss, state.loss, examples);
  scores.examples += examples;
  check(scores.totals.empty() || (state.output && state.y), "metrics need a batch with {}",
        state.output ? "targets" : "output: LearnerOptions::pass returned only a loss");
  for (Total& total : scores.totals) total.add(state.output, state.y);
}

Learner::ChunkScores Learner::sum_of(const std::vector<ChunkScores>& chunks,
                                     std::vector<Total> totals) {
  std::vector<std::vector<Tensor>> own;
  for (const ChunkScores& chunk : chunks) {
    std::vector<Tensor>& tensors = own.emplace_back();
    if (chunk.examples == 0) continue;
    tensors = {chunk.loss, full({}, double(chunk.examples), f64, Device::cpu())};
    for (const Total& t : chunk.totals) {
      tensors.push_back(t.sum());
      tensors.push_back(full({}, double(t.examples()), f64, Device::cpu()));
    }
  }
  const std::vector<Tensor> sums = sum_of_chunks(own);
  if (sums.empty()) return {.totals = totals};  // callbacks skipped every batch
  for (size_t i = 0; i < totals.size(); ++i)
    totals[i].set(sums[2 + 2 * i], int64_t(sums[3 + 2 * i].item()));
  return {sums[0], int64_t(sums[1].item()), totals};
}

Scores Learner::validate(DataLoader& loader) {
  std::vector<Total> totals(metrics.begin(), metrics.end());
  Scores scores{run_validation(loader, totals), {}};
  for (const Total& total : totals) scores.metrics.push_back(total.value());
  return scores;
}

Scores Learner::validate() {
  check(data.valid.has_value(), "validate needs validation data");
  return validate(*data.valid);
}

Scores Learner::evaluate(const Tensor& x, const Tensor& y, int64_t batch_size) {
  DataLoader loader(TensorDataset(x.to(Device::cpu()), y.to(Device::cpu())),
                    {.batch_size = batch_size});
  return validate(loader);
}

Tensor Learner::total(
    const std::function<Tensor(const Tensor& output, const Tensor& target)>& statistic) {
  check(data.valid.has_value(), "total needs validation data");
  std::vector<Total> totals{Total({"", statistic, {}})};
  run_validation(*data.valid, totals);
  check(bool(totals[0].sum()), "total: every batch was skipped");
  return totals[0].sum().to(Device::cpu());
}

Tensor Learner::predicted(const Batch& batch, bool by_pass) {
  check(forward(batch, /*predicts=*/!by_pass), "a callback skipped a batch of a prediction");
  check(bool(state.output), "no output to predict: LearnerOptions::pass returned only a loss");
  return is_half(state.output.dtype()) ? state.output.to(f32) : state.output;
}

Tensor Learner::predict(const Tensor& x, int64_t batch_size) {
  check(batch_size > 0, "batch_size must be > 0, got {}", batch_size);
  const int64_t n = x.size(0);
  check(n > 0, "no examples to predict");
  batch_size = std::min(batch_size, n);
  std::vector<Tensor> outputs;
  evaluate_in(internal::ceil_div(n, batch_size), [&] {
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
  check(data.train.has_value(), "summary needs training data (nn::summary takes inputs instead)");
  const Batch first = data.train->batch(0);
  return nn::summary_of(*model_.module, [&] {
    const Evaluating evaluating(*this);
    forward(first, /*predicts=*/!pass);
  });
}

}  // namespace mixtape::train
