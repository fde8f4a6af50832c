#include "train/charts.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <set>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/warn.h"
#include "train/learner.h"
#include "train/ranks.h"

namespace mixtape::train {
namespace {

constexpr size_t curve_points = 256;  // more would show the noise of single batches

// The file name for a quantity. Metrics may have any name; bytes of UTF-8 (negative chars) are
// kept.
std::string file_name(std::string name) {
  for (char& c : name)
    if (c >= 0 && !std::isalnum(c) && c != '-' && c != '.') c = '_';
  return name.empty() ? "_" : name;
}

// The element of that name, added if there is none.
template <class T>
T& find_or_add(std::vector<T>& list, const std::string& name) {
  const auto found = std::ranges::find(list, name, &T::name);
  if (found != list.end()) return *found;
  list.push_back({});
  list.back().name = name;
  return list.back();
}

void add_line(RunLog& run, const io::JsonFields& line, double step) {
  for (const auto& [key, value] : line) {
    if (key == "step" || key == "epoch" || key == "seconds") continue;
    const bool* const flag = std::get_if<bool>(&value);
    if (key == "skipped" && flag && *flag) {
      run.skipped_x.push_back(step);
      run.skipped_y.push_back(io::number_in(line, "scale"));
    }
    if (flag || std::holds_alternative<std::string>(value)) continue;
    io::Series& quantity = find_or_add(run.quantities, key);
    quantity.x.push_back(step);
    quantity.y.push_back(io::number_in(value));
  }
}

// The log that JsonlLogger would write.
RunLog log_of(const Learner& learner) {
  RunLog run;
  const auto add = [&](const auto& row) {
    add_line(run, log_line(learner, row), double(row.step));
  };
  HistoryReader().read(learner.history, add, add);
  return run;
}

const io::Series* quantity(const RunLog& run, std::string_view name) {
  const auto found = std::ranges::find(run.quantities, name, &io::Series::name);
  return found == run.quantities.end() ? nullptr : &*found;
}

// False for validation values without validation data, which are all NaN.
bool has_numbers(const io::Series& s) {
  return std::ranges::any_of(s.y, [](double y) { return std::isfinite(y); });
}

bool is_loss(std::string_view quantity) { return quantity.ends_with("loss"); }

// True for a positive loss, which is easiest to read on a log axis, and the loss scale, which
// changes by factors.
bool is_logarithmic(const std::vector<RunLog>& runs, const std::string& name) {
  if (name == "scale") return true;
  const auto positive = [](double y) { return !std::isfinite(y) || y > 0; };
  return is_loss(name) && std::ranges::all_of(runs, [&](const RunLog& run) {
           const auto* const q = quantity(run, name);
           return !q || std::ranges::all_of(q->y, positive);
         });
}

std::string title_of(const std::string& quantity) {
  if (quantity == "lr") return "Learning rate";
  if (quantity == "scale") return "Loss scale";
  if (quantity == "loss" || quantity == "train_loss") return "Training loss";
  if (quantity == "valid_loss") return "Validation loss";
  std::string title = quantity;
  std::ranges::replace(title, '_', ' ');
  if (!title.empty() && title[0] >= 'a' && title[0] <= 'z') title[0] = char(title[0] - 'a' + 'A');
  return title;
}

// Drops points inside constant stretches, since means would smooth the few changes of the scale.
io::Series steps_of(const io::Series& s) {
  io::Series kept;
  for (size_t i = 0; i < s.x.size(); ++i) {
    const bool inside = i > 0 && i + 1 < s.x.size();
    if (inside && s.y[i - 1] == s.y[i] && s.y[i] == s.y[i + 1]) continue;
    kept.x.push_back(s.x[i]);
    kept.y.push_back(s.y[i]);
  }
  return kept;
}

double average(std::span<const double> v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / double(v.size());
}

// False for the loss scale of a run without a scaler, which logs 1.
bool is_drawn(const RunLog& run, const io::Series& s) {
  const auto is_one = [](double y) { return y == 1; };
  return has_numbers(s) &&
         (s.name != "scale" || !run.skipped_x.empty() || !std::ranges::all_of(s.y, is_one));
}

}  // namespace

io::JsonFields log_line(const Learner&, const StepRow& row) {
  return {{"step", row.step},
          {"loss", row.loss},
          {"lr", row.lr},
          {"scale", row.scale},
          {"skipped", row.skipped}};
}
io::JsonFields log_line(const Learner& learner, const EpochRow& row) {
  io::JsonFields all = {{"step", row.step}, {"epoch", row.epoch}};
  for (const auto& score : learner.scores(row)) all.emplace_back(score.name, score.value);
  all.emplace_back("seconds", row.seconds);
  return all;
}

std::vector<RunLog> read_run(const std::string& folder, const std::string& name) {
  const std::string path = (std::filesystem::path(folder) / "metrics.jsonl").string();
  std::vector<RunLog> runs;
  int64_t number = 0;
  for (const io::JsonFields& line : io::read_json_lines(path)) {
    ++number;
    const double step = io::number_in(line, "step");
    check(std::isfinite(step), "{}: line {} has no number \"step\"", path, number);
    const auto* const text = std::get_if<std::string>(io::find_field(line, "mode"));
    const std::string joint = name.empty() || !text ? "" : "/";
    add_line(find_or_add(runs, name + joint + (text ? *text : "")), line, step);
  }
  return runs;
}

void thin(io::Chart& chart, size_t most_points) {
  check(most_points > 0, "most_points must be > 0, got {}", most_points);
  double range = 0;
  for (const io::Series& s : chart.series)
    if (!s.dots && s.x.size() > most_points) {
      const auto [low, high] = std::ranges::minmax(s.x);
      range = std::max(range, high - low);
    }
  if (!(range > 0) || !std::isfinite(range)) return;
  const double stretch = std::exp2(std::ceil(std::log2(range / double(most_points))));
  for (io::Series& s : chart.series) {
    if (s.dots) continue;
    const std::vector<double> x = std::exchange(s.x, {}), y = std::exchange(s.y, {});
    for (size_t i = 0, end = 0; i < x.size(); i = end) {
      const double place = std::floor(x[i] / stretch);
      while (++end < x.size() && std::floor(x[end] / stretch) == place) {
      }
      s.x.push_back(average(std::span(x).subspan(i, end - i)));
      s.y.push_back(average(std::span(y).subspan(i, end - i)));
    }
  }
}

std::vector<std::pair<std::string, io::Chart>> charts(const std::vector<RunLog>& runs) {
  std::set<std::string> names;
  for (const RunLog& run : runs)
    check(names.insert(run.name).second, "two runs are named \"{}\"", run.name);
  std::vector<std::string> quantities;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(quantities, name) != quantities.end();
  };
  for (const RunLog& run : runs)
    for (const io::Series& q : run.quantities)
      if (is_drawn(run, q) && !has(q.name)) quantities.push_back(q.name);

  const bool alone = runs.size() == 1;
  std::vector<std::pair<std::string, io::Chart>> all;
  std::set<std::string> files;
  for (const std::string& name : quantities) {
    if (name == "train_loss" && has("loss")) continue;  // the means of "loss"
    const std::string training = has("loss") ? "loss" : "train_loss";
    const bool both = alone && has(training) && has("valid_loss");
    if (both && name == "valid_loss") continue;
    const bool joint = both && name == training;
    io::Chart chart{
        .title = joint ? "Loss" : title_of(name),
        .x_label = "step",
        .y_label = is_loss(name) ? "loss" : name,
        .log_y = is_logarithmic(runs, name) && (!joint || is_logarithmic(runs, "valid_loss"))};
    const auto add = [&](const std::string& title, const io::Series& q) {
      chart.series.push_back(name == "scale" ? steps_of(q) : q);
      chart.series.back().name = title;
    };
    for (const RunLog& run : runs) {
      if (const auto* const q = quantity(run, name); q && is_drawn(run, *q))
        add(joint ? "training" : alone ? "" : run.name, *q);
      if (joint) add("validation", *quantity(run, "valid_loss"));
    }
    thin(chart, curve_points);
    if (name == "scale") {
      io::Series skipped{"skipped steps", {}, {}, true};
      for (const RunLog& run : runs) {
        skipped.x.insert(skipped.x.end(), run.skipped_x.begin(), run.skipped_x.end());
        skipped.y.insert(skipped.y.end(), run.skipped_y.begin(), run.skipped_y.end());
      }
      if (!skipped.x.empty()) chart.series.push_back(std::move(skipped));
    }
    std::string file = file_name(name == "train_loss" ? "loss" : name);
    while (!files.insert(file).second) file += '_';  // "a b" beside "a_b"
    all.emplace_back(file + ".svg", std::move(chart));
  }
  return all;
}

std::vector<std::string> save_charts(const std::vector<RunLog>& runs, const RunFolder& folder) {
  std::vector<std::string> files;
  for (const auto& [file, chart] : charts(runs)) {
    files.push_back(folder.path(file));
    io::write_file(files.back(), io::to_svg(chart));
  }
  return files;
}

io::HeatMap confusion_chart(const Tensor& counts, const std::vector<std::string>& names) {
  check(counts.rank() == 2 && counts.size(0) == counts.size(1),
        "a confusion matrix must be square, got {}", counts.shape());
  const int64_t classes = counts.size(0);
  check(names.empty() || int64_t(names.size()) == classes, "{} names for {} classes", names.size(),
        classes);
  io::HeatMap map{"Confusion matrix", "predicted", "label", names, {}, {}};
  if (names.empty())
    for (int64_t c = 0; c < classes; ++c) map.rows.push_back(std::to_string(c));
  map.columns = map.rows;
  const Tensor on_cpu = counts.to(Device::cpu());
  for (int64_t r = 0; r < classes; ++r) {
    map.values.emplace_back();
    for (int64_t c = 0; c < classes; ++c) map.values.back().push_back(on_cpu.at(r * classes + c));
  }
  return map;
}

Charts::Charts(std::string folder, std::vector<std::string> classes)
    : folder_(std::move(folder)), classes_(std::move(classes)) {
  std::set<std::string> names = {"loss", "confusion", "lr_find"};
  try {
    for (const RunLog& run : read_run(folder_.path()))
      for (const io::Series& q : run.quantities) names.insert(file_name(q.name));
  } catch (const Error&) {  // missing or damaged
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    if (entry.path().extension() == ".svg" && names.contains(entry.path().stem().string())) {
      std::error_code none;  // it may be a dangling link
      const auto time = entry.last_write_time(none);
      if (!none) earlier_.emplace_back(entry.path().string(), time);
    }
}

void Charts::on_train_begin(Learner& learner) {
  if (!is_first_rank()) return;
  const bool fresh = learner.history.epochs.empty() && learner.history.steps.empty();
  for (const auto& [file, time] : std::exchange(earlier_, {})) {
    std::error_code none;  // the file may be gone
    if (fresh && std::filesystem::last_write_time(file, none) == time)
      std::filesystem::remove(file, none);
  }
}

void Charts::on_checkpoint(Learner& learner) {
  const bool last = learner.state.batch == 0 &&
                    (learner.state.epoch == learner.state.epochs || learner.is_stopping());
  if (classes_.empty() || !last || !learner.data.valid) return;
  // Thrown, an error would cost the program its fit, and other ranks would wait for this one.
  std::string wrong;
  if (learner.pass && !learner.state.output) wrong = "LearnerOptions::pass returned only a loss";
  const auto is_wrong = [&] { return largest_of_ranks(!wrong.empty()) > 0; };
  Tensor counts;
  if (!is_wrong())
    counts = learner.total([&](const Tensor& output, const Tensor& target) {
      const auto n = int64_t(classes_.size());
      try {
        return confusion_matrix(output, target, n);
      } catch (const Error& e) {
        wrong = e.what();
        return zeros({n, n}, i64, output.device());
      }
    });
  if (!wrong.empty()) warn("confusion.svg cannot be drawn: " + wrong);
  if (!is_wrong() && is_first_rank())
    io::write_file(folder_.path("confusion.svg"), io::to_svg(confusion_chart(counts, classes_)));
}

void Charts::on_train_end(Learner& learner) {
  if (is_first_rank()) save_charts({log_of(learner)}, folder_);
}

}  // namespace mixtape::train
