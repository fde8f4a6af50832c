// Averages of weights, updated by SGD's kernel.
#include "optim/ema.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "kernels/common/optimizers.h"
#include "kernels/kernels.h"
#include "optim/sharing.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
namespace {

std::string average_name(size_t index) { return fmt::format("average.{}", index); }

}  // namespace

StandIns::StandIns() = default;
// In reverse, so that a tensor listed twice gets its first value back.
StandIns::~StandIns() {
  for (size_t i = tensors_.size(); i-- > 0;) tensors_[i].set_data(values_[i]);
}
void StandIns::put(const Tensor& t, const Tensor& value) {
  tensors_.push_back(t);
  values_.push_back(t.detach());
  t.set_data(value);
}
void StandIns::put_joined(const Tensor& t, const Tensor& value) {
  const auto sharing = sharing_of(t);
  if (!sharing) return put(t, value);
  put(sharing->whole_of(t), sharing->joined(t, value).copied_to(t.device()));
}
void StandIns::keep() {
  tensors_.clear();
  values_.clear();
}

Ema::Ema(const std::vector<Tensor>& tensors, const EmaOptions& options) : options_(options) {
  const Scope scope("ema");
  check(0 <= options.decay && options.decay <= 1, "decay must be from 0 to 1, got {}",
        options.decay);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check(static_cast<bool>(t), "tensor {} is undefined", i);
    if (!is_float(t.dtype())) continue;
    check(t.is_contiguous(), "tensor {} is strided: {} of {}", i, t.strides(), t.shape());
    tensors_.push_back(t);
    check(t.device() == tensors_[0].device(), "tensor {} is on {}, others on {}", i, t.device(),
          tensors_[0].device());
    averages_.push_back(dense_copy(t, accumulate_dtype(t.dtype()), t.device()));
  }
  check(!tensors_.empty(), "no tensors to average");
}

double Ema::decay() const {
  const double t = static_cast<double>(updates_);
  if (options_.equal) return t / (t + 1);
  if (!options_.warmup) return options_.decay;
  return std::min(options_.decay, (1 + t) / (10 + t));
}

// Updates by a step of SGD at rate 1 - decay along average - value, or by a plain copy.
void Ema::update() {
  const Scope scope("ema");
  check(applied_ == 0, "an update while the averages are applied");
  if (options_.warmup || options_.equal)
    check_no_capture("the decay changes: update() averages between replays");
  std::vector<kernels::Update> updates(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor &t = tensors_[i], &average = averages_[i];
    check(accumulate_dtype(t.dtype()) == average.dtype() && t.device() == average.device(),
          "tensor {} is now {} on {}, but its average is {} on {}: make a new Ema after moving a "
          "model",
          i, t.dtype(), t.device(), average.dtype(), average.device());
    check(t.is_contiguous(), "tensor {} has become strided: {} of {}", i, t.strides(), t.shape());
    average.storage()->begin_write();
    updates[i].param = average;
    updates[i].grad = t;
  }
  const Device device = averages_[0].device();
  if (options_.equal && updates_ == 0) {  // drops the first values, which may be NaN
    for (const kernels::Update& u : updates) kernels::convert(device, u.grad, u.param);
  } else {
    const kernels::SGD sgd{.lr = 1 - decay(), .weight_decay = 1};
    kernels::optimizer_step(device, sgd, updates, kernels::StepControl{.rescale = -1});
  }
  for (const Tensor& average : averages_) average.storage()->bump_version();
  ++updates_;
}

Ema::Applied::Applied(Ema& ema) : ema_(ema) {
  for (size_t i = 0; i < ema.tensors_.size(); ++i) {
    const Tensor& t = ema.tensors_[i];
    averages_.put(t, dense_copy(ema.averages_[i], t.dtype(), t.device()));
  }
  ++ema_.applied_;
}

void Ema::overwrite_tensors() const {
  const Scope scope("ema");
  check(applied_ == 0, "overwriting tensors while the averages stand in their place");
  std::vector<Tensor> copies;  // all made before the first is set, since copying may throw
  for (size_t i = 0; i < tensors_.size(); ++i)
    copies.push_back(dense_copy(averages_[i], tensors_[i].dtype(), tensors_[i].device()));
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].set_data(copies[i]);
}

StateDict Ema::state_dict() const {
  StateDict dict{{"updates", from_number(static_cast<double>(updates_))}};
  for (size_t i = 0; i < averages_.size(); ++i) dict.emplace_back(average_name(i), averages_[i]);
  return dict;
}

void Ema::load_state_dict(const StateDict& dict) {
  const Scope scope("ema");
  StateReader reader(dict);
  const int64_t updates = reader.count("updates");
  std::vector<Tensor> averages;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor& a = averages_[i];
    averages.push_back(reader.copy_of(average_name(i), a.shape(), a.dtype(), a.device()));
    check(static_cast<bool>(averages.back()), "{} is missing", average_name(i));
  }
  reader.check_all_read();
  averages_ = std::move(averages);
  updates_ = updates;
}

}  // namespace mixtape::optim
