// Saving and loading a learner: one flat list of named tensors, with a prefix for each part.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "autograd/autograd_meta.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "dist/shards.h"
#include "io/crc.h"
#include "io/text.h"
#include "optim/clip.h"
#include "optim/sharing.h"
#include "optim/state_reader.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

constexpr std::string_view format_name = "mixtape-training", format_version = "1";

// The metadata of a checkpoint beside its settings.
io::Metadata own_metadata(const std::string& sum) {
  return {{"format", std::string(format_name)},
          {"version", std::string(format_version)},
          {"crc32c", sum}};
}

// A table of numbers as f64 [rows, columns].
Tensor table(const std::vector<std::vector<double>>& rows, int64_t columns) {
  const Tensor t({int64_t(rows.size()), columns}, f64, Device::cpu());
  double* at = t.data<double>();
  for (const auto& row : rows) at = std::copy(row.begin(), row.end(), at);
  return t;
}
// All 64 bits of x, as an i64 scalar.
Tensor bits(uint64_t x) {
  const Tensor t({}, i64, Device::cpu());
  *t.data<int64_t>() = std::bit_cast<int64_t>(x);
  return t;
}
uint64_t bits(const Tensor& t) { return std::bit_cast<uint64_t>(*t.data<int64_t>()); }

// CRC-32C of all tensors with their names, dtypes and shapes, to notice damage.
std::string checksum(StateDict tensors) {
  std::ranges::sort(tensors, {}, &StateDict::value_type::first);
  uint32_t crc = 0;
  for (const auto& [name, t] : tensors) {
    const std::string header = fmt::format("{} {} {}", name, t.dtype(), t.shape());
    crc = io::crc32c(std::as_bytes(std::span(header)), crc);
    const auto* const data = static_cast<const std::byte*>(t.host());
    crc = io::crc32c({data, t.nbytes()}, crc);
  }
  return fmt::format("{:08x}", crc);
}

std::string gradient_name(size_t i) { return "gradient." + std::to_string(i); }
// The name of a gradient's f32 sum; see AutogradMeta::wide_grad().
std::string sum_name(size_t i) { return "gradient_sum." + std::to_string(i); }

// Each callback's name in a checkpoint: its type and its index among those of that type.
std::vector<std::string> prefixes(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::vector<std::string> all;
  std::map<std::string, int> count;
  for (const auto& callback : callbacks) {
    const Callback& c = *callback;
    const std::string type = nn::type_name(typeid(c));
    all.push_back(fmt::format("callback.{}.{}.", type, count[type]++));
  }
  return all;
}

Tensor find(optim::StateReader& reader, const char* name, DType dtype, int rank) {
  const Tensor* const t = reader.find(name);
  check(t != nullptr, "no \"{}\"", name);
  check(t->dtype() == dtype && t->rank() == rank, "\"{}\" is {} {}", name, t->dtype(), t->shape());
  return *t;
}

// Adds the history, without the seconds of epochs.
void add_history(StateDict& all, const History& history, size_t metrics) {
  std::vector<std::vector<double>> rows;
  for (const EpochRow& r : history.epochs) {
    rows.push_back({double(r.epoch), double(r.step), r.train_loss, r.valid_loss});
    rows.back().insert(rows.back().end(), r.metrics.begin(), r.metrics.end());
    rows.back().resize(4 + metrics, NAN);  // an old row may have fewer
  }
  all.emplace_back("history.epochs", table(rows, 4 + int64_t(metrics)));
  rows.clear();
  for (const StepRow& r : history.steps)
    rows.push_back({double(r.step), r.loss, r.lr, r.scale, double(r.skipped)});
  all.emplace_back("history.steps", table(rows, 5));
}

History read_history(optim::StateReader& reader, size_t metrics) {
  const Tensor epochs = find(reader, "history.epochs", f64, 2),
               steps = find(reader, "history.steps", f64, 2);
  const auto columns = int64_t(4 + metrics);
  check(epochs.size(1) == columns, "the history has {} metrics, but the learner has {}",
        epochs.size(1) - 4, metrics);
  check(steps.size(1) == 5, "the history has {} numbers per step, not 5", steps.size(1));
  const auto whole = [](double x) {
    check(x >= 0 && x <= 0x1p53 && x == std::trunc(x), "the history has step or epoch {}", x);
    return int64_t(x);
  };
  History history;
  for (int64_t i = 0; i < epochs.size(0); ++i) {
    const double* const r = epochs.data<double>() + i * columns;
    history.epochs.push_back({whole(r[0]), whole(r[1]), r[2], r[3], {r + 4, r + columns}, NAN});
  }
  for (int64_t i = 0; i < steps.size(0); ++i) {
    const double* const r = steps.data<double>() + i * 5;
    history.steps.push_back({whole(r[0]), r[1], r[2], r[3], r[4] != 0});
  }
  return history;
}

// Throws Error if the state was saved in another fit than this one, of so many steps.
void check_fit(const Learner& learner, optim::StateReader& reader, bool scheduled, int64_t steps) {
  check(reader.number("fit.epochs") == double(learner.state.epochs),
        "saved in a fit of {} epochs, not {} (to train longer, load() it and fit without .resume)",
        reader.number("fit.epochs"), learner.state.epochs);
  check(learner.schedule || !scheduled, "saved in a fit with a schedule, but this one has none");
  check(!learner.schedule || scheduled, "saved in a fit without a schedule, but this one has one");
  if (scheduled)
    check(reader.number("fit.steps") == double(steps),
          "saved in a fit whose schedule has {} steps, not {}: resume with the same data",
          reader.number("fit.steps"), steps);
  // Between epochs, a callback may replace the data.
  if (reader.number("fit.batch") == 0) return;
  const double batches = reader.number("fit.batches"), size = reader.number("fit.batch_size");
  const int64_t own = learner.state.batches, own_size = learner.data.train->batch_size();
  check(batches == double(own) && size == double(own_size),
        "saved in a fit of {} batches of {} an epoch, not {} of {}: resume with the same data",
        batches, size, own, own_size);
}

}  // namespace

StateDict Learner::state_dict() { return collect(/*whole=*/true); }

StateDict Learner::collect(bool whole) {
  require_optimizer();
  history.settle();
  StateDict all;
  const auto add_number = [&](const char* name, auto x) {
    all.emplace_back(name, optim::from_number(double(x)));
  };
  all.add("model.", model_.module->state_dict());
  all.add("optimizer.", shards() && whole ? shards()->state_dict() : optimizer->state_dict());
  all.add("scaler.", scaler.state_dict());
  if (autocast && autocast->recipe) all.add("recipe.", autocast->recipe.state_dict());
  if (schedule) all.add("schedule.", schedule->state_dict());
  if (data.train) all.add("data.", data.train->state_dict());
  // Validations are not resumed, so the epoch of the next one is saved.
  if (data.valid) add_number("valid.epoch", data.valid->epoch() + (data.valid->position() > 0));
  const std::vector<std::string> prefix = prefixes(callbacks_);
  for (size_t i = 0; i < callbacks_.size(); ++i) all.add(prefix[i], callbacks_[i]->state_dict());
  const std::vector<Tensor> params = optimizer->params();
  for (size_t i = 0; i < params.size(); ++i)
    if (const Tensor g = optim::dense_grad(params[i]); g && !optim::sharing_of(params[i])) {
      all.emplace_back(gradient_name(i), g);
      if (const Tensor sum = params[i].autograd_meta().wide_grad())
        all.emplace_back(sum_name(i), sum);
    }
  all.emplace_back("random.seed", bits(generator().seed()));
  all.emplace_back("random.offset", bits(generator().offset()));

  add_history(all, history, metrics.size());
  add_number("fit.epoch", state.epoch);
  add_number("fit.epochs", state.epochs);
  add_number("fit.batch", state.batch);
  add_number("fit.batches", state.batches);
  add_number("fit.steps", steps_);
  if (data.train) add_number("fit.batch_size", data.train->batch_size());
  add_number("fit.step", state.step);
  add_number("fit.loss_sum", loss_sum_ ? loss_sum_.item() : 0);
  add_number("fit.examples", examples_);
  // Resuming from here would lose or repeat a batch, or the epoch before a validation.
  if (!resumable_ || evaluating_) add_number("fit.within", 1);
  return all;
}

void Learner::load_state_dict(const StateDict& dict, bool this_fit) {
  check(!this_fit || !optim::StateReader(dict).find("fit.within"),
        "saved within a batch or a validation, where no fit can resume: save in on_checkpoint");
  StateDict before;
  for (const auto& [name, tensor] : collect(/*whole=*/false))
    before.emplace_back(name, tensor.clone());
  const auto epochs = history.epochs;  // with seconds, which state_dict() leaves out
  try {
    restore(dict, this_fit, /*whole=*/true);
  } catch (...) {
    restore(before, this_fit, /*whole=*/false);
    history.epochs = epochs;
    throw;
  }
}

void Learner::restore(const StateDict& dict, bool this_fit, bool whole) {
  optim::StateReader reader(dict);
  History saved_history = read_history(reader, metrics.size());
  const StateDict of_schedule = dict.under("schedule.");
  if (this_fit) check_fit(*this, reader, !of_schedule.empty(), steps_);
  const std::vector<std::string> prefix = prefixes(callbacks_);
  const std::vector<Tensor> params = optimizer->params();
  const uint64_t seed = bits(find(reader, "random.seed", i64, 0)),
                 offset = bits(find(reader, "random.offset", i64, 0));

  model_.module->load_state_dict(dict.under("model."));
  const StateDict of_optimizer = dict.under("optimizer.");
  dist::Shards* const divided = whole ? shards() : nullptr;
  divided ? divided->load_state_dict(of_optimizer) : optimizer->load_state_dict(of_optimizer);
  // If the state was saved without a scaler or a history, those that are needed now start afresh.
  const StateDict of_scaler = dict.under("scaler.");
  scaler.load_state_dict(of_scaler.empty() ? amp::GradScaler(scaler.options()).state_dict()
                                           : of_scaler);
  if (autocast && autocast->recipe) autocast->recipe.load_state_dict(dict.under("recipe."));
  if (schedule && this_fit) schedule->load_state_dict(of_schedule);
  if (data.train && reader.find("data.epoch")) data.train->load_state_dict(dict.under("data."));
  if (data.valid && reader.find("valid.epoch"))
    data.valid->set_epoch(uint64_t(reader.count("valid.epoch")));
  for (size_t i = 0; i < callbacks_.size(); ++i) {
    try {
      callbacks_[i]->load_state_dict(dict.under(prefix[i]));
    } catch (const Error& e) {
      const Callback& c = *callbacks_[i];
      fail("the state of the callback {}: {}", nn::type_name(typeid(c)), e.what());
    }
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    p.set_grad({});
    if (optim::sharing_of(p)) continue;  // their step ends with the batch
    const Tensor* const g = reader.find(gradient_name(i));
    p.set_grad(g ? reader.copy_of(gradient_name(i), p.shape(), g->dtype(), p.device()) : Tensor());
    if (const Tensor sum = reader.copy_of(sum_name(i), p.shape(), f32, p.device()); g && sum)
      p.autograd_meta().set_wide_grad(sum);
  }
  generator() = RandomGenerator(seed);
  generator().set_offset(offset);
  history = std::move(saved_history);
  state.step = reader.count("fit.step");
  if (!this_fit) return;
  state.epoch = reader.count("fit.epoch");
  state.batch = reader.count("fit.batch");
  loss_sum_ = full({}, reader.number("fit.loss_sum"), f64, device_);
  examples_ = reader.count("fit.examples");
}

void Learner::check_storable(const io::Metadata& settings) {
  const io::Metadata own = own_metadata("");
  for (const auto& [name, value] : settings) {
    check(!own.contains(name), "the name of a setting is taken by checkpoints: \"{}\"", name);
    check(io::is_utf8(name) && io::is_utf8(value), "a setting must be UTF-8, got {}: {}",
          io::quote(name), io::quote(value));
  }
}

void Learner::save(const std::string& path) {
  StateDict all;
  if (shards()) all = state_dict();
  on_first_rank([&] {
    if (!shards()) all = state_dict();
    for (auto& [name, tensor] : all) tensor = tensor.contiguous().to(Device::cpu());
    io::Metadata metadata = own_metadata(checksum(all));
    metadata.insert(settings_.begin(), settings_.end());
    io::save(path, all, metadata);
  });
}

namespace {

std::string value_of(const io::Metadata& metadata, const std::string& name) {
  const auto found = metadata.find(name);
  return found == metadata.end() ? std::string() : found->second;
}

// Throws Error if the file is not a checkpoint of a run with these settings.
io::SafeTensors read_checkpoint(const std::string& path, const io::Metadata& settings,
                                const io::ReadOptions& options = {}) {
  io::SafeTensors file = io::load(path, options);
  const std::string format = value_of(file.metadata, "format"),
                    version = value_of(file.metadata, "version");
  check(format == format_name, "{}: not a checkpoint of a training (its format is \"{}\")", path,
        format);
  check(version == format_version, "{}: checkpoint version {} is not supported, only {}", path,
        version, format_version);
  for (const auto& [name, now] : settings)
    if (const auto then = file.metadata.find(name); then != file.metadata.end())
      check(then->second == now, "{}: saved with {} {}, not {}", path, name, then->second, now);
  return file;
}

// Throws Error if the tensors are damaged.
void check_sum(const std::string& path, const io::SafeTensors& file) {
  if (const std::string sum = value_of(file.metadata, "crc32c"); !sum.empty())
    check(checksum(file.tensors) == sum, "{}: damaged: the checksum of its tensors is {}, not {}",
          path, checksum(file.tensors), sum);
  else  // a file edited elsewhere may have none; damage would change the key's name
    check(file.metadata.size() == 2, "{}: no checksum, and {} metadata, not 2", path,
          file.metadata.size());
}

}  // namespace

void check_settings(const std::string& checkpoint, const io::Metadata& settings) {
  read_checkpoint(checkpoint, settings, {.skip = {"*"}});
}

void Learner::load(const std::string& path, bool this_fit) {
  StateDict dict;
  on_first_rank([&] {
    const io::SafeTensors file = read_checkpoint(path, this_fit ? settings_ : io::Metadata());
    check_sum(path, file);
    dict = file.tensors;
  });
  try {
    load_state_dict(of_first_rank(dict), this_fit);
  } catch (const Error& e) {
    fail("{}: {}", path, e.what());
  }
}

}  // namespace mixtape::train
