// The precision lock: the precisions in which the ops of modules computed, as lines of a file with
// which a test compares a later program.
#include "amp/precision_lock.h"

#include <fmt/ranges.h>

#include <set>
#include <sstream>

#include "amp/report.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "io/file.h"
#include "io/text.h"

namespace mixtape::amp {
namespace {

// "layer1.conv: conv2d": what a line is about.
std::string subject(const std::string& line) { return line.substr(0, line.find('(', 1)); }

std::vector<std::string> read_lock(const std::string& path) {
  std::istringstream text(std::string(io::as_text(io::read_file(path))));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();  // as git may check it out
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

}  // namespace

namespace detail {
void run_both_ways(const Tensor& y, const std::vector<Tensor>& parameters) {
  if (!y.requires_grad()) return;
  std::vector<Tensor> leaves;
  for (const Tensor& p : parameters)
    if (p.requires_grad()) leaves.push_back(p);
  grad({y}, leaves, {.gradients = {ones(y.shape(), y.dtype(), y.device())}, .allow_unused = true});
}
}  // namespace detail

void Report::lock(const std::string& path) const {
  io::write_file(path, fmt::format("# The precision of each op, by module: inputs, or the incoming "
                                   "gradient, and results.\n{}\n",
                                   fmt::join(precisions(), "\n")));
}

void expect_precision(const std::string& path, const std::function<void()>& run) {
  check(run != nullptr, "expect_precision: there is nothing to run");
  const std::vector<std::string> want = read_lock(path);
  const Report report;
  run();
  const std::vector<std::string> got = report.precisions();
  const auto without = [](const std::vector<std::string>& lines,
                          const std::vector<std::string>& others) {
    const std::set<std::string> known(others.begin(), others.end());
    std::vector<std::string> left;
    for (const std::string& line : lines)
      if (!known.contains(line)) left.push_back(line);
    return left;
  };
  const std::vector<std::string> gone = without(want, got);
  std::vector<std::string> added = without(got, want);
  std::string text;
  const auto take_added = [&](const std::string& about) {
    std::erase_if(added, [&](const std::string& line) {
      if (!about.empty() && subject(line) != about) return false;
      text += "\n+ " + line;
      return true;
    });
  };
  for (size_t i = 0; i < gone.size(); ++i) {
    text += "\n- " + gone[i];
    if (i + 1 == gone.size() || subject(gone[i]) != subject(gone[i + 1]))
      take_added(subject(gone[i]));
  }
  take_added("");
  check(text.empty(), "precisions are not those of {} (-: there, +: here):{}", path, text);
}

}  // namespace mixtape::amp
