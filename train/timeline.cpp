#include "train/timeline.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/tape.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/stream.h"
#include "dist/data_parallel.h"
#include "io/file.h"
#include "io/text.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
using namespace internal;
namespace {

std::string described(const Tensor& t) { return fmt::format("{} {}", t.dtype(), t.shape()); }

template <class Tensors>
std::string listed(const Tensors& tensors) {
  std::string text;
  for (const Tensor& t : tensors)
    if (t) text += (text.empty() ? "" : ", ") + described(t);
  return text;
}

Device device_of(const Call& call, const Tensor& otherwise) {
  for (const Tensor* t : call.inputs)
    if (*t) return t->device();
  return otherwise ? otherwise.device() : Device::cpu();
}

// True if module `path` is `inner` or contains it.
bool holds(const std::string& path, const std::string& inner) {
  return path.empty() || inner == path || (inner.starts_with(path) && inner[path.size()] == '.');
}

}  // namespace

Timeline::Timeline(const TimelineOptions& options) : options_(options) {}

Timeline::Span::Span(Timeline& timeline, std::string name)
    : timeline_(timeline), name_(std::move(name)), begin_(Clock::now()) {}
Timeline::Span::~Span() { timeline_.add(name_, begin_, Clock::now()); }

void Timeline::add(std::string name, Clock::time_point begin, Clock::time_point end) {
  leave(0);
  events_.push_back({std::move(name), "span", begin, end});
}

void Timeline::before(const Call& call) {
  begin(call.op.name, Scope::module_path(), device_of(call, {}));
}
void Timeline::after(const Call& call, const Tensor& result) {
  std::vector<Tensor> inputs;
  for (const Tensor* t : call.inputs) inputs.push_back(*t);
  end(call.op.name, call.backward ? "backward" : "forward",
      fmt::format("{} -> {}", listed(inputs), described(result)), device_of(call, result));
}
void Timeline::before_rule(const Node& node, const Tensor& dy) {
  begin(node.name(), node.module, dy.device());
}
void Timeline::after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> gradients) {
  end(node.name(), "backward", fmt::format("{} -> {}", described(dy), listed(gradients)),
      dy.device());
}

void Timeline::begin(std::string_view op, const std::string* module, Device device) {
  if (options_.wait) synchronize(device);
  const auto now = Clock::now();
  if (frames_.empty()) enter(Scope::path_text(module), now);
  frames_.push_back({op, now});
}

void Timeline::end(std::string_view op, const char* kind, std::string note, Device device) {
  if (options_.wait) synchronize(device);
  while (!frames_.empty() && frames_.back().name != op) frames_.pop_back();  // ops that threw
  if (frames_.empty()) return;  // the op began before the timeline
  last_ = Clock::now();
  const std::string name =
      kind == std::string_view("backward") ? fmt::format("{} backward", op) : std::string(op);
  events_.push_back({name, kind, frames_.back().begin, last_, std::move(note)});
  frames_.pop_back();
}

// Ends, at the end of the last op, the modules that do not contain this one, and begins those
// between.
void Timeline::enter(const std::string& module, Clock::time_point now) {
  size_t depth = 0;
  while (depth < modules_.size() && holds(modules_[depth].path, module)) ++depth;
  leave(depth);
  size_t at = modules_.empty() ? 0 : modules_.back().path.size();
  while (at < module.size()) {
    at = std::min(module.find('.', at + 1), module.size());
    modules_.push_back({module.substr(0, at), now});
  }
}

void Timeline::leave(size_t depth) {
  for (; modules_.size() > depth; modules_.pop_back())
    events_.push_back({modules_.back().path, "module", modules_.back().begin, last_});
}

std::string Timeline::json() const {
  const auto us = [&](Clock::time_point t) {
    return std::chrono::duration<double, std::micro>(t - start_).count();
  };
  std::string text = "{\"traceEvents\": [";
  const auto line = [&](const Event& e) {
    text += fmt::format(
        "{}\n{{\"name\": {}, \"cat\": \"{}\", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, "
        "\"ts\": {:.3f}, \"dur\": {:.3f}",
        text.back() == '[' ? "" : ",", io::json_string(e.name), e.kind, us(e.begin),
        us(e.end) - us(e.begin));
    if (!e.note.empty()) text += ", \"args\": {\"tensors\": " + io::json_string(e.note) + "}";
    text += "}";
  };
  for (const Event& e : events_) line(e);
  for (const Running& m : modules_) line({m.path, "module", m.begin, last_});
  return text + "\n]}\n";
}

void Timeline::write(const std::string& path) const { io::write_file(path, json()); }

Profile::Profile(const std::string& path, const ProfileOptions& options)
    : path_(io::absolute(path)), options_(options) {
  check(options.first >= 0 && options.steps >= 1,
        "Profile: first must be >= 0 and steps >= 1, got {} and {}", options.first, options.steps);
  if (is_first_rank()) io::AtomicFile probe(path_);
}

void Profile::on_batch_begin(Learner& learner) {
  if (!learner.state.training) return;
  if (batch_ == 0 && options_.first == 0) begin();
  phase("forward");
}

void Profile::on_loss_begin(Learner& learner) {
  if (learner.state.training) phase("loss");
}

void Profile::on_step_begin(Learner& learner) {
  if (timeline_ && learner.parallel()) {
    const dist::DataParallel::Wait wait = learner.parallel()->waited();
    if (wait.begin >= begin_) timeline_->add("exchange", wait.begin, wait.end);
  }
  phase("step");
}

// The wait for the first recorded batch begins when the batch before it ends.
void Profile::on_batch_end(Learner& learner) {
  if (!learner.state.training) return;
  ++batch_;
  if (batch_ == options_.first) begin();
  if (batch_ == options_.first + options_.steps)
    finish();
  else
    phase("data");
}

void Profile::begin() { timeline_.emplace(TimelineOptions{options_.wait}); }

void Profile::phase(const char* next) {
  if (!timeline_) return;
  const auto now = Timeline::Clock::now();
  if (name_) timeline_->add(name_, begin_, now);
  name_ = next;
  begin_ = now;
}

void Profile::finish() {
  if (!timeline_) return;
  phase(nullptr);
  timeline_->write(path_);
  timeline_.reset();
}

}  // namespace mixtape::train
