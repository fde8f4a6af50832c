#include "optim/by_name.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "core/parse.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"

namespace mixtape::optim {
namespace {

// Muon with a group of AdamW for parameters that are not matrices. (clang 14 does not compile
// std::ranges::stable_partition.)
std::unique_ptr<Optimizer> muon(std::vector<Tensor> params, const MuonOptions& o,
                                const CommonOptions& common) {
  const auto rest = std::stable_partition(params.begin(), params.end(), [](const Tensor& p) {
    return !p || p.rank() >= MuonOptions::min_rank;
  });
  std::vector<Tensor> others;
  if (rest != params.begin()) {  // without a matrix, Muon throws its own Error
    others.assign(rest, params.end());
    params.erase(rest, params.end());
  }
  auto made = std::make_unique<Muon>(std::move(params), o, common);
  if (!others.empty())
    made->add_group(std::move(others), AdamWOptions{.lr = o.lr, .weight_decay = o.weight_decay},
                    common);
  return made;
}

template <class O>
std::unique_ptr<Optimizer> made(std::vector<Tensor> params, const NamedOptions& named,
                                const CommonOptions& common) {
  O o;
  CommonOptions all = common;
  for (const auto& [name, value] : named) {
    Options options = o.options();
    options.push_back({"maximize", all.maximize});
    const Option option = detail::find_option(options, name, O::name);
    detail::check_value(option, value);
    option.set(value);
  }
  if constexpr (std::is_same_v<O, MuonOptions>)
    return muon(std::move(params), o, all);
  else
    return std::make_unique<OptimizerOf<O>>(std::move(params), o, all);
}

template <class... O>
std::vector<std::string> names_of(kernels::OpList<O...>) {
  return {std::string(O::name)...};
}

// A schedule's text, "name:numbers:factor", and the lengths that it leaves open.
struct Request {
  std::string_view text;
  const ScheduleSteps& steps;
  std::vector<double> numbers = {}, factor = {};  // at most one factor

  int64_t rest() const {
    check(steps.warmup_steps == 0 || steps.warmup_steps < steps.total_steps,
          "warmup_steps must be < total_steps, got {} and {}", steps.warmup_steps,
          steps.total_steps);
    return steps.total_steps - steps.warmup_steps;
  }
  // The steps from the end of the warm-up to the end of an epoch.
  int64_t steps_to(double epoch) const {
    const int64_t left = steps_in(epoch) - steps.warmup_steps;
    check(left > 0 || steps.warmup_steps == 0, "epoch {} ends within the {} warmup_steps", epoch,
          steps.warmup_steps);
    return left;
  }
  int64_t steps_in(double epochs) const {
    check(0 <= epochs && epochs <= 1e9, "an epoch must be from 0 to 1e9, got {}", epochs);
    return std::llround(epochs * double(steps.epoch_steps));
  }
};

// A schedule whose kind in a state is its text.
template <class S, class Options>
class Named final : public S {
 public:
  Named(std::string_view text, Optimizer& optimizer, const Options& options)
      : S(optimizer, options), text_(text) {}
  std::string_view name() const override { return text_; }

 private:
  const std::string text_;
};

Curve constant(const Request& r) {
  if (r.numbers.empty()) return ConstantOptions{.factor = 1};
  return ConstantOptions{r.numbers[0], r.steps_to(r.numbers[1])};
}
Curve step(const Request& r) {
  MultiStepOptions o;
  for (const double epoch : r.numbers) o.milestones.push_back(r.steps_to(epoch));
  if (!r.factor.empty()) o.gamma = r.factor[0];
  return o;
}
Curve exponential(const Request& r) {
  check(r.numbers[0] > 0, "gamma must be > 0, got {}", r.numbers[0]);
  return ExponentialOptions{std::pow(r.numbers[0], 1 / double(r.steps.epoch_steps))};
}
Curve wsd(const Request& r) {
  const double part = r.numbers[0];
  check(0 <= part && part <= 1, "the fraction that decays must be from 0 to 1, got {}", part);
  return WarmupStableDecayOptions{0, r.rest(), std::llround(part * double(r.rest()))};
}
Curve cosine_restarts(const Request& r) {
  const double factor = r.factor.empty() ? 1 : r.factor[0];
  check(factor == std::floor(factor) && factor <= 1e9,
        "a cycle must be a whole number of times as long as the last, got {}", factor);
  return CosineRestartsOptions{r.steps_in(r.numbers[0]), int64_t(factor)};
}

struct ScheduleForm {
  static constexpr size_t any = 1000;
  std::string_view name;
  size_t least, most, factors;       // the counts of numbers that it takes; most may be `any`
  Curve (*curve)(const Request& r);  // null: see cycle()
};
constexpr ScheduleForm forms[] = {
    {"constant", 0, 2, 0, constant},
    {"step", 1, ScheduleForm::any, 1, step},
    {"exponential", 1, 1, 0, exponential},
    {"multiplicative", 1, 1, 0,
     [](auto& r) -> Curve { return StepLrOptions{r.steps.epoch_steps, r.numbers[0]}; }},
    {"linear", 0, 0, 0, [](auto& r) -> Curve { return PolynomialOptions{r.rest()}; }},
    {"cosine", 0, 0, 0, [](auto& r) -> Curve { return CosineOptions{r.rest()}; }},
    {"polynomial", 1, 1, 0,
     [](auto& r) -> Curve { return PolynomialOptions{r.rest(), r.numbers[0]}; }},
    {"wsd", 1, 1, 0, wsd},
    {"cosine_restarts", 1, 1, 1, cosine_restarts},
    {"one_cycle", 0, 0, 0, nullptr},
    {"cyclic", 3, 3, 0, nullptr}};

// A schedule with its own warm-up, which also moves the momentum if all groups have one.
std::unique_ptr<Schedule> cycle(const Request& r, std::string_view name, Optimizer& optimizer) {
  check(r.steps.warmup_steps == 0, "{} warms up itself, but warmup_steps is {}", name,
        r.steps.warmup_steps);
  bool momentum = true;
  for (size_t g = 0; g < optimizer.groups(); ++g) momentum &= !optimizer.momentum_name(g).empty();
  if (name == "one_cycle")
    return std::make_unique<OneCycle>(
        optimizer, OneCycleOptions{.total_steps = r.steps.total_steps, .cycle_momentum = momentum});
  const double low = r.numbers[0], high = r.numbers[1];
  check(0 <= low && low < high, "the rates of cyclic must be 0 <= low < high, got {} and {}", low,
        high);
  const CyclicOptions options{
      .max_lr = high, .steps_up = r.steps_in(r.numbers[2]), .cycle_momentum = momentum};
  check(options.steps_up > 0, "cyclic must rise in a step at least, got {}", options.steps_up);
  for (size_t g = 0; g < optimizer.groups(); ++g) optimizer.set_lr(low, g);
  return std::make_unique<Named<Cyclic, CyclicOptions>>(r.text, optimizer, options);
}

std::vector<double> numbers_in(std::string_view list, std::string_view text) {
  std::vector<double> numbers;
  for (const std::string_view part : internal::split_at(list, ',')) {
    const auto number = internal::parse_number<double>(part);
    check(number && std::isfinite(*number), "the schedule \"{}\" has \"{}\" in place of a number",
          text, part);
    numbers.push_back(*number);
  }
  return numbers;
}

// Reads the numbers of the text; returns its form.
const ScheduleForm& parse(Request& r) {
  const std::vector<std::string_view> parts = internal::split_at(r.text, ':');
  if (parts.size() > 1) r.numbers = numbers_in(parts[1], r.text);
  if (parts.size() > 2) r.factor = numbers_in(parts[2], r.text);
  std::vector<std::string_view> names;
  for (const ScheduleForm& form : forms) {
    names.push_back(form.name);
    if (form.name != parts[0]) continue;
    const size_t n = r.numbers.size();
    const bool fits = form.most == form.any ? n >= form.least : n == form.least || n == form.most;
    check(fits && r.factor.size() <= form.factors && parts.size() <= 3,
          "the schedule \"{}\" has {} numbers, {} takes {}{}{}", r.text, n + r.factor.size(),
          form.name,
          form.least < form.most && form.most < form.any ? fmt::format("{} or ", form.least) : "",
          form.most == form.any ? "epochs" : std::to_string(form.most),
          form.factors > 0 ? ", and perhaps a factor" : "");
    return form;
  }
  fail("\"{}\" is not a schedule: {}", parts[0], fmt::join(names, ", "));
}

}  // namespace

std::unique_ptr<Optimizer> get(std::string_view name, std::vector<Tensor> params,
                               const NamedOptions& options, const CommonOptions& common) {
  const kernels::Optimizers all;
  const std::vector<std::string> names = names_of(all);
  for (int i = 0; i < all.size; ++i) {
    if (names[size_t(i)] != name) continue;
    std::unique_ptr<Optimizer> optimizer;
    kernels::visit_op(all, i,
                      [&]<class O>() { optimizer = made<O>(std::move(params), options, common); });
    return optimizer;
  }
  check(name != "lbfgs",
        "\"lbfgs\" takes a closure in its step, which no other optimizer does: make an "
        "optim::LBFGS(params, options) of optim/lbfgs.h and call step(closure)");
  check(name != "sam",
        "\"sam\" is a guard around a second backward pass, for any optimizer: optim::Ascended of "
        "optim/sam.h");
  fail("\"{}\" is not an optimizer: {}", name, fmt::join(names, ", "));
}

std::vector<std::string> optimizer_names() { return names_of(kernels::Optimizers()); }

void check_schedule(std::string_view text) {
  SGD any({Tensor({1}, f32, Device::cpu())}, {.momentum = 0.9});
  get_schedule(text, any, {.total_steps = 1 << 24, .epoch_steps = 1 << 20});
}

std::unique_ptr<Schedule> get_schedule(std::string_view text, Optimizer& optimizer,
                                       const ScheduleSteps& steps) {
  Request request{text, steps};
  const ScheduleForm& form = parse(request);
  check(steps.epoch_steps > 0 && steps.warmup_steps >= 0,
        "epoch_steps must be > 0 and warmup_steps >= 0, got {} and {}", steps.epoch_steps,
        steps.warmup_steps);
  if (!form.curve) return cycle(request, form.name, optimizer);
  SequentialOptions all;
  const double warmup = double(steps.warmup_steps);
  if (steps.warmup_steps > 0) {
    all.parts.push_back(
        LinearWarmupOptions{.start_factor = 1 / (warmup + 1), .total_steps = steps.warmup_steps});
    all.milestones = {steps.warmup_steps};
  }
  all.parts.push_back(form.curve(request));
  return std::make_unique<Named<Sequential, SequentialOptions>>(text, optimizer, all);
}

}  // namespace mixtape::optim
