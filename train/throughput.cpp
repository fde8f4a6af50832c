#include "train/throughput.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "io/file.h"
#include "train/learner.h"

namespace mixtape::train {
using namespace internal;
namespace {

// The names of ops with products that no policy rounds: attention, recurrent layers, a loss with
// its logits, a sum of products.
constexpr std::string_view other_products[] = {
    "scaled_dot_product_attention", "rnn_tanh", "rnn_relu", "lstm", "gru",
    "linear_cross_entropy",         "dot"};

bool multiplies(const OpInfo& op) {
  return op.product != Product::None || std::ranges::count(other_products, op.name) > 0;
}

// The multiplications of a call. Operands of a product are the first activations or parameters.
double multiplications(const Call& call, const Tensor& y) {
  std::vector<const Tensor*> operands;
  for (size_t i = 0; i < call.inputs.size(); ++i)
    if (call.op.role(i) == Role::Activation || call.op.role(i) == Role::Parameter)
      operands.push_back(call.inputs[i]);
  if (operands.size() < 2 || !*operands[0] || !*operands[1]) return 0;
  const Tensor &a = *operands[0], &b = *operands[1];
  const auto size = [](const Tensor& t) { return double(t.numel()); };
  if (call.op.product == Product::Convolution) {  // the weight at each place of the window
    const Tensor& places = call.op.name == "conv_transpose2d" ? a : y;
    return size(b) * size(places) / double(places.size(1));
  }
  if (call.op.name == other_products[0]) return (size(a) + size(y)) * double(b.size(-2));
  if (call.op.product == Product::None)  // a weight [out, in] or [in], for each row
    return size(b) * size(a) / double(a.size(-1));
  return size(y) * double(a.size(-1));
}

}  // namespace

void FlopCounter::before(const Call& call) {
  if (multiplies(call.op)) running_.begin();
}
void FlopCounter::after(const Call& call, const Tensor& result) {
  if (multiplies(call.op) && running_.end()) flops_ += 2 * multiplications(call, result);
}

Throughput::Throughput(const std::string& path, const ThroughputOptions& options)
    : path_(io::absolute(path)), options_(options) {
  check(options.every >= 1, "every must be >= 1, got {}", options.every);
  check(options.peak >= 0, "peak must be >= 0, got {}", options.peak);
}

void Throughput::on_train_begin(Learner&) {
  if (!path_.empty()) file_.emplace(path_);
  batches_ = 0;
  waits_ = true;
  seconds_ = data_seconds_ = examples_ = tokens_ = flops_ = 0;
}

double Throughput::lap() {
  const auto now = Clock::now();
  return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
}

// A chunk of a batch begins like a batch.
void Throughput::on_batch_begin(Learner& learner) {
  if (!learner.state.training) return;
  const double seconds = lap();
  seconds_ += seconds;
  if (std::exchange(waits_, false)) data_seconds_ += seconds;
  const Tensor& x = learner.state.x;
  examples_ += double(x.size(0));
  if (is_integer(x.dtype())) tokens_ += double(x.numel());
  counter_.emplace();
}

void Throughput::count() {
  if (counter_) flops_ += 3 * counter_->flops();
  counter_.reset();
}

void Throughput::on_batch_end(Learner& learner) {
  if (!learner.state.training) return;
  count();
  seconds_ += lap();
  waits_ = true;
  if (++batches_ < options_.every) return;
  const double n = double(std::exchange(batches_, 0)), seconds = std::exchange(seconds_, 0);
  Row row{.step = learner.state.step,
          .seconds = seconds / n,
          .data_seconds = std::exchange(data_seconds_, 0) / n,
          .examples = std::exchange(examples_, 0) / seconds,
          .tokens = std::exchange(tokens_, 0) / seconds,
          .flops = std::exchange(flops_, 0) / seconds,
          .utilisation = {}};
  if (options_.peak > 0) row.utilisation = row.flops / options_.peak;
  rows_.push_back(row);
  if (!file_) return;
  io::JsonFields fields = {{"step", row.step},
                           {"seconds", row.seconds},
                           {"data_seconds", row.data_seconds},
                           {"examples_per_second", row.examples}};
  if (row.tokens > 0) fields.emplace_back("tokens_per_second", row.tokens);
  fields.emplace_back("flops_per_second", row.flops);
  if (row.utilisation) fields.emplace_back("utilisation", *row.utilisation);
  file_->write(fields);
}

}  // namespace mixtape::train
