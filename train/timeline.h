#pragma once
// Timeline: shows where a step's time goes, op by op, in a file for ui.perfetto.dev or
// chrome://tracing.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "core/dispatch.h"
#include "train/callback.h"

namespace mixtape::train {

struct TimelineOptions {
  // Waits for the device before and after each op, so that an op's time is that of its kernels
  // instead of that of launching them. The whole then takes longer.
  bool wait = false;
};

// Records this thread's ops while alive, forward and in backward rules, each inside the modules in
// which it ran, and the spans that the program names. On the CPU an op takes about a microsecond
// more.
class Timeline final : internal::Observer {
 public:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] explicit Timeline(const TimelineOptions& options = {});  // begins to record

  // A guard for a span of time with a name.
  class Span : mixtape::NoCopy {
   public:
    // Begins the span, which the destructor ends.
    [[nodiscard]] Span(Timeline& timeline, std::string name);
    ~Span();

   private:
    Timeline& timeline_;
    const std::string name_;
    const Clock::time_point begin_;
  };
  void add(std::string name, Clock::time_point begin, Clock::time_point end);

  std::string json() const;                   // in Chrome's trace event format
  void write(const std::string& path) const;  // writes json() to a file

 private:
  struct Event {
    std::string name;
    const char* kind;
    Clock::time_point begin, end;
    std::string note = {};  // "f16 [64, 128], f16 [128, 10] -> f16 [64, 10]"
  };
  struct Frame {  // an op that is running
    std::string_view name;
    Clock::time_point begin;
  };
  struct Running {  // a module that runs, or ran when the last op ended
    std::string path;
    Clock::time_point begin;
  };
  void before(const internal::Call& call) override;
  void after(const internal::Call& call, const Tensor& result) override;
  void before_rule(const internal::Node& node, const Tensor& dy) override;
  void after_rule(const internal::Node& node, const Tensor& dy,
                  std::span<const Tensor> gradients) override;
  bool reads_values() const override { return false; }
  void begin(std::string_view op, const std::string* module, Device device);
  void end(std::string_view op, const char* kind, std::string note, Device device);
  void enter(const std::string& module, Clock::time_point now);
  void leave(size_t depth);

  const TimelineOptions options_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Event> events_;
  std::vector<Frame> frames_;
  std::vector<Running> modules_;     // outermost first
  Clock::time_point last_ = start_;  // the end of the last op
  const Observe watching_{*this};
};

struct ProfileOptions {
  int64_t first = 3, steps = 3;  // the first batch of the fit to record, from 0, and how many
  bool wait = false;             // see TimelineOptions
};

// Records some training batches of a fit, with spans for waiting for data, forward, loss, backward
// (and in it the exchange that it waits for on several ranks) and step, and writes the file after
// the last one. (The ops of a validation in between are included, but have no span.) Throws Error
// if the file cannot be written.
class Profile : public Callback {
 public:
  // Throws Error if options are out of range.
  explicit Profile(const std::string& path, const ProfileOptions& options = {});
  int order() const override { return observer_order; }
  void on_train_begin(Learner&) override { batch_ = 0; }
  void on_epoch_begin(Learner&) override { phase(nullptr); }
  void on_batch_begin(Learner& learner) override;
  void on_loss_begin(Learner& learner) override;
  void on_backward_begin(Learner&) override { phase("backward"); }
  void on_step_begin(Learner& learner) override;
  void on_batch_end(Learner& learner) override;
  void on_valid_begin(Learner&) override { phase(nullptr); }
  void on_train_end(Learner&) override { finish(); }

 private:
  void begin();
  void phase(const char* next);  // ends the phase before and begins the next; null: none follows
  void finish();

  const std::string path_;
  const ProfileOptions options_;
  std::optional<Timeline> timeline_;
  int64_t batch_ = 0;
  const char* name_ = nullptr;
  Timeline::Clock::time_point begin_;
};

}  // namespace mixtape::train
