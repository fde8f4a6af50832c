// Results of the f32 step, the reference, are kept by op and module, in the order of calls. Errors
// are computed while the other step runs, stay on the device, and are read at its end.
#include "amp/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "amp/trace.h"
#include "autograd/backward_state.h"
#include "autograd/ops/gradients.h"
#include "autograd/tape.h"
#include "core/allocator.h"
#include "core/format.h"
#include "core/random.h"
#include "core/running_ops.h"
#include "core/stream.h"
#include "io/svg.h"
#include "io/text.h"
#include "kernels/common/binary.h"

namespace mixtape::amp {
using namespace internal;
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool is_compared(const Tensor& t) { return t && is_float(t.dtype()) && t.numel() > 0; }

// The error of a copy is that of its source, and its rounding counts for the op for which it is
// made. (Which copies an op needs depends on its dtypes.)
bool copies(std::string_view op) {
  return op == "cast" || op == "clone" || op == "cast_to_integer";  // the last to 8 bits
}
bool only_copies(const Node& node) { return copies(node.name()) || node.name() == "quantise"; }

// |y - y32|, |y| and |y32|: f32 [3].
Tensor distance(const Tensor& y, const Tensor& reference) {
  const Tensor wide = reference.dtype() == f64 ? reference : reference.to(f32);
  const Tensor same = y.to(wide.dtype()), length = norm(same).to(f32);
  // In a copy, which is in a cache still. (With sub_(), vmap() would see a write, and loop.)
  const Tensor out = y.dtype() == wide.dtype() ? Tensor() : same,
               difference = ops::binary_out<kernels::Sub>(out, same, wide);
  return stack({norm(difference).to(f32), length, norm(wide).to(f32)});
}
// The error of several results together, given three numbers for each.
double relative(std::span<const double> distances) {
  double sums[3] = {};
  for (size_t i = 0; i < distances.size(); ++i) sums[i % 3] = std::hypot(sums[i % 3], distances[i]);
  const auto [difference, length, reference] = sums;
  if (!std::isfinite(reference)) return 0;  // neither is finite
  if (!std::isfinite(difference)) return infinity;
  return difference == 0 ? 0 : difference / std::max(length, reference);
}

StateDict copy_of(const StateDict& state) {
  StateDict copy;
  for (const auto& [name, t] : state) copy.emplace_back(name, t.clone());
  return copy;
}

}  // namespace

using Clock = std::chrono::steady_clock;

enum class Part { Forward, Incoming, Backward };         // Incoming: the gradient that a rule gets
using Key = std::tuple<std::string, std::string, Part>;  // op, module

// Records a step: the reference's if `reference` is null.
struct Compare::Run final : detail::KeepingObserver {
  struct Result {
    Key key;
    DType dtype;
    std::vector<size_t> inputs;  // the numbers of those inputs that are results
    size_t first, count;         // its range in distances_; none of a write
    double error = 0;
  };

  explicit Run(const Run* r) : reference(r) {}

  void before(const Call& call) override;
  void after(const Call& call, const Tensor& y) override;
  void before_rule(const Node& node, const Tensor& dy) override;
  void after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> dx) override;
  void after_accumulate(const Node& leaf, const Tensor& total) override;
  void before_write(const Tensor& x, const Tensor& y) override;
  void finish();

  const Run* const reference;
  struct Kept {
    Tensor y;
    uint64_t version;  // if it has changed, an op has written to the tensor since
  };
  std::map<Key, std::vector<std::vector<Kept>>> kept;  // of the reference, by call
  std::map<Key, size_t> calls;                         // so far
  std::vector<Result> results;                         // of the other step, in order
  struct Gradient {
    Tensor total;
    uint64_t version;           // of the leaf
    uint64_t storage, written;  // of its grad(): id and version
  };
  std::map<uint64_t, Gradient> gradients;  // by a leaf's storage
  double error = 0;
  int64_t unmatched = 0;
  std::vector<Row> rows;

 private:
  // Takes a result; returns its number if both steps have it. Views of dy pass on dy's error.
  std::optional<size_t> take(const Key& key, std::span<const Tensor> made,
                             std::vector<size_t> inputs, const Tensor& dy = {});
  void look_up(const Tensor& t, std::vector<size_t>& inputs) const;
  Tensor measured(const Tensor& y, const Tensor& wide);
  double error_of_gradients() const;
  void gather();

  std::unordered_map<uint64_t, size_t> made_;  // by storage: the result that it holds
  std::vector<Tensor> distances_;              // of `results`
  // Distances by what is compared, since a rule's gradient is often one that the rule before made.
  std::map<std::array<uint64_t, 5>, Tensor> known_;
  std::vector<std::vector<size_t>> rules_;  // inputs of the rules that are running
  RunningOps running_;
};

void Compare::Run::look_up(const Tensor& t, std::vector<size_t>& inputs) const {
  const auto at = t ? made_.find(t.storage()->id()) : made_.end();
  if (at != made_.end()) inputs.push_back(at->second);
}

Tensor Compare::Run::measured(const Tensor& y, const Tensor& wide) {
  const auto [low, high] = extent(y.layout());
  if (high - low + 1 != y.numel()) return distance(y, wide);  // other parts may begin there, too
  Tensor& known = known_[{y.storage()->id(), y.version(), uint64_t(y.offset()), uint64_t(y.numel()),
                          wide.storage()->id()}];
  if (!known) known = distance(y, wide);
  return known;
}

std::optional<size_t> Compare::Run::take(const Key& key, std::span<const Tensor> made,
                                         std::vector<size_t> inputs, const Tensor& dy) {
  std::vector<Tensor> results_now;
  std::ranges::copy_if(made, std::back_inserter(results_now), is_compared);
  if (results_now.empty()) return {};
  const Unobserved aside;
  if (!reference) {
    std::vector<Kept>& now = kept[key].emplace_back();
    for (const Tensor& y : results_now) {
      now.push_back({y.detach(), y.version()});
      ++handles_[y.storage()->id()];
    }
    return {};
  }
  const size_t call = calls[key]++;
  const auto all = reference->kept.find(key);
  const auto shape = [](const Kept& k) { return k.y.shape(); };
  if (all == reference->kept.end() || call >= all->second.size() ||
      !std::ranges::equal(all->second[call], results_now, {}, shape, &Tensor::shape)) {
    ++unmatched;
    return {};
  }
  const std::vector<Kept>& wide = all->second[call];
  for (const Kept& k : wide)
    if (k.y.version() != k.version) return {};
  const size_t number = results.size(), first = distances_.size();
  std::optional<DType> dtype;
  for (size_t i = 0; i < wide.size(); ++i) {
    const Tensor& y = results_now[i];
    if (dy && y.storage() == dy.storage()) continue;
    made_[y.storage()->id()] = number;
    distances_.push_back(measured(y, wide[i].y));
    dtype = dtype.value_or(y.dtype());
  }
  if (!dtype) return {};
  results.push_back({key, *dtype, std::move(inputs), first, distances_.size() - first});
  return number;
}

// Copies the kept results that the write would change. x passes on y's error from then on, beside
// its own if it keeps some elements.
void Compare::Run::before_write(const Tensor& x, const Tensor& y) {
  const uint64_t id = x.storage()->id();
  std::vector<size_t> inputs;
  look_up(y, inputs);
  // (A write at indices may leave others.)
  if (x.nbytes() < x.storage()->bytes() || !Scope::innermost()->op.ends_with('_'))
    look_up(x, inputs);
  if (inputs.size() == 2 && inputs[0] != inputs[1]) {
    results.push_back({{"", "", Part::Incoming}, x.dtype(), inputs, distances_.size(), 0});
    inputs = {results.size() - 1};
  }
  made_.erase(id);
  if (!inputs.empty()) made_[id] = inputs[0];
  if (handles_.erase(id) == 0) return;
  const Unobserved aside;
  for (auto& [key, calls_of_key] : kept)
    for (auto& call : calls_of_key)
      for (auto& [result, version] : call)
        if (result.storage() == x.storage()) result = clone(result), version = result.version();
}

void Compare::Run::before(const Call&) { running_.begin(); }

void Compare::Run::after(const Call& call, const Tensor& y) {
  const bool outermost = running_.end();
  if (!is_compared(y) && !(y && is_f8(y.dtype()))) return;
  if (copies(call.op.name)) {
    const auto from = made_.find((*call.inputs[0]).storage()->id());
    if (from != made_.end()) made_[y.storage()->id()] = from->second;
    return;
  }
  std::vector<size_t> inputs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& t = *call.inputs[i];
    if (t && t.storage() == y.storage() && !call.op.name.ends_with('_')) return;  // a view
    const size_t known = inputs.size();
    look_up(call.given(i), inputs);
    if (inputs.size() > known) made_[t.storage()->id()] = inputs.back();  // a recipe may round it
  }
  if (backward_state.running || !outermost) return;  // within an op or backward()
  take({std::string(call.op.name), Scope::path_text(), Part::Forward}, {&y, 1}, std::move(inputs));
}

void Compare::Run::before_rule(const Node& node, const Tensor& dy) {
  std::vector<size_t>& inputs = rules_.emplace_back();
  if (only_copies(node)) return;
  if (const auto at = take(
          {std::string(node.name()), Scope::path_text(node.module), Part::Incoming}, {&dy, 1}, {}))
    inputs.push_back(*at);
  for (const Tensor& t : node.ctx.saved()) look_up(t, inputs);
}

void Compare::Run::after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> dx) {
  const std::vector<size_t> inputs = std::move(rules_.back());
  rules_.pop_back();
  if (only_copies(node)) return;
  take({std::string(node.name()), Scope::path_text(node.module), Part::Backward}, dx, inputs, dy);
}

void Compare::Run::after_accumulate(const Node& leaf, const Tensor& total) {
  const Tensor t = leaf.leaf();
  if (!t) return;
  const uint64_t id = t.storage()->id();
  if (reference)
    if (const auto at = reference->gradients.find(id); at != reference->gradients.end()) {
      const Gradient& before = at->second;
      check(before.version == t.version(),
            "Compare: the step changes {} {}, which requires a gradient: leave out the optimizer's "
            "step",
            t.dtype(), t.shape());
      check(gradients.contains(id) || before.storage != total.storage()->id() ||
                before.written + 1 != total.version(),
            "Compare: the step adds to the gradient that {} {} had before: begin it by zero_grad()",
            t.dtype(), t.shape());
    }
  gradients[id] = {total, t.version(), total.storage()->id(), total.version()};
}

// Called after the step.
void Compare::Run::finish() {
  const Unobserved aside;
  if (!reference) {
    for (auto& [id, g] : gradients) g.total = g.total.clone();  // the next step changes it
    return;
  }
  if (!results.empty()) {
    const std::vector<double> d = to_vector<double>(stack(distances_));
    for (Result& r : results) {
      r.error = relative(std::span(d).subspan(3 * r.first, 3 * r.count));
      if (r.count > 0) error = r.error;
      for (const size_t i : r.inputs)
        if (r.count == 0) r.error = std::max(r.error, results[i].error);
    }
  }
  if (!gradients.empty()) error = error_of_gradients();
  gather();
}

double Compare::Run::error_of_gradients() const {
  std::vector<Tensor> all;
  for (const auto& [id, g] : gradients)
    if (const auto at = reference->gradients.find(id); at != reference->gradients.end())
      all.push_back(distance(g.total, at->second.total));
  return all.empty() ? 0 : relative(to_vector<double>(stack(all)));
}

void Compare::Run::gather() {
  std::map<std::tuple<std::string, std::string, bool>, size_t> places;
  for (const Result& r : results) {
    const auto& [op, module, part] = r.key;
    if (part == Part::Incoming) continue;
    Row now{op, module, part == Part::Backward, r.dtype, 0, r.error, 1};
    for (const size_t i : r.inputs) now.error_in = std::max(now.error_in, results[i].error);
    const auto [at, fresh] = places.try_emplace({op, module, now.backward}, rows.size());
    if (fresh) {
      rows.push_back(now);
      continue;
    }
    Row& row = rows[at->second];
    now.calls += row.calls;
    if (now.added() > row.added())
      row = now;
    else
      row.calls = now.calls;
  }
  std::ranges::stable_sort(rows, std::greater(), [](const Row& r) { return r.added(); });
}

Compare::Compare(Step step, CompareOptions options)
    : step_(std::move(step)),
      options_(std::move(options)),
      random_(generator()),
      start_(copy_of(options_.buffers)),
      history_(copy_of(options_.region.recipe.state_dict())) {
  check(step_ != nullptr, "Compare: there is no step");
  check(options_.region.enabled, "Compare: region.enabled must be true, or both steps run in f32");
  AutocastOptions wide = options_.region;
  wide.enabled = false;
  reference_ = run(wide, nullptr);
  run_ = run(options_.region, reference_.get());
}
Compare::~Compare() = default;

std::unique_ptr<Compare::Run> Compare::run(const AutocastOptions& region,
                                           const Run* reference) const {
  auto seen = std::make_unique<Run>(reference);
  {
    const Observe watching(*seen);
    run_step(region);
  }
  seen->finish();
  return seen;
}

// Runs the step with the random numbers, buffers and history of amax that every run gets.
void Compare::run_step(const AutocastOptions& region) const {
  const Seed same(random_);
  struct PutBack {
    const StateDict &buffers, &start, &history;
    Recipe recipe;
    ~PutBack() {
      const Unobserved aside;
      for (size_t i = 0; i < start.size(); ++i) copy_(buffers[i].second, start[i].second);
      recipe.load_state_dict(history);
    }
  } const at_the_end{options_.buffers, start_, history_, options_.region.recipe};
  step_(region);
}

const std::vector<Compare::Row>& Compare::rows() const { return run_->rows; }
double Compare::error() const { return run_->error; }
int64_t Compare::unmatched() const { return run_->unmatched; }

namespace {

// An override, not yet in `chosen`, that makes a row's op compute in f32: by its module's path or,
// if that changes nothing or was not enough, by its name.
std::optional<Override> next_override(const Compare::Row& row, const Overrides& chosen) {
  const auto is_new = [&](const std::string& pattern) {
    return std::ranges::find(chosen, pattern, &Override::pattern) == chosen.end();
  };
  const auto ops = all_ops();
  const auto op = std::ranges::find(ops, std::string_view(row.op), &OpInfo::name);
  const bool by_path = !row.module.empty() && op != ops.end() && (*op)->precision != Precision::Any;
  const std::string path = by_path ? path_pattern(row.module) : "";
  if (!path.empty() && is_new(path)) return Override{path, Precision::Full};
  if (op != ops.end() && is_new(row.op)) return Override{row.op, Precision::Full};
  return {};
}

}  // namespace

Compare::Remedy Compare::overrides(double budget) {
  check(budget >= 0, "overrides: the budget must be >= 0, got {}", budget);
  Overrides chosen;
  const auto with = [&](const Overrides& more) {
    AutocastOptions region = options_.region;
    region.overrides.insert(region.overrides.end(), more.begin(), more.end());
    return region;
  };
  std::unique_ptr<Run> last;
  double error = run_->error;
  while (error > budget) {
    std::optional<Override> next;
    for (const Row& row : (last ? last.get() : run_.get())->rows)
      if (!next && row.added() > 0) next = next_override(row, chosen);
    check(next.has_value(),
          "overrides({}): an error of {:.3g} is left with all that add one in f32", budget, error);
    chosen.push_back(*next);
    last = run(with(chosen), reference_.get());
    error = last->error;
  }
  for (size_t i = chosen.size(); i-- > 0;) {
    Overrides fewer = chosen;
    fewer.erase(fewer.begin() + std::ptrdiff_t(i));
    const double then = run(with(fewer), reference_.get())->error;
    if (then > budget) continue;
    chosen = fewer;
    error = then;
  }
  const auto [seconds_before, peak_before] = cost(options_.region);
  const auto [seconds, peak] = cost(with(chosen));
  return {chosen, error, seconds_before, seconds, peak_before, peak};
}

// Seconds and peak bytes of a step, kernels' memory included, where its results are; the best of
// three runs.
std::pair<double, int64_t> Compare::cost(const AutocastOptions& region) const {
  const auto& kept = reference_->kept;
  const Device device =
      kept.empty() ? DefaultDevice::current() : kept.begin()->second[0][0].y.device();
  double best = infinity;
  reset_peak(device);
  const int64_t held = memory_stats(device).in_use;
  for (int i = 0; i < 3; ++i) {
    synchronize(device);
    const auto begin = Clock::now();
    run_step(region);
    synchronize(device);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return {best, memory_stats(device).peak_total - held};
}

std::string Compare::Remedy::text() const {
  std::string text = fmt::format(
      "# error {:.2g}; a step takes {:.3g} ms ({:.3g} without), and {} more memory than before it "
      "({})\n",
      error, seconds * 1e3, seconds_before * 1e3, io::bytes_text(peak),
      io::bytes_text(peak_before));
  for (const Override& o : overrides)
    text += fmt::format("{} = {}\n", o.pattern, name(o.precision));
  return text;
}

std::string Compare::text(size_t most) const {
  std::vector<std::vector<std::string>> table{
      {"op", "pass", "module", "dtype", "adds", "passes on", "calls"}};
  for (const Row& r : rows()) {
    if (table.size() > most || r.added() == 0) break;
    table.push_back({r.op, r.backward ? "backward" : "forward", r.module,
                     std::string(name(r.dtype)), fmt::format("{:.1e}", r.added()),
                     fmt::format("{:.1e}", r.error), fmt::format("{}", r.calls)});
  }
  std::string text = io::columns(table, {false, false, false, false, true, true, true});
  text += fmt::format("error of the step: {:.1e}\n", error());
  if (unmatched() > 0) text += fmt::format("results that one step alone has: {}\n", unmatched());
  return text;
}

std::string Compare::json() const {
  using Json = nlohmann::ordered_json;
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json("inf"); };
  Json all = Json::array();
  for (const Row& r : rows())
    all.push_back({{"op", r.op},
                   {"pass", r.backward ? "backward" : "forward"},
                   {"module", r.module},
                   {"dtype", name(r.dtype)},
                   {"added", number(r.added())},
                   {"error_in", number(r.error_in)},
                   {"error", number(r.error)},
                   {"calls", r.calls}});
  return Json{{"error", number(error())}, {"unmatched", unmatched()}, {"rows", all}}.dump(2);
}

std::string Compare::svg() const {
  io::Series forward{"forward", {}, {}, true}, backward{"backward", {}, {}, true};
  for (size_t i = 0; i < run_->results.size(); ++i) {
    const auto& [op, module, part] = run_->results[i].key;
    const double error = run_->results[i].error;
    if (part == Part::Incoming) continue;
    io::Series& s = part == Part::Forward ? forward : backward;
    s.x.push_back(double(i));
    s.y.push_back(std::isfinite(error) ? error : 1);
    s.notes.push_back(
        fmt::format("{}{}: {:.1e}", op, module.empty() ? "" : " in " + module, error));
  }
  return io::to_svg(io::Chart{.title = "Relative error of each op's result",
                              .x_label = "op",
                              .y_label = "error",
                              .series = {forward, backward},
                              .log_y = true});
}

}  // namespace mixtape::amp
