// Draws charts from the metrics.jsonl of runs: one per quantity, with a curve per run.

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "examples/command_line.h"
#include "train/charts.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

namespace fs = std::filesystem;

// The last part of each folder's path, or the whole path if it is not unique.
std::vector<std::string> names(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  std::vector<std::string> unique = names;
  for (size_t i = 0; i < names.size(); ++i)
    if (std::ranges::count(names, names[i]) > 1) unique[i] = folders[i];
  return unique;
}

std::vector<train::RunLog> read(const std::vector<std::string>& folders) {
  std::vector<train::RunLog> runs;
  const auto all = names(folders);
  for (size_t i = 0; i < folders.size(); ++i)
    for (auto& run : train::read_run(folders[i], folders.size() > 1 ? all[i] : ""))
      runs.push_back(std::move(run));
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string out;
  CommandLine line("mixtape-plot",
                   "Draws charts of runs: loss.svg, lr.svg and one more for each other quantity.");
  line.add("RUN", folders, " ", "folders of runs, each with its metrics.jsonl")
      .required()
      .check(not_empty());
  line.add("--out", out, "DIR", "where the charts go (default: the folder of a single run, else .)")
      .check(not_empty());
  return line.run(argc, argv, [&]() -> CommandLine::Work {
    if (out.empty()) out = folders.size() == 1 ? folders[0] : ".";
    auto runs = read(folders);
    // Charts are made here once to find all mistakes of the user.
    check(!train::charts(runs).empty(), "{}: no numbers to draw", fmt::join(folders, ", "));
    return [&out, runs = std::move(runs)] {
      for (const std::string& file : train::save_charts(runs, train::RunFolder(out)))
        fmt::print("{}\n", (fs::path(out) / fs::path(file).filename()).string());
    };
  });
}
